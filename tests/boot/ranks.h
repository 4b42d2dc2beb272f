/* SPDX-License-Identifier: Apache-2.0
 * Ranks of the TCP bootstrap as processes on the loopback interface. */
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "banyan.h"
#include "tests/support/clock.h"
#include "tests/support/port.h"
#include "tests/support/rounds.h"
#include "tests/support/status.h"

enum { PROCESSES_AT_MOST = 20 };

/* In which call a rank forks while it waits for late ones, and whether in a signal handler or in its check. */
typedef enum fork_in { FORK_IN_NONE, FORK_IN_CREATE, FORK_IN_GATHER } fork_in;

/* The task of one process. */
struct part {
  int rank, nranks;
  const char *secret; /* NULL: none */
  double timeout_s;   /* 0: 15 s */
  size_t bytes;       /* size of each allgather */
  int rounds;
  double wait_s;           /* before create */
  double pause_s;          /* between create and the first allgather */
  const char *address;     /* value of MASTER_ADDR; NULL: 127.0.0.1 */
  const char *extra[3][2]; /* further environment variables */
  const char *job;         /* BANYAN_JOB; NULL: none */
  bool forks;              /* fork children between two rounds of all-gathers */
  fork_in forks_in;        /* or one child that returns from the call too */
  bool by_signal;
  bool closes;     /* close stdin, stdout and stderr first */
  int files;       /* how many more files may be opened; 0: no limit */
  uid_t user;      /* user to change to first; 0: no change */
  const char *map; /* users of a namespace to enter first; NULL: none */
  bool listens;    /* there is no listener of the test: rank 0 makes its own */
};

/* The outcome of one process, in memory shared with the test. */
struct outcome {
  banyan_status create, gather;
  int wrong;
  double create_s, gather_s;
  char text[512];
};

static int listen_fd = -1, port; /* the current test has these in its own process */
static int reserved_fd = -1;     /* holds `port` until rank 0 listens there by itself */
static struct outcome *outcomes; /* in the file outcomes_fd, which executed programs inherit */
static int outcomes_fd;
static pid_t pids[PROCESSES_AT_MOST];
static char shown_port[16] = "29500";

/* Connects to the port; returns -1 if nobody listens. */
static inline int try_to_dial(void) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

static inline int dial(void) {
  int fd = try_to_dial();
  ck_assert_msg(fd >= 0, "%s", strerror(errno));
  return fd;
}

static inline void wait_for_listener(void) {
  int fd;
  while ((fd = try_to_dial()) < 0) sleep_s(0.005);
  close(fd);
}

static inline void clear_environment(void) {
  static const char names[] =
      "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT BANYAN_JOB BANYAN_PORT BANYAN_SECRET "
      "BANYAN_SECRET_FILE BANYAN_LISTEN_FD BANYAN_INTERFACE TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT "
      "TORCHELASTIC_USE_AGENT_STORE PMIX_NAMESPACE SLURM_JOB_ID SLURM_STEP_ID SLURM_PROCID SLURM_NTASKS "
      "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMI_RANK PMI_SIZE";
  char text[sizeof names], *rest = text;
  memcpy(text, names, sizeof names);
  for (const char *name; (name = strtok_r(rest, " ", &rest));) unsetenv(name);
}

static inline struct outcome *map_outcomes(int fd) {
  return mmap(NULL, PROCESSES_AT_MOST * sizeof *outcomes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static inline void set_up(void) {
  clear_environment();
  listen_fd = listen_on_any_port(0, &port);
  snprintf(shown_port, sizeof shown_port, "%d", port);
  outcomes_fd = memfd_create("outcomes", 0);
  ck_assert_int_eq(ftruncate(outcomes_fd, PROCESSES_AT_MOST * sizeof *outcomes), 0);
  outcomes = map_outcomes(outcomes_fd);
  ck_assert_ptr_ne(outcomes, MAP_FAILED);
  memset(pids, 0, sizeof pids);
}

static inline void tear_down(void) {
  munmap(outcomes, PROCESSES_AT_MOST * sizeof *outcomes);
  close(outcomes_fd);
  if (listen_fd >= 0) close(listen_fd);
  if (reserved_fd >= 0) close(reserved_fd);
}

static inline void set_environment(const struct part *part) {
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

/* Enters a user namespace that maps these users. A process outside of it must write the map. */
static inline bool enter_namespace(const char *map) {
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

/* Counts the ranks of this communicator that belong to another job. */
static inline int count_others(const banyan_bootstrap *bootstrap, const struct part *part) {
  char mine[16] = "", all[PROCESSES_AT_MOST][16];
  int others = 0;
  strncpy(mine, part->job, sizeof mine - 1);
  if (bootstrap->allgather(bootstrap->context, mine, all, sizeof mine, (int64_t)(part->timeout_s * 1e9))) return 1;
  for (int32_t rank = 0; rank < bootstrap->nranks; rank++) others += strcmp(all[rank], mine) != 0;
  return others;
}

static pid_t forked;

static inline int fork_once(void *context) {
  (void)context;
  if (forked == 0 && (forked = fork()) == 0) forked = -1;
  return 0;
}

static inline void fork_by_signal(int number) {
  (void)number;
  fork_once(NULL);
}

static inline void fork_soon(bool by_signal) {
  if (!by_signal) banyan_on_wait(fork_once, NULL);
  if (!by_signal) return;
  signal(SIGALRM, fork_by_signal);
  setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 100000}, NULL);
}

/* Ends the child, whose call must have failed, or else awaits it. Returns whether it ended wrongly. */
static inline bool end_forked(banyan_env *env, banyan_status status) {
  int how = 0;
  if (forked > 0) return waitpid(forked, &how, 0) != forked || how != 0;
  banyan_env_destroy(env);
  _exit(forked == 0 || status != BANYAN_ERR_STATE);
}

static inline void play(const struct part *part, struct outcome *outcome) {
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  set_environment(part);
  if (part->map && !enter_namespace(part->map)) {
    outcome->create = BANYAN_ERR_ABORTED;
    strcpy(outcome->text, "user namespaces cannot be made here");
    return;
  }
  for (int fd = 0; part->closes && fd <= STDERR_FILENO; fd++) close(fd);
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  if (part->files) {
    int first = dup(listen_fd);
    close(first);
    rlim_t most = (rlim_t)(first + part->files);
    rlim_t hard = part->rank == 0 ? most : files.rlim_max; /* rank 0 raises its limit as far as it may */
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){most, hard});
  }
  sleep_s(part->wait_s);
  double before = now_s();
  if (part->forks_in == FORK_IN_CREATE) fork_soon(part->by_signal);
  banyan_status created = banyan_env_create((int64_t)(part->timeout_s * 1e9), &env, &bootstrap);
  if (part->forks_in == FORK_IN_CREATE) outcome->wrong += end_forked(env, created);
  outcome->create = created;
  outcome->create_s = now_s() - before;
  if (!outcome->create) {
    outcome->wrong += bootstrap.rank != part->rank || bootstrap.nranks != part->nranks;
    for (int fd = 0; part->closes && fd <= STDERR_FILENO; fd++) outcome->wrong += fcntl(fd, F_GETFD) >= 0;
    sleep_s(part->pause_s);
    before = now_s();
    if (part->forks_in == FORK_IN_GATHER) fork_soon(part->by_signal);
    banyan_status gathered = rounds_gather(&bootstrap, part->bytes, part->rounds, part->timeout_s, &outcome->wrong);
    if (part->forks_in == FORK_IN_GATHER) outcome->wrong += end_forked(env, gathered);
    outcome->gather = gathered;
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
  setrlimit(RLIMIT_NOFILE, &files); /* the leak sanitizer opens files at the end */
}

static inline void start(int index, struct part part) {
  if (part.timeout_s <= 0) part.timeout_s = 15;
  fflush(NULL);
  pids[index] = fork();
  ck_assert_int_ge(pids[index], 0);
  if (pids[index] != 0) return;
  if (part.rank != 0 && listen_fd >= 0) close(listen_fd);
  if (part.user != 0 && setresuid(part.user, part.user, part.user) != 0) exit(3);
  play(&part, &outcomes[index]);
  exit(0); /* not _exit, so that the leak checker runs */
}

static inline void finish(int index) {
  int how;
  ck_assert_int_eq(waitpid(pids[index], &how, 0), pids[index]);
  ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == 0, "process %d ended with %#x", index, how);
}

static inline void finish_all(int count) {
  for (int i = 0; i < count; i++) finish(i);
}

static inline void assert_success(int index) {
  ck_assert_msg(outcomes[index].create == BANYAN_OK && outcomes[index].gather == BANYAN_OK && !outcomes[index].wrong,
                "process %d: create %d, gather %d, %d wrong bytes: %s", index, outcomes[index].create,
                outcomes[index].gather, outcomes[index].wrong, outcomes[index].text);
}

static inline void finish_with_success(int count) {
  finish_all(count);
  for (int i = 0; i < count; i++) assert_success(i);
}

/* Starts all ranks alike, the last one first. */
static inline void start_all(struct part part) {
  for (part.rank = part.nranks; part.rank-- > 0;) start(part.rank, part);
}

static inline void run_all(struct part part) {
  start_all(part);
  finish_with_success(part.nranks);
}

static inline void assert_text(int index, const char *part) {
  ck_assert_msg(strstr(outcomes[index].text, part) != NULL, "process %d: no \"%s\" in: %s", index, part,
                outcomes[index].text);
}

/* Waits until one of two processes has ended, and returns it. */
static inline int finish_either(int first, int second) {
  for (int index = first;; index = index == first ? second : first) {
    siginfo_t ended = {.si_pid = 0};
    ck_assert_int_eq(waitid(P_PID, (id_t)pids[index], &ended, WEXITED | WNOHANG | WNOWAIT), 0);
    if (ended.si_pid != 0) {
      finish(index);
      return index;
    }
    sleep_s(0.005);
  }
}

/* Chooses a port on which rank 0 listens by itself. A bound socket that does not listen keeps it from all others, and
 * allows rank 0, which sets SO_REUSEADDR as well, to bind it too. */
static inline void reserve_port(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
  socklen_t bytes = sizeof address;
  int on = 1;
  if (listen_fd >= 0) close(listen_fd);
  listen_fd = -1;
  reserved_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ck_assert_int_eq(setsockopt(reserved_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
  ck_assert_int_eq(bind(reserved_fd, (struct sockaddr *)&address, sizeof address), 0);
  ck_assert_int_eq(getsockname(reserved_fd, (struct sockaddr *)&address, &bytes), 0);
  port = ntohs(address.sin_port);
  snprintf(shown_port, sizeof shown_port, "%d", port);
}
