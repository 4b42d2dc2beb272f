/* SPDX-License-Identifier: Apache-2.0
 * Measures how the cost of a communicator grows with its ranks: its creation, its first combine, and, after its last
 * rank has died, the shrink to the survivors with their first combine.
 *
 *     bench_grow threads|processes|simulated RANKS
 *
 * Prints a JSON object with the seconds of rank 0 and the peak memory of its process. With "threads" all ranks are in
 * one process. A thread rank dies by leaving, a process rank by exiting. With "simulated", rank 0 is the only real
 * rank, and a bootstrap simulates the others with eight on each node. This measures only the work of rank 0 to create
 * its communicator, up to the first message that it would need from a peer. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "banyan.h"
#include "boot/exchange.h"
#include "comm/facts.h"
#include "tools/common/launch.h"
#include "tools/common/util.h"

enum { HEADS = 32, VALUE_DIM = 128, RANKS_MOST = 16384 };

static const int64_t timeout_ns = INT64_C(300000000000);

typedef struct rank {
  pthread_t thread;
  int32_t number, nranks;
  bool is_thread;
  banyan_bootstrap bootstrap;
  float in[HEADS * VALUE_DIM], lse[HEADS], out[HEADS * VALUE_DIM];
} rank;

static void must(banyan_status status, const char *what) {
  if (status == BANYAN_OK) return;
  fprintf(stderr, "bench_grow: %s: %s\n", what, banyan_last_error());
  exit(EXIT_FAILURE);
}

static banyan_status combine(rank *self, banyan_comm *comm) {
  banyan_partial in, out;
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = HEADS, .value_dim = VALUE_DIM};
  banyan_partial_init(&in, self->in, BANYAN_F32, self->lse, BANYAN_F32, HEADS, VALUE_DIM);
  banyan_partial_init(&out, self->out, BANYAN_F32, NULL, BANYAN_F32, HEADS, VALUE_DIM);
  return banyan_combine(comm, &desc, &in, &out);
}

/* Returns the seconds since *begin, and sets *begin to now. */
static double lap(int64_t *begin) {
  int64_t before = *begin;
  *begin = tool_now_ns();
  return (double)(*begin - before) / 1e9;
}

static void *live(void *argument) {
  rank *self = argument;
  banyan_comm *comm, *left;
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = timeout_ns, .threads = 1};
  struct rusage usage;
  int64_t now = tool_now_ns();
  must(banyan_comm_create(&self->bootstrap, &config, &comm), "communicator");
  double create = lap(&now);
  must(combine(self, comm), "combine");
  double first = lap(&now);
  if (self->number == self->nranks - 1) {
    if (!self->is_thread) _exit(0);
    banyan_comm_destroy(comm);
    return NULL;
  }
  while (combine(self, comm) == BANYAN_OK) continue;
  double noticed = lap(&now);
  must(banyan_comm_shrink(comm, NULL, &left), "shrink");
  double shrink = lap(&now);
  must(combine(self, left), "combine of the ranks that are left");
  double again = lap(&now);
  getrusage(RUSAGE_SELF, &usage);
  if (self->number == 0)
    printf("{\"ranks\": %d, \"create\": %.6f, \"first\": %.6f, \"noticed\": %.6f, \"shrink\": %.6f, \"again\": %.6f, "
           "\"peak_memory_bytes\": %lld}\n",
           self->nranks, create, first, noticed, shrink, again, (long long)usage.ru_maxrss * 1024);
  banyan_comm_destroy(left);
  banyan_comm_destroy(comm);
  return NULL;
}

static int run_threads(int32_t nranks) {
  rank *ranks = calloc((size_t)nranks, sizeof *ranks);
  banyan_threads *group;
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 1 << 20);
  must(ranks != NULL ? banyan_threads_create(nranks, &group) : BANYAN_ERR_MEMORY, "group");
  for (int32_t r = 0; r < nranks; r++) {
    ranks[r].number = r;
    ranks[r].nranks = nranks;
    ranks[r].is_thread = true;
    must(banyan_threads_bootstrap(group, r, &ranks[r].bootstrap), "bootstrap");
    if (pthread_create(&ranks[r].thread, &small, live, &ranks[r]) != 0) exit(EXIT_FAILURE);
  }
  for (int32_t r = 0; r < nranks; r++) pthread_join(ranks[r].thread, NULL);
  banyan_threads_destroy(group);
  free(ranks);
  return EXIT_SUCCESS;
}

/* ---- a simulated bootstrap --------------------------------------------------------------------------------------- */

typedef struct simulated {
  int32_t nranks;
  int reports, last; /* number of success reports so far, and the number after which ranks would connect; 0: unknown */
  int64_t bytes, end_ns;
} simulated;

/* Answers with the data of rank 0, so that all ranks look like it, with eight ranks per node. */
static int answer_all(void *context, const void *mine, void *all, size_t bytes, int64_t timeout) {
  simulated *self = context;
  int32_t status;
  (void)timeout;
  for (int32_t r = 0; r < self->nranks; r++) {
    void *theirs = (char *)all + (size_t)r * bytes;
    memcpy(theirs, mine, bytes);
    if (bytes != sizeof(bny_facts) || r == 0) continue;
    bny_facts *facts = theirs;
    facts->rank = r;
    facts->pid += r;
    snprintf(facts->node, sizeof facts->node, "node%d", (r + 7) / 8);
  }
  self->bytes += (int64_t)bytes;
  memcpy(&status, mine, sizeof status);
  if (bytes != BNY_REPORT_BYTES || status != BANYAN_OK) return 0;
  self->end_ns = tool_now_ns();
  return ++self->reports == self->last;
}

/* Returns the seconds until ranks would connect. */
static double create_simulated(simulated *self, int64_t deadline_ns) {
  banyan_bootstrap bootstrap = BANYAN_BOOTSTRAP_INIT;
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = deadline_ns, .threads = 1};
  banyan_comm *comm;
  bootstrap.nranks = self->nranks;
  bootstrap.context = self;
  bootstrap.allgather = answer_all;
  int64_t begin_ns = tool_now_ns();
  if (banyan_comm_create(&bootstrap, &config, &comm) == BANYAN_OK) exit(EXIT_FAILURE); /* no peers exist */
  if (self->reports == 0) must(BANYAN_ERR_STATE, banyan_last_error());
  return (double)(self->end_ns - begin_ns) / 1e9;
}

static int run_simulated(int32_t nranks) {
  simulated two = {.nranks = 2}, all = {.nranks = nranks};
  struct rusage usage;
  setenv("BANYAN_LOG", "error", 0); /* reports to peers reach rank 0 itself, which warns */
  setenv("UCX_TLS", "tcp", 0);
  create_simulated(&two, 200000000);
  all.last = two.reports;
  double create = create_simulated(&all, timeout_ns);
  getrusage(RUSAGE_SELF, &usage);
  printf("{\"ranks\": %d, \"create\": %.6f, \"bytes_from_each\": %lld, \"peak_memory_bytes\": %lld}\n", nranks, create,
         (long long)all.bytes, (long long)usage.ru_maxrss * 1024);
  return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
  int64_t nranks = 0;
  bool threads = argc == 3 && strcmp(argv[1], "threads") == 0,
       simulates = argc == 3 && strcmp(argv[1], "simulated") == 0;
  if (argc != 3 || !(threads || simulates || strcmp(argv[1], "processes") == 0) ||
      !tool_parse_int(argv[2], 2, RANKS_MOST, &nranks)) {
    fprintf(stderr, "usage: bench_grow threads|processes|simulated RANKS, of 2 to %d\n", RANKS_MOST);
    return 2;
  }
  if (simulates) return run_simulated((int32_t)nranks);
  if (threads) return run_threads((int32_t)nranks);
  if (!bny_launch_is_rank()) return bny_launch_local((int)nranks, argv, BNY_LAUNCH_FREE);
  static rank self;
  banyan_env *env;
  self.bootstrap = (banyan_bootstrap)BANYAN_BOOTSTRAP_INIT;
  must(banyan_env_create(timeout_ns, &env, &self.bootstrap), "joining");
  self.number = self.bootstrap.rank;
  self.nranks = self.bootstrap.nranks;
  live(&self);
  banyan_env_destroy(env);
  return EXIT_SUCCESS;
}
