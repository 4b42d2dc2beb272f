/* SPDX-License-Identifier: Apache-2.0
 * The tree of the TCP bootstrap: many ranks, as threads of one process, on simulated nodes. Each is a normal rank with
 * its own connections; only its environment is passed to it. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include "banyan.h"
#include "boot/tcp.h"
#include "tests/support/self.h"
#include "tests/support/suite.h"
#include "tests/support/clock.h"
#include "tests/support/rounds.h"

#ifndef HAVE_SODIUM

int main(void) {
  printf("skipped: built without libsodium\n");
  return 77;
}

#else

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { RANKS_OF_THE_LARGE_TEST = 200 };
#else
enum { RANKS_OF_THE_LARGE_TEST = 2000 };
#endif

/* Data shared by the ranks of a test. */
struct world {
  int32_t nranks, ranks_per_node, fanout;
  int32_t nprocesses; /* started processes: ranks 0.., then as set by `extra` */
  size_t bytes;
  int rounds;
  double timeout_s;
  void (*change)(int32_t process, struct bny_boot_settings *settings); /* may be NULL */
  int32_t late;                                                        /* joins long after the others; 0: none */
  int32_t absent;                                                      /* skips the last allgather; 0: none */
  int listen_fd, port;
  pthread_barrier_t together;
};

struct process {
  struct world *world;
  int32_t number;
  pthread_t thread;
  banyan_status create, gather;
  int wrong;
  double create_s, gather_s;
  double waited_s;                       /* time spent waiting for a core */
  int32_t nlocal, nremote, depth_parent; /* numbers of children, and the parent, from which the depth follows */
  char text[BNY_ERROR_TEXT_BYTES];
};

static void open_port(struct world *world) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof address;
  world->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ck_assert_int_eq(bind(world->listen_fd, (struct sockaddr *)&address, sizeof address), 0);
  ck_assert_int_eq(listen(world->listen_fd, SOMAXCONN), 0);
  ck_assert_int_eq(getsockname(world->listen_fd, (struct sockaddr *)&address, &bytes), 0);
  world->port = ntohs(address.sin_port);
}

static struct bny_boot_settings settings_of(const struct world *world, int32_t process) {
  struct bny_boot_settings settings = {.rank = process,
                                       .nranks = world->nranks,
                                       .fanout = world->fanout,
                                       .host = "127.0.0.1",
                                       .job = "of the test",
                                       .port = world->port,
                                       .listen_fd = process == 0 ? world->listen_fd : -1,
                                       .has_secret = true};
  snprintf(settings.locality, sizeof settings.locality, "host %d", process / world->ranks_per_node);
  ck_assert(bny_boot_key_derive("secret", 6, settings.key));
  if (world->change) world->change(process, &settings);
  return settings;
}

static void *be_process(void *argument) {
  struct process *process = argument;
  struct world *world = process->world;
  const struct bny_boot_settings settings = settings_of(world, process->number);
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  pthread_barrier_wait(&world->together);
  if (world->late > 0 && world->late == process->number) usleep(700000);
  double begun = now_s();
  process->create = bny_boot_env_make(&settings, (int64_t)(world->timeout_s * 1e9), &env, &bootstrap);
  process->create_s = now_s() - begun;
  pthread_barrier_wait(&world->together);
  if (!process->create) {
    for (int32_t i = 0; i < env->nchildren; i++) *(env->children[i].local ? &process->nlocal : &process->nremote) += 1;
    process->depth_parent = env->parent.rank;
    begun = now_s();
    if (world->absent == 0 || world->absent != process->number)
      process->gather = rounds_gather(&bootstrap, world->bytes, world->rounds, world->timeout_s, &process->wrong);
    process->gather_s = now_s() - begun;
  }
  snprintf(process->text, sizeof process->text, "%s", banyan_last_error());
  process->waited_s = self_waited_s();
  pthread_barrier_wait(&world->together); /* keeps the absent rank until the others are done */
  banyan_env_destroy(env);
  return NULL;
}

/* Runs all ranks to completion. */
static struct process *play(struct world *world) {
  if (world->nprocesses == 0) world->nprocesses = world->nranks;
  if (world->timeout_s <= 0) world->timeout_s = 50;
  struct process *processes = calloc((size_t)world->nprocesses, sizeof *processes);
  pthread_attr_t small;
  open_port(world);
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 256 << 10);
  pthread_barrier_init(&world->together, NULL, (unsigned)world->nprocesses);
  for (int32_t i = 0; i < world->nprocesses; i++) {
    processes[i].world = world;
    processes[i].number = i;
    ck_assert_int_eq(pthread_create(&processes[i].thread, &small, be_process, &processes[i]), 0);
  }
  for (int32_t i = 0; i < world->nprocesses; i++) pthread_join(processes[i].thread, NULL);
  pthread_barrier_destroy(&world->together);
  pthread_attr_destroy(&small);
  close(world->listen_fd);
  return processes;
}

static void assert_success(const struct process *process) {
  ck_assert_msg(process->create == BANYAN_OK && process->gather == BANYAN_OK && process->wrong == 0,
                "process %d: create %d, gather %d, %d wrong bytes: %s", process->number, process->create,
                process->gather, process->wrong, process->text);
}

/* No rank has more children of a kind than its limit, and none is far from rank 0. Returns the depth. */
static int32_t assert_shape(const struct world *world, const struct process *processes) {
  int32_t deepest = 0;
  for (int32_t rank = 0; rank < world->nranks; rank++) {
    int32_t depth = 0;
    ck_assert_int_le(processes[rank].nlocal, world->fanout);
    ck_assert_int_le(processes[rank].nremote, world->fanout);
    for (int32_t above = rank; above != 0 && depth <= world->nranks; depth++) above = processes[above].depth_parent;
    if (depth > deepest) deepest = depth;
  }
  return deepest;
}

TEST_LOOP(trees_of_many_forms, 6) {
  static const struct world cases[] = {
      {.nranks = 5, .ranks_per_node = 1, .fanout = 2},    /* nodes of one rank */
      {.nranks = 9, .ranks_per_node = 9, .fanout = 2},    /* one node */
      {.nranks = 24, .ranks_per_node = 4, .fanout = 3},   /* deep within and between nodes */
      {.nranks = 40, .ranks_per_node = 8, .fanout = 1},   /* chains */
      {.nranks = 33, .ranks_per_node = 7, .fanout = 32},  /* a star */
      {.nranks = 34, .ranks_per_node = 7, .fanout = 32}}; /* a star and one more rank */
  struct world world = cases[_i];
  int before = self_count("/proc/self/fd");
  world.rounds = 20;
  world.bytes = 100;
  struct process *processes = play(&world);
  for (int32_t i = 0; i < world.nranks; i++) assert_success(&processes[i]);
  assert_shape(&world, processes);
  free(processes);
  ck_assert_int_eq(self_count("/proc/self/fd"), before);
}

/* More data than a rank's queue and the socket buffers hold. */
TEST(large_messages) {
  struct world world = {.nranks = 12, .ranks_per_node = 3, .fanout = 2, .rounds = 2, .bytes = 270000};
  struct process *processes = play(&world);
  for (int32_t i = 0; i < world.nranks; i++) assert_success(&processes[i]);
  free(processes);
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

TEST_LOOP(very_many_ranks, 2) {
  struct world world = {
      .nranks = RANKS_OF_THE_LARGE_TEST, .ranks_per_node = _i ? 8 : 1, .fanout = 32, .rounds = 1, .bytes = 64};
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < (rlim_t)world.nranks * 5) return;
  struct process *processes = play(&world);
  double *times = calloc((size_t)world.nranks, sizeof *times), gather_s = 0;
  int32_t most = 0;
  for (int32_t i = 0; i < world.nranks; i++) {
    assert_success(&processes[i]);
    times[i] = processes[i].create_s;
    if (processes[i].gather_s > gather_s) gather_s = processes[i].gather_s;
    int32_t children = processes[i].nlocal + processes[i].nremote;
    if (children > most) most = children;
  }
  int32_t depth = assert_shape(&world, processes);
  ck_assert_int_le(depth, 12);
  qsort(times, (size_t)world.nranks, sizeof *times, compare);
  printf(
      "%d ranks, %d a node: together after %.2f s, allgather %.2f s, depth %d, at most %d connections below a rank\n",
      world.nranks, world.ranks_per_node, times[world.nranks - 1], gather_s, depth, most);
  free(times);
  free(processes);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

enum { ALWAYS_SPARE_MS = 500 };

/* How late a rank may be after its deadline, because some ranks were kept from running. */
static double spare_s(const struct world *world, const struct process *processes) {
  double most = 0;
  for (int32_t i = 0; i < world->nranks; i++)
    if (processes[i].waited_s > most) most = processes[i].waited_s;
  return most + ALWAYS_SPARE_MS * 1e-3;
}

/* Rank 0 sends the reason a tenth of the timeout before the deadline. If it was kept from running for longer, some
 * ranks do not get it. */
static bool says(const struct process *process, const char *text, double spare_s) {
  bool may_be_late = spare_s - ALWAYS_SPARE_MS * 1e-3 > process->world->timeout_s / 10;
  return strstr(process->text, text) || (may_be_late && strstr(process->text, "rank"));
}

static void twin_of_7(int32_t process, struct bny_boot_settings *settings) {
  if (process == 24) settings->rank = 7;
}

/* Two processes have the same rank, on different nodes. One of them is rejected with the reason, and all others
 * connect. */
TEST(one_rank_too_many) {
  struct world world = {.nranks = 24, .nprocesses = 25, .ranks_per_node = 4, .fanout = 2, .rounds = 3, .bytes = 8};
  world.change = twin_of_7;
  world.late = 23;
  struct process *processes = play(&world);
  int rejected = processes[7].create ? 7 : 24;
  for (int32_t i = 0; i < world.nprocesses; i++)
    if (i != rejected) assert_success(&processes[i]);
  ck_assert_int_eq(processes[rejected].create, BANYAN_ERR_BOOTSTRAP);
  ck_assert_msg(strstr(processes[rejected].text, "rank 7 has already joined") != NULL, "%s", processes[rejected].text);
  free(processes);
}

static void other_secret(int32_t process, struct bny_boot_settings *settings) {
  if (process == 13) ck_assert(bny_boot_key_derive("SECRET", 6, settings->key));
}

static void other_size(int32_t process, struct bny_boot_settings *settings) {
  if (process == 13) settings->nranks = 25;
}

/* One rank never joins, and all others name it before their deadline. */
TEST_LOOP(one_rank_too_few, 2) {
  struct world world = {
      .nranks = 24, .ranks_per_node = 4, .fanout = 2, .timeout_s = 4, .change = _i ? other_size : other_secret};
  struct process *processes = play(&world);
  double spare = spare_s(&world, processes);
  for (int32_t i = 0; i < world.nranks; i++) {
    ck_assert_int_eq(processes[i].create, i == 13 ? BANYAN_ERR_BOOTSTRAP : BANYAN_ERR_TIMEOUT);
    ck_assert_msg(processes[i].create_s < 4 + spare, "took %g s", processes[i].create_s);
    const char *text = i == 13 ? (_i ? "rank 13 has WORLD_SIZE 25" : "secret") : "rank 13 of 24 did not connect";
    ck_assert_msg(says(&processes[i], text, spare), "process %d: %s", i, processes[i].text);
  }
  free(processes);
}

/* One rank stays away from an allgather. Ranks not below it name it, and ranks below it name their parent. */
TEST_LOOP(absent_from_an_allgather, 3) {
  struct world world = {.nranks = 24, .ranks_per_node = 4, .fanout = 2, .rounds = 1, .bytes = 8, .timeout_s = 2};
  world.absent = 1 + _i * 7;
  char name[32];
  snprintf(name, sizeof name, "rank %d ", world.absent);
  struct process *processes = play(&world);
  double spare = spare_s(&world, processes);
  for (int32_t i = 0; i < world.nranks; i++) {
    bool below = false;
    for (int32_t above = i; above != 0; above = processes[above].depth_parent)
      below |= processes[above].depth_parent == world.absent;
    if (i == world.absent) continue;
    ck_assert_int_eq(processes[i].gather, BANYAN_ERR_TIMEOUT);
    ck_assert_msg(processes[i].gather_s < 2 + spare, "took %g s", processes[i].gather_s);
    if (!below) ck_assert_msg(says(&processes[i], name, spare), "process %d: %s", i, processes[i].text);
    ck_assert_msg(strstr(processes[i].text, "rank") != NULL, "process %d: %s", i, processes[i].text);
  }
  free(processes);
}

int main(void) { return suite_main(suite_of("boot_tree", 120)); }

#endif
