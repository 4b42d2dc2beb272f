/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static bny_log_level wanted_level(void) {
  const char *text = getenv("BANYAN_LOG");
  for (int i = 0; text && i <= BNY_LOG_DEBUG; i++)
    if (strcmp(text, level_names[i]) == 0) return (bny_log_level)i;
  return BNY_LOG_WARN;
}

void bny_log(bny_log_level level, const char *format, ...) {
  if (level > wanted_level()) return;
  char line[1024];
  int length = snprintf(line, sizeof line, "banyan %s: ", level_names[level]);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line + length, sizeof line - (size_t)length, format, arguments);
  va_end(arguments);
  fprintf(stderr, "%s\n", line); /* one write, so that lines of ranks do not mix */
}
