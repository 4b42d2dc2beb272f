/* SPDX-License-Identifier: Apache-2.0
 * Exports a model for Graphviz: a cluster per host, package and NUMA node, an edge per link. Nothing is folded; ports
 * are drawn as their NICs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/work.h"

typedef struct dot_look {
  const char *shape, *fill;
} dot_look;

static const dot_look looks[BNY_TOPO_KINDS] = {
    [BNY_TOPO_HOST] = {"box", "#ffffff"},   [BNY_TOPO_PACKAGE] = {"box", "#d6dee8"},
    [BNY_TOPO_NUMA] = {"box", "#d6dee8"},   [BNY_TOPO_PCI] = {"box", "#ffffff"},
    [BNY_TOPO_GPU] = {"box", "#dcebdd"},    [BNY_TOPO_NIC] = {"box", "#fbeed3"},
    [BNY_TOPO_PORT] = {"point", "#ffffff"}, [BNY_TOPO_SWITCH] = {"box3d", "#eef6ef"}};

static const char *const colours[BNY_TOPO_LINK_KINDS] = {
    [BNY_TOPO_LINK_PCI] = "#707070", [BNY_TOPO_LINK_NVLINK] = "#2f6b3a", [BNY_TOPO_LINK_XGMI] = "#8a4a12",
    [BNY_TOPO_LINK_C2C] = "#6a3d9a", [BNY_TOPO_LINK_SYS] = "#8c96a6",    [BNY_TOPO_LINK_NET] = "#0072b2"};

/* Escapes for double quotes, where a backslash starts an escape and a line feed is written as one. */
static void put_escaped(FILE *out, const char *text) {
  for (; *text; text++) {
    unsigned char c = (unsigned char)*text;
    if (c == '\n')
      fputs("\\n", out);
    else if (c == '"' || c == '\\')
      fprintf(out, "\\%c", c);
    else
      fputc(c < ' ' || c == 127 ? '?' : c, out);
  }
}

static bool is_area(bny_topo_kind kind) { return kind == BNY_TOPO_PACKAGE || kind == BNY_TOPO_NUMA; }

static void put_node(FILE *out, const bny_topo *topo, int32_t n) {
  const bny_topo_node *node = &topo->nodes[n];
  bool small = node->kind == BNY_TOPO_PCI;
  fprintf(out, "  \"n%d\" [shape=%s, style=\"%sfilled%s\", fillcolor=\"%s\"%s, label=\"", n, looks[node->kind].shape,
          node->kind == BNY_TOPO_SWITCH ? "" : "rounded,", node->source == BNY_TOPO_ASSUMED ? ",dashed" : "",
          looks[node->kind].fill, small ? ", fontsize=8, height=0.2" : "");
  put_escaped(out, node->host_bridge ? "host bridge" : small ? "PCIe switch" : node->name);
  if (node->model) {
    fputs("\\n", out);
    put_escaped(out, node->model);
  }
  fputs("\"];\n", out);
}

/* Opens a cluster, named by its node, for a host, package or NUMA node. Returns whether it did. */
static bool put_cluster(FILE *out, const bny_topo *topo, int32_t n) {
  const bny_topo_node *node = &topo->nodes[n];
  if (node->kind != BNY_TOPO_HOST && !is_area(node->kind)) return false;
  fprintf(out, "  subgraph \"cluster_n%d\" {\n  style=\"rounded\"; color=\"%s\"; label=\"", n,
          node->kind == BNY_TOPO_HOST ? "#3c3c3c" : "#b9c3d0");
  put_escaped(out, node->name);
  fputs("\";\n", out);
  return true;
}

/* Returns the NIC of a port, or the node itself. */
static int32_t shown(const bny_topo *topo, int32_t n) {
  return topo->nodes[n].kind == BNY_TOPO_PORT && topo->nodes[n].parent >= 0 ? topo->nodes[n].parent : n;
}

static void put_link(FILE *out, const bny_topo *topo, const bny_topo_link *link) {
  int32_t from = shown(topo, link->from), to = shown(topo, link->to);
  if (from == to) return;
  fprintf(out, "  \"n%d\" -- \"n%d\" [color=\"%s\", fontcolor=\"%s\", penwidth=%s%s, label=\"", from, to,
          colours[link->kind], colours[link->kind],
          link->kind == BNY_TOPO_LINK_PCI || link->kind == BNY_TOPO_LINK_NET ? "1" : "3",
          link->source == BNY_TOPO_ASSUMED ? ", style=\"dashed\"" : "");
  if (link->kind != BNY_TOPO_LINK_PCI) fputs(bny_topo_link_name(link->kind), out);
  if (link->kind != BNY_TOPO_LINK_PCI && link->count > 1) fprintf(out, " x %d", link->count);
  if (link->gbytes_per_s > 0)
    fprintf(out, "%s%s GB/s", link->kind == BNY_TOPO_LINK_PCI ? "" : "\\n", topo_figure_of(link->gbytes_per_s).text);
  fputs("\"];\n", out);
}

/* Draws the edge from a device to its bridge or CPU if no link does. */
static void put_containment(FILE *out, const bny_topo *topo, int32_t n) {
  const bny_topo_node *node = &topo->nodes[n];
  bool hangs = node->kind == BNY_TOPO_PCI || node->kind == BNY_TOPO_GPU || node->kind == BNY_TOPO_NIC;
  if (!hangs || node->parent < 0 || topo->nodes[node->parent].kind == BNY_TOPO_HOST) return;
  for (int32_t l = bny_topo_first_link(topo, n); l >= 0; l = bny_topo_next_link(topo, n, l))
    if (bny_topo_other_end(topo, n, l) == node->parent) return;
  fprintf(out, "  \"n%d\" -- \"n%d\" [color=\"%s\"];\n", n, shown(topo, node->parent), colours[BNY_TOPO_LINK_PCI]);
}

/* Draws the tree without recursion. Children come in the order of the model. */
static bool put_tree(FILE *out, const bny_topo *topo) {
  size_t nodes = (size_t)topo->nnodes + 1;
  int32_t *first = malloc(nodes * sizeof *first), *next = malloc(nodes * sizeof *next), top = -1;
  bool good = first && next;
  for (int32_t n = topo->nnodes - 1; good && n >= 0; n--) first[n] = -1;
  for (int32_t n = topo->nnodes - 1; good && n >= 0; n--) {
    int32_t parent = topo->nodes[n].parent, *head = parent >= 0 ? &first[parent] : &top;
    next[n] = *head;
    *head = n;
  }
  for (int32_t n = good ? top : -1; n >= 0;) {
    bny_topo_kind kind = topo->nodes[n].kind;
    bool cluster = put_cluster(out, topo, n);
    if (kind != BNY_TOPO_HOST && kind != BNY_TOPO_PORT) put_node(out, topo, n);
    if (kind == BNY_TOPO_HOST && first[n] < 0) put_node(out, topo, n);
    if (first[n] >= 0) {
      n = first[n];
      continue;
    }
    if (cluster) fputs("  }\n", out);
    while (n >= 0 && next[n] < 0) {
      n = topo->nodes[n].parent;
      if (n >= 0 && (topo->nodes[n].kind == BNY_TOPO_HOST || is_area(topo->nodes[n].kind))) fputs("  }\n", out);
    }
    if (n >= 0) n = next[n];
  }
  free(first);
  free(next);
  return good;
}

char *topo_view_dot(const topo_view *view, tool_error *error) {
  const bny_topo *topo = view->topo;
  char *text = NULL;
  size_t bytes;
  FILE *out = open_memstream(&text, &bytes);
  bool good = out != NULL;
  if (good) {
    fputs("// To draw this: dot -Tsvg FILE -o picture.svg (Debian and Ubuntu: apt-get install graphviz)\n"
          "graph \"topology\" {\n  label=\"",
          out);
    put_escaped(out, view->title ? view->title : "");
    fputs("\"; labelloc=t; compound=true; rankdir=TB;\n"
          "  node [fontname=\"Helvetica\", fontsize=10, margin=\"0.08,0.04\"];\n"
          "  edge [fontname=\"Helvetica\", fontsize=8];\n",
          out);
    good = put_tree(out, topo);
    for (int32_t n = 0; n < topo->nnodes; n++) put_containment(out, topo, n);
    for (int32_t l = 0; l < topo->nlinks; l++) put_link(out, topo, &topo->links[l]);
    fputs("}\n", out);
    good = !ferror(out) && good;
    good = fclose(out) == 0 && good;
  }
  if (good) return text;
  free(text);
  tool_error_set(error, "no memory for the graph");
  return NULL;
}
