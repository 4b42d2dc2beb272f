/* SPDX-License-Identifier: Apache-2.0
 * The work of a rank. Signals work as in banyan's shared-memory transport: the owner of a cache line stores a number
 * with release order. The peer polls it with acquire order and a pause, and then reads the data. A rank writes only its
 * own memory. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tools/topo/measure/measure.h"

/* WARM: round trips that let CPUs raise their clocks. BATCH: round trips between two clock reads. */
enum { WARM = 256, BATCH = 16, BATCHES = 64, MESSAGES_WARM = 8, MESSAGES = 64, COPIES = 4, LEAST = 8 };

/* Numbers of signals within a job. */
enum { END_OF_BANDWIDTH = 1 << 20, END_OF_LINES = 2 << 20, END_OF_FAN = 3 << 20, END_OF_MESSAGES = 4 << 20 };

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

/* TOPO_BUFFER_BYTES each. */
static char *source_of(const topo_ranks *ranks, int32_t node) {
  return ranks->buffers + (size_t)node * 2 * TOPO_BUFFER_BYTES;
}

static char *target_of(const topo_ranks *ranks, int32_t node) { return source_of(ranks, node) + TOPO_BUFFER_BYTES; }

void topo_rank_touch(topo_ranks *ranks, int32_t rank) { memset(signal_of(ranks, rank), 0, ranks->area_bytes); }

static double copy_ns(void *target, const void *source, size_t bytes) {
  int64_t start = tool_now_ns();
  memcpy(target, source, bytes);
  __asm__ volatile("" ::"r"(target) : "memory"); /* keeps the copy, which nothing reads */
  return (double)(tool_now_ns() - start);
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

/* Both ranks write, then both copy at once, as in a collective. The first round maps the pages and does not count. */
static bool copies(work *w) {
  int32_t own = w->ranks->node_of[w->rank], theirs = w->ranks->node_of[w->order->peer];
  double samples[COPIES] = {0};
  uint64_t value = w->order->base + 1, seen;
  for (int round = -1; round < COPIES; round++) {
    memset(source_of(w->ranks, own), round, TOPO_BUFFER_BYTES);
    tell(w, value);
    if (!await(w->theirs, value++, &seen)) return false;
    long before = times_displaced();
    double ns = copy_ns(target_of(w->ranks, own), source_of(w->ranks, theirs), TOPO_BUFFER_BYTES);
    if (round >= 0) {
      samples[round] = TOPO_BUFFER_BYTES / (ns > 1 ? ns : 1);
      w->answer.disturbed[TOPO_COPY] = w->answer.disturbed[TOPO_COPY] || times_displaced() != before;
    }
    tell(w, value);
    if (!await(w->theirs, value++, &seen)) return false;
  }
  w->answer.value[TOPO_COPY] = tool_percentile(samples, COPIES, 50);
  tell(w, w->order->base + END_OF_BANDWIDTH);
  return await(w->theirs, w->order->base + END_OF_BANDWIDTH, &seen);
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
  double takes[MESSAGES];
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
    if (count >= 0 && count < MESSAGES) takes[count] = take;
    count++;
  }
  tell(w, end);
  size_t kept = count < 0 ? 0 : count < MESSAGES ? (size_t)count : MESSAGES;
  w->answer.value[TOPO_TAKE] = tool_percentile(takes, kept, 50);
  return true;
}

topo_answer topo_rank_work(topo_ranks *ranks, int32_t rank, const topo_order *order) {
  work w = {.ranks = ranks, .rank = rank, .order = order, .mine = signal_of(ranks, rank)};
  if (order->peer < 0) {
    memset(source_of(ranks, ranks->node_of[rank]), 1, (size_t)2 * TOPO_BUFFER_BYTES);
    w.answer.done = true;
    return w.answer;
  }
  w.theirs = signal_of(ranks, order->peer);
  bool good = copies(&w);
  long before = times_displaced();
  good = good && signals(&w);
  long between = times_displaced();
  w.answer.done = good && messages(&w);
  w.answer.disturbed[TOPO_LINE] = w.answer.disturbed[TOPO_MORE] = between != before;
  w.answer.disturbed[TOPO_TAKE] = times_displaced() != between;
  return w.answer;
}
