/* SPDX-License-Identifier: Apache-2.0
 * State and helpers that the files of a layout share. */
#pragma once

#include "tools/topo/topo.h"
#include "tools/topo/picture/layout.h"

enum {
  PAGE_MARGIN = 24,
  HOST_PAD = 14,
  HOST_GAP = 28,
  PAD = 8,         /* margin of a box around others */
  GAP = 8,         /* between boxes */
  TAP_GAP = 6,     /* between lines to the network */
  LANE_GAP = 11,   /* between horizontal lines */
  STACK_MOST = 4,  /* NICs below a GPU */
  HOSTS_MOST = 16, /* largest number of drawn hosts */
  TIER_MOST = 16,  /* largest number of drawn switches per tier */
  MORE_WIDTH = 168,
  UNIT_LINES = 6
};

#define TOPO_SMALL 9.0 /* the smallest text */

/* The position of a node in the picture. For a host, x and y are those of its contents. */
typedef struct topo_spot {
  int32_t parent, first, next; /* enclosing box, first box inside, next sibling; -1 none */
  int32_t host;                /* nnodes: unknown */
  int32_t box;                 /* -1 */
  int32_t taps;                /* NIC: lines to the network */
  int32_t column, order;       /* device: column in the box, and position in the column; -1 */
  bool holds;                  /* encloses other boxes */
  bool devices;                /* holds a GPU or NIC */
  bool drawn;                  /* its host is drawn */
  double x, y, width, height;  /* relative to the parent until the hosts are placed */
  double stretched;            /* height added to match the boxes next to it */
  double tap_x;                /* NIC: its first line to the network */
} topo_spot;

/* The common facts of devices of a kind, which are shown at the foot of a host. */
typedef struct topo_alike {
  int32_t count;
  bool model, pcie, net, links; /* true if all devices agree in this fact */
  const char *name;             /* name of the model */
  topo_facts facts;
} topo_alike;

typedef struct topo_work {
  const topo_view *view;
  const bny_topo *topo;
  const bny_topo_levels *levels;
  topo_layout *layout;
  topo_fold fold;
  topo_spot *spots;      /* by node, and one for nodes without a host */
  int32_t *host_set;     /* by node: class of hosts that look alike; -1 none */
  int32_t *rail;         /* by node: the rail of a NIC; -1 none */
  bool *faulty;          /* by node: there is a warning or fault about it or its port */
  int32_t *scratch;      /* by node; any function may use it between calls of other functions */
  int32_t nhosts;        /* hosts with contents */
  bool detailed;         /* only one host: devices show models, bus ids and the like */
  topo_alike gpus, nics; /* devices of all hosts */
  double fastest_nic;    /* GB/s */
  bool rails_only;       /* NICs have rails, but no known switches */
  int32_t drawn[HOSTS_MOST], ndrawn;
  double unit_width, gpu_height, nic_height;
  double right;      /* end of drawn hosts */
  double sky;        /* height between a host's frame and its contents: NVLinks */
  double domain;     /* height of NVLink switches across hosts */
  double content;    /* height of the highest host's contents, with the links between CPUs */
  double foot;       /* height of a host's name and the lines below it */
  double frame;      /* top of the hosts */
  double bottom;     /* end of the hosts */
  double more_x;     /* left edge of the box for hosts that are not drawn; 0: none */
  int32_t more_box;  /* -1 */
  double *crossings; /* x of the lines that rise from NICs */
  int32_t ncrossings;
} topo_work;

/* spots.c: nested boxes and their sizes. */
void topo_spots_make(topo_work *work);
void topo_spots_measure(topo_work *work);
void topo_spots_place(topo_work *work); /* after the hosts are placed */
void topo_spots_draw(topo_work *work, int32_t host);
void topo_append_c2c(topo_string *text, const topo_facts *facts, const char *before); /* "C2C 450 GB/s" */
double topo_spot_middle(const topo_work *work, int32_t node);

/* nvlink.c: plan() finds the links and sets work->sky and domain; draw() takes what plan() returned. */
typedef struct topo_nvlinks topo_nvlinks;
topo_nvlinks *topo_nvlinks_plan(topo_work *work);
void topo_nvlinks_draw(topo_work *work, topo_nvlinks *links);

/* net.c: network switches. plan() finds them and returns the height of the network; draw() takes its top. */
typedef struct topo_net topo_net;
topo_net *topo_net_plan(topo_work *work, double *height);
void topo_net_draw(topo_work *work, topo_net *net, double top);

/* notes.c: title, findings with their badges, legend. */
double topo_draw_title(topo_work *work);
void topo_draw_notes(topo_work *work, double y);

/* Distributes the horizontal lines of a group over lanes, so that lines in one lane do not touch. Returns the number of
 * lanes. */
typedef struct topo_extent {
  double left, right;
  int32_t group, lane;
} topo_extent;
int32_t topo_lanes(topo_extent *extents, int32_t count, int32_t group);

bool topo_is_gpu_link(const bny_topo_link *link); /* NVLink or xGMI between two nodes */
const char *topo_host_name(const topo_work *work, int32_t host);

/* The appearance of a box or line besides its kind. */
typedef struct topo_look {
  topo_colour colour;
  double width;                /* line */
  bool dashed, over, junction; /* as in topo_stroke */
} topo_look;
int32_t topo_put_box(topo_work *work, topo_box_kind kind, int32_t node, double x, double y, double width, double height,
                     topo_look look); /* returns its index */
void topo_put_line(topo_work *work, double x1, double y1, double x2, double y2, topo_look look);
void topo_text(topo_work *work, double x, double y, double size, bool bold, topo_colour colour, topo_anchor anchor,
               const char *text);

/* Writes a small text centred at x, shortened to the width `room`. */
void topo_note(topo_work *work, double x, double y, double room, const char *text);

/* "370.8", "48", "3.125", independent of the locale. */
typedef struct topo_figure {
  char text[24];
} topo_figure;
topo_figure topo_figure_of(double value);
topo_figure topo_count_of(int64_t count); /* "2,046" */
