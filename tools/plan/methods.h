/* SPDX-License-Identifier: Apache-2.0
 * Compares the methods for a collective: the predicted cost of each, the chosen one, and why the others are not. */
#pragma once

#include <stdio.h>

#include "plan/builder.h"
#include "tools/plan/case.h"

struct json_t;

typedef struct plan_method {
  char name[32];
  bool serves; /* otherwise `why` has the reason, and nothing below is set */
  bool chosen;
  bool outside; /* another method for this collective, for comparison */
  double ns;
  double rounds, messages, work_bytes;
  double bytes_sent;                  /* by the rank that sends most */
  double level_bytes[BNY_LEVELS_MAX]; /* level_bytes[i]: the bytes of `bytes` that cross level i */
  double memory_bytes;                /* size of an outbox, or of buffers */
  char form[48];                      /* ", radix 4, 8 pieces": of those that it could take; empty: it has one */
  char why[240];                      /* why it was chosen or not */
} plan_method;

enum { PLAN_METHODS_MAX = BNY_CANDIDATES_MAX + 2 };

typedef struct plan_methods {
  int32_t count;
  int32_t nlevels;
  plan_method methods[PLAN_METHODS_MAX]; /* fastest first, then those that do not serve */
} plan_methods;

/* The size of a layer's KV cache, which matters for methods that move keys and values. */
typedef struct plan_keys {
  int64_t per_rank; /* tokens */
  int32_t kv_heads;
} plan_keys;

/* The bytes of keys and values on a rank. */
double plan_shard_bytes(const plan_shape *shape, const plan_keys *keys);

/* Lists all algorithms of the library for this shape. With `keys` a combine is also compared with Ring Attention, where
 * keys and values pass through every rank, and with three all-reduces (maxima, denominators, numerators). Each uses its
 * fastest algorithm that is not composed over levels, by the same cost model. */
bool plan_methods_weigh(const plan_ranks *ranks, const plan_shape *shape, const plan_keys *keys, plan_methods *methods,
                        tool_error *error);

/* One of the three all-reduces: its shape, and its fastest algorithm by predicted cost. */
bool plan_flat_best(const plan_ranks *ranks, const plan_shape *shape, double bytes, plan_shape *made,
                    bny_candidate *best, tool_error *error);

/* Returns NULL if no method serves. */
const plan_method *plan_methods_chosen(const plan_methods *methods);

/* Prints one line per method. If that is wider than `columns`, reasons get separate lines. */
void plan_methods_print(const plan_ranks *ranks, const plan_methods *methods, int32_t columns, FILE *stream);
struct json_t *plan_methods_json(const plan_ranks *ranks, const plan_methods *methods); /* an array */

/* Prints the levels with the cost of their links and the source of that cost. */
void plan_levels_print(const plan_ranks *ranks, FILE *stream);
struct json_t *plan_levels_json(const plan_ranks *ranks);
struct json_t *plan_shape_json(const plan_ranks *ranks, const plan_shape *shape);
