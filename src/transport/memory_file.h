/* SPDX-License-Identifier: Apache-2.0
 * Shared memory without a name, so no process can guess the name and nothing is left behind. */
#pragma once

#include <stddef.h>

#include "banyan.h"

/* Makes a memory file of `bytes` zero bytes, with mode 0600 and close-on-exec: a memfd of fixed size, or where the
 * system rejects these, a file without a name in /dev/shm, TMPDIR or /tmp. */
banyan_status bny_memory_file_make(size_t bytes, int *file);

/* Maps all `bytes` of a file for reading and writing. A file of another size is BANYAN_ERR_MISMATCH. */
banyan_status bny_memory_file_map(int file, size_t bytes, void **base);
