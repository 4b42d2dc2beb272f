/* SPDX-License-Identifier: Apache-2.0
 * Opens files that the environment names, if they are not links and belong to this user. Writes without raising
 * signals. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */

enum { ATTEMPTS = 8 }; /* other processes may create or remove the file at the same time */

/* Returns 0, or the errno with which an existing file is rejected. */
static int objection(int fd, bny_file_kind kind) {
  struct stat file;
  if (fstat(fd, &file) != 0) return errno;
  if (kind == BNY_FILE_OR_CHANNEL && S_ISCHR(file.st_mode)) return 0; /* only root creates these */
  if (!S_ISREG(file.st_mode) && !(kind == BNY_FILE_OR_CHANNEL && S_ISFIFO(file.st_mode))) return ENOTSUP;
  if (file.st_uid != geteuid()) return EPERM;
  return S_ISREG(file.st_mode) && file.st_nlink != 1 ? EMLINK : 0;
}

static int open_existing(const char *path, int flags, bny_file_kind kind) {
  int fd = open(path, flags);
  int error = fd < 0 ? errno : objection(fd, kind);
  if (fd < 0 || error == 0) return fd;
  close(fd);
  errno = error;
  return -1;
}

int bny_file_above_stderr(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  int copy = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
  close(fd);
  errno = error;
  return copy;
}

int bny_file_memory(const char *name, unsigned flags) {
  enum { NOEXEC_SEAL = 0x8 }; /* MFD_NOEXEC_SEAL, which older C libraries lack */
  int fd = memfd_create(name, flags | MFD_CLOEXEC | NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name, flags | MFD_CLOEXEC);
  return bny_file_above_stderr(fd);
}

int bny_file_open(const char *path, int flags, bny_file_kind kind) {
  flags |= O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW;
  int fd = -1;
  for (int i = 0; i < ATTEMPTS && fd < 0; i++) {
    fd = open_existing(path, flags, kind);
    if (fd >= 0 || errno != ENOENT) break;
    /* the owner may differ: on a network file system it may be nobody */
    fd = open(path, flags | O_CREAT | O_EXCL, 0600);
    if (fd < 0 && errno != EEXIST) break;
  }
  return bny_file_above_stderr(fd);
}

FILE *bny_file_read(const char *path) {
  struct stat about;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  int error = fd < 0 || fstat(fd, &about) != 0 ? errno : S_ISREG(about.st_mode) ? 0 : ENOTSUP;
  FILE *file = error == 0 ? fdopen(fd, "r") : NULL;
  if (file) return file;
  error = error == 0 ? errno : error;
  if (fd >= 0) close(fd);
  errno = error;
  return NULL;
}

const char *bny_file_error(int error) {
  switch (error) {
  case ELOOP: return "it is a symbolic link";
  case ENOTSUP: return "it is not a regular file";
  case ENXIO: return "nobody reads it, or it is no file";
  case EPERM: return "it belongs to another user";
  case EMLINK: return "it has a second name, by a hard link";
  default: return strerror(error);
  }
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Both signals go to the thread that writes. */
static const int signals[] = {SIGPIPE, SIGXFSZ};
enum { SIGNALS = sizeof signals / sizeof signals[0] };

void bny_file_guard_begin(bny_file_guard *guard) {
  int error = errno;
  sigset_t ours;
  sigemptyset(&ours);
  for (int i = 0; i < SIGNALS; i++) sigaddset(&ours, signals[i]);
  sigemptyset(&guard->pending);
  sigpending(&guard->pending); /* these must stay pending */
  pthread_sigmask(SIG_BLOCK, &ours, &guard->before);
  errno = error;
}

void bny_file_guard_end(const bny_file_guard *guard) {
  static const struct timespec at_once = {0, 0};
  int error = errno;
  for (int i = 0; i < SIGNALS; i++) {
    sigset_t one;
    if (sigismember(&guard->pending, signals[i])) continue;
    sigemptyset(&one);
    sigaddset(&one, signals[i]);
    while (sigtimedwait(&one, NULL, &at_once) < 0 && errno == EINTR) continue;
  }
  pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
  errno = error;
}

ssize_t bny_file_write(int fd, const void *data, size_t bytes) {
  bny_file_guard guard;
  bny_file_guard_begin(&guard);
  ssize_t written = write(fd, data, bytes);
  bny_file_guard_end(&guard);
  return written;
}
