/* SPDX-License-Identifier: Apache-2.0
 * The lists of a layout, and helpers of the files that fill it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/topo/picture/work.h"

void topo_layout_line(topo_layout *layout, topo_stroke line) {
  layout->lines = tool_more(layout->lines, layout->nlines, sizeof line);
  layout->lines[layout->nlines++] = line;
}

void topo_layout_label(topo_layout *layout, topo_label label) {
  if (!*label.text) return;
  label.width = topo_text_width(label.text, label.size, label.bold);
  layout->labels = tool_more(layout->labels, layout->nlabels, sizeof label);
  layout->labels[layout->nlabels++] = label;
}

void topo_layout_badge(topo_layout *layout, topo_badge badge) {
  layout->badges = tool_more(layout->badges, layout->nbadges, sizeof badge);
  layout->badges[layout->nbadges++] = badge;
}

int32_t topo_put_box(topo_work *work, topo_box_kind kind, int32_t node, double x, double y, double width, double height,
                     topo_look look) {
  topo_box box = {kind, node, x, y, width, height, look.colour, look.dashed};
  topo_layout *layout = work->layout;
  layout->boxes = tool_more(layout->boxes, layout->nboxes, sizeof box);
  layout->boxes[layout->nboxes] = box;
  return layout->nboxes++;
}

void topo_put_line(topo_work *work, double x1, double y1, double x2, double y2, topo_look look) {
  topo_stroke line = {.npoints = 2, .x = {x1, x2}, .y = {y1, y2}, .width = look.width, .colour = look.colour};
  line.dashed = look.dashed, line.over = look.over, line.junction = look.junction;
  topo_layout_line(work->layout, line);
}

void topo_text(topo_work *work, double x, double y, double size, bool bold, topo_colour colour, topo_anchor anchor,
               const char *text) {
  topo_layout_label(
      work->layout,
      (topo_label){.x = x, .y = y, .size = size, .bold = bold, .colour = colour, .anchor = anchor, .text = text});
}

void topo_note(topo_work *work, double x, double y, double room, const char *text) {
  topo_text(work, x, y, TOPO_SMALL, false, TOPO_COLOUR_DIM, TOPO_ANCHOR_MIDDLE,
            topo_text_fit(text, TOPO_SMALL, false, room));
}

topo_figure topo_figure_of(double value) {
  topo_figure figure = {""};
  /* Three decimals below 10 and one below 1000, because a link of 3.125 GB/s must not appear as 3.1. */
  if (value >= 10000) return topo_count_of(llround(value));
  int64_t scale = value < 10 ? 1000 : value < 1000 ? 10 : 1, whole = llround(value * (double)scale);
  snprintf(figure.text, sizeof figure.text,
           scale == 1000 ? "%lld.%03lld"
           : scale == 10 ? "%lld.%lld"
                         : "%lld",
           (long long)(whole / scale), (long long)(whole % scale));
  char *end = figure.text + strlen(figure.text);
  while (scale > 1 && end[-1] == '0') *--end = '\0';
  if (scale > 1 && end[-1] == '.') *--end = '\0';
  return figure;
}

topo_figure topo_count_of(int64_t count) {
  topo_figure figure = {""};
  char digits[24];
  size_t length = (size_t)snprintf(digits, sizeof digits, "%lld", (long long)count), used = 0;
  for (size_t i = 0; i < length && used + 2 < sizeof figure.text; i++) {
    if (i > 0 && (length - i) % 3 == 0) figure.text[used++] = ',';
    figure.text[used++] = digits[i];
  }
  return figure;
}

bool topo_is_gpu_link(const bny_topo_link *link) { return bny_topo_joins_gpus(link) && link->from != link->to; }

const char *topo_host_name(const topo_work *work, int32_t host) {
  return host < work->topo->nnodes ? work->topo->nodes[host].name : "no host";
}

int32_t topo_lanes(topo_extent *extents, int32_t count, int32_t group) {
  int32_t lanes = 0;
  for (int32_t i = 0; i < count; i++) {
    if (extents[i].group != group) continue;
    extents[i].lane = 0;
    for (int32_t j = 0; j < i; j++) {
      bool touches = extents[j].left <= extents[i].right + 2 && extents[i].left <= extents[j].right + 2;
      if (!touches || extents[j].group != group || extents[j].lane != extents[i].lane) continue;
      extents[i].lane++;
      j = -1;
    }
    lanes = extents[i].lane + 1 > lanes ? extents[i].lane + 1 : lanes;
  }
  return lanes;
}
