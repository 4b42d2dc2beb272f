/* SPDX-License-Identifier: Apache-2.0
 * Prunes row blocks with all threads, some blocks at a time. Each stage of a block has parts. The thread that completes
 * the last one chooses the next stage, which begins when all threads have left this one. Masses, lists and sums depend
 * on the block's keys alone, so the bits do not depend on threads. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/status.h"
#include "base/trace.h"
#include "attention/job.h"
#include "prune/block.h"

enum {
  ROWS = BNY_ATTENTION_HEADS_MAX,
  SEGMENTS_MAX = 64,
  BLOCKS_PER_THREAD = 2,
  PARTS_PER_THREAD = 8,
  BLOCKS_MOST = 1 << 24,
  DRAFTS_MAX = 64
};

typedef struct wave {
  bny_job *job;
  bny_prune_block *blocks;
  bny_row_task *rows;            /* by block */
  int32_t count, threads, parts; /* blocks, and the most parts of one */
  uint8_t *read;                 /* by page: a row block of the current KV head has read it */
  bool over_ranks;               /* bny_top_pages_read() chooses pages */
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
  int64_t rows = (int64_t)bny_attention_queries(job->desc, sequence).count * job->desc->group;
  return rows < ROWS ? (int32_t)rows : ROWS;
}

/* Returns the most memory of a block in any run of an operation. Unknown numbers of pages are 0. */
static room room_of(const bny_attention_desc *desc, int64_t rows) {
  const banyan_pages *pages = &desc->kv.pages;
  int64_t known = pages->count;
  if (pages->table && pages->table_stride > 0) known = pages->table_stride;
  if (pages->table && known == 0 && pages->keys > 0) known = bny_job_divide_up(desc->keys_max, pages->keys);
  return (room){.pages = pages->table ? known : desc->prune.batch_pages,
                .page_keys = bny_attention_bounds(desc).page_keys,
                .rows = rows < ROWS ? (int32_t)rows : ROWS,
                .masks = desc->queries.key_mask != NULL};
}

static banyan_status out_of_memory(size_t bytes) {
  return bny_fail(BANYAN_ERR_MEMORY,
                  "out of memory: pruning needs %zu bytes. They grow with pages, rows and threads: give the call fewer "
                  "tokens, or pages of more keys",
                  bytes);
}

banyan_status bny_attention_reserve(const bny_attention_desc *desc, bool is_exact, bny_pool *pool) {
  int64_t rows = (int64_t)desc->tokens * desc->group;
  int32_t threads = bny_pool_threads(pool), blocks = BLOCKS_PER_THREAD * threads;
  if (desc->prune.top_pages > 0 && rows > (int64_t)blocks * ROWS) blocks = (int32_t)((rows + ROWS - 1) / ROWS);
  room room = room_of(desc, rows);
  size_t sums = bny_job_sums_bytes(desc->value_dim, is_exact), bytes = 0, more;
  for (int32_t n = 1; n <= blocks; n++) /* fewer blocks have more parts */
    bytes = (more = all_bytes(&room, n, parts_of(n, threads), sums)) > bytes ? more : bytes;
  pool = bny_pool_take(pool);
  bool done = !pool || bny_pool_memory(pool, bytes);
  bny_pool_give(pool);
  return done ? BANYAN_OK : out_of_memory(bytes);
}

static bny_row_task *rows_of(const wave *wave, const bny_prune_block *b) { return &wave->rows[b - wave->blocks]; }

/* ---- stages of a block ------------------------------------------------------------------------------------------- */

static void set_block(const wave *wave, const bny_row_block *at, int32_t index) {
  bny_job *job = wave->job;
  bny_prune_block *b = &wave->blocks[index];
  bny_row_task *rows = &wave->rows[index];
  b->bounds = &job->bounds, b->kernels = job->attention;
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
  b->page_keys = job->bounds.page_keys;
  b->drafts = b->drafts_end = 0;
  if (job->desc->queries.tree_mask) {
    int64_t start = job->desc->queries.query_start[at->sequence];
    b->drafts = bny_attention_keys_below(job->desc, at->sequence, start);
    b->drafts_end = bny_attention_keys_below(job->desc, at->sequence, start + DRAFTS_MAX);
  }
  b->pages = task->keys > 0 ? (task->keys - 1) / b->page_keys + 1 : 0;
  if (task->keys == 0) b->stage = BNY_PRUNE_SEGMENTS;
}

/* Cuts the keys of the stage into parts: subtrees of segments. */
static void cut(const wave *wave, bny_prune_block *b) {
  if (b->stage == BNY_PRUNE_READ) {
    int32_t keys = wave->job->is_exact ? b->task->keys : b->some.keys;
    b->segment_keys =
        bny_job_divide_up(bny_job_divide_up(keys, SEGMENTS_MAX), BNY_ATTENTION_BLOCK) * BNY_ATTENTION_BLOCK;
    b->segments = keys > 0 ? bny_job_divide_up(keys, b->segment_keys) : 1;
  } else {
    b->segments = bny_job_segments(wave->job, b->sequence);
  }
  for (b->part_segments = 1; bny_job_divide_up(b->segments, b->part_segments) > wave->parts;) b->part_segments *= 2;
  b->parts = bny_job_divide_up(b->segments, b->part_segments);
}

static bool is_of_head(const bny_prune_block *a, const bny_prune_block *b) {
  return a->sequence == b->sequence && a->kv_head == b->kv_head;
}

/* Returns how many blocks from `b` on choose together. */
static int32_t blocks_of_head(const wave *wave, const bny_prune_block *b) {
  const bny_prune_block *end = wave->blocks + wave->count;
  int32_t count = 1;
  while (b + count < end && is_of_head(&b[count], b)) count++;
  return count;
}

/* Called between stages by one thread. Returns false if the block is complete, or waits for a choice over ranks. */
static bool open_stage(const wave *wave, bny_prune_block *b) {
  if (b->stage == BNY_PRUNE_CHOOSE && !wave->over_ranks) {
    int32_t count = blocks_of_head(wave, b);
    int32_t number = bny_prune_offer(b, count, wave->job->kernels, b->tops, b->order);
    bny_prune_choose_top(b, count, b->order, number);
  }
  if (b->stage == BNY_PRUNE_DONE || b->stage == BNY_PRUNE_CHOOSE)
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

/* Sums the listed keys of segments of all keys, block by block, in the exact order. */
static void sum_blocks(const bny_job *job, const bny_prune_block *b, int32_t first, int32_t count, void *sums) {
  bny_attention_sums block;
  bny_listed listed = {0};
  int32_t end = (first + count) * b->segment_keys;
  bny_job_clear(job, b->task, sums);
  for (int32_t key = first * b->segment_keys; key < end && key < b->task->keys; key += BNY_ATTENTION_EXACT_KEYS) {
    int32_t from = bny_prune_listed(b, key, &listed), to = bny_prune_listed(b, key + BNY_ATTENTION_EXACT_KEYS, &listed);
    if (from == to) continue;
    bny_job_attend(job, &b->some, from, to, &block);
    bny_job_deposit(job, b->task, &block, sums);
  }
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
  if (b->stage == BNY_PRUNE_READ && wave->job->is_exact)
    sum_blocks(wave->job, b, first, count, sums);
  else if (b->stage == BNY_PRUNE_READ)
    sum_list(wave->job, b, first, count, sums);
  else if (wave->job->is_exact) /* there are no keys */
    bny_job_clear(wave->job, b->task, sums);
  else
    bny_job_sum(wave->job, rows_of(wave, b), first, count, b->pruned.segments, sums);
}

/* All parts of the stage are complete. */
static void end_stage(const wave *wave, bny_prune_block *b) {
  bny_job *job = wave->job;
  if (b->stage == BNY_PRUNE_WEIGH) {
    bny_job_clear(job, b->task, b->sums);
    bny_prune_choose(b);
  } else {
    bool lossy = b->stage == BNY_PRUNE_READ && job->desc->is_lossy;
    bny_job_merge(job, b->task, b->first_part, b->parts, 1);
    if (lossy)
      bny_job_add(job, b->task, b->sums, bny_job_sums(job, b->first_part));
    else
      memcpy(b->sums, bny_job_sums(job, b->first_part), job->sums_bytes);
    if (b->stage == BNY_PRUNE_READ)
      bny_prune_go_on(b, bny_job_segment_keys(job, b->sequence));
    else
      b->stage = BNY_PRUNE_DONE;
  }
  if (b->stage == BNY_PRUNE_DONE) bny_job_write(job, rows_of(wave, b), &b->pruned, b->sums);
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
  const bny_attention_desc *desc = wave->job->desc;
  const banyan_prune *prune = &desc->prune;
  bny_query_range queries = bny_attention_queries(desc, b->sequence);
  int32_t count = 0, group = wave->job->desc->group;
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
  const bny_attention_desc *desc = job->desc;
  for (at->chunk++; at->sequence < desc->batch; at->sequence++, at->kv_head = 0)
    for (; at->kv_head < desc->kv_heads; at->kv_head++, at->chunk = 0)
      if (at->chunk < bny_job_chunks(job, at->sequence)) return true;
  return false;
}

/* Measures a job: the pages and rows of a block, the row blocks, and those of a KV head that choose together. */
static int64_t measure(const bny_job *job, room *room, int32_t *together) {
  const bny_attention_desc *desc = job->desc;
  int64_t blocks = 0;
  *together = 0;
  *room = (struct room){.page_keys = job->bounds.page_keys, .masks = desc->queries.key_mask != NULL};
  for (int32_t b = 0; b < desc->batch; b++) {
    if (desc->prune.top_pages > 0 && bny_job_chunks(job, b) > *together) *together = bny_job_chunks(job, b);
    int32_t keys = bny_attention_keys(&desc->kv, b), rows = most_rows(job, b);
    if (keys > 0 && (keys - 1) / room->page_keys + 1 > room->pages) room->pages = (keys - 1) / room->page_keys + 1;
    if (rows > room->rows) room->rows = rows;
    blocks += (int64_t)bny_job_chunks(job, b) * desc->kv_heads;
  }
  return blocks;
}

/* Divides memory of all_bytes() among `most` blocks. Returns the room of the first one's pages. */
static char *divide(wave *wave, int32_t most, const room *room, char *memory) {
  wave->blocks = (bny_prune_block *)(void *)memory;
  memory += bny_job_aligned((size_t)most * sizeof *wave->blocks);
  wave->rows = (bny_row_task *)(void *)memory;
  memory += bny_job_aligned((size_t)most * sizeof *wave->rows);
  wave->read = (uint8_t *)memory;
  memory += bny_job_aligned((size_t)room->pages);
  wave->job->sums = memory + (size_t)most * room_bytes(room);
  return memory;
}

static void add_block(wave *wave, const bny_row_block *at, const room *room, char *memory) {
  bny_prune_block *b = &wave->blocks[wave->count];
  lay_out(room, memory + (size_t)wave->count * room_bytes(room), b);
  b->first_part = wave->count * (wave->parts + 1) + 1;
  b->sums = bny_job_sums(wave->job, b->first_part - 1);
  set_block(wave, at, wave->count++);
}

/* Runs stages until all blocks are complete, or wait for a choice over ranks. */
static void run_wave(wave *wave, bny_pool *pool) {
  for (;;) {
    bool open = false;
    for (int32_t i = 0; i < wave->count; i++) open = open_stage(wave, &wave->blocks[i]) || open;
    if (!open) return;
    bny_pool_run(pool, run_stages, wave);
  }
}

banyan_status bny_job_prune(bny_job *job, bny_pool *pool) {
  room room;
  int32_t together;
  int64_t blocks = measure(job, &room, &together);
  wave wave = {.job = job, .threads = bny_pool_threads(pool)};
  int32_t most = wave.threads > 1 ? BLOCKS_PER_THREAD * wave.threads : 1;
  if (most < together) most = together;
  if (blocks < most) most = (int32_t)blocks;
  if (most == 0) return BANYAN_OK;
  wave.parts = parts_of(most, wave.threads);
  size_t bytes = all_bytes(&room, most, wave.parts, job->sums_bytes);
  char *memory = pool ? bny_pool_memory(pool, bytes) : aligned_alloc(LINE_BYTES, bytes);
  if (!memory) return out_of_memory(bytes);
  char *pages = divide(&wave, most, &room, memory);
  bny_row_block at = {.chunk = -1};
  for (bool more = next_block(job, &at); more;) {
    for (wave.count = 0; wave.count < most && more; more = next_block(job, &at)) {
      if (together > 0 && at.chunk == 0 && wave.count + bny_job_chunks(job, at.sequence) > most) break;
      add_block(&wave, &at, &room, pages);
    }
    run_wave(&wave, pool);
    count_reads(&wave);
  }
  if (!pool) free(memory);
  return BANYAN_OK;
}

/* ---- the best pages of all ranks --------------------------------------------------------------------------------- */

/* A job between its steps. The selections in between may wait, so it keeps the description and memory of its own. */
struct bny_top_pages {
  bny_job job;
  wave wave;
  bny_attention_desc desc;
  banyan_partial out;
  bny_certificate certificate;
  char *memory;
  size_t bytes;
};

void bny_top_pages_free(bny_top_pages *of) {
  if (of && of->memory) munmap(of->memory, of->bytes);
  free(of);
}

static void *map_room(size_t bytes) {
  return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* Gets memory that only use touches, so a large upper bound costs nothing. `grows`: the size is a power of two if
 * possible, because a sequence that gains pages gains more. */
static banyan_status make_room(bny_top_pages *of, size_t bytes, bool grows) {
  if (bytes <= of->bytes) return BANYAN_OK;
  size_t all = grows ? 1 : bytes;
  while (all < bytes && all <= SIZE_MAX / 2) all *= 2;
  void *memory = map_room(all);
  if (memory == MAP_FAILED) memory = map_room(all = bytes);
  if (memory == MAP_FAILED) return out_of_memory(bytes);
  if (of->memory) munmap(of->memory, of->bytes);
  of->memory = memory;
  of->bytes = all;
  return BANYAN_OK;
}

banyan_status bny_top_pages_reserve(bny_top_pages **made, const bny_attention_desc *desc,
                                    const bny_top_pages_most *most) {
  if (!*made) *made = calloc(1, sizeof **made);
  if (!*made) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
  int64_t group = desc->group, rows = most->tokens * group;
  int64_t several = rows / ROWS + most->sequences < rows ? rows / ROWS + most->sequences : rows;
  bool is_apart = !desc->queries.query_start_loc;
  int64_t blocks = desc->kv_heads * (is_apart ? most->sequences * ((group + ROWS - 1) / ROWS) : several);
  room room = room_of(desc, is_apart ? group : rows);
  if (blocks > BLOCKS_MOST) blocks = BLOCKS_MOST;
  /* parts_of() doubles parts only below this number of them */
  int64_t parts = 2 * PARTS_PER_THREAD * (most->threads > 1 ? most->threads : 0);
  if (parts > blocks * SEGMENTS_MAX) parts = blocks * SEGMENTS_MAX;
  size_t sums = bny_job_sums_bytes(desc->value_dim, most->is_exact);
  make_room(*made, all_bytes(&room, (int32_t)blocks, 1, sums) + (size_t)parts * sums, (*made)->bytes > 0);
  return BANYAN_OK; /* a system that limits addresses may still have what runs need */
}

/* Sets up a wave of all row blocks. */
static banyan_status set_up(bny_top_pages *of, const bny_attention_kernels *attention, const bny_kernels *kernels,
                            const bny_attention_desc *desc, const banyan_partial *out,
                            const bny_certificate *certificate, bny_pool *pool) {
  of->desc = *desc, of->out = *out, of->certificate = *certificate;
  of->job = (bny_job){.attention = attention,
                      .kernels = kernels,
                      .desc = &of->desc,
                      .out = &of->out,
                      .certificate = &of->certificate,
                      .lost = -1};
  bny_job_set_up(&of->job);
  room room;
  int32_t together;
  int64_t most = measure(&of->job, &room, &together);
  of->wave = (wave){.job = &of->job, .threads = bny_pool_threads(pool), .over_ranks = true};
  of->wave.parts = parts_of(most < BLOCKS_MOST ? (int32_t)most : BLOCKS_MOST, of->wave.threads);
  if (most > BLOCKS_MOST)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    "desc.prune.top_pages over ranks is for %d row blocks at most, and the call has %" PRId64
                    ": give it fewer tokens",
                    BLOCKS_MOST, most);
  banyan_status status = make_room(of, all_bytes(&room, (int32_t)most, of->wave.parts, of->job.sums_bytes), true);
  if (status != BANYAN_OK) return status;
  char *pages = divide(&of->wave, (int32_t)most, &room, of->memory);
  bny_row_block at = {.chunk = -1};
  while (next_block(&of->job, &at)) add_block(&of->wave, &at, &room, pages);
  return BANYAN_OK;
}

banyan_status bny_top_pages_weigh(bny_top_pages *of, const bny_attention_kernels *attention, const bny_kernels *kernels,
                                  const bny_attention_desc *desc, const banyan_partial *out,
                                  const bny_certificate *certificate, bny_pool *pool, float *tops) {
  bny_pool *mine = bny_pool_take(pool);
  banyan_status status = set_up(of, attention, kernels, desc, out, certificate, mine);
  const wave *wave = &of->wave;
  if (status == BANYAN_OK) run_wave(&of->wave, mine);
  bny_pool_give(mine);
  if (status != BANYAN_OK) return status;
  int64_t rows = (int64_t)desc->tokens * desc->heads;
  for (int64_t i = 0; i < rows; i++) tops[i] = -INFINITY;
  for (int32_t i = 0; i < wave->count; i++)
    for (int32_t h = 0; wave->blocks[i].stage == BNY_PRUNE_CHOOSE && h < wave->blocks[i].task->heads; h++)
      tops[bny_job_row(&of->job, rows_of(wave, &wave->blocks[i]), h)] = (float)wave->blocks[i].top[h];
  return BANYAN_OK;
}

void bny_top_pages_offer(bny_top_pages *of, const float *tops, const bny_page_lists *to) {
  const bny_attention_desc *desc = &of->desc;
  int64_t lists = (int64_t)desc->batch * desc->kv_heads, k = desc->prune.top_pages;
  for (int64_t i = 0; i < lists * k; i++) to->indices[i] = -1;
  for (int32_t i = 0, count; i < of->wave.count; i += count) {
    bny_prune_block *b = &of->wave.blocks[i];
    int64_t at = ((int64_t)b->sequence * desc->kv_heads + b->kv_head) * k;
    count = blocks_of_head(&of->wave, b);
    if (b->stage != BNY_PRUNE_CHOOSE) continue;
    for (int32_t j = 0; j < count; j++)
      for (int32_t h = 0; h < b[j].task->heads; h++)
        b[j].top[h] = (double)tops[bny_job_row(&of->job, rows_of(&of->wave, &b[j]), h)];
    int32_t offers = bny_prune_offer(b, count, of->job.kernels, to->scores + at, to->pages + at);
    for (int32_t j = 0; j < offers; j++)
      to->indices[at + j] = desc->queries.query_start
                                ? bny_attention_position(desc, b->sequence, to->pages[at + j] * b->page_keys)
                                : ((int64_t)to->rank << 31) + to->pages[at + j];
  }
}

banyan_status bny_top_pages_read(bny_top_pages *of, const bny_page_lists *chosen, bny_pool *pool) {
  const bny_attention_desc *desc = &of->desc;
  for (int32_t i = 0, count; i < of->wave.count; i += count) {
    bny_prune_block *b = &of->wave.blocks[i];
    int64_t list = (int64_t)b->sequence * desc->kv_heads + b->kv_head;
    count = blocks_of_head(&of->wave, b);
    if (b->stage == BNY_PRUNE_CHOOSE)
      bny_prune_choose_top(b, count, chosen->own + list * desc->prune.top_pages, chosen->own_counts[list]);
  }
  uint64_t since = bny_trace_span_begin();
  bny_pool *mine = bny_pool_take(pool);
  of->wave.over_ranks = false;
  run_wave(&of->wave, mine);
  bny_pool_give(mine);
  count_reads(&of->wave);
  return bny_job_end(&of->job, since);
}
