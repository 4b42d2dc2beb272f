/* SPDX-License-Identifier: Apache-2.0
 * --diff: the changes between two models as text or JSON. */
#include <stdlib.h>

#include "tools/topo/topo.h"
#include "tools/topo/json.h"

char *topo_diff(const topo_view *first, const topo_view *second, bool json, int *status) {
  static const char *const words[] = {"missing", "added", "changed"}, *const marks[] = {"- ", "+ ", "~ "};
  static const topo_ink inks[] = {TOPO_INK_WORST, TOPO_INK_NEAR, TOPO_INK_WARNING};
  topo_comparison comparison = {.first = first, .second = second, .only = -1, .together = !json};
  comparison.arrow = first->utf8 && !json ? "→" : "->";
  int32_t count;
  const topo_change *changes = topo_compare(&comparison, &count);
  *status = count == 0 ? TOOL_EXIT_OK : TOOL_EXIT_FAILED;
  if (json) {
    json_t *list = json_array();
    for (const topo_change *c = changes; c < changes + count; c++)
      json_array_append_new(list,
                            json_pack("{s:s, s:s, s:s}", "change", words[c->kind], "what", c->what, "text", c->text));
    return topo_json_text(json_pack("{s:s, s:s, s:b, s:o}", "first", first->title, "second", second->title, "same",
                                    count == 0, "differences", list));
  }
  tool_page page;
  FILE *out = tool_page_begin(&page);
  for (const topo_change *c = changes; c < changes + count; c++) {
    topo_put(out, first, inks[c->kind], marks[c->kind]);
    topo_put(out, first, TOPO_INK_PLAIN, c->text);
    fputc('\n', out);
  }
  if (count == 0) fputs("no differences\n", out);
  return tool_page_end(&page);
}
