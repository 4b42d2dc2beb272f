/* SPDX-License-Identifier: Apache-2.0
 * Decode on a GPU: random problems, contiguous and paged, grouped heads and MLA, ragged lengths; attention to a rank's
 * own shard, and with a combine in it over those of all, both replayed from graphs, against a reference in double
 * precision. Ranks are threads or processes on one device. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/api/attention_problem.h"
#include "tests/gpu/gpu_world.h"

enum { RANKS_MAX = 8, SETS = 6, REPLAYS = 20 };

/* The error of f32 sums and two-term weights, relative to the sum, plus that of tensor cores, which truncate. Each
 * operation over 16 keys and one term loses at most 19 units of 2^-24 of a sum that grows all along. */
static double bound_of(const problem_shape *shape) { return 3e-5 + 0x1p-24 * 19 * (shape->keys_max / 16 + 1); }

typedef struct set {
  problem_shape shape;
  uint16_t *q;
  problem_shard shards[RANKS_MAX];
} set;

typedef struct task {
  int32_t nranks, nsets;
  set sets[SETS];
} task;

/* The memory of one rank's part of a set on the device. */
typedef struct memory {
  void *q, *k, *v, *lengths, *pages;
  float *out; /* values, and behind them lse */
  banyan_op *op;
  gpu_graph *graph;
} memory;

static size_t rows_of(const problem_shape *shape) { return (size_t)(shape->batch * shape->heads); }
static size_t out_floats(const problem_shape *shape) { return rows_of(shape) * (size_t)(shape->value_dim + 1); }

/* ---- problems ---------------------------------------------------------------------------------------------------- */

static void make_task(task *made, int32_t nranks, uint64_t salt) {
  world_random random = {world_seed() * 1000 + salt};
  made->nranks = nranks;
  made->nsets = gpu_quick() ? 1 : SETS;
  for (int32_t i = 0; i < made->nsets; i++) {
    set *set = &made->sets[i];
    set->shape = problem_shape_random(&random);
    set->shape.one_sign = i % 3 != 1;
    /* Long enough for several splits of a row, now and then. */
    if (!gpu_quick() && i % 2) set->shape.keys_max = 1000 + random_below(&random, 3000);
    set->q = problem_queries(&random, &set->shape);
    for (int32_t r = 0; r < nranks; r++) problem_shard_make(&random, &set->shape, set->q, &set->shards[r]);
  }
}

static void free_task(task *task) {
  for (int32_t i = 0; i < task->nsets; i++) {
    for (int32_t r = 0; r < task->nranks; r++) problem_shard_free(&task->sets[i].shards[r]);
    free(task->sets[i].q);
  }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static bool put(gpu_rank *self, const void *from, size_t bytes, void **to) {
  tool_error error = {.text = ""};
  return gpu_ok(
      self, gpu_take(self->device, bytes, to, &error) && (!from || gpu_write(self->device, *to, from, bytes, &error)),
      &error);
}

static bool take(gpu_rank *self, const set *set, memory *memory) {
  const problem_shape *shape = &set->shape;
  const problem_shard *shard = &set->shards[self->world->rank];
  size_t page_keys = (size_t)(shape->page_keys ? shape->page_keys : shape->keys_max);
  size_t row_pages = ((size_t)shape->keys_max + page_keys - 1) / page_keys, pages = (size_t)shape->batch * row_pages;
  size_t rows = pages * (size_t)shape->kv_heads * page_keys, batch = (size_t)shape->batch;
  return put(self, set->q, 2 * rows_of(shape) * (size_t)shape->head_dim, &memory->q) &&
         put(self, shard->k, 2 * rows * (size_t)shape->head_dim, &memory->k) &&
         put(self, shard->v, shard->v ? 2 * rows * (size_t)shape->value_dim : 0, &memory->v) &&
         put(self, shard->lengths, batch * sizeof(int32_t), &memory->lengths) &&
         put(self, shard->pages, pages * sizeof(int32_t), &memory->pages) &&
         put(self, NULL, out_floats(shape) * sizeof(float), (void **)(void *)&memory->out);
}

/* After a failure kernels of other ranks may still run, and the process ends soon. */
static void give(gpu_rank *self, memory *memory, bool idle) {
  banyan_op_free(memory->op);
  if (!idle) return;
  gpu_graph_free(memory->graph);
  void *const all[] = {memory->q, memory->k, memory->v, memory->lengths, memory->pages, memory->out};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) gpu_give(self->device, all[i]);
}

static banyan_attention_desc describe(const gpu_rank *self, const set *set, const memory *memory) {
  banyan_attention_desc desc = set->shards[self->world->rank].desc;
  desc.q = memory->q;
  desc.k = memory->k;
  desc.v = set->shape.latent ? memory->k : memory->v;
  desc.seq_lens = memory->lengths;
  if (desc.pages.table) desc.pages.table = memory->pages;
  desc.stream = self->stream;
  return desc;
}

/* ---- one set ----------------------------------------------------------------------------------------------------- */

static bool plan(gpu_rank *self, const set *set, bool combined, memory *memory) {
  const problem_shape *shape = &set->shape;
  banyan_attention_desc desc = describe(self, set, memory);
  banyan_partial out;
  banyan_partial_init(&out, memory->out, BANYAN_F32, memory->out + rows_of(shape) * (size_t)shape->value_dim,
                      BANYAN_F32, shape->heads, shape->value_dim);
  if (!combined)
    return world_ok(self->world, banyan_attention_init(self->world->comm, &desc, &out, &memory->op), "attention");
  banyan_combine_desc combine = {.size = sizeof combine,
                                 .tokens = shape->batch,
                                 .heads = shape->heads,
                                 .value_dim = shape->value_dim,
                                 .stream = self->stream};
  return world_ok(self->world, banyan_attention_combine_init(self->world->comm, &desc, &combine, &out, &memory->op),
                  "attention with a combine");
}

static bool run(gpu_rank *self, const set *set, memory *memory) {
  tool_error error = {.text = ""};
  bool ok = world_ok(self->world, banyan_start(memory->op), "start") && gpu_finish(self) && world_meet(self->world) &&
            gpu_ok(self, gpu_capture_begin(self->device, self->stream, &error), &error) &&
            world_ok(self->world, banyan_start(memory->op), "start in a graph") &&
            gpu_ok(self,
                   gpu_capture_end(self->device, self->stream, &memory->graph, &error) &&
                       gpu_fill(self->device, memory->out, 0xff, out_floats(&set->shape) * sizeof(float), self->stream,
                                &error),
                   &error) &&
            gpu_finish(self) && world_meet(self->world);
  for (int i = 0; ok && i < (gpu_quick() ? 2 : REPLAYS); i++)
    ok = gpu_ok(self, gpu_graph_launch(memory->graph, self->stream, &error), &error);
  return ok && gpu_finish(self) && world_ok(self->world, banyan_comm_status(self->world->comm), "status") &&
         world_meet(self->world);
}

static bool check(gpu_rank *self, const task *task, const set *set, bool combined, const memory *memory) {
  const problem_shape *shape = &set->shape;
  tool_error error = {.text = ""};
  float *got = malloc(out_floats(shape) * sizeof *got), *lse = got + rows_of(shape) * (size_t)shape->value_dim;
  bool ok = gpu_ok(self, gpu_read(self->device, got, memory->out, out_floats(shape) * sizeof *got, &error), &error);
  const problem_shard *shards = combined ? set->shards : &set->shards[self->world->rank];
  int32_t count = combined ? task->nranks : 1;
  /* All ranks have the same rows of a combine: each looks at some. */
  int32_t first = combined ? self->world->rank : 0, step = combined ? task->nranks : 1;
  for (int32_t row = first; ok && row < shape->batch * shape->heads; row += step) {
    problem_row reference;
    problem_row_make(shards, count, row / shape->heads, row % shape->heads, &reference);
    double off = problem_row_error(&reference, shape->value_dim, got + (size_t)row * (size_t)shape->value_dim, lse[row],
                                   bound_of(shape));
    ok = world_check(self->world, off <= 1,
                     "row %d: error %g of the bound; %d x %d/%d heads x %d/%d, pages of %d, %d keys", row, off,
                     shape->batch, shape->heads, shape->kv_heads, shape->head_dim, shape->value_dim, shape->page_keys,
                     shape->keys_max);
  }
  free(got);
  return ok;
}

/* Memory and operations of all sets are there before anything is launched, see gpu_take(). */
static void decode_all(gpu_rank *self, void *argument) {
  const task *task = argument;
  memory memories[SETS][2];
  memset(memories, 0, sizeof memories);
  bool ok = true;
  for (int32_t i = 0; i < task->nsets * 2 && ok; i++)
    ok = take(self, &task->sets[i / 2], &memories[i / 2][i % 2]) &&
         plan(self, &task->sets[i / 2], i % 2, &memories[i / 2][i % 2]);
  ok = ok && world_meet(self->world);
  for (int32_t i = 0; i < task->nsets * 2 && ok; i++) ok = run(self, &task->sets[i / 2], &memories[i / 2][i % 2]);
  for (int32_t i = 0; i < task->nsets * 2 && ok; i++)
    ok = check(self, task, &task->sets[i / 2], i % 2, &memories[i / 2][i % 2]);
  ok = world_meet(self->world) && ok;
  for (int32_t i = 0; i < task->nsets * 2; i++) give(self, &memories[i / 2][i % 2], ok);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void decode(const char *test, int32_t nranks, bool processes) {
  if (gpu_quick() && nranks != 2) {
    gpu_skip(test, nranks, "--quick");
    return;
  }
  task *task = calloc(1, sizeof *task);
  make_task(task, nranks, (uint64_t)(nranks + 100 * processes));
  gpu_setup setup = {
      .nranks = nranks, .processes = processes, .arena_bytes = 8 << 20, .argument = task, .body = decode_all};
  gpu_run(&setup);
  free_task(task);
  free(task);
}

START_TEST(threads_decode) { decode("threads_decode", _i, false); }
END_TEST

START_TEST(processes_decode) { decode("processes_decode", _i, true); }
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_decode");
  TCase *threads = tcase_create("threads"), *processes = tcase_create("processes");
  tcase_add_loop_test(threads, threads_decode, 1, RANKS_MAX + 1);
  tcase_add_loop_test(processes, processes_decode, 2, 5);
  gpu_add_case(suite, threads);
  gpu_add_case(suite, processes);
  return gpu_main(suite);
}
