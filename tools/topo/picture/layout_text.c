/* SPDX-License-Identifier: Apache-2.0
 * Texts of a picture: their widths, and shortening to fit. */
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/layout.h"

/* Widths in Helvetica and metric-compatible fonts, from the blank on, in thousandths of the size. */
static const short widths[95] = {
    278,  278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, /* blank to slash */
    556,  556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, /* 0 to question mark */
    1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778, /* @ to O */
    667,  778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, /* P to underscore */
    333,  556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, /* ` to o */
    556,  556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584};     /* p to ~ */

/* Returns the length of the first character, and its code; a stray byte is one character. */
static size_t character(const char *text, unsigned *code) {
  unsigned char first = (unsigned char)*text;
  size_t bytes = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  *code = bytes == 1 ? first : first & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; i++) {
    if (((unsigned char)text[i] & 0xc0) != 0x80) return i;
    *code = *code << 6 | ((unsigned char)text[i] & 0x3f);
  }
  return bytes;
}

static double character_width(unsigned code) {
  if (code >= ' ' && code < 127) return widths[code - ' '];
  if (code == 0xb7) return 333;                           /* middle dot */
  if (code == 0xd7) return 584;                           /* times */
  return code < 0x300 ? 750 : code < 0x1100 ? 850 : 1100; /* accented; other alphabets; ideographs and signs */
}

double topo_text_width(const char *text, double size, bool bold) {
  double sum = 0;
  for (unsigned code; *text; text += character(text, &code)) {
    character(text, &code);
    sum += character_width(code);
  }
  /* The margin allows for other fonts. */
  return sum / 1000 * size * (bold ? 1.13 : 1.05);
}

/* Returns the number of bytes from the start that fit in a width. */
static size_t bytes_within(const char *text, double size, bool bold, double width) {
  double sum = 0;
  size_t bytes = 0;
  while (text[bytes]) {
    unsigned code;
    size_t more = character(text + bytes, &code);
    sum += character_width(code) / 1000 * size * (bold ? 1.13 : 1.05);
    if (sum > width) break;
    bytes += more;
  }
  return bytes;
}

const char *topo_text_fit(topo_layout *layout, const char *text, double size, bool bold, double width) {
  if (topo_text_width(text, size, bold) <= width) return text;
  static const char ellipsis[] = "\xe2\x80\xa6";
  double left = width - topo_text_width(ellipsis, size, bold);
  if (left <= 0) return "";
  size_t bytes = bytes_within(text, size, bold, left);
  while (bytes > 0 && text[bytes - 1] == ' ') bytes--;
  return bytes == 0 ? "" : topo_layout_string(layout, "%.*s%s", (int)bytes, text, ellipsis);
}

/* Returns the start of the last bytes that fit in a width. */
static size_t bytes_from(const char *text, double size, bool bold, double width) {
  size_t from = 0;
  while (topo_text_width(text + from, size, bold) > width) {
    unsigned code;
    from += character(text + from, &code);
  }
  return from;
}

const char *topo_text_fit_name(topo_layout *layout, const char *text, double size, bool bold, double width) {
  if (topo_text_width(text, size, bold) <= width) return text;
  double left = width - topo_text_width("\xe2\x80\xa6", size, bold);
  if (left <= 0) return "";
  size_t head = bytes_within(text, size, bold, left / 2), tail = bytes_from(text, size, bold, left / 2);
  return topo_layout_string(layout, "%.*s\xe2\x80\xa6%s", (int)head, text, text + tail);
}

const char *topo_text_wrap(topo_layout *layout, const char **text, double size, double width) {
  const char *start = *text;
  while (*start == ' ') start++;
  if (!*start) return NULL;
  size_t bytes = bytes_within(start, size, false, width), cut;
  if (bytes == 0) {
    unsigned code;
    bytes = character(start, &code); /* every line takes at least one character */
  }
  cut = bytes;
  if (start[bytes] && start[bytes] != ' ') {
    while (cut > 0 && start[cut - 1] != ' ' && start[cut - 1] != '-' && start[cut - 1] != '/') cut--;
    if (cut == 0) cut = bytes;
  }
  *text = start + cut;
  while (cut > 0 && start[cut - 1] == ' ') cut--;
  return topo_layout_string(layout, "%.*s", (int)cut, start);
}
