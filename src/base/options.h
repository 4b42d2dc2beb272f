/* SPDX-License-Identifier: Apache-2.0
 * The environment variables of banyan, read when a communicator is made. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "banyan.h"

typedef struct bny_options {
#define BNY_OPTION_NUMBER(field, name, standard, lowest, highest, unit, help) int64_t field;
#define BNY_OPTION_TEXT(field, name, help) const char *field;        /* in the environment; NULL if unset or empty */
#define BNY_OPTION_WORD(field, name, words, help) const char *field; /* likewise */
#include "base/options.def"
} bny_options;

/* An option as in options.def, for callers that list them all. */
typedef struct bny_option_row {
  const char *name;
  bool number; /* if false it is text, and the next four are 0 and NULL */
  int64_t standard, lowest, highest;
  const char *unit;
  const char *words; /* accepted values of a text, such as "on, off"; NULL: any text */
  const char *help;
} bny_option_row;

extern const bny_option_row bny_option_rows[]; /* ends with a name of NULL */

/* Returns the value in the environment, or NULL if it is unset or empty. */
const char *bny_option_text(const char *name);

/* Reads the number of a row; *value is its default if the environment has none. */
banyan_status bny_option_number(const bny_option_row *row, int64_t *value);

/* Rejects text in the environment that is none of the row's words. */
banyan_status bny_option_word(const bny_option_row *row);

/* Reads all options. A value that does not parse is an error that names it. Unknown BANYAN_* variables cause a
 * warning. */
banyan_status bny_options_read(bny_options *options);
