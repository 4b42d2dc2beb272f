/* SPDX-License-Identifier: Apache-2.0
 * Tests what kernels assume of a GPU's memory: stores of 16 bytes and lines of 128 are not seen torn, and a message is
 * complete when its signal is seen, through one address, two addresses with fences, and from another device. */
#include "device/device.h"
#include "tests/gpu/words.h"
#include "tests/support/world.h"
#include "tools/common/gpu.h"

#ifdef WORDS_IMAGE
__asm__(".pushsection .rodata\n.balign 64\nwords_image:\n.incbin \"" WORDS_IMAGE "\"\n"
        ".balign 8\nwords_image_bytes:\n.quad . - words_image\n.popsection\n");
extern const unsigned char words_image[];
extern const size_t words_image_bytes;
#else
static const unsigned char words_image[64] = "emulated";
static const size_t words_image_bytes = sizeof words_image;
#endif

enum { WAIT_S = 20, PAGE_BYTES = 4096, PAYLOAD_AT = 1024, SIGNALS_APART = 16, COUNTS = 3 };

typedef struct side {
  gpu *gpu;
  void *stream;
  bny_device *device;
  bny_device_module *module;
} side;

#define OK(call, error) ck_assert_msg(call, "%s", (error).text)
#define STATUS(call) ck_assert_msg((call) == BANYAN_OK, "%s", banyan_last_error())

static side side_open(int32_t ordinal) {
  side made = {.gpu = NULL};
  tool_error error = {.text = ""};
  char name[20];
  snprintf(name, sizeof name, "cuda:%d", ordinal);
  OK(gpu_open(ordinal, &made.gpu, &error) && gpu_stream_make(made.gpu, &made.stream, &error), error);
  STATUS(bny_device_open_named(name, getenv("BANYAN_CUDA_LIBRARY"), &made.device));
  STATUS(made.device->ops->module_load(made.device, words_image, words_image_bytes, &made.module));
  return made;
}

static void side_close(side *self) {
  self->device->ops->module_unload(self->module);
  self->device->ops->close(self->device);
  tool_error error = {.text = ""};
  gpu_enter(self->gpu, &error);
  gpu_stream_free(self->gpu, self->stream);
  gpu_close(self->gpu);
}

static void launch(const side *self, const bny_device_kernel *kernel, uint32_t blocks, words_pair *pair) {
  tool_error error = {.text = ""};
  void *arguments[] = {pair};
  bny_device_launch what = {.kernel = kernel, .grid = {blocks, 1, 1}, .block = {32, 1, 1}, .arguments = arguments};
  OK(gpu_enter(self->gpu, &error), error);
  STATUS(self->device->ops->launch(self->device, &what, self->stream));
}

/* Runs role 0 on `one`, and role 1 on `two`. If both are one device, one launch has both roles. Finding a kernel may
 * wait for an idle device, so both are found before any is launched. */
static void run_pair(const side *one, const side *two, const char *name, words_pair pair, uint32_t counts[COUNTS]) {
  tool_error error = {.text = ""};
  bny_device_kernel kernel, other;
  STATUS(two->device->ops->kernel_find(two->module, name, &other));
  STATUS(one->device->ops->kernel_find(one->module, name, &kernel));
  launch(one, &kernel, one == two ? 2 : 1, &pair);
  pair.role = 1;
  if (one != two) launch(two, &other, 1, &pair);
  OK(gpu_enter(two->gpu, &error) && gpu_wait(two->gpu, two->stream, WAIT_S, &error), error);
  OK(gpu_enter(one->gpu, &error) && gpu_wait(one->gpu, one->stream, WAIT_S, &error), error);
  OK(gpu_read(one->gpu, counts, pair.counts, COUNTS * sizeof *counts, &error), error);
}

/* Word 0 of the page goes from role 0 to role 1, and word 16 goes back. */
static words_pair pair_of(void *as_role_0, void *as_role_1, uint32_t *counts) {
  words_pair pair = {.counts = counts, .is_sys = 1};
  uint64_t *words[2] = {as_role_0, as_role_1};
  for (int role = 0; role < 2; role++) {
    pair.to[role] = words[role] + SIGNALS_APART * role;
    pair.from[role] = words[role] + SIGNALS_APART * (1 - role);
    pair.payload[role] = (unsigned char *)words[role] + PAYLOAD_AT;
  }
  return pair;
}

/* How role 1 reaches the memory of role 0. */
typedef enum address { SAME, TWICE, PAYLOAD_TWICE, PEER } address;

typedef struct rig {
  side near, far;
  bny_device_memory *owned, *mapped;
  uint32_t *counts;
  words_pair pair;
} rig;

static rig rig_make(address address) {
  rig made = {.near = side_open(0)};
  tool_error error = {.text = ""};
  bny_device_offer offer = {.kind = BNY_MEMORY_FILE, .file = -1};
  const bny_device_ops *ops = made.near.device->ops;
  if (address == PEER) made.far = side_open(1);
  const side *far = address == PEER ? &made.far : &made.near;
  STATUS(ops->memory_make(made.near.device, BNY_MEMORY_FILE, PAGE_BYTES, &made.owned));
  STATUS(ops->memory_export(made.owned, &offer.handle, &offer.file));
  offer.bytes = made.owned->bytes;
  if (address != SAME) STATUS(ops->memory_import(far->device, &offer, &made.mapped));
  if (offer.file >= 0) close(offer.file);
  OK(gpu_enter(made.near.gpu, &error) && gpu_alloc(made.near.gpu, PAGE_BYTES, (void **)(void *)&made.counts, &error) &&
         gpu_fill(made.near.gpu, made.counts, 0, PAGE_BYTES, made.near.stream, &error) &&
         gpu_fill(made.near.gpu, made.owned->address, 0, PAGE_BYTES, made.near.stream, &error) &&
         gpu_wait(made.near.gpu, made.near.stream, WAIT_S, &error),
     error);
  void *own = made.owned->address;
  made.pair = pair_of(own, made.mapped ? made.mapped->address : own, made.counts);
  if (address == PAYLOAD_TWICE) made.pair.to[1] = made.pair.from[0], made.pair.from[1] = made.pair.to[0];
  return made;
}

static void rig_free(rig *self) {
  self->near.device->ops->memory_free(self->mapped);
  self->near.device->ops->memory_free(self->owned);
  gpu_free(self->near.gpu, self->counts);
  if (self->far.gpu) side_close(&self->far);
  side_close(&self->near);
}

/* Runs the kernel, and expects that no wait failed and no read was wrong. */
static void expect_right(rig *rig, const char *kernel) {
  uint32_t counts[COUNTS];
  run_pair(&rig->near, rig->far.gpu ? &rig->far : &rig->near, kernel, rig->pair, counts);
  ck_assert_msg(counts[0] == 0, "a word did not come");
  ck_assert_msg(counts[1] == 0, "%u reads saw a part of a store, or old values after an acquire", counts[1]);
  rig_free(rig);
}

static void skip(const char *test, int index, const char *why) {
  printf("SKIP %s %d %s\n", test, index, why);
  fflush(stdout);
}

/* The emulated device loads a line in two halves, because PTX promises no more. */
TEST_IN("gpu", stores_are_not_torn, 4) {
  if (_i % 2 && getenv("FAKE_CUDA")) {
    skip("stores_are_not_torn", _i, "lines may be torn on the emulated device");
    return;
  }
  rig rig = rig_make(_i / 2 ? TWICE : SAME);
  rig.pair.lines = _i % 2;
  rig.pair.rounds = world_is_quick() ? 20 : 200000;
  expect_right(&rig, "words_tear");
}

/* Messages through two addresses of one memory need the fences. */
TEST_IN("gpu", messages_are_complete, 5) {
  static const struct {
    address address;
    bool is_sys, fences;
  } cases[] = {
      {SAME, false, false}, {SAME, true, false}, {TWICE, true, true}, {PAYLOAD_TWICE, true, true}, {PEER, true, false}};
  if (cases[_i].address == PEER && world_gpus() < 2) {
    skip("messages_are_complete", _i, "there is one device");
    return;
  }
  rig rig = rig_make(cases[_i].address);
  rig.pair.is_sys = cases[_i].is_sys;
  rig.pair.fences = cases[_i].fences;
  rig.pair.rounds = world_is_quick() ? 6 : 20000;
  expect_right(&rig, "words_message");
}

int main(void) { return world_is_here(&world_gpu) ? world_main(suite_of("gpu_words", 60)) : 77; }
