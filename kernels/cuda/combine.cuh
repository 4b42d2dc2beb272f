/* SPDX-License-Identifier: Apache-2.0
 *
 * The combine kernels' entries. */
#ifndef BNY_CUDA_COMBINE_CUH
#define BNY_CUDA_COMBINE_CUH

#include "cuda/interpret.cuh"
#include "cuda/interpret_bytes.cuh"
#include "cuda/interpret_heads.cuh"
#include "cuda/oneshot.cuh"

#define BNY_CUDA_ONESHOT(name, protocol, bits, wide) BNY_ONESHOT_KERNEL(name, protocol, bits, wide)
#define BNY_CUDA_INTERPRET(name, protocol, bits) BNY_INTERPRET_KERNEL(name, protocol, bits)
#define BNY_CUDA_BYTES(name, protocol) BNY_BYTES_KERNEL(name, protocol)
#define BNY_CUDA_HEADS(name, protocol) BNY_HEADS_KERNEL(name, protocol)
#include "cuda/kernels.def"
#undef BNY_CUDA_ONESHOT
#undef BNY_CUDA_INTERPRET
#undef BNY_CUDA_BYTES
#undef BNY_CUDA_HEADS

#endif
