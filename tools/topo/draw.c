/* SPDX-License-Identifier: Apache-2.0
 * Writes text within a width, in ASCII where a terminal has no more. */
#include "tools/topo/topo.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- output ------------------------------------------------------------------------------------------------------ */

/* Returns the end of the character that starts here. */
static const char *after_character(const char *at) {
  do {
    at++;
  } while (((unsigned char)*at & 0xc0) == 0x80);
  return at;
}

static void put_bytes(FILE *out, const topo_view *view, const char *text, size_t bytes) {
  for (const char *at = text; at < text + bytes; at = after_character(at))
    if (view->utf8 || (unsigned char)*at < 0x80)
      fwrite(at, 1, (size_t)(after_character(at) - at), out);
    else
      fputc('?', out);
}

void topo_put(FILE *out, const topo_view *view, const char *text) { put_bytes(out, view, text, strlen(text)); }

void topo_put_blanks(FILE *out, int32_t count) {
  if (count > 0) fprintf(out, "%*s", (int)count, "");
}

void topo_put_wrapped(FILE *out, const topo_view *view, int32_t used, const char *text) {
  int32_t room = view->columns - used < 20 ? 20 : view->columns - used;
  while (*text != '\0') {
    const char *end = text, *blank = NULL;
    int32_t width = 0;
    for (; *end != '\0' && width < room; width++) {
      end = after_character(end);
      blank = *end == ' ' || *end == '\0' ? end : blank;
    }
    end = *end == '\0' || blank == NULL ? end : blank;
    put_bytes(out, view, text, (size_t)(end - text));
    fputc('\n', out);
    text = end + strspn(end, " ");
    topo_put_blanks(out, *text == '\0' ? 0 : used);
  }
}

void topo_put_heading(FILE *out, const topo_view *view, const char *text) {
  fputc('\n', out);
  topo_put(out, view, text);
  fputc('\n', out);
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

int32_t topo_width(const char *text) {
  int32_t width = 0;
  for (; *text != '\0'; text = after_character(text)) width++;
  return width;
}

void topo_clip(char *text, int32_t columns) {
  if (topo_width(text) <= columns) return;
  char *end = text;
  for (int32_t kept = 0; kept < columns - 2; kept++) end = (char *)after_character(end);
  while (end > text && end[-1] == ' ') end--;
  for (int32_t dot = 0; dot < 2 && dot < columns; dot++) /* the removed part is longer than the dots */
    *end++ = '.';
  *end = '\0';
}

/* Replaces an incomplete character, which a byte limit may have left, by '?'. Strings of a model are UTF-8. */
static void mend(char *text) {
  for (unsigned char *at = (unsigned char *)text; *at != '\0'; at++) {
    int wanted = *at >= 0xf0 ? 3 : *at >= 0xe0 ? 2 : *at >= 0xc0 ? 1 : 0, found = 0;
    while (found < wanted && (at[1 + found] & 0xc0) == 0x80) found++;
    if (found < wanted || (*at & 0xc0) == 0x80) {
      *at = '?';
      memmove(at + 1, at + 1 + found, strlen((char *)at + 1 + found) + 1);
    } else {
      at += wanted;
    }
  }
}

void topo_append(topo_string *string, const char *format, ...) {
  size_t used = strlen(string->text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(string->text + used, sizeof string->text - used, format, arguments);
  va_end(arguments);
  mend(string->text + used);
}

/* ---- names in ranges --------------------------------------------------------------------------------------------- */

/* Returns the number at the end of a name, and sets *start to its position; -1 if there is none. */
static int64_t number_at_end(const char *name, size_t *start) {
  size_t length = strlen(name), at = length;
  while (at > 0 && isdigit((unsigned char)name[at - 1])) at--;
  *start = at;
  bool counts = at < length && length - at <= 9 && (name[at] != '0' || length - at == 1);
  return counts ? strtoll(name + at, NULL, 10) : -1;
}

static bool follows(const char *before, const char *name) {
  size_t start, start_before;
  int64_t number = number_at_end(name, &start), number_before = number_at_end(before, &start_before);
  return number > 0 && number_before >= 0 && number == number_before + 1 && start == start_before &&
         memcmp(name, before, start) == 0;
}

/* Appends one of several pieces. Returns false if it does not fit together with the count of omitted pieces. */
static bool append_piece(topo_string *string, const char *start, const char *piece, int32_t left, int32_t columns) {
  bool first = string->text + strlen(string->text) == start;
  int32_t reserve = left > 0 ? (int32_t)sizeof " and 1000 more" - 1 : 0;
  if (!first && topo_width(start) + topo_width(piece) + 2 + reserve > columns) return false;
  topo_append(string, "%s%s", first ? "" : ", ", piece);
  return true;
}

void topo_append_names(topo_string *string, const bny_topo *topo, const int32_t *nodes, int32_t count, int32_t columns,
                       bool in_short) {
  char *start = string->text + strlen(string->text);
  for (int32_t i = 0, next; i < count; i = next) {
    const char *first = topo->nodes[nodes[i]].name, *last = first;
    for (next = i + 1; next < count && follows(last, topo->nodes[nodes[next]].name); next++)
      last = topo->nodes[nodes[next]].name;
    if (next - i == 2) { /* "GPU0, GPU1" reads better than a range */
      last = first;
      next = i + 1;
    }
    topo_string piece = {.text = ""};
    size_t number = 0, start_before = 0;
    number_at_end(first, &number);
    /* "mlx5_4, 6, 7": only the number, if the previous name differs only in it */
    bool same = in_short && i > 0 && number_at_end(topo->nodes[nodes[i - 1]].name, &start_before) >= 0 &&
                number == start_before && memcmp(first, topo->nodes[nodes[i - 1]].name, number) == 0;
    topo_append(&piece, "%.80s", same ? first + number : first);
    if (last != first) {
      number_at_end(last, &number);
      topo_append(&piece, "..%.80s", in_short ? last + number : last);
    }
    if (!append_piece(string, start, piece.text, count - next, columns)) {
      topo_append(string, " and %d more", (int)(count - i));
      return;
    }
  }
}

void topo_append_numbers(topo_string *string, const int32_t *numbers, int32_t count, int32_t columns) {
  char *start = string->text + strlen(string->text);
  for (int32_t i = 0, next; i < count; i = next) {
    int32_t step = i + 1 < count ? numbers[i + 1] - numbers[i] : 1;
    for (next = i + 1; next < count && numbers[next] == numbers[next - 1] + step; next++) {
    }
    next = step > 1 && next - i < 3 ? i + 1 : next;
    topo_string piece = {.text = ""};
    topo_append(&piece, next - i == 1 ? "%d" : "%d-%d", (int)numbers[i], (int)numbers[next - 1]);
    if (next - i > 1 && step > 1) topo_append(&piece, " by %d", (int)step);
    if (!append_piece(string, start, piece.text, count - next, columns)) {
      topo_append(string, " and %d more", (int)(count - i));
      return;
    }
  }
}

const char *topo_speed(double gbytes_per_s, bool assumed) {
  if (gbytes_per_s <= 0) return "";
  return tool_format(gbytes_per_s >= 1000 ? "%s%.0f GB/s" : "%s%.3g GB/s", assumed ? "~" : "", gbytes_per_s);
}

const char *topo_count(int32_t count, bny_topo_kind kind) {
  static const char *const words[BNY_TOPO_KINDS][2] = {[BNY_TOPO_HOST] = {"host", "hosts"},
                                                       [BNY_TOPO_PACKAGE] = {"CPU package", "CPU packages"},
                                                       [BNY_TOPO_NUMA] = {"NUMA node", "NUMA nodes"},
                                                       [BNY_TOPO_PCI] = {"PCI switch", "PCI switches"},
                                                       [BNY_TOPO_GPU] = {"GPU", "GPUs"},
                                                       [BNY_TOPO_NIC] = {"NIC", "NICs"},
                                                       [BNY_TOPO_PORT] = {"port", "ports"},
                                                       [BNY_TOPO_SWITCH] = {"switch", "switches"}};
  return tool_format("%d %s", (int)count, words[kind][count != 1]);
}

const char *topo_model(const bny_topo_node *node) {
  if (node->model != NULL && strncmp(node->model, "0x", 2) != 0) {
    topo_string text = {.text = ""};
    if (node->vendor != NULL && node->kind == BNY_TOPO_NUMA) topo_append(&text, "%.60s ", node->vendor);
    topo_append(&text, "%.120s", node->model);
    return tool_format("%s", text.text);
  }
  if (node->compute == 910) return "AMD gfx90a";
  return node->compute < 0 ? "" : tool_format(node->compute >= 300 ? "AMD gfx%d" : "NVIDIA sm_%d", (int)node->compute);
}
