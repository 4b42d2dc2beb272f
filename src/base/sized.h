/* SPDX-License-Identifier: Apache-2.0
 * Structs of callers. They begin with their size and grow only at their end, by whole words, so different versions of
 * program and library share the same beginning. A field that the caller's struct lacks is 0, which keeps the old
 * meaning. A field that this library does not know must be 0, because the library would ignore it.
 *
 * banyan_partial_init() and the makers of bootstraps fill structs without knowing their size. If one of these structs
 * grows, they need a new version of their symbol (banyan.map). */
#pragma once

#include "banyan.h"

typedef struct bny_sized {
  const char *name;
  size_t first_bytes; /* size of the first published form: never changes */
  size_t bytes;       /* size of this library's form */
} bny_sized;

extern const bny_sized bny_sized_bootstrap, bny_sized_comm_config, bny_sized_partial, bny_sized_combine_desc,
    bny_sized_valid, bny_sized_heads_desc, bny_sized_allreduce_desc, bny_sized_select_desc, bny_sized_attention_desc,
    bny_sized_op_info, bny_sized_ownership, bny_sized_queries;

const void *bny_sized_convert(const bny_sized *type, const char *what, const void *given, void *room);

/* Returns the caller's struct `what` in this library's form: itself if it has that size, otherwise a copy in `room`.
 * NULL: its size is invalid, and the thread's error is set. Hot. */
static inline const void *bny_sized_read(const bny_sized *type, const char *what, const void *given, void *room) {
  return *(const size_t *)given == type->bytes ? given : bny_sized_convert(type, what, given, room);
}

/* Copies as much of `made` to the caller as fits, and zeroes fields that this library does not know. The caller's
 * `size` stays. */
banyan_status bny_sized_write(const bny_sized *type, const char *what, const void *made, void *out);
