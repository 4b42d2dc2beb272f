/* SPDX-License-Identifier: Apache-2.0
 * A reader for dumps that consist of lines and words. The text is not NUL-terminated, may hold any bytes and is not
 * modified. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "topo/model/model.h"

typedef struct bny_topo_span {
  const char *text;
  size_t bytes;
} bny_topo_span;

typedef struct bny_topo_reader {
  const char *at, *end;
  int line; /* last line read, 1-based */
} bny_topo_reader;

bny_topo_reader bny_topo_reader_of(const char *text, size_t bytes);

/* Returns the next line without its end; false after the last. */
bool bny_topo_reader_line(bny_topo_reader *reader, bny_topo_span *line);

/* Removes the next word (of non-blank bytes) from *rest; returns false if there is none. No-break spaces and terminal
 * colour codes count as blanks, even if pasting has removed the escape character: "[4m", "[0m". */
bool bny_topo_span_word(bny_topo_span *rest, bny_topo_span *word);

/* Removes the text between the next two double quotes from *rest. */
bool bny_topo_span_quoted(bny_topo_span *rest, bny_topo_span *quoted);

bool bny_topo_span_is(bny_topo_span span, const char *text);
bool bny_topo_span_same(bny_topo_span a, bny_topo_span b);

/* Parses the whole span as a decimal number in [0, most]. */
bool bny_topo_span_number(bny_topo_span span, int32_t most, int32_t *number);

/* Returns a copy to free(), NULL if out of memory. Bytes that are not printable ASCII become '?'. */
char *bny_topo_span_copy(bny_topo_span span);

/* Returns the precision for "%.*s" in an error text. It is limited, so that the rest of the text fits. */
int bny_topo_span_shown(bny_topo_span span);
