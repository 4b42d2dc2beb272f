/* SPDX-License-Identifier: Apache-2.0
 * Files that the environment names, possibly in folders where other users can write, and writes that fail without
 * ending the process. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

typedef enum bny_file_kind {
  BNY_FILE_REGULAR,   /* only regular files: a FIFO would block the writer */
  BNY_FILE_OR_CHANNEL /* also a FIFO that has a reader, or a device such as a terminal */
} bny_file_kind;

/* Opens a file for writing, with mode 0600 if it is new; `flags` are open()'s. It rejects a symbolic link, another
 * user's file and a file with a second name, because such a write would go into an unintended file. Returns -1 and
 * errno on failure. */
int bny_file_open(const char *path, int flags, bny_file_kind kind);

/* Opens a regular file for reading. Anything else is rejected at once with ENOTSUP, because opening a FIFO without a
 * writer would block. Returns NULL and errno on failure. */
FILE *bny_file_read(const char *path);

/* Returns the reason for an errno of these two functions, which is not always the system's text. */
const char *bny_file_error(int error);

/* Returns fd, or a copy of it above stderr: otherwise the data that a program writes to a closed stdout or stderr would
 * end up in shared memory or at a peer. Returns -1 and errno on failure, and for -1. */
int bny_file_above_stderr(int fd);

/* Makes a memory file of this name. It is not executable if the kernel supports that (6.3). `flags` are
 * memfd_create()'s. Returns -1 and errno on failure. */
int bny_file_memory(const char *name, unsigned flags);

/* Like write(), but fails with EPIPE or EFBIG where the system would end the process by SIGPIPE or SIGXFSZ. */
ssize_t bny_file_write(int fd, const void *data, size_t bytes);

/* Protects any writes between begin and end in the same way, in one thread. Both keep errno. */
typedef struct bny_file_guard {
  sigset_t before, pending;
} bny_file_guard;

void bny_file_guard_begin(bny_file_guard *guard);
void bny_file_guard_end(const bny_file_guard *guard);
