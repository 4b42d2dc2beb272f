/* SPDX-License-Identifier: Apache-2.0
 * Ranks with memory of a device: on a GPU, as threads and as processes, all on the first GPU or spread over all; and on
 * emulated devices of several nodes, whose own thread runs them as a GPU does. A process forked from one that uses a
 * GPU cannot use it, so a device is first used in ranks. */
#include "tests/support/world.h"

#include <sys/wait.h>

#include "tests/device/device_util.h"
#include "tests/support/placed.h"

#ifdef HAVE_CUDA
#include "tools/common/gpu.h"

/* Memory for kernels is allocated when a rank begins. A later allocation could make the driver wait for kernels that
 * wait for this rank. */
enum { MEMORY_BYTES = 512 << 20, FINISH_S = 60 };

struct world_device {
  gpu *device;
  void *memory;                  /* the device's copy of world_take() memory */
  unsigned char *before, *after; /* its contents after world_put(), and in world_finish() */
  size_t used;
  gpu_graph *graph;
};

/* Notes a failure unless ok. Returns ok. */
static bool gpu_ok(world_rank *self, bool ok, const tool_error *error) {
  return ok || world_check(self, false, "%s", error->text);
}

static int32_t recall(const char *name) {
  const char *text = getenv(name);
  return text ? (int32_t)strtol(text, NULL, 10) : 0;
}

static void remember(const char *name, int32_t number) {
  char text[16];
  snprintf(text, sizeof text, "%d", number);
  setenv(name, text, 1);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

static bool open_ordinal(world_rank *self, int32_t ordinal) {
  tool_error error = {.text = ""};
  struct world_device *made = self->place = calloc(1, sizeof *made);
  snprintf(self->device, sizeof self->device, "cuda:%d", ordinal);
  if (!world_check(self, made != NULL, "out of memory")) return false;
  made->before = malloc(MEMORY_BYTES);
  made->after = malloc(MEMORY_BYTES);
  return world_check(self, made->before && made->after, "out of memory") &&
         gpu_ok(self,
                gpu_open(ordinal, &made->device, &error) && gpu_stream_make(made->device, &self->stream, &error) &&
                    gpu_alloc(made->device, MEMORY_BYTES, &made->memory, &error),
                &error);
}

static void close_device(world_rank *self) {
  struct world_device *made = self->place;
  if (!made) return;
  gpu_graph_free(made->graph);
  if (made->device) {
    gpu_free(made->device, made->memory);
    if (self->stream) gpu_stream_free(made->device, self->stream);
  }
  gpu_close(made->device);
  free(made->before);
  free(made->after);
  free(made);
}

static void *at(const world_rank *self, const void *memory) {
  size_t used;
  const unsigned char *base = world_taken(&used), *byte = memory;
  if (byte < base || byte >= base + used) return (void *)(uintptr_t)memory;
  return (unsigned char *)self->place->memory + (byte - base);
}

static bool put(world_rank *self) {
  struct world_device *made = self->place;
  tool_error error = {.text = ""};
  const unsigned char *memory = world_taken(&made->used);
  if (!world_check(self, made->used <= MEMORY_BYTES, "a test takes %zu bytes", made->used)) return false;
  memcpy(made->before, memory, made->used);
  return gpu_ok(self, gpu_write(made->device, made->memory, made->before, made->used, &error), &error);
}

/* Copies back only what calls wrote, because ranks that are threads share one memory. */
static bool get(world_rank *self) {
  struct world_device *made = self->place;
  tool_error error = {.text = ""};
  size_t used;
  unsigned char *memory = world_taken(&used);
  if (!gpu_ok(self, gpu_read(made->device, made->after, made->memory, made->used, &error), &error)) return false;
  for (size_t i = 0; i < made->used; i++)
    if (made->after[i] != made->before[i]) memory[i] = made->before[i] = made->after[i];
  return true;
}

static bool finish(world_rank *self) {
  tool_error error = {.text = ""};
  bool good =
      gpu_ok(self, gpu_wait(self->place->device, self->stream, world_is_quick() ? 600 : FINISH_S, &error), &error);
  return good && (self->place->used == 0 || get(self)) && world_meet(self);
}

static bool capture(world_rank *self, bool on) {
  struct world_device *made = self->place;
  tool_error error = {.text = ""};
  if (!on)
    return gpu_ok(self, gpu_capture_end(made->device, self->stream, &made->graph, &error), &error) && world_meet(self);
  gpu_graph_free(made->graph);
  made->graph = NULL;
  return world_meet(self) && gpu_ok(self, gpu_capture_begin(made->device, self->stream, &error), &error);
}

static bool replay(world_rank *self) {
  tool_error error = {.text = ""};
  return gpu_ok(self, gpu_graph_launch(self->place->graph, self->stream, &error), &error) && finish(self);
}

/* ---- a GPU ------------------------------------------------------------------------------------------------------- */

/* Counts the devices, and the SMs of the first, or reports why there are none. */
static void look(int32_t found[2]) {
  tool_error error = {.text = ""};
  gpu *first = NULL;
  found[0] = gpu_count(&error);
  if (found[0] > 0 && gpu_open(0, &first, &error))
    found[1] = gpu_facts_of(first)->sms;
  else
    printf("skipped: %s\n", error.text);
  fflush(stdout);
  gpu_close(first);
}

/* Looks in a process that ends afterwards. */
static void look_apart(int32_t found[2]) {
  int ends[2];
  if (pipe(ends) != 0) return;
  pid_t pid = fork();
  if (pid == 0) {
    look(found);
    _exit(write(ends[1], found, 2 * sizeof *found) < 0);
  }
  close(ends[1]);
  if (pid > 0 && read(ends[0], found, 2 * sizeof *found) != (ssize_t)(2 * sizeof *found)) found[1] = 0;
  close(ends[0]);
  if (pid > 0) waitpid(pid, NULL, 0);
}

/* Streams that share a connection wait for each other. Kernels that wait for kernels of other streams would then never
 * end. Ranks may be threads that read the environment, so it changes before they begin, and gpu_open() leaves it. */
static void set_connections(void) { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

static bool has_gpu(void) {
  int32_t found[2] = {0, 0};
  if (getenv("GPU_TEST_SMS")) return recall("GPU_TEST_SMS") > 0;
  set_connections();
  (world_is_one_process() ? look : look_apart)(found);
  remember("GPU_TEST_DEVICES", found[0]);
  remember("GPU_TEST_SMS", found[1]);
  return found[1] > 0;
}

void world_hold_gpus(void) {
  for (int32_t i = 0; world_is_one_process() && i < world_gpus(); i++) {
    char device[20];
    banyan_comm *comm; /* until the process ends */
    snprintf(device, sizeof device, "cuda:%d", i);
    banyan_comm_config config = {.size = sizeof config, .device = device, .arena_bytes = 1 << 20};
    banyan_threads *group;
    banyan_bootstrap bootstrap;
    banyan_status status = banyan_threads_create(1, &group);
    if (status == BANYAN_OK) status = banyan_threads_bootstrap(group, 0, &bootstrap);
    if (status == BANYAN_OK) status = banyan_comm_create(&bootstrap, &config, &comm);
    if (status != BANYAN_OK) printf("%s\n", banyan_last_error());
  }
}

/* Kernels of all communicators must fit on a device at once, or running kernels wait for kernels that cannot start. The
 * library ensures it for the ranks of one communicator, within this limit. */
static void begin_gpu(const world_setup *setup) {
  int32_t share = recall("GPU_TEST_SMS") / (setup->comms ? setup->comms : 1);
  remember("BANYAN_DEVICE_SMS", share > 1 ? share : 1);
}

static bool open_gpu(world_rank *self) {
  return open_ordinal(self, self->setup->one_device ? 0 : self->rank % recall("GPU_TEST_DEVICES"));
}

gpu *world_gpu_of(const world_rank *self) { return self->place->device; }
int32_t world_gpus(void) { return recall("GPU_TEST_DEVICES"); }

/* ---- emulated devices on nodes ----------------------------------------------------------------------------------- */

/* The emulated clock is slower than real time, so that no kernel deadline passes early. */
static void begin_nodes(const world_setup *setup) {
  char more[256];
  set_connections();
  snprintf(more, sizeof more, "%s%sdevices=%d,live,moved,step-ns=20,seed=%llu", setup->words ? setup->words : "",
           setup->fabric ? "" : "no-fabric,", setup->nranks, (unsigned long long)random_seed());
  setenv("FAKE_CUDA", more, 1);
  setenv("BANYAN_CUDA_LIBRARY", fake_cuda_path(), 1);
  world_be_nodes(world_nodes_of(setup));
  fake_cuda_set_image("emulated", 8);
}

/* If UCX threads run next to kernels on separate stacks, the leak sanitizer sometimes dies by a signal. */
static bool has_nodes(void) {
  if (world_is_sanitized()) return printf("skipped: built with a sanitizer\n"), false;
  return world_emulated.is_here() && world_nodes.is_here();
}

static bool open_own(world_rank *self) { return open_ordinal(self, self->setup->one_device ? 0 : self->rank); }

#define DEVICE \
  .at = at, .put = put, .finish = finish, .capture = capture, .replay = replay, .close = close_device, .is_device = true
#else
static bool has_gpu(void) { return printf("skipped: built without CUDA\n"), false; }
static bool has_nodes(void) { return has_gpu(); }
void world_hold_gpus(void) {}
#define begin_gpu NULL
#define begin_nodes NULL
#define open_gpu NULL
#define open_own NULL
#define DEVICE .is_device = true
#endif

const world_backend world_gpu = {.name = "gpu",
                                 .every = 1,
                                 .ranks_max = 9, /* kernels for more than 8 ranks are others */
                                 .timeout_s = 20,
                                 .is_here = has_gpu,
                                 .begin = begin_gpu,
                                 .open = open_gpu,
                                 DEVICE};
const world_backend world_gpu_processes = {.name = "gpu processes",
                                           .processes = true,
                                           .every = 8,
                                           .ranks_max = 8,
                                           .timeout_s = 40, /* ranks take turns on a device */
                                           .is_here = has_gpu,
                                           .begin = begin_gpu,
                                           .open = open_gpu,
                                           DEVICE};
const world_backend world_staged = {.name = "emulated nodes",
                                    .every = 12,
                                    .ranks_max = 5,
                                    .is_here = has_nodes,
                                    .begin = begin_nodes,
                                    .end = world_check_left,
                                    .open = open_own,
                                    DEVICE};
