/* SPDX-License-Identifier: Apache-2.0
 * Log lines for people, of the level that BANYAN_LOG sets, on stderr or in BANYAN_LOG_FILE. Each line opens the file,
 * so do not log on a hot path.
 *
 *     banyan warn transport, rank 3: ...
 *
 * The word after the level is the folder of the source file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

typedef enum bny_log_level { BNY_LOG_ERROR, BNY_LOG_WARN, BNY_LOG_INFO, BNY_LOG_DEBUG } bny_log_level;

#define bny_log(level, ...) bny_log_from(__FILE__, level, __VA_ARGS__)

void bny_log_from(const char *source, bny_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Reads these two variables for the calling thread, which keeps them. Without this call the first line reads them. */
void bny_log_read(void);

/* Returns whether a line of this level would be written, so that callers can skip costly ones. */
bool bny_log_wants(bny_log_level level);

/* Sets the rank that this thread's lines name from now on. */
void bny_log_rank(int32_t rank);

/* Makes the name of a rank's own file: %r in the pattern becomes the rank, %p the process, %% a percent sign. If
 * neither %r nor %p occurs, ".RANK" is appended. Returns false if the name is too long. */
bool bny_log_path(const char *pattern, int32_t rank, char *path, size_t bytes);

/* Opens the file of bny_log_path() for writing, and locks it. If another communicator has locked it, the suffixes ".1",
 * ".2" and so on are tried. `path` receives the final name, and `what` names the file in error texts. */
banyan_status bny_log_claim(const char *what, const char *pattern, int32_t rank, char *path, size_t bytes, int *file);
