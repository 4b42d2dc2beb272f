/* SPDX-License-Identifier: Apache-2.0
 *
 * The decode kernels: split-KV attention of the query tokens of each sequence. decode_shape.h defines how work is
 * divided. decode_warp.cuh, decode_latent.cuh and decode_wide.cuh compute it, and decode_merge.cuh merges the splits.
 * Lean kernels serve one query token that sees all keys. decode_general.cuh has the parts of general ones.
 * decode_output.cuh writes the result to the caller's memory, or decode_combine.cuh combines it with that of other
 * ranks. decode_kernels.def lists the kernels. */
#ifndef BNY_CUDA_DECODE_CUH
#define BNY_CUDA_DECODE_CUH

#include "cuda/decode_combine.cuh"
#include "cuda/decode_latent.cuh"
#include "cuda/decode_warp.cuh"
#ifdef BNY_WARPGROUPS
#include "cuda/decode_wide.cuh"
#endif

/* Kernels that no device of an architecture would use are not built for it. */
#if BNY_ARCH >= 900
#define BNY_DECODE_IF_bulk(...) __VA_ARGS__
#else
#define BNY_DECODE_IF_bulk(...)
#endif
#if BNY_ARCH < 1000
#define BNY_DECODE_IF_async(...) __VA_ARGS__
#else
#define BNY_DECODE_IF_async(...)
#endif

#define BNY_DECODE_WARPS_KERNEL(element, head_dim, copy, is_bulk, shared) \
  BNY_DECODE_IF_##copy(BNY_DECODE_WARPS_ENTRY(element, head_dim, copy, is_bulk, shared))
#define BNY_DECODE_WARPS_ENTRY(element, head_dim, copy, is_bulk, shared)                                        \
  static_assert(bny_warp_memory<bny_warp_shape<head_dim, is_bulk>>::BYTES == shared, "as the list says");       \
  BNY_KERNEL BNY_LAUNCH_BOUNDS(BNY_WARP_LANES *BNY_DECODE_WARPS, (bny_warp_shape<head_dim, is_bulk>::RESIDENT)) \
      bny_decode_##element##_##head_dim##_##copy(BNY_PARAMETER(bny_decode_call, call),                          \
                                                 BNY_PARAMETER(bny_device_combine, combine)) {                  \
    BNY_SHARED_ARRAY(bny_fused_state, states, BNY_DECODE_WARPS);                                                \
    bny_decode_epilogue epilogue = {call.out, combine, states};                                                 \
    bny_decode_by_warps<bny_##element, bny_warp_shape<head_dim, is_bulk>>(call, epilogue);                      \
  }
#define BNY_DECODE_LATENT_KERNEL(element, rows, copy, is_bulk, shared) \
  BNY_DECODE_IF_##copy(BNY_DECODE_LATENT_ENTRY(element, rows, copy, is_bulk, shared))
#define BNY_DECODE_LATENT_ENTRY(element, rows, copy, is_bulk, shared)                                          \
  static_assert(bny_latent_memory<bny_latent_shape<rows / 16, is_bulk>>::BYTES == shared, "as the list says"); \
  BNY_KERNEL BNY_LAUNCH_BOUNDS((bny_latent_shape<rows / 16, is_bulk>::THREADS),                                \
                               (bny_latent_shape<rows / 16, is_bulk>::RESIDENT))                               \
      bny_decode_##element##_latent##rows##_##copy(BNY_PARAMETER(bny_decode_call, call),                       \
                                                   BNY_PARAMETER(bny_device_combine, combine)) {               \
    BNY_SHARED_ARRAY(bny_fused_state, states, (bny_latent_shape<rows / 16, is_bulk>::WARPS));                  \
    bny_decode_epilogue epilogue = {call.out, combine, states};                                                \
    bny_decode_latent<bny_##element, bny_latent_shape<rows / 16, is_bulk>>(call, epilogue);                    \
  }
#ifdef BNY_WARPGROUPS
#define BNY_DECODE_WIDE_KERNEL(element, rows, shared)                                            \
  static_assert(BNY_WIDE_BYTES == shared && BNY_WIDE_ROWS == rows, "as the list says");          \
  BNY_KERNEL BNY_LAUNCH_BOUNDS(BNY_WIDE_THREADS, 1) bny_decode_##element##_latent##rows##_wgmma( \
      BNY_PARAMETER(bny_decode_call, call), BNY_PARAMETER(bny_device_combine, combine)) {        \
    BNY_SHARED_ARRAY(bny_fused_state, states, BNY_WIDE_WARPS);                                   \
    bny_decode_epilogue epilogue = {call.out, combine, states};                                  \
    bny_decode_wide<bny_##element>(call, epilogue);                                              \
  }
#else
#define BNY_DECODE_WIDE_KERNEL(element, rows, shared)
#endif
#define BNY_DECODE_GENERAL_WARPS_KERNEL(element, head_dim, kv, shared)                                                 \
  static_assert(bny_warp_memory<bny_warp_shape<head_dim, false, BNY_ROWS_##kv>>::BYTES == shared, "as the list says"); \
  BNY_KERNEL BNY_LAUNCH_BOUNDS(BNY_WARP_LANES *BNY_DECODE_WARPS,                                                       \
                               (bny_warp_shape<head_dim, false, BNY_ROWS_##kv>::RESIDENT))                             \
      bny_decode_##element##_##head_dim##_##kv(BNY_PARAMETER(bny_decode_call, call),                                   \
                                               BNY_PARAMETER(bny_device_combine, combine)) {                           \
    BNY_SHARED_ARRAY(bny_fused_state, states, BNY_DECODE_WARPS);                                                       \
    bny_decode_epilogue epilogue = {call.out, combine, states};                                                        \
    bny_decode_by_warps<bny_##element, bny_warp_shape<head_dim, false, BNY_ROWS_##kv>>(call, epilogue);                \
  }
#define BNY_DECODE_GENERAL_LATENT_KERNEL(element, rows, kv, shared)                                        \
  static_assert(bny_latent_memory<bny_latent_shape<rows / 16, false, BNY_ROWS_##kv>>::BYTES == shared,     \
                "as the list says");                                                                       \
  BNY_KERNEL BNY_LAUNCH_BOUNDS((bny_latent_shape<rows / 16, false, BNY_ROWS_##kv>::THREADS),               \
                               (bny_latent_shape<rows / 16, false, BNY_ROWS_##kv>::RESIDENT))              \
      bny_decode_##element##_latent##rows##_##kv(BNY_PARAMETER(bny_decode_call, call),                     \
                                                 BNY_PARAMETER(bny_device_combine, combine)) {             \
    BNY_SHARED_ARRAY(bny_fused_state, states, (bny_latent_shape<rows / 16, false, BNY_ROWS_##kv>::WARPS)); \
    bny_decode_epilogue epilogue = {call.out, combine, states};                                            \
    bny_decode_latent<bny_##element, bny_latent_shape<rows / 16, false, BNY_ROWS_##kv>>(call, epilogue);   \
  }
#include "cuda/decode_kernels.def"
#undef BNY_DECODE_WARPS_KERNEL
#undef BNY_DECODE_LATENT_KERNEL
#undef BNY_DECODE_WIDE_KERNEL
#undef BNY_DECODE_GENERAL_WARPS_KERNEL
#undef BNY_DECODE_GENERAL_LATENT_KERNEL

#endif
