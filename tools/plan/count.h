/* SPDX-License-Identifier: Apache-2.0
 * Counts in plans: rounds, messages and bytes by level, as a rank sees them. */
#ifndef BNY_TOOLS_PLAN_COUNT_H
#define BNY_TOOLS_PLAN_COUNT_H

#include "tools/plan/case.h"

typedef struct plan_level_count {
  int64_t rounds;   /* times that a rank waits after it had something new to send; by the farthest it waits for */
  int64_t messages; /* received */
  int64_t bytes_sent, bytes_received;
} plan_level_count;

/* The largest number of any rank that was looked at, for each field. */
typedef struct plan_counts {
  int32_t nranks; /* looked at: all, or some spread evenly over all, with the first and the last */
  plan_level_count levels[BNY_LEVELS_MAX];
  int64_t work_bytes; /* encoded, merged, delivered: every source counted */
  int64_t slots, steps, outbox_bytes;
} plan_counts;

enum { PLAN_COUNT_RANKS = 64 };

/* Makes plans of up to PLAN_COUNT_RANKS ranks. */
bool plan_counts_make(const plan_ranks *ranks, const bny_request *request, plan_counts *counts, tool_error *error);

/* Converts rounds, further messages and bytes at a level to time, as selection counts them: see src/plan/select.c. */
double plan_count_ns(const bny_link_cost *link, const plan_level_count *count);

#endif
