/* SPDX-License-Identifier: Apache-2.0
 *
 * The decode kernels, for nvcc. */
#include "cuda/decode.cuh"
