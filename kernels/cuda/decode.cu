/* SPDX-License-Identifier: Apache-2.0
 *
 * The decode kernels as they are launched: decode_kernels.def, with the epilogue that writes to memory. */
#include "cuda/decode.cuh"

#define BNY_DECODE_WARPS_KERNEL(element, head_dim, copy, is_bulk)                                                \
  BNY_KERNEL BNY_LAUNCH_BOUNDS(32 * BNY_DECODE_WARPS, head_dim <= 128 ? 3 : head_dim <= 192 ? 2 : 1)             \
  bny_decode_##element##_##head_dim##_##copy(BNY_PARAMETER(bny_decode_call, call)) {                             \
    bny_decode_output output = {call.out};                                                                       \
    bny_decode_by_warps<bny_##element, bny_warp_shape<head_dim, is_bulk>>(call, output);                         \
  }
#include "cuda/decode_kernels.def"
#undef BNY_DECODE_WARPS_KERNEL
