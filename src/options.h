/* SPDX-License-Identifier: Apache-2.0
 * The environment variables of banyan, read when a communicator is made. */
#ifndef BNY_OPTIONS_H
#define BNY_OPTIONS_H

#include <stdint.h>

#include "banyan.h"

typedef struct bny_options {
#define BNY_OPTION_NUMBER(field, name, standard, lowest, highest, unit, help) int64_t field;
#define BNY_OPTION_TEXT(field, name, help) const char *field; /* in the environment; NULL if unset or empty */
#include "options.def"
#undef BNY_OPTION_NUMBER
#undef BNY_OPTION_TEXT
} bny_options;

/* A value that does not parse is an error that names it. BANYAN_* variables that are none of ours are warned of. */
banyan_status bny_options_read(bny_options *options);

#endif
