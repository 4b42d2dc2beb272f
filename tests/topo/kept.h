/* SPDX-License-Identifier: Apache-2.0
 * Frees the objects of a test at its end, and damages texts. */
#pragma once

#include "tests/support/generator.h"
#include "tests/support/suite.h"

typedef struct kept {
  void *thing;
  void (*drop)(void *thing);
  struct kept *next;
} kept;

static kept *all_kept;

/* Returns `thing`, which may be NULL, and registers it for drop_kept() to free. */
static inline void *keep(void *thing, void (*drop)(void *thing)) {
  if (thing == NULL) return NULL;
  kept *self = malloc(sizeof *self);
  ck_assert_ptr_nonnull(self);
  *self = (kept){thing, drop, all_kept};
  all_kept = self;
  return thing;
}

/* The tear-down of suites that register objects. */
static inline void drop_kept(void) {
  while (all_kept != NULL) {
    kept *self = all_kept;
    all_kept = self->next;
    self->drop(self->thing);
    free(self);
  }
}

/* Changes, flips or removes some bytes, inserts some of the pieces, which NULL ends, or cuts the text. It has room for
 * MUTATION_BYTES more. Returns its new length. */
enum { MUTATION_BYTES = 128 };

static inline size_t mutate(uint64_t *state, char *text, size_t bytes, const char *const *pieces) {
  uint64_t npieces = 0;
  while (pieces[npieces] != NULL) npieces++;
  for (uint64_t changes = 1 + random_next(state) % 4; changes > 0 && bytes > 1; changes--) {
    size_t at = random_next(state) % bytes;
    const char *piece = pieces[random_next(state) % npieces];
    switch (random_next(state) % 16) {
    case 0: bytes = at; break;
    case 1:
    case 2:
    case 3: text[at] = (char)random_next(state); break;
    case 4:
    case 5:
    case 6: text[at] ^= (char)(1u << random_next(state) % 7); break;
    case 7:
    case 8:
    case 9: memmove(text + at, text + at + 1, --bytes - at); break;
    default:
      memmove(text + at + strlen(piece), text + at, bytes - at);
      memcpy(text + at, piece, strlen(piece));
      bytes += strlen(piece);
    }
  }
  return bytes;
}
