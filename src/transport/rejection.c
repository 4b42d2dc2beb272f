/* SPDX-License-Identifier: Apache-2.0
 * Reads and writes the entries by which ranks report calls that they rejected. Only its owner writes an entry. Its
 * last epoch is 0 during the write; readers read it before and after the rest. */
#include "transport/rejection.h"

#include <string.h>

enum { LAST = 0, FIRST = 1, WHO = 2, TEXT = 3 };

static bny_signal *entry_of(bny_transport *transport, int32_t rank, int index) {
  bny_rejections *rejections = transport->ops->rejections(transport, rank);
  return rejections ? rejections->entries[index] : NULL;
}

static uint64_t load(const bny_signal *word) { return atomic_load_explicit(word, memory_order_relaxed); }
static void store(bny_signal *word, uint64_t value) { atomic_store_explicit(word, value, memory_order_relaxed); }

static void write_entry(bny_signal *entry, const bny_rejection *rejection) {
  uint64_t words[BNY_REJECTION_TEXT_WORDS];
  memcpy(words, rejection->text, sizeof words);
  store(&entry[LAST], 0);
  atomic_thread_fence(memory_order_release);
  store(&entry[FIRST], rejection->first);
  store(&entry[WHO], (uint64_t)(uint32_t)rejection->rank << 32 | (uint32_t)rejection->status);
  for (int i = 0; i < BNY_REJECTION_TEXT_WORDS; i++) store(&entry[TEXT + i], words[i]);
  atomic_store_explicit(&entry[LAST], rejection->last, memory_order_release);
}

static bool read_entry(const bny_signal *entry, bny_rejection *rejection) {
  uint64_t words[BNY_REJECTION_TEXT_WORDS];
  rejection->last = atomic_load_explicit(&entry[LAST], memory_order_acquire);
  rejection->first = load(&entry[FIRST]);
  uint64_t who = load(&entry[WHO]);
  for (int i = 0; i < BNY_REJECTION_TEXT_WORDS; i++) words[i] = load(&entry[TEXT + i]);
  atomic_thread_fence(memory_order_acquire);
  if (!rejection->last || load(&entry[LAST]) != rejection->last) return false;
  memcpy(rejection->text, words, sizeof words);
  rejection->text[sizeof rejection->text - 1] = 0;
  rejection->rank = (int32_t)(who >> 32);
  rejection->status = (int32_t)(uint32_t)who;
  return true;
}

static bool find_in(bny_transport *transport, int32_t rank, uint64_t epoch, bny_rejection *found) {
  for (int i = 0; i < BNY_REJECTIONS; i++) {
    const bny_signal *entry = entry_of(transport, rank, i);
    if (entry && read_entry(entry, found) && found->first <= epoch && epoch <= found->last) return true;
  }
  return false;
}

/* Returns the entry of the same rank that this one continues or overlaps, or the oldest entry. */
static bny_signal *place_for(bny_transport *transport, const bny_rejection *rejection, bool *extends) {
  bny_signal *oldest = NULL;
  *extends = false;
  for (int i = 0; i < BNY_REJECTIONS; i++) {
    bny_signal *entry = entry_of(transport, transport->rank, i);
    bool continues = load(&entry[FIRST]) <= rejection->first && rejection->first <= load(&entry[LAST]) + 1;
    if (load(&entry[LAST]) && continues && (int32_t)(load(&entry[WHO]) >> 32) == rejection->rank) {
      *extends = true;
      return entry;
    }
    if (!oldest || load(&entry[LAST]) < load(&oldest[LAST])) oldest = entry;
  }
  return oldest;
}

bool bny_rejection_add(bny_transport *transport, const bny_rejection *rejection) {
  bny_rejection known;
  bool extends;
  if (find_in(transport, transport->rank, rejection->last, &known)) return false;
  bny_signal *entry = place_for(transport, rejection, &extends);
  if (extends)
    atomic_store_explicit(&entry[LAST], rejection->last, memory_order_release);
  else
    write_entry(entry, rejection);
  atomic_fetch_add_explicit(transport->rejected, 1, memory_order_release);
  if (transport->ops->forward_rejection) transport->ops->forward_rejection(transport, rejection);
  return true;
}

bool bny_rejection_find(bny_transport *transport, uint64_t epoch, bny_rejection *found) {
  for (int32_t rank = 0; rank < transport->nranks; rank++)
    if (find_in(transport, rank, epoch, found)) {
      if (rank != transport->rank) bny_rejection_add(transport, found);
      return true;
    }
  return false;
}
