/* SPDX-License-Identifier: Apache-2.0
 * Writes output to a file, or to standard output. */
#include "tools/topo/topo.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool write_all(int file, const char *text, size_t bytes) {
  while (bytes > 0) {
    ssize_t wrote = write(file, text, bytes);
    if (wrote < 0 && errno != EINTR) return false;
    text += wrote < 0 ? 0 : wrote;
    bytes -= wrote < 0 ? 0 : (size_t)wrote;
  }
  return true;
}

static bool cannot(tool_error *error, const char *path, int reason) {
  return tool_error_set(error, "cannot write %.300s: %s", path, strerror(reason));
}

static bool write_through(const char *path, const char *text, tool_error *error) {
  int file = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (file < 0) return cannot(error, path, errno);
  bool good = write_all(file, text, strlen(text));
  int reason = errno;
  good = close(file) == 0 && good;
  return good || cannot(error, path, reason);
}

/* Writes a temporary file in the same directory and renames it. `mode` is that of the replaced file. */
static bool replace(const char *path, mode_t mode, const char *text, tool_error *error) {
  char *temporary = tool_format("%s.XXXXXX", path);
  int reason, file = mkostemp(temporary, O_CLOEXEC);
  if (file < 0) return cannot(error, path, errno);
  bool good = write_all(file, text, strlen(text)) && fchmod(file, mode) == 0 && fsync(file) == 0;
  reason = good ? 0 : errno;
  if (close(file) != 0 && good) {
    good = false;
    reason = errno;
  }
  if (good && rename(temporary, path) == 0) return true;
  reason = good ? errno : reason;
  unlink(temporary);
  return cannot(error, path, reason);
}

bool topo_output(const char *path, const char *text, tool_error *error) {
  if (path == NULL || strcmp(path, "-") == 0)
    return (fputs(text, stdout) != EOF && tool_flush(stdout)) || cannot(error, "to standard output", errno);
  struct stat about;
  bool there = stat(path, &about) == 0;
  if (there && S_ISDIR(about.st_mode)) return cannot(error, path, EISDIR);
  if (there && !S_ISREG(about.st_mode)) return write_through(path, text, error);
  mode_t mask = umask(0);
  umask(mask);
  char *real = there ? realpath(path, NULL) : NULL; /* keeps a symbolic link */
  bool good = replace(real == NULL ? path : real, there ? about.st_mode & 07777 : 0666 & ~mask, text, error);
  free(real);
  return good;
}
