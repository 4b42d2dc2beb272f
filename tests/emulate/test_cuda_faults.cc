/* SPDX-License-Identifier: Apache-2.0
 * Tests faults of emulated kernels: a rank is silent, stops half-way, aborts or has bad data. All other ranks report a
 * fault that names it. Their kernels end, and later runs end at once. */
#include <algorithm>
#include <check.h>

#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/emulate/cuda_ranks.hh"
#include "tests/support/suite.h"

namespace {

/* Time advances by 10 ns per step, and all threads take steps in turn. A thread checks the clock every few milliseconds
 * of this time. */
enum { TOKENS = 2, HEADS = 4, DIM = 32, TIMEOUT_NS = 30000000 };

/* Partials of ones, in place for all ranks. */
struct bed {
  int32_t nranks;
  bny_request request = {};
  bny_device_settings settings = {};
  bool oneshot = false;
  std::vector<std::vector<float>> values, stats, results, lses;

  explicit bed(int32_t ranks, const char *algorithm) : nranks(ranks) {
    request.call.collective = BNY_COMBINE;
    request.nranks = ranks;
    request.call.all_tokens = request.tokens = TOKENS;
    request.call.all_heads = request.heads = HEADS;
    request.call.value_dim = DIM;
    request.algorithm = algorithm;
    request.cost.alpha_ns = 200;
    request.cost.beta_ns_per_byte = 0.1;
    request.cost.ranks_per_core = 1;
    request.outbox_bytes = 1 << 30;
    request.slots_max = 1 << 16;
    settings.protocol = BNY_PROTOCOL_LL16;
    for (auto *rows : {&values, &results})
      rows->assign(static_cast<size_t>(ranks), std::vector<float>(TOKENS * HEADS * DIM, 1.0f));
    for (auto *rows : {&stats, &lses})
      rows->assign(static_cast<size_t>(ranks), std::vector<float>(TOKENS * HEADS, 0.5f));
  }

  bny_device_call call(int32_t rank) {
    size_t r = static_cast<size_t>(rank);
    bny_device_call made = {};
    banyan_partial_init(&made.in, values[r].data(), BANYAN_F32, stats[r].data(), BANYAN_F32, HEADS, DIM);
    banyan_partial_init(&made.out, results[r].data(), BANYAN_F32, lses[r].data(), BANYAN_F32, HEADS, DIM);
    return made;
  }

  /* `steps`: the number of the program's steps that run. */
  void launch(cuda_ranks *ranks, int32_t rank, int32_t steps = INT32_MAX) {
    if (oneshot) {
      bny_oneshot what;
      bny_protocol protocol;
      bny_arena_sizes needs;
      ck_assert(bny_device_oneshot_make(&request, &settings, &what, &protocol, &needs) == BANYAN_OK);
      ranks->oneshot(rank, protocol, what, call(rank), 2, 64);
      return;
    }
    bny_program *program = nullptr;
    ck_assert(bny_device_program_make(&request, rank, &settings, &program) == BANYAN_OK);
    /* Endpoints follow the steps in memory, so the other steps must stay, without work. */
    bny_program_step *all = reinterpret_cast<bny_program_step *>(program + 1);
    for (int32_t i = steps; i < program->nsteps; i++) all[i].tokens = 0;
    ranks->program(rank, program, call(rank), 2, 64);
    free(program);
  }
};

void expect_fault(cuda_ranks *ranks, int32_t rank, banyan_status status, int32_t culprit) {
  bny_device_fault fault = ranks->fault(rank);
  ck_assert_msg(fault.status == status && (fault.culprit == culprit || culprit < -1),
                "rank %d: status %d, culprit %d, not %d and %d", rank, fault.status, fault.culprit, status, culprit);
  ck_assert_uint_eq(ranks->words(rank)[BNY_DEVICE_WORD_FAULT], ranks->head(rank)->fault);
}

void expect_ended(cuda_ranks *ranks, bed *all, int32_t rank) {
  uint64_t before = bny_emulator_steps(ranks->emulator());
  std::vector<float> result = all->results[static_cast<size_t>(rank)];
  all->launch(ranks, rank);
  std::string why = ranks->run();
  ck_assert_msg(why.empty(), "%s", why.c_str());
  ck_assert_uint_lt(bny_emulator_steps(ranks->emulator()) - before, 5000);
  ck_assert(result == all->results[static_cast<size_t>(rank)]);
}

const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring", "oneshot"};

/* One rank does not launch, in the first run or a later one. */
void silent_rank(int index, uint64_t seed, bny_protocol protocol) {
  int32_t nranks = 3 + static_cast<int32_t>(seed % 4), silent = static_cast<int32_t>(seed) % nranks;
  bed all(nranks, algorithms[index]);
  all.oneshot = index == 5;
  all.settings.protocol = protocol;
  cuda_ranks ranks(nranks, seed);
  ranks.set_timeout(TIMEOUT_NS);
  for (int32_t rank = 0; rank < nranks; rank++)
    for (uint64_t run = 0; run < seed % 3; run++) all.launch(&ranks, rank);
  for (int32_t rank = 0; rank < nranks; rank++)
    if (rank != silent) all.launch(&ranks, rank);
  std::string why = ranks.run();
  ck_assert_msg(why.empty(), "%s, seed %" PRIu64 ": %s", algorithms[index], seed, why.c_str());
  for (int32_t rank = 0; rank < nranks; rank++)
    if (rank != silent) expect_fault(&ranks, rank, BANYAN_ERR_TIMEOUT, silent);
  expect_ended(&ranks, &all, (silent + 1) % nranks);
  ck_assert_uint_ne(ranks.head(silent)->abort, 0);
}

} // namespace

TEST_LOOP(a_silent_rank_is_named, 6) {
  for (uint64_t seed = 1; seed <= 4; seed++)
    silent_rank(_i, seed, static_cast<bny_protocol>(seed % BNY_PROTOCOL_COUNT));
}

TEST_LOOP(a_rank_that_stops_is_named, 5) {
  for (uint64_t seed = 1; seed <= 2; seed++) {
    int32_t stopped = static_cast<int32_t>(seed);
    bed all(4, algorithms[_i]);
    all.settings.protocol = BNY_PROTOCOL_SIMPLE;
    cuda_ranks ranks(4, seed);
    ranks.set_timeout(TIMEOUT_NS);
    for (int32_t rank = 0; rank < 4; rank++) all.launch(&ranks, rank, rank == stopped ? 0 : INT32_MAX);
    std::string why = ranks.run();
    ck_assert_msg(why.empty(), "%s, seed %" PRIu64 ": %s", algorithms[_i], seed, why.c_str());
    for (int32_t rank = 0; rank < 4; rank++)
      if (rank != stopped) expect_fault(&ranks, rank, BANYAN_ERR_TIMEOUT, stopped);
  }
}

/* The host's word is set on one rank while all wait for a silent one, without a deadline. */
TEST_LOOP(abort_ends_all, 5) {
  for (uint64_t seed = 1; seed <= 2; seed++) {
    bed all(4, algorithms[_i]);
    cuda_ranks ranks(4, seed);
    for (int32_t rank = 0; rank < 3; rank++) all.launch(&ranks, rank);
    bny_emulator_watch(ranks.emulator(), [&ranks](uint64_t now) {
      if (now > 200000) ranks.words(1)[BNY_DEVICE_WORD_ABORT] = bny_device_fault_pack(BANYAN_ERR_ABORTED, 1, 1, 0);
    });
    std::string why = ranks.run();
    ck_assert_msg(why.empty(), "%s, seed %" PRIu64 ": %s", algorithms[_i], seed, why.c_str());
    for (int32_t rank = 0; rank < 3; rank++) {
      /* A rank that waits for nobody may have ended well before. */
      if (rank != 1 && ranks.head(rank)->fault == 0)
        ck_assert_uint_ne(ranks.head(rank)->abort, 0);
      else
        expect_fault(&ranks, rank, BANYAN_ERR_ABORTED, 1);
    }
    expect_ended(&ranks, &all, 1);
  }
}

TEST_LOOP(bad_data_is_named, 6) {
  for (uint64_t seed = 1; seed <= 4; seed++) {
    bed all(4, algorithms[_i]);
    all.oneshot = _i == 5;
    cuda_ranks ranks(4, seed);
    ranks.set_timeout(1000000000);
    all.stats[2][5] = __builtin_nanf("");
    for (int32_t rank = 0; rank < 4; rank++) all.launch(&ranks, rank);
    std::string why = ranks.run();
    ck_assert_msg(why.empty(), "%s, seed %" PRIu64 ": %s", algorithms[_i], seed, why.c_str());
    expect_fault(&ranks, 2, BANYAN_ERR_DATA, 2);
    ck_assert_uint_eq(ranks.words(2)[BNY_DEVICE_WORD_POSITION], bny_device_position_pack(1, 1)); /* row 5 */
    for (int32_t rank = 0; rank < 4; rank++) ck_assert_uint_eq(ranks.head(rank)->abort, ranks.head(2)->fault);
  }
}

/* A slow rank within the deadline causes no fault, and neither does the `waiting` word of another rank. */
TEST(a_slow_rank_is_waited_for) {
  bed all(4, "twoshot");
  cuda_ranks ranks(4, 7);
  ranks.set_timeout(100000000);
  for (int run = 0; run < 3; run++)
    for (int32_t rank = 0; rank < 4; rank++) all.launch(&ranks, rank);
  std::string why = ranks.run();
  ck_assert_msg(why.empty(), "%s", why.c_str());
  for (int32_t rank = 0; rank < 4; rank++) {
    ck_assert_uint_eq(ranks.head(rank)->fault, 0);
    ck_assert_uint_eq(ranks.head(rank)->waiting[0], 0);
    ck_assert_uint_eq(ranks.head(rank)->tickets >> BNY_TICKET_BITS, 3);
    for (float value : all.results[static_cast<size_t>(rank)]) ck_assert(value == 1.0f);
  }
}

int main() { return suite_main(suite_of("cuda_faults", 120)); }
