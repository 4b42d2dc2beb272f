/* SPDX-License-Identifier: Apache-2.0
 * Computes which columns a row of a sum has. */
#include "plan/columns.h"

#include "f8.h"
#include "plan/slice.h"

static int32_t column_groups(const bny_call *call, int32_t nranks) {
  return call->scatter == BANYAN_SCATTER_HEADS ? nranks : 1;
}

void bny_call_set_columns(bny_call *call, int32_t dim, int32_t nranks) {
  call->dim = dim;
  call->all_heads = dim;
  call->value_dim = 1;
  if (call->wire != BNY_WIRE_E4M3) return;
  int32_t groups = column_groups(call, nranks), most = dim / groups + (dim % groups != 0);
  call->all_heads = groups * (most / BNY_SCALE_BLOCK + (most % BNY_SCALE_BLOCK != 0));
  call->value_dim = BNY_SCALE_BLOCK;
}

bny_columns bny_call_columns(const bny_call *call, int32_t nranks, int32_t head, int32_t heads) {
  if (call->wire != BNY_WIRE_E4M3 || call->all_heads == 0) return (bny_columns){heads, head, heads};
  int32_t groups = column_groups(call, nranks), each = call->all_heads / groups, first, number;
  int32_t group = head / each < groups ? head / each : groups - 1, row = head - group * each;
  int32_t rows = each - row < heads ? each - row : heads;
  bny_slice_split(call->dim, groups, group, &first, &number);
  int64_t begin = (int64_t)row * BNY_SCALE_BLOCK, end = begin + (int64_t)rows * BNY_SCALE_BLOCK;
  if (begin > number) begin = number;
  if (end > number) end = number;
  return (bny_columns){rows, first + (int32_t)begin, (int32_t)(end - begin)};
}
