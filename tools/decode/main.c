/* SPDX-License-Identifier: Apache-2.0
 * banyan-decode: real attention over a KV cache that is sharded over ranks, by several methods, checked and timed. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/decode/device.h"
#include "tools/decode/measure.h"
#include "tools/common/device_ranks.h"
#include "tools/common/launch.h"
#include "tools/common/report.h"

#define PROGRAM "banyan-decode"

enum { METHODS_MAX = 3, EXIT_USAGE = 2 };

typedef struct arguments {
  tool_world_options world;
  const char *input;
  decode_shape shape;
  banyan_dtype dtype; /* 0: f32 */
  decode_settings settings;
  const decode_method *methods[METHODS_MAX];
  int method_count;
  int32_t repeat;
  uint64_t seed;
  bool json;
  bool shaped; /* an option of the random problem was given */
  bool chosen; /* a method, algorithm, scatter or order was */
  const char *device; /* NULL: ranks are on the host */
} arguments;

static const char usage[] =
    "usage: " PROGRAM " [--ranks N] [--input FILE.safetensors |\n"
    "                      --batch B --tokens T --heads H --kv-heads G --head-dim D]\n"
    "                     [--dtype f32|f16|bf16] [--wire f32|bf16|f16] [--method tree|ring|allreduce3|all]\n"
    "                     [--algorithm NAME] [--scatter none|root|heads|tokens] [--order plan|canonical]\n"
    "                     [--repeat R] [--json]\n"
    "       " PROGRAM " --device cuda[:N] [--ranks N] [--batch B --tokens T --heads H --kv-heads G --head-dim D]\n"
    "                     [--dtype bf16|f16] [--wire f32|bf16|f16] [--repeat R] [--json]\n";

static const char help[] =
    "\n"
    "Decodes one token per sequence against a KV cache that is sharded over ranks, checks the result against\n"
    "double precision, and times it. Runs under mpirun, from RANK and WORLD_SIZE, or by itself with --ranks.\n"
    "\n"
    "  --ranks N           start N local processes; default 1 where no launcher says otherwise\n"
    "  --input FILE        queries, keys and values of a model: tensors layers.L.q, layers.L.k, layers.L.v\n"
    "  --batch B           without --input: B sequences of random values; default 1\n"
    "  --tokens T          keys of each sequence; default 4096\n"
    "  --heads H           query heads; default 32\n"
    "  --kv-heads G        KV heads, a divisor of H; default H / 4 if whole, else H\n"
    "  --head-dim D        default 128\n"
    "  --ragged            sequences of different lengths, T at most\n"
    "  --seed S            of the random values; default 1\n"
    "  --dtype TYPE        f32, f16 or bf16: how query, keys and values are kept; default f32\n"
    "  --wire TYPE         f32, bf16 or f16: values on their way between ranks; default f32\n"
    "  --method NAME       tree, ring, allreduce3 or all; default all\n"
    "  --algorithm NAME    of the combines; default by predicted cost\n"
    "  --scatter WHERE     none, root, heads or tokens: which rank gets which rows; default none\n"
    "  --order ORDER       plan or canonical: in which order partials are merged; default plan\n"
    "  --device cuda[:N]   on a GPU, in graphs; ranks are threads, all on that device, and share the keys. Attention\n"
    "                      alone, with a combine after it and with one in it, beside a copy. Keys and values are bf16\n"
    "                      or f16; --head-dim 576 is MLA, whose values are the first 512 columns of the keys\n"
    "  --repeat R          timed runs per layer; default 20\n"
    "  --timeout SECONDS   of each call that waits for other ranks; default 30\n"
    "  --json              one JSON object on stdout and nothing else\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 verified, 1 not verified or failed, 2 wrong usage.\n";

enum option_code {
  OPT_RANKS = 256,
  OPT_INPUT,
  OPT_BATCH,
  OPT_TOKENS,
  OPT_HEADS,
  OPT_KV_HEADS,
  OPT_HEAD_DIM,
  OPT_RAGGED,
  OPT_SEED,
  OPT_DTYPE,
  OPT_WIRE,
  OPT_METHOD,
  OPT_ALGORITHM,
  OPT_SCATTER,
  OPT_ORDER,
  OPT_DEVICE,
  OPT_REPEAT,
  OPT_TIMEOUT,
  OPT_JSON,
  OPT_HELP,
  OPT_VERSION
};

static const struct option option_table[] = {{"ranks", required_argument, NULL, OPT_RANKS},
                                             {"input", required_argument, NULL, OPT_INPUT},
                                             {"batch", required_argument, NULL, OPT_BATCH},
                                             {"tokens", required_argument, NULL, OPT_TOKENS},
                                             {"heads", required_argument, NULL, OPT_HEADS},
                                             {"kv-heads", required_argument, NULL, OPT_KV_HEADS},
                                             {"head-dim", required_argument, NULL, OPT_HEAD_DIM},
                                             {"ragged", no_argument, NULL, OPT_RAGGED},
                                             {"seed", required_argument, NULL, OPT_SEED},
                                             {"dtype", required_argument, NULL, OPT_DTYPE},
                                             {"wire", required_argument, NULL, OPT_WIRE},
                                             {"method", required_argument, NULL, OPT_METHOD},
                                             {"algorithm", required_argument, NULL, OPT_ALGORITHM},
                                             {"scatter", required_argument, NULL, OPT_SCATTER},
                                             {"order", required_argument, NULL, OPT_ORDER},
                                             {"device", required_argument, NULL, OPT_DEVICE},
                                             {"repeat", required_argument, NULL, OPT_REPEAT},
                                             {"timeout", required_argument, NULL, OPT_TIMEOUT},
                                             {"json", no_argument, NULL, OPT_JSON},
                                             {"help", no_argument, NULL, OPT_HELP},
                                             {"version", no_argument, NULL, OPT_VERSION},
                                             {NULL, 0, NULL, 0}};

static bool parse_method(arguments *a, tool_error *error) {
  static const decode_method *const all[] = {&decode_method_tree, &decode_method_ring, &decode_method_allreduce3};
  a->method_count = 0;
  for (int i = 0; i < METHODS_MAX; i++) {
    if (strcmp(optarg, "all") == 0 || strcmp(optarg, all[i]->name) == 0) {
      a->methods[a->method_count++] = all[i];
    }
  }
  return a->method_count > 0 || tool_error_set(error, "--method %.60s: not one of tree, ring, allreduce3, all", optarg);
}

static bool parse_shape_option(int code, arguments *a, tool_error *error) {
  a->shaped = true;
  switch (code) {
  case OPT_BATCH: return tool_option_int("batch", optarg, 1, 1 << 20, &a->shape.batch, error);
  case OPT_TOKENS: return tool_option_int("tokens", optarg, 1, 1 << 30, &a->shape.tokens, error);
  case OPT_HEADS: return tool_option_int("heads", optarg, 1, 1 << 16, &a->shape.heads, error);
  case OPT_KV_HEADS: return tool_option_int("kv-heads", optarg, 1, 1 << 16, &a->shape.kv_heads, error);
  case OPT_HEAD_DIM: return tool_option_int("head-dim", optarg, 1, 1 << 14, &a->shape.head_dim, error);
  default: a->shape.ragged = true; return true;
  }
}

static bool parse_option(int code, arguments *a, tool_error *error) {
  int64_t number;
  int32_t seconds = 0;
  a->chosen = a->chosen || code == OPT_METHOD || code == OPT_ALGORITHM || code == OPT_SCATTER || code == OPT_ORDER;
  switch (code) {
  case OPT_RANKS: return tool_option_int("ranks", optarg, 1, 4096, &a->world.ranks, error);
  case OPT_INPUT: a->input = optarg; return true;
  case OPT_SEED:
    if (!tool_parse_int(optarg, 0, INT64_MAX, &number)) {
      return tool_error_set(error, "--seed %.60s: not a whole number", optarg);
    }
    a->seed = (uint64_t)number;
    return true;
  case OPT_DTYPE: return tool_option_dtype("dtype", optarg, &a->dtype, error);
  case OPT_WIRE: return tool_option_dtype("wire", optarg, &a->settings.wire, error);
  case OPT_METHOD: return parse_method(a, error);
  case OPT_ALGORITHM: a->settings.algorithm = optarg; return true;
  case OPT_SCATTER: return tool_option_scatter(optarg, &a->settings.scatter, error);
  case OPT_ORDER: return tool_option_order(optarg, &a->settings.order, error);
  case OPT_DEVICE: a->device = optarg; return tool_option_device(optarg, &(int32_t){0}, error);
  case OPT_REPEAT: return tool_option_int("repeat", optarg, 1, 1000000, &a->repeat, error);
  case OPT_TIMEOUT:
    if (!tool_option_int("timeout", optarg, 1, 1000000, &seconds, error)) {
      return false;
    }
    a->world.timeout_ns = (int64_t)seconds * 1000000000;
    return true;
  case OPT_JSON: a->json = true; return true;
  default: return parse_shape_option(code, a, error);
  }
}

static bool complete_for_device(arguments *a, tool_error *error) {
  a->dtype = a->dtype == 0 ? BANYAN_BF16 : a->dtype;
  if (!decode_device_built()) {
    return tool_error_set(error, "--device: this program was built without CUDA");
  }
  if (a->world.ranks > DEVICE_RANKS_MAX) {
    return tool_error_set(error, "--device: %d ranks at most", DEVICE_RANKS_MAX);
  }
  if (bny_launch_under_mpi() || bny_launch_env_present()) {
    return tool_error_set(error, "--device: ranks are threads of this program; no launcher");
  }
  if (a->input != NULL || a->shape.ragged || a->chosen || a->dtype == BANYAN_F32) {
    return tool_error_set(error, "--device takes none of --input, --ragged, --method, --algorithm, --scatter and "
                                 "--order, and --dtype is bf16 or f16");
  }
  return true;
}

static bool complete_arguments(arguments *a, tool_error *error) {
  if (a->input != NULL && a->shaped) {
    return tool_error_set(error, "--input says the shape: --batch, --tokens, --heads, --kv-heads, --head-dim and "
                                 "--ragged are for random values");
  }
  if (a->shape.kv_heads == 0) {
    a->shape.kv_heads = a->shape.heads % 4 == 0 ? a->shape.heads / 4 : a->shape.heads;
  }
  if (a->shape.heads % a->shape.kv_heads != 0) {
    return tool_error_set(error, "--heads %d is not a multiple of --kv-heads %d", a->shape.heads, a->shape.kv_heads);
  }
  if ((int64_t)a->shape.batch * a->shape.heads > 1 << 24) {
    return tool_error_set(error, "--batch %d with --heads %d: more than 16 million rows", a->shape.batch,
                          a->shape.heads);
  }
  return a->device == NULL || complete_for_device(a, error);
}

/* Returns true to go on, or false with *exit_status set. One of the ranks talks. */
static bool parse_arguments(int argc, char **argv, arguments *a, int *exit_status) {
  bool speaks = tool_world_speaks();
  tool_error error = {.text = ""};
  opterr = speaks;
  int code;
  bool ok = true;
  while (ok && (code = getopt_long(argc, argv, "h", option_table, NULL)) != -1) {
    if (code == OPT_HELP || code == 'h' || code == OPT_VERSION) {
      if (speaks && code == OPT_VERSION) {
        printf(PROGRAM " %s\n", banyan_version());
      } else if (speaks) {
        printf("%s%s", usage, help);
      }
      *exit_status = fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
      return false;
    }
    ok = code != '?' && parse_option(code, a, &error);
  }
  if (ok && optind < argc) {
    ok = tool_error_set(&error, "%.60s: no argument is expected here", argv[optind]);
  }
  ok = ok && complete_arguments(a, &error);
  if (!ok && speaks) {
    if (error.text[0] != '\0') {
      fprintf(stderr, PROGRAM ": %s\n", error.text);
    }
    fputs(usage, stderr);
  }
  *exit_status = EXIT_USAGE;
  return ok;
}

static bool work(const arguments *a, const tool_world *world, decode_problem *problem, bool *verified,
                 tool_error *error) {
  bool ok = a->input != NULL ? decode_problem_open(a->input, a->dtype, problem, error)
                             : decode_problem_make(&a->shape, a->dtype, a->seed, problem, error);
  if (!tool_world_agree(world, ok, error)) {
    return false;
  }
  decode_result results[METHODS_MAX];
  decode_report report = {.world = world,
                          .problem = problem,
                          .settings = &a->settings,
                          .input = a->input,
                          .repeat = a->repeat,
                          .results = results,
                          .count = a->method_count};
  if (world->rank == 0) {
    report_begin(&report, a->json ? stderr : stdout);
  }
  if (!decode_measure(world, problem, &a->settings, a->methods, a->method_count, a->repeat, results, error)) {
    return false;
  }
  *verified = report_verified(&report);
  if (world->rank == 0) {
    report_results(&report, a->json ? stderr : stdout);
    ok = (!a->json || report_json(&report, stdout)) && fflush(stdout) == 0;
  }
  return ok || tool_error_set(error, "cannot write to standard output");
}

static int work_on_device(const arguments *a) {
  decode_device_settings settings = {.device = a->device,
                                     .nranks = a->world.ranks > 0 ? a->world.ranks : 1,
                                     .timeout_ns = a->world.timeout_ns,
                                     .shape = a->shape,
                                     .dtype = a->dtype,
                                     .wire = a->settings.wire,
                                     .repeat = a->repeat,
                                     .seed = a->seed};
  tool_error error = {.text = ""};
  bool verified = false;
  if (!decode_device_work(&settings, a->json, &verified, &error)) {
    fprintf(stderr, PROGRAM ": %s\n", error.text);
    return EXIT_FAILURE;
  }
  return verified ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv) {
  arguments a = {.world = {.program = PROGRAM},
                 .shape = {.batch = 1, .tokens = 4096, .heads = 32, .head_dim = 128},
                 .settings = {.wire = BANYAN_F32},
                 .methods = {&decode_method_tree, &decode_method_ring, &decode_method_allreduce3},
                 .method_count = METHODS_MAX,
                 .repeat = 20,
                 .seed = 1};
  int exit_status;
  if (!parse_arguments(argc, argv, &a, &exit_status)) {
    return exit_status;
  }
  if (a.device != NULL) {
    return work_on_device(&a);
  }
  if (tool_world_launch(&a.world, argv, &exit_status)) {
    return exit_status;
  }
  tool_world world;
  tool_error error = {.text = ""};
  decode_problem problem = {.layers = 0};
  bool verified = false;
  bool ok = tool_world_join(&a.world, &world, &error) && work(&a, &world, &problem, &verified, &error);
  if (!ok) {
    tool_world_complain(&world, &error);
  }
  decode_problem_close(&problem);
  tool_world_leave(&world, !ok && !error.everywhere);
  return ok && verified ? EXIT_SUCCESS : EXIT_FAILURE;
}
