/* SPDX-License-Identifier: Apache-2.0
 * All kernels, for nvcc. */
#include "cuda/combine.cuh"
#include "cuda/decode.cuh"
