/* SPDX-License-Identifier: Apache-2.0
 * Combines on a GPU: every algorithm, scatter, wire and order, each rank with a convention of its own, in memory of the
 * device, against a merge in double precision, and bit for bit among ranks and runs. Ranks are threads, or processes
 * that share arenas; all on one device, or on all devices in turn. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/combine_task.h"
#include "tests/gpu/gpu_world.h"

enum { WIRES = 4 };
static const banyan_dtype wires[WIRES] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3};

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The runs of an attempt, from inputs to outputs that are all in the device's memory. */
typedef struct attempt_memory {
  gpu_sheet in, out[COMBINE_RUNS];
} attempt_memory;

static bool put(gpu_rank *self, combine_attempt *attempt, attempt_memory *memory) {
  int32_t rank = self->world->rank;
  bool ok = gpu_sheet_make(self, &attempt->of->in[rank], &memory->in);
  for (int run = 0; run < COMBINE_RUNS && ok; run++)
    ok = gpu_sheet_make(self, &attempt->out[run][rank], &memory->out[run]);
  return ok;
}

static bool run_attempt(gpu_rank *self, combine_attempt *attempt, const attempt_memory *memory) {
  int32_t rank = self->world->rank;
  banyan_combine_desc desc = attempt->desc;
  desc.stream = self->stream;
  banyan_partial in =
      gpu_sheet_partial(&memory->in, attempt->of->in[rank].memory, combine_attempt_input(attempt, rank));
  for (int run = 0; run < COMBINE_RUNS; run++) {
    const sheet *out = &attempt->out[run][rank];
    bool wanted = out->tokens && out->heads;
    banyan_status status = banyan_combine(self->world->comm, &desc, &in, wanted ? &memory->out[run].partial : NULL);
    if (!world_ok(self->world, status, combine_attempt_text(attempt, run))) return false;
  }
  return gpu_finish(self) &&
         world_ok(self->world, banyan_comm_status(self->world->comm), combine_attempt_text(attempt, COMBINE_RUNS));
}

static bool get(gpu_rank *self, combine_attempt *attempt, const attempt_memory *memory) {
  bool ok = true;
  for (int run = 0; run < COMBINE_RUNS && ok; run++)
    ok = gpu_sheet_read(self, &attempt->out[run][self->world->rank], &memory->out[run]);
  return ok;
}

/* All memory is there before anything is launched, and freed when all has ended, see gpu_take(). */
static void combine_all(gpu_rank *self, void *argument) {
  combine_task *task = argument;
  attempt_memory *memories = calloc((size_t)task->nattempts, sizeof *memories);
  bool ok = world_check(self->world, memories, "out of memory");
  for (int32_t i = 0; i < task->nattempts && ok; i++) ok = put(self, &task->attempts[i], &memories[i]);
  ok = world_meet(self->world) && ok;
  for (int32_t i = 0; i < task->nattempts && ok; i++) ok = run_attempt(self, &task->attempts[i], &memories[i]);
  ok = world_meet(self->world) && ok;
  for (int32_t i = 0; i < task->nattempts && ok; i++) ok = get(self, &task->attempts[i], &memories[i]);
  for (int32_t i = 0; i < task->nattempts && memories; i++) {
    gpu_sheet_free(self, &memories[i].in);
    for (int run = 0; run < COMBINE_RUNS; run++) gpu_sheet_free(self, &memories[i].out[run]);
  }
  free(memories);
}

static void run_task(combine_task *task, gpu_setup setup) {
  setup.nranks = task->nranks;
  setup.argument = task;
  setup.body = combine_all;
  gpu_run(&setup);
  combine_task_check(task);
  combine_task_free(task);
}

/* Processes see the tasks that were made before they were forked, and write into memory that all share. */
static combine_task *new_task(int32_t nranks, uint64_t salt, bool processes) {
  combine_task *task = combine_task_new(nranks, salt);
  task->pool.shared = processes;
  return task;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

START_TEST(threads_merge_random_shapes) {
  combine_task *task = new_task(_i, 21, false);
  combine_group groups[WIRES];
  if (gpu_quick() && _i > 3) {
    gpu_skip("threads_merge_random_shapes", _i, "--quick");
    combine_task_free(task);
    return;
  }
  for (int w = gpu_quick() ? _i % WIRES : 0; w < WIRES; w++) {
    groups[w] = combine_group_random(task);
    combine_task_add_some(task, &groups[w], wires[w], gpu_quick() ? 24 : 1);
  }
  run_task(task, (gpu_setup){.arena_bytes = 4 << 20});
}
END_TEST

/* Larger than the arena: in many parts, cut by tokens, and by heads where one token is too large. */
START_TEST(threads_merge_in_parts) {
  static const int32_t nranks[] = {2, 3, 5, 8};
  combine_task *task = new_task(nranks[_i], 22, false);
  combine_group groups[2];
  if (gpu_quick()) {
    gpu_skip("threads_merge_in_parts", _i, "--quick");
    combine_task_free(task);
    return;
  }
  groups[0] = combine_group_make(task, 30 + random_below(&task->random, 5), 40, 64);
  groups[1] = combine_group_make(task, 2, 400 + random_below(&task->random, 9), 96);
  for (int g = 0; g < 2; g++) combine_task_add_some(task, &groups[g], wires[(g + _i) % WIRES], 2);
  run_task(task, (gpu_setup){.arena_bytes = 1 << 20});
}
END_TEST

/* Large rows and many of them: every protocol, and more work than blocks. */
START_TEST(threads_merge_large) {
  combine_task *task = new_task(2 + 2 * _i, 23, false);
  combine_group group;
  if (gpu_quick()) {
    gpu_skip("threads_merge_large", _i, "--quick");
    combine_task_free(task);
    return;
  }
  group = combine_group_make(task, 16, 128, _i % 2 ? 512 : 128);
  combine_task_add_some(task, &group, wires[_i % WIRES], 4);
  run_task(task, (gpu_setup){.arena_bytes = 64 << 20});
}
END_TEST

/* Without MPS the kernels of processes take turns on a device, a millisecond or more each: few runs, and time to
 * wait. */
START_TEST(processes_merge) {
  combine_task *task = new_task(_i, 24, true);
  combine_group groups[WIRES];
  if (gpu_quick() && _i > 2) {
    gpu_skip("processes_merge", _i, "--quick");
    combine_task_free(task);
    return;
  }
  for (int w = gpu_quick() ? 2 : 0; w < WIRES; w++) {
    groups[w] = combine_group_random(task);
    combine_task_add_some(task, &groups[w], wires[w], gpu_quick() ? 48 : 12);
  }
  run_task(task, (gpu_setup){.processes = true, .arena_bytes = 4 << 20});
}
END_TEST

START_TEST(devices_merge) {
  bool processes = _i % 2;
  combine_group groups[WIRES];
  if (gpu_devices() < 2) {
    gpu_skip("devices_merge", _i, "one device");
    return;
  }
  combine_task *task = new_task(gpu_devices() < 8 ? gpu_devices() : 8, 25, processes);
  for (int w = gpu_quick() ? 2 : 0; w < WIRES; w++) {
    groups[w] = combine_group_random(task);
    combine_task_add_some(task, &groups[w], wires[w], gpu_quick() ? 48 : 1);
  }
  run_task(task, (gpu_setup){.spread = true, .processes = processes, .arena_bytes = 4 << 20});
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_combine");
  TCase *threads = tcase_create("threads"), *processes = tcase_create("processes"), *devices = tcase_create("devices");
  tcase_add_loop_test(threads, threads_merge_random_shapes, 2, 9);
  tcase_add_loop_test(threads, threads_merge_in_parts, 0, 4);
  tcase_add_loop_test(threads, threads_merge_large, 0, 4);
  tcase_add_loop_test(processes, processes_merge, 2, 9);
  tcase_add_loop_test(devices, devices_merge, 0, 2);
  gpu_add_case(suite, threads);
  gpu_add_case(suite, processes);
  gpu_add_case(suite, devices);
  return gpu_main(suite);
}
