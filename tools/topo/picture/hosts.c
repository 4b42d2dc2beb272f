/* SPDX-License-Identifier: Apache-2.0
 * Chooses the hosts to draw, draws their frames and names, and sets the order of drawing. */
#include <math.h>
#include <string.h>

#include "tools/topo/picture/work.h"

/* ---- facts about the model --------------------------------------------------------------------------------------- */

/* Finds the common facts of the devices of a kind in a host, or in all hosts (-1). */
static topo_alike alike_of(const topo_work *work, int32_t host, bny_topo_kind kind) {
  topo_alike all = {.model = true, .pcie = true, .net = true, .links = true};
  for (int32_t n = 0; n < work->topo->nnodes; n++) {
    if (work->topo->nodes[n].kind != kind || (host >= 0 && work->spots[n].host != host)) continue;
    topo_facts own = topo_fold_facts(&work->fold, n);
    const char *name = topo_model(&work->topo->nodes[n]);
    if (all.count++ == 0) all.facts = own, all.name = name;
    all.model = all.model && strcmp(all.name, name) == 0;
    all.pcie = all.pcie && fabs(all.facts.own - own.own) < 1e-6 && fabs(all.facts.coherent - own.coherent) < 1e-6 &&
               all.facts.c2c == own.c2c;
    all.net = all.net && fabs(all.facts.net - own.net) < 1e-6 && own.ports_down == 0;
    all.links = all.links && all.facts.links == own.links && fabs(all.facts.links_speed - own.links_speed) < 1e-6;
  }
  return all;
}

/* Finds rails, faulty nodes, and the number of lines from each NIC to the network. */
static void find_facts(topo_work *work) {
  const bny_topo *topo = work->topo;
  bool rails = false, switches = false;
  for (int32_t n = 0; n <= topo->nnodes; n++) work->rail[n] = -1;
  for (int32_t r = 0; r < work->levels->nranks; r++) {
    const bny_topo_rank *rank = &work->levels->ranks[r];
    if (rank->nic >= 0 && work->rail[rank->nic] < 0) work->rail[rank->nic] = rank->rail;
    rails = rails || (rank->nic >= 0 && rank->rail >= 0);
  }
  for (int32_t f = 0; f < work->levels->nfindings; f++) {
    const bny_topo_finding *finding = &work->levels->findings[f];
    if (finding->node < 0 || finding->severity < BNY_TOPO_WARNING) continue;
    int32_t nic = bny_topo_nic_of(topo, finding->node);
    work->faulty[finding->node] = work->faulty[nic >= 0 ? nic : finding->node] = true;
  }
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    int32_t nics[2] = {bny_topo_nic_of(topo, link->from), bny_topo_nic_of(topo, link->to)};
    for (int i = 0; i < 2 && link->kind == BNY_TOPO_LINK_NET; i++) {
      if (nics[i] < 0 || work->fold.tier[i == 0 ? link->to : link->from] == 0) continue;
      work->spots[nics[i]].taps += work->spots[nics[i]].taps < 8;
      switches = true;
    }
  }
  work->gpus = alike_of(work, -1, BNY_TOPO_GPU);
  work->nics = alike_of(work, -1, BNY_TOPO_NIC);
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (topo->nodes[n].kind == BNY_TOPO_NIC)
      work->fastest_nic = fmax(work->fastest_nic, topo_fold_facts(&work->fold, n).net);
  work->rails_only = rails && !switches && work->nhosts > 1;
  for (int32_t n = 0; n < topo->nnodes && work->rails_only; n++) work->spots[n].taps = work->rail[n] >= 0;
}

/* ---- hosts ------------------------------------------------------------------------------------------------------- */

static const double width_most = 1500;

static bool is_host(const topo_work *work, int32_t n) {
  return (n == work->topo->nnodes || work->topo->nodes[n].kind == BNY_TOPO_HOST) && work->spots[n].first >= 0;
}

/* Returns whether the host's first NIC is on a switch that no drawn host's first NIC is on. */
static bool is_elsewhere(const topo_work *work, int32_t host, const int32_t *leaf) {
  bool seen = leaf[host] < 0;
  for (int32_t n = 0; n < work->topo->nnodes && !seen; n++) seen = work->spots[n].drawn && leaf[n] == leaf[host];
  return !seen;
}

/* Hosts are chosen in passes: nodes without a host, faulty hosts, hosts with warnings, one host per class, hosts on
 * other switches, and then the rest in order. */
enum { PASS_NO_HOST, PASS_FAULT, PASS_NOTE, PASS_CLASS, PASS_ELSEWHERE, PASS_REST, PASSES };

/* Chooses as many hosts as fit. If not all fit, only a few hosts that look alike are drawn. */
static void choose_hosts(topo_work *work, int32_t *hosts, int32_t *ends) {
  const bny_topo *topo = work->topo;
  int32_t *leaf = tool_new((size_t)topo->nnodes, sizeof *leaf),
          count = 0; /* leaf: by host, switch of its first NIC; -1 */
  int8_t *severity = tool_new((size_t)topo->nnodes, sizeof *severity);
  double all = 0, width = 0;
  memset(leaf, 0xff, ((size_t)topo->nnodes + 1) * sizeof *leaf);
  for (int32_t n = 0; n <= topo->nnodes; n++) {
    int32_t host = n < topo->nnodes && topo->nodes[n].kind == BNY_TOPO_NIC ? work->spots[n].host : topo->nnodes;
    if (host < topo->nnodes && leaf[host] < 0) leaf[host] = topo_fold_facts(&work->fold, n).leaf;
    work->host_set[n] = -1;
    if (!is_host(work, n)) continue;
    all += work->spots[n].width + 2 * HOST_PAD + HOST_GAP;
    if (n < topo->nnodes) hosts[count++] = n;
  }
  for (int32_t i = 0; i < work->levels->nfindings; i++) {
    const bny_topo_finding *finding = &work->levels->findings[i];
    int8_t *worst = &severity[finding->node < 0 ? topo->nnodes : work->spots[finding->node].host];
    *worst = (int8_t)finding->severity > *worst ? (int8_t)finding->severity : *worst;
  }
  int32_t classes = topo_fold_groups(&work->fold, hosts, count, 2, ends);
  for (int32_t k = 0, start = 0; k < classes; start = ends[k++])
    for (int32_t i = start; i < ends[k]; i++) work->host_set[hosts[i]] = hosts[start];
  bool few = work->nhosts <= 4 || all <= width_most;
  /* With several NVLink domains, lines to hosts on different switches would cross. */
  bool spread = !few && bny_topo_level_of(work->levels, BNY_TOPO_LEVEL_DOMAIN) == NULL;
  for (int pass = 0; pass < PASSES; pass++) {
    for (int32_t n = 0; n <= topo->nnodes; n++) {
      double own = work->spots[n].width + 2 * HOST_PAD + HOST_GAP;
      int32_t drawn = work->ndrawn;
      bool last = drawn + 1 == work->nhosts; /* a box that names one host is as wide as the host */
      bool wanted = pass == PASS_NO_HOST     ? n == topo->nnodes
                    : pass <= PASS_NOTE      ? severity[n] == (pass == PASS_FAULT ? BNY_TOPO_FAULT : BNY_TOPO_WARNING)
                    : pass == PASS_CLASS     ? work->host_set[n] == n
                    : pass == PASS_ELSEWHERE ? spread && drawn < 3 && is_elsewhere(work, n, leaf)
                                             : few || last || drawn < 3;
      if (!wanted || !is_host(work, n) || work->spots[n].drawn || drawn == HOSTS_MOST) continue;
      bool fits = pass == PASS_NO_HOST || last || drawn < (pass <= PASS_CLASS ? 1 : 2) || width + own <= width_most;
      work->spots[n].drawn = fits;
      work->ndrawn += fits;
      width += fits ? own : 0;
    }
  }
  work->ndrawn = 0;
  for (int32_t n = 0; n <= topo->nnodes; n++)
    if (is_host(work, n) && work->spots[n].drawn) work->drawn[work->ndrawn++] = n;
  for (int32_t n = 0; n < topo->nnodes; n++) work->spots[n].drawn = work->spots[work->spots[n].host].drawn;
}

/* Returns a line of a host's foot with the count and common model of a kind: "8 GPUs, NVIDIA H100". */
static const char *host_line(const topo_work *work, int32_t host, bny_topo_kind kind) {
  topo_alike all = alike_of(work, host, kind);
  topo_string text = {.text = ""}, each = {.text = ""};
  if (all.count == 0) return "";
  topo_append(&text, "%s", topo_count(all.count, kind));
  if (all.model && *all.name) topo_append(&text, ", %s", all.name);
  if (all.links && all.facts.links > 0)
    topo_append(&each, ", %d %s (%s GB/s)", all.facts.links, all.facts.xgmi ? "xGMI links" : "NVLinks",
                topo_figure_of(all.facts.links_speed).text);
  if (all.net && all.facts.net > 0) topo_append(&each, ", %s GB/s", topo_figure_of(all.facts.net).text);
  if (all.pcie && all.facts.own > 0) topo_append(&each, ", PCIe %s GB/s", topo_figure_of(all.facts.own).text);
  if (all.pcie && all.facts.c2c) topo_append_c2c(&each, &all.facts, ", ");
  if (all.count > 1 && each.text[0]) topo_append(&text, ", each");
  return tool_format("%s%s", text.text, each.text + (all.count > 1 && each.text[0]));
}

/* Draws the links between the CPUs of a host as one line below them, because every CPU reaches every other. */
static void draw_between(topo_work *work, int32_t host) {
  const bny_topo *topo = work->topo;
  double least = 0, most = 0, left = 1e9, right = -1e9,
         y = work->frame + work->sky + HOST_PAD + work->spots[host].height;
  bool assumed = false, row = true;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    if (link->kind != BNY_TOPO_LINK_SYS || work->spots[link->from].host != host || work->spots[link->to].host != host)
      continue;
    for (int32_t n = work->spots[host].first; n >= 0; n = work->spots[n].next) {
      if (!bny_topo_is_below(topo, link->from, n) && !bny_topo_is_below(topo, link->to, n)) continue;
      left = fmin(left, topo_spot_middle(work, n)), right = fmax(right, topo_spot_middle(work, n));
      row = row && work->spots[n].holds && work->spots[n].y + work->spots[n].height > y - 1;
    }
    least = most > 0 ? fmin(least, link->gbytes_per_s) : link->gbytes_per_s;
    most = fmax(most, link->gbytes_per_s);
    assumed = assumed || link->source == BNY_TOPO_ASSUMED;
  }
  if (right < left) return;
  const char *text = tool_format(most > 0 ? "between CPUs: %s%s%s GB/s" : "between CPUs",
                                 least < most ? topo_figure_of(least).text : "", least < most ? " to " : "",
                                 topo_figure_of(most).text);
  topo_look look = {.width = 2.5, .colour = TOPO_COLOUR_SYS, .dashed = assumed};
  bool drawn = row && right > left;
  for (int32_t n = work->spots[host].first; drawn && n >= 0; n = work->spots[n].next) {
    double x = topo_spot_middle(work, n);
    if (work->spots[n].holds && x > left - 1 && x < right + 1 && topo->nodes[n].kind != BNY_TOPO_PCI)
      topo_put_line(work, x, y, x, y + 12, look);
  }
  if (drawn) topo_put_line(work, left, y + 12, right, y + 12, look);
  topo_note(work, work->spots[host].x + work->spots[host].width / 2, y + 26, work->spots[host].width, text);
}

/* Writes the known facts about a host below its name. Returns the number of lines. */
static int32_t draw_foot(topo_work *work, int32_t host, bool draw) {
  const char *lines[] = {host_line(work, host, BNY_TOPO_GPU), host_line(work, host, BNY_TOPO_NIC),
                         host < work->topo->nnodes ? topo_model(&work->topo->nodes[host]) : ""};
  int32_t count = 0;
  for (int32_t i = 0; i < 3; i++) {
    if (!*lines[i]) continue;
    count++;
    if (draw)
      topo_note(work, topo_spot_middle(work, host), work->bottom - work->foot + 18 + 13 * count,
                work->spots[host].width + HOST_PAD, lines[i]);
  }
  return count;
}

static void draw_host(topo_work *work, int32_t host) {
  topo_spot *spot = &work->spots[host];
  bool known = host < work->topo->nnodes;
  spot->box = topo_put_box(work, TOPO_BOX_HOST, known ? host : -1, spot->x - HOST_PAD, work->frame,
                           spot->width + 2 * HOST_PAD, work->bottom - work->frame, (topo_look){.dashed = !known});
  topo_spots_draw(work, host);
  draw_between(work, host);
  draw_foot(work, host, true);
}

/* Names the drawn hosts. All names are shortened together, so that they stay different. */
static void draw_host_names(topo_work *work) {
  const char *names[HOSTS_MOST];
  double room = 1e9;
  for (int32_t i = 0; i < work->ndrawn; i++) {
    names[i] = topo_host_name(work, work->drawn[i]);
    room = fmin(room, work->spots[work->drawn[i]].width + HOST_PAD);
  }
  topo_text_fit_names(names, work->ndrawn, 12, true, room);
  for (int32_t i = 0; i < work->ndrawn; i++)
    topo_text(work, topo_spot_middle(work, work->drawn[i]), work->bottom - work->foot + 18, 12, true, TOPO_COLOUR_TEXT,
              TOPO_ANCHOR_MIDDLE, names[i]);
}

/* Lists the other hosts by class: their number, a drawn host that looks the same, and as many names as fit. */
static void draw_more(topo_work *work) {
  double y = work->frame + 22, x = work->more_x + 10, room = MORE_WIDTH - 20, end = work->bottom - 8;
  int32_t *hosts = work->scratch, left = 0;
  work->more_box = topo_put_box(work, TOPO_BOX_MORE, -1, work->more_x, work->frame, MORE_WIDTH,
                                work->bottom - work->frame, (topo_look){.dashed = true});
  for (int32_t first = 0; first < work->topo->nnodes; first++) {
    int32_t count = 0, like = -1;
    for (int32_t n = first; work->host_set[first] == first && n < work->topo->nnodes; n++) {
      if (work->host_set[n] != first) continue;
      if (!work->spots[n].drawn)
        hosts[count++] = n;
      else if (like < 0)
        like = n;
    }
    if (count == 0) continue;
    if (y + 28 > end - 14) {
      left += count;
      continue;
    }
    topo_text(work, x, y, 11, true, TOPO_COLOUR_TEXT, TOPO_ANCHOR_START,
              tool_format("\xc3\x97 %s more", topo_count_of(count).text));
    topo_string names = {.text = ""};
    if (like >= 0) topo_append(&names, "like %.60s: ", topo_host_name(work, like));
    /* About 22 characters fit in a line. */
    topo_append_names(&names, work->topo, hosts, count, (int32_t)fmin(22 * floor((end - 28 - y) / 11.5), 240), false);
    const char *rest = tool_format("%s", names.text), *line;
    for (y += 13; y < end - 14 && (line = topo_text_wrap(&rest, TOPO_SMALL, room)); y += 11.5)
      topo_text(work, x, y, TOPO_SMALL, false, TOPO_COLOUR_DIM, TOPO_ANCHOR_START, line);
    y += 14;
  }
  if (left > 0)
    topo_text(work, x, end - 4, TOPO_SMALL, true, TOPO_COLOUR_TEXT, TOPO_ANCHOR_START,
              tool_format("and %s others", topo_count_of(left).text));
}

/* ---- the whole picture ------------------------------------------------------------------------------------------- */

static void place_hosts(topo_work *work) {
  double x = PAGE_MARGIN + HOST_PAD;
  for (int32_t i = 0; i < work->ndrawn; i++) {
    topo_spot *spot = &work->spots[work->drawn[i]];
    spot->x = x;
    x += spot->width + 2 * HOST_PAD + HOST_GAP;
    work->content = fmax(work->content, spot->height);
    work->foot = fmax(work->foot, 28 + 13 * draw_foot(work, work->drawn[i], false));
  }
  work->right = fmax(x - HOST_PAD - HOST_GAP, PAGE_MARGIN);
  if (work->ndrawn < work->nhosts) work->more_x = work->right + HOST_GAP;
  bool between = false;
  for (int32_t l = 0; l < work->topo->nlinks; l++) between = between || work->topo->links[l].kind == BNY_TOPO_LINK_SYS;
  work->content += between ? 28 : 0;
  topo_spots_place(work);
}

/* Moves the hosts down to their final position, once the heights of all parts above them are known. */
static void move_down(topo_work *work) {
  double y = work->frame + work->sky + HOST_PAD;
  for (int32_t n = 0; n <= work->topo->nnodes; n++) work->spots[n].y += y;
  work->bottom = y + work->content + work->foot;
}

static void lay_out(topo_work *work) {
  topo_layout *layout = work->layout;
  place_hosts(work);
  double height = 0, top = topo_draw_title(work);
  topo_nvlinks *nvlinks = topo_nvlinks_plan(work);
  topo_net *net = topo_net_plan(work, &height);
  work->frame = top + height + work->domain;
  work->bottom = top + height;
  if (work->ndrawn > 0) move_down(work);
  for (int32_t i = 0; i < work->ndrawn; i++) draw_host(work, work->drawn[i]);
  draw_host_names(work);
  if (work->more_x > 0) draw_more(work);
  topo_net_draw(work, net, top); /* before NVLinks, because their texts avoid these lines */
  topo_nvlinks_draw(work, nvlinks);
  topo_draw_notes(work, work->bottom + 16);
  for (int32_t i = 0; i < layout->nboxes; i++)
    layout->width = fmax(layout->width, layout->boxes[i].x + layout->boxes[i].width + PAGE_MARGIN);
}

topo_layout *topo_layout_new(const topo_view *view) {
  size_t nodes = (size_t)view->topo->nnodes;
  topo_layout *layout = tool_new(1, sizeof *layout);
  topo_work work = {.view = view, .topo = view->topo, .levels = view->levels, .layout = layout, .more_box = -1};
  work.spots = tool_new(nodes, sizeof *work.spots);
  work.host_set = tool_new(nodes, sizeof *work.host_set);
  work.rail = tool_new(nodes, sizeof *work.rail);
  work.faulty = tool_new(nodes, sizeof *work.faulty);
  work.scratch = tool_new(nodes, sizeof *work.scratch);
  work.fold = topo_fold_make(view->topo, view->levels);
  topo_spots_make(&work);
  find_facts(&work);
  topo_spots_measure(&work);
  choose_hosts(&work, tool_new(nodes, sizeof(int32_t)), work.scratch);
  lay_out(&work);
  return layout;
}
