/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast one core reads a KV cache while it attends to it: gigabytes of keys and values per second for each kernel
 * table and type, next to a plain loop that sums the same memory in the same run, and their ratio.
 *
 *     bench_attention [KEYS [HEADS KV_HEADS HEAD_DIM [ROUNDS]]]     default 32768 32 8 128 9
 *
 * Rounds of the loop and of all tables take turns; medians are printed. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "attention.h"
#include "banyan.h"
#include "decode/decode.h"
#include "op.h"
#include "tests/support/clock.h"

enum { ROUNDS_MAX = 99, TABLES_MAX = 8 };

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, int count) {
  qsort(values, (size_t)count, sizeof *values, ascending);
  return values[count / 2];
}

/* Every word of every 64-byte line, in separate sums so that adding is not what takes the time. */
static __attribute__((noinline)) uint64_t read_all(const uint64_t *words, size_t count) {
  uint64_t sums[8] = {0};
  for (size_t i = 0; i + 8 <= count; i += 8)
    for (int lane = 0; lane < 8; lane++) sums[lane] += words[i + (size_t)lane];
  return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

/* Values of either sign, about 1, whatever the type: random mantissas under a fixed exponent. */
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

static void bench(banyan_attention_desc *desc, const char *dtype_name, int rounds) {
  int32_t keys = desc->seq_lens[0], dim = desc->head_dim;
  size_t elements = (size_t)desc->kv_heads * (size_t)keys * (size_t)dim;
  size_t bytes = 2 * elements * bny_dtype_bytes(desc->kv_dtype);
  char *cache = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  float *values = malloc((size_t)desc->heads * (size_t)dim * sizeof *values);
  float *lse = malloc((size_t)desc->heads * sizeof *lse);
  if (!cache || !values || !lse) {
    fprintf(stderr, "bench_attention: no memory for %zu bytes\n", bytes);
    exit(1);
  }
  fill(cache, 2 * elements, desc->kv_dtype);
  desc->k = cache;
  desc->v = cache + bytes / 2;
  banyan_partial out = {.size = sizeof out,
                        .values = values,
                        .values_token_stride = (int64_t)desc->heads * dim,
                        .values_head_stride = dim,
                        .values_dtype = BANYAN_F32,
                        .values_kind = BANYAN_VALUES_NORMALISED,
                        .lse = lse,
                        .stats_token_stride = desc->heads,
                        .stats_head_stride = 1,
                        .stats_dtype = BANYAN_F32,
                        .stats_kind = BANYAN_STATS_LSE,
                        .base = BANYAN_BASE_E,
                        .empty = BANYAN_EMPTY_NEG_INF};
  double read_s[ROUNDS_MAX], table_s[TABLES_MAX][ROUNDS_MAX];
  uint64_t sum = 0;
  for (int round = -1; round < rounds; round++) { /* the first is not counted */
    int at = round < 0 ? 0 : round;
    double start = now_s();
    sum += read_all((const uint64_t *)(const void *)cache, bytes / 8);
    read_s[at] = now_s() - start;
    for (int t = 0; bny_attention_table[t]; t++) {
      if (!bny_attention_table[t]->supported()) continue;
      start = now_s();
      if (bny_decode_attention_run(bny_attention_table[t], bny_kernels_find(NULL), desc, &out, NULL) != BANYAN_OK) {
        fprintf(stderr, "bench_attention: %s\n", banyan_last_error());
        exit(1);
      }
      table_s[t][at] = now_s() - start;
      sum += (uint64_t)(lse[0] > 0);
    }
  }
  double giga = (double)bytes * 1e-9, read = giga / median(read_s, rounds);
  for (int t = 0; bny_attention_table[t]; t++) {
    if (!bny_attention_table[t]->supported()) continue;
    double seconds = median(table_s[t], rounds);
    printf("%-5s %-9s %9.1f %9.2f %9.2f %7.3f\n", dtype_name, bny_attention_table[t]->name, 1e6 * seconds,
           giga / seconds, read, giga / seconds / read);
  }
  if (sum == 42) /* so that the reads are not removed */
    puts("");
  free(lse);
  free(values);
  free(cache);
}

static int32_t argument(int argc, char **argv, int at, int32_t otherwise) {
  int32_t value = argc > at ? atoi(argv[at]) : otherwise;
  if (value < 1) {
    fprintf(stderr, "usage: bench_attention [KEYS [HEADS KV_HEADS HEAD_DIM [ROUNDS]]]\n");
    exit(1);
  }
  return value;
}

int main(int argc, char **argv) {
  int32_t keys = argument(argc, argv, 1, 32768);
  banyan_attention_desc desc = {.size = sizeof desc, .batch = 1};
  desc.heads = argument(argc, argv, 2, 32);
  desc.kv_heads = argument(argc, argv, 3, 8);
  desc.head_dim = argument(argc, argv, 4, 128);
  int rounds = argument(argc, argv, 5, 9);
  rounds = rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
  size_t queries = (size_t)desc.heads * (size_t)desc.head_dim;
  float *q = malloc(queries * sizeof *q);
  if (!q) return 1;
  fill(q, queries, BANYAN_F32);
  desc.q_dtype = BANYAN_F32;
  desc.q = q;
  desc.q_batch_stride = (int64_t)queries;
  desc.q_head_stride = desc.head_dim;
  desc.k_token_stride = desc.v_token_stride = desc.head_dim;
  desc.k_head_stride = desc.v_head_stride = (int64_t)keys * desc.head_dim;
  desc.k_batch_stride = desc.v_batch_stride = desc.kv_heads * desc.k_head_stride;
  desc.seq_lens = &keys;
  printf("# one query token, %d heads on %d KV heads x %d, %d keys, one core; GB/s of keys and values\n", desc.heads,
         desc.kv_heads, desc.head_dim, keys);
  printf("%-5s %-9s %9s %9s %9s %7s\n", "# kv", "kernels", "us", "GB/s", "read GB/s", "ratio");
  static const struct {
    banyan_dtype dtype;
    const char *name;
  } types[] = {
      {BANYAN_F16, "f16"}, {BANYAN_BF16, "bf16"}, {BANYAN_F32, "f32"}, {BANYAN_E4M3, "e4m3"}, {BANYAN_I8, "int8"}};
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    desc.kv_dtype = types[i].dtype;
    bench(&desc, types[i].name, rounds);
  }
  free(q);
  return 0;
}
