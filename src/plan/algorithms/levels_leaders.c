/* SPDX-License-Identifier: Apache-2.0
 * Plans levels for NONE and ROOT, with one carrier in each island. The island's leader merges the whole box of the
 * island, combines it with the other leaders, and sends the result to the island. An island sends the same bytes as
 * with a piece for every carrier (see levels.c), but in one message instead of w. Only the leaders take part beyond the
 * island. This suits small boxes, and islands whose ranks share a link or take turns on a core. */
#include "plan/builder.h"

extern const bny_algorithm bny_algorithm_levels;

/* The request with leaders as carriers. */
static bny_request led(const bny_request *request) {
  bny_request made = *request;
  if (made.levels && made.levels->leaders) made.levels = made.levels->leaders;
  return made;
}

static const char *reject(const bny_request *request) {
  const char *rejection = bny_algorithm_levels.reject(request);
  if (!rejection && !request->levels->leaders) rejection = "no island has more than one rank that carries";
  return rejection;
}

static void estimate(const bny_request *request, bny_estimate *estimate) {
  bny_request with_leaders = led(request);
  bny_algorithm_levels.estimate(&with_leaders, estimate);
}

static void build(bny_builder *builder) {
  const bny_request *whole = builder->whole;
  bny_request with_leaders = led(whole);
  builder->whole = builder->request = &with_leaders;
  bny_algorithm_levels.build(builder);
  builder->whole = builder->request = whole;
}

const bny_algorithm bny_algorithm_levels_leaders = {
    .name = "levels", .variant = "leaders", .reject = reject, .estimate = estimate, .build = build};
