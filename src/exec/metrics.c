/* SPDX-License-Identifier: Apache-2.0
 * Writes the file of counters for Prometheus. Each new file is renamed over the old one, so a reader never sees half of
 * one. A lock on the file shows other communicators of the rank that the name is in use. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "base/status.h"
#include "exec/record.h"

enum { PATH_BYTES = 1024 };

typedef struct bny_metrics {
  char path[PATH_BYTES];
  int file;
  uint64_t process; /* its maker: a child of a fork leaves the file alone */
  int64_t every_ns, next_ns;
  bool failed; /* reported once */
} bny_metrics;

banyan_status bny_metrics_open(const char *pattern, int32_t rank, int64_t every_ns, bny_metrics **metrics) {
  bny_metrics *made = calloc(1, sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for metrics");
  banyan_status status = bny_log_claim("metrics", pattern, rank, made->path, sizeof made->path, &made->file);
  if (status != BANYAN_OK) {
    free(made);
    return status;
  }
  made->process = bny_process();
  made->every_ns = every_ns;
  made->next_ns = bny_clock_ns() + every_ns;
  *metrics = made;
  return BANYAN_OK;
}

/* Returns false and errno. */
static bool replace(bny_metrics *metrics, const char *text, size_t bytes) {
  char path[PATH_BYTES + 8];
  snprintf(path, sizeof path, "%s.new", metrics->path);
  int file = bny_file_open(path, 0, BNY_FILE_REGULAR);
  if (file < 0) return false;
  bool good = ftruncate(file, 0) == 0 && bny_file_write(file, text, bytes) == (ssize_t)bytes &&
              flock(file, LOCK_EX | LOCK_NB) == 0 && rename(path, metrics->path) == 0;
  int error = errno;
  if (!good) unlink(path);
  close(good ? metrics->file : file);
  if (good) metrics->file = file;
  errno = error;
  return good;
}

void bny_metrics_write(bny_metrics *metrics, const bny_flight *flight) {
  if (metrics->process != bny_process()) return;
  size_t bytes = bny_flight_metrics(flight, NULL, 0) + 1;
  char *text = malloc(bytes);
  if (text) bny_flight_metrics(flight, text, bytes);
  if (!text || replace(metrics, text, bytes - 1) || metrics->failed) {
    free(text);
    return;
  }
  free(text);
  metrics->failed = true;
  bny_log(BNY_LOG_WARN, "cannot write metrics to %s: %s", metrics->path, bny_file_error(errno));
}

void bny_metrics_look(bny_metrics *metrics, const bny_flight *flight) {
  int64_t now_ns = bny_clock_ns();
  if (now_ns < metrics->next_ns) return;
  metrics->next_ns = now_ns + metrics->every_ns;
  bny_metrics_write(metrics, flight);
}

void bny_metrics_close(bny_metrics *metrics, const bny_flight *flight) {
  if (!metrics) return;
  if (flight) bny_metrics_write(metrics, flight);
  close(metrics->file);
  free(metrics);
}
