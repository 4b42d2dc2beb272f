/* SPDX-License-Identifier: Apache-2.0
 *
 * A persistent operation: one call planned, agreed by all ranks and bound to memory; in parts if it is larger than the
 * arena takes at once. The blocking calls keep such operations by their shape and give them new memory each time. */
#ifndef BNY_OPERATION_H
#define BNY_OPERATION_H

#include "comm.h"

/* What makes two calls the same operation; identical on all ranks. */
typedef struct bny_op_key {
  bny_collective collective;
  int32_t tokens, heads, value_dim;
  bny_wire wire;
  banyan_scatter scatter;
  banyan_order order;
  int32_t root, distance;
  char algorithm[BNY_ALGORITHM_NAME_BYTES]; /* "": by predicted cost */
  size_t bytes;
  const size_t *counts; /* gather: [nranks] */
} bny_op_key;

/* The caller's memory. */
typedef struct bny_op_memory {
  const banyan_partial *in, *out; /* combine; copied */
  const void *in_bytes;           /* the others */
  void *out_bytes;
  void *stream;                   /* combine on a device */
} bny_op_memory;

/* Collective. Not checked here: the descriptors of the memory. */
banyan_status bny_op_make(banyan_comm *comm, const bny_op_key *key, banyan_op **op);
void bny_op_bind(banyan_op *op, const bny_op_memory *memory);

/* The operation behind a blocking call: found by its key, or made. */
banyan_status bny_op_find(banyan_comm *comm, const bny_op_key *key, banyan_op **op);

#endif
