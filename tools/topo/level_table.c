/* SPDX-License-Identifier: Apache-2.0
 * Writes the table of levels, for the whole text and for --levels. */
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

/* Writes the ranks of groups like this one: "0-7 | 8-15 and 2 more". */
static void put_members(FILE *out, const bny_topo_level *level, int32_t first, int32_t count, int32_t most) {
  for (int32_t g = first, named = 0; g < level->ngroups && named < count; g++) {
    const bny_topo_group *group = &level->groups[g];
    if (!alike(&level->groups[first], group)) continue;
    if (named == most) {
      fprintf(out, " and %d more", (int)(count - named));
      return;
    }
    fputs(named++ > 0 ? " | " : "", out);
    topo_put_numbers(out, &level->members[group->first], group->count);
  }
}

/* `numbers` is the format of the columns with numbers, which have words as their titles. */
#define ROW(numbers) "%-10s" numbers "  %-4s%8s  %-18s%8s  %-9s"

static void put_row(FILE *out, const topo_view *view, const bny_topo_level *level, int32_t first, int32_t count) {
  enum { NAMED = 2 };
  const bny_topo_group *group = &level->groups[first];
  double speed = group->gbytes_per_s;
  bool assumed = group->source == BNY_TOPO_ASSUMED;
  const char *links =
      tool_format("%s%s", group->all_to_all ? "all to all" : "partial", group->uniform ? "" : ", uneven");
  tool_page ranks;
  put_members(tool_page_begin(&ranks), level, first, count, view->all ? INT32_MAX : NAMED);
  int column = fprintf(
      out, ROW("%6d%6d"), level_name(view, level), (int)count, (int)group->count, bny_topo_path_name(group->path),
      speed > 0 ? tool_format(speed >= 1000 ? "%s%.0f" : "%s%.4g", assumed ? "~" : "", speed) : "?",
      group->count == 1 ? "-" : links, group->latency_us > 0 ? tool_format("%.3g us", group->latency_us) : "?",
      speed > 0 ? bny_topo_source_name(group->source) : "-");
  tool_print_wrapped(out, column, column, tool_page_end(&ranks));
}

/* Writes the groups of a level. Equal groups share a row, unless all are asked for. */
static void put_level(FILE *out, const topo_view *view, const bny_topo_level *level, int32_t most) {
  bool *is_done = tool_new((size_t)level->ngroups, sizeof *is_done);
  for (int32_t first = 0, row = 0; first < level->ngroups; first++) {
    int32_t count = is_done[first] ? 0 : 1;
    for (int32_t g = first + 1; count > 0 && g < level->ngroups && !view->all; g++) {
      bool is_like = !is_done[g] && alike(&level->groups[first], &level->groups[g]);
      is_done[g] = is_done[g] || is_like;
      count += is_like;
    }
    if (count > 0 && row++ == most) {
      fputs("..: see --levels\n", out);
      return;
    }
    if (count > 0) put_row(out, view, level, first, count);
  }
}

static void put_table(FILE *out, const topo_view *view, int32_t most) {
  fprintf(out, ROW("%6s%6s") "ranks\n", "level", "groups", "each", "path", "GB/s", "links", "latency", "source");
  for (int32_t i = 0; i < view->levels->nlevels; i++) put_level(out, view, &view->levels->levels[i], most);
}

void topo_put_levels(FILE *out, const topo_view *view) {
  enum { ROWS_MOST = 6 }; /* rows of a level */
  bool tells = false;     /* a level of single ranks tells nothing */
  for (int32_t i = 0; i < view->levels->nlevels; i++)
    for (int32_t g = 0; g < view->levels->levels[i].ngroups; g++)
      tells = tells || view->levels->levels[i].groups[g].count > 1;
  if (!tells) return;
  fputs("\nLevels\n", out);
  put_table(out, view, view->all ? INT32_MAX : ROWS_MOST);
}

/* Begins with "ranks are 16 GPUs: 0-7 host0, 8-15 host1". */
char *topo_view_levels(const topo_view *view) {
  enum { HOSTS_NAMED = 6 };
  const bny_topo_levels *levels = view->levels;
  tool_page page;
  FILE *out = tool_page_begin(&page);
  fprintf(out, "ranks are %s", topo_count(levels->nranks, levels->rank_kind));
  for (int32_t r = 0, end, hosts = 0; r < levels->nranks && hosts <= HOSTS_NAMED; r = end, hosts++) {
    int32_t host = levels->ranks[r].host;
    for (end = r; end < levels->nranks && levels->ranks[end].host == host; end++) {
    }
    fputs(hosts == 0 ? ": " : ", ", out);
    if (hosts == HOSTS_NAMED)
      fputs("..", out);
    else
      fprintf(out, "%s %s", r + 1 == end ? tool_format("%d", (int)r) : tool_format("%d-%d", (int)r, (int)end - 1),
              host < 0 ? "without a host" : view->topo->nodes[host].name);
  }
  fputs("\n\n", out);
  put_table(out, view, INT32_MAX);
  return tool_page_end(&page);
}
