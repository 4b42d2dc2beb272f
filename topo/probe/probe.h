/* SPDX-License-Identifier: Apache-2.0
 * Probes read this machine's topology. Each is one file and one row of probes.def. They run in that order and fill one
 * model. The first probe that works builds the host (packages, NUMA nodes, PCI bridges, GPUs, NICs). The others find
 * its devices by bus id or name, and add data. A probe without its library, driver or hardware reports that and changes
 * nothing; this is not an error. Data of probes has the source BNY_TOPO_PROBED.
 *
 * Only the file of a probe includes the headers of its library. Libraries that need hardware (NVML) are loaded at run
 * time, so that one build runs everywhere. No probe waits for hardware to wake up, and none writes to the system. */
#pragma once

#include "topo/model/model.h"

typedef enum bny_topo_outcome {
  BNY_TOPO_PROBE_FOUND,
  BNY_TOPO_PROBE_NOTHING, /* it works, but this machine has nothing of its kind */
  BNY_TOPO_PROBE_ABSENT,  /* no library, no driver, or not built in */
  BNY_TOPO_PROBE_FAILED,  /* present, but not working properly */
  BNY_TOPO_PROBE_OUTCOMES
} bny_topo_outcome;

typedef struct bny_topo_probe_report {
  const char *name; /* name of the probe */
  bny_topo_outcome outcome;
  char text[200]; /* "2 packages, 4 NUMA nodes, 8 GPUs"; "libnvidia-ml.so.1 is not there: no NVIDIA driver" */
} bny_topo_probe_report;

/* Where probes read from. Tests set other paths. */
typedef struct bny_topo_probe_options {
  const char *sysfs; /* NULL: "/sys" */
  const char *nvml;  /* NULL: "libnvidia-ml.so.1" */
} bny_topo_probe_options;

typedef struct bny_topo_probe {
  const char *name;
  /* Adds to the results of earlier probes in `topo`. The caller has set report->name. */
  void (*run)(const bny_topo_probe_options *options, bny_topo *topo, bny_topo_probe_report *report);
} bny_topo_probe;

extern const bny_topo_probe *const bny_topo_probes[]; /* ends with NULL */

enum { BNY_TOPO_PROBES_MAX = 8 };

/* Returns a checked model of this machine that the caller frees, and a report per probe. `options` may be NULL.
 * `reports` has at least BNY_TOPO_PROBES_MAX elements, and *nreports receives the number of reports; both may be NULL.
 * Returns NULL and sets *error if out of memory or if probes contradict each other. If nothing is known about the
 * machine, the model has an empty host. */
bny_topo *bny_topo_probe_machine(const bny_topo_probe_options *options, bny_topo_probe_report *reports,
                                 int32_t *nreports, bny_topo_error *error);

const char *bny_topo_outcome_name(bny_topo_outcome outcome); /* "found", "nothing", "absent", "failed" */
