/* SPDX-License-Identifier: Apache-2.0
 * banyan-topo --measure. Made-up numbers test the judgement. Short real measurements run undisturbed, with one CPU,
 * and with ranks that die, stop or are interrupted. */
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "tools/topo/measure/measure.h"
#include "tests/topo/topo_sysfs.h"
#include "tests/topo/topo_util.h"

static const double line_ns = 100, message_ns = 2000, take_ns = 800, small_speed = 20, large_speed = 10;

/* ---- judging ----------------------------------------------------------------------------------------------------- */

/* Makes equal measurements for all pairs of CPUs 10, 11 and so on. Ranks of a group share a third-level cache. */
static topo_measured *alike(int32_t nranks, int32_t ranks_of_group) {
  topo_measured *measured = tool_new(1, sizeof *measured);
  measured->nranks = measured->nallowed = nranks;
  measured->ranks = tool_new((size_t)nranks, sizeof *measured->ranks);
  for (int32_t r = 0; r < nranks; r++) {
    topo_place place = {.cpu = 10 + r, .core = 10 + r, .l2 = 10 + r, .l3 = r / ranks_of_group, .numa = 0, .package = 0};
    measured->ranks[r] = (topo_measured_rank){.place = place, .nblocks = 9, .small = 30, .large = 15};
  }
  measured->pairs = topo_pairs_choose(measured->ranks, nranks, INT32_MAX, &measured->npairs);
  measured->npairs_possible = measured->npairs;
  for (int32_t p = 0; p < measured->npairs; p++) {
    topo_measured_pair *pair = &measured->pairs[p];
    double far = pair->near == TOPO_NEAR_L3 ? 1 : 3;
    pair->nblocks = 9;
    pair->value[TOPO_LINE][0] = pair->line_low = pair->line_high = line_ns * far;
    pair->value[TOPO_MESSAGE][0] = message_ns * far;
    for (int d = 0; d < 2; d++) {
      pair->value[TOPO_TAKE][d] = take_ns * far;
      pair->value[TOPO_SMALL][d] = small_speed / far;
      pair->value[TOPO_LARGE][d] = large_speed / far;
    }
  }
  return measured;
}

static topo_measured_pair *pair_of(topo_measured *measured, int32_t a, int32_t b) {
  for (int32_t p = 0; p < measured->npairs; p++)
    if (measured->pairs[p].a == a && measured->pairs[p].b == b) return &measured->pairs[p];
  ck_abort_msg("no such pair");
}

static void slow_down(topo_measured *measured, int32_t rank, double factor) {
  for (int32_t p = 0; p < measured->npairs; p++) {
    topo_measured_pair *pair = &measured->pairs[p];
    if (pair->a == rank || pair->b == rank) pair->value[TOPO_LINE][0] *= factor;
  }
}

/* Judges the measurements and expects these findings. The arguments are parts of their texts, in order. */
static void expect(topo_measured *measured, const bny_topo *topo, int32_t nfindings, ...) {
  topo_measured_judge(measured, topo);
  for (int32_t f = 0; f < measured->nfindings; f++) fprintf(stderr, "finding: %s\n", measured->findings[f].text);
  ck_assert_int_eq(measured->nfindings, nfindings);
  va_list parts;
  va_start(parts, nfindings);
  for (int32_t f = 0; f < nfindings; f++) {
    const char *part = va_arg(parts, const char *);
    ck_assert_msg(strstr(measured->findings[f].text, part) != NULL, "\"%s\" is not in \"%s\"", part,
                  measured->findings[f].text);
  }
  va_end(parts);
}

TEST(what_is_alike_is_no_finding) {
  topo_measured *measured = alike(8, 4);
  expect(measured, NULL, 0);
  const topo_measured_kind *near = &measured->kinds[TOPO_NEAR_L3], *far = &measured->kinds[TOPO_NEAR_NUMA];
  ck_assert_int_eq(near->npairs, 12);
  ck_assert_int_eq(far->npairs, 16);
  ck_assert(near->judged && far->judged && !measured->kinds[TOPO_NEAR_CORE].judged);
  ck_assert_double_eq(near->expected[TOPO_LINE], line_ns);
  ck_assert_double_eq(far->expected[TOPO_LINE], 3 * line_ns);
  ck_assert_double_eq_tol(far->expected[TOPO_LARGE], large_speed / 3, 1e-12);
  /* signal, 16 KB in 0.8 us more, 1 MiB at 20 GB/s more */
  ck_assert_double_eq_tol(near->beta, 0.05, 0.002);
  ck_assert_double_eq_tol(near->alpha, line_ns, 5);
}

TEST(a_slow_pair_is_named) {
  topo_measured *measured = alike(8, 4);
  pair_of(measured, 1, 3)->value[TOPO_LINE][0] = 2.1 * line_ns;
  expect(measured, NULL, 1,
         "CPU 11 and CPU 13: 2.1 times the latency of other pairs that share a third-level cache (210 ns, "
         "expected 100)");
  ck_assert(measured->findings[0].warning && pair_of(measured, 1, 3)->slow && !pair_of(measured, 1, 2)->slow);
}

TEST(bandwidth_of_one_direction_counts) {
  topo_measured *measured = alike(8, 8);
  pair_of(measured, 2, 5)->value[TOPO_LARGE][1] = 0.48 * large_speed;
  expect(measured, NULL, 1, "CPU 12 and CPU 15: 0.48 times the bandwidth with 16 MiB");
}

TEST(limits_are_not_slow) {
  topo_measured *measured = alike(8, 8);
  pair_of(measured, 0, 1)->value[TOPO_LINE][0] = topo_slow_latency * line_ns;
  pair_of(measured, 2, 3)->value[TOPO_SMALL][0] = 0.671 * small_speed;
  pair_of(measured, 4, 5)->value[TOPO_LINE][0] = 5 * line_ns;
  pair_of(measured, 4, 5)->nblocks = 1; /* too few blocks for a finding */
  expect(measured, NULL, 0);
  pair_of(measured, 2, 3)->value[TOPO_SMALL][0] = 0.66 * small_speed;
  pair_of(measured, 4, 5)->nblocks = TOPO_JUDGED_BLOCKS;
  expect(measured, NULL, 2, "CPU 14 and CPU 15: 5.0 times", "CPU 12 and CPU 13: 0.66 times");
}

TEST(a_slow_rank_is_named_once) {
  for (int32_t nranks = 4; nranks <= 16; nranks += 4) {
    topo_measured *measured = alike(nranks, nranks);
    slow_down(measured, 2, 2.5);
    expect(measured, NULL, 1, "CPU 12: 2.5 times the latency of other CPUs, with each of the");
    ck_assert(measured->ranks[2].slow && !measured->ranks[1].slow);
    ck_assert_double_eq(measured->kinds[TOPO_NEAR_L3].expected[TOPO_LINE], line_ns);
  }
}

TEST(slow_ranks_and_a_slow_pair) {
  topo_measured *measured = alike(12, 4);
  slow_down(measured, 0, 4);
  slow_down(measured, 7, 2);
  pair_of(measured, 3, 9)->value[TOPO_LINE][0] *= 1.8;
  expect(measured, NULL, 3, "CPU 10: 4.0 times", "CPU 17: 2.0 times", "CPU 13 and CPU 19: 1.8 times");
}

TEST(few_pairs_are_not_judged) {
  for (int32_t nranks = 1; nranks <= 2; nranks++) {
    topo_measured *measured = alike(nranks, 2);
    slow_down(measured, 0, 9);
    expect(measured, NULL, 0);
    ck_assert(!measured->kinds[TOPO_NEAR_L3].judged);
  }
}

TEST(own_memory_is_judged) {
  topo_measured *measured = alike(8, 4);
  measured->ranks[5].large = 6;
  expect(measured, NULL, 1, "CPU 15 copies 16 MiB of its own at 6 GB/s, others at 15");
}

TEST(what_changes_is_noted) {
  topo_measured *measured = alike(4, 4);
  pair_of(measured, 0, 1)->line_high = 4 * line_ns;
  measured->ranks[3].ntaken = 100;
  measured->ranks[3].ndisturbed = 40;
  expect(measured, NULL, 2, "1 of 6 pairs changed while they were measured, CPU 10 and CPU 11 most",
         "most on CPU 13, which lost 40 % of its samples");
  ck_assert(!measured->findings[0].warning && !measured->findings[1].warning);
}

TEST(links_are_held_against_the_model) {
  bny_topo *topo = topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "host", NULL), from = put(topo, BNY_TOPO_PACKAGE, host, "package0", NULL);
  int32_t to = put(topo, BNY_TOPO_PACKAGE, host, "package1", NULL), link = join(topo, BNY_TOPO_LINK_SYS, from, to, 40);
  topo_measured *measured = alike(4, 4);
  measured->nlinks = 1;
  measured->links = calloc(1, sizeof *measured->links);
  measured->links[0] = (topo_measured_link){.link = link,
                                            .from = from,
                                            .to = to,
                                            .nreaders = 8,
                                            .nblocks = 5,
                                            .line = 250,
                                            .expected = 40,
                                            .expected_source = BNY_TOPO_PROBED,
                                            .value = {39, 12}};
  expect(measured, topo, 1,
         "package0 and package1: 8 CPUs read 12 GB/s from each other's memory at once, where 40 are expected");
  ck_assert(measured->findings[0].warning);
  topo_measured_apply(measured, topo);
  ck_assert_int_eq(topo->links[link].source, BNY_TOPO_MEASURED);
  ck_assert_double_eq(topo->links[link].gbytes_per_s, 12);
  ck_assert_double_eq(topo->links[link].latency_us, 0.25);
  char *text = topo_measured_text(measured, topo, false, 100);
  ck_assert_ptr_nonnull(strstr(text, "package0 and package1: 39 and 12 GB/s, expected 40 (probed)"));
}

/* alike() has 100 ns and 0.05 ns a byte within a kind, and three times that between kinds. */
TEST(plans_are_held_against_it) {
  topo_measured *measured = alike(2, 2);
  measured->planned[TOPO_NEAR_L3] = (topo_cost){100, 0.05};
  expect(measured, NULL, 0);
  ck_assert_double_eq_tol(topo_measured_against_plan(measured, TOPO_NEAR_L3), 1, 0.05);
  ck_assert(topo_measured_against_plan(measured, TOPO_NEAR_NUMA) == 0); /* no pair and no planned cost */
  measured->planned[TOPO_NEAR_L3] = (topo_cost){80, 0.03};
  expect(measured, NULL, 1, "pairs that share a third-level cache: 1.7 times the time that plans assume");
  ck_assert(!measured->findings[0].warning);

  measured = alike(2, 2); /* too few pairs to compare, so the difference is a warning */
  measured->planned[TOPO_NEAR_L3] = (topo_cost){80, 0.02};
  expect(measured, NULL, 1, "2.5 times the time that plans assume");
  ck_assert(measured->findings[0].warning);
  char *text = topo_measured_text(measured, NULL, false, 100);
  ck_assert_ptr_nonnull(strstr(text, "expected by plans:          alpha 80 ns + n * beta 0.0200 ns"));

  measured = alike(8, 8); /* all pairs are equally near, so there is no slow kind */
  measured->planned[TOPO_NEAR_L3] = (topo_cost){80, 0.02};
  expect(measured, NULL, 1, "2.5 times the time that plans assume");
  ck_assert(!measured->findings[0].warning);
}

TEST(text_keeps_to_its_width) {
  topo_measured *measured = alike(16, 8);
  pair_of(measured, 2, 5)->value[TOPO_LINE][0] = 7 * line_ns;
  expect(measured, NULL, 1, "CPU 12 and CPU 15: 7.0 times");
  char *text = topo_measured_text(measured, NULL, false, 80), *rest = text;
  ck_assert(strstr(text, "\033") == NULL && strstr(text, "  700") != NULL && strstr(text, "slow       CPU 12") != NULL);
  for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n"))
    ck_assert_msg(strlen(line) <= 80, "%zu columns: %s", strlen(line), line);
  text = topo_measured_text(measured, NULL, true, 90);
  ck_assert_ptr_nonnull(strstr(text, "\033[31m  700\033[0m"));
}

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

TEST(samples_have_every_kind) {
  enum { RANKS = 256, MOST = 60 };
  topo_measured_rank *ranks = tool_new(RANKS, sizeof *ranks);
  for (int32_t r = 0; r < RANKS; r++) {
    /* threads: 2 per core, 8 per third-level cache, 32 per NUMA node, 128 per package */
    ranks[r].place =
        (topo_place){.cpu = r, .core = r / 2 * 2, .l2 = r / 2 * 2, .l3 = r / 8 * 8, .numa = r / 32, .package = r / 128};
  }
  int32_t npairs, counts[TOPO_NEARS] = {0}, used[RANKS] = {0}, most = 0;
  topo_measured_pair *pairs = topo_pairs_choose(ranks, RANKS, MOST, &npairs);
  ck_assert_int_eq(npairs, MOST);
  for (int32_t p = 0; p < npairs; p++) {
    ck_assert(pairs[p].a < pairs[p].b &&
              pairs[p].near == topo_near_between(&ranks[pairs[p].a].place, &ranks[pairs[p].b].place));
    counts[pairs[p].near]++;
    used[pairs[p].a]++;
    used[pairs[p].b]++;
    for (int32_t q = 0; q < p; q++) ck_assert(pairs[p].a != pairs[q].a || pairs[p].b != pairs[q].b);
  }
  for (int32_t r = 0; r < RANKS; r++) most = used[r] > most ? used[r] : most;
  ck_assert_int_le(most, 2);
  ck_assert_int_eq(counts[TOPO_NEAR_L2], 0); /* those pairs all share a core */
  ck_assert_int_eq(counts[TOPO_NEAR_CORE], MOST / 5);
  ck_assert_int_eq(counts[TOPO_NEAR_SYSTEM], MOST / 5);
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

TEST(two_ranks_are_measured) {
  if (cpus_allowed() < 2) return;
  tree t = make_packages();
  bny_topo *topo = topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "host", NULL);
  for (int32_t i = 0; i < 2; i++) topo->nodes[put(topo, BNY_TOPO_PACKAGE, host, "package", NULL)].index = 2 * i;
  join(topo, BNY_TOPO_LINK_SYS, 1, 2, 16);
  topo_measure_options options = {.ranks = 2, .seconds = 0.4, .sysfs = t.root};
  tool_error error = {.text = ""};
  int64_t begin = tool_now_ns();
  topo_measured *measured = topo_measure(&options, topo, &error);
  double seconds = (double)(tool_now_ns() - begin) / 1e9;
  ck_assert_msg(measured != NULL, "%s", error.text);
  ck_assert_msg(seconds < 10, "%g s", seconds);
  assert_nothing_left();
  ck_assert(measured->nranks == 2 && measured->npairs == 1 && measured->nlinks == 1);
  const topo_measured_pair *pair = &measured->pairs[0];
  ck_assert(pair->near == TOPO_NEAR_SYSTEM && pair->nblocks >= 1 && measured->links[0].nreaders == 1);
  double line = pair->value[TOPO_LINE][0];
  ck_assert_msg(line > 5, "%g ns", line);
  ck_assert(pair->value[TOPO_MESSAGE][0] > 100);
  for (int d = 0; d < 2; d++) {
    for (int m = TOPO_SMALL; m <= TOPO_LARGE; m++) {
      double value = pair->value[m][d];
      ck_assert_msg(value > 0.001 && value < 2000, "%g GB/s", value);
    }
    /* the copy ran, because no core copies 16 KB at 270 GB/s */
    ck_assert_msg(pair->value[TOPO_TAKE][d] > 60, "%g ns", pair->value[TOPO_TAKE][d]);
  }
  char *text = topo_measured_text(measured, topo, false, 100);
  ck_assert(strstr(text, "between packages, 1 pair") != NULL && strstr(text, "no CUDA") != NULL);
  topo_measured_apply(measured, topo);
  bool whole = measured->links[0].nblocks > 0 && measured->nallowed == 2;
  ck_assert_int_eq(topo->links[0].source, whole ? BNY_TOPO_MEASURED : BNY_TOPO_ASSUMED);
}

TEST(one_cpu_has_no_pairs) {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &set) && kept++ > 0) CPU_CLR(cpu, &set);
  ck_assert_int_eq(sched_setaffinity(0, sizeof set, &set), 0);
  topo_measure_options options = {.seconds = 0.1};
  tool_error error = {.text = ""};
  topo_measured *measured = topo_measure(&options, NULL, &error);
  ck_assert_msg(measured != NULL, "%s", error.text);
  ck_assert(measured->nranks == 1 && measured->npairs == 0 && measured->ranks[0].small > 0);
  char *text = topo_measured_text(measured, NULL, false, 100);
  ck_assert_ptr_nonnull(strstr(text, "nothing to measure between ranks"));
  options.ranks = 2;
  ck_assert_ptr_null(topo_measure(&options, NULL, &error));
  ck_assert_ptr_nonnull(strstr(error.text, "2 ranks cannot be measured on 1 CPU"));
  assert_nothing_left();
}

/* The loop index selects whether a rank is killed or stopped. */
TEST_LOOP(ranks_that_fail_are_noticed, 2) {
  int sent = _i == 0 ? SIGKILL : SIGSTOP;
  topo_place *places;
  int32_t count;
  tool_error error = {.text = ""};
  ck_assert(topo_places(NULL, &places, &count, &error));
  topo_measured_rank measured[2] = {{.place = places[0]}, {.place = places[count > 1]}};
  topo_ranks ranks;
  ck_assert_msg(topo_ranks_start(&ranks, measured, 2, &error), "%s", error.text);
  ranks.patience_ns = 300000000;
  ck_assert_int_eq(kill(ranks.pids[1], sent), 0);
  int32_t who[2] = {0, 1};
  topo_order orders[2] = {{.job = TOPO_JOB_PAIR, .peer = 1, .leads = true}, {.job = TOPO_JOB_PAIR, .peer = 0}};
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
  static const int signals[] = {SIGINT, SIGTERM, SIGKILL};
  pid_t pid = fork();
  if (pid == 0) {
    for (int i = 0; i < 3; i++) signal(signals[i], SIG_DFL);
    topo_measure_options options = {.seconds = 20};
    tool_error error;
    for (;;) topo_measure(&options, NULL, &error);
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
