/* SPDX-License-Identifier: Apache-2.0
 * Encodes, merges and finishes rows of BANYAN_ORDER_EXACT on the host: see exact.h. Each instruction set compiles the
 * loops over columns. Statistics and conventions of callers go through the f32 wire, a row at a time. The
 * including file defines the operations of merge_vector.h first. */
#pragma once

#include "exact.h"
#include "merge_template.h"

enum { EXACT_COLUMNS = 512 }; /* columns of a row that are processed at a time */

static void exact_lower(int64_t *hi, int64_t *lo, int count, int meet) {
  if (meet == -1)
    memcpy(lo, hi, (size_t)count * sizeof *lo);
  else
    memset(lo, 0, (size_t)count * sizeof *lo);
  memset(hi, 0, (size_t)count * sizeof *hi);
}

/* Adds the digits of the `count` numbers x[i] scale. `below`: they begin one digit below the top of the row. */
static void exact_add(int64_t *hi, int64_t *lo, const double *x, double scale, int count, bool below) {
  if (below) {
    for (int i = 0; i < count; i++) lo[i] += bny_exact_integer(x[i] * scale);
    return;
  }
  for (int i = 0; i < count; i++) {
    double scaled = x[i] * scale, top = bny_exact_round(scaled);
    hi[i] += bny_exact_integer(top);
    lo[i] += bny_exact_integer((scaled - top) * 0x1p42);
  }
}

/* Adds x[i] 2^m to the sums of a row. `largest` > 0 is at least every |x[i]|. */
static void exact_deposit(double *row_top, int64_t *hi, int64_t *lo, double m, const double *x, double largest,
                          int count) {
  bny_exact_place place = bny_exact_at(m, largest);
  int meet = bny_exact_meet(*row_top, place.top);
  if (meet > 1) return;
  if (meet < 0) {
    exact_lower(hi, lo, count, meet);
    *row_top = place.top;
  }
  exact_add(hi, lo, x, place.scale, count, meet == 1);
}

/* Takes infinities and NaN out of x[], as flags. Returns the largest |x[i]| that is left. */
static double exact_largest(double *x, int count, uint8_t *flags) {
  uint64_t most = 0;
  for (int i = 0; i < count; i++) {
    uint64_t magnitude = bny_bits_of_double(x[i]) & 0x7fffffffffffffffu;
    most = magnitude > most ? magnitude : most;
  }
  if (most < 0x7ff0000000000000u) return bny_double_of_bits(most);
  most = 0;
  for (int i = 0; i < count; i++) {
    uint64_t magnitude = bny_bits_of_double(x[i]) & 0x7fffffffffffffffu;
    if (magnitude >= 0x7ff0000000000000u) {
      flags[i] |= magnitude > 0x7ff0000000000000u ? BNY_EXACT_NAN : x[i] > 0 ? BNY_EXACT_POS_INF : BNY_EXACT_NEG_INF;
      x[i] = magnitude = 0;
    }
    most = magnitude > most ? magnitude : most;
  }
  return bny_double_of_bits(most);
}

static void deposit_row(void *to, double m, double d, double *n, int32_t value_dim) {
  bny_exact_row *row = to;
  if (d > 0) exact_deposit(&row->top_d, &row->d_hi, &row->d_lo, m, &d, d, 1);
  double largest = exact_largest(n, value_dim, bny_exact_flags(row, value_dim));
  if (largest > 0)
    exact_deposit(&row->top_n, bny_exact_hi(row), bny_exact_lo(row, value_dim), m, n, largest, value_dim);
}

static void clear_row(void *to, size_t bytes) {
  bny_exact_row *row = to;
  memset(to, 0, bytes);
  row->top_d = row->top_n = -(double)BNY_INFINITY_F;
}

/* Adds numbers of one top to others. */
static void exact_sum(double *row_top, int64_t *hi, int64_t *lo, double top, const int64_t *other_hi,
                      const int64_t *other_lo, int count) {
  int meet = bny_exact_meet(*row_top, top);
  if (meet > 1) return;
  if (meet < 0) {
    exact_lower(hi, lo, count, meet);
    *row_top = top;
  }
  if (meet == 1) {
    for (int i = 0; i < count; i++) lo[i] += other_hi[i];
    return;
  }
  for (int i = 0; i < count; i++) hi[i] += other_hi[i];
  for (int i = 0; i < count; i++) lo[i] += other_lo[i];
}

static void add_row(void *to, const void *from, int32_t value_dim) {
  bny_exact_row *row = to, *other = (bny_exact_row *)(uintptr_t)from;
  exact_sum(&row->top_d, &row->d_hi, &row->d_lo, other->top_d, &other->d_hi, &other->d_lo, 1);
  exact_sum(&row->top_n, bny_exact_hi(row), bny_exact_lo(row, value_dim), other->top_n, bny_exact_hi(other),
            bny_exact_lo(other, value_dim), value_dim);
  uint8_t *flags = bny_exact_flags(row, value_dim), *others = bny_exact_flags(other, value_dim);
  for (int i = 0; i < value_dim; i++) flags[i] |= others[i];
}

/* ---- the wire ---------------------------------------------------------------------------------------------------- */

static void *exact_row_at(const bny_wire_view *view, int64_t index, size_t row_bytes) {
  return (char *)view->n + (size_t)index * row_bytes;
}

/* Copies rows that attention has summed. The first NaN is a bad row. */
static int64_t exact_copy(const bny_box *box, const banyan_partial *in, int32_t token0, int32_t head0,
                          const bny_wire_view *to, size_t row_bytes) {
  for (int32_t t = 0; t < box->tokens; t++) {
    for (int32_t h = 0; h < box->heads; h++) {
      int64_t from = (token0 + t) * in->stats_token_stride + head0 + h, at = t * to->token_stride + h;
      to->m[at] = ((const float *)in->lse)[from];
      to->d[at] = ((const float *)in->sum)[from];
      if (to->m[at] != to->m[at]) return (int64_t)t * box->heads + h;
      memcpy(exact_row_at(to, at, row_bytes), (const char *)in->values + (size_t)from * row_bytes, row_bytes);
    }
  }
  return -1;
}

/* Reads values that are normalised, whose products with d f64 holds. */
static void exact_read_normalised(const banyan_partial *in, int32_t token, int32_t head, int32_t heads, int32_t columns,
                                  float *tile) {
  float m[BLOCK_ROWS], d[BLOCK_ROWS], zeros[BLOCK_ROWS] = {0}, ones[BLOCK_ROWS];
  for (int h = 0; h < heads; h++) ones[h] = 1;
  banyan_partial part = *in;
  part.values = (char *)in->values + (token * in->values_token_stride + head * in->values_head_stride) *
                                         (int64_t)element_bytes(in->values_dtype);
  if (in->values_scale) part.values_scale = in->values_scale + head * in->values_scale_stride;
  part.values_kind = BANYAN_VALUES_NUMERATOR, part.stats_kind = BANYAN_STATS_MAX_SUM, part.base = BANYAN_BASE_2;
  part.stats_dtype = BANYAN_F32, part.empty = BANYAN_EMPTY_NEG_INF;
  part.lse = zeros, part.sum = ones;
  part.stats_token_stride = 0, part.stats_head_stride = 1;
  bny_wire_view view = {.m = m, .d = d, .n = tile, .token_stride = heads};
  encode(&(bny_box){1, heads, columns}, &part, 0, 0, BNY_WIRE_F32, &view);
}

/* Encodes columns [first, first + columns) of `heads` rows of a token as f32, or normalised values and d as f64. With
 * `deposits` it then adds them to the sums. `largest` has the largest value of each row. If a row has more columns than
 * a tile, a first pass finds it. */
static int64_t exact_encode_tile(const banyan_partial *in, int32_t token, int32_t head, int32_t heads, int32_t first,
                                 int32_t columns, int32_t value_dim, const bny_wire_view *to, double *largest,
                                 bool deposits) {
  float m[BLOCK_ROWS], d[BLOCK_ROWS], tile[BLOCK_ROWS * EXACT_COLUMNS];
  double n[EXACT_COLUMNS];
  const size_t row_bytes = bny_wire_row_bytes(BNY_WIRE_EXACT, value_dim);
  banyan_partial part = *in;
  if (first > 0) part.values = (char *)in->values + (size_t)first * element_bytes(in->values_dtype);
  bny_wire_view view = {.m = m, .d = d, .n = tile, .token_stride = heads};
  bool is_normalised = in->values_kind == BANYAN_VALUES_NORMALISED;
  int64_t bad = encode(&(bny_box){1, heads, is_normalised ? 0 : columns}, &part, token, head, BNY_WIRE_F32, &view);
  if (is_normalised && bad < 0) exact_read_normalised(&part, token, head, heads, columns, tile);
  for (int h = 0; h < heads && bad < 0; h++) {
    bny_exact_row *row = exact_row_at(to, h, row_bytes);
    double factor = is_normalised ? (double)d[h] : 1;
    for (int i = 0; i < columns; i++) n[i] = (double)tile[h * columns + i] * factor;
    double most = d[h] > 0 ? exact_largest(n, columns, bny_exact_flags(row, value_dim) + first) : 0;
    largest[h] = most > largest[h] ? most : largest[h];
    if (!deposits) continue;
    if (largest[h] > 0)
      exact_deposit(&row->top_n, bny_exact_hi(row) + first, bny_exact_lo(row, value_dim) + first, (double)m[h], n,
                    largest[h], columns);
    if (first > 0) continue;
    double sum = (double)d[h];
    if (d[h] > 0) exact_deposit(&row->top_d, &row->d_hi, &row->d_lo, (double)m[h], &sum, sum, 1);
    to->m[h] = d[h] > 0 ? 0 : -BNY_INFINITY_F;
    to->d[h] = d[h] > 0 ? 1 : 0;
  }
  return bad;
}

static int64_t exact_encode(const bny_box *box, const banyan_partial *in, int32_t token0, int32_t head0,
                            const bny_wire_view *dst) {
  const size_t row_bytes = bny_wire_row_bytes(BNY_WIRE_EXACT, box->value_dim);
  const int32_t value_dim = box->value_dim;
  if (in->values_dtype == BNY_EXACT_ROWS) return exact_copy(box, in, token0, head0, dst, row_bytes);
  for (int32_t t = 0; t < box->tokens; t++) {
    for (int32_t h = 0, heads; h < box->heads; h += heads) {
      heads = box->heads - h < BLOCK_ROWS ? box->heads - h : BLOCK_ROWS;
      double largest[BLOCK_ROWS] = {0};
      int64_t at = t * dst->token_stride + h, bad = -1;
      bny_wire_view to = {dst->m + at, dst->d + at, exact_row_at(dst, at, row_bytes), heads, false, NULL};
      for (int r = 0; r < heads; r++) clear_row(exact_row_at(&to, r, row_bytes), row_bytes);
      for (int pass = value_dim > EXACT_COLUMNS ? 0 : 1; pass < 2 && bad < 0; pass++) {
        for (int32_t first = 0; bad < 0 && (first < value_dim || first == 0); first += EXACT_COLUMNS) {
          int32_t columns = value_dim - first < EXACT_COLUMNS ? value_dim - first : EXACT_COLUMNS;
          bad = exact_encode_tile(in, token0 + t, head0 + h, heads, first, columns, value_dim, &to, largest, pass == 1);
        }
      }
      if (bad >= 0) return (int64_t)t * box->heads + h + bad;
    }
  }
  return -1;
}

static bool exact_merge_row(int count, const bny_wire_view *sources, int32_t token, int32_t head, int32_t value_dim,
                            size_t row_bytes, void *to) {
  bool empty = true;
  for (int s = 0; s < count; s++) {
    int64_t from = token * sources[s].token_stride + head;
    if (sources[s].d[from] == 0) continue;
    const void *row = exact_row_at(&sources[s], from, row_bytes);
    if (empty)
      memcpy(to, row, row_bytes);
    else
      add_row(to, row, value_dim);
    empty = false;
  }
  if (empty) clear_row(to, row_bytes);
  return empty;
}

static void exact_merge(const bny_box *box, int count, const bny_wire_view *sources, const bny_wire_view *dst) {
  const size_t row_bytes = bny_wire_row_bytes(BNY_WIRE_EXACT, box->value_dim);
  for (int32_t t = 0; t < box->tokens; t++) {
    for (int32_t h = 0; h < box->heads; h++) {
      int64_t at = t * dst->token_stride + h;
      bool empty = exact_merge_row(count, sources, t, h, box->value_dim, row_bytes, exact_row_at(dst, at, row_bytes));
      dst->m[at] = empty ? -BNY_INFINITY_F : 0;
      dst->d[at] = empty ? 0 : 1;
    }
  }
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

static float exact_special(uint8_t flags, float value) {
  if (flags == 0) return value;
  return flags == BNY_EXACT_POS_INF ? BNY_INFINITY_F : flags == BNY_EXACT_NEG_INF ? -BNY_INFINITY_F : NAN;
}

/* Adds columns [first, first + columns) of a row's sources. Tops are those of the whole row. */
typedef struct exact_tile {
  double top;
  int64_t hi[EXACT_COLUMNS], lo[EXACT_COLUMNS];
  uint8_t flags[EXACT_COLUMNS];
} exact_tile;

static void exact_sum_tile(int count, bny_exact_row *const *rows, int32_t value_dim, int32_t first, int32_t columns,
                           exact_tile *tile) {
  tile->top = -(double)BNY_INFINITY_F;
  memset(tile->flags, 0, (size_t)columns);
  for (int s = 0; s < count; s++) {
    const uint8_t *flags = bny_exact_flags(rows[s], value_dim) + first;
    exact_sum(&tile->top, tile->hi, tile->lo, rows[s]->top_n, bny_exact_hi(rows[s]) + first,
              bny_exact_lo(rows[s], value_dim) + first, columns);
    for (int i = 0; i < columns; i++) tile->flags[i] |= flags[i];
  }
}

/* Writes the sum of a row's sources that are not empty. Normalised values are divided in double and rounded to f32
 * once: their row has m = 0 and d = 1. Numerators are relative to the m that goes out. */
static int64_t exact_finish_row(int count, bny_exact_row *const *rows, int32_t value_dim, const banyan_partial *out,
                                int32_t token, int32_t head) {
  const bool normalised = out->values_kind == BANYAN_VALUES_NORMALISED;
  double top = -(double)BNY_INFINITY_F;
  int64_t hi = 0, lo = 0;
  for (int s = 0; s < count; s++) exact_sum(&top, &hi, &lo, rows[s]->top_d, &rows[s]->d_hi, &rows[s]->d_lo, 1);
  double sum = count ? bny_exact_value(hi, lo) : 0, whole = count ? bny_exact_whole(top, sum) : 0;
  float m = count ? (float)bny_exact_m(top, whole) : -BNY_INFINITY_F;
  float d = (float)(sum * bny_exact_power(-whole)), value_m = normalised && count ? 0 : m;
  float value_d = normalised && count ? 1 : d, n[EXACT_COLUMNS];
  banyan_partial part = *out;
  if (normalised) part.lse = part.sum = NULL;
  for (int32_t first = 0; first < value_dim; first += EXACT_COLUMNS) {
    int32_t columns = value_dim - first < EXACT_COLUMNS ? value_dim - first : EXACT_COLUMNS;
    exact_tile tile;
    exact_sum_tile(count, rows, value_dim, first, columns, &tile);
    double step = BNY_EXACT_BITS * (tile.top - top), factor = 0;
    if (step > -1000) factor = normalised ? bny_exact_power(step) / sum : bny_exact_power(step - whole);
    for (int i = 0; i < columns; i++)
      n[i] = exact_special(tile.flags[i], factor == 0 ? 0 : (float)(bny_exact_value(tile.hi[i], tile.lo[i]) * factor));
    part.values = (char *)out->values + (size_t)first * element_bytes(out->values_dtype);
    bny_wire_view view = {&value_m, &value_d, n, 1, false, NULL};
    int64_t lost = merge_finish(&(bny_box){1, 1, columns}, BNY_WIRE_F32, 1, &view, false, &part, token, head);
    if (lost >= 0) return lost;
  }
  if (!normalised && value_dim > 0) return -1;
  bny_wire_view view = {&m, &d, NULL, 1, false, NULL};
  return merge_finish(&(bny_box){1, 1, 0}, BNY_WIRE_F32, 1, &view, false, out, token, head);
}

static int64_t exact_finish(const bny_box *box, int count, const bny_wire_view *sources, const banyan_partial *out,
                            int32_t token0, int32_t head0) {
  const size_t row_bytes = bny_wire_row_bytes(BNY_WIRE_EXACT, box->value_dim);
  int64_t unfit = -1;
  for (int32_t t = 0; t < box->tokens; t++) {
    for (int32_t h = 0; h < box->heads; h++) {
      bny_exact_row *rows[BNY_MERGE_SOURCES_MAX];
      int full = 0;
      for (int s = 0; s < count; s++) {
        int64_t at = t * sources[s].token_stride + h;
        if (sources[s].d[at] != 0) rows[full++] = exact_row_at(&sources[s], at, row_bytes);
      }
      int64_t lost = exact_finish_row(full, rows, box->value_dim, out, token0 + t, head0 + h);
      if (lost >= 0 && unfit < 0) unfit = (int64_t)t * box->heads + h;
    }
  }
  return unfit;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static void exact_sum_encode(const void *from, banyan_dtype dtype, int elements, bny_exact_number *to) {
  float tile[EXACT_COLUMNS];
  for (int first = 0; first < elements; first += EXACT_COLUMNS) {
    int columns = elements - first < EXACT_COLUMNS ? elements - first : EXACT_COLUMNS;
    convert_to_wire((const char *)from + (size_t)first * element_bytes(dtype), dtype, 1.0f, columns, tile, BANYAN_F32);
    for (int i = 0; i < columns; i++) {
      double x = (double)tile[i], top = -(double)BNY_INFINITY_F;
      uint8_t flags = 0;
      bny_exact_number made = {0};
      double largest = exact_largest(&x, 1, &flags);
      if (largest > 0) exact_deposit(&top, &made.hi, &made.lo, 0, &x, largest, 1);
      made.top = (float)top, made.flags = flags;
      to[first + i] = made;
    }
  }
}

static bny_exact_number exact_sum_of(int count, const void *const *sources, int column) {
  double top = -(double)BNY_INFINITY_F;
  bny_exact_number total = {0};
  for (int s = 0; s < count; s++) {
    const bny_exact_number *each = (const bny_exact_number *)sources[s] + column;
    exact_sum(&top, &total.hi, &total.lo, (double)each->top, &each->hi, &each->lo, 1);
    total.flags |= each->flags;
  }
  total.top = (float)top;
  return total;
}

/* The result is rounded to f32, and then to its type. */
static float exact_sum_value(const bny_exact_number *of) {
  double unit = bny_exact_power(BNY_EXACT_BITS * ((double)of->top - 1)); /* 0 for a top of -inf */
  return exact_special((uint8_t)of->flags, (float)(bny_exact_value(of->hi, of->lo) * unit));
}

static void exact_sum_all(int count, const void *const *sources, int elements, bool is_wire, void *to,
                          banyan_dtype dtype) {
  float tile[EXACT_COLUMNS];
  for (int first = 0; first < elements; first += EXACT_COLUMNS) {
    int columns = elements - first < EXACT_COLUMNS ? elements - first : EXACT_COLUMNS;
    for (int i = 0; i < columns; i++) {
      bny_exact_number total = exact_sum_of(count, sources, first + i);
      if (is_wire)
        ((bny_exact_number *)to)[first + i] = total;
      else
        tile[i] = exact_sum_value(&total);
    }
    if (!is_wire) convert_to_caller(tile, columns, (char *)to + (size_t)first * element_bytes(dtype), dtype);
  }
}
