/* SPDX-License-Identifier: Apache-2.0
 * banyan-topo: shows the topology of this machine, or of a machine that a file or a line of text describes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/printable.h"
#include "tools/common/options.h"
#include "tools/topo/topo.h"
#include "tools/topo/measure/measure.h"
#include "tools/topo/import/import.h"

#define PROGRAM "banyan-topo"

typedef enum task { TASK_SHOW, TASK_LEVELS, TASK_CHECK, TASK_COSTS } task;
typedef enum format { FORMAT_TEXT, FORMAT_JSON, FORMAT_DOT } format;

/* A model and its derived data. */
typedef struct machine {
  bny_topo *topo;
  bny_topo_levels *levels;
  topo_view view;
  bny_topo_probe_report reports[BNY_TOPO_PROBES];
  char title[256];
} machine;

typedef struct arguments {
  task task;
  format format;
  const char *from;   /* NULL: this machine */
  const char *output; /* NULL: standard output */
  bool all;
  const char *save_costs; /* NULL: not requested */
  int64_t seconds_ns;     /* 0: not given */
} arguments;

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static const tool_option options[] = {
    {"from", "FILE|DESCRIPTION",
     "Another machine or cluster: a file, - for standard input, or a line of text, see TOPOLOGIES in the man page. "
     "FILE alone does the same.",
     TOOL_TEXT_AT(from)},
    {"json", NULL, "Write the whole model as JSON, which can be read again, see JSON in the man page.",
     TOOL_VALUE_AT(format, FORMAT_JSON)},
    {"dot", NULL, "Write a graph for Graphviz, as in banyan-topo --dot | dot -Tsvg.",
     TOOL_VALUE_AT(format, FORMAT_DOT)},
    {"output", "FILE",
     "Write there instead of to standard output. The file is replaced only when all of it is written.",
     TOOL_TEXT_AT(output), .letter = 'o'},
    {"all", NULL, "Show all hosts, also equal ones, and all groups and findings.", TOOL_FLAG_AT(all)},
    {.help = "In place of all this"},
    {"levels", NULL,
     "Show all levels as a table: groups of ranks that are close to one another, with the ranks of each.",
     TOOL_VALUE_AT(task, TASK_LEVELS)},
    {"check", NULL,
     "Check the health of the machine. Prints a line for each fault and note: severity, id, what is wrong where, and "
     "what to do. A healthy machine prints nothing. The exit status is 0 if it is healthy, 1 if there are only notes, "
     "3 if there are faults. See CHECKING in the man page.",
     TOOL_VALUE_AT(task, TASK_CHECK)},
    {"save-costs", "FILE",
     "Measure latency and bandwidth between the CPUs of this machine, and write them to this file, as costs that the "
     "library plans with if BANYAN_COSTS names it: see MEASURING in the man page.",
     TOOL_TEXT_AT(save_costs)},
    {.help = "With --save-costs"},
    {"seconds", "S", "Measure for at most about this long; default 10.", TOOL_SECONDS_AT(seconds_ns)},
    {NULL}};

/* Checks the combination of options. */
static bool complete_arguments(void *opaque, int argc, char **argv, tool_error *error) {
  arguments *a = opaque;
  int rest = argc - optind;
  if (rest > 1 || (rest == 1 && a->from != NULL))
    return tool_error_set(error, "%.100s: one file at a time", argv[argc - 1]);
  a->from = rest == 1 ? argv[optind] : a->from;
  if (a->save_costs != NULL && (a->task != TASK_SHOW || a->from != NULL || a->output != NULL))
    return tool_error_set(error, "--save-costs measures this machine and writes FILE: no file or other task beside it");
  if (a->save_costs == NULL && a->seconds_ns > 0) return tool_error_set(error, "--seconds goes with --save-costs");
  a->task = a->save_costs == NULL ? a->task : TASK_COSTS;
  if (a->task != TASK_SHOW && a->format == FORMAT_DOT)
    return tool_error_set(error, "--dot draws a machine: --levels and --check are written as text or JSON");
  return true;
}

static const tool_program program = {
    .name = PROGRAM,
    .title = "what a machine or cluster is made of, how its parts are joined, and what is wrong with it",
    .usage = "[FILE|DESCRIPTION|-] [--levels|--check] [OPTION]...\n"
             "--save-costs FILE [--seconds S]",
    .about = "Shows this machine, or one that a file or a line of text describes: packages, NUMA nodes, GPUs and NICs, "
             "the links between them and their speeds, the levels that plans use, and faults.",
    .failed = "--check found notes alone",
    .faults = "--check found faults",
    .options = options,
    .complete = complete_arguments};

/* ---- display ----------------------------------------------------------------------------------------------------- */

/* Sets the title to the name of the input. */
static void set_title(machine *m, const char *from) {
  const char *name = from == NULL ? "this machine" : strcmp(from, "-") == 0 ? "standard input" : from;
  size_t length = strlen(name);
  if (length >= sizeof m->title) /* keep the end, which is more specific */
    snprintf(m->title, sizeof m->title, "...%s", name + length - (sizeof m->title - 4));
  else
    snprintf(m->title, sizeof m->title, "%s", name);
  bny_printable(m->title, "");
}

static bool load(const arguments *a, machine *m, tool_error *error) {
  bny_topo_error why = {.text = ""};
  const bny_topo_probe_report *reports = a->from == NULL ? m->reports : NULL;
  m->topo = a->from == NULL ? bny_topo_probe_machine(NULL, m->reports, &why) : bny_topo_load(a->from, NULL, &why);
  if (m->topo == NULL) return tool_error_set(error, "%s", why.text);
  m->levels = bny_topo_derive(m->topo);
  if (m->levels == NULL) tool_no_memory();
  set_title(m, a->from);
  m->view = (topo_view){.topo = m->topo,
                        .levels = m->levels,
                        .findings = topo_diagnose(m->topo, m->levels, reports),
                        .title = m->title,
                        .all = a->all,
                        .reports = reports};
  return true;
}

static void unload(machine *m) {
  bny_topo_levels_free(m->levels);
  bny_topo_free(m->topo);
}

/* ---- tasks ------------------------------------------------------------------------------------------------------- */

static char *save_costs(const arguments *a, tool_error *error) {
  topo_measured measured;
  if (!topo_measure(NULL, a->seconds_ns > 0 ? (double)a->seconds_ns / 1e9 : 10, &measured, error)) return NULL;
  char *text = topo_measured_costs(&measured, error);
  return text != NULL && topo_output(a->save_costs, text, error) ? tool_format("%s", "") : NULL;
}

/* Returns the text to write. On failure it returns NULL and sets *error. */
static char *work(const arguments *a, const machine *m, int *exit_status, tool_error *error) {
  static char *(*const views[])(const topo_view *) = {topo_view_text, topo_view_json, topo_view_dot};
  *exit_status = TOOL_EXIT_OK;
  switch (a->task) {
  case TASK_LEVELS: return (a->format == FORMAT_JSON ? topo_view_json : topo_view_levels)(&m->view);
  case TASK_CHECK: return topo_check(&m->view, a->format == FORMAT_JSON, exit_status);
  case TASK_COSTS: return save_costs(a, error);
  default: return views[a->format](&m->view);
  }
}

int main(int argc, char **argv) {
  arguments a = {.task = TASK_SHOW};
  machine m = {.topo = NULL};
  tool_error error = {.text = ""};
  int exit_status;
  if (!tool_options_parse(&program, argc, argv, &a, &exit_status)) return exit_status;
  bool ok = a.task == TASK_COSTS || load(&a, &m, &error);
  char *text = ok ? work(&a, &m, &exit_status, &error) : NULL;
  ok = text != NULL && topo_output(a.output, text, &error);
  unload(&m);
  tool_release(0);
  return tool_error_usage(&error, ok) ? exit_status : tool_options_fail(&program, &error);
}
