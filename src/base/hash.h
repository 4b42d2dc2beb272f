/* SPDX-License-Identifier: Apache-2.0
 * The only hash of integers: for comparison among ranks, for tables and for patterns in memory. It protects no secret,
 * and is the same on all ranks. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { BNY_HASH_START = 1 };
#define BNY_HASH_STEP UINT64_C(0x9e3779b97f4a7c15)

/* One step of splitmix64. */
static inline uint64_t bny_hash_of(uint64_t word) {
  uint64_t x = word + BNY_HASH_STEP;
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

/* Extends a hash by one more word. The order of words matters. */
static inline uint64_t bny_hash_add(uint64_t hash, uint64_t word) { return bny_hash_of(hash ^ word); }

static inline uint64_t bny_hash_add_bytes(uint64_t hash, const void *data, size_t bytes) {
  const unsigned char *from = (const unsigned char *)data;
  for (size_t step; bytes > 0; from += step, bytes -= step) {
    uint64_t word = 0;
    step = bytes < sizeof word ? bytes : sizeof word;
    memcpy(&word, from, step);
    hash = bny_hash_add(hash, word);
  }
  return hash;
}

static inline uint64_t bny_hash_add_double(uint64_t hash, double value) {
  return bny_hash_add_bytes(hash, &value, sizeof value);
}
