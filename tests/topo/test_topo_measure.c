/* SPDX-License-Identifier: Apache-2.0
 * banyan-topo --save-costs. Short real measurements run undisturbed, with one CPU, and with ranks that die, stop or are
 * interrupted. */
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "tools/topo/measure/measure.h"
#include "tests/topo/topo_sysfs.h"
#include "tests/topo/topo_util.h"

TEST(lines_are_fitted) {
  double alpha = -1, beta = -1, bytes[] = {64, 16384, 1048576}, times[3];
  for (int i = 0; i < 3; i++) times[i] = 250 + 0.04 * bytes[i];
  ck_assert(topo_measure_fit(bytes, times, 3, &alpha, &beta));
  ck_assert_double_eq_tol(alpha, 250, 1e-6);
  ck_assert_double_eq_tol(beta, 0.04, 1e-9);
  times[1] = 0;
  ck_assert(!topo_measure_fit(bytes, times, 3, &alpha, &beta));
  times[1] = INFINITY;
  ck_assert(!topo_measure_fit(bytes, times, 3, &alpha, &beta));
  times[1] = 1000;
  ck_assert(!topo_measure_fit(bytes, times, 1, &alpha, &beta));
}

/* ---- pairs and localities ---------------------------------------------------------------------------------------- */

TEST(each_kind_has_pairs) {
  enum { RANKS = 256 };
  topo_place *places = tool_new(RANKS, sizeof *places);
  for (int32_t r = 0; r < RANKS; r++) {
    /* threads: 2 per core, 8 per third-level cache, 32 per NUMA node, 128 per package */
    places[r] =
        (topo_place){.cpu = r, .core = r / 2 * 2, .l2 = r / 2 * 2, .l3 = r / 8 * 8, .numa = r / 32, .package = r / 128};
  }
  int32_t npairs, counts[TOPO_NEARS] = {0};
  topo_pair *pairs = topo_pairs_choose(places, RANKS, &npairs);
  for (int32_t p = 0; p < npairs; p++) {
    ck_assert(pairs[p].a < pairs[p].b && pairs[p].near == topo_near_between(&places[pairs[p].a], &places[pairs[p].b]));
    counts[pairs[p].near]++;
    for (int32_t q = 0; q < p; q++) ck_assert(pairs[p].a != pairs[q].a || pairs[p].b != pairs[q].b);
  }
  for (int near = 0; near < TOPO_NEARS; near++) /* pairs of one second-level cache all share a core */
    ck_assert_int_eq(counts[near], near == TOPO_NEAR_L2 ? 0 : TOPO_PAIRS_OF_KIND);
  ck_assert(pairs[0].near == TOPO_NEAR_CORE && pairs[4].near == TOPO_NEAR_SYSTEM);
  pairs = topo_pairs_choose(places, 3, &npairs);
  ck_assert_int_eq(npairs, 3);
}

/* Makes a /sys in which each CPU has its own package and NUMA node. */
static tree make_packages(void) {
  tree t = tree_new();
  topo_place *places;
  int32_t count;
  tool_error error;
  ck_assert(topo_places(NULL, &places, &count, &error));
  for (int32_t i = 0; i < count; i++) {
    char cpu[64], text[32];
    snprintf(cpu, sizeof cpu, "devices/system/cpu/cpu%d", places[i].cpu);
    snprintf(text, sizeof text, "%d-%d", 2 * i, 2 * i + 1);
    tree_file(&t, text, "%s/topology/thread_siblings_list", cpu);
    tree_file(&t, text, "%s/topology/physical_package_id", cpu);
    tree_file(&t, "1", "%s/cache/index0/level", cpu);
    tree_file(&t, "3", "%s/cache/index1/level", cpu);
    tree_file(&t, text, "%s/cache/index1/shared_cpu_list", cpu);
    tree_file(&t, "0", "%s/node%d/cpulist", cpu, 3 * i);
  }
  return t;
}

TEST(places_are_read) {
  topo_place *places;
  int32_t count;
  tool_error error;
  tree t = make_packages();
  ck_assert(topo_places(t.root, &places, &count, &error));
  for (int32_t i = 0; i < count; i++) {
    const topo_place *place = &places[i];
    ck_assert(place->core == 2 * i && place->l2 == -1 && place->l3 == 2 * i && place->package == 2 * i &&
              place->numa == 3 * i);
    ck_assert_int_eq(topo_near_between(place, &places[0]), i == 0 ? TOPO_NEAR_CORE : TOPO_NEAR_SYSTEM);
  }
  ck_assert(topo_places("/nonexistent", &places, &count, &error)); /* without /sys all CPUs are in one machine */
  ck_assert(places[0].core == -1 && topo_near_between(&places[0], &places[count - 1]) == TOPO_NEAR_NUMA);
}

/* ---- real measurements ------------------------------------------------------------------------------------------ */

static int32_t cpus_allowed(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static void assert_nothing_left(void) {
  sigset_t mask;
  ck_assert(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
  ck_assert(sigprocmask(SIG_BLOCK, NULL, &mask) == 0 && !sigismember(&mask, SIGINT) && !sigismember(&mask, SIGTERM));
}

TEST(pairs_are_measured) {
  if (cpus_allowed() < 2) return;
  tree t = make_packages();
  topo_measured measured;
  tool_error error = {.text = ""};
  int64_t begin = tool_now_ns();
  ck_assert_msg(topo_measure(t.root, 0.4, &measured, &error), "%s", error.text);
  double seconds = (double)(tool_now_ns() - begin) / 1e9;
  ck_assert_msg(seconds < 10, "%g s", seconds);
  assert_nothing_left();
  const topo_measured_kind *kind = &measured.kinds[TOPO_NEAR_SYSTEM];
  ck_assert(measured.nsweeps >= 1 && kind->npairs >= 1 && measured.kinds[TOPO_NEAR_NUMA].npairs == 0);
  /* The copy ran, because no core copies at 2000 GB/s. */
  ck_assert_msg(kind->beta_ns_per_byte > 1 / 2000.0 && kind->beta_ns_per_byte < 1000, "%g", kind->beta_ns_per_byte);
}

TEST(one_cpu_has_no_pairs) {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &set) && kept++ > 0) CPU_CLR(cpu, &set);
  ck_assert_int_eq(sched_setaffinity(0, sizeof set, &set), 0);
  topo_measured measured;
  tool_error error = {.text = ""};
  ck_assert(!topo_measure(NULL, 0.1, &measured, &error));
  ck_assert_ptr_nonnull(strstr(error.text, "cannot be measured on 1 CPU"));
  assert_nothing_left();
}

/* The loop index selects whether a rank is killed or stopped. */
TEST_LOOP(ranks_that_fail_are_noticed, 2) {
  int sent = _i == 0 ? SIGKILL : SIGSTOP;
  topo_place *places;
  int32_t count;
  tool_error error = {.text = ""};
  ck_assert(topo_places(NULL, &places, &count, &error));
  topo_place two[2] = {places[0], places[count > 1]};
  topo_ranks ranks;
  ck_assert_msg(topo_ranks_start(&ranks, two, 2, &error), "%s", error.text);
  ranks.patience_ns = 300000000;
  ck_assert_int_eq(kill(ranks.pids[1], sent), 0);
  int32_t who[2] = {0, 1};
  topo_order orders[2] = {{.peer = 1, .leads = true}, {.peer = 0}};
  int64_t begin = tool_now_ns();
  ck_assert(!topo_ranks_do(&ranks, who, orders, 2, &error));
  ck_assert(tool_now_ns() - begin < 5000000000);
  ck_assert_msg(strstr(error.text, _i == 0 ? "was ended by signal 9" : "did not answer within 0.3 s") != NULL, "%s",
                error.text);
  topo_ranks_stop(&ranks);
  assert_nothing_left();
}

/* Returns the children of a process, separated by spaces. */
static void children_of(pid_t pid, char text[256]) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
  FILE *stream = fopen(path, "r");
  size_t bytes = stream == NULL ? 0 : fread(text, 1, 255, stream);
  text[bytes] = '\0';
  if (stream != NULL) fclose(stream);
}

static void sleep_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

TEST_LOOP(signals_leave_nothing, 3) {
  if (cpus_allowed() < 2) return;
  static const int signals[] = {SIGINT, SIGTERM, SIGKILL};
  pid_t pid = fork();
  if (pid == 0) {
    for (int i = 0; i < 3; i++) signal(signals[i], SIG_DFL);
    topo_measured measured;
    tool_error error;
    for (;;) topo_measure(NULL, 20, &measured, &error);
  }
  char children[256] = "";
  for (int i = 0; i < 100 && children[0] == '\0'; i++) {
    sleep_ms(30);
    children_of(pid, children);
  }
  int how;
  ck_assert_int_eq(kill(pid, signals[_i]), 0);
  ck_assert_int_eq(waitpid(pid, &how, 0), pid);
  ck_assert(WIFSIGNALED(how) && WTERMSIG(how) == signals[_i]);
  char *rest = children;
  for (long child; (child = strtol(rest, &rest, 10)) > 0;) {
    bool gone = false;
    for (int i = 0; i < 100 && !gone; i++) {
      char path[64], state = 'Z';
      snprintf(path, sizeof path, "/proc/%ld/stat", child);
      FILE *stream = fopen(path, "r");
      if (stream != NULL && fscanf(stream, "%*d %*s %c", &state) != 1)
        state = 'Z'; /* reaped between fopen and fscanf */
      if (stream != NULL) fclose(stream);
      gone = state == 'Z' || state == 'X';
      if (!gone) sleep_ms(20);
    }
    ck_assert_msg(gone, "process %ld is still there", child);
  }
}

int main(void) { return suite_main(suite_with("topo_measure", 30, NULL, drop_kept)); }
