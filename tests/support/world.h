/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the library as a whole run in a world. Its ranks are threads, or processes forked from the test, each with a
 * communicator. A rank notes failures in memory that all share, and they fail the test once the world has ended. */
#ifndef BNY_TESTS_WORLD_H
#define BNY_TESTS_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "banyan.h"

enum { WORLD_RANKS_MAX = 32 };

/* The deadline of a test that does not test deadlines. It ends a test that hangs. No machine is so busy that a test
 * which makes progress reaches it. */
#define WORLD_GUARD_S 600
#define WORLD_GUARD_NS (WORLD_GUARD_S * INT64_C(1000000000))

typedef struct world world;

typedef struct world_rank {
  world *world;
  int32_t rank, nranks;
  banyan_comm *comm; /* made before and destroyed after the body, unless `bare`; NULL if the body destroyed it */
  banyan_bootstrap bootstrap;
  void *argument;
} world_rank;

typedef struct world_setup {
  int32_t nranks;
  bool processes;     /* otherwise threads */
  bool bare;          /* the body makes its communicator itself */
  bool deaths;        /* ranks may die of signals */
  int64_t timeout_ns; /* 0: WORLD_GUARD_NS */
  size_t arena_bytes;
  const char *algorithm;
  void *argument; /* processes may write there only to memory from world_share() */
  /* Processes: the parent calls it while they run; it may send them signals. */
  void (*conduct)(world *world, const pid_t *pids, void *argument);
} world_setup;

typedef void (*world_body)(world_rank *self);

/* Runs the body on every rank, and fails the test with the first failure. */
void world_run(const world_setup *setup, world_body body);

/* Runs `body` in a world of these fields: WORLD_RUN(body, .nranks = 2). */
#define WORLD_RUN(body, ...)            \
  do {                                  \
    world_setup setup_ = {__VA_ARGS__}; \
    world_run(&setup_, body);           \
  } while (0)

/* Notes a failure if not ok, and aborts the communicator so that the other ranks end as well. Returns ok. */
bool world_check(world_rank *self, bool ok, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same for a status that should be BANYAN_OK, with the library's error text. */
bool world_ok(world_rank *self, banyan_status status, const char *what);

/* The test's own barrier of all ranks. Returns false if it took longer than WORLD_GUARD_S or a rank has failed. */
bool world_meet(world_rank *self);

/* A flag that ranks and the conductor can set, and wait for. */
void world_signal(world *world, int flag);
bool world_await(world *world, int flag, double seconds);

/* Allocates memory that is zero at first, and shared with processes forked afterwards. */
void *world_share(size_t bytes);
void world_unshare(void *memory, size_t bytes);

double world_now_s(void);
void world_sleep_ms(double milliseconds);

/* ---- random numbers: the same from the same seed everywhere ------------------------------------------------------ */

typedef struct world_random {
  uint64_t state;
} world_random;

/* Returns TEST_SEED, or 1. */
uint64_t world_seed(void);
uint64_t random_next(world_random *random);
int32_t random_below(world_random *random, int32_t limit); /* 0 if limit <= 0 */
double random_unit(world_random *random);                  /* in [-1, 1] */
bool random_one_in(world_random *random, int32_t n);

/* Later ranks count themselves as ranks of nodes, "a,a,b" by rank, over TCP and the loopback interface; NULL: of one
 * node. */
void world_be_nodes(const char *nodes);

/* False, and says that tests are skipped, where UCX would find no devices. */
bool world_has_network(void);

/* Runs a suite whose tests are forked; returns the exit status of the program. */
struct Suite;
int world_main(struct Suite *suite);

/* Returns true under ASan or TSan, where memory and time differ. */
bool world_is_sanitized(void);

#endif
