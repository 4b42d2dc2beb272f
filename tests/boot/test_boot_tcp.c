/* SPDX-License-Identifier: Apache-2.0
 * Bootstrap over TCP with real processes on the loopback interface. */
#include <dlfcn.h>
#include <endian.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "banyan.h"
#include "base/process.h"
#include "boot/tcp.h"

#include "tests/boot/ranks.h"

/* `torchrun --standalone` passes the node's own name. If all ranks are on this node, the name is not looked up and no
 * secret is needed. */
#define ONE_NODE .nranks = 3, .rounds = 3, .bytes = 8, .extra = {{"LOCAL_WORLD_SIZE", "3"}}

static const struct part jobs[] = {
    {.nranks = 1, .secret = "s3cret", .rounds = 3, .bytes = 100, .closes = true},
    {.nranks = 2, .secret = "s3cret", .rounds = 200, .bytes = 8, .closes = true},
    {.nranks = 2, .secret = "s3cret", .rounds = 3, .bytes = 0, .closes = true},
    {.nranks = 3, .secret = "s3cret", .rounds = 3, .bytes = 3000000, .closes = true},
    {.nranks = 17, .secret = "s3cret", .rounds = 20, .bytes = 777},
    {.nranks = 5, .rounds = 20, .bytes = 1, .closes = true},
    {.nranks = 17, .rounds = 2, .bytes = 9},
    {.nranks = 3, .rounds = 3, .bytes = 100, .forks = true}, /* children close their copies, unnoticed by peers */
    {ONE_NODE, .address = "never"},
    {ONE_NODE, .address = "192.0.2.1"},
    {ONE_NODE, .address = "127.0.0.1"}};

TEST_LOOP(gathers, sizeof jobs / sizeof *jobs) { run_all(jobs[_i]); }

/* Rank 0 listens by itself, with each way to set the address. */
TEST_LOOP(listens_by_itself, 5) {
  static const struct {
    const char *address;
    bool store; /* torchrun's store listens on MASTER_PORT */
    const char *name, *agent;
  } cases[] = {{"127.0.0.1", false, "BANYAN_PORT", "False"},
               {"localhost", false, "MASTER_PORT", "False"},
               {"[::1]", false, "MASTER_PORT", "False"},
               {"127.0.0.1", true, "MASTER_PORT", "True"},
               {"127.0.0.1", false, "BANYAN_PORT", "True"}};
  int probe = socket(AF_INET6, SOCK_STREAM, 0);
  struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
  bool ipv6 = probe >= 0 && bind(probe, (struct sockaddr *)&loopback, sizeof loopback) == 0;
  if (probe >= 0) close(probe);
  if (strchr(cases[_i].address, ':') && !ipv6) return;
  char text[16];
  reserve_port();
  if (cases[_i].store) ck_assert_int_eq(listen(reserved_fd, 16), 0);
  snprintf(text, sizeof text, "%d", port);
  for (int rank = 2; rank >= 0; rank--)
    start(rank, (struct part){.rank = rank,
                              .nranks = 3,
                              .rounds = 3,
                              .bytes = 8,
                              .address = cases[_i].address,
                              .wait_s = rank == 0 ? 0.1 : 0,
                              .extra = {{cases[_i].name, text}, {"TORCHELASTIC_USE_AGENT_STORE", cases[_i].agent}}});
  finish_with_success(3);
}

/* ---- names of rank 0 -------------------------------------------------------------------------------------------- */

enum { LOOKUPS_AT_FIRST = 3 };

/* The resolver of this program. "late" has no address at first. "moved" first has another address, which rejects or is
 * not on this node. "never" and localhost have none, "own" has a loopback address, and "slow" takes longer than any
 * deadline. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **list) {
  static int lookups;
  int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
  *(void **)(void *)&real = dlsym(RTLD_NEXT, "getaddrinfo");
  bool is_number = hints && hints->ai_flags & AI_NUMERICHOST;
  if (!host || is_number) return real(host, port, hints, list);
  bool first = strcmp(host, "late") == 0 || strcmp(host, "moved") == 0 ? lookups++ < LOOKUPS_AT_FIRST : false;
  if (strcmp(host, "never") == 0 || strcmp(host, "localhost") == 0) return EAI_NONAME;
  if (strcmp(host, "slow") == 0) sleep_s(600);
  if (strcmp(host, "own") == 0) host = "127.0.1.1";
  if (strcmp(host, "late") == 0 && first) return lookups % 2 ? EAI_AGAIN : EAI_NONAME;
  if (strcmp(host, "moved") == 0 && first)
    return real(atoi(getenv("RANK")) ? "127.9.9.9" : "192.0.2.1", port, hints, list);
  if (strcmp(host, "late") == 0 || strcmp(host, "moved") == 0) host = "127.0.0.1";
  return real(host, port, hints, list);
}

/* Rank 1 and rank 0 look a name up again if it has no address yet, or the address of rank 0's former node. */
TEST_LOOP(looks_a_name_up_again, 4) {
  int asks = _i % 2;
  const char *name = _i / 2 ? "moved" : "late";
  if (asks == 0) reserve_port(); /* rank 0 listens by itself */
  for (int rank = 0; rank < 2; rank++)
    start(
        rank,
        (struct part){
            .rank = rank, .nranks = 2, .secret = "x", .rounds = 1, .bytes = 8, .address = rank == asks ? name : NULL});
  finish_with_success(2);
}

TEST_LOOP(says_that_a_name_has_no_address, 4) {
  int rank = _i % 2;
  close(listen_fd);
  listen_fd = -1;
  const char *name = _i / 2 ? "slow" : "never";
  start(rank, (struct part){.rank = rank, .nranks = 2, .secret = "x", .timeout_s = 0.5, .address = name});
  finish(rank);
  ck_assert_int_eq(outcomes[rank].create, BANYAN_ERR_BOOTSTRAP);
  ck_assert(outcomes[rank].create_s >= 0.5);
  assert_text(rank, "MASTER_ADDR is \"");
  assert_text(rank, _i / 2 ? "slow\", which has no address: Connection timed out" : "never\", which has no address");
}

/* A rank whose BANYAN_INTERFACE is wrong reports that to the others, which do not wait until their deadlines. */
TEST_LOOP(all_learn_of_a_wrong_interface, 3) {
  char expected[64];
  snprintf(expected, sizeof expected, "rank %d of 3: BANYAN_INTERFACE is \"nosuch\"", _i);
  struct part part = {.nranks = 3, .timeout_s = 60};
  for (part.rank = 0; part.rank < 3; part.rank++) {
    part.extra[0][0] = "BANYAN_INTERFACE", part.extra[0][1] = part.rank == _i ? "nosuch" : "127.0.0.0/8";
    start(part.rank, part);
  }
  finish_all(3);
  for (int rank = 0; rank < 3; rank++) {
    ck_assert_int_eq(outcomes[rank].create, rank == _i ? BANYAN_ERR_ARGUMENT : BANYAN_ERR_BOOTSTRAP);
    ck_assert(outcomes[rank].create_s < 30);
    assert_text(rank, expected);
  }
}

/* One rank forks while it waits for the others, which come late, and the child returns from the wait. */
TEST_LOOP(children_of_a_wait_take_no_part, 8) {
  int forker = _i % 2;
  fork_in when = _i / 2 % 2 ? FORK_IN_GATHER : FORK_IN_CREATE;
  for (int rank = 0; rank < 3; rank++) {
    struct part part = {.rank = rank, .nranks = 3, .rounds = 3, .bytes = 100, .by_signal = _i / 4};
    if (rank == forker) part.forks_in = when;
    if (rank != forker && when == FORK_IN_CREATE) part.wait_s = 0.5;
    if (rank != forker && when == FORK_IN_GATHER) part.pause_s = 0.5;
    start(rank, part);
  }
  finish_with_success(3);
}

/* A job that is stopped as a whole for longer than its deadline continues afterwards. */
TEST(time_in_which_a_job_is_stopped_does_not_count) {
  const double timeout_s = 3;
  struct part part = {.nranks = 3, .rounds = 1, .bytes = 8, .timeout_s = timeout_s};
  for (; part.rank < 2; part.rank++) start(part.rank, part);
  sleep_s(timeout_s / 10);
  for (int rank = 0; rank < 2; rank++) kill(pids[rank], SIGSTOP);
  sleep_s(timeout_s);
  for (int rank = 0; rank < 2; rank++) kill(pids[rank], SIGCONT);
  start(2, part);
  finish_with_success(3);
}

/* ---- scenarios that fail, with what each rank says --------------------------------------------------------------- */

#define LOOPBACK "a loopback address that ranks of other nodes cannot reach: for these set BANYAN_INTERFACE"
#define SET_BY(name, value) .extra = {{name, value}}

struct said {
  banyan_status create, gather;
  double at_most_s; /* less than the deadline; 0: any */
  const char *texts[3];
};

struct scenario {
  const char *name;
  struct part parts[3]; /* those of no ranks do not start */
  struct said said[3];
};

static const struct scenario scenarios[] = {
    {"another secret",
     {{.rank = 0, .nranks = 2, .secret = "right", .timeout_s = 2},
      {.rank = 1, .nranks = 2, .secret = "wrong", .timeout_s = 60}},
     {{BANYAN_ERR_TIMEOUT, 0, 0, {"rank 1 of 2 did not connect", "failed to authenticate"}},
      {BANYAN_ERR_BOOTSTRAP, 0, 30, {"the secret (BANYAN_SECRET) the same on all ranks"}}}},
    {"no secret on one rank",
     {{.rank = 0, .nranks = 2, .secret = "right", .timeout_s = 0.5}, {.rank = 1, .nranks = 2, .timeout_s = 0.5}},
     {{BANYAN_ERR_TIMEOUT, 0, 0, {"rank 1 of 2 did not connect", LOOPBACK}},
      {BANYAN_ERR_TIMEOUT, 0, 0, {"if it has a secret (BANYAN_SECRET), this rank needs the same"}}}},
    {"no secret on rank 0",
     {{.listens = true, .rank = 0, .nranks = 2, .timeout_s = 0.5},
      {.rank = 1, .nranks = 2, .secret = "x", .timeout_s = 0.5}},
     {{BANYAN_ERR_TIMEOUT, 0, 0, {"rank 1 of 2 did not connect", LOOPBACK}},
      {BANYAN_ERR_TIMEOUT, 0, 0, {"rank 0", "it needs the secret of this rank (BANYAN_SECRET)"}}}},
    {"a name that other nodes cannot reach",
     {{.listens = true,
       .rank = 0,
       .nranks = 2,
       .secret = "x",
       .address = "own",
       .timeout_s = 60,
       SET_BY("LOCAL_WORLD_SIZE", "1")},
      {.rank = 1,
       .nranks = 2,
       .secret = "x",
       .address = "127.0.1.1",
       .timeout_s = 60,
       SET_BY("LOCAL_WORLD_SIZE", "1")}},
     {{BANYAN_ERR_ARGUMENT, 0, 30, {"127.0.1.1", "set BANYAN_INTERFACE"}},
      {BANYAN_ERR_ARGUMENT, 0, 30, {"127.0.1.1", "set BANYAN_INTERFACE"}}}},
    /* Each node has that address, so the ranks do not meet. */
    {"an address that each node has",
     {{.listens = true, .rank = 0, .nranks = 2, .secret = "x", .address = "127.0.1.1", .timeout_s = 0.5},
      {.rank = 1, .nranks = 2, .secret = "x", .address = "127.0.1.2", .timeout_s = 0.5}},
     {{BANYAN_ERR_TIMEOUT, 0, 0, {"rank 1 of 2 did not connect", LOOPBACK}},
      {BANYAN_ERR_TIMEOUT, 0, 0, {"Connection refused", LOOPBACK}}}},
    {"a link-local address without a scope",
     {{.listens = true, .rank = 0, .nranks = 2, .secret = "x", .address = "fe80::1", .timeout_s = 60},
      {.rank = 1, .nranks = 2, .secret = "x", .address = "fe80::1", .timeout_s = 60}},
     {{BANYAN_ERR_ARGUMENT, 0, 30, {"fe80::1", "without its scope", "%eth0"}},
      {BANYAN_ERR_ARGUMENT, 0, 30, {"fe80::1", "without its scope", "%eth0"}}}},
    {"missing ranks",
     {{.rank = 0, .nranks = 4, .secret = "x", .timeout_s = 2},
      {.rank = 1, .nranks = 4, .secret = "x", .timeout_s = 10, .wait_s = 0.3}},
     {{BANYAN_ERR_TIMEOUT, 0, 0, {"ranks 2 and 3 of 4 did not connect within", shown_port}},
      {BANYAN_ERR_TIMEOUT, 0, 0, {"ranks 2 and 3 of 4 did not connect within", shown_port}}}},
    {"no rank 0",
     {{.listens = true, .rank = 1, .nranks = 2, .timeout_s = 0.5}},
     {{BANYAN_ERR_TIMEOUT, 0, 0, {"127.0.0.1:", "Connection refused", LOOPBACK}}}},
    {"no common network",
     {{.listens = true, .rank = 1, .nranks = 2, .secret = "x", .address = "203.0.113.77", .timeout_s = 0.5}},
     {{BANYAN_ERR_TIMEOUT, 0, 0, {"203.0.113.77:", "no network in common with it, but ", "lo 127.0.0.1"}}}},
    {"no descriptor for a connection",
     {{.rank = 0, .nranks = 2, .timeout_s = 1}, {.rank = 1, .nranks = 2, .timeout_s = 1, .files = 1}},
     {{BANYAN_ERR_TIMEOUT, 0, 0, {"rank 1 of 2 did not connect"}},
      {BANYAN_ERR_TIMEOUT, 0, 0, {"Too many open files"}}}},
    {"no descriptor to accept one",
     {{.rank = 0, .nranks = 2, .timeout_s = 1, .files = 1}, {.rank = 1, .nranks = 2, .timeout_s = 1}},
     {{BANYAN_ERR_SYSTEM, 0, 0, {"Too many open files", "ulimit -n"}}, {BANYAN_ERR_TIMEOUT, 0, 0, {"rank 0"}}}},
    {"another number of ranks",
     {{.rank = 0, .nranks = 2, .secret = "x", .timeout_s = 2},
      {.rank = 1, .nranks = 3, .secret = "x", .timeout_s = 60}},
     {{BANYAN_ERR_TIMEOUT, 0, 0, {"rank 1 has WORLD_SIZE 3 where rank 0 has 2"}},
      {BANYAN_ERR_BOOTSTRAP, 0, 30, {"rank 1 has WORLD_SIZE 3 where rank 0 has 2"}}}},
    {"another size of a message",
     {{.rank = 0, .nranks = 3, .secret = "x", .rounds = 1, .bytes = 8},
      {.rank = 1, .nranks = 3, .secret = "x", .rounds = 1, .bytes = 8},
      {.rank = 2, .nranks = 3, .secret = "x", .rounds = 1, .bytes = 16}},
     {{0, BANYAN_ERR_BOOTSTRAP, 0, {"rank 2 gathers 16 bytes where rank 0 gathers 8"}},
      {0, BANYAN_ERR_BOOTSTRAP, 0, {"rank 2 gathers 16 bytes where rank 0 gathers 8"}},
      {0, BANYAN_ERR_BOOTSTRAP, 0, {"rank 2 gathers 16 bytes where rank 0 gathers 8"}}}},
    {"a rank that does not gather",
     {{.rank = 0, .nranks = 3, .secret = "x", .timeout_s = 4, .rounds = 1, .bytes = 8},
      {.rank = 1, .nranks = 3, .secret = "x", .timeout_s = 4, .rounds = 1, .bytes = 8},
      {.rank = 2, .nranks = 3, .secret = "x", .timeout_s = 4, .pause_s = 6}},
     {{0, BANYAN_ERR_TIMEOUT, 0, {"rank 2 of 3 did not take part in an allgather"}},
      {0, BANYAN_ERR_TIMEOUT, 0, {"rank 2 of 3 did not take part in an allgather"}},
      {0, 0, 0, {NULL}}}},
    {"rank 0 does not gather",
     {{.rank = 0, .nranks = 2, .secret = "x", .timeout_s = 0.8, .pause_s = 1.5},
      {.rank = 1, .nranks = 2, .secret = "x", .timeout_s = 0.8, .rounds = 1, .bytes = 8}},
     {{0, 0, 0, {NULL}}, {0, BANYAN_ERR_TIMEOUT, 0, {"rank 0 at 127.0.0.1:"}}}}};

TEST_LOOP(every_rank_says_what_failed, sizeof scenarios / sizeof *scenarios) {
  const struct scenario *scenario = &scenarios[_i];
  int count = 0;
  if (scenario->parts[0].listens) reserve_port();
  for (; count < 3 && scenario->parts[count].nranks; count++) start(count, scenario->parts[count]);
  finish_all(count);
  for (int i = 0; i < count; i++) {
    const struct said *said = &scenario->said[i];
    const struct outcome *outcome = &outcomes[i];
    ck_assert_msg(outcome->create == said->create && outcome->gather == said->gather,
                  "%s: process %d: create %d, gather %d: %s", scenario->name, i, outcome->create, outcome->gather,
                  outcome->text);
    double took_s = said->create ? outcome->create_s : outcome->gather_s;
    ck_assert_msg(said->at_most_s == 0 || took_s < said->at_most_s, "%s: process %d took %g s", scenario->name, i,
                  took_s);
    for (int t = 0; t < 3 && said->texts[t]; t++) assert_text(i, said->texts[t]);
  }
}

/* ---- unauthenticated peers --------------------------------------------------------------------------------------- */

/* Silent connections, garbage, and peers that leave, come before the ranks and while they join. */
TEST_LOOP(unauthenticated_peers_delay_nobody, 2) {
  enum { MANY = 4000, FEW = 100 };
  static int silent[MANY];
  struct rlimit files;
  char garbage[500];
  for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = (char)(i * 37);
  bool leaves_room = _i == 0; /* rank 0 may open about as many as it holds at a time, or fewer */
  struct part part = {.rank = 0, .nranks = 3, .secret = "x", .rounds = 5, .bytes = 8, .timeout_s = 120};
  part.files = leaves_room ? 0 : 100; /* the kernel may repeat a connect for seconds while the backlog is full */
  start(0, part);
  part.files = 0;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  int count = files.rlim_cur < MANY + FEW ? (int)files.rlim_cur - FEW : MANY;
  for (int i = 0; i < count; i++) {
    silent[i] = dial();
    if (i % 3 == 1) ck_assert_int_eq(send(silent[i], garbage, 10, MSG_NOSIGNAL), 10); /* the rest is never sent */
    if (i % 40) continue;
    int fd = dial();
    if (i % 80) send(fd, garbage, sizeof garbage, MSG_NOSIGNAL);
    close(fd);
  }
  double before = now_s(), patience_s = (double)BNY_BOOT_UNAUTHENTICATED_NS * 1e-9;
  for (part.rank = 1; part.rank < 3; part.rank++) start(part.rank, part);
  finish_all(3);
  double took = now_s() - before;
  for (int rank = 0; rank < 3; rank++) assert_success(rank);
  ck_assert_msg(took < 2 * patience_s, "took %g s, as if silent peers were waited for", took);
  for (int i = 0; i < count; i++) close(silent[i]);
}

TEST(counts_unauthenticated_peers) {
  int fds[3];
  start(0, (struct part){.rank = 0, .nranks = 2, .secret = "x", .timeout_s = 2});
  for (int i = 0; i < 3; i++) fds[i] = dial();
  sleep_s(0.2);
  close(fds[0]), close(fds[1]);
  finish(0);
  close(fds[2]);
  ck_assert_int_eq(outcomes[0].create, BANYAN_ERR_TIMEOUT);
  assert_text(0, "2 connections did not authenticate, the last from 127.0.0.1:");
}

/* A server that sends less than rank 0 and then waits, as an SSH server does. */
TEST(knows_another_server_by_its_first_bytes) {
  static const char greeting[] = "SSH-2.0-OpenSSH_9.2\r\n";
  start(1, (struct part){.rank = 1, .nranks = 2, .secret = "x", .timeout_s = 2});
  int fd = accept(listen_fd, NULL, NULL);
  ck_assert_int_eq(send(fd, greeting, sizeof greeting - 1, MSG_NOSIGNAL), sizeof greeting - 1);
  finish(1);
  close(fd);
  ck_assert_int_eq(outcomes[1].create, BANYAN_ERR_TIMEOUT);
  assert_text(1, "the program that listens there is not banyan's rank 0");
}

/* Rank 2 is killed before rank 3 connects, after all have connected, or in an allgather that rank 3 enters late. In the
 * last case the others must get the error at once. */
TEST_LOOP(names_a_killed_rank, 3) {
  enum { CONNECTING, CONNECTED, GATHERING };
  int nranks = _i == CONNECTING ? 3 : 4;
  for (int rank = 0; rank < nranks; rank++) {
    struct part part = {.rank = rank, .nranks = 4, .secret = "x", .rounds = 1, .bytes = 8, .timeout_s = 8};
    if (rank == 2 && _i != GATHERING) part.pause_s = 30;
    if (rank == 3 && _i == GATHERING) part.pause_s = 4;
    start(rank, part);
  }
  sleep_s(1);
  kill(pids[2], SIGKILL);
  waitpid(pids[2], NULL, 0);
  double before = now_s();
  for (int rank = 0; rank < nranks; rank++) {
    if (rank == 2) continue;
    if (rank == 3 && _i == GATHERING) /* rank 3 is still to come */
      ck_assert_msg(now_s() - before < 3, "took %g s", now_s() - before);
    finish(rank);
    if (_i != CONNECTING && !outcomes[rank].create)
      ck_assert_int_eq(outcomes[rank].gather, BANYAN_ERR_PEER);
    else /* or it was killed before all had connected */
      ck_assert_int_eq(outcomes[rank].create, BANYAN_ERR_PEER);
    assert_text(rank, "rank 2 of 4");
  }
}

/* ---- peers that violate the protocol ----------------------------------------------------------------------------- */

static const uint8_t *test_key(void) {
  static uint8_t key[BNY_BOOT_KEY_BYTES];
  ck_assert(bny_boot_key_derive("x", 1, key));
  return key;
}

/* Joins with the values of `hello`. Returns the connection. */
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

TEST_LOOP(rejects_with_a_reason, 3) {
  static const struct {
    uint32_t version, rank, nranks;
    const char *reason;
  } cases[] = {{99, 1, 2, "version 99"},
               {BNY_BOOT_VERSION, 2, 2, "rank 2 cannot join"},
               {BNY_BOOT_VERSION, 0, 2, "rank 0 joined twice"}};
  struct bny_boot_challenge challenge;
  struct bny_boot_welcome welcome;
  struct bny_boot_hello hello = {.version = htole32(cases[_i].version),
                                 .rank = htole32(cases[_i].rank),
                                 .nranks = htole32(cases[_i].nranks),
                                 .left_ms = htole32(5000)};
  start(0, (struct part){.rank = 0, .nranks = 2, .secret = "x", .timeout_s = 2});
  int fd = join_by_hand(&hello, &challenge, &welcome);
  ck_assert_int_eq(le32toh(welcome.verdict), BNY_BOOT_REJECTED);
  ck_assert_msg(strstr(welcome.reason, cases[_i].reason) != NULL, "%s", welcome.reason);
  close(fd);
  finish(0);
  ck_assert_int_eq(outcomes[0].create, cases[_i].rank == 0 ? BANYAN_ERR_BOOTSTRAP : BANYAN_ERR_TIMEOUT);
  assert_text(0, cases[_i].reason);
}

/* An attacker in the middle alters the header or the payload, or replays an old frame. */
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
  struct bny_boot_link link = {.fd = join_by_hand(&hello, &challenge, &welcome), .maker = bny_process()};
  ck_assert_int_eq(le32toh(welcome.verdict), BNY_BOOT_ACCEPTED);
  bny_boot_session_derive(test_key(), &challenge, &hello, link.session);
  const struct bny_boot_says says = {.kind = BNY_BOOT_DATA, .left_ms = 5000};
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
  assert_text(0, "data from rank 1 was altered");
  bny_boot_link_close(&link);
}

/* Another process listens at rank 0's port: one that is silent, one with another protocol, and one that knows the
 * protocol but not the secret. */
TEST_LOOP(believes_no_impostor, 3) {
  char noise[512];
  struct bny_boot_challenge challenge;
  memset(noise, 'n', sizeof noise);
  test_key();
  bny_boot_challenge_make(&challenge);
  fcntl(listen_fd, F_SETFL, O_NONBLOCK);
  start(1, (struct part){.rank = 1, .nranks = 2, .secret = "x", .timeout_s = _i == 2 ? 30 : 1.5});
  int fd = -1;
  while (waitpid(pids[1], NULL, WNOHANG) == 0) {
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
}

int main(void) {
  suite_deal(6);
  return suite_main(suite_with("boot_tcp", 60, set_up, tear_down));
}
