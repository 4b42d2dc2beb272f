/* SPDX-License-Identifier: Apache-2.0
 * Formats of banyan-topo, one row each, and where they go. */
#ifndef TOPO_OUTPUT_H
#define TOPO_OUTPUT_H

#include "topo_view.h"

#define TOPO_FORMATS "text, json, svg, dot, xml, synthetic, hwloc"
#define TOPO_SUFFIXES ".txt .json .svg .dot .xml"
#define TOPO_FORMATS_HELP                                                                                              \
  "text, json, svg (a picture), dot (for Graphviz), xml (of NCCL, for\n"                                               \
  "                      NCCL_TOPO_FILE), synthetic (a description) or hwloc (one of hwloc's,\n"                            \
  "                      for HWLOC_SYNTHETIC: packages and NUMA nodes alone); default text"

typedef struct topo_format {
  const char *name, *suffix; /* of files of that format; NULL if none tells it */
  char *(*view)(const topo_view *view, tool_error *error);
} topo_format;

const topo_format *topo_format_find(const char *name); /* NULL if there is none */
const char *topo_format_of_path(const char *path);     /* the format's name; NULL if the suffix tells none */

/* To standard output if path is NULL or "-". To a file whole or not at all: it is written beside it under another name
 * and then takes its place. Pipes and devices are written to as they are. */
bool topo_output(const char *path, const char *text, tool_error *error);

#endif
