/* SPDX-License-Identifier: Apache-2.0
 * The entry points of the combine kernels. */
#pragma once

#include "cuda/interpret.cuh"
#include "cuda/interpret_bytes.cuh"
#include "cuda/oneshot.cuh"
#include "cuda/select.cuh"

#define BNY_CUDA_KERNEL(name, form, protocol, bits, how) BNY_##form##_KERNEL(name, protocol, bits, how)
#include "cuda/kernels.def"
#undef BNY_CUDA_KERNEL
