/* SPDX-License-Identifier: Apache-2.0
 *
 * Imports the output of `nvidia-smi topo -m` as people paste it: a header of devices, a row of paths for each GPU and
 * often each NIC, affinity columns that may be empty, legends. This file reads it into a table; matrix_model.c builds
 * the model.
 *
 * NICs may have an order of their own, rows may exist for GPUs alone, more NICs may have rows than columns, colour
 * codes may be anywhere, and old versions write SOC for SYS. */
#include "topo/model/matrix.h"

#include <stdlib.h>
#include <string.h>

/* Returns the number in "GPU12"; -1 for "GPU" and other words. */
static int32_t gpu_number(bny_topo_span word) {
  int32_t number;
  if (word.bytes < 4 || memcmp(word.text, "GPU", 3) != 0 ||
      !bny_topo_span_number((bny_topo_span){word.text + 3, word.bytes - 3}, 9999, &number))
    return -1;
  return number;
}

static bool cell_read(bny_topo_span word, bny_topo_matrix_cell *cell) {
  static const struct {
    const char *text;
    bny_topo_path path;
  } words[] = {{"X", BNY_TOPO_PATH_SELF},   {"C2C", BNY_TOPO_PATH_C2C},  {"PIX", BNY_TOPO_PATH_PIX},
               {"PXB", BNY_TOPO_PATH_PXB},  {"PHB", BNY_TOPO_PATH_PHB},  {"NODE", BNY_TOPO_PATH_NODE},
               {"SYS", BNY_TOPO_PATH_SYS},  {"SOC", BNY_TOPO_PATH_SYS},  {"DIS", BNY_TOPO_PATH_NONE},
               {"P2C", BNY_TOPO_PATH_PHB},  {"NVB", BNY_TOPO_PATH_NONE}, {"PXN", BNY_TOPO_PATH_NONE},
               {"N/A", BNY_TOPO_PATH_NONE}, {"NS", BNY_TOPO_PATH_NONE}};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    if (bny_topo_span_is(word, words[i].text)) {
      *cell = (bny_topo_matrix_cell){.path = words[i].path, .known = words[i].path != BNY_TOPO_PATH_NONE};
      return true;
    }
  }
  int32_t links;
  if (!bny_topo_span_starts(word, "NV") ||
      !bny_topo_span_number((bny_topo_span){word.text + 2, word.bytes - 2}, 999, &links))
    return false;
  *cell = (bny_topo_matrix_cell){.path = BNY_TOPO_PATH_NVL, .links = links, .known = true};
  return links > 0;
}

/* Recognises a header: a GPU name that no path follows. */
static bool is_header(bny_topo_span line) {
  bny_topo_span word;
  bny_topo_matrix_cell cell;
  if (!bny_topo_span_word(&line, &word) || gpu_number(word) < 0) return false;
  return !bny_topo_span_word(&line, &word) || !cell_read(word, &cell);
}

static bool is_row(bny_topo_span line) {
  bny_topo_span word;
  bny_topo_matrix_cell cell;
  return bny_topo_span_word(&line, &word) && bny_topo_span_word(&line, &word) && cell_read(word, &cell);
}

static bool recognises(const char *text, size_t bytes) {
  bny_topo_reader reader = bny_topo_reader_of(text, bytes);
  bny_topo_span line;
  for (int lines = 0; lines < 1000 && bny_topo_reader_line(&reader, &line); lines++) {
    bny_topo_span word, rest = line;
    if (!bny_topo_span_word(&rest, &word) || gpu_number(word) < 0) continue;
    while (bny_topo_span_word(&rest, &word))
      if (bny_topo_span_is(word, "X") || bny_topo_span_is(word, "Affinity")) return true;
  }
  return false;
}

static int find(const bny_topo_matrix *matrix, bny_topo_span name) {
  int i = 0;
  while (i < matrix->ndevices && !bny_topo_span_same(matrix->devices[i].name, name)) i++;
  return i;
}

/* Adds a device with unknown row and column. */
static bool device_add(bny_topo_matrix *matrix, bny_topo_span name, int line, bny_topo_error *error) {
  if (matrix->ndevices == BNY_TOPO_MATRIX_MAX)
    return bny_topo_fail(error, line, "more than %d devices", BNY_TOPO_MATRIX_MAX);
  if (name.bytes > 64) return bny_topo_fail(error, line, "a device's name of %zu bytes", name.bytes);
  matrix->devices[matrix->ndevices++] =
      (bny_topo_matrix_device){.name = name, .gpu = gpu_number(name), .numa = -1, .line = 0};
  return true;
}

static bool header_read(bny_topo_matrix *matrix, bny_topo_span line, int number, bny_topo_error *error) {
  bny_topo_span word, rest = line;
  while (bny_topo_span_word(&rest, &word)) {
    if (bny_topo_span_is(word, "CPU") || bny_topo_span_is(word, "NUMA") || bny_topo_span_is(word, "GPU")) break;
    if (find(matrix, word) < matrix->ndevices)
      return bny_topo_fail(error, number, "%.*s has two columns", bny_topo_span_shown(word), word.text);
    if (!device_add(matrix, word, number, error)) return false;
    word = (bny_topo_span){NULL, 0};
  }
  matrix->ncolumns = matrix->ndevices;
  /* Remaining titles: CPU Affinity, NUMA Affinity, GPU NUMA ID. */
  for (bool more = word.bytes > 0; more; more = bny_topo_span_word(&rest, &word))
    if (bny_topo_span_is(word, "Affinity") || bny_topo_span_is(word, "ID")) matrix->ntails++;
  return true;
}

static bool is_list(bny_topo_span word) { /* CPU list: "0-31,64-95" */
  return memchr(word.text, '-', word.bytes) || memchr(word.text, ',', word.bytes);
}

/* Reads the columns after the paths: CPUs, NUMA node, the GPU's own NUMA node. Each may be missing. */
static void tail_read(bny_topo_matrix_device *device, int ntails, bny_topo_span rest) {
  bny_topo_span words[3];
  int count = 0;
  while (count < 3 && bny_topo_span_word(&rest, &words[count])) count++;
  bool cpus_first = count > 0 && (count == ntails || is_list(words[0]));
  int numa = cpus_first ? 1 : 0;
  if (cpus_first) device->cpus = words[0];
  if (ntails >= 2 && numa < count) bny_topo_span_number(words[numa], 4095, &device->numa);
}

static bool row_read(bny_topo_matrix *matrix, bny_topo_span line, int number, bny_topo_error *error) {
  bny_topo_span word, rest = line, name;
  if (!bny_topo_span_word(&rest, &name)) return bny_topo_fail(error, number, "an empty row");
  int row = find(matrix, name);
  if (row == matrix->ndevices && !device_add(matrix, name, number, error)) return false;
  bny_topo_matrix_device *device = &matrix->devices[row];
  if (device->line)
    return bny_topo_fail(error, number, "%.*s has a row on line %d already", bny_topo_span_shown(name), name.text,
                         device->line);
  device->line = number;
  for (int column = 0; column < matrix->ncolumns; column++) {
    bny_topo_matrix_cell cell;
    if (!bny_topo_span_word(&rest, &word))
      return bny_topo_fail(error, number, "%.*s has %d paths, the header %d devices", bny_topo_span_shown(name),
                           name.text, column, matrix->ncolumns);
    if (!cell_read(word, &cell))
      return bny_topo_fail(error, number, "\"%.*s\" is not a path: X, NV#, PIX, PXB, PHB, NODE and SYS are",
                           bny_topo_span_shown(word), word.text);
    if ((cell.path == BNY_TOPO_PATH_SELF) != (row == column))
      return bny_topo_fail(error, number, "%.*s: column %d says %.*s, and X belongs on the diagonal",
                           bny_topo_span_shown(name), name.text, column + 1, bny_topo_span_shown(word), word.text);
    matrix->cells[row][column] = cell;
  }
  bny_topo_span tail = rest;
  bny_topo_matrix_cell more;
  if (bny_topo_span_word(&tail, &word) && cell_read(word, &more) && more.known)
    return bny_topo_fail(error, number, "%.*s has more paths than the header has devices, %d",
                         bny_topo_span_shown(name), name.text, matrix->ncolumns);
  tail_read(device, matrix->ntails, rest);
  return true;
}

/* Reads "NIC0: mlx5_0" below the matrix, which gives the device's system name. */
static void legend_read(bny_topo_matrix *matrix, bny_topo_span line) {
  bny_topo_span word, name, more;
  if (!bny_topo_span_word(&line, &word) || word.bytes < 2 || word.text[word.bytes - 1] != ':') return;
  if (!bny_topo_span_word(&line, &name) || bny_topo_span_word(&line, &more) || name.bytes > 64) return;
  word.bytes--;
  int device = find(matrix, word);
  if (device < matrix->ndevices && matrix->devices[device].gpu < 0) matrix->devices[device].system_name = name;
}

/* Checks that both halves agree where both exist, and fills in a missing one. */
static bool halves_join(bny_topo_matrix *matrix, bny_topo_error *error) {
  for (int i = 0; i < matrix->ndevices; i++) {
    for (int j = 0; j < i; j++) {
      bny_topo_matrix_cell *lower = &matrix->cells[i][j], *upper = &matrix->cells[j][i];
      if (lower->known && upper->known && (lower->path != upper->path || lower->links != upper->links))
        return bny_topo_fail(
            error, matrix->devices[i].line, "%.*s to %.*s is %s with %d links, but on line %d %s with %d",
            bny_topo_span_shown(matrix->devices[i].name), matrix->devices[i].name.text,
            bny_topo_span_shown(matrix->devices[j].name), matrix->devices[j].name.text, bny_topo_path_name(lower->path),
            lower->links, matrix->devices[j].line, bny_topo_path_name(upper->path), upper->links);
      *(lower->known ? upper : lower) = lower->known ? *lower : *upper;
      if (lower->links && (matrix->devices[i].gpu < 0 || matrix->devices[j].gpu < 0))
        return bny_topo_fail(error, matrix->devices[i].line, "NVLinks between %.*s and %.*s, which are not both GPUs",
                             bny_topo_span_shown(matrix->devices[i].name), matrix->devices[i].name.text,
                             bny_topo_span_shown(matrix->devices[j].name), matrix->devices[j].name.text);
    }
  }
  for (int i = 0; i < matrix->ndevices; i++) {
    const bny_topo_matrix_device *device = &matrix->devices[i];
    if (device->gpu >= 0 && !device->line)
      return bny_topo_fail(error, 0, "no row for %.*s: is the file cut off?", bny_topo_span_shown(device->name),
                           device->name.text);
  }
  return true;
}

static bool matrix_read(bny_topo_matrix *matrix, const char *text, size_t bytes, bny_topo_error *error) {
  bny_topo_reader reader = bny_topo_reader_of(text, bytes);
  bny_topo_span line;
  bool more = bny_topo_reader_line(&reader, &line);
  while (more && !is_header(line)) more = bny_topo_reader_line(&reader, &line);
  if (!more) return bny_topo_fail(error, 0, "rows of paths without a header of devices");
  if (!header_read(matrix, line, reader.line, error)) return false;
  bool in_rows = true;
  while (bny_topo_reader_line(&reader, &line)) {
    bny_topo_span rest = line, word;
    bool named = bny_topo_span_word(&rest, &word) && find(matrix, word) < matrix->ncolumns;
    if (in_rows && (named || is_row(line))) {
      if (!row_read(matrix, line, reader.line, error)) return false;
    } else {
      in_rows = false;
      legend_read(matrix, line);
    }
  }
  return halves_join(matrix, error);
}

static bool parse(const char *text, size_t bytes, bny_topo *topo, bny_topo_error *error) {
  bny_topo_matrix *matrix = calloc(1, sizeof *matrix);
  if (!matrix) return bny_topo_fail(error, 0, "no memory");
  bool good = matrix_read(matrix, text, bytes, error) && bny_topo_matrix_model(matrix, topo, error);
  free(matrix);
  return good;
}

const bny_topo_importer bny_topo_import_matrix = {
    .name = "nvidia-smi topo -m", .recognises = recognises, .parse = parse};
