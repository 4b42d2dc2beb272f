/* SPDX-License-Identifier: Apache-2.0
 * Boxes and texts of devices, their parents, and hosts. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/layout_work.h"

/* ---- texts ------------------------------------------------------------------------------------------------------- */

const char *topo_host_name(const topo_work *work, int32_t host) {
  return host < work->topo->nnodes ? work->topo->nodes[host].name : "no host is known";
}

/* Returns the model without the vendor. It is the part in brackets of "MT28908 Family [ConnectX-6]", and "" for a
 * number. */
static const char *short_model(topo_layout *layout, const bny_topo_node *node) {
  static const char *const makers[] = {"NVIDIA ", "Tesla ", "AMD ", "Instinct ", "Intel(R) ", "Mellanox ", "Intel "};
  const char *model = node->model ? node->model : "";
  if (strncmp(model, "0x", 2) == 0) return "";
  for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
    if (strncmp(model, makers[i], strlen(makers[i])) == 0) model += strlen(makers[i]);
  }
  const char *open = strchr(model, '['), *close = open ? strchr(open, ']') : NULL;
  if (close && close > open + 1) return topo_layout_string(layout, "%.*s", (int)(close - open - 1), open + 1);
  return model;
}

/* Returns "H100 80GB HBM3", or else "sm_90", or else "". */
static const char *gpu_text(topo_layout *layout, const bny_topo_node *node) {
  const char *model = short_model(layout, node);
  if (*model || node->compute < 0) return model;
  if (node->compute == 910) return "gfx90a";
  return topo_layout_string(layout, node->compute >= 200 ? "gfx%d" : "sm_%d", node->compute);
}

static const char *nic_speed_text(const topo_work *work, int32_t nic) {
  const topo_place *own = &work->places[nic];
  if (own->speed <= 0) return own->down ? "down" : "";
  return topo_layout_string(work->layout, "%s%s GB/s", own->speed_assumed ? "~" : "", topo_figure_of(own->speed).text);
}

/* Wraps into at most two lines; returns their number. */
static int32_t two_lines(topo_layout *layout, const char *text, double width, const char *lines[2]) {
  int32_t count = 0;
  const char *rest = text;
  while (count < 2) {
    const char *before = rest, *line = topo_text_wrap(layout, &rest, 8.5, width);
    if (!line) break;
    while (*before == ' ') before++;
    lines[count] = count == 1 ? topo_text_fit(layout, before, 8.5, false, width) : line;
    count++;
  }
  return count;
}

void topo_measure_devices(topo_work *work) {
  const bny_topo *topo = work->topo;
  double gpu = 0, nic = 0, gpu_lines = 0, nic_lines = 0;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    const bny_topo_node *node = &topo->nodes[n];
    if (work->places[n].role == TOPO_ROLE_GPU) {
      const char *model = work->detailed ? gpu_text(work->layout, node) : "";
      gpu = fmax(gpu, topo_text_width(node->name, 10.5, true) + 12);
      gpu = fmax(gpu, topo_text_width(model, 8.5, false) * 0.62 + 12);
    } else if (work->places[n].role == TOPO_ROLE_NIC) {
      const char *model = work->detailed ? short_model(work->layout, node) : "";
      nic = fmax(nic, topo_text_width(node->name, 9.5, true) + 10);
      nic = fmax(nic, fmin(topo_text_width(model, 8, false), 76) + 10);
      const char *speed = work->detailed ? nic_speed_text(work, n) : "";
      nic = fmax(nic, topo_text_width(speed, 8, false) + 10);
      nic_lines = fmax(nic_lines, (*model != '\0') + (*speed != '\0'));
    }
  }
  work->gpu_width = fmin(fmax(gpu, work->detailed ? 64 : 46), 116);
  work->nic_width = fmin(fmax(nic, 44), 92);
  for (int32_t n = 0; work->detailed && n < topo->nnodes; n++) {
    const char *lines[2];
    if (work->places[n].role == TOPO_ROLE_GPU)
      gpu_lines =
          fmax(gpu_lines, two_lines(work->layout, gpu_text(work->layout, &topo->nodes[n]), work->gpu_width - 8, lines));
  }
  work->gpu_height = gpu > 0 ? 24 + 11 * gpu_lines : 0;
  work->nic_height = work->detailed ? 20 + 10 * nic_lines : 20;
  work->rows.strip_height = 20;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    if (work->places[n].role == TOPO_ROLE_AREA && work->detailed) work->rows.strip_height = 32;
  }
}

static void text_line(topo_work *work, double x, double y, double size, bool bold, topo_colour colour,
                      const char *text) {
  topo_layout_label(
      work->layout,
      (topo_label){
          .x = x, .y = y, .size = size, .bold = bold, .colour = colour, .anchor = TOPO_ANCHOR_MIDDLE, .text = text});
}

static void draw_gpu(topo_work *work, int32_t node) {
  topo_place *own = &work->places[node];
  const bny_topo_node *gpu = &work->topo->nodes[node];
  const char *lines[2];
  double middle = own->x + own->width / 2, room = own->width - 8;
  int32_t count = work->detailed ? two_lines(work->layout, gpu_text(work->layout, gpu), room, lines) : 0;
  double y = work->rows.gpu + (work->gpu_height - 11 * count) / 2 + 3.5;
  own->box = topo_layout_box(work->layout, (topo_box){.kind = TOPO_BOX_GPU,
                                                      .node = node,
                                                      .x = own->x,
                                                      .y = work->rows.gpu,
                                                      .width = own->width,
                                                      .height = work->gpu_height,
                                                      .tip = topo_tip_node(work, node)});
  text_line(work, middle, y, 10.5, true, TOPO_COLOUR_TEXT,
            topo_text_fit_name(work->layout, gpu->name, 10.5, true, room));
  for (int32_t i = 0; i < count; i++)
    text_line(work, middle, y + 11.5 * (i + 1), 8.5, false, TOPO_COLOUR_TEXT, lines[i]);
}

static double nic_y(const topo_work *work, int32_t nic) {
  return work->rows.nic + work->places[nic].row * (work->nic_height + 6);
}

static void draw_nic(topo_work *work, int32_t node) {
  topo_place *own = &work->places[node];
  const bny_topo_node *nic = &work->topo->nodes[node];
  topo_layout *layout = work->layout;
  double middle = own->x + work->nic_width / 2, room = work->nic_width - 6, top = nic_y(work, node);
  const char *lines[2] = {"", ""};
  int32_t count = 0;
  if (work->detailed) {
    lines[0] = topo_text_fit(layout, short_model(layout, nic), 8, false, room);
    count += *lines[0] != '\0';
    lines[count] = topo_text_fit(layout, nic_speed_text(work, node), 8, false, room);
    count += *lines[count] != '\0';
  }
  double y = top + (work->nic_height - 10 * count) / 2 + 3.5;
  own->box = topo_layout_box(layout, (topo_box){.kind = TOPO_BOX_NIC,
                                                .node = node,
                                                .x = own->x,
                                                .y = top,
                                                .width = work->nic_width,
                                                .height = work->nic_height,
                                                .tip = topo_tip_node(work, node)});
  text_line(work, middle, y, 9.5, true, TOPO_COLOUR_TEXT, topo_text_fit_name(layout, nic->name, 9.5, true, room));
  for (int32_t i = 0; i < count; i++) { /* the speed is last */
    bool wrong = own->wrong && i == count - 1;
    text_line(work, middle, y + 10.5 * (i + 1), 8, wrong, wrong ? TOPO_COLOUR_SLOW : TOPO_COLOUR_TEXT, lines[i]);
  }
  if (own->comb > 0) {
    double across = top + work->nic_height / 2;
    topo_layout_line(
        layout,
        (topo_line){
            .npoints = 2, .x = {own->x, own->comb}, .y = {across, across}, .width = 1, .colour = TOPO_COLOUR_PCI});
  }
}

/* ---- parents of devices ------------------------------------------------------------------------------------------ */

static double strip_top(const topo_work *work, int32_t parent) {
  bool area = work->places[parent].role == TOPO_ROLE_AREA;
  return work->rows.strip + (area ? topo_area_height(work, parent) * (work->rows.strip_height + 8) : 0);
}

/* Returns the y where lines of the children of `parent` end. */
static double landing(const topo_work *work, int32_t parent) {
  if (work->places[parent].role != TOPO_ROLE_PCI) return strip_top(work, parent);
  if (topo_is_root(work, parent)) return strip_top(work, work->places[parent].parent) - 7;
  return work->rows.pci + work->places[parent].row * 36;
}

static int32_t link_up(const bny_topo *topo, int32_t node) {
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    if (topo->links[l].kind == BNY_TOPO_LINK_PCI && bny_topo_other_end(topo, node, l) == topo->nodes[node].parent)
      return l;
  }
  return -1;
}

static bool slow(const bny_topo_link *link) {
  return link->rated_gbytes_per_s > 0 && link->gbytes_per_s < 0.9 * link->rated_gbytes_per_s;
}

/* Draws the line of containment from (x, top) down, with the speed of the PCI link if `figure` is set; a stack shows it
 * once. */
static void draw_up(topo_work *work, int32_t node, double x, double top, double bottom, bool figure, bool left) {
  int32_t l = link_up(work->topo, node);
  const bny_topo_link *link = l >= 0 ? &work->topo->links[l] : NULL;
  bool late = link && slow(link);
  topo_layout_line(work->layout, (topo_line){.npoints = 2,
                                             .x = {x, x},
                                             .y = {top, bottom},
                                             .width = 1,
                                             .dashed = link && link->source == BNY_TOPO_ASSUMED,
                                             .colour = late ? TOPO_COLOUR_SLOW : TOPO_COLOUR_PCI,
                                             .tip = link ? topo_tip_link(work, l) : NULL});
  if (!figure || !link || link->gbytes_per_s <= 0) return;
  const char *text = late ? topo_layout_string(work->layout, "%s of %s", topo_figure_of(link->gbytes_per_s).text,
                                               topo_figure_of(link->rated_gbytes_per_s).text)
                          : topo_layout_string(work->layout, "%s", topo_figure_of(link->gbytes_per_s).text);
  topo_layout_label(work->layout, (topo_label){.x = x + (left ? -3 : 3),
                                               .y = top + 10,
                                               .size = 7.5,
                                               .bold = late,
                                               .anchor = left ? TOPO_ANCHOR_END : TOPO_ANCHOR_START,
                                               .colour = late ? TOPO_COLOUR_SLOW : TOPO_COLOUR_DIM,
                                               .text = text});
}

static void draw_unit(topo_work *work, int32_t device, int32_t parent) {
  topo_place *own = &work->places[device];
  bool gpu = own->role == TOPO_ROLE_GPU;
  double bottom = gpu ? work->rows.gpu + work->gpu_height : nic_y(work, device) + work->nic_height;
  double line = own->comb > 0 ? nic_y(work, device) + work->nic_height / 2 : bottom, end = landing(work, parent);
  if (gpu)
    draw_gpu(work, device);
  else
    draw_nic(work, device);
  if (work->places[parent].role == TOPO_ROLE_HOST && work->places[parent].bare) return;
  if (gpu && topo_is_coherent(work->topo, device) && link_up(work->topo, device) < 0) return; /* drawn elsewhere */
  /* Bridges are beads on the line, the outermost nearest to the parent. */
  int32_t beads = 0;
  for (int32_t n = own->parent; n != parent; n = work->places[n].parent) beads++;
  double first = end - 5 - 9 * beads;
  /* The speed is placed away from a GPU's other line. */
  bool two_ways = gpu && topo_is_coherent(work->topo, device);
  draw_up(work, device, own->attach, line, beads > 0 ? first + 2 : end, own->comb <= 0, own->label_left != two_ways);
  int32_t i = 0;
  for (int32_t n = own->parent; n != parent; n = work->places[n].parent, i++) {
    double y = first + 9 * i + 2;
    work->places[n].box = topo_layout_box(work->layout, (topo_box){.kind = TOPO_BOX_BRIDGE,
                                                                   .node = n,
                                                                   .x = own->attach - 4,
                                                                   .y = y,
                                                                   .width = 8,
                                                                   .height = 6,
                                                                   .tip = topo_tip_node(work, n)});
    draw_up(work, n, own->attach, y + 6, i + 1 < beads ? y + 9 : end, false, false);
  }
}

static void draw_pci(topo_work *work, int32_t node) {
  topo_place *own = &work->places[node];
  bool root = topo_is_root(work, node), one = own->first >= 0 && work->places[own->first].next < 0;
  double top = landing(work, node), low = INFINITY, high = -INFINITY;
  topo_box box = {.kind = root  ? TOPO_BOX_HOST_BRIDGE
                          : one ? TOPO_BOX_BRIDGE
                                : TOPO_BOX_PCI,
                  .node = node,
                  .y = top,
                  .tip = topo_tip_node(work, node),
                  .height = root ? 7 : 18};
  for (int32_t n = own->first; n >= 0; n = work->places[n].next)
    low = fmin(low, work->places[n].attach), high = fmax(high, work->places[n].attach);
  box.x = root || one ? low - 8 : own->x;
  box.width = root || one ? high - low + 16 : own->width;
  own->box = topo_layout_box(work->layout, box);
  if (box.kind == TOPO_BOX_PCI)
    text_line(work, own->x + own->width / 2, top + 12.5, 8.5, false, TOPO_COLOUR_TEXT,
              own->width > 66   ? "PCIe switch"
              : own->width > 28 ? "PCIe"
                                : "");
  if (!root) draw_up(work, node, own->attach, top + 18, landing(work, own->parent), true, false);
}

static void draw_below(topo_work *work, int32_t parent) {
  for (int32_t n = work->places[parent].first; n >= 0; n = work->places[n].next) {
    int32_t unit = topo_unit_below(work, n);
    if (unit >= 0)
      draw_unit(work, unit, parent);
    else if (work->places[n].role == TOPO_ROLE_PCI)
      draw_pci(work, n);
    if (unit < 0) draw_below(work, n);
  }
}

/* Draws the strip below devices and PCI switches that are directly in the host. */
static void draw_unplaced(topo_work *work, int32_t host) {
  double left = INFINITY, right = -INFINITY;
  for (int32_t n = work->places[host].first; n >= 0 && !work->places[host].bare; n = work->places[n].next) {
    int32_t unit = topo_unit_below(work, n);
    if (work->places[n].role == TOPO_ROLE_AREA) continue;
    const topo_place *shown = &work->places[unit >= 0 ? unit : n];
    left = fmin(left, fmin(shown->x, shown->attach));
    right = fmax(right, shown->x + shown->width);
  }
  if (right < left) return;
  double width = fmax(right - left, UNPLACED_WIDTH);
  topo_layout_box(work->layout, (topo_box){.kind = TOPO_BOX_UNPLACED,
                                           .node = -1,
                                           .x = left,
                                           .y = work->rows.strip,
                                           .width = width,
                                           .height = 20,
                                           .dashed = true,
                                           .tip = "Which CPU these devices are near is not known"});
  text_line(work, left + width / 2, work->rows.strip + 13.5, 8.5, false, TOPO_COLOUR_DIM,
            width > 130 ? "near which CPU is not known" : "CPU not known");
}

/* ---- hosts ------------------------------------------------------------------------------------------------------- */

static int32_t all_alike(const topo_work *work, int32_t host, topo_role role, int32_t *sample) {
  int32_t count = 0;
  *sample = -1;
  for (int32_t n = 0; n < work->topo->nnodes; n++) {
    if (work->places[n].host != host || work->places[n].role != role) continue;
    if (count++ == 0)
      *sample = n;
    else if (*sample >= 0 && strcmp(gpu_text(work->layout, &work->topo->nodes[n]),
                                    gpu_text(work->layout, &work->topo->nodes[*sample])) != 0)
      *sample = -1;
  }
  return count;
}

/* Sets the lines below a host's name: its model, and its devices unless each is described. Returns their number. */
static int32_t host_notes(const topo_work *work, int32_t host, const char *lines[3]) {
  topo_layout *layout = work->layout;
  int32_t count = 0, gpu, nic;
  const char *model = host < work->topo->nnodes ? work->topo->nodes[host].model : NULL;
  if (model) lines[count++] = model;
  if (work->detailed) return count;
  int32_t gpus = all_alike(work, host, TOPO_ROLE_GPU, &gpu), nics = all_alike(work, host, TOPO_ROLE_NIC, &nic);
  const char *kind = gpu >= 0 ? gpu_text(layout, &work->topo->nodes[gpu]) : "";
  const char *speed = nic >= 0 ? nic_speed_text(work, nic) : "";
  if (gpus > 0)
    lines[count++] = topo_layout_string(layout, "%d GPU%s%s%s", gpus, gpus == 1 ? "" : "s", *kind ? ", " : "", kind);
  if (nics > 0)
    lines[count++] =
        topo_layout_string(layout, "%d NIC%s%s%s", nics, nics == 1 ? "" : "s", *speed ? " of " : "", speed);
  return count;
}

int32_t topo_host_notes(const topo_work *work) {
  const char *lines[3];
  int32_t most = 0;
  for (int32_t i = 0; i < work->ndrawn; i++) {
    int32_t count = host_notes(work, work->drawn[i], lines);
    most = count > most ? count : most;
  }
  return most;
}

static void draw_host_name(topo_work *work, int32_t host, double x, double width) {
  const char *lines[3];
  int32_t count = host_notes(work, host, lines);
  double y = work->rows.name + 14, room = width - 2 * HOST_PAD;
  text_line(work, x + width / 2, y, 11, true, TOPO_COLOUR_TEXT,
            topo_text_fit_name(work->layout, topo_host_name(work, host), 11, true, room));
  for (int32_t i = 0; i < count; i++)
    text_line(work, x + width / 2, y + 1 + 12 * (i + 1), 8.5, false, TOPO_COLOUR_DIM,
              topo_text_fit(work->layout, lines[i], 8.5, false, room));
}

/* Draws a stack of frames for hosts that are not drawn, with their kinds. */
static void draw_more(topo_work *work) {
  topo_layout *layout = work->layout;
  double x = work->more_x, y = work->rows.frame + 10, height = work->rows.bottom - y, at = y + height / 2;
  int32_t listed = work->nclasses < CLASSES_MOST ? work->nclasses : CLASSES_MOST, others = 0, lines = 0;
  const char *tip = "Hosts that are not drawn";
  for (int32_t c = 0; c < work->nclasses; c++) {
    const topo_class *own = &work->classes[c];
    bool shown = c < listed && own->drawn > 0 && own->hosts > own->drawn;
    lines += shown;
    if (!shown) others += own->hosts - own->drawn;
  }
  work->more_box = topo_layout_box(layout, (topo_box){.kind = TOPO_BOX_MORE,
                                                      .node = -1,
                                                      .x = x,
                                                      .y = y,
                                                      .width = MORE_WIDTH,
                                                      .height = height,
                                                      .dashed = true,
                                                      .tip = tip});
  at -= 18.0 * (lines + (others > 0) - 1) - 2;
  for (int32_t c = 0; c < listed; c++) {
    const topo_class *own = &work->classes[c];
    if (own->drawn == 0 || own->hosts == own->drawn) continue;
    text_line(work, x + MORE_WIDTH / 2, at, 11, true, TOPO_COLOUR_TEXT,
              topo_layout_string(layout, "\xc3\x97 %s more", topo_count_of(own->hosts - own->drawn).text));
    const char *like = topo_layout_string(layout, "like %s", topo_host_name(work, own->first));
    text_line(work, x + MORE_WIDTH / 2, at + 13, 8.5, false, TOPO_COLOUR_DIM,
              topo_text_fit(layout, like, 8.5, false, MORE_WIDTH - 12));
    at += 36;
  }
  if (others > 0) {
    text_line(work, x + MORE_WIDTH / 2, at, 11, true, TOPO_COLOUR_TEXT,
              topo_layout_string(layout, "\xc3\x97 %s", topo_count_of(others).text));
    text_line(work, x + MORE_WIDTH / 2, at + 13, 8.5, false, TOPO_COLOUR_DIM, "of other sorts");
  }
}

void topo_draw_hosts(topo_work *work) {
  if (work->more_x > 0) draw_more(work);
  for (int32_t i = 0; i < work->ndrawn; i++) {
    int32_t host = work->drawn[i];
    const topo_place *own = &work->places[host];
    int32_t node = host < work->topo->nnodes ? host : -1;
    work->places[host].box =
        topo_layout_box(work->layout, (topo_box){.kind = TOPO_BOX_HOST,
                                                 .node = node,
                                                 .x = own->x,
                                                 .y = work->rows.frame,
                                                 .width = own->width,
                                                 .height = work->rows.bottom - work->rows.frame,
                                                 .dashed = node < 0,
                                                 .tip = node >= 0 ? topo_tip_node(work, host) : NULL});
    topo_draw_strips(work, host);
    draw_unplaced(work, host);
    draw_below(work, host);
    topo_draw_sys(work, host);
    draw_host_name(work, host, own->x, own->width);
  }
}
