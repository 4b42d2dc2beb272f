/* SPDX-License-Identifier: Apache-2.0
 *
 * Structs of callers. They begin with their size, and grow at their end alone, by whole words: so a program and a library
 * of different versions know the same beginning. A field that the caller's struct lacks is 0, which means what it meant
 * before there was such a field. One that this library does not know must be 0, or the caller asks for something that
 * would not be done.
 *
 * banyan_partial_init() and the makers of bootstraps fill structs whose size they are not told: when one of these grows,
 * they need a new version of their symbol (banyan.map). */
#ifndef BNY_SIZED_H
#define BNY_SIZED_H

#include "banyan.h"

typedef struct bny_sized {
  const char *name;
  size_t first_bytes; /* of the form that was published first: never changes */
  size_t bytes;       /* of the form that this library has */
} bny_sized;

extern const bny_sized bny_sized_bootstrap, bny_sized_comm_config, bny_sized_partial, bny_sized_combine_desc,
    bny_sized_attention_desc, bny_sized_op_info;

const void *bny_sized_convert(const bny_sized *type, const char *what, const void *given, void *room);

/* The struct that a caller gave as `what`, in the form that this library has: itself if it has that size, else a copy in
 * `room`. NULL: its size is none, and the thread's error says so. Hot. */
static inline const void *bny_sized_read(const bny_sized *type, const char *what, const void *given, void *room) {
  return *(const size_t *)given == type->bytes ? given : bny_sized_convert(type, what, given, room);
}

/* Gives the caller what it has room for of `made`, and zeroes what this library does not know. The caller's size stays. */
banyan_status bny_sized_write(const bny_sized *type, const char *what, const void *made, void *out);

#endif
