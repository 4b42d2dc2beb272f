/* SPDX-License-Identifier: Apache-2.0
 * banyan-decode: runs attention over a KV cache that is sharded over ranks, by several methods, and checks and times
 * them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common/device_ranks.h"
#include "tools/common/launch.h"
#include "tools/common/options.h"
#include "tools/decode/decode.h"

#define PROGRAM "banyan-decode"

enum { METHODS_MAX = 5, OWN_ORDER = 2 | 4 }; /* OWN_ORDER: bits of ring and allreduce3 */

typedef struct arguments {
  tool_world_options world;
  const char *input;
  decode_shape shape;
  banyan_dtype dtype; /* 0: f32 */
  decode_settings settings;
  int wanted; /* bit set of methods */
  const decode_method *methods[METHODS_MAX];
  int method_count;
  int32_t repeat;
  uint64_t seed;
  bool json;
  const char *epsilon;
  const char *shaped, *chosen; /* first option of each group on the command line; NULL: none */
  const char *device;          /* NULL: ranks run on CPUs */
  bool kernel_only;
  int32_t threads; /* threads of --kernel-only; 0: one for each core */
  int32_t room;    /* keys that the cache of --kernel-only has room for; 0: those of the sequence */
} arguments;

static const decode_method *const all_methods[METHODS_MAX] = {
    &decode_method_tree, &decode_method_ring, &decode_method_allreduce3, &decode_method_fused, &decode_method_overlap};
static const bny_name method_names[] = {{"tree", 1},  {"ring", 2},     {"allreduce3", 4}, {"all", 7},
                                        {"fused", 8}, {"overlap", 24}, {NULL, 0}};

static const tool_option options[] = {
    {"ranks", "N",
     "Start N local processes, which are divided over the NUMA nodes if there are at least as many ranks as nodes. "
     "Under a launcher, the expected number of ranks.",
     TOOL_INT_AT(world.ranks, 1, 4096)},
    {"input", "FILE",
     "Queries, keys and values of a model from a safetensors file: see INPUT in the man page. Without it "
     "they are one layer of random values.",
     TOOL_TEXT_AT(input)},
    {"dtype", NULL,
     "The type in which queries, keys and values are stored; default f32. More precise input is rounded.",
     TOOL_NAME_AT(dtype, tool_dtypes)},
    {"wire", NULL, "The wire format of values; default f32. Statistics always travel as f32.",
     TOOL_NAME_AT(settings.combine.wire, tool_wires)},
    {"repeat", "R", "Timed runs per layer, after three untimed ones; default 20.", TOOL_INT_AT(repeat, 1, 1000000)},
    {"timeout", "SECONDS", "The deadline of each call that waits for other ranks; default 30.",
     TOOL_SECONDS_AT(world.timeout_ns)},
    {"json", NULL, "Print one JSON object on standard output and nothing else. Text for people goes to standard error.",
     TOOL_FLAG_AT(json)},
    {.help = "Random values"},
    {"batch", "B", "Sequences; default 1.", TOOL_INT_AT(shape.batch, 1, 1 << 20), TOOL_GROUP(shaped)},
    {"tokens", "T", "Keys of each sequence; default 4096.", TOOL_INT_AT(shape.tokens, 1, 1 << 30), TOOL_GROUP(shaped)},
    {"heads", "H", "Query heads; default 32.", TOOL_INT_AT(shape.heads, 1, 1 << 16), TOOL_GROUP(shaped)},
    {"kv-heads", "G", "KV heads, a divisor of H; default H / 4 if that is an integer, else H.",
     TOOL_INT_AT(shape.kv_heads, 1, 1 << 16), TOOL_GROUP(shaped)},
    {"head-dim", "D", "Elements of a head; default 128.", TOOL_INT_AT(shape.head_dim, 1, 1 << 14), TOOL_GROUP(shaped)},
    {"ragged", NULL, "Use sequences of different lengths: the first has T tokens, and the others fewer.",
     TOOL_FLAG_AT(shape.ragged), TOOL_GROUP(shaped)},
    {"seed", "S", "The seed of the random values; default 1.", TOOL_INT_AT(seed, 0, INT64_MAX)},
    {.help = "The method"},
    {"method", NULL, "See METHODS in the man page; default all.", TOOL_NAME_AT(wanted, method_names),
     TOOL_GROUP(chosen)},
    {"algorithm", "NAME",
     "The algorithm of the combines, such as oneshot, twoshot, ring or recursive_doubling. The default is the one with "
     "the lowest predicted cost; the output gives the reason.",
     TOOL_TEXT_AT(settings.combine.algorithm), TOOL_GROUP(chosen)},
    {"scatter", NULL,
     "The rows of the result that each rank receives: all; all on rank 0 only; a range of heads; or a range of "
     "sequences. Default none.",
     TOOL_NAME_AT(settings.combine.scatter, bny_scatter_names), TOOL_GROUP(chosen)},
    {"order", NULL,
     "The order in which partials are merged: plan, as suits the algorithm; canonical, with the same bits for every "
     "algorithm; exact, for --method tree, fused and overlap, where ranks own whole blocks of 256 keys, and fused "
     "gives "
     "the same bits for any number of ranks. Default plan.",
     TOOL_NAME_AT(settings.combine.order, bny_order_names), TOOL_GROUP(chosen)},
    {"epsilon", "E",
     "For the methods fused and overlap: do not read pages of 16 keys that together cannot hold more than E of the "
     "softmax mass. The output has the share of pages read and the certified error.",
     TOOL_TEXT_AT(epsilon), TOOL_GROUP(chosen)},
    {.help = "Local attention"},
    {"kernel-only", NULL,
     "Measure attention of one rank without a combine, next to a read loop over the same memory with as many threads: "
     "see OUTPUT in the man page. Keys and values may also be e4m3, e5m2 and int8, with queries of bf16 and scales "
     "of 1. With --head-dim 576 (MLA) the values are the first 512 columns of the keys.",
     TOOL_FLAG_AT(kernel_only)},
    {"queries", "N",
     "Each sequence has N new tokens, its last ones, as in a prompt: each of them attends to the keys up to its own. "
     "Default one token, which attends to all.",
     TOOL_INT_AT(shape.queries, 1, 1 << 20)},
    {"threads", "N", "The threads of --kernel-only; default one for each core of this process.",
     TOOL_INT_AT(threads, 1, 1024)},
    {"spread", "P",
     "Spread the keys of the only sequence, as pages of one key in random order, over a cache for P keys.",
     TOOL_INT_AT(room, 1, 1 << 30)},
    {.help = "Devices"},
    {"device", "cuda[:N]",
     "On a GPU, in graphs. Ranks are threads on that device and divide the keys. Attention is measured alone, with a "
     "combine after it, and with one whose rows it sends itself. Keys and values are bf16 (the default) or "
     "f16. With --head-dim 576 (MLA) the values are the first 512 columns of the keys.",
     TOOL_TEXT_AT(device), .check = tool_check_device},
    {NULL}};

static bool complete_for_device(arguments *a, tool_error *error) {
  a->dtype = a->dtype == 0 ? BANYAN_BF16 : a->dtype;
  if (a->world.ranks > DEVICE_RANKS_MAX) return tool_error_set(error, "--device: %d ranks at most", DEVICE_RANKS_MAX);
  if (bny_launch_under_mpi() || bny_launch_env_present())
    return tool_error_set(error, "--device: ranks are threads of this program; no launcher");
  if (a->input != NULL || a->shape.ragged || a->chosen != NULL || a->dtype == BANYAN_F32) {
    return tool_error_set(error, "--device takes none of --input, --ragged, --method, --algorithm, --scatter and "
                                 "--order, and --dtype is bf16 or f16");
  }
  return true;
}

static bool complete_for_kernel(const arguments *a, tool_error *error) {
  if (a->input != NULL || a->chosen != NULL || a->device != NULL || a->world.ranks > 1) {
    return tool_error_set(error, "--kernel-only is one rank on the host, with random values: it takes none of --input, "
                                 "--ranks, --method, --algorithm, --scatter, --order, --epsilon and --device");
  }
  if (a->shape.queries > 0 && (a->room > 0 || a->shape.ragged || a->shape.queries > a->shape.tokens))
    return tool_error_set(error, "--queries takes neither --ragged nor --spread, and N is at most --tokens %d",
                          a->shape.tokens);
  if (a->room > 0 && (a->shape.batch > 1 || a->room < a->shape.tokens))
    return tool_error_set(error, "--spread is for one sequence, and P is at least --tokens %d", a->shape.tokens);
  return true;
}

static bool complete_epsilon(arguments *a, tool_error *error) {
  char *end = NULL;
  double epsilon = a->epsilon != NULL ? strtod(a->epsilon, &end) : 0;
  if (a->epsilon == NULL) return true;
  if (end == a->epsilon || *end != '\0' || !(epsilon > 0 && epsilon <= 1))
    return tool_error_set(error, "--epsilon: %.60s is not a number above 0 and up to 1", a->epsilon);
  if ((a->wanted & 7) != 0 || a->settings.combine.order == BANYAN_ORDER_EXACT)
    return tool_error_set(error, "--epsilon goes with --method fused or overlap, and not with --order exact");
  a->settings.epsilon = (float)epsilon;
  return true;
}

static bool complete_arguments(void *opaque, int argc, char **argv, tool_error *error) {
  arguments *a = opaque;
  if (optind < argc) return tool_error_set(error, "%.60s: no argument is expected here", argv[optind]);
  if (a->input != NULL && a->shaped != NULL)
    return tool_error_set(error, "--input says the shape: --%s is for random values", a->shaped);
  if (a->settings.combine.order == BANYAN_ORDER_EXACT && (a->wanted & OWN_ORDER) != 0)
    return tool_error_set(error,
                          "--order exact: ring and allreduce3 merge in an order of their own; name --method tree, "
                          "fused or overlap");
  if (!complete_epsilon(a, error) || !tool_check_order(a->settings.combine.order, a->settings.combine.wire, error))
    return false;
  for (int i = 0; i < METHODS_MAX; i++)
    if ((a->wanted >> i & 1) != 0) a->methods[a->method_count++] = all_methods[i];
  if (a->shape.kv_heads == 0) a->shape.kv_heads = a->shape.heads % 4 == 0 ? a->shape.heads / 4 : a->shape.heads;
  if (a->shape.heads % a->shape.kv_heads != 0)
    return tool_error_set(error, "--heads %d is not a multiple of --kv-heads %d", a->shape.heads, a->shape.kv_heads);
  if ((int64_t)a->shape.batch * a->shape.heads * (a->shape.queries > 0 ? a->shape.queries : 1) > 1 << 24) {
    return tool_error_set(error, "--batch %d with --heads %d: more than 16 million rows", a->shape.batch,
                          a->shape.heads);
  }
  if (a->threads > 0 && !a->kernel_only)
    return tool_error_set(error,
                          "--threads goes with --kernel-only; fused and overlap take BANYAN_THREADS, and the other "
                          "methods attend by one thread in each rank");
  if ((a->room > 0 || a->shape.queries > 0) && !a->kernel_only)
    return tool_error_set(error, "--%s goes with --kernel-only", a->room > 0 ? "spread" : "queries");
  if (a->kernel_only) return complete_for_kernel(a, error);
  if (a->dtype != 0 && tool_dtype_bytes(a->dtype) == 1)
    return tool_error_set(error, "--dtype %s goes with --kernel-only", tool_dtype_name(a->dtype));
  if (a->shape.head_dim == DECODE_LATENT_DIM && a->device == NULL)
    return tool_error_set(error, "--head-dim %d (MLA) goes with --kernel-only and --device", a->shape.head_dim);
  return a->device == NULL || complete_for_device(a, error);
}

static const tool_program program = {
    .name = PROGRAM,
    .title = "attention over a sharded KV cache, checked and timed",
    .usage = "[--ranks N] [--input FILE] [OPTION]...\n"
             "--kernel-only [OPTION]...\n"
             "--device cuda[:N] [OPTION]...",
    .about = "Decodes one token per sequence: its query attends to a cache of keys and values whose tokens are divided "
             "among the ranks. Each rank holds a contiguous range of every sequence. Several methods are timed, and "
             "each result is compared with attention in double precision.\n\n" TOOL_WORLD_ABOUT,
    .failed = "a result was not verified, or the work failed",
    .ranks = true,
    .options = options,
    .complete = complete_arguments};

static bool decode(const arguments *a, const tool_world *world, decode_problem *problem, bool *verified,
                   tool_error *error) {
  bool ok = a->input == NULL || tool_error_usage(error, decode_problem_open(a->input, a->dtype, problem, error));
  if (a->input == NULL) decode_problem_make(&a->shape, a->dtype, a->seed, problem);
  decode_settings settings = a->settings;
  settings.combine.tokens = problem->batch;
  settings.combine.heads = problem->heads;
  settings.combine.value_dim = problem->head_dim;
  problem->split_keys = settings.combine.order == BANYAN_ORDER_EXACT ? EXACT_KEYS : 0;
  if (!tool_world_agree(world, ok, error)) return false;
  decode_result results[METHODS_MAX];
  decode_report report = {.world = world,
                          .problem = problem,
                          .settings = &settings,
                          .input = a->input,
                          .repeat = a->repeat,
                          .results = results,
                          .count = a->method_count};
  if (world->rank == 0) report_begin(&report, a->json ? stderr : stdout);
  if (!decode_measure(world, problem, &settings, a->methods, a->method_count, a->repeat, results, error)) return false;
  *verified = report_verified(&report);
  if (world->rank == 0) {
    report_results(&report, a->json ? stderr : stdout);
    return a->json ? report_json(&report, stdout, error) : tool_flush(stdout) || tool_error_stdout(error);
  }
  return true;
}

static bool work(void *opaque, const tool_world *world, bool *verified, tool_error *error) {
  decode_problem problem = {.layers = 0};
  bool ok = decode(opaque, world, &problem, verified, error);
  decode_problem_close(&problem);
  return ok;
}

/* Runs attention of one rank, or on a device, over random values. */
static int work_alone(const arguments *a) {
  decode_device_settings on_device = {.device = a->device,
                                      .nranks = a->world.ranks > 0 ? a->world.ranks : 1,
                                      .timeout_ns = a->world.timeout_ns,
                                      .shape = a->shape,
                                      .dtype = a->dtype,
                                      .wire = a->settings.combine.wire,
                                      .repeat = a->repeat,
                                      .seed = a->seed};
  decode_kernel_settings on_host = {
      .threads = a->threads, .repeat = a->repeat, .timeout_ns = a->world.timeout_ns, .room = a->room};
  decode_problem problem = {.layers = 0};
  tool_error error = {.text = ""};
  bool verified = false;
  if (a->device == NULL) decode_problem_make(&a->shape, a->dtype, a->seed, &problem);
  bool ok = a->device != NULL ? decode_device_work(&on_device, a->json, &verified, &error)
                              : decode_kernel_work(&on_host, &problem, a->json, &verified, &error);
  decode_problem_close(&problem);
  return !ok ? tool_options_fail(&program, &error) : verified ? TOOL_EXIT_OK : TOOL_EXIT_FAILED;
}

int main(int argc, char **argv) {
  arguments a = {.world = {.program = PROGRAM, .on_nodes = true},
                 .shape = {.batch = 1, .tokens = 4096, .heads = 32, .head_dim = 128},
                 .settings.combine = {.size = sizeof(banyan_combine_desc), .wire = BANYAN_F32},
                 .wanted = 7,
                 .repeat = 20,
                 .seed = 1};
  int exit_status;
  if (!tool_options_parse(&program, argc, argv, &a, &exit_status)) return exit_status;
  if (a.device != NULL || a.kernel_only) return work_alone(&a);
  return tool_world_run(&a.world, argv, work, &a);
}
