/* SPDX-License-Identifier: Apache-2.0
 * The device functions of kernels. Kernels access a device only through them. nvcc compiles device_ptx.h. Tests compile
 * kernels for a CPU: they define BNY_DEVICE_EMULATOR as the name of a header with the same functions.
 *
 * Rules for kernels:
 * - Grids and blocks have one dimension; blocks consist of complete warps.
 * - A warp function (shuffle, vote, sync, matrix) is called by all 32 lanes, a block function by all threads.
 * - Memory that other threads read while a kernel runs is accessed only through the functions below. Plain accesses are
 *   ordered for others only by the sync functions, and by fences and release before / acquire after.
 * - A loop that waits calls bny_pause() in each round, and checks bny_clock_ns() from time to time.
 *
 * Identity
 *   bny_thread(), bny_block_threads(), bny_block(), bny_grid_blocks(), bny_lane(), bny_warp() (within its block)
 * Warp
 *   bny_shuffle(v, lane), bny_shuffle_xor(v, mask): v of the other lane. 4- or 8-byte types
 *   bny_lowest_bit(bits): its number; -1 if bits is 0
 *   bny_warp_any(p), bny_warp_all(p), bny_warp_ballot(p), bny_warp_sync()
 *   bny_warp_max_32(v): the largest of all lanes
 * Block
 *   bny_block_sync(); bny_named_sync(id, threads), bny_named_arrive(id, threads): barriers 1..15 for a multiple of 32
 *   BNY_SHARED(type, name), BNY_SHARED_ARRAY(type, name, count): shared memory; bny_dynamic_shared(): the launch's;
 *   bny_shared_align(p, bytes): the first address from p on that is a multiple of a power of two
 * Ordered memory; scope gpu: threads of this device, sys: of all devices and the host
 *   bny_load_{relaxed,acquire}_{gpu,sys}_{32,64}(p), bny_store_{relaxed,release}_{gpu,sys}_{32,64}(p, v)
 *   bny_store_relaxed_sys_128(p, quad): PTX .b128, never seen torn; 16-byte aligned
 *   bny_store_line(p, quad): 8 neighbouring lanes store one 128-byte line. It arrives in one piece if the link keeps
 *     lines intact, which PTX does not promise. A warp function; NULL in lanes of lines that are left out
 *   bny_poll_{128,line}(p, wanted, &quad): the loads for these, relaxed, of scope sys. Unwanted results stay unchanged.
 *     They do not branch, so that several are in flight: a branch would make each wait for the one before. A line may
 *     be seen torn, but a later load returns data as new as any part of it
 *   bny_fence_sys(): fence.acq_rel
 *   bny_fence_alias(): fence.proxy.alias, between accesses to one memory by different addresses of a device. It orders
 *     them together with a release and an acquire, and lies on the way from one access to the other
 *   bny_add_relaxed_gpu_64(p, v): fetch and add; bny_add_gpu_32(p, v): the same, acq_rel;
 *   bny_compare_swap_sys_64(p, expected, v): acq_rel, returns the old value
 * Plain memory in 16 bytes
 *   bny_load_quad(p), bny_load_quad_once(p) (data that is read only once), bny_store_quad(p, quad)
 * Plain memory in 2 or 4 bytes
 *   bny_load_plain(p), bny_store_plain(p, v)
 * Time
 *   bny_clock_ns(): monotonic; bny_pause()
 * 16-bit values
 *   bny_pack_bf16(low, high), bny_pack_f16(low, high): two floats rounded to nearest even into 32 bits; a finite value
 *   beyond f16 becomes infinite. bny_bf16_low/_high(bits), bny_f16_low/_high(bits)
 *   bny_e4m3_f16(bits): the lower two bytes, which are E4M3, as two f16 (if BNY_CONVERTS_E4M3 is defined)
 * Arithmetic
 *   bny_mul(a, b), bny_add(a, b): never contracted; bny_exp2_fast(x): approximate
 * Matrix: fragments as in the PTX ISA for m16n8k16, row-major A, column-major B
 *   bny_mma_bf16(d, a, b), bny_mma_f16(d, a, b): d[4] += a[4] * b[2], f32 accumulation
 *   bny_load_matrix_4(r, row), bny_load_matrix_4_transposed(r, row): ldmatrix .x4; row: shared memory, 16-byte aligned
 * Matrix by a warpgroup: four neighbouring warps, the first a multiple of four (BNY_WARPGROUPS is defined: sm_90a)
 *   Operands in shared memory lie in panels of rows of 128 bytes. A panel begins at a multiple of 1024 bytes, and chunk
 *   c of 16 bytes of row r lies at c ^ (r & 7). d: warp w has rows 16 w .. + 15, four values per eight columns as for
 *   bny_mma. Until the wait, d, a and panels must not be touched
 *   bny_group_operand_of(p, apart): operand at p, in the first row of a panel or of a group of eight rows; the next
 *   panel is `apart` bytes further; bny_group_operand_add(o, bytes)
 *   bny_group_logits_{bf16,f16}(d, a, b, add): d[32] = or += a b^T, 64 rows and 16 elements of each operand
 *   bny_group_values_{bf16,f16}(d, a, b): d[128] += a b; a[4]: fragment of 16 rows as for bny_mma; b: 16 rows of four
 *   panels
 *   bny_group_begin(): registers written before may be operands; bny_group_commit(); bny_group_wait<groups>()
 *   bny_fence_async(): between plain accesses or 16-byte copies to shared memory and its use as an operand
 * Asynchronous copies of 16 bytes to shared memory
 *   bny_copy_async_16(to, from, valid): zeroes if not valid; bny_copy_async_commit(); bny_copy_async_wait<groups>()
 * Clusters (BNY_ARCH >= 900)
 *   bny_cluster_rank(), bny_cluster_blocks(), bny_cluster_sync(), bny_cluster_address(p, rank): p in block `rank`
 * Programmatic dependent launch (no effect below sm_90, or if a launch does not ask for it)
 *   bny_grid_wait(): all earlier grids of the stream are done and their writes visible
 *   bny_grid_release(): the next grid of the stream may be launched
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* 16 bytes. */
struct alignas(16) bny_quad {
  uint32_t word[4];
};

enum { BNY_WARP_LANES = 32 };

#ifdef __CUDACC__
#include "cuda/device_ptx.h"
#elif defined(BNY_DEVICE_EMULATOR)
#include BNY_DEVICE_EMULATOR
#else
#error "this header is for a CUDA compiler"
#endif

/* ---- built on the above ------------------------------------------------------------------------------------------ */

BNY_DEVICE float bny_warp_max(float value) {
  for (int mask = 16; mask > 0; mask /= 2) {
    float other = bny_shuffle_xor(value, mask);
    value = value > other ? value : other;
  }
  return value;
}

BNY_DEVICE float bny_warp_sum(float value) {
  for (int mask = 16; mask > 0; mask /= 2) value = bny_add(value, bny_shuffle_xor(value, mask));
  return value;
}
