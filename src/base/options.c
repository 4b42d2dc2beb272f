/* SPDX-License-Identifier: Apache-2.0
 * Reads the environment variables that options.def lists, checks their ranges, and warns of unknown ones. */
#include "base/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"

extern char **environ;

const bny_option_row bny_option_rows[] = {
#define BNY_OPTION_NUMBER(field, name, standard, lowest, highest, unit, help) \
  {name, true, standard, lowest, highest, unit, NULL, help},
#define BNY_OPTION_TEXT(field, name, help) {name, false, 0, 0, 0, NULL, NULL, help},
#define BNY_OPTION_WORD(field, name, words, help) {name, false, 0, 0, 0, NULL, words, help},
#include "base/options.def"
    {NULL, false, 0, 0, 0, NULL, NULL, NULL},
};

const char *bny_option_text(const char *name) {
  const char *text = getenv(name);
  return text && *text ? text : NULL;
}

banyan_status bny_option_number(const bny_option_row *row, int64_t *value) {
  const char *text = bny_option_text(row->name);
  int64_t number = row->standard;
  char *end = NULL;
  errno = 0;
  if (text) number = strtoll(text, &end, 10);
  if (text && (errno || *end || number < row->lowest || number > row->highest))
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s is \"%.64s\"; it takes a whole number%s%s from %lld to %lld", row->name,
                    text, row->unit[0] ? " of " : "", row->unit, (long long)row->lowest, (long long)row->highest);
  *value = number;
  return BANYAN_OK;
}

banyan_status bny_option_word(const bny_option_row *row) {
  const char *text = bny_option_text(row->name);
  const size_t length = text ? strlen(text) : 0;
  for (const char *word = row->words; text && word; word = strchr(word, ',')) {
    word += strspn(word, ", ");
    if (strcspn(word, ",") == length && strncmp(word, text, length) == 0) return BANYAN_OK;
  }
  if (!text || !row->words) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "%s is \"%.40s\"; it takes %s", row->name, text, row->words);
}

static void warn_of_unknown(void) {
  for (char **variable = environ; variable && *variable; variable++) {
    if (strncmp(*variable, "BANYAN_", 7) != 0) continue;
    size_t length = strcspn(*variable, "=");
    bool known = false;
    for (const bny_option_row *row = bny_option_rows; row->name && !known; row++)
      known = strlen(row->name) == length && strncmp(row->name, *variable, length) == 0;
    if (!known)
      bny_log(BNY_LOG_WARN, "%.*s is not an option of banyan; banyan-info options lists all options", (int)length,
              *variable);
  }
}

banyan_status bny_options_read(bny_options *options) {
  bny_options read;
  const bny_option_row *row = bny_option_rows;
  banyan_status status = BANYAN_OK;
#define BNY_OPTION_NUMBER(field, name, standard, lowest, highest, unit, help) \
  if (status == BANYAN_OK) status = bny_option_number(row++, &read.field);
#define BNY_OPTION_TEXT(field, name, help) read.field = bny_option_text(name), row++;
#define BNY_OPTION_WORD(field, name, words, help)         \
  if (status == BANYAN_OK) status = bny_option_word(row); \
  BNY_OPTION_TEXT(field, name, help)
#include "base/options.def"
  bny_log_read();
  if (status != BANYAN_OK) return status;
  warn_of_unknown();
  *options = read;
  return BANYAN_OK;
}
