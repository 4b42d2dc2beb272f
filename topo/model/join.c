/* SPDX-License-Identifier: Apache-2.0 */
#include "topo/model/join.h"

#include <stdio.h>
#include <stdlib.h>

#include "topo/model/names.h"

/* Nodes are numbered across all models: those of the first, then those of the second, and so on. */
typedef struct joining {
  const bny_topo *const *models;
  int32_t count;
  bny_topo *joined;
  int32_t *node_first, *link_first; /* by model, and one more: number of its first node or link */
  int32_t *placed;                  /* by node: index in `joined` */
  bool *shared;                     /* by node: a switch outside hosts with a guid */
  bool *inside;                     /* by node: a host or inside one */
  bool *dropped;                    /* by link */
  bny_topo_names hosts, switches;   /* names and guids to nodes */
} joining;

/* A link between two shared switches. */
typedef struct trunk {
  int32_t kind, low, high; /* indices in `joined` */
  int32_t model, link;
} trunk;

static bool fail_memory(bny_topo_error *error) { return bny_topo_fail(error, 0, "out of memory"); }

static bool allocate(joining *j, bny_topo_error *error) {
  int64_t nodes = 0, links = 0;
  j->node_first = malloc(((size_t)j->count + 1) * sizeof *j->node_first);
  j->link_first = malloc(((size_t)j->count + 1) * sizeof *j->link_first);
  if (!j->node_first || !j->link_first) return fail_memory(error);
  for (int32_t m = 0; m < j->count; m++) {
    j->node_first[m] = (int32_t)nodes;
    j->link_first[m] = (int32_t)links;
    nodes += j->models[m]->nnodes;
    links += j->models[m]->nlinks;
    if (nodes > INT32_MAX / 2 || links > INT32_MAX / 2)
      return bny_topo_fail(error, 0, "%d models have too many nodes or links together", j->count);
  }
  j->node_first[j->count] = (int32_t)nodes;
  j->link_first[j->count] = (int32_t)links;
  j->placed = malloc(((size_t)nodes + 1) * sizeof *j->placed);
  j->shared = calloc((size_t)nodes + 1, sizeof *j->shared);
  j->inside = calloc((size_t)nodes + 1, sizeof *j->inside);
  j->dropped = calloc((size_t)links + 1, sizeof *j->dropped);
  j->joined = bny_topo_new();
  return (j->placed && j->shared && j->inside && j->dropped && j->joined) || fail_memory(error);
}

static void release(joining *j) {
  free(j->node_first);
  free(j->link_first);
  free(j->placed);
  free(j->shared);
  free(j->inside);
  free(j->dropped);
  bny_topo_names_free(&j->hosts);
  bny_topo_names_free(&j->switches);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static bool collect(joining *j, bny_topo_error *error) {
  for (int32_t m = 0; m < j->count; m++) {
    int32_t first = j->node_first[m];
    for (int32_t n = 0; n < j->models[m]->nnodes; n++) {
      const bny_topo_node *node = &j->models[m]->nodes[n];
      j->inside[first + n] = node->kind == BNY_TOPO_HOST || (node->parent >= 0 && j->inside[first + node->parent]);
      j->shared[first + n] = node->kind == BNY_TOPO_SWITCH && node->guid && !j->inside[first + n];
      if (node->kind == BNY_TOPO_HOST) bny_topo_names_add(&j->hosts, 0, node->name, first + n);
      if (j->shared[first + n]) bny_topo_names_add(&j->switches, 0, node->guid, first + n);
    }
  }
  bny_topo_names_sort(&j->hosts);
  bny_topo_names_sort(&j->switches);
  return (!j->hosts.out_of_memory && !j->switches.out_of_memory) || fail_memory(error);
}

static bool place_node(joining *j, int32_t model, int32_t n) {
  int32_t number = j->node_first[model] + n;
  bny_topo_node node = j->models[model]->nodes[n];
  if (j->shared[number]) {
    int32_t same = bny_topo_names_find(&j->switches, 0, node.guid); /* first in all models */
    if (same != number) {
      j->placed[number] = j->placed[same];
      return true;
    }
  }
  if (node.parent >= 0) node.parent = j->placed[j->node_first[model] + node.parent];
  j->placed[number] = bny_topo_add_node(j->joined, &node);
  return j->placed[number] >= 0;
}

/* Appends a number to the names of hosts that share a name, except the first. Results differ, because each ends in one
 * number; existing names are skipped. */
static bool hosts_rename(joining *j) {
  int32_t number = 1;
  char name[256];
  for (int32_t h = 0; h < j->hosts.count; h++) {
    const bny_topo_name *host = &j->hosts.entries[h];
    bny_topo_node *node = &j->joined->nodes[j->placed[host->value]];
    int32_t first = bny_topo_names_find(&j->hosts, 0, host->key);
    if (first == host->value) {
      number = 1;
      continue;
    }
    do {
      snprintf(name, sizeof name, "%.240s-%d", host->key, ++number);
    } while (bny_topo_names_find(&j->hosts, 0, name) >= 0);
    if (!bny_topo_set_string(j->joined, &node->name, name)) return false;
  }
  return true;
}

static bool notes_copy(joining *j) {
  for (int32_t m = 0; m < j->count; m++) {
    for (int32_t n = 0; n < j->models[m]->nnotes; n++) {
      const bny_topo_note *note = &j->models[m]->notes[n];
      int32_t node = note->node < 0 ? -1 : j->placed[j->node_first[m] + note->node];
      if (!bny_topo_add_sign(j->joined, note->kind, node, note->text)) return false;
    }
  }
  return true;
}

/* ---- links ------------------------------------------------------------------------------------------------------- */

static int trunk_order(const void *a, const void *b) {
  const trunk *x = a, *y = b;
  const int32_t keys[5][2] = {
      {x->kind, y->kind}, {x->low, y->low}, {x->high, y->high}, {x->model, y->model}, {x->link, y->link}};
  for (int i = 0; i < 5; i++)
    if (keys[i][0] != keys[i][1]) return keys[i][0] < keys[i][1] ? -1 : 1;
  return 0;
}

static bool trunk_same(const trunk *a, const trunk *b) {
  return a->kind == b->kind && a->low == b->low && a->high == b->high;
}

/* Keeps for each pair of switches the links of one model: the first of those with the most. */
static void trunks_drop(joining *j, const trunk *trunks, int32_t count) {
  for (int32_t first = 0, end; first < count; first = end) {
    int32_t most = 0, kept = -1;
    for (end = first; end < count && trunk_same(&trunks[first], &trunks[end]);) {
      int32_t model = trunks[end].model, start = end;
      while (end < count && trunk_same(&trunks[first], &trunks[end]) && trunks[end].model == model) end++;
      if (end - start > most) most = end - start, kept = model;
    }
    for (int32_t t = first; t < end; t++)
      j->dropped[j->link_first[trunks[t].model] + trunks[t].link] = trunks[t].model != kept;
  }
}

static bool trunks_find(joining *j, bny_topo_error *error) {
  int32_t found = 0, capacity = 0;
  trunk *trunks = NULL;
  for (int32_t m = 0; m < j->count; m++) {
    int32_t first = j->node_first[m];
    for (int32_t l = 0; l < j->models[m]->nlinks; l++) {
      const bny_topo_link *link = &j->models[m]->links[l];
      if (!j->shared[first + link->from] || !j->shared[first + link->to]) continue;
      if (found == capacity) {
        capacity = capacity ? 2 * capacity : 64;
        trunk *grown = realloc(trunks, (size_t)capacity * sizeof *grown);
        if (!grown) {
          free(trunks);
          return fail_memory(error);
        }
        trunks = grown;
      }
      int32_t from = j->placed[first + link->from], to = j->placed[first + link->to];
      trunks[found++] = (trunk){(int32_t)link->kind, from < to ? from : to, from < to ? to : from, m, l};
    }
  }
  if (found > 0) qsort(trunks, (size_t)found, sizeof *trunks, trunk_order);
  trunks_drop(j, trunks, found);
  free(trunks);
  return true;
}

static bool links_copy(joining *j) {
  for (int32_t m = 0; m < j->count; m++) {
    for (int32_t l = 0; l < j->models[m]->nlinks; l++) {
      if (j->dropped[j->link_first[m] + l]) continue;
      bny_topo_link link = j->models[m]->links[l];
      link.from = j->placed[j->node_first[m] + link.from];
      link.to = j->placed[j->node_first[m] + link.to];
      if (bny_topo_add_link(j->joined, &link) < 0) return false;
    }
  }
  return true;
}

bny_topo *bny_topo_join(const bny_topo *const *hosts, int32_t count, bny_topo_error *error) {
  joining j = {.models = hosts, .count = count};
  if (count < 1) {
    bny_topo_fail(error, 0, "there is no model to join");
    return NULL;
  }
  bool good = allocate(&j, error) && collect(&j, error);
  bool room = good;
  for (int32_t m = 0; m < count && room; m++)
    for (int32_t n = 0; n < hosts[m]->nnodes && room; n++) room = place_node(&j, m, n);
  good = good && (!room || trunks_find(&j, error));
  if (good && room) room = hosts_rename(&j) && links_copy(&j) && notes_copy(&j);
  good = good && bny_topo_check(j.joined, error); /* also reports lack of memory */
  if (!good) {
    bny_topo_free(j.joined);
    j.joined = NULL;
  }
  release(&j);
  return j.joined;
}
