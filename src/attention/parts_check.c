/* SPDX-License-Identifier: Apache-2.0
 * Checks the keys and values of one memory: rows, scales, strides and pages. */
#include <inttypes.h>
#include <math.h>

#include "attention/queries.h"

/* Layouts of rows other than PLAIN have one shape. */
static banyan_status check_rows(const bny_attention_desc *desc, const banyan_kv_part *part) {
  if (bny_dtype_bytes(part->dtype) == 0)
    return bny_attention_reject(
        "kv_dtype is %d, must be BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3, BANYAN_E5M2 or BANYAN_I8",
        (int)part->dtype);
  if (part->rows != BANYAN_KV_ROWS_PLAIN && part->rows != BANYAN_KV_ROWS_FLASHMLA_FP8)
    return bny_attention_reject("kv_rows is %d, must be BANYAN_KV_ROWS_PLAIN or BANYAN_KV_ROWS_FLASHMLA_FP8",
                                (int)part->rows);
  bool has_scale = part->scales.k || part->scales.v;
  if (has_scale && (bny_dtype_is_float(part->dtype) || part->rows != BANYAN_KV_ROWS_PLAIN))
    return bny_attention_reject("%s is set, but kv_dtype is %d and kv_rows %d: only plain rows of BANYAN_E4M3, "
                                "BANYAN_E5M2 and BANYAN_I8 have separate scales",
                                part->scales.k ? "k_scale" : "v_scale", (int)part->dtype, (int)part->rows);
  if (part->rows == BANYAN_KV_ROWS_PLAIN) return BANYAN_OK;
  if (part->dtype != BANYAN_E4M3 || desc->head_dim != BNY_FLASHMLA_DIM || desc->value_dim != BNY_FLASHMLA_CODES)
    return bny_attention_reject(
        "kv_rows is BANYAN_KV_ROWS_FLASHMLA_FP8, with kv_dtype %d, head_dim %d and value_dim %d; "
        "must be BANYAN_E4M3, %d and %d",
        (int)part->dtype, desc->head_dim, desc->value_dim, BNY_FLASHMLA_DIM, BNY_FLASHMLA_CODES);
  if (part->v && part->v != part->k)
    return bny_attention_reject(
        "v is not k, but values are part of the rows of BANYAN_KV_ROWS_FLASHMLA_FP8. Let v be k or NULL");
  return BANYAN_OK;
}

/* Checks scales, which are in host memory. */
static banyan_status check_scales(const bny_attention_desc *desc, const banyan_kv_part *part) {
  if (part->scales.token_stride != 0) return BANYAN_OK; /* there are as many scales as keys, so they are not checked */
  for (int32_t i = 0; i < 2; i++) {
    const float *scales = i == 0 ? part->scales.k : part->scales.v;
    for (int32_t h = 0; scales && h < desc->kv_heads; h++) {
      float scale = scales[h * part->scales.head_stride];
      if (!(scale > 0) || isinf(scale))
        return bny_attention_reject("%s[%" PRId64 "] of KV head %d is %g, must be finite and above 0",
                                    i == 0 ? "k_scale" : "v_scale", h * part->scales.head_stride, h, (double)scale);
    }
  }
  return BANYAN_OK;
}

/* Rejects a stride with which rows of one sequence overlap in part, because its unit is wrong. Also rejects a stride of
 * 0 between keys, because it was forgotten. A head stride of 0 shares a row among all heads. Batch strides may have any
 * value: 0 shares a query or a prefix. Without rows of q, strides may be unset. */
static banyan_status check_stride(const char *name, int64_t stride, int32_t rows, int32_t row) {
  if (rows > 1 && stride < row && stride > -(int64_t)row)
    return bny_attention_reject("%s is %" PRId64 ": rows of %d elements would overlap", name, stride, row);
  return BANYAN_OK;
}

static banyan_status check_head_stride(const char *name, int64_t stride, int32_t heads, int32_t row) {
  return stride == 0 ? BANYAN_OK : check_stride(name, stride, heads, row);
}

/* The stride of a dimension of size 1 is not used. */
static bool is_far(int64_t count, int64_t stride) { return count > 1 && bny_extent_too_large(count, stride, 0, 0); }

/* Rejects strides for which address arithmetic would overflow. `longest` is the largest number of keys of a
 * sequence. */
static banyan_status check_range(const bny_attention_desc *desc, const banyan_kv_part *part, int32_t longest) {
  int64_t outer = !part->pages.table      ? desc->batch
                  : part->pages.count > 0 ? part->pages.count
                                          : 2,
          tokens = desc->tokens;
  bool has_scale = part->scales.k || part->scales.v;
  bool has_rows_of_v = part->rows == BANYAN_KV_ROWS_PLAIN, has_table = part->pages.table && !part->pages.indptr;
  int64_t keys = part->pages.table && part->pages.keys < longest ? part->pages.keys : longest;
  const struct {
    const char *name;
    int64_t count, stride;
  } all[] = {{"q_batch_stride", tokens, desc->q_batch_stride},
             {"q_head_stride", desc->heads, desc->q_head_stride},
             {"q_rope_batch_stride", desc->rope.dim ? tokens : 0, desc->rope.batch_stride},
             {"q_rope_head_stride", desc->rope.dim ? desc->heads : 0, desc->rope.head_stride},
             {"k_batch_stride", outer, part->k_batch_stride},
             {"k_head_stride", desc->kv_heads, part->k_head_stride},
             {"k_token_stride", keys, part->k_token_stride},
             {"v_batch_stride", has_rows_of_v ? outer : 0, part->v_batch_stride},
             {"v_head_stride", has_rows_of_v ? desc->kv_heads : 0, part->v_head_stride},
             {"v_token_stride", has_rows_of_v ? keys : 0, part->v_token_stride},
             {"page_table_stride", has_table ? desc->batch : 0, part->pages.table_stride},
             {"kv_scale_stride", has_scale ? desc->kv_heads : 0, part->scales.head_stride},
             {"kv_scale_token_stride", has_scale ? keys : 0, part->scales.token_stride},
             {"kv_scale_batch_stride", has_scale ? outer : 0, part->scales.batch_stride}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    if (is_far(all[i].count, all[i].stride))
      return bny_attention_reject("%s is %" PRId64 ", out of range", all[i].name, all[i].stride);
  return BANYAN_OK;
}

static bool exceeds_table(const banyan_kv_part *part, int32_t keys) {
  return part->pages.table && !part->pages.indptr && part->pages.table_stride > 0 &&
         (keys - (keys > 0)) / part->pages.keys >= part->pages.table_stride;
}

/* keys_max: of this part; 0: unknown. */
static banyan_status check_pages(const banyan_kv_part *part, int32_t keys_max) {
  if (part->pages.indptr && !part->pages.table)
    return bny_attention_reject("page_indptr is set, but page_table is NULL");
  if (part->pages.last_len && !part->pages.indptr)
    return bny_attention_reject("last_page_len is set, but page_indptr is NULL");
  if (part->pages.table && part->pages.keys < 1)
    return bny_attention_reject("page_keys is %d, must be at least 1", part->pages.keys);
  if (!part->pages.table && part->pages.keys != 0)
    return bny_attention_reject("page_keys is %d and page_table is NULL", part->pages.keys);
  if (part->pages.count < 0 || (part->pages.count > 0 && !part->pages.table))
    return bny_attention_reject("pages is %" PRId64 "%s", part->pages.count,
                                part->pages.count < 0 ? ", negative" : " and page_table is NULL");
  if (exceeds_table(part, keys_max))
    return bny_attention_reject("keys_max is %d, and page_table_stride of %" PRId64 " has room for %" PRId64
                                " pages of %d keys",
                                keys_max, part->pages.table_stride, part->pages.table_stride, part->pages.keys);
  return BANYAN_OK;
}

/* Checks every id that the length of one sequence reaches. */
static banyan_status check_page_ids(const banyan_kv_part *part, int32_t b) {
  const int32_t *table = bny_attention_pages(part, b), keys = bny_attention_keys(part, b);
  const int32_t last =
      part->pages.count > 0 && part->pages.count <= INT32_MAX ? (int32_t)part->pages.count - 1 : INT32_MAX;
  if (exceeds_table(part, keys))
    return bny_attention_reject("seq_lens[%d] is %d, and page_table_stride of %" PRId64
                                " has room for so many pages of %d keys",
                                b, keys, part->pages.table_stride, part->pages.keys);
  for (int32_t place = 0; keys > 0 && place <= (keys - 1) / part->pages.keys; place++) {
    if (table[place] < 0 || table[place] > last)
      return bny_attention_reject("page_table[%d][%d] is %d, must be 0 to %d (pages is %" PRId64 ")", b, place,
                                  table[place], last, part->pages.count);
  }
  return BANYAN_OK;
}

static banyan_status check_strides(const bny_attention_desc *desc, const banyan_kv_part *part, int32_t longest) {
  if (desc->batch == 0 || desc->tokens == 0) return BANYAN_OK;
  int32_t neighbours = part->pages.table && part->pages.keys < longest ? part->pages.keys : longest;
  bool is_plain = part->rows == BANYAN_KV_ROWS_PLAIN;
  int32_t k_row = is_plain ? desc->head_dim : BNY_FLASHMLA_BYTES;
  banyan_status status = check_range(desc, part, longest);
  if (status == BANYAN_OK)
    status = check_head_stride("q_head_stride", desc->q_head_stride, desc->heads, desc->head_dim - desc->rope.dim);
  if (status == BANYAN_OK && desc->rope.dim > 0)
    status = check_head_stride("q_rope_head_stride", desc->rope.head_stride, desc->heads, desc->rope.dim);
  if (status == BANYAN_OK) status = check_stride("k_token_stride", part->k_token_stride, neighbours, k_row);
  if (status == BANYAN_OK && longest > 0)
    status = check_head_stride("k_head_stride", part->k_head_stride, desc->kv_heads, k_row);
  if (!is_plain) return status;
  if (status == BANYAN_OK) status = check_stride("v_token_stride", part->v_token_stride, neighbours, desc->value_dim);
  if (status == BANYAN_OK && longest > 0)
    status = check_head_stride("v_head_stride", part->v_head_stride, desc->kv_heads, desc->value_dim);
  return status;
}

/* ---- memory of the host ------------------------------------------------------------------------------------------ */

static banyan_status check_page_list(const bny_attention_desc *desc, const banyan_kv_part *part) {
  for (int32_t b = 0; b < desc->batch; b++) {
    int64_t pages = (int64_t)part->pages.indptr[b + 1] - part->pages.indptr[b];
    if (part->pages.indptr[b] < 0 || pages < 0)
      return bny_attention_reject("page_indptr[%d] is %d and the next %d: they must not be negative or decrease", b,
                                  part->pages.indptr[b], part->pages.indptr[b + 1]);
    if (part->pages.last_len && pages > 0 &&
        (part->pages.last_len[b] < 1 || part->pages.last_len[b] > part->pages.keys))
      return bny_attention_reject("last_page_len[%d] is %d, must be 1 to page_keys, which is %d", b,
                                  part->pages.last_len[b], part->pages.keys);
    if (part->pages.last_len && pages * part->pages.keys > INT32_MAX)
      return bny_attention_reject("sequence %d has more than 2^31 - 1 keys", b);
    if (!part->pages.last_len && part->seq_lens && part->seq_lens[b] > pages * part->pages.keys)
      return bny_attention_reject("seq_lens[%d] is %d, and page_indptr gives it %" PRId64 " pages of %d keys", b,
                                  part->seq_lens[b], pages, part->pages.keys);
  }
  return BANYAN_OK;
}

/* Checks what the keys of a run need; `longest`: the most keys of a sequence. */
static banyan_status check_bounds(const bny_attention_desc *desc, const banyan_kv_part *part, int32_t longest) {
  const banyan_prune *prune = &desc->prune;
  if (!desc->prunes || longest == 0) return BANYAN_OK;
  if (!prune->bounds)
    return bny_attention_reject("prune.bounds is NULL, other fields of prune are set, and there are keys");
  if (!part->pages.table && (prune->keys < 1 || (longest - 1) / prune->keys >= prune->batch_pages))
    return bny_attention_reject("prune.batch_pages is %d pages of prune.keys %d, and a sequence has %d keys",
                                prune->batch_pages, prune->keys, longest);
  return BANYAN_OK;
}

/* Checks the arrays of a part, which are in host memory. */
static banyan_status check_memory(const bny_attention_desc *desc, const banyan_kv_part *part) {
  int32_t longest = 0;
  banyan_status status = part->pages.indptr ? check_page_list(desc, part) : BANYAN_OK;
  if (status != BANYAN_OK || desc->batch == 0 || desc->tokens == 0) return status;
  if (!part->seq_lens && !part->pages.last_len) return bny_attention_reject("seq_lens is NULL");
  for (int32_t b = 0; b < desc->batch; b++) {
    int32_t keys = bny_attention_keys(part, b);
    if (keys < 0) return bny_attention_reject("seq_lens[%d] is %d, negative", b, keys);
    longest = keys > longest ? keys : longest;
  }
  if (longest > 0 && !part->k) return bny_attention_reject("k is NULL and seq_lens has %d keys", longest);
  if (longest > 0 && !part->v && part->rows == BANYAN_KV_ROWS_PLAIN)
    return bny_attention_reject("v is NULL and seq_lens has %d keys", longest);
  status = check_bounds(desc, part, longest);
  if (status == BANYAN_OK) status = check_strides(desc, part, longest);
  if (status == BANYAN_OK) status = check_scales(desc, part);
  for (int32_t b = 0; part->pages.table && b < desc->batch && status == BANYAN_OK; b++)
    status = check_page_ids(part, b);
  return status;
}

banyan_status bny_attention_check_part(const bny_attention_desc *desc, const banyan_kv_part *part, bool on_host) {
  int32_t keys_max = desc->parts ? 0 : desc->keys_max; /* counts all parts */
  banyan_status status = check_rows(desc, part);
  if (status == BANYAN_OK) status = check_pages(part, keys_max);
  if (status != BANYAN_OK) return status;
  return on_host ? check_memory(desc, part) : check_strides(desc, part, keys_max);
}
