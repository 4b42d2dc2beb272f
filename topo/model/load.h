/* SPDX-License-Identifier: Apache-2.0
 * Reads models from files. The library knows one format, banyan's JSON; banyan-topo converts others to it. */
#pragma once

#include "topo/model/model.h"

typedef struct bny_topo_importer {
  const char *name; /* "nccl-xml" */
  /* Returns whether the text looks like this format. Only the content is examined. */
  bool (*recognises)(const char *text, size_t bytes);
  /* Fills an empty model. `text` is not NUL-terminated and may hold any bytes. Returns false and sets *error if the
   * input is rejected; returns false without *error if out of memory. Time and memory are bounded: the input has at
   * most 64 MiB, depth 64 and 1e6 nodes. */
  bool (*parse)(const char *text, size_t bytes, bny_topo *topo, bny_topo_error *error);
} bny_topo_importer;

extern const bny_topo_importer bny_topo_import_json; /* json.c */

/* Returns a checked model of a file of JSON, which the caller frees. It never waits: pipes, devices and directories are
 * rejected. On failure it returns NULL and sets *error, whose text begins with "FILE:LINE: " and says how to convert
 * another format. */
bny_topo *bny_topo_read(const char *path, bny_topo_error *error);

/* ---- parts that importers share ---------------------------------------------------------------------------------- */

enum { BNY_TOPO_INPUT_BYTES_MAX = 64 << 20 };

/* Returns the text of a regular file, which the caller frees; if `waits`, also of a pipe, or of standard input for "-".
 * On failure it returns NULL and sets *error; *missing is set if there is no such file. */
char *bny_topo_input_read(const char *path, bool waits, size_t *bytes, bool *missing, bny_topo_error *error);

/* Parses and checks a text of a known format. On failure it returns NULL and sets *error. */
bny_topo *bny_topo_input_parse(const bny_topo_importer *importer, const char *text, size_t bytes,
                               bny_topo_error *error);

/* Prefixes the text of an error with "FILE:LINE: ". */
void bny_topo_input_place(const char *path, bny_topo_error *error);
