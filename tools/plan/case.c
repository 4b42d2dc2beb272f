/* SPDX-License-Identifier: Apache-2.0
 * Makes the case to plan from a topology, this machine, or only numbers. */
#include "tools/plan/case.h"

#include <stdio.h>
#include <string.h>

#include "base/printable.h"
#include "base/options.h"
#include "locality/price.h"
#include "plan/columns.h"
#include "tools/topo/import/import.h"
#include "topo/probe/probe.h"

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

/* Measured costs apply only to this machine. */
static bool prices_of(bool here, bny_prices *prices, tool_error *error) {
  const char *costs = here ? bny_option_text("BANYAN_COSTS") : NULL;
  *prices = bny_prices_default;
  banyan_status status = costs == NULL ? BANYAN_OK : bny_costs_read(costs, prices);
  return status == BANYAN_OK || tool_error_set(error, "%s", banyan_last_error());
}

bool plan_ranks_of(const bny_topo *topo, const bny_topo_levels *derived, const char *title, bool here,
                   plan_ranks *ranks, tool_error *error) {
  bny_prices prices;
  if (!prices_of(here, &prices, error)) return false;
  plan_ranks made = {.nranks = derived->nranks};
  if (made.nranks > PLAN_RANKS_MAX)
    return tool_error_set(error, "%.200s: %d ranks; plans are made for up to %d", title, made.nranks, PLAN_RANKS_MAX);
  snprintf(made.title, sizeof made.title, "%s", title);
  bny_printable(made.title, "");
  bny_locality *localities = tool_new((size_t)made.nranks, sizeof *localities);
  bny_locality_of_all(topo, derived, &prices, localities);
  banyan_status status = bny_locality_levels(localities, made.nranks, NULL, &made.notes, &made.levels);
  made.localities = localities;
  if (status != BANYAN_OK) return tool_error_banyan(error, status, title);
  *ranks = made;
  return true;
}

static bool ranks_derive(const bny_topo *topo, const char *title, bool here, plan_ranks *ranks, tool_error *error) {
  bny_topo_levels *derived = bny_topo_derive(topo);
  bool ok = derived != NULL || tool_error_set(error, "%.200s: out of memory", title);
  ok = ok && plan_ranks_of(topo, derived, title, here, ranks, error);
  bny_topo_levels_free(derived);
  return ok;
}

bool plan_ranks_load(const char *from, plan_ranks *ranks, tool_error *error) {
  bny_topo_error why = {.text = ""};
  bny_topo *topo = bny_topo_load(from, NULL, &why);
  bool ok = topo != NULL || tool_error_set(error, "%s", why.text);
  ok = ok && ranks_derive(topo, from, false, ranks, error);
  bny_topo_free(topo);
  return ok;
}

bool plan_ranks_machine(plan_ranks *ranks, tool_error *error) {
  bny_topo_error why = {.text = ""};
  bny_topo *topo = bny_topo_probe_machine(NULL, NULL, &why);
  bool ok = topo != NULL || tool_error_set(error, "this machine: %s", why.text);
  ok = ok && ranks_derive(topo, "this machine", true, ranks, error);
  bny_topo_free(topo);
  return ok;
}

bool plan_ranks_plain(int32_t nranks, int32_t cores, const char *sizes, plan_ranks *ranks, tool_error *error) {
  plan_ranks made = {.nranks = nranks};
  bny_prices prices;
  if (!prices_of(sizes == NULL, &prices, error)) return false;
  bny_link_cost link =
      bny_price_cost(&prices, BNY_LINK_MEMORY, cores > 0 && cores < nranks ? (double)nranks / cores : 1);
  bny_level_facts all = {.name = "host", .link = link};
  banyan_status status = sizes == NULL ? bny_levels_make(nranks, NULL, 0, &all, NULL, &made.levels)
                                       : bny_levels_parse(nranks, sizes, &link, &made.levels);
  if (status != BANYAN_OK) return tool_error_set(error, "%s", banyan_last_error());
  snprintf(made.title, sizeof made.title, sizes == NULL ? "CPU ranks of one node%s" : "groups of %.200s",
           sizes == NULL ? "" : sizes);
  *ranks = made;
  return true;
}

void plan_ranks_release(plan_ranks *ranks) {
  bny_levels_free(ranks->levels);
  ranks->levels = NULL;
}

const char *plan_ranks_link(const plan_ranks *ranks, int32_t level) {
  const bny_locality_note *note = bny_locality_note_of(&ranks->notes, ranks->levels->levels[level].name);
  if (note != NULL) return bny_prices_default.rows[note->link].name;
  return level == 0 ? bny_prices_default.rows[BNY_LINK_MEMORY].name : "-";
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* Two f32 statistics, if rows have them, then the values. */
static size_t row_bytes(const plan_shape *shape) {
  const bny_payload *payload = &bny_payloads[shape->collective];
  bny_call call = {.value_dim = shape->value_dim,
                   .dim = shape->value_dim,
                   .dtype = shape->wire,
                   .wire = bny_wire_of_dtype(shape->wire)};
  if (shape->collective == BNY_ALLREDUCE) {
    bny_call_set_columns(&call, shape->value_dim, 1);
    return (size_t)call.all_heads * payload->row_bytes(&call);
  }
  return (payload->has_statistics ? 2 * sizeof(float) : 0) + payload->row_bytes(&call);
}

size_t plan_shape_bytes(const plan_shape *shape) {
  if (bny_payloads[shape->collective].has_rows) return (size_t)shape->tokens * (size_t)shape->heads * row_bytes(shape);
  return shape->collective == BNY_BARRIER ? 0 : shape->bytes;
}

plan_shape plan_shape_resized(const plan_shape *shape, size_t bytes) {
  plan_shape made = *shape;
  made.bytes = bytes;
  if (bny_payloads[shape->collective].has_rows) {
    size_t rows = (bytes + row_bytes(shape) - 1) / row_bytes(shape), heads = (size_t)shape->heads;
    heads = rows < 1 ? 1 : rows < heads ? rows : heads;
    made.heads = (int32_t)heads;
    made.tokens = (int32_t)((rows + heads - 1) / heads);
  }
  return made;
}

void plan_shape_print(const plan_shape *shape, char text[PLAN_TEXT_BYTES]) {
  char bytes[PLAN_NUMBER_BYTES];
  plan_text_bytes((double)plan_shape_bytes(shape), bytes);
  if (shape->collective == BNY_COMBINE) {
    snprintf(text, PLAN_TEXT_BYTES,
             "combine of %d token%s x %d head%s x %d values, %s, scatter %s, order %s: %s per rank", shape->tokens,
             shape->tokens == 1 ? "" : "s", shape->heads, shape->heads == 1 ? "" : "s", shape->value_dim,
             tool_dtype_name(shape->wire), bny_scatter_name(shape->scatter), bny_order_name(shape->order), bytes);
  } else if (shape->collective == BNY_ALLGATHER_HEADS) {
    snprintf(text, PLAN_TEXT_BYTES, "allgather-heads of %d token%s x %d head%s x %d elements, %s: %s in all",
             shape->tokens, shape->tokens == 1 ? "" : "s", shape->heads, shape->heads == 1 ? "" : "s", shape->value_dim,
             tool_dtype_name(shape->wire), bytes);
  } else if (shape->collective == BNY_ALLREDUCE) {
    snprintf(text, PLAN_TEXT_BYTES, "allreduce of %d token%s x %d values, %s, scatter %s, order %s: %s per rank",
             shape->tokens, shape->tokens == 1 ? "" : "s", shape->heads * shape->value_dim,
             tool_dtype_name(shape->wire), bny_scatter_name(shape->scatter), bny_order_name(shape->order), bytes);
  } else if (shape->collective == BNY_SELECT) {
    snprintf(text, PLAN_TEXT_BYTES, "select of %d token%s x %d row%s, the %d best of each: %s per rank", shape->tokens,
             shape->tokens == 1 ? "" : "s", shape->heads, shape->heads == 1 ? "" : "s", shape->value_dim, bytes);
  } else if (shape->collective == BNY_BARRIER) {
    snprintf(text, PLAN_TEXT_BYTES, "barrier");
  } else {
    snprintf(text, PLAN_TEXT_BYTES, "%s of %s%s", bny_collective_name(shape->collective), bytes,
             shape->collective == BNY_BROADCAST ? "" : " per rank");
  }
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

bny_request plan_request_make(const plan_ranks *ranks, const plan_shape *shape) {
  bny_request made = {.call.collective = shape->collective,
                      .nranks = ranks->nranks,
                      .algorithm = shape->algorithm,
                      .cost = ranks->levels->levels[ranks->levels->nlevels - 1].link, /* as the library does */
                      .levels = ranks->levels,
                      .outbox_bytes = shape->outbox_bytes > 0 ? shape->outbox_bytes : (size_t)1 << 44,
                      .slots_max = 64 + 16 * ranks->nranks}; /* as the library does */
  bool sums = shape->collective == BNY_ALLREDUCE;
  size_t *counts = NULL;
  switch (shape->collective) {
  case BNY_COMBINE:
  case BNY_ALLREDUCE: /* a row of a sum is one column */
    made.call.all_tokens = made.tokens = shape->tokens;
    made.call.wire = bny_wire_of_dtype(shape->wire);
    /* Ranks on the host send exact sums as they are. */
    if (shape->order == BANYAN_ORDER_EXACT && !(ranks->localities && ranks->localities[0].memory_gbytes_per_s > 0))
      made.call.wire = BNY_WIRE_EXACT;
    made.call.scatter = shape->scatter;
    made.call.order = shape->order;
    made.call.root = shape->scatter == BANYAN_SCATTER_ROOT ? shape->root : 0;
    made.call.all_heads = shape->heads;
    made.call.value_dim = shape->value_dim;
    if (sums) bny_call_set_columns(&made.call, shape->heads * shape->value_dim, ranks->nranks);
    made.heads = made.call.all_heads;
    break;
  case BNY_ALLGATHER:
    counts = tool_new((size_t)ranks->nranks, sizeof *counts);
    for (int32_t r = 0; r < ranks->nranks; r++) counts[r] = shape->bytes;
    made.call.counts = counts;
    break;
  case BNY_ALLGATHER_HEADS:
    counts = tool_new((size_t)ranks->nranks, sizeof *counts);
    for (int32_t r = 0, first, number; r < ranks->nranks; r++) {
      banyan_split(shape->heads, ranks->nranks, r, &first, &number);
      counts[r] = (size_t)number;
    }
    made.call.counts = counts;
    made.call.all_tokens = made.tokens = shape->tokens;
    made.call.all_heads = made.heads = shape->heads;
    made.call.dim = shape->value_dim;
    made.call.dtype = shape->wire;
    break;
  case BNY_SELECT:
    made.call.all_tokens = made.tokens = shape->tokens;
    made.call.all_heads = made.heads = shape->heads;
    made.call.dim = shape->value_dim;
    break;
  case BNY_BROADCAST:
    made.call.bytes = shape->bytes;
    made.call.root = shape->root;
    break;
  case BNY_SHIFT:
    made.call.bytes = shape->bytes;
    made.call.distance = (int32_t)(((int64_t)shape->distance % ranks->nranks + ranks->nranks) % ranks->nranks);
    break;
  case BNY_BARRIER: break;
  }
  return made;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

const char *plan_text_bytes(double bytes, char text[PLAN_NUMBER_BYTES]) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit < 5) {
    bytes /= 1024;
    unit++;
  }
  snprintf(text, PLAN_NUMBER_BYTES, bytes >= 100 || bytes == (double)(int64_t)bytes ? "%.0f %s" : "%.1f %s", bytes,
           units[unit]);
  return text;
}

const char *plan_text_time(double ns, char text[PLAN_NUMBER_BYTES]) {
  if (ns < 1e6)
    snprintf(text, PLAN_NUMBER_BYTES, ns < 1e4 ? "%.2f us" : "%.1f us", ns / 1e3);
  else if (ns < 1e9)
    snprintf(text, PLAN_NUMBER_BYTES, "%.2f ms", ns / 1e6);
  else
    snprintf(text, PLAN_NUMBER_BYTES, "%.2f s", ns / 1e9);
  return text;
}
