/* SPDX-License-Identifier: Apache-2.0
 * The kernels of calibrate.cuh, by nvcc. */
#include "tests/gpu/calibrate.cuh"
