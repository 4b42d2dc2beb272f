/* SPDX-License-Identifier: Apache-2.0
 * Single elements of sheets: addresses, and numbers in code independent of the library (oracle.h). */
#pragma once

#include "tests/support/oracle.h"
#include "tests/support/sheet.h"

enum { SHEET_PATTERN = 0xCB };

static inline size_t element_bytes(banyan_dtype dtype) { return oracle_bytes(dtype); }

static inline double scale_of(const sheet *sheet, int32_t head) {
  const banyan_partial *partial = &sheet->partial;
  return partial->values_scale ? (double)partial->values_scale[head * partial->values_scale_stride] : 1;
}

static inline void *value_address(const sheet *sheet, int32_t token, int32_t head) {
  const banyan_partial *partial = &sheet->partial;
  int64_t index = token * partial->values_token_stride + head * partial->values_head_stride;
  return (char *)partial->values + index * (int64_t)element_bytes(partial->values_dtype);
}

static inline void *stats_address(const sheet *sheet, void *base, int32_t token, int32_t head) {
  const banyan_partial *partial = &sheet->partial;
  int64_t index = token * partial->stats_token_stride + head * partial->stats_head_stride;
  return base ? (char *)base + index * (int64_t)element_bytes(partial->stats_dtype) : NULL;
}

static inline void *lse_address(const sheet *sheet, int32_t token, int32_t head) {
  return stats_address(sheet, sheet->partial.lse, token, head);
}

static inline void *sum_address(const sheet *sheet, int32_t token, int32_t head) {
  return stats_address(sheet, sheet->partial.sum, token, head);
}

static inline void store_value(const sheet *sheet, int32_t token, int32_t head, int32_t index, double value) {
  banyan_dtype dtype = sheet->partial.values_dtype;
  oracle_store(value_address(sheet, token, head), dtype, index, value / scale_of(sheet, head));
}

static inline double load_value(const sheet *sheet, int32_t token, int32_t head, int32_t index) {
  banyan_dtype dtype = sheet->partial.values_dtype;
  return oracle_load(value_address(sheet, token, head), dtype, index) * scale_of(sheet, head);
}

static inline void store_lse(const sheet *sheet, int32_t token, int32_t head, double value) {
  oracle_store(lse_address(sheet, token, head), sheet->partial.stats_dtype, 0, value);
}

static inline double load_lse(const sheet *sheet, int32_t token, int32_t head) {
  return oracle_load(lse_address(sheet, token, head), sheet->partial.stats_dtype, 0);
}

static inline void store_sum(const sheet *sheet, int32_t token, int32_t head, double value) {
  oracle_store(sum_address(sheet, token, head), sheet->partial.stats_dtype, 0, value);
}

static inline double load_sum(const sheet *sheet, int32_t token, int32_t head) {
  return oracle_load(sum_address(sheet, token, head), sheet->partial.stats_dtype, 0);
}
