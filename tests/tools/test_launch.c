/* SPDX-License-Identifier: Apache-2.0
 * The local launcher. This program starts copies of itself as ranks, which find each other. */
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "tools/common/launch.h"
#include "banyan.h"
#include "tests/support/suite.h"
#include "tests/support/clock.h"

enum { STATUS_UNLIKELY = 7, STATUS_WRONG = 9 };

/* ---- as a rank --------------------------------------------------------------------------------------------------- */

/* Gathers the ranks and the CPUs that each may use. Returns the exit status. */
static int gather(int rank, bool pinned, bool on_node) {
  struct {
    int rank;
    cpu_set_t cpus;
  } mine = {.rank = rank}, all[8];
  banyan_env *env;
  banyan_bootstrap bootstrap;
  sched_getaffinity(0, sizeof mine.cpus, &mine.cpus);
  if (banyan_env_create((int64_t)10e9, &env, &bootstrap) != BANYAN_OK) {
    fprintf(stderr, "rank %d: %s\n", rank, banyan_last_error());
    return STATUS_WRONG;
  }
  int failed = bootstrap.allgather(bootstrap.context, &mine, all, sizeof mine, (int64_t)10e9);
  for (int i = 0; i < bootstrap.nranks && !failed; i++) {
    failed = all[i].rank != i;
    if (!pinned) continue;
    bool same = i > 0 && CPU_EQUAL(&all[i].cpus, &all[i - 1].cpus);
    failed = failed || CPU_COUNT(&all[i].cpus) != 1 || (i > 0 && same != (atoi(getenv("TEST_CPUS")) == 1));
  }
  banyan_env_destroy(env);
  int nodes = atoi(getenv("TEST_NODES"));
  if (on_node && bny_launch_nodes() != (bootstrap.nranks < nodes ? nodes : 1)) return STATUS_WRONG;
  return failed ? STATUS_WRONG : 0;
}

/* One rank exits between create and all-gather. The others notice and end a little later. */
static int notice(int rank) {
  banyan_env *env;
  banyan_bootstrap bootstrap;
  int all[8];
  if (banyan_env_create((int64_t)10e9, &env, &bootstrap) != BANYAN_OK) return STATUS_WRONG;
  if (rank == 2) exit(STATUS_UNLIKELY);
  int failed = bootstrap.allgather(bootstrap.context, &rank, all, sizeof rank, (int64_t)10e9);
  banyan_env_destroy(env);
  sleep_s(0.3);
  return failed ? 1 : STATUS_WRONG;
}

static int play_rank(int argc, char **argv) {
  int rank = atoi(getenv("RANK"));
  const char *what = argc > 1 ? argv[1] : "";
  if (!getenv("LOCAL_RANK") || atoi(getenv("LOCAL_RANK")) != rank || !bny_launch_env_present()) return STATUS_WRONG;
  if (strcmp(what, "gather") == 0) return gather(rank, false, false);
  if (strcmp(what, "pinned") == 0) return gather(rank, true, false);
  if (strcmp(what, "node") == 0) return gather(rank, false, true);
  if (strcmp(what, "notice") == 0) return notice(rank);
  if (strcmp(what, "crash") == 0 && rank == 1) raise(SIGKILL);
  if (strcmp(what, "stubborn") == 0) {
    signal(SIGTERM, SIG_IGN);
    if (rank == 1) return STATUS_UNLIKELY;
  }
  sleep_s(60);
  return STATUS_WRONG;
}

/* ---- as the test ------------------------------------------------------------------------------------------------- */

/* Starts a launcher in its own process. Every rank holds the write end of *alive. */
static pid_t launch(int nranks, const char *what, bny_launch_binding binding, int *alive) {
  int ends[2];
  ck_assert_int_eq(pipe(ends), 0);
  fflush(NULL);
  pid_t pid = fork();
  ck_assert_int_ge(pid, 0);
  if (pid == 0) {
    char *argv[] = {(char *)(uintptr_t) "test_launch", (char *)(uintptr_t)what, NULL};
    char count[16];
    cpu_set_t cpus;
    close(ends[0]);
    sched_getaffinity(0, sizeof cpus, &cpus);
    snprintf(count, sizeof count, "%d", CPU_COUNT(&cpus));
    setenv("TEST_CPUS", count, 1);
    snprintf(count, sizeof count, "%d", bny_launch_nodes());
    setenv("TEST_NODES", count, 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1); /* set by an outer launcher: must not matter */
    setenv("BANYAN_PORT", "1", 1);
    setenv("BANYAN_SECRET_FILE", "/no/such/file", 1);
    _exit(bny_launch_local(nranks, argv, binding));
  }
  close(ends[1]);
  *alive = ends[0];
  return pid;
}

/* Returns the exit status of the launcher. Every rank must end soon after. */
static int finish(pid_t pid, int alive) {
  int how;
  char nothing;
  ck_assert_int_eq(waitpid(pid, &how, 0), pid);
  double before = now_s();
  ck_assert_int_eq(read(alive, &nothing, 1), 0); /* blocks while any rank lives */
  ck_assert_msg(now_s() - before < 30, "ranks, which sleep for 60 s, lived on for %g s", now_s() - before);
  close(alive);
  return WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
}

TEST_LOOP(ranks_find_each_other, 7) {
  static const struct {
    int nranks;
    const char *what;
    bny_launch_binding binding;
  } cases[] = {{1, "gather", BNY_LAUNCH_FREE}, {2, "gather", BNY_LAUNCH_FREE}, {5, "gather", BNY_LAUNCH_FREE},
               {2, "pinned", BNY_LAUNCH_CPU},  {3, "pinned", BNY_LAUNCH_CPU},  {2, "node", BNY_LAUNCH_NODE},
               {5, "node", BNY_LAUNCH_NODE}};
  int alive;
  pid_t pid = launch(cases[_i].nranks, cases[_i].what, cases[_i].binding, &alive);
  ck_assert_int_eq(finish(pid, alive), 0);
}

TEST(first_failure_is_the_status) {
  int alive;
  double before = now_s();
  pid_t pid = launch(4, "notice", BNY_LAUNCH_FREE, &alive);
  ck_assert_int_eq(finish(pid, alive), STATUS_UNLIKELY);
  ck_assert_msg(now_s() - before < 9, "took %g s, and ranks wait for 10 s", now_s() - before);
}

/* The other ranks do not notice. After 5 s they get SIGTERM, and SIGKILL if they ignore that. Both wait at once. */
TEST(ends_those_who_do_not_notice) {
  static const char *const kinds[] = {"crash", "stubborn"};
  int alive[2];
  pid_t pids[2];
  double before = now_s();
  for (int i = 0; i < 2; i++) pids[i] = launch(3, kinds[i], BNY_LAUNCH_FREE, &alive[i]);
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(finish(pids[i], alive[i]), i ? STATUS_UNLIKELY : 128 + SIGKILL);
    double took = now_s() - before;
    ck_assert_msg(took > 4.9 && took < (i ? 9 : 7), "took %g s", took);
  }
}

TEST_LOOP(a_signal_ends_all, 3) {
  static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
  int alive;
  pid_t pid = launch(3, "sleep", BNY_LAUNCH_FREE, &alive);
  sleep_s(0.3);
  double before = now_s();
  kill(pid, signals[_i]);
  ck_assert_int_eq(finish(pid, alive), 128 + signals[_i]);
  ck_assert_msg(now_s() - before < 30, "took %g s", now_s() - before);
}

TEST(ranks_end_with_the_launcher) {
  int alive;
  pid_t pid = launch(3, "sleep", BNY_LAUNCH_FREE, &alive);
  sleep_s(0.3);
  kill(pid, SIGKILL);
  ck_assert_int_eq(finish(pid, alive), -SIGKILL);
}

TEST(rejects_impossible_numbers) {
  char *argv[] = {NULL};
  ck_assert_int_eq(bny_launch_local(0, argv, BNY_LAUNCH_FREE), 127);
  ck_assert_int_eq(bny_launch_local(-1, argv, BNY_LAUNCH_FREE), 127);
  ck_assert_int_eq(bny_launch_local(1000000, argv, BNY_LAUNCH_FREE), 127);
}

/* Two programs of one rank each, on one machine. */
TEST(pinned_programs_take_different_cpus) {
  int cpus[2] = {-1, -1}, back[2];
  pid_t pids[2];
  cpu_set_t allowed, mine;
  ck_assert_int_eq(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(pipe(back), 0);
    if ((pids[i] = fork()) == 0) {
      bny_launch_pin(0);
      sched_getaffinity(0, sizeof mine, &mine);
      for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &mine) && write(back[1], &cpu, sizeof cpu) > 0) break;
      pause();
    }
    ck_assert_int_eq(read(back[0], &cpus[i], sizeof cpus[i]), sizeof cpus[i]);
  }
  for (int i = 0; i < 2; i++) {
    kill(pids[i], SIGKILL);
    waitpid(pids[i], NULL, 0);
  }
  ck_assert_int_eq(cpus[0] != cpus[1], CPU_COUNT(&allowed) > 1);
}

TEST(reads_the_environment) {
  static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK"};
  for (int i = 0; i < 3; i++) unsetenv(names[i]);
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  ck_assert(!bny_launch_env_present() && !bny_launch_under_mpi() && !bny_launch_is_rank());
  setenv("RANK", "0", 1);
  ck_assert(bny_launch_env_present());
  setenv("WORLD_SIZE", "1", 1);
  ck_assert(bny_launch_env_present());
  unsetenv("RANK");
  ck_assert(bny_launch_env_present());
  for (int i = 0; i < 3; i++) {
    setenv(names[i], "1", 1);
    ck_assert(bny_launch_under_mpi());
    unsetenv(names[i]);
  }
}

int main(int argc, char **argv) {
  if (bny_launch_is_rank()) return play_rank(argc, argv);
  return suite_main(suite_of("launch", 60));
}
