/* SPDX-License-Identifier: Apache-2.0
 * Tests of topologies share this: dumps of real machines, which are not in this tree, and models made by hand. */
#ifndef BNY_TESTS_TOPO_TOPO_UTIL_H
#define BNY_TESTS_TOPO_TOPO_UTIL_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/model/model.h"
#include "tests/support/generator.h"

/* DIR/name of the dumps into path[4096]: BANYAN_TOPOLOGIES, or beside the tree. False if there are none. */
static inline bool dump_path(const char *name, char path[4096]) {
  const char *own = getenv("BANYAN_TOPOLOGIES"), *source = getenv("top_srcdir");
  if (own != NULL)
    snprintf(path, 4096, "%s/%s", own, name);
  else
    snprintf(path, 4096, "%s/../shared/topologies/%s", source == NULL ? "." : source, name);
  FILE *there = fopen(path, "r");
  if (there != NULL) fclose(there);
  return there != NULL;
}

/* All of a file with a NUL behind it, for the caller to free; NULL if it cannot be read. */
static inline char *read_text(const char *path, size_t *bytes) {
  FILE *file = fopen(path, "r");
  if (file == NULL) return NULL;
  char *text = malloc((size_t)1 << 20);
  *bytes = text == NULL ? 0 : fread(text, 1, ((size_t)1 << 20) - 1, file);
  fclose(file);
  if (text != NULL) text[*bytes] = '\0';
  return text;
}

/* Calls visit(path, name) for each file of a folder of dumps whose name ends like that; returns how many. */
static inline int each_dump(const char *folder, const char *end, void (*visit)(const char *path, const char *name)) {
  char path[4096], inner[512];
  int visited = 0;
  if (!dump_path(folder, path)) return 0;
  DIR *directory = opendir(path);
  for (struct dirent *entry = directory == NULL ? NULL : readdir(directory); entry != NULL;
       entry = readdir(directory)) {
    size_t length = strlen(entry->d_name), ending = strlen(end);
    if (length > ending && strcmp(entry->d_name + length - ending, end) == 0) {
      snprintf(inner, sizeof inner, "%s/%s", folder, entry->d_name);
      if (dump_path(inner, path)) {
        visit(path, entry->d_name);
        visited++;
      }
    }
  }
  if (directory != NULL) closedir(directory);
  return visited;
}

static inline int32_t put(bny_topo *topo, bny_topo_kind kind, int32_t parent, const char *name, const char *bus_id) {
  bny_topo_node node = {.kind = kind,
                        .parent = parent,
                        .index = -1,
                        .name = (char *)name,
                        .bus_id = (char *)bus_id,
                        .compute = -1,
                        .source = BNY_TOPO_ASSUMED};
  return bny_topo_add_node(topo, &node);
}

static inline int32_t join(bny_topo *topo, bny_topo_link_kind kind, int32_t from, int32_t to, double gbytes_per_s) {
  bny_topo_link link = {.kind = kind, .from = from, .to = to, .count = 1, .gbytes_per_s = gbytes_per_s};
  return bny_topo_add_link(topo, &link);
}

#endif
