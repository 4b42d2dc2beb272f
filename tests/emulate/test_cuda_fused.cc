/* SPDX-License-Identifier: Apache-2.0
 *
 * banyan_device.cuh in a user's kernel, emulated. An epilogue pushes rows, and the last blocks merge them, with more
 * blocks than run at once. The bits are those of a separate combine, also where some rows are masked. */
#include <check.h>

#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "banyan_device.cuh"
#include "tests/emulate/cuda_live_util.hh"
#include "tests/emulate/cuda_ranks.hh"

extern "C" {
#include "op.h"
#include "tests/plan/plan_replay.h"
#include "tests/support/sheet.h"
#include "tests/support/suite.h"
}

namespace {

enum { DIM_MAX = 160, WARPS_MAX = 3 };

/* A user's kernel: its warps "compute" rows in an order of their own. */
struct own_kernel {
  banyan_device_combine combine;
  banyan_partial in; /* its rows */
  uint32_t tokens, heads, value_dim;
  uint32_t turn;
  bool merges_itself, in_registers;

  static float element(const void *from, banyan_dtype dtype, int64_t index) {
    return bny_element_load(from, dtype, index);
  }

  void push(banyan_device_run *run, uint32_t row, float *values) const {
    int32_t token = static_cast<int32_t>(row / heads), head = static_cast<int32_t>(row % heads);
    int64_t at = token * in.values_token_stride + head * in.values_head_stride;
    int64_t stat = token * in.stats_token_stride + head * in.stats_head_stride;
    bny_warp_sync();
    for (uint32_t i = bny_lane(); i < value_dim; i += BNY_WARP_LANES)
      values[i] = element(in.values, in.values_dtype, at + i);
    float m = element(in.lse, in.stats_dtype, stat);
    float d = in.stats_kind == BANYAN_STATS_MAX_SUM ? element(in.sum, in.stats_dtype, stat) : 1.0f;
    if (!in_registers) {
      banyan_device_push(run, token, head, m, d, values);
      return;
    }
    float n[2][4];
    bny_warp_sync();
    for (uint32_t i = 0; i < 8; i++) {
      uint32_t column = i / 4 * 128 + 4 * bny_lane() + i % 4;
      n[i / 4][i % 4] = column < value_dim ? values[column] : 0.0f;
    }
    banyan_device_push(run, token, head, m, d, bny_fused_quads<2>{n});
  }

  bool wants(int32_t token, int32_t head) const {
    return bny_oneshot_unit(combine.what, 0, combine.group.rank, token, head, 0) >= 0;
  }

  void run() const {
    BNY_SHARED_ARRAY(float, memory, DIM_MAX *WARPS_MAX);
    float *values = memory + DIM_MAX * bny_warp();
    uint32_t rows = tokens * heads, warps = bny_grid_blocks() * (bny_block_threads() / BNY_WARP_LANES);
    uint32_t first = bny_block() * (bny_block_threads() / BNY_WARP_LANES) + bny_warp();
    banyan_device_run run;
    banyan_device_begin(&run, combine);
    for (uint32_t row = first; row < rows; row += warps) push(&run, (row + turn) % rows, values);
    if (!merges_itself) {
      banyan_device_end(&run);
      return;
    }
    for (uint32_t row = first; row < rows; row += warps)
      if (combine.call.live.most || wants(static_cast<int32_t>(row / heads), static_cast<int32_t>(row % heads)))
        banyan_device_merge(&run, static_cast<int32_t>(row / heads), static_cast<int32_t>(row % heads));
    banyan_device_end_merged(&run);
  }
};

struct trial {
  bny_request request = {};
  live_rows live = {};
  std::vector<sheet> in, out, expected;
};

bny_request request_of(world_random *random, int32_t nranks, bool live) {
  const int32_t dims[] = {0, 7, 64, 130};
  const bool wide = nranks > BNY_ONESHOT_NARROW_RANKS;
  bny_request request = {};
  request.collective = BNY_COMBINE;
  request.nranks = nranks;
  request.all_tokens = request.tokens = 1 + random_below(random, live ? 7 : 4);
  request.all_heads = request.heads = 1 + random_below(random, 6);
  request.value_dim = dims[random_below(random, 4)];
  request.wire = static_cast<bny_wire>(random_below(random, BNY_WIRE_E4M3));
  request.scatter = static_cast<banyan_scatter>(random_below(random, 4));
  request.root = request.scatter == BANYAN_SCATTER_ROOT ? random_below(random, nranks) : 0;
  request.algorithm = "oneshot";
  if (wide && request.scatter == BANYAN_SCATTER_HEADS) request.heads = request.all_heads = nranks - 2 + request.heads;
  if (wide && request.scatter == BANYAN_SCATTER_TOKENS) request.tokens = request.all_tokens = nranks;
  if (wide && request.scatter != BANYAN_SCATTER_HEADS) request.heads = request.all_heads = 1;
  /* Plans of more ranks than that merge in two steps, with one more rounding. */
  if (nranks > BNY_MERGE_SOURCES_MAX) request.wire = BNY_WIRE_F32;
  request.cost.ranks_per_core = 1;
  request.outbox_bytes = static_cast<size_t>(1) << 30;
  request.slots_max = 1 << 16;
  return request;
}

void make_rank(trial *made, sheet_pool *pool, world_random *random, int32_t rank, sheet_mood mood, const sheet *like) {
  const bny_request &request = made->request;
  bny_slice owned = bny_slice_owned(&request, rank);
  made->in.push_back(
      sheet_input(pool, random, mood, rank, request.nranks, request.tokens, request.heads, request.value_dim));
  made->out.push_back(sheet_output_like(pool, like, owned.tokens, owned.heads));
  made->expected.push_back(sheet_copy(pool, &made->out.back()));
}

void launch(cuda_ranks *ranks, world_random *random, const trial &made, uint32_t resident) {
  bny_arena_sizes sizes = cuda_ranks_sizes(), needs;
  bool merges_itself = random_one_in(random, 3);
  for (int32_t rank = 0; rank < made.request.nranks; rank++) {
    size_t r = static_cast<size_t>(rank);
    own_kernel kernel = {};
    ck_assert(bny_device_combine_make(&made.request, rank, &made.in[r].partial, &made.out[r].partial,
                                      1 + random_below(random, static_cast<int32_t>(resident)), &kernel.combine,
                                      &needs) == BANYAN_OK);
    ck_assert(!bny_arena_lacks(&sizes, &needs));
    kernel.combine.group = ranks->group(rank);
    kernel.combine.call.live = live_rows_tell(made.live, r, r % 2 || made.request.root % 2);
    kernel.in = made.in[r].partial;
    kernel.tokens = static_cast<uint32_t>(made.request.tokens);
    kernel.heads = static_cast<uint32_t>(made.request.heads);
    kernel.value_dim = static_cast<uint32_t>(made.request.value_dim);
    kernel.turn = static_cast<uint32_t>(random_below(random, 20));
    kernel.merges_itself = merges_itself;
    kernel.in_registers = random_one_in(random, 2);
    /* More blocks than can run at once, unless all of them wait. */
    const bool wide = made.request.nranks > BNY_ONESHOT_NARROW_RANKS;
    const int32_t blocks_max = merges_itself ? static_cast<int32_t>(resident) : wide ? 3 : 7;
    uint32_t blocks = 1 + static_cast<uint32_t>(random_below(random, blocks_max));
    uint32_t threads = BNY_WARP_LANES * (1 + static_cast<uint32_t>(random_below(random, wide ? 2 : WARPS_MAX)));
    ranks->any(rank, blocks, threads, [kernel] { kernel.run(); });
  }
}

void check_result(const trial &made, uint64_t seed) {
  const bny_request &request = made.request;
  for (size_t rank = 0; rank < made.out.size(); rank++)
    ck_assert_msg(memcmp(made.out[rank].memory, made.expected[rank].memory, made.out[rank].bytes) == 0,
                  "seed %" PRIu64 ": rank %zu of %d: the bits differ: scatter %d, wire %d, %d x %d rows of %d", seed,
                  rank, request.nranks, request.scatter, request.wire, request.tokens, request.heads,
                  request.value_dim);
}

void run_world(uint64_t seed, int32_t nranks, int epochs, bool live) {
  world_random random = {seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(nranks)};
  sheet_pool pool = {};
  uint32_t resident = nranks > BNY_ONESHOT_NARROW_RANKS ? 1 : 2;
  cuda_ranks ranks(nranks, seed, resident);
  if (seed % 2) ranks.alias(true);
  std::vector<std::unique_ptr<trial>> trials;
  for (int epoch = 0; epoch < epochs; epoch++) {
    trials.push_back(std::make_unique<trial>());
    trial *made = trials.back().get();
    made->request = request_of(&random, nranks, live);
    sheet_mood mood = static_cast<sheet_mood>(random_below(&random, SHEET_MOODS));
    sheet like = sheet_output(&pool, &random, mood, made->request.tokens, made->request.heads, made->request.value_dim);
    std::vector<replay_rank> replays;
    for (int32_t rank = 0; rank < nranks; rank++) make_rank(made, &pool, &random, rank, mood, &like);
    if (live) made->live = live_rows_of(&pool, &random, made->request, made->in);
    for (size_t rank = 0; rank < made->in.size(); rank++) {
      bny_slice owned = bny_slice_owned(&made->request, static_cast<int32_t>(rank));
      const sheet &in = live ? made->live.seen[rank] : made->in[rank];
      replays.push_back({&in.partial, &made->expected[rank].partial, owned.token0, owned.head0});
    }
    ck_assert(replay_combine(&made->request, replays.data()));
    for (size_t rank = 0; live && rank < made->in.size(); rank++)
      live_rows_restore(made->live, made->request, bny_slice_owned(&made->request, static_cast<int32_t>(rank)),
                        made->expected[rank], made->out[rank]);
    launch(&ranks, &random, *made, resident);
  }
  std::string why = ranks.run();
  ck_assert_msg(why.empty(), "seed %" PRIu64 ", %d ranks: %s", seed, nranks, why.c_str());
  for (auto &one : trials) check_result(*one, seed);
  sheet_pool_free(&pool);
}

} // namespace

TEST_RANGE(bits_of_a_combine, 1, 9) {
  for (uint64_t i = 0; i < (world_is_sanitized() ? 2 : 8); i++) run_world(world_seed() * 1000 + i, _i, 4, false);
}

TEST_LOOP(bits_of_many_ranks, 4) {
  const int32_t ranks[] = {11, 16, 36, 72};
  for (uint64_t i = 0; i < (world_is_sanitized() || ranks[_i] > 30 ? 2 : 8); i++)
    run_world(world_seed() * 3000 + i, ranks[_i], 2, false);
}

TEST_RANGE(rows_that_live, 1, 10) {
  for (uint64_t i = 0; i < (world_is_sanitized() ? 3 : 12); i++) run_world(world_seed() * 5000 + i, _i, 4, true);
}

int main() { return world_main(suite_of("cuda_fused", 120)); }
