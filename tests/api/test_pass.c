/* SPDX-License-Identifier: Apache-2.0
 * Attention over ranks that gathers keys (pass-KV) has the result of attention that combines partials, and its bits
 * where their order is stated. Random problems run in both ways, on every backend of the host. */
#include "op/pass.h"
#include "tests/support/attend.h"

enum { PROBLEMS = 6, ROUNDS = 4 };

typedef struct many {
  int32_t nranks;
  attend *problems[PROBLEMS];
} many;

static bool may_pass_keys(const attend *of) {
  const banyan_combine_desc *combine = &of->combine;
  if (of->nranks == 1 || of->tree || of->masks_keys || of->has_mask || of->form == ATTEND_FLASHMLA) return false;
  if (combine->scatter == BANYAN_SCATTER_HEADS) return of->shape.kv_heads % of->nranks == 0;
  if (combine->scatter == BANYAN_SCATTER_NONE) return combine->order != BANYAN_ORDER_EXACT;
  return combine->scatter == BANYAN_SCATTER_TOKENS;
}

static attend *make(int32_t nranks, int number) {
  static const attend_form forms[] = {ATTEND_PLAIN, ATTEND_E4M3, ATTEND_I8, ATTEND_F32, ATTEND_FLASHMLA};
  attend *made = attend_make(nranks, (uint64_t)number);
  banyan_combine_desc *combine = &made->combine;
  made->form = made->form == ATTEND_PLAIN ? forms[number % 4] : made->form;
  made->has_mask = made->has_mask && number % 4 == 0;
  made->tree = made->tree && number % 4 == 0;
  made->masks_keys = number % 9 == 8;
  if (number % 3 == 0) made->several = true, made->queries_most = 30;
  if (combine->scatter == BANYAN_SCATTER_ROOT && number % 4) combine->scatter = BANYAN_SCATTER_TOKENS;
  if (number % 5 == 0) {
    made->causal = made->tree = false;
    made->block = made->window = 0;
    combine->order = BANYAN_ORDER_EXACT;
    combine->wire = BANYAN_F32;
  }
  combine->algorithm = combine->order == BANYAN_ORDER_PLAN ? "oneshot" : NULL; /* the order that keys have */
  attend_fill(made);
  return made;
}

static const banyan_op *last_blocking(const world_rank *self) { return self->comm->ops->blocking[0]; }

/* Runs a problem in one way; *op is made by the first run, unless the call is blocking. */
static bool run(world_rank *self, const attend *of, bny_pass_form way, bool blocking, attend_call *call,
                banyan_op **op) {
  self->comm->pass = way;
  if (blocking) return attend_once(self, of, call);
  return (*op || world_ok(self, attend_init(self, of, call, op), "init")) &&
         world_ok(self, start_and_wait(*op), attend_text(of));
}

static bool takes_keys(world_rank *self, const attend *of, const banyan_op *op, int round) {
  banyan_op_info info = BANYAN_OP_INFO_INIT;
  bool taken = op->pass && op->pass->is_taken, may = may_pass_keys(of);
  if (of->blocking)
    return world_check(self, taken == may, "round %d: it moved %s: %s", round, taken ? "keys" : "partials",
                       attend_text(of));
  return world_ok(self, banyan_op_query(op, &info), "query") &&
         world_check(self, taken == may && !strcmp(info.algorithm, "pass_kv") == (op->pass != NULL),
                     "round %d: %s by %s: %s", round, taken ? "keys" : "partials", info.algorithm, attend_text(of));
}

static bool run_both(world_rank *self, attend *of) {
  banyan_op *keys = NULL, *partials = NULL;
  attend_call call, twin;
  bool good = true;
  for (int round = 0; round < ROUNDS && good; round++) {
    good = attend_draw_all(self, of, round);
    if (round == 0) attend_call_of(of, self, &call), attend_call_of(of, self, &twin);
    attend_be_twin(of, self, &twin);
    good = good && run(self, of, BNY_PASS_KEYS, of->blocking, &call, &keys);
    if (good && *of->ranks[self->rank].tokens > 0)
      good = takes_keys(self, of, of->blocking ? last_blocking(self) : keys, round);
    good = good && run(self, of, BNY_PASS_QUERIES, false, &twin, &partials) && world_meet(self);
    good = good && attend_twin_agrees(self, of, round);
    if (of->combine.order != BANYAN_ORDER_EXACT) good = good && attend_holds(self, of, round);
  }
  banyan_op_free(keys);
  banyan_op_free(partials);
  return world_meet(self) && good;
}

static void run_many(world_rank *self) {
  const many *many = self->argument;
  for (int i = 0; i < PROBLEMS && run_both(self, many->problems[i]); i++) continue;
}

TEST_EVERYWHERE(both_ways_have_the_same_bits, 36) {
  if (on->is_device) {
    world_skip("both_ways_have_the_same_bits", "devices combine partials");
    return;
  }
  static const int32_t ranks[] = {2, 3, 5};
  many many = {.nranks = world_ranks(on, ranks[_i % 3])};
  for (int i = 0; i < PROBLEMS; i++) many.problems[i] = make(many.nranks, _i + 100 * i);
  if (_i % 4 == 1) setenv("BANYAN_PART_KIB", "16", 1);
  WORLD_RUN(run_many, .nranks = many.nranks, .on = on, .argument = &many);
}

/* ---- shapes that change ------------------------------------------------------------------------------------------ */

/* Layers of a model may differ in KV heads, lengths and the type of keys, and yet have one shape of rows. */
static attend *make_layer(int32_t nranks, banyan_scatter scatter, int32_t kv_heads, int32_t keys_max, attend_form form,
                          uint64_t seed) {
  const problem_shape shape = {.batch = 2,
                               .heads = 16,
                               .kv_heads = kv_heads,
                               .head_dim = 64,
                               .value_dim = 64,
                               .dtype = BANYAN_BF16,
                               .keys_max = keys_max};
  attend *made = attend_make_plain(nranks, seed, &shape);
  made->several = made->causal = true;
  made->queries_most = 40;
  made->form = form;
  made->combine.scatter = scatter;
  attend_fill(made);
  return made;
}

static attend *make_prompt(int32_t nranks, int32_t keys_max, uint64_t seed) {
  return make_layer(nranks, BANYAN_SCATTER_TOKENS, 1, keys_max, ATTEND_PLAIN, seed);
}

/* A shard that has grown beyond its room moves partials once, and then ranks choose again. */
static void grow(world_rank *self) {
  static const struct {
    int32_t keys; /* at most, of each sequence */
    bool taken;
  } calls[] = {{1, true}, {0, true}, {1000, false}, {1000, true}, {3, true}};
  attend *of = self->argument;
  attend_call call;
  for (int i = 0; i < (int)(sizeof calls / sizeof *calls); i++) {
    if (!attend_draw_all(self, of, 0)) return;
    int32_t *lengths = of->ranks[self->rank].lengths;
    for (int32_t b = 0; b < of->shape.batch; b++) lengths[b] = lengths[b] < calls[i].keys ? lengths[b] : calls[i].keys;
    attend_call_of(of, self, &call);
    if (!world_meet(self) || !run(self, of, BNY_PASS_KEYS, true, &call, NULL)) return;
    const bny_pass *pass = last_blocking(self)->pass;
    if (!world_check(self, pass && pass->is_taken == calls[i].taken, "call %d moved other things", i)) return;
    if (!world_meet(self) || !attend_holds(self, of, 0)) return;
  }
}

TEST_LOOP(shards_grow, 2) {
  attend *of;
  uint64_t seed = 1;
  do of = make_prompt(2 + _i, 1000, seed++);
  while (of->ranks[0].shard.lens[0] < 500);
  WORLD_RUN(grow, .nranks = of->nranks, .argument = of);
}

static void run_layers(world_rank *self) {
  const many *many = self->argument;
  attend_call call;
  for (int i = 0; i < 2 * PROBLEMS; i++) {
    attend *of = many->problems[i % PROBLEMS];
    if (!attend_ready(self, of, i / PROBLEMS, &call)) return;
    if (!run(self, of, BNY_PASS_KEYS, true, &call, NULL)) return;
    if (!world_meet(self) || !attend_holds(self, of, i / PROBLEMS)) return;
  }
}

TEST_LOOP(layers_differ_in_keys, 9) {
  static const banyan_scatter scatters[] = {BANYAN_SCATTER_NONE, BANYAN_SCATTER_TOKENS, BANYAN_SCATTER_HEADS};
  static const int32_t kv_heads[PROBLEMS] = {8, 1, 16, 2, 8, 4}, keys[PROBLEMS] = {70, 300, 20, 150, 280, 1};
  static const attend_form forms[PROBLEMS] = {ATTEND_F32, ATTEND_E4M3, ATTEND_PLAIN, ATTEND_I8, ATTEND_E4M3};
  many many = {.nranks = 2 + _i / 3};
  for (int i = 0; i < PROBLEMS; i++)
    many.problems[i] = make_layer(many.nranks, scatters[_i % 3], kv_heads[i], keys[i], forms[i], 7);
  WORLD_RUN(run_layers, .nranks = many.nranks, .argument = &many);
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

static void take_the_cheaper(world_rank *self) {
  attend *of = self->argument;
  attend_call call;
  banyan_op *op = NULL;
  bool few_keys = of->shape.keys_max < 100;
  if (!attend_ready(self, of, 0, &call)) return;
  call.desc.keys_max = of->shape.keys_max;
  if (run(self, of, BNY_PASS_AUTO, false, &call, &op) &&
      world_check(self, !op->pass == !few_keys, "by %s", op->pass ? op->pass->text : "partials"))
    attend_holds(self, of, 0);
  banyan_op_free(op);
}

TEST_LOOP(what_costs_less_moves, 2) {
  if (!world_be_nodes("a,b")) return;
  WORLD_RUN(take_the_cheaper, .nranks = 2, .argument = make_prompt(2, _i ? 4000 : 8, 1));
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

TEST_RANKS(a_rejected_run_is_known_to_peers, 1, .nranks = 3, .argument = make_prompt(3, 8, 1)) {
  attend *of = self->argument;
  attend_call call;
  banyan_op *op = NULL;
  if (!attend_ready(self, of, 0, &call)) return;
  if (run(self, of, BNY_PASS_KEYS, false, &call, &op)) {
    if (self->rank == 1) of->ranks[1].lengths[1] = -4;
    banyan_status status = banyan_start(op), expected = self->rank == 1 ? BANYAN_ERR_ARGUMENT : BANYAN_ERR_PEER;
    if (status == BANYAN_OK) status = banyan_wait(op);
    world_gets(self, status, expected, "seq_lens[1] is -4");
  }
  banyan_op_free(op);
}

/* Peers wait for a shard that does not come, and name its rank. The deadline leaves time to make the operation. */
TEST_RANKS(a_missing_shard_is_a_timeout, 1, .nranks = 3, .argument = make_prompt(3, 8, 1)) {
  attend *of = self->argument;
  attend_call call;
  banyan_op *op = NULL;
  if (!attend_ready(self, of, 0, &call)) return;
  self->comm->pass = BNY_PASS_KEYS;
  world_meet(self);
  banyan_status status = attend_init(self, of, &call, &op);
  if (world_ok(self, status, "init") && world_meet(self)) {
    self->comm->exec->timeout_ns = 1000000000;
    if (self->rank != 1 && world_ok(self, banyan_start(op), "start")) banyan_wait(op);
    world_fails(self, BANYAN_ERR_TIMEOUT, 1, "");
  }
  banyan_op_free(op);
}

/* All ranks attend to the shard that has the NaN, and name its rank. */
static void fail_by_nan(world_rank *self) {
  attend *of = self->argument;
  attend_call call;
  banyan_op *op = NULL;
  if (!attend_ready(self, of, 0, &call)) return;
  if (self->rank == 1) {
    memset(of->ranks[1].shard.memory[0][0].data, 0xff,
           2 * (size_t)(of->shape.batch * of->shape.keys_max * of->shape.head_dim));
    for (int32_t b = 0; b < of->shape.batch; b++) of->ranks[1].lengths[b] = of->shape.keys_max;
  }
  self->comm->pass = BNY_PASS_KEYS;
  world_meet(self);
  if (world_ok(self, attend_init(self, of, &call, &op), "init")) {
    banyan_status status = start_and_wait(op);
    world_check(self, status == BANYAN_ERR_DATA, "%s", banyan_status_string(status));
    world_fails(self, BANYAN_ERR_DATA, 1, "rank 1");
  }
  banyan_op_free(op);
}

TEST(a_nan_names_the_rank_of_its_key) {
  const problem_shape shape = {
      .batch = 2, .heads = 4, .kv_heads = 1, .head_dim = 64, .value_dim = 64, .dtype = BANYAN_BF16, .keys_max = 8};
  attend *of = attend_make_plain(2, 5, &shape);
  of->blocking = false;
  of->combine.scatter = BANYAN_SCATTER_TOKENS;
  attend_fill(of);
  WORLD_RUN(fail_by_nan, .nranks = 2, .argument = of);
}

int main(void) { return world_main(suite_of("pass", 240)); }
