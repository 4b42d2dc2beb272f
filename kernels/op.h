/* SPDX-License-Identifier: Apache-2.0
 * The kernels that an executor calls. They encode a caller's partials into wire form, merge wire forms, and finish into
 * the caller's convention. Each instruction set has one table, and all tables give the same bits.
 *
 * Wire form of a box of rows: m[rows] and d[rows] as f32 (m a whole number, or -inf for an empty row), then n[rows] of
 * bny_wire_row_bytes() each: value_dim values in the wire dtype; rows token-major. A row of e4m3 is value_dim codes, a
 * byte of scale for each 32 of them, and zeros up to a multiple of four bytes: value = code x 2^(byte - 127). See f8.h
 * and bny_wire_layout(). A row of the exact order is a bny_exact_row: see exact.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

/* The wire formats: one for each row of formats.def, and that of BANYAN_ORDER_EXACT. */
typedef enum bny_wire {
#define BNY_FORMAT(id, name, dtype, bytes, bound) BNY_WIRE_##id,
#include "formats.def"
#undef BNY_FORMAT
  BNY_WIRE_COUNT, /* the number of formats with a type of values */
  BNY_WIRE_EXACT
} bny_wire;

typedef struct bny_wire_format {
  const char *name;
  banyan_dtype dtype;
  size_t element_bytes;
  double error_bound; /* relative error of rounding a row once: |n' - n|_2 <= bound |n|_2, except for underflow */
} bny_wire_format;

extern const bny_wire_format bny_wire_formats[BNY_WIRE_EXACT + 1];

/* The values_dtype of rows that attention has summed for the exact order. `values` holds contiguous rows of
 * BNY_WIRE_EXACT, and lse and sum hold the wire's m and d. */
#define BNY_EXACT_ROWS ((banyan_dtype)64)

/* Returns the format of a type of values, or BNY_WIRE_COUNT if there is none. */
bny_wire bny_wire_of_dtype(banyan_dtype dtype);

/* Returns the bytes of a row's values in wire form. */
size_t bny_wire_row_bytes(bny_wire wire, int32_t value_dim);

/* The byte offsets in a message of `rows` rows. The message and its n begin at multiples of 64 bytes; d follows m. */
typedef struct bny_wire_layout {
  size_t m, d, n, bytes;
} bny_wire_layout;

bny_wire_layout bny_wire_layout_make(bny_wire wire, int64_t rows, int32_t value_dim);

/* The same for rows of `row_bytes`. Without statistics rows follow each other without padding. */
bny_wire_layout bny_rows_layout(bool has_statistics, int64_t rows, size_t row_bytes);

/* A box of rows in a message. The pointers are at the box's first row. Row (t, h) has index t * token_stride + h: its m
 * and d are elements of this index, and its n begins at this index times bny_wire_row_bytes(). */
typedef struct bny_wire_view {
  float *m;
  float *d;
  void *n;
  int64_t token_stride; /* in rows; >= heads */
  bool stream;          /* destination of encode: stores may bypass the caches; the bits are the same */
  uint64_t *saturated;  /* destination of encode: counts finite values that a lossy wire cannot hold; or NULL */
} bny_wire_view;

typedef struct bny_box {
  int32_t tokens;
  int32_t heads;
  int32_t value_dim;
} bny_box;

static inline bool bny_box_is_empty(const bny_box *box) { return box->tokens == 0 || box->heads == 0; }

/* The most sources of one merge. The planner merges more sources in groups. */
enum { BNY_MERGE_SOURCES_MAX = 64 };

enum { BNY_AT_LEAST_MORE = 16 };

typedef struct bny_pair bny_pair;
typedef struct bny_pairs_read bny_pairs_read;

typedef struct bny_kernels {
  const char *name;

  /* Returns true if this processor can run the table. */
  bool (*supported)(void);

  /* Converts the box's rows of the caller's partial to wire form. The box begins at row (token0, head0) of the partial.
   * Returns -1 on success. If a row has bad statistics, returns t * heads + h of the first such row in the box, and dst
   * is unspecified. Statistics are bad if they are NaN or +inf and not declared empty, or if d is negative, NaN or
   * infinite. bny_partial_check() must have accepted `in`. */
  int64_t (*encode)(const bny_box *box, const banyan_partial *in, int32_t token0, int32_t head0, bny_wire wire,
                    const bny_wire_view *dst);

  /* Merges sources [0, count) into dst as a balanced tree. Neighbours (0,1), (2,3), ... are merged pairwise, and an odd
   * last one passes up, until one is left. Each pairwise merge is exactly
   *   m = max(a.m, b.m);  x = a.x * 2^(a.m - m) + b.x * 2^(b.m - m)   for d and every n
   * in f32. Products are rounded before the sum (no fused multiply-add). 2^s counts as 0 for s < -126 and for a source
   * with m = -inf. With round_nodes, n of every merged value, the last included, is rounded to the wire dtype before
   * use. Rows of a lossy wire have d in [0.5, 1], so that |n| <= max |v|. If n is rounded to such a wire (in a dst of
   * it, and at every node with round_nodes), m is first raised by the power of two in d, which is exact. See
   * merge_math.h. 1 <= count <= BNY_MERGE_SOURCES_MAX; dst must not overlap a source. */
  void (*merge)(const bny_box *box, bny_wire wire, int count, const bny_wire_view *sources, bool round_nodes,
                const bny_wire_view *dst);

  /* Merges like merge(), and writes the result to the caller's partial at (token0, head0) in the caller's convention,
   * without a wire form in memory. Normalised values are n * (1 / d), rounded twice. count = 1 finishes one source.
   * Returns -1 on success. If the caller's type cannot hold the statistics of a row (export_math.h), returns t * heads
   * + h of the first such row. All other rows are correct. */
  int64_t (*merge_finish)(const bny_box *box, bny_wire wire, int count, const bny_wire_view *sources, bool round_nodes,
                          const banyan_partial *out, int32_t token0, int32_t head0);

  /* Converts `elements` contiguous values to those of a wire without statistics. Returns how many finite ones the wire
   * cannot hold; they become its largest. On the wire of e4m3 there is a block for each 32 of them: see f8.h. */
  uint64_t (*sum_encode)(const void *from, banyan_dtype dtype, int elements, bny_wire wire, void *to);

  /* Adds contiguous values of the sources in f32, in the tree of merge(), and writes them as `dtype`. With round_nodes,
   * each sum is rounded to the wire. With `is_wire`, `dtype` is that of the wire and finite sums do not overflow. */
  void (*sum)(int count, const void *const *sources, int elements, bny_wire wire, bool round_nodes, bool is_wire,
              void *to, banyan_dtype dtype);

  /* Finds the positions of scores that are at least `bound`, in order. Returns how many there are, or more than `most`
   * if that many were found. `found` has room for most + BNY_AT_LEAST_MORE. */
  int32_t (*at_least)(const float *scores, int32_t n, float bound, int32_t *found, int32_t most);

  /* Make pairs of a selection, and read them: see select.h. */
  bool (*pairs_make)(const float *scores, const int64_t *indices, int32_t count, int32_t rank, bny_pair *to);
  void (*pairs_read)(const bny_pair *list, int32_t count, int32_t rank, bny_pairs_read *to);

  /* A bny_exact_row with value_dim values, in bny_wire_row_bytes(BNY_WIRE_EXACT, value_dim) bytes: made empty; a
   * contribution (m, d, n) added to it, whose n[] is changed; another row added to it. */
  void (*exact_clear)(void *row, size_t bytes);
  void (*exact_deposit)(void *row, double m, double d, double *n, int32_t value_dim);
  void (*exact_add)(void *row, const void *other, int32_t value_dim);
} bny_kernels;

/* The tables, fastest first and the portable one last. NULL ends the list. */
extern const bny_kernels *const bny_kernels_table[];

/* Returns the table of a name, or the fastest supported one if name is NULL. Returns NULL if the name is unknown or not
 * supported by this processor. */
const bny_kernels *bny_kernels_find(const char *name);

/* Checks a descriptor before a kernel uses it, for fields that are unset, out of range, contradictory or overlapping.
 * Returns NULL if it is valid, else a static text such as "values_dtype is unset". */
const char *bny_partial_check(const banyan_partial *partial, const bny_box *box, bool is_output);

/* Returns true if two of the tokens x heads rows of `width` share memory. Strides and width have the same unit. */
bool bny_rows_overlap(int64_t tokens, int64_t token_stride, int64_t heads, int64_t head_stride, int64_t width);

/* Returns true, and sets names[], if two arrays of an output (values, lse, sum) share memory. bny_partial_check() must
 * have accepted the output. Interleaved arrays do not share memory if they have a common stride and different
 * columns. */
bool bny_partial_overlaps_itself(const banyan_partial *out, const bny_box *box, const char *names[2]);

/* Returns true, and sets names[], if an array of `in` and one of `out` share memory. Arrays in which each row of the
 * result has the same address and type do not count. `all` is the box of the input's rows. The result begins at row
 * (token0, head0) of the input. */
bool bny_partial_overlaps(const banyan_partial *in, const bny_box *all, const banyan_partial *out,
                          const bny_box *result, int32_t token0, int32_t head0, const char *names[2]);

/* Returns true if the extents, in elements, would overflow the address arithmetic of kernels. */
bool bny_extent_too_large(int64_t tokens, int64_t token_stride, int64_t heads, int64_t head_stride);

/* Reads the scales of `heads` heads in host memory. Returns the first head whose scale is not finite or not above 0, or
 * -1. */
int32_t bny_partial_scale_check(const banyan_partial *partial, int32_t heads);

size_t bny_dtype_bytes(banyan_dtype dtype); /* returns 0 for an unknown type */

/* Returns true for types without a scale, which statistics and queries have. */
bool bny_dtype_is_float(banyan_dtype dtype);

/* Returns true for eight-bit floats, which have a scale. */
bool bny_dtype_is_f8(banyan_dtype dtype);
