/* SPDX-License-Identifier: Apache-2.0
 * Checks banyan_queries, sinks, and q, which may be in two parts. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "attention/queries.h"

enum { TREE_TOKENS_MAX = 64 };

static banyan_status check_queries_shape(const bny_attention_desc *desc) {
  const banyan_queries *queries = &desc->queries;
  if (desc->tokens < 0) return bny_attention_reject("queries.tokens is %d, negative", desc->tokens);
  if (desc->tokens == 0) return BANYAN_OK;
  if (queries->window < 0) return bny_attention_reject("queries.window is %d, negative", queries->window);
  if (!queries->query_start && (queries->window > 0 || queries->tree_mask || queries->key_start))
    return bny_attention_reject("queries.%s is given, and query_start is NULL: queries have no positions",
                                queries->window > 0  ? "window"
                                : queries->tree_mask ? "tree_mask"
                                                     : "key_start");
  if (queries->key_block < 0) return bny_attention_reject("queries.key_block is %d, negative", queries->key_block);
  if (queries->key_block > 0 ? queries->key_stride < queries->key_block : queries->key_stride != 0)
    return bny_attention_reject(
        "queries.key_stride is %d, and key_block is %d: blocks lie at least their length apart, "
        "and without blocks both are 0",
        queries->key_stride, queries->key_block);
  if (queries->key_pattern_len < 0)
    return bny_attention_reject("queries.key_pattern_len is %" PRId64 ", negative", queries->key_pattern_len);
  if (queries->key_pattern_len > 0 && (!queries->key_pattern || queries->key_block == 0))
    return bny_attention_reject("queries.key_pattern_len is %" PRId64 ", and %s", queries->key_pattern_len,
                                queries->key_pattern ? "key_block is 0" : "key_pattern is NULL");
  if (queries->key_mask_stride < 0)
    return bny_attention_reject("queries.key_mask_stride is %" PRId64 ", negative", queries->key_mask_stride);
  return BANYAN_OK;
}

static banyan_status check_shape(const bny_attention_desc *desc) {
  banyan_status status = desc->has_queries ? check_queries_shape(desc) : BANYAN_OK;
  if (status != BANYAN_OK) return status;
  if (desc->rope.dim < 0 || desc->rope.dim >= desc->head_dim)
    return bny_attention_reject("rope_dim is %d, must be 0 to head_dim - 1, which is %d", desc->rope.dim,
                                desc->head_dim - 1);
  if ((desc->rope.dim > 0) != (desc->rope.q != NULL) && desc->tokens > 0)
    return bny_attention_reject("rope_dim is %d and q_rope is %s", desc->rope.dim, desc->rope.q ? "given" : "NULL");
  if (desc->has_queries && desc->tokens > 0 && !desc->queries.query_start_loc && desc->tokens != desc->batch)
    return bny_attention_reject(
        "queries.tokens is %d and batch %d: without query_start_loc each sequence has one token", desc->tokens,
        desc->batch);
  if (!(desc->soft_cap >= 0) || isinf(desc->soft_cap))
    return bny_attention_reject("soft_cap is %g, must be positive, or 0 for none", (double)desc->soft_cap);
  return BANYAN_OK;
}

/* ---- memory of the host ------------------------------------------------------------------------------------------ */

static banyan_status check_pattern(const banyan_queries *queries) {
  int32_t last = -1, blocks = queries->key_block > 0 ? queries->key_stride / queries->key_block : 0;
  for (int64_t i = 0; i < queries->key_pattern_len; i++) {
    int32_t block = queries->key_pattern[i];
    if (block <= last || block >= blocks)
      return bny_attention_reject(
          "queries.key_pattern[%" PRId64
          "] is %d: numbers of blocks must grow, and be below the %d that key_stride has room for",
          i, block, blocks);
    last = block;
  }
  return BANYAN_OK;
}

static banyan_status check_starts(const bny_attention_desc *desc) {
  const banyan_queries *queries = &desc->queries;
  const int32_t *loc = queries->query_start_loc;
  for (int32_t b = 0; loc && b <= desc->batch; b++)
    if (loc[b] < (b > 0 ? loc[b - 1] : 0) || loc[b] > desc->tokens)
      return bny_attention_reject("queries.query_start_loc[%d] is %d: starts must not be negative or decrease, or pass "
                                  "the %d tokens of this run",
                                  b, loc[b], desc->tokens);
  for (int32_t b = 0; b < desc->batch; b++) {
    int32_t count = bny_attention_queries(desc, b).count;
    if (queries->query_start && queries->query_start[b] < 0)
      return bny_attention_reject("queries.query_start[%d] is %d, negative", b, queries->query_start[b]);
    if (queries->key_start && queries->key_start[b] < 0)
      return bny_attention_reject("queries.key_start[%d] is %d, negative", b, queries->key_start[b]);
    if (queries->tree_mask && count > TREE_TOKENS_MAX)
      return bny_attention_reject("sequence %d has %d query tokens, and queries.tree_mask has %d bits", b, count,
                                  TREE_TOKENS_MAX);
  }
  return BANYAN_OK;
}

static banyan_status check_memory(const bny_attention_desc *desc) {
  bool has_queries = desc->has_queries && desc->tokens > 0;
  banyan_status status = has_queries ? check_starts(desc) : BANYAN_OK;
  if (status == BANYAN_OK && has_queries) status = check_pattern(&desc->queries);
  if (status != BANYAN_OK) return status;
  for (int32_t h = 0; desc->sinks && h < desc->heads; h++)
    if (isnan(desc->sinks[h]) || (isinf(desc->sinks[h]) && desc->sinks[h] > 0))
      return bny_attention_reject("sinks[%d] is %g, must be a number or -inf", h, (double)desc->sinks[h]);
  if (!desc->q && desc->batch > 0 && desc->tokens > 0) return bny_attention_reject("q is NULL");
  return BANYAN_OK;
}

banyan_status bny_attention_check_queries(const bny_attention_desc *desc, bool on_host) {
  banyan_status status = check_shape(desc);
  return status == BANYAN_OK && on_host ? check_memory(desc) : status;
}

static banyan_status check_multiple(const char *field, int32_t index, int64_t position) {
  if (position % BNY_ATTENTION_EXACT_KEYS == 0) return BANYAN_OK;
  char at[32] = "";
  if (index >= 0) snprintf(at, sizeof at, "[%d]", index);
  return bny_attention_reject(
      "queries.%s%s is %" PRId64
      ": in the exact order a shard holds whole blocks of %d keys, which begin at multiples of it",
      field, at, position, BNY_ATTENTION_EXACT_KEYS);
}

static banyan_status check_part_blocks(const bny_attention_desc *desc) {
  for (int32_t b = 0; desc->parts && b < desc->batch; b++) {
    int32_t first = 0;
    for (int32_t i = 0; i < desc->part_count; first += bny_attention_keys(&desc->parts[i++], b))
      if (first % BNY_ATTENTION_EXACT_KEYS != 0 && bny_attention_keys(&desc->parts[i], b) > 0)
        return bny_attention_reject(
            "parts[%d] begins at key %d of sequence %d: in the exact order a part holds whole blocks of %d keys", i,
            first, b, BNY_ATTENTION_EXACT_KEYS);
  }
  return BANYAN_OK;
}

/* The blocks of all ranks fit into the integers that add them up. Their positions bound their number. */
static banyan_status check_positions(const bny_attention_desc *desc, int32_t b) {
  int32_t keys = bny_attention_keys(&desc->kv, b);
  if (bny_attention_keys_below(desc, b, BNY_ATTENTION_EXACT_KEYS_MAX) == keys) return BANYAN_OK;
  return bny_attention_reject(
      "queries.key_start[%d] is %d and it has %d keys: in the exact order a sequence has at most "
      "%d positions; use another order",
      b, desc->queries.key_start ? desc->queries.key_start[b] : 0, keys, BNY_ATTENTION_EXACT_KEYS_MAX);
}

banyan_status bny_attention_check_blocks(const bny_attention_desc *desc) {
  const banyan_queries *queries = &desc->queries;
  if (desc->tokens == 0) return BANYAN_OK;
  banyan_status status = check_part_blocks(desc);
  for (int32_t b = 0; b < desc->batch && status == BANYAN_OK; b++) status = check_positions(desc, b);
  if (status == BANYAN_OK) status = check_multiple("key_block", -1, queries->key_block);
  if (status == BANYAN_OK && queries->key_block > 0) status = check_multiple("key_stride", -1, queries->key_stride);
  for (int32_t b = 0; queries->key_start && b < desc->batch && status == BANYAN_OK; b++)
    if (bny_attention_keys(&desc->kv, b) > 0) status = check_multiple("key_start", b, queries->key_start[b]);
  return status;
}
