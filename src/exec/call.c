/* SPDX-License-Identifier: Apache-2.0
 * Encodes a call as words that peers can read, and explains where the calls of two ranks differ. */
#include "exec/call.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/status.h"

static const bny_name bny_yes_names[] = {{"no", false}, {"yes", true}, {NULL, 0}};
static const bny_name bny_wire_names[] = {
#define BNY_FORMAT(id, name, dtype, bytes, bound) {name, BNY_WIRE_##id},
#include "formats.def"
#undef BNY_FORMAT
    {NULL, 0},
};
static const bny_name phase_names[] = {{"first call of this shape", BNY_PHASE_AGREE},
                                       {"repeated call of this shape", BNY_PHASE_RUN},
                                       {"connecting", BNY_PHASE_CONNECT},
                                       {NULL, 0}};

/* Places in bny_call.words: the rows of call.def, then what is no row of it. A hash of all of them is the last. */
enum {
#define BNY_CALL_RUN(type, field, label) WORD_##field,
#define BNY_CALL_NUMBER(type, field, label, names) WORD_##field,
#define BNY_CALL_BOX(type, field, label) WORD_##field,
#include "plan/call.def"
  WORD_PHASE,
  WORD_COUNTS,
  WORD_ALGORITHM,
  WORD_ALGORITHM_END,
  WORD_PLAN,
  WORDS,
  WORD_HASH = WORDS
};

/* The last runs follow the call, each at an index from its number: 16 bits of the number, 16 of the hash of its call,
 * and its tokens. */
enum { EARLIER = WORD_HASH + 1, EARLIER_RUNS = BNY_CALL_WORDS - EARLIER };
_Static_assert(EARLIER_RUNS >= 4, "a call must fit its words, and the last runs behind it");

typedef struct word {
  const char *label;
  const bny_name *names; /* names of the values, or NULL: a number */
} word;

static const word words_of[WORDS] = {
#define BNY_CALL_RUN(type, field, label) [WORD_##field] = {label, NULL},
#define BNY_CALL_NUMBER(type, field, label, names) [WORD_##field] = {label, names},
#define BNY_CALL_BOX(type, field, label) [WORD_##field] = {label, NULL},
#include "plan/call.def"
    [WORD_PHASE] = {"phase", phase_names},
    [WORD_COUNTS] = {"counts of bytes", NULL},
    [WORD_ALGORITHM] = {"algorithm", NULL},
    [WORD_PLAN] = {"plan", NULL},
};

static uint64_t hash_counts(const bny_request *request) {
  uint64_t hash = 0;
  for (int32_t i = 0; request->counts && i < request->nranks; i++) hash = bny_hash_add(hash, request->counts[i]);
  return hash;
}

bny_call bny_call_make(const bny_request *request, const bny_plan *plan, bny_phase phase) {
  bny_call call = {.words = {
#define BNY_CALL_NUMBER(type, field, label, names) [WORD_##field] = (uint64_t)request->field,
#define BNY_CALL_BOX(type, field, label) [WORD_##field] = (uint64_t)request->field,
#include "plan/call.def"
                       [WORD_PHASE] = (uint64_t)phase,
                       [WORD_COUNTS] = hash_counts(request),
                       [WORD_PLAN] = plan->hash,
                   }};
  strncpy((char *)&call.words[WORD_ALGORITHM], plan->algorithm, 2 * sizeof(uint64_t) - 1);
  call.hash = BNY_HASH_START;
  for (int i = 0; i < WORDS; i++) call.hash = bny_hash_add(call.hash, call.words[i]);
  bny_call_set_tokens(&call, request->all_tokens);
  return call;
}

void bny_call_set_tokens(bny_call *call, int32_t tokens) {
  call->words[WORD_tokens_live] = (uint64_t)tokens;
  call->words[WORD_HASH] = bny_hash_add(call->hash, (uint64_t)tokens);
  call->tag = (uint32_t)(call->words[WORD_HASH] >> 32);
}

bool bny_call_is_comparison(const bny_call *call) { return call->words[WORD_PHASE] == BNY_PHASE_AGREE; }

const char *bny_call_name(const bny_call *call) {
  if (bny_call_is_comparison(call)) return "agree";
  if (call->words[WORD_within_kernel]) return "combine within a kernel";
  return bny_collective_name((bny_collective)call->words[WORD_collective]);
}

void bny_call_publish(bny_signal *words, const bny_call *call, uint64_t epoch) {
  uint64_t run = epoch << 48 | (call->hash & 0xffff) << 32 | (uint32_t)call->words[WORD_tokens_live];
  atomic_store_explicit(&words[EARLIER + epoch % EARLIER_RUNS], run, memory_order_relaxed);
  if (atomic_load_explicit(&words[WORD_HASH], memory_order_relaxed) == call->words[WORD_HASH]) return;
  for (int i = 0; i <= WORD_HASH; i++) atomic_store_explicit(&words[i], call->words[i], memory_order_relaxed);
}

static void print_value(int index, const uint64_t *words, char *text, size_t bytes) {
  const bny_name *names = words_of[index].names;
  size_t length = 0;
  if (index == WORD_ALGORITHM)
    bny_append(text, bytes, &length, "%.15s", (const char *)&words[index]);
  else if (names)
    bny_append(text, bytes, &length, "%s", bny_name_of(names, (int)words[index]));
  else
    bny_append(text, bytes, &length, "%" PRId64, (int64_t)words[index]);
}

bny_call bny_call_read(bny_transport *transport, int32_t rank) {
  bny_signal *theirs = transport->ops->call(transport, rank);
  bny_call call = {.tag = 0};
  for (int i = 0; i < WORDS; i++) call.words[i] = atomic_load_explicit(&theirs[i], memory_order_relaxed);
  return call;
}

/* Finds the earliest run that both ranks remember as the same call with other tokens. */
static bool earlier_run_differs(bny_transport *transport, int32_t rank, int32_t other_rank, uint64_t *theirs,
                                uint64_t *other) {
  bny_signal *first = transport->ops->call(transport, rank), *second = transport->ops->call(transport, other_rank);
  bool found = false;
  for (int i = EARLIER; i < (int)BNY_CALL_WORDS; i++) {
    uint64_t a = atomic_load_explicit(&first[i], memory_order_relaxed);
    uint64_t b = atomic_load_explicit(&second[i], memory_order_relaxed);
    if (a == b || a >> 32 != b >> 32 || (found && (int16_t)((a >> 48) - (*theirs >> 48)) > 0)) continue;
    found = true;
    *theirs = a;
    *other = b;
  }
  return found;
}

bool bny_call_runs_differ(bny_transport *transport, int32_t rank, int32_t other_rank) {
  uint64_t theirs, other;
  return earlier_run_differs(transport, rank, other_rank, &theirs, &other);
}

bool bny_call_difference(bny_transport *transport, int32_t rank, const bny_call *other, int32_t other_rank, char *text,
                         size_t bytes) {
  const bny_call theirs = bny_call_read(transport, rank);
  const uint64_t *words = theirs.words;
  char first[32], second[32], there[32] = "there", here[32] = "here";
  size_t length = 0;
  if (other_rank != transport->rank) {
    snprintf(there, sizeof there, "on rank %d", rank);
    snprintf(here, sizeof here, "on rank %d", other_rank);
  }
  uint64_t their_run = 0, other_run = 0;
  if (earlier_run_differs(transport, rank, other_rank, &their_run, &other_run)) {
    bny_append(text, bytes, &length, "%s %" PRIu32 " %s, %" PRIu32 " %s", words_of[WORD_tokens_live].label,
               (uint32_t)their_run, there, (uint32_t)other_run, here);
    return true;
  }
  int i = 0;
  while (i < WORDS && words[i] == other->words[i]) i++;
  if (i == WORDS) return false;
  if (i == WORD_ALGORITHM_END) i = WORD_ALGORITHM;
  if (i == WORD_COUNTS || i == WORD_PLAN) { /* hashes, which mean nothing to a reader */
    bool heads = words[WORD_collective] == BNY_ALLGATHER_HEADS;
    bny_append(text, bytes, &length, "its %s not the same as %s",
               i == WORD_PLAN ? "plan is"
               : heads        ? "counts of heads are"
                              : "counts of bytes are",
               here);
    return true;
  }
  print_value(i, words, first, sizeof first);
  print_value(i, other->words, second, sizeof second);
  bny_append(text, bytes, &length, "%s %s %s, %s %s", words_of[i].label, first, there, second, here);
  return true;
}
