/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "status.h"

extern char **environ;

static const char *const known_names[] = {
#define BNY_OPTION_NUMBER(field, name, standard, lowest, highest, unit, help) name,
#define BNY_OPTION_TEXT(field, name, help) name,
#include "options.def"
#undef BNY_OPTION_NUMBER
#undef BNY_OPTION_TEXT
};

static const char *text_of(const char *name) {
  const char *text = getenv(name);
  return text && *text ? text : NULL;
}

static banyan_status read_number(const char *name, int64_t lowest, int64_t highest, const char *unit, int64_t *value) {
  const char *text = text_of(name);
  if (!text) return BANYAN_OK;
  char *end;
  errno = 0;
  long long number = strtoll(text, &end, 10);
  if (errno || *end || number < lowest || number > highest)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s is \"%s\"; it takes a whole number of %s from %lld to %lld", name, text, unit,
                    (long long)lowest, (long long)highest);
  *value = number;
  return BANYAN_OK;
}

static void warn_of_unknown(void) {
  for (char **variable = environ; variable && *variable; variable++) {
    if (strncmp(*variable, "BANYAN_", 7) != 0) continue;
    size_t length = strcspn(*variable, "=");
    bool known = false;
    for (size_t i = 0; i < sizeof known_names / sizeof known_names[0] && !known; i++)
      known = strlen(known_names[i]) == length && strncmp(known_names[i], *variable, length) == 0;
    if (!known) bny_log(BNY_LOG_WARN, "%.*s is no option of banyan", (int)length, *variable);
  }
}

banyan_status bny_options_read(bny_options *options) {
  bny_options read = {
#define BNY_OPTION_NUMBER(field, name, standard, lowest, highest, unit, help) .field = standard,
#define BNY_OPTION_TEXT(field, name, help) .field = text_of(name),
#include "options.def"
#undef BNY_OPTION_NUMBER
#undef BNY_OPTION_TEXT
  };
  banyan_status status = BANYAN_OK;
#define BNY_OPTION_NUMBER(field, name, standard, lowest, highest, unit, help) \
  if (status == BANYAN_OK) status = read_number(name, lowest, highest, unit, &read.field);
#define BNY_OPTION_TEXT(field, name, help)
#include "options.def"
#undef BNY_OPTION_NUMBER
#undef BNY_OPTION_TEXT
  if (status != BANYAN_OK) return status;
  warn_of_unknown();
  *options = read;
  return BANYAN_OK;
}
