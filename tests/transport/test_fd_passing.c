/* SPDX-License-Identifier: Apache-2.0
 * Faults while processes pass shared memory to each other in banyan_comm_create(). The others learn of it soon, and
 * each names the failed rank. Ranks meet over TCP, and a fault happens between two exchanges of the bootstrap. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "tests/support/port.h"
#include "tests/support/world.h"

enum { RANKS = 4, TEXT_BYTES = 600 };

typedef enum deed { NOTHING, DIE, STOP, NO_FILES, OTHER_USER, NO_MEMORY, PAUSE_ALL } deed;

typedef struct outcome {
  int ended;
  banyan_status status;
  double seconds;
  char text[TEXT_BYTES];
} outcome;

typedef struct trial {
  deed deed;
  int32_t victim;
  int after; /* number of exchanges before the fault */
  double timeout_s;
  int listener;
  outcome outcomes[RANKS];
} trial;

/* ---- ranks that meet over TCP ------------------------------------------------------------------------------------ */

static void set_number(const char *name, int number) {
  char text[16];
  snprintf(text, sizeof text, "%d", number);
  setenv(name, text, 1);
}

static banyan_status meet(const world_rank *self, banyan_env **env, banyan_bootstrap *bootstrap) {
  const trial *trial = self->argument;
  set_number("RANK", self->rank);
  set_number("WORLD_SIZE", RANKS);
  if (self->rank == 0) set_number("BANYAN_LISTEN_FD", trial->listener);
  return banyan_env_create(20 * INT64_C(1000000000), env, bootstrap);
}

/* ---- faults between exchanges ------------------------------------------------------------------------------------ */

typedef struct saboteur {
  const trial *trial;
  banyan_bootstrap inner;
  int done; /* number of finished exchanges */
} saboteur;

/* Open files remain, but no further file can be opened. */
static void keep_no_files(void) {
  struct rlimit limit;
  int next = dup(STDERR_FILENO);
  if (next < 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(3);
  close(next);
  limit.rlim_cur = (rlim_t)next;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(3);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#define CAN_REJECT 1
void *__libc_calloc(size_t count, size_t bytes);

static _Thread_local volatile bool rejects_memory;

void *calloc(size_t count, size_t bytes) { return rejects_memory ? NULL : __libc_calloc(count, bytes); }
#else
#define CAN_REJECT 0
static bool rejects_memory;
#endif

static int allgather_with_fault(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  saboteur *self = context;
  rejects_memory =
      self->trial->deed == NO_MEMORY && self->inner.rank == self->trial->victim && self->done + 1 == self->trial->after;
  int result = self->inner.allgather(self->inner.context, mine, all, bytes, timeout_ns);
  rejects_memory = false;
  bool all_do = self->trial->deed == PAUSE_ALL;
  if ((self->inner.rank != self->trial->victim && !all_do) || ++self->done != self->trial->after) return result;
  if (self->trial->deed == DIE) raise(SIGKILL);
  if (self->trial->deed == STOP || all_do) raise(SIGSTOP);
  if (self->trial->deed == NO_FILES) keep_no_files();
  return result;
}

static void create(world_rank *self) {
  trial *trial = self->argument;
  banyan_env *env;
  banyan_comm *comm = NULL;
  saboteur saboteur = {.trial = trial};
  outcome *outcome = &trial->outcomes[self->rank];
  if (trial->deed == OTHER_USER && self->rank == trial->victim && setresuid(65534, 65534, 65534) != 0) _exit(2);
  outcome->status = meet(self, &env, &saboteur.inner);
  if (outcome->status == BANYAN_OK) {
    banyan_bootstrap bootstrap = saboteur.inner;
    bootstrap.context = &saboteur;
    bootstrap.allgather = allgather_with_fault;
    banyan_comm_config config = {
        .size = sizeof config, .timeout_ns = (int64_t)(trial->timeout_s * 1e9), .arena_bytes = 65536};
    double begun = world_now_s();
    outcome->status = banyan_comm_create(&bootstrap, &config, &comm);
    outcome->seconds = world_now_s() - begun;
  }
  snprintf(outcome->text, sizeof outcome->text, "%s", outcome->status ? banyan_last_error() : "");
  outcome->ended = 1;
  _exit(0);
}

/* Kills a stopped rank once all others have ended. Or waits until all ranks have stopped, and resumes them after more
 * than their deadline. */
static void end_or_wake(world *world, const pid_t *pids, void *argument) {
  const trial *trial = argument;
  double deadline = world_now_s() + 30;
  (void)world;
  for (int32_t r = 0; r < RANKS && trial->deed == STOP; r++)
    while (r != trial->victim && !*(volatile const int *)&trial->outcomes[r].ended && world_now_s() < deadline)
      world_sleep_ms(1);
  if (trial->deed == STOP) kill(pids[trial->victim], SIGKILL);
  if (trial->deed != PAUSE_ALL) return;
  for (int32_t r = 0; r < RANKS; r++) waitpid(pids[r], NULL, WUNTRACED);
  world_sleep_ms(1000 * trial->timeout_s);
  for (int32_t r = 0; r < RANKS; r++) kill(pids[(trial->after + r) % RANKS], SIGCONT);
}

/* Returns the trial in shared memory, with the outcomes of all ranks. */
static trial *run(trial wanted, world_body live) {
  trial *shared = world_take(sizeof *shared);
  int port;
  *shared = wanted;
  shared->listener = listen_on_any_port(SOCK_CLOEXEC, &port);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  set_number("MASTER_PORT", port);
  setenv("BANYAN_SECRET", "of the test", 1);
  WORLD_RUN(live, .nranks = RANKS, .processes = true, .bare = true, .deaths = true, .argument = shared,
            .conduct = end_or_wake);
  close(shared->listener);
  return shared;
}

static const char *const names[] = {"nothing", "death", "stop", "no descriptors", "another user", "no memory"};

/* All healthy ranks fail in time with an error that names the victim. */
static void check_blame(const trial *trial, double limit_s) {
  char name[16];
  snprintf(name, sizeof name, "rank %d", trial->victim);
  for (int32_t r = 0; r < RANKS; r++) {
    const outcome *outcome = &trial->outcomes[r];
    if (r == trial->victim && (trial->deed == DIE || trial->deed == STOP)) continue;
    ck_assert_msg(outcome->ended && outcome->status != BANYAN_OK && outcome->seconds < limit_s,
                  "%s of rank %d after %d exchanges: rank %d got %s after %.2f s: %s", names[trial->deed],
                  trial->victim, trial->after, r, banyan_status_string(outcome->status), outcome->seconds,
                  outcome->text);
    ck_assert_msg(trial->deed != NO_MEMORY || outcome->status == BANYAN_ERR_MEMORY, "rank %d got %s", r,
                  banyan_status_string(outcome->status));
    ck_assert_msg(r == trial->victim || strstr(outcome->text, name),
                  "%s of rank %d after %d exchanges: rank %d blames another: %s", names[trial->deed], trial->victim,
                  trial->after, r, outcome->text);
  }
}

/* The exchanges carry facts, localities, tickets, "connected" and "mapped". A rank that dies after the next and last
 * one already belongs to the communicator. */
enum { EXCHANGES = 5 };

static const struct {
  deed deed;
  int32_t victims;
  int last; /* exchange before the fault; the first is 1, or 0 if the fault is there from the beginning */
  double timeout_s, limit_s;
} faults[] = {{DIE, RANKS, EXCHANGES, 60, 20},
              {NO_FILES, RANKS, 4, 60, 20},
              {STOP, 2, EXCHANGES, 1, 1.9},
              {OTHER_USER, 2, 0, 60, 20},
              {NO_MEMORY, 2, EXCHANGES + 1, 60, 20}};
enum { FAULTS = sizeof faults / sizeof faults[0] };

static bool is_possible(deed deed) {
  if (deed == OTHER_USER && geteuid() != 0) return printf("skipped: only root can be another user\n"), false;
  if (deed == NO_MEMORY && !CAN_REJECT) return printf("skipped: a sanitizer has malloc\n"), false;
  return true;
}

TEST_LOOP(a_rank_with_a_fault_is_named_in_time, (FAULTS * RANKS)) {
  const int which = _i / RANKS, first = faults[which].last > 0;
  if (_i % RANKS >= faults[which].victims || !is_possible(faults[which].deed)) return;
  for (int after = first; after <= faults[which].last; after++) {
    trial *done = run(
        (trial){.deed = faults[which].deed, .victim = _i % RANKS, .after = after, .timeout_s = faults[which].timeout_s},
        create);
    check_blame(done, faults[which].limit_s);
  }
}

TEST_LOOP(time_in_which_all_are_stopped_does_not_count, EXCHANGES + 1) {
  trial *done = run((trial){.deed = PAUSE_ALL, .after = _i + 1, .timeout_s = 3}, create);
  for (int32_t r = 0; r < RANKS; r++)
    ck_assert_msg(done->outcomes[r].ended && done->outcomes[r].status == BANYAN_OK, "rank %d: %s", r,
                  done->outcomes[r].text);
}

/* ---- the last exchange: a rank stops after it has sent, before it reads ------------------------------------------ */

enum { BLOCK_BYTES = 2 << 20 };

static void stop_itself(int number) {
  (void)number;
  raise(SIGSTOP);
}

static void gather_and_stop(world_rank *self) {
  trial *trial = self->argument;
  const int32_t rank = self->rank;
  banyan_env *env;
  banyan_bootstrap bootstrap;
  outcome *outcome = &trial->outcomes[rank];
  char *mine = calloc(1, BLOCK_BYTES), *all = calloc(RANKS, BLOCK_BYTES);
  outcome->status = meet(self, &env, &bootstrap);
  if (outcome->status == BANYAN_OK) {
    if (rank == trial->victim) { /* the signal comes while it waits for rank 3 */
      signal(SIGALRM, stop_itself);
      setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 400000}}, NULL);
    }
    if (rank == 3) world_sleep_ms(1000);
    outcome->status = (banyan_status)bootstrap.allgather(bootstrap.context, mine, all, BLOCK_BYTES,
                                                         (int64_t)(trial->timeout_s * 1e9));
    if (outcome->status == BANYAN_OK) { /* the next exchange fails and names the culprit */
      int next = bootstrap.allgather(bootstrap.context, mine, all, 1, (int64_t)(trial->timeout_s * 1e9));
      snprintf(outcome->text, sizeof outcome->text, "%s", next ? banyan_last_error() : "no failure");
    }
  }
  outcome->ended = 1;
  _exit(0);
}

TEST(the_last_exchange_is_for_all_or_none) {
  trial *shared = run((trial){.deed = STOP, .victim = 1, .timeout_s = 5}, gather_and_stop);
  for (int32_t r = 0; r < RANKS; r++) {
    const outcome *outcome = &shared->outcomes[r];
    if (r == shared->victim) continue;
    ck_assert_msg(outcome->ended && outcome->status == BANYAN_OK, "rank %d got %s", r,
                  banyan_status_string(outcome->status));
    ck_assert_msg(strstr(outcome->text, "rank 1 of 4 left, or stopped"), "rank %d: %s", r, outcome->text);
  }
}

/* ---- full queues and signals ------------------------------------------------------------------------------------- */

/* Listening Unix sockets of this process take one connection at a time. */
static void shorten_queues(void) {
  for (int fd = 3; fd < 256; fd++) {
    int domain = 0, listens = 0;
    socklen_t bytes = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain != AF_UNIX) continue;
    bytes = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens) ck_assert_int_eq(listen(fd, 0), 0);
  }
}

typedef struct shortener {
  banyan_bootstrap inner;
  int exchanges;
} shortener;

static int allgather_with_short_queue(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  shortener *self = context;
  if (self->inner.rank == 0 && ++self->exchanges == 3) shorten_queues();
  return self->inner.allgather(self->inner.context, mine, all, bytes, timeout_ns);
}

static void ignore(int number) { (void)number; }

/* A profiled program gets a signal every millisecond, which interrupts system calls that wait. */
static void be_interrupted(void) {
  struct sigaction action = {.sa_handler = ignore}; /* no SA_RESTART */
  struct itimerval often = {{0, 1000}, {0, 1000}};
  sigaction(SIGALRM, &action, NULL);
  setitimer(ITIMER_REAL, &often, NULL);
}

TEST_RANKS(ranks_come_though_the_queue_is_full_and_signals_interrupt, 1, .nranks = 6, .processes = true, .bare = true) {
  shortener shortener = {.inner = self->bootstrap};
  banyan_bootstrap bootstrap = self->bootstrap;
  bootstrap.context = &shortener;
  bootstrap.allgather = allgather_with_short_queue;
  be_interrupted();
  if (!world_ok(self, banyan_comm_create(&bootstrap, NULL, &self->comm), "create")) return;
  world_ok(self, banyan_barrier(self->comm), "barrier");
  world_check(self, self->rank > 0 || shortener.exchanges > 7, "a queue of one connection took %d exchanges",
              shortener.exchanges);
}

/* ---- detection of deaths with different kernel features ---------------------------------------------------------- */

/* A sandbox rejects system calls. The last case rejects every way to share memory. */
typedef enum kernel { MODERN, NO_PIDFD, NO_MEMFD, NO_SHARING } kernel;

typedef struct passing {
  int32_t victim;
  bool apart; /* the victim has a separate pid namespace */
  kernel kernel;
} passing;

static bool reject_calls(kernel kernel) {
  enum { FLAGS = 2 };
  uint32_t no_open = SECCOMP_RET_ERRNO | (kernel == NO_PIDFD ? ENOSYS : EPERM);
  uint32_t no_memory = kernel >= NO_MEMFD ? SECCOMP_RET_ERRNO | EPERM : SECCOMP_RET_ALLOW;
  uint32_t no_file = kernel == NO_SHARING ? SECCOMP_RET_ERRNO | EACCES : SECCOMP_RET_ALLOW;
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, no_open),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, no_memory),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + FLAGS * sizeof(uint64_t)),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_CREAT | (O_TMPFILE & ~O_DIRECTORY), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, no_file),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  if (kernel == MODERN) return true;
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Continues as a child in a new pid namespace. Returns false in the parent when the child has ended. */
static bool move_apart(void) {
  if (unshare(CLONE_NEWPID) != 0) return true;
  pid_t child = fork();
  if (child > 0) waitpid(child, NULL, 0);
  return child == 0;
}

static void pass_away(world_rank *self) {
  const passing *passing = self->argument;
  if (passing->apart && self->rank == passing->victim && !move_apart()) return;
  if (!world_check(self, reject_calls(passing->kernel), "calls cannot be rejected")) return;
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = 60000000000, .arena_bytes = 65536};
  if (!world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create")) return;
  if (!world_ok(self, banyan_barrier(self->comm), "barrier") || !world_meet(self)) return;
  if (self->rank == passing->victim) _exit(0);
  double begun = world_now_s();
  banyan_status status = banyan_barrier(self->comm);
  world_check(self,
              status == BANYAN_ERR_PEER && banyan_comm_failed_rank(self->comm) == passing->victim &&
                  world_now_s() - begun < 20,
              "got %s after %.2f s: %s", banyan_status_string(status), world_now_s() - begun, banyan_last_error());
}

static void run_passing(passing passing) {
  WORLD_RUN(pass_away, .nranks = 3, .processes = true, .bare = true, .argument = &passing);
}

/* Returns true if this process may create pid namespaces. A child tries it, because only its children enter one. */
static bool has_namespaces(void) {
  pid_t child = fork();
  int how = 1;
  if (child == 0) _exit(unshare(CLONE_NEWPID) != 0);
  waitpid(child, &how, 0);
  return how == 0;
}

TEST_LOOP(a_death_in_another_pid_namespace_is_known_at_once, 6) {
  if (!has_namespaces()) {
    printf("skipped: pid namespaces may not be made\n");
    return;
  }
  run_passing((passing){.victim = _i % 3, .apart = true, .kernel = (kernel)(_i / 3)});
}

TEST_LOOP(a_death_is_known_without_pidfds, 3) { run_passing((passing){.victim = _i % 3, .kernel = NO_PIDFD}); }
TEST_LOOP(memory_is_shared_without_memfd, 3) { run_passing((passing){.victim = _i % 3, .kernel = NO_MEMFD}); }

TEST_RANKS(what_rejects_memory_is_named, 1, .nranks = 3, .processes = true, .bare = true) {
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = 60000000000, .arena_bytes = 65536};
  if (!world_check(self, reject_calls(NO_SHARING), "calls cannot be rejected")) return;
  banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
  world_check(self,
              status == BANYAN_ERR_SYSTEM && strstr(banyan_last_error(), "memfd_create: Operation not permitted") &&
                  strstr(banyan_last_error(), "/dev/shm: Permission denied"),
              "%s: %s", banyan_status_string(status), banyan_last_error());
}

int main(void) {
  suite_deal(4);
  return world_main(suite_of("passing", 120));
}
