/* SPDX-License-Identifier: Apache-2.0
 * Merges of every kernel table, compared bit by bit with the formula of op.h and with one another, over random shapes,
 * layouts, wires and numbers of sources. tests/api/test_convert.c compares them with double precision. */
#include "banyan.h"
#include "op.h"
#include "tests/support/random.h"

enum { ROUNDS = 250, VALUES_MAX = 1 << 16 };

static void *take(size_t bytes) {
  void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
  ck_assert(memory != NULL);
  memset(memory, 0xA5, (bytes + 64) / 64 * 64);
  return memory;
}

/* ---- inputs of a merge: sources in wire form, made from normalised values and lse -------------------------------- */

typedef struct scenario {
  bny_box box;
  bny_wire wire;
  int count;
  bool round_nodes;
  int32_t source_heads; /* heads of the message that contains the box */
  bny_wire_layout layout;
  char *messages[BNY_MERGE_SOURCES_MAX];
  bny_wire_view views[BNY_MERGE_SOURCES_MAX];
  float *values[BNY_MERGE_SOURCES_MAX];
} scenario;

typedef struct scenario_spread {
  double lse_low, lse_high;
  double empty_share;
  double value_scale;
} scenario_spread;

static int64_t scenario_rows(const scenario *s) { return (int64_t)s->box.tokens * s->box.heads; }

static bny_wire_view view_of(char *message, const scenario *s, int32_t head0) {
  return (bny_wire_view){.m = (float *)(message + s->layout.m) + head0,
                         .d = (float *)(message + s->layout.d) + head0,
                         .n = message + s->layout.n + (size_t)head0 * bny_wire_row_bytes(s->wire, s->box.value_dim),
                         .token_stride = s->source_heads};
}

static void scenario_fill(scenario *s, const scenario_spread *spread) {
  const bny_kernels *portable = bny_kernels_find("portable");
  const int64_t rows = scenario_rows(s);
  const int dim = s->box.value_dim;
  s->layout = bny_wire_layout_make(s->wire, (int64_t)s->box.tokens * s->source_heads, dim);
  for (int k = 0; k < s->count; k++) {
    s->values[k] = take((size_t)rows * (size_t)dim * sizeof(float));
    float *lse = take((size_t)rows * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
      lse[r] =
          random_real(0, 1) < spread->empty_share ? -INFINITY : (float)random_real(spread->lse_low, spread->lse_high);
      for (int i = 0; i < dim; i++)
        s->values[k][r * dim + i] = (float)random_real(-spread->value_scale, spread->value_scale);
    }
    banyan_partial partial;
    banyan_partial_init(&partial, s->values[k], BANYAN_F32, lse, BANYAN_F32, s->box.heads, dim);
    ck_assert_ptr_null(bny_partial_check(&partial, &s->box, false));
    s->messages[k] = take(s->layout.bytes);
    s->views[k] = view_of(s->messages[k], s, s->source_heads - s->box.heads);
    ck_assert_int_eq(portable->encode(&s->box, &partial, 0, 0, s->wire, &s->views[k]), -1);
    free(lse);
  }
}

static scenario scenario_make(int count, bny_wire wire, const scenario_spread *spread) {
  static const int dims[] = {0, 1, 3, 8, 15, 16, 17, 31, 64, 80, 128, 130, 576, 1100};
  scenario s = {.wire = wire, .count = count, .round_nodes = random_int(0, 1) != 0};
  s.box.value_dim = dims[random_int(0, (int)(sizeof dims / sizeof dims[0]) - 1)];
  s.box.tokens = random_int(1, 4);
  s.box.heads = random_int(1, 21);
  while (scenario_rows(&s) * s.box.value_dim * count > VALUES_MAX && s.box.heads > 1)
    s.box.heads = (s.box.heads + 1) / 2;
  s.source_heads = s.box.heads + (random_int(0, 2) == 0 ? random_int(1, 3) : 0);
  scenario_fill(&s, spread);
  return s;
}

static void scenario_free(scenario *s) {
  for (int k = 0; k < s->count; k++) {
    free(s->messages[k]);
    free(s->values[k]);
  }
}

static const scenario_spread ordinary = {.lse_low = -8, .lse_high = 8, .empty_share = 0.15, .value_scale = 2.0};

/* ---- finished results -------------------------------------------------------------------------------------------- */

typedef struct finished {
  float *values, *lse;
} finished;

static finished finish_of(const bny_kernels *kernels, const scenario *s) {
  finished f = {take((size_t)(scenario_rows(s) * s->box.value_dim) * sizeof(float)),
                take((size_t)scenario_rows(s) * sizeof(float))};
  banyan_partial out;
  banyan_partial_init(&out, f.values, BANYAN_F32, f.lse, BANYAN_F32, s->box.heads, s->box.value_dim);
  ck_assert_ptr_null(bny_partial_check(&out, &s->box, true));
  kernels->merge_finish(&s->box, s->wire, s->count, s->views, s->round_nodes, &out, 0, 0);
  return f;
}

static void finished_free(finished *f) {
  free(f->values);
  free(f->lse);
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static char *merged_by(const bny_kernels *kernels, const scenario *s) {
  char *message = take(s->layout.bytes);
  bny_wire_view dst = view_of(message, s, 0);
  kernels->merge(&s->box, s->wire, s->count, s->views, s->round_nodes, &dst);
  return message;
}

TEST(all_tables_give_the_same_bits) {
  const bny_kernels *portable = bny_kernels_find("portable");
  static const scenario_spread wide = {.lse_low = -200, .lse_high = 60, .empty_share = 0.2, .value_scale = 1e5};
  for (int i = 0; i < ROUNDS; i++) {
    bny_wire wire = (bny_wire)(i % (int)BNY_WIRE_COUNT);
    scenario s = scenario_make(i < 64 ? i + 1 : random_int(1, 10), wire, i % 2 == 0 ? &ordinary : &wide);
    finished expected = finish_of(portable, &s);
    char *expected_message = merged_by(portable, &s);
    EACH_KERNELS(kernels) {
      finished f = finish_of(kernels, &s);
      size_t rows = (size_t)scenario_rows(&s), bytes = rows * (size_t)s.box.value_dim * sizeof(float);
      ck_assert_msg(memcmp(f.values, expected.values, bytes) == 0, "%s: values, round %d", kernels->name, i);
      ck_assert_msg(memcmp(f.lse, expected.lse, rows * sizeof(float)) == 0, "%s: lse, round %d", kernels->name, i);
      char *message = merged_by(kernels, &s);
      ck_assert_msg(memcmp(message, expected_message, s.layout.bytes) == 0, "%s: merge, round %d", kernels->name, i);
      free(message);
      finished_free(&f);
    }
    finished_free(&expected);
    free(expected_message);
    scenario_free(&s);
  }
}

/* Sums of odd lengths, some with NaN and infinities, as messages and as results. */
TEST(all_tables_sum_to_the_same_bits) {
  enum { MOST = 130, SOURCES = 9, BYTES = 4 * MOST + 64 };
  const bny_kernels *portable = bny_kernels_find("portable");
  for (int i = 0; i < 2 * ROUNDS; i++) {
    static const banyan_dtype types[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};
    bny_wire wire = (bny_wire)(i % (int)BNY_WIRE_COUNT);
    banyan_dtype dtype = types[random_int(0, 2)];
    int elements = random_int(1, MOST), count = random_int(1, SOURCES);
    bool round = random_int(0, 1) == 1, specials = random_int(0, 3) == 0;
    unsigned char first[SOURCES + 2][BYTES] = {{0}};
    for (int t = -1; t < 0 || bny_kernels_table[t]; t++) {
      const bny_kernels *kernels = t < 0 ? portable : bny_kernels_table[t];
      unsigned char made[SOURCES + 2][BYTES] = {{0}};
      const void *sources[SOURCES];
      for (int s = 0; s < count; s++) {
        float in[MOST];
        for (int e = 0; e < elements; e++) {
          uint32_t mixed = (uint32_t)(i * 131 + s * 17 + e) * 2654435761u;
          in[e] = ldexpf((float)(mixed >> 8) * 0x1p-23f - 1.0f, (int)(mixed % 40) - 20);
          if (specials && mixed % 29 == 0) in[e] = mixed % 3 == 0 ? NAN : mixed % 3 == 1 ? INFINITY : -INFINITY;
        }
        if (kernels->supported()) kernels->sum_encode(in, BANYAN_F32, elements, wire, made[s]);
        sources[s] = made[s];
      }
      if (!kernels->supported()) continue;
      kernels->sum(count, sources, elements, wire, round, true, made[count], bny_wire_formats[wire].dtype);
      kernels->sum(count, sources, elements, wire, round, false, made[count + 1], dtype);
      if (t < 0) memcpy(first, made, sizeof first);
      ck_assert_msg(memcmp(first, made, sizeof first) == 0, "%s: sum of %d values by %s, round %d", kernels->name,
                    elements, bny_wire_formats[wire].name, i);
    }
  }
}

/* The formula of op.h, applied naively: one element and one pair at a time, with ldexpf and without tables. */
typedef struct element {
  float m, d, n;
} element;

static float scale_by(float x, float s) { return s >= -126.0f ? x * ldexpf(1.0f, (int)s) : 0.0f * x; }

static element merge_pair(element a, element b) {
  element merged = {.m = fmaxf(a.m, b.m)};
  float sa = a.m == -INFINITY ? -1000.0f : a.m - merged.m, sb = b.m == -INFINITY ? -1000.0f : b.m - merged.m;
  volatile float d1 = scale_by(a.d, sa), d2 = scale_by(b.d, sb), n1 = scale_by(a.n, sa), n2 = scale_by(b.n, sb);
  merged.d = d1 + d2;
  merged.n = n1 + n2;
  return merged;
}

TEST(f32_merges_are_the_documented_tree) {
  static const scenario_spread wide = {.lse_low = -120, .lse_high = 20, .empty_share = 0.2, .value_scale = 3};
  for (int i = 0; i < 64; i++) {
    scenario s = scenario_make(i + 1, BNY_WIRE_F32, i % 2 == 0 ? &ordinary : &wide);
    char *message = merged_by(bny_kernels_find(NULL), &s);
    bny_wire_view got = view_of(message, &s, 0);
    for (int t = 0; t < s.box.tokens; t++) {
      for (int h = 0; h < s.box.heads; h++) {
        int64_t row = t * got.token_stride + h;
        for (int e = 0; e < s.box.value_dim; e++) {
          element nodes[BNY_MERGE_SOURCES_MAX];
          for (int k = 0; k < s.count; k++) {
            int64_t from = t * s.views[k].token_stride + h;
            nodes[k] = (element){s.views[k].m[from], s.views[k].d[from],
                                 ((const float *)s.views[k].n)[from * s.box.value_dim + e]};
          }
          for (int width = s.count; width > 1; width = (width + 1) / 2) {
            for (int p = 0; p < width / 2; p++) nodes[p] = merge_pair(nodes[2 * p], nodes[2 * p + 1]);
            if (width % 2 == 1) nodes[width / 2] = nodes[width - 1];
          }
          ck_assert(got.m[row] == nodes[0].m);
          ck_assert(got.d[row] == nodes[0].d);
          ck_assert(((const float *)got.n)[row * s.box.value_dim + e] == nodes[0].n);
        }
      }
    }
    free(message);
    scenario_free(&s);
  }
}

/* Merging aligned groups first gives the same bits as merging all at once, finished and on the wire. */
TEST(grouping_does_not_change_canonical_bits) {
  const bny_kernels *kernels = bny_kernels_find(NULL);
  for (int i = 0; i < ROUNDS / 2; i++) {
    scenario s = scenario_make(random_int(2, 40), (bny_wire)(i % (int)BNY_WIRE_COUNT), &ordinary);
    s.round_nodes = true;
    int group = 2 << random_int(0, 3);
    finished whole = finish_of(kernels, &s);
    char *whole_message = merged_by(kernels, &s);
    scenario upper = s;
    upper.count = 0;
    for (int first = 0; first < s.count; first += group) {
      scenario lower = s;
      lower.count = s.count - first < group ? s.count - first : group;
      memcpy(lower.views, s.views + first, sizeof(bny_wire_view) * (size_t)lower.count);
      upper.messages[upper.count] = merged_by(kernels, &lower);
      upper.views[upper.count] = view_of(upper.messages[upper.count], &s, 0);
      upper.count++;
    }
    finished parts = finish_of(kernels, &upper);
    char *parts_message = merged_by(kernels, &upper);
    size_t rows = (size_t)scenario_rows(&s);
    ck_assert_int_eq(memcmp(whole.values, parts.values, rows * (size_t)s.box.value_dim * sizeof(float)), 0);
    ck_assert_int_eq(memcmp(whole.lse, parts.lse, rows * sizeof(float)), 0);
    ck_assert_int_eq(memcmp(whole_message, parts_message, s.layout.bytes), 0);
    for (int k = 0; k < upper.count; k++) free(upper.messages[k]);
    finished_free(&whole);
    finished_free(&parts);
    free(whole_message);
    free(parts_message);
    scenario_free(&s);
  }
}

/* A merge with empty rows changes only the normalisation of lossy wires, which sources already have. */
TEST(empty_rows_are_the_identity) {
  const bny_kernels *kernels = bny_kernels_find(NULL);
  static const scenario_spread full = {.lse_low = -8, .lse_high = 8, .value_scale = 2};
  for (int i = 0; i < 60; i++) {
    scenario s = scenario_make(2, (bny_wire)(i % (int)BNY_WIRE_COUNT), &full);
    const int64_t rows = (int64_t)s.box.tokens * s.source_heads;
    int empty = random_int(0, 1);
    memset(s.messages[empty], 0, s.layout.bytes);
    for (int64_t r = 0; r < rows; r++) ((float *)(s.messages[empty] + s.layout.m))[r] = -INFINITY;
    scenario alone = s;
    alone.count = 1;
    alone.views[0] = s.views[1 - empty];
    char *merged = merged_by(kernels, &s), *same = merged_by(kernels, &alone);
    ck_assert_int_eq(memcmp(merged, same, s.layout.n), 0);
    free(merged);
    free(same);
    finished both = finish_of(kernels, &s), one = finish_of(kernels, &alone);
    for (int64_t e = 0; e < scenario_rows(&s) * s.box.value_dim; e++) {
      ck_assert(both.values[e] == one.values[e]); /* -0 becomes +0 */
    }
    finished_free(&both);
    finished_free(&one);
    scenario_free(&s);
  }
}

/* ---- wires ------------------------------------------------------------------------------------------------------- */

TEST(wire_error_is_within_its_bound) {
  const bny_kernels *kernels = bny_kernels_find(NULL);
  static const scenario_spread full = {.lse_low = -3, .lse_high = 3, .value_scale = 1};
  for (int wire = 0; wire < (int)BNY_WIRE_COUNT; wire++) {
    double worst = 0;
    for (int i = 0; i < 100; i++) {
      scenario s = scenario_make(1, (bny_wire)wire, &full);
      finished f = finish_of(kernels, &s);
      const int dim = s.box.value_dim;
      for (int64_t r = 0; r < scenario_rows(&s) && dim > 0; r++) {
        double error = 0, norm = 0;
        for (int e = 0; e < dim; e++) {
          double value = (double)s.values[0][r * dim + e], delta = (double)f.values[r * dim + e] - value;
          error += delta * delta;
          norm += value * value;
        }
        worst = fmax(worst, sqrt(error / norm));
      }
      finished_free(&f);
      scenario_free(&s);
    }
    double bound = bny_wire_formats[wire].error_bound;
    printf("wire %s: worst row error %.3g, bound %.3g\n", bny_wire_formats[wire].name, worst, bound);
    ck_assert(worst <= bound * (1 + 1e-4) + 2e-7);
    ck_assert(worst >= bound * 0.2); /* the bound is tight */
    ck_assert_int_eq((int)bny_wire_of_dtype(bny_wire_formats[wire].dtype), wire);
  }
}

/* After any merge, rows of lossy wires keep d in [0.5, 1], so values that fit the type never overflow. */
TEST(lossy_rows_stay_in_range) {
  static const scenario_spread large = {.lse_low = -1, .lse_high = 1, .value_scale = 65000};
  for (int i = 0; i < 60; i++) {
    scenario s = scenario_make(random_int(2, 64), (bny_wire)(i % ((int)BNY_WIRE_COUNT - 1) + 1), &large);
    char *message = merged_by(bny_kernels_find(NULL), &s);
    bny_wire_view got = view_of(message, &s, 0);
    for (int t = 0; t < s.box.tokens; t++) {
      for (int h = 0; h < s.box.heads; h++) {
        int64_t row = t * got.token_stride + h;
        ck_assert(got.d[row] >= 0.5f && got.d[row] <= 1.0f);
        ck_assert(got.m[row] == floorf(got.m[row]));
        for (int e = 0; e < s.box.value_dim && s.wire == BNY_WIRE_F16; e++)
          ck_assert((((const uint16_t *)got.n)[row * s.box.value_dim + e] & 0x7fffu) < 0x7c00u);
      }
    }
    free(message);
    scenario_free(&s);
  }
}

TEST(layout_keeps_parts_apart_and_aligned) {
  for (int wire = 0; wire < (int)BNY_WIRE_COUNT; wire++) {
    bny_wire_layout layout = bny_wire_layout_make((bny_wire)wire, 33, 130);
    ck_assert_uint_eq(layout.m, 0);
    ck_assert_uint_ge(layout.d, 33 * 4);
    ck_assert_uint_ge(layout.n, layout.d + 33 * 4);
    ck_assert_uint_ge(layout.bytes, layout.n + 33 * bny_wire_row_bytes((bny_wire)wire, 130));
    ck_assert_uint_eq((layout.n | layout.bytes) % 64, 0);
  }
  ck_assert_uint_eq(bny_wire_layout_make(BNY_WIRE_F32, 0, 128).bytes, 0);
}

TEST(tables_are_found_by_name) {
  ck_assert_ptr_nonnull(bny_kernels_find(NULL));
  ck_assert_str_eq(bny_kernels_find("portable")->name, "portable");
  ck_assert_ptr_null(bny_kernels_find("no such table"));
  for (int t = 0; bny_kernels_table[t] != NULL; t++) {
    bool found = bny_kernels_find(bny_kernels_table[t]->name) == bny_kernels_table[t];
    ck_assert(found == bny_kernels_table[t]->supported());
    printf("table %s: %s\n", bny_kernels_table[t]->name, found ? "tested" : "not supported here");
  }
}

int main(void) {
  random_begin();
  return suite_main(suite_of("kernels", 120));
}
