/* SPDX-License-Identifier: Apache-2.0
 * Work memory and registers of the AMX kernels, and how numbers are cut into bf16, queries are packed and later tiles
 * are prefetched. The including file defines the other hooks of attention_loop.h, and explains the whole. */
#pragma once

#include <immintrin.h>

#include "attention.h"

/* ---- work memory and registers ----------------------------------------------------------------------------------- */

#define ATTENTION_FORMS                                         \
  X(attention_over_f16_matrix, BANYAN_F16 | ATTENTION_MATRIX)   \
  X(attention_over_bf16_matrix, BANYAN_BF16 | ATTENTION_MATRIX) \
  X(attention_over_e4m3_matrix, BANYAN_E4M3 | ATTENTION_MATRIX) \
  X(attention_over_i8_matrix, BANYAN_I8 | ATTENTION_MATRIX)

enum {
  KEYS = 32,      /* keys of a tile */
  HALF = 16,      /* keys of a register */
  WORDS = 32,     /* bf16 of a row of a register: columns of a step */
  ROW_BYTES = 64, /* bytes of a row of a register */
  PARTS_MAX = 3,  /* bf16 of an f32 */
  STEPS_MAX = 36, /* steps of queries, times their parts */
  KEY_LINES = BNY_ATTENTION_HEAD_DIM_MAX / WORDS,
  GROUP = 64, /* columns of values that are multiplied together */
  GROUP_TILES = GROUP / HALF
};

/* Walks the lines of a later tile in memory order, which the hardware prefetcher follows. */
typedef struct lines_ahead {
  const char *row;
  int64_t step, second; /* bytes from a row to the next; from the first line of a pair to the second */
  int32_t at, row_bytes;
} lines_ahead;

typedef struct matrix_work {
  uint16_t q[STEPS_MAX][HALF][WORDS];        /* [part and step][pair of columns][row and column of the pair] */
  uint16_t k[KEY_LINES][2][KEYS][WORDS];     /* matrices of each line of keys, unless memory has this layout */
  float logits[KEYS * HALF], p[KEYS * HALF]; /* [key][row]; p: weights */
  uint16_t weights[PARTS_MAX * HALF][KEYS];  /* [part and row][pair of keys] */
  uint16_t v[2][GROUP_TILES][HALF][WORDS]; /* [pair of keys][column and key of the pair]: one is filled, one is read */
  float n[HALF][HALF];                     /* sums of all rows, if only some are current: [row][column] */
  const char *next;  /* the first key of the next tile, whose logits are made while values are added; or NULL */
  const char *ready; /* the first key of the tile whose logits are made; or NULL */
  lines_ahead keys_ahead, values_ahead;
} __attribute__((aligned(64))) matrix_work;

#define ATTENTION_MORE_WORK matrix_work
#define ATTENTION_MATRIX_ONLY
#include "attention_loop.h"
#include "attention_avx512.h"
#include "attention_bounds.h"
#include "attention_bytes.h"

/* Stops the compiler from moving memory accesses: it does not know that tile instructions read and write memory. */
#define FENCE() __asm__ volatile("" ::: "memory")

/* These names are pasted into instructions. */
#define T_KEYS 0
#define T_VALUES 0
#define T_QUERIES 1
#define T_LOGITS_0 2
#define T_LOGITS_1 3
#define T_WEIGHTS_0 4
#define T_WEIGHTS_1 5
#define T_WEIGHTS_2 6
#define T_SUMS 7

/* Returns the number of query rows that are multiplied: 4, 8 or 16. */
INLINE int32_t rows_of(const bny_attention_task *task) { return task->heads <= 4 ? 4 : task->heads <= 8 ? 8 : 16; }

INLINE int32_t parts_of(banyan_dtype q_dtype) { return q_dtype == BANYAN_BF16 ? 1 : q_dtype == BANYAN_F16 ? 2 : 3; }

INLINE banyan_dtype type_of(banyan_dtype form) { return (banyan_dtype)((int)form & ATTENTION_TYPE); }
INLINE bool is_bytes(banyan_dtype form) { return type_of(form) == BANYAN_E4M3 || type_of(form) == BANYAN_I8; }

INLINE bool is_cut(banyan_dtype form) { return type_of(form) == BANYAN_F16; }

static banyan_dtype attention_form(const bny_attention_task *task) {
  return (banyan_dtype)((int)task->kv_dtype | ATTENTION_MATRIX);
}

static double attention_factor(banyan_dtype form) {
  (void)form;
  return 1;
}

/* Returns the lanes of a vector, from lane `first` on, that are among the first `lanes`. */
INLINE __mmask16 lanes_before(int32_t lanes, int32_t first) {
  int32_t left = lanes - first;
  return left >= HALF ? 0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0;
}

static void attention_convert(const char *row, int32_t count, banyan_dtype dtype, const float *scale, float *values) {
  (void)scale; /* is NULL for what these kernels read */
  for (int32_t i = 0; i < count; i += HALF) {
    int32_t left = count - i < HALF ? count - i : HALF;
    vec value = vec_row_tail(row + (size_t)i * attention_element_bytes(dtype), left, dtype);
    _mm512_mask_storeu_ps(values + i, lanes_before(count, i), value);
  }
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* Cuts off the upper eight bits of a number, so that the rest is exact. */
INLINE __m512i upper_part(__m512 *value) {
  __m512i part = _mm512_and_si512(_mm512_castps_si512(*value), _mm512_set1_epi32((int)0xffff0000));
  *value = _mm512_sub_ps(*value, _mm512_castsi512_ps(part));
  return part;
}

/* Returns 16 pairs of bf16, with those of `low` in the lower halves. */
INLINE __m512i pairs_of(__m512i low, __m512i high) { return _mm512_or_si512(_mm512_srli_epi32(low, 16), high); }

/* Cuts 32 f16 into upper and lower bf16. Those of `a` are in the lower halves of each pair. */
INLINE void cut_halves(__m256i a, __m256i b, __m512i *upper, __m512i *lower) {
  __m512 low = _mm512_cvtph_ps(a), high = _mm512_cvtph_ps(b);
  __m512i low_part = upper_part(&low), high_part = upper_part(&high);
  *upper = pairs_of(low_part, high_part);
  *lower = pairs_of(_mm512_castps_si512(low), _mm512_castps_si512(high));
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

/* Loads the 32 columns of a step: the first of each pair, and the second. For f16 the two are 16 columns apart. Bytes
 * are unpacked within groups of 16, and the first 8 of each group belong to one step. */
INLINE void step_columns(banyan_dtype form, const float *q, int32_t step, __m512 *even, __m512 *odd) {
  __m512 low = _mm512_loadu_ps(q), high = _mm512_loadu_ps(q + HALF);
  if (is_cut(form)) {
    *even = low;
    *odd = high;
    return;
  }
  if (is_bytes(form)) {
    const float *group = q - step % 2 * WORDS;
    __m512 c[4];
    UNROLL for (int i = 0; i < 4; i++) c[i] = _mm512_loadu_ps(group + i * HALF);
    low = step % 2 ? _mm512_shuffle_f32x4(c[0], c[1], 0xee) : _mm512_shuffle_f32x4(c[0], c[1], 0x44);
    high = step % 2 ? _mm512_shuffle_f32x4(c[2], c[3], 0xee) : _mm512_shuffle_f32x4(c[2], c[3], 0x44);
  }
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  *even = _mm512_permutex2var_ps(low, evens, high);
  *odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), high);
}

static void attention_pack(const bny_attention_task *task, banyan_dtype form, attention_work *work, int32_t h) {
  const __m512i at = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                        _mm512_set1_epi32(HALF));
  int32_t parts = parts_of(task->q_dtype), steps = task->head_dim / WORDS;
  const float *q = work->q + h * work->q_stride;
  if (h == 0) {
    memset(work->more.q, 0, (size_t)(steps * parts) * sizeof work->more.q[0]);
    work->more.next = work->more.ready = NULL;
  }
  for (int32_t step = 0; step < steps; step++) {
    __m512 even, odd;
    step_columns(form, q + step * WORDS, step, &even, &odd);
    for (int32_t part = 0; part < parts; part++) {
      __m512i low = upper_part(&even), high = upper_part(&odd);
      int32_t *to = (int32_t *)(void *)work->more.q[(parts - 1 - part) * steps + step];
      _mm512_i32scatter_epi32(to + h, at, pairs_of(low, high), 4);
    }
  }
}

/* ---- prefetching ------------------------------------------------------------------------------------------------- */

/* Returns the lines of the full tile that is `tiles` further, or the current lines if there is none. */
INLINE lines_ahead lines_after(const bny_attention_task *task, banyan_dtype form, const void *base,
                               int64_t token_stride, int32_t columns, int32_t first, int32_t tiles) {
  bool has_next = task->keys - first >= (tiles + 1) * KEYS;
  int64_t stride = token_stride * (int64_t)attention_element_bytes(form);
  int32_t row_bytes = columns * (int32_t)attention_element_bytes(form);
  bool is_line = row_bytes == ROW_BYTES;
  return (lines_ahead){.row = (const char *)base + stride * (has_next ? first + tiles * KEYS : first),
                       .step = !has_next ? 0
                               : is_line ? 2 * stride
                                         : stride,
                       .second = is_line && has_next ? stride
                                 : is_line           ? 0
                                                     : ROW_BYTES,
                       .row_bytes = row_bytes};
}

/* Prefetches two lines. If a row has one line, the second belongs to the next row. */
INLINE void prefetch_pair(lines_ahead *lines) {
  const char *at = lines->row + lines->at;
  __builtin_prefetch(at, 0, 3);
  __builtin_prefetch(at + lines->second, 0, 3);
  lines->at += 2 * ROW_BYTES;
  bool is_end = lines->at >= lines->row_bytes;
  lines->at = is_end ? 0 : lines->at;
  lines->row += is_end ? lines->step : 0;
}
