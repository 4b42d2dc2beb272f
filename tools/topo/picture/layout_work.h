/* SPDX-License-Identifier: Apache-2.0
 * State and helpers that the files of a layout share. */
#ifndef TOPO_LAYOUT_WORK_H
#define TOPO_LAYOUT_WORK_H

#include "tools/topo/picture/layout.h"

enum {
  PAGE_MARGIN = 24,
  HOST_PAD = 14,
  HOST_GAP = 30,
  AREA_PAD = 10,
  AREA_GAP = 14,
  UNIT_GAP = 10,     /* between devices */
  LANE = 14,         /* left of a NIC, for the line of the GPU above */
  COHERENT_LANE = 8, /* extra, for a GPU's second line */
  TAP_GAP = 5,       /* between lines to the network */
  STACK_MOST = 4,    /* NICs in a stack */
  LANE_GAP = 10,     /* between the lines of leaf switches */
  TIER_MOST = 16,    /* drawn switches of a tier */
  TIERS_MOST = 6,
  UNPLACED_WIDTH = 74, /* minimum */
  MORE_WIDTH = 132,
  HOSTS_MOST = 16, /* drawn hosts, however narrow */
  CLASSES_MOST = 5 /* kinds of hosts that are counted separately */
};

typedef enum topo_role {
  TOPO_ROLE_NONE, /* not drawn: ports, PCI bridges without devices, areas merged into another */
  TOPO_ROLE_HOST,
  TOPO_ROLE_AREA,
  TOPO_ROLE_PCI,
  TOPO_ROLE_GPU,
  TOPO_ROLE_NIC,
  TOPO_ROLE_NVSWITCH,
  TOPO_ROLE_SWITCH
} topo_role;

/* Where a NIC's lines to the network start. */
typedef enum topo_exit { TOPO_EXIT_TOP, TOPO_EXIT_RIGHT } topo_exit;

typedef struct topo_place {
  topo_role role;
  bool drawn;                /* its host is drawn */
  bool bare;                 /* host: the parents of its devices are unknown */
  int8_t exit;               /* NIC: side of its lines */
  int8_t row;                /* NIC: place in its stack, from 0; PCI switch: rows below it */
  bool label_left;           /* speed is left of the line */
  int32_t parent;            /* among drawn nodes; -1 */
  int32_t first, next, last; /* children among drawn nodes; -1 */
  int32_t with;              /* area merged into this one: the only NUMA node of a package; -1 */
  int32_t host;              /* nnodes: unknown */
  int32_t ordinal;           /* within its host; host: number of its nodes */
  int32_t rank;              /* -1 */
  int32_t rail;              /* NIC; -1 */
  int32_t box;               /* -1 */
  int32_t taps;              /* NIC: lines to the network */
  double speed;              /* NIC: sum of its ports; 0 unknown */
  bool speed_assumed;
  bool down;       /* NIC: a port is down */
  bool wrong;      /* NIC: has a warning or fault */
  double x, width; /* within the host while measuring, then within the picture */
  double attach;   /* x of the line to its parent */
  double comb;     /* stacked NIC: x of the line at its left; 0: none */
  double tap_x;    /* x of its first line to the network */
} topo_place;

/* Hosts that look alike. */
typedef struct topo_class {
  uint64_t look;
  int32_t first; /* host */
  int32_t hosts, drawn;
} topo_class;

/* A drawn network switch, a rail without a known switch, or the rest of a tier. */
typedef struct topo_hub {
  int32_t node, rail, tier;   /* -1: no single node; several rails, or none */
  int32_t hidden;             /* number of switches it stands for */
  double x, y, width, wanted; /* x: middle */
  double left, right;         /* extent of its horizontal line, or of its links below */
  int32_t below, lane;        /* below: number of lines */
  double up;                  /* GB/s; 0 unknown */
  bool more;                  /* also linked to hosts that are not drawn */
  topo_colour colour;
} topo_hub;

/* Row positions from the top; an empty row has no height. */
typedef struct topo_rows {
  double top;     /* top of the network */
  double network; /* its bottom */
  double domain;  /* bars of NVLink switches across hosts */
  double frame;   /* top of the hosts */
  double gpu, nic, pci, strip, sys, name, bottom;
  double arcs;                         /* height of arcs above GPUs */
  double bars;                         /* bottom of the lowest bar */
  double strip_height, gap_nic, roots; /* roots: height for host bridges; gap_nic: between NICs and PCI switches */
  int32_t nic_rows, pci_rows, strips, beads;
} topo_rows;

typedef struct topo_work {
  const topo_view *view;
  const bny_topo *topo;
  const bny_topo_levels *levels;
  topo_layout *layout;
  topo_place *places;  /* one more than nodes: the host of nodes without one */
  int32_t nhosts;      /* hosts of the model with contents */
  int32_t *host_class; /* by node */
  topo_class *classes;
  int32_t nclasses;
  int32_t drawn[HOSTS_MOST];
  int32_t ndrawn;
  bool rails_only; /* NICs are on rails without known switches */
  bool detailed;   /* one host: devices show models and the like */
  double gpu_width, gpu_height, nic_width, nic_height;
  topo_rows rows;
  double left, right;             /* extent of drawn hosts */
  double most_gbytes, most_count; /* maximum over joints */
  bool speeds_known;              /* for all joints */
  bool joints_differ;             /* joints differ in speed or number */
  const char *joints_said;        /* their common speed as text; NULL */
  bool joints_numbered;           /* each joint shows its number */
  int32_t *group;                 /* by node: representative of an NVSwitch's bar; others -1 */
  int32_t *tier;                  /* by node: tier of a network switch, from 1; 0 */
  int32_t more_box;               /* box for hosts that are not drawn; -1 */
  double more_x;                  /* its left edge; 0: none */
  topo_hub hubs[TIERS_MOST * (TIER_MOST + 1)];
  int32_t nhubs;
  int32_t *hub_of;   /* by node; -1 */
  double *crossings; /* x of lines from NICs upwards */
  int32_t ncrossings;
} topo_work;

/* layout_hosts.c: roles of nodes, classes of hosts, hosts to draw. */
bool topo_work_start(topo_work *work);
void topo_work_end(topo_work *work);
void topo_choose_hosts(topo_work *work);
bool topo_is_gpu_link(const bny_topo_link *link);
bool topo_is_root(const topo_work *work, int32_t node);   /* host bridge directly on a CPU */
int32_t topo_nic_of(const topo_work *work, int32_t node); /* the node itself, or a port's NIC; -1 */

/* layout_tree.c, layout_device.c: the inside of hosts. topo_measure_host() sets places relative to 0 and returns the
 * width. */
void topo_measure_devices(topo_work *work);
double topo_measure_host(topo_work *work, int32_t host);
void topo_place_hosts(topo_work *work);
void topo_draw_hosts(topo_work *work);
int32_t topo_host_notes(const topo_work *work); /* number of lines below host names */
int32_t topo_unit_below(const topo_work *work, int32_t node);
bool topo_is_coherent(const bny_topo *topo, int32_t gpu); /* has a coherent link, or NVLinks, to a CPU */
bool topo_has_pci_link(const bny_topo *topo, int32_t node);
const char *topo_host_name(const topo_work *work, int32_t host);

/* layout_cpu.c: strips, their texts, and links between them. */
double topo_area_least(const topo_work *work, int32_t area);
double topo_sys_height(const topo_work *work);
void topo_draw_strips(topo_work *work, int32_t host);
void topo_draw_sys(topo_work *work, int32_t host);
int32_t topo_area_height(const topo_work *work, int32_t area); /* 0: contains no other area */

/* layout_nvlink.c */
void topo_measure_nvlinks(topo_work *work);
void topo_draw_nvlinks(topo_work *work);

/* layout_net.c: measuring returns the height of the network. */
double topo_measure_network(topo_work *work);
void topo_draw_network(topo_work *work);

/* layout_notes.c: title, badges, findings, legend. */
double topo_draw_title(topo_work *work);
void topo_draw_notes(topo_work *work);

/* tips.c: all known facts, in lines. */
const char *topo_tip_node(const topo_work *work, int32_t node);
const char *topo_tip_link(const topo_work *work, int32_t link);

/* "370.8", "48", "3.125", independent of the locale. */
typedef struct topo_figure {
  char text[24];
} topo_figure;
topo_figure topo_figure_of(double value);
topo_figure topo_count_of(int64_t count); /* "2,046" */

#endif
