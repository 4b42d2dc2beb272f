/* SPDX-License-Identifier: Apache-2.0
 * Chooses whether a shape moves keys or partials. Lengths differ between ranks and runs, so once per shape ranks
 * exchange how large their shards may be. All of them then plan both, and take the cheaper. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "op/pass.h"
#include "op/valid.h"
#include "base/log.h"
#include "base/status.h"

/* A smaller gain is uncertain, because prices are off by as much (docs/performance.md, "Overlap"). */
static const double least_gain = 0.1;

/* With fewer tokens, partials are smaller than the keys of any prompt. */
enum { TOKENS_LEAST = 16 };

/* Returns why this shape moves partials, as all ranks see it, or NULL. Each of them needs a share of the rows, of whole
 * groups of heads. A result in the exact order is divided before it is rounded, so its shares cannot be gathered. */
static const char *reject(const banyan_op *op) {
  const banyan_comm *comm = op->comm;
  const bny_call *call = &op->call;
  bool is_all = call->scatter == BANYAN_SCATTER_NONE;
  if (comm->pass == BNY_PASS_QUERIES || comm->nranks == 1 || comm->nranks > BNY_MERGE_SOURCES_MAX ||
      comm->device.engine)
    return "ranks move partials";
  if (comm->pass == BNY_PASS_AUTO && (!comm->transport->ops->connect || call->all_tokens < TOKENS_LEAST))
    return "ranks share memory, or there are few tokens";
  if (call->scatter == BANYAN_SCATTER_ROOT) return "one rank has the result";
  if (is_all && call->order == BANYAN_ORDER_EXACT) return "all ranks have the result of the exact order";
  if (call->prunes || call->dim > 0) return "pages or keys are chosen";
  return call->all_tokens == 0 || call->all_heads == 0 ? "there are no rows" : NULL;
}

/* The facts that ranks exchange. */
typedef struct offer {
  uint64_t alike; /* 0: it cannot pack its shard */
  uint64_t bytes;
  int64_t pages;
  int32_t batch, kv_heads;
} offer;

/* Lengths may grow by a quarter before ranks choose again. */
static offer offer_of(const banyan_op *op, bool has_lengths) {
  bny_attention_desc desc = bny_attention_of_tokens(&op->attention->desc, op->tokens);
  if (bny_shard_reject(&desc) || bny_valid_selects(&op->valid) || (!has_lengths && desc.keys_max == 0))
    return (offer){0};
  offer made = {.alike = bny_shard_alike(&desc, false), .batch = desc.batch, .kv_heads = desc.kv_heads};
  if (has_lengths) {
    if (op->tokens == 0) return (offer){0};
    made.batch = bny_valid_class(desc.batch, 1);
    made.pages = bny_shard_pages(&desc);
    made.pages += made.pages / 4 + 1;
  } else {
    made.pages = (int64_t)desc.batch * ((desc.keys_max - 1) / BNY_SHARD_KEYS + 1);
  }
  if (made.pages > INT32_MAX / 2) return (offer){0};
  made.bytes = bny_shard_bytes(&desc, made.batch, made.pages);
  return made;
}

static banyan_status gather_offers(banyan_op *op, bool has_lengths, offer **all) {
  offer own = offer_of(op, has_lengths);
  *all = calloc((size_t)op->comm->nranks, sizeof **all);
  if (!*all) return bny_op_reject(op->comm, bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation"), false);
  return bny_op_gather(op->comm, &own, sizeof own, *all);
}

/* Returns whether all ranks can, and whether keys may be cheaper: partials are sent twice at most. */
static bool may_pay(const banyan_op *op, const offer *all) {
  const bny_call *call = &op->call;
  double rows = 2.0 * call->all_tokens * call->all_heads * (call->value_dim + 2) * sizeof(float), keys = 0;
  for (int32_t i = 0; i < op->comm->nranks; i++) {
    if (all[i].alike == 0 || all[i].alike != all[0].alike) return false;
    keys += (double)all[i].bytes;
  }
  bool divides = all[0].kv_heads % op->comm->nranks == 0;
  if (call->scatter == BANYAN_SCATTER_HEADS && !divides) return false;
  /* With unlike shares of heads some ranks would attend to more than others, which the price does not count. */
  if (call->scatter == BANYAN_SCATTER_NONE && !divides && op->comm->pass == BNY_PASS_AUTO) return false;
  return op->comm->pass == BNY_PASS_KEYS ? keys < 0x1p44 : keys < rows;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static size_t take(size_t *bytes, size_t more) {
  size_t at = *bytes;
  *bytes += (more + 63) / 64 * 64;
  return at;
}

/* Messages, slots and results that runs do not use are never touched. */
static banyan_status make_memory(const banyan_op *op, const offer *all, bny_pass *pass) {
  const bny_call *call = &op->call;
  size_t nranks = (size_t)op->comm->nranks, bytes = 0, messages = 0;
  int64_t pages = 1;
  bny_slice share = bny_pass_share(op, 0, call->all_tokens); /* the first is one of the largest */
  for (size_t r = 0; r < nranks; r++) {
    messages += all[r].bytes;
    if (all[r].batch > pass->batch_most) pass->batch_most = all[r].batch;
    if (all[r].pages > pages) pages = all[r].pages;
  }
  pass->kv_heads = all[0].kv_heads;
  pass->pages_most = pages;
  size_t words = ((size_t)pass->batch_most + 1) * sizeof(int32_t);
  bool is_all = call->scatter == BANYAN_SCATTER_NONE;
  pass->slot_bytes = bny_wire_layout_make(call->wire, (int64_t)share.tokens * share.heads, call->value_dim).bytes;
  size_t results = (size_t)call->all_tokens * (size_t)call->all_heads * (size_t)(call->value_dim + 2) * sizeof(float);
  size_t at[] = {take(&bytes, messages),
                 take(&bytes, nranks * pass->slot_bytes),
                 take(&bytes, is_all ? results : 0),
                 take(&bytes, 2 * nranks * sizeof *pass->counts),
                 take(&bytes, (size_t)pages * sizeof(int32_t)),
                 take(&bytes, 3 * words)};
  char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return bny_fail(BANYAN_ERR_MEMORY, "out of memory for the keys of all ranks, %zu bytes: %s", bytes,
                    strerror(errno));
  pass->memory = memory;
  pass->bytes = bytes;
  pass->messages = memory + at[0];
  pass->slots = memory + at[1];
  pass->results = is_all ? (float *)(void *)(memory + at[2]) : NULL;
  pass->counts = (size_t *)(void *)(memory + at[3]);
  pass->heads = pass->counts + nranks;
  pass->room.pages = (int32_t *)(void *)(memory + at[4]);
  pass->room.indptr = (int32_t *)(void *)(memory + at[5]);
  pass->room.loc = pass->room.indptr + pass->batch_most + 1;
  pass->room.start = pass->room.loc + pass->batch_most + 1;
  for (int32_t i = 0; i < pages; i++) pass->room.pages[i] = i;
  for (size_t r = 0; r < nranks; r++) {
    pass->counts[r] = all[r].bytes;
    pass->heads[r] = (size_t)bny_pass_share(op, (int32_t)r, 0).heads;
  }
  return BANYAN_OK;
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static banyan_status make_stages(const banyan_op *op, const bny_pass *pass, banyan_op **keys, banyan_op **results) {
  const bny_call *call = &op->call;
  bny_call gather = {.collective = BNY_ALLGATHER, .counts = pass->counts, .on_host = true};
  bny_call rows = {.collective = BNY_ALLGATHER_HEADS,
                   .counts_tokens = call->counts_tokens,
                   .tokens = call->tokens,
                   .all_tokens = call->all_tokens,
                   .all_heads = call->all_heads,
                   .dim = call->value_dim + 2,
                   .dtype = BANYAN_F32,
                   .counts = pass->heads,
                   .on_host = true};
  banyan_status status = bny_op_make(op->comm, &gather, keys);
  return status == BANYAN_OK && pass->results ? bny_op_make(op->comm, &rows, results) : status;
}

static void bind_stages(banyan_op *op, bny_pass *pass, banyan_op *keys, banyan_op *results) {
  char *mine = pass->messages;
  for (int32_t r = 0; r < op->comm->rank; r++) mine += pass->counts[r];
  bny_op_bind(keys, &(bny_op_memory){.in_bytes = mine, .out_bytes = pass->messages});
  op->pass = pass;
  op->stages[BNY_STAGE_KEYS] = keys;
  op->stages[BNY_STAGE_RESULTS] = results;
  op->first = BNY_STAGE_KEYS;
  if (!results) return;
  int64_t head = (int64_t)(op->call.value_dim + 2) * (int64_t)sizeof(float);
  bny_strided all = {(char *)pass->results, head * op->call.all_heads, head};
  bny_slice share = bny_pass_share(op, op->comm->rank, op->call.all_tokens);
  bny_op_bind(results, &(bny_op_memory){.mine = bny_strided_at(&all, 0, share.head0),
                                        .all = all,
                                        .in_place = true,
                                        .tokens = op->call.tokens});
}

/* Makes the gathers, and keeps them if they cost less than partials. */
static banyan_status choose(banyan_op *op, const offer *all) {
  banyan_op *keys = NULL, *results = NULL;
  double partials_us = bny_op_query(op).predicted_us, keys_us = 0;
  bny_pass *pass = calloc(1, sizeof *pass);
  banyan_status status = pass ? make_memory(op, all, pass) : bny_fail(BANYAN_ERR_MEMORY, "out of memory");
  if (status != BANYAN_OK) bny_op_reject(op->comm, status, false);
  if (status == BANYAN_OK) status = make_stages(op, pass, &keys, &results);
  if (status == BANYAN_OK) {
    keys_us = bny_op_query(keys).predicted_us + (results ? bny_op_query(results).predicted_us : 0);
    snprintf(pass->text, sizeof pass->text,
             "attention on the host (%s); keys and values of all ranks are gathered, %s: %.0f us are predicted, and "
             "%.0f us for partials",
             op->attention->kernels->name, op->comm->pass == BNY_PASS_KEYS ? "as BANYAN_PASS says" : "which costs less",
             keys_us, partials_us);
    if (op->comm->pass == BNY_PASS_KEYS || keys_us < (1 - least_gain) * partials_us) {
      bny_log(BNY_LOG_DEBUG, "%s", pass->text);
      bind_stages(op, pass, keys, results);
      return BANYAN_OK;
    }
  }
  bny_op_free(keys);
  bny_op_free(results);
  bny_pass_free(pass);
  return status;
}

static void forget(banyan_op *op) {
  bny_op_free(op->stages[BNY_STAGE_KEYS]);
  bny_op_free(op->stages[BNY_STAGE_RESULTS]);
  bny_pass_free(op->pass);
  op->stages[BNY_STAGE_KEYS] = op->stages[BNY_STAGE_RESULTS] = NULL;
  if (op->pass) op->first = BNY_STAGE_ROWS;
  op->pass = NULL;
}

banyan_status bny_pass_choose(banyan_op *op, bool has_lengths) {
  offer *all = NULL;
  forget(op);
  if (reject(op)) return BANYAN_OK;
  banyan_status status = gather_offers(op, has_lengths, &all);
  if (status == BANYAN_OK && may_pay(op, all)) status = choose(op, all);
  free(all);
  return status;
}
