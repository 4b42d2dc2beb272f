/* SPDX-License-Identifier: Apache-2.0
 *
 * The hash that ranks compare before data moves: 64-bit FNV-1a over the values of every field on which a plan depends,
 * and a final mix. The struct's bytes do not serve, because padding and pointers differ between processes. */
#include <string.h>

#include "plan/plan.h"

static uint64_t add(uint64_t hash, uint64_t value) {
  for (int byte = 0; byte < 8; byte++) {
    hash ^= (value >> (8 * byte)) & 0xff;
    hash *= UINT64_C(0x100000001b3);
  }
  return hash;
}

static uint64_t add_int(uint64_t hash, int64_t value) { return add(hash, (uint64_t)value); }

static uint64_t add_double(uint64_t hash, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return add(hash, bits);
}

uint64_t bny_request_hash(const bny_request *request, const char *algorithm) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  hash = add_int(hash, request->collective);
  hash = add_int(hash, request->nranks);
  hash = add_int(hash, request->all_tokens);
  hash = add_int(hash, request->all_heads);
  hash = add_int(hash, request->token0);
  hash = add_int(hash, request->tokens);
  hash = add_int(hash, request->head0);
  hash = add_int(hash, request->heads);
  hash = add_int(hash, request->value_dim);
  hash = add_int(hash, request->wire);
  hash = add_int(hash, request->scatter);
  hash = add_int(hash, request->order);
  if (request->collective == BNY_ALLGATHER && request->counts)
    for (int32_t rank = 0; rank < request->nranks; rank++) hash = add(hash, request->counts[rank]);
  hash = add(hash, request->bytes);
  hash = add_int(hash, request->root);
  hash = add_int(hash, request->distance);
  /* Costs and limits decide between algorithms and inside them (for example a tree's radix). */
  hash = add_double(hash, request->cost.alpha_ns);
  hash = add_double(hash, request->cost.message_ns);
  hash = add_double(hash, request->cost.beta_ns_per_byte);
  hash = add_double(hash, request->cost.shared_ns_per_byte);
  hash = add_double(hash, request->cost.gamma_ns_per_byte);
  hash = add_double(hash, request->cost.ranks_per_core);
  hash = add_double(hash, request->cost.switch_ns);
  hash = add(hash, request->levels ? request->levels->hash : 0);
  hash = add(hash, request->outbox_bytes);
  hash = add_int(hash, request->slots_max);
  for (const char *character = algorithm ? algorithm : ""; *character; character++)
    hash = add(hash, (unsigned char)*character);
  hash ^= hash >> 33;
  hash *= UINT64_C(0xff51afd7ed558ccd);
  return hash ^ hash >> 33;
}
