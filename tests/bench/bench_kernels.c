/* SPDX-License-Identifier: Apache-2.0
 *
 * Times of the kernels in nanoseconds: 32 rows x 128 (16.6 KB in f32), median of many runs, for each table that this
 * processor supports. `fold` merges and finishes in one go, to normalised values and lse in base e. Not a test. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan.h"
#include "op.h"
#include "tools/common/util.h"

enum { ROWS = 32, DIM = 128, SOURCES = 8, REPEAT = 400, BATCH = 50 };

typedef struct bench {
  const bny_kernels *kernels;
  bny_box box;
  bny_wire wire;
  int count;
  banyan_partial caller, native;
  bny_wire_view sources[SOURCES], dst;
} bench;

static double median_of(const bench *b, void (*run)(const bench *)) {
  static double times[REPEAT];
  for (int i = 0; i < REPEAT; i++) {
    int64_t start = tool_now_ns();
    for (int k = 0; k < BATCH; k++) run(b);
    times[i] = (double)(tool_now_ns() - start) / BATCH;
  }
  return tool_percentile(times, REPEAT, 50);
}

static void run_encode_lse(const bench *b) { b->kernels->encode(&b->box, &b->caller, 0, 0, b->wire, &b->dst); }

static void run_encode_native(const bench *b) { b->kernels->encode(&b->box, &b->native, 0, 0, b->wire, &b->dst); }

static void run_merge(const bench *b) { b->kernels->merge(&b->box, b->wire, b->count, b->sources, false, &b->dst); }

static void run_fold(const bench *b) {
  b->kernels->merge_finish(&b->box, b->wire, b->count, b->sources, false, &b->caller, 0, 0);
}

/* Lives until the program ends. */
static void *take(size_t bytes) {
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (memory == NULL) exit(1);
  memset(memory, 0, bytes);
  return memory;
}

static bny_wire_view take_view(bny_wire wire) {
  bny_wire_layout layout = bny_wire_layout_make(wire, ROWS, DIM);
  char *memory = take(layout.bytes);
  return (bny_wire_view){.m = (float *)(memory + layout.m),
                         .d = (float *)(memory + layout.d),
                         .n = memory + layout.n,
                         .token_stride = ROWS};
}

static void fill(banyan_partial *partial, int seed) {
  float *values = partial->values, *lse = partial->lse;
  srand((unsigned)seed);
  for (int i = 0; i < ROWS * DIM; i++) values[i] = (float)rand() / (float)RAND_MAX - 0.5f;
  for (int i = 0; i < ROWS; i++) lse[i] = (float)rand() / (float)RAND_MAX * 10.0f;
}

static void measure(const bny_kernels *kernels, bny_wire wire) {
  bench b = {.kernels = kernels, .box = {.tokens = 1, .heads = ROWS, .value_dim = DIM}, .wire = wire};
  banyan_partial_init(&b.caller, take(ROWS * DIM * 4), BANYAN_F32, take(ROWS * 4), BANYAN_F32, ROWS, DIM);
  banyan_partial_init(&b.native, take(ROWS * DIM * 4), BANYAN_F32, take(ROWS * 4), BANYAN_F32, ROWS, DIM);
  b.dst = take_view(wire);
  for (int s = 0; s < SOURCES; s++) {
    b.sources[s] = take_view(wire);
    fill(&b.caller, s);
    kernels->encode(&b.box, &b.caller, 0, 0, wire, &b.sources[s]);
  }
  b.native.values_kind = BANYAN_VALUES_NUMERATOR;
  b.native.stats_kind = BANYAN_STATS_MAX_SUM;
  b.native.base = BANYAN_BASE_2;
  b.native.sum = take(ROWS * 4);
  b.count = 1;
  kernels->merge_finish(&b.box, wire, 1, b.sources, false, &b.native, 0, 0);
  printf("%-9s %-5s encode: native %5.0f lse %5.0f ", kernels->name, bny_wire_formats[wire].name,
         median_of(&b, run_encode_native), median_of(&b, run_encode_lse));
  for (b.count = 1; b.count <= SOURCES; b.count += b.count < 4 ? 1 : 4)
    printf(" | %d: merge %5.0f fold %5.0f", b.count, median_of(&b, run_merge), median_of(&b, run_fold));
  printf("\n");
}

int main(void) {
  printf("ns per call, %d rows x %d\n", ROWS, DIM);
  for (int i = 0; bny_kernels_table[i] != NULL; i++) {
    for (int wire = 0; wire < (int)BNY_WIRE_COUNT; wire++) {
      if (bny_kernels_table[i]->supported()) measure(bny_kernels_table[i], (bny_wire)wire);
    }
  }
  return 0;
}
