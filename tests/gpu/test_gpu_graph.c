/* SPDX-License-Identifier: Apache-2.0
 * Tests combines captured in graphs on a GPU. They are replayed ten thousand times with changing input, from one stream
 * and from several streams with a communicator each. They are also ended by a deadline or an abort, after which the
 * device must still be usable. */
#include "tests/support/sheet.h"
#include "tests/support/world.h"
#include "tools/common/gpu.h"

enum { RANKS_MAX = 8, COMMS_MAX = 3, INPUTS = 2, TOKENS = 2, HEADS = 16, VALUE_DIM = 128, RUNS_IN_GRAPH = 4 };

/* Records a failure unless ok. Returns ok. */
static bool gpu_ok(world_rank *self, bool ok, const tool_error *error) {
  return ok || world_check(self, false, "%s", error->text);
}

/* Reports why a test (or part `index` of it) does not run here. */
static void skip(const char *test, int index, const char *why) {
  printf("SKIP %s %d %s\n", test, index, why);
  fflush(stdout);
}

/* Every rank has inputs of one convention with different numbers, and the result of a plain call for each. */
typedef struct task {
  int32_t nranks, comms, replays, replays_between_looks;
  const char *algorithm;
  sheet given[INPUTS][RANKS_MAX], in[RANKS_MAX], out[COMMS_MAX][RANKS_MAX], expected[INPUTS][RANKS_MAX];
  oracle_row *reference[INPUTS];
} task;

static void fill_task(task *made, uint64_t salt) {
  world_anew();
  world_random random = random_seed() * 1000 + salt;
  sheet model = sheet_output(&random, SHEET_PLAIN, TOKENS, HEADS, VALUE_DIM);
  for (int32_t r = 0; r < made->nranks; r++) {
    made->given[0][r] = sheet_input(&random, SHEET_PLAIN, r, made->nranks, TOKENS, HEADS, VALUE_DIM);
    made->in[r] = sheet_copy(&made->given[0][r]);
    made->given[1][r] = sheet_copy(&made->given[0][r]);
    sheet_fill(&made->given[1][r], &random, SHEET_SPARSE, r, made->nranks);
    for (int c = 0; c < COMMS_MAX; c++) made->out[c][r] = sheet_output_like(&model, TOKENS, HEADS);
    for (int i = 0; i < INPUTS; i++) made->expected[i][r] = sheet_output_like(&model, TOKENS, HEADS);
  }
  for (int i = 0; i < INPUTS; i++) made->reference[i] = sheet_merge(made->given[i], made->nranks);
}

static void check_expected(const task *task) {
  for (int i = 0; i < INPUTS; i++) {
    for (int32_t r = 0; r < task->nranks; r++) {
      char why[256];
      ck_assert_msg(sheet_matches(&task->expected[i][r], task->reference[i], HEADS, 0, 0, BANYAN_F32, task->nranks, why,
                                  sizeof why),
                    "input %d, rank %d: %s", i, r, why);
    }
  }
}

/* ---- one communicator of a rank, and its graph ------------------------------------------------------------------- */

typedef struct line {
  int number;
  banyan_comm *comm;
  void *stream;
  gpu_graph *graph;
} line;

static banyan_status comm_make(world_rank *self, int64_t timeout_ns, banyan_comm **comm) {
  banyan_comm_config config = world_config(self);
  config.arena_bytes = 4 << 20;
  if (timeout_ns) config.timeout_ns = timeout_ns;
  return banyan_comm_create(&self->bootstrap, &config, comm);
}

/* Sets the input of the next runs. */
static bool give(world_rank *self, const task *task, int input) {
  const sheet *given = &task->given[input][self->rank];
  memcpy(task->in[self->rank].memory, given->memory, given->bytes);
  return world_put(self);
}

static bool line_combine(world_rank *self, const task *task, const line *line) {
  banyan_partial in = world_partial(self, task->in[self->rank].partial),
                 out = world_partial(self, task->out[line->number][self->rank].partial);
  banyan_combine_desc desc = {.size = sizeof desc,
                              .tokens = TOKENS,
                              .heads = HEADS,
                              .value_dim = VALUE_DIM,
                              .algorithm = task->algorithm,
                              .stream = line->stream};
  return world_ok(self, banyan_combine(line->comm, &desc, &in, &out), "combine");
}

static bool line_wait(world_rank *self, const line *line) {
  tool_error error = {.text = ""};
  return gpu_ok(self, gpu_wait(world_gpu_of(self), line->stream, 120, &error), &error) &&
         world_ok(self, banyan_comm_status(line->comm), banyan_comm_error(line->comm));
}

static bool is_expected(world_rank *self, const task *task, const line *line, int input, const char *what) {
  const sheet *got = &task->out[line->number][self->rank], *expected = &task->expected[input][self->rank];
  return world_check(self, memcmp(got->memory, expected->memory, expected->bytes) == 0,
                     "%s, communicator %d: other bits than a plain call gave", what, line->number);
}

/* Makes plain calls. Results of the first communicator are the reference for all others. */
static bool line_expect(world_rank *self, task *task, const line *line, bool first) {
  for (int i = 0; i < INPUTS; i++) {
    const sheet *got = &task->out[line->number][self->rank];
    if (!give(self, task, i) || !line_combine(self, task, line) || !line_wait(self, line) || !world_finish(self))
      return false;
    if (first) memcpy(task->expected[i][self->rank].memory, got->memory, got->bytes);
    if (!is_expected(self, task, line, i, "a plain call")) return false;
  }
  return true;
}

static bool line_capture(world_rank *self, const task *task, line *line) {
  tool_error error = {.text = ""};
  bool ok = gpu_ok(self, gpu_capture_begin(world_gpu_of(self), line->stream, &error), &error);
  for (int i = 0; i < RUNS_IN_GRAPH && ok; i++) ok = line_combine(self, task, line);
  return ok && gpu_ok(self, gpu_capture_end(world_gpu_of(self), line->stream, &line->graph, &error), &error);
}

/* Makes the stream, the expected results and the graph of a line. Its communicator exists. */
static bool line_make(world_rank *self, task *task, line *line, bool first) {
  tool_error error = {.text = ""};
  return gpu_ok(self, gpu_stream_make(world_gpu_of(self), &line->stream, &error), &error) && world_meet(self) &&
         line_expect(self, task, line, first) && world_meet(self) && line_capture(self, task, line) && world_meet(self);
}

static void line_free(world_rank *self, line *line) {
  gpu_graph_free(line->graph);
  if (line->stream) gpu_stream_free(world_gpu_of(self), line->stream);
  banyan_comm_destroy(line->comm);
}

/* ---- replays ----------------------------------------------------------------------------------------------------- */

/* Replays the graphs. The input is the same between two checks. */
static bool replay(world_rank *self, task *task, line *lines) {
  tool_error error = {.text = ""};
  for (int32_t done = 0; done < task->replays; done += task->replays_between_looks) {
    int which = done / task->replays_between_looks % INPUTS;
    bool ok = give(self, task, which);
    for (int32_t i = 0; i < task->replays_between_looks && ok; i++)
      for (int c = 0; c < task->comms && ok; c++)
        ok = gpu_ok(self, gpu_graph_launch(lines[c].graph, lines[c].stream, &error), &error);
    for (int c = 0; c < task->comms && ok; c++) ok = line_wait(self, &lines[c]);
    ok = ok && world_finish(self);
    for (int c = 0; c < task->comms && ok; c++) ok = is_expected(self, task, &lines[c], which, "after replays");
    if (!ok) return false;
  }
  return true;
}

static void replay_all(world_rank *self) {
  task *task = self->argument;
  line lines[COMMS_MAX] = {{.number = 0}, {.number = 1}, {.number = 2}};
  bool ok = true;
  for (int c = 0; c < task->comms && ok; c++)
    ok = world_ok(self, comm_make(self, 0, &lines[c].comm), "create") && line_make(self, task, &lines[c], c == 0);
  ok = ok && world_meet(self) && replay(self, task, lines);
  world_meet(self);
  for (int c = 0; c < task->comms; c++) line_free(self, &lines[c]);
}

static void run_replays(task *task, bool one_device) {
  fill_task(task, (uint64_t)task->nranks);
  WORLD_RUN(replay_all, .on = &world_gpu, .nranks = task->nranks, .comms = task->comms, .one_device = one_device,
            .bare = true, .argument = task);
  check_expected(task);
}

TEST_IN("replays", one_stream, 16) {
  static const char *const algorithms[] = {"oneshot", "twoshot", "ring", NULL};
  task task = {.nranks = 2 + 2 * (_i % 4),
               .comms = 1,
               .algorithm = algorithms[_i / 4],
               .replays = 10000,
               .replays_between_looks = 100};
  if (world_is_quick()) task.replays = INPUTS, task.replays_between_looks = 1, task.nranks = 2;
  if (world_is_quick() && _i % 8) {
    skip("one_stream", _i, "--quick");
    return;
  }
  run_replays(&task, true);
}

TEST_IN("replays", several_streams, 4) {
  /* Each communicator of a rank has two streams, one of them internal. A device has 32 connections for streams. */
  task task = {.nranks = 2 + 2 * _i, .comms = _i < 2 ? COMMS_MAX : 2, .replays = 3000, .replays_between_looks = 50};
  if (world_is_quick()) task.replays = INPUTS, task.replays_between_looks = 1;
  if (world_is_quick() && _i) {
    skip("several_streams", _i, "--quick");
    return;
  }
  run_replays(&task, true);
}

TEST_IN("replays", several_devices, 1) {
  task task = {.nranks = world_gpus() < RANKS_MAX ? world_gpus() : RANKS_MAX,
               .comms = 2,
               .replays = 10000,
               .replays_between_looks = 100};
  if (world_gpus() < 2) {
    skip("several_devices", _i, "one device");
    return;
  }
  if (world_is_quick()) task.replays = INPUTS, task.replays_between_looks = 1;
  run_replays(&task, false);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

enum { BY_DEADLINE, BY_ABORT, BY_PEERS_ABORT, ENDS };

typedef struct ending {
  task task;
  int how;
  int64_t timeout_ns;
} ending;

/* Checks that the device does other work, and that a new communicator combines correctly. */
static bool is_usable(world_rank *self, task *task) {
  line line = {.number = 1};
  bool ok = world_ok(self, comm_make(self, 0, &line.comm), "create anew") && line_make(self, task, &line, false);
  ok = world_meet(self) && ok;
  line_free(self, &line);
  return ok;
}

/* Checks what the failed communicator reports of a run for which rank 1 never came. */
static bool has_ended_well(world_rank *self, const ending *ending, const line *line, double took_s) {
  banyan_status status = banyan_comm_status(line->comm);
  banyan_status wanted = ending->how == BY_DEADLINE ? BANYAN_ERR_TIMEOUT : BANYAN_ERR_ABORTED;
  if (!world_check(self, status == wanted, "the run ended with %s: %s", banyan_status_string(status),
                   banyan_comm_error(line->comm)))
    return false;
  if (ending->how == BY_DEADLINE)
    return world_check(self, banyan_comm_failed_rank(line->comm) == 1, "rank %d is blamed: %s",
                       banyan_comm_failed_rank(line->comm), banyan_comm_error(line->comm));
  return world_check(self, took_s < 20, "an abort took %.1f s", took_s);
}

/* All ranks but rank 1 replay. Rank 1 does nothing, or aborts the run that they wait for. */
static bool end_replay(world_rank *self, const ending *ending, line *line) {
  tool_error error = {.text = ""};
  double began = world_now_s();
  if (self->rank != 1) {
    bool ok = gpu_ok(self, gpu_graph_launch(line->graph, line->stream, &error), &error);
    if (ending->how == BY_ABORT && self->rank == 0) {
      world_sleep_ms(50);
      banyan_comm_abort(line->comm, "a test");
    }
    ok = ok && gpu_ok(self, gpu_wait(world_gpu_of(self), line->stream, 60, &error), &error);
    return ok && has_ended_well(self, ending, line, world_now_s() - began);
  }
  if (ending->how == BY_PEERS_ABORT) {
    world_sleep_ms(50);
    banyan_comm_abort(line->comm, "a test");
  }
  return true;
}

static void end_and_go_on(world_rank *self) {
  ending *ending = self->argument;
  line line = {.number = 0};
  bool ok = world_ok(self, comm_make(self, ending->timeout_ns, &line.comm), "create") &&
            line_make(self, &ending->task, &line, true);
  ok = world_meet(self) && ok && end_replay(self, ending, &line);
  ok = world_meet(self) && ok && is_usable(self, &ending->task);
  world_meet(self);
  line_free(self, &line);
}

TEST_IN("ends", ends, 3 * ENDS) {
  static const int32_t ranks[] = {2, 4, 8};
  const int how = _i % ENDS;
  ending ending = {.task = {.nranks = ranks[_i / ENDS], .comms = 1},
                   .how = how,
                   .timeout_ns = (int64_t)(how == BY_DEADLINE ? 2 : 30) * 1000000000};
  if (world_is_quick() && (_i / ENDS == 2 || (_i / ENDS == 1 && how != BY_DEADLINE))) {
    skip("ends", _i, "--quick");
    return;
  }
  fill_task(&ending.task, 77);
  WORLD_RUN(end_and_go_on, .on = &world_gpu, .nranks = ending.task.nranks, .comms = 2, .one_device = true, .bare = true,
            .argument = &ending);
  check_expected(&ending.task);
}

int main(void) { return world_is_here(&world_gpu) ? world_main(suite_of("gpu_graph", 150)) : 77; }
