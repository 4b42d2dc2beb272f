/* SPDX-License-Identifier: Apache-2.0
 * Attention in double precision over the complete cache. */
#include "tools/decode/decode.h"

#include <math.h>

/* Keys that are processed at a time, and multiplications between two barriers. */
enum { BLOCK_TOKENS = 256 };
static const double round_multiplications = 4e8;

/* This rank computes rows [row0, row0 + rows). out accumulates the numerators, and max and sum are per row. */
typedef struct reference_work {
  const decode_problem *problem;
  int32_t layer;
  int32_t row0, rows;
  double *out, *max, *sum;
  float *values;     /* [BLOCK_TOKENS][head_dim]: as read */
  double *q, *k, *v; /* [head_dim], [BLOCK_TOKENS][head_dim] twice */
  double *weights;   /* [BLOCK_TOKENS] */
} reference_work;

static double dot(const double *a, const double *b, int32_t count) {
  double sums[8] = {0};
  int32_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int j = 0; j < 8; j++) sums[j] += a[i + j] * b[i + j];
  for (; i < count; i++) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/* Adds `count` keys to one row: n += sum of exp(t - max) v, d += sum of exp(t - max), rescaled where max grows. */
static bool add_keys(const reference_work *work, int32_t row, int32_t count, tool_error *error) {
  const decode_problem *problem = work->problem;
  int32_t dim = problem->head_dim, index = row - work->row0;
  if (!decode_problem_read(problem, work->layer, DECODE_Q, row / problem->heads, 0, row % problem->heads, 1,
                           work->values, error)) {
    return false;
  }
  for (int32_t i = 0; i < dim; i++) work->q[i] = (double)work->values[i];
  double max = work->max[index];
  for (int32_t t = 0; t < count; t++) {
    work->weights[t] = (double)problem->scale * dot(work->q, work->k + (size_t)t * (size_t)dim, dim);
    max = work->weights[t] > max ? work->weights[t] : max;
  }
  double rescale = work->max[index] == max ? 1 : exp(work->max[index] - max);
  double *out = work->out + (size_t)index * (size_t)problem->value_dim;
  const double *values = problem->value_dim < dim ? work->k : work->v;
  for (int32_t i = 0; i < problem->value_dim; i++) out[i] *= rescale;
  double sum = work->sum[index] * rescale;
  for (int32_t t = 0; t < count; t++) {
    double weight = exp(work->weights[t] - max);
    const double *v = values + (size_t)t * (size_t)dim;
    sum += weight;
    for (int32_t i = 0; i < problem->value_dim; i++) out[i] += weight * v[i];
  }
  work->max[index] = max;
  work->sum[index] = sum;
  return true;
}

static bool read_block(const reference_work *work, decode_tensor tensor, int32_t sequence, int32_t kv_head,
                       int32_t first, int32_t count, double *target, tool_error *error) {
  if (!decode_problem_read(work->problem, work->layer, tensor, sequence, kv_head, first, count, work->values, error))
    return false;
  for (size_t i = 0; i < (size_t)count * (size_t)work->problem->head_dim; i++) target[i] = (double)work->values[i];
  return true;
}

/* Processes a block of keys of one (sequence, KV head) for its rows on this rank. */
static bool do_block(const reference_work *work, int32_t group, int32_t block, tool_error *error) {
  const decode_problem *problem = work->problem;
  int32_t sequence = group / problem->kv_heads, kv_head = group % problem->kv_heads;
  int32_t sharing = problem->heads / problem->kv_heads;
  int32_t first = block * BLOCK_TOKENS, left = problem->lengths[sequence] - first;
  int32_t count = left < BLOCK_TOKENS ? left : BLOCK_TOKENS;
  if (!read_block(work, DECODE_K, sequence, kv_head, first, count, work->k, error) ||
      (problem->value_dim == problem->head_dim &&
       !read_block(work, DECODE_V, sequence, kv_head, first, count, work->v, error))) {
    return false;
  }
  for (int32_t i = 0; i < sharing; i++) {
    int32_t row = group * sharing + i; /* sequence * heads + kv_head * sharing + i */
    if (row >= work->row0 && row < work->row0 + work->rows && !add_keys(work, row, count, error)) return false;
  }
  return true;
}

static int32_t blocks_of_group(const decode_problem *problem, int32_t group) {
  return (problem->lengths[group / problem->kv_heads] + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

/* Processes the blocks of this rank, with `rounds` barriers between them. Ranks with less work wait in barriers, each
 * far shorter than the deadline. After a failure, this rank still enters its barriers. */
static bool do_work(const tool_world *world, const reference_work *work, int64_t rounds, tool_error *error) {
  const decode_problem *problem = work->problem;
  int32_t sharing = problem->heads / problem->kv_heads;
  int32_t group0 = work->row0 / sharing,
          groups = work->rows == 0 ? 0 : (work->row0 + work->rows - 1) / sharing + 1 - group0;
  int64_t blocks = 0, done = 0, round = 0;
  tool_progress progress = {.start_ns = 0};
  for (int32_t g = 0; g < groups; g++) blocks += blocks_of_group(problem, group0 + g);
  bool ok = true;
  int32_t group = group0, block = 0;
  while (round < rounds) {
    if (done < blocks) {
      ok = ok && do_block(work, group, block, error);
      done++;
      if (++block == blocks_of_group(problem, group)) {
        group++;
        block = 0;
      }
    }
    for (; round < rounds && (done == blocks || done * rounds >= (round + 1) * blocks); round++) {
      banyan_status status = banyan_barrier(world->comm);
      if (status != BANYAN_OK) return tool_error_banyan(error, status, "computing the reference");
      tool_world_progress(world, &progress, "computing the double-precision reference", round + 1, rounds);
    }
  }
  for (int32_t r = 0; r < work->rows; r++) {
    for (int32_t i = 0; i < problem->value_dim; i++)
      work->out[(size_t)r * (size_t)problem->value_dim + (size_t)i] /= work->sum[r];
  }
  return ok;
}

static bool gather_rows(const tool_world *world, const reference_work *work, double *all, tool_error *error) {
  size_t *counts = tool_new((size_t)world->nranks, sizeof *counts);
  for (int32_t r = 0; r < world->nranks; r++) {
    int32_t first, number;
    banyan_split(work->problem->batch * work->problem->heads, world->nranks, r, &first, &number);
    counts[r] = (size_t)number * (size_t)work->problem->value_dim * sizeof *all;
  }
  banyan_status status = banyan_allgather(world->comm, work->out, all, counts);
  return status == BANYAN_OK || tool_error_banyan(error, status, "collecting the reference");
}

static int64_t rounds_of(const decode_problem *problem, int32_t nranks) {
  double keys = 0;
  for (int32_t b = 0; b < problem->batch; b++) keys += problem->lengths[b];
  return 1 + (int64_t)(keys * problem->heads * problem->head_dim * 2 / nranks / round_multiplications);
}

bool decode_reference_make(const tool_world *world, const decode_problem *problem, int32_t layer, double **rows,
                           tool_error *error) {
  size_t dim = (size_t)problem->head_dim, value_dim = (size_t)problem->value_dim;
  reference_work work = {.problem = problem, .layer = layer};
  banyan_split(problem->batch * problem->heads, world->nranks, world->rank, &work.row0, &work.rows);
  double *all = tool_take((size_t)problem->batch * (size_t)problem->heads * value_dim * sizeof *all);
  work.out = tool_take((size_t)work.rows * value_dim * sizeof *work.out);
  work.max = tool_take((size_t)work.rows * sizeof *work.max);
  work.sum = tool_take((size_t)work.rows * sizeof *work.sum);
  work.values = tool_take(BLOCK_TOKENS * dim * sizeof *work.values);
  work.q = tool_take(dim * sizeof *work.q);
  work.k = tool_take(BLOCK_TOKENS * dim * sizeof *work.k);
  work.v = tool_take(BLOCK_TOKENS * dim * sizeof *work.v);
  work.weights = tool_take(BLOCK_TOKENS * sizeof *work.weights);
  for (int32_t r = 0; r < work.rows; r++) work.max[r] = -INFINITY;
  *rows = all;
  return tool_world_agree(world, do_work(world, &work, rounds_of(problem, world->nranks), error), error) &&
         gather_rows(world, &work, all, error);
}

void decode_row_error(const float *out, const double *want, int32_t count, double *max_abs, double *max_rel) {
  double difference = 0, length = 0;
  for (int32_t i = 0; i < count; i++) {
    double delta = fabs((double)out[i] - want[i]);
    delta = isnan(delta) ? INFINITY : delta;
    difference += delta * delta;
    length += want[i] * want[i];
    *max_abs = fmax(*max_abs, delta);
  }
  *max_rel = fmax(*max_rel, difference == 0 ? 0 : sqrt(difference / length));
}
