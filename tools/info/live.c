/* SPDX-License-Identifier: Apache-2.0
 * banyan-info --live: what the ranks of a running process do now, and for which rank they wait. It reads the memory of
 * their flight recorders through /proc, without the help of that process, which may be stopped. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/printable.h"
#include "base/clock.h"
#include "base/flight.h"
#include "tools/info/section.h"

enum { PATH_BYTES = 64, TRIES = 100 };

/* Reads until two readings agree on run and wait, because the process writes meanwhile. */
static bool read_twice(int file, bny_flight *flight, size_t bytes) {
  for (int i = 0; i < TRIES; i++) {
    bny_flight again;
    if (pread(file, flight, bytes, 0) != (ssize_t)bytes ||
        pread(file, &again, sizeof again, 0) != (ssize_t)sizeof again)
      return false;
    if (memcmp(&again.run, &flight->run, offsetof(bny_flight, entries) - offsetof(bny_flight, run)) == 0) break;
  }
  return memcmp(flight->magic, BNY_FLIGHT_FILE, sizeof BNY_FLIGHT_FILE) == 0;
}

/* The process may be of another user, and its memory hold anything. */
static void make_printable(bny_flight *flight) {
  flight->failure[sizeof flight->failure - 1] = '\0';
  bny_printable(flight->failure, "");
  for (int i = 0; i < BNY_FLIGHT_ENTRIES; i++) {
    char *algorithm = flight->entries[i].note.algorithm;
    algorithm[sizeof flight->entries[i].note.algorithm - 1] = '\0';
    bny_printable(algorithm, "");
  }
}

/* Returns a copy of a flight recorder, or NULL: it is being made, the process has closed it, or *error says why. */
static bny_flight *read_recorder(const char *path, tool_error *error) {
  struct stat found;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* the descriptor may be another by now */
  if (file < 0 && errno == ENOENT) return NULL;
  if (file < 0) {
    tool_error_set(error, "%s: %s; it is for root and the user of that process", path, strerror(errno));
    return NULL;
  }
  size_t bytes = fstat(file, &found) == 0 ? (size_t)found.st_size : 0;
  bny_flight *flight = bytes >= sizeof *flight ? aligned_alloc(_Alignof(bny_flight), bytes) : NULL;
  bool good = flight && read_twice(file, flight, bytes);
  close(file);
  if (good && strncmp(flight->version, banyan_version(), sizeof flight->version) != 0)
    good = tool_error_set(error, "%s: the process runs banyan %.15s, and this is %s", path, flight->version,
                          banyan_version());
  if (good && (flight->bytes != bytes || flight->nranks < 1 ||
               bytes < sizeof *flight + (size_t)flight->nranks * sizeof flight->waits[0]))
    good = tool_error_set(error, "%s: no flight recorder of this build", path);
  if (good) make_printable(flight);
  if (good) return flight;
  free(flight);
  return NULL;
}

/* As in bny_rank_line: a wait for something other than a message has one of these numbers. */
static const char *awaited(int32_t slot) {
  return slot >= 0    ? "its message"
         : slot == -1 ? "it to read memory"
         : slot == -2 ? "it to take messages"
                      : "a connection";
}

static json_t *operation(const bny_flight *flight, const bny_flight_entry *entry, int64_t now_ns) {
  bny_clock_scale scale = bny_clock_scale_make(flight->tick0, flight->ns0, bny_clock_ticks(), now_ns);
  json_t *o = json_pack("{s:I, s:s, s:s, s:I, s:f}", "operation", (json_int_t)entry->operation, "collective",
                        bny_flight_name(entry->note.kind), "algorithm", entry->note.algorithm, "bytes",
                        (json_int_t)entry->note.bytes, "begun_s_ago",
                        (double)(now_ns - bny_clock_scale_ns(&scale, entry->begin)) * 1e-9);
  if (entry->tag >= 0) json_object_set_new(o, "tag", json_integer((json_int_t)entry->tag));
  return o;
}

static json_t *communicator(const bny_flight *flight) {
  int64_t now_ns = bny_clock_ns();
  uint64_t waiting = flight->waiting;
  const bny_flight_entry *entry = &flight->entries[flight->run % BNY_FLIGHT_ENTRIES];
  bool runs = flight->run && entry->operation == flight->run && !entry->end;
  json_t *o = json_pack("{s:i, s:i, s:I, s:o}", "rank", (int)flight->rank, "ranks", (int)flight->nranks, "operations",
                        (json_int_t)flight->run, runs ? "in_flight" : "last",
                        flight->run ? operation(flight, entry, now_ns) : json_null());
  if (runs && waiting)
    json_object_set_new(o, "waits_for",
                        json_pack("{s:i, s:s, s:f}", "rank", (int)(waiting >> 32) - 1, "what",
                                  awaited((int32_t)(uint32_t)waiting), "since_s",
                                  (double)(now_ns - flight->waiting_ns) * 1e-9));
  if (flight->status)
    json_object_set_new(o, "failed",
                        json_pack("{s:s, s:i, s:s}", "status", banyan_status_string((banyan_status)flight->status),
                                  "rank", (int)flight->culprit, "text", flight->failure));
  json_t *waits = json_array();
  for (int32_t r = 0; r < flight->nranks; r++)
    if (flight->waits[r].count)
      json_array_append_new(waits,
                            json_pack("{s:i, s:I, s:f}", "rank", (int)r, "count", (json_int_t)flight->waits[r].count,
                                      "seconds", (double)flight->waits[r].ns * 1e-9));
  json_object_set_new(o, "long_waits", waits);
  return o;
}

/* Returns the kernel's state of the process: "stopped", "sleeping" and so on. */
static json_t *state_of(int32_t pid) {
  char path[PATH_BYTES], line[256], word[32] = "unknown";
  snprintf(path, sizeof path, "/proc/%d/status", pid);
  FILE *file = fopen(path, "re");
  while (file != NULL && fgets(line, sizeof line, file) != NULL && sscanf(line, "State: %*c (%31[^)])", word) != 1) {
  }
  if (file != NULL) fclose(file);
  return json_string(word);
}

/* Appends the communicator of one descriptor, if it is that of a flight recorder. */
static void look_at(DIR *folder, const char *path, json_t *list, tool_error *error) {
  char name[PATH_BYTES];
  ssize_t length = readlinkat(dirfd(folder), strrchr(path, '/') + 1, name, sizeof name - 1);
  name[length > 0 ? length : 0] = '\0';
  if (strncmp(name, "/memfd:" BNY_FLIGHT_FILE, sizeof "/memfd:" BNY_FLIGHT_FILE - 1) != 0) return;
  bny_flight *flight = read_recorder(path, error);
  if (flight != NULL) json_array_append_new(list, communicator(flight));
  free(flight);
}

static json_t *gather(const info_request *request, tool_error *error) {
  char path[PATH_BYTES];
  const struct dirent *entry;
  snprintf(path, sizeof path, "/proc/%d/fd", request->live);
  DIR *folder = opendir(path);
  if (folder == NULL) {
    tool_error_set(error, "process %d: %s", request->live, errno == ENOENT ? "there is none" : strerror(errno));
    return NULL;
  }
  json_t *list = json_array();
  while (error->text[0] == '\0' && (entry = readdir(folder)) != NULL) {
    snprintf(path, sizeof path, "/proc/%d/fd/%.20s", request->live, entry->d_name);
    look_at(folder, path, list, error);
  }
  closedir(folder);
  json_t *state = state_of(request->live);
  if (error->text[0] == '\0' && json_array_size(list) == 0)
    tool_error_set(error, "process %d %s", request->live,
                   strcmp(json_string_value(state), "zombie") == 0
                       ? "has ended, and its parent has not waited for it yet"
                       : "has no flight recorder: it has no communicator, or BANYAN_FLIGHT=off");
  if (error->text[0] != '\0') {
    json_decref(list);
    json_decref(state);
    return NULL;
  }
  return json_pack("{s:i, s:o, s:o}", "process", (int)request->live, "state", state, "communicators", list);
}

static double real_of(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }
static long long integer_of(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static void print_operation(const json_t *o, FILE *stream) {
  fprintf(stream, "operation %lld: ", integer_of(o, "operation"));
  if (json_object_get(o, "tag") != NULL) fprintf(stream, "tag %lld, ", integer_of(o, "tag"));
  fprintf(stream, "%s, %lld bytes by %s, begun %.6f s ago", info_text(o, "collective"), integer_of(o, "bytes"),
          info_text(o, "algorithm"), real_of(o, "begun_s_ago"));
}

static void print(const json_t *facts, FILE *stream) {
  size_t i, k;
  json_t *one, *wait;
  fprintf(stream, "  process %lld, %s\n", integer_of(facts, "process"), info_text(facts, "state"));
  json_array_foreach(json_object_get(facts, "communicators"), i, one) {
    const json_t *runs = json_object_get(one, "in_flight"), *last = json_object_get(one, "last");
    const json_t *waits = json_object_get(one, "waits_for"), *failed = json_object_get(one, "failed");
    fprintf(stream, "  rank %lld of %lld: ", integer_of(one, "rank"), integer_of(one, "ranks"));
    if (runs != NULL || json_is_object(last))
      print_operation(runs != NULL ? runs : last, stream);
    else
      fputs("no operation yet", stream);
    fputs(runs != NULL ? ", not finished\n" : json_is_object(last) ? ", finished\n" : "\n", stream);
    if (waits != NULL)
      fprintf(stream, "    waits for rank %lld, for %s, %.6f s so far\n", integer_of(waits, "rank"),
              info_text(waits, "what"), real_of(waits, "since_s"));
    if (failed != NULL) fprintf(stream, "    failed: %s\n", info_text(failed, "text"));
    json_array_foreach(json_object_get(one, "long_waits"), k, wait) {
      fprintf(stream, "    has waited %lld times for rank %lld, %.6f s\n", integer_of(wait, "count"),
              integer_of(wait, "rank"), real_of(wait, "seconds"));
    }
  }
}

const info_section info_live = {"live", "Live", gather, print};
