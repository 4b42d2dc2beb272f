/* SPDX-License-Identifier: Apache-2.0
 *
 * These laws hold for any input of the importers. Fuzzers check them, and tests replay what fuzzers found.
 * Each function returns NULL, or a text about the law that is broken. */
#ifndef BNY_TESTS_TOPO_TOPO_LAWS_H
#define BNY_TESTS_TOPO_TOPO_LAWS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "topo/export/export.h"
#include "topo/import/json.h"
#include "topo/derive/levels.h"
#include "topo/model/model.h"
#include "topo/import/xml.h"

enum { LAWS_DEVICES = 24, LAWS_NODES = 4000 };

static inline const char *law_of_reason(const bny_topo_error *error) {
  if (error->text[0] == '\0') return "rejected without a reason";
  for (const char *at = error->text; *at != '\0'; at++)
    if (*at < ' ' || *at > '~') return "a reason that is not printable";
  return error->line < 0 ? "a negative line" : NULL;
}

/* A model that was written as JSON and read again is written the same. */
static inline const char *law_of_json(const bny_topo *topo) {
  bny_topo_error error = {.text = ""};
  char *text = bny_topo_export_json(topo, &error);
  if (text == NULL) return law_of_reason(&error); /* without jansson */
  bny_topo *again = bny_topo_import(text, strlen(text), NULL, &error);
  char *text_again = again == NULL ? NULL : bny_topo_export_json(again, &error);
  const char *broken = again == NULL                   ? "its JSON is rejected"
                       : text_again == NULL            ? "its JSON, read again, cannot be written"
                       : strcmp(text, text_again) != 0 ? "its JSON, read again, is another"
                       : again->nnodes != topo->nnodes || again->nlinks != topo->nlinks
                           ? "its JSON has other nodes or links"
                           : NULL;
  bny_topo_free(again);
  free(text);
  free(text_again);
  return broken;
}

/* GPUs, then NICs, LAWS_DEVICES at most. Returns how many. */
static inline int32_t devices_of(const bny_topo *topo, int32_t devices[LAWS_DEVICES]) {
  int32_t count = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t n = 0; n < topo->nnodes && count < LAWS_DEVICES; n++)
      if (topo->nodes[n].kind == (pass == 0 ? BNY_TOPO_GPU : BNY_TOPO_NIC)) devices[count++] = n;
  }
  return count;
}

/* How many pairs of devices have each path is the same, whatever their order. */
static inline const char *law_of_counts(const bny_topo *topo, const bny_topo *again) {
  int32_t pairs[2][BNY_TOPO_PATHS] = {{0}}, devices[2][LAWS_DEVICES];
  for (int side = 0; side < 2; side++) {
    const bny_topo *model = side == 0 ? topo : again;
    if (bny_topo_count(model, BNY_TOPO_GPU) + bny_topo_count(model, BNY_TOPO_NIC) > LAWS_DEVICES) return NULL;
    int32_t count = devices_of(model, devices[side]);
    for (int32_t a = 0; a < count; a++)
      for (int32_t b = 0; b < a; b++) pairs[side][bny_topo_path_between(model, devices[side][a], devices[side][b])]++;
  }
  return memcmp(pairs[0], pairs[1], sizeof pairs[0]) == 0 ? NULL : "its NCCL XML has other paths";
}

/* NCCL's format, where it can say this, is one that we read ourselves, with as many devices and the same paths. */
static inline const char *law_of_nccl(const bny_topo *topo) {
  bny_topo_error error = {.text = ""};
  char *text = bny_topo_export_nccl(topo, &error);
  if (text == NULL) return law_of_reason(&error);
  bny_topo *again = bny_topo_import(text, strlen(text), NULL, &error);
  const char *broken = NULL;
  if (again == NULL && bny_topo_xml_available())
    broken = "its NCCL XML is rejected";
  else if (again != NULL && (bny_topo_count(topo, BNY_TOPO_GPU) != bny_topo_count(again, BNY_TOPO_GPU) ||
                             bny_topo_count(topo, BNY_TOPO_NIC) != bny_topo_count(again, BNY_TOPO_NIC)))
    broken = "its NCCL XML has another number of GPUs or NICs";
  else if (again != NULL)
    broken = law_of_counts(topo, again);
  bny_topo_free(again);
  free(text);
  return broken;
}

static inline const char *law_of_paths(const bny_topo *topo) {
  int32_t devices[LAWS_DEVICES], count = devices_of(topo, devices);
  for (int32_t a = 0; a < count; a++) {
    for (int32_t b = 0; b <= a; b++) {
      bny_topo_path there = bny_topo_path_between(topo, devices[a], devices[b]);
      if ((unsigned)there >= BNY_TOPO_PATHS || (there == BNY_TOPO_PATH_SELF) != (a == b))
        return "a path that there is not";
      if (there != bny_topo_path_between(topo, devices[b], devices[a])) return "a path that is another on the way back";
    }
  }
  return NULL;
}

static inline const char *law_of_level(const bny_topo_levels *levels, const bny_topo_level *level) {
  int32_t members = 0;
  for (int32_t g = 0; g < level->ngroups; g++) {
    const bny_topo_group *group = &level->groups[g];
    members += group->count;
    for (int32_t i = 0; i < group->count; i++) {
      int32_t rank = level->members[group->first + i];
      if (rank < 0 || rank >= levels->nranks || level->group_of[rank] != g)
        return "a level whose groups are not those of its members";
    }
    if (!(group->gbytes_per_s >= 0) || (unsigned)group->path >= BNY_TOPO_PATHS)
      return "a group without a speed or path";
  }
  return members == level->nmembers && members <= levels->nranks ? NULL : "a level that counts members wrong";
}

static inline const char *law_of_levels(const bny_topo *topo) {
  bny_topo_levels *levels = bny_topo_derive(topo);
  const char *broken = levels == NULL ? "no levels" : NULL;
  for (int32_t i = 0; levels != NULL && i < levels->nlevels && broken == NULL; i++)
    broken = law_of_level(levels, &levels->levels[i]);
  for (int32_t i = 0; levels != NULL && i < levels->nfindings && broken == NULL; i++) {
    broken = levels->findings[i].text[0] == '\0' || strchr(levels->findings[i].text, '\n') != NULL
                 ? "a finding of no line"
                 : NULL;
  }
  bny_topo_levels_free(levels);
  return broken;
}

/* By content, and then everything that is done with a model. */
static inline const char *law_of_import(const char *text, size_t bytes) {
  bny_topo_error error = {.line = -1, .text = ""};
  const char *name = NULL;
  bny_topo *topo = bny_topo_import(text, bytes, &name, &error);
  if (topo == NULL) return law_of_reason(&error);
  const char *broken = !bny_topo_check(topo, &error) ? "taken, and does not pass the check"
                       : name == NULL                ? "no name"
                                                     : NULL;
  const char *(*const laws[])(const bny_topo *) = {law_of_paths, law_of_json, law_of_nccl, law_of_levels};
  for (size_t i = 0; i < sizeof laws / sizeof laws[0] && topo->nnodes <= LAWS_NODES && broken == NULL; i++)
    broken = laws[i](topo);
  bny_topo_free(topo);
  return broken;
}

/* One importer alone, also on what it does not recognise. */
static inline const char *law_of_importer(const bny_topo_importer *importer, const char *text, size_t bytes) {
  bny_topo_error error = {.text = ""};
  bny_topo *topo = bny_topo_new();
  if (topo == NULL) return NULL;
  importer->recognises(text, bytes);
  /* The check may still reject a text that the importer accepted. */
  bool taken = importer->parse(text, bytes, topo, &error) && bny_topo_check(topo, &error);
  const char *broken = taken ? NULL : law_of_reason(&error);
  bny_topo_free(topo);
  return broken;
}

#endif
