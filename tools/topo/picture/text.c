/* SPDX-License-Identifier: Apache-2.0
 * Widths of texts in a picture, and shortening of texts to fit. */
#include <string.h>

#include "tools/topo/picture/work.h"

#define ELLIPSIS "\xe2\x80\xa6"

/* Widths of plain and bold characters from the blank on, in thousandths of the font size. They are those of DejaVu
 * Sans, the widest of the common fonts, so a text fits its box in every common font. */
static const short widths[2][95] = {
    {317, 400, 459, 837, 636, 950, 779, 274, 390, 390, 500, 837, 317, 360,  317, 336, 636, 636, 636,
     636, 636, 636, 636, 636, 636, 636, 336, 336, 837, 837, 837, 530, 1000, 684, 686, 698, 770, 631,
     575, 774, 751, 294, 560, 655, 557, 862, 748, 787, 603, 787, 694, 634,  610, 731, 684, 988, 685,
     610, 685, 390, 336, 390, 837, 500, 500, 612, 634, 549, 634, 615, 352,  634, 633, 277, 277, 579,
     277, 974, 633, 611, 634, 634, 411, 520, 392, 633, 591, 817, 591, 591,  524, 636, 336, 636, 837},
    {348, 456,  520, 837, 695, 1001, 872, 306, 457, 457, 522, 837, 379, 415,  379, 365, 695, 695,  695,
     695, 695,  695, 695, 695, 695,  695, 399, 399, 837, 837, 837, 580, 1000, 773, 762, 733, 830,  683,
     683, 820,  836, 372, 560, 774,  637, 995, 836, 850, 732, 850, 770, 720,  682, 812, 773, 1103, 770,
     724, 725,  457, 365, 457, 837,  500, 500, 674, 715, 592, 715, 678, 435,  715, 711, 342, 342,  665,
     342, 1041, 711, 687, 715, 715,  493, 595, 478, 711, 651, 923, 645, 651,  582, 711, 365, 711,  837}};

/* Returns the length of the first character and sets its width. An invalid byte counts as one character. */
static size_t character(const char *text, bool bold, double *width) {
  unsigned char first = (unsigned char)*text;
  size_t bytes = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  unsigned code = bytes == 1 ? first : first & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; i++) {
    if (((unsigned char)text[i] & 0xc0) != 0x80) {
      bytes = i;
      break;
    }
    code = code << 6 | ((unsigned char)text[i] & 0x3f);
  }
  *width = code >= ' ' && code < 127 ? widths[bold][code - ' ']
           : code == 0xb7            ? 380 /* middle dot */
           : code < 0x300            ? 850
           : code < 0x1100           ? 900
                                     : 1100; /* ideographs and signs */
  return bytes;
}

double topo_text_width(const char *text, double size, bool bold) {
  double sum = 0, width;
  while (*text) {
    text += character(text, bold, &width);
    sum += width;
  }
  return sum / 1000 * size;
}

/* Returns the number of bytes from the start that fit in a width. */
static size_t bytes_within(const char *text, double size, bool bold, double room) {
  double sum = 0, width;
  size_t bytes = 0;
  while (text[bytes]) {
    size_t more = character(text + bytes, bold, &width);
    sum += width / 1000 * size;
    if (sum > room) break;
    bytes += more;
  }
  return bytes;
}

const char *topo_text_fit(const char *text, double size, bool bold, double width) {
  if (topo_text_width(text, size, bold) <= width) return text;
  double left = width - topo_text_width(ELLIPSIS, size, bold);
  if (left <= 0) return "";
  size_t bytes = bytes_within(text, size, bold, left);
  while (bytes > 0 && text[bytes - 1] == ' ') bytes--;
  return bytes == 0 ? "" : tool_format("%.*s" ELLIPSIS, (int)bytes, text);
}

/* Cuts the middle out of a name, because names mostly differ at their ends. */
static const char *fit_middle(const char *text, double size, bool bold, double width) {
  if (topo_text_width(text, size, bold) <= width) return text;
  double left = width - topo_text_width(ELLIPSIS, size, bold), ignored;
  if (left <= 0) return "";
  size_t head = bytes_within(text, size, bold, left / 2), from = 0;
  while (topo_text_width(text + from, size, bold) > left / 2) from += character(text + from, bold, &ignored);
  return tool_format("%.*s" ELLIPSIS "%s", (int)head, text, text + from);
}

void topo_text_fit_names(const char **names, int32_t count, double size, bool bold, double width) {
  bool fits = true;
  for (int32_t i = 0; i < count; i++) fits = fits && topo_text_width(names[i], size, bold) <= width;
  if (fits) return;
  const char **whole = tool_new((size_t)count, sizeof *whole);
  memcpy(whole, names, (size_t)count * sizeof *whole);
  topo_string *parts = topo_names_shortened(names, count);
  for (int32_t i = 0; i < count; i++) {
    const char *own = tool_format("%s", parts[i].text);
    names[i] = fit_middle(own, size, bold, width);
    /* A number in front distinguishes a name from an earlier name that looks the same after shortening. */
    for (int32_t j = 0; j < i; j++) {
      if (strcmp(names[j], names[i]) != 0 || strcmp(whole[j], whole[i]) == 0) continue;
      names[i] = fit_middle(tool_format("%d" ELLIPSIS "%s", i, own), size, bold, width);
      break;
    }
  }
}

const char *topo_text_wrap(const char **text, double size, double width) {
  const char *start = *text;
  while (*start == ' ') start++;
  if (!*start) return NULL;
  double ignored;
  size_t bytes = bytes_within(start, size, false, width);
  if (bytes == 0) bytes = character(start, false, &ignored); /* every line takes at least one character */
  size_t cut = bytes;
  if (start[bytes] && start[bytes] != ' ') {
    while (cut > 0 && start[cut - 1] != ' ' && start[cut - 1] != '-' && start[cut - 1] != '/') cut--;
    if (cut == 0) cut = bytes;
  }
  *text = start + cut;
  while (cut > 0 && start[cut - 1] == ' ') cut--;
  return tool_format("%.*s", (int)cut, start);
}
