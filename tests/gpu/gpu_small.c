/* SPDX-License-Identifier: Apache-2.0
 * The smallest program: combines of one rank, and of two, by every algorithm. Where kernels run one after another,
 * ranks that wait for each other time out, which is reported and is no failure. --hold: see hold(). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/device_ranks.h"

enum { TOKENS = 2, HEADS = 5, VALUE_DIM = 100, ROWS = TOKENS * HEADS, FLOATS = ROWS * (VALUE_DIM + 2) };

typedef struct work {
  const char *algorithm;
  banyan_dtype wire;
  float *in[2], *out[2];
} work;

static const int64_t timeout_ns = (int64_t)20 * 1000000000;

/* Rank r holds values r + 1 with weight 1 everywhere, so that the mean over ranks is known. */
static bool fill(device_ranks *ranks, work *work, tool_error *error) {
  float host[FLOATS];
  for (int32_t r = 0; r < ranks->nranks; r++) {
    for (int i = 0; i < FLOATS; i++) host[i] = i < ROWS * VALUE_DIM ? (float)(r + 1) : 0;
    if (!gpu_take(ranks->device, sizeof host, (void **)(void *)&work->in[r], error) ||
        !gpu_take(ranks->device, sizeof host, (void **)(void *)&work->out[r], error) ||
        !gpu_write(ranks->device, work->in[r], host, sizeof host, error)) {
      return false;
    }
  }
  return true;
}

static bool combine(device_rank *self, void *opaque) {
  work *work = opaque;
  banyan_partial in, out;
  banyan_partial_init(&in, work->in[self->rank], BANYAN_F32, work->in[self->rank] + ROWS * VALUE_DIM, BANYAN_F32, HEADS,
                      VALUE_DIM);
  banyan_partial_init(&out, work->out[self->rank], BANYAN_F32, work->out[self->rank] + ROWS * VALUE_DIM, BANYAN_F32,
                      HEADS, VALUE_DIM);
  banyan_combine_desc desc = {.size = sizeof desc,
                              .tokens = TOKENS,
                              .heads = HEADS,
                              .value_dim = VALUE_DIM,
                              .wire = work->wire,
                              .algorithm = work->algorithm,
                              .stream = self->all->streams[self->rank]};
  banyan_status status = banyan_combine(self->comm, &desc, &in, &out);
  return status == BANYAN_OK || tool_error_banyan(&self->error, status, "banyan_combine");
}

static bool check(device_ranks *ranks, const work *work, tool_error *error) {
  float host[FLOATS], wanted = (float)(ranks->nranks + 1) / 2;
  for (int32_t r = 0; r < ranks->nranks; r++) {
    if (!gpu_read(ranks->device, host, work->out[r], sizeof host, error)) return false;
    for (int i = 0; i < ROWS * VALUE_DIM; i++) {
      if (host[i] != wanted)
        return tool_error_set(error, "rank %d has %g, not %g, at %d", r, (double)host[i], (double)wanted, i);
    }
  }
  return true;
}

static bool run_all(device_ranks *ranks, tool_error *error) {
  static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring"};
  static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_BF16, BANYAN_E4M3};
  work work = {.in = {NULL}};
  bool ok = fill(ranks, &work, error);
  for (int i = 0; ok && i < 15; i++) {
    work.algorithm = algorithms[i / 3];
    work.wire = wires[i % 3];
    ok = device_ranks_call(ranks, combine, &work, error) && device_ranks_finish(ranks, error) &&
         check(ranks, &work, error);
  }
  for (int32_t r = 0; r < ranks->nranks; r++) {
    gpu_give(ranks->device, work.in[r]);
    gpu_give(ranks->device, work.out[r]);
  }
  return ok;
}

/* Contexts on all devices until stdin ends: other programs need not wait for the driver to start. Not where the device
 * takes one process alone. What the first device is, as JSON. */
static int hold(void) {
  tool_error error = {.text = ""};
  gpu *device = NULL;
  int32_t devices = gpu_count(&error);
  if (!gpu_open(0, &device, &error)) {
    fprintf(stderr, "gpu_small: %s\n", error.text);
    return EXIT_FAILURE;
  }
  const gpu_facts *facts = gpu_facts_of(device);
  printf("{\"name\": \"%s\", \"compute\": \"%d.%d\", \"cuda\": \"%d.%d\", \"sms\": %d}\n", facts->name,
         facts->compute / 10, facts->compute % 10, facts->cuda_version / 1000, facts->cuda_version % 1000 / 10,
         facts->sms);
  fflush(stdout);
  for (int32_t i = 1; i < devices; i++) {
    gpu *other = NULL;
    gpu_open(i, &other, &error); /* until this process ends */
  }
  while (!facts->one_process && getchar() != EOF) {
  }
  gpu_close(device);
  return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
  tool_error error = {.text = ""};
  if (gpu_count(&error) == 0) {
    printf("gpu_small: %s\n", error.text);
    return 77;
  }
  if (argc > 1 && strcmp(argv[1], "--hold") == 0) return hold();
  for (int32_t nranks = 1; nranks <= 2; nranks++) {
    device_ranks ranks;
    bool opened = device_ranks_open("cuda:0", nranks, timeout_ns, &ranks, &error),
         ok = opened && run_all(&ranks, &error);
    bool alone = opened && !ok && nranks > 1 && banyan_comm_status(ranks.ranks[0].comm) == BANYAN_ERR_TIMEOUT;
    printf("gpu_small: %d ranks: %s\n", nranks,
           ok      ? "right"
           : alone ? "kernels do not run side by side here"
                   : error.text);
    if (opened) device_ranks_close(&ranks);
    if (!ok && !alone) return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
