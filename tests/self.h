/* SPDX-License-Identifier: Apache-2.0
 * What a process of a test holds, and how it has fared, as the kernel counts. */
#ifndef BNY_TESTS_SELF_H
#define BNY_TESTS_SELF_H

#include <dirent.h>
#include <stdio.h>

/* For how long this thread could have run and was not let to: on a machine that others use a deadline may pass by that
 * alone. */
static inline double self_waited_s(void) {
  unsigned long long waited_ns = 0;
  FILE *file = fopen("/proc/thread-self/schedstat", "re");
  if (file && fscanf(file, "%*u %llu", &waited_ns) != 1) waited_ns = 0;
  if (file) fclose(file);
  return (double)waited_ns * 1e-9;
}

/* Entries of a directory of /proc/self; reading it is one of the open files while it lasts. */
static inline int self_count(const char *path) {
  int count = 0;
  DIR *directory = opendir(path);
  while (directory && readdir(directory)) count++;
  if (directory) closedir(directory);
  return count - 2; /* . and .. */
}

#endif
