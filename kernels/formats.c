/* SPDX-License-Identifier: Apache-2.0
 * The table of wire formats, and the layout of a message. */
#include "exact.h"
#include "f8.h"
#include "op.h"

const bny_wire_format bny_wire_formats[BNY_WIRE_EXACT + 1] = {
#define BNY_FORMAT(id, text, type, size, bound) \
  [BNY_WIRE_##id] = {.name = text, .dtype = type, .element_bytes = size, .error_bound = bound},
#include "formats.def"
#undef BNY_FORMAT
    [BNY_WIRE_EXACT] = {.name = "exact"},
};

bny_wire bny_wire_of_dtype(banyan_dtype dtype) {
  for (int i = 0; i < (int)BNY_WIRE_COUNT; i++) {
    if (bny_wire_formats[i].dtype == dtype) return (bny_wire)i;
  }
  return BNY_WIRE_COUNT;
}

static size_t round_to_line(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

size_t bny_wire_row_bytes(bny_wire wire, int32_t value_dim) {
  if (wire == BNY_WIRE_EXACT) return sizeof(bny_exact_row) + ((size_t)value_dim * 17 + 7) / 8 * 8;
  size_t codes = (size_t)value_dim * bny_wire_formats[wire].element_bytes;
  if (wire != BNY_WIRE_E4M3) return codes;
  size_t scales = (codes + BNY_SCALE_BLOCK - 1) / BNY_SCALE_BLOCK;
  return (codes + scales + 3) / 4 * 4;
}

bny_wire_layout bny_rows_layout(bool has_statistics, int64_t rows, size_t row_bytes) {
  size_t statistics = (size_t)rows * sizeof(float), values = (size_t)rows * row_bytes;
  if (!has_statistics) return (bny_wire_layout){.bytes = values};
  size_t n = round_to_line(2 * statistics);
  return (bny_wire_layout){.m = 0, .d = statistics, .n = n, .bytes = n + round_to_line(values)};
}

bny_wire_layout bny_wire_layout_make(bny_wire wire, int64_t rows, int32_t value_dim) {
  return bny_rows_layout(true, rows, bny_wire_row_bytes(wire, value_dim));
}

size_t bny_dtype_bytes(banyan_dtype dtype) {
  switch (dtype) {
  case BANYAN_F32: return 4;
  case BANYAN_F16:
  case BANYAN_BF16: return 2;
  case BANYAN_E4M3:
  case BANYAN_E5M2:
  case BANYAN_I8: return 1;
  }
  return 0;
}

bool bny_dtype_is_float(banyan_dtype dtype) {
  return dtype == BANYAN_F32 || dtype == BANYAN_F16 || dtype == BANYAN_BF16;
}

bool bny_dtype_is_f8(banyan_dtype dtype) { return dtype == BANYAN_E4M3 || dtype == BANYAN_E5M2; }
