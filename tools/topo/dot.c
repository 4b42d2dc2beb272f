/* SPDX-License-Identifier: Apache-2.0
 * Writes a model as a graph for Graphviz: hosts as clusters, devices as nodes, and links as edges with their speeds. */
#include "tools/topo/topo.h"

#include <stdlib.h>

typedef struct graph {
  const topo_view *view;
  bool *drawn;
  int32_t *host, *above; /* by node; -1: none. `above` is the next drawn node that contains it, without its host */
  int32_t *rank;         /* by node; -1: none */
  int32_t *alike;        /* by host: equal hosts that are not drawn */
  int8_t *severity;
  FILE *out;
} graph;

static void put_quoted(FILE *out, const char *text) {
  for (; *text != '\0'; text++) {
    if (*text == '"' || *text == '\\') fputc('\\', out);
    fputc(*text, out);
  }
}

/* Draws one of several equal hosts, unless all are asked for. Not drawn are ports, host bridges, and PCI switches with
 * one device. Children come after their parents. */
static void nodes_choose(graph *g) {
  const bny_topo *topo = g->view->topo;
  int32_t *below = tool_new((size_t)topo->nnodes, sizeof *below), count;
  const topo_host *hosts = topo_hosts(g->view, &count);
  bool *is_left_out = tool_new((size_t)topo->nnodes, sizeof *is_left_out);
  for (int32_t h = 0; h < count; h++) {
    if (hosts[h].node < 0) continue;
    is_left_out[hosts[h].node] = hosts[h].like != h;
    g->alike[hosts[h].node] = hosts[h].alike;
  }
  for (int32_t n = topo->nnodes - 1; n >= 0; n--) {
    const bny_topo_node *node = &topo->nodes[n];
    g->rank[n] = -1;
    g->host[n] = bny_topo_ancestor(topo, n, BNY_TOPO_HOST);
    g->drawn[n] = node->kind != BNY_TOPO_PORT && (node->kind != BNY_TOPO_PCI || (!node->host_bridge && below[n] > 1));
    if (node->kind != BNY_TOPO_PORT && node->parent >= 0) below[node->parent] += g->drawn[n] ? 1 : below[n];
    g->drawn[n] = g->drawn[n] && (g->host[n] < 0 || !is_left_out[g->host[n]]);
  }
  for (int32_t n = 0; n < topo->nnodes; n++) {
    int32_t parent = topo->nodes[n].parent;
    bool inside = parent >= 0 && topo->nodes[parent].kind != BNY_TOPO_HOST;
    g->above[n] = !inside ? -1 : g->drawn[parent] ? parent : g->above[parent];
  }
  for (int32_t r = 0; r < g->view->levels->nranks; r++) g->rank[g->view->levels->ranks[r].node] = r;
}

static void put_node(const graph *g, int32_t n) {
  const bny_topo_node *node = &g->view->topo->nodes[n];
  static const char *const colours[] = {"black", "orange", "red"};
  int32_t rank = g->rank[n];
  fprintf(g->out, "  n%d [label=\"", (int)n);
  put_quoted(g->out, node->name);
  const char *lines[] = {topo_model(node), node->bus_id == NULL ? "" : node->bus_id,
                         rank < 0 ? "" : tool_format("rank %d", (int)rank)};
  for (int i = 0; i < 3; i++) {
    if (lines[i][0] != '\0') fputs("\\n", g->out);
    put_quoted(g->out, lines[i]);
  }
  fprintf(g->out, "\", color=%s];\n", colours[g->severity[n]]);
}

/* Draws the nodes of a host; -1: those above all hosts. */
static void put_host(const graph *g, int32_t host) {
  const bny_topo *topo = g->view->topo;
  if (host >= 0) {
    fprintf(g->out, "  subgraph cluster%d {\n  label=\"", (int)host);
    put_quoted(g->out, topo->nodes[host].name);
    fputs(g->alike[host] > 0 ? tool_format(" and %d alike\";\n", (int)g->alike[host]) : "\";\n", g->out);
  }
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (g->drawn[n] && g->host[n] == host && n != host) put_node(g, n);
  if (host >= 0) fputs("  }\n", g->out);
}

static void put_edge(const graph *g, int32_t a, int32_t b, int32_t count, double speed, bool assumed) {
  const char *text = topo_speed(speed, assumed);
  fprintf(g->out, "  n%d -- n%d [label=\"%s%s%s\"];\n", (int)a, (int)b,
          count > 1 ? tool_format("%d x", (int)count) : "", count > 1 && text[0] != '\0' ? ", " : "", text);
}

/* Returns the drawn node at an end of a link, which for a port is its NIC; -1 if there is none. */
static int32_t end_of(const graph *g, int32_t node) {
  if (g->view->topo->nodes[node].kind == BNY_TOPO_PORT) node = g->view->topo->nodes[node].parent;
  return node >= 0 && g->drawn[node] && g->view->topo->nodes[node].kind != BNY_TOPO_HOST ? node : -1;
}

char *topo_view_dot(const topo_view *view) {
  tool_page page;
  const bny_topo *topo = view->topo;
  size_t nodes = (size_t)topo->nnodes;
  graph g = {.view = view, .severity = topo_severities(view), .out = tool_page_begin(&page)};
  int32_t **const numbers[] = {&g.host, &g.above, &g.rank, &g.alike};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) *numbers[i] = tool_new(nodes, sizeof **numbers[i]);
  g.drawn = tool_new(nodes, sizeof *g.drawn);
  nodes_choose(&g);
  fputs("graph topology {\n  node [shape=box];\n", g.out);
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (g.drawn[n] && topo->nodes[n].kind == BNY_TOPO_HOST) put_host(&g, n);
  put_host(&g, -1);
  for (int32_t n = 0; n < topo->nnodes; n++) {
    if (!g.drawn[n] || g.above[n] < 0) continue;
    int32_t l = bny_topo_link_up(topo, n, BNY_TOPO_LINK_PCI);
    put_edge(&g, g.above[n], n, 1, l < 0 ? 0 : topo->links[l].gbytes_per_s,
             l >= 0 && topo->links[l].source == BNY_TOPO_ASSUMED);
  }
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    int32_t a = end_of(&g, link->from), b = end_of(&g, link->to);
    if (link->kind != BNY_TOPO_LINK_PCI && a >= 0 && b >= 0 && a != b)
      put_edge(&g, a, b, link->count, link->gbytes_per_s, link->source == BNY_TOPO_ASSUMED);
  }
  fputs("}\n", g.out);
  return tool_page_end(&page);
}
