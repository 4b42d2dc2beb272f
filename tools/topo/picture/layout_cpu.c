/* SPDX-License-Identifier: Apache-2.0
 * Packages and NUMA nodes: labelled strips, and the links between them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/layout_work.h"

int32_t topo_area_height(const topo_work *work, int32_t area) {
  int32_t height = 0;
  for (int32_t n = work->places[area].first; n >= 0; n = work->places[n].next) {
    int32_t below = work->places[n].role == TOPO_ROLE_AREA ? topo_area_height(work, n) + 1 : 0;
    if (below > height) height = below;
  }
  return height;
}

static const char *one_name(const topo_work *work, int32_t node) {
  const bny_topo_node *own = &work->topo->nodes[node];
  /* Importers without a number invent names such as "part0". */
  if (own->index < 0) return own->name;
  return topo_layout_string(work->layout, own->kind == BNY_TOPO_NUMA ? "NUMA node %d" : "Package %d", own->index);
}

static const char *area_name(const topo_work *work, int32_t area) {
  int32_t with = work->places[area].with;
  if (with < 0) return one_name(work, area);
  return topo_layout_string(work->layout, "%s \xc2\xb7 %s", one_name(work, area), one_name(work, with));
}

static const char *area_model(const topo_work *work, int32_t area) {
  int32_t with = work->places[area].with;
  const char *model = work->topo->nodes[area].model;
  if (!model && with >= 0) model = work->topo->nodes[with].model;
  return model ? model : "";
}

double topo_area_least(const topo_work *work, int32_t area) {
  double name = topo_text_width(area_name(work, area), 9.5, true) + 14;
  double model = work->detailed ? fmin(topo_text_width(area_model(work, area), 8.5, false) + 14, 190) : 0;
  return fmin(fmax(name, model), 260);
}

/* ---- links between areas ----------------------------------------------------------------------------------------- */

typedef struct sys_pair {
  int32_t a, b; /* areas; a is on the left */
  double least, most;
  bool assumed;
  int32_t link, count;
} sys_pair;

/* Returns the outermost area that contains a node; -1: none. */
static int32_t outermost(const topo_work *work, int32_t node) {
  int32_t area = -1;
  if (work->places[node].host == work->topo->nnodes) return -1;
  for (int32_t n = node; n >= 0 && work->places[n].role != TOPO_ROLE_HOST; n = work->topo->nodes[n].parent)
    area = work->places[n].role == TOPO_ROLE_AREA ? n : area;
  return area;
}

static int pair_order(const void *left, const void *right) {
  const sys_pair *a = left, *b = right;
  if (a->a != b->a) return (a->a > b->a) - (a->a < b->a);
  if (a->b != b->b) return (a->b > b->b) - (a->b < b->b);
  return (a->link > b->link) - (a->link < b->link);
}

/* Lists links between different areas of a host (or within one if `inside`), merged per pair. Returns NULL without
 * memory or links. */
static sys_pair *pairs_of(const topo_work *work, int32_t host, bool inside, int32_t *count) {
  const bny_topo *topo = work->topo;
  int32_t found = 0;
  sys_pair *pairs = NULL;
  *count = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t l = 0, at = 0; l < topo->nlinks; l++) {
      const bny_topo_link *link = &topo->links[l];
      if (link->kind != BNY_TOPO_LINK_SYS || work->places[link->from].host != host ||
          work->places[link->to].host != host)
        continue;
      int32_t a = outermost(work, link->from), b = outermost(work, link->to);
      if (a < 0 || b < 0 || (a == b) != inside) continue;
      bool turned = work->places[a].x > work->places[b].x;
      double speed = link->gbytes_per_s;
      if (pass == 0)
        found++;
      else
        pairs[at++] = (sys_pair){.a = turned ? b : a,
                                 .b = turned ? a : b,
                                 .least = speed,
                                 .most = speed,
                                 .assumed = link->source == BNY_TOPO_ASSUMED,
                                 .link = l,
                                 .count = 1};
    }
    if (pass == 0 && !(pairs = found > 0 ? malloc((size_t)found * sizeof *pairs) : NULL)) {
      work->layout->out_of_memory = work->layout->out_of_memory || found > 0;
      return NULL;
    }
  }
  qsort(pairs, (size_t)found, sizeof *pairs, pair_order);
  for (int32_t i = 0; i < found; i++) {
    sys_pair *last = *count > 0 ? &pairs[*count - 1] : NULL;
    if (last && last->a == pairs[i].a && last->b == pairs[i].b) {
      last->least = fmin(last->least, pairs[i].least);
      last->most = fmax(last->most, pairs[i].most);
      last->assumed = last->assumed || pairs[i].assumed;
      last->count++;
    } else {
      pairs[(*count)++] = pairs[i];
    }
  }
  return pairs;
}

static const char *range(const topo_work *work, double least, double most) {
  topo_figure low = topo_figure_of(least), high = topo_figure_of(most);
  if (most <= 0) return "";
  if (strcmp(low.text, high.text) == 0) return topo_layout_string(work->layout, "%s GB/s", high.text);
  return topo_layout_string(work->layout, "%s\xe2\x80\x93%s GB/s", low.text, high.text);
}

static bool is_linked(const sys_pair *pairs, int32_t count, int32_t area) {
  for (int32_t i = 0; i < count; i++) {
    if (pairs[i].a == area || pairs[i].b == area) return true;
  }
  return false;
}

/* Returns the number of linked areas of a host, and the middles of the first and the last. */
static int32_t areas_of(const topo_work *work, int32_t host, const sys_pair *pairs, int32_t count, double *left,
                        double *right) {
  int32_t areas = 0;
  for (int32_t n = work->places[host].first; n >= 0; n = work->places[n].next) {
    if (work->places[n].role != TOPO_ROLE_AREA || !is_linked(pairs, count, n)) continue;
    double middle = work->places[n].x + work->places[n].width / 2;
    if (areas++ == 0) *left = middle;
    *right = middle;
  }
  return areas;
}

static bool as_bus(int32_t areas, int32_t pairs) {
  return areas > 2 && (pairs == areas * (areas - 1) / 2 || pairs > 8);
}

double topo_sys_height(const topo_work *work) {
  double height = 0, left, right;
  for (int32_t i = 0; i < work->ndrawn; i++) {
    int32_t count;
    sys_pair *pairs = pairs_of(work, work->drawn[i], false, &count);
    int32_t areas = areas_of(work, work->drawn[i], pairs, count, &left, &right);
    if (count > 0) height = fmax(height, as_bus(areas, count) ? 32 : 16 * count + 6);
    free(pairs);
  }
  return height;
}

static double strip_y(const topo_work *work, int32_t area) {
  return work->rows.strip + topo_area_height(work, area) * (work->rows.strip_height + 8);
}

static void sys_label(const topo_work *work, double x, double y, const char *text) {
  topo_layout_label(work->layout, (topo_label){.x = x,
                                               .y = y,
                                               .size = 8.5,
                                               .anchor = TOPO_ANCHOR_MIDDLE,
                                               .backed = true,
                                               .colour = TOPO_COLOUR_DIM,
                                               .text = text});
}

static topo_line sys_line(const topo_work *work, double x0, double y0, double x1, double y1, const sys_pair *pair) {
  return (topo_line){.npoints = 2,
                     .x = {x0, x1},
                     .y = {y0, y1},
                     .width = 2.5,
                     .colour = TOPO_COLOUR_SYS,
                     .dashed = pair->assumed,
                     .tip = topo_tip_link(work, pair->link)};
}

static void draw_bus(const topo_work *work, int32_t host, const sys_pair *pairs, int32_t count, double left,
                     double right) {
  double y = work->rows.sys + 10, least = INFINITY, most = 0;
  sys_pair all = pairs[0];
  for (int32_t i = 0; i < count; i++) {
    least = fmin(least, pairs[i].least), most = fmax(most, pairs[i].most);
    all.assumed = all.assumed || pairs[i].assumed;
  }
  topo_layout_line(work->layout, sys_line(work, left, y, right, y, &all));
  int32_t areas = 0;
  for (int32_t n = work->places[host].first; n >= 0; n = work->places[n].next) {
    if (work->places[n].role != TOPO_ROLE_AREA || !is_linked(pairs, count, n)) continue;
    double x = work->places[n].x + work->places[n].width / 2;
    topo_layout_line(work->layout, sys_line(work, x, strip_y(work, n) + work->rows.strip_height, x, y, &all));
    areas++;
  }
  const char *speed = range(work, least, most);
  bool complete = count == areas * (areas - 1) / 2;
  const char *text = complete ? topo_layout_string(work->layout, "each to each%s%s", *speed ? " " : "", speed)
                              : topo_layout_string(work->layout, "%d of %d pairs are linked%s%s", count,
                                                   areas * (areas - 1) / 2, *speed ? ", " : "", speed);
  sys_label(work, (left + right) / 2, y + 13, text);
}

void topo_draw_sys(topo_work *work, int32_t host) {
  int32_t count;
  double left = 0, right = 0;
  sys_pair *pairs = pairs_of(work, host, false, &count);
  int32_t areas = areas_of(work, host, pairs, count, &left, &right);
  if (count > 0 && as_bus(areas, count)) {
    draw_bus(work, host, pairs, count, left, right);
  } else {
    for (int32_t i = 0; i < count; i++) {
      const topo_place *a = &work->places[pairs[i].a], *b = &work->places[pairs[i].b];
      double spread = 8.0 * i, xa = a->x + a->width / 2 + spread, xb = b->x + b->width / 2 - spread;
      double y = work->rows.sys + 10 + 16 * i;
      topo_line line = sys_line(work, xa, strip_y(work, pairs[i].a) + work->rows.strip_height, xa, y, &pairs[i]);
      topo_layout_line(work->layout, line);
      topo_layout_line(work->layout, sys_line(work, xa, y, xb, y, &pairs[i]));
      topo_layout_line(work->layout,
                       sys_line(work, xb, y, xb, strip_y(work, pairs[i].b) + work->rows.strip_height, &pairs[i]));
      sys_label(work, (xa + xb) / 2, y + 3, range(work, pairs[i].least, pairs[i].most));
    }
  }
  free(pairs);
}

/* ---- strips ------------------------------------------------------------------------------------------------------ */

/* Returns the speed between a package's NUMA nodes. */
static const char *inner_speed(const topo_work *work, const sys_pair *pairs, int32_t count, int32_t area) {
  for (int32_t i = 0; i < count; i++) {
    if (pairs[i].a == area && pairs[i].most > 0)
      return topo_layout_string(work->layout, "%s between its NUMA nodes", range(work, pairs[i].least, pairs[i].most));
  }
  return "";
}

static void draw_area(topo_work *work, int32_t area, int32_t depth, const sys_pair *pairs, int32_t count) {
  const topo_place *own = &work->places[area];
  topo_layout *layout = work->layout;
  int32_t height = topo_area_height(work, area);
  double y = strip_y(work, area), h = work->rows.strip_height, top = work->rows.gpu - 8 * (height + 1);
  bool devices = work->gpu_height > 0 || work->rows.nic_rows > 0;
  bool dashed = work->topo->nodes[area].source == BNY_TOPO_ASSUMED;
  const char *tip = topo_tip_node(work, area);
  if (devices || height > 0)
    topo_layout_box(layout, (topo_box){.kind = TOPO_BOX_AREA,
                                       .node = area,
                                       .x = own->x,
                                       .y = top,
                                       .width = own->width,
                                       .height = y + h - top,
                                       .depth = depth,
                                       .dashed = dashed,
                                       .tip = tip});
  int32_t strip = topo_layout_box(layout, (topo_box){.kind = TOPO_BOX_STRIP,
                                                     .node = area,
                                                     .x = own->x,
                                                     .y = y,
                                                     .width = own->width,
                                                     .height = h,
                                                     .depth = depth,
                                                     .dashed = dashed,
                                                     .tip = tip});
  work->places[area].box = strip;
  if (own->with >= 0) work->places[own->with].box = strip;
  const char *model = work->detailed ? area_model(work, area) : "";
  if (!*model) model = inner_speed(work, pairs, count, area);
  double middle = own->x + own->width / 2, room = own->width - 10;
  const char *name = topo_text_fit(layout, area_name(work, area), 9.5, true, room);
  const char *second = topo_text_fit(layout, h > 20 ? model : "", 8.5, false, room);
  topo_layout_label(layout, (topo_label){.x = middle,
                                         .y = y + (h - (*second ? 11 : 0)) / 2 + 3.5,
                                         .size = 9.5,
                                         .anchor = TOPO_ANCHOR_MIDDLE,
                                         .bold = true,
                                         .text = name});
  topo_layout_label(layout, (topo_label){.x = middle,
                                         .y = y + h - 6,
                                         .size = 8.5,
                                         .anchor = TOPO_ANCHOR_MIDDLE,
                                         .colour = TOPO_COLOUR_DIM,
                                         .text = second});
  for (int32_t n = own->first; n >= 0; n = work->places[n].next) {
    if (work->places[n].role == TOPO_ROLE_AREA) draw_area(work, n, depth + 1, pairs, count);
  }
}

void topo_draw_strips(topo_work *work, int32_t host) {
  int32_t count;
  sys_pair *pairs = pairs_of(work, host, true, &count);
  for (int32_t n = work->places[host].first; n >= 0; n = work->places[n].next) {
    if (work->places[n].role == TOPO_ROLE_AREA) draw_area(work, n, 0, pairs, count);
  }
  free(pairs);
}
