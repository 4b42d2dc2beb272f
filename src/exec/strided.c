/* SPDX-License-Identifier: Apache-2.0
 * Copies rows between two layouts with strides. */
#include "exec/strided.h"

#include <stdbool.h>
#include <string.h>

void bny_strided_copy(const bny_strided *to, const bny_strided *from, int32_t tokens, int32_t heads, size_t row_bytes) {
  if (tokens <= 0 || heads <= 0) return;
  int64_t row = (int64_t)row_bytes, line = row * heads;
  bool lines = heads == 1 || (to->head_stride == row && from->head_stride == row);
  bool block = lines && (tokens == 1 || (to->token_stride == line && from->token_stride == line));
  size_t bytes = lines ? (size_t)line : row_bytes;
  if (block) {
    bytes *= (size_t)tokens;
    tokens = 1;
  }
  if (lines) heads = 1;
  for (int32_t t = 0; t < tokens; t++) {
    char *there = to->at + t * to->token_stride;
    const char *here = from->at + t * from->token_stride;
    for (int32_t h = 0; h < heads; h++) memcpy(there + h * to->head_stride, here + h * from->head_stride, bytes);
  }
}
