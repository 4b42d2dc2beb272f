/* SPDX-License-Identifier: Apache-2.0
 * A hash table of messages: who has sent which slot to whom. */
#include "tools/prove/prove.h"

#include "base/hash.h"

bny_arrivals bny_arrivals_make(int64_t most) {
  uint64_t size = 16;
  while (size < 2 * (uint64_t)most) size *= 2;
  bny_arrivals arrivals = {tool_new(size, sizeof *arrivals.entries), size - 1};
  for (uint64_t i = 0; i < size; i++) arrivals.entries[i].sender = -1;
  return arrivals;
}

/* Returns the entry, or the free entry where it belongs. */
static bny_arrival *place(const bny_arrivals *arrivals, int32_t sender, int32_t slot, int32_t receiver) {
  uint64_t hash = bny_hash_add((uint32_t)slot, (uint64_t)(uint32_t)sender << 32 | (uint32_t)receiver);
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

bny_ready bny_ready_make(int32_t nranks) {
  size_t count = (size_t)nranks;
  bny_ready ready = {.nranks = nranks, .count = nranks};
  ready.queue = tool_new(count, sizeof *ready.queue);
  ready.next = tool_new(count, sizeof *ready.next);
  ready.waits = tool_new(count, sizeof *ready.waits);
  for (int32_t rank = 0; rank < nranks; rank++) ready.queue[rank] = rank;
  return ready;
}

int32_t bny_ready_take(bny_ready *ready) {
  if (ready->count == 0) return -1;
  int32_t rank = ready->queue[ready->first];
  ready->first = ready->first + 1 == ready->nranks ? 0 : ready->first + 1;
  ready->count--;
  return rank;
}

/* A waiting rank is not queued, and a rank leaves the queue only to wait or at its end. It is thus queued at most
 * once. */
void bny_ready_wake(bny_ready *ready, const bny_plan *receiver, int32_t sender, int32_t slot) {
  int32_t rank = receiver->rank;
  if (!ready->waits[rank]) return;
  const bny_message *message = &receiver->messages[receiver->steps[ready->next[rank]].message];
  if (message->peer != sender || message->slot != slot) return;
  ready->waits[rank] = false;
  ready->queue[(int32_t)(((int64_t)ready->first + ready->count) % ready->nranks)] = rank;
  ready->count++;
}
