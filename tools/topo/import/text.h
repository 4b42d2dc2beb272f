/* SPDX-License-Identifier: Apache-2.0
 * A reader for files that consist of lines and words. It works in a copy, so that each line and word is a string. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bny_topo_lines {
  char *copy, *rest; /* the caller frees `copy` */
  int line;          /* last line read, 1-based */
} bny_topo_lines;

/* Copies a text of any bytes, of which NUL counts as a blank. `copy` is NULL if out of memory. */
bny_topo_lines bny_topo_lines_of(const char *text, size_t bytes);

/* Returns the next line without its end; NULL after the last. */
char *bny_topo_lines_next(bny_topo_lines *lines);

/* Remove from *rest the next word, or the text between the next two double quotes. Return NULL if there is none. */
char *bny_topo_word(char **rest);
char *bny_topo_quoted(char **rest);

/* Reads a decimal number in [0, most] that is the whole text. */
bool bny_topo_number(const char *text, int32_t most, int32_t *number);
