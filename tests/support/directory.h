/* SPDX-License-Identifier: Apache-2.0
 * A temporary directory for one test program, which a fixture makes and removes. */
#pragma once

#include "tests/support/suite.h"

static char directory[64];

static inline void directory_make(void) {
  strcpy(directory, "/tmp/banyan_test.XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(directory));
}

static inline void directory_remove(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", directory);
  ck_assert_int_eq(system(command), 0);
}

/* Sets the variable to a file of this name in the directory. */
static inline void directory_set(const char *variable, const char *name) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  setenv(variable, path, 1);
}

/* Returns the content of a file, which the next call replaces; "" if there is no such file. */
static inline const char *directory_read(const char *name) {
  static char said[1 << 20];
  char path[128];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE *file = fopen(path, "r");
  size_t bytes = file ? fread(said, 1, sizeof said - 1, file) : 0;
  said[bytes] = 0;
  if (file) fclose(file);
  return said;
}
