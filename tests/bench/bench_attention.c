/* SPDX-License-Identifier: Apache-2.0
 * Measures how fast attention threads read a KV cache, for each kernel table and type. A plain loop of as many threads
 * sums the same memory in the same run, and the ratio of both speeds is printed. banyan-decode --kernel-only measures
 * one shape with the chosen kernels.
 *
 *     bench_attention shapes [THREADS [ROUNDS]]      ratios of many shapes, each of 128 MiB
 *     bench_attention mla [THREADS [ROUNDS]]         128 heads on one KV head, next to a loop of FMA instructions
 *     bench_attention sparse [THREADS [ROUNDS]]      the same over 2048 of 64 K keys, as pages of one key
 *
 * Rounds of the loop alternate with rounds of all tables. The fastest round of each is printed, because other processes
 * only add time. Queries of a 16-bit cache have the cache's type. Queries of an 8-bit cache are bf16, as in models with
 * such caches. */
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "banyan.h"
#include "base/pool.h"
#include "attention/call.h"
#include "op.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/clock.h"
#include "tools/common/read_all.h"
#include "tools/common/util.h"

enum { TABLES_MAX = 8, SHAPE_BYTES = 128 << 20 };

/* The first round warms caches and pages, and is not counted. */
static void keep_fastest(double *seconds, double took_s, int round) {
  if (round == 0 || (round > 0 && took_s < *seconds)) *seconds = took_s;
}

#ifdef __x86_64__
/* A loop of FMA instructions on registers of the type, with enough chains to hide their latency. */
#define FMA_GFLOPS(name, type, isa)                                                                              \
  static __attribute__((target(isa))) double name(int64_t steps) {                                               \
    type sums[FMA_CHAINS], half = (type){0} + 0.5f;                                                              \
    _Pragma("GCC unroll 12") for (int i = 0; i < FMA_CHAINS; i++) sums[i] = half;                                \
    double start = now_s();                                                                                      \
    for (int64_t n = 0; n < steps; n++) {                                                                        \
      _Pragma("GCC unroll 12") for (int i = 0; i < FMA_CHAINS;                                                   \
                                    i++) __asm__ volatile("vfmadd213ps %1, %1, %0" : "+v"(sums[i]) : "v"(half)); \
    }                                                                                                            \
    double operations = 2.0 * FMA_CHAINS * (double)(sizeof half / 4) * (double)steps;                            \
    return operations * 1e-9 / (now_s() - start);                                                                \
  }

typedef float float8 __attribute__((vector_size(32)));
typedef float float16 __attribute__((vector_size(64)));
enum { FMA_CHAINS = 12, FMA_STEPS = 5000000 };
FMA_GFLOPS(fma512_gflops, float16, "avx512f")
FMA_GFLOPS(fma256_gflops, float8, "avx2,fma")

/* The faster of the two loops that this processor supports. */
static double fma_gflops(void) {
  if (__builtin_cpu_supports("avx512f")) return fma512_gflops(FMA_STEPS);
  return __builtin_cpu_supports("fma") ? fma256_gflops(FMA_STEPS) : 0;
}
#else
static double fma_gflops(void) { return 0; }
#endif

/* Values of about 1 with either sign in any type: random mantissas with a fixed exponent. */
static void fill(void *base, size_t elements, banyan_dtype dtype) {
  uint32_t state = 1;
  for (size_t i = 0; i < elements; i++) {
    state = state * 1664525 + 1013904223;
    uint32_t random = state >> 8;
    uint32_t sign = random & 1;
    if (bny_dtype_bytes(dtype) == 1)
      ((uint8_t *)base)[i] = (uint8_t)(sign << 7 | 0x30 | (random >> 1 & 7));
    else if (dtype == BANYAN_F32)
      ((uint32_t *)base)[i] = sign << 31 | 0x3f000000 | (random >> 1 & 0x7fffff);
    else if (dtype == BANYAN_F16)
      ((uint16_t *)base)[i] = (uint16_t)(sign << 15 | 0x3800 | (random >> 1 & 0x3ff));
    else
      ((uint16_t *)base)[i] = (uint16_t)(sign << 15 | 0x3f00 | (random >> 1 & 0x7f));
  }
}

typedef struct shape {
  int32_t heads, kv_heads, head_dim, value_dim, keys, batch;
  int32_t listed; /* number of keys read, as pages of one key; 0: all */
  banyan_dtype dtype;
  const char *dtype_name;
} shape;

typedef struct times {
  size_t bytes;
  double read_s, table_s[TABLES_MAX]; /* times of the fastest rounds; 0: not run */
  double fma_gflops;                  /* speed of one thread in the fastest rounds; only for MLA */
} times;

typedef struct reading {
  const uint64_t *words;
  size_t count;
  int32_t threads;
  _Atomic uint64_t sum; /* keeps the compiler from removing the reads */
} reading;

static void read_share(void *context, int32_t place) {
  reading *all = context;
  size_t lines = all->count / 8, first = lines * (size_t)place / (size_t)all->threads,
         end = lines * ((size_t)place + 1) / (size_t)all->threads;
  all->sum += read_all(all->words + 8 * first, 8 * (end - first));
}

static banyan_attention_desc describe(const shape *s, const void *q, const char *cache, const int32_t *lengths) {
  bool is_mla = s->value_dim < s->head_dim; /* values are the first columns of keys */
  int64_t all = (int64_t)s->batch * s->kv_heads * s->keys * s->head_dim;
  banyan_attention_desc made =
      attention_desc_of(s->batch, s->heads, s->kv_heads, s->keys, s->head_dim, s->head_dim,
                        bny_dtype_bytes(s->dtype) == 1 ? BANYAN_BF16 : s->dtype, s->dtype, q, cache,
                        is_mla ? cache : cache + all * (int64_t)bny_dtype_bytes(s->dtype), lengths);
  made.value_dim = s->value_dim;
  return made;
}

/* Keys of the first sequence in random order. */
static int32_t *list_keys(const shape *s) {
  int32_t *list = tool_take((size_t)s->listed * sizeof *list);
  uint32_t state = 1;
  for (int32_t i = 0; i < s->listed; i++) {
    state = state * 1664525 + 1013904223;
    list[i] = (int32_t)((uint64_t)state * (uint32_t)s->keys >> 32);
  }
  return list;
}

static void run_rounds(const banyan_attention_desc *desc, const banyan_partial *out, reading *all, bny_pool *pool,
                       int rounds, bool of_fma, times *result) {
  for (int round = -1; round < rounds; round++) {
    double start = now_s();
    bny_pool_run(pool, read_share, all);
    keep_fastest(&result->read_s, now_s() - start, round);
    if (of_fma) result->fma_gflops = fmax(result->fma_gflops, fma_gflops());
    for (int t = 0; bny_attention_table[t]; t++) {
      const bny_attention_kernels *table = bny_attention_table[t];
      if (!table->supported() || table == &bny_attention_portable) continue;
      start = now_s();
      if (bny_attention_run(table, bny_kernels_find(NULL), desc, out, NULL, pool) != BANYAN_OK) {
        fprintf(stderr, "bench_attention: %s\n", banyan_last_error());
        exit(1);
      }
      keep_fastest(&result->table_s[t], now_s() - start, round);
    }
  }
}

static times measure(const shape *s, int rounds, int32_t threads) {
  size_t rows = (size_t)(s->batch * s->heads), queries = rows * (size_t)s->head_dim;
  size_t elements = (size_t)s->batch * (size_t)s->kv_heads * (size_t)s->keys * (size_t)s->head_dim;
  size_t mark = tool_mark();
  times result = {.bytes = (s->value_dim < s->head_dim ? 1 : 2) * elements * bny_dtype_bytes(s->dtype)};
  int32_t *lengths = tool_take((size_t)s->batch * sizeof *lengths);
  char *cache = tool_take(result.bytes), *q = tool_take(queries * sizeof(float));
  float *values = tool_take((queries + rows) * sizeof *values);
  bny_pool *pool = NULL;
  if (threads > 1 && bny_pool_make(threads, NULL, &pool) != BANYAN_OK) exit(1);
  for (int32_t b = 0; b < s->batch; b++) lengths[b] = s->keys;
  fill(cache, result.bytes / bny_dtype_bytes(s->dtype), s->dtype);
  banyan_attention_desc desc = describe(s, q, cache, lengths);
  fill(q, queries, desc.q_dtype);
  int32_t *list = s->listed > 0 ? list_keys(s) : NULL;
  if (list) {
    lengths[0] = s->listed;
    desc.kv.pages.table = list;
    desc.kv.pages.table_stride = s->listed;
    desc.kv.pages.keys = 1;
    desc.kv.pages.count = s->keys;
    desc.kv.k_batch_stride = desc.kv.k_token_stride;
    desc.kv.v_batch_stride = desc.kv.v_token_stride;
  }
  banyan_partial out;
  banyan_partial_init(&out, values, BANYAN_F32, values + queries, BANYAN_F32, s->heads, s->value_dim);
  reading all = {.words = (const uint64_t *)(const void *)cache, .count = result.bytes / 8, .threads = threads};
  run_rounds(&desc, &out, &all, pool, rounds, s->value_dim < s->head_dim, &result);
  bny_pool_free(pool);
  tool_release(mark);
  return result;
}

static int32_t argument(int argc, char **argv, int at, int32_t otherwise) {
  int32_t value = argc > at ? atoi(argv[at]) : otherwise;
  if (value < 1) {
    fprintf(stderr, "usage: bench_attention shapes | mla | sparse [THREADS [ROUNDS]]\n");
    exit(1);
  }
  return value;
}

static const struct {
  banyan_dtype dtype;
  const char *name;
} types[] = {
    {BANYAN_F16, "f16"}, {BANYAN_BF16, "bf16"}, {BANYAN_F32, "f32"}, {BANYAN_E4M3, "e4m3"}, {BANYAN_I8, "int8"}};

enum { TYPES = sizeof types / sizeof types[0] };

/* ---- ratios of many shapes --------------------------------------------------------------------------------------- */

static void bench_shapes(int32_t threads, int rounds) {
  static const int32_t groups[] = {1, 4, 8}, dims[] = {64, 128, 256}, batches[] = {1, 16};
  enum { KV_HEADS = 8 };
  printf("# %d thread%s, %d MiB of keys and values on %d KV heads; ratios to a loop of reads\n", threads,
         threads == 1 ? "" : "s", SHAPE_BYTES >> 20, KV_HEADS);
  printf("# %-4s %5s %4s %5s %9s", "kv", "group", "dim", "batch", "read GB/s");
  for (int t = 0; bny_attention_table[t]; t++)
    if (bny_attention_table[t] != &bny_attention_portable && bny_attention_table[t]->supported())
      printf(" %11s", bny_attention_table[t]->name);
  puts("");
  for (int i = 0; i < TYPES * 3 * 3 * 2; i++) {
    shape s = {.kv_heads = KV_HEADS, .heads = KV_HEADS * groups[i / 6 % 3], .head_dim = dims[i / 2 % 3]};
    s.batch = batches[i % 2];
    s.dtype = types[i / 18].dtype;
    s.value_dim = s.head_dim;
    s.keys = SHAPE_BYTES / (2 * KV_HEADS * s.head_dim * (int32_t)bny_dtype_bytes(s.dtype)) / s.batch;
    times result = measure(&s, rounds, threads);
    printf("%-6s %5d %4d %5d %9.1f", types[i / 18].name, s.heads / KV_HEADS, s.head_dim, s.batch,
           (double)result.bytes * 1e-9 / result.read_s);
    for (int t = 0; bny_attention_table[t]; t++)
      if (result.table_s[t] > 0) printf(" %11.2f", result.read_s / result.table_s[t]);
    puts("");
    fflush(stdout);
  }
}

/* ---- MLA against the FMA rate of one core ------------------------------------------------------------------------ */

static void bench_mla(int32_t threads, int rounds, int32_t keys, int32_t listed) {
  shape s = {
      .heads = 128, .kv_heads = 1, .head_dim = 576, .value_dim = 512, .keys = keys, .batch = 1, .listed = listed};
  int32_t attended = listed > 0 ? listed : keys;
  double giga = 2e-9 * s.heads * (double)attended * (s.head_dim + s.value_dim);
  printf("# MLA: %d heads on one KV head, 576 and 512 columns, %d%s keys, %d thread%s; peak: loops of FMA, Gflop/s\n",
         s.heads, attended, listed > 0 ? " listed" : "", threads, threads == 1 ? "" : "s");
  printf("# %-4s %-11s %9s %9s %9s %9s\n", "kv", "kernels", "us", "Gflop/s", "peak", "of peak");
  for (int i = 0; i < TYPES; i++) {
    s.dtype = types[i].dtype;
    times result = measure(&s, rounds, threads);
    double peak = result.fma_gflops * threads;
    for (int t = 0; bny_attention_table[t]; t++)
      if (result.table_s[t] > 0)
        printf("%-6s %-11s %9.0f %9.1f %9.1f %9.2f\n", types[i].name, bny_attention_table[t]->name,
               1e6 * result.table_s[t], giga / result.table_s[t], peak, giga / result.table_s[t] / peak);
    fflush(stdout);
  }
}

int main(int argc, char **argv) {
  const char *view = argc > 1 ? argv[1] : "";
  int32_t threads = argument(argc, argv, 2, 1), rounds = argument(argc, argv, 3, 9);
  if (strcmp(view, "shapes") == 0)
    bench_shapes(threads, rounds);
  else if (strcmp(view, "mla") == 0)
    bench_mla(threads, rounds, 8192, 0);
  else if (strcmp(view, "sparse") == 0)
    bench_mla(threads, rounds, 65536, 2048);
  else
    argument(0, argv, 0, 0);
  return 0;
}
