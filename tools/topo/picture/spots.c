/* SPDX-License-Identifier: Apache-2.0
 * The inside of hosts, as nested boxes. Devices stand in columns, a GPU above its NICs. The lines of the NICs rise at
 * the right of their column. */
#include <math.h>
#include <string.h>

#include "tools/topo/picture/work.h"

static bool is_area(bny_topo_kind kind) { return kind == BNY_TOPO_PACKAGE || kind == BNY_TOPO_NUMA; }
static bool is_device(bny_topo_kind kind) { return kind == BNY_TOPO_GPU || kind == BNY_TOPO_NIC; }

double topo_spot_middle(const topo_work *work, int32_t node) {
  return work->spots[node].x + work->spots[node].width / 2;
}

/* ---- the tree ---------------------------------------------------------------------------------------------------- */

/* Finds the boxes: hosts, packages, NUMA nodes, and PCI switches and host bridges that hold several parts. The only
 * NUMA node of a package has no box. Children come after parents. */
static void find_boxes(topo_work *work) {
  const bny_topo *topo = work->topo;
  int32_t *parts = work->scratch;
  memset(parts, 0, ((size_t)topo->nnodes + 1) * sizeof *parts);
  for (int32_t n = topo->nnodes; n >= 0; n--) {
    topo_spot *spot = &work->spots[n];
    *spot = (topo_spot){.parent = -1, .first = -1, .next = -1, .box = -1, .host = topo->nnodes};
    bny_topo_kind kind = n < topo->nnodes ? topo->nodes[n].kind : BNY_TOPO_HOST;
    spot->holds =
        kind == BNY_TOPO_HOST || (is_area(kind) && work->fold.shown[n]) || (kind == BNY_TOPO_PCI && parts[n] > 1);
    if (n == topo->nnodes) continue;
    int32_t parent = topo->nodes[n].parent;
    bool part = is_device(kind) || spot->holds;
    if (parent >= 0) parts[parent] += (part ? 1 : 0) + (spot->holds || kind == BNY_TOPO_SWITCH ? 0 : parts[n]);
  }
}

void topo_spots_make(topo_work *work) {
  const bny_topo *topo = work->topo;
  topo_spot *spots = work->spots;
  find_boxes(work);
  for (int32_t n = 0; n < topo->nnodes; n++) {
    int32_t parent = topo->nodes[n].parent;
    spots[n].host = topo->nodes[n].kind == BNY_TOPO_HOST ? n : parent >= 0 ? spots[parent].host : topo->nnodes;
  }
  for (int32_t n = topo->nnodes - 1; n >= 0; n--) {
    int32_t up = topo->nodes[n].parent;
    bool device = is_device(topo->nodes[n].kind);
    if (topo->nodes[n].kind == BNY_TOPO_HOST || (!device && !spots[n].holds)) continue;
    while (up >= 0 && !spots[up].holds) up = topo->nodes[up].parent;
    up = up < 0 ? topo->nnodes : up;
    spots[n].parent = up;
    spots[n].next = spots[up].first;
    spots[up].first = n;
    spots[up].devices = spots[up].devices || spots[n].devices || device;
  }
  for (int32_t n = 0; n <= topo->nnodes; n++)
    work->nhosts +=
        spots[n].holds && (n == topo->nnodes || topo->nodes[n].kind == BNY_TOPO_HOST) && spots[n].first >= 0;
  work->detailed = work->nhosts <= 1;
}

/* ---- texts of devices -------------------------------------------------------------------------------------------- */

/* The lines of text of a device. The first line is its name. */
typedef struct unit_text {
  topo_string lines[UNIT_LINES];
  bool wrong[UNIT_LINES];
  int32_t count;
} unit_text;

static topo_string *unit_line(unit_text *text) {
  return &text->lines[text->count < UNIT_LINES ? text->count++ : UNIT_LINES - 1];
}

void topo_append_c2c(topo_string *text, const topo_facts *facts, const char *before) {
  topo_append(text, "%sC2C", before);
  if (facts->coherent > 0) topo_append(text, " %s GB/s", topo_figure_of(facts->coherent).text);
}

static void say_gpu(const topo_work *work, int32_t node, const topo_facts *facts, unit_text *text) {
  const bny_topo_node *gpu = &work->topo->nodes[node];
  const char *model = work->detailed && !work->gpus.model ? topo_model(gpu) : "";
  if (*model) topo_append(unit_line(text), "%s", model);
  if (work->detailed && gpu->bus_id) topo_append(unit_line(text), "%s", gpu->bus_id);
  if (facts->own > 0 && (work->detailed || !work->gpus.pcie))
    topo_append(unit_line(text), "PCIe %s GB/s", topo_figure_of(facts->own).text);
  if (facts->c2c && (work->detailed || !work->gpus.pcie)) topo_append_c2c(unit_line(text), facts, "");
  int32_t r = work->fold.rank[node], nic = r >= 0 ? work->levels->ranks[r].nic : -1;
  if (!work->detailed || nic < 0) return;
  topo_append(unit_line(text), "\xe2\x86\x92 %.60s %s", work->topo->nodes[nic].name,
              bny_topo_path_name(work->levels->ranks[r].nic_path));
}

static void say_nic(const topo_work *work, int32_t node, const topo_facts *facts, unit_text *text) {
  const bny_topo_node *nic = &work->topo->nodes[node];
  if ((facts->net > 0 || facts->ports_down > 0) && (work->detailed || !work->nics.net)) {
    text->wrong[text->count] = facts->ports_down > 0 || (work->faulty[node] && facts->net < 0.95 * work->fastest_nic);
    if (facts->net > 0)
      topo_append(unit_line(text), "%s GB/s%s", topo_figure_of(facts->net).text,
                  facts->ports_down > 0 ? ", a port down" : "");
    else
      topo_append(unit_line(text), "down");
  }
  if (!work->detailed) return;
  const char *model = work->nics.model ? "" : topo_model(nic);
  if (*model) topo_append(unit_line(text), "%s", model);
  if (nic->bus_id) topo_append(unit_line(text), "%s", nic->bus_id);
  if (facts->own > 0) topo_append(unit_line(text), "PCIe %s GB/s", topo_figure_of(facts->own).text);
  if (work->rail[node] >= 0) topo_append(unit_line(text), "rail %d", work->rail[node]);
}

static void unit_say(const topo_work *work, int32_t node, unit_text *text) {
  topo_facts facts = topo_fold_facts(&work->fold, node);
  *text = (unit_text){.count = 0};
  topo_append(unit_line(text), "%s", work->topo->nodes[node].name);
  if (work->topo->nodes[node].kind == BNY_TOPO_GPU)
    say_gpu(work, node, &facts, text);
  else
    say_nic(work, node, &facts, text);
}

static double line_size(int32_t line) { return line == 0 ? 10.5 : TOPO_SMALL; }
static double unit_height(int32_t lines) { return 12 + 13 + 11.5 * (lines - 1); }

/* Devices all have the width that the widest needs, within limits. Devices of one kind have the same height. */
static void measure_units(topo_work *work) {
  unit_text text;
  work->unit_width = 56;
  int32_t most[2] = {1, 1};
  for (int32_t n = 0; n < work->topo->nnodes; n++) {
    if (!is_device(work->topo->nodes[n].kind)) continue;
    unit_say(work, n, &text);
    int32_t *lines = &most[work->topo->nodes[n].kind == BNY_TOPO_NIC];
    *lines = text.count > *lines ? text.count : *lines;
    for (int32_t i = 0; i < text.count; i++)
      work->unit_width = fmax(work->unit_width, 12 + topo_text_width(text.lines[i].text, line_size(i), i == 0));
  }
  work->unit_width = fmin(work->unit_width, work->detailed ? 132 : 110);
  work->gpu_height = unit_height(most[0]);
  work->nic_height = unit_height(most[1]);
}

/* ---- names of boxes ---------------------------------------------------------------------------------------------- */

/* Writes the name of an area or PCI switch to `name`, and other facts about it to `more`. */
static void name_box(const topo_work *work, int32_t node, topo_string *name, topo_string *more) {
  const bny_topo *topo = work->topo;
  const bny_topo_node *own = &topo->nodes[node];
  topo_facts facts = topo_fold_facts(&work->fold, node);
  if (own->kind == BNY_TOPO_PCI) {
    topo_append(name, own->host_bridge ? "host bridge" : "PCIe switch");
    if (work->detailed && own->bus_id) topo_append(more, "%s", own->bus_id);
    if (facts.up > 0) topo_append(more, "%s%s GB/s", more->text[0] ? ", " : "", topo_figure_of(facts.up).text);
    return;
  }
  int32_t numa = node;
  if (own->kind == BNY_TOPO_PACKAGE) {
    if (own->index >= 0)
      topo_append(name, "Package %d", own->index);
    else
      topo_append(name, "%.60s", own->name);
    for (numa = node + 1; numa < topo->nnodes && topo->nodes[numa].parent != node; numa++) {
    }
    /* The only NUMA node of a package has no box. The box of its package names it. */
    if (numa == topo->nnodes || topo->nodes[numa].kind != BNY_TOPO_NUMA || work->fold.shown[numa]) numa = -1;
  }
  if (numa >= 0)
    topo_append(name, topo->nodes[numa].index >= 0 ? "%sNUMA node %d" : "%sNUMA node", name->text[0] ? ", " : "",
                topo->nodes[numa].index);
  if (numa == node && own->index < 0) topo_append(name, " %.60s", own->name);
  if (work->detailed && own->model) topo_append(more, "%.120s", own->model);
}

static double foot_height(const topo_work *work, int32_t node) {
  if (node == work->topo->nnodes || work->topo->nodes[node].kind == BNY_TOPO_HOST) return 0;
  return work->topo->nodes[node].kind == BNY_TOPO_PCI ? 27 : work->detailed && work->topo->nodes[node].model ? 32 : 20;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* A column of the current box. */
typedef struct column {
  int32_t nics, taps; /* taps: lines to the network */
  double x;
} column;

static void stack(topo_spot *nic, column *columns, int32_t at) {
  nic->column = at;
  nic->order = columns[at].nics++;
  nic->tap_x = columns[at].taps;
  columns[at].taps += nic->taps;
}

/* Places the devices of a box in columns. A NIC stands below the GPU that it serves; other NICs go to the shortest
 * column. Returns the x at which the next part begins. */
static double place_columns(topo_work *work, int32_t box, double pad, double *height) {
  topo_spot *spots = work->spots;
  const bny_topo_node *nodes = work->topo->nodes;
  int32_t ngpus = 0, nnics = 0;
  for (int32_t n = spots[box].first; n >= 0; n = spots[n].next) {
    spots[n].column = nodes[n].kind == BNY_TOPO_GPU ? ngpus++ : -1;
    nnics += nodes[n].kind == BNY_TOPO_NIC;
  }
  int32_t least = ngpus > 0 ? (nnics + STACK_MOST - 1) / STACK_MOST : (int32_t)ceil(sqrt(nnics));
  int32_t count = ngpus > least ? ngpus : least;
  column *columns = tool_new((size_t)count, sizeof *columns);
  for (int32_t n = spots[box].first; n >= 0; n = spots[n].next) {
    int32_t r = nodes[n].kind == BNY_TOPO_GPU ? work->fold.rank[n] : -1, nic = r >= 0 ? work->levels->ranks[r].nic : -1;
    if (nic >= 0 && spots[nic].parent == box && spots[nic].column < 0 && columns[spots[n].column].nics < STACK_MOST)
      stack(&spots[nic], columns, spots[n].column);
  }
  for (int32_t n = spots[box].first; n >= 0; n = spots[n].next) {
    int32_t at = 0;
    if (nodes[n].kind != BNY_TOPO_NIC || spots[n].column >= 0) continue;
    for (int32_t c = 1; c < count; c++) at = columns[c].nics < columns[at].nics ? c : at;
    stack(&spots[n], columns, at);
  }
  double x = pad, below = ngpus > 0 ? work->gpu_height + 6 : 0;
  for (int32_t c = 0; c < count; c++) {
    columns[c].x = x;
    x += work->unit_width + TAP_GAP * columns[c].taps + GAP;
  }
  for (int32_t n = spots[box].first; n >= 0; n = spots[n].next) {
    bool nic = nodes[n].kind == BNY_TOPO_NIC;
    if (spots[n].column < 0) continue;
    spots[n].x = columns[spots[n].column].x;
    spots[n].y = pad + (nic ? below + spots[n].order * (work->nic_height + 6) : 0);
    spots[n].width = work->unit_width;
    spots[n].height = nic ? work->nic_height : work->gpu_height;
    spots[n].tap_x = work->unit_width + TAP_GAP * (spots[n].tap_x + 1);
    *height = fmax(*height, spots[n].y + spots[n].height - pad);
  }
  return x;
}

/* Makes a box higher. Its contents are stretched when they are placed. */
static void stretch(topo_spot *spot, double more) {
  spot->height += more;
  spot->stretched += more;
}

/* Places the inner boxes of a box to the right of its columns. They wrap if the box has no devices, because then no
 * line leads to them. */
static double place_boxes(topo_work *work, int32_t box, double x, double pad, double *height) {
  topo_spot *spots = work->spots;
  double y = pad, row = *height, right = x;
  bool wraps = !spots[box].devices;
  int32_t row_first = spots[box].first;
  for (int32_t n = spots[box].first; n >= 0; n = spots[n].next) {
    if (!spots[n].holds) continue;
    if (wraps && x > pad && x + spots[n].width > (pad > 0 ? 640 : 1240)) {
      for (int32_t m = row_first; m != n; m = spots[m].next) stretch(&spots[m], row - spots[m].height);
      row_first = n;
      y += row + GAP;
      x = pad;
      row = 0;
    }
    spots[n].x = x;
    spots[n].y = y;
    x += spots[n].width + GAP;
    right = fmax(right, x);
    row = fmax(row, spots[n].height);
  }
  for (int32_t m = row_first; m >= 0; m = spots[m].next)
    if (spots[m].holds) stretch(&spots[m], row - spots[m].height);
  *height = y - pad + row;
  return right;
}

static void measure_box(topo_work *work, int32_t box) {
  topo_spot *own = &work->spots[box];
  bool host = foot_height(work, box) <= 0;
  double pad = host ? 0 : PAD, height = 0;
  double right = place_boxes(work, box, place_columns(work, box, pad, &height), pad, &height);
  double least = host ? 120 : 0, wanted = fmax(right - GAP + pad, 2 * pad);
  if (!host) {
    topo_string name = {.text = ""}, more = {.text = ""};
    name_box(work, box, &name, &more);
    least = 10 + fmax(topo_text_width(name.text, TOPO_SMALL, true), topo_text_width(more.text, TOPO_SMALL, false));
    least = fmin(least, 200);
  }
  own->width = fmax(wanted, least);
  own->height = height > 0 ? pad + height + (host ? 0 : 6 + foot_height(work, box)) : foot_height(work, box);
  for (int32_t n = own->first; n >= 0; n = work->spots[n].next) work->spots[n].x += (own->width - wanted) / 2;
}

void topo_spots_measure(topo_work *work) {
  measure_units(work);
  /* Boxes come after their parents. The last spot is the box of nodes without a host, so it comes last. */
  for (int32_t n = work->topo->nnodes - 1; n >= 0; n--)
    if (work->spots[n].holds) measure_box(work, n);
  measure_box(work, work->topo->nnodes);
}

void topo_spots_place(topo_work *work) {
  for (int32_t n = 0; n < work->topo->nnodes; n++) {
    topo_spot *spot = &work->spots[n];
    if (spot->parent < 0) continue;
    spot->x += work->spots[spot->parent].x;
    spot->y += work->spots[spot->parent].y;
    spot->tap_x += spot->x;
    const topo_spot *around = &work->spots[spot->parent];
    if (around->devices && is_area(work->topo->nodes[n].kind)) stretch(spot, around->stretched);
  }
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

static void draw_unit(topo_work *work, int32_t node) {
  topo_spot *spot = &work->spots[node];
  const bny_topo_node *own = &work->topo->nodes[node];
  bool gpu = own->kind == BNY_TOPO_GPU;
  unit_text text;
  unit_say(work, node, &text);
  spot->box = topo_put_box(work, gpu ? TOPO_BOX_GPU : TOPO_BOX_NIC, node, spot->x, spot->y, spot->width, spot->height,
                           (topo_look){.width = 0});
  double y = spot->y + (spot->height - unit_height(text.count)) / 2 + 15;
  for (int32_t i = 0; i < text.count; i++) {
    const char *line = tool_format("%s", text.lines[i].text);
    if (i == 0) topo_text_fit_names(&line, 1, line_size(i), true, spot->width - 6);
    topo_text(work, topo_spot_middle(work, node), y, line_size(i), i == 0 || text.wrong[i],
              text.wrong[i] ? TOPO_COLOUR_SLOW
              : i == 0      ? TOPO_COLOUR_TEXT
                            : TOPO_COLOUR_DIM,
              TOPO_ANCHOR_MIDDLE, topo_text_fit(line, line_size(i), text.wrong[i], spot->width - 6));
    y += i == 0 ? 12.5 : 11.5;
  }
}

static void draw_box(topo_work *work, int32_t node) {
  topo_spot *spot = &work->spots[node];
  bool area = is_area(work->topo->nodes[node].kind);
  double foot = foot_height(work, node), top = spot->y + spot->height - foot, x = topo_spot_middle(work, node);
  topo_look look = {.dashed = work->topo->nodes[node].source == BNY_TOPO_ASSUMED};
  spot->box =
      topo_put_box(work, area ? TOPO_BOX_AREA : TOPO_BOX_PCI, node, spot->x, spot->y, spot->width, spot->height, look);
  if (area) spot->box = topo_put_box(work, TOPO_BOX_STRIP, node, spot->x, top, spot->width, foot, look);
  topo_string texts[2] = {{.text = ""}, {.text = ""}};
  name_box(work, node, &texts[0], &texts[1]);
  int32_t lines = texts[1].text[0] ? 2 : 1;
  for (int32_t i = 0; i < lines; i++) {
    const char *line = tool_format("%s", texts[i].text);
    bool bold = i == 0 && area;
    topo_text(work, x, top + foot / 2 + 3.2 + 11.5 * (i - (lines - 1) / 2.0), TOPO_SMALL, bold,
              i == 0 ? TOPO_COLOUR_TEXT : TOPO_COLOUR_DIM, TOPO_ANCHOR_MIDDLE,
              topo_text_fit(line, TOPO_SMALL, bold, spot->width - 6));
  }
}

/* Boxes come before their contents. */
void topo_spots_draw(topo_work *work, int32_t host) {
  int32_t n = work->spots[host].first;
  while (n >= 0) {
    if (work->spots[n].holds)
      draw_box(work, n);
    else
      draw_unit(work, n);
    if (work->spots[n].holds && work->spots[n].first >= 0) {
      n = work->spots[n].first;
      continue;
    }
    while (n != host && n >= 0 && work->spots[n].next < 0) n = work->spots[n].parent;
    n = n == host || n < 0 ? -1 : work->spots[n].next;
  }
}
