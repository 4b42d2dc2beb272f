/* SPDX-License-Identifier: Apache-2.0
 * Prunes row blocks with all threads, some blocks at a time. Each stage of a block has parts. The thread that completes
 * the last one chooses the next stage, which begins when all threads have left this one. Masses, lists and sums depend
 * on the block's keys alone, so the bits do not depend on threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "attention/job.h"
#include "prune/block.h"

enum { ROWS = BNY_ATTENTION_HEADS_MAX, SEGMENTS_MAX = 64, BLOCKS_PER_THREAD = 2, PARTS_PER_THREAD = 8 };

typedef struct wave {
  bny_job *job;
  bny_prune_block *blocks;
  bny_row_task *rows;            /* by block */
  int32_t count, threads, parts; /* blocks, and the most parts of one */
  uint8_t *read;                 /* by page: a row block of the current KV head has read it */
} wave;

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The pages of a block, which take memory. */
typedef struct room {
  int64_t pages, page_keys;
  int32_t rows;
  bool masks;
} room;

static size_t room_bytes(const room *room) {
  size_t pages = (size_t)room->pages;
  return bny_job_aligned(pages * ((size_t)(2 * room->rows + 1) * sizeof(float) + 2 * sizeof(int32_t) + 1 +
                                  (room->masks ? (size_t)room->page_keys : 0)));
}

static void lay_out(const room *room, char *memory, bny_prune_block *b) {
  size_t pages = (size_t)room->pages;
  b->masses = (float *)(void *)memory;
  b->tops = b->masses + pages * (size_t)room->rows;
  b->values = b->tops + pages * (size_t)room->rows;
  b->order = (int32_t *)(void *)(b->values + pages);
  b->list = b->order + pages;
  b->chosen = (uint8_t *)(b->list + pages);
  b->mask = b->chosen + pages;
}

/* The most parts of a block: a power of two. */
static int32_t parts_of(int32_t blocks, int32_t threads) {
  int32_t parts = 1;
  while (threads > 1 && parts < SEGMENTS_MAX && blocks * parts < PARTS_PER_THREAD * threads) parts *= 2;
  return parts;
}

/* The bytes for blocks with their pages, and for the sums of each block and of its parts. */
static size_t all_bytes(const room *room, int32_t blocks, int32_t parts, size_t sums_bytes) {
  return bny_job_aligned((size_t)blocks * sizeof(bny_prune_block)) +
         bny_job_aligned((size_t)blocks * sizeof(bny_row_task)) + bny_job_aligned((size_t)room->pages) +
         (size_t)blocks * (room_bytes(room) + (size_t)(parts + 1) * sums_bytes);
}

static int32_t most_rows(const bny_job *job, int32_t sequence) {
  int64_t rows = (int64_t)bny_attention_queries(job->desc, sequence).count * job->group;
  return rows < ROWS ? (int32_t)rows : ROWS;
}

banyan_status bny_attention_reserve(const banyan_attention_desc *desc, bny_pool *pool) {
  const banyan_prune *prune = &desc->prune;
  const banyan_pages *pages = &desc->kv.pages;
  int64_t rows = (int64_t)bny_attention_tokens(desc) * (desc->heads / desc->kv_heads), known = pages->count;
  int32_t threads = bny_pool_threads(pool), blocks = BLOCKS_PER_THREAD * threads;
  if (prune->top_pages > 0 && rows > (int64_t)blocks * ROWS) blocks = (int32_t)((rows + ROWS - 1) / ROWS);
  if (pages->table && pages->table_stride > 0) known = pages->table_stride;
  if (pages->table && known == 0 && pages->keys > 0) known = bny_job_divide_up(desc->keys_max, pages->keys);
  room room = {.pages = pages->table ? known : prune->batch_pages,
               .page_keys = bny_bounds_keys(desc),
               .rows = rows < ROWS ? (int32_t)rows : ROWS,
               .masks = desc->queries && desc->queries->key_mask};
  size_t sums = sizeof(bny_attention_sums), bytes = 0, more;
  for (int32_t n = 1; n <= blocks; n++) /* fewer blocks have more parts */
    bytes = (more = all_bytes(&room, n, parts_of(n, threads), sums)) > bytes ? more : bytes;
  pool = bny_pool_take(pool);
  bool done = !pool || bny_pool_memory(pool, bytes);
  bny_pool_give(pool);
  return done ? BANYAN_OK : bny_fail(BANYAN_ERR_MEMORY, "out of memory to prune %lld pages", (long long)room.pages);
}

static bny_row_task *rows_of(const wave *wave, const bny_prune_block *b) { return &wave->rows[b - wave->blocks]; }

/* ---- stages of a block ------------------------------------------------------------------------------------------- */

static void set_block(const wave *wave, const bny_row_block *at, int32_t index) {
  bny_job *job = wave->job;
  bny_prune_block *b = &wave->blocks[index];
  bny_row_task *rows = &wave->rows[index];
  b->desc = job->desc, b->kernels = job->attention;
  b->stage = BNY_PRUNE_WEIGH;
  b->done = b->count = b->forced = 0;
  memset(b->rest, 0, sizeof b->rest);
  bny_job_set_rows(job, at, rows);
  bny_job_set_part(job, rows, 0);
  const bny_attention_task *task = b->task = &rows->task;
  b->sequence = at->sequence, b->kv_head = at->kv_head;
  b->pruned = (bny_pruned){0};
  for (int32_t h = 0; h < ROWS; h++) {
    b->pruned.mass[h] = b->pruned.moment[h] = -INFINITY;
    b->sinks[h] = job->desc->sinks && h < task->heads ? bny_job_sink(job, rows, h) : -INFINITY;
    atomic_store_explicit(&b->errors[h], 0, memory_order_relaxed);
  }
  b->page_keys = bny_bounds_keys(job->desc);
  b->pages = task->keys > 0 ? (task->keys - 1) / b->page_keys + 1 : 0;
  if (task->keys == 0) b->stage = BNY_PRUNE_SEGMENTS;
}

/* Cuts the keys of the stage into parts: subtrees of segments. */
static void cut(const wave *wave, bny_prune_block *b) {
  if (b->stage == BNY_PRUNE_READ) {
    b->segment_keys =
        bny_job_divide_up(bny_job_divide_up(b->some.keys, SEGMENTS_MAX), BNY_ATTENTION_BLOCK) * BNY_ATTENTION_BLOCK;
    b->segments = b->some.keys > 0 ? bny_job_divide_up(b->some.keys, b->segment_keys) : 1;
  } else {
    b->segments = bny_job_segments(wave->job, b->sequence);
  }
  for (b->part_segments = 1; bny_job_divide_up(b->segments, b->part_segments) > wave->parts;) b->part_segments *= 2;
  b->parts = bny_job_divide_up(b->segments, b->part_segments);
}

static bool is_of_head(const bny_prune_block *a, const bny_prune_block *b) {
  return a->sequence == b->sequence && a->kv_head == b->kv_head;
}

/* Called between stages by one thread. Returns false if the block is complete. */
static bool open_stage(const wave *wave, bny_prune_block *b) {
  if (b->stage == BNY_PRUNE_CHOOSE) {
    const bny_prune_block *end = wave->blocks + wave->count;
    int32_t count = 1;
    while (b + count < end && is_of_head(&b[count], b)) count++;
    bny_prune_choose_top(b, count);
  }
  if (b->stage == BNY_PRUNE_DONE)
    b->parts = 0;
  else if (b->stage == BNY_PRUNE_WEIGH)
    b->parts = wave->threads > 1 ? bny_job_divide_up(b->pages, BNY_PRUNE_CHUNK) : 1;
  else
    cut(wave, b);
  atomic_store_explicit(&b->next, 0, memory_order_relaxed);
  atomic_store_explicit(&b->left, b->parts, memory_order_relaxed);
  return b->parts > 0;
}

/* Sums segments of the list, as a subtree. */
static void sum_list(const bny_job *job, const bny_prune_block *b, int32_t first, int32_t count,
                     bny_attention_sums *sums) {
  if (count > 1) {
    bny_attention_sums right;
    int32_t half = bny_job_left_half(count);
    sum_list(job, b, first, half, sums);
    sum_list(job, b, first + half, count - half, &right);
    bny_attention_merge(&b->some, sums, &right);
    return;
  }
  int32_t begin = first * b->segment_keys, left = b->some.keys - begin;
  bny_job_attend(job, &b->some, begin, left < b->segment_keys ? b->some.keys : begin + b->segment_keys, sums);
}

static void run_part(const wave *wave, bny_prune_block *b, int32_t part) {
  if (b->stage == BNY_PRUNE_WEIGH) {
    int32_t first = part * BNY_PRUNE_CHUNK, most = b->parts > 1 ? BNY_PRUNE_CHUNK : b->pages;
    bny_prune_weigh(b, first, b->pages - first < most ? b->pages : first + most);
    return;
  }
  int32_t first = part * b->part_segments, left = b->segments - first;
  int32_t count = left < b->part_segments ? left : b->part_segments;
  bny_attention_sums *sums = bny_job_sums(wave->job, b->first_part + part);
  if (b->stage == BNY_PRUNE_READ)
    sum_list(wave->job, b, first, count, sums);
  else
    bny_job_sum(wave->job, rows_of(wave, b), first, count, b->pruned.segments, sums);
}

/* All parts of the stage are complete. */
static void end_stage(const wave *wave, bny_prune_block *b) {
  bny_job *job = wave->job;
  if (b->stage == BNY_PRUNE_WEIGH) {
    bny_prune_choose(b);
  } else {
    bool lossy = b->stage == BNY_PRUNE_READ && bny_prune_is_lossy(job->desc);
    bny_job_merge(job, b->task, b->first_part, b->parts, 1);
    if (lossy)
      bny_attention_merge(b->task, b->sums, bny_job_sums(job, b->first_part));
    else
      memcpy(b->sums, bny_job_sums(job, b->first_part), job->sums_bytes);
    if (b->stage == BNY_PRUNE_READ)
      bny_prune_go_on(b, bny_job_segment_keys(job, b->sequence));
    else
      b->stage = BNY_PRUNE_DONE;
  }
  if (b->stage == BNY_PRUNE_DONE) bny_job_write_pruned(job, rows_of(wave, b), &b->pruned, b->sums);
}

static void run_stages(void *context, int32_t place) {
  const wave *wave = context;
  int32_t start = (int32_t)((int64_t)wave->count * place / wave->threads);
  for (int32_t i = 0; i < wave->count; i++) {
    bny_prune_block *b = &wave->blocks[(start + i) % wave->count];
    int32_t parts = b->parts;
    for (;;) {
      int32_t part = atomic_fetch_add_explicit(&b->next, 1, memory_order_relaxed);
      if (part >= parts) break;
      run_part(wave, b, part);
      if (atomic_fetch_sub_explicit(&b->left, 1, memory_order_acq_rel) == 1) end_stage(wave, b);
    }
  }
}

/* ---- counts ------------------------------------------------------------------------------------------------------ */

/* Writes what all row blocks of the KV head of `b` have read. */
static void write_reads(const wave *wave, const bny_prune_block *b) {
  const banyan_attention_desc *desc = wave->job->desc;
  const banyan_prune *prune = &desc->prune;
  bny_query_range queries = bny_attention_queries(desc, b->sequence);
  int32_t count = 0, group = wave->job->group;
  for (int32_t page = 0; page < b->pages; page++) {
    if (!wave->read[page]) continue;
    count++;
    int64_t at = b->task->pages ? b->task->pages[page] : (int64_t)b->sequence * prune->batch_pages + page;
    if (prune->page_reads) __atomic_fetch_add(&prune->page_reads[at], 1, __ATOMIC_RELAXED);
  }
  for (int32_t i = 0; prune->read && i < queries.count * group; i++)
    prune->read[(int64_t)(queries.first + i / group) * desc->heads + b->kv_head * group + i % group] =
        b->pages > 0 ? (float)count / (float)b->pages : 0;
}

static void count_reads(const wave *wave) {
  for (int32_t i = 0; i < wave->count; i++) {
    const bny_prune_block *b = &wave->blocks[i];
    int32_t chunk = rows_of(wave, b)->block.chunk;
    if (chunk == 0) memset(wave->read, 0, (size_t)b->pages);
    for (int32_t page = 0; page < b->pages; page++) wave->read[page] |= b->chosen[page];
    if (chunk + 1 == bny_job_chunks(wave->job, b->sequence)) write_reads(wave, b);
  }
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

/* Moves to the next row block. Returns false after the last. */
static bool next_block(const bny_job *job, bny_row_block *at) {
  const banyan_attention_desc *desc = job->desc;
  for (at->chunk++; at->sequence < desc->batch; at->sequence++, at->kv_head = 0)
    for (; at->kv_head < desc->kv_heads; at->kv_head++, at->chunk = 0)
      if (at->chunk < bny_job_chunks(job, at->sequence)) return true;
  return false;
}

banyan_status bny_job_prune(bny_job *job, bny_pool *pool) {
  const banyan_attention_desc *desc = job->desc;
  room room = {.page_keys = bny_bounds_keys(desc), .masks = desc->queries && desc->queries->key_mask};
  int64_t blocks = 0;
  int32_t together = 0; /* row blocks of a KV head that choose together */
  for (int32_t b = 0; b < desc->batch; b++) {
    if (desc->prune.top_pages > 0 && bny_job_chunks(job, b) > together) together = bny_job_chunks(job, b);
    int32_t keys = bny_attention_keys(&desc->kv, b), rows = most_rows(job, b);
    if (keys > 0 && (keys - 1) / room.page_keys + 1 > room.pages) room.pages = (keys - 1) / room.page_keys + 1;
    if (rows > room.rows) room.rows = rows;
    blocks += (int64_t)bny_job_chunks(job, b) * desc->kv_heads;
  }
  wave wave = {.job = job, .threads = bny_pool_threads(pool)};
  int32_t most = wave.threads > 1 ? BLOCKS_PER_THREAD * wave.threads : 1;
  if (most < together) most = together;
  if (blocks < most) most = (int32_t)blocks;
  if (most == 0) return BANYAN_OK;
  wave.parts = parts_of(most, wave.threads);
  size_t each = room_bytes(&room), heads = bny_job_aligned((size_t)most * sizeof *wave.blocks);
  size_t bytes = all_bytes(&room, most, wave.parts, job->sums_bytes);
  char *memory = pool ? bny_pool_memory(pool, bytes) : aligned_alloc(LINE_BYTES, bytes);
  if (!memory) return bny_fail(BANYAN_ERR_MEMORY, "out of memory to prune %lld pages", (long long)room.pages);
  wave.blocks = (bny_prune_block *)(void *)memory;
  wave.rows = (bny_row_task *)(void *)(memory + heads);
  heads += bny_job_aligned((size_t)most * sizeof *wave.rows);
  wave.read = (uint8_t *)memory + heads;
  heads += bny_job_aligned((size_t)room.pages);
  job->sums = memory + heads + (size_t)most * each;
  bny_row_block at = {.chunk = -1};
  for (bool more = next_block(job, &at); more;) {
    for (wave.count = 0; wave.count < most && more; wave.count++, more = next_block(job, &at)) {
      if (together > 0 && at.chunk == 0 && wave.count + bny_job_chunks(job, at.sequence) > most) break;
      bny_prune_block *b = &wave.blocks[wave.count];
      lay_out(&room, memory + heads + (size_t)wave.count * each, b);
      b->first_part = wave.count * (wave.parts + 1) + 1;
      b->sums = bny_job_sums(job, b->first_part - 1);
      set_block(&wave, &at, wave.count);
    }
    for (;;) {
      bool open = false;
      for (int32_t i = 0; i < wave.count; i++) open = open_stage(&wave, &wave.blocks[i]) || open;
      if (!open) break;
      bny_pool_run(pool, run_stages, &wave);
    }
    count_reads(&wave);
  }
  if (!pool) free(memory);
  return BANYAN_OK;
}
