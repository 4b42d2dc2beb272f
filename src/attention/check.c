/* SPDX-License-Identifier: Apache-2.0
 * Checks a call of local attention before anything is computed. */
#include "attention/call.h"
#include "attention/queries.h"

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
  if (!isfinite(desc->scale))
    return bny_attention_reject("scale is %g, must be finite (0: 1 / sqrt(head_dim))", (double)desc->scale);
  if (desc->empty != 0 && desc->empty != BANYAN_EMPTY_NAN)
    return bny_attention_reject("empty is %" PRIu64 ", must be 0 or BANYAN_EMPTY_NAN", desc->empty);
  if (!bny_dtype_is_float(desc->q_dtype))
    return bny_attention_reject("q_dtype is %d, must be BANYAN_F32, BANYAN_F16 or BANYAN_BF16", (int)desc->q_dtype);
  return BANYAN_OK;
}

/* Layouts of rows other than PLAIN have one shape. */
static banyan_status check_rows(const banyan_attention_desc *desc) {
  if (bny_dtype_bytes(desc->kv_dtype) == 0)
    return bny_attention_reject(
        "kv_dtype is %d, must be BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3, BANYAN_E5M2 or BANYAN_I8",
        (int)desc->kv_dtype);
  if (desc->kv_rows != BANYAN_KV_ROWS_PLAIN && desc->kv_rows != BANYAN_KV_ROWS_FLASHMLA_FP8)
    return bny_attention_reject("kv_rows is %d, must be BANYAN_KV_ROWS_PLAIN or BANYAN_KV_ROWS_FLASHMLA_FP8",
                                (int)desc->kv_rows);
  bool has_scale = desc->scales.k || desc->scales.v;
  if (has_scale && (bny_dtype_is_float(desc->kv_dtype) || desc->kv_rows != BANYAN_KV_ROWS_PLAIN))
    return bny_attention_reject("%s is set, but kv_dtype is %d and kv_rows %d: only plain rows of BANYAN_E4M3, "
                                "BANYAN_E5M2 and BANYAN_I8 have separate scales",
                                desc->scales.k ? "k_scale" : "v_scale", (int)desc->kv_dtype, (int)desc->kv_rows);
  if (desc->kv_rows == BANYAN_KV_ROWS_PLAIN) return BANYAN_OK;
  if (desc->kv_dtype != BANYAN_E4M3 || desc->head_dim != BNY_FLASHMLA_DIM ||
      bny_attention_value_dim(desc) != BNY_FLASHMLA_CODES)
    return bny_attention_reject(
        "kv_rows is BANYAN_KV_ROWS_FLASHMLA_FP8, with kv_dtype %d, head_dim %d and value_dim %d; "
        "must be BANYAN_E4M3, %d and %d",
        (int)desc->kv_dtype, desc->head_dim, bny_attention_value_dim(desc), BNY_FLASHMLA_DIM, BNY_FLASHMLA_CODES);
  if (desc->v && desc->v != desc->k)
    return bny_attention_reject(
        "v is not k, but values are part of the rows of BANYAN_KV_ROWS_FLASHMLA_FP8. Let v be k or NULL");
  return BANYAN_OK;
}

/* Checks scales, which are in host memory. */
static banyan_status check_scales(const banyan_attention_desc *desc) {
  if (desc->scales.token_stride != 0) return BANYAN_OK; /* there are as many scales as keys, so they are not checked */
  for (int32_t i = 0; i < 2; i++) {
    const float *scales = i == 0 ? desc->scales.k : desc->scales.v;
    for (int32_t h = 0; scales && h < desc->kv_heads; h++) {
      float scale = scales[h * desc->scales.head_stride];
      if (!(scale > 0) || isinf(scale))
        return bny_attention_reject("%s[%" PRId64 "] of KV head %d is %g, must be finite and above 0",
                                    i == 0 ? "k_scale" : "v_scale", h * desc->scales.head_stride, h, (double)scale);
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
static banyan_status check_range(const banyan_attention_desc *desc, int32_t longest) {
  int64_t outer = !desc->pages.table      ? desc->batch
                  : desc->pages.count > 0 ? desc->pages.count
                                          : 2,
          tokens = bny_attention_tokens(desc);
  bool has_scale = desc->scales.k || desc->scales.v;
  bool has_rows_of_v = desc->kv_rows == BANYAN_KV_ROWS_PLAIN, has_table = desc->pages.table && !desc->pages.indptr;
  int64_t keys = desc->pages.table && desc->pages.keys < longest ? desc->pages.keys : longest;
  const struct {
    const char *name;
    int64_t count, stride;
  } all[] = {{"q_batch_stride", tokens, desc->q_batch_stride},
             {"q_head_stride", desc->heads, desc->q_head_stride},
             {"q_rope_batch_stride", desc->rope.dim ? tokens : 0, desc->rope.batch_stride},
             {"q_rope_head_stride", desc->rope.dim ? desc->heads : 0, desc->rope.head_stride},
             {"k_batch_stride", outer, desc->k_batch_stride},
             {"k_head_stride", desc->kv_heads, desc->k_head_stride},
             {"k_token_stride", keys, desc->k_token_stride},
             {"v_batch_stride", has_rows_of_v ? outer : 0, desc->v_batch_stride},
             {"v_head_stride", has_rows_of_v ? desc->kv_heads : 0, desc->v_head_stride},
             {"v_token_stride", has_rows_of_v ? keys : 0, desc->v_token_stride},
             {"page_table_stride", has_table ? desc->batch : 0, desc->pages.table_stride},
             {"kv_scale_stride", has_scale ? desc->kv_heads : 0, desc->scales.head_stride},
             {"kv_scale_token_stride", has_scale ? keys : 0, desc->scales.token_stride},
             {"kv_scale_batch_stride", has_scale ? outer : 0, desc->scales.batch_stride}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    if (is_far(all[i].count, all[i].stride))
      return bny_attention_reject("%s is %" PRId64 ", out of range", all[i].name, all[i].stride);
  return BANYAN_OK;
}

static bool exceeds_table(const banyan_attention_desc *desc, int32_t keys) {
  return desc->pages.table && !desc->pages.indptr && desc->pages.table_stride > 0 &&
         (keys - (keys > 0)) / desc->pages.keys >= desc->pages.table_stride;
}

static banyan_status check_pages(const banyan_attention_desc *desc) {
  if (desc->keys_max < 0) return bny_attention_reject("keys_max is %d, negative", desc->keys_max);
  if (desc->pages.table && desc->pages.keys < 1)
    return bny_attention_reject("page_keys is %d, must be at least 1", desc->pages.keys);
  if (!desc->pages.table && desc->pages.keys != 0)
    return bny_attention_reject("page_keys is %d and page_table is NULL", desc->pages.keys);
  if (desc->pages.count < 0 || (desc->pages.count > 0 && !desc->pages.table))
    return bny_attention_reject("pages is %" PRId64 "%s", desc->pages.count,
                                desc->pages.count < 0 ? ", negative" : " and page_table is NULL");
  if (exceeds_table(desc, desc->keys_max))
    return bny_attention_reject("keys_max is %d, and page_table_stride of %" PRId64 " has room for %" PRId64
                                " pages of %d keys",
                                desc->keys_max, desc->pages.table_stride, desc->pages.table_stride, desc->pages.keys);
  return BANYAN_OK;
}

/* Checks every id that the length of one sequence reaches. */
static banyan_status check_page_ids(const banyan_attention_desc *desc, int32_t b) {
  const int32_t *table = bny_attention_pages(desc, b), keys = bny_attention_keys(desc, b);
  const int32_t last =
      desc->pages.count > 0 && desc->pages.count <= INT32_MAX ? (int32_t)desc->pages.count - 1 : INT32_MAX;
  if (exceeds_table(desc, keys))
    return bny_attention_reject("seq_lens[%d] is %d, and page_table_stride of %" PRId64
                                " has room for so many pages of %d keys",
                                b, keys, desc->pages.table_stride, desc->pages.keys);
  for (int32_t place = 0; keys > 0 && place <= (keys - 1) / desc->pages.keys; place++) {
    if (table[place] < 0 || table[place] > last)
      return bny_attention_reject("page_table[%d][%d] is %d, must be 0 to %d (pages is %" PRId64 ")", b, place,
                                  table[place], last, desc->pages.count);
  }
  return BANYAN_OK;
}

static banyan_status check_strides(const banyan_attention_desc *desc, int32_t longest) {
  if (desc->batch == 0 || bny_attention_tokens(desc) == 0) return BANYAN_OK;
  int32_t neighbours = desc->pages.table && desc->pages.keys < longest ? desc->pages.keys : longest;
  bool is_plain = desc->kv_rows == BANYAN_KV_ROWS_PLAIN;
  int32_t k_row = is_plain ? desc->head_dim : BNY_FLASHMLA_BYTES;
  banyan_status status = check_range(desc, longest);
  if (status == BANYAN_OK)
    status = check_head_stride("q_head_stride", desc->q_head_stride, desc->heads, desc->head_dim - desc->rope.dim);
  if (status == BANYAN_OK && desc->rope.dim > 0)
    status = check_head_stride("q_rope_head_stride", desc->rope.head_stride, desc->heads, desc->rope.dim);
  if (status == BANYAN_OK) status = check_stride("k_token_stride", desc->k_token_stride, neighbours, k_row);
  if (status == BANYAN_OK && longest > 0)
    status = check_head_stride("k_head_stride", desc->k_head_stride, desc->kv_heads, k_row);
  if (!is_plain) return status;
  if (status == BANYAN_OK)
    status = check_stride("v_token_stride", desc->v_token_stride, neighbours, bny_attention_value_dim(desc));
  if (status == BANYAN_OK && longest > 0)
    status = check_head_stride("v_head_stride", desc->v_head_stride, desc->kv_heads, bny_attention_value_dim(desc));
  return status;
}

static banyan_status check_prune(const banyan_attention_desc *desc) {
  const banyan_prune *prune = &desc->prune;
  if (!(prune->epsilon >= 0 && prune->epsilon <= 1))
    return bny_attention_reject("prune.epsilon is %g, must be 0 to 1", (double)prune->epsilon);
  if (prune->top_pages < 0 || (prune->top_pages > 0 && prune->epsilon > 0))
    return bny_attention_reject("prune.top_pages is %d%s", prune->top_pages,
                                prune->top_pages < 0 ? ", negative" : ", and prune.epsilon is set too");
  if (desc->pages.table ? prune->keys != 0 || prune->batch_pages != 0 : prune->keys < 0 || prune->batch_pages < 0)
    return bny_attention_reject("prune.keys is %d and prune.batch_pages %d: %s", prune->keys, prune->batch_pages,
                                desc->pages.table ? "must be 0, as page_table is set" : "must not be negative");
  return BANYAN_OK;
}

/* Checks what the keys of a run need; `longest`: the most keys of a sequence. */
static banyan_status check_bounds(const banyan_attention_desc *desc, int32_t longest) {
  const banyan_prune *prune = &desc->prune;
  if (!bny_prune_is_wanted(desc) || longest == 0) return BANYAN_OK;
  if (!prune->bounds)
    return bny_attention_reject("prune.bounds is NULL, other fields of prune are set, and there are keys");
  if (!desc->pages.table && (prune->keys < 1 || (longest - 1) / prune->keys >= prune->batch_pages))
    return bny_attention_reject("prune.batch_pages is %d pages of prune.keys %d, and a sequence has %d keys",
                                prune->batch_pages, prune->keys, longest);
  return BANYAN_OK;
}

static banyan_status check_memory(const banyan_attention_desc *desc) {
  int32_t longest = 0;
  banyan_status status = bny_attention_check_queries_memory(desc);
  if (status != BANYAN_OK || desc->batch == 0 || bny_attention_tokens(desc) == 0) return status;
  if (!desc->q) return bny_attention_reject("q is NULL");
  if (!desc->seq_lens && !desc->pages.last_len) return bny_attention_reject("seq_lens is NULL");
  for (int32_t b = 0; b < desc->batch; b++) {
    int32_t keys = bny_attention_keys(desc, b);
    if (keys < 0) return bny_attention_reject("seq_lens[%d] is %d, negative", b, keys);
    longest = keys > longest ? keys : longest;
  }
  if (longest > 0 && !desc->k) return bny_attention_reject("k is NULL and seq_lens has %d keys", longest);
  if (longest > 0 && !desc->v && desc->kv_rows == BANYAN_KV_ROWS_PLAIN)
    return bny_attention_reject("v is NULL and seq_lens has %d keys", longest);
  status = check_bounds(desc, longest);
  if (status == BANYAN_OK) status = check_strides(desc, longest);
  if (status == BANYAN_OK) status = check_scales(desc);
  for (int32_t b = 0; desc->pages.table && b < desc->batch && status == BANYAN_OK; b++)
    status = check_page_ids(desc, b);
  return status;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* Returns a part with the fields that it shares with all others. */
static banyan_attention_desc part_view(const banyan_attention_desc *desc, int32_t index) {
  const banyan_attention_desc *part = &desc->parts[index];
  banyan_attention_desc view = *desc;
  view.kv_dtype = part->kv_dtype;
  view.kv_rows = part->kv_rows;
  view.k = part->k;
  view.k_batch_stride = part->k_batch_stride;
  view.k_head_stride = part->k_head_stride;
  view.k_token_stride = part->k_token_stride;
  view.v = part->v;
  view.v_batch_stride = part->v_batch_stride;
  view.v_head_stride = part->v_head_stride;
  view.v_token_stride = part->v_token_stride;
  view.seq_lens = part->seq_lens;
  view.pages = part->pages;
  view.scales = part->scales;
  view.key_first = part->key_first;
  view.read_ahead_bytes = part->read_ahead_bytes;
  view.parts = NULL;
  view.part_count = 0;
  view.keys_max = 0; /* counts all parts */
  return view;
}

static banyan_status check_list(const banyan_attention_desc *desc) {
  const struct {
    const char *name;
    bool is_set;
  } own[] = {{"k", desc->k != NULL},
             {"v", desc->v != NULL},
             {"k_batch_stride", desc->k_batch_stride != 0},
             {"k_head_stride", desc->k_head_stride != 0},
             {"k_token_stride", desc->k_token_stride != 0},
             {"v_batch_stride", desc->v_batch_stride != 0},
             {"v_head_stride", desc->v_head_stride != 0},
             {"v_token_stride", desc->v_token_stride != 0},
             {"page_table", desc->pages.table != NULL},
             {"k_scale", desc->scales.k != NULL},
             {"v_scale", desc->scales.v != NULL},
             {"kv_dtype", desc->kv_dtype != 0},
             {"kv_rows", desc->kv_rows != BANYAN_KV_ROWS_PLAIN},
             {"key_first", desc->key_first != NULL},
             {"read_ahead_bytes", desc->read_ahead_bytes != 0}};
  if (desc->part_count < 1 || desc->part_count > BNY_ATTENTION_PARTS_MAX)
    return bny_attention_reject("part_count is %" PRId64 ", must be 1 to %d", desc->part_count,
                                BNY_ATTENTION_PARTS_MAX);
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
    if (own[i].is_set) return bny_attention_reject("%s is set next to parts: each part has its own", own[i].name);
  return BANYAN_OK;
}

static banyan_status reject_prune(const banyan_attention_desc *desc) {
  bool prunes = bny_prune_is_wanted(desc);
  for (int32_t i = 0; i < bny_attention_parts(desc); i++)
    prunes = prunes || bny_prune_is_wanted(bny_attention_part(desc, i));
  if (!prunes || (!desc->parts && desc->read_ahead_bytes == 0)) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_UNSUPPORTED,
                  WHERE "prune is set next to %s: pages are left out of keys in one memory only. Leave one of them 0",
                  desc->parts ? "parts" : "read_ahead_bytes");
}

/* Checks that parts follow one another, and together are the keys of the shard. */
static banyan_status check_ranges(const banyan_attention_desc *desc) {
  for (int32_t b = 0; b < desc->batch; b++) {
    int64_t end = 0;
    for (int32_t i = 0; i < desc->part_count; i++) {
      const banyan_attention_desc *part = &desc->parts[i];
      if (part->key_first && part->key_first[b] != end)
        return bny_attention_reject("parts[%d].key_first[%d] is %d, %s: the parts before end at key %" PRId64
                                    ". Give parts in the order of keys, without overlap or gap",
                                    i, b, part->key_first[b],
                                    part->key_first[b] < end ? "which overlaps" : "which leaves a gap", end);
      end += bny_attention_keys(part, b);
    }
    if (end != bny_attention_keys(desc, b))
      return bny_attention_reject("seq_lens[%d] is %d, and the parts have %" PRId64 " keys of it", b,
                                  bny_attention_keys(desc, b), end);
  }
  return BANYAN_OK;
}

static banyan_status check_keys(const banyan_attention_desc *desc, bool on_host) {
  banyan_status status = check_rows(desc);
  if (status == BANYAN_OK && desc->read_ahead_bytes < 0)
    status = bny_attention_reject("read_ahead_bytes is %" PRId64 ", negative", desc->read_ahead_bytes);
  if (status == BANYAN_OK) status = bny_attention_check_queries(desc);
  if (status == BANYAN_OK) status = check_pages(desc);
  if (status == BANYAN_OK) status = check_prune(desc);
  if (status == BANYAN_OK) status = on_host ? check_memory(desc) : check_strides(desc, desc->keys_max);
  return status;
}

/* Checks a part, whose errors name it. */
static banyan_status check_part(const banyan_attention_desc *desc, int32_t index, bool on_host) {
  banyan_attention_desc view = part_view(desc, index);
  char text[BNY_ERROR_TEXT_BYTES];
  banyan_status status = check_keys(&view, on_host);
  if (status == BANYAN_OK) return status;
  snprintf(text, sizeof text, "%s", banyan_last_error());
  bool has_prefix = strncmp(text, WHERE, strlen(WHERE)) == 0;
  return bny_fail(status, WHERE "parts[%d]: %s", index, text + (has_prefix ? strlen(WHERE) : 0));
}

static banyan_status check_parts(const banyan_attention_desc *desc, bool on_host) {
  banyan_status status = bny_attention_check_queries(desc);
  if (status == BANYAN_OK && desc->keys_max < 0) status = check_pages(desc);
  for (int32_t i = 0; i < desc->part_count && status == BANYAN_OK; i++) status = check_part(desc, i, on_host);
  if (status != BANYAN_OK || !on_host || bny_attention_tokens(desc) == 0) return status;
  if (!desc->seq_lens && desc->batch > 0) return bny_attention_reject("seq_lens is NULL");
  return check_ranges(desc);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static banyan_status read_parts(const banyan_attention_desc *desc, bny_attention_room *room) {
  if (desc->part_count < 1 || desc->part_count > BNY_ATTENTION_PARTS_MAX) return check_list(desc);
  for (int64_t i = 0; i < desc->part_count; i++) {
    const void *part = (const char *)desc->parts + (size_t)i * desc->parts->size;
    char what[48];
    snprintf(what, sizeof what, WHERE "parts[%" PRId64 "]", i);
    if (*(const size_t *)part != desc->parts->size)
      return bny_fail(BANYAN_ERR_ARGUMENT, "%s.size is %zu, and that of parts[0] %zu", what, *(const size_t *)part,
                      desc->parts->size);
    const banyan_attention_desc *known = bny_sized_read(&bny_sized_attention_desc, what, part, &room->parts[i]);
    if (!known) return BANYAN_ERR_ARGUMENT;
    if (known != &room->parts[i]) room->parts[i] = *known;
  }
  return BANYAN_OK;
}

banyan_status bny_attention_read(const banyan_attention_desc **desc, bny_attention_room *room) {
  if (!*desc) return bny_attention_reject("desc is NULL");
  const banyan_attention_desc *known = bny_sized_read(&bny_sized_attention_desc, WHERE "desc", *desc, &room->desc);
  if (!known) return BANYAN_ERR_ARGUMENT;
  const banyan_queries *queries = known->queries;
  if (queries && !(queries = bny_sized_read(&bny_sized_queries, WHERE "queries", queries, &room->queries)))
    return BANYAN_ERR_ARGUMENT;
  if (queries != known->queries) {
    if (known != &room->desc) room->desc = *known;
    room->desc.queries = queries;
    known = &room->desc;
  }
  if (known->parts) {
    if (read_parts(known, room) != BANYAN_OK) return BANYAN_ERR_ARGUMENT;
    if (known != &room->desc) room->desc = *known;
    room->desc.parts = room->parts;
    known = &room->desc;
  }
  *desc = known;
  return BANYAN_OK;
}

banyan_status bny_attention_check_fields(const banyan_attention_desc *desc, bool on_host) {
  banyan_status status = check_shape(desc);
  if (status == BANYAN_OK && !desc->parts && (desc->part_count != 0 || desc->key_first))
    status = bny_attention_reject("%s is set and parts is NULL", desc->key_first ? "key_first" : "part_count");
  if (status == BANYAN_OK && desc->parts) status = check_list(desc);
  if (status == BANYAN_OK) status = reject_prune(desc);
  if (status != BANYAN_OK) return status;
  return desc->parts ? check_parts(desc, on_host) : check_keys(desc, on_host);
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
  if ((*desc)->gather)
    return bny_attention_reject("desc.gather must be NULL: banyan_attention_combine() alone gathers q");
  status = bny_attention_check_fields(*desc, on_host);
  return status == BANYAN_OK ? check_out(*desc, *out) : status;
}

banyan_status bny_attention_check_scale(const banyan_attention_desc *desc, const banyan_partial *out) {
  int32_t head = bny_attention_tokens(desc) > 0 ? bny_partial_scale_check(out, desc->heads) : -1;
  if (head < 0) return BANYAN_OK;
  return bny_attention_reject("out.values_scale of head %d must be finite and above 0", head);
}
