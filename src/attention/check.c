/* SPDX-License-Identifier: Apache-2.0
 * Checks a call of local attention before anything is computed. */
#include "attention/call.h"
#include "attention/queries.h"
#include "select.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/sized.h"
#include "base/status.h"

#define WHERE "banyan_attention: "

static banyan_status check_shape(const banyan_attention_desc *desc) {
  if (desc->batch < 0) return bny_attention_reject("batch is %d, negative", desc->batch);
  if (desc->kv_heads < 1) return bny_attention_reject("kv_heads is %d, must be at least 1", desc->kv_heads);
  if (desc->heads < 1 || desc->heads % desc->kv_heads != 0)
    return bny_attention_reject("heads is %d, must be a multiple of kv_heads, which is %d", desc->heads,
                                desc->kv_heads);
  if ((int64_t)bny_attention_tokens(desc) * desc->heads > INT32_MAX)
    return bny_attention_reject("%s %d x heads %d are more than 2^31 - 1 rows",
                                desc->queries ? "queries.tokens" : "batch", bny_attention_tokens(desc), desc->heads);
  if (desc->head_dim < 1 || desc->head_dim > BNY_ATTENTION_HEAD_DIM_MAX)
    return bny_attention_reject("head_dim is %d, must be 1 to %d", desc->head_dim, BNY_ATTENTION_HEAD_DIM_MAX);
  if (bny_attention_value_dim(desc) < 1 || bny_attention_value_dim(desc) > BNY_ATTENTION_VALUE_DIM_MAX)
    return bny_attention_reject("value_dim is %d%s, must be 1 to %d", bny_attention_value_dim(desc),
                                desc->value_dim ? "" : " (head_dim, as it is unset)", BNY_ATTENTION_VALUE_DIM_MAX);
  if (desc->keys_max < 0) return bny_attention_reject("keys_max is %d, negative", desc->keys_max);
  if (!isfinite(desc->scale))
    return bny_attention_reject("scale is %g, must be finite (0: 1 / sqrt(head_dim))", (double)desc->scale);
  if (desc->empty != 0 && desc->empty != BANYAN_EMPTY_NAN)
    return bny_attention_reject("empty is %" PRIu64 ", must be 0 or BANYAN_EMPTY_NAN", desc->empty);
  if (!bny_dtype_is_float(desc->q_dtype))
    return bny_attention_reject("q_dtype is %d, must be BANYAN_F32, BANYAN_F16 or BANYAN_BF16", (int)desc->q_dtype);
  return BANYAN_OK;
}

static banyan_status check_prune(const banyan_attention_desc *desc) {
  const banyan_prune *prune = &desc->prune;
  if (!(prune->epsilon >= 0 && prune->epsilon <= 1))
    return bny_attention_reject("prune.epsilon is %g, must be 0 to 1", (double)prune->epsilon);
  if (prune->top_pages < 0 || prune->top_pages > BNY_SELECT_MOST)
    return bny_attention_reject("prune.top_pages is %d, must be 0 to %d", prune->top_pages, BNY_SELECT_MOST);
  if (prune->top_pages > 0 && prune->epsilon > 0)
    return bny_attention_reject("prune.top_pages is %d, and prune.epsilon is set too", prune->top_pages);
  if (desc->kv.pages.table ? prune->keys != 0 || prune->batch_pages != 0 : prune->keys < 0 || prune->batch_pages < 0)
    return bny_attention_reject("prune.keys is %d and prune.batch_pages %d: %s", prune->keys, prune->batch_pages,
                                desc->kv.pages.table ? "must be 0, as page_table is set" : "must not be negative");
  return BANYAN_OK;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static banyan_status check_list(const banyan_attention_desc *desc) {
  const banyan_kv_part *kv = &desc->kv;
  const struct {
    const char *name;
    bool is_set;
  } own[] = {{"k", kv->k != NULL},
             {"v", kv->v != NULL},
             {"k_batch_stride", kv->k_batch_stride != 0},
             {"k_head_stride", kv->k_head_stride != 0},
             {"k_token_stride", kv->k_token_stride != 0},
             {"v_batch_stride", kv->v_batch_stride != 0},
             {"v_head_stride", kv->v_head_stride != 0},
             {"v_token_stride", kv->v_token_stride != 0},
             {"page_table", kv->pages.table != NULL},
             {"page_indptr", kv->pages.indptr != NULL},
             {"last_page_len", kv->pages.last_len != NULL},
             {"page_keys", kv->pages.keys != 0},
             {"k_scale", kv->scales.k != NULL},
             {"v_scale", kv->scales.v != NULL},
             {"kv_dtype", kv->dtype != 0},
             {"kv_rows", kv->rows != BANYAN_KV_ROWS_PLAIN},
             {"key_first", kv->key_first != NULL}};
  if (!desc->parts && (desc->part_count != 0 || kv->key_first))
    return bny_attention_reject("%s is set and parts is NULL", kv->key_first ? "key_first" : "part_count");
  if (!desc->parts) return BANYAN_OK;
  if (desc->part_count < 1 || desc->part_count > BNY_ATTENTION_PARTS_MAX)
    return bny_attention_reject("part_count is %" PRId64 ", must be 1 to %d", desc->part_count,
                                BNY_ATTENTION_PARTS_MAX);
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
    if (own[i].is_set) return bny_attention_reject("%s is set next to parts: each part has its own", own[i].name);
  return BANYAN_OK;
}

static banyan_status reject_prune(const banyan_attention_desc *desc) {
  if (!bny_prune_is_wanted(desc) || !desc->parts) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_UNSUPPORTED, WHERE
                  "prune is set next to parts: pages are left out of keys in one memory only. Leave one of them 0");
}

/* Checks that parts follow one another, and together are the keys of the shard. */
static banyan_status check_ranges(const banyan_attention_desc *desc) {
  if (desc->batch == 0 || bny_attention_tokens(desc) == 0) return BANYAN_OK;
  if (!desc->kv.seq_lens) return bny_attention_reject("seq_lens is NULL");
  for (int32_t b = 0; b < desc->batch; b++) {
    int64_t end = 0;
    for (int32_t i = 0; i < desc->part_count; i++) {
      const banyan_kv_part *part = &desc->parts[i];
      if (part->key_first && part->key_first[b] != end)
        return bny_attention_reject("parts[%d].key_first[%d] is %d, %s: the parts before end at key %" PRId64
                                    ". Give parts in the order of keys, without overlap or gap",
                                    i, b, part->key_first[b],
                                    part->key_first[b] < end ? "which overlaps" : "which leaves a gap", end);
      end += bny_attention_keys(part, b);
    }
    if (end != bny_attention_keys(&desc->kv, b))
      return bny_attention_reject("seq_lens[%d] is %d, and the parts have %" PRId64 " keys of it", b,
                                  bny_attention_keys(&desc->kv, b), end);
  }
  return BANYAN_OK;
}

/* Checks the keys in each memory. Errors of parts name them. */
static banyan_status check_parts(const banyan_attention_desc *desc, bool on_host) {
  if (!desc->parts) return bny_attention_check_part(desc, &desc->kv, on_host);
  banyan_status status = BANYAN_OK;
  int32_t i = 0;
  while (i < desc->part_count && (status = bny_attention_check_part(desc, &desc->parts[i], on_host)) == BANYAN_OK) i++;
  if (status == BANYAN_OK) return on_host ? check_ranges(desc) : BANYAN_OK;
  char text[BNY_ERROR_TEXT_BYTES];
  snprintf(text, sizeof text, "%s", banyan_last_error());
  bool has_prefix = strncmp(text, WHERE, strlen(WHERE)) == 0;
  return bny_fail(status, WHERE "parts[%d]: %s", i, text + (has_prefix ? strlen(WHERE) : 0));
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

banyan_status bny_attention_read(const banyan_attention_desc **desc, bny_attention_room *room) {
  if (!*desc) return bny_attention_reject("desc is NULL");
  const banyan_attention_desc *known = bny_sized_read(&bny_sized_attention_desc, WHERE "desc", *desc, &room->desc);
  if (!known) return BANYAN_ERR_ARGUMENT;
  const banyan_queries *queries = known->queries;
  if (queries && !(queries = bny_sized_read(&bny_sized_queries, WHERE "queries", queries, &room->queries)))
    return BANYAN_ERR_ARGUMENT;
  const banyan_select_desc *select = known->select;
  if (select && !(select = bny_sized_read(&bny_sized_select_desc, WHERE "select", select, &room->select)))
    return BANYAN_ERR_ARGUMENT;
  if (queries != known->queries || select != known->select) {
    if (known != &room->desc) room->desc = *known;
    room->desc.queries = queries;
    room->desc.select = select;
    known = &room->desc;
  }
  *desc = known;
  return BANYAN_OK;
}

banyan_status bny_attention_check_fields(const banyan_attention_desc *desc, bool on_host) {
  banyan_status status = check_shape(desc);
  if (status == BANYAN_OK) status = check_list(desc);
  if (status == BANYAN_OK) status = reject_prune(desc);
  if (status == BANYAN_OK) status = check_prune(desc);
  if (status == BANYAN_OK) status = bny_attention_check_queries(desc, on_host);
  return status == BANYAN_OK ? check_parts(desc, on_host) : status;
}

static banyan_status check_out(const banyan_attention_desc *desc, const banyan_partial *out) {
  bny_box box = {bny_attention_tokens(desc), desc->heads, bny_attention_value_dim(desc)};
  const char *reason = bny_partial_check(out, &box, true), *names[2];
  if (reason) return bny_attention_reject("out: %s", reason);
  if (bny_partial_overlaps_itself(out, &box, names))
    return bny_attention_reject("out.%s overlaps out.%s: give each its own memory", names[1], names[0]);
  return BANYAN_OK;
}

banyan_status bny_attention_check_call(const banyan_attention_desc **desc, bny_attention_room *room,
                                       const banyan_partial **out, banyan_partial *out_room, bool on_host) {
  banyan_status status = bny_attention_read(desc, room);
  if (status != BANYAN_OK) return status;
  if (!*out) return bny_attention_reject("out is NULL");
  *out = bny_sized_read(&bny_sized_partial, WHERE "out", *out, out_room);
  if (!*out) return BANYAN_ERR_ARGUMENT;
  if ((*desc)->gather || (*desc)->select)
    return bny_attention_reject("desc.%s must be NULL: banyan_attention_combine() alone exchanges something before",
                                (*desc)->gather ? "gather" : "select");
  status = bny_attention_check_fields(*desc, on_host);
  return status == BANYAN_OK ? check_out(*desc, *out) : status;
}

banyan_status bny_attention_check_scale(const banyan_attention_desc *desc, const banyan_partial *out) {
  int32_t head = bny_attention_tokens(desc) > 0 ? bny_partial_scale_check(out, desc->heads) : -1;
  if (head < 0) return BANYAN_OK;
  return bny_attention_reject("out.values_scale of head %d must be finite and above 0", head);
}
