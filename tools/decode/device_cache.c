/* SPDX-License-Identifier: Apache-2.0
 * KV caches on a device that repeat one random pattern, so that the CPU can recompute any row. */
#include "tools/decode/decode.h"

#include <math.h>
#include <string.h>

#include "tools/common/float.h"

/* Not a multiple of any row length, so that rows differ. */
enum { STRETCH_MAX = (1 << 22) + 8 * 1237, CHUNK = 1 << 16 };

/* ---- the pattern ------------------------------------------------------------------------------------------------- */

static void fill(decode_pattern *pattern, uint64_t seed) {
  float *values = tool_new(CHUNK, sizeof *values);
  for (int64_t at = 0; at < pattern->count; at += CHUNK) {
    size_t count = (size_t)(pattern->count - at < CHUNK ? pattern->count - at : CHUNK);
    tool_floats_random(seed, (uint64_t)at, count, 1, values);
    tool_floats_store(pattern->dtype, values, count, pattern->host + at);
  }
}

bool decode_pattern_make(gpu *device, banyan_dtype dtype, int64_t wanted, uint64_t seed, decode_pattern *made,
                         tool_error *error) {
  *made = (decode_pattern){.dtype = dtype, .count = wanted < STRETCH_MAX ? wanted : STRETCH_MAX};
  size_t bytes = (size_t)made->count * sizeof *made->host;
  made->host = tool_take(bytes);
  fill(made, seed);
  return gpu_alloc(device, bytes, &made->on_device, error) &&
         gpu_write(device, made->on_device, made->host, bytes, error);
}

void decode_pattern_free(gpu *device, decode_pattern *pattern) { gpu_free(device, pattern->on_device); }

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

bool decode_device_tensor_make(gpu *device, const decode_pattern *pattern, int64_t first, int64_t count, void *stream,
                               decode_device_tensor *made, tool_error *error) {
  *made = (decode_device_tensor){.first = first % pattern->count, .count = count};
  if (!gpu_alloc(device, (size_t)count * sizeof(uint16_t), &made->memory, error)) return false;
  int64_t from = made->first;
  for (int64_t at = 0; at < count;) {
    int64_t some = pattern->count - from < count - at ? pattern->count - from : count - at;
    if (!gpu_copy(device, (uint16_t *)made->memory + at, (uint16_t *)pattern->on_device + from,
                  (size_t)some * sizeof(uint16_t), stream, error)) {
      return false;
    }
    at += some;
    from = 0;
  }
  return true;
}

double decode_device_tensor_value(const decode_pattern *pattern, const decode_device_tensor *tensor, int64_t index) {
  float value;
  tool_floats_load(pattern->dtype, pattern->host + (tensor->first + index) % pattern->count, 1, &value);
  return (double)value;
}

/* ---- the reference ----------------------------------------------------------------------------------------------- */

static double logit(const decode_pattern *pattern, const decode_row *row, int32_t rank, int32_t t) {
  double dot = 0;
  int64_t at = row->key_first[rank] + (int64_t)t * row->head_dim;
  for (int32_t i = 0; i < row->head_dim; i++)
    dot += row->q[i] * decode_device_tensor_value(pattern, row->keys[rank], at + i);
  return dot * row->scale;
}

static void add_value(const decode_pattern *pattern, const decode_row *row, int32_t rank, int32_t t, double p,
                      double *out, double *weight) {
  int64_t at = row->value_first[rank] + (int64_t)t * row->v_stride;
  for (int32_t i = 0; i < row->value_dim; i++) {
    double value = decode_device_tensor_value(pattern, row->values[rank], at + i);
    out[i] += p * value;
    weight[i] += p * fabs(value);
  }
}

void decode_row_attend(const decode_pattern *pattern, const decode_row *row, double *out, double *weight) {
  double max = -INFINITY, sum = 0;
  int64_t total = 0, at = 0;
  for (int32_t r = 0; r < row->nranks; r++) total += row->lengths[r];
  size_t mark = tool_mark();
  double *logits = tool_new((size_t)total, sizeof *logits);
  for (int32_t r = 0; r < row->nranks; r++) {
    for (int32_t t = 0; t < row->lengths[r]; t++, at++) {
      logits[at] = logit(pattern, row, r, t);
      max = fmax(max, logits[at]);
    }
  }
  memset(out, 0, (size_t)row->value_dim * sizeof *out);
  memset(weight, 0, (size_t)row->value_dim * sizeof *weight);
  at = 0;
  for (int32_t r = 0; r < row->nranks; r++) {
    for (int32_t t = 0; t < row->lengths[r]; t++, at++) {
      double p = exp(logits[at] - max);
      sum += p;
      add_value(pattern, row, r, t, p, out, weight);
    }
  }
  tool_release(mark);
  for (int32_t i = 0; i < row->value_dim; i++) {
    out[i] /= sum;
    weight[i] /= sum;
  }
}
