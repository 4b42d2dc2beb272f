/* SPDX-License-Identifier: Apache-2.0
 * The random number generator of all tests: splitmix64, a hashed counter. It gives the same numbers on every
 * machine. */
#pragma once

#include "base/hash.h"

static inline uint64_t random_word(uint64_t *state) {
  uint64_t word = bny_hash_of(*state);
  *state += BNY_HASH_STEP;
  return word;
}
