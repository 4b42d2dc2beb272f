/* SPDX-License-Identifier: Apache-2.0
 * Finds the CPU quotas of this process in the file systems of control groups, version 1 and 2. */
#include "base/quota.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/sysfs.h"

enum { LINE_BYTES = 4096 };

/* Returns whether `word` is in a list between commas. */
static bool lists(const char *list, const char *word) {
  size_t length = strlen(word);
  for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
    if (strcspn(at, ",") == length && strncmp(at, word, length) == 0) return true;
  return false;
}

static void keep(bny_quota *quotas, bny_quota found) {
  for (int i = 0; i < BNY_QUOTAS; i++)
    if (quotas[i].group == found.group) return;
  for (int i = 0; i < BNY_QUOTAS && found.group; i++) {
    if (quotas[i].group && quotas[i].cpus <= found.cpus) continue;
    bny_quota larger = quotas[i];
    quotas[i] = found;
    found = larger;
  }
}

/* "150000 100000": the allowed time in each period, and the period, in microseconds. "max" or -1: no quota. */
static void read_folder(const char *folder, bool v1, bny_quota *quotas) {
  char text[64];
  double time = -1, period = -1;
  struct stat file;
  if (v1) {
    time = (double)bny_sysfs_number("%s/cpu.cfs_quota_us", folder);
    period = (double)bny_sysfs_number("%s/cpu.cfs_period_us", folder);
  } else if (!bny_sysfs_line(text, sizeof text, "%s/cpu.max", folder) || sscanf(text, "%lf %lf", &time, &period) != 2) {
    return;
  }
  if (time > 0 && period > 0 && stat(folder, &file) == 0)
    keep(quotas, (bny_quota){(uint64_t)file.st_ino, time / period});
}

/* The kernel writes \040 for a space, and likewise for tabs, newlines and backslashes. */
static void unescape(char *text) {
  char *to = text;
  for (const char *at = text; *at; at++) {
    unsigned code;
    if (*at == '\\' && sscanf(at + 1, "%3o", &code) == 1)
      *to++ = (char)code, at += 3;
    else
      *to++ = *at;
  }
  *to = 0;
}

/* Reads the groups from `group` up to the mount's root. A container may not see all of its group's path; its own group
 * is then at the root. */
static void climb(const char *root, const char *mount, const char *below, const char *group, bool v1,
                  bny_quota *quotas) {
  char folder[3 * LINE_BYTES];
  size_t shared = strcmp(below, "/") == 0 ? 0 : strlen(below);
  bool is_below = strncmp(group, below, shared) == 0 && (!group[shared] || group[shared] == '/');
  int least = snprintf(folder, sizeof folder, "%s%s", root, mount);
  snprintf(folder + least, sizeof folder - (size_t)least, "%s", is_below ? group + shared : "");
  for (size_t length = strlen(folder);; length = (size_t)(strrchr(folder, '/') - folder)) {
    folder[length] = 0;
    read_folder(folder, v1, quotas);
    if (length <= (size_t)least) return;
  }
}

/* Reads the group wherever its tree is mounted. */
static void find_group(const char *root, const char *group, bool v1, bny_quota *quotas) {
  char path[LINE_BYTES], line[LINE_BYTES], below[LINE_BYTES], mount[LINE_BYTES], kind[64], options[LINE_BYTES];
  snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
  FILE *stream = fopen(path, "re");
  while (stream && fgets(line, sizeof line, stream)) {
    const char *rest = strstr(line, " - ");
    if (!rest || sscanf(line, "%*s %*s %*s %4095s %4095s", below, mount) != 2 ||
        sscanf(rest, " - %63s %*s %4095s", kind, options) != 2)
      continue;
    if (v1 ? strcmp(kind, "cgroup") != 0 || !lists(options, "cpu") : strcmp(kind, "cgroup2") != 0) continue;
    unescape(below);
    unescape(mount);
    climb(root, mount, below, group, v1, quotas);
  }
  if (stream) fclose(stream);
}

/* A line is "0::/path" for v2, and "4:cpu,cpuacct:/path" for v1. */
void bny_quotas_find(const char *root, bny_quota *quotas) {
  char path[LINE_BYTES], line[LINE_BYTES];
  memset(quotas, 0, BNY_QUOTAS * sizeof *quotas);
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *stream = fopen(path, "re");
  while (stream && fgets(line, sizeof line, stream)) {
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(++controllers, ':') : NULL;
    if (!group) continue;
    *group++ = 0;
    if (!*controllers || lists(controllers, "cpu")) find_group(root, group, *controllers, quotas);
  }
  if (stream) fclose(stream);
}
