/* SPDX-License-Identifier: Apache-2.0
 * The kernels of words.cuh, compiled by nvcc. */
#include "tests/gpu/words.cuh"
