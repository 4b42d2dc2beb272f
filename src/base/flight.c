/* SPDX-License-Identifier: Apache-2.0
 * Makes the memory file of the flight recorder, and prints its contents. */
#include "base/flight.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/names.h"
#include "base/status.h"

/* Returns NULL where there are no such files, or no descriptors. */
static bny_flight *map_file(size_t bytes, int *file) {
  *file = bny_file_memory(BNY_FLIGHT_FILE, 0);
  if (*file < 0) return NULL;
  bny_file_guard guard; /* a limit of file sizes applies */
  bny_file_guard_begin(&guard);
  bool sized = fchmod(*file, 0600) == 0 && ftruncate(*file, (off_t)bytes) == 0;
  bny_file_guard_end(&guard);
  void *base = sized ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, *file, 0) : MAP_FAILED;
  if (base != MAP_FAILED) return base;
  close(*file);
  *file = -1;
  return NULL;
}

bny_flight *bny_flight_make(int32_t rank, int32_t nranks) {
  size_t bytes = sizeof(bny_flight) + (size_t)nranks * sizeof(bny_flight_waits);
  bytes = (bytes + _Alignof(bny_flight) - 1) / _Alignof(bny_flight) * _Alignof(bny_flight);
  int file;
  bny_flight *made = map_file(bytes, &file);
  if (!made) {
    made = aligned_alloc(_Alignof(bny_flight), bytes);
    if (!made) return NULL;
    memset(made, 0, bytes); /* page faults now */
  }
  strncpy(made->version, banyan_version(), sizeof made->version - 1);
  made->bytes = bytes;
  made->rank = rank;
  made->nranks = nranks;
  made->file = file;
  made->pid = getpid();
  made->culprit = -1;
  made->tick0 = bny_clock_ticks();
  made->ns0 = bny_clock_ns();
  memcpy(made->magic, BNY_FLIGHT_FILE, sizeof BNY_FLIGHT_FILE);
  return made;
}

void bny_flight_free(bny_flight *flight) {
  if (!flight) return;
  if (flight->file < 0) {
    free(flight);
    return;
  }
  int file = flight->file;
  munmap(flight, flight->bytes);
  close(file);
}

void bny_flight_wait_end(bny_flight *flight) {
  uint64_t waiting = atomic_load_explicit(&flight->waiting, memory_order_relaxed);
  int64_t took_ns = bny_clock_ns() - atomic_load_explicit(&flight->waiting_ns, memory_order_relaxed);
  int32_t peer = (int32_t)(waiting >> 32) - 1;
  atomic_store_explicit(&flight->waiting, 0, memory_order_relaxed);
  if (took_ns < flight->threshold_ns || peer < 0 || peer >= flight->nranks) return;
  flight->waits[peer].count++;
  flight->waits[peer].ns += (uint64_t)took_ns;
}

const char *bny_flight_name(uint8_t kind) {
  return kind == BNY_FLIGHT_AGREE ? "agree" : bny_collective_name((bny_collective)kind);
}

/* `next`: the operation after it, or NULL. */
static void print_entry(const bny_flight_entry *entry, const bny_flight_entry *next, const bny_clock_scale *scale,
                        int64_t now_ns, char *text, size_t bytes, size_t *length) {
  int64_t begin_ns = bny_clock_scale_ns(scale, entry->begin);
  bny_append(text, bytes, length, "operation %" PRIu64 ": ", entry->operation);
  if (entry->tag >= 0) bny_append(text, bytes, length, "tag %" PRId64 ", ", entry->tag);
  bny_append(text, bytes, length, "%s, %" PRIu64 " bytes by %.*s, begun %.6f s ago, ",
             bny_flight_name(entry->note.kind), entry->note.bytes, BNY_FLIGHT_ALGORITHM_BYTES, entry->note.algorithm,
             (double)(now_ns - begin_ns) * 1e-9);
  bool is_timed = entry->end > 1;
  int64_t end_ns = is_timed ? bny_clock_scale_ns(scale, entry->end)
                   : next   ? bny_clock_scale_ns(scale, next->begin)
                            : now_ns;
  if (entry->end)
    bny_append(text, bytes, length, "took %s%.2f us\n", is_timed ? "" : "at most ", (double)(end_ns - begin_ns) * 1e-3);
  else
    bny_append(text, bytes, length, "not finished\n");
}

size_t bny_flight_print(const bny_flight *flight, uint64_t last, int32_t entries, char *text, size_t bytes) {
  size_t length = 0;
  int64_t now_ns = bny_clock_ns();
  bny_clock_scale scale = bny_clock_scale_make(flight->tick0, flight->ns0, bny_clock_ticks(), now_ns);
  if (bytes) text[0] = 0;
  for (uint64_t i = (uint64_t)entries; i-- > 0;) {
    if (i >= last) continue;
    const bny_flight_entry *entry = &flight->entries[(last - i) % BNY_FLIGHT_ENTRIES];
    const bny_flight_entry *next = &flight->entries[(last - i + 1) % BNY_FLIGHT_ENTRIES];
    if (entry->operation != last - i) continue;
    print_entry(entry, next->operation == last - i + 1 ? next : NULL, &scale, now_ns, text, bytes, &length);
  }
  return length;
}

/* ---- counters ---------------------------------------------------------------------------------------------------- */

static void print_head(const char *name, const char *type, const char *help, char *text, size_t bytes, size_t *length) {
  bny_append(text, bytes, length, "# HELP banyan_%s %s\n# TYPE banyan_%s %s\n", name, help, name, type);
}

static void print_kinds(const bny_flight *flight, const char *name, const char *help, size_t offset, char *text,
                        size_t bytes, size_t *length) {
  print_head(name, "counter", help, text, bytes, length);
  for (int k = 0; k < BNY_FLIGHT_KINDS; k++)
    if (flight->counts[k].runs)
      bny_append(text, bytes, length, "banyan_%s{rank=\"%d\",ranks=\"%d\",collective=\"%s\"} %" PRIu64 "\n", name,
                 flight->rank, flight->nranks, bny_flight_name((uint8_t)k),
                 *(const uint64_t *)((const char *)&flight->counts[k] + offset));
}

/* A wait that has not ended counts with its time up to now. */
static bny_flight_waits waits_for(const bny_flight *flight, int32_t rank) {
  bny_flight_waits waits = flight->waits[rank];
  bool goes_on = (int32_t)(atomic_load_explicit(&flight->waiting, memory_order_relaxed) >> 32) == rank + 1;
  int64_t took_ns =
      goes_on ? bny_clock_ns() - atomic_load_explicit(&flight->waiting_ns, memory_order_relaxed) : INT64_MIN;
  if (took_ns >= flight->threshold_ns) waits = (bny_flight_waits){waits.count + 1, waits.ns + (uint64_t)took_ns};
  return waits;
}

size_t bny_flight_metrics(const bny_flight *flight, char *text, size_t bytes) {
  size_t length = 0;
  if (bytes) text[0] = 0;
  print_kinds(flight, "operations_total", "Operations that this rank has finished.", offsetof(bny_flight_count, runs),
              text, bytes, &length);
  print_kinds(flight, "input_bytes_total", "Bytes that this rank contributed to them.",
              offsetof(bny_flight_count, input_bytes), text, bytes, &length);
  print_head("waits_total", "counter", "Waits above the threshold, by the rank waited for.", text, bytes, &length);
  for (int32_t r = 0; r < flight->nranks; r++)
    if (waits_for(flight, r).count)
      bny_append(text, bytes, &length, "banyan_waits_total{rank=\"%d\",ranks=\"%d\",peer=\"%d\"} %" PRIu64 "\n",
                 flight->rank, flight->nranks, r, waits_for(flight, r).count);
  print_head("wait_seconds_total", "counter", "Time of these waits.", text, bytes, &length);
  for (int32_t r = 0; r < flight->nranks; r++)
    if (waits_for(flight, r).count)
      bny_append(text, bytes, &length, "banyan_wait_seconds_total{rank=\"%d\",ranks=\"%d\",peer=\"%d\"} %.6f\n",
                 flight->rank, flight->nranks, r, (double)waits_for(flight, r).ns * 1e-9);
  print_head("failed", "gauge", "1 once the communicator has failed.", text, bytes, &length);
  bny_append(text, bytes, &length, "banyan_failed{rank=\"%d\",ranks=\"%d\"} %d\n", flight->rank, flight->nranks,
             flight->status != 0);
  return length;
}
