/* SPDX-License-Identifier: Apache-2.0
 * These attention kernels also need dot products of bf16 and permutations of bytes (VBMI), which Zen 4, Sapphire Rapids
 * and later processors have. */
#define ATTENTION_AVX512_BF16
#include "attention_avx512.c"
