/* SPDX-License-Identifier: Apache-2.0
 * The decode kernels: split-KV attention of each sequence's query tokens. decode_shape.h defines how work is divided.
 * decode_warp.cuh, decode_latent.cuh and decode_wide.cuh compute splits, and decode_merge.cuh merges them. Lean kernels
 * serve one query token per sequence that sees all keys. decode_general.cuh has the additional parts of general
 * kernels. decode_output.cuh writes the result to the caller's memory. decode_combine.cuh can push it to
 * other ranks instead. Only the loops over keys exist for bf16 and f16 each: all else is the larger part of a kernel.
 * decode_kernels.def lists the kernels. */
#pragma once

#include "cuda/decode_combine.cuh"
#include "cuda/decode_latent.cuh"
#include "cuda/decode_warp.cuh"
#ifdef BNY_WARPGROUPS
#include "cuda/decode_wide.cuh"
#endif

/* The rows of K and V by variant. An architecture's build omits kernels that none of its devices would use. */
#define BNY_DECODE_IS_lean BNY_ROWS_lean
#define BNY_DECODE_IS_wgmma BNY_ROWS_lean
#define BNY_DECODE_IS_general BNY_ROWS_general
#define BNY_DECODE_IS_e4m3 BNY_ROWS_e4m3
#define BNY_DECODE_IS_flashmla BNY_ROWS_flashmla
#define BNY_DECODE_KEEP(...) __VA_ARGS__
#define BNY_DECODE_DROP(...)
#define BNY_DECODE_IF_warp BNY_DECODE_KEEP
#define BNY_DECODE_IF_latent BNY_DECODE_KEEP
#ifdef BNY_WARPGROUPS
#define BNY_DECODE_IF_wide BNY_DECODE_KEEP
#else
#define BNY_DECODE_IF_wide BNY_DECODE_DROP
#endif

#define BNY_DECODE_KERNEL(form, label, size, variant, shared) \
  BNY_DECODE_IF_##form(BNY_DECODE_ENTRY(bny_decode_##label##_##variant, form, shared, size, BNY_DECODE_IS_##variant))
#define BNY_DECODE_ENTRY(name, form, shared, ...)                                                \
  using name##_shape = bny_##form##_shape<__VA_ARGS__>;                                          \
  static_assert(bny_##form##_memory<name##_shape>::BYTES == shared, "as the list says");         \
  BNY_KERNEL BNY_LAUNCH_BOUNDS((BNY_WARP_LANES * name##_shape::WARPS), (name##_shape::RESIDENT)) \
      name(BNY_PARAMETER(bny_decode_call, call), BNY_PARAMETER(bny_device_combine, combine)) {   \
    BNY_SHARED_ARRAY(bny_fused_state, states, name##_shape::WARPS);                              \
    bny_decode_epilogue epilogue = {call.out, combine, states};                                  \
    bny_decode_##form<name##_shape>(call, epilogue);                                             \
  }
#include "cuda/decode_kernels.def"
#undef BNY_DECODE_KERNEL
