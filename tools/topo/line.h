/* SPDX-License-Identifier: Apache-2.0
 * Lines of the tree: a name with its branch, a speed, and further words if they fit. All lines are collected before the
 * first is written, so that columns align. */
#ifndef BNY_TOOLS_TOPO_LINE_H
#define BNY_TOOLS_TOPO_LINE_H

#include "tools/topo/draw.h"
#include "tools/topo/fold.h"

/* Topics of words, most important first; the last are dropped first. */
typedef enum topo_line_rank {
  TOPO_LINE_LINKS,
  TOPO_LINE_SERVICE,
  TOPO_LINE_MODEL,
  TOPO_LINE_BUS,
  TOPO_LINE_RANKS
} topo_line_rank;

enum { TOPO_LINE_WORDS = 8 };

typedef struct topo_line_word {
  topo_ink ink;
  topo_line_rank rank;
  char *text;
} topo_line_word;

typedef struct topo_line {
  topo_string prefix, label, speed;
  topo_ink ink, speed_ink; /* colours of label and speed */
  int severity;            /* sets a mark after the label; BNY_TOPO_INFO: none */
  topo_line_word words[TOPO_LINE_WORDS];
  int32_t nwords;
} topo_line;

typedef struct topo_lines {
  topo_line **lines;
  int32_t count, capacity;
  bool out_of_memory;
} topo_lines;

/* Adds an empty line, which is a gap. Returns NULL without memory. */
topo_line *topo_lines_add(topo_lines *lines);
void topo_lines_put(const topo_lines *lines, const topo_view *view, FILE *out);
void topo_lines_free(topo_lines *lines);

/* Adds a word; empty text is ignored. */
void topo_line_say(topo_line *line, topo_ink ink, topo_line_rank rank, const char *text);

/* Draws what is above hosts (network.c): network switches by tier, and switches of NVLink domains. */
bool topo_network_draw(const topo_fold *fold, const topo_view *view, topo_lines *lines, tool_error *error);

/* Writes the paths between the devices of a host (matrix.c). */
void topo_put_matrix(FILE *out, const topo_view *view, const topo_fold *fold, int32_t host);

#endif
