/* SPDX-License-Identifier: Apache-2.0
 * The kernels of calibrate.cuh, compiled by nvcc. */
#include "tests/gpu/calibrate.cuh"
