/* SPDX-License-Identifier: Apache-2.0
 * Rows of a sum, and the columns that each has. */
#pragma once

#include "plan/call.h"

/* Sets the rows of a sum of `dim` columns: one for each column, or on the wire of e4m3 for each block of 32. With
 * BANYAN_SCATTER_HEADS each rank's columns have blocks of their own, and all ranks as many, so some may be empty. */
void bny_call_set_columns(bny_call *call, int32_t dim, int32_t nranks);

/* Some rows of a sum, and their columns. */
typedef struct bny_columns {
  int32_t rows, first, count;
} bny_columns;

/* Returns the columns of as many rows from `head` on, at most `heads`, as have neighbouring ones. */
bny_columns bny_call_columns(const bny_call *call, int32_t nranks, int32_t head, int32_t heads);
