/* SPDX-License-Identifier: Apache-2.0
 * NVLinks and xGMI: bars for NVSwitches with a stem to each GPU, arcs between directly linked GPUs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/layout_joint.h"

enum { BAR_HEIGHT = 24, STEM = 34, BARS_MOST = 64 };

/* Switches that share a GPU, or are linked, form one bar. */
typedef struct bar {
  int32_t group;                /* least switch */
  int32_t switches, gpus, host; /* host: -1 if it joins several */
  int32_t lane;
  double left, right;
  int32_t count, most; /* links per GPU; count is -1 if they differ */
  double gbytes_per_s;
  bool xgmi;
} bar;

static int32_t group_root(int32_t *group, int32_t node) {
  while (group[node] != node) node = group[node] = group[group[node]];
  return node;
}

static void group_join(int32_t *group, int32_t a, int32_t b) {
  a = group_root(group, a), b = group_root(group, b);
  if (a < b)
    group[b] = a;
  else
    group[a] = b;
}

static bool role_is(const topo_work *work, int32_t node, topo_role role) { return work->places[node].role == role; }

static void groups_set(topo_work *work) {
  const bny_topo *topo = work->topo;
  for (int32_t n = 0; n < topo->nnodes; n++) work->group[n] = role_is(work, n, TOPO_ROLE_NVSWITCH) ? n : -1;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    int32_t before = role_is(work, n, TOPO_ROLE_NVSWITCH) ? n : -1;
    if (before < 0 && !role_is(work, n, TOPO_ROLE_GPU)) continue;
    for (int32_t l = bny_topo_first_link(topo, n); l >= 0; l = bny_topo_next_link(topo, n, l)) {
      int32_t other = bny_topo_other_end(topo, n, l);
      if (!topo_is_gpu_link(&topo->links[l]) || !role_is(work, other, TOPO_ROLE_NVSWITCH)) continue;
      if (before >= 0) group_join(work->group, before, other);
      before = other;
    }
  }
  for (int32_t n = 0; n < topo->nnodes; n++) work->group[n] = work->group[n] >= 0 ? group_root(work->group, n) : -1;
}

static int joint_order(const void *left, const void *right) {
  const topo_joint *a = left, *b = right;
  if (a->a != b->a) return (a->a > b->a) - (a->a < b->a);
  if (a->b != b->b) return (a->b > b->b) - (a->b < b->b);
  return (a->link > b->link) - (a->link < b->link);
}

static void joint_add(topo_joint *into, const topo_joint *more) {
  into->count += more->count;
  into->gbytes_per_s += more->gbytes_per_s;
  into->rated += more->rated;
  into->assumed = into->assumed || more->assumed;
  into->refused = into->refused || more->refused;
}

/* Lists the links of drawn GPUs to one another (`switched` false; a is on the left), or to switches. */
static topo_joints joints_of(const topo_work *work, bool switched) {
  const bny_topo *topo = work->topo;
  topo_joints found = {.items = malloc(((size_t)topo->nlinks + 1) * sizeof *found.items)};
  int32_t all = 0;
  if (!found.items) work->layout->out_of_memory = true;
  for (int32_t l = 0; found.items && l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    if (!topo_is_gpu_link(link)) continue;
    int32_t a = link->from, b = link->to;
    if (!role_is(work, a, TOPO_ROLE_GPU)) a = link->to, b = link->from;
    if (!role_is(work, a, TOPO_ROLE_GPU) || !work->places[a].drawn) continue;
    bool to_switch = role_is(work, b, TOPO_ROLE_NVSWITCH), to_gpu = role_is(work, b, TOPO_ROLE_GPU);
    if (switched != to_switch || (!switched && (!to_gpu || !work->places[b].drawn))) continue;
    if (to_gpu && work->places[b].x < work->places[a].x) {
      int32_t swap = a;
      a = b;
      b = swap;
    }
    found.items[all++] = (topo_joint){.a = a,
                                      .b = switched ? work->group[b] : b,
                                      .count = link->count,
                                      .link = l,
                                      .gbytes_per_s = link->gbytes_per_s,
                                      .rated = link->rated_gbytes_per_s,
                                      .assumed = link->source == BNY_TOPO_ASSUMED,
                                      .xgmi = link->kind == BNY_TOPO_LINK_XGMI,
                                      .refused = bny_topo_link_dead(link)};
  }
  if (found.items) qsort(found.items, (size_t)all, sizeof *found.items, joint_order);
  for (int32_t i = 0; i < all; i++) {
    topo_joint *last = found.count > 0 ? &found.items[found.count - 1] : NULL;
    if (last && last->a == found.items[i].a && last->b == found.items[i].b)
      joint_add(last, &found.items[i]);
    else
      found.items[found.count++] = found.items[i];
  }
  return found;
}

/* ---- widths and heights ------------------------------------------------------------------------------------------ */

double topo_nvlink_width(const topo_work *work, const topo_joint *pair) {
  double part = work->speeds_known && work->most_gbytes > 0 ? pair->gbytes_per_s / work->most_gbytes
                : work->most_count > 0                      ? pair->count / work->most_count
                                                            : 1;
  return 1.4 + 4.6 * fmin(part, 1);
}

static void widths_set(topo_work *work, const topo_joints *set) {
  for (int32_t i = 0; i < set->count; i++) {
    const topo_joint *one = &set->items[i], *first = &set->items[0];
    work->joints_differ =
        work->joints_differ || one->count != first->count || fabs(one->gbytes_per_s - first->gbytes_per_s) > 0.01;
    work->most_gbytes = fmax(work->most_gbytes, set->items[i].gbytes_per_s);
    work->most_count = fmax(work->most_count, set->items[i].count);
    work->speeds_known = work->speeds_known && (set->items[i].gbytes_per_s > 0 || set->items[i].refused);
  }
}

double topo_gpu_middle(const topo_work *work, int32_t gpu) { return work->places[gpu].x + work->places[gpu].width / 2; }

/* Finds the bars of drawn hosts, in the order of links. `host` is -1 if a bar joins hosts. */
static int32_t bars_find(const topo_work *work, const topo_joints *set, bar bars[BARS_MOST]) {
  int32_t count = 0;
  for (int32_t i = 0; i < set->count; i++) {
    const topo_joint *stem = &set->items[i];
    int32_t host = work->places[stem->a].host, at = 0;
    double x = topo_gpu_middle(work, stem->a);
    while (at < count && bars[at].group != stem->b) at++;
    if (at == BARS_MOST) continue;
    if (at == count)
      bars[count++] = (bar){.group = stem->b,
                            .host = host,
                            .left = x,
                            .right = x,
                            .count = stem->count,
                            .most = 0,
                            .gbytes_per_s = stem->gbytes_per_s,
                            .xgmi = stem->xgmi};
    bar *own = &bars[at];
    if (own->host != host) own->host = -1;
    if (stem->count > own->most) own->most = stem->count;
    own->left = fmin(own->left, x), own->right = fmax(own->right, x);
    own->gbytes_per_s = fmax(own->gbytes_per_s, stem->gbytes_per_s);
    if (own->count != stem->count || fabs(own->gbytes_per_s - stem->gbytes_per_s) > 1e-6 * own->gbytes_per_s)
      own->count = -1;
  }
  const bny_topo *topo = work->topo;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    int32_t at = 0;
    while (work->group[n] >= 0 && at < count && bars[at].group != work->group[n]) at++;
    if (work->group[n] >= 0 && at < count) bars[at].switches++;
    if (!role_is(work, n, TOPO_ROLE_GPU)) continue;
    for (int32_t l = bny_topo_first_link(topo, n); l >= 0; l = bny_topo_next_link(topo, n, l)) {
      int32_t other = bny_topo_other_end(topo, n, l);
      if (!topo_is_gpu_link(&topo->links[l]) || work->group[other] < 0) continue;
      for (at = 0; at < count && bars[at].group != work->group[other];) at++;
      if (at < count) bars[at].gpus++;
      /* GPUs of hosts that are not drawn also count as another host. */
      if (at < count && bars[at].host != work->places[n].host) bars[at].host = -1;
      break;
    }
  }
  return count;
}

static int32_t lanes_set(bar *bars, int32_t count, bool domain) {
  int32_t lanes = 0;
  for (int32_t i = 0; i < count; i++) {
    if ((bars[i].host < 0) != domain) continue;
    bool clash = true;
    for (bars[i].lane = 0; clash; bars[i].lane += clash) {
      clash = false;
      for (int32_t j = 0; j < i && !clash; j++)
        clash = (bars[j].host < 0) == domain && bars[j].lane == bars[i].lane && bars[j].left - 50 < bars[i].right &&
                bars[i].left - 50 < bars[j].right;
    }
    if (bars[i].lane + 1 > lanes) lanes = bars[i].lane + 1;
  }
  return lanes;
}

void topo_measure_nvlinks(topo_work *work) {
  topo_rows *rows = &work->rows;
  bar bars[BARS_MOST];
  groups_set(work);
  work->speeds_known = true;
  topo_joints arcs = joints_of(work, false), stems = joints_of(work, true);
  widths_set(work, &arcs);
  widths_set(work, &stems);
  int32_t count = bars_find(work, &stems, bars);
  int32_t local = lanes_set(bars, count, false), domain = lanes_set(bars, count, true);
  for (int32_t i = 0; i < arcs.count; i++) rows->arcs = fmax(rows->arcs, topo_arc_height(work, &arcs.items[i]) + 12);
  rows->domain = rows->network;
  rows->frame = rows->domain + domain * (BAR_HEIGHT + 8) + (domain > 0 ? 14 : 0);
  double zone = rows->arcs + (local > 0 ? STEM + local * (BAR_HEIGHT + 8) : domain > 0 ? 20 : 0);
  rows->bars = rows->frame + 12 + local * (BAR_HEIGHT + 8) - 8;
  rows->gpu = rows->frame + 12 + zone + TOPO_AREA_TOP * (rows->strips + 1);
  free(arcs.items);
  free(stems.items);
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

topo_colour topo_nvlink_colour(bool xgmi, bool refused) {
  return refused ? TOPO_COLOUR_SLOW : xgmi ? TOPO_COLOUR_XGMI : TOPO_COLOUR_NVLINK;
}

/* Writes all facts into one tip, including refused peer access. */
const char *topo_joint_tip(const topo_work *work, const topo_joint *pair, const char *a, const char *b) {
  const char *what = pair->xgmi ? "xGMI" : "NVLink";
  const char *speed = pair->gbytes_per_s > 0 ? topo_layout_string(work->layout, "\n%s GB/s together in one direction%s",
                                                                  topo_figure_of(pair->gbytes_per_s).text,
                                                                  pair->assumed ? ", assumed" : "")
                                             : "";
  return topo_layout_string(work->layout, "%s to %s: %d %s link%s%s%s", a, b, pair->count, what,
                            pair->count == 1 ? "" : "s", speed, pair->refused ? "\nno peer access" : "");
}

/* Returns the end of the stretch from `start` without lines to the network. */
static double stretch_end(const topo_work *work, double start, double right) {
  double end = right;
  for (int32_t i = 0; i < work->ncrossings; i++) {
    if (work->crossings[i] > start + 0.5 && work->crossings[i] < end) end = work->crossings[i];
  }
  return end;
}

static void bar_label(topo_work *work, double middle, double y, const char *text) {
  topo_layout_label(work->layout, (topo_label){.x = middle,
                                               .y = y + BAR_HEIGHT / 2.0 + 3.5,
                                               .size = 9.5,
                                               .bold = true,
                                               .anchor = TOPO_ANCHOR_MIDDLE,
                                               .text = text});
}

/* Writes the text in one piece if it fits between the lines, otherwise in pieces between them. */
static void bar_text(topo_work *work, const bar *own, double y) {
  enum { PIECES = 4 };
  topo_layout *layout = work->layout;
  const char *what = own->xgmi ? "xGMI switch" : own->host < 0 ? "NVLink switch" : "NVSwitch";
  if (own->switches > 1) what = topo_layout_string(layout, "%d %ses", own->switches, what);
  const char *speed = topo_layout_string(layout, "%s", topo_figure_of(own->gbytes_per_s).text);
  const char *pieces[PIECES] = {what,
                                own->host < 0 ? topo_layout_string(layout, "%d GPUs in one domain", own->gpus) : "",
                                topo_layout_string(layout, "%s%d NVLink%s for each GPU", own->count < 0 ? "up to " : "",
                                                   own->most, own->most == 1 ? "" : "s"),
                                own->gbytes_per_s > 0 ? topo_layout_string(layout, "%s%s GB/s for each GPU",
                                                                           own->count < 0 ? "up to " : "", speed)
                                                      : ""};
  const char *whole =
      topo_layout_string(layout,
                         own->gbytes_per_s > 0 ? "%s%s%s \xc2\xb7 %s%d NVLink%s and %s GB/s for each GPU"
                                               : "%s%s%s \xc2\xb7 %s%d NVLink%s for each GPU",
                         what, *pieces[1] ? " \xc2\xb7 " : "", pieces[1], own->count < 0 ? "up to " : "", own->most,
                         own->most == 1 ? "" : "s", speed);
  double left = own->left - 24, right = own->right + 24, widest = 0, middle = 0;
  for (double start = left, end; start < right - 0.5; start = end) {
    end = stretch_end(work, start, right);
    if (end - start > widest) widest = end - start, middle = (start + end) / 2;
  }
  if (topo_text_width(whole, 9.5, true) <= widest - 10) {
    bar_label(work, middle, y, whole);
    return;
  }
  int32_t piece = 0;
  for (double start = left, end; start < right - 0.5; start = end) {
    end = stretch_end(work, start, right);
    while (piece < PIECES && (!*pieces[piece] || topo_text_width(pieces[piece], 9.5, true) > widest - 10)) piece++;
    if (piece == PIECES) break;
    if (topo_text_width(pieces[piece], 9.5, true) > end - start - 10) continue;
    bar_label(work, (start + end) / 2, y, pieces[piece++]);
  }
}

static double bar_y(const topo_work *work, const bar *own) {
  return own->host < 0 ? work->rows.domain + own->lane * (BAR_HEIGHT + 8)
                       : work->rows.bars - BAR_HEIGHT - own->lane * (BAR_HEIGHT + 8);
}

static void draw_bars(topo_work *work, const topo_joints *stems, bar *bars, int32_t count) {
  topo_layout *layout = work->layout;
  for (int32_t i = 0; i < count; i++) {
    bar *own = &bars[i];
    double y = bar_y(work, own);
    if (own->host < 0 && work->more_box >= 0 && count == 1)
      own->right = fmax(own->right, layout->boxes[work->more_box].x + layout->boxes[work->more_box].width - 24);
    const char *tip = topo_tip_node(work, own->group);
    if (own->switches > 1) tip = topo_layout_string(layout, "%d switches, the first:\n%s", own->switches, tip);
    int32_t box = topo_layout_box(layout, (topo_box){.kind = TOPO_BOX_NVSWITCH,
                                                     .node = own->group,
                                                     .x = own->left - 24,
                                                     .y = y,
                                                     .width = own->right - own->left + 48,
                                                     .height = BAR_HEIGHT,
                                                     .colour = topo_nvlink_colour(own->xgmi, false),
                                                     .tip = tip});
    for (int32_t n = 0; n < work->topo->nnodes; n++) {
      if (work->group[n] == own->group) work->places[n].box = box;
    }
    bar_text(work, own, y);
  }
  work->joints_numbered = work->joints_numbered || stems->count > 0;
  for (int32_t i = 0; i < stems->count; i++) {
    const topo_joint *stem = &stems->items[i];
    int32_t at = 0;
    while (at < count && bars[at].group != stem->b) at++;
    if (at == count) continue;
    double x = topo_gpu_middle(work, stem->a), y = bar_y(work, &bars[at]) + BAR_HEIGHT;
    bool fewer = stem->count < bars[at].most;
    topo_layout_line(layout,
                     (topo_line){.npoints = 2,
                                 .x = {x, x},
                                 .y = {work->rows.gpu, y},
                                 .width = topo_nvlink_width(work, stem),
                                 .colour = topo_nvlink_colour(stem->xgmi, stem->refused),
                                 .dashed = stem->assumed,
                                 .tip = topo_joint_tip(work, stem, work->topo->nodes[stem->a].name, "switches")});
    topo_layout_label(layout, (topo_label){.x = x + 6,
                                           .y = work->rows.bars + (bars[at].host < 0 ? 20 : 14),
                                           .size = 8.5,
                                           .bold = fewer,
                                           .colour = fewer ? TOPO_COLOUR_SLOW : TOPO_COLOUR_DIM,
                                           .text = topo_layout_string(layout, "%d", stem->count)});
  }
}

void topo_draw_nvlinks(topo_work *work) {
  bar bars[BARS_MOST];
  topo_joints arcs = joints_of(work, false), stems = joints_of(work, true);
  int32_t count = bars_find(work, &stems, bars);
  const topo_joint *one = stems.count > 0 ? stems.items : arcs.count > 0 ? arcs.items : NULL;
  if (one && !work->joints_differ && one->gbytes_per_s > 0)
    work->joints_said = topo_layout_string(work->layout, ": %s GB/s for each %s",
                                           topo_figure_of(one->gbytes_per_s).text, stems.count > 0 ? "GPU" : "pair");
  lanes_set(bars, count, false);
  lanes_set(bars, count, true);
  topo_draw_arcs(work, &arcs);
  draw_bars(work, &stems, bars, count);
  topo_draw_coherent(work);
  free(arcs.items);
  free(stems.items);
}
