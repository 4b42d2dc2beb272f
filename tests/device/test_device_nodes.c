/* SPDX-License-Identifier: Apache-2.0
 * Tests combines on devices of several nodes, staged in host memory between nodes: the payload between nodes, graphs,
 * and the choice of a path. */
#include "op/operation.h"
#include "tests/device/device_nodes.h"
#include "device/proxy.h"

/* ---- results ----------------------------------------------------------------------------------------------------- */

static void combine_only(world_rank *self) {
  const combine_task *of = self->argument;
  bool good = true;
  for (int32_t i = 0; i < of->nattempts && good; i++)
    for (int run = 0; run < COMBINE_RUNS && good; run++)
      good = world_ok(self, device_nodes_start(self, &of->attempts[i], run), "combine");
  if (good && device_nodes_finish(self)) world_ok(self, banyan_comm_status(self->comm), "status");
}

static void combine_all(world_rank *self) {
  combine_only(self);
  world_meet(self);
}

static void combine_and_leave(world_rank *self) {
  combine_only(self);
  device_nodes_leave(self);
}

static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3};
enum { WIRES = sizeof wires / sizeof wires[0] };

/* A device that only sends may end its run before the proxy has begun it. Its data is sent even if the rank then
 * leaves. */
TEST(whoever_has_sent_may_leave) {
  combine_task *of = combine_task_new(3, 38);
  combine_group group = combine_group_make(of, 1, 4, 16);
  combine_task_add(of, &group, (banyan_combine_desc){.scatter = BANYAN_SCATTER_ROOT, .wire = BANYAN_F32, .root = 2},
                   true);
  device_nodes_run(of, combine_and_leave, (world_setup){.on = NULL});
  combine_task_check(of);
  combine_task_free(of);
}

/* Combines on the device give the bits that the host computes from the same partials. */
TEST(bits_are_those_of_the_host) {
  combine_task *device = combine_task_new(4, 34), *host = combine_task_new(4, 34);
  combine_group groups[2][WIRES];
  for (int w = 0; w < WIRES; w++) {
    groups[0][w] = combine_group_make(device, 3, 7, 40);
    groups[1][w] = combine_group_make(host, 3, 7, 40);
    combine_task_add_some(device, &groups[0][w], wires[w], 15);
    combine_task_add_some(host, &groups[1][w], wires[w], 15);
  }
  device_nodes_run(device, combine_all, (world_setup){.on = NULL});
  device_nodes_run(host, combine_all, (world_setup){.on = &world_threads});
  combine_task_check_same(device, host);
  combine_task_free(device);
  combine_task_free(host);
}

/* ---- what crosses ------------------------------------------------------------------------------------------------ */

enum { ON_DEVICE, ON_HOST, PLACES_OF_RUNS };

/* The payload in bytes that each rank sent to other nodes, by attempt, and the prediction of the operation. */
typedef struct crossing {
  uint64_t given[PLACES_OF_RUNS][COMBINE_ATTEMPTS_MAX][RANKS_MAX],
      said[PLACES_OF_RUNS][COMBINE_ATTEMPTS_MAX][RANKS_MAX];
} crossing;

static crossing counts;

/* Waits until the proxy has ended all runs that were started. */
static bool await_proxy(world_rank *self, uint64_t epoch) {
  bny_transport *transport = self->comm->device.proxy->transport;
  const bny_rank_line *line = transport->ops->line(transport, transport->rank);
  double until = world_now_s() + WORLD_GUARD_S;
  while (atomic_load_explicit(&line->done, memory_order_acquire) < epoch && world_now_s() < until) world_sleep_ms(0.1);
  return world_check(self, atomic_load(&line->done) == epoch, "a run of the proxy does not end");
}

static void count_crossing(world_rank *self) {
  combine_task *of = self->argument;
  banyan_comm *comm = self->comm;
  int32_t rank = self->rank;
  const bool on_host = !self->on->is_device;
  int where = on_host ? ON_HOST : ON_DEVICE;
  const bny_transport *transport = on_host ? comm->transport : comm->device.proxy->transport;
  for (int32_t i = 0; i < of->nattempts; i++) {
    combine_attempt *attempt = &of->attempts[i];
    const sheet *out = &attempt->out[COMBINE_FIRST][rank];
    banyan_combine_desc desc = attempt->desc;
    banyan_partial in = combine_attempt_input(attempt, rank);
    banyan_op *op = NULL;
    banyan_op_info info = {.size = sizeof info};
    desc.stream = self->stream;
    if (!world_ok(self, banyan_combine_init(comm, &desc, &in, out->tokens && out->heads ? &out->partial : NULL, &op),
                  "init"))
      return;
    uint64_t before = transport->bytes_between_nodes;
    bool good = world_ok(self, banyan_start(op), "start");
    if (on_host)
      good = good && world_ok(self, banyan_wait(op), "wait");
    else
      good = good && device_nodes_finish(self) && await_proxy(self, (uint64_t)i + 1);
    if (!good || !world_ok(self, banyan_op_query(op, &info), "query")) return;
    counts.given[where][i][rank] = transport->bytes_between_nodes - before;
    counts.said[where][i][rank] = info.bytes_between_nodes;
    banyan_op_free(op);
  }
  world_meet(self);
}

/* The payload between nodes is exactly that of the plan, and no more than on the host. Merging within nodes first sends
 * less than sending all rows to all ranks. */
TEST(as_much_crosses_as_plans_say) {
  static const char *const names[] = {"oneshot", "levels", "ring", NULL};
  combine_task *places[PLACES_OF_RUNS];
  combine_group groups[PLACES_OF_RUNS];
  for (int where = ON_DEVICE; where < PLACES_OF_RUNS; where++) {
    combine_task *of = places[where] = combine_task_new(4, 52);
    groups[where] = combine_group_make(of, 2, 8, 24);
    for (size_t a = 0; a < sizeof names / sizeof names[0]; a++)
      for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++)
        combine_task_add(of, &groups[where],
                         (banyan_combine_desc){.algorithm = names[a],
                                               .scatter = (banyan_scatter)scatter,
                                               .wire = a == 1 ? BANYAN_BF16 : BANYAN_F32,
                                               .root = 3},
                         true);
    device_nodes_run(of, count_crossing,
                     (world_setup){.on = where == ON_HOST ? &world_threads : NULL, .nodes = "a,a,b,b"});
  }
  uint64_t all[sizeof names / sizeof names[0]] = {0};
  for (int32_t i = 0; i < places[0]->nattempts; i++)
    for (int32_t rank = 0; rank < 4; rank++) {
      uint64_t given = counts.given[ON_DEVICE][i][rank];
      const char *text = combine_attempt_text(&places[0]->attempts[i], COMBINE_FIRST);
      ck_assert_msg(given == counts.said[ON_DEVICE][i][rank], "%s: rank %d sent %llu bytes, not %llu", text, rank,
                    (unsigned long long)given, (unsigned long long)counts.said[ON_DEVICE][i][rank]);
      ck_assert_msg(given == counts.given[ON_HOST][i][rank], "%s: rank %d sent %llu bytes, on the host %llu", text,
                    rank, (unsigned long long)given, (unsigned long long)counts.given[ON_HOST][i][rank]);
      all[i / (BANYAN_SCATTER_TOKENS + 1)] += given;
    }
  ck_assert_msg(all[0] > 0 && 2 * all[1] < all[0], "%llu bytes by levels, %llu by oneshot", (unsigned long long)all[1],
                (unsigned long long)all[0]);
  for (int where = ON_DEVICE; where < PLACES_OF_RUNS; where++) combine_task_free(places[where]);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

enum { MIXED_RUNS = 200 };

/* Runs shapes in any order, many at once on the stream, with roots that run ahead. The driver gets only launches. */
static void mix(world_rank *self) {
  combine_task *of = self->argument;
  world_random random = 77;
  bool good = true;
  combine_all(self);
  uint64_t before = FAKE_CUDA(fake_cuda_setup_calls)();
  if (!world_meet(self)) return;
  for (int i = 0; i < MIXED_RUNS && good; i++) {
    combine_attempt *attempt = &of->attempts[random_below(&random, of->nattempts)];
    good = world_ok(self, device_nodes_start(self, attempt, COMBINE_FIRST), "combine");
  }
  uint64_t calls = FAKE_CUDA(fake_cuda_setup_calls)() - before;
  world_check(self, calls == 0, "%llu calls that allocate or wait", (unsigned long long)calls);
  world_meet(self);
  if (good && device_nodes_finish(self)) world_ok(self, banyan_comm_status(self->comm), "status");
  world_meet(self);
}

TEST(runs_follow_each_other) {
  combine_task *of = combine_task_new(3, 35);
  combine_group group = combine_group_make(of, 2, 6, 24);
  for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++)
    combine_task_add(of, &group,
                     (banyan_combine_desc){.scatter = (banyan_scatter)scatter, .wire = BANYAN_F32, .root = 2}, true);
  device_nodes_run(of, mix, (world_setup){.on = NULL});
  combine_task_check(of);
  combine_task_free(of);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* Replays a graph of several shapes, with plain calls in between. Captured operations are freed because other shapes
 * replace them. */
static void replay(world_rank *self) {
  enum { REPLAYS = 6, OTHER_SHAPES = BNY_BLOCKING_OPS + 1 };
  const combine_task *of = self->argument;
  gpu *device = world_gpu_of(self);
  gpu_graph *graph = NULL;
  tool_error error = {.text = ""};
  combine_all(self);
  bool good = world_check(self, gpu_capture_begin(device, self->stream, &error), "%s", error.text);
  for (int32_t i = 0; i < of->nattempts && good; i++)
    good = world_ok(self, device_nodes_start(self, &of->attempts[i], COMBINE_AGAIN), "combine");
  if (!world_check(self, gpu_capture_end(device, self->stream, &graph, &error) && good, "capture: %s", error.text))
    return;
  float values[OTHER_SHAPES] = {0}, lse[OTHER_SHAPES] = {0};
  for (int32_t heads = 1; heads < OTHER_SHAPES && good; heads++) {
    banyan_partial own;
    banyan_combine_desc desc = {
        .size = sizeof desc, .tokens = 1, .heads = heads, .value_dim = 1, .stream = self->stream};
    banyan_partial_init(&own, values, BANYAN_F32, lse, BANYAN_F32, heads, 1);
    good = world_ok(self, banyan_combine(self->comm, &desc, &own, &own), "another shape");
  }
  for (int i = 0; i < REPLAYS && good; i++) {
    good = world_check(self, gpu_graph_launch(graph, self->stream, &error), "%s", error.text) &&
           world_ok(self, device_nodes_start(self, &of->attempts[i % of->nattempts], COMBINE_OWN), "combine");
  }
  if (good && device_nodes_finish(self)) world_ok(self, banyan_comm_status(self->comm), "status");
  gpu_graph_free(graph);
}

TEST(graphs) {
  combine_task *of = combine_task_new(3, 37);
  combine_group group = combine_group_make(of, 2, 6, 24);
  for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++)
    combine_task_add(of, &group,
                     (banyan_combine_desc){.scatter = (banyan_scatter)scatter, .wire = BANYAN_F32, .root = 2}, true);
  device_nodes_run(of, replay, (world_setup){.on = NULL});
  combine_task_check(of);
  combine_task_free(of);
}

/* Other collectives run concurrently with runs on devices. An operation may be freed before the device has run it. */
static void use_both(world_rank *self) {
  const combine_task *of = self->argument;
  banyan_comm *comm = self->comm;
  const combine_attempt *attempt = &of->attempts[0];
  int32_t rank = self->rank;
  banyan_combine_desc desc = attempt->desc;
  banyan_partial in = combine_attempt_input(attempt, rank);
  size_t counts[RANKS_MAX];
  unsigned char mine[1000], all[RANKS_MAX * sizeof mine];
  banyan_op *op = NULL;
  desc.stream = self->stream;
  for (int32_t i = 0; i < self->nranks; i++) counts[i] = sizeof mine;
  memset(mine, rank, sizeof mine);
  for (int run = 0; run < COMBINE_RUNS; run++) {
    if (!world_ok(self, banyan_combine_init(comm, &desc, &in, &attempt->out[run][rank].partial, &op), "init") ||
        !world_ok(self, banyan_start(op), "start"))
      return;
    banyan_op_free(op);
    if (!world_ok(self, banyan_allgather(comm, mine, all, counts), "gather")) return;
    for (int32_t i = 0; i < self->nranks; i++)
      world_check(self, all[i * (int32_t)sizeof mine + 7] == i, "a gather beside devices");
  }
  char text[512];
  banyan_comm_describe(comm, text, sizeof text);
  world_check(self, strstr(text, "staged in host memory between nodes") != NULL, "%s", text);
  device_nodes_finish(self);
  world_ok(self, banyan_comm_status(comm), "status");
  world_meet(self);
}

TEST(host_collectives_go_on) {
  combine_task *of = combine_task_new(4, 36);
  combine_group group = combine_group_make(of, 2, 6, 24);
  combine_task_add(of, &group, (banyan_combine_desc){.wire = BANYAN_F32}, true);
  device_nodes_run(of, use_both, (world_setup){.on = NULL});
  combine_task_check(of);
  combine_task_free(of);
}

/* ---- ways -------------------------------------------------------------------------------------------------------- */

static const char *says;

static void describe(world_rank *self) {
  char text[512];
  banyan_comm_describe(self->comm, text, sizeof text);
  world_check(self, strstr(text, says) != NULL, "%s", text);
  combine_all(self);
}

/* By default, devices of one NVLink domain share memory, and other devices do not try to. */
TEST(ways_are_chosen) {
  static const struct {
    const char *words, *way, *says;
  } cases[] = {{"", "", "arenas go by fabric handles"},
               {"no-fabric:1,", "", "staged in host memory between nodes"},
               {"import-fails,", "", "staged in host memory between nodes"},
               {"", "fabric", "arenas go by fabric handles"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    setenv("BANYAN_LOG", "error", 1); /* suppresses the warning that fabric handles fail */
    combine_task *of = combine_task_new(3, 42);
    combine_group group = combine_group_make(of, 1, 4, 16);
    combine_task_add(of, &group, (banyan_combine_desc){.wire = BANYAN_F32}, true);
    says = cases[i].says;
    device_nodes_run(of, describe, (world_setup){.words = cases[i].words, .way = cases[i].way});
    combine_task_check(of);
    combine_task_free(of);
  }
}

int main(void) {
  if (!world_has_network()) return 77;
  return world_main(suite_of("device_nodes", 60));
}
