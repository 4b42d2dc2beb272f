/* SPDX-License-Identifier: Apache-2.0
 * Finds arrays of a combine that share memory: two arrays of its output, or one of its output and one of its input. */
#include <stdlib.h>

#include "op.h"

enum { ARRAYS = 3 };
static const char *const array_names[ARRAYS] = {"values", "lse", "sum"};

/* Rows of `row` bytes in memory, between `low` and `end`. Strides are in bytes; 0 means one token or one head. */
typedef struct array {
  intptr_t low, end;
  int64_t token_stride, head_stride, tokens, heads, row;
} array;

/* The location and layout of an array of a partial. A NULL pointer means that the partial does not have it. */
typedef struct place {
  char *at;
  int64_t token_stride, head_stride;
  banyan_dtype dtype;
  int32_t width;
} place;

static place place_of(const banyan_partial *partial, const bny_box *box, int which) {
  if (which == 0)
    return (place){box->value_dim > 0 ? partial->values : NULL, partial->values_token_stride,
                   partial->values_head_stride, partial->values_dtype, box->value_dim};
  bool is_given = which == 1 || partial->stats_kind == BANYAN_STATS_MAX_SUM;
  return (place){!is_given    ? NULL
                 : which == 1 ? partial->lse
                              : partial->sum,
                 partial->stats_token_stride, partial->stats_head_stride, partial->stats_dtype, 1};
}

static array array_of(const place *at, const bny_box *box) {
  int64_t bytes = (int64_t)bny_dtype_bytes(at->dtype), row = at->width * bytes;
  int64_t token = box->tokens > 1 ? at->token_stride * bytes : 0, head = box->heads > 1 ? at->head_stride * bytes : 0;
  int64_t tokens = token * (box->tokens - 1), heads = head * (box->heads - 1);
  intptr_t low = (intptr_t)at->at + (tokens < 0 ? tokens : 0) + (heads < 0 ? heads : 0);
  return (array){low, low + llabs(tokens) + llabs(heads) + row, llabs(token), llabs(head), box->tokens, box->heads,
                 row};
}

typedef struct arrays {
  place at[ARRAYS];
  array of[ARRAYS];
} arrays;

static void arrays_of(const banyan_partial *partial, const bny_box *box, arrays *made) {
  for (int i = 0; i < ARRAYS; i++) {
    made->at[i] = place_of(partial, box, i);
    if (made->at[i].at) made->of[i] = array_of(&made->at[i], box);
  }
}

/* Pieces of rows: those of one token, which follow one another from token to token, or those of one head. */
typedef struct pieces {
  int64_t stride, bytes; /* distance between pieces, and size of a piece */
  int64_t row_stride, row;
} pieces;

static pieces pieces_of(const array *of, bool by_tokens) {
  int64_t count = by_tokens ? of->heads : of->tokens, stride = by_tokens ? of->head_stride : of->token_stride;
  return (pieces){by_tokens ? of->token_stride : of->head_stride, stride * (count - 1) + of->row, stride, of->row};
}

static bool fit(int64_t a, int64_t b) { return a == b || a == 0 || b == 0; }

/* Returns true if a piece and another one `distance` bytes after it have no byte in common. */
static bool are_beside(const pieces *a, const pieces *b, int64_t distance) {
  if (distance >= a->bytes || -distance >= b->bytes) return true;
  int64_t stride = a->row_stride > b->row_stride ? a->row_stride : b->row_stride;
  if (stride == 0 || !fit(a->row_stride, b->row_stride)) return false;
  int64_t at = distance % stride + (distance % stride < 0 ? stride : 0);
  return at >= a->row && at + b->row <= stride;
}

/* Returns true if the pieces of both arrays have the same stride and do not overlap. */
static bool are_beside_by(const array *first, const array *second, bool by_tokens) {
  pieces a = pieces_of(first, by_tokens), b = pieces_of(second, by_tokens);
  int64_t stride = a.stride > b.stride ? a.stride : b.stride, distance = second->low - first->low;
  if (stride == 0) return are_beside(&a, &b, distance);
  if (!fit(a.stride, b.stride) || a.bytes > stride || b.bytes > stride) return false;
  int64_t at = distance % stride + (distance % stride < 0 ? stride : 0);
  return are_beside(&a, &b, at) && are_beside(&a, &b, at - stride);
}

/* Returns true if the arrays share no byte. One must end before the other begins, or both have a common stride and
 * different columns. Other interleavings count as overlapping. */
static bool are_apart(const array *a, const array *b) {
  return a->end <= b->low || b->end <= a->low || are_beside_by(a, b, true) || are_beside_by(a, b, false);
}

/* Returns true if each row of the output has the address and type of the same row of the input. */
static bool are_same(const place *in, const place *out, const bny_box *result, int32_t token0, int32_t head0) {
  int64_t first = token0 * in->token_stride + head0 * in->head_stride;
  return in->dtype == out->dtype && out->at == in->at + first * (int64_t)bny_dtype_bytes(in->dtype) &&
         (result->tokens < 2 || in->token_stride == out->token_stride) &&
         (result->heads < 2 || in->head_stride == out->head_stride);
}

bool bny_partial_overlaps_itself(const banyan_partial *out, const bny_box *box, const char *names[2]) {
  arrays all;
  if (box->tokens < 1 || box->heads < 1) return false;
  arrays_of(out, box, &all);
  for (int i = 0; i < ARRAYS; i++) {
    for (int j = i + 1; j < ARRAYS; j++) {
      if (!all.at[i].at || !all.at[j].at || are_apart(&all.of[i], &all.of[j])) continue;
      names[0] = array_names[i], names[1] = array_names[j];
      return true;
    }
  }
  return false;
}

bool bny_partial_overlaps(const banyan_partial *in, const bny_box *all, const banyan_partial *out,
                          const bny_box *result, int32_t token0, int32_t head0, const char *names[2]) {
  arrays from, to;
  if (result->tokens < 1 || result->heads < 1) return false;
  arrays_of(in, all, &from);
  arrays_of(out, result, &to);
  for (int i = 0; i < ARRAYS; i++) {
    for (int j = 0; j < ARRAYS; j++) {
      if (!from.at[i].at || !to.at[j].at || are_apart(&from.of[i], &to.of[j])) continue;
      if (i == j && are_same(&from.at[i], &to.at[j], result, token0, head0)) continue;
      names[0] = array_names[i], names[1] = array_names[j];
      return true;
    }
  }
  return false;
}
