/* SPDX-License-Identifier: Apache-2.0
 * banyan-info selection: prints the algorithm of a combine for each size and scatter, by predicted cost. */
#include <string.h>

#include "tools/info/section.h"
#include "base/options.h"
#include "tools/plan/methods.h"

enum { SIZE_FIRST = 10, SIZE_LAST = 26, HEADS = 32, HEAD_DIM = 128 }; /* sizes are powers of two */

typedef struct column {
  const char *name;
  banyan_scatter scatter;
  banyan_order order;
} column;

static const column columns[] = {
    {"none", BANYAN_SCATTER_NONE, BANYAN_ORDER_PLAN},           {"root", BANYAN_SCATTER_ROOT, BANYAN_ORDER_PLAN},
    {"heads", BANYAN_SCATTER_HEADS, BANYAN_ORDER_PLAN},         {"tokens", BANYAN_SCATTER_TOKENS, BANYAN_ORDER_PLAN},
    {"canonical", BANYAN_SCATTER_NONE, BANYAN_ORDER_CANONICAL},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

static bool ranks_of(const info_request *request, plan_ranks *ranks, tool_error *error) {
  if (request->ranks > 0)
    return tool_error_usage(error, plan_ranks_plain(request->ranks, 0, request->levels, ranks, error));
  if (!plan_ranks_machine(ranks, error)) return false;
  if (ranks->nranks > 1) return true;
  plan_ranks_release(ranks);
  /* One for each CPU that this process may use, and at least two: what a user of this machine is likely to start. */
  return plan_ranks_plain(tool_cpus() > 2 ? tool_cpus() : 2, 0, NULL, ranks, error);
}

static json_t *choice(const plan_ranks *ranks, const column *where, size_t bytes) {
  plan_methods methods;
  tool_error rejected = {.text = ""};
  plan_shape shape = {.collective = BNY_COMBINE,
                      .heads = HEADS,
                      .value_dim = HEAD_DIM,
                      .wire = BANYAN_F32,
                      .scatter = where->scatter,
                      .order = where->order,
                      .algorithm = bny_option_text("BANYAN_ALGORITHM")};
  shape = plan_shape_resized(&shape, bytes);
  if (!plan_methods_weigh(ranks, &shape, &methods, &rejected)) {
    return json_pack("{s:s}", "rejected", rejected.text);
  }
  const plan_method *best = plan_methods_chosen(&methods);
  return json_pack("{s:s, s:f}", "algorithm", best->name, "predicted_us", best->ns / 1e3);
}

static json_t *gather(const info_request *request, tool_error *error) {
  plan_ranks ranks = {.nranks = 0};
  if (!ranks_of(request, &ranks, error)) return NULL;
  json_t *sizes = json_array();
  for (int power = SIZE_FIRST; power <= SIZE_LAST; power++) {
    json_t *choices = json_object();
    for (int i = 0; i < COLUMNS; i++)
      json_object_set_new(choices, columns[i].name, choice(&ranks, &columns[i], (size_t)1 << power));
    json_array_append_new(sizes, json_pack("{s:I, s:o}", "bytes", (json_int_t)1 << power, "choices", choices));
  }
  json_t *facts =
      json_pack("{s:i, s:s, s:o, s:i, s:i, s:s, s:o}", "ranks", ranks.nranks, "title", ranks.title, "levels",
                plan_levels_json(&ranks), "heads", HEADS, "head_dim", HEAD_DIM, "wire", "f32", "sizes", sizes);
  plan_ranks_release(&ranks);
  return facts;
}

static const char *chosen_name(const json_t *size, int column) {
  const char *name = info_text(json_object_get(json_object_get(size, "choices"), columns[column].name), "algorithm");
  return *name != '\0' ? name : "-";
}

static void print(const json_t *facts, FILE *stream) {
  size_t i;
  json_t *one;
  int widths[COLUMNS] = {0};
  fprintf(stream, "  combine of %d ranks (%s", (int)json_integer_value(json_object_get(facts, "ranks")),
          info_text(facts, "title"));
  json_array_foreach(json_object_get(facts, "levels"), i, one) {
    fprintf(stream, "%s%s of %lld", i == 0 ? "; " : ", ", info_text(one, "name"),
            (long long)json_integer_value(json_object_get(one, "members_most")));
  }
  fprintf(stream, ")\n  rows of %d heads x %d values, f32; by scatter, and for scatter none in canonical order\n\n",
          HEADS, HEAD_DIM);
  fprintf(stream, "  %8s", "per rank");
  for (int k = 0; k < COLUMNS; k++) { /* each column is as wide as its longest name, so that all fit 100 columns */
    widths[k] = (int)strlen(columns[k].name);
    json_array_foreach(json_object_get(facts, "sizes"), i, one) {
      int width = (int)strlen(chosen_name(one, k));
      widths[k] = width > widths[k] ? width : widths[k];
    }
    fprintf(stream, " %-*s", widths[k], columns[k].name);
  }
  fputc('\n', stream);
  json_array_foreach(json_object_get(facts, "sizes"), i, one) {
    char text[PLAN_NUMBER_BYTES];
    fprintf(stream, "  %8s", plan_text_bytes((double)json_integer_value(json_object_get(one, "bytes")), text));
    for (int k = 0; k < COLUMNS; k++) fprintf(stream, " %-*s", widths[k], chosen_name(one, k));
    fputc('\n', stream);
  }
  const char *named = bny_option_text("BANYAN_ALGORITHM");
  if (named != NULL) fprintf(stream, "  BANYAN_ALGORITHM names %s\n", named);
}

const info_section info_selection = {"selection", "Selection", gather, print};
