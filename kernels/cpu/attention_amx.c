/* SPDX-License-Identifier: Apache-2.0
 * These attention kernels multiply 16 keys at a time with up to 16 rows of queries. They need AMX: Sapphire Rapids or a
 * later processor.
 *
 * AMX multiplies bf16 and adds up in f32. Keys and values are bf16, or E4M3 and int8, which become bf16 exactly. An f16
 * is cut into two bf16 that add up to it, and queries and weights are cut into one to three. All parts are multiplied,
 * so products are those of f32. The smallest parts are added first, because their sums are nearly exact. AMX counts
 * inputs and sums below 2^-126 as 0.
 *
 * A number that is not finite has no meaningful parts. The vector kernels therefore compute rows again that have no
 * finite result. They also compute the shapes and types that AMX does not support.
 *
 * A tile has 32 keys. For logits, an A register has 32 columns of 16 keys in memory order, a B register has 32 columns
 * of all rows of queries, and the product is [key][row]. For values, A has the weights of 32 keys by row, and B has
 * pairs of keys by column, which is how AMX reads B. Key i is paired with key i + 16. The order of pairs lets weights
 * be transposed in few instructions. */
#include "attention_amx_work.h"
#include "detect.h"

/* ---- logits and weights ------------------------------------------------------------------------------------------ */

/* Converts a key's line to one or two rows of matrices: f16 has a lower and an upper part, and bytes have two steps. */
INLINE void convert_key(banyan_dtype form, const char *from, uint16_t *first, uint16_t *second) {
  __m512i a, b, line = _mm512_loadu_si512(from);
  if (is_cut(form)) {
    const __m256i *halves = (const __m256i *)(const void *)from;
    cut_halves(_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1), &b, &a);
  } else if (is_bytes(form)) {
    __m512i low, high;
    bf16_of_bytes(line, type_of(form), &low, &high);
    a = _mm512_unpacklo_epi8(low, high);
    b = _mm512_unpackhi_epi8(low, high);
  } else {
    _mm512_store_si512(first, line);
    return;
  }
  _mm512_store_si512(first, a);
  _mm512_store_si512(second, b);
}

/* Converts a line of each key of a tile to matrices, with zeros beyond the keys. */
INLINE void convert_line(banyan_dtype form, const char *line, int64_t stride, int32_t count,
                         uint16_t (*to)[KEYS][WORDS]) {
  UNROLL for (int32_t i = 0; i < KEYS; i++) {
    if (i < count) {
      convert_key(form, line + i * stride, to[0][i], to[1][i]);
    } else {
      memset(to[0][i], 0, ROW_BYTES);
      memset(to[1][i], 0, ROW_BYTES);
    }
  }
}

/* Adds products of 32 keys and a part of a step of queries to the logits. */
INLINE void multiply_step(const uint16_t (*q)[WORDS], const char *row, int64_t stride) {
  _tile_loadd(T_QUERIES, q, ROW_BYTES);
  _tile_loadd(T_KEYS, row, stride);
  _tile_dpbf16ps(T_LOGITS_0, T_KEYS, T_QUERIES);
  _tile_loadd(T_KEYS, row + HALF * stride, stride);
  _tile_dpbf16ps(T_LOGITS_1, T_KEYS, T_QUERIES);
}

/* Makes one pass over the matrices of a tile. The first pass converts each line while the previous one is multiplied.
 * If it is the only pass, two lines of matrices take turns. */
INLINE void multiply_matrices(banyan_dtype form, const uint16_t (*q)[HALF][WORDS], int32_t lines, int32_t plane,
                              bool is_first, bool is_only, const char *row, int64_t stride, int32_t count,
                              matrix_work *work) {
  int32_t mask = is_only ? 1 : -1;
  int32_t each = is_bytes(form) ? 2 : 1;
  for (int32_t line = 0; line <= lines; line++) {
    if (is_first && line < lines) convert_line(form, row + line * ROW_BYTES, stride, count, work->k[line & mask]);
    FENCE();
    for (int32_t i = 0; line > 0 && i < each; i++)
      multiply_step(q[(line - 1) * each + i], (const char *)work->k[(line - 1) & mask][plane + i], ROW_BYTES);
    FENCE();
  }
}

/* Computes the logits [key][row] of a tile whose first key is at `row`. Full tiles of bf16 are multiplied in place. */
INLINE void multiply_keys(const bny_attention_task *task, banyan_dtype form, const char *row, int64_t stride,
                          int32_t count, int32_t rows, matrix_work *work) {
  int32_t steps = task->head_dim / WORDS, parts = parts_of(task->q_dtype), logit_bytes = rows * (int32_t)sizeof(float);
  int32_t lines = is_bytes(form) ? steps / 2 : steps, planes = is_cut(form) ? 2 : 1;
  bool is_direct = type_of(form) == BANYAN_BF16 && count == KEYS;
  FENCE();
  _tile_zero(T_LOGITS_0);
  _tile_zero(T_LOGITS_1);
  for (int32_t part = 0; part < parts; part++) {
    const uint16_t(*q)[HALF][WORDS] = work->q + part * steps;
    for (int32_t step = 0; is_direct && step < steps; step++) multiply_step(q[step], row + step * ROW_BYTES, stride);
    for (int32_t plane = 0; !is_direct && plane < planes; plane++)
      multiply_matrices(form, q, lines, plane, part + plane == 0, parts * planes == 1, row, stride, count, work);
  }
  _tile_stored(T_LOGITS_0, work->logits, logit_bytes);
  _tile_stored(T_LOGITS_1, work->logits + HALF * rows, logit_bytes);
  FENCE();
}

/* Raises the max of each current row that has a greater logit by the arithmetic of weigh_lanes(). */
static __attribute__((noinline)) void raise_rows(int32_t rows, int32_t count, attention_work *work) {
  float by_lane[HALF], sign = work->k_factor < 0 ? -1 : 1;
  __m512 signs = _mm512_set1_ps(sign), greatest = _mm512_set1_ps(-INFINITY);
  for (int32_t i = 0; i < count * rows; i += HALF)
    greatest = _mm512_mask_max_ps(greatest, lanes_before(count * rows, i), greatest,
                                  _mm512_mul_ps(signs, _mm512_loadu_ps(work->more.logits + i)));
  _mm512_storeu_ps(by_lane, greatest);
  for (int32_t h = work->row; h < work->row + work->rows; h++) {
    float score = by_lane[h];
    for (int32_t i = h + rows; i < HALF; i += rows) score = by_lane[i] > score ? by_lane[i] : score;
    score *= sign;
    if (fmaf(score, work->k_factor, work->minus_m[ATTENTION_QUAD * h]) > 0)
      attention_raise(work, h, (double)score * (double)work->k_factor, 0);
  }
}

/* Returns -m of each lane's row. Rows that are not current get no weight. */
INLINE __m512 lanes_of_max(int32_t rows, const attention_work *work) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i row = _mm512_and_si512(lane, _mm512_set1_epi32(rows - 1)), at = _mm512_slli_epi32(row, 2);
  const float *m = work->minus_m; /* four equal lanes for each row */
  __m512 lanes = _mm512_permutex2var_ps(_mm512_loadu_ps(m), at, _mm512_loadu_ps(m + HALF));
  if (rows == 16) {
    __m512 last = _mm512_permutex2var_ps(_mm512_loadu_ps(m + 2 * HALF), at, _mm512_loadu_ps(m + 3 * HALF));
    lanes = _mm512_mask_mov_ps(lanes, 0xff00, last);
  }
  __mmask16 is_here =
      _mm512_cmplt_epu32_mask(_mm512_sub_epi32(row, _mm512_set1_epi32(work->row)), _mm512_set1_epi32(work->rows));
  return _mm512_mask_mov_ps(_mm512_set1_ps(-FLT_MAX), is_here, lanes);
}

/* Computes p = 2^(t - m) for the logits of `count` keys, and their sums [key % 4][row]. Returns the lanes in which a
 * logit was above m. */
INLINE __mmask16 weigh_lanes(int32_t rows, int32_t count, int32_t pairs_each, __m512 minus_m, attention_work *work,
                             float *by_lane) {
  const __m512 factor = _mm512_set1_ps(work->k_factor);
  __m512 sums[ATTENTION_QUAD];
  __mmask16 above = 0;
  UNROLL for (int32_t k = 0; k < rows / 4; k++) sums[k] = _mm512_setzero_ps();
  for (int32_t first = 0; first < KEYS * rows; first += HALF * rows / 4) {
    UNROLL for (int32_t k = 0; k < rows / 4; k++) {
      int32_t i = first + k * HALF;
      __mmask16 mask = count == KEYS ? 0xffff : lanes_before(count * rows, i);
      __m512 x = _mm512_fmadd_ps(_mm512_loadu_ps(work->more.logits + i), factor, minus_m);
      above |= _mm512_mask_cmp_ps_mask(mask, x, _mm512_setzero_ps(), _CMP_GT_OQ);
      x = _mm512_min_ps(_mm512_setzero_ps(), x); /* keeps a NaN */
      __m512 weights = _mm512_maskz_mov_ps(mask, vec_exp2(x));
      sums[k] = _mm512_add_ps(sums[k], weights);
      _mm512_storeu_ps(work->more.p + i, weights);
      for (int32_t pair = 0; pair < pairs_each; pair++) prefetch_pair(&work->more.keys_ahead);
    }
  }
  UNROLL for (int32_t k = 0; k < rows / 4; k++) _mm512_storeu_ps(by_lane + k * HALF, sums[k]);
  return above;
}

/* Computes work->more.p and adds the sums of weights to work->tile_d. */
INLINE void weigh(int32_t rows, int32_t count, int32_t pairs_each, attention_work *work) {
  float by_lane[ATTENTION_QUAD * HALF];
  if (__builtin_expect(weigh_lanes(rows, count, pairs_each, lanes_of_max(rows, work), work, by_lane) != 0, 0)) {
    raise_rows(rows, count, work);
    weigh_lanes(rows, count, 0, lanes_of_max(rows, work), work, by_lane);
  }
  for (int32_t h = work->row; h < work->row + work->rows; h++) {
    const float *sum = by_lane + h;
    work->tile_d[ATTENTION_QUAD * h] += (sum[0] + sum[rows]) + (sum[2 * rows] + sum[3 * rows]);
  }
}

/* Returns where a tile has the pair of `key`. Pairs are ordered by keys modulo 4 for any number of rows, so the bits of
 * a row do not depend on that number. */
INLINE int32_t pair_at(int32_t key) { return key % 4 * 4 + key / 4; }

/* Returns which vector of weights transpose() expects at `slot` for that order. */
INLINE int32_t vector_at(int32_t rows, int32_t slot) {
  return rows == 4 ? slot : rows == 8 ? slot % 4 * 2 + slot / 4 : pair_at(slot);
}

/* Transposes z from [key][row], in the order of vector_at(), to [row][key]. It has `rows` vectors. */
INLINE void transpose(int32_t rows, __m512i *z) {
  UNROLL for (int i = 0; i < rows; i += 4) transpose_in_quarters(z + i);
  if (rows == 8) {
    UNROLL for (int i = 0; i < 4; i++) {
      __m512i a = z[i], b = z[i + 4];
      z[i] = _mm512_shuffle_i32x4(a, b, 0x88);
      z[i + 4] = _mm512_shuffle_i32x4(a, b, 0xdd);
    }
  }
  UNROLL for (int i = 0; rows == 16 && i < 4; i++) transpose_quarters(z + i, 4);
}

/* Cuts the weights of pairs of keys into parts. */
INLINE void cut_weights(int32_t rows, matrix_work *work) {
  __m512 low[HALF], high[HALF];
  UNROLL for (int i = 0; i < rows; i++) {
    low[i] = _mm512_loadu_ps(work->p + vector_at(rows, i) * HALF);
    high[i] = _mm512_loadu_ps(work->p + (rows + vector_at(rows, i)) * HALF);
  }
  UNROLL for (int part = 0; part < PARTS_MAX; part++) {
    __m512i z[HALF];
    UNROLL for (int i = 0; i < rows; i++) z[i] = pairs_of(upper_part(&low[i]), upper_part(&high[i]));
    transpose(rows, z);
    UNROLL for (int i = 0; i < rows; i++) _mm512_store_si512(work->weights[part * rows + i], z[i]);
  }
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Returns the columns of a group, whose values are multiplied together. */
INLINE int32_t group_columns(banyan_dtype form) { return is_bytes(form) ? GROUP : WORDS; }

/* A group of bytes is unpacked within 16 bytes, and four columns of each 16 go to one tile. This swaps the quarters of
 * vectors back. */
static const float *attention_columns(banyan_dtype form, const float *row, int32_t count, float *to) {
  if (is_cut(form)) return row;
  for (int32_t j = 0; j < count; j += group_columns(form)) {
    __m512i c[GROUP_TILES];
    int32_t tiles = group_columns(form) / HALF;
    UNROLL for (int i = 0; i < tiles; i++) c[i] = _mm512_loadu_si512(row + j + i * HALF);
    if (is_bytes(form))
      transpose_quarters(c, 1);
    else {
      __m512i low = _mm512_shuffle_i32x4(c[0], c[1], 0x44), high = _mm512_shuffle_i32x4(c[0], c[1], 0xee);
      c[0] = _mm512_shuffle_i32x4(low, low, 0xd8);
      c[1] = _mm512_shuffle_i32x4(high, high, 0xd8);
    }
    UNROLL for (int i = 0; i < tiles; i++) _mm512_storeu_si512(to + j + i * HALF, c[i]);
  }
  return to;
}

/* Interleaves the values of two keys. */
INLINE void pair_values(banyan_dtype form, __m512i a, __m512i b, int32_t at, uint16_t (*to)[HALF][WORDS]) {
  if (!is_bytes(form)) {
    _mm512_store_si512(to[0][at], _mm512_unpacklo_epi16(a, b));
    _mm512_store_si512(to[1][at], _mm512_unpackhi_epi16(a, b));
    return;
  }
  __m512i bytes[2] = {_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)};
  UNROLL for (int i = 0; i < 2; i++) {
    __m512i low, high;
    bf16_of_bytes(bytes[i], type_of(form), &low, &high);
    _mm512_store_si512(to[2 * i][at], _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(to[2 * i + 1][at], _mm512_unpackhi_epi8(low, high));
  }
}

/* Does the same for f16, which has a lower and an upper part of 16 columns each. */
INLINE void pair_cut_values(const char *a, const char *b, int32_t at, uint16_t (*to)[HALF][WORDS]) {
  UNROLL for (int i = 0; i < 2; i++) {
    __m256i low = a ? _mm256_loadu_si256((const __m256i *)(const void *)a + i) : _mm256_setzero_si256();
    __m256i high = b ? _mm256_loadu_si256((const __m256i *)(const void *)b + i) : _mm256_setzero_si256();
    __m512i upper, lower;
    cut_halves(low, high, &upper, &lower);
    _mm512_store_si512(to[2 * i][at], lower);
    _mm512_store_si512(to[2 * i + 1][at], upper);
  }
}

/* Writes pairs [from, to) of group `group` of the values of a tile, with zeros beyond its `count` keys. */
INLINE void fill_group(const bny_attention_task *task, banyan_dtype form, int32_t first, int32_t count, int32_t group,
                       int32_t from, int32_t to, matrix_work *work) {
  int64_t stride = task->v_token_stride * (int64_t)attention_element_bytes(form);
  const char *v = attention_row(task->v, task->v_token_stride, first, form) + group * ROW_BYTES;
  uint16_t(*tiles)[HALF][WORDS] = work->v[group % 2];
  UNROLL for (int32_t i = from; i < to; i++) {
    const char *low = v + i * stride, *high = v + (i + HALF) * stride;
    if (is_cut(form)) {
      pair_cut_values(i < count ? low : NULL, i + HALF < count ? high : NULL, pair_at(i), tiles);
    } else {
      __m512i a = i < count ? _mm512_loadu_si512(low) : _mm512_setzero_si512();
      __m512i b = i + HALF < count ? _mm512_loadu_si512(high) : _mm512_setzero_si512();
      pair_values(form, a, b, pair_at(i), tiles);
    }
    prefetch_pair(&work->values_ahead);
    if (group > 0) prefetch_pair(&work->keys_ahead);
  }
}

INLINE void multiply_part(const uint16_t (*v)[WORDS]) {
  _tile_loadd(T_VALUES, v, ROW_BYTES);
  _tile_dpbf16ps(T_SUMS, T_WEIGHTS_2, T_VALUES);
  _tile_dpbf16ps(T_SUMS, T_WEIGHTS_1, T_VALUES);
  _tile_dpbf16ps(T_SUMS, T_WEIGHTS_0, T_VALUES);
}

/* Adds to 16 columns of sums from `column` on. Only the current rows change. */
INLINE void multiply_values(banyan_dtype form, const uint16_t (*v)[HALF][WORDS], int32_t column, bool is_all,
                            attention_work *work) {
  int64_t stride = work->n_stride * (int64_t)sizeof(float);
  float *n = work->n + column, *to = is_all ? n : work->more.n[0];
  _tile_loadd(T_SUMS, n, stride);
  multiply_part(v[0]);
  if (is_cut(form)) multiply_part(v[1]);
  _tile_stored(T_SUMS, to, is_all ? stride : ROW_BYTES);
  if (is_all) return;
  FENCE();
  for (int32_t h = work->row; h < work->row + work->rows; h++)
    _mm512_storeu_ps(n + h * work->n_stride, _mm512_load_ps(work->more.n[h]));
}

/* ---- one key ----------------------------------------------------------------------------------------------------- */

/* Returns 16 columns of a row. */
INLINE __m512 row_floats(const char *row, int32_t column, banyan_dtype form) {
  __m512 values = vec_row(row + (size_t)column * attention_element_bytes(form), type_of(form));
  return type_of(form) == BANYAN_E4M3 ? _mm512_mul_ps(values, _mm512_set1_ps(0x1p8f)) : values;
}

/* Adds w v to n for a group of columns, in the order of the tiles. */
INLINE void add_key(banyan_dtype form, const char *v, int32_t column, __m512 weight, float *n) {
  __m512i c[GROUP_TILES] = {{0}};
  int32_t count = group_columns(form) / HALF;
  UNROLL for (int i = 0; i < count; i++) c[i] = _mm512_castps_si512(row_floats(v, column + i * HALF, form));
  if (is_bytes(form))
    transpose_quarters(c, 1);
  else if (!is_cut(form)) {
    __m512i a = c[0], b = c[1];
    c[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    c[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
  }
  UNROLL for (int i = 0; i < count; i++) {
    float *to = n + column + i * HALF;
    _mm512_storeu_ps(to, _mm512_fmadd_ps(weight, _mm512_castsi512_ps(c[i]), _mm512_loadu_ps(to)));
  }
}

/* This uses vectors, because a tile of one key would be mostly zeros. */
static __attribute__((noinline)) void attention_add_one(const bny_attention_task *keys, banyan_dtype form, int32_t key,
                                                        attention_work *work) {
  int32_t h = work->row;
  const float *q = work->q + h * work->q_stride;
  const char *k = attention_row(keys->k, keys->k_token_stride, key, form);
  const char *v = attention_row(keys->v, keys->v_token_stride, key, form);
  __m512 sum = _mm512_setzero_ps();
  for (int32_t j = 0; j < keys->head_dim; j += HALF)
    sum = _mm512_fmadd_ps(_mm512_loadu_ps(q + j), row_floats(k, j, form), sum);
  float score = _mm512_reduce_add_ps(sum);
  attention_raise(work, h, (double)score * (double)work->k_factor, 0);
  float distance = fmaf(score, work->k_factor, work->minus_m[ATTENTION_QUAD * h]);
  __m512 weight = vec_exp2(_mm512_set1_ps(distance > 0 ? 0 : distance));
  work->d[ATTENTION_QUAD * h] += (double)_mm512_cvtss_f32(weight);
  for (int32_t j = 0; j < keys->value_dim; j += group_columns(form))
    add_key(form, v, j, weight, work->n + h * work->n_stride);
}

/* ---- tiles of keys ----------------------------------------------------------------------------------------------- */

/* Rows of two lines or fewer leave a processor idle between the steps of a tile. The logits of the next tile are
 * therefore computed while the values of this one are added. With longer rows this would evict other lines from the
 * first-level cache. */
INLINE bool looks_ahead(const bny_attention_task *task, banyan_dtype form) {
  return type_of(form) == BANYAN_BF16 && task->head_dim <= ROW_BYTES;
}

/* A tile register loads slowly from memory that was just written. All data is therefore written one round before it is
 * read: the first group of values before the weights, and each later group before the previous one is multiplied.
 *
 * Prefetches of the next tile are spread evenly over the work on this one, because a processor stalls on too many
 * outstanding lines. Most come with the groups of values, and the other lines of keys come with the weights. */
INLINE void weigh_tile(int32_t rows, const bny_attention_task *task, banyan_dtype form, int32_t first, int32_t count,
                       attention_work *work) {
  matrix_work *more = &work->more;
  int64_t stride = task->k_token_stride * (int64_t)attention_element_bytes(form);
  const char *row = attention_row(task->k, task->k_token_stride, first, form);
  int32_t vectors = 2 * rows, pairs = HALF * (task->head_dim - task->value_dim) / group_columns(form) + HALF;
  bool has_next = looks_ahead(task, form) && work->rows == task->heads && work->next_k.rows == KEYS &&
                  work->next_k.row == row + KEYS * stride;
  more->keys_ahead =
      lines_after(task, form, task->k, task->k_token_stride, task->head_dim, first, looks_ahead(task, form) ? 2 : 1);
  more->values_ahead = lines_after(task, form, task->v, task->v_token_stride, task->value_dim, first, 1);
  if (count < KEYS || more->ready != row) multiply_keys(task, form, row, stride, count, rows, more);
  more->ready = NULL;
  more->next = has_next ? row + KEYS * stride : NULL;
  fill_group(task, form, first, count, 0, 0, HALF, more);
  weigh(rows, count, pairs > 0 ? (pairs + vectors - 1) / vectors : 0, work);
  cut_weights(rows, more);
}

INLINE void add_group(int32_t group, const bny_attention_task *task, banyan_dtype form, int32_t first, int32_t count,
                      attention_work *work) {
  matrix_work *more = &work->more;
  int32_t columns = group_columns(form), tiles = columns / HALF, pairs = HALF / tiles;
  bool is_all = work->rows == task->heads;
  int32_t tiles_each = is_cut(form) ? 2 : 1;
  UNROLL for (int i = 0; i < tiles; i++) {
    if (group * columns < task->value_dim)
      fill_group(task, form, first, count, group, i * pairs, (i + 1) * pairs, more);
    FENCE();
    multiply_values(form, more->v[(group - 1) % 2] + i * tiles_each, (group - 1) * columns + i * HALF, is_all, work);
    FENCE();
  }
}

INLINE void add_values(int32_t rows, const bny_attention_task *task, banyan_dtype form, int32_t first, int32_t count,
                       attention_work *work) {
  matrix_work *more = &work->more;
  int32_t groups = task->value_dim / group_columns(form);
  if (type_of(form) == BANYAN_BF16 && more->next) {
    int64_t stride = task->k_token_stride * (int64_t)attention_element_bytes(form);
    multiply_keys(task, form, more->next, stride, KEYS, rows, more);
    more->ready = more->next;
  }
  FENCE();
  _tile_loadd(T_WEIGHTS_0, more->weights[0], ROW_BYTES);
  _tile_loadd(T_WEIGHTS_1, more->weights[rows], ROW_BYTES);
  _tile_loadd(T_WEIGHTS_2, more->weights[2 * rows], ROW_BYTES);
  for (int32_t group = 1; group <= groups; group++) add_group(group, task, form, first, count, work);
}

INLINE void weigh_any(const bny_attention_task *task, banyan_dtype form, int32_t first, int32_t count,
                      attention_work *work) {
  if (rows_of(task) == 4)
    weigh_tile(4, task, form, first, count, work);
  else if (rows_of(task) == 8)
    weigh_tile(8, task, form, first, count, work);
  else
    weigh_tile(16, task, form, first, count, work);
}

static __attribute__((noinline)) void weigh_some(const bny_attention_task *task, banyan_dtype form, int32_t first,
                                                 int32_t count, attention_work *work) {
  weigh_any(task, form, first, count, work);
}

static __attribute__((noinline)) void attention_weigh(const bny_attention_task *task, banyan_dtype form, int32_t first,
                                                      int32_t count, attention_work *work) {
  if (count < KEYS)
    weigh_some(task, form, first, count, work);
  else
    weigh_any(task, form, first, KEYS, work);
}

static __attribute__((noinline)) void accumulate_some(const bny_attention_task *task, banyan_dtype form, int32_t first,
                                                      int32_t count, attention_work *work) {
  add_values(rows_of(task), task, form, first, count, work);
}

static __attribute__((noinline)) void attention_accumulate(const bny_attention_task *task, banyan_dtype form,
                                                           int32_t first, int32_t count, attention_work *work) {
  if (count < KEYS)
    accumulate_some(task, form, first, count, work);
  else if (rows_of(task) == 4)
    add_values(4, task, form, first, KEYS, work);
  else if (rows_of(task) == 8)
    add_values(8, task, form, first, KEYS, work);
  else
    add_values(16, task, form, first, KEYS, work);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* This is the operand of LDTILECFG. */
typedef struct tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} tile_config;

static void configure_tiles(int32_t rows, int32_t heads) {
  tile_config config = {.palette = 1};
  uint16_t bytes = (uint16_t)(rows * (int32_t)sizeof(float));
  for (int i = T_KEYS; i <= T_LOGITS_1; i++) {
    config.rows[i] = HALF;
    config.row_bytes[i] = i == T_KEYS ? ROW_BYTES : bytes;
  }
  for (int i = T_WEIGHTS_0; i <= T_SUMS; i++) {
    config.rows[i] = (uint8_t)heads;
    config.row_bytes[i] = ROW_BYTES;
  }
  FENCE();
  _tile_loadconfig(&config);
}

/* Returns the smallest group for which AMX was measured to be faster than vectors. */
static int32_t least_group(banyan_dtype type) {
  if (type == BANYAN_BF16 || type == BANYAN_E4M3 || type == BANYAN_I8) return 4;
  return type == BANYAN_F16 ? 9 : INT32_MAX;
}

static bool is_taken(const bny_attention_task *task) {
  int32_t columns = group_columns(task->kv_dtype);
  return task->group >= least_group(task->kv_dtype) && task->kv_rows == BANYAN_KV_ROWS_PLAIN && task->soft_cap == 0 &&
         !attention_is_scaled(task) && task->head_dim % columns == 0 && task->value_dim % columns == 0 &&
         task->head_dim / WORDS * parts_of(task->q_dtype) <= STEPS_MAX;
}

static bool is_finite(const bny_attention_task *task, const bny_attention_sums *sums, int32_t h) {
  enum { NAN_OR_INFINITE = 0x99 };
  const double *n = sums->n + h * bny_attention_padded(task->value_dim);
  __mmask8 found = 0;
  for (int32_t j = 0; j < task->value_dim; j += 8)
    found |= _mm512_fpclass_pd_mask(_mm512_loadu_pd(n + j), NAN_OR_INFINITE);
  return found == 0 && isfinite(sums->d[h]) && sums->m[h] < INFINITY;
}

/* Computes rows that are not finite again, by vectors. */
static __attribute__((noinline)) void run_again(const bny_attention_task *task, int32_t first, int32_t last,
                                                bny_attention_sums *sums) {
  int32_t stride = bny_attention_padded(task->value_dim);
  bny_attention_sums again;
  bny_attention_avx512_bf16.run(task, first, last, &again);
  for (int32_t h = 0; h < task->heads; h++) {
    if (is_finite(task, sums, h)) continue;
    sums->m[h] = again.m[h];
    sums->d[h] = again.d[h];
    memcpy(sums->n + h * stride, again.n + h * stride, (size_t)stride * sizeof *sums->n);
  }
}

static void run(const bny_attention_task *task, int32_t first, int32_t last, bny_attention_sums *sums) {
  if (!is_taken(task)) {
    bny_attention_avx512_bf16.run(task, first, last, sums);
    return;
  }
  configure_tiles(rows_of(task), task->heads);
  attention_pass(task, first, last, -INFINITY, sums);
  _tile_release();
  for (int32_t h = 0; h < task->heads; h++) {
    if (is_finite(task, sums, h)) continue;
    run_again(task, first, last, sums);
    return;
  }
}

static void run_many(const bny_attention_task *const *tasks, int32_t count, int32_t first, int32_t last,
                     bny_attention_sums *const *sums, void *memory) {
  if (!is_taken(tasks[0])) {
    bny_attention_avx512_bf16.run_many(tasks, count, first, last, sums, memory);
    return;
  }
  for (int32_t i = 0; i < count; i++) run(tasks[i], first, last, sums[i]);
}

static size_t many_bytes(int32_t rows, int32_t head_dim, int32_t value_dim) {
  return bny_attention_avx512_bf16.many_bytes(rows, head_dim, value_dim);
}

const bny_attention_kernels bny_attention_amx = {"amx",    "avx512",  bny_cpu_has_amx, run, attention_code_masses,
                                                 run_many, many_bytes};
