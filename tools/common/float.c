/* SPDX-License-Identifier: Apache-2.0
 * Converts elements of any dtype from and to f32, and draws random ones. */
#include "tools/common/float.h"

#include <math.h>
#include <string.h>

#include "f8.h"
#include "merge_math.h"
#include "tools/common/util.h"

static float load_byte(banyan_dtype dtype, uint8_t byte) {
  return dtype == BANYAN_E4M3   ? bny_float_of_e4m3(byte)
         : dtype == BANYAN_E5M2 ? bny_float_of_e5m2(byte)
                                : (float)(int8_t)byte;
}

static uint8_t store_byte(banyan_dtype dtype, float value) {
  if (dtype == BANYAN_E4M3) return bny_e4m3_of_float(value);
  if (dtype == BANYAN_E5M2) return bny_e5m2_of_float(value);
  return (uint8_t)(int8_t)fminf(fmaxf(rintf(value), -128), 127);
}

void tool_floats_load(banyan_dtype dtype, const void *source, size_t count, float *values) {
  const char *bytes = source;
  if (dtype == BANYAN_F32) {
    memcpy(values, source, count * sizeof *values);
    return;
  }
  for (size_t i = 0; i < count; i++) {
    uint16_t raw;
    if (tool_dtype_bytes(dtype) == 1) {
      values[i] = load_byte(dtype, (uint8_t)bytes[i]);
      continue;
    }
    memcpy(&raw, bytes + i * sizeof raw, sizeof raw);
    values[i] = dtype == BANYAN_F16 ? bny_float_of_f16(raw) : bny_float_of_bf16(raw);
  }
}

void tool_floats_store(banyan_dtype dtype, const float *values, size_t count, void *target) {
  char *bytes = target;
  if (dtype == BANYAN_F32) {
    memcpy(target, values, count * sizeof *values);
    return;
  }
  for (size_t i = 0; i < count; i++) {
    if (tool_dtype_bytes(dtype) == 1) {
      bytes[i] = (char)store_byte(dtype, values[i]);
      continue;
    }
    uint16_t raw = dtype == BANYAN_F16 ? bny_f16_of_float(values[i]) : bny_bf16_of_float(values[i]);
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
