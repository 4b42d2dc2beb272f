/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines for people, as many as BANYAN_LOG asks for, on stderr or in BANYAN_LOG_FILE. Never on a hot path: a file is opened
 * for each line.
 *
 *     banyan warn transport, rank 3: ...
 *
 * The word after the level is the directory or, in src/ itself, the first word of the name of the file that speaks. */
#ifndef BNY_LOG_H
#define BNY_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bny_log_level { BNY_LOG_ERROR, BNY_LOG_WARN, BNY_LOG_INFO, BNY_LOG_DEBUG } bny_log_level;

#define bny_log(level, ...) bny_log_from(__FILE__, level, __VA_ARGS__)

void bny_log_from(const char *source, bny_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Reads these two for the calling thread, which keeps them: with the other options, and else before its first line. */
void bny_log_read(void);

/* For what costs something to put together. */
bool bny_log_wants(bny_log_level level);

/* The rank in whose name this thread speaks from now on. */
void bny_log_rank(int32_t rank);

/* Whether this is a word that BANYAN_LOG may be. */
bool bny_log_level_known(const char *text);

/* The name of a file that each rank has for itself: %r in the pattern becomes the rank, %p the process, %% a percent
 * sign; where neither the rank nor the process is in it, ".RANK" is added. False if it is too long. */
bool bny_log_path(const char *pattern, int32_t rank, char *path, size_t bytes);

/* Opens a regular file to write to, made if there is none, 0600; `flags` are open()'s. -1 with errno: so if it is anything
 * else, such as a FIFO, which would hold up whoever writes. */
int bny_log_open(const char *path, int flags);

#endif
