/* SPDX-License-Identifier: Apache-2.0
 * Reads the text of an input, and models in the library's own format. */
#include "topo/model/load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens a regular file; if `waits`, also a pipe, or standard input for "-". Returns -1 and sets *error on failure. */
static int open_input(const char *path, bool waits, struct stat *about, bny_topo_error *error) {
  bool standard = waits && strcmp(path, "-") == 0;
  int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | (waits ? 0 : O_NONBLOCK);
  int file = standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : open(path, flags);
  if (file < 0 || fstat(file, about) != 0) {
    bny_topo_fail(error, 0, "%s", strerror(errno));
  } else if (!standard && !S_ISREG(about->st_mode) && !(waits && S_ISFIFO(about->st_mode))) {
    bny_topo_fail(error, 0, waits ? "neither a file nor a pipe" : "not a regular file");
  } else if (S_ISREG(about->st_mode) && about->st_size > BNY_TOPO_INPUT_BYTES_MAX) {
    bny_topo_fail(error, 0, "larger than %d MiB", BNY_TOPO_INPUT_BYTES_MAX >> 20);
  } else {
    return file;
  }
  if (file >= 0) close(file);
  return -1;
}

char *bny_topo_input_read(const char *path, bool waits, size_t *bytes, bool *missing, bny_topo_error *error) {
  char *text = NULL;
  struct stat about;
  errno = 0;
  int file = open_input(path, waits, &about, error);
  if (file < 0) {
    *missing = errno == ENOENT || errno == ENAMETOOLONG || errno == ENOTDIR;
    return NULL;
  }
  size_t capacity =
      S_ISREG(about.st_mode) && about.st_size < BNY_TOPO_INPUT_BYTES_MAX ? (size_t)about.st_size + 1 : 1 << 16;
  size_t used = 0;
  for (;;) {
    char *moved = text == NULL || used == capacity ? realloc(text, text == NULL ? capacity : (capacity *= 2)) : text;
    if (moved == NULL) {
      bny_topo_fail(error, 0, "out of memory");
      goto free_text;
    }
    text = moved;
    ssize_t got = read(file, text + used, capacity - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      bny_topo_fail(error, 0, "%s", strerror(errno));
      goto free_text;
    }
    used += (size_t)got;
    if (got == 0) break;
    if (used > BNY_TOPO_INPUT_BYTES_MAX) {
      bny_topo_fail(error, 0, "larger than %d MiB", BNY_TOPO_INPUT_BYTES_MAX >> 20);
      goto free_text;
    }
  }
  close(file);
  *bytes = used;
  return text;

free_text:
  free(text);
  close(file);
  return NULL;
}

/* Shows only the end of a long path, and replaces line breaks. */
void bny_topo_input_place(const char *path, bny_topo_error *error) {
  enum { SHOWN = 80 };
  char text[sizeof error->text];
  size_t length = strlen(path);
  const char *cut = length > SHOWN ? "..." : "";
  const char *shown = length > SHOWN ? path + length - SHOWN : path;
  int used = error->line > 0 ? snprintf(text, sizeof text, "%s%s:%d: ", cut, shown, error->line)
                             : snprintf(text, sizeof text, "%s%s: ", cut, shown);
  for (char *c = text; *c != '\0'; c++) *c = *c == '\n' ? '?' : *c;
  snprintf(text + used, sizeof text - (size_t)used, "%s", error->text);
  memcpy(error->text, text, sizeof text);
}

bny_topo *bny_topo_input_parse(const bny_topo_importer *importer, const char *text, size_t bytes,
                               bny_topo_error *error) {
  bny_topo *topo = bny_topo_new();
  bny_topo_error why = {.text = "out of memory"};
  bool taken = topo != NULL && importer->parse(text, bytes, topo, &why) && bny_topo_check(topo, &why);
  if (taken && topo->nnodes == 0) taken = bny_topo_fail(&why, 0, "nothing is left of it that is known");
  if (taken) return topo;
  *error = why;
  bny_topo_free(topo);
  return NULL;
}

bny_topo *bny_topo_read(const char *path, bny_topo_error *error) {
  bny_topo_error why = {0};
  bool missing = false;
  size_t bytes = 0;
  bny_topo *topo = NULL;
  char *text = bny_topo_input_read(path, false, &bytes, &missing, &why);
  if (text == NULL && missing && strchr(path, '/') == NULL && strpbrk(path, ": ") != NULL)
    snprintf(why.text + strlen(why.text), sizeof why.text - strlen(why.text),
             "; the file of a description is written by banyan-topo --from DESCRIPTION --json -o FILE");
  else if (text != NULL && !bny_topo_import_json.recognises(text, bytes))
    bny_topo_fail(&why, 1,
                  "not the JSON of banyan-topo, which converts it: banyan-topo --from %.100s --json -o machine.json",
                  path);
  else if (text != NULL)
    topo = bny_topo_input_parse(&bny_topo_import_json, text, bytes, &why);
  free(text);
  if (topo == NULL) {
    bny_topo_input_place(path, &why);
    *error = why;
  }
  return topo;
}
