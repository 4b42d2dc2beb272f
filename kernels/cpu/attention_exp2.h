/* SPDX-License-Identifier: Apache-2.0
 * Computes powers of two in vectors. The including file defines vec, vec_set1 and vec_fma. */
#pragma once

#include "attention_inline.h"

/* Returns 2^f for |f| <= 1/2 (minimax of degree 6, relative error 2.6e-9 before rounding). */
INLINE vec exp2_fraction(vec f) {
  vec y = vec_set1(0x1.470b4ap-13f);
  y = vec_fma(y, f, vec_set1(0x1.5f7276p-10f));
  y = vec_fma(y, f, vec_set1(0x1.3b270ep-7f));
  y = vec_fma(y, f, vec_set1(0x1.c6ae72p-5f));
  y = vec_fma(y, f, vec_set1(0x1.ebfbe2p-3f));
  y = vec_fma(y, f, vec_set1(0x1.62e432p-1f));
  return vec_fma(y, f, vec_set1(1.0f));
}
