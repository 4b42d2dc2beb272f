/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/measured.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "plan/builder.h"
#include "base/status.h"

const char *bny_measured_way(const bny_measured *measured) { return measured->replays ? "replays" : "launches"; }

uint64_t bny_measured_bytes(const bny_request *request) {
  uint64_t row = 8 + bny_wire_row_bytes(request->wire, request->value_dim);
  return (uint64_t)request->tokens * (uint64_t)request->heads * row;
}

static bool is_of(const bny_measurement *row, const bny_request *request) {
  return row->scatter == request->scatter && row->order == request->order;
}

/* Returns the size nearest to the request's by ratio, or 0 if there is none. It avoids logarithms, whose last bit may
 * differ between libraries: a is nearer than b if max(a, x) / min(a, x) is less. */
static uint64_t nearest_size(const bny_request *request) {
  double wanted = (double)(bny_measured_bytes(request) > 0 ? bny_measured_bytes(request) : 1), best = 0;
  uint64_t found = 0;
  for (int32_t i = 0; i < request->measured->count; i++) {
    const bny_measurement *row = &request->measured->rows[i];
    double bytes = (double)row->bytes, ratio = bytes > wanted ? bytes / wanted : wanted / bytes;
    if (!is_of(row, request) || (found && ratio >= best)) continue;
    best = ratio;
    found = row->bytes;
  }
  return found;
}

static const bny_measurement *find(const bny_request *request, int32_t algorithm, const char *name) {
  if (request->collective != BNY_COMBINE || !request->measured) return NULL;
  uint64_t bytes = nearest_size(request);
  const bny_measurement *best = NULL;
  for (int32_t i = 0; i < request->measured->count; i++) {
    const bny_measurement *row = &request->measured->rows[i];
    if (!is_of(row, request) || row->bytes != bytes) continue;
    if (name ? strcmp(bny_algorithms[row->algorithm]->name, name) != 0 : row->algorithm != algorithm) continue;
    if (!best || row->ns < best->ns) best = row;
  }
  return best;
}

const bny_measurement *bny_measured_find(const bny_request *request, int32_t algorithm) {
  return find(request, algorithm, NULL);
}

const bny_measurement *bny_measured_find_named(const bny_request *request, const char *name) {
  return find(request, -1, name);
}

#define HEAD "banyan measured 1"

int bny_measured_write(const bny_measured *measured, FILE *file) {
  if (fprintf(file,
              HEAD "\nmachine %s\nranks %" PRId32
                   "\nof %s\n# scatter, order, bytes of a rank, algorithm, protocol, one in "
                   "so many blocks, nanoseconds\n",
              measured->machine, measured->nranks, bny_measured_way(measured)) < 0)
    return EOF;
  for (int32_t i = 0; i < measured->count; i++) {
    const bny_measurement *row = &measured->rows[i];
    char name[64];
    size_t length = 0;
    bny_algorithm_print(bny_algorithms[row->algorithm], name, sizeof name, &length);
    if (fprintf(file, "%s %s %" PRIu64 " %s %s %" PRId32 " %.0f\n", bny_scatter_name(row->scatter),
                bny_order_name(row->order), row->bytes, name, row->carrier, row->share, row->ns) < 0)
      return EOF;
  }
  return 0;
}

static int32_t place_of_algorithm(const char *name) {
  for (int32_t i = 0; bny_algorithms[i]; i++)
    if (bny_algorithm_is_named(bny_algorithms[i], name) && (!bny_algorithms[i]->variant || strchr(name, '_'))) return i;
  return -1;
}

static bool read_row(const char *line, bny_measurement *row) {
  char scatter[16], order[16], algorithm[64], carrier[BNY_CARRIER_BYTES];
  bny_measurement made = {0};
  int end = -1;
  if (sscanf(line, "%15s %15s %" SCNu64 " %63s %11s %" SCNd32 " %lf %n", scatter, order, &made.bytes, algorithm,
             carrier, &made.share, &made.ns, &end) != 7 ||
      end < 0 || line[end])
    return false;
  made.algorithm = place_of_algorithm(algorithm);
  if (!bny_scatter_parse(scatter, &made.scatter) || !bny_order_parse(order, &made.order) || made.algorithm < 0 ||
      made.bytes < 1 || made.bytes >> 48 || made.share < 1 || made.share > 1024 || !(made.ns > 0) || !isfinite(made.ns))
    return false;
  memcpy(made.carrier, carrier, sizeof made.carrier);
  *row = made;
  return true;
}

static bool read_line(const char *line, int number, bny_measured *measured) {
  int end = -1;
  size_t length = strlen(line);
  if (number == 1) return strcmp(line, HEAD) == 0;
  if (line[0] == '#' || !line[0]) return true;
  if (strncmp(line, "machine ", 8) == 0 && length < 8 + BNY_MACHINE_BYTES) {
    memcpy(measured->machine, line + 8, length - 7);
    return true;
  }
  if (strcmp(line, "of replays") == 0 || strcmp(line, "of launches") == 0) {
    measured->replays = line[3] == 'r';
    return true;
  }
  if (sscanf(line, "ranks %" SCNd32 "%n", &measured->nranks, &end) == 1) return end > 0 && !line[end];
  return measured->count < BNY_MEASURED_MAX && read_row(line, &measured->rows[measured->count]) && ++measured->count;
}

banyan_status bny_measured_read(FILE *file, const char *name, bny_measured *measured) {
  char line[256];
  int number = 0;
  *measured = (bny_measured){.nranks = 0};
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    if (!read_line(line, ++number, measured))
      return bny_fail(BANYAN_ERR_ARGUMENT,
                      "%s, line %d: \"%.60s\" is not of a file of measured times; delete it, and it is made anew", name,
                      number, line);
  }
  if (number == 0 || measured->nranks < 1)
    return bny_fail(BANYAN_ERR_ARGUMENT, "%s is not a file of measured times; delete it, and it is made anew", name);
  return BANYAN_OK;
}
