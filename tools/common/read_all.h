/* SPDX-License-Identifier: Apache-2.0
 * A loop that only reads memory. Attention over the same memory is compared with its speed. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Returns the sum of all words, in lines of 64 bytes. Eight sums hide the latency of additions, so that only reads take
 * time. The caller must use the sum, so that the compiler keeps the reads. */
static __attribute__((noinline)) uint64_t read_all(const uint64_t *words, size_t count) {
  uint64_t sums[8] = {0};
  for (size_t i = 0; i + 8 <= count; i += 8)
    for (int lane = 0; lane < 8; lane++) sums[lane] += words[i + (size_t)lane];
  return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}
