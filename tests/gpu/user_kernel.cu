/* SPDX-License-Identifier: Apache-2.0
 * The kernel of tests/user_kernel.cuh as a user would have it built: with the header that is installed, by nvcc. */
#include "banyan_device.cuh"
#include "../user_kernel.cuh"
