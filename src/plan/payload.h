/* SPDX-License-Identifier: Apache-2.0
 * The kinds of payload: which rank has what, and what a row is in a message. This table has all that plans, prices,
 * proofs and operations need to know of a collective. src/exec/payload.h has the functions that move its rows. */
#pragma once

#include "plan/call.h"

struct bny_request;

/* Who has the input, and who gets it. */
typedef enum bny_motion {
  BNY_MOTION_MERGE,     /* each rank has a contribution to each row */
  BNY_MOTION_GATHER,    /* each rank's input is a part of the result, as `counts` say */
  BNY_MOTION_SHIFT,     /* each rank has a part, which another rank gets */
  BNY_MOTION_BROADCAST, /* the root has all */
  BNY_MOTION_SIGNAL     /* messages have no content */
} bny_motion;

typedef struct bny_payload {
  bny_motion motion;
  bool has_rows;                             /* slices are boxes of rows; those of the others are ranges of bytes */
  bool has_statistics;                       /* a row has m and d beside its values */
  bool on_proxy;                             /* devices of several nodes serve it */
  double delivery;                           /* work of delivering rows that are merged, in units of a merge */
  const char *counted;                       /* what `counts` count */
  size_t (*row_bytes)(const bny_call *call); /* bytes of a row's values in a message; 0 without rows */
  banyan_status (*check)(const struct bny_request *request);
} bny_payload;

extern const bny_payload bny_payloads[BNY_COLLECTIVES];

static inline const bny_payload *bny_payload_of(const bny_call *call) { return &bny_payloads[call->collective]; }

static inline bool bny_call_has_rows(const bny_call *call) { return bny_payload_of(call)->has_rows; }

static inline bool bny_call_merges(const bny_call *call) { return bny_payload_of(call)->motion == BNY_MOTION_MERGE; }

static inline bool bny_call_gathers(const bny_call *call) { return bny_payload_of(call)->motion == BNY_MOTION_GATHER; }

/* Returns the bytes of a message of rows, padded if they have statistics. */
static inline size_t bny_payload_bytes(const bny_payload *payload, int64_t rows, size_t row_bytes) {
  return bny_rows_layout(payload->has_statistics, rows, row_bytes).bytes;
}
