/* SPDX-License-Identifier: Apache-2.0
 * Random combines for a backend: shapes, settings and inputs. */
#include "tests/support/combine_task.h"

#include "op.h"
#include "tests/support/sheet_element.h"

static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring", NULL};
static const char *const over_levels[] = {"oneshot", "levels", NULL};

/* ---- making ------------------------------------------------------------------------------------------------------ */

combine_task *combine_task_new(int32_t nranks, uint64_t salt) {
  combine_task *made = calloc(1, sizeof *made);
  ck_assert_ptr_nonnull(made);
  made->nranks = nranks;
  made->random = random_seed() * 1000 + salt * 100 + (uint64_t)nranks;
  return made;
}

void combine_task_free(combine_task *task) { free(task); }

combine_group combine_group_make(combine_task *task, int32_t tokens, int32_t heads, int32_t value_dim) {
  world_random *random = &task->random;
  combine_group made = {.tokens = tokens, .heads = heads, .value_dim = value_dim};
  made.mood = (sheet_mood)random_below(random, SHEET_MOODS);
  for (int32_t r = 0; r < task->nranks; r++)
    made.in[r] = sheet_input(random, made.mood, r, task->nranks, tokens, heads, value_dim);
  made.model = sheet_output(random, made.mood, 1, 1, value_dim);
  made.reference = sheet_merge(made.in, task->nranks);
  return made;
}

combine_group combine_group_random(combine_task *task) {
  static const int32_t value_dims[] = {0, 1, 3, 8, 16, 17, 33, 64, 100};
  world_random *random = &task->random;
  int32_t tokens = random_one_in(random, 12) ? 0 : 1 + random_below(random, 5);
  int32_t heads = random_one_in(random, 12) ? 0 : 1 + random_below(random, 20);
  return combine_group_make(task, tokens, heads, value_dims[random_below(random, 9)]);
}

combine_attempt *combine_task_add(combine_task *task, const combine_group *of, banyan_combine_desc desc, bool whole) {
  world_random *random = &task->random;
  ck_assert_int_lt(task->nattempts, COMBINE_ATTEMPTS_MAX);
  combine_attempt *made = &task->attempts[task->nattempts++];
  *made = (combine_attempt){.of = of, .desc = desc};
  made->token0 = whole ? 0 : random_below(random, of->tokens);
  made->head0 = whole ? 0 : random_below(random, of->heads);
  made->desc.size = sizeof made->desc;
  if (of->mood == SHEET_VALUES && desc.wire == BANYAN_F16) made->desc.wire = BANYAN_F32;
  made->desc.tokens = whole || !of->tokens ? of->tokens : 1 + random_below(random, of->tokens - made->token0);
  made->desc.heads = whole || !of->heads ? of->heads : 1 + random_below(random, of->heads - made->head0);
  made->desc.value_dim = of->value_dim;
  for (int32_t r = 0; r < task->nranks; r++) {
    const sheet_part part = sheet_part_of(&made->desc, task->nranks, r);
    made->out[COMBINE_FIRST][r] = sheet_output_like(&of->model, part.tokens, part.heads);
    made->out[COMBINE_AGAIN][r] = sheet_output_like(&of->model, part.tokens, part.heads);
    made->out[COMBINE_OWN][r] = sheet_output(random, of->mood, part.tokens, part.heads, of->value_dim);
  }
  return made;
}

static void add_one(combine_task *task, combine_group *of, banyan_combine_desc desc, bool first) {
  desc.root = random_below(&task->random, task->nranks);
  combine_attempt *made = combine_task_add(task, of, desc, first || !random_one_in(&task->random, 4));
  if (first && desc.order == BANYAN_ORDER_CANONICAL) of->canonical = &made->out[COMBINE_FIRST][0];
}

void combine_task_add_some(combine_task *task, combine_group *of, banyan_dtype wire, int32_t one_in) {
  int names = task->levels ? 3 : 6;
  for (int a = 0; a < names; a++) {
    for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++) {
      for (int order = BANYAN_ORDER_PLAN; order <= BANYAN_ORDER_CANONICAL; order++) {
        bool first = a == 0 && scatter == BANYAN_SCATTER_NONE;
        if (task->levels && !task->aligned && a == 1 && order == BANYAN_ORDER_CANONICAL) continue;
        if (one_in > 1 && !first && !random_one_in(&task->random, one_in)) continue;
        banyan_combine_desc desc = {.wire = wire,
                                    .scatter = (banyan_scatter)scatter,
                                    .order = (banyan_order)order,
                                    .algorithm = task->levels ? over_levels[a] : algorithms[a]};
        add_one(task, of, desc, first);
      }
    }
  }
}

/* ---- description ------------------------------------------------------------------------------------------------- */

const char *combine_attempt_text(const combine_attempt *attempt, int run) {
  static _Thread_local char text[256];
  const banyan_combine_desc *desc = &attempt->desc;
  snprintf(
      text, sizeof text,
      "algorithm %s, scatter %d (root %d), order %d, wire %s, box %d+%d of %d x %d+%d of %d, value_dim %d, mood %d, "
      "run %d",
      desc->algorithm ? desc->algorithm : "chosen", desc->scatter, desc->root, desc->order,
      desc->wire ? bny_wire_formats[bny_wire_of_dtype(desc->wire)].name : "", attempt->token0, desc->tokens,
      attempt->of->tokens, attempt->head0, desc->heads, attempt->of->heads, desc->value_dim, attempt->of->mood, run);
  return text;
}

banyan_partial combine_attempt_input(const combine_attempt *attempt, int32_t rank) {
  banyan_partial in = attempt->of->in[rank].partial;
  int64_t values = attempt->token0 * in.values_token_stride + attempt->head0 * in.values_head_stride;
  int64_t stats = attempt->token0 * in.stats_token_stride + attempt->head0 * in.stats_head_stride;
  in.values = (char *)in.values + values * (int64_t)element_bytes(in.values_dtype);
  in.lse = (char *)in.lse + stats * (int64_t)element_bytes(in.stats_dtype);
  if (in.sum) in.sum = (char *)in.sum + stats * (int64_t)element_bytes(in.stats_dtype);
  if (in.values_scale) in.values_scale += attempt->head0 * in.values_scale_stride;
  return in;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static banyan_status combine(world_rank *self, const combine_attempt *attempt, int run) {
  banyan_combine_desc desc = attempt->desc;
  banyan_partial in = world_partial(self, combine_attempt_input(attempt, self->rank));
  const sheet *to = &attempt->out[run][self->rank];
  banyan_partial out = world_partial(self, to->partial);
  desc.stream = self->stream;
  return banyan_combine(self->comm, &desc, &in, to->tokens && to->heads ? &out : NULL);
}

void combine_task_run(world_rank *self) {
  const combine_task *task = self->argument;
  bool good = world_put(self);
  for (int32_t i = 0; i < task->nattempts && good; i++)
    for (int run = 0; run < COMBINE_RUNS && good; run++)
      good = world_ok(self, combine(self, &task->attempts[i], run), combine_attempt_text(&task->attempts[i], run));
  if (good && world_finish(self)) world_ok(self, banyan_comm_status(self->comm), "status");
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

/* A row is rounded to the wire format once, and again at each merge on its way. */
static int32_t rounds_of(const combine_attempt *attempt, int32_t nranks) {
  int32_t levels = 0;
  while (1 << levels < nranks) levels++;
  const char *name = attempt->desc.algorithm;
  bool chain = attempt->desc.order == BANYAN_ORDER_PLAN &&
               (!name || strcmp(name, "ring") == 0 || strcmp(name, "levels") == 0 || strcmp(name, "tree_chain") == 0);
  return chain ? nranks + 1 : levels + 3;
}

static void check_bits(const combine_task *task, const combine_attempt *attempt, int32_t rank) {
  const sheet *out = &attempt->out[COMBINE_FIRST][rank], *again = &attempt->out[COMBINE_AGAIN][rank];
  const sheet *other = &attempt->out[COMBINE_FIRST][0];
  const sheet *canonical = attempt->desc.order == BANYAN_ORDER_PLAN ? NULL : attempt->of->canonical;
  if (out->partial.values_scale) canonical = NULL; /* in a box of heads, a head has another scale */
  const sheet_part part = sheet_part_of(&attempt->desc, task->nranks, rank);
  for (int32_t t = 0; t < out->tokens; t++) {
    for (int32_t h = 0; h < out->heads; h++) {
      ck_assert_msg(sheet_same_bits(out, t, h, again, t, h), "%d ranks, rank %d, two runs differ: %s", task->nranks,
                    rank, combine_attempt_text(attempt, 0));
      if (attempt->desc.scatter == BANYAN_SCATTER_NONE)
        ck_assert_msg(sheet_same_bits(out, t, h, other, t, h), "%d ranks, ranks 0 and %d differ: %s", task->nranks,
                      rank, combine_attempt_text(attempt, 0));
      if (canonical)
        ck_assert_msg(
            sheet_same_bits(out, t, h, canonical, attempt->token0 + part.token0 + t, attempt->head0 + part.head0 + h),
            "%d ranks, rank %d, token %d, head %d has other bits: %s", task->nranks, rank, t, h,
            combine_attempt_text(attempt, 0));
    }
  }
}

void combine_attempt_check(const combine_task *task, const combine_attempt *attempt, int32_t rank, int run) {
  const sheet *out = &attempt->out[run][rank];
  const sheet_part part = sheet_part_of(&attempt->desc, task->nranks, rank);
  char why[256];
  ck_assert_msg(sheet_matches(out, attempt->of->reference, attempt->of->heads, attempt->token0 + part.token0,
                              attempt->head0 + part.head0, attempt->desc.wire, rounds_of(attempt, task->nranks), why,
                              sizeof why),
                "%d ranks, rank %d: %s: %s, values %d of kind %d, statistics %d of kind %d (seed %llu)", task->nranks,
                rank, why, combine_attempt_text(attempt, run), out->partial.values_dtype, out->partial.values_kind,
                out->partial.stats_dtype, out->partial.stats_kind, (unsigned long long)random_seed());
  ck_assert_msg(sheet_gaps_are_untouched(out), "%d ranks, rank %d wrote beside its rows: %s", task->nranks, rank,
                combine_attempt_text(attempt, run));
}

void combine_task_check(const combine_task *task) {
  for (int32_t i = 0; i < task->nattempts; i++) {
    for (int32_t r = 0; r < task->nranks; r++) {
      for (int run = 0; run < COMBINE_RUNS; run++) combine_attempt_check(task, &task->attempts[i], r, run);
      check_bits(task, &task->attempts[i], r);
    }
  }
}

void combine_task_check_same(const combine_task *task, const combine_task *other) {
  ck_assert_int_eq(task->nattempts, other->nattempts);
  for (int32_t i = 0; i < task->nattempts; i++)
    for (int32_t r = 0; r < task->nranks; r++) {
      const sheet *a = &task->attempts[i].out[COMBINE_FIRST][r], *b = &other->attempts[i].out[COMBINE_FIRST][r];
      for (int32_t row = 0; row < a->tokens * a->heads; row++)
        ck_assert_msg(sheet_same_bits(a, row / a->heads, row % a->heads, b, row / b->heads, row % b->heads),
                      "%d ranks, row %d of rank %d: other bits: %s", task->nranks, row, r,
                      combine_attempt_text(&task->attempts[i], COMBINE_FIRST));
    }
}
