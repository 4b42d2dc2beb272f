/* SPDX-License-Identifier: Apache-2.0
 * The layout of a picture: boxes, lines, texts and badges, in pixels from the top left. It depends only on the view,
 * and drawing only walks through the lists.
 *
 * From the top: title; network switches by tier; one horizontal line per leaf switch or rail; NVLink switches across
 * hosts; hosts; findings; legend. A host is nested boxes: packages and NUMA nodes contain PCI switches, which contain
 * columns of a GPU and its NICs. Boxes stand side by side and nothing is above a GPU, so its NVLinks go straight up.
 *
 * If many hosts look alike, only a few are drawn, and a box next to them names the others. */
#pragma once

#include "tools/topo/topo.h"

typedef enum topo_box_kind {
  TOPO_BOX_HOST,
  TOPO_BOX_AREA,  /* package or NUMA node with its devices */
  TOPO_BOX_PCI,   /* PCI switch, or a host bridge, with its devices */
  TOPO_BOX_MORE,  /* represents parts that are not drawn */
  TOPO_BOX_STRIP, /* lower edge of an area, with its name */
  TOPO_BOX_GPU,
  TOPO_BOX_NIC,
  TOPO_BOX_BAR,    /* all NVSwitches that join the same GPUs, or the links of a full mesh */
  TOPO_BOX_SWITCH, /* network switch */
  TOPO_BOX_RAIL,   /* rail without a known switch */
  TOPO_BOX_KINDS
} topo_box_kind;

typedef enum topo_colour {
  TOPO_COLOUR_TEXT,
  TOPO_COLOUR_DIM, /* secondary text */
  TOPO_COLOUR_NVLINK,
  TOPO_COLOUR_XGMI,
  TOPO_COLOUR_SYS,
  TOPO_COLOUR_NET,  /* between switches */
  TOPO_COLOUR_SLOW, /* slower than its rating or its peers, refused, or missing */
  TOPO_COLOUR_RAIL, /* first of TOPO_RAILS colours */
  TOPO_RAILS = 8,
  TOPO_COLOURS = TOPO_COLOUR_RAIL + TOPO_RAILS
} topo_colour;

typedef struct topo_box {
  topo_box_kind kind;
  int32_t node; /* -1: none or several */
  double x, y, width, height;
  topo_colour colour; /* bars, switches and rails */
  bool dashed;        /* assumed */
} topo_box;

typedef struct topo_stroke {
  int32_t npoints; /* 2 or 3; arcs have 4: ends and control points */
  double x[4], y[4];
  bool arc;
  double width;
  topo_colour colour;
  bool dashed;   /* assumed, or missing */
  bool over;     /* drawn over other lines, with a gap around it */
  bool junction; /* joins another line at its last point */
} topo_stroke;

typedef enum topo_anchor { TOPO_ANCHOR_START, TOPO_ANCHOR_MIDDLE, TOPO_ANCHOR_END } topo_anchor;

typedef struct topo_label {
  double x, y, size; /* y: base line */
  double width;      /* width in the widest common font */
  topo_anchor anchor;
  bool bold;
  bool backed; /* on a white background */
  topo_colour colour;
  const char *text;
} topo_label;

typedef struct topo_badge {
  double x, y; /* centre */
  int32_t number;
  bny_topo_severity severity;
} topo_badge;

enum { TOPO_BADGE_RADIUS = 7 };

typedef struct topo_layout {
  double width, height;
  topo_box *boxes;
  topo_stroke *lines;
  topo_label *labels;
  topo_badge *badges;
  int32_t nboxes, nlines, nlabels, nbadges;
  const char *title, *summary;
} topo_layout;

topo_layout *topo_layout_new(const topo_view *view);

/* ---- for the files that fill a layout ---------------------------------------------------------------------------- */

void topo_layout_line(topo_layout *layout, topo_stroke line);
void topo_layout_label(topo_layout *layout, topo_label label); /* sets its width; ignores empty texts */
void topo_layout_badge(topo_layout *layout, topo_badge badge);

double topo_text_width(const char *text, double size, bool bold);
/* Returns the text, shortened with an ellipsis if needed. */
const char *topo_text_fit(const char *text, double size, bool bold, double width);
/* Shortens names so that they fit and different names stay different. The common prefix is removed first, then the
 * middle. The results replace `names`. */
void topo_text_fit_names(const char **names, int32_t count, double size, bool bold, double width);
/* Removes the first line of at most that width from *text; it breaks at a blank or hyphen if possible. Returns NULL
 * after the last line. */
const char *topo_text_wrap(const char **text, double size, double width);
