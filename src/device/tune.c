/* SPDX-License-Identifier: Apache-2.0 */
#include "device/tune.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/unit.h"
#include "base/log.h"
#include "plan/builder.h"
#include "base/status.h"

/* The payloads to measure: rows as in models in service, from a few to what one launch may take. */
enum { VALUE_DIM = 128 };
static const struct { int32_t tokens, heads; } sizes[] = {{1, 4}, {1, 32}, {4, 32}, {16, 32}, {64, 32}, {256, 32}};
static const banyan_scatter scatters[] = {BANYAN_SCATTER_NONE, BANYAN_SCATTER_HEADS};
static const banyan_order orders[] = {BANYAN_ORDER_PLAN, BANYAN_ORDER_CANONICAL};

enum {
  CONTENDERS_MAX = 40,
  HOPELESS = 5,     /* predicted to take this many times as long as the best: not tried */
  FAR_BEHIND = 3,   /* this much slower in the first round: not measured again */
  RUNS_MAX = 20,    /* in a row, as one graph if the driver has graphs, */
  RUNS_NS = 200000, /* or as many as take this long */
  TIMES = 5,        /* repetitions; the median counts */
  SHARE_MAX = 4
};

typedef struct contender {
  bny_measurement row;
  bny_plan *plan;
  bny_device_run *run;
  void *graph;   /* of runs in a row; NULL: they are launched one by one */
  double own_ns; /* on this rank; the row has that of the slowest */
  bool left;     /* still in the race */
} contender;

/* The report of each rank to all. */
typedef struct report {
  int32_t status;
  int32_t count;
  int32_t graphs;
  char why[BNY_ERROR_TEXT_BYTES]; /* it failed, or the last contender that it has not */
  double ns[CONTENDERS_MAX];
} report;

typedef struct bny_device_tuner {
  bny_device_exec *exec;
  const bny_exchange *exchange;
  bny_measured *found;
  bny_request request; /* of the present class */
  bny_measured forced; /* makes a run take the contender's form */
  contender contenders[CONTENDERS_MAX];
  int32_t count;
  char lacks[BNY_ERROR_TEXT_BYTES]; /* why another contender could not be made */
  report *reports;                  /* of all ranks */
  bool graphs;                      /* the drivers of all ranks have them */
  void *stream, *marks[TIMES + 1];
  void *in, *out; /* scratch: rows of zeros, and the place of merged ones */
  banyan_partial in_rows, out_rows;
  bny_binding binding;
} tuner;

/* ---- contenders -------------------------------------------------------------------------------------------------- */

/* A contender that cannot be made is left out. That is the same on all ranks, except for failures of this rank alone,
 * which agree() finds. */
static banyan_status add_contender(tuner *tuner, const bny_measurement *row) {
  char name[64];
  size_t length = 0;
  contender *made = &tuner->contenders[tuner->count];
  bny_request request = tuner->request;
  if (tuner->count == CONTENDERS_MAX) return BANYAN_OK;
  *made = (contender){.row = *row, .left = true};
  made->row.ns = 1; /* any measured time; its value does not matter for making the run */
  tuner->forced.rows[0] = made->row;
  tuner->forced.count = 1;
  bny_algorithm_print(bny_algorithms[row->algorithm], name, sizeof name, &length);
  request.algorithm = name;
  request.measured = &tuner->forced;
  banyan_status status = bny_plan_make(&request, tuner->exec->engine->group.rank, &made->plan);
  if (status == BANYAN_OK)
    status = bny_device_run_make(tuner->exec, &request, made->plan, NULL, &tuner->binding, &made->run);
  if (status == BANYAN_OK) {
    tuner->count++;
    return BANYAN_OK;
  }
  bny_plan_free(made->plan);
  snprintf(tuner->lacks, sizeof tuner->lacks, "%s", banyan_last_error());
  return status == BANYAN_ERR_MEMORY || status == BANYAN_ERR_UNSUPPORTED ? BANYAN_OK : status;
}

static void free_contenders(tuner *tuner) {
  const bny_engine *engine = tuner->exec->engine;
  for (int32_t i = 0; i < tuner->count; i++) {
    if (!engine->stuck) engine->device->ops->graph_free(engine->device, tuner->contenders[i].graph);
    bny_device_run_free(tuner->contenders[i].run);
    bny_plan_free(tuner->contenders[i].plan);
  }
  tuner->count = 0;
}

static banyan_status add_contenders(tuner *tuner) {
  bny_candidate candidates[BNY_CANDIDATES_MAX];
  tuner->lacks[0] = 0;
  int32_t count = bny_algorithm_candidates(&tuner->request, candidates);
  double least = INFINITY;
  for (int32_t i = 0; i < count; i++)
    if (candidates[i].chosen) least = candidates[i].ns;
  banyan_status status = BANYAN_OK;
  for (int32_t i = 0; i < count; i++) {
    if (candidates[i].refusal || !candidates[i].fits || candidates[i].ns > HOPELESS * least) continue;
    for (int32_t protocol = 0; protocol < BNY_PROTOCOL_COUNT && status == BANYAN_OK; protocol++) {
      if (!bny_unit_protocol_serves(protocol, &tuner->exec->settings)) continue;
      bny_measurement row = {.scatter = tuner->request.scatter,
                             .order = tuner->request.order,
                             .bytes = bny_measured_bytes(&tuner->request),
                             .algorithm = i,
                             .share = 1};
      snprintf(row.carrier, sizeof row.carrier, "%s", bny_unit_protocol_name(protocol));
      status = add_contender(tuner, &row);
    }
  }
  return status;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static banyan_status check_fault(const tuner *tuner) {
  bny_device_fault fault = bny_engine_fault(tuner->exec->engine);
  if (fault.status == BANYAN_OK) return BANYAN_OK;
  return bny_fail((banyan_status)fault.status, "a combine that was measured failed on rank %d", fault.culprit);
}

/* Keeps memory and graphs that may still be in use when the time is over. */
static banyan_status await_stream(const tuner *tuner) {
  bny_engine *engine = tuner->exec->engine;
  banyan_status status = bny_device_wait(engine->device, tuner->stream, tuner->exchange->deadline_ns);
  if (status == BANYAN_ERR_TIMEOUT) engine->stuck = true;
  return status;
}

/* All ranks learn how long it took on each, or that a rank has failed or could not make what others have. */
static banyan_status agree(tuner *tuner, banyan_status status) {
  int32_t nranks = tuner->request.nranks, rank = tuner->exec->engine->group.rank;
  report own = {.status = (int32_t)status, .count = tuner->count, .graphs = tuner->graphs};
  snprintf(own.why, sizeof own.why, "%s", status == BANYAN_OK ? tuner->lacks : banyan_last_error());
  for (int32_t i = 0; i < tuner->count; i++) own.ns[i] = tuner->contenders[i].own_ns;
  /* Kernels of peers wait for this rank's. */
  if (status != BANYAN_OK) bny_engine_abort(tuner->exec->engine, status, rank);
  banyan_status heard = bny_exchange_all(tuner->exchange, &own, tuner->reports, sizeof own);
  if (status != BANYAN_OK) return bny_fail(status, "%s", own.why);
  for (int32_t r = 0; r < nranks && heard == BANYAN_OK; r++) {
    const report *other = &tuner->reports[r];
    int length = (int)sizeof other->why - 1;
    if (other->status != BANYAN_OK)
      heard = bny_fail((banyan_status)other->status, "rank %d failed while combines were measured: %.*s", r, length,
                       other->why);
    else if (other->count != own.count)
      heard = bny_fail(BANYAN_ERR_MISMATCH, "rank %d measures %d forms of a combine, this rank %d (%.*s)", r,
                       other->count, own.count, length, other->count < own.count ? other->why : own.why);
    if (!other->graphs) tuner->graphs = false;
    for (int32_t i = 0; i < tuner->count && heard == BANYAN_OK; i++) {
      double *ns = &tuner->contenders[i].row.ns;
      if (r == 0 || other->ns[i] > *ns) *ns = other->ns[i];
    }
  }
  return heard;
}

/* Everything that may wait for kernels, with the driver's locks held, comes before any rank launches, because other
 * ranks' kernels may wait for this one's. */
static banyan_status make_graphs(tuner *tuner, int32_t first, int32_t runs) {
  bny_device *device = tuner->exec->engine->device;
  banyan_status status = BANYAN_OK;
  for (int32_t i = first; i < tuner->count && status == BANYAN_OK; i++) {
    contender *one = &tuner->contenders[i];
    if (!one->left) continue;
    status = device->ops->graph_begin(device, tuner->stream);
    if (status != BANYAN_OK) break;
    for (int32_t k = 0; k < runs && status == BANYAN_OK; k++)
      status = bny_device_run_start(one->run, &tuner->binding, tuner->stream);
    if (status == BANYAN_OK)
      status = device->ops->graph_end(device, tuner->stream, &one->graph);
    else
      device->ops->graph_end(device, tuner->stream, NULL);
  }
  if (status == BANYAN_OK) status = await_stream(tuner);
  return agree(tuner, status);
}

static banyan_status start(tuner *tuner, const contender *contender, int32_t runs) {
  bny_device *device = tuner->exec->engine->device;
  banyan_status status = BANYAN_OK;
  if (contender->graph) return device->ops->graph_launch(device, contender->graph, tuner->stream);
  for (int32_t i = 0; i < runs && status == BANYAN_OK; i++)
    status = bny_device_run_start(contender->run, &tuner->binding, tuner->stream);
  return status;
}

static int ascending(const void *a, const void *b) {
  double first = *(const double *)a, second = *(const double *)b;
  return (first > second) - (first < second);
}

/* The first runs synchronise the ranks, and those of a graph last until the host has launched the next one. So the
 * host's own time has no part in the measurement. */
static banyan_status time_runs(tuner *tuner, const contender *contender, int32_t runs, int32_t times, double *ns) {
  bny_device *device = tuner->exec->engine->device;
  double elapsed_ns[TIMES];
  banyan_status status = start(tuner, contender, 1);
  for (int32_t i = 0; i <= times && status == BANYAN_OK; i++) {
    if (i > 0) status = start(tuner, contender, runs);
    if (status == BANYAN_OK) status = device->ops->mark_set(device, tuner->marks[i], tuner->stream);
  }
  if (status == BANYAN_OK) status = await_stream(tuner);
  if (status == BANYAN_OK) status = check_fault(tuner);
  for (int32_t i = 0; i < times && status == BANYAN_OK; i++)
    status = device->ops->mark_elapsed(device, tuner->marks[i], tuner->marks[i + 1], &elapsed_ns[i]);
  if (status != BANYAN_OK) return status;
  qsort(elapsed_ns, (size_t)times, sizeof *elapsed_ns, ascending);
  *ns = fmax(1, rint(elapsed_ns[times / 2] / runs)); /* as a file keeps it, and clocks are coarse */
  return BANYAN_OK;
}

static banyan_status round_of(tuner *tuner, int32_t first, int32_t times, int32_t runs) {
  banyan_status status = BANYAN_OK;
  for (int32_t i = first; i < tuner->count && status == BANYAN_OK; i++)
    if (tuner->contenders[i].left)
      status = time_runs(tuner, &tuner->contenders[i], runs, times, &tuner->contenders[i].own_ns);
  return agree(tuner, status);
}

/* Replays graphs, as programs do that need speed. */
static banyan_status measure(tuner *tuner, int32_t first, int32_t runs) {
  banyan_status status = tuner->graphs ? make_graphs(tuner, first, runs) : BANYAN_OK;
  return status == BANYAN_OK ? round_of(tuner, first, TIMES, runs) : status;
}

static int32_t best_of(const tuner *tuner) {
  int32_t best = -1;
  for (int32_t i = 0; i < tuner->count; i++)
    if (best < 0 || tuner->contenders[i].row.ns < tuner->contenders[best].row.ns) best = i;
  return best;
}

/* Measures the best with fewer blocks: fewer signals, and fewer SMs taken from others. */
static banyan_status try_shares(tuner *tuner, int32_t runs) {
  int32_t first = tuner->count;
  bny_measurement row = tuner->contenders[best_of(tuner)].row;
  banyan_status status = BANYAN_OK;
  for (row.share = 2; row.share <= SHARE_MAX && status == BANYAN_OK; row.share *= 2)
    status = add_contender(tuner, &row);
  status = agree(tuner, status);
  return status == BANYAN_OK && tuner->count > first ? measure(tuner, first, runs) : status;
}

/* ---- what came of it --------------------------------------------------------------------------------------------- */

static void note(tuner *tuner, const bny_measurement *row) {
  bny_measured *found = tuner->found;
  for (int32_t i = 0; i < found->count; i++) {
    bny_measurement *old = &found->rows[i];
    if (old->algorithm != row->algorithm || old->bytes != row->bytes || old->scatter != row->scatter ||
        old->order != row->order)
      continue;
    if (row->ns < old->ns) *old = *row;
    return;
  }
  if (found->count < BNY_MEASURED_MAX) found->rows[found->count++] = *row;
}

static void tell(const tuner *tuner) {
  const bny_measurement *best = &tuner->contenders[best_of(tuner)].row, *next = NULL;
  if (!bny_log_wants(BNY_LOG_INFO)) return;
  for (int32_t i = 0; i < tuner->count; i++) {
    const bny_measurement *row = &tuner->contenders[i].row;
    if (row->algorithm != best->algorithm && (!next || row->ns < next->ns)) next = row;
  }
  char name[64], beside[64] = "nothing";
  size_t ends[2] = {0};
  bny_algorithm_print(bny_algorithms[best->algorithm], name, sizeof name, &ends[0]);
  if (next) bny_algorithm_print(bny_algorithms[next->algorithm], beside, sizeof beside, &ends[1]);
  bny_log(BNY_LOG_INFO,
          "combine of %" PRIu64 " bytes, scatter %s, order %s: measured in %s %s by %s %.2f us, next %s %.2f us",
          best->bytes, bny_scatter_name(best->scatter), bny_order_name(best->order), bny_measured_way(tuner->found),
          name, best->carrier, best->ns / 1e3, beside, next ? next->ns / 1e3 : 0.0);
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

static void bind(tuner *tuner) {
  const bny_request *request = &tuner->request;
  size_t values = (size_t)request->tokens * (size_t)request->heads * VALUE_DIM;
  banyan_partial_init(&tuner->in_rows, tuner->in, BANYAN_F32, (float *)tuner->in + values, BANYAN_F32, request->heads,
                      VALUE_DIM);
  banyan_partial_init(&tuner->out_rows, tuner->out, BANYAN_F32, (float *)tuner->out + values, BANYAN_F32,
                      request->heads, VALUE_DIM);
  tuner->binding = (bny_binding){.in = &tuner->in_rows, .out = &tuner->out_rows};
  int32_t number;
  if (request->scatter == BANYAN_SCATTER_HEADS)
    bny_slice_split(request->heads, request->nranks, tuner->exec->engine->group.rank, &tuner->binding.out_head0,
                    &number);
}

static banyan_status measure_class(tuner *tuner) {
  bind(tuner);
  banyan_status status = agree(tuner, add_contenders(tuner));
  if (status != BANYAN_OK || tuner->count == 0) return status;
  status = round_of(tuner, 0, 1, 1); /* by launches, which make times look more alike than they are */
  if (status != BANYAN_OK) return status;
  double best = tuner->contenders[best_of(tuner)].row.ns;
  for (int32_t i = 0; i < tuner->count; i++)
    tuner->contenders[i].left = tuner->contenders[i].row.ns <= FAR_BEHIND * best;
  int32_t runs = best > 0 && RUNS_NS / best < RUNS_MAX ? (int32_t)(RUNS_NS / best) : RUNS_MAX;
  if (runs < 1) runs = 1;
  status = measure(tuner, 0, runs);
  if (status == BANYAN_OK) status = try_shares(tuner, runs);
  if (status != BANYAN_OK) return status;
  for (int32_t i = 0; i < tuner->count; i++) note(tuner, &tuner->contenders[i].row);
  tell(tuner);
  return BANYAN_OK;
}

static size_t scratch_bytes(const tuner *tuner, size_t *classes) {
  size_t most = 0, row = VALUE_DIM * sizeof(float) + 2 * sizeof(float);
  for (*classes = 0; *classes < sizeof sizes / sizeof sizes[0]; ++*classes) {
    size_t bytes = (size_t)sizes[*classes].tokens * (size_t)sizes[*classes].heads * row;
    if (bytes > tuner->exec->outbox_bytes) break;
    most = bytes;
  }
  return most;
}

static banyan_status measure_classes(tuner *tuner, const bny_request *like, size_t classes) {
  banyan_status status = BANYAN_OK;
  for (size_t i = 0; i < classes * 4 && status == BANYAN_OK; i++) {
    bny_request *request = &tuner->request;
    *request = *like;
    request->collective = BNY_COMBINE;
    request->tokens = request->all_tokens = sizes[i / 4].tokens;
    request->heads = request->all_heads = sizes[i / 4].heads;
    request->value_dim = VALUE_DIM;
    request->wire = BNY_WIRE_F32;
    request->scatter = scatters[i / 2 % 2];
    request->order = orders[i % 2];
    request->algorithm = NULL;
    request->measured = NULL;
    status = measure_class(tuner);
    free_contenders(tuner);
  }
  return status;
}

static banyan_status prepare(tuner *tuner, size_t bytes) {
  bny_device *device = tuner->exec->engine->device;
  banyan_status status = device->ops->stream_make(device, &tuner->stream);
  for (int32_t i = 0; i <= TIMES && status == BANYAN_OK; i++) status = device->ops->mark_make(device, &tuner->marks[i]);
  if (status == BANYAN_OK) status = device->ops->local_make(device, bytes, &tuner->in);
  if (status == BANYAN_OK) status = device->ops->local_make(device, bytes, &tuner->out);
  if (status == BANYAN_OK) status = device->ops->zero(device, tuner->in, bytes, tuner->stream);
  return status;
}

static void clean(tuner *tuner) {
  bny_device *device = tuner->exec->engine->device;
  if (!tuner->exec->engine->stuck) {
    device->ops->local_free(device, tuner->in);
    device->ops->local_free(device, tuner->out);
  }
  for (int32_t i = 0; i <= TIMES; i++) device->ops->mark_free(device, tuner->marks[i]);
  device->ops->stream_free(device, tuner->stream);
}

banyan_status bny_device_tuner_make(int32_t nranks, bny_device_tuner **tuner) {
  bny_device_tuner *made = calloc(1, sizeof *made);
  if (made) made->reports = calloc((size_t)nranks, sizeof *made->reports);
  if (!made || !made->reports) {
    free(made);
    return bny_fail(BANYAN_ERR_MEMORY, "out of memory to measure combines");
  }
  *tuner = made;
  return BANYAN_OK;
}

void bny_device_tuner_free(bny_device_tuner *tuner) {
  if (!tuner) return;
  free(tuner->reports);
  free(tuner);
}

banyan_status bny_device_tune(bny_device_tuner *tuner, bny_device_exec *exec, const bny_exchange *exchange,
                              const bny_request *like, bny_measured *measured) {
  *measured = (bny_measured){.nranks = like->nranks};
  snprintf(measured->machine, sizeof measured->machine, "%s", exec->engine->device->facts.name);
  tuner->exec = exec;
  tuner->exchange = exchange;
  tuner->found = measured;
  tuner->request = *like;
  size_t classes, bytes = scratch_bytes(tuner, &classes);
  tuner->graphs = exec->engine->device->facts.graphs;
  banyan_status status = agree(tuner, prepare(tuner, bytes > 0 ? bytes : 1));
  measured->replays = tuner->graphs;
  if (status == BANYAN_OK) status = measure_classes(tuner, like, classes);
  clean(tuner);
  return status;
}
