/* SPDX-License-Identifier: Apache-2.0
 * All-gather, shift, broadcast, barrier and combine on every backend: odd sizes, zero sizes, and sizes beyond arenas,
 * as blocking calls and as repeated operations, of which many are in progress at once. */
#include <stdatomic.h>

#include "tests/support/world.h"

enum { RANKS_MAX = 17, MOVES_MAX = 64, GUARD = 32, PATTERN = 0x5a, ROUNDS = 4 };

typedef enum kind { GATHER, GATHER_IN_PLACE, SHIFT, BROADCAST, COMBINE, BARRIER, KINDS } kind;
static const char *const kind_names[] = {"gather", "gather in place", "shift", "broadcast", "combine", "barrier"};

/* One call of all ranks and its memory: `bytes`, followed by a guard. A combine has a row of floats, and all ranks but
 * the root have no keys, so that it moves the root's numbers. */
typedef struct move {
  kind kind;
  const char *algorithm;           /* a combine has it; NULL: chosen */
  size_t counts[RANKS_MAX], bytes; /* bytes: size of shift, of broadcast, and sum of all counts */
  int32_t root, distance;
  unsigned char *in[RANKS_MAX], *out[RANKS_MAX];
} move;

typedef struct task {
  int32_t nranks, nmoves;
  bool varies; /* see world_vary() */
  world_random random;
  move moves[MOVES_MAX];
} task;

/* ---- moves ------------------------------------------------------------------------------------------------------- */

static bool gathers(const move *move) { return move->kind <= GATHER_IN_PLACE; }

/* Byte `index` of the input of `rank` in `round`. */
static unsigned char byte_of(int32_t rank, int round, size_t index) {
  return (unsigned char)((size_t)rank * 37 + (size_t)round * 11 + index * 3 + (index >> 8));
}

static size_t begin_of(const move *move, int32_t rank) {
  size_t begin = 0;
  for (int32_t r = 0; r < rank; r++) begin += move->counts[r];
  return begin;
}

static unsigned char *mine_of(const move *move, int32_t rank) {
  return move->in[rank] + (move->kind == GATHER_IN_PLACE ? begin_of(move, rank) : 0);
}

/* The row of a combine; its lse is in the guard of the input. */
static float *lse_of(const move *move, int32_t rank) { return (float *)(void *)(move->in[rank] + move->bytes); }

static void fill_row(const move *move, int32_t rank, int round) {
  float *row = (float *)(void *)move->in[rank];
  for (size_t i = 0; i < move->bytes / sizeof *row; i++) row[i] = byte_of(rank, round, i);
  *lse_of(move, rank) = rank == move->root ? 0 : -INFINITY;
}

/* Sets the memory of a rank before a round. */
static void fill(const move *move, int32_t rank, int round) {
  size_t given = gathers(move) ? move->counts[rank] : move->bytes;
  memset(move->out[rank], PATTERN, move->bytes + GUARD);
  unsigned char *mine = mine_of(move, rank);
  if (move->kind == COMBINE) {
    fill_row(move, rank, round);
    return;
  }
  for (size_t i = 0; i < given && (move->kind != BROADCAST || rank == move->root); i++)
    mine[i] = byte_of(rank, round, i);
}

static size_t size_of(world_random *random, int index, size_t most) {
  static const size_t sizes[] = {0, 1, 7, 64, 1001, 8000, 8001, 61440, 61441}; /* the last are those of pieces */
  return index % 2 ? sizes[random_below(random, most > 61441 ? 9 : 5)] : (size_t)random_below(random, (int32_t)most);
}

/* Counts are uneven and may be zero. Sometimes only one rank has data, or none has. */
static void add_move(task *task, kind kind, size_t most) {
  static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring", NULL};
  world_random *random = &task->random;
  ck_assert_int_lt(task->nmoves, MOVES_MAX);
  move *made = &task->moves[task->nmoves++];
  made->kind = kind;
  made->root = random_below(random, task->nranks);
  made->distance = random_below(random, 2 * task->nranks + 3) - task->nranks - 1;
  made->algorithm = algorithms[random_below(random, 6)];
  if (kind != BARRIER) made->bytes = size_of(random, task->nmoves, most);
  if (kind == COMBINE) made->bytes = (1 + made->bytes % 128) * sizeof(float);
  if (gathers(made)) {
    int how = random_below(random, 6);
    for (int32_t r = 0; r < task->nranks; r++)
      made->counts[r] = how == 0                   ? 0
                        : how == 1                 ? (r == task->nranks / 2 ? most : 0)
                        : random_one_in(random, 3) ? 0
                                                   : size_of(random, r, most);
    made->bytes = begin_of(made, task->nranks);
  }
  for (int32_t r = 0; r < task->nranks; r++) {
    made->out[r] = world_take(made->bytes + GUARD);
    made->in[r] = kind == GATHER || kind == SHIFT || kind == COMBINE ? world_take(made->bytes + GUARD) : made->out[r];
  }
}

static bool are(world_rank *self, const move *move, const unsigned char *at, size_t bytes, int32_t from, int round) {
  for (size_t i = 0; i < bytes; i++)
    if (at[i] != byte_of(from, round, i))
      return world_check(self, false, "%s of %zu bytes, round %d: byte %zu from rank %d is %d, not %d",
                         kind_names[move->kind], bytes, round, i, from, at[i], byte_of(from, round, i));
  return true;
}

static bool is_row(world_rank *self, const move *move, const unsigned char *at, int round) {
  const float *row = (const float *)(const void *)at;
  for (size_t i = 0; i < move->bytes / sizeof *row; i++)
    if (!world_check(self, row[i] == byte_of(move->root, round, i), "combine of %zu bytes by %s, round %d: %zu is %g",
                     move->bytes, move->algorithm ? move->algorithm : "choice", round, i, (double)row[i]))
      return false;
  return true;
}

static bool is_right(world_rank *self, const move *move, int round) {
  const int32_t nranks = self->nranks, rank = self->rank;
  const unsigned char *out = move->out[rank];
  int32_t sender = ((rank - move->distance) % nranks + nranks) % nranks;
  bool good = true;
  if (move->kind == SHIFT)
    good =
        are(self, move, out, move->bytes, sender, round) && are(self, move, move->in[rank], move->bytes, rank, round);
  if (move->kind == BROADCAST) good = are(self, move, out, move->bytes, move->root, round);
  if (move->kind == COMBINE) good = is_row(self, move, out, round);
  for (int32_t from = 0; from < nranks && gathers(move) && good; from++)
    good = are(self, move, out + begin_of(move, from), move->counts[from], from, round);
  for (size_t i = move->bytes; i < move->bytes + GUARD && good; i++)
    good = world_check(self, out[i] == PATTERN, "%s of %zu bytes wrote beyond its end", kind_names[move->kind],
                       move->bytes);
  return good;
}

static banyan_status combine(world_rank *self, const move *move, banyan_op **op) {
  const int32_t values = (int32_t)(move->bytes / sizeof(float));
  banyan_combine_desc desc = BANYAN_COMBINE_DESC_INIT;
  banyan_partial in, out;
  desc.tokens = desc.heads = 1, desc.value_dim = values;
  desc.algorithm = move->algorithm, desc.stream = self->stream;
  banyan_partial_init(&in, world_at(self, move->in[self->rank]), BANYAN_F32, world_at(self, lse_of(move, self->rank)),
                      BANYAN_F32, 1, values);
  banyan_partial_init(&out, world_at(self, move->out[self->rank]), BANYAN_F32, NULL, BANYAN_F32, 1, values);
  return op ? banyan_combine_init(self->comm, &desc, &in, &out, op) : banyan_combine(self->comm, &desc, &in, &out);
}

/* Runs a blocking call, or creates an operation. */
static banyan_status call(world_rank *self, const move *move, banyan_op **op) {
  const task *task = self->argument;
  unsigned char *mine = world_at(self, mine_of(move, self->rank)), *out = world_at(self, move->out[self->rank]);
  if (task->varies) world_vary(self, (int32_t)(move - task->moves) + (op ? 11 : 0) + (int32_t)(move->bytes % 15));
  banyan_comm *comm = self->comm;
  switch (move->kind) {
  case SHIFT:
    return op ? banyan_shift_init(comm, mine, out, move->bytes, move->distance, op)
              : banyan_shift(comm, mine, out, move->bytes, move->distance);
  case BROADCAST:
    return op ? banyan_broadcast_init(comm, out, move->bytes, move->root, op)
              : banyan_broadcast(comm, out, move->bytes, move->root);
  case COMBINE: return combine(self, move, op);
  case BARRIER: return op ? banyan_barrier_init(comm, op) : banyan_barrier(comm);
  default:
    return op ? banyan_allgather_init(comm, mine, out, move->counts, op)
              : banyan_allgather(comm, mine, out, move->counts);
  }
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static bool all_are_right(world_rank *self, const task *task, int round) {
  bool good = world_ok(self, banyan_comm_status(self->comm), "status");
  for (int32_t i = 0; i < task->nmoves && good; i++) good = is_right(self, &task->moves[i], round);
  return world_meet(self) && good;
}

static void fill_all(world_rank *self, const task *task, int round) {
  for (int32_t i = 0; i < task->nmoves; i++) fill(&task->moves[i], self->rank, round);
}

static bool check_info(world_rank *self, const move *move, const banyan_op *op) {
  banyan_op_info info = {.size = sizeof info};
  char text[64];
  return world_ok(self, banyan_op_query(op, &info), "query") &&
         world_check(self, info.algorithm && *info.algorithm, "an operation has no algorithm") &&
         world_check(self, info.plan_hash != 0, "an operation has no hash") &&
         world_check(self, self->nranks == 1 || move->kind != COMBINE || info.messages_sent > 0,
                     "no message counted") &&
         world_check(self, banyan_op_describe(op, text, sizeof text) > 0, "an operation has no steps");
}

/* Operations keep the stream that the communicator had when they were created. */
static void move_all(world_rank *self) {
  const task *task = self->argument;
  banyan_op *ops[MOVES_MAX] = {NULL};
  bool good = !self->on->is_device || world_ok(self, banyan_comm_set_stream(self->comm, self->stream), "set stream");
  fill_all(self, task, 0);
  good = good && world_put(self);
  for (int32_t i = 0; i < task->nmoves && good; i++) good = world_ok(self, call(self, &task->moves[i], NULL), "call");
  good = good && world_finish(self) && all_are_right(self, task, 0);
  for (int32_t i = 0; i < task->nmoves && good; i++)
    good = world_ok(self, call(self, &task->moves[i], &ops[i]), "init");
  if (self->on->is_device) good = good && world_ok(self, banyan_comm_set_stream(self->comm, NULL), "set stream");
  good = good && world_record(self, ops, task->nmoves);
  for (int round = 1; round < ROUNDS && good; round++) {
    fill_all(self, task, round);
    good = world_replay(self) && all_are_right(self, task, round);
  }
  for (int32_t i = 0; i < task->nmoves && good && !self->on->is_device; i++)
    good = check_info(self, &task->moves[i], ops[i]);
  for (int32_t i = 0; i < task->nmoves; i++) banyan_op_free(ops[i]);
}

static const int32_t counts_of_ranks[] = {3, 2, 1, 4, 5, 7, 8, 17};

/* Calls larger than the arena are split into parts. */
TEST_EVERYWHERE(bytes_arrive, 32) {
  if (on == &world_staged) return; /* the staged backend runs these calls on host memory */
  task *made = world_take(sizeof *made);
  *made = (task){.nranks = world_ranks(on, counts_of_ranks[_i % 8]),
                 .varies = _i / 8 % 2 == 0,
                 .random = random_seed() * 1000 + (uint64_t)_i};
  const int each = on->is_device ? 2 : 8;
  for (int i = 0; i < each; i++)
    for (int kind = 0; kind < KINDS; kind++)
      add_move(made, (enum kind)kind, on->is_device ? 5000 : i % 4 < 3 ? 3000 : on == &world_nodes ? 400000 : 70000);
  WORLD_RUN(move_all, .nranks = made->nranks, .on = on, .argument = made, .one_device = _i % 4 == 3,
            .nodes = on == &world_nodes && _i % 3 == 1 ? "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q" : NULL,
            .arena_bytes = _i / 8 % 2 ? 64 << 10 : 1 << 20,
            .words = on == &world_emulated && _i % 3 == 1 ? "no-vmm,no-ipc" : NULL);
}

/* No rank leaves round i before all ranks have entered it. */
static void meet_often(world_rank *self) {
  atomic_int *came = self->argument;
  world_random random = random_seed() * 5 + (uint64_t)self->rank;
  for (int round = 0; round < 60; round++) {
    if (random_one_in(&random, 8)) world_sleep_ms(random_below(&random, 3));
    atomic_fetch_add_explicit(&came[round], 1, memory_order_relaxed);
    if (!world_ok(self, banyan_barrier(self->comm), "barrier")) return;
    int number = atomic_load_explicit(&came[round], memory_order_relaxed);
    if (!world_check(self, number == self->nranks, "barrier %d let a rank go when %d had come", round, number)) return;
  }
}

TEST_EVERYWHERE(nobody_leaves_a_barrier_early, RANKS_MAX) {
  atomic_int *came = world_take(60 * sizeof *came);
  if (on->is_device) {
    world_skip("nobody_leaves_a_barrier_early", "there it is the stream that waits");
    return;
  }
  WORLD_RUN(meet_often, .nranks = world_ranks(on, 1 + _i), .on = on, .argument = came);
}

int main(void) { return world_main(suite_of("bytes", 300)); }
