/* SPDX-License-Identifier: Apache-2.0
 * The parameters of the kernel of tests/emulate/user_kernel.cuh. */
#pragma once

#include <stdint.h>

enum { USER_KERNEL_DIM_MAX = 160, USER_KERNEL_WARPS = 2 };

/* The kernel's options: it queries the number of tokens; it pushes rows from registers; all its blocks merge at
 * once. */
enum user_kernel_how { USER_KERNEL_ASKS = 1, USER_KERNEL_REGISTERS = 2, USER_KERNEL_MERGES = 4, USER_KERNEL_HOWS = 8 };

/* Contiguous rows of [tokens][heads] that the kernel has "computed". sum NULL: lse includes it. Tokens that a run does
 * not have are pushed like others, unless the kernel asks for their number. */
typedef struct user_kernel_rows {
  const float *values, *lse, *sum;
  uint32_t tokens, heads, value_dim;
  uint32_t turn; /* first row */
  uint32_t how;  /* bits of user_kernel_how */
} user_kernel_rows;
