/* SPDX-License-Identifier: Apache-2.0
 * Writes the table of levels, for the picture and for --levels. */
#include <string.h>

#include "tools/topo/topo.h"

static bool same_speed(double a, double b) { return a <= b && a >= b; }

static bool alike(const bny_topo_group *a, const bny_topo_group *b) {
  return a->count == b->count && a->path == b->path && same_speed(a->gbytes_per_s, b->gbytes_per_s) &&
         same_speed(a->latency_us, b->latency_us) && a->all_to_all == b->all_to_all && a->uniform == b->uniform &&
         a->source == b->source;
}

/* Returns the displayed name of a level. The package level is called "NUMA node" if packages are unknown. */
static const char *level_name(const topo_view *view, const bny_topo_level *level) {
  int32_t node = level->nmembers > 0 ? view->levels->ranks[level->members[0]].node : -1;
  bool numa =
      level->kind == BNY_TOPO_LEVEL_PACKAGE && node >= 0 && bny_topo_ancestor(view->topo, node, BNY_TOPO_PACKAGE) < 0;
  return numa ? "NUMA node" : bny_topo_level_name(level->kind);
}

/* KINDS_MOST: in a level with more kinds of groups, the rest have a row each. ROWS_MOST: of a level in the picture. */
enum { COLUMNS = 8, KINDS_MOST = 64, ROWS_MOST = 6 };

static const char *const titles[COLUMNS] = {"level", "groups", "each", "path", "GB/s", "links", "latency", "source"};

typedef struct row {
  char cells[COLUMNS][24];
  const bny_topo_level *level;
  int32_t first; /* first group; the others of the row are equal */
  int32_t count;
} row;

static row row_of(const topo_view *view, const bny_topo_level *level, int32_t first, int32_t count) {
  const bny_topo_group *group = &level->groups[first];
  row r = {.level = level, .first = first, .count = count};
  snprintf(r.cells[0], sizeof r.cells[0], "%s", level_name(view, level));
  snprintf(r.cells[1], sizeof r.cells[1], "%d", (int)count);
  snprintf(r.cells[2], sizeof r.cells[2], "%d", (int)group->count);
  snprintf(r.cells[3], sizeof r.cells[3], "%s", bny_topo_path_name(group->path));
  const double speed = group->gbytes_per_s;
  snprintf(r.cells[4], sizeof r.cells[4],
           speed >= 1000 ? "%s%.0f"
           : speed > 0   ? "%s%.4g"
                         : "?",
           group->source == BNY_TOPO_ASSUMED ? "~" : "", speed);
  snprintf(r.cells[5], sizeof r.cells[5], "%s%s", group->all_to_all ? "all to all" : "partial",
           group->uniform ? "" : ", uneven");
  snprintf(r.cells[6], sizeof r.cells[6], group->latency_us > 0 ? "%.3g us" : "?", group->latency_us);
  snprintf(r.cells[7], sizeof r.cells[7], "%s", group->gbytes_per_s > 0 ? bny_topo_source_name(group->source) : "-");
  if (group->count == 1) snprintf(r.cells[5], sizeof r.cells[5], "-");
  return r;
}

static void put_members(FILE *out, const topo_view *view, const row *r, int32_t room) {
  const bny_topo_level *level = r->level;
  const bny_topo_group *like = &level->groups[r->first];
  topo_string text = {.text = ""};
  int32_t named = 0;
  for (int32_t g = r->first; g < level->ngroups && named < r->count; g++) {
    const bny_topo_group *group = &level->groups[g];
    if (!alike(like, group)) continue;
    topo_string piece = {.text = ""};
    topo_append_numbers(&piece, &level->members[group->first], group->count, room > 24 ? room - 16 : 8);
    bool last = named + 1 == r->count;
    if (named > 0 && topo_width(text.text) + 3 + topo_width(piece.text) > room - (last ? 0 : 14)) {
      topo_append(&text, " and %d more", (int)(r->count - named));
      break;
    }
    topo_append(&text, "%s%s", named > 0 ? " | " : "", piece.text);
    named++;
  }
  topo_put(out, view, text.text);
}

/* Makes the rows. Equal groups share a row, unless --all is set. */
static row *make_rows(const topo_view *view, int32_t *nrows) {
  int32_t capacity = 0;
  for (int32_t i = 0; i < view->levels->nlevels; i++) capacity += view->levels->levels[i].ngroups;
  row *rows = tool_new((size_t)capacity, sizeof *rows);
  *nrows = 0;
  for (int32_t i = 0; i < view->levels->nlevels; i++) {
    const bny_topo_level *level = &view->levels->levels[i];
    int32_t start = *nrows;
    for (int32_t g = 0; g < level->ngroups; g++) {
      int32_t found = view->all ? *nrows : start;
      while (found < *nrows && found < start + KINDS_MOST &&
             !alike(&level->groups[rows[found].first], &level->groups[g]))
        found++;
      if (found == *nrows || found == start + KINDS_MOST)
        rows[(*nrows)++] = row_of(view, level, g, 1);
      else
        snprintf(rows[found].cells[1], sizeof rows[found].cells[1], "%d", (int)++rows[found].count);
    }
  }
  return rows;
}

/* In the picture, columns of latencies, sources and ranks are left out, and so are the last of many rows of a level. */
static void put_table(FILE *out, const topo_view *view, bool is_picture) {
  enum { IN_PICTURE = 6 };
  int32_t nrows, widths[COLUMNS], used = 0, columns = is_picture ? IN_PICTURE : COLUMNS, nth = 0;
  const row *rows = make_rows(view, &nrows);
  for (int c = 0; c < columns; c++) {
    widths[c] = topo_width(titles[c]);
    for (int32_t r = 0; r < nrows; r++) {
      int32_t width = topo_width(rows[r].cells[c]);
      widths[c] = width > widths[c] ? width : widths[c];
    }
    used += widths[c] + 2;
  }
  for (int32_t r = -1; r < nrows; r++) {
    nth = r > 0 && rows[r].level == rows[r - 1].level ? nth + 1 : 0;
    if (nth == ROWS_MOST && is_picture && !view->all) fputs("  ..: see --levels\n", out);
    if (nth >= ROWS_MOST && is_picture && !view->all) continue;
    for (int c = 0; c < columns; c++) {
      const char *cell = r < 0 ? titles[c] : rows[r].cells[c];
      bool number = c == 1 || c == 2 || c == 4 || c == 6, last = is_picture && c + 1 == columns;
      int32_t blanks = widths[c] - topo_width(cell);
      topo_put_blanks(out, number ? blanks : 0);
      topo_put(out, view, cell);
      topo_put_blanks(out, last ? 0 : (number ? 0 : blanks) + 2);
    }
    if (!is_picture && r < 0) topo_put(out, view, "ranks");
    if (!is_picture && r >= 0) put_members(out, view, &rows[r], view->columns - used);
    fputc('\n', out);
  }
}

/* Writes "ranks are 16 GPUs: 0-7 host0, 8-15 host1". */
static void put_ranks(FILE *out, const topo_view *view) {
  const bny_topo_levels *levels = view->levels;
  topo_string text = {.text = ""};
  topo_append(&text, "ranks are %s", topo_count(levels->nranks, levels->rank_kind));
  int32_t hosts = 0;
  for (int32_t r = 0, end; r < levels->nranks; r = end) {
    int32_t host = levels->ranks[r].host;
    for (end = r; end < levels->nranks && levels->ranks[end].host == host; end++) {
    }
    topo_string piece = {.text = ""};
    topo_append(&piece, r + 1 == end ? "%s%d" : "%s%d-%d", hosts == 0 ? ": " : ", ", (int)r, (int)end - 1);
    topo_append(&piece, " %.60s", host < 0 ? "without a host" : view->topo->nodes[host].name);
    if (topo_width(text.text) + topo_width(piece.text) + 8 > view->columns) {
      topo_append(&text, ", ..");
      break;
    }
    topo_append(&text, "%s", piece.text);
    hosts++;
  }
  topo_put(out, view, text.text);
  fputs("\n\n", out);
}

void topo_put_levels(FILE *out, const topo_view *view) {
  bool tells = false; /* a level of single ranks tells nothing */
  for (int32_t i = 0; i < view->levels->nlevels; i++)
    for (int32_t g = 0; g < view->levels->levels[i].ngroups; g++)
      tells = tells || view->levels->levels[i].groups[g].count > 1;
  if (!tells) return;
  topo_put_heading(out, view, "Levels");
  put_table(out, view, true);
}

char *topo_view_levels(const topo_view *view) {
  tool_page page;
  FILE *out = tool_page_begin(&page);
  put_ranks(out, view);
  put_table(out, view, false);
  return tool_page_end(&page);
}
