/* SPDX-License-Identifier: Apache-2.0
 * Reads a command line by a table of options, and prints help and man page from the same table. */
#include "tools/common/options.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/common/launch.h"

enum { OPTIONS_MAX = 48, HELP_COLUMN = 22, NAMES_BYTES = 128, CODE_FIRST = 256 };
enum { CODE_HELP = CODE_FIRST + OPTIONS_MAX, CODE_VERSION, CODE_MAN };

/* Date of the man pages. */
#define MAN_DATE "November 22, 2026"

static const tool_option last_options[] = {{"help", NULL, "Print this summary and exit.", .kind = TOOL_FLAG},
                                           {"version", NULL, "Print the version and exit.", .kind = TOOL_FLAG},
                                           {.name = NULL}};

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Returns "f32|f16|bf16", or the argument in the table; "" for none. */
static const char *argument_of(const tool_option *option, const char *separator, char text[NAMES_BYTES]) {
  int length = 0;
  text[0] = '\0';
  if (option->argument != NULL || option->names == NULL) return option->argument == NULL ? "" : option->argument;
  for (const bny_name *n = option->names; n->text != NULL && length < NAMES_BYTES; n++)
    length += snprintf(text + length, NAMES_BYTES - (size_t)length, "%s%s", length == 0 ? "" : separator, n->text);
  return text;
}

static bool takes_argument(const tool_option *option) { return option->argument != NULL || option->names != NULL; }

static void print_option(const tool_option *option) {
  char head[256], names[NAMES_BYTES];
  if (option->kind == TOOL_HEADING) {
    printf("\n%s:\n", option->help);
  } else {
    const char letter[] = {'-', option->letter, ',', ' ', '\0'};
    int length = snprintf(head, sizeof head, "  %s--%s%s%s", option->letter == 0 ? "" : letter, option->name,
                          takes_argument(option) ? " " : "", argument_of(option, "|", names));
    printf("%-*s", HELP_COLUMN, head);
    if (length >= HELP_COLUMN) printf("\n%*s", HELP_COLUMN, "");
    tool_print_wrapped(stdout, HELP_COLUMN, HELP_COLUMN, option->help);
  }
}

static void print_help(const tool_program *program) {
  const char *word = "usage:";
  for (const char *line = program->usage; *line != '\0'; word = "", line += strspn(line, "\n")) {
    size_t length = strcspn(line, "\n");
    printf("%-6s %s %.*s\n", word, program->name, (int)length, line);
    line += length;
  }
  fputc('\n', stdout);
  tool_print_wrapped(stdout, 0, 0, program->about);
  if (program->options[0].kind != TOOL_HEADING) fputc('\n', stdout);
  for (const tool_option *o = program->options; o->name != NULL || o->help != NULL; o++) print_option(o);
  for (const tool_option *o = last_options; o->name != NULL; o++) print_option(o);
  printf("\nExit status: 0 success\n             1 %s\n             2 " TOOL_USAGE_TEXT "\n", program->failed);
  if (program->faults != NULL) printf("             3 %s\n", program->faults);
}

/* ---- the man page ------------------------------------------------------------------------------------------------ */

/* Prints text as mdoc: one sentence per line, with escaped requests. */
static void man_text(const char *text) {
  for (bool first = true; *text != '\0'; text++) {
    if (first && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
    if (strncmp(text, "\n\n", 2) == 0) {
      fputs("\n.Pp\n", stdout);
      text++;
    } else if (*text == '\\') {
      fputs("\\e", stdout);
    } else {
      putchar(*text == ' ' && !first && text[-1] == '.' ? '\n' : *text);
    }
    first = *text == '\n' || (*text == ' ' && !first && text[-1] == '.');
  }
  putchar('\n');
}

static void man_option(const tool_option *option, bool first) {
  char names[NAMES_BYTES];
  if (option->kind == TOOL_HEADING) {
    printf("%s.Ss %s\n.Bl -tag -width Ds\n", first ? "" : ".El\n", option->help);
  } else {
    printf(".It ");
    if (option->letter != 0) printf("Fl %c , ", option->letter);
    printf("Fl -%s%s%s\n", option->name, takes_argument(option) ? " Ar " : "", argument_of(option, " | ", names));
    man_text(option->help);
  }
}

/* Prints the sections that follow from the table. Handwritten sections come after them: see man_page in local.mk. */
static void print_man(const tool_program *program) {
  char capitals[32] = "";
  for (size_t i = 0; program->name[i] != '\0' && i + 1 < sizeof capitals; i++) {
    char c = program->name[i];
    capitals[i] = c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
  }
  printf(".\\\" SPDX-License-Identifier: Apache-2.0\n.Dd " MAN_DATE "\n.Dt %s 1\n.Os\n.Sh NAME\n.Nm %s\n.Nd %s\n",
         capitals, program->name, program->title);
  printf(".Sh SYNOPSIS\n");
  for (const char *line = program->usage; *line != '\0'; line += strspn(line, "\n")) {
    size_t length = strcspn(line, "\n");
    printf(".Nm\n%.*s\n", (int)length, line);
    line += length;
  }
  printf(".Sh DESCRIPTION\n");
  man_text(program->about);
  printf(".Sh OPTIONS\n%s", program->options[0].kind == TOOL_HEADING ? "" : ".Bl -tag -width Ds\n");
  for (const tool_option *o = program->options; o->name != NULL || o->help != NULL; o++)
    man_option(o, o == program->options);
  for (const tool_option *o = last_options; o->name != NULL; o++) man_option(o, false);
  printf(".El\n.Sh EXIT STATUS\n.Bl -tag -width 128+N -compact\n.It 0\nsuccess\n.It 1\n%s\n.It 2\n" TOOL_USAGE_TEXT
         "\n",
         program->failed);
  if (program->faults != NULL) printf(".It 3\n%s\n", program->faults);
  if (program->ranks) printf(".It 127\nlocal ranks could not be started\n.It 128+N\nsignal N ended a local rank\n");
  printf(".El\n");
}

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

static int64_t load(const tool_option *option, const void *at) {
  return option->bytes == 1 ? *(const int8_t *)at : option->bytes == 4 ? *(const int32_t *)at : *(const int64_t *)at;
}

static bool store(const tool_option *option, void *at, int64_t value) {
  if (option->bytes == 1)
    *(int8_t *)at = (int8_t)value;
  else if (option->bytes == 4)
    *(int32_t *)at = (int32_t)value;
  else
    *(int64_t *)at = value;
  return true;
}

static bool store_exclusive(const tool_program *program, const tool_option *option, void *at, tool_error *error) {
  int64_t before = load(option, at);
  char list[NAMES_BYTES] = "";
  int length = 0;
  if (before == 0 || before == option->min) return store(option, at, option->min);
  for (const tool_option *o = program->options; o->name != NULL || o->help != NULL; o++) {
    if (o->kind == TOOL_VALUE && o->offset == option->offset && length < NAMES_BYTES)
      length += snprintf(list + length, sizeof list - (size_t)length, "%s--%s", length == 0 ? "" : ", ", o->name);
  }
  return tool_error_set(error, "%s: one at a time", list);
}

static bool store_number(const tool_option *option, void *at, const char *text, tool_error *error) {
  int64_t number;
  if (!tool_parse_int(text, option->min, option->max, &number)) {
    return tool_error_set(error, "--%s %.60s: not a whole number from %" PRId64 " to %" PRId64, option->name, text,
                          option->min, option->max);
  }
  return store(option, at, option->kind == TOOL_SECONDS ? number * 1000000000 : number);
}

static bool store_bytes(const tool_option *option, void *at, const char *text, tool_error *error) {
  size_t bytes;
  if (!tool_parse_bytes(text, &bytes) || (int64_t)bytes < option->min || (int64_t)bytes > option->max) {
    return tool_error_set(error, "--%s %.60s: not a size from 1 to %" PRId64 "M", option->name, text,
                          option->max >> 20);
  }
  return store(option, at, (int64_t)bytes);
}

static bool store_name(const tool_option *option, void *at, const char *text, tool_error *error) {
  char names[NAMES_BYTES];
  int value;
  if (bny_name_find(option->names, text, &value)) return store(option, at, value);
  tool_option plain = *option;
  plain.argument = NULL;
  return tool_error_set(error, "--%s %.60s: not one of %s", option->name, text, argument_of(&plain, ", ", names));
}

static bool take(const tool_program *program, const tool_option *option, void *arguments, const char *text,
                 tool_error *error) {
  void *at = (char *)arguments + option->offset;
  bool ok = true;
  switch (option->kind) {
  case TOOL_FLAG: ok = store(option, at, 1); break;
  case TOOL_VALUE: ok = store_exclusive(program, option, at, error); break;
  case TOOL_TEXT: *(const char **)at = text; break;
  case TOOL_INT:
  case TOOL_SECONDS: ok = store_number(option, at, text, error); break;
  case TOOL_BYTES: ok = store_bytes(option, at, text, error); break;
  case TOOL_NAME: ok = store_name(option, at, text, error); break;
  default: break;
  }
  const char **group = (const char **)((char *)arguments + option->group);
  if (option->group > 0 && *group == NULL) *group = option->name;
  return ok && (option->check == NULL || option->check(arguments, text, error));
}

/* The table for getopt_long, which ends with the options that all tools have. */
static void make_table(const tool_program *program, struct option *table, char *letters) {
  int count = 0;
  *letters++ = ':'; /* distinguishes a missing argument from an unknown option */
  *letters++ = 'h';
  for (const tool_option *o = program->options; o->name != NULL || o->help != NULL; o++, count++) {
    bool argument = takes_argument(o);
    int code = CODE_FIRST + (int)(o - program->options);
    /* The name of a heading cannot be typed. */
    table[count] =
        (struct option){o->name == NULL ? "\n" : o->name, argument ? required_argument : no_argument, NULL, code};
    if (o->letter != 0) {
      *letters++ = o->letter;
      *letters = ':';
      letters += argument;
    }
  }
  *letters = '\0';
  table[count++] = (struct option){"help", no_argument, NULL, CODE_HELP};
  table[count++] = (struct option){"version", no_argument, NULL, CODE_VERSION};
  table[count++] = (struct option){"help-man", no_argument, NULL, CODE_MAN};
  table[count] = (struct option){NULL, 0, NULL, 0};
}

static bool reject(int code, char **argv, tool_error *error) {
  const char *word = argv[optind - 1];
  return code == ':'     ? tool_error_set(error, "%.60s wants an argument", word)
         : optopt >= 256 ? tool_error_set(error, "%.60s takes no argument", word)
                         : tool_error_set(error, "%.60s: no such option", word);
}

static const tool_option *option_of(const tool_program *program, int code) {
  const tool_option *o = program->options;
  if (code >= CODE_FIRST) return o + (code - CODE_FIRST);
  while (o->letter != code) o++;
  return o;
}

bool tool_options_parse(const tool_program *program, int argc, char **argv, void *arguments, int *exit_status) {
  bool speaks = !program->ranks || bny_launch_speaks(), ok = true;
  struct option table[OPTIONS_MAX + 4];
  char letters[2 * OPTIONS_MAX + 3];
  bool seen[OPTIONS_MAX] = {false};
  tool_error error = {.text = ""};
  int code;
  make_table(program, table, letters);
  opterr = 0;
  while (ok && (code = getopt_long(argc, argv, letters, table, NULL)) != -1) {
    if (code == 'h' || code >= CODE_HELP) {
      if (speaks && code == CODE_VERSION)
        printf("%s %s\n", program->name, banyan_version());
      else if (speaks)
        (code == CODE_MAN ? print_man : print_help)(program);
      bool written = tool_flush(stdout) || tool_error_stdout(&error);
      *exit_status = written ? TOOL_EXIT_OK : tool_options_fail(program, &error);
      return false;
    }
    const tool_option *option = code == '?' || code == ':' ? NULL : option_of(program, code);
    bool *again = option == NULL ? NULL : &seen[option - program->options];
    ok = option == NULL ? reject(code, argv, &error)
         : *again       ? tool_error_set(&error, "--%s is given twice", option->name)
                        : take(program, option, arguments, optarg, &error);
    if (again != NULL) *again = true;
  }
  ok = ok && program->complete(arguments, argc, argv, &error);
  for (char *c = error.text; *c != '\0'; c++) *c = *c == '\n' ? '?' : *c; /* keeps the error on one line */
  if (!ok && speaks) fprintf(stderr, "%s: %s\ntry '%s --help'\n", program->name, error.text, program->name);
  /* A launcher ends all ranks when the first one fails, so the silent ones wait until rank 0 has printed and failed. */
  if (!ok && !speaks) nanosleep(&(struct timespec){.tv_sec = 20}, NULL);
  *exit_status = TOOL_EXIT_USAGE;
  return ok;
}

int tool_options_fail(const tool_program *program, const tool_error *error) {
  fprintf(stderr, "%s: %s\n", program->name, error->text);
  return error->status;
}

bool tool_check_device(void *arguments, const char *text, tool_error *error) {
  (void)arguments;
  return tool_option_device(text, &(int32_t){0}, error);
}
