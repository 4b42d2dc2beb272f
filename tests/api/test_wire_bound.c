/* SPDX-License-Identifier: Apache-2.0
 * Searches the worst error of lossy wires, and compares it with the bound of docs/numbers.md ("A merge"). Each row of
 * a call is a separate hill climb: a step tries several columns that differ in one rank's partial, and keeps the
 * worst. Rows begin next to midpoints of two numbers of the wire's type, with weights that put partial sums there, so
 * that all roundings have the same sign. A quarter of the rows is small: values around the least normal number of the
 * type, with a d that is no power of two. Prints the largest error of each algorithm as a fraction of its bound.
 * TEST_SEED selects other rows. */
#include "tests/support/oracle.h"
#include "tests/support/world.h"

enum { RANKS_MAX = 16, ROWS = 64, TRIES = 16, COLUMNS = ROWS * TRIES, STEPS = 4, ALGORITHMS = 9 };

enum { WIRES = 3 };
static const banyan_dtype wires[WIRES] = {BANYAN_F16, BANYAN_BF16, BANYAN_E4M3};

static const char *const algorithms[ALGORITHMS] = {"oneshot",           "twoshot",      "recursive_doubling",
                                                   "recursive_halving", "tree_knomial", "tree_balanced",
                                                   "tree_chain",        "ring",         "levels"};

/* Rows of one value in base 2: rank k contributes the value v[k][row] with lse -shift. */
typedef struct climb {
  banyan_combine_desc desc;
  world_random random[RANKS_MAX];
  float v[RANKS_MAX][COLUMNS], lse[RANKS_MAX][COLUMNS], out[RANKS_MAX][COLUMNS];
  float worst_v[RANKS_MAX][ROWS], worst_lse[RANKS_MAX][ROWS];
  double most[ROWS]; /* error of these, as a fraction of the bound */
  uint64_t roundings;
} climb;

/* A value near the midpoint of two neighbours, as seen next to a row of weight 1 and value 1. */
static void choose(world_random *random, double unit, bool is_heavy, float *v, float *lse) {
  double beside = 1 + random_unit(random) * 0x1p-6;
  int32_t odd = 1 + 2 * random_below(random, 4), digits = (int32_t)-log2(unit);
  int32_t shift = is_heavy ? random_below(random, 3) : digits - 3 + random_below(random, 6);
  double value = is_heavy ? 1 + unit * (odd + random_unit(random) * 0x1p-6) : ldexp(odd * beside, shift - digits);
  *v = (float)(random_one_in(random, 8) ? -value : value);
  *lse = (float)-shift;
}

/* Absolute precision of values on a wire: see "Lossy wires". A block of e4m3 has a scale of 2^-126 at least. */
static double precision_of(banyan_dtype wire) {
  return wire == BANYAN_F16 ? 0x1p-24 : wire == BANYAN_BF16 ? 0x1p-133 : 0x1p-135;
}

/* Rows below the normal numbers of the type. */
static bool is_small(int32_t column) { return column / TRIES % 4 == 3; }

static void shrink(world_random *random, banyan_dtype wire, float *v, float *lse) {
  *v = (float)ldexp((double)*v, ilogb(precision_of(wire)) + 4 + random_below(random, 9));
  *lse -= (float)(random_one_in(random, 2) ? 0.99 : 0.5 + random_unit(random) / 2);
}

static void begin(climb *climb, world_random *random, int32_t column, int32_t nranks, double unit) {
  int32_t heavy = random_below(random, nranks);
  bool all_are = column % 4 == 0;
  for (int32_t k = 0; k < nranks; k++) {
    choose(random, unit, all_are || k == heavy, &climb->v[k][column], &climb->lse[k][column]);
    if (is_small(column)) shrink(random, climb->desc.wire, &climb->v[k][column], &climb->lse[k][column]);
  }
}

/* Copies the worst column of the row to a column, with a change to one rank. */
static void change(climb *climb, world_random *random, int32_t column, int32_t nranks, double unit) {
  int32_t row = column / TRIES, changed = random_below(random, nranks);
  for (int32_t k = 0; k < nranks; k++) {
    climb->v[k][column] = climb->worst_v[k][row];
    climb->lse[k][column] = climb->worst_lse[k][row];
  }
  float *v = &climb->v[changed][column], *lse = &climb->lse[changed][column];
  switch (random_below(random, 4)) {
  case 0:
    choose(random, unit, random_one_in(random, 8), v, lse);
    if (is_small(column)) shrink(random, climb->desc.wire, v, lse);
    break;
  case 1: *v *= (float)(1 + random_unit(random) * exp2(-1 - random_below(random, 14))); break;
  case 2: *v = -*v; break;
  default: *lse += random_one_in(random, 2) ? 1.0f : -1.0f;
  }
}

/* The error of a column as a fraction of the bound. */
static double part_of_bound(const climb *climb, int32_t column, int32_t nranks, double got, double bound) {
  double weight = 0, sum = 0, size = 0;
  for (int32_t k = 0; k < nranks; k++) {
    double w = exp2(climb->lse[k][column]);
    weight += w;
    sum += w * climb->v[k][column];
    size += w * fabs(climb->v[k][column]);
  }
  double small = precision_of(climb->desc.wire) * (double)climb->roundings;
  return fabs(got - sum / weight) / (bound * size / weight + small);
}

/* The result of a column, from the rank that holds it. */
static double result_of(const climb *climb, int32_t column, int32_t nranks) {
  if (climb->desc.scatter == BANYAN_SCATTER_ROOT) return climb->out[climb->desc.root][column];
  if (climb->desc.scatter != BANYAN_SCATTER_HEADS) return climb->out[column / TRIES % nranks][column];
  int32_t owner = 0, first = 0, count = 0;
  while (banyan_split(COLUMNS, nranks, owner, &first, &count), column >= first + count) owner++;
  return climb->out[owner][column - first];
}

/* Keeps the worst column of each row of this rank, and creates the next columns. */
static void go_on(const world_rank *self, climb *climb) {
  int32_t nranks = self->nranks;
  double unit = oracle_unit(climb->desc.wire);
  double bound = 2e-6 + oracle_wire_error(climb->desc.wire, climb->roundings) + 0x1p-23 * (double)climb->roundings;
  for (int32_t row = self->rank; row < ROWS; row += nranks) {
    for (int32_t column = row * TRIES; column < (row + 1) * TRIES; column++) {
      double part = part_of_bound(climb, column, nranks, result_of(climb, column, nranks), bound);
      if (part < climb->most[row]) continue;
      climb->most[row] = part;
      for (int32_t k = 0; k < nranks; k++) {
        climb->worst_v[k][row] = climb->v[k][column];
        climb->worst_lse[k][row] = climb->lse[k][column];
      }
    }
    for (int32_t column = row * TRIES; column < (row + 1) * TRIES; column++)
      change(climb, &climb->random[self->rank], column, nranks, unit);
  }
}

static bool make_op(world_rank *self, climb *climb, banyan_op **op) {
  banyan_partial in, out;
  banyan_op_info info = {.size = sizeof info};
  banyan_partial_init(&in, climb->v[self->rank], BANYAN_F32, climb->lse[self->rank], BANYAN_F32, COLUMNS, 1);
  in.base = BANYAN_BASE_2;
  banyan_partial_init(&out, climb->out[self->rank], BANYAN_F32, NULL, BANYAN_F32, COLUMNS, 1);
  bool has_rows = climb->desc.scatter != BANYAN_SCATTER_ROOT || self->rank == climb->desc.root;
  if (!world_ok(self, banyan_combine_init(self->comm, &climb->desc, &in, has_rows ? &out : NULL, op), "init") ||
      !world_ok(self, banyan_op_query(*op, &info), "query"))
    return false;
  if (self->rank == 0) climb->roundings = info.roundings;
  return true;
}

/* Returns false if the test has failed. */
static bool climb_up(world_rank *self, climb *climb) {
  banyan_op *op = NULL;
  bool ok = make_op(self, climb, &op) && world_meet(self);
  for (int32_t step = 0; ok && step < STEPS; step++) {
    ok = world_runs(self, op);
    /* A rank with all rows knows that all ranks have read their columns, and reads no other rank's result. */
    ok = ok && (climb->desc.scatter == BANYAN_SCATTER_NONE || world_meet(self));
    if (ok) go_on(self, climb);
    ok = ok && world_meet(self);
  }
  banyan_op_free(op);
  return ok;
}

/* ---- all forms of all algorithms --------------------------------------------------------------------------------- */

/* Scatters other than NONE have other plans. Their numbers of roundings differ from NONE by one or two. */
static bool serves(const char *algorithm, const banyan_combine_desc *desc, int32_t nranks, bool has_levels) {
  bool canonical = desc->order == BANYAN_ORDER_CANONICAL, to_all = desc->scatter == BANYAN_SCATTER_NONE;
  if (nranks == 1) return to_all && strcmp(algorithm, "oneshot") == 0;
  if (has_levels != (strcmp(algorithm, "levels") == 0)) return false;
  if (!to_all && nranks % 3 != 0) return false;
  if (strcmp(algorithm, "recursive_doubling") == 0) return to_all;
  if (strcmp(algorithm, "tree_chain") == 0 || strcmp(algorithm, "tree_balanced") == 0) return !canonical;
  return !has_levels || !canonical || nranks % 4 == 0;
}

static void prepare(world_rank *self, climb *climb, const banyan_combine_desc *desc) {
  memset(climb, 0, sizeof *climb);
  climb->desc = *desc;
  for (int32_t k = 0; k < self->nranks; k++) climb->random[k] = random_seed() * 1000 + (uint64_t)k;
  for (int32_t column = 0; column < COLUMNS; column++)
    begin(climb, &climb->random[0], column, self->nranks, oracle_unit(desc->wire));
}

/* Rank 0 notes the largest error of a form. */
static bool note(world_rank *self, const climb *climb, double *most) {
  const banyan_combine_desc *desc = &climb->desc;
  double part = 0;
  for (int32_t row = 0; row < ROWS; row++) part = fmax(part, climb->most[row]);
  *most = fmax(*most, part);
  return world_check(self, part <= 1,
                     "%d ranks, %s, wire %d, scatter %d, order %d: an error is %g times the bound of %d roundings",
                     self->nranks, desc->algorithm, (int)desc->wire, (int)desc->scatter, (int)desc->order, part,
                     (int)climb->roundings);
}

typedef struct search {
  climb climb;
  bool has_levels;
  double most[ALGORITHMS][2][WIRES]; /* by order and wire */
} search;

static void search_all(world_rank *self) {
  search *search = self->argument;
  for (int form = 0; form < ALGORITHMS * 6 * WIRES; form++) {
    banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = COLUMNS, .value_dim = 1};
    int wire = form % WIRES, order = form / WIRES % 2, algorithm = form / (WIRES * 6);
    desc.algorithm = algorithms[algorithm];
    desc.wire = wires[wire];
    desc.order = order == 0 ? BANYAN_ORDER_PLAN : BANYAN_ORDER_CANONICAL;
    desc.scatter = (banyan_scatter)(form / (WIRES * 2) % 3);
    if (!serves(desc.algorithm, &desc, self->nranks, search->has_levels)) continue;
    if (self->rank == 0) prepare(self, &search->climb, &desc);
    if (!world_meet(self) || !climb_up(self, &search->climb)) return;
    if (self->rank == 0 && !note(self, &search->climb, &search->most[algorithm][order][wire])) return;
  }
}

/* All algorithms on most numbers of ranks up to 16, and with groups of three or four ranks as levels. */
static const int32_t sizes[] = {1, 2, 3, 4, 5, 6, 8, 9, 12, RANKS_MAX};

TEST_RANDOM(errors_stay_within_the_bound, (int)(sizeof sizes / sizeof sizes[0])) {
  int32_t nranks = sizes[_i];
  search *search = calloc(1, sizeof *search);
  ck_assert_ptr_nonnull(search);
  world_setup setup = {.nranks = nranks, .argument = search};
  world_run(&setup, search_all);
  if (nranks > 4) {
    setenv("BANYAN_LEVELS", nranks % 4 == 0 ? "4" : "3", 1);
    search->has_levels = true;
    world_run(&setup, search_all);
  }
  printf("%d ranks, largest error as a part of its bound (0: no such form): f16, bf16, e4m3; canonical the same\n",
         nranks);
  for (int a = 0; a < ALGORITHMS; a++) {
    const double(*most)[WIRES] = search->most[a];
    printf("  %-18s %.3f %.3f %.3f  %.3f %.3f %.3f\n", algorithms[a], most[0][0], most[0][1], most[0][2], most[1][0],
           most[1][1], most[1][2]);
    /* On long chains the search must reach half of the bound. */
    bool is_long =
        nranks > 1 && nranks <= 12 && (strcmp(algorithms[a], "ring") == 0 || strcmp(algorithms[a], "tree_chain") == 0);
    ck_assert_msg(!is_long || most[0][0] > 0.5, "%s: the search found %g of the bound", algorithms[a], most[0][0]);
  }
  fflush(stdout);
  free(search);
}

/* ---- values beyond the range of a wire --------------------------------------------------------------------------- */

/* d in (0.5, 1] of a row with this lse in base 2. */
static double d_of(double lse) { return exp2(lse - ceil(lse)); }

/* One value of rank 0 next to rows without weight comes out unchanged, or as the largest number of the type over d.
 * Each run counts from zero the finite ones that do not fit; the last run has zeros alone. */
TEST_RANKS(values_beyond_a_type_become_its_largest, 3, .nranks = 1 + _i) {
  enum { VALUES = 400 };
  static const banyan_dtype types[2] = {BANYAN_F16, BANYAN_BF16};
  world_random random = random_seed();
  for (int wire = 0; wire < 2; wire++) {
    float v[VALUES], lse[VALUES], out[VALUES];
    double largest = oracle_largest(types[wire]), unit = oracle_unit(types[wire]);
    uint64_t expected = 0;
    for (int i = 0; i < VALUES; i++) {
      double most = wire == 0 ? 4 * largest : 3.4e38;
      v[i] = i % 100 == 0 ? INFINITY : (float)(most * random_unit(&random));
      lse[i] = self->rank == 0 ? (float)(10 * random_unit(&random)) : -INFINITY;
      if (i == 1 || i == 2) v[i] = i == 1 ? (float)largest : nextafterf((float)largest, INFINITY);
      if ((i == 1 || i == 2) && self->rank == 0) lse[i] = 0;
      expected += self->rank == 0 && isfinite(v[i]) && fabs((double)v[i]) * d_of((double)lse[i]) > largest;
    }
    banyan_combine_desc desc = {
        .size = sizeof desc, .tokens = 1, .heads = VALUES, .value_dim = 1, .wire = types[wire], .algorithm = "oneshot"};
    banyan_partial in, to;
    banyan_op *op = NULL;
    banyan_op_info info = {.size = sizeof info};
    banyan_partial_init(&in, v, BANYAN_F32, lse, BANYAN_F32, VALUES, 1);
    banyan_partial_init(&to, out, BANYAN_F32, NULL, BANYAN_F32, VALUES, 1);
    in.base = BANYAN_BASE_2;
    bool good = world_ok(self, banyan_combine_init(self->comm, &desc, &in, &to, &op), "init");
    for (int run = 0; run < 2 && good; run++)
      good = world_runs(self, op) && world_ok(self, banyan_op_query(op, &info), "query") &&
             world_check(self, info.saturated == expected, "wire %d: %d values were counted, and %d do not fit", wire,
                         (int)info.saturated, (int)expected) &&
             world_check(self, self->nranks > 1 || info.roundings == 1, "%d roundings", (int)info.roundings);
    for (int i = 0; i < VALUES && good && self->rank == 0; i++) {
      if (isinf(v[i]) && isinf(out[i])) continue;
      double d = d_of((double)lse[i]), fits = fmin(fabs((double)v[i]), largest / d), got = fabs((double)out[i]);
      good = world_check(self, fabs(got - fits) <= (2e-6 + unit) * fits, "wire %d: %g with lse %g became %g, not %g",
                         wire, (double)v[i], (double)lse[i], got, fits);
    }
    memset(v, 0, sizeof v);
    good = good && world_runs(self, op) && world_ok(self, banyan_op_query(op, &info), "query") &&
           world_check(self, info.saturated == 0, "%d zeros do not fit", (int)info.saturated);
    banyan_op_free(op);
  }
}

int main(void) { return world_main(suite_of("wire_bound", 600)); }
