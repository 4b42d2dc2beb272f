/* SPDX-License-Identifier: Apache-2.0
 * Computes local attention. A row is one head of a query token. The keys of each sequence are cut into segments, and
 * the sums of segments are merged in a balanced tree. Both depend only on the sequence's length, so the bits depend
 * neither on the batch nor on the threads.
 *
 * A row block is a set of rows of one KV head and one sequence that read the keys together: first the heads of a query
 * token, then those of the next. */
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "attention/job.h"
#include "exact.h"
#include "prune/block.h"

static const double log2_e = 1.4426950408889634074;

enum {
  ROWS_MAX = BNY_ATTENTION_HEADS_MAX,
  MANY_SEGMENTS = 8,
  MANY_SEGMENT_KEYS = 2048, /* at least, because queries are packed for each segment */
  EXACT_ROW_BYTES_MAX = sizeof(bny_exact_row) + 17 * BNY_ATTENTION_VALUE_DIM_MAX
};
_Static_assert(BNY_ATTENTION_BLOCK % BNY_ATTENTION_EXACT_KEYS == 0, "segments begin where blocks do");

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

size_t bny_job_sums_bytes(int32_t value_dim, bool is_exact) {
  size_t values = (size_t)(ROWS_MAX * bny_attention_padded(value_dim)) * sizeof(double);
  return bny_job_aligned(is_exact ? ROWS_MAX * bny_wire_row_bytes(BNY_WIRE_EXACT, value_dim)
                                  : offsetof(bny_attention_sums, n) + values);
}

void bny_job_set_up(bny_job *job) {
  const bny_attention_desc *desc = job->desc;
  job->is_exact = job->out->values_dtype == BNY_EXACT_ROWS;
  job->has_many = job->attention->run_many && !job->is_exact && !desc->prunes;
  job->row_bytes = bny_wire_row_bytes(BNY_WIRE_EXACT, job->desc->value_dim);
  job->sums_bytes = bny_job_sums_bytes(job->desc->value_dim, job->is_exact);
  job->scale_log2 = desc->scale * log2_e;
  job->bounds = bny_attention_bounds(desc);
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

bool bny_job_is_many(const bny_job *job, int32_t sequence) {
  return job->has_many && bny_attention_is_many(bny_attention_queries(job->desc, sequence).count, job->desc->group);
}

/* Returns how many keys a segment of such a sequence has at least, if there may be `most` segments. */
static int32_t many_segment(int32_t keys, int32_t most) {
  int32_t each = bny_job_divide_up(keys, most < MANY_SEGMENTS ? most : MANY_SEGMENTS);
  return each < MANY_SEGMENT_KEYS ? MANY_SEGMENT_KEYS : each;
}

/* Returns how many keys a segment of a sequence has: whole blocks. A segment belongs to one part of the keys, so
 * several parts have up to one more segment each. */
int32_t bny_job_segment_keys(const bny_job *job, int32_t sequence) {
  int32_t keys = 0, parts = job->desc->memories;
  for (int32_t i = 0; i < parts; i++) keys += bny_attention_keys(bny_attention_part(job->desc, i), sequence);
  int32_t most = BNY_JOB_SEGMENTS_MAX - (parts > 1 ? parts : 0), each = bny_job_divide_up(keys, most);
  if (bny_job_is_many(job, sequence)) each = keys > 0 ? many_segment(keys, most) : 0;
  return bny_job_divide_up(each, BNY_ATTENTION_BLOCK) * BNY_ATTENTION_BLOCK;
}

static int32_t segments_of_part(const bny_job *job, int32_t sequence, int32_t part, int32_t keys) {
  const banyan_kv_part *kv = bny_attention_part(job->desc, part);
  return keys == 0 ? 0 : bny_job_divide_up(bny_attention_keys(kv, sequence), keys);
}

int32_t bny_job_segments(const bny_job *job, int32_t sequence) {
  int32_t keys = bny_job_segment_keys(job, sequence), count = 0;
  for (int32_t i = 0; i < job->desc->memories; i++) count += segments_of_part(job, sequence, i, keys);
  return count > 0 ? count : 1;
}

bny_key_run bny_job_segment_at(const bny_job *job, int32_t sequence, int32_t index) {
  int32_t keys = bny_job_segment_keys(job, sequence);
  for (int32_t i = 0; i < job->desc->memories; i++) {
    int32_t count = segments_of_part(job, sequence, i, keys);
    if (index < count) {
      int32_t begin = index * keys, all = bny_attention_keys(bny_attention_part(job->desc, i), sequence);
      return (bny_key_run){i, begin, all - begin < keys ? all : begin + keys};
    }
    index -= count;
  }
  return (bny_key_run){0, 0, 0};
}

/* ---- one row block ----------------------------------------------------------------------------------------------- */

int32_t bny_job_chunks(const bny_job *job, int32_t sequence) {
  int64_t rows = (int64_t)bny_attention_queries(job->desc, sequence).count * job->desc->group;
  return (int32_t)((rows + ROWS_MAX - 1) / ROWS_MAX);
}

/* The query token and head of row `index` of a row block. */
static int32_t token_of(const bny_job *job, const bny_row_task *rows, int32_t index) {
  return bny_attention_queries(job->desc, rows->block.sequence).first + (rows->first + index) / job->desc->group;
}

static int32_t head_of(const bny_job *job, const bny_row_task *rows, int32_t index) {
  return rows->block.kv_head * job->desc->group + (rows->first + index) % job->desc->group;
}

int64_t bny_job_row(const bny_job *job, const bny_row_task *rows, int32_t index) {
  return (int64_t)token_of(job, rows, index) * job->desc->heads + head_of(job, rows, index);
}

void bny_job_set_rows(const bny_job *job, const bny_row_block *block, bny_row_task *rows) {
  const bny_attention_desc *desc = job->desc;
  int32_t all = bny_attention_queries(desc, block->sequence).count * job->desc->group;
  rows->block = *block;
  rows->part = -1;
  rows->first = block->chunk * ROWS_MAX;
  rows->task = (bny_attention_task){
      .heads = smaller(all - rows->first, ROWS_MAX),
      .group = job->desc->group,
      .head_dim = desc->head_dim,
      .value_dim = job->desc->value_dim,
      .scale_log2 = job->scale_log2,
      .soft_cap = (float)fmin((double)desc->soft_cap * log2_e, (double)FLT_MAX),
      .q_dtype = desc->q_dtype,
      .rope_dim = desc->rope.dim,
  };
  for (int32_t i = 0; i < rows->task.heads; i++) {
    int64_t token = token_of(job, rows, i), head = head_of(job, rows, i);
    rows->task.q[i] =
        bny_attention_moved(desc->q, token * desc->q_batch_stride + head * desc->q_head_stride, desc->q_dtype);
    rows->task.q_rope[i] = bny_attention_moved(
        desc->rope.q, token * desc->rope.batch_stride + head * desc->rope.head_stride, desc->q_dtype);
    if (!desc->queries.query_start) continue;
    bool same_token = i > 0 && token_of(job, rows, i - 1) == token;
    rows->sights[i] = same_token ? rows->sights[i - 1] : bny_attention_sight_of(desc, block->sequence, (int32_t)token);
  }
}

/* Sets which keys of the part the rows see. The part has the keys of the shard from `first` on. */
static void set_sights(const bny_job *job, bny_row_task *rows, int32_t first) {
  const uint8_t *mask = bny_attention_mask(job->desc, rows->block.sequence);
  rows->task.key_mask = mask ? mask + first : NULL;
  if (!job->desc->queries.query_start) return;
  rows->task.sights = job->desc->parts ? rows->part_sights : rows->sights;
  for (int32_t i = 0; job->desc->parts && i < rows->task.heads; i++)
    rows->part_sights[i] = bny_attention_part_sight(rows->sights[i], first, rows->task.keys);
}

void bny_job_set_part(const bny_job *job, bny_row_task *rows, int32_t part) {
  const banyan_kv_part *kv = bny_attention_part(job->desc, part);
  bny_attention_task *task = &rows->task;
  int32_t b = rows->block.sequence, kv_head = rows->block.kv_head, first = 0;
  bool by_token = kv->scales.token_stride != 0;
  int64_t k_first = kv_head * kv->k_head_stride, v_first = kv_head * kv->v_head_stride;
  int64_t scale_first = kv_head * kv->scales.head_stride;
  if (rows->part == part) return;
  rows->part = part;
  task->keys = bny_attention_keys(kv, b);
  task->k_scale = kv->scales.k && !by_token ? (double)kv->scales.k[scale_first] : 1;
  task->v_scale = kv->scales.v && !by_token ? (double)kv->scales.v[scale_first] : 1;
  task->scale_token_stride = kv->scales.token_stride;
  task->scale_page_stride = kv->scales.batch_stride;
  task->kv_dtype = kv->dtype;
  task->kv_rows = kv->rows;
  task->k_token_stride = kv->k_token_stride;
  task->v_token_stride = kv->v_token_stride;
  task->pages = bny_attention_pages(kv, b);
  task->page_keys = task->pages ? kv->pages.keys : 0;
  task->k_page_stride = task->pages ? kv->k_batch_stride : 0;
  task->v_page_stride = task->pages ? kv->v_batch_stride : 0;
  if (!task->pages) {
    k_first += b * kv->k_batch_stride;
    v_first += b * kv->v_batch_stride;
    scale_first += b * kv->scales.batch_stride;
  }
  task->k_scales = by_token && kv->scales.k ? kv->scales.k + scale_first : NULL;
  task->v_scales = by_token && kv->scales.v ? kv->scales.v + scale_first : NULL;
  task->k = bny_attention_moved(kv->k, k_first, kv->dtype);
  task->v = bny_attention_moved(kv->v, v_first, kv->dtype);
  for (int32_t i = 0; i < part; i++) first += bny_attention_keys(&job->desc->parts[i], b);
  set_sights(job, rows, first);
}

/* Such a row has a NaN logit, or one that is too large. */
static bool is_nan_row(const bny_attention_sums *sums, int32_t row) {
  return isnan(sums->d[row]) || sums->m[row] == INFINITY;
}

/* With a NaN in the query all logits are NaN. */
static bool has_nan_query(const bny_attention_task *task, int32_t row) {
  float q[BNY_ATTENTION_HEAD_DIM_MAX];
  bool found = false;
  bny_bounds_read(task->q[row], task->q_dtype, task->head_dim - task->rope_dim, 1, q);
  bny_bounds_read(task->q_rope[row], task->q_dtype, task->rope_dim, 1, q + task->head_dim - task->rope_dim);
  for (int32_t i = 0; i < task->head_dim; i++) found = found || isnan(q[i]);
  return found;
}

/* Sums the keys of rows that have NaN logits again, one by one, without the keys of those logits. */
static __attribute__((noinline)) void leave_out_nan(const bny_attention_kernels *kernels,
                                                    const bny_attention_task *task, int32_t first, int32_t last,
                                                    bny_attention_sums *sums) {
  bny_attention_sums one;
  bool again[ROWS_MAX], any = false;
  int32_t stride = bny_attention_padded(task->value_dim);
  for (int32_t h = 0; h < task->heads; h++) {
    bool is_nan = is_nan_row(sums, h);
    again[h] = is_nan && !has_nan_query(task, h);
    any = any || again[h];
    if (!is_nan) continue;
    sums->m[h] = -INFINITY, sums->d[h] = 0;
    memset(sums->n + h * stride, 0, (size_t)stride * sizeof *sums->n);
  }
  for (int32_t key = first; any && key < last; key++) {
    kernels->run(task, key, key + 1, &one);
    for (int32_t h = 0; h < task->heads; h++)
      if (again[h] && !is_nan_row(&one, h)) bny_attention_merge_row(task, h, sums, &one);
  }
}

void bny_job_leave_out_nan(const bny_job *job, const bny_attention_task *task, int32_t first, int32_t last,
                           bny_attention_sums *sums) {
  bool any = false;
  for (int32_t h = 0; job->desc->empty == BANYAN_EMPTY_NAN && h < task->heads; h++) any = any || is_nan_row(sums, h);
  if (any) leave_out_nan(job->attention, task, first, last, sums);
}

void bny_job_attend(const bny_job *job, const bny_attention_task *task, int32_t first, int32_t last,
                    bny_attention_sums *sums) {
  job->attention->run(task, first, last, sums);
  bny_job_leave_out_nan(job, task, first, last, sums);
}

static void run_keys(const bny_job *job, bny_row_task *rows, const bny_key_run *run, bny_attention_sums *sums) {
  bny_job_set_part(job, rows, run->part);
  bny_job_attend(job, &rows->task, run->first, run->end, sums);
}

void bny_job_sum(const bny_job *job, bny_row_task *rows, int32_t first, int32_t count, uint64_t skipped,
                 bny_attention_sums *sums) {
  if (count > 1) {
    bny_attention_sums right;
    int32_t half = bny_job_left_half(count);
    bny_job_sum(job, rows, first, half, skipped, sums);
    bny_job_sum(job, rows, first + half, count - half, skipped, &right);
    bny_attention_merge(&rows->task, sums, &right);
    return;
  }
  bny_key_run run = bny_job_segment_at(job, rows->block.sequence, first);
  if (skipped >> first & 1) run.end = run.first;
  run_keys(job, rows, &run, sums);
}

double bny_job_sink(const bny_job *job, const bny_row_task *rows, int32_t index) {
  double sink = (double)job->desc->sinks[head_of(job, rows, index)] * log2_e;
  return sink > -INFINITY ? fmax(fmin(sink, (double)FLT_MAX), -(double)FLT_MAX) : sink;
}

/* ---- the exact order --------------------------------------------------------------------------------------------- */

/* A row whose logits have a NaN has this d_hi, which no sum reaches. */
static const int64_t nan_row = INT64_MIN;

static bny_exact_row *exact_row(const bny_job *job, void *rows, int32_t index) {
  return (bny_exact_row *)(void *)((char *)rows + (size_t)index * job->row_bytes);
}

/* Adds some keys to rows. Each block of keys is one contribution to each row, and a function of its keys and the query
 * alone. Segments, parts and shards begin at block boundaries. */
void bny_job_deposit(const bny_job *job, const bny_attention_task *task, bny_attention_sums *block, void *to) {
  int32_t stride = bny_attention_padded(job->desc->value_dim);
  for (int32_t i = 0; i < task->heads; i++) {
    bny_exact_row *row = exact_row(job, to, i);
    if (is_nan_row(block, i) || row->d_hi == nan_row)
      row->d_hi = nan_row;
    else if (block->d[i] > 0)
      job->kernels->exact_deposit(row, block->m[i], block->d[i], block->n + i * stride, job->desc->value_dim);
  }
}

static void add_keys_exact(const bny_job *job, bny_row_task *rows, const bny_key_run *run, void *to) {
  bny_attention_sums sums;
  for (int64_t begin = run->first; begin < run->end; begin += BNY_ATTENTION_EXACT_KEYS) {
    int64_t end = run->end - begin < BNY_ATTENTION_EXACT_KEYS ? run->end : begin + BNY_ATTENTION_EXACT_KEYS;
    run_keys(job, rows, &(bny_key_run){run->part, (int32_t)begin, (int32_t)end}, &sums);
    bny_job_deposit(job, &rows->task, &sums, to);
  }
}

void bny_job_clear(const bny_job *job, const bny_attention_task *task, void *sums) {
  if (!job->is_exact) job->attention->run(task, 0, 0, sums);
  for (int32_t i = 0; job->is_exact && i < task->heads; i++)
    job->kernels->exact_clear(exact_row(job, sums, i), job->row_bytes);
}

static void sum_exact(const bny_job *job, bny_row_task *rows, int32_t first, int32_t count, void *to) {
  bny_job_clear(job, &rows->task, to);
  for (int32_t i = first; i < first + count; i++) {
    bny_key_run run = bny_job_segment_at(job, rows->block.sequence, i);
    add_keys_exact(job, rows, &run, to);
  }
}

static void add_exact(const bny_job *job, int32_t heads, void *rows, void *others) {
  for (int32_t i = 0; i < heads; i++) {
    bny_exact_row *row = exact_row(job, rows, i), *other = exact_row(job, others, i);
    if (row->d_hi == nan_row || other->d_hi == nan_row)
      row->d_hi = nan_row;
    else
      job->kernels->exact_add(row, other, job->desc->value_dim);
  }
}

/* Passes a row to the combine. */
static void put_exact(const bny_job *job, int32_t token, int32_t head, const bny_exact_row *row) {
  int64_t at = token * job->out->stats_token_stride + head;
  bool is_empty = row->d_hi == 0 && row->d_lo == 0;
  memcpy((char *)job->out->values + (size_t)at * job->row_bytes, row, job->row_bytes);
  ((float *)job->out->lse)[at] = is_empty ? -INFINITY : row->d_hi == nan_row ? NAN : 0;
  ((float *)job->out->sum)[at] = is_empty ? 0 : 1;
}

/* Writes the bound of the pages that a row left out. */
static void note_row(const bny_job *job, int64_t row, const bny_pruned *pruned, int32_t index, float m, float d,
                     const float *n) {
  const banyan_prune *prune = &job->desc->prune;
  if (job->certificate)
    bny_prune_certify(pruned, index, m, d, n, job->desc->value_dim, job->certificate, row);
  else if (prune->error)
    prune->error[row] = (float)bny_prune_error(pruned, index, m, d, n, job->desc->value_dim);
}

static void note_exact_row(const bny_job *job, int64_t row, const bny_pruned *pruned, int32_t index,
                           bny_exact_row *of) {
  float m = 0, d = of->d_hi || of->d_lo ? 1 : 0, n[BNY_ATTENTION_VALUE_DIM_MAX];
  banyan_partial to;
  banyan_partial_init(&to, n, BANYAN_F32, &m, BANYAN_F32, 1, job->desc->value_dim);
  to.values_kind = BANYAN_VALUES_NUMERATOR, to.stats_kind = BANYAN_STATS_MAX_SUM, to.base = BANYAN_BASE_2;
  float sum = 0;
  to.sum = &sum;
  bny_box box = {1, 1, job->desc->value_dim};
  bny_wire_view view = {.m = &(float){0}, .d = &d, .n = (char *)of, .token_stride = 1};
  job->kernels->merge_finish(&box, BNY_WIRE_EXACT, 1, &view, false, &to, 0, 0);
  note_row(job, row, pruned, index, m, sum, n);
}

/* Passes the rows, with their sinks, to the combine. `pruned` may be NULL. */
static void write_exact(const bny_job *job, const bny_row_task *task, const bny_pruned *pruned, void *rows) {
  double zeros[BNY_ATTENTION_VALUE_DIM_MAX] = {0};
  for (int32_t i = 0; i < task->task.heads; i++) {
    bny_exact_row *row = exact_row(job, rows, i);
    int32_t token = token_of(job, task, i), head = head_of(job, task, i);
    double sink = job->desc->sinks ? bny_job_sink(job, task, i) : -INFINITY;
    if (row->d_hi != nan_row && sink > -INFINITY)
      job->kernels->exact_deposit(row, ceil(sink), exp2(sink - ceil(sink)), zeros, job->desc->value_dim);
    if (pruned) note_exact_row(job, bny_job_row(job, task, i), pruned, i, row);
    put_exact(job, token, head, row);
  }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Counts the sink of each row: a logit without a value. */
static void add_sinks(const bny_job *job, const bny_row_task *rows, bny_attention_sums *sums) {
  int32_t stride = bny_attention_padded(job->desc->value_dim);
  for (int32_t i = 0; i < rows->task.heads; i++) {
    double sink = bny_job_sink(job, rows, i);
    if (sink > sums->m[i]) {
      double top = ceil(sink), factor = bny_attention_rescale(sums->m[i], top);
      for (int32_t j = 0; j < stride; j++) sums->n[i * stride + j] *= factor;
      sums->d[i] *= factor;
      sums->m[i] = top;
    }
    if (sink > -INFINITY) sums->d[i] += exp2(sink - sums->m[i]);
  }
}

void bny_job_write(bny_job *job, const bny_row_task *rows, const bny_pruned *pruned, void *of) {
  if (job->is_exact) {
    write_exact(job, rows, pruned, of);
    return;
  }
  bny_attention_sums *sums = of;
  const bny_attention_task *task = &rows->task;
  float m[BNY_ATTENTION_HEADS_MAX], d[BNY_ATTENTION_HEADS_MAX], n[BNY_ATTENTION_VALUE_FLOATS];
  if (job->desc->sinks) add_sinks(job, rows, sums);
  bny_attention_finish(task, sums, m, d, n);
  for (int32_t i = 0; pruned && i < task->heads; i++)
    note_row(job, bny_job_row(job, rows, i), pruned, i, m[i], d[i], n + (int64_t)i * job->desc->value_dim);
  for (int32_t i = 0, count; i < task->heads; i += count) {
    int32_t token = token_of(job, rows, i), head = head_of(job, rows, i);
    count = smaller(task->heads - i, (rows->block.kv_head + 1) * job->desc->group - head);
    bny_box box = {1, count, job->desc->value_dim};
    bny_wire_view view = {.m = m + i, .d = d + i, .n = n + (int64_t)i * job->desc->value_dim, .token_stride = count};
    int64_t lost = job->kernels->merge_finish(&box, BNY_WIRE_F32, 1, &view, false, job->out, token, head);
    if (lost < 0) continue;
    int64_t row = (int64_t)token * job->desc->heads + head + lost;
    int64_t known = atomic_load_explicit(&job->lost, memory_order_relaxed);
    while ((known < 0 || row < known) && !atomic_compare_exchange_weak(&job->lost, &known, row)) continue;
  }
}

static const bny_pruned none_left_out = {.mass = {-INFINITY}, .moment = {-INFINITY}};

/* Tokens of no sequence become rows without keys. */
static void write_padding(const bny_job *job, int32_t first, int32_t end) {
  _Alignas(LINE_BYTES) char exact[EXACT_ROW_BYTES_MAX];
  float m = -INFINITY, d = 0, n[BNY_ATTENTION_VALUE_DIM_MAX] = {0};
  bny_box box = {1, 1, job->desc->value_dim};
  bny_wire_view view = {.m = &m, .d = &d, .n = n, .token_stride = 1};
  if (job->is_exact) job->kernels->exact_clear(exact, job->row_bytes);
  for (int32_t token = first; token < end; token++)
    for (int32_t head = 0; head < job->desc->heads; head++) {
      int64_t row = (int64_t)token * job->desc->heads + head;
      if (job->is_exact)
        put_exact(job, token, head, exact_row(job, exact, 0));
      else
        job->kernels->merge_finish(&box, BNY_WIRE_F32, 1, &view, false, job->out, token, head);
      if (job->desc->prunes) note_row(job, row, &none_left_out, 0, m, d, n);
      if (job->desc->prune.read) job->desc->prune.read[row] = 0;
    }
}

void bny_job_write_padding(const bny_job *job) {
  const bny_attention_desc *desc = job->desc;
  const int32_t *loc = desc->queries.query_start_loc;
  if (loc) write_padding(job, 0, loc[0]);
  write_padding(job, loc ? loc[desc->batch] : desc->batch, desc->tokens);
}

static __attribute__((noinline)) void run_exact_block(bny_job *job, bny_row_task *rows) {
  _Alignas(LINE_BYTES) char exact[ROWS_MAX * EXACT_ROW_BYTES_MAX];
  sum_exact(job, rows, 0, bny_job_segments(job, rows->block.sequence), exact);
  bny_job_write(job, rows, NULL, exact);
}

static __attribute__((noinline)) void run_block(bny_job *job, bny_row_task *rows) {
  bny_attention_sums sums;
  bny_job_sum(job, rows, 0, bny_job_segments(job, rows->block.sequence), 0, &sums);
  bny_job_write(job, rows, NULL, &sums);
}

/* Each order has its own stack frame, so that a call uses the stack of only one. */
void bny_job_run_block(bny_job *job, const bny_row_block *block) {
  bny_row_task rows;
  bny_job_set_rows(job, block, &rows);
  if (job->is_exact)
    run_exact_block(job, &rows);
  else
    run_block(job, &rows);
}

void bny_job_sum_part(const bny_job *job, bny_row_task *rows, int32_t first, int32_t count, void *sums) {
  if (job->is_exact)
    sum_exact(job, rows, first, count, sums);
  else
    bny_job_sum(job, rows, first, count, 0, sums);
}

void bny_job_add(const bny_job *job, const bny_attention_task *task, void *to, void *sums) {
  if (job->is_exact)
    add_exact(job, task->heads, to, sums);
  else
    bny_attention_merge(task, to, sums);
}

void bny_job_merge(const bny_job *job, const bny_attention_task *task, int32_t first, int32_t count, int32_t step) {
  if (count < 2) return;
  int32_t half = bny_job_left_half(count), right = first + half * step;
  bny_job_merge(job, task, first, half, step);
  bny_job_merge(job, task, right, count - half, step);
  bny_job_add(job, task, bny_job_sums(job, first), bny_job_sums(job, right));
}
