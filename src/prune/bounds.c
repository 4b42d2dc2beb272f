/* SPDX-License-Identifier: Apache-2.0
 * Updates the bounds of pages. */
#include "prune/block.h"

#include <math.h>
#include <string.h>

#include "f8.h"
#include "flashmla.h"
#include "op.h"

void bny_bounds_read(const void *from, banyan_dtype dtype, int32_t count, float scale, float *to) {
  const uint8_t *bytes = from;
  uint16_t half;
#define EACH(value) \
  for (int32_t i = 0; i < count; i++) to[i] = (value)*scale
#define HALF (memcpy(&half, bytes + 2 * (size_t)i, sizeof half), half)
  switch (dtype) {
  case BANYAN_F16: EACH(bny_float_of_f16(HALF)); break;
  case BANYAN_BF16: EACH(bny_float_of_bf16(HALF)); break;
  case BANYAN_E4M3: EACH(bny_float_of_e4m3(bytes[i])); break;
  case BANYAN_E5M2: EACH(bny_float_of_e5m2(bytes[i])); break;
  case BANYAN_I8: EACH((float)(int8_t)bytes[i]); break;
  default: EACH((memcpy(&to[i], bytes + sizeof(float) * (size_t)i, sizeof(float)), to[i])); break;
  }
#undef HALF
#undef EACH
}

/* Reads a row of FlashMLA: 512 elements in groups with one scale each, then the elements of the rope. */
static void read_flashmla(const char *row, float *to) {
  for (int32_t i = 0; i < BNY_FLASHMLA_CODES; i += BNY_FLASHMLA_GROUP) {
    float scale;
    memcpy(&scale, row + BNY_FLASHMLA_CODES + i / BNY_FLASHMLA_GROUP * (int32_t)sizeof scale, sizeof scale);
    bny_bounds_read(row + i, BANYAN_E4M3, BNY_FLASHMLA_GROUP, scale, to + i);
  }
  bny_bounds_read(row + BNY_FLASHMLA_ROPE_AT, BANYAN_BF16, BNY_FLASHMLA_ROPE, 1, to + BNY_FLASHMLA_CODES);
}

static float length_above(const float *x, int32_t count) {
  double sum = 0;
  for (int32_t i = 0; i < count; i++) sum += (double)x[i] * (double)x[i];
  return isfinite(sum) ? (float)(sqrt(sum) * (1 + 0x1p-22)) : INFINITY;
}

/* Writes the codes of key `index` of a page. Returns its length, or that of its codes if they are longer. */
static float encode(float *body, int32_t keys, int32_t index, int32_t dim, const float *k) {
  float most = 0, lost[BNY_ATTENTION_HEAD_DIM_MAX], length = length_above(k, dim), scale = 0;
  int32_t first = index / BNY_CODE_LANES * BNY_CODE_LANES;
  int32_t lanes = keys - first < BNY_CODE_LANES ? keys - first : BNY_CODE_LANES;
  int8_t *codes =
      (int8_t *)(body + 2 * (int64_t)keys) + (int64_t)first * bny_bounds_codes(dim) + index % BNY_CODE_LANES;
  body[index] = 0;
  body[keys + index] = length;
  for (int32_t i = 0; i < dim; i++) codes[i * lanes] = 0;
  if (!(length < 0x1p100f)) return INFINITY;
  for (int32_t i = 0; i < dim; i++) most = fabsf(k[i]) > most ? fabsf(k[i]) : most;
  if (!(most > 0x1p-100f)) return length;
  body[index] = scale = most / 127;
  float inverse = 127 / most;
  for (int32_t i = 0; i < dim; i++) {
    int32_t code = (int32_t)(k[i] * inverse + (k[i] < 0 ? -0.5f : 0.5f));
    lost[i] = fabsf(k[i] - scale * (float)code) * (1 + 0x1p-22f);
    codes[i * lanes] = (int8_t)code;
  }
  body[keys + index] = length_above(lost, dim) + most * 0x1p-18f;
  return (length + body[keys + index]) * (1 + 0x1p-20f);
}

/* Keys [first, end) of a sequence, which are of one page. */
static void update_page(const bny_bounds *of, int32_t b, const int32_t *pages, int32_t head, int32_t first,
                        int32_t end) {
  const banyan_kv_part *kv = of->kv;
  const banyan_kv_scales *scales = &kv->scales;
  int32_t keys = of->page_keys, page = first / keys, dim = of->head_dim, values = of->value_dim;
  int64_t outer = pages ? pages[page] : b;
  float *bounds = bny_bounds_at(of, pages, b, page, head), *body = bounds + BNY_BOUNDS_HEAD, length = 0,
        k[BNY_ATTENTION_HEAD_DIM_MAX], v[BNY_ATTENTION_VALUE_DIM_MAX];
  size_t element = bny_dtype_bytes(kv->dtype);
  if (first % keys == 0) memset(bounds, 0, (size_t)bny_bounds_floats(of) * sizeof *bounds);
  for (int32_t t = first; t < end; t++) {
    int64_t key = pages ? t % keys : t;
    int64_t scale = outer * scales->batch_stride + head * scales->head_stride + key * scales->token_stride;
    bool scaled = scales->token_stride != 0;
    const char *k_row =
        (const char *)kv->k +
        (outer * kv->k_batch_stride + head * kv->k_head_stride + key * kv->k_token_stride) * (int64_t)element;
    const char *v_row =
        (const char *)kv->v +
        (outer * kv->v_batch_stride + head * kv->v_head_stride + key * kv->v_token_stride) * (int64_t)element;
    bool is_plain = kv->rows == BANYAN_KV_ROWS_PLAIN;
    if (is_plain) {
      bny_bounds_read(k_row, kv->dtype, dim, scaled && scales->k ? scales->k[scale] : 1, k);
      bny_bounds_read(v_row, kv->dtype, values, scaled && scales->v ? scales->v[scale] : 1, v);
    } else {
      read_flashmla(k_row, k);
    }
    length = fmaxf(length, encode(body, keys, t % keys, dim, k));
    bounds[BNY_BOUNDS_VALUE] = fmaxf(bounds[BNY_BOUNDS_VALUE], length_above(is_plain ? v : k, values));
  }
  bounds[BNY_BOUNDS_REACH] = fmaxf(bounds[BNY_BOUNDS_REACH], length);
}

void bny_bounds_update(const bny_bounds *of, int32_t sequence, const int32_t *pages, int32_t first, int32_t keys) {
  for (int32_t t = first, end; t < keys; t = end) {
    int32_t left = of->page_keys - t % of->page_keys;
    end = left < keys - t ? t + left : keys;
    for (int32_t head = 0; head < of->kv_heads; head++) update_page(of, sequence, pages, head, t, end);
  }
}
