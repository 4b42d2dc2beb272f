/* SPDX-License-Identifier: Apache-2.0
 * Ranks on one machine that act as ranks of several nodes, by BANYAN_NODE, and connect by UCX over TCP on the loopback
 * interface. Results have the bits of one node, and nothing is left behind. */
#include "tests/support/combine_task.h"
#include "tests/support/rows.h"
#include "tests/support/self.h"
#include "tests/support/world.h"
#include "tests/transport/net_util.h"

enum { RANKS = 4, TOKENS = 3, HEADS = 9, VALUE_DIM = 20 };

/* The node of each rank, and levels with the same meaning on one node, if there are levels. */
typedef struct shape {
  const char *nodes, *levels;
} shape;

static const shape shapes[] = {{"a,a,b,b", "2"}, {"a,a,a,b", "3"}, {"a,b,c,d", NULL}, {"a,b,a,b", NULL}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void set_or_unset(const char *name, const char *value) {
  if (value)
    setenv(name, value, 1);
  else
    unsetenv(name);
}

static void be_nodes(const shape *shape, bool several) {
  set_or_unset("BANYAN_LEVELS", shape->levels);
  world_be_nodes(several ? shape->nodes : NULL);
}

/* ---- combines ---------------------------------------------------------------------------------------------------- */

/* Makes combines of every scatter, order and wire, and leaves out some. All tasks have the same inputs. */
static combine_task *combine_on(const shape *shape, bool several, bool processes, int one_in) {
  static combine_group groups[2];
  combine_group *group = &groups[several];
  combine_task *task = combine_task_new(RANKS, 31);
  *group = combine_group_make(task, TOKENS, HEADS, VALUE_DIM);
  for (int i = 0; i < 16; i += one_in) {
    banyan_combine_desc desc = {
        .scatter = (banyan_scatter)(i % 4), .root = 2, .wire = i / 8 ? BANYAN_BF16 : BANYAN_F32};
    desc.order = i / 4 % 2 ? BANYAN_ORDER_CANONICAL : BANYAN_ORDER_PLAN;
    /* Without levels the link costs differ, and so may the choice. A named algorithm is the same. */
    if (!shape->levels && desc.order == BANYAN_ORDER_PLAN) desc.algorithm = "recursive";
    combine_task_add(task, group, desc, true);
  }
  be_nodes(shape, several);
  WORLD_RUN(combine_task_run, .nranks = RANKS, .processes = processes, .argument = task);
  combine_task_check(task);
  return task;
}

static void check_same(const shape *shape, bool processes, int one_in) {
  combine_task *one = combine_on(shape, false, processes, one_in);
  combine_task *several = combine_on(shape, true, processes, one_in);
  combine_task_check_same(one, several);
  combine_task_free(one), combine_task_free(several);
}

/* Processes only differ in their connections. */
TEST_LOOP(combines_as_on_one_host, 2 * SHAPES) { check_same(&shapes[_i / 2], _i % 2, _i % 2 ? 3 : 1); }

/* ---- runs in a row ----------------------------------------------------------------------------------------------- */

/* A root sends only acknowledgements, so the others may run ahead by two runs at most. */
static void run_towards_root(world_rank *self) {
  enum { RUNS = 300, BYTES = 5000 };
  static const size_t sizes[2] = {40, BYTES};
  rows *rows = rows_take(1, HEADS, VALUE_DIM);
  banyan_op *op = NULL;
  unsigned char bytes[BYTES];
  rows->desc.scatter = BANYAN_SCATTER_ROOT;
  rows->desc.root = 1;
  rows->desc.algorithm = "oneshot";
  if (!world_ok(self, rows_init(rows, self->comm, &op), "init")) return;
  for (int run = 0; run < RUNS; run++) {
    rows_set(rows, (float)(run + self->rank));
    if (!world_runs(self, op)) break;
    if (self->rank == 1 && !rows_hold(self, rows, run + (self->nranks - 1) / 2.0)) break;
    if (run % 10) continue;
    size_t count = sizes[run % 20 / 10];
    memset(bytes, self->rank == run % 4 ? run : 0, sizeof bytes);
    if (!world_ok(self, banyan_broadcast(self->comm, bytes, count, run % 4), "broadcast")) break;
    if (!world_check(self, bytes[count - 1] == (unsigned char)run, "run %d: broadcast of %zu bytes", run, count)) break;
  }
  banyan_op_free(op);
}

TEST_LOOP(runs_towards_a_root, 2 * SHAPES) {
  be_nodes(&shapes[_i / 2], true);
  unsetenv("BANYAN_LEVELS");
  WORLD_RUN(run_towards_root, .nranks = RANKS, .processes = _i % 2);
}

/* ---- puts -------------------------------------------------------------------------------------------------------- */

/* Puts, as UCX emulates them over TCP. */

static void is_by_puts(world_rank *self) {
  char text[512];
  banyan_comm_describe(self->comm, text, sizeof text);
  world_check(self, strstr(text, "over TCP by puts") != NULL, "%s", text);
  run_towards_root(self);
}

TEST_LOOP(puts_are_as_messages, 4) {
  const shape *shape = &shapes[_i / 2 ? 2 : 0];
  setenv("BANYAN_UCX_PUT", "emulated", 1);
  check_same(shape, _i % 2, 10);
  be_nodes(shape, true);
  unsetenv("BANYAN_LEVELS");
  WORLD_RUN(is_by_puts, .nranks = RANKS, .processes = _i % 2);
}

/* ---- acknowledgements -------------------------------------------------------------------------------------------- */

/* Two ranks send to each other in every second run only. Each may write again once the other has acknowledged its read,
 * which must not wait for a periodic check (5 ms). */
static void shift_by_turns(world_rank *self) {
  enum { TURNS = 40, BYTES = 4096 };
  static unsigned char mine[BYTES];
  unsigned char heard[BYTES];
  double least = 1;
  for (int turn = 0; turn < TURNS; turn++) {
    double begun = world_now_s();
    if (!world_ok(self, banyan_shift(self->comm, mine, heard, BYTES, 2), "shift by 2") ||
        !world_ok(self, banyan_shift(self->comm, mine, heard, BYTES, 1), "shift by 1"))
      return;
    double took = world_now_s() - begun;
    if (turn > 1 && took < least) least = took;
  }
  world_check(self, least < 0.004, "two shifts take %.1f ms at least", 1e3 * least);
}

TEST(reading_is_told_in_time) {
  be_nodes(&shapes[2], true);
  WORLD_RUN(shift_by_turns, .nranks = RANKS, .processes = true);
}

/* ---- leaks ------------------------------------------------------------------------------------------------------- */

static bool live_once(world_rank *self) {
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = WORLD_GUARD_NS};
  if (!world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create")) return false;
  bool good = world_ok(self, banyan_barrier(self->comm), "barrier");
  banyan_comm_destroy(self->comm);
  self->comm = NULL;
  return good;
}

/* In the first communicators, libraries allocate what they keep. */
static void live_often(world_rank *self) {
  enum { FIRST = 5, LIVES = 20 };
  int files = 0, threads = 0, mappings = 0;
  for (int i = 0; i < FIRST + LIVES; i++) {
    if (i == FIRST) {
      files = self_count("/proc/self/fd");
      threads = self_count("/proc/self/task");
      mappings = self_mappings("");
    }
    if (!live_once(self)) return;
  }
  int files_now = self_count("/proc/self/fd"), threads_now = self_count("/proc/self/task");
  world_check(self, files_now <= files, "%d open files, then %d", files, files_now);
  world_check(self, threads_now <= threads, "%d threads, then %d", threads, threads_now);
  world_check(self, world_is_sanitized() || self_mappings("") <= mappings + 10, "%d mappings, then %d", mappings,
              self_mappings(""));
}

TEST_LOOP(nothing_is_left_behind, 3) {
  be_nodes(&shapes[_i], true);
  unsetenv("BANYAN_LEVELS");
  WORLD_RUN(live_often, .nranks = RANKS, .processes = true, .bare = true);
}

/* ---- description ------------------------------------------------------------------------------------------------- */

static void describe(world_rank *self) {
  char text[512];
  banyan_comm_describe(self->comm, text, sizeof text);
  world_check(self, strstr(text, "3 nodes") && strstr(text, "TCP") && strstr(text, "transport net"), "described as: %s",
              text);
}

TEST(description_names_nodes) {
  setenv("UCX_TLS", "tcp", 0);
  setenv("BANYAN_NODE", "a,b,b,c", 1);
  WORLD_RUN(describe, .nranks = RANKS, .processes = true);
}

int main(void) {
  if (net_is_absent()) return 77;
  return world_main(suite_of("net", world_is_sanitized() ? 300 : 100));
}
