/* SPDX-License-Identifier: Apache-2.0
 * Lines of a table. If the terminal is too narrow, the least important words are dropped. */
#include "tools/topo/topo.h"

topo_line *topo_lines_add(topo_lines *lines) {
  lines->lines = tool_more(lines->lines, lines->count, sizeof *lines->lines);
  return lines->lines[lines->count++] = tool_new(1, sizeof(topo_line));
}

void topo_line_say(topo_line *line, topo_line_rank rank, const char *text) {
  if (text[0] != '\0' && line->nwords < TOPO_LINE_WORDS)
    line->words[line->nwords++] = (topo_line_word){.rank = rank, .text = tool_format("%s", text)};
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

enum { GAP = 2, LEFT_MOST = 48, SHORTEST = 12 };

static int32_t left_width(const topo_line *line) {
  return topo_width(line->prefix.text) + topo_width(line->label.text) + (line->severity > TOPO_INFO ? 2 : 0);
}

/* Marks the words that fit. The least important words are dropped first, but a shortened word is preferred to none. */
static void fit(const topo_line *line, int32_t room, bool *kept) {
  int32_t wanted = 0;
  for (int32_t w = 0; w < line->nwords; w++) {
    kept[w] = true;
    wanted += topo_width(line->words[w].text) + GAP;
  }
  for (int rank = TOPO_LINE_RANKS - 1; rank >= 0; rank--) {
    for (int32_t w = line->nwords - 1; w >= 0 && wanted > room; w--) {
      int32_t width = topo_width(line->words[w].text);
      if ((int)line->words[w].rank != rank) continue;
      if (rank != TOPO_LINE_BUS && width - (wanted - room) >= SHORTEST) {
        topo_clip(line->words[w].text, width - (wanted - room));
        return;
      }
      kept[w] = false;
      wanted -= width + GAP;
    }
  }
}

static void put_line(const topo_line *line, const topo_view *view, int32_t left, int32_t speeds, FILE *out) {
  bool kept[TOPO_LINE_WORDS];
  int32_t width = left_width(line), at = width;
  topo_put(out, view, line->prefix.text);
  topo_put(out, view, line->label.text);
  if (line->severity > TOPO_INFO) {
    fputc(' ', out);
    topo_put(out, view, view->utf8 ? "▲" : "!");
  }
  if (line->speed.text[0] != '\0') {
    int32_t end = left + GAP + speeds, start = end - topo_width(line->speed.text);
    topo_put_blanks(out, start > at ? start - at : 1);
    topo_put(out, view, line->speed.text);
    at = start > at ? end : at + 1 + topo_width(line->speed.text);
  }
  int32_t start = left + GAP + (speeds > 0 ? speeds + GAP : 0);
  start = start > at + GAP ? start : at + GAP;
  fit(line, view->columns - start + GAP, kept);
  for (int32_t w = 0; w < line->nwords; w++) {
    if (kept[w]) {
      topo_put_blanks(out, start - at);
      topo_put(out, view, line->words[w].text);
      at = start + topo_width(line->words[w].text);
      start = at + GAP;
    }
  }
  fputc('\n', out);
}

void topo_lines_put(const topo_lines *lines, const topo_view *view, FILE *out) {
  int32_t left = 0, most = view->columns / 2 < LEFT_MOST ? view->columns / 2 : LEFT_MOST;
  int32_t speeds = 0;
  for (int32_t i = 0; i < lines->count; i++) {
    topo_line *line = lines->lines[i];
    int32_t room = view->columns - topo_width(line->prefix.text) - 2;
    topo_clip(line->label.text, room > SHORTEST ? room : SHORTEST);
    int32_t width = left_width(line);
    left = width > left && width <= most && line->nwords + (line->speed.text[0] != '\0') > 0 ? width : left;
    speeds = topo_width(line->speed.text) > speeds ? topo_width(line->speed.text) : speeds;
  }
  for (int32_t i = 0; i < lines->count; i++) put_line(lines->lines[i], view, left, speeds, out);
}
