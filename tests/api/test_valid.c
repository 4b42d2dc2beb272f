/* SPDX-License-Identifier: Apache-2.0
 * Runs with fewer tokens than the operation was created for, and with some rows valid. Lengths, starts and masks change
 * between runs. Results are compared with a merge in double precision, and masked rows hold the leftovers of
 * kernels. */
#include "tests/support/sheet.h"
#include "tests/support/sheet_element.h"

enum { RANKS_MAX = 9, TOKENS_MAX = 48, RUNS = 6, PROBLEMS = 10 };

static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring", NULL};

/* The valid rows of one run. Starts and tokens are equal on all ranks. */
typedef struct liveness {
  int32_t tokens, batch;
  bool has_starts, has_lengths, has_mask;
  int32_t starts[TOKENS_MAX + 1], lengths[RANKS_MAX][TOKENS_MAX];
  uint8_t mask[RANKS_MAX][TOKENS_MAX];
} liveness;

/* The memory bound to an operation; its contents change between runs. */
typedef struct bound {
  int32_t tokens, lengths[TOKENS_MAX], starts[TOKENS_MAX + 1];
  uint8_t mask[TOKENS_MAX];
} bound;

/* One operation, its runs, and a blocking call next to each. */
typedef struct problem {
  banyan_combine_desc desc;
  bool keeps;
  sheet pristine[RANKS_MAX], in[RANKS_MAX], out[RANKS_MAX], untouched[RANKS_MAX];
  bound *bound[RANKS_MAX];
  liveness runs[RUNS];
  sheet seen[RUNS][RANKS_MAX], seen_blocking[RUNS][RANKS_MAX];
  oracle_row *reference[RUNS];
} problem;

typedef struct play {
  int32_t nranks, nscenes, nruns;
  problem problems[PROBLEMS];
} play;

/* ---- problems ---------------------------------------------------------------------------------------------------- */

static liveness liveness_random(world_random *random, int32_t nranks, int32_t tokens_max) {
  liveness made = {.tokens = random_one_in(random, 8) ? 0 : random_below(random, tokens_max + 1)};
  made.has_starts = random_one_in(random, 2);
  made.has_lengths = random_below(random, 3) > 0;
  made.has_mask = random_one_in(random, 3);
  made.batch = !made.has_starts && !made.has_lengths ? 0 : 1 + random_below(random, made.tokens ? made.tokens : 1);
  int32_t at = random_one_in(random, 5) ? random_below(random, made.tokens + 1) : 0;
  for (int32_t i = 0; i <= made.batch; i++) {
    made.starts[i] = at;
    at += random_below(random, made.tokens - at + 1) / (1 + random_below(random, 3));
  }
  for (int32_t r = 0; r < nranks; r++) {
    for (int32_t i = 0; i < made.batch; i++)
      made.lengths[r][i] = made.tokens == 0 || random_one_in(random, 3) ? 0 : 1 + random_below(random, 100);
    for (int32_t i = 0; i < tokens_max; i++) made.mask[r][i] = (uint8_t)(random_one_in(random, 3) ? 0 : 1 << i % 8);
  }
  return made;
}

/* Applies the definition in banyan.h token by token. */
static bool lives(const liveness *of, int32_t rank, int32_t token) {
  if (token >= of->tokens || (of->has_mask && !of->mask[rank][token])) return false;
  if (!of->has_starts && !of->has_lengths) return true;
  for (int32_t i = 0; i < of->batch; i++) {
    bool within = of->has_starts ? token >= of->starts[i] && token < of->starts[i + 1] : token == i;
    if (within) return !of->has_lengths || of->lengths[rank][i] > 0;
  }
  return false;
}

static void poison(const sheet *sheet, world_random *random, int32_t token, int32_t head) {
  static const double values[] = {(double)NAN, (double)INFINITY, 1e30, -3},
                      stats[] = {(double)NAN, 0, (double)INFINITY};
  double value = values[random_below(random, 4)], stat = stats[random_below(random, 3)];
  for (int32_t i = 0; i < sheet->value_dim; i++) store_value(sheet, token, head, i, value);
  store_lse(sheet, token, head, stat);
  if (sheet->partial.sum) store_sum(sheet, token, head, random_one_in(random, 2) ? (double)NAN : -1);
}

static oracle_row *merge_valid(const problem *problem, const liveness *of, int32_t nranks) {
  sheet valid[RANKS_MAX];
  for (int32_t r = 0; r < nranks; r++) {
    valid[r] = sheet_copy(&problem->pristine[r]);
    for (int32_t t = 0; t < valid[r].tokens; t++)
      for (int32_t h = 0; h < valid[r].heads; h++)
        if (!lives(of, r, t)) store_lse(&valid[r], t, h, -(double)INFINITY);
  }
  return sheet_merge(valid, nranks);
}

/* Finds the rows of a rank's result. */
static sheet_part owned(const banyan_combine_desc *desc, int32_t tokens, int32_t rank, int32_t nranks) {
  banyan_combine_desc run = *desc;
  run.tokens = tokens;
  return sheet_part_of(&run, nranks, rank);
}

static void problem_make(problem *problem, world_random *random, int32_t nranks, int32_t index, int32_t most) {
  static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3};
  sheet_mood mood = (sheet_mood)random_below(random, SHEET_MOODS);
  int32_t tokens = 1 + random_below(random, most), heads = 1 + random_below(random, 9),
          value_dim = random_below(random, 40);
  const char *levels = getenv("BANYAN_LEVELS");
  problem->desc = (banyan_combine_desc){.size = sizeof problem->desc,
                                        .tokens = tokens,
                                        .heads = heads,
                                        .value_dim = value_dim,
                                        .wire = wires[random_below(random, 4)],
                                        .scatter = (banyan_scatter)random_below(random, 4),
                                        .root = random_below(random, nranks),
                                        .order = (banyan_order)random_below(random, 2),
                                        .algorithm = levels ? index % 2 ? "levels" : NULL : algorithms[index % 6]};
  if (mood == SHEET_VALUES && problem->desc.wire == BANYAN_F16) problem->desc.wire = BANYAN_F32;
  problem->keeps = random_one_in(random, 3);
  sheet model = sheet_output(random, mood, tokens, heads, value_dim);
  for (int32_t r = 0; r < nranks; r++) {
    problem->pristine[r] = sheet_input(random, mood, r, nranks, tokens, heads, value_dim);
    problem->in[r] = sheet_copy(&problem->pristine[r]);
    const sheet_part part = owned(&problem->desc, tokens, r, nranks);
    problem->out[r] = sheet_output_like(&model, part.tokens, part.heads);
    problem->untouched[r] = sheet_copy(&problem->out[r]);
    problem->bound[r] = world_take(sizeof *problem->bound[r]);
  }
  for (int run = 0; run < RUNS; run++) {
    problem->runs[run] = liveness_random(random, nranks, tokens);
    problem->reference[run] = merge_valid(problem, &problem->runs[run], nranks);
    for (int32_t r = 0; r < nranks; r++) {
      problem->seen[run][r] = sheet_copy(&problem->out[r]);
      problem->seen_blocking[run][r] = sheet_copy(&problem->out[r]);
    }
  }
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void prepare(const problem *problem, const liveness *of, int32_t rank, world_random *random) {
  const sheet *in = &problem->in[rank], *out = &problem->out[rank];
  bound *bound = problem->bound[rank];
  memcpy(in->memory, problem->pristine[rank].memory, in->bytes);
  memcpy(out->memory, problem->untouched[rank].memory, out->bytes);
  for (int32_t t = 0; t < in->tokens; t++)
    for (int32_t h = 0; h < in->heads; h++)
      if (!lives(of, rank, t)) poison(in, random, t, h);
  bound->tokens = of->tokens;
  memcpy(bound->lengths, of->lengths[rank], sizeof bound->lengths);
  memcpy(bound->starts, of->starts, sizeof bound->starts);
  memset(bound->mask, 0, sizeof bound->mask);
  memcpy(bound->mask, of->mask[rank], (size_t)of->tokens);
}

/* Arguments of a call, with the addresses of the backend. */
typedef struct arguments {
  banyan_valid_rows valid;
  banyan_combine_desc desc;
  banyan_partial in, out;
} arguments;

static void describe_call(const world_rank *self, const problem *problem, const liveness *of, arguments *made) {
  const bound *bound = problem->bound[self->rank];
  made->valid = world_valid(
      self, (banyan_valid_rows){.size = sizeof(banyan_valid_rows),
                                .tokens = &bound->tokens,
                                .batch = of->batch,
                                .seq_lens = of->has_lengths ? bound->lengths : NULL,
                                .query_start_loc = of->has_starts ? bound->starts : NULL,
                                .token_mask = of->has_mask ? bound->mask : NULL,
                                .empty_rows = problem->keeps ? BANYAN_EMPTY_ROWS_KEPT : BANYAN_EMPTY_ROWS_WRITTEN});
  made->desc = problem->desc;
  made->desc.valid = &made->valid;
  made->desc.stream = self->stream;
  made->in = world_partial(self, problem->in[self->rank].partial);
  made->out = world_partial(self, problem->out[self->rank].partial);
}

/* On the host, a start has read all memory behind pointers when it returns. */
static bool run_once(world_rank *self, banyan_op *op, bound *bound) {
  if (self->on->is_device) return world_replay(self) && world_ok(self, banyan_comm_status(self->comm), "status");
  bool good = world_ok(self, banyan_start(op), "start");
  for (int32_t t = 0; t < TOKENS_MAX; t++) bound->mask[t] ^= 1;
  good = good && world_ok(self, banyan_wait(op), "wait");
  for (int32_t t = 0; t < TOKENS_MAX; t++) bound->mask[t] ^= 1;
  return good;
}

/* One persistent operation for each kind of valid rows, because a pointer is NULL in all of its runs or in none. */
static bool run_persistent(world_rank *self, const problem *problem, int run, world_random *random) {
  const liveness *of = &problem->runs[run];
  const sheet *out = &problem->out[self->rank];
  bound *bound = problem->bound[self->rank];
  arguments call;
  banyan_op *op = NULL;
  prepare(problem, of, self->rank, random);
  describe_call(self, problem, of, &call);
  bool good =
      world_put(self) && world_ok(self, banyan_combine_init(self->comm, &call.desc, &call.in, &call.out, &op), "init");
  call.valid = (banyan_valid_rows){0}; /* init has read it */
  good = good && world_record(self, &op, 1);
  bool selects = of->has_lengths || of->has_starts || of->has_mask;
  int32_t more = selects && of->tokens < problem->desc.tokens ? problem->desc.tokens : of->tokens;
  for (int i = 0; i < 3 && good; i++) { /* run 1 has more tokens if rows are selected */
    bound->tokens = i == 1 ? more : of->tokens;
    memcpy(out->memory, problem->untouched[self->rank].memory, out->bytes);
    good = run_once(self, op, bound);
  }
  banyan_op_free(op);
  memcpy(problem->seen[run][self->rank].memory, out->memory, out->bytes);
  return good;
}

static bool run_blocking(world_rank *self, const problem *problem, int run, world_random *random) {
  const liveness *of = &problem->runs[run];
  const sheet *out = &problem->out[self->rank];
  arguments call;
  prepare(problem, of, self->rank, random);
  describe_call(self, problem, of, &call);
  if (run % 2) { /* planned for a range of token counts */
    call.valid.tokens = NULL;
    call.desc.tokens = of->tokens;
  }
  bool good = world_put(self) &&
              world_ok(self, banyan_combine(self->comm, &call.desc, &call.in, &call.out), "combine") &&
              world_finish(self) && world_ok(self, banyan_comm_status(self->comm), "status");
  memcpy(problem->seen_blocking[run][self->rank].memory, out->memory, out->bytes);
  return good;
}

static void play_all(world_rank *self) {
  const play *play = self->argument;
  world_random random = random_seed() + (uint64_t)self->rank;
  for (int32_t i = 0; i < play->nscenes; i++)
    for (int run = 0; run < play->nruns; run++)
      if (!run_persistent(self, &play->problems[i], run, &random) ||
          !run_blocking(self, &play->problems[i], run, &random))
        return;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static const char *describe(const problem *problem, int run) {
  static char text[256];
  const banyan_combine_desc *desc = &problem->desc;
  const liveness *of = &problem->runs[run];
  snprintf(text, sizeof text,
           "algorithm %s, scatter %d, order %d, wire %d, %d of %d tokens x %d heads of %d, batch %d%s%s%s%s, run %d",
           desc->algorithm ? desc->algorithm : "chosen", desc->scatter, desc->order, desc->wire, of->tokens,
           desc->tokens, desc->heads, desc->value_dim, of->batch, of->has_lengths ? ", lengths" : "",
           of->has_starts ? ", starts" : "", of->has_mask ? ", mask" : "", problem->keeps ? ", keeps empty rows" : "",
           run);
  return text;
}

/* Masked rows must be unchanged. They then get the value that the check of all rows expects. */
static void check_kept(const problem *problem, int run, int32_t rank, sheet *seen, int32_t token0, int32_t head0) {
  const banyan_partial *partial = &seen->partial;
  double form = partial->empty == BANYAN_EMPTY_NEG_INF   ? -(double)INFINITY
                : partial->empty == BANYAN_EMPTY_POS_INF ? (double)INFINITY
                                                         : partial->empty_below;
  for (int32_t t = 0; t < seen->tokens; t++) {
    for (int32_t h = 0; h < seen->heads; h++) {
      if (!problem->reference[run][(token0 + t) * problem->desc.heads + head0 + h].is_empty) continue;
      ck_assert_msg(sheet_same_bits(seen, t, h, &problem->untouched[rank], t, h),
                    "rank %d wrote token %d, head %d, which is empty: %s", rank, t, h, describe(problem, run));
      for (int32_t i = 0; i < seen->value_dim; i++) store_value(seen, t, h, i, 0);
      if (partial->lse) store_lse(seen, t, h, form);
      if (partial->sum) store_sum(seen, t, h, 0);
    }
  }
}

static void check_one(const problem *problem, int run, int32_t rank, int32_t nranks, sheet seen) {
  const sheet_part part = owned(&problem->desc, problem->runs[run].tokens, rank, nranks);
  seen.tokens = part.heads ? part.tokens : 0, seen.heads = part.heads;
  char why[256];
  if (problem->keeps) check_kept(problem, run, rank, &seen, part.token0, part.head0);
  ck_assert_msg(sheet_matches(&seen, problem->reference[run], problem->desc.heads, part.token0, part.head0,
                              problem->desc.wire, nranks + 3, why, sizeof why),
                "%d ranks, rank %d: %s: %s (seed %llu)", nranks, rank, why, describe(problem, run),
                (unsigned long long)random_seed());
  ck_assert_msg(sheet_gaps_are_untouched(&seen), "%d ranks, rank %d wrote beside its rows: %s", nranks, rank,
                describe(problem, run));
}

/* All ranks have the same bits. In canonical order a blocking call has the bits of an operation. */
static void check_bits(const problem *problem, int run, int32_t rank, int32_t nranks) {
  const sheet *seen = &problem->seen[run][rank], *blocking = &problem->seen_blocking[run][rank];
  const sheet_part part = owned(&problem->desc, problem->runs[run].tokens, rank, nranks);
  for (int32_t t = 0; t < part.tokens; t++) {
    for (int32_t h = 0; h < part.heads; h++) {
      if (problem->desc.scatter == BANYAN_SCATTER_NONE)
        ck_assert_msg(sheet_same_bits(seen, t, h, &problem->seen[run][0], t, h), "ranks 0 and %d differ: %s", rank,
                      describe(problem, run));
      if (problem->desc.order == BANYAN_ORDER_CANONICAL)
        ck_assert_msg(sheet_same_bits(seen, t, h, blocking, t, h), "rank %d: a blocking call gives other bits: %s",
                      rank, describe(problem, run));
    }
  }
}

static void perform(world_setup setup, int32_t nranks, uint64_t salt) {
  world_random random = random_seed() * 1000 + salt;
  play *play = world_take(sizeof *play);
  bool is_device = setup.on && setup.on->is_device;
  play->nranks = nranks;
  play->nscenes = is_device ? 2 : PROBLEMS;
  play->nruns = is_device ? 3 : RUNS;
  for (int32_t i = 0; i < play->nscenes; i++)
    problem_make(&play->problems[i], &random, nranks, i + (is_device ? (int32_t)salt : 0),
                 is_device ? TOKENS_MAX / 4 : TOKENS_MAX);
  setup.nranks = nranks;
  setup.argument = play;
  world_run(&setup, play_all);
  for (int32_t i = 0; i < play->nscenes; i++) {
    for (int run = 0; run < play->nruns; run++) {
      for (int32_t r = 0; r < nranks; r++) check_bits(&play->problems[i], run, r, nranks);
      for (int32_t r = 0; r < nranks; r++) {
        check_one(&play->problems[i], run, r, nranks, play->problems[i].seen[run][r]);
        check_one(&play->problems[i], run, r, nranks, play->problems[i].seen_blocking[run][r]);
      }
    }
  }
}

TEST_EVERYWHERE(valid_rows_are_merged, 18) {
  perform((world_setup){.on = on, .one_device = _i % 3 == 2}, world_ranks(on, 1 + _i % RANKS_MAX), (uint64_t)_i);
}

TEST_LOOP(parts_merge_what_is_valid, 3) { perform((world_setup){.arena_bytes = 64 << 10}, 2 + _i, 100 + (uint64_t)_i); }

TEST_LOOP(levels_merge_what_is_valid, 3) {
  static const char *const levels[] = {"2", "4", "2,4"};
  setenv("BANYAN_LEVELS", levels[_i % 3], 1);
  perform((world_setup){.nranks = 0}, 8, 300 + (uint64_t)_i);
}

int main(void) {
  sheet_eight_bits = true;
  return world_main(suite_of("valid rows", 120));
}
