/* SPDX-License-Identifier: Apache-2.0
 * Makes ranks that are threads of one process. Every rank of an all-gather leaves pointers to its memory. The last one
 * to arrive copies for all of them while they wait. Nothing is allocated, and one generation cannot overtake
 * another. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "boot/exchange.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/process.h"
#include "base/status.h"

struct thread_rank {
  struct banyan_threads *group;
  int32_t rank;
  const void *mine; /* memory of the waiting caller; valid while it has arrived */
  void *all;
};

struct banyan_threads {
  uint64_t process; /* the process that made it */
  int32_t nranks;
  pthread_mutex_t mutex; /* guards all fields below, and the pointers of the ranks */
  pthread_cond_t changed;
  uint64_t generation; /* number of completed all-gathers */
  int32_t narrived;    /* in the current all-gather */
  size_t bytes;        /* its size, set by its first rank */
  int32_t first_rank;
  banyan_status failure; /* not BANYAN_OK: the ranks are out of step, and no later all-gather can be trusted */
  char failure_text[BNY_ERROR_TEXT_BYTES];
  bool *arrived; /* [nranks] */
  struct thread_rank ranks[];
};

/* Breaks the group: every waiting rank wakes up and reports the same failure. The caller holds the mutex. */
static void break_group(struct banyan_threads *group, banyan_status failure) {
  group->failure = failure;
  memcpy(group->failure_text, banyan_last_error(), strlen(banyan_last_error()) + 1);
  pthread_cond_broadcast(&group->changed);
}

static banyan_status fail_missing(struct banyan_threads *group, int32_t rank, int64_t timeout_ns) {
  char names[256];
  size_t length = 0;
  bny_boot_append_ranks(names, sizeof names, &length, group->arrived, group->nranks, false);
  if (timeout_ns <= 0) timeout_ns = BNY_BOOT_DEFAULT_TIMEOUT_NS;
  return bny_fail(BANYAN_ERR_TIMEOUT, "bootstrap of threads: %s of %d did not join within the %.3g s of rank %d", names,
                  group->nranks, (double)timeout_ns * 1e-9, rank);
}

/* The last rank to arrive calls this with the mutex held. Every other rank waits, so its memory is safe to use. */
static void copy_for_all(struct banyan_threads *group) {
  for (int32_t to = 0; to < group->nranks && group->bytes > 0; to++) {
    char *all = group->ranks[to].all;
    for (int32_t from = 0; from < group->nranks; from++)
      memmove(all + (size_t)from * group->bytes, group->ranks[from].mine, group->bytes);
  }
  memset(group->arrived, 0, (size_t)group->nranks * sizeof *group->arrived);
  group->narrived = 0;
  group->generation++;
  pthread_cond_broadcast(&group->changed);
}

/* Adds this rank to the current all-gather; fails if the ranks are out of step. */
static banyan_status arrive(struct banyan_threads *group, struct thread_rank *self, const void *mine, void *all,
                            size_t bytes) {
  if (group->arrived[self->rank])
    return bny_fail(BANYAN_ERR_BOOTSTRAP, "bootstrap of threads: rank %d of %d is used by two threads at once",
                    self->rank, group->nranks);
  if (group->narrived > 0 && group->bytes != bytes)
    return bny_fail(BANYAN_ERR_BOOTSTRAP, "bootstrap of threads: rank %d gathers %zu bytes where rank %d gathers %zu",
                    self->rank, bytes, group->first_rank, group->bytes);
  if (group->narrived == 0) {
    group->bytes = bytes;
    group->first_rank = self->rank;
  }
  self->mine = mine;
  self->all = all;
  group->arrived[self->rank] = true;
  group->narrived++;
  return BANYAN_OK;
}

/* The check that interrupts this thread is the caller's, and may take long. The caller holds the mutex. */
static bool is_late(struct banyan_threads *group, int64_t deadline_ns) {
  pthread_mutex_unlock(&group->mutex);
  bool is = bny_deadline_is_late(deadline_ns);
  pthread_mutex_lock(&group->mutex);
  return is;
}

static banyan_status gather_locked(struct banyan_threads *group, struct thread_rank *self, const void *mine, void *all,
                                   size_t bytes, int64_t timeout_ns) {
  if (group->failure) return bny_fail(group->failure, "%s", group->failure_text);
  int64_t deadline_ns = bny_boot_deadline_ns(timeout_ns);
  banyan_status status = arrive(group, self, mine, all, bytes);
  if (status) {
    break_group(group, status);
    return status;
  }
  uint64_t generation = group->generation;
  if (group->narrived == group->nranks) copy_for_all(group);
  while (generation == group->generation && !group->failure && !is_late(group, deadline_ns)) {
    if (generation != group->generation || group->failure) break; /* while the mutex was free */
    int64_t look_ns = bny_clock_ns() + bny_deadline_poll_ms(deadline_ns) * INT64_C(1000000);
    struct timespec until = {look_ns / 1000000000, look_ns % 1000000000};
    pthread_cond_timedwait(&group->changed, &group->mutex, &until);
  }
  /* The order matters: a generation that completed is a success, whatever happened afterwards. */
  if (generation != group->generation) return BANYAN_OK;
  if (group->failure) return bny_fail(group->failure, "%s", group->failure_text);
  status = fail_missing(group, self->rank, timeout_ns);
  break_group(group, status);
  return status;
}

static int allgather_threads(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  struct thread_rank *self = context;
  if (bny_boot_check_process(self->group->process)) return BANYAN_ERR_STATE;
  pthread_mutex_lock(&self->group->mutex);
  banyan_status status = gather_locked(self->group, self, mine, all, bytes, timeout_ns);
  pthread_mutex_unlock(&self->group->mutex);
  return (int)status;
}

static banyan_status init_locks(struct banyan_threads *group) {
  pthread_condattr_t attributes;
  int error = pthread_condattr_init(&attributes);
  if (!error) error = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  if (!error) error = pthread_cond_init(&group->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  if (!error) error = pthread_mutex_init(&group->mutex, NULL);
  return error ? bny_fail_errno(BANYAN_ERR_SYSTEM, error, "banyan_threads_create: a lock cannot be made") : BANYAN_OK;
}

banyan_status banyan_threads_create(int32_t nranks, banyan_threads **group) {
  if (!group) return bny_fail(BANYAN_ERR_ARGUMENT, "banyan_threads_create: group is NULL");
  if (nranks < 1)
    return bny_fail(BANYAN_ERR_ARGUMENT, "banyan_threads_create: nranks is %d, must be at least 1", nranks);
  struct banyan_threads *made = calloc(1, sizeof *made + (size_t)nranks * sizeof made->ranks[0]);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "banyan_threads_create: no memory for %d ranks", nranks);
  banyan_status status = BANYAN_ERR_MEMORY;
  made->arrived = calloc((size_t)nranks, sizeof *made->arrived);
  if (!made->arrived) {
    bny_fail(status, "banyan_threads_create: no memory for %d ranks", nranks);
    goto memory;
  }
  status = init_locks(made);
  if (status) goto memory;
  made->process = bny_process();
  made->nranks = nranks;
  for (int32_t rank = 0; rank < nranks; rank++) {
    made->ranks[rank].group = made;
    made->ranks[rank].rank = rank;
  }
  *group = made;
  return BANYAN_OK;
memory:
  free(made->arrived);
  free(made);
  return status;
}

banyan_status banyan_threads_bootstrap(banyan_threads *group, int32_t rank, banyan_bootstrap *bootstrap) {
  if (!group || !bootstrap)
    return bny_fail(BANYAN_ERR_ARGUMENT, "banyan_threads_bootstrap: %s is NULL", group ? "bootstrap" : "group");
  if (rank < 0 || rank >= group->nranks)
    return bny_fail(BANYAN_ERR_ARGUMENT, "banyan_threads_bootstrap: rank is %d, must be 0..%d", rank,
                    group->nranks - 1);
  *bootstrap = (banyan_bootstrap){.size = sizeof *bootstrap,
                                  .rank = rank,
                                  .nranks = group->nranks,
                                  .context = &group->ranks[rank],
                                  .allgather = allgather_threads};
  return BANYAN_OK;
}

void banyan_threads_destroy(banyan_threads *group) {
  if (!group) return;
  /* In the child of a fork threads of the parent may seem to wait. */
  if (group->process == bny_process()) {
    pthread_cond_destroy(&group->changed);
    pthread_mutex_destroy(&group->mutex);
  }
  free(group->arrived);
  free(group);
}
