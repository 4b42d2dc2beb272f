/* SPDX-License-Identifier: Apache-2.0
 * Status codes and the calling thread's error text. The function that decides an error words it here; the others pass
 * the status on. */
#ifndef BNY_STATUS_H
#define BNY_STATUS_H

#include <stddef.h>

#include "banyan.h"

enum { BNY_ERROR_TEXT_BYTES = 512 };

/* Sets the thread's error text and returns `status`, so that `return bny_fail(BANYAN_ERR_ARGUMENT, "...")` reads well. */
banyan_status bny_fail(banyan_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same, with ": " and the text of errno_value appended. */
banyan_status bny_fail_errno(banyan_status status, int errno_value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* snprintf that appends at *length of text[bytes], advances *length by what the whole would need, never overflows. */
void bny_append(char *text, size_t bytes, size_t *length, const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
