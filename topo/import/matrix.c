/* SPDX-License-Identifier: Apache-2.0
 * Imports the output of `nvidia-smi topo -m`, as users paste it. It has a header of devices, a row of paths for each
 * GPU and often for each NIC, affinity columns that may be empty, and legends. This file reads it into a table;
 * matrix_model.c builds the model.
 *
 * The order of NICs may differ between rows and columns, only GPUs may have rows, and more NICs may have rows than
 * columns. Colour codes, quote marks and table borders may appear anywhere, and blank lines between rows. Old versions
 * write SOC for SYS. Each further matrix is another host. A table without paths, such as that of topo -p2p, is skipped
 * with a note. */
#include "topo/model/matrix.h"

#include <stdlib.h>
#include <string.h>

/* Removes the next word from *rest. Skips marks that pasting adds: mail quotes and table borders. */
static bool word_take(bny_topo_span *rest, bny_topo_span *word) {
  while (bny_topo_span_word(rest, word))
    for (size_t i = 0; i < word->bytes; i++)
      if (!memchr("|>+-=:", word->text[i], 6)) return true;
  return false;
}

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
  if (!word_take(&line, &word) || gpu_number(word) < 0) return false;
  while (word_take(&line, &word))
    if (cell_read(word, &cell)) return false;
  return true;
}

static bool is_row(bny_topo_span line) {
  bny_topo_span word;
  bny_topo_matrix_cell cell;
  return word_take(&line, &word) && word_take(&line, &word) && cell_read(word, &cell);
}

static bool recognises(const char *text, size_t bytes) {
  bny_topo_reader reader = bny_topo_reader_of(text, bytes);
  bny_topo_span line;
  for (int lines = 0; lines < 1000 && bny_topo_reader_line(&reader, &line); lines++) {
    bny_topo_span word, rest = line;
    if (!word_take(&rest, &word) || gpu_number(word) < 0) continue;
    while (word_take(&rest, &word))
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
  while (word_take(&rest, &word)) {
    if (bny_topo_span_is(word, "CPU") || bny_topo_span_is(word, "NUMA") || bny_topo_span_is(word, "GPU")) break;
    if (find(matrix, word) < matrix->ndevices)
      return bny_topo_fail(error, number, "%.*s has two columns", bny_topo_span_shown(word), word.text);
    if (!device_add(matrix, word, number, error)) return false;
    word = (bny_topo_span){NULL, 0};
  }
  matrix->ncolumns = matrix->ndevices;
  /* Remaining titles: CPU Affinity, NUMA Affinity, GPU NUMA ID. */
  for (bool more = word.bytes > 0; more; more = word_take(&rest, &word))
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
  while (count < 3 && word_take(&rest, &words[count])) count++;
  bool cpus_first = count > 0 && (count == ntails || is_list(words[0]));
  int numa = cpus_first ? 1 : 0;
  if (cpus_first) device->cpus = words[0];
  if (ntails >= 2 && numa < count) {
    bny_topo_span first = words[numa]; /* the nodes after the first, as in "0,2-17", are memory without CPUs */
    for (first.bytes = 0; first.bytes < words[numa].bytes && strchr(",-", first.text[first.bytes]) == NULL;)
      first.bytes++;
    bny_topo_span_number(first, 4095, &device->numa);
  }
}

static bool row_read(bny_topo_matrix *matrix, bny_topo_span line, int number, bny_topo_error *error) {
  bny_topo_span word, rest = line, name;
  if (!word_take(&rest, &name)) return bny_topo_fail(error, number, "an empty row");
  int row = find(matrix, name);
  if (row == matrix->ndevices && !device_add(matrix, name, number, error)) return false;
  bny_topo_matrix_device *device = &matrix->devices[row];
  if (device->line)
    return bny_topo_fail(error, number, "%.*s has a row on line %d already", bny_topo_span_shown(name), name.text,
                         device->line);
  device->line = number;
  for (int column = 0; column < matrix->ncolumns; column++) {
    bny_topo_matrix_cell cell;
    if (!word_take(&rest, &word))
      return bny_topo_fail(error, number, "%.*s has %d paths, the header %d devices", bny_topo_span_shown(name),
                           name.text, column, matrix->ncolumns);
    bool of_peers = bny_topo_span_is(word, "OK") || bny_topo_span_is(word, "CNS") || bny_topo_span_is(word, "GNS");
    if (!cell_read(word, &cell))
      return bny_topo_fail(error, number, "\"%.*s\" is not a path: X, NV#, PIX, PXB, PHB, NODE and SYS are%s",
                           bny_topo_span_shown(word), word.text,
                           of_peers ? "; this is topo -p2p, give nvidia-smi topo -m" : "");
    if ((cell.path == BNY_TOPO_PATH_SELF) != (row == column))
      return bny_topo_fail(error, number, "%.*s: column %d says %.*s, and X belongs on the diagonal",
                           bny_topo_span_shown(name), name.text, column + 1, bny_topo_span_shown(word), word.text);
    matrix->cells[row][column] = cell;
  }
  bny_topo_span tail = rest;
  bny_topo_matrix_cell more;
  if (word_take(&tail, &word) && cell_read(word, &more) && more.known)
    return bny_topo_fail(error, number, "%.*s has more paths than the header has devices, %d",
                         bny_topo_span_shown(name), name.text, matrix->ncolumns);
  tail_read(device, matrix->ntails, rest);
  return true;
}

/* Reads "NIC0: mlx5_0" below the matrix, which gives the device's system name. */
static void legend_read(bny_topo_matrix *matrix, bny_topo_span line) {
  bny_topo_span word, name, more;
  if (!word_take(&line, &word) || word.bytes < 2 || word.text[word.bytes - 1] != ':') return;
  if (!word_take(&line, &name) || word_take(&line, &more) || name.bytes > 64) return;
  word.bytes--;
  int device = find(matrix, word);
  if (device < matrix->ndevices && matrix->devices[device].gpu < 0) matrix->devices[device].system_name = name;
}

static bool difference_add(bny_topo_matrix *matrix, int a, int b) {
  if (!bny_topo_grow(&matrix->differences, matrix->ndifferences, &matrix->differences_capacity,
                     sizeof *matrix->differences))
    return false;
  matrix->differences[matrix->ndifferences++] =
      (bny_topo_matrix_difference){a, b, matrix->cells[a][b], matrix->cells[b][a]};
  return true;
}

/* Returns whether to keep cell a of two. NVLinks have priority over a path, then fewer links, then the longer path. */
static bool is_kept(const bny_topo_matrix_cell *a, const bny_topo_matrix_cell *b) {
  if (!a->known || !b->known) return a->known;
  if (a->links && b->links) return a->links < b->links;
  return a->links || b->links ? a->links > 0 : a->path > b->path;
}

/* Makes the matrix symmetric, and drops NVLinks of NICs. `header` is the line of the header. */
static bool halves_join(bny_topo_matrix *matrix, int header, bny_topo_error *error) {
  for (int i = 0; i < matrix->ndevices; i++) {
    for (int j = 0; j < i; j++) {
      bny_topo_matrix_cell *lower = &matrix->cells[i][j], *upper = &matrix->cells[j][i];
      bool of_gpus = matrix->devices[i].gpu >= 0 && matrix->devices[j].gpu >= 0;
      bool odd = !of_gpus && (lower->links || upper->links);
      bool differ = lower->known && upper->known && (lower->path != upper->path || lower->links != upper->links);
      if ((odd || differ) && !difference_add(matrix, i, j)) return false;
      if (odd && lower->links) *lower = (bny_topo_matrix_cell){.known = false};
      if (odd && upper->links) *upper = (bny_topo_matrix_cell){.known = false};
      lower->differs = upper->differs = differ;
      if (is_kept(lower, upper))
        *upper = *lower;
      else
        *lower = *upper;
    }
  }
  bool nics = false;
  for (int i = 0; i < matrix->ndevices; i++) nics = nics || (matrix->devices[i].gpu < 0 && matrix->devices[i].line);
  for (int i = 0; i < matrix->ndevices; i++) {
    const bny_topo_matrix_device *device = &matrix->devices[i];
    if ((device->gpu >= 0 || nics) && !device->line)
      return bny_topo_fail(error, header,
                           "no row for %.*s of this header: is the file cut off, or are its lines wrapped?",
                           bny_topo_span_shown(device->name), device->name.text);
  }
  return true;
}

/* Returns whether the first row below a header has a path. A row of a single GPU has none. */
static bool has_paths(bny_topo_reader after, bny_topo_span header) {
  bny_topo_span line, word, rest;
  bny_topo_matrix_cell cell;
  int columns = 0, paths = 0;
  for (rest = header; word_take(&rest, &word) && !bny_topo_span_is(word, "CPU");) columns++;
  bool more = bny_topo_reader_line(&after, &line);
  for (rest = line; more && !word_take(&rest, &word); rest = line) more = bny_topo_reader_line(&after, &line);
  for (int c = 0; more && c < columns && word_take(&rest, &word); c++)
    paths += cell_read(word, &cell) && (cell.path != BNY_TOPO_PATH_SELF || columns == 1) && cell.known;
  return paths > 0;
}

static void note_left_out(bny_topo *topo, int line) {
  bny_topo_add_note(topo, -1, "the table on line %d is left out: its cells are no paths", line);
}

/* Finds the first header; if `paths`, the first whose cells are paths. */
static bool header_find(bny_topo_reader *reader, bny_topo_span *line, bool paths, bny_topo *topo) {
  bny_topo_reader start = *reader;
  bny_topo_span skipped;
  bool found = false;
  while (!found && bny_topo_reader_line(reader, line))
    found = is_header(*line) && (!paths || has_paths(*reader, *line));
  while (found && bny_topo_reader_line(&start, &skipped) && start.line < reader->line)
    if (is_header(skipped)) note_left_out(topo, start.line);
  return found;
}

/* Reads the matrix below a header. If another matrix follows, *more is set and *line is its header. */
static bool matrix_read(bny_topo_matrix *matrix, bny_topo_reader *reader, bny_topo_span *line, bool *more,
                        bny_topo *topo, bny_topo_error *error) {
  bool in_rows = true;
  int header = reader->line;
  if (!header_read(matrix, *line, header, error)) return false;
  for (*more = false; !*more && bny_topo_reader_line(reader, line);) {
    bny_topo_span rest = *line, word;
    if (!word_take(&rest, &word)) continue;
    int device = find(matrix, word);
    bool begun = is_header(*line) && (device == matrix->ndevices || matrix->devices[device].line > 0);
    if (begun && has_paths(*reader, *line)) {
      *more = true;
    } else if (in_rows && !begun && (device < matrix->ncolumns || is_row(*line))) {
      if (!row_read(matrix, *line, reader->line, error)) return false;
    } else {
      in_rows = false;
      legend_read(matrix, *line);
      if (begun) note_left_out(topo, reader->line);
    }
  }
  return halves_join(matrix, header, error);
}

static bool parse(const char *text, size_t bytes, bny_topo *topo, bny_topo_error *error) {
  bny_topo_reader reader = bny_topo_reader_of(text, bytes), again = reader;
  bny_topo_span line;
  bool more = header_find(&reader, &line, true, topo), good = true;
  if (!more) { /* report the error for a table without paths */
    reader = again;
    more = header_find(&reader, &line, false, topo);
  }
  if (!more) {
    while (bny_topo_reader_line(&again, &line) && !is_row(line)) continue;
    return bny_topo_fail(error, again.line, "rows of paths without a header of devices");
  }
  while (good && more) {
    bny_topo_matrix *matrix = calloc(1, sizeof *matrix);
    if (!matrix) return false;
    good = matrix_read(matrix, &reader, &line, &more, topo, error) && bny_topo_matrix_model(matrix, topo);
    free(matrix->differences);
    free(matrix);
  }
  return good;
}

const bny_topo_importer bny_topo_import_matrix = {
    .name = "nvidia-smi topo -m", .recognises = recognises, .parse = parse};
