/* SPDX-License-Identifier: Apache-2.0
 * The library decides as the tools show. For every dump and for synthetic machines, ranks get their localities from the
 * file. Levels, algorithm and counted bytes of their communicator are compared with the results of the tools' code.
 * BANYAN_TOPO changes a real communicator, and ranks that disagree make one plan. */
#include <jansson.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "op/operation.h"
#include "comm/comm.h"
#include "locality/locality.h"
#include "plan/slice.h"
#include "tests/support/directory.h"
#include "tests/support/world.h"
#include "tests/topo/topo_util.h"
#include "tools/plan/methods.h"
#include "topo/model/json.h"

enum { RANKS_MAX = 16, VALUES = 64, TEXT = 4096 };

static const plan_shape shape = {
    .collective = BNY_COMBINE, .tokens = 2, .heads = 32, .value_dim = VALUES, .wire = BANYAN_F32};

/* ---- one combine ------------------------------------------------------------------------------------------------- */

/* A rank writes its report into memory that processes share. */
typedef struct report {
  char algorithm[32];
  uint64_t bytes_sent, plan_hash, levels_hash;
  int32_t nlevels, sizes[BNY_LEVELS_MAX];
  double worst;
  banyan_status status;
  char text[512];
} report;

/* Each rank has one key of logit `rank` and value `rank`, so that the merge is known. */
static bool combine(banyan_comm *comm, int32_t tokens, int32_t heads, report *report) {
  int rows = tokens * heads;
  float *o = malloc((size_t)(2 * rows * (VALUES + 1)) * sizeof *o);
  float *merged = o + rows * VALUES, *lse = merged + rows * VALUES, *merged_lse = lse + rows;
  int32_t rank = banyan_comm_rank(comm), nranks = banyan_comm_nranks(comm);
  banyan_partial in, out;
  banyan_op *op = NULL;
  banyan_op_info info = BANYAN_OP_INFO_INIT;
  banyan_combine_desc desc = BANYAN_COMBINE_DESC_INIT;
  desc.tokens = tokens, desc.heads = heads, desc.value_dim = VALUES;
  for (int i = 0; i < rows * VALUES; i++) o[i] = (float)rank;
  for (int i = 0; i < rows; i++) lse[i] = (float)rank / 8;
  banyan_partial_init(&in, o, BANYAN_F32, lse, BANYAN_F32, heads, VALUES);
  banyan_partial_init(&out, merged, BANYAN_F32, merged_lse, BANYAN_F32, heads, VALUES);
  banyan_status status = banyan_combine_init(comm, &desc, &in, &out, &op);
  if (status == BANYAN_OK) status = banyan_start(op);
  if (status == BANYAN_OK) status = banyan_wait(op);
  if (status == BANYAN_OK) status = banyan_op_query(op, &info);
  double weights = 0, values = 0;
  for (int32_t r = 0; r < nranks; r++) weights += exp(r / 8.0), values += exp(r / 8.0) * r;
  report->worst = 0;
  for (int i = 0; i < rows * VALUES && status == BANYAN_OK; i++)
    report->worst = fmax(report->worst, fabs(merged[i] - values / weights));
  snprintf(report->algorithm, sizeof report->algorithm, "%s", status == BANYAN_OK ? info.algorithm : "");
  report->bytes_sent = info.bytes_sent;
  report->plan_hash = info.plan_hash;
  report->levels_hash = comm->levels ? comm->levels->hash : 0;
  report->nlevels = comm->levels ? comm->levels->nlevels : 1;
  for (int32_t k = 0; comm->levels && k < comm->levels->nlevels; k++) report->sizes[k] = comm->levels->levels[k].most;
  banyan_op_free(op);
  free(o);
  return status == BANYAN_OK && report->worst < 1e-4;
}

static void tell(world_rank *self) {
  report *reports = self->argument;
  world_check(self, combine(self->comm, shape.tokens, shape.heads, &reports[self->rank]),
              "the combine failed or is wrong by %g: %s", reports[self->rank].worst, banyan_last_error());
}

/* ---- answers of the tools ---------------------------------------------------------------------------------------- */

/* Chooses the first ranks of each host, in order. */
static int32_t choose(const bny_topo_levels *derived, int32_t *chosen) {
  int32_t count = 0;
  for (int32_t local = 0; local < derived->nranks && count < RANKS_MAX; local++)
    for (int32_t r = 0; r < derived->nranks && count < RANKS_MAX; r++)
      if (derived->ranks[r].local == local) chosen[count++] = r;
  for (int32_t i = 1; i < count; i++)
    for (int32_t j = i; j > 0 && chosen[j - 1] > chosen[j]; j--) {
      int32_t other = chosen[j];
      chosen[j] = chosen[j - 1];
      chosen[j - 1] = other;
    }
  return count;
}

/* Counts the bytes that the plan of a rank sends. */
static uint64_t bytes_of(const bny_request *request, int32_t rank, const char **algorithm) {
  bny_plan *plan = NULL;
  uint64_t bytes = 0;
  ck_assert_msg(bny_plan_make(request, rank, &plan) == BANYAN_OK, "%s", banyan_last_error());
  for (int32_t i = 0; i < plan->nsteps; i++) {
    const bny_step *step = &plan->steps[i];
    if (step->kind == BNY_STEP_SEND) bytes += (uint64_t)step->count * plan->slots[step->slot].bytes;
  }
  *algorithm = plan->algorithm;
  bny_plan_free(plan);
  return bytes;
}

/* Compares the reports for a small model with the output of banyan-plan. */
static void compare_with_tool(const char *what, const bny_topo *topo, const bny_topo_levels *derived,
                              const report *reports) {
  plan_ranks ranks;
  plan_methods methods;
  tool_error error = {.text = ""};
  ck_assert_msg(plan_ranks_of(topo, derived, what, false, &ranks, &error), "%s", error.text);
  ck_assert_msg(plan_methods_weigh(&ranks, &shape, NULL, &methods, &error), "%s", error.text);
  const plan_method *best = plan_methods_chosen(&methods);
  /* The tool appends the variant, as in levels_whole. */
  ck_assert_msg(strncmp(best->name, reports[0].algorithm, strlen(reports[0].algorithm)) == 0,
                "%s: the tool chooses %s, the library %s", what, best->name, reports[0].algorithm);
  ck_assert_msg(ranks.levels->nlevels == 1 || ranks.levels->hash == reports[0].levels_hash, "%s: other levels", what);
  plan_ranks_release(&ranks);
}

/* Writes a model as JSON, as the library reads it. Returns the path, which stays valid for the next two calls. */
static const char *converted(const char *name, const bny_topo *topo) {
  static char paths[3][128];
  static int next;
  char *path = paths[next++ % 3], *text = exported(bny_topo_export_json, topo);
  snprintf(path, sizeof paths[0], "%s/%s", directory, name);
  FILE *file = fopen(path, "w");
  ck_assert(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
  return path;
}

static void compare(const char *what, const bny_topo *topo) {
  bny_topo_levels *derived = topo_derive(topo);
  int32_t chosen[RANKS_MAX], count = choose(derived, chosen);
  bny_locality localities[RANKS_MAX];
  report *reports = calloc(RANKS_MAX, sizeof *reports);
  char list[RANKS_MAX * 8] = "";
  ck_assert_int_gt(count, 0);
  for (int32_t i = 0; i < count; i++) {
    bny_locality_of(topo, derived, chosen[i], &bny_prices_default, &localities[i]);
    snprintf(list + strlen(list), sizeof list - strlen(list), i ? ",%d" : "%d", chosen[i]);
  }
  plan_ranks ranks = {.nranks = count};
  ck_assert_msg(bny_locality_levels(localities, count, NULL, NULL, &ranks.levels) == BANYAN_OK, "%s",
                banyan_last_error());
  setenv("BANYAN_TOPO", converted("machine.json", topo), 1);
  setenv("BANYAN_TOPO_RANK", count > 1 ? list : "0", 1);
  world_setup setup = {.nranks = count, .argument = reports};
  world_run(&setup, tell);
  unsetenv("BANYAN_TOPO");
  unsetenv("BANYAN_TOPO_RANK");

  bny_request request = plan_request_make(&ranks, &shape);
  for (int32_t r = 0; r < count; r++) {
    const char *algorithm;
    uint64_t bytes = bytes_of(&request, r, &algorithm);
    ck_assert_msg(strcmp(algorithm, reports[r].algorithm) == 0, "%s: rank %d runs %s, and the tools' code chooses %s",
                  what, r, reports[r].algorithm, algorithm);
    ck_assert_msg(bytes == reports[r].bytes_sent, "%s: rank %d sent %llu bytes by %s, and the tools' code counts %llu",
                  what, r, (unsigned long long)reports[r].bytes_sent, algorithm, (unsigned long long)bytes);
    ck_assert_msg(reports[r].nlevels == ranks.levels->nlevels, "%s: %d levels, by the tools' code %d", what,
                  reports[r].nlevels, ranks.levels->nlevels);
    ck_assert_msg(ranks.levels->nlevels == 1 || reports[r].levels_hash == ranks.levels->hash, "%s: other levels", what);
    ck_assert(reports[r].plan_hash == reports[0].plan_hash);
  }
  if (count == derived->nranks && count > 1) compare_with_tool(what, topo, derived, reports);
  plan_ranks_release(&ranks);
  free(reports);
}

/* ---- dumps and synthetic machines -------------------------------------------------------------------------------- */

static const char *const folders[] = {"examined", "fabric", "hwloc", "nccl"};
static bny_topo *before; /* the previous dump, for a cluster of two different machines */

/* Prepends `prefix` to a member's text. */
static void prefix_member(json_t *object, const char *key, const char *prefix) {
  const char *text = json_string_value(json_object_get(object, key));
  if (text != NULL) json_object_set_new(object, key, json_sprintf("%s%s", prefix, text));
}

static void compare_joined(const bny_topo *topo) {
  json_t *all = bny_topo_json(before), *more = bny_topo_json(topo), *one;
  size_t i;
  char path[128];
  json_array_foreach(json_object_get(more, "nodes"), i, one) {
    if (json_object_get(one, "parent") == NULL) prefix_member(one, "name", "other-");
    prefix_member(one, "id", "other/");
    prefix_member(one, "parent", "other/");
  }
  json_array_foreach(json_object_get(more, "links"), i, one) {
    prefix_member(one, "from", "other/");
    prefix_member(one, "to", "other/");
  }
  json_array_extend(json_object_get(all, "nodes"), json_object_get(more, "nodes"));
  json_array_extend(json_object_get(all, "links"), json_object_get(more, "links"));
  snprintf(path, sizeof path, "%s/joined.json", directory);
  ck_assert_int_eq(json_dump_file(all, path, 0), 0);
  json_decref(more);
  json_decref(all);
  compare(path, load_file(path));
  unlink(path);
}

/* Files that importers reject are skipped. */
static void compare_file(const char *path, const char *name) {
  (void)name;
  bny_topo_error error = {.text = ""};
  bny_topo *topo = topo_load(path, NULL, &error);
  if (!topo) return;
  compare(path, topo);
  if (before) compare_joined(topo);
  before = topo;
}

TEST_LOOP(dumps, (int)(sizeof folders / sizeof *folders)) {
  if (each_dump(folders[_i], "", compare_file) == 0) printf("%s: no dumps here\n", folders[_i]);
  before = NULL;
}

static const char *const synthetic[] = {"host:2 package:2 numa bridge:2 nvlink gpu:2@sm80 nic:2@200g",
                                        "leaf:2@rails host:4 nvswitch gpu:2@sm90 nic:2@400g",
                                        "leaf:2 nvswitch host:4 package:2 numa gpu:1@sm100 nic:1@400g",
                                        "host:3 nvswitch gpu:3@sm90",
                                        "host:4 numa:2 nic@100g",
                                        "host:5",
                                        "host package:2 numa:4"};

TEST(own_machines) {
  for (size_t i = 0; i < OWN_TOPOLOGIES; i++) {
    char path[TEXT];
    own_path(own_topologies[i], "", path);
    compare(path, load_file(path));
  }
  for (size_t i = 0; i < sizeof synthetic / sizeof *synthetic; i++) compare(synthetic[i], load(synthetic[i]));
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

/* Variables that each rank sets before it makes its communicator. NULL leaves one unset. */
typedef struct rank_setup {
  int cpu; /* index among the CPUs that the process may use; -1: not bound */
  const char *topo, *topo_rank;
} rank_setup;

typedef struct bound_world {
  const rank_setup *ranks;
  report reports[RANKS_MAX];
} bound_world;

static bool bind_to(int nth) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed) || nth-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
  }
  return false;
}

static bool has_two_cpus(void) {
  cpu_set_t allowed;
  bool has = sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_ISSET(0, &allowed) && CPU_ISSET(1, &allowed);
  if (!has) printf("skipped: ranks cannot be bound to processors 0 and 1\n");
  return has;
}

static void set(const char *name, const char *value) {
  if (value) setenv(name, value, 1);
}

static void run_bound(world_rank *self) {
  bound_world *bound = self->argument;
  const rank_setup *own_setup = &bound->ranks[self->rank];
  report *report = &bound->reports[self->rank];
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = WORLD_GUARD_NS};
  set("BANYAN_TOPO", own_setup->topo);
  set("BANYAN_TOPO_RANK", own_setup->topo_rank);
  if (own_setup->cpu >= 0 && !world_check(self, bind_to(own_setup->cpu), "cannot be bound")) return;
  banyan_comm *comm = NULL;
  report->status = banyan_comm_create(&self->bootstrap, &config, &comm);
  snprintf(report->text, sizeof report->text, "%s", banyan_last_error());
  if (report->status == BANYAN_OK)
    world_check(self, combine(comm, 1, 8, report), "the combine failed: %s", banyan_last_error());
  banyan_comm_destroy(comm);
}

/* The caller owns the result and passes it to world_unshare(). */
static bound_world *bound_run(const rank_setup *ranks, int32_t nranks) {
  bound_world *bound = world_share(sizeof *bound);
  bound->ranks = ranks;
  world_setup setup = {.nranks = nranks, .processes = true, .bare = true, .argument = bound};
  world_run(&setup, run_bound);
  return bound;
}

static void one_plan(const bound_world *bound, int32_t nranks) {
  for (int32_t r = 0; r < nranks; r++) {
    ck_assert_msg(bound->reports[r].status == BANYAN_OK, "rank %d: %s", r, bound->reports[r].text);
    ck_assert(bound->reports[r].plan_hash == bound->reports[0].plan_hash);
    ck_assert(bound->reports[r].levels_hash == bound->reports[0].levels_hash);
  }
}

static uint64_t bytes_sent(const bound_world *bound, int32_t nranks) {
  uint64_t sum = 0;
  for (int32_t r = 0; r < nranks; r++) sum += bound->reports[r].bytes_sent;
  return sum;
}

TEST(variables_change_the_plan) {
  enum { N = 16 };
  rank_setup plain[N], nodes[N];
  if (!has_two_cpus()) return;
  const char *hosts = converted("hosts.json", load("host:2 package:1 numa:8 nic@100g"));
  for (int i = 0; i < N; i++) {
    plain[i] = (rank_setup){.cpu = i / (N / 2)};
    nodes[i] = (rank_setup){.cpu = i / (N / 2), .topo = hosts, .topo_rank = "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"};
  }
  bound_world *as_is = bound_run(plain, N), *by_topo = bound_run(nodes, N);
  one_plan(as_is, N);
  one_plan(by_topo, N);
  ck_assert_int_eq(by_topo->reports[0].nlevels, 2);
  ck_assert_int_eq(by_topo->reports[0].sizes[0], N / 2);
  ck_assert_int_eq(by_topo->reports[0].sizes[1], 2);
  ck_assert(by_topo->reports[0].plan_hash != as_is->reports[0].plan_hash);
  ck_assert(bytes_sent(by_topo, N) != bytes_sent(as_is, N));
  world_unshare(as_is, sizeof *as_is);
  world_unshare(by_topo, sizeof *by_topo);
}

/* One rank is not bound, and one reads a file of two packages. All ranks use one plan without packages. */
TEST(ranks_that_differ_make_one_plan) {
  enum { N = 5 };
  if (!has_two_cpus()) return;
  const rank_setup ranks[N] = {{.cpu = 0},
                               {.cpu = 0},
                               {.cpu = 1},
                               {.cpu = -1},
                               {.cpu = 1, .topo = converted("two.json", load("host package:2 numa:2"))}};
  bound_world *bound = bound_run(ranks, N);
  one_plan(bound, N);
  ck_assert_int_eq(bound->reports[0].nlevels, 1);
  world_unshare(bound, sizeof *bound);
}

/* A setting that one rank cannot follow is an error on all ranks, with the reason. */
TEST(settings_that_cannot_be_followed) {
  char pipe[128], xml[128];
  snprintf(pipe, sizeof pipe, "%s/pipe", directory);
  snprintf(xml, sizeof xml, "%s/machine.xml", directory);
  FILE *file = fopen(xml, "w");
  ck_assert(file != NULL && fputs("<system version=\"1\"/>\n", file) >= 0 && fclose(file) == 0);
  const char *cluster = converted("cluster.json", load("host:2 gpu:4"));
  ck_assert_int_eq(mkfifo(pipe, 0600), 0);
  const struct {
    rank_setup wrong;
    const char *text;
  } cases[] = {{{.cpu = -1, .topo = "/nowhere/machine.xml"}, "/nowhere/machine.xml"},
               {{.cpu = -1, .topo = cluster, .topo_rank = "8"}, "BANYAN_TOPO_RANK is 8"},
               {{.cpu = -1, .topo = cluster, .topo_rank = "one"}, "BANYAN_TOPO_RANK \"one\""},
               {{.cpu = -1, .topo = cluster, .topo_rank = "0,1"}, "fewer numbers"},
               {{.cpu = -1, .topo_rank = "0"}, "BANYAN_TOPO, which names the file"},
               {{.cpu = -1, .topo = pipe}, "not a regular file"}, /* a pipe without a writer */
               {{.cpu = -1, .topo = "/dev/zero"}, "not a regular file"},
               {{.cpu = -1, .topo = "-"}, "No such file"},
               {{.cpu = -1, .topo = cluster}, "none has the name of this one"},
               {{.cpu = -1, .topo = "host:2 gpu:4"}, "written by banyan-topo --from DESCRIPTION --json -o FILE"},
               {{.cpu = -1, .topo = xml}, "machine.xml --json -o machine.json"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rank_setup ranks[3] = {{.cpu = -1}, {.cpu = -1}, cases[i].wrong};
    bound_world *bound = bound_run(ranks, 3);
    for (int32_t r = 0; r < 3; r++) {
      ck_assert_int_eq(bound->reports[r].status, BANYAN_ERR_ARGUMENT);
      ck_assert_msg(strstr(bound->reports[r].text, cases[i].text), "rank %d says \"%s\", not \"%s\"", r,
                    bound->reports[r].text, cases[i].text);
    }
    world_unshare(bound, sizeof *bound);
  }
}

static void tear_down(void) {
  drop_kept();
  directory_remove();
}

int main(void) { return world_main(suite_with("topo_library", WORLD_GUARD_S, directory_make, tear_down)); }
