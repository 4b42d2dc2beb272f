/* SPDX-License-Identifier: Apache-2.0
 * KV caches on a device that repeat one random stretch, so that the CPU can recompute any row. */
#include "tools/decode/decode.h"

#include <math.h>
#include <string.h>

#include "tools/common/float.h"

/* Not a multiple of any row length, so that rows differ. */
enum { STRETCH_MAX = (1 << 22) + 8 * 1237, CHUNK = 1 << 16 };

/* ---- the stretch ------------------------------------------------------------------------------------------------- */

static void fill(decode_stretch *stretch, uint64_t seed) {
  float *values = tool_new(CHUNK, sizeof *values);
  for (int64_t at = 0; at < stretch->count; at += CHUNK) {
    size_t count = (size_t)(stretch->count - at < CHUNK ? stretch->count - at : CHUNK);
    tool_floats_random(seed, (uint64_t)at, count, 1, values);
    tool_floats_store(stretch->dtype, values, count, stretch->host + at);
  }
}

bool decode_stretch_make(gpu *device, banyan_dtype dtype, int64_t wanted, uint64_t seed, decode_stretch *made,
                         tool_error *error) {
  *made = (decode_stretch){.dtype = dtype, .count = wanted < STRETCH_MAX ? wanted : STRETCH_MAX};
  size_t bytes = (size_t)made->count * sizeof *made->host;
  made->host = tool_take(bytes);
  fill(made, seed);
  return gpu_take(device, bytes, &made->on_device, error) &&
         gpu_write(device, made->on_device, made->host, bytes, error);
}

void decode_stretch_free(gpu *device, decode_stretch *stretch) { gpu_give(device, stretch->on_device); }

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

bool decode_piece_make(gpu *device, const decode_stretch *stretch, int64_t first, int64_t count, void *stream,
                       decode_piece *made, tool_error *error) {
  *made = (decode_piece){.first = first % stretch->count, .count = count};
  if (!gpu_take(device, (size_t)count * sizeof(uint16_t), &made->memory, error)) return false;
  int64_t from = made->first;
  for (int64_t at = 0; at < count;) {
    int64_t some = stretch->count - from < count - at ? stretch->count - from : count - at;
    if (!gpu_copy(device, (uint16_t *)made->memory + at, (uint16_t *)stretch->on_device + from,
                  (size_t)some * sizeof(uint16_t), stream, error)) {
      return false;
    }
    at += some;
    from = 0;
  }
  return true;
}

double decode_piece_value(const decode_stretch *stretch, const decode_piece *piece, int64_t index) {
  float value;
  tool_floats_load(stretch->dtype, stretch->host + (piece->first + index) % stretch->count, 1, &value);
  return (double)value;
}

/* ---- the reference ----------------------------------------------------------------------------------------------- */

static double logit(const decode_stretch *stretch, const decode_row *row, int32_t rank, int32_t t) {
  double dot = 0;
  int64_t at = row->key_first[rank] + (int64_t)t * row->head_dim;
  for (int32_t i = 0; i < row->head_dim; i++) dot += row->q[i] * decode_piece_value(stretch, row->keys[rank], at + i);
  return dot * row->scale;
}

static void add_value(const decode_stretch *stretch, const decode_row *row, int32_t rank, int32_t t, double p,
                      double *out, double *weight) {
  int64_t at = row->value_first[rank] + (int64_t)t * row->v_stride;
  for (int32_t i = 0; i < row->value_dim; i++) {
    double value = decode_piece_value(stretch, row->values[rank], at + i);
    out[i] += p * value;
    weight[i] += p * fabs(value);
  }
}

void decode_row_attend(const decode_stretch *stretch, const decode_row *row, double *out, double *weight) {
  double max = -INFINITY, sum = 0;
  int64_t total = 0, at = 0;
  for (int32_t r = 0; r < row->nranks; r++) total += row->lengths[r];
  size_t mark = tool_mark();
  double *logits = tool_new((size_t)total, sizeof *logits);
  for (int32_t r = 0; r < row->nranks; r++) {
    for (int32_t t = 0; t < row->lengths[r]; t++, at++) {
      logits[at] = logit(stretch, row, r, t);
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
      add_value(stretch, row, r, t, p, out, weight);
    }
  }
  tool_release(mark);
  for (int32_t i = 0; i < row->value_dim; i++) {
    out[i] /= sum;
    weight[i] /= sum;
  }
}
