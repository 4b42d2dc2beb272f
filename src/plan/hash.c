/* SPDX-License-Identifier: Apache-2.0
 *
 * The hash that ranks compare before data moves. It covers the value of every field on which a plan depends. It does
 * not cover the bytes of the struct, because padding and pointers differ between processes. */
#include "base/hash.h"
#include "plan/plan.h"

uint64_t bny_link_cost_hash(uint64_t hash, const bny_link_cost *cost) {
#define BNY_COST(field) hash = bny_hash_add_double(hash, cost->field);
#include "plan/link_cost.def"
  return hash;
}

uint64_t bny_request_hash(const bny_request *request, const char *algorithm) {
  uint64_t hash = BNY_HASH_START;
  for (int i = 0; i < BNY_CALL_COMPARED; i++)
    if (!bny_call_fields[i].is_of_run) hash = bny_hash_add(hash, bny_call_number(&request->call, i));
  const uint64_t own[] = {(uint64_t)request->token0,   (uint64_t)request->tokens, (uint64_t)request->head0,
                          (uint64_t)request->heads,    (uint64_t)request->nranks, request->outbox_bytes,
                          (uint64_t)request->slots_max};
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) hash = bny_hash_add(hash, own[i]);
  for (int32_t rank = 0; request->call.counts && rank < request->nranks; rank++)
    hash = bny_hash_add(hash, request->call.counts[rank]);
  for (int32_t rank = 0; request->pieces && rank <= request->nranks; rank++)
    hash = bny_hash_add(hash, (uint64_t)request->pieces->first[rank]);
  hash = bny_link_cost_hash(hash, &request->cost);
  hash = bny_hash_add(hash, request->levels ? request->levels->hash : 0);
  return algorithm ? bny_hash_add_bytes(hash, algorithm, strlen(algorithm)) : hash;
}
