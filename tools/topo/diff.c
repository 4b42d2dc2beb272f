/* SPDX-License-Identifier: Apache-2.0
 * --diff: the changes between two models as text or JSON. */
#include <stdlib.h>

#include "tools/topo/topo.h"
#include "tools/topo/json.h"

typedef struct diff {
  const topo_view *view;
  FILE *out;
  json_t *list; /* NULL for text */
  int32_t count;
} diff;

static void take(void *context, const topo_change *change) {
  static const char *const words[] = {"missing", "added", "changed"};
  static const char *const marks[] = {"- ", "+ ", "~ "};
  static const topo_ink inks[] = {TOPO_INK_WORST, TOPO_INK_NEAR, TOPO_INK_WARNING};
  diff *d = context;
  d->count++;
  if (d->list == NULL) {
    topo_put(d->out, d->view, inks[change->kind], marks[change->kind]);
    topo_put(d->out, d->view, TOPO_INK_PLAIN, change->text);
    fputc('\n', d->out);
  } else {
    json_array_append_new(d->list, json_pack("{s:s, s:s, s:s}", "change", words[change->kind], "what", change->what,
                                             "text", change->text));
  }
}

char *topo_diff(const topo_view *first, const topo_view *second, bool json, int *status) {
  tool_page page;
  diff d = {.view = first, .out = tool_page_begin(&page), .list = json ? json_array() : NULL};
  topo_comparison comparison = {.first = first,
                                .second = second,
                                .only = -1,
                                .arrow = first->utf8 && !json ? "→" : "->",
                                .together = !json,
                                .take = take,
                                .context = &d};
  topo_compare(&comparison);
  *status = d.count == 0 ? TOOL_EXIT_OK : TOOL_EXIT_FAILED;
  if (d.count == 0) fputs("no differences\n", d.out);
  char *text = tool_page_end(&page);
  return json ? topo_json_text(json_pack("{s:s, s:s, s:b, s:o}", "first", first->title, "second", second->title, "same",
                                         d.count == 0, "differences", d.list))
              : text;
}
