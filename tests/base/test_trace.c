/* SPDX-License-Identifier: Apache-2.0
 * Traces parse, events nest, every rank has its own file, and the library's actions appear by name. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#ifdef HAVE_JANSSON
#include <jansson.h>

#include "base/trace.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/rows.h"
#include "tests/support/world.h"
#include "tests/support/suite.h"
#include "tests/support/directory.h"

enum { RANKS = 4, ROUNDS = 20, HEADS = 8, KV_HEADS = 2, HEAD_DIM = 32, KEYS = 16, EVENTS_MAX = 1 << 14 };

static void set_up(void) {
  directory_make();
  directory_set("BANYAN_TRACE", "trace");
}

/* ---- reading a trace --------------------------------------------------------------------------------------------- */

typedef struct event {
  const char *name, *category;
  double begin, end; /* us */
  const json_t *arguments;
} event;

typedef struct trace {
  json_t *file;
  event events[EVENTS_MAX]; /* by time, enclosing events first */
  int count;
} trace;

static int earlier_or_longer(const void *a, const void *b) {
  const event *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return x->end > y->end ? -1 : x->end < y->end;
}

static trace *load(const char *name, int32_t rank) {
  char path[128];
  json_error_t error;
  trace *made = calloc(1, sizeof *made);
  ck_assert_ptr_nonnull(made);
  snprintf(path, sizeof path, "%s/%s", directory, name);
  made->file = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
  ck_assert_msg(made->file && json_is_array(made->file), "%s:%d: %s", path, error.line, error.text);
  size_t i;
  const json_t *one;
  json_array_foreach(made->file, i, one) {
    const char *name_of_one, *category = "", *kind;
    double ts = 0, duration = 0;
    int process, thread;
    json_t *arguments;
    ck_assert_int_eq(json_unpack((json_t *)(uintptr_t)one, "{s:s, s?s, s:s, s:i, s:i, s?F, s?F, s:o}", "name",
                                 &name_of_one, "cat", &category, "ph", &kind, "pid", &process, "tid", &thread, "ts",
                                 &ts, "dur", &duration, "args", &arguments),
                     0);
    ck_assert_int_eq(process, rank);
    if (strcmp(kind, "M") == 0) continue;
    ck_assert_str_eq(kind, "X");
    ck_assert_msg(ts > 0 && ts < 2 * 86400e6 && duration >= 0 && duration < 60e6, "%s: %f %f", name_of_one, ts,
                  duration);
    ck_assert_int_lt(made->count, EVENTS_MAX);
    made->events[made->count++] = (event){name_of_one, category, ts, ts + duration, arguments};
  }
  qsort(made->events, (size_t)made->count, sizeof *made->events, earlier_or_longer);
  return made;
}

static void unload(trace *trace) {
  json_decref(trace->file);
  free(trace);
}

/* Microseconds are printed down to the nanosecond. Rounding errors of sums of doubles are smaller. */
static void check_nesting(const trace *trace) {
  const event *stack[16];
  int depth = 0;
  for (int i = 0; i < trace->count; i++) {
    const event *one = &trace->events[i];
    while (depth > 0 && stack[depth - 1]->end <= one->begin + 0.0005) depth--;
    ck_assert_int_lt(depth, 16);
    ck_assert_msg(depth == 0 || one->end <= stack[depth - 1]->end + 0.0005,
                  "%s %.3f..%.3f reaches out of %s %.3f..%.3f", one->name, one->begin, one->end, stack[depth - 1]->name,
                  stack[depth - 1]->begin, stack[depth - 1]->end);
    stack[depth++] = one;
  }
}

static int64_t argument(const event *one, const char *key) {
  const json_t *value = json_object_get(one->arguments, key);
  ck_assert_msg(json_is_integer(value), "%s has no %s", one->name, key);
  return json_integer_value(value);
}

static int count_named(const trace *trace, const char *category, const char *name) {
  int count = 0;
  for (int i = 0; i < trace->count; i++)
    count += strcmp(trace->events[i].category, category) == 0 && (!name || strcmp(trace->events[i].name, name) == 0);
  return count;
}

/* Operations are numbered without a gap, and none of them overlaps the next. */
static void check_operations(const trace *trace) {
  int64_t last = 0;
  double end = 0;
  for (int i = 0; i < trace->count; i++) {
    const event *one = &trace->events[i];
    if (strcmp(one->category, "operation") != 0) continue;
    ck_assert_int_eq(argument(one, "operation"), ++last);
    ck_assert(one->begin + 0.0005 >= end);
    ck_assert(json_is_string(json_object_get(one->arguments, "algorithm")));
    end = one->end;
  }
}

static void check_waits(const trace *trace, int32_t rank, int32_t nranks) {
  for (int i = 0; i < trace->count; i++) {
    const event *one = &trace->events[i];
    if (strcmp(one->category, "wait") != 0) continue;
    int64_t peer = argument(one, "peer");
    char message[32], memory[48];
    snprintf(message, sizeof message, "wait for rank %d", (int)peer);
    snprintf(memory, sizeof memory, "wait for memory read by rank %d", (int)peer);
    ck_assert_msg(peer >= 0 && peer < nranks && peer != rank, "peer %d", (int)peer);
    ck_assert_msg(strcmp(one->name, message) == 0 || strcmp(one->name, memory) == 0, "%s", one->name);
    ck_assert_int_ge(argument(one, "bytes"), 0);
  }
}

/* ---- tests with ranks -------------------------------------------------------------------------------------------- */

static bool attend(world_rank *self, const banyan_partial *out) {
  static const float zeros[HEADS * HEAD_DIM + KV_HEADS * KEYS * HEAD_DIM];
  const int32_t lengths[1] = {KEYS};
  banyan_attention_desc desc = attention_desc_of(1, HEADS, KV_HEADS, KEYS, HEAD_DIM, HEAD_DIM, BANYAN_F32, BANYAN_F32,
                                                 zeros, zeros, zeros, lengths);
  return world_ok(self, banyan_attention(&desc, out), "attention");
}

static bool decode(world_rank *self, banyan_comm *comm, int rounds) {
  rows *rows = rows_take(1, HEADS, HEAD_DIM);
  rows->desc.algorithm = "recursive";
  for (int i = 0; i < rounds; i++) {
    banyan_comm_set_tag(comm, i);
    if (!attend(self, &rows->in) || !world_ok(self, rows_combine(rows, comm), "combine")) return false;
  }
  banyan_comm_set_tag(comm, BANYAN_TAG_NONE);
  return true;
}

static void decode_and_more(world_rank *self) {
  size_t counts[RANKS] = {8, 8, 8, 8};
  char all[8 * RANKS], mine[8] = "";
  if (!decode(self, self->comm, ROUNDS)) return;
  if (!world_ok(self, banyan_allgather(self->comm, mine, all, counts), "gather")) return;
  world_ok(self, banyan_barrier(self->comm), "barrier");
}

static void check_decoding(int32_t rank, int rounds) {
  char name[32];
  snprintf(name, sizeof name, "trace.%d", rank);
  trace *trace = load(name, rank);
  const json_t *head = json_object_get(json_array_get(trace->file, 0), "args");
  snprintf(name, sizeof name, "rank %d of %d (", rank, RANKS);
  ck_assert_msg(strncmp(json_string_value(json_object_get(head, "name")), name, strlen(name)) == 0, "%s",
                json_string_value(json_object_get(head, "name")));
  check_nesting(trace);
  check_operations(trace);
  check_waits(trace, rank, RANKS);
  ck_assert_int_eq(count_named(trace, "compute", "attention"), rounds);
  ck_assert_int_eq(count_named(trace, "operation", "combine"), rounds);
  ck_assert_int_ge(count_named(trace, "operation", "agree"), 1);
  ck_assert_int_ge(count_named(trace, "phase", "level 0"), rounds);
  ck_assert_int_ge(count_named(trace, "phase", "all"), rounds);
  ck_assert_int_eq(count_named(trace, "trace", "end of the trace"), 1);
  int64_t round = 0, operation = 0;
  for (int i = 0; i < trace->count; i++) {
    const event *one = &trace->events[i];
    if (strcmp(one->name, "combine") == 0) {
      ck_assert_int_ge(argument(one, "bytes"), HEADS * (HEAD_DIM + 2) * 4);
      ck_assert_int_eq(argument(one, "tag"), round++);
      operation = argument(one, "operation");
    }
    if (strcmp(one->category, "wait") == 0 && argument(one, "operation") == operation)
      ck_assert_int_eq(argument(one, "tag"), round - 1);
    if (strcmp(one->name, "allgather") == 0) ck_assert_ptr_null(json_object_get(one->arguments, "tag"));
    if (strcmp(one->name, "attention") == 0) {
      ck_assert_int_eq(argument(one, "rows"), HEADS);
      ck_assert_int_eq(argument(one, "bytes"), KV_HEADS * KEYS * HEAD_DIM * 4); /* the values are the keys */
    }
    if (strcmp(one->category, "trace") == 0) ck_assert_int_eq(argument(one, "events_left_out"), 0);
  }
  unload(trace);
}

TEST_LOOP(every_rank_has_its_events, 2) {
  setenv("BANYAN_LEVELS", "2", 1);
  WORLD_RUN(decode_and_more, .nranks = RANKS, .processes = _i == 1);
  for (int32_t r = 0; r < RANKS; r++) {
    char name[32];
    check_decoding(r, ROUNDS);
    snprintf(name, sizeof name, "trace.%d", r);
    trace *trace = load(name, r);
    ck_assert_int_eq(count_named(trace, "operation", "allgather"), 1);
    ck_assert_int_eq(count_named(trace, "operation", "barrier"), 1);
    unload(trace);
  }
}

static void decode_long(world_rank *self) { decode(self, self->comm, 50 * ROUNDS); }

/* The memory for events is much smaller than the trace. */
TEST(full_memory_is_written) {
  setenv("BANYAN_LEVELS", "2", 1);
  setenv("BANYAN_TRACE_EVENTS", "64", 1);
  WORLD_RUN(decode_long, .nranks = RANKS);
  for (int32_t r = 0; r < RANKS; r++) check_decoding(r, 50 * ROUNDS);
}

static void decode_twice(world_rank *self) {
  banyan_comm *second = NULL;
  if (!world_ok(self, banyan_comm_create(&self->bootstrap, NULL, &second), "create")) return;
  if (decode(self, second, ROUNDS)) decode(self, self->comm, ROUNDS);
  banyan_comm_destroy(second);
}

TEST(communicators_have_files_of_their_own) {
  setenv("BANYAN_LEVELS", "2", 1);
  WORLD_RUN(decode_twice, .nranks = RANKS, .processes = true);
  for (int32_t r = 0; r < RANKS; r++) {
    char name[32];
    check_decoding(r, ROUNDS);
    snprintf(name, sizeof name, "trace.%d.1", r);
    trace *trace = load(name, r);
    ck_assert_int_eq(count_named(trace, "operation", "combine"), ROUNDS);
    unload(trace);
  }
}

static void have_a_child(world_rank *self) {
  if (!decode(self, self->comm, ROUNDS)) return;
  pid_t child = fork();
  if (child == 0) {
    banyan_comm_destroy(self->comm);
    _exit(0);
  }
  waitpid(child, NULL, 0);
}

TEST(a_child_leaves_the_file_alone) {
  setenv("BANYAN_LEVELS", "2", 1);
  WORLD_RUN(have_a_child, .nranks = RANKS, .processes = true);
  for (int32_t r = 0; r < RANKS; r++) check_decoding(r, ROUNDS);
}

TEST(a_trace_that_cannot_be_written_is_left_out) {
  setenv("BANYAN_TRACE", "/no/such/directory/trace", 1);
  setenv("BANYAN_LOG", "error", 1);
  WORLD_RUN(decode_and_more, .nranks = RANKS);
}

/* Opening a FIFO would block until a reader opens it. */
TEST_LOOP(a_trace_is_a_regular_file, 2) {
  char path[96];
  snprintf(path, sizeof path, "%s/trace.0", directory);
  ck_assert_int_eq(mkfifo(path, 0600), 0);
  int reader = _i ? open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
  setenv("BANYAN_LOG", "error", 1);
  WORLD_RUN(decode_and_more, .nranks = 2);
  if (_i) close(reader);
}

/* Events beyond the memory between two writes are counted. */
TEST(what_does_not_fit_is_counted) {
  bny_trace *made;
  char pattern[96];
  snprintf(pattern, sizeof pattern, "%s/full.%%r", directory);
  ck_assert_int_eq(bny_trace_open(pattern, 3, 8, 64, &made), BANYAN_OK);
  for (int i = 0; i < 100; i++)
    bny_trace_add(made, &(bny_trace_event){.begin = bny_clock_ticks(),
                                           .end = bny_clock_ticks(),
                                           .operation = 7,
                                           .name = "wait for rank",
                                           .number = i,
                                           .kind = BNY_TRACE_WAIT});
  bny_trace_close(made);
  trace *trace = load("full.3", 3);
  ck_assert_int_eq(count_named(trace, "wait", NULL), 64);
  for (int i = 0; i < trace->count; i++)
    if (strcmp(trace->events[i].category, "trace") == 0)
      ck_assert_int_eq(argument(&trace->events[i], "events_left_out"), 36);
  unload(trace);
}

int main(void) { return world_main(suite_with("trace", 60, set_up, directory_remove)); }
#else
int main(void) {
  puts("skipped: built without jansson");
  return 77;
}
#endif
