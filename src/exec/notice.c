/* SPDX-License-Identifier: Apache-2.0
 * Encodes a call as words that peers can read, and explains where the calls of two ranks differ. */
#include "exec/notice.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/flight.h"
#include "base/hash.h"
#include "base/status.h"

static const bny_name phase_names[] = {{"first call of this shape", BNY_PHASE_AGREE},
                                       {"repeated call of this shape", BNY_PHASE_RUN},
                                       {"connecting", BNY_PHASE_CONNECT},
                                       {NULL, 0}};

/* Places in bny_notice.words: the fields of the call that ranks compare, then those of other_fields. A hash of all of
 * them is the last. */
enum {
  WORD_COLLECTIVE,
  WORD_WITHIN_KERNEL,
  WORD_TOKENS,
  WORD_SEQUENCES = WORD_TOKENS + 3,
  WORD_TOKEN0 = BNY_CALL_COMPARED,
  WORD_BOX_END = WORD_TOKEN0 + 4,
  WORD_PHASE = WORD_BOX_END,
  WORD_COUNTS,
  WORD_ALGORITHM,
  WORD_ALGORITHM_END,
  WORD_PLAN,
  WORDS,
  WORD_HASH = WORDS
};

/* The last runs follow the call, each at an index from its number, as two words: 16 bits of the number, 16 of the hash
 * of its call, and its tokens; and the caller's tag. */
enum { EARLIER = WORD_HASH + 1, EARLIER_RUNS = (BNY_CALL_WORDS - EARLIER) / 2 };
_Static_assert(EARLIER_RUNS >= 4, "a call must fit its words, and the last runs behind it");

/* The words after those of the call. */
static const bny_call_field other_fields[WORDS - WORD_TOKEN0] = {{.label = "first token of the part"},
                                                                 {.label = "tokens of the part"},
                                                                 {.label = "first head of the part"},
                                                                 {.label = "heads of the part"},
                                                                 {.label = "phase", .names = phase_names},
                                                                 {.label = "counts of bytes"},
                                                                 {.label = "algorithm"},
                                                                 {.label = "algorithm"},
                                                                 {.label = "plan"}};

static const bny_call_field *field_of(int word) {
  return word < WORD_TOKEN0 ? &bny_call_fields[word] : &other_fields[word - WORD_TOKEN0];
}

/* The selection of keys or pages within attention has sequences in place of tokens. */
static const char *label_of(int word, const uint64_t *words) {
  bool of_sequences = words[WORD_COLLECTIVE] == BNY_SELECT && words[WORD_SEQUENCES] > 0;
  return word == WORD_TOKENS && of_sequences ? "batch with top_pages or select" : field_of(word)->label;
}

static uint64_t hash_counts(const bny_request *request) {
  uint64_t hash = 0;
  for (int32_t i = 0; request->call.counts && i < request->nranks; i++)
    hash = bny_hash_add(hash, request->call.counts[i]);
  return hash;
}

bny_notice bny_notice_make(const bny_request *request, const bny_plan *plan, bny_phase phase) {
  bny_notice notice = {.words = {[WORD_TOKEN0] = (uint64_t)request->token0,
                                 (uint64_t)request->tokens,
                                 (uint64_t)request->head0,
                                 (uint64_t)request->heads,
                                 [WORD_PHASE] = (uint64_t)phase,
                                 [WORD_COUNTS] = hash_counts(request),
                                 [WORD_PLAN] = plan->hash}};
  for (int i = 0; i < WORD_TOKEN0; i++)
    if (i != WORD_TOKENS) notice.words[i] = bny_call_number(&request->call, i);
  strncpy((char *)&notice.words[WORD_ALGORITHM], plan->algorithm, 2 * sizeof(uint64_t) - 1);
  notice.hash = BNY_HASH_START;
  for (int i = 0; i < WORDS; i++) notice.hash = bny_hash_add(notice.hash, notice.words[i]);
  bny_notice_set_tokens(&notice, request->call.all_tokens);
  return notice;
}

void bny_notice_set_tokens(bny_notice *notice, int32_t tokens) {
  notice->words[WORD_TOKENS] = (uint64_t)tokens;
  notice->words[WORD_HASH] = bny_hash_add(notice->hash, (uint64_t)tokens);
  notice->tag = (uint32_t)(notice->words[WORD_HASH] >> 32);
}

bool bny_notice_is_comparison(const bny_notice *notice) { return notice->words[WORD_PHASE] == BNY_PHASE_AGREE; }

uint8_t bny_notice_kind(const bny_notice *notice) {
  return bny_notice_is_comparison(notice) ? BNY_FLIGHT_AGREE : (uint8_t)notice->words[WORD_COLLECTIVE];
}

const char *bny_notice_name(const bny_notice *notice) {
  if (bny_notice_is_comparison(notice)) return "agree";
  if (notice->words[WORD_WITHIN_KERNEL]) return "combine within a kernel";
  return bny_collective_name((bny_collective)notice->words[WORD_COLLECTIVE]);
}

void bny_notice_publish(bny_signal *words, const bny_notice *notice, uint64_t epoch, int64_t tag) {
  uint64_t run = epoch << 48 | (notice->hash & 0xffff) << 32 | (uint32_t)notice->words[WORD_TOKENS];
  bny_signal *earlier = &words[EARLIER + 2 * (epoch % EARLIER_RUNS)];
  atomic_store_explicit(&earlier[0], run, memory_order_relaxed);
  atomic_store_explicit(&earlier[1], (uint64_t)tag, memory_order_relaxed);
  if (atomic_load_explicit(&words[WORD_HASH], memory_order_relaxed) == notice->words[WORD_HASH]) return;
  for (int i = 0; i <= WORD_HASH; i++) atomic_store_explicit(&words[i], notice->words[i], memory_order_relaxed);
}

static void print_value(int index, const uint64_t *words, char *text, size_t bytes) {
  const bny_name *names = field_of(index)->names;
  size_t length = 0;
  if (index == WORD_ALGORITHM)
    bny_append(text, bytes, &length, "%.15s", (const char *)&words[index]);
  else if (names)
    bny_append(text, bytes, &length, "%s", bny_name_of(names, (int)words[index]));
  else
    bny_append(text, bytes, &length, "%" PRId64, (int64_t)words[index]);
}

static void print_tag(int64_t tag, char *text, size_t bytes) {
  if (tag < 0)
    snprintf(text, bytes, "no tag");
  else
    snprintf(text, bytes, "tag %" PRId64, tag);
}

bny_notice bny_notice_read(bny_transport *transport, int32_t rank) {
  bny_signal *theirs = transport->ops->call(transport, rank);
  bny_notice notice = {.tag = 0};
  for (int i = 0; i < WORDS; i++) notice.words[i] = atomic_load_explicit(&theirs[i], memory_order_relaxed);
  return notice;
}

/* A run that a rank remembers. */
typedef struct earlier_run {
  uint64_t run; /* as bny_notice_publish() packs it */
  int64_t tag;
} earlier_run;

static earlier_run read_earlier(const bny_signal *words, int index) {
  return (earlier_run){atomic_load_explicit(&words[EARLIER + 2 * index], memory_order_relaxed),
                       (int64_t)atomic_load_explicit(&words[EARLIER + 2 * index + 1], memory_order_relaxed)};
}

/* Finds the earliest run that both ranks remember with other tags, or as the same call with other tokens. */
static bool earlier_run_differs(bny_transport *transport, int32_t rank, int32_t other_rank, earlier_run *theirs,
                                earlier_run *other) {
  bny_signal *first = transport->ops->call(transport, rank), *second = transport->ops->call(transport, other_rank);
  bool found = false;
  for (int i = 0; i < EARLIER_RUNS; i++) {
    earlier_run a = read_earlier(first, i), b = read_earlier(second, i);
    bool differs = a.run >> 48 == b.run >> 48 && (a.tag != b.tag || (a.run != b.run && a.run >> 32 == b.run >> 32));
    if (!differs || (found && (int16_t)((a.run >> 48) - (theirs->run >> 48)) > 0)) continue;
    found = true;
    *theirs = a;
    *other = b;
  }
  return found;
}

bool bny_notice_runs_differ(bny_transport *transport, int32_t rank, int32_t other_rank) {
  earlier_run theirs, other;
  return earlier_run_differs(transport, rank, other_rank, &theirs, &other);
}

bool bny_notice_difference(bny_transport *transport, int32_t rank, const bny_notice *other, int32_t other_rank,
                           char *text, size_t bytes) {
  const bny_notice theirs = bny_notice_read(transport, rank);
  const uint64_t *words = theirs.words;
  char first[32], second[32], there[32] = "there", here[32] = "here";
  size_t length = 0;
  if (other_rank != transport->rank) {
    snprintf(there, sizeof there, "on rank %d", rank);
    snprintf(here, sizeof here, "on rank %d", other_rank);
  }
  earlier_run their_run, other_run;
  bool earlier_differs = earlier_run_differs(transport, rank, other_rank, &their_run, &other_run);
  if (earlier_differs && their_run.tag == other_run.tag) {
    bny_append(text, bytes, &length, "%s %u %s, %u %s", label_of(WORD_TOKENS, words), (uint32_t)their_run.run, there,
               (uint32_t)other_run.run, here);
    return true;
  }
  if (earlier_differs) {
    print_tag(their_run.tag, first, sizeof first);
    print_tag(other_run.tag, second, sizeof second);
    bny_append(text, bytes, &length, "%s %s, %s %s", first, there, second, here);
  }
  int i = 0;
  while (i < WORDS && words[i] == other->words[i]) i++;
  if (i == WORDS) return earlier_differs;
  if (earlier_differs) bny_append(text, bytes, &length, "; ");
  if (i == WORD_ALGORITHM_END) i = WORD_ALGORITHM;
  if (i == WORD_COUNTS || i == WORD_PLAN) { /* hashes, which mean nothing to a reader */
    if (i == WORD_PLAN)
      bny_append(text, bytes, &length, "its plan is not the same as %s", here);
    else
      bny_append(text, bytes, &length, "its counts of %s are not the same as %s",
                 bny_payloads[words[WORD_COLLECTIVE]].counted, here);
    return true;
  }
  print_value(i, words, first, sizeof first);
  print_value(i, other->words, second, sizeof second);
  bny_append(text, bytes, &length, "%s %s %s, %s %s", label_of(i, words), first, there, second, here);
  return true;
}
