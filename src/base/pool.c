/* SPDX-License-Identifier: Apache-2.0
 * Runs parts of a task on the threads of a rank. A gate admits threads to the current task. It holds whether the task
 * is open, its number, and how many threads are inside. The caller closes the gate when no part is left, and waits only
 * for the threads inside. */
#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/float_control.h"
#include "base/log.h"
#include "base/process.h"
#include "base/status.h"
#include "base/sysfs.h"
#include "base/thread.h"

/* A thread polls for this long before it sleeps, because attention of the next layer usually comes sooner. The caller
 * polls as long for the threads inside. Then it yields, because one of them may have lost this core, and then
 * sleeps. */
enum { LOOK_NS = 50000, LOOKS_PER_CLOCK = 32, YIELD_NS = 1000000, SLEEP_FIRST_NS = 50000, SLEEP_LONGEST_NS = 200000 };

#define INSIDE_MASK ((uint64_t)0xffff)
#define OPEN ((uint64_t)1 << 16)
#define NUMBER_SHIFT 17

struct bny_pool {
  _Atomic uint64_t gate;
  void (*work)(void *context, int32_t place);
  void *context;
  uint64_t float_control; /* the caller's rounding mode and treatment of denormal numbers */
  _Atomic int32_t sleepers;
  _Atomic bool leaving;
  atomic_flag busy;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  uint64_t process; /* the process that made it */
  int32_t threads;  /* number of threads, including the caller */
  int32_t started;  /* number of threads started, up to threads - 1 */
  void *memory;
  size_t memory_bytes;
  struct pool_thread {
    bny_pool *pool;
    pthread_t thread;
    int32_t place;
    unsigned char cpus[BNY_POOL_CPU_BYTES]; /* processors on which it may run; all zeros: any */
  } each[];
};

/* Enters the current work unless this thread has been in it. */
static bool enter(bny_pool *pool, uint64_t *last) {
  uint64_t gate = atomic_load_explicit(&pool->gate, memory_order_acquire);
  while ((gate & OPEN) && gate >> NUMBER_SHIFT != *last) {
    if (!atomic_compare_exchange_weak_explicit(&pool->gate, &gate, gate + 1, memory_order_acq_rel,
                                               memory_order_acquire))
      continue;
    *last = gate >> NUMBER_SHIFT;
    return true;
  }
  return false;
}

/* Sequentially consistent, as is `sleepers`: either this thread sees the work, or the caller sees a sleeper. */
static bool has_work(bny_pool *pool, uint64_t last) {
  uint64_t gate = atomic_load(&pool->gate);
  return atomic_load(&pool->leaving) || ((gate & OPEN) && gate >> NUMBER_SHIFT != last);
}

static void await_work(bny_pool *pool, uint64_t last) {
  int64_t until = bny_clock_ns() + LOOK_NS;
  do {
    for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
      if (has_work(pool, last)) return;
      bny_thread_pause();
    }
  } while (bny_clock_ns() < until);
  pthread_mutex_lock(&pool->lock);
  atomic_fetch_add(&pool->sleepers, 1);
  while (!has_work(pool, last)) pthread_cond_wait(&pool->wake, &pool->lock);
  atomic_fetch_sub(&pool->sleepers, 1);
  pthread_mutex_unlock(&pool->lock);
}

static void *run_thread(void *argument) {
  struct pool_thread *self = argument;
  bny_pool *pool = self->pool;
  uint64_t last = 0;
  /* With an empty mask this fails, and the thread stays unbound. */
  sched_setaffinity(0, sizeof self->cpus, (const cpu_set_t *)(const void *)self->cpus);
  while (!atomic_load_explicit(&pool->leaving, memory_order_acquire)) {
    if (enter(pool, &last)) {
      bny_float_control_set(pool->float_control);
      pool->work(pool->context, self->place);
      atomic_fetch_sub_explicit(&pool->gate, 1, memory_order_release);
    } else
      await_work(pool, last);
  }
  return NULL;
}

/* Returns the `index`-th processor of the set, and the first again after the last. */
static int32_t cpu_at(const bny_pool_cpus *cpus, int32_t index) {
  if (!cpus || cpus->count < 1) return -1;
  index %= cpus->count;
  for (int32_t cpu = 0; cpu < 8 * BNY_POOL_CPU_BYTES; cpu++)
    if ((cpus->mask[cpu / 8] >> cpu % 8 & 1) && index-- == 0) return cpu;
  return -1;
}

static void visit_node(void *context, const char *folder, const char *name) {
  int32_t *node = context;
  int end = 0, number;
  (void)folder;
  if (sscanf(name, "node%d%n", &number, &end) == 1 && !name[end]) *node = number;
}

/* Keeps only the processors on the NUMA node of `cpu` in the mask. Keeps all if the system has no NUMA nodes. */
static void keep_node_of(int32_t cpu, unsigned char *mask) {
  char list[4096], *at = list;
  int32_t node = -1;
  unsigned char kept[BNY_POOL_CPU_BYTES] = {0};
  bny_sysfs_each(visit_node, &node, "/sys/devices/system/cpu/cpu%d", cpu);
  if (node < 0 || !bny_sysfs_line(list, sizeof list, "/sys/devices/system/node/node%d/cpulist", node)) return;
  for (int first, last, length = 0; sscanf(at, "%d%n", &first, &length) == 1; at += *at == ',') {
    at += length;
    last = first;
    if (sscanf(at, "-%d%n", &last, &length) == 1) at += length;
    for (int i = first; i >= 0 && i <= last && i < 8 * BNY_POOL_CPU_BYTES; i++)
      kept[i / 8] |= mask[i / 8] & (unsigned char)(1 << i % 8);
  }
  if (kept[cpu / 8] >> cpu % 8 & 1) memcpy(mask, kept, sizeof kept);
}

/* A thread may use all processors of the set on one NUMA node, near the pages that it touched first. If it were bound
 * to a single processor, a thread of another program might use the same one while others are idle. Returns 0, or the
 * errno for which the next thread cannot be started. */
static int start_threads(bny_pool *pool, const bny_pool_cpus *cpus) {
  for (int32_t i = 0; i < pool->threads - 1; i++) {
    pool->each[i] = (struct pool_thread){.pool = pool, .place = i + 1};
    int32_t cpu = cpu_at(cpus, i + 1);
    if (cpu >= 0) memcpy(pool->each[i].cpus, cpus->mask, sizeof pool->each[i].cpus);
    if (cpu >= 0) keep_node_of(cpu, pool->each[i].cpus);
    int error = bny_thread_start(&pool->each[i].thread, run_thread, &pool->each[i]);
    if (error) return error;
    pool->started++;
  }
  return 0;
}

/* Makes a pool of as many threads as can be started, and reports why there are no more. */
static banyan_status make(int32_t threads, const bny_pool_cpus *cpus, bny_pool **pool, int *error) {
  bny_pool *made = calloc(1, sizeof *made + (size_t)(threads - 1) * sizeof made->each[0]);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "no memory for %d threads", threads);
  made->threads = threads;
  made->process = bny_process();
  atomic_flag_clear(&made->busy);
  pthread_mutex_init(&made->lock, NULL);
  pthread_cond_init(&made->wake, NULL);
  *error = start_threads(made, cpus);
  made->threads = made->started + 1;
  *pool = made;
  return BANYAN_OK;
}

banyan_status bny_pool_make(int32_t threads, const bny_pool_cpus *cpus, bny_pool **pool) {
  bny_pool *made;
  int error;
  banyan_status status = make(threads, cpus, &made, &error);
  if (status != BANYAN_OK) return status;
  if (error) {
    int32_t failed = made->threads;
    bny_pool_free(made);
    return bny_fail(BANYAN_ERR_SYSTEM,
                    "thread %d of %d of this rank cannot be started: %s; ask for fewer (BANYAN_THREADS)", failed,
                    threads, strerror(error));
  }
  *pool = made;
  return BANYAN_OK;
}

banyan_status bny_pool_make_some(int32_t threads, const bny_pool_cpus *cpus, bny_pool **pool) {
  int error;
  banyan_status status = make(threads, cpus, pool, &error);
  if (status == BANYAN_OK && error)
    bny_log(BNY_LOG_WARN, "this rank continues with %d of %d threads, because no more can be started: %s",
            (*pool)->threads, threads, strerror(error));
  return status;
}

static void wake_all(bny_pool *pool) {
  pthread_mutex_lock(&pool->lock);
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->lock);
}

void bny_pool_free(bny_pool *pool) {
  if (!pool) return;
  if (pool->process == bny_process()) { /* the child of a fork has no threads, and may hold a copy of a locked lock */
    atomic_store_explicit(&pool->leaving, true, memory_order_release);
    wake_all(pool);
    for (int32_t i = 0; i < pool->started; i++) pthread_join(pool->each[i].thread, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
  }
  free(pool->memory);
  free(pool);
}

int32_t bny_pool_threads(const bny_pool *pool) { return pool ? pool->threads : 1; }

bny_pool *bny_pool_take(bny_pool *pool) {
  if (!pool || pool->process != bny_process()) return NULL;
  return atomic_flag_test_and_set_explicit(&pool->busy, memory_order_acquire) ? NULL : pool;
}

void bny_pool_give(bny_pool *pool) {
  if (pool) atomic_flag_clear_explicit(&pool->busy, memory_order_release);
}

static bool is_inside(bny_pool *pool) { return atomic_load_explicit(&pool->gate, memory_order_acquire) & INSIDE_MASK; }

static void await_others(bny_pool *pool) {
  int64_t begun_ns = bny_clock_ns(), waited_ns = 0, sleep_ns = SLEEP_FIRST_NS;
  while (is_inside(pool)) {
    if (waited_ns < LOOK_NS)
      for (int i = 0; i < LOOKS_PER_CLOCK && is_inside(pool); i++) bny_thread_pause();
    else if (waited_ns < LOOK_NS + YIELD_NS)
      sched_yield();
    else {
      int state; /* if the caller were cancelled now, the other threads would lose the data that they use */
      pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
      nanosleep(&(struct timespec){0, sleep_ns}, NULL);
      pthread_setcancelstate(state, NULL);
      if (sleep_ns < SLEEP_LONGEST_NS) sleep_ns *= 2;
    }
    waited_ns = bny_clock_ns() - begun_ns;
  }
}

void bny_pool_run(bny_pool *pool, void (*work)(void *context, int32_t place), void *context) {
  if (!pool) {
    work(context, 0);
    return;
  }
  pool->work = work;
  pool->context = context;
  pool->float_control = bny_float_control();
  uint64_t number = (atomic_load_explicit(&pool->gate, memory_order_relaxed) >> NUMBER_SHIFT) + 1;
  atomic_store(&pool->gate, number << NUMBER_SHIFT | OPEN);
  if (atomic_load(&pool->sleepers) > 0) wake_all(pool);
  work(context, 0);
  atomic_fetch_and_explicit(&pool->gate, ~OPEN, memory_order_acq_rel);
  await_others(pool);
}

void *bny_pool_memory(bny_pool *pool, size_t bytes) {
  if (bytes <= pool->memory_bytes) return pool->memory;
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!memory) return NULL;
  free(pool->memory);
  pool->memory = memory;
  pool->memory_bytes = bytes;
  return memory;
}
