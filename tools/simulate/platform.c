/* SPDX-License-Identifier: Apache-2.0
 * The links of a machine or cluster as the simulator takes them: those by which the library prices plans. */
#include <stdio.h>

#include "plan/network.h"
#include "tools/plan/case.h"
#include "tools/simulate/simulate.h"

const char *const sim_kind_names[BNY_HOPS] = {"nvlink", "xgmi", "pcie", "packages", "nic", "leaf", "spine"};

const char *sim_link_name(const sim_link *link, char text[SIM_NAME_BYTES]) {
  static const char *const things[BNY_HOPS] = {"nvlink of rank",      "xgmi of rank", "pcie of rank",
                                               "package of rank",     "nic of rank",  "leaf switch of rank",
                                               "spine switch of rank"};
  snprintf(text, SIM_NAME_BYTES, "%s %d, %s", things[link->kind], link->owner, link->out ? "out" : "in");
  return text;
}

static void route(const sim_platform *p, int32_t from, int32_t to, bny_route *way) {
  bny_links_route(p->levels, from, to, way);
  way->latency_ns *= p->latency_scale;
}

sim_platform sim_platform_make(const plan_ranks *ranks) {
  const bny_links *network = ranks->levels->network;
  sim_platform p = {.levels = ranks->levels,
                    .nlinks = network->nlinks,
                    .links = tool_new((size_t)network->nlinks + 1, sizeof *p.links),
                    .latency_scale = 1,
                    .memory_scale = 1,
                    .route = route};
  for (int32_t l = 0; l < p.nlinks; l++) {
    const bny_link *link = &network->links[l];
    p.links[l] = (sim_link){link->kind, link->owner, link->out, 1 / link->ns_per_byte, 0};
  }
  return p;
}

bool sim_ways_exist(const sim_job *job, char *error, size_t bytes) {
  for (int32_t stage = 0; stage < job->nstages; stage++)
    for (int32_t r = 0; r < job->stages[stage].request->nranks; r++) {
      const bny_plan *plan = job->stages[stage].plans[r];
      for (int32_t i = 0; i < plan->nmessages; i++) {
        bny_route way;
        route(job->platform, plan->messages[i].peer, r, &way);
        if (way.exists) continue;
        snprintf(error, bytes, "a message from rank %d to rank %d has no way: no switch joins their NICs",
                 plan->messages[i].peer, r);
        return false;
      }
    }
  return true;
}
