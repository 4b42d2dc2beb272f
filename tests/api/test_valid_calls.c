/* SPDX-License-Identifier: Apache-2.0
 * Cost and rejection of calls with changing numbers of tokens: shared plans, invalid contents, ranks that disagree,
 * memory that must not be read, and a rank that is stopped and resumed. */
#include <sys/mman.h>

#include "tests/support/rows.h"
#include "tests/support/world.h"

enum { MOST = 512, HEADS = 2, VALUE_DIM = 4, ROW = HEADS * VALUE_DIM };

/* Rank r contributes lse 0 and values seed + r + token % 50 for valid rows. Their mean over ranks is exact in f32. */
static void fill(const rows *rows, int32_t rank, int32_t tokens, int seed) {
  for (int32_t i = 0; i < tokens * ROW; i++) rows->values[i] = (float)(seed % 97 + rank + i / ROW % 50);
}

static bool holds(world_rank *self, const rows *rows, int32_t first, int32_t tokens, int seed) {
  for (int32_t i = 0; i < tokens * ROW; i++) {
    double expected = seed % 97 + (self->nranks - 1) / 2.0 + (first + i / ROW) % 50;
    if (fabs((double)rows->merged[i] - expected) > 1e-4)
      return world_check(self, false, "call %d of %d tokens: value %d is %g, not %g", seed, tokens, i,
                         (double)rows->merged[i], expected);
  }
  return true;
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

TEST_RANKS(few_plans_serve_all_counts, 4, .nranks = 1 + _i) {
  world_random random = random_seed();
  rows *rows = rows_take(MOST, HEADS, VALUE_DIM);
  for (int i = 0; i < 2000; i++) {
    int32_t tokens = rows->desc.tokens = 1 + random_below(&random, MOST);
    fill(rows, self->rank, tokens, i);
    if (!world_ok(self, rows_combine(rows, self->comm), "combine")) break;
    if (!holds(self, rows, 0, tokens, i)) break;
  }
  int plans = world_plans_made(self);
  world_check(self, plans > 0 && plans <= 10, "2000 calls made %d plans", plans);
}

/* A run sends bytes for its own tokens only. */
static void count_bytes(world_rank *self) {
  rows *rows = rows_take(MOST, HEADS, VALUE_DIM);
  int32_t tokens = 0;
  uint64_t sent[2] = {0};
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = &tokens};
  banyan_op *op = NULL;
  rows->desc.valid = &valid, rows->desc.algorithm = self->argument;
  if (!world_ok(self, rows_init(rows, self->comm, &op), "init")) return;
  for (int i = 0; i < 2; i++) {
    banyan_op_info info = {.size = sizeof info};
    tokens = i ? MOST : MOST / 16;
    fill(rows, self->rank, tokens, i);
    if (!world_runs(self, op)) break;
    if (!holds(self, rows, 0, tokens, i) || !world_ok(self, banyan_op_query(op, &info), "query")) break;
    sent[i] = info.bytes_sent;
  }
  world_check(self, sent[0] * 17 >= sent[1] && sent[0] * 15 <= sent[1], "%llu bytes for a sixteenth of %llu",
              (unsigned long long)sent[0], (unsigned long long)sent[1]);
  banyan_op_free(op);
}

TEST_LOOP(bytes_are_those_of_the_tokens, 5) {
  static char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring"};
  world_run(&(world_setup){.nranks = 2, .argument = algorithms[_i]}, count_bytes);
}

/* ---- contents ---------------------------------------------------------------------------------------------------- */

typedef struct invalid {
  const char *text; /* part of the error */
  int32_t tokens, batch, lengths[4], starts[5];
  bool has_starts;
} invalid;

static const invalid invalids[] = {
    {"valid.tokens leads to 9; desc.tokens allows 0 to 8", .tokens = 9},
    {"valid.tokens leads to -1", .tokens = -1},
    {"valid.seq_lens[2] is -5", .tokens = 8, .batch = 3, .lengths = {1, 1, -5}},
    {"valid.query_start_loc[2] is 1, less than the 3 before it", .tokens = 8, .batch = 2, .lengths = {1, 1},
     .starts = {0, 3, 1}, .has_starts = true},
    {"valid.query_start_loc[2] is 9; this run has 8 tokens", .tokens = 8, .batch = 2, .lengths = {1, 1},
     .starts = {0, 3, 9}, .has_starts = true},
    {"valid.query_start_loc[0] is -1", .tokens = 8, .batch = 1, .lengths = {1}, .starts = {-1, 3}, .has_starts = true},
};
enum { INVALIDS = sizeof invalids / sizeof invalids[0] };

/* Rank 1 passes invalid contents, and also NaN, which the error must not name. The other ranks get the error. */
TEST_RANKS(invalid_contents_are_named, INVALIDS, .nranks = 3, .argument = (void *)(uintptr_t)&invalids[_i]) {
  const invalid *wrong = self->argument;
  rows *usual = rows_take(8, HEADS, VALUE_DIM), odd = *usual;
  banyan_valid_rows valid = {.size = sizeof valid,
                             .tokens = &wrong->tokens,
                             .batch = wrong->batch,
                             .seq_lens = wrong->batch ? wrong->lengths : NULL,
                             .query_start_loc = wrong->has_starts ? wrong->starts : NULL};
  odd.desc.valid = &valid;
  for (int32_t i = 0; self->rank == 1 && i < 8 * HEADS; i++) usual->lse[i] = NAN;
  banyan_status status = rows_combine(self->rank == 1 ? &odd : usual, self->comm);
  const char *text = banyan_last_error();
  banyan_status expected = self->rank == 1 ? BANYAN_ERR_ARGUMENT : BANYAN_ERR_PEER;
  world_check(self, status == expected && strstr(text, wrong->text), "%s: %s", banyan_status_string(status), text);
  memset(usual->lse, 0, 8 * HEADS * sizeof *usual->lse);
  world_ok(self, rows_combine(usual, self->comm), "a first call leaves the communicator usable");
  banyan_op *op = NULL;
  const int32_t good_tokens = 8;
  banyan_valid_rows good = {.size = sizeof good, .tokens = &good_tokens};
  if (self->rank != 1) odd.desc.valid = &good;
  if (world_ok(self, rows_init(&odd, self->comm, &op), "init")) {
    status = start_and_wait(op);
    text = banyan_last_error();
    world_check(self, status == expected && strstr(text, wrong->text), "a run: %s: %s", banyan_status_string(status),
                text);
  }
  world_meet(self);
  banyan_op_free(op);
}

/* ---- disagreement ------------------------------------------------------------------------------------------------ */

typedef enum history { NEW_CLASSES, KNOWN_CLASS, PERSISTENT, HISTORIES } history;

/* Rank 1 has 5 tokens, the others 7 (or 3, which has another plan). */
static void disagree(world_rank *self) {
  history how = (history)(intptr_t)self->argument;
  rows *rows = rows_take(8, HEADS, VALUE_DIM);
  int32_t tokens = self->rank == 1 ? 5 : how == NEW_CLASSES ? 3 : 7;
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = &tokens};
  banyan_op *op = NULL;
  banyan_status status = BANYAN_OK;
  if (how == PERSISTENT) {
    rows->desc.valid = &valid;
    status = rows_init(rows, self->comm, &op);
  } else if (how == KNOWN_CLASS) {
    rows->desc.tokens = 6;
    status = rows_combine(rows, self->comm);
  }
  if (!world_ok(self, status, "before")) return;
  if (!op) rows->desc.tokens = tokens;
  status = op ? start_and_wait(op) : rows_combine(rows, self->comm);
  const char *text = banyan_last_error();
  char other[32];
  snprintf(other, sizeof other, "%d", how == NEW_CLASSES ? 3 : 7);
  world_check(self, status == BANYAN_ERR_MISMATCH && strstr(text, "tokens") && strstr(text, "5") && strstr(text, other),
              "%s: %s", banyan_status_string(status), text);
  world_meet(self);
  banyan_op_free(op);
}

TEST_LOOP(other_numbers_are_a_mismatch, HISTORIES) {
  world_run(&(world_setup){.nranks = 3, .argument = (void *)(intptr_t)_i}, disagree);
}

/* Ranks that wait for no peer in such a run continue to a barrier: senders to a root, and a rank without tokens. */
TEST_RANKS(other_numbers_are_remembered, 2, .nranks = 3, .argument = (void *)(intptr_t)_i) {
  bool to_root = self->argument != NULL;
  rows *rows = rows_take(8, HEADS, VALUE_DIM);
  int32_t other = to_root ? 5 : 0, tokens = self->rank == 1 ? other : 7;
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = &tokens};
  rows->desc.valid = &valid;
  rows->desc.scatter = to_root ? BANYAN_SCATTER_ROOT : BANYAN_SCATTER_NONE;
  banyan_op *op = NULL;
  if (world_ok(self, rows_init(rows, self->comm, &op), "init")) {
    banyan_status status = start_and_wait(op);
    if (status == BANYAN_OK) status = banyan_barrier(self->comm);
    char there[64], here[64];
    snprintf(there, sizeof there, "tokens %d ", self->rank == 1 ? 7 : other);
    snprintf(here, sizeof here, ", %d here", tokens);
    world_check(
        self, status == BANYAN_ERR_MISMATCH && strstr(banyan_last_error(), there) && strstr(banyan_last_error(), here),
        "%s: %s", banyan_status_string(status), banyan_last_error());
    world_meet(self);
  }
  banyan_op_free(op);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Each token has one page for its values and one for its statistics. Pages of masked rows are unreadable. */
TEST_RANKS(dead_rows_are_not_read, 3, .nranks = 2 + _i) {
  enum { TOKENS = 24, LIVE = 19 };
  size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 2 * TOKENS * page;
  char *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (!world_check(self, pages != MAP_FAILED, "mmap")) return;
  banyan_dtype wires[] = {BANYAN_F32, BANYAN_F16};
  int32_t starts[LIVE + 1], lengths[LIVE], tokens = LIVE + 2;
  for (int32_t i = 0; i <= LIVE; i++) starts[i] = i;
  for (int32_t i = 0; i < LIVE; i++)
    lengths[i] = i % 3 == self->rank % 3 ? 0 : 1; /* each token is valid on some rank */
  for (int32_t t = 0; t < TOKENS; t++) {
    float *values = (float *)(void *)(pages + 2 * t * (int64_t)page), *stats = (float *)(void *)((char *)values + page);
    for (int i = 0; i < ROW; i++) values[i] = (float)(t + 1);
    stats[0] = stats[1] = 0;
    if (t >= LIVE || lengths[t] == 0) mprotect(values, 2 * page, PROT_NONE);
  }
  static _Thread_local float result[TOKENS * ROW], lse[TOKENS * HEADS];
  banyan_partial in, out;
  banyan_partial_init(&in, pages, BANYAN_F32, pages + page, BANYAN_F32, HEADS, VALUE_DIM);
  banyan_partial_init(&out, result, BANYAN_F32, lse, BANYAN_F32, HEADS, VALUE_DIM);
  in.values_token_stride = in.stats_token_stride = (int64_t)(2 * page / sizeof(float));
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = &tokens, .batch = LIVE, .seq_lens = lengths};
  for (int i = 0; i < 4; i++) {
    valid.query_start_loc = i % 2 ? starts : NULL;
    const banyan_combine_desc desc = {.size = sizeof desc,
                                      .tokens = TOKENS,
                                      .heads = HEADS,
                                      .value_dim = VALUE_DIM,
                                      .wire = wires[i / 2],
                                      .valid = &valid};
    if (!world_ok(self, banyan_combine(self->comm, &desc, &in, &out), "combine")) break;
    for (int32_t t = 0; t < tokens; t++) {
      float value = result[t * ROW], expected = t < LIVE ? (float)(t + 1) : 0;
      world_check(self, value == expected, "token %d is %g, not %g", t, (double)value, (double)expected);
      world_check(self, (isinf(lse[t * HEADS]) != 0) == (t >= LIVE), "token %d has lse %g", t, (double)lse[t * HEADS]);
    }
  }
  munmap(pages, bytes);
}

/* ---- a rank that is stopped -------------------------------------------------------------------------------------- */

enum { CALLS = 100000, CALLS_SLOWLY = 4000 };

static void call_while_stopped(world_rank *self) {
  world_random random = random_seed(); /* the same on all ranks */
  rows *kept = rows_take(16, HEADS, VALUE_DIM), now;
  int32_t tokens = 0;
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = &tokens};
  banyan_op *op = NULL;
  kept->desc.scatter = BANYAN_SCATTER_TOKENS;
  now = *kept;
  kept->desc.valid = &valid;
  if (!world_ok(self, rows_init(kept, self->comm, &op), "init")) return;
  for (int i = 0; i < (world_is_sanitized() ? CALLS_SLOWLY : CALLS); i++) {
    int32_t first, number;
    bool blocking = random_one_in(&random, 3);
    tokens = now.desc.tokens = random_below(&random, 17);
    fill(kept, self->rank, tokens, i);
    banyan_split(tokens, self->nranks, self->rank, &first, &number);
    banyan_status status = blocking ? rows_combine(&now, self->comm) : start_and_wait(op);
    if (!world_ok(self, status, "a call") || !holds(self, kept, first, number, i)) break;
  }
  world_signal(self->world, WORLD_DONE);
  banyan_op_free(op);
}

TEST(a_rank_is_stopped_and_goes_on) {
  int32_t *nranks = world_take(sizeof *nranks);
  *nranks = 2;
  world_setup setup = {.nranks = *nranks, .processes = true, .argument = nranks, .conduct = world_stop_in_turn};
  world_run(&setup, call_while_stopped);
}

int main(void) { return world_main(suite_of("valid rows calls", 180)); }
