/* SPDX-License-Identifier: Apache-2.0
 * Selections over random shapes, scores, owners and token counts, as blocking calls and operations on every backend.
 * The oracle sorts the pairs of all ranks. Devices of several nodes select in host memory. */
#include "tests/support/lone.h"
#include "tests/support/scores.h"
#include "tests/support/world.h"

enum { SHAPES = 10, SHAPES_OF_DEVICES = 4, RUNS = 3, RANKS_MAX = 16, KEYS_MAX = 3000, MARGIN = 5, LONG = 900 };

/* The rule by which a rank owns a key. */
typedef enum owners { BLOCKS, DRAWN_OWNERS, ONE_RANK, OWNERS } owners;

typedef struct problem {
  banyan_select_desc desc;
  uint64_t seed;
  score_content content;
  owners owners;
  int32_t nranks, rank, keys, heads, stride, result_stride;
  bool with_rows, topk;
} problem;

static int32_t owner_of(const problem *of, int32_t key) {
  switch (of->owners) {
  case BLOCKS: return (int32_t)((int64_t)key * of->nranks / of->keys);
  case DRAWN_OWNERS: return (int32_t)(bny_hash_add(of->seed, (uint64_t)key) % (uint64_t)of->nranks);
  default: return (int32_t)(of->seed % (uint64_t)of->nranks);
  }
}

/* Indices are far apart, in the order of keys. */
static int64_t index_of(int32_t key) { return (int64_t)key * 2147483659; }

static score_pair pair_of(const problem *of, int run, int32_t row, int32_t key) {
  world_random random = of->seed ^ bny_hash_add(bny_hash_add((uint64_t)run * 131, (uint64_t)row), (uint64_t)key);
  return (score_pair){score_draw(&random, of->content, key), index_of(key)};
}

static void make(problem *made, world_random random, const world_rank *self) {
  *made = (problem){.desc = BANYAN_SELECT_DESC_INIT, .nranks = self->nranks, .rank = self->rank};
  banyan_select_desc *desc = &made->desc;
  desc->tokens = random_below(&random, 6);
  desc->heads = random_below(&random, 4);
  desc->k = 1 + random_below(&random, random_one_in(&random, 4) ? 1200 : 60);
  bool is_long = *(const uint64_t *)self->argument >= LONG;
  if (is_long) desc->tokens = desc->heads = 1, desc->k = 4097 + random_below(&random, 4096);
  made->heads = desc->heads ? desc->heads : 1;
  made->keys = is_long                     ? 2 * desc->k
               : random_one_in(&random, 4) ? random_below(&random, desc->k)
                                           : random_below(&random, KEYS_MAX);
  made->content = (score_content)random_below(&random, SCORE_CONTENTS);
  made->owners = (owners)random_below(&random, OWNERS);
  made->seed = random_next(&random);
  random += (uint64_t)self->rank; /* layouts differ between ranks */
  made->with_rows = random_one_in(&random, 2);
  int32_t most = 0;
  for (int32_t key = 0; key < made->keys; key++) most += owner_of(made, key) == self->rank;
  desc->offers = most < desc->k ? most + random_below(&random, desc->k - most + 1) : desc->k;
  made->stride = desc->offers + random_below(&random, 3);
  made->result_stride = desc->k + random_below(&random, 3);
  desc->in_stride = made->stride == desc->offers ? 0 : made->stride;
  desc->out_stride = made->result_stride == desc->k ? 0 : made->result_stride;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

typedef struct memory {
  float *scores, *best_scores;
  int64_t *indices, *best_indices;
  int32_t *rows, *counts, *own, *own_counts, *tokens;
  score_pair *sorted;
} memory;

static memory take(const problem *of) {
  size_t rows = (size_t)(of->desc.tokens * of->heads) + 1, in = rows * (size_t)of->stride + 1;
  size_t out = rows * (size_t)of->result_stride + MARGIN;
  return (memory){world_take(in * 4),  world_take(out * 4),
                  world_take(in * 8),  world_take(out * 8),
                  world_take(in * 4),  world_take(rows * 4),
                  world_take(out * 4), world_take(rows * 4),
                  world_take(4),       world_take((size_t)(of->keys + 1) * sizeof(score_pair))};
}

/* Sorts the keys of one rank, or of all with a rank of -1. */
static int32_t sort_keys(const problem *of, int run, int32_t row, int32_t rank, score_pair *sorted) {
  int32_t count = 0;
  for (int32_t key = 0; key < of->keys; key++)
    if (rank < 0 || owner_of(of, key) == rank) sorted[count++] = pair_of(of, run, row, key);
  qsort(sorted, (size_t)count, sizeof *sorted, score_pairs_compare);
  return count;
}

/* Offers come sorted or shuffled, with absent pairs among them. */
static void fill(const problem *of, const memory *at, int run) {
  world_random random = of->seed + (uint64_t)(run * 17 + of->rank);
  int32_t offers = of->desc.offers;
  for (int32_t row = 0; row < of->desc.tokens * of->heads; row++) {
    int32_t count = sort_keys(of, run, row, of->rank, at->sorted), first = row * of->stride;
    for (int32_t i = 0; i < offers; i++) {
      bool is_there = i < count;
      at->scores[first + i] = is_there ? at->sorted[i].score : 1e9f;
      at->indices[first + i] = is_there ? at->sorted[i].index : -1 - random_below(&random, 9);
    }
    for (int32_t i = offers - 1; i > 0 && run != 1; i--) {
      int32_t j = random_below(&random, i + 1);
      float score = at->scores[first + i];
      int64_t index = at->indices[first + i];
      at->scores[first + i] = at->scores[first + j], at->scores[first + j] = score;
      at->indices[first + i] = at->indices[first + j], at->indices[first + j] = index;
    }
    for (int32_t i = 0; i < offers; i++) at->rows[first + i] = 7 * (row * 10000 + i);
  }
  size_t out = (size_t)(of->desc.tokens * of->heads * of->result_stride + MARGIN);
  memset(at->best_indices, 0x5A, out * 8);
  memset(at->own, 0x5A, out * 4);
}

static bool check_own(world_rank *self, const problem *of, const memory *at, int32_t row) {
  const int64_t *best = at->best_indices + row * of->result_stride;
  const int32_t *own = at->own + row * of->result_stride;
  int32_t count = 0;
  for (int32_t i = 0; i < of->desc.k; i++) {
    if (best[i] < 0 || owner_of(of, (int32_t)(best[i] / index_of(1))) != of->rank) continue;
    int32_t offer = of->with_rows ? own[count] / 7 - row * 10000 : own[count];
    bool good = offer >= 0 && offer < of->desc.offers && at->indices[row * of->stride + offer] == best[i];
    if (!world_check(self, good, "row %d: own %d is %d, offer %d", row, count, own[count], offer)) return false;
    count++;
  }
  if (!world_check(self, at->own_counts[row] == count, "row %d: own_counts %d", row, at->own_counts[row])) return false;
  for (int32_t i = count; i < of->desc.k; i++)
    if (!world_check(self, own[i] == -1, "row %d: own %d is %d", row, i, own[i])) return false;
  return true;
}

static bool check(world_rank *self, const problem *of, const memory *at, int run, int32_t tokens) {
  for (int32_t row = 0; row < tokens * of->heads; row++) {
    int32_t count = sort_keys(of, run, row, -1, at->sorted), chosen = count < of->desc.k ? count : of->desc.k;
    if (!world_check(self, at->counts[row] == chosen, "row %d: counts %d, not %d", row, at->counts[row], chosen))
      return false;
    for (int32_t i = 0; i < of->desc.k; i++) {
      score_pair expected = i < count ? at->sorted[i] : (score_pair){-INFINITY, -1};
      float score = at->best_scores[row * of->result_stride + i];
      int64_t index = at->best_indices[row * of->result_stride + i];
      if (!world_check(self, index == expected.index && scores_equal(score, expected.score),
                       "row %d, number %d of %d among %d is %g at %lld, not %g at %lld (content %d, owners %d)", row, i,
                       of->desc.k, of->keys, (double)score, (long long)index, (double)expected.score,
                       (long long)expected.index, of->content, of->owners))
        return false;
    }
    if (!check_own(self, of, at, row)) return false;
  }
  int64_t past = at->best_indices[tokens * of->heads * of->result_stride];
  return world_check(self, past == INT64_C(0x5A5A5A5A5A5A5A5A), "memory past the result changed");
}

/* The memory of calls, as the rank's device has it. */
static banyan_select_desc desc_of(const world_rank *self, const problem *of, const memory *at) {
  const world_rank host = {.on = &world_threads}, *on = self->on == &world_staged ? &host : self;
  banyan_select_desc desc = of->desc;
  desc.scores = world_at(on, at->scores), desc.indices = world_at(on, at->indices);
  desc.rows = of->with_rows ? world_at(on, at->rows) : NULL;
  desc.best_scores = world_at(on, at->best_scores), desc.best_indices = world_at(on, at->best_indices);
  desc.counts = world_at(on, at->counts);
  desc.own = world_at(on, at->own), desc.own_counts = world_at(on, at->own_counts);
  return desc;
}

static bool call(world_rank *self, const banyan_select_desc *desc) {
  if (self->on == &world_staged) return world_ok(self, banyan_select(self->comm, desc), "call");
  return world_put(self) && world_ok(self, banyan_select(self->comm, desc), "call") && world_finish(self);
}

static bool select_often(world_rank *self, const problem *of, world_random random, const memory *at) {
  const bool is_staged = self->on == &world_staged;
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = is_staged ? at->tokens : world_at(self, at->tokens)};
  bool counts = random_one_in(&random, 2), keeps = random_one_in(&random, 2) && !is_staged, good = true;
  banyan_select_desc made = desc_of(self, of, at), *desc = &made;
  banyan_op *op = NULL;
  desc->valid = counts ? &valid : NULL;
  for (int run = 0; run < RUNS && good; run++) {
    int32_t tokens = *at->tokens = counts ? random_below(&random, desc->tokens + 1) : desc->tokens;
    fill(of, at, run);
    if (!keeps) {
      good = call(self, desc);
    } else {
      if (!op) good = world_ok(self, banyan_select_init(self->comm, desc, &op), "init") && world_record(self, &op, 1);
      good = good && world_replay(self);
    }
    good = good && world_ok(self, banyan_comm_status(self->comm), "status") && check(self, of, at, run, tokens);
    good = world_meet(self) && good;
  }
  banyan_op_free(op);
  return good;
}

/* Devices of several nodes select in host memory, and reject that of devices. */
static void refuse_devices(world_rank *self) {
  float *scores = world_take(4 * sizeof *scores);
  int64_t *indices = world_take(4 * sizeof *indices), best[4];
  int32_t *tokens = world_take(sizeof *tokens);
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = world_at(self, tokens)};
  banyan_select_desc desc = BANYAN_SELECT_DESC_INIT;
  desc.tokens = 1, desc.k = desc.offers = 4, desc.indices = indices, desc.best_indices = best;
  for (int i = 0; i < 2; i++) {
    desc.scores = i ? scores : world_at(self, scores), desc.valid = i ? &valid : NULL;
    banyan_status status = banyan_select(self->comm, &desc);
    const char *says = i ? "valid.tokens is memory of device" : "desc.scores is memory of device";
    world_check(self, status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), says), "%s", banyan_last_error());
  }
}

static void select_all(world_rank *self) {
  world_random random = random_seed() * 7001 + *(const uint64_t *)self->argument;
  if (self->on->is_device && !world_ok(self, banyan_comm_set_stream(self->comm, self->stream), "set stream")) return;
  if (self->on == &world_staged) refuse_devices(self);
  for (int shape = 0; shape < (self->on->is_device ? SHAPES_OF_DEVICES : SHAPES); shape++) {
    problem of;
    world_random own = random_next(&random);
    make(&of, own, self);
    memory at = take(&of);
    if (!select_often(self, &of, own + 1, &at)) return;
  }
}

/* Small arenas split calls into parts. Between them cases name each algorithm that a combine has; devices that share
 * memory have one. */
TEST_EVERYWHERE(ranks_select, 40) {
  static const char *const algorithms[] = {NULL, "oneshot", "twoshot", "ring", "recursive", "tree"};
  uint64_t number = (uint64_t)_i;
  bool is_shared = on->is_device && on != &world_staged;
  size_t small = is_shared ? 1 << 20 : 256 << 10;
  int32_t nranks = world_ranks(on, 1 + _i % 9);
  if (on == &world_staged && nranks == 1) nranks = 2; /* a single rank has a device that shares its memory */
  WORLD_RUN(select_all, .nranks = nranks, .on = on, .argument = &number, .one_device = _i % 4 == 3,
            .arena_bytes = _i % 3 == 2 ? small : 0, .algorithm = algorithms[_i % (is_shared ? 2 : 6)]);
}

TEST_LOOP(levels_select, 6) {
  static const char *const levels[] = {"2", "4", "2,4"};
  uint64_t number = 500 + (uint64_t)_i;
  setenv("BANYAN_LEVELS", levels[_i % 3], 1);
  WORLD_RUN(select_all, .nranks = 8, .argument = &number, .arena_bytes = _i < 3 ? 0 : 256 << 10);
}

/* Blocks of devices sort lists of more than 4,096 pairs in the arena. */
TEST(long_lists) {
  uint64_t number = LONG;
  if (world_is_here(&world_emulated)) WORLD_RUN(select_all, .nranks = 3, .on = &world_emulated, .argument = &number);
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

enum { K = 6 };

typedef struct small {
  float scores[2 * K], best_scores[2 * K];
  int64_t indices[2 * K], best_indices[2 * K];
} small;

/* Ranks offer K pairs of their own for each of two rows. */
static banyan_select_desc small_desc(int32_t rank, small *at) {
  banyan_select_desc desc = BANYAN_SELECT_DESC_INIT;
  desc.tokens = 2, desc.k = desc.offers = K;
  desc.scores = at->scores, desc.indices = at->indices;
  desc.best_scores = at->best_scores, desc.best_indices = at->best_indices;
  for (int32_t i = 0; i < 2 * K; i++) {
    at->scores[i] = (float)(100 - i % K);
    at->indices[i] = 1000 * (i % K) + rank;
  }
  return desc;
}

/* Ranks 1 and 2 offer one index in the second row, first with one score, then with two. */
static void offer_twice(world_rank *self) {
  small at;
  for (int run = 0; run < 3; run++) {
    banyan_select_desc desc = small_desc(self->rank, &at);
    if (run > 0 && self->rank == 2) at.indices[K] = 1;
    if (run > 1 && self->rank == 2) at.scores[K] = 200;
    banyan_status status = banyan_select(self->comm, &desc);
    const char *expected = run == 1 ? "index 1 of token 1, head 0 is offered twice, by rank 1 and rank 2"
                                    : "index 1 of token 1, head 0 is offered twice, by rank 2 and rank 1";
    bool good =
        run == 0 ? status == BANYAN_OK : status == BANYAN_ERR_DATA && strstr(banyan_last_error(), expected) != NULL;
    if (!world_check(self, good, "run %d: %s", run, banyan_last_error())) return;
  }
  banyan_select_desc desc = small_desc(self->rank, &at);
  world_ok(self, banyan_select(self->comm, &desc), "a call after the error");
}

TEST(doubled_indices_are_found) {
  for (int i = 0; i < 3; i++) {
    static const char *const algorithms[] = {"oneshot", "twoshot", "tree"};
    WORLD_RUN(offer_twice, .nranks = 3, .algorithm = algorithms[i]);
  }
}

/* On devices the communicator reports it, and has then failed. */
static void offer_twice_to_devices(world_rank *self) {
  static small at[3];
  small *mine = &at[self->rank];
  banyan_select_desc desc = small_desc(self->rank, mine);
  if (!world_ok(self, banyan_select(self->comm, &desc), "call") || !world_finish(self)) return;
  if (!world_ok(self, banyan_comm_status(self->comm), "status") || !world_meet(self)) return;
  if (self->rank == 2) mine->indices[K] = 1, mine->indices[K + 1] = 1;
  if (!world_ok(self, banyan_select(self->comm, &desc), "call") || !world_finish(self)) return;
  world_fails(self, BANYAN_ERR_DATA, 2,
              "index 1 of token 1, head 0 is offered twice, by rank 1 and rank 2: each key belongs to one rank");
  world_check(self, mine->best_indices[0] == 0 && mine->best_indices[K + 1] == 1, "the result is lost");
}

TEST(doubled_indices_of_devices) {
  if (world_is_here(&world_emulated)) WORLD_RUN(offer_twice_to_devices, .nranks = 3, .on = &world_emulated);
}

static void name_another(world_rank *self) {
  small at;
  banyan_select_desc desc = small_desc(self->rank, &at);
  desc.algorithm = "ring";
  banyan_status status = banyan_select(self->comm, &desc);
  world_gets(self, status, BANYAN_ERR_UNSUPPORTED, "a selection has \"oneshot\" alone");
}

TEST(devices_have_oneshot_alone) {
  if (world_is_here(&world_emulated)) WORLD_RUN(name_another, .nranks = 2, .on = &world_emulated);
}

static void differ(world_rank *self) {
  small at;
  banyan_select_desc desc = small_desc(self->rank, &at);
  if (self->rank == 1) desc.k = desc.offers = K - 1;
  banyan_status status = banyan_select(self->comm, &desc);
  world_gets(self, status, BANYAN_ERR_MISMATCH, "k of a selection");
}

TEST(another_k_is_named) { WORLD_RUN(differ, .nranks = 2); }

TEST_RANKS(a_rank_that_leaves_is_named, 1, .nranks = 3) {
  small at;
  banyan_select_desc desc = small_desc(self->rank, &at);
  if (self->rank == 1) return;
  banyan_status status = banyan_select(self->comm, &desc);
  world_gets(self, status, BANYAN_ERR_PEER, "rank 1");
}

int main(void) { return world_main(suite_of("select", 120)); }
