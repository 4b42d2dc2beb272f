/* SPDX-License-Identifier: Apache-2.0
 * Walks the keys of a task in tiles: what rows see of them, pages, rows as f32, and what is prefetched.
 * The including file defines what it uses: attention_loop.h. */
#pragma once

/* Adds keys [low, high) of the task but for masked ones. Key 0 of the task is key `shift` of `keys`. */
static void attention_add_unmasked(const bny_attention_task *task, const bny_attention_task *keys, banyan_dtype dtype,
                                   int32_t low, int32_t high, int32_t shift, attention_work *work) {
  for (int32_t end = low; low < high; low = end) {
    bool counts = !task->key_mask || task->key_mask[low];
    for (end = task->key_mask ? low + 1 : high; end < high && !task->key_mask[end] == !counts; end++) continue;
    if (counts) attention_add_form(keys, dtype, shift + low, end - low, work);
  }
}

/* Adds the keys in [first, first + count) of the task that each row sees. They begin at `from` of `keys`. */
static void attention_add_by_row(const bny_attention_task *task, const bny_attention_task *keys, banyan_dtype dtype,
                                 int32_t first, int32_t from, int32_t count, attention_work *work) {
  work->rows = 1;
  for (work->row = 0; work->row < task->heads; work->row++) {
    const bny_attention_sight all = {.end = task->keys}, *sight = task->sights ? &task->sights[work->row] : &all;
    int32_t low = sight->first > first ? sight->first : first;
    int32_t high = sight->end < first + count ? sight->end : first + count;
    attention_add_unmasked(task, keys, dtype, low, high, from - first, work);
    for (int32_t key = sight->tree_first > first ? sight->tree_first : first;
         sight->tree_bits != 0 && key < first + count && key - sight->tree_first < 64; key++)
      if (sight->tree_bits >> (key - sight->tree_first) & 1 && (!task->key_mask || task->key_mask[key]))
        attention_add_one(keys, dtype, from + key - first, work);
  }
  work->row = 0;
  work->rows = task->heads;
}

/* Returns true if all rows see all of keys [first, first + count). */
static inline bool attention_all_seen(const bny_attention_task *task, int32_t first, int32_t count) {
  for (int32_t h = 0; task->sights && h < task->heads; h++)
    if (task->sights[h].first > first || task->sights[h].end < first + count) return false;
  return !task->key_mask || !memchr(task->key_mask + first, 0, (size_t)count);
}

/* Returns which of the keys [first, first + count) any row sees: bit i is for key first + i. Only these are read. */
static __attribute__((noinline)) uint64_t attention_seen(const bny_attention_task *task, int32_t first, int32_t count) {
  uint64_t seen = 0;
  for (int32_t i = 0; i < count; i++) {
    bool sees = !task->sights;
    for (int32_t h = 0; !sees && h < task->heads; h++) sees = bny_attention_sees(&task->sights[h], first + i);
    if (sees && (!task->key_mask || task->key_mask[first + i])) seen |= UINT64_C(1) << i;
  }
  return seen;
}

/* Returns the page that holds key `key`, as a task of its own. */
static inline bny_attention_task attention_page(const bny_attention_task *task, int32_t key) {
  int32_t index = key / task->page_keys, left = task->keys - index * task->page_keys, page = task->pages[index];
  bny_attention_task one = *task;
  one.k = attention_row(task->k, task->k_page_stride, page, task->kv_dtype);
  one.v = attention_row(task->v, task->v_page_stride, page, task->kv_dtype);
  one.keys = left < task->page_keys ? left : task->page_keys;
  if (task->k_scales) one.k_scales = task->k_scales + page * task->scale_page_stride;
  if (task->v_scales) one.v_scales = task->v_scales + page * task->scale_page_stride;
  return one;
}

/* Holds the rows of a tile from several pages, one after another, and their scales. */
typedef struct attention_gathered {
  char k[ATTENTION_TILE_BYTES], v[ATTENTION_TILE_BYTES];
  float k_scales[ATTENTION_TILE], v_scales[ATTENTION_TILE];
} __attribute__((aligned(64))) attention_gathered;

/* Copies a row of each key from `first` on that is seen, and prefetches the same number of rows after them. */
static inline void attention_gather(const bny_attention_task *task, const void *base, int64_t page_stride,
                                    int64_t token_stride, int32_t first, int32_t count, uint64_t seen, size_t row_bytes,
                                    char *to) {
  for (int32_t i = 0; i < 2 * count && first + i < task->keys; i++) {
    if (i < count && !(seen >> i & 1)) continue;
    int32_t index = (first + i) / task->page_keys, row = (first + i) % task->page_keys;
    const char *from = attention_row(base, page_stride, task->pages[index], task->kv_dtype);
    from = attention_row(from, token_stride, row, task->kv_dtype);
    if (i < count)
      memcpy(to + (size_t)i * row_bytes, from, row_bytes);
    else
      for (size_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(from + at, 0, 3);
  }
}

static inline const float *attention_gather_scales(const bny_attention_task *task, const float *base, int32_t first,
                                                   int32_t count, uint64_t seen, float *to) {
  for (int32_t i = 0; base && i < count; i++) {
    if (!(seen >> i & 1)) continue;
    int32_t index = (first + i) / task->page_keys, row = (first + i) % task->page_keys;
    to[i] = base[task->pages[index] * task->scale_page_stride + row * task->scale_token_stride];
  }
  return base ? to : NULL;
}

/* Gathers keys [first, first + count) from several pages, if they are seen, and returns a task over them. Pages of any
 * size thus give the same tiles and the same bits. */
static __attribute__((noinline)) bny_attention_task attention_gather_tile(const bny_attention_task *task, int32_t first,
                                                                          int32_t count, uint64_t seen,
                                                                          attention_gathered *to) {
  int32_t element = (int32_t)attention_element_bytes(task->kv_dtype);
  int32_t k_row = task->kv_rows == BANYAN_KV_ROWS_PLAIN ? task->head_dim : BNY_FLASHMLA_BYTES;
  bny_attention_task one = *task;
  attention_gather(task, task->k, task->k_page_stride, task->k_token_stride, first, count, seen,
                   (size_t)(k_row * element), to->k);
  one.k = one.v = to->k;
  one.k_token_stride = one.v_token_stride = k_row;
  if (!attention_is_latent(task)) {
    attention_gather(task, task->v, task->v_page_stride, task->v_token_stride, first, count, seen,
                     (size_t)(task->value_dim * element), to->v);
    one.v = to->v;
    one.v_token_stride = task->value_dim;
  }
  one.k_scales = attention_gather_scales(task, task->k_scales, first, count, seen, to->k_scales);
  one.v_scales = attention_gather_scales(task, task->v_scales, first, count, seen, to->v_scales);
  one.scale_token_stride = 1;
  one.pages = NULL;
  one.keys = count;
  return one;
}

/* A tile: keys [from, from + count) of `keys`, which is the task or a page of it; or, if `gathered`, keys of the task
 * that lie in several pages. */
typedef struct attention_span {
  bny_attention_task page;
  const bny_attention_task *keys;
  int32_t from, count;
  bool gathered, all_seen; /* all_seen: all rows see all of its keys */
} attention_span;

#ifdef ATTENTION_OWN_TILE
static int32_t attention_tile(const bny_attention_task *task);
#else
/* Returns the number of keys of a tile. A tile stays in the first-level cache together with the next rows. If rows are
 * short, long tiles spread the fixed work per tile over more keys. The numbers for long rows were measured. */
INLINE int32_t attention_tile(const bny_attention_task *task) {
  int32_t row_bytes = task->head_dim * (int32_t)attention_element_bytes(task->kv_dtype);
  if (row_bytes < 256) return row_bytes <= 64 ? ATTENTION_TILE : 32;
  return row_bytes < 1024 ? ATTENTION_LONG_TILE : 8;
}
#endif

/* Returns the number of keys of a tile of `form`. Bits depend on this number, so only rows of the cache decide it, and
 * not whether they are converted: that depends on the rows of queries. */
INLINE int32_t attention_tile_keys(const bny_attention_task *task, banyan_dtype form) {
  enum { BYTES = 8192 }; /* rows as f32: keys and values fill half a first-level cache */
  if ((int)form & ATTENTION_MATRIX) return ATTENTION_MATRIX_TILE;
  if (attention_is_plain(task) && ((int)form & ATTENTION_DOT || !attention_is_f8(task->kv_dtype)))
    return attention_tile(task);
  int32_t columns = bny_attention_padded(task->head_dim > task->value_dim ? task->head_dim : task->value_dim);
  int32_t keys = BYTES / 4 / columns / ATTENTION_QUAD * ATTENTION_QUAD;
  return keys < 2 * ATTENTION_QUAD ? 2 * ATTENTION_QUAD : keys > ATTENTION_TILE ? ATTENTION_TILE : keys;
}

/* Finds the tile that begins at key `first`, after `done` keys. A tile lies in one block. */
INLINE void attention_locate(const bny_attention_task *task, banyan_dtype form, int32_t first, int32_t done,
                             int32_t left, attention_span *span) {
  int32_t most = attention_tile_keys(task, form), block = BNY_ATTENTION_BLOCK - done % BNY_ATTENTION_BLOCK;
  while (most * task->value_dim * (int32_t)attention_element_bytes(task->kv_dtype) > ATTENTION_TILE_BYTES) most /= 2;
  if (most > block) most = block;
  span->keys = task;
  span->from = first;
  span->count = left < most ? left : most;
  span->gathered = task->pages && left > 0 && first % task->page_keys + span->count > task->page_keys;
  span->all_seen = left > 0 && attention_all_seen(task, first, span->count);
  if (!task->pages || left <= 0 || span->gathered) return;
  span->page = attention_page(task, first);
  span->keys = &span->page;
  span->from = first % task->page_keys;
}

/* Sets the rows that hooks may read ahead. Values that are also keys are cached already. */
INLINE void attention_announce(const attention_span *span, attention_work *work) {
  const bny_attention_task *keys = span->keys;
  banyan_dtype type = keys->kv_dtype;
  int32_t element = (int32_t)attention_element_bytes(type);
  work->next_k = work->next_v = (attention_next){0};
  if (span->count <= 0 || span->gathered || !span->all_seen) return;
  work->next_k = (attention_next){
      .row = attention_row(keys->k, keys->k_token_stride, span->from, type),
      .step = keys->k_token_stride * element,
      .row_bytes = keys->kv_rows == BANYAN_KV_ROWS_PLAIN ? keys->head_dim * element : BNY_FLASHMLA_BYTES,
      .rows = span->count,
      .far = work->far,
  };
  if (attention_is_latent(keys)) return;
  work->next_v = (attention_next){
      .row = attention_row(keys->v, keys->v_token_stride, span->from, type),
      .step = keys->v_token_stride * element,
      .row_bytes = keys->value_dim * element,
      .rows = span->count,
      .far = work->far,
  };
}

/* Adds keys [key, last). Rows that the hooks do not read in memory are converted to f32 first. */
static __attribute__((noinline)) void attention_over(const bny_attention_task *task, banyan_dtype form, int32_t key,
                                                     int32_t last, attention_work *work, bny_attention_sums *sums) {
  attention_span spans[2], *span = spans, *next = spans + 1;
  attention_gathered gathered;
  attention_locate(task, form, key, 0, last - key, span);
  for (int32_t first = key; first < last;) {
    int32_t from = span->from, count = span->count, end = first + count;
    bny_attention_task one;
    const bny_attention_task *keys = span->keys;
    bool by_row = !span->all_seen;
    uint64_t seen = by_row ? attention_seen(task, first, count) : UINT64_MAX;
    if (span->gathered) {
      one = attention_gather_tile(task, first, count, seen, &gathered);
      keys = &one;
      from = 0;
    }
    attention_locate(task, form, end, end - key, last - end, next);
    attention_announce(next, work);
#ifndef ATTENTION_MATRIX_ONLY
    attention_rows rows;
    bny_attention_task tile;
    if (!attention_is_plain(task) || ((int)form & ATTENTION_TYPE) != (int)task->kv_dtype) {
      tile = attention_unpack(keys, from, count, seen, work, &rows);
      keys = &tile;
      from = 0;
    }
#endif
    if (by_row)
      attention_add_by_row(task, keys, form, first, from, count, work);
    else
      attention_add_form(keys, form, from, count, work);
    first = end;
    if (first == last || (first - key) % BNY_ATTENTION_BLOCK == 0) attention_fold(task, form, work, sums);
    attention_span *free = span;
    span = next;
    next = free;
  }
}
