/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention for AVX-512 with dot products of bf16 and permutations of bytes (VBMI): Zen 4, Sapphire Rapids and later.
 */
#define ATTENTION_AVX512_BF16
#include "attention_avx512.c"
