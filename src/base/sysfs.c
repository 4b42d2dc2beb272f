/* SPDX-License-Identifier: Apache-2.0
 * Reads lines, numbers and folders of sysfs and /proc. */
#include "base/sysfs.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

static bool read_line(char *text, size_t bytes, const char *format, va_list arguments) {
  char path[PATH_BYTES];
  text[0] = 0;
  int length = vsnprintf(path, sizeof path, format, arguments);
  FILE *stream = length > 0 && length < PATH_BYTES ? fopen(path, "re") : NULL;
  bool read = stream && fgets(text, (int)bytes, stream);
  if (stream) fclose(stream);
  text[strcspn(text, "\n")] = 0;
  return read;
}

bool bny_sysfs_line(char *text, size_t bytes, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  bool read = read_line(text, bytes, format, arguments);
  va_end(arguments);
  return read;
}

int64_t bny_sysfs_number(const char *format, ...) {
  char text[64], *end;
  va_list arguments;
  va_start(arguments, format);
  read_line(text, sizeof text, format, arguments);
  va_end(arguments);
  int64_t number = strtoll(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
  return end == text ? -1 : number;
}

static int is_entry(const struct dirent *entry) { return entry->d_name[0] != '.'; }

void bny_sysfs_each(void (*visit)(void *context, const char *folder, const char *name), void *context,
                    const char *format, ...) {
  char folder[PATH_BYTES];
  struct dirent **entries = NULL;
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(folder, sizeof folder, format, arguments);
  va_end(arguments);
  int count = length > 0 && length < PATH_BYTES ? scandir(folder, &entries, is_entry, versionsort) : -1;
  for (int i = 0; i < count; i++) {
    visit(context, folder, entries[i]->d_name);
    free(entries[i]);
  }
  if (count >= 0) free(entries);
}
