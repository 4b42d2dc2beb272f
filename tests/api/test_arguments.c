/* SPDX-License-Identifier: Apache-2.0
 * The rules of calls and of communicators that a row of calls.def cannot state, because they need a run, several calls
 * or the environment. Breaking one is an error with a text that names the field, and a communicator that remains
 * usable. */
#include "tests/support/lone.h"
#include "tests/support/world.h"

enum { TOKENS = 2, HEADS = 3, VALUE_DIM = 4, ROWS = TOKENS * HEADS };

static float in_values[ROWS * VALUE_DIM], in_lse[ROWS], in_sum[ROWS];
static float out_values[ROWS * VALUE_DIM], out_lse[ROWS];

static void make_good(banyan_combine_desc *desc, banyan_partial *in, banyan_partial *out) {
  *desc = (banyan_combine_desc){.size = sizeof *desc, .tokens = TOKENS, .heads = HEADS, .value_dim = VALUE_DIM};
  banyan_partial_init(in, in_values, BANYAN_F32, in_lse, BANYAN_F32, HEADS, VALUE_DIM);
  banyan_partial_init(out, out_values, BANYAN_F32, out_lse, BANYAN_F32, HEADS, VALUE_DIM);
}

static void is_usable(banyan_comm *comm) {
  banyan_combine_desc desc;
  banyan_partial in, out;
  make_good(&desc, &in, &out);
  ck_assert_int_eq(banyan_comm_status(comm), BANYAN_OK);
  ck_assert_msg(banyan_combine(comm, &desc, &in, &out) == BANYAN_OK, "%s", banyan_last_error());
}

static void rejected(banyan_status status, const char *named) {
  ck_assert_msg(status == BANYAN_ERR_ARGUMENT, "%s: got %s (%s)", named, banyan_status_string(status),
                banyan_last_error());
  ck_assert_msg(strstr(banyan_last_error(), named), "the text does not name %s: %s", named, banyan_last_error());
}

TEST(bytes_without_memory) {
  banyan_comm *comm = lone_comm(NULL);
  char bytes[16] = {0};
  const size_t count = 4;
  ck_assert_int_eq(banyan_allgather(comm, bytes, bytes, &count), BANYAN_OK);
  ck_assert_int_eq(banyan_allgather(comm, bytes + 4, bytes, &count), BANYAN_OK);
  ck_assert_int_eq(banyan_shift(comm, bytes, bytes + 8, 8, -2000000000), BANYAN_OK);
  ck_assert_int_eq(banyan_shift(comm, NULL, NULL, 0, 1), BANYAN_OK);
  ck_assert_int_eq(banyan_broadcast(comm, NULL, 0, 0), BANYAN_OK);
  is_usable(comm);
  banyan_comm_destroy(comm);
}

/* Statistics are data: a negative sum is found during the run and ends the communicator. */
TEST(a_negative_sum) {
  banyan_comm *comm = lone_comm(NULL);
  banyan_combine_desc desc;
  banyan_partial in, out;
  make_good(&desc, &in, &out);
  in.stats_kind = BANYAN_STATS_MAX_SUM;
  in.sum = in_sum;
  for (int i = 0; i < ROWS; i++) in_sum[i] = i == HEADS + 2 ? -1 : 1;
  ck_assert_int_eq(banyan_combine(comm, &desc, &in, &out), BANYAN_ERR_DATA);
  ck_assert_msg(strstr(banyan_last_error(), "token 1, head 2") && strstr(banyan_last_error(), "negative d"), "%s",
                banyan_last_error());
  banyan_comm_destroy(comm);
}

/* Only this rank's call fails, and the next call succeeds. */
TEST(a_row_that_the_result_cannot_hold) {
  static uint16_t m[ROWS], d[ROWS];
  banyan_comm *comm = lone_comm(NULL);
  banyan_combine_desc desc;
  banyan_partial in, out;
  make_good(&desc, &in, &out);
  out.lse = m;
  out.stats_dtype = BANYAN_F16;
  in_lse[HEADS + 2] = 70000;
  for (int i = 0; i < ROWS * VALUE_DIM; i++) in_values[i] = 3;
  for (int kind = 0; kind < 2; kind++) {
    out.stats_kind = kind ? BANYAN_STATS_MAX_SUM : BANYAN_STATS_LSE;
    out.sum = kind ? d : NULL;
    memset(out_values, 0, sizeof out_values);
    ck_assert_int_eq(banyan_combine(comm, &desc, &in, &out), BANYAN_ERR_DATA);
    ck_assert_msg(strstr(banyan_last_error(), "token 1, head 2") && strstr(banyan_last_error(), "f16") &&
                      strstr(banyan_last_error(), "out.stats_dtype"),
                  "%s", banyan_last_error());
    for (int i = 0; i < ROWS * VALUE_DIM; i++) ck_assert(i / VALUE_DIM == HEADS + 2 || out_values[i] == 3);
    is_usable(comm);
  }
  in_lse[HEADS + 2] = 0;
  ck_assert_int_eq(banyan_combine(comm, &desc, &in, &out), BANYAN_OK);
  banyan_comm_destroy(comm);
}

TEST(scales_are_read_at_each_run) {
  static uint8_t codes[ROWS * VALUE_DIM], merged[ROWS * VALUE_DIM];
  float scales[2 * HEADS], half = 0.5f;
  banyan_comm *comm = lone_comm(NULL);
  banyan_combine_desc desc;
  banyan_partial in, out;
  banyan_op *op = NULL;
  make_good(&desc, &in, &out);
  memset(codes, 0x38, sizeof codes); /* 1 in e4m3 */
  for (int i = 0; i < 2 * HEADS; i++) scales[i] = (float)(1 << i % 4);
  in.values = codes;
  in.values_dtype = BANYAN_E4M3;
  in.values_scale = scales;
  in.values_scale_stride = 2;
  out.values = merged;
  out.values_dtype = BANYAN_E5M2;
  out.values_scale = &half;
  ck_assert_int_eq(banyan_combine_init(comm, &desc, &in, &out, &op), BANYAN_OK);
  for (int run = 0; run < 4; run++) {
    scales[2] = run == 1 ? -1 : run == 2 ? INFINITY : 4;
    banyan_status status = banyan_start(op);
    ck_assert_int_eq(status, run == 1 || run == 2 ? BANYAN_ERR_ARGUMENT : BANYAN_OK);
    ck_assert_int_eq(banyan_combine(comm, &desc, &in, &out), status);
    if (status == BANYAN_OK) {
      ck_assert_int_eq(banyan_wait(op), BANYAN_OK);
      for (int i = 0; i < ROWS * VALUE_DIM; i++) /* 2 x the scale in e5m2, whose exponent begins at bit 2 */
        ck_assert_int_eq(merged[i], (15 + 1 + ilogbf(scales[i / VALUE_DIM % HEADS * 2])) << 2);
    } else {
      ck_assert_msg(strstr(banyan_last_error(), "in.values_scale[2] of head 1 is"), "%s", banyan_last_error());
    }
  }
  half = 0;
  ASSERT_FAILS(banyan_start(op), BANYAN_ERR_ARGUMENT, "out.values_scale[0] of head 0 is 0");
  banyan_op_free(op);
  is_usable(comm);
  banyan_comm_destroy(comm);
}

TEST(operations_out_of_order) {
  banyan_comm *comm = lone_comm(NULL);
  banyan_op *op = NULL;
  ck_assert_int_eq(banyan_barrier_init(comm, &op), BANYAN_OK);
  ck_assert_int_eq(banyan_wait(op), BANYAN_OK); /* no run was started, so it counts as complete */
  int done = -1;
  ck_assert_int_eq(banyan_test(op, &done), BANYAN_OK);
  ck_assert_int_eq(done, 1);
  banyan_op_free(op);
  is_usable(comm);
  banyan_comm_destroy(comm);
}

/* A second start before the wait is rejected, whether the run is complete (rank 1) or not (rank 0). */
TEST_RANKS(second_start, 1, .nranks = 2) {
  banyan_op *op = NULL;
  if (!world_ok(self, banyan_barrier_init(self->comm, &op), "init") || !world_meet(self)) return;
  if (self->rank == 0) {
    world_ok(self, banyan_start(op), "start");
    banyan_status status = banyan_start(op);
    world_check(self, status == BANYAN_ERR_STATE, "a second start gave %d", status);
  }
  if (!world_meet(self)) return;
  if (self->rank == 1) {
    world_ok(self, banyan_start(op), "start");
    /* The run may already be complete, because rank 0 started it earlier. */
    for (int i = 0; i < 100; i++) {
      banyan_status status = banyan_start(op);
      world_check(self, status == BANYAN_ERR_STATE, "second start %d gave %d", i, status);
    }
  }
  world_ok(self, banyan_wait(op), "wait");
  world_ok(self, banyan_barrier(self->comm), "barrier");
  banyan_op_free(op);
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

static int no_allgather(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  (void)context, (void)mine, (void)all, (void)bytes, (void)timeout_ns;
  return 1;
}

static int words_allgather(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  (void)context, (void)mine, (void)all, (void)bytes, (void)timeout_ns;
  return (int)banyan_bootstrap_fail(BANYAN_ERR_PEER, "the store of rank 3 is gone");
}

static int disordered_allgather(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  (void)context, (void)mine, (void)timeout_ns;
  memset(all, 0xa5, 3 * bytes);
  return 0;
}

TEST(words_of_a_bootstrap) {
  banyan_comm *comm = NULL;
  const banyan_bootstrap wrong = {.size = sizeof wrong, .rank = 1, .nranks = 3, .allgather = disordered_allgather};
  ck_assert_int_eq(banyan_comm_create(&wrong, NULL, &comm), BANYAN_ERR_BOOTSTRAP);
  ck_assert_ptr_nonnull(strstr(banyan_last_error(), "allgather gave rank 1 other bytes at its own place"));
  const banyan_bootstrap bootstrap = {.size = sizeof bootstrap, .rank = 0, .nranks = 1, .allgather = words_allgather};
  ck_assert_int_eq(banyan_comm_create(&bootstrap, NULL, &comm), BANYAN_ERR_PEER);
  ck_assert_str_eq(banyan_last_error(), "the store of rank 3 is gone");
  ck_assert_ptr_null(comm);
}

static void rejected_alone(const banyan_comm_config *config, const char *named) {
  banyan_comm *comm = NULL;
  rejected(lone_create(config, &comm), named);
  ck_assert_ptr_null(comm);
}

TEST(default_algorithms) {
  static const char *const names[] = {"nonesuch", "dissemination", "tree_", "nonesuch_with_a_name_longer_than_any"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char text[128];
    banyan_comm_config config = {.size = sizeof config, .algorithm = names[i]};
    snprintf(text, sizeof text, "config.algorithm is \"%s\"; it takes oneshot, twoshot, recursive, tree, ring, levels",
             names[i]);
    rejected_alone(&config, text);
  }
  setenv("BANYAN_ALGORITHM", "telepathy", 1);
  rejected_alone(NULL, "BANYAN_ALGORITHM is \"telepathy\"");
  setenv("BANYAN_ALGORITHM", "recursive_halving", 1);
  banyan_comm_destroy(lone_comm(NULL));
  unsetenv("BANYAN_ALGORITHM");
}

/* Options are checked even if this communicator, on one node without devices, does not use them. */
TEST(words_are_checked) {
#define BNY_OPTION_WORD(field, name, words, help) \
  setenv(name, "o", 1), rejected_alone(NULL, name " is \"o\"; it takes " words), unsetenv(name);
#include "base/options.def"
  setenv("BANYAN_UCX_PUT", "emulated", 1);
  banyan_comm_destroy(lone_comm(NULL));
  unsetenv("BANYAN_UCX_PUT");
}

static void create_with_levels(world_rank *self) {
  char named[64];
  snprintf(named, sizeof named, "BANYAN_LEVELS: levels \"%s\"", (const char *)self->argument);
  banyan_status status = banyan_comm_create(&self->bootstrap, NULL, &self->comm);
  world_gets(self, status, BANYAN_ERR_ARGUMENT, named);
}

TEST(wrong_levels_are_named) {
  static const char *const wrong[] = {"4,x", "x", "0", "4,6", "-1", "2,3"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    setenv("BANYAN_LEVELS", wrong[i], 1);
    WORLD_RUN(create_with_levels, .nranks = 12, .bare = true, .argument = (void *)(uintptr_t)wrong[i]);
  }
  unsetenv("BANYAN_LEVELS");
}

TEST(communicators) {
  banyan_comm *comm = NULL;
  const banyan_bootstrap good = {.size = sizeof good, .rank = 0, .nranks = 1, .allgather = no_allgather};
  banyan_bootstrap bootstrap = good;
  bootstrap.size = 8;
  rejected(banyan_comm_create(&bootstrap, NULL, &comm), "bootstrap.size");
  bootstrap = good, bootstrap.allgather = NULL;
  rejected(banyan_comm_create(&bootstrap, NULL, &comm), "allgather");
  bootstrap = good, bootstrap.nranks = 0;
  rejected(banyan_comm_create(&bootstrap, NULL, &comm), "rank");
  bootstrap = good, bootstrap.rank = 1;
  rejected(banyan_comm_create(&bootstrap, NULL, &comm), "rank");
  bootstrap = good, bootstrap.rank = -1;
  rejected(banyan_comm_create(&bootstrap, NULL, &comm), "rank");
  bootstrap = good, bootstrap.nranks = 65409; /* more ranks than a shrink message can name */
  rejected(banyan_comm_create(&bootstrap, NULL, &comm), "65408");
  banyan_comm_config config = {.size = 3};
  rejected(banyan_comm_create(&good, &config, &comm), "config.size");
  config = (banyan_comm_config){.size = sizeof config, .timeout_ns = -1};
  rejected(banyan_comm_create(&good, &config, &comm), "timeout_ns");
  config = (banyan_comm_config){.size = sizeof config, .arena_bytes = 100};
  rejected(banyan_comm_create(&good, &config, &comm), "arena_bytes");
  config.arena_bytes = ((size_t)16 << 30) + 1;
  rejected(banyan_comm_create(&good, &config, &comm), "16 GiB");
  config.arena_bytes = (size_t)16 << 30;
  ck_assert_int_eq(banyan_comm_create(&good, &config, &comm), BANYAN_ERR_BOOTSTRAP);
  config = (banyan_comm_config){.size = sizeof config, .threads = -1};
  rejected(banyan_comm_create(&good, &config, &comm), "config.threads is -1; it must be between 0 and 1024");
  config.threads = 1025;
  rejected(banyan_comm_create(&good, &config, &comm), "config.threads");
  setenv("BANYAN_THREADS", "many", 1);
  rejected_alone(NULL, "BANYAN_THREADS");
  unsetenv("BANYAN_THREADS");
  ck_assert_int_eq(banyan_comm_create(&good, NULL, &comm), BANYAN_ERR_BOOTSTRAP);
  ck_assert_ptr_null(comm);
}

TEST(splits) {
  for (int32_t count = 0; count < 40; count++) {
    for (int32_t parts = 1; parts < 20; parts++) {
      int32_t next = 0, previous = INT32_MAX;
      for (int32_t i = 0; i < parts; i++) {
        int32_t first, number;
        banyan_split(count, parts, i, &first, &number);
        ck_assert_int_eq(first, next);
        ck_assert(number <= previous && number >= count / parts && number <= count / parts + 1);
        next += number;
        previous = number;
      }
      ck_assert_int_eq(next, count);
    }
  }
}

TEST(descriptions) {
  banyan_comm *comm = lone_comm(NULL);
  char text[400], cut[10];
  size_t length = banyan_comm_describe(comm, text, sizeof text);
  ck_assert_uint_eq(length, strlen(text));
  ck_assert_uint_eq(banyan_comm_describe(comm, cut, sizeof cut), length);
  ck_assert_uint_eq(strlen(cut), sizeof cut - 1);
  ck_assert_uint_eq(banyan_comm_describe(comm, NULL, 0), length);
  ck_assert_int_eq(banyan_comm_rank(comm), 0);
  ck_assert_int_eq(banyan_comm_nranks(comm), 1);
  ck_assert_int_eq(banyan_comm_failed_rank(comm), -1);
  ck_assert_str_eq(banyan_comm_error(comm), "");
  for (int status = -1; status < 20; status++) ck_assert_ptr_nonnull(banyan_status_string((banyan_status)status));
  banyan_comm_destroy(comm);
}

int main(void) { return world_main(suite_of("arguments", 60)); }
