/* SPDX-License-Identifier: Apache-2.0
 * Shared by the tests of kernels: a loop over their tables, and random numbers that are equal in every run. */
#pragma once

#include "op.h"
#include "tests/support/generator.h"
#include "tests/support/suite.h"

/* Runs the next statement for every table that this processor supports. */
#define EACH_KERNELS(table)                                                                     \
  for (const bny_kernels *const *at_ = bny_kernels_table, *table = *at_; table; table = *++at_) \
    if (table->supported())

static world_random state = 1;

/* Begins with the numbers of TEST_SEED. */
static inline void random_begin(void) {
  state = random_seed();
  printf("seed %llu (TEST_SEED)\n", (unsigned long long)state);
}

static inline uint32_t random_bits(void) { return (uint32_t)(random_next(&state) >> 32); }

static inline int random_int(int low, int high) { return low + (int)(random_bits() % (uint32_t)(high - low + 1)); }

static inline double random_real(double low, double high) {
  return low + (high - low) * ((double)random_bits() / 4294967296.0);
}
