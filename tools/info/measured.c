/* SPDX-License-Identifier: Apache-2.0
 * Combines on devices that were measured: at each size, by scatter and order, the fastest and the one after it. */
#include "tools/info/measured.h"

#include <stdlib.h>
#include <string.h>

#include "tools/info/section.h"
#include "base/options.h"
#include "plan/builder.h"
#include "plan/measured.h"

static bool same_class(const bny_measurement *a, const bny_measurement *b) {
  return a->bytes == b->bytes && a->scatter == b->scatter && a->order == b->order;
}

/* The fastest of the class that is not `but`. */
static const bny_measurement *fastest(const bny_measured *measured, const bny_measurement *like,
                                      const bny_measurement *but) {
  const bny_measurement *best = NULL;
  for (int32_t i = 0; i < measured->count; i++) {
    const bny_measurement *row = &measured->rows[i];
    if (same_class(row, like) && row != but && (best == NULL || row->ns < best->ns)) best = row;
  }
  return best;
}

static json_t *describe(const bny_measurement *row) {
  char name[64];
  size_t length = 0;
  if (row == NULL) return json_null();
  bny_algorithm_print(bny_algorithms[row->algorithm], name, sizeof name, &length);
  return json_pack("{s:s, s:s, s:i, s:f}", "algorithm", name, "protocol", row->carrier, "one_in_blocks", row->share,
                   "us", row->ns / 1e3);
}

static json_t *classes_of(const bny_measured *measured) {
  json_t *classes = json_array();
  for (int32_t i = 0; i < measured->count; i++) {
    const bny_measurement *row = &measured->rows[i], *best = fastest(measured, row, NULL);
    bool seen = false;
    for (int32_t k = 0; k < i && !seen; k++) seen = same_class(&measured->rows[k], row);
    if (!seen) {
      json_array_append_new(classes, json_pack("{s:I, s:s, s:s, s:o, s:o}", "bytes", (json_int_t)row->bytes, "scatter",
                                               bny_scatter_name(row->scatter), "order", bny_order_name(row->order),
                                               "best", describe(best), "next", describe(fastest(measured, row, best))));
    }
  }
  return classes;
}

json_t *info_measured_gather(void) {
  const char *path = bny_option_text("BANYAN_DEVICE_TUNE");
  FILE *file = path != NULL && strchr(path, '/') != NULL ? fopen(path, "re") : NULL;
  if (file == NULL) return NULL;
  bny_measured *measured = malloc(sizeof *measured);
  json_t *facts = NULL;
  if (measured != NULL && bny_options_refuse_experimental("BANYAN_DEVICE_TUNE") == BANYAN_OK &&
      bny_measured_read(file, path, measured) == BANYAN_OK) {
    facts = json_pack("{s:s, s:s, s:i, s:s, s:o}", "path", path, "machine", measured->machine, "ranks",
                      measured->nranks, "of", bny_measured_way(measured), "classes", classes_of(measured));
  } else if (measured != NULL) {
    facts = json_pack("{s:s, s:s}", "path", path, "refused", banyan_last_error());
  }
  free(measured);
  fclose(file);
  return facts;
}

static void print_one(const json_t *one, FILE *stream) {
  char text[96];
  snprintf(text, sizeof text, "%s by %s", info_text(one, "algorithm"), info_text(one, "protocol"));
  fprintf(stream, "  %-28s %9.2f us", text, json_real_value(json_object_get(one, "us")));
}

void info_measured_print(const json_t *facts, FILE *stream) {
  size_t i;
  const json_t *one;
  if (*info_text(facts, "refused") != '\0') {
    fprintf(stream, "\n  BANYAN_DEVICE_TUNE: %s\n", info_text(facts, "refused"));
    return;
  }
  fprintf(stream, "\n  measured by %d ranks with %s, of %s (%s): the fastest, and the next\n\n",
          (int)json_integer_value(json_object_get(facts, "ranks")), info_text(facts, "machine"), info_text(facts, "of"),
          info_text(facts, "path"));
  json_array_foreach(json_object_get(facts, "classes"), i, one) {
    fprintf(stream, "  %8lld  %-6s %-9s", (long long)json_integer_value(json_object_get(one, "bytes")),
            info_text(one, "scatter"), info_text(one, "order"));
    print_one(json_object_get(one, "best"), stream);
    if (json_is_object(json_object_get(one, "next"))) print_one(json_object_get(one, "next"), stream);
    fputc('\n', stream);
  }
}
