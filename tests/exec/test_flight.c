/* SPDX-License-Identifier: Apache-2.0
 * The flight recorder: an error reports the operation and step of this rank and the peer that it waits for, and lists
 * earlier operations. */
#include <inttypes.h>
#include <sched.h>
#include <signal.h>

#include "exec/record.h"
#include "tests/support/rows.h"
#include "tests/support/world.h"
#include "tests/support/directory.h"

enum { HEADS = 8, VALUE_DIM = 32, TEXT_BYTES = 1 << 16, TAG = 7 };

static const char *read_file(const char *name, int32_t rank) {
  char path[32];
  snprintf(path, sizeof path, "%s.%d", name, rank);
  return directory_read(path);
}

/* ---- ranks that fail --------------------------------------------------------------------------------------------- */

typedef struct scenario {
  int operations;
  int32_t dies; /* -1: skips the last call instead, so the deadline passes */
  char text[WORLD_RANKS_MAX][512];
} scenario;

static void fall_silent(world_rank *self) {
  scenario *scenario = self->argument;
  rows *rows = rows_take(1, HEADS, VALUE_DIM);
  banyan_op *op = NULL;
  rows->desc.algorithm = "recursive";
  if (!world_ok(self, rows_init(rows, self->comm, &op), "init")) return;
  for (int i = 0; i < scenario->operations; i++)
    if (!world_runs(self, op)) return;
  if (!world_meet(self)) return;
  banyan_comm_set_tag(self->comm, TAG);
  if (self->rank == self->nranks - 1) {
    if (scenario->dies) raise(SIGKILL);
    world_await(self->world, 1, 10);
  } else {
    banyan_status status = start_and_wait(op);
    world_check(self, status == (scenario->dies ? BANYAN_ERR_PEER : BANYAN_ERR_TIMEOUT), "got %s", banyan_last_error());
    snprintf(scenario->text[self->rank], sizeof scenario->text[0], "%s", banyan_comm_error(self->comm));
    if (self->rank == 0) world_signal(self->world, 1);
  }
  banyan_op_free(op);
}

/* Runs it on three processes, of which the last falls silent, and returns what the others say. */
static const scenario *play(int operations, int32_t dies) {
  scenario *made = world_take(sizeof *made);
  *made = (scenario){.operations = operations, .dies = dies};
  WORLD_RUN(fall_silent, .nranks = 3, .processes = true, .deaths = dies, .argument = made,
            .timeout_ns = dies ? 0 : 300000000);
  return made;
}

/* Both ranks wait for rank 2, whose node of the tree they need. */
static void check_text(const scenario *scenario) {
  char wanted[160];
  for (int32_t r = 0; r < 2; r++) {
    const char *text = scenario->text[r], *here = strstr(text, "; this rank is in operation ");
    ck_assert_msg(strstr(text, "rank 2 ") == text, "%s", text);
    ck_assert_msg(here != NULL, "%s", text);
    snprintf(wanted, sizeof wanted, ": tag %d, combine, %d bytes by ", TAG, HEADS * (VALUE_DIM + 2) * 4);
    ck_assert_msg(strstr(here, wanted) != NULL, "%s", text);
    const char *peer = strstr(here, ", waiting for ");
    /* On a busy machine, rank 2 may die while this rank waits for the other one or does not wait yet. The other rank
     * then reports the death. */
    bool early = scenario->dies && peer && peer[strlen(", waiting for rank ")] == (char)('1' - r);
    ck_assert_msg(peer ? early || strcmp(peer, ", waiting for rank 2") == 0 : strstr(text, "(noticed by rank ") != NULL,
                  "%s", text);
    int step = 0, steps = 0;
    const char *comma = strstr(here, ", step ");
    ck_assert_msg(comma && sscanf(comma, ", step %d of %d,", &step, &steps) == 2, "%s", text);
    ck_assert_msg(step >= 1 && step <= steps, "%s", text);
  }
}

/* The first line names the rank. Then follow at most 256 consecutive operations, all but the last with their
 * duration. */
static void check_dump(const char *text, const char *reason, int at_most, bool all) {
  const char *line = strchr(text, '\n');
  char first[640];
  snprintf(first, sizeof first, "banyan: rank ");
  ck_assert_msg(strncmp(text, first, strlen(first)) == 0 && strstr(text, reason) && strstr(text, reason) < line, "%s",
                text);
  uint64_t last = 0, number;
  int count = 0;
  for (; line[1]; line = strchr(line + 1, '\n'), last = number, count++) {
    ck_assert_msg(sscanf(line + 1, "operation %" SCNu64 ": ", &number) == 1, "%s", line);
    ck_assert_msg(last == 0 || number == last + 1, "%s", line);
    const char *end = strchr(line + 1, '\n');
    bool finished = memmem(line, (size_t)(end - line), " took ", 6) != NULL;
    bool unfinished = memmem(line, (size_t)(end - line), ", not finished", 14) != NULL;
    ck_assert_msg(end[1] ? finished && !unfinished : unfinished && !finished, "%s", line);
  }
  ck_assert_msg(count <= at_most && (!all || count == at_most), "%d operations: %s", count, text);
}

TEST_LOOP(errors_say_where_and_what_came_before, 4) {
  directory_set("BANYAN_FLIGHT", "flight");
  const scenario *scenario = play(_i & 1 ? 1000 : 10, _i >> 1);
  check_text(scenario);
  for (int32_t r = 0; r < 2; r++)
    check_dump(read_file("flight", r), scenario->text[r], scenario->operations > 256 ? 256 : 20,
               scenario->operations > 256);
}

TEST(it_can_be_switched_off) {
  setenv("BANYAN_FLIGHT", "off", 1);
  check_text(play(3, 1));
  ck_assert_int_ne(access("off.0", F_OK), 0);
}

TEST(the_log_has_the_latest) {
  directory_set("BANYAN_LOG_FILE", "log.%r");
  setenv("BANYAN_LOG", "info", 1);
  play(100, 1);
  const char *text = read_file("log", 1);
  int count = 0;
  for (const char *at = text; (at = strstr(at, "banyan info exec, rank 1: operation ")) != NULL; at++) count++;
  ck_assert_msg(count == 16, "%d operations: %s", count, text);
  ck_assert_msg(strstr(text, "banyan info exec, rank 1: failed: rank 2 died") != NULL, "%s", text);
}

/* ---- counters ---------------------------------------------------------------------------------------------------- */

TEST(metrics_of_a_run_that_fails) {
  enum { OPERATIONS = 25 };
  char wanted[160];
  directory_set("BANYAN_METRICS", "metrics.%r.prom");
  setenv("BANYAN_METRICS_WAIT_US", "0", 1);
  setenv("BANYAN_FLIGHT", "off", 1);
  play(OPERATIONS, 0);
  for (int32_t r = 0; r < 2; r++) {
    char path[32];
    snprintf(path, sizeof path, "metrics.%d.prom", r);
    const char *text = directory_read(path);
    snprintf(wanted, sizeof wanted, "banyan_operations_total{rank=\"%d\",ranks=\"3\",collective=\"combine\"} %d\n", r,
             OPERATIONS);
    ck_assert_msg(strstr(text, wanted) != NULL, "%s", text);
    snprintf(wanted, sizeof wanted, "banyan_input_bytes_total{rank=\"%d\",ranks=\"3\",collective=\"combine\"} %d\n", r,
             OPERATIONS * HEADS * (VALUE_DIM + 2) * 4);
    ck_assert_msg(strstr(text, wanted) != NULL, "%s", text);
    snprintf(wanted, sizeof wanted, "banyan_failed{rank=\"%d\",ranks=\"3\"} 1\n", r);
    ck_assert_msg(strstr(text, wanted) != NULL, "%s", text);
    double waited_s = 0;
    for (const char *at = text; (at = strstr(at, "\nbanyan_wait_seconds_total{")) != NULL; at++)
      waited_s += strtod(strchr(at, ' '), NULL);
    ck_assert_msg(waited_s >= 0.25, "%g s of the 0.3 s until the deadline: %s", waited_s, text);
    strcat(path, ".new");
    ck_assert_int_ne(access(path, F_OK), 0);
  }
}

/* Rank 1 makes its call after rank 0, which waits for it, has written its waiting time. */
static void wait_until_written(world_rank *self) {
  const char *name = "banyan_wait_seconds_total{rank=\"0\",ranks=\"2\",peer=\"1\"} ";
  double waited_s = 0;
  while (self->rank == 1 && waited_s < 0.05 && banyan_comm_status(self->comm) == BANYAN_OK) {
    const char *at = strstr(directory_read("metrics.0"), name);
    waited_s = at ? strtod(at + strlen(name), NULL) : 0;
    sched_yield();
  }
  world_ok(self, banyan_barrier(self->comm), "barrier");
}

TEST(metrics_while_a_rank_waits) {
  directory_set("BANYAN_METRICS", "metrics");
  setenv("BANYAN_METRICS_EVERY_MS", "1", 1);
  WORLD_RUN(wait_until_written, .nranks = 2, .processes = true);
}

/* ---- the recorder alone ------------------------------------------------------------------------------------------ */

TEST(it_goes_round) {
  bny_flight *flight = bny_flight_make(0, 1);
  bny_record record = {.flight = flight};
  bny_run_record run = {.note = {.kind = BNY_COMBINE, .algorithm = "tree", .bytes = 4096}};
  ck_assert_ptr_nonnull(flight);
  static char said[TEXT_BYTES];
  ck_assert_uint_eq(bny_flight_print(flight, 0, BNY_FLIGHT_ENTRIES, said, sizeof said), 0);
  for (uint64_t i = 1; i <= 1000; i++) {
    record.tag = i == 1000 ? 3 : BANYAN_TAG_NONE;
    bny_record_begin(&record, &run, i);
    if (i < 1000) bny_record_end(&record, &run, i);
    if (i % 2) flight->entries[i % BNY_FLIGHT_ENTRIES].end = bny_clock_ticks();
  }
  size_t length = bny_flight_print(flight, 1000, BNY_FLIGHT_ENTRIES, said, sizeof said);
  ck_assert_uint_eq(length, strlen(said));
  ck_assert(strncmp(said, "operation 745: combine, 4096 bytes by tree, begun ", 50) == 0);
  ck_assert_ptr_nonnull(strstr(said, "\noperation 1000: tag 3, combine, "));
  ck_assert_ptr_nonnull(strstr(said, ", not finished\n"));
  bny_flight_print(flight, 1000, 3, said, sizeof said);
  ck_assert(strncmp(said, "operation 998: ", 15) == 0);
  const char *timed = strstr(said, "\noperation 999: ");
  /* Only operation 998 has no known end. */
  ck_assert(timed && strstr(said, "took at most ") && strstr(said, "took at most ") < timed);
  ck_assert(strstr(timed, "took ") && !strstr(timed, "took at most "));
  char small[40];
  ck_assert_uint_gt(bny_flight_print(flight, 1000, 3, small, sizeof small), sizeof small);
  ck_assert_uint_eq(strlen(small), sizeof small - 1);
  bny_flight_free(flight);
}

int main(void) { return world_main(suite_with("flight", 60, directory_make, directory_remove)); }
