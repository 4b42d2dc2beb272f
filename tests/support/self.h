/* SPDX-License-Identifier: Apache-2.0
 * The kernel's counts of open files and mappings of this process, and the time that its threads wait for a CPU. */
#pragma once

#include <dirent.h>
#include <stdio.h>
#include <string.h>

/* Returns how long this thread was runnable but did not run. On a shared machine, a deadline may pass only for this
 * reason. */
static inline double self_waited_s(void) {
  unsigned long long waited_ns = 0;
  FILE *file = fopen("/proc/thread-self/schedstat", "re");
  if (file && fscanf(file, "%*u %llu", &waited_ns) != 1) waited_ns = 0;
  if (file) fclose(file);
  return (double)waited_ns * 1e-9;
}

/* Counts the entries of a directory of /proc/self. The call itself holds one open file meanwhile. */
static inline int self_count(const char *path) {
  int count = 0;
  DIR *directory = opendir(path);
  while (directory && readdir(directory)) count++;
  if (directory) closedir(directory);
  return count - 2; /* . and .. */
}

/* Counts the mappings of this process whose line contains this text. */
static inline int self_mappings(const char *text) {
  char line[512];
  int count = 0;
  FILE *maps = fopen("/proc/self/maps", "re");
  while (maps && fgets(line, sizeof line, maps)) count += strstr(line, text) != NULL;
  if (maps) fclose(maps);
  return count;
}
