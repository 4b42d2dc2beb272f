/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/plan/levels.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* ---- work in progress -------------------------------------------------------------------------------------------- */

typedef struct taken {
  const char *name;
  bny_link_cost link;
  bny_link_class class;
  int32_t *group_of; /* by rank */
  plan_level_note *note;
} taken;

typedef struct making {
  const bny_topo *topo;
  const bny_topo_levels *derived;
  plan_level_notes *notes;
  taken taken[BNY_TOPO_LEVEL_KINDS];
  int32_t ntaken;
  double gamma_ns;
  double sys_gbytes_per_s; /* the slowest link between packages; 0 unknown */
  bool gpus, xgmi;
} making;

static plan_level_note *note_add(making *m, const char *name) {
  plan_level_note *note = &m->notes->notes[m->notes->count++];
  *note = (plan_level_note){.kept = true};
  snprintf(note->name, sizeof note->name, "%s", name);
  return note;
}

static void note_drop(plan_level_note *note, const char *why, ...) __attribute__((format(printf, 2, 3)));

static void note_drop(plan_level_note *note, const char *why, ...) {
  va_list arguments;
  va_start(arguments, why);
  note->kept = false;
  vsnprintf(note->text, sizeof note->text, why, arguments);
  va_end(arguments);
}

/* ---- costs ------------------------------------------------------------------------------------------------------- */

static double gamma_of(const making *m, char *text, size_t bytes) {
  double least = 0;
  int32_t compute = -1;
  if (!m->gpus) {
    double ns = bny_prices_default.merge_ns_per_byte;
    snprintf(text, bytes, "merging: %g ns a byte, as CPU ranks of one node take", ns);
    return ns;
  }
  for (int32_t r = 0; r < m->derived->nranks; r++) {
    int32_t have = m->topo->nodes[m->derived->ranks[r].node].compute;
    double speed;
    bny_price_merge_gpu(have, &speed);
    if (r == 0 || speed < least) {
      least = speed;
      compute = have;
    }
  }
  if (compute < 0)
    snprintf(text, bytes, "merging: at %g GB/s of GPU memory, read and written; the GPU is not known", least);
  else
    snprintf(text, bytes, "merging: at %g GB/s of GPU memory, read and written (%s%d)", least,
             compute >= 900 ? "gfx" : "sm", compute);
  return 2 / least;
}

static bny_link_class class_of(const making *m, const bny_topo_level *level, bny_topo_path path) {
  if (path >= BNY_TOPO_PATH_NET || level->kind >= BNY_TOPO_LEVEL_RAIL)
    return m->gpus ? BNY_LINK_NETWORK : BNY_LINK_NETWORK_CPU;
  if (!m->gpus) {
    bool packages = bny_topo_level_of(m->derived, BNY_TOPO_LEVEL_PACKAGE) || m->derived->rank_kind == BNY_TOPO_PACKAGE;
    return packages && level->kind != BNY_TOPO_LEVEL_PACKAGE ? BNY_LINK_SOCKETS : BNY_LINK_MEMORY;
  }
  if (path == BNY_TOPO_PATH_SELF) return BNY_LINK_PCIE;
  if (path == BNY_TOPO_PATH_NVL) return m->xgmi ? BNY_LINK_XGMI : BNY_LINK_NVLINK;
  if (path == BNY_TOPO_PATH_C2C) return BNY_LINK_C2C;
  return path == BNY_TOPO_PATH_SYS ? BNY_LINK_PCIE_SYS : BNY_LINK_PCIE;
}

/* The slowest group decides, of those with more than one member. */
static bny_link_cost cost_of(making *m, const bny_topo_level *level, plan_level_note *note) {
  double speed = 0, latency_us = 0;
  bny_topo_path path = BNY_TOPO_PATH_SELF;
  bny_topo_source source = BNY_TOPO_MEASURED;
  for (int32_t g = 0; g < level->ngroups; g++) {
    const bny_topo_group *group = &level->groups[g];
    if (group->count < 2) continue;
    path = group->path > path ? group->path : path;
    latency_us = group->latency_us > latency_us ? group->latency_us : latency_us;
    if (group->gbytes_per_s <= 0 || (speed > 0 && group->gbytes_per_s >= speed)) continue;
    speed = group->gbytes_per_s;
    source = group->source;
  }
  note->link = class_of(m, level, path);
  if (note->link == BNY_LINK_PCIE_SYS && m->sys_gbytes_per_s > 0 && m->sys_gbytes_per_s < speed)
    speed = m->sys_gbytes_per_s;
  const bny_price *link = &bny_prices_default.rows[note->link];
  double tiers = level->kind == BNY_TOPO_LEVEL_CORE ? 2 : level->kind == BNY_TOPO_LEVEL_SPINE ? 1 : 0;
  double way_ns = latency_us > 0 ? latency_us * 1e3 : link->way_ns + tiers * bny_price_tier_ns;
  note->latency_known = latency_us > 0;
  note->gbytes_per_s = speed > 0 ? speed : link->gbytes_per_s;
  snprintf(note->speed_source, sizeof note->speed_source, "%s",
           bny_topo_source_name(speed > 0 ? source : BNY_TOPO_ASSUMED));
  snprintf(note->text, sizeof note->text, "%.4g GB/s: %s%s; alpha %.4g us: %s", note->gbytes_per_s,
           speed > 0 ? "what the slowest rank gets, " : "not known, a default", speed > 0 ? note->speed_source : "",
           (link->software_ns + way_ns) / 1e3, latency_us > 0 ? "the link's latency and software" : "a default");
  return (bny_link_cost){.alpha_ns = link->software_ns + way_ns,
                         .message_ns = link->message_ns,
                         .beta_ns_per_byte = 1 / note->gbytes_per_s,
                         .gamma_ns_per_byte = m->gamma_ns,
                         .ranks_per_core = 1};
}

/* ---- nesting ----------------------------------------------------------------------------------------------------- */

/* Whether each group of `inner` lies in one of `outer`; numbers by rank, negative: in none. */
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
static void numbers_of(const making *m, const bny_topo_level *level, int32_t *scratch, int32_t *numbers) {
  const int32_t *below = m->ntaken > 0 ? m->taken[m->ntaken - 1].group_of : NULL;
  int32_t nranks = m->derived->nranks;
  for (int32_t i = 0; i < 2 * nranks; i++) scratch[i] = -1;
  for (int32_t r = 0; r < nranks; r++) {
    int32_t group = level->group_of[r], inner = below ? below[r] : r;
    if (group < 0 && scratch[inner] < 0) scratch[inner] = nranks + r;
    numbers[r] = group >= 0 ? group : scratch[inner];
  }
}

static bool is_one_group(const int32_t *numbers, int32_t nranks) {
  for (int32_t r = 1; r < nranks; r++)
    if (numbers[r] != numbers[0]) return false;
  return true;
}

static bool all_alone(const bny_topo_level *level) {
  for (int32_t g = 0; g < level->ngroups; g++)
    if (level->groups[g].count > 1) return false;
  return true;
}

static bool cost_alike(const taken *a, const taken *b) {
  double ratio = a->link.beta_ns_per_byte / b->link.beta_ns_per_byte;
  return a->class == b->class && a->link.alpha_ns == b->link.alpha_ns && ratio > 0.9 && ratio < 1.1;
}

/* Takes the level unless there is a reason not to. False: no memory. */
static bool level_take(making *m, const bny_topo_level *level, const char *name) {
  int32_t nranks = m->derived->nranks, *numbers, *scratch;
  taken *last = m->ntaken > 0 ? &m->taken[m->ntaken - 1] : NULL;
  plan_level_note *note = note_add(m, name);
  if (last && is_one_group(last->group_of, nranks)) {
    note_drop(note, "all ranks are of one %s", last->name);
    return true;
  }
  if (all_alone(level)) {
    note_drop(note, "each rank is one of its own");
    return true;
  }
  numbers = malloc((size_t)nranks * sizeof *numbers);
  scratch = malloc(2 * (size_t)nranks * sizeof *scratch);
  bool good = numbers && scratch, keep = good;
  if (good) numbers_of(m, level, scratch, numbers);
  if (keep && last && !nests(last->group_of, numbers, nranks, scratch)) {
    note_drop(note, "it cuts across groups of level %s", last->name);
    keep = false;
  } else if (keep && last && nests(numbers, last->group_of, nranks, scratch)) {
    note_drop(note, "its groups are those of level %s", last->name);
    keep = false;
  }
  if (keep) {
    taken one = {.name = name, .group_of = numbers, .note = note};
    one.link = cost_of(m, level, note);
    one.class = note->link;
    if (last && cost_alike(last, &one)) {
      note_drop(last->note, "its links cost what those of level %s cost", one.name);
      free(last->group_of);
      m->ntaken--;
    }
    m->taken[m->ntaken++] = one;
    numbers = NULL;
  }
  free(numbers);
  free(scratch);
  return good;
}

/* ---- the order of levels ----------------------------------------------------------------------------------------- */

/* Package and island stand either way round, or one says nothing. */
static bool inner_take(making *m, int32_t *scratch) {
  const bny_topo_level *package = bny_topo_level_of(m->derived, BNY_TOPO_LEVEL_PACKAGE);
  const bny_topo_level *island = bny_topo_level_of(m->derived, BNY_TOPO_LEVEL_ISLAND);
  int32_t nranks = m->derived->nranks;
  if (!package || !island)
    return (!island || level_take(m, island, "island")) && (!package || level_take(m, package, "package"));
  if (nests(island->group_of, package->group_of, nranks, scratch))
    return level_take(m, island, "island") && level_take(m, package, "package");
  bool within = nests(package->group_of, island->group_of, nranks, scratch);
  note_drop(note_add(m, "package"), "%s",
            within ? "links of GPUs join the packages of an island" : "it cuts across islands");
  return level_take(m, island, "island");
}

static int32_t root_of(int32_t *roots, int32_t node) {
  while (roots[node] != node) node = roots[node] = roots[roots[node]];
  return node;
}

/* Where leaf switches carry rails: groups of the last level that share leaf switches are of one pod. False: no memory.
 */
static bool pods_take(making *m, const bny_topo_level *leaf) {
  const taken *last = &m->taken[m->ntaken - 1];
  int32_t nranks = m->derived->nranks;
  /* Roots of a forest over groups of the last level (below 2 nranks), then leaf switches. */
  int32_t nodes = 2 * nranks + leaf->ngroups, *roots = malloc((size_t)nodes * sizeof *roots);
  int32_t *pod_of = malloc((size_t)nranks * sizeof *pod_of), *number = malloc((size_t)nodes * sizeof *number);
  bool good = roots && pod_of && number;
  for (int32_t i = 0; i < nodes && good; i++) {
    roots[i] = i;
    number[i] = -1;
  }
  for (int32_t r = 0; r < nranks && good; r++) {
    if (leaf->group_of[r] < 0) continue;
    int32_t a = root_of(roots, last->group_of[r]), b = root_of(roots, 2 * nranks + leaf->group_of[r]);
    if (a != b) roots[b] = a;
  }
  for (int32_t r = 0; r < nranks && good; r++) { /* a pod has the number of its first rank */
    int32_t root = root_of(roots, last->group_of[r]);
    if (number[root] < 0) number[root] = r;
    pod_of[r] = number[root];
  }
  bny_topo_level pods = *leaf;
  pods.group_of = pod_of;
  good = good && level_take(m, &pods, "pod");
  free(roots);
  free(pod_of);
  free(number);
  return good;
}

static bool leaf_take(making *m, int32_t *scratch) {
  const bny_topo_level *leaf = bny_topo_level_of(m->derived, BNY_TOPO_LEVEL_LEAF);
  const bny_topo_level *rails = bny_topo_level_of(m->derived, BNY_TOPO_LEVEL_RAIL);
  if (!leaf) return true;
  int32_t before = m->notes->count;
  if (!level_take(m, leaf, "leaf")) return false;
  plan_level_note *note = &m->notes->notes[before];
  bool open = m->ntaken > 0 && !is_one_group(m->taken[m->ntaken - 1].group_of, m->derived->nranks);
  if (note->kept || !rails || !open ||
      nests(m->taken[m->ntaken - 1].group_of, leaf->group_of, m->derived->nranks, scratch))
    return true;
  note_drop(note, "each leaf switch carries a rail, so it cuts across hosts: see pod");
  return pods_take(m, leaf);
}

static bool levels_take(making *m) {
  static const bny_topo_level_kind above[] = {BNY_TOPO_LEVEL_HOST, BNY_TOPO_LEVEL_DOMAIN};
  static const bny_topo_level_kind outer[] = {BNY_TOPO_LEVEL_SPINE, BNY_TOPO_LEVEL_CORE};
  int32_t *scratch = malloc(((size_t)m->derived->nranks * 2 + 1) * sizeof *scratch);
  bool good = scratch && inner_take(m, scratch);
  for (size_t i = 0; i < 2 && good; i++) {
    const bny_topo_level *level = bny_topo_level_of(m->derived, above[i]);
    good = !level || level_take(m, level, bny_topo_level_name(level->kind));
  }
  if (good && bny_topo_level_of(m->derived, BNY_TOPO_LEVEL_RAIL))
    note_drop(note_add(m, "rail"), "rails do not nest: carriers use them");
  good = good && leaf_take(m, scratch);
  for (size_t i = 0; i < 2 && good; i++) {
    const bny_topo_level *level = bny_topo_level_of(m->derived, outer[i]);
    good = !level || level_take(m, level, bny_topo_level_name(level->kind));
  }
  free(scratch);
  return good;
}

/* What joins everything where no level does: as rails do, else nothing is known of it. One rank is a host by itself. */
static bny_level_facts fabric_of(making *m) {
  const bny_topo_level *rails = bny_topo_level_of(m->derived, BNY_TOPO_LEVEL_RAIL);
  bool alone = m->derived->nranks == 1;
  const bny_topo_level nothing = {.kind = alone ? BNY_TOPO_LEVEL_HOST : BNY_TOPO_LEVEL_RAIL};
  bny_level_facts outer = {.name = alone ? "host" : "fabric"};
  plan_level_note *note = NULL;
  for (int32_t i = 0; i < m->notes->count && alone; i++)
    if (strcmp(m->notes->notes[i].name, outer.name) == 0) note = &m->notes->notes[i];
  if (!note) note = note_add(m, outer.name);
  note->kept = true;
  outer.link = cost_of(m, rails && !alone ? rails : &nothing, note);
  return outer;
}

static banyan_status levels_make(making *m, bny_levels **levels) {
  bny_level_facts facts[BNY_TOPO_LEVEL_KINDS];
  int32_t nranks = m->derived->nranks;
  bool *has_nic = malloc((size_t)nranks * sizeof *has_nic);
  if (!has_nic) return bny_fail(BANYAN_ERR_MEMORY, "topology: no memory for levels");
  for (int32_t r = 0; r < nranks; r++) has_nic[r] = m->derived->ranks[r].nic >= 0;
  for (int32_t i = 0; i < m->ntaken; i++)
    facts[i] = (bny_level_facts){m->taken[i].name, m->taken[i].link, m->taken[i].group_of};
  bool whole = m->ntaken > 0 && is_one_group(m->taken[m->ntaken - 1].group_of, nranks);
  bny_level_facts outer = whole ? facts[m->ntaken - 1] : fabric_of(m);
  banyan_status status = bny_levels_make(nranks, facts, m->ntaken, &outer, has_nic, levels);
  free(has_nic);
  return status;
}

banyan_status plan_levels_of(const bny_topo *topo, const bny_topo_levels *derived, plan_level_notes *notes,
                             bny_levels **levels) {
  plan_level_notes unwanted;
  making m = {.topo = topo, .derived = derived, .notes = notes ? notes : &unwanted};
  if (derived->nranks < 1) return bny_fail(BANYAN_ERR_ARGUMENT, "topology: nothing in it that a rank could be");
  *m.notes = (plan_level_notes){.count = 0};
  m.gpus = derived->rank_kind == BNY_TOPO_GPU;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    m.xgmi = m.xgmi || link->kind == BNY_TOPO_LINK_XGMI;
    bool slower = m.sys_gbytes_per_s <= 0 || link->gbytes_per_s < m.sys_gbytes_per_s;
    if (link->kind == BNY_TOPO_LINK_SYS && link->gbytes_per_s > 0 && slower) m.sys_gbytes_per_s = link->gbytes_per_s;
  }
  m.gamma_ns = gamma_of(&m, m.notes->work, sizeof m.notes->work);
  banyan_status status =
      levels_take(&m) ? levels_make(&m, levels) : bny_fail(BANYAN_ERR_MEMORY, "topology: no memory for levels");
  for (int32_t i = 0; i < m.ntaken; i++) free(m.taken[i].group_of);
  return status;
}

const plan_level_note *plan_level_note_of(const plan_level_notes *notes, const char *name) {
  for (int32_t i = 0; i < notes->count; i++)
    if (notes->notes[i].kept && strcmp(notes->notes[i].name, name) == 0) return &notes->notes[i];
  return NULL;
}
