/* SPDX-License-Identifier: Apache-2.0
 * The network above hosts: switches by tier, a horizontal line per switch of the lowest tier, and the NICs linked to
 * it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/layout_work.h"

enum { HUB_HEIGHT = 32, TIER_GAP = 44 };

static bool is_switch(const topo_work *work, int32_t node) { return work->places[node].role == TOPO_ROLE_SWITCH; }

/* Sets tiers: tier 1 is linked to non-switches, each further tier to the one below. Unreachable switches are tier 1. */
static void tiers_set(topo_work *work) {
  const bny_topo *topo = work->topo;
  int32_t *queue = malloc(((size_t)topo->nnodes + 1) * sizeof *queue), head = 0, tail = 0;
  if (!queue) {
    work->layout->out_of_memory = true;
    return;
  }
  for (int32_t n = 0; n < topo->nnodes; n++) {
    for (int32_t l = bny_topo_first_link(topo, n); is_switch(work, n) && l >= 0; l = bny_topo_next_link(topo, n, l)) {
      int32_t other = bny_topo_other_end(topo, n, l);
      if (is_switch(work, other) || topo->nodes[other].kind == BNY_TOPO_SWITCH || work->tier[n] > 0) continue;
      work->tier[n] = 1;
      queue[tail++] = n;
    }
  }
  while (head < tail) {
    int32_t n = queue[head++];
    for (int32_t l = bny_topo_first_link(topo, n); l >= 0; l = bny_topo_next_link(topo, n, l)) {
      int32_t other = bny_topo_other_end(topo, n, l);
      if (!is_switch(work, other) || work->tier[other] > 0) continue;
      work->tier[other] = work->tier[n] < TIERS_MOST ? work->tier[n] + 1 : TIERS_MOST;
      queue[tail++] = other;
    }
  }
  for (int32_t n = 0; n < topo->nnodes; n++) work->tier[n] += is_switch(work, n) && work->tier[n] == 0;
  free(queue);
}

/* ---- switches that are drawn ------------------------------------------------------------------------------------- */

/* Returns whether a switch leads to a drawn host or switch. */
static bool leads_to_drawn(const topo_work *work, int32_t node) {
  const bny_topo *topo = work->topo;
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    int32_t other = bny_topo_other_end(topo, node, l), nic = topo_nic_of(work, other);
    if (nic >= 0 && work->places[nic].drawn) return true;
    if (is_switch(work, other) && work->tier[other] < work->tier[node] && work->hub_of[other] >= 0) return true;
    if (work->places[other].role == TOPO_ROLE_HOST && work->places[other].drawn) return true;
  }
  return false;
}

static void hubs_choose(topo_work *work) {
  const bny_topo *topo = work->topo;
  for (int32_t n = 0; n <= topo->nnodes; n++) work->hub_of[n] = -1;
  for (int32_t rail = 0; work->rails_only && rail < TIER_MOST; rail++) {
    bool drawn = false;
    for (int32_t n = 0; n < topo->nnodes && !drawn; n++) drawn = work->places[n].drawn && work->places[n].rail == rail;
    if (drawn)
      work->hubs[work->nhubs++] = (topo_hub){
          .node = -1, .rail = rail, .tier = 1, .left = INFINITY, .right = -INFINITY, .more = work->more_x > 0};
  }
  for (int32_t tier = 1; tier <= TIERS_MOST; tier++) {
    int32_t shown = 0, hidden = 0;
    for (int32_t n = 0; n < topo->nnodes; n++) {
      if (work->tier[n] != tier) continue;
      if (shown == TIER_MOST || (work->ndrawn > 0 && !leads_to_drawn(work, n))) {
        hidden++;
        continue;
      }
      work->hub_of[n] = work->nhubs;
      work->hubs[work->nhubs++] = (topo_hub){.node = n, .rail = -2, .tier = tier, .left = INFINITY, .right = -INFINITY};
      shown++;
    }
    if (hidden > 0)
      work->hubs[work->nhubs++] =
          (topo_hub){.node = -1, .rail = -1, .tier = tier, .hidden = hidden, .left = INFINITY, .right = -INFINITY};
  }
}

/* ---- lines to switches ------------------------------------------------------------------------------------------- */

/* Called for each line from a drawn NIC or host to a hub; `which` counts the lines of the NIC. */
typedef void tap_visit(topo_work *work, topo_hub *hub, int32_t nic, int32_t which, double x, int32_t link);

static void taps_each(topo_work *work, tap_visit *visit) {
  const bny_topo *topo = work->topo;
  int32_t *used = calloc((size_t)topo->nnodes + 1, sizeof *used);
  if (!used) {
    work->layout->out_of_memory = true;
    return;
  }
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    int32_t at = is_switch(work, link->from) ? link->from : link->to, other = at == link->from ? link->to : link->from;
    int32_t nic = topo_nic_of(work, other), hub = work->hub_of[at];
    if (hub < 0 || link->kind != BNY_TOPO_LINK_NET || is_switch(work, other)) continue;
    if (nic >= 0 && work->places[nic].drawn) {
      int32_t which = used[nic]++;
      visit(work, &work->hubs[hub], nic, which, work->places[nic].tap_x + which * TAP_GAP, l);
    } else if (work->places[other].role == TOPO_ROLE_HOST && work->places[other].drawn) {
      visit(work, &work->hubs[hub], -1, 0, work->places[other].x + work->places[other].width / 2, l);
    } else {
      work->hubs[hub].more = work->more_x > 0;
    }
  }
  for (int32_t i = 0; i < work->nhubs && work->rails_only; i++) {
    for (int32_t n = 0; n < topo->nnodes; n++) {
      if (work->places[n].drawn && work->places[n].role == TOPO_ROLE_NIC && work->places[n].rail == work->hubs[i].rail)
        visit(work, &work->hubs[i], n, 0, work->places[n].tap_x, -1);
    }
  }
  free(used);
}

static void crossing_add(topo_work *work, double x) {
  double *more = realloc(work->crossings, ((size_t)work->ncrossings + 1) * sizeof *more);
  if (!more) {
    work->layout->out_of_memory = true;
    return;
  }
  work->crossings = more;
  work->crossings[work->ncrossings++] = x;
}

static void tap_count(topo_work *work, topo_hub *hub, int32_t nic, int32_t which, double x, int32_t link) {
  (void)which, (void)link;
  crossing_add(work, x);
  hub->left = fmin(hub->left, x), hub->right = fmax(hub->right, x);
  hub->wanted += x;
  hub->below++;
  int32_t rail = nic >= 0 ? work->places[nic].rail : -1;
  hub->rail = hub->rail == -2 || hub->rail == rail ? rail : -1;
}

/* Returns the upper hub of a link between switches, or NULL; *below is the lower one. */
static topo_hub *hub_above(topo_work *work, const bny_topo_link *link, topo_hub **below) {
  int32_t a = work->hub_of[link->from], b = work->hub_of[link->to];
  if (a < 0 || b < 0 || link->kind != BNY_TOPO_LINK_NET || work->hubs[a].tier == work->hubs[b].tier) return NULL;
  *below = &work->hubs[work->hubs[a].tier < work->hubs[b].tier ? a : b];
  return &work->hubs[work->hubs[a].tier < work->hubs[b].tier ? b : a];
}

/* ---- positions --------------------------------------------------------------------------------------------------- */

static const char *hub_name(const topo_work *work, const topo_hub *hub) {
  if (hub->hidden > 0) return topo_layout_string(work->layout, "\xc3\x97 %s more", topo_count_of(hub->hidden).text);
  if (hub->node < 0) return topo_layout_string(work->layout, "rail %d", hub->rail);
  return work->topo->nodes[hub->node].name;
}

static const char *hub_note(const topo_work *work, const topo_hub *hub) {
  if (hub->hidden > 0) return hub->hidden == 1 ? "switch" : "switches";
  if (hub->node < 0) return "switch not known";
  const char *up = hub->up > 0 ? topo_layout_string(work->layout, "%s GB/s up", topo_figure_of(hub->up).text) : "";
  const bny_topo_level *rails = bny_topo_level_of(work->levels, BNY_TOPO_LEVEL_RAIL);
  if (hub->tier > 1 || hub->rail < 0 || !rails || rails->ngroups < 2) return up;
  return topo_layout_string(work->layout, "rail %d%s%s", hub->rail, *up ? ", " : "", up);
}

static int hub_order(const void *left, const void *right) {
  const topo_hub *a = left, *b = right;
  if (a->tier != b->tier) return a->tier - b->tier;
  if ((a->hidden > 0) != (b->hidden > 0)) return (a->hidden > 0) - (b->hidden > 0);
  if (a->wanted < b->wanted - 1 || a->wanted > b->wanted + 1) return a->wanted < b->wanted ? -1 : 1;
  /* Hubs over the middle of the same hosts are ordered by rail. */
  if (a->rail != b->rail) return a->rail - b->rail;
  return (a->node > b->node) - (a->node < b->node);
}

/* Places hubs side by side in order, each as near as possible to its wanted x. Neighbours that collide form a block,
 * placed at the mean wish of its members. */
static void row_place(topo_hub *row, int32_t count) {
  enum { GAP = 12 };
  double start[TIER_MOST + 1], mean[TIER_MOST + 1];
  int32_t members[TIER_MOST + 1], blocks = 0;
  double offset = 0;
  for (int32_t i = 0; i < count; i++) {
    offset += i > 0 ? (row[i - 1].width + row[i].width) / 2 + GAP : 0;
    start[i] = offset;
    mean[blocks] = row[i].wanted - offset;
    members[blocks++] = 1;
    while (blocks > 1 && mean[blocks - 2] >= mean[blocks - 1]) {
      int32_t both = members[blocks - 2] + members[blocks - 1];
      mean[blocks - 2] = (mean[blocks - 2] * members[blocks - 2] + mean[blocks - 1] * members[blocks - 1]) / both;
      members[blocks - 2] = both;
      blocks--;
    }
  }
  for (int32_t b = 0, i = 0; b < blocks; b++) {
    for (int32_t m = 0; m < members[b]; m++, i++) row[i].x = mean[b] + start[i];
  }
  for (int32_t i = 0; i < count; i++) {
    double bound = i == 0 ? PAGE_MARGIN + row[0].width / 2 : row[i - 1].x + (row[i - 1].width + row[i].width) / 2 + GAP;
    row[i].x = fmax(row[i].x, bound);
  }
}

static void tier_place(topo_work *work, int32_t first, int32_t last) {
  double right = work->left, most = fmin(fmax((work->right - work->left) / (last - first) - 12, 110), 240);
  for (int32_t i = first; i < last; i++) {
    topo_hub *hub = &work->hubs[i];
    const char *name = hub_name(work, hub), *note = hub_note(work, hub);
    hub->width = fmax(topo_text_width(name, 9.5, true), topo_text_width(note, 8, false)) + 14;
    hub->width = fmin(fmax(hub->width, 46), most);
    hub->wanted = hub->below > 0    ? hub->wanted / hub->below
                  : hub->hidden > 0 ? right + 60
                                    : (work->left + work->right) / 2;
    right = fmax(right, hub->wanted + hub->width / 2);
  }
  qsort(&work->hubs[first], (size_t)(last - first), sizeof *work->hubs, hub_order);
  row_place(&work->hubs[first], last - first);
  for (int32_t i = first; i < last; i++) {
    if (work->hubs[i].node >= 0) work->hub_of[work->hubs[i].node] = i;
  }
}

/* Passes positions upwards: hubs of a tier are placed at the mean x of their links below. */
static void wishes_pass_up(topo_work *work, int32_t tier) {
  topo_hub *below, *above;
  for (int32_t l = 0; l < work->topo->nlinks; l++) {
    const bny_topo_link *link = &work->topo->links[l];
    above = hub_above(work, link, &below);
    if (!above || below->tier != tier) continue;
    above->wanted += below->x;
    above->below++;
  }
}

static int32_t lanes_set(topo_work *work, int32_t count) {
  int32_t lanes = 0;
  for (int32_t i = 0; i < count; i++) {
    topo_hub *own = &work->hubs[i];
    if (own->below == 0) continue;
    own->left = fmin(own->left, own->x), own->right = fmax(own->right, own->x);
    if (own->more) own->right = fmax(own->right, work->more_x + MORE_WIDTH / 2);
    bool clash = true;
    for (own->lane = 0; clash; own->lane += clash) {
      clash = false;
      for (int32_t j = 0; j < i && !clash; j++)
        clash = work->hubs[j].below > 0 && work->hubs[j].lane == own->lane && work->hubs[j].left < own->right + 16 &&
                own->left < work->hubs[j].right + 16;
    }
    if (own->lane + 1 > lanes) lanes = own->lane + 1;
  }
  return lanes;
}

double topo_measure_network(topo_work *work) {
  tiers_set(work);
  hubs_choose(work);
  if (work->nhubs == 0) return 0;
  taps_each(work, tap_count);
  if (work->more_x > 0) crossing_add(work, work->more_x + MORE_WIDTH / 2);
  for (int32_t l = 0; l < work->topo->nlinks; l++) {
    const bny_topo_link *link = &work->topo->links[l];
    int32_t low = work->tier[link->from] < work->tier[link->to] ? link->from : link->to;
    int32_t high = low == link->from ? link->to : link->from;
    if (work->tier[low] > 0 && work->tier[low] < work->tier[high] && work->hub_of[low] >= 0)
      work->hubs[work->hub_of[low]].up += link->gbytes_per_s;
  }
  int32_t first = 0, tiers = 0, lanes = 0;
  while (first < work->nhubs) {
    int32_t last = first, tier = work->hubs[first].tier;
    while (last < work->nhubs && work->hubs[last].tier == tier) last++;
    tier_place(work, first, last);
    if (tier == 1) lanes = lanes_set(work, last);
    wishes_pass_up(work, tier);
    for (int32_t i = first; i < last; i++) work->hubs[i].tier = tier;
    tiers++;
    first = last;
  }
  double channel = lanes * LANE_GAP + 26, height = tiers * (HUB_HEIGHT + TIER_GAP) - TIER_GAP + channel;
  for (int32_t i = 0, row = 0; i < work->nhubs; i++) {
    row += i > 0 && work->hubs[i].tier != work->hubs[i - 1].tier;
    work->hubs[i].y = work->rows.top + height - channel - HUB_HEIGHT - row * (HUB_HEIGHT + TIER_GAP);
  }
  return height;
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

static double lane_y(const topo_hub *hub) { return hub->y + HUB_HEIGHT + 14 + hub->lane * LANE_GAP; }

static void draw_tap(topo_work *work, topo_hub *hub, int32_t nic, int32_t which, double x, int32_t link) {
  double y = lane_y(hub), start = work->rows.frame;
  topo_line line = {.npoints = 2,
                    .x = {x, x},
                    .width = 1.6,
                    .colour = hub->colour,
                    .over = true,
                    .junction = true,
                    .dashed = link < 0 || work->topo->links[link].source == BNY_TOPO_ASSUMED,
                    .tip = link >= 0 ? topo_tip_link(work, link)
                                     : topo_layout_string(work->layout, "%s is on rail %d; its switch is not known",
                                                          nic >= 0 ? work->topo->nodes[nic].name : "it", hub->rail)};
  const topo_place *own = nic >= 0 ? &work->places[nic] : NULL;
  if (own) start = work->rows.nic + own->row * (work->nic_height + 6);
  line.y[0] = start, line.y[1] = y;
  if (own && own->exit == TOPO_EXIT_RIGHT) {
    double side = start + work->nic_height / 2 + (which - (own->taps - 1) / 2.0) * 5;
    line.npoints = 3;
    line.x[0] = own->x + work->nic_width, line.x[2] = x;
    line.y[0] = line.y[1] = side, line.y[2] = y;
  }
  topo_layout_line(work->layout, line);
}

/* Returns the x of a hub's own vertical line, apart from others so that they do not look like one. */
static double drop_x(const topo_work *work, const topo_hub *hub) {
  static const double tries[] = {0, 8, -8, 14, -14};
  for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
    bool clear = true;
    for (int32_t c = 0; c < work->ncrossings && clear; c++) {
      double apart = fabs(work->crossings[c] - hub->x - tries[i]);
      clear = apart > 6 || (apart < 0.1 && hub->below == 1);
    }
    if (clear) return hub->x + tries[i];
  }
  return hub->x;
}

static void draw_level(topo_work *work, const topo_hub *hub) {
  double y = lane_y(hub), x = drop_x(work, hub);
  topo_line line = {.npoints = 2,
                    .x = {hub->left, hub->right},
                    .y = {y, y},
                    .width = 1.8,
                    .colour = hub->colour,
                    .dashed = hub->node < 0};
  if (hub->below == 0 || hub->tier > 1) return;
  topo_layout_line(work->layout, line);
  topo_layout_line(work->layout, (topo_line){.npoints = 2,
                                             .x = {x, x},
                                             .y = {hub->y + HUB_HEIGHT, y},
                                             .width = 1.8,
                                             .colour = hub->colour,
                                             .dashed = hub->node < 0,
                                             .over = true,
                                             .junction = true});
}

static void draw_hub(topo_work *work, const topo_hub *hub) {
  topo_layout *layout = work->layout;
  topo_box_kind kind = hub->hidden > 0 ? TOPO_BOX_MORE : hub->node < 0 ? TOPO_BOX_RAIL : TOPO_BOX_SWITCH;
  const char *note = topo_text_fit(layout, hub_note(work, hub), 8, false, hub->width - 8);
  int32_t box = topo_layout_box(layout, (topo_box){.kind = kind,
                                                   .node = hub->node,
                                                   .x = hub->x - hub->width / 2,
                                                   .y = hub->y,
                                                   .width = hub->width,
                                                   .height = HUB_HEIGHT,
                                                   .colour = hub->colour,
                                                   .dashed = kind != TOPO_BOX_SWITCH,
                                                   .tip = hub->node >= 0 ? topo_tip_node(work, hub->node) : NULL});
  if (hub->node >= 0) work->places[hub->node].box = box;
  double y = hub->y + HUB_HEIGHT / 2 + (*note ? -2 : 3.5);
  topo_layout_label(layout,
                    (topo_label){.x = hub->x,
                                 .y = y,
                                 .size = 9.5,
                                 .bold = true,
                                 .anchor = TOPO_ANCHOR_MIDDLE,
                                 .text = topo_text_fit_name(layout, hub_name(work, hub), 9.5, true, hub->width - 8)});
  topo_layout_label(
      layout,
      (topo_label){
          .x = hub->x, .y = y + 11, .size = 8, .anchor = TOPO_ANCHOR_MIDDLE, .colour = TOPO_COLOUR_DIM, .text = note});
}

static void draw_uplinks(topo_work *work) {
  double most = 0;
  topo_hub *below, *above;
  for (int32_t pass = 0; pass < 2; pass++) {
    for (int32_t l = 0; l < work->topo->nlinks; l++) {
      const bny_topo_link *link = &work->topo->links[l];
      above = hub_above(work, link, &below);
      if (above && pass == 0) most = fmax(most, link->gbytes_per_s);
      if (!above || pass == 0) continue;
      double part = most > 0 ? link->gbytes_per_s / most : 0.3;
      topo_layout_line(work->layout, (topo_line){.npoints = 2,
                                                 .x = {below->x, above->x},
                                                 .y = {below->y, above->y + HUB_HEIGHT},
                                                 .width = 1 + 2.5 * part,
                                                 .colour = TOPO_COLOUR_NET,
                                                 .dashed = link->source == BNY_TOPO_ASSUMED,
                                                 .tip = topo_tip_link(work, l)});
    }
  }
}

/* Hosts that are not drawn are on the same switches. */
static void draw_more_taps(topo_work *work) {
  double x = work->more_x + MORE_WIDTH / 2, top = INFINITY;
  for (int32_t i = 0; i < work->nhubs; i++) {
    if (work->hubs[i].more && work->hubs[i].below > 0 && work->hubs[i].tier == 1)
      top = fmin(top, lane_y(&work->hubs[i]));
  }
  if (!(top < INFINITY) || work->more_box < 0) return;
  topo_layout_line(work->layout, (topo_line){.npoints = 2,
                                             .x = {x, x},
                                             .y = {work->layout->boxes[work->more_box].y, top},
                                             .width = 1.4,
                                             .colour = TOPO_COLOUR_DIM,
                                             .dashed = true,
                                             .over = true});
  for (int32_t i = 0; i < work->nhubs; i++) {
    const topo_hub *hub = &work->hubs[i];
    if (!hub->more || hub->below == 0 || hub->tier > 1) continue;
    double y = lane_y(hub);
    topo_layout_line(work->layout, (topo_line){.npoints = 2,
                                               .x = {x - 0.1, x},
                                               .y = {y, y},
                                               .width = 1.6,
                                               .colour = hub->colour,
                                               .over = true,
                                               .junction = true});
  }
}

void topo_draw_network(topo_work *work) {
  for (int32_t i = 0; i < work->nhubs; i++) {
    topo_hub *hub = &work->hubs[i];
    hub->colour = hub->tier > 1 || hub->hidden > 0
                      ? TOPO_COLOUR_NET
                      : (topo_colour)(TOPO_COLOUR_RAIL + (hub->rail >= 0 ? hub->rail : i) % TOPO_RAILS);
  }
  draw_uplinks(work);
  for (int32_t i = 0; i < work->nhubs; i++) draw_level(work, &work->hubs[i]);
  taps_each(work, draw_tap);
  draw_more_taps(work);
  for (int32_t i = 0; i < work->nhubs; i++) draw_hub(work, &work->hubs[i]);
}
