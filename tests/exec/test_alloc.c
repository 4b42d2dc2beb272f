/* SPDX-License-Identifier: Apache-2.0
 * Nothing is allocated between start and wait of a persistent operation, nor by a blocking call of a shape that was
 * called before: malloc and mmap of this program count the calls of threads that ask for it. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support/world.h"
#include "tests/support/suite.h"

static _Thread_local volatile bool counting;
static _Thread_local volatile int allocations;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#define CAN_COUNT 1

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

static void count_call(void) {
  if (counting) allocations++;
}

void *malloc(size_t bytes) {
  count_call();
  return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
  count_call();
  return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes) {
  count_call();
  return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
  count_call();
  return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
  count_call();
  *memory = __libc_memalign(alignment, bytes);
  return *memory ? 0 : ENOMEM;
}

void free(void *memory) {
  if (memory) count_call();
  __libc_free(memory);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  count_call();
  return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}
#else
#define CAN_COUNT 0
#endif

enum { TOKENS = 3, HEADS = 7, VALUE_DIM = 40, BYTES = 3000, OPS = 5 };

static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring", NULL};

typedef struct data {
  float in[TOKENS * HEADS * VALUE_DIM], lse[TOKENS * HEADS], out[TOKENS * HEADS * VALUE_DIM];
  unsigned char mine[BYTES], all[BYTES * WORLD_RANKS_MAX];
  size_t counts[WORLD_RANKS_MAX];
  banyan_combine_desc desc;
  banyan_partial in_partial, out_partial;
} data;

static data *new_data(world_rank *self, int variant) {
  data *made = calloc(1, sizeof *made);
  banyan_partial_init(&made->in_partial, made->in, BANYAN_F32, made->lse, BANYAN_F32, HEADS, VALUE_DIM);
  banyan_partial_init(&made->out_partial, made->out, BANYAN_F32, NULL, BANYAN_F32, HEADS, VALUE_DIM);
  made->desc = (banyan_combine_desc){.size = sizeof made->desc,
                                     .tokens = TOKENS,
                                     .heads = HEADS,
                                     .value_dim = VALUE_DIM,
                                     .wire = variant % 2 ? BANYAN_BF16 : BANYAN_F32,
                                     .order = (banyan_order)(variant / 6 % 2),
                                     .algorithm = algorithms[variant % 6]};
  for (int32_t i = 0; i < self->nranks; i++) made->counts[i] = BYTES;
  return made;
}

/* Two of them are late, so that the others come to yield and to sleep. */
static void be_late(const world_rank *self, int round) {
  if (round == 3 && self->rank == 0) world_sleep_ms(6);
  if (round == 5 && self->rank == self->nranks - 1) world_sleep_ms(6);
}

static bool none_counted(world_rank *self, const char *what, int variant) {
  counting = false;
  return world_check(self, allocations == 0, "%s, variant %d: %d allocations", what, variant, allocations);
}

static bool make_ops(world_rank *self, data *data, banyan_op **ops) {
  return world_ok(self, banyan_combine_init(self->comm, &data->desc, &data->in_partial, &data->out_partial, &ops[0]),
                  "init") &&
         world_ok(self, banyan_allgather_init(self->comm, data->mine, data->all, data->counts, &ops[1]), "init") &&
         world_ok(self, banyan_shift_init(self->comm, data->mine, data->all, BYTES, 1, &ops[2]), "init") &&
         world_ok(self, banyan_broadcast_init(self->comm, data->mine, BYTES, 0, &ops[3]), "init") &&
         world_ok(self, banyan_barrier_init(self->comm, &ops[4]), "init");
}

static bool start_and_wait(world_rank *self, banyan_op **ops, int round) {
  be_late(self, round);
  for (int i = 0; i < OPS; i++)
    if (!world_ok(self, banyan_start(ops[i]), "start")) return false;
  int done = 0;
  while (round % 2 && !done)
    if (!world_ok(self, banyan_test(ops[0], &done), "test")) return false;
  for (int i = 0; i < OPS; i++)
    if (!world_ok(self, banyan_wait(ops[i]), "wait")) return false;
  return true;
}

static void run_persistent(world_rank *self) {
  for (int variant = 0; variant < 12; variant++) {
    data *data = new_data(self, variant);
    banyan_op *ops[OPS] = {NULL};
    bool good = make_ops(self, data, ops);
    allocations = 0;
    counting = good; /* from the very first run */
    for (int round = 0; round < 8 && good; round++) good = start_and_wait(self, ops, round);
    good = none_counted(self, "start to wait", variant) && good;
    for (int i = 0; i < OPS; i++) banyan_op_free(ops[i]);
    free(data);
    if (!good) return;
  }
}

static bool call_all(world_rank *self, data *data) {
  return world_ok(self, banyan_combine(self->comm, &data->desc, &data->in_partial, &data->out_partial), "combine") &&
         world_ok(self, banyan_allgather(self->comm, data->mine, data->all, data->counts), "gather") &&
         world_ok(self, banyan_shift(self->comm, data->mine, data->all, BYTES, -1), "shift") &&
         world_ok(self, banyan_broadcast(self->comm, data->mine, BYTES, 0), "broadcast") &&
         world_ok(self, banyan_barrier(self->comm), "barrier");
}

static void run_blocking(world_rank *self) {
  for (int variant = 0; variant < 12; variant++) {
    data *data = new_data(self, variant);
    bool good = call_all(self, data);
    allocations = 0;
    counting = good;
    for (int round = 0; round < 8 && good; round++) {
      be_late(self, round);
      good = call_all(self, data);
    }
    good = none_counted(self, "repeated calls", variant) && good;
    free(data);
    if (!good) return;
  }
}

static const int32_t nranks_of[] = {1, 2, 4};
static const size_t arenas[] = {1 << 20, 64 << 10};

static world_setup setup_of(int index) {
  return (world_setup){.nranks = nranks_of[index / 4], .processes = index % 2, .arena_bytes = arenas[index / 2 % 2]};
}

TEST_LOOP(persistent_operations_allocate_nothing, 12) {
  world_setup setup = setup_of(_i);
  world_run(&setup, run_persistent);
}

TEST_LOOP(repeated_calls_allocate_nothing, 12) {
  world_setup setup = setup_of(_i);
  world_run(&setup, run_blocking);
}

/* The count itself works. */
TEST(counts_allocations) {
  allocations = 0;
  counting = true;
  void *volatile memory = malloc(10);
  free(memory);
  counting = false;
  ck_assert_int_eq(allocations, 2);
}

int main(void) {
  if (!CAN_COUNT) return 77;
  return world_main(suite_of("alloc", 120));
}
