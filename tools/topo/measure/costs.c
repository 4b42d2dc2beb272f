/* SPDX-License-Identifier: Apache-2.0
 * Writes measurements as a BANYAN_COSTS file, which src/locality/costs.c reads. */
#include "tools/topo/measure/measure.h"

#include <stdlib.h>
#include <string.h>

#include "op.h"
#include "locality/price.h"
#include "tools/common/json.h"

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* Returns the time to merge a byte, where the bytes of each source count. It is the median over batches. Messages of 32
 * rows of 128 values fit the second-level cache, like messages that a rank merges right after receiving them. Returns 0
 * if out of memory. */
static double merge_ns_per_byte(void) {
  enum { SOURCES = 4, ROWS = 32, VALUES = 128, BATCHES = 31, REPEATS = 50 };
  const bny_kernels *kernels = bny_kernels_find(NULL);
  const bny_wire_layout layout = bny_wire_layout_make(BNY_WIRE_F32, ROWS, VALUES);
  char *memory = aligned_alloc(64, (SOURCES + 1) * ((layout.bytes + 63) / 64 * 64));
  bny_wire_view views[SOURCES + 1];
  double samples[BATCHES];
  if (memory == NULL) return 0;
  for (int i = 0; i <= SOURCES; i++) {
    char *message = memory + (size_t)i * ((layout.bytes + 63) / 64 * 64);
    views[i] = (bny_wire_view){.m = (float *)(void *)(message + layout.m),
                               .d = (float *)(void *)(message + layout.d),
                               .n = message + layout.n,
                               .token_stride = ROWS};
    for (int r = 0; r < ROWS; r++) views[i].m[r] = (float)i, views[i].d[r] = 1;
    for (int v = 0; v < ROWS * VALUES; v++) ((float *)views[i].n)[v] = 1;
  }
  const bny_box box = {.tokens = 1, .heads = ROWS, .value_dim = VALUES};
  for (int batch = 0; batch < BATCHES; batch++) {
    int64_t begin = tool_now_ns();
    for (int i = 0; i < REPEATS; i++) kernels->merge(&box, BNY_WIRE_F32, SOURCES, views, false, &views[SOURCES]);
    samples[batch] = (double)(tool_now_ns() - begin) / ((double)layout.bytes * SOURCES * REPEATS);
  }
  free(memory);
  return tool_percentile(samples, BATCHES, 50);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Returns the JSON of a class, with figures of this or a nearer one. */
static json_t *link_json(const topo_measured *measured, int class, int from) {
  static const char *const words[TOPO_CLASSES] = {"of one cache", "of one package", "of different packages"};
  const topo_measured_class *figures = &measured->classes[from];
  char source[120];
  snprintf(source, sizeof source, "the median of %d pair%s of CPUs %s, in %d sweeps", figures->npairs,
           figures->npairs == 1 ? "" : "s", words[from], measured->nsweeps);
  return json_pack("{s:s, s:f, s:o*, s:f, s:s}", "class", bny_costs_class_name((bny_link_class) class), "alpha_ns",
                   figures->alpha_ns > 1 ? figures->alpha_ns : 1, "message_ns",
                   figures->more_ns > 0 ? json_real(figures->more_ns) : NULL, "beta_ns_per_byte",
                   figures->beta_ns_per_byte, "source", source);
}

static json_t *machine_json(const bny_machine *machine) {
  return json_pack("{s:s, s:i, s:i, s:i, s:s, s:s}", "cpu", machine->cpu, "packages", machine->packages, "numa_nodes",
                   machine->numa_nodes, "cores", machine->cores, "gpus", machine->gpus, "nics", machine->nics);
}

static char *text_of(json_t *links) {
  bny_machine machine;
  double merge_ns = merge_ns_per_byte();
  bny_machine_find("", &machine);
  json_t *root = tool_json_stamped(json_pack("{s:i, s:o, s:o*, s:o}", "costs_version", BNY_COSTS_VERSION, "machine",
                                             machine_json(&machine), "merge_ns_per_byte",
                                             merge_ns > 0 ? json_real(merge_ns) : NULL, "links", links));
  char *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
  if (text == NULL) tool_no_memory();
  char *kept = tool_format("%s", text);
  json_decref(root);
  free(text);
  return kept;
}

char *topo_measured_costs(const topo_measured *measured, tool_error *error) {
  json_t *links = json_array();
  for (int class = 0; class < TOPO_CLASSES; class ++) {
    /* If all CPUs share a cache, their memory has the cost of the cache. */
    int from = class;
    if (class == BNY_LINK_MEMORY && !(measured->classes[class].beta_ns_per_byte > 0)) from = BNY_LINK_CACHE;
    if (measured->classes[from].beta_ns_per_byte > 0) json_array_append_new(links, link_json(measured, class, from));
  }
  if (json_array_size(links) > 0) return text_of(links);
  json_decref(links);
  tool_error_set(error, "--save-costs: no pair of CPUs was measured, so there are no costs to save");
  return NULL;
}
