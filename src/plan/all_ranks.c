/* SPDX-License-Identifier: Apache-2.0
 * Makes the plans of all ranks by one algorithm, and prices them. */
#include <math.h>
#include <stdlib.h>

#include "base/status.h"
#include "plan/clock.h"
#include "plan/compose.h"
#include "plan/network.h"

void bny_plan_free(bny_plan *plan) {
  if (!plan) return;
  free(plan->reason);
  free(plan->slots);
  free(plan->messages);
  free(plan->sources);
  free(plan->peers);
  free(plan->steps);
  free(plan);
}

/* Makes a plan without what is said about it. The builder keeps the slots of peers for the next rank. */
static bny_plan *plan_build(const bny_request *request, const bny_algorithm *algorithm, int32_t rank,
                            bny_builder *last) {
  bny_plan *plan = calloc(1, sizeof *plan);
  if (!plan) {
    last->status = bny_fail(BANYAN_ERR_MEMORY, "plan of rank %d: no memory", rank);
    return NULL;
  }
  plan->collective = request->call.collective;
  plan->rank = rank;
  plan->nranks = request->nranks;
  bny_builder builder;
  bny_builder_init(&builder, request, algorithm, rank, false, plan);
  builder.choices = last->choices;
  builder.lists = last->lists;
  algorithm->build(&builder);
  last->lists = builder.lists;
  last->status = builder.status;
  builder.lists = NULL;
  bny_builder_fini(&builder);
  return plan;
}

/* Without all of the plans: the ways of some ranks' messages. */
static bool ways_exist(const bny_request *request, const bny_algorithm *algorithm, bny_builder *last) {
  bool exist = true;
  if (!request->levels || !request->levels->network->split) return true;
  for (int32_t i = 0; i < 4 && exist && last->status == BANYAN_OK; i++) {
    bny_plan *plan = plan_build(request, algorithm, (int32_t)((int64_t)i * (request->nranks - 1) / 3), last);
    bny_route route;
    for (int32_t k = 0; plan && k < plan->nmessages && exist; k++) {
      bny_links_route(request->levels, plan->messages[k].peer, plan->rank, &route);
      exist = route.exists;
    }
    bny_plan_free(plan);
  }
  return exist;
}

banyan_status bny_algorithm_price(const bny_request *request, const bny_algorithm *algorithm, int64_t *messages,
                                  double *ns) {
  bny_choices choices = {.count = 0};
  bny_builder last = {.choices = &choices};
  bny_plan **plans = calloc((size_t)request->nranks, sizeof *plans);
  int32_t made = 0;
  if (!plans) return bny_fail(BANYAN_ERR_MEMORY, "plan: no memory for the plans of %d ranks", request->nranks);
  for (; made < request->nranks && last.status == BANYAN_OK && *messages > 0; made++) {
    plans[made] = plan_build(request, algorithm, made, &last);
    if (plans[made]) *messages -= plans[made]->nmessages;
  }
  if (last.status == BANYAN_OK && *messages >= 0 && made == request->nranks) {
    *ns = bny_plans_ns(request, plans);
    if (*ns < 0) last.status = bny_fail(BANYAN_ERR_MEMORY, "plan: no memory for clocks of %d ranks", request->nranks);
  } else if (last.status == BANYAN_OK && !ways_exist(request, algorithm, &last)) {
    *ns = INFINITY;
  }
  while (--made >= 0) bny_plan_free(plans[made]);
  free(plans);
  bny_builder_fini(&last);
  return last.status;
}
