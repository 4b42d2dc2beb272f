/* SPDX-License-Identifier: Apache-2.0
 * What the files that lay out a picture share while they do. */
#ifndef TOPO_LAYOUT_WORK_H
#define TOPO_LAYOUT_WORK_H

#include "topo_layout.h"

/* Sizes that all files keep to. */
enum {
  PAGE_MARGIN = 24,
  HOST_PAD = 14,
  HOST_GAP = 30,
  AREA_PAD = 10,
  AREA_GAP = 14,
  UNIT_GAP = 10,     /* between devices */
  LANE = 14,         /* left of a NIC, for the line of the GPU above it */
  COHERENT_LANE = 8, /* more, if the GPU has a second line */
  TAP_GAP = 5,       /* between lines to the network */
  STACK_MOST = 4,    /* NICs on top of one another */
  LANE_GAP = 10,     /* between the level lines of leaf switches */
  TIER_MOST = 16,    /* switches of a tier that are drawn */
  TIERS_MOST = 6,
  UNPLACED_WIDTH = 74, /* at least */
  MORE_WIDTH = 132,
  HOSTS_MOST = 16, /* hosts that are drawn, however narrow */
  CLASSES_MOST = 5 /* sorts of hosts that are counted one by one */
};

typedef enum topo_role {
  TOPO_ROLE_NONE, /* not drawn: ports, PCI bridges with nothing below, and what is said with another node */
  TOPO_ROLE_HOST,
  TOPO_ROLE_AREA,
  TOPO_ROLE_PCI,
  TOPO_ROLE_GPU,
  TOPO_ROLE_NIC,
  TOPO_ROLE_NVSWITCH,
  TOPO_ROLE_SWITCH
} topo_role;

/* How a NIC's lines to the network leave it. */
typedef enum topo_exit { TOPO_EXIT_TOP, TOPO_EXIT_RIGHT } topo_exit;

typedef struct topo_place {
  topo_role role;
  bool drawn;                /* its host is */
  bool bare;                 /* of a host: nothing is known of what its devices hang from */
  int8_t exit;               /* of a NIC's lines */
  int8_t row;                /* of a NIC in its stack, from 0; of a PCI switch, the rows below it */
  bool label_left;           /* the figure at its line stands to the left */
  int32_t parent;            /* among those that are drawn; -1 */
  int32_t first, next, last; /* children among these; -1 */
  int32_t with;              /* a node that is said with this one: the only NUMA node of a package; -1 */
  int32_t host;              /* nnodes: none is known */
  int32_t ordinal;           /* among the nodes of its host; of a host, how many it has */
  int32_t rank;              /* -1 */
  int32_t rail;              /* of a NIC; -1 */
  int32_t box;               /* -1 */
  int32_t taps;              /* a NIC's lines to the network */
  double speed;              /* of a NIC's ports together; 0 unknown */
  bool speed_assumed;
  bool down;  /* of a NIC: a port is */
  bool wrong; /* of a NIC: a finding of more than interest is about it */
  double x, width; /* within its host while it is measured, then within the picture */
  double attach;   /* where its line to its parent is */
  double comb;     /* of a stacked NIC: the line at its left; 0: there is none */
  double tap_x;    /* of its first line to the network */
} topo_place;

/* Hosts that look alike. */
typedef struct topo_class {
  uint64_t look;
  int32_t first; /* host */
  int32_t hosts, drawn;
} topo_class;

/* A switch of the network that is drawn; a rail of which no switch is known; or what stands for the rest of a tier. */
typedef struct topo_hub {
  int32_t node, rail, tier;   /* -1: none; several, or none */
  int32_t hidden;             /* how many switches it stands for */
  double x, y, width, wanted; /* x: of its middle */
  double left, right;         /* what its level line reaches, or is linked to below */
  int32_t below, lane;        /* below: how many lines */
  double up;                  /* GB/s; 0 unknown */
  bool more;                  /* of hosts that are not drawn, too */
  topo_colour colour;
} topo_hub;

/* From the top; where a row is empty, it has no height. */
typedef struct topo_rows {
  double top;     /* of the network */
  double network; /* its lower end */
  double domain;  /* bars of NVLink switches that join hosts */
  double frame;   /* of the hosts */
  double gpu, nic, pci, strip, sys, name, bottom;
  double arcs;                         /* the height that arcs take above GPUs */
  double bars;                         /* the lower edge of the lowest bar */
  double strip_height, gap_nic, roots; /* roots: of host bridges; gap_nic: between NICs and PCI switches */
  int32_t nic_rows, pci_rows, strips, beads;
} topo_rows;

typedef struct topo_work {
  const topo_view *view;
  const bny_topo *topo;
  const bny_topo_levels *levels;
  topo_layout *layout;
  topo_place *places;  /* one more than nodes: the host of what has none */
  int32_t nhosts;      /* with anything in them; of the model */
  int32_t *host_class; /* by node */
  topo_class *classes;
  int32_t nclasses;
  int32_t drawn[HOSTS_MOST];
  int32_t ndrawn;
  bool rails_only; /* NICs are on rails of which no switch is known */
  bool detailed;   /* one host: models and the like are said at each device */
  double gpu_width, gpu_height, nic_width, nic_height;
  topo_rows rows;
  double left, right;             /* of the hosts that are drawn */
  double most_gbytes, most_count; /* of what joins two GPUs, or a GPU and switches */
  bool speeds_known;              /* of all of these */
  bool joints_differ;             /* in speed or number */
  const char *joints_said;        /* their speed, if it is the same everywhere; NULL */
  bool joints_numbered;           /* the number stands beside each */
  int32_t *group;                 /* of NVSwitches: a representative, by node; of others -1 */
  int32_t *tier;                  /* of switches of the network, from 1; 0 */
  int32_t more_box;               /* that stands for hosts; -1 */
  double more_x;                  /* its left; 0: there is none */
  topo_hub hubs[TIERS_MOST * (TIER_MOST + 1)];
  int32_t nhubs;
  int32_t *hub_of;   /* by node; -1 */
  double *crossings; /* the xs of lines from NICs upwards */
  int32_t ncrossings;
} topo_work;

/* topo_layout_hosts.c: which nodes play which part, which hosts look alike, which are drawn. */
bool topo_work_start(topo_work *work);
void topo_work_end(topo_work *work);
void topo_choose_hosts(topo_work *work);
bool topo_is_gpu_link(const bny_topo_link *link);
bool topo_is_root(const topo_work *work, int32_t node);   /* a host bridge that stands on a CPU */
int32_t topo_nic_of(const topo_work *work, int32_t node); /* itself, or a port's; -1 */

/* topo_layout_tree.c: the inside of hosts. Measuring sets places relative to 0 and returns the width. */
void topo_measure_devices(topo_work *work);
double topo_measure_host(topo_work *work, int32_t host);
void topo_place_hosts(topo_work *work);
void topo_draw_hosts(topo_work *work);
int32_t topo_host_notes(const topo_work *work); /* lines below the names of hosts */
int32_t topo_unit_below(const topo_work *work, int32_t node);
bool topo_is_coherent(const bny_topo *topo, int32_t gpu); /* has a coherent link, or NVLinks, to a CPU */
bool topo_has_pci_link(const bny_topo *topo, int32_t node);
const char *topo_host_name(const topo_work *work, int32_t host);

/* topo_layout_cpu.c: strips, their texts, and links between them. */
const char *topo_area_name(const topo_work *work, int32_t area);
double topo_area_least(const topo_work *work, int32_t area);
double topo_sys_height(const topo_work *work);
void topo_draw_strips(topo_work *work, int32_t host);
void topo_draw_sys(topo_work *work, int32_t host);
int32_t topo_area_height(const topo_work *work, int32_t area); /* 0: holds no other */

/* topo_layout_nvlink.c */
void topo_measure_nvlinks(topo_work *work);
void topo_draw_nvlinks(topo_work *work);

/* topo_layout_net.c: returns the height of the network. */
double topo_measure_network(topo_work *work);
void topo_draw_network(topo_work *work);

/* topo_layout_notes.c: title, badges, findings, legend. */
double topo_draw_title(topo_work *work);
void topo_draw_notes(topo_work *work);

/* topo_tips.c: all that is known, in lines. */
const char *topo_tip_node(const topo_work *work, int32_t node);
const char *topo_tip_link(const topo_work *work, int32_t link);

/* "370.8", "48", "3.125": without a locale's comma. */
typedef struct topo_figure {
  char text[24];
} topo_figure;
topo_figure topo_figure_of(double value);
topo_figure topo_count_of(int64_t count); /* "2,046" */

#endif
