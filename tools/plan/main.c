/* SPDX-License-Identifier: Apache-2.0
 * banyan-plan: shows the plans for a machine or cluster without using it: steps, proof, cost and comparison. */
#include <string.h>
#include <unistd.h>

#include "select.h"
#include "tools/common/options.h"
#include "tools/plan/view.h"

#define PROGRAM "banyan-plan"

enum { DEFAULT_HEADS = 32, DEFAULT_BYTES = 65536, COLUMNS_DEFAULT = 100 };

typedef enum action { ACTION_NONE, ACTION_COST, ACTION_PRINT, ACTION_PROVE, ACTION_SIMULATE, ACTION_REGRET } action;

typedef struct arguments {
  action action;
  const char *from;
  const char *sizes; /* argument of --levels */
  int32_t ranks;     /* 0: not given */
  int32_t cores;     /* 0: one for each rank */
  int32_t tokens, heads;
  size_t bytes; /* 0: not given */
  /* first option of each group on the command line; NULL: none */
  const char *rows_only, *combine_only, *keys_given, *simulate_only, *root_given, *distance_given;
  plan_shape shape;
  plan_keys keys;
  plan_view view;
} arguments;

static const tool_option options[] = {
    {.help = "What is shown: the VIEW"},
    {"cost", NULL,
     "The default. Shows the levels of links and their costs; all algorithms, fastest first, with the chosen one and "
     "why the others are not chosen; and the choice for payloads of 1 KiB to 64 MiB. For a combine also Ring "
     "Attention, where keys and values visit every rank, and three allreduces, each by its fastest algorithm without "
     "levels.",
     TOOL_VALUE_AT(action, ACTION_COST)},
    {"print", NULL, "The steps of each rank's plan. With more than 16 ranks, those of rank 0 or of --rank.",
     TOOL_VALUE_AT(action, ACTION_PRINT)},
    {"prove", NULL, "Make the plans of all ranks and prove them together: see PROOFS in the man page.",
     TOOL_VALUE_AT(action, ACTION_PROVE)},
    {"simulate", NULL,
     "Run the plans of all ranks in SimGrid, where messages share the links of the topology. For a combine also Ring "
     "Attention and three allreduces, with attention over --keys keys.",
     TOOL_VALUE_AT(action, ACTION_SIMULATE)},
    {"regret", NULL, "Simulate every algorithm, and report how much slower the chosen one is than the fastest.",
     TOOL_VALUE_AT(action, ACTION_REGRET)},
    {.help = "Where"},
    {"from", "FILE|DESCRIPTION", "A topology in any form that banyan-topo reads. The default is this machine.",
     TOOL_TEXT_AT(from)},
    {"ranks", "N", "N CPU ranks of one node instead, each on its own core.", TOOL_INT_AT(ranks, 1, PLAN_RANKS_MAX)},
    {"levels", "LIST",
     "With --ranks: sizes of nested groups of ranks, such as 4,8. Each further level takes 8 times the latency and 4 "
     "times the time of a byte.",
     TOOL_TEXT_AT(sizes)},
    {"cores", "N", "With --ranks: the ranks take turns on this number of cores.",
     TOOL_INT_AT(cores, 1, PLAN_RANKS_MAX)},
    {.help = "What is planned"},
    {"collective", NULL, "Default combine.", TOOL_NAME_AT(shape.collective, bny_collective_names)},
    {"bytes", "BYTES",
     "The payload of each rank, with K, M or G (1024 based). For combine it is rounded up to whole tokens of --heads "
     "heads.",
     TOOL_BYTES_AT(bytes, 1 << 30)},
    {"algorithm", "NAME", "The algorithm; by default the one with the lowest predicted cost.",
     TOOL_TEXT_AT(shape.algorithm)},
    {"root", "R", "For --scatter root and broadcast; default 0.", TOOL_INT_AT(shape.root, 0, PLAN_RANKS_MAX - 1),
     TOOL_GROUP(root_given)},
    {"distance", "N", "For shift; default 1.", TOOL_INT_AT(shape.distance, -PLAN_RANKS_MAX, PLAN_RANKS_MAX),
     TOOL_GROUP(distance_given)},
    {"outbox", "BYTES",
     "The outbox that a plan may use on a rank. The default is no limit. The library uses half of BANYAN_ARENA_KIB and "
     "splits larger calls.",
     TOOL_BYTES_AT(shape.outbox_bytes, (int64_t)1 << 40)},
    {.help = "For combine, allreduce (of heads x head-dim columns), select (of heads rows) and allgather-heads"},
    {"tokens", "T", "Tokens of a partial or tensor; default 1.", TOOL_INT_AT(tokens, 1, 1 << 20),
     TOOL_GROUP(rows_only)},
    {"heads", "H", "Heads of a token; default 32.", TOOL_INT_AT(heads, 1, 1 << 20), TOOL_GROUP(rows_only)},
    {"head-dim", "D", "Values of a row, or pairs of a selection; default 128.",
     TOOL_INT_AT(shape.value_dim, 1, 1 << 14), TOOL_GROUP(rows_only)},
    {"wire", NULL, "The wire format of values, or the type of the elements of heads; default f32.",
     TOOL_NAME_AT(shape.wire, tool_wires), TOOL_GROUP(rows_only)},
    {.help = "For combine and allreduce"},
    {"scatter", NULL, "Which rank receives which rows, as in banyan-decode; default none.",
     TOOL_NAME_AT(shape.scatter, bny_scatter_names), TOOL_GROUP(combine_only)},
    {"order", NULL, "The order in which partials are merged; default plan.", TOOL_NAME_AT(shape.order, bny_order_names),
     TOOL_GROUP(combine_only)},
    {.help = "For one view, and for all"},
    {"rank", "R", "With --print: of this rank alone.", TOOL_INT_AT(view.rank, 0, PLAN_RANKS_MAX - 1)},
    {"timeline", "FILE", "With --simulate: write a timeline of all ranks for Perfetto.", TOOL_TEXT_AT(view.timeline),
     TOOL_GROUP(simulate_only)},
    {"step-ns", "N", "With --simulate: the time of the executor for each step; default 0.",
     TOOL_INT_AT(view.step_ns, 0, 1000000), TOOL_GROUP(simulate_only)},
    {"scale", "WHAT=FACTOR",
     "With --simulate: scale one input of the machine: the speed of links of one kind (nvlink, xgmi, pcie, packages, "
     "nic, leaf, spine) or of memory, or the latency.",
     TOOL_TEXT_AT(view.scale), TOOL_GROUP(simulate_only)},
    {"keys", "N", "With --cost and --simulate: keys that each rank holds; default 4096.",
     TOOL_INT_AT(keys.per_rank, 1, (int64_t)1 << 40), TOOL_GROUP(keys_given)},
    {"kv-heads", "H", "With --cost and --simulate: KV heads; default 8, or --heads if that is less.",
     TOOL_INT_AT(keys.kv_heads, 1, 1 << 20), TOOL_GROUP(keys_given)},
    {"memory", "BYTES", "With --prove: the limit of memory; default 8G. Plans that need more are rejected.",
     TOOL_BYTES_AT(view.memory_most, (int64_t)1 << 44)},
    {"json", NULL, "Print one JSON object on standard output and nothing else.", TOOL_FLAG_AT(view.json)},
    {NULL}};

/* ---- the command line -------------------------------------------------------------------------------------------- */

static bool check_options(const arguments *a, tool_error *error) {
  bool combine = a->shape.collective == BNY_COMBINE;
  if (a->from != NULL && a->ranks > 0)
    return tool_error_set(error, "--from and --ranks both say which ranks there are");
  if ((a->sizes != NULL || a->cores > 0) && a->ranks == 0)
    return tool_error_set(error, "--%s goes with --ranks", a->sizes != NULL ? "levels" : "cores");
  bool rows = bny_payloads[a->shape.collective].has_rows;
  bool selects = a->shape.collective == BNY_SELECT;
  bool merges = bny_payloads[a->shape.collective].motion == BNY_MOTION_MERGE && !selects;
  if (!merges && a->combine_only != NULL) {
    return tool_error_set(error, "%s has no --%s, which belongs to combine and allreduce",
                          bny_collective_name(a->shape.collective), a->combine_only);
  }
  if (!rows && a->rows_only != NULL) {
    return tool_error_set(error, "%s has no --%s, which belongs to combine, allreduce, select and allgather-heads",
                          bny_collective_name(a->shape.collective), a->rows_only);
  }
  if (a->bytes > 0 && (a->tokens > 0 || a->shape.collective == BNY_BARRIER))
    return tool_error_set(error, rows ? "--bytes and --tokens both say the size" : "a barrier has no --bytes");
  if (a->keys_given != NULL && a->action > ACTION_COST && a->action != ACTION_SIMULATE)
    return tool_error_set(error, "--%s belongs to --cost and --simulate", a->keys_given);
  if (a->keys_given != NULL && !combine) return tool_error_set(error, "--%s belongs to combine", a->keys_given);
  if (a->simulate_only != NULL && a->action != ACTION_SIMULATE)
    return tool_error_set(error, "--%s belongs to --simulate", a->simulate_only);
  if (a->root_given != NULL && a->shape.scatter != BANYAN_SCATTER_ROOT && a->shape.collective != BNY_BROADCAST)
    return tool_error_set(error, "--root belongs to --scatter root and broadcast");
  if (a->distance_given != NULL && a->shape.collective != BNY_SHIFT)
    return tool_error_set(error, "--distance belongs to shift");
  if (a->view.rank >= 0 && a->action != ACTION_PRINT) return tool_error_set(error, "--rank belongs to --print");
  if (a->view.memory_most > 0 && a->action != ACTION_PROVE) return tool_error_set(error, "--memory belongs to --prove");
  if (a->shape.algorithm != NULL && a->action == ACTION_REGRET)
    return tool_error_set(error, "--regret simulates every algorithm: it takes no --algorithm");
  if (selects && (a->shape.wire != BANYAN_F32 || a->shape.value_dim > BNY_SELECT_MOST))
    return tool_error_set(error, "a selection has no --wire, and --head-dim is at most %d", BNY_SELECT_MOST);
  return tool_check_order(a->shape.order, a->shape.wire, error);
}

/* Sets the defaults of arguments that were not set. */
static bool complete_shape(arguments *a, tool_error *error) {
  plan_shape *shape = &a->shape;
  shape->heads = a->heads > 0 ? a->heads : DEFAULT_HEADS;
  shape->tokens = a->tokens > 0 ? a->tokens : 1;
  shape->bytes = a->bytes > 0 ? a->bytes : DEFAULT_BYTES;
  if (bny_payloads[shape->collective].has_rows && a->bytes > 0) *shape = plan_shape_resized(shape, a->bytes);
  if (bny_payloads[shape->collective].has_rows && plan_shape_bytes(shape) > (size_t)1 << 30)
    return tool_error_set(error, "a partial or tensor of %zu bytes is more than 1 GiB", plan_shape_bytes(shape));
  if (a->view.memory_most == 0) a->view.memory_most = (size_t)8 << 30;
  if (a->keys.kv_heads == 0) a->keys.kv_heads = shape->heads < 8 ? shape->heads : 8;
  return plan_shard_bytes(shape, &a->keys) <= 0x1p50 ||
         tool_error_set(error, "keys and values of a rank of more than 1 PiB: give fewer --keys or --kv-heads");
}

static bool check_ranks(const arguments *a, const plan_ranks *ranks, tool_error *error) {
  if (a->view.rank >= ranks->nranks)
    return tool_error_set(error, "--rank %d: there are %d ranks", a->view.rank, ranks->nranks);
  if (a->shape.root >= ranks->nranks)
    return tool_error_set(error, "--root %d: there are %d ranks", a->shape.root, ranks->nranks);
  return true;
}

static bool complete_arguments(void *opaque, int argc, char **argv, tool_error *error) {
  if (optind < argc)
    return tool_error_set(error, "%.60s: no argument is expected here; a topology is named by --from", argv[optind]);
  return check_options(opaque, error) && complete_shape(opaque, error);
}

static const tool_program program = {
    .name = PROGRAM,
    .title = "plans, proofs and costs of collectives on any machine or cluster, without being there",
    .usage = "[VIEW] [--from FILE|DESCRIPTION] [OPTION]...\n"
             "[VIEW] --ranks N [--levels LIST] [OPTION]...",
    .about = "Makes the plans that banyan would make on up to 16,384 ranks, and runs none of them. Ranks are the GPUs "
             "of the topology, or its NUMA nodes if it has none. Costs of links come from the topology if it has them, "
             "otherwise from a table of defaults, and each figure names its source.",
    .failed = "a plan is not proved, or the request has no plan",
    .options = options,
    .complete = complete_arguments};

/* ---- the work ---------------------------------------------------------------------------------------------------- */

static bool load(const arguments *a, plan_ranks *ranks, tool_error *error) {
  if (a->ranks > 0) return plan_ranks_plain(a->ranks, a->cores, a->sizes, ranks, error);
  return a->from != NULL ? plan_ranks_load(a->from, ranks, error) : plan_ranks_machine(ranks, error);
}

static bool run(arguments *a, plan_ranks *ranks, tool_error *error) {
  if (!tool_error_usage(error, load(a, ranks, error) && check_ranks(a, ranks, error))) return false;
  a->view.ranks = ranks;
  a->view.shape = &a->shape;
  a->view.keys = &a->keys;
  a->view.stream = stdout;
  a->view.columns = tool_terminal_columns() > 0 ? tool_terminal_columns() : COLUMNS_DEFAULT;
  bool ok = false;
  switch (a->action) {
  case ACTION_PRINT: ok = plan_view_print(&a->view, error); break;
  case ACTION_SIMULATE: ok = plan_view_simulate(&a->view, error); break;
  case ACTION_REGRET: ok = plan_view_regret(&a->view, error); break;
  case ACTION_PROVE: ok = plan_view_prove(&a->view, error); break;
  default: ok = plan_view_cost(&a->view, error); break;
  }
  return tool_flush(stdout) ? ok : tool_error_stdout(error);
}

int main(int argc, char **argv) {
  arguments a = {
      .shape = {.value_dim = 128, .wire = BANYAN_F32, .distance = 1}, .keys = {.per_rank = 4096}, .view = {.rank = -1}};
  plan_ranks ranks = {.nranks = 0};
  tool_error error = {.text = ""};
  int exit_status;
  if (!tool_options_parse(&program, argc, argv, &a, &exit_status)) return exit_status;
  exit_status = run(&a, &ranks, &error) ? TOOL_EXIT_OK : tool_options_fail(&program, &error);
  plan_ranks_release(&ranks);
  return exit_status;
}
