/* SPDX-License-Identifier: Apache-2.0
 * Records runs: opens the trace and the flight recorder, and describes a plan for them. */
#include "exec/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "base/status.h"

enum { PATH_BYTES = 1024 };

typedef struct bny_metrics {
  char path[PATH_BYTES];
  int file;
  uint64_t process; /* the process that made it; the child of a fork does not touch the file */
  int64_t every_ns, next_ns;
  bool failed; /* reported once */
} bny_metrics;

/* The file of counters for Prometheus. Each new file is renamed over the old one, so a reader never sees half of
 * one. A lock on the file shows other communicators of the rank that the name is in use. */
static banyan_status metrics_open(const char *pattern, int32_t rank, int64_t every_ns, bny_metrics **metrics) {
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

static void metrics_write(bny_metrics *metrics, const bny_flight *flight) {
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
  metrics_write(metrics, flight);
}

static void metrics_close(bny_metrics *metrics, const bny_flight *flight) {
  if (!metrics) return;
  if (flight) metrics_write(metrics, flight);
  close(metrics->file);
  free(metrics);
}

/* ---- the flight recorder ----------------------------------------------------------------------------------------- */

enum { LINE_BYTES = 192, LOGGED_ENTRIES = 16 };

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

/* ---- flight recorder and trace ----------------------------------------------------------------------------------- */

banyan_status bny_record_open(const bny_record_config *config, int32_t rank, int32_t nranks, bny_record *record) {
  bny_record made = {.levels = config->levels, .rank = rank, .tag = BANYAN_TAG_NONE};
  /* A trace takes its times from the recorder, and metrics their counts. */
  bool wanted = !config->no_flight || config->trace_file || config->metrics_file;
  if (wanted) made.flight = bny_flight_make(rank, nranks);
  if (config->flight_file) made.flight_file = strdup(config->flight_file);
  if ((wanted && !made.flight) || (config->flight_file && !made.flight_file)) {
    bny_record_close(&made);
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for the flight recorder", rank);
  }
  if (made.flight) made.flight->threshold_ns = config->metrics_wait_ns;
  if (config->metrics_file &&
      metrics_open(config->metrics_file, rank, config->metrics_every_ns, &made.metrics) != BANYAN_OK)
    bny_log(BNY_LOG_WARN, "%s: there will be none", banyan_last_error());
  if (config->trace_file &&
      bny_trace_open(config->trace_file, rank, nranks, config->trace_events, &made.trace) != BANYAN_OK)
    bny_log(BNY_LOG_WARN, "%s: there will be none", banyan_last_error());
  *record = made;
  return BANYAN_OK;
}

void bny_record_close(bny_record *record) {
  bny_trace_close(record->trace);
  metrics_close(record->metrics, record->flight);
  bny_flight_free(record->flight);
  free(record->flight_file);
  *record = (bny_record){0};
}

/* ---- descriptions of plans for people ---------------------------------------------------------------------------- */

/* Counts each part of its input once. */
static uint64_t input_bytes(const bny_plan *plan) {
  uint64_t bytes = 0;
  for (int32_t i = 0; i < plan->nsteps; i++)
    if (plan->steps[i].kind == BNY_STEP_COPY) bytes += plan->slots[plan->steps[i].slot].bytes;
  return bytes;
}

/* Returns the outermost level that a step's messages cross; -1: it moves none. */
static int32_t level_of(const bny_levels *levels, const bny_plan *plan, const bny_step *step) {
  int32_t level = -1;
  if (step->kind == BNY_STEP_WAIT) return bny_levels_between(levels, plan->rank, plan->messages[step->message].peer);
  for (int32_t i = 0; step->kind == BNY_STEP_SEND && i < step->count; i++) {
    int32_t other = bny_levels_between(levels, plan->rank, plan->peers[step->first + i]);
    if (other > level) level = other;
  }
  return level;
}

/* Steps that move nothing belong to the wait before them. Before the first wait they belong to the next send. */
static void spread_levels(const bny_plan *plan, const bny_levels *levels, int8_t *of_step) {
  int32_t last = -1;
  for (int32_t i = 0; i < plan->nsteps; i++) {
    int32_t level = level_of(levels, plan, &plan->steps[i]);
    if (level >= 0) last = level;
    of_step[i] = (int8_t)last;
  }
  for (int32_t i = plan->nsteps - 1, next = -1; i >= 0; i--) {
    if (of_step[i] < 0) of_step[i] = (int8_t)next;
    next = of_step[i];
  }
}

void bny_record_relabel(bny_run_record *run, const bny_notice *notice) {
  run->note.kind = bny_notice_kind(notice);
  run->name = bny_notice_name(notice);
}

banyan_status bny_record_bind(const bny_record *record, const bny_plan *plan, const bny_notice *notice,
                              bny_run_record *run) {
  bny_run_record made = {.note.bytes = input_bytes(plan), .algorithm = plan->algorithm, .phase = -1};
  strncpy(made.note.algorithm, plan->algorithm, sizeof made.note.algorithm - 1);
  bny_record_relabel(&made, notice);
  if (record->trace && record->levels && record->levels->nranks == plan->nranks) {
    made.levels = malloc((size_t)plan->nsteps + 1);
    if (!made.levels) return bny_fail(BANYAN_ERR_MEMORY, "out of memory to trace a plan");
    spread_levels(plan, record->levels, made.levels);
  }
  *run = made;
  return BANYAN_OK;
}

void bny_record_release(bny_run_record *run) { free(run->levels); }

void bny_record_fail(bny_record *record, uint64_t operation, banyan_status status, int32_t culprit,
                     const char *reason) {
  BNY_PROBE_6(failure, record->rank, operation, (int)status, culprit, reason, record->tag);
  bny_flight *flight = record->flight;
  if (!flight) return;
  snprintf(flight->failure, sizeof flight->failure, "%s", reason);
  flight->culprit = culprit;
  flight->status = (int32_t)status;
  if (flight->waiting) bny_flight_wait_end(flight);
  bny_flight_dump(flight, operation, record->rank, reason, record->flight_file);
  if (record->metrics) metrics_write(record->metrics, flight);
}

/* ---- hooks of traces --------------------------------------------------------------------------------------------- */

void bny_record_phase(bny_record *record, bny_run_record *run, uint64_t operation, int32_t level, uint64_t now) {
  if (run->phase >= 0)
    bny_trace_add(record->trace, &(bny_trace_event){.begin = run->phase_begin,
                                                    .end = now,
                                                    .operation = operation,
                                                    .name = record->levels->levels[run->phase].name,
                                                    .number = run->phase,
                                                    .kind = BNY_TRACE_PHASE});
  run->phase = level;
  run->phase_begin = now;
}

void bny_record_trace(bny_record *record, bny_run_record *run, uint64_t operation, uint64_t begin, uint64_t end) {
  bny_trace_take_spans(record->trace);
  if (run->levels) bny_record_phase(record, run, operation, -1, end);
  bny_trace_add(record->trace, &(bny_trace_event){.begin = begin,
                                                  .end = end,
                                                  .operation = operation,
                                                  .bytes = run->note.bytes,
                                                  .tag = record->tag,
                                                  .name = run->name,
                                                  .detail = run->algorithm,
                                                  .kind = BNY_TRACE_OPERATION});
  bny_trace_settle(record->trace);
}
