/* SPDX-License-Identifier: Apache-2.0
 * Reads and writes the entries by which ranks report calls that they rejected. Only its owner writes an entry. Its
 * last epoch is 0 during the write; readers read it before and after the rest. */
#include "transport/refusal.h"

#include <string.h>

enum { LAST = 0, FIRST = 1, WHO = 2, TEXT = 3 };

static bny_signal *entry_of(bny_transport *transport, int32_t rank, int index) {
  bny_refusals *refusals = transport->ops->refusals(transport, rank);
  return refusals ? refusals->entries[index] : NULL;
}

static uint64_t load(const bny_signal *word) { return atomic_load_explicit(word, memory_order_relaxed); }
static void store(bny_signal *word, uint64_t value) { atomic_store_explicit(word, value, memory_order_relaxed); }

static void write_entry(bny_signal *entry, const bny_refusal *refusal) {
  uint64_t words[BNY_REFUSAL_TEXT_WORDS];
  memcpy(words, refusal->text, sizeof words);
  store(&entry[LAST], 0);
  atomic_thread_fence(memory_order_release);
  store(&entry[FIRST], refusal->first);
  store(&entry[WHO], (uint64_t)(uint32_t)refusal->rank << 32 | (uint32_t)refusal->status);
  for (int i = 0; i < BNY_REFUSAL_TEXT_WORDS; i++) store(&entry[TEXT + i], words[i]);
  atomic_store_explicit(&entry[LAST], refusal->last, memory_order_release);
}

static bool read_entry(const bny_signal *entry, bny_refusal *refusal) {
  uint64_t words[BNY_REFUSAL_TEXT_WORDS];
  refusal->last = atomic_load_explicit(&entry[LAST], memory_order_acquire);
  refusal->first = load(&entry[FIRST]);
  uint64_t who = load(&entry[WHO]);
  for (int i = 0; i < BNY_REFUSAL_TEXT_WORDS; i++) words[i] = load(&entry[TEXT + i]);
  atomic_thread_fence(memory_order_acquire);
  if (!refusal->last || load(&entry[LAST]) != refusal->last) return false;
  memcpy(refusal->text, words, sizeof words);
  refusal->text[sizeof refusal->text - 1] = 0;
  refusal->rank = (int32_t)(who >> 32);
  refusal->status = (int32_t)(uint32_t)who;
  return true;
}

static bool find_in(bny_transport *transport, int32_t rank, uint64_t epoch, bny_refusal *found) {
  for (int i = 0; i < BNY_REFUSALS; i++) {
    const bny_signal *entry = entry_of(transport, rank, i);
    if (entry && read_entry(entry, found) && found->first <= epoch && epoch <= found->last) return true;
  }
  return false;
}

/* Returns the entry of the same rank that this one continues or overlaps, or the oldest entry. */
static bny_signal *place_for(bny_transport *transport, const bny_refusal *refusal, bool *extends) {
  bny_signal *oldest = NULL;
  *extends = false;
  for (int i = 0; i < BNY_REFUSALS; i++) {
    bny_signal *entry = entry_of(transport, transport->rank, i);
    bool continues = load(&entry[FIRST]) <= refusal->first && refusal->first <= load(&entry[LAST]) + 1;
    if (load(&entry[LAST]) && continues && (int32_t)(load(&entry[WHO]) >> 32) == refusal->rank) {
      *extends = true;
      return entry;
    }
    if (!oldest || load(&entry[LAST]) < load(&oldest[LAST])) oldest = entry;
  }
  return oldest;
}

bool bny_refusal_add(bny_transport *transport, const bny_refusal *refusal) {
  bny_refusal known;
  bool extends;
  if (find_in(transport, transport->rank, refusal->last, &known)) return false;
  bny_signal *entry = place_for(transport, refusal, &extends);
  if (extends)
    atomic_store_explicit(&entry[LAST], refusal->last, memory_order_release);
  else
    write_entry(entry, refusal);
  atomic_fetch_add_explicit(transport->ops->refused(transport), 1, memory_order_release);
  if (transport->ops->pass_on) transport->ops->pass_on(transport, refusal);
  return true;
}

bool bny_refusal_find(bny_transport *transport, uint64_t epoch, bny_refusal *found) {
  for (int32_t rank = 0; rank < transport->nranks; rank++)
    if (find_in(transport, rank, epoch, found)) {
      if (rank != transport->rank) bny_refusal_add(transport, found);
      return true;
    }
  return false;
}
