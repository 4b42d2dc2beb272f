/* SPDX-License-Identifier: Apache-2.0
 * The parameters of the kernel of selections, plain data for host and device. */
#pragma once

#include "cuda/program.h"
#include "select.h"

/* Lists of more pairs are sorted by index in the arena. With this many, a block takes 64 KiB of shared memory. */
enum { BNY_SELECTION_SHARED_MOST = 4096 };

/* A selection in one step, by BNY_PROTOCOL_SIMPLE: every list goes to all ranks. A unit is a list of value_dim pairs.
 * In an inbox, list (token, head) of rank r has index (r * tokens + token - token0) * heads + head - head0. Behind the
 * lists of all ranks there is room for BNY_SELECTION_ROOMS more of each row, in which a rank merges. It is a kernel
 * parameter. */
enum { BNY_SELECTION_ROOMS = 2 };
typedef struct bny_selection {
  bny_unit_shape shape;
  int32_t all_heads; /* lists of a token in the caller's memory */
  int32_t pad;
  bny_lists lists; /* the caller's memory of the whole call */
} bny_selection;
