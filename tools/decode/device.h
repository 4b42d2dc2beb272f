/* SPDX-License-Identifier: Apache-2.0
 * Decode on a GPU: attention over a cache in the device's memory, alone and with a combine. Ranks are threads of this
 * process, all on one device, each with a range of the keys; the time is that of a graph in which every rank runs over
 * and over, on a branch of its own. Each run reads another cache, as many as make four times the second-level cache of
 * the device. */
#ifndef BNY_TOOLS_DECODE_DEVICE_H
#define BNY_TOOLS_DECODE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/decode/problem.h"

typedef struct decode_device_settings {
  const char *device; /* "cuda" or "cuda:N" */
  int32_t nranks;
  int64_t timeout_ns; /* 0: 30 s */
  decode_shape shape; /* head_dim 576: MLA, whose values are the first 512 columns of the keys */
  banyan_dtype dtype, wire;
  int32_t repeat;
  uint64_t seed;
} decode_device_settings;

/* Times are of one run of all ranks, in microseconds; 0: not measured, for there is one rank. */
typedef struct decode_device_result {
  int64_t kv_bytes;     /* of all ranks, read by one run */
  int32_t caches, runs; /* runs in a graph */
  double attention_p50_us, attention_p99_us;
  double apart_p50_us;          /* attention, then a combine */
  double fused_p50_us;          /* banyan_attention_combine_init() */
  double copy_gbps;             /* of a copy on the device, bytes read and bytes written */
  double copy_share;            /* bytes of the cache a second, of copy_gbps */
  char kernel[256], fused[256]; /* what banyan_op_query() says of each */
  double worst_error;           /* of any value that was looked at: |o' - o| / (sum p |v| / d) */
  bool verified;
} decode_device_result;

/* False in builds without CUDA. */
bool decode_device_built(void);

/* Prints the result to stdout, as text or as JSON. */
bool decode_device_work(const decode_device_settings *settings, bool json, bool *verified, tool_error *error);

#endif
