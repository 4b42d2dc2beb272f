/* SPDX-License-Identifier: Apache-2.0
 * The methods for a collective, side by side: what each is predicted to cost, which is chosen, and why the others are
 * not. Shared by banyan-plan --cost, --compare and banyan-info. */
#ifndef BNY_TOOLS_PLAN_METHODS_H
#define BNY_TOOLS_PLAN_METHODS_H

#include <stdio.h>

#include "plan/builder.h"
#include "tools/plan/case.h"

struct json_t;

typedef struct plan_method {
  char name[32];
  bool serves; /* else `why` says why it cannot, and nothing below is set */
  bool chosen;
  bool outside; /* another method for this collective, for comparison */
  double ns;
  double rounds, messages, work_bytes;
  double bytes_sent;                  /* by the rank that sends most */
  double level_bytes[BNY_LEVELS_MAX]; /* level_bytes[i]: the bytes of `bytes` that cross level i */
  double memory_bytes;                /* size of an outbox, or of buffers */
  char form[48];                      /* ", radix 4, 8 pieces": of those that it could take; empty: it has one */
  char why[240];                      /* it was chosen, or not */
} plan_method;

enum { PLAN_METHODS_MAX = BNY_CANDIDATES_MAX + 2 };

typedef struct plan_methods {
  int32_t count;
  int32_t nlevels;
  plan_method methods[PLAN_METHODS_MAX]; /* fastest first, then those that cannot */
} plan_methods;

/* The size of a layer's KV cache, for methods that move keys and values. */
typedef struct plan_keys {
  int64_t per_rank; /* tokens */
  int32_t kv_heads;
} plan_keys;

/* Lists all algorithms of the library for this shape. */
bool plan_methods_weigh(const plan_ranks *ranks, const plan_shape *shape, plan_methods *methods, tool_error *error);

/* A combine is also compared with Ring Attention, where keys and values pass every rank, and with three allreduces
 * (maxima, denominators, numerators). Each uses its fastest algorithm that is not composed over levels, by the same
 * cost model. */
bool plan_methods_compare(const plan_ranks *ranks, const plan_shape *shape, const plan_keys *keys,
                          plan_methods *methods, tool_error *error);

/* One of the three allreduces: its shape, and the algorithm that is predicted to be fastest for it. */
bool plan_flat_best(const plan_ranks *ranks, const plan_shape *shape, double bytes, plan_shape *made,
                    bny_candidate *best, tool_error *error);

/* NULL if none can. */
const plan_method *plan_methods_chosen(const plan_methods *methods);

/* Prints a line for each; if that would be wider than `columns`, reasons have lines of their own. */
void plan_methods_print(const plan_ranks *ranks, const plan_methods *methods, int32_t columns, FILE *stream);
struct json_t *plan_methods_json(const plan_ranks *ranks, const plan_methods *methods); /* an array */

/* Prints the levels, with the cost of their links and its source. */
void plan_levels_print(const plan_ranks *ranks, FILE *stream);
struct json_t *plan_levels_json(const plan_ranks *ranks);
struct json_t *plan_shape_json(const plan_ranks *ranks, const plan_shape *shape);

#endif
