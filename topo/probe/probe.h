/* SPDX-License-Identifier: Apache-2.0
 *
 * Probes read this machine's topology. Each is one file and one row of probes.def. They run in that order and fill one
 * model. The first that can builds the host (packages, NUMA nodes, PCI bridges, GPUs, NICs); the others find its
 * devices by bus id or name and add data. A probe without its library, driver or hardware reports that and changes
 * nothing, which is no error. Facts are marked BNY_TOPO_PROBED.
 *
 * Foreign headers stay in the file of their probe. Libraries that need hardware (NVML) are loaded at run time, so that
 * one build runs everywhere. No probe waits for hardware to wake up, and none writes anything. */
#ifndef BNY_TOPO_PROBE_H
#define BNY_TOPO_PROBE_H

#include "topo/model/model.h"

typedef enum bny_topo_outcome {
  BNY_TOPO_PROBE_FOUND,
  BNY_TOPO_PROBE_NOTHING, /* it looked and found nothing of its kind */
  BNY_TOPO_PROBE_ABSENT,  /* no library, no driver, or not built in */
  BNY_TOPO_PROBE_FAILED,  /* present, but not working properly */
  BNY_TOPO_PROBE_OUTCOMES
} bny_topo_outcome;

typedef struct bny_topo_probe_report {
  const char *name; /* the probe's name */
  bny_topo_outcome outcome;
  char text[200]; /* "2 packages, 4 NUMA nodes, 8 GPUs"; "libnvidia-ml.so.1 is not there: no NVIDIA driver" */
} bny_topo_probe_report;

/* Where probes look; tests use other places. */
typedef struct bny_topo_probe_options {
  const char *sysfs; /* NULL: "/sys"; hwloc is skipped for other values, because it reads only /sys */
  const char *nvml;  /* NULL: "libnvidia-ml.so.1" */
  bool quick;        /* without hwloc, which takes most of the time: sysfs has the devices as well */
} bny_topo_probe_options;

typedef struct bny_topo_probe {
  const char *name;
  /* report->name is set. The model holds the results of earlier probes. */
  void (*run)(const bny_topo_probe_options *options, bny_topo *topo, bny_topo_probe_report *report);
} bny_topo_probe;

extern const bny_topo_probe *const bny_topo_probes[]; /* ends with NULL */

enum { BNY_TOPO_PROBES_MAX = 8 };

/* Returns a checked model of this machine that the caller frees, and a report per probe. `options` may be NULL.
 * `reports` has room for BNY_TOPO_PROBES_MAX, *nreports receives their number; both may be NULL. Returns NULL and
 * *error without memory, or if probes contradict one another. An unknown machine is a model with an empty host. */
bny_topo *bny_topo_probe_machine(const bny_topo_probe_options *options, bny_topo_probe_report *reports,
                                 int32_t *nreports, bny_topo_error *error);

const char *bny_topo_outcome_name(bny_topo_outcome outcome); /* "found", "nothing", "absent", "failed" */

#endif
