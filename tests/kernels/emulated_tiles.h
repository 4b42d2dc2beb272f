/* SPDX-License-Identifier: Apache-2.0
 * The instructions of AVX512-BF16 and AMX on a processor that has only AVX-512 with VBMI. Kernels that are compiled
 * behind this header do the same arithmetic there: products are added in the order of Intel's manual, each sum is
 * rounded to nearest, and numbers below 2^-126 are 0. */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef BNY_HAVE_AVX512_BF16
#define BNY_HAVE_AVX512_BF16 1
#endif
#ifndef BNY_HAVE_AMX
#define BNY_HAVE_AMX 1
#endif
#define bny_attention_avx512_bf16 emulated_attention_avx512_bf16
#define bny_attention_amx emulated_attention_amx
#define bny_cpu_has_avx512_bf16 emulated_is_possible
#define bny_cpu_has_amx emulated_is_possible

bool emulated_is_possible(void);

#ifdef __AVX512F__
/* Subnormal numbers become 0. */
static inline __m512 emulated_flush(__m512 x) {
  enum { SUBNORMAL = 0x20 };
  return _mm512_mask_and_ps(x, _mm512_fpclass_ps_mask(x, SUBNORMAL), x, _mm512_set1_ps(-0.0F));
}

static inline __m512 emulated_even(__m512i pairs) {
  return emulated_flush(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
}

static inline __m512 emulated_odd(__m512i pairs) {
  return emulated_flush(_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000))));
}

static inline __m512 emulated_add(__m512 sum, __m512 a, __m512 b) { return emulated_flush(_mm512_fmadd_ps(a, b, sum)); }

static inline __m512 emulated_dpbf16(__m512 sum, __m512i a, __m512i b) {
  sum = emulated_add(emulated_flush(sum), emulated_odd(a), emulated_odd(b));
  return emulated_add(sum, emulated_even(a), emulated_even(b));
}
#define _mm512_dpbf16_ps(sum, a, b) emulated_dpbf16(sum, (__m512i)(a), (__m512i)(b))

/* The tile registers of a thread. Bytes and rows beyond a register's shape are 0. */
typedef struct emulated_tiles {
  uint16_t row_bytes[16];
  uint8_t rows[16];
  uint8_t bytes[8][16][64];
} emulated_tiles;

extern _Thread_local emulated_tiles emulated;

static inline void emulated_configure(const void *config) {
  memcpy(emulated.row_bytes, (const char *)config + 16, sizeof emulated.row_bytes);
  memcpy(emulated.rows, (const char *)config + 48, sizeof emulated.rows);
  memset(emulated.bytes, 0, sizeof emulated.bytes);
}

static inline void emulated_load(int tile, const void *from, int64_t stride) {
  memset(emulated.bytes[tile], 0, sizeof emulated.bytes[tile]);
  for (int i = 0; i < emulated.rows[tile]; i++)
    memcpy(emulated.bytes[tile][i], (const char *)from + i * stride, emulated.row_bytes[tile]);
}

static inline void emulated_store(int tile, void *to, int64_t stride) {
  for (int i = 0; i < emulated.rows[tile]; i++)
    memcpy((char *)to + i * stride, emulated.bytes[tile][i], emulated.row_bytes[tile]);
}

static inline void emulated_zero(int tile) { memset(emulated.bytes[tile], 0, sizeof emulated.bytes[tile]); }

/* An instruction faults if the shapes of its registers do not fit. */
static inline void emulated_multiply(int to, int a, int b) {
  if (emulated.rows[to] != emulated.rows[a] || emulated.row_bytes[to] != emulated.row_bytes[b] ||
      emulated.row_bytes[a] != 4 * emulated.rows[b])
    __builtin_trap();
  for (int i = 0; i < emulated.rows[to]; i++) {
    __m512 even = _mm512_setzero_ps(), odd = even;
    for (int k = 0; k < emulated.rows[b]; k++) {
      int32_t pair;
      memcpy(&pair, emulated.bytes[a][i] + 4 * k, sizeof pair);
      const __m512i factor = _mm512_set1_epi32(pair), row = _mm512_loadu_si512(emulated.bytes[b][k]);
      even = emulated_add(even, emulated_even(factor), emulated_even(row));
      odd = emulated_add(odd, emulated_odd(factor), emulated_odd(row));
    }
    const __m512 sum = emulated_flush(_mm512_loadu_ps(emulated.bytes[to][i]));
    const __m512 added = emulated_flush(_mm512_add_ps(even, odd));
    const __mmask16 columns = (__mmask16)((1u << emulated.row_bytes[to] / 4) - 1);
    _mm512_storeu_ps(emulated.bytes[to][i], _mm512_maskz_mov_ps(columns, emulated_flush(_mm512_add_ps(sum, added))));
  }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) emulated_configure(config)
#define _tile_loadd(tile, from, stride) emulated_load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated_store(tile, to, stride)
#define _tile_zero(tile) emulated_zero(tile)
#define _tile_dpbf16ps(to, a, b) emulated_multiply(to, a, b)
#define _tile_release() emulated_configure(&(const uint8_t[64]){0})
#endif
