/* SPDX-License-Identifier: Apache-2.0
 * banyan-topo: shows the topology of this machine, or of one that a file or a line of text describes. */
#include <errno.h>
#include <getopt.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/plan/levels.h"
#include "topo/export/export.h"
#include "topo/import/synthetic.h"
#include "tools/topo/check.h"
#include "tools/topo/explain.h"
#include "tools/topo/measure/measure.h"
#include "tools/topo/output.h"
#include "tools/topo/view.h"

#define PROGRAM "banyan-topo"

enum { COLUMNS_DEFAULT = 100, COLUMNS_LEAST = 40, COLUMNS_MOST = 400 };

/* The requested task. */
typedef enum task { TASK_SHOW, TASK_LEVELS, TASK_CHECK, TASK_DIFF, TASK_MEASURE, TASK_EXPLAIN } task;

typedef enum colouring { COLOUR_AUTO, COLOUR_ALWAYS, COLOUR_NEVER } colouring;

/* A model and what is derived from it. */
typedef struct machine {
  bny_topo *topo;
  bny_topo_levels *levels;
  topo_measured *measured; /* NULL: not requested */
  topo_view view;
  bny_topo_probe_report reports[BNY_TOPO_PROBES_MAX];
  char title[256];
} machine;

typedef struct arguments {
  task task;
  bool task_given;
  const char *from[2]; /* NULL: this machine; [1] is for --diff */
  const char *format;  /* NULL: by the suffix of output, otherwise text */
  const char *output;  /* NULL: standard output */
  colouring colour;
  bool all;
  topo_measure_options measure;
  size_t explain_bytes;
} arguments;

static const char usage[] =
    "usage: " PROGRAM " [--from FILE|DESCRIPTION] [--format FORMAT] [-o FILE] [--all] [--colour WHEN]\n"
    "       " PROGRAM " --levels|--check [--from FILE|DESCRIPTION] [--json] [-o FILE]\n"
    "       " PROGRAM " --diff FIRST SECOND [--json] [-o FILE]\n"
    "       " PROGRAM " --measure [--ranks N] [--seconds S] [--json] [-o FILE]\n"
    "       " PROGRAM " --explain BYTES [--from FILE|DESCRIPTION] [--json] [-o FILE]\n";

static const char help[] =
    "\n"
    "Shows this machine: packages, NUMA nodes, GPUs, NICs, the links between them and how fast they are; the levels\n"
    "that plans are made of; and what is wrong with it.\n"
    "\n"
    "  --from WHAT         another machine or cluster: a file (NCCL topology XML, hwloc XML, nvidia-smi -q -x,\n"
    "                      nvidia-smi topo -m, ibnetdiscover, JSON of this program) or a description such as\n"
    "                      \"leaf:2 host:8 nvswitch gpu:8@sm90 nic:8@400g\"\n"
    "  --format FORMAT     " TOPO_FORMATS_HELP "\n"
    "  -o, --output FILE   write there, the whole or nothing; the suffix tells the format\n"
    "  --levels            the groups of ranks that are near to one another, as a table\n"
    "  --check             findings alone, one a line; see below for the exit status\n"
    "  --diff A B          what differs between two files or descriptions\n"
    "  --measure           latency and bandwidth between the CPUs of this machine beside what plans expect;\n"
    "                      which pairs are slow\n"
    "  --explain BYTES     how partials of that size (with K, M or G) would be combined here, and why in that way\n"
    "  --ranks N           --measure: between the first N of the CPUs allowed; default all\n"
    "  --seconds S         --measure: about how long at most; default 10\n"
    "  --json              the same as --format json\n"
    "  --all               draw everything, also what looks alike\n"
    "  --colour WHEN       auto, always or never; default auto: in a terminal, unless NO_COLOR is set\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 success, 2 trouble. --check: 1 warnings, 3 faults. --diff: 1 they differ.\n"
    "--measure: 1 something is slow.\n";

enum option_code {
  OPT_FROM = 256,
  OPT_FORMAT,
  OPT_LEVELS,
  OPT_CHECK,
  OPT_DIFF,
  OPT_MEASURE,
  OPT_EXPLAIN,
  OPT_RANKS,
  OPT_SECONDS,
  OPT_JSON,
  OPT_ALL,
  OPT_COLOUR,
  OPT_HELP,
  OPT_VERSION
};

static const struct option option_table[] = {{"from", required_argument, NULL, OPT_FROM},
                                             {"format", required_argument, NULL, OPT_FORMAT},
                                             {"output", required_argument, NULL, 'o'},
                                             {"levels", no_argument, NULL, OPT_LEVELS},
                                             {"check", no_argument, NULL, OPT_CHECK},
                                             {"diff", no_argument, NULL, OPT_DIFF},
                                             {"measure", no_argument, NULL, OPT_MEASURE},
                                             {"explain", required_argument, NULL, OPT_EXPLAIN},
                                             {"ranks", required_argument, NULL, OPT_RANKS},
                                             {"seconds", required_argument, NULL, OPT_SECONDS},
                                             {"json", no_argument, NULL, OPT_JSON},
                                             {"all", no_argument, NULL, OPT_ALL},
                                             {"colour", required_argument, NULL, OPT_COLOUR},
                                             {"color", required_argument, NULL, OPT_COLOUR},
                                             {"help", no_argument, NULL, OPT_HELP},
                                             {"version", no_argument, NULL, OPT_VERSION},
                                             {NULL, 0, NULL, 0}};

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static bool set_task(arguments *a, task task, tool_error *error) {
  if (a->task_given && a->task != task) {
    return tool_error_set(error, "--levels, --check, --diff, --measure and --explain: one at a time");
  }
  a->task = task;
  a->task_given = true;
  return true;
}

static bool parse_seconds(arguments *a, tool_error *error) {
  char *end;
  a->measure.seconds = strtod(optarg, &end);
  return (end != optarg && *end == '\0' && a->measure.seconds >= 0.01 && a->measure.seconds <= 3600) ||
         tool_error_set(error, "--seconds %.60s: not a number in 0.01..3600", optarg);
}

static bool parse_colour(arguments *a, tool_error *error) {
  static const char *const names[] = {"auto", "always", "never"};
  for (int i = 0; i < 3; i++) {
    if (strcmp(optarg, names[i]) == 0) {
      a->colour = (colouring)i;
      return true;
    }
  }
  return tool_error_set(error, "--colour %.60s: not one of auto, always, never", optarg);
}

static bool set_format(arguments *a, const char *format, tool_error *error) {
  if (a->format != NULL && strcmp(a->format, format) != 0) {
    return tool_error_set(error, "the format cannot be both %.20s and %.20s", a->format, format);
  }
  a->format = format;
  return topo_format_find(format) != NULL || tool_error_set(error, "--format %.60s: not one of " TOPO_FORMATS, format);
}

static bool parse_option(int code, arguments *a, tool_error *error) {
  switch (code) {
  case OPT_FROM:
    if (a->from[0] != NULL) {
      return tool_error_set(error, "--from is given twice; to compare two, use --diff FIRST SECOND");
    }
    a->from[0] = optarg;
    return true;
  case OPT_FORMAT: return set_format(a, optarg, error);
  case OPT_JSON: return set_format(a, "json", error);
  case 'o': a->output = optarg; return true;
  case OPT_LEVELS: return set_task(a, TASK_LEVELS, error);
  case OPT_CHECK: return set_task(a, TASK_CHECK, error);
  case OPT_DIFF: return set_task(a, TASK_DIFF, error);
  case OPT_MEASURE: return set_task(a, TASK_MEASURE, error);
  case OPT_EXPLAIN:
    if (!tool_parse_bytes(optarg, &a->explain_bytes) || a->explain_bytes < 1 || a->explain_bytes > (size_t)1 << 30) {
      return tool_error_set(error, "--explain %.60s: not a size from 1 to 1024M", optarg);
    }
    return set_task(a, TASK_EXPLAIN, error);
  case OPT_RANKS: return tool_option_int("ranks", optarg, 1, TOPO_RANKS_MAX, &a->measure.ranks, error);
  case OPT_SECONDS: return parse_seconds(a, error);
  case OPT_ALL: a->all = true; return true;
  default: return parse_colour(a, error);
  }
}

/* Checks the combination of options, and chooses the format. */
static bool complete_arguments(int argc, char **argv, arguments *a, tool_error *error) {
  int rest = argc - optind;
  if (a->task == TASK_DIFF) {
    if (rest != 2 || a->from[0] != NULL) {
      return tool_error_set(error, "--diff wants two files or descriptions: " PROGRAM " --diff FIRST SECOND");
    }
    a->from[0] = argv[optind];
    a->from[1] = argv[optind + 1];
  } else if (rest > 0) {
    return tool_error_set(error, "%.100s: not an option; a file is shown with --from FILE", argv[optind]);
  }
  if (a->format == NULL && a->output != NULL && strcmp(a->output, "-") != 0) {
    a->format = topo_format_of_path(a->output);
    if (a->format == NULL) {
      return tool_error_set(error, "%.200s: its name does not tell the format: add --format, or a suffix (%s)",
                            a->output, TOPO_SUFFIXES);
    }
  }
  a->format = a->format == NULL ? "text" : a->format;
  if (a->task == TASK_MEASURE && a->from[0] != NULL) {
    return tool_error_set(error, "--measure measures this machine: not with --from");
  }
  if (a->task != TASK_MEASURE && (a->measure.ranks > 0 || a->measure.seconds > 0)) {
    return tool_error_set(error, "--ranks and --seconds go with --measure");
  }
  bool plain = strcmp(a->format, "text") == 0 || strcmp(a->format, "json") == 0;
  if (a->task != TASK_SHOW && !plain) {
    return tool_error_set(error, "--format %s: --levels, --check and --diff are written as text or json", a->format);
  }
  return true;
}

/* Returns true to continue, or false with *exit_status set. */
static bool parse_arguments(int argc, char **argv, arguments *a, int *exit_status) {
  bool ok = true;
  tool_error error = {.text = ""};
  int code;
  while (ok && (code = getopt_long(argc, argv, "ho:", option_table, NULL)) != -1) {
    if (code == OPT_HELP || code == 'h' || code == OPT_VERSION) {
      if (code == OPT_VERSION) {
        printf(PROGRAM " %s\n", banyan_version());
      } else {
        printf("%s%s", usage, help);
      }
      *exit_status = fflush(stdout) == 0 ? TOPO_EXIT_GOOD : TOPO_EXIT_TROUBLE;
      return false;
    }
    ok = code != '?' && parse_option(code, a, &error);
  }
  ok = ok && complete_arguments(argc, argv, a, &error);
  if (!ok) {
    if (error.text[0] != '\0') {
      fprintf(stderr, PROGRAM ": %s\n", error.text);
    }
    fputs(usage, stderr);
  }
  *exit_status = TOPO_EXIT_TROUBLE;
  return ok;
}

/* ---- display ----------------------------------------------------------------------------------------------------- */

static int32_t columns_of_terminal(void) {
  struct winsize size = {0};
  const char *variable = getenv("COLUMNS");
  int64_t columns = COLUMNS_DEFAULT;
  if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    columns = size.ws_col;
  } else if (variable != NULL && !tool_parse_int(variable, 1, 100000, &columns)) {
    columns = COLUMNS_DEFAULT;
  }
  return (int32_t)(columns < COLUMNS_LEAST ? COLUMNS_LEAST : columns > COLUMNS_MOST ? COLUMNS_MOST : columns);
}

static void set_up_view(const arguments *a, topo_view *view) {
  const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");
  bool capable = isatty(STDOUT_FILENO) && (no_colour == NULL || no_colour[0] == '\0') &&
                 (terminal == NULL || strcmp(terminal, "dumb") != 0);
  bool to_file = a->output != NULL && strcmp(a->output, "-") != 0;
  view->colour = a->colour == COLOUR_ALWAYS || (a->colour == COLOUR_AUTO && capable && !to_file);
  view->utf8 = strcasecmp(nl_langinfo(CODESET), "UTF-8") == 0;
  view->columns = columns_of_terminal();
  view->all = a->all;
}

/* Sets the title to the given name, made printable and UTF-8. */
static void set_title(machine *m, const char *from) {
  const char *name = from == NULL ? "this machine" : from;
  size_t length = strlen(name);
  if (length >= sizeof m->title) { /* the end is more specific */
    snprintf(m->title, sizeof m->title, "...%s", name + length - (sizeof m->title - 4));
  } else {
    snprintf(m->title, sizeof m->title, "%s", name);
  }
  bny_topo *printable = bny_topo_new(); /* a node's name is made printable */
  bny_topo_node node = {.kind = BNY_TOPO_HOST, .parent = -1, .index = -1, .compute = -1, .name = m->title};
  if (printable != NULL && bny_topo_add_node(printable, &node) == 0) {
    snprintf(m->title, sizeof m->title, "%s", printable->nodes[0].name);
  }
  bny_topo_free(printable);
}

/* Adds the costs that plans assume between CPU ranks if the topology gives none. */
static topo_measure_options with_plans(topo_measure_options options) {
  for (int near = 0; near < TOPO_NEARS; near++) {
    const plan_link *link = &plan_links[near == TOPO_NEAR_SYSTEM ? PLAN_LINK_SOCKETS : PLAN_LINK_MEMORY];
    options.planned[near] = (topo_cost){link->software_ns + link->way_ns, 1 / link->gbytes_per_s};
  }
  return options;
}

static bool load(const arguments *a, const char *from, machine *m, tool_error *error) {
  bny_topo_error why = {.text = ""};
  int32_t nreports = 0;
  m->topo = from == NULL ? bny_topo_probe_machine(NULL, m->reports, &nreports, &why) : bny_topo_load(from, NULL, &why);
  if (m->topo == NULL) {
    return tool_error_set(error, "%s", why.text);
  }
  if (a->task == TASK_MEASURE) {
    topo_measure_options options = with_plans(a->measure);
    m->measured = topo_measure(&options, m->topo, error);
    if (m->measured == NULL) {
      return false;
    }
    topo_measured_apply(m->measured, m->topo);
  }
  m->levels = bny_topo_derive(m->topo);
  if (m->levels == NULL) {
    return tool_error_set(error, "out of memory");
  }
  set_title(m, from);
  m->view = (topo_view){.topo = m->topo,
                        .levels = m->levels,
                        .title = m->title,
                        .reports = m->reports,
                        .nreports = nreports,
                        .measured = m->measured};
  set_up_view(a, &m->view);
  return true;
}

static void unload(machine *m) {
  topo_measured_free(m->measured);
  bny_topo_levels_free(m->levels);
  bny_topo_free(m->topo);
}

/* ---- tasks ------------------------------------------------------------------------------------------------------- */

static char *show_measured(const machine *m, bool json, int *exit_status, tool_error *error) {
  for (int32_t f = 0; f < m->measured->nfindings; f++) {
    *exit_status = m->measured->findings[f].warning ? TOPO_EXIT_WARNINGS : *exit_status;
  }
  return json ? topo_view_json(&m->view, error)
              : topo_measured_text(m->measured, m->topo, m->view.colour, m->view.columns, error);
}

/* Returns the text to write, for the caller to free; NULL and *error. */
static char *work(const arguments *a, machine machines[2], int *exit_status, tool_error *error) {
  bool json = strcmp(a->format, "json") == 0;
  *exit_status = TOPO_EXIT_GOOD;
  switch (a->task) {
  case TASK_LEVELS: return json ? topo_view_json(&machines[0].view, error) : topo_view_levels(&machines[0].view, error);
  case TASK_CHECK: return topo_check(&machines[0].view, json, exit_status, error);
  case TASK_MEASURE: return show_measured(&machines[0], json, exit_status, error);
  case TASK_EXPLAIN: return topo_explain(&machines[0].view, a->explain_bytes, json, error);
  case TASK_DIFF: return topo_diff(&machines[0].view, &machines[1].view, json, exit_status, error);
  default: return topo_format_find(a->format)->view(&machines[0].view, error);
  }
}

int main(int argc, char **argv) {
  arguments a = {.task = TASK_SHOW};
  machine machines[2] = {{.topo = NULL}, {.topo = NULL}};
  tool_error error = {.text = ""};
  int exit_status;
  setlocale(LC_CTYPE, "");
  if (!parse_arguments(argc, argv, &a, &exit_status)) {
    return exit_status;
  }
  bool ok =
      load(&a, a.from[0], &machines[0], &error) && (a.task != TASK_DIFF || load(&a, a.from[1], &machines[1], &error));
  char *text = ok ? work(&a, machines, &exit_status, &error) : NULL;
  ok = text != NULL && topo_output(a.output, text, &error);
  free(text);
  unload(&machines[0]);
  unload(&machines[1]);
  if (!ok) {
    fprintf(stderr, PROGRAM ": %s\n", error.text);
  }
  return ok ? exit_status : TOPO_EXIT_TROUBLE;
}
