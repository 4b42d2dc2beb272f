/* SPDX-License-Identifier: Apache-2.0
 * banyan-topo: shows the topology of this machine, or of a machine that a file or a line of text describes. */
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "tools/common/options.h"
#include "locality/price.h"
#include "tools/topo/topo.h"
#include "tools/topo/measure/measure.h"
#include "topo/export/export.h"
#include "topo/import/json.h"
#include "topo/import/synthetic.h"

#define PROGRAM "banyan-topo"

enum { COLUMNS_DEFAULT = 100, COLUMNS_LEAST = 40, COLUMNS_MOST = 400 };

/* The requested task. */
typedef enum task { TASK_SHOW, TASK_LEVELS, TASK_CHECK, TASK_DIFF, TASK_MEASURE } task;

typedef enum colouring { COLOUR_AUTO, COLOUR_ALWAYS, COLOUR_NEVER } colouring;

/* A model and its derived data. */
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
  const char *from[2]; /* NULL: this machine; [1] is for --diff */
  char **more;         /* --check: further inputs */
  int nmore;
  const char *format; /* NULL: by the suffix of output, otherwise text */
  const char *output; /* NULL: standard output */
  colouring colour;
  bool all;
  const char *measure_only; /* first option that requires --measure; NULL: none */
  topo_measure_options measure;
  const char *save_costs; /* NULL: not requested */
  const char *check_only; /* first option that requires --check; NULL: none */
  const char *profile, *save_profile, *mute;
} arguments;

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static bool parse_seconds(void *opaque, const char *text, tool_error *error) {
  arguments *a = opaque;
  char *end;
  a->measure.seconds = strtod(text, &end);
  return (end != text && *end == '\0' && a->measure.seconds >= 0.01 && a->measure.seconds <= 3600) ||
         tool_error_set(error, "--seconds %.60s: not a number in 0.01..3600", text);
}

static bool parse_from(void *opaque, const char *text, tool_error *error) {
  arguments *a = opaque;
  if (a->from[0] != NULL)
    return tool_error_set(error, "--from is given twice; to compare two, use --diff FIRST SECOND");
  a->from[0] = text;
  return true;
}

/* Stores the argument of --format, or "json" for --json, which has no argument. */
static bool parse_format(void *opaque, const char *text, tool_error *error) {
  arguments *a = opaque;
  const char *format = text == NULL ? "json" : text;
  if (a->format != NULL && strcmp(a->format, format) != 0)
    return tool_error_set(error, "the format cannot be both %.20s and %.20s", a->format, format);
  a->format = format;
  return topo_format_find(format) != NULL || tool_error_set(error, "--format %.60s: not one of " TOPO_FORMATS, format);
}

static bool parse_raw(void *opaque, const char *text, tool_error *error) {
  (void)text;
  return parse_format(opaque, "matrix", error);
}

static const bny_name colourings[] = {
    {"auto", COLOUR_AUTO}, {"always", COLOUR_ALWAYS}, {"never", COLOUR_NEVER}, {NULL, 0}};

static const tool_option options[] = {
    {"from", "FILE|DESCRIPTION",
     "Another machine or cluster: a file, - for standard input, or a line of text, see TOPOLOGIES in the man page. "
     "FILE alone does the same.",
     .kind = TOOL_CALL, .check = parse_from},
    {"format", "FORMAT",
     "text (the default), json, svg, xml (for NCCL_TOPO_FILE) or matrix: see FORMATS in the man page.",
     .kind = TOOL_CALL, .check = parse_format},
    {"json", NULL, "The same as --format json.", .kind = TOOL_CALL, .check = parse_format},
    {"raw", NULL, "Print the matrix of paths as nvidia-smi topo -m does, also for other machines: --format matrix.",
     .kind = TOOL_CALL, .check = parse_raw},
    {"output", "FILE",
     "Write there instead of to standard output. Without --format the suffix selects the format: " TOPO_SUFFIXES
     ". The file is replaced only when all of it is written.",
     TOOL_TEXT_AT(output), .letter = 'o'},
    {"all", NULL, "Draw all items, also equal ones, and list all groups and findings.", TOOL_FLAG_AT(all)},
    {"colour", NULL, "Use colours. The default is to use them in a terminal, unless NO_COLOR is set.",
     TOOL_NAME_AT(colour, colourings)},
    {"color", NULL, NULL, TOOL_NAME_AT(colour, colourings)},
    {.help = "In place of the picture"},
    {"levels", NULL,
     "Show all levels as a table: groups of ranks that are close to one another, with the ranks of each.",
     TOOL_VALUE_AT(task, TASK_LEVELS)},
    {"check", NULL,
     "Check the health of the machine. Prints a line for each fault and note: severity, id, what is wrong where, and "
     "what to do. A healthy machine prints nothing. The exit status is 0 if it is healthy, 1 if there are only notes, "
     "3 if there are faults. With several files, or a folder, each line begins with the file. See CHECKING in the man "
     "page.",
     TOOL_VALUE_AT(task, TASK_CHECK)},
    {"diff", NULL, "Show the differences between two files or descriptions, FIRST and SECOND.",
     TOOL_VALUE_AT(task, TASK_DIFF)},
    {"measure", NULL,
     "Measure latency and bandwidth between the CPUs of this machine, compare them with what plans expect, and name "
     "slow pairs: see MEASURING in the man page.",
     TOOL_VALUE_AT(task, TASK_MEASURE)},
    {.help = "With --check"},
    {"profile", "FILE",
     "Also compare with a profile of the machine in good health: missing or slower parts are faults. The profile is "
     "any file that --from takes. If it has one host, each host is compared with it.",
     TOOL_TEXT_AT(profile), TOOL_GROUP(check_only)},
    {"save-profile", "FILE", "Write the machine to this file as a profile, unless there are faults.",
     TOOL_TEXT_AT(save_profile), TOOL_GROUP(check_only)},
    {"mute", "ID[,ID]", "Leave out findings of these ids.", TOOL_TEXT_AT(mute), TOOL_GROUP(check_only)},
    {.help = "With --measure"},
    {"ranks", "N", "Measure between the first N CPUs that may be used; default all.",
     TOOL_INT_AT(measure.ranks, 1, TOPO_RANKS_MAX), TOOL_GROUP(measure_only)},
    {"seconds", "S", "Measure for at most about this long; default 10.", .kind = TOOL_CALL, .check = parse_seconds,
     TOOL_GROUP(measure_only)},
    {"save-costs", "FILE",
     "Also write the measurements to this file, as costs that the library plans with if BANYAN_COSTS names it.",
     TOOL_TEXT_AT(save_costs), TOOL_GROUP(measure_only)},
    {NULL}};

/* Checks the combination of options, and chooses the format. */
static bool complete_arguments(void *opaque, int argc, char **argv, tool_error *error) {
  arguments *a = opaque;
  int rest = argc - optind;
  if (a->task == TASK_DIFF) {
    if (rest != 2 || a->from[0] != NULL)
      return tool_error_set(error, "--diff wants two files or descriptions: " PROGRAM " --diff FIRST SECOND");
    a->from[0] = argv[optind];
    a->from[1] = argv[optind + 1];
  } else if (rest > 0 && a->task != TASK_CHECK && (rest > 1 || a->from[0] != NULL)) {
    return tool_error_set(error, "%.100s: one file at a time, but with --check and --diff", argv[argc - 1]);
  } else if (rest > 0) {
    int first = a->from[0] == NULL;
    a->from[0] = first ? argv[optind] : a->from[0];
    a->more = argv + optind + first;
    a->nmore = rest - first;
  }
  if (a->format == NULL && a->output != NULL && strcmp(a->output, "-") != 0) {
    a->format = topo_format_of_path(a->output);
    if (a->format == NULL) {
      return tool_error_set(error, "%.200s: its name does not select a format: add --format, or a suffix (%s)",
                            a->output, TOPO_SUFFIXES);
    }
  }
  a->format = a->format == NULL ? "text" : a->format;
  if (a->task == TASK_MEASURE && a->from[0] != NULL)
    return tool_error_set(error, "--measure measures this machine: not with --from");
  if (a->task != TASK_MEASURE && a->measure_only != NULL)
    return tool_error_set(error, "--%s goes with --measure", a->measure_only);
  if (a->task != TASK_CHECK && a->check_only != NULL)
    return tool_error_set(error, "--%s goes with --check", a->check_only);
  bool plain = strcmp(a->format, "text") == 0 || strcmp(a->format, "json") == 0;
  if (a->task != TASK_SHOW && !plain)
    return tool_error_set(error, "--format %s: --levels, --check and --diff are written as text or json", a->format);
  return true;
}

static const tool_program program = {
    .name = PROGRAM,
    .title = "what a machine or cluster is made of, how its parts are joined, and what is wrong with it",
    .usage = "[FILE|DESCRIPTION|-] [--levels|--check] [OPTION]...\n"
             "--check [FILE|FOLDER]... [--profile FILE] [--save-profile FILE] [--mute ID[,ID]]\n"
             "--diff FIRST SECOND [--json] [-o FILE]\n"
             "--measure [--ranks N] [--seconds S] [--save-costs FILE] [--json] [-o FILE]",
    .about = "Shows this machine, or one that a file or a line of text describes: packages, NUMA nodes, GPUs and NICs, "
             "the links between them and their speeds, the levels that plans use, and faults.",
    .failed = "--check found notes alone, --diff differences, or --measure something slow",
    .faults = "--check found faults",
    .options = options,
    .complete = complete_arguments};

/* ---- display ----------------------------------------------------------------------------------------------------- */

static int32_t columns_of_terminal(void) {
  const char *variable = getenv("COLUMNS");
  int64_t columns = tool_terminal_columns();
  if (columns == 0 && (variable == NULL || !tool_parse_int(variable, 1, 100000, &columns))) columns = COLUMNS_DEFAULT;
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

/* Sets the title to the name of the input. */
static void set_title(machine *m, const char *from) {
  const char *name = from == NULL ? "this machine" : strcmp(from, "-") == 0 ? "standard input" : from;
  size_t length = strlen(name);
  if (length >= sizeof m->title) /* keep the end, which is more specific */
    snprintf(m->title, sizeof m->title, "...%s", name + length - (sizeof m->title - 4));
  else
    snprintf(m->title, sizeof m->title, "%s", name);
  tool_printable(m->title);
}

/* Sets the costs that plans assume between CPU ranks by default. */
static topo_measure_options with_plans(topo_measure_options options) {
  for (int near = 0; near < TOPO_NEARS; near++) {
    const bny_price *link = &bny_prices_default.rows[near == TOPO_NEAR_SYSTEM ? BNY_LINK_SOCKETS : BNY_LINK_MEMORY];
    options.planned[near] = (topo_cost){link->software_ns + link->way_ns, 1 / link->gbytes_per_s};
  }
  return options;
}

static bool load(const arguments *a, const char *from, machine *m, tool_error *error) {
  bny_topo_error why = {.text = ""};
  int32_t nreports = 0;
  m->topo = from == NULL ? bny_topo_probe_machine(NULL, m->reports, &nreports, &why)
                         : bny_topo_load_waiting(from, NULL, &why);
  if (m->topo == NULL) return tool_error_set(error, "%s", why.text);
  if (a->task == TASK_MEASURE) {
    topo_measure_options options = with_plans(a->measure);
    m->measured = topo_measure(&options, m->topo, error);
    if (m->measured == NULL) return false;
    topo_measured_apply(m->measured, m->topo);
  }
  m->levels = bny_topo_derive(m->topo);
  if (m->levels == NULL) tool_no_memory();
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
  bny_topo_levels_free(m->levels);
  bny_topo_free(m->topo);
}

/* ---- tasks ------------------------------------------------------------------------------------------------------- */

static char *show_measured(const machine *m, const char *costs, bool json, int *exit_status, tool_error *error) {
  for (int32_t f = 0; f < m->measured->nfindings; f++)
    *exit_status = m->measured->findings[f].warning ? TOOL_EXIT_FAILED : *exit_status;
  char *saved = costs == NULL ? NULL : topo_measured_costs(m->measured, error);
  if (costs != NULL && (saved == NULL || !topo_output(costs, saved, error))) return NULL;
  return json ? topo_view_json(&m->view) : topo_measured_text(m->measured, m->topo, m->view.colour, m->view.columns);
}

static char *check(const arguments *a, machine machines[2], int *exit_status, tool_error *error) {
  const topo_view *view = &machines[0].view;
  bny_topo_levels *levels = machines[0].levels;
  topo_check_probes(view, levels);
  if (a->profile != NULL) topo_check_profile(&machines[1].view, view, levels);
  if (a->mute != NULL && !topo_check_mute(levels, a->mute, error)) return NULL;
  char *text = topo_check(view, strcmp(a->format, "json") == 0, exit_status);
  if (a->save_profile == NULL) return text;
  bny_topo_error why = {.text = ""};
  char *json = *exit_status == TOOL_EXIT_FAULTS ? NULL : bny_topo_export_json(view->topo, &why);
  if (*exit_status == TOOL_EXIT_FAULTS) {
    fprintf(stderr, PROGRAM ": no profile was saved: mend the faults first, or leave them out with --mute\n");
  } else if (json == NULL || !topo_output(a->save_profile, json, error)) {
    text = NULL;
  }
  free(json);
  return text;
}

/* Appends the check of one input. An input that cannot be read gives an error line, and the others are still
 * checked. */
static bool check_one(const arguments *a, const char *name, machine machines[2], FILE *out, int *worst, bool *first,
                      tool_error *error) {
  tool_error why = {.text = ""};
  int exit_status = TOOL_EXIT_OK;
  size_t mark = tool_mark();
  machines[0] = (machine){.topo = NULL};
  bool loaded = load(a, name, &machines[0], &why);
  machines[0].view.titled = true;
  char *text = loaded ? check(a, machines, &exit_status, error) : NULL;
  unload(&machines[0]);
  machines[0] = (machine){.topo = NULL};
  if (text == NULL && loaded) return false;
  if (text == NULL) fprintf(stderr, PROGRAM ": %s\n", why.text);
  if (text == NULL) exit_status = TOOL_EXIT_USAGE;
  *worst = exit_status > *worst ? exit_status : *worst; /* in this order */
  if (text != NULL) fprintf(out, "%s%s", strcmp(a->format, "json") != 0 ? "" : *first ? "[\n" : ",\n", text);
  *first = *first && text == NULL;
  tool_release(mark);
  return true;
}

/* Checks several inputs. JSON is an array. */
static char *check_all(const arguments *a, const topo_inputs *inputs, machine machines[2], int *exit_status,
                       tool_error *error) {
  tool_page page;
  bool good = true, first = true, json = strcmp(a->format, "json") == 0;
  FILE *out = tool_page_begin(&page);
  *exit_status = TOOL_EXIT_OK;
  for (int32_t i = 0; good && i < inputs->count; i++)
    good = check_one(a, inputs->names[i], machines, out, exit_status, &first, error);
  if (json) fputs(first ? "[]\n" : "]\n", out);
  char *text = tool_page_end(&page);
  return good ? text : NULL;
}

/* Returns the text to write. On failure it returns NULL and sets *error. */
static char *work(const arguments *a, machine machines[2], int *exit_status, tool_error *error) {
  bool json = strcmp(a->format, "json") == 0;
  *exit_status = TOOL_EXIT_OK;
  switch (a->task) {
  case TASK_LEVELS: return (json ? topo_view_json : topo_view_levels)(&machines[0].view);
  case TASK_CHECK: return check(a, machines, exit_status, error);
  case TASK_MEASURE: return show_measured(&machines[0], a->save_costs, json, exit_status, error);
  case TASK_DIFF: return topo_diff(&machines[0].view, &machines[1].view, json, exit_status);
  default: return topo_format_text(topo_format_find(a->format), &machines[0].view, error);
  }
}

int main(int argc, char **argv) {
  arguments a = {.task = TASK_SHOW};
  machine machines[2] = {{.topo = NULL}, {.topo = NULL}};
  tool_error error = {.text = ""};
  int exit_status;
  setlocale(LC_CTYPE, "");
  if (!tool_options_parse(&program, argc, argv, &a, &exit_status)) return exit_status;
  topo_inputs inputs = {.names = NULL};
  const char *other = a.task == TASK_DIFF ? a.from[1] : a.profile;
  bool ok = a.task != TASK_CHECK || a.from[0] == NULL || topo_inputs_add(&inputs, a.from[0], &error);
  for (int i = 0; ok && i < a.nmore; i++) ok = topo_inputs_add(&inputs, a.more[i], &error);
  bool several = inputs.count > 1 || (inputs.count == 1 && strcmp(inputs.names[0], a.from[0]) != 0);
  if (ok && several && a.save_profile != NULL) ok = tool_error_set(&error, "--save-profile takes one machine");
  ok = ok && (several || load(&a, a.from[0], &machines[0], &error)) &&
       (other == NULL || load(&a, other, &machines[1], &error));
  char *text = !ok       ? NULL
               : several ? check_all(&a, &inputs, machines, &exit_status, &error)
                         : work(&a, machines, &exit_status, &error);
  ok = text != NULL && topo_output(a.output, text, &error);
  unload(&machines[0]);
  unload(&machines[1]);
  tool_release(0);
  return tool_error_usage(&error, ok) ? exit_status : tool_options_fail(&program, &error);
}
