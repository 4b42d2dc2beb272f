/* SPDX-License-Identifier: Apache-2.0
 * A rank stops at any moment while it connects to another node. Its peer gives up at the deadline and leaves alive.
 * With UCX before 1.14, which cannot close during a connection request, the worker may stay. */
#include <signal.h>

#include "tests/support/world.h"

#include "tests/transport/net_util.h"
#include "tests/support/self.h"

enum { FLAG_BEGUN = 1, FLAG_ENDED = 2 };

/* Descriptors that UCX keeps open once it is loaded, and those of a worker that stays. */
enum { FILES_OF_UCX = 6, FILES_OF_WORKER = 10, THREADS_OF_WORKER = 1 };

static bool may_leave_worker(void) {
  bny_ucx ucx;
  unsigned major = 0, minor = 0, patch = 0;
  if (bny_ucx_load(&ucx) == BANYAN_OK) ucx.ucp_get_version(&major, &minor, &patch);
  return major == 1 && minor < 14;
}

/* Rank 1 waits for rank 0, which may be stopped, to connect. */
static void connect_once(world_rank *self) {
  int files = self_count("/proc/self/fd"), threads = self_count("/proc/self/task");
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = world_is_sanitized() ? 800000000 : 200000000};
  if (self->rank == 0) world_signal(self->world, FLAG_BEGUN);
  banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
  if (self->rank == 0) return;
  world_check(self, status == BANYAN_OK || status == BANYAN_ERR_TIMEOUT || status == BANYAN_ERR_BOOTSTRAP, "%s: %s",
              banyan_status_string(status), banyan_last_error());
  banyan_comm_destroy(self->comm);
  self->comm = NULL;
  int more_files = self_count("/proc/self/fd") - files, more_threads = self_count("/proc/self/task") - threads;
  bool may = may_leave_worker();
  world_check(self, more_files <= FILES_OF_UCX + (may ? FILES_OF_WORKER : 0), "%d more files", more_files);
  world_check(self, more_threads <= (may ? THREADS_OF_WORKER : 0), "%d more threads", more_threads);
  world_signal(self->world, FLAG_ENDED);
}

static void stop_rank_0(world *world, const pid_t *pids, void *argument) {
  const double *after_ms = argument;
  world_await(world, FLAG_BEGUN, 10);
  world_sleep_ms(*after_ms);
  kill(pids[0], SIGSTOP);
  ck_assert_msg(world_await(world, FLAG_ENDED, 10), "rank 1 did not end (rank 0 was stopped after %.2f ms)", *after_ms);
  kill(pids[0], SIGKILL);
}

TEST_LOOP(half_a_connection_is_left, 16) {
  double after_ms;
  world_be_nodes("a,b");
  setenv("BANYAN_LOG", getenv("TEST_LOG") ? getenv("TEST_LOG") : "error", 1);
  world_random random = random_seed() * 1000 + (uint64_t)_i;
  after_ms = 7 + 7 * random_unit(&random);
  WORLD_RUN(connect_once, .nranks = 2, .processes = true, .bare = true, .deaths = true, .conduct = stop_rank_0,
            .argument = &after_ms);
}

int main(void) {
  if (net_is_absent()) return 77;
  return world_main(suite_of("net_half", 30));
}
