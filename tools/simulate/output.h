/* SPDX-License-Identifier: Apache-2.0
 * Writes timelines of simulated plans. */
#pragma once

#include <stdio.h>

#include "tools/common/util.h"
#include "tools/simulate/simulate.h"

/* Writes the events of a run as JSON for Perfetto, like BANYAN_TRACE. */
bool sim_timeline_write(const char *path, const sim_job *job, const char *title, tool_error *error);
