/* SPDX-License-Identifier: Apache-2.0
 * Status codes and the calling thread's error text. The function that finds an error writes the text here; the others
 * return the status. */
#pragma once

#include <stddef.h>

#include "banyan.h"

enum { BNY_ERROR_TEXT_BYTES = 512 };

/* Sets the thread's error text and returns `status`, which allows `return bny_fail(BANYAN_ERR_ARGUMENT, "...")`. */
banyan_status bny_fail(banyan_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Does the same, with ": " and the text of errno_value appended. */
banyan_status bny_fail_errno(banyan_status status, int errno_value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Appends like snprintf at *length of text[bytes]; advances *length by the full length; never overflows. */
void bny_append(char *text, size_t bytes, size_t *length, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
