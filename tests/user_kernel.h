/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of tests/user_kernel.cuh is told. */
#ifndef BNY_TESTS_USER_KERNEL_H
#define BNY_TESTS_USER_KERNEL_H

#include <stdint.h>

enum { USER_KERNEL_DIM_MAX = 160, USER_KERNEL_WARPS = 2 };

/* Rows of [tokens][heads], one after another, that it has "computed". sum NULL: lse has it. */
typedef struct user_kernel_rows {
  const float *values, *lse, *sum;
  uint32_t tokens, heads, value_dim;
  uint32_t turn; /* where it begins */
} user_kernel_rows;

#endif
