/* SPDX-License-Identifier: Apache-2.0
 * Replaces device_combine.c in builds without CUDA's headers. */
#include "tools/perf/perf.h"

bool perf_device_work(const perf_device_settings *settings, const perf_case *cases, int count,
                      const perf_protocol *protocol, bool json, bool *correct, tool_error *error) {
  (void)settings, (void)cases, (void)count, (void)protocol, (void)json, (void)correct;
  return tool_error_usage(error, tool_error_set(error, "--device: this program was built without CUDA"));
}
