/* SPDX-License-Identifier: Apache-2.0
 * Rows of the exact order: sums commute and associate bit for bit, are as exact as exact.h states, and hold 2^20
 * contributions. All kernel tables give the same result in all conventions. */
#include "exact.h"
#include "op.h"
#include "tests/support/random.h"
#include "tests/support/sanitized.h"

enum { COLUMNS = 3, ROW_BYTES = sizeof(bny_exact_row) + (COLUMNS * 17 + 7) / 8 * 8, TRIPLES = 1000000 };

typedef struct exact_row {
  _Alignas(8) char bytes[ROW_BYTES];
} exact_row;

static const bny_kernels *kernels;

static exact_row add(const exact_row *a, const exact_row *b) {
  exact_row sum = *a;
  kernels->exact_add(&sum, b, COLUMNS);
  return sum;
}

static void deposit(exact_row *row, double m, double d, const double n[COLUMNS]) {
  double given[COLUMNS];
  memcpy(given, n, sizeof given);
  kernels->exact_deposit(row, m, d, given, COLUMNS);
}

/* Exponents close to each other, around every boundary of the grid, and at the largest distance. */
static double random_m(double near) {
  static const double steps[] = {0, 1, 20, 41, 42, 43, 83, 84, 85, 126, 1000};
  static const double far[] = {0x1p23, 0x1p24, 0x1p30, 0x1p49, 0x1p50, 0x1p60, 0x1p100, 0x1.fffffep127};
  if (random_int(0, 15) == 0) return far[random_int(0, 7)] * (random_int(0, 1) ? 1 : -1);
  return near + steps[random_int(0, 10)] * random_int(-1, 1);
}

static double random_value(void) {
  static const double special[] = {0, 0x1p-149, FLT_MIN, 1, 1 - 0x1p-24, FLT_MAX, 0x1p42, 0x1p-42, INFINITY, NAN};
  double sign = random_int(0, 1) ? 1 : -1;
  if (random_int(0, 5) == 0) return sign * special[random_int(0, random_int(0, 20) ? 7 : 9)];
  return sign * ldexp(random_real(1, 2), random_int(-60, 60) * random_int(0, 1));
}

static exact_row random_row(double near) {
  exact_row row;
  kernels->exact_clear(&row, sizeof row);
  double n[COLUMNS], m = 0;
  for (int i = random_int(0, 3); i > 0; i--) {
    /* One in four cancels the previous values. */
    bool cancels = i > 1 && random_int(0, 3) == 0;
    if (!cancels) m = random_m(near);
    for (int c = 0; c < COLUMNS; c++) n[c] = random_value();
    deposit(&row, m, ldexp(random_real(0.5, 1), random_int(-32, 48) * random_int(0, 1)), n);
    for (int c = 0; c < COLUMNS && cancels; c++) n[c] = -n[c];
    if (cancels) deposit(&row, m, 0.5, n);
  }
  return row;
}

TEST(sums_commute_and_associate) {
  random_begin();
  for (int i = 0; i < TRIPLES; i++) {
    if (sanitizer_leaves_out(i)) continue;
    double near = random_int(-2000, 2000);
    exact_row a = random_row(near), b = random_row(near), c = random_row(near);
    exact_row ab = add(&a, &b), ba = add(&b, &a), bc = add(&b, &c), ca = add(&c, &a);
    exact_row left = add(&ab, &c), right = add(&a, &bc), around = add(&ca, &b);
    ck_assert_msg(memcmp(&ab, &ba, sizeof ab) == 0, "triple %d: a + b is not b + a", i);
    ck_assert_msg(memcmp(&left, &right, sizeof left) == 0, "triple %d: (a + b) + c is not a + (b + c)", i);
    ck_assert_msg(memcmp(&left, &around, sizeof left) == 0, "triple %d: (a + b) + c is not (c + a) + b", i);
  }
}

static long double value(const exact_row *row, int column, double *top) {
  bny_exact_row *head = (bny_exact_row *)(uintptr_t)row;
  *top = head->top_n;
  return ldexpl((long double)bny_exact_hi(head)[column], 42) + (long double)bny_exact_lo(head, COLUMNS)[column];
}

TEST(errors_are_within_the_bound) {
  random_begin();
  for (int i = 0; i < 3000; i++) {
    exact_row row;
    kernels->exact_clear(&row, sizeof row);
    long double sums[COLUMNS] = {0}, most = 0;
    int count = random_int(1, 400), spread = random_int(0, 90);
    for (int k = 0; k < count; k++) {
      double n[COLUMNS], m = random_int(-spread, spread);
      for (int c = 0; c < COLUMNS; c++) {
        n[c] = random_real(-16, 16);
        sums[c] += ldexpl((long double)n[c], (int)m);
        most = fmaxl(most, ldexpl(fabsl((long double)n[c]), (int)m));
      }
      deposit(&row, m, 1, n);
    }
    for (int c = 0; c < COLUMNS; c++) {
      double top;
      long double got = value(&row, c, &top), bound = ldexpl(most, -42) * count;
      got = ldexpl(got, 42 * ((int)top - 1));
      ck_assert_msg(fabsl(got - sums[c]) <= bound, "%d contributions over 2^+-%d: off by %Lg of %Lg", count, spread,
                    fabsl(got - sums[c]), bound);
    }
  }
}

/* The largest numbers of a digit, 2^20 times with either sign, also as sums of rows with 2^19 each. */
TEST(a_million_contributions_fit) {
  const int count = 1 << 20;
  const double largest = 0x1p42 - 0x1p-10, n[COLUMNS] = {largest, -largest, 0x1p-1 + 0x1p-43};
  exact_row half, row;
  kernels->exact_clear(&half, sizeof half);
  for (int i = 0; i < count / 2; i++) deposit(&half, 0, 1, n);
  row = add(&half, &half);
  exact_row left = add(&row, &half), right = add(&half, &row);
  ck_assert(memcmp(&left, &right, sizeof left) == 0);
  double top;
  for (int c = 0; c < COLUMNS; c++)
    ck_assert(value(&row, c, &top) * 3 == value(&left, c, &top) * 2 &&
              value(&row, c, &top) ==
                  (long double)count * (c == 2 ? 0x1p41L + 0.5L - 0.5L : ldexpl((long double)n[c], 42)));
}

/* ---- kernel tables and complete merges --------------------------------------------------------------------------- */

enum { TOKENS = 2, HEADS = 19, SOURCES = 5, DIM_MAX = 700 };

typedef struct wire_rows {
  float m[TOKENS * HEADS], d[TOKENS * HEADS];
  char *n;
} wire_rows;

static bny_wire_view view_of(wire_rows *rows) { return (bny_wire_view){rows->m, rows->d, rows->n, HEADS, false, NULL}; }

static void rows_make(wire_rows *rows, bny_wire wire, int dim) {
  rows->n = aligned_alloc(64, (bny_wire_row_bytes(wire, dim) * TOKENS * HEADS + 63) / 64 * 64);
  ck_assert_ptr_nonnull(rows->n);
}

/* A result as f32 numbers, whatever convention was requested. */
typedef struct result {
  float values[TOKENS * HEADS * DIM_MAX], lse[TOKENS * HEADS], sum[TOKENS * HEADS];
} result;

static banyan_partial describe(result *r, int dim, banyan_values kind, banyan_stats stats) {
  banyan_partial partial;
  banyan_partial_init(&partial, r->values, BANYAN_F32, r->lse, BANYAN_F32, HEADS, dim);
  partial.values_kind = kind, partial.stats_kind = stats, partial.base = BANYAN_BASE_2, partial.sum = r->sum;
  return partial;
}

static void random_input(result *in, int dim) {
  for (int r = 0; r < TOKENS * HEADS; r++) {
    in->lse[r] = random_int(0, 9) == 0 ? -INFINITY : (float)random_real(-30, 30);
    for (int i = 0; i < dim; i++) in->values[r * dim + i] = (float)random_real(-2, 2);
  }
}

/* Merges all sources in a rotated order, with the last `split` of them first. */
static void merge_all(const bny_kernels *table, bny_wire wire, const bny_box *box, wire_rows *rows, int first,
                      int split, const banyan_partial *out) {
  bny_wire_view views[SOURCES + 1], two[SOURCES];
  for (int i = 0; i < SOURCES; i++) views[i] = view_of(&rows[(first + i) % SOURCES]);
  wire_rows part;
  rows_make(&part, wire, box->value_dim);
  views[SOURCES] = view_of(&part);
  table->merge(box, wire, split, &views[SOURCES - split], false, &views[SOURCES]);
  for (int i = 0; i < SOURCES - split; i++) two[i] = views[i];
  two[SOURCES - split] = views[SOURCES];
  ck_assert_int_eq(table->merge_finish(box, wire, SOURCES - split + 1, two, false, out, 0, 0), -1);
  free(part.n);
}

TEST_RANDOM(results_are_alike_and_right, 60) {
  static const int dims[] = {0, 1, 7, 64, 128, 513, DIM_MAX};
  static result in[SOURCES], want, got, rounded;
  state += (uint64_t)_i * 977;
  const int dim = dims[_i % 7];
  const banyan_values kind = _i / 7 % 2 ? BANYAN_VALUES_NUMERATOR : BANYAN_VALUES_NORMALISED;
  const banyan_stats stats = _i / 14 % 2 || kind == BANYAN_VALUES_NUMERATOR ? BANYAN_STATS_MAX_SUM : BANYAN_STATS_LSE;
  const bny_box box = {TOKENS, HEADS, dim};
  wire_rows exact[SOURCES], plain[SOURCES];
  memset(&want, 0, sizeof want), memset(&got, 0, sizeof got), memset(&rounded, 0, sizeof rounded);
  int first = 1;
  EACH_KERNELS(table) {
    for (int s = 0; s < SOURCES; s++) {
      if (first) {
        random_input(&in[s], dim);
        rows_make(&exact[s], BNY_WIRE_EXACT, dim);
        rows_make(&plain[s], BNY_WIRE_F32, dim);
      }
      banyan_partial from = describe(&in[s], dim, BANYAN_VALUES_NORMALISED, BANYAN_STATS_LSE);
      bny_wire_view to = view_of(&exact[s]), plain_to = view_of(&plain[s]);
      ck_assert_int_eq(table->encode(&box, &from, 0, 0, BNY_WIRE_EXACT, &to), -1);
      ck_assert_int_eq(table->encode(&box, &from, 0, 0, BNY_WIRE_F32, &plain_to), -1);
    }
    banyan_partial out = describe(&got, dim, kind, stats), plain_out = describe(&rounded, dim, kind, stats);
    for (int turn = 0; turn < SOURCES; turn++) {
      merge_all(table, BNY_WIRE_EXACT, &box, exact, turn, 1 + turn % (SOURCES - 1), &out);
      if (first) want = got;
      first = 0;
      ck_assert_msg(memcmp(&want, &got, sizeof got) == 0, "%s, turn %d: other bits", table->name, turn);
    }
    merge_all(table, BNY_WIRE_F32, &box, plain, 0, 1, &plain_out);
  }
  /* Compares with f32 arithmetic; a numerator or d is relative to the m of its row. */
  for (int r = 0; r < TOKENS * HEADS; r++) {
    if (isinf(want.lse[r])) {
      ck_assert(want.lse[r] < 0 && rounded.lse[r] == want.lse[r]);
      continue;
    }
    double step = kind == BANYAN_VALUES_NUMERATOR ? exp2((double)rounded.lse[r] - (double)want.lse[r]) : 1;
    double lse = (double)want.lse[r] + (stats == BANYAN_STATS_MAX_SUM ? log2((double)want.sum[r]) : 0);
    double other = (double)rounded.lse[r] + (stats == BANYAN_STATS_MAX_SUM ? log2((double)rounded.sum[r]) : 0);
    ck_assert_msg(fabs(lse - other) < 1e-5, "row %d: lse %g, not %g", r, lse, other);
    for (int i = 0; i < dim; i++)
      ck_assert(fabs((double)want.values[r * dim + i] - (double)rounded.values[r * dim + i] * step) <
                2e-5 * step * SOURCES);
  }
  for (int s = 0; s < SOURCES; s++) free(exact[s].n), free(plain[s].n);
}

/* If one partial alone has a row, its normalised values are the result, except for those far below the largest. */
TEST(one_partial_keeps_its_values) {
  static result in, got;
  random_begin();
  EACH_KERNELS(table) {
    static const int dims[] = {1, 16, 128, DIM_MAX};
    for (int d = 0; d < 4; d++) {
      const int dim = dims[d];
      const bny_box box = {TOKENS, HEADS, dim};
      wire_rows rows;
      rows_make(&rows, BNY_WIRE_EXACT, dim);
      bny_wire_view view = view_of(&rows);
      random_input(&in, dim);
      banyan_partial from = describe(&in, dim, BANYAN_VALUES_NORMALISED, BANYAN_STATS_LSE);
      banyan_partial out = describe(&got, dim, BANYAN_VALUES_NORMALISED, BANYAN_STATS_LSE);
      if (d % 2) from.base = out.base = BANYAN_BASE_E;
      ck_assert_int_eq(table->encode(&box, &from, 0, 0, BNY_WIRE_EXACT, &view), -1);
      ck_assert_int_eq(table->merge_finish(&box, BNY_WIRE_EXACT, 1, &view, false, &out, 0, 0), -1);
      for (int i = 0; i < TOKENS * HEADS * dim; i++)
        ck_assert_msg(isinf(in.lse[i / dim]) || fabsf(in.values[i]) < 0x1p-15f || got.values[i] == in.values[i],
                      "%s, dim %d: value %d is %a, not %a", table->name, dim, i, (double)got.values[i],
                      (double)in.values[i]);
      free(rows.n);
    }
  }
}

/* Infinities are kept whatever else is added, and NaN has precedence. */
TEST(infinities_and_nan_reach_the_result) {
  exact_row row;
  kernels->exact_clear(&row, sizeof row);
  deposit(&row, -500, 1, (double[]){INFINITY, INFINITY, NAN});
  deposit(&row, 500, 1, (double[]){1, -INFINITY, 1});
  float m = 0, d = 1, values[COLUMNS], lse;
  bny_wire_view view = {&m, &d, &row, 1, false, NULL};
  banyan_partial out;
  banyan_partial_init(&out, values, BANYAN_F32, &lse, BANYAN_F32, 1, COLUMNS);
  EACH_KERNELS(table) {
    table->merge_finish(&(bny_box){1, 1, COLUMNS}, BNY_WIRE_EXACT, 1, &view, false, &out, 0, 0);
    ck_assert(isinf(values[0]) && values[0] > 0);
    ck_assert(isnan(values[1]) && isnan(values[2]));
    ck_assert_float_eq_tol(lse, 500 * (float)log(2), 1e-4f);
  }
}

/* If m is too large to hold the magnitude of d, then d holds it. Weights below and above 1 are treated alike. */
TEST(weights_of_far_maxima) {
  static const double far[] = {1e12, 1e15, 1e16, 1e30, (double)FLT_MAX};
  for (int i = 0; i < 10; i++) {
    exact_row row;
    const float m = (float)(far[i / 2] * (i % 2 ? 1 : -1));
    float values[COLUMNS], out_m, sum, none = 0, one = 1;
    kernels->exact_clear(&row, sizeof row);
    deposit(&row, (double)m, 0.75, (double[]){0.75, 0.25, 0.5});
    deposit(&row, (double)nextafterf(m, -FLT_MAX * 2), m == -FLT_MAX ? 0 : 1e3, (double[]){0, 0, 0});
    deposit(&row, (double)m, 1.5, (double[]){4.5, 0.25, 0});
    bny_wire_view view = {&none, &one, &row, 1, false, NULL};
    banyan_partial out;
    banyan_partial_init(&out, values, BANYAN_F32, &out_m, BANYAN_F32, 1, COLUMNS);
    out.values_kind = BANYAN_VALUES_NUMERATOR, out.stats_kind = BANYAN_STATS_MAX_SUM, out.base = BANYAN_BASE_2;
    out.sum = &sum;
    kernels->merge_finish(&(bny_box){1, 1, COLUMNS}, BNY_WIRE_EXACT, 1, &view, false, &out, 0, 0);
    ck_assert_msg(out_m == m && sum == 2.25f && values[0] == 5.25f && values[1] == 0.5f && values[2] == 0.5f,
                  "m %g: %g, %g, %g, %g, %g", (double)m, (double)out_m, (double)sum, (double)values[0],
                  (double)values[1], (double)values[2]);
  }
}

int main(void) {
  kernels = bny_kernels_find(NULL);
  return suite_main(suite_of("exact", 120));
}
