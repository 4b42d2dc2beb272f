/* SPDX-License-Identifier: Apache-2.0
 * Prints the flight recorder, and writes it to a file after a failure. */
#include "exec/flight.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/status.h"

enum { LINE_BYTES = 192, LOGGED_ENTRIES = 16 };

bny_flight *bny_flight_make(void) {
  bny_flight *made = aligned_alloc(_Alignof(bny_flight), sizeof *made);
  if (!made) return NULL;
  memset(made, 0, sizeof *made); /* page faults now */
  made->tick0 = bny_clock_ticks();
  made->ns0 = bny_clock_ns();
  return made;
}

void bny_flight_free(bny_flight *flight) { free(flight); }

/* `next`: the operation after it, or NULL. */
static void print_entry(const bny_flight_entry *entry, const bny_flight_entry *next, const bny_clock_scale *scale,
                        int64_t now_ns, char *text, size_t bytes, size_t *length) {
  int64_t begin_ns = bny_clock_scale_ns(scale, entry->begin);
  bny_append(text, bytes, length, "operation %" PRIu64 ": %s, %" PRIu64 " bytes by %s, begun %.6f s ago, ",
             entry->operation, entry->note.collective, entry->note.bytes, entry->note.algorithm,
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

static void write_file(const char *pattern, int32_t rank, const char *text, size_t bytes) {
  char path[1024];
  if (!bny_log_path(pattern, rank, path, sizeof path)) return;
  int file = bny_file_open(path, O_APPEND, BNY_FILE_REGULAR);
  ssize_t written = file < 0 ? -1 : bny_file_write(file, text, bytes);
  if (written != (ssize_t)bytes)
    bny_log(BNY_LOG_WARN, "the flight recorder cannot write to %s: %s", path,
            bny_file_error(written < 0 ? errno : ENOSPC));
  if (file >= 0) close(file);
}

void bny_flight_dump(const bny_flight *flight, uint64_t last, int32_t rank, const char *reason, const char *pattern) {
  size_t bytes = (BNY_FLIGHT_ENTRIES + 8) * LINE_BYTES, length = 0;
  char *text = bny_log_wants(BNY_LOG_INFO) || pattern ? malloc(bytes) : NULL;
  if (!text) return;
  bny_append(text, bytes, &length, "banyan: rank %d, process %d: %s\n", rank, (int)getpid(), reason);
  length += bny_flight_print(flight, last, BNY_FLIGHT_ENTRIES, text + length, bytes - length);
  if (length >= bytes) length = bytes - 1;
  if (pattern) write_file(pattern, rank, text, length);
  if (bny_log_wants(BNY_LOG_INFO)) {
    bny_log(BNY_LOG_INFO, "failed: %s", reason);
    bny_flight_print(flight, last, bny_log_wants(BNY_LOG_DEBUG) ? BNY_FLIGHT_ENTRIES : LOGGED_ENTRIES, text, bytes);
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1)
      bny_log(BNY_LOG_INFO, "%.*s", (int)(end - line), line);
  }
  free(text);
}
