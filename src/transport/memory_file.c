/* SPDX-License-Identifier: Apache-2.0
 * Makes and maps shared memory without a name: by memfd_create() or, where that is not permitted, as a file without a
 * name. */
#include "transport/memory_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"

/* Makes a file without a name, or unlinks it at once if the file system does not support such files. Its space is
 * reserved, because touching a page for which a full file system has no room ends the process. Returns -1 and errno. */
static int make_unnamed(const char *folder, size_t bytes) {
  char path[4096];
  int fd = open(folder, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 && snprintf(path, sizeof path, "%s/banyan-XXXXXX", folder) < (int)sizeof path) {
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) unlink(path);
  }
  fd = bny_file_above_stderr(fd);
  int error = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes);
  if (!error) return fd;
  if (fd >= 0) close(fd);
  errno = error;
  return -1;
}

/* For systems that reject memfd_create(), as some seccomp filters do, with this error. */
static banyan_status make_without_memfd(size_t bytes, int rejection, int *file) {
  const char *folders[] = {"/dev/shm", getenv("TMPDIR"), "/tmp"};
  char text[512];
  size_t length = 0;
  bny_append(text, sizeof text, &length, "memfd_create: %s", strerror(rejection));
  for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
    if (!folders[i] || !folders[i][0]) continue;
    *file = make_unnamed(folders[i], bytes);
    if (*file >= 0) return BANYAN_OK;
    bny_append(text, sizeof text, &length, "; a file in %.100s: %s", folders[i], strerror(errno));
  }
  return bny_fail(BANYAN_ERR_SYSTEM,
                  "cannot make shared memory of %zu bytes (%s): allow memfd_create (seccomp), or set TMPDIR to a "
                  "folder with room for a file",
                  bytes, text);
}

banyan_status bny_memory_file_make(size_t bytes, int *file) {
  struct rlimit limit; /* applies to this file as well; beyond it a signal ends the process */
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
    return bny_fail(BANYAN_ERR_SYSTEM,
                    "shared memory of %zu bytes is larger than a file of this process may be, %llu bytes: raise ulimit "
                    "-f, or make arena_bytes (BANYAN_ARENA_KIB) smaller",
                    bytes, (unsigned long long)limit.rlim_cur);
  int fd = bny_file_memory("banyan", MFD_ALLOW_SEALING);
  if (fd < 0 && (errno == EPERM || errno == EACCES || errno == ENOSYS)) return make_without_memfd(bytes, errno, file);
  if (fd < 0) return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "cannot make a memory file");
  if (fchmod(fd, 0600) != 0 || ftruncate(fd, (off_t)bytes) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    int error = errno;
    close(fd);
    return bny_fail_errno(BANYAN_ERR_SYSTEM, error, "cannot make a memory file of %zu bytes", bytes);
  }
  *file = fd;
  return BANYAN_OK;
}

banyan_status bny_memory_file_map(int file, size_t bytes, void **base) {
  struct stat found;
  if (fstat(file, &found) != 0 || (size_t)found.st_size != bytes)
    return bny_fail(BANYAN_ERR_MISMATCH, "a peer's shared memory is not of the %zu bytes agreed", bytes);
  void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return bny_fail_errno(BANYAN_ERR_MEMORY, errno, "cannot map %zu bytes of arenas", bytes);
  *base = mapped;
  return BANYAN_OK;
}
