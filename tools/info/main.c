/* SPDX-License-Identifier: Apache-2.0
 * banyan-info: what this copy of banyan is, and what it finds on this machine. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/printable.h"
#include "tools/common/json.h"
#include "tools/common/options.h"
#include "tools/info/section.h"

#define PROGRAM "banyan-info"

enum { RANKS_MAX = 64 };

static const info_section *const sections[] = {&info_build,      &info_options, &info_devices,
                                               &info_transports, &info_levels,  &info_live};
enum { SECTIONS = sizeof sections / sizeof sections[0], LIVE = SECTIONS - 1 };

typedef struct arguments {
  info_request request;
  bool json;
  bool wanted[SECTIONS];
} arguments;

static const tool_option options[] = {
    {"ranks", "N",
     "The levels are those of N ranks, at most 64, of this machine. The default is the number of its GPUs. If there "
     "are fewer than two, it is the number of CPUs that this process may use, and at least two.",
     TOOL_INT_AT(request.ranks, 1, RANKS_MAX)},
    {"live", "PID",
     "Show what each communicator of a running process does now, which rank it waits for, and since when. The process "
     "may be stopped. Other sections are shown only if they are named.",
     TOOL_INT_AT(request.live, 1, INT32_MAX)},
    {"json", NULL, "Print one JSON object on standard output and nothing else, with a member for each section.",
     TOOL_FLAG_AT(json)},
    {NULL}};

static bool parse_section(const char *name, arguments *a, tool_error *error) {
  for (int i = 0; i < LIVE; i++) {
    if (strcmp(name, sections[i]->name) == 0) {
      a->wanted[i] = true;
      return true;
    }
  }
  return tool_error_set(error, "%.60s: no section; there are build, options, devices, transports and levels", name);
}

static bool complete_arguments(void *opaque, int argc, char **argv, tool_error *error) {
  arguments *a = opaque;
  for (int i = 0; optind == argc && i < LIVE; i++) a->wanted[i] = a->request.live == 0;
  a->wanted[LIVE] = a->request.live != 0;
  for (int i = optind; i < argc; i++) {
    if (!parse_section(argv[i], a, error)) return false;
  }
  return true;
}

static const tool_program program = {
    .name = PROGRAM,
    .title = "shows this copy of banyan, and what it finds on this machine",
    .usage = "[OPTION]... [build] [options] [devices] [transports] [levels]",
    .about =
        "Prints the version and these sections, or those that are named.\n\n"
        "build: the compiler and its flags, the instruction sets that kernels were built for, and for each optional "
        "package its version, or why it is missing.\n\n"
        "options: each environment variable of banyan, its value and where that comes from. A value that the library "
        "would reject is shown with the reason; the secret itself is not shown.\n\n"
        "devices: the CPU and the kernels that are chosen for it, the CUDA driver, GPUs and NICs.\n\n"
        "transports: between which ranks messages can be moved, and why not between others. Shared memory is tried, "
        "not assumed.\n\n"
        "levels: the localities that ranks would find, bound to processors in order as launchers bind them, and the "
        "levels "
        "that follow, with their prices and sources, and what was left out and why. banyan-plan shows which algorithms "
        "follow from them.",
    .failed = "some information is missing; standard error says which",
    .options = options,
    .complete = complete_arguments};

/* Makes all texts printable, because values of variables and names of devices come from outside. */
static void make_printable(json_t *value) {
  const char *key;
  json_t *each;
  size_t i;
  if (json_is_string(value)) {
    char *text = strdup(json_string_value(value));
    if (text) bny_printable(text, "\n");
    if (text) json_string_set_nocheck(value, text);
    free(text);
  }
  json_object_foreach(value, key, each) make_printable(each);
  json_array_foreach(value, i, each) make_printable(each);
}

/* If a section fails, the others are still printed. */
static int run(const arguments *a) {
  int exit_status = TOOL_EXIT_OK;
  json_t *all = json_object();
  tool_error error = {.text = ""};
  if (!a->json) printf("banyan %s\n", banyan_version());
  for (int i = 0; i < SECTIONS; i++) {
    if (!a->wanted[i]) continue;
    json_t *facts = sections[i]->gather(&a->request, &error);
    if (facts == NULL) {
      fprintf(stderr, PROGRAM ": %s: %s\n", sections[i]->name, error.text);
      exit_status = (int)error.status;
      continue;
    }
    make_printable(facts);
    if (!a->json) {
      printf("\n%s\n", sections[i]->title);
      sections[i]->print(facts, stdout);
    }
    json_object_set_new(all, sections[i]->name, facts);
  }
  bool written = a->json ? tool_json_write(all, stdout, &error) : tool_flush(stdout) || tool_error_stdout(&error);
  if (!a->json) json_decref(all);
  return written ? exit_status : tool_options_fail(&program, &error);
}

int main(int argc, char **argv) {
  arguments a = {.json = false};
  int exit_status;
  /* Queries of UCX write warnings to stdout, which is reserved for the output of this program. */
  setenv("UCX_LOG_FILE", "stderr", 0);
  return tool_options_parse(&program, argc, argv, &a, &exit_status) ? run(&a) : exit_status;
}
