/* SPDX-License-Identifier: Apache-2.0
 * Reads small files and directories of sysfs and procfs for the probes. */
#include "topo/probe/util.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_NAMES = 65536 };

/* ---- files ------------------------------------------------------------------------------------------------------- */

static bool word_path(char path[BNY_TOPO_PROBE_PATH], const char *format, va_list arguments) {
  int length = vsnprintf(path, BNY_TOPO_PROBE_PATH, format, arguments);
  return length > 0 && length < BNY_TOPO_PROBE_PATH;
}

int64_t bny_topo_probe_number(int64_t least, int64_t most, int64_t otherwise, const char *format, ...) {
  char path[BNY_TOPO_PROBE_PATH], text[32], *end;
  va_list arguments;
  va_start(arguments, format);
  bool worded = word_path(path, format, arguments);
  va_end(arguments);
  if (!worded || !bny_sysfs_line(text, sizeof text, "%s", path) || text[0] == '\0') return otherwise;
  bool hexadecimal = strncmp(text, "0x", 2) == 0;
  errno = 0;
  long long number = strtoll(text, &end, hexadecimal ? 16 : 10);
  return *end != '\0' || errno != 0 || number < least || number > most ? otherwise : number;
}

bool bny_topo_probe_exists(const char *format, ...) {
  char path[BNY_TOPO_PROBE_PATH];
  va_list arguments;
  va_start(arguments, format);
  bool worded = word_path(path, format, arguments);
  va_end(arguments);
  return worded && access(path, F_OK) == 0;
}

static int by_length(const void *a, const void *b) {
  size_t left = strlen(a), right = strlen(b);
  return left != right ? (left > right) - (left < right) : strcmp(a, b);
}

bny_topo_probe_list bny_topo_probe_names(const char *format, ...) {
  bny_topo_probe_list list = {0};
  int32_t capacity = 0;
  char path[BNY_TOPO_PROBE_PATH];
  va_list arguments;
  va_start(arguments, format);
  bool worded = word_path(path, format, arguments);
  va_end(arguments);
  DIR *directory = worded ? opendir(path) : NULL;
  if (directory == NULL) return list;
  struct dirent *entry;
  while (list.count < MOST_NAMES && (entry = readdir(directory)) != NULL) {
    size_t length = strlen(entry->d_name);
    if (entry->d_name[0] == '.' || length >= BNY_TOPO_PROBE_NAME) continue;
    if (!bny_topo_grow(&list.names, list.count, &capacity, sizeof *list.names)) break; /* the list so far is kept */
    memcpy(list.names[list.count++], entry->d_name, length + 1);
  }
  closedir(directory);
  if (list.count > 0) qsort(list.names, (size_t)list.count, sizeof *list.names, by_length);
  return list;
}

bool bny_topo_probe_bus_of(char bus_id[BNY_TOPO_BUS_BYTES], const char *format, ...) {
  char path[BNY_TOPO_PROBE_PATH], normal[BNY_TOPO_BUS_BYTES];
  bool found = false;
  va_list arguments;
  va_start(arguments, format);
  bool worded = word_path(path, format, arguments);
  va_end(arguments);
  char *real = worded ? realpath(path, NULL) : NULL, *rest = real;
  for (char *part = strsep(&rest, "/"); part != NULL; part = strsep(&rest, "/")) {
    /* Only a bus id has two colons and a dot in such a path. */
    if (strchr(part, ':') != NULL && bny_topo_bus_normalise(part, normal)) {
      memcpy(bus_id, normal, sizeof normal);
      found = true;
    }
  }
  free(real);
  return found;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

int32_t bny_topo_probe_host(bny_topo *topo, const char *name) {
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (topo->nodes[n].kind == BNY_TOPO_HOST) return n;
  bny_topo_node host =
      bny_topo_node_of(BNY_TOPO_HOST, -1, 0, name == NULL || *name == '\0' ? "host0" : name, BNY_TOPO_PROBED);
  return bny_topo_add_node(topo, &host);
}

int32_t bny_topo_probe_upwards(bny_topo *topo, int32_t node, bny_topo_link_kind kind) {
  int32_t up = bny_topo_link_up(topo, node, kind);
  return up >= 0 ? up : bny_topo_join(topo, kind, node, topo->nodes[node].parent, 0, 0, BNY_TOPO_PROBED);
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

void bny_topo_probe_say(bny_topo_probe_report *report, bny_topo_outcome outcome, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  report->outcome = outcome;
  vsnprintf(report->text, sizeof report->text, format, arguments);
  va_end(arguments);
}

void bny_topo_probe_more(bny_topo_probe_report *report, const char *format, ...) {
  size_t used = strlen(report->text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(report->text + used, sizeof report->text - used, format, arguments);
  va_end(arguments);
}

void bny_topo_probe_count(bny_topo_probe_report *report, int32_t count, const char *one, const char *many) {
  const char *comma = report->text[0] != '\0' ? ", " : "";
  if (count == 0)
    bny_topo_probe_more(report, "%sno %s", comma, one);
  else
    bny_topo_probe_more(report, "%s%d %s", comma, (int)count, count == 1 ? one : many);
}
