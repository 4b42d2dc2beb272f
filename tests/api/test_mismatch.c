/* SPDX-License-Identifier: Apache-2.0
 * Ranks in different calls: every rank gets an error that names a rank and the field, and none hangs. */
#include "tests/support/rows.h"
#include "tests/support/world.h"

enum { TOKENS = 4, HEADS = 6, VALUE_DIM = 16, BYTES = 4096 };

/* The calls of one rank; all ranks but one make the first call of a pair. */
typedef enum call_kind { COMBINE, GATHER, SHIFT, BROADCAST, BARRIER, HEADS_OF_ALL } call_kind;

/* Flags that make an all-gather of heads differ from the usual one. */
enum { OTHER_COUNTS = 1, OTHER_DTYPE = 2, OTHER_TOKENS = 4 };

typedef struct call {
  call_kind kind;
  banyan_combine_desc desc; /* zero fields take the usual values */
  int32_t bytes, root;      /* also dim, distance or OTHER_* flags */
  int64_t tag;
} call;

typedef struct pair {
  const char *field; /* the text must name it */
  call usual, odd;
} pair;

#define COMBINE_OF(...) \
  { COMBINE, {__VA_ARGS__}, 0, 0, 0 }

static const pair pairs[] = {
    {"tokens", COMBINE_OF(0), COMBINE_OF(.tokens = TOKENS - 1)},
    {"heads", COMBINE_OF(0), COMBINE_OF(.heads = HEADS - 1)},
    {"value_dim", COMBINE_OF(0), COMBINE_OF(.value_dim = VALUE_DIM - 1)},
    {"wire", COMBINE_OF(0), COMBINE_OF(.wire = BANYAN_BF16)},
    {"scatter", COMBINE_OF(0), COMBINE_OF(.scatter = BANYAN_SCATTER_HEADS)},
    {"scatter", COMBINE_OF(.scatter = BANYAN_SCATTER_ROOT), COMBINE_OF(.scatter = BANYAN_SCATTER_TOKENS)},
    {"order", COMBINE_OF(0), COMBINE_OF(.order = BANYAN_ORDER_CANONICAL)},
    {"order", COMBINE_OF(0), COMBINE_OF(.order = BANYAN_ORDER_EXACT)},
    {"root", COMBINE_OF(.scatter = BANYAN_SCATTER_ROOT), COMBINE_OF(.scatter = BANYAN_SCATTER_ROOT, .root = 1)},
    {"algorithm", COMBINE_OF(.algorithm = "oneshot"), COMBINE_OF(.algorithm = "ring")},
    {"algorithm", COMBINE_OF(.algorithm = "tree"), COMBINE_OF(.algorithm = "twoshot")},
    {"collective", COMBINE_OF(0), {BARRIER, {0}, 0, 0, 0}},
    {"collective", {BROADCAST, {0}, 100, 0, 0}, {SHIFT, {0}, 100, 1, 0}},
    {"collective", {BARRIER, {0}, 0, 0, 0}, {GATHER, {0}, 10, 0, 0}},
    {"counts", {GATHER, {0}, 10, 0, 0}, {GATHER, {0}, 11, 0, 0}},
    {"bytes", {SHIFT, {0}, 100, 1, 0}, {SHIFT, {0}, 101, 1, 0}},
    {"distance", {SHIFT, {0}, 100, 1, 0}, {SHIFT, {0}, 100, 0, 0}},
    {"bytes", {BROADCAST, {0}, 100, 0, 0}, {BROADCAST, {0}, 99, 0, 0}},
    {"root", {BROADCAST, {0}, 100, 0, 0}, {BROADCAST, {0}, 100, 1, 0}},
    {"counts of heads", {HEADS_OF_ALL, {0}, 8, 0, 0}, {HEADS_OF_ALL, {0}, 8, OTHER_COUNTS, 0}},
    {"dtype", {HEADS_OF_ALL, {0}, 8, 0, 0}, {HEADS_OF_ALL, {0}, 8, OTHER_DTYPE, 0}},
    {"dim", {HEADS_OF_ALL, {0}, 8, 0, 0}, {HEADS_OF_ALL, {0}, 7, 0, 0}},
    {"tokens", {HEADS_OF_ALL, {0}, 8, 0, 0}, {HEADS_OF_ALL, {0}, 8, OTHER_TOKENS, 0}},
    {"tag", COMBINE_OF(0), {COMBINE, {0}, 0, 0, 1}},
    {"tag", {SHIFT, {0}, 100, 1, 7}, {SHIFT, {0}, 100, 1, 1}},
    {"tag", {BARRIER, {0}, 0, 0, 7}, {BARRIER, {0}, 0, 0, BANYAN_TAG_NONE}},
    {"tag", {HEADS_OF_ALL, {0}, 8, 0, 7}, {GATHER, {0}, 8, 0, 1}},
};
enum { PAIRS = sizeof pairs / sizeof pairs[0] };

/* The history of the two calls. */
typedef enum history {
  FIRST_CALLS,    /* neither was made before */
  REPEATED_CALLS, /* both were */
  ODD_IS_NEW,     /* only the usual one was made before */
  INIT_AND_RUN,   /* the usual call plans, the other runs */
  HISTORIES
} history;

typedef struct scenario {
  const pair *pair;
  history history;
  int32_t odd_rank;
  double seconds[WORLD_RANKS_MAX];
  int status[WORLD_RANKS_MAX], culprit[WORLD_RANKS_MAX];
  char text[WORLD_RANKS_MAX][512];
} scenario;

typedef struct buffers {
  unsigned char bytes[BYTES], more[BYTES];
} buffers;

static banyan_status combine(world_rank *self, const call *call, banyan_op **op) {
  const banyan_combine_desc *of = &call->desc;
  rows *rows = rows_take(of->tokens ? of->tokens : TOKENS, of->heads ? of->heads : HEADS,
                         of->value_dim ? of->value_dim : VALUE_DIM);
  const banyan_combine_desc usual = rows->desc;
  rows->desc = *of;
  rows->desc.size = sizeof rows->desc;
  rows->desc.tokens = usual.tokens, rows->desc.heads = usual.heads, rows->desc.value_dim = usual.value_dim;
  return op ? banyan_combine_init(self->comm, &rows->desc, &rows->in, &rows->out, op)
            : banyan_combine(self->comm, &rows->desc, &rows->in, &rows->out);
}

/* Each rank has one head, or the first has two and the last none. */
static banyan_status gather_heads(world_rank *self, const call *call, buffers *buffers, banyan_op **op) {
  const int32_t tokens = TOKENS - 1;
  int32_t counts[WORLD_RANKS_MAX];
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = &tokens};
  banyan_heads_desc desc = {.size = sizeof desc,
                            .tokens = TOKENS,
                            .heads = self->nranks,
                            .dim = call->bytes,
                            .dtype = call->root & OTHER_DTYPE ? BANYAN_BF16 : BANYAN_F16,
                            .counts = counts,
                            .valid = call->root & OTHER_TOKENS ? &valid : NULL};
  for (int32_t i = 0; i < self->nranks; i++) counts[i] = 1;
  if (call->root & OTHER_COUNTS) counts[0]++, counts[self->nranks - 1]--;
  return op ? banyan_allgather_heads_init(self->comm, &desc, buffers->bytes, buffers->more, op)
            : banyan_allgather_heads(self->comm, &desc, buffers->bytes, buffers->more);
}

static banyan_status make_call(world_rank *self, const call *call, buffers *buffers, bool init) {
  const size_t bytes = (size_t)call->bytes;
  unsigned char *in = buffers->bytes, *out = buffers->more;
  size_t counts[WORLD_RANKS_MAX];
  banyan_comm *comm = self->comm;
  banyan_op *made = NULL, **op = init ? &made : NULL;
  banyan_status status = BANYAN_OK;
  for (int32_t i = 0; i < self->nranks; i++) counts[i] = bytes;
  banyan_comm_set_tag(comm, call->tag);
  switch (call->kind) {
  case GATHER:
    status = op ? banyan_allgather_init(comm, in, out, counts, op) : banyan_allgather(comm, in, out, counts);
    break;
  case SHIFT:
    status =
        op ? banyan_shift_init(comm, in, out, bytes, call->root, op) : banyan_shift(comm, in, out, bytes, call->root);
    break;
  case BROADCAST:
    status =
        op ? banyan_broadcast_init(comm, in, bytes, call->root, op) : banyan_broadcast(comm, in, bytes, call->root);
    break;
  case HEADS_OF_ALL: status = gather_heads(self, call, buffers, op); break;
  case BARRIER: status = op ? banyan_barrier_init(comm, op) : banyan_barrier(comm); break;
  default: status = combine(self, call, op);
  }
  banyan_op_free(made);
  return status;
}

static void disagree(world_rank *self) {
  scenario *scenario = self->argument;
  const pair *pair = scenario->pair;
  buffers *buffers = calloc(1, sizeof *buffers);
  bool odd = self->rank == scenario->odd_rank, good = true;
  int before = scenario->history == FIRST_CALLS ? 0 : scenario->history == REPEATED_CALLS ? 2 : 1;
  for (int i = 0; i < before && good; i++)
    good = world_ok(self, make_call(self, i ? &pair->odd : &pair->usual, buffers, false), "a call before");
  good = good && world_meet(self);
  double since = world_now_s();
  banyan_status status = BANYAN_OK;
  /* A rank that waits for no peer in its own call gets the error in a later call that waits. */
  for (int i = 0; i < 4 && good && status == BANYAN_OK; i++)
    status = make_call(self, odd ? &pair->odd : &pair->usual, buffers, scenario->history == INIT_AND_RUN && !odd);
  if (good && status == BANYAN_OK) status = banyan_barrier(self->comm);
  scenario->seconds[self->rank] = world_now_s() - since;
  scenario->status[self->rank] = (int)status;
  snprintf(scenario->text[self->rank], sizeof scenario->text[0], "%s", banyan_last_error());
  scenario->culprit[self->rank] = banyan_comm_failed_rank(self->comm);
  free(buffers);
}

static void check(const scenario *scenario, int32_t nranks) {
  for (int32_t r = 0; r < nranks; r++) {
    const char *text = scenario->text[r];
    ck_assert_msg(scenario->status[r] == BANYAN_ERR_MISMATCH,
                  "field %s, history %d, %d ranks, odd %d: rank %d got %s: %s", scenario->pair->field,
                  scenario->history, nranks, scenario->odd_rank, r,
                  banyan_status_string((banyan_status)scenario->status[r]), text);
    ck_assert_msg(strstr(text, "rank"), "rank %d: %s", r, text);
    /* "here" is always the rank that prints the text. */
    ck_assert_msg(!strstr(text, "than rank") || !strstr(text, " here"), "rank %d: %s", r, text);
    ck_assert_msg(scenario->culprit[r] >= 0 && scenario->culprit[r] < nranks, "rank %d blames %d", r,
                  scenario->culprit[r]);
    ck_assert_msg(scenario->seconds[r] < 2, "field %s: rank %d got the error after %.3f s", scenario->pair->field, r,
                  scenario->seconds[r]);
  }
  /* Two ranks know the difference: the odd rank and the rank it is compared with. */
  bool named = false;
  for (int32_t r = 0; r < nranks; r++) named = named || strstr(scenario->text[r], scenario->pair->field);
  const char *text = scenario->text[scenario->odd_rank];
  bool phases = scenario->history == ODD_IS_NEW || scenario->history == INIT_AND_RUN;
  /* If neither waited for a peer, both get the error in a later call. */
  bool one_sided = scenario->history == REPEATED_CALLS &&
                   (strcmp(scenario->pair->field, "root") == 0 || strcmp(scenario->pair->field, "distance") == 0);
  /* A rank that only sends may end its four calls early, and the odd rank meets it in the barrier. */
  const call *usual = &scenario->pair->usual;
  bool sends_only = usual->kind == BROADCAST || (usual->kind == COMBINE && usual->desc.scatter == BANYAN_SCATTER_ROOT);
  bool moved_on = sends_only && strstr(text, "collective barrier");
  ck_assert_msg(named || one_sided || moved_on || (phases && strstr(text, "phase")),
                "history %d, %d ranks: nobody names %s: %s", scenario->history, nranks, scenario->pair->field, text);
}

TEST_LOOP(ranks_in_different_calls, (PAIRS * HISTORIES)) {
  static const int32_t nranks_of[] = {2, 3, 6};
  scenario scenario = {.pair = &pairs[_i % PAIRS], .history = (history)(_i / PAIRS)};
  for (int n = 0; n < 3; n++) {
    int32_t nranks = nranks_of[n];
    for (int last = 0; last < 2; last++) {
      scenario.odd_rank = last ? nranks - 1 : 0;
      WORLD_RUN(disagree, .nranks = nranks, .argument = &scenario, .timeout_ns = 3000000000);
      check(&scenario, nranks);
    }
  }
}

/* Two calls of one shape, which the last rank makes in the other order. Only their tags tell them apart. */
static void swap_calls(world_rank *self) {
  char mine[2][64] = {"first", "second"}, all[2][WORLD_RANKS_MAX * 64];
  size_t counts[WORLD_RANKS_MAX];
  for (int32_t r = 0; r < self->nranks; r++) counts[r] = sizeof mine[0];
  if (!world_ok(self, banyan_allgather(self->comm, mine[0], all[0], counts), "a call before")) return;
  for (int i = 0; i < 2; i++) {
    int which = self->rank == self->nranks - 1 ? 1 - i : i;
    banyan_comm_set_tag(self->comm, 40 + which);
    banyan_status status = banyan_allgather(self->comm, mine[which], all[which], counts);
    const char *text = banyan_last_error();
    world_check(self, status == BANYAN_ERR_MISMATCH && strstr(text, "tag 40 ") && strstr(text, "tag 41 "), "%s: %s",
                banyan_status_string(status), text);
  }
}

TEST_LOOP(calls_of_one_shape_in_another_order, 3) {
  static const world_backend *const backends[] = {&world_threads, &world_processes, &world_nodes};
  if (!world_is_here(backends[_i])) return;
  WORLD_RUN(swap_calls, .nranks = 2 + _i, .on = backends[_i], .timeout_ns = 3000000000);
}

/* ---- creation of a communicator ---------------------------------------------------------------------------------- */

TEST_RANKS(different_default_algorithms, 1, .nranks = 3, .bare = true) {
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = 3000000000};
  if (self->rank == 1) config.algorithm = "ring";
  world_gets(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), BANYAN_ERR_MISMATCH, "algorithm");
  world_check(self, strstr(banyan_last_error(), "rank ") != NULL, "%s", banyan_last_error());
}

TEST_RANKS(different_numbers_of_ranks, 1, .nranks = 3, .bare = true) {
  if (self->rank == 1) self->bootstrap.nranks = 4; /* there are 3 */
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = 3000000000};
  if (self->rank == 2) config.arena_bytes = 1 << 20; /* no error: all ranks use the smallest */
  world_gets(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), BANYAN_ERR_MISMATCH, "rank ");
}

TEST_RANKS(different_arenas_are_no_error, 1, .nranks = 3, .bare = true) {
  unsigned char data[200];
  banyan_comm_config config = {
      .size = sizeof config, .timeout_ns = 3000000000, .arena_bytes = (size_t)(64 << 10) << self->rank};
  if (!world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create")) return;
  memset(data, self->rank == 1 ? 7 : 0, sizeof data);
  if (world_ok(self, banyan_broadcast(self->comm, data, sizeof data, 1), "broadcast"))
    world_check(self, data[199] == 7, "broadcast gave %d", data[199]);
}

int main(void) { return world_main(suite_of("mismatch", 60)); }
