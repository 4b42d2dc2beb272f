/* SPDX-License-Identifier: Apache-2.0
 * Many ranks of the TCP bootstrap, as threads of one process. Each is a normal rank with its own connections; only its
 * environment is passed to it. And ranks whose peers read late. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "banyan.h"
#include "base/process.h"
#include "boot/tcp.h"
#include "tests/support/clock.h"
#include "tests/support/port.h"
#include "tests/support/rounds.h"
#include "tests/support/self.h"
#include "tests/support/suite.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { MOST_RANKS = 200 };
#else
enum { MOST_RANKS = 1024 };
#endif

/* Data shared by the ranks of a test. */
struct world {
  int32_t nranks, nprocesses; /* started processes: each rank once, and further ones of rank 7 */
  size_t bytes;
  int rounds;
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
  char text[BNY_ERROR_TEXT_BYTES];
};

/* The first all-gather is measured, without the check of its bytes. */
static void gather(struct process *process, const banyan_bootstrap *bootstrap) {
  const struct world *world = process->world;
  size_t bytes = world->bytes;
  unsigned char *all = malloc((size_t)world->nranks * bytes), *mine = all + (size_t)bootstrap->rank * bytes;
  for (size_t i = 0; i < bytes; i++) mine[i] = rounds_byte(bootstrap->rank, 0, i);
  double begun = now_s();
  process->gather = (banyan_status)bootstrap->allgather(bootstrap->context, mine, all, bytes, 50000000000);
  process->gather_s = now_s() - begun;
  for (int32_t from = 0; from < world->nranks && !process->gather; from++)
    for (size_t i = 0; i < bytes; i += 1 + bytes / 64)
      process->wrong += all[(size_t)from * bytes + i] != rounds_byte(from, 0, i);
  free(all);
  if (!process->gather) process->gather = rounds_gather(bootstrap, bytes, world->rounds, 50, &process->wrong);
}

static void *be_process(void *argument) {
  struct process *process = argument;
  struct world *world = process->world;
  bool is_second = process->number >= world->nranks;
  struct bny_boot_settings settings = {.rank = is_second ? 7 : process->number,
                                       .nranks = world->nranks,
                                       .host = "127.0.0.1",
                                       .job = "of the test",
                                       .port = world->port,
                                       .listen_fd = process->number == 0 ? world->listen_fd : -1,
                                       .has_secret = true};
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  ck_assert(bny_boot_key_derive("secret", 6, settings.key));
  pthread_barrier_wait(&world->together);
  double begun = now_s();
  process->create = bny_boot_env_make(&settings, 50000000000, &env, &bootstrap);
  process->create_s = now_s() - begun;
  if (!process->create) gather(process, &bootstrap);
  snprintf(process->text, sizeof process->text, "%s", banyan_last_error());
  banyan_env_destroy(env);
  return NULL;
}

/* Runs all ranks to completion. Returns NULL if this process may not open enough files. */
static struct process *play(struct world *world) {
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < (rlim_t)world->nranks * 3 + 100) return NULL;
  if (world->nprocesses == 0) world->nprocesses = world->nranks;
  struct process *processes = calloc((size_t)world->nprocesses, sizeof *processes);
  pthread_attr_t small;
  world->listen_fd = listen_on_any_port(SOCK_CLOEXEC, &world->port);
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

TEST_LOOP(gathers_of_many_ranks, 5) {
  static const struct world cases[] = {{.nranks = 24, .rounds = 20, .bytes = 100},
                                       {.nranks = 12, .rounds = 2, .bytes = 270000}, /* more than sockets hold */
                                       {.nranks = 64, .bytes = 256},
                                       {.nranks = 256, .bytes = 256},
                                       {.nranks = MOST_RANKS, .bytes = 256}};
  struct world world = cases[_i];
  int before = self_count("/proc/self/fd");
  struct process *processes = play(&world);
  if (!processes) return;
  double create_s = 0, gather_s = 0;
  for (int32_t i = 0; i < world.nranks; i++) {
    assert_success(&processes[i]);
    if (processes[i].create_s > create_s) create_s = processes[i].create_s;
    if (processes[i].gather_s > gather_s) gather_s = processes[i].gather_s;
  }
  printf("%d ranks: together after %.3f s; an allgather of %zu bytes of each takes %.3f s\n", world.nranks, create_s,
         world.bytes, gather_s);
  free(processes);
  ck_assert_int_eq(self_count("/proc/self/fd"), before);
}

/* Two processes have the same rank. One of them is rejected with the reason, and all others connect. */
TEST(one_rank_too_many) {
  struct world world = {.nranks = 24, .nprocesses = 25, .rounds = 3, .bytes = 8};
  struct process *processes = play(&world);
  int rejected = processes[7].create ? 7 : 24;
  for (int32_t i = 0; i < world.nprocesses; i++)
    if (i != rejected) assert_success(&processes[i]);
  /* It comes while the others join, or after all have. */
  ck_assert(processes[rejected].create == BANYAN_ERR_BOOTSTRAP || processes[rejected].create == BANYAN_ERR_TIMEOUT);
  if (processes[rejected].create == BANYAN_ERR_BOOTSTRAP)
    ck_assert_msg(strstr(processes[rejected].text, "rank 7 has already joined") != NULL, "%s",
                  processes[rejected].text);
  free(processes);
}

/* ---- peers that read late ---------------------------------------------------------------------------------------- */

/* A peer that reads nothing for some time, and then reads everything. */
struct sleepy_peer {
  int fd;
  double sleep_s;
  bool heard; /* the reason */
};

static const char reason[] = "the reason of it all";

static void *sleep_and_read(void *argument) {
  struct sleepy_peer *peer = argument;
  char block[8192];
  size_t kept = 0;
  ssize_t got;
  sleep_s(peer->sleep_s);
  while ((got = read(peer->fd, block + kept, sizeof block - kept)) > 0) {
    kept += (size_t)got;
    for (size_t i = 0; i + sizeof reason - 1 <= kept; i++)
      peer->heard |= memcmp(block + i, reason, sizeof reason - 1) == 0;
    if (kept > sizeof block / 2) memmove(block, block + kept - sizeof reason, sizeof reason), kept = sizeof reason;
  }
  return NULL;
}

/* A connection whose socket buffers are full. */
static struct bny_boot_link full_link(int *other_end) {
  int ends[2];
  char junk[4096];
  memset(junk, 'x', sizeof junk);
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  while (send(ends[0], junk, sizeof junk, MSG_DONTWAIT) > 0) continue;
  while (send(ends[0], junk, 1, MSG_DONTWAIT) > 0) continue;
  *other_end = ends[1];
  return (struct bny_boot_link){.fd = ends[0], .maker = bny_process()};
}

/* Peers that read within a second get the reason of a failure. One that never reads is given up. */
TEST(sleepy_peers_get_the_reason) {
  enum { PEERS = 3, NEVER = 2 };
  struct sleepy_peer peers[PEERS] = {{.sleep_s = 0.1}, {.sleep_s = 0.2}};
  pthread_t threads[PEERS];
  struct bny_boot_link links[PEERS];
  struct banyan_env env = {.links = links, .nlinks = PEERS};
  for (int i = 0; i < PEERS; i++) links[i] = full_link(&peers[i].fd);
  for (int i = 0; i < NEVER; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, sleep_and_read, &peers[i]), 0);
  double begun = now_s();
  bny_fail(BANYAN_ERR_TIMEOUT, "%s", reason);
  ck_assert_int_eq(bny_boot_fail_all(&env, BANYAN_ERR_TIMEOUT), BANYAN_ERR_TIMEOUT);
  double took = now_s() - begun;
  ck_assert_msg(took > 0.5 && took < 3, "it took %.3f s", took);
  for (int i = 0; i < NEVER; i++) {
    pthread_join(threads[i], NULL);
    ck_assert_msg(peers[i].heard, "peer %d did not get the reason", i);
  }
  for (int i = 0; i < PEERS; i++) close(peers[i].fd);
}

int main(void) { return suite_main(suite_of("boot_many", 120)); }
