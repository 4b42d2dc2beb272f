/* SPDX-License-Identifier: Apache-2.0
 * The ways to decode with a sharded cache that are compared, all on the same library:
 *   tree        local attention, then one combine of the partials
 *   ring        Ring Attention: the keys and values travel from rank to rank, each rank attends to all of them
 *   allreduce3  local attention, then three reductions: of the maximum, of the denominators, of the numerators
 *   fused       attention and the combine as one operation
 *   overlap     the same, which between nodes runs in slices where that pays */
#ifndef BNY_TOOLS_DECODE_METHODS_H
#define BNY_TOOLS_DECODE_METHODS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "tools/decode/problem.h"
#include "tools/common/util.h"
#include "tools/common/world.h"

typedef struct decode_settings {
  banyan_dtype wire;
  banyan_scatter scatter;
  banyan_order order;
  const char *algorithm; /* NULL: by predicted cost */
} decode_settings;

/* A method works on this. `out` is [tokens][heads][head_dim] of the part that this rank keeps (see
 * tool_part_of_rank). */
typedef struct decode_task {
  const tool_world *world;
  const decode_problem *problem;
  const decode_settings *settings;
  const void *q;
  const decode_shard *shard;
  const int32_t *lengths; /* of the shard */
  float *out;
} decode_task;

typedef struct decode_facts {
  char algorithm[64];
  char reason[1024];
  uint64_t bytes_sent;  /* by this rank in one run */
  uint64_t roundings;   /* of a value to the wire's type, at most */
  uint64_t extra_bytes; /* what this rank holds beyond inputs and output */
  uint64_t arena_bytes; /* of these, parts of the arena */
  int32_t slices;       /* that the batch runs in */
} decode_facts;

/* Memory that a method holds, counted; released all at once. */
enum { DECODE_BLOCKS_MAX = 16 };

typedef struct decode_memory {
  void *blocks[DECODE_BLOCKS_MAX];
  int count;
  size_t bytes;
  bool failed; /* an allocation did not succeed */
} decode_memory;

void *decode_memory_get(decode_memory *memory, size_t bytes);
void decode_memory_release(decode_memory *memory);

typedef struct decode_method {
  const char *name;
  bool scatters;  /* delivers as --scatter says; otherwise all rows on every rank */
  bool uses_wire; /* values are rounded to the wire format */
  bool same_bits; /* promises the same bits on every rank */
  bool is_one;    /* one operation: how long attention itself took is not known */
  banyan_status (*create)(const decode_task *task, void **state);
  banyan_status (*run)(void *state, int64_t *local_ns); /* local_ns: how long attention itself took */
  void (*query)(void *state, decode_facts *facts);      /* after at least one run */
  void (*destroy)(void *state);                         /* NULL is allowed */
} decode_method;

extern const decode_method decode_method_tree, decode_method_ring, decode_method_allreduce3, decode_method_fused,
    decode_method_overlap;

/* Returns the combine of all rows of the task. */
banyan_combine_desc decode_combine_desc(const decode_task *task);

/* Adds the operation's own description to facts that were zero at first. */
void decode_facts_add(decode_facts *facts, const banyan_op *op, int32_t runs);

banyan_status decode_run_op(banyan_op *op);

#endif
