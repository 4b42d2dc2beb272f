/* SPDX-License-Identifier: Apache-2.0
 *
 * Expressions of a symbolic run: a leaf is what a rank copied from its input, and a node is the merge of two. Equal
 * expressions have equal numbers, so "the same bits" is a comparison of integers. */
#ifndef BNY_TOOLS_PROVE_EXPRESSION_H
#define BNY_TOOLS_PROVE_EXPRESSION_H

#include <stdbool.h>
#include <stdint.h>

typedef struct bny_expression {
  int32_t left, right; /* -1: a leaf */
  bool rounded;        /* to the wire format; always so for a leaf */
  int32_t roundings;   /* most roundings of one of its leaves */
  int32_t leaves;
  int32_t low, high; /* all contributions in it come from ranks [low, high) */
  int64_t set;       /* first word of its set, the one with rank low; -1: all of [low, high) */
} bny_expression;

/* Expression number r < nranks is the leaf of rank r. Merged ranks mostly follow one another, so a set is usually
 * stored as its two ends. */
typedef struct bny_expressions {
  int32_t nranks;
  bny_expression *nodes;
  int32_t count, capacity;
  uint64_t *sets; /* bit r % 64 of word r / 64 - low / 64 is set if rank r's contribution is in it */
  int64_t sets_count, sets_capacity;
  int32_t *table; /* number + 1, by hash */
  int32_t table_size;
} bny_expressions;

enum { BNY_EXPRESSION_NONE = -1, BNY_EXPRESSION_NO_MEMORY = -2, BNY_EXPRESSION_TWICE = -3 };

bool bny_expressions_init(bny_expressions *all, int32_t nranks);
void bny_expressions_fini(bny_expressions *all);

/* Returns the number of the merge of two, or BNY_EXPRESSION_TWICE if both contain a contribution; *rank is then its
 * rank. */
int32_t bny_expressions_merge(bny_expressions *all, int32_t left, int32_t right, bool rounded, int32_t *rank);

/* The same value rounded to the wire format. */
int32_t bny_expressions_round(bny_expressions *all, int32_t number);

/* Returns a rank that is not in it, or -1. */
int32_t bny_expressions_missing(const bny_expressions *all, int32_t number);

#endif
