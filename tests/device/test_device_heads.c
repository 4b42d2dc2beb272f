/* SPDX-License-Identifier: Apache-2.0
 * Heads gathered on devices of the fake driver: blocking calls and operations over random shapes and layouts, calls in
 * parts, and captured graphs whose number of tokens changes in memory from replay to replay. */
#include <check.h>

#include "tests/support/heads.h"
#include "tests/support/suite.h"
#include "tests/device/device_world.h"

enum { RANKS_MAX = 5, TOKENS_MOST = 10, ROUNDS = 5, SHAPES = 4 };

#if !defined HAVE_CUDA || !defined HAVE_CXX17
int main(void) {
  puts("built without CUDA, or without a compiler of C++17");
  return 77;
}
#else

typedef struct memory {
  unsigned char *mine, *all;
  int32_t tokens;
} memory;

static memory *take(const heads_problem *of) {
  memory *taken = calloc(1, sizeof *taken);
  if (!taken) abort();
  *taken = (memory){malloc(of->mine.bytes), malloc(of->all.bytes), 0};
  if (!taken->mine || !taken->all) abort();
  return taken;
}

static void give(memory *taken) {
  free(taken->mine);
  free(taken->all);
  free(taken);
}

static bool check(world_rank *self, const heads_problem *of, int run, const memory *at) {
  char why[300] = "";
  return world_check(self, heads_hold(of, at->tokens, run, at->all, why, sizeof why), "%s", why);
}

static bool call(world_rank *self, heads_problem *problem, world_random *random) {
  memory *at = take(problem);
  bool good = true;
  banyan_live live = {.size = sizeof live, .tokens = &at->tokens};
  for (int run = 0; run < ROUNDS && good; run++) {
    problem->desc.live = run % 2 ? &live : NULL;
    at->tokens = run % 2 ? random_below(random, problem->desc.tokens + 1) : problem->desc.tokens;
    heads_fill(problem, at->tokens, run, at->mine, at->all);
    good = world_ok(self,
                    banyan_allgather_heads(self->comm, &problem->desc, heads_mine(problem, at->mine, at->all),
                                           heads_all(problem, at->all)),
                    "call") &&
           device_world_run(self) && world_ok(self, banyan_comm_status(self->comm), "status") &&
           check(self, problem, run, at);
  }
  world_meet(self);
  give(at);
  return good;
}

static bool replay(world_rank *self, heads_problem *problem, world_random *random, void *stream) {
  memory *at = take(problem);
  banyan_live live = {.size = sizeof live, .tokens = &at->tokens};
  banyan_op *op = NULL;
  problem->desc.live = &live;
  problem->desc.stream = stream;
  bool good = world_ok(self,
                       banyan_allgather_heads_init(self->comm, &problem->desc, heads_mine(problem, at->mine, at->all),
                                                   heads_all(problem, at->all), &op),
                       "init");
  live = (banyan_live){0}; /* it has been read */
  FAKE_CUDA(fake_cuda_capture)(stream, true);
  good = good && world_ok(self, banyan_start(op), "start");
  FAKE_CUDA(fake_cuda_capture)(stream, false);
  for (int run = 0; run < ROUNDS && good; run++) {
    at->tokens = run == 1 ? 0 : random_below(random, problem->desc.tokens + 1);
    heads_fill(problem, at->tokens, run, at->mine, at->all);
    FAKE_CUDA(fake_cuda_replay)(stream);
    good = device_world_run(self) && world_ok(self, banyan_comm_status(self->comm), "status") &&
           check(self, problem, run, at);
  }
  world_meet(self);
  banyan_op_free(op);
  give(at);
  return good;
}

static void gather(world_rank *self) {
  uint64_t salt = *(const uint64_t *)self->argument;
  world_random random = {world_seed() * 104729 + salt};
  device_world_own own;
  if (!device_world_join(self, self->rank) || !device_world_make_own(self, self->rank, &own)) return;
  for (int shape = 0; shape < SHAPES; shape++) {
    heads_problem problem;
    heads_make(&problem, random_next(&random), self->rank, self->nranks, TOKENS_MOST);
    bool captures = shape == SHAPES - 1; /* a stream of the fake driver keeps what it has captured */
    bool good = captures ? replay(self, &problem, &random, own.stream) : call(self, &problem, &random);
    if (!good) break;
  }
  world_meet(self);
  device_world_free_own(&own);
}

static void perform(int32_t nranks, uint64_t salt) {
  setenv("BANYAN_ARENA_KIB", "1024", 0); /* a small one takes less time to clear */
  device_world_begin(nranks, "");
  world_run(&(world_setup){.nranks = nranks, .bare = true, .argument = &salt}, gather);
  device_world_end();
}

TEST_RANDOM(devices_gather, RANKS_MAX) { perform(1 + _i % RANKS_MAX, (uint64_t)_i); }

TEST_LOOP(small_arenas_gather_in_parts, 2) {
  setenv("BANYAN_ARENA_KIB", "64", 1);
  perform(3, 50 + (uint64_t)_i);
}

/* Rank 1 runs with another number than the others. */
static void disagree(world_rank *self) {
  unsigned char *mine = calloc(1, 4096), *all = calloc(1, 4096);
  int32_t tokens = self->rank == 1 ? 4 : 6;
  banyan_live live = {.size = sizeof live, .tokens = &tokens};
  banyan_heads_desc desc = {.size = sizeof desc, .tokens = 8, .heads = 3, .dim = 16, .dtype = BANYAN_I8, .live = &live};
  if (!device_world_join(self, self->rank)) return;
  if (mine && all && world_ok(self, banyan_allgather_heads(self->comm, &desc, mine, all), "call") &&
      device_world_run(self)) {
    banyan_status status = banyan_comm_status(self->comm);
    const char *text = banyan_comm_error(self->comm);
    bool numbers = strstr(text, "tokens") && (strstr(text, "4") || strstr(text, "6"));
    /* Kernels that had ended before they could notice leave it to the host of another rank. */
    bool heard = strstr(text, "rank 1 is in another call than rank") != NULL;
    world_check(self, status == BANYAN_ERR_MISMATCH && (numbers || heard), "%s: %s", banyan_status_string(status),
                text);
  }
  world_meet(self);
  free(mine);
  free(all);
}

TEST(other_numbers_are_a_mismatch) {
  device_world_begin(3, "");
  world_run(&(world_setup){.nranks = 3, .bare = true}, disagree);
  device_world_end();
}

int main(void) { return world_main(suite_of("device heads", 120)); }
#endif
