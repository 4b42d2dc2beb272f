/* SPDX-License-Identifier: Apache-2.0
 * The steps of a plan for each kind of payload. plan/payload.h has the facts of the kinds. A new kind is a row in both
 * tables. */
#pragma once

#include "exec/run.h"

typedef struct bny_payload_ops {
  /* COPY: the caller's input to a slot. */
  banyan_status (*copy)(bny_run *run, int32_t step, const bny_bound_step *bound);
  /* MERGE: sources to a slot. */
  void (*merge)(bny_run *run, int32_t step, int half);
  /* DELIVER: sources to the caller's result. */
  void (*deliver)(bny_run *run, int32_t step, int half);
  /* Returns the error of a complete run whose report has `lost`. NULL: no row can be lost. */
  banyan_status (*report)(const bny_run_report *report, int32_t rank, const bny_binding *binding);
} bny_payload_ops;

extern const bny_payload_ops bny_payload_table[BNY_COLLECTIVES];
