/* SPDX-License-Identifier: Apache-2.0
 * The random numbers of all tests: splitmix64, a hashed counter. It gives the same numbers on every machine, and other
 * ones for another TEST_SEED. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/hash.h"

typedef uint64_t world_random;

/* Returns TEST_SEED, or 1. */
static inline uint64_t random_seed(void) {
  const char *text = getenv("TEST_SEED");
  return text ? strtoull(text, NULL, 10) : 1;
}

static inline uint64_t random_next(world_random *random) {
  uint64_t word = bny_hash_of(*random);
  *random += BNY_HASH_STEP;
  return word;
}

/* Returns a number from 0 to limit - 1, and 0 if limit <= 0. */
static inline int32_t random_below(world_random *random, int32_t limit) {
  return limit > 0 ? (int32_t)(random_next(random) % (uint64_t)limit) : 0;
}

/* Returns a number in [-1, 1]. */
static inline double random_unit(world_random *random) { return (double)(random_next(random) >> 11) * 0x1p-52 - 1.0; }

static inline bool random_one_in(world_random *random, int32_t n) { return random_below(random, n) == 0; }
