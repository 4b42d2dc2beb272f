/* SPDX-License-Identifier: Apache-2.0
 * Probes read this machine's topology. They run in order and fill one model. The first builds the host from sysfs
 * (packages, NUMA nodes, PCI bridges, GPUs, NICs). The others find its devices by bus id or name, and add data. A probe
 * without its library, driver or hardware reports that and changes nothing; this is not an error. Data of probes has
 * the source BNY_TOPO_PROBED.
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

/* Where probes read from. Tests set other paths; only bny_topo_probe_machine() takes NULL for the usual ones. */
typedef struct bny_topo_probe_options {
  const char *sysfs; /* "/sys" */
  const char *nvml;  /* "libnvidia-ml.so.1" */
} bny_topo_probe_options;

typedef struct bny_topo_probe {
  const char *name;
  /* Adds to the results of earlier probes in `topo`. The caller has set report->name. */
  void (*run)(const bny_topo_probe_options *options, bny_topo *topo, bny_topo_probe_report *report);
} bny_topo_probe;

enum { BNY_TOPO_PROBES = 3 };
extern const bny_topo_probe bny_topo_probe_sysfs, bny_topo_probe_nvml, bny_topo_probe_rdma; /* in this order */

/* Returns a checked model of this machine that the caller frees, and a report per probe. `options` and `reports` may be
 * NULL. Returns NULL and sets *error if out of memory or if probes contradict each other. If nothing is known about the
 * machine, the model has an empty host. */
bny_topo *bny_topo_probe_machine(const bny_topo_probe_options *options, bny_topo_probe_report reports[BNY_TOPO_PROBES],
                                 bny_topo_error *error);

const char *bny_topo_outcome_name(bny_topo_outcome outcome); /* "found", "nothing", "absent", "failed" */
