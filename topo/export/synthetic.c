/* SPDX-License-Identifier: Apache-2.0
 *
 * Exports a model as a synthetic description, if it is regular: all siblings of a kind have equal contents. The text is
 * written from the first of each kind and imported again, and the result is compared with the model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/derive/levels.h"
#include "topo/model/speed.h"
#include "topo/import/synthetic.h"

enum { PAIRS_OF = 300 }; /* devices whose paths are compared pair by pair */

typedef struct writer {
  const bny_topo *topo;
  const bny_topo_levels *levels;
  int32_t *first_child, *next_sibling;
  int32_t *island; /* by GPU node: group of its island or domain, -1: no links */
  bny_topo_error *error;
} writer;

static const bny_topo_node *node_at(const writer *w, int32_t node) { return &w->topo->nodes[node]; }

/* ---- attributes -------------------------------------------------------------------------------------------------- */

/* Writes "@gen5x16" for the link to the parent, if such a link has exactly its speed. */
static void pci_write(const writer *w, int32_t node, FILE *out) {
  for (int32_t l = bny_topo_first_link(w->topo, node); l >= 0; l = bny_topo_next_link(w->topo, node, l)) {
    const bny_topo_link *link = &w->topo->links[l];
    if (link->kind != BNY_TOPO_LINK_PCI || bny_topo_other_end(w->topo, node, l) != node_at(w, node)->parent) continue;
    for (int generation = 1; generation <= BNY_TOPO_PCI_GENERATIONS; generation++)
      if (link->count > 0 && link->count <= 32 &&
          fabs(bny_topo_speed_pci(generation, link->count) - link->gbytes_per_s) < 1e-9)
        fprintf(out, "@gen%dx%d", generation, link->count);
    return;
  }
}

static void speed_write(double gbytes_per_s, FILE *out) { /* the grammar allows six digits on either side */
  double gbits = gbytes_per_s * 8;
  if (gbits >= 1 && gbits < 999999 && fabs(gbits - nearbyint(gbits)) < 1e-9) {
    fprintf(out, "%.0fg", gbits);
    return;
  }
  char text[32] = "";
  for (int digits = 0; digits <= 6; digits++) {
    snprintf(text, sizeof text, "%.*f", digits, fmin(gbytes_per_s, 999999));
    if (fabs(strtod(text, NULL) - gbytes_per_s) < 1e-9) break;
  }
  fprintf(out, "%sGB", text);
}

static void gpu_write(const writer *w, int32_t node, FILE *out) {
  int32_t compute = node_at(w, node)->compute;
  if (compute >= 0 && compute <= 9999) fprintf(out, "@%s%d", compute >= 200 ? "gfx" : "sm", compute);
  pci_write(w, node, out);
  for (int32_t l = bny_topo_first_link(w->topo, node); l >= 0; l = bny_topo_next_link(w->topo, node, l)) {
    if (w->topo->links[l].kind == BNY_TOPO_LINK_C2C) {
      fputs("@c2c", out);
      if (w->topo->links[l].gbytes_per_s > 0) speed_write(w->topo->links[l].gbytes_per_s, out);
      return;
    }
  }
}

static void nic_write(const writer *w, int32_t node, FILE *out) {
  int32_t ports = 0;
  double speed = 0;
  for (int32_t port = w->first_child[node]; port >= 0; port = w->next_sibling[port]) {
    for (int32_t l = bny_topo_first_link(w->topo, port); l >= 0; l = bny_topo_next_link(w->topo, port, l))
      speed = w->topo->links[l].gbytes_per_s;
    ports++;
  }
  if (speed > 0 && ports > 0) {
    fputc('@', out);
    if (ports > 1) fprintf(out, "%dx", ports);
    speed_write(speed, out);
  }
  pci_write(w, node, out);
}

/* Writes a GPU's links: kind, count and the speed of one. It counts all to switches, or those to the first peer. */
static void joint_write(const writer *w, int32_t gpu, int32_t units, FILE *out) {
  int32_t links = 0, peer = -1;
  double speed = 0;
  bny_topo_item_kind kind = BNY_TOPO_ITEM_NVLINK;
  for (int32_t l = bny_topo_first_link(w->topo, gpu); l >= 0; l = bny_topo_next_link(w->topo, gpu, l)) {
    const bny_topo_link *link = &w->topo->links[l];
    int32_t other = bny_topo_other_end(w->topo, gpu, l);
    bool switched = node_at(w, other)->kind == BNY_TOPO_SWITCH;
    if ((link->kind != BNY_TOPO_LINK_NVLINK && link->kind != BNY_TOPO_LINK_XGMI) || other == gpu ||
        (!switched && peer >= 0 && other != peer))
      continue;
    peer = other;
    kind = switched ? BNY_TOPO_ITEM_NVSWITCH : link->kind == BNY_TOPO_LINK_XGMI ? BNY_TOPO_ITEM_XGMI : kind;
    links += link->count > 0 ? link->count : 1;
    speed += link->gbytes_per_s;
  }
  fprintf(out, " %s", bny_topo_item_name(kind));
  if (units > 1) fprintf(out, ":%d", units);
  fprintf(out, "@%d", links);
  if (speed > 0) {
    fputc('@', out);
    speed_write(speed / links, out);
  }
}

/* ---- contents of a container ------------------------------------------------------------------------------------- */

/* Returns the island of all GPUs below a node; -1: several or none, -2: no GPU. *gpu is one of them. */
static int32_t island_below(const writer *w, int32_t node, int32_t *gpu) {
  if (node_at(w, node)->kind == BNY_TOPO_GPU) {
    *gpu = node;
    return w->island[node];
  }
  int32_t island = -2;
  for (int32_t child = w->first_child[node]; child >= 0; child = w->next_sibling[child]) {
    int32_t below = island_below(w, child, gpu);
    if (below != -2) island = island == -2 || island == below ? below : -1;
  }
  return island;
}

static char *content_of(const writer *w, int32_t node, bool joined);

/* Writes the devices of one kind directly below a node, which must be alike. */
static bool devices_write(const writer *w, int32_t node, bny_topo_kind kind, bool joined, FILE *out) {
  char *first = NULL;
  size_t length = 0;
  int32_t count = 0, gpu = -1, islands = 0, last_island = -1;
  bool same = true;
  for (int32_t child = w->first_child[node]; child >= 0 && same; child = w->next_sibling[child]) {
    if (node_at(w, child)->kind != kind) continue;
    char *text = NULL;
    FILE *stream = open_memstream(&text, &length);
    if (!stream) return bny_topo_fail(w->error, 0, "no memory");
    (kind == BNY_TOPO_GPU ? gpu_write : nic_write)(w, child, stream);
    if (fclose(stream) != 0 || !text) {
      free(text);
      free(first);
      return bny_topo_fail(w->error, 0, "no memory");
    }
    same = !first || strcmp(first, text) == 0;
    if (!same) bny_topo_fail(w->error, 0, "%.60s is unlike the others beside it", node_at(w, child)->name);
    gpu = child;
    islands += w->island[child] >= 0 && w->island[child] != last_island;
    last_island = w->island[child];
    count++;
    if (first)
      free(text);
    else
      first = text;
  }
  if (same && count > 0) {
    int32_t units = kind == BNY_TOPO_GPU && !joined && islands > 0 ? islands : 1;
    if (kind == BNY_TOPO_GPU && !joined && islands > 0) joint_write(w, gpu, units, out);
    fprintf(out, " %s", kind == BNY_TOPO_GPU ? "gpu" : "nic");
    if (count / units > 1) fprintf(out, ":%d", count / units);
    fputs(first, out);
  }
  free(first);
  return same;
}

static bool is_container(bny_topo_kind kind) {
  return kind == BNY_TOPO_HOST || kind == BNY_TOPO_PACKAGE || kind == BNY_TOPO_NUMA || kind == BNY_TOPO_PCI;
}

static const char *container_name(const bny_topo_node *node) {
  return node->kind == BNY_TOPO_PCI && node->host_bridge ? "bridge" : bny_topo_kind_name(node->kind);
}

/* Writes the containers directly below a node, which must have equal contents. */
static bool containers_write(const writer *w, int32_t node, bool joined, FILE *out) {
  char *first = NULL;
  int32_t count = 0, before = -1;
  bool same = true;
  for (int32_t child = w->first_child[node]; child >= 0 && same; child = w->next_sibling[child]) {
    if (!is_container(node_at(w, child)->kind)) continue;
    char *text = content_of(w, child, joined);
    if (!text) {
      free(first);
      return false;
    }
    same = before < 0 || (strcmp(first, text) == 0 &&
                          strcmp(container_name(node_at(w, child)), container_name(node_at(w, before))) == 0);
    if (!same)
      bny_topo_fail(w->error, 0, "%.60s holds other things than %.60s", node_at(w, child)->name,
                    node_at(w, before)->name);
    before = before < 0 ? child : before;
    count++;
    if (first)
      free(text);
    else
      first = text;
  }
  if (same && count > 0) {
    fprintf(out, " %s", container_name(node_at(w, before)));
    if (count > 1) fprintf(out, ":%d", count);
    if (node_at(w, before)->kind == BNY_TOPO_PCI && !node_at(w, before)->host_bridge) pci_write(w, before, out);
    fputs(first, out);
  }
  free(first);
  return same;
}

/* Describes the contents of a node. Returns a string to free; NULL and *error if it is not regular. */
static char *content_of(const writer *w, int32_t node, bool joined) {
  char *text = NULL;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  if (!out) {
    bny_topo_fail(w->error, 0, "no memory");
    return NULL;
  }
  int32_t gpu = -1, island = joined ? -1 : island_below(w, node, &gpu);
  bool here = island >= 0;
  bool good = devices_write(w, node, BNY_TOPO_NIC, joined, out);
  if (here) joint_write(w, gpu, 1, out);
  good = good && devices_write(w, node, BNY_TOPO_GPU, joined || here, out) &&
         containers_write(w, node, joined || here, out);
  if (fclose(out) != 0) good = bny_topo_fail(w->error, 0, "no memory");
  if (!good) {
    free(text);
    return NULL;
  }
  return text;
}

/* ---- hosts and their surroundings -------------------------------------------------------------------------------- */

/* Fabric containers: their numbers, and whether leaves have rails; 0: none. */
typedef struct outside {
  int32_t spines, leaves, domains, hosts;
  bool rails;
} outside;

static int32_t groups_of(const bny_topo_levels *levels, bny_topo_level_kind kind) {
  const bny_topo_level *level = bny_topo_level_of(levels, kind);
  return level ? level->ngroups : 0;
}

/* Counts the leaf switches that the ranks of the first host are on. */
static int32_t leaves_of_host(const bny_topo_levels *levels) {
  const bny_topo_level *leaves = bny_topo_level_of(levels, BNY_TOPO_LEVEL_LEAF);
  int32_t count = 0;
  for (int32_t r = 0; leaves && r < levels->nranks && levels->ranks[r].host == levels->ranks[0].host; r++) {
    bool again = false;
    for (int32_t q = 0; q < r && !again; q++) again = leaves->group_of[q] == leaves->group_of[r];
    count += !again;
  }
  return count;
}

static outside outside_of(const writer *w) {
  outside out = {.hosts = bny_topo_count(w->topo, BNY_TOPO_HOST),
                 .domains = groups_of(w->levels, BNY_TOPO_LEVEL_DOMAIN)};
  int32_t leaves = groups_of(w->levels, BNY_TOPO_LEVEL_LEAF), rails = leaves_of_host(w->levels);
  if (leaves > 0) {
    out.rails = rails > 1;
    out.leaves = leaves / (rails > 0 ? rails : 1);
    out.spines = groups_of(w->levels, BNY_TOPO_LEVEL_CORE) ? groups_of(w->levels, BNY_TOPO_LEVEL_SPINE) : 0;
  }
  return out;
}

static void outside_write(const writer *w, outside o, int32_t gpu, FILE *out) {
  int32_t units = 1; /* number of containers around the next one */
  if (o.spines > 0) {
    fprintf(out, "spine:%d ", o.spines);
    units = o.spines;
  }
  if (o.leaves > 0) {
    fprintf(out, "leaf:%d%s ", o.leaves / units, o.rails ? "@rails" : "");
    units = o.leaves;
  }
  if (o.domains > 0 && gpu >= 0) {
    char *joint = NULL;
    size_t length;
    FILE *stream = open_memstream(&joint, &length);
    if (stream) {
      joint_write(w, gpu, o.domains / units, stream);
      fclose(stream);
      fprintf(out, "%s ", joint + 1);
      units = o.domains;
    }
    free(joint);
  }
  fputs("host", out);
  if (o.hosts / (units > 0 ? units : 1) > 1) fprintf(out, ":%d", o.hosts / units);
}

static char *text_write(const writer *w) {
  char *first = NULL, *text = NULL;
  size_t length;
  bool same = true, domains = bny_topo_level_of(w->levels, BNY_TOPO_LEVEL_DOMAIN) != NULL;
  int32_t gpu = -1;
  for (int32_t n = 0; n < w->topo->nnodes && same; n++) {
    if (node_at(w, n)->kind == BNY_TOPO_GPU && gpu < 0) gpu = n;
    if (node_at(w, n)->kind != BNY_TOPO_HOST) continue;
    char *content = content_of(w, n, domains);
    same = content && (!first || strcmp(first, content) == 0);
    if (content && !same) bny_topo_fail(w->error, 0, "host %.60s is unlike the first", node_at(w, n)->name);
    if (first)
      free(content);
    else
      first = content;
  }
  if (same && !first) same = bny_topo_fail(w->error, 0, "no host in it");
  FILE *out = same ? open_memstream(&text, &length) : NULL;
  if (out) {
    outside_write(w, outside_of(w), gpu, out);
    fputs(first, out);
    fclose(out);
  } else if (same) {
    bny_topo_fail(w->error, 0, "no memory");
  }
  free(first);
  return text;
}

/* ---- comparison with the model ----------------------------------------------------------------------------------- */

/* Returns the nodes of GPUs, then NICs; NULL without memory. */
static int32_t *devices_of(const bny_topo *topo, int32_t *count) {
  int32_t *devices = malloc(((size_t)topo->nnodes + 1) * sizeof *devices);
  *count = 0;
  for (int pass = 0; pass < 2 && devices; pass++) { /* the text may reverse their order */
    for (int32_t n = 0; n < topo->nnodes; n++)
      if (topo->nodes[n].kind == (pass == 0 ? BNY_TOPO_GPU : BNY_TOPO_NIC)) devices[(*count)++] = n;
  }
  return devices;
}

static bool paths_same(const bny_topo *a, const bny_topo *b) {
  int32_t counts[2];
  int32_t *devices[2] = {devices_of(a, &counts[0]), devices_of(b, &counts[1])};
  bool same = devices[0] && devices[1] && counts[0] == counts[1];
  for (int32_t i = 0; same && i < counts[0] && i < PAIRS_OF; i++) {
    for (int32_t j = 0; j < i && same; j++)
      same = bny_topo_path_between(a, devices[0][i], devices[0][j]) ==
             bny_topo_path_between(b, devices[1][i], devices[1][j]);
  }
  free(devices[0]);
  free(devices[1]);
  return same;
}

static bool levels_same(const bny_topo_levels *a, const bny_topo_levels *b) {
  bool same = a->nranks == b->nranks && a->nlevels == b->nlevels && a->rank_kind == b->rank_kind;
  for (int32_t i = 0; same && i < a->nlevels; i++) {
    const bny_topo_level *left = &a->levels[i], *right = &b->levels[i];
    same = left->kind == right->kind && left->ngroups == right->ngroups &&
           memcmp(left->group_of, right->group_of, (size_t)a->nranks * sizeof *left->group_of) == 0;
  }
  for (int32_t r = 0; same && r < a->nranks; r++) {
    const bny_topo_rank *left = &a->ranks[r], *right = &b->ranks[r];
    same = left->rail == right->rail && left->nic_path == right->nic_path && left->nic_shared == right->nic_shared &&
           left->nvlinks == right->nvlinks;
  }
  return same;
}

static bool comes_back(const writer *w, const char *text) {
  bny_topo *again = bny_topo_import(text, strlen(text), NULL, w->error);
  bny_topo_levels *levels = again ? bny_topo_derive(again) : NULL;
  bool same = levels && paths_same(w->topo, again) && levels_same(w->levels, levels);
  for (int kind = 0; same && kind < BNY_TOPO_KINDS; kind++) {
    bool counted = kind != BNY_TOPO_SWITCH && kind != BNY_TOPO_PORT;
    same = !counted || bny_topo_count(w->topo, (bny_topo_kind)kind) == bny_topo_count(again, (bny_topo_kind)kind);
  }
  if (again && !same) bny_topo_fail(w->error, 0, "not regular: \"%.150s\" would be the nearest description", text);
  bny_topo_levels_free(levels);
  bny_topo_free(again);
  return same;
}

static bool children_list(writer *w) {
  size_t nodes = (size_t)w->topo->nnodes + 1;
  w->first_child = malloc(nodes * sizeof *w->first_child);
  w->next_sibling = malloc(nodes * sizeof *w->next_sibling);
  w->island = malloc(nodes * sizeof *w->island);
  if (!w->first_child || !w->next_sibling || !w->island) return false;
  for (int32_t n = 0; n < w->topo->nnodes; n++) {
    w->first_child[n] = -1;
    w->next_sibling[n] = -1;
    w->island[n] = -1;
  }
  for (int32_t n = w->topo->nnodes - 1; n >= 0; n--) { /* from the last, which keeps lists in order */
    int32_t parent = node_at(w, n)->parent;
    if (parent >= 0) {
      w->next_sibling[n] = w->first_child[parent];
      w->first_child[parent] = n;
    }
  }
  const bny_topo_level *islands = bny_topo_level_of(w->levels, BNY_TOPO_LEVEL_ISLAND);
  for (int32_t r = 0; islands && r < w->levels->nranks; r++)
    if (w->levels->ranks[r].nvlinks > 0) w->island[w->levels->ranks[r].node] = islands->group_of[r];
  return true;
}

char *bny_topo_export_synthetic(const bny_topo *topo, bny_topo_error *error) {
  bny_topo_levels *levels = bny_topo_derive(topo);
  writer w = {.topo = topo, .levels = levels, .error = error};
  char *text = NULL;
  if (levels && children_list(&w)) {
    text = text_write(&w);
    if (text && !comes_back(&w, text)) {
      free(text);
      text = NULL;
    }
  } else {
    bny_topo_fail(error, 0, "no memory");
  }
  free(w.first_child);
  free(w.next_sibling);
  free(w.island);
  bny_topo_levels_free(levels);
  return text;
}
