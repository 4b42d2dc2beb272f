/* SPDX-License-Identifier: Apache-2.0
 * The list of kernels has the emulated ones and those in C. It takes the place of the library's in a program. */
#include "tests/kernels/emulated_tiles.h"

#undef BNY_HAVE_AVX512
#undef BNY_HAVE_AVX2
#include "cpu/attention_table.c"

#include "cpu/detect.h"

bool emulated_is_possible(void) { return bny_cpu_has_avx512() && __builtin_cpu_supports("avx512vbmi"); }
