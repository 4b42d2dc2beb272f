/* SPDX-License-Identifier: Apache-2.0
 * A rank runs out of memory while a communicator is created or split, at each of the library's allocations in turn. It
 * fails at once, with a text that names it. Ranks are threads of this program, on one node and on several. This
 * program's malloc fails when the library, which is linked into it, calls it. */
#include "tests/support/directory.h"
#include "tests/support/placed.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#define CAN_FAIL 1

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
extern char __executable_start, etext;

/* Number of allocations of this thread up to the failing one; 0: none fails. */
static _Thread_local volatile int left;

static bool fails(const void *caller) {
  uintptr_t at = (uintptr_t)caller;
  if (!left || at < (uintptr_t)&__executable_start || at > (uintptr_t)&etext) return false;
  if (--left > 0) return false;
  errno = ENOMEM;
  return true;
}

void *malloc(size_t bytes) { return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes); }

void *calloc(size_t count, size_t bytes) {
  return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes) {
  return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
  return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, bytes);
}
#else
#define CAN_FAIL 0
static _Thread_local volatile int left;
#endif

enum { RANKS_MAX = 4, TRIALS_MAX = 400, ODD_BYTES = 7 };

/* A creation or a split, and what became of each rank. */
typedef struct trial {
  int32_t failing;
  int nth; /* number of the allocation that fails on this rank */
  bool has_failed;
  banyan_status status[RANKS_MAX];
  char text[RANKS_MAX][512];
} trial;

static void begin(const world_rank *self) {
  const trial *trial = self->argument;
  left = self->rank == trial->failing ? trial->nth : 0;
}

static void note(const world_rank *self, banyan_status status) {
  trial *trial = self->argument;
  if (self->rank == trial->failing) trial->has_failed = left == 0;
  left = 0;
  trial->status[self->rank] = status;
  snprintf(trial->text[self->rank], sizeof trial->text[0], "%s", banyan_last_error());
}

/* Peers may wait for a rank that has failed. Its next all-gather, of another size, fails for all of them. */
static void create(world_rank *self) {
  unsigned char mine[ODD_BYTES] = {0}, all[RANKS_MAX * ODD_BYTES];
  const banyan_comm_config config = world_config(self);
  begin(self);
  banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
  note(self, status);
  if (status != BANYAN_OK)
    self->bootstrap.allgather(self->bootstrap.context, mine, all, sizeof mine, 10 * INT64_C(1000000000));
}

/* Returns false once all allocations succeed. */
static bool try_without(int32_t nranks, int32_t failing, int nth) {
  trial done = {.failing = failing, .nth = nth};
  WORLD_RUN(create, .nranks = nranks, .bare = true, .argument = &done, .arena_bytes = 64 << 10);
  const banyan_status status = done.status[failing];
  const char *text = done.text[failing];
  for (int32_t r = 0; r < nranks && !done.has_failed; r++)
    ck_assert_msg(done.status[r] == BANYAN_OK, "rank %d, and all allocations succeeded: %s", r, done.text[r]);
  /* Peers get the error of the failed rank, however long their deadline is. */
  for (int32_t r = 0; r < nranks && status != BANYAN_OK; r++)
    ck_assert_msg(done.status[r] != BANYAN_OK && done.status[r] != BANYAN_ERR_TIMEOUT,
                  "allocation %d of rank %d failed, and rank %d has %s: %s", nth, failing, r,
                  banyan_status_string(done.status[r]), done.text[r]);
  /* A connection without memory for its messages fails with a system error. */
  char name[16];
  snprintf(name, sizeof name, "rank %d", failing);
  bool says_why = status == BANYAN_ERR_MEMORY || strstr(text, "out of memory");
  ck_assert_msg(status == BANYAN_OK || (says_why && strstr(text, name)), "allocation %d failed: %s: %s", nth,
                banyan_status_string(status), text);
  return done.has_failed;
}

static const struct {
  placed kind;
  int32_t nranks, failing;
} cases[] = {{PLACED_THREADS, 3, 1}, {PLACED_APART, 3, 1}, {PLACED_APART, 2, 0}, {PLACED_APART, 2, 1}};

/* Writes the topology of a host with one NUMA node. Returns false if this build reads none. */
static bool describe(void) {
#ifdef HAVE_JANSSON
  char path[128];
  snprintf(path, sizeof path, "%s/machine.json", directory);
  FILE *file = fopen(path, "w");
  ck_assert_ptr_nonnull(file);
  fputs("{\"nodes\": [{\"id\": \"h\", \"kind\": \"host\"}, {\"id\": \"n\", \"kind\": \"numa\", \"parent\": \"h\"}]}\n",
        file);
  ck_assert_int_eq(fclose(file), 0);
  setenv("BANYAN_TOPO", path, 1);
  return true;
#else
  return false;
#endif
}

TEST_LOOP(creation, sizeof cases / sizeof cases[0]) {
  world_setup setup;
  if (!placed_set(cases[_i].kind, "a,a,b", "a,b,c", &setup)) return;
  /* NIC probes make hundreds of allocations, and a failed one only gives a coarser locality. */
  if (cases[_i].kind == PLACED_APART && !describe()) return;
  int nth = 1;
  while (nth < TRIALS_MAX && try_without(cases[_i].nranks, cases[_i].failing, nth)) nth++;
  ck_assert_int_lt(nth, TRIALS_MAX);
  ck_assert_msg(nth > 5, "%d allocations are all that the library made", nth - 1);
  printf("%s: %d allocations failed in turn\n", cases[_i].kind == PLACED_APART ? "ranks of several nodes" : "threads",
         nth - 1);
  fflush(stdout);
}

/* ---- splits ------------------------------------------------------------------------------------------------------ */

/* Ranks 0 and 1 have one color, 2 and 3 another. */
static void split_without(world_rank *self) {
  banyan_comm *part = NULL;
  int32_t color = self->rank / 2, first = self->rank, second = -1;
  if (!world_ok(self, banyan_barrier(self->comm), "barrier")) return;
  begin(self);
  note(self, banyan_comm_split(self->comm, color, 0, &part));
  if (part && world_ok(self, banyan_shift(part, &first, &second, sizeof first, 1), "shift of a part"))
    world_check(self, second == (self->rank ^ 1), "got the rank %d", second);
  if (world_meet(self)) world_ok(self, banyan_barrier(self->comm), "barrier of the communicator that was split");
  banyan_comm_destroy(part);
}

/* The failing rank's color gets nothing. The other color gets its communicator, unless memory is missing before any
 * rank knows the colors. The communicator that was split remains in any case. */
TEST(a_split) {
  int failed = 0, both = 0;
  trial trial = {.failing = 1, .has_failed = true};
  for (trial.nth = 1; trial.nth < TRIALS_MAX && trial.has_failed; trial.nth++) {
    WORLD_RUN(split_without, .nranks = 4, .argument = &trial, .arena_bytes = 64 << 10);
    bool first = trial.status[0] == BANYAN_OK, other = trial.status[2] == BANYAN_OK;
    ck_assert_msg(first == (trial.status[1] == BANYAN_OK) && other == (trial.status[3] == BANYAN_OK),
                  "allocation %d: ranks of a color differ: %s, %s", trial.nth, trial.text[0], trial.text[1]);
    ck_assert_msg(other || !first, "allocation %d: only the other color failed: %s", trial.nth, trial.text[2]);
    ck_assert_msg(first || strstr(trial.text[0], "rank 1"), "allocation %d: %s", trial.nth, trial.text[0]);
    failed += !first, both += !other;
  }
  printf("a split: %d allocations failed in turn, %d failed one color, %d both\n", trial.nth - 2, failed - both, both);
  ck_assert_int_lt(trial.nth, TRIALS_MAX);
  ck_assert_int_gt(failed - both, both);
}

int main(void) {
  if (!CAN_FAIL) return 77;
  return world_main(suite_with("no_memory", WORLD_GUARD_S, directory_make, directory_remove));
}
