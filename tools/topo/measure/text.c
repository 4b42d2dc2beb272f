/* SPDX-License-Identifier: Apache-2.0
 * Writes measurements as text. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/topo/measure/measure.h"

enum { FINDINGS_SHOWN = 12 };

typedef struct page {
  const topo_measured *measured;
  const bny_topo *topo;
  bool colour;
  int32_t columns;
  FILE *stream;
} page;

static const char *const kind_titles[TOPO_NEARS] = {
    "one core",      "one second-level cache",          "one third-level cache",
    "one NUMA node", "one package, between NUMA nodes", "between packages",
};

/* ---- paragraphs -------------------------------------------------------------------------------------------------- */

/* Writes a heading and a text next to it, wrapped at blanks. */
static void paragraph(const page *p, const char *heading, const char *colour, const char *text) {
  enum { INDENT = 11 };
  fprintf(p->stream, "%s%-*s%s", p->colour ? colour : "", INDENT, heading,
          p->colour && colour[0] != '\0' ? "\033[0m" : "");
  tool_print_within(p->stream, p->columns < 40 ? 100 : p->columns, INDENT, INDENT, text);
}

static void headline(const page *p) {
  const topo_measured *measured = p->measured;
  char cpus[300] = "", allowed[40] = "", pairs[120] = "";
  int length = 0;
  for (int32_t r = 0, last; r < measured->nranks && length < 200; r = last + 1) {
    int32_t cpu = measured->ranks[r].place.cpu;
    for (last = r; last + 1 < measured->nranks && measured->ranks[last + 1].place.cpu == cpu + last + 1 - r;) last++;
    length += snprintf(cpus + length, sizeof cpus - (size_t)length, last > r ? "%s %d-%d" : "%s %d", r == 0 ? "" : ",",
                       cpu, cpu + last - r);
  }
  if (measured->nranks < measured->nallowed) snprintf(allowed, sizeof allowed, " (%d are allowed)", measured->nallowed);
  if (measured->nranks > 1)
    snprintf(pairs, sizeof pairs, "; %d of %lld pairs, %d sweep%s in %.1f s", measured->npairs,
             (long long)measured->npairs_possible, measured->nsweeps, measured->nsweeps == 1 ? "" : "s",
             measured->seconds);
  paragraph(p, "measured", "",
            tool_format("%d rank%s%s%s%s%s", measured->nranks,
                        measured->nranks == 1 ? " on CPU" : "s, one on each of CPUs", cpus, allowed, pairs,
                        measured->virtual_machine ? "; a virtual machine" : ""));
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

/* Colours a pair by its factor against expected. */
static const char *shade(const page *p, const topo_measured_pair *pair, topo_metric metric) {
  double worse = pair->worse[metric], limit = metric <= TOPO_TAKE ? topo_slow_latency : 1 / topo_slow_bandwidth;
  if (!p->colour || !pair->judged) return "";
  return worse > limit ? "\033[31m" : worse > 1.2 ? "\033[33m" : worse < 1 / 1.2 ? "\033[36m" : "\033[32m";
}

static const topo_measured_pair *pair_at(const topo_measured *measured, int32_t a, int32_t b) {
  for (int32_t i = 0; i < measured->npairs; i++) {
    const topo_measured_pair *pair = &measured->pairs[i];
    if ((pair->a == a && pair->b == b) || (pair->a == b && pair->b == a)) return pair->nblocks > 0 ? pair : NULL;
  }
  return NULL;
}

static void number(char text[16], double value) {
  snprintf(text, 16, value >= 99.95 ? "%.0f" : value >= 9.995 ? "%.1f" : "%.2f", value);
}

static void matrix_cell(const page *p, int32_t row, int32_t column, topo_metric metric) {
  const topo_measured *measured = p->measured;
  char text[16] = "-";
  if (row == column) {
    if (metric >= TOPO_SMALL && measured->ranks[row].nblocks > 0)
      number(text, metric == TOPO_SMALL ? measured->ranks[row].small : measured->ranks[row].large);
    fprintf(p->stream, "%s%5s%s", p->colour ? "\033[2m" : "", text, p->colour ? "\033[0m" : "");
    return;
  }
  const topo_measured_pair *pair = pair_at(measured, row, column);
  if (pair == NULL) {
    fprintf(p->stream, "%5s", "?");
    return;
  }
  int direction = metric >= TOPO_SMALL && pair->b == row ? 1 : 0; /* the row's CPU reads */
  if (metric == TOPO_LINE)
    snprintf(text, sizeof text, "%.0f", pair->value[metric][0]);
  else
    number(text, pair->value[metric][direction]);
  const char *colour = shade(p, pair, metric);
  fprintf(p->stream, "%s%5s%s", colour, text, colour[0] == '\0' ? "" : "\033[0m");
}

/* Writes a matrix in blocks of as many columns as fit. */
static void matrix(const page *p, const char *title, topo_metric metric) {
  const topo_measured *measured = p->measured;
  int32_t fit = ((p->columns < 40 ? 100 : p->columns) - 5) / 5;
  fprintf(p->stream, "\n%s\n", title);
  for (int32_t first = 0; first < measured->nranks; first += fit) {
    int32_t end = first + fit < measured->nranks ? first + fit : measured->nranks;
    fprintf(p->stream, "  CPU");
    for (int32_t column = first; column < end; column++) fprintf(p->stream, "%5d", measured->ranks[column].place.cpu);
    fputc('\n', p->stream);
    for (int32_t row = 0; row < measured->nranks; row++) {
      fprintf(p->stream, "%5d", measured->ranks[row].place.cpu);
      for (int32_t column = first; column < end; column++) matrix_cell(p, row, column, metric);
      fputc('\n', p->stream);
    }
  }
}

/* ---- kinds and links --------------------------------------------------------------------------------------------- */

static void kind_row(const page *p, const topo_measured_kind *kind, topo_metric metric, const char *name) {
  bool time = metric <= TOPO_TAKE;
  double scale = metric == TOPO_MESSAGE ? 1000 : 1;
  double values[3] = {kind->expected[metric] / scale, (time ? kind->least : kind->most)[metric] / scale,
                      (time ? kind->most : kind->least)[metric] / scale};
  fprintf(p->stream, "  %-42s", name);
  for (int i = 0; i < 3; i++) {
    char text[16];
    if (metric == TOPO_LINE)
      snprintf(text, sizeof text, "%.0f", values[i]);
    else
      number(text, values[i]);
    fprintf(p->stream, "%10s", text);
  }
  fputc('\n', p->stream);
}

static void kinds(const page *p) {
  for (int near = 0; near < TOPO_NEARS; near++) {
    const topo_measured_kind *kind = &p->measured->kinds[near];
    if (kind->npairs == 0) continue;
    char title[80];
    snprintf(title, sizeof title, "%s, %d pair%s", kind_titles[near], kind->npairs, kind->npairs == 1 ? "" : "s");
    fprintf(p->stream, "\n%-44s%10s%10s%10s\n", title, "median", "best", "worst");
    kind_row(p, kind, TOPO_LINE, "signal, one way                       ns");
    kind_row(p, kind, TOPO_MORE, "each further signal                   ns");
    kind_row(p, kind, TOPO_MESSAGE, "message of 16 KiB, one way            us");
    kind_row(p, kind, TOPO_SMALL, "reads 1 MiB that the peer wrote     GB/s");
    kind_row(p, kind, TOPO_LARGE, "reads 16 MiB                        GB/s");
    if (kind->beta > 0)
      fprintf(p->stream, "  of n bytes, signal to read: alpha %.0f ns + n * beta %.4f ns\n", kind->alpha, kind->beta);
    const topo_cost *planned = &p->measured->planned[near];
    if (planned->beta_ns_per_byte > 0) {
      fprintf(p->stream, "  expected by plans:          alpha %.0f ns + n * beta %.4f ns\n", planned->alpha_ns,
              planned->beta_ns_per_byte);
    }
  }
}

static void own_memory(const page *p) {
  double small[2] = {INFINITY, 0}, large[2] = {INFINITY, 0};
  int32_t count = 0;
  for (int32_t r = 0; r < p->measured->nranks; r++) {
    const topo_measured_rank *rank = &p->measured->ranks[r];
    if (rank->nblocks > 0) {
      small[0] = fmin(small[0], rank->small), small[1] = fmax(small[1], rank->small);
      large[0] = fmin(large[0], rank->large), large[1] = fmax(large[1], rank->large);
      count++;
    }
  }
  if (count == 1)
    paragraph(p, "own", "",
              tool_format("copies 1 MiB that it wrote itself at %.3g GB/s, 16 MiB at %.3g", small[0], large[0]));
  else if (count > 1)
    paragraph(p, "own", "",
              tool_format("each copies 1 MiB that it wrote itself at %.3g to %.3g GB/s, 16 MiB at %.3g to %.3g",
                          small[0], small[1], large[0], large[1]));
}

static void links(const page *p) {
  for (int32_t l = 0; l < p->measured->nlinks; l++) {
    const topo_measured_link *link = &p->measured->links[l];
    const char *heading = l == 0 ? "links" : "", *from = p->topo->nodes[link->from].name,
               *to = p->topo->nodes[link->to].name;
    char expected[60] = "nothing expected", line[40] = "";
    if (link->expected > 0)
      snprintf(expected, sizeof expected, "expected %.3g (%s)", link->expected,
               bny_topo_source_name(link->expected_source));
    if (link->line > 0) snprintf(line, sizeof line, "; signal %.0f ns", link->line);
    if (link->nblocks == 0)
      paragraph(p, heading, "",
                tool_format("%s and %s: not measured, other programs ran on their CPUs each time", from, to));
    else
      paragraph(p, heading, "",
                tool_format("%s and %s: %.3g and %.3g GB/s, %s, by %d CPU%s at once%s", from, to, link->value[0],
                            link->value[1], expected, link->nreaders, link->nreaders == 1 ? "" : "s", line));
  }
}

/* ---- findings ---------------------------------------------------------------------------------------------------- */

static void findings(const page *p) {
  const topo_measured *measured = p->measured;
  bool judged = false, few = false;
  for (int near = 0; near < TOPO_NEARS; near++) {
    judged = judged || measured->kinds[near].judged;
    few = few || (measured->kinds[near].npairs > 0 && !measured->kinds[near].judged);
  }
  const char *less = !few ? ""
                     : judged
                         ? "; where there are fewer than 3 pairs as near, they are held against what plans expect"
                         : "; with fewer than 3 pairs as near as each other they are held against what plans expect";
  if (measured->npairs > 0)
    paragraph(
        p, "rule", "",
        tool_format(
            "expected of a pair is the median of pairs as near; slow is more than %.3g times its latency or less than "
            "%.3g times its bandwidth%s",
            topo_slow_latency, topo_slow_bandwidth, less));
  int32_t warnings = 0;
  for (int32_t f = 0; f < measured->nfindings; f++) {
    const topo_measured_finding *finding = &measured->findings[f];
    warnings += finding->warning;
    if (f < FINDINGS_SHOWN)
      paragraph(p, finding->warning ? "slow" : "note", finding->warning ? "\033[1;31m" : "\033[33m", finding->text);
  }
  if (measured->nfindings > FINDINGS_SHOWN)
    paragraph(p, "", "",
              tool_format("%d more, milder ones; --format json has them all", measured->nfindings - FINDINGS_SHOWN));
  if (warnings == 0 && judged) paragraph(p, "slow", "\033[32m", "none");
}

char *topo_measured_text(const topo_measured *measured, const bny_topo *topo, bool colour, int32_t columns) {
  tool_page all;
  page p = {measured, topo, colour, columns, tool_page_begin(&all)};
  headline(&p);
  if (measured->nranks == 1) {
    paragraph(&p, "pairs", "", "one CPU alone may be used: there is nothing to measure between ranks");
  } else if (measured->nranks <= TOPO_ALL_PAIRS) {
    matrix(&p, "signal, one way, ns", TOPO_LINE);
    matrix(&p, "a row's CPU reads 1 MiB that the column's has written (diagonal: its own), GB/s", TOPO_SMALL);
    matrix(&p, "the same with 16 MiB, GB/s", TOPO_LARGE);
  }
  kinds(&p);
  fputc('\n', p.stream);
  own_memory(&p);
  links(&p);
  findings(&p);
  paragraph(&p, "GPUs", "", "pairs of GPUs are not measured: this build has no CUDA");
  return tool_page_end(&all);
}
