/* SPDX-License-Identifier: Apache-2.0
 * Frees the objects of a test at its end. */
#pragma once

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
