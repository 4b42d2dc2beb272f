/* SPDX-License-Identifier: Apache-2.0
 *
 * Emulated device kernels that move bytes: all-gather, broadcast and shift, of any size at any address, by every
 * protocol and algorithm. */
#include <check.h>

#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/emulate/cuda_ranks.hh"

extern "C" {
#include "tests/support/world.h"
#include "tests/support/suite.h"
}

namespace {

enum { PATTERN = 0xa5, GUARD = 32 };

const char *const algorithms[] = {"oneshot", "ring", "recursive", "tree", "dissemination"};

/* Memory of one rank at a random alignment, with guards around the written range. */
struct bytes {
  std::vector<unsigned char> memory;
  size_t offset = 0, count = 0;
  void make(world_random *random, size_t n) {
    offset = GUARD + static_cast<size_t>(random_below(random, 8));
    count = n;
    memory.assign(offset + n + GUARD, PATTERN);
  }
  unsigned char *at() { return memory.data() + offset; }
  void put(size_t at, const bytes &other) {
    memcpy(memory.data() + offset + at, other.memory.data() + other.offset, other.count);
  }
};

struct trial {
  bny_request request = {};
  bny_device_settings settings = {};
  std::vector<size_t> counts, in_byte0, out_byte0, offsets;
  std::vector<bytes> in, out;
  std::vector<bytes> expected;
};

size_t size_of(world_random *random) {
  switch (random_below(random, 4)) {
  case 0: return 0;
  case 1: return static_cast<size_t>(random_below(random, 16));
  case 2: return static_cast<size_t>(random_below(random, 700));
  default: return static_cast<size_t>(16 * random_below(random, 200));
  }
}

/* Sets the positions of the ranks' bytes in the result, with or without gaps between them. */
void set_pieces(trial *made, world_random *random) {
  bool has_gaps = random_below(random, 2) == 0;
  size_t at = 0;
  for (size_t count : made->counts) {
    if (has_gaps) at += static_cast<size_t>(random_below(random, 40));
    made->offsets.push_back(at);
    at += count;
  }
  if (has_gaps) made->settings.piece_offsets = made->offsets.data();
}

void choose(trial *made, world_random *random, int32_t nranks) {
  bny_request *request = &made->request;
  const bny_collective kinds[] = {BNY_ALLGATHER, BNY_ALLGATHER, BNY_BROADCAST, BNY_SHIFT};
  bny_plan *plan = nullptr;
  do {
    *request = {};
    request->call.collective = kinds[random_below(random, 4)];
    request->nranks = nranks;
    request->algorithm = algorithms[random_below(random, 5)];
    request->cost.alpha_ns = 200;
    request->cost.beta_ns_per_byte = 0.1;
    request->cost.ranks_per_core = 1;
    request->outbox_bytes = static_cast<size_t>(1) << 30;
    request->slots_max = 1 << 16;
    made->counts.assign(static_cast<size_t>(nranks), 0);
    if (request->call.collective == BNY_ALLGATHER) {
      for (size_t &count : made->counts) count = size_of(random);
      request->call.counts = made->counts.data();
    } else {
      request->call.bytes = size_of(random);
    }
    if (request->call.collective == BNY_BROADCAST) request->call.root = random_below(random, nranks);
    if (request->call.collective == BNY_SHIFT) request->call.distance = random_below(random, nranks);
  } while (bny_plan_make(request, 0, &plan) != BANYAN_OK);
  bny_plan_free(plan);
  made->settings.protocol = random_below(random, BNY_PROTOCOL_COUNT);
  if (request->call.collective == BNY_ALLGATHER) set_pieces(made, random);
}

/* Sets each rank's input and expected output, as byte0 and count of the whole. */
void set_rank(trial *made, world_random *random, size_t rank) {
  const bny_request &request = made->request;
  size_t ranks = static_cast<size_t>(request.nranks), before = 0;
  for (size_t r = 0; r < rank; r++) before += made->counts[r];
  size_t from = (rank + ranks - static_cast<size_t>(request.call.distance)) % ranks;
  if (request.call.collective == BNY_ALLGATHER) {
    made->in[rank].make(random, made->counts[rank]);
    made->out[rank].make(random, made->offsets.back() + made->counts.back());
    made->in_byte0.push_back(before);
    made->out_byte0.push_back(0);
  } else {
    bool shifts = request.call.collective == BNY_SHIFT;
    made->in[rank].make(random, request.call.bytes);
    made->out[rank].make(random, request.call.bytes);
    made->in_byte0.push_back(shifts ? rank * request.call.bytes : 0);
    made->out_byte0.push_back(shifts ? from * request.call.bytes : 0);
  }
  for (size_t i = 0; i < made->in[rank].count; i++)
    made->in[rank].at()[i] = static_cast<unsigned char>(random_next(random));
}

void expect(trial *made) {
  const bny_request &request = made->request;
  size_t ranks = static_cast<size_t>(request.nranks), distance = static_cast<size_t>(request.call.distance);
  for (size_t rank = 0; rank < ranks; rank++) {
    bytes all = made->out[rank];
    if (request.call.collective == BNY_BROADCAST)
      all.put(0, made->in[static_cast<size_t>(request.call.root)]);
    else if (request.call.collective == BNY_SHIFT)
      all.put(0, made->in[(rank + ranks - distance) % ranks]);
    else
      for (size_t r = 0; r < ranks; r++) all.put(made->offsets[r], made->in[r]);
    made->expected.push_back(all);
  }
}

void launch(cuda_ranks *ranks, world_random *random, trial *made) {
  bny_arena_sizes sizes = cuda_ranks_sizes();
  for (int32_t rank = 0; rank < made->request.nranks; rank++) {
    size_t r = static_cast<size_t>(rank);
    bny_program *program = nullptr;
    ck_assert_msg(bny_device_program_make(&made->request, rank, &made->settings, &program) == BANYAN_OK, "%s",
                  banyan_last_error());
    bny_arena_sizes needs = bny_device_program_needs(program);
    ck_assert_msg(!bny_arena_lacks(&sizes, &needs), "%s", bny_arena_lacks(&sizes, &needs));
    bny_device_call call = {};
    call.in_bytes = made->in[r].at();
    call.in_byte0 = made->in_byte0[r];
    call.out_bytes = made->out[r].at();
    call.out_byte0 = made->out_byte0[r];
    ranks->program(rank, program, call, 1 + static_cast<uint32_t>(random_below(random, 2)),
                   32u * (1 + static_cast<uint32_t>(random_below(random, 3))));
    free(program);
  }
}

void run_world(uint64_t seed, int32_t nranks) {
  world_random random = {seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(nranks)};
  cuda_ranks ranks(nranks, seed);
  if (seed / 2 % 2) ranks.alias(true);
  std::vector<std::unique_ptr<trial>> trials;
  for (int epoch = 0; epoch < 6; epoch++) {
    trials.push_back(std::make_unique<trial>());
    trial *made = trials.back().get();
    choose(made, &random, nranks);
    made->in.resize(static_cast<size_t>(nranks));
    made->out.resize(static_cast<size_t>(nranks));
    for (size_t rank = 0; rank < made->in.size(); rank++) set_rank(made, &random, rank);
    expect(made);
    launch(&ranks, &random, made);
  }
  std::string why = ranks.run();
  ck_assert_msg(why.empty(), "seed %" PRIu64 ", %d ranks: %s", seed, nranks, why.c_str());
  for (auto &made : trials)
    for (size_t rank = 0; rank < made->out.size(); rank++) {
      const bny_request &request = made->request;
      bool same = made->out[rank].memory == made->expected[rank].memory;
      ck_assert_msg(same, "seed %" PRIu64 ": rank %zu of %d: %s, collective %d, protocol %d, %zu bytes", seed, rank,
                    nranks, request.algorithm, request.call.collective, made->settings.protocol, made->out[rank].count);
    }
}

} // namespace

/* test_ptx.sh asks for less. */
static int ranks_end() { return getenv("EMULATE_PTX_BRIEF") ? 6 : 9; }

TEST_RANGE(bytes_arrive, 1, ranks_end()) {
  for (uint64_t i = 0; i < 3; i++) run_world(world_seed() * 1000 + i, _i);
}

int main() { return world_main(suite_of("cuda_bytes", 120)); }
