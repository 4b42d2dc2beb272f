/* SPDX-License-Identifier: Apache-2.0
 * Times one rank's attention kernel, and compares it with the speed at which threads read the same memory, and with a
 * loop of FMA instructions. */
#include "tools/decode/decode.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tools/common/json.h"
#include "tools/common/launch.h"
#include "tools/common/read_all.h"

/* ---- what attention is compared with ----------------------------------------------------------------------------- */

typedef struct reader {
  pthread_t thread;
  const uint64_t *words;
  size_t count;
  const atomic_bool *begun;
  int64_t begin_ns, end_ns; /* times of this thread */
  uint64_t sum;             /* keeps the compiler from removing the reads */
} reader;

/* Records begin and end per thread, because a thread that shares its core may begin long after another. */
static void *read_part(void *argument) {
  reader *self = argument;
  while (!atomic_load(self->begun)) sched_yield();
  self->begin_ns = tool_now_ns();
  self->sum += read_all(self->words, self->count);
  self->end_ns = tool_now_ns();
  return NULL;
}

/* Lets `count` threads, of which the caller is one, each read a part of the memory once, in complete lines of 64 bytes.
 * Sets *us to the time from the begin of the first thread to the end of the last. */
static bool read_memory(int32_t count, const void *memory, size_t bytes, double *us, tool_error *error) {
  size_t mark = tool_mark(), lines = bytes / 64;
  reader *all = tool_take((size_t)count * sizeof *all);
  atomic_bool begun = false;
  int32_t started = 1;
  for (int32_t i = 0; i < count; i++) {
    size_t first = lines * (size_t)i / (size_t)count, end = lines * ((size_t)i + 1) / (size_t)count;
    all[i] = (reader){.words = (const uint64_t *)memory + 8 * first, .count = 8 * (end - first), .begun = &begun};
  }
  while (started < count && pthread_create(&all[started].thread, NULL, read_part, &all[started]) == 0) started++;
  atomic_store(&begun, true);
  read_part(&all[0]);
  int64_t begin = all[0].begin_ns, end = all[0].end_ns;
  for (int32_t i = 1; i < started; i++) {
    pthread_join(all[i].thread, NULL);
    begin = all[i].begin_ns < begin ? all[i].begin_ns : begin;
    end = all[i].end_ns > end ? all[i].end_ns : end;
  }
  tool_release(mark);
  *us = (double)(end - begin) * 1e-3;
  return started == count || tool_error_set(error, "%d threads that read cannot be started", count);
}

#ifdef __x86_64__
/* A loop of FMA instructions on registers of the type, or of another instruction, which does `flops` for each float,
 * with enough chains to hide their latency. Returns Gflop/s. */
enum { FMA_CHAINS = 12, FMA_STEPS = 200000 };
#define FMA_LOOP(name, type, isa, instruction, flops)                                                             \
  static __attribute__((target(isa))) double name(void) {                                                         \
    type sums[FMA_CHAINS], half = (type){0} + 0.5f;                                                               \
    _Pragma("GCC unroll 12") for (int i = 0; i < FMA_CHAINS; i++) sums[i] = half;                                 \
    int64_t start_ns = tool_now_ns();                                                                             \
    for (int64_t n = 0; n < FMA_STEPS; n++) {                                                                     \
      _Pragma("GCC unroll 12") for (int i = 0; i < FMA_CHAINS;                                                    \
                                    i++) __asm__ volatile(instruction " %1, %1, %0" : "+v"(sums[i]) : "v"(half)); \
    }                                                                                                             \
    return flops * FMA_CHAINS * FMA_STEPS * (double)(sizeof half / 4) / (double)(tool_now_ns() - start_ns);       \
  }
typedef float float8 __attribute__((vector_size(32)));
typedef float float16 __attribute__((vector_size(64)));
FMA_LOOP(fma512_gflops, float16, "avx512f", "vfmadd213ps", 2.0)
FMA_LOOP(fma256_gflops, float8, "avx2,fma", "vfmadd213ps", 2.0)
FMA_LOOP(dot512_gflops, float16, "avx512f", "vdpbf16ps", 4.0)

/* The speed of one thread, with the widest vectors of this processor, or with those of the kernels that the caller
 * names; 0: it has no FMA. */
static double fma_gflops(void) {
  const char *named = getenv("BANYAN_KERNELS");
  if (__builtin_cpu_supports("avx512f") && !(named && strcmp(named, "avx2") == 0)) return fma512_gflops();
  return __builtin_cpu_supports("fma") ? fma256_gflops() : 0;
}

/* The speed of dot products of pairs of bf16, unless the caller names kernels without them; 0: there are none. */
static double dot_gflops(void) {
  const char *named = getenv("BANYAN_KERNELS");
  return __builtin_cpu_supports("avx512bf16") && (!named || strcmp(named, "avx512_bf16") == 0) ? dot512_gflops() : 0;
}
#else
static double fma_gflops(void) { return 0; }
static double dot_gflops(void) { return 0; }
#endif

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

typedef struct kernel_result {
  int32_t threads;
  int64_t keys;                 /* visible keys of all sequences */
  uint64_t kv_bytes;            /* size of these keys and their values */
  uint64_t read_bytes;          /* size of the cache, where each sequence has the capacity of the longest */
  double attention_us, read_us; /* medians */
  double fma_gflops;            /* all threads, if each is as fast as this one in its fastest round; 0: unknown */
  double dot_gflops;            /* the same of dot products of bf16 */
  double max_abs_error, max_rel_error;
  double local_share; /* fraction of the cache's pages on the NUMA node where all threads run; -1 unknown */
} kernel_result;

/* Attention and the loops alternate, so that other load affects all. */
static bool measure(banyan_op *op, const decode_shard *shard, int32_t repeat, kernel_result *result,
                    tool_error *error) {
  double *attention = tool_new(2 * (size_t)repeat, sizeof *attention), *read = attention + repeat;
  banyan_status status = BANYAN_OK;
  bool answered = true;
  for (int32_t round = -1; round < repeat && status == BANYAN_OK && answered; round++) { /* round -1 is a warm-up */
    int32_t at = round < 0 ? 0 : round;
    answered = read_memory(result->threads, shard->block, shard->bytes, &read[at], error);
    result->fma_gflops = fmax(result->fma_gflops, result->threads * fma_gflops());
    result->dot_gflops = fmax(result->dot_gflops, result->threads * dot_gflops());
    int64_t since = tool_now_ns();
    status = tool_run(op);
    attention[at] = (double)(tool_now_ns() - since) * 1e-3;
  }
  result->attention_us = tool_percentile(attention, (size_t)repeat, 50);
  result->read_us = tool_percentile(read, (size_t)repeat, 50);
  if (!answered) return false;
  return status == BANYAN_OK || tool_error_banyan(error, status, "attention");
}

/* Compares the rows of one query token: of all sequences if each has one, else of the first sequence. */
static bool compare_token(const decode_problem *problem, int32_t token, const float *out, banyan_comm *comm,
                          kernel_result *result, tool_error *error) {
  tool_world alone = {.comm = comm, .nranks = 1, .how = "one process", .program = "banyan-decode"};
  decode_problem one = *problem;
  int32_t keys = problem->tokens - problem->queries + token + 1;
  double *want;
  if (problem->queries > 1) one.batch = 1, one.query = token, one.lengths = &keys;
  if (!decode_reference_make(&alone, &one, 0, &want, error)) return false;
  size_t dim = (size_t)problem->value_dim, rows = (size_t)one.batch * (size_t)problem->heads;
  for (size_t row = 0; row < rows; row++)
    decode_row_error(out + ((size_t)token * rows + row) * dim, want + row * dim, problem->value_dim,
                     &result->max_abs_error, &result->max_rel_error);
  return true;
}

/* All runs give the same bits, so it compares only the rows of the last run; of many tokens, three. */
static bool compare(const decode_problem *problem, const float *out, banyan_comm *comm, kernel_result *result,
                    tool_error *error) {
  const int32_t last = problem->queries - 1, tokens[] = {0, last / 2, last};
  bool ok = true;
  for (int i = 0; ok && i < (last > 0 ? 3 : 1); i++) ok = compare_token(problem, tokens[i], out, comm, result, error);
  return ok;
}

/* Copies the keys of the only sequence to random places of a cache for `room` keys, and lists them as pages of one
 * key. */
static decode_shard spread(const decode_problem *problem, int32_t room, const decode_shard *shard,
                           banyan_attention_desc *desc) {
  size_t key = (size_t)problem->head_dim * tool_dtype_bytes(problem->dtype), capacity = (size_t)shard->capacity,
         lists = (size_t)decode_problem_tensors(problem) * (size_t)problem->kv_heads;
  decode_shard wide = {.bytes = lists * (size_t)room * key, .capacity = room};
  int32_t *places = tool_new((size_t)room, sizeof *places);
  wide.block = memset(tool_take(wide.bytes), 0, wide.bytes); /* untouched pages would be read faster */
  for (int32_t i = 0; i < room; i++) places[i] = i;
  for (int32_t i = 0; i < problem->tokens; i++) {
    int32_t other = i + (int32_t)(bny_hash_of((uint64_t)i) % (uint64_t)(room - i)), mine = places[i];
    places[i] = places[other];
    places[other] = mine;
  }
  for (size_t list = 0; list < lists; list++)
    for (size_t i = 0; i < (size_t)problem->tokens; i++)
      memcpy((char *)wide.block + (list * (size_t)room + (size_t)places[i]) * key,
             (const char *)shard->block + (list * capacity + i) * key, key);
  *desc = decode_shard_attention(problem, desc->q, &wide, problem->lengths);
  desc->kv.pages.table = places;
  desc->kv.pages.table_stride = problem->tokens;
  desc->kv.pages.keys = 1;
  desc->kv.pages.count = room;
  desc->kv.k_batch_stride = desc->kv.k_token_stride; /* from page to page */
  desc->kv.v_batch_stride = desc->kv.v_token_stride;
  return wide;
}

static bool measure_shard(const decode_kernel_settings *settings, const decode_problem *problem, const void *q,
                          const decode_shard *shard, banyan_comm *comm, kernel_result *result, tool_error *error) {
  int32_t tokens = problem->batch * problem->queries;
  size_t rows = (size_t)tokens * (size_t)problem->heads, values = rows * (size_t)problem->value_dim;
  banyan_queries queries = BANYAN_QUERIES_INIT;
  int32_t *starts = tool_new(2 * (size_t)problem->batch + 1, sizeof *starts), *firsts = starts + problem->batch;
  float *out = tool_take((values + rows) * sizeof *out);
  banyan_attention_desc desc = decode_shard_attention(problem, q, shard, problem->lengths);
  decode_shard wide = *shard;
  for (int32_t b = 0; b < problem->batch; b++) {
    starts[b] = problem->tokens - problem->queries;
    firsts[b + 1] = (b + 1) * problem->queries;
  }
  queries.tokens = tokens, queries.query_start_loc = firsts, queries.query_start = starts;
  if (problem->queries > 1) desc.queries = &queries;
  if (settings->room > 0) wide = spread(problem, settings->room, shard, &desc);
  result->read_bytes = wide.bytes;
  banyan_partial partial;
  banyan_op *op = NULL;
  memset(out, 0xff, values * sizeof *out); /* NaN in elements that are not written */
  banyan_partial_init(&partial, out, BANYAN_F32, out + values, BANYAN_F32, problem->heads, problem->value_dim);
  banyan_status status = banyan_attention_init(comm, &desc, &partial, &op);
  bool ok = status == BANYAN_OK || tool_error_banyan(error, status, "attention");
  ok = ok && measure(op, &wide, settings->repeat, result, error);
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
  void *q = NULL;
  banyan_status status = tool_world_alone(&config, &comm);
  bool ok = status == BANYAN_OK || tool_error_banyan(error, status, "communicator");
  ok = ok && decode_shard_make(problem, 0, 1, &shard, error) && decode_shard_fill(problem, 0, 0, 1, &shard, error) &&
       decode_problem_query(problem, 0, &q, error) && measure_shard(settings, problem, q, &shard, comm, result, error);
  for (int32_t b = 0; b < problem->batch; b++) result->keys += problem->lengths[b];
  result->kv_bytes = shard.bytes / ((uint64_t)problem->batch * (uint64_t)problem->tokens) * (uint64_t)result->keys;
  result->local_share = shard.block == NULL ? -1 : local_share_of(shard.block, shard.bytes);
  banyan_comm_destroy(comm);
  return ok;
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

/* Returns the rate of multiplications and additions. It limits the speed where many heads or queries share a key. */
static double gflops(const decode_problem *problem, const kernel_result *result) {
  double each = 2.0 * problem->heads * (problem->head_dim + problem->value_dim), hidden = problem->queries - 1;
  double pairs = problem->queries * ((double)result->keys - problem->batch * hidden / 2); /* each query sees its past */
  return result->attention_us > 0 ? each * pairs / result->attention_us * 1e-3 : 0;
}

static double gbytes_per_s(uint64_t bytes, double us) { return us > 0 ? (double)bytes / us * 1e-3 : 0; }

static bool is_verified(const kernel_result *result) {
  return result->max_rel_error <= tool_error_bound(BANYAN_F32, 0);
}

static bool print_text(const decode_problem *problem, const kernel_result *result, tool_error *error) {
  double kv = gbytes_per_s(result->kv_bytes, result->attention_us),
         read = gbytes_per_s(result->read_bytes, result->read_us);
  printf("%d sequence%s of %s%d keys, %d heads on %d KV heads x %d, %s, %d thread%s\n", problem->batch,
         problem->batch == 1 ? "" : "s", result->keys == (int64_t)problem->batch * problem->tokens ? "" : "up to ",
         problem->tokens, problem->heads, problem->kv_heads, problem->head_dim, tool_dtype_name(problem->dtype),
         result->threads, result->threads == 1 ? "" : "s");
  if (problem->queries > 1) printf("%d queries of each sequence, causal\n", problem->queries);
  printf("attention  %10.1f us  %7.2f GB/s of keys and values  %.1f Gflop/s\n", result->attention_us, kv,
         gflops(problem, result));
  printf("read loop  %10.1f us  %7.2f GB/s of the same memory, by as many threads\n", result->read_us, read);
  printf("FMA loop   %10.1f Gflop/s\n", result->fma_gflops);
  if (result->dot_gflops > 0) printf("dot loop   %10.1f Gflop/s of pairs of bf16\n", result->dot_gflops);
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
      "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:b, s:o, s:i, s:i, s:i, s:I, s:i, s:i, s:i, s:i, "
      "s:s, s:i, s:i}",
      "kv_gbps", tool_json_real(kv), "read_gbps", tool_json_real(read), "ratio", tool_json_real(kv / read), "gflops",
      tool_json_real(gflops(problem, result)), "fma_gflops", tool_json_real(result->fma_gflops), "dot_gflops",
      tool_json_real(result->dot_gflops), "attention_us", tool_json_real(result->attention_us), "read_us",
      tool_json_real(result->read_us), "kv_bytes", (json_int_t)result->kv_bytes, "read_bytes",
      (json_int_t)result->read_bytes, "max_abs_error", tool_json_real(result->max_abs_error), "max_rel_error",
      tool_json_real(result->max_rel_error), "verified", is_verified(result), "local_pages",
      result->local_share < 0 ? json_null() : tool_json_real(result->local_share), "threads", result->threads, "batch",
      problem->batch, "tokens", problem->tokens, "keys", (json_int_t)result->keys, "heads", problem->heads, "kv_heads",
      problem->kv_heads, "head_dim", problem->head_dim, "value_dim", problem->value_dim, "dtype",
      tool_dtype_name(problem->dtype), "repeat", settings->repeat, "queries", problem->queries);
  return tool_json_write(o, stdout, error);
}

bool decode_kernel_work(const decode_kernel_settings *settings, const decode_problem *problem, bool json,
                        bool *verified, tool_error *error) {
  kernel_result result = {.threads = settings->threads > 0 ? settings->threads : tool_cpus()};
  if (!run(settings, problem, &result, error)) return false;
  *verified = is_verified(&result);
  return json ? print_json(settings, problem, &result, error) : print_text(problem, &result, error);
}
