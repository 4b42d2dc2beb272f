/* SPDX-License-Identifier: Apache-2.0 */
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
  return fflush(stdout) == 0 || tool_error_stdout(error);
}

static bool write_json(const gpu_facts *facts, const decode_device_settings *settings,
                       const decode_device_result *result, tool_error *error) {
  const decode_shape *shape = &settings->shape;
  bool several = settings->nranks > 1;
  json_t *o = json_object();
  json_object_set_new(o, "device", tool_json_gpu(facts));
  json_object_set_new(o, "ranks", json_integer(settings->nranks));
  json_object_set_new(o, "batch", json_integer(shape->batch));
  json_object_set_new(o, "heads", json_integer(shape->heads));
  json_object_set_new(o, "kv_heads", json_integer(shape->kv_heads));
  json_object_set_new(o, "head_dim", json_integer(shape->head_dim));
  json_object_set_new(o, "keys", json_integer(shape->tokens));
  json_object_set_new(o, "dtype", json_string(tool_dtype_name(settings->dtype)));
  json_object_set_new(o, "wire", json_string(tool_dtype_name(settings->wire)));
  json_object_set_new(o, "kv_bytes", json_integer((json_int_t)result->kv_bytes));
  json_object_set_new(o, "caches", json_integer(result->caches));
  json_object_set_new(o, "runs_in_graph", json_integer(result->runs));
  json_object_set_new(o, "repeat", json_integer(settings->repeat));
  json_object_set_new(o, "kernel", json_string(result->kernel));
  json_object_set_new(o, "attention_us", json_real(result->attention_p50_us));
  json_object_set_new(o, "attention_p99_us", json_real(result->attention_p99_us));
  json_object_set_new(o, "copy_gbps", json_real(result->copy_gbps));
  json_object_set_new(o, "share_of_copy", json_real(result->copy_share));
  json_object_set_new(o, "apart_us", several ? json_real(result->apart_p50_us) : json_null());
  json_object_set_new(o, "fused_us", several ? json_real(result->fused_p50_us) : json_null());
  json_object_set_new(o, "fused", json_string(result->fused));
  json_object_set_new(o, "worst_error", json_real(result->worst_error));
  json_object_set_new(o, "verified", json_boolean(result->verified));
  return tool_json_write(o, stdout, error);
}

bool decode_device_report(const gpu_facts *facts, const decode_device_settings *settings,
                          const decode_device_result *result, bool json, tool_error *error) {
  return (json ? write_json : write_text)(facts, settings, result, error);
}
