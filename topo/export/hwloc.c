/* SPDX-License-Identifier: Apache-2.0
 * Exports the CPU part of a host as hwloc's synthetic description, if every package has as many NUMA nodes. */
#include <stdio.h>
#include <stdlib.h>

#include "topo/export/export.h"

/* Counts the NUMA nodes of each package; others are counted at index nnodes; NULL without memory. */
static int32_t *numas_count(const bny_topo *topo) {
  int32_t *numas = calloc((size_t)topo->nnodes + 1, sizeof *numas);
  for (int32_t n = 0; numas && n < topo->nnodes; n++) {
    int32_t package = bny_topo_ancestor(topo, n, BNY_TOPO_PACKAGE);
    if (topo->nodes[n].kind == BNY_TOPO_NUMA) numas[package >= 0 ? package : topo->nnodes]++;
  }
  return numas;
}

/* Returns the NUMA nodes per package; -1 if packages differ, or some are outside. */
static int32_t numas_of_each(const bny_topo *topo, const int32_t *numas) {
  int32_t each = -1;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    if (topo->nodes[n].kind != BNY_TOPO_PACKAGE) continue;
    if (each >= 0 && numas[n] != each) return -1;
    each = numas[n];
  }
  return numas[topo->nnodes] > 0 ? -1 : each;
}

char *bny_topo_export_hwloc(const bny_topo *topo, bny_topo_error *error) {
  int32_t hosts = bny_topo_count(topo, BNY_TOPO_HOST), packages = bny_topo_count(topo, BNY_TOPO_PACKAGE);
  int32_t all = bny_topo_count(topo, BNY_TOPO_NUMA), *numas = numas_count(topo);
  int32_t each = packages > 0 && numas ? numas_of_each(topo, numas) : all;
  char *text = NULL;
  free(numas);
  if (hosts > 1) {
    bny_topo_fail(error, 0, "hwloc describes one host, and here are %d", hosts);
  } else if (packages + all == 0) {
    bny_topo_fail(error, 0, "neither packages nor NUMA nodes are known");
  } else if (each < 0) {
    bny_topo_fail(error, 0, "packages hold different numbers of NUMA nodes, or some stand outside of them");
  } else if (asprintf(&text, "%s%.0d%s%s%.0d%sPU:1", packages > 0 ? "Package:" : "", packages, packages > 0 ? " " : "",
                      each > 0 ? "NUMANode:" : "", each, each > 0 ? " " : "") < 0) {
    text = NULL;
    bny_topo_fail(error, 0, "no memory");
  }
  return text;
}
