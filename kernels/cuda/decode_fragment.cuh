/* SPDX-License-Identifier: Apache-2.0
 * Online softmax attention of 16 query heads to some keys, in the fragments of one warp.
 *
 * Softmax is in base 2. m is the least whole number that no logit so far exceeds. Rescaling by powers of two is exact
 * and rare. The weights p = 2^(t - m) are summed in f32, and multiplied with V as sums of two 16-bit terms. One term
 * alone would cause an error of 2^-9 (bf16) of sum(p |v|) / d. The second term costs no time, because the warp waits
 * for memory anyway. */
#pragma once

#include <float.h>

#include "cuda/decode_element.cuh"
#include "cuda/decode_load.cuh"
#include "merge_math.h"

/* A partial of 16 rows. Lane 4 g + t holds rows g and g + 8, and columns 8 i + 2 t and 8 i + 2 t + 1 of values. d
 * covers only the lane's own keys. */
template <int columns> struct bny_fragment {
  float m[2], d[2];
  float n[columns / 8][4];
};

/* Logits of 8 keys in each class. For each class, lane 4 g + t holds rows g, g, g + 8, g + 8 and keys 2 t, 2 t + 1, 2
 * t, 2 t + 1. Key j of class c is key j classes + c of the tile. */
template <int classes> struct bny_logits { float s[classes][4]; };

/* Weights as fragments of A, two classes per step. The weight is the sum of the coarse and the fine term. */
template <int steps> struct bny_weights { uint32_t coarse[steps][4], fine[steps][4]; };

template <int columns> BNY_DEVICE void bny_fragment_clear(bny_fragment<columns> *partial) {
  BNY_UNROLL for (int row = 0; row < 2; row++) {
    partial->m[row] = -BNY_INFINITY_F;
    partial->d[row] = 0;
  }
  BNY_UNROLL for (int i = 0; i < columns / 2; i++) partial->n[i / 4][i % 4] = 0;
}

/* Masks the tile's keys from `keys` on. */
template <int classes> BNY_DEVICE void bny_logits_mask(bny_logits<classes> *logits, uint32_t keys) {
  BNY_UNROLL for (uint32_t i = 0; i < 4 * classes; i++) {
    if ((bny_lane() % 4 * 2 + i % 2) * classes + i / 4 >= keys) logits->s[i / 4][i % 4] = -BNY_INFINITY_F;
  }
}

/* Returns the m that includes these logits. It is never -0, and finite or -inf, so only a logit of +inf or NaN makes d
 * infinite or NaN. */
template <int classes>
BNY_DEVICE float bny_fragment_max(float m, const bny_logits<classes> &logits, int row, float scale) {
  float top = -BNY_INFINITY_F;
  BNY_UNROLL for (int i = 0; i < 2 * classes; i++) top = fmaxf(top, bny_mul(logits.s[i / 2][2 * row + i % 2], scale));
  top = fmaxf(top, bny_shuffle_xor(top, 1));
  top = fmaxf(top, bny_shuffle_xor(top, 2));
  return fminf(fmaxf(m, ceilf(top) + 0.0f), FLT_MAX);
}

/* Raises m, which never decreases, and rescales d and n. */
template <int columns> BNY_DEVICE void bny_fragment_raise(bny_fragment<columns> *partial, const float m[2]) {
  if (!bny_warp_any(m[0] > partial->m[0] || m[1] > partial->m[1])) return;
  BNY_UNROLL for (int row = 0; row < 2; row++) {
    float factor = bny_exp2_whole(partial->m[row] - m[row]);
    partial->d[row] *= factor;
    BNY_UNROLL for (int i = 0; i < columns / 8; i++) {
      partial->n[i][2 * row] *= factor;
      partial->n[i][2 * row + 1] *= factor;
    }
    partial->m[row] = m[row];
  }
}

/* The scales of values that have none. Weights stay unchanged. */
struct bny_no_scales {
  BNY_DEVICE float apply(const bny_no_scales &, float weight, int) { return weight; }
};

/* Turns logits into weights, updates m and d, and rescales n. Scales::apply() multiplies a weight by the factor of its
 * key's values. Index i means key 2 t + (i & 1) of class i / 2. */
template <class Element, int classes, int columns, class Scales = bny_no_scales>
BNY_DEVICE void bny_fragment_softmax(bny_fragment<columns> *partial, const bny_logits<classes> &logits, float scale,
                                     bny_weights<classes / 2> *weights, const Scales &scales = {}) {
  float m[2];
  BNY_UNROLL for (int row = 0; row < 2; row++) m[row] = bny_fragment_max(partial->m[row], logits, row, scale);
  bny_fragment_raise(partial, m);
  BNY_UNROLL for (int row = 0; row < 2; row++) {
    float base = m[row] > -BNY_INFINITY_F ? m[row] - Element::HEADROOM : 0; /* all logits of the row are -inf so far */
    BNY_UNROLL for (int i = 0; i < classes; i++) {
      float low = bny_exp2_fast(fmaf(logits.s[i][2 * row], scale, -base));
      float high = bny_exp2_fast(fmaf(logits.s[i][2 * row + 1], scale, -base));
      partial->d[row] = bny_add(partial->d[row], bny_add(low, high));
      low = Scales::apply(scales, low, 2 * i);
      high = Scales::apply(scales, high, 2 * i + 1);
      bny_decode_split<Element>(low, high, &weights->coarse[i / 2][i % 2 * 2 + row],
                                &weights->fine[i / 2][i % 2 * 2 + row]);
    }
  }
}

/* Computes n += weights times the tile's columns from `first` on. */
template <class Element, int dim, int steps, int columns>
BNY_DEVICE void bny_fragment_values(bny_fragment<columns> *partial, const bny_weights<steps> &weights,
                                    const unsigned char *tile, int first) {
  BNY_UNROLL for (int column = 0; column < columns; column += 16) {
    BNY_UNROLL for (int step = 0; step < steps; step++) {
      uint32_t b[4];
      bny_load_values<dim, 16 * steps>(b, tile, 2 * step, first + column);
      BNY_UNROLL for (int i = 0; i < 2; i++) {
        Element::multiply(partial->n[column / 8 + i], weights.coarse[step], b + 2 * i);
        Element::multiply(partial->n[column / 8 + i], weights.fine[step], b + 2 * i);
      }
    }
  }
}

/* Called after the last key: sums d over lanes and removes the headroom. */
template <class Element, int columns> BNY_DEVICE void bny_fragment_end(bny_fragment<columns> *partial) {
  const float unit = bny_exp2_whole(-Element::HEADROOM);
  BNY_UNROLL for (int row = 0; row < 2; row++) {
    partial->d[row] = bny_add(partial->d[row], bny_shuffle_xor(partial->d[row], 1));
    partial->d[row] = bny_mul(bny_add(partial->d[row], bny_shuffle_xor(partial->d[row], 2)), unit);
  }
  BNY_UNROLL for (int i = 0; i < columns / 2; i++) partial->n[i / 4][i % 4] *= unit;
}

/* Stores n in rows of `pitch` floats. The pitch is a multiple of 32 plus 8, so that no bank is accessed twice. */
template <int columns> BNY_DEVICE void bny_fragment_put(float *n, int pitch, const bny_fragment<columns> &partial) {
  BNY_UNROLL for (int row = 0; row < 2; row++) {
    float *to = n + ((int)bny_lane() / 4 + 8 * row) * pitch + (int)bny_lane() % 4 * 2;
    BNY_UNROLL for (int i = 0; i < columns / 8; i++) {
      to[8 * i] = partial.n[i][2 * row];
      to[8 * i + 1] = partial.n[i][2 * row + 1];
    }
  }
}

template <int columns>
BNY_DEVICE void bny_fragment_put_stats(float *m, float *d, const bny_fragment<columns> &partial) {
  if (bny_lane() % 4 != 0) return;
  BNY_UNROLL for (int row = 0; row < 2; row++) {
    m[bny_lane() / 4 + 8 * row] = partial.m[row];
    d[bny_lane() / 4 + 8 * row] = partial.d[row];
  }
}
