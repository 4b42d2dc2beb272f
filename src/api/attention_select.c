/* SPDX-License-Identifier: Apache-2.0
 * Checks attention that first selects the keys that it reads. */
#include <inttypes.h>

#include "api/api.h"
#include "base/status.h"

#define REJECT(...) bny_fail(BANYAN_ERR_ARGUMENT, "desc.select: " __VA_ARGS__)

/* Its results are arrays of the attention. */
static banyan_status check_results(const bny_attention_desc *desc, const bny_lists *lists, banyan_order order) {
  const banyan_kv_part *kv = &desc->kv;
  const bool has_rows = desc->batch > 0;
  if (has_rows && (!lists->own || !lists->own_counts)) return REJECT("own and own_counts must not be NULL");
  if (!bny_chosen_is_list(desc)) {
    if (!desc->has_queries || (has_rows && !desc->queries.key_mask))
      return REJECT("its keys go to page_table or to queries.key_mask: page_table is not own, and key_mask is NULL");
    if (desc->batch > 1 && desc->queries.key_mask_stride == 0)
      return REJECT("queries.key_mask_stride is 0: each sequence needs a mask of its own");
    return BANYAN_OK;
  }
  if (order == BANYAN_ORDER_EXACT)
    return REJECT("own is the page_table, and in the exact order bits would depend on ranks: describe all keys of the "
                  "shard, and give queries.key_mask");
  if (kv->pages.keys != 1) return REJECT("page_keys is %d: own lists pages of one key", kv->pages.keys);
  if (kv->pages.indptr || kv->seq_lens != lists->own_counts)
    return REJECT("own is the page_table, so seq_lens must be own_counts, and page_indptr NULL");
  if (desc->batch > 1 && kv->pages.table_stride != lists->out_stride)
    return REJECT("page_table_stride is %" PRId64 ", and own has a stride of %" PRId64, kv->pages.table_stride,
                  lists->out_stride);
  return BANYAN_OK;
}

/* A selection on a device runs before kernels that read page tables and lengths. None of them marks keys, and none
 * reads a mask. */
static banyan_status check_device(const bny_attention_desc *desc) {
  if (bny_chosen_is_list(desc)) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_UNSUPPORTED,
                  "desc.select: on a device its keys go to page_table, as pages of one key: set it to own. No kernel "
                  "marks keys in queries.key_mask, or reads that mask");
}

banyan_status bny_api_attention_select(banyan_comm *comm, const bny_attention_desc *desc, banyan_order order) {
  const banyan_select_desc *select = &desc->select;
  if (select->tokens != desc->batch || select->heads > 1)
    return REJECT("it has tokens %d and heads %d, must be batch, which is %d, and 0 or 1", select->tokens,
                  select->heads, desc->batch);
  if (select->valid) return REJECT("valid must be NULL: combine.valid has the tokens of a run");
  if (desc->prunes) return bny_fail(BANYAN_ERR_UNSUPPORTED, "desc.select is set next to desc.prune: use one of them");
  bny_lists lists;
  banyan_status status = bny_api_select_check(comm, select, &lists);
  if (status != BANYAN_OK) return bny_fail(status, "desc.select: %s", banyan_last_error());
  if (comm->device.engine) status = check_device(desc);
  if (status != BANYAN_OK) return status;
  return check_results(desc, &lists, order);
}
