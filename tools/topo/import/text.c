/* SPDX-License-Identifier: Apache-2.0
 * Splits dumps into lines, words and numbers. */
#include "tools/topo/import/text.h"

#include <stdlib.h>
#include <string.h>

bny_topo_reader bny_topo_reader_of(const char *text, size_t bytes) {
  return (bny_topo_reader){.at = text, .end = text + bytes, .line = 0};
}

bool bny_topo_reader_line(bny_topo_reader *reader, bny_topo_span *line) {
  if (reader->at == reader->end) return false;
  size_t left = (size_t)(reader->end - reader->at);
  const char *end = memchr(reader->at, '\n', left);
  *line = (bny_topo_span){reader->at, end ? (size_t)(end - reader->at) : left};
  reader->at = end ? end + 1 : reader->end;
  reader->line++;
  if (line->bytes > 0 && line->text[line->bytes - 1] == '\r') line->bytes--;
  return true;
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f' || c == '\0'; }

/* Returns the length of a colour code at the start of the text: ESC [ digits and semicolons and a letter, or the same
 * without ESC ending in m. ESC may be typed as ^[. Returns 0 if there is none. */
static size_t colour_code(const char *text, size_t bytes) {
  bool typed = bytes > 1 && text[0] == '^' && text[1] == '[';
  bool escaped = typed || (bytes > 0 && text[0] == '\033');
  size_t at = typed ? 2 : escaped ? 1 : 0;
  if (at == bytes || text[at] != '[') return escaped ? 1 : 0;
  at++;
  while (at < bytes && ((text[at] >= '0' && text[at] <= '9') || text[at] == ';')) at++;
  if (at == bytes) return escaped ? at : 0;
  bool letter = (text[at] >= 'a' && text[at] <= 'z') || (text[at] >= 'A' && text[at] <= 'Z');
  if (escaped ? letter : text[at] == 'm') return at + 1;
  return escaped ? at : 0;
}

/* Returns the length of a blank, a colour code or a no-break space (U+00A0) at the start of the text; 0 for others. */
static size_t blank_length(const char *text, size_t bytes) {
  if (bytes > 1 && memcmp(text, "\xc2\xa0", 2) == 0) return 2;
  size_t code = colour_code(text, bytes);
  return code > 0 ? code : is_blank(*text);
}

bool bny_topo_span_word(bny_topo_span *rest, bny_topo_span *word) {
  const char *at = rest->text, *end = rest->text + rest->bytes;
  for (size_t blank; at < end && (blank = blank_length(at, (size_t)(end - at))) > 0;) at += blank;
  const char *start = at;
  while (at < end && blank_length(at, (size_t)(end - at)) == 0) at++;
  *rest = (bny_topo_span){at, (size_t)(end - at)};
  if (at == start) return false;
  *word = (bny_topo_span){start, (size_t)(at - start)};
  return true;
}

bool bny_topo_span_quoted(bny_topo_span *rest, bny_topo_span *quoted) {
  const char *end = rest->text + rest->bytes;
  const char *open = rest->bytes ? memchr(rest->text, '"', rest->bytes) : NULL;
  if (!open) return false;
  const char *close = memchr(open + 1, '"', (size_t)(end - open - 1));
  if (!close) return false;
  *quoted = (bny_topo_span){open + 1, (size_t)(close - open - 1)};
  *rest = (bny_topo_span){close + 1, (size_t)(end - close - 1)};
  return true;
}

bool bny_topo_span_is(bny_topo_span span, const char *text) {
  return span.bytes == strlen(text) && memcmp(span.text, text, span.bytes) == 0;
}

bool bny_topo_span_same(bny_topo_span a, bny_topo_span b) {
  return a.bytes == b.bytes && memcmp(a.text, b.text, a.bytes) == 0;
}

bool bny_topo_span_number(bny_topo_span span, int32_t most, int32_t *number) {
  int64_t value = 0;
  if (span.bytes == 0) return false;
  for (size_t i = 0; i < span.bytes; i++) {
    if (span.text[i] < '0' || span.text[i] > '9') return false;
    value = value * 10 + (span.text[i] - '0');
    if (value > most) return false;
  }
  *number = (int32_t)value;
  return true;
}

char *bny_topo_span_copy(bny_topo_span span) {
  char *copy = malloc(span.bytes + 1);
  if (!copy) return NULL;
  for (size_t i = 0; i < span.bytes; i++) copy[i] = span.text[i] >= ' ' && span.text[i] <= '~' ? span.text[i] : '?';
  copy[span.bytes] = '\0';
  return copy;
}

int bny_topo_span_shown(bny_topo_span span) { return span.bytes < 48 ? (int)span.bytes : 48; }
