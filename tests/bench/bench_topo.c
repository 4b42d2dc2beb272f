/* SPDX-License-Identifier: Apache-2.0
 * usage: bench_topo [FILE|SYNTHETIC...]
 *
 * How long each takes to import, and its levels to derive: the least and the median of many runs. Without arguments
 * descriptions of 16,384 GPUs, and shapes whose paths were once slow to find. */
#include <stdio.h>
#include <stdlib.h>

#include "tools/common/util.h"
#include "topo/derive/levels.h"
#include "topo/model/model.h"

enum { RUNS = 51 };
static const double enough_ms = 3000; /* for the runs of one kind */

static const char *const usual[] = {
    "leaf:32@rails host:64 nvswitch package:2 numa bridge:4 pci gpu@sm90@gen5x16 nic@400g",
    "spine:4 leaf:8@rails host:64 xgmi package:2 numa:4 bridge pci gpu@gfx942 nic@400g",
    "leaf:32 nvswitch host:64 gpu:8@sm100 nic:8@400g",
    "host:1024 pci:8 gpu:2",
    "host:64 package:2 pci:16 gpu:2",
};

static double ms(void) { return (double)tool_now_ns() / 1e6; }

static void print_times(double *times, int runs) {
  printf("%10.3f %10.3f ", tool_percentile(times, (size_t)runs, 0), tool_percentile(times, (size_t)runs, 50));
}

static bny_topo *time_import(const char *from, bny_topo_error *error) {
  double times[RUNS], began = ms();
  bny_topo *topo = NULL;
  int runs = 0;
  while (runs < RUNS && (runs == 0 || ms() - began < enough_ms)) {
    bny_topo_free(topo);
    double start = ms();
    topo = bny_topo_load(from, NULL, error);
    times[runs++] = ms() - start;
  }
  print_times(times, runs);
  return topo;
}

static void time_derive(const bny_topo *topo) {
  double times[RUNS], began = ms();
  int runs = 0;
  while (runs < RUNS && (runs == 0 || ms() - began < enough_ms)) {
    double start = ms();
    bny_topo_levels *levels = bny_topo_derive(topo);
    times[runs++] = ms() - start;
    bny_topo_levels_free(levels);
  }
  print_times(times, runs);
}

int main(int count, char **arguments) {
  int failed = 0, given = count > 1 ? count - 1 : (int)(sizeof usual / sizeof usual[0]);
  printf("%10s %10s %10s %10s %8s %8s\n", "import ms", "median", "derive ms", "median", "nodes", "links");
  for (int i = 0; i < given; i++) {
    const char *from = count > 1 ? arguments[i + 1] : usual[i];
    bny_topo_error error = {.text = ""};
    bny_topo *topo = time_import(from, &error);
    if (topo == NULL) {
      printf("%10s %10s %8s %8s  %s\n", "-", "-", "-", "-", error.text);
      failed++;
    } else {
      time_derive(topo);
      printf("%8d %8d  %s\n", topo->nnodes, topo->nlinks, from);
    }
    bny_topo_free(topo);
  }
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
