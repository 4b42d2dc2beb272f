/* SPDX-License-Identifier: Apache-2.0
 * Chooses the blocks to measure, with their order and duration, and evaluates the results. */
#include "tools/topo/measure/measure.h"

#include <string.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

/* Estimated cost of blocks: the number of pairs is chosen so that SWEEPS_LEAST sweeps fit in the time. */
enum { PAIR_MS = 30, SWEEPS_LEAST = 3, PAIRS_MOST = 500, PAIRS_LEAST = 24, READERS_MOST = 32, SECONDS = 10 };

/* Values of an item, which index the rows of its blocks. */
enum { VALUES = 2 * TOPO_METRICS };

/* The unit of measurement: a pair, a rank that copies its own data, or a link. */
typedef enum item_kind { ITEM_PAIR, ITEM_LOCAL, ITEM_LINK } item_kind;

typedef struct topo_item {
  item_kind kind;
  int32_t index; /* pair, rank or link */
  int32_t nblocks;
  int32_t nclean[VALUES];
  double (*values)[TOPO_BLOCKS_MAX]; /* [VALUES]: undisturbed blocks from the front, disturbed ones from the back */
} topo_item;

/* The results of one block. */
typedef struct topo_block {
  double value[VALUES];
  bool disturbed[VALUES];
} topo_block;

typedef struct session {
  topo_measured *measured;
  topo_ranks ranks;
  topo_item *items;
  int32_t nitems;
  int32_t *order;                      /* order of items, shuffled in each sweep */
  int32_t (*readers)[2][READERS_MOST]; /* by link: ranks at its ends */
} session;

/* ---- items to measure -------------------------------------------------------------------------------------------- */

static bool is_virtual(void) {
#if defined(__x86_64__) || defined(__i386__)
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 31 & 1) != 0;
#else
  return false;
#endif
}

static bool rank_is_in(const topo_measured *measured, int32_t rank, const bny_topo_node *node) {
  const topo_place *place = &measured->ranks[rank].place;
  int32_t number = node->kind == BNY_TOPO_NUMA ? place->numa : node->kind == BNY_TOPO_PACKAGE ? place->package : -1;
  return number >= 0 && number == node->index;
}

/* Finds links with ranks at both ends. A link has as many readers as its smaller end has ranks, each with its own
 * writer. */
static void links_find(session *s, const bny_topo *topo) {
  topo_measured *measured = s->measured;
  for (int32_t l = 0; topo != NULL && l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    int32_t ends[2][READERS_MOST], counts[2] = {0, 0};
    for (int32_t r = 0; r < measured->nranks && link->kind == BNY_TOPO_LINK_SYS; r++) {
      for (int end = 0; end < 2; end++)
        if (counts[end] < READERS_MOST && rank_is_in(measured, r, &topo->nodes[end == 0 ? link->from : link->to]))
          ends[end][counts[end]++] = r;
    }
    if (counts[0] == 0 || counts[1] == 0 || link->from == link->to) continue;
    measured->links = tool_more(measured->links, measured->nlinks, sizeof *measured->links);
    s->readers = tool_more(s->readers, measured->nlinks, sizeof *s->readers);
    memcpy(s->readers[measured->nlinks], ends, sizeof ends);
    measured->links[measured->nlinks++] =
        (topo_measured_link){.link = l,
                             .from = link->from,
                             .to = link->to,
                             .nreaders = counts[0] < counts[1] ? counts[0] : counts[1],
                             .expected = link->gbytes_per_s,
                             .expected_source = link->source};
  }
}

static bool ranks_find(topo_measured *measured, const topo_measure_options *options, tool_error *error) {
  topo_place *places;
  if (!topo_places(options->sysfs, &places, &measured->nallowed, error)) return false;
  int32_t nranks = options->ranks == 0 ? measured->nallowed : options->ranks;
  if (nranks < 1 || nranks > measured->nallowed) {
    return tool_error_set(error,
                          "%d ranks cannot be measured on %d CPU%s: each needs one of its own, or its times would be "
                          "those of taking turns",
                          nranks, measured->nallowed, measured->nallowed == 1 ? "" : "s");
  }
  nranks = nranks > TOPO_RANKS_MAX ? TOPO_RANKS_MAX : nranks;
  measured->ranks = tool_new((size_t)nranks, sizeof *measured->ranks);
  for (int32_t r = 0; r < nranks; r++) measured->ranks[r].place = places[r];
  measured->nranks = nranks;
  measured->npairs_possible = (int64_t)nranks * (nranks - 1) / 2;
  return true;
}

static void items_make(session *s) {
  const topo_measured *measured = s->measured;
  size_t most = (size_t)measured->npairs + (size_t)measured->nranks + (size_t)measured->nlinks;
  bool *used = tool_new((size_t)measured->nranks, sizeof *used);
  s->items = tool_new(most, sizeof *s->items);
  s->order = tool_new(most, sizeof *s->order);
  for (int32_t p = 0; p < measured->npairs; p++) {
    used[measured->pairs[p].a] = used[measured->pairs[p].b] = true;
    s->items[s->nitems++] = (topo_item){.kind = ITEM_PAIR, .index = p};
  }
  for (int32_t r = 0; r < measured->nranks; r++)
    if (used[r] || measured->nranks == 1) s->items[s->nitems++] = (topo_item){.kind = ITEM_LOCAL, .index = r};
  for (int32_t l = 0; l < measured->nlinks; l++) s->items[s->nitems++] = (topo_item){.kind = ITEM_LINK, .index = l};
  for (int32_t i = 0; i < s->nitems; i++) {
    s->order[i] = i;
    s->items[i].values = tool_new(VALUES, sizeof *s->items[i].values);
  }
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void count_disturbed(topo_measured_rank *rank, bool disturbed) {
  rank->ntaken++;
  rank->ndisturbed += disturbed;
}

static bool measure_pair(session *s, const topo_item *item, topo_block *block, tool_error *error) {
  const topo_measured_pair *pair = &s->measured->pairs[item->index];
  /* Leadership alternates. */
  bool a_leads = item->nblocks % 2 == 0;
  int32_t who[2] = {pair->a, pair->b};
  topo_order orders[2] = {{.job = TOPO_JOB_PAIR, .peer = pair->b, .leads = a_leads},
                          {.job = TOPO_JOB_PAIR, .peer = pair->a, .leads = !a_leads}};
  if (!topo_ranks_do(&s->ranks, who, orders, 2, error)) return false;
  const topo_answer *a = &s->ranks.mailboxes[pair->a].answer, *b = &s->ranks.mailboxes[pair->b].answer;
  const topo_answer *leader = a_leads ? a : b;
  for (int m = 0; m < TOPO_METRICS; m++) {
    bool both = m > TOPO_MESSAGE;
    block->value[2 * m] = both ? a->value[m] : leader->value[m];
    block->value[2 * m + 1] = both ? b->value[m] : 0;
    block->disturbed[2 * m] = a->disturbed[m] || (!both && b->disturbed[m]);
    block->disturbed[2 * m + 1] = b->disturbed[m];
    count_disturbed(&s->measured->ranks[pair->a], a->disturbed[m]);
    count_disturbed(&s->measured->ranks[pair->b], b->disturbed[m]);
  }
  return true;
}

static bool measure_local(session *s, const topo_item *item, topo_block *block, tool_error *error) {
  topo_order order = {.job = TOPO_JOB_LOCAL};
  if (!topo_ranks_do(&s->ranks, &item->index, &order, 1, error)) return false;
  const topo_answer *answer = &s->ranks.mailboxes[item->index].answer;
  for (int large = 0; large < 2; large++) {
    topo_metric metric = large ? TOPO_LARGE : TOPO_SMALL;
    block->value[large] = answer->value[metric];
    block->disturbed[large] = answer->disturbed[metric];
    count_disturbed(&s->measured->ranks[item->index], answer->disturbed[metric]);
  }
  return true;
}

/* Measures one direction, from the first reader's start to the last one's end. */
static bool measure_stream(session *s, const int32_t *readers, const int32_t *writers, int32_t count, double *value,
                           bool *disturbed, tool_error *error) {
  int32_t who[2 * READERS_MOST] = {0};
  topo_order orders[2 * READERS_MOST] = {{.job = TOPO_JOB_READ}};
  size_t part = TOPO_LARGE_BYTES / (size_t)count / 64 * 64;
  for (int32_t i = 0; i < count; i++) {
    who[i] = readers[i];
    who[count + i] = writers[i];
    orders[i] = (topo_order){
        .job = TOPO_JOB_READ, .peer = writers[i], .readers = count, .offset = (size_t)i * part, .bytes = part};
    orders[count + i] = (topo_order){.job = TOPO_JOB_WRITE, .offset = (size_t)i * part, .bytes = part};
  }
  if (!topo_ranks_do(&s->ranks, who, orders, 2 * count, error)) return false;
  int64_t start_ns = INT64_MAX, end_ns = 0;
  for (int32_t i = 0; i < count; i++) {
    const topo_answer *answer = &s->ranks.mailboxes[readers[i]].answer;
    start_ns = answer->start_ns < start_ns ? answer->start_ns : start_ns;
    end_ns = answer->end_ns > end_ns ? answer->end_ns : end_ns;
    *disturbed = *disturbed || answer->disturbed[TOPO_LARGE];
  }
  *value = (double)part * count / (double)(end_ns > start_ns ? end_ns - start_ns : 1);
  return true;
}

static bool measure_item(session *s, topo_item *item, tool_error *error) {
  topo_block block = {.disturbed = {false}};
  bool good = false;
  switch (item->kind) {
  case ITEM_PAIR: good = measure_pair(s, item, &block, error); break;
  case ITEM_LOCAL: good = measure_local(s, item, &block, error); break;
  case ITEM_LINK: {
    int32_t(*ends)[READERS_MOST] = s->readers[item->index], count = s->measured->links[item->index].nreaders;
    good = measure_stream(s, ends[0], ends[1], count, &block.value[0], &block.disturbed[0], error) &&
           measure_stream(s, ends[1], ends[0], count, &block.value[1], &block.disturbed[1], error);
    break;
  }
  }
  if (good) {
    for (int v = 0; v < VALUES; v++) {
      int32_t ndisturbed = item->nblocks - item->nclean[v];
      item->values[v][block.disturbed[v] ? TOPO_BLOCKS_MAX - 1 - ndisturbed : item->nclean[v]] = block.value[v];
      item->nclean[v] += !block.disturbed[v];
    }
    item->nblocks++;
  }
  return good;
}

/* Measures all items in sweeps, each in a new random order. The first sweep may exceed the requested time. */
static bool measure_all(session *s, double seconds, tool_error *error) {
  enum { FIRST_SWEEP = 3 };
  int64_t begin = tool_now_ns();
  uint64_t random = UINT64_C(0x6d656173757265);
  for (int32_t sweep = 0; sweep < TOPO_BLOCKS_MAX; sweep++) {
    for (int32_t i = s->nitems - 1; i > 0; i--) {
      random = bny_hash_of(random);
      int32_t j = (int32_t)(random % (uint64_t)(i + 1)), other = s->order[j];
      s->order[j] = s->order[i];
      s->order[i] = other;
    }
    for (int32_t i = 0; i < s->nitems; i++) {
      double gone = (double)(tool_now_ns() - begin) / 1e9;
      if (gone > seconds * (sweep == 0 ? FIRST_SWEEP : 1)) return true;
      if (!measure_item(s, &s->items[s->order[i]], error)) return false;
    }
    s->measured->nsweeps = sweep + 1;
  }
  return true;
}

/* ---- medians ----------------------------------------------------------------------------------------------------- */

/* Returns a percentile over the undisturbed blocks, or over all blocks if there are none. Sorts the values. */
static double percentile(const topo_item *item, int value, double percent) {
  int32_t nclean = item->nclean[value], ndisturbed = item->nblocks - nclean;
  if (nclean > 0) return tool_percentile(item->values[value], (size_t)nclean, percent);
  double all[TOPO_BLOCKS_MAX];
  for (int32_t i = 0; i < item->nblocks; i++)
    all[i] = item->values[value][i < nclean ? i : TOPO_BLOCKS_MAX - ndisturbed + i - nclean];
  return tool_percentile(all, (size_t)item->nblocks, percent);
}

static double median(const topo_item *item, int value) { return percentile(item, value, 50); }

static void sum_up_pair(topo_measured_pair *pair, const topo_item *item) {
  for (int m = 0; m < TOPO_METRICS; m++) {
    pair->value[m][0] = median(item, 2 * m);
    pair->value[m][1] = median(item, 2 * m + 1);
  }
  pair->line_low = percentile(item, 2 * TOPO_LINE, 10);
  pair->line_high = percentile(item, 2 * TOPO_LINE, 90);
  pair->nblocks = item->nblocks;
}

/* Returns the median over pairs with one rank at each end. */
static double line_across(const session *s, int32_t link) {
  const topo_measured *measured = s->measured;
  double *lines = tool_new((size_t)measured->npairs, sizeof *lines);
  size_t count = 0;
  for (int32_t p = 0; p < measured->npairs; p++) {
    const topo_measured_pair *pair = &measured->pairs[p];
    bool at[2][2] = {{false, false}, {false, false}};
    for (int end = 0; end < 2; end++) {
      for (int32_t i = 0; i < measured->links[link].nreaders; i++) {
        at[end][0] = at[end][0] || s->readers[link][end][i] == pair->a;
        at[end][1] = at[end][1] || s->readers[link][end][i] == pair->b;
      }
    }
    if (pair->nblocks > 0 && ((at[0][0] && at[1][1]) || (at[0][1] && at[1][0])))
      lines[count++] = pair->value[TOPO_LINE][0];
  }
  return tool_percentile(lines, count, 50);
}

static void sum_up(session *s) {
  topo_measured *measured = s->measured;
  for (int32_t i = 0; i < s->nitems; i++) {
    const topo_item *item = &s->items[i];
    if (item->kind == ITEM_PAIR) {
      sum_up_pair(&measured->pairs[item->index], item);
    } else if (item->kind == ITEM_LOCAL) {
      measured->ranks[item->index].small = median(item, 0);
      measured->ranks[item->index].large = median(item, 1);
      measured->ranks[item->index].nblocks = item->nblocks;
    } else {
      measured->links[item->index].value[0] = median(item, 0);
      measured->links[item->index].value[1] = median(item, 1);
      measured->links[item->index].nblocks = item->nclean[0] < item->nclean[1] ? item->nclean[0] : item->nclean[1];
    }
  }
  for (int32_t l = 0; l < measured->nlinks; l++) measured->links[l].line = line_across(s, l);
}

/* ---- the whole measurement --------------------------------------------------------------------------------------- */

static bool session_run(session *s, const bny_topo *topo, double seconds, tool_error *error) {
  topo_measured *measured = s->measured;
  double fit = seconds * 1000 / (SWEEPS_LEAST * PAIR_MS);
  int32_t most = fit > PAIRS_MOST ? PAIRS_MOST : fit < PAIRS_LEAST ? PAIRS_LEAST : (int32_t)fit;
  most = measured->nranks <= TOPO_ALL_PAIRS ? INT32_MAX : most;
  measured->pairs = topo_pairs_choose(measured->ranks, measured->nranks, most, &measured->npairs);
  links_find(s, topo);
  items_make(s);
  if (!topo_ranks_start(&s->ranks, measured->ranks, measured->nranks, error)) return false;
  int64_t begin = tool_now_ns();
  bool good = measure_all(s, seconds, error);
  measured->seconds = (double)(tool_now_ns() - begin) / 1e9;
  topo_ranks_stop(&s->ranks);
  if (good) sum_up(s);
  return good;
}

topo_measured *topo_measure(const topo_measure_options *options, const bny_topo *topo, tool_error *error) {
  topo_measured *measured = tool_new(1, sizeof *measured);
  session s = {.measured = measured};
  measured->virtual_machine = is_virtual();
  memcpy(measured->planned, options->planned, sizeof measured->planned);
  if (!ranks_find(measured, options, error) ||
      !session_run(&s, topo, options->seconds > 0 ? options->seconds : SECONDS, error))
    return NULL;
  topo_measured_judge(measured, topo);
  return measured;
}

void topo_measured_apply(const topo_measured *measured, bny_topo *topo) {
  for (int32_t l = 0; l < measured->nlinks; l++) {
    const topo_measured_link *found = &measured->links[l];
    /* A link of the model has one speed for both directions. Few readers would measure the CPUs and not the link. */
    bool whole = measured->nranks == measured->nallowed || found->nreaders >= 8;
    if (found->nblocks > 0 && whole && found->link < topo->nlinks) {
      bny_topo_link *link = &topo->links[found->link];
      link->gbytes_per_s = found->value[0] < found->value[1] ? found->value[0] : found->value[1];
      link->latency_us = found->line > 0 ? found->line / 1000 : link->latency_us;
      link->source = BNY_TOPO_MEASURED;
    }
  }
}
