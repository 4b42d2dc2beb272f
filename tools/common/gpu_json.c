/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/gpu_json.h"

#include <stdio.h>

json_t *gpu_facts_json(const gpu_facts *facts) {
  char version[24], compute[24];
  snprintf(version, sizeof version, "%d.%d", facts->cuda_version / 1000, facts->cuda_version % 1000 / 10);
  snprintf(compute, sizeof compute, "%d.%d", facts->compute / 10, facts->compute % 10);
  return json_pack("{s:s, s:i, s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:I}", "name", facts->name, "ordinal",
                   (int)facts->ordinal, "compute", compute, "cuda", version, "sms", (int)facts->sms, "clock_mhz_max",
                   (int)facts->clock_mhz, "memory_clock_mhz_max", (int)facts->memory_clock_mhz, "bus_bits",
                   (int)facts->bus_bits, "cache_bytes", (json_int_t)facts->cache_bytes, "memory_bytes",
                   (json_int_t)facts->memory_bytes);
}
