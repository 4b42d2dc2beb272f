/* SPDX-License-Identifier: Apache-2.0
 * banyan-info options: prints every environment variable of banyan, its value here and the source of that value. Fields
 * that a program sets in banyan_comm_config are not visible from outside. */
#include <string.h>

#include "tools/common/options.h"
#include "tools/info/section.h"
#include "base/options.h"

/* Fields of banyan_comm_config that correspond to an option, and which of the two has priority if both are set. */
static const struct {
  const char *option, *field;
  bool program_wins;
} fields[] = {
    {"BANYAN_TIMEOUT_MS", "timeout_ns", true},
    {"BANYAN_FIRST_TIMEOUT_MS", "first_timeout_ns", true},
    {"BANYAN_ARENA_KIB", "arena_bytes", true},
    {"BANYAN_ALGORITHM", "algorithm", false},
};

enum { HELP_COLUMN = 52 }; /* two spaces, a name, its value and where that comes from stand before it */

static void add_field(json_t *o, const char *option) {
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    if (strcmp(fields[i].option, option) == 0) {
      json_object_set_new(o, "program_field", json_string(fields[i].field));
      json_object_set_new(o, "program_wins", json_boolean(fields[i].program_wins));
    }
  }
}

static json_t *option(const bny_option_row *row) {
  const char *text = bny_option_text(row->name);
  int64_t number = 0;
  const char *source = text != NULL ? "environment" : "default";
  json_t *o = json_pack("{s:s, s:s, s:s}", "name", row->name, "source", source, "help", row->help);
  if (row->number) {
    banyan_status status = bny_option_number(row, &number);
    json_object_set_new(o, "value", status == BANYAN_OK ? json_integer(number) : json_string(text));
    json_object_set_new(o, "default", json_integer(row->standard));
    json_object_set_new(o, "unit", json_string(row->unit));
    if (status != BANYAN_OK) json_object_set_new(o, "rejected", json_string(banyan_last_error()));
  } else if (text != NULL && strcmp(row->name, "BANYAN_SECRET") == 0) {
    json_object_set_new(o, "value", json_string("(not shown)"));
  } else {
    /* JSON can hold no text that is not UTF-8. */
    json_t *value = text != NULL ? json_string(text) : json_null();
    json_object_set_new(o, "value", value != NULL ? value : json_string("(not UTF-8)"));
    if (bny_option_word(row) != BANYAN_OK) json_object_set_new(o, "rejected", json_string(banyan_last_error()));
  }
  add_field(o, row->name);
  return o;
}

static json_t *gather(const info_request *request, tool_error *error) {
  (void)request;
  (void)error;
  json_t *list = json_array();
  for (const bny_option_row *row = bny_option_rows; row->name != NULL; row++) json_array_append_new(list, option(row));
  return list;
}

static void print(const json_t *facts, FILE *stream) {
  size_t i;
  json_t *one;
  json_array_foreach(facts, i, one) {
    const json_t *value = json_object_get(one, "value");
    char number[64];
    snprintf(number, sizeof number, "%lld %s", (long long)json_integer_value(value), info_text(one, "unit"));
    const char *text = json_is_integer(value) ? number : json_is_string(value) ? json_string_value(value) : "-";
    int column = fprintf(stream, "  %-23s %-12s %-12s ", info_text(one, "name"), text, info_text(one, "source"));
    tool_print_wrapped(stream, column, HELP_COLUMN, info_text(one, "help"));
    if (json_object_get(one, "rejected") != NULL) {
      column = fprintf(stream, "%*srejected: ", HELP_COLUMN, "");
      tool_print_wrapped(stream, column, HELP_COLUMN, info_text(one, "rejected"));
    }
  }
  json_array_foreach(facts, i, one) {
    if (json_object_get(one, "program_field") != NULL) {
      bool program = json_is_true(json_object_get(one, "program_wins"));
      fprintf(stream, "  A program's banyan_comm_config.%s %s %s.\n", info_text(one, "program_field"),
              program ? "goes before" : "gives way to", info_text(one, "name"));
    }
  }
}

const info_section info_options = {"options", "Options", gather, print};
