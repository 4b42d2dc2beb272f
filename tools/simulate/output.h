/* SPDX-License-Identifier: Apache-2.0
 * Writes timelines of simulated plans, and plans in the GOAL format. */
#pragma once

#include <stdio.h>

#include "tools/common/util.h"
#include "tools/simulate/simulate.h"

/* Writes the events of a run as JSON for Perfetto, like BANYAN_TRACE. */
bool sim_timeline_write(const char *path, const sim_job *job, const char *title, tool_error *error);

/* Writes GOAL, the input of LogGOPSim and ATLAHS: the sends, receives and calculations of ranks, with their
 * dependencies. A message's tag is its slot. Each step depends on the last one before it that is no send, because
 * banyan's executors run steps in order and do not wait for sends. */
void sim_goal_write(FILE *stream, const sim_job *job);
