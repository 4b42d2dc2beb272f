/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels ask of a device, the only place where they meet it: nvcc compiles device_ptx.h, a host compiler
 * (-x c++) emulate.h, so that the same kernel source also runs on a CPU in tests. Both have the same functions.
 *
 * Rules for kernels:
 * - Grids and blocks have one dimension; blocks consist of whole warps.
 * - A function of a warp (shuffle, vote, sync, matrix) is called by all 32 lanes of it, one of a block by all threads.
 * - Memory that other threads read while a kernel runs is accessed through the functions below alone. Plain accesses are
 *   ordered for others only by the sync functions, and by fences and release before / acquire after.
 * - A loop that waits calls bny_pause() in each round, and looks at bny_clock_ns() from time to time.
 *
 * Identity
 *   bny_thread(), bny_block_threads(), bny_block(), bny_grid_blocks(), bny_lane(), bny_warp() (within its block)
 * Warp
 *   bny_shuffle(v, lane), bny_shuffle_xor(v, mask): v of the other lane. 4- or 8-byte types
 *   bny_lowest_bit(bits): its number; -1 of 0
 *   bny_warp_any(p), bny_warp_all(p), bny_warp_ballot(p), bny_warp_sync()
 * Block
 *   bny_block_sync(); bny_named_sync(id, threads), bny_named_arrive(id, threads): barriers 1..15 of a multiple of 32
 *   BNY_SHARED(type, name), BNY_SHARED_ARRAY(type, name, count): shared memory; bny_dynamic_shared(): that of the launch;
 *   bny_shared_align(p, bytes): from p on, the first address that is a multiple of a power of two
 * Ordered memory; scope gpu: threads of this device, sys: of all devices and the host
 *   bny_load_{relaxed,acquire}_{gpu,sys}_{32,64}(p), bny_store_{relaxed,release}_{gpu,sys}_{32,64}(p, v)
 *   bny_store_relaxed_sys_128(p, quad): PTX .b128, never seen torn; 16-byte aligned
 *   bny_store_line(p, quad): 8 neighbouring lanes store one 128-byte line, whole where the link keeps lines whole, which
 *     PTX does not promise. A function of a warp; NULL in lanes of lines that are left out
 *   bny_poll_{64,128,line}(p, wanted, &word or &quad): the loads for these, relaxed, of scope sys; what is not wanted is left
 *     as it was. They do not branch, so that several are under way at once, where a branch would make each wait for the one
 *     before. A line may be seen torn: what a load that follows reads is as new as any part of it
 *   bny_fence_gpu(), bny_fence_sys(): fence.acq_rel
 *   bny_add_relaxed_gpu_64(p, v): fetch and add; bny_add_gpu_32(p, v): the same, acq_rel;
 *   bny_compare_swap_sys_64(p, expected, v): acq_rel, the old value
 * Plain memory in 16 bytes
 *   bny_load_quad(p), bny_load_quad_once(p) (not again), bny_store_quad(p, quad)
 * and in less
 *   bny_load_plain(p), bny_store_plain(p, v): types of 2 or 4 bytes
 * Time
 *   bny_clock_ns(): monotonic; bny_pause()
 * 16-bit values
 *   bny_pack_bf16(low, high), bny_pack_f16(low, high): two floats rounded to nearest even into 32 bits; a finite value
 *   beyond f16 becomes infinite. bny_bf16_low/_high(bits), bny_f16_low/_high(bits)
 * Arithmetic
 *   bny_mul(a, b), bny_add(a, b): never contracted; bny_exp2_fast(x), bny_log2_fast(x): approximate
 * Matrix: fragments as in the PTX ISA for m16n8k16, row-major A, column-major B
 *   bny_mma_bf16(d, a, b), bny_mma_f16(d, a, b): d[4] += a[4] * b[2], f32 accumulation
 *   bny_load_matrix_4(r, row), bny_load_matrix_4_transposed(r, row): ldmatrix .x4; row: shared memory, 16-byte aligned
 * Matrix by a warpgroup, four neighbouring warps from a multiple of four on (BNY_WARPGROUPS is defined: sm_90a). Operands in shared memory lie in panels: rows
 *   of 128 bytes, from a multiple of 1024 bytes on, where 16 bytes c of row r are at c ^ (r & 7). d: warp w has rows 16 w .. + 15,
 *   four values for each eight columns as of bny_mma. Not done before the wait: until then d, a and panels are not touched
 *   bny_group_operand_of(p, apart): from p in the first row of a panel, or of eight, on; the next panel is `apart` bytes further;
 *   bny_group_operand_add(o, bytes)
 *   bny_group_logits_{bf16,f16}(d, a, b, add): d[32] = or += a b^T, 64 rows and 16 elements of each operand
 *   bny_group_values_{bf16,f16}(d, a, b): d[128] += a b; a[4]: fragment of 16 rows as of bny_mma; b: 16 rows of four panels
 *   bny_group_begin(): registers written before may be operands; bny_group_commit(); bny_group_wait<groups>()
 *   bny_fence_async(): plain accesses and copies of 16 bytes to shared memory, before it is an operand
 * Asynchronous copies of 16 bytes to shared memory
 *   bny_copy_async_16(to, from, valid): zeroes if not valid; bny_copy_async_commit(); bny_copy_async_wait<groups>()
 * Bulk copies (BNY_ARCH >= 900)
 *   bny_mbarrier_init(b, arrivals), bny_mbarrier_fence_init(), bny_mbarrier_arrive(b), bny_mbarrier_expect(b, bytes)
 *   (arrives, and waits for so many bytes besides), bny_mbarrier_test(b, parity)
 *   bny_bulk_load(to, from, bytes, b): multiples of 16; counted by b when done. bny_fence_async(): plain accesses to shared
 *   memory, and barriers made in it, before later bulk copies
 * Clusters (BNY_ARCH >= 900)
 *   bny_cluster_rank(), bny_cluster_blocks(), bny_cluster_sync(), bny_cluster_address(p, rank): where `rank` has its p
 * Programmatic dependent launch (nothing below sm_90, and where a launch does not ask for it)
 *   bny_grid_wait(): all earlier grids of the stream are done and their writes visible
 *   bny_grid_release(): the next grid of the stream may be launched
 */
#ifndef BNY_CUDA_DEVICE_H
#define BNY_CUDA_DEVICE_H

#include <stddef.h>
#include <stdint.h>

/* 16 bytes. */
struct alignas(16) bny_quad {
  uint32_t word[4];
};

enum { BNY_WARP_LANES = 32 };

#ifdef __CUDACC__
#include "cuda/device_ptx.h"
#else
#include "cuda/emulate.h"
#endif

/* ---- made of the above -------------------------------------------------------------------------------------------- */

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

/* Until all bytes and arrivals of the phase with this parity are there. For copies within a device, which end: messages
 * of peers are waited for with a deadline. */
BNY_DEVICE void bny_mbarrier_wait(uint64_t *barrier, uint32_t parity) {
  while (!bny_mbarrier_test(barrier, parity)) bny_pause();
}

#endif
