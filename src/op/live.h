/* SPDX-License-Identifier: Apache-2.0
 * Callers say here which rows of a run live. */
#ifndef BNY_OP_LIVE_H
#define BNY_OP_LIVE_H

#include <stdbool.h>

#include "banyan.h"

/* Checks all but what pointers lead to, for a call of at most `tokens`. *live then points to a struct of this library's
 * form, in `room` if the caller's has another size; NULL is allowed. */
banyan_status bny_live_check(const banyan_live **live, banyan_live *room, int32_t tokens);

/* Returns true if some rows may not live. `live` may be NULL. */
bool bny_live_selects(const banyan_live *live);

/* Reads the number of tokens of a run, at most `most`, which is also that of a caller who gives none. Hot. */
banyan_status bny_live_count(const banyan_live *live, int32_t most, int32_t *tokens);

/* Checks what pointers lead to, and writes which tokens live; `mask` is NULL or has room for `tokens` bytes. Hot. */
banyan_status bny_live_read(const banyan_live *live, int32_t tokens, uint8_t *mask);

/* Returns the number of tokens that a plan for a blocking call is made for. */
int32_t bny_live_class(int32_t tokens, int32_t heads);

#endif
