/* SPDX-License-Identifier: Apache-2.0
 * Links between GPUs, for the files that draw them. */
#ifndef TOPO_LAYOUT_JOINT_H
#define TOPO_LAYOUT_JOINT_H

#include "tools/topo/picture/layout_work.h"

enum { TOPO_AREA_TOP = 8 }; /* height of an area above its contents */

/* All links of a pair: two GPUs, or a GPU and the switches of one bar (b is then the least of them). */
typedef struct topo_joint {
  int32_t a, b;
  int32_t count, link;
  double gbytes_per_s, rated;
  bool assumed, xgmi, refused;
} topo_joint;

typedef struct topo_joints {
  topo_joint *items; /* owned by the caller */
  int32_t count;
} topo_joints;

double topo_gpu_middle(const topo_work *work, int32_t gpu);
double topo_nvlink_width(const topo_work *work, const topo_joint *pair);
topo_colour topo_nvlink_colour(bool xgmi, bool refused);
const char *topo_joint_tip(const topo_work *work, const topo_joint *pair, const char *a, const char *b);

/* layout_arcs.c */
double topo_arc_height(const topo_work *work, const topo_joint *pair);
void topo_draw_arcs(topo_work *work, const topo_joints *pairs);
void topo_draw_coherent(topo_work *work); /* GPUs to CPUs */

#endif
