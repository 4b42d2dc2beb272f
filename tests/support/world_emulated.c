/* SPDX-License-Identifier: Apache-2.0
 * Ranks with devices of the fake CUDA driver. Launches return at once. They run together, in an order that the seed
 * decides, when all ranks have reached world_finish(). Memory of these devices is host memory. */
#include "tests/support/world.h"

#include "comm/comm.h"

#include "tests/device/device_util.h"

struct world_device {
  bny_device *device;
};

static bool is_here(void) {
#if defined __SANITIZE_THREAD__
  printf("skipped: kernels run on stacks of their own, which the thread sanitizer cannot follow\n");
  return false;
#elif defined HAVE_CUDA && defined HAVE_CXX17
  return true;
#else
  printf("skipped: built without CUDA, or without a compiler of C++17\n");
  return false;
#endif
}

static void begin(const world_setup *setup) {
  char more[768];
  snprintf(more, sizeof more, "devices=%d,seed=%llu,%s", setup->nranks < 2 ? 2 : setup->nranks,
           (unsigned long long)random_seed(), setup->words ? setup->words : "");
  setenv("FAKE_CUDA", more, 1);
  setenv("BANYAN_CUDA_LIBRARY", fake_cuda_path(), 1);
  if (!setup->arena_bytes) setenv("BANYAN_ARENA_KIB", "16384", 0); /* a small arena is faster to clear */
  fake_cuda_set_image("emulated", 8);
}

void world_check_left(void) {
  char left[256];
  ck_assert_msg(FAKE_CUDA(fake_cuda_live)(left, sizeof left) == 0, "left: %s", left);
}

static bool open_device(world_rank *self) {
  int ordinal = self->setup->one_device ? 0 : self->rank;
  snprintf(self->device, sizeof self->device, "cuda:%d", ordinal);
  self->place = calloc(1, sizeof *self->place);
  return world_check(self, self->place != NULL, "out of memory") &&
         world_ok(self, open_fake(ordinal, &self->place->device), "open") &&
         world_ok(self, self->place->device->ops->stream_make(self->place->device, &self->stream), "stream");
}

static void close_device(world_rank *self) {
  bny_device *device = self->place ? self->place->device : NULL;
  if (device && self->stream) device->ops->stream_free(device, self->stream);
  if (device) device->ops->close(device);
  free(self->place);
}

/* Completes all work that the ranks have launched, on a machine of any speed. A rank that left earlier would free
 * memory of running kernels. */
static bool finish(world_rank *self) {
  char why[256] = "";
  bool good = world_meet(self);
  if (good && self->rank == 0) good = world_check(self, FAKE_CUDA(fake_cuda_run)(why, sizeof why), "devices: %s", why);
  return world_meet(self) && good;
}

static bool capture(world_rank *self, bool on) {
  FAKE_CUDA(fake_cuda_capture)(self->stream, on);
  return true;
}

static bool replay(world_rank *self) {
  FAKE_CUDA(fake_cuda_replay)(self->stream);
  return finish(self);
}

/* Algorithms are chosen by predicted cost. Costs dominated by latency or by bandwidth make calls of any size choose
 * each of them. */
void world_vary(world_rank *self, int32_t number) {
  static const bny_link_cost costs[] = {{.alpha_ns = 1000, .beta_ns_per_byte = 0.004},
                                        {.alpha_ns = 1e9, .beta_ns_per_byte = 1e-9},
                                        {.alpha_ns = 1e-3, .beta_ns_per_byte = 10}};
  bny_device_exec *exec = &self->comm->device;
  if (self->on != &world_emulated) return;
  const int32_t protocol = number % (BNY_PROTOCOL_COUNT + 1);
  bool is_free = exec->sizes.inbox_bytes[BNY_PROTOCOL_LL16] > 0; /* not in host memory */
  if (is_free)
    exec->settings.protocol = bny_unit_protocol_serves(protocol, &exec->settings) ? protocol : BNY_PROTOCOL_COUNT;
  exec->cost = costs[number / (BNY_PROTOCOL_COUNT + 1) % 3];
  exec->cost.ranks_per_core = 1;
}

const world_backend world_emulated = {.name = "emulated device",
                                      .is_device = true,
                                      .every = 3,
                                      .ranks_max = 9,
                                      .is_here = is_here,
                                      .begin = begin,
                                      .end = world_check_left,
                                      .open = open_device,
                                      .close = close_device,
                                      .finish = finish,
                                      .capture = capture,
                                      .replay = replay};
