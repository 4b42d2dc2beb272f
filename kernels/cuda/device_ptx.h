/* SPDX-License-Identifier: Apache-2.0
 * The functions of device.h as CUDA intrinsics and inline PTX (ISA 8.4 and later, sm_80 and later). */
#pragma once

#define BNY_DEVICE static __device__ __forceinline__
/* A rarely called function that is not inlined. */
#define BNY_DEVICE_COLD static __device__ __noinline__
#define BNY_DEVICE_METHOD __device__ __forceinline__
#define BNY_KERNEL extern "C" __global__ void
#define BNY_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define BNY_UNROLL _Pragma("unroll")
#define BNY_ROLLED _Pragma("unroll 1")
/* A kernel parameter that is read in place, even by a variable index. */
#define BNY_PARAMETER(type, name) const __grid_constant__ type name
#define BNY_SHARED(type, name) __shared__ type name
#define BNY_SHARED_ARRAY(type, name, count) __shared__ alignas(16) type name[count]
#ifdef __CUDA_ARCH__
#define BNY_ARCH __CUDA_ARCH__
#else
#define BNY_ARCH 900
#endif

/* ---- identity ---------------------------------------------------------------------------------------------------- */

BNY_DEVICE uint32_t bny_thread(void) { return threadIdx.x; }
BNY_DEVICE uint32_t bny_block_threads(void) { return blockDim.x; }
BNY_DEVICE uint32_t bny_block(void) { return blockIdx.x; }
BNY_DEVICE uint32_t bny_grid_blocks(void) { return gridDim.x; }
BNY_DEVICE uint32_t bny_lane(void) { return threadIdx.x % BNY_WARP_LANES; }
BNY_DEVICE uint32_t bny_warp(void) { return threadIdx.x / BNY_WARP_LANES; }

/* Returns dynamic shared memory, aligned to a line. The compiler rounds static shared memory up to this alignment. */
BNY_DEVICE unsigned char *bny_dynamic_shared(void) {
  extern __shared__ __align__(128) unsigned char bny_dynamic_memory[];
  return bny_dynamic_memory;
}

BNY_DEVICE uint32_t bny_shared_address(const void *shared) { return (uint32_t)__cvta_generic_to_shared(shared); }
BNY_DEVICE unsigned char *bny_shared_align(unsigned char *shared, uint32_t bytes) {
  return shared + (0u - bny_shared_address(shared)) % bytes;
}
BNY_DEVICE size_t bny_global_address(const void *global) { return __cvta_generic_to_global(global); }

/* ---- warp and block ---------------------------------------------------------------------------------------------- */

template <typename T> BNY_DEVICE T bny_shuffle(T value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
template <typename T> BNY_DEVICE T bny_shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
BNY_DEVICE bool bny_warp_any(bool p) { return __any_sync(0xffffffffu, p) != 0; }
BNY_DEVICE bool bny_warp_all(bool p) { return __all_sync(0xffffffffu, p) != 0; }
BNY_DEVICE uint32_t bny_warp_ballot(bool p) { return __ballot_sync(0xffffffffu, p); }
BNY_DEVICE uint32_t bny_warp_max_32(uint32_t value) {
#if BNY_ARCH >= 800
  return __reduce_max_sync(0xffffffffu, value);
#else
  BNY_UNROLL for (int mask = 16; mask > 0; mask /= 2) {
    uint32_t other = bny_shuffle_xor(value, mask);
    value = value > other ? value : other;
  }
  return value;
#endif
}
BNY_DEVICE int bny_lowest_bit(uint32_t bits) { return __ffs((int)bits) - 1; }
BNY_DEVICE void bny_warp_sync(void) { __syncwarp(); }
BNY_DEVICE void bny_block_sync(void) { __syncthreads(); }

BNY_DEVICE void bny_named_sync(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
BNY_DEVICE void bny_named_arrive(int id, int threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- ordered memory ---------------------------------------------------------------------------------------------- */

#define BNY_PTX_LOAD(order, scope, bits, type, letter)                    \
  BNY_DEVICE type bny_load_##order##_##scope##_##bits(const type *from) { \
    type value;                                                           \
    asm volatile("ld." #order "." #scope ".global.u" #bits " %0, [%1];"   \
                 : "=" letter(value)                                      \
                 : "l"(bny_global_address(from))                          \
                 : "memory");                                             \
    return value;                                                         \
  }
#define BNY_PTX_STORE(order, scope, bits, type, letter)                                                              \
  BNY_DEVICE void bny_store_##order##_##scope##_##bits(type *to, type value) {                                       \
    asm volatile("st." #order "." #scope ".global.u" #bits " [%0], %1;" ::"l"(bny_global_address(to)), letter(value) \
                 : "memory");                                                                                        \
  }
BNY_PTX_LOAD(relaxed, gpu, 32, uint32_t, "r")
BNY_PTX_LOAD(relaxed, gpu, 64, uint64_t, "l")
BNY_PTX_LOAD(relaxed, sys, 32, uint32_t, "r")
BNY_PTX_LOAD(relaxed, sys, 64, uint64_t, "l")
BNY_PTX_LOAD(acquire, gpu, 32, uint32_t, "r")
BNY_PTX_LOAD(acquire, gpu, 64, uint64_t, "l")
BNY_PTX_LOAD(acquire, sys, 32, uint32_t, "r")
BNY_PTX_LOAD(acquire, sys, 64, uint64_t, "l")
BNY_PTX_STORE(relaxed, gpu, 32, uint32_t, "r")
BNY_PTX_STORE(relaxed, gpu, 64, uint64_t, "l")
BNY_PTX_STORE(relaxed, sys, 32, uint32_t, "r")
BNY_PTX_STORE(relaxed, sys, 64, uint64_t, "l")
BNY_PTX_STORE(release, gpu, 32, uint32_t, "r")
BNY_PTX_STORE(release, gpu, 64, uint64_t, "l")
BNY_PTX_STORE(release, sys, 32, uint32_t, "r")
BNY_PTX_STORE(release, sys, 64, uint64_t, "l")
#undef BNY_PTX_LOAD
#undef BNY_PTX_STORE

BNY_DEVICE bny_quad bny_quad_of(uint64_t low, uint64_t high) {
  return {{(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)}};
}

BNY_DEVICE void bny_poll_128(const void *from, bool wanted, bny_quad *quad) {
  uint64_t low = quad->word[0] | (uint64_t)quad->word[1] << 32, high = quad->word[2] | (uint64_t)quad->word[3] << 32;
  asm volatile("{ .reg .pred p; .reg .b128 q; setp.ne.u32 p, %3, 0; mov.b128 q, {%0, %1};"
               " @p ld.relaxed.sys.global.b128 q, [%2]; mov.b128 {%0, %1}, q; }"
               : "+l"(low), "+l"(high)
               : "l"(bny_global_address(from)), "r"((uint32_t)wanted)
               : "memory");
  *quad = bny_quad_of(low, high);
}

BNY_DEVICE void bny_store_relaxed_sys_128(void *to, bny_quad value) {
  uint64_t low = value.word[0] | (uint64_t)value.word[1] << 32, high = value.word[2] | (uint64_t)value.word[3] << 32;
  asm volatile(
      "{ .reg .b128 q; mov.b128 q, {%1, %2}; st.relaxed.sys.global.b128 [%0], q; }" ::"l"(bny_global_address(to)),
      "l"(low), "l"(high)
      : "memory");
}

/* Loads a line. The warp makes one request for complete lines. */
BNY_DEVICE void bny_poll_line(const void *from, bool wanted, bny_quad *quad) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
               : "+r"(quad->word[0]), "+r"(quad->word[1]), "+r"(quad->word[2]), "+r"(quad->word[3])
               : "l"(bny_global_address(from)), "r"((uint32_t)wanted)
               : "memory");
}

BNY_DEVICE void bny_store_line(void *to, bny_quad value) {
  if (!to) return;
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(bny_global_address(to)), "r"(value.word[0]),
               "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3])
               : "memory");
}

BNY_DEVICE void bny_fence_alias(void) { asm volatile("fence.proxy.alias;" ::: "memory"); }
BNY_DEVICE void bny_fence_sys(void) { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

BNY_DEVICE uint64_t bny_add_relaxed_gpu_64(uint64_t *at, uint64_t value) {
  uint64_t old;
  asm volatile("atom.add.relaxed.gpu.global.u64 %0, [%1], %2;"
               : "=l"(old)
               : "l"(bny_global_address(at)), "l"(value)
               : "memory");
  return old;
}

BNY_DEVICE uint32_t bny_add_gpu_32(uint32_t *at, uint32_t value) {
  uint32_t old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(bny_global_address(at)), "r"(value)
               : "memory");
  return old;
}

BNY_DEVICE uint64_t bny_compare_swap_sys_64(uint64_t *at, uint64_t expected, uint64_t value) {
  uint64_t old;
  asm volatile("atom.cas.acq_rel.sys.global.b64 %0, [%1], %2, %3;"
               : "=l"(old)
               : "l"(bny_global_address(at)), "l"(expected), "l"(value)
               : "memory");
  return old;
}

/* ---- plain memory ------------------------------------------------------------------------------------------------ */

BNY_DEVICE bny_quad bny_load_quad(const void *from) { return *(const bny_quad *)from; }
BNY_DEVICE void bny_store_quad(void *to, bny_quad value) { *(bny_quad *)to = value; }
template <class Value> BNY_DEVICE Value bny_load_plain(const Value *from) { return *from; }
template <class Value> BNY_DEVICE void bny_store_plain(Value *to, Value value) { *to = value; }

BNY_DEVICE bny_quad bny_load_quad_once(const void *from) {
  bny_quad value;
  /* A .nc load would be wrong, because an early launch begins before its input has been written. */
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
               : "l"(bny_global_address(from)));
  return value;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

BNY_DEVICE uint64_t bny_clock_ns(void) {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

/* Polls of memory take long enough by themselves. */
BNY_DEVICE void bny_pause(void) {}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

BNY_DEVICE uint32_t bny_pack_bf16(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
BNY_DEVICE uint32_t bny_pack_f16(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
BNY_DEVICE float bny_bf16_low(uint32_t bits) { return __uint_as_float(bits << 16); }
BNY_DEVICE float bny_bf16_high(uint32_t bits) { return __uint_as_float(bits & 0xffff0000u); }
BNY_DEVICE float bny_f16_low(uint32_t bits) {
  float value;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(bits));
  return value;
}
BNY_DEVICE float bny_f16_high(uint32_t bits) {
  float value;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(bits));
  return value;
}
#if BNY_ARCH >= 890
#define BNY_CONVERTS_E4M3
BNY_DEVICE uint32_t bny_e4m3_f16(uint32_t bits) {
  uint32_t pair;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l; }" : "=r"(pair) : "r"(bits));
  return pair;
}
#endif
BNY_DEVICE float bny_mul(float a, float b) { return __fmul_rn(a, b); }
BNY_DEVICE float bny_add(float a, float b) { return __fadd_rn(a, b); }
BNY_DEVICE float bny_exp2_fast(float x) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}

/* ---- matrix ------------------------------------------------------------------------------------------------------ */

#define BNY_PTX_MMA(type)                                                          \
  BNY_DEVICE void bny_mma_##type(float *d, const uint32_t *a, const uint32_t *b) { \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type                   \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"     \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                           \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));       \
  }
BNY_PTX_MMA(bf16)
BNY_PTX_MMA(f16)
#undef BNY_PTX_MMA

BNY_DEVICE void bny_load_matrix_4(uint32_t *r, const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(bny_shared_address(row))
               : "memory");
}
BNY_DEVICE void bny_load_matrix_4_transposed(uint32_t *r, const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(bny_shared_address(row))
               : "memory");
}

/* ---- asynchronous copies ----------------------------------------------------------------------------------------- */

BNY_DEVICE void bny_copy_async_16(void *shared, const void *global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(bny_shared_address(shared)),
               "l"(bny_global_address(global)), "r"(valid ? 16 : 0)
               : "memory");
}
BNY_DEVICE void bny_copy_async_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int groups> BNY_DEVICE void bny_copy_async_wait(void) {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

#if BNY_ARCH >= 900

BNY_DEVICE void bny_fence_async(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

BNY_DEVICE uint32_t bny_cluster_rank(void) {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
BNY_DEVICE uint32_t bny_cluster_blocks(void) {
  uint32_t blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
BNY_DEVICE void bny_cluster_sync(void) {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
template <typename T> BNY_DEVICE T *bny_cluster_address(T *shared, uint32_t rank) {
  uint64_t there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"((uint64_t)(uintptr_t)shared), "r"(rank));
  return (T *)(uintptr_t)there;
}
BNY_DEVICE void bny_grid_wait(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }
BNY_DEVICE void bny_grid_release(void) { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

#else

/* Not available on this architecture. Kernels check BNY_ARCH before they call these. */
BNY_DEVICE void bny_fence_async(void) {}
BNY_DEVICE uint32_t bny_cluster_rank(void) { return 0; }
BNY_DEVICE uint32_t bny_cluster_blocks(void) { return 1; }
BNY_DEVICE void bny_cluster_sync(void) { __syncthreads(); }
template <typename T> BNY_DEVICE T *bny_cluster_address(T *shared, uint32_t) { return shared; }
BNY_DEVICE void bny_grid_wait(void) {}
BNY_DEVICE void bny_grid_release(void) {}

#endif

#include "cuda/device_warpgroup.h"
