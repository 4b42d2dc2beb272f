/* SPDX-License-Identifier: Apache-2.0
 * Splits files into lines, words and numbers. */
#include "tools/topo/import/text.h"

#include <stdlib.h>
#include <string.h>

static const char blanks[] = " \t\r\v\f";

bny_topo_lines bny_topo_lines_of(const char *text, size_t bytes) {
  bny_topo_lines lines = {.copy = malloc(bytes + 1)};
  lines.rest = lines.copy;
  for (size_t i = 0; lines.copy != NULL && i < bytes; i++) lines.copy[i] = text[i] == '\0' ? ' ' : text[i];
  if (lines.copy != NULL) lines.copy[bytes] = '\0';
  return lines;
}

char *bny_topo_lines_next(bny_topo_lines *lines) {
  if (lines->rest == NULL || *lines->rest == '\0') return NULL;
  lines->line++;
  char *line = strsep(&lines->rest, "\n");
  size_t bytes = strlen(line);
  if (bytes > 0 && line[bytes - 1] == '\r') line[bytes - 1] = '\0';
  return line;
}

char *bny_topo_word(char **rest) {
  *rest += strspn(*rest, blanks);
  char *word = *rest;
  if (*word == '\0') return NULL;
  *rest += strcspn(word, blanks);
  if (**rest != '\0') *(*rest)++ = '\0';
  return word;
}

char *bny_topo_quoted(char **rest) {
  char *open = strchr(*rest, '"'), *close = open == NULL ? NULL : strchr(open + 1, '"');
  if (close == NULL) return NULL;
  *close = '\0';
  *rest = close + 1;
  return open + 1;
}

bool bny_topo_number(const char *text, int32_t most, int32_t *number) {
  size_t digits = strspn(text, "0123456789");
  long long value = strtoll(text, NULL, 10);
  if (digits < 1 || text[digits] != '\0' || value > most) return false;
  *number = (int32_t)value;
  return true;
}
