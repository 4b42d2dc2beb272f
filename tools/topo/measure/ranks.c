/* SPDX-License-Identifier: Apache-2.0
 * The parent's side. It starts the ranks, sends orders, detects ranks that die, and ends all ranks. A signal such as
 * SIGINT is delivered after they have ended. If the parent is killed, the kernel ends its ranks (PR_SET_PDEATHSIG). The
 * shared memory has no name and disappears with the processes. */
#include "tools/topo/measure/measure.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_NS = 50000000 /* interval of checks for dead ranks */ };

static const int64_t patience_ns = 10000000000;

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static bool memory_map(topo_ranks *ranks, tool_error *error) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), nranks = (size_t)ranks->nranks;
  size_t mailboxes = (sizeof(topo_mailbox) * nranks + 128 + page - 1) / page * page;
  ranks->area_bytes = page + (TOPO_MESSAGE_SLOTS * TOPO_MESSAGE_BYTES + page - 1) / page * page;
  size_t buffers = (size_t)ranks->nnodes * 2 * TOPO_BUFFER_BYTES;
  ranks->memory_bytes = mailboxes + nranks * ranks->area_bytes + buffers;
  void *memory = mmap(NULL, ranks->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return tool_error_set(error, "%zu MiB of memory that the ranks share cannot be had: %s", ranks->memory_bytes >> 20,
                          strerror(errno));
  }
  ranks->memory = memory;
  ranks->mailboxes = (topo_mailbox *)(void *)(ranks->memory + 128);
  ranks->areas = ranks->memory + mailboxes;
  ranks->buffers = ranks->areas + nranks * ranks->area_bytes;
  for (size_t r = 0; r < nranks; r++)
    if (sem_init(&ranks->mailboxes[r].go, 1, 0) != 0 || sem_init(&ranks->mailboxes[r].done, 1, 0) != 0)
      return tool_error_set(error, "no semaphores for %d ranks: %s", ranks->nranks, strerror(errno));
  return true;
}

/* Numbers NUMA nodes in the order of their first ranks. */
static void nodes_count(topo_ranks *ranks) {
  ranks->nnodes = 0;
  for (int32_t r = 0; r < ranks->nranks; r++) {
    int32_t same = 0;
    while (ranks->places[same].numa != ranks->places[r].numa) same++;
    ranks->node_of[r] = same < r ? ranks->node_of[same] : ranks->nnodes++;
  }
}

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

static struct timespec in_ns(int64_t ns) {
  int64_t when = tool_now_ns() + ns;
  return (struct timespec){when / 1000000000, when % 1000000000};
}

static bool pin_to(int32_t cpu) {
  cpu_set_t *set = CPU_ALLOC(cpu + 1);
  if (set == NULL) return false;
  size_t bytes = CPU_ALLOC_SIZE(cpu + 1);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(cpu, bytes, set);
  bool pinned = sched_setaffinity(0, bytes, set) == 0;
  CPU_FREE(set);
  return pinned;
}

static _Noreturn void be_rank(topo_ranks *ranks, int32_t rank, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1); /* the parent ended before the watch was set */
  topo_mailbox *mailbox = &ranks->mailboxes[rank];
  mailbox->answer = (topo_answer){.done = pin_to(ranks->places[rank].cpu)};
  topo_rank_touch(ranks, rank);
  sem_post(&mailbox->done);
  for (;;) {
    struct timespec deadline = in_ns(1000000000);
    if (sem_clockwait(&mailbox->go, CLOCK_MONOTONIC, &deadline) == 0) {
      mailbox->answer = topo_rank_work(ranks, rank, &mailbox->order);
      sem_post(&mailbox->done);
    } else if (getppid() != parent) {
      _exit(1);
    }
  }
}

/* ---- the parent -------------------------------------------------------------------------------------------------- */

/* Blocks signals that would end the program, in all processes, until the ranks have ended. */
static void signals_hold(topo_ranks *ranks) {
  static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction action;
  sigemptyset(&ranks->held);
  for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
    if (sigaction(ends[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&ranks->held, ends[i]);
  sigprocmask(SIG_BLOCK, &ranks->held, &ranks->mask_before);
}

static bool signal_came(const topo_ranks *ranks) {
  sigset_t pending;
  sigpending(&pending);
  return (sigismember(&ranks->held, SIGINT) == 1 && sigismember(&pending, SIGINT) == 1) ||
         (sigismember(&ranks->held, SIGTERM) == 1 && sigismember(&pending, SIGTERM) == 1) ||
         (sigismember(&ranks->held, SIGHUP) == 1 && sigismember(&pending, SIGHUP) == 1);
}

/* Returns true if all ranks live and no signal is pending; otherwise false and *error. */
static bool all_well(topo_ranks *ranks, tool_error *error) {
  if (signal_came(ranks)) return tool_error_set(error, "interrupted by a signal");
  for (int32_t r = 0; r < ranks->nranks; r++) {
    int how = 0;
    pid_t ended = ranks->pids[r] == 0 ? 0 : waitpid(ranks->pids[r], &how, WNOHANG);
    if (ended == 0) continue;
    ranks->pids[r] = 0;
    int cpu = ranks->places[r].cpu;
    if (ended > 0 && WIFSIGNALED(how)) {
      return tool_error_set(error, "the process that measured on CPU %d was ended by signal %d (%s)%s", cpu,
                            WTERMSIG(how), strsignal(WTERMSIG(how)),
                            WTERMSIG(how) == SIGBUS || WTERMSIG(how) == SIGKILL ? "; is there enough memory?" : "");
    }
    return tool_error_set(error, "the process that measured on CPU %d ended unasked", cpu);
  }
  return true;
}

static bool wait_for(topo_ranks *ranks, int32_t rank, int64_t until_ns, tool_error *error) {
  for (;;) {
    struct timespec look = in_ns(LOOK_NS);
    if (sem_clockwait(&ranks->mailboxes[rank].done, CLOCK_MONOTONIC, &look) == 0) return true;
    if (!all_well(ranks, error)) return false;
    if (tool_now_ns() > until_ns) {
      return tool_error_set(error,
                            "the process that measures on CPU %d did not answer within %.3g s: another with higher "
                            "priority may hold that CPU",
                            ranks->places[rank].cpu, (double)ranks->patience_ns / 1e9);
    }
  }
}

bool topo_ranks_do(topo_ranks *ranks, const int32_t *who, const topo_order *orders, int32_t count, tool_error *error) {
  enum { SIGNALS_OF_A_JOB = 1 << 24 };
  if (signal_came(ranks)) return tool_error_set(error, "interrupted by a signal");
  ranks->base += SIGNALS_OF_A_JOB;
  for (int32_t i = 0; i < count; i++) {
    topo_mailbox *mailbox = &ranks->mailboxes[who[i]];
    mailbox->order = orders[i];
    mailbox->order.base = ranks->base;
    mailbox->answer = (topo_answer){.done = false};
    sem_post(&mailbox->go);
  }
  int64_t until_ns = tool_now_ns() + ranks->patience_ns;
  for (int32_t i = 0; i < count; i++) {
    if (!wait_for(ranks, who[i], until_ns, error)) return false;
    if (!ranks->mailboxes[who[i]].answer.done) {
      return tool_error_set(error,
                            "CPU %d waited too long for a signal: another program with higher priority may hold one of "
                            "the CPUs",
                            ranks->places[who[i]].cpu);
    }
  }
  return true;
}

static bool start_all(topo_ranks *ranks, tool_error *error) {
  pid_t parent = getpid();
  fflush(NULL); /* otherwise each child might print the buffer again */
  for (int32_t r = 0; r < ranks->nranks; r++) {
    pid_t pid = fork();
    if (pid == 0) be_rank(ranks, r, parent);
    if (pid < 0)
      return tool_error_set(error, "process %d of %d cannot be started: %s", r + 1, ranks->nranks, strerror(errno));
    ranks->pids[r] = pid;
  }
  int64_t until_ns = tool_now_ns() + ranks->patience_ns;
  for (int32_t r = 0; r < ranks->nranks; r++) {
    if (!wait_for(ranks, r, until_ns, error)) return false;
    if (!ranks->mailboxes[r].answer.done)
      return tool_error_set(error, "a process cannot run on CPU %d alone", ranks->places[r].cpu);
  }
  /* One rank of each NUMA node touches its memory first, which places it there. */
  for (int32_t node = 0, r = 0; node < ranks->nnodes; r++) {
    if (ranks->node_of[r] == node) {
      topo_order order = {.peer = -1};
      node++;
      if (!topo_ranks_do(ranks, &r, &order, 1, error)) return false;
    }
  }
  return true;
}

bool topo_ranks_start(topo_ranks *ranks, const topo_place *places, int32_t nranks, tool_error *error) {
  *ranks = (topo_ranks){.nranks = nranks, .places = places, .patience_ns = patience_ns};
  signals_hold(ranks);
  ranks->pids = tool_new((size_t)nranks, sizeof *ranks->pids);
  ranks->node_of = tool_new((size_t)nranks, sizeof *ranks->node_of);
  nodes_count(ranks);
  bool good = memory_map(ranks, error) && start_all(ranks, error);
  if (!good) topo_ranks_stop(ranks);
  return good;
}

void topo_ranks_stop(topo_ranks *ranks) {
  for (int32_t r = 0; r < ranks->nranks; r++)
    if (ranks->pids[r] > 0) kill(ranks->pids[r], SIGKILL);
  for (int32_t r = 0; r < ranks->nranks; r++) {
    if (ranks->pids[r] > 0)
      while (waitpid(ranks->pids[r], NULL, 0) < 0 && errno == EINTR) continue;
  }
  if (ranks->memory != NULL) munmap(ranks->memory, ranks->memory_bytes);
  if (ranks->nranks > 0) sigprocmask(SIG_SETMASK, &ranks->mask_before, NULL); /* delivers a pending signal */
  *ranks = (topo_ranks){0};
}
