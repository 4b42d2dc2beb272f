/* SPDX-License-Identifier: Apache-2.0
 * Runs attention to the gathered shards of all ranks. */
#include "op/pass.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "attention/queries.h"
#include "exec/run.h"
#include "op/valid.h"

void bny_pass_free(bny_pass *pass) {
  if (!pass) return;
  if (pass->memory) munmap(pass->memory, pass->bytes);
  free(pass);
}

bny_slice bny_pass_share(const banyan_op *op, int32_t rank, int32_t tokens) {
  const bny_call *call = &op->call;
  const bny_attention_desc *desc = &op->attention->desc;
  int32_t nranks = op->comm->nranks;
  bny_slice share = {.tokens = tokens, .heads = call->all_heads};
  if (call->scatter == BANYAN_SCATTER_TOKENS)
    bny_slice_split(tokens, nranks, rank, &share.token0, &share.tokens);
  else if (call->scatter == BANYAN_SCATTER_HEADS)
    bny_slice_split(call->all_heads, nranks, rank, &share.head0, &share.heads);
  else {
    bny_slice_split(desc->kv_heads, nranks, rank, &share.head0, &share.heads);
    share.head0 *= desc->group;
    share.heads *= desc->group;
  }
  return share;
}

static const void *message_of(const banyan_op *op, int32_t rank) {
  const char *at = op->pass->messages;
  for (int32_t i = 0; i < rank; i++) at += op->pass->counts[i];
  return at;
}

void bny_pass_pack(banyan_op *op) {
  bny_attention_desc desc = bny_attention_of_tokens(&op->attention->desc, op->tokens);
  bny_pass *pass = op->pass;
  bool can = op->tokens > 0 && desc.batch <= pass->batch_most && desc.kv_heads == pass->kv_heads &&
             bny_shard_pages(&desc) <= pass->pages_most && !bny_valid_selects(&op->valid);
  pass->is_taken = false;
  bny_shard_pack(&desc, can, pass->counts[op->comm->rank], (void *)(uintptr_t)message_of(op, op->comm->rank));
}

/* All ranks see the same messages. */
static bool all_alike(const banyan_op *op) {
  uint64_t first = bny_shard_hash(message_of(op, 0));
  bool alike = first != 0;
  for (int32_t i = 1; i < op->comm->nranks; i++) alike = alike && bny_shard_hash(message_of(op, i)) == first;
  return alike;
}

static bny_wire_view slot_of(const banyan_op *op, int32_t rank, const bny_box *box) {
  char *at = op->pass->slots + (size_t)rank * op->pass->slot_bytes;
  bny_wire_layout layout = bny_wire_layout_make(op->call.wire, (int64_t)box->tokens * box->heads, box->value_dim);
  return (bny_wire_view){.m = (float *)(void *)(at + layout.m),
                         .d = (float *)(void *)(at + layout.d),
                         .n = at + layout.n,
                         .token_stride = box->heads,
                         .saturated = &((banyan_op *)(uintptr_t)op)->report.saturated};
}

/* Attends to the shard of a rank for the rows of a share, and encodes them as that rank would send them. */
static banyan_status attend_to(banyan_op *op, const bny_attention_desc *run, int32_t rank, const bny_slice *share,
                               const bny_wire_view *to) {
  int32_t first = share->token0, tokens = share->tokens;
  bny_attention *attention = op->attention;
  bny_shard_room *room = &op->pass->room;
  bny_attention_desc desc = bny_shard_open(run, message_of(op, rank), room);
  bny_shard_widen(run, &first, &tokens);
  if (tokens < op->tokens) bny_shard_take_tokens(&desc, room, first, tokens);
  if (share->heads < op->call.all_heads) bny_shard_take_heads(&desc, share->head0, share->heads);
  banyan_status status =
      bny_attention_run(attention->kernels, attention->finish, &desc, &attention->out, NULL, attention->pool);
  if (status != BANYAN_OK) return status;
  bny_box box = {share->tokens, share->heads, op->call.value_dim};
  int64_t bad = attention->finish->encode(&box, &attention->out, share->token0 - first, 0, op->call.wire, to);
  if (bad < 0) return BANYAN_OK;
  return bny_exec_fail(
      op->comm->exec, BANYAN_ERR_DATA, rank,
      "rank %d: statistics of token %d, head %d over its keys are invalid: a NaN logit, or one that is "
      "too large. The queries are rank %d's",
      rank, share->token0 + (int32_t)(bad / box.heads), share->head0 + (int32_t)(bad % box.heads), op->comm->rank);
}

/* Writes merged rows to the caller, and notes the first that its type cannot hold. */
static void finish(banyan_op *op, const bny_valid_merge *merge, const bny_slice *rows, int32_t token, int32_t head) {
  bny_box box = {rows->tokens, rows->heads, op->call.value_dim};
  int64_t lost = op->valid.empty_rows == BANYAN_EMPTY_ROWS_KEPT
                     ? bny_valid_finish(merge, &box, token, head)
                     : merge->kernels->merge_finish(&box, merge->wire, merge->count, merge->sources, merge->round_nodes,
                                                    merge->out, token, head);
  if (lost < 0 || op->report.lost) return;
  op->report.lost = true;
  op->report.lost_token = rows->token0 + (int32_t)(lost / box.heads);
  op->report.lost_head = rows->head0 + (int32_t)(lost % box.heads);
}

/* Describes the results of all ranks as a partial from which nothing is rounded: values, m and d of a row. */
static banyan_partial results_of(const banyan_op *op) {
  int64_t row = op->call.value_dim + 2;
  banyan_partial out = bny_attention_rows(&op->attention->desc);
  out.values = op->pass->results;
  out.values_head_stride = out.stats_head_stride = row;
  out.values_token_stride = out.stats_token_stride = row * op->call.all_heads;
  out.lse = op->pass->results + op->call.value_dim;
  out.sum = op->pass->results + op->call.value_dim + 1;
  return out;
}

static banyan_status attend_to_all(banyan_op *op) {
  banyan_comm *comm = op->comm;
  bny_attention_desc run = bny_attention_of_tokens(&op->attention->desc, op->tokens);
  bny_slice share = bny_pass_share(op, comm->rank, op->tokens);
  bny_wire_view views[BNY_MERGE_SOURCES_MAX];
  bny_box box = {share.tokens, share.heads, op->call.value_dim};
  if (bny_box_is_empty(&box)) return BANYAN_OK;
  for (int32_t rank = 0; rank < comm->nranks; rank++) {
    views[rank] = slot_of(op, rank, &box);
    banyan_status status = attend_to(op, &run, rank, &share, &views[rank]);
    if (status != BANYAN_OK) return status;
  }
  banyan_partial results;
  bool round_nodes = op->kinds[0].plan->round_nodes;
  bny_valid_merge merge = {op->attention->finish, op->call.wire, comm->nranks, views, round_nodes, &op->out};
  if (!op->pass->results) {
    finish(op, &merge, &share, 0, 0);
    return BANYAN_OK;
  }
  results = results_of(op);
  op->attention->finish->merge_finish(&box, merge.wire, merge.count, views, round_nodes, &results, 0, share.head0);
  return BANYAN_OK;
}

banyan_status bny_pass_attend(banyan_op *op) {
  op->pass->is_taken = op->tokens == 0 || all_alike(op);
  if (op->pass->is_taken) return attend_to_all(op);
  op->pass->is_outdated = true;
  return bny_attention_start(op->attention, NULL, op->tokens);
}

void bny_pass_deliver(banyan_op *op) {
  banyan_partial from = results_of(op);
  for (int32_t token = 0; token < op->tokens; token++)
    for (int32_t head = 0; head < op->call.all_heads; head++) {
      float *row = (float *)from.values + token * from.values_token_stride + head * from.values_head_stride;
      bny_wire_view view = {row + op->call.value_dim, row + op->call.value_dim + 1, row, 1, false, NULL};
      bny_valid_merge merge = {op->attention->finish, BNY_WIRE_F32, 1, &view, false, &op->out};
      finish(op, &merge, &(bny_slice){.token0 = token, .tokens = 1, .head0 = head, .heads = 1}, token, head);
    }
}
