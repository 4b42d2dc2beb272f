/* SPDX-License-Identifier: Apache-2.0
 * Cost and rejection of calls with changing numbers of tokens: shared plans, invalid contents, ranks that disagree,
 * memory that must not be read, and a rank that is stopped and resumed. */
#include <sys/mman.h>

#include "tests/support/world.h"

enum { MOST = 512, HEADS = 2, VALUE_DIM = 4, ROW = HEADS * VALUE_DIM };

/* Rank r contributes lse 0 and values seed + r + token % 50 for valid rows. Their mean over ranks is exact in f32. */
typedef struct memory {
  float in[MOST * ROW], in_lse[MOST * HEADS], out[MOST * ROW], out_lse[MOST * HEADS];
} memory;

static void fill(memory *memory, int32_t rank, int32_t tokens, int seed) {
  for (int32_t i = 0; i < tokens * ROW; i++) memory->in[i] = (float)(seed % 97 + rank + i / ROW % 50);
  memset(memory->in_lse, 0, (size_t)tokens * HEADS * sizeof(float));
}

static bool holds(world_rank *self, const memory *memory, int32_t first, int32_t tokens, int seed) {
  for (int32_t i = 0; i < tokens * ROW; i++) {
    double expected = seed % 97 + (self->nranks - 1) / 2.0 + (first + i / ROW) % 50;
    if (fabs((double)memory->out[i] - expected) > 1e-4)
      return world_check(self, false, "call %d of %d tokens: value %d is %g, not %g", seed, tokens, i,
                         (double)memory->out[i], expected);
  }
  return true;
}

static void describe(memory *memory, banyan_partial *in, banyan_partial *out) {
  banyan_partial_init(in, memory->in, BANYAN_F32, memory->in_lse, BANYAN_F32, HEADS, VALUE_DIM);
  banyan_partial_init(out, memory->out, BANYAN_F32, memory->out_lse, BANYAN_F32, HEADS, VALUE_DIM);
}

static banyan_combine_desc desc_of(int32_t tokens, const banyan_valid_rows *valid) {
  return (banyan_combine_desc){
      .size = sizeof(banyan_combine_desc), .tokens = tokens, .heads = HEADS, .value_dim = VALUE_DIM, .valid = valid};
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static void call_randomly(world_rank *self) {
  world_random random = random_seed();
  memory *memory = calloc(1, sizeof *memory);
  banyan_partial in, out;
  describe(memory, &in, &out);
  for (int i = 0; i < 2000; i++) {
    int32_t tokens = 1 + random_below(&random, MOST);
    banyan_combine_desc desc = desc_of(tokens, NULL);
    fill(memory, self->rank, tokens, i);
    if (!world_ok(self, banyan_combine(self->comm, &desc, &in, &out), "combine")) break;
    if (!holds(self, memory, 0, tokens, i)) break;
  }
  int plans = world_plans_made(self);
  world_check(self, plans > 0 && plans <= 10, "2000 calls made %d plans", plans);
  free(memory);
}

TEST_LOOP(few_plans_serve_all_counts, 4) { world_run(&(world_setup){.nranks = 1 + _i}, call_randomly); }

/* A run sends bytes for its own tokens only. */
static void count_bytes(world_rank *self) {
  memory *memory = calloc(1, sizeof *memory);
  banyan_partial in, out;
  int32_t tokens = 0;
  uint64_t sent[2] = {0};
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = &tokens};
  banyan_combine_desc desc = desc_of(MOST, &valid);
  banyan_op *op = NULL;
  describe(memory, &in, &out);
  desc.algorithm = self->argument;
  if (!world_ok(self, banyan_combine_init(self->comm, &desc, &in, &out, &op), "init")) goto end;
  for (int i = 0; i < 2; i++) {
    banyan_op_info info = {.size = sizeof info};
    tokens = i ? MOST : MOST / 16;
    fill(memory, self->rank, tokens, i);
    if (!world_runs(self, op)) break;
    if (!holds(self, memory, 0, tokens, i) || !world_ok(self, banyan_op_query(op, &info), "query")) break;
    sent[i] = info.bytes_sent;
  }
  world_check(self, sent[0] * 17 >= sent[1] && sent[0] * 15 <= sent[1], "%llu bytes for a sixteenth of %llu",
              (unsigned long long)sent[0], (unsigned long long)sent[1]);
end:
  banyan_op_free(op);
  free(memory);
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
static void give_invalid(world_rank *self) {
  const invalid *wrong = self->argument;
  memory *memory = calloc(1, sizeof *memory);
  banyan_partial in, out;
  banyan_valid_rows valid = {.size = sizeof valid,
                             .tokens = &wrong->tokens,
                             .batch = wrong->batch,
                             .seq_lens = wrong->batch ? wrong->lengths : NULL,
                             .query_start_loc = wrong->has_starts ? wrong->starts : NULL};
  describe(memory, &in, &out);
  banyan_combine_desc odd = desc_of(8, &valid), usual = desc_of(8, NULL);
  for (int32_t i = 0; self->rank == 1 && i < 8 * HEADS; i++) memory->in_lse[i] = NAN;
  banyan_status status = banyan_combine(self->comm, self->rank == 1 ? &odd : &usual, &in, &out);
  const char *text = banyan_last_error();
  banyan_status expected = self->rank == 1 ? BANYAN_ERR_ARGUMENT : BANYAN_ERR_PEER;
  world_check(self, status == expected && strstr(text, wrong->text), "%s: %s", banyan_status_string(status), text);
  memset(memory->in_lse, 0, sizeof memory->in_lse);
  world_ok(self, banyan_combine(self->comm, &usual, &in, &out), "a first call leaves the communicator usable");
  banyan_op *op = NULL;
  const int32_t good_tokens = 8;
  banyan_valid_rows good = {.size = sizeof good, .tokens = &good_tokens};
  if (self->rank != 1) odd.valid = &good;
  if (world_ok(self, banyan_combine_init(self->comm, &odd, &in, &out, &op), "init")) {
    status = start_and_wait(op);
    text = banyan_last_error();
    world_check(self, status == expected && strstr(text, wrong->text), "a run: %s: %s", banyan_status_string(status),
                text);
  }
  world_meet(self);
  banyan_op_free(op);
  free(memory);
}

TEST_LOOP(invalid_contents_are_named, INVALIDS) {
  world_run(&(world_setup){.nranks = 3, .argument = (void *)(uintptr_t)&invalids[_i]}, give_invalid);
}

/* ---- disagreement ------------------------------------------------------------------------------------------------ */

typedef enum history { NEW_CLASSES, KNOWN_CLASS, PERSISTENT, HISTORIES } history;

/* Rank 1 has 5 tokens, the others 7 (or 3, which has another plan). */
static void disagree(world_rank *self) {
  history how = (history)(intptr_t)self->argument;
  memory *memory = calloc(1, sizeof *memory);
  banyan_partial in, out;
  describe(memory, &in, &out);
  int32_t tokens = self->rank == 1 ? 5 : how == NEW_CLASSES ? 3 : 7;
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = &tokens};
  banyan_combine_desc desc = desc_of(tokens, NULL), known = desc_of(6, NULL);
  banyan_op *op = NULL;
  banyan_status status = BANYAN_OK;
  if (how == PERSISTENT) {
    desc = desc_of(8, &valid);
    status = banyan_combine_init(self->comm, &desc, &in, &out, &op);
  } else if (how == KNOWN_CLASS) {
    status = banyan_combine(self->comm, &known, &in, &out);
  }
  if (!world_ok(self, status, "before")) goto end;
  status = op ? banyan_start(op) : banyan_combine(self->comm, &desc, &in, &out);
  if (op && status == BANYAN_OK) status = banyan_wait(op);
  const char *text = banyan_last_error();
  char other[32];
  snprintf(other, sizeof other, "%d", how == NEW_CLASSES ? 3 : 7);
  world_check(self, status == BANYAN_ERR_MISMATCH && strstr(text, "tokens") && strstr(text, "5") && strstr(text, other),
              "%s: %s", banyan_status_string(status), text);
  world_meet(self);
end:
  banyan_op_free(op);
  free(memory);
}

TEST_LOOP(other_numbers_are_a_mismatch, HISTORIES) {
  world_run(&(world_setup){.nranks = 3, .argument = (void *)(intptr_t)_i}, disagree);
}

/* Ranks that wait for no peer in such a run continue to a barrier: senders to a root, and a rank without tokens. */
static void disagree_and_go_on(world_rank *self) {
  bool to_root = self->argument != NULL;
  memory *memory = calloc(1, sizeof *memory);
  banyan_partial in, out;
  describe(memory, &in, &out);
  int32_t other = to_root ? 5 : 0, tokens = self->rank == 1 ? other : 7;
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = &tokens};
  banyan_combine_desc desc = desc_of(8, &valid);
  desc.scatter = to_root ? BANYAN_SCATTER_ROOT : BANYAN_SCATTER_NONE;
  banyan_op *op = NULL;
  if (world_ok(self, banyan_combine_init(self->comm, &desc, &in, &out, &op), "init")) {
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
  free(memory);
}

TEST_LOOP(other_numbers_are_remembered, 2) {
  world_run(&(world_setup){.nranks = 3, .argument = (void *)(intptr_t)_i}, disagree_and_go_on);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Each token has one page for its values and one for its statistics. Pages of masked rows are unreadable. */
static void read_no_dead_rows(world_rank *self) {
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
    banyan_combine_desc desc = desc_of(TOKENS, &valid);
    desc.wire = wires[i / 2];
    if (!world_ok(self, banyan_combine(self->comm, &desc, &in, &out), "combine")) break;
    for (int32_t t = 0; t < tokens; t++) {
      float value = result[t * ROW], expected = t < LIVE ? (float)(t + 1) : 0;
      world_check(self, value == expected, "token %d is %g, not %g", t, (double)value, (double)expected);
      world_check(self, (isinf(lse[t * HEADS]) != 0) == (t >= LIVE), "token %d has lse %g", t, (double)lse[t * HEADS]);
    }
  }
  munmap(pages, bytes);
}

TEST_LOOP(dead_rows_are_not_read, 3) { world_run(&(world_setup){.nranks = 2 + _i}, read_no_dead_rows); }

/* ---- a rank that is stopped -------------------------------------------------------------------------------------- */

enum { CALLS = 100000, CALLS_SLOWLY = 4000 };

static void call_while_stopped(world_rank *self) {
  world_random random = random_seed(); /* the same on all ranks */
  memory *memory = calloc(1, sizeof *memory);
  banyan_partial in, out;
  int32_t tokens = 0;
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = &tokens};
  banyan_combine_desc desc = desc_of(16, &valid);
  banyan_op *op = NULL;
  describe(memory, &in, &out);
  desc.scatter = BANYAN_SCATTER_TOKENS;
  if (!world_ok(self, banyan_combine_init(self->comm, &desc, &in, &out, &op), "init")) goto end;
  for (int i = 0; i < (world_is_sanitized() ? CALLS_SLOWLY : CALLS); i++) {
    int32_t first, number;
    bool blocking = random_one_in(&random, 3);
    tokens = random_below(&random, 17);
    fill(memory, self->rank, tokens, i);
    banyan_split(tokens, self->nranks, self->rank, &first, &number);
    banyan_combine_desc now = desc_of(tokens, NULL);
    now.scatter = BANYAN_SCATTER_TOKENS;
    banyan_status status = blocking ? banyan_combine(self->comm, &now, &in, &out) : banyan_start(op);
    if (status == BANYAN_OK && !blocking) status = banyan_wait(op);
    if (!world_ok(self, status, "a call") || !holds(self, memory, first, number, i)) break;
  }
  world_signal(self->world, WORLD_DONE);
end:
  banyan_op_free(op);
  free(memory);
}

TEST(a_rank_is_stopped_and_goes_on) {
  int32_t *nranks = world_share(sizeof *nranks);
  *nranks = 2;
  world_setup setup = {.nranks = *nranks, .processes = true, .argument = nranks, .conduct = world_stop_in_turn};
  world_run(&setup, call_while_stopped);
  world_unshare(nranks, sizeof *nranks);
}

int main(void) { return world_main(suite_of("valid rows calls", 180)); }
