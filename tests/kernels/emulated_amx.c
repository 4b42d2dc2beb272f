/* SPDX-License-Identifier: Apache-2.0
 * The kernels of AMX, whose instructions are emulated. */
#include "tests/kernels/emulated_tiles.h"

_Thread_local emulated_tiles emulated;

#include "cpu/attention_amx.c"
