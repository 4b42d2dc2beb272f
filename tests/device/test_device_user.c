/* SPDX-License-Identifier: Apache-2.0
 * Tests combines within a user's kernel, which may read the number of tokens and the valid rows at run time. A graph is
 * captured once and replayed with changing numbers. Its result has the bits of a launched combine, and nothing else is
 * written. Devices are emulated, over the fake driver. */
#include "cuda/program.h"
#include "tests/device/device_util.h"
#include "tests/emulate/user_kernel.h"
#include "tests/support/world.h"

enum { RANKS_MAX = 9, MOST = 10, HEADS_MAX = 10, DIM_MAX = 70, ROUNDS = 5, ROWS = MOST * HEADS_MAX };

/* The rows of a rank, and its results of both kinds of combine. */
typedef struct memory {
  float values[ROWS * DIM_MAX], lse[ROWS], sum[ROWS];
  float apart[ROWS * DIM_MAX], apart_lse[ROWS], within[ROWS * DIM_MAX], within_lse[ROWS];
  int32_t tokens, starts[MOST + 1], lengths[MOST];
  uint8_t mask[MOST];
} memory;

/* A problem, the same on all ranks. It selects the arrays of banyan_valid_rows that are set. */
typedef struct problem {
  int32_t nranks, heads, dim;
  banyan_scatter scatter;
  banyan_dtype wire;
  bool has_tokens, has_lengths, has_starts, has_mask, keeps, one_device;
  bool numerators; /* numerators with m and d in base 2; else normalised values with lse in base e */
  bool has_valid;
  banyan_dtype out_dtype;
  uint64_t seed;
} problem;

static void draw(const problem *problem, memory *memory, int32_t rank, int round) {
  world_random all = problem->seed * 1000 + (uint64_t)round;
  world_random own = problem->seed * 1000 + (uint64_t)(100 + round * RANKS_MAX + rank);
  memory->tokens = round == 0 ? MOST : round == 1 ? 0 : random_below(&all, MOST + 1);
  const int32_t count = problem->has_tokens ? memory->tokens : MOST;
  for (int32_t i = 0; i < MOST; i++) {
    int32_t next = memory->starts[i] + random_below(&own, 4);
    memory->starts[i + 1] = next < count ? next : count;
    memory->lengths[i] = random_one_in(&own, 3) ? 0 : 1 + random_below(&own, 50);
    memory->mask[i] = !random_one_in(&own, 4);
  }
  for (int32_t i = 0; i < ROWS; i++) {
    const bool empty = random_one_in(&own, 9);
    memory->lse[i] = empty                 ? -INFINITY
                     : problem->numerators ? (float)random_below(&own, 20)
                                           : 10 * (float)random_unit(&own);
    memory->sum[i] = empty ? 0 : 1 + (float)random_below(&own, 1000) / 7;
  }
  for (int32_t i = 0; i < ROWS * DIM_MAX; i++) memory->values[i] = (float)random_unit(&own);
  memset(memory->apart, 0x5a, sizeof memory->apart);
  memset(memory->apart_lse, 0x5a, sizeof memory->apart_lse);
  memset(memory->within, 0x5a, sizeof memory->within);
  memset(memory->within_lse, 0x5a, sizeof memory->within_lse);
}

static problem problem_of(int index) {
  world_random random = random_seed() * 500 + (uint64_t)index;
  static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_BF16, BANYAN_F16};
  problem made = {.nranks = 1 + index % RANKS_MAX,
                  .heads = 1 + random_below(&random, 4),
                  .dim = random_one_in(&random, 4) ? 0 : 1 + random_below(&random, DIM_MAX),
                  .scatter = (banyan_scatter)(index / RANKS_MAX % 4),
                  .wire = wires[random_below(&random, 3)],
                  .has_tokens = !random_one_in(&random, 4),
                  .has_lengths = random_one_in(&random, 2),
                  .has_starts = random_one_in(&random, 2),
                  .has_mask = random_one_in(&random, 2),
                  .keeps = random_one_in(&random, 3),
                  .one_device = random_one_in(&random, 3),
                  .numerators = random_one_in(&random, 2),
                  .has_valid = !random_one_in(&random, 4),
                  .out_dtype = wires[random_below(&random, 3)],
                  .seed = random_seed() * 500 + (uint64_t)index};
  if (made.scatter == BANYAN_SCATTER_HEADS) made.heads = made.nranks + made.heads % 2;
  return made;
}

static banyan_valid_rows valid_of(const problem *problem, const memory *memory) {
  const bool sequences = problem->has_lengths || problem->has_starts;
  return (banyan_valid_rows){.size = sizeof(banyan_valid_rows),
                             .tokens = problem->has_tokens ? &memory->tokens : NULL,
                             .batch = sequences ? MOST : 0,
                             .seq_lens = problem->has_lengths ? memory->lengths : NULL,
                             .query_start_loc = problem->has_starts ? memory->starts : NULL,
                             .token_mask = problem->has_mask ? memory->mask : NULL,
                             .empty_rows = problem->keeps ? BANYAN_EMPTY_ROWS_KEPT : BANYAN_EMPTY_ROWS_WRITTEN};
}

/* The kernels of the test. On emulated devices any image stands for them. */
#ifdef USER_KERNEL_IMAGE
__asm__(".pushsection .rodata\n.balign 64\nuser_kernel_image:\n.incbin \"" USER_KERNEL_IMAGE "\"\n"
        ".balign 8\nuser_kernel_image_bytes:\n.quad . - user_kernel_image\n.popsection\n");
extern const unsigned char user_kernel_image[];
extern const size_t user_kernel_image_bytes;
#else
static const unsigned char user_kernel_image[1];
static const size_t user_kernel_image_bytes = 0;
#endif

static const void *image(const world_backend *on, size_t *bytes) {
  const bool emulated = on == &world_emulated;
  *bytes = emulated ? 9 : user_kernel_image_bytes;
  return emulated ? (const void *)"emulated" : user_kernel_image;
}

typedef struct rig {
  const problem *problem;
  memory *memory;
  bny_device *device;
  bny_device_module *module;
  bny_device_kernel kernel;
  banyan_valid_rows valid;
  banyan_combine_desc desc;
  banyan_partial in, apart, within;
  banyan_op *launched, *inside;
} rig;

static bool make(world_rank *self, rig *rig) {
  const problem *problem = rig->problem = self->argument;
  memory *memory = rig->memory = world_take(sizeof *memory);
  size_t bytes;
  const void *kernels = image(self->on, &bytes);
  int32_t heads = problem->heads, head0;
  if (problem->scatter == BANYAN_SCATTER_HEADS) banyan_split(heads, self->nranks, self->rank, &head0, &heads);
  banyan_partial_init(&rig->in, memory->values, BANYAN_F32, memory->lse, BANYAN_F32, problem->heads, problem->dim);
  if (problem->numerators) {
    rig->in.values_kind = BANYAN_VALUES_NUMERATOR;
    rig->in.stats_kind = BANYAN_STATS_MAX_SUM;
    rig->in.sum = memory->sum;
    rig->in.base = BANYAN_BASE_2;
  }
  banyan_partial_init(&rig->apart, memory->apart, problem->out_dtype, memory->apart_lse, BANYAN_F32, heads,
                      problem->dim);
  banyan_partial_init(&rig->within, memory->within, problem->out_dtype, memory->within_lse, BANYAN_F32, heads,
                      problem->dim);
  rig->in = world_partial(self, rig->in);
  rig->apart = world_partial(self, rig->apart);
  rig->within = world_partial(self, rig->within);
  rig->valid = world_valid(self, valid_of(problem, memory));
  if (!world_ok(self, bny_device_open_named(self->device, getenv("BANYAN_CUDA_LIBRARY"), &rig->device), "open") ||
      !world_ok(self, rig->device->ops->module_load(rig->device, kernels, bytes, &rig->module), "image") ||
      !world_put(self))
    return false;
  rig->desc = (banyan_combine_desc){.size = sizeof rig->desc,
                                    .tokens = MOST,
                                    .heads = problem->heads,
                                    .value_dim = problem->dim,
                                    .wire = problem->wire,
                                    .scatter = problem->scatter,
                                    .algorithm = "oneshot",
                                    .stream = self->stream,
                                    .valid = problem->has_valid ? &rig->valid : NULL};
  bool good =
      world_ok(self, rig->device->ops->kernel_find(rig->module, "user_kernel", &rig->kernel), "kernel") &&
      world_ok(self, banyan_combine_init(self->comm, &rig->desc, &rig->in, &rig->apart, &rig->launched), "init") &&
      world_ok(self, banyan_device_combine_init(self->comm, &rig->desc, &rig->inside), "device init");
  rig->valid = (banyan_valid_rows){0}; /* has been read already */
  return good;
}

static void unmake(rig *rig) {
  banyan_op_free(rig->launched);
  banyan_op_free(rig->inside);
  if (rig->module) rig->device->ops->module_unload(rig->module);
  if (rig->device) rig->device->ops->close(rig->device);
}

static bool launch(world_rank *self, const rig *rig) {
  const problem *problem = rig->problem;
  banyan_partial what = rig->in;
  what.values = what.lse = what.sum = NULL;
  bny_device_combine combine;
  if (!world_ok(self, banyan_op_device(rig->inside, &what, &rig->within, 2, &combine, sizeof combine), "device"))
    return false;
  user_kernel_rows rows = {rig->in.values,
                           rig->in.lse,
                           rig->in.sum,
                           MOST,
                           (uint32_t)problem->heads,
                           (uint32_t)problem->dim,
                           (uint32_t)self->rank * 3,
                           (uint32_t)(problem->seed % USER_KERNEL_HOWS) ^
                               ((uint32_t)self->rank % 2 * USER_KERNEL_ASKS)};
  void *arguments[] = {&rows, &combine};
  bny_device_launch launch = {.kernel = &rig->kernel,
                              .grid = {1 + (uint32_t)self->rank % 3, 1, 1},
                              .block = {32 * USER_KERNEL_WARPS, 1, 1},
                              .arguments = arguments};
  return world_ok(self, rig->device->ops->launch(rig->device, &launch, self->stream), "launch");
}

static bool holds(world_rank *self, const rig *rig, int round) {
  const problem *problem = rig->problem;
  const memory *memory = rig->memory;
  bool same = memcmp(memory->apart, memory->within, sizeof memory->apart) == 0 &&
              memcmp(memory->apart_lse, memory->within_lse, sizeof memory->apart_lse) == 0;
  return world_check(self, same,
                     "round %d of %d tokens: bits differ: scatter %d, wire %d, %d heads of %d, tokens %d, lengths %d, "
                     "starts %d, mask %d",
                     round, memory->tokens, problem->scatter, problem->wire, problem->heads, problem->dim,
                     problem->has_tokens, problem->has_lengths, problem->has_starts, problem->has_mask);
}

static void replay(world_rank *self) {
  rig rig = {NULL};
  bool good = make(self, &rig);
  good = world_meet(self) && good;
  const bool counts = self->on == &world_emulated;
  uint64_t before = counts ? FAKE_CUDA(fake_cuda_setup_calls)() : 0;
  if (good && world_meet(self)) {
    good = world_capture(self, true) && world_ok(self, banyan_start(rig.launched), "start") && launch(self, &rig);
    good = world_capture(self, false) && good;
  }
  uint64_t calls = world_meet(self) && counts ? FAKE_CUDA(fake_cuda_setup_calls)() - before : 0;
  world_check(self, calls == 0, "%llu calls that allocate or wait", (unsigned long long)calls);
  good = world_meet(self) && good;
  for (int round = 0; round < ROUNDS && good; round++) {
    draw(rig.problem, rig.memory, self->rank, round);
    good = world_replay(self) && world_ok(self, banyan_comm_status(self->comm), "status") && holds(self, &rig, round);
  }
  world_meet(self);
  unmake(&rig);
}

TEST_EVERYWHERE(a_graph_serves_any_number, 4 * RANKS_MAX) {
  size_t bytes;
  if (!on->is_device || on == &world_staged) return; /* kernels of several nodes cannot combine */
  if (!image(on, &bytes) || bytes == 0) {
    world_skip("a_graph_serves_any_number", "built without nvcc");
    return;
  }
  problem problem = problem_of(_i);
  problem.nranks = world_ranks(on, problem.nranks);
  if (problem.scatter == BANYAN_SCATTER_HEADS) problem.heads = problem.nranks + problem.heads % 2;
  setenv("BANYAN_ARENA_KIB", "4096", 1);
  WORLD_RUN(replay, .nranks = problem.nranks, .on = on, .one_device = problem.one_device,
            .words = problem.seed % 4 || on != &world_emulated ? NULL : "no-files", .argument = &problem);
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

static void reject(world_rank *self) {
  float in[2 * 8] = {0}, lse[2] = {0};
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = 2, .value_dim = 8};
  banyan_op *op = NULL, *other = NULL;
  bny_device_combine combine;
  const struct {
    banyan_combine_desc desc;
    banyan_status status;
    const char *says;
  } cases[] = {
      {{.tokens = 1, .algorithm = "ring"}, BANYAN_ERR_ARGUMENT, "\"ring\""},
      {{.tokens = 1, .order = BANYAN_ORDER_CANONICAL, .wire = BANYAN_F16}, BANYAN_ERR_UNSUPPORTED, "canonical order"},
      {{.tokens = 1, .wire = BANYAN_E4M3},
       BANYAN_ERR_UNSUPPORTED,
       "desc.wire is BANYAN_E4M3, which a combine within a kernel does not have"},
      {{.tokens = 1 << 16}, BANYAN_ERR_MEMORY, "raise arena_bytes"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    banyan_combine_desc wrong = cases[i].desc;
    wrong.size = sizeof wrong, wrong.heads = 2, wrong.value_dim = 8;
    world_gets(self, banyan_device_combine_init(self->comm, &wrong, &op), cases[i].status, cases[i].says);
  }
  if (!world_ok(self, banyan_device_combine_init(self->comm, &desc, &op), "init")) return;
  banyan_partial out, what, wrong;
  banyan_partial_init(&what, NULL, BANYAN_F32, NULL, BANYAN_F32, 2, 8);
  banyan_partial_init(&out, in, BANYAN_F32, lse, BANYAN_F32, 2, 8);
  banyan_partial_init(&wrong, NULL, BANYAN_F16, NULL, BANYAN_F32, 2, 8);
  const size_t bytes = sizeof combine;
  world_gets(self, banyan_start(op), BANYAN_ERR_STATE, "part of your kernel");
  world_gets(self, banyan_op_device(op, &what, &out, 1, &combine, bytes - 8), BANYAN_ERR_ARGUMENT,
             "header that came with it");
  world_gets(self, banyan_op_device(op, &what, &out, 0, &combine, bytes), BANYAN_ERR_ARGUMENT, "blocks is 0");
  world_gets(self, banyan_op_device(op, &wrong, &out, 1, &combine, bytes), BANYAN_ERR_ARGUMENT, "rows: dtypes");
  world_gets(self, banyan_op_device(op, NULL, &out, 1, &combine, bytes), BANYAN_ERR_ARGUMENT, "rows: is NULL");
  world_gets(self, banyan_op_device(op, &what, NULL, 1, &combine, bytes), BANYAN_ERR_ARGUMENT, "out is NULL");
  if (world_ok(self, banyan_barrier_init(self->comm, &other), "barrier"))
    world_gets(self, banyan_op_device(other, &what, &out, 1, &combine, bytes), BANYAN_ERR_STATE,
               "banyan_device_combine_init");
  banyan_op_free(op);
  banyan_op_free(other);
  banyan_comm_destroy(self->comm);
  self->comm = NULL;
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = WORLD_GUARD_NS};
  if (!world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create")) return;
  world_gets(self, banyan_device_combine_init(self->comm, &desc, &op), BANYAN_ERR_UNSUPPORTED, "no device");
}

TEST(rejections) { WORLD_RUN(reject, .nranks = 2, .on = &world_emulated); }

/* One rank launches a combine, and the others run it within a kernel. All ranks report this before data moves. */
static void mismatch(world_rank *self) {
  float values[2 * 8] = {0}, lse[2] = {0};
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = 2, .value_dim = 8, .algorithm = "oneshot"};
  banyan_partial rows;
  banyan_op *op = NULL;
  banyan_partial_init(&rows, values, BANYAN_F32, lse, BANYAN_F32, 2, 8);
  banyan_status status = self->rank == 0 ? banyan_combine_init(self->comm, &desc, &rows, &rows, &op)
                                         : banyan_device_combine_init(self->comm, &desc, &op);
  world_gets(self, status, BANYAN_ERR_MISMATCH, "combine within a kernel");
}

TEST(mismatches) { WORLD_RUN(mismatch, .nranks = 3, .on = &world_emulated); }

static void lack_devices_memory(world_rank *self) {
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = 2, .value_dim = 8};
  banyan_op *op = NULL;
  world_gets(self, banyan_device_combine_init(self->comm, &desc, &op), BANYAN_ERR_UNSUPPORTED, "host memory");
}

TEST(arenas_in_host_memory) {
  WORLD_RUN(lack_devices_memory, .nranks = 2, .on = &world_emulated, .words = "no-vmm,no-ipc,no-peer");
}

int main(void) { return world_main(suite_of("device_user", 120)); }
