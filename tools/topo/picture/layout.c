/* SPDX-License-Identifier: Apache-2.0
 * The lists of a picture, and the order of filling them. */
#include "tools/topo/picture/layout.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/layout_work.h"

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static void *grow(topo_layout *layout, void *items, int32_t count, int32_t *capacity, size_t size) {
  if (count < *capacity) return items;
  int32_t more = *capacity ? *capacity * 2 : 64;
  void *bigger = realloc(items, (size_t)more * size);
  if (!bigger) {
    layout->out_of_memory = true;
    return items;
  }
  *capacity = more;
  return bigger;
}

int32_t topo_layout_box(topo_layout *layout, topo_box box) {
  layout->boxes = grow(layout, layout->boxes, layout->nboxes, &layout->boxes_capacity, sizeof box);
  if (layout->nboxes >= layout->boxes_capacity) return -1;
  layout->boxes[layout->nboxes] = box;
  return layout->nboxes++;
}

int32_t topo_layout_line(topo_layout *layout, topo_line line) {
  layout->lines = grow(layout, layout->lines, layout->nlines, &layout->lines_capacity, sizeof line);
  if (layout->nlines >= layout->lines_capacity) return -1;
  layout->lines[layout->nlines] = line;
  return layout->nlines++;
}

int32_t topo_layout_label(topo_layout *layout, topo_label label) {
  if (!*label.text) return -1;
  layout->labels = grow(layout, layout->labels, layout->nlabels, &layout->labels_capacity, sizeof label);
  if (layout->nlabels >= layout->labels_capacity) return -1;
  label.width = topo_text_width(label.text, label.size, label.bold);
  layout->labels[layout->nlabels] = label;
  return layout->nlabels++;
}

int32_t topo_layout_badge(topo_layout *layout, topo_badge badge) {
  layout->badges = grow(layout, layout->badges, layout->nbadges, &layout->badges_capacity, sizeof badge);
  if (layout->nbadges >= layout->badges_capacity) return -1;
  layout->badges[layout->nbadges] = badge;
  return layout->nbadges++;
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

typedef struct text_owned {
  struct text_owned *next;
  char *text;
} text_owned;

const char *topo_layout_own(topo_layout *layout, char *text) {
  text_owned *owned = text ? malloc(sizeof *owned) : NULL;
  if (!owned) {
    free(text);
    layout->out_of_memory = true;
    return "";
  }
  *owned = (text_owned){.next = layout->strings, .text = text};
  layout->strings = owned;
  return text;
}

const char *topo_layout_string(topo_layout *layout, const char *format, ...) {
  char *text = NULL;
  va_list arguments;
  va_start(arguments, format);
  if (vasprintf(&text, format, arguments) < 0) text = NULL;
  va_end(arguments);
  return topo_layout_own(layout, text);
}

topo_figure topo_figure_of(double value) {
  topo_figure figure = {""};
  /* Thousandths below 10, tenths below 1000: a link of 3.125 GB/s must not appear as 3.1. */
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

/* ---- the whole picture ------------------------------------------------------------------------------------------- */

/* Sets the rows of hosts, one below the other, when everything above them is known. */
static void rows_set(topo_work *work, double top) {
  topo_rows *rows = &work->rows;
  rows->top = top;
  rows->network = top + topo_measure_network(work);
  topo_measure_nvlinks(work); /* sets rows->domain, frame and gpu from rows->network */
  double nic = rows->gpu + work->gpu_height +
               (work->gpu_height > 0 && (rows->nic_rows + rows->strips + rows->pci_rows) > 0 ? 18 : 0);
  rows->nic = nic;
  rows->gap_nic = rows->strips + rows->pci_rows > 0 ? 18 + 9 * rows->beads : 8;
  rows->pci = nic + rows->nic_rows * (work->nic_height + 6) - (rows->nic_rows > 0 ? 6 : 0) +
              (rows->nic_rows > 0 ? rows->gap_nic : 9 * rows->beads);
  rows->strip = rows->pci + rows->pci_rows * 36 + rows->roots;
  rows->sys = rows->strip + rows->strips * (rows->strip_height + 8) + 4;
  rows->name = rows->sys + topo_sys_height(work);
  rows->bottom = rows->name + 26 + 12 * topo_host_notes(work);
}

static void lay_out(topo_work *work) {
  topo_layout *layout = work->layout;
  topo_measure_devices(work);
  topo_choose_hosts(work);
  topo_place_hosts(work);
  double top = topo_draw_title(work);
  rows_set(work, top);
  topo_draw_hosts(work);
  topo_draw_network(work); /* before NVSwitches, whose texts avoid its lines */
  topo_draw_nvlinks(work);
  topo_draw_notes(work);
  for (int32_t i = 0; i < layout->nboxes; i++)
    layout->width = fmax(layout->width, layout->boxes[i].x + layout->boxes[i].width + PAGE_MARGIN);
}

topo_layout *topo_layout_new(const topo_view *view, tool_error *error) {
  topo_layout *layout = calloc(1, sizeof *layout);
  topo_work work = {.view = view, .topo = view->topo, .levels = view->levels, .layout = layout, .more_box = -1};
  if (layout && topo_work_start(&work))
    lay_out(&work);
  else if (layout)
    layout->out_of_memory = true;
  topo_work_end(&work);
  if (layout && !layout->out_of_memory) return layout;
  topo_layout_free(layout);
  tool_error_set(error, "no memory for the picture");
  return NULL;
}

void topo_layout_free(topo_layout *layout) {
  if (!layout) return;
  for (text_owned *owned = layout->strings, *next; owned; owned = next) {
    next = owned->next;
    free(owned->text);
    free(owned);
  }
  free(layout->boxes);
  free(layout->lines);
  free(layout->labels);
  free(layout->badges);
  free(layout);
}
