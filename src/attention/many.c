/* SPDX-License-Identifier: Apache-2.0
 * Sequences of many queries. Row blocks of a KV head attend together, because their kernels pack keys and values once
 * for all of them. Such a group works in a room that its thread keeps. */
#include "attention/job.h"

enum { GROUPS_PER_THREAD = 4 };

/* A group of row blocks, in its room. Behind it are sums by level and row block, and the memory of kernels. */
typedef struct group {
  bny_row_task rows[BNY_ATTENTION_MANY];
  int32_t count;
  bny_attention_sums *to[BNY_ATTENTION_MANY]; /* sums of level 0 */
} group;

int32_t bny_job_groups(const bny_job *job, int32_t sequence) {
  int32_t chunks = bny_job_chunks(job, sequence);
  return bny_job_is_many(job, sequence) ? bny_job_divide_up(chunks, job->many) : chunks;
}

/* Returns the row blocks of each group of a sequence but the last, which may have fewer. */
static int32_t width_of(const bny_job *job, int32_t sequence) {
  return bny_job_divide_up(bny_job_chunks(job, sequence), bny_job_groups(job, sequence));
}

/* Returns how many sums of a thread exist at once. */
static int32_t levels_of(int32_t segments) {
  int32_t levels = 1;
  while (1 << (levels - 1) < segments) levels++;
  return levels;
}

static size_t kernel_bytes(const bny_job *job) {
  return bny_job_aligned(
      job->attention->many_bytes(job->many * BNY_ATTENTION_HEADS_MAX, job->desc->head_dim, job->desc->value_dim));
}

size_t bny_job_set_many(bny_job *job, int32_t threads) {
  int64_t groups;
  int32_t segments = 0, most = 0;
  job->many = BNY_ATTENTION_MANY;
  for (int32_t b = 0; b < job->desc->batch; b++) {
    if (!bny_job_is_many(job, b)) continue;
    if (bny_job_segments(job, b) > segments) segments = bny_job_segments(job, b);
    if (bny_job_chunks(job, b) > most) most = bny_job_chunks(job, b);
  }
  if (segments == 0) {
    job->many = 1;
    return 0;
  }
  if (most < job->many) job->many = most;
  for (;; job->many = (job->many + 1) / 2) {
    groups = 0;
    for (int32_t b = 0; b < job->desc->batch; b++) groups += (int64_t)bny_job_groups(job, b) * job->desc->kv_heads;
    if (threads == 1 || job->many == 1 || groups >= GROUPS_PER_THREAD * threads) break;
  }
  job->room_bytes =
      bny_job_aligned(sizeof(group)) + (size_t)(levels_of(segments) * job->many) * job->sums_bytes + kernel_bytes(job);
  return job->room_bytes;
}

static bny_attention_sums *sums_at(const bny_job *job, group *g, int32_t level, int32_t index) {
  if (level == 0) return g->to[index];
  return (bny_attention_sums *)(void *)((char *)g + bny_job_aligned(sizeof *g) +
                                        (size_t)(level * job->many + index) * job->sums_bytes);
}

static void run_segment(const bny_job *job, group *g, int32_t sequence, int32_t segment, int32_t level) {
  const bny_attention_task *tasks[BNY_ATTENTION_MANY];
  bny_attention_sums *sums[BNY_ATTENTION_MANY];
  bny_key_run run = bny_job_segment_at(job, sequence, segment);
  for (int32_t i = 0; i < g->count; i++) {
    bny_job_set_part(job, &g->rows[i], run.part);
    tasks[i] = &g->rows[i].task;
    sums[i] = sums_at(job, g, level, i);
  }
  job->attention->run_many(tasks, g->count, run.first, run.end, sums, (char *)g + job->room_bytes - kernel_bytes(job));
  for (int32_t i = 0; i < g->count; i++) bny_job_leave_out_nan(job, tasks[i], run.first, run.end, sums[i]);
}

static void sum_segments(const bny_job *job, group *g, int32_t sequence, int32_t first, int32_t count, int32_t level) {
  if (count == 1) {
    run_segment(job, g, sequence, first, level);
    return;
  }
  int32_t half = bny_job_left_half(count);
  sum_segments(job, g, sequence, first, half, level);
  sum_segments(job, g, sequence, first + half, count - half, level + 1);
  for (int32_t i = 0; i < g->count; i++)
    bny_attention_merge(&g->rows[i].task, sums_at(job, g, level, i), sums_at(job, g, level + 1, i));
}

void bny_job_run_group(bny_job *job, const bny_group_part *part, void *room) {
  group *g = room;
  int32_t width = width_of(job, part->sequence), chunk = part->number * width;
  int32_t left = bny_job_chunks(job, part->sequence) - chunk;
  g->count = left < width ? left : width;
  for (int32_t i = 0; i < g->count; i++) {
    bny_job_set_rows(job, &(bny_row_block){part->sequence, part->kv_head, chunk + i}, &g->rows[i]);
    g->to[i] = (bny_attention_sums *)(void *)((char *)g + bny_job_aligned(sizeof *g) + (size_t)i * job->sums_bytes);
    if (part->left) g->to[i] = bny_job_sums(job, part->first_sums + part->index * job->many + i);
  }
  sum_segments(job, g, part->sequence, part->first, part->count, 0);
  if (part->left && atomic_fetch_sub_explicit(part->left, 1, memory_order_acq_rel) > 1) return;
  for (int32_t i = 0; i < g->count; i++) {
    if (part->left) bny_job_merge(job, &g->rows[i].task, part->first_sums + i, part->parts, job->many);
    bny_job_write(job, &g->rows[i], NULL, part->left ? bny_job_sums(job, part->first_sums + i) : g->to[i]);
  }
}
