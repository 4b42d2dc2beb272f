/* SPDX-License-Identifier: Apache-2.0
 * Instruction sets with 32 registers compute logits, weights and values here. Elements are converted in registers, for
 * as many heads as fit. The including file defines the operations of attention_vector.h, and:
 *
 *   vec_words                    2 LANES columns of a grouped form as 16-bit words
 *   vec_even, vec_odd            the even or odd words, which are bf16, as f32
 *   vec_dot                      sums of pairs of products of bf16 words, added to floats: for ATTENTION_DOT
 *   HAS_LINES                    1 if vec_line() converts 64 elements of eight bits halfway, and vec_of_line() makes
 *                                vector i of them
 *   vec_sums                     lane QUAD h + i: the sum of the lanes of vector [h][i]
 *   GROUPED_BF16                 1 where caches of bf16 have a grouped form; BF16_DOTS: 1 where there is vec_dot
 *   SCORE_HEADS                  heads whose four-key sums fit in the registers together with four keys
 *   VALUE_VECTORS(heads)         vectors of sums for each of 1 to 4 heads that fit together with as many values
 *
 * Each key and value is loaded and converted once for a block of heads. Rows are prefetched a few KiB ahead.
 */
#pragma once

#include "attention_vector.h"

enum { VALUE_HEADS = 4 };

/* ---- grouped forms ----------------------------------------------------------------------------------------------- */

/* 64 columns have GROUP_WORDS vectors of words. Words of bf16 have the order of columns; words of eight-bit elements
 * have that of vec_words(). */
enum { WORD_LANES = 2 * VEC_LANES, GROUP_WORDS = ATTENTION_GROUP / WORD_LANES };

INLINE bool is_grouped(banyan_dtype form) { return ((int)form & ATTENTION_GROUPED) != 0; }

INLINE banyan_dtype type_of(banyan_dtype form) { return (banyan_dtype)((int)form & ATTENTION_TYPE); }

INLINE bool is_bytes(banyan_dtype form) { return attention_element_bytes(form) == 1; }

/* Returns whether values are in groups too. int8 takes fewer instructions by itself. */
INLINE bool has_grouped_values(banyan_dtype form) { return is_grouped(form) && type_of(form) != BANYAN_I8; }

/* Returns how many vectors of words one call of vec_words() fills. */
INLINE int32_t words_each(banyan_dtype form) { return is_bytes(form) ? (int32_t)GROUP_WORDS : 1; }

/* Returns the word that holds a column. Bytes are unpacked within groups of 16, and the first 8 go to the first
 * vector. */
INLINE int32_t word_of(banyan_dtype form, int32_t column) {
  if (!is_bytes(form)) return column;
  int32_t at = column % ATTENTION_GROUP;
  return column - at + (at % 16 / 8) * WORD_LANES + at / 16 * 8 + at % 8;
}

INLINE int32_t attention_place(banyan_dtype form, int32_t column) {
  if (!is_grouped(form)) return column;
  int32_t word = word_of(form, column), at = word % WORD_LANES;
  return word - at + at % 2 * VEC_LANES + at / 2;
}

INLINE void columns_of(banyan_dtype form, const float *row, int32_t count, float *to) {
  for (; count > 0; count -= ATTENTION_GROUP, row += ATTENTION_GROUP, to += ATTENTION_GROUP) {
    UNROLL for (int32_t i = 0; i < ATTENTION_GROUP; i += 16) {
      UNROLL for (int32_t j = i; j < i + 16; j++) to[j] = row[attention_place(form, j)];
    }
  }
}

/* Places are constants there, as a block of keys may have few. */
static const float *attention_columns(banyan_dtype form, const float *row, int32_t count, float *to) {
  if (!has_grouped_values(form)) return row;
  if (is_bytes(form))
    columns_of((banyan_dtype)(BANYAN_E4M3 | ATTENTION_GROUPED), row, count, to);
  else
    columns_of((banyan_dtype)(BANYAN_BF16 | ATTENTION_GROUPED), row, count, to);
  return to;
}

static void attention_pack(const bny_attention_task *task, banyan_dtype form, attention_work *work, int32_t h) {
  float from[BNY_ATTENTION_HEAD_DIM_MAX], *row = work->q + h * work->q_stride;
  int32_t count = work->q_stride;
  (void)task;
  if (!is_grouped(form)) return;
  memcpy(from, row, (size_t)count * sizeof *row);
  for (int32_t i = 0; i < count; i++) {
    if ((int)form & ATTENTION_DOT) {
      uint32_t bits;
      memcpy(&bits, &from[i], sizeof bits);
      ((uint16_t *)(void *)row)[word_of(form, i)] = (uint16_t)(bits >> 16);
    } else
      row[attention_place(form, i)] = from[i];
  }
}

static banyan_dtype attention_form(const bny_attention_task *task) {
  const banyan_dtype type = task->kv_dtype;
  const bool in_groups = task->head_dim % ATTENTION_GROUP == 0 && task->value_dim % ATTENTION_GROUP == 0;
  const bool has_dots = in_groups && task->q_dtype == BANYAN_BF16 && BF16_DOTS;
  int form = (int)type;
  if (has_dots && (type == BANYAN_BF16 || is_bytes(type)))
    form |= ATTENTION_GROUPED | ATTENTION_DOT;
  else if (in_groups && type == BANYAN_BF16 && GROUPED_BF16)
    form |= ATTENTION_GROUPED;
  else if (is_converted(task))
    form = BANYAN_F32;
  return (banyan_dtype)form;
}

/* Returns how many keys ahead rows are prefetched. 6 KiB of short rows, and a tile of long ones, were measured best. */
INLINE int32_t attention_ahead(const bny_attention_task *task, banyan_dtype dtype) {
  int32_t row_bytes = task->head_dim * (int32_t)attention_element_bytes(dtype);
  if (row_bytes < LINE_BYTES) row_bytes = LINE_BYTES;
  return row_bytes < 512 ? 6144 / row_bytes : row_bytes < 1024 ? 16 : 8;
}

INLINE void prefetch_bytes(const char *first, int64_t bytes, bool far) {
  for (int64_t at = 0; at < bytes; at += LINE_BYTES) attention_prefetch(first + at, far);
}

/* Walks later lines in memory order, which the hardware prefetcher follows. */
typedef struct next_lines {
  const char *row;
  int64_t step;                /* bytes from row to row */
  int32_t at, row_bytes, rows; /* rows: those that are left */
  int32_t block, key;          /* lines to prefetch as a block of columns begins, and at each key of it */
  int64_t ahead;               /* instead: how many bytes behind the current lines to prefetch; 0: none */
  bool far;                    /* passed to attention_prefetch() */
} next_lines;

INLINE void prefetch_next(next_lines *next, int32_t lines) {
  for (int32_t i = 0; i < lines; i++) {
    attention_prefetch(next->row + next->at, next->far);
    next->at += LINE_BYTES;
    if (next->at < next->row_bytes) continue;
    next->at = 0;
    next->row += next->step;
    if (--next->rows == 0) next->block = next->key = 0;
  }
}

INLINE bool is_in_lines(banyan_dtype form) { return HAS_LINES && !has_grouped_values(form) && is_bytes(form); }

/* Returns the number of float vectors that one call of vec_spread() fills: 2 for bf16, 64 columns of eight bits. */
INLINE int32_t spread_vectors(banyan_dtype form) {
  if (has_grouped_values(form)) return 2 * words_each(form);
  return is_in_lines(form) ? ATTENTION_GROUP / VEC_LANES : 1;
}

INLINE void vec_spread(const char *at, banyan_dtype form, int spread, vec *values) {
  if (spread == 1) {
    values[0] = vec_row(at, type_of(form));
    return;
  }
  if (!has_grouped_values(form)) {
    vec_group(at, type_of(form), values);
    return;
  }
  word_vec words[GROUP_WORDS];
  vec_words(at, type_of(form), words);
  UNROLL for (int32_t i = 0; i < spread / 2; i++) {
    values[2 * i] = vec_even(words[i]);
    values[2 * i + 1] = vec_odd(words[i]);
  }
}

/* ---- logits: a block of heads x ATTENTION_QUAD keys -------------------------------------------------------------- */

INLINE void score_step(int heads, const float *q, int32_t q_stride, const vec *k, vec (*sums)[ATTENTION_QUAD]) {
  UNROLL for (int h = 0; h < heads; h++) {
    vec query = vec_load(q + h * q_stride);
    UNROLL for (int i = 0; i < ATTENTION_QUAD; i++) sums[h][i] = vec_fma(query, k[i], sums[h][i]);
  }
}

/* Prefetches as many lines as are being read. */
INLINE void score_ahead(int heads, banyan_dtype dtype, const char *const *rows, int32_t at, next_lines *next) {
  if (heads > 1 && dtype == BANYAN_F32) { /* as measured */
    prefetch_next(next, next->key);
    return;
  }
  if (next->ahead == 0) return;
  UNROLL for (int i = 0; i < ATTENTION_QUAD; i++) attention_prefetch(rows[i] + at + next->ahead, next->far);
}

/* Adds the products of 64 columns. */
INLINE void score_group(int heads, banyan_dtype form, const float *q, int32_t q_stride, int32_t first,
                        const char *const *rows, vec (*sums)[ATTENTION_QUAD]) {
  word_vec words[ATTENTION_QUAD][GROUP_WORDS];
  int32_t bytes = (int32_t)attention_element_bytes(form), step = words_each(form);
  vec k[ATTENTION_QUAD];
  UNROLL for (int i = 0; i < ATTENTION_QUAD; i++) {
    UNROLL for (int x = 0; x < GROUP_WORDS; x += step) {
      vec_words(rows[i] + (int64_t)(first + x * WORD_LANES) * bytes, type_of(form), words[i] + x);
    }
  }
  UNROLL for (int x = 0; x < GROUP_WORDS; x++) {
    if ((int)form & ATTENTION_DOT) {
      UNROLL for (int h = 0; h < heads; h++) {
        vec query = vec_load(q + h * q_stride + first / 2 + x * VEC_LANES);
        UNROLL for (int i = 0; i < ATTENTION_QUAD; i++) sums[h][i] = vec_dot(sums[h][i], query, words[i][x]);
      }
      continue;
    }
    UNROLL for (int i = 0; i < ATTENTION_QUAD; i++) k[i] = vec_even(words[i][x]);
    score_step(heads, q + first + x * WORD_LANES, q_stride, k, sums);
    UNROLL for (int i = 0; i < ATTENTION_QUAD; i++) k[i] = vec_odd(words[i][x]);
    score_step(heads, q + first + x * WORD_LANES + VEC_LANES, q_stride, k, sums);
  }
}

INLINE void score_columns(int heads, banyan_dtype dtype, const float *q, int32_t q_stride, int32_t first,
                          const char *const *rows, vec (*sums)[ATTENTION_QUAD]) {
  vec k[ATTENTION_QUAD];
  UNROLL for (int i = 0; i < ATTENTION_QUAD; i++) {
    k[i] = vec_row(rows[i] + (size_t)first * attention_element_bytes(dtype), dtype);
  }
  score_step(heads, q + first, q_stride, k, sums);
}

/* Adds the products of 64 columns of eight bits. Two keys at a time leave registers for what they become halfway. */
INLINE void score_line(int heads, banyan_dtype dtype, const float *q, int32_t q_stride, int32_t first,
                       const char *const *rows, vec (*sums)[ATTENTION_QUAD]) {
  UNROLL for (int i = 0; i < ATTENTION_QUAD; i += 2) {
    const line_vec lines[2] = {vec_line(rows[i] + first, dtype), vec_line(rows[i + 1] + first, dtype)};
    UNROLL for (int x = 0; x < ATTENTION_GROUP / VEC_LANES; x++) {
      const vec k[2] = {vec_of_line(lines[0], dtype, x), vec_of_line(lines[1], dtype, x)};
      UNROLL for (int h = 0; h < heads; h++) {
        const vec query = vec_load(q + h * q_stride + first + x * VEC_LANES);
        sums[h][i] = vec_fma(query, k[0], sums[h][i]);
        sums[h][i + 1] = vec_fma(query, k[1], sums[h][i + 1]);
      }
    }
  }
}

INLINE void score_block(int heads, const bny_attention_task *task, banyan_dtype dtype, const float *q, int32_t q_stride,
                        const char *const *rows, next_lines *next, vec (*sums)[ATTENTION_QUAD]) {
  int32_t bytes = (int32_t)attention_element_bytes(dtype), line = LINE_BYTES / bytes, dim = task->head_dim, j = 0;
  for (; is_grouped(dtype) && j < dim; j += ATTENTION_GROUP) {
    UNROLL for (int x = 0; x < bytes; x++) score_ahead(heads, dtype, rows, j * bytes + x * LINE_BYTES, next);
    score_group(heads, dtype, q, q_stride, j, rows, sums);
  }
  for (; !is_grouped(dtype) && j + line <= dim; j += line) {
    score_ahead(heads, dtype, rows, j * bytes, next);
    if (is_in_lines(dtype)) {
      score_line(heads, dtype, q, q_stride, j, rows, sums);
      continue;
    }
    UNROLL for (int x = 0; x < line; x += VEC_LANES) score_columns(heads, dtype, q, q_stride, j + x, rows, sums);
  }
  if (!is_grouped(dtype) && j < dim) score_ahead(heads, dtype, rows, j * bytes, next);
  for (; !is_grouped(dtype) && j + VEC_LANES <= dim; j += VEC_LANES)
    score_columns(heads, dtype, q, q_stride, j, rows, sums);
  if (!is_grouped(dtype) && j < dim) {
    vec k[ATTENTION_QUAD];
    UNROLL for (int i = 0; i < ATTENTION_QUAD; i++) k[i] = vec_row_tail(rows[i] + (size_t)j * bytes, dim - j, dtype);
    score_step(heads, q + j, q_stride, k, sums);
  }
}

/* ---- weights: those of a quad ------------------------------------------------------------------------------------ */

/* Writes the scores of a quad for rows from h on to p. */
INLINE void score_quad(int heads, const bny_attention_task *task, banyan_dtype dtype, const char *const *rows,
                       next_lines *next, int32_t h, int32_t quad, attention_work *work) {
  vec sums[SCORE_HEADS][ATTENTION_QUAD];
  UNROLL for (int i = 0; i < SCORE_HEADS; i++) {
    UNROLL for (int j = 0; j < ATTENTION_QUAD; j++) sums[i][j] = vec_zero();
  }
  score_block(heads, task, dtype, work->q + h * work->q_stride, work->q_stride, rows, next, sums);
  UNROLL for (int i = 0; i < heads; i += SUM_HEADS) {
    vec_store(work->p + quad * ATTENTION_LANES + ATTENTION_QUAD * (h + i), vec_sums(sums + i));
  }
}

/* Weighs the quads from `quad` on whose scores of row h fill a vector. The bits are those of weigh_rows(). */
INLINE void weigh_row(const bny_attention_task *task, vec scores, int32_t h, int32_t quad, attention_work *work) {
  float *tile_d = work->tile_d + ATTENTION_QUAD * h, lanes[VEC_LANES];
  const vec x = vec_fma(scores, vec_set1(work->k_factor), vec_set1(work->minus_m[ATTENTION_QUAD * h]));
  const bool settles = vec_any_positive(x) || task->soft_cap > 0;
  if (__builtin_expect(settles, 0))
    vec_store(lanes, scores);
  else
    vec_store(lanes, vec_exp2(x));
  UNROLL for (int32_t i = 0; i < SUM_HEADS; i++) {
    const float *four = lanes + ATTENTION_QUAD * i;
    memcpy(work->p + (quad + i) * ATTENTION_LANES + ATTENTION_QUAD * h, four, ATTENTION_QUAD * sizeof *four);
    UNROLL for (int32_t key = 0; !settles && key < ATTENTION_QUAD; key++) tile_d[key] += four[key];
  }
  if (__builtin_expect(settles, 0)) weigh_rows(1, task, h, ATTENTION_QUAD * quad, VEC_LANES, work);
}

/* Sets the rows of a quad's keys. Rows past the last key repeat it, and their lanes get no weight. Returns the lines of
 * as many later keys. */
INLINE next_lines quad_rows(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t keys,
                            int32_t heads, bool far, const char **rows) {
  int32_t element = (int32_t)attention_element_bytes(dtype), keys_ahead = attention_ahead(task, dtype);
  int64_t step = task->k_token_stride * element;
  next_lines next = {.row_bytes = task->head_dim * element, .step = step, .rows = ATTENTION_QUAD, .far = far};
  rows[0] = attention_row(task->k, task->k_token_stride, first, dtype);
  UNROLL for (int32_t at = 1; at < ATTENTION_QUAD; at++) rows[at] = rows[at - 1] + (at < keys ? step : 0);
  if (task->keys - first < keys_ahead + ATTENTION_QUAD) return next;
  next.row = rows[0] + keys_ahead * step;
  if (heads == 1 && is_grouped(dtype)) { /* as measured */
    for (int32_t at = 0; at < ATTENTION_QUAD; at++) prefetch_bytes(next.row + at * step, next.row_bytes, far);
  } else if (heads == 1 || dtype != BANYAN_F32)
    next.ahead = keys_ahead * step;
  else {
    int32_t turns = heads / SCORE_HEADS + (heads % SCORE_HEADS > 1);
    next.key = (ATTENTION_QUAD + turns - 1) / turns;
  }
  return next;
}

INLINE void attention_weigh(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                            attention_work *work) {
  const char *rows[ATTENTION_QUAD];
  int32_t end = work->row + work->rows, i = 0;
  for (; SUM_HEADS > 1 && work->rows == 1 && i + VEC_LANES <= count; i += VEC_LANES) {
    vec sums[SUM_HEADS][ATTENTION_QUAD];
    for (int32_t x = 0; x < SUM_HEADS; x++) {
      next_lines next = quad_rows(task, dtype, first + i + ATTENTION_QUAD * x, ATTENTION_QUAD, 1, work->far, rows);
      UNROLL for (int j = 0; j < ATTENTION_QUAD; j++) sums[x][j] = vec_zero();
      score_block(1, task, dtype, work->q + work->row * work->q_stride, work->q_stride, rows, &next, sums + x);
    }
    weigh_row(task, vec_sums(sums), work->row, i / ATTENTION_QUAD, work);
  }
  const int32_t first_weighed = i;
  for (; i < count; i += ATTENTION_QUAD) {
    int32_t keys = count - i < ATTENTION_QUAD ? count - i : ATTENTION_QUAD, quad = i / ATTENTION_QUAD;
    next_lines next = quad_rows(task, dtype, first + i, keys, work->rows, work->far, rows);
    for (int32_t h = work->row; h < end; next.ahead = 0) {
      int32_t left = end - h;
      if (left >= SCORE_HEADS) {
        score_quad(SCORE_HEADS, task, dtype, rows, &next, h, quad, work);
        h += SCORE_HEADS;
      } else if (SCORE_HEADS > 2 && left >= 2) {
        score_quad(2, task, dtype, rows, &next, h, quad, work);
        h += 2;
      } else {
        score_quad(1, task, dtype, rows, &next, h, quad, work);
        h += 1;
      }
    }
  }
  int32_t h = work->row;
  for (; end - h >= SUM_HEADS; h += SUM_HEADS)
    weigh_rows(SUM_HEADS, task, h, first_weighed, count - first_weighed, work);
  if (SUM_HEADS > 1 && h < end) weigh_rows(end - h, task, h, first_weighed, count - first_weighed, work);
}

/* ---- values: a block of heads x vectors -------------------------------------------------------------------------- */

/* Adds weighted values to a block of sums. `tail` is the number of elements in the last vector; 0 means all. */
INLINE void value_block(int heads, int vectors, int spread, int32_t tail, const bny_attention_task *task,
                        banyan_dtype dtype, const char *v, int32_t count, next_lines *next, const float *p, float *n,
                        int32_t n_stride) {
  size_t element = attention_element_bytes(dtype);
  int64_t v_step = task->v_token_stride * (int64_t)element;
  vec sums[VALUE_HEADS][VALUE_VECTORS(1)];
  UNROLL for (int h = 0; h < heads; h++) { UNROLL for (int j = 0; j < vectors; j++) sums[h][j] = vec_zero(); }
  if (heads > 1) prefetch_next(next, next->block);
  for (int32_t i = 0; i < count; i++) {
    const float *lanes = p + i / ATTENTION_QUAD * ATTENTION_LANES + i % ATTENTION_QUAD;
    vec weights[VALUE_HEADS], values[ATTENTION_GROUP / VEC_LANES];
    UNROLL for (int h = 0; h < heads; h++) weights[h] = vec_set1(lanes[ATTENTION_QUAD * h]);
    if (heads > 1)
      prefetch_next(next, next->key);
    else if (next->ahead != 0)
      prefetch_bytes(v + next->ahead, vectors * VEC_LANES * (int64_t)element, next->far);
    UNROLL for (int j = 0; j < vectors; j += spread) {
      const char *at = v + (size_t)(j * VEC_LANES) * element;
      if (tail != 0)
        values[0] = vec_row_tail(at, tail, type_of(dtype));
      else
        vec_spread(at, dtype, spread, values);
      UNROLL for (int h = 0; h < heads; h++) {
        UNROLL for (int x = 0; x < spread; x++) sums[h][j + x] = vec_fma(weights[h], values[x], sums[h][j + x]);
      }
    }
    v += v_step;
  }
  UNROLL for (int h = 0; h < heads; h++) {
    UNROLL for (int j = 0; j < vectors; j++) {
      float *at = n + h * n_stride + j * VEC_LANES;
      vec_store(at, vec_add(vec_load(at), sums[h][j]));
    }
  }
}

/* Adds to all full blocks of columns from `column` on. Returns the first column after them. */
INLINE int32_t value_blocks(int heads, int vectors, int spread, const bny_attention_task *task, banyan_dtype dtype,
                            const char *v, int32_t count, next_lines *next, const float *p, float *n, int32_t n_stride,
                            int32_t column) {
  int32_t element = (int32_t)attention_element_bytes(dtype), block = vectors * VEC_LANES;
  for (; column + block <= task->value_dim; column += block)
    value_block(heads, vectors, spread, 0, task, dtype, v + column * element, count, next, p, n + column, n_stride);
  return column;
}

INLINE void value_heads(int heads, const bny_attention_task *task, banyan_dtype dtype, const char *v, int32_t count,
                        next_lines *next, const float *p, float *n, int32_t n_stride) {
  int32_t column = 0, dim = task->value_dim;
  UNROLL for (int vectors = VALUE_VECTORS(heads); vectors >= spread_vectors(dtype); vectors /= 2) {
    column = value_blocks(heads, vectors, spread_vectors(dtype), task, dtype, v, count, next, p, n, n_stride, column);
  }
  if (is_in_lines(dtype)) {
    column = value_blocks(heads, 2, 1, task, dtype, v, count, next, p, n, n_stride, column);
    column = value_blocks(heads, 1, 1, task, dtype, v, count, next, p, n, n_stride, column);
  }
  if (!is_grouped(dtype) && column < dim)
    value_block(heads, 1, 1, dim - column, task, dtype, v + column * (int32_t)attention_element_bytes(dtype), count,
                next, p, n + column, n_stride);
}

/* Returns the lines of as many later values as are being added, spread over the blocks of columns. */
INLINE next_lines next_values(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                              int32_t rows, bool far) {
  enum { BURST = 8 }; /* lines at once: a first-level cache waits for some 16 */
  int32_t element = (int32_t)attention_element_bytes(dtype), keys_ahead = attention_ahead(task, dtype);
  next_lines next = {.row = attention_row(task->v, task->v_token_stride, first + keys_ahead, dtype),
                     .step = task->v_token_stride * element,
                     .row_bytes = task->value_dim * element,
                     .rows = count,
                     .far = far};
  if (task->keys - first - count < keys_ahead) return next;
  if (rows == 1) {
    next.ahead = keys_ahead * next.step;
    return next;
  }
  int32_t heads = rows < VALUE_HEADS ? rows : VALUE_HEADS, columns = VALUE_VECTORS(heads) * VEC_LANES;
  int32_t turns = rows / VALUE_HEADS + (rows % VALUE_HEADS > 1);
  int32_t blocks = (task->value_dim + columns - 1) / columns * turns;
  int32_t lines = (next.row_bytes + LINE_BYTES - 1) / LINE_BYTES, burst = (count * lines + blocks - 1) / blocks;
  if (lines < blocks && burst <= BURST)
    next.block = burst;
  else
    next.key = (lines + blocks - 1) / blocks;
  return next;
}

INLINE void attention_accumulate(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                                 attention_work *work) {
  const char *v = attention_row(task->v, task->v_token_stride, first, dtype);
  int32_t end = work->row + work->rows;
  next_lines next = next_values(task, dtype, first, count, work->rows, work->far);
  for (int32_t h = work->row; h < end;) {
    const float *p = work->p + ATTENTION_QUAD * h;
    float *n = work->n + h * work->n_stride;
    int32_t left = end - h;
    int32_t stride = work->n_stride;
    if (left >= 4)
      value_heads(4, task, dtype, v, count, &next, p, n, stride);
    else if (left == 3)
      value_heads(3, task, dtype, v, count, &next, p, n, stride);
    else if (left == 2)
      value_heads(2, task, dtype, v, count, &next, p, n, stride);
    else
      value_heads(1, task, dtype, v, count, &next, p, n, stride);
    h += left < VALUE_HEADS ? left : VALUE_HEADS;
  }
}
