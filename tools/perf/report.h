/* SPDX-License-Identifier: Apache-2.0
 * banyan-perf prints a table with comment lines before and after it, or JSON. */
#ifndef BNY_TOOLS_PERF_REPORT_H
#define BNY_TOOLS_PERF_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "tools/perf/measure.h"

/* Collective: where each rank runs. Only rank 0 prints, to stream, if it is not NULL. */
bool perf_report_header(const perf_case *perf, const perf_protocol *protocol, FILE *stream, tool_error *error);

void perf_report_row(const perf_row *row, FILE *stream);
void perf_report_trailer(const perf_row *rows, int count, const perf_protocol *protocol, FILE *stream);

/* {"rows": [...]} on standard output. */
bool perf_report_json(const perf_case *perf, const perf_row *rows, int count, const perf_protocol *protocol,
                      tool_error *error);

#endif
