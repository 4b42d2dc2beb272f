/* SPDX-License-Identifier: Apache-2.0
 * Packs shards into messages, and describes attention to what a message has. */
#include "attention/shard.h"

#include "attention/queries.h"
#include "base/hash.h"
#include "prune/prune.h"

/* The head of a message. Behind it are lengths and first positions by sequence, scales of keys and of values by KV
 * head, and sinks by head; then from a multiple of 64 bytes on the pages of keys, and those of values. */
typedef struct shard_head {
  uint64_t alike; /* bny_shard_alike(); 0: there is no shard */
  int32_t batch, dtype, key_block, key_stride;
  uint8_t has_start, has_k_scale, has_v_scale, has_sinks;
  uint8_t is_latent; /* values are the first elements of keys */
} shard_head;

typedef struct shard_parts {
  int32_t *lens, *start;
  float *k_scale, *v_scale, *sinks;
  char *k, *v;
} shard_parts;

static size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

static size_t head_bytes(const bny_attention_desc *desc, int32_t batch) {
  size_t words = 2 * (size_t)batch + 2 * (size_t)desc->kv_heads + (size_t)desc->heads;
  return lines(sizeof(shard_head) + words * sizeof(int32_t));
}

static size_t page_bytes(const bny_attention_desc *desc, banyan_dtype dtype, int32_t dim) {
  return (size_t)desc->kv_heads * BNY_SHARD_KEYS * (size_t)dim * bny_dtype_bytes(dtype);
}

/* MLA: values are in the rows of keys. */
static bool is_latent(const bny_attention_desc *desc) {
  const banyan_kv_part *kv = &desc->kv;
  return kv->v == kv->k && kv->v_batch_stride == kv->k_batch_stride && kv->v_head_stride == kv->k_head_stride &&
         kv->v_token_stride == kv->k_token_stride && desc->value_dim <= desc->head_dim;
}

static shard_parts parts_of(const bny_attention_desc *desc, int32_t batch, int64_t pages, banyan_dtype dtype,
                            const void *message) {
  char *at = (char *)(uintptr_t)message;
  shard_parts parts = {.lens = (int32_t *)(void *)(at + sizeof(shard_head))};
  parts.start = parts.lens + batch;
  parts.k_scale = (float *)(void *)(parts.start + batch);
  parts.v_scale = parts.k_scale + desc->kv_heads;
  parts.sinks = parts.v_scale + desc->kv_heads;
  parts.k = at + head_bytes(desc, batch);
  parts.v = parts.k + (size_t)pages * page_bytes(desc, dtype, desc->head_dim);
  return parts;
}

static int32_t pages_of(int32_t keys) { return keys / BNY_SHARD_KEYS + (keys % BNY_SHARD_KEYS != 0); }

const char *bny_shard_reject(const bny_attention_desc *desc) {
  const banyan_queries *queries = &desc->queries;
  if (desc->parts) return "keys are in several memories";
  if (desc->kv.rows != BANYAN_KV_ROWS_PLAIN || desc->kv.scales.token_stride != 0) return "rows of keys have own scales";
  if (desc->prunes) return "pages are left out";
  if (desc->gather) return "q is gathered";
  if (queries->tree_mask || queries->key_mask || queries->key_pattern_len > 0)
    return "queries have a mask, or keys a pattern";
  return NULL;
}

int64_t bny_shard_pages(const bny_attention_desc *desc) {
  int64_t pages = 0;
  for (int32_t b = 0; b < desc->batch; b++) pages += pages_of(bny_attention_keys(&desc->kv, b));
  return pages;
}

size_t bny_shard_bytes(const bny_attention_desc *desc, int32_t batch, int64_t pages) {
  int32_t columns = desc->head_dim + (is_latent(desc) ? 0 : desc->value_dim);
  return head_bytes(desc, batch) + lines((size_t)pages * page_bytes(desc, desc->kv.dtype, columns));
}

uint64_t bny_shard_alike(const bny_attention_desc *desc, bool of_run) {
  const banyan_queries *queries = &desc->queries;
  const bool has_positions = queries->query_start != NULL;
  const uint64_t shape[] = {(uint64_t)desc->heads, (uint64_t)desc->kv_heads, (uint64_t)desc->head_dim,
                            (uint64_t)desc->value_dim};
  uint64_t hash = BNY_HASH_START;
  for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) hash = bny_hash_add(hash, shape[i]);
  if (!of_run) return hash | 1;
  hash = bny_hash_add_double(hash, desc->scale);
  hash = bny_hash_add_double(hash, (double)desc->soft_cap);
  hash = bny_hash_add(hash, desc->empty);
  hash = bny_hash_add(hash, has_positions ? (uint64_t)queries->window + 1 : 0);
  hash = bny_hash_add(hash, (uint64_t)desc->batch);
  for (int32_t b = 0; b < desc->batch; b++) {
    bny_query_range range = bny_attention_queries(desc, b);
    hash = bny_hash_add(hash, (uint64_t)range.first << 32 | (uint32_t)range.count);
    if (has_positions && range.count > 0) hash = bny_hash_add(hash, (uint64_t)queries->query_start[b]);
  }
  return hash | 1;
}

uint64_t bny_shard_hash(const void *message) { return ((const shard_head *)message)->alike; }

/* ---- packing ----------------------------------------------------------------------------------------------------- */

typedef struct row_strides {
  int64_t batch, head, token;
} row_strides;

static void pack_rows(const bny_attention_desc *desc, const void *from, row_strides by, int32_t dim, char *to) {
  const banyan_kv_part *kv = &desc->kv;
  const size_t row = (size_t)dim * bny_dtype_bytes(kv->dtype);
  for (int32_t b = 0; b < desc->batch; b++) {
    const int32_t *table = bny_attention_pages(kv, b), keys = bny_attention_keys(kv, b);
    for (int32_t first = 0; first < keys; first += BNY_SHARD_KEYS) {
      int32_t end = keys - first < BNY_SHARD_KEYS ? keys : first + BNY_SHARD_KEYS;
      for (int32_t h = 0; h < desc->kv_heads; h++, to += BNY_SHARD_KEYS * row)
        for (int32_t t = first, run; t < end; t += run) {
          int64_t outer = table ? table[t / kv->pages.keys] : b, at = table ? t % kv->pages.keys : t;
          run = table && kv->pages.keys - at < end - t ? kv->pages.keys - (int32_t)at : end - t;
          if (by.token != dim) run = 1;
          memcpy(to + (size_t)(t - first) * row,
                 bny_attention_moved(from, outer * by.batch + h * by.head + at * by.token, kv->dtype),
                 (size_t)run * row);
        }
    }
  }
}

void bny_shard_pack(const bny_attention_desc *desc, bool can, size_t room, void *message) {
  const banyan_kv_part *kv = &desc->kv;
  const banyan_queries *queries = &desc->queries;
  shard_head *head = message;
  *head = (shard_head){.alike = 0};
  if (!can || bny_shard_reject(desc)) return;
  int64_t pages = bny_shard_pages(desc);
  if (bny_shard_bytes(desc, desc->batch, pages) > room) return;
  bool has_positions = queries->query_start != NULL;
  *head = (shard_head){.alike = bny_shard_alike(desc, true),
                       .batch = desc->batch,
                       .dtype = (int32_t)kv->dtype,
                       .key_block = has_positions ? queries->key_block : 0,
                       .key_stride = has_positions ? queries->key_stride : 0,
                       .has_start = has_positions && queries->key_start,
                       .has_k_scale = kv->scales.k != NULL,
                       .has_v_scale = kv->scales.v != NULL,
                       .has_sinks = desc->sinks != NULL,
                       .is_latent = is_latent(desc)};
  shard_parts to = parts_of(desc, desc->batch, pages, kv->dtype, message);
  for (int32_t b = 0; b < desc->batch; b++) {
    to.lens[b] = bny_attention_keys(kv, b);
    to.start[b] = head->has_start ? queries->key_start[b] : 0;
  }
  for (int32_t h = 0; h < desc->kv_heads; h++) {
    to.k_scale[h] = kv->scales.k ? kv->scales.k[h * kv->scales.head_stride] : 1;
    to.v_scale[h] = kv->scales.v ? kv->scales.v[h * kv->scales.head_stride] : 1;
  }
  if (desc->sinks) memcpy(to.sinks, desc->sinks, (size_t)desc->heads * sizeof *to.sinks);
  pack_rows(desc, kv->k, (row_strides){kv->k_batch_stride, kv->k_head_stride, kv->k_token_stride}, desc->head_dim,
            to.k);
  if (!head->is_latent)
    pack_rows(desc, kv->v, (row_strides){kv->v_batch_stride, kv->v_head_stride, kv->v_token_stride}, desc->value_dim,
              to.v);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

bny_attention_desc bny_shard_open(const bny_attention_desc *run, const void *message, bny_shard_room *room) {
  const shard_head *head = message;
  bny_attention_desc desc = *run;
  banyan_kv_part *kv = &desc.kv;
  const banyan_dtype dtype = (banyan_dtype)head->dtype;
  const int32_t *lens = parts_of(run, head->batch, 0, dtype, message).lens;
  room->indptr[0] = 0;
  for (int32_t b = 0; b < head->batch; b++) room->indptr[b + 1] = room->indptr[b] + pages_of(lens[b]);
  int64_t pages = room->indptr[head->batch], k_head = (int64_t)BNY_SHARD_KEYS * run->head_dim;
  int32_t value_dim = head->is_latent ? run->head_dim : run->value_dim;
  shard_parts parts = parts_of(run, head->batch, pages, dtype, message);
  *kv =
      (banyan_kv_part){.dtype = dtype,
                       .k = parts.k,
                       .k_batch_stride = run->kv_heads * k_head,
                       .k_head_stride = k_head,
                       .k_token_stride = run->head_dim,
                       .v = head->is_latent ? parts.k : parts.v,
                       .v_batch_stride = (int64_t)run->kv_heads * BNY_SHARD_KEYS * value_dim,
                       .v_head_stride = (int64_t)BNY_SHARD_KEYS * value_dim,
                       .v_token_stride = value_dim,
                       .seq_lens = lens,
                       .pages = {.table = room->pages, .indptr = room->indptr, .count = pages, .keys = BNY_SHARD_KEYS},
                       .scales = {.k = head->has_k_scale ? parts.k_scale : NULL,
                                  .v = head->has_v_scale ? parts.v_scale : NULL,
                                  .head_stride = 1}};
  desc.sinks = head->has_sinks ? parts.sinks : NULL;
  desc.keys_max = 0;
  desc.queries.key_start = head->has_start ? parts.start : NULL;
  desc.queries.key_block = head->key_block;
  desc.queries.key_stride = head->key_stride;
  return desc;
}

void bny_shard_widen(const bny_attention_desc *run, int32_t *first, int32_t *tokens) {
  const int32_t begin = *first, end = *first + *tokens;
  int32_t need = 1, wide_end = end;
  while (!bny_attention_is_many(need, run->group)) need++;
  for (int32_t b = 0; b < run->batch; b++) {
    bny_query_range all = bny_attention_queries(run, b);
    int32_t from = all.first > begin ? all.first : begin,
            to = all.first + all.count < end ? all.first + all.count : end;
    if (from >= to || to - from >= need || all.count < need) continue;
    if (all.first < begin) from = *first = all.first > to - need ? all.first : to - need;
    if (from + need > end) wide_end = from + need;
  }
  *tokens = wide_end - *first;
}

static int32_t clamp(int32_t value, int32_t most) { return value < 0 ? 0 : value < most ? value : most; }

void bny_shard_take_tokens(bny_attention_desc *desc, bny_shard_room *room, int32_t first, int32_t tokens) {
  int32_t end = 0;
  for (int32_t b = 0; b < desc->batch; b++) {
    bny_query_range range = bny_attention_queries(desc, b);
    end = range.first + range.count;
    room->loc[b] = clamp(range.first - first, tokens);
    if (desc->queries.query_start)
      room->start[b] = desc->queries.query_start[b] + clamp(first - range.first, range.count);
  }
  room->loc[desc->batch] = clamp(end - first, tokens);
  if (desc->queries.query_start) desc->queries.query_start = room->start;
  desc->queries.query_start_loc = room->loc;
  desc->tokens = tokens;
  desc->q = bny_attention_moved(desc->q, first * desc->q_batch_stride, desc->q_dtype);
  desc->rope.q = bny_attention_moved(desc->rope.q, first * desc->rope.batch_stride, desc->q_dtype);
}

void bny_shard_take_heads(bny_attention_desc *desc, int32_t first, int32_t heads) {
  banyan_kv_part *kv = &desc->kv;
  int64_t kv_first = first / desc->group;
  desc->heads = heads;
  desc->kv_heads = heads / desc->group;
  desc->q = bny_attention_moved(desc->q, first * desc->q_head_stride, desc->q_dtype);
  desc->rope.q = bny_attention_moved(desc->rope.q, first * desc->rope.head_stride, desc->q_dtype);
  kv->k = bny_attention_moved(kv->k, kv_first * kv->k_head_stride, kv->dtype);
  kv->v = bny_attention_moved(kv->v, kv_first * kv->v_head_stride, kv->dtype);
  kv->scales.k = bny_attention_moved(kv->scales.k, kv_first * kv->scales.head_stride, BANYAN_F32);
  kv->scales.v = bny_attention_moved(kv->scales.v, kv_first * kv->scales.head_stride, BANYAN_F32);
  if (desc->sinks) desc->sinks += first;
}
