/* SPDX-License-Identifier: Apache-2.0
 * Attention on devices, alone and with a combine, from banyan.h down, over the fake driver; and on the host by the same
 * descriptions, paged too. */
#include <check.h>

#include "tests/device/device_attention.h"

/* The error of f32 sums and two-term weights, relative to the sum. */
static const double bound = 3e-5;

/* ---- alone ------------------------------------------------------------------------------------------------------- */

static void attend(world_rank *self) {
  attention_task *task = self->argument;
  device_world_own own = {NULL, NULL, NULL};
  banyan_op *ops[SETS] = {NULL};
  int ordinal = task->host ? -1 : self->rank;
  bool good = device_world_join(self, ordinal) && (task->host || device_world_make_own(self, ordinal, &own));
  for (int i = 0; i < SETS && good; i++) {
    attention_set *set = &task->sets[i];
    banyan_attention_desc *desc = &set->shards[self->rank].desc;
    banyan_partial out = attention_result(set, set->values[self->rank], set->lse[self->rank]);
    desc->stream = own.stream;
    good = world_ok(self, banyan_attention_init(self->comm, desc, &out, &ops[i]), "init");
    banyan_op_info info = {.size = sizeof info};
    good = good && world_ok(self, banyan_op_query(ops[i], &info), "query") &&
           world_check(self,
                       strcmp(info.algorithm, "attention") == 0 &&
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

static void check_alone(const attention_task *task) {
  for (int i = 0; i < SETS; i++) {
    const attention_set *set = &task->sets[i];
    const problem_shape *shape = &set->shape;
    for (int32_t row = 0; row < shape->batch * shape->heads; row++) {
      problem_row reference;
      problem_row_make(set->shards, 1, row / shape->heads, row % shape->heads, &reference);
      double error =
          problem_row_error(&reference, shape->value_dim, set->values[0] + (size_t)row * (size_t)shape->value_dim,
                            set->lse[0][row], bound);
      ck_assert_msg(error <= 1,
                    "set %d, row %d: error %g of the bound; %d x %d/%d heads x %d/%d, pages of %d, %d keys at most", i,
                    row, error, shape->batch, shape->heads, shape->kv_heads, shape->head_dim, shape->value_dim,
                    shape->page_keys, shape->keys_max);
    }
  }
}

START_TEST(alone) {
  attention_task *task = attention_task_make(1, (uint64_t)_i);
  task->host = _i % 3 == 2;
  if (!task->host) device_world_begin(1, _i % 2 ? "compute=80" : "");
  attention_run(task, attend);
  check_alone(task);
  if (!task->host) device_world_end();
  attention_task_free(task);
}
END_TEST

/* ---- with a combine ---------------------------------------------------------------------------------------------- */

static bool owns(const attention_set *set, const attention_task *task, int32_t rank, banyan_partial *out,
                 int32_t *token0, int32_t *tokens, int32_t *head0, int32_t *heads) {
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
static bool do_apart(world_rank *self, const attention_task *task, attention_set *set, void *stream, banyan_op **ops) {
  size_t rows = attention_rows(&set->shape), values = rows * (size_t)set->shape.value_dim;
  float *memory = set->rows[self->rank];
  banyan_partial between = attention_result(set, memory, memory + values);
  between.values_kind = BANYAN_VALUES_NUMERATOR;
  between.stats_kind = BANYAN_STATS_MAX_SUM;
  between.base = BANYAN_BASE_2;
  between.sum = memory + values + rows;
  banyan_partial out = {.values = set->other_values[self->rank], .lse = set->other_lse[self->rank]};
  int32_t box[4];
  bool has = owns(set, task, self->rank, &out, &box[0], &box[1], &box[2], &box[3]);
  banyan_combine_desc combine = attention_combine(set, stream);
  return world_ok(self, banyan_attention_init(self->comm, &set->shards[self->rank].desc, &between, &ops[0]),
                  "attention") &&
         world_ok(self, banyan_combine_init(self->comm, &combine, &between, has ? &out : NULL, &ops[1]), "combine") &&
         world_ok(self, banyan_start(ops[0]), "start") && world_ok(self, banyan_start(ops[1]), "start") &&
         world_ok(self, banyan_wait(ops[1]), "wait");
}

static bool do_at_once(world_rank *self, const attention_task *task, attention_set *set, void *stream, banyan_op **op) {
  banyan_partial out = {.values = set->values[self->rank], .lse = set->lse[self->rank]};
  int32_t box[4];
  bool has = owns(set, task, self->rank, &out, &box[0], &box[1], &box[2], &box[3]);
  banyan_combine_desc combine = attention_combine(set, stream);
  if (!world_ok(
          self,
          banyan_attention_combine_init(self->comm, &set->shards[self->rank].desc, &combine, has ? &out : NULL, op),
          "attention and combine"))
    return false;
  bool within = !task->host && (!set->algorithm || strcmp(set->algorithm, "oneshot") == 0) &&
                !(set->order == BANYAN_ORDER_CANONICAL && set->wire != BANYAN_F32) && set->wire != BANYAN_E4M3;
  banyan_op_info info = {.size = sizeof info};
  return world_ok(self, banyan_op_query(*op, &info), "query") &&
         world_check(self, strstr(info.reason, within ? "combined within it" : "a combine of its own") != NULL, "%s",
                     info.reason) &&
         world_ok(self, banyan_start(*op), "start") && world_ok(self, banyan_wait(*op), "wait");
}

/* By the blocking call, of which the second of a shape finds all there. */
static bool do_blocking(world_rank *self, const attention_task *task, attention_set *set, void *stream) {
  banyan_partial out = {.values = set->values[self->rank], .lse = set->lse[self->rank]};
  int32_t box[4];
  bool has = owns(set, task, self->rank, &out, &box[0], &box[1], &box[2], &box[3]);
  banyan_combine_desc combine = attention_combine(set, stream);
  const banyan_attention_desc *desc = &set->shards[self->rank].desc;
  banyan_attention_desc elsewhere = *desc; /* in other memory, whose result is not looked at */
  elsewhere.k = desc->v;
  elsewhere.v = desc->k;
  bool good =
      set->shape.latent ||
      world_ok(self, banyan_attention_combine(self->comm, &elsewhere, &combine, has ? &out : NULL), "elsewhere");
  good = good && world_ok(self, banyan_attention_combine(self->comm, desc, &combine, has ? &out : NULL), "first");
  uint64_t before = task->host ? 0 : FAKE_CUDA(fake_cuda_setup_calls)();
  good = good && world_ok(self, banyan_attention_combine(self->comm, desc, &combine, has ? &out : NULL), "second");
  uint64_t calls = task->host ? 0 : FAKE_CUDA(fake_cuda_setup_calls)() - before;
  return good && world_check(self, self->nranks > 1 || calls == 0, "%llu calls that allocate or wait",
                             (unsigned long long)calls);
}

static void attend_and_combine(world_rank *self) {
  attention_task *task = self->argument;
  device_world_own own = {NULL, NULL, NULL};
  banyan_op *ops[SETS][3] = {{NULL}};
  int ordinal = task->host ? -1 : task->one_device ? 0 : self->rank;
  bool good = device_world_join(self, ordinal) && (task->host || device_world_make_own(self, ordinal, &own));
  for (int i = 0; i < SETS && good; i++) {
    attention_set *set = &task->sets[i];
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
static double wire_bound(banyan_dtype wire) {
  return wire == BANYAN_F32 ? bound : wire == BANYAN_F16 ? 2e-3 : wire == BANYAN_BF16 ? 2e-2 : 1.0 / 17;
}

static void check_rank(const attention_task *task, const attention_set *set, int32_t r) {
  int32_t token0, tokens, head0, heads;
  const problem_shape *shape = &set->shape;
  if (!owns(set, task, r, NULL, &token0, &tokens, &head0, &heads)) return;
  size_t count = (size_t)(tokens * heads), values = count * (size_t)shape->value_dim;
  ck_assert_msg(memcmp(set->values[r], set->other_values[r], values * 4) == 0 &&
                    memcmp(set->lse[r], set->other_lse[r], count * 4) == 0,
                "rank %d of %d: bits differ from attention and a combine apart: scatter %d, wire %d, %d x %d/%d x %d",
                r, task->nranks, set->scatter, set->wire, shape->batch, shape->heads, shape->kv_heads, shape->head_dim);
  for (int32_t row = 0; row < tokens * heads; row++) {
    problem_row reference;
    problem_row_make(set->shards, task->nranks, token0 + row / heads, head0 + row % heads, &reference);
    double error =
        problem_row_error(&reference, shape->value_dim, set->values[r] + (size_t)row * (size_t)shape->value_dim,
                          set->lse[r][row], wire_bound(set->wire));
    ck_assert_msg(error <= 1, "rank %d of %d, row %d: error %g of the bound; %d x %d/%d x %d", r, task->nranks, row,
                  error, shape->batch, shape->heads, shape->kv_heads, shape->head_dim);
  }
}

static void check_combined(const attention_task *task) {
  for (int i = 0; i < SETS; i++)
    for (int32_t r = 0; r < task->nranks; r++) check_rank(task, &task->sets[i], r);
}

/* On devices in one kernel but for what that cannot do, and on the host. */
static void set_ways(attention_task *task) {
  const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F16, task->nranks % 2 ? BANYAN_E4M3 : BANYAN_BF16};
  for (int i = 0; i < SETS; i++) {
    task->sets[i].wire = wires[i % 3];
    task->sets[i].algorithm = i == 3 ? "ring" : "oneshot";
    if (i == 4) task->sets[i].order = BANYAN_ORDER_CANONICAL;
  }
}

/* No sequences at all: nothing to do, and no end of it missing. */
static void attend_to_nothing(world_rank *self) {
  banyan_attention_desc desc = {.size = sizeof desc,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 64,
                                .q_dtype = BANYAN_BF16,
                                .kv_dtype = BANYAN_BF16,
                                .keys_max = 1,
                                .q_batch_stride = 256,
                                .q_head_stride = 64,
                                .k_batch_stride = 128,
                                .k_head_stride = 64,
                                .k_token_stride = 64,
                                .v_batch_stride = 128,
                                .v_head_stride = 64,
                                .v_token_stride = 64};
  banyan_combine_desc combine = {.size = sizeof combine, .heads = 4, .value_dim = 64};
  banyan_op *op = NULL;
  if (!device_world_join(self, self->rank)) return;
  if (world_ok(self, banyan_attention_combine_init(self->comm, &desc, &combine, NULL, &op), "init"))
    for (int i = 0; i < 3; i++) world_ok(self, banyan_start(op), "start");
  if (device_world_run(self)) world_ok(self, banyan_comm_status(self->comm), "status");
  banyan_op_free(op);
}

/* ---- within one kernel, or why not ------------------------------------------------------------------------------- */

typedef struct served {
  const char *arena_kib; /* NULL: the default */
  int32_t heads, kv_heads, head_dim, value_dim, batch;
  const char *algorithm, *says;
} served;

/* Made alone: no memory is touched, and so there need not be any. */
static void describe_served(world_rank *self) {
  const served *what = self->argument;
  static uint16_t cache[1];
  int64_t heads = what->heads, dim = what->head_dim, kv = what->kv_heads;
  banyan_attention_desc desc = {.size = sizeof desc,
                                .batch = what->batch,
                                .heads = what->heads,
                                .kv_heads = what->kv_heads,
                                .head_dim = what->head_dim,
                                .value_dim = what->value_dim,
                                .q_dtype = BANYAN_BF16,
                                .kv_dtype = BANYAN_BF16,
                                .keys_max = 1000,
                                .q = cache,
                                .k = cache,
                                .v = cache,
                                .seq_lens = (const int32_t *)(const void *)cache,
                                .q_batch_stride = heads * dim,
                                .q_head_stride = dim,
                                .k_batch_stride = 1000 * kv * dim,
                                .k_head_stride = dim,
                                .k_token_stride = kv * dim,
                                .v_batch_stride = 1000 * kv * dim,
                                .v_head_stride = dim,
                                .v_token_stride = kv * dim};
  banyan_combine_desc combine = {.size = sizeof combine,
                                 .tokens = what->batch,
                                 .heads = what->heads,
                                 .value_dim = what->value_dim,
                                 .scatter = BANYAN_SCATTER_HEADS,
                                 .algorithm = what->algorithm};
  banyan_partial out;
  banyan_op *op = NULL;
  char text[4096];
  banyan_partial_init(&out, cache, BANYAN_BF16, NULL, BANYAN_F32, what->heads / self->nranks, what->value_dim);
  if (!device_world_join(self, self->rank)) return;
  if (world_ok(self, banyan_attention_combine_init(self->comm, &desc, &combine, &out, &op), "init")) {
    banyan_op_describe(op, text, sizeof text);
    world_check(self, strstr(text, what->says) != NULL, "%s", text);
  }
  banyan_op_free(op);
}

/* By the default arena what servers have: MLA of 128 heads at batch 64, GQA of 32 heads at batch 256. */
START_TEST(shapes_in_service_are_fused) {
  static const char *const within = "its rows are combined within it";
  const served all[] = {
      {NULL, 128, 1, 576, 512, 64, NULL, within},
      {NULL, 32, 8, 128, 128, 256, NULL, within},
      {"16384", 128, 1, 576, 512, 64, NULL,
       "for within the kernel it cannot be: the LL16 inbox in arenas of 16777216 bytes is too small; raise "
       "arena_bytes"},
      {"16384", 32, 8, 128, 128, 4, "ring", "for within the kernel it cannot be: the algorithm asked for is another"},
  };
  served what = all[_i];
  if (what.arena_kib) setenv("BANYAN_ARENA_KIB", what.arena_kib, 1);
  device_world_begin(2, "");
  if (!what.arena_kib) unsetenv("BANYAN_ARENA_KIB");
  WORLD_RUN(describe_served, .nranks = 2, .bare = true, .argument = &what);
  device_world_end();
}
END_TEST

START_TEST(nothing_to_do) {
  device_world_begin(2, "");
  WORLD_RUN(attend_to_nothing, .nranks = 2, .bare = true);
  device_world_end();
}
END_TEST

START_TEST(with_a_combine) {
  attention_task *task = attention_task_make(1 + _i % RANKS_MAX, 50 + (uint64_t)_i);
  set_ways(task);
  task->host = _i >= RANKS_MAX;
  task->one_device = _i == 1;
  if (!task->host) device_world_begin(RANKS_MAX, _i % 2 ? "" : "no-files");
  attention_run(task, attend_and_combine);
  check_combined(task);
  if (!task->host) device_world_end();
  attention_task_free(task);
}
END_TEST

/* Captured once, replayed with other lengths and queries. */
static void replay(world_rank *self) {
  attention_task *task = self->argument;
  attention_set *set = &task->sets[0];
  device_world_own own = {NULL, NULL, NULL};
  banyan_op *op = NULL;
  bool good = device_world_join(self, self->rank) && device_world_make_own(self, self->rank, &own);
  set->shards[self->rank].desc.stream = own.stream;
  banyan_partial out = attention_result(set, set->values[self->rank], set->lse[self->rank]);
  banyan_combine_desc combine = attention_combine(set, own.stream);
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
  attention_task *task = attention_task_make(3, 90);
  task->sets[0].scatter = BANYAN_SCATTER_NONE;
  attention_run(task, replay);
  device_world_end();
  attention_task_free(task);
}
END_TEST

/* ---- SMs, launches, ranks ---------------------------------------------------------------------------------------- */

/* As far as its page table goes. */
static void lengthen(banyan_attention_desc *desc) {
  if (!desc->pages.table) desc->keys_max = 1 << 17;
}

/* Sequences that might be long make grids as large as they may be. */
START_TEST(few_multiprocessors) {
  device_world_begin(2, "");
  setenv("BANYAN_DEVICE_SMS", "2", 1);
  attention_task *task = attention_task_make(2, 77);
  set_ways(task);
  for (int i = 0; i < SETS; i++)
    for (int32_t r = 0; r < 2; r++) lengthen(&task->sets[i].shards[r].desc);
  attention_run(task, attend_and_combine);
  check_combined(task);
  uint32_t most = FAKE_CUDA(fake_cuda_most_blocks)();
  ck_assert_msg(most >= 2 && most <= 2 * 2048 / 128, "%u blocks, of which the smallest have 128 threads", most);
  device_world_end();
  attention_task_free(task);
}
END_TEST

/* Kernels begin early unless that is switched off, or ranks share a device. */
START_TEST(early_launches) {
  static const char *const words[] = {"on", "off", "on"};
  device_world_begin(1, "");
  setenv("BANYAN_DEVICE_EARLY", words[_i], 1);
  attention_task *task = attention_task_make(_i == 2 ? 2 : 1, 81);
  set_ways(task);
  task->one_device = true;
  attention_run(task, attend_and_combine);
  check_combined(task);
  ck_assert_int_eq(FAKE_CUDA(fake_cuda_early_launches)() > 0, _i == 0);
  device_world_end();
  attention_task_free(task);
}
END_TEST

/* Ranks of one device share it: the blocks of all are there at once. */
START_TEST(shared_multiprocessors) {
  device_world_begin(1, "sms=12");
  attention_task *task = attention_task_make(3, 79);
  set_ways(task);
  task->one_device = true;
  for (int i = 0; i < SETS; i++)
    for (int32_t r = 0; r < 3; r++) lengthen(&task->sets[i].shards[r].desc);
  attention_run(task, attend_and_combine);
  check_combined(task);
  uint32_t most = FAKE_CUDA(fake_cuda_most_blocks)();
  ck_assert_msg(most >= 4 && most <= 12 / 3 * 2048 / 128, "%u blocks, of which the smallest have 128 threads", most);
  device_world_end();
  attention_task_free(task);
}
END_TEST

/* One rank's memory is none that its kernel takes: all ranks get the error, and can go on. */
static void refuse_one(world_rank *self) {
  attention_task *task = self->argument;
  attention_set *set = &task->sets[0];
  device_world_own own = {NULL, NULL, NULL};
  banyan_op *op = NULL;
  if (!device_world_join(self, self->rank) || !device_world_make_own(self, self->rank, &own)) return;
  banyan_attention_desc desc = set->shards[self->rank].desc;
  desc.stream = own.stream;
  banyan_combine_desc combine = attention_combine(set, own.stream);
  banyan_partial out = attention_result(set, set->values[self->rank], set->lse[self->rank]);
  if (self->rank == 1) desc.q = (const char *)desc.q + 2;
  for (int i = 0; i < 3; i++) {
    banyan_status status = i == 0 ? banyan_attention_combine_init(self->comm, &desc, &combine, &out, &op)
                                  : banyan_attention_combine(self->comm, &desc, &combine, &out);
    world_check(self,
                status == BANYAN_ERR_UNSUPPORTED && strstr(banyan_last_error(), "rank 1: ") &&
                    strstr(banyan_last_error(), "rows of q are not 16-byte aligned"),
                "call %d: %d, %s", i, status, banyan_last_error());
  }
  desc.q = set->shards[self->rank].desc.q;
  if (world_ok(self, banyan_attention_combine(self->comm, &desc, &combine, &out), "afterwards") &&
      device_world_run(self))
    world_ok(self, banyan_comm_status(self->comm), "status");
  device_world_free_own(&own);
}

START_TEST(refusals_of_one_rank) {
  device_world_begin(3, "");
  attention_task *task = attention_task_make(3, 90);
  task->sets[0].scatter = BANYAN_SCATTER_NONE;
  attention_run(task, refuse_one);
  attention_set *set = &task->sets[0];
  size_t rows = attention_rows(&set->shape), values = rows * (size_t)set->shape.value_dim;
  for (int32_t r = 0; r < 3; r++) { /* done in one way alone */
    memcpy(set->other_values[r], set->values[r], values * sizeof(float));
    memcpy(set->other_lse[r], set->lse[r], rows * sizeof(float));
    check_rank(task, set, r);
  }
  device_world_end();
  attention_task_free(task);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("device_attention");
  TCase *host = tcase_create("host"), *devices = tcase_create("devices");
  tcase_set_timeout(host, 60);
  tcase_set_timeout(devices, 60);
  tcase_add_loop_test(host, alone, 2, 3);
  tcase_add_loop_test(host, with_a_combine, RANKS_MAX, 2 * RANKS_MAX);
  suite_add_tcase(suite, host);
#if defined HAVE_CUDA && defined HAVE_CXX17
  for (int i = 0; i < 6 && !getenv("EMULATE_PTX_BRIEF"); i++) /* see test_ptx.sh */
    if (i % 3 != 2) tcase_add_loop_test(devices, alone, i, i + 1);
  tcase_add_loop_test(devices, with_a_combine, 0, RANKS_MAX);
  tcase_add_test(devices, nothing_to_do);
  tcase_add_loop_test(devices, shapes_in_service_are_fused, 0, 4);
  tcase_add_test(devices, graphs);
  tcase_add_test(devices, refusals_of_one_rank);
  tcase_add_test(devices, few_multiprocessors);
  tcase_add_test(devices, shared_multiprocessors);
  tcase_add_loop_test(devices, early_launches, 0, 3);
  suite_add_tcase(suite, devices);
#else
  (void)replay, (void)graphs, (void)nothing_to_do, (void)refuse_one, (void)refusals_of_one_rank;
  (void)shapes_in_service_are_fused, (void)few_multiprocessors, (void)shared_multiprocessors, (void)early_launches;
  tcase_add_loop_test(devices, alone, 5, 6);
  suite_add_tcase(suite, devices);
#endif
  return world_main(suite);
}
