/* SPDX-License-Identifier: Apache-2.0
 *
 * The hash that ranks compare before data moves: of the values of every field on which a plan depends. The struct's
 * bytes do not serve, because padding and pointers differ between processes. */
#include "base/hash.h"
#include "plan/plan.h"

uint64_t bny_link_cost_hash(uint64_t hash, const bny_link_cost *cost) {
#define BNY_COST(field) hash = bny_hash_add_double(hash, cost->field);
#include "plan/link_cost.def"
  return hash;
}

uint64_t bny_request_hash(const bny_request *request, const char *algorithm) {
  uint64_t hash = BNY_HASH_START;
#define BNY_CALL_NUMBER(type, field, label, names) hash = bny_hash_add(hash, (uint64_t)request->field);
#define BNY_CALL_BOX(type, field, label) hash = bny_hash_add(hash, (uint64_t)request->field);
#define BNY_CALL_FACT(type, field) hash = bny_hash_add(hash, (uint64_t)request->field);
#include "plan/call.def"
  for (int32_t rank = 0; request->counts && rank < request->nranks; rank++)
    hash = bny_hash_add(hash, request->counts[rank]);
  for (int32_t rank = 0; request->pieces && rank <= request->nranks; rank++)
    hash = bny_hash_add(hash, (uint64_t)request->pieces->first[rank]);
  hash = bny_link_cost_hash(hash, &request->cost);
  hash = bny_hash_add(hash, request->levels ? request->levels->hash : 0);
  return algorithm ? bny_hash_add_bytes(hash, algorithm, strlen(algorithm)) : hash;
}
