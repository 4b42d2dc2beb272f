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
  const bny_topo_probe_report *reports; /* reports of this machine's probes */
  int32_t nreports;
} topo_view;

char *topo_view_tree(const topo_view *view);   /* tree.c: the picture, in lines of text */
char *topo_view_levels(const topo_view *view); /* level_table.c: --levels */
char *topo_view_json(const topo_view *view);   /* json.c: model, levels, findings, probes */
char *topo_view_dot(const topo_view *view);    /* dot.c: for Graphviz */

/* Write names as "GPU0..GPU3, GPU6", and ascending numbers as "0-7, 16-23" or "0-56 by 8", at most six pieces and then
 * "and 3 more". */
void topo_put_names(FILE *out, const bny_topo *topo, const int32_t *nodes, int32_t count);
void topo_put_numbers(FILE *out, const int32_t *numbers, int32_t count);

/* These return memory of tool_new(), or literals. */
const char *topo_speed(double gbytes_per_s, bool assumed); /* "50 GB/s", "~371 GB/s" if assumed, "" if unknown */
const char *topo_count(int32_t count, bny_topo_kind kind); /* "1 GPU", "8 GPUs" or "2 NUMA nodes" */
const char *topo_model(const bny_topo_node *node);         /* "NVIDIA H100 80GB HBM3", or the generation */

/* Write parts of the picture, each after an empty line and a heading. Empty parts are omitted. */
void topo_put_levels(FILE *out, const topo_view *view);
void topo_put_probes(FILE *out, const topo_view *view);

/* Writes a line "SEVERITY: ID: TEXT" for each finding of this severity or above; in the picture it is wrapped. */
void topo_put_findings(FILE *out, const topo_view *view, topo_severity least, bool is_picture);

/* Folding: which nodes of a model get a line in the picture, and which nodes look alike. */

/* Ports, host bridges, PCI switches with fewer than two children, and the only NUMA node of a package are hidden. Their
 * children belong to the next shown node above. Switches inside a host belong to the host. */
typedef struct topo_fold {
  const bny_topo *topo;
  const bny_topo_levels *levels;
  bool *shown;
  int32_t *host;         /* host of each node, itself included; -1 none */
  int32_t *above;        /* next shown node above; -1 none */
  int32_t *child, *next; /* first shown child, next sibling; -1 none; switches are last */
  int32_t *port;         /* first port of a NIC; `next` links the others */
  int32_t *rank;         /* -1 */
  int32_t *tier;         /* network switches: from 1 for switches with NICs or no ports; 0: none */
  int8_t *severity;      /* severity of the worst finding; -1: none above INFO */
  uint64_t *look;        /* equal for subtrees that look alike apart from names */
} topo_fold;

topo_fold topo_fold_make(const topo_view *view);

/* Speeds are 0 if unknown. */
typedef struct topo_facts {
  double up; /* PCI speed up to the next shown node above */
  bool up_assumed;
  int32_t links;      /* NVLinks or xGMI links */
  double links_speed; /* sum of all */
  bool links_assumed, links_refused, xgmi;
  int32_t peers, switches; /* at the other ends; GPUs behind a switch are peers */
  double coherent;         /* speed of the coherent link to the CPU */
  bool coherent_assumed;
  double net; /* sum of all ports */
  bool net_assumed;
  int32_t ports, ports_down;
  int32_t leaf;          /* network switch; -1 none */
  int32_t below, beside; /* network switch only: ports on it, links to other switches */
  double beside_speed;
} topo_facts;

topo_facts topo_fold_facts(const topo_fold *fold, int32_t node);

/* Returns the total speed of a network switch's links to higher tiers. */
double topo_fold_uplink(const topo_fold *fold, int32_t node, bool *assumed);

/* Divides a list of nodes into groups that look alike, and returns their number. Reorders `nodes` so that groups are
 * contiguous and sorted by their first nodes; the order within a group is kept. Writes the end of each group to
 * ends[count]. A group of fewer than `least` nodes is split into single nodes. */
int32_t topo_fold_groups(const topo_fold *fold, int32_t *nodes, int32_t count, int32_t least, int32_t *ends);

/* Lowers *speed to that of the link if it is known and less. */
void topo_slower(double *speed, bool *assumed, const bny_topo_link *link);

/* findings.c: --check. Infos are omitted unless view->all is set. JSON is {"status", "source", "hosts", "gpus", "nics",
 * "findings", "probes"} with status "healthy", "note" or "fault". *status receives the exit status. */
char *topo_check(const topo_view *view, bool json, int *status);

/* Writes to standard output if path is NULL or "-". A file is written next to `path` and renamed, so `path` is complete
 * or unchanged. Pipes and devices are written directly. */
bool topo_output(const char *path, const char *text, tool_error *error);
