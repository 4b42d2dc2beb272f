/* SPDX-License-Identifier: Apache-2.0
 * Types and functions that the files of banyan-topo share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/common/util.h"
#include "tools/topo/health.h"
#include "topo/levels/levels.h"
#include "topo/model/model.h"
#include "topo/probe/probe.h"

/* The views of banyan-topo. Each is one file that turns a model and its derived data into text. */

typedef struct topo_view {
  const bny_topo *topo;
  const bny_topo_levels *levels;
  topo_findings findings;
  const char *title;                    /* origin: a file's name, a description, "this machine" */
  bool all;                             /* do not fold equal parts */
  const bny_topo_probe_report *reports; /* by the probes of this machine; NULL: another machine */
} topo_view;

char *topo_view_text(const topo_view *view);   /* text.c: hosts, levels, findings, probes */
char *topo_view_levels(const topo_view *view); /* level_table.c: --levels */
char *topo_view_json(const topo_view *view);   /* json.c: model, levels, findings, probes */
char *topo_view_dot(const topo_view *view);    /* dot.c: for Graphviz */

/* Writes ascending numbers as "0-7, 16-23" or "0-56 by 8", at most six pieces and then "and 3 more". */
void topo_put_numbers(FILE *out, const int32_t *numbers, int32_t count);

/* These return memory of tool_new(), or literals. */
const char *topo_speed(double gbytes_per_s, bool assumed); /* "50 GB/s", "~371 GB/s" if assumed, "" if unknown */
const char *topo_count(int32_t count, bny_topo_kind kind); /* "1 GPU", "8 GPUs" or "2 NUMA nodes" */
const char *topo_model(const bny_topo_node *node);         /* "NVIDIA H100 80GB HBM3", or the generation */

/* A host with its ranks. Hosts of equal looks are shown once, unless view->all is set. */
typedef struct topo_host {
  int32_t node;         /* -1: of ranks without a host */
  int32_t first, count; /* its ranks */
  const char *look;
  int32_t like, alike; /* the first host that looks like it, maybe itself; on that one, how many follow it */
} topo_host;

topo_host *topo_hosts(const topo_view *view, int32_t *count);
int8_t *topo_severities(const topo_view *view); /* by node: of its worst finding, those of a port at its NIC */

/* Write parts of the text, each after an empty line and a heading. Empty parts are omitted. */
void topo_put_hosts(FILE *out, const topo_view *view);
void topo_put_levels(FILE *out, const topo_view *view);
void topo_put_probes(FILE *out, const topo_view *view);

/* Writes a line "SEVERITY: ID: TEXT" for each finding of this severity or above, in lines of 100 columns if `wraps`. */
void topo_put_findings(FILE *out, const topo_view *view, topo_severity least, bool wraps);

/* findings.c: --check. Infos are omitted unless view->all is set. JSON is {"status", "source", "hosts", "gpus", "nics",
 * "findings", "probes"} with status "healthy", "note" or "fault". *status receives the exit status. */
char *topo_check(const topo_view *view, bool json, int *status);

/* Writes to standard output if path is NULL or "-". A file is written next to `path` and renamed, so `path` is complete
 * or unchanged. Pipes and devices are written directly. */
bool topo_output(const char *path, const char *text, tool_error *error);
