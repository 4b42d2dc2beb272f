/* SPDX-License-Identifier: Apache-2.0
 * The views of banyan-topo: each turns a model and what was derived of it into text, and is a file of its own. */
#ifndef TOPO_VIEW_H
#define TOPO_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "tool_util.h"
#include "topo/levels.h"
#include "topo/model.h"
#include "topo/probe.h"

typedef struct topo_view {
  const bny_topo *topo;
  const bny_topo_levels *levels;
  const char *title;  /* where the model comes from: a file's name, a description, "this machine" */
  bool colour;        /* text: escape sequences */
  bool utf8;          /* text: lines drawn with box characters, else with ASCII */
  bool all;           /* text: what is alike is not folded */
  int32_t columns;    /* text: width to keep to */
  const bny_topo_probe_report *reports; /* of this machine's probes */
  int32_t nreports;
  const struct topo_measured *measured; /* by --measure; else NULL */
} topo_view;

/* Each returns text for the caller to free, or NULL and *error. */
char *topo_view_tree(const topo_view *view, tool_error *error);     /* topo_tree.c: the picture in a terminal */
char *topo_view_levels(const topo_view *view, tool_error *error);   /* topo_levels.c: --levels */
char *topo_view_json(const topo_view *view, tool_error *error);     /* topo_json.c: model, levels, findings, probes */
char *topo_view_svg(const topo_view *view, tool_error *error);      /* topo_svg.c */
char *topo_view_dot(const topo_view *view, tool_error *error);      /* topo_dot.c */

#endif
