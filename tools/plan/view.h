/* SPDX-License-Identifier: Apache-2.0
 * The views of banyan-plan, each in its own file. They write text or one JSON object to a stream. */
#pragma once

#include <stdio.h>

#include "tools/plan/case.h"
#include "tools/plan/methods.h"

typedef struct plan_view {
  const plan_ranks *ranks;
  const plan_shape *shape;
  const plan_keys *keys;
  int32_t rank;         /* --rank; -1: not set */
  size_t memory_most;   /* limit for --prove, which fails beyond it */
  int32_t step_ns;      /* the executor's time for a step in --simulate */
  const char *scale;    /* "nic=0.5" for --simulate; NULL: none */
  const char *timeline; /* output file of --simulate; NULL: none */
  bool json;
  int32_t columns; /* width of the terminal, or 100 */
  FILE *stream;
} plan_view;

enum { PLAN_PRINT_RANKS = 16 }; /* largest number of plans that are printed without --rank */

/* Return false and set *error if the request is impossible. */
bool plan_view_print(const plan_view *view, tool_error *error);
bool plan_view_prove(const plan_view *view, tool_error *error); /* also false if the proof fails */
bool plan_view_cost(const plan_view *view, tool_error *error);
bool plan_view_simulate(const plan_view *view, tool_error *error);
bool plan_view_regret(const plan_view *view, tool_error *error);
