/* SPDX-License-Identifier: Apache-2.0
 * The network above hosts: switches by tier, and horizontal lines between them. Each switch of the lowest tier has a
 * line that its NICs join. Switches with the same uplinks share a line, which avoids many crossings. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/work.h"

enum { HUB_GAP = 14, TIERS_MOST = 5, HUBS_MOST = TIERS_MOST * (TIER_MOST + 1), PORT_GAP = 7 };

/* A box: a switch, a rail without a known switch, or the rest of a tier. */
typedef struct hub {
  int32_t node, rail, tier;   /* -1: none; tiers count from 1 */
  int32_t hidden;             /* number of switches that it represents */
  double x, wanted, width, y; /* x: middle; wanted: middle of its links below */
  const char *name, *facts[2];
  double up, least;    /* GB/s of all uplinks; of the slowest drawn uplink; 0 unknown */
  int32_t over, under; /* lines above and below it; -1 none */
  bool more, tapped;   /* linked to hosts that are not drawn; to drawn NICs */
  int32_t ports;
  topo_colour colour;
} hub;

/* A link upwards to a hub, from a NIC or from another hub. */
typedef struct edge {
  int32_t nic, below, above, link; /* -1: none */
  int32_t nth;                     /* position among the lines of its NIC */
} edge;

/* A horizontal line. */
typedef struct bus {
  int32_t tier;       /* 0: joined by NICs from below; else the tier of the hubs below it */
  uint64_t look;      /* hash of the uplinks that the hubs below it share */
  bool slow;          /* its hubs have slower uplinks than other hubs */
  double limit;       /* GB/s: a slower link counts as slow; 0: no single link does */
  double left, right; /* as drawn */
  double y;
  double more_x; /* where hosts that are not drawn join it; 0: none */
  topo_look line;
} bus;

struct topo_net {
  hub hubs[HUBS_MOST];
  bus buses[2 * HUBS_MOST];
  topo_extent extents[2 * HUBS_MOST]; /* by bus */
  int32_t nhubs, nbuses, tiers, nedges;
  int32_t *hub_of; /* by node; -1 */
  edge *edges;
  double between[TIERS_MOST + 1]; /* height above a tier; above the hosts */
  double hub_height;
};

/* ---- choice of switches ------------------------------------------------------------------------------------------ */

static int32_t tier_of(const topo_work *work, int32_t n) {
  return work->fold.tier[n] > TIERS_MOST ? TIERS_MOST : work->fold.tier[n];
}

static bool is_net_link(const topo_work *work, int32_t l) {
  const bny_topo_link *link = &work->topo->links[l];
  return link->kind == BNY_TOPO_LINK_NET && link->from != link->to;
}

/* Returns the priority for drawing a switch: 2 if it is faulty, 1 if it is linked to a drawn node, else 0. */
static int32_t worth_of(const topo_work *work, const topo_net *net, int32_t n) {
  if (work->faulty[n]) return 2;
  for (int32_t l = bny_topo_first_link(work->topo, n); l >= 0; l = bny_topo_next_link(work->topo, n, l)) {
    int32_t other = bny_topo_other_end(work->topo, n, l), nic = bny_topo_nic_of(work->topo, other);
    if (is_net_link(work, l) && (work->spots[nic >= 0 ? nic : other].drawn || net->hub_of[other] >= 0)) return 1;
  }
  return 0;
}

static void hub_add(topo_net *net, hub own) {
  own.over = own.under = -1;
  net->hubs[net->nhubs++] = own;
}

static void choose_tier(topo_work *work, topo_net *net, int32_t tier) {
  int32_t total = 0, chosen = 0, *worth = work->scratch;
  bool assumed;
  for (int32_t n = 0; n < work->topo->nnodes; n++) {
    worth[n] = tier_of(work, n) == tier ? worth_of(work, net, n) : -1;
    total += worth[n] >= 0;
  }
  for (int32_t least = 2; least >= 0; least--) {
    for (int32_t n = 0; n < work->topo->nnodes && chosen < TIER_MOST; n++)
      if (worth[n] == least) worth[n] = 3, chosen++;
  }
  for (int32_t n = 0; n < work->topo->nnodes; n++) {
    if (worth[n] != 3) continue;
    net->hub_of[n] = net->nhubs;
    hub own = {.node = n, .rail = -1, .tier = tier, .ports = topo_fold_facts(&work->fold, n).below};
    own.up = topo_fold_uplink(&work->fold, n, &assumed);
    hub_add(net, own);
  }
  if (total > chosen) hub_add(net, (hub){.node = -1, .rail = -1, .tier = tier, .hidden = total - chosen});
}

static void choose_rails(topo_work *work, topo_net *net) {
  bool seen[TIER_MOST] = {false};
  int32_t most = 0;
  for (int32_t n = 0; n < work->topo->nnodes; n++) {
    int32_t rail = work->rail[n];
    most = rail + 1 > most ? rail + 1 : most;
    if (rail >= 0 && rail < TIER_MOST && work->spots[n].drawn) seen[rail] = true;
  }
  for (int32_t rail = 0; rail < TIER_MOST; rail++)
    if (seen[rail]) hub_add(net, (hub){.node = -1, .rail = rail, .tier = 1});
  if (most > TIER_MOST) hub_add(net, (hub){.node = -1, .rail = -1, .tier = 1, .hidden = most - TIER_MOST});
}

/* ---- links upwards ----------------------------------------------------------------------------------------------- */

static void edge_add(topo_work *work, topo_net *net, int32_t from, int32_t above, int32_t link) {
  int32_t nic = bny_topo_nic_of(work->topo, from), below = net->hub_of[from], nth = 0;
  hub *to = &net->hubs[above];
  if (nic < 0 ? below < 0 || net->hubs[below].tier >= to->tier : !work->spots[nic].drawn) {
    to->more = to->more || nic >= 0;
    return;
  }
  /* The lines of a NIC were counted before its hubs were chosen, so its links may outnumber them. */
  if (nic >= 0 && (nth = work->scratch[nic]++) >= work->spots[nic].taps) return;
  to->tapped = to->tapped || nic >= 0;
  net->edges[net->nedges++] = (edge){nic, nic >= 0 ? -1 : below, above, link, nth};
}

static void find_edges(topo_work *work, topo_net *net) {
  const bny_topo *topo = work->topo;
  memset(work->scratch, 0, ((size_t)topo->nnodes + 1) * sizeof *work->scratch);
  for (int32_t l = 0; l < topo->nlinks && !work->rails_only; l++) {
    const int32_t ends[2] = {topo->links[l].from, topo->links[l].to};
    for (int i = 0; i < 2 && is_net_link(work, l); i++)
      if (net->hub_of[ends[!i]] >= 0) edge_add(work, net, ends[i], net->hub_of[ends[!i]], l);
  }
  for (int32_t n = 0; n < topo->nnodes && work->rails_only; n++)
    for (int32_t h = 0; work->rail[n] >= 0 && h < net->nhubs; h++)
      if (net->hubs[h].rail == work->rail[n]) edge_add(work, net, n, h, -1);
}

static double x_below(const topo_work *work, const topo_net *net, const edge *own) {
  return own->nic >= 0 ? work->spots[own->nic].tap_x + TAP_GAP * own->nth : net->hubs[own->below].x;
}

/* ---- boxes ------------------------------------------------------------------------------------------------------- */

/* Writes the name and facts of a hub. Ports are counted if hosts are hidden, because the line does not show them. */
static void hub_say(topo_work *work, topo_net *net, hub *own) {
  own->facts[0] = own->facts[1] = "";
  if (own->node < 0) {
    own->name = own->hidden > 0 ? tool_format("\xc3\x97 %s more", topo_count_of(own->hidden).text)
                                : tool_format("rail %d", own->rail);
    own->facts[0] = own->hidden == 0 ? "switch not known" : work->rails_only ? "rails" : "switches";
    return;
  }
  topo_string facts = {.text = ""};
  int32_t rail = -1;
  own->name = work->topo->nodes[own->node].name;
  for (const edge *e = net->edges; e < net->edges + net->nedges; e++)
    if (e->nic >= 0 && &net->hubs[e->above] == own)
      rail = rail == -1 || rail == work->rail[e->nic] ? work->rail[e->nic] : -2;
  if (rail >= 0) topo_append(&facts, ", rail %d", rail);
  if (own->ports > 0 && own->more) topo_append(&facts, ", %d port%s", own->ports, own->ports == 1 ? "" : "s");
  if (facts.text[0]) own->facts[0] = tool_format("%s", facts.text + 2);
  if (own->up > 0) own->facts[facts.text[0] != '\0'] = tool_format("%s GB/s up", topo_figure_of(own->up).text);
  if (*own->facts[1]) net->hub_height = 46;
}

static int by_wanted(const void *a, const void *b) {
  const hub *x = *(hub *const *)a, *y = *(hub *const *)b;
  if ((x->hidden > 0) != (y->hidden > 0)) return x->hidden > 0 ? 1 : -1;
  if (fabs(x->wanted - y->wanted) > 1e-6) return x->wanted < y->wanted ? -1 : 1;
  return (x > y) - (x < y);
}

static void place_tier(topo_work *work, topo_net *net, int32_t tier) {
  hub *here[TIER_MOST + 1];
  const char *names[TIER_MOST + 1];
  int32_t count = 0, named = 0; /* the box for the other switches is last */
  double widest = 0;
  for (hub *own = net->hubs; own < net->hubs + net->nhubs; own++) {
    double sum = 0, below = 0;
    if (own->tier != tier) continue;
    for (const edge *e = net->edges; e < net->edges + net->nedges; e++)
      if (&net->hubs[e->above] == own) sum += x_below(work, net, e), below++;
    own->wanted = below > 0 ? sum / below : work->right;
    here[count++] = own;
  }
  qsort(here, (size_t)count, sizeof *here, by_wanted);
  for (int32_t i = 0; i < count; i++) {
    named += here[i]->hidden == 0;
    hub_say(work, net, here[i]);
    names[i] = here[i]->name;
    widest = fmax(widest, topo_text_width(names[i], 10, true));
    for (int f = 0; f < 2; f++) widest = fmax(widest, topo_text_width(here[i]->facts[f], TOPO_SMALL, false));
  }
  double width = fmin(fmax(widest + 14, 48), count > 8 ? 110 : 170), left = count * (width + HUB_GAP) - HUB_GAP;
  topo_text_fit_names(names, named, 10, true, width - 8);
  /* Each box moves to its wanted position, or right of the boxes before it. If some have none, all are centred. */
  double end = fmax(work->right, PAGE_MARGIN + left), x = PAGE_MARGIN;
  bool centred = here[count - 1]->wanted >= work->right;
  if (centred) x = fmax(x, (end + PAGE_MARGIN - left) / 2);
  for (int32_t i = 0; i < count; i++) {
    if (!centred) x = fmax(x, fmin(here[i]->wanted - width / 2, end - left));
    here[i]->name = names[i];
    here[i]->width = width;
    here[i]->x = x + width / 2;
    here[i]->colour = tier == 1 ? (topo_colour)(TOPO_COLOUR_RAIL + i % TOPO_RAILS) : TOPO_COLOUR_NET;
    x += width + HUB_GAP;
    left -= width + HUB_GAP;
  }
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static int32_t bus_add(topo_net *net, bus own) {
  own.left = 1e9, own.right = -1e9;
  net->extents[net->nbuses] = (topo_extent){.left = 1e9, .right = -1e9, .group = own.tier};
  net->buses[net->nbuses] = own;
  return net->nbuses++;
}

static void bus_reach(topo_net *net, int32_t b, double x) {
  net->extents[b].left = fmin(net->extents[b].left, x);
  net->extents[b].right = fmax(net->extents[b].right, x);
}

/* Each hub with drawn NICs gets a line. Other hubs that lead to hidden hosts share one line. */
static void find_lines_below(topo_work *work, topo_net *net) {
  int32_t shared = -1;
  for (int pass = 0; pass < 2; pass++) {
    for (hub *own = net->hubs; own < net->hubs + net->nhubs; own++) {
      bool joined = own->more && work->more_x > 0;
      if (own->tapped != (pass == 0) || !(own->tapped || joined)) continue;
      topo_look line = {.width = 1.8, .colour = own->colour, .dashed = own->node < 0};
      if (pass == 1) line = (topo_look){.width = 1.4, .colour = TOPO_COLOUR_DIM, .dashed = true};
      if (pass == 0 || shared < 0) own->under = bus_add(net, (bus){.line = line});
      if (pass == 1) shared = own->under = shared < 0 ? own->under : shared;
      bus *at = &net->buses[own->under];
      if (joined) at->more_x = work->more_x + MORE_WIDTH / 2;
      bus_reach(net, own->under, own->x);
      if (joined) bus_reach(net, own->under, at->more_x);
    }
  }
  for (const edge *e = net->edges; e < net->edges + net->nedges; e++)
    if (e->nic >= 0) bus_reach(net, net->hubs[e->above].under, x_below(work, net, e));
  net->between[0] = 20 + LANE_GAP * topo_lanes(net->extents, net->nbuses, 0);
}

/* Groups the hubs of a tier by their uplinks. Each group gets a line. */
static void find_lines_above(topo_work *work, topo_net *net, int32_t tier) {
  double fastest = 0, usual = 0;
  int32_t first = net->nbuses;
  for (int32_t h = 0; h < net->nhubs; h++) {
    hub *own = &net->hubs[h];
    bus here = {.tier = tier, .line = {.width = 1.6, .colour = TOPO_COLOUR_NET}};
    for (const edge *e = net->edges; own->tier == tier && e < net->edges + net->nedges; e++) {
      if (e->below != h) continue;
      const bny_topo_link *link = &work->topo->links[e->link];
      here.look += bny_hash_of(bny_hash_of((uint64_t)e->above) + (uint64_t)llround(link->gbytes_per_s * 16));
      here.line.dashed = here.line.dashed || link->source == BNY_TOPO_ASSUMED;
      own->least = own->least > 0 ? fmin(own->least, link->gbytes_per_s) : link->gbytes_per_s;
    }
    if (here.look == 0) continue;
    own->over = first;
    while (own->over < net->nbuses && net->buses[own->over].look != here.look) own->over++;
    if (own->over == net->nbuses) bus_add(net, here);
    net->buses[own->over].line.dashed |= here.line.dashed;
    bus_reach(net, own->over, own->x);
    for (const edge *e = net->edges; e < net->edges + net->nedges; e++)
      if (e->below == h) bus_reach(net, own->over, net->hubs[e->above].x);
    fastest = fmax(fastest, own->up);
    usual = fmax(usual, own->least);
  }
  /* If links of a slow group are slower than all links of another group, only these links are marked as slow. */
  for (hub *own = net->hubs; own < net->hubs + net->nhubs; own++) {
    if (own->tier != tier || own->over < 0) continue;
    bus *at = &net->buses[own->over];
    at->slow = at->slow || own->up < 0.95 * fastest;
    if (own->least < 0.95 * usual) at->limit = 0.95 * usual;
  }
  int32_t count = net->nbuses - first;
  for (int32_t b = first; b < net->nbuses; b++) net->extents[b].right += PORT_GAP * (count + 1); /* ports are apart */
  net->between[tier] = count > 0 ? 30 + LANE_GAP * (topo_lanes(net->extents, net->nbuses, tier) + 1) : 22;
}

topo_net *topo_net_plan(topo_work *work, double *height) {
  topo_net *net = tool_new(1, sizeof *net);
  net->hub_of = tool_new((size_t)work->topo->nnodes, sizeof *net->hub_of);
  net->edges = tool_new(2 * (size_t)work->topo->nlinks + (size_t)work->topo->nnodes, sizeof *net->edges);
  memset(net->hub_of, 0xff, ((size_t)work->topo->nnodes + 1) * sizeof *net->hub_of);
  for (int32_t n = 0; n < work->topo->nnodes; n++)
    net->tiers = tier_of(work, n) > net->tiers ? tier_of(work, n) : net->tiers;
  for (int32_t tier = 1; tier <= net->tiers; tier++) choose_tier(work, net, tier);
  if (work->rails_only) choose_rails(work, net), net->tiers = net->nhubs > 0;
  *height = 0;
  net->hub_height = 34;
  if (net->nhubs == 0) return net;
  find_edges(work, net);
  for (int32_t tier = 1; tier <= net->tiers; tier++) place_tier(work, net, tier);
  find_lines_below(work, net);
  for (int32_t tier = 1; tier < net->tiers; tier++) find_lines_above(work, net, tier);
  for (int32_t tier = 0; tier < net->tiers; tier++) *height += net->hub_height + net->between[tier];
  return net;
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

static void draw_hub(topo_work *work, const topo_net *net, const hub *own) {
  bool whole = own->node >= 0;
  topo_look look = {.colour = own->hidden > 0 ? TOPO_COLOUR_NET : own->colour, .dashed = !whole};
  topo_box_kind kind = whole ? TOPO_BOX_SWITCH : own->hidden > 0 ? TOPO_BOX_MORE : TOPO_BOX_RAIL;
  int32_t box = topo_put_box(work, kind, own->node, own->x - own->width / 2, own->y, own->width, net->hub_height, look);
  if (whole) work->spots[own->node].box = box;
  double y = own->y + net->hub_height / 2 + 3.5 - 6 * ((*own->facts[0] != '\0') + (*own->facts[1] != '\0'));
  topo_text(work, own->x, y, 10, true, TOPO_COLOUR_TEXT, TOPO_ANCHOR_MIDDLE, own->name);
  for (int f = 0; f < 2; f++) topo_note(work, own->x, y + 12 * (f + 1), own->width - 8, own->facts[f]);
}

/* Draws a vertical line to a bus at x. The line starts with a horizontal part if from_x differs from x. */
static void join(topo_work *work, bus *to, double from_x, double from_y, double x, topo_look look) {
  bool straight = fabs(from_x - x) < 1e-9;
  topo_stroke line = {
      .npoints = straight ? 2 : 3, .x = {from_x, x, x}, .y = {from_y, straight ? to->y : from_y, to->y}};
  line.width = look.width, line.colour = look.colour, line.dashed = look.dashed;
  line.over = line.junction = true;
  topo_layout_line(work->layout, line);
  to->left = fmin(to->left, x), to->right = fmax(to->right, x);
}

/* Draws the lines from a bus between tiers to the switches above. Lines to the same switch stand side by side. */
static void join_above(topo_work *work, topo_net *net, int32_t b, int32_t nth) {
  double slowest[HUBS_MOST] = {0};
  bus *own = &net->buses[b];
  for (const edge *e = net->edges; e < net->edges + net->nedges; e++) {
    if (e->below < 0 || net->hubs[e->below].over != b) continue;
    double speed = fmax(work->topo->links[e->link].gbytes_per_s, 1e-9);
    slowest[e->above] = slowest[e->above] > 0 ? fmin(slowest[e->above], speed) : speed;
  }
  for (int32_t h = 0; h < net->nhubs; h++) {
    const hub *to = &net->hubs[h];
    if (slowest[h] <= 0) continue;
    topo_look look = own->line;
    if (own->slow && slowest[h] < own->limit) look.colour = TOPO_COLOUR_SLOW;
    double x = to->x + PORT_GAP * ((nth + 1) / 2) * (nth % 2 ? 1 : -1), most = to->width / 2 - 4;
    x = fmax(to->x - most, fmin(x, to->x + most));
    join(work, own, x, to->y + net->hub_height, x, look);
  }
}

static void draw_lines(topo_work *work, topo_net *net, const double *tops) {
  for (int32_t b = 0, nth = 0; b < net->nbuses; b++) {
    bus *own = &net->buses[b];
    double lane = LANE_GAP * net->extents[b].lane;
    own->y = own->tier == 0 ? tops[0] + 12 + lane : tops[own->tier] - 16 - lane;
    if (own->slow && own->limit <= 0) own->line.colour = TOPO_COLOUR_SLOW;
    nth = b > 0 && net->buses[b - 1].tier == own->tier ? nth + 1 : 0;
    if (own->tier > 0) join_above(work, net, b, nth);
    if (own->more_x <= 0) continue;
    join(work, own, own->more_x, work->frame, own->more_x,
         (topo_look){.width = 1.4, .colour = TOPO_COLOUR_DIM, .dashed = true});
    work->crossings[work->ncrossings++] = own->more_x;
  }
  for (hub *own = net->hubs; own < net->hubs + net->nhubs; own++) {
    bus *over = own->over >= 0 ? &net->buses[own->over] : NULL,
        *under = own->under >= 0 ? &net->buses[own->under] : NULL;
    if (over) join(work, over, own->x, own->y, own->x, over->line);
    if (under) join(work, under, own->x, own->y + net->hub_height, own->x, under->line);
  }
  for (const edge *e = net->edges; e < net->edges + net->nedges; e++) {
    if (e->nic < 0) continue;
    const topo_spot *nic = &work->spots[e->nic];
    double x = x_below(work, net, e), y = nic->y + nic->height * (e->nth + 1) / (nic->taps + 1);
    bus *to = &net->buses[net->hubs[e->above].under];
    join(work, to, nic->x + nic->width, y, x, to->line);
    work->crossings[work->ncrossings++] = x;
  }
  for (bus *own = net->buses; own < net->buses + net->nbuses; own++)
    if (own->right - own->left > 1) topo_put_line(work, own->left, own->y, own->right, own->y, own->line);
}

void topo_net_draw(topo_work *work, topo_net *net, double top) {
  double tops[TIERS_MOST + 1] = {top};
  work->crossings = tool_new((size_t)(net->nedges + net->nbuses), sizeof *work->crossings);
  for (int32_t tier = net->tiers; tier >= 1; tier--) {
    tops[tier] = tops[0];
    for (int32_t h = 0; h < net->nhubs; h++) {
      if (net->hubs[h].tier != tier) continue;
      net->hubs[h].y = tops[tier];
      draw_hub(work, net, &net->hubs[h]);
    }
    tops[0] += net->hub_height + (tier > 1 ? net->between[tier - 1] : 0);
  }
  draw_lines(work, net, tops);
}
