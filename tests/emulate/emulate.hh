/* SPDX-License-Identifier: Apache-2.0
 * The functions of kernels/cuda/device.h on a CPU, and the emulator that runs kernels with them in tests.
 *
 * All threads of all launches are fibers of one OS thread. A seeded random scheduler picks which one continues at each
 * of the functions below, so a failure can be repeated by its seed. Devices are numbers. Launches of one stream of a
 * device run in order, all others concurrently, in one memory.
 *
 * The emulator delays stores of the ordered functions of device.h at random, where PTX lets other threads see them
 * late. The delay ends at a fence or a release of this thread, at one of another thread of its block after a barrier or
 * sync, or at the end of the kernel. If memory has an owner (bny_emulator_own), stores of other devices also wait for a
 * fence for aliases. Threads of the same block see all stores at once. Asynchronous copies are delayed until a thread
 * waits for them. Loads are never early. All lanes of a warp must meet in the same function. A deadlock fails at once,
 * and so does a spin beyond the limit of steps. Time is counted in steps. */
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "merge_math.h"
#include "tests/emulate/emulate_sum.hh"

/* ---- the emulator ------------------------------------------------------------------------------------------------ */

struct bny_emulator_config {
  uint64_t seed;
  uint32_t resident_blocks; /* most blocks of a device that are resident at once; 0: all */
  bool weak;                /* stores become visible late */
  uint64_t step_ns;         /* duration of a step in ns; 0: 10 */
  uint64_t steps_max;       /* limit of steps; 0: 2e9 */
};

struct bny_emulator_launch {
  uint32_t device, stream;
  uint32_t blocks, threads; /* threads: of a block, a multiple of 32 */
  uint32_t cluster;         /* blocks of a cluster; 0: 1 */
  uint32_t shared_bytes;    /* dynamic shared memory */
  bool overlap;             /* programmatic launch: may begin when the previous launch has released it */
  std::function<void()> kernel;
};

struct bny_emulator;
bny_emulator *bny_emulator_make(const bny_emulator_config &config);
void bny_emulator_free(bny_emulator *emulator);
void bny_emulator_add(bny_emulator *emulator, const bny_emulator_launch &launch);
/* Runs all launches. Returns false and the reason on a deadlock, divergence or the step limit. */
bool bny_emulator_run(bny_emulator *emulator, char *why, size_t bytes);
/* The emulator calls `watch` before each step, for tests that interfere. It may be empty. */
void bny_emulator_watch(bny_emulator *emulator, std::function<void()> watch);
/* Declares memory as that of a device, which other devices see at another address. A store of another device becomes
 * visible only after a fence for aliases. The storing thread executes the fence, or a thread of its block after a
 * barrier or sync. */
void bny_emulator_own(bny_emulator *emulator, uint32_t device, void *memory, size_t bytes);
/* From now on counts the bytes that asynchronous copies read from this memory. Returns the count before. */
uint64_t bny_emulator_watch_copies(const void *memory, size_t bytes);

/* ---- inside a kernel --------------------------------------------------------------------------------------------- */

struct bny_emulated_thread {
  uint32_t thread, block_threads, block, blocks, cluster_rank, cluster_blocks;
};
const bny_emulated_thread &bny_emulated(void);

enum { BNY_EMULATED_EXCHANGE_BYTES = 128 };
/* Returns the values of all lanes once all 32 have called it. `kind` is the function, the same in all lanes. */
const unsigned char (*bny_emulated_exchange(uint32_t kind, const void *value,
                                            size_t bytes))[BNY_EMULATED_EXCHANGE_BYTES];
void bny_emulated_barrier(int id, int threads, bool wait); /* a barrier of the block; id 0: all of its threads */
void bny_emulated_cluster_barrier(void);
void bny_emulated_yield(void); /* lets other threads run */
/* Stores bytes, which become visible at once or later. Stores with the same `line`, if it is not 0, become visible
 * together. */
void bny_emulated_store(void *to, const void *value, size_t bytes, uint32_t line = 0);
uint32_t bny_emulated_new_line(void); /* the number of a new line */
void bny_emulated_settle(void);       /* a fence: all stores before it become visible */
/* Makes this thread's stores to shared memory visible at once, and its other stores at the latest at the block's next
 * fence. */
void bny_emulated_sync(void);
void bny_emulated_load(const void *from, void *value, size_t bytes);
void bny_emulated_alias(void); /* a fence for stores to memory of bny_emulator_own() */
void *bny_emulated_shared(const void *key, size_t bytes);
void *bny_emulated_dynamic(void);
void *bny_emulated_cluster_address(void *shared, uint32_t rank);
void bny_emulated_copy(void *to, const void *from, size_t bytes); /* it joins the group that is committed next */
void bny_emulated_commit(void);
void bny_emulated_wait(int groups);
void bny_emulated_grid_wait(void);
void bny_emulated_grid_release(void);
uint64_t bny_emulated_clock(void);
[[noreturn]] void bny_emulated_fail(const char *why);

#define BNY_DEVICE static inline
/* A rarely called function. */
#define BNY_DEVICE_COLD static inline
#define BNY_DEVICE_METHOD inline
#define BNY_KERNEL extern "C" void
#define BNY_LAUNCH_BOUNDS(threads, blocks)
#define BNY_UNROLL
#define BNY_ROLLED
#define BNY_PARAMETER(type, name) const type name
#define BNY_SHARED(type, name) \
  static char name##_key;      \
  type &name = *static_cast<type *>(bny_emulated_shared(&name##_key, sizeof(type)))
#define BNY_SHARED_ARRAY(type, name, count) \
  static char name##_key;                   \
  type *name = static_cast<type *>(bny_emulated_shared(&name##_key, sizeof(type) * (count)))
#define BNY_ARCH 900
#define BNY_WARPGROUPS

BNY_DEVICE uint32_t bny_thread(void) { return bny_emulated().thread; }
BNY_DEVICE uint32_t bny_block_threads(void) { return bny_emulated().block_threads; }
BNY_DEVICE uint32_t bny_block(void) { return bny_emulated().block; }
BNY_DEVICE uint32_t bny_grid_blocks(void) { return bny_emulated().blocks; }
BNY_DEVICE uint32_t bny_lane(void) { return bny_emulated().thread % BNY_WARP_LANES; }
BNY_DEVICE uint32_t bny_warp(void) { return bny_emulated().thread / BNY_WARP_LANES; }
BNY_DEVICE unsigned char *bny_dynamic_shared(void) { return static_cast<unsigned char *>(bny_emulated_dynamic()); }
BNY_DEVICE unsigned char *bny_shared_align(unsigned char *shared, uint32_t bytes) {
  return shared + (0 - (uintptr_t)shared) % bytes;
}

/* ---- warp and block ---------------------------------------------------------------------------------------------- */

enum bny_emulated_kind {
  BNY_EMULATED_SHUFFLE = 1,
  BNY_EMULATED_VOTE,
  BNY_EMULATED_SYNC,
  BNY_EMULATED_MMA,
  BNY_EMULATED_MATRIX,
  BNY_EMULATED_GROUP,
  BNY_EMULATED_LINE_LOAD,
  BNY_EMULATED_LINE_STORE
};

template <typename T> BNY_DEVICE T bny_shuffle(T value, int lane) {
  T other;
  memcpy(&other, bny_emulated_exchange(BNY_EMULATED_SHUFFLE, &value, sizeof value)[lane & 31], sizeof other);
  return other;
}
template <typename T> BNY_DEVICE T bny_shuffle_xor(T value, int mask) {
  return bny_shuffle(value, (int)bny_lane() ^ mask);
}
BNY_DEVICE uint32_t bny_warp_ballot(bool p) {
  unsigned char mine = p;
  const unsigned char(*all)[BNY_EMULATED_EXCHANGE_BYTES] = bny_emulated_exchange(BNY_EMULATED_VOTE, &mine, 1);
  uint32_t votes = 0;
  for (int i = 0; i < BNY_WARP_LANES; i++) votes |= (uint32_t)all[i][0] << i;
  return votes;
}
BNY_DEVICE int bny_lowest_bit(uint32_t bits) { return bits ? __builtin_ctz(bits) : -1; }
BNY_DEVICE uint32_t bny_warp_max_32(uint32_t value) {
  const unsigned char(*all)[BNY_EMULATED_EXCHANGE_BYTES] =
      bny_emulated_exchange(BNY_EMULATED_SHUFFLE, &value, sizeof value);
  for (int i = 0; i < BNY_WARP_LANES; i++) {
    uint32_t other;
    memcpy(&other, all[i], sizeof other);
    value = value > other ? value : other;
  }
  return value;
}
BNY_DEVICE bool bny_warp_any(bool p) { return bny_warp_ballot(p) != 0; }
BNY_DEVICE bool bny_warp_all(bool p) { return bny_warp_ballot(p) == 0xffffffffu; }
BNY_DEVICE void bny_warp_sync(void) {
  bny_emulated_sync();
  bny_emulated_exchange(BNY_EMULATED_SYNC, nullptr, 0);
}
BNY_DEVICE void bny_block_sync(void) { bny_emulated_barrier(0, (int)bny_block_threads(), true); }
BNY_DEVICE void bny_named_sync(int id, int threads) { bny_emulated_barrier(id, threads, true); }
BNY_DEVICE void bny_named_arrive(int id, int threads) { bny_emulated_barrier(id, threads, false); }

/* ---- ordered memory ---------------------------------------------------------------------------------------------- */

template <typename T> BNY_DEVICE T bny_emulated_load_of(const T *from) {
  T value;
  bny_emulated_yield();
  bny_emulated_load(from, &value, sizeof value);
  return value;
}
template <typename T> BNY_DEVICE void bny_emulated_store_of(T *to, T value, bool release) {
  if (release) bny_emulated_settle();
  bny_emulated_store(to, &value, sizeof value);
  bny_emulated_yield();
}
#define BNY_EMULATED_ACCESS(scope, bits, type)                                                               \
  BNY_DEVICE type bny_load_relaxed_##scope##_##bits(const type *from) { return bny_emulated_load_of(from); } \
  BNY_DEVICE type bny_load_acquire_##scope##_##bits(const type *from) { return bny_emulated_load_of(from); } \
  BNY_DEVICE void bny_store_relaxed_##scope##_##bits(type *to, type value) {                                 \
    bny_emulated_store_of(to, value, false);                                                                 \
  }                                                                                                          \
  BNY_DEVICE void bny_store_release_##scope##_##bits(type *to, type value) { bny_emulated_store_of(to, value, true); }
BNY_EMULATED_ACCESS(gpu, 32, uint32_t)
BNY_EMULATED_ACCESS(gpu, 64, uint64_t)
BNY_EMULATED_ACCESS(sys, 32, uint32_t)
BNY_EMULATED_ACCESS(sys, 64, uint64_t)
#undef BNY_EMULATED_ACCESS

BNY_DEVICE void bny_emulated_aligned(const void *at, size_t bytes) {
  if ((uintptr_t)at % bytes != 0) bny_emulated_fail("an access is not aligned");
}
BNY_DEVICE void bny_poll_128(const void *from, bool wanted, bny_quad *quad) {
  if (!wanted) return;
  bny_emulated_aligned(from, sizeof(bny_quad));
  *quad = bny_emulated_load_of(static_cast<const bny_quad *>(from));
}
BNY_DEVICE void bny_store_relaxed_sys_128(void *to, bny_quad value) {
  bny_emulated_aligned(to, sizeof(bny_quad));
  bny_emulated_store_of(static_cast<bny_quad *>(to), value, false);
}

/* The first of 8 lanes accesses the line for all: it stores without a step in between, and loads in two halves. */
struct bny_emulated_line {
  bny_quad quad[8];
};
BNY_DEVICE void bny_poll_line(const void *from, bool wanted, bny_quad *quad) {
  bny_emulated_line line = {};
  uint32_t first = bny_lane() / 8 * 8;
  if (!wanted) from = nullptr;
  bny_emulated_yield();
  const unsigned char(*all)[BNY_EMULATED_EXCHANGE_BYTES] =
      bny_emulated_exchange(BNY_EMULATED_LINE_LOAD, &from, sizeof from);
  const void *addresses[8];
  for (uint32_t i = 0; i < 8; i++) memcpy(&addresses[i], all[first + i], sizeof addresses[i]);
  for (uint32_t i = 0; bny_lane() == first && i < 8; i++) {
    if (i == 4) bny_emulated_yield();
    if (addresses[i]) bny_emulated_load(addresses[i], &line.quad[i], sizeof line.quad[i]);
  }
  memcpy(&line, bny_emulated_exchange(BNY_EMULATED_LINE_LOAD, &line, sizeof line)[first], sizeof line);
  if (wanted) *quad = line.quad[bny_lane() - first];
}
BNY_DEVICE void bny_store_line(void *to, bny_quad value) {
  struct {
    void *to;
    bny_quad value;
  } mine = {to, value};
  const unsigned char(*all)[BNY_EMULATED_EXCHANGE_BYTES] =
      bny_emulated_exchange(BNY_EMULATED_LINE_STORE, &mine, sizeof mine);
  uint32_t line = bny_emulated_new_line();
  for (uint32_t i = bny_lane(); bny_lane() % 8 == 0 && i < bny_lane() + 8; i++) {
    memcpy(&mine, all[i], sizeof mine);
    if (mine.to) bny_emulated_store(mine.to, &mine.value, sizeof mine.value, line);
  }
  bny_emulated_settle();
}

BNY_DEVICE void bny_fence_sys(void) { bny_emulated_settle(); }
BNY_DEVICE void bny_fence_alias(void) { bny_emulated_alias(); }
BNY_DEVICE uint64_t bny_add_relaxed_gpu_64(uint64_t *at, uint64_t value) {
  bny_emulated_yield();
  uint64_t old = *at;
  *at = old + value;
  return old;
}
BNY_DEVICE uint32_t bny_add_gpu_32(uint32_t *at, uint32_t value) {
  bny_emulated_settle();
  bny_emulated_yield();
  uint32_t old = *at;
  *at = old + value;
  return old;
}
BNY_DEVICE uint64_t bny_compare_swap_sys_64(uint64_t *at, uint64_t expected, uint64_t value) {
  bny_emulated_settle();
  bny_emulated_yield();
  uint64_t old = *at;
  if (old == expected) *at = value;
  return old;
}

/* ---- plain memory and time --------------------------------------------------------------------------------------- */

BNY_DEVICE bny_quad bny_load_quad(const void *from) {
  bny_quad value;
  bny_emulated_aligned(from, sizeof value);
  bny_emulated_load(from, &value, sizeof value);
  return value;
}
BNY_DEVICE bny_quad bny_load_quad_once(const void *from) { return bny_load_quad(from); }
/* Stores a quad by four stores, because others may see it in parts. */
BNY_DEVICE void bny_store_quad(void *to, bny_quad value) {
  bny_emulated_aligned(to, sizeof value);
  for (int i = 0; i < 4; i++) bny_emulated_store(static_cast<uint32_t *>(to) + i, &value.word[i], 4);
}
template <class Value> BNY_DEVICE Value bny_load_plain(const Value *from) {
  Value value;
  bny_emulated_load(from, &value, sizeof value);
  return value;
}
template <class Value> BNY_DEVICE void bny_store_plain(Value *to, Value value) {
  bny_emulated_store(to, &value, sizeof value);
}
BNY_DEVICE uint64_t bny_clock_ns(void) { return bny_emulated_clock(); }
BNY_DEVICE void bny_pause(void) { bny_emulated_yield(); }

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

BNY_DEVICE uint32_t bny_pack_bf16(float low, float high) {
  return bny_bf16_of_float(low) | (uint32_t)bny_bf16_of_float(high) << 16;
}
BNY_DEVICE uint32_t bny_pack_f16(float low, float high) {
  return bny_f16_of_float(low) | (uint32_t)bny_f16_of_float(high) << 16;
}
BNY_DEVICE float bny_bf16_low(uint32_t bits) { return bny_float_of_bf16((uint16_t)bits); }
BNY_DEVICE float bny_bf16_high(uint32_t bits) { return bny_float_of_bf16((uint16_t)(bits >> 16)); }
BNY_DEVICE float bny_f16_low(uint32_t bits) { return bny_float_of_f16((uint16_t)bits); }
BNY_DEVICE float bny_f16_high(uint32_t bits) { return bny_float_of_f16((uint16_t)(bits >> 16)); }
BNY_DEVICE float bny_mul(float a, float b) { return a * b; }
BNY_DEVICE float bny_add(float a, float b) { return a + b; }
BNY_DEVICE float bny_exp2_fast(float x) { return std::exp2(x); }

/* ---- matrix ------------------------------------------------------------------------------------------------------ */

BNY_DEVICE float bny_emulated_sum(float sum, const float *x, const float *y) {
  if (bny_emulated_truncates()) return bny_sum_truncated(sum, x, y);
  for (int k = 0; k < BNY_SUM_TERMS; k++) sum += x[k] * y[k];
  return sum;
}

/* Computes d += a b. Lane 4 g + t holds rows g, g + 8 and columns 2t, 2t + 1, + 8 of A, rows 2t, 2t + 1, + 8 and column
 * g of B, rows g, g + 8 and columns 2t, 2t + 1 of D. */
template <typename Low, typename High>
BNY_DEVICE void bny_emulated_mma(float *d, const uint32_t *a, const uint32_t *b, Low low, High high) {
  uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const unsigned char(*all)[BNY_EMULATED_EXCHANGE_BYTES] = bny_emulated_exchange(BNY_EMULATED_MMA, mine, sizeof mine);
  uint32_t g = bny_lane() / 4, t = bny_lane() % 4;
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t column = 2 * t + i % 2;
    float x[BNY_SUM_TERMS], y[BNY_SUM_TERMS];
    for (uint32_t k = 0; k < 16; k++) {
      uint32_t left[6], right[6];
      memcpy(left, all[4 * g + k % 8 / 2], sizeof left);
      memcpy(right, all[4 * column + k % 8 / 2], sizeof right);
      uint32_t a_bits = left[i / 2 + 2 * (k / 8)], b_bits = right[4 + k / 8];
      x[k] = k % 2 ? high(a_bits) : low(a_bits);
      y[k] = k % 2 ? high(b_bits) : low(b_bits);
    }
    d[i] = bny_emulated_sum(d[i], x, y);
  }
}
BNY_DEVICE void bny_mma_bf16(float *d, const uint32_t *a, const uint32_t *b) {
  bny_emulated_mma(d, a, b, bny_bf16_low, bny_bf16_high);
}
BNY_DEVICE void bny_mma_f16(float *d, const uint32_t *a, const uint32_t *b) {
  bny_emulated_mma(d, a, b, bny_f16_low, bny_f16_high);
}

/* Loads matrices. Lanes 8i .. 8i + 7 give the row addresses of matrix i. Lane 4 g + t gets elements 2t, 2t + 1 of row g
 * (or column g). */
BNY_DEVICE void bny_emulated_load_matrix(uint32_t *r, const void *row, bool transposed) {
  bny_emulated_aligned(row, 16);
  const unsigned char(*all)[BNY_EMULATED_EXCHANGE_BYTES] = bny_emulated_exchange(BNY_EMULATED_MATRIX, &row, sizeof row);
  uint32_t g = bny_lane() / 4, t = bny_lane() % 4;
  for (uint32_t i = 0; i < 4; i++) {
    uint16_t pair[2];
    for (uint32_t j = 0; j < 2; j++) {
      const unsigned char *address;
      memcpy(&address, all[8 * i + (transposed ? 2 * t + j : g)], sizeof address);
      memcpy(&pair[j], address + 2 * (transposed ? g : 2 * t + j), 2);
    }
    r[i] = pair[0] | (uint32_t)pair[1] << 16;
  }
}
BNY_DEVICE void bny_load_matrix_4(uint32_t *r, const void *row) { bny_emulated_load_matrix(r, row, false); }
BNY_DEVICE void bny_load_matrix_4_transposed(uint32_t *r, const void *row) { bny_emulated_load_matrix(r, row, true); }

/* ---- asynchronous copies, clusters, dependent launches ----------------------------------------------------------- */

BNY_DEVICE void bny_copy_async_16(void *shared, const void *global, bool valid) {
  static const bny_quad zero = {};
  bny_emulated_aligned(shared, 16);
  if (valid) bny_emulated_aligned(global, 16);
  bny_emulated_copy(shared, valid ? global : &zero, 16);
}
BNY_DEVICE void bny_copy_async_commit(void) { bny_emulated_commit(); }
template <int groups> BNY_DEVICE void bny_copy_async_wait(void) { bny_emulated_wait(groups); }

BNY_DEVICE void bny_fence_async(void) {}

BNY_DEVICE uint32_t bny_cluster_rank(void) { return bny_emulated().cluster_rank; }
BNY_DEVICE uint32_t bny_cluster_blocks(void) { return bny_emulated().cluster_blocks; }
BNY_DEVICE void bny_cluster_sync(void) { bny_emulated_cluster_barrier(); }
template <typename T> BNY_DEVICE T *bny_cluster_address(T *shared, uint32_t rank) {
  return static_cast<T *>(bny_emulated_cluster_address(shared, rank));
}
BNY_DEVICE void bny_grid_wait(void) { bny_emulated_grid_wait(); }
BNY_DEVICE void bny_grid_release(void) { bny_emulated_grid_release(); }

#include "tests/emulate/emulate_warpgroup.hh"
