/* SPDX-License-Identifier: Apache-2.0
 * Nothing is allocated between start and wait of a persistent operation, nor in a repeated blocking call. This
 * program's malloc and mmap count the calls of threads that enable it. They also count bytes: the memory of an
 * operation does not grow with the call. */
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "attention.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/rows.h"
#include "tests/support/world.h"

static _Thread_local volatile bool counting;
static _Thread_local volatile int allocations;
static _Thread_local volatile int64_t held, most_held; /* bytes of this thread while counting */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#define CAN_COUNT 1

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

static void count_bytes(int64_t bytes) {
  if (!counting) return;
  allocations++;
  held += bytes;
  if (held > most_held) most_held = held;
}

static void *count_memory(void *memory) {
  count_bytes((int64_t)malloc_usable_size(memory));
  return memory;
}

void *malloc(size_t bytes) { return count_memory(__libc_malloc(bytes)); }

void *calloc(size_t count, size_t bytes) { return count_memory(__libc_calloc(count, bytes)); }

void *realloc(void *memory, size_t bytes) {
  count_bytes(-(int64_t)malloc_usable_size(memory));
  return count_memory(__libc_realloc(memory, bytes));
}

void *aligned_alloc(size_t alignment, size_t bytes) { return count_memory(__libc_memalign(alignment, bytes)); }

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
  *memory = count_memory(__libc_memalign(alignment, bytes));
  return *memory ? 0 : ENOMEM;
}

void free(void *memory) {
  if (memory) count_bytes(-(int64_t)malloc_usable_size(memory));
  __libc_free(memory);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  count_bytes((int64_t)bytes);
  return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}
#else
#define CAN_COUNT 0
#endif

enum { TOKENS = 3, HEADS = 7, VALUE_DIM = 40, BYTES = 3000, OPS = 5 };

static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring", NULL};

typedef struct data {
  rows *rows;
  unsigned char mine[BYTES], all[BYTES * WORLD_RANKS_MAX];
  size_t counts[WORLD_RANKS_MAX];
} data;

static data *new_data(world_rank *self, int variant) {
  data *made = world_take(sizeof *made);
  made->rows = rows_take(TOKENS, HEADS, VALUE_DIM);
  made->rows->desc.wire = variant % 2 ? BANYAN_BF16 : BANYAN_F32;
  made->rows->desc.order = (banyan_order)(variant / 6 % 2);
  made->rows->desc.algorithm = algorithms[variant % 6];
  for (int32_t i = 0; i < self->nranks; i++) made->counts[i] = BYTES;
  return made;
}

/* Two ranks are late, so that the others yield and sleep. */
static void be_late(const world_rank *self, int round) {
  if (round == 3 && self->rank == 0) world_sleep_ms(6);
  if (round == 5 && self->rank == self->nranks - 1) world_sleep_ms(6);
}

static bool none_counted(world_rank *self, const char *what, int variant) {
  counting = false;
  return world_check(self, allocations == 0, "%s, variant %d: %d allocations", what, variant, allocations);
}

static bool make_ops(world_rank *self, data *data, banyan_op **ops) {
  return world_ok(self, rows_init(data->rows, self->comm, &ops[0]), "init") &&
         world_ok(self, banyan_allgather_init(self->comm, data->mine, data->all, data->counts, &ops[1]), "init") &&
         world_ok(self, banyan_shift_init(self->comm, data->mine, data->all, BYTES, 1, &ops[2]), "init") &&
         world_ok(self, banyan_broadcast_init(self->comm, data->mine, BYTES, 0, &ops[3]), "init") &&
         world_ok(self, banyan_barrier_init(self->comm, &ops[4]), "init");
}

static bool run_all(world_rank *self, banyan_op **ops, int round) {
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
    counting = good; /* from the first run on */
    for (int round = 0; round < 8 && good; round++) good = run_all(self, ops, round);
    good = none_counted(self, "start to wait", variant) && good;
    for (int i = 0; i < OPS; i++) banyan_op_free(ops[i]);
    if (!good) return;
  }
}

static bool call_all(world_rank *self, data *data) {
  return world_ok(self, rows_combine(data->rows, self->comm), "combine") &&
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
    if (!good) return;
  }
}

/* ---- pruned attention -------------------------------------------------------------------------------------------- */

enum { KEYS = 48, PAGE = 4, DIM = 512 };

typedef struct pruned {
  float q[DIM], k[KEYS][DIM], bounds[KEYS / PAGE * (2 + PAGE * (2 + 2 * DIM / 8))], values[DIM], lse[1];
  int32_t keys[1];
  banyan_attention_desc desc;
  banyan_combine_desc combine;
  banyan_partial out;
} pruned;

static pruned *new_pruned(bool is_exact) {
  pruned *p = calloc(1, sizeof *p);
  p->desc = attention_desc_of(1, 1, 1, KEYS, DIM, DIM, BANYAN_F32, BANYAN_F32, p->q, p->k, p->k, p->keys);
  p->combine = (banyan_combine_desc)BANYAN_COMBINE_DESC_INIT;
  p->desc.prune = (banyan_prune){.bounds = p->bounds, .keys = PAGE, .batch_pages = KEYS / PAGE, .top_pages = 2};
  p->combine.tokens = p->combine.heads = 1, p->combine.value_dim = DIM;
  p->combine.order = is_exact ? BANYAN_ORDER_EXACT : BANYAN_ORDER_PLAN;
  banyan_partial_init(&p->out, p->values, BANYAN_F32, p->lse, BANYAN_F32, 1, DIM);
  return p;
}

/* The sequence gains pages from run to run. */
TEST_RANKS(pruned_attention_allocates_nothing, 2, .nranks = 1 + _i) {
  for (int variant = 0; variant < 4; variant++) {
    pruned *p = new_pruned(variant % 2);
    banyan_op *op = NULL;
    bool blocking = variant / 2,
         good = blocking ||
                world_ok(self, banyan_attention_combine_init(self->comm, &p->desc, &p->combine, &p->out, &op), "init");
    for (int32_t keys = 1; keys <= KEYS && good; keys++) {
      p->keys[0] = keys;
      good = world_ok(self, banyan_page_bounds_update(&p->desc, NULL), "bounds");
      allocations = 0;
      counting = good && (!blocking || keys > 1); /* the first call plans */
      if (good && blocking)
        good = world_ok(self, banyan_attention_combine(self->comm, &p->desc, &p->combine, &p->out), "attention");
      else if (good)
        good = world_runs(self, op);
      good = none_counted(self, "a longer sequence", variant) && good;
    }
    banyan_op_free(op);
    free(p);
  }
}

/* Keys are selected first. Each rank offers up to KEYS of them. */
static void run_selected(world_rank *self) {
  float scores[KEYS];
  int64_t indices[KEYS];
  int32_t own[KEYS];
  for (int variant = 0; variant < 2; variant++) {
    pruned *p = new_pruned(false);
    banyan_select_desc select = BANYAN_SELECT_DESC_INIT;
    banyan_op *op = NULL;
    p->desc.prune = (banyan_prune){.bounds = NULL};
    p->desc.kv.k_batch_stride = p->desc.kv.v_batch_stride = DIM;
    p->desc.kv.pages = (banyan_pages){.table = own, .table_stride = KEYS, .count = KEYS, .keys = 1};
    select.tokens = 1, select.k = select.offers = KEYS, select.scores = scores, select.indices = indices;
    select.own = own, select.own_counts = p->keys;
    p->desc.select = &select;
    for (int32_t i = 0; i < KEYS; i++) indices[i] = -1;
    bool good = variant ||
                world_ok(self, banyan_attention_combine_init(self->comm, &p->desc, &p->combine, &p->out, &op), "init");
    for (int32_t keys = 0; keys < KEYS && good; keys++) {
      scores[keys] = (float)keys, indices[keys] = keys * self->nranks + self->rank;
      allocations = 0;
      counting = !variant || keys > 0; /* the first call plans */
      if (variant)
        good = world_ok(self, banyan_attention_combine(self->comm, &p->desc, &p->combine, &p->out), "attention");
      else
        good = world_runs(self, op);
      good = none_counted(self, "more offers", variant) && good;
    }
    banyan_op_free(op);
    free(p);
  }
}

TEST_LOOP(selected_attention_allocates_nothing, 2) {
  setenv("BANYAN_THREADS", "1", 1); /* more have memory that grows with the keys */
  WORLD_RUN(run_selected, .nranks = 1 + _i);
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

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

/* ---- memory of large calls --------------------------------------------------------------------------------------- */

/* A call for `tokens` tokens; each run has `valid` tokens. */
typedef struct large {
  int32_t tokens, heads, value_dim, valid;
  size_t arena_bytes;
  banyan_scatter scatter;
} large;

static const large larges[] = {
    {8192, 128, 512, 3, 0, BANYAN_SCATTER_NONE},         {65536, 128, 512, 3, 0, BANYAN_SCATTER_NONE},
    {65536, 128, 512, 3, 0, BANYAN_SCATTER_TOKENS},      {65536, 128, 512, 3, 0, BANYAN_SCATTER_HEADS},
    {1 << 30, 1, 512, 3, 0, BANYAN_SCATTER_NONE},        {INT32_MAX, 1, 512, 5, 0, BANYAN_SCATTER_TOKENS},
    {1 << 24, 127, 512, 0, 65536, BANYAN_SCATTER_HEADS}, {48, 96, 512, 48, 1 << 24, BANYAN_SCATTER_NONE},
    {48, 96, 512, 48, 65536, BANYAN_SCATTER_NONE},       {48, 96, 512, 48, 65536, BANYAN_SCATTER_TOKENS},
};
enum { LARGES = sizeof larges / sizeof larges[0], LARGE_MOST = 2 << 20 };

/* The caller's memory for all tokens of a call; runs touch little of it. */
static void *reserve(const large *call, int64_t row_bytes) {
  size_t bytes = (size_t)call->tokens * (size_t)call->heads * (size_t)row_bytes;
  void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return made == MAP_FAILED ? NULL : made;
}

static void release(const large *call, int64_t row_bytes, void *memory) {
  if (memory) munmap(memory, (size_t)call->tokens * (size_t)call->heads * (size_t)row_bytes);
}

/* Runs in place if all ranks get all rows. Rank r contributes values r + 1 with equal weight. */
static bool run_large(world_rank *self, bool persistent) {
  const large *call = self->argument;
  size_t values = (size_t)call->valid * (size_t)call->heads * (size_t)call->value_dim;
  int64_t row_bytes = 2 * call->value_dim;
  bool in_place = call->scatter == BANYAN_SCATTER_NONE;
  uint16_t *in = reserve(call, row_bytes), *out = in_place ? in : reserve(call, row_bytes);
  float *lse = reserve(call, sizeof *lse), *out_lse = in_place ? lse : reserve(call, sizeof *lse);
  if (!in || !out || !lse || !out_lse) return world_check(self, false, "no addresses for %d tokens", call->tokens);
  const float given = (float)(self->rank + 1);
  for (size_t i = 0; i < values; i++) memcpy(&in[i], (const char *)&given + 2, 2);
  banyan_valid_rows valid = BANYAN_VALID_ROWS_INIT;
  valid.tokens = &call->valid;
  banyan_combine_desc desc = BANYAN_COMBINE_DESC_INIT;
  desc.tokens = call->tokens;
  desc.heads = call->heads;
  desc.value_dim = call->value_dim;
  desc.scatter = call->scatter;
  desc.valid = &valid;
  int32_t first, heads = call->heads, tokens = call->valid;
  if (call->scatter == BANYAN_SCATTER_HEADS) banyan_split(heads, self->nranks, self->rank, &first, &heads);
  if (call->scatter == BANYAN_SCATTER_TOKENS) banyan_split(tokens, self->nranks, self->rank, &first, &tokens);
  banyan_partial from, to;
  banyan_partial_init(&from, in, BANYAN_BF16, lse, BANYAN_F32, call->heads, call->value_dim);
  banyan_partial_init(&to, out, BANYAN_BF16, out_lse, BANYAN_F32, heads, call->value_dim);
  banyan_op *op = NULL;
  held = most_held = 0;
  counting = true;
  bool good = persistent ? world_ok(self, banyan_combine_init(self->comm, &desc, &from, &to, &op), "init") &&
                               world_runs(self, op)
                         : world_ok(self, banyan_combine(self->comm, &desc, &from, &to), "combine");
  counting = false;
  good = good && world_check(self, most_held <= LARGE_MOST, "%d tokens of %d x %d took %lld bytes", call->tokens,
                             call->heads, call->value_dim, (long long)most_held);
  const float merged = 1.5F;
  for (size_t i = 0; i < (size_t)tokens * (size_t)heads * (size_t)call->value_dim && good; i++)
    good = world_check(self, memcmp(&out[i], (const char *)&merged + 2, 2) == 0, "value %zu is wrong", i);
  banyan_op_free(op);
  release(call, row_bytes, in);
  release(call, sizeof *lse, lse);
  release(call, row_bytes, in_place ? NULL : out);
  release(call, sizeof *lse, in_place ? NULL : out_lse);
  return good;
}

static void run_larges(world_rank *self) {
  if (run_large(self, true)) run_large(self, false);
}

TEST_LOOP(memory_does_not_grow_with_the_call, LARGES) {
  large argument = larges[_i];
  WORLD_RUN(run_larges, .nranks = 2, .arena_bytes = argument.arena_bytes, .argument = &argument);
}

/* Checks that the counter counts. */
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
