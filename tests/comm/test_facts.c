/* SPDX-License-Identifier: Apache-2.0
 * The facts that ranks exchange before any decision: which ranks share a node, with and without the help of the kernel,
 * and settings that are wrong on one rank. */
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "comm/facts.h"
#include "plan/plan.h"
#include "base/status.h"
#include "tests/support/world.h"
#include "tests/topo/topo_sysfs.h"

enum { RANKS = 4, SKIPPED = 77 };

static bny_facts facts_of(int32_t rank, const char *host) {
  banyan_bootstrap bootstrap = {.size = sizeof bootstrap, .rank = rank, .nranks = RANKS};
  bny_settings settings = {.options = {.node = host}, .arena_bytes = 1 << 20, .origin = rank};
  bny_facts made;
  bny_facts_gather(&bootstrap, &settings, BANYAN_OK, &made);
  return made;
}

static int32_t nodes_of(const bny_facts *all) {
  bny_node_map found;
  ck_assert_int_eq(bny_node_map_find(all, 0, RANKS, &found), BANYAN_OK);
  int32_t nnodes = found.nnodes;
  bny_node_map_free(&found);
  return nnodes;
}

/* Gathers the facts of each rank in a separate process. Returns false if this machine cannot run processes without
 * /proc. */
static bool gather_in_processes(bool without_proc, bny_facts *all) {
  bool can = true;
  for (int32_t rank = 0; rank < RANKS; rank++) {
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
      if (without_proc && (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
                           mount("none", "/proc", "tmpfs", 0, NULL) != 0))
        _exit(SKIPPED);
      all[rank] = facts_of(rank, NULL);
      _exit(0);
    }
    int how;
    ck_assert_int_eq(waitpid(pid, &how, 0), pid);
    ck_assert(WIFEXITED(how));
    can = can && WEXITSTATUS(how) != SKIPPED;
  }
  return can;
}

TEST(settings_differ) {
  bny_facts all[RANKS];
  banyan_bootstrap bootstrap = {.size = sizeof bootstrap, .rank = 1, .nranks = RANKS};
  for (int32_t rank = 0; rank < RANKS; rank++) all[rank] = facts_of(rank, NULL);
  all[3].slices = 4;
  ASSERT_FAILS(bny_facts_compare(all, &bootstrap), BANYAN_ERR_MISMATCH, "BANYAN_SLICES is 4 on rank 3 and 0 here");
  all[3].slices = 0;
  all[3].pass = BNY_PASS_KEYS;
  ASSERT_FAILS(bny_facts_compare(all, &bootstrap), BANYAN_ERR_MISMATCH, "BANYAN_PASS is keys on rank 3 and auto here");
}

TEST(builds_that_may_plan_differently_do_not_agree) {
  bny_facts all[RANKS];
  banyan_bootstrap bootstrap = {.size = sizeof bootstrap, .rank = 1, .nranks = RANKS};
  for (int32_t rank = 0; rank < RANKS; rank++) all[rank] = facts_of(rank, NULL);
  ck_assert_int_eq(bny_facts_compare(all, &bootstrap), BANYAN_OK);
  all[2].plan_id = 0x1234;
  ck_assert_int_eq(bny_facts_compare(all, &bootstrap), BANYAN_ERR_MISMATCH);
  char own[64];
  snprintf(own, sizeof own, "this rank %s (plans %08x)", banyan_version(), (unsigned)bny_plan_id);
  ck_assert_msg(strstr(banyan_last_error(), "rank 2 runs banyan") && strstr(banyan_last_error(), "(plans 00001234)") &&
                    strstr(banyan_last_error(), own),
                "%s", banyan_last_error());
  all[2].plan_id = bny_plan_id;
  strcpy(all[0].version, "9.9");
  ASSERT_FAILS(bny_facts_compare(all, &bootstrap), BANYAN_ERR_MISMATCH, "rank 0 runs banyan 9.9");
}

TEST(processes_of_one_kernel_are_one_node) {
  bny_facts *all = world_take(RANKS * sizeof *all);
  ck_assert(gather_in_processes(false, all));
  ck_assert_int_eq(nodes_of(all), 1);
  all[2].boot_id[3] ^= 1;
  ck_assert_int_eq(nodes_of(all), 2);
  all[3].network_namespace++;
  ck_assert_int_eq(nodes_of(all), 3);
}

/* Ranks are numbered by node and process as in a comparison of all pairs. */
TEST_LOOP(equal_ranks_are_found, 40) {
  enum { MANY = 60 };
  world_random random = random_seed() + (uint64_t)_i;
  bny_facts *all = calloc(MANY, sizeof *all);
  bny_node_map found;
  int32_t nnodes = 0, kinds = 1 + random_below(&random, 4);
  bool one_process = true;
  for (int32_t r = 0; r < MANY; r++) {
    all[r].boot_id[39] = (char)random_below(&random, kinds);
    all[r].node[0] = (char)random_below(&random, kinds);
    all[r].network_namespace = (uint64_t)random_below(&random, 2);
    all[r].pid = random_below(&random, kinds);
    all[r].process = (uint64_t)random_below(&random, 2);
  }
  ck_assert_int_eq(bny_node_map_find(all, 0, MANY, &found), BANYAN_OK);
  for (int32_t r = 0; r < MANY; r++) {
    int32_t node = 0, process = 0;
    while (memcmp(all[node].boot_id, all[r].boot_id, 40) != 0 || all[node].node[0] != all[r].node[0] ||
           all[node].network_namespace != all[r].network_namespace)
      node++;
    while (all[process].pid != all[r].pid || all[process].process != all[r].process) process++;
    one_process = one_process && all[node].pid == all[r].pid && all[node].process == all[r].process;
    ck_assert_int_eq(found.node_of[r], node == r ? nnodes++ : found.node_of[node]);
    ck_assert_int_eq(found.process_of[r], process);
  }
  ck_assert_int_eq(found.nnodes, nnodes);
  ck_assert_int_eq(found.one_process, one_process);
  bny_node_map_free(&found);
  free(all);
}

TEST(no_rank_shares_a_node_without_proc) {
  setenv("BANYAN_LOG", "error", 1);
  bny_facts *all = world_take(RANKS * sizeof *all);
  if (gather_in_processes(true, all)) {
    ck_assert_int_eq(nodes_of(all), RANKS);
    all[1] = all[0]; /* two threads of one process */
    ck_assert_int_eq(nodes_of(all), RANKS - 1);
  } else {
    printf("left out: /proc cannot be taken away here\n");
  }
}

/* ---- shares of cores --------------------------------------------------------------------------------------------- */

/* Each binding is the range of cores first .. last of a rank. Shares are lists of cores. */
typedef struct shares {
  int32_t nranks;
  int32_t bound[RANKS][2];
  const char *expected[RANKS];
} shares;

static const shares divisions[] = {
    {2, {{0, 7}, {0, 7}}, {"0 1 2 3", "4 5 6 7"}},
    {2, {{0, 7}, {0, 3}}, {"4 5 6 7", "0 1 2 3"}},
    {3, {{0, 3}, {2, 5}, {4, 7}}, {"0 1 2", "3 4 5", "6 7"}},
    {3, {{0, 7}, {0, 7}, {0, 7}}, {"0 1 2", "3 4 5", "6 7"}},
    {3, {{8, 15}, {0, 3}, {0, 3}}, {"8 9 10 11 12 13 14 15", "0 1", "2 3"}},
    {4, {{0, 1}, {1, 2}, {2, 3}, {3, 3}}, {"0", "1", "2", "3"}},
    {4, {{0, 1}, {0, 1}, {0, 1}, {0, 1}}, {"0", "1", "0", "1"}}, /* more ranks than cores */
    {1, {{8184, 8191}}, {"8184 8185 8186 8187 8188 8189 8190 8191"}},
    {2, {{5, 4}, {0, 1}}, {"", "0 1"}}, /* one binding is unknown */
};

static void write_share(const bny_pool_cpus *cpus, char *text, size_t bytes) {
  size_t length = 0;
  int32_t count = 0;
  text[0] = 0;
  for (int32_t cpu = 0; cpu < 8 * BNY_CPU_BYTES; cpu++) {
    if (!(cpus->mask[cpu / 8] >> cpu % 8 & 1)) continue;
    length += (size_t)snprintf(text + length, bytes - length, "%s%d", count++ ? " " : "", cpu);
  }
  ck_assert_int_eq(cpus->count, count);
}

static void bind_ranks(const shares *to, bny_facts *all) {
  for (int32_t rank = 0; rank < to->nranks; rank++) {
    all[rank] = facts_of(rank, NULL);
    memset(all[rank].cpus, 0, sizeof all[rank].cpus);
    for (int32_t cpu = to->bound[rank][0]; cpu <= to->bound[rank][1]; cpu++)
      all[rank].cpus[cpu / 8] |= (unsigned char)(1 << cpu % 8);
  }
}

TEST_LOOP(cores_are_divided, (int)(sizeof divisions / sizeof divisions[0])) {
  const shares *to = &divisions[_i];
  bny_facts all[RANKS];
  bind_ranks(to, all);
  for (int32_t rank = 0; rank < to->nranks; rank++) {
    char text[256];
    bny_node_map found;
    ck_assert_int_eq(bny_node_map_find(all, rank, to->nranks, &found), BANYAN_OK);
    write_share(&found.own_cpus, text, sizeof text);
    ck_assert_msg(strcmp(text, to->expected[rank]) == 0, "rank %d has cores %s, not %s", rank, text,
                  to->expected[rank]);
    bny_node_map_free(&found);
  }
}

/* Cores of different machines have the same numbers. */
TEST(cores_of_another_machine_are_not_shared) {
  bny_facts all[RANKS];
  bny_node_map found;
  bind_ranks(&divisions[0], all);
  all[1].boot_id[3] ^= 1;
  ck_assert_int_eq(bny_node_map_find(all, 1, 2, &found), BANYAN_OK);
  ck_assert_int_eq(found.own_cpus.count, 8);
  bny_node_map_free(&found);
}

/* ---- CPU quotas -------------------------------------------------------------------------------------------------- */

#define V2 "1 2 0:3 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n"

/* A process that sees these files has this quota; 0: none. */
static const struct {
  const char *cgroup, *mountinfo;
  const char *files[3][2]; /* path, text */
  double cpus;
} quota_cases[] = {
    {"0::/", V2, {{"cpu.max", "200000 100000"}}, 2},
    {"0::/", V2, {{"cpu.max", "max 100000"}}, 0},
    {"0::/", V2, {{"cpu.max", "some"}}, 0},
    {"0::/", V2, {{"cpu.max", "25000 50000"}}, 0.5},
    {"0::/a/b/c", V2, {{"a/cpu.max", "400000 100000"}, {"a/b/cpu.max", "max 100000"}, {"a/b/c/x", ""}}, 4},
    {"0::/a/b/c", V2, {{"a/cpu.max", "400000 100000"}, {"a/b/c/cpu.max", "100000 100000"}}, 1},
    {"0::/a", V2, {{"b/cpu.max", "100000 100000"}}, 0},
    {"0::/gone/with its container", V2, {{"cpu.max", "300000 100000"}}, 3},
    {"0::/../../other", V2, {{"cpu.max", "300000 100000"}}, 3},
    {"0::/docker/x", "1 2 0:3 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n", {{"cpu.max", "150000 100000"}}, 1.5},
    {"0::/docker/xy", "1 2 0:3 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n", {{"y/cpu.max", "1 2"}}, 0},
    {"0::/a", "1 2 0:3 / /sys/fs/c\\040g rw - cgroup2 none rw\n", {{"../c g/a/cpu.max", "700000 100000"}}, 7},
    {"5:cpuset:/q\n4:cpu,cpuacct:/docker/x\n0::/",
     "1 2 0:3 /docker/x /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" V2,
     {{"cpu,cpuacct/cpu.cfs_quota_us", "250000"}, {"cpu,cpuacct/cpu.cfs_period_us", "100000"}},
     2.5},
    {"4:cpuacct,cpu:/a",
     "1 2 0:3 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpuacct,cpu\n",
     {{"cpu/a/cpu.cfs_quota_us", "-1"}, {"cpu/a/cpu.cfs_period_us", "100000"}},
     0},
    {"3:cpuset:/\n",
     "1 2 0:3 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n",
     {{"cpuset/cpu.cfs_quota_us", "1"}, {"cpuset/cpu.cfs_period_us", "1"}},
     0},
    {"nonsense", "1 2\n - cgroup2\n", {{"cpu.max", "1 2"}}, 0},
};

TEST_LOOP(quotas_are_read_on_the_whole_path, (int)(sizeof quota_cases / sizeof *quota_cases)) {
  tree t = tree_new();
  bny_quota found[BNY_QUOTAS];
  tree_file(&t, quota_cases[_i].cgroup, "proc/self/cgroup");
  tree_file(&t, quota_cases[_i].mountinfo, "proc/self/mountinfo");
  tree_file(&t, "", "sys/fs/cgroup/cgroup.procs");
  for (int i = 0; i < 3 && quota_cases[_i].files[i][0]; i++)
    tree_file(&t, quota_cases[_i].files[i][1], "sys/fs/cgroup/%s", quota_cases[_i].files[i][0]);
  bny_quotas_find(t.root, found);
  ck_assert_int_eq(found[0].group != 0, quota_cases[_i].cpus > 0);
  ck_assert_msg(fabs(found[0].cpus - quota_cases[_i].cpus) < 1e-9, "%s: %g CPUs, not %g", quota_cases[_i].cgroup,
                found[0].cpus, quota_cases[_i].cpus);
  bny_quotas_find("/nonexistent", found);
  ck_assert_int_eq(found[0].group, 0);
}

/* The smallest quotas are kept in order, however deep the tree is. */
TEST_LOOP(smallest_quotas_come_first, 50) {
  enum { DEEP = 9 };
  world_random random = random_seed() + (uint64_t)_i;
  tree t = tree_new();
  bny_quota found[BNY_QUOTAS];
  char path[128] = "sys/fs/cgroup", text[160];
  double cpus[DEEP];
  for (int i = 0; i < DEEP; i++) {
    int32_t hundredths = 1 + random_below(&random, 6400);
    int at = i;
    snprintf(text, sizeof text, "%d000 100000", hundredths);
    strcat(path, "/d");
    tree_file(&t, text, "%s/cpu.max", path);
    for (; at > 0 && cpus[at - 1] > hundredths * 0.01; at--) cpus[at] = cpus[at - 1];
    cpus[at] = hundredths * 0.01;
  }
  snprintf(text, sizeof text, "0::%s", path + strlen("sys/fs/cgroup"));
  tree_file(&t, text, "proc/self/cgroup");
  tree_file(&t, V2, "proc/self/mountinfo");
  bny_quotas_find(t.root, found);
  for (int i = 0; i < BNY_QUOTAS; i++) ck_assert_msg(fabs(found[i].cpus - cpus[i]) < 1e-9, "quota %d", i);
}

/* Ranks with these quotas share cores 0 .. 7 of one machine. A letter stands for a group. */
static const struct {
  int32_t nranks;
  const char *groups[RANKS]; /* "a2 b8": in group a with 2 CPUs, below b with 8 */
  int32_t threads[RANKS];
  double ranks_per_core;
} quota_shares[] = {
    {1, {""}, {8}, 0.125},        {1, {"a2"}, {2}, 0.5},
    {1, {"a1.9"}, {1}, 1 / 1.9},  {1, {"a0.5"}, {1}, 2},
    {1, {"a64"}, {8}, 0.125},     {2, {"a4", "a4"}, {2, 2}, 0.5},
    {2, {"a1", "a1"}, {1, 1}, 2}, {2, {"a2", "b3"}, {2, 3}, 0.5},
    {2, {"a2", ""}, {2, 4}, 0.5}, {4, {"a2 c5", "a2 c5", "b3 c5", "b3 c5"}, {1, 1, 1, 1}, 1},
};

TEST_LOOP(quotas_are_shared_by_the_ranks_of_a_group, (int)(sizeof quota_shares / sizeof *quota_shares)) {
  bny_facts all[RANKS];
  for (int32_t rank = 0; rank < quota_shares[_i].nranks; rank++) {
    all[rank] = facts_of(rank, NULL);
    memset(all[rank].cpus, 0, sizeof all[rank].cpus);
    memset(all[rank].quotas, 0, sizeof all[rank].quotas);
    all[rank].cpus[0] = 0xff;
    int k = 0, end;
    char group;
    for (const char *at = quota_shares[_i].groups[rank];
         sscanf(at, " %c%lf%n", &group, &all[rank].quotas[k].cpus, &end) == 2; at += end)
      all[rank].quotas[k++].group = (uint64_t)group;
  }
  for (int32_t rank = 0; rank < quota_shares[_i].nranks; rank++) {
    bny_node_map found;
    ck_assert_int_eq(bny_node_map_find(all, rank, quota_shares[_i].nranks, &found), BANYAN_OK);
    ck_assert_int_eq(found.threads, quota_shares[_i].threads[rank]);
    ck_assert_int_eq(found.quota_cpus > 0, found.threads < found.own_cpus.count);
    ck_assert_msg(fabs(found.ranks_per_core - quota_shares[_i].ranks_per_core) < 1e-9, "%g ranks per core",
                  found.ranks_per_core);
    bny_node_map_free(&found);
  }
}

/* ---- settings that are wrong on one rank ------------------------------------------------------------------------- */

TEST(a_wrong_setting_is_reported_to_all) {
  bny_facts all[RANKS];
  banyan_bootstrap bootstrap = {.size = sizeof bootstrap, .nranks = RANKS};
  for (int32_t rank = 0; rank < RANKS; rank++) all[rank] = facts_of(rank, rank == 2 ? "a,b" : NULL);
  for (bootstrap.rank = 0; bootstrap.rank < RANKS; bootstrap.rank++) {
    ASSERT_FAILS(bny_facts_compare(all, &bootstrap), BANYAN_ERR_ARGUMENT, "BANYAN_NODE");
    ck_assert_int_eq(strstr(banyan_last_error(), "rank 2: ") != NULL, bootstrap.rank != 2);
  }
}

/* Each process has its own environment. The other ranks get the error at once, not at their deadline. */
static void create_with_one_wrong(world_rank *self) {
  const char *name = self->argument;
  banyan_comm_config config = BANYAN_COMM_CONFIG_INIT;
  if (self->rank == 1) setenv(name, "a name that is longer than any name of this kind need be by far", 1);
  if (self->rank == 1 && strcmp(name, "config.threads") == 0) config.threads = -1;
  if (self->rank == 1 && strcmp(name, "config.size") == 0) config.size = 0;
  double begun = world_now_s();
  banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
  world_check(self,
              status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), name) &&
                  (self->rank == 1 || strstr(banyan_last_error(), "rank 1: ")),
              "%s: %s", banyan_status_string(status), banyan_last_error());
  world_check(self, world_now_s() - begun < 10, "it took %.1f s", world_now_s() - begun);
}

TEST_LOOP(nobody_waits_for_a_rank_with_wrong_settings, 5) {
  static const char *const names[] = {"BANYAN_NODE", "BANYAN_LEVELS", "BANYAN_ARENA_KIB", "config.threads",
                                      "config.size"};
  WORLD_RUN(create_with_one_wrong, .nranks = 3, .processes = true, .bare = true,
            .argument = (void *)(uintptr_t)names[_i]);
}

int main(void) { return world_main(suite_with("facts", 60, NULL, drop_kept)); }
