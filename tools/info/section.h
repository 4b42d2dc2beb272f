/* SPDX-License-Identifier: Apache-2.0
 * The sections of banyan-info. Each collects its facts once, as JSON. The text output is printed from the same object,
 * so both always agree. */
#pragma once

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tools/common/util.h"

typedef struct info_request {
  int32_t ranks; /* the ranks whose levels are shown; 0: those of this machine */
  int32_t live;  /* a process; 0: none */
} info_request;

typedef struct info_section {
  const char *name; /* on the command line and in JSON */
  const char *title;
  json_t *(*gather)(const info_request *request, tool_error *error); /* NULL: *error is set */
  void (*print)(const json_t *facts, FILE *stream);
} info_section;

extern const info_section info_build, info_options, info_devices, info_transports, info_levels, info_live;

/* Returns the text of a member; "" if there is none. */
static inline const char *info_text(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text != NULL ? text : "";
}

/* Prints a row of text in lines of at most 100 columns, because names of machines may be long. */
static inline void info_row(FILE *stream, const char *label, const char *text) {
  int column = fprintf(stream, "  %-11s ", label);
  tool_print_wrapped(stream, column, column, text + strspn(text, " "));
}
