/* SPDX-License-Identifier: Apache-2.0
 * Memory of a rank for a combine of f32 rows whose result a test knows. Weights are equal unless the test sets others,
 * so that the result is the mean of the values of all ranks. */
#pragma once

#include "tests/support/world.h"

typedef struct rows {
  banyan_combine_desc desc;
  banyan_partial in, out;
  int32_t count; /* values */
  float *values, *lse, *merged, *merged_lse;
} rows;

/* Takes memory that lives until the test ends. The call has these rows and default settings. */
static inline rows *rows_take(int32_t tokens, int32_t heads, int32_t value_dim) {
  const int32_t nrows = tokens * heads, count = nrows * value_dim;
  rows *made = world_take(sizeof *made);
  made->desc =
      (banyan_combine_desc){.size = sizeof made->desc, .tokens = tokens, .heads = heads, .value_dim = value_dim};
  made->count = count;
  made->values = world_take((size_t)count * sizeof(float)), made->merged = world_take((size_t)count * sizeof(float));
  made->lse = world_take((size_t)nrows * sizeof(float)), made->merged_lse = world_take((size_t)nrows * sizeof(float));
  banyan_partial_init(&made->in, made->values, BANYAN_F32, made->lse, BANYAN_F32, heads, value_dim);
  banyan_partial_init(&made->out, made->merged, BANYAN_F32, made->merged_lse, BANYAN_F32, heads, value_dim);
  return made;
}

static inline void rows_set(const rows *of, float value) {
  for (int32_t i = 0; i < of->count; i++) of->values[i] = value;
}

/* The output of a rank; only the root of a combine to a root has one. */
static inline const banyan_partial *rows_out(const rows *of, int32_t rank) {
  return of->desc.scatter != BANYAN_SCATTER_ROOT || of->desc.root == rank ? &of->out : NULL;
}

static inline banyan_status rows_combine(const rows *of, banyan_comm *comm) {
  return banyan_combine(comm, &of->desc, &of->in, rows_out(of, banyan_comm_rank(comm)));
}

static inline banyan_status rows_init(const rows *of, banyan_comm *comm, banyan_op **op) {
  return banyan_combine_init(comm, &of->desc, &of->in, rows_out(of, banyan_comm_rank(comm)), op);
}

/* Notes a failure unless the last value of the result is this one, nearly. */
static inline bool rows_hold(world_rank *self, const rows *of, double value) {
  const double got = (double)of->merged[of->count - 1];
  return world_check(self, fabs(got - value) <= 1e-4 * fabs(value), "combined to %g, not %g", got, value);
}
