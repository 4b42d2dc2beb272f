/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/memory_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

#ifdef MFD_NOEXEC_SEAL
enum { NOEXEC_SEAL = MFD_NOEXEC_SEAL };
#else
enum { NOEXEC_SEAL = 0x8 }; /* in the kernel, missing in this C library */
#endif

banyan_status bny_memory_file_make(size_t bytes, int *file) {
  struct rlimit limit; /* applies to this file as well; beyond it a signal ends the process */
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
    return bny_fail(
        BANYAN_ERR_SYSTEM,
        "shared memory of %zu bytes is larger than a file of this process may be, %llu bytes: raise ulimit -f, or "
        "make arena_bytes (BANYAN_ARENA_KIB) smaller",
        bytes, (unsigned long long)limit.rlim_cur);
  /* Systems may require that such files are not executable; kernels before 6.3 do not know the flag. */
  int fd = memfd_create("banyan", MFD_CLOEXEC | MFD_ALLOW_SEALING | NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create("banyan", MFD_CLOEXEC | MFD_ALLOW_SEALING);
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
