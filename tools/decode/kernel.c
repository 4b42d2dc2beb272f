/* SPDX-License-Identifier: Apache-2.0
 * Times one rank's attention kernel, and compares it with the speed at which threads read the same memory. */
#include "tools/decode/decode.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tools/common/json.h"
#include "tools/common/launch.h"
#include "tools/common/read_all.h"

/* ---- threads that read memory at full speed, with which attention is compared ------------------------------------ */

typedef struct reader {
  pthread_t thread;
  struct readers *all;
  const uint64_t *words;
  size_t count;
  int64_t begin_ns, end_ns; /* times of the last run */
  uint64_t sum;             /* keeps the compiler from removing the reads */
} reader;

/* Each thread waits for the next run and not for other threads, so any thread that has started can be ended. */
typedef struct readers {
  pthread_mutex_t lock;
  pthread_cond_t begun, done;
  int64_t run;
  int32_t count, started, working;
  bool leaving;
  reader each[];
} readers;

/* Records begin and end per thread, because a thread that shares its core may begin long after another. */
static void read_part(reader *self) {
  self->begin_ns = tool_now_ns();
  self->sum += read_all(self->words, self->count);
  self->end_ns = tool_now_ns();
}

static void *run_reader(void *argument) {
  reader *self = argument;
  readers *all = self->all;
  pthread_mutex_lock(&all->lock);
  for (int64_t last = 0;; last = all->run) {
    while (all->run == last && !all->leaving) pthread_cond_wait(&all->begun, &all->lock);
    if (all->leaving) break;
    pthread_mutex_unlock(&all->lock);
    read_part(self);
    pthread_mutex_lock(&all->lock);
    if (--all->working == 0) pthread_cond_signal(&all->done);
  }
  pthread_mutex_unlock(&all->lock);
  return NULL;
}

static void readers_end(readers *all) {
  if (all == NULL) return;
  pthread_mutex_lock(&all->lock);
  all->leaving = true;
  pthread_cond_broadcast(&all->begun);
  pthread_mutex_unlock(&all->lock);
  for (int32_t i = 1; i <= all->started; i++) pthread_join(all->each[i].thread, NULL);
  pthread_cond_destroy(&all->done);
  pthread_cond_destroy(&all->begun);
  pthread_mutex_destroy(&all->lock);
}

/* Starts `count` - 1 threads; the caller of readers_run_us() is one more reader. Each reads a part of the memory, in
 * complete lines of 64 bytes. On failure it returns NULL and sets *error. */
static readers *readers_start(int32_t count, const void *memory, size_t bytes, tool_error *error) {
  size_t lines = bytes / 64;
  readers *all = tool_take(sizeof *all + (size_t)count * sizeof all->each[0]);
  all->count = count;
  pthread_mutex_init(&all->lock, NULL);
  pthread_cond_init(&all->begun, NULL);
  pthread_cond_init(&all->done, NULL);
  for (int32_t i = 0; i < count; i++) {
    size_t first = lines * (size_t)i / (size_t)count, end = lines * ((size_t)i + 1) / (size_t)count;
    all->each[i] = (reader){.all = all, .words = (const uint64_t *)memory + 8 * first, .count = 8 * (end - first)};
  }
  for (int32_t i = 1; i < count; i++) {
    if (pthread_create(&all->each[i].thread, NULL, run_reader, &all->each[i]) != 0) {
      tool_error_set(error, "%d threads that read cannot be started", count);
      readers_end(all);
      return NULL;
    }
    all->started++;
  }
  return all;
}

/* Lets all threads read their parts once. Returns the time from the start of the first thread to the end of the
 * last. */
static double readers_run_us(readers *all) {
  pthread_mutex_lock(&all->lock);
  all->run++;
  all->working = all->started;
  pthread_cond_broadcast(&all->begun);
  pthread_mutex_unlock(&all->lock);
  read_part(&all->each[0]);
  pthread_mutex_lock(&all->lock);
  while (all->working > 0) pthread_cond_wait(&all->done, &all->lock);
  pthread_mutex_unlock(&all->lock);
  int64_t begin = all->each[0].begin_ns, end = all->each[0].end_ns;
  for (int32_t i = 1; i < all->count; i++) {
    begin = all->each[i].begin_ns < begin ? all->each[i].begin_ns : begin;
    end = all->each[i].end_ns > end ? all->each[i].end_ns : end;
  }
  return (double)(end - begin) * 1e-3;
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

typedef struct kernel_result {
  int32_t threads;
  int64_t keys;                 /* visible keys of all sequences */
  uint64_t kv_bytes;            /* size of these keys and their values */
  uint64_t read_bytes;          /* size of the cache, where each sequence has the capacity of the longest */
  double attention_us, read_us; /* medians */
  double max_abs_error, max_rel_error;
  double local_share; /* fraction of the cache's pages on the NUMA node where all threads run; -1 unknown */
} kernel_result;

/* Times reading of the keys from memory, or from their file. A file is then dropped from memory again, as attention
 * requires. */
static bool read_keys(const decode_parts *parts, readers *all, double *us, tool_error *error) {
  if (parts != NULL)
    return decode_parts_drop(parts, error) && decode_parts_read_us(parts, us, error) && decode_parts_drop(parts, error);
  *us = readers_run_us(all);
  return true;
}

/* Attention and the read loop alternate, so that other load affects both. `parts` is NULL if all keys are in memory. */
static bool measure(banyan_op *op, const decode_parts *parts, readers *all, int32_t repeat, kernel_result *result,
                    tool_error *error) {
  double *attention = tool_new(2 * (size_t)repeat, sizeof *attention), *read = attention + repeat;
  banyan_status status = BANYAN_OK;
  bool answered = true;
  for (int32_t round = -1; round < repeat && status == BANYAN_OK && answered; round++) { /* round -1 is a warm-up */
    int32_t at = round < 0 ? 0 : round;
    answered = read_keys(parts, all, &read[at], error);
    int64_t since = tool_now_ns();
    status = banyan_start(op);
    if (status == BANYAN_OK) status = banyan_wait(op);
    attention[at] = (double)(tool_now_ns() - since) * 1e-3;
  }
  result->attention_us = tool_percentile(attention, (size_t)repeat, 50);
  result->read_us = tool_percentile(read, (size_t)repeat, 50);
  if (!answered) return false;
  return status == BANYAN_OK || tool_error_banyan(error, status, "attention");
}

/* All runs give the same bits, so it compares only the rows of the last run. */
static bool compare(const decode_problem *problem, const float *out, banyan_comm *comm, kernel_result *result,
                    tool_error *error) {
  tool_world alone = {.comm = comm, .nranks = 1, .how = "one process", .program = "banyan-decode"};
  double *want;
  if (!decode_reference_make(&alone, problem, 0, &want, error)) return false;
  size_t dim = (size_t)problem->value_dim, rows = (size_t)problem->batch * (size_t)problem->heads;
  for (size_t row = 0; row < rows; row++) {
    decode_row_error(out + row * dim, want + row * dim, problem->value_dim, &result->max_abs_error,
                     &result->max_rel_error);
  }
  return true;
}

static bool measure_shard(const decode_kernel_settings *settings, const decode_problem *problem, const void *q,
                          const decode_shard *shard, decode_parts *parts, banyan_comm *comm, kernel_result *result,
                          tool_error *error) {
  size_t rows = (size_t)problem->batch * (size_t)problem->heads, values = rows * (size_t)problem->value_dim;
  float *out = tool_take((values + rows) * sizeof *out);
  banyan_attention_desc desc = decode_shard_attention(problem, q, shard, problem->lengths);
  if (parts != NULL) decode_parts_describe(problem, parts, &desc);
  banyan_partial partial;
  banyan_op *op = NULL;
  memset(out, 0xff, values * sizeof *out); /* NaN in elements that are not written */
  banyan_partial_init(&partial, out, BANYAN_F32, out + values, BANYAN_F32, problem->heads, problem->value_dim);
  banyan_status status = banyan_attention_init(comm, &desc, &partial, &op);
  bool ok = status == BANYAN_OK || tool_error_banyan(error, status, "attention");
  if (ok) {
    readers *all = readers_start(result->threads, shard->block, shard->bytes, error);
    ok = all != NULL && measure(op, parts, all, settings->repeat, result, error);
    readers_end(all);
  }
  banyan_op_free(op);
  return ok && compare(problem, out, comm, result, error);
}

/* Samples the pages at equal distances. If the threads run on several NUMA nodes, each node has its own pages, and a
 * single fraction would be meaningless. */
static double local_share_of(const void *block, size_t bytes) {
  enum { LOOKED_AT = 1024, PAGE = 4096 };
  void *pages[LOOKED_AT];
  int nodes[LOOKED_AT];
  unsigned core, here;
  unsigned long count = bytes / PAGE < LOOKED_AT ? bytes / PAGE : LOOKED_AT, local = 0;
  for (unsigned long i = 0; i < count; i++) pages[i] = (char *)(uintptr_t)block + i * (bytes / PAGE / count) * PAGE;
  if (count == 0 || bny_launch_nodes() != 1 || getcpu(&core, &here) != 0 ||
      syscall(SYS_move_pages, 0, count, pages, NULL, nodes, 0) != 0)
    return -1;
  for (unsigned long i = 0; i < count; i++) local += nodes[i] == (int)here;
  return (double)local / (double)count;
}

static bool run(const decode_kernel_settings *settings, const decode_problem *problem, kernel_result *result,
                tool_error *error) {
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = settings->timeout_ns, .threads = result->threads};
  banyan_comm *comm = NULL;
  decode_shard shard = {.block = NULL};
  decode_parts parts = {.file = -1};
  void *q = NULL;
  banyan_status status = tool_world_alone(&config, &comm);
  bool in_parts = settings->recent > 0, ok = status == BANYAN_OK || tool_error_banyan(error, status, "communicator");
  if (ok && in_parts) {
    ok = decode_parts_make(problem, settings->recent, &parts, error);
    shard = parts.shard;
  } else if (ok) {
    ok = decode_shard_make(problem, 0, 1, &shard, error) && decode_shard_fill(problem, 0, 0, 1, &shard, error);
  }
  ok = ok && decode_problem_query(problem, 0, &q, error) &&
       measure_shard(settings, problem, q, &shard, in_parts ? &parts : NULL, comm, result, error);
  for (int32_t b = 0; b < problem->batch; b++) result->keys += problem->lengths[b];
  result->read_bytes = shard.bytes;
  result->kv_bytes = shard.bytes / ((uint64_t)problem->batch * (uint64_t)problem->tokens) * (uint64_t)result->keys;
  result->local_share = shard.block == NULL || in_parts ? -1 : local_share_of(shard.block, shard.bytes);
  decode_parts_free(&parts);
  banyan_comm_destroy(comm);
  return ok;
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

/* Returns the rate of multiplications and additions. It limits the speed where many heads share a key, as in MLA. */
static double gflops(const decode_problem *problem, const kernel_result *result) {
  double each = 2.0 * problem->heads * (problem->head_dim + problem->value_dim);
  return result->attention_us > 0 ? each * (double)result->keys / result->attention_us * 1e-3 : 0;
}

static double gbytes_per_s(uint64_t bytes, double us) { return us > 0 ? (double)bytes / us * 1e-3 : 0; }

static bool is_verified(const kernel_result *result) {
  return result->max_rel_error <= tool_error_bound(BANYAN_F32, 0);
}

static bool print_text(const decode_kernel_settings *settings, const decode_problem *problem,
                       const kernel_result *result, tool_error *error) {
  double kv = gbytes_per_s(result->kv_bytes, result->attention_us),
         read = gbytes_per_s(result->read_bytes, result->read_us);
  printf("%d sequence%s of %s%d keys, %d heads on %d KV heads x %d, %s, %d thread%s\n", problem->batch,
         problem->batch == 1 ? "" : "s", result->keys == (int64_t)problem->batch * problem->tokens ? "" : "up to ",
         problem->tokens, problem->heads, problem->kv_heads, problem->head_dim, tool_dtype_name(problem->dtype),
         result->threads, result->threads == 1 ? "" : "s");
  printf("attention  %10.1f us  %7.2f GB/s of keys and values  %.1f Gflop/s\n", result->attention_us, kv,
         gflops(problem, result));
  printf("read loop  %10.1f us  %7.2f GB/s of %s\n", result->read_us, read,
         settings->recent > 0 ? "the file of all keys, in its order" : "the same memory, by as many threads");
  printf("ratio      %10.3f\n", kv / read);
  printf("error      %10.1e  of the worst row, %s\n", result->max_rel_error,
         is_verified(result) ? "verified" : "NOT VERIFIED");
  if (result->local_share >= 0)
    printf("memory     %9.0f%%  of its pages are on the NUMA node where the threads run\n", 100 * result->local_share);
  return tool_flush(stdout) || tool_error_stdout(error);
}

static bool print_json(const decode_kernel_settings *settings, const decode_problem *problem,
                       const kernel_result *result, tool_error *error) {
  double kv = gbytes_per_s(result->kv_bytes, result->attention_us),
         read = gbytes_per_s(result->read_bytes, result->read_us);
  json_t *o = json_pack(
      "{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:b, s:o, s:i, s:i, s:i, s:I, s:i, s:i, s:i, s:i, s:s, "
      "s:i}",
      "kv_gbps", tool_json_real(kv), "read_gbps", tool_json_real(read), "ratio", tool_json_real(kv / read), "gflops",
      tool_json_real(gflops(problem, result)), "attention_us", tool_json_real(result->attention_us), "read_us",
      tool_json_real(result->read_us), "kv_bytes", (json_int_t)result->kv_bytes, "read_bytes",
      (json_int_t)result->read_bytes, "max_abs_error", tool_json_real(result->max_abs_error), "max_rel_error",
      tool_json_real(result->max_rel_error), "verified", is_verified(result), "local_pages",
      result->local_share < 0 ? json_null() : tool_json_real(result->local_share), "threads", result->threads, "batch",
      problem->batch, "tokens", problem->tokens, "keys", (json_int_t)result->keys, "heads", problem->heads, "kv_heads",
      problem->kv_heads, "head_dim", problem->head_dim, "value_dim", problem->value_dim, "dtype",
      tool_dtype_name(problem->dtype), "repeat", settings->repeat);
  return tool_json_write(o, stdout, error);
}

bool decode_kernel_work(const decode_kernel_settings *settings, const decode_problem *problem, bool json,
                        bool *verified, tool_error *error) {
  kernel_result result = {.threads = settings->threads > 0 ? settings->threads : tool_cpus()};
  if (!run(settings, problem, &result, error)) return false;
  *verified = is_verified(&result);
  return json ? print_json(settings, problem, &result, error) : print_text(settings, problem, &result, error);
}
