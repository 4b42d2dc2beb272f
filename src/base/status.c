/* SPDX-License-Identifier: Apache-2.0
 * Keeps the error text of each thread, and composes texts for failures. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/printable.h"

const char *banyan_version(void) { return "0.1.0"; }

static _Thread_local char error_text[BNY_ERROR_TEXT_BYTES];

const char *banyan_last_error(void) { return error_text; }

const char *banyan_status_string(banyan_status status) {
  switch (status) {
  case BANYAN_OK: return "ok";
  case BANYAN_ERR_ARGUMENT: return "bad argument";
  case BANYAN_ERR_MEMORY: return "out of memory";
  case BANYAN_ERR_SYSTEM: return "system error";
  case BANYAN_ERR_UNSUPPORTED: return "unsupported";
  case BANYAN_ERR_DATA: return "bad data";
  case BANYAN_ERR_STATE: return "bad state";
  case BANYAN_ERR_BOOTSTRAP: return "bootstrap failed";
  case BANYAN_ERR_TIMEOUT: return "timeout";
  case BANYAN_ERR_PEER: return "peer failed";
  case BANYAN_ERR_MISMATCH: return "mismatch";
  case BANYAN_ERR_ABORTED: return "aborted";
  }
  return "unknown status";
}

static void set_text(const char *format, va_list arguments) {
  char text[BNY_ERROR_TEXT_BYTES]; /* writes to a copy: an argument may be the text of the error that led to this one */
  vsnprintf(text, sizeof text, format, arguments);
  bny_printable(text, "\n");
  memcpy(error_text, text, sizeof text);
}

banyan_status bny_fail(banyan_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  set_text(format, arguments);
  va_end(arguments);
  return status;
}

banyan_status banyan_bootstrap_fail(banyan_status status, const char *text) {
  return bny_fail(status, "%s", text ? text : "");
}

banyan_status bny_fail_errno(banyan_status status, int errno_value, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  set_text(format, arguments);
  va_end(arguments);
  char reason[128];
  size_t length = strlen(error_text);
  /* The GNU strerror_r returns the text, which may or may not be in the buffer. */
  bny_append(error_text, sizeof error_text, &length, ": %s", strerror_r(errno_value, reason, sizeof reason));
  return status;
}

void bny_append(char *text, size_t bytes, size_t *length, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  size_t room = *length < bytes ? bytes - *length : 0;
  int wanted = vsnprintf(room ? text + *length : NULL, room, format, arguments);
  va_end(arguments);
  if (wanted > 0) *length += (size_t)wanted;
}
