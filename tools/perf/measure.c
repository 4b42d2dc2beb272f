/* SPDX-License-Identifier: Apache-2.0
 * Times a collective and its alternatives alternately, and checks the results. */
#include "tools/perf/perf.h"

#include <stdio.h>

enum { METHODS_MAX = 1 + PERF_MPI_METHODS, CHECKS = 16 };

/* By default, the number of iterations is such that they move this many bytes, within limits. */
enum { ITERATIONS_LEAST = 20, ITERATIONS_MOST = 1000, BYTES_TO_MOVE = 64 << 20 };

static int32_t iterations_of(const perf_case *perf, const perf_protocol *protocol) {
  if (protocol->iterations > 0) return protocol->iterations;
  size_t fit = BYTES_TO_MOVE / (perf->bytes + 1);
  return fit < ITERATIONS_LEAST ? ITERATIONS_LEAST : fit > ITERATIONS_MOST ? ITERATIONS_MOST : (int32_t)fit;
}

/* Before every timed call; with MPI in play that of banyan and that of MPI take turns, alike for all methods. */
static banyan_status line_up(const perf_case *perf, bool by_mpi) {
  if (by_mpi) {
    perf->world->mpi->barrier();
    return BANYAN_OK;
  }
  return banyan_barrier(perf->world->comm);
}

typedef struct measurement {
  const perf_case *perf;
  const perf_protocol *protocol;
  perf_method methods[METHODS_MAX];
  int count;
  int32_t iterations;
  double *times; /* [count][iterations], us */
  perf_errors errors[METHODS_MAX];
} measurement;

/* `first`: the iteration that made the data, before which ranks meet. */
static bool time_call(measurement *m, int which, int32_t iteration, int32_t first, tool_error *error) {
  perf_method *method = &m->methods[which];
  uint32_t key = (uint32_t)bny_hash_of((uint64_t)(uint32_t)first * METHODS_MAX + (uint64_t)which);
  banyan_status status = BANYAN_OK;
  if (iteration == first) {
    perf_input_fill(method, key);
    status = line_up(m->perf, m->count > 1 && (iteration / m->count & 1) != 0);
  }
  int64_t start = tool_now_ns();
  if (status == BANYAN_OK) status = method->run(method);
  int64_t end = tool_now_ns();
  if (status != BANYAN_OK) return tool_error_banyan(error, status, method->name);
  if (iteration >= 0) m->times[which * m->iterations + iteration] = (double)(end - start) / 1e3;
  int32_t every = m->iterations / CHECKS + 1;
  if (m->protocol->check && (iteration % every == 0 || iteration == m->iterations - 1))
    perf_output_check(method, key, &m->errors[which]);
  return true;
}

/* All methods in each iteration. */
static bool time_by_turns(measurement *m, tool_error *error) {
  bool ok = true;
  for (int32_t i = -m->protocol->warmup; ok && i < m->iterations; i++) {
    for (int k = 0; ok && k < m->count; k++)
      ok = time_call(m, (int)(((uint32_t)i + (uint32_t)k) % (uint32_t)m->count), i, i, error);
  }
  return ok;
}

/* Ranks leave a barrier one after another, and over a network this takes about as long as a small call. The last rank
 * to leave finds all others ready, and the first waits for the last. In consecutive calls, a rank that is early in one
 * call is late in the next. Two calls together are therefore a round trip. */
static void halve_pairs(double *times, int32_t count) {
  for (int32_t i = count - 1; i > 0; i--) times[i] = (times[i] + times[i - 1]) / 2;
  times[0] = count > 1 ? times[1] : times[0];
}

/* Block after block of calls of one method, with new data for each block: making them holds up the others. */
static bool time_in_a_row(measurement *m, tool_error *error) {
  enum { BLOCK = 50 };
  bool ok = true;
  for (int32_t first = -m->protocol->warmup, end; ok && first < m->iterations; first = end) {
    int32_t bound = first < 0 ? 0 : m->iterations;
    end = first + BLOCK < bound ? first + BLOCK : bound;
    for (int k = 0; ok && k < m->count; k++) {
      for (int32_t i = first; ok && i < end; i++) ok = time_call(m, k, i, first, error);
      if (ok && first >= 0) halve_pairs(m->times + (size_t)k * (size_t)m->iterations + first, end - first);
    }
  }
  return ok;
}

/* One rank reports this to the others. */
typedef struct tally {
  double wrong, worst, bytes_sent, between_hosts;
} tally;

static bool sum_up(measurement *m, perf_row *row, tool_error *error) {
  const tool_world *world = m->perf->world;
  banyan_op_info info = {.size = sizeof info, .algorithm = ""};
  banyan_op_query(m->methods[0].op, &info);
  tally mine = {.worst = m->errors[0].worst,
                .bytes_sent = (double)info.bytes_sent,
                .between_hosts = (double)info.bytes_between_nodes};
  for (int i = 0; i < m->count; i++) mine.wrong += (double)m->errors[i].wrong;
  tally *all = tool_new((size_t)world->nranks, sizeof *all);
  bool ok = tool_world_gather(world, &mine, sizeof mine, all, error) &&
            tool_world_max(world, m->times, m->count * m->iterations, error);
  if (ok) {
    const perf_case *perf = m->perf;
    *row = (perf_row){.bytes = perf->bytes, .iterations = m->iterations, .mpi_count = m->count - 1};
    row->rows = perf->collective == BNY_COMBINE ? (int64_t)perf->combine.tokens * perf->combine.heads : 0;
    snprintf(row->algorithm, sizeof row->algorithm, "%s", info.algorithm == NULL ? "" : info.algorithm);
    for (int32_t r = 0; r < world->nranks; r++) {
      row->errors.wrong += (int64_t)all[r].wrong;
      row->errors.worst = all[r].worst > row->errors.worst ? all[r].worst : row->errors.worst;
      row->bytes_sent = all[r].bytes_sent > (double)row->bytes_sent ? (uint64_t)all[r].bytes_sent : row->bytes_sent;
      uint64_t crossed = (uint64_t)all[r].between_hosts;
      row->most_between_nodes = crossed > row->most_between_nodes ? crossed : row->most_between_nodes;
      row->all_between_nodes += crossed;
    }
    for (int i = 0; i < m->count; i++) {
      double *times = m->times + (size_t)i * (size_t)m->iterations;
      double p50 = tool_percentile(times, (size_t)m->iterations, 50);
      if (i == 0) {
        row->p50_us = p50;
        row->p99_us = tool_percentile(times, (size_t)m->iterations, 99);
      } else {
        row->mpi_names[i - 1] = m->methods[i].name;
        row->mpi_p50_us[i - 1] = p50;
      }
    }
  }
  return ok;
}

bool perf_measure(const perf_case *perf, const perf_protocol *protocol, perf_row *row, tool_error *error) {
  size_t mark = tool_mark();
  measurement m = {.perf = perf, .protocol = protocol, .iterations = iterations_of(perf, protocol)};
  bool ok = perf_banyan_method(perf, &m.methods[0], error);
  m.count = ok ? 1 : 0;
  if (ok && protocol->against_mpi) {
    ok = perf_mpi_methods(perf, m.methods + 1, error);
    m.count += ok ? perf_mpi_count(perf->collective) : 0;
  }
  m.times = tool_new((size_t)METHODS_MAX * (size_t)m.iterations, sizeof *m.times);
  ok = tool_world_agree(perf->world, ok, error);
  ok = ok && (protocol->in_a_row ? time_in_a_row(&m, error) : time_by_turns(&m, error));
  ok = ok && sum_up(&m, row, error);
  for (int i = 0; i < m.count; i++) perf_method_free(&m.methods[i]);
  tool_release(mark);
  return ok;
}
