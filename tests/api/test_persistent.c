/* SPDX-License-Identifier: Apache-2.0
 * Long sequences of blocking calls of more shapes than are kept, calls that repeat others but for their data, traffic
 * from or to one rank, and starts after a failure. Ranks are late at times, to show memory that is reused too early. */
#include "tests/support/rows.h"
#include "tests/support/world.h"

enum { TOKENS = 2, HEADS = 5, VALUE_DIM = 24, ROWS = TOKENS * HEADS, VALUES = ROWS * VALUE_DIM };

static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring", NULL};

/* Rank r contributes lse = ln(r + 1) and values round + r + i. The merge is sum_r (r + 1)(round + r + i) / sum_r (r +
 * 1). */
static void fill(const rows *rows, int32_t rank, int round) {
  for (int i = 0; i < VALUES; i++) rows->values[i] = (float)(round % 1000 + rank + i % 97);
  for (int i = 0; i < ROWS; i++) rows->lse[i] = logf((float)rank + 1);
  memset(rows->merged, 0xCB, VALUES * sizeof *rows->merged);
}

static bool holds_merge(world_rank *self, const rows *of, int round, int rows, const char *what) {
  double weights = 0, ranks = 0;
  for (int32_t r = 0; r < self->nranks; r++) {
    weights += r + 1;
    ranks += (double)r * (r + 1);
  }
  for (int i = 0; i < rows * VALUE_DIM; i++) {
    double expected = round % 1000 + i % 97 + ranks / weights;
    if (!world_check(self, fabs((double)of->merged[i] - expected) <= 1e-5 * (expected + 1),
                     "%s, round %d: value %d is %g, not %g", what, round, i, (double)of->merged[i], expected))
      return false;
  }
  return true;
}

static void be_late(world_random *random) {
  if (random_one_in(random, 40)) world_sleep_ms(random_below(random, 4));
}

/* ---- more shapes than are kept ----------------------------------------------------------------------------------- */

static void forget_shapes(world_rank *self) {
  world_random random = random_seed() * 21;
  unsigned char sent[100], received[100];
  for (int round = 0; round < 400; round++) {
    int32_t bytes = 1 + (round < 160 ? round % 40 : random_below(&random, 40)), distance = round / 40 % 2;
    memset(sent, round + self->rank, sizeof sent);
    if (!world_ok(self, banyan_shift(self->comm, sent, received, (size_t)bytes, distance), "shift")) return;
    int32_t from = (self->rank + self->nranks - distance) % self->nranks;
    if (!world_check(self, received[bytes - 1] == (unsigned char)(round + from), "shift %d is wrong", round)) return;
  }
}

/* ---- repeated calls ---------------------------------------------------------------------------------------------- */

/* Blocking calls are recognised by the bytes of their structs. The data behind the pointers may still change, and each
 * rank mixes new and reused memory in its own way. */
static void repeat_calls(world_rank *self) {
  enum { SETS = 3 };
  world_random same = random_seed() * 41, own = random_seed() * 43 + (uint64_t)self->rank;
  rows *sets[SETS], call; /* the same addresses of structs, with other contents */
  char algorithm[16];
  int32_t tokens;
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = &tokens};
  for (int i = 0; i < SETS; i++) sets[i] = rows_take(TOKENS, HEADS, VALUE_DIM);
  for (int round = 0; round < 600; round++) {
    int other = random_below(&same, 4); /* 0: a plain call, in at least half of the rounds */
    call = *sets[0];
    call.desc.tokens = 1 + random_below(&same, TOKENS), call.desc.algorithm = other == 1 ? algorithm : NULL;
    snprintf(algorithm, sizeof algorithm, "%s", algorithms[random_below(&same, 5)]);
    tokens = random_below(&same, call.desc.tokens + 1);
    if (other == 2) call.desc.valid = &valid;
    if (random_one_in(&same, 8) && !world_ok(self, banyan_barrier(self->comm), "barrier")) break;
    int i = random_one_in(&own, 2) ? 0 : random_below(&own, SETS), k = random_one_in(&own, 2) ? i : (i + 1) % SETS;
    fill(sets[i], self->rank, round);
    fill(sets[k], self->rank, round);
    call.in = sets[i]->in;
    call.out = sets[k]->out;
    banyan_status status = rows_combine(&call, self->comm);
    int32_t rows = (other == 2 ? tokens : call.desc.tokens) * HEADS;
    if (!world_ok(self, status, "combine") || !holds_merge(self, sets[k], round, rows, "repeated")) break;
  }
}

/* A call that passed its checks before fails because the data behind its pointers changed. */
static void repeat_wrongly(world_rank *self) {
  rows call = *rows_take(TOKENS, HEADS, VALUE_DIM), named;
  float scale = 1;
  char algorithm[16] = "oneshot";
  call.in.values_dtype = BANYAN_E4M3;
  call.in.values_scale = &scale;
  named = call;
  named.desc.algorithm = algorithm;
  for (int i = 0; i < 4; i++) {
    scale = i % 2 ? -1 : 1;
    banyan_status status = rows_combine(&call, self->comm);
    world_check(self, status == (i % 2 ? BANYAN_ERR_ARGUMENT : BANYAN_OK), "a scale of %g: %s", (double)scale,
                banyan_status_string(status));
    snprintf(algorithm, sizeof algorithm, "%s", i % 2 ? "none" : "oneshot");
    status = rows_combine(&named, self->comm);
    world_check(self, (status == BANYAN_OK) == (i % 2 == 0), "algorithm %s: %s", algorithm,
                banyan_status_string(status));
  }
}

/* ---- one-sided traffic ------------------------------------------------------------------------------------------- */

/* Roots only receive or only send, and get no reply. They must learn in another way which memory they may overwrite. */
static bool one_sided(world_rank *self, rows *rows, world_random *same, int round) {
  int32_t root = random_below(same, self->nranks);
  if (random_one_in(same, 2)) {
    rows->desc.algorithm = algorithms[random_below(same, 6)];
    rows->desc.scatter = BANYAN_SCATTER_ROOT;
    rows->desc.root = root;
    fill(rows, self->rank, round);
    return world_ok(self, rows_combine(rows, self->comm), "combine") &&
           (self->rank != root || holds_merge(self, rows, round, ROWS, "to a root"));
  }
  float note[200];
  for (int i = 0; i < 200; i++) note[i] = (float)(self->rank == root ? round * 3 + i : -1);
  if (!world_ok(self, banyan_broadcast(self->comm, note, sizeof note, root), "broadcast")) return false;
  for (int i = 0; i < 200; i++)
    if (!world_check(self, note[i] == (float)(round * 3 + i), "broadcast %d: value %d is %g", round, i,
                     (double)note[i]))
      return false;
  return true;
}

static void run_one_sided(world_rank *self) {
  world_random same = random_seed() * 31, own = random_seed() * 37 + (uint64_t)self->rank;
  rows *rows = rows_take(TOKENS, HEADS, VALUE_DIM);
  for (int round = 0; round < 1200; round++) {
    be_late(&own);
    if (!one_sided(self, rows, &same, round)) break;
  }
}

/* ---- after a failure --------------------------------------------------------------------------------------------- */

/* Two operations are in progress when the communicator fails. Every later start or call returns the failure. */
static void start_after_failure(world_rank *self) {
  banyan_op *ops[2] = {NULL};
  for (int i = 0; i < 2; i++)
    if (!world_ok(self, banyan_barrier_init(self->comm, &ops[i]), "init")) return;
  if (!world_meet(self)) return;
  for (int i = 0; i < 2 && self->rank == 0; i++)
    if (!world_ok(self, banyan_start(ops[i]), "start")) return;
  if (self->rank == 0) banyan_comm_abort(self->comm, "the test says so");
  for (int i = 3; i >= 0 && self->rank == 0; i--) {
    banyan_status status = banyan_start(ops[i % 2]);
    world_gets(self, status, BANYAN_ERR_ABORTED, "the test says so");
  }
  int done = 7;
  if (self->rank == 0)
    world_check(self, banyan_test(ops[0], &done) == BANYAN_ERR_ABORTED && done == 7, "test of what failed");
  for (int i = 0; i < 2; i++) banyan_op_free(ops[i]);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static const int32_t nranks_of[] = {1, 2, 3, 4, 6, 9};

static void run(int index, world_body body) { WORLD_RUN(body, .nranks = nranks_of[index], .arena_bytes = 256 << 10); }

TEST_LOOP(forgets_old_shapes, 6) { run(_i, forget_shapes); }
TEST_LOOP(sees_what_differs, 6) { run(_i, repeat_calls); }
TEST(rejects_what_differs) { WORLD_RUN(repeat_wrongly, .nranks = 1); }
TEST(starts_after_a_failure) { WORLD_RUN(start_after_failure, .nranks = 2); }
TEST_LOOP(overwrites_nothing_too_early, 6) { run(_i, run_one_sided); }

int main(void) { return world_main(suite_of("persistent", 300)); }
