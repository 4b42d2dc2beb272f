/* SPDX-License-Identifier: Apache-2.0
 * Attention over the shards of ranks, with and without a combine of its rows, on every backend. Random problems run as
 * repeated operations, as captured graphs on devices, and as blocking calls, and are compared with a reference in
 * double precision. Between nodes attention runs in slices. */
#include <sys/resource.h>

#include "attention/call.h"
#include "comm/comm.h"
#include "op.h"
#include "tests/support/attend.h"

enum { PROBLEMS = 5, ROUNDS = 4 };

typedef struct many {
  int count, rounds;
  attend *problems[PROBLEMS];
} many;

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Devices combine within the attention kernel whatever its epilogue can push. */
static bool is_named(world_rank *self, const attend *of, const banyan_op *op) {
  banyan_op_info info = {.size = sizeof info};
  if (!world_ok(self, banyan_op_query(op, &info), "query")) return false;
  const banyan_combine_desc *combine = &of->combine;
  const char *says = self->on->is_device ? "bny_decode_" : "on the host";
  bool within = (!combine->algorithm || strcmp(combine->algorithm, "oneshot") == 0) && combine->wire != BANYAN_E4M3 &&
                !(combine->order == BANYAN_ORDER_CANONICAL && combine->wire != BANYAN_F32);
  if (!of->alone && !of->gathers && self->on == &world_emulated)
    says = within ? "sent from within it" : "a combine of its own";
  return world_check(self, strstr(info.reason, says) != NULL, "%s is not in: %s: %s", says, info.reason,
                     attend_text(of));
}

/* The description lists the combine of the certificate after the combine of the rows. */
static bool is_described(world_rank *self, const attend *of, const attend_call *call, const banyan_op *op) {
  size_t bytes = banyan_op_describe(op, NULL, 0) + 1;
  char *text = malloc(bytes);
  if (text) banyan_op_describe(op, text, bytes);
  const char *rows = text ? strstr(text, "combine of rank ") : NULL;
  const banyan_prune *prune = &call->desc.prune;
  bool certifies = prune->epsilon > 0 || prune->top_pages > 0;
  bool good = of->alone || (rows && !strstr(rows + 1, "combine of rank ") == !certifies);
  free(text);
  return world_check(self, good || self->on->is_device, "not the combines of it: %s", attend_text(of));
}

static bool init(world_rank *self, const attend *of, const attend_call *call, banyan_op **op) {
  return world_ok(self, attend_init(self, of, call, op), attend_text(of)) && is_named(self, of, *op) &&
         is_described(self, of, call, *op);
}

/* Attention to memory followed by a combine has the same bits as the fused operation. */
static bool do_apart(world_rank *self, const attend *of, banyan_op **ops) {
  const attend_rank *rank = &of->ranks[self->rank];
  attend_call call;
  banyan_partial between;
  attend_call_of(of, self, &call);
  char *rows = world_at(self, rank->rows);
  banyan_partial_init(&between, rows, BANYAN_F32, rows + rank->values_bytes, BANYAN_F32, of->shape.heads,
                      of->shape.value_dim);
  between.values_kind = BANYAN_VALUES_NUMERATOR;
  between.stats_kind = BANYAN_STATS_MAX_SUM;
  between.base = BANYAN_BASE_2;
  between.sum = rows + rank->values_bytes + rank->lse_bytes / 2;
  attend_be_twin(of, self, &call);
  if (self->rank != 0) call.desc.sinks = NULL; /* a combine counts the sinks of rank 0 only */
  return world_ok(self, banyan_attention_init(self->comm, &call.desc, &between, &ops[0]), "attention") &&
         world_ok(self,
                  banyan_combine_init(self->comm, &call.combine, &between, call.has_result ? &call.out : NULL, &ops[1]),
                  "combine") &&
         world_ok(self, banyan_start(ops[0]), "start") && world_runs(self, ops[1]);
}

/* Runs the same problem in a second way, in separate memory. */
static bool run_twin(world_rank *self, attend *of, int round) {
  banyan_op *ops[2] = {NULL};
  attend_call call;
  /* A ring on a lossy wire rounds at the boundaries of its parts. */
  bool same_roundings =
      of->combine.wire == BANYAN_F32 || (of->combine.algorithm && !strcmp(of->combine.algorithm, "oneshot"));
  if (of->epsilon > 0) return true;
  bool apart = !of->alone && !of->gathers && !of->has_tokens && !of->has_mask && same_roundings;
  if (!apart && (!attend_has_twin(of) || (self->on->is_device && !of->gathers))) return true;
  bool good = world_put(self);
  if (good && apart) good = do_apart(self, of, ops);
  if (!apart) attend_twin_of(of, self, &call);
  if (good && !apart && of->gathers &&
      !of->blocking) /* a blocking call plans for more tokens, so its ring has other parts */
    good = init(self, of, &call, &ops[0]) && world_runs(self, ops[0]);
  else if (good && !apart)
    good = attend_once(self, of, &call);
  good = good && world_finish(self) && attend_twin_agrees(self, of, round);
  for (int i = 0; i < 2; i++) banyan_op_free(ops[i]);
  return good;
}

static bool run_one(world_rank *self, attend *of, int rounds) {
  banyan_op *op = NULL;
  attend_call call;
  bool good = true;
  for (int round = 0; round < rounds && good; round++) {
    good = attend_draw_all(self, of, round);
    if (round == 0) attend_call_of(of, self, &call);
    if (round == 0 && !of->blocking) good = good && world_put(self) && init(self, of, &call, &op);
    if (round == 0) memset(&call.queries, 0x55, of->blocking ? 0 : sizeof call.queries); /* init has copied it */
    if (of->blocking)
      good = good && world_put(self) && attend_once(self, of, &call) && world_finish(self);
    else
      good = good && (round > 0 || world_record(self, &op, 1)) && world_replay(self);
    good = good && world_ok(self, banyan_comm_status(self->comm), "status") && world_meet(self) &&
           attend_holds(self, of, round);
    if (round == rounds - 1) good = good && run_twin(self, of, round);
  }
  good = world_meet(self) && good;
  banyan_op_free(op);
  return good;
}

static void run_many(world_rank *self) {
  const many *many = self->argument;
  for (int i = 0; i < many->count && run_one(self, many->problems[i], many->rounds); i++) {
  }
}

/* ---- problems ---------------------------------------------------------------------------------------------------- */

static attend *make(const world_backend *on, int32_t nranks, int number) {
  attend *made = attend_make(nranks, (uint64_t)number);
  made->alone = number % 7 == 6;
  made->gathers = number % 7 == 5 && on != &world_staged; /* an all-gather needs devices that share memory */
  if (made->alone) made->blocking = false;
  if (!on->is_device && number % 3 == 1) { /* results of eight bits */
    made->out_dtype = number % 2 ? BANYAN_E4M3 : BANYAN_E5M2;
    made->form = ATTEND_PLAIN;
    made->combine.wire = BANYAN_F32;
    if (!made->shape.latent) made->shape.head_dim = made->shape.value_dim = 1 + number % 40; /* includes odd sizes */
    if (made->rope_dim >= made->shape.head_dim) made->rope_dim = 0;
  }
  if (!on->is_device && number % 3 == 0) made->epsilon = powf(10, -(float)(number % 5));
  if (!on->is_device && number % 3 != 1 && number % 5 > 1) /* devices do not serve these */
    made->form = (attend_form)(ATTEND_E5M2 + number / 5 % 4);
  if (made->form == ATTEND_F32_QUERIES) made->rope_dim = 0, made->gathers = false;
  made->masks_keys = !on->is_device && made->epsilon == 0 && number % 4 == 1;
  if (!on->is_device && number % 8 == 3) made->several = true, made->queries_most = 30;
  if (on->is_device && number % 3 == 1) made->out_dtype = number % 2 ? BANYAN_BF16 : BANYAN_F16;
  if (on == &world_emulated && number % 2) made->keys_bound = 1 << (8 + number % 9);
  if (made->alone && nranks > 1) made->sinks = NULL;
  if ((on == &world_gpu || on == &world_gpu_processes) && !world_is_quick() && number % 2)
    made->shape.keys_max += 1000 + number % 5 * 500; /* several splits of a row */
  attend_fill(made);
  return made;
}

TEST_EVERYWHERE(random_problems, 63) {
  static const char *const words[] = {"sms=4", "compute=80,sms=2", "no-files,sms=3,truncates"};
  const int32_t nranks = world_ranks(on, 1 + _i % ATTEND_RANKS_MAX);
  many many = {.count = on->is_device ? 1 : PROBLEMS, .rounds = ROUNDS};
  for (int i = 0; i < many.count; i++) many.problems[i] = make(on, nranks, _i + 100 * i);
  const char *tables[8];
  int count = 0;
  for (int t = 0; bny_kernels_table[t]; t++)
    if (bny_kernels_table[t]->supported()) tables[count++] = bny_kernels_table[t]->name;
  setenv("BANYAN_KERNELS", tables[_i % count], 1);
  if (on == &world_nodes) setenv("BANYAN_SLICES", _i % 2 ? "5" : "3", 1);
  if (on == &world_nodes && _i % 3 == 0) setenv("BANYAN_PART_KIB", "64", 1);
  if (on == &world_emulated) setenv("BANYAN_ARENA_KIB", "24576", 1);
  WORLD_RUN(run_many, .nranks = nranks, .on = on, .argument = &many, .one_device = _i % 4 == 1,
            .words = on == &world_emulated ? words[_i / 3 % 3] : NULL);
}

/* Operations that all-gather q are started before the first is waited for, with a call in between. */
static void queue(world_rank *self) {
  const many *many = self->argument;
  banyan_op *ops[PROBLEMS] = {NULL};
  attend_call calls[PROBLEMS], twin;
  bool good = true;
  for (int i = 0; i < many->count && good; i++) {
    good = attend_ready(self, many->problems[i], 0, &calls[i]);
    attend_twin_of(many->problems[i], self, &twin);
    good = good && init(self, many->problems[i], &calls[i], &ops[i]) && attend_once(self, many->problems[i], &twin);
  }
  for (int i = 0; i < many->count && good; i++) good = world_ok(self, banyan_start(ops[i]), "start");
  good = good && world_ok(self, banyan_barrier(self->comm), "barrier");
  for (int i = many->count - 1; i >= 0 && good; i--)
    good = world_ok(self, banyan_wait(ops[i]), "wait") && attend_twin_agrees(self, many->problems[i], 0);
  for (int i = 0; i < many->count; i++) banyan_op_free(ops[i]);
}

TEST(operations_in_a_queue) {
  many many = {.count = 3};
  for (int i = 0; i < many.count; i++) {
    many.problems[i] = attend_make_plain(4, 170 + (uint64_t)i, NULL);
    many.problems[i]->gathers = true;
    attend_fill(many.problems[i]);
  }
  WORLD_RUN(queue, .nranks = 4, .argument = &many);
}

/* ---- capacities -------------------------------------------------------------------------------------------------- */

enum { CAPACITY = 40, CALLS = 60 };

static attend *make_plain(int32_t nranks, int32_t capacity, float epsilon) {
  const problem_shape shape = {.batch = capacity,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 64,
                               .value_dim = 64,
                               .dtype = BANYAN_BF16,
                               .keys_max = 8};
  attend *made = attend_make_plain(nranks, 3, &shape);
  made->has_tokens = true;
  made->epsilon = epsilon;
  if (epsilon > 0) made->combine.scatter = BANYAN_SCATTER_TOKENS;
  attend_fill(made);
  return made;
}

/* Blocking calls use one plan for each power of two of the number of tokens. */
static void call_often(world_rank *self) {
  attend *of = self->argument;
  attend_call call;
  bool good = true;
  for (int round = 0; round < CALLS && good; round++) {
    good = attend_draw_all(self, of, round);
    attend_twin_of(of, self, &call);
    call.desc.prune.epsilon = of->epsilon;
    good = good && world_put(self) && attend_once(self, of, &call) && world_finish(self);
    const float *error = of->ranks[self->rank].error;
    int32_t first, number;
    banyan_split(call.combine.tokens, of->nranks, self->rank, &first, &number);
    for (int32_t row = 0; error && row < number * of->shape.heads && good; row++)
      good = world_check(self, error[row] >= 0 && error[row] < 1e9f, "row %d has error %g", row, (double)error[row]);
  }
  int made = world_plans_made(self);
  if (of->epsilon > 0) made /= 2; /* each plan has a second one for its certificate */
  world_check(self, made >= 3 && made <= 8, "%d plans were made", made);
}

TEST_EVERYWHERE(classes_share_plans, 6) {
  if (on->is_device) {
    world_skip("classes_share_plans", "devices make operations for each shape");
    return;
  }
  attend *of = make_plain(world_ranks(on, 1 + _i), CAPACITY, _i % 2 ? 0.1f : 0);
  WORLD_RUN(call_often, .nranks = of->nranks, .on = on, .argument = of);
}

/* Memory is allocated for the rows of a run, whatever the upper bound of rows. */
static void call_with_bound(world_rank *self) {
  attend *of = self->argument;
  attend_call call;
  for (int round = 0; round < 3 && attend_ready(self, of, round, &call); round++) {
    call.desc.batch = call.combine.tokens = 1 << 28;
    if (!world_put(self) || !attend_once(self, of, &call) || !world_finish(self)) return;
  }
}

TEST_LOOP(bounds_take_no_memory, 2) {
  attend *of = make_plain(1 + _i, CAPACITY, 0);
  WORLD_RUN(call_with_bound, .nranks = of->nranks, .argument = of);
}

/* A call without sequences completes and leaves the communicator usable. */
static void attend_to_nothing(world_rank *self) {
  attend_call call;
  banyan_op *op = NULL;
  attend_call_of(self->argument, self, &call);
  for (int has_valid = 0; has_valid < 2; has_valid++) {
    call.desc.batch = call.combine.tokens = 0;
    call.combine.valid = has_valid ? &call.valid : NULL;
    if (!world_put(self) || !attend_once(self, self->argument, &call) ||
        !world_ok(self, banyan_attention_combine_init(self->comm, &call.desc, &call.combine, NULL, &op), "init"))
      break;
    for (int i = 0; i < 3; i++)
      if (world_ok(self, banyan_start(op), "start")) world_ok(self, banyan_wait(op), "wait");
    if (world_finish(self)) world_ok(self, banyan_comm_status(self->comm), "status");
    banyan_op_free(op);
  }
}

TEST_EVERYWHERE(nothing_to_do, 3) {
  attend *of = make_plain(world_ranks(on, 1 + _i), 1, 0);
  memset(of->ranks[0].tokens, 0, sizeof(int32_t));
  WORLD_RUN(attend_to_nothing, .nranks = of->nranks, .on = on, .argument = of);
}

/* Rank 1 reads one page for two rows that need different pages, so one row gets hardly any weight there. The pages that
 * it skips hold a twelfth of rank 0's weight, and the certificate covers them. */
TEST_RANKS(what_a_rank_left_out_counts, 1, .nranks = 2) {
  float q[] = {10, 0, 0, 10}, k[2][4] = {{60.25f, 0, 0, 60.25f}, {60, 0, 0, 60}},
        v[2][4] = {{1, 1, 1, 1}, {-1, -1, -1, -1}};
  float bounds[2 * 6], error[2], values[4], lse[2];
  int32_t lens[1] = {2};
  banyan_attention_desc desc =
      attention_desc_of(1, 2, 1, 2, 2, 2, BANYAN_F32, BANYAN_F32, q, k[self->rank], v[self->rank], lens);
  desc.scale = 1;
  desc.prune = (banyan_prune){.bounds = bounds, .keys = 1, .batch_pages = 2, .top_pages = 3};
  desc.prune.error = error;
  banyan_combine_desc combine = BANYAN_COMBINE_DESC_INIT;
  combine.tokens = 1, combine.heads = combine.value_dim = 2;
  banyan_partial out;
  banyan_partial_init(&out, values, BANYAN_F32, lse, BANYAN_F32, 2, 2);
  world_ok(self, banyan_page_bounds_update(&desc, NULL), "bounds");
  world_ok(self, banyan_attention_combine(self->comm, &desc, &combine, &out), "attention");
  for (int32_t h = 0; h < 2; h++) /* attention over all keys gives tanh(2.5 / 2) */
    world_check(self, fabsf(values[2 * h] - 0.84828f) * 1.4142f <= error[h] + 1e-4f, "head %d: %g, certified %g", h,
                (double)values[2 * h], (double)error[h]);
}

/* Some queries in `batch` sequences, with one page of one key each; the last sequence has all other queries. */
enum { QUERIES = 64 };

typedef struct one_key {
  float q[QUERIES][2], k[QUERIES][2], bounds[QUERIES][6], values[QUERIES][2], lse[QUERIES];
  int32_t lens[QUERIES], loc[QUERIES + 1], starts[QUERIES], key_starts[QUERIES];
} one_key;

static banyan_status attend_keys(world_rank *self, int32_t tokens, int32_t batch, int32_t key, int32_t keys) {
  one_key at = {.lens = {0}};
  banyan_queries queries = BANYAN_QUERIES_INIT;
  banyan_attention_desc desc =
      attention_desc_of(batch, 1, 1, 1, 2, 2, BANYAN_F32, BANYAN_F32, at.q, at.k, at.k, at.lens);
  banyan_combine_desc combine = BANYAN_COMBINE_DESC_INIT;
  banyan_partial out;
  for (int32_t i = 0; i < QUERIES; i++) {
    at.q[i][0] = at.q[i][1] = at.k[i][0] = at.k[i][1] = 1;
    at.lens[i] = keys, at.loc[i] = i, at.starts[i] = QUERIES, at.key_starts[i] = key;
  }
  at.loc[batch] = tokens;
  queries.tokens = tokens, queries.query_start_loc = at.loc;
  queries.query_start = at.starts, queries.key_start = at.key_starts;
  desc.queries = &queries;
  desc.prune = (banyan_prune){.bounds = at.bounds[0], .keys = 1, .batch_pages = keys, .top_pages = 2};
  combine.tokens = tokens, combine.heads = 1, combine.value_dim = 2;
  banyan_partial_init(&out, at.values, BANYAN_F32, at.lse, BANYAN_F32, 1, 2);
  if (keys == 1) banyan_page_bounds_update(&desc, NULL);
  return banyan_attention_combine(self->comm, &desc, &combine, &out);
}

static banyan_status attend_one_key(world_rank *self, int32_t tokens, int32_t batch, int32_t key) {
  return attend_keys(self, tokens, batch, key, 1);
}

static void differ_in_batch(world_rank *self) {
  const int32_t *batches = self->argument, there = batches[!self->rank], here = batches[self->rank];
  char named[96];
  banyan_status status = attend_one_key(self, QUERIES, here, self->rank);
  snprintf(named, sizeof named, " %d there, %d here", there, here);
  const char *text = strstr(banyan_last_error(), "batch with top_pages");
  world_check(self, status == BANYAN_ERR_MISMATCH && text && strstr(text, named), "not%s: %s", named,
              banyan_last_error());
}

/* The second two are of one class, for which calls plan alike. */
TEST(another_batch_is_named) {
  int32_t batches[2][2] = {{4, 1}, {4, 3}};
  for (int i = 0; i < 2; i++) WORLD_RUN(differ_in_batch, .nranks = 2, .argument = batches[i]);
}

TEST_RANKS(alternating_batches_keep_their_plans, 1, .nranks = 2) {
  uint64_t plans = 0;
  for (int32_t i = 0; i < 6; i++) {
    bool good = world_ok(self, attend_one_key(self, i % 2 ? 60 : 64, i % 2 ? 1 : 64, self->rank), "attention");
    if (i == 1) plans = self->comm->plans;
    if (!good || !world_check(self, i < 2 || self->comm->plans == plans, "call %d makes plans", i)) return;
  }
}

/* Both ranks say that their page is at position 7. */
TEST_RANKS(a_page_of_two_ranks_is_named, 1, .nranks = 2) {
  banyan_status status = attend_one_key(self, 5, 3, 7);
  const char *expected = "the page at position 7 of sequence 0, KV head 0 is offered twice, by rank 0 and rank 1";
  world_gets(self, status, BANYAN_ERR_DATA, expected);
  world_ok(self, attend_one_key(self, 5, 3, self->rank), "a call after the error");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* Rank 1 has 2^30 pages, for which its process has too few addresses. */
TEST_RANKS(missing_memory_is_named, 1, .nranks = 2) {
  const struct rlimit limit = {INT64_C(1) << 34, INT64_C(1) << 34};
  setrlimit(RLIMIT_AS, &limit); /* it fails if there is a lower limit, which is as good */
  banyan_status status = attend_keys(self, 1, 1, 0, self->rank ? 1 << 30 : 1);
  world_gets(self, status, self->rank ? BANYAN_ERR_MEMORY : BANYAN_ERR_PEER, "out of memory: pruning needs 2362");
}
#endif

/* ---- rejections -------------------------------------------------------------------------------------------------- */

TEST_RANKS(wrong_numbers_are_rejected, 1, .nranks = 1, .argument = make_plain(1, CAPACITY, 0)) {
  attend *of = self->argument;
  attend_rank *rank = &of->ranks[self->rank];
  attend_call call;
  if (!attend_ready(self, of, 0, &call)) return;
  struct {
    const char *says;
    int32_t tokens;
  } cases[] = {{"combine.valid.seq_lens must be NULL", CAPACITY},
               {"valid.tokens leads to 41", CAPACITY + 1},
               {"queries.query_start_loc[6] is 6: starts must not be negative or", 5}};
  for (int i = 0; i < 3; i++) {
    call.valid.batch = i == 0 ? CAPACITY : 0;
    call.valid.seq_lens = i == 0 ? rank->lengths : NULL;
    call.queries.query_start_loc = of->loc;
    call.desc.queries = i == 2 ? &call.queries : NULL;
    *rank->tokens = cases[i].tokens;
    for (int32_t b = 0; b <= CAPACITY; b++) of->loc[b] = b < 7 ? b : 7;
    banyan_status status = banyan_attention_combine(self->comm, &call.desc, &call.combine, &call.out);
    world_gets(self, status, BANYAN_ERR_ARGUMENT, cases[i].says);
  }
  banyan_op *op; /* numbers that no run may change are known when the operation is made */
  call.desc.queries = NULL, call.combine.valid = NULL, call.desc.prune.epsilon = 2;
  banyan_status status = banyan_attention_combine_init(self->comm, &call.desc, &call.combine, &call.out, &op);
  world_gets(self, status, BANYAN_ERR_ARGUMENT, "prune.epsilon is 2");
}

/* The statements spoil a call, which is then rejected with this text. */
#define REJECT(says, ...)                                                                                             \
  do {                                                                                                                \
    __VA_ARGS__;                                                                                                      \
    world_gets(self, banyan_attention_combine(self->comm, &call.desc, &call.combine, &call.out), BANYAN_ERR_ARGUMENT, \
               says);                                                                                                 \
    of->ranks[0].counts[0] = count;                                                                                   \
    call = good;                                                                                                      \
  } while (0)

/* An all-gather of q that does not fit the call. */
static void gather_wrongly(world_rank *self) {
  attend *of = self->argument;
  const int32_t count = of->ranks[0].counts[0];
  attend_call call, good;
  banyan_op *op = NULL;
  if (!attend_ready(self, of, 0, &call)) return;
  good = call;
  REJECT("desc.gather has tokens 7, and batch is ", call.gather.tokens = 7);
  REJECT("desc.gather has heads 1000, and heads is ", call.gather.heads = 1000);
  REJECT("desc.gather has dim 65, and head_dim is ", call.gather.dim = 65);
  REJECT("desc.gather has dtype 1, and q_dtype is ", call.gather.dtype = BANYAN_F32);
  REJECT("desc.gather has all_token_stride 3, and q_batch_stride is ", call.gather.all_token_stride = 3);
  REJECT("desc.gather.size is 7", call.gather.size = 7);
  REJECT("desc.gather.stream", call.gather.stream = &call);
  REJECT("mine is NULL", call.desc.q_mine = NULL);
  REJECT("desc.counts[0] is -1", of->ranks[0].counts[0] = -1);
  world_gets(self, banyan_attention(&call.desc, &call.out), BANYAN_ERR_ARGUMENT, "desc.gather");
  world_gets(self, banyan_attention_init(self->comm, &call.desc, &call.out, &op), BANYAN_ERR_ARGUMENT, "desc.gather");
  attend_once(self, of, &call);
}

TEST(wrong_gathers_are_named) {
  attend *of = attend_make_plain(1, 9, NULL);
  of->gathers = true;
  attend_fill(of);
  WORLD_RUN(gather_wrongly, .nranks = 1, .argument = of);
}

/* ---- claims ------------------------------------------------------------------------------------------------------ */

enum { CLAIMED = 32, CLAIM_DIM = 16 };

typedef struct claim_case {
  bool same_keys, checks;
  int32_t start[2]; /* key_start of each rank; -1: no positions */
  int32_t block, stride;
  const char *text; /* NULL: no error */
} claim_case;

static const claim_case claim_cases[] = {
    {true, true, {-1, -1}, 0, 0, "ranks 0 and 1 begin sequence 0 with the same 32 keys"},
    {true, false, {-1, -1}, 0, 0, NULL},
    {false, true, {-1, -1}, 0, 0, NULL},
    {true, true, {0, CLAIMED}, 0, 0, NULL},
    {false, true, {0, CLAIMED - 1}, 0, 0, "ranks 0 and 1 both claim the key at position 31 of sequence 0"},
    {false, true, {0, 8}, 8, 16, NULL},
    {false, true, {16, 4}, 8, 16, "ranks 0 and 1 both claim the key at position 20 of sequence 0"},
};

static void claim_keys(world_rank *self) {
  const claim_case *of = self->argument;
  float q[CLAIM_DIM] = {1}, out[CLAIM_DIM], keys[CLAIMED][CLAIM_DIM];
  int32_t lengths = CLAIMED, query_start = 1000;
  for (int k = 0; k < CLAIMED; k++)
    for (int i = 0; i < CLAIM_DIM; i++)
      keys[k][i] = (float)((k * 7 + i * 3) % 11) + (of->same_keys ? 0 : (float)self->rank);
  banyan_attention_desc desc =
      attention_desc_of(1, 1, 1, CLAIMED, CLAIM_DIM, CLAIM_DIM, BANYAN_F32, BANYAN_F32, q, keys, keys, &lengths);
  desc.scale = 1;
  banyan_queries queries = BANYAN_QUERIES_INIT;
  queries.tokens = 1, queries.query_start = &query_start, queries.key_start = &of->start[self->rank];
  queries.key_block = of->block, queries.key_stride = of->stride;
  if (of->start[0] >= 0) desc.queries = &queries;
  banyan_combine_desc combine = {.size = sizeof combine, .tokens = 1, .heads = 1, .value_dim = CLAIM_DIM};
  banyan_partial to;
  banyan_partial_init(&to, out, BANYAN_F32, NULL, BANYAN_F32, 1, CLAIM_DIM);
  for (int call = 0; call < 2; call++) { /* a second call is checked as well if the first was rejected */
    banyan_status status = banyan_attention_combine(self->comm, &desc, &combine, &to);
    if (of->text)
      world_gets(self, status, BANYAN_ERR_ARGUMENT, of->text);
    else
      world_ok(self, status, "attention");
  }
  world_ok(self, banyan_barrier(self->comm), "barrier");
}

TEST_LOOP(claims_are_compared, (int)(sizeof claim_cases / sizeof claim_cases[0])) {
  claim_case of = claim_cases[_i];
  if (of.checks) setenv("BANYAN_CHECK", "1", 1);
  WORLD_RUN(claim_keys, .nranks = 2, .argument = &of);
}

static uint64_t key_bytes(const banyan_attention_desc *desc) {
  bny_attention_desc own;
  ck_assert_int_eq(bny_attention_read(desc, &own), BANYAN_OK);
  ck_assert_uint_eq(bny_attention_bytes(&own), 107 * (uint64_t)desc->kv_heads * bny_attention_key_bytes(&own));
  return bny_attention_key_bytes(&own);
}

TEST(keys_are_counted_once) {
  enum { BATCH = 2, KV_HEADS = 3 };
  static const float k[1], v[1];
  static const int32_t seq_lens[BATCH] = {100, 7};
  banyan_attention_desc desc =
      attention_desc_of(BATCH, KV_HEADS, KV_HEADS, 100, 576, 576, BANYAN_BF16, BANYAN_BF16, NULL, k, v, seq_lens);
  desc.value_dim = 512;
  ck_assert_uint_eq(key_bytes(&desc), 2 * (576 + 512));
  desc.kv.v = k; /* MLA: values are the first elements of keys */
  ck_assert_uint_eq(key_bytes(&desc), 2 * 576);
  desc.kv.v_token_stride = 1024; /* differs from the rows of keys */
  ck_assert_uint_eq(key_bytes(&desc), 2 * (576 + 512));
  desc.kv.rows = BANYAN_KV_ROWS_FLASHMLA_FP8;
  desc.kv.dtype = BANYAN_E4M3;
  ck_assert_uint_eq(key_bytes(&desc), 656);
}

int main(void) { return world_main(suite_of("attend", 240)); }
