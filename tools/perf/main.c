/* SPDX-License-Identifier: Apache-2.0
 * banyan-perf: latency of the collectives by size, with checked results; combine also against three forms of MPI. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/device_ranks.h"
#include "tools/common/launch.h"
#include "tools/perf/device.h"
#include "tools/perf/measure.h"
#include "tools/perf/report.h"

#define PROGRAM "banyan-perf"

enum { EXIT_USAGE = 2, SIZES_MAX = 64, DEFAULT_SIZES = 15, DEFAULT_HEADS = 32, DEFAULT_DEVICE_RANKS = 8 };

typedef struct arguments {
  tool_world_options world;
  perf_case perf; /* world, bytes, tokens and heads are set for each row */
  perf_protocol protocol;
  int32_t batch, heads; /* 0: not given */
  size_t sizes[SIZES_MAX];
  int size_count;
  const char *device; /* NULL: ranks are on the host */
  bool json;
  bool between;
  bool combine_only; /* an option that only combine has was given */
} arguments;

static const char usage[] =
    "usage: " PROGRAM " combine [--ranks N] [--batch B --heads H] [--head-dim D]\n"
    "                   [--scatter none|root|heads|tokens] [--order plan|canonical] [--algorithm NAME]\n"
    "                   [--wire f32|bf16|f16] [--sizes LIST] [--against mpi] [--device cuda [--between]] [--in-a-row]\n"
    "                   [--json]\n"
    "       " PROGRAM " allgather|shift|broadcast|barrier [--ranks N] [--sizes LIST] [--in-a-row] [--json]\n";

static const char help[] =
    "\n"
    "Measures a collective by size: new data in every iteration, the slowest rank counts, results are checked.\n"
    "Runs under mpirun, from RANK and WORLD_SIZE, or by itself with --ranks.\n"
    "\n"
    "  --ranks N           start N local processes\n"
    "  --sizes LIST        bytes, separated by commas, with K or M (1024 based). combine: of a partial, whole rows of\n"
    "                      (head_dim + 2) * 4 bytes; others: of each rank's message\n"
    "  --batch B, --heads H  combine: one size instead, B tokens of H heads\n"
    "  --head-dim D        combine: values of a row; default 128\n"
    "  --scatter WHERE     combine: none, root, heads or tokens; default none\n"
    "  --order ORDER       combine: plan or canonical; default plan\n"
    "  --algorithm NAME    combine: default by predicted cost\n"
    "  --wire TYPE         combine: f32, bf16 or f16; default f32\n"
    "  --against mpi       combine, under mpirun: also allgather and merge, custom operation, three allreduces of MPI\n"
    "  --device cuda[:N]   combine: on a GPU, in graphs; ranks are threads, 8 unless --ranks says, all on that device;\n"
    "                      beside it a copy of the partial, and three reductions in place of the combine\n"
    "  --between           with --device: between runs a kernel evicts caches of instructions and data, as a model's\n"
    "                      kernels do; its own time is taken off\n"
    "  --iterations N      of each size; default by size, 20 to 1000\n"
    "  --in-a-row          no barrier before each call, and half of the time of two in a row\n"
    "  --warmup N          iterations before them; default 20\n"
    "  --no-check          do not check results\n"
    "  --pin               each rank to one CPU\n"
    "  --timeout SECONDS   of each call that waits for other ranks; default 30\n"
    "  --json              {\"rows\": [...]} on stdout and nothing else\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 success, 1 wrong results or failed, 2 wrong usage.\n";

enum option_code {
  OPT_RANKS = 256,
  OPT_SIZES,
  OPT_BATCH,
  OPT_HEADS,
  OPT_HEAD_DIM,
  OPT_SCATTER,
  OPT_ORDER,
  OPT_ALGORITHM,
  OPT_WIRE,
  OPT_AGAINST,
  OPT_DEVICE,
  OPT_BETWEEN,
  OPT_ITERATIONS,
  OPT_IN_A_ROW,
  OPT_WARMUP,
  OPT_NO_CHECK,
  OPT_PIN,
  OPT_TIMEOUT,
  OPT_JSON,
  OPT_HELP,
  OPT_VERSION
};

static const struct option option_table[] = {{"ranks", required_argument, NULL, OPT_RANKS},
                                             {"sizes", required_argument, NULL, OPT_SIZES},
                                             {"batch", required_argument, NULL, OPT_BATCH},
                                             {"heads", required_argument, NULL, OPT_HEADS},
                                             {"head-dim", required_argument, NULL, OPT_HEAD_DIM},
                                             {"scatter", required_argument, NULL, OPT_SCATTER},
                                             {"order", required_argument, NULL, OPT_ORDER},
                                             {"algorithm", required_argument, NULL, OPT_ALGORITHM},
                                             {"wire", required_argument, NULL, OPT_WIRE},
                                             {"against", required_argument, NULL, OPT_AGAINST},
                                             {"device", required_argument, NULL, OPT_DEVICE},
                                             {"between", no_argument, NULL, OPT_BETWEEN},
                                             {"iterations", required_argument, NULL, OPT_ITERATIONS},
                                             {"in-a-row", no_argument, NULL, OPT_IN_A_ROW},
                                             {"warmup", required_argument, NULL, OPT_WARMUP},
                                             {"no-check", no_argument, NULL, OPT_NO_CHECK},
                                             {"pin", no_argument, NULL, OPT_PIN},
                                             {"timeout", required_argument, NULL, OPT_TIMEOUT},
                                             {"json", no_argument, NULL, OPT_JSON},
                                             {"help", no_argument, NULL, OPT_HELP},
                                             {"version", no_argument, NULL, OPT_VERSION},
                                             {NULL, 0, NULL, 0}};

static bool parse_sizes(arguments *a, tool_error *error) {
  char *copy = strdup(optarg), *rest = copy, *word;
  bool ok = copy != NULL || tool_error_set(error, "out of memory");
  a->size_count = 0;
  while (ok && (word = strsep(&rest, ",")) != NULL) {
    if (a->size_count == SIZES_MAX) {
      ok = tool_error_set(error, "--sizes: more than %d sizes", SIZES_MAX);
    } else if (!tool_parse_bytes(word, &a->sizes[a->size_count]) || a->sizes[a->size_count] < 1 ||
               a->sizes[a->size_count] > (size_t)1 << 30) {
      ok = tool_error_set(error, "--sizes: \"%.40s\" is not a size from 1 to 1024M", word);
    } else {
      a->size_count++;
    }
  }
  free(copy);
  return ok;
}

static bool parse_combine_option(int code, arguments *a, tool_error *error) {
  perf_case *perf = &a->perf;
  a->combine_only = true;
  switch (code) {
  case OPT_BATCH: return tool_option_int("batch", optarg, 1, 1 << 20, &a->batch, error);
  case OPT_HEADS: return tool_option_int("heads", optarg, 1, 1 << 20, &a->heads, error);
  case OPT_HEAD_DIM: return tool_option_int("head-dim", optarg, 1, 1 << 14, &perf->head_dim, error);
  case OPT_SCATTER: return tool_option_scatter(optarg, &perf->scatter, error);
  case OPT_ORDER: return tool_option_order(optarg, &perf->order, error);
  case OPT_ALGORITHM: perf->algorithm = optarg; return true;
  case OPT_WIRE: return tool_option_dtype("wire", optarg, &perf->wire, error);
  case OPT_BETWEEN: a->between = true; return true;
  case OPT_DEVICE: a->device = optarg; return tool_option_device(optarg, &(int32_t){0}, error);
  default:
    a->protocol.against_mpi = true;
    return strcmp(optarg, "mpi") == 0 || tool_error_set(error, "--against %.60s: not mpi", optarg);
  }
}

static bool parse_option(int code, arguments *a, tool_error *error) {
  int32_t seconds = 0;
  switch (code) {
  case OPT_RANKS: return tool_option_int("ranks", optarg, 1, 4096, &a->world.ranks, error);
  case OPT_SIZES: return parse_sizes(a, error);
  case OPT_ITERATIONS: return tool_option_int("iterations", optarg, 1, 10000000, &a->protocol.iterations, error);
  case OPT_WARMUP: return tool_option_int("warmup", optarg, 0, 1000000, &a->protocol.warmup, error);
  case OPT_IN_A_ROW: a->protocol.in_a_row = true; return true;
  case OPT_NO_CHECK: a->protocol.check = false; return true;
  case OPT_PIN: a->world.pin = true; return true;
  case OPT_TIMEOUT:
    if (!tool_option_int("timeout", optarg, 1, 1000000, &seconds, error)) {
      return false;
    }
    a->world.timeout_ns = (int64_t)seconds * 1000000000;
    return true;
  case OPT_JSON: a->json = true; return true;
  default: return parse_combine_option(code, a, error);
  }
}

static bool parse_collective(int argc, char **argv, arguments *a, tool_error *error) {
  if (optind != argc - 1) {
    return tool_error_set(error, "name one collective: combine, allgather, shift, broadcast or barrier");
  }
  if (bny_collective_parse(argv[optind], &a->perf.collective)) {
    return true;
  }
  return tool_error_set(error, "%.60s: not one of combine, allgather, shift, broadcast, barrier", argv[optind]);
}

static bool complete_for_device(const arguments *a, tool_error *error) {
  if (a->protocol.against_mpi || a->protocol.in_a_row || a->world.pin || bny_launch_under_mpi() || bny_launch_env_present()) {
    return tool_error_set(error, "--device: ranks are threads of this program; no launcher, --against, --in-a-row or --pin");
  }
  if (!perf_device_built()) {
    return tool_error_set(error, "--device: this program was built without CUDA");
  }
  return a->world.ranks <= DEVICE_RANKS_MAX || tool_error_set(error, "--device: %d ranks at most", DEVICE_RANKS_MAX);
}

/* The sizes of all rows; of combine rounded up to whole rows. */
static bool complete_arguments(arguments *a, tool_error *error) {
  bool combine = a->perf.collective == BNY_COMBINE;
  size_t row_bytes = (size_t)(a->perf.head_dim + 2) * sizeof(float);
  if (!combine && a->combine_only) {
    return tool_error_set(error,
                          "%s has no such option: --batch, --heads, --head-dim, --scatter, --order, --algorithm, "
                          "--wire, --against, --device and --between belong to combine",
                          bny_collective_name(a->perf.collective));
  }
  if (a->protocol.against_mpi && a->perf.scatter != BANYAN_SCATTER_NONE) {
    return tool_error_set(error, "--against mpi compares results that every rank has: --scatter none");
  }
  if (a->protocol.against_mpi && !perf_mpi_built()) {
    return tool_error_set(error, "--against mpi: this program was built without MPI");
  }
  if (a->protocol.against_mpi && !bny_launch_under_mpi()) {
    return tool_error_set(error, "--against mpi needs mpirun: mpirun -n 2 " PROGRAM " combine --against mpi");
  }
  if (a->device != NULL && !complete_for_device(a, error)) {
    return false;
  }
  if (a->between && a->device == NULL) {
    return tool_error_set(error, "--between needs --device: on the host nothing stands between runs");
  }
  if (a->size_count > 0 && a->batch > 0) {
    return tool_error_set(error, "--sizes and --batch both say the size");
  }
  if (a->perf.collective == BNY_BARRIER) {
    a->sizes[0] = 0;
    a->size_count = 1;
  } else if (a->size_count == 0 && (a->batch > 0 || a->heads > 0)) {
    a->batch = a->batch > 0 ? a->batch : 1;
    a->heads = a->heads > 0 ? a->heads : DEFAULT_HEADS;
    a->sizes[0] = (size_t)a->batch * (size_t)a->heads * row_bytes;
    a->size_count = 1;
  } else if (a->size_count == 0) {
    for (a->size_count = 0; a->size_count < DEFAULT_SIZES; a->size_count++) {
      a->sizes[a->size_count] = (combine ? row_bytes : 512) << a->size_count;
    }
  }
  for (int i = 0; combine && i < a->size_count; i++) {
    size_t rows = (a->sizes[i] + row_bytes - 1) / row_bytes;
    a->sizes[i] = rows * row_bytes;
    if (a->sizes[i] > (size_t)1 << 30) {
      return tool_error_set(error, "a partial of %zu bytes is more than 1 GiB", a->sizes[i]);
    }
  }
  return true;
}

/* Returns true to go on, or false with *exit_status set. One of the ranks talks. */
static bool parse_arguments(int argc, char **argv, arguments *a, int *exit_status) {
  bool speaks = tool_world_speaks(), ok = true;
  tool_error error = {.text = ""};
  opterr = speaks;
  int code;
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
  ok = ok && parse_collective(argc, argv, a, &error) && complete_arguments(a, &error);
  if (!ok && speaks) {
    if (error.text[0] != '\0') {
      fprintf(stderr, PROGRAM ": %s\n", error.text);
    }
    fputs(usage, stderr);
  }
  *exit_status = EXIT_USAGE;
  return ok;
}

/* Tokens and heads of a partial of this many rows. */
static void shape_rows(const arguments *a, perf_case *perf) {
  int64_t rows = (int64_t)(perf->bytes / ((size_t)(perf->head_dim + 2) * sizeof(float)));
  bool divides = a->heads > 0 && rows % a->heads == 0;
  int64_t heads = divides ? a->heads : perf->scatter == BANYAN_SCATTER_TOKENS ? 1 : rows;
  perf->heads = (int32_t)heads;
  perf->tokens = (int32_t)(rows / heads);
}

static bool work(const arguments *a, const tool_world *world, bool *correct, tool_error *error) {
  perf_row rows[SIZES_MAX];
  perf_case perf = a->perf;
  perf.world = world;
  FILE *stream = world->rank == 0 && !a->json ? stdout : NULL;
  if (!perf_report_header(&perf, &a->protocol, stream, error)) {
    return false;
  }
  *correct = true;
  for (int i = 0; i < a->size_count; i++) {
    perf.bytes = a->sizes[i];
    if (perf.collective == BNY_COMBINE) {
      shape_rows(a, &perf);
    }
    if (!perf_measure(&perf, &a->protocol, &rows[i], error)) {
      return false;
    }
    *correct = *correct && rows[i].errors.wrong == 0;
    if (stream != NULL) {
      perf_report_row(&rows[i], a->protocol.against_mpi, stream);
    }
  }
  bool written = true;
  if (stream != NULL) {
    perf_report_trailer(rows, a->size_count, &a->protocol, stream);
    written = fflush(stream) == 0;
  } else if (world->rank == 0) {
    written = perf_report_json(&perf, rows, a->size_count, &a->protocol, stdout);
  }
  return written || tool_error_set(error, "cannot write to standard output");
}

static int work_on_device(const arguments *a) {
  perf_device_settings settings = {.device = a->device,
                                   .nranks = a->world.ranks > 0 ? a->world.ranks : DEFAULT_DEVICE_RANKS,
                                   .timeout_ns = a->world.timeout_ns,
                                   .between = a->between};
  perf_case cases[SIZES_MAX];
  tool_error error = {.text = ""};
  bool correct = false;
  for (int i = 0; i < a->size_count; i++) {
    cases[i] = a->perf;
    cases[i].bytes = a->sizes[i];
    shape_rows(a, &cases[i]);
  }
  if (!perf_device_work(&settings, cases, a->size_count, &a->protocol, a->json, &correct, &error)) {
    fprintf(stderr, PROGRAM ": %s\n", error.text);
    return EXIT_FAILURE;
  }
  return correct ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv) {
  arguments a = {.world = {.program = PROGRAM},
                 .perf = {.head_dim = 128, .wire = BANYAN_F32},
                 .protocol = {.warmup = 20, .check = true}};
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
  bool correct = false;
  bool ok = tool_world_join(&a.world, &world, &error) && work(&a, &world, &correct, &error);
  if (!ok) {
    tool_world_complain(&world, &error);
  }
  tool_world_leave(&world, !ok && !error.everywhere);
  return ok && correct ? EXIT_SUCCESS : EXIT_FAILURE;
}
