/* SPDX-License-Identifier: Apache-2.0
 * Direct links between GPUs, as arcs above them; and links from GPUs to CPUs. */
#include <math.h>
#include <stdlib.h>

#include "tools/topo/picture/layout_joint.h"

/* ---- arcs -------------------------------------------------------------------------------------------------------- */

double topo_arc_height(const topo_work *work, const topo_joint *pair) {
  double across = fabs(topo_gpu_middle(work, pair->b) - topo_gpu_middle(work, pair->a));
  return fmin(16 + 0.2 * across, 170);
}

/* An arc's end at a GPU. Arcs to the left use the left part of its edge, the nearest outermost, so that arcs of one GPU
 * do not cross. */
typedef struct foot {
  int32_t gpu, pair;
  double other; /* x of the other end */
} foot;

static int foot_order(const void *left, const void *right) {
  const foot *a = left, *b = right;
  if (a->gpu != b->gpu) return (a->gpu > b->gpu) - (a->gpu < b->gpu);
  return a->pair - b->pair;
}

/* Returns the position among the feet of a GPU: left ones first, each side by descending x of the other end. */
static int32_t foot_place(const topo_work *work, const foot *feet, int32_t first, int32_t last, int32_t which) {
  double own = topo_gpu_middle(work, feet[which].gpu), x = feet[which].other;
  int32_t place = 0;
  for (int32_t i = first; i < last; i++) {
    if (i == which) continue;
    bool left = feet[i].other < own, me_left = x < own;
    bool before = left != me_left ? left : feet[i].other > x || (feet[i].other >= x && i < which);
    place += before;
  }
  return place;
}

/* Sets the x of both ends of each pair, in xs[2 * pair] and the next. */
static bool feet_set(const topo_work *work, const topo_joints *pairs, double *xs) {
  foot *feet = malloc(((size_t)pairs->count * 2 + 1) * sizeof *feet);
  if (!feet) return false;
  int32_t count = 0;
  for (int32_t i = 0; i < pairs->count; i++) {
    const topo_joint *pair = &pairs->items[i];
    feet[count++] = (foot){.gpu = pair->a, .pair = 2 * i, .other = topo_gpu_middle(work, pair->b)};
    feet[count++] = (foot){.gpu = pair->b, .pair = 2 * i + 1, .other = topo_gpu_middle(work, pair->a)};
  }
  qsort(feet, (size_t)count, sizeof *feet, foot_order);
  for (int32_t first = 0, last; first < count; first = last) {
    for (last = first; last < count && feet[last].gpu == feet[first].gpu;) last++;
    double step = fmin(9, (work->places[feet[first].gpu].width - 16) / fmax(last - first - 1, 1));
    for (int32_t i = first; i < last; i++)
      xs[feet[i].pair] = topo_gpu_middle(work, feet[i].gpu) +
                         step * (foot_place(work, feet, first, last, i) - (last - first - 1) / 2.0);
  }
  free(feet);
  return true;
}

static bool alike(const topo_joints *pairs) {
  for (int32_t i = 1; i < pairs->count; i++) {
    if (pairs->items[i].count != pairs->items[0].count || pairs->items[i].refused) return false;
  }
  return pairs->count > 0 && !pairs->items[0].refused;
}

static void arc_at(const topo_line *arc, double t, double *x, double *y) {
  double s = 1 - t, a = s * s * s, b = 3 * s * s * t, c = 3 * s * t * t, d = t * t * t;
  *x = a * arc->x[0] + b * arc->x[1] + c * arc->x[2] + d * arc->x[3];
  *y = a * arc->y[0] + b * arc->y[1] + c * arc->y[2] + d * arc->y[3];
}

static bool is_clear(const topo_work *work, int32_t first, double x, double y, double width) {
  const topo_layout *layout = work->layout;
  for (int32_t i = first; i < layout->nlabels; i++) {
    const topo_label *label = &layout->labels[i];
    if (fabs(label->x - x) < (label->width + width) / 2 + 3 && fabs(label->y - y) < 11) return false;
  }
  for (int32_t i = 0; i < work->ncrossings; i++) {
    if (fabs(work->crossings[i] - x) < width / 2 + 3) return false;
  }
  return true;
}

/* Places the label on the arc, near its top where no other is. Without room it is omitted: the width shows the
 * number. */
static void arc_label(topo_work *work, int32_t first, const topo_line *arc, const topo_joint *pair) {
  static const double tries[] = {0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.2, 0.8};
  const char *text = topo_layout_string(work->layout, "%d", pair->count);
  double width = topo_text_width(text, 8.5, true), x, y;
  for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
    arc_at(arc, tries[i], &x, &y);
    if (!is_clear(work, first, x, y + 3, width)) continue;
    topo_layout_label(work->layout, (topo_label){.x = x,
                                                 .y = y + 3,
                                                 .size = 8.5,
                                                 .bold = true,
                                                 .backed = true,
                                                 .anchor = TOPO_ANCHOR_MIDDLE,
                                                 .colour = topo_nvlink_colour(pair->xgmi, pair->refused),
                                                 .text = text});
    return;
  }
}

void topo_draw_arcs(topo_work *work, const topo_joints *pairs) {
  enum { LABELS_MOST = 12 };
  topo_layout *layout = work->layout;
  double *xs = malloc(((size_t)pairs->count * 2 + 1) * sizeof *xs);
  if (!xs || !feet_set(work, pairs, xs)) layout->out_of_memory = true;
  int32_t first_line = layout->nlines, first_label = layout->nlabels;
  bool same = alike(pairs), many = pairs->count > 16 * work->ndrawn;
  bool labelled = !alike(pairs) || pairs->count <= LABELS_MOST * work->ndrawn;
  for (int32_t i = 0; i < pairs->count && !layout->out_of_memory; i++) {
    const topo_joint *pair = &pairs->items[i];
    double top = work->rows.gpu - TOPO_AREA_TOP * (work->rows.strips + 1) - topo_arc_height(work, pair),
           base = work->rows.gpu;
    double control = base - (base - top) * 4 / 3;
    topo_layout_line(
        layout, (topo_line){.npoints = 4,
                            .arc = true,
                            .x = {xs[2 * i], xs[2 * i], xs[2 * i + 1], xs[2 * i + 1]},
                            .y = {base, control, control, base},
                            .width = same ? (many ? 1.5 : 2.2) : topo_nvlink_width(work, pair) / (many ? 1.8 : 1.4),
                            .colour = topo_nvlink_colour(pair->xgmi, pair->refused),
                            .dashed = pair->assumed || pair->refused,
                            .tip = topo_joint_tip(work, pair, work->topo->nodes[pair->a].name,
                                                  work->topo->nodes[pair->b].name)});
  }
  work->joints_numbered = work->joints_numbered || (labelled && pairs->count > 0);
  for (int32_t i = 0; labelled && i < pairs->count && first_line + i < layout->nlines; i++) {
    topo_line arc = layout->lines[first_line + i];
    arc_label(work, first_label, &arc, &pairs->items[i]);
  }
  if (!labelled && pairs->count > 0 && work->ndrawn > 0) {
    const topo_joint *one = &pairs->items[0];
    const char *speed =
        one->gbytes_per_s > 0 ? topo_layout_string(layout, ", %s GB/s", topo_figure_of(one->gbytes_per_s).text) : "";
    const char *text = topo_layout_string(layout, "each pair: %d %s link%s%s", one->count,
                                          one->xgmi ? "xGMI" : "NVLink", one->count == 1 ? "" : "s", speed);
    topo_layout_label(layout, (topo_label){.x = work->places[work->drawn[0]].x + 10,
                                           .y = work->rows.frame + 15,
                                           .size = 8.5,
                                           .bold = true,
                                           .backed = true,
                                           .colour = topo_nvlink_colour(one->xgmi, false),
                                           .text = text});
  }
  free(xs);
}

/* ---- links to CPUs ----------------------------------------------------------------------------------------------- */

/* Returns whether link l joins a GPU to a CPU, and the GPU. */
static bool is_coherent(const topo_work *work, int32_t l, int32_t *gpu) {
  const bny_topo_link *link = &work->topo->links[l];
  bool turned = work->places[link->to].role == TOPO_ROLE_GPU;
  *gpu = turned ? link->to : link->from;
  bny_topo_kind cpu = work->topo->nodes[turned ? link->from : link->to].kind;
  return (link->kind == BNY_TOPO_LINK_C2C || topo_is_gpu_link(link)) && work->places[*gpu].role == TOPO_ROLE_GPU &&
         (cpu == BNY_TOPO_NUMA || cpu == BNY_TOPO_PACKAGE);
}

/* Only a GPU's first such link is drawn. */
static bool is_first(const topo_work *work, int32_t l, int32_t gpu) {
  bool first = true;
  for (int32_t m = bny_topo_first_link(work->topo, gpu); m >= 0; m = bny_topo_next_link(work->topo, gpu, m)) {
    int32_t same;
    first = first && (m >= l || !is_coherent(work, m, &same));
  }
  return first;
}

/* Draws coherent links, and NVLinks to a CPU, down to its strip. */
void topo_draw_coherent(topo_work *work) {
  const bny_topo *topo = work->topo;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    int32_t gpu;
    if (!is_coherent(work, l, &gpu) || !work->places[gpu].drawn || !is_first(work, l, gpu)) continue;
    bool pci = topo_has_pci_link(topo, gpu);
    double x = work->places[gpu].attach + (!pci ? 0 : work->places[gpu].label_left ? -COHERENT_LANE : COHERENT_LANE);
    double top = work->rows.gpu + work->gpu_height;
    topo_layout_line(work->layout,
                     (topo_line){.npoints = 2,
                                 .x = {x, x},
                                 .y = {top, work->rows.strip},
                                 .width = 3,
                                 .colour = link->kind == BNY_TOPO_LINK_C2C ? TOPO_COLOUR_C2C : TOPO_COLOUR_NVLINK,
                                 .dashed = link->source == BNY_TOPO_ASSUMED,
                                 .tip = topo_tip_link(work, l)});
    if (link->gbytes_per_s > 0 && !pci)
      topo_layout_label(work->layout, (topo_label){.x = x + 4,
                                                   .y = top + 11,
                                                   .size = 7.5,
                                                   .colour = TOPO_COLOUR_DIM,
                                                   .text = topo_layout_string(
                                                       work->layout, "%s", topo_figure_of(link->gbytes_per_s).text)});
  }
}
