/* SPDX-License-Identifier: Apache-2.0 */
#include "exec/call.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

/* One more value of the word that names the collective. */
enum { COMBINE_WITHIN_KERNEL = BNY_BARRIER + 1 };
static const bny_name phase_names[] = {{"first call of this shape", BNY_PHASE_AGREE},
                                       {"repeated call of this shape", BNY_PHASE_RUN},
                                       {"connecting", BNY_PHASE_CONNECT},
                                       {NULL, 0}};
static const bny_name wire_names[] = {
#define BNY_FORMAT(id, name, dtype, bytes, bound) {name, BNY_WIRE_##id},
#include "formats.def"
#undef BNY_FORMAT
    {NULL, 0},
};

typedef struct field {
  const char *name;
  const bny_name *names; /* of the values, or NULL: a number */
} field;

/* In the order of bny_call.words. Two words of the algorithm's name stand at the end. */
static const field fields[] = {
  {"collective", bny_collective_names},
  {"phase", phase_names},
  {"tokens", NULL},
  {"heads", NULL},
  {"value_dim", NULL},
  {"wire", wire_names},
  {"scatter", bny_scatter_names},
  {"order", bny_order_names},
  {"root", NULL},
  {"bytes", NULL},
  {"distance", NULL},
  {"counts of bytes", NULL},
  {"first token of the part", NULL},
  {"tokens of the part", NULL},
  {"first head of the part", NULL},
  {"heads of the part", NULL},
  {"algorithm", NULL},
  {NULL, NULL}, /* second word of the algorithm's name */
  {"plan", NULL},
};

/* A hash of all fields follows them. */
enum { COLLECTIVE = 0, PHASE = 1, COUNTS = 11, ALGORITHM = 16, PLAN = 18, FIELDS = sizeof fields / sizeof fields[0], HASH = FIELDS };
_Static_assert(sizeof fields / sizeof fields[0] < (size_t)BNY_CALL_WORDS, "a call must fit its words");

static uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

static uint64_t hash_counts(const bny_request *request) {
  uint64_t hash = 0;
  for (int32_t i = 0; request->counts && i < request->nranks; i++) hash = mix(hash, request->counts[i]);
  return hash;
}

bny_call bny_call_make(const bny_request *request, const bny_plan *plan, bny_phase phase) {
  uint64_t collective = request->within_kernel ? COMBINE_WITHIN_KERNEL : (uint64_t)request->collective;
  bny_call call = {
    .words = {collective, (uint64_t)phase, (uint64_t)request->all_tokens,
              (uint64_t)request->all_heads, (uint64_t)request->value_dim, (uint64_t)request->wire,
              (uint64_t)request->scatter, (uint64_t)request->order, (uint64_t)request->root, request->bytes,
              (uint64_t)request->distance, hash_counts(request), (uint64_t)request->token0, (uint64_t)request->tokens,
              (uint64_t)request->head0, (uint64_t)request->heads}};
  strncpy((char *)&call.words[ALGORITHM], plan->algorithm, 2 * sizeof(uint64_t) - 1);
  call.words[ALGORITHM + 2] = plan->hash;
  uint64_t hash = 1;
  for (int i = 0; i < FIELDS; i++) hash = mix(hash, call.words[i]);
  call.words[HASH] = hash;
  call.tag = (uint32_t)(hash >> 32);
  return call;
}

static const char *name_collective(uint64_t word) {
  return word == COMBINE_WITHIN_KERNEL ? "combine within a kernel" : bny_collective_name((bny_collective)word);
}

bool bny_call_is_comparison(const bny_call *call) { return call->words[PHASE] == BNY_PHASE_AGREE; }

const char *bny_call_name(const bny_call *call) {
  return call->words[PHASE] == BNY_PHASE_AGREE ? "agree" : name_collective(call->words[COLLECTIVE]);
}

void bny_call_publish(bny_transport *transport, const bny_call *call) {
  bny_signal *words = transport->ops->call(transport, transport->rank);
  if (atomic_load_explicit(&words[HASH], memory_order_relaxed) == call->words[HASH]) return;
  for (int i = 0; i <= HASH; i++) atomic_store_explicit(&words[i], call->words[i], memory_order_relaxed);
}

static void print_value(int index, const uint64_t *words, char *text, size_t bytes) {
  const field *what = &fields[index];
  size_t length = 0;
  if (index == ALGORITHM) bny_append(text, bytes, &length, "%.15s", (const char *)&words[index]);
  else if (index == COLLECTIVE) bny_append(text, bytes, &length, "%s", name_collective(words[index]));
  else if (what->names) bny_append(text, bytes, &length, "%s", bny_name_of(what->names, (int)words[index]));
  else bny_append(text, bytes, &length, "%" PRId64, (int64_t)words[index]);
}

bny_call bny_call_read(bny_transport *transport, int32_t rank) {
  bny_signal *theirs = transport->ops->call(transport, rank);
  bny_call call = {.tag = 0};
  for (int i = 0; i < FIELDS; i++) call.words[i] = atomic_load_explicit(&theirs[i], memory_order_relaxed);
  return call;
}

bool bny_call_difference(bny_transport *transport, int32_t rank, const bny_call *other, int32_t other_rank, char *text,
                         size_t bytes) {
  const bny_call theirs = bny_call_read(transport, rank);
  const uint64_t *words = theirs.words;
  int i = 0;
  while (i < FIELDS && words[i] == other->words[i]) i++;
  if (i == FIELDS) return false;
  int named = fields[i].name ? i : i - 1;
  char first[32], second[32], there[32] = "there", here[32] = "here";
  size_t length = 0;
  if (other_rank != transport->rank) {
    snprintf(there, sizeof there, "on rank %d", rank);
    snprintf(here, sizeof here, "on rank %d", other_rank);
  }
  if (i == COUNTS || i == PLAN) { /* hashes, which tell a reader nothing */
    bny_append(text, bytes, &length, "its %s not the same as %s", i == COUNTS ? "counts of bytes are" : "plan is", here);
    return true;
  }
  print_value(named, words, first, sizeof first);
  print_value(named, other->words, second, sizeof second);
  bny_append(text, bytes, &length, "%s %s %s, %s %s", fields[named].name, first, there, second, here);
  return true;
}
