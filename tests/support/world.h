/* SPDX-License-Identifier: Apache-2.0
 * Tests of the library as a whole run in a world of ranks, each with a communicator. A rank notes failures in memory
 * that all share, and they fail the test once the world has ended.
 *
 * A test of behaviour states shapes, inputs and what must hold, and is one file. A backend gives ranks, memory and
 * devices, and is one row of world_backends[]: threads, processes, processes on nodes (world.c), emulated devices
 * (world_emulated.c), emulated devices on nodes, and a GPU (world_gpu.c). TEST_EVERYWHERE(name, count) { ... } runs
 * once for each `on`, the backend, and `_i`; each backend takes its share of `count` cases. On a GPU it runs where
 * CK_RUN_CASE is "gpu" or "gpu processes", at most GPU_TEST_CASES cases of each test. Its body does as follows:
 *   - All memory of calls is from world_take(), whether ranks run or not.
 *   - A rank calls world_put() once that memory is filled, and gives calls its address by world_at(), and self->stream.
 *   - After world_finish() the memory holds what its calls wrote, and the rank looks at it. All ranks call it.
 *   - world_record() and world_replay() run operations again and again, which on devices are captured in a graph. */
#pragma once

#include <sys/types.h>

#include "banyan.h"
#include "tests/support/generator.h"
#include "tests/support/status.h"

enum { WORLD_RANKS_MAX = 72 };

/* The deadline of tests that do not test deadlines. It ends a test that hangs. It is so long that a test which makes
 * progress does not reach it, even on a busy machine. */
#define WORLD_GUARD_S 600
#define WORLD_GUARD_NS (WORLD_GUARD_S * INT64_C(1000000000))

typedef struct world world;
typedef struct world_rank world_rank;
typedef struct world_setup world_setup;

typedef struct world_backend {
  const char *name;
  bool processes, is_device;
  int every;             /* it takes one of so many cases, */
  int32_t ranks_max;     /* and worlds of no more ranks */
  int32_t timeout_s;     /* deadline of communicators; 0: WORLD_GUARD_S */
  bool (*is_here)(void); /* if false, it has printed why, and tests are skipped; NULL: always true */
  void (*begin)(const world_setup *setup), (*end)(void); /* before and after ranks; NULL: nothing to do */
  bool (*open)(world_rank *self);                        /* device and stream; likewise */
  void (*close)(world_rank *self);
  void *(*at)(const world_rank *self, const void *memory);
  bool (*put)(world_rank *self), (*finish)(world_rank *self);
  bool (*capture)(world_rank *self, bool on), (*replay)(world_rank *self);
} world_backend;

enum { WORLD_BACKENDS = 7 };
extern const world_backend *const world_backends[WORLD_BACKENDS];
extern const world_backend world_threads, world_processes, world_nodes, world_emulated, world_staged, world_gpu,
    world_gpu_processes;

struct world_rank {
  world *world;
  int32_t rank, nranks;
  banyan_comm *comm; /* made before and destroyed after the body, unless `bare`; NULL if the body destroyed it */
  banyan_bootstrap bootstrap;
  void *argument;
  const world_backend *on;
  const world_setup *setup;
  void *stream;               /* NULL on hosts */
  char device[20];            /* device of the communicator; "": the CPU */
  struct world_device *place; /* owned by the backend */
  banyan_op *const *recorded;
  int nrecorded;
  uint32_t replays;
};

struct world_setup {
  int32_t nranks;
  const world_backend *on; /* NULL: processes or threads */
  bool processes;          /* otherwise by the backend, or threads */
  bool bare;               /* the body makes its communicator itself */
  bool deaths;             /* ranks may die of signals */
  int64_t timeout_ns;      /* 0: WORLD_GUARD_NS */
  size_t arena_bytes;
  const char *algorithm;
  bool one_device;   /* emulated: all ranks share it, else each has its own */
  const char *words; /* more words for FAKE_CUDA; NULL: none */
  const char *nodes; /* the node of each rank, "a,a,b"; NULL: as the backend has it */
  bool fabric;       /* emulated nodes: devices have fabric handles, so that they are not staged */
  int32_t comms;     /* communicators that are in use at once on a GPU; 0: 1 */
  void *argument;    /* processes may write there only to memory from world_share() or world_take() */
  /* Processes: the parent calls it while they run; it may send them signals. */
  void (*conduct)(world *world, const pid_t *pids, void *argument);
};

typedef void (*world_body)(world_rank *self);

/* Runs the body on every rank, and fails the test with the first noted failure. */
void world_run(const world_setup *setup, world_body body);

/* Runs `body` in a world of these fields: WORLD_RUN(body, .nranks = 2). */
#define WORLD_RUN(body, ...)            \
  do {                                  \
    world_setup setup_ = {__VA_ARGS__}; \
    world_run(&setup_, body);           \
  } while (0)

/* TEST_RANKS(name, count, fields) { ... } runs its body on every rank of a world of these fields, for each _i. */
#define TEST_RANKS(name, count, ...)                              \
  static void name##_rank(world_rank *self);                      \
  TEST_LOOP(name, count) { WORLD_RUN(name##_rank, __VA_ARGS__); } \
  static void name##_rank(world_rank *self)

/* Returns the configuration of a rank's communicator, on its device. */
banyan_comm_config world_config(const world_rank *self);

/* Returns zeroed memory for calls, aligned to 64 bytes and shared by all ranks. It lives until the test ends. */
void *world_take(size_t bytes);

/* Returns the address for calls of this rank of memory from world_take(). NULL and other addresses are returned
 * unchanged. */
void *world_at(const world_rank *self, const void *memory);
banyan_partial world_partial(const world_rank *self, banyan_partial partial);
banyan_valid_rows world_valid(const world_rank *self, banyan_valid_rows valid);

/* For backends: the memory taken so far; the nodes of ranks; and a check that no object of the fake driver is left. */
unsigned char *world_taken(size_t *bytes);
void world_check_left(void);
const char *world_nodes_of(const world_setup *setup);

/* Copies the current contents of memory to devices; and waits until everything that this rank's calls have begun has
 * ended, after which memory has the results. False: a failure is noted. */
bool world_put(world_rank *self);
bool world_finish(world_rank *self);

/* Devices: captures the work that the rank enqueues on its stream between on and off. */
bool world_capture(world_rank *self, bool on);

/* Records starts of these operations, and runs them. The array must remain. world_replay() includes put and finish. On
 * hosts all are started before any is waited for, and each rank waits and tests in an order of its own. */
bool world_record(world_rank *self, banyan_op *const *ops, int count);
bool world_replay(world_rank *self);

/* Returns true if the backend can run here; otherwise it has printed the reason. */
bool world_is_here(const world_backend *on);
/* Returns this number of ranks, or fewer if the backend has no more. */
int32_t world_ranks(const world_backend *on, int32_t nranks);
/* Returns true if each test runs only a few cases, for emulated GPUs. */
bool world_is_quick(void);
/* Emulated devices: from now on calls rotate through all protocols and algorithms, for any size. All ranks pass the
 * same number. */
void world_vary(world_rank *self, int32_t number);
/* With CK_FORK=no all tests of a program run in its process, and each begins by world_anew(): without the memory and
 * environment of those before it. */
bool world_is_one_process(void);
void world_anew(void);
/* In such a process, keeps all GPUs open and kernels loaded until it ends. */
void world_hold_gpus(void);
/* GPUs: returns the rank's GPU, and the number of GPUs. */
struct gpu *world_gpu_of(const world_rank *self);
int32_t world_gpus(void);

/* Notes a failure if not ok, and aborts the communicator so that the other ranks end as well. Returns ok. */
bool world_check(world_rank *self, bool ok, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Does the same for a status that should be BANYAN_OK, with the library's error text. */
bool world_ok(world_rank *self, banyan_status status, const char *what);

/* Does the same for a status that should be `expected`, with a text that contains `says`. */
bool world_gets(world_rank *self, banyan_status status, banyan_status expected, const char *says);

/* Starts the operation and waits for it. */
bool world_runs(world_rank *self, banyan_op *op);

/* Waits until the communicator has failed. Notes a failure unless it has `status` and `culprit`, and a text that
 * contains `says`. */
bool world_fails(world_rank *self, banyan_status status, int32_t culprit, const char *says);

/* The test's own barrier of all ranks. Returns false if it took longer than WORLD_GUARD_S or a rank has failed. */
bool world_meet(world_rank *self);

/* Returns the number of plans that the communicator has made, from its description. */
int world_plans_made(const world_rank *self);

/* A flag that ranks and the conductor can set and wait for. */
void world_signal(world *world, int flag);
bool world_await(world *world, int flag, double seconds);

/* A conductor that stops one rank after another for a moment, until one of them signals WORLD_DONE. `argument` is their
 * number, as int32_t. */
enum { WORLD_DONE = 0 };
void world_stop_in_turn(world *world, const pid_t *pids, void *argument);

/* Allocates memory that is zero at first, and shared with processes forked afterwards. */
void *world_share(size_t bytes);
void world_unshare(void *memory, size_t bytes);

double world_now_s(void);
void world_sleep_ms(double milliseconds);

/* If there is no UCX or it would find no devices, returns false and reports that tests are skipped. */
bool world_has_network(void);

/* Later ranks count themselves as ranks of nodes, "a,a,b" by rank, over TCP and the loopback interface; NULL: of one
 * node. Returns false if that cannot be. */
bool world_be_nodes(const char *nodes);

/* Used by TEST_EVERYWHERE: cases of a backend's share, and the number of the test of a case. */
int world_share_of(const world_backend *on, int count);
int world_case_of(const world_backend *on, int index, int count);
/* Reports to check-gpu that this test does not run here, and why. */
void world_skip(const char *test, const char *why);

#define TEST_EVERYWHERE(test_, count)                                                              \
  static void test_(const world_backend *on, int _i);                                              \
  static void test_##_case(int index_) {                                                           \
    const world_backend *on = world_backends[index_ / 10000];                                      \
    if (world_is_here(on)) test_(on, world_case_of(on, index_, count));                            \
  }                                                                                                \
  __attribute__((constructor)) static void test_##_add(void) {                                     \
    static const TTest test = {#test_, test_##_case, __FILE__, __LINE__};                          \
    static suite_test self[WORLD_BACKENDS];                                                        \
    for (int b = 0; b < WORLD_BACKENDS; b++) {                                                     \
      self[b].case_name = world_backends[b]->name;                                                 \
      suite_add(&self[b], &test, 10000 * b, 10000 * b + world_share_of(world_backends[b], count)); \
    }                                                                                              \
  }                                                                                                \
  static void test_(const world_backend *on, int _i)

/* Runs a suite whose tests are forked; returns the exit status of the program. */
int world_main(Suite *suite);

/* Returns true under ASan or TSan, where memory and time differ. */
bool world_is_sanitized(void);
