/* SPDX-License-Identifier: Apache-2.0
 * Shares a call of local attention out to threads. Threads take parts. A part is a whole row block or group or, if
 * these are few, a subtree of one. The thread that completes the last part of a row block merges its parts and writes
 * the rows. Each thread begins with its own range of parts, so that it reads the same keys in each call. When its range
 * is empty, it takes parts from the ranges of others. */
#include <stdlib.h>

#include "attention/job.h"
#include "base/status.h"

enum { PARTS_PER_THREAD = 8 }; /* small enough that a slow thread delays the others by only an eighth of its share */

static int32_t parts_of(const bny_job *job, int32_t sequence) {
  return bny_job_divide_up(bny_job_segments(job, sequence), job->part_segments);
}

static int32_t sequence_of(const bny_job *job, int32_t part) {
  int32_t low = 0, high = job->desc->batch;
  while (high - low > 1) {
    int32_t middle = low + (high - low) / 2;
    if (job->part_first[middle] <= part)
      low = middle;
    else
      high = middle;
  }
  return low;
}

static void run_part(bny_job *job, int32_t part, int32_t place) {
  int32_t b = sequence_of(job, part), parts = parts_of(job, b), of_sequence = part - job->part_first[b];
  int32_t number = of_sequence / parts, index = of_sequence % parts, groups = bny_job_groups(job, b);
  int32_t first = index * job->part_segments, first_sums = (part - index) * job->many;
  int32_t count = bny_job_segments(job, b) - first;
  if (count > job->part_segments) count = job->part_segments;
  bny_row_block block = {b, number / groups, number % groups};
  _Atomic int32_t *left = &job->left[job->block_first[b] + number];
  if (bny_job_is_many(job, b)) {
    bny_group_part group = {b, block.kv_head, block.chunk, first, count, index, parts, first_sums, NULL};
    if (parts > 1) group.left = left;
    bny_job_run_group(job, &group, job->rooms + (size_t)place * job->room_bytes);
    return;
  }
  if (parts == 1) {
    bny_job_run_block(job, &block);
    return;
  }
  bny_row_task rows;
  bny_attention_sums *sums = bny_job_sums(job, first_sums + index * job->many);
  bny_job_set_rows(job, &block, &rows);
  bny_job_sum_part(job, &rows, first, count, sums);
  if (atomic_fetch_sub_explicit(left, 1, memory_order_acq_rel) > 1) return;
  bny_job_merge(job, &rows.task, first_sums, parts, job->many);
  bny_job_write(job, &rows, NULL, bny_job_sums(job, first_sums));
}

static void run_parts(void *context, int32_t place) {
  bny_job *job = context;
  for (int32_t i = 0; i < job->threads; i++) {
    bny_part_range *range = &job->ranges[(place + i) % job->threads];
    for (;;) {
      int32_t part = atomic_fetch_add_explicit(&range->next, 1, memory_order_relaxed);
      if (part >= range->end) break;
      run_part(job, part, place);
    }
  }
}

/* Parts are halved until there are enough of them for all threads. */
static int64_t choose_parts(bny_job *job) {
  int64_t count;
  for (job->part_segments = BNY_JOB_SEGMENTS_MAX;; job->part_segments /= 2) {
    count = 0;
    for (int32_t b = 0; b < job->desc->batch; b++)
      count += (int64_t)parts_of(job, b) * bny_job_groups(job, b) * job->desc->kv_heads;
    if (count >= (int64_t)PARTS_PER_THREAD * job->threads || job->part_segments == 1) return count;
  }
}

/* Lays out the data that threads share in the pool's memory. Returns false without memory, or for more parts than there
 * are numbers. */
static bool share_out(bny_job *job, bny_pool *pool) {
  job->threads = bny_pool_threads(pool);
  size_t rooms = (size_t)job->threads * bny_job_set_many(job, job->threads);
  int64_t parts = choose_parts(job), blocks = 0;
  for (int32_t b = 0; b < job->desc->batch; b++) blocks += (int64_t)bny_job_groups(job, b) * job->desc->kv_heads;
  if (parts > (INT32_MAX - job->threads * 2) / job->many) return false;
  size_t ranges = bny_job_aligned((size_t)job->threads * sizeof *job->ranges);
  size_t firsts = bny_job_aligned(((size_t)job->desc->batch + 1) * sizeof *job->part_first);
  size_t left = bny_job_aligned((size_t)blocks * sizeof *job->left);
  size_t sums = parts > blocks ? (size_t)(parts * job->many) * job->sums_bytes : 0;
  char *memory = bny_pool_memory(pool, ranges + 2 * firsts + left + sums + rooms);
  if (!memory) return false;
  job->ranges = (bny_part_range *)(void *)memory;
  job->part_first = (int32_t *)(void *)(memory + ranges);
  job->block_first = (int32_t *)(void *)(memory + ranges + firsts);
  job->left = (_Atomic int32_t *)(void *)(memory + ranges + 2 * firsts);
  job->sums = memory + ranges + 2 * firsts + left;
  job->rooms = job->sums + sums;
  int32_t first = 0, block = 0;
  for (int32_t b = 0; b < job->desc->batch; b++) {
    int32_t each = job->desc->kv_heads * bny_job_groups(job, b);
    job->part_first[b] = first;
    job->block_first[b] = block;
    first += parts_of(job, b) * each;
    for (int32_t i = 0; i < each; i++, block++)
      atomic_store_explicit(&job->left[block], parts_of(job, b), memory_order_relaxed);
  }
  job->part_first[job->desc->batch] = first;
  for (int32_t i = 0; i < job->threads; i++) {
    atomic_store_explicit(&job->ranges[i].next, (int32_t)((int64_t)first * i / job->threads), memory_order_relaxed);
    job->ranges[i].end = (int32_t)((int64_t)first * (i + 1) / job->threads);
  }
  return true;
}

banyan_status bny_job_run(bny_job *job, bny_pool *pool) {
  if (bny_pool_threads(pool) > 1 && share_out(job, pool)) {
    bny_pool_run(pool, run_parts, job);
    return BANYAN_OK;
  }
  size_t bytes = bny_job_set_many(job, 1);
  char *room = bytes == 0 ? NULL : pool ? bny_pool_memory(pool, bytes) : aligned_alloc(LINE_BYTES, bytes);
  if (bytes > 0 && !room)
    return bny_fail(BANYAN_ERR_MEMORY, "banyan_attention: out of memory: many queries take %zu bytes", bytes);
  for (bny_row_block at = {0, 0, 0}; at.sequence < job->desc->batch; at.sequence++)
    for (at.kv_head = 0; at.kv_head < job->desc->kv_heads; at.kv_head++)
      for (at.chunk = 0; at.chunk < bny_job_groups(job, at.sequence); at.chunk++) {
        bny_group_part whole = {.sequence = at.sequence, .kv_head = at.kv_head, .number = at.chunk, .parts = 1};
        whole.count = bny_job_segments(job, at.sequence);
        if (bny_job_is_many(job, at.sequence))
          bny_job_run_group(job, &whole, room);
        else
          bny_job_run_block(job, &at);
      }
  if (!pool) free(room);
  return BANYAN_OK;
}
