/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the whole library run in a world: ranks that are threads, or processes forked from the test, each with a
 * communicator. What a rank finds wrong is noted in memory that all share, and fails the test once the world has ended. */
#ifndef BNY_TESTS_WORLD_H
#define BNY_TESTS_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "banyan.h"

enum { WORLD_RANKS_MAX = 32 };

typedef struct world world;

typedef struct world_rank {
  world *world;
  int32_t rank, nranks;
  banyan_comm *comm; /* made before and destroyed after the body, but for `bare`; a body that destroyed it sets NULL */
  banyan_bootstrap bootstrap;
  void *argument;
} world_rank;

typedef struct world_setup {
  int32_t nranks;
  bool processes;     /* else threads */
  bool bare;          /* the body makes its communicator itself */
  bool deaths;        /* ranks may die of signals */
  int64_t timeout_ns; /* 0: 20 s */
  size_t arena_bytes;
  const char *algorithm;
  void *argument;     /* what processes write there must come from world_share() */
  /* Processes: runs in the parent while they run; may send them signals. */
  void (*conduct)(world *world, const pid_t *pids, void *argument);
} world_setup;

typedef void (*world_body)(world_rank *self);

/* Runs the body on every rank and fails the test with what went wrong first. */
void world_run(const world_setup *setup, world_body body);

/* Notes a failure if not ok, and ends the communicator so that the other ranks end as well. Returns ok. */
bool world_check(world_rank *self, bool ok, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same for a status that should be BANYAN_OK, with the library's error text. */
bool world_ok(world_rank *self, banyan_status status, const char *what);

/* A barrier of the test's own, of all ranks; false if it took longer than 20 s or something has failed. */
bool world_meet(world_rank *self);
bool world_meet_within(world_rank *self, double seconds); /* where one of them has much to do before it comes */

/* A flag that ranks and the conductor can set and read. */
void world_signal(world *world, int flag);
bool world_await(world *world, int flag, double seconds);

/* Memory that is zero at first, shared with processes forked afterwards. */
void *world_share(size_t bytes);
void world_unshare(void *memory, size_t bytes);

double world_now_s(void);
void world_sleep_ms(double milliseconds);

/* ---- random numbers: the same from the same seed everywhere --------------------------------------------------------- */

typedef struct world_random {
  uint64_t state;
} world_random;

/* TEST_SEED, or 1. */
uint64_t world_seed(void);
uint64_t random_next(world_random *random);
int32_t random_below(world_random *random, int32_t limit); /* 0 if limit <= 0 */
double random_unit(world_random *random);                  /* in [-1, 1] */
bool random_one_in(world_random *random, int32_t n);

/* Ranks to come take themselves for ranks of hosts, "a,a,b" by rank, over TCP and the loopback interface; NULL: of one. */
void world_be_hosts(const char *hosts);

/* Runs a suite whose tests are forked; returns the exit status of the program. */
struct Suite;
int world_main(struct Suite *suite);

/* True under ASan or TSan, where memory and time differ. */
bool world_is_sanitized(void);

#endif
