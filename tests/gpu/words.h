/* SPDX-License-Identifier: Apache-2.0
 * The arguments of the kernels of words.cuh. */
#pragma once

#include <stdint.h>

enum { WORDS_POLLS_MAX = 1 << 22 /* most polls of one wait: seconds on a GPU */ };

/* Two CTAs that exchange words. Role r writes to[r] and reads from[r]. payload[r] is role r's address of the same
 * memory. */
typedef struct words_pair {
  uint64_t *to[2], *from[2];
  unsigned char *payload[2];
  uint32_t *counts; /* [3]: failed waits, wrong reads, observed changes */
  uint32_t rounds;
  uint32_t role;   /* role of CTA 0; CTA 1 has the next role */
  uint32_t is_sys; /* scope sys; else gpu */
  uint32_t lines;  /* words_tear: lines of 128 bytes; else words of 16 */
  uint32_t fences; /* words_message: fences for aliases before the signal and after it */
} words_pair;
