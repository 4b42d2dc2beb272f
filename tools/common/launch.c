/* SPDX-License-Identifier: Apache-2.0
 * Starts local ranks as processes, binds them to cores, and ends them together. */
#include "tools/common/launch.h"
#include "tools/common/util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <glob.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NRANKS_AT_MOST = 4096, SECRET_BYTES = 32, STATUS_NOT_STARTED = 127 };

/* Time limits after the first failure: for ranks to end by themselves, and then after SIGTERM. */
static const int64_t grace_ns = 5000000000;
static const int64_t grace_after_term_ns = 2000000000;

struct launch {
  int nranks;
  pid_t *pids; /* 0: ended */
  int nrunning;
  int status;      /* exit status of the first rank that failed */
  bool ending;     /* a rank has failed, or a signal arrived */
  int last_signal; /* the last signal sent to the ranks; 0: none yet */
  int64_t next_ns; /* time of the next, harsher signal */
};

bool bny_launch_is_rank(void) {
  const char *launched = getenv("BANYAN_LAUNCHED");
  return launched && strcmp(launched, "1") == 0;
}

bool bny_launch_env_present(void) { return getenv("RANK") || getenv("WORLD_SIZE"); }

bool bny_launch_under_mpi(void) { return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_RANK") || getenv("PMIX_RANK"); }

const char *bny_launch_rank(void) {
  static const char *const variables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "RANK"};
  const char *rank = NULL;
  for (size_t i = 0; i < sizeof variables / sizeof *variables && !rank; i++) rank = getenv(variables[i]);
  return rank;
}

bool bny_launch_speaks(void) {
  const char *rank = bny_launch_rank();
  return !rank || strcmp(rank, "0") == 0;
}

/* Returns a listening socket and its port in *port. The kernel chooses the port, so that ports cannot collide. */
static int listen_anywhere(int *port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof address;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, SOMAXCONN) == 0 &&
      getsockname(fd, (struct sockaddr *)&address, &bytes) == 0) {
    *port = ntohs(address.sin_port);
    return fd;
  }
  close(fd);
  return -1;
}

static bool make_secret(char text[2 * SECRET_BYTES + 1]) {
  unsigned char secret[SECRET_BYTES];
  if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret) return false;
  for (int i = 0; i < SECRET_BYTES; i++) sprintf(text + 2 * i, "%02x", secret[i]);
  return true;
}

static bool set_number(const char *name, int number) {
  char text[16];
  snprintf(text, sizeof text, "%d", number);
  return setenv(name, text, 1) == 0;
}

/* Sets the variables that are equal on all ranks, and removes those of an outer launcher. BANYAN_PORT is set, because
 * otherwise another port would be derived from MASTER_PORT. */
static bool set_common(int nranks, int port, const char *secret) {
  static const char *const outer[] = {"BANYAN_LISTEN_FD", "BANYAN_SECRET_FILE", "TORCHELASTIC_USE_AGENT_STORE"};
  char job[32];
  for (size_t i = 0; i < sizeof outer / sizeof *outer; i++) unsetenv(outer[i]);
  snprintf(job, sizeof job, "launched by %ld", (long)getpid());
  return set_number("WORLD_SIZE", nranks) && set_number("LOCAL_WORLD_SIZE", nranks) &&
         setenv("MASTER_ADDR", "127.0.0.1", 1) == 0 && set_number("MASTER_PORT", port) &&
         set_number("BANYAN_PORT", port) && setenv("BANYAN_SECRET", secret, 1) == 0 &&
         setenv("BANYAN_JOB", job, 1) == 0 && setenv("BANYAN_LAUNCHED", "1", 1) == 0;
}

/* Returns the first CPU of the same core; -1 if the system does not report it. */
static int first_sibling(int cpu) {
  char path[128];
  int first = -1;
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
  FILE *file = fopen(path, "re");
  if (file && fscanf(file, "%d", &first) != 1) first = -1;
  if (file) fclose(file);
  return first;
}

/* Lists the CPUs that this process may use: one of each core first, then the others. Returns the number of cores. */
static int order_cpus(int cpus[CPU_SETSIZE], int *count) {
  cpu_set_t allowed;
  int others[CPU_SETSIZE], cores = 0, nothers = 0;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    int first = first_sibling(cpu);
    if (first < 0 || first >= cpu || !CPU_ISSET(first, &allowed))
      cpus[cores++] = cpu;
    else
      others[nothers++] = cpu;
  }
  memcpy(cpus + cores, others, (size_t)nothers * sizeof *others);
  *count = cores + nothers;
  return cores;
}

int bny_launch_cores(void) {
  int cpus[CPU_SETSIZE], count;
  return order_cpus(cpus, &count);
}

/* Reserves a CPU for the life of this process. The reservation is an abstract socket, whose name only one program of
 * this machine can bind. It stays open across exec(). */
static bool claim_cpu(int cpu) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  size_t length = (size_t)snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "banyan-cpu-%d", cpu);
  socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
  int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
  if (fd < 0) return false;
  if (bind(fd, (struct sockaddr *)&address, bytes) == 0) return true;
  close(fd);
  return false;
}

/* Several programs on one machine have ranks with the same numbers. Each rank therefore gets the first free CPU from
 * its own number on, or shares its own CPU if none is free. Ranks beyond the number of CPUs always share, because they
 * must not reserve the CPU of a rank that starts later. */
void bny_launch_pin(int index) {
  int cpus[CPU_SETSIZE], count, skip = 0;
  cpu_set_t mine;
  order_cpus(cpus, &count);
  if (count == 0) return;
  while (index < count && skip < count && !claim_cpu(cpus[(index + skip) % count])) skip++;
  int cpu = cpus[(index + skip) % count];
  CPU_ZERO(&mine);
  CPU_SET(cpu, &mine);
  if (sched_setaffinity(0, sizeof mine, &mine) != 0)
    fprintf(stderr, "rank %d: cannot run on CPU %d alone\n", index, cpu);
}

/* Returns the NUMA node of a CPU; 0 if the system does not report it. */
static int node_of(int cpu) {
  char pattern[64];
  glob_t found = {.gl_pathc = 0};
  int node = 0;
  snprintf(pattern, sizeof pattern, "/sys/devices/system/cpu/cpu%d/node[0-9]*", cpu);
  if (glob(pattern, 0, NULL, &found) == 0) node = atoi(strrchr(found.gl_pathv[0], '/') + strlen("/node"));
  globfree(&found);
  return node;
}

/* Lists the NUMA nodes of the CPUs that this process may use, in ascending order. Returns their number. */
static int list_nodes(int nodes[CPU_SETSIZE], cpu_set_t *allowed) {
  int count = 0;
  if (sched_getaffinity(0, sizeof *allowed, allowed) != 0) CPU_ZERO(allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    int node = CPU_ISSET(cpu, allowed) ? node_of(cpu) : -1, at = count;
    while (at > 0 && nodes[at - 1] > node) at--;
    if (node < 0 || (at > 0 && nodes[at - 1] == node)) continue;
    memmove(nodes + at + 1, nodes + at, (size_t)(count - at) * sizeof *nodes);
    nodes[at] = node;
    count++;
  }
  return count;
}

int bny_launch_nodes(void) {
  int nodes[CPU_SETSIZE];
  cpu_set_t allowed;
  int count = list_nodes(nodes, &allowed);
  return count > 0 ? count : 1;
}

static void bind_to_node(int rank, int nranks) {
  int nodes[CPU_SETSIZE];
  cpu_set_t mine;
  int count = list_nodes(nodes, &mine);
  if (count < 2 || nranks < count) return; /* a single rank may use all NUMA nodes */
  int node = nodes[(long)rank * count / nranks];
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &mine) && node_of(cpu) != node) CPU_CLR(cpu, &mine);
  if (sched_setaffinity(0, sizeof mine, &mine) != 0)
    fprintf(stderr, "rank %d: cannot run on node %d alone\n", rank, node);
}

/* Runs in the child process, which becomes the rank. Does not return. */
static void become_rank(int rank, int nranks, char **argv, bny_launch_binding binding, int listen_fd, pid_t parent,
                        const sigset_t *signals_before) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(STATUS_NOT_STARTED); /* the parent ended before it could be watched */
  sigprocmask(SIG_SETMASK, signals_before, NULL);
  if (binding == BNY_LAUNCH_CPU) bny_launch_pin(rank);
  if (binding == BNY_LAUNCH_NODE) bind_to_node(rank, nranks);
  bool ready = set_number("RANK", rank) && set_number("LOCAL_RANK", rank);
  if (rank == 0) {
    int inherited = dup(listen_fd); /* a dup is not close-on-exec */
    ready = ready && inherited >= 0 && set_number("BANYAN_LISTEN_FD", inherited);
  }
  if (ready) execv("/proc/self/exe", argv);
  fprintf(stderr, "rank %d: cannot start %s: %s\n", rank, argv[0], strerror(errno));
  _exit(STATUS_NOT_STARTED);
}

static void signal_all(struct launch *launch, int signal_number) {
  for (int rank = 0; rank < launch->nranks; rank++)
    if (launch->pids[rank] > 0) kill(launch->pids[rank], signal_number);
  launch->last_signal = signal_number;
}

/* The first failure sets the exit status. The other ranks then have time to end by themselves. */
static void begin_end(struct launch *launch, int status, int64_t patience_ns) {
  if (launch->ending) return;
  launch->ending = true;
  launch->status = status;
  launch->next_ns = tool_now_ns() + patience_ns;
}

/* Collects all ranks that have ended. */
static void reap(struct launch *launch) {
  int how;
  for (int rank = 0; rank < launch->nranks; rank++) {
    if (launch->pids[rank] == 0 || waitpid(launch->pids[rank], &how, WNOHANG) != launch->pids[rank]) continue;
    launch->pids[rank] = 0;
    launch->nrunning--;
    int status = WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
    if (status == 0) continue;
    if (WIFSIGNALED(how) && launch->last_signal == 0)
      fprintf(stderr, "rank %d of %d was ended by signal %d (%s)\n", rank, launch->nranks, WTERMSIG(how),
              strsignal(WTERMSIG(how)));
    begin_end(launch, status, grace_ns);
  }
}

/* Sends the next harsher signal when it is due. Returns the milliseconds until then, or -1 if none will be due. */
static int escalate(struct launch *launch) {
  if (!launch->ending || launch->last_signal == SIGKILL) return -1;
  int64_t left_ns = launch->next_ns - tool_now_ns();
  if (left_ns > 0) return (int)((left_ns - 1) / 1000000 + 1);
  signal_all(launch, launch->last_signal == 0 ? SIGTERM : SIGKILL);
  launch->next_ns = tool_now_ns() + grace_after_term_ns;
  return launch->last_signal == SIGKILL ? -1 : (int)(grace_after_term_ns / 1000000);
}

static void wait_for_all(struct launch *launch, int signal_fd) {
  while (launch->nrunning > 0) {
    struct pollfd wait = {.fd = signal_fd, .events = POLLIN};
    struct signalfd_siginfo came;
    if (poll(&wait, 1, escalate(launch)) > 0 && read(signal_fd, &came, sizeof came) == (ssize_t)sizeof came &&
        came.ssi_signo != SIGCHLD) {
      begin_end(launch, 128 + (int)came.ssi_signo, 0);
      launch->next_ns = tool_now_ns(); /* the first signal ends the grace period, a second one shortens the rest */
    }
    reap(launch);
  }
}

static bool start_all(struct launch *launch, char **argv, bny_launch_binding binding, const sigset_t *signals_before) {
  char secret[2 * SECRET_BYTES + 1];
  int port;
  int listen_fd = listen_anywhere(&port);
  bool started = listen_fd >= 0 && make_secret(secret) && set_common(launch->nranks, port, secret);
  pid_t parent = getpid();
  fflush(NULL); /* otherwise each child would print buffered output again */
  for (int rank = 0; rank < launch->nranks && started; rank++) {
    pid_t pid = fork();
    if (pid == 0) become_rank(rank, launch->nranks, argv, binding, listen_fd, parent, signals_before);
    started = pid > 0;
    if (!started) continue;
    launch->pids[rank] = pid;
    launch->nrunning++;
  }
  if (!started) fprintf(stderr, "cannot start %d ranks: %s\n", launch->nranks, strerror(errno));
  if (listen_fd >= 0) close(listen_fd);
  return started;
}

int bny_launch_local(int nranks, char **argv, bny_launch_binding binding) {
  struct launch launch = {.nranks = nranks};
  struct sigaction children = {.sa_handler = SIG_DFL}, children_before; /* SIG_IGN would lose exit statuses */
  sigset_t signals, signals_before;
  if (nranks < 1 || nranks > NRANKS_AT_MOST) {
    fprintf(stderr, "cannot start %d ranks: must be 1..%d\n", nranks, NRANKS_AT_MOST);
    return STATUS_NOT_STARTED;
  }
  launch.pids = calloc((size_t)nranks, sizeof *launch.pids);
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  sigprocmask(SIG_BLOCK, &signals, &signals_before);
  sigaction(SIGCHLD, &children, &children_before);
  int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (!launch.pids || signal_fd < 0) {
    fprintf(stderr, "cannot start %d ranks: %s\n", nranks, strerror(errno));
    launch.status = STATUS_NOT_STARTED;
  } else {
    if (!start_all(&launch, argv, binding, &signals_before)) begin_end(&launch, STATUS_NOT_STARTED, 0);
    wait_for_all(&launch, signal_fd);
  }
  if (signal_fd >= 0) close(signal_fd);
  sigaction(SIGCHLD, &children_before, NULL);
  sigprocmask(SIG_SETMASK, &signals_before, NULL);
  free(launch.pids);
  return launch.status;
}
