/* SPDX-License-Identifier: Apache-2.0
 * The command line of a tool. One table of options drives parsing, --help and the man page. */
#pragma once

#include <stddef.h>
#include <stdio.h>

#include "tools/common/util.h"

typedef enum tool_option_kind {
  TOOL_HEADING, /* not an option: `help` is a heading for the rows that follow */
  TOOL_FLAG,
  TOOL_VALUE, /* a flag that stores `min`; options that share a member exclude each other */
  TOOL_TEXT,
  TOOL_INT,
  TOOL_SECONDS, /* whole seconds, stored in nanoseconds */
  TOOL_BYTES,
  TOOL_NAME /* one of `names` */
} tool_option_kind;

/* The member of the tool's `struct arguments` that receives a value. Integers may have 1, 4 or 8 bytes. */
#define TOOL_AT(member) .offset = offsetof(arguments, member), .bytes = sizeof((arguments *)0)->member
#define TOOL_FLAG_AT(member) .kind = TOOL_FLAG, TOOL_AT(member)
#define TOOL_VALUE_AT(member, value) .kind = TOOL_VALUE, TOOL_AT(member), .min = (value)
#define TOOL_TEXT_AT(member) .kind = TOOL_TEXT, TOOL_AT(member)
#define TOOL_INT_AT(member, least, most) .kind = TOOL_INT, TOOL_AT(member), .min = (least), .max = (most)
#define TOOL_SECONDS_AT(member) .kind = TOOL_SECONDS, TOOL_AT(member), .min = 1, .max = 1000000
#define TOOL_BYTES_AT(member, most) .kind = TOOL_BYTES, TOOL_AT(member), .min = 1, .max = (int64_t)(most)
#define TOOL_NAME_AT(member, list) .kind = TOOL_NAME, TOOL_AT(member), .names = (list)
/* The string member receives the name of the first option of a group that appears on the command line. */
#define TOOL_GROUP(member) .group = offsetof(arguments, member)

typedef struct tool_option {
  const char *name;     /* without dashes */
  const char *argument; /* NULL: none, or built from `names` */
  const char *help;     /* plain sentences */
  tool_option_kind kind;
  char letter; /* a short form; 0: none */
  size_t offset, bytes, group;
  int64_t min, max;
  const bny_name *names;
  bool (*check)(void *arguments, const char *text,
                tool_error *error); /* NULL: none; called after the value is stored */
} tool_option;

typedef struct tool_program {
  const char *name;
  const char *title;          /* one line, for the man page */
  const char *usage;          /* usage lines, without the name */
  const char *about;          /* paragraphs, separated by empty lines */
  const char *failed;         /* the case in which the exit status is 1 */
  const char *faults;         /* the case in which the exit status is 3; NULL: never */
  bool ranks;                 /* a launcher may start many processes: only rank 0 prints help and usage errors */
  const tool_option *options; /* the last row has neither name nor help */
  /* Handles arguments that are not options, and checks options against each other. */
  bool (*complete)(void *arguments, int argc, char **argv, tool_error *error);
} tool_program;

/* Returns true if the tool shall continue. After --help, --version or an error it returns false and sets
 * *exit_status. */
bool tool_options_parse(const tool_program *program, int argc, char **argv, void *arguments, int *exit_status);

/* Prints the error and returns the exit status. */
int tool_options_fail(const tool_program *program, const tool_error *error);

/* For .check of --device: "cuda" (the first device) or "cuda:N". */
bool tool_check_device(void *arguments, const char *text, tool_error *error);
