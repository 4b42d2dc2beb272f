/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/arrival.h"

#include <stdlib.h>

bool bny_arrivals_init(bny_arrivals *arrivals, int64_t most) {
  uint64_t size = 16;
  while (size < 2 * (uint64_t)most) size *= 2;
  arrivals->entries = malloc(size * sizeof *arrivals->entries);
  arrivals->mask = size - 1;
  for (uint64_t i = 0; arrivals->entries && i < size; i++) arrivals->entries[i].sender = -1;
  return arrivals->entries != NULL;
}

void bny_arrivals_fini(bny_arrivals *arrivals) {
  free(arrivals->entries);
  arrivals->entries = NULL;
}

/* The entry, or the free one where it belongs. */
static bny_arrival *place(const bny_arrivals *arrivals, int32_t sender, int32_t slot, int32_t receiver) {
  uint64_t hash = ((uint64_t)(uint32_t)sender << 32 | (uint32_t)receiver) * UINT64_C(0x9e3779b97f4a7c15);
  hash = (hash ^ (uint32_t)slot) * UINT64_C(0xff51afd7ed558ccd);
  for (uint64_t i = hash >> 20;; i++) {
    bny_arrival *entry = &arrivals->entries[i & arrivals->mask];
    if (entry->sender < 0 || (entry->sender == sender && entry->slot == slot && entry->receiver == receiver))
      return entry;
  }
}

bny_arrival *bny_arrivals_find(const bny_arrivals *arrivals, int32_t sender, int32_t slot, int32_t receiver) {
  bny_arrival *entry = place(arrivals, sender, slot, receiver);
  return entry->sender < 0 ? NULL : entry;
}

bny_arrival *bny_arrivals_add(bny_arrivals *arrivals, int32_t sender, int32_t slot, int32_t receiver) {
  bny_arrival *entry = place(arrivals, sender, slot, receiver);
  if (entry->sender >= 0) return NULL;
  *entry = (bny_arrival){.sender = sender, .slot = slot, .receiver = receiver};
  return entry;
}
