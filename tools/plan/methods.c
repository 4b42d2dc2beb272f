/* SPDX-License-Identifier: Apache-2.0
 * Compares all methods for a collective: predicted time, choice, and why the others are not chosen. */
#include "tools/plan/methods.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/slice.h"

/* ---- one method -------------------------------------------------------------------------------------------------- */

static void from_candidate(const bny_request *request, const bny_candidate *candidate, plan_method *method) {
  size_t length = 0;
  *method = (plan_method){.serves = candidate->rejection == NULL && candidate->fits && candidate->named};
  bny_algorithm_print(candidate->algorithm, method->name, sizeof method->name, &length);
  if (candidate->rejection != NULL) {
    snprintf(method->why, sizeof method->why, "cannot: %s", candidate->rejection);
    return;
  }
  if (!candidate->fits) {
    char need[PLAN_NUMBER_BYTES], have[PLAN_NUMBER_BYTES];
    plan_text_bytes((double)candidate->estimate.outbox_bytes, need);
    plan_text_bytes((double)request->outbox_bytes, have);
    if (candidate->estimate.outbox_bytes > request->outbox_bytes) {
      snprintf(method->why, sizeof method->why, "memory: it needs %s of an outbox of %s", need, have);
    } else {
      snprintf(method->why, sizeof method->why, "memory: it needs %lld slots of %d",
               (long long)candidate->estimate.slots, request->slots_max);
    }
    return;
  }
  if (!candidate->named) {
    snprintf(method->why, sizeof method->why, "another one was named");
    return;
  }
  if (isinf(candidate->ns)) {
    method->serves = false;
    snprintf(method->why, sizeof method->why, "cannot: some messages have no way, as no switch joins their NICs");
    return;
  }
  const bny_estimate *estimate = &candidate->estimate;
  method->chosen = candidate->chosen;
  method->ns = candidate->ns;
  method->rounds = estimate->rounds;
  method->messages = estimate->messages;
  method->work_bytes = estimate->work_bytes;
  method->bytes_sent = estimate->bytes_sent;
  method->memory_bytes = (double)estimate->outbox_bytes;
  memcpy(method->level_bytes, estimate->level_bytes, sizeof method->level_bytes);
  length = 0;
  bny_estimate_print_form(estimate, method->form, sizeof method->form, &length);
}

double plan_shard_bytes(const plan_shape *shape, const plan_keys *keys) {
  return 2.0 * (double)keys->per_rank * keys->kv_heads * shape->value_dim * (double)tool_dtype_bytes(shape->wire);
}

/* Ring Attention sends a shard of keys and values to the next rank p - 1 times. Each step waits for the slowest link,
 * over which the rank at the edge of its group sends everything. It needs memory for two more shards. */
static void ring_attention(const plan_ranks *ranks, const plan_shape *shape, const plan_keys *keys,
                           plan_method *method) {
  double steps = ranks->nranks - 1;
  double shard = plan_shard_bytes(shape, keys);
  int32_t last = ranks->levels->nlevels - 1;
  double slowest = 0;
  for (int32_t k = 0; k <= last; k++) {
    const bny_link_cost *link = &ranks->levels->levels[k].link;
    double step = link->alpha_ns + shard * (link->beta_ns_per_byte + 2 * link->gamma_ns_per_byte);
    slowest = step > slowest ? step : slowest;
  }
  *method = (plan_method){.name = "ring attention",
                          .serves = true,
                          .outside = true,
                          .ns = steps * slowest,
                          .rounds = steps,
                          .messages = steps,
                          .work_bytes = 2 * steps * shard,
                          .bytes_sent = steps * shard,
                          .memory_bytes = 2 * shard};
  method->level_bytes[last] = method->bytes_sent;
}

/* Returns the fastest algorithm that is not composed over levels, for an all-reduce of so many bytes. Rows without
 * values have 8 bytes each. */
bool plan_flat_best(const plan_ranks *ranks, const plan_shape *shape, double bytes, plan_shape *made,
                    bny_candidate *best, tool_error *error) {
  plan_shape reduction = *shape;
  bny_candidate candidates[BNY_CANDIDATES_MAX];
  reduction.tokens = 1;
  reduction.heads = (int32_t)((bytes + 7) / 8);
  reduction.value_dim = 0;
  reduction.scatter = BANYAN_SCATTER_NONE;
  reduction.order = BANYAN_ORDER_PLAN;
  reduction.algorithm = NULL;
  reduction.outbox_bytes = 0;
  *made = reduction;
  bny_request request = plan_request_make(ranks, &reduction);
  int32_t count = bny_algorithm_candidates(&request, candidates);
  best->algorithm = NULL;
  for (int32_t i = 0; i < count; i++) {
    bool flat = strcmp(candidates[i].algorithm->name, "levels") != 0;
    if (flat && candidates[i].rejection == NULL && candidates[i].fits &&
        candidates[i].ns < (best->algorithm == NULL ? INFINITY : best->ns))
      *best = candidates[i];
  }
  return best->algorithm != NULL ||
         tool_error_set(error, "no algorithm has a way to reduce %.0f bytes on this network", bytes);
}

static void three_allreduces(const plan_ranks *ranks, const plan_shape *shape, plan_method *method) {
  double rows = (double)shape->tokens * shape->heads;
  double sizes[3] = {rows * 4, rows * 4, rows * shape->value_dim * (double)tool_dtype_bytes(shape->wire)};
  *method = (plan_method){.name = "three allreduces", .serves = true, .outside = true};
  for (int i = 0; i < 3; i++) {
    plan_shape reduction;
    bny_candidate best;
    tool_error error = {.text = ""};
    if (!plan_flat_best(ranks, shape, sizes[i], &reduction, &best, &error)) {
      method->serves = false;
      snprintf(method->why, sizeof method->why, "cannot: %.200s", error.text);
      return;
    }
    method->ns += best.ns;
    method->rounds += best.estimate.rounds;
    method->messages += best.estimate.messages;
    method->work_bytes += best.estimate.work_bytes;
    method->bytes_sent += best.estimate.bytes_sent;
    double memory = (double)best.estimate.outbox_bytes;
    method->memory_bytes = memory > method->memory_bytes ? memory : method->memory_bytes;
    for (int32_t k = 0; k < ranks->levels->nlevels; k++) method->level_bytes[k] += best.estimate.level_bytes[k];
  }
}

/* ---- why --------------------------------------------------------------------------------------------------------- */

static int by_time(const void *a_void, const void *b_void) {
  const plan_method *a = a_void, *b = b_void;
  if (a->serves != b->serves) return a->serves ? -1 : 1;
  return a->ns < b->ns ? -1 : a->ns > b->ns;
}

/* Names the resource in which a method exceeds the best one most, by the least time that this excess takes. */
static void lost_because(const plan_ranks *ranks, const plan_method *best, plan_method *method) {
  const bny_levels *levels = ranks->levels;
  int32_t last = levels->nlevels - 1, level = last;
  double worst = 0;
  for (int32_t k = 0; k <= last; k++) {
    double more = (method->level_bytes[k] - best->level_bytes[k]) * levels->levels[k].link.beta_ns_per_byte;
    if (more > worst) {
      worst = more;
      level = k;
    }
  }
  const bny_link_cost *far = &levels->levels[last].link;
  double rounds = (method->rounds - best->rounds) * far->alpha_ns;
  double messages = (method->messages - best->messages) * bny_link_message_ns(far);
  char more[PLAN_NUMBER_BYTES], less[PLAN_NUMBER_BYTES], reason[140] = "";
  if (worst > 0 && worst >= rounds && worst >= messages) {
    snprintf(reason, sizeof reason, ": %s over %s instead of %s", plan_text_bytes(method->level_bytes[level], more),
             levels->levels[level].name, plan_text_bytes(best->level_bytes[level], less));
  } else if (rounds > 0 && rounds >= messages) {
    snprintf(reason, sizeof reason, ": %.0f rounds instead of %.0f", method->rounds, best->rounds);
  } else if (messages > 0) {
    snprintf(reason, sizeof reason, ": %.0f messages instead of %.0f", method->messages, best->messages);
  } else if (method->work_bytes > best->work_bytes) {
    snprintf(reason, sizeof reason, ": it merges %s instead of %s", plan_text_bytes(method->work_bytes, more),
             plan_text_bytes(best->work_bytes, less));
  } else if (levels->nlevels > 1) {
    snprintf(reason, sizeof reason, ": its rounds go over slower links");
  }
  double ratio = best->ns > 0 ? method->ns / best->ns : 1;
  if (method->ns <= best->ns) {
    snprintf(method->why, sizeof method->why, "as fast, and later in the table%s", method->form);
  } else if (ratio < 1.005) {
    snprintf(method->why, sizeof method->why, "less than half a percent slower%s", method->form);
  } else {
    snprintf(method->why, sizeof method->why, ratio < 10 ? "%.2f times the time%s%s" : "%.0f times the time%s%s", ratio,
             reason, method->form);
  }
}

static void explain(const plan_ranks *ranks, const plan_shape *shape, plan_methods *methods) {
  qsort(methods->methods, (size_t)methods->count, sizeof methods->methods[0], by_time);
  const plan_method *best = plan_methods_chosen(methods);
  for (int32_t i = 0; i < methods->count && best != NULL; i++) {
    plan_method *method = &methods->methods[i];
    if (method == best) {
      snprintf(method->why, sizeof method->why, "%s%s", shape->algorithm == NULL ? "chosen: least predicted" : "named",
               method->form);
    } else if (method->serves && method->ns < best->ns && method->outside) {
      snprintf(method->why, sizeof method->why, "faster, but no algorithm of a combine");
    } else if (method->serves) {
      lost_because(ranks, best, method);
    }
  }
}

const plan_method *plan_methods_chosen(const plan_methods *methods) {
  for (int32_t i = 0; i < methods->count; i++)
    if (methods->methods[i].chosen) return &methods->methods[i];
  return NULL;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

bool plan_methods_weigh(const plan_ranks *ranks, const plan_shape *shape, const plan_keys *keys, plan_methods *methods,
                        tool_error *error) {
  bny_request request = plan_request_make(ranks, shape);
  bny_candidate candidates[BNY_CANDIDATES_MAX];
  methods->nlevels = ranks->levels->nlevels;
  methods->count = bny_algorithm_candidates(&request, candidates);
  bool chosen = false;
  for (int32_t i = 0; i < methods->count; i++) {
    from_candidate(&request, &candidates[i], &methods->methods[i]);
    chosen = chosen || candidates[i].chosen;
  }
  if (!chosen) { /* selection words it */
    const bny_algorithm *algorithm;
    double ns;
    char *reason;
    if (bny_algorithm_select(&request, &algorithm, &ns, &reason) == BANYAN_OK)
      free(reason);
    else
      tool_error_set(error, "%s", banyan_last_error());
    return false;
  }
  if (plan_methods_chosen(methods) == NULL)
    return tool_error_set(error, "some messages have no way, as no switch joins their NICs: choose another "
                                 "--algorithm, or look at the network by banyan-topo --check");
  if (keys != NULL && shape->collective == BNY_COMBINE && ranks->nranks > 1) {
    ring_attention(ranks, shape, keys, &methods->methods[methods->count++]);
    three_allreduces(ranks, shape, &methods->methods[methods->count++]);
  }
  explain(ranks, shape, methods);
  return true;
}
