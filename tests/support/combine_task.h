/* SPDX-License-Identifier: Apache-2.0
 * Combines of random shapes and conventions, with checks of their results that are the same for all kinds of ranks.
 * Inputs, outputs and a merge in double precision are made before the ranks begin, and compared after they have
 * ended. */
#pragma once

#include "tests/support/sheet.h"
#include "tests/support/world.h"

enum { COMBINE_RANKS_MAX = 72, COMBINE_ATTEMPTS_MAX = 200 };

/* The first two runs give all ranks outputs of one convention, so that bits can be compared; the third run does not. */
enum { COMBINE_FIRST, COMBINE_AGAIN, COMBINE_OWN, COMBINE_RUNS };

/* Inputs of all ranks, their merge, and the convention in which bits are compared. */
typedef struct combine_group {
  int32_t tokens, heads, value_dim;
  sheet_mood mood;
  sheet in[COMBINE_RANKS_MAX];
  sheet model;
  oracle_row *reference;
  const sheet *canonical; /* all rows in canonical or in exact order, from one attempt */
} combine_group;

/* A combine of a box of rows of a group. */
typedef struct combine_attempt {
  const combine_group *of;
  int32_t token0, head0;
  banyan_combine_desc desc;
  sheet out[COMBINE_RUNS][COMBINE_RANKS_MAX];
} combine_attempt;

typedef struct combine_task {
  int32_t nranks, nattempts;
  const char *levels; /* BANYAN_LEVELS; NULL: unset */
  bool aligned;       /* the groups of levels support canonical order */
  world_random random;
  combine_attempt attempts[COMBINE_ATTEMPTS_MAX];
} combine_task;

combine_task *combine_task_new(int32_t nranks, uint64_t salt);
void combine_task_free(combine_task *task);

combine_group combine_group_make(combine_task *task, int32_t tokens, int32_t heads, int32_t value_dim);
combine_group combine_group_random(combine_task *task);

/* Adds an attempt with all rows of the group if `whole`, otherwise with a random box of them. */
combine_attempt *combine_task_add(combine_task *task, const combine_group *of, banyan_combine_desc desc, bool whole);

/* Adds about one in `one_in` of all algorithms, scatters and orders, always including the first. */
void combine_task_add_some(combine_task *task, combine_group *of, banyan_dtype wire, int32_t one_in);

/* Returns a description of the attempt, which is valid until the next call of this thread. */
const char *combine_attempt_text(const combine_attempt *attempt, int run);

/* Returns the attempt's box of a rank's input. */
banyan_partial combine_attempt_input(const combine_attempt *attempt, int32_t rank);

/* The body of a rank, whose argument is the task: makes all runs of all attempts by blocking calls. */
void combine_task_run(world_rank *self);

/* Fail the test if an output is wrong. The first checks one run; the second checks all runs and attempts, and compares
 * bits. */
void combine_attempt_check(const combine_task *task, const combine_attempt *attempt, int32_t rank, int run);
void combine_task_check(const combine_task *task);
/* Fails the test unless the first runs of two equal tasks gave the same bits. */
void combine_task_check_same(const combine_task *task, const combine_task *other);
