/* SPDX-License-Identifier: Apache-2.0
 * The kernel of tests/emulate/user_kernel.cuh as a user would have it built: with the header that is installed, by
 * nvcc. */
#include "banyan_device.cuh"
#include "tests/emulate/user_kernel.cuh"
