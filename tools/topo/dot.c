/* SPDX-License-Identifier: Apache-2.0
 * Writes a model as a graph for Graphviz: hosts as clusters, devices as nodes, and links as edges with their speeds. */
#include "tools/topo/topo.h"

#include <stdlib.h>

typedef struct graph {
  const topo_view *view;
  topo_fold fold;
  bool *drawn;    /* by node */
  int32_t *alike; /* by host: equal hosts that are not drawn */
  FILE *out;
} graph;

static void put_quoted(FILE *out, const char *text) {
  for (; *text != '\0'; text++) {
    if (*text == '"' || *text == '\\') fputc('\\', out);
    fputc(*text, out);
  }
}

/* Draws one of several equal hosts, unless all are asked for. */
static void hosts_choose(graph *g) {
  const bny_topo *topo = g->view->topo;
  int32_t *hosts = tool_new((size_t)topo->nnodes, sizeof *hosts), count = 0;
  int32_t *ends = tool_new((size_t)topo->nnodes, sizeof *ends);
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (topo->nodes[n].kind == BNY_TOPO_HOST) hosts[count++] = n;
  int32_t groups = topo_fold_groups(&g->fold, hosts, count, g->view->all ? INT32_MAX : 2, ends);
  for (int32_t i = 0, first = 0; i < groups; first = ends[i++]) {
    g->drawn[hosts[first]] = true;
    g->alike[hosts[first]] = ends[i] - first - 1;
  }
  for (int32_t n = 0; n < topo->nnodes; n++) {
    int32_t host = g->fold.host[n];
    g->drawn[n] = g->fold.shown[n] && (host < 0 || g->drawn[host]);
  }
}

static void put_node(const graph *g, int32_t n) {
  const bny_topo_node *node = &g->view->topo->nodes[n];
  static const char *const colours[] = {"black", "orange", "red"};
  int32_t rank = g->fold.rank[n];
  fprintf(g->out, "  n%d [label=\"", (int)n);
  put_quoted(g->out, node->name);
  const char *lines[] = {topo_model(node), node->bus_id == NULL ? "" : node->bus_id,
                         rank < 0 ? "" : tool_format("rank %d", (int)rank)};
  for (int i = 0; i < 3; i++) {
    if (lines[i][0] != '\0') fputs("\\n", g->out);
    put_quoted(g->out, lines[i]);
  }
  fprintf(g->out, "\", color=%s];\n", colours[g->fold.severity[n] < 0 ? 0 : g->fold.severity[n]]);
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
    if (g->drawn[n] && g->fold.host[n] == host && n != host) put_node(g, n);
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
  graph g = {.view = view, .fold = topo_fold_make(view), .out = tool_page_begin(&page)};
  g.drawn = tool_new((size_t)topo->nnodes, sizeof *g.drawn);
  g.alike = tool_new((size_t)topo->nnodes, sizeof *g.alike);
  hosts_choose(&g);
  fputs("graph topology {\n  node [shape=box];\n", g.out);
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (g.drawn[n] && topo->nodes[n].kind == BNY_TOPO_HOST) put_host(&g, n);
  put_host(&g, -1);
  for (int32_t n = 0; n < topo->nnodes; n++) {
    int32_t above = g.fold.above[n];
    if (!g.drawn[n] || above < 0 || end_of(&g, above) < 0 || topo->nodes[n].kind == BNY_TOPO_SWITCH) continue;
    topo_facts facts = topo_fold_facts(&g.fold, n);
    put_edge(&g, above, n, 1, facts.up, facts.up_assumed);
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
