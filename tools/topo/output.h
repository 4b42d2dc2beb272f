/* SPDX-License-Identifier: Apache-2.0
 * Output formats of banyan-topo, one row each, and where the output goes. */
#ifndef BNY_TOOLS_TOPO_OUTPUT_H
#define BNY_TOOLS_TOPO_OUTPUT_H

#include "tools/topo/view.h"

#define TOPO_FORMATS "text, json, svg, dot, xml, synthetic, hwloc, matrix"
#define TOPO_SUFFIXES ".txt, .json, .svg, .dot, .xml"
typedef struct topo_format {
  const char *name, *suffix; /* suffix of such files; NULL: none */
  char *(*view)(const topo_view *view, tool_error *error);
} topo_format;

const topo_format *topo_format_find(const char *name); /* NULL: unknown */
const char *topo_format_of_path(const char *path);     /* format by suffix; NULL: unknown */

/* Writes to standard output if path is NULL or "-". A file is written beside `path` and renamed, so it is complete or
 * unchanged. Pipes and devices are written directly. */
bool topo_output(const char *path, const char *text, tool_error *error);

#endif
