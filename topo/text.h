/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading dumps that are lines of words: text that is not NUL-terminated, may hold anything and is only looked at. */
#ifndef BNY_TOPO_TEXT_H
#define BNY_TOPO_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "topo/model.h"

typedef struct bny_topo_span {
  const char *text;
  size_t bytes;
} bny_topo_span;

typedef struct bny_topo_reader {
  const char *at, *end;
  int line; /* of the line that was read last, 1-based */
} bny_topo_reader;

bny_topo_reader bny_topo_reader_of(const char *text, size_t bytes);

/* The next line without its end; false after the last. */
bool bny_topo_reader_line(bny_topo_reader *reader, bny_topo_span *line);

/* Takes the next word (of bytes other than blanks) off *rest; false if there is none. Terminal colour codes count as
 * blanks, also when pasting has eaten their escape character: "[4m", "[0m". */
bool bny_topo_span_word(bny_topo_span *rest, bny_topo_span *word);

/* Takes what stands between the next two double quotes off *rest. */
bool bny_topo_span_quoted(bny_topo_span *rest, bny_topo_span *quoted);

bool bny_topo_span_is(bny_topo_span span, const char *text);
bool bny_topo_span_starts(bny_topo_span span, const char *text);
bool bny_topo_span_same(bny_topo_span a, bny_topo_span b);

/* All of span as a decimal number in [0, most]. */
bool bny_topo_span_number(bny_topo_span span, int32_t most, int32_t *number);

/* A copy as a string, NULL without memory. Bytes that are not printable ASCII become '?'. */
char *bny_topo_span_copy(bny_topo_span span);

/* For "%.*s" in the text of an error: no more than what leaves room for the rest. */
int bny_topo_span_shown(bny_topo_span span);

#endif
