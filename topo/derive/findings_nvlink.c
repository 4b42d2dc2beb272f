/* SPDX-License-Identifier: Apache-2.0
 * Findings about NVLinks and xGMI links. Missing links are found by comparison with siblings and with the model of the
 * GPU. */
#include <string.h>

#include "topo/derive/derive.h"

const char *bny_topo_links_word(const bny_topo_derivation *d, int32_t node) {
  return bny_topo_is_amd(d, node) ? "xGMI link" : "NVLink";
}

const bny_topo_board *bny_topo_board_of(const char *model) {
  static const bny_topo_board boards[] = {{"0x1db1", 6, 0},        {"0x1db5", 6, 0},
                                          {"0x20b0", 12, 0},       {"0x20b2", 12, 0},
                                          {"0x2324", 8, 8},        {"0x2329", 18, 8},
                                          {"0x2330", 18, 8},       {"0x2335", 18, 8},
                                          {"0x2901", 18, 8},       {"0x2941", 18, 4},
                                          {"0x31c2", 18, 4},       {"0x74a1", 7, 8},
                                          {"0x74a5", 7, 8},        {"NVIDIA H100 80GB HBM3", 18, 8},
                                          {"NVIDIA H200", 18, 8},  {"NVIDIA B200", 18, 8},
                                          {"NVIDIA GB200", 18, 4}, {"NVIDIA GB300", 18, 4}};
  for (size_t i = 0; model && i < sizeof boards / sizeof boards[0]; i++)
    if (strcmp(model, boards[i].model) == 0) return &boards[i];
  return NULL;
}

/* Returns the links of a GPU whose board always has links, by its PCI device id; 0 for other GPUs. */
static int32_t links_of_board(const char *model) {
  const bny_topo_board *board = bny_topo_board_of(model);
  return board && strncmp(model, "0x", 2) == 0 ? board->links : 0;
}

/* Returns whether GPUs of a generation are sold with this number of links. Larger numbers than any of these count,
 * too. */
static bool is_sold_with(int32_t compute, int32_t links) {
  static const struct {
    int32_t low, high, links[4];
  } generations[] = {{-1, -1, {6, 8, 12, 18}}, {60, 60, {4}},     {70, 70, {6}},
                     {80, 80, {8, 12}},        {90, 90, {8, 18}}, {100, 103, {18}}};
  for (size_t i = 0; i < sizeof generations / sizeof generations[0]; i++) {
    if (compute < generations[i].low || compute > generations[i].high) continue;
    int32_t most = 0;
    for (int j = 0; j < 4; j++) {
      if (generations[i].links[j] == links) return true;
      most = generations[i].links[j] > most ? generations[i].links[j] : most;
    }
    return links > most;
  }
  return true;
}

/* ---- none at all ------------------------------------------------------------------------------------------------- */

/* Counts the links that other GPUs list to this GPU, but this GPU does not list. */
static int32_t unlisted(const bny_topo_derivation *d, int32_t node) {
  int32_t at = 0, count = 0;
  for (const bny_topo_note *note; (note = bny_topo_find_note(d->topo, BNY_TOPO_NOTE_ONE_SIDED, &at)) != NULL;)
    count += note->node == node;
  return count;
}

/* Returns whether a GPU lists no link itself; links that only other GPUs list do not count. For a partition, the links
 * of its device are used. */
static bool lists_none(const bny_topo_derivation *d, int32_t rank) {
  int32_t node = bny_topo_device(d->topo, d->levels->ranks[rank].node), links = 0;
  if (d->levels->ranks[rank].nvlinks == 0) return true;
  for (int32_t l = bny_topo_first_link(d->topo, node); l >= 0; l = bny_topo_next_link(d->topo, node, l))
    links += bny_topo_joins_gpus(&d->topo->links[l]);
  return unlisted(d, node) == links;
}

/* Returns whether another finding explains that the GPU lists no link. */
static bool is_explained(const bny_topo *topo, int32_t node) {
  return bny_topo_is_noted(topo, BNY_TOPO_NOTE_LOST, node) || bny_topo_is_noted(topo, BNY_TOPO_NOTE_FABRIC, node);
}

static bool has_dead_link(const bny_topo *topo, int32_t node) {
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l))
    if (bny_topo_joins_gpus(&topo->links[l]) && bny_topo_link_dead(&topo->links[l])) return true;
  return false;
}

/* Examines one host. NVLink bridges join pairs, and a GPU next to such pairs may have no bridge by design. */
static void host_missing(bny_topo_finder *s, const bny_topo_level *islands, int32_t host) {
  const bny_topo_derivation *d = s->d;
  int32_t first = d->host_first[host], end = d->host_first[host + 1], joined = 0, largest = 0, boards = 0;
  bool switched = false;
  for (int32_t i = first; i < end; i++) {
    int32_t rank = d->by_host[i], size = islands ? islands->groups[islands->group_of[rank]].count : 0;
    const bny_topo_node *node = &d->topo->nodes[d->levels->ranks[rank].node];
    joined += !lists_none(d, rank);
    largest = size > largest ? size : largest;
    switched = switched || (size > 1 && islands->groups[islands->group_of[rank]].node >= 0);
    boards += node->compute >= 0 && links_of_board(node->model) > 0;
  }
  bool of_board = joined == 0 && boards >= 4 && boards == end - first;
  for (int32_t i = first; i < end; i++) {
    int32_t node = bny_topo_device(d->topo, d->levels->ranks[d->by_host[i]].node);
    bool part = node != d->levels->ranks[d->by_host[i]].node; /* the finding is reported for its device */
    if (part || !lists_none(d, d->by_host[i]) || is_explained(d->topo, node)) continue;
    if (of_board)
      bny_topo_find(s, node, "no NVLink or xGMI link, though its model comes with %d: what it shares goes over PCIe",
                    links_of_board(d->topo->nodes[node].model));
    else if (end - first - joined < joined && (switched || largest > 2) && !has_dead_link(d->topo, node))
      bny_topo_find(s, node, "no %s, %d GPUs of its host have them: a collective of the whole host runs over PCIe",
                    bny_topo_links_word(d, node), joined);
  }
}

void bny_topo_find_nvlink_missing(bny_topo_finder *s) {
  const bny_topo_level *islands = bny_topo_level_of(s->d->levels, BNY_TOPO_LEVEL_ISLAND);
  if (s->d->levels->rank_kind != BNY_TOPO_GPU) return;
  for (int32_t h = 0; h < s->d->nhosts; h++) host_missing(s, islands, h);
}

/* ---- fewer ------------------------------------------------------------------------------------------------------- */

/* Counts the pairs of members that are linked, each from both ends. */
static int32_t pairs_linked(const bny_topo_derivation *d, const bny_topo_level *level, const bny_topo_group *group) {
  int32_t pairs = 0;
  for (int32_t i = 0; i < group->count; i++) {
    int32_t node = d->levels->ranks[level->members[group->first + i]].node, last = -1;
    for (int32_t l = bny_topo_first_link(d->topo, node); l >= 0; l = bny_topo_next_link(d->topo, node, l)) {
      int32_t other = bny_topo_other_end(d->topo, node, l);
      bool assumed;
      pairs += other != last && d->rank_of[other] >= 0 && bny_topo_gpu_link(d->topo, &d->topo->links[l], &assumed) > 0;
      last = other;
    }
  }
  return pairs;
}

/* Returns whether most pairs of a mesh have the same number of links and none has more; pairs with fewer then lack
 * links. In half of a DGX-1, as many pairs have one link as two, by design. */
static bool pairs_agree(const bny_topo_derivation *d, const bny_topo_level *level, const bny_topo_group *group) {
  enum { MEMBERS_MAX = 16 };
  double links[MEMBERS_MAX * MEMBERS_MAX], most = 0;
  int32_t count = 0, times;
  if (group->count > MEMBERS_MAX) return false;
  for (int32_t i = 0; i < group->count; i++) {
    for (int32_t j = 0; j < i; j++) {
      int32_t a = d->levels->ranks[level->members[group->first + i]].node;
      int32_t b = d->levels->ranks[level->members[group->first + j]].node;
      double sum = 0;
      for (int32_t l = bny_topo_first_link(d->topo, a); l >= 0; l = bny_topo_next_link(d->topo, a, l)) {
        bool assumed;
        if (bny_topo_other_end(d->topo, a, l) == b && bny_topo_gpu_link(d->topo, &d->topo->links[l], &assumed) > 0)
          sum += d->topo->links[l].count;
      }
      most = sum > most ? sum : most;
      links[count++] = sum;
    }
  }
  return bny_topo_usual(links, count, &times) >= most && 2 * times > count;
}

/* Classifies members that have fewer links than others. It is a fault if most members or most pairs have more links.
 * Behind a switch all members should have the same number, so a difference is at least odd. In other networks, such as
 * that of eight MI250X, the number may differ by design. */
typedef enum evenness { UNEVEN_BY_DESIGN, UNEVEN_ODD, UNEVEN_FAULT } evenness;

static evenness evenness_of(const bny_topo_derivation *d, const bny_topo_level *level, const bny_topo_group *group,
                            int32_t with_most) {
  if (2 * with_most > group->count || pairs_agree(d, level, group)) return UNEVEN_FAULT;
  return pairs_linked(d, level, group) == 0 ? UNEVEN_ODD : UNEVEN_BY_DESIGN;
}

/* Returns the minimum number of links of members, by their board; 0 if unknown. It is unknown for a mesh of fewer GPUs
 * than the board has, which leaves links unused. */
static int32_t links_expected(const bny_topo_derivation *d, const bny_topo_level *level, const bny_topo_group *group) {
  const bny_topo_node *node = &d->topo->nodes[d->levels->ranks[level->members[group->first]].node];
  bool whole = pairs_linked(d, level, group) == 0 || group->count == 8 || (node->compute == 80 && group->count == 4);
  return whole ? links_of_board(node->model) : 0;
}

/* Returns whether GPUs of a mesh have fewer links because a GPU of their host is lost or has no links. */
static bool lacks_member(const bny_topo_derivation *d, const bny_topo_level *level, const bny_topo_group *group) {
  int32_t host = d->levels->ranks[level->members[group->first]].host;
  if (host < 0 || pairs_linked(d, level, group) == 0) return false;
  bool lacks = bny_topo_is_found(d, "gpu-lost", host);
  for (int32_t i = d->host_first[d->host_number[host]]; i < d->host_first[d->host_number[host] + 1] && !lacks; i++)
    lacks = bny_topo_is_found(d, "nvlink-missing", d->levels->ranks[d->by_host[i]].node);
  return lacks;
}

/* Finds members with fewer links than they should have. If `sure`, the board or most other members show it; otherwise
 * the number is only unusual. */
static void group_fewer(bny_topo_finder *s, const bny_topo_level *level, const bny_topo_group *group, const char *word,
                        bool sure) {
  const bny_topo_derivation *d = s->d;
  const int32_t *members = &level->members[group->first];
  int32_t most = 0, least = INT32_MAX, with_most = 0, expected = links_expected(d, level, group);
  for (int32_t i = 0; i < group->count; i++) {
    int32_t links = d->levels->ranks[members[i]].nvlinks;
    with_most = links > most ? 1 : with_most + (links == most);
    most = links > most ? links : most;
    least = links < least ? links : least;
  }
  bool too_few = expected == 0 && group->count > 2 && pairs_linked(d, level, group) == 0 &&
                 !is_sold_with(d->topo->nodes[d->levels->ranks[members[0]].node].compute, most);
  if ((least == most && expected <= most && !too_few) || lacks_member(d, level, group)) return;
  evenness even = expected > most ? UNEVEN_FAULT : evenness_of(d, level, group, with_most);
  for (int32_t i = 0; i < group->count; i++) {
    const bny_topo_rank *rank = &d->levels->ranks[members[i]];
    const char *links = bny_topo_links_word(d, rank->node);
    bool fewer = rank->nvlinks < (expected > most ? expected : most);
    if (fewer && even == (sure ? UNEVEN_FAULT : UNEVEN_ODD))
      bny_topo_find(s, rank->node, "%d of %d %ss, so the whole %s runs at that pace", rank->nvlinks,
                    expected > most ? expected : most, links, word);
    else if (!fewer && too_few && !sure)
      bny_topo_find(s, rank->node, "%d %ss, as all of its siblings, and no GPU of its generation is sold with so few",
                    rank->nvlinks, links);
  }
}

/* Finds pairs of a host whose bridge has fewer links than the bridges of most pairs. */
static void pairs_fewer(bny_topo_finder *s, const bny_topo_level *islands, int32_t host) {
  const bny_topo_derivation *d = s->d;
  int32_t first = d->host_first[host], end = d->host_first[host + 1], count = 0, times;
  for (int pass = 0; pass < 2; pass++) {
    double usual = pass == 1 ? bny_topo_usual(d->values, count, &times) : 0;
    for (int32_t i = first; i < end && (pass == 0 || (count >= 6 && 2 * times > count)); i++) {
      const bny_topo_rank *rank = &d->levels->ranks[d->by_host[i]];
      if (islands->groups[islands->group_of[d->by_host[i]]].count != 2) continue;
      if (pass == 0)
        d->values[count++] = rank->nvlinks;
      else if (rank->nvlinks < usual)
        bny_topo_find(s, rank->node, "%d %s%s in its pair, other pairs of its host have %.0f", rank->nvlinks,
                      bny_topo_links_word(d, rank->node), bny_topo_plural(rank->nvlinks), usual);
    }
  }
}

/* Finds GPUs without a bridge if most GPUs of their host have one. A single GPU next to pairs may have none by
 * design. */
static void bridges_missing(bny_topo_finder *s, const bny_topo_level *islands, int32_t host) {
  const bny_topo_derivation *d = s->d;
  int32_t first = d->host_first[host], end = d->host_first[host + 1], pairs = 0, alone = 0;
  for (int32_t i = first; i < end; i++) {
    int32_t size = islands->groups[islands->group_of[d->by_host[i]]].count;
    pairs += size == 2;
    alone += size == 1;
  }
  for (int32_t i = first; i < end && alone > 1 && pairs > alone && pairs + alone == end - first; i++) {
    int32_t node = d->levels->ranks[d->by_host[i]].node;
    if (islands->groups[islands->group_of[d->by_host[i]]].count == 1 && !is_explained(d->topo, node) &&
        !has_dead_link(d->topo, node))
      bny_topo_find(s, node, "no %s, %d GPUs of its host have a bridge to another", bny_topo_links_word(d, node),
                    pairs);
  }
}

static void all_fewer(bny_topo_finder *s, bool sure) {
  const bny_topo_level *domains = bny_topo_level_of(s->d->levels, BNY_TOPO_LEVEL_DOMAIN);
  const bny_topo_level *level = domains ? domains : bny_topo_level_of(s->d->levels, BNY_TOPO_LEVEL_ISLAND);
  for (int32_t g = 0; level && g < level->ngroups; g++) {
    const bny_topo_group *group = &level->groups[g];
    if (group->count > 1) group_fewer(s, level, group, domains || group->all_to_all ? "domain" : "island", sure);
  }
  const bny_topo_level *islands = bny_topo_level_of(s->d->levels, BNY_TOPO_LEVEL_ISLAND);
  for (int32_t h = 0; islands && h < s->d->nhosts && s->d->levels->rank_kind == BNY_TOPO_GPU; h++) {
    if (sure)
      pairs_fewer(s, islands, h);
    else
      bridges_missing(s, islands, h);
  }
}

void bny_topo_find_nvlink_fewer(bny_topo_finder *s) { all_fewer(s, true); }

void bny_topo_find_nvlink_uneven(bny_topo_finder *s) { all_fewer(s, false); }

/* ---- other faults of links --------------------------------------------------------------------------------------- */

void bny_topo_find_nvlink_one_sided(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  for (int32_t r = 0; r < d->levels->nranks && d->levels->rank_kind == BNY_TOPO_GPU; r++) {
    int32_t node = d->levels->ranks[r].node, links = d->topo->nnotes > 0 ? unlisted(d, node) : 0;
    if (links > 0 && !bny_topo_is_found(d, "nvlink-missing", node))
      bny_topo_find(s, node, "it does not list links of %d other GPU%s to it", links, bny_topo_plural(links));
  }
}

/* Links of one node with the same fault, which is reported once. */
typedef struct link_sum {
  int32_t links;
  double gbytes_per_s, rated;
} link_sum;

static link_sum links_sum(const bny_topo *topo, int32_t node, bny_topo_link_kind kind, bool dead) {
  link_sum sum = {0};
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    const bny_topo_link *link = &topo->links[l];
    bool slow = link->gbytes_per_s > 0 && link->gbytes_per_s < BNY_TOPO_ALIKE * link->rated_gbytes_per_s;
    if (link->kind != kind || !(dead ? bny_topo_link_dead(link) : slow)) continue;
    sum.links += link->count > 0 ? link->count : 1;
    sum.gbytes_per_s += link->gbytes_per_s;
    sum.rated += link->rated_gbytes_per_s;
  }
  return sum;
}

void bny_topo_find_peer_refused(bny_topo_finder *s) {
  static const bny_topo_link_kind kinds[] = {BNY_TOPO_LINK_NVLINK, BNY_TOPO_LINK_XGMI};
  for (int32_t r = 0; r < s->d->levels->nranks; r++) {
    int32_t node = s->d->levels->ranks[r].node;
    for (int k = 0; k < 2 && !is_explained(s->d->topo, node); k++) {
      link_sum sum = links_sum(s->d->topo, node, kinds[k], true);
      if (sum.links > 0)
        bny_topo_find(s, node, "%d %s%s, but no peer access: data goes over PCIe or the host's memory", sum.links,
                      bny_topo_links_word(s->d, node), bny_topo_plural(sum.links));
    }
  }
}

/* Missing links also reduce the sum; they have their own finding. */
void bny_topo_find_link_slow(bny_topo_finder *s) {
  const bny_topo_derivation *d = s->d;
  for (int32_t n = 0; n < d->topo->nnodes; n++) {
    bool of_network = d->topo->nodes[n].kind == BNY_TOPO_PORT || d->topo->nodes[n].kind == BNY_TOPO_NIC;
    if ((d->topo->nodes[n].kind != BNY_TOPO_GPU && !of_network) || bny_topo_is_found(d, "nvlink-fewer", n)) continue;
    for (int kind = BNY_TOPO_LINK_NVLINK; kind < BNY_TOPO_LINK_KINDS; kind++) {
      link_sum sum = links_sum(d->topo, n, (bny_topo_link_kind)kind, false);
      if (sum.links > 0)
        bny_topo_find(s, n, "its %s link%s %s %.4g GB/s of %.4g", bny_topo_link_name((bny_topo_link_kind)kind),
                      bny_topo_plural(sum.links), sum.links == 1 ? "has" : "have", sum.gbytes_per_s, sum.rated);
    }
  }
}

void bny_topo_find_nvlink_partial(bny_topo_finder *s) {
  const bny_topo_level *islands = bny_topo_level_of(s->d->levels, BNY_TOPO_LEVEL_ISLAND);
  for (int32_t g = 0; islands && g < islands->ngroups; g++) {
    const bny_topo_group *group = &islands->groups[g];
    int32_t first = s->d->levels->ranks[islands->members[group->first]].node;
    if (group->count > 1 && !group->all_to_all)
      bny_topo_find(s, first,
                    "it and %d other GPUs are joined by %ss, but not each to each: some pairs are as far as "
                    "%s, and rings or trees along the links are faster than exchanges between all",
                    group->count - 1, bny_topo_links_word(s->d, first), bny_topo_path_name(group->path));
  }
}
