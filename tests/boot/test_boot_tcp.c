/* SPDX-License-Identifier: Apache-2.0
 * Bootstrap over TCP, by real processes on the loopback interface. */
#include <arpa/inet.h>
#include <check.h>
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "banyan.h"
#include "boot/tcp.h"
#include "tests/support/suite.h"
#include "tests/support/clock.h"
#include "tests/support/rounds.h"

#ifndef HAVE_SODIUM

int main(void) {
  printf("skipped: built without libsodium\n");
  return 77;
}

#else

enum { PROCESSES_AT_MOST = 20 };

/* The task of one process. */
struct part {
  int rank, nranks;
  const char *secret; /* NULL: none */
  double timeout_s;   /* 0: 15 */
  size_t bytes;       /* size of each allgather */
  int rounds;
  double wait_s;           /* before create */
  double pause_s;          /* between create and the first allgather */
  const char *address;     /* value of MASTER_ADDR; NULL: 127.0.0.1 */
  const char *extra[3][2]; /* more environment */
  const char *job;         /* BANYAN_JOB; NULL: none */
  bool forks;              /* children, between two rounds of gathers */
  uid_t user;              /* to become first; 0: stays */
  const char *map;         /* the users of a namespace to enter first; NULL: stays */
};

/* Its outcome, in memory shared with the test. */
struct outcome {
  banyan_status create, gather;
  int wrong;
  double create_s, gather_s;
  char text[512];
};

static int listen_fd, port; /* the current test's; each test runs in its own process */
static struct outcome *outcomes;
static pid_t pids[PROCESSES_AT_MOST];
static char shown_port[16];

static int listen_on_any_port(int *chosen) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof address;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  ck_assert_int_eq(listen(fd, 256), 0);
  ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
  *chosen = ntohs(address.sin_port);
  return fd;
}

static int dial(void) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
  return fd;
}

static void clear_environment(void) {
  static const char *const names[] = {"RANK",
                                      "WORLD_SIZE",
                                      "BANYAN_JOB",
                                      "TORCHELASTIC_RUN_ID",
                                      "PMIX_NAMESPACE",
                                      "SLURM_JOB_ID",
                                      "LOCAL_RANK",
                                      "LOCAL_WORLD_SIZE",
                                      "MASTER_ADDR",
                                      "MASTER_PORT",
                                      "BANYAN_PORT",
                                      "BANYAN_SECRET",
                                      "BANYAN_SECRET_FILE",
                                      "BANYAN_LISTEN_FD",
                                      "TORCHELASTIC_USE_AGENT_STORE",
                                      "BANYAN_INTERFACE"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

static void set_up(void) {
  clear_environment();
  listen_fd = listen_on_any_port(&port);
  snprintf(shown_port, sizeof shown_port, "%d", port);
  outcomes =
      mmap(NULL, PROCESSES_AT_MOST * sizeof *outcomes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(outcomes, MAP_FAILED);
  memset(pids, 0, sizeof pids);
}

static void tear_down(void) {
  munmap(outcomes, PROCESSES_AT_MOST * sizeof *outcomes);
  if (listen_fd >= 0) close(listen_fd);
}

static void set_environment(const struct part *part) {
  char text[16];
  snprintf(text, sizeof text, "%d", part->rank);
  setenv("RANK", text, 1);
  snprintf(text, sizeof text, "%d", part->nranks);
  setenv("WORLD_SIZE", text, 1);
  setenv("MASTER_ADDR", part->address ? part->address : "127.0.0.1", 1);
  setenv("MASTER_PORT", shown_port, 1);
  if (part->secret) setenv("BANYAN_SECRET", part->secret, 1);
  snprintf(text, sizeof text, "%d", listen_fd);
  if (listen_fd >= 0) setenv("BANYAN_LISTEN_FD", text, 1);
  if (part->job) setenv("BANYAN_JOB", part->job, 1);
  for (int i = 0; i < 3; i++)
    if (part->extra[i][0]) setenv(part->extra[i][0], part->extra[i][1], 1);
}

/* Enters a user namespace that maps these users, which a process outside of it must write. */
static bool enter_namespace(const char *map) {
  int ready[2], how = 0;
  char path[64], byte = 0;
  ck_assert_int_eq(pipe(ready), 0);
  snprintf(path, sizeof path, "/proc/%d/uid_map", (int)getpid());
  pid_t helper = fork();
  if (helper == 0) {
    close(ready[1]);
    int fd = read(ready[0], &byte, 1) == 1 && *map ? open(path, O_WRONLY) : -1;
    _exit(*map && (fd < 0 || write(fd, map, strlen(map)) != (ssize_t)strlen(map)));
  }
  bool entered = unshare(CLONE_NEWUSER) == 0 && write(ready[1], &byte, 1) == 1;
  close(ready[0]), close(ready[1]);
  entered = waitpid(helper, &how, 0) == helper && how == 0 && entered;
  return entered && (!*map || setresuid(65534, 65534, 65534) == 0);
}

/* The ranks of this communicator that are of another job. */
static int count_others(const banyan_bootstrap *bootstrap, const struct part *part) {
  char mine[16] = "", all[PROCESSES_AT_MOST][16];
  int others = 0;
  strncpy(mine, part->job, sizeof mine - 1);
  if (bootstrap->allgather(bootstrap->context, mine, all, sizeof mine, (int64_t)(part->timeout_s * 1e9))) return 1;
  for (int32_t rank = 0; rank < bootstrap->nranks; rank++) others += strcmp(all[rank], mine) != 0;
  return others;
}

static void play(const struct part *part, struct outcome *outcome) {
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  set_environment(part);
  if (part->map && !enter_namespace(part->map)) {
    outcome->create = BANYAN_ERR_ABORTED;
    strcpy(outcome->text, "user namespaces cannot be made here");
    return;
  }
  sleep_s(part->wait_s);
  double before = now_s();
  outcome->create = banyan_env_create((int64_t)(part->timeout_s * 1e9), &env, &bootstrap);
  outcome->create_s = now_s() - before;
  if (!outcome->create) {
    outcome->wrong += bootstrap.rank != part->rank || bootstrap.nranks != part->nranks;
    sleep_s(part->pause_s);
    before = now_s();
    outcome->gather = rounds_gather(&bootstrap, part->bytes, part->rounds, part->timeout_s, &outcome->wrong);
    outcome->gather_s = now_s() - before;
    if (part->forks && !outcome->gather) {
      int how = 0;
      pid_t child = fork();
      if (child == 0) {
        banyan_status status = rounds_gather(&bootstrap, part->bytes, 1, part->timeout_s, &how);
        banyan_env_destroy(env);
        _exit((int)status);
      }
      outcome->wrong += waitpid(child, &how, 0) != child || !WIFEXITED(how) || WEXITSTATUS(how) != BANYAN_ERR_STATE;
      outcome->gather = rounds_gather(&bootstrap, part->bytes, part->rounds, part->timeout_s, &outcome->wrong);
    }
    if (part->job && !outcome->gather) outcome->wrong += count_others(&bootstrap, part);
  }
  strncpy(outcome->text, banyan_last_error(), sizeof outcome->text - 1);
  banyan_env_destroy(env);
}

static void start(int index, struct part part) {
  if (part.timeout_s <= 0) part.timeout_s = 15;
  fflush(NULL);
  pids[index] = fork();
  ck_assert_int_ge(pids[index], 0);
  if (pids[index] != 0) return;
  if (part.rank != 0 && listen_fd >= 0) close(listen_fd);
  if (part.user != 0 && setresuid(part.user, part.user, part.user) != 0) exit(3);
  play(&part, &outcomes[index]);
  exit(0); /* not _exit: the leak checker is to have its say */
}

static void finish(int index) {
  int how;
  ck_assert_int_eq(waitpid(pids[index], &how, 0), pids[index]);
  ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == 0, "process %d ended with %#x", index, how);
}

static void assert_success(int index) {
  ck_assert_msg(outcomes[index].create == BANYAN_OK && outcomes[index].gather == BANYAN_OK && !outcomes[index].wrong,
                "process %d: create %d, gather %d, %d wrong bytes: %s", index, outcomes[index].create,
                outcomes[index].gather, outcomes[index].wrong, outcomes[index].text);
}

static void assert_text(int index, const char *part) {
  ck_assert_msg(strstr(outcomes[index].text, part) != NULL, "process %d: no \"%s\" in: %s", index, part,
                outcomes[index].text);
}

TEST_LOOP(gathers, 7) {
  static const struct {
    int nranks, rounds;
    size_t bytes;
    bool no_secret;
  } cases[] = {{1, 3, 100, false},   {2, 200, 8, false}, {2, 3, 0, false}, {3, 3, 3000000, false},
               {17, 20, 777, false}, {5, 20, 1, true},   {17, 2, 9, true}};
  int nranks = cases[_i].nranks;
  for (int rank = nranks - 1; rank >= 0; rank--)
    start(rank, (struct part){.rank = rank,
                              .nranks = nranks,
                              .secret = cases[_i].no_secret ? NULL : "s3cret",
                              .rounds = cases[_i].rounds,
                              .bytes = cases[_i].bytes});
  for (int rank = 0; rank < nranks; rank++) finish(rank);
  for (int rank = 0; rank < nranks; rank++) assert_success(rank);
}

/* Rank 0 listens by itself, and the ways to say where; another process may take the port first, so try again. */
TEST_LOOP(listens_by_itself, 5) {
  static const struct {
    const char *address;
    bool store; /* torchrun's own listens on MASTER_PORT */
    const char *name, *agent;
  } cases[] = {{"127.0.0.1", false, "BANYAN_PORT", "False"},
               {"localhost", false, "MASTER_PORT", "False"},
               {"::1", false, "MASTER_PORT", "False"},
               {"127.0.0.1", true, "MASTER_PORT", "True"},
               {"127.0.0.1", false, "BANYAN_PORT", "True"}};
  int probe = socket(AF_INET6, SOCK_STREAM, 0);
  struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
  bool ipv6 = probe >= 0 && bind(probe, (struct sockaddr *)&loopback, sizeof loopback) == 0;
  if (probe >= 0) close(probe);
  struct addrinfo *found = NULL;
  bool has_address = getaddrinfo(cases[_i].address, NULL, NULL, &found) == 0;
  if (has_address) freeaddrinfo(found);
  if (!has_address) printf("skipped: %s has no address here: is there no /etc/hosts?\n", cases[_i].address);
  if (!has_address || (strchr(cases[_i].address, ':') && !ipv6)) return;
  close(listen_fd);
  listen_fd = -1;
  for (int attempt = 0; attempt < 5; attempt++) {
    char text[16];
    int store = listen_on_any_port(&port); /* as torchrun's store: listens on MASTER_PORT itself */
    snprintf(text, sizeof text, "%d", port);
    if (!cases[_i].store) close(store);
    memset(outcomes, 0, PROCESSES_AT_MOST * sizeof *outcomes);
    for (int rank = 2; rank >= 0; rank--)
      start(rank, (struct part){.rank = rank,
                                .nranks = 3,
                                .rounds = 3,
                                .bytes = 8,
                                .address = cases[_i].address,
                                .wait_s = rank == 0 ? 0.1 : 0,
                                .timeout_s = 3,
                                .extra = {{cases[_i].name, text}, {"TORCHELASTIC_USE_AGENT_STORE", cases[_i].agent}}});
    for (int rank = 0; rank < 3; rank++) finish(rank);
    if (cases[_i].store) close(store);
    if (!outcomes[0].create) break;
  }
  for (int rank = 0; rank < 3; rank++) assert_success(rank);
}

/* ---- names of rank 0 -------------------------------------------------------------------------------------------- */

enum { LOOKUPS_AT_FIRST = 3 };

/* The resolver of this program. "late" has no address at first, and "moved" another one, which refuses or is not of
 * this node; "never" has none. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **list) {
  static int lookups;
  int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
  *(void **)(void *)&real = dlsym(RTLD_NEXT, "getaddrinfo");
  bool is_number = hints && hints->ai_flags & AI_NUMERICHOST;
  if (!host || is_number) return real(host, port, hints, list);
  bool first = strcmp(host, "late") == 0 || strcmp(host, "moved") == 0 ? lookups++ < LOOKUPS_AT_FIRST : false;
  if (strcmp(host, "never") == 0) return EAI_NONAME;
  if (strcmp(host, "late") == 0 && first) return lookups % 2 ? EAI_AGAIN : EAI_NONAME;
  if (strcmp(host, "moved") == 0 && first)
    return real(atoi(getenv("RANK")) ? "127.9.9.9" : "192.0.2.1", port, hints, list);
  if (strcmp(host, "late") == 0 || strcmp(host, "moved") == 0) host = "127.0.0.1";
  return real(host, port, hints, list);
}

/* Leaves a port free on which rank 0 may listen by itself; another process may take it first. */
static void free_port(void) {
  if (listen_fd >= 0) close(listen_fd);
  close(listen_on_any_port(&port));
  listen_fd = -1;
  snprintf(shown_port, sizeof shown_port, "%d", port);
  memset(outcomes, 0, PROCESSES_AT_MOST * sizeof *outcomes);
}

/* A name that has no address yet, or that of a node where rank 0 was, is looked up again: by rank 1, and by rank 0. */
TEST_LOOP(looks_a_name_up_again, 4) {
  int asks = _i % 2;
  const char *name = _i / 2 ? "moved" : "late";
  for (int attempt = 0; attempt < 5; attempt++) {
    if (asks == 0) free_port(); /* rank 0 listens by itself */
    for (int rank = 0; rank < 2; rank++)
      start(rank, (struct part){.rank = rank,
                                .nranks = 2,
                                .secret = "x",
                                .rounds = 1,
                                .bytes = 8,
                                .address = rank == asks ? name : NULL});
    for (int rank = 0; rank < 2; rank++) finish(rank);
    if (!outcomes[0].create) break;
  }
  for (int rank = 0; rank < 2; rank++) assert_success(rank);
}

TEST_LOOP(says_that_a_name_has_no_address, 2) {
  close(listen_fd);
  listen_fd = -1;
  start(_i, (struct part){.rank = _i, .nranks = 2, .secret = "x", .timeout_s = 0.5, .address = "never"});
  finish(_i);
  ck_assert_int_eq(outcomes[_i].create, BANYAN_ERR_BOOTSTRAP);
  ck_assert(outcomes[_i].create_s >= 0.5);
  assert_text(_i, "MASTER_ADDR is \"never\", which has no address");
}

/* `torchrun --standalone` gives the node's own name: where all ranks are on this node it is not looked up, and needs no
 * secret. */
TEST_LOOP(one_node_needs_no_name, 3) {
  static const char *const addresses[] = {"never", "192.0.2.1", "127.0.0.1"};
  for (int rank = 0; rank < 3; rank++)
    start(rank, (struct part){.rank = rank,
                              .nranks = 3,
                              .rounds = 3,
                              .bytes = 8,
                              .address = addresses[_i],
                              .extra = {{"LOCAL_WORLD_SIZE", "3"}}});
  for (int rank = 0; rank < 3; rank++) finish(rank);
  for (int rank = 0; rank < 3; rank++) assert_success(rank);
}

TEST_LOOP(another_secret_is_an_error_on_both_sides, 2) {
  start(0, (struct part){.rank = 0, .nranks = 2, .secret = "right", .timeout_s = 1});
  start(1, (struct part){.rank = 1, .nranks = 2, .secret = _i ? "wrong" : NULL, .timeout_s = 3});
  for (int rank = 0; rank < 2; rank++) finish(rank);
  ck_assert_int_eq(outcomes[1].create, BANYAN_ERR_BOOTSTRAP);
  assert_text(1, "secret");
  ck_assert_int_eq(outcomes[0].create, BANYAN_ERR_TIMEOUT);
  assert_text(0, "rank 1 of 2 did not connect");
  assert_text(0, "a loopback address that ranks of other nodes cannot reach: for these set BANYAN_INTERFACE");
  assert_text(0, "failed to authenticate");
  for (int rank = 0; rank < 2; rank++) ck_assert(outcomes[rank].create_s < 5);
}

TEST(refuses_a_second_process_of_a_rank) {
  for (int i = 0; i < 4; i++)
    start(i, (struct part){.rank = i < 2 ? i : i - 1,
                           .nranks = 3,
                           .secret = "x",
                           .rounds = 1,
                           .bytes = 8,
                           .job = "a",
                           .wait_s = i == 3 ? 1 : 0});
  for (int i = 0; i < 4; i++) finish(i);
  assert_success(0);
  assert_success(3);
  int refused = outcomes[1].create ? 1 : 2;
  assert_success(3 - refused);
  ck_assert_int_eq(outcomes[refused].create, BANYAN_ERR_BOOTSTRAP);
  assert_text(refused, "rank 1 has already joined");
  ck_assert(outcomes[refused].create_s < 0.9);
}

/* ---- two jobs at one port ---------------------------------------------------------------------------------------- */

/* Their ranks start in random order; each job meets, and one after the other. */
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
  free_port();
  for (int i = 0; i < BOTH; i++)
    start(order[i], (struct part){.rank = order[i] % RANKS,
                                  .nranks = RANKS,
                                  .secret = _i % 2 ? "x" : NULL,
                                  .rounds = 2,
                                  .bytes = 8,
                                  .timeout_s = 30,
                                  .job = jobs[order[i] / RANKS]});
  for (int i = 0; i < BOTH; i++) finish(i);
  for (int i = 0; i < BOTH; i++) assert_success(i);
}

/* Two torchruns on a node, with stores that listen on neighbouring ports and never greet, and whose jobs, which
 * have no id but that port, have the same range of ports, as few have. */
TEST_LOOP(two_torchruns_do_not_meet, 4) {
  enum { RANKS = 3, BOTH = 2 * RANKS, PORTS = 16 };
  static const char *const jobs[] = {"a", "another"};
  struct bny_boot_settings settings[2];
  int stores[PORTS], nstores = 0;
  free_port();
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  setenv("RANK", "1", 1), setenv("WORLD_SIZE", "3", 1), setenv("MASTER_ADDR", "127.0.0.1", 1);
  char ports[2][16] = {"29500", "29501"}; /* nobody connects to them */
  setenv("TORCHELASTIC_RUN_ID", "none", 1), setenv("MASTER_PORT", ports[0], 1);
  ck_assert_int_eq(bny_boot_settings_read(&settings[0]), BANYAN_OK);
  for (int other = 1; other < 65536; other++) {
    snprintf(ports[1], sizeof ports[1], "%d", other);
    setenv("MASTER_PORT", ports[1], 1);
    ck_assert_int_eq(bny_boot_settings_read(&settings[1]), BANYAN_OK);
    if (settings[1].port == settings[0].port) break;
  }
  ck_assert_int_eq(settings[1].port, settings[0].port);
  ck_assert_int_eq(settings[1].nports, PORTS);
  for (int i = 0; i < _i; i++) { /* others' stores have the first of them, as far as they are free */
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)(settings[0].port + i));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 16) == 0)
      stores[nstores++] = fd;
    else
      close(fd);
  }
  clear_environment();
  for (int i = BOTH; i-- > 0;) {
    strcpy(shown_port, ports[i / RANKS]);
    start(i, (struct part){.rank = i % RANKS,
                           .nranks = RANKS,
                           .rounds = 1,
                           .bytes = 8,
                           .timeout_s = 30,
                           .job = jobs[i / RANKS],
                           .extra = {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                     {"TORCHELASTIC_RUN_ID", "none"},
                                     {"BANYAN_JOB", ""}}});
  }
  for (int i = 0; i < BOTH; i++) finish(i);
  for (int i = 0; i < BOTH; i++) assert_success(i);
  for (int i = 0; i < nstores; i++) close(stores[i]);
}

/* Rank 0 of a job whose other ranks have gone refuses those of another job. Both sides name both. */
TEST(a_stale_rank_0_takes_no_new_ranks) {
  for (int rank = 0; rank < 3; rank++)
    start(rank, (struct part){.rank = rank, .nranks = 3, .job = rank ? "new" : "stale", .timeout_s = 1});
  for (int rank = 0; rank < 3; rank++) finish(rank);
  for (int rank = 0; rank < 3; rank++) {
    ck_assert_int_eq(outcomes[rank].create, BANYAN_ERR_TIMEOUT);
    assert_text(rank, "of job new (3 ranks, since 20");
    assert_text(rank, "of job stale (3 ranks, since 20");
  }
}

/* Without an id a rank that comes twice shows that there are two jobs: none of them goes on. */
TEST_LOOP(a_rank_that_comes_twice_fails_a_job_without_id, 2) {
  int twice = _i;
  free_port();
  start(0, (struct part){.rank = 0, .nranks = 3, .secret = "x", .timeout_s = 5});
  start(1, (struct part){.rank = 1, .nranks = 3, .secret = "x", .timeout_s = 5});
  start(2, (struct part){.rank = twice, .nranks = 3, .secret = "x", .timeout_s = 5});
  for (int i = 0; i < 3; i++) finish(i);
  for (int i = 0; i < 3; i++) ck_assert(outcomes[i].create);
  assert_text(0, twice ? "rank 1 has already joined" : "rank 0 has come twice: of a job without id (3 ranks, since 20");
  for (int i = 1; i < 3 && twice; i++) assert_text(i, "rank 1 has already joined");
  for (int i = 0; i < 3; i += 2) /* either of two ranks 0 may listen */
    if (!twice) assert_text(i, "BANYAN_JOB");
}

/* Two jobs without an id, each with a launcher: a rank waits for rank 0 of its own one, which then finds the other's.
 * Without that rank 0 it comes too late for a job that is complete. */
TEST_LOOP(ranks_wait_for_rank_0_of_their_launcher, 2) {
  const bool stale_rank_0 = _i == 0;
  const struct part of_a[] = {{.rank = 0, .nranks = 2, .timeout_s = 4},
                              {.rank = 1, .nranks = 2, .timeout_s = 4, .wait_s = 0.4}};
  const struct part of_b[] = {{.rank = 1, .nranks = 2, .timeout_s = 4},
                              {.rank = 0, .nranks = 2, .timeout_s = 4, .wait_s = 0.4}};
  pid_t launchers[2];
  free_port();
  for (int l = 0; l < 2; l++) {
    int count = l == stale_rank_0 ? 2 : 1;
    launchers[l] = fork();
    for (int i = 0; i < count && launchers[l] == 0; i++) start(2 * l + i, l == 0 ? of_a[i] : of_b[i]);
    for (int i = 0; i < count && launchers[l] == 0; i++) finish(2 * l + i);
    if (launchers[l] == 0) _exit(0);
  }
  for (int l = 0; l < 2; l++) waitpid(launchers[l], NULL, 0);
  for (int i = 0; i < 2 && !stale_rank_0; i++) assert_success(i);
  ck_assert(outcomes[2].create);
  if (stale_rank_0) ck_assert(outcomes[0].create && outcomes[3].create);
}

/* Their copies of connections are closed without a word to the peers. */
TEST(children_take_no_part) {
  for (int rank = 0; rank < 3; rank++)
    start(rank, (struct part){.rank = rank, .nranks = 3, .rounds = 3, .bytes = 100, .forks = true});
  for (int rank = 0; rank < 3; rank++) finish(rank);
  for (int rank = 0; rank < 3; rank++) assert_success(rank);
}

/* A job that is stopped as a whole for longer than its deadline goes on where it was. */
TEST(time_in_which_a_job_is_stopped_does_not_count) {
  const double timeout_s = 3;
  for (int rank = 0; rank < 2; rank++)
    start(rank, (struct part){.rank = rank, .nranks = 3, .rounds = 1, .bytes = 8, .timeout_s = timeout_s});
  sleep_s(timeout_s / 10);
  for (int rank = 0; rank < 2; rank++) kill(pids[rank], SIGSTOP);
  sleep_s(timeout_s);
  for (int rank = 0; rank < 2; rank++) kill(pids[rank], SIGCONT);
  start(2, (struct part){.rank = 2, .nranks = 3, .rounds = 1, .bytes = 8, .timeout_s = timeout_s});
  for (int rank = 0; rank < 3; rank++) finish(rank);
  for (int rank = 0; rank < 3; rank++) assert_success(rank);
}

TEST(unauthenticated_peers_delay_nobody) {
  enum { SILENT = 100 };
  int silent[SILENT];
  char garbage[500];
  for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = (char)(i * 37);
  start(0, (struct part){.rank = 0, .nranks = 3, .secret = "x", .rounds = 5, .bytes = 8});
  for (int i = 0; i < SILENT; i++) {
    silent[i] = dial();
    if (i % 3 == 1) ck_assert_int_eq(send(silent[i], garbage, 10, MSG_NOSIGNAL), 10); /* and never the rest */
    int fd = dial();
    if (i % 2) send(fd, garbage, sizeof garbage, MSG_NOSIGNAL);
    close(fd);
  }
  double before = now_s();
  for (int rank = 1; rank < 3; rank++)
    start(rank, (struct part){.rank = rank, .nranks = 3, .secret = "x", .rounds = 5, .bytes = 8});
  for (int rank = 0; rank < 3; rank++) finish(rank);
  double took = now_s() - before;
  for (int rank = 0; rank < 3; rank++) assert_success(rank);
  ck_assert_msg(took < 3, "took %g s", took);
  for (int i = 0; i < SILENT; i++) close(silent[i]);
}

TEST(names_the_missing_ranks_on_every_rank) {
  for (int rank = 0; rank < 2; rank++)
    start(rank, (struct part){.rank = rank, .nranks = 4, .secret = "x", .timeout_s = 1, .wait_s = rank ? 0 : 0.3});
  for (int rank = 0; rank < 2; rank++) finish(rank);
  for (int rank = 0; rank < 2; rank++) {
    ck_assert_int_eq(outcomes[rank].create, BANYAN_ERR_TIMEOUT);
    ck_assert_msg(outcomes[rank].create_s < 2, "took %g s", outcomes[rank].create_s);
    assert_text(rank, "ranks 2 and 3 of 4 did not connect within");
    assert_text(rank, shown_port);
  }
}

TEST(says_where_it_could_not_connect) {
  close(listen_fd); /* now nobody listens there */
  listen_fd = -1;
  start(1, (struct part){.rank = 1, .nranks = 2, .timeout_s = 0.5});
  finish(1);
  ck_assert_int_eq(outcomes[1].create, BANYAN_ERR_TIMEOUT);
  ck_assert(outcomes[1].create_s >= 0.5 && outcomes[1].create_s < 2);
  assert_text(1, "127.0.0.1:");
  assert_text(1, shown_port);
  assert_text(1, "Connection refused");
}

/* Rank 2 is killed: while rank 3 has yet to connect; when all have; and in an allgather that rank 3 comes to only
 * later, while the others must learn of it at once. */
TEST_LOOP(names_a_killed_rank, 3) {
  enum { CONNECTING, CONNECTED, GATHERING };
  int nranks = _i == CONNECTING ? 3 : 4;
  for (int rank = 0; rank < nranks; rank++) {
    struct part part = {.rank = rank, .nranks = 4, .secret = "x", .rounds = 1, .bytes = 8, .timeout_s = 8};
    if (rank == 2 && _i != GATHERING) part.pause_s = 30;
    if (rank == 3 && _i == GATHERING) part.pause_s = 1.5;
    start(rank, part);
  }
  sleep_s(0.5);
  kill(pids[2], SIGKILL);
  waitpid(pids[2], NULL, 0);
  double before = now_s();
  for (int rank = 0; rank < nranks; rank++) {
    if (rank == 2) continue;
    if (rank == 3) ck_assert_msg(now_s() - before < 1, "took %g s", now_s() - before);
    finish(rank);
    ck_assert_int_eq(_i == CONNECTING ? outcomes[rank].create : outcomes[rank].gather, BANYAN_ERR_PEER);
    assert_text(rank, "rank 2 of 4");
  }
}

/* One rank does not call: all others give up together and name it. The root is a case of its own. */
TEST_LOOP(names_a_rank_that_is_absent_from_an_allgather, 3) {
  int absent = _i;
  for (int rank = 0; rank < 3; rank++)
    start(rank, (struct part){.rank = rank,
                              .nranks = 3,
                              .secret = "x",
                              .timeout_s = 0.8,
                              .rounds = rank != absent,
                              .bytes = 8,
                              .pause_s = rank == absent ? 1.5 : 0});
  for (int rank = 0; rank < 3; rank++) finish(rank);
  for (int rank = 0; rank < 3; rank++) {
    if (rank == absent) continue;
    char name[16];
    snprintf(name, sizeof name, absent ? "rank %d of 3" : "rank %d", absent);
    ck_assert_int_eq(outcomes[rank].gather, BANYAN_ERR_TIMEOUT);
    ck_assert_msg(outcomes[rank].gather_s < 1.4, "took %g s", outcomes[rank].gather_s);
    assert_text(rank, name);
  }
}

TEST(names_a_rank_with_another_message_size) {
  for (int rank = 0; rank < 3; rank++)
    start(rank, (struct part){.rank = rank, .nranks = 3, .secret = "x", .rounds = 1, .bytes = rank == 2 ? 16 : 8});
  for (int rank = 0; rank < 3; rank++) finish(rank);
  for (int rank = 0; rank < 3; rank++) {
    ck_assert_int_eq(outcomes[rank].gather, BANYAN_ERR_BOOTSTRAP);
    assert_text(rank, "rank 2 gathers 16 bytes where rank 0 gathers 8");
  }
}

TEST(refuses_another_world_size) {
  start(0, (struct part){.rank = 0, .nranks = 2, .secret = "x", .timeout_s = 1});
  start(1, (struct part){.rank = 1, .nranks = 3, .secret = "x", .timeout_s = 10});
  for (int rank = 0; rank < 2; rank++) finish(rank);
  ck_assert_int_eq(outcomes[0].create, BANYAN_ERR_TIMEOUT);
  ck_assert_int_eq(outcomes[1].create, BANYAN_ERR_BOOTSTRAP);
  for (int rank = 0; rank < 2; rank++) assert_text(rank, "rank 1 has WORLD_SIZE 3 where rank 0 has 2");
  ck_assert(outcomes[1].create_s < 1);
}

/* ---- peers that speak the protocol, but not as they should ------------------------------------------------------- */

static const uint8_t *test_key(void) {
  static uint8_t key[BNY_BOOT_KEY_BYTES];
  ck_assert(bny_boot_key_derive("x", 1, key));
  return key;
}

/* Joins as `hello` says. Returns the connection. */
static int join_by_hand(struct bny_boot_hello *hello, struct bny_boot_challenge *challenge,
                        struct bny_boot_welcome *welcome) {
  int fd = dial();
  ck_assert_int_eq(recv(fd, challenge, sizeof *challenge, MSG_WAITALL), sizeof *challenge);
  bny_boot_hello_sign(test_key(), challenge, hello);
  ck_assert_int_eq(send(fd, hello, sizeof *hello, MSG_NOSIGNAL), sizeof *hello);
  ck_assert_int_eq(recv(fd, welcome, sizeof *welcome, MSG_WAITALL), sizeof *welcome);
  ck_assert(bny_boot_welcome_check(test_key(), challenge, hello, welcome));
  return fd;
}

TEST(a_rank_that_comes_late_fails_a_job_without_id) {
  for (int attempt = 0; attempt < 5 && !outcomes[0].create; attempt++) {
    struct bny_boot_challenge challenge;
    struct bny_boot_welcome welcome;
    int fds[2];
    start(0, (struct part){.rank = 0, .nranks = 2, .secret = "x", .timeout_s = 5});
    for (int i = 0; i < 2; i++) {
      struct bny_boot_hello hello = {
          .version = htole32(BNY_BOOT_VERSION), .rank = htole32(1), .nranks = htole32(2), .left_ms = htole32(5000)};
      fds[i] = join_by_hand(&hello, &challenge, &welcome);
    }
    for (int i = 0; i < 2; i++) close(fds[i]);
    finish(0);
  }
  ck_assert_int_eq(outcomes[0].create, BANYAN_ERR_BOOTSTRAP);
  assert_text(0, "rank 1 has already joined");
}

TEST_LOOP(refuses_with_a_reason, 3) {
  static const struct {
    uint32_t version, rank, nranks;
    const char *reason;
  } cases[] = {{99, 1, 2, "version 99"},
               {BNY_BOOT_VERSION, 2, 2, "rank 2 cannot join"},
               {BNY_BOOT_VERSION, 0, 2, "rank 0 has come twice"}};
  struct bny_boot_challenge challenge;
  struct bny_boot_welcome welcome;
  struct bny_boot_hello hello = {.version = htole32(cases[_i].version),
                                 .rank = htole32(cases[_i].rank),
                                 .nranks = htole32(cases[_i].nranks),
                                 .left_ms = htole32(5000)};
  start(0, (struct part){.rank = 0, .nranks = 2, .secret = "x", .timeout_s = 0.5});
  int fd = join_by_hand(&hello, &challenge, &welcome);
  ck_assert_int_eq(le32toh(welcome.verdict), BNY_BOOT_REFUSED);
  ck_assert_msg(strstr(welcome.reason, cases[_i].reason) != NULL, "%s", welcome.reason);
  close(fd);
  finish(0);
  ck_assert_int_eq(outcomes[0].create, cases[_i].rank == 0 ? BANYAN_ERR_BOOTSTRAP : BANYAN_ERR_TIMEOUT);
  assert_text(0, cases[_i].reason);
}

/* Someone on the way alters the header, or the payload, or plays a frame of the past. */
TEST_LOOP(notices_altered_frames, 3) {
  struct bny_boot_challenge challenge;
  struct bny_boot_welcome welcome;
  struct bny_boot_hello hello = {.version = htole32(BNY_BOOT_VERSION),
                                 .rank = htole32(1),
                                 .nranks = htole32(2),
                                 .left_ms = htole32(5000),
                                 .job = "a"};
  uint8_t hash[BNY_BOOT_HASH_BYTES];
  char payload[8] = "payload";
  start(0,
        (struct part){
            .rank = 0, .nranks = 2, .secret = "x", .job = "a", .timeout_s = 5, .rounds = 2, .bytes = sizeof payload});
  struct bny_boot_link link = {.fd = join_by_hand(&hello, &challenge, &welcome)};
  ck_assert_int_eq(le32toh(welcome.verdict), BNY_BOOT_ACCEPTED);
  bny_boot_session_derive(test_key(), &challenge, &hello, link.session);
  const struct bny_boot_says says = {.kind = BNY_BOOT_DATA, .left_ms = 5000, .rank = 1};
  bny_boot_payload_hash(payload, sizeof payload, hash);
  bny_boot_link_prepare(&link, &says, payload, sizeof payload, hash);
  struct bny_boot_frame first = link.out;
  if (_i == 0) link.out.left_ms ^= htole32(1);
  if (_i == 1) payload[3] ^= 1;
  ck_assert_int_eq(bny_boot_link_send(&link), BNY_BOOT_DONE);
  if (_i == 2) {
    link.out = first;
    link.out_bytes = sizeof first + sizeof payload;
    ck_assert_int_eq(bny_boot_link_send(&link), BNY_BOOT_DONE);
  }
  finish(0);
  ck_assert_int_eq(outcomes[0].create, BANYAN_OK);
  ck_assert_int_eq(outcomes[0].gather, BANYAN_ERR_BOOTSTRAP);
  assert_text(0, "came from rank 1 was altered");
  bny_boot_link_close(&link);
}

/* Somebody else listens at rank 0's port: who does not speak, who speaks otherwise, who knows the protocol but no
 * secret. */
TEST_LOOP(believes_no_impostor, 3) {
  char noise[512];
  struct bny_boot_challenge challenge;
  memset(noise, 'n', sizeof noise);
  test_key();
  bny_boot_challenge_make(&challenge);
  fcntl(listen_fd, F_SETFL, O_NONBLOCK);
  start(1, (struct part){.rank = 1, .nranks = 2, .secret = "x", .timeout_s = 1});
  double until = now_s() + 3.5;
  int fd = -1;
  while (now_s() < until && waitpid(pids[1], NULL, WNOHANG) == 0) {
    int next = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (next >= 0) {
      if (fd >= 0) close(fd);
      fd = next;
      if (_i == 1) send(fd, noise, sizeof noise, MSG_NOSIGNAL);
      if (_i == 2) send(fd, &challenge, sizeof challenge, MSG_NOSIGNAL);
      if (_i == 2) send(fd, noise, sizeof(struct bny_boot_welcome), MSG_NOSIGNAL);
    }
    sleep_s(0.005);
  }
  if (fd >= 0) close(fd);
  static const char *const texts[] = {"no greeting", "not banyan's rank 0", "does not know the secret"};
  ck_assert_int_eq(outcomes[1].create, _i == 2 ? BANYAN_ERR_BOOTSTRAP : BANYAN_ERR_TIMEOUT);
  assert_text(1, texts[_i]);
  ck_assert(outcomes[1].create_s < 3.5);
}

/* ---- without a secret: users of one machine ---------------------------------------------------------------------- */

enum { NOBODY = 65534 };

static const uint8_t *empty_key(void) {
  static uint8_t key[BNY_BOOT_KEY_BYTES];
  ck_assert(bny_boot_key_derive("", 0, key));
  return key;
}

/* Any user can connect to the port, and knows the empty secret. */
TEST(takes_in_nobody_over_tcp_alone) {
  struct bny_boot_challenge challenge;
  struct bny_boot_welcome welcome;
  struct bny_boot_hello hello = {
      .version = htole32(BNY_BOOT_VERSION), .rank = htole32(1), .nranks = htole32(2), .left_ms = htole32(5000)};
  start(0, (struct part){.rank = 0, .nranks = 2, .timeout_s = 0.5});
  int fd = dial();
  ck_assert_int_eq(recv(fd, &challenge, sizeof challenge, MSG_WAITALL), sizeof challenge);
  bny_boot_hello_sign(empty_key(), &challenge, &hello);
  ck_assert_int_eq(send(fd, &hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
  ck_assert_msg(recv(fd, &welcome, sizeof welcome, MSG_WAITALL) <= 0, "it was welcomed");
  close(fd);
  finish(0);
  ck_assert_int_eq(outcomes[0].create, BANYAN_ERR_TIMEOUT);
  assert_text(0, "rank 1 of 2 did not connect");
  assert_text(0, "failed to authenticate");
}

/* Somebody else has rank 0's port, and welcomes all who come. */
TEST(joins_nobody_over_tcp_alone) {
  struct bny_boot_challenge challenge;
  fcntl(listen_fd, F_SETFL, O_NONBLOCK);
  start(1, (struct part){.rank = 1, .nranks = 2, .timeout_s = 5});
  int met = 0;
  for (double until = now_s() + 10; now_s() < until && waitpid(pids[1], NULL, WNOHANG) == 0; sleep_s(0.002)) {
    struct bny_boot_hello hello;
    struct bny_boot_welcome welcome = {.verdict = htole32(BNY_BOOT_ACCEPTED), .version = htole32(BNY_BOOT_VERSION)};
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) continue;
    bny_boot_challenge_make(&challenge);
    send(fd, &challenge, sizeof challenge, MSG_NOSIGNAL);
    if (recv(fd, &hello, sizeof hello, MSG_WAITALL) == sizeof hello) {
      bny_boot_welcome_sign(empty_key(), &challenge, &hello, &welcome);
      send(fd, &welcome, sizeof welcome, MSG_NOSIGNAL);
      met++;
    }
    close(fd);
  }
  ck_assert_int_gt(met, 0);
  ck_assert_int_eq(outcomes[1].create, BANYAN_ERR_BOOTSTRAP);
  assert_text(1, "does not know the secret");
}

/* Rank 1, or rank 0, is of another user. Each rank says so, and a secret brings them together. */
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
                                           : rank == 0 ? 2
                                                       : 10,
                              .rounds = 1,
                              .bytes = 8,
                              .user = rank == other ? NOBODY : 0});
  for (int rank = 0; rank < 2; rank++) finish(rank);
  for (int rank = 0; rank < 2 && has_secret; rank++) assert_success(rank);
  if (has_secret) return;
  ck_assert_int_eq(outcomes[0].create, BANYAN_ERR_TIMEOUT);
  assert_text(0, other ? "of user 65534, and rank 0 of user 0" : "of user 0, and rank 0 of user 65534");
  ck_assert_int_eq(outcomes[1].create, BANYAN_ERR_BOOTSTRAP);
  assert_text(1, other ? "process of user 0, and this rank of user 65534"
                       : "process of user 65534, and this rank of user 0");
  for (int rank = 0; rank < 2; rank++) assert_text(rank, "without a secret all ranks must be of one user");
}

/* In a user namespace that maps no user, or 65534 alone, processes of all other users look like this one's. A secret
 * tells them apart. */
TEST_LOOP(takes_in_nobody_as_the_overflow_user, 4) {
  bool mapped = _i % 2, has_secret = _i >= 2;
  if (geteuid() != 0) {
    printf("skipped: a mapping of user 65534 needs root\n");
    return;
  }
  for (int rank = 0; rank < 2; rank++)
    start(rank, (struct part){.rank = rank,
                              .nranks = 2,
                              .secret = has_secret ? "x" : NULL,
                              .rounds = 1,
                              .bytes = 8,
                              .map = mapped ? "65534 65534 1" : ""});
  for (int rank = 0; rank < 2; rank++) finish(rank);
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
  char folder[] = "/tmp/banyan-test-XXXXXX", path[64];
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/secret", folder);
  write_file(path, cases[_i].mode, cases[_i].content);
  start(0, (struct part){.rank = 0,
                         .nranks = 2,
                         .rounds = 1,
                         .bytes = 8,
                         .timeout_s = cases[_i].text ? 0.2 : 10,
                         .extra = {{"BANYAN_SECRET_FILE", path}}});
  start(1, (struct part){.rank = 1,
                         .nranks = 2,
                         .rounds = 1,
                         .bytes = 8,
                         .timeout_s = cases[_i].text ? 0.2 : 10,
                         .secret = "the secret"});
  for (int rank = 0; rank < 2; rank++) finish(rank);
  unlink(path);
  rmdir(folder);
  if (cases[_i].text) {
    ck_assert_int_eq(outcomes[0].create, BANYAN_ERR_ARGUMENT);
    assert_text(0, cases[_i].text);
  } else {
    for (int rank = 0; rank < 2; rank++) assert_success(rank);
  }
}

int main(void) { return suite_main(suite_with("boot_tcp", 60, set_up, tear_down)); }

#endif
