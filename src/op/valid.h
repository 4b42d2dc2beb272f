/* SPDX-License-Identifier: Apache-2.0
 * Checks and reads which rows of a run are valid. */
#pragma once

#include <stdbool.h>

#include "banyan.h"

/* Checks all fields, but not the arrays, for a call of at most `tokens`. *valid then points to a struct of this
 * library's version, in `room` if the caller's has another size. NULL is allowed. */
banyan_status bny_valid_check(const banyan_valid_rows **valid, banyan_valid_rows *room, int32_t tokens);

/* Returns true if some rows may not be valid. `valid` may be NULL. */
bool bny_valid_selects(const banyan_valid_rows *valid);

/* Reads the number of tokens of a run: at most `most`, which is also the default. Hot. */
banyan_status bny_valid_count(const banyan_valid_rows *valid, int32_t most, int32_t *tokens);

/* Checks the arrays, and writes which tokens are valid. `mask` is NULL or has room for `tokens` bytes. Hot. */
banyan_status bny_valid_read(const banyan_valid_rows *valid, int32_t tokens, uint8_t *mask);

/* Returns the number of tokens for which a blocking call is planned. */
int32_t bny_valid_class(int32_t tokens, int32_t heads);
