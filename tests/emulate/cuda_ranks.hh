/* SPDX-License-Identifier: Apache-2.0
 * Ranks with emulated devices, all in one thread: their arenas, launches and results. */
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/program.h"

extern "C" {
#include "device/program.h"
}

/* Returns the sizes of all arenas, large enough for tests. */
bny_arena_sizes cuda_ranks_sizes();

class cuda_ranks {
public:
  /* resident: most blocks of a device at one time; 0: all */
  cuda_ranks(int32_t nranks, uint64_t seed, uint32_t resident = 0);
  ~cuda_ranks();
  cuda_ranks(const cuda_ranks &) = delete;
  cuda_ranks &operator=(const cuda_ranks &) = delete;

  /* Adds a launch to the rank's stream. Programs, oneshots and calls are copied. */
  void oneshot(int32_t rank, bny_protocol protocol, const bny_oneshot &what, const bny_device_call &call,
               uint32_t blocks, uint32_t threads, banyan_order order = BANYAN_ORDER_PLAN);
  void program(int32_t rank, const bny_program *program, const bny_device_call &call, uint32_t blocks,
               uint32_t threads);
  void any(int32_t rank, uint32_t blocks, uint32_t threads, std::function<void()> kernel);
  const bny_device_group &group(int32_t rank) { return groups_[static_cast<size_t>(rank)]; }
  void overlap(bool allowed) { overlap_ = allowed; }
  /* Maps the arenas of other ranks at different addresses. Called before launches are added. `known`: kernels know of
   * the aliases. */
  void alias(bool known);

  /* Runs all launches added so far. Returns "", or the reason of a failure. */
  std::string run();

  void set_timeout(uint64_t ns);
  bny_arena_head *head(int32_t rank) { return reinterpret_cast<bny_arena_head *>(groups_[0].arenas[rank]); }

private:
  int32_t nranks_;
  bool overlap_ = false;
  bny_emulator *emulator_;
  std::vector<bny_device_group> groups_;
  std::vector<uint64_t> words_;
};

/* Returns the threads of a block of at least `warps` warps. */
uint32_t cuda_ranks_threads(const bny_unit_shape &shape, uint32_t warps);
