/* SPDX-License-Identifier: Apache-2.0
 * These attention kernels need AVX2, FMA and F16C. */
#include <immintrin.h>
#include <string.h>

#include "attention.h"
#include "detect.h"

#define ATTENTION_FORMS               \
  X(attention_over_f32, BANYAN_F32)   \
  X(attention_over_f16, BANYAN_F16)   \
  X(attention_over_bf16, BANYAN_BF16) \
  X(attention_over_e5m2, BANYAN_E5M2) \
  X(attention_over_i8, BANYAN_I8)
#define ATTENTION_OWN_TILE

#include "attention_loop.h"

typedef __m256 vec;
typedef __m128 vec4;
#include "vec.h"

enum { VEC_LANES = 8, DIRECT_E4M3 = 0, DIRECT_E5M2 = 4 };

INLINE vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }

INLINE vec widen(__m128i halves, banyan_dtype dtype) {
  if (dtype == BANYAN_F16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* E4M3 becomes an f16 with its exponent and mantissa: that is 2^-8 times the value, subnormals included. */
INLINE vec widen_bytes(__m128i bytes, banyan_dtype dtype) {
  if (dtype == BANYAN_I8) return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  if (dtype == BANYAN_E5M2) return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8));
  __m128i halves = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7), _mm_set1_epi16((short)0xbf80));
  __m128i magnitude = _mm_and_si128(halves, _mm_set1_epi16(0x3f80));
  __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x3f80));
  return _mm256_cvtph_ps(_mm_or_si128(halves, _mm_and_si128(is_nan, _mm_set1_epi16(0x7e00))));
}

INLINE vec vec_row(const char *at, banyan_dtype dtype) {
  if (dtype == BANYAN_F32) return _mm256_loadu_ps((const float *)at);
  if (attention_element_bytes(dtype) == 2) return widen(_mm_loadu_si128((const __m128i *)at), dtype);
  return widen_bytes(_mm_loadl_epi64((const __m128i *)at), dtype);
}

INLINE vec vec_row_tail(const char *at, int32_t count, banyan_dtype dtype) {
  char elements[32] = {0};
  if (count > 0) memcpy(elements, at, (size_t)count * attention_element_bytes(dtype));
  return vec_row(elements, dtype);
}

/* Converts 64 elements. An E4M3 that is NaN takes further instructions. */
INLINE void vec_group(const char *at, banyan_dtype dtype, vec *values) {
  const __m256i sign = _mm256_set1_epi8((char)0x80), nan = _mm256_set1_epi8(-1);
  const __m256i a = _mm256_loadu_si256((const __m256i *)at), b = _mm256_loadu_si256((const __m256i *)at + 1);
  const __m256i is_nan = _mm256_or_si256(_mm256_cmpeq_epi8(_mm256_or_si256(a, sign), nan),
                                         _mm256_cmpeq_epi8(_mm256_or_si256(b, sign), nan));
  if (dtype != BANYAN_E4M3 || !_mm256_testz_si256(is_nan, is_nan)) {
    UNROLL for (int i = 0; i < 8; i++) values[i] = vec_row(at + 8 * i, dtype);
    return;
  }
  __m256i halves[4];
  UNROLL for (int i = 0; i < 4; i++) {
    __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)at + i));
    halves[i] = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80));
  }
  /* Converting from memory spares the port of shuffles. */
  UNROLL for (int i = 0; i < 8; i++) __asm__("vcvtph2ps %1, %0" : "=x"(values[i]) : "m"(((__m128i *)halves)[i]));
}

/* Transposes during the addition: lane i of each 128 bits becomes the sum of vector i's four elements there. */
INLINE vec sums_of_halves(const vec *v) {
  vec s01 = _mm256_add_ps(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
  vec s23 = _mm256_add_ps(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
  __m256d d01 = _mm256_castps_pd(s01), d23 = _mm256_castps_pd(s23);
  return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(d01, d23)), _mm256_castpd_ps(_mm256_unpackhi_pd(d01, d23)));
}

INLINE vec vec4_load(const float *at) { return _mm256_zextps128_ps256(_mm_loadu_ps(at)); }

INLINE vec vec_scores(const float *p, int rows) { return rows < 2 ? vec4_load(p) : vec_load(p); }

INLINE void vec4_store(float *at, vec4 value) { _mm_storeu_ps(at, value); }

INLINE vec4 vec_four_sums(const vec *v) {
  vec sums = sums_of_halves(v);
  return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

INLINE vec vec_least(vec a, vec b) { return _mm256_min_ps(a, b); }

INLINE bool vec_any_positive(vec a) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_GT_OQ)) != 0;
}

INLINE vec exp2_fraction(vec f);

/* The whole part goes into the exponent. The result is a normal number, because x >= -125. */
INLINE vec vec_exp2(vec x) {
  vec kept = _mm256_cmp_ps(x, _mm256_set1_ps(-125.0f), _CMP_NLT_UQ);
  vec whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256i y = _mm256_castps_si256(exp2_fraction(_mm256_sub_ps(x, whole)));
  y = _mm256_add_epi32(y, _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23));
  return _mm256_and_ps(_mm256_castsi256_ps(y), kept);
}

#include "attention_plain.h"
#include "attention_vector.h"

/* Logits, weights and values use 16 registers. 12 of them are sums, because two fused multiply-add units with a latency
 * of 4 need at least 8. One vector of keys or values is converted at a time, for as many heads as the sums
 * allow. E4M3 takes too many instructions for that: its tiles are converted to f32 once, in the first-level cache.
 * Logits of a tile are stored where its weights will be, and weighed together. The next tile is prefetched in the
 * order of memory meanwhile. */

enum {
  KEY_HEADS = 3,          /* heads whose sums over a quad of keys are in registers */
  VALUE_HEADS = 4,        /* heads whose sums over some columns are */
  VALUES_MOST = 8,        /* vectors of columns, for one head */
  TILE_BYTES_MOST = 16384 /* keys as loops read them: half of a first-level cache of 32 KiB */
};

/* ---- the next tile ----------------------------------------------------------------------------------------------- */

typedef struct next_lines {
  attention_next next;
  int32_t at;    /* bytes of its first row that are prefetched */
  int32_t lines; /* to prefetch at each step of the work on this tile */
  bool far;      /* passed to attention_prefetch() */
} next_lines;

INLINE next_lines lines_of(const attention_next *next, int32_t steps, bool far) {
  int32_t lines = (next->row_bytes + LINE_BYTES - 1) / LINE_BYTES * next->rows;
  return (next_lines){.next = *next, .lines = (lines + steps - 1) / steps, .far = far};
}

INLINE void prefetch_next(next_lines *ahead, int32_t lines) {
  for (; lines > 0 && ahead->next.rows > 0; lines--) {
    attention_prefetch(ahead->next.row + ahead->at, ahead->far);
    ahead->at += LINE_BYTES;
    if (ahead->at < ahead->next.row_bytes) continue;
    ahead->at = 0;
    ahead->next.row += ahead->next.step;
    ahead->next.rows--;
  }
}

INLINE int64_t bytes_of(banyan_dtype dtype) { return (int64_t)attention_element_bytes(dtype); }

/* Long tiles add sums to memory less often. */
static int32_t attention_tile(const bny_attention_task *task) {
  int32_t columns = bny_attention_padded(task->head_dim > task->value_dim ? task->head_dim : task->value_dim);
  int32_t keys = TILE_BYTES_MOST / (columns * (int32_t)bytes_of(task->kv_dtype)) / ATTENTION_QUAD * ATTENTION_QUAD;
  return keys > ATTENTION_TILE ? ATTENTION_TILE : keys < 2 * ATTENTION_QUAD ? 2 * ATTENTION_QUAD : keys;
}

static banyan_dtype attention_form(const bny_attention_task *task) {
  return is_converted(task) ? BANYAN_F32 : task->kv_dtype;
}

/* ---- logits: some heads x a quad of keys ------------------------------------------------------------------------- */

/* Adds products of a vector of columns of four keys, `step` bytes apart. `tail` is its number of elements; 0: all. */
INLINE void score_columns(int heads, banyan_dtype dtype, const float *q, int64_t q_stride, const char *k, int64_t step,
                          int32_t tail, vec (*sums)[ATTENTION_QUAD]) {
  vec query[KEY_HEADS];
  UNROLL for (int h = 0; h < heads; h++) query[h] = vec_load(q + h * q_stride);
  UNROLL for (int i = 0; i < ATTENTION_QUAD; i++) {
    vec key = tail != 0 ? vec_row_tail(k + i * step, tail, dtype) : vec_row(k + i * step, dtype);
    UNROLL for (int h = 0; h < heads; h++) sums[h][i] = vec_fma(query[h], key, sums[h][i]);
  }
}

/* Computes the scores of a quad. With one head, `quads` may be 2, and the next quad fills the free sums. */
INLINE void score_quads(int heads, int quads, banyan_dtype dtype, const float *q, int64_t q_stride, const char *k,
                        int64_t step, int32_t dim, vec4 *scores) {
  vec sums[KEY_HEADS][ATTENTION_QUAD];
  int64_t bytes = bytes_of(dtype) * VEC_LANES, next = ATTENTION_QUAD * step;
  const float *end = q + dim / VEC_LANES * VEC_LANES;
  UNROLL for (int h = 0; h < heads * quads; h++) {
    UNROLL for (int i = 0; i < ATTENTION_QUAD; i++) sums[h][i] = vec_zero();
  }
  UNROLL2 for (; q < end; q += VEC_LANES, k += bytes) {
    score_columns(heads, dtype, q, q_stride, k, step, 0, sums);
    if (quads == 2) score_columns(1, dtype, q, q_stride, k + next, step, 0, sums + 1);
  }
  if (dim % VEC_LANES != 0) {
    score_columns(heads, dtype, q, q_stride, k, step, dim % VEC_LANES, sums);
    if (quads == 2) score_columns(1, dtype, q, q_stride, k + next, step, dim % VEC_LANES, sums + 1);
  }
  UNROLL for (int h = 0; h < heads * quads; h++) scores[h] = vec_four_sums(sums[h]);
}

/* Writes the scores of `heads` rows and the keys of a tile to p, in the layout of weights. */
INLINE void score_heads(int heads, banyan_dtype dtype, const float *q, int64_t q_stride, const char *k, int64_t step,
                        int32_t dim, int32_t count, next_lines *next, float *p) {
  vec4 scores[KEY_HEADS];
  int32_t i = 0;
  for (; heads == 1 && i + 2 * ATTENTION_QUAD <= count; i += 2 * ATTENTION_QUAD) {
    prefetch_next(next, 2 * next->lines);
    score_quads(1, 2, dtype, q, q_stride, k, step, dim, scores);
    vec4_store(p, scores[0]);
    vec4_store(p + ATTENTION_LANES, scores[1]);
    k += 2 * ATTENTION_QUAD * step;
    p += 2 * ATTENTION_LANES;
  }
  for (; i + ATTENTION_QUAD <= count; i += ATTENTION_QUAD) {
    prefetch_next(next, next->lines);
    score_quads(heads, 1, dtype, q, q_stride, k, step, dim, scores);
    UNROLL for (int h = 0; h < heads; h++) vec4_store(p + ATTENTION_QUAD * h, scores[h]);
    k += ATTENTION_QUAD * step;
    p += ATTENTION_LANES;
  }
  for (int32_t key = 0; i + key < count; key++, k += step) { /* the same key four times */
    float lanes[ATTENTION_QUAD];
    score_quads(heads, 1, dtype, q, q_stride, k, 0, dim, scores);
    UNROLL for (int h = 0; h < heads; h++) {
      vec4_store(lanes, scores[h]);
      p[ATTENTION_QUAD * h + key] = lanes[0];
    }
  }
}

INLINE void score_tile(banyan_dtype dtype, const char *k, int64_t step, int32_t dim, int32_t count, next_lines *next,
                       attention_work *work) {
  const float *q = work->q + work->row * work->q_stride;
  float *p = work->p + ATTENTION_QUAD * work->row;
  for (int32_t left = work->rows, heads; left > 0; left -= heads) {
    heads = left < KEY_HEADS ? left : KEY_HEADS;
    if (heads == 3)
      score_heads(3, dtype, q, work->q_stride, k, step, dim, count, next, p);
    else if (heads == 2)
      score_heads(2, dtype, q, work->q_stride, k, step, dim, count, next, p);
    else
      score_heads(1, dtype, q, work->q_stride, k, step, dim, count, next, p);
    q += heads * work->q_stride;
    p += heads * ATTENTION_QUAD;
  }
}

INLINE void attention_weigh(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                            attention_work *work) {
  const char *k = attention_row(task->k, task->k_token_stride, first, dtype);
  int64_t step = task->k_token_stride * bytes_of(dtype);
  int32_t dim = task->head_dim, end = work->row + work->rows, h = work->row;
  int32_t steps = (work->rows + KEY_HEADS - 1) / KEY_HEADS * ((count + ATTENTION_QUAD - 1) / ATTENTION_QUAD);
  next_lines next = lines_of(&work->next_k, steps, work->far);
  for (int32_t i = count; i % ATTENTION_QUAD != 0; i++) /* lanes of no key are numbers too */
    for (int32_t row = h; row < end; row++)
      work->p[i / ATTENTION_QUAD * ATTENTION_LANES + ATTENTION_QUAD * row + i % ATTENTION_QUAD] = 0;
  score_tile(dtype, k, step, dim, count, &next, work);
  for (; end - h >= SUM_HEADS; h += SUM_HEADS) weigh_rows(SUM_HEADS, task, h, 0, count, work);
  if (h < end) weigh_rows(1, task, h, 0, count, work);
}

/* ---- values: some heads x vectors of columns --------------------------------------------------------------------- */

/* Adds weighted values. p has the weights of the first head and key. `tail`: elements in the last vector; 0: all. */
INLINE void value_block(int heads, int vectors, int32_t tail, banyan_dtype dtype, const char *v, int64_t step,
                        int32_t count, next_lines *next, const float *p, float *n, int64_t n_stride) {
  int64_t bytes = bytes_of(dtype) * VEC_LANES;
  vec sums[VALUE_HEADS][VALUES_MOST];
  UNROLL for (int h = 0; h < heads; h++) { UNROLL for (int j = 0; j < vectors; j++) sums[h][j] = vec_zero(); }
  for (int32_t i = 0; i < count; i += ATTENTION_QUAD, p += ATTENTION_LANES) {
    int32_t keys = count - i < ATTENTION_QUAD ? count - i : ATTENTION_QUAD;
    prefetch_next(next, next->lines);
    for (int32_t key = 0; key < keys; key++, v += step) {
      vec values[VALUES_MOST];
      UNROLL for (int j = 0; j < vectors; j++) {
        values[j] = tail != 0 ? vec_row_tail(v + j * bytes, tail, dtype) : vec_row(v + j * bytes, dtype);
      }
      UNROLL for (int h = 0; h < heads; h++) {
        vec weight = vec_set1(p[ATTENTION_QUAD * h + key]);
        UNROLL for (int j = 0; j < vectors; j++) sums[h][j] = vec_fma(weight, values[j], sums[h][j]);
      }
    }
  }
  UNROLL for (int h = 0; h < heads; h++) {
    UNROLL for (int j = 0; j < vectors; j++) {
      float *at = n + h * n_stride + j * VEC_LANES;
      vec_store(at, vec_add(vec_load(at), sums[h][j]));
    }
  }
}

/* Returns the number of vectors of columns whose sums for `heads` heads fit in registers. */
INLINE int32_t value_vectors(int32_t heads) { return heads >= VALUE_HEADS ? 3 : heads == 3 ? 4 : heads == 2 ? 6 : 8; }

/* Adds all columns. Blocks of 3 vectors leave none alone: 4 vectors are two blocks of 2. */
INLINE void value_heads(int heads, banyan_dtype dtype, const char *v, int64_t step, int32_t dim, int32_t count,
                        next_lines *next, const float *p, float *n, int64_t n_stride) {
  int64_t bytes = bytes_of(dtype) * VEC_LANES;
  const int most = value_vectors(heads);
  for (int32_t left = dim / VEC_LANES, vectors; left > 0; left -= vectors) {
    if (left >= most && left != most + 1) {
      vectors = most;
      value_block(heads, most, 0, dtype, v, step, count, next, p, n, n_stride);
    } else if (most > 4 && left >= 4) {
      vectors = 4;
      value_block(heads, 4, 0, dtype, v, step, count, next, p, n, n_stride);
    } else if (left >= 2) {
      vectors = 2;
      value_block(heads, 2, 0, dtype, v, step, count, next, p, n, n_stride);
    } else {
      vectors = 1;
      value_block(heads, 1, 0, dtype, v, step, count, next, p, n, n_stride);
    }
    v += vectors * bytes;
    n += vectors * VEC_LANES;
  }
  if (dim % VEC_LANES != 0) value_block(heads, 1, dim % VEC_LANES, dtype, v, step, count, next, p, n, n_stride);
}

INLINE void value_tile(banyan_dtype dtype, const char *v, int64_t step, int32_t dim, int32_t count, next_lines *next,
                       attention_work *work) {
  const float *p = work->p + ATTENTION_QUAD * work->row;
  float *n = work->n + work->row * work->n_stride;
  int64_t stride = work->n_stride;
  for (int32_t left = work->rows, heads; left > 0; left -= heads) {
    heads = left < VALUE_HEADS ? left : VALUE_HEADS;
    if (heads == 4)
      value_heads(4, dtype, v, step, dim, count, next, p, n, stride);
    else if (heads == 3)
      value_heads(3, dtype, v, step, dim, count, next, p, n, stride);
    else if (heads == 2)
      value_heads(2, dtype, v, step, dim, count, next, p, n, stride);
    else
      value_heads(1, dtype, v, step, dim, count, next, p, n, stride);
    p += heads * ATTENTION_QUAD;
    n += heads * stride;
  }
}

INLINE void attention_accumulate(const bny_attention_task *task, banyan_dtype dtype, int32_t first, int32_t count,
                                 attention_work *work) {
  const char *v = attention_row(task->v, task->v_token_stride, first, dtype);
  int64_t step = task->v_token_stride * bytes_of(dtype);
  int32_t dim = task->value_dim, columns = value_vectors(work->rows) * VEC_LANES;
  int32_t blocks = (dim + columns - 1) / columns * ((work->rows + VALUE_HEADS - 1) / VALUE_HEADS);
  next_lines next = lines_of(&work->next_v, blocks * ((count + ATTENTION_QUAD - 1) / ATTENTION_QUAD), work->far);
  value_tile(dtype, v, step, dim, count, &next, work);
}

enum { PROMPT_ROWS = 6 };

INLINE vec vec_most(vec a, vec b) { return _mm256_max_ps(a, b); }

INLINE float vec_top(vec a) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

INLINE float vec_total(vec a) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE vec vec_kept(uint32_t bits, vec a, vec b) {
  const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  __m256i kept = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), each), each);
  return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(kept));
}

INLINE bool vec_all_zero(vec a) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_EQ_OQ)) == 0xff;
}

INLINE void vec_transpose(vec *v) {
  vec halves[VEC_LANES];
  UNROLL for (int i = 0; i < VEC_LANES; i += 4) {
    __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(v[i], v[i + 1])),
            b = _mm256_castps_pd(_mm256_unpackhi_ps(v[i], v[i + 1])),
            c = _mm256_castps_pd(_mm256_unpacklo_ps(v[i + 2], v[i + 3])),
            d = _mm256_castps_pd(_mm256_unpackhi_ps(v[i + 2], v[i + 3]));
    halves[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
    halves[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
    halves[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
    halves[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
  }
  UNROLL for (int i = 0; i < 4; i++) {
    v[i] = _mm256_permute2f128_ps(halves[i], halves[i + 4], 0x20);
    v[i + 4] = _mm256_permute2f128_ps(halves[i], halves[i + 4], 0x31);
  }
}

typedef vec word_vec;
enum { BF16_DOTS = 0 };

INLINE vec vec_dot(vec sums, vec query, word_vec words) {
  (void)query;
  (void)words;
  return sums;
}

#include "attention_prompt.h"
#include "attention_bounds.h"

const bny_attention_kernels bny_attention_avx2 = {
    "avx2", "avx2", bny_cpu_has_avx2, attention_run, attention_code_masses, attention_run_many, attention_many_bytes};
