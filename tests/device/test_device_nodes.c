/* SPDX-License-Identifier: Apache-2.0
 * Tests combines on devices of several nodes, staged in host memory between nodes: the payload between nodes, graphs,
 * the choice of a path, and failures that only such devices have. test_device_calls.c has the failures of all devices.
 * Memory is reached by devices directly. The names of nodes assign ranks to nodes. */
#include <signal.h>

#include "op/operation.h"
#include "tests/device/device_util.h"
#include "tests/support/combine_task.h"
#include "tools/common/gpu.h"
#include "device/proxy.h"
#include "transport/ucx/ucx.h"

enum { RANKS_MAX = 8, ALL_SCATTERS = BANYAN_SCATTER_TOKENS + 1 };

/* Makes a task of combines of one group of rows, by so many scatters from the first on. */
static combine_task *task_of(int32_t nranks, banyan_scatter first, int scatters, const char *algorithm) {
  combine_task *made = combine_task_new(nranks, 35);
  combine_group *group = world_take(sizeof *group);
  *group = combine_group_make(made, 2, 6, 24);
  for (int i = 0; i < scatters; i++)
    combine_task_add(made, group,
                     (banyan_combine_desc){.scatter = (banyan_scatter)(first + i), .root = 2, .algorithm = algorithm},
                     true);
  return made;
}

static void run_only(combine_task *of, world_body body, world_setup setup) {
  if (!setup.on) setup.on = &world_staged;
  setup.nranks = of->nranks;
  setup.arena_bytes = 1 << 20;
  setup.argument = of;
  world_run(&setup, body);
}

static void run_and_free(combine_task *of, world_body body, world_setup setup) {
  run_only(of, body, setup);
  combine_task_free(of);
}

/* Does the same for bodies that make all runs of all attempts. */
static void run_and_check(combine_task *of, world_body body, world_setup setup) {
  run_only(of, body, setup);
  combine_task_check(of);
  combine_task_free(of);
}

/* Waits for the stream of this rank, which ends even after a failure. */
static bool finish(world_rank *self) {
  tool_error error = {.text = ""};
  if (!self->on->is_device) return true;
  return world_check(self, gpu_wait(world_gpu_of(self), self->stream, WORLD_GUARD_S, &error), "%s", error.text);
}

static banyan_status start(world_rank *self, const combine_attempt *attempt, int run) {
  banyan_combine_desc desc = attempt->desc;
  desc.stream = self->stream;
  banyan_partial in = combine_attempt_input(attempt, self->rank);
  const sheet *out = &attempt->out[run][self->rank];
  return banyan_combine(self->comm, &desc, &in, out->tokens && out->heads ? &out->partial : NULL);
}

/* Lets a rank leave at once, without a wait for others. */
static void leave(world_rank *self) {
  banyan_comm_destroy(self->comm);
  self->comm = NULL;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static void combine_only(world_rank *self) {
  const combine_task *of = self->argument;
  bool good = true;
  for (int32_t i = 0; i < of->nattempts && good; i++)
    for (int run = 0; run < COMBINE_RUNS && good; run++)
      good = world_ok(self, start(self, &of->attempts[i], run), "combine");
  if (good && finish(self)) world_ok(self, banyan_comm_status(self->comm), "status");
}

static void combine_all(world_rank *self) {
  combine_only(self);
  world_meet(self);
}

static void combine_and_leave(world_rank *self) {
  combine_only(self);
  leave(self);
}

/* A device that only sends may end its run before the proxy has begun it. Its data is sent even if the rank then
 * leaves. */
TEST(whoever_has_sent_may_leave) {
  run_and_check(task_of(3, BANYAN_SCATTER_ROOT, 1, NULL), combine_and_leave, (world_setup){.on = NULL});
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
      good = good && finish(self) && await_proxy(self, (uint64_t)i + 1);
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
    run_only(of, count_crossing, (world_setup){.on = where == ON_HOST ? &world_threads : NULL, .nodes = "a,a,b,b"});
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

/* ---- many runs --------------------------------------------------------------------------------------------------- */

enum { MIXED_RUNS = 200, OTHER_SHAPES = BNY_BLOCKING_OPS + 1 };

/* Captures a graph of all attempts. Captured operations are then freed, because other shapes replace them. */
static bool capture_and_replace(world_rank *self, gpu_graph **graph) {
  const combine_task *of = self->argument;
  gpu *device = world_gpu_of(self);
  tool_error error = {.text = ""};
  bool good = world_check(self, gpu_capture_begin(device, self->stream, &error), "%s", error.text);
  for (int32_t i = 0; i < of->nattempts && good; i++)
    good = world_ok(self, start(self, &of->attempts[i], COMBINE_AGAIN), "combine");
  good = world_check(self, gpu_capture_end(device, self->stream, graph, &error) && good, "capture: %s", error.text);
  float values[OTHER_SHAPES] = {0}, lse[OTHER_SHAPES] = {0};
  for (int32_t heads = 1; heads < OTHER_SHAPES && good; heads++) {
    banyan_partial own;
    banyan_combine_desc desc = {
        .size = sizeof desc, .tokens = 1, .heads = heads, .value_dim = 1, .stream = self->stream};
    banyan_partial_init(&own, values, BANYAN_F32, lse, BANYAN_F32, heads, 1);
    good = world_ok(self, banyan_combine(self->comm, &desc, &own, &own), "another shape");
  }
  for (int32_t i = 0; i < of->nattempts && good; i++)
    good = world_ok(self, start(self, &of->attempts[i], COMBINE_FIRST), "combine");
  return finish(self) && good;
}

/* Runs shapes and their graph in any order, many at once on the stream, with roots that run ahead. The driver gets only
 * launches. */
static void mix(world_rank *self) {
  combine_task *of = self->argument;
  world_random random = 77;
  gpu_graph *graph = NULL;
  tool_error error = {.text = ""};
  combine_all(self);
  bool good = capture_and_replace(self, &graph);
  good = world_meet(self) && good;
  uint64_t before = FAKE_CUDA(fake_cuda_setup_calls)();
  good = world_meet(self) && good;
  for (int i = 0; i < MIXED_RUNS && good; i++) {
    combine_attempt *attempt = &of->attempts[random_below(&random, of->nattempts)];
    if (i % 16 == 0)
      good = world_check(self, gpu_graph_launch(graph, self->stream, &error), "%s", error.text);
    else
      good = world_ok(self, start(self, attempt, COMBINE_FIRST), "combine");
  }
  uint64_t calls = FAKE_CUDA(fake_cuda_setup_calls)() - before;
  world_check(self, calls == 0, "%llu calls that allocate or wait", (unsigned long long)calls);
  world_meet(self);
  if (good && finish(self)) world_ok(self, banyan_comm_status(self->comm), "status");
  world_meet(self);
  gpu_graph_free(graph);
}

TEST(runs_follow_each_other) {
  run_and_check(task_of(3, BANYAN_SCATTER_NONE, ALL_SCATTERS, NULL), mix, (world_setup){.on = NULL});
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
  finish(self);
  world_ok(self, banyan_comm_status(comm), "status");
  world_meet(self);
}

TEST(host_collectives_go_on) {
  run_and_check(task_of(4, BANYAN_SCATTER_NONE, 1, NULL), use_both, (world_setup){.on = NULL});
}

/* ---- kinds of memory --------------------------------------------------------------------------------------------- */

/* Messages state the kind of their memory to UCX. Otherwise UCX would query the CUDA driver, or treat unknown memory as
 * host memory. A query could deadlock: kernels wait for the thread that makes it, and the driver may wait for kernels.
 * Puts state the kind too, but testing them needs RDMA, or ranks that stay in calls. */

/* Counts of sends since the last check. */
static struct {
  __typeof__(&ucp_am_send_nbx) send;
  atomic_int host, unknown;
} seen;

static void note(const ucp_request_param_t *param) {
  bool is_host = param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE && param->memory_type == UCS_MEMORY_TYPE_HOST;
  atomic_fetch_add(is_host ? &seen.host : &seen.unknown, 1);
}

static ucs_status_ptr_t send_noted(ucp_ep_h endpoint, unsigned id, const void *header, size_t header_bytes,
                                   const void *payload, size_t count, const ucp_request_param_t *param) {
  note(param);
  return seen.send(endpoint, id, header, header_bytes, payload, count, param);
}

static void combine_noted(world_rank *self) {
  bny_net *net = bny_net_of(self->comm->device.proxy->transport);
  const combine_attempt *attempt = &((const combine_task *)self->argument)->attempts[0];
  if (self->rank == 0) { /* no send is in flight */
    seen.send = net->ucx.ucp_am_send_nbx;
    bny_net_take(net);
    net->ucx.ucp_am_send_nbx = send_noted;
    bny_net_give(net);
  }
  if (!world_meet(self)) return;
  bool good = world_ok(self, start(self, attempt, COMBINE_FIRST), "combine") && finish(self);
  world_meet(self); /* all messages have arrived */
  if (!good || self->rank != 0) return;
  int unknown = atomic_load(&seen.unknown);
  world_check(self, unknown == 0, "%d sends of memory that UCX asks the driver about", unknown);
  world_check(self, atomic_load(&seen.host) > 0, "nothing was sent");
}

TEST(memory_is_said_to_be_of_the_host) {
  run_and_free(task_of(2, BANYAN_SCATTER_NONE, 1, NULL), combine_noted, (world_setup){.on = NULL});
}

/* ---- ways -------------------------------------------------------------------------------------------------------- */

static const char *says;

static void describe(world_rank *self) {
  char text[512];
  banyan_comm_describe(self->comm, text, sizeof text);
  world_check(self, strstr(text, says) != NULL, "%s", text);
  combine_all(self);
}

/* Devices of one NVLink domain share memory, and other devices do not try to. */
TEST(ways_are_chosen) {
  static const struct {
    const char *words, *says;
  } cases[] = {{"", "arenas go by fabric handles"},
               {"no-fabric:1,", "staged in host memory between nodes"},
               {"import-fails,", "staged in host memory between nodes"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    setenv("BANYAN_LOG", "error", 1); /* suppresses the warning that fabric handles fail */
    says = cases[i].says;
    run_and_check(task_of(3, BANYAN_SCATTER_NONE, 1, NULL), describe,
                  (world_setup){.words = cases[i].words, .fabric = true});
  }
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Checks that the stream ends, and that the communicator reports this failure. */
static void expect(world_rank *self, banyan_status status, int32_t culprit, const char *says) {
  if (finish(self)) world_fails(self, status, culprit, says);
}

/* Completes a first run. Returns NULL if it fails. */
static const combine_attempt *run_first(world_rank *self) {
  const combine_attempt *attempt = &((const combine_task *)self->argument)->attempts[0];
  bool good = world_ok(self, start(self, attempt, 0), "combine") && finish(self) && world_meet(self);
  return good ? attempt : NULL;
}

/* The proxy of one device is gone. The device ends by itself, and the other ranks end by their deadline. */
static void lose_a_proxy(world_rank *self) {
  const combine_attempt *attempt = run_first(self);
  if (!attempt) return;
  if (self->rank == 1) {
    bny_proxy *proxy = self->comm->device.proxy;
    atomic_store(&proxy->quits, true);
    pthread_join(proxy->thread, NULL);
    proxy->has_thread = false;
  }
  if (!world_meet(self) || !world_ok(self, start(self, attempt, 1), "combine")) return;
  expect(self, BANYAN_ERR_TIMEOUT, 1, "rank 1");
  world_meet(self);
}

/* A rank that gives up destroys its communicator without a wait for its stream. Its kernel still polls the memory that
 * is then freed. */
static void abort_and_leave(world_rank *self) {
  const combine_attempt *attempt = run_first(self);
  if (!attempt) return;
  bool comes = self->rank != 1;
  if (comes && !world_ok(self, start(self, attempt, 1), "combine")) return;
  if (world_meet(self) && comes) banyan_comm_abort(self->comm, "enough");
  leave(self);
}

/* All ranks wait for all others, and name the rank that is missing. */
TEST_LOOP(failures_are_named, 2) {
  run_and_free(task_of(3, BANYAN_SCATTER_NONE, 1, "oneshot"), _i ? abort_and_leave : lose_a_proxy,
               (world_setup){.timeout_ns = _i ? 0 : 4000000000});
}

/* ---- deaths ------------------------------------------------------------------------------------------------------ */

enum { READY, DEAD };

/* Rank 2 is killed while the devices of the others wait for it. The others continue without it. */
static void survive(world_rank *self) {
  const combine_attempt *attempt = run_first(self);
  if (!attempt) return;
  if (self->rank == 2) {
    world_signal(self->world, READY);
    for (;;) pause();
  }
  if (!world_ok(self, start(self, attempt, 1), "combine")) return;
  double began = world_now_s();
  expect(self, BANYAN_ERR_PEER, 2, "rank 2 died");
  world_check(self, world_is_sanitized() || world_now_s() - began < 10, "a death took %.1f s", world_now_s() - began);
  banyan_comm *rest = NULL;
  int32_t members[RANKS_MAX];
  if (!world_ok(self, banyan_comm_shrink(self->comm, members, &rest), "shrink")) return;
  banyan_comm_destroy(self->comm);
  self->comm = rest;
  float value = (float)self->rank, lse = 0, mean = -1;
  banyan_partial in, out;
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = 1, .value_dim = 1, .stream = self->stream};
  banyan_partial_init(&in, &value, BANYAN_F32, &lse, BANYAN_F32, 1, 1);
  banyan_partial_init(&out, &mean, BANYAN_F32, NULL, BANYAN_F32, 1, 1);
  if (!world_ok(self, banyan_combine(rest, &desc, &in, &out), "combine of those who are left") || !finish(self)) return;
  world_check(self, mean == 4.0f / 3, "%g", (double)mean);
  world_ok(self, banyan_barrier(rest), "barrier");
  leave(self);
}

static void kill_one(world *world, const pid_t *pids, void *argument) {
  (void)argument;
  if (!world_await(world, READY, 20)) return;
  world_sleep_ms(50);
  kill(pids[2], SIGKILL);
}

TEST(the_dead_are_named_and_left_behind) {
  run_and_free(task_of(4, BANYAN_SCATTER_NONE, 1, NULL), survive,
               (world_setup){.processes = true, .deaths = true, .conduct = kill_one});
}

int main(void) {
  if (!world_has_network()) return 77;
  return world_main(suite_of("device_nodes", 60));
}
