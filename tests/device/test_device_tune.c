/* SPDX-License-Identifier: Apache-2.0
 * BANYAN_DEVICE_TUNE, over the fake driver, which can be told to make a kernel slow: choices follow what is measured,
 * are the same on all ranks, and survive in a file. */
#include <check.h>
#include <math.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "tests/device/device_world.h"
#include "device/tune.h"
#include "plan/plan.h"
#include "base/status.h"
#include "tests/support/suite.h"

enum { RANKS = 2, TOKENS = 2, HEADS = 6, DIM = 64, ROWS = TOKENS * HEADS, TEXT = 2048 };

#if !defined HAVE_CUDA || !defined HAVE_CXX17
int main(void) {
  puts("built without CUDA, or without a compiler of C++17");
  return 77;
}
#else

static char directory[] = "/tmp/banyan-tune-XXXXXX";
static char table[64];

typedef struct result {
  char algorithm[32], reason[TEXT], described[512];
  float values[ROWS * DIM], named[ROWS * DIM];
} result;

typedef struct task {
  banyan_scatter scatter;
  banyan_status create; /* what becomes of it */
  const char *says;
  result results[RANKS];
} task;

/* Slow kernels, each with a comma behind it. */
static void begin(const char *tune, const char *slow) {
  char words[512];
  snprintf(words, sizeof words, "live,step-ns=20,sms=1,%s", slow);
  device_world_begin(RANKS, words);
  setenv("BANYAN_EXPERIMENTAL", "1", 1);
  if (tune)
    setenv("BANYAN_DEVICE_TUNE", tune, 1);
  else
    unsetenv("BANYAN_DEVICE_TUNE");
}

#define SLOW_ONESHOT "slow-bny_oneshot_ll16_32,slow-bny_oneshot_ll128_32,slow-bny_oneshot_simple_32,"
#define SLOW_INTERPRET "slow-bny_interpret_ll16_32,slow-bny_interpret_ll128_32,slow-bny_interpret_simple_32,"

static bool combine(world_rank *self, const banyan_combine_desc *desc, float *values) {
  float rows[ROWS * DIM], lse[ROWS], merged_lse[ROWS];
  for (int i = 0; i < ROWS * DIM; i++) rows[i] = (float)sin(i + 100.0 * self->rank);
  for (int i = 0; i < ROWS; i++) lse[i] = (float)cos(i * (1 + self->rank));
  banyan_partial in, out;
  banyan_partial_init(&in, rows, BANYAN_F32, lse, BANYAN_F32, HEADS, DIM);
  banyan_partial_init(&out, values, BANYAN_F32, merged_lse, BANYAN_F32, HEADS, DIM);
  device_world_own own;
  banyan_combine_desc on_stream = *desc;
  bool good = device_world_make_own(self, self->rank, &own);
  on_stream.stream = own.stream;
  good = good && world_ok(self, banyan_combine(self->comm, &on_stream, &in, &out), "combine") &&
         world_ok(self, bny_device_wait(own.device, own.stream, bny_clock_ns() + 10000000000), "wait");
  device_world_free_own(&own);
  return good;
}

static bool query(world_rank *self, const banyan_combine_desc *desc, result *result) {
  float some[ROWS * DIM], lse[ROWS];
  banyan_partial rows;
  banyan_op *op = NULL;
  banyan_op_info info = {.size = sizeof info};
  banyan_partial_init(&rows, some, BANYAN_F32, lse, BANYAN_F32, HEADS, DIM);
  bool good = world_ok(self, banyan_combine_init(self->comm, desc, &rows, &rows, &op), "init") &&
              world_ok(self, banyan_op_query(op, &info), "query");
  if (good) snprintf(result->algorithm, sizeof result->algorithm, "%s", info.algorithm);
  if (good) snprintf(result->reason, sizeof result->reason, "%s", info.reason);
  banyan_op_free(op);
  banyan_comm_describe(self->comm, result->described, sizeof result->described);
  return good;
}

static void body(world_rank *self) {
  task *task = self->argument;
  result *result = &task->results[self->rank];
  char device[16];
  snprintf(device, sizeof device, "cuda:%d", self->rank);
  enum { ARENA_BYTES = 1 << 16 }; /* for one size alone */
  banyan_comm_config config = {
      .size = sizeof config, .timeout_ns = 40000000000, .arena_bytes = ARENA_BYTES, .device = device};
  banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
  if (!world_check(self, status == task->create, "create: %s (%s)", banyan_status_string(status), banyan_last_error()))
    return;
  if (task->says) world_check(self, strstr(banyan_last_error(), task->says) != NULL, "says: %s", banyan_last_error());
  if (status != BANYAN_OK) return;
  banyan_combine_desc desc = {.size = sizeof desc,
                              .tokens = TOKENS,
                              .heads = HEADS,
                              .value_dim = DIM,
                              .scatter = task->scatter,
                              .order = BANYAN_ORDER_CANONICAL};
  banyan_combine_desc named = desc;
  named.algorithm = "oneshot";
  bool good = query(self, &desc, result);
  if (good && task->scatter == BANYAN_SCATTER_NONE) good = combine(self, &desc, result->values);
  if (good && task->scatter == BANYAN_SCATTER_NONE) combine(self, &named, result->named);
  world_meet(self);
}

static task *run(task *task) {
  world_run(&(world_setup){.nranks = RANKS, .bare = true, .argument = task}, body);
  device_world_end();
  const result *first = task->results;
  for (int r = 1; r < RANKS && task->create == BANYAN_OK; r++) {
    ck_assert_str_eq(first->reason, task->results[r].reason);
    ck_assert(memcmp(first->values, task->results[r].values, sizeof first->values) == 0);
  }
  /* The order is canonical, so whatever was chosen gives the bits of any other. */
  ck_assert(memcmp(first->values, first->named, sizeof first->values) == 0);
  return task;
}

TEST_LOOP(off_by_default, 2) {
  task task = {.create = BANYAN_OK};
  begin(_i ? "off" : NULL, SLOW_ONESHOT);
  run(&task);
  ck_assert_str_eq(task.results[0].algorithm, "oneshot");
  ck_assert_msg(strstr(task.results[0].reason, "least predicted") && !strstr(task.results[0].reason, "measured"), "%s",
                task.results[0].reason);
  ck_assert(!strstr(task.results[0].described, "measurement"));
}

/* Slow on all devices, and on one alone: then all ranks agree with that one. */
TEST_LOOP(choices_follow_times, 3) {
  static const struct {
    const char *slow, *algorithm, *says, *of;
  } cases[] = {
      {SLOW_INTERPRET "slow-bny_oneshot_simple_32,", "oneshot", " by LL128", "replays"},
      {SLOW_INTERPRET "slow-bny_oneshot_ll128_32,cuGraphLaunch,", "oneshot", " by SIMPLE",
       "launches"}, /* a driver without it */
      {"slow-bny_oneshot_ll128_32:1,slow-bny_oneshot_simple_32:0,", NULL, "least measured", "replays"},
  };
  char of[64];
  task task = {.create = BANYAN_OK};
  begin("create", cases[_i].slow);
  run(&task);
  const result *result = &task.results[0];
  if (cases[_i].algorithm)
    ck_assert_str_eq(result->algorithm, cases[_i].algorithm);
  else
    ck_assert_msg(strcmp(result->algorithm, "oneshot") != 0, "%s", result->reason);
  ck_assert_msg(strstr(result->reason, cases[_i].says) != NULL, "%s", result->reason);
  snprintf(of, sizeof of, "us measured in %s at", cases[_i].of);
  ck_assert_msg(strstr(result->reason, of) != NULL, "%s", result->reason);
  snprintf(of, sizeof of, "algorithms by measurement, of %s", cases[_i].of);
  ck_assert_msg(strstr(result->described, of) != NULL, "%s", result->described);
}

TEST(what_is_not_measured_is_predicted) {
  task task = {.create = BANYAN_OK, .scatter = BANYAN_SCATTER_ROOT};
  begin("create", SLOW_ONESHOT);
  run(&task);
  ck_assert_msg(strstr(task.results[0].reason, "least predicted") != NULL, "%s", task.results[0].reason);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void write_table(const char *ranks, const char *row) {
  FILE *file = fopen(table, "w");
  ck_assert_ptr_nonnull(file);
  fprintf(file, "banyan measured 1\nmachine Fake 0\nranks %s\nof replays\n# a comment\n%s\n", ranks, row);
  fclose(file);
}

TEST(times_are_kept_in_a_file) {
  task task = {.create = BANYAN_OK};
  struct stat before, after;
  begin(table, SLOW_ONESHOT);
  run(&task);
  ck_assert_str_ne(task.results[0].algorithm, "oneshot");
  ck_assert_int_eq(stat(table, &before), 0);
  begin(table, SLOW_INTERPRET); /* would now be measured otherwise */
  struct task again = {.create = BANYAN_OK};
  run(&again);
  ck_assert_str_eq(task.results[0].reason, again.results[0].reason);
  ck_assert(stat(table, &after) == 0 && before.st_ino == after.st_ino && before.st_size == after.st_size);
}

TEST_LOOP(files_decide, 10) {
  static const struct {
    const char *ranks, *row, *algorithm, *says;
  } cases[] = {
      {"2", "none canonical 16640 ring SIMPLE 1 100\nnone canonical 16640 oneshot LL16 1 200", "ring",
       "ring 0.10 us measured in replays at 16640 bytes by SIMPLE"},
      {"2", "none canonical 16640 tree_knomial LL16 2 100", "tree", "with one in 2 blocks"},
      {"2", "none canonical 16640 twoshot LL8 1 100", "twoshot",
       "by LL8"}, /* which these links do not carry: by size */
      {"2", "none canonical 4096 oneshot LL16 1 1\nnone canonical 8000 twoshot LL16 1 9", "oneshot",
       "at 4096"}, /* the nearest */
      {"3", "", NULL, "measured by 3 ranks with Fake 0, and these are 2"},
      {"2", "none canonical 16640 ring SIMPLE 1", NULL, "line 6"},
      {"2", "none canonical 16640 knot SIMPLE 1 100", NULL, "line 6"},
      {"2", "none canonical 16640 ring SIMPLE 1 nan", NULL, "line 6"},
      {"2", "none canonical 16640 ring SIMPLE 0 100", NULL, "line 6"},
      {"two", "", NULL, "line 3"},
  };
  task task = {.create = cases[_i].algorithm ? BANYAN_OK : BANYAN_ERR_ARGUMENT,
               .says = cases[_i].algorithm ? NULL : cases[_i].says};
  begin(table, "");
  write_table(cases[_i].ranks, cases[_i].row);
  run(&task);
  if (!cases[_i].algorithm) return;
  ck_assert_str_eq(task.results[0].algorithm, cases[_i].algorithm);
  ck_assert_msg(strstr(task.results[0].reason, cases[_i].says) != NULL, "%s", task.results[0].reason);
}

TEST(words_that_are_none) {
  task task = {.create = BANYAN_ERR_ARGUMENT, .says = "BANYAN_DEVICE_TUNE is \"init\""};
  begin("init", "");
  run(&task);
}

static void disagree(world_rank *self) {
  setenv("BANYAN_DEVICE_TUNE", self->rank ? "create" : "off", 1);
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = 10000000000, .device = "cuda:0"};
  banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
  world_check(self, status == BANYAN_ERR_MISMATCH && strstr(banyan_last_error(), "BANYAN_DEVICE_TUNE"), "create: %s",
              banyan_last_error());
}

TEST(ranks_that_want_different_things) {
  begin(NULL, "");
  world_run(&(world_setup){.nranks = RANKS, .bare = true, .processes = true}, disagree);
}

/* ---- one rank fails ---------------------------------------------------------------------------------------------- */

/* The status of plans that this rank makes for the last size class that is measured. It makes no plans for the classes
 * before, so that the last one comes soon. The linker puts the function below in place of bny_plan_make(). */
static _Thread_local banyan_status planted;
static _Thread_local bool is_planted;
banyan_status __real_bny_plan_make(const bny_request *request, int32_t rank, bny_plan **plan);
banyan_status __wrap_bny_plan_make(const bny_request *request, int32_t rank, bny_plan **plan);

banyan_status __wrap_bny_plan_make(const bny_request *request, int32_t rank, bny_plan **plan) {
  bool is_last = request->scatter == BANYAN_SCATTER_HEADS && request->order == BANYAN_ORDER_CANONICAL;
  banyan_status status = is_last ? planted : BANYAN_ERR_UNSUPPORTED;
  if (is_planted && request->measured && status != BANYAN_OK) return bny_fail(status, "planted");
  return __real_bny_plan_make(request, rank, plan);
}

static const struct {
  banyan_status other, own, becomes; /* own: of rank 1 */
  const char *says;                  /* of the other */
} failures[] = {
    {BANYAN_ERR_UNSUPPORTED, BANYAN_ERR_SYSTEM, BANYAN_ERR_SYSTEM,
     "rank 1 failed while combines were measured: planted"},
    {BANYAN_OK, BANYAN_ERR_SYSTEM, BANYAN_ERR_SYSTEM, "rank 1 failed while combines were measured: planted"},
    {BANYAN_OK, BANYAN_ERR_MEMORY, BANYAN_ERR_MISMATCH, "rank 1 measures 0 forms of a combine"},
};

static void fail_to_create(world_rank *self) {
  int i = *(int *)self->argument;
  char device[16];
  snprintf(device, sizeof device, "cuda:%d", self->rank);
  planted = self->rank ? failures[i].own : failures[i].other;
  is_planted = true;
  int64_t began_ns = bny_clock_ns();
  banyan_comm_config config = {
      .size = sizeof config, .timeout_ns = 120000000000, .arena_bytes = 1 << 16, .device = device};
  banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
  const char *text = banyan_last_error();
  world_check(self, status == failures[i].becomes && strstr(text, self->rank ? "planted" : failures[i].says),
              "create: %s (%s)", banyan_status_string(status), text);
  world_check(self, bny_clock_ns() - began_ns < config.timeout_ns / 4, "as late as the deadline");
}

TEST_LOOP(a_rank_that_fails_is_named, 3) {
  begin("create", "");
  world_run(&(world_setup){.nranks = RANKS, .bare = true, .argument = &_i}, fail_to_create);
  device_world_end();
}

/* Before anything is measured: as for want of memory. */
static _Thread_local bool is_poor;
banyan_status __real_bny_device_tuner_make(int32_t nranks, bny_device_tuner **tuner);
banyan_status __wrap_bny_device_tuner_make(int32_t nranks, bny_device_tuner **tuner);

banyan_status __wrap_bny_device_tuner_make(int32_t nranks, bny_device_tuner **tuner) {
  return is_poor ? bny_fail(BANYAN_ERR_MEMORY, "planted") : __real_bny_device_tuner_make(nranks, tuner);
}

static void start_poor(world_rank *self) {
  char device[16];
  snprintf(device, sizeof device, "cuda:%d", self->rank);
  is_poor = self->rank == 1;
  int64_t began_ns = bny_clock_ns();
  banyan_comm_config config = {
      .size = sizeof config, .timeout_ns = 120000000000, .arena_bytes = 1 << 16, .device = device};
  banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
  world_check(self, status == BANYAN_ERR_MEMORY && strstr(banyan_last_error(), is_poor ? "planted" : "rank 1 "),
              "create: %s (%s)", banyan_status_string(status), banyan_last_error());
  world_check(self, bny_clock_ns() - began_ns < config.timeout_ns / 4, "as late as the deadline");
}

TEST_LOOP(a_rank_that_cannot_start_is_named, 2) {
  begin(_i ? table : "create", "");
  world_run(&(world_setup){.nranks = RANKS, .bare = true}, start_poor);
  device_world_end();
}

static void forget_table(void) { unlink(table); }

int main(void) {
  if (!mkdtemp(directory)) return 99;
  snprintf(table, sizeof table, "%s/times", directory);
  int failed = world_main(suite_with("device_tune", 60, forget_table, forget_table));
  unlink(table);
  rmdir(directory);
  return failed;
}
#endif
