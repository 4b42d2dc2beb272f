/* SPDX-License-Identifier: Apache-2.0
 * banyan-info: what this copy of banyan is, what it finds on this machine, and what it would choose. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "tools/info/section.h"

#define PROGRAM "banyan-info"

enum { EXIT_USAGE = 2, RANKS_MAX = 16384 };

static const info_section *const sections[] = {&info_build, &info_options, &info_devices, &info_transports,
                                               &info_selection};
enum { SECTIONS = sizeof sections / sizeof sections[0] };

typedef struct arguments {
  info_request request;
  bool json;
  bool wanted[SECTIONS];
} arguments;

static const char usage[] = "usage: " PROGRAM " [--ranks N [--levels LIST]] [--json] [SECTION...]\n";

static const char help[] =
    "\n"
    "Prints what this copy of banyan is and what it finds on this machine. Sections; all, if none is named:\n"
    "\n"
    "  build               compiler, and which optional packages it was built with\n"
    "  options             environment variables, their values and where each comes from\n"
    "  devices             CPU, kernels chosen, CUDA driver, GPUs and NICs\n"
    "  transports          between which ranks messages can be moved, and why not between others\n"
    "  selection           the algorithm of a combine of 1 KiB to 64 MiB, by scatter\n"
    "\n"
    "  --ranks N           selection: for N alike ranks of one host; default: those of this machine\n"
    "  --levels LIST       with --ranks: groups of so many ranks, then so many of those, such as 4,8\n"
    "  --json              one object on stdout and nothing else\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 success, 1 something could not be found out, 2 wrong usage.\n";

enum option_code { OPT_RANKS = 256, OPT_LEVELS, OPT_JSON, OPT_HELP, OPT_VERSION };

static const struct option option_table[] = {{"ranks", required_argument, NULL, OPT_RANKS},
                                             {"levels", required_argument, NULL, OPT_LEVELS},
                                             {"json", no_argument, NULL, OPT_JSON},
                                             {"help", no_argument, NULL, OPT_HELP},
                                             {"version", no_argument, NULL, OPT_VERSION},
                                             {NULL, 0, NULL, 0}};

static bool parse_option(int code, arguments *a, tool_error *error) {
  switch (code) {
  case OPT_RANKS: return tool_option_int("ranks", optarg, 1, RANKS_MAX, &a->request.ranks, error);
  case OPT_LEVELS: a->request.levels = optarg; return true;
  case OPT_JSON: a->json = true; return true;
  default: return false;
  }
}

static bool parse_section(const char *name, arguments *a, tool_error *error) {
  for (int i = 0; i < SECTIONS; i++) {
    if (strcmp(name, sections[i]->name) == 0) {
      a->wanted[i] = true;
      return true;
    }
  }
  return tool_error_set(error, "%.60s: no section; there are build, options, devices, transports and selection", name);
}

/* Returns true to go on, or false with *exit_status set. */
static bool parse_arguments(int argc, char **argv, arguments *a, int *exit_status) {
  tool_error error = {.text = ""};
  bool ok = true;
  int code;
  while (ok && (code = getopt_long(argc, argv, "h", option_table, NULL)) != -1) {
    if (code == OPT_HELP || code == 'h') {
      printf("%s%s", usage, help);
    } else if (code == OPT_VERSION) {
      printf(PROGRAM " %s\n", banyan_version());
    } else {
      ok = parse_option(code, a, &error);
      continue;
    }
    *exit_status = fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    return false;
  }
  for (int i = 0; ok && optind == argc && i < SECTIONS; i++) {
    a->wanted[i] = true;
  }
  while (ok && optind < argc) {
    ok = parse_section(argv[optind++], a, &error);
  }
  if (ok && a->request.levels != NULL && a->request.ranks == 0) {
    ok = tool_error_set(&error, "--levels goes with --ranks");
  }
  if (!ok) {
    if (error.text[0] != '\0') {
      fprintf(stderr, PROGRAM ": %s\n", error.text);
    }
    fputs(usage, stderr);
  }
  *exit_status = EXIT_USAGE;
  return ok;
}

/* What one section could not find out does not keep back the others. */
static int run(const arguments *a) {
  int exit_status = EXIT_SUCCESS;
  json_t *all = json_pack("{s:s}", "version", banyan_version());
  if (!a->json) {
    printf("banyan %s\n", banyan_version());
  }
  for (int i = 0; i < SECTIONS; i++) {
    tool_error error = {.text = ""};
    if (!a->wanted[i]) {
      continue;
    }
    json_t *facts = sections[i]->gather(&a->request, &error);
    if (facts == NULL) {
      fprintf(stderr, PROGRAM ": %s: %s\n", sections[i]->name, error.text);
      exit_status = EXIT_FAILURE;
      continue;
    }
    if (!a->json) {
      printf("\n%s\n", sections[i]->title);
      sections[i]->print(facts, stdout);
    }
    json_object_set_new(all, sections[i]->name, facts);
  }
  if (a->json && (json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) != 0 || putchar('\n') == EOF)) {
    exit_status = EXIT_FAILURE;
  }
  json_decref(all);
  if (fflush(stdout) != 0) {
    fprintf(stderr, PROGRAM ": cannot write to standard output\n");
    exit_status = EXIT_FAILURE;
  }
  return exit_status;
}

int main(int argc, char **argv) {
  arguments a = {.json = false};
  int exit_status;
  /* UCX is asked what it has, and writes what it thinks of that to stdout, which is for this program. */
  setenv("UCX_LOG_FILE", "stderr", 0);
  return parse_arguments(argc, argv, &a, &exit_status) ? run(&a) : exit_status;
}
