/* SPDX-License-Identifier: Apache-2.0
 * Keys and values of a decode on a GPU. Gigabytes of random numbers take longer to make than to read, so all of them
 * are a stretch of some millions, over and over, each rank's and each cache's from another place on. */
#ifndef BNY_TOOLS_DECODE_DEVICE_CACHE_H
#define BNY_TOOLS_DECODE_DEVICE_CACHE_H

#include "tools/decode/device.h"
#include "tools/common/device_ranks.h"

typedef struct decode_stretch {
  banyan_dtype dtype;
  int64_t count;  /* numbers */
  uint16_t *host; /* [count] */
  void *on_device;
} decode_stretch;

/* One tensor of `count` numbers, which begins at number `first` of the stretch. */
typedef struct decode_piece {
  void *memory;
  int64_t first, count;
} decode_piece;

bool decode_stretch_make(gpu *device, banyan_dtype dtype, int64_t wanted, uint64_t seed, decode_stretch *made,
                         tool_error *error);
void decode_stretch_free(gpu *device, decode_stretch *stretch);

bool decode_piece_make(gpu *device, const decode_stretch *stretch, int64_t first, int64_t count, void *stream,
                       decode_piece *made, tool_error *error);
double decode_piece_value(const decode_stretch *stretch, const decode_piece *piece, int64_t index);

/* Attention of one row in double precision, over the shards of all ranks. */
typedef struct decode_row {
  int32_t head_dim, value_dim, v_stride, nranks;
  double scale;
  const double *q; /* [head_dim] */
  const decode_piece *keys[DEVICE_RANKS_MAX], *values[DEVICE_RANKS_MAX];
  int64_t key_first[DEVICE_RANKS_MAX], value_first[DEVICE_RANKS_MAX]; /* the row's first number in each */
  int32_t lengths[DEVICE_RANKS_MAX];
} decode_row;

/* out[value_dim], and for each value sum p |v| / d: what errors are in proportion to. */
bool decode_row_attend(const decode_stretch *stretch, const decode_row *row, double *out, double *weight);

#endif
