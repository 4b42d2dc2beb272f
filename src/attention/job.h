/* SPDX-License-Identifier: Apache-2.0
 * One call of local attention, shared by its threads. */
#pragma once

#include <stdatomic.h>

#include "attention/queries.h"

/* The parts that a thread begins with. */
typedef struct bny_part_range {
  _Alignas(64) _Atomic int32_t next;
  int32_t end;
} bny_part_range;

typedef struct bny_job {
  const bny_attention_kernels *attention;
  const bny_kernels *kernels;
  const bny_attention_desc *desc;
  const banyan_partial *out;
  double scale_log2;
  int32_t threads;
  int32_t part_segments;  /* segments in a part: a power of two, BNY_JOB_SEGMENTS_MAX for whole row blocks */
  int32_t *part_first;    /* by sequence, batch + 1 of them: number of its first part */
  int32_t *block_first;   /* by sequence: number of its first row block */
  bny_part_range *ranges; /* by thread */
  _Atomic int32_t *left;  /* by row block or group: its parts that are not complete */
  bool is_exact;          /* the output has rows of the exact order */
  size_t row_bytes;       /* bytes of such a row */
  bny_bounds bounds;      /* bounds of pages, if the call prunes */
  bool has_many;          /* kernels take sequences of many queries together */
  int32_t many;           /* most row blocks of a group, in such sequences; 1 without one */
  char *rooms;            /* by thread */
  size_t room_bytes;      /* 0: no sequence has many queries */
  const bny_certificate *certificate; /* NULL: errors go to desc->prune.error */
  char *sums; /* by part and row block: a bny_attention_sums, cut off after its last row; exact order: 16 rows */
  size_t sums_bytes;
  _Atomic int64_t lost; /* the first row whose statistics could not be held; -1: none */
} bny_job;

typedef struct bny_row_block {
  int32_t sequence, kv_head, chunk;
} bny_row_block;

/* A row block as a task over one part of the keys, and the keys that its rows see. */
typedef struct bny_row_task {
  bny_attention_task task;
  bny_attention_sight sights[BNY_ATTENTION_HEADS_MAX]; /* the shard's keys that rows see */
  bny_attention_sight part_sights[BNY_ATTENTION_HEADS_MAX];
  bny_row_block block;
  int32_t first; /* row of the sequence's rows of this KV head */
  int32_t part;  /* the part that is set; -1: none */
} bny_row_task;

/* Keys [first, end) of a part. */
typedef struct bny_key_run {
  int32_t part, first, end;
} bny_key_run;

/* Returns the bytes of the sums of a row block. */
size_t bny_job_sums_bytes(int32_t value_dim, bool is_exact);

/* Sets the members that follow from the descriptor, the output and the certificate. */
void bny_job_set_up(bny_job *job);

/* Attends to all keys, and writes the rows. Fails only without memory for prompts. */
banyan_status bny_job_run(bny_job *job, bny_pool *pool);

/* Writes empty rows for the tokens before and after those of the batch. */
void bny_job_write_padding(const bny_job *job);

/* Ends a job whose rows are written. `since`: its start in the trace, or 0. */
banyan_status bny_job_end(bny_job *job, uint64_t since);

/* Weighs, reads and writes all rows of a job. pool: reserved; NULL: this caller works alone, in memory of the call. */
banyan_status bny_job_prune(bny_job *job, bny_pool *pool);

int32_t bny_job_chunks(const bny_job *job, int32_t sequence);

/* Sets the rows of a row block, and no keys. */
void bny_job_set_rows(const bny_job *job, const bny_row_block *block, bny_row_task *rows);

/* Sets the keys to those of a part, unless they are already. */
void bny_job_set_part(const bny_job *job, bny_row_task *rows, int32_t part);

/* Returns how many keys a segment of a sequence has, and how many segments there are. */
int32_t bny_job_segment_keys(const bny_job *job, int32_t sequence);
int32_t bny_job_segments(const bny_job *job, int32_t sequence);

bny_key_run bny_job_segment_at(const bny_job *job, int32_t sequence, int32_t index);

static inline int32_t bny_job_divide_up(int32_t a, int32_t b) { return a / b + (a % b != 0); }

enum { LINE_BYTES = 64, BNY_JOB_SEGMENTS_MAX = 64 /* limit for a sequence: the tree has 6 levels */ };

/* Returns the bytes of whole cache lines. */
static inline size_t bny_job_aligned(size_t bytes) { return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES; }

static inline bny_attention_sums *bny_job_sums(const bny_job *job, int32_t part) {
  return (bny_attention_sums *)(void *)(job->sums + (size_t)part * job->sums_bytes);
}

/* Returns the left half of a tree over `count` leaves: the largest power of two below. */
static inline int32_t bny_job_left_half(int32_t count) {
  int32_t half = 1;
  while (half * 2 < count) half *= 2;
  return half;
}

/* Sums the keys [first, last) of a task. With BANYAN_EMPTY_NAN keys whose logit is NaN count as absent. */
void bny_job_attend(const bny_job *job, const bny_attention_task *task, int32_t first, int32_t last,
                    bny_attention_sums *sums);

/* With BANYAN_EMPTY_NAN: sums rows that have NaN logits again, without the keys of those logits. */
void bny_job_leave_out_nan(const bny_job *job, const bny_attention_task *task, int32_t first, int32_t last,
                           bny_attention_sums *sums);

/* Sums the keys of `count` segments from `first` on, as a subtree. Segments whose bit is set in `skipped` are left
 * out. */
void bny_job_sum(const bny_job *job, bny_row_task *rows, int32_t first, int32_t count, uint64_t skipped,
                 bny_attention_sums *sums);

/* Makes sums empty; adds sums to others; and adds a block of keys to sums of the exact order. */
void bny_job_clear(const bny_job *job, const bny_attention_task *task, void *sums);
void bny_job_add(const bny_job *job, const bny_attention_task *task, void *to, void *sums);
void bny_job_deposit(const bny_job *job, const bny_attention_task *task, bny_attention_sums *block, void *to);

/* Merges the sums of `count` parts, `step` apart, into the first, as the upper levels of the tree. */
void bny_job_merge(const bny_job *job, const bny_attention_task *task, int32_t first, int32_t count, int32_t step);

/* Returns the number of a row in the output. */
int64_t bny_job_row(const bny_job *job, const bny_row_task *rows, int32_t index);

/* Returns the sink of a row as a log2 that m can hold. -inf: none. */
double bny_job_sink(const bny_job *job, const bny_row_task *rows, int32_t index);

/* Writes a row block. `pruned` is the part that was left out; NULL: the call prunes nothing. */
void bny_job_write(bny_job *job, const bny_row_task *rows, const bny_pruned *pruned, void *sums);

/* Sums `count` segments from `first` on, in either order. */
void bny_job_sum_part(const bny_job *job, bny_row_task *rows, int32_t first, int32_t count, void *sums);

/* Attends to all segments of a row block, and writes its rows. */
void bny_job_run_block(bny_job *job, const bny_row_block *block);

/* Some segments of a group: segments [first, first + count). */
typedef struct bny_group_part {
  int32_t sequence, kv_head, number; /* number: the group's */
  int32_t first, count;
  int32_t index, parts;  /* this part, and how many the group has */
  int32_t first_sums;    /* place of the sums of part 0 */
  _Atomic int32_t *left; /* parts that are not complete; NULL: there is one */
} bny_group_part;

/* Returns true if the row blocks of the sequence attend in groups. */
bool bny_job_is_many(const bny_job *job, int32_t sequence);

/* Returns how many groups of row blocks a KV head of a sequence has: row blocks, if they are not grouped. */
int32_t bny_job_groups(const bny_job *job, int32_t sequence);

/* Chooses groups for a number of threads. Returns the bytes of the room that each thread needs. */
size_t bny_job_set_many(bny_job *job, int32_t threads);

/* Sums a part of a group, in the room of this thread. Writes the rows of the group if no part is left. */
void bny_job_run_group(bny_job *job, const bny_group_part *part, void *room);
