/* SPDX-License-Identifier: Apache-2.0
 * banyan-info build: prints what configure found when this copy was built. */
#include <string.h>

#include "tools/info/section.h"
#include "op.h"

#ifdef __clang__
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

static json_t *tables(void) {
  json_t *names = json_array();
  for (int i = 0; bny_kernels_table[i] != NULL; i++)
    json_array_append_new(names, json_string(bny_kernels_table[i]->name));
  return names;
}

/* BUILD_PACKAGES is "NAME=yes|TEXT;NAME=no|TEXT;": what was found, or why it was not. */
static json_t *packages(void) {
  json_t *list = json_array();
  const char *at = BUILD_PACKAGES, *end;
  for (; (end = strchr(at, ';')) != NULL; at = end + 1) {
    const char *equals = memchr(at, '=', (size_t)(end - at));
    const char *bar = equals != NULL ? memchr(equals, '|', (size_t)(end - equals)) : NULL;
    if (bar == NULL) continue;
    json_array_append_new(list, json_pack("{s:s%, s:b, s:s%}", "name", at, (size_t)(equals - at), "found",
                                          equals[1] == 'y', "text", bar + 1, (size_t)(end - bar - 1)));
  }
  return list;
}

static json_t *gather(const info_request *request, tool_error *error) {
  (void)request;
  json_t *facts = json_pack("{s:s, s:s, s:s, s:o, s:o}", "compiler", COMPILER, "command", BUILD_COMMAND, "host",
                            BUILD_HOST, "kernels", tables(), "packages", packages());
  if (facts == NULL) tool_error_set(error, "out of memory");
  return facts;
}

static void print(const json_t *facts, FILE *stream) {
  size_t i;
  json_t *one;
  info_row(stream, "compiler", info_text(facts, "compiler"));
  info_row(stream, "command", info_text(facts, "command"));
  info_row(stream, "host", info_text(facts, "host"));
  fprintf(stream, "  CPU kernels");
  json_array_foreach(json_object_get(facts, "kernels"), i, one) { fprintf(stream, " %s", json_string_value(one)); }
  fputc('\n', stream);
  json_array_foreach(json_object_get(facts, "packages"), i, one) {
    bool found = json_is_true(json_object_get(one, "found"));
    info_row(stream, info_text(one, "name"), tool_format("%s%s", found ? "found " : "", info_text(one, "text")));
  }
}

const info_section info_build = {"build", "Build", gather, print};
