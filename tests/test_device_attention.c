/* SPDX-License-Identifier: Apache-2.0
 * Attention on devices, alone and with a combine, from banyan.h down, over the fake driver; and on the host by the same
 * descriptions, paged too. */
#include <check.h>
#include <stdio.h>

#include "attention_problem.h"
#include "device_world.h"

enum { RANKS_MAX = 4, SETS = 5 };

/* Of f32 sums and two-term weights, relative to what is summed. */
static const double bound = 3e-5;

typedef struct set {
  problem_shape shape;
  banyan_scatter scatter;
  banyan_dtype wire;
  banyan_order order;
  const char *algorithm;
  uint16_t *q;
  problem_shard shards[RANKS_MAX];
  float *values[RANKS_MAX], *lse[RANKS_MAX];         /* result of a rank */
  float *other_values[RANKS_MAX], *other_lse[RANKS_MAX]; /* in another way */
  float *rows[RANKS_MAX];                            /* values, m, d */
} set;

typedef struct task {
  int32_t nranks;
  bool host, one_device;
  set sets[SETS];
} task;

static size_t rows_of(const problem_shape *shape) { return (size_t)(shape->batch * shape->heads); }

static void make_set(world_random *random, int32_t nranks, set *made) {
  made->shape = problem_shape_random(random);
  made->q = problem_queries(random, &made->shape);
  size_t rows = rows_of(&made->shape), values = rows * (size_t)made->shape.value_dim;
  for (int32_t r = 0; r < nranks; r++) {
    problem_shard_make(random, &made->shape, made->q, &made->shards[r]);
    made->values[r] = calloc(values, sizeof(float));
    made->other_values[r] = calloc(values, sizeof(float));
    made->lse[r] = calloc(rows, sizeof(float));
    made->other_lse[r] = calloc(rows, sizeof(float));
    made->rows[r] = calloc(values + 2 * rows, sizeof(float));
  }
}

static task *make_task(int32_t nranks, uint64_t seed) {
  world_random random = {world_seed() * 100 + seed};
  task *made = calloc(1, sizeof *made);
  made->nranks = nranks;
  for (int i = 0; i < SETS; i++) {
    make_set(&random, nranks, &made->sets[i]);
    made->sets[i].scatter = (banyan_scatter)random_below(&random, 4);
  }
  return made;
}

static void free_task(task *task) {
  for (int i = 0; i < SETS; i++) {
    set *set = &task->sets[i];
    free(set->q);
    for (int32_t r = 0; r < task->nranks; r++) {
      problem_shard_free(&set->shards[r]);
      free(set->values[r]);
      free(set->other_values[r]);
      free(set->lse[r]);
      free(set->other_lse[r]);
      free(set->rows[r]);
    }
  }
  free(task);
}

static void run(task *task, void (*body)(world_rank *)) {
  world_setup setup = {.nranks = task->nranks, .bare = true, .argument = task};
  world_run(&setup, body);
}

/* ---- alone ----------------------------------------------------------------------------------------------------------- */

static banyan_partial result_of(const set *set, float *values, float *lse) {
  banyan_partial made;
  banyan_partial_init(&made, values, BANYAN_F32, lse, BANYAN_F32, set->shape.heads, set->shape.value_dim);
  return made;
}

static void attend(world_rank *self) {
  task *task = self->argument;
  device_world_own own = {NULL, NULL, NULL};
  banyan_op *ops[SETS] = {NULL};
  int ordinal = task->host ? -1 : self->rank;
  bool good = device_world_join(self, ordinal) && (task->host || device_world_make_own(self, ordinal, &own));
  for (int i = 0; i < SETS && good; i++) {
    set *set = &task->sets[i];
    banyan_attention_desc *desc = &set->shards[self->rank].desc;
    banyan_partial out = result_of(set, set->values[self->rank], set->lse[self->rank]);
    desc->stream = own.stream;
    good = world_ok(self, banyan_attention_init(self->comm, desc, &out, &ops[i]), "init");
    banyan_op_info info = {.size = sizeof info};
    good = good && world_ok(self, banyan_op_query(ops[i], &info), "query") &&
           world_check(self, strcmp(info.algorithm, "attention") == 0 &&
                       strstr(info.reason, task->host ? "host" : "bny_decode_"),
                       "%s: %s", info.algorithm, info.reason);
  }
  uint64_t before = task->host ? 0 : FAKE_CUDA(fake_cuda_setup_calls)();
  for (int round = 0; round < 2 && good; round++)
    for (int i = 0; i < SETS && good; i++)
      good = world_ok(self, banyan_start(ops[i]), "start") && world_ok(self, banyan_wait(ops[i]), "wait");
  if (good && !task->host) {
    uint64_t calls = FAKE_CUDA(fake_cuda_setup_calls)() - before;
    world_check(self, self->nranks > 1 || calls == 0, "%llu calls that allocate or wait", (unsigned long long)calls);
    device_world_run(self);
  }
  for (int i = 0; i < SETS; i++) banyan_op_free(ops[i]);
  device_world_free_own(&own);
}

static void check_alone(const task *task) {
  for (int i = 0; i < SETS; i++) {
    const set *set = &task->sets[i];
    const problem_shape *shape = &set->shape;
    for (int32_t row = 0; row < shape->batch * shape->heads; row++) {
      problem_row reference;
      problem_row_make(set->shards, 1, row / shape->heads, row % shape->heads, &reference);
      double error = problem_row_error(&reference, shape->value_dim, set->values[0] + (size_t)row * (size_t)shape->value_dim,
                                       set->lse[0][row], bound);
      ck_assert_msg(error <= 1,
                    "set %d, row %d: error %g of the bound; %d x %d/%d heads x %d/%d, pages of %d, %d keys at most", i,
                    row, error, shape->batch, shape->heads, shape->kv_heads, shape->head_dim, shape->value_dim,
                    shape->page_keys, shape->keys_max);
    }
  }
}

START_TEST(alone) {
  task *task = make_task(1, (uint64_t)_i);
  task->host = _i % 3 == 2;
  if (!task->host) device_world_begin(1, _i % 2 ? "compute=80" : "");
  run(task, attend);
  check_alone(task);
  if (!task->host) device_world_end();
  free_task(task);
}
END_TEST

/* ---- with a combine -------------------------------------------------------------------------------------------------- */

static banyan_combine_desc combine_of(const set *set, void *stream) {
  return (banyan_combine_desc){.size = sizeof(banyan_combine_desc), .tokens = set->shape.batch, .heads = set->shape.heads,
                               .value_dim = set->shape.value_dim, .wire = set->wire, .scatter = set->scatter,
                               .order = set->order,
                               .algorithm = set->algorithm, .stream = stream};
}

static bool owns(const set *set, const task *task, int32_t rank, banyan_partial *out, int32_t *token0, int32_t *tokens,
                 int32_t *head0, int32_t *heads) {
  *token0 = *head0 = 0;
  *tokens = set->shape.batch;
  *heads = set->shape.heads;
  if (set->scatter == BANYAN_SCATTER_HEADS) banyan_split(set->shape.heads, task->nranks, rank, head0, heads);
  if (set->scatter == BANYAN_SCATTER_TOKENS) banyan_split(set->shape.batch, task->nranks, rank, token0, tokens);
  if (set->scatter == BANYAN_SCATTER_ROOT && rank != 0) *tokens = 0;
  if (out) banyan_partial_init(out, out->values, BANYAN_F32, out->lse, BANYAN_F32, *heads, set->shape.value_dim);
  return *tokens > 0 && *heads > 0;
}

/* Attention to memory, then a combine of it. */
static bool do_apart(world_rank *self, const task *task, set *set, void *stream, banyan_op **ops) {
  size_t rows = rows_of(&set->shape), values = rows * (size_t)set->shape.value_dim;
  float *memory = set->rows[self->rank];
  banyan_partial between = result_of(set, memory, memory + values);
  between.values_kind = BANYAN_VALUES_NUMERATOR;
  between.stats_kind = BANYAN_STATS_MAX_SUM;
  between.base = BANYAN_BASE_2;
  between.sum = memory + values + rows;
  banyan_partial out = {.values = set->other_values[self->rank], .lse = set->other_lse[self->rank]};
  int32_t box[4];
  bool has = owns(set, task, self->rank, &out, &box[0], &box[1], &box[2], &box[3]);
  banyan_combine_desc combine = combine_of(set, stream);
  return world_ok(self, banyan_attention_init(self->comm, &set->shards[self->rank].desc, &between, &ops[0]), "attention") &&
         world_ok(self, banyan_combine_init(self->comm, &combine, &between, has ? &out : NULL, &ops[1]), "combine") &&
         world_ok(self, banyan_start(ops[0]), "start") && world_ok(self, banyan_start(ops[1]), "start") &&
         world_ok(self, banyan_wait(ops[1]), "wait");
}

static bool do_at_once(world_rank *self, const task *task, set *set, void *stream, banyan_op **op) {
  banyan_partial out = {.values = set->values[self->rank], .lse = set->lse[self->rank]};
  int32_t box[4];
  bool has = owns(set, task, self->rank, &out, &box[0], &box[1], &box[2], &box[3]);
  banyan_combine_desc combine = combine_of(set, stream);
  if (!world_ok(self, banyan_attention_combine_init(self->comm, &set->shards[self->rank].desc, &combine, has ? &out : NULL, op),
                "attention and combine"))
    return false;
  bool within = !task->host && (!set->algorithm || strcmp(set->algorithm, "oneshot") == 0) &&
                !(set->order == BANYAN_ORDER_CANONICAL && set->wire != BANYAN_F32);
  banyan_op_info info = {.size = sizeof info};
  return world_ok(self, banyan_op_query(*op, &info), "query") &&
         world_check(self, strstr(info.reason, within ? "combined within it" : "a combine of its own") != NULL, "%s",
                     info.reason) &&
         world_ok(self, banyan_start(*op), "start") && world_ok(self, banyan_wait(*op), "wait");
}

/* By the blocking call, of which the second of a shape finds all there. */
static bool do_blocking(world_rank *self, const task *task, set *set, void *stream) {
  banyan_partial out = {.values = set->values[self->rank], .lse = set->lse[self->rank]};
  int32_t box[4];
  bool has = owns(set, task, self->rank, &out, &box[0], &box[1], &box[2], &box[3]);
  banyan_combine_desc combine = combine_of(set, stream);
  const banyan_attention_desc *desc = &set->shards[self->rank].desc;
  banyan_attention_desc elsewhere = *desc; /* in other memory, whose result is not looked at */
  elsewhere.k = desc->v;
  elsewhere.v = desc->k;
  bool good = set->shape.latent ||
              world_ok(self, banyan_attention_combine(self->comm, &elsewhere, &combine, has ? &out : NULL), "elsewhere");
  good = good && world_ok(self, banyan_attention_combine(self->comm, desc, &combine, has ? &out : NULL), "first");
  uint64_t before = task->host ? 0 : FAKE_CUDA(fake_cuda_setup_calls)();
  good = good && world_ok(self, banyan_attention_combine(self->comm, desc, &combine, has ? &out : NULL), "second");
  uint64_t calls = task->host ? 0 : FAKE_CUDA(fake_cuda_setup_calls)() - before;
  return good && world_check(self, self->nranks > 1 || calls == 0, "%llu calls that allocate or wait",
                             (unsigned long long)calls);
}

static void attend_and_combine(world_rank *self) {
  task *task = self->argument;
  device_world_own own = {NULL, NULL, NULL};
  banyan_op *ops[SETS][3] = {{NULL}};
  int ordinal = task->host ? -1 : task->one_device ? 0 : self->rank;
  bool good = device_world_join(self, ordinal) && (task->host || device_world_make_own(self, ordinal, &own));
  for (int i = 0; i < SETS && good; i++) {
    set *set = &task->sets[i];
    set->shards[self->rank].desc.stream = own.stream;
    good = (i % 2 ? do_blocking(self, task, set, own.stream) : do_at_once(self, task, set, own.stream, &ops[i][0])) &&
           do_apart(self, task, set, own.stream, &ops[i][1]);
  }
  if (good && !task->host && device_world_run(self)) world_ok(self, banyan_comm_status(self->comm), "status");
  for (int i = 0; i < SETS; i++)
    for (int j = 0; j < 3; j++) banyan_op_free(ops[i][j]);
  device_world_free_own(&own);
}

/* On a lossy wire: the rounding of values as well. */
static double wire_bound(banyan_dtype wire) { return wire == BANYAN_F32 ? bound : wire == BANYAN_F16 ? 2e-3 : 2e-2; }

static void check_rank(const task *task, const set *set, int32_t r) {
  int32_t token0, tokens, head0, heads;
  const problem_shape *shape = &set->shape;
  if (!owns(set, task, r, NULL, &token0, &tokens, &head0, &heads)) return;
  size_t count = (size_t)(tokens * heads), values = count * (size_t)shape->value_dim;
  ck_assert_msg(memcmp(set->values[r], set->other_values[r], values * 4) == 0 &&
                memcmp(set->lse[r], set->other_lse[r], count * 4) == 0,
                "rank %d of %d: bits differ from attention and a combine apart: scatter %d, wire %d, %d x %d/%d x %d", r,
                task->nranks, set->scatter, set->wire, shape->batch, shape->heads, shape->kv_heads, shape->head_dim);
  for (int32_t row = 0; row < tokens * heads; row++) {
    problem_row reference;
    problem_row_make(set->shards, task->nranks, token0 + row / heads, head0 + row % heads, &reference);
    double error = problem_row_error(&reference, shape->value_dim, set->values[r] + (size_t)row * (size_t)shape->value_dim,
                                     set->lse[r][row], wire_bound(set->wire));
    ck_assert_msg(error <= 1, "rank %d of %d, row %d: error %g of the bound; %d x %d/%d x %d", r, task->nranks, row, error,
                  shape->batch, shape->heads, shape->kv_heads, shape->head_dim);
  }
}

static void check_combined(const task *task) {
  for (int i = 0; i < SETS; i++)
    for (int32_t r = 0; r < task->nranks; r++) check_rank(task, &task->sets[i], r);
}

/* On devices in one kernel but for what that cannot do, and on the host. */
static void set_ways(task *task) {
  static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};
  for (int i = 0; i < SETS; i++) {
    task->sets[i].wire = wires[i % 3];
    task->sets[i].algorithm = i == 3 ? "ring" : "oneshot";
    if (i == 4) task->sets[i].order = BANYAN_ORDER_CANONICAL;
  }
}

/* No sequences at all: nothing to do, and no end of it missing. */
static void attend_to_nothing(world_rank *self) {
  banyan_attention_desc desc = {.size = sizeof desc, .heads = 4, .kv_heads = 2, .head_dim = 64,
                                .q_dtype = BANYAN_BF16, .kv_dtype = BANYAN_BF16, .keys_max = 1,
                                .q_batch_stride = 256, .q_head_stride = 64, .k_batch_stride = 128, .k_head_stride = 64,
                                .k_token_stride = 64, .v_batch_stride = 128, .v_head_stride = 64, .v_token_stride = 64};
  banyan_combine_desc combine = {.size = sizeof combine, .heads = 4, .value_dim = 64};
  banyan_op *op = NULL;
  if (!device_world_join(self, self->rank)) return;
  if (world_ok(self, banyan_attention_combine_init(self->comm, &desc, &combine, NULL, &op), "init"))
    for (int i = 0; i < 3; i++) world_ok(self, banyan_start(op), "start");
  if (device_world_run(self)) world_ok(self, banyan_comm_status(self->comm), "status");
  banyan_op_free(op);
}

START_TEST(nothing_to_do) {
  device_world_begin(2, "");
  world_setup setup = {.nranks = 2, .bare = true};
  world_run(&setup, attend_to_nothing);
  device_world_end();
}
END_TEST

START_TEST(with_a_combine) {
  task *task = make_task(1 + _i % RANKS_MAX, 50 + (uint64_t)_i);
  set_ways(task);
  task->host = _i >= RANKS_MAX;
  task->one_device = _i == 1;
  if (!task->host) device_world_begin(RANKS_MAX, _i % 2 ? "" : "no-files");
  run(task, attend_and_combine);
  check_combined(task);
  if (!task->host) device_world_end();
  free_task(task);
}
END_TEST

/* Captured once, replayed with other lengths and queries. */
static void replay(world_rank *self) {
  task *task = self->argument;
  set *set = &task->sets[0];
  device_world_own own = {NULL, NULL, NULL};
  banyan_op *op = NULL;
  bool good = device_world_join(self, self->rank) && device_world_make_own(self, self->rank, &own);
  set->shards[self->rank].desc.stream = own.stream;
  banyan_partial out = result_of(set, set->values[self->rank], set->lse[self->rank]);
  banyan_combine_desc combine = combine_of(set, own.stream);
  const banyan_attention_desc *desc = &set->shards[self->rank].desc;
  good = good && world_ok(self, banyan_attention_combine_init(self->comm, desc, &combine, &out, &op), "init");
  if (good) {
    FAKE_CUDA(fake_cuda_capture)(own.stream, true);
    good = world_ok(self, banyan_start(op), "start");
    FAKE_CUDA(fake_cuda_capture)(own.stream, false);
  }
  for (int round = 0; round < 3 && good; round++) {
    int32_t *length = &set->shards[self->rank].lengths[0];
    if (round > 0 && *length > 0) --*length;
    FAKE_CUDA(fake_cuda_replay)(own.stream);
    good = device_world_run(self);
    for (int32_t row = 0; row < set->shape.heads && good; row++) {
      problem_row reference;
      problem_row_make(set->shards, task->nranks, 0, row, &reference);
      double error = problem_row_error(&reference, set->shape.value_dim,
                                       set->values[self->rank] + (size_t)row * (size_t)set->shape.value_dim,
                                       set->lse[self->rank][row], bound);
      good = world_check(self, error <= 1, "replay %d, row %d: error %g of the bound", round, row, error);
    }
    good = world_meet(self) && good;
  }
  banyan_op_free(op);
  device_world_free_own(&own);
}

START_TEST(graphs) {
  device_world_begin(3, "");
  task *task = make_task(3, 90);
  task->sets[0].scatter = BANYAN_SCATTER_NONE;
  run(task, replay);
  device_world_end();
  free_task(task);
}
END_TEST

/* ---- lengths that are wrong -------------------------------------------------------------------------------------------- */

enum { TOO_LONG, NEGATIVE, ALONE_TOO_LONG, WRONG_LENGTHS };

static void check_wrong_length(world_rank *self, int32_t sequence) {
  char named[32];
  snprintf(named, sizeof named, "seq_lens[%d]", sequence);
  banyan_status status = banyan_comm_status(self->comm);
  const char *text = banyan_comm_error(self->comm);
  world_check(self, status == BANYAN_ERR_ARGUMENT && banyan_comm_failed_rank(self->comm) == 1, "status %d: %s", status, text);
  if (self->rank == 1)
    world_check(self, strstr(text, "rank 1 gave attention") && strstr(text, named), "%s is not in: %s", named, text);
}

/* Of rank 1; rank 0 learns of it if it waits for rows of rank 1. Nothing is read that is not there: the sanitizer sees
 * to that. */
static void attend_wrongly(world_rank *self) {
  task *task = self->argument;
  set *set = &task->sets[0];
  const bool alone = set->algorithm == NULL;
  banyan_op *op = NULL;
  banyan_partial out = result_of(set, set->values[self->rank], set->lse[self->rank]);
  banyan_attention_desc *desc = &set->shards[self->rank].desc;
  banyan_combine_desc combine = combine_of(set, NULL);
  if (!device_world_join(self, self->rank)) return;
  bool good = alone ? world_ok(self, banyan_attention_init(self->comm, desc, &out, &op), "init")
                    : world_ok(self, banyan_attention_combine_init(self->comm, desc, &combine, &out, &op), "init");
  if (good) world_ok(self, banyan_start(op), "start");
  if (device_world_run(self)) {
    if (self->rank == 1) check_wrong_length(self, set->shape.batch - 1);
    if (world_meet(self) && self->rank == 0 && !alone) check_wrong_length(self, set->shape.batch - 1);
  }
  banyan_op_free(op);
}

START_TEST(wrong_lengths) {
  device_world_begin(2, "");
  task *task = make_task(2, 120 + (uint64_t)_i);
  set *set = &task->sets[0];
  set->scatter = BANYAN_SCATTER_NONE;
  set->algorithm = _i == ALONE_TOO_LONG ? NULL : "oneshot";
  set->shards[1].lengths[set->shape.batch - 1] = _i == NEGATIVE ? -3 : set->shape.keys_max + 1;
  run(task, attend_wrongly);
  device_world_end();
  free_task(task);
}
END_TEST

/* ---- pages that are not there ------------------------------------------------------------------------------------------ */

enum { PAGES_WITHIN, PAGES_APART, PAGES_ALONE, WRONG_PAGES };
enum { WRONG_PAGE_KEYS = 16, WRONG_PAGE_KEYS_MAX = 100 };

/* All ranks have another set of paged shards; the last page of rank 1's last sequence is no page. */
static void spoil_page(task *task, int32_t id) {
  set *set = &task->sets[0];
  world_random random = {world_seed()};
  set->shape.page_keys = WRONG_PAGE_KEYS;
  set->shape.keys_max = WRONG_PAGE_KEYS_MAX;
  for (int32_t r = 0; r < task->nranks; r++) {
    problem_shard_free(&set->shards[r]);
    problem_shard_make(&random, &set->shape, set->q, &set->shards[r]);
  }
  problem_shard *shard = &set->shards[1];
  int32_t b = set->shape.batch - 1, row_pages = (int32_t)shard->desc.page_table_stride;
  int32_t length = shard->lengths[b] = shard->lengths[b] > 0 ? shard->lengths[b] : 1, place = (length - 1) / WRONG_PAGE_KEYS;
  shard->pages[b * row_pages + place] = id < 0 ? id : shard->desc.pages;
  if (place + 1 < row_pages) shard->pages[b * row_pages + place + 1] = INT32_MAX; /* of no key */
}

static void check_wrong_page(world_rank *self, const set *set) {
  const problem_shard *shard = &set->shards[1];
  int32_t b = set->shape.batch - 1, place = (shard->lengths[b] - 1) / WRONG_PAGE_KEYS;
  char named[96];
  snprintf(named, sizeof named, "page_table[%d][%d] is %d", b, place, shard->pages[b * shard->desc.page_table_stride + place]);
  banyan_status status = banyan_comm_status(self->comm);
  const char *text = banyan_comm_error(self->comm);
  world_check(self, status == BANYAN_ERR_ARGUMENT && banyan_comm_failed_rank(self->comm) == 1, "status %d: %s", status, text);
  if (self->rank == 1)
    world_check(self, strstr(text, "rank 1 gave attention") && strstr(text, named), "%s is not in: %s", named, text);
}

/* As with lengths: rank 0 learns of it if it waits for rank 1, and no rank waits in vain. */
static void attend_beyond(world_rank *self) {
  task *task = self->argument;
  set *set = &task->sets[0];
  const bool alone = set->algorithm == NULL;
  banyan_op *op = NULL;
  banyan_partial out = result_of(set, set->values[self->rank], set->lse[self->rank]);
  banyan_attention_desc *desc = &set->shards[self->rank].desc;
  banyan_combine_desc combine = combine_of(set, NULL);
  if (!device_world_join(self, self->rank)) return;
  bool good = alone ? world_ok(self, banyan_attention_init(self->comm, desc, &out, &op), "init")
                    : world_ok(self, banyan_attention_combine_init(self->comm, desc, &combine, &out, &op), "init");
  if (good) world_ok(self, banyan_start(op), "start");
  if (device_world_run(self)) {
    if (self->rank == 1) check_wrong_page(self, set);
    if (world_meet(self) && self->rank == 0 && !alone) check_wrong_page(self, set);
  }
  banyan_op_free(op);
}

START_TEST(wrong_pages) {
  device_world_begin(2, "");
  task *task = make_task(2, 140 + (uint64_t)_i);
  set *set = &task->sets[0];
  set->scatter = BANYAN_SCATTER_NONE;
  set->algorithm = _i == PAGES_ALONE ? NULL : _i == PAGES_APART ? "ring" : "oneshot";
  spoil_page(task, _i == PAGES_WITHIN ? 0 : -1);
  run(task, attend_beyond);
  device_world_end();
  free_task(task);
}
END_TEST

/* On the host it is found before anything is read, each time; the communicator remains usable. */
static void attend_beyond_on_host(world_rank *self) {
  task *task = self->argument;
  set *set = &task->sets[0];
  problem_shard *shard = &set->shards[self->rank];
  banyan_op *op = NULL;
  banyan_partial out = result_of(set, set->values[self->rank], set->lse[self->rank]);
  if (!device_world_join(self, -1) || !world_ok(self, banyan_attention_init(self->comm, &shard->desc, &out, &op), "init")) return;
  if (self->rank == 1) {
    int32_t b = set->shape.batch - 1, place = (shard->lengths[b] - 1) / WRONG_PAGE_KEYS;
    char named[96];
    snprintf(named, sizeof named, "page_table[%d][%d] is -1, must be 0 to %d", b, place, shard->desc.pages - 1);
    banyan_status status = banyan_start(op);
    world_check(self, status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), named), "status %d, %s is not in: %s", status,
                named, banyan_last_error());
    shard->pages[b * shard->desc.page_table_stride + place] = 0;
  }
  if (world_ok(self, banyan_start(op), "start")) world_ok(self, banyan_wait(op), "wait");
  world_ok(self, banyan_barrier(self->comm), "barrier");
  banyan_op_free(op);
}

START_TEST(wrong_pages_on_host) {
  task *task = make_task(2, 150);
  task->host = true;
  spoil_page(task, -1);
  run(task, attend_beyond_on_host);
  free_task(task);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------------------------------- */

typedef struct refusal {
  const char *says;
  banyan_status status;
  void (*spoil)(banyan_attention_desc *desc);
} refusal;

static void spoil_dtype(banyan_attention_desc *desc) { desc->kv_dtype = BANYAN_F32; }
static void spoil_both_dtypes(banyan_attention_desc *desc) { desc->q_dtype = desc->kv_dtype = BANYAN_F32; }
static void spoil_keys_max(banyan_attention_desc *desc) { desc->keys_max = 0; }
static void spoil_head_dim(banyan_attention_desc *desc) { desc->head_dim = desc->value_dim = 32; }
static void spoil_value_dim(banyan_attention_desc *desc) { desc->value_dim = 32; }
static void spoil_alignment(banyan_attention_desc *desc) { desc->k = (const char *)desc->k + 2; }
static void spoil_stride(banyan_attention_desc *desc) { desc->v_head_stride += 4; }
static void spoil_pages(banyan_attention_desc *desc) { desc->page_table = desc->seq_lens, desc->page_keys = 24; }
static void spoil_page_keys(banyan_attention_desc *desc) { desc->page_keys = 16; }
static void spoil_table(banyan_attention_desc *desc) {
  desc->page_table = desc->seq_lens, desc->page_table_stride = 2, desc->page_keys = 16, desc->batch = 2, desc->keys_max = 33;
}
static void spoil_page_count(banyan_attention_desc *desc) { desc->pages = 7; }
static void spoil_lengths(banyan_attention_desc *desc) { desc->seq_lens = NULL; }

static const refusal refusals_of_devices[] = {
  {"kv_dtype", BANYAN_ERR_UNSUPPORTED, spoil_dtype},
  {"BANYAN_BF16", BANYAN_ERR_UNSUPPORTED, spoil_both_dtypes},
  {"keys_max is 0", BANYAN_ERR_ARGUMENT, spoil_keys_max},
  {"no kernel for head_dim 32", BANYAN_ERR_UNSUPPORTED, spoil_head_dim},
  {"value_dim 32", BANYAN_ERR_UNSUPPORTED, spoil_value_dim},
  {"rows of k are not 16-byte aligned", BANYAN_ERR_UNSUPPORTED, spoil_alignment},
  {"rows of v are not 16-byte aligned", BANYAN_ERR_UNSUPPORTED, spoil_stride},
  {"page_keys is 24", BANYAN_ERR_ARGUMENT, spoil_pages},
  {"page_table is NULL", BANYAN_ERR_ARGUMENT, spoil_page_keys},
  {"keys_max is 33, and page_table_stride of 2 has room", BANYAN_ERR_ARGUMENT, spoil_table},
  {"pages is 7 and page_table is NULL", BANYAN_ERR_ARGUMENT, spoil_page_count},
  {"seq_lens", BANYAN_ERR_UNSUPPORTED, spoil_lengths},
};

static void refuse(world_rank *self) {
  task *task = self->argument;
  set *set = &task->sets[0];
  banyan_partial out = result_of(set, set->values[self->rank], set->lse[self->rank]);
  if (!device_world_join(self, self->rank)) return;
  for (size_t i = 0; i < sizeof refusals_of_devices / sizeof refusals_of_devices[0]; i++) {
    const refusal *refusal = &refusals_of_devices[i];
    banyan_attention_desc desc = set->shards[self->rank].desc;
    banyan_op *op = NULL;
    refusal->spoil(&desc);
    banyan_status status = banyan_attention_init(self->comm, &desc, &out, &op);
    world_check(self, status == refusal->status && strstr(banyan_last_error(), refusal->says),
                "case %zu: status %d: %s", i, status, banyan_last_error());
  }
  banyan_attention_desc *desc = &set->shards[self->rank].desc;
  banyan_combine_desc combine = combine_of(set, NULL);
  banyan_op *op = NULL;
  combine.heads++;
  banyan_status status = banyan_attention_combine_init(self->comm, desc, &combine, &out, &op);
  world_check(self, status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), "but attention gives"), "%s",
              banyan_last_error());
  combine.heads--;
  combine.stream = self;
  status = banyan_attention_combine_init(self->comm, desc, &combine, &out, &op);
  world_check(self, status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), "stream"), "%s", banyan_last_error());
}

START_TEST(refusals) {
  device_world_begin(2, "");
  task *task = make_task(2, 200);
  set *set = &task->sets[0];
  world_random random = {world_seed()};
  for (int32_t r = 0; r < 2; r++) {
    problem_shard_free(&set->shards[r]);
    set->shape.page_keys = 0;
    set->shape.latent = false;
    set->shape.head_dim = set->shape.value_dim = 64;
    set->shape.kv_heads = 2;
    set->shape.heads = 2;
    problem_shard_make(&random, &set->shape, set->q, &set->shards[r]);
  }
  run(task, refuse);
  device_world_end();
  free_task(task);
}
END_TEST

/* As far as its page table goes. */
static void lengthen(banyan_attention_desc *desc) {
  if (!desc->page_table) desc->keys_max = 1 << 17;
}

/* Sequences that might be long make grids as large as they may be. */
START_TEST(few_multiprocessors) {
  device_world_begin(2, "");
  setenv("BANYAN_DEVICE_SMS", "2", 1);
  task *task = make_task(2, 77);
  set_ways(task);
  for (int i = 0; i < SETS; i++)
    for (int32_t r = 0; r < 2; r++) lengthen(&task->sets[i].shards[r].desc);
  run(task, attend_and_combine);
  check_combined(task);
  uint32_t most = FAKE_CUDA(fake_cuda_most_blocks)();
  ck_assert_msg(most >= 2 && most <= 2 * 2048 / 128, "%u blocks, of which the smallest have 128 threads", most);
  device_world_end();
  free_task(task);
}
END_TEST

/* Kernels begin early unless that is switched off, or ranks share a device. */
START_TEST(early_launches) {
  static const char *const words[] = {"on", "off", "on"};
  device_world_begin(1, "");
  setenv("BANYAN_DEVICE_EARLY", words[_i], 1);
  task *task = make_task(_i == 2 ? 2 : 1, 81);
  set_ways(task);
  task->one_device = true;
  run(task, attend_and_combine);
  check_combined(task);
  ck_assert_int_eq(FAKE_CUDA(fake_cuda_early_launches)() > 0, _i == 0);
  device_world_end();
  free_task(task);
}
END_TEST

/* Ranks of one device share it: the blocks of all are there at once. */
START_TEST(shared_multiprocessors) {
  device_world_begin(1, "sms=12");
  task *task = make_task(3, 79);
  set_ways(task);
  task->one_device = true;
  for (int i = 0; i < SETS; i++)
    for (int32_t r = 0; r < 3; r++) lengthen(&task->sets[i].shards[r].desc);
  run(task, attend_and_combine);
  check_combined(task);
  uint32_t most = FAKE_CUDA(fake_cuda_most_blocks)();
  ck_assert_msg(most >= 4 && most <= 12 / 3 * 2048 / 128, "%u blocks, of which the smallest have 128 threads", most);
  device_world_end();
  free_task(task);
}
END_TEST

/* One rank's memory is none that its kernel takes: all ranks are told, and can go on. */
static void refuse_one(world_rank *self) {
  task *task = self->argument;
  set *set = &task->sets[0];
  device_world_own own = {NULL, NULL, NULL};
  banyan_op *op = NULL;
  if (!device_world_join(self, self->rank) || !device_world_make_own(self, self->rank, &own)) return;
  banyan_attention_desc desc = set->shards[self->rank].desc;
  desc.stream = own.stream;
  banyan_combine_desc combine = combine_of(set, own.stream);
  banyan_partial out = result_of(set, set->values[self->rank], set->lse[self->rank]);
  if (self->rank == 1) desc.q = (const char *)desc.q + 2;
  for (int i = 0; i < 3; i++) {
    banyan_status status = i == 0 ? banyan_attention_combine_init(self->comm, &desc, &combine, &out, &op)
                                  : banyan_attention_combine(self->comm, &desc, &combine, &out);
    world_check(self, status == BANYAN_ERR_UNSUPPORTED && strstr(banyan_last_error(), "rank 1: ") &&
                          strstr(banyan_last_error(), "rows of q are not 16-byte aligned"),
                "call %d: %d, %s", i, status, banyan_last_error());
  }
  desc.q = set->shards[self->rank].desc.q;
  if (world_ok(self, banyan_attention_combine(self->comm, &desc, &combine, &out), "afterwards") && device_world_run(self))
    world_ok(self, banyan_comm_status(self->comm), "status");
  device_world_free_own(&own);
}

START_TEST(refusals_of_one_rank) {
  device_world_begin(3, "");
  task *task = make_task(3, 90);
  task->sets[0].scatter = BANYAN_SCATTER_NONE;
  run(task, refuse_one);
  set *set = &task->sets[0];
  size_t rows = rows_of(&set->shape), values = rows * (size_t)set->shape.value_dim;
  for (int32_t r = 0; r < 3; r++) { /* done in one way alone */
    memcpy(set->other_values[r], set->values[r], values * sizeof(float));
    memcpy(set->other_lse[r], set->lse[r], rows * sizeof(float));
    check_rank(task, set, r);
  }
  device_world_end();
  free_task(task);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("device_attention");
  TCase *host = tcase_create("host"), *devices = tcase_create("devices");
  tcase_set_timeout(host, 60);
  tcase_set_timeout(devices, 60);
  tcase_add_loop_test(host, alone, 2, 3);
  tcase_add_loop_test(host, with_a_combine, RANKS_MAX, 2 * RANKS_MAX);
  tcase_add_test(host, wrong_pages_on_host);
  suite_add_tcase(suite, host);
#if defined HAVE_CUDA && defined HAVE_CXX17
  for (int i = 0; i < 6 && !getenv("EMULATE_PTX_BRIEF"); i++) /* see test_ptx.sh */
    if (i % 3 != 2) tcase_add_loop_test(devices, alone, i, i + 1);
  tcase_add_loop_test(devices, with_a_combine, 0, RANKS_MAX);
  tcase_add_test(devices, nothing_to_do);
  tcase_add_test(devices, graphs);
  tcase_add_loop_test(devices, wrong_lengths, 0, WRONG_LENGTHS);
  tcase_add_loop_test(devices, wrong_pages, 0, WRONG_PAGES);
  tcase_add_test(devices, refusals);
  tcase_add_test(devices, refusals_of_one_rank);
  tcase_add_test(devices, few_multiprocessors);
  tcase_add_test(devices, shared_multiprocessors);
  tcase_add_loop_test(devices, early_launches, 0, 3);
  suite_add_tcase(suite, devices);
#else
  (void)replay, (void)refuse, (void)graphs, (void)refusals, (void)nothing_to_do, (void)refuse_one, (void)refusals_of_one_rank;
  (void)few_multiprocessors, (void)shared_multiprocessors, (void)early_launches, (void)wrong_lengths, (void)wrong_pages;
  tcase_add_loop_test(devices, alone, 5, 6);
  suite_add_tcase(suite, devices);
#endif
  return world_main(suite);
}
