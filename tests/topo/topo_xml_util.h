/* SPDX-License-Identifier: Apache-2.0
 * Helpers of the tests of XML importers: texts of tests/corpus, and queries of the model. */
#pragma once

#include "topo/model/model.h"
#include "tools/topo/import/xml.h"
#include "tests/topo/topo_util.h"

#define NCCL_HEAD                                                                                     \
  "<system version=\"1\">\n<cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" " \
  "modelid=\"143\">\n"
#define NCCL_TAIL "</cpu>\n</system>\n"

/* Returns the text of a file of tests/corpus. Unless `from` is NULL, its first occurrence is replaced by `to`. */
static inline char *corpus_text(const char *name, const char *from, const char *to) {
  const char *source = getenv("top_srcdir");
  char path[4096];
  size_t bytes;
  snprintf(path, sizeof path, "%s/tests/corpus/%s", source == NULL ? "." : source, name);
  char *text = read_text(path, &bytes), *at = text == NULL || from == NULL ? text : strstr(text, from);
  ck_assert_msg(at != NULL, "%s", path);
  if (from == NULL) return text;
  char *changed = topo_text(malloc(bytes + strlen(to) + 1));
  sprintf(changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  return changed;
}

static inline bny_topo *import(const char *text, const char *importer) {
  bny_topo_error error = {.text = ""};
  const char *name = NULL;
  bny_topo *topo = topo_import(text, strlen(text), &name, &error);
  ck_assert_msg(topo != NULL, "line %d: %s", error.line, error.text);
  ck_assert_str_eq(name, importer);
  return topo;
}

static inline const bny_topo_link *between(const bny_topo *topo, int32_t a, int32_t b) {
  for (int32_t l = bny_topo_first_link(topo, a); l >= 0; l = bny_topo_next_link(topo, a, l))
    if (bny_topo_other_end(topo, a, l) == b) return &topo->links[l];
  ck_abort_msg("%s and %s are not linked", topo->nodes[a].name, topo->nodes[b].name);
  return NULL;
}

typedef struct rejection {
  const char *text;
  int line;
  const char *why;
} rejection;

/* ---- real machines ----------------------------------------------------------------------------------------------- */

/* Returns a dump by its name; NULL if there is none. */
static inline bny_topo *dump(const char *name) {
  char path[4096];
  return dump_path(name, path) ? load_file(path) : NULL;
}

/* If libxml2 is missing, prints that and returns false. */
static inline bool xml_is_read(void) {
  if (!bny_topo_xml_available()) fprintf(stderr, "skipped: built without libxml2\n");
  return bny_topo_xml_available();
}
