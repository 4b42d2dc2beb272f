/* SPDX-License-Identifier: Apache-2.0
 * Tests the emulated combine kernels in cases that tests of the library do not cover: up to 72 ranks, and arenas that
 * each rank sees at other addresses. The result has the bits that a processor computes for the same plan, and no other
 * byte is written. */
#include <check.h>

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/decode_general.cuh"
#include "tests/emulate/cuda_ranks.hh"

extern "C" {
#include "op.h"
#include "tests/plan/plan_replay.h"
#include "tests/support/sheet.h"
#include "tests/support/sheet_element.h"
#include "base/status.h"
}

namespace {

struct trial {
  bny_request request;
  bny_device_settings settings;
  bool oneshot; /* runs the oneshot kernel */
  std::vector<sheet> in, out, expected;
  std::vector<bny_slice> owned;
};

const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring"};

/* Restrictions of the random requests of a world. */
enum flavour { ANY, SMALL, TO_MANY, DIRECT };

bny_request request_of(world_random *random, int32_t nranks, flavour like) {
  bny_request request = {};
  request.call.collective = BNY_COMBINE;
  request.nranks = nranks;
  request.call.all_tokens = request.tokens = 1 + random_below(random, 4);
  request.call.all_heads = request.heads = 1 + random_below(random, 9);
  const int32_t dims[] = {0, 1, 8, 30, 64, 100, 128, 200, 500};
  request.call.value_dim = dims[random_below(random, like == SMALL || like == TO_MANY ? 4 : 9)];
  request.call.wire = static_cast<bny_wire>(random_below(random, BNY_WIRE_COUNT));
  request.call.scatter = static_cast<banyan_scatter>(random_below(random, 4));
  request.call.root = request.call.scatter == BANYAN_SCATTER_ROOT ? random_below(random, nranks) : 0;
  request.call.order = random_one_in(random, 3) ? BANYAN_ORDER_CANONICAL : BANYAN_ORDER_PLAN;
  request.algorithm = algorithms[random_below(random, 5)];
  request.cost.alpha_ns = 200;
  request.cost.beta_ns_per_byte = 0.1;
  request.cost.gamma_ns_per_byte = 0.05;
  request.cost.ranks_per_core = 1;
  request.outbox_bytes = static_cast<size_t>(1) << 30;
  request.slots_max = 1 << 16;
  if (like == TO_MANY) request.tokens = request.call.all_tokens = 1, request.heads = request.call.all_heads = 2;
  if (like == TO_MANY) request.call.scatter = BANYAN_SCATTER_NONE, request.algorithm = "oneshot";
  if (like == DIRECT) {
    const int32_t small[] = {0, 8, 100, 130};
    request.call.value_dim = small[random_below(random, 4)], request.call.order = BANYAN_ORDER_PLAN;
    request.tokens = request.call.all_tokens = 1 + request.tokens % 2;
    if (request.call.scatter == BANYAN_SCATTER_HEADS)
      request.heads = request.call.all_heads = nranks - 3 + request.heads;
    if (request.call.scatter == BANYAN_SCATTER_TOKENS)
      request.tokens = request.call.all_tokens = nranks - 2 + request.tokens;
    if (request.call.scatter != BANYAN_SCATTER_HEADS) request.heads = request.call.all_heads = 1 + request.heads % 2;
    /* Plans of more ranks merge in two steps, with one more rounding. */
    if (nranks > BNY_MERGE_SOURCES_MAX) request.call.wire = BNY_WIRE_F32;
  }
  return request;
}

/* Some algorithms do not serve some requests. */
bool is_served(const bny_request &request) {
  bny_plan *plan = nullptr;
  bool served = bny_plan_make(&request, 0, &plan) == BANYAN_OK;
  if (served) bny_plan_free(plan);
  return served;
}

/* Makes the request a part of a larger call. */
void make_part(world_random *random, bny_request *request) {
  request->call.all_tokens += request->token0 = random_below(random, 3);
  request->call.all_heads += request->head0 = random_below(random, 3);
  request->call.all_tokens += random_below(random, 2);
  request->call.all_heads += random_below(random, 2);
}

int direct_turn; /* protocols of direct kernels take turns */

trial trial_of(world_random *random, int32_t nranks, flavour like) {
  trial made = {};
  do {
    made.request = request_of(random, nranks, like);
    if ((like == ANY || like == DIRECT) && random_one_in(random, 4)) make_part(random, &made.request);
  } while (!is_served(made.request));
  const bny_request &request = made.request;
  made.settings.protocol = random_below(random, BNY_PROTOCOL_COUNT);
  if (like == DIRECT) made.settings.protocol = direct_turn++ % BNY_PROTOCOL_COUNT;
  made.settings.whole_rows = random_one_in(random, 3); /* makes units of several rounds of packets */
  bool round_nodes = request.call.order == BANYAN_ORDER_CANONICAL && request.call.wire != BNY_WIRE_F32;
  made.oneshot = (like == DIRECT || random_one_in(random, 2)) && !round_nodes;
  if (made.oneshot) made.request.algorithm = "oneshot";
  sheet_mood mood = static_cast<sheet_mood>(random_below(random, SHEET_MOODS));
  sheet out_all = sheet_output(random, mood, request.call.all_tokens, request.call.all_heads, request.call.value_dim);
  for (int32_t rank = 0; rank < nranks; rank++) {
    made.in.push_back(sheet_input(random, mood, rank, nranks, request.call.all_tokens, request.call.all_heads,
                                  request.call.value_dim));
    bny_slice owned = bny_slice_owned(&request, rank);
    made.owned.push_back(owned);
    made.out.push_back(sheet_output_like(&out_all, owned.tokens, owned.heads));
    made.expected.push_back(sheet_copy(&made.out.back()));
  }
  return made;
}

bool expect(trial *made) {
  std::vector<replay_rank> ranks;
  for (size_t rank = 0; rank < made->in.size(); rank++)
    ranks.push_back(
        {&made->in[rank].partial, &made->expected[rank].partial, made->owned[rank].token0, made->owned[rank].head0});
  return replay_combine(&made->request, ranks.data());
}

bny_device_call call_of(const trial &made, size_t rank) {
  bny_device_call call = {};
  call.in = made.in[rank].partial;
  call.out = made.out[rank].partial;
  call.out_token0 = made.owned[rank].token0;
  call.out_head0 = made.owned[rank].head0;
  return call;
}

void launch(cuda_ranks *ranks, world_random *random, const trial &made, flavour like) {
  bny_arena_sizes sizes = cuda_ranks_sizes(), needs;
  bny_protocol protocol = BNY_PROTOCOL_COUNT;
  bny_oneshot what = {};
  if (made.oneshot) {
    ck_assert_msg(bny_device_oneshot_make(&made.request, &made.settings, &what, &protocol, &needs) == BANYAN_OK, "%s",
                  banyan_last_error());
    ck_assert(!bny_arena_lacks(&sizes, &needs));
  }
  for (int32_t rank = 0; rank < made.request.nranks; rank++) {
    bny_device_call call = call_of(made, static_cast<size_t>(rank));
    const int32_t most = like == SMALL || like == TO_MANY || like == DIRECT ? 1 : 3;
    uint32_t blocks = 1 + static_cast<uint32_t>(random_below(random, most));
    uint32_t warps = 1 + static_cast<uint32_t>(random_below(random, most));
    if (made.oneshot) {
      ranks->oneshot(rank, protocol, what, call, blocks, cuda_ranks_threads(what.shape, warps),
                     made.request.call.order);
      continue;
    }
    bny_program *program = nullptr;
    ck_assert_msg(bny_device_program_make(&made.request, rank, &made.settings, &program) == BANYAN_OK, "%s",
                  banyan_last_error());
    needs = bny_device_program_needs(program);
    ck_assert_msg(!bny_arena_lacks(&sizes, &needs), "%s", bny_arena_lacks(&sizes, &needs));
    ranks->program(rank, program, call, blocks, cuda_ranks_threads(program->shape, warps));
    free(program);
  }
}

void check_result(const trial &made, uint64_t seed) {
  const bny_request &request = made.request;
  for (size_t rank = 0; rank < made.out.size(); rank++)
    if (memcmp(made.out[rank].memory, made.expected[rank].memory, made.out[rank].bytes) != 0)
      ck_abort_msg("seed %" PRIu64
                   ": rank %zu of %d: the bits differ: %s%s, scatter %d, order %d, wire %d, protocol %d, "
                   "%d x %d rows of %d",
                   seed, rank, request.nranks, request.algorithm, made.oneshot ? " (kernel)" : "", request.call.scatter,
                   request.call.order, request.call.wire, made.settings.protocol, request.tokens, request.heads,
                   request.call.value_dim);
}

void run_world(uint64_t seed, int32_t nranks, int32_t epochs, flavour like) {
  world_random random = seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(nranks);
  cuda_ranks ranks(nranks, seed);
  ranks.overlap(seed % 2);
  if (seed / 2 % 2) ranks.alias(true);
  std::vector<trial> trials;
  for (int32_t epoch = 0; epoch < epochs; epoch++) {
    trials.push_back(trial_of(&random, nranks, like));
    ck_assert_msg(expect(&trials.back()), "seed %" PRIu64 ": the plans do not run: %s", seed, banyan_last_error());
    launch(&ranks, &random, trials.back(), like);
  }
  std::string why = ranks.run();
  ck_assert_msg(why.empty(), "seed %" PRIu64 ", %d ranks: %s", seed, nranks, why.c_str());
  for (const trial &one : trials) check_result(one, seed);
}

/* Checks that all ranks get the right bits, from kernels that support aliases (known) or do not. */
bool aliases_are_kept(uint64_t seed, bool known) {
  world_random random = seed;
  cuda_ranks ranks(3, seed);
  ranks.alias(known);
  ranks.set_timeout(2000000);
  trial made = trial_of(&random, 3, ANY);
  ck_assert(expect(&made));
  launch(&ranks, &random, made, ANY);
  bool good = ranks.run().empty();
  for (int32_t rank = 0; rank < 3; rank++) {
    const size_t i = static_cast<size_t>(rank);
    good = good && ranks.head(rank)->fault == 0 &&
           memcmp(made.out[i].memory, made.expected[i].memory, made.out[i].bytes) == 0;
  }
  return good;
}

} // namespace

TEST(aliases_take_fences) {
  int missed = 0; /* a warp that sends and then ends, as for a root, needs no fence */
  for (uint64_t seed = 1; seed <= 8; seed++) {
    ck_assert_msg(aliases_are_kept(seed, true), "seed %" PRIu64, seed);
    missed += !aliases_are_kept(seed, false);
  }
  ck_assert_msg(missed > 0, "no world missed its fences");
}

TEST_RANGE(bits_of_a_processor, 1, 9) {
  for (uint64_t i = 0; i < 2; i++) run_world(random_seed() * 1000 + i, _i, 6, ANY);
}

TEST(more_ranks_than_a_merge_takes_at_once) {
  run_world(random_seed(), 9, 3, SMALL);
  run_world(random_seed(), 19, 2, SMALL);
  run_world(random_seed(), 34, 2, TO_MANY); /* more ranks than a warp has lanes */
}

/* The ranks of an NVLink domain, and numbers of ranks whose last group of eight has any size. */
TEST_LOOP(direct_forms_of_many_ranks, 5) {
  const int32_t ranks[] = {9, 16, 23, 36, 72};
  const uint64_t worlds = world_is_sanitized() ? 1 : ranks[_i] > 30 ? 2 : 6;
  for (uint64_t i = 0; i < worlds; i++) run_world(random_seed() * 3000 + i, ranks[_i], 2, DIRECT);
}

/* Bits of the exact order do not depend on the protocol, or on the warp that handles a row. */
TEST(exact_kernels_agree) {
  world_random random = random_seed() * 77;
  trial made = trial_of(&random, 3, DIRECT);
  made.request.call.wire = BNY_WIRE_F32;
  made.request.call.order = BANYAN_ORDER_EXACT;
  for (int protocol = 0; protocol < BNY_PROTOCOL_COUNT; protocol++) {
    trial one = made;
    cuda_ranks ranks(3, random_seed());
    one.settings.protocol = protocol;
    for (size_t rank = 0; protocol > 0 && rank < 3; rank++) one.out[rank] = sheet_copy(&made.expected[rank]);
    launch(&ranks, &random, one, ANY);
    std::string why = ranks.run();
    ck_assert_msg(why.empty(), "%s", why.c_str());
    for (size_t rank = 0; rank < 3; rank++)
      ck_assert_msg(memcmp(one.out[rank].memory, made.out[rank].memory, made.out[rank].bytes) == 0,
                    "protocol %d, rank %zu: the bits differ", protocol, rank);
  }
}

/* Decode kernels find the page of a key by a multiplication. */
TEST(page_divisions) {
  world_random random = random_seed();
  for (uint32_t keys = 1; keys < 3000; keys++) {
    bny_decode_general general;
    bny_decode_divide_pages(&general, keys);
    for (int i = 0; i < 50; i++) {
      const uint32_t page = static_cast<uint32_t>(random_below(&random, static_cast<int32_t>(INT32_MAX / keys)));
      if (bny_general_page_of(general, page * keys) != page ||
          bny_general_page_of(general, page * keys + keys - 1) != page)
        ck_abort_msg("pages of %u keys: page %u", keys, page);
    }
    ck_assert_uint_eq(bny_general_page_of(general, INT32_MAX), INT32_MAX / keys);
  }
}

int main() {
  sheet_eight_bits = true;
  return world_main(suite_of("cuda_combine", 120));
}
