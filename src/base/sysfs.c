/* SPDX-License-Identifier: Apache-2.0
 * Reads lines, numbers and folders of sysfs and /proc. */
#include "base/sysfs.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

/* O_NONBLOCK prevents waiting if the path is a pipe. */
static bool read_line(char *text, size_t bytes, const char *format, va_list arguments) {
  char path[PATH_BYTES];
  struct stat about;
  ssize_t got = -1, used = 0;
  int length = vsnprintf(path, sizeof path, format, arguments);
  int file = length > 0 && length < PATH_BYTES ? open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK) : -1;
  if (file >= 0 && fstat(file, &about) == 0 && S_ISREG(about.st_mode)) {
    do {
      got = read(file, text + used, bytes - 1 - (size_t)used);
      used += got > 0 ? got : 0;
    } while (got > 0 ? (size_t)used < bytes - 1 && memchr(text, '\n', (size_t)used) == NULL
                     : got < 0 && errno == EINTR);
  }
  if (file >= 0) close(file);
  text[got < 0 ? 0 : used] = 0;
  size_t end = strcspn(text, "\n"), first = 0;
  while (end > 0 && isspace((unsigned char)text[end - 1])) end--;
  while (first < end && isspace((unsigned char)text[first])) first++;
  memmove(text, text + first, end - first);
  text[end - first] = 0;
  return got >= 0;
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
