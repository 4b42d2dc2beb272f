/* SPDX-License-Identifier: Apache-2.0
 * Runs a call of local attention: the checks, then share.c or pruned.c, then errors. */
#include <inttypes.h>

#include "base/float_control.h"
#include "base/status.h"
#include "base/trace.h"
#include "attention/job.h"

banyan_status bny_job_end(bny_job *job, uint64_t since) {
  const bny_attention_desc *desc = job->desc;
  bny_job_write_padding(job);
  int64_t lost = atomic_load(&job->lost);
  banyan_status status = BANYAN_OK;
  if (lost >= 0)
    status = bny_fail(BANYAN_ERR_DATA,
                      "banyan_attention: %s cannot hold the statistics of token %" PRId64 ", head %" PRId64
                      "; all other rows are right. Give out.stats_dtype a type of a wider range",
                      bny_wire_formats[bny_wire_of_dtype(job->out->stats_dtype)].name, lost / desc->heads,
                      lost % desc->heads);
  if (since) bny_trace_span_end(since, desc->tokens * desc->heads, bny_attention_bytes(desc));
  return status;
}

banyan_status bny_attention_run(const bny_attention_kernels *attention, const bny_kernels *kernels,
                                const bny_attention_desc *desc, const banyan_partial *out,
                                const bny_certificate *certificate, bny_pool *pool) {
  if (desc->tokens == 0) return BANYAN_OK;
  uint64_t since = bny_trace_span_begin();
  bny_job job = {
      .attention = attention, .kernels = kernels, .desc = desc, .out = out, .certificate = certificate, .lost = -1};
  bny_job_set_up(&job);
  bny_pool *mine = bny_pool_take(pool);
  banyan_status status = desc->prunes ? bny_job_prune(&job, mine) : bny_job_run(&job, mine);
  bny_pool_give(mine);
  return status == BANYAN_OK ? bny_job_end(&job, since) : status;
}

banyan_status banyan_attention(const banyan_attention_desc *desc, const banyan_partial *out) {
  BNY_FLOAT_MODE;
  bny_attention_desc own;
  banyan_partial out_room;
  banyan_status status = bny_attention_check_call(desc, &own, &out, &out_room, true);
  if (status == BANYAN_OK) status = bny_attention_check_scale(&own, out);
  if (status != BANYAN_OK) return status;
  return bny_attention_run(bny_attention_kernels_find(NULL), bny_kernels_find(NULL), &own, out, NULL, NULL);
}

banyan_status banyan_page_bounds_update(const banyan_attention_desc *desc, const int32_t *first) {
  BNY_FLOAT_MODE;
  static const char where[] = "banyan_page_bounds_update";
  bny_attention_desc own;
  banyan_status status = bny_attention_read(desc, &own);
  if (status != BANYAN_OK) return status;
  own.q = &own; /* no field of q is read */
  own.q_dtype = BANYAN_F32;
  own.q_batch_stride = own.q_head_stride = 0;
  own.rope = (banyan_q_rope){0};
  own.queries = (banyan_queries){0};
  own.has_queries = false;
  own.tokens = own.batch;
  if (!own.prune.bounds) return bny_fail(BANYAN_ERR_ARGUMENT, "%s: prune.bounds is NULL", where);
  status = bny_attention_check_fields(&own, true);
  if (status != BANYAN_OK) return status;
  const bny_bounds bounds = bny_attention_bounds(&own);
  for (int32_t b = 0; b < own.batch; b++) {
    int32_t keys = bny_attention_keys(&own.kv, b), from = first ? first[b] : 0;
    if (from < 0 || from > keys)
      return bny_fail(BANYAN_ERR_ARGUMENT, "%s: first[%d] is %d, must be 0 to %d", where, b, from, keys);
    bny_bounds_update(&bounds, b, bny_attention_pages(&own.kv, b), from, keys);
  }
  return BANYAN_OK;
}
