/* SPDX-License-Identifier: Apache-2.0
 * banyan-plan: what would be done on a machine or cluster, without being there: steps, proof, cost and comparison. */
#include <getopt.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/plan/view.h"

#define PROGRAM "banyan-plan"

enum { EXIT_USAGE = 2, DEFAULT_HEADS = 32, DEFAULT_BYTES = 65536 };

typedef bool view_function(const plan_view *view, tool_error *error);

typedef struct arguments {
  view_function *action; /* NULL: none was given */
  const char *from;
  const char *sizes; /* of --levels */
  int32_t ranks;     /* 0: not given */
  int32_t tokens, heads;
  size_t bytes; /* 0: not given */
  bool combine_only, keys_given;
  plan_shape shape;
  plan_keys keys;
  plan_view view;
} arguments;

static const char usage[] =
    "usage: " PROGRAM " [--cost|--compare|--print|--prove] [--from FILE|DESCRIPTION | --ranks N [--levels LIST]]\n"
    "                   [--collective NAME] [--tokens T --heads H | --bytes BYTES] [--head-dim D]\n"
    "                   [--wire f32|bf16|f16] [--scatter none|root|heads|tokens] [--order plan|canonical]\n"
    "                   [--algorithm NAME] [--rank R] [--root R] [--distance N] [--keys N] [--kv-heads H]\n"
    "                   [--outbox BYTES] [--memory BYTES] [--json]\n";

static const char help[] =
    "\n"
    "Plans a collective for a machine or cluster of up to 16,384 ranks without running it.\n"
    "\n"
    "  --cost              the plan by level of links, and the choice for 1 KiB to 64 MiB; the default\n"
    "  --compare           all algorithms, Ring Attention and three allreduces, fastest first, and why they lose\n"
    "  --print             the steps of each rank; beyond 16 ranks of rank 0, or of --rank\n"
    "  --prove             make the plans of all ranks and prove them\n"
    "\n"
    "  --from WHAT         a file or description as for banyan-topo; default: this machine\n"
    "  --ranks N           N alike ranks of one host instead\n"
    "  --levels LIST       with --ranks: groups of so many ranks, then so many of those, such as 4,8\n"
    "\n"
    "  --collective NAME   combine, allgather, shift, broadcast or barrier; default combine\n"
    "  --tokens T, --heads H  combine: rows of a partial; default 1 and 32\n"
    "  --bytes BYTES       what each rank gives, with K, M or G (1024 based). combine: whole rows of --heads heads\n"
    "  --head-dim D        combine: values of a row; default 128\n"
    "  --wire TYPE         combine: f32, bf16 or f16; default f32\n"
    "  --scatter WHERE     combine: none, root, heads or tokens; default none\n"
    "  --order ORDER       combine: plan or canonical; default plan\n"
    "  --algorithm NAME    default: by predicted cost\n"
    "  --root R            of --scatter root and broadcast; default 0\n"
    "  --distance N        of shift; default 1\n"
    "  --rank R            --print: of this rank alone\n"
    "  --keys N            --compare: keys that each rank holds; default 4096\n"
    "  --kv-heads H        --compare: heads of keys; default 8, or --heads if that is less\n"
    "  --outbox BYTES      what a plan may take of a rank's outbox; default: no limit\n"
    "  --memory BYTES      --prove: refuse what would take more; default 8G\n"
    "  --json              one object on stdout and nothing else\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 success, 1 not proved, or no plan for this, 2 wrong usage or a topology that cannot be read.\n";

enum option_code {
  OPT_COST = 256,
  OPT_COMPARE,
  OPT_PRINT,
  OPT_PROVE,
  OPT_FROM,
  OPT_RANKS,
  OPT_LEVELS,
  OPT_COLLECTIVE,
  OPT_TOKENS,
  OPT_HEADS,
  OPT_BYTES,
  OPT_HEAD_DIM,
  OPT_WIRE,
  OPT_SCATTER,
  OPT_ORDER,
  OPT_ALGORITHM,
  OPT_ROOT,
  OPT_DISTANCE,
  OPT_RANK,
  OPT_KEYS,
  OPT_KV_HEADS,
  OPT_OUTBOX,
  OPT_MEMORY,
  OPT_JSON,
  OPT_HELP,
  OPT_VERSION
};

static const struct option option_table[] = {{"cost", no_argument, NULL, OPT_COST},
                                             {"compare", no_argument, NULL, OPT_COMPARE},
                                             {"print", no_argument, NULL, OPT_PRINT},
                                             {"prove", no_argument, NULL, OPT_PROVE},
                                             {"from", required_argument, NULL, OPT_FROM},
                                             {"ranks", required_argument, NULL, OPT_RANKS},
                                             {"levels", required_argument, NULL, OPT_LEVELS},
                                             {"collective", required_argument, NULL, OPT_COLLECTIVE},
                                             {"tokens", required_argument, NULL, OPT_TOKENS},
                                             {"heads", required_argument, NULL, OPT_HEADS},
                                             {"bytes", required_argument, NULL, OPT_BYTES},
                                             {"head-dim", required_argument, NULL, OPT_HEAD_DIM},
                                             {"wire", required_argument, NULL, OPT_WIRE},
                                             {"scatter", required_argument, NULL, OPT_SCATTER},
                                             {"order", required_argument, NULL, OPT_ORDER},
                                             {"algorithm", required_argument, NULL, OPT_ALGORITHM},
                                             {"root", required_argument, NULL, OPT_ROOT},
                                             {"distance", required_argument, NULL, OPT_DISTANCE},
                                             {"rank", required_argument, NULL, OPT_RANK},
                                             {"keys", required_argument, NULL, OPT_KEYS},
                                             {"kv-heads", required_argument, NULL, OPT_KV_HEADS},
                                             {"outbox", required_argument, NULL, OPT_OUTBOX},
                                             {"memory", required_argument, NULL, OPT_MEMORY},
                                             {"json", no_argument, NULL, OPT_JSON},
                                             {"help", no_argument, NULL, OPT_HELP},
                                             {"version", no_argument, NULL, OPT_VERSION},
                                             {NULL, 0, NULL, 0}};

/* ---- the command line -------------------------------------------------------------------------------------------- */

static bool parse_bytes(const char *name, size_t most, size_t *bytes, tool_error *error) {
  if (!tool_parse_bytes(optarg, bytes) || *bytes < 1 || *bytes > most) {
    return tool_error_set(error, "--%s %.60s: not a size from 1 to %zuM", name, optarg, most >> 20);
  }
  return true;
}

static bool parse_action(view_function *action, arguments *a, tool_error *error) {
  if (a->action != NULL && a->action != action) {
    return tool_error_set(error, "one of --cost, --compare, --print and --prove at a time");
  }
  a->action = action;
  return true;
}

static bool parse_shape_option(int code, arguments *a, tool_error *error) {
  plan_shape *shape = &a->shape;
  switch (code) {
  case OPT_COLLECTIVE: return tool_option_collective(optarg, &shape->collective, error);
  case OPT_BYTES: return parse_bytes("bytes", (size_t)1 << 30, &a->bytes, error);
  case OPT_ALGORITHM: shape->algorithm = optarg; return true;
  case OPT_ROOT: return tool_option_int("root", optarg, 0, PLAN_RANKS_MAX - 1, &shape->root, error);
  case OPT_DISTANCE:
    return tool_option_int("distance", optarg, -PLAN_RANKS_MAX, PLAN_RANKS_MAX, &shape->distance, error);
  case OPT_OUTBOX: return parse_bytes("outbox", (size_t)1 << 40, &shape->outbox_bytes, error);
  default: break;
  }
  a->combine_only = true;
  switch (code) {
  case OPT_TOKENS: return tool_option_int("tokens", optarg, 1, 1 << 20, &a->tokens, error);
  case OPT_HEADS: return tool_option_int("heads", optarg, 1, 1 << 20, &a->heads, error);
  case OPT_HEAD_DIM: return tool_option_int("head-dim", optarg, 1, 1 << 14, &shape->value_dim, error);
  case OPT_WIRE: return tool_option_dtype("wire", optarg, &shape->wire, error);
  case OPT_SCATTER: return tool_option_scatter(optarg, &shape->scatter, error);
  default: return tool_option_order(optarg, &shape->order, error);
  }
}

static bool parse_option(int code, arguments *a, tool_error *error) {
  switch (code) {
  case OPT_COST: return parse_action(plan_view_cost, a, error);
  case OPT_COMPARE: return parse_action(plan_view_compare, a, error);
  case OPT_PRINT: return parse_action(plan_view_print, a, error);
  case OPT_PROVE: return parse_action(plan_view_prove, a, error);
  case OPT_FROM: a->from = optarg; return true;
  case OPT_RANKS: return tool_option_int("ranks", optarg, 1, PLAN_RANKS_MAX, &a->ranks, error);
  case OPT_LEVELS: a->sizes = optarg; return true;
  case OPT_RANK: return tool_option_int("rank", optarg, 0, PLAN_RANKS_MAX - 1, &a->view.rank, error);
  case OPT_KEYS:
    a->keys_given = true;
    return tool_parse_int(optarg, 1, (int64_t)1 << 40, &a->keys.per_rank) ||
           tool_error_set(error, "--keys %.60s: not a number of tokens", optarg);
  case OPT_KV_HEADS:
    a->keys_given = true;
    return tool_option_int("kv-heads", optarg, 1, 1 << 20, &a->keys.kv_heads, error);
  case OPT_MEMORY: return parse_bytes("memory", (size_t)1 << 44, &a->view.memory_most, error);
  case OPT_JSON: a->view.json = true; return true;
  default: return parse_shape_option(code, a, error);
  }
}

static bool check_options(const arguments *a, tool_error *error) {
  bool combine = a->shape.collective == BNY_COMBINE;
  if (a->from != NULL && a->ranks > 0) {
    return tool_error_set(error, "--from and --ranks both say which ranks there are");
  }
  if (a->sizes != NULL && a->ranks == 0) {
    return tool_error_set(error, "--levels goes with --ranks");
  }
  if (!combine && a->combine_only) {
    return tool_error_set(error,
                          "%s has no such option: --tokens, --heads, --head-dim, --wire, --scatter and --order belong "
                          "to combine",
                          bny_collective_name(a->shape.collective));
  }
  if (a->bytes > 0 && (a->tokens > 0 || a->shape.collective == BNY_BARRIER)) {
    return tool_error_set(error, combine ? "--bytes and --tokens both say the size" : "a barrier has no --bytes");
  }
  if (a->keys_given && a->action != plan_view_compare) {
    return tool_error_set(error, "--keys and --kv-heads belong to --compare");
  }
  if (a->view.rank >= 0 && a->action != plan_view_print) {
    return tool_error_set(error, "--rank belongs to --print");
  }
  return true;
}

/* What was not given. */
static bool complete_shape(arguments *a, tool_error *error) {
  plan_shape *shape = &a->shape;
  shape->heads = a->heads > 0 ? a->heads : DEFAULT_HEADS;
  shape->tokens = a->tokens > 0 ? a->tokens : 1;
  shape->bytes = a->bytes > 0 ? a->bytes : DEFAULT_BYTES;
  if (shape->collective == BNY_COMBINE && a->bytes > 0) {
    *shape = plan_shape_resized(shape, a->bytes);
  }
  if (shape->collective == BNY_COMBINE && plan_shape_bytes(shape) > (size_t)1 << 30) {
    return tool_error_set(error, "a partial of %zu bytes is more than 1 GiB", plan_shape_bytes(shape));
  }
  if (a->keys.kv_heads == 0) {
    a->keys.kv_heads = shape->heads < 8 ? shape->heads : 8;
  }
  return true;
}

static bool check_ranks(const arguments *a, const plan_ranks *ranks, tool_error *error) {
  if (a->view.rank >= ranks->nranks) {
    return tool_error_set(error, "--rank %d: there are %d ranks", a->view.rank, ranks->nranks);
  }
  if (a->shape.root >= ranks->nranks) {
    return tool_error_set(error, "--root %d: there are %d ranks", a->shape.root, ranks->nranks);
  }
  return true;
}

/* Returns true to go on, or false with *exit_status set. */
static bool parse_arguments(int argc, char **argv, arguments *a, int *exit_status) {
  tool_error error = {.text = ""};
  bool ok = true;
  int code;
  while (ok && (code = getopt_long(argc, argv, "h", option_table, NULL)) != -1) {
    if (code == OPT_HELP || code == 'h' || code == OPT_VERSION) {
      if (code == OPT_VERSION) {
        printf(PROGRAM " %s\n", banyan_version());
      } else {
        printf("%s%s", usage, help);
      }
      *exit_status = fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
      return false;
    }
    ok = code != '?' && parse_option(code, a, &error);
  }
  if (ok && optind < argc) {
    ok = tool_error_set(&error, "%.60s: what is this? A topology is named by --from", argv[optind]);
  }
  ok = ok && check_options(a, &error) && complete_shape(a, &error);
  if (!ok) {
    if (error.text[0] != '\0') {
      fprintf(stderr, PROGRAM ": %s\n", error.text);
    }
    fputs(usage, stderr);
  }
  *exit_status = EXIT_USAGE;
  return ok;
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

bool plan_view_json(const plan_view *view, json_t *object, tool_error *error) {
  bool ok = object != NULL && json_dumpf(object, view->stream, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) == 0 &&
            fputc('\n', view->stream) != EOF && fflush(view->stream) == 0;
  json_decref(object);
  return ok || tool_error_set(error, "cannot write to standard output");
}

static bool load(const arguments *a, plan_ranks *ranks, tool_error *error) {
  if (a->ranks > 0) {
    return plan_ranks_plain(a->ranks, a->sizes, ranks, error);
  }
  return a->from != NULL ? plan_ranks_load(a->from, ranks, error) : plan_ranks_machine(ranks, error);
}

static int32_t terminal_columns(void) {
  struct winsize size = {0};
  return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

static int run(arguments *a) {
  plan_ranks ranks = {.nranks = 0};
  tool_error error = {.text = ""};
  int exit_status = EXIT_SUCCESS;
  if (!load(a, &ranks, &error) || !check_ranks(a, &ranks, &error)) {
    exit_status = EXIT_USAGE;
  } else {
    a->view.ranks = &ranks;
    a->view.shape = &a->shape;
    a->view.keys = &a->keys;
    a->view.stream = stdout;
    a->view.columns = terminal_columns();
    view_function *action = a->action != NULL ? a->action : plan_view_cost;
    if (!action(&a->view, &error) || fflush(stdout) != 0) {
      exit_status = EXIT_FAILURE;
    }
  }
  if (exit_status != EXIT_SUCCESS) {
    fprintf(stderr, PROGRAM ": %s\n", error.text[0] != '\0' ? error.text : "cannot write to standard output");
  }
  plan_ranks_release(&ranks);
  return exit_status;
}

int main(int argc, char **argv) {
  arguments a = {.shape = {.value_dim = 128, .wire = BANYAN_F32, .distance = 1},
                 .keys = {.per_rank = 4096},
                 .view = {.rank = -1, .memory_most = (size_t)8 << 30}};
  int exit_status;
  if (!parse_arguments(argc, argv, &a, &exit_status)) {
    return exit_status;
  }
  return run(&a);
}
