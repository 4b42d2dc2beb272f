/* SPDX-License-Identifier: Apache-2.0
 * Lists the fields of a call, and hashes requests. */
#include "plan/call.h"

#include <string.h>

#include "plan/plan.h"
#include "base/hash.h"

static const bny_name yes_names[] = {{"no", false}, {"yes", true}, {NULL, 0}};
static const bny_name wire_names[] = {
#define BNY_FORMAT(id, name, dtype, bytes, bound) {name, BNY_WIRE_##id},
#include "formats.def"
#undef BNY_FORMAT
    {NULL, 0},
};

#define AT(field) offsetof(bny_call, field), sizeof((bny_call *)NULL)->field
const bny_call_field bny_call_fields[BNY_CALL_FIELDS] = {
    {"collective", bny_collective_names, false, AT(collective)},
    {"combine within a kernel", yes_names, false, AT(within_kernel)},
    {"tokens", NULL, true, AT(tokens)}, /* before all_tokens, so that a difference names the callers' number */
    {"valid.tokens", yes_names, false, AT(counts_tokens)},
    {"tokens planned for (a call plans for a power of two, *_init for its own)", NULL, false, AT(all_tokens)},
    {"batch with top_pages or select (a call plans for a power of two, *_init for its own)", NULL, false,
     AT(sequences)},
    {"heads", NULL, false, AT(all_heads)},
    {"value_dim", NULL, false, AT(value_dim)},
    {"dim, columns of a sum, k of a selection, or top_pages", NULL, false, AT(dim)},
    {"dtype", bny_dtype_names, false, AT(dtype)},
    {"order", bny_order_names, false, AT(order)}, /* before wire, which is the exact order's own */
    {"wire", wire_names, false, AT(wire)},
    {"scatter", bny_scatter_names, false, AT(scatter)},
    {"root", NULL, false, AT(root)},
    {"bytes", NULL, false, AT(bytes)},
    {"distance", NULL, false, AT(distance)},
    {"prune", yes_names, false, AT(prunes)},
    {"queries.query_start_loc with select", yes_names, false, AT(has_starts)},
    {"exchange within another call", yes_names, false, AT(on_host)},
    {NULL, NULL, false, AT(attends)},
};

#undef AT

uint64_t bny_call_number(const bny_call *call, int field) {
  const bny_call_field *at = &bny_call_fields[field];
  const char *from = (const char *)call + at->offset;
  if (at->bytes == sizeof(bool)) return *(const bool *)from;
  if (at->bytes == sizeof(size_t)) return *(const size_t *)(const void *)from;
  return (uint64_t) * (const int32_t *)(const void *)from;
}

bool bny_call_equal(const bny_call *a, const bny_call *b, int32_t nranks) {
  for (int i = 0; i < BNY_CALL_FIELDS; i++)
    if (!bny_call_fields[i].is_of_run && bny_call_number(a, i) != bny_call_number(b, i)) return false;
  if (strcmp(a->algorithm, b->algorithm) != 0) return false;
  if (a->counts == b->counts) return true;
  return a->counts && b->counts && memcmp(a->counts, b->counts, (size_t)nranks * sizeof *a->counts) == 0;
}

uint64_t bny_link_cost_hash(uint64_t hash, const bny_link_cost *cost) {
#define BNY_COST(field) hash = bny_hash_add_double(hash, cost->field);
#include "plan/link_cost.def"
  return hash;
}

/* The hash that ranks compare before data moves. It covers the value of every field on which a plan depends, not the
 * bytes of the struct, because padding and pointers differ between processes. */
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
