/* SPDX-License-Identifier: Apache-2.0
 *
 * Random combines against an oracle in double precision (oracle.h): all conventions of descriptors, types, wires,
 * scatters, orders and algorithms, 1 to 9 ranks, extreme statistics and values, and results that go into a second
 * combine.
 *
 * ORACLE_CASES: how many, 2000 if it is not set. TEST_SEED: other ones. A failure names the case; ORACLE_CASE runs that
 * one alone, with all that it prints the same. */
#include "tests/support/oracle.h"
#include "tests/support/world.h"

enum {
  DIM_MAX = 40,
  RANKS_MAX = 9,
  TOKENS_MAX = 4,
  HEADS_MAX = 9,
  ROWS_MAX = TOKENS_MAX * HEADS_MAX,
  CASES = 2000,
  GAP = 3
};
enum { VALUES_MAX = ROWS_MAX * (DIM_MAX + GAP), STATS_MAX = 2 * ROWS_MAX };

/* A partial of a rank with its memory: room for f32 of any layout. */
typedef struct sheet {
  banyan_partial partial;
  float values[VALUES_MAX], lse[STATS_MAX], sum[STATS_MAX], scales[2 * HEADS_MAX];
} sheet;

typedef enum mood { ORDINARY, WIDE, LARGE, MASKED, SUMS, VALUES, MOODS } mood;

/* All that ranks have in common in a case, from its number alone. */
typedef struct plan {
  banyan_combine_desc desc;
  const char *second_algorithm;
  mood mood;
  bool alike; /* outputs of all ranks */
  bool again; /* its result goes into a second combine, beside the inputs of odd ranks */
} plan;

typedef struct exam {
  uint64_t seed;
  int64_t first, cases, step;
  sheet in[RANKS_MAX], out[RANKS_MAX], other[RANKS_MAX];
} exam;

/* Types of values; the first three serve statistics too, and the first four are wires. */
static const banyan_dtype dtypes[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3, BANYAN_E5M2};
enum { DTYPES = 5, WIRES = 4 };

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static world_random random_of(uint64_t seed, int64_t number, int32_t salt) {
  world_random random = {seed * UINT64_C(0x9e3779b97f4a7c15) ^ ((uint64_t)number << 8) ^ (uint64_t)(uint32_t)salt};
  random_next(&random);
  return random;
}

static const char *choose_algorithm(world_random *random, banyan_scatter scatter, banyan_order order) {
  static const char *const names[] = {NULL,        "oneshot", "twoshot",      "recursive",          "recursive_halving",
                                      "ring",      "tree",    "tree_knomial", "recursive_doubling", "tree_balanced",
                                      "tree_chain"};
  int32_t count = order == BANYAN_ORDER_CANONICAL ? 8 : 11;
  const char *name = names[random_below(random, count)];
  bool doubles = name && strcmp(name, "recursive_doubling") == 0;
  return doubles && scatter != BANYAN_SCATTER_NONE ? "ring" : name;
}

static plan plan_of(uint64_t seed, int64_t number, int32_t nranks) {
  world_random random = random_of(seed, number, 1000);
  plan made = {.desc = {.size = sizeof made.desc}};
  banyan_combine_desc *desc = &made.desc;
  desc->tokens = random_one_in(&random, 20) ? 0 : 1 + random_below(&random, TOKENS_MAX);
  desc->heads = 1 + random_below(&random, HEADS_MAX);
  desc->value_dim = random_one_in(&random, 12) ? 0 : 1 + random_below(&random, DIM_MAX);
  desc->wire = dtypes[random_below(&random, WIRES)];
  desc->scatter = random_one_in(&random, 2) ? BANYAN_SCATTER_NONE : (banyan_scatter)random_below(&random, 4);
  desc->root = desc->scatter == BANYAN_SCATTER_ROOT ? random_below(&random, nranks) : 0;
  desc->order = (banyan_order)random_below(&random, 2);
  desc->algorithm = choose_algorithm(&random, desc->scatter, desc->order);
  made.second_algorithm = choose_algorithm(&random, desc->scatter, desc->order);
  made.mood = random_one_in(&random, 2) ? ORDINARY : (mood)random_below(&random, MOODS);
  made.alike = random_one_in(&random, 3);
  made.again = desc->scatter == BANYAN_SCATTER_NONE && random_one_in(&random, 2);
  return made;
}

/* ---- sheets ------------------------------------------------------------------------------------------------------ */

/* Strides of tokens x heads rows of `width` elements, either outermost, with gaps. */
static void lay_out(world_random *random, int32_t tokens, int32_t heads, int32_t width, int64_t *token, int64_t *head) {
  int64_t row = width + random_below(random, width > 1 ? GAP + 1 : 2);
  bool tokens_first = random_one_in(random, 2);
  *head = tokens_first ? row : row * tokens;
  *token = tokens_first ? row * heads : row;
}

/* Values of eight bits have no scale, one for all heads, or one for each. */
static void choose_scales(world_random *random, sheet *made) {
  banyan_partial *p = &made->partial;
  for (int32_t i = 0; i < 2 * HEADS_MAX; i++)
    made->scales[i] = (float)((1 + random_unit(random) / 2) * exp2(random_unit(random) * 6));
  bool has_scale = (p->values_dtype == BANYAN_E4M3 || p->values_dtype == BANYAN_E5M2) && !random_one_in(random, 3);
  p->values_scale = has_scale ? made->scales : NULL;
  p->values_scale_stride = random_below(random, 3);
}

static void make_sheet(world_random *random, sheet *made, int32_t tokens, int32_t heads, int32_t value_dim,
                       bool is_output) {
  static const uint32_t outputs[] = {BANYAN_EMPTY_NEG_INF, BANYAN_EMPTY_POS_INF, BANYAN_EMPTY_BELOW};
  memset(made, 0xff, sizeof *made);
  banyan_partial *p = &made->partial;
  banyan_partial_init(p, made->values, dtypes[random_below(random, DTYPES)], made->lse, dtypes[random_below(random, 3)],
                      heads, value_dim);
  choose_scales(random, made);
  bool has_sum = random_one_in(random, 2);
  p->stats_kind = has_sum ? BANYAN_STATS_MAX_SUM : BANYAN_STATS_LSE;
  p->sum = has_sum ? made->sum : NULL;
  p->values_kind = has_sum && random_one_in(random, 2) ? BANYAN_VALUES_NUMERATOR : BANYAN_VALUES_NORMALISED;
  p->base = random_one_in(random, 2) ? BANYAN_BASE_2 : BANYAN_BASE_E;
  lay_out(random, tokens, heads, value_dim, &p->values_token_stride, &p->values_head_stride);
  lay_out(random, tokens, heads, 1, &p->stats_token_stride, &p->stats_head_stride);
  p->empty = is_output ? outputs[random_below(random, 3)] : 1u + (uint32_t)random_below(random, 15);
  p->empty_below = p->stats_dtype != BANYAN_F16 && random_one_in(random, 2) ? -1e37 : -60000;
  if (is_output && p->values_kind == BANYAN_VALUES_NORMALISED && random_one_in(random, 8)) p->lse = p->sum = NULL;
}

/* m or lse, in base 2, and d. */
static void choose_stats(world_random *random, mood mood, banyan_dtype wire, banyan_dtype type, double *t,
                         double *sum) {
  static const double masks[] = {-1e30, -(double)FLT_MAX, -1e9, -1e38, -3e7};
  double limit = type == BANYAN_F16 ? 40000 : 8e6; /* lossy wires: below 2^23 */
  *t = random_unit(random) * 8;
  *sum = exp2(random_unit(random) * 6);
  if (random_one_in(random, 10)) *t = random_one_in(random, 2) ? -0.0 : rint(*t);
  if (mood == WIDE) *t = random_unit(random) * 2e4;
  if (mood == LARGE) *t = fmin(limit, fabs(exp2(random_unit(random) * 24))) * (random_one_in(random, 2) ? -1 : 1);
  if (mood == MASKED && type != BANYAN_F16) *t = masks[random_below(random, 5)];
  if (mood == MASKED) *sum = 1 + random_below(random, 4);
  if (mood == SUMS && type != BANYAN_F16) *sum = exp2(random_unit(random) * (wire == BANYAN_F32 ? 120 : 90));
}

static double choose_value(world_random *random, mood mood, banyan_dtype wire, banyan_dtype type) {
  double value = random_unit(random) * 4;
  if (random_one_in(random, 16)) value = random_one_in(random, 2) ? 0.0 : -0.0;
  if (mood != VALUES) return value;
  bool is_narrow = wire == BANYAN_F16 || (type != BANYAN_F32 && type != BANYAN_BF16);
  return value * exp2(random_unit(random) * (is_narrow ? 7 : 60));
}

static void write_empty(world_random *random, const banyan_partial *p, int64_t stat) {
  double forms[4] = {-(double)INFINITY};
  int32_t count = 1;
  if (p->empty & BANYAN_EMPTY_POS_INF) forms[count++] = (double)INFINITY;
  if (p->empty & BANYAN_EMPTY_NAN) forms[count++] = (double)NAN;
  if (p->empty & BANYAN_EMPTY_BELOW) forms[count++] = p->empty_below;
  bool by_sum = p->sum && random_one_in(random, 3);
  oracle_store(p->lse, p->stats_dtype, stat, by_sum ? random_unit(random) : forms[random_below(random, count)]);
  if (by_sum) oracle_store(p->sum, p->stats_dtype, stat, 0); /* else NaN remains, and the values': they are not read */
}

static void fill_row(world_random *random, const banyan_partial *p, const plan *plan, int32_t token, int32_t head) {
  int64_t stat = token * p->stats_token_stride + head * p->stats_head_stride;
  int64_t value = token * p->values_token_stride + head * p->values_head_stride;
  double t, sum = 1;
  choose_stats(random, plan->mood, plan->desc.wire, p->stats_dtype, &t, &sum);
  if (!p->sum) sum = 1;
  double stored = p->base == BANYAN_BASE_E && plan->mood != MASKED ? t * 0.6931471805599453 : t;
  if (p->stats_dtype == BANYAN_BF16) stored = fmax(stored, -oracle_largest(BANYAN_BF16));
  oracle_store(p->lse, p->stats_dtype, stat, stored);
  if (p->sum) {
    oracle_store(p->sum, p->stats_dtype, stat, sum);
    sum = oracle_load(p->sum, p->stats_dtype, stat);
  }
  double scale = p->values_kind == BANYAN_VALUES_NUMERATOR ? sum : 1;
  double limit = oracle_largest(p->values_dtype) * 0.9;
  if (p->values_scale) scale /= (double)p->values_scale[head * p->values_scale_stride];
  for (int32_t i = 0; i < plan->desc.value_dim; i++) {
    double v = choose_value(random, plan->mood, plan->desc.wire, p->values_dtype) * scale;
    oracle_store(p->values, p->values_dtype, value + i, fmin(fmax(v, -limit), limit));
  }
}

static void fill_sheet(world_random *random, sheet *made, const plan *plan) {
  bool has_no_keys = random_one_in(random, 8);
  for (int32_t t = 0; t < plan->desc.tokens; t++)
    for (int32_t h = 0; h < plan->desc.heads; h++) {
      const banyan_partial *p = &made->partial;
      if (has_no_keys || random_one_in(random, 6))
        write_empty(random, p, t * p->stats_token_stride + h * p->stats_head_stride);
      else
        fill_row(random, p, plan, t, h);
    }
}

/* ---- one case ---------------------------------------------------------------------------------------------------- */

/* A rank's rows of the result. */
typedef struct part {
  int32_t token0, tokens, head0, heads;
} part;

static part part_of(const banyan_combine_desc *desc, int32_t rank, int32_t nranks) {
  part own = {0, desc->tokens, 0, desc->heads};
  if (desc->scatter == BANYAN_SCATTER_HEADS) banyan_split(desc->heads, nranks, rank, &own.head0, &own.heads);
  if (desc->scatter == BANYAN_SCATTER_TOKENS) banyan_split(desc->tokens, nranks, rank, &own.token0, &own.tokens);
  if (desc->scatter == BANYAN_SCATTER_ROOT && desc->root != rank) own.tokens = 0;
  return own;
}

static bool run_op(world_rank *self, const banyan_combine_desc *desc, const banyan_partial *in,
                   const banyan_partial *out, banyan_status *status, uint64_t *roundings) {
  banyan_op *op = NULL;
  banyan_op_info info = {.size = sizeof info};
  if (!world_ok(self, banyan_combine_init(self->comm, desc, in, out, &op), "init")) return false;
  *status = banyan_start(op);
  if (*status == BANYAN_OK) *status = banyan_wait(op);
  world_ok(self, banyan_op_query(op, &info), "query");
  banyan_op_free(op);
  *roundings = info.roundings;
  return world_check(self, *status == BANYAN_OK || *status == BANYAN_ERR_DATA, "%s", banyan_last_error()) &&
         world_ok(self, banyan_comm_status(self->comm), "the communicator afterwards");
}

/* Rows of `out` are those that the partials `in` of all ranks make, or may be rejected where the call was. */
static bool check_rows(world_rank *self, int64_t number, const plan *plan, const banyan_partial *const *in,
                       const banyan_partial *out, banyan_status status, uint64_t roundings) {
  const banyan_combine_desc *desc = &plan->desc;
  part own = part_of(desc, self->rank, self->nranks);
  bool excused = status == BANYAN_OK;
  for (int32_t t = 0; t < own.tokens; t++)
    for (int32_t h = 0; h < own.heads; h++) {
      oracle_row parts[RANKS_MAX];
      for (int32_t k = 0; k < self->nranks; k++)
        parts[k] = oracle_read(in[k], own.token0 + t, own.head0 + h, desc->value_dim);
      oracle_row expected = oracle_merge(parts, self->nranks, desc->value_dim);
      bool may_be_rejected = status != BANYAN_OK && oracle_may_be_rejected(out, &expected);
      excused = excused || may_be_rejected;
      const char *wrong = oracle_compare(out, t, h, desc->value_dim, desc->wire, roundings, &expected);
      if (!world_check(self, !wrong || may_be_rejected,
                       "case %lld, rank %d of %d, row (%d, %d), %s, wire %d, scatter %d, order %d, mood %d, out types "
                       "%d %d kinds "
                       "%d %d base %d: %s",
                       (long long)number, self->rank, self->nranks, t, h, desc->algorithm ? desc->algorithm : "-",
                       (int)desc->wire, (int)desc->scatter, (int)desc->order, (int)plan->mood, (int)out->values_dtype,
                       (int)out->stats_dtype, (int)out->values_kind, (int)out->stats_kind, (int)out->base,
                       wrong ? wrong : ""))
        return false;
    }
  return world_check(self, excused, "case %lld: rejected, and all rows could be held", (long long)number);
}

/* The same call again gives the same bits, in canonical order by another algorithm. */
static bool check_bits(world_rank *self, int64_t number, const plan *plan, exam *exam, banyan_status status) {
  sheet *out = &exam->out[self->rank], *other = &exam->other[self->rank];
  banyan_combine_desc desc = plan->desc;
  if (desc.order == BANYAN_ORDER_CANONICAL) desc.algorithm = plan->second_algorithm;
  memset(other, 0xff, sizeof *other);
  other->partial = out->partial;
  other->partial.values = other->values;
  if (out->partial.lse) other->partial.lse = other->lse;
  if (out->partial.sum) other->partial.sum = other->sum;
  banyan_status again;
  uint64_t roundings;
  if (!run_op(self, &desc, &exam->in[self->rank].partial, &other->partial, &again, &roundings)) return false;
  bool same = again == status && memcmp(out->values, other->values, sizeof out->values) == 0 &&
              memcmp(out->lse, other->lse, sizeof out->lse) == 0 && memcmp(out->sum, other->sum, sizeof out->sum) == 0;
  if (!world_check(self, same, "case %lld: %s and %s give different bits", (long long)number,
                   plan->desc.algorithm ? plan->desc.algorithm : "-", desc.algorithm ? desc.algorithm : "-"))
    return false;
  if (!plan->alike || plan->desc.scatter != BANYAN_SCATTER_NONE) return true;
  const sheet *first = &exam->out[0];
  same = memcmp(out->values, first->values, sizeof out->values) == 0 &&
         memcmp(out->lse, first->lse, sizeof out->lse) == 0 && memcmp(out->sum, first->sum, sizeof out->sum) == 0;
  return world_check(self, same, "case %lld: ranks 0 and %d have different bits", (long long)number, self->rank);
}

/* Results of even ranks, and inputs of odd ones, in one more combine. */
static bool check_second(world_rank *self, int64_t number, const plan *plan, exam *exam) {
  const banyan_partial *in[RANKS_MAX];
  for (int32_t k = 0; k < self->nranks; k++)
    in[k] = k % 2 == 0 && exam->out[k].partial.lse ? &exam->out[k].partial : &exam->in[k].partial;
  sheet *out = &exam->other[self->rank];
  world_random random = random_of(exam->seed, number, 3000 + self->rank);
  make_sheet(&random, out, plan->desc.tokens, plan->desc.heads, plan->desc.value_dim, true);
  banyan_status status;
  uint64_t roundings;
  return run_op(self, &plan->desc, in[self->rank], &out->partial, &status, &roundings) &&
         check_rows(self, number, plan, in, &out->partial, status, roundings);
}

static bool examine(world_rank *self, exam *exam, int64_t number) {
  const banyan_partial *in[RANKS_MAX];
  plan plan = plan_of(exam->seed, number, self->nranks);
  world_random random = random_of(exam->seed, number, self->rank);
  world_random outputs = random_of(exam->seed, number, 2000 + (plan.alike ? 0 : self->rank));
  sheet *input = &exam->in[self->rank], *out = &exam->out[self->rank];
  part own = part_of(&plan.desc, self->rank, self->nranks);
  make_sheet(&random, input, plan.desc.tokens, plan.desc.heads, plan.desc.value_dim, false);
  fill_sheet(&random, input, &plan);
  make_sheet(&outputs, out, own.tokens, own.heads, plan.desc.value_dim, true);
  for (int32_t k = 0; k < self->nranks; k++) in[k] = &exam->in[k].partial;
  banyan_status status;
  uint64_t roundings;
  if (!run_op(self, &plan.desc, &input->partial, &out->partial, &status, &roundings) || !world_meet(self)) return false;
  if (!check_rows(self, number, &plan, in, &out->partial, status, roundings)) return false;
  bool rejected = false; /* a row that is none goes into no second combine */
  for (int32_t k = 0; k < self->nranks; k++) rejected = rejected || exam->out[k].partial.stats_dtype != BANYAN_F32;
  bool may = plan.again && (plan.mood == ORDINARY || plan.mood == VALUES || !rejected);
  if (!check_bits(self, number, &plan, exam, status) || !world_meet(self)) return false;
  return !may || (check_second(self, number, &plan, exam) && world_meet(self));
}

static void examine_all(world_rank *self) {
  exam *exam = self->argument;
  for (int64_t number = exam->first; number < exam->cases; number += exam->step)
    if (!examine(self, exam, number)) return;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static int64_t number_of(const char *name, int64_t otherwise) {
  const char *text = getenv(name);
  return text ? strtoll(text, NULL, 10) : otherwise;
}

/* Processes see each other's sheets at the same addresses. */
static void examine_cases(int index, int64_t cases, bool processes) {
  int64_t only = number_of("ORACLE_CASE", -1);
  exam *exam = world_share(sizeof *exam);
  exam->seed = world_seed();
  exam->first = index;
  exam->cases = cases;
  exam->step = RANKS_MAX;
  if (only >= 0) exam->first = only % RANKS_MAX == index ? only : INT64_MAX, exam->cases = only + 1;
  printf("%d ranks%s: seed %llu (TEST_SEED), cases %lld to %lld (ORACLE_CASES)\n", index + 1,
         processes ? ", processes" : "", (unsigned long long)exam->seed, (long long)exam->first,
         (long long)exam->cases);
  fflush(stdout);
  WORLD_RUN(examine_all, .nranks = index + 1, .processes = processes, .argument = exam, .timeout_ns = 120000000000);
  world_unshare(exam, sizeof *exam);
}

/* Case n is one of n % 9 + 1 ranks. */
TEST_LOOP(random_cases, RANKS_MAX) { examine_cases(_i, number_of("ORACLE_CASES", CASES), false); }
TEST_LOOP(random_cases_of_processes, RANKS_MAX) { examine_cases(_i, number_of("ORACLE_CASES", CASES) / 5, true); }

/* The oracle's own numbers: what is stored is read, and rounding is to nearest even. */
TEST(elements) {
  static const int exponents[DTYPES] = {120, 14, 120, 7, 14};
  world_random random = {world_seed()};
  for (int d = 0; d < DTYPES; d++)
    for (int i = 0; i < 20000; i++) {
      uint32_t memory = 0;
      double value = random_unit(&random) * exp2(random_unit(&random) * exponents[d]);
      oracle_store(&memory, dtypes[d], 0, value);
      double stored = oracle_load(&memory, dtypes[d], 0);
      uint32_t again = 0;
      oracle_store(&again, dtypes[d], 0, stored);
      if (memory != again ||
          fabs(stored - value) > fmax(oracle_unit(dtypes[d]) * fabs(value), oracle_step(dtypes[d]) / 2))
        ck_abort_msg("dtype %d: %a is stored as %a", (int)dtypes[d], value, stored);
    }
}

int main(void) { return world_main(suite_of("oracle", number_of("ORACLE_CASES", CASES) > CASES ? 0 : 600)); }
