/* SPDX-License-Identifier: Apache-2.0
 * A kernel of a user's on a GPU, built with banyan_device.cuh: it pushes partials from its epilogue and merges those of
 * all ranks without a second launch. Its result has the bits of banyan_combine(), and is near a reference in double
 * precision; replayed from a graph as well. Ranks are threads on one device. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emulate/user_kernel.h"
#include "cuda/program.h"
#include "device/device.h"
#include "tests/gpu/gpu_world.h"

enum { RANKS_MAX = 8, TOKENS = 3, HEADS = 16, ROWS = TOKENS * HEADS, VALUE_DIM = 128, BLOCKS = 4, REPLAYS = 100 };

#ifdef USER_KERNEL_IMAGE
__asm__(".pushsection .rodata\n.balign 64\nuser_kernel_image:\n.incbin \"" USER_KERNEL_IMAGE "\"\n"
        ".balign 8\nuser_kernel_image_bytes:\n.quad . - user_kernel_image\n.popsection\n");
extern const unsigned char user_kernel_image[];
extern const size_t user_kernel_image_bytes;
static const void *image(size_t *bytes) {
  *bytes = user_kernel_image_bytes;
  return user_kernel_image;
}
#else
static const void *image(size_t *bytes) {
  *bytes = 0;
  return NULL;
}
#endif

/* Normalised values, and lse behind them. */
typedef struct rows {
  float values[ROWS * VALUE_DIM], lse[ROWS];
} rows;

typedef struct task {
  int32_t nranks;
  rows in[RANKS_MAX];
} task;

typedef struct rig {
  bny_device *device;
  bny_device_module *module;
  bny_device_kernel kernel;
  banyan_op *op;
  rows *in, *apart, *within; /* memory of the device */
  gpu_graph *graph;
} rig;

static void fill(task *task) {
  world_random random = {world_seed() * 1000 + (uint64_t)task->nranks};
  for (int32_t r = 0; r < task->nranks; r++) {
    for (int i = 0; i < ROWS; i++)
      task->in[r].lse[i] = random_one_in(&random, 5) ? -INFINITY : 20 * (float)random_unit(&random);
    for (int i = 0; i < ROWS * VALUE_DIM; i++) task->in[r].values[i] = (float)random_unit(&random);
  }
}

static banyan_partial describe(rows *memory) {
  banyan_partial made;
  banyan_partial_init(&made, memory ? memory->values : NULL, BANYAN_F32, memory ? memory->lse : NULL, BANYAN_F32, HEADS,
                      VALUE_DIM);
  return made;
}

/* ---- on the device ----------------------------------------------------------------------------------------------- */

static bool begin(gpu_rank *self, const task *task, rig *made) {
  tool_error error = {.text = ""};
  world_rank *world = self->world;
  const banyan_combine_desc desc = {.size = sizeof desc, .tokens = TOKENS, .heads = HEADS, .value_dim = VALUE_DIM};
  size_t bytes;
  const void *kernels = image(&bytes);
  return world_ok(world, bny_device_open_named(self->name, getenv("BANYAN_CUDA_LIBRARY"), &made->device), "open") &&
         world_ok(world, made->device->ops->module_load(made->device, kernels, bytes, &made->module), "image") &&
         world_ok(world, made->device->ops->kernel_find(made->module, "user_kernel", &made->kernel), "kernel") &&
         gpu_ok(self,
                gpu_take(self->device, sizeof(rows), (void **)(void *)&made->in, &error) &&
                    gpu_take(self->device, sizeof(rows), (void **)(void *)&made->apart, &error) &&
                    gpu_take(self->device, sizeof(rows), (void **)(void *)&made->within, &error) &&
                    gpu_write(self->device, made->in, &task->in[world->rank], sizeof(rows), &error),
                &error) &&
         world_ok(world, banyan_device_combine_init(world->comm, &desc, &made->op), "banyan_device_combine_init");
}

static void end(gpu_rank *self, rig *made, bool idle) {
  banyan_op_free(made->op);
  if (idle) {
    gpu_graph_free(made->graph);
    gpu_give(self->device, made->in);
    gpu_give(self->device, made->apart);
    gpu_give(self->device, made->within);
    if (made->module) made->device->ops->module_unload(made->module);
  }
  if (made->device) made->device->ops->close(made->device);
}

static bool combine_apart(gpu_rank *self, const rig *rig) {
  const banyan_combine_desc desc = {.size = sizeof desc,
                                    .tokens = TOKENS,
                                    .heads = HEADS,
                                    .value_dim = VALUE_DIM,
                                    .algorithm = "oneshot",
                                    .stream = self->stream};
  banyan_partial in = describe(rig->in), out = describe(rig->apart);
  return world_ok(self->world, banyan_combine(self->world->comm, &desc, &in, &out), "combine");
}

/* Grids differ from rank to rank, and each begins with another row. */
static bool launch(gpu_rank *self, const rig *rig) {
  bny_device_combine combine;
  banyan_partial what = describe(NULL), out = describe(rig->within);
  int32_t rank = self->world->rank;
  if (!world_ok(self->world, banyan_op_device(rig->op, &what, &out, BLOCKS, &combine, sizeof combine),
                "banyan_op_device"))
    return false;
  user_kernel_rows rows = {rig->in->values, rig->in->lse, NULL, TOKENS, HEADS, VALUE_DIM, (uint32_t)rank, 0};
  void *arguments[] = {&rows, &combine};
  bny_device_launch launch = {.kernel = &rig->kernel,
                              .grid = {(uint32_t)(BLOCKS - rank % 3), 1, 1},
                              .block = {32 * USER_KERNEL_WARPS, 1, 1},
                              .arguments = arguments};
  return world_ok(self->world, rig->device->ops->launch(rig->device, &launch, self->stream), "launch");
}

static bool capture(gpu_rank *self, rig *rig) {
  tool_error error = {.text = ""};
  bool ok = gpu_ok(self, gpu_capture_begin(self->device, self->stream, &error), &error);
  ok = ok && launch(self, rig) && combine_apart(self, rig) && launch(self, rig);
  return ok && gpu_ok(self, gpu_capture_end(self->device, self->stream, &rig->graph, &error), &error);
}

static bool replay(gpu_rank *self, const rig *rig) {
  tool_error error = {.text = ""};
  bool ok = true;
  for (int i = 0; ok && i < (gpu_quick() ? 2 : REPLAYS); i++)
    ok = gpu_ok(self, gpu_graph_launch(rig->graph, self->stream, &error), &error);
  return ok;
}

/* ---- what came of it --------------------------------------------------------------------------------------------- */

/* A row of all ranks, merged: the largest error of its values and lse. */
static double error_of(const task *task, int row, const rows *got) {
  double top = -INFINITY, sum = 0, values[VALUE_DIM] = {0}, worst = 0;
  for (int32_t r = 0; r < task->nranks; r++) top = fmax(top, (double)task->in[r].lse[row]);
  if (top == -INFINITY) return got->lse[row] == -INFINITY ? 0 : INFINITY;
  for (int32_t r = 0; r < task->nranks; r++) {
    const double weight = exp((double)task->in[r].lse[row] - top);
    sum += weight;
    for (int i = 0; i < VALUE_DIM; i++) values[i] += weight * (double)task->in[r].values[row * VALUE_DIM + i];
  }
  for (int i = 0; i < VALUE_DIM; i++)
    worst = fmax(worst, fabs(values[i] / sum - (double)got->values[row * VALUE_DIM + i]));
  return fmax(worst, fabs(top + log(sum) - (double)got->lse[row]));
}

static bool check(gpu_rank *self, const task *task, const rig *rig) {
  tool_error error = {.text = ""};
  rows *apart = malloc(2 * sizeof *apart), *within = apart + 1;
  bool ok = gpu_ok(self,
                   gpu_read(self->device, apart, rig->apart, sizeof *apart, &error) &&
                       gpu_read(self->device, within, rig->within, sizeof *within, &error),
                   &error);
  ok = ok &&
       world_check(self->world, memcmp(apart, within, sizeof *apart) == 0, "bits are not those of banyan_combine()");
  for (int row = 0; ok && row < ROWS; row++) {
    const double off = error_of(task, row, within);
    ok = world_check(self->world, off <= 1e-5, "row %d is off by %g", row, off);
  }
  free(apart);
  return ok;
}

static void use(gpu_rank *self, void *argument) {
  const task *task = argument;
  rig rig = {.device = NULL};
  world_rank *world = self->world;
  bool ok = begin(self, task, &rig) && world_meet(world); /* memory is there before anything runs, see gpu_take() */
  ok = ok && combine_apart(self, &rig) && launch(self, &rig) && gpu_finish(self) && check(self, task, &rig) &&
       world_meet(world) && capture(self, &rig) && world_meet(world) && replay(self, &rig) && gpu_finish(self) &&
       world_ok(world, banyan_comm_status(world->comm), "status") && check(self, task, &rig);
  ok = world_meet(world) && ok;
  end(self, &rig, ok);
}

START_TEST(user_kernels) {
  size_t bytes;
  if (!image(&bytes) || (gpu_quick() && _i != 2)) {
    gpu_skip("user_kernels", _i, "%s", image(&bytes) ? "--quick" : "built without nvcc");
    return;
  }
  task *task = calloc(1, sizeof *task);
  task->nranks = _i;
  fill(task);
  gpu_setup setup = {.nranks = _i, .arena_bytes = 4 << 20, .argument = task, .body = use};
  gpu_run(&setup);
  free(task);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_user");
  TCase *threads = tcase_create("threads");
  tcase_add_loop_test(threads, user_kernels, 1, RANKS_MAX + 1);
  gpu_add_case(suite, threads);
  return gpu_main(suite);
}
