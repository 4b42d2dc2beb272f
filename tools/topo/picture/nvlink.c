/* SPDX-License-Identifier: Apache-2.0
 * NVLinks and xGMI links above the GPUs. Switches that join GPUs, and full meshes, are bars; other pairs are arcs. A
 * GPU without links is marked if others in its host have some. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/work.h"

enum {
  BAR_HEIGHT = 24,
  BAR_GAP = 12,
  BAR_LOWEST = 24,
  MESH_LEAST = 5,
  MESH_MOST = 64,
  ARC_STEP_MOST = 16,
  ARCS_SPREAD = 2048
};

/* All links of a pair: two GPUs, a GPU and a bar, or two bars. */
typedef struct joint {
  int32_t a, b; /* GPUs, as nodes; b is a bar if `bar` */
  bool bar, xgmi, assumed, rejected, missing;
  int32_t count;
  double gbytes_per_s, rated;
} joint;

typedef struct bar {
  int32_t host;        /* -1: joins hosts */
  int32_t node;        /* first switch; -1: a mesh */
  int32_t switches;    /* number of them */
  int32_t gpus, drawn; /* GPUs of a mesh; GPUs that are drawn */
  uint64_t joins;      /* the GPUs, as a sum of hashes */
  int32_t trunks;      /* links to other bars */
  int32_t most;        /* largest number of links of a GPU */
  double most_speed;
  joint pair; /* mesh: any of its pairs */
  topo_extent extent;
  double y;
} bar;

struct topo_nvlinks {
  joint *joints;
  int32_t njoints;
  bar *bars;
  int32_t nbars;
  int32_t *bar_of; /* by node: the bar of a switch; -1 */
  double arc_step; /* height of an arc by the distance of its ends */
  double arcs_from;
  int32_t widest; /* largest number of links of a joint */
};

static double y_of_gpu(const topo_work *work, int32_t gpu) { return work->spots[gpu].y; }

static bool drawn_gpu(const topo_work *work, int32_t node) {
  return work->topo->nodes[node].kind == BNY_TOPO_GPU && work->spots[node].drawn;
}

/* ---- search ------------------------------------------------------------------------------------------------------ */

static void joint_add(topo_nvlinks *v, joint own) {
  v->joints = tool_more(v->joints, v->njoints, sizeof own);
  v->joints[v->njoints++] = own;
}

/* Puts switches that join the same GPUs into one bar. */
static void find_bars(topo_work *work, topo_nvlinks *v) {
  const bny_topo *topo = work->topo;
  int32_t *seen = work->scratch;
  memset(seen, 0xff, ((size_t)topo->nnodes + 1) * sizeof *seen);
  for (int32_t n = 0; n < topo->nnodes; n++) {
    v->bar_of[n] = -1;
    if (topo->nodes[n].kind != BNY_TOPO_SWITCH) continue;
    bar own = {.host = work->fold.host[n], .node = n};
    for (int32_t l = bny_topo_first_link(topo, n); l >= 0; l = bny_topo_next_link(topo, n, l)) {
      int32_t gpu = bny_topo_other_end(topo, n, l);
      if (!topo_is_gpu_link(&topo->links[l]) || topo->nodes[gpu].kind != BNY_TOPO_GPU || seen[gpu] == n) continue;
      seen[gpu] = n;
      own.joins += bny_hash_of((uint64_t)gpu);
      own.gpus++;
      own.drawn += work->spots[gpu].drawn;
      if (work->spots[gpu].host != own.host) own.host = -1;
    }
    if (own.drawn == 0) continue;
    int32_t b = 0;
    while (b < v->nbars && (v->bars[b].joins != own.joins || v->bars[b].host != own.host)) b++;
    if (b == v->nbars) v->bars[v->nbars++] = own;
    v->bars[b].switches++;
    v->bar_of[n] = b;
  }
}

static int by_ends(const void *a, const void *b) {
  const joint *x = a, *y = b;
  if (x->bar != y->bar) return x->bar ? -1 : 1;
  if (x->b != y->b && x->bar) return x->b < y->b ? -1 : 1;
  if (x->a != y->a) return x->a < y->a ? -1 : 1;
  return (x->b > y->b) - (x->b < y->b);
}

static void find_joints(topo_work *work, topo_nvlinks *v) {
  const bny_topo *topo = work->topo;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    if (!topo_is_gpu_link(link)) continue;
    int32_t a = link->from, b = link->to, bars[2] = {v->bar_of[a], v->bar_of[b]};
    if (bars[0] >= 0 && bars[1] >= 0 && bars[0] != bars[1])
      v->bars[bars[0]].trunks += link->count, v->bars[bars[1]].trunks += link->count;
    if (bars[0] >= 0) b = a, a = link->to, bars[1] = bars[0];
    if (!drawn_gpu(work, a) || (bars[1] < 0 && !drawn_gpu(work, b))) continue;
    bool turned = bars[1] < 0 && b < a;
    joint_add(v, (joint){.a = turned ? b : a,
                         .b = bars[1] >= 0 ? bars[1]
                              : turned     ? a
                                           : b,
                         .bar = bars[1] >= 0,
                         .xgmi = link->kind == BNY_TOPO_LINK_XGMI,
                         .assumed = link->source == BNY_TOPO_ASSUMED,
                         .rejected = bny_topo_link_dead(link),
                         .count = link->count,
                         .gbytes_per_s = link->gbytes_per_s,
                         .rated = link->rated_gbytes_per_s});
  }
  if (v->njoints > 0) qsort(v->joints, (size_t)v->njoints, sizeof *v->joints, by_ends);
  int32_t kept = 0;
  for (int32_t i = 0; i < v->njoints; i++) {
    joint *last = kept > 0 ? &v->joints[kept - 1] : NULL, *own = &v->joints[i];
    if (!last || by_ends(last, own) != 0) {
      v->joints[kept++] = *own;
      continue;
    }
    last->count += own->count;
    last->gbytes_per_s += own->gbytes_per_s;
    last->rated += own->rated;
    last->assumed = last->assumed || own->assumed;
    last->rejected = last->rejected && own->rejected;
  }
  v->njoints = kept;
}

static bool alike(const joint *a, const joint *b) {
  return a->count == b->count && a->xgmi == b->xgmi && a->rejected == b->rejected &&
         fabs(a->gbytes_per_s - b->gbytes_per_s) <= 0.05 * fmax(a->gbytes_per_s, b->gbytes_per_s);
}

static bool is_pair_in(const topo_work *work, const joint *own, int32_t host) {
  return !own->bar && work->spots[own->a].host == host && work->spots[own->b].host == host;
}

/* Finds the most common kind of pair in a host. Returns the number of pairs of that kind. */
static int32_t majority(const topo_work *work, const topo_nvlinks *v, int32_t host, joint *pair) {
  int32_t lead = 0, same = 0;
  for (int counts = 0; counts < 2; counts++) {
    for (int32_t i = 0; i < v->njoints; i++) {
      if (!is_pair_in(work, &v->joints[i], host)) continue;
      if (!counts && lead == 0) *pair = v->joints[i];
      lead += alike(pair, &v->joints[i]) ? 1 : -1;
      same += counts && alike(pair, &v->joints[i]);
    }
  }
  return same;
}

/* Turns a mesh into a bar if nearly all pairs are alike. Other pairs stay joints, and pairs that lack their link become
 * joints. */
static void find_mesh(topo_work *work, topo_nvlinks *v, int32_t host) {
  int32_t gpus[MESH_MOST], *place = work->scratch, ngpus = 0, degrees[MESH_MOST] = {0}, kept = 0;
  joint pair = {.a = -1};
  for (int32_t n = 0; n < work->topo->nnodes; n++) {
    if (work->topo->nodes[n].kind != BNY_TOPO_GPU || work->spots[n].host != host ||
        bny_topo_device(work->topo, n) != n) /* a partition has its device's links */
      continue;
    if (ngpus == MESH_MOST) return;
    gpus[ngpus] = n;
    place[n] = ngpus++;
  }
  /* At most one pair in ten may differ, or a single pair of a small mesh. */
  if (ngpus < MESH_LEAST || 20 * majority(work, v, host, &pair) < 9 * ngpus * (ngpus - 1) - 10) return;
  bool linked[MESH_MOST][MESH_MOST] = {{false}};
  for (int32_t i = 0; i < v->njoints; i++) {
    const joint own = v->joints[i];
    bool inside = is_pair_in(work, &own, host), same = inside && alike(&pair, &own);
    if (inside) linked[place[own.a]][place[own.b]] = true;
    if (same) degrees[place[own.a]]++, degrees[place[own.b]]++;
    if (!same) v->joints[kept++] = own;
  }
  v->njoints = kept;
  v->bars[v->nbars] = (bar){.host = host, .node = -1, .gpus = ngpus, .drawn = ngpus, .pair = pair};
  for (int32_t g = 0; g < ngpus; g++) {
    joint up = pair;
    up.a = gpus[g], up.b = v->nbars, up.bar = true;
    up.count *= degrees[g], up.gbytes_per_s *= degrees[g], up.rated *= degrees[g];
    joint_add(v, up);
    for (int32_t h = g + 1; h < ngpus; h++)
      if (!linked[g][h]) joint_add(v, (joint){.a = gpus[g], .b = gpus[h], .missing = true, .xgmi = pair.xgmi});
  }
  v->nbars++;
}

topo_nvlinks *topo_nvlinks_plan(topo_work *work) {
  size_t nodes = (size_t)work->topo->nnodes + 1;
  topo_nvlinks *v = tool_new(1, sizeof *v);
  v->bars = tool_new(nodes + HOSTS_MOST, sizeof *v->bars);
  v->bar_of = tool_new(nodes, sizeof *v->bar_of);
  find_bars(work, v);
  find_joints(work, v);
  for (int32_t i = 0; i < work->ndrawn; i++) find_mesh(work, v, work->drawn[i]);
  for (int32_t b = 0; b < v->nbars; b++) v->bars[b].extent = (topo_extent){.left = 1e9, .right = -1e9};
  double farthest = 0;
  for (int32_t i = 0; i < v->njoints; i++) {
    const joint *own = &v->joints[i];
    double a = topo_spot_middle(work, own->a);
    v->widest = own->count > v->widest ? own->count : v->widest;
    if (own->bar) {
      bar *at = &v->bars[own->b];
      at->extent.left = fmin(at->extent.left, a - work->unit_width / 2);
      at->extent.right = fmax(at->extent.right, a + work->unit_width / 2);
      at->most = own->count > at->most ? own->count : at->most;
      at->most_speed = fmax(at->most_speed, own->gbytes_per_s);
    } else {
      farthest = fmax(farthest, fabs(topo_spot_middle(work, own->b) - a) / (work->unit_width + GAP));
    }
  }
  /* Bars within hosts stand above their GPUs. Bars that join hosts stand above the frames. */
  topo_extent *extents = tool_new((size_t)v->nbars, sizeof *extents);
  for (int32_t b = 0; b < v->nbars; b++) {
    extents[b] = v->bars[b].extent;
    extents[b].group = v->bars[b].host >= 0;
  }
  int32_t above = topo_lanes(extents, v->nbars, 0), within = topo_lanes(extents, v->nbars, 1);
  for (int32_t b = 0; b < v->nbars; b++) v->bars[b].extent = extents[b];
  work->sky = within > 0 ? BAR_LOWEST + within * (BAR_HEIGHT + BAR_GAP) : 0;
  work->domain = above > 0 ? BAR_LOWEST + above * (BAR_HEIGHT + BAR_GAP) - BAR_GAP : 0;
  if (work->sky <= 0 && work->domain > 0) work->sky = BAR_LOWEST; /* space for the numbers of links */
  v->arcs_from = fmax(work->sky, 26);
  v->arc_step = farthest > 8 ? 8.0 * ARC_STEP_MOST / farthest : ARC_STEP_MOST;
  if (farthest > 0) work->sky = v->arcs_from + farthest * v->arc_step + 12;
  return v;
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

static topo_colour colour_of(const joint *own) {
  return own->rejected || own->missing ? TOPO_COLOUR_SLOW : own->xgmi ? TOPO_COLOUR_XGMI : TOPO_COLOUR_NVLINK;
}

static const char *joint_text(const joint *own, const char *for_each) {
  if (own->missing) return "no link";
  return tool_format("%d %s%s%s%s%s%s%s", own->count, own->xgmi ? "xGMI link" : "NVLink", own->count == 1 ? "" : "s",
                     for_each, own->gbytes_per_s > 0 ? ", " : "",
                     own->gbytes_per_s > 0 ? topo_figure_of(own->gbytes_per_s).text : "",
                     own->gbytes_per_s > 0 ? " GB/s" : "", own->rejected ? ", rejected" : "");
}

/* Writes the longest text that fits into the widest part of the bar that no line from a NIC crosses. */
static void bar_text(topo_work *work, const bar *own, const char *const *texts, int32_t ntexts) {
  double best = 0, middle = 0, from = own->extent.left;
  while (from < own->extent.right) {
    double to = own->extent.right;
    for (int32_t i = 0; i < work->ncrossings; i++)
      if (work->crossings[i] > from && work->crossings[i] < to) to = work->crossings[i];
    if (to - from > best + 1) best = to - from, middle = (from + to) / 2;
    from = to;
  }
  for (int32_t i = 0; i < ntexts; i++) {
    if (topo_text_width(texts[i], 9.5, true) > best - 8) continue;
    topo_text(work, middle, own->y + 15.5, 9.5, true, TOPO_COLOUR_TEXT, TOPO_ANCHOR_MIDDLE, texts[i]);
    return;
  }
}

static void draw_bar(topo_work *work, topo_nvlinks *v, bar *own) {
  double base = own->host >= 0 ? work->frame + work->sky - BAR_LOWEST : work->frame;
  own->y = base - BAR_HEIGHT - (BAR_HEIGHT + BAR_GAP) * own->extent.lane - (own->host >= 0 ? 0 : BAR_LOWEST);
  bool mesh = own->node<0, more = own->gpus> own->drawn && work->more_x > 0;
  if (more) own->extent.right = work->more_x + MORE_WIDTH;
  joint all = {.count = own->most, .gbytes_per_s = own->most_speed};
  for (int32_t i = 0; i < v->njoints; i++)
    if (v->joints[i].bar && &v->bars[v->joints[i].b] == own) all.xgmi = v->joints[i].xgmi;
  const char *each = mesh ? tool_format("each pair of %d: %s", own->gpus, joint_text(&own->pair, ""))
                          : joint_text(&all, " for each GPU");
  const char *name = mesh                ? "full mesh, no switch"
                     : own->host < 0     ? tool_format("NVLink domain of %d GPUs", own->gpus)
                     : own->switches > 1 ? tool_format("%d NVSwitches", own->switches)
                                         : "NVSwitch";
  const char *trunks = own->trunks > 0 ? tool_format(", %d links to other switches", own->trunks) : "";
  const char *texts[] = {tool_format("%s: %s%s", name, each, trunks), tool_format("%s: %s", name, each), name,
                         mesh            ? "mesh"
                         : own->host < 0 ? tool_format("NVLink, %d GPUs", own->gpus)
                                         : "NVSwitch",
                         mesh ? "mesh" : "NVLink"};
  topo_put_box(work, TOPO_BOX_BAR, own->node, own->extent.left, own->y, own->extent.right - own->extent.left,
               BAR_HEIGHT, (topo_look){.dashed = mesh, .colour = colour_of(&all)});
  bar_text(work, own, texts, 5);
  double x = work->more_x + MORE_WIDTH / 2 + 40;
  if (more)
    topo_put_line(work, x, own->y + BAR_HEIGHT, x, work->frame,
                  (topo_look){.width = 3, .dashed = true, .colour = TOPO_COLOUR_NVLINK});
}

static double joint_width(const topo_nvlinks *v, const joint *own) {
  return 2 + (v->widest > 1 ? 4.0 * (own->count - 1) / (v->widest - 1) : 0);
}

static void draw_upward(topo_work *work, topo_nvlinks *v, const joint *own) {
  const bar *to = &v->bars[own->b];
  double x = topo_spot_middle(work, own->a), y = y_of_gpu(work, own->a);
  bool slow = own->count < to->most || own->rejected || own->gbytes_per_s < 0.95 * fmin(own->rated, to->most_speed);
  x += 20 * work->scratch[own->a]++; /* a GPU may be on several bars */
  topo_put_line(work, x, y, x, to->y + BAR_HEIGHT,
                (topo_look){.width = joint_width(v, own),
                            .dashed = own->assumed,
                            .over = to->extent.lane > 0,
                            .colour = slow ? TOPO_COLOUR_SLOW : colour_of(own)});
  topo_text(work, x + 6, work->frame + work->sky - 8, TOPO_SMALL, slow, slow ? TOPO_COLOUR_SLOW : TOPO_COLOUR_DIM,
            TOPO_ANCHOR_START, tool_format(own->rejected ? "%d rejected" : "%d", own->count));
}

/* Returns the x at which an arc leaves a GPU. Arcs to near GPUs stay inside arcs to far GPUs. */
static double arc_port(const topo_work *work, const topo_nvlinks *v, int32_t gpu, int32_t other) {
  double x = topo_spot_middle(work, gpu), to = topo_spot_middle(work, other);
  int32_t before = 0, count = 0;
  if (v->njoints > ARCS_SPREAD) return x;
  for (int32_t i = 0; i < v->njoints; i++) {
    const joint *own = &v->joints[i];
    if (own->bar || (own->a != gpu && own->b != gpu)) continue;
    double there = topo_spot_middle(work, own->a == gpu ? own->b : own->a);
    /* From the left: arcs to the left, nearest first, then arcs to the right, farthest first. */
    bool left = there < x, own_left = to < x;
    before += left != own_left ? left : there > to;
    count++;
  }
  double step = fmin(9, (work->unit_width - 16) / (count > 1 ? count - 1 : 1));
  double beside = v->nbars > 0 ? (to < x ? -12 : 12) : 0; /* the line to a bar takes the middle */
  return x + beside + (before - (count - 1) / 2.0) * step;
}

static void draw_arc(topo_work *work, topo_nvlinks *v, const joint *own, bool labelled) {
  double a = arc_port(work, v, own->a, own->b), b = arc_port(work, v, own->b, own->a);
  double middle = (topo_spot_middle(work, own->a) + topo_spot_middle(work, own->b)) / 2;
  double ya = y_of_gpu(work, own->a), yb = y_of_gpu(work, own->b), top = work->frame + work->sky;
  double distance = fabs(topo_spot_middle(work, own->b) - topo_spot_middle(work, own->a)) / (work->unit_width + GAP);
  double peak = top - v->arcs_from - distance * v->arc_step;
  double control = (8 * peak - ya - yb) / 6; /* the peak of a cubic is at 3/4 of the height of its control points */
  topo_layout_line(work->layout, (topo_stroke){.npoints = 4,
                                               .arc = true,
                                               .x = {a, a, b, b},
                                               .y = {ya, control, control, yb},
                                               .width = 0.75 * joint_width(v, own),
                                               .dashed = own->assumed || own->missing,
                                               .over = own->missing || own->rejected,
                                               .colour = colour_of(own)});
  if (!labelled && !own->missing && !own->rejected) return;
  topo_layout_label(work->layout, (topo_label){.x = middle,
                                               .y = peak + 3,
                                               .size = TOPO_SMALL,
                                               .bold = true,
                                               .backed = true,
                                               .anchor = TOPO_ANCHOR_MIDDLE,
                                               .colour = colour_of(own),
                                               .text = own->missing    ? "no link"
                                                       : own->rejected ? "rejected"
                                                                       : tool_format("%d", own->count)});
}

/* Marks GPUs without links in hosts where other GPUs have links. */
static void mark_unlinked(topo_work *work, topo_nvlinks *v) {
  int32_t *linked = work->scratch, nnodes = work->topo->nnodes;
  bool xgmi = v->njoints > 0 && v->joints[0].xgmi;
  memset(linked, 0, ((size_t)nnodes + 1) * sizeof *linked);
  for (int32_t i = 0; i < v->njoints; i++) {
    const joint *own = &v->joints[i];
    linked[own->a] = linked[work->spots[own->a].host] = 1;
    if (!own->bar) linked[own->b] = linked[work->spots[own->b].host] = 1;
  }
  for (int32_t n = 0; n < nnodes; n++) {
    bool has = linked[n] || linked[bny_topo_device(work->topo, n)];
    if (!drawn_gpu(work, n) || has || !linked[work->spots[n].host]) continue;
    topo_text(work, topo_spot_middle(work, n), work->frame + work->sky - 8, TOPO_SMALL, true, TOPO_COLOUR_SLOW,
              TOPO_ANCHOR_MIDDLE, xgmi ? "no xGMI" : "no NVLink");
  }
}

void topo_nvlinks_draw(topo_work *work, topo_nvlinks *v) {
  int32_t arcs = 0;
  bool differ = false, steep = v->arc_step < ARC_STEP_MOST;
  const joint *first = NULL;
  for (int32_t b = 0; b < v->nbars; b++) draw_bar(work, v, &v->bars[b]);
  memset(work->scratch, 0, ((size_t)work->topo->nnodes + 1) * sizeof *work->scratch);
  for (int32_t i = 0; i < v->njoints; i++) {
    const joint *own = &v->joints[i];
    if (own->bar || own->missing) continue;
    differ = differ || (first && first->count != own->count);
    first = first ? first : own;
    arcs++;
  }
  for (int32_t i = 0; i < v->njoints; i++)
    if (v->joints[i].bar)
      draw_upward(work, v, &v->joints[i]);
    else
      draw_arc(work, v, &v->joints[i], !steep && (differ || arcs <= 6 * work->ndrawn));
  mark_unlinked(work, v);
}
