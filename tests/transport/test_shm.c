/* SPDX-License-Identifier: Apache-2.0
 * Ranks as processes leave nothing of their shared memory behind. */
#include <fcntl.h>

#include "tests/support/self.h"
#include "tests/support/world.h"

static const int32_t nranks_of[] = {1, 2, 3, 5};

/* ---- leaks ------------------------------------------------------------------------------------------------------- */

/* Writes of the program to a closed stdout must not reach a peer or shared memory. */
static void come_and_go(world_rank *self) {
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = 10000000000, .arena_bytes = 256 << 10};
  for (int fd = 0; fd <= STDERR_FILENO; fd++) close(fd);
  int files = self_count("/proc/self/fd");
  unsigned char bytes[777] = {0};
  for (int round = 0; round < 20; round++) {
    if (!world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create")) return;
    if (round == 0 &&
        !world_check(self, self->nranks == 1 || self_mappings("memfd:banyan") > 0, "the test sees no shared memory"))
      return;
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
      world_check(self, fcntl(fd, F_GETFD) < 0, "the library keeps something open as %d", fd);
    if (!world_ok(self, banyan_barrier(self->comm), "barrier") ||
        !world_ok(self, banyan_broadcast(self->comm, bytes, sizeof bytes, 0), "broadcast"))
      return;
    banyan_comm_destroy(self->comm);
    self->comm = NULL;
  }
  int now = self_count("/proc/self/fd"), mappings = self_mappings("memfd:banyan");
  world_check(self, now == files && mappings == 0, "%d files were open, and %d are; %d mappings are left", files, now,
              mappings);
}

TEST_LOOP(nothing_is_left_behind, 4) {
  WORLD_RUN(come_and_go, .nranks = nranks_of[_i], .processes = true, .bare = true);
  ck_assert_int_eq(system("! ls /dev/shm | grep -q banyan"), 0);
}

/* One rank fails during creation. The others get the error, and nothing is left behind. */
TEST_RANKS(nothing_is_left_of_a_failure, 1, .nranks = 3, .processes = true, .bare = true) {
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = 1000000000};
  if (self->rank == 1) config.algorithm = "ring";
  int files = self_count("/proc/self/fd");
  for (int round = 0; round < 3; round++) {
    banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
    if (!world_check(self, status == BANYAN_ERR_MISMATCH, "create gave %d: %s", status, banyan_last_error())) return;
  }
  int now = self_count("/proc/self/fd");
  world_check(self, now == files && self_mappings("memfd:banyan") == 0, "%d files were open, and %d are", files, now);
}

int main(void) { return world_main(suite_of("shm", 120)); }
