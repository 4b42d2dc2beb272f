/* SPDX-License-Identifier: Apache-2.0
 * The network above hosts: switches by tier. Each switch of the lowest tier has a horizontal line, which its NICs join.
 * Switches with the same links upwards share a line between the tiers, so that many of them do not cross. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/work.h"

enum { HUB_GAP = 14, TIERS_MOST = 5, HUBS_MOST = TIERS_MOST * (TIER_MOST + 1), PORT_GAP = 7 };

/* A drawn network switch, a rail without a known switch, or the rest of a tier. */
typedef struct hub {
  int32_t node, rail, tier; /* -1: none; tiers count from 1 */
  int32_t hidden;           /* number of switches it stands for */
  double x, wanted;         /* middle; that of what is linked to it below */
  double width, y;
  const char *name, *facts[2];
  double up;   /* GB/s; 0 unknown */
  bool more;   /* linked to hosts that are not drawn */
  bool tapped; /* linked to hosts that are drawn */
  int32_t ports;
  topo_colour colour;
  topo_extent extent; /* extent of its horizontal line */
} hub;

/* The links of some switches of a tier to the same switches above. */
typedef struct trunk {
  uint64_t look;
  int32_t tier;
  bool slow, assumed;
  double least; /* GB/s: a link below it makes the trunk slow; 0: no single link does */
  topo_extent extent;
} trunk;

/* A line from a NIC to a hub. */
typedef struct tap {
  int32_t nic, hub, link, nth;
} tap;

struct topo_net {
  hub hubs[HUBS_MOST];
  int32_t nhubs, tiers;
  trunk trunks[HUBS_MOST];
  int32_t ntrunks;
  int32_t trunk_of[HUBS_MOST]; /* -1 */
  int32_t *hub_of;             /* by node; -1 */
  tap *taps;
  int32_t ntaps;
  double between[TIERS_MOST + 1]; /* height above a tier, for its trunks */
  double hub_height;
  double shared;  /* height of the line that leads from several switches to hosts that are not drawn; 0: none */
  double channel; /* height of the horizontal lines below the lowest tier */
};

/* ---- which switches ---------------------------------------------------------------------------------------------- */

static bool is_net_switch(const topo_work *work, int32_t n) { return work->fold.tier[n] > 0; }

static int32_t tier_of(const topo_work *work, int32_t n) {
  return work->fold.tier[n] > TIERS_MOST ? TIERS_MOST : work->fold.tier[n];
}

/* Returns the other end of a network link of a switch; a port's NIC in its place. */
static int32_t far_end(const topo_work *work, int32_t node, int32_t l) {
  int32_t other = bny_topo_other_end(work->topo, node, l), nic = topo_nic_of(work->topo, other);
  return nic >= 0 ? nic : other;
}

static bool is_net_link(const topo_work *work, int32_t l) {
  const bny_topo_link *link = &work->topo->links[l];
  return link->kind == BNY_TOPO_LINK_NET && link->from != link->to;
}

static double uplink_of(const topo_work *work, int32_t n) {
  double sum = 0;
  for (int32_t l = bny_topo_first_link(work->topo, n); l >= 0; l = bny_topo_next_link(work->topo, n, l)) {
    int32_t other = bny_topo_other_end(work->topo, n, l);
    if (is_net_link(work, l) && work->fold.tier[other] > work->fold.tier[n]) sum += work->topo->links[l].gbytes_per_s;
  }
  return sum;
}

/* Returns how much a switch is worth drawing: it is at fault, or linked to what is drawn, or neither. */
static int32_t worth_of(const topo_work *work, const topo_net *net, int32_t n) {
  if (work->faulty[n]) return 2;
  for (int32_t l = bny_topo_first_link(work->topo, n); l >= 0; l = bny_topo_next_link(work->topo, n, l)) {
    int32_t other = far_end(work, n, l);
    if (is_net_link(work, l) && (work->spots[other].drawn || net->hub_of[other] >= 0)) return 1;
  }
  return 0;
}

static hub *hub_add(topo_net *net, hub own) {
  net->hubs[net->nhubs] = own;
  return &net->hubs[net->nhubs++];
}

static void choose_tier(topo_work *work, topo_net *net, int32_t tier) {
  int32_t total = 0, chosen = 0, *worth = work->scratch;
  for (int32_t n = 0; n < work->topo->nnodes; n++) {
    worth[n] = is_net_switch(work, n) && tier_of(work, n) == tier ? worth_of(work, net, n) : -1;
    total += worth[n] >= 0;
  }
  for (int32_t least = 2; least >= 0; least--) {
    for (int32_t n = 0; n < work->topo->nnodes && chosen < TIER_MOST; n++)
      if (worth[n] == least) worth[n] = 3, chosen++;
  }
  for (int32_t n = 0; n < work->topo->nnodes; n++) {
    if (worth[n] != 3) continue;
    net->hub_of[n] = net->nhubs;
    topo_facts facts = topo_fold_facts(&work->fold, n);
    hub_add(net, (hub){.node = n, .rail = -1, .tier = tier, .up = uplink_of(work, n), .ports = facts.below});
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

/* ---- lines from NICs --------------------------------------------------------------------------------------------- */

static void tap_add(topo_work *work, topo_net *net, int32_t nic, int32_t h, int32_t link) {
  if (!work->spots[nic].drawn) {
    net->hubs[h].more = true;
    return;
  }
  /* The number of lines of a NIC was counted before its hubs were chosen. */
  int32_t nth = work->scratch[nic]++;
  if (nth < work->spots[nic].taps) net->taps[net->ntaps++] = (tap){.nic = nic, .hub = h, .link = link, .nth = nth};
}

static void find_taps(topo_work *work, topo_net *net) {
  memset(work->scratch, 0, ((size_t)work->topo->nnodes + 1) * sizeof *work->scratch);
  for (int32_t l = 0; l < work->topo->nlinks && !work->rails_only; l++) {
    const bny_topo_link *link = &work->topo->links[l];
    if (!is_net_link(work, l)) continue;
    int32_t nics[2] = {topo_nic_of(work->topo, link->from), topo_nic_of(work->topo, link->to)};
    for (int i = 0; i < 2; i++) {
      int32_t h = net->hub_of[i == 0 ? link->to : link->from];
      if (nics[i] >= 0 && h >= 0) tap_add(work, net, nics[i], h, l);
    }
  }
  for (int32_t n = 0; n < work->topo->nnodes && work->rails_only; n++) {
    for (int32_t h = 0; work->rail[n] >= 0 && h < net->nhubs; h++)
      if (net->hubs[h].rail == work->rail[n]) tap_add(work, net, n, h, -1);
  }
}

static double tap_x(const topo_work *work, const tap *own) { return work->spots[own->nic].tap_x + TAP_GAP * own->nth; }

/* ---- places ------------------------------------------------------------------------------------------------------ */

static int by_wanted(const void *a, const void *b) {
  const hub *x = *(hub *const *)a, *y = *(hub *const *)b;
  if ((x->hidden > 0) != (y->hidden > 0)) return x->hidden > 0 ? 1 : -1;
  if (fabs(x->wanted - y->wanted) > 1e-6) return x->wanted < y->wanted ? -1 : 1;
  return (x > y) - (x < y);
}

/* Says what a hub is. Ports are counted where hosts are hidden, because its line then does not show them. */
static void hub_say(topo_work *work, topo_net *net, hub *own) {
  own->facts[0] = own->facts[1] = "";
  if (own->hidden > 0) {
    own->name = tool_format("\xc3\x97 %s more", topo_count_of(own->hidden).text);
    own->facts[0] = work->rails_only ? "rails" : "switches";
    return;
  }
  if (own->node < 0) {
    own->name = tool_format("rail %d", own->rail);
    own->facts[0] = "switch not known";
    return;
  }
  topo_string facts = {.text = ""};
  int32_t rail = -1;
  for (int32_t i = 0; i < net->ntaps; i++) {
    if (&net->hubs[net->taps[i].hub] != own) continue;
    int32_t here = work->rail[net->taps[i].nic];
    rail = rail == -1 || rail == here ? here : -2;
  }
  if (rail >= 0) topo_append(&facts, ", rail %d", rail);
  if (own->ports > 0 && own->more) topo_append(&facts, ", %d port%s", own->ports, own->ports == 1 ? "" : "s");
  if (facts.text[0]) own->facts[0] = tool_format("%s", facts.text + 2);
  if (own->up > 0) own->facts[facts.text[0] != '\0'] = tool_format("%s GB/s up", topo_figure_of(own->up).text);
  if (*own->facts[1]) net->hub_height = 46;
}

static void place_tier(topo_work *work, topo_net *net, int32_t tier) {
  hub *here[TIER_MOST + 1];
  const char *names[TIER_MOST + 1];
  int32_t count = 0;
  double total = -HUB_GAP;
  for (int32_t h = 0; h < net->nhubs; h++)
    if (net->hubs[h].tier == tier) here[count++] = &net->hubs[h];
  qsort(here, (size_t)count, sizeof *here, by_wanted);
  double widest = 0;
  int32_t whole = 0; /* the box for the rest is last */
  for (int32_t i = 0; i < count; i++) {
    whole += here[i]->hidden == 0;
    hub_say(work, net, here[i]);
    names[i] = here[i]->name ? here[i]->name : work->topo->nodes[here[i]->node].name;
    widest = fmax(widest, topo_text_width(names[i], 10, true));
    for (int f = 0; f < 2; f++) widest = fmax(widest, topo_text_width(here[i]->facts[f], TOPO_SMALL, false));
  }
  double width = fmin(fmax(widest + 14, 48), count > 8 ? 110 : 170);
  topo_text_fit_names(names, whole, 10, true, width - 8);
  for (int32_t i = 0; i < count; i++) {
    here[i]->name = names[i];
    for (int f = 0; f < 2; f++) here[i]->facts[f] = topo_text_fit(here[i]->facts[f], TOPO_SMALL, false, width - 8);
    here[i]->width = width;
    if (tier == 1) here[i]->colour = (topo_colour)(TOPO_COLOUR_RAIL + i % TOPO_RAILS);
    total += width + HUB_GAP;
  }
  /* Each is where it wants to be, as far as those at its left let it; all are in the middle if some do not mind. */
  double end = fmax(work->right, PAGE_MARGIN + total), x = PAGE_MARGIN, left = total;
  bool centred = here[count - 1]->wanted >= work->right;
  if (centred) x = fmax(x, (end + PAGE_MARGIN - total) / 2);
  for (int32_t i = 0; i < count; i++) {
    if (!centred) x = fmax(x, fmin(here[i]->wanted - width / 2, end - left));
    here[i]->x = x + width / 2;
    x += width + HUB_GAP;
    left -= width + HUB_GAP;
  }
}

/* ---- trunks ------------------------------------------------------------------------------------------------------ */

/* Returns the slowest link between a hub and those that it is linked to above, or of a trunk below; 0: none. */
static double slowest_link(const topo_work *work, const topo_net *net, const hub *own, int32_t below) {
  double slowest = 0;
  for (int32_t l = own->node >= 0 ? bny_topo_first_link(work->topo, own->node) : -1; l >= 0;
       l = bny_topo_next_link(work->topo, own->node, l)) {
    int32_t h = is_net_link(work, l) ? net->hub_of[bny_topo_other_end(work->topo, own->node, l)] : -1;
    bool counts = h >= 0 && (below < 0 ? net->hubs[h].tier > own->tier
                                       : net->trunk_of[h] == below && net->hubs[h].tier < own->tier);
    double speed = work->topo->links[l].gbytes_per_s;
    if (counts && (slowest <= 0 || speed < slowest)) slowest = fmax(speed, 1e-9);
  }
  return slowest;
}

/* Where a slow trunk has links that are slower than all links of another, these alone are slow. */
static void find_slow_links(const topo_work *work, topo_net *net, int32_t tier) {
  double usual = 0;
  for (int32_t h = 0; h < net->nhubs; h++)
    if (net->hubs[h].tier == tier) usual = fmax(usual, slowest_link(work, net, &net->hubs[h], -1));
  for (int32_t h = 0; h < net->nhubs; h++) {
    if (net->hubs[h].tier != tier || net->trunk_of[h] < 0) continue;
    double slowest = slowest_link(work, net, &net->hubs[h], -1);
    if (slowest > 0 && slowest < 0.95 * usual) net->trunks[net->trunk_of[h]].least = 0.95 * usual;
  }
}

/* Groups the hubs of a tier by their links to hubs above. */
static void find_trunks(topo_work *work, topo_net *net, int32_t tier) {
  double fastest = 0;
  int32_t first = net->ntrunks;
  for (int32_t h = 0; h < net->nhubs; h++) {
    const hub *own = &net->hubs[h];
    net->trunk_of[h] = own->tier == tier ? -1 : net->trunk_of[h];
    if (own->tier != tier || own->node < 0) continue;
    trunk look = {.tier = tier, .extent = {.left = own->x, .right = own->x}};
    for (int32_t l = bny_topo_first_link(work->topo, own->node); l >= 0;
         l = bny_topo_next_link(work->topo, own->node, l)) {
      const bny_topo_link *link = &work->topo->links[l];
      int32_t other = bny_topo_other_end(work->topo, own->node, l), above = net->hub_of[other];
      if (!is_net_link(work, l) || above < 0 || net->hubs[above].tier <= tier) continue;
      look.look += bny_hash_of(bny_hash_of((uint64_t)above) + (uint64_t)llround(link->gbytes_per_s * 16));
      look.assumed = look.assumed || link->source == BNY_TOPO_ASSUMED;
      look.extent.left = fmin(look.extent.left, net->hubs[above].x);
      look.extent.right = fmax(look.extent.right, net->hubs[above].x);
    }
    if (look.look == 0) continue;
    int32_t t = first;
    while (t < net->ntrunks && net->trunks[t].look != look.look) t++;
    if (t == net->ntrunks) net->trunks[net->ntrunks++] = look;
    trunk *to = &net->trunks[t];
    to->extent.left = fmin(to->extent.left, own->x) - 1;
    to->extent.right = fmax(to->extent.right, own->x) + 1;
    net->trunk_of[h] = t;
    fastest = fmax(fastest, own->up);
  }
  topo_extent extents[HUBS_MOST];
  int32_t count = net->ntrunks - first;
  for (int32_t t = 0; t < count; t++) {
    extents[t] = net->trunks[first + t].extent;
    extents[t].right += PORT_GAP * (count + 1); /* ports above are side by side */
  }
  int32_t lanes = topo_lanes(extents, count);
  for (int32_t t = 0; t < count; t++) net->trunks[first + t].extent.lane = extents[t].lane;
  for (int32_t h = 0; h < net->nhubs; h++) {
    trunk *own = net->trunk_of[h] >= first ? &net->trunks[net->trunk_of[h]] : NULL;
    if (own && net->hubs[h].tier == tier) own->slow = own->slow || net->hubs[h].up < 0.95 * fastest;
  }
  find_slow_links(work, net, tier);
  net->between[tier] = count > 0 ? 30 + LANE_GAP * (lanes + 1) : 22;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

static void place_hubs(topo_work *work, topo_net *net) {
  for (int32_t tier = 1; tier <= net->tiers; tier++) {
    double sums[HUBS_MOST] = {0};
    int32_t counts[HUBS_MOST] = {0};
    for (int32_t i = 0; tier == 1 && i < net->ntaps; i++) {
      sums[net->taps[i].hub] += tap_x(work, &net->taps[i]);
      counts[net->taps[i].hub]++;
    }
    for (int32_t h = 0; h < net->nhubs; h++) {
      hub *own = &net->hubs[h];
      for (int32_t l = own->tier == tier && own->node >= 0 ? bny_topo_first_link(work->topo, own->node) : -1; l >= 0;
           l = bny_topo_next_link(work->topo, own->node, l)) {
        int32_t below = net->hub_of[bny_topo_other_end(work->topo, own->node, l)];
        if (below < 0 || net->hubs[below].tier >= tier) continue;
        sums[h] += net->hubs[below].x;
        counts[h]++;
      }
      own->wanted = counts[h] > 0 ? sums[h] / counts[h] : work->right;
    }
    place_tier(work, net, tier);
  }
  for (int32_t tier = 1; tier <= net->tiers; tier++) find_trunks(work, net, tier);
}

static void find_channel(topo_work *work, topo_net *net) {
  topo_extent extents[HUBS_MOST];
  int32_t of[HUBS_MOST], count = 0;
  for (int32_t h = 0; h < net->nhubs; h++) net->hubs[h].extent = (topo_extent){net->hubs[h].x, net->hubs[h].x, -1};
  for (int32_t i = 0; i < net->ntaps; i++) {
    topo_extent *own = &net->hubs[net->taps[i].hub].extent;
    own->left = fmin(own->left, tap_x(work, &net->taps[i]));
    own->right = fmax(own->right, tap_x(work, &net->taps[i]));
    net->hubs[net->taps[i].hub].tapped = true;
  }
  for (int32_t h = 0; h < net->nhubs; h++) {
    hub *own = &net->hubs[h];
    if (!own->tapped) continue;
    if (own->more && work->more_x > 0) own->extent.right = fmax(own->extent.right, work->more_x + MORE_WIDTH / 2);
    extents[count] = own->extent, of[count++] = h;
  }
  int32_t lanes = topo_lanes(extents, count);
  for (int32_t i = 0; i < count; i++) net->hubs[of[i]].extent.lane = extents[i].lane;
  for (int32_t h = 0; h < net->nhubs; h++)
    if (net->hubs[h].more && !net->hubs[h].tapped && work->more_x > 0) net->shared = 12 + LANE_GAP * lanes;
  net->channel = 20 + LANE_GAP * (lanes + (net->shared > 0));
}

topo_net *topo_net_plan(topo_work *work, double *height) {
  topo_net *net = tool_new(1, sizeof *net);
  net->hub_of = tool_new((size_t)work->topo->nnodes, sizeof *net->hub_of);
  net->taps = tool_new(2 * (size_t)work->topo->nlinks + (size_t)work->topo->nnodes, sizeof *net->taps);
  memset(net->hub_of, 0xff, ((size_t)work->topo->nnodes + 1) * sizeof *net->hub_of);
  for (int32_t n = 0; n < work->topo->nnodes; n++)
    net->tiers = is_net_switch(work, n) && tier_of(work, n) > net->tiers ? tier_of(work, n) : net->tiers;
  for (int32_t tier = 1; tier <= net->tiers; tier++) choose_tier(work, net, tier);
  if (work->rails_only) choose_rails(work, net), net->tiers = net->nhubs > 0;
  *height = 0;
  net->hub_height = 34;
  if (net->nhubs == 0) return net;
  find_taps(work, net);
  place_hubs(work, net);
  find_channel(work, net);
  *height = net->channel;
  for (int32_t tier = 1; tier <= net->tiers; tier++)
    *height += net->hub_height + (tier < net->tiers ? net->between[tier] : 0);
  return net;
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

static void draw_hub(topo_work *work, const topo_net *net, const hub *own) {
  bool whole = own->node >= 0;
  topo_look look = {.colour = own->tier > 1 || own->hidden > 0 ? TOPO_COLOUR_NET : own->colour, .dashed = !whole};
  look.tip = whole ? topo_tip_node(work, own->node) : NULL;
  topo_box_kind kind = whole ? TOPO_BOX_SWITCH : own->hidden > 0 ? TOPO_BOX_MORE : TOPO_BOX_RAIL;
  int32_t box = topo_put_box(work, kind, own->node, own->x - own->width / 2, own->y, own->width, net->hub_height, look);
  if (whole) work->spots[own->node].box = box;
  double y = own->y + net->hub_height / 2 + 3.5 - 6 * ((*own->facts[0] != '\0') + (*own->facts[1] != '\0'));
  topo_text(work, own->x, y, 10, true, TOPO_COLOUR_TEXT, TOPO_ANCHOR_MIDDLE, own->name);
  for (int f = 0; f < 2; f++)
    topo_text(work, own->x, y + 12 * (f + 1), TOPO_SMALL, false, TOPO_COLOUR_DIM, TOPO_ANCHOR_MIDDLE, own->facts[f]);
}

/* Draws the horizontal line of each trunk, and the lines from it to the switches above and below. */
static void draw_trunks(topo_work *work, topo_net *net) {
  for (int32_t t = 0; t < net->ntrunks; t++) {
    const trunk *own = &net->trunks[t];
    double left = 1e9, right = -1e9, base = 0;
    topo_look line = {.width = 1.6,
                      .colour = own->slow && own->least <= 0 ? TOPO_COLOUR_SLOW : TOPO_COLOUR_NET,
                      .dashed = own->assumed,
                      .over = true,
                      .junction = true};
    int32_t nth = 0;
    for (int32_t u = t; u > 0 && net->trunks[u - 1].tier == own->tier; u--) nth++;
    for (int32_t h = 0; h < net->nhubs; h++) {
      if (net->trunk_of[h] != t) continue;
      base = net->hubs[h].y - 16 - LANE_GAP * own->extent.lane;
      topo_put_line(work, net->hubs[h].x, net->hubs[h].y, net->hubs[h].x, base, line);
      left = fmin(left, net->hubs[h].x), right = fmax(right, net->hubs[h].x);
    }
    for (int32_t h = 0; h < net->nhubs; h++) {
      double slowest = slowest_link(work, net, &net->hubs[h], t);
      if (slowest <= 0) continue;
      topo_look here = line;
      if (own->slow && slowest < own->least) here.colour = TOPO_COLOUR_SLOW;
      double x = net->hubs[h].x + PORT_GAP * ((nth + 1) / 2) * (nth % 2 ? 1 : -1);
      x = fmax(net->hubs[h].x - net->hubs[h].width / 2 + 4, fmin(x, net->hubs[h].x + net->hubs[h].width / 2 - 4));
      topo_put_line(work, x, net->hubs[h].y + net->hub_height, x, base, here);
      left = fmin(left, x), right = fmax(right, x);
    }
    line.over = line.junction = false;
    if (right - left > 1) topo_put_line(work, left, base, right, base, line);
  }
}

/* Draws the horizontal lines of leaf switches and rails, and the lines from NICs to them. */
static void draw_taps(topo_work *work, topo_net *net, double base) {
  double more_x = work->more_x + MORE_WIDTH / 2, more_top = 1e9, left = more_x, right = more_x;
  topo_look shared = {.width = 1.4, .colour = TOPO_COLOUR_DIM, .dashed = true, .over = true, .junction = true};
  for (int32_t h = 0; h < net->nhubs; h++) {
    const hub *own = &net->hubs[h];
    double y = base + 12 + LANE_GAP * own->extent.lane;
    topo_look line = {.width = 1.8, .colour = own->colour, .dashed = own->node < 0};
    bool more = own->more && work->more_x > 0;
    if (more && !own->tapped) {
      y = base + net->shared;
      left = fmin(left, own->x), right = fmax(right, own->x);
      topo_put_line(work, own->x, own->y + net->hub_height, own->x, y, shared);
    }
    if (more) more_top = fmin(more_top, y);
    if (!own->tapped) continue;
    if (own->extent.right - own->extent.left > 1) topo_put_line(work, own->extent.left, y, own->extent.right, y, line);
    line.over = line.junction = true;
    topo_put_line(work, own->x, own->y + net->hub_height, own->x, y, line);
    line.over = false;
    if (more) topo_put_line(work, more_x - 1, y, more_x, y, line);
  }
  shared.over = shared.junction = false;
  if (right > left) topo_put_line(work, left, base + net->shared, right, base + net->shared, shared);
  shared.over = shared.junction = true;
  if (more_top < 1e8) {
    topo_put_line(work, more_x, work->frame, more_x, more_top, shared);
    if (right > left) topo_put_line(work, more_x, work->frame, more_x, base + net->shared, shared);
    work->crossings[work->ncrossings++] = more_x;
  }
  for (int32_t i = 0; i < net->ntaps; i++) {
    const tap *own = &net->taps[i];
    const topo_spot *nic = &work->spots[own->nic];
    const hub *to = &net->hubs[own->hub];
    double x = tap_x(work, own), y = nic->y + nic->height * (own->nth + 1) / (nic->taps + 1);
    double lane = base + 12 + LANE_GAP * to->extent.lane;
    topo_layout_line(work->layout, (topo_stroke){.npoints = 3,
                                                 .x = {nic->x + nic->width, x, x},
                                                 .y = {y, y, lane},
                                                 .width = 1.8,
                                                 .colour = to->colour,
                                                 .dashed = to->node < 0,
                                                 .over = true,
                                                 .junction = true,
                                                 .tip = own->link >= 0 ? topo_tip_link(work, own->link) : NULL});
    work->crossings[work->ncrossings++] = x;
  }
}

void topo_net_draw(topo_work *work, topo_net *net, double top) {
  double y = top;
  work->crossings = tool_new((size_t)net->ntaps + 1, sizeof *work->crossings);
  for (int32_t tier = net->tiers; tier >= 1; tier--) {
    for (int32_t h = 0; h < net->nhubs; h++) {
      if (net->hubs[h].tier != tier) continue;
      net->hubs[h].y = y;
      draw_hub(work, net, &net->hubs[h]);
    }
    y += net->hub_height + (tier > 1 ? net->between[tier - 1] : 0);
  }
  draw_trunks(work, net);
  draw_taps(work, net, y);
}
