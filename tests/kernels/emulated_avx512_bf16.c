/* SPDX-License-Identifier: Apache-2.0
 * The kernels of AVX512-BF16, whose instruction is emulated. */
#include "tests/kernels/emulated_tiles.h"

#include "cpu/attention_avx512_bf16.c"
