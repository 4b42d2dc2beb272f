/* SPDX-License-Identifier: Apache-2.0 Finds the process that started a rank, if /proc shows it. Ranks of one job on a
 * node have one launcher. */
#include "boot/tcp.h"

#ifdef HAVE_SODIUM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/sysfs.h"

enum { ARGUMENTS_BYTES = 16384, WRAPPERS_AT_MOST = 16 };

struct process {
  int64_t parent;
  char name[64];
  char arguments[ARGUMENTS_BYTES]; /* each ends with a NUL */
  size_t bytes;
};

static bool read_process(int64_t id, struct process *process) {
  char line[512], path[64];
  long long parent;
  bny_sysfs_line(line, sizeof line, "/proc/%lld/stat", (long long)id);
  const char *name = strchr(line, '('), *end = strrchr(line, ')'); /* the name may hold anything */
  if (!name || !end || sscanf(end, ") %*c %lld", &parent) != 1) return false;
  process->parent = parent;
  snprintf(process->name, sizeof process->name, "%.*s", (int)(end - name - 1), name + 1);
  snprintf(path, sizeof path, "/proc/%lld/cmdline", (long long)id);
  FILE *file = bny_file_read(path);
  process->bytes = file ? fread(process->arguments, 1, sizeof process->arguments, file) : 0;
  if (file) fclose(file);
  return true;
}

static void read_input(int64_t id, char target[64]) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%lld/fd/0", (long long)id);
  ssize_t length = readlink(path, target, 63);
  target[length > 0 ? length : 0] = '\0';
}

struct children {
  char input[64]; /* their parent's, from readlink() */
  int count;
};

/* A child that reads a pipe is a filter of another child's output, and is not counted. */
static void count_children(void *context, const char *folder, const char *thread) {
  struct children *children = context;
  char line[512], input[64], *end;
  bny_sysfs_line(line, sizeof line, "%s/%s/children", folder, thread);
  for (char *at = line; *at; at = end) {
    long long child = strtoll(at, &end, 10);
    if (end == at) return;
    read_input(child, input);
    children->count += strncmp(input, "pipe:", 5) != 0 || strcmp(input, children->input) == 0;
    end += *end == ' ';
  }
}

static bool ends_with(const struct process *process, const char *end, size_t bytes) {
  size_t before = process->bytes - bytes;
  return bytes > 0 && bytes < process->bytes && process->arguments[before - 1] == '\0' &&
         memcmp(process->arguments + before, end, bytes) == 0;
}

/* Returns whether the process exists only for this child: a shell, or a program such as timeout, whose arguments end
 * with the child's. In those of a script the interpreter is missing. */
static bool is_wrapper(int64_t id, const struct process *process, const struct process *child) {
  struct children children = {.count = 0};
  size_t length = strlen(process->name), first = strnlen(child->arguments, child->bytes) + 1;
  read_input(id, children.input);
  bny_sysfs_each(count_children, &children, "/proc/%lld/task", (long long)id);
  if (children.count > 1) return false;
  if (length >= 2 && strcmp(process->name + length - 2, "sh") == 0) return true;
  if (process->bytes <= child->bytes) return false; /* a copy by fork() */
  return ends_with(process, child->arguments, child->bytes) ||
         (first < child->bytes && ends_with(process, child->arguments + first, child->bytes - first));
}

int64_t bny_boot_launcher_of(int64_t id) {
  struct process of[2];
  if (!read_process(id, &of[0])) return 0;
  for (int i = 0; i < WRAPPERS_AT_MOST; i++) {
    const struct process *child = &of[i % 2];
    struct process *parent = &of[(i + 1) % 2];
    if (child->parent <= 1 || !read_process(child->parent, parent)) return 0;
    if (!is_wrapper(child->parent, parent, child)) return child->parent;
  }
  return 0;
}

/* A process may also start the other ranks and be one itself. */
bool bny_boot_launcher_differs(int64_t process) {
  int64_t own = getpid(), mine = bny_boot_launcher_of(own), its = bny_boot_launcher_of(process);
  return mine > 0 && its > 0 && mine != its && mine != process && its != own;
}
#endif
