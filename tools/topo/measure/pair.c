/* SPDX-License-Identifier: Apache-2.0
 * Measures a pair of CPUs, by a thread on each. Signals work as in banyan's shared-memory transport: the owner of a
 * cache line stores a number with release order. The peer polls it with acquire order and a pause, and then reads the
 * data. A thread writes only its own memory, which it touches first. */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/thread.h"
#include "tools/topo/measure/measure.h"

/* WARM: round trips that let CPUs raise their clocks. BATCH: round trips between two clock reads. FAN: lines that stand
 * for messages of other peers. */
enum { WARM = 256, BATCH = 16, BATCHES = 32, MESSAGES_WARM = 8, MESSAGES = 32, SLOTS = 2, COPIES = 4, FAN = 8 };
enum { LINE_BYTES = 128, PAGE_BYTES = 4096 };

static const int64_t signal_deadline_ns = 4000000000;

typedef struct area {
  struct {
    _Alignas(LINE_BYTES) _Atomic uint64_t value;
  } lines[FAN];
  _Alignas(PAGE_BYTES) char messages[SLOTS][TOPO_MESSAGE_BYTES];
  char source[TOPO_COPY_BYTES], target[TOPO_COPY_BYTES];
} area;

typedef struct work {
  int32_t cpu;
  area *mine, *theirs;
  bool leads, is_done, disturbed;
  uint64_t value; /* the latest signal */
  int error;      /* the thread cannot run on its CPU */
  double times[TOPO_METRICS];
} work;

/* Returns how often the kernel gave this CPU to another program. */
static long times_displaced(void) {
  struct rusage usage = {.ru_nivcsw = 0};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

/* Stores the latest signal in that many lines; the first one goes first. */
static void tell(work *w, int lines) {
  for (int i = 0; i < lines; i++) atomic_store_explicit(&w->mine->lines[i].value, w->value, memory_order_release);
}

/* Waits for the peer's latest signal in that many lines. Returns false at the deadline. */
static bool await(const work *w, int lines) {
  int64_t until_ns = 0;
  uint32_t polls = 0;
  for (int i = 0; i < lines; i++) {
    while (atomic_load_explicit(&w->theirs->lines[i].value, memory_order_acquire) < w->value) {
      bny_thread_pause();
      if (++polls % 4096 != 0) continue;
      const int64_t now_ns = tool_now_ns();
      until_ns = until_ns == 0 ? now_ns + signal_deadline_ns : until_ns;
      if (now_ns > until_ns) return false;
    }
  }
  return true;
}

/* Returns true once both threads are here. */
static bool meet(work *w) {
  w->value++;
  tell(w, 1);
  return await(w, 1);
}

static double copy_ns(void *target, const void *source, size_t bytes) {
  const int64_t start = tool_now_ns();
  memcpy(target, source, bytes);
  __asm__ volatile("" ::"r"(target) : "memory"); /* keeps the copy, which nothing reads */
  return (double)(tool_now_ns() - start);
}

/* Both threads write, then both copy at once, as in a collective. The first round maps the pages and does not count. */
static bool copies(work *w) {
  double samples[COPIES] = {0};
  for (int round = -1; round < COPIES; round++) {
    memset(w->mine->source, round, TOPO_COPY_BYTES);
    if (!meet(w)) return false;
    const double ns = copy_ns(w->mine->target, w->theirs->source, TOPO_COPY_BYTES);
    if (round >= 0) samples[round] = ns;
    if (!meet(w)) return false;
  }
  w->times[TOPO_COPY] = tool_percentile(samples, COPIES, 50);
  return true;
}

/* Measures the time of that many signals, one way, in batches. */
static bool signals(work *w, int lines, double *median_ns) {
  double samples[BATCHES];
  for (int batch = -WARM / BATCH; batch < BATCHES; batch++) {
    const int64_t start = tool_now_ns();
    for (int i = 0; i < BATCH; i++) {
      w->value++;
      if (w->leads) tell(w, lines);
      if (!await(w, lines)) return false;
      if (!w->leads) tell(w, lines);
    }
    if (batch >= 0) samples[batch] = (double)(tool_now_ns() - start) / (2 * BATCH);
  }
  *median_ns = tool_percentile(samples, BATCHES, 50);
  return true;
}

/* Writes the next message for the peer to read. */
static void send_message(work *w, const char *from) {
  memcpy(w->mine->messages[w->value % SLOTS], from, TOPO_MESSAGE_BYTES);
  tell(w, 1);
}

static bool messages(work *w) {
  _Alignas(64) char mine[TOPO_MESSAGE_BYTES], taken[TOPO_MESSAGE_BYTES];
  double samples[MESSAGES];
  memset(mine, w->cpu, sizeof mine);
  for (int i = -MESSAGES_WARM; i < MESSAGES; i++) {
    w->value++;
    if (w->leads) send_message(w, mine);
    if (!await(w, 1)) return false;
    const double ns = copy_ns(taken, w->theirs->messages[w->value % SLOTS], TOPO_MESSAGE_BYTES);
    if (!w->leads) send_message(w, mine);
    if (i >= 0) samples[i] = ns;
  }
  w->times[TOPO_TAKE] = tool_percentile(samples, MESSAGES, 50);
  return true;
}

static void *run(void *argument) {
  work *w = argument;
  cpu_set_t set[8]; /* one cpu_set_t is too small for some machines */
  CPU_ZERO_S(sizeof set, set);
  CPU_SET_S(w->cpu, sizeof set, set);
  if (sched_setaffinity(0, sizeof set, set) != 0) {
    w->error = errno;
    w->value = UINT64_MAX; /* the peer passes all waits, and its figures do not count */
    tell(w, FAN);
    return NULL;
  }
  double fan_ns = 0, *times = w->times;
  memset(w->mine, 0, sizeof *w->mine);
  const long before = times_displaced();
  w->is_done = copies(w) && signals(w, 1, &times[TOPO_LINE]) && signals(w, FAN, &fan_ns) && messages(w);
  w->disturbed = times_displaced() != before;
  times[TOPO_MORE] = fan_ns > times[TOPO_LINE] ? (fan_ns - times[TOPO_LINE]) / (FAN - 1) : 0;
  return NULL;
}

bool topo_pair_measure(int32_t cpu_a, int32_t cpu_b, double times[TOPO_METRICS], bool *disturbed, tool_error *error) {
  area *areas = mmap(NULL, 2 * sizeof *areas, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (areas == MAP_FAILED)
    return tool_error_set(error, "%zu MiB of memory cannot be had: %s", 2 * sizeof *areas >> 20, strerror(errno));
  work works[2] = {{.cpu = cpu_a, .mine = &areas[0], .theirs = &areas[1], .leads = true},
                   {.cpu = cpu_b, .mine = &areas[1], .theirs = &areas[0]}};
  pthread_t threads[2];
  int started = 0, failed = 0;
  while (started < 2 && (failed = bny_thread_start(&threads[started], run, &works[started])) == 0) started++;
  for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
  if (failed) works[started].error = failed;
  munmap(areas, 2 * sizeof *areas);
  for (int i = 0; i < 2; i++)
    if (works[i].error)
      return tool_error_set(error, "a thread cannot run on CPU %d: %s", works[i].cpu, strerror(works[i].error));
  for (int i = 0; i < 2; i++)
    if (!works[i].is_done)
      return tool_error_set(error,
                            "CPU %d waited too long for a signal: another program with higher priority may hold "
                            "one of the CPUs",
                            works[i].cpu);
  for (int m = 0; m < TOPO_METRICS; m++) times[m] = (works[0].times[m] + works[1].times[m]) / 2;
  *disturbed = works[0].disturbed || works[1].disturbed;
  return true;
}
