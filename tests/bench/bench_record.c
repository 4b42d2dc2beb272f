/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures the cost of records. Times are those of a combine between two ranks, and of local attention followed by a
 * combine, without the flight recorder, with it (the default), and with a trace as well.
 *
 *     bench_record [ROUNDS]     default 2000
 *
 * The three take turns in short blocks of the same run. What is printed is the time that one block in ten stays below,
 * for an operation, and its ratio to the one without: on a machine that others use, too, most blocks are disturbed, and
 * means compare the disturbances. The ranks are threads; the trace goes to a temporary directory. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "banyan.h"
#include "base/trace.h"
#include "tools/common/util.h"

enum { RANKS = 2, ROUNDS_MAX = 99999, VALUE_DIM = 128, KEYS = 512, KV_HEADS = 8 };

typedef enum mode { MODE_OFF, MODE_FLIGHT, MODE_TRACE, MODES } mode;

typedef struct workload {
  const char *name;
  int32_t heads;
  bool attention;
  int block; /* operations */
} workload;

static const workload workloads[] = {
    {"combine 520 B", 1, false, 100},
    {"combine 16.6 KB", 32, false, 30},
    {"combine 133 KB", 256, false, 10},
    {"attention and combine 16.6 KB", 32, true, 2},
};
enum { WORKLOADS = sizeof workloads / sizeof workloads[0], HEADS_MAX = 256 };

typedef struct rank {
  int32_t number;
  int rounds;
  banyan_threads *group[MODES];
  banyan_comm *comm[MODES];
  float in[HEADS_MAX * VALUE_DIM], lse[HEADS_MAX], out[HEADS_MAX * VALUE_DIM], q[32 * VALUE_DIM];
  float keys[KV_HEADS * KEYS * VALUE_DIM];
  double *times[WORKLOADS][MODES]; /* [rounds], ns of an operation */
} rank;

static double lowest_tenth(double *values, int count) { return tool_percentile(values, (size_t)count, 10); }

static void must(banyan_status status, const char *what) {
  if (status == BANYAN_OK) return;
  fprintf(stderr, "bench_record: %s: %s\n", what, banyan_last_error());
  exit(EXIT_FAILURE);
}

/* Each rank in a thread of its own while they find each other. */
static void *connect_rank(void *argument) {
  rank *self = argument;
  banyan_bootstrap bootstrap;
  for (int m = 0; m < MODES; m++) {
    if (self->comm[m] || !self->group[m]) continue;
    must(banyan_threads_bootstrap(self->group[m], self->number, &bootstrap), "bootstrap");
    must(banyan_comm_create(&bootstrap, NULL, &self->comm[m]), "communicator");
  }
  return NULL;
}

static void run_all(rank *ranks, void *(*body)(void *)) {
  pthread_t threads[RANKS];
  for (int r = 0; r < RANKS; r++)
    if (pthread_create(&threads[r], NULL, body, &ranks[r]) != 0) exit(EXIT_FAILURE);
  for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
}

static char directory[] = "/tmp/bench_record.XXXXXX", trace_pattern[64];

static void connect_all(rank *ranks, mode mode) {
  setenv("BANYAN_FLIGHT", mode == MODE_OFF ? "off" : "", 1);
  setenv("BANYAN_TRACE", mode == MODE_TRACE ? trace_pattern : "", 1);
  banyan_threads *group;
  must(banyan_threads_create(RANKS, &group), "group");
  for (int r = 0; r < RANKS; r++) ranks[r].group[mode] = group;
  run_all(ranks, connect_rank);
}

static double time_block(rank *self, const workload *load, banyan_op *op) {
  banyan_attention_desc attention = {.size = sizeof attention,
                                     .batch = 1,
                                     .heads = 32,
                                     .kv_heads = KV_HEADS,
                                     .head_dim = VALUE_DIM,
                                     .q_dtype = BANYAN_F32,
                                     .kv_dtype = BANYAN_F32,
                                     .q = self->q,
                                     .q_batch_stride = 32 * VALUE_DIM,
                                     .q_head_stride = VALUE_DIM,
                                     .k = self->keys,
                                     .k_head_stride = KEYS * VALUE_DIM,
                                     .k_token_stride = VALUE_DIM,
                                     .v = self->keys,
                                     .v_head_stride = KEYS * VALUE_DIM,
                                     .v_token_stride = VALUE_DIM,
                                     .seq_lens = (int32_t[]){KEYS}};
  banyan_partial in;
  banyan_partial_init(&in, self->in, BANYAN_F32, self->lse, BANYAN_F32, load->heads, VALUE_DIM);
  int64_t begin = tool_now_ns();
  for (int i = 0; i < load->block; i++) {
    if (load->attention) must(banyan_attention(&attention, &in), "attention");
    must(banyan_start(op), "start");
    must(banyan_wait(op), "wait");
  }
  return (double)(tool_now_ns() - begin) / load->block;
}

static void measure(rank *self, int index) {
  const workload *load = &workloads[index];
  banyan_op *ops[MODES];
  banyan_partial in, out;
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = load->heads, .value_dim = VALUE_DIM};
  banyan_partial_init(&in, self->in, BANYAN_F32, self->lse, BANYAN_F32, load->heads, VALUE_DIM);
  banyan_partial_init(&out, self->out, BANYAN_F32, NULL, BANYAN_F32, load->heads, VALUE_DIM);
  for (int m = 0; m < MODES; m++) must(banyan_combine_init(self->comm[m], &desc, &in, &out, &ops[m]), "init");
  for (int i = 0; i < self->rounds; i++) {
    for (int k = 0; k < MODES; k++) {
      int m = (k + i) % MODES;
      must(banyan_barrier(self->comm[m]), "barrier");
      self->times[index][m][i] = time_block(self, load, ops[m]);
    }
  }
  for (int m = 0; m < MODES; m++) banyan_op_free(ops[m]);
}

static void *measure_all(void *argument) {
  for (int i = 0; i < WORKLOADS; i++) measure(argument, i);
  return NULL;
}

/* Measures the cost of writing one event to the file, which happens between operations or at the end. */
static double time_writing(void) {
  enum { EVENTS = 4096, REPEATS = 50 };
  static double times[REPEATS];
  bny_trace *trace;
  must(bny_trace_open(trace_pattern, 0, RANKS, EVENTS, &trace), "trace");
  for (int i = 0; i < REPEATS; i++) {
    for (int k = 0; k < EVENTS; k++)
      bny_trace_add(trace, &(bny_trace_event){.begin = bny_clock_ticks(),
                                              .end = bny_clock_ticks(),
                                              .name = "wait for rank",
                                              .operation = 1000,
                                              .bytes = 16640,
                                              .number = 1,
                                              .kind = BNY_TRACE_WAIT});
    int64_t begin = tool_now_ns();
    bny_trace_write(trace);
    times[i] = (double)(tool_now_ns() - begin) / EVENTS;
  }
  bny_trace_close(trace);
  return lowest_tenth(times, REPEATS);
}

static void report(const rank *self) {
  printf("%-30s %12s %20s %20s\n", "us", "without", "recorder", "and trace");
  for (int i = 0; i < WORKLOADS; i++) {
    double without = lowest_tenth(self->times[i][MODE_OFF], self->rounds);
    printf("%-30s %12.3f", workloads[i].name, without / 1e3);
    for (int m = MODE_FLIGHT; m < MODES; m++) {
      double ns = lowest_tenth(self->times[i][m], self->rounds);
      printf(" %12.3f %7.4f", ns / 1e3, ns / without);
    }
    putchar('\n');
  }
  printf("writing a trace takes %.0f ns for each event\n", time_writing());
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? atoi(argv[1]) : 2000;
  if (rounds < 1 || rounds > ROUNDS_MAX) {
    fprintf(stderr, "usage: bench_record [ROUNDS]\n");
    return 2;
  }
  if (!mkdtemp(directory)) return EXIT_FAILURE;
  snprintf(trace_pattern, sizeof trace_pattern, "%s/trace", directory);
  rank *ranks = calloc(RANKS, sizeof *ranks);
  if (!ranks) return EXIT_FAILURE;
  for (int r = 0; r < RANKS; r++) {
    ranks[r].number = r;
    ranks[r].rounds = rounds;
    for (int i = 0; i < WORKLOADS * MODES; i++)
      if (!(ranks[r].times[i / MODES][i % MODES] = calloc((size_t)rounds, sizeof(double)))) return EXIT_FAILURE;
  }
  for (int m = 0; m < MODES; m++) connect_all(ranks, (mode)m);
  run_all(ranks, measure_all);
  for (int m = 0; m < MODES; m++) {
    for (int r = 0; r < RANKS; r++) banyan_comm_destroy(ranks[r].comm[m]);
    banyan_threads_destroy(ranks[0].group[m]);
  }
  report(&ranks[0]);
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < WORKLOADS * MODES; i++) free(ranks[r].times[i / MODES][i % MODES]);
  free(ranks);
  for (int r = 0; r < RANKS; r++) {
    char path[96];
    snprintf(path, sizeof path, "%s.%d", trace_pattern, r);
    unlink(path);
  }
  rmdir(directory);
  return EXIT_SUCCESS;
}
