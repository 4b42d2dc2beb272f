/* SPDX-License-Identifier: Apache-2.0
 * Derives the levels of a communicator from the localities of its ranks. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/status.h"
#include "locality/locality_network.h"
#include "topo/levels/derive.h"

/* ---- work in progress -------------------------------------------------------------------------------------------- */

typedef struct taken {
  const char *name;
  bny_link_cost link;
  bny_link_class class;
  int32_t *group_of; /* by rank */
  bny_locality_note *note;
} taken;

/* The groups of one kind, and the links that join them. */
typedef struct groups {
  bny_locality_kind kind;
  const int32_t *group_of; /* by rank, below nranks; -1: in none. NULL: no rank knows its group */
} groups;

typedef struct making {
  const bny_locality *all;
  int32_t nranks;
  const bny_locality_world *world;
  bool is_explicit; /* all ranks have a BANYAN_TOPO_RANK */
  bny_locality_notes *notes;
  taken taken[BNY_LOCALITY_KINDS + 1];
  int32_t ntaken;
  double merge_ns_per_byte;
  int32_t *group_of[BNY_LOCALITY_KINDS];
  int32_t *nic_shared; /* by rank: ranks of the communicator that use its NIC */
  int32_t *scratch;    /* 2 nranks */
} making;

static bny_locality_note *note_add(making *m, const char *name) {
  bny_locality_note *note = &m->notes->notes[m->notes->count++];
  *note = (bny_locality_note){.kept = true};
  snprintf(note->name, sizeof note->name, "%s", name);
  return note;
}

static void note_drop(bny_locality_note *note, const char *why, ...) __attribute__((format(printf, 2, 3)));

static void note_drop(bny_locality_note *note, const char *why, ...) {
  va_list arguments;
  va_start(arguments, why);
  note->kept = false;
  vsnprintf(note->text, sizeof note->text, why, arguments);
  va_end(arguments);
}

/* ---- groups from keys -------------------------------------------------------------------------------------------- */

/* Numbers ranks of equal keys by the first of them; those without a key by -1. Returns whether any has one. */
static bool keys_number(bny_locality_keyed *keys, int32_t nranks, int32_t *numbers) {
  bool any = false;
  qsort(keys, (size_t)nranks, sizeof *keys, bny_locality_by_key);
  for (int32_t i = 0, first = 0; i < nranks; i++) {
    if (keys[i].key != keys[first].key || keys[i].node != keys[first].node) first = i;
    numbers[keys[i].rank] = keys[i].key ? keys[first].rank : -1;
    any = any || keys[i].key;
  }
  return any;
}

static uint64_t node_of(const making *m, int32_t rank) {
  if (m->is_explicit || !m->world->node_of) return m->all[rank].node;
  return bny_hash_of((uint64_t)m->world->node_of[rank]);
}

static banyan_status groups_find(making *m) {
  size_t nranks = (size_t)m->nranks;
  bny_locality_keyed *keys = malloc(nranks * sizeof *keys);
  m->scratch = malloc(2 * nranks * sizeof *m->scratch);
  m->nic_shared = calloc(nranks, sizeof *m->nic_shared);
  bool good = keys && m->scratch && m->nic_shared;
  for (int kind = 0; kind < BNY_LOCALITY_KINDS && good; kind++) {
    bool inside = kind <= BNY_LOCALITY_ISLAND;
    m->group_of[kind] = malloc(nranks * sizeof **m->group_of);
    good = m->group_of[kind] != NULL;
    for (int32_t r = 0; r < m->nranks && good; r++) {
      uint64_t key = kind == BNY_LOCALITY_HOST ? node_of(m, r) : m->all[r].levels[kind].key;
      keys[r] = (bny_locality_keyed){.key = key, .node = inside && key ? node_of(m, r) : 0, .rank = r};
    }
    if (good && !keys_number(keys, m->nranks, m->group_of[kind])) {
      free(m->group_of[kind]);
      m->group_of[kind] = NULL;
    }
  }
  /* Ranks of a node without a known NIC share one. */
  for (int32_t r = 0; r < m->nranks && good; r++)
    keys[r] = (bny_locality_keyed){.key = m->all[r].nic ? m->all[r].nic : 1, .node = node_of(m, r), .rank = r};
  if (good) keys_number(keys, m->nranks, m->scratch);
  for (int32_t r = 0; r < m->nranks && good; r++)
    if (m->scratch[r] >= 0) m->nic_shared[m->scratch[r]]++;
  for (int32_t r = 0; r < m->nranks && good; r++)
    m->nic_shared[r] = m->scratch[r] < 0 ? 0 : m->nic_shared[m->scratch[r]];
  free(keys);
  return good ? BANYAN_OK : bny_fail(BANYAN_ERR_MEMORY, "no memory for the levels of %d ranks", m->nranks);
}

/* Rejects one BANYAN_TOPO_RANK on ranks of two nodes, which would be merged into one place of the file. */
static banyan_status topo_ranks_check(const making *m) {
  if (!m->is_explicit || !m->world->node_of) return BANYAN_OK;
  bny_locality_keyed *keys = malloc((size_t)m->nranks * sizeof *keys);
  banyan_status status =
      keys ? BANYAN_OK : bny_fail(BANYAN_ERR_MEMORY, "no memory for the levels of %d ranks", m->nranks);
  for (int32_t r = 0; r < m->nranks && keys; r++)
    keys[r] = (bny_locality_keyed){.key = (uint64_t)m->all[r].topo_rank, .node = m->all[r].node, .rank = r};
  if (keys) qsort(keys, (size_t)m->nranks, sizeof *keys, bny_locality_by_key);
  for (int32_t i = 1; i < m->nranks && status == BANYAN_OK; i++) {
    const bny_locality_keyed *a = &keys[i - 1], *b = &keys[i];
    if (a->node == b->node && a->key == b->key && m->world->node_of[a->rank] != m->world->node_of[b->rank])
      status = bny_fail(BANYAN_ERR_ARGUMENT,
                        "BANYAN_TOPO_RANK is %d for rank %d and for rank %d, which are on different nodes; give each a "
                        "number of its own, or unset it, so that each rank finds itself on its node",
                        m->all[a->rank].topo_rank, a->rank, b->rank);
  }
  free(keys);
  return status;
}

/* ---- costs ------------------------------------------------------------------------------------------------------- */

static void work_find(making *m) {
  const bny_locality *slowest = &m->all[0];
  bny_locality_notes *notes = m->notes;
  for (int32_t r = 1; r < m->nranks; r++)
    if (m->all[r].merge_ns_per_byte > slowest->merge_ns_per_byte) slowest = &m->all[r];
  m->merge_ns_per_byte = slowest->merge_ns_per_byte;
  if (slowest->memory_gbytes_per_s <= 0)
    snprintf(notes->work, sizeof notes->work, "merging: %g ns a byte, as CPU ranks of one node take",
             m->merge_ns_per_byte);
  else if (slowest->compute < 0)
    snprintf(notes->work, sizeof notes->work,
             "merging: at %g GB/s of GPU memory, read and written; the GPU is not known", slowest->memory_gbytes_per_s);
  else
    snprintf(notes->work, sizeof notes->work, "merging: at %g GB/s of GPU memory, read and written (%s%d)",
             slowest->memory_gbytes_per_s, slowest->compute >= 900 ? "gfx" : "sm", slowest->compute);
}

/* Between nodes of a communicator that only TCP connects, links of the network are of that class. */
static bny_locality_link link_of(const making *m, bny_locality_kind kind, int32_t rank) {
  const bny_locality *locality = &m->all[rank];
  bny_locality_link link = locality->levels[kind].link;
  double share = m->nic_shared[rank] > 0 ? locality->nic_gbytes_per_s / m->nic_shared[rank] : 0;
  if (kind < BNY_LOCALITY_RAIL || (link.source == BNY_TOPO_MEASURED && link.gbytes_per_s > 0)) return link;
  if (m->world->tcp && !m->is_explicit) {
    link = locality->tcp;
    bool narrow = locality->nic_gbytes_per_s > 0 && locality->nic_gbytes_per_s < link.usual_gbytes_per_s;
    if (narrow && link.gbytes_per_s <= 0)
      link.gbytes_per_s = locality->nic_gbytes_per_s, link.source = locality->nic_source;
  } else if (share > 0 && (link.gbytes_per_s <= 0 || share < link.gbytes_per_s)) {
    link.gbytes_per_s = share;
    link.source = locality->nic_source;
  } else if (share <= 0 && link.gbytes_per_s <= 0 && m->nic_shared[rank] > 1) {
    link.usual_gbytes_per_s /= m->nic_shared[rank];
  }
  return link;
}

/* Returns the price of the slowest member, over groups with more than one. */
static bny_link_cost cost_of(making *m, const groups *level, bny_locality_note *note) {
  bny_locality_link slowest = {.gbytes_per_s = 0};
  int32_t *sizes = m->scratch;
  bool any = false;
  double least = 0;
  for (int32_t r = 0; r < m->nranks; r++) sizes[r] = 0;
  for (int32_t r = 0; r < m->nranks && level->group_of; r++)
    if (level->group_of[r] >= 0) sizes[level->group_of[r]]++;
  for (int pass = 0; pass < 2 && !any; pass++) { /* if all groups have one member, all ranks count */
    for (int32_t r = 0; r < m->nranks; r++) {
      bool counts = pass == 1 || !level->group_of || (level->group_of[r] >= 0 && sizes[level->group_of[r]] > 1);
      if (!counts) continue;
      bny_locality_link link = link_of(m, level->kind, r);
      /* An unknown speed counts as the default of its class, so it is never better than a known one. */
      double speed = link.gbytes_per_s > 0 ? link.gbytes_per_s : link.usual_gbytes_per_s;
      if (!any) slowest = link;
      if (!any || speed < least) {
        least = speed;
        slowest.gbytes_per_s = link.gbytes_per_s;
        slowest.source = link.source;
      }
      any = true;
      if (link.usual_gbytes_per_s < slowest.usual_gbytes_per_s) slowest.usual_gbytes_per_s = link.usual_gbytes_per_s;
      if (link.alpha_ns > slowest.alpha_ns) slowest.alpha_ns = link.alpha_ns;
      if (link.message_ns > slowest.message_ns) slowest.message_ns = link.message_ns;
      if (link.class > slowest.class) slowest.class = link.class;
      if (!link.latency_known) slowest.latency_known = false;
    }
  }
  bool known = slowest.gbytes_per_s > 0;
  note->link = (bny_link_class)slowest.class;
  note->latency_known = slowest.latency_known;
  note->gbytes_per_s = least;
  snprintf(note->speed_source, sizeof note->speed_source, "%s",
           bny_topo_source_name(known ? (bny_topo_source)slowest.source : BNY_TOPO_ASSUMED));
  snprintf(note->text, sizeof note->text, "%.4g GB/s: %s%s; alpha %.4g us: %s", note->gbytes_per_s,
           known ? "the slowest rank's, " : "not known, a default", known ? note->speed_source : "",
           slowest.alpha_ns / 1e3,
           slowest.latency_known ? "the link's latency and software" : "of the table or measured");
  return (bny_link_cost){.alpha_ns = slowest.alpha_ns,
                         .message_ns = slowest.message_ns,
                         .posted = bny_prices_default.rows[slowest.class].posted,
                         .beta_ns_per_byte = 1 / note->gbytes_per_s,
                         .shared_ns_per_byte =
                             bny_prices_default.rows[slowest.class].shared ? 1 / note->gbytes_per_s : 0,
                         .gamma_ns_per_byte = m->merge_ns_per_byte,
                         .ranks_per_core = m->world->ranks_per_core > 0 ? m->world->ranks_per_core : 1,
                         .switch_ns = bny_price_switch_ns};
}

/* ---- nesting ----------------------------------------------------------------------------------------------------- */

/* Returns whether each group of `inner` lies in one of `outer`. Numbers are by rank; a negative number means no
 * group. */
static bool nests(const int32_t *inner, const int32_t *outer, int32_t nranks, int32_t *scratch) {
  for (int32_t r = 0; r < nranks; r++)
    if (inner[r] >= 0) scratch[inner[r]] = -2;
  for (int32_t r = 0; r < nranks; r++) {
    if (inner[r] < 0) continue;
    if (scratch[inner[r]] == -2) scratch[inner[r]] = outer[r];
    if (scratch[inner[r]] != outer[r]) return false;
  }
  return true;
}

/* Group numbers of a level, below 2 nranks: ranks that are in no group stay with their group of the level before. */
static void numbers_of(const making *m, const int32_t *group_of, int32_t *numbers) {
  const int32_t *below = m->ntaken > 0 ? m->taken[m->ntaken - 1].group_of : NULL;
  int32_t nranks = m->nranks, *scratch = m->scratch;
  for (int32_t i = 0; i < 2 * nranks; i++) scratch[i] = -1;
  for (int32_t r = 0; r < nranks; r++) {
    int32_t group = group_of[r], inner = below ? below[r] : r;
    if (group < 0 && scratch[inner] < 0) scratch[inner] = nranks + r;
    numbers[r] = group >= 0 ? group : scratch[inner];
  }
}

static bool is_one_group(const int32_t *numbers, int32_t nranks) {
  for (int32_t r = 1; r < nranks; r++)
    if (numbers[r] != numbers[0]) return false;
  return true;
}

/* A group is numbered by its first rank. */
static bool all_alone(const int32_t *group_of, int32_t nranks) {
  for (int32_t r = 0; r < nranks; r++)
    if (group_of[r] >= 0 && group_of[r] != r) return false;
  return true;
}

/* Writes to its note why a level is left out, and returns whether it is. */
static bool level_rejected(making *m, const groups *level, bny_locality_note *note) {
  const taken *last = m->ntaken > 0 ? &m->taken[m->ntaken - 1] : NULL;
  if (last && is_one_group(last->group_of, m->nranks))
    return note_drop(note, "all ranks are of one %s", last->name), true;
  if (all_alone(level->group_of, m->nranks)) return note_drop(note, "each rank is one of its own"), true;
  if (level->kind == BNY_LOCALITY_CACHE && is_one_group(level->group_of, m->nranks))
    return note_drop(note, "it holds all ranks, so it does not distinguish links"), true;
  for (int32_t r = 0; r < m->nranks && level->kind <= BNY_LOCALITY_SWITCH; r++)
    if (level->group_of[r] < 0) return note_drop(note, "rank %d is bound to none, or does not know it", r), true;
  return false;
}

/* Takes the level unless there is a reason not to. False: no memory. */
static bool level_take(making *m, const groups *level, const char *name) {
  taken *last = m->ntaken > 0 ? &m->taken[m->ntaken - 1] : NULL;
  bny_locality_note *note = note_add(m, name);
  if (level_rejected(m, level, note)) return true;
  int32_t *numbers = malloc((size_t)m->nranks * sizeof *numbers);
  if (!numbers) return false;
  numbers_of(m, level->group_of, numbers);
  if (last && !nests(last->group_of, numbers, m->nranks, m->scratch)) {
    note_drop(note, "it cuts across groups of level %s", last->name);
  } else if (last && nests(numbers, last->group_of, m->nranks, m->scratch)) {
    note_drop(note, "its groups are those of level %s", last->name);
  } else {
    taken one = {.name = name, .group_of = numbers, .note = note};
    one.link = cost_of(m, level, note);
    one.class = note->link;
    double ratio = last ? last->link.beta_ns_per_byte / one.link.beta_ns_per_byte : 0;
    if (last && last->class == one.class && last->link.alpha_ns == one.link.alpha_ns && ratio > 0.9 && ratio < 1.1) {
      note_drop(last->note, "its links cost what those of level %s cost", one.name);
      free(last->group_of);
      m->ntaken--;
    }
    m->taken[m->ntaken++] = one;
    return true;
  }
  free(numbers);
  return true;
}

/* Adds a kind that all ranks know. If each rank is alone in it, an innermost kind is left out without a note. */
static bool kind_take(making *m, bny_locality_kind kind) {
  groups level = {kind, m->group_of[kind]};
  bool quiet = kind == BNY_LOCALITY_CACHE || kind == BNY_LOCALITY_NUMA || kind == BNY_LOCALITY_SWITCH;
  if (!level.group_of || (quiet && all_alone(level.group_of, m->nranks))) return true;
  return level_take(m, &level, bny_locality_kind_name(kind));
}

/* ---- the order of levels ----------------------------------------------------------------------------------------- */

/* Adds cache, NUMA node, island, PCI switch and package. PCI switch and package are left out if islands do not nest in
 * them. */
static bool inner_take(making *m) {
  static const bny_locality_kind pci[] = {BNY_LOCALITY_SWITCH, BNY_LOCALITY_PACKAGE};
  const int32_t *island = m->group_of[BNY_LOCALITY_ISLAND];
  bool outside[2] = {true, true};
  if (!kind_take(m, BNY_LOCALITY_CACHE) || !kind_take(m, BNY_LOCALITY_NUMA)) return false;
  for (int i = 0; i < 2 && island; i++) {
    const int32_t *other = m->group_of[pci[i]];
    outside[i] = !other || nests(island, other, m->nranks, m->scratch);
    if (outside[i] || (pci[i] == BNY_LOCALITY_SWITCH && all_alone(other, m->nranks))) continue;
    bool within = nests(other, island, m->nranks, m->scratch);
    const char *why = within && i == 0 ? "links of GPUs join the PCI switches of an island"
                      : within         ? "links of GPUs join the packages of an island"
                                       : "it cuts across islands";
    note_drop(note_add(m, bny_locality_kind_name(pci[i])), "%s", why);
  }
  if (island && !kind_take(m, BNY_LOCALITY_ISLAND)) return false;
  return (!outside[0] || kind_take(m, pci[0])) && (!outside[1] || kind_take(m, pci[1]));
}

/* Where leaf switches carry rails: groups of the last level that share leaf switches are of one pod. False: no memory.
 */
static bool pods_take(making *m, const int32_t *leaf_of) {
  const taken *last = &m->taken[m->ntaken - 1];
  int32_t nranks = m->nranks;
  /* Roots of a forest over groups of the last level (below 2 nranks), then leaf switches. */
  int32_t nodes = 3 * nranks, *roots = malloc((size_t)nodes * sizeof *roots);
  int32_t *pod_of = malloc((size_t)nranks * sizeof *pod_of), *number = malloc((size_t)nodes * sizeof *number);
  bool good = roots && pod_of && number;
  for (int32_t i = 0; i < nodes && good; i++) {
    roots[i] = i;
    number[i] = -1;
  }
  for (int32_t r = 0; r < nranks && good; r++) {
    if (leaf_of[r] < 0) continue;
    bny_topo_unite(roots, last->group_of[r], 2 * nranks + leaf_of[r]);
  }
  for (int32_t r = 0; r < nranks && good; r++) { /* a pod has the number of its first rank */
    int32_t root = bny_topo_root(roots, last->group_of[r]);
    if (number[root] < 0) number[root] = r;
    pod_of[r] = number[root];
  }
  groups pods = {BNY_LOCALITY_LEAF, pod_of};
  good = good && level_take(m, &pods, "pod");
  free(roots);
  free(pod_of);
  free(number);
  return good;
}

static bool leaf_take(making *m) {
  groups leaf = {BNY_LOCALITY_LEAF, m->group_of[BNY_LOCALITY_LEAF]};
  if (!leaf.group_of) return true;
  int32_t before = m->notes->count;
  if (!level_take(m, &leaf, "leaf")) return false;
  bny_locality_note *note = &m->notes->notes[before];
  bool open = m->ntaken > 0 && !is_one_group(m->taken[m->ntaken - 1].group_of, m->nranks);
  if (note->kept || !m->group_of[BNY_LOCALITY_RAIL] || !open ||
      nests(m->taken[m->ntaken - 1].group_of, leaf.group_of, m->nranks, m->scratch))
    return true;
  note_drop(note, "each leaf switch carries a rail, so it cuts across hosts: see pod");
  return pods_take(m, leaf.group_of);
}

static bool levels_take(making *m) {
  if (m->world->flat_nodes)
    note_drop(note_add(m, "island"), "ranks of a node merge on their devices in one step, so no level is within it");
  bool good = m->world->flat_nodes || inner_take(m);
  good = good && kind_take(m, BNY_LOCALITY_HOST) && kind_take(m, BNY_LOCALITY_DOMAIN);
  const int32_t *node = m->group_of[BNY_LOCALITY_HOST];
  if (good && m->group_of[BNY_LOCALITY_RAIL] && node && !is_one_group(node, m->nranks))
    note_drop(note_add(m, "rail"), "rails do not nest: carriers use them");
  good = good && leaf_take(m);
  return good && kind_take(m, BNY_LOCALITY_SPINE) && kind_take(m, BNY_LOCALITY_CORE);
}

/* Adds the level that joins all ranks if no other does. One rank is a host by itself. */
static bny_level_facts fabric_of(making *m) {
  bool alone = m->nranks == 1;
  groups all = {alone ? BNY_LOCALITY_HOST : BNY_LOCALITY_RAIL, NULL};
  bny_level_facts outer = {.name = alone ? "host" : "fabric"};
  bny_locality_note *note = NULL;
  for (int32_t i = 0; i < m->notes->count && alone; i++)
    if (strcmp(m->notes->notes[i].name, outer.name) == 0) note = &m->notes->notes[i];
  if (!note) note = note_add(m, outer.name);
  note->kept = true;
  outer.link = cost_of(m, &all, note);
  return outer;
}

/* Gives the levels the network of these localities; frees them if there is no memory. */
static banyan_status network_make(const making *m, bny_levels **levels) {
  bny_links_facts facts = {.localities = m->all, .network = BNY_LINK_NETWORK_CPU};
  uint64_t *nodes = malloc((size_t)m->nranks * sizeof *nodes);
  facts.node_of = nodes;
  for (int32_t r = 0; r < m->nranks && nodes; r++) nodes[r] = node_of(m, r);
  for (int32_t k = 0; k < (*levels)->nlevels; k++) {
    const bny_locality_note *note = bny_locality_note_of(m->notes, (*levels)->levels[k].name);
    facts.classes[k] = note ? note->link : BNY_LINK_MEMORY;
    if (facts.classes[k] > BNY_LINK_PCIE_SYS) facts.network = facts.classes[k];
  }
  bny_links *network = nodes ? bny_locality_network(&facts, *levels) : NULL;
  free(nodes);
  if (network) {
    bny_levels_set_network(*levels, network);
    return BANYAN_OK;
  }
  bny_levels_free(*levels);
  *levels = NULL;
  return bny_fail(BANYAN_ERR_MEMORY, "no memory for the network of %d ranks", m->nranks);
}

static banyan_status levels_make(making *m, bny_levels **levels) {
  bny_level_facts facts[BNY_LOCALITY_KINDS + 1];
  bool *has_nic = malloc((size_t)m->nranks * sizeof *has_nic);
  if (!has_nic) return bny_fail(BANYAN_ERR_MEMORY, "no memory for the levels of %d ranks", m->nranks);
  for (int32_t r = 0; r < m->nranks; r++) has_nic[r] = m->all[r].nic != 0;
  for (int32_t i = 0; i < m->ntaken; i++)
    facts[i] = (bny_level_facts){m->taken[i].name, m->taken[i].link, m->taken[i].group_of};
  bool whole = m->ntaken > 0 && is_one_group(m->taken[m->ntaken - 1].group_of, m->nranks);
  bny_level_facts outer = whole ? facts[m->ntaken - 1] : fabric_of(m);
  banyan_status status = bny_levels_make(m->nranks, facts, m->ntaken, &outer, has_nic, levels);
  free(has_nic);
  return status == BANYAN_OK ? network_make(m, levels) : status;
}

banyan_status bny_locality_levels(const bny_locality *all, int32_t nranks, const bny_locality_world *world,
                                  bny_locality_notes *notes, bny_levels **levels) {
  static const bny_locality_world model = {.node_of = NULL};
  bny_locality_notes unwanted;
  making m = {.all = all,
              .nranks = nranks,
              .world = world ? world : &model,
              .is_explicit = true,
              .notes = notes ? notes : &unwanted};
  if (nranks < 1) return bny_fail(BANYAN_ERR_ARGUMENT, "topology: nothing in it that a rank could be");
  memset(m.notes, 0, sizeof *m.notes);
  for (int32_t r = 0; r < nranks; r++) m.is_explicit = m.is_explicit && all[r].topo_rank >= 0;
  work_find(&m);
  banyan_status status = topo_ranks_check(&m);
  if (status == BANYAN_OK) status = groups_find(&m);
  if (status == BANYAN_OK)
    status = levels_take(&m) ? levels_make(&m, levels)
                             : bny_fail(BANYAN_ERR_MEMORY, "no memory for the levels of %d ranks", nranks);
  for (int32_t i = 0; i < m.ntaken; i++) free(m.taken[i].group_of);
  for (int kind = 0; kind < BNY_LOCALITY_KINDS; kind++) free(m.group_of[kind]);
  free(m.nic_shared);
  free(m.scratch);
  return status;
}

const bny_locality_note *bny_locality_note_of(const bny_locality_notes *notes, const char *name) {
  for (int32_t i = 0; i < notes->count; i++)
    if (notes->notes[i].kept && strcmp(notes->notes[i].name, name) == 0) return &notes->notes[i];
  return NULL;
}
