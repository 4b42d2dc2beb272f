/* SPDX-License-Identifier: Apache-2.0
 * The text of banyan-topo: what there is, a table of each host's ranks, levels, findings and probes. */
#include <string.h>

#include "tools/topo/topo.h"

static void put_title(FILE *out, const topo_view *view) {
  static const bny_topo_kind kinds[] = {BNY_TOPO_HOST, BNY_TOPO_PACKAGE, BNY_TOPO_NUMA,
                                        BNY_TOPO_GPU,  BNY_TOPO_NIC,     BNY_TOPO_SWITCH};
  const char *before = ": ", *line = view->title;
  for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
    int32_t count = bny_topo_count(view->topo, kinds[k]);
    if (count == 0) continue;
    line = tool_format("%s%s%s", line, before, topo_count(count, kinds[k]));
    before = ", ";
  }
  tool_print_wrapped(out, 0, 4, line);
}

char *topo_view_text(const topo_view *view) {
  tool_page page, tables;
  FILE *out = tool_page_begin(&tables);
  topo_put_hosts(out, view);
  topo_put_levels(out, view);
  const char *parts = tool_page_end(&tables);
  out = tool_page_begin(&page);
  put_title(out, view);
  fputs(parts, out);
  if (strchr(parts, '~') != NULL)
    fputs("~ assumed: what hardware of that kind does; not read from this machine or file\n", out);
  if (view->findings.count > 0) fputs("\nFindings\n", out);
  topo_put_findings(out, view, TOPO_INFO, true);
  topo_put_probes(out, view);
  return tool_page_end(&page);
}
