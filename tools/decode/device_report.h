/* SPDX-License-Identifier: Apache-2.0
 * The report of a decode on a GPU, on stdout. */
#ifndef BNY_TOOLS_DECODE_DEVICE_REPORT_H
#define BNY_TOOLS_DECODE_DEVICE_REPORT_H

#include "tools/decode/device.h"
#include "tools/common/gpu.h"

bool decode_device_report(const gpu_facts *facts, const decode_device_settings *settings,
                          const decode_device_result *result, bool json, tool_error *error);

#endif
