/* SPDX-License-Identifier: Apache-2.0
 * Arenas on a GPU: shared in each way that it has, in turn, and with a mapping that shows other memory than it should.
 * The library must find that out before it trusts the mapping, and name the pair, or go on in another way. A shim
 * before the driver takes ways away and breaks mappings, so that all of this holds of real drivers too. */
#include <dlfcn.h>
#include <libgen.h>

#include "comm/comm.h"
#include "tests/gpu/cuda_shim.h"
#include "device/engine.h"
#include "tests/gpu/gpu_world.h"

enum { RANKS_MAX = 8, TOKENS = 2, HEADS = 5, VALUE_DIM = 64, ROWS = TOKENS * HEADS, FLOATS = ROWS * (VALUE_DIM + 1) };

typedef struct task {
  bny_memory_kind kind;  /* the best that is left */
  int32_t victim, owner; /* the victim's mapping of the owner's arena is broken; -1: none */
  const char *fallback;  /* BANYAN_DEVICE_FALLBACK */
  int32_t *found;        /* the kind that came of it, or -1; shared */
} task;

static void *shim_function(const char *name) {
  void *shim = dlopen(getenv("BANYAN_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
  void *function = shim ? dlsym(shim, name) : NULL;
  if (shim) dlclose(shim);
  return function;
}

/* ---- a combine whose result is known ----------------------------------------------------------------------------- */

/* Rank r holds values r + 1 of equal weight, so that the result is their mean. */
static bool fill(world_rank *self, float *memory) {
  float host[FLOATS];
  tool_error error = {.text = ""};
  for (int i = 0; i < FLOATS; i++) host[i] = i < ROWS * VALUE_DIM ? (float)(self->rank + 1) : 0;
  return gpu_ok(self, gpu_write(world_gpu_of(self), memory, host, sizeof host, &error), &error);
}

static bool combine(world_rank *self, banyan_comm *comm, float *from, float *to) {
  banyan_partial in, out;
  banyan_partial_init(&in, from, BANYAN_F32, from + ROWS * VALUE_DIM, BANYAN_F32, HEADS, VALUE_DIM);
  banyan_partial_init(&out, to, BANYAN_F32, to + ROWS * VALUE_DIM, BANYAN_F32, HEADS, VALUE_DIM);
  banyan_combine_desc desc = {
      .size = sizeof desc, .tokens = TOKENS, .heads = HEADS, .value_dim = VALUE_DIM, .stream = self->stream};
  tool_error error = {.text = ""};
  return world_ok(self, banyan_combine(comm, &desc, &in, &out), "combine") &&
         gpu_ok(self, gpu_wait(world_gpu_of(self), self->stream, 60, &error), &error) &&
         world_ok(self, banyan_comm_status(comm), banyan_comm_error(comm));
}

static bool is_mean(world_rank *self, const float *memory) {
  float host[FLOATS], wanted = (float)(self->nranks + 1) / 2;
  tool_error error = {.text = ""};
  bool ok = gpu_ok(self, gpu_read(world_gpu_of(self), host, memory, sizeof host, &error), &error);
  for (int i = 0; ok && i < ROWS * VALUE_DIM; i++)
    ok = world_check(self, host[i] == wanted, "value %d is %g, not %g", i, (double)host[i], (double)wanted);
  return ok;
}

/* Memory is taken and given back while no rank's kernels run, see gpu_take(). */
static bool comm_is_right(world_rank *self, banyan_comm *comm) {
  void *memory[2] = {NULL};
  tool_error error = {.text = ""};
  bool ok = true;
  for (int i = 0; i < 2 && ok; i++)
    ok = gpu_ok(self, gpu_take(world_gpu_of(self), FLOATS * sizeof(float), &memory[i], &error), &error);
  ok = ok && fill(self, memory[0]) && world_meet(self);
  for (int i = 0; i < 2 && ok; i++) ok = combine(self, comm, memory[0], memory[1]) && is_mean(self, memory[1]);
  ok = world_meet(self) && ok;
  for (int i = 0; i < 2; i++) gpu_give(world_gpu_of(self), memory[i]);
  return ok;
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

static bool prepare(world_rank *self, const task *task) {
  static const unsigned better[] = {0, CUDA_SHIM_FILES, CUDA_SHIM_FILES | CUDA_SHIM_FABRIC,
                                    CUDA_SHIM_FILES | CUDA_SHIM_FABRIC | CUDA_SHIM_IPC};
  cuda_shim_reject_function *reject;
  cuda_shim_break_function *break_one;
  *(void **)(void *)&reject = shim_function("cuda_shim_reject");
  *(void **)(void *)&break_one = shim_function("cuda_shim_break");
  if (!world_check(self, reject && break_one, "the driver is not the shim")) return false;
  reject(better[task->kind]);
  if (self->rank == task->victim) break_one(task->owner - (task->owner > task->victim));
  return world_meet(self); /* a rejection holds for all threads */
}

static void expect_failure(world_rank *self, const task *task, banyan_status status) {
  char victim[16], owner[16];
  const char *text = banyan_last_error();
  snprintf(victim, sizeof victim, "rank %d", task->victim);
  snprintf(owner, sizeof owner, "rank %d", task->owner);
  world_check(self, status != BANYAN_OK && strstr(text, victim) && strstr(text, owner),
              "%s and %s are not named: %s: %s", victim, owner, banyan_status_string(status), text);
}

static void share(world_rank *self) {
  const task *task = self->argument;
  const banyan_comm_config config = world_config(self);
  banyan_comm *comm = NULL;
  if (!prepare(self, task)) return;
  banyan_status status = banyan_comm_create(&self->bootstrap, &config, &comm);
  if (task->victim >= 0 && strcmp(task->fallback, "error") == 0) {
    expect_failure(self, task, status);
    /* The device is as good as before, and so is a mapping that nobody breaks. */
    if (!world_meet(self)) return;
    status = banyan_comm_create(&self->bootstrap, &config, &comm);
  }
  bool ok = world_ok(self, status, "banyan_comm_create") && comm_is_right(self, comm);
  if (ok) task->found[self->rank] = (int32_t)comm->device.engine->arenas->kind;
  banyan_comm_destroy(comm);
}

static void run_task(task *task, int32_t nranks, bool processes) {
  size_t bytes = RANKS_MAX * sizeof *task->found;
  task->found = world_share(bytes);
  for (int32_t r = 0; r < RANKS_MAX; r++) task->found[r] = -1;
  setenv("BANYAN_DEVICE_FALLBACK", task->fallback, 1);
  WORLD_RUN(share, .on = processes ? &world_gpu_processes : &world_gpu, .nranks = nranks, .one_device = true,
            .bare = true, .arena_bytes = 1 << 20, .argument = task);
  for (int32_t r = 1; r < nranks; r++) ck_assert_int_eq(task->found[r], task->found[0]);
}

static int32_t kind_of(const task *task) {
  int32_t kind = task->found[0];
  world_unshare(task->found, RANKS_MAX * sizeof *task->found);
  return kind;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static const int32_t ranks[] = {2, 3, 8};
enum { SIZES = sizeof ranks / sizeof ranks[0] };

/* Index: the kind, and whether ranks are processes. */
START_TEST(each_kind) {
  bny_memory_kind kind = (bny_memory_kind)(_i / 2);
  task task = {.kind = kind, .victim = -1, .fallback = "slower"};
  run_task(&task, world_is_quick() ? 2 : 4, _i % 2);
  int32_t found = kind_of(&task);
  if (found != (int32_t)kind)
    gpu_skip("each_kind", _i, "no %s here, ranks share by %s", bny_memory_kind_name(kind),
             bny_memory_kind_name((bny_memory_kind)found));
}
END_TEST

/* Index: how many ranks, and whether they are processes. The first mapping and one of the others. */
START_TEST(broken_is_named) {
  int32_t nranks = ranks[_i / 2];
  if (_i % 2 == 0) {
    gpu_skip("broken_is_named", _i,
             "ranks of one process that share a device use the owner's address: nothing is mapped");
    return;
  }
  if (world_is_quick() && nranks > 3) {
    gpu_skip("broken_is_named", _i, "--quick");
    return;
  }
  for (int32_t i = 0; i < 2; i++) {
    task task = {
        .kind = BNY_MEMORY_FILE, .victim = i ? nranks - 1 : 0, .owner = i ? 0 : nranks - 1, .fallback = "error"};
    run_task(&task, nranks, _i % 2);
    kind_of(&task);
  }
}
END_TEST

START_TEST(broken_is_left) {
  int32_t nranks = ranks[_i / 2];
  if (world_is_quick() && nranks != 3) {
    gpu_skip("broken_is_left", _i, "--quick");
    return;
  }
  task task = {.kind = BNY_MEMORY_FILE, .victim = 1, .owner = 0, .fallback = "slower"};
  run_task(&task, nranks, _i % 2);
  ck_assert_int_gt(kind_of(&task), BNY_MEMORY_FILE);
}
END_TEST

/* IPC handles, which only processes open. */
START_TEST(broken_handle_is_named) {
  task task = {.kind = BNY_MEMORY_IPC, .victim = 0, .owner = 1, .fallback = "error"};
  run_task(&task, 2, true);
  int32_t found = kind_of(&task);
  if (found != BNY_MEMORY_IPC) gpu_skip("broken_handle_is_named", _i, "no IPC handles here");
}
END_TEST

/* The shim lies beside this program. */
static bool put_shim(void) {
  char path[4096], shim[4200];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  const char *before = getenv("BANYAN_CUDA_LIBRARY");
  if (length <= 0) return false;
  path[length] = 0;
  snprintf(shim, sizeof shim, "%s/cuda_shim.so", dirname(path));
  if (before) setenv("CUDA_SHIM_OF", before, 1);
  setenv("BANYAN_CUDA_LIBRARY", shim, 1);
  return access(shim, R_OK) == 0;
}

int main(void) {
  if (!put_shim()) {
    printf("%s is not there\n", getenv("BANYAN_CUDA_LIBRARY"));
    return EXIT_FAILURE;
  }
  Suite *suite = suite_create("gpu_mappings");
  TCase *core = tcase_create("core");
  tcase_add_loop_test(core, each_kind, 0, 2 * BNY_MEMORY_KINDS);
  tcase_add_loop_test(core, broken_is_named, 0, 2 * SIZES);
  tcase_add_loop_test(core, broken_is_left, 0, 2 * SIZES);
  tcase_add_test(core, broken_handle_is_named);
  gpu_add_case(suite, core);
  return gpu_main(suite);
}
