/* SPDX-License-Identifier: Apache-2.0
 * The report of combines on a GPU, on stdout. */
#ifndef BNY_TOOLS_PERF_DEVICE_REPORT_H
#define BNY_TOOLS_PERF_DEVICE_REPORT_H

#include "tools/common/gpu.h"
#include "tools/perf/device.h"

void perf_device_report_header(const gpu_facts *facts, const perf_device_settings *settings, const perf_case *perf,
                               const perf_protocol *protocol);
void perf_device_report_row(const perf_device_row *row);

/* {"device": {...}, "rows": [...]}. */
bool perf_device_report_json(const gpu_facts *facts, const perf_device_settings *settings, const perf_case *cases,
                             const perf_device_row *rows, int count, const perf_protocol *protocol, tool_error *error);

#endif
