/* SPDX-License-Identifier: Apache-2.0
 * The faults of a machine that slow a job down and that its user can mend. */
#pragma once

#include "topo/levels/levels.h"
#include "topo/probe/probe.h"

/* A fault needs repair, a note may be a problem, and an info describes how the machine is built. */
typedef enum topo_severity { TOPO_INFO, TOPO_NOTE, TOPO_FAULT } topo_severity;

typedef struct topo_finding {
  const char *id; /* "gpu-lost": stable; docs/topology.md lists them */
  topo_severity severity;
  int32_t node; /* the first of `nodes`; -1: the whole model */
  int32_t nnodes, *nodes;
  const char *text; /* nodes, fact and advice in one line, without a full stop */
} topo_finding;

typedef struct topo_findings {
  int32_t count;
  topo_finding *list; /* faults, then notes, then infos; each in the order of the rules */
} topo_findings;

/* Applies all rules. The same fact about several nodes is one finding. `reports` are those of this machine's probes, or
 * NULL. The result is memory of tool_new(). */
topo_findings topo_diagnose(const bny_topo *topo, const bny_topo_levels *levels, const bny_topo_probe_report *reports);

const char *topo_severity_name(topo_severity severity); /* "info", "note", "fault" */
