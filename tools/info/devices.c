/* SPDX-License-Identifier: Apache-2.0
 * banyan-info devices: what this machine computes and sends with, and which kernels are chosen for it. */
#include <string.h>

#include "attention.h"
#include "tools/info/cuda.h"
#include "tools/info/section.h"
#include "op.h"
#include "base/options.h"
#include "base/quota.h"
#include "locality/price.h"
#include "topo/probe/probe.h"

/* ---- CPU --------------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define FEATURE(name) {name, __builtin_cpu_supports(name) != 0},
#endif

/* Those that kernels are written for, or may be. */
static json_t *features(void) {
  json_t *names = json_array();
#if defined(__x86_64__)
  const struct {
    const char *name;
    bool here;
  } all[] = {FEATURE("sse4.2") FEATURE("avx") FEATURE("avx2") FEATURE("fma") FEATURE("avx512f") FEATURE("avx512bw")
                 FEATURE("avx512dq") FEATURE("avx512vl") FEATURE("avx512vnni") FEATURE("avx512vbmi")};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (all[i].here) json_array_append_new(names, json_string(all[i].name));
  }
#endif
  return names;
}

static json_t *kernel_tables(void) {
  json_t *tables = json_array();
  const bny_kernels *chosen = bny_kernels_find(bny_option_text("BANYAN_KERNELS"));
  for (int i = 0; bny_kernels_table[i] != NULL; i++) {
    const bny_kernels *one = bny_kernels_table[i];
    json_array_append_new(tables, json_pack("{s:s, s:b, s:b}", "name", one->name, "supported", one->supported(),
                                            "chosen", one == chosen));
  }
  return tables;
}

static json_t *cpu(void) {
  bny_machine machine;
  int cores = tool_cpus();
  bny_machine_find("", &machine);
  bny_quota quotas[BNY_QUOTAS];
  bny_quotas_find("", quotas);
  bool counts = quotas[0].group && quotas[0].cpus < cores;
  const char *wanted = bny_option_text("BANYAN_KERNELS");
  const bny_attention_kernels *attention = bny_kernels_find(wanted) ? bny_attention_kernels_beside(wanted) : NULL;
  return json_pack("{s:s, s:i, s:o, s:s, s:o, s:o, s:s?}", "model", machine.cpu[0] ? machine.cpu : "unknown",
                   "cpus_allowed", cores, "cpu_quota", quotas[0].group ? json_real(quotas[0].cpus) : json_null(),
                   "threads_limited_by", counts ? "quota" : "affinity", "features", features(), "kernels",
                   kernel_tables(), "attention_kernels", attention != NULL ? attention->name : NULL);
}

/* ---- what the probes of topo/ found ------------------------------------------------------------------------------ */

static json_t *nodes_of(const bny_topo *topo, bny_topo_kind kind) {
  json_t *list = json_array();
  for (int32_t i = 0; i < topo->nnodes; i++) {
    const bny_topo_node *node = &topo->nodes[i];
    if (node->kind == kind) {
      json_array_append_new(
          list, json_pack("{s:s, s:s?, s:s?}", "name", node->name, "model", node->model, "bus_id", node->bus_id));
    }
  }
  return list;
}

static json_t *gather(const info_request *request, tool_error *error) {
  (void)request;
  bny_topo_probe_report reports[BNY_TOPO_PROBES];
  bny_topo_error why = {.text = ""};
  bny_topo *topo = bny_topo_probe_machine(NULL, reports, &why);
  if (topo == NULL) {
    tool_error_set(error, "this machine: %s", why.text);
    return NULL;
  }
  json_t *probes = json_array();
  for (int32_t i = 0; i < BNY_TOPO_PROBES; i++) {
    json_array_append_new(probes, json_pack("{s:s, s:s, s:s}", "name", reports[i].name, "outcome",
                                            bny_topo_outcome_name(reports[i].outcome), "text", reports[i].text));
  }
  json_t *facts = json_pack("{s:o, s:o, s:o, s:o, s:o}", "cpu", cpu(), "cuda", info_cuda(), "gpus",
                            nodes_of(topo, BNY_TOPO_GPU), "nics", nodes_of(topo, BNY_TOPO_NIC), "probes", probes);
  bny_topo_free(topo);
  return facts;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void print_cpu(const json_t *facts, FILE *stream) {
  size_t i;
  json_t *one;
  tool_page page;
  const json_t *quota = json_object_get(facts, "cpu_quota");
  info_row(stream, "CPU",
           tool_format("%s, %lld allowed%s; the default number of threads follows the %s", info_text(facts, "model"),
                       (long long)json_integer_value(json_object_get(facts, "cpus_allowed")),
                       json_is_real(quota) ? tool_format(", a CPU quota of %.4g", json_real_value(quota)) : "",
                       info_text(facts, "threads_limited_by")));
  FILE *out = tool_page_begin(&page);
  json_array_foreach(json_object_get(facts, "features"), i, one) { fprintf(out, " %s", json_string_value(one)); }
  info_row(stream, "features", tool_page_end(&page));
  out = tool_page_begin(&page);
  bool any = false;
  json_array_foreach(json_object_get(facts, "kernels"), i, one) {
    bool chosen = json_is_true(json_object_get(one, "chosen")), here = json_is_true(json_object_get(one, "supported"));
    fprintf(out, " %s%s", info_text(one, "name"), chosen ? " (chosen)" : here ? "" : " (not of this processor)");
    any |= chosen;
  }
  fprintf(out, "%s", any ? "" : "; BANYAN_KERNELS names none of these");
  info_row(stream, "kernels", tool_page_end(&page));
}

static void print_nodes(const json_t *nodes, const char *what, FILE *stream) {
  size_t i;
  json_t *one;
  json_array_foreach(nodes, i, one) {
    info_row(stream, what,
             tool_format("%s %s %s", info_text(one, "name"), info_text(one, "model"), info_text(one, "bus_id")));
  }
  if (json_array_size(nodes) == 0) info_row(stream, what, "none found");
}

static void print(const json_t *facts, FILE *stream) {
  size_t i;
  json_t *one;
  print_cpu(json_object_get(facts, "cpu"), stream);
  info_row(stream, "CUDA", info_text(json_object_get(facts, "cuda"), "text"));
  print_nodes(json_object_get(facts, "gpus"), "GPU", stream);
  print_nodes(json_object_get(facts, "nics"), "NIC", stream);
  json_array_foreach(json_object_get(facts, "probes"), i, one) {
    info_row(stream, tool_format("probe %-5s", info_text(one, "name")),
             tool_format("%s: %s", info_text(one, "outcome"), info_text(one, "text")));
  }
}

const info_section info_devices = {"devices", "Devices", gather, print};
