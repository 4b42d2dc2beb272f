/* SPDX-License-Identifier: Apache-2.0
 * Shared by the tests of plans. */
#ifndef BNY_TESTS_PLAN_UTIL_H
#define BNY_TESTS_PLAN_UTIL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "plan/plan.h"
#include "tests/support/generator.h"
#include "tests/support/sanitized.h"
#include "tools/prove/prove.h"

static inline uint32_t random_next(uint64_t *state) { return (uint32_t)(random_word(state) >> 32); }

static inline int32_t random_below(uint64_t *state, int32_t n) { return (int32_t)(random_next(state) % (uint32_t)n); }

/* A request that fits, with plausible costs. */
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

/* Sanitizers look at code, which is the same for all large numbers of ranks: one in four of these suffices there. */
static inline bool is_left_out(int32_t nranks) { return IS_SANITIZED && nranks > 9 && nranks % 4 != 3; }

/* Plans of all ranks; NULL on failure. */
static inline bny_plan **plans_make(const bny_request *request) {
  bny_plan **plans = calloc((size_t)request->nranks, sizeof *plans);
  for (int32_t rank = 0; plans && rank < request->nranks; rank++)
    if (bny_plan_make(request, rank, &plans[rank]) != BANYAN_OK) {
      plans_free(request, plans);
      return NULL;
    }
  return plans;
}

static inline banyan_status plans_prove(const bny_request *request, bny_plan **plans) {
  return bny_plan_prove(request, (const bny_plan *const *)plans);
}

/* Bytes that a rank sends, to each receiver counted. */
static inline uint64_t plan_bytes_sent(const bny_plan *plan) {
  uint64_t bytes = 0;
  for (int32_t step = 0; step < plan->nsteps; step++)
    if (plan->steps[step].kind == BNY_STEP_SEND)
      bytes += (uint64_t)plan->steps[step].count * plan->slots[plan->steps[step].slot].bytes;
  return bytes;
}

#endif
