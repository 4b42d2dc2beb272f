/* SPDX-License-Identifier: Apache-2.0
 * Splits a one-line description into items, such as gpu:8@sm90. */
#include "tools/topo/import/synthetic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_MAX = 65536 };

/* Attributes that an item may have. */
enum { LINKS = 1, SPEED = 2, PORTS = 4, COMPUTE = 8, PCI = 16, RAILS = 32, C2C = 64 };

static const struct {
  const char *name;
  bny_topo_item_kind kind;
  int attributes;
} names[] = {
    {"spine", BNY_TOPO_ITEM_SPINE, SPEED},
    {"leaf", BNY_TOPO_ITEM_LEAF, SPEED | RAILS},
    {"fabric", BNY_TOPO_ITEM_LEAF, SPEED | RAILS},
    {"nvswitch", BNY_TOPO_ITEM_NVSWITCH, LINKS | SPEED},
    {"nvlink", BNY_TOPO_ITEM_NVLINK, LINKS | SPEED},
    {"xgmi", BNY_TOPO_ITEM_XGMI, LINKS | SPEED},
    {"host", BNY_TOPO_ITEM_HOST, 0},
    {"package", BNY_TOPO_ITEM_PACKAGE, 0},
    {"numa", BNY_TOPO_ITEM_NUMA, 0},
    {"bridge", BNY_TOPO_ITEM_BRIDGE, 0},
    {"pci", BNY_TOPO_ITEM_PCI, PCI},
    {"gpu", BNY_TOPO_ITEM_GPU, COMPUTE | PCI | C2C},
    {"nic", BNY_TOPO_ITEM_NIC, SPEED | PORTS | PCI},
};

enum { NAMES = sizeof names / sizeof names[0] };

const char *bny_topo_item_name(bny_topo_item_kind kind) {
  for (int i = 0; i < NAMES; i++)
    if (names[i].kind == kind) return names[i].name;
  return "";
}

/* Removes a number of at most nine digits from *rest. */
static bool digits_take(bny_topo_span *rest, int32_t most, int32_t *number) {
  size_t length = 0;
  while (length < rest->bytes && length < 9 && rest->text[length] >= '0' && rest->text[length] <= '9') length++;
  if (!bny_topo_span_number((bny_topo_span){rest->text, length}, most, number)) return false;
  *rest = (bny_topo_span){rest->text + length, rest->bytes - length};
  return true;
}

/* Reads "400g" or "46.5GB". */
static bool speed_read(bny_topo_span span, double *gbytes_per_s) {
  int32_t whole, fraction = 0;
  double scale = 1;
  if (!digits_take(&span, 999999, &whole)) return false;
  if (span.bytes > 0 && span.text[0] == '.') {
    bny_topo_span start = {span.text + 1, span.bytes - 1}, rest = start;
    if (!digits_take(&rest, 999999, &fraction)) return false;
    for (size_t i = 0; i < start.bytes - rest.bytes; i++) scale *= 10;
    span = rest;
  }
  double value = whole + fraction / scale;
  if (bny_topo_span_is(span, "g"))
    *gbytes_per_s = value / 8;
  else if (bny_topo_span_is(span, "GB"))
    *gbytes_per_s = value;
  else
    return false;
  return value > 0;
}

static bny_topo_span after(bny_topo_span span, size_t bytes) {
  return (bny_topo_span){span.text + bytes, span.bytes - bytes};
}

static bool pci_read(bny_topo_span span, bny_topo_item *item) {
  bny_topo_span rest = after(span, 3);
  if (!digits_take(&rest, 7, &item->pci_generation) || item->pci_generation < 1 || rest.bytes == 0 ||
      rest.text[0] != 'x')
    return false;
  rest = after(rest, 1);
  return bny_topo_span_number(rest, 32, &item->pci_lanes) && item->pci_lanes > 0;
}

/* Reads one attribute. Returns its kind, or 0 if it is not an attribute. */
static int attribute_read(bny_topo_span span, bny_topo_item *item) {
  if (bny_topo_span_is(span, "rails")) {
    item->rails = true;
    return RAILS;
  }
  if (bny_topo_span_starts(span, "c2c")) {
    item->c2c = true;
    return span.bytes == 3 || speed_read(after(span, 3), &item->speed_gbytes_per_s) ? C2C : 0;
  }
  if (bny_topo_span_starts(span, "gen")) return pci_read(span, item) ? PCI : 0;
  if (bny_topo_span_is(span, "gfx90a")) {
    item->compute = 910;
    return COMPUTE;
  }
  if (bny_topo_span_starts(span, "sm") || bny_topo_span_starts(span, "gfx"))
    return bny_topo_span_number(after(span, span.text[0] == 's' ? 2 : 3), 9999, &item->compute) ? COMPUTE : 0;
  if (bny_topo_span_number(span, 1000, &item->links)) return item->links > 0 ? LINKS : 0;
  if (speed_read(span, &item->speed_gbytes_per_s)) return SPEED;
  bny_topo_span rest = span;
  if (digits_take(&rest, 16, &item->ports) && item->ports > 0 && rest.bytes > 0 && rest.text[0] == 'x' &&
      speed_read(after(rest, 1), &item->speed_gbytes_per_s))
    return PORTS;
  return 0;
}

static bool name_is(bny_topo_span word, int *which) {
  for (*which = 0; *which < NAMES; ++*which)
    if (bny_topo_span_is(word, names[*which].name)) return true;
  return false;
}

/* Removes the part before the next ':' or '@' from *rest, which then starts with that separator. */
static bny_topo_span part_take(bny_topo_span *rest) {
  size_t length = 0;
  while (length < rest->bytes && rest->text[length] != ':' && rest->text[length] != '@') length++;
  bny_topo_span part = {rest->text, length};
  *rest = after(*rest, length);
  return part;
}

/* Lists the attributes that an item accepts: "sm90 or gfx942, gen5x16, c2c". */
static void attributes_name(int allowed, char text[128]) {
  static const struct {
    int what;
    const char *words;
  } takes[] = {{LINKS, "a number of links"},
               {SPEED, "a speed such as 400g or 50GB"},
               {PORTS, "2x200g"},
               {COMPUTE, "sm90 or gfx942"},
               {PCI, "gen5x16"},
               {C2C, "c2c"},
               {RAILS, "rails"}};
  size_t used = (size_t)snprintf(text, 128, "%s", allowed ? "" : "nothing");
  for (size_t i = 0; i < sizeof takes / sizeof takes[0]; i++)
    if (allowed & takes[i].what)
      used += (size_t)snprintf(text + used, 128 - used, "%s%s", used > 0 ? ", " : "", takes[i].words);
}

static bool item_read(bny_topo_span word, int line, bny_topo_item *item, bny_topo_error *error) {
  bny_topo_span rest = word, name = part_take(&rest);
  int which;
  if (!name_is(name, &which))
    return bny_topo_fail(error, line,
                         "\"%.*s\" is not a kind of item: spine, leaf, host, nvswitch, nvlink, xgmi, "
                         "package, numa, bridge, pci, gpu and nic are",
                         bny_topo_span_shown(name), name.text);
  *item = (bny_topo_item){.kind = names[which].kind, .count = 1, .ports = 1, .compute = -1, .line = line};
  bool counted = false;
  int said = 0;
  while (rest.bytes > 0) {
    char separator = rest.text[0];
    rest = after(rest, 1);
    bny_topo_span part = part_take(&rest);
    if (separator == ':') {
      if (counted || said || !bny_topo_span_number(part, COUNT_MAX, &item->count) || item->count < 1)
        return bny_topo_fail(error, line, "\"%.*s\": one count of 1 to %d follows the name", bny_topo_span_shown(word),
                             word.text, COUNT_MAX);
      counted = true;
      continue;
    }
    int what = attribute_read(part, item);
    int allowed = names[which].attributes;
    bool speed_twice = (what & (SPEED | PORTS)) && (said & (SPEED | PORTS));
    if (what == 0 || !(what & allowed) || (what & said) || speed_twice) {
      char takes[128];
      attributes_name(allowed, takes);
      return bny_topo_fail(error, line, "\"%.*s\": %s cannot be said of %s, which takes %s", bny_topo_span_shown(word),
                           word.text, what & said || speed_twice ? "two of this kind" : "this", names[which].name,
                           takes);
    }
    said |= what;
  }
  return true;
}

/* Checks that containers are in the order of their kinds, except nested PCI switches, and that devices are inside a
 * host. */
static bool order_check(const bny_topo_item *items, int count, bny_topo_error *error) {
  const bny_topo_item *outer = NULL;
  bool joined = false, in_host = false;
  for (int i = 0; i < count; i++) {
    const bny_topo_item *item = &items[i];
    in_host = in_host || item->kind == BNY_TOPO_ITEM_HOST;
    if (bny_topo_item_is_joint(item)) {
      if (joined)
        return bny_topo_fail(error, item->line, "GPUs are joined twice: by %s as well", bny_topo_item_name(item->kind));
      joined = true;
    } else if (bny_topo_item_is_device(item)) {
      if (!in_host) return bny_topo_fail(error, item->line, "%s outside of a host", bny_topo_item_name(item->kind));
    } else {
      bool nests = item->kind == BNY_TOPO_ITEM_PCI && outer && outer->kind == BNY_TOPO_ITEM_PCI;
      if (outer && outer->kind >= item->kind && !nests)
        return bny_topo_fail(error, item->line, "%s inside of %s", bny_topo_item_name(item->kind),
                             bny_topo_item_name(outer->kind));
      outer = item;
    }
  }
  return true;
}

/* If the text has no host, inserts one directly inside the fabric containers. */
static bool host_put_in(bny_topo_item *items, int *count, bny_topo_error *error) {
  int place = 0;
  for (int i = 0; i < *count; i++)
    if (items[i].kind == BNY_TOPO_ITEM_HOST) return true;
  while (place < *count && items[place].kind <= BNY_TOPO_ITEM_LEAF) place++;
  if (*count == BNY_TOPO_ITEMS_MAX)
    return bny_topo_fail(error, items[0].line, "more than %d items", BNY_TOPO_ITEMS_MAX - 1);
  memmove(&items[place + 1], &items[place], (size_t)(*count - place) * sizeof *items);
  items[place] =
      (bny_topo_item){.kind = BNY_TOPO_ITEM_HOST, .count = 1, .compute = -1, .ports = 1, .line = items[0].line};
  ++*count;
  return true;
}

bool bny_topo_items_parse(const char *text, size_t bytes, bny_topo_item items[BNY_TOPO_ITEMS_MAX], int *count,
                          bny_topo_error *error) {
  bny_topo_reader reader = bny_topo_reader_of(text, bytes);
  bny_topo_span line, word;
  *count = 0;
  while (bny_topo_reader_line(&reader, &line)) {
    bool first = true;
    while (bny_topo_span_word(&line, &word)) {
      if (first && word.text[0] == '#') break;
      first = false;
      if (*count == BNY_TOPO_ITEMS_MAX)
        return bny_topo_fail(error, reader.line, "more than %d items", BNY_TOPO_ITEMS_MAX);
      if (*count > 0 && items[0].line != reader.line)
        return bny_topo_fail(error, reader.line, "a second line: a description is on one, which is line %d",
                             items[0].line);
      if (!item_read(word, reader.line, &items[*count], error)) return false;
      ++*count;
    }
  }
  if (*count == 0) return bny_topo_fail(error, 0, "no item in it");
  return host_put_in(items, count, error) && order_check(items, *count, error);
}

bool bny_topo_is_synthetic(const char *text, size_t bytes) {
  bny_topo_reader reader = bny_topo_reader_of(text, bytes);
  bny_topo_span line, word;
  while (bny_topo_reader_line(&reader, &line)) {
    int which;
    if (!bny_topo_span_word(&line, &word) || word.text[0] == '#') continue;
    bny_topo_span rest = word;
    return name_is(part_take(&rest), &which);
  }
  return false;
}
