/* SPDX-License-Identifier: Apache-2.0
 * Helpers for tests of plans. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "plan/builder.h"
#include "plan/clock.h"
#include "tests/support/generator.h"
#include "tests/support/status.h"
#include "tools/prove/prove.h"

/* A valid request with plausible costs. */
static inline bny_request request_of(bny_collective collective, int32_t nranks, const char *algorithm) {
  return (bny_request){.call.collective = collective,
                       .nranks = nranks,
                       .algorithm = algorithm,
                       .cost = {.alpha_ns = 200,
                                .beta_ns_per_byte = 0.1,
                                .gamma_ns_per_byte = 0.05,
                                .ranks_per_core = 1,
                                .switch_ns = 2000},
                       .outbox_bytes = (size_t)1 << 40,
                       .slots_max = 1 << 24};
}

static inline bny_request combine_of(int32_t nranks, const char *algorithm, banyan_scatter scatter, int32_t tokens,
                                     int32_t heads, int32_t value_dim) {
  bny_request request = request_of(BNY_COMBINE, nranks, algorithm);
  request.call.all_tokens = request.tokens = tokens;
  request.call.all_heads = request.heads = heads;
  request.call.value_dim = value_dim;
  request.call.scatter = scatter;
  return request;
}

static inline void plans_free(const bny_request *request, bny_plan **plans) {
  for (int32_t rank = 0; plans && rank < request->nranks; rank++) bny_plan_free(plans[rank]);
  free(plans);
}

/* Sanitizers check code, which is the same for all large numbers of ranks, so they run one number in four. */
static inline bool is_left_out(int32_t nranks) { return IS_SANITIZED && nranks > 9 && nranks % 4 != 3; }

static inline banyan_status plans_prove(const bny_request *request, bny_plan **plans) {
  return bny_plan_prove(request, (const bny_plan *const *)plans);
}

/* Bytes that a rank sends, counted once per receiver. */
static inline uint64_t plan_bytes_sent(const bny_plan *plan) {
  uint64_t bytes = 0;
  for (int32_t step = 0; step < plan->nsteps; step++)
    if (plan->steps[step].kind == BNY_STEP_SEND)
      bytes += (uint64_t)plan->steps[step].count * plan->slots[plan->steps[step].slot].bytes;
  return bytes;
}

/* Describes a request in words; valid until the next call. */
static inline const char *request_text(const bny_request *request) {
  static char text[1024];
  const bny_call *call = &request->call;
  size_t length = (size_t)snprintf(
      text, sizeof text,
      "%s: collective %d, %d ranks, scatter %d, order %d, wire %d, box (%d+%d, %d+%d) of %d x %d, value_dim %d, "
      "bytes %zu, root %d, distance %d",
      request->algorithm ? request->algorithm : "any", (int)call->collective, request->nranks, (int)call->scatter,
      (int)call->order, (int)call->wire, request->token0, request->tokens, request->head0, request->heads,
      call->all_tokens, call->all_heads, call->value_dim, call->bytes, call->root, call->distance);
  for (int32_t rank = 0; request->levels && rank < request->nranks && length < sizeof text - 64; rank++) {
    length += (size_t)snprintf(text + length, sizeof text - length, " %s", request->levels->carrier[rank] ? "" : "-");
    for (int32_t level = 0; level < request->levels->nlevels - 1; level++)
      length += (size_t)snprintf(text + length, sizeof text - length, "%s%d", level ? "." : "",
                                 bny_levels_group(request->levels, level, rank));
  }
  return text;
}

/* Makes the plans of all ranks. */
static inline bny_plan **plans_make(const bny_request *request) {
  bny_plan **plans = calloc((size_t)request->nranks, sizeof *plans);
  for (int32_t rank = 0; rank < request->nranks; rank++)
    ck_assert_msg(bny_plan_make(request, rank, &plans[rank]) == BANYAN_OK, "%s: %s", request_text(request),
                  banyan_last_error());
  return plans;
}

/* Up to three levels of groups below the whole, each with slower links than the one before. Ranks of a group are
 * neighbours, every n-th or scattered; groups may be uneven, or one is large and many have a single rank. With
 * `some_nics`, some ranks have none. */
static inline bny_levels *random_levels(uint64_t *random, int32_t nranks, bool some_nics) {
  enum { MOST = 96 };
  static const char *const names[] = {"island", "host", "leaf"};
  int32_t groups[3][MOST], nlevels = random_below(random, 4), width = 1 + random_below(random, 9),
                           order = random_below(random, 5);
  bool nics[MOST];
  bny_level_facts facts[3];
  bny_link_cost link = {.alpha_ns = 200, .beta_ns_per_byte = 0.01, .gamma_ns_per_byte = 0.02};
  ck_assert_int_le(nranks, MOST);
  for (int32_t rank = 0; rank < nranks; rank++) {
    nics[rank] = random_below(random, 3) > 0;
    groups[0][rank] = rank / width;
    if (order == 1) groups[0][rank] = rank % width;
    if (order == 2) groups[0][rank] = random_below(random, 1 + nranks / width);
    if (order == 3) groups[0][rank] = random_below(random, 3) ? 0 : rank;
    if (order == 4 && random_below(random, 4) == 0) groups[0][rank]++;
  }
  for (int32_t level = 0; level < nlevels; level++) {
    int32_t radix = 2 + random_below(random, 4);
    for (int32_t rank = 0; level > 0 && rank < nranks; rank++) groups[level][rank] = groups[level - 1][rank] / radix;
    facts[level] = (bny_level_facts){.name = names[level], .link = link, .group_of = groups[level]};
    link.alpha_ns *= 1 + random_below(random, 8);
    link.beta_ns_per_byte *= 1 + random_below(random, 6);
  }
  bny_level_facts all = {.name = "fabric", .link = link};
  bny_levels *levels = NULL;
  ck_assert_msg(bny_levels_make(nranks, facts, nlevels, &all, some_nics ? nics : NULL, &levels) == BANYAN_OK, "%s",
                banyan_last_error());
  return levels;
}

/* Draws few or many tokens and heads, no tokens or heads, or a box within a larger call. */
static inline void random_shape(uint64_t *random, bny_request *request) {
  int32_t tokens = random_below(random, 3) ? random_below(random, 5) : 1 + random_below(random, 100);
  int32_t heads = random_below(random, 12) ? 1 + random_below(random, 40) : random_below(random, 2);
  request->call.all_tokens = request->tokens = tokens;
  request->call.all_heads = request->heads = heads;
  request->token0 = request->head0 = 0;
  request->call.value_dim = random_below(random, 70);
  request->call.root = request->call.scatter == BANYAN_SCATTER_ROOT ? random_below(random, request->nranks) : 0;
  if (tokens > 1 && heads > 1 && random_below(random, 3) == 0) {
    request->token0 = random_below(random, tokens);
    request->tokens = 1 + random_below(random, tokens - request->token0);
    request->head0 = random_below(random, heads);
    request->heads = 1 + random_below(random, heads - request->head0);
  }
}

/* Makes and proves the plans of all ranks, and checks them against the bounds of the algorithm's estimate (NULL: no
 * check). Their predicted time must be within `factor` of the cost of their steps; 0: no check. */
static inline bny_plan **plans_make_checked(const bny_request *request, const bny_algorithm *algorithm, double factor) {
  bny_estimate bounds = {0};
  bny_plan **plans = plans_make(request);
  ck_assert_msg(plans_prove(request, plans) == BANYAN_OK, "%s: %s", request_text(request), banyan_last_error());
  if (algorithm) algorithm->estimate(request, &bounds);
  for (int32_t rank = 0; algorithm && rank < request->nranks; rank++)
    ck_assert_msg(plans[rank]->outbox_bytes <= bounds.outbox_bytes && plans[rank]->nslots <= bounds.slots,
                  "%s: rank %d takes %zu bytes and %d slots, the bounds are %zu and %lld", request_text(request), rank,
                  plans[rank]->outbox_bytes, plans[rank]->nslots, bounds.outbox_bytes, (long long)bounds.slots);
  double cost = bny_plans_ns(request, plans), predicted = plans[0]->predicted_ns;
  if (request->nranks == 1) factor = 0; /* the formula leaves out the last division, much of the work of one rank */
  ck_assert_msg(cost >= 0 && (cost == 0 || factor <= 0 || (predicted < factor * cost && predicted > cost / factor)),
                "%s: predicted %g ns, the plans' own steps take %g", request_text(request), predicted, cost);
  return plans;
}
