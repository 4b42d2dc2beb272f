/* SPDX-License-Identifier: Apache-2.0
 * Checks a call of local attention before anything is computed. */
#include "attention/queries.h"
#include "select.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/sized.h"
#include "base/status.h"

#define WHERE "banyan_attention: "

static banyan_status check_shape(const bny_attention_desc *desc) {
  if (desc->batch < 0) return bny_attention_reject("batch is %d, negative", desc->batch);
  if (desc->kv_heads < 1) return bny_attention_reject("kv_heads is %d, must be at least 1", desc->kv_heads);
  if (desc->heads < 1 || desc->heads % desc->kv_heads != 0)
    return bny_attention_reject("heads is %d, must be a multiple of kv_heads, which is %d", desc->heads,
                                desc->kv_heads);
  if ((int64_t)desc->tokens * desc->heads > INT32_MAX)
    return bny_attention_reject("%s %d x heads %d are more than 2^31 - 1 rows",
                                desc->has_queries ? "queries.tokens" : "batch", desc->tokens, desc->heads);
  if (desc->head_dim < 1 || desc->head_dim > BNY_ATTENTION_HEAD_DIM_MAX)
    return bny_attention_reject("head_dim is %d, must be 1 to %d", desc->head_dim, BNY_ATTENTION_HEAD_DIM_MAX);
  if (desc->value_dim < 1 || desc->value_dim > BNY_ATTENTION_VALUE_DIM_MAX)
    return bny_attention_reject("value_dim is %d%s, must be 1 to %d", desc->value_dim,
                                desc->has_value_dim ? "" : " (head_dim, as it is unset)", BNY_ATTENTION_VALUE_DIM_MAX);
  if (desc->keys_max < 0) return bny_attention_reject("keys_max is %d, negative", desc->keys_max);
  if (!isfinite(desc->scale))
    return bny_attention_reject("scale is %g, must be finite (0: 1 / sqrt(head_dim))", desc->scale);
  if (desc->empty != 0 && desc->empty != BANYAN_EMPTY_NAN)
    return bny_attention_reject("empty is %" PRIu64 ", must be 0 or BANYAN_EMPTY_NAN", desc->empty);
  if (!bny_dtype_is_float(desc->q_dtype))
    return bny_attention_reject("q_dtype is %d, must be BANYAN_F32, BANYAN_F16 or BANYAN_BF16", (int)desc->q_dtype);
  return BANYAN_OK;
}

static banyan_status check_prune(const bny_attention_desc *desc) {
  const banyan_prune *prune = &desc->prune;
  if (desc->prunes && desc->parts)
    return bny_fail(BANYAN_ERR_UNSUPPORTED, WHERE
                    "prune is set next to parts: pages are left out of keys in one memory only. Leave one of them 0");
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

static banyan_status check_list(const bny_attention_desc *desc) {
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

/* Checks that parts follow one another, and together are the keys of the shard. */
static banyan_status check_ranges(const bny_attention_desc *desc) {
  if (desc->batch == 0 || desc->tokens == 0) return BANYAN_OK;
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
static banyan_status check_parts(const bny_attention_desc *desc, bool on_host) {
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

/* Reads a struct that the description names. Returns false if its size is invalid. */
static bool read_named(const bny_sized *type, const char *what, const void *given, void *to) {
  const void *known = given ? bny_sized_read(type, what, given, to) : NULL;
  if (known && known != to) memcpy(to, known, type->bytes);
  return !given || known;
}

banyan_status bny_attention_read(const banyan_attention_desc *given, bny_attention_desc *desc) {
  banyan_attention_desc room;
  if (!given) return bny_attention_reject("desc is NULL");
  given = bny_sized_read(&bny_sized_attention_desc, WHERE "desc", given, &room);
  if (!given) return BANYAN_ERR_ARGUMENT;
  *desc = (bny_attention_desc){
      .batch = given->batch,
      .tokens = given->batch,
      .heads = given->heads,
      .kv_heads = given->kv_heads,
      .head_dim = given->head_dim,
      .value_dim = given->value_dim ? given->value_dim : given->head_dim,
      .group = given->kv_heads > 0 ? given->heads / given->kv_heads : 0,
      .memories = given->parts ? (int32_t)given->part_count : 1,
      .scale = given->scale != 0 ? (double)given->scale : 1 / sqrt((double)given->head_dim),
      .soft_cap = given->soft_cap,
      .q_dtype = given->q_dtype,
      .empty = given->empty,
      .q = given->q,
      .q_mine = given->q_mine,
      .q_batch_stride = given->q_batch_stride,
      .q_head_stride = given->q_head_stride,
      .rope = given->rope,
      .kv = given->kv,
      .parts = given->parts,
      .part_count = given->part_count,
      .gather = given->gather,
      .sinks = given->sinks,
      .prune = given->prune,
      .prunes = bny_prune_is_wanted(&given->prune),
      .is_lossy = bny_prune_is_lossy(&given->prune),
      .keys_max = given->keys_max,
      .has_value_dim = given->value_dim != 0,
      .has_queries = given->queries != NULL,
      .selects = given->select != NULL,
      .stream = given->stream,
  };
  if (!read_named(&bny_sized_queries, WHERE "queries", given->queries, &desc->queries) ||
      !read_named(&bny_sized_select_desc, WHERE "select", given->select, &desc->select))
    return BANYAN_ERR_ARGUMENT;
  if (given->queries) desc->tokens = desc->queries.tokens;
  return BANYAN_OK;
}

banyan_status bny_attention_check_fields(const bny_attention_desc *desc, bool on_host) {
  banyan_status status = check_shape(desc);
  if (status == BANYAN_OK) status = check_list(desc);
  if (status == BANYAN_OK) status = check_prune(desc);
  if (status == BANYAN_OK) status = bny_attention_check_queries(desc, on_host);
  return status == BANYAN_OK ? check_parts(desc, on_host) : status;
}

static banyan_status check_out(const bny_attention_desc *desc, const banyan_partial *out) {
  bny_box box = {desc->tokens, desc->heads, desc->value_dim};
  const char *reason = bny_partial_check(out, &box, true), *names[2];
  if (reason) return bny_attention_reject("out: %s", reason);
  if (bny_partial_overlaps_itself(out, &box, names))
    return bny_attention_reject("out.%s overlaps out.%s: give each its own memory", names[1], names[0]);
  return BANYAN_OK;
}

banyan_status bny_attention_check_call(const banyan_attention_desc *given, bny_attention_desc *desc,
                                       const banyan_partial **out, banyan_partial *out_room, bool on_host) {
  banyan_status status = bny_attention_read(given, desc);
  if (status != BANYAN_OK) return status;
  if (!*out) return bny_attention_reject("out is NULL");
  *out = bny_sized_read(&bny_sized_partial, WHERE "out", *out, out_room);
  if (!*out) return BANYAN_ERR_ARGUMENT;
  if (desc->gather || desc->selects)
    return bny_attention_reject("desc.%s must be NULL: banyan_attention_combine() alone exchanges something before",
                                desc->gather ? "gather" : "select");
  status = bny_attention_check_fields(desc, on_host);
  return status == BANYAN_OK ? check_out(desc, *out) : status;
}

banyan_status bny_attention_check_scale(const bny_attention_desc *desc, const banyan_partial *out) {
  int32_t head = desc->tokens > 0 ? bny_partial_scale_check(out, desc->heads) : -1;
  if (head < 0) return BANYAN_OK;
  return bny_attention_reject("out.values_scale of head %d must be finite and above 0", head);
}
