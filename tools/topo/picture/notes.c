/* SPDX-License-Identifier: Apache-2.0
 * Texts around the picture: title, findings with badges, legend. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/topo/picture/work.h"

enum { FINDINGS_MOST = 60 };

static const double page_least = 460;

static double text_room(const topo_work *work) {
  double right = fmax(work->right, page_least);
  if (work->more_x > 0) right = fmax(right, work->more_x + MORE_WIDTH);
  for (int32_t i = 0; i < work->layout->nboxes; i++)
    right = fmax(right, work->layout->boxes[i].x + work->layout->boxes[i].width);
  return right - PAGE_MARGIN;
}

/* ---- title ------------------------------------------------------------------------------------------------------- */

static void put_count(topo_string *text, int64_t count, const char *one, const char *many) {
  if (count > 0)
    topo_append(text, "%s%s %s", text->text[0] ? ", " : "", topo_count_of(count).text, count == 1 ? one : many);
}

static int32_t groups_of_many(const topo_work *work, bny_topo_level_kind kind) {
  const bny_topo_level *level = bny_topo_level_of(work->levels, kind);
  int32_t count = 0;
  for (int32_t g = 0; level && g < level->ngroups; g++) count += level->groups[g].count > 1;
  return count;
}

static const char *summary_of(const topo_work *work) {
  topo_string text = {.text = ""};
  int32_t switches = 0;
  for (int32_t n = 0; n < work->topo->nnodes; n++) switches += work->fold.tier[n] > 0;
  put_count(&text, bny_topo_count(work->topo, BNY_TOPO_HOST), "host", "hosts");
  put_count(&text, bny_topo_count(work->topo, BNY_TOPO_PACKAGE), "package", "packages");
  put_count(&text, bny_topo_count(work->topo, BNY_TOPO_NUMA), "NUMA node", "NUMA nodes");
  put_count(&text, bny_topo_count(work->topo, BNY_TOPO_GPU), "GPU", "GPUs");
  put_count(&text, bny_topo_count(work->topo, BNY_TOPO_NIC), "NIC", "NICs");
  put_count(&text, switches, "network switch", "network switches");
  put_count(&text, groups_of_many(work, BNY_TOPO_LEVEL_DOMAIN), "NVLink domain", "NVLink domains");
  put_count(&text, groups_of_many(work, BNY_TOPO_LEVEL_RAIL), "rail", "rails");
  return tool_format("%s", text.text);
}

/* Writes a text in lines that start at y. Returns the base line of the last line. */
static double put_wrapped(topo_work *work, double x, double y, double size, topo_colour colour, const char *text,
                          double room) {
  const char *line;
  double step = size * 1.4, last = y;
  while ((line = topo_text_wrap(&text, size, room))) {
    topo_text(work, x, y, size, false, colour, TOPO_ANCHOR_START, line);
    last = y;
    y += step;
  }
  return last;
}

double topo_draw_title(topo_work *work) {
  topo_layout *layout = work->layout;
  const char *title = work->view->title && *work->view->title ? work->view->title : "Topology";
  const char *last = strrchr(title, '/'); /* a file name without folders; a description stays unchanged */
  layout->title = last && last[1] != '\0' && !strchr(last, ' ') ? last + 1 : title;
  layout->summary = summary_of(work);
  double room = text_room(work);
  topo_text(work, PAGE_MARGIN, PAGE_MARGIN + 14, 15, true, TOPO_COLOUR_TEXT, TOPO_ANCHOR_START,
            topo_text_fit(layout->title, 15, true, room));
  return put_wrapped(work, PAGE_MARGIN, PAGE_MARGIN + 30, 10, TOPO_COLOUR_DIM, layout->summary, room) + 20;
}

/* ---- findings ---------------------------------------------------------------------------------------------------- */

/* Returns the box of a node or of its nearest ancestor. For hidden hosts this is their common box; -1 if none. */
static int32_t box_near(const topo_work *work, int32_t node) {
  if (node < 0) return -1;
  for (int32_t n = node; n >= 0; n = work->topo->nodes[n].parent)
    if (work->spots[n].box >= 0) return work->spots[n].box;
  return work->spots[node].host < work->topo->nnodes ? work->more_box : -1;
}

/* Badges stand side by side from the right end of a box, as many as fit in its width. */
static void put_badge(topo_work *work, const topo_box *box, int32_t to_right, int32_t number,
                      bny_topo_severity severity) {
  bool strip = box->kind == TOPO_BOX_STRIP;
  double x = box->x + box->width - (strip ? 10 : 3) - to_right * (2 * TOPO_BADGE_RADIUS + 1);
  if (x < box->x) return;
  topo_layout_badge(
      work->layout,
      (topo_badge){.x = x, .y = strip ? box->y + box->height / 2 : box->y + 1, .number = number, .severity = severity});
}

static double draw_findings(topo_work *work, double y) {
  const bny_topo_levels *levels = work->levels;
  topo_layout *layout = work->layout;
  int32_t *taken = tool_new((size_t)layout->nboxes, sizeof *taken), nboxes = layout->nboxes;
  if (levels->nfindings > 0)
    topo_text(work, PAGE_MARGIN, y + 12, 11, true, TOPO_COLOUR_TEXT, TOPO_ANCHOR_START, "Findings"), y += 20;
  for (int32_t i = 0; i < levels->nfindings; i++) {
    const bny_topo_finding *finding = &levels->findings[i];
    int32_t box = box_near(work, finding->node);
    if (box >= 0 && box < nboxes) put_badge(work, &layout->boxes[box], taken[box]++, i + 1, finding->severity);
    if (i >= FINDINGS_MOST) continue;
    topo_layout_badge(layout, (topo_badge){.x = PAGE_MARGIN + TOPO_BADGE_RADIUS + 1,
                                           .y = y + 8,
                                           .number = i + 1,
                                           .severity = finding->severity});
    y = put_wrapped(work, PAGE_MARGIN + 22, y + 11.5, 9.5, TOPO_COLOUR_TEXT, finding->text, text_room(work) - 24) + 8;
  }
  if (levels->nfindings > FINDINGS_MOST)
    y = put_wrapped(work, PAGE_MARGIN + 22, y + 11.5, 9.5, TOPO_COLOUR_TEXT,
                    tool_format("and %s more: banyan-topo --check lists all",
                                topo_count_of(levels->nfindings - FINDINGS_MOST).text),
                    text_room(work) - 24) +
        8;
  return levels->nfindings > 0 ? y + 6 : y;
}

/* ---- legend ------------------------------------------------------------------------------------------------------ */

typedef struct legend {
  topo_work *work;
  double x, y, room;
} legend;

/* Adds an item's text and returns the x of its swatch, which is 26 wide. */
static double legend_item(legend *l, const char *text) {
  double width = 32 + topo_text_width(text, TOPO_SMALL, false), x = l->x;
  if (x > PAGE_MARGIN && x + width > PAGE_MARGIN + l->room) {
    x = PAGE_MARGIN;
    l->y += 18;
  }
  topo_text(l->work, x + 32, l->y + 11, TOPO_SMALL, false, TOPO_COLOUR_TEXT, TOPO_ANCHOR_START,
            topo_text_fit(text, TOPO_SMALL, false, l->room - 32));
  l->x = x + width + 18;
  return x;
}

/* The items of the legend: a kind of box, or a colour of lines, TOPO_COLOURS for dashes. */
static const struct {
  bool is_line;
  int32_t kind;
  const char *text;
} items[] = {{false, TOPO_BOX_PCI, "PCIe switch or host bridge, around its devices"},
             {false, TOPO_BOX_STRIP, "CPU package or NUMA node"},
             {false, TOPO_BOX_GPU, "GPU"},
             {false, TOPO_BOX_NIC, "NIC"},
             {true, TOPO_COLOUR_NVLINK, "NVLinks, wider for more of them"},
             {true, TOPO_COLOUR_XGMI, "xGMI links, wider for more of them"},
             {true, TOPO_COLOUR_SYS, "between CPUs"},
             {true, TOPO_COLOUR_NET, "between network switches"},
             {true, TOPO_COLOUR_SLOW, "slower than its peers or its rating, refused, or missing"},
             {true, TOPO_COLOUR_RAIL, "NIC to network, a colour for each switch or rail"},
             {true, TOPO_COLOURS, "dashes, also within a line: assumed, or not drawn"}};

/* Explains the boxes and colours that the picture contains. */
static void draw_legend(legend *l, const topo_layout *drawn) {
  for (size_t k = 0; k < sizeof items / sizeof items[0]; k++) {
    int32_t kind = items[k].kind;
    bool dashes = items[k].is_line && kind == TOPO_COLOURS, found = false;
    for (int32_t i = 0; i < drawn->nboxes && !items[k].is_line; i++)
      found = found || (int32_t)drawn->boxes[i].kind == kind;
    for (int32_t i = 0; i < drawn->nlines && items[k].is_line; i++)
      found = found || (dashes ? drawn->lines[i].dashed : (int32_t)drawn->lines[i].colour == kind);
    if (!found) continue;
    double x = legend_item(l, items[k].text);
    topo_look look = {dashes ? TOPO_COLOUR_TEXT : (topo_colour)kind, dashes ? 1.2 : 2.4, .dashed = dashes};
    if (items[k].is_line)
      topo_put_line(l->work, x, l->y + 8, x + 26, l->y + 8, look);
    else
      topo_put_box(l->work, (topo_box_kind)kind, -1, x + 4, l->y + 2, 20, 12, (topo_look){.width = 0});
  }
}

void topo_draw_notes(topo_work *work, double y) {
  topo_layout *layout = work->layout;
  legend l = {.work = work, .x = PAGE_MARGIN, .y = draw_findings(work, y) + 4, .room = text_room(work)};
  int32_t before = layout->nlabels;
  topo_layout drawn = *layout; /* without the legend */
  draw_legend(&l, &drawn);
  layout->width = fmax(layout->width, l.room + 2 * PAGE_MARGIN);
  layout->height = l.y + (layout->nlabels > before ? 20 : 0) + PAGE_MARGIN - 8;
}
