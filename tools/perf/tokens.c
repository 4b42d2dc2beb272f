/* SPDX-License-Identifier: Apache-2.0
 * Times blocking calls whose number of tokens changes from call to call. */
#include "tools/perf/perf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/json.h"

enum { ITERATIONS_USUAL = 1000, ROWS_CHECKED = 512, CHECKS = 32 };

typedef struct tokens_state {
  const perf_case *perf;
  float *input, *output;
  perf_rows rows;
  perf_errors errors;
  int32_t iterations;
  double *changed, *same, *ratio; /* [iterations]: us, us, and the first over the second */
} tokens_state;

static bool call(tokens_state *state, int32_t tokens, double *us, tool_error *error) {
  const perf_case *perf = state->perf;
  tool_part part = tool_part_of_rank(perf->scatter, tokens, perf->heads, perf->world->rank, perf->world->nranks);
  banyan_partial in = tool_partial_max_sum(state->input, state->rows.max, state->rows.sum, perf->heads, perf->head_dim);
  banyan_partial out = tool_partial_result(state->output, part.heads, perf->head_dim);
  banyan_combine_desc desc = {.size = sizeof desc,
                              .tokens = tokens,
                              .heads = perf->heads,
                              .value_dim = perf->head_dim,
                              .wire = perf->wire,
                              .scatter = perf->scatter,
                              .order = perf->order,
                              .algorithm = perf->algorithm};
  bool nothing = perf->scatter == BANYAN_SCATTER_ROOT && perf->world->rank != 0;
  banyan_status status = us ? banyan_barrier(perf->world->comm) : BANYAN_OK;
  int64_t start = tool_now_ns();
  if (status == BANYAN_OK) status = banyan_combine(perf->world->comm, &desc, &in, nothing ? NULL : &out);
  if (us) *us = (double)(tool_now_ns() - start) / 1e3;
  return status == BANYAN_OK || tool_error_banyan(error, status, "banyan_combine");
}

static int32_t class_of(int32_t tokens) {
  int32_t class = 1;
  while (class < tokens) class *= 2;
  return class;
}

/* Another number that is planned for like this one; 0 if there is none. */
static int32_t neighbour_of(int32_t tokens, int32_t most) {
  if (class_of(tokens - 1) == class_of(tokens)) return tokens - 1;
  return tokens + 1 <= most && class_of(tokens + 1) == class_of(tokens) ? tokens + 1 : 0;
}

/* Two calls that are not timed go before each, over the same memory: caches are alike, and only the number differs. */
static bool time_pair(tokens_state *state, int32_t i, tool_error *error) {
  const perf_case *perf = state->perf;
  int32_t tokens = 1, other = 0;
  for (uint64_t key = (uint64_t)(uint32_t)i << 8; other == 0; key++) {
    tokens = 1 + (int32_t)(bny_hash_of(key) % (uint64_t)perf->tokens);
    other = neighbour_of(tokens, perf->tokens);
  }
  double times[2] = {0};
  bool ok = true;
  for (int k = 0; ok && k < 2; k++) {
    int changes = (i & 1) != k; /* they take turns in being first */
    ok = call(state, tokens, NULL, error) && call(state, changes ? other : tokens, NULL, error) &&
         call(state, tokens, &times[changes], error);
  }
  if (ok && i >= 0) {
    state->same[i] = times[0];
    state->changed[i] = times[1];
  }
  return ok;
}

static void check(tokens_state *state, int32_t tokens) {
  const perf_case *perf = state->perf;
  tool_part part = tool_part_of_rank(perf->scatter, tokens, perf->heads, perf->world->rank, perf->world->nranks);
  uint64_t roundings = perf->wire == BANYAN_F32 ? 0 : (uint64_t)perf->world->nranks;
  perf_rows_check(&part, perf->heads, perf->head_dim, state->output, 0, perf->world->nranks, ROWS_CHECKED,
                  tool_error_bound(perf->wire, roundings), &state->errors);
}

static bool measure(tokens_state *state, const perf_protocol *protocol, tool_error *error) {
  bool ok = true;
  for (int32_t tokens = 1; ok && tokens < 2 * state->perf->tokens; tokens *= 2) /* each class is planned once */
    ok = call(state, tokens < state->perf->tokens ? tokens : state->perf->tokens, NULL, error);
  for (int32_t i = -protocol->warmup; ok && i < state->iterations; i++) {
    ok = time_pair(state, i, error);
    if (ok && protocol->check && i % (state->iterations / CHECKS + 1) == 0) {
      int32_t tokens = 1 + (i < 0 ? 0 : i) % state->perf->tokens;
      ok = call(state, tokens, NULL, error);
      check(state, tokens);
    }
  }
  return ok;
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

static int32_t plans_made(const banyan_comm *comm) {
  static const char name[] = "plans made: ";
  char text[4096];
  banyan_comm_describe(comm, text, sizeof text);
  const char *at = strstr(text, name);
  return at ? atoi(at + strlen(name)) : 0;
}

typedef struct summary {
  double changed_us, same_us, ratio;
  int32_t plans;
  int64_t wrong;
} summary;

static bool report_json(const tokens_state *state, const summary *found, bool checked, tool_error *error) {
  const perf_case *perf = state->perf;
  json_t *o = json_object(), *row = json_object(), *rows = json_array();
  json_object_set_new(row, "collective", json_string("combine"));
  json_object_set_new(row, "ranks", json_integer(perf->world->nranks));
  json_object_set_new(row, "tokens_max", json_integer(perf->tokens));
  json_object_set_new(row, "heads", json_integer(perf->heads));
  json_object_set_new(row, "head_dim", json_integer(perf->head_dim));
  json_object_set_new(row, "iterations", json_integer(state->iterations));
  json_object_set_new(row, "same_us", tool_json_real(found->same_us));
  json_object_set_new(row, "changed_us", tool_json_real(found->changed_us));
  json_object_set_new(row, "ratio", tool_json_real(found->ratio));
  json_object_set_new(row, "plans", json_integer(found->plans));
  json_object_set_new(row, "errors", checked ? json_integer((json_int_t)found->wrong) : json_null());
  json_array_append_new(rows, row);
  json_object_set_new(o, "rows", rows);
  return tool_json_write(o, stdout, error);
}

static void report_text(const tokens_state *state, const summary *found, bool checked, FILE *stream) {
  const perf_case *perf = state->perf;
  fprintf(stream, "# banyan-perf %s: combine of a random number of tokens, %d ranks, %s\n", banyan_version(),
          perf->world->nranks, perf->world->how);
  fprintf(stream, "# head_dim %d, wire %s, scatter %s, order %s, algorithm %s, %d pairs of calls\n", perf->head_dim,
          tool_dtype_name(perf->wire), bny_scatter_name(perf->scatter), bny_order_name(perf->order),
          perf->algorithm == NULL ? "by predicted cost" : perf->algorithm, state->iterations);
  fprintf(stream, "#\n# %10s %6s %11s %14s %7s %6s %7s\n", "tokens", "heads", "same number", "another number", "ratio",
          "plans", "errors");
  fprintf(stream, "# %10s %6s %11s %14s %7s\n", "", "", "p50 (us)", "p50 (us)", "median");
  char range[32], errors[32] = "-";
  snprintf(range, sizeof range, "1-%d", perf->tokens);
  if (checked) snprintf(errors, sizeof errors, "%" PRId64, found->wrong);
  fprintf(stream, "  %10s %6d %11.2f %14.2f %7.3f %6d %7s\n", range, perf->heads, found->same_us, found->changed_us,
          found->ratio, found->plans, errors);
  fflush(stream);
}

static bool sum_up(tokens_state *state, summary *found, tool_error *error) {
  const tool_world *world = state->perf->world;
  double wrong = (double)state->errors.wrong;
  size_t count = (size_t)state->iterations;
  found->plans = plans_made(world->comm);
  if (!tool_world_max(world, state->same, state->iterations, error) ||
      !tool_world_max(world, state->changed, state->iterations, error) || !tool_world_max(world, &wrong, 1, error))
    return false;
  for (size_t i = 0; i < count; i++) state->ratio[i] = state->changed[i] / state->same[i];
  found->ratio = tool_percentile(state->ratio, count, 50);
  found->same_us = tool_percentile(state->same, count, 50);
  found->changed_us = tool_percentile(state->changed, count, 50);
  found->wrong = (int64_t)wrong;
  return true;
}

bool perf_tokens_work(const perf_case *perf, const perf_protocol *protocol, bool json, FILE *stream, bool *correct,
                      tool_error *error) {
  int64_t rows = (int64_t)perf->tokens * perf->heads;
  tokens_state state = {.perf = perf, .iterations = protocol->iterations ? protocol->iterations : ITERATIONS_USUAL};
  summary found = {0};
  state.input = tool_allocate(perf->bytes);
  state.output = tool_allocate(perf->bytes);
  state.changed = tool_allocate(3 * (size_t)state.iterations * sizeof *state.changed);
  bool ok = (state.input && state.output && state.changed) || tool_error_set(error, "out of memory");
  if (ok) {
    float *max = state.input + rows * perf->head_dim;
    state.same = state.changed + state.iterations;
    state.ratio = state.same + state.iterations;
    state.rows = (perf_rows){rows, perf->head_dim, max, max + rows, state.input, 1, perf->head_dim};
    perf_rows_fill(&state.rows, 0, perf->world->rank);
  }
  ok = tool_world_agree(perf->world, ok, error);
  ok = ok && measure(&state, protocol, error) && sum_up(&state, &found, error);
  *correct = found.wrong == 0;
  if (ok && perf->world->rank == 0) {
    report_text(&state, &found, protocol->check, stream);
    ok = !json || report_json(&state, &found, protocol->check, error);
  }
  free(state.input);
  free(state.output);
  free(state.changed);
  return ok;
}
