/* SPDX-License-Identifier: Apache-2.0
 * A combine within a kernel of a user's, from banyan.h down, over the fake driver: the same bits as
 * banyan_combine(). */
#include <check.h>
#include <math.h>

#include "cuda/program.h"
#include "tests/device/device_world.h"
#include "tests/emulate/user_kernel.h"
#include "tests/support/suite.h"

enum { RANKS_MAX = 5, CALLS = 8, TOKENS_MAX = 3, HEADS_MAX = 5, ROWS_MAX = TOKENS_MAX * HEADS_MAX };

#if !defined HAVE_CUDA || !defined HAVE_CXX17
int main(void) {
  puts("built without CUDA, or without a compiler of C++17");
  return 77;
}
#else

typedef struct rows {
  float values[ROWS_MAX * USER_KERNEL_DIM_MAX], lse[ROWS_MAX], sum[ROWS_MAX];
} rows;

/* One shape; what each rank has, and gets in both ways. */
typedef struct call {
  banyan_combine_desc desc;
  bool numerators; /* with m and d in base 2; else normalised, with lse in base e */
  banyan_dtype out_dtype;
  uint32_t turn[RANKS_MAX];
  rows in[RANKS_MAX], apart[RANKS_MAX], within[RANKS_MAX];
} call;

typedef struct task {
  int32_t nranks;
  bool one_device;
  int rounds; /* graphs: replays */
  call calls[CALLS];
} task;

static void fill(world_random *random, call *made, rows *in) {
  int32_t count = made->desc.tokens * made->desc.heads;
  for (int32_t i = 0; i < count; i++) {
    bool empty = random_one_in(random, 5);
    in->lse[i] = empty              ? -INFINITY
                 : made->numerators ? (float)random_below(random, 20)
                                    : 10 * (float)random_unit(random);
    in->sum[i] = empty ? 0 : 1 + (float)random_below(random, 1000) / 7;
  }
  for (int32_t i = 0; i < count * made->desc.value_dim; i++) in->values[i] = (float)random_unit(random);
}

static task *make_task(int32_t nranks, uint64_t seed) {
  static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};
  static const int32_t dims[] = {0, 7, 64, 130};
  world_random random = {world_seed() * 100 + seed};
  task *made = calloc(1, sizeof *made);
  made->nranks = nranks;
  for (int i = 0; i < CALLS; i++) {
    call *one = &made->calls[i];
    one->desc = (banyan_combine_desc){.size = sizeof one->desc,
                                      .tokens = 1 + random_below(&random, TOKENS_MAX),
                                      .heads = 1 + random_below(&random, HEADS_MAX),
                                      .value_dim = dims[random_below(&random, 4)],
                                      .wire = wires[random_below(&random, 3)],
                                      .scatter = (banyan_scatter)(i % 4),
                                      .root = random_below(&random, nranks),
                                      .algorithm = "oneshot"};
    one->numerators = random_one_in(&random, 2);
    one->out_dtype = wires[random_below(&random, 3)];
    for (int32_t r = 0; r < nranks; r++) {
      one->turn[r] = (uint32_t)random_below(&random, 20);
      fill(&random, one, &one->in[r]);
    }
  }
  return made;
}

static banyan_partial input(const call *call, rows *in) {
  banyan_partial made;
  banyan_partial_init(&made, in->values, BANYAN_F32, in->lse, BANYAN_F32, call->desc.heads, call->desc.value_dim);
  if (call->numerators) {
    made.values_kind = BANYAN_VALUES_NUMERATOR;
    made.stats_kind = BANYAN_STATS_MAX_SUM;
    made.sum = in->sum;
    made.base = BANYAN_BASE_2;
  }
  return made;
}

static banyan_partial output(const call *call, rows *out) {
  banyan_partial made;
  banyan_partial_init(&made, out->values, call->out_dtype, out->lse, BANYAN_F32, call->desc.heads,
                      call->desc.value_dim);
  return made;
}

/* ---- the two ways ------------------------------------------------------------------------------------------------ */

typedef struct rig {
  task *task;
  device_world_own own;
  bny_device_kernel kernel;
} rig;

static bool begin(world_rank *self, rig *rig) {
  task *task = self->argument;
  int ordinal = task->one_device ? 0 : self->rank;
  rig->task = task;
  return device_world_join(self, ordinal) && device_world_make_own(self, ordinal, &rig->own) &&
         world_ok(self, rig->own.device->ops->kernel_find(rig->own.module, "user_kernel", &rig->kernel), "kernel");
}

static bool combine_apart(world_rank *self, rig *rig, int index) {
  call *call = &rig->task->calls[index];
  banyan_partial in = input(call, &call->in[self->rank]), out = output(call, &call->apart[self->rank]);
  banyan_combine_desc desc = call->desc;
  desc.stream = rig->own.stream;
  return world_ok(self, banyan_combine(self->comm, &desc, &in, &out), "combine");
}

static bool launch_within(world_rank *self, rig *rig, int index, banyan_op *op) {
  call *call = &rig->task->calls[index];
  rows *in = &call->in[self->rank];
  banyan_partial what = input(call, in), out = output(call, &call->within[self->rank]);
  what.values = what.lse = what.sum = NULL;
  bny_device_combine combine;
  if (!world_ok(self, banyan_op_device(op, &what, &out, 1 + index % 4, &combine, sizeof combine), "banyan_op_device"))
    return false;
  user_kernel_rows rows = {in->values,
                           in->lse,
                           call->numerators ? in->sum : NULL,
                           (uint32_t)call->desc.tokens,
                           (uint32_t)call->desc.heads,
                           (uint32_t)call->desc.value_dim,
                           call->turn[self->rank],
                           0};
  void *arguments[] = {&rows, &combine};
  bny_device_launch launch = {.kernel = &rig->kernel,
                              .grid = {1 + (uint32_t)(index + self->rank) % 5, 1, 1},
                              .block = {32 * USER_KERNEL_WARPS, 1, 1},
                              .early = index % 2,
                              .arguments = arguments};
  return world_ok(self, rig->own.device->ops->launch(rig->own.device, &launch, rig->own.stream), "launch");
}

static void check_bits(const task *task) {
  for (int i = 0; i < CALLS; i++) {
    const call *call = &task->calls[i];
    for (int32_t r = 0; r < task->nranks; r++)
      ck_assert_msg(memcmp(&call->apart[r], &call->within[r], sizeof(rows)) == 0,
                    "rank %d of %d, call %d: bits differ: scatter %d, wire %d, %d x %d x %d", r, task->nranks, i,
                    call->desc.scatter, call->desc.wire, call->desc.tokens, call->desc.heads, call->desc.value_dim);
  }
}

static void do_both(world_rank *self) {
  rig rig = {NULL};
  banyan_op *ops[CALLS] = {NULL};
  bool good = begin(self, &rig);
  for (int i = 0; i < CALLS && good; i++) {
    good = world_ok(self, banyan_device_combine_init(self->comm, &rig.task->calls[i].desc, &ops[i]), "init") &&
           combine_apart(self, &rig, i);
  }
  uint64_t before = FAKE_CUDA(fake_cuda_setup_calls)();
  if (good && world_meet(self)) {
    for (int i = 0; i < CALLS && good; i++) good = launch_within(self, &rig, i, ops[i]);
    if (good && world_meet(self)) {
      uint64_t calls = FAKE_CUDA(fake_cuda_setup_calls)() - before;
      world_check(self, calls == 0, "%llu calls that allocate or wait", (unsigned long long)calls);
    }
  }
  /* A device combine outlives the operation. */
  for (int i = 0; i < CALLS; i++) banyan_op_free(ops[i]);
  if (good && device_world_run(self)) world_ok(self, banyan_comm_status(self->comm), "status");
  device_world_free_own(&rig.own);
}

TEST_LOOP(bits_of_a_combine, RANKS_MAX) {
  device_world_begin(RANKS_MAX, _i % 2 ? "" : "no-files");
  task *task = make_task(1 + _i, (uint64_t)_i);
  task->one_device = _i % 2;
  WORLD_RUN(do_both, .nranks = task->nranks, .bare = true, .argument = task);
  check_bits(task);
  free(task);
  device_world_end();
}

static void replay(world_rank *self) {
  rig rig = {NULL};
  banyan_op *op = NULL;
  bool good = begin(self, &rig) &&
              world_ok(self, banyan_device_combine_init(self->comm, &rig.task->calls[0].desc, &op), "init") &&
              combine_apart(self, &rig, 0) && device_world_run(self);
  if (good) {
    FAKE_CUDA(fake_cuda_capture)(rig.own.stream, true);
    good = launch_within(self, &rig, 0, op) && combine_apart(self, &rig, 1);
    FAKE_CUDA(fake_cuda_capture)(rig.own.stream, false);
  }
  for (int round = 0; round < 4 && good; round++) {
    call *call = &rig.task->calls[0];
    memset(&call->within[self->rank], 0, sizeof(rows));
    FAKE_CUDA(fake_cuda_replay)(rig.own.stream);
    good = device_world_run(self) &&
           world_check(self, memcmp(&call->within[self->rank], &call->apart[self->rank], sizeof(rows)) == 0,
                       "replay %d: bits differ", round);
  }
  banyan_op_free(op);
  device_world_free_own(&rig.own);
}

TEST(graphs) {
  device_world_begin(RANKS_MAX, "");
  task *task = make_task(3, 50);
  WORLD_RUN(replay, .nranks = 3, .bare = true, .argument = task);
  free(task);
  device_world_end();
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void check_refusal(world_rank *self, banyan_status status, banyan_status expected, const char *says) {
  world_check(self, status == expected && strstr(banyan_last_error(), says), "status %d, not %d: %s", status, expected,
              banyan_last_error());
}

static void refuse(world_rank *self) {
  task *task = self->argument;
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = 2, .value_dim = 8};
  banyan_op *op = NULL, *other = NULL;
  bny_device_combine combine;
  if (!device_world_join(self, self->rank)) return;
  desc.algorithm = "ring";
  check_refusal(self, banyan_device_combine_init(self->comm, &desc, &op), BANYAN_ERR_ARGUMENT, "\"ring\"");
  desc.algorithm = NULL;
  desc.order = BANYAN_ORDER_CANONICAL;
  desc.wire = BANYAN_F16;
  check_refusal(self, banyan_device_combine_init(self->comm, &desc, &op), BANYAN_ERR_UNSUPPORTED, "canonical order");
  desc.order = BANYAN_ORDER_PLAN;
  desc.wire = BANYAN_E4M3;
  check_refusal(self, banyan_device_combine_init(self->comm, &desc, &op), BANYAN_ERR_UNSUPPORTED,
                "desc.wire is BANYAN_E4M3, which a combine within a kernel does not have");
  desc.wire = BANYAN_F32;
  desc.tokens = 1 << 16;
  check_refusal(self, banyan_device_combine_init(self->comm, &desc, &op), BANYAN_ERR_MEMORY, "raise arena_bytes");
  desc.tokens = 1;
  if (!world_ok(self, banyan_device_combine_init(self->comm, &desc, &op), "init")) return;
  rows *in = &task->calls[0].in[self->rank];
  banyan_partial out, what, wrong;
  banyan_partial_init(&what, NULL, BANYAN_F32, NULL, BANYAN_F32, 2, 8);
  banyan_partial_init(&out, in->values, BANYAN_F32, in->lse, BANYAN_F32, 2, 8);
  banyan_partial_init(&wrong, NULL, BANYAN_F16, NULL, BANYAN_F32, 2, 8);
  const size_t bytes = sizeof combine;
  check_refusal(self, banyan_start(op), BANYAN_ERR_STATE, "kernel of yours");
  check_refusal(self, banyan_op_device(op, &what, &out, 1, &combine, bytes - 8), BANYAN_ERR_ARGUMENT,
                "header that came with it");
  check_refusal(self, banyan_op_device(op, &what, &out, 0, &combine, bytes), BANYAN_ERR_ARGUMENT, "blocks is 0");
  check_refusal(self, banyan_op_device(op, &wrong, &out, 1, &combine, bytes), BANYAN_ERR_ARGUMENT, "rows: dtypes");
  check_refusal(self, banyan_op_device(op, NULL, &out, 1, &combine, bytes), BANYAN_ERR_ARGUMENT, "rows: is NULL");
  check_refusal(self, banyan_op_device(op, &what, NULL, 1, &combine, bytes), BANYAN_ERR_ARGUMENT, "out is NULL");
  if (world_ok(self, banyan_barrier_init(self->comm, &other), "barrier"))
    check_refusal(self, banyan_op_device(other, &what, &out, 1, &combine, bytes), BANYAN_ERR_STATE,
                  "banyan_device_combine_init");
  banyan_op_free(op);
  banyan_op_free(other);
  banyan_comm_destroy(self->comm);
  self->comm = NULL;
  if (!device_world_join(self, -1)) return;
  check_refusal(self, banyan_device_combine_init(self->comm, &desc, &op), BANYAN_ERR_UNSUPPORTED, "no device");
}

TEST(refusals) {
  device_world_begin(2, "");
  task *task = make_task(2, 60);
  WORLD_RUN(refuse, .nranks = 2, .bare = true, .argument = task);
  free(task);
  device_world_end();
}

/* One rank launches a combine, the others mean to run it within a kernel: they find out before data moves. */
static void mismatch(world_rank *self) {
  task *task = self->argument;
  call *call = &task->calls[0];
  banyan_partial in = input(call, &call->in[self->rank]), out = output(call, &call->apart[self->rank]);
  banyan_op *op = NULL;
  if (!device_world_join(self, self->rank)) return;
  banyan_status status = self->rank == 0 ? banyan_combine_init(self->comm, &call->desc, &in, &out, &op)
                                         : banyan_device_combine_init(self->comm, &call->desc, &op);
  world_check(self, status == BANYAN_ERR_MISMATCH && strstr(banyan_last_error(), "combine within a kernel"),
              "status %d: %s", status, banyan_last_error());
}

TEST(mismatches) {
  device_world_begin(3, "");
  task *task = make_task(3, 70);
  WORLD_RUN(mismatch, .nranks = 3, .bare = true, .argument = task);
  free(task);
  device_world_end();
}

static void lack_devices_memory(world_rank *self) {
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = 2, .value_dim = 8};
  banyan_op *op = NULL;
  if (device_world_join(self, self->rank))
    check_refusal(self, banyan_device_combine_init(self->comm, &desc, &op), BANYAN_ERR_UNSUPPORTED, "host memory");
}

TEST(arenas_in_host_memory) {
  device_world_begin(2, "no-vmm,no-ipc,no-peer");
  task *task = make_task(2, 80);
  WORLD_RUN(lack_devices_memory, .nranks = 2, .bare = true, .argument = task);
  free(task);
  device_world_end();
}

int main(void) { return world_main(suite_of("device_user", 60)); }
#endif
