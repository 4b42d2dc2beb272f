/* SPDX-License-Identifier: Apache-2.0
 * The layout of a picture: boxes, lines, texts and badges, in pixels from the top left. It depends only on the view,
 * and drawing it is a walk through the lists.
 *
 * From the top: title; network switches by tier; below them a channel with one horizontal line per leaf switch or rail;
 * NVLink switches across hosts; hosts; findings; legend. In a host: NVSwitches, or arcs between GPUs; a row of GPUs;
 * rows of NICs; PCI switches; CPUs as strips below their devices; links between CPUs; its name. Children are drawn
 * above their parent and within its width, so lines of containment are vertical and cross nothing.
 *
 * Of hosts that look alike only a few are drawn; the rest are counted. */
#ifndef TOPO_LAYOUT_H
#define TOPO_LAYOUT_H

#include "tools/topo/view.h"

typedef enum topo_box_kind {
  TOPO_BOX_HOST,
  TOPO_BOX_AREA,     /* package or NUMA node with its devices */
  TOPO_BOX_STRIP,    /* its lower edge: the CPU */
  TOPO_BOX_UNPLACED, /* strip of devices whose CPU is unknown */
  TOPO_BOX_HOST_BRIDGE,
  TOPO_BOX_PCI,    /* PCI switch */
  TOPO_BOX_BRIDGE, /* PCI switch with one known device */
  TOPO_BOX_GPU,
  TOPO_BOX_NIC,
  TOPO_BOX_NVSWITCH, /* all switches that join the same GPUs */
  TOPO_BOX_SWITCH,   /* network switch */
  TOPO_BOX_RAIL,     /* rail without a known switch */
  TOPO_BOX_MORE,     /* stands for parts that are not drawn */
  TOPO_BOX_KINDS
} topo_box_kind;

typedef enum topo_colour {
  TOPO_COLOUR_TEXT,
  TOPO_COLOUR_DIM, /* secondary text */
  TOPO_COLOUR_NVLINK,
  TOPO_COLOUR_XGMI,
  TOPO_COLOUR_C2C,
  TOPO_COLOUR_PCI,
  TOPO_COLOUR_SYS,
  TOPO_COLOUR_NET,  /* between switches */
  TOPO_COLOUR_SLOW, /* below its rating, or refused */
  TOPO_COLOUR_RAIL, /* and the next TOPO_RAILS - 1 */
  TOPO_RAILS = 8,
  TOPO_COLOURS = TOPO_COLOUR_RAIL + TOPO_RAILS
} topo_colour;

typedef struct topo_box {
  topo_box_kind kind;
  int32_t node; /* -1: none or several */
  double x, y, width, height;
  int32_t depth;      /* areas: 0 is the outermost */
  topo_colour colour; /* switches and rails */
  bool dashed;        /* only assumed */
  const char *tip;    /* known facts */
} topo_box;

typedef struct topo_line {
  int32_t npoints; /* 2 or 3; arcs have 4: ends and control points */
  double x[4], y[4];
  bool arc;
  double width;
  topo_colour colour;
  bool dashed;   /* assumed */
  bool over;     /* drawn over others, with a gap around */
  bool junction; /* joins another line at its last point */
  const char *tip;
} topo_line;

typedef enum topo_anchor { TOPO_ANCHOR_START, TOPO_ANCHOR_MIDDLE, TOPO_ANCHOR_END } topo_anchor;

typedef struct topo_label {
  double x, y, size; /* y: base line */
  double width;      /* estimated, rather too wide */
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
  topo_line *lines;
  topo_label *labels;
  topo_badge *badges;
  int32_t nboxes, nlines, nlabels, nbadges;
  int32_t boxes_capacity, lines_capacity, labels_capacity, badges_capacity;
  const char *title, *summary;
  void *strings;      /* owned */
  bool out_of_memory; /* sticky; indices are then -1 */
} topo_layout;

/* Returns NULL and *error without memory. */
topo_layout *topo_layout_new(const topo_view *view, tool_error *error);
void topo_layout_free(topo_layout *layout);

/* ---- for the files that fill a layout ---------------------------------------------------------------------------- */

int32_t topo_layout_box(topo_layout *layout, topo_box box);
int32_t topo_layout_line(topo_layout *layout, topo_line line);
int32_t topo_layout_label(topo_layout *layout, topo_label label); /* sets its width; drops empty texts */
int32_t topo_layout_badge(topo_layout *layout, topo_badge badge);

/* Returns a string that lives as long as the layout; "" without memory. */
const char *topo_layout_string(topo_layout *layout, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *topo_layout_own(topo_layout *layout, char *text); /* takes ownership; NULL means no memory */

double topo_text_width(const char *text, double size, bool bold);
/* Returns the text, shortened with an ellipsis if needed. */
const char *topo_text_fit(topo_layout *layout, const char *text, double size, bool bold, double width);
/* The same with the ellipsis in the middle, because ends distinguish names. */
const char *topo_text_fit_name(topo_layout *layout, const char *text, double size, bool bold, double width);
/* Takes the first line of at most that width off *text, if possible at a blank or hyphen. Returns NULL after the
 * last. */
const char *topo_text_wrap(topo_layout *layout, const char **text, double size, double width);

#endif
