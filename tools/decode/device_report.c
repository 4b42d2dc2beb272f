/* SPDX-License-Identifier: Apache-2.0
 * Prints the results of a device, as text or as JSON. */
#include "tools/decode/decode.h"

#include <inttypes.h>
#include <stdio.h>

#include "tools/common/json.h"

static bool write_text(const gpu_facts *facts, const decode_device_settings *settings,
                       const decode_device_result *result, tool_error *error) {
  const decode_shape *shape = &settings->shape;
  printf("# banyan-decode %s: %d ranks, threads of one process on device %d (%s)\n", banyan_version(), settings->nranks,
         facts->ordinal, facts->name);
  printf("# batch %d, %d/%d heads x %d, %d keys, %s, wire %s; %d runs in a graph, over %d caches of %" PRId64
         " bytes\n",
         shape->batch, shape->heads, shape->kv_heads, shape->head_dim, shape->tokens, tool_dtype_name(settings->dtype),
         tool_dtype_name(settings->wire), result->runs, result->caches, result->kv_bytes);
  printf("# %s\n", result->kernel);
  printf("attention            %10.2f us, p99 %.2f us\n", result->attention_p50_us, result->attention_p99_us);
  printf("of a copy's speed    %10.1f %%: a copy reads and writes %.0f GB/s\n", 100 * result->copy_share,
         result->copy_gbps);
  if (settings->nranks > 1) {
    printf("then a combine       %10.2f us\n", result->apart_p50_us);
    printf("both at once         %10.2f us: %s\n", result->fused_p50_us, result->fused);
  }
  printf("worst error          %10.1e of sum(p |v|) / d: %s\n", result->worst_error,
         result->verified ? "verified" : "WRONG");
  return tool_flush(stdout) || tool_error_stdout(error);
}

static bool write_json(const gpu_facts *facts, const decode_device_settings *settings,
                       const decode_device_result *result, tool_error *error) {
  const decode_shape *shape = &settings->shape;
  bool several = settings->nranks > 1;
  json_t *o = json_pack(
      "{s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:I, s:i, s:i, s:i, s:s, s:o, s:o, s:o, s:o, "
      "s:o, s:o, s:s, s:o, s:b}",
      "device", tool_json_gpu(facts), "ranks", settings->nranks, "batch", shape->batch, "heads", shape->heads,
      "kv_heads", shape->kv_heads, "head_dim", shape->head_dim, "keys", shape->tokens, "dtype",
      tool_dtype_name(settings->dtype), "wire", tool_dtype_name(settings->wire), "kv_bytes",
      (json_int_t)result->kv_bytes, "caches", result->caches, "runs_in_graph", result->runs, "repeat", settings->repeat,
      "kernel", result->kernel, "attention_us", tool_json_real(result->attention_p50_us), "attention_p99_us",
      tool_json_real(result->attention_p99_us), "copy_gbps", tool_json_real(result->copy_gbps), "share_of_copy",
      tool_json_real(result->copy_share), "apart_us", several ? tool_json_real(result->apart_p50_us) : json_null(),
      "fused_us", several ? tool_json_real(result->fused_p50_us) : json_null(), "fused", result->fused, "worst_error",
      tool_json_real(result->worst_error), "verified", result->verified);
  return tool_json_write(o, stdout, error);
}

bool decode_device_report(const gpu_facts *facts, const decode_device_settings *settings,
                          const decode_device_result *result, bool json, tool_error *error) {
  return (json ? write_json : write_text)(facts, settings, result, error);
}
