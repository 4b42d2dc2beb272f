/* SPDX-License-Identifier: Apache-2.0
 * Checks attention that first gathers q from the shares of all ranks. */
#include <inttypes.h>

#include "api/api.h"
#include "base/sized.h"
#include "base/status.h"

/* The result is q, so its shape and its strides are those of q. Strides may be left out. */
static banyan_status check_shape(const bny_attention_desc *desc, const banyan_heads_desc *gather) {
  bool says_strides = gather->all_token_stride != 0 || gather->all_head_stride != 0;
  const struct {
    const char *field;
    int64_t given;
    const char *of_q;
    int64_t wanted;
  } all[] = {{"tokens", gather->tokens, desc->has_queries ? "queries.tokens" : "batch", desc->tokens},
             {"heads", gather->heads, "heads", desc->heads},
             {"dim", gather->dim, desc->rope.dim ? "head_dim without rope_dim" : "head_dim",
              (int64_t)desc->head_dim - desc->rope.dim},
             {"dtype", gather->dtype, "q_dtype", desc->q_dtype},
             {"all_token_stride", gather->all_token_stride, "q_batch_stride", desc->q_batch_stride},
             {"all_head_stride", gather->all_head_stride, "q_head_stride", desc->q_head_stride}};
  for (size_t i = 0; i < sizeof all / sizeof all[0] - (says_strides ? 0 : 2); i++)
    if (all[i].given != all[i].wanted)
      return bny_fail(BANYAN_ERR_ARGUMENT, "desc.gather has %s %" PRId64 ", and %s is %" PRId64, all[i].field,
                      all[i].given, all[i].of_q, all[i].wanted);
  if (desc->q_batch_stride == 0 && desc->tokens > 1)
    return bny_fail(BANYAN_ERR_ARGUMENT, "q_batch_stride is 0: tokens of a gathered q would overlap");
  if (gather->stream && gather->stream != desc->stream)
    return bny_fail(BANYAN_ERR_ARGUMENT, "desc.gather.stream is not that of attention");
  return BANYAN_OK;
}

banyan_status bny_api_attention_gather(banyan_comm *comm, const bny_attention_desc *desc, bool blocking,
                                       bny_api_heads *gathered) {
  banyan_heads_desc room;
  const banyan_heads_desc *known = bny_sized_read(&bny_sized_heads_desc, "desc.gather", desc->gather, &room);
  if (!known) return BANYAN_ERR_ARGUMENT;
  if (comm->device.proxy)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    "desc.gather needs devices that share memory; those of several nodes do not");
  banyan_status status = check_shape(desc, known);
  if (status != BANYAN_OK) return status;
  banyan_heads_desc heads = *known;
  heads.all_token_stride = desc->q_batch_stride;
  heads.all_head_stride = desc->q_head_stride;
  heads.stream = desc->stream;
  status = bny_api_heads_read(comm, &heads, desc->q_mine, (void *)(uintptr_t)desc->q, blocking, gathered);
  return status == BANYAN_OK ? status
                             : bny_fail(status, "desc.gather, of q_mine into q as `all`: %s", banyan_last_error());
}
