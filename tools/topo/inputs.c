/* SPDX-License-Identifier: Apache-2.0
 * The list of inputs: files, folders, and standard input. */
#include "tools/topo/topo.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST = 100000 };

static bool add(topo_inputs *inputs, const char *name, tool_error *error) {
  if (inputs->count == MOST) return tool_error_set(error, "more than %d files", MOST);
  inputs->names = tool_more(inputs->names, inputs->count, sizeof *inputs->names);
  inputs->names[inputs->count++] = name;
  return true;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool add_folder(topo_inputs *inputs, const char *folder, tool_error *error) {
  int32_t first = inputs->count;
  DIR *directory = opendir(folder);
  if (directory == NULL) return tool_error_set(error, "%.300s: %s", folder, strerror(errno));
  bool good = true;
  for (struct dirent *entry; good && (entry = readdir(directory)) != NULL;) {
    struct stat about;
    if (entry->d_name[0] == '.') continue;
    const char *path = tool_format("%s%s%s", folder, folder[strlen(folder) - 1] == '/' ? "" : "/", entry->d_name);
    if (stat(path, &about) == 0 && S_ISREG(about.st_mode)) good = add(inputs, path, error);
  }
  closedir(directory);
  if (good && inputs->count == first) good = tool_error_set(error, "%.300s: a folder without files", folder);
  if (good) qsort(inputs->names + first, (size_t)(inputs->count - first), sizeof *inputs->names, by_name);
  return good;
}

bool topo_inputs_add(topo_inputs *inputs, const char *name, tool_error *error) {
  struct stat about;
  if (stat(name, &about) == 0 && S_ISDIR(about.st_mode)) return add_folder(inputs, name, error);
  return add(inputs, name, error);
}
