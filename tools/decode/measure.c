/* SPDX-License-Identifier: Apache-2.0
 * Times each method, and compares its results among ranks and with the reference. */
#include "tools/decode/decode.h"

#include <math.h>
#include <string.h>

enum { WARM_UP = 3 };

/* The times of one method over all layers, in us. */
typedef struct sample_set {
  double *latency, *local, *combine;
  size_t count;
} sample_set;

/* One method on one layer. */
typedef struct trial {
  const decode_task *task;
  const decode_method *method;
  tool_part part;      /* the rows of this rank */
  size_t out_elements; /* elements of task->out */
  void *state;
} trial;

static bool fail_run(const trial *t, banyan_status status, tool_error *error) {
  return tool_error_banyan(error, status, t->method->name);
}

/* Runs once into an output that is filled with NaN, so that missing writes are detected. Returns the hash of the
 * output. */
static bool run_afresh(const trial *t, uint64_t *hash, tool_error *error) {
  int64_t local_ns;
  memset(t->task->out, 0xff, t->out_elements * sizeof(float));
  banyan_status status = t->method->run(t->state, &local_ns);
  if (status != BANYAN_OK) return fail_run(t, status, error);
  *hash = bny_hash_add_bytes(0, t->task->out, t->out_elements * sizeof(float));
  return true;
}

/* Worst row of this rank: the largest |out - reference| of an element, and the largest |out - reference|_2 /
 * |reference|_2. */
/* *beyond is the largest excess of a row's relative error over its certified error. */
static void measure_errors(const trial *t, const double *reference, const float *certified, double *max_abs,
                           double *max_rel, double *beyond) {
  const decode_problem *problem = t->task->problem;
  size_t dim = (size_t)problem->head_dim;
  *max_abs = *max_rel = *beyond = 0;
  for (int32_t row = 0; row < t->part.tokens * t->part.heads; row++) {
    int32_t token = t->part.token0 + row / t->part.heads, head = t->part.head0 + row % t->part.heads;
    const double *want = reference + ((size_t)token * (size_t)problem->heads + (size_t)head) * dim;
    double length = 0, absolute = 0, relative = 0;
    decode_row_error(t->task->out + (size_t)row * dim, want, (int32_t)dim, &absolute, &relative);
    for (size_t i = 0; certified != NULL && i < dim; i++) length += want[i] * want[i];
    *max_abs = fmax(*max_abs, absolute);
    *max_rel = fmax(*max_rel, relative);
    *beyond = fmax(*beyond, certified == NULL ? relative : relative - (double)certified[row] / sqrt(length));
  }
}

static bool take_times(const trial *t, int32_t repeat, sample_set *samples, tool_error *error) {
  const tool_world *world = t->task->world;
  double *times = tool_new(2 * (size_t)repeat, sizeof *times); /* latencies, then local attention */
  bool ok = true;
  tool_progress progress = {.start_ns = 0};
  for (int32_t i = -WARM_UP; ok && i < repeat; i++) {
    int64_t local_ns = 0;
    banyan_status status = banyan_barrier(world->comm);
    int64_t start = tool_now_ns();
    if (status == BANYAN_OK) status = t->method->run(t->state, &local_ns);
    int64_t latency_ns = tool_now_ns() - start;
    ok = status == BANYAN_OK || fail_run(t, status, error);
    if (i >= 0) {
      times[i] = (double)latency_ns / 1e3;
      times[repeat + i] = (double)local_ns / 1e3;
    }
    tool_world_progress(world, &progress, t->method->name, i + 1 + WARM_UP, repeat + WARM_UP);
  }
  ok = ok && tool_world_max(world, times, 2 * repeat, error);
  for (int32_t i = 0; ok && i < repeat; i++) {
    samples->latency[samples->count] = times[i];
    samples->local[samples->count] = times[repeat + i];
    samples->combine[samples->count++] = times[i] - times[repeat + i];
  }
  return ok;
}

/* Compares the results of all ranks that have rows, bit for bit. */
static bool compare_ranks(const trial *t, uint64_t hash, bool *equal, tool_error *error) {
  const tool_world *world = t->task->world;
  uint64_t *all = tool_new((size_t)world->nranks, sizeof *all);
  bool ok = tool_world_gather(world, &hash, sizeof hash, all, error);
  for (int32_t r = 1; ok && r < world->nranks; r++) *equal = *equal && all[r] == all[0];
  return ok;
}

static bool do_trial(const trial *t, const double *reference, int32_t repeat, sample_set *samples,
                     decode_result *result, tool_error *error) {
  uint64_t first = 0, second = 0, last;
  double worst[9] = {0}; /* absolute and relative error, runs that differ, bytes sent, extra bytes, of the arena, pages
                         * read, certified error, error beyond that */
  decode_facts facts;
  if (!run_afresh(t, &first, error)) return false;
  t->method->query(t->state, &facts);
  measure_errors(t, reference, facts.errors, &worst[0], &worst[1], &worst[8]);
  if (!run_afresh(t, &second, error) || !take_times(t, repeat, samples, error)) return false;
  last = bny_hash_add_bytes(0, t->task->out, t->out_elements * sizeof(float));
  worst[2] = first != second || first != last;
  t->method->query(t->state, &facts);
  worst[3] = (double)facts.bytes_sent;
  worst[4] = (double)facts.extra_bytes;
  worst[5] = (double)facts.arena_bytes;
  worst[6] = facts.pages_read;
  worst[7] = facts.certified;
  if (!tool_world_max(t->task->world, worst, 9, error) ||
      (result->ranks_comparable && !compare_ranks(t, first, &result->ranks_equal, error))) {
    return false;
  }
  result->max_abs_error = fmax(result->max_abs_error, worst[0]);
  result->max_rel_error = fmax(result->max_rel_error, worst[1]);
  result->runs_equal = result->runs_equal && worst[2] == 0;
  result->pages_read = fmax(result->pages_read, worst[6]);
  result->certified = fmax(result->certified, worst[7]);
  result->beyond = fmax(result->beyond, worst[8]);
  facts.bytes_sent = (uint64_t)worst[3];
  facts.extra_bytes = (uint64_t)worst[4];
  facts.arena_bytes = (uint64_t)worst[5];
  result->facts = facts;
  return true;
}

static bool try_method(const decode_task *task, const double *reference, int32_t repeat, sample_set *samples,
                       decode_result *result, tool_error *error) {
  const decode_problem *problem = task->problem;
  trial t = {.task = task, .method = result->method};
  banyan_combine_desc delivered = task->settings->combine;
  delivered.scatter = result->scatter;
  t.part = tool_part_of_rank(&delivered, task->world->rank, task->world->nranks);
  t.out_elements = (size_t)t.part.tokens * (size_t)t.part.heads * (size_t)problem->head_dim;
  banyan_status status = t.method->create(task, &t.state);
  bool ok = status == BANYAN_OK || fail_run(&t, status, error);
  ok = tool_world_agree(task->world, ok, error) && do_trial(&t, reference, repeat, samples, result, error);
  if (t.state != NULL) t.method->destroy(t.state);
  return ok;
}

static void begin_result(const decode_settings *settings, const decode_method *method, decode_result *result) {
  *result = (decode_result){.method = method, .ranks_equal = true, .runs_equal = true};
  result->scatter = method->scatters ? settings->combine.scatter : BANYAN_SCATTER_NONE;
  result->ranks_comparable = result->scatter == BANYAN_SCATTER_NONE;
}

static void finish_result(const decode_settings *settings, decode_result *result, sample_set *samples) {
  result->latency_p50_us = tool_percentile(samples->latency, samples->count, 50);
  result->latency_p99_us = tool_percentile(samples->latency, samples->count, 99);
  result->local_p50_us = tool_percentile(samples->local, samples->count, 50);
  result->combine_p50_us = tool_percentile(samples->combine, samples->count, 50);
  banyan_dtype wire = result->method->uses_wire ? settings->combine.wire : BANYAN_F32;
  result->rel_error_bound = tool_error_bound(wire, result->facts.roundings);
  bool equal = result->runs_equal && (result->ranks_equal || !result->method->same_bits);
  result->verified = equal && result->beyond <= result->rel_error_bound;
}

/* Makes the shard and the query of a layer, and measures all methods. `task` has world, problem, settings and
 * lengths. */
static bool measure_layer(decode_task *task, int32_t layer, decode_shard *shard, int count, int32_t repeat,
                          sample_set *samples, decode_result *results, tool_error *error) {
  const decode_problem *problem = task->problem;
  const tool_world *world = task->world;
  size_t elements = (size_t)problem->batch * (size_t)problem->heads * (size_t)problem->head_dim;
  void *q = NULL;
  double *reference = NULL;
  size_t mark = tool_mark();
  float *out = tool_take(elements * sizeof *out);
  bool ok = decode_problem_query(problem, layer, &q, error) &&
            decode_shard_fill(problem, layer, world->rank, world->nranks, shard, error);
  tool_error_usage(error, ok || problem->file == NULL);
  ok = tool_world_agree(world, ok, error) && decode_reference_make(world, problem, layer, &reference, error);
  task->q = q;
  task->shard = shard;
  task->out = out;
  for (int i = 0; ok && i < count; i++) ok = try_method(task, reference, repeat, &samples[i], &results[i], error);
  tool_release(mark);
  return ok;
}

bool decode_measure(const tool_world *world, const decode_problem *problem, const decode_settings *settings,
                    const decode_method *const *methods, int count, int32_t repeat, decode_result *results,
                    tool_error *error) {
  decode_shard shard = {.block = NULL};
  sample_set *samples = tool_new((size_t)count, sizeof *samples);
  int32_t *lengths = tool_new((size_t)problem->batch, sizeof *lengths);
  size_t capacity = (size_t)problem->layers * (size_t)repeat;
  for (int i = 0; i < count; i++) {
    double *block = tool_new(3 * capacity, sizeof *block);
    samples[i] = (sample_set){.latency = block, .local = block + capacity, .combine = block + 2 * capacity};
  }
  bool ok = tool_world_agree(world, decode_shard_make(problem, world->rank, world->nranks, &shard, error), error);
  for (int i = 0; i < count; i++) begin_result(settings, methods[i], &results[i]);
  if (ok) {
    decode_problem_shard_lengths(problem, world->rank, world->nranks, lengths);
    decode_task task = {.world = world, .problem = problem, .settings = settings, .lengths = lengths};
    for (int32_t layer = 0; ok && layer < problem->layers; layer++)
      ok = measure_layer(&task, layer, &shard, count, repeat, samples, results, error);
  }
  for (int i = 0; ok && i < count; i++) finish_result(settings, &results[i], &samples[i]);
  return ok;
}
