/* SPDX-License-Identifier: Apache-2.0
 * Bootstrap over TCP: the id, launcher, user and secret decide which processes belong to one job. */
#include <endian.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/mman.h>

#include "banyan.h"
#include "boot/tcp.h"

#include "tests/boot/ranks.h"
#include "tests/support/directory.h"

/* It ends at once: the last rank starts only when it has. */
TEST(rejects_a_second_process_of_a_rank) {
  struct part part = {.nranks = 3, .secret = "x", .rounds = 1, .bytes = 8, .job = "a", .timeout_s = 50};
  static const int ranks[] = {0, 1, 1};
  for (int i = 0; i < 3; i++) {
    part.rank = ranks[i];
    start(i, part);
  }
  int rejected = finish_either(1, 2);
  part.rank = 2;
  start(3, part);
  finish(0), finish(3 - rejected), finish(3);
  assert_success(0), assert_success(3 - rejected), assert_success(3);
  ck_assert_int_eq(outcomes[rejected].create, BANYAN_ERR_BOOTSTRAP);
  assert_text(rejected, "rank 1 has already joined");
}

/* ---- two jobs at one port ---------------------------------------------------------------------------------------- */

/* Ranks of both jobs start in random order. Each job completes, one after the other. */
TEST_RANDOM(two_jobs_at_one_port_never_mix, 30) {
  enum { RANKS = 4, BOTH = 2 * RANKS };
  static const char *const jobs[] = {"a", "another"};
  int order[BOTH];
  srand((unsigned)_i);
  for (int i = 0; i < BOTH; i++) {
    int at = rand() % (i + 1);
    order[i] = order[at];
    order[at] = i;
  }
  reserve_port();
  for (int i = 0; i < BOTH; i++)
    start(order[i], (struct part){.rank = order[i] % RANKS,
                                  .nranks = RANKS,
                                  .secret = _i % 2 ? "x" : NULL,
                                  .rounds = 2,
                                  .bytes = 8,
                                  .timeout_s = 30,
                                  .job = jobs[order[i] / RANKS]});
  finish_with_success(BOTH);
}

/* Two torchruns on one node. Their jobs differ in the port alone, and these two ports map to the same port, which is
 * rare. The id is this test's, because other tests of the machine may run the same jobs. */
TEST(two_torchruns_do_not_meet) {
  enum { RANKS = 3, BOTH = 2 * RANKS };
  static const char *const jobs[] = {"a", "another"};
  struct bny_boot_settings settings[2];
  char id[16];
  snprintf(id, sizeof id, "%d", (int)getpid());
  reserve_port();
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  setenv("RANK", "1", 1), setenv("WORLD_SIZE", "3", 1), setenv("MASTER_ADDR", "127.0.0.1", 1);
  char ports[2][16] = {"29500", "29501"}; /* no process connects to them */
  setenv("TORCHELASTIC_RUN_ID", id, 1), setenv("MASTER_PORT", ports[0], 1);
  ck_assert_int_eq(bny_boot_settings_read(&settings[0]), BANYAN_OK);
  for (int other = 1; other < 65536; other++) {
    snprintf(ports[1], sizeof ports[1], "%d", other);
    setenv("MASTER_PORT", ports[1], 1);
    ck_assert_int_eq(bny_boot_settings_read(&settings[1]), BANYAN_OK);
    if (settings[1].port == settings[0].port) break;
  }
  ck_assert_int_eq(settings[1].port, settings[0].port);
  clear_environment();
  for (int i = BOTH; i-- > 0;) {
    strcpy(shown_port, ports[i / RANKS]);
    start(i, (struct part){
                 .rank = i % RANKS,
                 .nranks = RANKS,
                 .rounds = 1,
                 .bytes = 8,
                 .timeout_s = 30,
                 .job = jobs[i / RANKS],
                 .extra = {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RUN_ID", id}, {"BANYAN_JOB", ""}}});
  }
  finish_with_success(BOTH);
}

/* Rank 0 of a job whose other ranks have left rejects ranks of another job. The errors of both sides name both jobs. */
TEST(a_stale_rank_0_takes_no_new_ranks) {
  for (int rank = 0; rank < 3; rank++)
    start(rank, (struct part){.rank = rank, .nranks = 3, .job = rank ? "new" : "stale", .timeout_s = 4});
  finish_all(3);
  for (int rank = 0; rank < 3; rank++) {
    ck_assert_int_eq(outcomes[rank].create, BANYAN_ERR_TIMEOUT);
    assert_text(rank, "of job new (3 ranks, since 20");
    assert_text(rank, "of job stale (3 ranks, since 20");
  }
}

/* Without an id, a second process with the same rank shows that there are two jobs. Both fail. */
TEST_LOOP(a_rank_that_comes_twice_fails_a_job_without_id, 2) {
  int twice = _i;
  reserve_port();
  for (int i = 0; i < 3; i++)
    start(i, (struct part){.rank = i < 2 ? i : twice, .nranks = 3, .secret = "x", .timeout_s = 5});
  finish_all(3);
  for (int i = 0; i < 3; i++) ck_assert(outcomes[i].create);
  assert_text(0, twice ? "rank 1 has already joined" : "rank 0 joined twice: from a job without id (3 ranks, since 20");
  for (int i = 1; i < 3 && twice; i++) assert_text(i, "rank 1 has already joined");
  for (int i = 0; i < 3; i += 2) /* either of the two ranks 0 may listen */
    if (!twice) assert_text(i, "BANYAN_JOB");
}

/* Two jobs without an id, each with a launcher. Their ranks never meet, however late ranks of the same job come. The
 * second job has no rank 0, or one that waits for the first job's port. */
TEST_LOOP(ranks_of_two_launchers_never_meet, 2) {
  const bool has_rank_0 = _i == 0;
  const double late_s = 1.3; /* a rank must wait that long for ranks of its own launcher */
  const struct part parts[] = {{.rank = 0, .nranks = 2, .timeout_s = 8},
                               {.rank = 1, .nranks = 2, .timeout_s = 8, .wait_s = late_s},
                               {.rank = 1, .nranks = 2, .timeout_s = has_rank_0 ? 8 : 2 * late_s},
                               {.rank = 0, .nranks = 2, .timeout_s = 8, .wait_s = late_s / 2}};
  pid_t launchers[2];
  reserve_port();
  for (int l = 0; l < 2; l++) {
    int first = 2 * l, end = l == 1 && !has_rank_0 ? 3 : first + 2;
    launchers[l] = fork();
    if (launchers[l] > 0) continue;
    for (int i = first; i < end; i++) start(i, parts[i]);
    for (int i = first; i < end; i++) finish(i);
    _exit(0);
  }
  for (int l = 0; l < 2; l++) waitpid(launchers[l], NULL, 0);
  for (int i = 0; i < (has_rank_0 ? 4 : 2); i++) assert_success(i);
  if (has_rank_0) return;
  ck_assert_int_eq(outcomes[2].create, BANYAN_ERR_TIMEOUT);
}

/* Rank 0 of another launcher listens as long as this rank tries, or gives up earlier. Both errors name the variable to
 * set. */
TEST_LOOP(ranks_of_two_launchers_say_so, 2) {
  if (_i == 1) reserve_port();
  start(0, (struct part){.rank = 0, .nranks = 2, .timeout_s = _i == 1 ? 3 : 6});
  pid_t launcher = fork();
  if (launcher == 0) {
    start(1, (struct part){.rank = 1, .nranks = 2, .timeout_s = 4.5});
    finish(1);
    _exit(0);
  }
  waitpid(launcher, NULL, 0);
  finish(0);
  for (int rank = 0; rank < 2; rank++) {
    ck_assert_msg(outcomes[rank].create == BANYAN_ERR_TIMEOUT, "rank %d: %s", rank, outcomes[rank].text);
    assert_text(rank, "was started by another process than");
    assert_text(rank, "set BANYAN_JOB");
  }
}

/* A process prints its id and waits until a socket closes. Wrappers of one rank do not count as its launcher; a process
 * that starts several ranks does. */
TEST_LOOP(knows_the_launcher_behind_wrappers, 8) {
#define PROGRAM "echo $$; read x <&3"
  static const struct {
    const char *arguments[8];
    bool is_shell; /* this shell is the launcher, and not the test */
  } cases[] = {{{"sh", "-c", PROGRAM}, false},
               {{"timeout", "60", "sh", "-c", PROGRAM}, false},
               {{"env", "A=1", "timeout", "60", "sh", "-c", PROGRAM}, false},
               {{"sh", "-c", "sh -c '" PROGRAM "'; true"}, false},
               {{"sh", "-c", "(timeout 60 sh -c '" PROGRAM "'; true) & wait"}, false},
               {{"sh", "-c", "sh -c '" PROGRAM "' | cat; true"}, false},
               {{"sh", "-c", "sh -c 'read x <&3' & sh -c '" PROGRAM "' & wait"}, true},
               {{"sh", "-c", "(sh -c 'read x <&3'; true) & timeout 60 sh -c '" PROGRAM "' & wait"}, true}};
  int says[2], ends[2];
  ck_assert_int_eq(pipe(says), 0);
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends),
                   0); /* "read" makes this socket the input, like the pipe of a filter */
  pid_t top = fork();
  if (top == 0) {
    dup2(says[1], STDOUT_FILENO), dup2(ends[0], 3);
    for (int fd = 4; fd < 64; fd++) close(fd);
    execvp(cases[_i].arguments[0], (char *const *)(uintptr_t)cases[_i].arguments);
    _exit(127);
  }
  close(says[1]), close(ends[0]);
  FILE *said = fdopen(says[0], "r");
  int id = 0;
  ck_assert_int_eq(fscanf(said, "%d", &id), 1);
  int64_t launcher = bny_boot_launcher_of(id);
  close(ends[1]);
  waitpid(top, NULL, 0);
  fclose(said);
  ck_assert_int_eq(launcher, cases[_i].is_shell ? top : getpid());
#undef PROGRAM
}

/* ---- without a secret: users of one machine ---------------------------------------------------------------------- */

enum { NOBODY = 65534 };

/* Rank 1 or rank 0 runs as another user. Both ranks report it, and with a secret they connect. */
TEST_LOOP(takes_in_no_other_user, 4) {
  int other = _i % 2;
  bool has_secret = _i >= 2;
  if (geteuid() != 0) {
    printf("skipped: ranks of two users need root\n");
    return;
  }
  for (int rank = 0; rank < 2; rank++)
    start(rank, (struct part){.rank = rank,
                              .nranks = 2,
                              .secret = has_secret ? "x" : NULL,
                              .timeout_s = has_secret  ? 15
                                           : rank == 0 ? 4
                                                       : 20,
                              .rounds = 1,
                              .bytes = 8,
                              .user = rank == other ? NOBODY : 0});
  finish_all(2);
  for (int rank = 0; rank < 2 && has_secret; rank++) assert_success(rank);
  if (has_secret) return;
  ck_assert_int_eq(outcomes[0].create, BANYAN_ERR_TIMEOUT);
  assert_text(0, other ? "of user 65534, and rank 0 of user 0" : "of user 0, and rank 0 of user 65534");
  ck_assert_int_eq(outcomes[1].create, BANYAN_ERR_BOOTSTRAP);
  assert_text(1, other ? "process of user 0, and this rank of user 65534"
                       : "process of user 65534, and this rank of user 0");
  for (int rank = 0; rank < 2; rank++) assert_text(rank, "without a secret all ranks must be of one user");
}

/* In a user namespace that maps no user, or only 65534, processes of all other users look like this one's. Only a
 * secret distinguishes them. */
TEST_LOOP(takes_in_nobody_as_the_overflow_user, 4) {
  bool mapped = _i % 2, has_secret = _i >= 2;
  if (geteuid() != 0) {
    printf("skipped: a mapping of user 65534 needs root\n");
    return;
  }
  start_all((struct part){
      .nranks = 2, .secret = has_secret ? "x" : NULL, .rounds = 1, .bytes = 8, .map = mapped ? "65534 65534 1" : ""});
  finish_all(2);
  for (int rank = 0; rank < 2; rank++) {
    if (outcomes[rank].create == BANYAN_ERR_ABORTED) {
      printf("skipped: %s\n", outcomes[rank].text);
    } else if (has_secret) {
      assert_success(rank);
    } else {
      ck_assert_int_eq(outcomes[rank].create, BANYAN_ERR_ARGUMENT);
      assert_text(rank, "runs as user 65534");
      assert_text(rank, "BANYAN_SECRET");
    }
  }
}

/* ---- the secret of a file ---------------------------------------------------------------------------------------- */

static void write_file(const char *path, mode_t mode, const char *text) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(fchmod(fd, mode), 0);
  ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
  close(fd);
}

TEST_LOOP(reads_the_secret_of_a_file, 7) {
  static const struct {
    mode_t mode;
    const char *content, *text;
  } cases[] = {{0600, "the secret\n", NULL},   {0400, "the secret", NULL},     {0644, "the secret\n", "0644"},
               {0640, "the secret\n", "0640"}, {0620, "the secret\n", "0620"}, {0600, "", "empty"},
               {0600, "\n", "empty"}};
  char path[128];
  directory_make();
  snprintf(path, sizeof path, "%s/secret", directory);
  write_file(path, cases[_i].mode, cases[_i].content);
  struct part part = {.nranks = 2, .rounds = 1, .bytes = 8, .timeout_s = cases[_i].text ? 0.2 : 10};
  for (; part.rank < 2; part.rank++) {
    part.extra[0][0] = part.rank ? "BANYAN_SECRET" : "BANYAN_SECRET_FILE";
    part.extra[0][1] = part.rank ? "the secret" : path;
    start(part.rank, part);
  }
  finish_all(2);
  directory_remove();
  if (cases[_i].text) {
    ck_assert_int_eq(outcomes[0].create, BANYAN_ERR_ARGUMENT);
    assert_text(0, cases[_i].text);
  } else {
    for (int rank = 0; rank < 2; rank++) assert_success(rank);
  }
}

/* ---- a second job, and a second attempt, that look the same ------------------------------------------------------ */

/* Starts this program as a rank whose environment the kernel shows when this returns, and which comes after a while. It
 * writes its status and text to its outcome. */
static void start_program(int index, const struct part *part) {
  char place[64], late[32], nothing;
  int executes[2];
  ck_assert_int_eq(pipe2(executes, O_CLOEXEC), 0);
  pids[index] = fork();
  if (pids[index] != 0) {
    close(executes[1]);
    ck_assert_int_eq(read(executes[0], &nothing, 1), 0);
    close(executes[0]);
    return;
  }
  set_environment(part);
  snprintf(place, sizeof place, "%d %d", outcomes_fd, index);
  snprintf(late, sizeof late, "%g", part->wait_s);
  setenv("BANYAN_TEST_OUTCOME", place, 1), setenv("BANYAN_TEST_WAIT", late, 1);
  execl("/proc/self/exe", "a rank", (char *)NULL);
  _exit(127);
}

static int be_program(const char *place) {
  int memory, index;
  if (sscanf(place, "%d %d", &memory, &index) != 2) return 1;
  outcomes = map_outcomes(memory);
  struct outcome *outcome = &outcomes[index];
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  sleep_s(atof(getenv("BANYAN_TEST_WAIT")));
  outcome->create = banyan_env_create(6000000000, &env, &bootstrap);
  if (!outcome->create) outcome->gather = rounds_gather(&bootstrap, 8, 1, 6, &outcome->wrong);
  strncpy(outcome->text, banyan_last_error(), sizeof outcome->text - 1);
  banyan_env_destroy(env);
  return 0;
}

/* Rank 0 of one job meets rank 1 of the other. Their other ranks come when both would have begun to combine, or never.
 * None of the ranks may meet. */
TEST_LOOP(jobs_without_id_of_one_launcher_never_mix, 2) {
  const double late_s = _i ? 60 : 1.5;
  const struct part parts[] = {{.rank = 0, .nranks = 2},
                               {.rank = 1, .nranks = 2, .wait_s = late_s},
                               {.rank = 0, .nranks = 2, .wait_s = late_s},
                               {.rank = 1, .nranks = 2}};
  reserve_port();
  static const int order[] = {1, 2, 0, 3}; /* rank 0 finds only processes that are there when its ranks have joined */
  for (int i = 0; i < 4; i++) start_program(order[i], &parts[order[i]]);
  finish(0), finish(3);
  for (int i = 1; i < 3; i++) {
    if (_i) kill(pids[i], SIGKILL);
    waitpid(pids[i], NULL, 0);
  }
  for (int i = 0; i < 4; i++)
    if (!_i || parts[i].wait_s == 0)
      ck_assert_msg(outcomes[i].create != BANYAN_OK, "process %d met another: gather %d", i, outcomes[i].gather);
  if (_i) assert_text(0, "all 2 ranks have joined");
  assert_text(0, "BANYAN_JOB");
}

/* An orphan of an earlier attempt of torchrun still waits when rank 1 of the next one comes, and rank 0 of the next one
 * comes last, or is the orphan itself because its node has restarted nothing. */
TEST_LOOP(an_orphan_of_an_earlier_attempt_meets_nobody, 2) {
#define ATTEMPT(count) .extra = { {"TORCHELASTIC_RUN_ID", "x"}, {"TORCHELASTIC_RESTART_COUNT", count} }
  static const struct part parts[] = {{.rank = 0, .nranks = 2, .secret = "x", .rounds = 2, .bytes = 8, ATTEMPT("0")},
                                      {.rank = 1, .nranks = 2, .secret = "x", .rounds = 2, .bytes = 8, ATTEMPT("1")},
                                      {.rank = 0, .nranks = 2, .secret = "x", .rounds = 2, .bytes = 8, ATTEMPT("1")}};
  reserve_port();
  for (int i = 0; i < 3 - _i; i++) {
    start(i, parts[i]);
    if (i == 0) wait_for_listener();
    if (i == 1) sleep_s(0.4); /* rank 1 meets the orphan first, as a rule */
  }
  finish_all(3 - _i);
  for (int i = 1 - _i; i < 3 - _i; i++) assert_success(i);
  if (_i) return;
  ck_assert_int_eq(outcomes[0].create, BANYAN_ERR_BOOTSTRAP);
  assert_text(0, "this rank 0 is of attempt 0 of torchrun x");
#undef ATTEMPT
}

int main(void) {
  const char *place = getenv("BANYAN_TEST_OUTCOME");
  if (place) return be_program(place);
  suite_deal(6);
  return suite_main(suite_with("boot_jobs", 60, set_up, tear_down));
}
