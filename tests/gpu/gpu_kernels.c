/* SPDX-License-Identifier: Apache-2.0
 * Runs a tiny combine or decode by each kernel, for compute-sanitizer, and prints one line for each: `gpu_kernels
 * [--large]`. Decodes have one rank. Combines have two ranks, or nine for the kernels of more than eight ranks. Kernels
 * of a combine wait for each other. Under tools that run kernels one after another, they end at the deadline, which is
 * reported but is not a failure. --large: also combines by signals, of 4 MiB and more. --small: only combines of one
 * and two ranks, by every algorithm. --decodes: no combines. --hold: see hold(). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "f8.h"
#include "flashmla.h"
#include "merge_math.h"
#include "tools/common/device_ranks.h"

enum { PAIR = 2, MANY = 9, KEYS = 40, VALUE_DIM = 128, TOKENS_MAX = 1152, HEADS_OF_COMBINE = 16 };

typedef enum extent { SMALL, USUAL, LARGE } extent;

static int64_t timeout_ns = (int64_t)60 * 1000000000; /* sanitizers and emulators are slow */

static bool say(const char *what, bool ok, const tool_error *error) {
  printf("gpu_kernels: %s: %s\n", what, ok ? "right" : error->text);
  fflush(stdout);
  return ok;
}

/* ---- combines ---------------------------------------------------------------------------------------------------- */

typedef struct combine_work {
  const char *algorithm; /* NULL: an all-gather of bytes */
  banyan_dtype wire;
  banyan_order order;
  bool heads; /* an all-gather of heads */
  int32_t tokens, nranks;
  float *in[MANY], *out[MANY];
} combine_work;

static size_t floats_of(int32_t tokens) { return (size_t)tokens * HEADS_OF_COMBINE * (VALUE_DIM + 1); }

static banyan_partial partial_of(float *memory, int32_t tokens) {
  banyan_partial made;
  banyan_partial_init(&made, memory, BANYAN_F32, memory + (size_t)tokens * HEADS_OF_COMBINE * VALUE_DIM, BANYAN_F32,
                      HEADS_OF_COMBINE, VALUE_DIM);
  return made;
}

static bool combine(device_rank *self, void *opaque) {
  combine_work *work = opaque;
  banyan_status status;
  if (work->heads) {
    banyan_heads_desc desc = BANYAN_HEADS_DESC_INIT;
    desc.tokens = work->tokens;
    desc.heads = HEADS_OF_COMBINE;
    desc.dim = VALUE_DIM;
    desc.dtype = BANYAN_F32;
    desc.stream = self->all->streams[self->rank];
    status = banyan_allgather_heads(self->comm, &desc, work->in[self->rank], work->out[self->rank]);
  } else if (work->algorithm) {
    banyan_partial in = partial_of(work->in[self->rank], work->tokens),
                   out = partial_of(work->out[self->rank], work->tokens);
    banyan_combine_desc desc = {.size = sizeof desc,
                                .tokens = work->tokens,
                                .heads = HEADS_OF_COMBINE,
                                .value_dim = VALUE_DIM,
                                .wire = work->wire,
                                .order = work->order,
                                .algorithm = work->algorithm,
                                .stream = self->all->streams[self->rank]};
    status = banyan_combine(self->comm, &desc, &in, &out);
  } else {
    const size_t bytes = floats_of(work->tokens) / PAIR * sizeof(float), counts[PAIR] = {bytes, bytes};
    banyan_comm_set_stream(self->comm, self->all->streams[self->rank]);
    status = banyan_allgather(self->comm, work->in[self->rank], work->out[self->rank], counts);
  }
  return status == BANYAN_OK || tool_error_banyan(&self->error, status, "combine");
}

/* Returns the expected value. All values of rank r are r + 1, with weight 1. A combine gives the mean over ranks, and
 * an all-gather of two ranks gives both. */
static float wanted_at(const combine_work *work, size_t i) {
  if (work->heads) return i / VALUE_DIM % HEADS_OF_COMBINE < HEADS_OF_COMBINE / PAIR ? 1.0f : 2.0f;
  if (!work->algorithm) return i < floats_of(work->tokens) / PAIR ? 1.0f : 2.0f;
  return (float)(work->nranks + 1) / 2;
}

static bool check_combine(device_ranks *ranks, const combine_work *work, float *host, tool_error *error) {
  const size_t values = (size_t)work->tokens * HEADS_OF_COMBINE * VALUE_DIM, all = floats_of(work->tokens);
  for (int32_t r = 0; r < work->nranks; r++) {
    if (!gpu_read(ranks->device, host, work->out[r], all * sizeof *host, error)) return false;
    for (size_t i = 0; i < (work->algorithm || work->heads ? values : all / PAIR * PAIR); i++) {
      const float wanted = wanted_at(work, i);
      if (host[i] != wanted)
        return tool_error_set(error, "rank %d has %g, not %g, at %zu", r, (double)host[i], (double)wanted, i);
    }
  }
  return true;
}

static bool run_combine(device_ranks *ranks, combine_work *work, float *host, tool_error *error) {
  const size_t values = (size_t)work->tokens * HEADS_OF_COMBINE * VALUE_DIM, all = floats_of(work->tokens);
  for (int32_t r = 0; r < work->nranks; r++) {
    for (size_t i = 0; i < all; i++) host[i] = work->algorithm && i >= values ? 0 : (float)(r + 1);
    if (!gpu_write(ranks->device, work->in[r], host, all * sizeof *host, error)) return false;
  }
  return device_ranks_call(ranks, combine, work, error) && device_ranks_finish(ranks, error) &&
         check_combine(ranks, work, host, error);
}

typedef struct form {
  const char *algorithm, *name;
  banyan_dtype wire;
  bool heads;
  banyan_order order;
} form;

/* Runs combines of sizes below, between and above the limits where protocols change. */
static bool run_combines(int32_t nranks, extent extent, tool_error *error) {
  static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring"};
  static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_BF16, BANYAN_E4M3};
  static const form forms[] = {{"oneshot", "oneshot, f32", BANYAN_F32, false, BANYAN_ORDER_PLAN},
                               {"oneshot", "oneshot, bf16", BANYAN_BF16, false, BANYAN_ORDER_PLAN},
                               {"oneshot", "oneshot, e4m3", BANYAN_E4M3, false, BANYAN_ORDER_PLAN},
                               {"oneshot", "oneshot, exact", BANYAN_F32, false, BANYAN_ORDER_EXACT},
                               {"tree", "tree, f32", BANYAN_F32, false, BANYAN_ORDER_PLAN},
                               {"tree", "tree, bf16", BANYAN_BF16, false, BANYAN_ORDER_PLAN},
                               {"tree", "tree, e4m3", BANYAN_E4M3, false, BANYAN_ORDER_PLAN},
                               {NULL, "all-gather", BANYAN_F32, false, BANYAN_ORDER_PLAN},
                               {NULL, "all-gather of heads", BANYAN_F32, true, BANYAN_ORDER_PLAN}};
  static const int32_t sizes_of_tokens[] = {1, 40, TOKENS_MAX};
  const size_t sizes = (size_t)extent + 1;
  const size_t count = extent == SMALL ? 15 : nranks == PAIR ? sizeof forms / sizeof forms[0] : 4;
  device_ranks ranks;
  combine_work work = {.nranks = nranks};
  if (!device_ranks_open("cuda:0", nranks, timeout_ns, &ranks, error)) return false;
  const size_t bytes = floats_of(sizes_of_tokens[sizes - 1] + 8) * sizeof(float);
  float *host = malloc(bytes);
  bool ok = host || tool_error_set(error, "out of memory"), alone = false;
  for (int32_t r = 0; ok && r < nranks; r++)
    ok = gpu_take(ranks.device, bytes, (void **)(void *)&work.in[r], error) &&
         gpu_take(ranks.device, bytes, (void **)(void *)&work.out[r], error);
  for (size_t i = 0; ok && !alone && i < count * sizes; i++) {
    char what[80];
    const form form =
        extent == SMALL ? (struct form){.algorithm = algorithms[i / 3], .name = algorithms[i / 3], .wire = wires[i % 3]}
                        : forms[i / sizes];
    work.algorithm = form.algorithm;
    work.wire = form.wire;
    work.heads = form.heads;
    work.order = form.order;
    work.tokens = sizes_of_tokens[i % sizes];
    if (nranks == MANY && i % sizes) work.tokens = form.wire == BANYAN_F32 ? 17 : form.wire == BANYAN_BF16 ? 33 : 48;
    snprintf(what, sizeof what, "%s, %d tokens, %d ranks", form.name, work.tokens, nranks);
    ok = run_combine(&ranks, &work, host, error);
    alone = !ok && banyan_comm_status(ranks.ranks[0].comm) == BANYAN_ERR_TIMEOUT;
    if (alone) tool_error_set(error, "kernels do not run side by side here");
    say(what, ok, error);
  }
  for (int32_t r = 0; !alone && r < nranks; r++) {
    gpu_give(ranks.device, work.in[r]);
    gpu_give(ranks.device, work.out[r]);
  }
  free(host);
  device_ranks_close(&ranks);
  return ok || alone;
}

/* ---- decodes ----------------------------------------------------------------------------------------------------- */

typedef struct decode_work {
  int32_t heads, head_dim, value_dim;
  banyan_dtype dtype;
  enum {
    PLAIN,
    GENERAL,
    E4M3,
    FLASHMLA,
    FORMS
  } form; /* rows of K and V; GENERAL: the kernel for all options of a call */
  void *q, *k, *v;
  int32_t *lengths;
  float *out; /* o, followed by lse */
} decode_work;

static uint16_t bits_of(banyan_dtype dtype, float value) {
  return dtype == BANYAN_BF16 ? bny_bf16_of_float(value) : bny_f16_of_float(value);
}

/* Returns a value. In each column, all keys have the same value, so the result has it for any weights. Queries
 * differ. */
static float value_of(int32_t column) { return (float)(column % 8 + 1) / 8; }

static int32_t row_bytes(const decode_work *work) {
  return work->form == FLASHMLA ? BNY_FLASHMLA_BYTES : work->form == E4M3 ? work->head_dim : 2 * work->head_dim;
}

/* Fills a row of k and v. */
static void fill_row(const decode_work *work, unsigned char *row) {
  const float one = 1;
  for (int32_t i = 0; i < work->head_dim; i++) {
    const bool is_code = work->form == E4M3 || (work->form == FLASHMLA && i < BNY_FLASHMLA_CODES);
    const uint16_t bits = bits_of(work->dtype, value_of(i));
    const int32_t at = work->form == FLASHMLA ? BNY_FLASHMLA_ROPE_AT + 2 * (i - BNY_FLASHMLA_CODES) : 2 * i;
    if (is_code)
      row[i] = bny_e4m3_of_float(value_of(i));
    else
      memcpy(row + at, &bits, sizeof bits);
  }
  for (int i = 0; work->form == FLASHMLA && i < BNY_FLASHMLA_CODES / BNY_FLASHMLA_GROUP; i++)
    memcpy(row + BNY_FLASHMLA_CODES + 4 * i, &one, sizeof one);
}

static bool fill_decode(device_ranks *ranks, const decode_work *work, tool_error *error) {
  enum { HEADS_MAX = 64, DIM_MAX = 576 };
  static uint16_t rows[HEADS_MAX * DIM_MAX];
  const int32_t keys = KEYS;
  const size_t dim = (size_t)work->head_dim;
  for (size_t i = 0; i < (size_t)work->heads * dim; i++) rows[i] = bits_of(work->dtype, (float)(i % 7) / 8 - 0.25f);
  bool ok = gpu_write(ranks->device, work->q, rows, 2 * (size_t)work->heads * dim, error);
  const size_t bytes = (size_t)row_bytes(work);
  for (size_t i = 0; i < KEYS; i++) fill_row(work, (unsigned char *)rows + i * bytes);
  return ok && gpu_write(ranks->device, work->k, rows, KEYS * bytes, error) &&
         gpu_write(ranks->device, work->v, rows, KEYS * bytes, error) &&
         gpu_write(ranks->device, work->lengths, &keys, sizeof keys, error);
}

static bool check_decode(device_ranks *ranks, const decode_work *work, tool_error *error) {
  static float host[64 * 513];
  const size_t values = (size_t)(work->heads * work->value_dim);
  if (!gpu_read(ranks->device, host, work->out, values * sizeof *host, error)) return false;
  for (size_t i = 0; i < values; i++) {
    const float wanted = value_of((int32_t)(i % (size_t)work->value_dim));
    if (!(host[i] > wanted * (1 - 1e-5f) && host[i] < wanted * (1 + 1e-5f)))
      return tool_error_set(error, "%g, not %g, in row %zu", (double)host[i], (double)wanted,
                            i / (size_t)work->value_dim);
  }
  return true;
}

static bool decode(device_rank *self, void *opaque) {
  const decode_work *work = opaque;
  const int32_t dim = work->head_dim, row = work->form == PLAIN || work->form == GENERAL ? dim : row_bytes(work);
  const bool latent = work->value_dim != dim;
  banyan_op *op = NULL;
  banyan_attention_desc desc = {.size = sizeof desc,
                                .batch = 1,
                                .heads = work->heads,
                                .kv_heads = 1,
                                .head_dim = dim,
                                .value_dim = work->value_dim,
                                .q_dtype = work->dtype,
                                .kv_dtype = work->form >= E4M3 ? BANYAN_E4M3 : work->dtype,
                                .kv_rows = work->form == FLASHMLA ? BANYAN_KV_ROWS_FLASHMLA_FP8 : BANYAN_KV_ROWS_PLAIN,
                                .soft_cap = work->form == GENERAL ? 5 : 0,
                                .q = work->q,
                                .q_batch_stride = work->heads * dim,
                                .q_head_stride = dim,
                                .k = work->k,
                                .k_token_stride = row,
                                .k_head_stride = KEYS * row,
                                .k_batch_stride = KEYS * row,
                                .v = latent ? work->k : work->v,
                                .v_token_stride = row,
                                .v_head_stride = KEYS * row,
                                .v_batch_stride = KEYS * row,
                                .seq_lens = work->lengths,
                                .keys_max = KEYS,
                                .stream = self->all->streams[0]};
  banyan_partial out;
  banyan_partial_init(&out, work->out, BANYAN_F32, work->out + work->heads * work->value_dim, BANYAN_F32, work->heads,
                      work->value_dim);
  banyan_status status = banyan_attention_init(self->comm, &desc, &out, &op);
  if (status == BANYAN_OK) status = banyan_start(op);
  tool_error error = {.text = ""};
  bool ok = status == BANYAN_OK ? gpu_wait(self->all->device, self->all->streams[0], (double)timeout_ns * 1e-9, &error)
                                : tool_error_banyan(&error, status, "attention");
  banyan_op_free(op);
  self->error = error;
  return ok;
}

/* Returns whether a kernel exists. Eight-bit rows have fewer shapes, and FlashMLA has one. */
static bool has_kernel(const decode_work *work) {
  const bool latent = work->head_dim == 576;
  if (work->form == FLASHMLA) return latent && work->heads == 16 && work->dtype == BANYAN_BF16;
  if (work->form == E4M3) return latent ? work->heads == 16 : work->head_dim != 96 && work->head_dim != 192;
  return work->form == PLAIN || work->heads < 64;
}

/* Runs decodes by all kernels. 16, 32 and 64 heads of MLA have separate kernels. */
static bool run_decodes(tool_error *error) {
  static const char *const forms[] = {"plain", "general", "e4m3", "flashmla"};
  static const int32_t shapes[][2] = {{4, 64}, {4, 96}, {4, 128}, {4, 192}, {4, 256}, {16, 576}, {32, 576}, {64, 576}};
  device_ranks ranks;
  decode_work work = {.heads = 0};
  if (!device_ranks_open("cuda:0", 1, timeout_ns, &ranks, error)) return false;
  gpu *device = ranks.device;
  bool ok = gpu_take(device, 2 * 64 * 576, &work.q, error) && gpu_take(device, 2 * KEYS * 576, &work.k, error) &&
            gpu_take(device, 2 * KEYS * 576, &work.v, error) &&
            gpu_take(device, 64 * 513 * sizeof(float), (void **)(void *)&work.out, error) &&
            gpu_take(device, sizeof *work.lengths, (void **)(void *)&work.lengths, error);
  const size_t each = 2 * sizeof shapes / sizeof shapes[0];
  for (size_t at = 0; ok && at < FORMS * each; at++) {
    char what[60];
    const size_t i = at % each;
    work.form = at / each;
    work.heads = shapes[i / 2][0];
    work.head_dim = shapes[i / 2][1];
    work.value_dim = work.head_dim == 576 ? 512 : work.head_dim;
    work.dtype = i % 2 ? BANYAN_F16 : BANYAN_BF16;
    if (!has_kernel(&work)) continue;
    snprintf(what, sizeof what, "decode, %s, %s, %d heads x %d", forms[work.form], i % 2 ? "f16" : "bf16", work.heads,
             work.head_dim);
    ok = fill_decode(&ranks, &work, error) && device_ranks_call(&ranks, decode, &work, error) &&
         check_decode(&ranks, &work, error);
    say(what, ok, error);
  }
  void *const all[] = {work.q, work.k, work.v, work.out, work.lengths};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) gpu_give(device, all[i]);
  device_ranks_close(&ranks);
  return ok;
}

/* Holds contexts on all devices until stdin ends, so that other programs need not wait for the driver to start. It does
 * not do so if the device allows only one process. Prints the facts of the first device as JSON. */
static int hold(gpu *first, int32_t devices) {
  const gpu_facts *facts = gpu_facts_of(first);
  printf("{\"name\": \"%s\", \"compute\": \"%d.%d\", \"cuda\": \"%d.%d\", \"sms\": %d}\n", facts->name,
         facts->compute / 10, facts->compute % 10, facts->cuda_version / 1000, facts->cuda_version % 1000 / 10,
         facts->sms);
  fflush(stdout);
  for (int32_t i = 1; i < devices; i++) {
    tool_error error = {.text = ""};
    gpu *other = NULL;
    gpu_open(i, &other, &error); /* until this process ends */
  }
  while (!facts->one_process && getchar() != EOF) {
  }
  gpu_close(first);
  return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
  tool_error error = {.text = ""};
  const char *option = argc > 1 ? argv[1] : "";
  const bool small = strcmp(option, "--small") == 0;
  const int32_t devices = gpu_count(&error);
  gpu *first = NULL;
  if (devices == 0) {
    printf("gpu_kernels: %s\n", error.text);
    return 77;
  }
  bool ok = gpu_open(0, &first, &error);
  if (ok && strcmp(option, "--hold") == 0) return hold(first, devices);
  if (small) timeout_ns = (int64_t)20 * 1000000000;
  ok = ok && (small || run_decodes(&error));
  if (small)
    ok = ok && run_combines(1, SMALL, &error) && run_combines(PAIR, SMALL, &error);
  else if (strcmp(option, "--decodes"))
    ok = ok && run_combines(PAIR, strcmp(option, "--large") ? USUAL : LARGE, &error) &&
         run_combines(MANY, USUAL, &error);
  if (!ok) printf("gpu_kernels: %s\n", error.text);
  gpu_close(first);
  return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
