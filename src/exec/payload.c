/* SPDX-License-Identifier: Apache-2.0
 * Moves and merges rows of each kind of payload. */
#include "exec/payload.h"

#include <inttypes.h>
#include <string.h>

#include "base/status.h"
#include "plan/columns.h"

static bny_wire_view moved_view(const bny_wire_view *view, size_t shift) {
  return (bny_wire_view){
      .m = (float *)(void *)((char *)view->m + shift),
      .d = (float *)(void *)((char *)view->d + shift),
      .n = (char *)view->n + shift,
      .token_stride = view->token_stride,
  };
}

static const bny_wire_view *moved_sources(bny_run *run, const bny_step *step, int half) {
  const bny_wire_view *views = &run->views[half][step->first];
  for (int32_t i = 0; i < step->count; i++) run->moved[i] = moved_view(&views[i], run->shift);
  return run->moved;
}

/* A caller without rows may pass NULL, from which no address can be computed. */
static bool has_rows(const bny_run *run, int32_t index) {
  return run->boxes[index].tokens > 0 && run->boxes[index].heads > 0;
}

typedef struct first_row {
  int32_t token, head;
} first_row;

/* The first row of a step's box, in the whole call. */
static first_row first_of(const bny_run *run, int32_t index) {
  return (first_row){run->token0[index] + run->token_move, run->plan->steps[index].slice.head0 + run->head_move};
}

/* ---- stores ------------------------------------------------------------------------------------------------------
 * A message that a peer will read is written with plain stores, or with stores that bypass the caches. Between cores
 * that share a cache, plain stores win (4 to 7 ns a line). Between other cores, streaming wins by more than twice (25
 * ns a line). In a virtual machine this changes at run time, so both ways are timed from time to time on the writer's
 * side. Each rank chooses for itself; the bits are the same. */

typedef struct store_timer {
  uint64_t begin;
  size_t lines;
  bool stream;
} store_timer;

/* Shorter messages fit the store buffer, and use plain stores. */
enum { STORE_BYTES_MIN = 4096, TRY_EVERY = 256, TRIES_FIRST = 64 };

/* Returns ticks of the time stamp counter, 2 to 4 per nanosecond. 0: reading a counter is too slow, and stores are
 * plain. */
static uint64_t store_ticks(void) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return 0;
#endif
}

static store_timer store_begin(bny_store *store, size_t bytes) {
  uint32_t count = store->count++;
  bool other = count < TRIES_FIRST ? count % 2 == 0 : count % TRY_EVERY == 0;
  return (store_timer){store_ticks(), bytes / 64, store->stream != other};
}

static void store_end(bny_store *store, const store_timer *timer) {
  enum { DEARER_TICKS = 24 };
  float *mean = &store->ticks_per_line[timer->stream];
  float ticks = (float)(store_ticks() - timer->begin) / (float)timer->lines;
  /* Preemption and page faults only add time. So the mean falls faster than it rises, and rises by bounded steps. */
  if (*mean > 0 && ticks > 4 * *mean) ticks = 4 * *mean;
  *mean = *mean > 0 ? *mean + (ticks - *mean) / (ticks < *mean ? 4 : 16) : ticks;
  store->stream = store->ticks_per_line[1] > 0 && store->ticks_per_line[0] > store->ticks_per_line[1] + DEARER_TICKS;
}

/* ---- partials ---------------------------------------------------------------------------------------------------- */

static banyan_status copy_partials(bny_run *run, int32_t index, const bny_bound_step *bound) {
  const bny_plan *plan = run->plan;
  const bny_step *step = &plan->steps[index];
  const bny_binding *binding = run->binding;
  const bny_box *box = &run->boxes[index];
  const first_row first = first_of(run, index);
  bny_wire_view to = moved_view(&bound->to, run->shift);
  store_timer timer = {0};
  size_t bytes = run->slot_bytes[step->slot];
  bool is_timed = bytes >= STORE_BYTES_MIN && !run->exec->progress; /* otherwise stores are plain */
  if (is_timed) timer = store_begin(&run->exec->store, bytes);
  to.stream = timer.stream;
  to.saturated = &run->report.saturated;
  const uint8_t *valid = binding->valid_tokens ? binding->valid_tokens + first.token : NULL;
  const bny_kernels *kernels = run->exec->kernels;
  int32_t token = first.token - binding->in_token0, head = first.head - binding->in_head0; /* in the caller's memory */
  int64_t bad = valid             ? bny_valid_encode(kernels, box, binding->in, token, head, plan->wire, valid, &to)
                : box->tokens > 0 ? kernels->encode(box, binding->in, token, head, plan->wire, &to)
                                  : -1;
  if (is_timed) store_end(&run->exec->store, &timer);
  if (bad < 0) return BANYAN_OK;
  return bny_exec_fail(run->exec, BANYAN_ERR_DATA, plan->rank,
                       "rank %d: statistics of token %d, head %d are invalid: NaN or +inf that `empty` does not "
                       "declare to be an empty row, or a negative d",
                       plan->rank, first.token + (int32_t)(bad / box->heads), first.head + (int32_t)(bad % box->heads));
}

static void merge_partials(bny_run *run, int32_t index, int half) {
  const bny_plan *plan = run->plan;
  const bny_step *step = &plan->steps[index];
  bny_wire_view to = moved_view(&run->steps[half][index].to, run->shift);
  run->exec->kernels->merge(&run->boxes[index], plan->wire, step->count, moved_sources(run, step, half),
                            plan->round_nodes, &to);
}

static void deliver_partials(bny_run *run, int32_t index, int half) {
  const bny_plan *plan = run->plan;
  const bny_step *step = &plan->steps[index];
  const bny_box *box = &run->boxes[index];
  const bny_binding *binding = run->binding;
  const bny_valid_merge merge = {run->exec->kernels, plan->wire,  step->count, moved_sources(run, step, half),
                                 plan->round_nodes,  binding->out};
  const first_row first = first_of(run, index);
  int32_t token = first.token - binding->out_token0,
          head = first.head - binding->out_head0; /* in the caller's memory */
  int64_t row = -1;
  if (binding->keeps_empty_rows)
    row = bny_valid_finish(&merge, box, token, head);
  else if (box->tokens > 0)
    row = merge.kernels->merge_finish(box, merge.wire, merge.count, merge.sources, merge.round_nodes, merge.out, token,
                                      head);
  if (row < 0 || run->report.lost) return;
  run->report.lost = true;
  run->report.lost_token = first.token + (int32_t)(row / box->heads);
  run->report.lost_head = first.head + (int32_t)(row % box->heads);
}

static banyan_status report_partials(const bny_run_report *report, int32_t rank, const bny_binding *binding) {
  return bny_fail(
      BANYAN_ERR_DATA,
      "rank %d: %s cannot hold the statistics of token %d, head %d of the result; all other rows are right. Give "
      "out.stats_dtype a type of a wider range",
      rank, bny_wire_formats[bny_wire_of_dtype(binding->out->stats_dtype)].name, report->lost_token, report->lost_head);
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

/* Copies a box of rows; `to` and `from` do not overlap. Rows that are neighbours in both are copied at once. */
static void strided_copy(const bny_strided *to, const bny_strided *from, int32_t tokens, int32_t heads,
                         size_t row_bytes) {
  if (tokens <= 0 || heads <= 0) return;
  int64_t row = (int64_t)row_bytes, line = row * heads;
  bool lines = heads == 1 || (to->head_stride == row && from->head_stride == row);
  bool block = lines && (tokens == 1 || (to->token_stride == line && from->token_stride == line));
  size_t bytes = lines ? (size_t)line : row_bytes;
  if (block) {
    bytes *= (size_t)tokens;
    tokens = 1;
  }
  if (lines) heads = 1;
  for (int32_t t = 0; t < tokens; t++) {
    char *there = to->at + t * to->token_stride;
    const char *here = from->at + t * from->token_stride;
    for (int32_t h = 0; h < heads; h++) memcpy(there + h * to->head_stride, here + h * from->head_stride, bytes);
  }
}

/* Returns the heads within a message. */
static bny_strided heads_of(const bny_run *run, const bny_wire_view *view) {
  int64_t row_bytes = (int64_t)run->plan->row_bytes;
  return (bny_strided){(char *)view->n + run->shift, view->token_stride * row_bytes, row_bytes};
}

static void move_heads(const bny_run *run, int32_t index, const bny_strided *to, const bny_strided *from) {
  strided_copy(to, from, run->boxes[index].tokens, run->boxes[index].heads, run->plan->row_bytes);
}

static banyan_status copy_heads(bny_run *run, int32_t index, const bny_bound_step *bound) {
  const bny_binding *binding = run->binding;
  if (!has_rows(run, index)) return BANYAN_OK;
  bny_strided to = heads_of(run, &bound->to);
  first_row first = first_of(run, index);
  bny_strided from = bny_strided_at(&binding->mine, first.token, first.head - binding->in_head0);
  move_heads(run, index, &to, &from);
  return BANYAN_OK;
}

static void forward_heads(bny_run *run, int32_t index, int half) {
  bny_strided to = heads_of(run, &run->steps[half][index].to);
  bny_strided from = heads_of(run, &run->views[half][run->plan->steps[index].first]);
  move_heads(run, index, &to, &from);
}

static void deliver_heads(bny_run *run, int32_t index, int half) {
  const bny_binding *binding = run->binding;
  const bny_step *step = &run->plan->steps[index];
  first_row first = first_of(run, index);
  if (!has_rows(run, index)) return;
  if (binding->in_place && first.head >= binding->in_head0 && first.head < binding->in_head0 + binding->in_heads)
    return;
  bny_strided to = bny_strided_at(&binding->all, first.token, first.head);
  bny_strided from = heads_of(run, &run->views[half][step->first]);
  move_heads(run, index, &to, &from);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static const bny_kernels *kernels_of(const bny_run *run) { return run->exec->kernels; }

/* Row `head` of token t within a message. */
static void *sums_at(const bny_run *run, const bny_wire_view *view, int32_t t, int32_t head) {
  return (char *)view->n + run->shift + (size_t)(t * view->token_stride + head) * run->plan->row_bytes;
}

/* The next columns of a box, from row `head` on, that are neighbours. */
static bny_columns columns_of(const bny_run *run, int32_t index, int32_t head) {
  return bny_call_columns(run->binding->call, run->plan->nranks, first_of(run, index).head + head,
                          run->boxes[index].heads - head);
}

/* Zeroes the blocks of a message that have no column. */
static void clear_empty(const bny_run *run, bny_columns columns, void *to) {
  const size_t row = run->plan->row_bytes, each = (size_t)run->binding->call->value_dim;
  const size_t full = ((size_t)columns.count + each - 1) / each;
  memset((char *)to + full * row, 0, ((size_t)columns.rows - full) * row);
}

static banyan_status copy_sums(bny_run *run, int32_t index, const bny_bound_step *bound) {
  const bny_box *box = &run->boxes[index];
  const bny_binding *binding = run->binding;
  if (!has_rows(run, index)) return BANYAN_OK;
  for (int32_t head = 0; head < box->heads;) {
    bny_columns columns = columns_of(run, index, head);
    bny_strided from = bny_strided_at(&binding->mine, first_of(run, index).token, columns.first);
    for (int32_t t = 0; t < box->tokens; t++) {
      void *to = sums_at(run, &bound->to, t, head);
      run->report.saturated += kernels_of(run)->sum_encode(from.at + t * from.token_stride, binding->dtype,
                                                           columns.count, run->plan->wire, to);
      clear_empty(run, columns, to);
    }
    head += columns.rows;
  }
  return BANYAN_OK;
}

/* Adds the sources of a step for each token, to a slot or to the caller's result. */
static void sum_step(bny_run *run, int32_t index, int half, const bny_strided *out) {
  const bny_plan *plan = run->plan;
  const bny_step *step = &plan->steps[index];
  const bny_box *box = &run->boxes[index];
  banyan_dtype dtype = out ? run->binding->dtype : bny_wire_formats[plan->wire].dtype;
  const void *sources[BNY_MERGE_SOURCES_MAX];
  for (int32_t head = 0; head < box->heads;) {
    bny_columns columns = columns_of(run, index, head);
    for (int32_t t = 0; t < box->tokens; t++) {
      for (int32_t i = 0; i < step->count; i++) sources[i] = sums_at(run, &run->views[half][step->first + i], t, head);
      void *to = out ? out->at + t * out->token_stride + columns.first * out->head_stride
                     : sums_at(run, &run->steps[half][index].to, t, head);
      kernels_of(run)->sum(step->count, sources, columns.count, plan->wire, plan->round_nodes, !out, to, dtype);
      if (!out) clear_empty(run, columns, to);
    }
    head += columns.rows;
  }
}

static void merge_sums(bny_run *run, int32_t index, int half) {
  if (has_rows(run, index)) sum_step(run, index, half, NULL);
}

static void deliver_sums(bny_run *run, int32_t index, int half) {
  const bny_binding *binding = run->binding;
  if (!has_rows(run, index)) return;
  bny_columns own = bny_call_columns(binding->call, run->plan->nranks, binding->out_head0, 0);
  bny_strided to = bny_strided_at(&binding->all, first_of(run, index).token - binding->out_token0, -own.first);
  sum_step(run, index, half, &to);
}

/* ---- selections -------------------------------------------------------------------------------------------------- */

/* The list of row (t, h) of a box within a message. */
static bny_pair *list_at(const bny_run *run, const bny_wire_view *view, int32_t t, int32_t h) {
  return (bny_pair *)(void *)((char *)view->n + run->shift +
                              (size_t)(t * view->token_stride + h) * run->plan->row_bytes);
}

/* The number of this row in the caller's memory. */
static int64_t row_of(const bny_run *run, int32_t index, int32_t t, int32_t h) {
  first_row first = first_of(run, index);
  return (int64_t)(first.token + t) * run->binding->heads + first.head + h;
}

static int32_t pairs_of(const bny_run *run) { return (int32_t)(run->plan->row_bytes / sizeof(bny_pair)); }

static banyan_status copy_lists(bny_run *run, int32_t index, const bny_bound_step *bound) {
  const bny_box *box = &run->boxes[index];
  for (int32_t t = 0; t < box->tokens; t++)
    for (int32_t h = 0; h < box->heads; h++)
      bny_select_encode(kernels_of(run), &run->binding->lists, row_of(run, index, t, h), pairs_of(run), run->plan->rank,
                        list_at(run, &bound->to, t, h));
  return BANYAN_OK;
}

static void merge_list(const bny_run *run, int32_t index, int half, int32_t t, int32_t h, bny_pair *to) {
  const bny_step *step = &run->plan->steps[index];
  const bny_pair *lists[BNY_MERGE_SOURCES_MAX];
  for (int32_t i = 0; i < step->count; i++) lists[i] = list_at(run, &run->views[half][step->first + i], t, h);
  bny_select_merge(step->count, lists, pairs_of(run), to);
}

static void merge_lists(bny_run *run, int32_t index, int half) {
  const bny_box *box = &run->boxes[index];
  for (int32_t t = 0; t < box->tokens; t++)
    for (int32_t h = 0; h < box->heads; h++)
      merge_list(run, index, half, t, h, list_at(run, &run->steps[half][index].to, t, h));
}

/* All ranks find the same pairs, so they report the same first row with an index that is there twice. */
static void deliver_lists(bny_run *run, int32_t index, int half) {
  const bny_box *box = &run->boxes[index];
  bny_run_report *report = &run->report;
  bny_pair best[BNY_SELECT_MOST];
  for (int32_t t = 0; t < box->tokens; t++)
    for (int32_t h = 0; h < box->heads; h++) {
      int64_t row = row_of(run, index, t, h);
      merge_list(run, index, half, t, h, best);
      bny_doubled doubled =
          bny_select_finish(kernels_of(run), best, pairs_of(run), run->plan->rank, &run->binding->lists, row);
      int32_t token = (int32_t)(row / run->binding->heads), head = (int32_t)(row % run->binding->heads);
      bool later = token > report->lost_token || (token == report->lost_token && head > report->lost_head);
      if (doubled.index < 0 || (report->lost && later)) continue;
      report->lost = true;
      report->lost_token = token;
      report->lost_head = head;
      report->doubled = doubled;
    }
}

static banyan_status report_lists(const bny_run_report *report, int32_t rank, const bny_binding *binding) {
  const bny_doubled *of = &report->doubled;
  (void)rank;
  (void)binding;
  return bny_fail(BANYAN_ERR_DATA, BNY_EXEC_TWICE, of->index, report->lost_token, report->lost_head, of->ranks[0],
                  of->ranks[1]);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static banyan_status copy_bytes(bny_run *run, int32_t index, const bny_bound_step *bound) {
  const bny_slice *slice = &run->plan->steps[index].slice;
  const bny_binding *binding = run->binding;
  if (slice->bytes)
    memcpy(bound->to_bytes + run->shift, binding->in_bytes + (slice->byte0 - binding->in_byte0), slice->bytes);
  return BANYAN_OK;
}

static void forward_bytes(bny_run *run, int32_t index, int half) {
  const bny_bound_step *bound = &run->steps[half][index];
  size_t bytes = run->plan->steps[index].slice.bytes;
  if (bytes) memcpy(bound->to_bytes + run->shift, bound->from_bytes + run->shift, bytes);
}

static void deliver_bytes(bny_run *run, int32_t index, int half) {
  for (int32_t i = run->piece_first[index]; i < run->piece_first[index + 1]; i++)
    memcpy(run->binding->out_bytes + run->pieces[i].to,
           run->steps[half][index].from_bytes + run->shift + run->pieces[i].from, run->pieces[i].bytes);
}

const bny_payload_ops bny_payload_table[BNY_COLLECTIVES] = {
    [BNY_COMBINE] = {copy_partials, merge_partials, deliver_partials, report_partials},
    [BNY_ALLGATHER] = {copy_bytes, forward_bytes, deliver_bytes, NULL},
    [BNY_ALLGATHER_HEADS] = {copy_heads, forward_heads, deliver_heads, NULL},
    [BNY_SHIFT] = {copy_bytes, forward_bytes, deliver_bytes, NULL},
    [BNY_BROADCAST] = {copy_bytes, forward_bytes, deliver_bytes, NULL},
    [BNY_ALLREDUCE] = {copy_sums, merge_sums, deliver_sums, NULL},
    [BNY_SELECT] = {copy_lists, merge_lists, deliver_lists, report_lists},
    [BNY_BARRIER] = {copy_bytes, forward_bytes, deliver_bytes, NULL},
};
