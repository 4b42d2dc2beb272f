/* SPDX-License-Identifier: Apache-2.0
 * The threads of a rank: work completes with any number of threads, callers exclude one another, and a forked child
 * works alone. Threads have the stack that attention needs, take their own fault signals, and use the caller's float
 * mode. */
#include <fenv.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/float_control.h"
#include "base/pool.h"
#include "base/process.h"
#include "tests/support/flush.h"
#include "tests/support/space.h"

enum { PARTS = 1000, THREADS = 4 };

typedef struct job {
  _Atomic int32_t next;
  _Atomic int32_t done[PARTS];
  _Atomic int32_t places[THREADS];
} job;

static void work(void *context, int32_t place) {
  job *mine = context;
  atomic_fetch_add(&mine->places[place], 1);
  for (;;) {
    int32_t part = atomic_fetch_add(&mine->next, 1);
    if (part >= PARTS) return;
    atomic_fetch_add(&mine->done[part], 1);
  }
}

static void run_once(bny_pool *pool) {
  job mine = {0};
  bny_pool_run(pool, work, &mine);
  for (int32_t i = 0; i < PARTS; i++) ck_assert_int_eq(atomic_load(&mine.done[i]), 1);
  ck_assert_int_eq(atomic_load(&mine.places[0]), 1);
  for (int32_t i = 1; i < THREADS; i++) ck_assert_int_le(atomic_load(&mine.places[i]), 1);
}

static bny_pool *make_pool(int32_t threads) {
  bny_pool *pool = NULL;
  ck_assert_int_eq(bny_pool_make(threads, NULL, &pool), BANYAN_OK);
  ck_assert_int_eq(bny_pool_threads(pool), threads);
  return pool;
}

TEST(all_parts_are_done) {
  bny_pool *pool = make_pool(THREADS);
  bny_pool *mine = bny_pool_take(pool);
  ck_assert_ptr_eq(mine, pool);
  for (int i = 0; i < 2000; i++) run_once(mine);
  usleep(1000); /* longer than the threads spin for work */
  for (int i = 0; i < 100; i++) run_once(mine);
  bny_pool_give(mine);
  run_once(NULL);
  bny_pool_free(pool);
}

TEST(one_caller_at_a_time) {
  bny_pool *pool = make_pool(2), *one = make_pool(1);
  bny_pool *mine = bny_pool_take(pool);
  ck_assert_ptr_null(bny_pool_take(pool));
  ck_assert_ptr_eq(bny_pool_take(one), one); /* a pool of one thread can also be taken */
  bny_pool_give(one);
  ck_assert_ptr_null(bny_pool_take(NULL));
  bny_pool_give(mine);
  mine = bny_pool_take(pool);
  ck_assert_ptr_eq(mine, pool);
  bny_pool_give(mine);
  bny_pool_free(pool);
  bny_pool_free(one);
  bny_pool_free(NULL);
}

TEST(memory_grows) {
  bny_pool *pool = make_pool(2), *mine = bny_pool_take(pool);
  char *memory = bny_pool_memory(mine, 1000);
  ck_assert_ptr_nonnull(memory);
  ck_assert_uint_eq((uintptr_t)memory % 64, 0);
  ck_assert_ptr_eq(bny_pool_memory(mine, 10), memory);
  memory = bny_pool_memory(mine, 100000);
  ck_assert_ptr_nonnull(memory);
  memset(memory, 1, 100000);
  bny_pool_give(mine);
  bny_pool_free(pool);
}

/* Number of processors that a thread may use, inside and outside of the set. */
typedef struct freedom {
  const bny_pool_cpus *cpus;
  _Atomic int32_t inside, outside;
} freedom;

static void check_cpu(void *context, int32_t place) {
  freedom *found = context;
  cpu_set_t set;
  for (int cpu = 0; place > 0 && sched_getaffinity(0, sizeof set, &set) == 0 && cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &set))
      atomic_fetch_add(found->cpus->mask[cpu / 8] >> cpu % 8 & 1 ? &found->inside : &found->outside, 1);
  for (int i = 0; i < 200 && atomic_load(&found->inside) == 0; i++) usleep(10000);
}

/* Two programs on one machine number threads and processors alike. A thread is therefore never bound to one processor
 * out of several, and the kernel picks an idle one. */
TEST(threads_are_bound_to_the_set) {
  bny_pool_cpus cpus = {0};
  ck_assert_int_eq(sched_getaffinity(0, sizeof cpus.mask, (cpu_set_t *)(void *)cpus.mask), 0);
  for (int i = 0; i < BNY_POOL_CPU_BYTES; i++) cpus.count += __builtin_popcount(cpus.mask[i]);
  if (cpus.count > 2) { /* use a proper subset of the processors */
    int first = 0;
    while (!(cpus.mask[first / 8] >> first % 8 & 1)) first++;
    cpus.mask[first / 8] ^= (unsigned char)(1 << first % 8);
    cpus.count--;
  }
  bny_pool *pool = NULL;
  freedom found = {.cpus = &cpus};
  ck_assert_int_eq(bny_pool_make(2, &cpus, &pool), BANYAN_OK);
  bny_pool *mine = bny_pool_take(pool);
  bny_pool_run(mine, check_cpu, &found);
  bny_pool_give(mine);
  ck_assert_int_eq(atomic_load(&found.outside), 0);
  ck_assert_int_ge(atomic_load(&found.inside),
                   cpus.count > 1 && access("/sys/devices/system/node/node1", F_OK) != 0 ? 2 : 1);
  bny_pool_free(pool);
}

/* ---- threads of the pool ----------------------------------------------------------------------------------------- */

/* The second thread of a pool of two inspects itself while the caller waits. */
typedef struct finding {
  void (*look)(struct finding *self);
  uint64_t float_control; /* the caller's rounding mode and treatment of denormal numbers */
  _Atomic bool is_done;
  bool is_right;
} finding;

static void look_elsewhere(void *context, int32_t place) {
  finding *self = context;
  if (place > 0) {
    self->look(self);
    atomic_store(&self->is_done, true);
  }
  for (int i = 0; i < 1000 && !atomic_load(&self->is_done); i++) usleep(10000);
}

static bool find_elsewhere(bny_pool *pool, void (*look)(finding *self)) {
  finding found = {.look = look, .float_control = bny_float_control()};
  bny_pool *mine = bny_pool_take(pool);
  bny_pool_run(mine, look_elsewhere, &found);
  bny_pool_give(mine);
  ck_assert(atomic_load(&found.is_done));
  return found.is_right;
}

static void use_stack(finding *self) {
  enum { PROMISED = 768 << 10 }; /* promised by banyan_attention.h */
  volatile char room[PROMISED];
  for (int i = 0; i < PROMISED; i += 512) room[i] = 1;
  self->is_right = room[0] == 1;
}

/* The default stack size of threads follows RLIMIT_STACK at program start. */
TEST(threads_have_stack) {
  pthread_attr_t little;
  ck_assert_int_eq(pthread_attr_init(&little), 0);
  ck_assert_int_eq(pthread_attr_setstacksize(&little, 128 << 10), 0);
  ck_assert_int_eq(pthread_setattr_default_np(&little), 0);
  pthread_attr_destroy(&little);
  bny_pool *pool = make_pool(2);
  ck_assert(find_elsewhere(pool, use_stack));
  bny_pool_free(pool);
}

static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
static const int others[] = {SIGTERM, SIGINT, SIGALRM, SIGCHLD, SIGUSR1, SIGPROF, SIGABRT};
static _Atomic int32_t handled;

static void handle(int number) {
  (void)number;
  atomic_fetch_add(&handled, 1);
}

static void look_at_signals(finding *self) {
  sigset_t blocked;
  self->is_right = pthread_sigmask(SIG_SETMASK, NULL, &blocked) == 0;
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
    if (!sigismember(&blocked, others[i])) self->is_right = false;
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
    if (sigismember(&blocked, faults[i]) || raise(faults[i]) != 0) self->is_right = false;
}

TEST(threads_take_their_own_faults) {
  struct sigaction action = {.sa_handler = handle}, before[sizeof faults / sizeof faults[0]];
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) sigaction(faults[i], &action, &before[i]);
  bny_pool *pool = make_pool(2);
  ck_assert(find_elsewhere(pool, look_at_signals));
  bny_pool_free(pool);
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) sigaction(faults[i], &before[i], NULL);
  ck_assert_int_eq(atomic_load(&handled), (int32_t)(sizeof faults / sizeof faults[0]));
}

static void look_at_control(finding *self) {
  uint64_t flags = 0x3f; /* exception flags, next to the control bits of x86 */
  self->is_right = (bny_float_control() | flags) == (self->float_control | flags);
}

/* The rounding mode and the treatment of denormals may change at any time. */
TEST(threads_compute_as_the_caller) {
  bny_pool *pool = make_pool(2);
  ck_assert_int_eq(fesetround(FE_UPWARD), 0);
  ck_assert(find_elsewhere(pool, look_at_control));
  bny_float_control_set(bny_float_control() | FLOAT_FLUSH);
  ck_assert(find_elsewhere(pool, look_at_control));
  ck_assert_int_eq(fesetround(FE_TONEAREST), 0);
  ck_assert(find_elsewhere(pool, look_at_control));
  bny_pool_free(pool);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

enum { LATE_NS = 400000000 };

static int64_t clock_of(clockid_t id) {
  struct timespec now;
  clock_gettime(id, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The thread works until long after the caller has finished its part. */
static void be_late(void *context, int32_t place) {
  _Atomic int64_t *left_ns = context;
  if (place == 0) {
    for (int i = 0; i < 1000 && atomic_load(left_ns) == 0; i++) usleep(10000);
    atomic_store(left_ns, clock_of(CLOCK_MONOTONIC));
    return;
  }
  atomic_store(left_ns, 1);
  while (atomic_load(left_ns) == 1 || clock_of(CLOCK_MONOTONIC) - atomic_load(left_ns) < LATE_NS) usleep(1000);
}

/* The caller must sleep while it waits; polling would use all of this time. */
TEST(caller_waits_without_its_core) {
  bny_pool *pool = make_pool(2), *mine = bny_pool_take(pool);
  _Atomic int64_t left_ns = 0;
  int64_t used_ns = clock_of(CLOCK_THREAD_CPUTIME_ID);
  bny_pool_run(mine, be_late, &left_ns);
  used_ns = clock_of(CLOCK_THREAD_CPUTIME_ID) - used_ns;
  ck_assert_int_gt(atomic_load(&left_ns), 1);
  ck_assert_int_lt(used_ns, LATE_NS / 8);
  bny_pool_give(mine);
  bny_pool_free(pool);
}

/* ---- fewer threads ----------------------------------------------------------------------------------------------- */

TEST(threads_that_cannot_be_started) {
  enum { MANY = 64, LEFT_BYTES = 9 << 20 };
  if (IS_SANITIZED) return; /* a sanitizer maps more memory than any limit */
  bny_pool *pool = NULL;
  struct rlimit before = space_limit(LEFT_BYTES);
  banyan_status status = bny_pool_make(MANY, NULL, &pool);
  ck_assert_int_eq(status, BANYAN_ERR_SYSTEM);
  ck_assert_ptr_null(pool);
  ck_assert_msg(strstr(banyan_last_error(), " of 64 of this rank cannot be started: ") != NULL, "%s",
                banyan_last_error());
  ck_assert_int_eq(bny_pool_make_some(MANY, NULL, &pool), BANYAN_OK);
  setrlimit(RLIMIT_AS, &before);
  ck_assert_int_gt(bny_pool_threads(pool), 1);
  ck_assert_int_lt(bny_pool_threads(pool), MANY);
  ck_assert(find_elsewhere(pool, use_stack));
  bny_pool_free(pool);
  pool = NULL;
  ck_assert_int_eq(bny_pool_make_some(2, NULL, &pool), BANYAN_OK);
  ck_assert_int_eq(bny_pool_threads(pool), 2);
  bny_pool_free(pool);
}

/* ---- forks ------------------------------------------------------------------------------------------------------- */

TEST(a_fork_works_alone) {
  bny_pool *pool = make_pool(THREADS);
  pid_t child = fork();
  if (child == 0) {
    bool alone = bny_pool_take(pool) == NULL;
    run_once(NULL);
    bny_pool_free(pool);
    _exit(alone ? 0 : 1);
  }
  int status;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  bny_pool *mine = bny_pool_take(pool);
  run_once(mine);
  bny_pool_give(mine);
  bny_pool_free(pool);
}

/* In another pid namespace a child may have the pid of its parent. Here both are 1. */
TEST(a_fork_is_another_process) {
  int status;
  pid_t outer = fork();
  if (outer == 0) {
    bool may = unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0 || unshare(CLONE_NEWPID) == 0;
    pid_t maker = fork();
    if (maker == 0) {
      uint64_t number = bny_process();
      may = may && unshare(CLONE_NEWPID) == 0;
      if (!may) printf("no pid namespaces here: forks alone are tested\n");
      pid_t child = fork(), self = getpid();
      if (child == 0) _exit(bny_process() != number && (!may || getpid() == self) ? 0 : 1);
      if (waitpid(child, &status, 0) != child || status != 0) _exit(1);
      _exit(bny_process() == number ? 0 : 2);
    }
    _exit(waitpid(maker, &status, 0) == maker && status == 0 ? 0 : 1);
  }
  ck_assert_int_eq(waitpid(outer, &status, 0), outer);
  ck_assert_int_eq(status, 0);
}

/* Two cases: madvise() rejects pages that fork zeroes, or accepts them without effect. */
TEST_LOOP(a_fork_is_another_process_without_such_pages, 2) {
  struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 1),
                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (_i ? 0 : EINVAL)),
                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {sizeof code / sizeof code[0], code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    printf("skipped: no seccomp filters here\n");
    return;
  }
  uint64_t number = bny_process();
  int status;
  pid_t child = fork();
  if (child == 0) {
    uint64_t own = bny_process();
    _exit(own != number && own == bny_process() ? 0 : 1);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  ck_assert_uint_eq(bny_process(), number);
}

int main(void) { return suite_main(suite_of("pool", 120)); }
