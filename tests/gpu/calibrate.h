/* SPDX-License-Identifier: Apache-2.0
 * The arguments of the kernels of calibrate.cuh. */
#ifndef BNY_TESTS_CALIBRATE_H
#define BNY_TESTS_CALIBRATE_H

#include <stdint.h>

enum {
  CALIBRATE_POLLS_MAX = 1 << 22, /* most polls of one wait: seconds on a GPU */
  CALIBRATE_SLOTS_MAX = 128,     /* bulk copies under way in a block */
  CALIBRATE_RING_BYTES = 65536,
  CALIBRATE_PAYLOAD_QUADS = 32
};

/* Two CTAs that exchange words. Role r writes to[r] and reads from[r]; payload[r] is one memory, as role r sees it. */
typedef struct calibrate_pair {
  uint64_t *to[2], *from[2];
  unsigned char *payload[2];
  uint32_t *counts; /* [3]: waits without success, differences, changes seen */
  uint32_t rounds;
  uint32_t role;   /* role of CTA 0; the next has the next one */
  uint32_t is_sys; /* scope sys, else gpu */
  uint32_t form;   /* form of calibrate_tear: see there */
  uint32_t fences; /* calibrate_message: fences for aliases before the signal and after it */
} calibrate_pair;

enum calibrate_form { CALIBRATE_QUAD, CALIBRATE_WORD_128, CALIBRATE_LINE };

typedef struct calibrate_copies {
  const unsigned char *from;
  uint64_t span; /* bytes from `from` on, a multiple of `bytes` */
  uint32_t bytes, count, slots;
  uint32_t *lost;
} calibrate_copies;

#endif
