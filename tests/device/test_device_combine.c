/* SPDX-License-Identifier: Apache-2.0
 * Tests combines on devices over the fake driver: the bits of the host, the driver's calls, and the number of blocks.
 * test_device_calls.c tests how calls fail. */
#include "comm/comm.h"
#include "tests/device/device_util.h"
#include "tests/support/combine_task.h"
#include "tests/support/world.h"

/* ---- attempts ---------------------------------------------------------------------------------------------------- */

static void add_attempt(combine_task *task, const char *algorithm, banyan_scatter scatter, int32_t tokens,
                        int32_t heads, int32_t value_dim) {
  combine_group *group = world_take(sizeof *group);
  *group = combine_group_make(task, tokens, heads, value_dim);
  combine_task_add(task, group,
                   (banyan_combine_desc){
                       .wire = BANYAN_BF16, .scatter = scatter, .order = BANYAN_ORDER_PLAN, .algorithm = algorithm},
                   true);
}

static const banyan_partial *out_of(const combine_attempt *attempt, int32_t rank) {
  const sheet *out = &attempt->out[COMBINE_FIRST][rank];
  return out->tokens && out->heads ? &out->partial : NULL;
}

static banyan_status start(world_rank *self, const combine_attempt *attempt, void *stream) {
  banyan_combine_desc desc = attempt->desc;
  desc.stream = stream;
  return banyan_combine(self->comm, &desc, &attempt->of->in[self->rank].partial, out_of(attempt, self->rank));
}

static banyan_op *init(world_rank *self, const combine_attempt *attempt) {
  banyan_combine_desc desc = attempt->desc;
  banyan_partial in = combine_attempt_input(attempt, self->rank);
  banyan_op *op = NULL;
  desc.stream = self->stream;
  world_ok(self, banyan_combine_init(self->comm, &desc, &in, out_of(attempt, self->rank), &op), "init");
  return op;
}

static void run(combine_task *task, world_setup setup, world_body body) {
  setup.on = &world_emulated;
  setup.nranks = task->nranks;
  setup.argument = task;
  world_run(&setup, body);
}

static void check_and_free(combine_task *task) {
  for (int32_t i = 0; i < task->nattempts; i++)
    for (int32_t r = 0; r < task->nranks; r++) combine_attempt_check(task, &task->attempts[i], r, COMBINE_FIRST);
  combine_task_free(task);
}

static void combine_all(world_rank *self) {
  const combine_task *task = self->argument;
  bool good = true;
  for (int32_t i = 0; i < task->nattempts && good; i++)
    good = world_ok(self, start(self, &task->attempts[i], self->stream), "combine");
  if (good && world_finish(self)) world_ok(self, banyan_comm_status(self->comm), "status");
}

/* ---- streams and multiprocessors --------------------------------------------------------------------------------- */

static void describe(world_rank *self) {
  char text[512];
  banyan_comm_describe(self->comm, text, sizeof text);
  world_check(self, strstr(text, "combines on cuda (Fake ") != NULL, "%s", text);
}

TEST(devices_are_described) { WORLD_RUN(describe, .nranks = 2, .on = &world_emulated); }

TEST(few_multiprocessors) {
  setenv("BANYAN_DEVICE_SMS", "2", 1);
  combine_task *task = combine_task_new(2, 90);
  add_attempt(task, "oneshot", BANYAN_SCATTER_NONE, 8, 32, 64);
  add_attempt(task, "twoshot", BANYAN_SCATTER_NONE, 8, 32, 64);
  run(task, (world_setup){.nranks = 2}, combine_all);
  check_and_free(task);
  ck_assert_uint_le(FAKE_CUDA(fake_cuda_most_blocks)(), 2 * 8); /* 8 blocks of 256 threads on each SM */
}

/* Later ranks put all of their runs on their streams before earlier ranks do. */
static void start_one_after_another(world_rank *self) {
  const combine_task *task = self->argument;
  banyan_op *ops[COMBINE_ATTEMPTS_MAX] = {NULL};
  bool good = true;
  for (int32_t i = 0; i < task->nattempts && good; i++) good = (ops[i] = init(self, &task->attempts[i])) != NULL;
  for (int32_t turn = task->nranks - 1; turn >= 0 && good; turn--) {
    for (int32_t i = 0; i < task->nattempts && turn == self->rank; i++) world_ok(self, banyan_start(ops[i]), "start");
    good = world_meet(self);
  }
  if (good && world_finish(self)) world_ok(self, banyan_comm_status(self->comm), "status");
  for (int32_t i = 0; i < task->nattempts; i++) banyan_op_free(ops[i]);
}

/* A rank's next run must not occupy SMs that another rank's blocks need for the current run. Rank 1 gets no result, so
 * it runs ahead. */
TEST(ranks_of_one_device_leave_room) {
  combine_task *task = combine_task_new(2, 95);
  for (int i = 0; i < 8; i++) add_attempt(task, "oneshot", BANYAN_SCATTER_TOKENS, 1, 128, 8);
  run(task, (world_setup){.words = "sms=2", .one_device = true}, start_one_after_another);
  check_and_free(task);
}

/* Streams are captured before this time. */
static int32_t first_time;

/* A stream of ranks that share a device has had work before the ranks agree on their first call, and gets no more. A
 * stream that is being captured gets none, and is still new afterwards. */
static void init_on_a_new_stream(world_rank *self) {
  const combine_task *task = self->argument;
  const bool is_shared = self->setup->one_device;
  for (int time = 0; time < 3; time++) {
    FAKE_CUDA(fake_cuda_capture)(self->stream, time < first_time);
    if (!world_meet(self)) return;
    uint32_t before = FAKE_CUDA(fake_cuda_fills)();
    if (!world_meet(self)) return;
    banyan_op *op = init(self, &task->attempts[0]);
    if (!op) return;
    uint32_t fills = FAKE_CUDA(fake_cuda_fills)() - before;
    world_check(self, fills == (is_shared && time == first_time ? 3 : 0), "time %d: %u", time, fills);
    banyan_op_free(op);
  }
}

TEST_LOOP(streams_have_work_before_runs, 3) {
  combine_task *task = combine_task_new(3, 99);
  add_attempt(task, "oneshot", BANYAN_SCATTER_NONE, 1, 4, 8);
  first_time = _i / 2;
  run(task, (world_setup){.nranks = 3, .one_device = _i != 1}, init_on_a_new_stream);
  combine_task_free(task);
}

/* The last warp announces the run, which takes a round trip to the peers, so it should have no row. A row of 128 f32
 * values has two units, and a warp takes one at a time. */
static void count_warps(world_rank *self) {
  const combine_task *task = self->argument;
  for (int32_t i = 0; i < task->nattempts; i++) {
    const int32_t heads = task->attempts[i].desc.heads;
    banyan_op *op = init(self, &task->attempts[i]);
    char text[1024];
    int blocks = 0, threads = 0;
    if (!op) return;
    banyan_op_describe(op, text, sizeof text);
    const char *grid = strstr(text, "by kernel "), *comma = grid ? strchr(grid, ',') : NULL;
    bool found = comma && sscanf(comma, ", %d blocks of %d threads", &blocks, &threads) == 2;
    world_check(self, found && blocks * (threads / 32) > 2 * heads, "%d heads: %s", heads, text);
    banyan_op_free(op);
  }
}

TEST(the_warp_that_announces_has_no_row) {
  static const int32_t heads[] = {1, 16, 32, 64, 128};
  combine_task *task = combine_task_new(2, 98);
  for (int i = 0; i < 5; i++) {
    add_attempt(task, "oneshot", BANYAN_SCATTER_NONE, 1, heads[i], 128);
    task->attempts[task->nattempts - 1].desc.wire = BANYAN_F32;
  }
  run(task, (world_setup){.nranks = 2, .words = "sms=132"}, count_warps);
  combine_task_free(task);
}

/* Ranks of one device price no links of their host, and plans of steps take longer there than the direct one. */
static void ask_for_the_choice(world_rank *self) {
  const combine_task *task = self->argument;
  banyan_op_info info = {.size = sizeof info};
  for (int32_t i = 0; i < task->nattempts; i++) {
    banyan_op *op = init(self, &task->attempts[i]);
    if (op && world_ok(self, banyan_op_query(op, &info), "query"))
      world_check(self, strcmp(info.algorithm, "oneshot") == 0, "%d heads: %s", task->attempts[i].desc.heads,
                  info.algorithm);
    banyan_op_free(op);
  }
}

TEST(few_ranks_of_a_device_take_oneshot) {
  static const int32_t heads[] = {1, 32, 256, 2048};
  combine_task *task = combine_task_new(8, 97);
  for (int i = 0; i < 4; i++) add_attempt(task, NULL, BANYAN_SCATTER_NONE, 1, heads[i], 128);
  run(task, (world_setup){.one_device = true, .arena_bytes = 64 << 20}, ask_for_the_choice);
  combine_task_free(task);
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

/* Devices take protocols in turn, from this one on. */
static int32_t first_turn;

static void combine_by_turns(world_rank *self) {
  const combine_task *task = self->argument;
  bool good = true;
  for (int32_t i = 0; i < task->nattempts && good; i++) {
    world_vary(self, i + first_turn);
    good = world_ok(self, start(self, &task->attempts[i], self->stream), "combine");
  }
  if (good && world_finish(self)) world_ok(self, banyan_comm_status(self->comm), "status");
}

static void combine_by_way_of_the_host(world_rank *self) {
  if (self->on->is_device)
    world_check(self, self->comm->device.sizes.inbox_bytes[BNY_PROTOCOL_LL16] == 0, "arenas are in memory of devices");
  combine_by_turns(self);
}

/* The fake driver holds stores to memory of peers until a fence. Ranks that are threads and share a device have no such
 * memory. Each therefore has its own device, and the test sets what a shared one would. */
static void combine_by_aliases(world_rank *self) {
  if (self->on->is_device) self->comm->device.engine->group.has_aliases = true;
  combine_by_turns(self);
}

typedef void fill_task(combine_task *task, combine_group *groups);

/* A device gives the bits that another backend, or another protocol, computes from the same partials, and writes
 * nothing beside its rows. */
static void compare(const world_backend *on, int32_t nranks, fill_task *fill, const world_backend *with,
                    const char *words, world_body body) {
  combine_task *tasks[2];
  combine_group *groups[2];
  setenv("BANYAN_DEVICE_BLOCKS", nranks > 9 ? "1" : "2", 1); /* more take longer to emulate */
  for (int other = 0; other < 2; other++) {
    tasks[other] = combine_task_new(nranks, 130);
    groups[other] = calloc(4, sizeof *groups[other]);
    fill(tasks[other], groups[other]);
    first_turn = nranks + other;
    world_setup setup = {.on = other ? with : on, .nranks = nranks, .argument = tasks[other]};
    setup.arena_bytes = 4 << 20, setup.words = words;
    world_run(&setup, body);
  }
  combine_task_check_same(tasks[0], tasks[1]);
  for (int32_t i = 0; i < tasks[0]->nattempts; i++)
    for (int32_t r = 0; r < nranks; r++)
      ck_assert_msg(sheet_gaps_are_untouched(&tasks[0]->attempts[i].out[COMBINE_FIRST][r]), "rank %d of %d: %s", r,
                    nranks, combine_attempt_text(&tasks[0]->attempts[i], COMBINE_FIRST));
  for (int other = 0; other < 2; other++) combine_task_free(tasks[other]), free(groups[other]);
}

static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3};
/* Each has one plan, whatever the costs are, except that two do not serve all scatters so. */
enum { DOUBLING = 2, TREE = 4, FORMS = 6 };
static const char *const forms[FORMS] = {"oneshot",           "twoshot",      "recursive_doubling",
                                         "recursive_halving", "tree_knomial", "ring"};

static banyan_scatter scatter_of(int form, int32_t wanted) {
  return (banyan_scatter)(wanted % (form == DOUBLING ? 1 : form == TREE ? 2 : 4));
}

/* Random boxes by each form, wire, scatter and order. */
static void add_any(combine_task *task, combine_group *groups) {
  world_random *random = &task->random;
  for (int g = 0; g < 4; g++) {
    groups[g] = combine_group_random(task);
    for (int form = 0; form < FORMS; form++) {
      banyan_combine_desc desc = {.wire = wires[random_below(random, 4)], .algorithm = forms[form]};
      desc.scatter = scatter_of(form, random_below(random, 4));
      desc.root = random_below(random, task->nranks), desc.order = (banyan_order)random_below(random, 2);
      if (form == TREE && desc.order == BANYAN_ORDER_PLAN) desc.algorithm = g % 2 ? "tree_chain" : "tree_balanced";
      combine_task_add(task, &groups[g], desc, random_one_in(random, 4));
    }
  }
}

TEST_RANGE(bits_are_those_of_the_host, 1, 10) {
  compare(&world_emulated, _i, add_any, &world_threads, NULL, combine_by_turns);
}

/* The same on devices of several nodes. */
TEST_LOOP(bits_across_nodes, 2) {
  if (world_is_here(&world_staged)) compare(&world_staged, 4, add_any, &world_threads, NULL, combine_by_turns);
}

static void add_exact(combine_task *task, combine_group *groups) {
  for (int i = 0; i <= BNY_PROTOCOL_COUNT; i++) {
    if (i % 2 == 0) groups[i / 2] = combine_group_random(task);
    combine_task_add(task, &groups[i / 2], (banyan_combine_desc){.order = BANYAN_ORDER_EXACT}, true);
  }
}

/* Each protocol has kernels of the exact order. */
TEST_LOOP(exact_kernels_agree, 4) {
  compare(&world_emulated, 1 + 2 * _i, add_exact, &world_emulated, NULL, combine_by_turns);
}

/* Arenas in memory of the host have protocols of smaller words. */
TEST_LOOP(bits_by_way_of_the_host, 3) {
  compare(&world_emulated, 2 + 4 * _i, add_any, &world_threads, "no-vmm,no-ipc", combine_by_way_of_the_host);
}

/* Stores through one of several addresses of an arena take fences, which kernels have if ranks share a device. Without
 * them runs end by their deadline. */
TEST_LOOP(aliases_take_fences, 3) {
  compare(&world_emulated, 2 + _i, add_any, &world_threads, "aliases,step-ns=20000", combine_by_aliases);
}

static void miss_a_fence(world_rank *self) {
  if (!world_ok(self, start(self, &((const combine_task *)self->argument)->attempts[0], self->stream), "combine") ||
      !world_finish(self))
    return;
  world_check(self, banyan_comm_status(self->comm) == BANYAN_ERR_TIMEOUT, "no fence is missed");
}

TEST_LOOP(missed_fences_are_seen, 2) {
  combine_task *task = combine_task_new(3, 131);
  add_attempt(task, _i ? "oneshot" : "ring", BANYAN_SCATTER_NONE, 1, 4, 64);
  run(task, (world_setup){.words = "aliases,step-ns=20000", .timeout_ns = 4000000000}, miss_a_fence);
  combine_task_free(task);
}

/* Small boxes, of which each rank owns rows. A form in steps has more sources than a merge takes at once. */
static void add_small(combine_task *task, combine_group *groups) {
  static const int32_t value_dims[] = {0, 8, 100, 130};
  const int32_t n = task->nranks, shapes[][2] = {{2, 2}, {1, n + 3}, {n + 2, 1}};
  for (int g = 0; g < 3; g++) {
    groups[g] = combine_group_make(task, shapes[g][0], shapes[g][1], value_dims[random_below(&task->random, 4)]);
    for (int form = 0; form < (n < 20 ? FORMS : 1); form++) {
      banyan_combine_desc desc = {.algorithm = forms[form], .root = random_below(&task->random, n)};
      desc.scatter = scatter_of(form, g ? g + 1 : form % 2);
      if (n <= BNY_MERGE_SOURCES_MAX) desc.wire = wires[random_below(&task->random, 4)]; /* beyond, hosts round twice */
      combine_task_add(task, &groups[g], desc, true);
    }
  }
}

/* The ranks of an NVLink domain, and numbers of ranks whose last group of eight has any size. */
TEST_LOOP(bits_of_many_ranks, 5) {
  static const int32_t nranks[] = {16, 19, 23, 36, 72};
  compare(&world_emulated, nranks[_i], add_small, &world_threads, NULL, combine_by_turns);
}

/* ---- two communicators ------------------------------------------------------------------------------------------- */

enum { PAIR_TOKENS = 16, PAIR_HEADS = 32, PAIR_DIM = 64, PAIR_ROWS = PAIR_TOKENS * PAIR_HEADS, PAIR_ROUNDS = 3 };

typedef struct pair_side {
  banyan_comm *comm;
  void *stream;
  banyan_op *op;
  float in[PAIR_ROWS * PAIR_DIM], in_lse[PAIR_ROWS], out[PAIR_ROWS * PAIR_DIM], out_lse[PAIR_ROWS];
} pair_side;

static bool pair_make(world_rank *self, pair_side *side, int number, bny_device *device) {
  char name[16];
  snprintf(name, sizeof name, "cuda:%d", self->rank);
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = WORLD_GUARD_NS, .device = name};
  banyan_partial in, out;
  for (int i = 0; i < PAIR_ROWS * PAIR_DIM; i++) side->in[i] = (float)(number + 2 * self->rank + i % 8);
  banyan_partial_init(&in, side->in, BANYAN_F32, side->in_lse, BANYAN_F32, PAIR_HEADS, PAIR_DIM);
  banyan_partial_init(&out, side->out, BANYAN_F32, side->out_lse, BANYAN_F32, PAIR_HEADS, PAIR_DIM);
  if (!world_ok(self, banyan_comm_create(&self->bootstrap, &config, &side->comm), "create") ||
      !world_ok(self, device->ops->stream_make(device, &side->stream), "stream"))
    return false;
  banyan_combine_desc desc = {.size = sizeof desc,
                              .tokens = PAIR_TOKENS,
                              .heads = PAIR_HEADS,
                              .value_dim = PAIR_DIM,
                              .algorithm = "oneshot",
                              .stream = side->stream};
  return world_ok(self, banyan_combine_init(side->comm, &desc, &in, &out, &side->op), "init");
}

/* Checks for the mean of both ranks' values, because all rows have weight 1. */
static void pair_check(world_rank *self, const pair_side *side, int number) {
  for (int i = 0; i < PAIR_ROWS * PAIR_DIM; i++)
    if (!world_check(self, side->out[i] == (float)(number + 1 + i % 8), "value %d is %g", i, (double)side->out[i]))
      return;
}

static void pair_run(world_rank *self) {
  bny_device *device = NULL;
  pair_side *sides = calloc(2, sizeof *sides);
  bool good = world_ok(self, open_fake(self->rank, &device), "open");
  for (int i = 0; i < 2 && good; i++) good = pair_make(self, &sides[i], 10 * i, device);
  for (int round = 0; round < PAIR_ROUNDS && good; round++)
    for (int i = 0; i < 2 && good; i++) good = world_ok(self, banyan_start(sides[i ^ self->rank].op), "start");
  good = world_finish(self) && good;
  for (int i = 0; i < 2; i++) {
    if (good && world_ok(self, banyan_comm_status(sides[i].comm), "status")) pair_check(self, &sides[i], 10 * i);
    banyan_op_free(sides[i].op);
    banyan_comm_destroy(sides[i].comm);
    if (sides[i].stream) device->ops->stream_free(device, sides[i].stream);
  }
  if (device) device->ops->close(device);
  free(sides);
}

/* Two ranks use two communicators in opposite orders, each on its own stream. There is work for more blocks than the
 * devices hold at once. If a combine took all of them, each device would be full of blocks that wait for the other
 * device. */
TEST_LOOP(opposite_orders_do_not_starve, 2) {
  WORLD_RUN(pair_run, .nranks = 2, .on = &world_emulated, .bare = true, .words = _i ? "sms=4" : "sms=16");
  ck_assert_uint_eq(FAKE_CUDA(fake_cuda_most_blocks)(), _i ? 8 : 32);
}

int main(void) {
  sheet_eight_bits = true;
  return world_main(suite_of("device_combine", 120));
}
