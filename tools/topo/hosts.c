/* SPDX-License-Identifier: Apache-2.0
 * Writes hosts as tables, with a row for each rank: its links, and the NIC that serves it. Hosts that are alike share a
 * table. */
#include <string.h>

#include "tools/topo/topo.h"
#include "topo/levels/derive.h"

/* Returns the speed as "371", "~371" if it is assumed, and "?" if it is unknown. */
static const char *speed_of(double gbytes_per_s, bool assumed) {
  if (gbytes_per_s <= 0) return "?";
  return tool_format(gbytes_per_s >= 1000 ? "%s%.0f" : "%s%.3g", assumed ? "~" : "", gbytes_per_s);
}

/* Finds the PCI link of a device, or the next one above it whose speed is known. */
static const char *pci_of(const bny_topo *topo, int32_t node) {
  for (int32_t n = node; n >= 0; n = topo->nodes[n].parent) {
    int32_t l = bny_topo_link_up(topo, n, BNY_TOPO_LINK_PCI);
    const bny_topo_link *link = l < 0 ? NULL : &topo->links[l];
    if (link != NULL && link->gbytes_per_s > 0) return speed_of(link->gbytes_per_s, link->source == BNY_TOPO_ASSUMED);
  }
  return "-";
}

/* Sums the speeds of the links to other GPUs. A partition has those of its device. */
static const char *links_of(const bny_topo *topo, int32_t node) {
  int32_t device = bny_topo_device(topo, node);
  double speed = 0;
  bool assumed = false, one_assumed;
  for (int32_t l = bny_topo_first_link(topo, device); l >= 0; l = bny_topo_next_link(topo, device, l)) {
    speed += bny_topo_gpu_link(topo, &topo->links[l], &one_assumed);
    assumed =
        assumed || one_assumed || (bny_topo_joins_gpus(&topo->links[l]) && topo->links[l].source == BNY_TOPO_ASSUMED);
  }
  return speed > 0 ? speed_of(speed, assumed) : "-";
}

static const char *processor_of(const bny_topo *topo, int32_t node) {
  int32_t numa = bny_topo_ancestor(topo, node, BNY_TOPO_NUMA);
  int32_t above = numa >= 0 ? numa : bny_topo_ancestor(topo, node, BNY_TOPO_PACKAGE);
  return above < 0 ? "-" : topo->nodes[above].name;
}

/* Facts of nodes, found once for the tables of all hosts. */
typedef struct facts {
  const topo_view *view;
  const bny_topo *topo;
  int8_t *severity;
  int32_t *spare, *next; /* by host: the first NIC that serves no rank; by NIC: the next one; -1 none */
} facts;

static facts facts_find(const topo_view *view) {
  const bny_topo *topo = view->topo;
  size_t nodes = (size_t)topo->nnodes;
  facts made = {view, topo, topo_severities(view), tool_new(nodes, sizeof(int32_t)), tool_new(nodes, sizeof(int32_t))};
  bool *serves = tool_new(nodes, sizeof *serves);
  for (int32_t r = 0; r < view->levels->nranks; r++)
    if (view->levels->ranks[r].nic >= 0) serves[view->levels->ranks[r].nic] = true;
  memset(made.spare, 0xff, nodes * sizeof *made.spare);
  for (int32_t n = topo->nnodes - 1; n >= 0; n--) {
    int32_t host = topo->nodes[n].kind == BNY_TOPO_NIC && !serves[n] ? bny_topo_ancestor(topo, n, BNY_TOPO_HOST) : -1;
    if (host < 0) continue;
    made.next[n] = made.spare[host];
    made.spare[host] = n;
  }
  return made;
}

/* A row and its title have the same columns. */
#define ROW "%4s  %-10.10s %-12s %-8.8s %5s %5s %6s  %-11.11s %-4s %5s %6s %4s%s"

static void put_row(FILE *out, const facts *f, int32_t number, const bny_topo_rank *rank) {
  const bny_topo_node *node = &f->topo->nodes[rank->node];
  bool gpu = node->kind == BNY_TOPO_GPU, has_nic = rank->nic >= 0, own = rank->nic == rank->node;
  int8_t severity = f->severity[rank->node];
  if (has_nic && f->severity[rank->nic] > severity) severity = f->severity[rank->nic];
  fprintf(
      out, ROW "\n", tool_format("%d", (int)number), node->name, node->bus_id == NULL ? "-" : node->bus_id,
      processor_of(f->topo, rank->node), pci_of(f->topo, rank->node), gpu ? tool_format("%d", (int)rank->nvlinks) : "-",
      gpu ? links_of(f->topo, rank->node) : "-", has_nic && !own ? f->topo->nodes[rank->nic].name : "-",
      has_nic && !own ? bny_topo_path_name(rank->nic_path) : "-",
      has_nic ? speed_of(rank->nic_gbytes_per_s, false) : "-", has_nic ? tool_format("%d", (int)rank->nic_shared) : "-",
      rank->rail < 0 ? "-" : tool_format("%d", (int)rank->rail),
      severity > TOPO_INFO ? tool_format("  %s", topo_severity_name((topo_severity)severity)) : "");
}

/* Returns the table of a host, whose ranks are numbered from `base`. */
static const char *table_of(const facts *f, const topo_host *host, int32_t base) {
  tool_page page, names;
  FILE *out = tool_page_begin(&page), *list = tool_page_begin(&names);
  for (int32_t i = 0; i < host->count; i++) put_row(out, f, base + i, &f->view->levels->ranks[host->first + i]);
  int32_t first = host->node < 0 ? -1 : f->spare[host->node];
  for (int32_t n = first; n >= 0; n = f->next[n]) fprintf(list, "%s%s", n == first ? "" : ", ", f->topo->nodes[n].name);
  const char *spare = tool_page_end(&names);
  if (first >= 0) tool_print_wrapped(out, 0, 4, tool_format("NICs that serve no rank: %s", spare));
  return tool_page_end(&page);
}

int8_t *topo_severities(const topo_view *view) {
  int8_t *worst = tool_new((size_t)view->topo->nnodes, sizeof *worst);
  for (int32_t f = 0; f < view->findings.count; f++) {
    const topo_finding *finding = &view->findings.list[f];
    for (int32_t i = 0; i < finding->nnodes; i++) {
      int32_t nic = bny_topo_nic_of(view->topo, finding->nodes[i]), node = nic >= 0 ? nic : finding->nodes[i];
      if (worst[node] < (int8_t)finding->severity) worst[node] = (int8_t)finding->severity;
    }
  }
  return worst;
}

/* Hosts that are alike have equal rows, and the same models of devices and NICs. */
static bool are_alike(const topo_view *view, const topo_host *a, const topo_host *b) {
  bool same = strcmp(a->look, b->look) == 0; /* a row for each rank, so they have as many */
  for (int32_t i = 0; same && i < a->count; i++) {
    const bny_topo_rank *mine = &view->levels->ranks[a->first + i], *theirs = &view->levels->ranks[b->first + i];
    const bny_topo_node *nodes = view->topo->nodes;
    same = strcmp(topo_model(&nodes[mine->node]), topo_model(&nodes[theirs->node])) == 0;
    if (mine->nic >= 0 && theirs->nic >= 0)
      same = same && strcmp(topo_model(&nodes[mine->nic]), topo_model(&nodes[theirs->nic])) == 0;
  }
  return same;
}

topo_host *topo_hosts(const topo_view *view, int32_t *count) {
  const bny_topo_levels *levels = view->levels;
  const facts f = facts_find(view);
  topo_host *hosts = NULL;
  *count = 0;
  for (int32_t r = 0, end; r < levels->nranks; r = end) {
    topo_host made = {.node = levels->ranks[r].host, .first = r, .like = *count};
    for (end = r; end < levels->nranks && levels->ranks[end].host == made.node; end++) made.count++;
    made.look = table_of(&f, &made, 0);
    for (int32_t h = 0; h < *count && made.like == *count && !view->all; h++)
      if (hosts[h].like == h && are_alike(view, &hosts[h], &made)) made.like = h;
    hosts = tool_more(hosts, *count, sizeof *hosts);
    hosts[(*count)++] = made;
    hosts[made.like].alike += made.like < *count - 1;
  }
  return hosts;
}

/* Writes "host0, 8 x NVIDIA H100, and 3 alike: host1, host2, host3". */
static void put_heading(FILE *out, const topo_view *view, const topo_host *hosts, int32_t count, int32_t which) {
  enum { NAMED_MOST = 6 };
  const topo_host *host = &hosts[which];
  tool_page page;
  FILE *line = tool_page_begin(&page);
  fputs(host->node < 0 ? "without a host" : view->topo->nodes[host->node].name, line);
  for (int32_t i = 0, same; i < host->count; i += same) { /* equal models in a row */
    const char *model = topo_model(&view->topo->nodes[view->levels->ranks[host->first + i].node]);
    for (same = 1; i + same < host->count; same++)
      if (strcmp(model, topo_model(&view->topo->nodes[view->levels->ranks[host->first + i + same].node])) != 0) break;
    if (*model != '\0') fprintf(line, ", %d x %s", (int)same, model);
  }
  if (host->alike > 0) fprintf(line, ", and %d alike: ", (int)host->alike);
  for (int32_t h = which + 1, named = 0; h < count && named <= NAMED_MOST; h++)
    if (hosts[h].like == which) {
      fprintf(line, "%s%s", named > 0 ? ", " : "", named == NAMED_MOST ? ".." : view->topo->nodes[hosts[h].node].name);
      named++;
    }
  fputc('\n', out);
  tool_print_wrapped(out, 0, 4, tool_page_end(&page));
}

void topo_put_hosts(FILE *out, const topo_view *view) {
  enum { HOSTS_SHOWN = 3 };
  int32_t count, shown = 0;
  const facts f = facts_find(view);
  const topo_host *hosts = topo_hosts(view, &count);
  for (int32_t h = 0; h < count; h++) {
    if (hosts[h].like != h) continue;
    if (shown++ == HOSTS_SHOWN && !view->all) {
      fputs("\nmore hosts, none like these: see --all\n", out);
      return;
    }
    put_heading(out, view, hosts, count, h);
    fprintf(out, ROW "\n", "rank", "device", "bus id", "CPUs", "PCI", "links", "GB/s", "NIC", "path", "GB/s", "shared",
            "rail", "");
    fputs(table_of(&f, &hosts[h], hosts[h].first), out);
  }
}
