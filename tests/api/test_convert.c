/* SPDX-License-Identifier: Apache-2.0
 * Conversion and merges of rows between callers' descriptors and wire form in all conventions, with empty rows and bad
 * data. Results are compared with double precision. */
#include "banyan.h"
#include "f8.h"
#include "op.h"
#include "tests/support/random.h"
#include "tests/support/sheet.h"
#include "tests/support/sheet_element.h"

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

/* Filled with a byte that is NaN in every dtype, so that a read of unset memory shows. */
static void *take(size_t bytes) {
  void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
  ck_assert(memory != NULL);
  memset(memory, 0xFF, (bytes + 64) / 64 * 64);
  return memory;
}

static float read_as(const void *memory, banyan_dtype dtype, int64_t i) { return (float)oracle_load(memory, dtype, i); }

/* Element e of a row in wire form. */
static float read_wire(const void *n, bny_wire wire, int value_dim, int64_t row, int e) {
  const uint8_t *at = (const uint8_t *)n + (size_t)row * bny_wire_row_bytes(wire, value_dim);
  if (wire == BNY_WIRE_E4M3) return bny_float_of_e4m3(at[e]) * bny_scale_of_byte(at[value_dim + e / BNY_SCALE_BLOCK]);
  return read_as(at, bny_wire_formats[wire].dtype, e);
}

/* ---- rows in a convention ---------------------------------------------------------------------------------------- */

enum { TOKENS_MAX = 5, HEADS_MAX = 20, DIM_MAX = 40 };

typedef struct convention {
  banyan_values values;
  banyan_stats stats;
  banyan_base base;
} convention;

static const convention conventions[] = {
    {BANYAN_VALUES_NORMALISED, BANYAN_STATS_LSE, BANYAN_BASE_E},
    {BANYAN_VALUES_NORMALISED, BANYAN_STATS_LSE, BANYAN_BASE_2},
    {BANYAN_VALUES_NORMALISED, BANYAN_STATS_MAX_SUM, BANYAN_BASE_E},
    {BANYAN_VALUES_NORMALISED, BANYAN_STATS_MAX_SUM, BANYAN_BASE_2},
    {BANYAN_VALUES_NUMERATOR, BANYAN_STATS_MAX_SUM, BANYAN_BASE_E},
    {BANYAN_VALUES_NUMERATOR, BANYAN_STATS_MAX_SUM, BANYAN_BASE_2},
};

static const banyan_dtype dtypes[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};

/* A partial of f32 values in one of them. */
static banyan_partial partial_of(const convention *of, banyan_dtype stats_dtype) {
  return (banyan_partial){.size = sizeof(banyan_partial),
                          .values_dtype = BANYAN_F32,
                          .values_kind = of->values,
                          .stats_dtype = stats_dtype,
                          .stats_kind = of->stats,
                          .base = of->base,
                          .empty = BANYAN_EMPTY_NEG_INF};
}

static bny_wire_view message_take(bny_wire wire, const bny_box *box) {
  bny_wire_layout layout = bny_wire_layout_make(wire, (int64_t)box->tokens * box->heads, box->value_dim);
  char *message = take(layout.bytes);
  return (bny_wire_view){.m = (float *)(message + layout.m),
                         .d = (float *)(message + layout.d),
                         .n = message + layout.n,
                         .token_stride = box->heads,
                         .stream = random_int(0, 1) != 0};
}

/* Merges rows of any conventions and range of numbers over the wire into another convention. */
static void merge(const bny_kernels *kernels, bny_wire wire, int count, world_random *random) {
  const bny_box box = {random_int(1, TOKENS_MAX), random_int(1, HEADS_MAX), random_int(0, DIM_MAX)};
  sheet_mood mood = (sheet_mood)random_below(random, SHEET_MOODS);
  if (mood == SHEET_VALUES && wire == BNY_WIRE_F16) mood = SHEET_PLAIN;
  sheet in[BNY_MERGE_SOURCES_MAX];
  bny_wire_view views[BNY_MERGE_SOURCES_MAX], again = message_take(wire, &box);
  for (int k = 0; k < count; k++) {
    in[k] = sheet_input(random, mood, k, count, box.tokens, box.heads, box.value_dim);
    views[k] = message_take(wire, &box);
    ck_assert_ptr_null(bny_partial_check(&in[k].partial, &box, false));
    ck_assert_int_eq(kernels->encode(&box, &in[k].partial, 0, 0, wire, &views[k]), -1);
  }
  const sheet out = sheet_output(random, mood, box.tokens, box.heads, box.value_dim);
  const oracle_row *reference = sheet_merge(in, count);
  const bool rounds = random_int(0, 1) != 0;
  const int32_t roundings = rounds && count > 1 ? 1 + (int32_t)ceil(log2(count)) : 1;
  ck_assert_ptr_null(bny_partial_check(&out.partial, &box, true));
  ck_assert_int_eq(kernels->merge_finish(&box, wire, count, views, rounds, &out.partial, 0, 0), -1);
  char why[256] = "bytes beside the rows were written";
  ck_assert_msg(
      sheet_matches(&out, reference, box.heads, 0, 0, bny_wire_formats[wire].dtype, roundings, why, sizeof why) &&
          sheet_gaps_are_untouched(&out),
      "%s, wire %s, %d sources, mood %d: %s", kernels->name, bny_wire_formats[wire].name, count, (int)mood, why);
  /* The output reads back as the same rows, empty ones included. Extreme logits may fall below the limit for empty
   * rows. */
  const bool reads = out.partial.lse && mood != SHEET_HUGE && mood != SHEET_LARGE && mood != SHEET_MASKED;
  if (reads) ck_assert_int_eq(kernels->encode(&box, &out.partial, 0, 0, wire, &again), -1);
  for (int r = 0; r < box.tokens * box.heads && reads; r++)
    ck_assert((again.d[r] == 0) == reference[r].is_empty && (again.m[r] == -INFINITY) == reference[r].is_empty);
  for (int k = 0; k < count; k++) free(views[k].m);
  free(again.m);
}

/* Each number of sources that a merge takes, and most often a single one. */
TEST_RANDOM(rows_of_any_convention, 76) {
  world_random random = random_seed() + 1000 * (uint64_t)_i;
  state += (uint64_t)_i;
  sheet_eight_bits = true;
  EACH_KERNELS(kernels)
  for (int i = 0; i < 20; i++)
    merge(kernels, (bny_wire)(i % (int)BNY_WIRE_COUNT), i == _i % 8 ? 1 + _i % BNY_MERGE_SOURCES_MAX : 1 + i % 3,
          &random);
}

/* Rows in wire form are copied, and come back bit for bit. */
TEST(native_form_is_a_copy) {
  const banyan_partial native = partial_of(&conventions[5], BANYAN_F32);
  for (int i = 0; i < 100; i++) {
    bny_box box = {random_int(1, 4), random_int(1, 20), random_int(1, DIM_MAX)};
    const sheet in = sheet_of(&state, native, box.tokens, box.heads, box.value_dim),
                out = sheet_of(&state, native, box.tokens, box.heads, box.value_dim);
    for (int r = 0; r < box.tokens * box.heads; r++) {
      store_lse(&in, r / box.heads, r % box.heads, random_int(-20000, 20000));
      store_sum(&in, r / box.heads, r % box.heads, random_real(0.5, 1e6));
      for (int e = 0; e < box.value_dim; e++) store_value(&in, r / box.heads, r % box.heads, e, random_real(-1e6, 1e6));
    }
    const bny_kernels *kernels = bny_kernels_find(NULL);
    bny_wire_view view = message_take(BNY_WIRE_F32, &box);
    ck_assert_int_eq(kernels->encode(&box, &in.partial, 0, 0, BNY_WIRE_F32, &view), -1);
    kernels->merge_finish(&box, BNY_WIRE_F32, 1, &view, false, &out.partial, 0, 0);
    for (int r = 0; r < box.tokens * box.heads; r++) {
      const int t = r / box.heads, h = r % box.heads;
      ck_assert(sheet_same_bits(&in, t, h, &out, t, h));
      ck_assert_mem_eq(value_address(&in, t, h), (float *)view.n + r * box.value_dim, (size_t)box.value_dim * 4);
    }
    free(view.m);
  }
}

/* ---- rows in a block --------------------------------------------------------------------------------------------- */

/* Statistics that take different branches of an encode: zeros of both signs, integers, fractions and extremes. */
static void write_any_stats(const sheet *of, int t, int h, bool whole) {
  static const double stats[] = {0.0, -0.0, 1, -3, 0.25, -0.75, 1e-40, -1e-40, 5e6, -5e6, 1e30, -1e30, -INFINITY};
  static const double sums[] = {1, 3, 0.5, 0x1p-40, 0x1p60, 1e-40, 0};
  double stat = whole ? (double)random_int(-9, 9) : stats[random_int(0, (int)LENGTH(stats) - 1)];
  const bool is_f16 = of->partial.stats_dtype == BANYAN_F16;
  if (is_f16 && fabs(stat) > 6e4 && stat > -INFINITY) stat = 60000;
  store_lse(of, t, h, stat == 0 && random_int(0, 1) ? -0.0 : stat);
  if (of->partial.sum != NULL)
    store_sum(of, t, h, is_f16 ? 1.5 : sums[whole ? random_int(0, 2) : random_int(0, (int)LENGTH(sums) - 1)]);
  for (int e = 0; e < 3; e++) store_value(of, t, h, e, random_real(-2, 2));
}

/* The wire form depends on the row only: a row alone has the same bits as in a block with rows of any kind. */
TEST(rows_are_encoded_alike_alone_and_in_blocks) {
  for (int t = 0; bny_kernels_table[t] != NULL; t++) {
    const bny_kernels *kernels = bny_kernels_table[t];
    for (int i = 0; i < 1000 && kernels->supported(); i++) {
      const bny_wire wire = (bny_wire)(i / 18 % (int)BNY_WIRE_COUNT);
      const size_t row_bytes = bny_wire_row_bytes(wire, 3);
      bny_box box = {random_int(1, 3), random_int(1, HEADS_MAX), 3}, one = {1, 1, 3};
      const sheet in =
          sheet_of(&state, partial_of(&conventions[i % 6], dtypes[i / 6 % 3]), box.tokens, box.heads, box.value_dim);
      int odd = random_int(0, box.tokens * box.heads - 1); /* often one row is unusual and must not change others */
      for (int r = 0; r < box.tokens * box.heads; r++)
        write_any_stats(&in, r / box.heads, r % box.heads, r != odd && i % 3 != 0);
      bny_wire_view all = message_take(wire, &box), alone = message_take(wire, &one);
      ck_assert_int_eq(kernels->encode(&box, &in.partial, 0, 0, wire, &all), -1);
      for (int r = 0; r < box.tokens * box.heads; r++) {
        ck_assert_int_eq(kernels->encode(&one, &in.partial, r / box.heads, r % box.heads, wire, &alone), -1);
        ck_assert_msg(bny_bits_of_float(alone.m[0]) == bny_bits_of_float(all.m[r]) &&
                          bny_bits_of_float(alone.d[0]) == bny_bits_of_float(all.d[r]) &&
                          memcmp(alone.n, (char *)all.n + (size_t)r * row_bytes, row_bytes) == 0,
                      "%s, wire %s, round %d, row %d: m %a, d %a alone, m %a, d %a in its block", kernels->name,
                      bny_wire_formats[wire].name, i, r, (double)alone.m[0], (double)alone.d[0], (double)all.m[r],
                      (double)all.d[r]);
        ck_assert_msg(all.m[r] != 0 || !signbit(all.m[r]), "%s, round %d, row %d: m is -0", kernels->name, i, r);
      }
      free(all.m);
      free(alone.m);
    }
  }
}

/* ---- statistics at the limits of types --------------------------------------------------------------------------- */

/* Sets the convention of a single row, whose m and d lie in a pair. */
static void partial_set(banyan_partial *p, const convention *to) {
  p->values_kind = to->values;
  p->stats_kind = to->stats;
  p->base = to->base;
  p->sum = to->stats == BANYAN_STATS_MAX_SUM ? (char *)p->lse + bny_dtype_bytes(p->stats_dtype) : NULL;
}

/* log2 of the row's weight, from m and d as the caller reads them. */
static double weight_of(const banyan_partial *p) {
  double stat = (double)read_as(p->lse, p->stats_dtype, 0) * (p->base == BANYAN_BASE_E ? BNY_LOG2_E : 1);
  return p->sum == NULL ? stat : stat + log2((double)read_as(p->sum, p->stats_dtype, 0));
}

/* Tolerance of a weight: the last places of d (few where it is subnormal) and of t in double, or those of an lse. */
static double weight_slack(const banyan_partial *p, double weight) {
  double slack = 1e-6 + 0x1p-45 * fabs(weight), unit = oracle_unit(p->stats_dtype);
  if (p->sum == NULL) return slack + 1.01 * unit * fabs(weight);
  double d = (double)read_as(p->sum, p->stats_dtype, 0);
  double step = p->stats_dtype == BANYAN_F16 ? 0x1p-24 : p->stats_dtype == BANYAN_BF16 ? 0x1p-133 : 0x1p-149;
  return slack + 2.1 * (unit + 0.5 * step / d); /* in octaves: 1 if d is a single step */
}

/* True if the type can represent that weight as (m, d), which fails only if a gap between values of m is too wide for
 * d. */
static bool is_holdable(const banyan_partial *p, double weight) {
  double stat = fabs(weight) * (p->base == BANYAN_BASE_E ? BNY_LN_2 : 1),
         octaves = p->base == BANYAN_BASE_E ? BNY_LOG2_E : 1;
  double spacing = ldexp(oracle_unit(p->stats_dtype), ilogb(fmax(stat, 1)) + 1) * octaves;
  bool is_f16 = p->stats_dtype == BANYAN_F16, numerators = p->values_kind == BANYAN_VALUES_NUMERATOR;
  double room = is_f16 ? 24 : 240;
  if (numerators) room = p->values_dtype == BANYAN_F16 ? 13 : is_f16 ? 24 : 120;
  return spacing < room && (!is_f16 || stat < 65000);
}

/* Converts one row in wire form to every type and kind. The same row comes out, or merge_finish() reports that it
 * cannot. */
static void export_one(const bny_kernels *kernels, float m, float d, banyan_partial *out, bool must_say) {
  bny_box box = {1, 1, 2};
  float n[2] = {d, -0.5f * d};
  bny_wire_view view = {.m = &m, .d = &d, .n = n, .token_stride = 1};
  bool says = kernels->merge_finish(&box, BNY_WIRE_F32, 1, &view, false, out, 0, 0) == 0;
  double weight = (double)m + log2((double)d), got = weight_of(out), slack = weight_slack(out, weight);
  bool huge = fabsf(m) >= 0x1p24f;
  if (huge) slack += 1.1 * (oracle_unit(out->stats_dtype) + 0x1p-24) * fabs(weight);
  if (fabsf(m) == FLT_MAX && fabs(got) > fabs(weight))
    got = weight; /* base e has a wider range, so all weights beyond are one number */
  ck_assert_msg(
      says || fabs(got - weight) <= slack,
      "%s: m %a, d %a to dtypes %d %d, kinds %d %d, base %d: weight %.9g became %.9g, off by %.3g, slack %.3g",
      kernels->name, (double)m, (double)d, (int)out->stats_dtype, (int)out->values_dtype, (int)out->stats_kind,
      (int)out->values_kind, (int)out->base, weight, got, got - weight, slack);
  ck_assert_msg(!says || must_say || !is_holdable(out, weight),
                "%s: m %a, d %a to dtype %d, kinds %d %d, base %d is rejected", kernels->name, (double)m, (double)d,
                (int)out->stats_dtype, (int)out->stats_kind, (int)out->values_kind, (int)out->base);
  if (says) return;
  /* The values are those of the row, and the output reads back as the same row. */
  double scale = out->values_kind == BANYAN_VALUES_NUMERATOR ? (double)read_as(out->sum, out->stats_dtype, 0) : 1;
  double bound = 2 * oracle_unit(out->values_dtype) + (out->values_kind == BANYAN_VALUES_NUMERATOR ? slack : 0);
  ck_assert_msg(fabs((double)read_as(out->values, out->values_dtype, 0) / scale - 1) <= bound,
                "%s: m %a, d %a: value %g of %g", kernels->name, (double)m, (double)d,
                (double)read_as(out->values, out->values_dtype, 0), scale);
  float back_m, back_d, back_n[2];
  bny_wire_view back = {.m = &back_m, .d = &back_d, .n = back_n, .token_stride = 1};
  ck_assert_int_eq(kernels->encode(&box, out, 0, 0, BNY_WIRE_F32, &back), -1);
  double again = (double)back_m + log2((double)back_d);
  ck_assert_msg(fabs(again - weight) <= slack + 1e-6, "%s: m %a, d %a came back as %a, %a", kernels->name, (double)m,
                (double)d, (double)back_m, (double)back_d);
  if (huge && out->stats_dtype == BANYAN_F32 && out->sum != NULL) ck_assert(back_m == m && back_d == d);
}

TEST(statistics_come_out_as_the_type_can_hold_them) {
  static const float huge[] = {-1e30f, 1e30f,   -FLT_MAX, FLT_MAX, -3e9f,    3e9f,
                               -1e9f,  -4.3e9f, -65504,   65504,   -0x1p24f, 0x1p24f};
  for (int t = 0; bny_kernels_table[t] != NULL; t++) {
    for (int i = 0; i < 30000 && bny_kernels_table[t]->supported(); i++) {
      float stats[2], values[2];
      banyan_partial out;
      banyan_partial_init(&out, values, dtypes[i / 6 % 3], stats, dtypes[i / 18 % 3], 1, 2);
      partial_set(&out, &conventions[i % 6]);
      float m = roundf((float)(random_real(-1, 1) * exp2(random_real(0, 24))));
      float d = (float)exp2(i % 4 == 0 ? random_real(-45, 52) : random_real(-1, 12));
      if (i % 8 == 0) m = huge[random_int(0, (int)LENGTH(huge) - 1)];
      bool beyond_f16 = out.stats_dtype == BANYAN_F16 && fabsf(m) > 65000;
      /* an f16 numerator whose m is too large to adjust */
      bool wide = fabsf(m) >= 0x1p24f && out.values_kind == BANYAN_VALUES_NUMERATOR && out.values_dtype == BANYAN_F16;
      if (wide) d = 0.75f;
      export_one(bny_kernels_table[t], m, d, &out, beyond_f16);
    }
  }
}

/* A caller's rows and the rows written from them are equal to the next combine, whatever m masked rows have. */
TEST(masked_rows_come_back_as_they_were) {
  static const double masks[] = {-1e30, -FLT_MAX, -1e9, -1e10, -3e38, -1e7, -65504, -10000, -49994};
  for (int t = 0; bny_kernels_table[t] != NULL; t++) {
    const bny_kernels *kernels = bny_kernels_table[t];
    for (int i = 0; i < 2000 && kernels->supported(); i++) {
      float stats[2], values[2] = {2, -1}, m[2], d[2], n[2][2];
      banyan_partial row;
      banyan_partial_init(&row, values, BANYAN_F32, stats, dtypes[i / 6 % 3], 1, 2);
      partial_set(&row, &conventions[i % 6]);
      double mask = masks[random_int(0, (int)LENGTH(masks) - 1)];
      if (i / 18 % 2 != 0) mask = -exp2(random_real(0, 127.99));
      if (row.stats_dtype == BANYAN_F16) mask = fmax(mask, -65504);
      oracle_store(row.lse, row.stats_dtype, 0, mask);
      if (row.stats_dtype == BANYAN_BF16 && mask < -3.38e38) oracle_store(row.lse, BANYAN_BF16, 0, -0x1.fep127);
      if (row.sum != NULL) oracle_store(row.sum, row.stats_dtype, 0, random_int(1, 9));
      bny_box box = {1, 1, 2};
      for (int k = 0; k < 2; k++) { /* in, out, and in again */
        bny_wire_view view = {.m = &m[k], .d = &d[k], .n = n[k], .token_stride = 1};
        ck_assert_int_eq(kernels->encode(&box, &row, 0, 0, BNY_WIRE_F32, &view), -1);
        int64_t lost = kernels->merge_finish(&box, BNY_WIRE_F32, 1, &view, false, &row, 0, 0);
        ck_assert_msg(lost < 0, "%s: mask %g, dtype %d, convention %d is rejected", kernels->name, mask,
                      (int)row.stats_dtype, i % 6);
      }
      bool exact = fabsf(m[0]) >= 0x1p24f;
      double before = (double)m[0] + log2((double)d[0]), after = (double)m[1] + log2((double)d[1]);
      double slack = row.sum == NULL ? (exact ? 0 : 2 * oracle_unit(row.stats_dtype) * fabs(before))
                                     : 3 * oracle_unit(row.stats_dtype);
      ck_assert_msg((!exact || m[0] == m[1]) && fabs(before - after) <= slack + 1e-6,
                    "%s: mask %g, dtype %d, convention %d: m %a, d %a, then m %a, d %a", kernels->name, mask,
                    (int)row.stats_dtype, i % 6, (double)m[0], (double)d[0], (double)m[1], (double)d[1]);
    }
  }
}

/* ---- empty rows and bad data ------------------------------------------------------------------------------------- */

typedef struct policy_case {
  float stat, sum;
  uint32_t empty;
  double below;
  int empty_row, bad_row; /* expected */
} policy_case;

TEST(empty_rows_and_bad_data) {
  static const policy_case cases[] = {
      {0, 1, BANYAN_EMPTY_NEG_INF, 0, 0, 0},
      {-INFINITY, 1, BANYAN_EMPTY_NEG_INF, 0, 1, 0},
      {-INFINITY, NAN, BANYAN_EMPTY_NEG_INF, 0, 1, 0},
      {-INFINITY, 1, BANYAN_EMPTY_NAN, 0, 1, 0}, /* m of -inf is always empty */
      {INFINITY, 1, BANYAN_EMPTY_NEG_INF, 0, 0, 1},
      {INFINITY, 1, BANYAN_EMPTY_POS_INF, 0, 1, 0},
      {INFINITY, 1, BANYAN_EMPTY_POS_INF | BANYAN_EMPTY_NAN, 0, 1, 0},
      {NAN, 1, BANYAN_EMPTY_POS_INF, 0, 0, 1},
      {NAN, 1, BANYAN_EMPTY_NAN, 0, 1, 0},
      {-5, 1, BANYAN_EMPTY_BELOW, -5, 1, 0},
      {-4.9f, 1, BANYAN_EMPTY_BELOW, -5, 0, 0},
      {-5, 1, BANYAN_EMPTY_NEG_INF, -5, 0, 0},
      {-FLT_MAX, 1, BANYAN_EMPTY_BELOW, -FLT_MAX, 1, 0},
      {-FLT_MAX, 1, BANYAN_EMPTY_NEG_INF, 0, 0, 0},
      {NAN, 1, BANYAN_EMPTY_BELOW, -5, 0, 1},
      {3, 0, BANYAN_EMPTY_NEG_INF, 0, 1, 0},
      {NAN, 0, BANYAN_EMPTY_NEG_INF, 0, 1, 0}, /* d = 0 always means empty */
      {3, -0.0f, BANYAN_EMPTY_NEG_INF, 0, 1, 0},
      {3, -1, BANYAN_EMPTY_NEG_INF, 0, 0, 1},
      {3, NAN, BANYAN_EMPTY_NEG_INF, 0, 0, 1},
      {3, INFINITY, BANYAN_EMPTY_NEG_INF, 0, 0, 1},
      {3, 1e-45f, BANYAN_EMPTY_NEG_INF, 0, 0, 0},
      {3, FLT_MAX, BANYAN_EMPTY_NEG_INF, 0, 0, 0},
  };
  bny_box box = {3, 7, 5};
  for (int t = 0; bny_kernels_table[t] != NULL; t++) {
    for (size_t c = 0; c < LENGTH(cases) && bny_kernels_table[t]->supported(); c++) {
      for (int wire = 0; wire < (int)BNY_WIRE_COUNT; wire++) {
        const policy_case *now = &cases[c];
        bool with_sum = now->sum != 1;
        banyan_partial given = partial_of(&conventions[with_sum ? 2 : 0], BANYAN_F32);
        given.empty = now->empty;
        given.empty_below = now->below;
        const sheet in = sheet_of(&state, given, box.tokens, box.heads, box.value_dim);
        int bad_t = random_int(0, 2), bad_h = random_int(0, 6);
        for (int k = 0; k < 21; k++) {
          bool here = k / 7 == bad_t && k % 7 == bad_h;
          store_lse(&in, k / 7, k % 7, here ? (double)now->stat : 1);
          if (with_sum) store_sum(&in, k / 7, k % 7, here ? (double)now->sum : 2);
          for (int e = 0; e < 5; e++) store_value(&in, k / 7, k % 7, e, here && now->empty_row ? (double)NAN : 1);
        }
        ck_assert_ptr_null(bny_partial_check(&in.partial, &box, false));
        bny_wire_view view = message_take((bny_wire)wire, &box);
        int row = bad_t * 7 + bad_h;
        int64_t bad = bny_kernels_table[t]->encode(&box, &in.partial, 0, 0, (bny_wire)wire, &view);
        ck_assert_msg(bad == (now->bad_row ? row : -1), "case %zu: row %lld", c, (long long)bad);
        if (!now->bad_row) {
          ck_assert_msg((view.d[row] == 0) == now->empty_row, "case %zu: d %g", c, (double)view.d[row]);
          ck_assert((view.m[row] == -INFINITY) == now->empty_row);
          for (int e = 0; e < 5; e++) {
            float n = read_wire(view.n, (bny_wire)wire, 5, row, e);
            ck_assert_msg(now->empty_row ? n == 0 : n > 0, "case %zu: n %g", c, (double)n);
          }
        }
        free(view.m);
      }
    }
  }
}

/* NaN and infinities pass through. Numbers beyond the range of f16 saturate on an f16 wire. */
TEST(values_are_not_judged) {
  bny_box box = {1, 1, 20};
  for (int t = 0; bny_kernels_table[t] != NULL; t++) {
    for (int wire = 0; wire < (int)BNY_WIRE_COUNT && bny_kernels_table[t]->supported(); wire++) {
      float values[20], result[20], lse = 1.25f;
      for (int e = 0; e < 20; e++) {
        values[e] = (float[]){NAN, INFINITY, -INFINITY, 1e6f, -1e6f}[e % 5];
      }
      banyan_partial in, out;
      banyan_partial_init(&in, values, BANYAN_F32, &lse, BANYAN_F32, 1, 20);
      banyan_partial_init(&out, result, BANYAN_F32, NULL, BANYAN_F32, 1, 20);
      const float largest = wire == BNY_WIRE_E4M3 ? 1e6f / 16 : 4e3f; /* error */
      bny_wire_view view = message_take((bny_wire)wire, &box);
      ck_assert_int_eq(bny_kernels_table[t]->encode(&box, &in, 0, 0, (bny_wire)wire, &view), -1);
      bny_kernels_table[t]->merge_finish(&box, (bny_wire)wire, 1, &view, false, &out, 0, 0);
      for (int e = 0; e < 20; e += 5) {
        if (wire == BNY_WIRE_E4M3) /* e4m3 has no infinities */
          ck_assert(isnan(result[e]) && isnan(result[e + 1]) && isnan(result[e + 2]));
        else
          ck_assert(isnan(result[e]) && result[e + 1] == INFINITY && result[e + 2] == -INFINITY);
        if (wire == BNY_WIRE_F16)
          ck_assert(result[e + 3] >= 65504 && result[e + 3] <= 131072 && result[e + 4] == -result[e + 3]);
        else
          ck_assert(fabsf(result[e + 3] - 1e6f) <= largest && fabsf(result[e + 4] + 1e6f) <= largest);
      }
      free(view.m);
    }
  }
}

int main(void) {
  random_begin();
  return suite_main(suite_of("convert", 120));
}
