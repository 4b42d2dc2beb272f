/* SPDX-License-Identifier: Apache-2.0
 * Drawing for the text views of banyan-topo: short strings, colours, names in ranges. */
#ifndef BNY_TOOLS_TOPO_DRAW_H
#define BNY_TOOLS_TOPO_DRAW_H

#include <stdio.h>

#include "tools/topo/view.h"

typedef enum topo_ink {
  TOPO_INK_PLAIN,
  TOPO_INK_DIM,
  TOPO_INK_BOLD,
  TOPO_INK_HOST,
  TOPO_INK_CPU,
  TOPO_INK_PCI,
  TOPO_INK_GPU,
  TOPO_INK_NIC,
  TOPO_INK_SWITCH,
  TOPO_INK_SPEED,
  TOPO_INK_NEAR,  /* paths over NVLinks or C2C */
  TOPO_INK_FAIR,  /* paths over PCI switches */
  TOPO_INK_FAR,   /* paths over host bridges */
  TOPO_INK_WORST, /* paths between NUMA nodes */
  TOPO_INK_WARNING,
  TOPO_INK_FAULT,
  TOPO_INKS
} topo_ink;

topo_ink topo_ink_of_kind(bny_topo_kind kind);
topo_ink topo_ink_of_path(bny_topo_path path);
topo_ink topo_ink_of_severity(bny_topo_severity severity);

/* Writes text in a colour, if the view has colours. Without UTF-8 every character beyond ASCII becomes '?'. */
void topo_put(FILE *out, const topo_view *view, topo_ink ink, const char *text);
void topo_put_blanks(FILE *out, int32_t count);

/* Writes text in lines within the view's width. The first starts after `used` columns; the others are indented as
 * far. */
void topo_put_wrapped(FILE *out, const topo_view *view, topo_ink ink, int32_t used, const char *text);

int32_t topo_width(const char *text); /* in columns */

/* Cuts a text to that many columns; dots mark the cut. */
void topo_clip(char *text, int32_t columns);

/* A string of limited length, cut between characters. An all-zero value is empty. */
typedef struct topo_string {
  char text[320];
} topo_string;

void topo_append(topo_string *string, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends "GPU0..GPU3, GPU6" in at most that many columns, then "and 3 more". */
void topo_append_names(topo_string *string, const bny_topo *topo, const int32_t *nodes, int32_t count, int32_t columns);

/* Appends the short form: "mlx5_0..3, 6". */
void topo_append_names_short(topo_string *string, const bny_topo *topo, const int32_t *nodes, int32_t count,
                             int32_t columns);

/* Returns the names without the parts that are the same in all of them, for the caller to free: "B09-P1-LEAF-02" and
 * "A09-P1-LEAF-01" become "B09…02" and "A09…01". Returns NULL without memory. */
topo_string *topo_names_shortened(const char *const *names, int32_t count);

/* Appends ascending numbers as "0-7, 16-23" or "0-56 by 8". */
void topo_append_numbers(topo_string *string, const int32_t *numbers, int32_t count, int32_t columns);

/* Appends "50 GB/s", or "~371 GB/s" if assumed; nothing if unknown. */
void topo_append_speed(topo_string *string, double gbytes_per_s, bool assumed);

/* Appends "1 GPU", "8 GPUs" or "2 NUMA nodes". */
void topo_append_count(topo_string *string, int32_t count, bny_topo_kind kind);

/* Appends the model, "NVIDIA H100 80GB HBM3", or the generation if only that is known. */
void topo_append_model(topo_string *string, const bny_topo_node *node);

/* Sets words of a level: "4 groups of 8 GPUs", "371 GB/s", "all to all", "NVL". */
void topo_level_words(const bny_topo_levels *levels, const bny_topo_level *level, topo_string words[4]);

/* Returns a level's name for people: that of packages is "NUMA node" if packages are not known. */
const char *topo_level_name(const topo_view *view, const bny_topo_level *level);

/* Writes the title of a part of the picture. */
void topo_put_heading(FILE *out, const topo_view *view, const char *text);

/* Closes a memory stream. Returns the text for the caller to free, or NULL and *error. */
char *topo_finish(FILE *out, char **text, tool_error *error);

/* Write parts of the picture, each after an empty line and a heading; nothing if a part is empty. */
void topo_put_levels(FILE *out, const topo_view *view);
void topo_put_findings(FILE *out, const topo_view *view);
void topo_put_probes(FILE *out, const topo_view *view);

#endif
