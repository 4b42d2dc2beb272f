/* SPDX-License-Identifier: Apache-2.0
 * Reads files of sysfs and /proc. A file may be absent, unreadable or have any contents; none of these is an error. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the first line of a regular file without blanks around it, as far as it fits. Returns false and "" if there is
 * no such file, or it cannot be read. Never waits. */
bool bny_sysfs_line(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Returns the number at the beginning of a file, decimal or 0x..; -1 if there is none. */
int64_t bny_sysfs_number(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Calls `visit` for each name in a folder that does not begin with a dot, in the order of names: mlx5_2, mlx5_10. */
void bny_sysfs_each(void (*visit)(void *context, const char *folder, const char *name), void *context,
                    const char *format, ...) __attribute__((format(printf, 3, 4)));
