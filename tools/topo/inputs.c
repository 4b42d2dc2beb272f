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

static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static bool add_folder(topo_inputs *inputs, const char *folder, tool_error *error) {
  struct dirent **entries;
  int32_t first = inputs->count, count = scandir(folder, &entries, is_visible, alphasort);
  if (count < 0) return tool_error_set(error, "%.300s: %s", folder, strerror(errno));
  bool good = true;
  for (int32_t i = 0; i < count; i++) {
    struct stat about;
    const char *slash = folder[strlen(folder) - 1] == '/' ? "" : "/";
    const char *path = tool_format("%s%s%s", folder, slash, entries[i]->d_name);
    if (good && stat(path, &about) == 0 && S_ISREG(about.st_mode)) good = add(inputs, path, error);
    free(entries[i]);
  }
  free(entries);
  return good && (inputs->count > first || tool_error_set(error, "%.300s: a folder without files", folder));
}

bool topo_inputs_add(topo_inputs *inputs, const char *name, tool_error *error) {
  struct stat about;
  if (stat(name, &about) == 0 && S_ISDIR(about.st_mode)) return add_folder(inputs, name, error);
  return add(inputs, name, error);
}
