/* SPDX-License-Identifier: Apache-2.0
 * Measured costs (BANYAN_COSTS) change the plans of all ranks of a communicator together, even if ranks have different
 * files or only one has a file. */
#include <stdarg.h>

#include "locality/price.h"
#include "tests/support/sheet.h"
#include "tests/topo/topo_sysfs.h"

enum { RANKS = 4, HEADS = 256, VALUES = 128 };

/* Slow signals make rounds expensive, and slow reading makes bytes expensive. */
typedef enum content { NONE, SLOW_SIGNALS, SLOW_READS, OTHER_MACHINE } content;

typedef struct outcome {
  banyan_status status;
  uint64_t plan_hash;
  char algorithm[32], text[600];
} outcome;

typedef struct task {
  content of[RANKS]; /* by rank */
  char folder[256];
  outcome *outcomes; /* shared, by rank */
} task;

static void write_costs(const tree *t, content content) {
  bny_machine here;
  char text[6000];
  bny_machine_find("", &here);
  if (content == OTHER_MACHINE) here.cores += 3;
  size_t length = (size_t)snprintf(text, sizeof text,
                                   "{\"costs_version\": 1, \"date\": \"today\", \"machine\": {\"cpu\": \"%s\", "
                                   "\"packages\": %d, \"numa_nodes\": %d, \"cores\": %d, \"gpus\": \"%s\", "
                                   "\"nics\": \"%s\"}, \"links\": [",
                                   here.cpu, here.packages, here.numa_nodes, here.cores, here.gpus, here.nics);
  const bny_link_class classes[] = {BNY_LINK_CACHE, BNY_LINK_MEMORY, BNY_LINK_SOCKETS};
  for (int i = 0; i < 3; i++)
    length +=
        (size_t)snprintf(text + length, sizeof text - length,
                         "%s{\"class\": \"%s\", \"alpha_ns\": %s, \"message_ns\": %s, \"beta_ns_per_byte\": %s, "
                         "\"source\": \"a test\"}",
                         i ? ", " : "", bny_costs_class_name(classes[i]), content == SLOW_READS ? "10" : "100000000",
                         content == SLOW_READS ? "1" : "1000", content == SLOW_READS ? "100" : "0.01");
  snprintf(text + length, sizeof text - length, "]}");
  char name[16];
  snprintf(name, sizeof name, "%d", (int)content);
  tree_bytes(t, name, text, strlen(text));
}

static void combine(world_rank *self, outcome *found) {
  banyan_op *op = NULL;
  banyan_op_info info = {.size = sizeof info};
  world_random random = (uint64_t)self->rank + 1;
  sheet in = sheet_input(&random, SHEET_PLAIN, self->rank, RANKS, 1, HEADS, VALUES);
  sheet out = sheet_output(&random, SHEET_PLAIN, 1, HEADS, VALUES);
  const banyan_combine_desc desc = {
      .size = sizeof desc, .tokens = 1, .heads = HEADS, .value_dim = VALUES, .wire = BANYAN_F32};
  if (world_ok(self, banyan_combine_init(self->comm, &desc, &in.partial, &out.partial, &op), "init") &&
      world_runs(self, op) && world_ok(self, banyan_op_query(op, &info), "query")) {
    found->plan_hash = info.plan_hash;
    snprintf(found->algorithm, sizeof found->algorithm, "%s", info.algorithm);
  }
  banyan_op_free(op);
}

static void create_and_combine(world_rank *self) {
  task *s = self->argument;
  outcome *found = &s->outcomes[self->rank];
  char path[300];
  snprintf(path, sizeof path, "%s/%d", s->folder, (int)s->of[self->rank]);
  if (s->of[self->rank] != NONE) setenv("BANYAN_COSTS", path, 1);
  found->status = banyan_comm_create(&self->bootstrap, NULL, &self->comm);
  snprintf(found->text, sizeof found->text, "%s", found->status == BANYAN_OK ? "" : banyan_last_error());
  if (found->status == BANYAN_OK) combine(self, found);
}

/* Runs four processes with these files; *outcomes is shared memory. */
static void play(content zero, content one, content two, content three, outcome *outcomes) {
  tree t = tree_new();
  task s = {.of = {zero, one, two, three}, .outcomes = outcomes};
  world_setup setup = {.nranks = RANKS, .processes = true, .bare = true, .argument = &s};
  unsetenv("BANYAN_COSTS");
  snprintf(s.folder, sizeof s.folder, "%s", t.root);
  for (content content = SLOW_SIGNALS; content <= OTHER_MACHINE; content++) write_costs(&t, content);
  world_run(&setup, create_and_combine);
}

static void check_alike(const outcome *outcomes) {
  for (int r = 0; r < RANKS; r++) {
    ck_assert_msg(outcomes[r].status == BANYAN_OK, "rank %d: %s", r, outcomes[r].text);
    ck_assert_uint_eq(outcomes[r].plan_hash, outcomes[0].plan_hash);
    ck_assert_str_eq(outcomes[r].algorithm, outcomes[0].algorithm);
  }
}

TEST(costs_change_plans_of_all_ranks) {
  outcome *found = world_take(RANKS * sizeof *found);
  play(SLOW_SIGNALS, SLOW_SIGNALS, SLOW_SIGNALS, SLOW_SIGNALS, found);
  check_alike(found);
  ck_assert_str_eq(found->algorithm, "oneshot");
  uint64_t slow_signals = found->plan_hash;
  play(SLOW_READS, SLOW_READS, SLOW_READS, SLOW_READS, found);
  check_alike(found);
  ck_assert_str_ne(found->algorithm, "oneshot");
  ck_assert_uint_ne(found->plan_hash, slow_signals);
}

/* A level takes the costs of its slowest member. */
TEST(one_rank_with_a_file_is_enough) {
  outcome *found = world_take(RANKS * sizeof *found);
  play(NONE, NONE, SLOW_SIGNALS, NONE, found);
  check_alike(found);
  ck_assert_str_eq(found->algorithm, "oneshot");
  play(NONE, SLOW_READS, NONE, NONE, found);
  check_alike(found);
  ck_assert_str_ne(found->algorithm, "oneshot");
}

TEST(files_may_differ) {
  outcome *found = world_take(RANKS * sizeof *found);
  play(SLOW_READS, SLOW_SIGNALS, NONE, SLOW_READS, found);
  check_alike(found);
}

TEST(a_file_that_is_rejected_is_an_error_of_all_ranks) {
  outcome *found = world_take(RANKS * sizeof *found);
  play(NONE, NONE, OTHER_MACHINE, SLOW_READS, found);
  for (int r = 0; r < RANKS; r++) {
    ck_assert_int_ne(found[r].status, BANYAN_OK);
    ck_assert_msg(strstr(found[r].text, r == 2 ? "it was measured on another machine: cores is" : "rank 2") != NULL,
                  "rank %d: %s", r, found[r].text);
  }
}

int main(void) {
#ifndef HAVE_JANSSON
  printf("skipped: built without jansson, which reads measured costs\n");
  return 77;
#endif
  return world_main(suite_with("costs", 120, NULL, drop_kept));
}
