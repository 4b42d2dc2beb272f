/* SPDX-License-Identifier: Apache-2.0
 * Writes the members that all JSON objects of the tools share: version, command, date and machine. */
#include "tools/common/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

enum { COMMAND_BYTES = 65536 };

/* Quotes a word so that a shell reads it back. */
static void put_word(FILE *out, const char *word) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
    fputs(word, out);
    return;
  }
  fputc('\'', out);
  for (; *word != '\0'; word++) {
    fputs(*word == '\'' ? "'\\''" : (char[]){*word, '\0'}, out);
  }
  fputc('\'', out);
}

/* Returns the command line of this process as a string. Invalid UTF-8 becomes question marks. */
static json_t *command(void) {
  char *words = tool_new(COMMAND_BYTES, 1);
  tool_page page;
  FILE *file = fopen("/proc/self/cmdline", "re"), *out = tool_page_begin(&page);
  size_t bytes = file != NULL ? fread(words, 1, COMMAND_BYTES - 1, file) : 0;
  if (file != NULL) fclose(file);
  for (const char *word = words; word < words + bytes; word += strlen(word) + 1) {
    if (word > words) fputc(' ', out);
    put_word(out, word);
  }
  char *text = tool_page_end(&page);
  json_t *string = json_string(text);
  for (char *c = text; string == NULL && *c != '\0'; c++) *c = (*c & 0x80) != 0 ? '?' : *c;
  return string == NULL ? json_string(text) : string;
}

static json_t *node(void) {
  struct utsname system = {.nodename = ""};
  uname(&system);
  return json_pack("{s:s, s:i, s:s++++}", "hostname", system.nodename, "cpus", (int)tool_cpus(), "kernel",
                   system.sysname, " ", system.release, " ", system.machine);
}

json_t *tool_json_stamped(json_t *object) {
  time_t now = time(NULL);
  struct tm calendar;
  char date[32];
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &calendar));
  json_t *all = json_pack("{s:s, s:o, s:s, s:o}", "version", banyan_version(), "command", command(), "date", date,
                          "node", node());
  if (all == NULL || object == NULL || json_object_update(all, object) != 0) {
    json_decref(all);
    all = NULL;
  }
  json_decref(object);
  return all;
}

void tool_json_add(json_t *object, json_t *more) {
  if (json_object_update(object, more) != 0) tool_no_memory();
  json_decref(more);
}

bool tool_json_write(json_t *object, FILE *stream, tool_error *error) {
  json_t *all = tool_json_stamped(object);
  bool ok = all != NULL && json_dumpf(all, stream, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) == 0 &&
            fputc('\n', stream) != EOF && tool_flush(stream);
  json_decref(all);
  return ok || tool_error_stdout(error);
}

json_t *tool_json_real(double value) { return isfinite(value) ? json_real(value) : json_null(); }

json_t *tool_json_gpu(const gpu_facts *facts) {
  char version[24], compute[24];
  snprintf(version, sizeof version, "%d.%d", facts->cuda_version / 1000, facts->cuda_version % 1000 / 10);
  snprintf(compute, sizeof compute, "%d.%d", facts->compute / 10, facts->compute % 10);
  return json_pack("{s:s, s:i, s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:I}", "name", facts->name, "ordinal",
                   (int)facts->ordinal, "compute", compute, "cuda", version, "sms", (int)facts->sms, "clock_mhz_max",
                   (int)facts->clock_mhz, "memory_clock_mhz_max", (int)facts->memory_clock_mhz, "bus_bits",
                   (int)facts->bus_bits, "cache_bytes", (json_int_t)facts->cache_bytes, "memory_bytes",
                   (json_int_t)facts->memory_bytes);
}
