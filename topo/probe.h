/* SPDX-License-Identifier: Apache-2.0
 *
 * Probes: what this machine says of itself. Each is one file and one row of probes.def. They run in that order and fill
 * one model: the first that can builds the host (packages, NUMA nodes, PCI bridges, GPUs, NICs), the others find its
 * devices by bus id or name and add what they know. A probe whose library, driver or hardware is not there says so and
 * changes nothing; that is no error. Facts are marked BNY_TOPO_PROBED.
 *
 * Foreign headers stay in the file of their probe. Libraries that need hardware (NVML) are loaded when the probe runs,
 * so that one build runs everywhere. No probe waits for hardware to wake up, and none writes anything. */
#ifndef BNY_TOPO_PROBE_H
#define BNY_TOPO_PROBE_H

#include "topo/model.h"

typedef enum bny_topo_outcome {
  BNY_TOPO_PROBE_FOUND,
  BNY_TOPO_PROBE_NOTHING,  /* it looked, and there is nothing of its kind */
  BNY_TOPO_PROBE_ABSENT,   /* no library, no driver, or not built in */
  BNY_TOPO_PROBE_FAILED,   /* there, but it does not answer as it should */
  BNY_TOPO_PROBE_OUTCOMES
} bny_topo_outcome;

typedef struct bny_topo_probe_report {
  const char *name;         /* of the probe */
  bny_topo_outcome outcome;
  char text[200];           /* "2 packages, 4 NUMA nodes, 8 GPUs"; "libnvidia-ml.so.1 is not there: no NVIDIA driver" */
} bny_topo_probe_report;

/* Where probes look; tests look elsewhere. */
typedef struct bny_topo_probe_options {
  const char *sysfs;        /* NULL: "/sys"; hwloc, which looks there and nowhere else, is not asked for another */
  const char *nvml;         /* NULL: "libnvidia-ml.so.1" */
} bny_topo_probe_options;

typedef struct bny_topo_probe {
  const char *name;
  /* report->name is set. The model holds what the probes before it found. */
  void (*run)(const bny_topo_probe_options *options, bny_topo *topo, bny_topo_probe_report *report);
} bny_topo_probe;

extern const bny_topo_probe *const bny_topo_probes[]; /* ends with NULL */

enum { BNY_TOPO_PROBES_MAX = 8 };

/* A checked model of this machine, and what each probe said; `options` may be NULL. `reports` has room for
 * BNY_TOPO_PROBES_MAX, *nreports receives their number; both may be NULL. NULL and *error on failure: no memory, or
 * probes that contradict themselves. A machine of which nothing is known is a model with a host and nothing in it. */
bny_topo *bny_topo_probe_machine(const bny_topo_probe_options *options, bny_topo_probe_report *reports,
                                 int32_t *nreports, bny_topo_error *error);

const char *bny_topo_outcome_name(bny_topo_outcome outcome); /* "found", "nothing", "absent", "failed" */

#endif
