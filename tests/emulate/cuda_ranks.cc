/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/emulate/cuda_ranks.hh"

#include <cstdlib>
#include <cstring>

#include "cuda/combine.cuh"

bny_arena_sizes cuda_ranks_sizes() {
  bny_arena_sizes sizes = {};
  for (uint64_t &bytes : sizes.inbox_bytes) bytes = 512 << 10;
  sizes.signals = 4096;
  return sizes;
}

cuda_ranks::cuda_ranks(int32_t nranks, uint64_t seed, uint32_t resident) : nranks_(nranks) {
  bny_emulator_config config = {};
  config.seed = seed;
  config.resident_blocks = resident;
  config.weak = true;
  config.steps_max = 20000000 + 2000000 * static_cast<uint64_t>(nranks);
  emulator_ = bny_emulator_make(config);
  bny_arena_sizes sizes = cuda_ranks_sizes();
  bny_device_group group = {};
  group.nranks = nranks;
  group.shape = bny_arena_shape_make(&sizes);
  words_.resize(static_cast<size_t>(nranks) * BNY_DEVICE_WORDS);
  for (int32_t rank = 0; rank < nranks; rank++) {
    size_t bytes = (group.shape.bytes + 255) / 256 * 256;
    group.arenas[rank] = static_cast<unsigned char *>(aligned_alloc(256, bytes));
    memset(group.arenas[rank], 0, bytes);
    reinterpret_cast<bny_arena_head *>(group.arenas[rank])->words =
        &words_[static_cast<size_t>(rank) * BNY_DEVICE_WORDS];
  }
  for (int32_t rank = 0; rank < nranks; rank++) {
    group.rank = rank;
    groups_.push_back(group);
  }
}

cuda_ranks::~cuda_ranks() {
  bny_emulator_free(emulator_);
  for (int32_t rank = 0; rank < nranks_; rank++) free(groups_[0].arenas[rank]);
}

void cuda_ranks::alias(bool known) {
  for (int32_t rank = 0; rank < nranks_; rank++) {
    bny_device_group &group = groups_[static_cast<size_t>(rank)];
    group.has_aliases = known;
    bny_emulator_own(emulator_, static_cast<uint32_t>(rank), group.arenas[rank], group.shape.bytes);
  }
}

void cuda_ranks::set_timeout(uint64_t ns) {
  for (int32_t rank = 0; rank < nranks_; rank++) head(rank)->timeout_ns = ns;
}

void cuda_ranks::any(int32_t rank, uint32_t blocks, uint32_t threads, std::function<void()> kernel) {
  bny_emulator_launch launch = {};
  launch.device = static_cast<uint32_t>(rank);
  launch.blocks = blocks;
  launch.threads = threads;
  launch.overlap = overlap_;
  launch.kernel = std::move(kernel);
  bny_emulator_add(emulator_, launch);
}

void cuda_ranks::oneshot(int32_t rank, bny_protocol protocol, const bny_oneshot &what, const bny_device_call &call,
                         uint32_t blocks, uint32_t threads, banyan_order order) {
  const bny_device_group &group = groups_[static_cast<size_t>(rank)];
  std::string name = bny_device_oneshot_kernel(protocol, what.shape.wire, order, nranks_);
#define RUNS_ONESHOT(kernel) \
  if (name == #kernel) any(rank, blocks, threads, [=, &group] { kernel(group, what, call); });
#define RUNS_INTERPRET(kernel)
#define RUNS_BYTES(kernel)
#define BNY_CUDA_KERNEL(kernel, form, ...) RUNS_##form(kernel)
#include "cuda/kernels.def"
#undef RUNS_ONESHOT
#undef RUNS_INTERPRET
#undef RUNS_BYTES
}

void cuda_ranks::program(int32_t rank, const bny_program *program, const bny_device_call &call, uint32_t blocks,
                         uint32_t threads) {
  const bny_device_group &group = groups_[static_cast<size_t>(rank)];
  auto copied = std::make_shared<std::vector<uint64_t>>((program->bytes + 7) / 8);
  memcpy(copied->data(), program, program->bytes);
  auto at = reinterpret_cast<bny_program *>(copied->data());
  std::string name = bny_device_program_kernel(program);
#define RUNS_ONESHOT(kernel)
#define RUNS_INTERPRET(kernel) \
  if (name == #kernel) any(rank, blocks, threads, [=, &group, held = copied] { kernel(group, at, call); });
#define RUNS_BYTES RUNS_INTERPRET
#include "cuda/kernels.def"
}

std::string cuda_ranks::run() {
  char why[256] = "";
  return bny_emulator_run(emulator_, why, sizeof why) ? "" : why;
}

uint32_t cuda_ranks_threads(const bny_unit_shape &shape, uint32_t warps) {
  uint32_t chunks = static_cast<uint32_t>(shape.chunks);
  return (warps + chunks - 1) / chunks * chunks * BNY_WARP_LANES;
}
