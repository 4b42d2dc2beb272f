/* SPDX-License-Identifier: Apache-2.0
 * The views of banyan-topo: each turns a model and its derived data into text, in a file of its own. */
#ifndef BNY_TOOLS_TOPO_VIEW_H
#define BNY_TOOLS_TOPO_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/common/util.h"
#include "topo/derive/levels.h"
#include "topo/model/model.h"
#include "topo/probe/probe.h"

typedef struct topo_view {
  const bny_topo *topo;
  const bny_topo_levels *levels;
  const char *title;                    /* origin: a file's name, a description, "this machine" */
  bool colour;                          /* text: escape sequences */
  bool utf8;                            /* text: box characters, otherwise ASCII */
  bool all;                             /* text: equal parts are not folded */
  bool titled;                          /* --check: lines begin with the title */
  int32_t columns;                      /* text: maximum width */
  const bny_topo_probe_report *reports; /* from this machine's probes */
  int32_t nreports;
  const struct topo_measured *measured; /* with --measure; otherwise NULL */
} topo_view;

/* Each returns text for the caller to free, or NULL and *error. */
char *topo_view_tree(const topo_view *view, tool_error *error);   /* tree.c: the picture in a terminal */
char *topo_view_levels(const topo_view *view, tool_error *error); /* levels.c: --levels */
char *topo_view_json(const topo_view *view, tool_error *error);   /* json.c: model, levels, findings, probes */
char *topo_view_svg(const topo_view *view, tool_error *error);    /* picture/svg.c */
char *topo_view_dot(const topo_view *view, tool_error *error);    /* picture/dot.c */

#endif
