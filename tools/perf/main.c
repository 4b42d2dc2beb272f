/* SPDX-License-Identifier: Apache-2.0
 * banyan-perf: latency of the collectives by size, with checked results; combine also against three forms of MPI. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common/device_ranks.h"
#include "tools/common/launch.h"
#include "tools/common/options.h"
#include "tools/perf/perf.h"

#define PROGRAM "banyan-perf"

enum { SIZES_MAX = 64, DEFAULT_SIZES = 15, DEFAULT_HEADS = 32, DEFAULT_DEVICE_RANKS = 8 };

/* The share of one rank in allgather-heads: four heads of 128 values of bf16. */
enum { SHARE_HEADS = 4, SHARE_TOKEN_BYTES = SHARE_HEADS * 128 * 2 };

typedef struct arguments {
  tool_world_options world;
  perf_case perf; /* world, bytes, tokens and heads are set for each row */
  perf_protocol protocol;
  int32_t batch, heads; /* 0: not given */
  size_t sizes[SIZES_MAX];
  int size_count;
  const char *device; /* NULL: ranks are on the host */
  bool json, unchecked;
  const char *combine_only; /* the first option given that only combine has; NULL: none */
  const char *list;         /* argument of --sizes, as it was given */
} arguments;

static bool parse_sizes(void *opaque, const char *text, tool_error *error) {
  arguments *a = opaque;
  char *rest = tool_format("%s", text), *word;
  bool ok = true;
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
  return ok;
}

static const bny_name rivals[] = {{"mpi", true}, {NULL, 0}};

#define COMBINE_ONLY TOOL_GROUP(combine_only)

static const tool_option options[] = {
    {"ranks", "N",
     "Start N local processes, each on its own core if there are enough cores. Under a launcher, the expected number "
     "of ranks.",
     TOOL_INT_AT(world.ranks, 1, 4096)},
    {"sizes", "LIST",
     "Sizes in bytes, separated by commas, with K or M (1024 based). For combine a size is that of a partial, rounded "
     "up to whole rows of (head_dim + 2) * 4 bytes. For the others it is that of each rank's message. For "
     "allgather-heads a rank has 4 heads of 128 bf16 values, and a size is rounded up to whole tokens. The default is "
     "15 sizes, each twice the previous one, from one row or 512 bytes.",
     TOOL_TEXT_AT(list), .check = parse_sizes},
    {"iterations", "N", "Timed iterations of each size. The default moves 64 MiB, in 20 to 1000 iterations.",
     TOOL_INT_AT(protocol.iterations, 1, 10000000)},
    {"warmup", "N", "Untimed iterations before the timed ones; default 20.", TOOL_INT_AT(protocol.warmup, 0, 1000000)},
    {"in-a-row", NULL,
     "Run calls in a row without a barrier, and report half the time of two calls: see MEASUREMENT in the man page.",
     TOOL_FLAG_AT(protocol.in_a_row)},
    {"no-check", NULL, "Do not check results.", TOOL_FLAG_AT(unchecked)},
    {"pin", NULL, "Pin each rank to one CPU, also under a launcher and with more ranks than cores.",
     TOOL_FLAG_AT(world.pin)},
    {"timeout", "SECONDS", "The deadline of each call that waits for other ranks; default 30.",
     TOOL_SECONDS_AT(world.timeout_ns)},
    {"json", NULL,
     "Print one JSON object on standard output and nothing else. A row of text for each size goes to standard error.",
     TOOL_FLAG_AT(json)},
    {"against", NULL,
     "Under mpirun, for combine, allreduce, select and allgather-heads: also measure MPI, in three forms for combine "
     "and "
     "one for the others.",
     TOOL_NAME_AT(protocol.against_mpi, rivals)},
    {.help = "For combine alone"},
    {"batch", "B", "One size instead of many: B tokens; 1 if only --heads is set.", TOOL_INT_AT(batch, 1, 1 << 20),
     COMBINE_ONLY},
    {"heads", "H", "The heads of a token; default 32. With --sizes, the heads of those sizes that H divides.",
     TOOL_INT_AT(heads, 1, 1 << 20), COMBINE_ONLY},
    {"head-dim", "D", "Values of a row; default 128.", TOOL_INT_AT(perf.combine.value_dim, 1, 1 << 14), COMBINE_ONLY},
    {"scatter", NULL, "Which rank receives which rows, as in banyan-decode; default none.",
     TOOL_NAME_AT(perf.combine.scatter, bny_scatter_names), COMBINE_ONLY},
    {"order", NULL, "The order in which partials are merged; default plan.",
     TOOL_NAME_AT(perf.combine.order, bny_order_names), COMBINE_ONLY},
    {"algorithm", "NAME", "The algorithm; by default the one with the lowest predicted cost.",
     TOOL_TEXT_AT(perf.combine.algorithm), COMBINE_ONLY},
    {"wire", NULL, "The format of values on their way between ranks; default f32.",
     TOOL_NAME_AT(perf.combine.wire, tool_wires), COMBINE_ONLY},
    {"device", "cuda[:N]",
     "On a GPU, in graphs. Ranks are threads on that device, 8 unless --ranks is set. A copy of the partial and three "
     "reductions are measured for comparison.",
     TOOL_TEXT_AT(device), COMBINE_ONLY, .check = tool_check_device},
    {NULL}};

static bool complete_for_device(const arguments *a, tool_error *error) {
  if (a->protocol.against_mpi || a->protocol.in_a_row || a->world.pin || bny_launch_under_mpi() ||
      bny_launch_env_present()) {
    return tool_error_set(error,
                          "--device: ranks are threads of this program; no launcher, --against, --in-a-row or --pin");
  }
  return a->world.ranks <= DEVICE_RANKS_MAX || tool_error_set(error, "--device: %d ranks at most", DEVICE_RANKS_MAX);
}

/* A size is a number of these bytes. */
static size_t unit_of(const perf_case *perf) {
  switch (perf->collective) {
  case BNY_COMBINE: return (size_t)(perf->combine.value_dim + 2) * sizeof(float);
  case BNY_ALLGATHER_HEADS: return SHARE_TOKEN_BYTES;
  case BNY_ALLREDUCE: return sizeof(float);
  case BNY_SELECT: return PERF_PAIR_BYTES;
  default: return 1;
  }
}

/* Makes the sizes of all rows, rounded up to whole units. */
static bool complete_sizes(arguments *a, tool_error *error) {
  size_t unit = unit_of(&a->perf), first = unit <= sizeof(float) ? 512 : unit;
  if (a->size_count == 0 && (a->batch > 0 || a->heads > 0)) {
    a->batch = a->batch > 0 ? a->batch : 1;
    a->heads = a->heads > 0 ? a->heads : DEFAULT_HEADS;
    a->sizes[a->size_count++] = (size_t)a->batch * (size_t)a->heads * unit;
  }
  if (a->size_count == 0)
    for (; a->size_count < DEFAULT_SIZES; a->size_count++) a->sizes[a->size_count] = first << a->size_count;
  for (int i = 0; i < a->size_count; i++) {
    size_t bytes = a->sizes[i] = (a->sizes[i] + unit - 1) / unit * unit;
    bool lists = a->perf.collective == BNY_SELECT, rows = a->perf.collective == BNY_COMBINE;
    if (lists && bytes > (size_t)PERF_PAIRS_MOST * PERF_PAIR_BYTES)
      return tool_error_set(error, "a list of %zu bytes has more than %d pairs", bytes, PERF_PAIRS_MOST);
    if ((rows || a->perf.collective == BNY_ALLREDUCE) && bytes > (size_t)1 << 30)
      return tool_error_set(error, "a %s of %zu bytes is more than 1 GiB", rows ? "partial" : "sum", bytes);
  }
  if (a->perf.collective == BNY_BARRIER) {
    a->sizes[0] = 0;
    a->size_count = 1;
  }
  return true;
}

/* Checks options against each other. */
static bool complete_options(arguments *a, tool_error *error) {
  bool combine = a->perf.collective == BNY_COMBINE;
  if (!combine && a->combine_only != NULL) {
    return tool_error_set(error, "%s has no --%s, which belongs to combine", bny_collective_name(a->perf.collective),
                          a->combine_only);
  }
  if (a->protocol.against_mpi && perf_mpi_count(a->perf.collective) == 0)
    return tool_error_set(error, "--against mpi goes with combine, allreduce, select and allgather-heads");
  if (a->protocol.against_mpi && a->perf.combine.scatter != BANYAN_SCATTER_NONE)
    return tool_error_set(error, "--against mpi compares results that every rank has: --scatter none");
  if (a->protocol.against_mpi && !bny_launch_under_mpi())
    return tool_error_set(error, "--against mpi needs mpirun: mpirun -n 2 " PROGRAM " combine --against mpi");
  if (a->device != NULL && !complete_for_device(a, error)) return false;
  if (a->size_count > 0 && a->batch > 0) return tool_error_set(error, "--sizes and --batch both say the size");
  return complete_sizes(a, error);
}

/* Names the collective, and completes what belongs to it. */
static bool complete_arguments(void *opaque, int argc, char **argv, tool_error *error) {
  arguments *a = opaque;
  if (optind != argc - 1)
    return tool_error_set(
        error,
        "name one collective: combine, allreduce, select, allgather, allgather-heads, shift, broadcast or barrier");
  if (!bny_collective_parse(argv[optind], &a->perf.collective))
    return tool_error_set(
        error, "%.60s: not one of combine, allreduce, select, allgather, allgather-heads, shift, broadcast, barrier",
        argv[optind]);
  a->protocol.check = !a->unchecked;
  return tool_check_order(a->perf.combine.order, a->perf.combine.wire, error) && complete_options(a, error);
}

static const tool_program program = {
    .name = PROGRAM,
    .title = "latency of the collectives of banyan by size",
    .usage = "COLLECTIVE [OPTION]...",
    .about = "Measures combine, allreduce, select, allgather, allgather-heads, shift, broadcast or barrier over sizes, "
             "as a persistent operation. Every iteration has new data and takes the "
             "time of the slowest rank. Results are checked.\n\n" TOOL_WORLD_ABOUT,
    .failed = "results were wrong, or the work failed",
    .ranks = true,
    .options = options,
    .complete = complete_arguments};

static void shape_rows(const arguments *a, perf_case *perf) {
  int64_t rows = (int64_t)(perf->bytes / ((size_t)(perf->combine.value_dim + 2) * sizeof(float)));
  bool divides = a->heads > 0 && rows % a->heads == 0;
  int64_t heads = divides ? a->heads : perf->combine.scatter == BANYAN_SCATTER_TOKENS ? 1 : rows;
  perf->combine.heads = (int32_t)heads;
  perf->combine.tokens = (int32_t)(rows / heads);
}

static bool work(void *opaque, const tool_world *world, bool *correct, tool_error *error) {
  const arguments *a = opaque;
  perf_row rows[SIZES_MAX];
  perf_case perf = a->perf;
  perf.world = world;
  FILE *stream = world->rank != 0 ? NULL : a->json ? stderr : stdout;
  if (!perf_report_header(&perf, &a->protocol, stream, error)) return false;
  *correct = true;
  for (int i = 0; i < a->size_count; i++) {
    perf.bytes = a->sizes[i];
    if (perf.collective == BNY_COMBINE) shape_rows(a, &perf);
    if (perf.collective == BNY_ALLGATHER_HEADS) {
      perf.combine.heads = SHARE_HEADS;
      perf.combine.tokens = (int32_t)(perf.bytes / SHARE_TOKEN_BYTES);
    }
    if (!perf_measure(&perf, &a->protocol, &rows[i], error)) return false;
    *correct = *correct && rows[i].errors.wrong == 0;
    if (stream != NULL) perf_report_row(&rows[i], stream);
  }
  if (stream == NULL) return true;
  perf_report_trailer(rows, a->size_count, &a->protocol, stream);
  return a->json ? perf_report_json(&perf, rows, a->size_count, &a->protocol, error)
                 : tool_flush(stdout) || tool_error_stdout(error);
}

static int work_on_device(const arguments *a) {
  perf_device_settings settings = {.device = a->device,
                                   .nranks = a->world.ranks > 0 ? a->world.ranks : DEFAULT_DEVICE_RANKS,
                                   .timeout_ns = a->world.timeout_ns};
  perf_case cases[SIZES_MAX];
  tool_error error = {.text = ""};
  bool correct = false;
  for (int i = 0; i < a->size_count; i++) {
    cases[i] = a->perf;
    cases[i].bytes = a->sizes[i];
    shape_rows(a, &cases[i]);
  }
  if (!perf_device_work(&settings, cases, a->size_count, &a->protocol, a->json, &correct, &error))
    return tool_options_fail(&program, &error);
  return correct ? TOOL_EXIT_OK : TOOL_EXIT_FAILED;
}

int main(int argc, char **argv) {
  arguments a = {.world = {.program = PROGRAM, .own_cores = true},
                 .perf.combine = {.size = sizeof(banyan_combine_desc), .value_dim = 128, .wire = BANYAN_F32},
                 .protocol = {.warmup = 20}};
  int exit_status;
  if (!tool_options_parse(&program, argc, argv, &a, &exit_status)) return exit_status;
  if (a.device != NULL) return work_on_device(&a);
  return tool_world_run(&a.world, argv, work, &a);
}
