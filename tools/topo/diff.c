/* SPDX-License-Identifier: Apache-2.0
 * --diff: the changes between two models as text or JSON. */
#include <stdlib.h>

#include "tools/topo/topo.h"
#include "tools/topo/json.h"

typedef struct diff {
  const topo_view *view;
  FILE *out;    /* NULL for JSON */
  json_t *list; /* NULL for text */
  int32_t count;
  tool_error *error;
} diff;

static bool take(void *context, const topo_change *change) {
  static const char *const words[] = {"missing", "added", "changed"};
  static const char *const marks[] = {"- ", "+ ", "~ "};
  static const topo_ink inks[] = {TOPO_INK_WORST, TOPO_INK_NEAR, TOPO_INK_WARNING};
  diff *d = context;
  d->count++;
  bool good;
  if (d->list == NULL) {
    topo_put(d->out, d->view, inks[change->kind], marks[change->kind]);
    topo_put(d->out, d->view, TOPO_INK_PLAIN, change->text);
    good = fputc('\n', d->out) != EOF;
  } else {
    good = json_array_append_new(d->list, json_pack("{s:s, s:s, s:s}", "change", words[change->kind], "what",
                                                    change->what, "text", change->text)) == 0;
  }
  return good || tool_error_set(d->error, "out of memory");
}

char *topo_diff(const topo_view *first, const topo_view *second, bool json, int *status, tool_error *error) {
  diff d = {.view = first, .list = json ? json_array() : NULL, .error = error};
  topo_comparison comparison = {.first = first,
                                .second = second,
                                .only = -1,
                                .arrow = first->utf8 && !json ? "→" : "->",
                                .together = !json,
                                .take = take,
                                .context = &d};
  char *text = NULL;
  size_t bytes;
  d.out = json ? NULL : open_memstream(&text, &bytes);
  bool good =
      (d.out != NULL || d.list != NULL || tool_error_set(error, "out of memory")) && topo_compare(&comparison, error);
  if (good && d.count == 0 && d.out != NULL) fputs("no differences\n", d.out);
  *status = d.count == 0 ? TOOL_EXIT_OK : TOOL_EXIT_FAILED;
  if (d.out != NULL && topo_finish(d.out, &text, error) != NULL && !good) {
    free(text);
    text = NULL;
  }
  if (d.list != NULL && good) {
    text = topo_json_text(json_pack("{s:s, s:s, s:b, s:O}", "first", first->title, "second", second->title, "same",
                                    d.count == 0, "differences", d.list),
                          error);
  }
  json_decref(d.list);
  return text;
}
