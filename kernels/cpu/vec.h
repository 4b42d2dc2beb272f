/* SPDX-License-Identifier: Apache-2.0
 * Operations that GNU C has for vectors of floats of any length. The including file defines `vec`. */
#pragma once

#include <string.h>

#include "attention_inline.h"

INLINE vec vec_zero(void) { return (vec){0}; }
INLINE vec vec_set1(float value) { return value - (vec){0}; } /* keeps -0 */
INLINE vec vec_add(vec a, vec b) { return a + b; }
INLINE vec vec_mul(vec a, vec b) { return a * b; }

/* No alignment is required. */
INLINE vec vec_load(const void *values) {
  vec v;
  memcpy(&v, values, sizeof v);
  return v;
}

INLINE void vec_store(void *values, vec v) { memcpy(values, &v, sizeof v); }
