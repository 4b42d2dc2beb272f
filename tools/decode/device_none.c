/* SPDX-License-Identifier: Apache-2.0
 * Replaces device_decode.c in builds without CUDA's headers. */
#include "tools/decode/decode.h"

bool decode_device_work(const decode_device_settings *settings, bool json, bool *verified, tool_error *error) {
  (void)settings, (void)json, (void)verified;
  return tool_error_usage(error, tool_error_set(error, "--device: this program was built without CUDA"));
}
