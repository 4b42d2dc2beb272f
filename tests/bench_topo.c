/* SPDX-License-Identifier: Apache-2.0
 * usage: bench_topo FILE|SYNTHETIC...   how long the import of each takes: the least and the median of many runs */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "topo/model.h"

enum { RUNS = 51 };

static double now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static int by_size(const void *a_void, const void *b_void) {
  const double *a = a_void, *b = b_void;
  return *a < *b ? -1 : *a > *b;
}

int main(int count, char **arguments) {
  int failed = 0;
  printf("%10s %10s %8s %8s  %s\n", "least ms", "median ms", "nodes", "links", "import of");
  for (int i = 1; i < count; i++) {
    double times[RUNS];
    bny_topo_error error = {.text = ""};
    bny_topo *topo = NULL;
    for (int run = 0; run < RUNS; run++) {
      bny_topo_free(topo);
      double began = now_ms();
      topo = bny_topo_load(arguments[i], NULL, &error);
      times[run] = now_ms() - began;
    }
    qsort(times, RUNS, sizeof times[0], by_size);
    if (topo == NULL) {
      printf("%10.3f %10.3f %8s %8s  %s\n", times[0], times[RUNS / 2], "-", "-", error.text);
      failed++;
    } else {
      printf("%10.3f %10.3f %8d %8d  %s\n", times[0], times[RUNS / 2], topo->nnodes, topo->nlinks, arguments[i]);
    }
    bny_topo_free(topo);
  }
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
