/* SPDX-License-Identifier: Apache-2.0
 * Writes finished rows to the caller's memory, in any convention. */
#pragma once

#include "cuda/decode_merge.cuh"
#include "cuda/partial.h"

struct bny_output_values {
  float value[4];
};

/* Stores four neighbouring values where bny_output_put() has no single store for them. */
BNY_DEVICE_COLD void bny_output_put_odd(void *to, banyan_dtype dtype, int64_t index, bny_output_values values) {
  if (bny_element_is_f8(dtype)) {
    bny_values_store_f8<4>(to, dtype, index, 0, 4, values.value);
    return;
  }
  for (int i = 0; i < 4; i++) bny_element_store(to, dtype, index + i, values.value[i]);
}

/* Stores four neighbouring values, with one store if the row is aligned and its type has 16 or 32 bits. */
BNY_DEVICE void bny_output_put(void *to, banyan_dtype dtype, int64_t index, const float *values) {
  const int bytes = dtype == BANYAN_F32 ? 4 : 2;
  unsigned char *at = (unsigned char *)to + index * bytes;
  if (bny_element_is_f8(dtype) || (uintptr_t)at % (4 * (uint32_t)bytes) != 0) {
    bny_output_put_odd(to, dtype, index, {{values[0], values[1], values[2], values[3]}});
  } else if (dtype == BANYAN_F32) {
    bny_store_floats((float *)at, values);
  } else {
    bool f16 = dtype == BANYAN_F16;
    uint64_t low = f16 ? bny_pack_f16(values[0], values[1]) : bny_pack_bf16(values[0], values[1]);
    uint64_t high = f16 ? bny_pack_f16(values[2], values[3]) : bny_pack_bf16(values[2], values[3]);
    *(uint64_t *)at = low | high << 32;
  }
}

/* Called by a warp. Writes a row in wire form (m a whole number, f32). */
template <int dim>
BNY_DEVICE void bny_decode_output(const bny_device_group *group, const banyan_partial &out, int32_t token, int32_t head,
                                  const bny_decode_row<dim> &row) {
  float factor = bny_export_row(group, out, token, head, row.m, row.d, true);
  int64_t first = bny_partial_value_at(out, token, head);
  BNY_UNROLL for (int quad = 0; quad < bny_decode_row<dim>::QUADS; quad++) {
    float values[4];
    if (bny_decode_column(quad) >= dim) continue;
    BNY_UNROLL for (int i = 0; i < 4; i++) values[i] = bny_mul(row.n[quad][i], factor);
    bny_output_put(out.values, out.values_dtype, first + bny_decode_column(quad), values);
  }
}
