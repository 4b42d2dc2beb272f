/* SPDX-License-Identifier: Apache-2.0
 * Texts around the picture: title, findings with badges, legend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/layout_work.h"

static const double page_least = 460;

static double text_room(const topo_work *work) {
  double right = fmax(work->right, page_least - PAGE_MARGIN);
  for (int32_t i = 0; i < work->layout->nboxes; i++)
    right = fmax(right, work->layout->boxes[i].x + work->layout->boxes[i].width);
  return right - PAGE_MARGIN;
}

/* ---- title ------------------------------------------------------------------------------------------------------- */

typedef struct sentence {
  FILE *out;
  int32_t parts;
} sentence;

static void put_count(sentence *s, int32_t count, const char *one, const char *many) {
  if (count <= 0) return;
  fprintf(s->out, "%s%s %s", s->parts++ > 0 ? ", " : "", topo_count_of(count).text, count == 1 ? one : many);
}

static int32_t groups_of_many(const topo_work *work, bny_topo_level_kind kind) {
  const bny_topo_level *level = bny_topo_level_of(work->levels, kind);
  int32_t count = 0;
  for (int32_t g = 0; level && g < level->ngroups; g++) count += level->groups[g].count > 1;
  return count;
}

static const char *summary_of(const topo_work *work) {
  char *text = NULL;
  size_t bytes;
  sentence s = {.out = open_memstream(&text, &bytes)};
  if (!s.out) return topo_layout_own(work->layout, NULL);
  int32_t switches = 0, packages = bny_topo_count(work->topo, BNY_TOPO_PACKAGE);
  for (int32_t n = 0; n < work->topo->nnodes; n++) switches += work->places[n].role == TOPO_ROLE_SWITCH;
  put_count(&s, bny_topo_count(work->topo, BNY_TOPO_HOST), "host", "hosts");
  put_count(&s, packages, "package", "packages");
  put_count(&s, bny_topo_count(work->topo, BNY_TOPO_NUMA), "NUMA node", "NUMA nodes");
  put_count(&s, bny_topo_count(work->topo, BNY_TOPO_GPU), "GPU", "GPUs");
  put_count(&s, bny_topo_count(work->topo, BNY_TOPO_NIC), "NIC", "NICs");
  put_count(&s, switches, "network switch", "network switches");
  put_count(&s, groups_of_many(work, BNY_TOPO_LEVEL_DOMAIN), "NVLink domain", "NVLink domains");
  put_count(&s, groups_of_many(work, BNY_TOPO_LEVEL_RAIL), "rail", "rails");
  fclose(s.out);
  return topo_layout_own(work->layout, text);
}

/* Returns a file's name without directories, or a description unchanged. */
static const char *title_of(const topo_view *view) {
  const char *title = view->title && *view->title ? view->title : "Topology", *last = strrchr(title, '/');
  return last && last[1] != '\0' && !strchr(last, ' ') ? last + 1 : title;
}

double topo_draw_title(topo_work *work) {
  topo_layout *layout = work->layout;
  double room = text_room(work), y = PAGE_MARGIN + 14;
  const char *title = title_of(work->view);
  layout->title = title;
  layout->summary = summary_of(work);
  topo_layout_label(
      layout,
      (topo_label){
          .x = PAGE_MARGIN, .y = y, .size = 15, .bold = true, .text = topo_text_fit(layout, title, 15, true, room)});
  const char *rest = layout->summary, *line;
  while ((line = topo_text_wrap(layout, &rest, 10, room))) {
    y += 15;
    topo_layout_label(layout,
                      (topo_label){.x = PAGE_MARGIN, .y = y, .size = 10, .colour = TOPO_COLOUR_DIM, .text = line});
  }
  return y + 20;
}

/* ---- findings ---------------------------------------------------------------------------------------------------- */

/* Returns the box of a node or its nearest ancestor; -1 if none is drawn. */
static int32_t box_near(const topo_work *work, int32_t node) {
  for (int32_t n = node; n >= 0; n = work->topo->nodes[n].parent) {
    if (work->places[n].box >= 0) return work->places[n].box;
  }
  return -1;
}

static void put_badge(topo_work *work, const topo_box *box, int32_t to_right, int32_t number,
                      bny_topo_severity severity) {
  bool strip = box->kind == TOPO_BOX_STRIP;
  double x = box->x + box->width - (strip ? 10 : 3) - to_right * (2 * TOPO_BADGE_RADIUS + 1);
  topo_layout_badge(
      work->layout,
      (topo_badge){.x = x, .y = strip ? box->y + box->height / 2 : box->y + 1, .number = number, .severity = severity});
}

static double draw_findings(topo_work *work, double y) {
  const bny_topo_levels *levels = work->levels;
  topo_layout *layout = work->layout;
  double room = text_room(work) - 24;
  int32_t *taken = calloc((size_t)layout->nboxes + 1, sizeof *taken);
  if (!taken) layout->out_of_memory = true;
  if (!taken || levels->nfindings == 0) {
    free(taken);
    return y;
  }
  for (int32_t i = 0; i < levels->nfindings; i++) {
    int32_t box = levels->findings[i].node >= 0 ? box_near(work, levels->findings[i].node) : -1;
    if (box >= 0) taken[box]++;
  }
  topo_layout_label(layout,
                    (topo_label){.x = PAGE_MARGIN, .y = y + 12, .size = 10.5, .bold = true, .text = "Findings"});
  y += 20;
  for (int32_t i = 0; i < levels->nfindings; i++) {
    const bny_topo_finding *finding = &levels->findings[i];
    int32_t box = finding->node >= 0 ? box_near(work, finding->node) : -1;
    if (box >= 0) put_badge(work, &layout->boxes[box], --taken[box], i + 1, finding->severity);
    topo_layout_badge(layout, (topo_badge){.x = PAGE_MARGIN + TOPO_BADGE_RADIUS + 1,
                                           .y = y + 8,
                                           .number = i + 1,
                                           .severity = finding->severity});
    const char *rest = finding->text, *line;
    while ((line = topo_text_wrap(layout, &rest, 9.5, room))) {
      topo_layout_label(layout, (topo_label){.x = PAGE_MARGIN + 22, .y = y + 11.5, .size = 9.5, .text = line});
      y += 13;
    }
    y += 6;
  }
  free(taken);
  return y + 6;
}

/* ---- legend ------------------------------------------------------------------------------------------------------ */

typedef struct legend {
  topo_work *work;
  double x, y, room;
  bool empty;
} legend;

/* Adds an item's text and returns the place of its swatch. */
static void legend_item(legend *l, const char *text, double swatch, double *x, double *y) {
  double width = swatch + 6 + topo_text_width(text, 8.5, false);
  if (!l->empty && l->x + width > PAGE_MARGIN + l->room) {
    l->x = PAGE_MARGIN;
    l->y += 18;
  }
  *x = l->x, *y = l->y;
  topo_layout_label(l->work->layout, (topo_label){.x = l->x + swatch + 6, .y = l->y + 11, .size = 8.5, .text = text});
  l->x += width + 18;
  l->empty = false;
}

static void legend_box(legend *l, topo_box_kind kind, const char *text) {
  double x, y;
  const topo_layout *layout = l->work->layout;
  int32_t i = 0;
  while (i < layout->nboxes && layout->boxes[i].kind != kind) i++;
  if (i == layout->nboxes) return;
  topo_box box = {
      .kind = kind, .node = -1, .width = 18, .height = 11, .dashed = kind == TOPO_BOX_RAIL, .colour = TOPO_COLOUR_NET};
  if (kind == TOPO_BOX_HOST_BRIDGE || kind == TOPO_BOX_BRIDGE) box.height = 7;
  if (kind == TOPO_BOX_NVSWITCH) box.colour = layout->boxes[i].colour;
  legend_item(l, text, box.width, &x, &y);
  box.x = x, box.y = y + 8 - box.height / 2;
  topo_layout_box(l->work->layout, box);
}

static void legend_line(legend *l, topo_colour colour, double width, bool dashed, const char *text) {
  double x, y;
  legend_item(l, text, 26, &x, &y);
  topo_layout_line(
      l->work->layout,
      (topo_line){
          .npoints = 2, .x = {x, x + 26}, .y = {y + 8, y + 8}, .width = width, .colour = colour, .dashed = dashed});
}

static bool has_line(const topo_work *work, topo_colour first, topo_colour last) {
  for (int32_t i = 0; i < work->layout->nlines; i++) {
    if (work->layout->lines[i].colour >= first && work->layout->lines[i].colour <= last) return true;
  }
  return false;
}

static double widest_line(const topo_work *work, topo_colour colour) {
  double widest = 0;
  for (int32_t i = 0; i < work->layout->nlines; i++) {
    if (work->layout->lines[i].colour == colour) widest = fmax(widest, work->layout->lines[i].width);
  }
  return fmin(widest, 4);
}

static void legend_lines(legend *l) {
  topo_work *work = l->work;
  bool dashed = false, numbered = false;
  for (int32_t i = 0; i < work->layout->nlines; i++) dashed = dashed || work->layout->lines[i].dashed;
  for (int32_t i = 0; i < work->layout->nboxes; i++)
    dashed = dashed || (work->layout->boxes[i].dashed && work->layout->boxes[i].kind == TOPO_BOX_AREA);
  for (int32_t i = 0; i < work->topo->nlinks; i++)
    numbered = numbered || (work->topo->links[i].kind == BNY_TOPO_LINK_PCI && work->topo->links[i].gbytes_per_s > 0);
  const char *many = topo_layout_string(work->layout, "%s%s%s", work->joints_numbered ? ", with their number" : "",
                                        !work->joints_differ ? ""
                                        : work->speeds_known ? " (wider is faster)"
                                                             : " (wider is more of them)",
                                        work->joints_said ? work->joints_said : "");
  bool nvlink = has_line(work, TOPO_COLOUR_NVLINK, TOPO_COLOUR_NVLINK),
       xgmi = has_line(work, TOPO_COLOUR_XGMI, TOPO_COLOUR_XGMI);
  if (nvlink)
    legend_line(l, TOPO_COLOUR_NVLINK, widest_line(work, TOPO_COLOUR_NVLINK), false,
                topo_layout_string(work->layout, "NVLinks%s", many));
  if (xgmi)
    legend_line(l, TOPO_COLOUR_XGMI, widest_line(work, TOPO_COLOUR_XGMI), false,
                topo_layout_string(work->layout, "xGMI links%s", many));
  if (has_line(work, TOPO_COLOUR_C2C, TOPO_COLOUR_C2C))
    legend_line(l, TOPO_COLOUR_C2C, 3, false, "coherent link, GB/s");
  if (has_line(work, TOPO_COLOUR_PCI, TOPO_COLOUR_PCI))
    legend_line(l, TOPO_COLOUR_PCI, 1, false, numbered ? "PCIe, GB/s in one direction" : "PCIe");
  if (has_line(work, TOPO_COLOUR_SYS, TOPO_COLOUR_SYS)) legend_line(l, TOPO_COLOUR_SYS, 2.5, false, "between CPUs");
  if (has_line(work, TOPO_COLOUR_RAIL, TOPO_COLOURS))
    legend_line(l, TOPO_COLOUR_RAIL, 1.8, false,
                work->rails_only ? "rail, a colour for each" : "NIC to switch, a colour for each switch");
  if (has_line(work, TOPO_COLOUR_NET, TOPO_COLOUR_NET)) legend_line(l, TOPO_COLOUR_NET, 2, false, "between switches");
  if (has_line(work, TOPO_COLOUR_SLOW, TOPO_COLOUR_SLOW))
    legend_line(l, TOPO_COLOUR_SLOW, 2, false, "slower than it could be, or refused");
  if (dashed) legend_line(l, TOPO_COLOUR_TEXT, 1.2, true, "dashes, also within a line: assumed");
}

static double draw_legend(topo_work *work, double y) {
  legend l = {.work = work, .x = PAGE_MARGIN, .y = y, .room = text_room(work), .empty = true};
  int32_t before = work->layout->nlabels;
  legend_box(&l, TOPO_BOX_GPU, "GPU");
  legend_box(&l, TOPO_BOX_NIC, "NIC");
  legend_box(&l, TOPO_BOX_STRIP, "CPU package or NUMA node");
  legend_box(&l, TOPO_BOX_PCI, "PCIe switch");
  legend_box(&l, TOPO_BOX_BRIDGE, "PCIe bridge");
  legend_box(&l, TOPO_BOX_HOST_BRIDGE, "host bridge");
  legend_box(&l, TOPO_BOX_RAIL, "rail whose switch is not known");
  legend_lines(&l);
  return work->layout->nlabels > before ? l.y + 20 : y;
}

void topo_draw_notes(topo_work *work) {
  topo_layout *layout = work->layout;
  double y = work->ndrawn > 0 ? work->rows.bottom : work->rows.network;
  y = draw_findings(work, y + 16);
  y = draw_legend(work, y + 4);
  layout->width = fmax(layout->width, text_room(work) + 2 * PAGE_MARGIN);
  layout->height = y + PAGE_MARGIN - 8;
}
