/* SPDX-License-Identifier: Apache-2.0
 * Where everything of a picture of a model stands: boxes, lines, texts and badges, in pixels from the top left.
 * Computed from a view alone and the same for the same view; whoever draws only walks through the lists.
 *
 * From the top: title; switches of the network by tiers, and below them a channel with one level line for each leaf
 * switch or rail; NVLink switches that join hosts; hosts; findings; legend. In a host: NVSwitches, or arcs between
 * GPUs; a row of GPUs; rows of NICs; PCI switches; CPUs as strips below what hangs from them; links between CPUs; its
 * name. What hangs from a thing stands above it, within its width, so that lines of containment are vertical and cross
 * nothing.
 *
 * Hosts that look alike are drawn a few times only, and counted after that. */
#ifndef TOPO_LAYOUT_H
#define TOPO_LAYOUT_H

#include "topo_view.h"

typedef enum topo_box_kind {
  TOPO_BOX_HOST,
  TOPO_BOX_AREA,     /* package or NUMA node, with what hangs from it */
  TOPO_BOX_STRIP,    /* its lower edge: the CPU itself */
  TOPO_BOX_UNPLACED, /* the strip of devices of which no CPU is known */
  TOPO_BOX_HOST_BRIDGE,
  TOPO_BOX_PCI,    /* a PCI switch */
  TOPO_BOX_BRIDGE, /* a PCI switch of which one device is known */
  TOPO_BOX_GPU,
  TOPO_BOX_NIC,
  TOPO_BOX_NVSWITCH, /* all that join the same GPUs */
  TOPO_BOX_SWITCH,   /* of the network */
  TOPO_BOX_RAIL,     /* of which no switch is known */
  TOPO_BOX_MORE,     /* stands for what is not drawn */
  TOPO_BOX_KINDS
} topo_box_kind;

typedef enum topo_colour {
  TOPO_COLOUR_TEXT,
  TOPO_COLOUR_DIM, /* texts of less weight */
  TOPO_COLOUR_NVLINK,
  TOPO_COLOUR_XGMI,
  TOPO_COLOUR_C2C,
  TOPO_COLOUR_PCI,
  TOPO_COLOUR_SYS,
  TOPO_COLOUR_NET,  /* between switches */
  TOPO_COLOUR_SLOW, /* what runs below its rating, or is refused */
  TOPO_COLOUR_RAIL, /* and the next TOPO_RAILS - 1 */
  TOPO_RAILS = 8,
  TOPO_COLOURS = TOPO_COLOUR_RAIL + TOPO_RAILS
} topo_colour;

typedef struct topo_box {
  topo_box_kind kind;
  int32_t node; /* -1: none, or several */
  double x, y, width, height;
  int32_t depth;      /* areas: 0 is the outermost */
  topo_colour colour; /* of switches and rails */
  bool dashed;        /* only assumed to be there */
  const char *tip;    /* what is known of it */
} topo_box;

typedef struct topo_line {
  int32_t npoints; /* 2 or 3; of an arc 4: ends and what they point to */
  double x[4], y[4];
  bool arc;
  double width;
  topo_colour colour;
  bool dashed;   /* assumed */
  bool over;     /* keeps clear of what it crosses */
  bool junction; /* joins another line at its last point */
  const char *tip;
} topo_line;

typedef enum topo_anchor { TOPO_ANCHOR_START, TOPO_ANCHOR_MIDDLE, TOPO_ANCHOR_END } topo_anchor;

typedef struct topo_label {
  double x, y, size; /* y: of the base line */
  double width;      /* estimated, rather too much */
  topo_anchor anchor;
  bool bold;
  bool backed; /* has white behind it */
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
  void *strings;      /* all of them */
  bool out_of_memory; /* sticky; indices are then -1 */
} topo_layout;

/* NULL and *error without memory. */
topo_layout *topo_layout_new(const topo_view *view, tool_error *error);
void topo_layout_free(topo_layout *layout);

/* ---- for the files that fill a layout ---------------------------------------------------------------------------- */

int32_t topo_layout_box(topo_layout *layout, topo_box box);
int32_t topo_layout_line(topo_layout *layout, topo_line line);
int32_t topo_layout_label(topo_layout *layout, topo_label label); /* its width is filled in; empty texts are dropped */
int32_t topo_layout_badge(topo_layout *layout, topo_badge badge);

/* A string that lives as long as the layout; "" without memory. */
const char *topo_layout_string(topo_layout *layout, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *topo_layout_own(topo_layout *layout, char *text); /* takes it; NULL is without memory */

double topo_text_width(const char *text, double size, bool bold);
/* The text, or as much of its beginning as fits, with an ellipsis. */
const char *topo_text_fit(topo_layout *layout, const char *text, double size, bool bold, double width);
/* The same with the ellipsis in the middle: of names the end tells them apart. */
const char *topo_text_fit_name(topo_layout *layout, const char *text, double size, bool bold, double width);
/* Takes the first line of at most that width off *text, at a blank or hyphen if there is one; NULL after the last. */
const char *topo_text_wrap(topo_layout *layout, const char **text, double size, double width);

#endif
