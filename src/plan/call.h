/* SPDX-License-Identifier: Apache-2.0
 * The shape of a call: two calls of one shape are the same operation, planned once. Its fields are listed once, in
 * call.c. The list drives the comparison of shapes, the words that ranks compare, the text that names a difference, and
 * the hash of a plan's request. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "base/names.h"
#include "op.h"

enum { BNY_ALGORITHM_NAME_BYTES = 32 };

/* Fields that the collective does not use are 0. */
typedef struct bny_call {
  bny_collective collective;
  bool within_kernel; /* a kernel of a device combines, which also does other work */
  bool counts_tokens; /* each run says how many tokens it has */
  bool prunes;        /* attention leaves out pages with mass, and a certificate follows */
  bool attends;       /* a combine whose rows come from this rank's attention */
  bool has_starts;    /* attention that selects on a device has query_start_loc, so all sequences select */
  bool on_host;       /* a gather that the library uses internally, in host memory */
  int32_t tokens;     /* tokens of a run; not part of the shape */
  int32_t all_tokens; /* at most, in any run */
  int32_t sequences;  /* at most, if attention selects keys or pages over ranks; else 0 */
  int32_t all_heads;
  int32_t value_dim;
  int32_t dim; /* all-gather of heads, `dtype` too; k of a selection; columns of a sum; k or top_pages of attention */
  banyan_dtype dtype;
  bny_wire wire;
  banyan_scatter scatter;
  banyan_order order;
  int32_t root;                             /* combine with ROOT, broadcast */
  size_t bytes;                             /* shift, broadcast */
  int32_t distance;                         /* shift, in [0, nranks) */
  const size_t *counts;                     /* all-gathers: bytes or heads of each rank; not owned */
  char algorithm[BNY_ALGORITHM_NAME_BYTES]; /* requested; "": by predicted cost */
} bny_call;

typedef struct bny_call_field {
  const char *label;     /* name in texts about differences. NULL: ranks do not compare it */
  const bny_name *names; /* names of the values. NULL: a number */
  bool is_of_run;        /* not part of the shape */
  size_t offset, bytes;
} bny_call_field;

/* All fields but `counts` and `algorithm`. Those that ranks compare come first, in the order in which a difference is
 * looked for. */
enum { BNY_CALL_FIELDS = 20, BNY_CALL_COMPARED = 19 };
extern const bny_call_field bny_call_fields[BNY_CALL_FIELDS];

uint64_t bny_call_number(const bny_call *call, int field);

/* Returns true if both have the same shape. */
bool bny_call_equal(const bny_call *a, const bny_call *b, int32_t nranks);
