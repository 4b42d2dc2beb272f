/* SPDX-License-Identifier: Apache-2.0
 * The kernel of tests/emulate/user_kernel.cuh, compiled as a user would: by nvcc with the installed header. */
#include "banyan_device.cuh"
#include "tests/emulate/user_kernel.cuh"
