/* SPDX-License-Identifier: Apache-2.0
 * Times attention and combine on a device, separately and fused, in captured graphs. */
#include "tools/decode/decode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/common/device_ranks.h"
#include "tools/common/json.h"

enum { CACHES_MAX = 64, RUNS_MIN = 4, WARMUP = 5, ROWS_CHECKED = 6 };

/* Error bound of attention: f32 sums of products whose weights are two 16-bit terms. The bound of the combine is
 * added. */
static const double error_bound = 3e-5;

typedef enum form { ATTENTION, APART, FUSED } form;

/* A rank's memory on the device and its operations, one for each cache. */
typedef struct rank_memory {
  decode_device_tensor keys[CACHES_MAX], values[CACHES_MAX]; /* MLA: no values */
  void *lengths;
  float *rows, *out; /* o, followed by lse */
  banyan_op *attention[CACHES_MAX], *fused[CACHES_MAX], *combine;
} rank_memory;

typedef struct measurement {
  const decode_device_settings *settings;
  decode_device_result *result;
  device_ranks ranks;
  int32_t value_dim;
  bool latent;
  decode_pattern pattern;
  decode_device_tensor q;
  rank_memory memories[DEVICE_RANKS_MAX];
} measurement;

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static int32_t keys_of(const measurement *m, int32_t rank) {
  int32_t first, count;
  banyan_split(m->settings->shape.tokens, m->ranks.nranks, rank, &first, &count);
  return count;
}

static int64_t tensor_count(const measurement *m, int32_t rank) {
  const decode_shape *shape = &m->settings->shape;
  return (int64_t)shape->batch * shape->kv_heads * keys_of(m, rank) * shape->head_dim;
}

static size_t rows_bytes(const measurement *m) {
  const decode_shape *shape = &m->settings->shape;
  return (size_t)shape->batch * (size_t)shape->heads * ((size_t)m->value_dim + 1) * sizeof(float);
}

static void set_counts(measurement *m) {
  decode_device_result *result = m->result;
  int64_t cache_bytes = gpu_facts_of(m->ranks.device)->cache_bytes;
  result->kv_bytes = 0;
  for (int32_t r = 0; r < m->ranks.nranks; r++)
    result->kv_bytes += tensor_count(m, r) * (m->latent ? 1 : 2) * (int64_t)sizeof(uint16_t);
  int64_t caches = (4 * cache_bytes + result->kv_bytes - 1) / result->kv_bytes;
  result->caches = caches < 1 || m->settings->repeat < 3 ? 1 : caches > CACHES_MAX ? CACHES_MAX : (int32_t)caches;
  result->runs = result->caches < RUNS_MIN ? RUNS_MIN : result->caches;
}

static bool take_caches(measurement *m, int32_t rank, tool_error *error) {
  rank_memory *at = &m->memories[rank];
  int64_t count = tensor_count(m, rank);
  bool ok = true;
  for (int32_t c = 0; ok && c < m->result->caches; c++) {
    int64_t first = ((int64_t)rank * CACHES_MAX + c) * 2 * 104729;
    ok = decode_device_tensor_make(m->ranks.device, &m->pattern, first, count, m->ranks.streams[rank], &at->keys[c],
                                   error) &&
         (m->latent || decode_device_tensor_make(m->ranks.device, &m->pattern, first + 104729, count,
                                                 m->ranks.streams[rank], &at->values[c], error));
  }
  return ok;
}

static bool alloc_rank(measurement *m, int32_t rank, tool_error *error) {
  rank_memory *at = &m->memories[rank];
  gpu *device = m->ranks.device;
  int32_t batch = m->settings->shape.batch, keys = keys_of(m, rank);
  int32_t *lengths = tool_new((size_t)batch, sizeof *lengths);
  for (int32_t b = 0; b < batch; b++) lengths[b] = keys;
  return gpu_alloc(device, (size_t)batch * sizeof *lengths, &at->lengths, error) &&
         gpu_write(device, at->lengths, lengths, (size_t)batch * sizeof *lengths, error) &&
         gpu_alloc(device, rows_bytes(m), (void **)(void *)&at->rows, error) &&
         gpu_alloc(device, rows_bytes(m), (void **)(void *)&at->out, error) && take_caches(m, rank, error);
}

static bool take(measurement *m, tool_error *error) {
  const decode_device_settings *settings = m->settings;
  gpu *device = m->ranks.device;
  int64_t q_count = (int64_t)settings->shape.batch * settings->shape.heads * settings->shape.head_dim;
  int64_t wanted = 2 * tensor_count(m, 0) + q_count;
  bool ok = decode_pattern_make(device, settings->dtype, wanted, settings->seed, &m->pattern, error) &&
            decode_device_tensor_make(device, &m->pattern, 7919, q_count, m->ranks.streams[0], &m->q, error);
  for (int32_t r = 0; ok && r < m->ranks.nranks; r++) ok = alloc_rank(m, r, error);
  return ok && device_ranks_finish(&m->ranks, error);
}

static void give(measurement *m) {
  gpu *device = m->ranks.device;
  for (int32_t r = 0; r < m->ranks.nranks; r++) {
    rank_memory *at = &m->memories[r];
    banyan_op_free(at->combine);
    for (int32_t c = 0; c < CACHES_MAX; c++) {
      banyan_op_free(at->attention[c]);
      banyan_op_free(at->fused[c]);
      gpu_free(device, at->keys[c].memory);
      gpu_free(device, at->values[c].memory);
    }
    gpu_free(device, at->lengths);
    gpu_free(device, at->rows);
    gpu_free(device, at->out);
  }
  gpu_free(device, m->q.memory);
  decode_pattern_free(device, &m->pattern);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static banyan_attention_desc describe(const measurement *m, int32_t rank, int32_t c) {
  const decode_shape *shape = &m->settings->shape;
  const rank_memory *at = &m->memories[rank];
  int64_t keys = keys_of(m, rank), dim = shape->head_dim;
  const void *k = at->keys[c].memory, *v = m->latent ? k : at->values[c].memory;
  return (banyan_attention_desc){.size = sizeof(banyan_attention_desc),
                                 .batch = shape->batch,
                                 .heads = shape->heads,
                                 .kv_heads = shape->kv_heads,
                                 .head_dim = shape->head_dim,
                                 .value_dim = m->value_dim,
                                 .q_dtype = m->settings->dtype,
                                 .kv.dtype = m->settings->dtype,
                                 .q = m->q.memory,
                                 .q_batch_stride = shape->heads * dim,
                                 .q_head_stride = dim,
                                 .kv.k = k,
                                 .kv.k_batch_stride = shape->kv_heads * keys * dim,
                                 .kv.k_head_stride = keys * dim,
                                 .kv.k_token_stride = dim,
                                 .kv.v = v,
                                 .kv.v_batch_stride = shape->kv_heads * keys * dim,
                                 .kv.v_head_stride = keys * dim,
                                 .kv.v_token_stride = dim,
                                 .kv.seq_lens = at->lengths,
                                 .keys_max = (int32_t)keys,
                                 .stream = m->ranks.streams[rank]};
}

static banyan_partial partial_of(const measurement *m, float *memory) {
  const decode_shape *shape = &m->settings->shape;
  banyan_partial made;
  float *lse = memory + (size_t)shape->batch * (size_t)shape->heads * (size_t)m->value_dim;
  banyan_partial_init(&made, memory, BANYAN_F32, lse, BANYAN_F32, shape->heads, m->value_dim);
  return made;
}

static banyan_status plan(void *argument, int32_t rank) {
  measurement *m = argument;
  const decode_shape *shape = &m->settings->shape;
  rank_memory *at = &m->memories[rank];
  banyan_comm *comm = m->ranks.ranks[rank].comm;
  banyan_partial rows = partial_of(m, at->rows), out = partial_of(m, at->out);
  banyan_combine_desc combine = {.size = sizeof combine,
                                 .tokens = shape->batch,
                                 .heads = shape->heads,
                                 .value_dim = m->value_dim,
                                 .wire = m->settings->wire,
                                 .stream = m->ranks.streams[rank]};
  banyan_status status = BANYAN_OK;
  for (int32_t c = 0; c < m->result->caches && status == BANYAN_OK; c++) {
    banyan_attention_desc desc = describe(m, rank, c);
    status = banyan_attention_init(comm, &desc, &rows, &at->attention[c]);
    if (status == BANYAN_OK && m->ranks.nranks > 1)
      status = banyan_attention_combine_init(comm, &desc, &combine, &out, &at->fused[c]);
  }
  if (status == BANYAN_OK && m->ranks.nranks > 1)
    status = banyan_combine_init(comm, &combine, &rows, &out, &at->combine);
  return status;
}

static void tell(const banyan_op *op, char *text, size_t bytes) {
  banyan_op_info info = {.size = sizeof info};
  text[0] = '\0';
  if (op != NULL && banyan_op_query(op, &info) == BANYAN_OK) snprintf(text, bytes, "%s", info.reason);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static bool put(void *argument, int form, int32_t run, int32_t rank, tool_error *error) {
  measurement *m = argument;
  rank_memory *at = &m->memories[rank];
  int32_t cache = run % m->result->caches;
  switch (form) {
  case ATTENTION: return device_time_start(at->attention[cache], error);
  case APART: return device_time_start(at->attention[cache], error) && device_time_start(at->combine, error);
  default: return device_time_start(at->fused[cache], error);
  }
}

static bool time_form(measurement *m, form form, double *p50_us, double *p99_us, tool_error *error) {
  int32_t repeat = m->settings->repeat;
  device_timing timing = {.put = put,
                          .argument = m,
                          .form = form,
                          .runs = m->result->runs,
                          .warmup = repeat < WARMUP ? 1 : WARMUP,
                          .iterations = repeat};
  return device_time(&m->ranks, &timing, p50_us, p99_us, error);
}

/* ---- right or wrong ---------------------------------------------------------------------------------------------- */

/* Checks one row of the last run in a graph, over the shards of `nranks` ranks from `first` on. */
static void check_row(const measurement *m, int32_t row, int32_t first, int32_t nranks, const float *got,
                      double *worst) {
  const decode_shape *shape = &m->settings->shape;
  int32_t c = (m->result->runs - 1) % m->result->caches, dim = shape->head_dim;
  int32_t b = row / shape->heads, group = shape->heads / shape->kv_heads, kv_head = row % shape->heads / group;
  double q[DECODE_LATENT_DIM], out[DECODE_LATENT_DIM], weight[DECODE_LATENT_DIM];
  for (int32_t i = 0; i < dim; i++) q[i] = decode_device_tensor_value(&m->pattern, &m->q, (int64_t)row * dim + i);
  decode_row wanted = {.head_dim = dim,
                       .value_dim = m->value_dim,
                       .v_stride = dim,
                       .nranks = nranks,
                       .scale = 1 / sqrt((double)dim),
                       .q = q};
  for (int32_t r = 0; r < nranks; r++) {
    const rank_memory *at = &m->memories[first + r];
    wanted.keys[r] = &at->keys[c];
    wanted.values[r] = m->latent ? &at->keys[c] : &at->values[c];
    wanted.lengths[r] = keys_of(m, first + r);
    wanted.key_first[r] = wanted.value_first[r] = ((int64_t)b * shape->kv_heads + kv_head) * wanted.lengths[r] * dim;
  }
  decode_row_attend(&m->pattern, &wanted, out, weight);
  for (int32_t i = 0; i < m->value_dim; i++) {
    double off = fabs((double)got[i] - out[i]) / weight[i];
    *worst = off <= *worst ? *worst : off; /* NaN raises it too */
  }
}

/* Checks some rows of the result that rank `first` has in `memory`. */
static bool check(const measurement *m, const float *memory, int32_t first, int32_t nranks, tool_error *error) {
  int32_t rows = m->settings->shape.batch * m->settings->shape.heads;
  int32_t step = rows > ROWS_CHECKED ? (rows - 1) / (ROWS_CHECKED - 1) : 1;
  float got[DECODE_LATENT_DIM];
  for (int32_t row = 0; row < rows; row += step) {
    if (!gpu_read(m->ranks.device, got, memory + (size_t)row * (size_t)m->value_dim,
                  (size_t)m->value_dim * sizeof(float), error)) {
      return false;
    }
    check_row(m, row, first, nranks, got, &m->result->worst_error);
  }
  return true;
}

/* Overwrites the results, so that earlier ones cannot pass the check. */
static bool spoil(measurement *m, tool_error *error) {
  bool ok = true;
  for (int32_t r = 0; ok && r < m->ranks.nranks; r++) {
    ok = gpu_fill(m->ranks.device, m->memories[r].rows, 0xff, rows_bytes(m), m->ranks.streams[r], error) &&
         gpu_fill(m->ranks.device, m->memories[r].out, 0xff, rows_bytes(m), m->ranks.streams[r], error);
  }
  return ok && device_ranks_finish(&m->ranks, error);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static bool measure_times(measurement *m, tool_error *error) {
  decode_device_result *result = m->result;
  double ignored;
  int32_t nranks = m->ranks.nranks, last = nranks - 1;
  bool ok = spoil(m, error) && time_form(m, ATTENTION, &result->attention_p50_us, &result->attention_p99_us, error) &&
            check(m, m->memories[last].rows, last, 1, error);
  if (ok && nranks > 1) {
    ok = spoil(m, error) && time_form(m, APART, &result->apart_p50_us, &ignored, error) &&
         check(m, m->memories[0].out, 0, nranks, error) && spoil(m, error) &&
         time_form(m, FUSED, &result->fused_p50_us, &ignored, error) &&
         check(m, m->memories[last].out, 0, nranks, error);
  }
  return ok;
}

static bool measure(measurement *m, tool_error *error) {
  decode_device_result *result = m->result;
  if (!take(m, error) || !device_ranks_plan(&m->ranks, plan, m, error) || !measure_times(m, error)) return false;
  tell(m->memories[0].attention[0], result->kernel, sizeof result->kernel);
  tell(m->memories[0].fused[0], result->fused, sizeof result->fused);
  const gpu_facts *facts = gpu_facts_of(m->ranks.device);
  result->rated_gbps = 2e-3 * facts->memory_clock_mhz * facts->bus_bits / 8; /* two transfers in a cycle */
  double gbps = result->attention_p50_us > 0 ? 1e-3 * (double)result->kv_bytes / result->attention_p50_us : 0;
  result->rated_share = result->rated_gbps > 0 ? gbps / result->rated_gbps : 0;
  double combined = m->ranks.nranks > 1 ? tool_error_bound_of(m->settings->wire, m->memories[0].combine) : 0;
  result->verified = result->worst_error <= error_bound + combined;
  return true;
}

static bool write_text(const gpu_facts *facts, const decode_device_settings *settings,
                       const decode_device_result *result, tool_error *error) {
  const decode_shape *shape = &settings->shape;
  printf("# banyan-decode %s: %d ranks, threads of one process on device %d (%s)\n", banyan_version(), settings->nranks,
         facts->ordinal, facts->name);
  printf("# batch %d, %d/%d heads x %d, %d keys, %s, wire %s; %d runs in a graph, over %d caches of %" PRId64
         " bytes\n",
         shape->batch, shape->heads, shape->kv_heads, shape->head_dim, shape->tokens, tool_dtype_name(settings->dtype),
         tool_dtype_name(settings->wire), result->runs, result->caches, result->kv_bytes);
  printf("# %s\n", result->kernel);
  printf("attention            %10.2f us, p99 %.2f us\n", result->attention_p50_us, result->attention_p99_us);
  printf("of the memory's rate %10.1f %%: by its clock and width %.0f GB/s\n", 100 * result->rated_share,
         result->rated_gbps);
  if (settings->nranks > 1) {
    printf("then a combine       %10.2f us\n", result->apart_p50_us);
    printf("both at once         %10.2f us: %s\n", result->fused_p50_us, result->fused);
  }
  printf("worst error          %10.1e of sum(p |v|) / d: %s\n", result->worst_error,
         result->verified ? "verified" : "WRONG");
  return tool_flush(stdout) || tool_error_stdout(error);
}

static bool write_json(const gpu_facts *facts, const decode_device_settings *settings,
                       const decode_device_result *result, tool_error *error) {
  const decode_shape *shape = &settings->shape;
  bool several = settings->nranks > 1;
  json_t *o = json_pack(
      "{s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:I, s:i, s:i, s:i, s:s, s:o, s:o, s:o, s:o, "
      "s:o, s:o, s:s, s:o, s:b}",
      "device", tool_json_gpu(facts), "ranks", settings->nranks, "batch", shape->batch, "heads", shape->heads,
      "kv_heads", shape->kv_heads, "head_dim", shape->head_dim, "keys", shape->tokens, "dtype",
      tool_dtype_name(settings->dtype), "wire", tool_dtype_name(settings->wire), "kv_bytes",
      (json_int_t)result->kv_bytes, "caches", result->caches, "runs_in_graph", result->runs, "repeat", settings->repeat,
      "kernel", result->kernel, "attention_us", tool_json_real(result->attention_p50_us), "attention_p99_us",
      tool_json_real(result->attention_p99_us), "rated_gbps", tool_json_real(result->rated_gbps), "share_of_rate",
      tool_json_real(result->rated_share), "apart_us", several ? tool_json_real(result->apart_p50_us) : json_null(),
      "fused_us", several ? tool_json_real(result->fused_p50_us) : json_null(), "fused", result->fused, "worst_error",
      tool_json_real(result->worst_error), "verified", result->verified);
  return tool_json_write(o, stdout, error);
}

bool decode_device_work(const decode_device_settings *settings, bool json, bool *verified, tool_error *error) {
  decode_device_result result = {.kv_bytes = 0};
  measurement *m = tool_new(1, sizeof *m);
  *m = (measurement){.settings = settings, .result = &result};
  m->latent = settings->shape.head_dim == DECODE_LATENT_DIM;
  m->value_dim = m->latent ? DECODE_LATENT_VALUE_DIM : settings->shape.head_dim;
  bool ok = settings->shape.tokens >= settings->nranks && settings->shape.head_dim <= DECODE_LATENT_DIM;
  ok = (ok || tool_error_set(error, "on a device every rank has a key at least, and head_dim is 576 at most")) &&
       device_ranks_open(settings->device, settings->nranks, settings->timeout_ns, &m->ranks, error);
  if (ok) {
    set_counts(m);
    ok = measure(m, error);
    ok = ok && (json ? write_json : write_text)(gpu_facts_of(m->ranks.device), settings, &result, error);
    give(m);
    *verified = result.verified;
    device_ranks_close(&m->ranks);
  }
  return ok;
}
