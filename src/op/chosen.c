/* SPDX-License-Identifier: Apache-2.0
 * The keys that a selection chooses, as attention reads them: a list of pages of one key, or a mask. */
#include "op/attend.h"

#include <inttypes.h>
#include <string.h>

#include "attention/queries.h"
#include "base/status.h"

bny_lists bny_chosen_lists(const banyan_select_desc *desc) {
  return (bny_lists){.scores = desc->scores,
                     .indices = desc->indices,
                     .rows = desc->rows,
                     .offers = desc->offers,
                     .in_stride = desc->in_stride ? desc->in_stride : desc->offers,
                     .out_stride = desc->out_stride ? desc->out_stride : desc->k,
                     .best_scores = desc->best_scores,
                     .best_indices = desc->best_indices,
                     .counts = desc->counts,
                     .own = desc->own,
                     .own_counts = desc->own_counts};
}

banyan_status bny_chosen_offer(const bny_attention_desc *desc) {
  const bny_lists lists = bny_chosen_lists(&desc->select);
  const bool is_list = bny_chosen_is_list(desc);
  const int64_t pages = desc->kv.pages.count > 0 ? desc->kv.pages.count : INT32_MAX;
  for (int32_t b = 0; b < desc->batch; b++) {
    const int64_t first = b * lists.in_stride, most = is_list ? pages : bny_attention_keys(&desc->kv, b);
    int32_t *own = lists.own + b * lists.out_stride, count = 0;
    if (!is_list && b + 1 < desc->batch && most > desc->queries.key_mask_stride)
      return bny_fail(BANYAN_ERR_ARGUMENT,
                      "desc.queries.key_mask_stride is %" PRId64 ", and sequence %d has %" PRId64
                      " keys: desc.select needs a mask for each sequence",
                      desc->queries.key_mask_stride, b, most);
    for (int32_t i = 0; i < lists.offers; i++) {
      if (lists.indices[first + i] < 0) continue;
      const int32_t row = lists.rows ? lists.rows[first + i] : i;
      if (row < 0 || row >= most)
        return bny_fail(BANYAN_ERR_ARGUMENT,
                        "desc.select.rows: offer %d of sequence %d has row %d, and %s %" PRId64 ": rows begin at 0", i,
                        b, row, is_list ? "the pages of one key are" : "its keys in this shard are", most);
      own[count++] = row;
    }
    lists.own_counts[b] = count;
  }
  return BANYAN_OK;
}

void bny_chosen_mark(const bny_attention_desc *desc) {
  if (bny_chosen_is_list(desc)) return;
  const bny_lists lists = bny_chosen_lists(&desc->select);
  for (int32_t b = 0; b < desc->batch; b++) {
    uint8_t *mask = (uint8_t *)(uintptr_t)desc->queries.key_mask + b * desc->queries.key_mask_stride;
    const int32_t *own = lists.own + b * lists.out_stride;
    memset(mask, 0, (size_t)bny_attention_keys(&desc->kv, b));
    for (int32_t i = 0; i < lists.own_counts[b]; i++) mask[own[i]] = 1;
  }
}
