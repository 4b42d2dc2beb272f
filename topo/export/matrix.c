/* SPDX-License-Identifier: Apache-2.0
 * Writes the matrix of paths as `nvidia-smi topo -m` prints it: tabs between cells, one matrix for each host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/export/export.h"

typedef struct writing {
  const bny_topo *topo;
  FILE *out;
  int32_t *devices, gpus, count; /* devices of a host: GPUs by number, then NICs by number */
} writing;

static void write_name(const writing *w, int32_t i) {
  if (i < w->gpus)
    fprintf(w->out, "GPU%d", i);
  else
    fprintf(w->out, "NIC%d", i - w->gpus);
}

static void write_cell(const writing *w, int32_t i, int32_t j) {
  bny_topo_path path = bny_topo_path_between(w->topo, w->devices[i], w->devices[j]);
  bool xgmi = false;
  int32_t links = path == BNY_TOPO_PATH_NVL ? bny_topo_links_between(w->topo, w->devices[i], w->devices[j], &xgmi) : 0;
  if (path == BNY_TOPO_PATH_SELF)
    fputs("\t X ", w->out);
  else if (links > 0 && !xgmi)
    fprintf(w->out, "\tNV%d", links);
  else
    fprintf(w->out, "\t%s",
            path >= BNY_TOPO_PATH_NET   ? "N/A"
            : path == BNY_TOPO_PATH_NVL ? "XGMI"
                                        : bny_topo_path_name(path));
}

/* Returns 32 bits of the CPU mask "00000000,0000ffff" from CPU `first` on. The last word of the mask contains CPU 0. */
static uint32_t cpus_from(const char *mask, int first) {
  const char *at = mask + strlen(mask);
  for (int word = 0; at > mask; word++) {
    while (at > mask && at[-1] != ',') at--;
    if (word == first / 32) return (uint32_t)strtoul(at, NULL, 16);
    if (at > mask) at--;
  }
  return 0;
}

static bool has_cpu(const char *mask, int cpu) { return cpus_from(mask, cpu) >> cpu % 32 & 1; }

/* Writes the mask as "0-31,64-95". */
static void write_cpus(FILE *out, const char *mask) {
  int most = 8 * (int)strlen(mask);
  const char *comma = "";
  for (int cpu = 0, end; cpu < most; cpu = end + 1) {
    for (end = cpu; has_cpu(mask, end);) end++;
    if (end > cpu) fprintf(out, end > cpu + 1 ? "%s%d-%d" : "%s%d", comma, cpu, end - 1);
    if (end > cpu) comma = ",";
  }
}

static void write_affinity(const writing *w, int32_t gpu, int32_t numa) {
  char value[BNY_TOPO_ATTRIBUTES_BYTES];
  if (bny_topo_attribute(&w->topo->nodes[gpu], "cpus", value))
    fputs(value, w->out);
  else if (numa >= 0 && bny_topo_attribute(&w->topo->nodes[numa], "affinity", value))
    write_cpus(w->out, value);
}

/* NICs have no affinity columns. */
static void write_row(const writing *w, int32_t i) {
  int32_t numa = bny_topo_ancestor(w->topo, w->devices[i], BNY_TOPO_NUMA);
  write_name(w, i);
  for (int32_t j = 0; j < w->count; j++) write_cell(w, i, j);
  fputs(i < w->gpus ? "\t" : "\t\t\t\t", w->out);
  if (i < w->gpus) write_affinity(w, w->devices[i], numa);
  if (i < w->gpus) fputc('\t', w->out);
  if (i < w->gpus && numa >= 0 && w->topo->nodes[numa].index >= 0) fprintf(w->out, "%d", w->topo->nodes[numa].index);
  fputs(i < w->gpus ? "\t\tN/A\n" : "\n", w->out);
}

static void write_legend(const writing *w) {
  static const char legend[] =
      "\nLegend:\n\n"
      "  X    = Self\n"
      "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
      "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
      "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
      "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
      "  PIX  = Connection traversing at most a single PCIe bridge\n"
      "  NV#  = Connection traversing a bonded set of # NVLinks\n";
  fputs(legend, w->out);
  if (w->count > w->gpus) fputs("\nNIC Legend:\n\n", w->out);
  for (int32_t i = w->gpus; i < w->count; i++) {
    fputs("  ", w->out);
    write_name(w, i);
    fprintf(w->out, ": %s\n", w->topo->nodes[w->devices[i]].name);
  }
}

static void list_devices(writing *w, int32_t host) {
  w->count = w->gpus = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t n = host; n < w->topo->nnodes; n++) {
      const bny_topo_node *node = &w->topo->nodes[n];
      if (node->kind != (pass == 0 ? BNY_TOPO_GPU : BNY_TOPO_NIC) ||
          bny_topo_ancestor(w->topo, n, BNY_TOPO_HOST) != host)
        continue;
      int32_t at = w->count++;
      for (; at > w->gpus && w->topo->nodes[w->devices[at - 1]].index > node->index; at--)
        w->devices[at] = w->devices[at - 1];
      w->devices[at] = n;
    }
    if (pass == 0) w->gpus = w->count;
  }
}

static bool write_host(writing *w, int32_t host, bool first) {
  list_devices(w, host);
  if (w->gpus == 0) return false;
  if (!first) fputc('\n', w->out);
  for (int32_t i = 0; i < w->count; i++) {
    fputc('\t', w->out);
    write_name(w, i);
  }
  fputs("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n", w->out);
  for (int32_t i = 0; i < w->count; i++) write_row(w, i);
  write_legend(w);
  return true;
}

char *bny_topo_export_matrix(const bny_topo *topo, bny_topo_error *error) {
  char *text = NULL;
  size_t bytes = 0;
  writing w = {.topo = topo, .devices = malloc(((size_t)topo->nnodes + 1) * sizeof *w.devices)};
  bool any = false, good = w.devices != NULL;
  w.out = good ? open_memstream(&text, &bytes) : NULL;
  for (int32_t n = 0; w.out != NULL && n < topo->nnodes; n++)
    if (topo->nodes[n].kind == BNY_TOPO_HOST) any = write_host(&w, n, !any) || any;
  good = w.out != NULL && ferror(w.out) == 0;
  good = (w.out == NULL || fclose(w.out) == 0) && good;
  free(w.devices);
  if (good && any) return text;
  free(text);
  bny_topo_fail(error, 0, good ? "no host has a GPU" : "out of memory");
  return NULL;
}
