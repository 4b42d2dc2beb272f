/* SPDX-License-Identifier: Apache-2.0
 * Timelines of simulated plans, and plans as GOAL. */
#ifndef BNY_TOOLS_SIMULATE_OUTPUT_H
#define BNY_TOOLS_SIMULATE_OUTPUT_H

#include <stdio.h>

#include "tools/common/util.h"
#include "tools/simulate/simulate.h"

enum { SIM_DRAWN_RANKS = 64 }; /* at most; more ranks are thinned out evenly */

/* Writes the events of a run: as JSON for Perfetto, in the form of BANYAN_TRACE, or as a picture where the path ends in
 * .svg. */
bool sim_timeline_write(const char *path, const sim_job *job, const char *title, tool_error *error);

/* GOAL is the input of LogGOPSim and ATLAHS: a rank's sends, receives and calculations, and what each of them requires.
 * A message's tag is its slot. A step requires the one before it on its rank, as banyan's executors run them. */
void sim_goal_write(FILE *stream, const sim_job *job);

#endif
