/* SPDX-License-Identifier: Apache-2.0
 *
 * Emulated device kernels that gather heads: any layout, any number of tokens up to those of the program, by every
 * protocol and algorithm, where the library would choose one. */
#include <check.h>

#include <cinttypes>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/emulate/cuda_ranks.hh"

extern "C" {
#include "tests/support/heads.h"
#include "tests/support/suite.h"
#include "tests/support/world.h"
}

namespace {

const char *const algorithms[] = {"oneshot", "ring", "recursive"};

struct memory {
  std::vector<unsigned char> mine, all;
};

struct trial {
  bny_request request = {};
  bny_device_settings settings = {};
  std::vector<size_t> counts;
  std::vector<heads_problem> problems;
  std::vector<memory> at;
  int32_t tokens = 0; /* tokens of the run */
  bool counts_tokens = false;
};

/* Takes a part of the call at times. */
void set_request(trial *made, world_random *random) {
  const heads_problem &first = made->problems[0];
  bny_request *request = &made->request;
  request->call.collective = BNY_ALLGATHER_HEADS;
  request->nranks = first.nranks;
  request->algorithm = algorithms[random_below(random, 3)];
  request->cost.alpha_ns = 200;
  request->cost.beta_ns_per_byte = 0.1;
  request->cost.ranks_per_core = 1;
  request->outbox_bytes = static_cast<size_t>(1) << 30;
  request->slots_max = 1 << 16;
  request->call.all_tokens = request->tokens = first.desc.tokens;
  request->call.all_heads = request->heads = first.desc.heads;
  request->call.dim = first.desc.dim;
  request->call.dtype = first.desc.dtype;
  for (int32_t r = 0; r < first.nranks; r++) made->counts.push_back(static_cast<size_t>(first.counts[r]));
  request->call.counts = made->counts.data();
  made->settings.protocol = random_below(random, BNY_PROTOCOL_COUNT);
}

bny_device_call call_of(trial *made, int32_t rank) {
  const heads_problem &problem = made->problems[static_cast<size_t>(rank)];
  memory &at = made->at[static_cast<size_t>(rank)];
  bny_device_call call = {};
  call.in.values = const_cast<void *>(heads_mine(&problem, at.mine.data(), at.all.data()));
  call.in.values_token_stride = problem.mine.token_stride;
  call.in.values_head_stride = problem.mine.head_stride;
  call.in_head0 = problem.first;
  call.out.values = heads_all(&problem, at.all.data());
  call.out.values_token_stride = problem.all.token_stride;
  call.out.values_head_stride = problem.all.head_stride;
  call.valid.most = made->counts_tokens ? problem.desc.tokens : 0;
  call.valid.tokens = &made->tokens;
  call.valid.owners = 1;
  return call;
}

void launch(cuda_ranks *ranks, world_random *random, trial *made, int32_t rank, const bny_device_call &call) {
  bny_arena_sizes sizes = cuda_ranks_sizes();
  bny_program *program = nullptr;
  ck_assert_msg(bny_device_program_make(&made->request, rank, &made->settings, &program) == BANYAN_OK, "%s",
                banyan_last_error());
  bny_arena_sizes needs = bny_device_program_needs(program);
  ck_assert_msg(!bny_arena_lacks(&sizes, &needs), "%s", bny_arena_lacks(&sizes, &needs));
  ranks->program(rank, program, call, 1 + static_cast<uint32_t>(random_below(random, 2)),
                 32u * (1 + static_cast<uint32_t>(random_below(random, 3))));
  free(program);
}

std::unique_ptr<trial> make(world_random *random, int32_t nranks, int run) {
  auto made = std::make_unique<trial>();
  uint64_t seed = random_next(random);
  for (int32_t rank = 0; rank < nranks; rank++) {
    heads_problem problem;
    heads_make(&problem, seed, rank, nranks, 8);
    made->problems.push_back(problem);
    made->at.push_back({std::vector<unsigned char>(problem.mine.bytes), std::vector<unsigned char>(problem.all.bytes)});
  }
  made->counts_tokens = random_below(random, 2) == 0;
  made->tokens = made->problems[0].desc.tokens;
  if (made->counts_tokens) made->tokens = random_below(random, made->tokens + 1);
  for (int32_t rank = 0; rank < nranks; rank++) {
    memory &at = made->at[static_cast<size_t>(rank)];
    heads_fill(&made->problems[static_cast<size_t>(rank)], made->tokens, run, at.mine.data(), at.all.data());
  }
  set_request(made.get(), random);
  return made;
}

void run_world(uint64_t seed, int32_t nranks) {
  enum { RUNS = 6 };
  world_random random = {seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(nranks)};
  cuda_ranks ranks(nranks, seed);
  if (seed / 2 % 2) ranks.alias(true);
  std::vector<std::unique_ptr<trial>> trials;
  for (int run = 0; run < RUNS; run++) {
    trials.push_back(make(&random, nranks, run));
    for (int32_t rank = 0; rank < nranks; rank++)
      launch(&ranks, &random, trials.back().get(), rank, call_of(trials.back().get(), rank));
  }
  std::string failure = ranks.run();
  ck_assert_msg(failure.empty(), "seed %" PRIu64 ", %d ranks: %s", seed, nranks, failure.c_str());
  for (int run = 0; run < RUNS; run++) {
    const trial &made = *trials[static_cast<size_t>(run)];
    for (size_t rank = 0; rank < made.at.size(); rank++) {
      char why[300] = "";
      bool same = heads_hold(&made.problems[rank], made.tokens, run, made.at[rank].all.data(), why, sizeof why);
      ck_assert_msg(same, "seed %" PRIu64 ": %s, protocol %d: %s", seed, made.request.algorithm, made.settings.protocol,
                    why);
    }
  }
}

} // namespace

/* test_ptx.sh asks for less. */
static int ranks_end() { return getenv("EMULATE_PTX_BRIEF") ? 6 : 9; }

TEST_RANGE(heads_arrive, 1, ranks_end()) {
  for (uint64_t i = 0; i < 3; i++) run_world(world_seed() * 1000 + i, _i);
}

int main() { return world_main(suite_of("cuda_heads", 120)); }
