/* SPDX-License-Identifier: Apache-2.0
 * Combines within a kernel of a user's that read the number of tokens and the valid rows when they run. A graph is
 * captured once and replayed with changing numbers. It has the bits of a combine that is launched, and nothing else is
 * written. Over the fake driver, with emulated devices. */
#include <check.h>
#include <math.h>

#include "cuda/program.h"
#include "tests/device/device_world.h"
#include "tests/emulate/user_kernel.h"
#include "tests/support/suite.h"

#if !defined HAVE_CUDA || !defined HAVE_CXX17
int main(void) {
  puts("built without CUDA, or without a compiler of C++17");
  return 77;
}
#else

enum { RANKS_MAX = 9, MOST = 10, HEADS_MAX = 10, DIM_MAX = 70, ROUNDS = 5, ROWS = MOST * HEADS_MAX };

/* Rows that a rank gives, and gets in both ways. */
typedef struct memory {
  float values[ROWS * DIM_MAX], lse[ROWS];
  float apart[ROWS * DIM_MAX], apart_lse[ROWS], within[ROWS * DIM_MAX], within_lse[ROWS];
  int32_t tokens, starts[MOST + 1], lengths[MOST];
  uint8_t mask[MOST];
} memory;

/* Which of banyan_live's arrays are given, and the rest of a problem: the same on all ranks. */
typedef struct problem {
  int32_t nranks, heads, dim;
  banyan_scatter scatter;
  banyan_dtype wire;
  bool has_tokens, has_lengths, has_starts, has_mask, keeps, one_device;
  uint64_t seed;
} problem;

static void draw(const problem *problem, memory *memory, int32_t rank, int round) {
  world_random all = {problem->seed * 1000 + (uint64_t)round};
  world_random own = {problem->seed * 1000 + (uint64_t)(100 + round * RANKS_MAX + rank)};
  memory->tokens = round == 0 ? MOST : round == 1 ? 0 : random_below(&all, MOST + 1);
  const int32_t count = problem->has_tokens ? memory->tokens : MOST;
  for (int32_t i = 0; i < MOST; i++) {
    int32_t next = memory->starts[i] + random_below(&own, 4);
    memory->starts[i + 1] = next < count ? next : count;
    memory->lengths[i] = random_one_in(&own, 3) ? 0 : 1 + random_below(&own, 50);
    memory->mask[i] = !random_one_in(&own, 4);
  }
  for (int32_t i = 0; i < ROWS; i++) memory->lse[i] = random_one_in(&own, 9) ? -INFINITY : (float)random_unit(&own);
  for (int32_t i = 0; i < ROWS * DIM_MAX; i++) memory->values[i] = (float)random_unit(&own);
  memset(memory->apart, 0x5a, sizeof memory->apart);
  memset(memory->apart_lse, 0x5a, sizeof memory->apart_lse);
  memset(memory->within, 0x5a, sizeof memory->within);
  memset(memory->within_lse, 0x5a, sizeof memory->within_lse);
}

static problem problem_of(int index) {
  world_random random = {world_seed() * 500 + (uint64_t)index};
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
                  .seed = world_seed() * 500 + (uint64_t)index};
  if (made.scatter == BANYAN_SCATTER_HEADS) made.heads = made.nranks + made.heads % 2;
  return made;
}

static banyan_live live_of(const problem *problem, const memory *memory) {
  const bool sequences = problem->has_lengths || problem->has_starts;
  return (banyan_live){.size = sizeof(banyan_live),
                       .tokens = problem->has_tokens ? &memory->tokens : NULL,
                       .batch = sequences ? MOST : 0,
                       .seq_lens = problem->has_lengths ? memory->lengths : NULL,
                       .query_start_loc = problem->has_starts ? memory->starts : NULL,
                       .token_mask = problem->has_mask ? memory->mask : NULL,
                       .empty_rows = problem->keeps ? BANYAN_EMPTY_ROWS_KEPT : BANYAN_EMPTY_ROWS_WRITTEN};
}

typedef struct rig {
  const problem *problem;
  memory *memory;
  device_world_own own;
  bny_device_kernel kernel;
  banyan_live live;
  banyan_combine_desc desc;
  banyan_partial in, apart, within;
  banyan_op *launched, *inside;
} rig;

static bool make(world_rank *self, rig *rig) {
  const problem *problem = rig->problem = self->argument;
  const int ordinal = problem->one_device ? 0 : self->rank;
  rig->memory = calloc(1, sizeof *rig->memory);
  memory *memory = rig->memory;
  int32_t heads = problem->heads, head0;
  if (problem->scatter == BANYAN_SCATTER_HEADS) banyan_split(heads, self->nranks, self->rank, &head0, &heads);
  banyan_partial_init(&rig->in, memory->values, BANYAN_F32, memory->lse, BANYAN_F32, problem->heads, problem->dim);
  banyan_partial_init(&rig->apart, memory->apart, BANYAN_F32, memory->apart_lse, BANYAN_F32, heads, problem->dim);
  banyan_partial_init(&rig->within, memory->within, BANYAN_F32, memory->within_lse, BANYAN_F32, heads, problem->dim);
  rig->live = live_of(problem, memory);
  if (!device_world_join(self, ordinal) || !device_world_make_own(self, ordinal, &rig->own)) return false;
  rig->desc = (banyan_combine_desc){.size = sizeof rig->desc,
                                    .tokens = MOST,
                                    .heads = problem->heads,
                                    .value_dim = problem->dim,
                                    .wire = problem->wire,
                                    .scatter = problem->scatter,
                                    .algorithm = "oneshot",
                                    .stream = rig->own.stream,
                                    .live = &rig->live};
  bool good =
      world_ok(self, rig->own.device->ops->kernel_find(rig->own.module, "user_kernel", &rig->kernel), "kernel") &&
      world_ok(self, banyan_combine_init(self->comm, &rig->desc, &rig->in, &rig->apart, &rig->launched), "init") &&
      world_ok(self, banyan_device_combine_init(self->comm, &rig->desc, &rig->inside), "device init");
  rig->live = (banyan_live){0}; /* it has been read */
  return good;
}

static void unmake(rig *rig) {
  banyan_op_free(rig->launched);
  banyan_op_free(rig->inside);
  device_world_free_own(&rig->own);
  free(rig->memory);
}

static bool launch(world_rank *self, const rig *rig) {
  const problem *problem = rig->problem;
  banyan_partial what = rig->in;
  what.values = what.lse = NULL;
  bny_device_combine combine;
  if (!world_ok(self, banyan_op_device(rig->inside, &what, &rig->within, 2, &combine, sizeof combine), "device"))
    return false;
  user_kernel_rows rows = {rig->memory->values,
                           rig->memory->lse,
                           NULL,
                           MOST,
                           (uint32_t)problem->heads,
                           (uint32_t)problem->dim,
                           (uint32_t)self->rank * 3,
                           (uint32_t)(problem->seed + (uint64_t)self->rank) % 2};
  void *arguments[] = {&rows, &combine};
  bny_device_launch launch = {.kernel = &rig->kernel,
                              .grid = {1 + (uint32_t)self->rank % 3, 1, 1},
                              .block = {32 * USER_KERNEL_WARPS, 1, 1},
                              .arguments = arguments};
  return world_ok(self, rig->own.device->ops->launch(rig->own.device, &launch, rig->own.stream), "launch");
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
  if (good) {
    FAKE_CUDA(fake_cuda_capture)(rig.own.stream, true);
    good = world_ok(self, banyan_start(rig.launched), "start") && launch(self, &rig);
    FAKE_CUDA(fake_cuda_capture)(rig.own.stream, false);
  }
  for (int round = 0; round < ROUNDS && good; round++) {
    draw(rig.problem, rig.memory, self->rank, round);
    FAKE_CUDA(fake_cuda_replay)(rig.own.stream);
    good =
        device_world_run(self) && world_ok(self, banyan_comm_status(self->comm), "status") && holds(self, &rig, round);
  }
  world_meet(self);
  unmake(&rig);
}

static void run(const problem *problem, world_body body) {
  setenv("BANYAN_ARENA_KIB", "4096", 1);
  device_world_begin(RANKS_MAX, "");
  world_run(&(world_setup){.nranks = problem->nranks, .bare = true, .argument = (void *)(uintptr_t)problem}, body);
  device_world_end();
}

TEST_RANDOM(a_graph_serves_any_number, 4 * RANKS_MAX) {
  problem problem = problem_of(_i);
  run(&problem, replay);
}

/* ---- what is wrong ----------------------------------------------------------------------------------------------- */

/* The last rank runs with another number than the others. */
static void disagree(world_rank *self) {
  rig rig = {NULL};
  bool good = make(self, &rig);
  if (good) {
    draw(rig.problem, rig.memory, self->rank, 0);
    rig.memory->tokens = self->rank == self->nranks - 1 ? 4 : 6;
    good = launch(self, &rig) && device_world_run(self);
  }
  banyan_comm_status(self->comm); /* a rank whose kernel has noticed it tells the others */
  if (world_meet(self) && good) {
    banyan_status status = banyan_comm_status(self->comm);
    const char *text = banyan_comm_error(self->comm);
    bool numbers = strstr(text, "tokens") && (strstr(text, "4") || strstr(text, "6"));
    bool heard = strstr(text, "is in another call than rank") != NULL; /* kernels that had ended leave it to hosts */
    world_check(self, status == BANYAN_ERR_MISMATCH && (numbers || heard), "%s: %s", banyan_status_string(status),
                text);
  }
  world_meet(self);
  unmake(&rig);
}

TEST_LOOP(other_numbers_are_a_mismatch, 8) {
  problem problem = {.nranks = 2 + _i % 4, .heads = 2, .dim = 8, .wire = BANYAN_F32, .has_tokens = true};
  problem.scatter = _i / 4 ? BANYAN_SCATTER_TOKENS : BANYAN_SCATTER_NONE;
  run(&problem, disagree);
}

/* Rank 1 has starts that decrease, or pass the run's tokens. Nobody waits for it. */
static void start_wrongly(world_rank *self) {
  rig rig = {NULL};
  bool good = make(self, &rig);
  const bool decreases = rig.problem->seed % 2;
  if (good) {
    rig.memory->tokens = 8;
    for (int32_t i = 0; i <= MOST; i++) rig.memory->starts[i] = i < 8 ? i : 8;
    if (self->rank == 1) rig.memory->starts[decreases ? 5 : MOST] = decreases ? 3 : 9;
    good = launch(self, &rig) && device_world_run(self);
  }
  banyan_comm_status(self->comm);
  if (world_meet(self) && good) {
    banyan_status status = banyan_comm_status(self->comm);
    const char *text = banyan_comm_error(self->comm);
    const char *says = decreases ? "query_start_loc[5]" : "query_start_loc[10]";
    const char *numbers = decreases ? "is 3, less than 4" : "is 9 of 8";
    bool heard = strstr(text, "rank 1 failed") != NULL; /* its kernel had ended before */
    bool named = strstr(text, says) && (self->rank != 1 || strstr(text, numbers));
    world_check(self, status == BANYAN_ERR_ARGUMENT && (named || (heard && self->rank != 1)), "%s: %s",
                banyan_status_string(status), text);
  }
  world_meet(self);
  unmake(&rig);
}

TEST_LOOP(wrong_starts_end_the_run, 4) {
  problem problem = {.nranks = 2 + _i, .heads = 2, .dim = 8, .wire = BANYAN_F32, .has_tokens = true};
  problem.has_starts = true;
  problem.seed = (uint64_t)_i;
  run(&problem, start_wrongly);
}

int main(void) { return world_main(suite_of("device user live", 120)); }
#endif
