/* SPDX-License-Identifier: Apache-2.0
 * Implements the public calls of attention, and those for combines within kernels. */
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "attention/queries.h"
#include "base/log.h"
#include "base/sized.h"
#include "base/status.h"
#include "op/pass.h"
#include "op/valid.h"

/* ---- within a kernel of the caller's ----------------------------------------------------------------------------- */

static bool may_be_oneshot(const char *algorithm) {
  return !algorithm || algorithm[0] == 0 || strcmp(algorithm, "oneshot") == 0;
}

static void set_within(bny_call *call) {
  call->within_kernel = true;
  strcpy(call->algorithm, "oneshot");
}

/* *valid then is NULL or points to `room`. */
static banyan_status call_within(banyan_comm *comm, const banyan_combine_desc *desc, bny_call *call,
                                 const banyan_valid_rows **valid, banyan_valid_rows *valid_room) {
  banyan_combine_desc room;
  banyan_status status = bny_api_combine_call(comm, &desc, &room, call);
  *valid = status == BANYAN_OK ? desc->valid : NULL;
  if (status == BANYAN_OK) status = bny_api_read_valid(comm, valid, valid_room, false, call);
  if (status != BANYAN_OK) return status;
  if (!comm->device.engine)
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "the communicator has no device: name one in banyan_comm_config");
  if (!may_be_oneshot(desc->algorithm))
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.algorithm is \"%s\"; within a kernel it is \"oneshot\" or NULL",
                    desc->algorithm);
  set_within(call);
  return bny_api_check_memory_valid(comm, *valid);
}

banyan_status banyan_device_combine_init(banyan_comm *comm, const banyan_combine_desc *desc, banyan_op **op) {
  BNY_FLOAT_MODE;
  bny_call call;
  const banyan_valid_rows *valid = NULL;
  banyan_valid_rows room;
  banyan_status status =
      op ? call_within(comm, desc, &call, &valid, &room) : bny_fail(BANYAN_ERR_ARGUMENT, "op is NULL");
  if (status != BANYAN_OK) return bny_op_reject(comm, status, true);
  status = bny_op_make(comm, &call, op);
  if (status == BANYAN_OK) bny_op_bind(*op, &(bny_op_memory){.valid = valid, .tokens = call.tokens});
  return status;
}

banyan_status banyan_op_device(const banyan_op *op, const banyan_partial *rows, const banyan_partial *out,
                               int32_t blocks, void *combine, size_t bytes) {
  if (!op || !combine) return bny_fail(BANYAN_ERR_ARGUMENT, "op and combine must not be NULL");
  banyan_comm *comm = op->comm;
  const bny_call *call = &op->call;
  if (!op->within || op->attention)
    return bny_fail(BANYAN_ERR_STATE, "the operation was not made by banyan_device_combine_init()");
  if (bytes != sizeof(bny_device_combine))
    return bny_fail(
        BANYAN_ERR_ARGUMENT,
        "bytes is %zu, a banyan_device_combine of this library has %zu: compile with the header that came with it",
        bytes, sizeof(bny_device_combine));
  if (blocks < 1) return bny_fail(BANYAN_ERR_ARGUMENT, "blocks is %d; one at least must fit on the device", blocks);
  bny_box none = {0, 0, call->value_dim}, result = bny_op_result_box(comm, call);
  banyan_partial rows_room, out_room;
  if (!rows) return bny_fail(BANYAN_ERR_ARGUMENT, "rows: is NULL");
  rows = bny_sized_read(&bny_sized_partial, "rows", rows, &rows_room);
  if (!rows) return BANYAN_ERR_ARGUMENT;
  const char *wrong = bny_partial_check(rows, &none, false);
  if (!wrong && (rows->values_dtype != BANYAN_F32 || rows->stats_dtype != BANYAN_F32))
    wrong = "dtypes must be BANYAN_F32";
  if (wrong) return bny_fail(BANYAN_ERR_ARGUMENT, "rows: %s", wrong);
  banyan_status status = bny_api_check_partial(&out, &out_room, &result, true);
  if (status == BANYAN_OK) status = bny_api_check_memory_partial(comm, out, &result, true);
  if (status != BANYAN_OK) return status;
  bny_op_within(op, rows, bny_box_is_empty(&result) ? NULL : out, blocks, combine);
  return BANYAN_OK;
}

static banyan_status check_memory_attention(banyan_comm *comm, const bny_attention_desc *desc) {
  const banyan_queries *queries = &desc->queries;
  const struct {
    const char *what;
    const void *pointer;
  } all[] = {{"q", desc->q},
             {"k", desc->kv.k},
             {"v", desc->kv.v},
             {"seq_lens", desc->kv.seq_lens},
             {"page_table", desc->kv.pages.table},
             {"q_rope", desc->rope.q},
             {"sinks", desc->sinks},
             {"k_scale", desc->kv.scales.k},
             {"v_scale", desc->kv.scales.v},
             {"page_indptr", desc->kv.pages.indptr},
             {"last_page_len", desc->kv.pages.last_len},
             {"queries.query_start_loc", queries->query_start_loc},
             {"queries.query_start", queries->query_start},
             {"queries.key_start", queries->key_start},
             {"queries.tree_mask", queries->tree_mask},
             {"queries.key_mask", queries->key_mask}};
  bool has_rows = desc->batch > 0 && desc->tokens > 0;
  banyan_status status = BANYAN_OK;
  for (size_t i = 0; i < sizeof all / sizeof all[0] && status == BANYAN_OK && has_rows; i++)
    status = bny_api_check_memory(comm, all[i].what, all[i].pointer);
  return status;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

banyan_status banyan_attention_init(banyan_comm *comm, const banyan_attention_desc *desc, const banyan_partial *out,
                                    banyan_op **op) {
  BNY_FLOAT_MODE;
  if (!comm || !op) return bny_fail(BANYAN_ERR_ARGUMENT, "comm and op must not be NULL");
  bny_attention *attention = NULL;
  bny_attention_desc own;
  banyan_partial out_room;
  banyan_status status = bny_attention_check_call(desc, &own, &out, &out_room, false);
  if (status == BANYAN_OK) status = check_memory_attention(comm, &own);
  if (status == BANYAN_OK) status = bny_api_check_memory_partial(comm, out, &(bny_box){own.tokens, own.heads, 1}, true);
  if (status == BANYAN_OK) status = bny_comm_check(comm);
  if (status == BANYAN_OK) status = bny_attention_make(comm, &own, out, own.tokens, false, NULL, &attention);
  if (status == BANYAN_OK) status = bny_op_make_attention(comm, attention, op);
  if (status != BANYAN_OK) bny_attention_free(attention);
  return status;
}

static banyan_status check_both(const bny_attention_desc *desc, const banyan_combine_desc *combine) {
  if (combine->tokens != desc->tokens || combine->heads != desc->heads || combine->value_dim != desc->value_dim)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "combine has %d tokens x %d heads of %d values, but attention gives %d x %d of %d", combine->tokens,
                    combine->heads, combine->value_dim, desc->tokens, desc->heads, desc->value_dim);
  if (combine->stream && combine->stream != desc->stream)
    return bny_fail(BANYAN_ERR_ARGUMENT, "combine.stream is not that of attention");
  return BANYAN_OK;
}

/* Rejects fields of `valid` that select sequences, because attention has its own. */
static banyan_status check_valid(const banyan_valid_rows *valid) {
  if (!valid || (!valid->seq_lens && !valid->query_start_loc)) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "combine.valid.%s must be NULL: attention knows which rows have keys",
                  valid->seq_lens ? "seq_lens" : "query_start_loc");
}

/* Completes the call of a combine of attention's rows. Attention's kernel sends the rows if that is possible; otherwise
 * *why explains why not. On the host a blocking call is planned for a class of tokens, or for those that
 * `valid` allows. */
static banyan_status call_of_both(banyan_comm *comm, const bny_attention_desc *desc, const banyan_combine_desc *combine,
                                  bool blocking, const banyan_valid_rows **valid, banyan_valid_rows *valid_room,
                                  bny_call *call, char *why, size_t bytes) {
  bny_call made;
  banyan_combine_desc room;
  bool runs_here = blocking && !comm->device.engine;
  banyan_status status = bny_api_combine_call(comm, &combine, &room, &made);
  *valid = status == BANYAN_OK ? combine->valid : NULL;
  if (status == BANYAN_OK && desc->selects) status = bny_api_attention_select(comm, desc, made.order);
  if (status == BANYAN_OK) status = bny_api_read_valid(comm, valid, valid_room, runs_here, &made);
  if (status == BANYAN_OK && runs_here)
    status = bny_attention_check_desc(comm, desc, made.tokens, made.order == BANYAN_ORDER_EXACT);
  else if (status == BANYAN_OK)
    status = bny_attention_check_fields(desc, false);
  if (status == BANYAN_OK) status = check_both(desc, combine);
  if (status == BANYAN_OK && comm->device.engine && made.order == BANYAN_ORDER_EXACT)
    status = bny_fail(BANYAN_ERR_UNSUPPORTED, "attention on devices has no BANYAN_ORDER_EXACT");
  if (status == BANYAN_OK) status = check_valid(*valid);
  if (status == BANYAN_OK) status = bny_api_check_memory_valid(comm, *valid);
  if (status != BANYAN_OK) return status;
  made.attends = true;
  made.prunes = desc->is_lossy;
  made.has_starts = comm->device.engine && desc->selects && desc->queries.query_start_loc;
  made.dim = desc->selects ? desc->select.k : desc->prune.top_pages;
  if (desc->selects || (made.dim > 0 && comm->nranks > 1))
    made.sequences = blocking && !made.counts_tokens ? bny_valid_class(desc->batch, desc->kv_heads) : desc->batch;
  if (desc->prunes && desc->prune.top_pages == 0 && made.order == BANYAN_ORDER_EXACT)
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "desc.prune.epsilon is used with BANYAN_ORDER_EXACT: what is left out "
                                            "depends on the ranks. Use another order, or top_pages");
  bny_call within = made;
  set_within(&within);
  bool may = may_be_oneshot(made.algorithm);
  bool can = comm->device.engine && may && bny_op_check_within(comm, &within) == BANYAN_OK;
  why[0] = 0;
  if (!can && comm->device.engine)
    snprintf(why, bytes, ", because attention's kernel cannot send its rows: %s",
             may ? banyan_last_error() : "the algorithm asked for is another");
  *call = can ? within : made;
  return BANYAN_OK;
}

/* Makes a hidden stage, unless the operation has it already. */
static banyan_status make_stage(const banyan_op *op, const bny_call *call, banyan_op **stage) {
  if (*stage && bny_call_equal(&(*stage)->call, call, op->comm->nranks)) return BANYAN_OK;
  return bny_op_make(op->comm, call, stage);
}

/* Returns the call of a selection that has a list of the best `k` for each sequence and head. */
static bny_call call_of_lists(const bny_call *rows, const bny_attention *attention, int32_t heads, int32_t k) {
  return (bny_call){.collective = BNY_SELECT,
                    .counts_tokens = rows->counts_tokens,
                    .tokens = bny_attention_sequences(attention, rows->tokens),
                    .all_tokens = rows->sequences,
                    .sequences = rows->sequences,
                    .all_heads = heads,
                    .dim = k};
}

/* Makes the selection of keys by the caller's scores, if there is one, and binds it. On a device the number of tokens
 * of a run is in its memory, and is that of sequences if each has one query; otherwise all sequences select. */
static banyan_status choose_keys(const banyan_op *op, const bny_call *rows, const bny_attention *attention,
                                 const banyan_valid_rows *valid, banyan_op **stages) {
  const banyan_select_desc *select = &attention->desc.select;
  if (!attention->desc.selects) return BANYAN_OK;
  bny_call keys = call_of_lists(rows, attention, 1, select->k);
  bool on_device = op->comm->device.engine != NULL;
  if (rows->has_starts) keys.counts_tokens = false;
  const char *algorithm = on_device ? "oneshot" : select->algorithm ? select->algorithm : op->comm->algorithm;
  if (algorithm) strncpy(keys.algorithm, algorithm, sizeof keys.algorithm - 1);
  banyan_status status = make_stage(op, &keys, &stages[BNY_STAGE_SELECT]);
  if (status != BANYAN_OK) return status;
  const banyan_valid_rows counted = {.size = sizeof counted, .tokens = valid ? valid->tokens : NULL};
  bny_op_bind(stages[BNY_STAGE_SELECT], &(bny_op_memory){.lists = bny_chosen_lists(select),
                                                         .valid = on_device && keys.counts_tokens ? &counted : NULL,
                                                         .tokens = keys.tokens,
                                                         .stream = attention->desc.stream});
  return BANYAN_OK;
}

/* Makes the selections that choose pages over ranks, if they do, and binds them. `rows` is this call; its number of
 * tokens may differ from that of op->call. */
static banyan_status choose_pages(const banyan_op *op, const bny_call *rows, bny_attention *attention,
                                  const banyan_valid_rows *valid, banyan_op **stages) {
  if (!attention->over_ranks) return choose_keys(op, rows, attention, valid, stages);
  const bny_attention_desc *desc = &attention->desc;
  bny_call tops = {.collective = BNY_SELECT,
                   .counts_tokens = rows->counts_tokens,
                   .tokens = rows->tokens,
                   .all_tokens = rows->all_tokens,
                   .all_heads = desc->heads,
                   .dim = 1};
  bny_call pages = call_of_lists(rows, attention, desc->kv_heads, desc->prune.top_pages);
  bny_lists lists[2];
  banyan_status status = bny_attention_bind_lists(attention, rows->all_tokens, rows->sequences, &lists[0], &lists[1]);
  if (status != BANYAN_OK) return bny_op_reject(op->comm, status, false);
  status = make_stage(op, &tops, &stages[BNY_STAGE_TOPS]);
  if (status == BANYAN_OK) status = make_stage(op, &pages, &stages[BNY_STAGE_PAGES]);
  if (status != BANYAN_OK) return status;
  bny_op_bind(stages[BNY_STAGE_TOPS], &(bny_op_memory){.lists = lists[0], .tokens = tops.tokens});
  bny_op_bind(stages[BNY_STAGE_PAGES], &(bny_op_memory){.lists = lists[1], .tokens = pages.tokens});
  return BANYAN_OK;
}

/* Makes the operation that combines the certificate, if there is one, and binds it. */
static banyan_status certificate_of(const banyan_op *op, const bny_call *rows, const bny_attention *attention,
                                    const banyan_valid_rows *valid, banyan_op **certificate) {
  if (!attention->certifies) return BANYAN_OK;
  bny_call call = *rows;
  call.value_dim = BNY_CERTIFICATE_VALUES;
  call.wire = BNY_WIRE_F32;
  call.order = BANYAN_ORDER_PLAN;
  call.attends = false;
  call.dim = call.sequences = 0;
  call.algorithm[0] = 0;
  banyan_status status = make_stage(op, &call, certificate);
  if (status == BANYAN_OK) status = bny_op_reserve_valid(*certificate, valid);
  if (status != BANYAN_OK) return status;
  bny_box result = bny_op_result_box(op->comm, &call);
  banyan_partial in = bny_attention_certificate(attention), out = bny_attention_certified(attention, result.heads);
  banyan_valid_rows all_written = valid ? *valid : (banyan_valid_rows){0};
  all_written.empty_rows = BANYAN_EMPTY_ROWS_WRITTEN;
  bny_op_bind(*certificate, &(bny_op_memory){.in = &in,
                                             .out = bny_box_is_empty(&result) ? NULL : &out,
                                             .valid = valid ? &all_written : NULL,
                                             .tokens = call.tokens});
  return BANYAN_OK;
}

/* Attaches attention to the operation. The device and memory of a rank decide whether it supports a shape. An operation
 * without attention is new on all ranks. */
static banyan_status attend(banyan_comm *comm, banyan_op *op, const bny_attention_desc *desc, const bny_call *call,
                            const char *why_apart, bny_attention **made) {
  bny_attention *attention = op->attention;
  bool is_new = !attention;
  banyan_status status = BANYAN_OK;
  if (is_new || !bny_attention_rebind(comm, attention, desc))
    status = bny_attention_make(comm, desc, NULL, call->all_tokens, call->order == BANYAN_ORDER_EXACT,
                                call->within_kernel ? NULL : why_apart, &attention);
  if (status != BANYAN_OK && !comm->device.engine) bny_op_reject(comm, status, false);
  if (is_new && comm->device.engine) {
    banyan_status own = status;
    status = bny_op_all_ready(comm, own);
    if (status != BANYAN_OK && own == BANYAN_OK) bny_attention_free(attention);
  }
  if (status != BANYAN_OK) return status;
  if (is_new && comm->device.engine && !call->within_kernel) bny_log(BNY_LOG_INFO, "%s", attention->text);
  *made = attention;
  return BANYAN_OK;
}

static banyan_status check_call(banyan_comm *comm, const bny_attention_desc *desc, const bny_call *call,
                                const banyan_partial **out, banyan_partial *room, bool blocking) {
  bny_box result = bny_op_result_box(comm, call);
  banyan_status status = bny_api_check_partial(out, room, &result, true);
  if (status == BANYAN_OK) status = check_memory_attention(comm, desc);
  if (status == BANYAN_OK) status = bny_api_check_memory_partial(comm, *out, &result, true);
  if (status != BANYAN_OK || !blocking || comm->device.engine || bny_box_is_empty(&result)) return status;
  return bny_op_check_scales("out", *out, result.heads);
}

/* If `keep`, the caller gets a persistent operation. All operations are made before the first one runs. */
static banyan_status attend_and_combine(banyan_comm *comm, const banyan_attention_desc *given,
                                        const banyan_combine_desc *combine, const banyan_partial *out,
                                        banyan_op **keep) {
  bny_attention_desc own;
  const bny_attention_desc *desc = &own;
  banyan_partial out_room;
  bny_call call;
  bny_api_heads heads;
  banyan_valid_rows valid_room;
  const banyan_valid_rows *valid = NULL;
  banyan_op *gather = NULL, *op = NULL, *stages[BNY_STAGES] = {NULL};
  bny_attention *attention = NULL;
  char why_apart[BNY_ERROR_TEXT_BYTES];
  if (!comm) return bny_fail(BANYAN_ERR_ARGUMENT, "comm is NULL");
  banyan_status status = bny_attention_read(given, &own);
  if (status == BANYAN_OK)
    status = call_of_both(comm, desc, combine, !keep, &valid, &valid_room, &call, why_apart, sizeof why_apart);
  if (status == BANYAN_OK) status = check_call(comm, desc, &call, &out, &out_room, !keep);
  if (status == BANYAN_OK && desc->gather) status = bny_api_attention_gather(comm, desc, !keep, &heads);
  if (status != BANYAN_OK) return bny_op_reject(comm, status, keep != NULL);
  bny_op_use_stream(comm, desc->stream);
  if (desc->gather) status = keep ? bny_op_make(comm, &heads.call, &gather) : bny_op_find(comm, &heads.call, &gather);
  if (status != BANYAN_OK) return status;
  if (gather) bny_op_bind(gather, &heads.memory);
  status = keep ? bny_op_make(comm, &call, &op) : bny_op_find(comm, &call, &op);
  bool is_new = status == BANYAN_OK && !op->attention;
  if (status == BANYAN_OK) status = bny_op_reserve_valid(op, valid);
  if (status == BANYAN_OK) status = attend(comm, op, desc, &call, why_apart, &attention);
  if (is_new && !keep && status == BANYAN_OK && comm->checks) status = bny_api_check_claims(comm, desc);
  if (status == BANYAN_OK) memcpy(stages, op->stages, sizeof stages);
  if (status == BANYAN_OK) status = choose_pages(op, &call, attention, valid, stages);
  if (status == BANYAN_OK) status = certificate_of(op, &call, attention, valid, &stages[BNY_STAGE_CERTIFICATE]);
  if (status != BANYAN_OK) {
    for (int i = 0; i < BNY_STAGES; i++)
      if (op && stages[i] != op->stages[i]) bny_op_free(stages[i]);
    if (attention && op->attention != attention) bny_attention_free(attention);
    if (keep) bny_op_free(gather);
    if (keep) bny_op_free(op);
    return status;
  }
  bny_box result = bny_op_result_box(comm, &call);
  bny_op_memory memory = {.in = &attention->out,
                          .out = bny_box_is_empty(&result) ? NULL : out,
                          .valid = valid,
                          .tokens = call.tokens,
                          .stream = attention->desc.stream,
                          .attention = attention};
  memcpy(memory.stages, stages, sizeof stages);
  memory.stages[BNY_STAGE_GATHER] = keep ? gather : NULL;
  bny_op_bind(op, &memory);
  bool chooses = is_new || (!keep && op->pass && op->pass->is_outdated);
  if (chooses) status = bny_pass_choose(op, !keep);
  if (chooses && status == BANYAN_OK && !op->pass) status = bny_op_overlap(op, !keep);
  if (status != BANYAN_OK) {
    if (keep) bny_op_free(op);
    return status;
  }
  if (keep) {
    *keep = op;
    return BANYAN_OK;
  }
  if (gather) status = bny_op_run(gather);
  return status == BANYAN_OK ? bny_op_run(op) : status;
}

banyan_status banyan_attention_combine_init(banyan_comm *comm, const banyan_attention_desc *desc,
                                            const banyan_combine_desc *combine, const banyan_partial *out,
                                            banyan_op **op) {
  BNY_FLOAT_MODE;
  return op ? attend_and_combine(comm, desc, combine, out, op) : bny_api_reject_init(comm);
}

banyan_status banyan_attention_combine(banyan_comm *comm, const banyan_attention_desc *desc,
                                       const banyan_combine_desc *combine, const banyan_partial *out) {
  BNY_FLOAT_MODE;
  return attend_and_combine(comm, desc, combine, out, NULL);
}
