/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOPO_MEASURE_COSTS_H
#define TOPO_MEASURE_COSTS_H

#include "tools/topo/measure/measure.h"

/* Returns the text of a file for BANYAN_COSTS, of this machine, for the caller to free; NULL and *error. */
char *topo_costs_text(const topo_measured *measured, tool_error *error);

#endif
