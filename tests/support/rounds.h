/* SPDX-License-Identifier: Apache-2.0
 * Rounds of an all-gather, with bytes that differ by rank, round and offset. */
#pragma once

#include <stdlib.h>

#include "banyan.h"

static inline unsigned char rounds_byte(int32_t rank, int round, size_t index) {
  return (unsigned char)((unsigned)rank * 31u + (unsigned)round * 7u + (unsigned)(index % 251));
}

/* Returns the status of the first all-gather that fails. *wrong counts the bytes that differ from those of their
 * rank. */
static inline banyan_status rounds_gather(const banyan_bootstrap *bootstrap, size_t bytes, int rounds, double timeout_s,
                                          int *wrong) {
  unsigned char *mine = malloc(bytes + 1), *all = malloc((size_t)bootstrap->nranks * bytes + 1);
  banyan_status status = BANYAN_OK;
  for (int round = 0; round < rounds && !status; round++) {
    for (size_t i = 0; i < bytes; i++) mine[i] = rounds_byte(bootstrap->rank, round, i);
    status = (banyan_status)bootstrap->allgather(bootstrap->context, mine, all, bytes, (int64_t)(timeout_s * 1e9));
    for (int32_t from = 0; from < bootstrap->nranks && !status; from++)
      for (size_t i = 0; i < bytes; i++) *wrong += all[(size_t)from * bytes + i] != rounds_byte(from, round, i);
  }
  free(all);
  free(mine);
  return status;
}
