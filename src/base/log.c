/* SPDX-License-Identifier: Apache-2.0
 * Composes log lines and writes each one with a single call to stderr or to the log file. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "file.h"
#include "printable.h"
#include "status.h"

static const char *const level_names[] = {"error", "warn", "info", "debug"};

enum { PATH_BYTES = 1024 };

static _Thread_local struct {
  int32_t rank;
  bool known; /* the rest is set */
  bny_log_level most;
  char file[PATH_BYTES]; /* "": stderr */
  bool complained;       /* the file cannot be written, and stderr has a line about that */
} voice = {.rank = -1};

void bny_log_rank(int32_t rank) { voice.rank = rank; }

void bny_log_read(void) {
  const char *level = getenv("BANYAN_LOG"), *file = getenv("BANYAN_LOG_FILE");
  voice.known = true;
  voice.most = BNY_LOG_WARN;
  for (int i = 0; level && i <= BNY_LOG_DEBUG; i++)
    if (strcmp(level, level_names[i]) == 0) voice.most = (bny_log_level)i;
  voice.file[0] = 0;
  voice.complained = false;
  if (file && strlen(file) < sizeof voice.file) strcpy(voice.file, file);
}

bool bny_log_wants(bny_log_level level) {
  if (!voice.known) bny_log_read();
  return level <= voice.most;
}

bool bny_log_path(const char *pattern, int32_t rank, char *path, size_t bytes) {
  size_t length = 0;
  bool is_distinct = false;
  path[0] = 0;
  for (const char *at = pattern; *at; at++) {
    bool ends = at[0] != '%' || !at[1];
    if (ends) {
      bny_append(path, bytes, &length, "%c", at[0]);
      continue;
    }
    at++;
    is_distinct |= *at == 'r' || *at == 'p';
    if (*at == 'r')
      bny_append(path, bytes, &length, "%d", rank);
    else if (*at == 'p')
      bny_append(path, bytes, &length, "%d", (int)getpid());
    else if (*at == '%')
      bny_append(path, bytes, &length, "%%");
    else
      bny_append(path, bytes, &length, "%%%c", *at);
  }
  if (!is_distinct) bny_append(path, bytes, &length, ".%d", rank);
  return length < bytes;
}

banyan_status bny_log_claim(const char *what, const char *pattern, int32_t rank, char *path, size_t bytes, int *file) {
  enum { NAMES_MAX = 100, SUFFIX_BYTES = 8 };
  if (!bny_log_path(pattern, rank, path, bytes - SUFFIX_BYTES))
    return bny_fail(BANYAN_ERR_ARGUMENT, "the name of %s is too long: %.60s...", what, pattern);
  size_t length = strlen(path);
  for (int i = 1; i < NAMES_MAX; i++) {
    int fd = bny_file_open(path, 0, BNY_FILE_REGULAR);
    if (fd < 0) return bny_fail(BANYAN_ERR_SYSTEM, "cannot write %s to %s: %s", what, path, bny_file_error(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
      *file = fd;
      return BANYAN_OK;
    }
    close(fd);
    path[length] = 0;
    size_t end = length;
    bny_append(path, bytes, &end, ".%d", i);
  }
  return bny_fail(BANYAN_ERR_SYSTEM, "cannot write %s: %d files of that name are being written", what, NAMES_MAX);
}

/* Returns -1 for stderr, also if the file is rejected. Ranks may share one file: whole lines are appended. A FIFO works
 * if it has a reader; lines that do not fit into it are lost. */
static int open_file(void) {
  const char *pattern = voice.file;
  char path[PATH_BYTES];
  if (!*pattern) return -1;
  bool shared = !strstr(pattern, "%r") && !strstr(pattern, "%p");
  bool fits = shared || bny_log_path(pattern, voice.rank, path, sizeof path);
  int file = fits ? bny_file_open(shared ? pattern : path, O_APPEND, BNY_FILE_OR_CHANNEL) : -1;
  if (file >= 0 || voice.complained) return file;
  const char *why = bny_file_error(fits ? errno : ENAMETOOLONG);
  voice.complained = true;
  snprintf(path, sizeof path, "%s", pattern);
  bny_printable(path, "");
  dprintf(STDERR_FILENO, "banyan warn base: BANYAN_LOG_FILE=%s cannot be written: %s\n", path, why);
  return -1;
}

static void print_time(char *line, size_t bytes, size_t *length) {
  struct timespec now;
  struct tm day;
  char text[32];
  clock_gettime(CLOCK_REALTIME, &now);
  if (!localtime_r(&now.tv_sec, &day) || !strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &day)) return;
  bny_append(line, bytes, length, "%s.%06ld [%d] ", text, now.tv_nsec / 1000, (int)getpid());
}

void bny_log_from(const char *source, bny_log_level level, const char *format, ...) {
  if (!bny_log_wants(level)) return;
  int error = errno; /* callers may still need it */
  char line[1024];
  size_t length = 0, most = sizeof line - 1; /* keeps room for a newline */
  int file = open_file();
  if (file >= 0) print_time(line, most, &length);
  /* The subsystem is "transport" for "../src/transport/shm.c". */
  const char *slash = strrchr(source, '/'), *name = slash ? slash + 1 : source;
  for (const char *at = source; (at = strstr(at, "src/")) != NULL; at += 4) name = at + 4;
  bny_append(line, most, &length, "banyan %s %.*s", level_names[level], (int)strcspn(name, "/_."), name);
  if (voice.rank >= 0) bny_append(line, most, &length, ", rank %d", voice.rank);
  bny_append(line, most, &length, ": ");
  char text[sizeof line];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  bny_printable(text, "");
  bny_append(line, most, &length, "%s", text);
  if (length >= most) length = most - 1;
  line[length++] = '\n';
  /* A single write keeps lines of ranks apart. A failure cannot be reported anywhere. */
  ssize_t written = bny_file_write(file >= 0 ? file : STDERR_FILENO, line, length);
  (void)written;
  if (file >= 0) close(file);
  errno = error;
}
