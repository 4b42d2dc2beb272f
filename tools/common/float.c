/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/float.h"

#include <string.h>

#include "tools/common/util.h"

static float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float f16_to_float(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16;
  uint32_t exponent = (half >> 10) & 0x1f;
  uint32_t fraction = half & 0x3ff;
  if (exponent == 0) { /* zero or subnormal: fraction * 2^-24, exact in f32 */
    float magnitude = (float)fraction * 0x1p-24f;
    return float_of_bits(bits_of_float(magnitude) | sign);
  }
  uint32_t exponent32 = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  return float_of_bits(sign | exponent32 << 23 | fraction << 13);
}

static uint16_t float_to_f16(float value) {
  uint32_t bits = bits_of_float(value);
  uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return (uint16_t)(sign | 0x7e00); /* NaN */
  }
  if (magnitude >= 0x477ff000) { /* 65520 and more round to infinity */
    return (uint16_t)(sign | 0x7c00);
  }
  if (magnitude < 0x38800000) { /* below 2^-14: whole multiples of 2^-24. Adding 1/2 makes them the low bits, rounded */
    float shifted = float_of_bits(magnitude) + 0.5f;
    return (uint16_t)(sign | (bits_of_float(shifted) - 0x3f000000));
  }
  uint32_t odd = magnitude >> 13 & 1;
  uint32_t rounded = magnitude + 0xfff + odd - ((uint32_t)(127 - 15) << 23);
  return (uint16_t)(sign | rounded >> 13);
}

static uint16_t float_to_bf16(float value) {
  uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    return (uint16_t)(bits >> 16 | 0x40); /* NaN stays one */
  }
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void tool_floats_load(banyan_dtype dtype, const void *source, size_t count, float *values) {
  const char *bytes = source;
  if (dtype == BANYAN_F32) {
    memcpy(values, source, count * sizeof *values);
    return;
  }
  for (size_t i = 0; i < count; i++) {
    uint16_t raw;
    memcpy(&raw, bytes + i * sizeof raw, sizeof raw);
    values[i] = dtype == BANYAN_F16 ? f16_to_float(raw) : float_of_bits((uint32_t)raw << 16);
  }
}

void tool_floats_store(banyan_dtype dtype, const float *values, size_t count, void *target) {
  char *bytes = target;
  if (dtype == BANYAN_F32) {
    memcpy(target, values, count * sizeof *values);
    return;
  }
  for (size_t i = 0; i < count; i++) {
    uint16_t raw = dtype == BANYAN_F16 ? float_to_f16(values[i]) : float_to_bf16(values[i]);
    memcpy(bytes + i * sizeof raw, &raw, sizeof raw);
  }
}

void tool_floats_random(uint64_t stream, uint64_t first, size_t count, float deviation, float *values) {
  /* Four uniform numbers of 16 bits have mean 4 * 32767.5 and variance 4 * (2^32 - 1) / 12. */
  const float scale = deviation / 37837.22f;
  uint64_t base = bny_hash_of(stream);
  for (size_t i = 0; i < count; i++) {
    uint64_t bits = bny_hash_of(base + first + i);
    uint32_t sum = (uint32_t)(bits & 0xffff) + (uint32_t)(bits >> 16 & 0xffff) + (uint32_t)(bits >> 32 & 0xffff) +
                   (uint32_t)(bits >> 48);
    values[i] = ((float)sum - 131070.0f) * scale;
  }
}
