/* SPDX-License-Identifier: Apache-2.0
 * Tips: all known facts about a node or link in lines of text. The SVG shows them under the pointer. */
#include <stdio.h>

#include "tools/topo/picture/work.h"

static const char *path_of(const topo_work *work, int32_t node, char text[256]) {
  int32_t host = work->spots[node].host;
  bool named = host < work->topo->nnodes && work->nhosts > 1 && host != node;
  snprintf(text, 256, "%.100s%s%.140s", named ? work->topo->nodes[host].name : "", named ? " " : "",
           work->topo->nodes[node].name);
  return text;
}

static void put_speed(FILE *out, const bny_topo_link *link) {
  if (link->gbytes_per_s > 0)
    fprintf(out, "\n%s GB/s in one direction", topo_figure_of(link->gbytes_per_s).text);
  else
    fprintf(out, "\nspeed not known");
  if (link->rated_gbytes_per_s > 0 && link->rated_gbytes_per_s != link->gbytes_per_s)
    fprintf(out, ", rated %s", topo_figure_of(link->rated_gbytes_per_s).text);
  if (link->latency_us > 0) fprintf(out, "\n%s us", topo_figure_of(link->latency_us).text);
  fprintf(out, "\nsource: %s", bny_topo_source_name(link->source));
}

const char *topo_tip_link(const topo_work *work, int32_t l) {
  const bny_topo_link *link = &work->topo->links[l];
  char from[256], to[256];
  tool_page page;
  FILE *out = tool_page_begin(&page);
  fprintf(out, "%s to %s: %s", path_of(work, link->from, from), path_of(work, link->to, to),
          bny_topo_link_name(link->kind));
  if (link->count > 0)
    fprintf(out, ", %d %s%s", link->count, link->kind == BNY_TOPO_LINK_PCI ? "lane" : "link",
            link->count == 1 ? "" : "s");
  put_speed(out, link);
  return tool_page_end(&page);
}

static void put_string(FILE *out, const char *what, const char *value) {
  if (value) fprintf(out, "\n%s: %s", what, value);
}

static void put_rank(FILE *out, const topo_work *work, int32_t node) {
  const bny_topo_rank *rank = &work->levels->ranks[work->fold.rank[node]];
  fprintf(out, "\nrank %d", work->fold.rank[node]);
  if (rank->nvlinks > 0) fprintf(out, "\n%d NVLink or xGMI link%s", rank->nvlinks, rank->nvlinks == 1 ? "" : "s");
  if (rank->nic < 0 || rank->nic == node) return;
  fprintf(out, "\nserved by %s (%s", work->topo->nodes[rank->nic].name, bny_topo_path_name(rank->nic_path));
  if (rank->nic_shared > 1) fprintf(out, ", shared by %d", rank->nic_shared);
  fprintf(out, rank->rail >= 0 ? "), rail %d" : ")", rank->rail);
}

const char *topo_tip_node(const topo_work *work, int32_t node) {
  const bny_topo_node *own = &work->topo->nodes[node];
  topo_facts facts = topo_fold_facts(&work->fold, node);
  char name[256];
  tool_page page;
  FILE *out = tool_page_begin(&page);
  fprintf(out, "%s %s", own->host_bridge ? "host bridge" : bny_topo_kind_name(own->kind), path_of(work, node, name));
  if (own->index >= 0) fprintf(out, "\nnumber: %d", own->index);
  put_string(out, "model", own->model);
  put_string(out, "vendor", own->vendor);
  put_string(out, "bus id", own->bus_id);
  put_string(out, "GUID", own->guid);
  if (own->compute == 910)
    fprintf(out, "\ngfx90a");
  else if (own->compute >= 0)
    fprintf(out, own->compute >= 200 ? "\ngfx%d" : "\nsm_%d", own->compute);
  if (own->kind == BNY_TOPO_NIC && facts.net > 0)
    fprintf(out, "\nports: %s GB/s in one direction%s", topo_figure_of(facts.net).text,
            facts.net_assumed ? ", assumed" : "");
  if (own->kind == BNY_TOPO_NIC && work->rail[node] >= 0) fprintf(out, "\nrail %d", work->rail[node]);
  if (work->fold.rank[node] >= 0) put_rank(out, work, node);
  fprintf(out, "\nsource: %s", bny_topo_source_name(own->source));
  return tool_page_end(&page);
}
