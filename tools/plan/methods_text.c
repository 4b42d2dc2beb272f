/* SPDX-License-Identifier: Apache-2.0
 * Methods and levels as tables and as JSON. */
#include <jansson.h>
#include <string.h>

#include "tools/common/json.h"
#include "tools/plan/methods.h"

/* Returns true if the reasons fit beside the figures. */
static bool reasons_fit(const plan_methods *methods, int32_t columns) {
  int32_t left = columns - (18 + 11 + 7 + 9 + 9 * (methods->nlevels + 1)) - 2;
  for (int32_t i = 0; i < methods->count; i++)
    if (methods->methods[i].serves && (int32_t)strlen(methods->methods[i].why) > left) return false;
  return true;
}

void plan_methods_print(const plan_ranks *ranks, const plan_methods *methods, int32_t columns, FILE *stream) {
  char text[PLAN_NUMBER_BYTES];
  const bool fit = reasons_fit(methods, columns);
  fprintf(stream, "%-18s %10s %6s %8s", "", "predicted", "rounds", "messages");
  for (int32_t k = 0; k < methods->nlevels; k++) fprintf(stream, " %8s", ranks->levels->levels[k].name);
  fprintf(stream, " %8s\n", "memory");
  for (int32_t i = 0; i < methods->count; i++) {
    const plan_method *method = &methods->methods[i];
    if (!method->serves) {
      tool_print_wrapped(stream, fprintf(stream, "%-18s %10s  ", method->name, "-"), 2, method->why);
      continue;
    }
    fprintf(stream, "%-18s %10s", method->name, plan_text_time(method->ns, text));
    fprintf(stream, " %6.0f %8.0f", method->rounds, method->messages);
    for (int32_t k = 0; k < methods->nlevels; k++)
      fprintf(stream, " %8s", plan_text_bytes(method->level_bytes[k], text));
    fprintf(stream, " %8s%s", plan_text_bytes(method->memory_bytes, text), fit ? "  " : "\n  ");
    if (fit)
      fprintf(stream, "%s\n", method->why);
    else
      tool_print_wrapped(stream, 2, 2, method->why);
  }
}

json_t *plan_methods_json(const plan_ranks *ranks, const plan_methods *methods) {
  json_t *array = json_array();
  for (int32_t i = 0; i < methods->count; i++) {
    const plan_method *method = &methods->methods[i];
    json_t *o = json_pack("{s:s, s:b, s:b, s:s}", "name", method->name, "serves", method->serves, "chosen",
                          method->chosen, "why", method->why);
    json_array_append_new(array, o);
    if (!method->serves) continue;
    json_t *levels = json_object();
    for (int32_t k = 0; k < methods->nlevels; k++)
      json_object_set_new(levels, ranks->levels->levels[k].name, json_real(method->level_bytes[k]));
    tool_json_add(o,
                  json_pack("{s:f, s:f, s:f, s:f, s:o, s:f}", "predicted_us", method->ns / 1e3, "rounds",
                            method->rounds, "messages_received", method->messages, "bytes_sent_per_rank",
                            method->bytes_sent, "bytes_sent_by_level", levels, "memory_bytes", method->memory_bytes));
  }
  return array;
}

/* ---- levels ------------------------------------------------------------------------------------------------------ */

void plan_levels_print(const plan_ranks *ranks, FILE *stream) {
  fprintf(stream, "%-10s %7s %8s  %-9s %9s %-8s %9s %9s\n", "level", "groups", "members", "links", "alpha us", "",
          "further", "GB/s");
  for (int32_t k = 0; k < ranks->levels->nlevels; k++) {
    const bny_level *level = &ranks->levels->levels[k];
    const bny_locality_note *note = bny_locality_note_of(&ranks->notes, level->name);
    const char *latency = note == NULL ? "" : note->latency_known ? "known" : "assumed";
    fprintf(stream, "%-10s %7d %8d  %-9s %9.4g %-8s %9.4g %9.4g %s\n", level->name, level->ngroups, level->most,
            plan_ranks_link(ranks, k), level->link.alpha_ns / 1e3, latency, bny_link_message_ns(&level->link) / 1e3,
            1 / level->link.beta_ns_per_byte, note == NULL ? "" : note->speed_source);
  }
  for (int32_t i = 0; i < ranks->notes.count; i++) {
    const bny_locality_note *note = &ranks->notes.notes[i];
    if (!note->kept) fprintf(stream, "%-10s       -  %s\n", note->name, note->text);
  }
  if (ranks->notes.work[0] != '\0') fprintf(stream, "%s\n", ranks->notes.work);
}

json_t *plan_levels_json(const plan_ranks *ranks) {
  json_t *array = json_array();
  for (int32_t k = 0; k < ranks->levels->nlevels; k++) {
    const bny_level *level = &ranks->levels->levels[k];
    const bny_locality_note *note = bny_locality_note_of(&ranks->notes, level->name);
    json_t *o =
        json_pack("{s:s, s:i, s:i, s:s, s:f, s:f, s:f, s:f}", "name", level->name, "groups", level->ngroups,
                  "members_most", level->most, "links", plan_ranks_link(ranks, k), "alpha_us",
                  level->link.alpha_ns / 1e3, "message_us", bny_link_message_ns(&level->link) / 1e3, "gbytes_per_s",
                  1 / level->link.beta_ns_per_byte, "merge_ns_per_byte", level->link.gamma_ns_per_byte);
    if (note != NULL)
      tool_json_add(o, json_pack("{s:s, s:b, s:s}", "speed_source", note->speed_source, "latency_known",
                                 note->latency_known, "default_source", bny_prices_default.rows[note->link].source));
    json_array_append_new(array, o);
  }
  return array;
}

json_t *plan_shape_json(const plan_ranks *ranks, const plan_shape *shape) {
  json_t *o = json_pack("{s:s, s:i, s:i, s:s, s:I}", "topology", ranks->title, "ranks", ranks->nranks,
                        "carriers_per_island", ranks->levels->lanes, "collective",
                        bny_collective_name(shape->collective), "bytes_per_rank", (json_int_t)plan_shape_bytes(shape));
  if (bny_payloads[shape->collective].has_rows)
    tool_json_add(o, json_pack("{s:i, s:i, s:i, s:s}", "tokens", shape->tokens, "heads", shape->heads, "head_dim",
                               shape->value_dim, "wire", tool_dtype_name(shape->wire)));
  if (bny_payloads[shape->collective].motion == BNY_MOTION_MERGE)
    tool_json_add(
        o, json_pack("{s:s, s:s}", "scatter", bny_scatter_name(shape->scatter), "order", bny_order_name(shape->order)));
  json_object_set_new(o, "levels", plan_levels_json(ranks));
  return o;
}
