/* SPDX-License-Identifier: Apache-2.0
 * Counts rounds, messages and bytes of plans by level, from the view of one rank. */
#pragma once

#include "tools/plan/case.h"

typedef struct plan_level_count {
  int64_t rounds;   /* waits after new data was sent, by the farthest awaited rank */
  int64_t messages; /* received */
  int64_t bytes_sent, bytes_received;
} plan_level_count;

/* For each field, the maximum over the examined ranks. */
typedef struct plan_counts {
  int32_t nranks; /* examined ranks: all, or an even sample with first and last */
  plan_level_count levels[BNY_LEVELS_MAX];
  int64_t work_bytes; /* encoded, merged, delivered: every source counted */
  int64_t slots, steps, outbox_bytes;
} plan_counts;

enum { PLAN_COUNT_RANKS = 64 };

/* Makes plans of up to PLAN_COUNT_RANKS ranks. */
bool plan_counts_make(const plan_ranks *ranks, const bny_request *request, plan_counts *counts, tool_error *error);

/* Converts rounds, further messages and bytes at a level to time, by the cost model of src/plan/select.c. */
double plan_count_ns(const bny_link_cost *link, const plan_level_count *count);
