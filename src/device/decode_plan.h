/* SPDX-License-Identifier: Apache-2.0
 * Chooses the decode kernel for a shape, and divides its blocks into CTA groups. The plan is a pure function of the
 * shape and of the device's facts. It does not use lengths that are known only on the device.
 * kernels/cuda/decode_shape.h defines the terms. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/decode_shape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The facts of a device that a plan depends on: fields of bny_device_facts. */
typedef struct bny_decode_machine {
  int32_t compute;          /* compute capability: 90 is 9.0 */
  int32_t sm_count;         /* SMs that a launch may use */
  int32_t shared_bytes_max; /* limit of a block */
  bool clusters;
} bny_decode_machine;

/* One row of kernels/cuda/decode_kernels.def. */
typedef struct bny_decode_kernel {
  const char *name;
  int32_t head_dim, value_dim;
  bool values_in_keys; /* v is the first value_dim columns of k */
  int32_t rows;        /* query heads of an item */
  int32_t block_threads;
  int32_t compute_min, compute_end; /* built for compute capabilities [min, end) */
  bny_decode_rows kv;               /* rows that it reads; LEAN kernels do not use bny_decode_general */
  int32_t shared_bytes;             /* dynamic shared memory */
} bny_decode_kernel;

typedef struct bny_decode_request {
  int32_t batch, heads, kv_heads;
  int32_t head_dim, value_dim;
  bool values_in_keys;
  banyan_dtype dtype; /* type of q, and of k and v unless `kv` names another */
  int32_t keys_max;   /* most keys of a sequence in all calls of this shape */
  bny_decode_rows kv; /* LEAN only if the request uses nothing of bny_decode_general */
  int32_t tokens;     /* all query tokens; not used for LEAN */
} bny_decode_request;

typedef struct bny_decode_plan {
  const bny_decode_kernel *kernel;
  uint32_t cluster; /* blocks of a CTA group; 1: no cluster */
  uint32_t blocks;  /* blocks of the grid */
  int32_t row_tiles;
  bny_decode_division division;
  size_t scratch_bytes;
  size_t counters; /* number of counters, each of 4 bytes */
} bny_decode_plan;

enum { BNY_DECODE_CLUSTER_SIZES = 4 };

/* How many blocks of a kernel a device holds at once. */
typedef struct bny_decode_residency {
  int32_t sm_blocks;                          /* resident blocks of one SM, from kernel_residency() */
  int32_t clusters[BNY_DECODE_CLUSTER_SIZES]; /* resident clusters of 1, 2, 4 and 8 blocks on these SMs; 0: unknown,
                                               * estimated from the number of SMs */
} bny_decode_residency;

/* The list of kernels; ends with a NULL name. */
extern const bny_decode_kernel bny_decode_kernels[];

/* Returns whether an image has the kernel for a device, and the device has room for it. */
bool bny_decode_kernel_runs(const bny_decode_kernel *kernel, int32_t compute, int32_t shared_bytes_max);

/* Returns BANYAN_ERR_UNSUPPORTED, with a text of what is missing, if no kernel serves the request on the device. */
banyan_status bny_decode_kernel_choose(const bny_decode_request *request, const bny_decode_machine *machine,
                                       const bny_decode_kernel **kernel);

banyan_status bny_decode_plan_make(const bny_decode_request *request, const bny_decode_machine *machine,
                                   const bny_decode_kernel *kernel, const bny_decode_residency *residency,
                                   bny_decode_plan *plan);

/* Returns the reason to reject a call before a kernel sees it, or NULL. Fields from `scratch` on are ignored. */
const char *bny_decode_call_check(const bny_decode_call *call, const bny_decode_plan *plan);

#ifdef __cplusplus
}
#endif
