/* SPDX-License-Identifier: Apache-2.0
 * Writes levels: one line each in the picture, and the table of --levels. */
#include <string.h>

#include "tools/topo/topo.h"

static bool same_speed(double a, double b) { return a <= b && a >= b; }

static bool alike(const bny_topo_group *a, const bny_topo_group *b) {
  return a->count == b->count && a->path == b->path && same_speed(a->gbytes_per_s, b->gbytes_per_s) &&
         same_speed(a->latency_us, b->latency_us) && a->all_to_all == b->all_to_all && a->uniform == b->uniform &&
         a->source == b->source;
}

/* ---- in the picture ---------------------------------------------------------------------------------------------- */

/* Common properties of a level's groups. */
typedef struct summary {
  int32_t least, most;
  double slowest, fastest;
  bny_topo_path path;
  bool all_to_all, uniform, assumed;
} summary;

static summary summarise(const bny_topo_level *level) {
  summary s = {.least = INT32_MAX, .all_to_all = true, .uniform = true};
  for (int32_t g = 0; g < level->ngroups; g++) {
    const bny_topo_group *group = &level->groups[g];
    s.least = group->count < s.least ? group->count : s.least;
    s.most = group->count > s.most ? group->count : s.most;
    s.slowest = g == 0 || group->gbytes_per_s < s.slowest ? group->gbytes_per_s : s.slowest;
    s.fastest = group->gbytes_per_s > s.fastest ? group->gbytes_per_s : s.fastest;
    s.path = group->path > s.path ? group->path : s.path;
    s.all_to_all = s.all_to_all && group->all_to_all;
    s.uniform = s.uniform && group->uniform;
    s.assumed = s.assumed || group->source == BNY_TOPO_ASSUMED;
  }
  return s;
}

/* "4 groups of 8 GPUs"; "371 GB/s", or "80 to 371 GB/s" if groups differ; "all to all, uneven"; "NVL". */
void topo_level_words(const bny_topo_levels *levels, const bny_topo_level *level, topo_string words[4]) {
  summary s = summarise(level);
  topo_append(&words[0], "%d group%s of ", (int)level->ngroups, level->ngroups == 1 ? "" : "s");
  if (s.least < s.most) topo_append(&words[0], "%d to ", (int)s.least);
  topo_append(&words[0], "%s", topo_count(s.most, levels->rank_kind));
  if (s.slowest > 0 && s.slowest < 0.995 * s.fastest)
    topo_append(&words[1], s.slowest >= 1000 ? "%.0f to " : "%.3g to ", s.slowest);
  topo_append(&words[1], "%s", topo_speed(s.fastest, s.assumed));
  if (s.most < 2) return;
  topo_append(&words[2], "%s%s", s.all_to_all ? "all to all" : "",
              s.uniform      ? ""
              : s.all_to_all ? ", uneven"
                             : "uneven");
  topo_append(&words[3], "%s", bny_topo_path_name(s.path));
}

const char *topo_level_name(const topo_view *view, const bny_topo_level *level) {
  int32_t node = level->nmembers > 0 ? view->levels->ranks[level->members[0]].node : -1;
  bool numa =
      level->kind == BNY_TOPO_LEVEL_PACKAGE && node >= 0 && bny_topo_ancestor(view->topo, node, BNY_TOPO_PACKAGE) < 0;
  return numa ? "NUMA node" : bny_topo_level_name(level->kind);
}

static void put_level(FILE *out, const topo_view *view, const bny_topo_level *level, const int32_t widths[2]) {
  topo_string words[4] = {{.text = ""}};
  summary s = summarise(level);
  topo_level_words(view->levels, level, words);
  const char *path = words[3].text[0] != '\0' ? words[3].text : "-";
  fprintf(out, "  %-11s%-*s", topo_level_name(view, level), (int)widths[0] + 2, words[0].text);
  topo_put(out, view, topo_ink_of_path(s.path), path);
  if (words[1].text[0] != '\0' || words[2].text[0] != '\0') {
    topo_put_blanks(out, 6 - (int32_t)strlen(path));
    topo_put(out, view, TOPO_INK_SPEED, words[1].text);
  }
  if (words[2].text[0] != '\0' && 23 + widths[0] + widths[1] + topo_width(words[2].text) <= view->columns) {
    topo_put_blanks(out, widths[1] + 2 - topo_width(words[1].text));
    topo_put(out, view, s.uniform ? TOPO_INK_PLAIN : TOPO_INK_WARNING, words[2].text);
  }
  fputc('\n', out);
}

void topo_put_levels(FILE *out, const topo_view *view) {
  int32_t widths[2] = {24, 16};
  bool tells = false;
  for (int32_t i = 0; i < view->levels->nlevels; i++) {
    topo_string words[4] = {{.text = ""}};
    topo_level_words(view->levels, &view->levels->levels[i], words);
    for (int w = 0; w < 2; w++)
      widths[w] = topo_width(words[w].text) > widths[w] ? topo_width(words[w].text) : widths[w];
    tells = tells || words[3].text[0] != '\0';
  }
  if (!tells) return;
  topo_put_heading(out, view, "Levels");
  for (int32_t i = 0; i < view->levels->nlevels; i++) put_level(out, view, &view->levels->levels[i], widths);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

enum { COLUMNS = 8, KINDS_MOST = 64 }; /* KINDS_MOST: in a level with more kinds of groups, the rest have a row each */

static const char *const titles[COLUMNS] = {"level", "groups", "each", "path", "GB/s", "latency", "links", "source"};

typedef struct row {
  char cells[COLUMNS][24];
  topo_ink ink;
  const bny_topo_level *level;
  int32_t first; /* first group; the others of the row are equal */
  int32_t count;
} row;

static row row_of(const topo_view *view, const bny_topo_level *level, int32_t first, int32_t count) {
  const bny_topo_group *group = &level->groups[first];
  row r = {.ink = topo_ink_of_path(group->path), .level = level, .first = first, .count = count};
  snprintf(r.cells[0], sizeof r.cells[0], "%s", topo_level_name(view, level));
  snprintf(r.cells[1], sizeof r.cells[1], "%d", (int)count);
  snprintf(r.cells[2], sizeof r.cells[2], "%d", (int)group->count);
  snprintf(r.cells[3], sizeof r.cells[3], "%s", bny_topo_path_name(group->path));
  snprintf(r.cells[4], sizeof r.cells[4],
           group->gbytes_per_s >= 1000 ? "%.0f"
           : group->gbytes_per_s > 0   ? "%.4g"
                                       : "?",
           group->gbytes_per_s);
  snprintf(r.cells[5], sizeof r.cells[5], group->latency_us > 0 ? "%.3g us" : "?", group->latency_us);
  snprintf(r.cells[6], sizeof r.cells[6], "%s%s", group->all_to_all ? "all to all" : "partial",
           group->uniform ? "" : ", uneven");
  snprintf(r.cells[7], sizeof r.cells[7], "%s", group->gbytes_per_s > 0 ? bny_topo_source_name(group->source) : "-");
  if (group->count == 1) snprintf(r.cells[6], sizeof r.cells[6], "-");
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
  topo_put(out, view, TOPO_INK_PLAIN, text.text);
}

static void put_table(FILE *out, const topo_view *view, const row *rows, int32_t nrows) {
  int32_t widths[COLUMNS], used = 0;
  for (int c = 0; c < COLUMNS; c++) {
    widths[c] = (int32_t)strlen(titles[c]);
    for (int32_t r = 0; r < nrows; r++) {
      int32_t width = (int32_t)strlen(rows[r].cells[c]);
      widths[c] = width > widths[c] ? width : widths[c];
    }
    used += widths[c] + 2;
  }
  for (int32_t r = -1; r < nrows; r++) {
    for (int c = 0; c < COLUMNS; c++) {
      const char *cell = r < 0 ? titles[c] : rows[r].cells[c];
      bool number = c == 1 || c == 2 || c == 4 || c == 5;
      int32_t blanks = widths[c] - (int32_t)strlen(cell);
      topo_put_blanks(out, number ? blanks : 0);
      topo_put(out, view, r < 0 ? TOPO_INK_DIM : c == 0 ? TOPO_INK_BOLD : c == 3 ? rows[r].ink : TOPO_INK_PLAIN, cell);
      topo_put_blanks(out, (number ? 0 : blanks) + 2);
    }
    if (r < 0)
      topo_put(out, view, TOPO_INK_DIM, "ranks");
    else
      put_members(out, view, &rows[r], view->columns - used);
    fputc('\n', out);
  }
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
  topo_put(out, view, TOPO_INK_PLAIN, text.text);
  fputs("\n\n", out);
}

char *topo_view_levels(const topo_view *view) {
  tool_page page;
  int32_t nrows;
  row *rows = make_rows(view, &nrows);
  FILE *out = tool_page_begin(&page);
  put_ranks(out, view);
  put_table(out, view, rows, nrows);
  return tool_page_end(&page);
}
