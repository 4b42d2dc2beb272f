/* SPDX-License-Identifier: Apache-2.0
 * The work of a rank. Signals work as in banyan's shared-memory transport: the owner of a cache line stores a number
 * with release order. The peer polls it with acquire order and a pause, and then reads the data. A rank writes only its
 * own memory. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tools/topo/measure/measure.h"

/* WARM: round trips that let CPUs raise their clocks. BATCH: round trips between two clock reads. */
enum { WARM = 256, BATCH = 16, BATCHES = 64, MESSAGES_WARM = 8, MESSAGES = 64, SMALL_ROUNDS = 4, LEAST = 8 };

/* Numbers of signals within a job. */
enum {
  STREAM_WRITTEN = 1,
  END_OF_BANDWIDTH = 1 << 20,
  END_OF_LINES = 2 << 20,
  END_OF_FAN = 3 << 20,
  END_OF_MESSAGES = 4 << 20
};

/* A rank's own signals: the one that waits look for, and those that are stored beside it. */
enum { FAN = 8, LINE_BYTES = 128 };

static const int64_t enough_ns = 40000000; /* limit of a part of a block that has LEAST samples */
static const int64_t signal_deadline_ns = 4000000000;

typedef struct work {
  topo_ranks *ranks;
  int32_t rank;
  const topo_order *order;
  topo_signal *mine, *theirs;
  topo_answer answer;
} work;

/* Returns how often the kernel gave this CPU to another program. */
static long times_displaced(void) {
  struct rusage usage = {.ru_nivcsw = 0};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield" ::: "memory");
#else
  __asm__ volatile("" ::: "memory");
#endif
}

static inline void tell(work *w, uint64_t value) { atomic_store_explicit(w->mine, value, memory_order_release); }

/* Waits until *signal is at least `value`. Returns false at the deadline. */
static inline bool await(topo_signal *signal, uint64_t value, uint64_t *seen) {
  int64_t until_ns = 0;
  for (uint32_t polls = 1;; polls++) {
    *seen = atomic_load_explicit(signal, memory_order_acquire);
    if (*seen >= value) return true;
    pause_briefly();
    if (polls % 4096 == 0) {
      int64_t now_ns = tool_now_ns();
      until_ns = until_ns == 0 ? now_ns + signal_deadline_ns : until_ns;
      if (now_ns > until_ns) return false;
    }
  }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* A rank's own signal, and its message slots, in pages of its own that it touches first. */
static topo_signal *signal_of(const topo_ranks *ranks, int32_t rank) {
  return (topo_signal *)(void *)(ranks->areas + (size_t)rank * ranks->area_bytes);
}

static char *message_of(const topo_ranks *ranks, int32_t rank, uint64_t number) {
  char *end = ranks->areas + ((size_t)rank + 1) * ranks->area_bytes;
  return end - (number % TOPO_MESSAGE_SLOTS + 1) * TOPO_MESSAGE_BYTES;
}

/* TOPO_LARGE_BYTES each. */
static char *source_of(const topo_ranks *ranks, int32_t node) {
  return ranks->buffers + (size_t)node * 2 * TOPO_LARGE_BYTES;
}

static char *target_of(const topo_ranks *ranks, int32_t node) { return source_of(ranks, node) + TOPO_LARGE_BYTES; }

/* Maps the buffers' pages into this process, so that no page fault is measured. */
static void know_buffers(topo_ranks *ranks, int32_t node) {
  if (ranks->touched[node]) return;
  const volatile char *buffers = source_of(ranks, node);
  for (size_t at = 0; at < (size_t)2 * TOPO_LARGE_BYTES; at += 4096) (void)buffers[at];
  ranks->touched[node] = true;
}

void topo_rank_touch(topo_ranks *ranks, int32_t rank) { memset(signal_of(ranks, rank), 0, ranks->area_bytes); }

static double copy_ns(void *target, const void *source, size_t bytes) {
  int64_t start = tool_now_ns();
  memcpy(target, source, bytes);
  __asm__ volatile("" ::"r"(target) : "memory"); /* keeps the copy, which nothing reads */
  return (double)(tool_now_ns() - start);
}

/* Returns the GB/s of a copy. Sets *disturbed if another program used the CPU meanwhile. */
static double copy_speed(void *target, const void *source, size_t bytes, bool *disturbed) {
  long before = times_displaced();
  double ns = copy_ns(target, source, bytes);
  *disturbed = *disturbed || times_displaced() != before;
  return (double)bytes / (ns > 1 ? ns : 1);
}

static void prepare(work *w) {
  int32_t node = w->ranks->node_of[w->rank];
  memset(source_of(w->ranks, node), 1, (size_t)2 * TOPO_LARGE_BYTES);
  w->ranks->touched[node] = true;
}

static void copy_own(work *w) {
  int32_t node = w->ranks->node_of[w->rank];
  char *source = source_of(w->ranks, node), *target = target_of(w->ranks, node);
  double small[SMALL_ROUNDS];
  know_buffers(w->ranks, node);
  memset(source, 2, TOPO_LARGE_BYTES);
  w->answer.value[TOPO_LARGE] = copy_speed(target, source, TOPO_LARGE_BYTES, &w->answer.disturbed[TOPO_LARGE]);
  for (int i = 0; i < SMALL_ROUNDS; i++) {
    memset(source, i, TOPO_SMALL_BYTES);
    small[i] = copy_speed(target, source, TOPO_SMALL_BYTES, &w->answer.disturbed[TOPO_SMALL]);
  }
  w->answer.value[TOPO_SMALL] = tool_percentile(small, SMALL_ROUNDS, 50);
  w->answer.done = true;
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

/* Both ranks write, then both copy at once, as in a collective; `value` is the signal of the first step. */
static bool bandwidth_rounds(work *w, topo_metric metric, size_t bytes, int rounds, uint64_t value) {
  int32_t own = w->ranks->node_of[w->rank], theirs = w->ranks->node_of[w->order->peer];
  double samples[SMALL_ROUNDS] = {0};
  uint64_t seen;
  for (int round = 0; round < rounds; round++) {
    memset(source_of(w->ranks, own), round, bytes);
    tell(w, value);
    if (!await(w->theirs, value++, &seen)) return false;
    samples[round] =
        copy_speed(target_of(w->ranks, own), source_of(w->ranks, theirs), bytes, &w->answer.disturbed[metric]);
    tell(w, value);
    if (!await(w->theirs, value++, &seen)) return false;
  }
  w->answer.value[metric] = tool_percentile(samples, (size_t)rounds, 50);
  return true;
}

static bool bandwidths(work *w) {
  know_buffers(w->ranks, w->ranks->node_of[w->rank]);
  know_buffers(w->ranks, w->ranks->node_of[w->order->peer]);
  uint64_t value = w->order->base + 1, seen;
  bool good = bandwidth_rounds(w, TOPO_LARGE, TOPO_LARGE_BYTES, 1, value) &&
              bandwidth_rounds(w, TOPO_SMALL, TOPO_SMALL_BYTES, SMALL_ROUNDS, value + 16);
  tell(w, w->order->base + END_OF_BANDWIDTH);
  return good && await(w->theirs, w->order->base + END_OF_BANDWIDTH, &seen);
}

/* ---- signals: FAN further lines of a rank's own page stand for messages of other peers */

static topo_signal *line_of(topo_signal *first, int i) { return first + (size_t)i * LINE_BYTES / sizeof *first; }

/* Stores that many lines; the first one goes first. */
static void tell_lines(work *w, int lines, uint64_t value) {
  for (int i = 0; i < lines; i++) atomic_store_explicit(line_of(w->mine, i), value, memory_order_release);
}

static bool await_lines(work *w, int lines, uint64_t value, uint64_t *seen) {
  uint64_t further;
  bool good = await(w->theirs, value, seen);
  for (int i = 1; i < lines && good; i++) good = await(line_of(w->theirs, i), value, &further);
  return good;
}

static bool answer_lines(work *w, int lines, uint64_t value, uint64_t end) {
  uint64_t seen;
  while (await_lines(w, lines, value + 1, &seen)) {
    if (seen >= end) {
      tell_lines(w, lines, end);
      return true;
    }
    tell_lines(w, lines, ++value);
  }
  return false;
}

/* Measures the time of that many signals, one way, in batches. */
static bool lead_lines(work *w, int lines, uint64_t value, uint64_t end, double *median_ns) {
  uint64_t seen;
  double samples[BATCHES];
  int batches = -WARM / BATCH;
  int64_t begin = tool_now_ns();
  for (; batches < BATCHES && (batches < LEAST || tool_now_ns() - begin < enough_ns); batches++) {
    int64_t start = tool_now_ns();
    for (int i = 0; i < BATCH; i++) {
      tell_lines(w, lines, ++value);
      if (!await_lines(w, lines, value, &seen)) return false;
    }
    if (batches >= 0) samples[batches] = (double)(tool_now_ns() - start) / (2 * BATCH);
  }
  tell_lines(w, lines, end);
  *median_ns = tool_percentile(samples, (size_t)batches, 50);
  return await_lines(w, lines, end, &seen);
}

static bool signals(work *w) {
  uint64_t begin = w->order->base + END_OF_BANDWIDTH, middle = w->order->base + END_OF_LINES;
  uint64_t end = w->order->base + END_OF_FAN;
  double line_ns, fan_ns;
  if (!w->order->leads) return answer_lines(w, 1, begin, middle) && answer_lines(w, FAN, middle, end);
  if (!lead_lines(w, 1, begin, middle, &line_ns) || !lead_lines(w, FAN, middle, end, &fan_ns)) return false;
  w->answer.value[TOPO_LINE] = line_ns;
  w->answer.value[TOPO_MORE] = fan_ns > line_ns ? (fan_ns - line_ns) / (FAN - 1) : 0;
  return true;
}

/* ---- messages */

/* Writes the message of that number for the peer to read. */
static void send_message(work *w, uint64_t value, const char *from) {
  memcpy(message_of(w->ranks, w->rank, value), from, TOPO_MESSAGE_BYTES);
  tell(w, value);
}

static bool messages(work *w) {
  uint64_t value = w->order->base + END_OF_FAN, end = w->order->base + END_OF_MESSAGES, seen = 0;
  _Alignas(64) char mine[TOPO_MESSAGE_BYTES], taken[TOPO_MESSAGE_BYTES];
  double trips[MESSAGES], takes[MESSAGES];
  int count = -MESSAGES_WARM;
  int64_t begin = tool_now_ns();
  memset(mine, w->rank, sizeof mine);
  for (;;) {
    int64_t start = tool_now_ns();
    value++;
    if (w->order->leads) {
      if (count == MESSAGES || (count >= LEAST && start - begin > enough_ns)) break;
      send_message(w, value, mine);
    }
    if (!await(w->theirs, value, &seen)) return false;
    if (seen >= end) break;
    double take = copy_ns(taken, message_of(w->ranks, w->order->peer, value), TOPO_MESSAGE_BYTES);
    if (!w->order->leads) send_message(w, value, mine);
    if (count >= 0 && count < MESSAGES) {
      takes[count] = take;
      trips[count] = (double)(tool_now_ns() - start) / 2;
    }
    count++;
  }
  tell(w, end);
  size_t kept = count < 0 ? 0 : count < MESSAGES ? (size_t)count : MESSAGES;
  w->answer.value[TOPO_TAKE] = tool_percentile(takes, kept, 50);
  w->answer.value[TOPO_MESSAGE] = tool_percentile(trips, kept, 50);
  return true;
}

static void measure_pair(work *w) {
  w->theirs = signal_of(w->ranks, w->order->peer);
  bool good = bandwidths(w);
  long before = times_displaced();
  good = good && signals(w);
  long between = times_displaced();
  w->answer.done = good && messages(w);
  w->answer.disturbed[TOPO_LINE] = w->answer.disturbed[TOPO_MORE] = between != before;
  w->answer.disturbed[TOPO_MESSAGE] = w->answer.disturbed[TOPO_TAKE] = times_displaced() != between;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static void write_part(work *w) {
  int32_t own = w->ranks->node_of[w->rank];
  know_buffers(w->ranks, own);
  memset(source_of(w->ranks, own) + w->order->offset, (int)w->order->base, w->order->bytes);
  tell(w, w->order->base + STREAM_WRITTEN);
  w->answer.done = true;
}

static void read_part(work *w) {
  int32_t own = w->ranks->node_of[w->rank], theirs = w->ranks->node_of[w->order->peer];
  const char *source = source_of(w->ranks, theirs) + w->order->offset;
  char *target = target_of(w->ranks, own) + w->order->offset;
  uint64_t seen;
  know_buffers(w->ranks, own);
  know_buffers(w->ranks, theirs);
  if (!await(signal_of(w->ranks, w->order->peer), w->order->base + STREAM_WRITTEN, &seen)) return;
  atomic_fetch_add(w->ranks->arrived, 1);
  int64_t begin = tool_now_ns();
  while (atomic_load(w->ranks->arrived) < w->order->readers) {
    pause_briefly();
    if (tool_now_ns() - begin > signal_deadline_ns) return;
  }
  w->answer.start_ns = tool_now_ns();
  copy_speed(target, source, w->order->bytes, &w->answer.disturbed[TOPO_LARGE]);
  w->answer.end_ns = tool_now_ns();
  w->answer.done = true;
}

topo_answer topo_rank_work(topo_ranks *ranks, int32_t rank, const topo_order *order) {
  work w = {.ranks = ranks, .rank = rank, .order = order, .mine = signal_of(ranks, rank)};
  switch (order->job) {
  case TOPO_JOB_PREPARE:
    prepare(&w);
    w.answer.done = true;
    break;
  case TOPO_JOB_LOCAL: copy_own(&w); break;
  case TOPO_JOB_PAIR: measure_pair(&w); break;
  case TOPO_JOB_WRITE: write_part(&w); break;
  case TOPO_JOB_READ: read_part(&w); break;
  }
  return w.answer;
}
