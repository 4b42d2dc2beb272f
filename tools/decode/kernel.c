/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/decode/kernel.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tools/common/json.h"

/* ---- the loop that only reads ------------------------------------------------------------------------------------ */

typedef struct reader {
  pthread_t thread;
  pthread_barrier_t *barrier;
  const uint64_t *words;
  size_t count;
  int32_t rounds;
  uint64_t sum; /* so that the reads are not removed */
} reader;

/* Every word of every 64-byte line, in separate sums so that adding is not what takes the time. */
static __attribute__((noinline)) uint64_t read_all(const uint64_t *words, size_t count) {
  uint64_t sums[8] = {0};
  for (size_t i = 0; i + 8 <= count; i += 8)
    for (int lane = 0; lane < 8; lane++) sums[lane] += words[i + (size_t)lane];
  return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

static void *run_reader(void *argument) {
  reader *self = argument;
  for (int32_t round = 0; round < self->rounds; round++) {
    pthread_barrier_wait(self->barrier);
    self->sum += read_all(self->words, self->count);
    pthread_barrier_wait(self->barrier);
  }
  return NULL;
}

typedef struct readers {
  pthread_barrier_t barrier;
  reader *each;
  int32_t count, started;
} readers;

/* Divides the words among `count` readers. This thread is the first, and the others start here. */
static bool readers_start(readers *all, int32_t count, const void *memory, size_t bytes, int32_t rounds) {
  size_t lines = bytes / 64;
  *all = (readers){.count = count, .each = calloc((size_t)count, sizeof *all->each)};
  if (all->each == NULL || pthread_barrier_init(&all->barrier, NULL, (unsigned)count) != 0) {
    free(all->each);
    return false;
  }
  for (int32_t i = 0; i < count; i++) {
    size_t first = lines * (size_t)i / (size_t)count, end = lines * ((size_t)i + 1) / (size_t)count;
    all->each[i] = (reader){.barrier = &all->barrier,
                            .words = (const uint64_t *)memory + 8 * first,
                            .count = 8 * (end - first),
                            .rounds = rounds};
  }
  for (int32_t i = 1; i < count; i++) {
    if (pthread_create(&all->each[i].thread, NULL, run_reader, &all->each[i]) != 0) return false;
    all->started++;
  }
  return true;
}

static double readers_run_us(readers *all) {
  pthread_barrier_wait(&all->barrier);
  int64_t since = tool_now_ns();
  all->each[0].sum += read_all(all->each[0].words, all->each[0].count);
  pthread_barrier_wait(&all->barrier);
  return (double)(tool_now_ns() - since) * 1e-3;
}

static void readers_end(readers *all) {
  for (int32_t i = 1; i <= all->started; i++) pthread_join(all->each[i].thread, NULL);
  pthread_barrier_destroy(&all->barrier);
  free(all->each);
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

typedef struct kernel_result {
  int32_t threads;
  uint64_t kv_bytes;
  double attention_us, read_us; /* medians */
  double local_share;           /* of the cache's pages: those on the NUMA node of the caller; -1: not known */
} kernel_result;

static int32_t cores_of_process(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* Attention and the loop take turns, so that what else the machine does meets both. */
static bool measure(banyan_op *op, readers *reading, int32_t repeat, kernel_result *result, tool_error *error) {
  double *attention = calloc(2 * (size_t)repeat, sizeof *attention), *read = attention + repeat;
  if (attention == NULL) return tool_error_set(error, "no memory for %d times", repeat);
  banyan_status status = BANYAN_OK;
  for (int32_t round = -1; round < repeat && status == BANYAN_OK; round++) { /* the first is not counted */
    int32_t at = round < 0 ? 0 : round;
    read[at] = readers_run_us(reading);
    int64_t since = tool_now_ns();
    status = banyan_start(op);
    if (status == BANYAN_OK) status = banyan_wait(op);
    attention[at] = (double)(tool_now_ns() - since) * 1e-3;
  }
  result->attention_us = tool_percentile(attention, (size_t)repeat, 50);
  result->read_us = tool_percentile(read, (size_t)repeat, 50);
  free(attention);
  return status == BANYAN_OK || tool_error_banyan(error, status, "attention");
}

static bool measure_shard(const decode_kernel_settings *settings, const decode_problem *problem, const void *q,
                          const decode_shard *shard, banyan_comm *comm, kernel_result *result, tool_error *error) {
  size_t rows = (size_t)problem->batch * (size_t)problem->heads;
  float *out = tool_allocate(rows * ((size_t)problem->head_dim + 1) * sizeof *out);
  banyan_attention_desc desc = decode_shard_attention(problem, q, shard, problem->lengths);
  banyan_partial partial;
  banyan_op *op = NULL;
  readers reading;
  if (out == NULL) return tool_error_set(error, "no memory for %zu rows", rows);
  banyan_partial_init(&partial, out, BANYAN_F32, out + rows * (size_t)problem->head_dim, BANYAN_F32, problem->heads,
                      problem->head_dim);
  banyan_status status = banyan_attention_init(comm, &desc, &partial, &op);
  bool ok = status == BANYAN_OK || tool_error_banyan(error, status, "attention");
  if (ok && !readers_start(&reading, result->threads, shard->block, shard->bytes, settings->repeat + 1)) {
    ok = tool_error_set(error, "%d threads that read cannot be started", result->threads);
  } else if (ok) {
    ok = measure(op, &reading, settings->repeat, result, error);
    readers_end(&reading);
  }
  banyan_op_free(op);
  free(out);
  return ok;
}

/* Looks at some of the pages, evenly spread. */
static double local_share_of(const void *block, size_t bytes) {
  enum { LOOKED_AT = 1024, PAGE = 4096 };
  void *pages[LOOKED_AT];
  int nodes[LOOKED_AT];
  unsigned core, here;
  unsigned long count = bytes / PAGE < LOOKED_AT ? bytes / PAGE : LOOKED_AT, local = 0;
  for (unsigned long i = 0; i < count; i++) pages[i] = (char *)(uintptr_t)block + i * (bytes / PAGE / count) * PAGE;
  if (count == 0 || getcpu(&core, &here) != 0 || syscall(SYS_move_pages, 0, count, pages, NULL, nodes, 0) != 0)
    return -1;
  for (unsigned long i = 0; i < count; i++) local += nodes[i] == (int)here;
  return (double)local / (double)count;
}

/* A communicator of this thread alone. */
static banyan_status make_alone(const banyan_comm_config *config, banyan_comm **comm) {
  banyan_threads *group = NULL;
  banyan_bootstrap self = BANYAN_BOOTSTRAP_INIT;
  banyan_status status = banyan_threads_create(1, &group);
  if (status == BANYAN_OK) status = banyan_threads_bootstrap(group, 0, &self);
  if (status == BANYAN_OK) status = banyan_comm_create(&self, config, comm);
  banyan_threads_destroy(group);
  return status;
}

static bool run(const decode_kernel_settings *settings, const decode_problem *problem, kernel_result *result,
                tool_error *error) {
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = settings->timeout_ns, .threads = result->threads};
  banyan_comm *comm = NULL;
  decode_shard shard = {.block = NULL};
  void *q = NULL;
  banyan_status status = make_alone(&config, &comm);
  bool ok = (status == BANYAN_OK || tool_error_banyan(error, status, "communicator")) &&
            decode_shard_make(problem, 0, 1, &shard, error) && decode_shard_fill(problem, 0, 0, 1, &shard, error) &&
            decode_problem_query(problem, 0, &q, error) &&
            measure_shard(settings, problem, q, &shard, comm, result, error);
  result->kv_bytes = shard.bytes;
  result->local_share = shard.block == NULL ? -1 : local_share_of(shard.block, shard.bytes);
  free(q);
  decode_shard_free(&shard);
  banyan_comm_destroy(comm);
  return ok;
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

static double gbytes_per_s(uint64_t bytes, double us) { return us > 0 ? (double)bytes / us * 1e-3 : 0; }

static bool print_text(const decode_problem *problem, const kernel_result *result, tool_error *error) {
  double kv = gbytes_per_s(result->kv_bytes, result->attention_us),
         read = gbytes_per_s(result->kv_bytes, result->read_us);
  printf("%d sequence%s of %d keys, %d heads on %d KV heads x %d, %s, %d thread%s\n", problem->batch,
         problem->batch == 1 ? "" : "s", problem->tokens, problem->heads, problem->kv_heads, problem->head_dim,
         tool_dtype_name(problem->dtype), result->threads, result->threads == 1 ? "" : "s");
  printf("attention  %10.1f us  %7.2f GB/s of keys and values\n", result->attention_us, kv);
  printf("read loop  %10.1f us  %7.2f GB/s of the same memory, by as many threads\n", result->read_us, read);
  printf("ratio      %10.3f\n", kv / read);
  if (result->local_share >= 0)
    printf("memory     %9.0f%%  of its pages are on the NUMA node where the rank runs\n", 100 * result->local_share);
  return fflush(stdout) == 0 || tool_error_stdout(error);
}

static bool print_json(const decode_kernel_settings *settings, const decode_problem *problem,
                       const kernel_result *result, tool_error *error) {
  double kv = gbytes_per_s(result->kv_bytes, result->attention_us),
         read = gbytes_per_s(result->kv_bytes, result->read_us);
  json_t *o = json_object();
  json_object_set_new(o, "kv_gbps", tool_json_real(kv));
  json_object_set_new(o, "read_gbps", tool_json_real(read));
  json_object_set_new(o, "ratio", tool_json_real(kv / read));
  json_object_set_new(o, "attention_us", tool_json_real(result->attention_us));
  json_object_set_new(o, "read_us", tool_json_real(result->read_us));
  json_object_set_new(o, "kv_bytes", json_integer((json_int_t)result->kv_bytes));
  json_object_set_new(o, "local_pages", result->local_share < 0 ? json_null() : tool_json_real(result->local_share));
  json_object_set_new(o, "threads", json_integer(result->threads));
  json_object_set_new(o, "batch", json_integer(problem->batch));
  json_object_set_new(o, "keys", json_integer(problem->tokens));
  json_object_set_new(o, "heads", json_integer(problem->heads));
  json_object_set_new(o, "kv_heads", json_integer(problem->kv_heads));
  json_object_set_new(o, "head_dim", json_integer(problem->head_dim));
  json_object_set_new(o, "dtype", json_string(tool_dtype_name(problem->dtype)));
  json_object_set_new(o, "repeat", json_integer(settings->repeat));
  return tool_json_write(o, stdout, error);
}

bool decode_kernel_work(const decode_kernel_settings *settings, const decode_problem *problem, bool json,
                        tool_error *error) {
  kernel_result result = {.threads = settings->threads > 0 ? settings->threads : cores_of_process()};
  return run(settings, problem, &result, error) &&
         (json ? print_json(settings, problem, &result, error) : print_text(problem, &result, error));
}
