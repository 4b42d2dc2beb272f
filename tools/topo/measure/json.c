/* SPDX-License-Identifier: Apache-2.0
 * Writes measurements as JSON. */
#include <jansson.h>
#include <math.h>

#include "tools/topo/measure/measure.h"

/* JSON has no infinity, and 0 means not measured. */
static json_t *real(double value) { return isfinite(value) && value > 0 ? json_real(value) : json_null(); }

static json_t *two(const double values[2]) { return json_pack("[o, o]", real(values[0]), real(values[1])); }

static json_t *known(int32_t number) { return number < 0 ? json_null() : json_integer(number); }

static json_t *rank_json(const topo_measured_rank *rank) {
  return json_pack("{s:i, s:o, s:o, s:i, s:o, s:o, s:f, s:b}", "cpu", rank->place.cpu, "numa", known(rank->place.numa),
                   "package", known(rank->place.package), "blocks", rank->nblocks, "copies_1m_gbytes_per_s",
                   real(rank->small), "copies_16m_gbytes_per_s", real(rank->large), "disturbed",
                   rank->ntaken == 0 ? 0 : (double)rank->ndisturbed / rank->ntaken, "slow", rank->slow);
}

static json_t *pair_json(const topo_measured_pair *pair, const topo_measured_rank *ranks) {
  return json_pack("{s:[i, i], s:s, s:i, s:o, s:[o, o], s:o, s:o, s:o, s:o, s:s?, s:o}", "cpus",
                   ranks[pair->a].place.cpu, ranks[pair->b].place.cpu, "near", topo_near_name(pair->near), "blocks",
                   pair->nblocks, "latency_ns", real(pair->value[TOPO_LINE][0]), "latency_of_blocks_ns",
                   real(pair->line_low), real(pair->line_high), "message_16k_ns", real(pair->value[TOPO_MESSAGE][0]),
                   "takes_16k_ns", two(pair->value[TOPO_TAKE]), "reads_1m_gbytes_per_s", two(pair->value[TOPO_SMALL]),
                   "reads_16m_gbytes_per_s", two(pair->value[TOPO_LARGE]), "source",
                   pair->nblocks > 0 ? bny_topo_source_name(BNY_TOPO_MEASURED) : NULL, "slow",
                   pair->judged ? json_boolean(pair->slow) : json_null());
}

static json_t *kind_json(const topo_measured *measured, topo_near near) {
  const topo_measured_kind *kind = &measured->kinds[near];
  const topo_cost *planned = &measured->planned[near];
  return json_pack("{s:s, s:i, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "near", topo_near_name(near),
                   "pairs", kind->npairs, "judged", kind->judged, "expected_latency_ns",
                   real(kind->expected[TOPO_LINE]), "expected_further_signal_ns", real(kind->expected[TOPO_MORE]),
                   "expected_message_16k_ns", real(kind->expected[TOPO_MESSAGE]), "expected_1m_gbytes_per_s",
                   real(kind->expected[TOPO_SMALL]), "expected_16m_gbytes_per_s", real(kind->expected[TOPO_LARGE]),
                   "alpha_ns", real(kind->alpha), "beta_ns_per_byte", real(kind->beta), "planned_alpha_ns",
                   real(planned->alpha_ns), "planned_beta_ns_per_byte", real(planned->beta_ns_per_byte));
}

static json_t *link_json(const topo_measured_link *link, const bny_topo *topo) {
  return json_pack("{s:s, s:s, s:i, s:o, s:s, s:o, s:o}", "from", topo->nodes[link->from].name, "to",
                   topo->nodes[link->to].name, "readers", link->nreaders, "expected_gbytes_per_s", real(link->expected),
                   "expected_source", bny_topo_source_name(link->expected_source), "gbytes_per_s", two(link->value),
                   "latency_ns", real(link->line));
}

static json_t *finding_json(const topo_measured_finding *finding, const topo_measured_rank *ranks) {
  json_t *cpus = json_array();
  const int32_t both[2] = {finding->a, finding->b};
  for (int i = 0; i < 2; i++)
    if (both[i] >= 0) json_array_append_new(cpus, json_integer(ranks[both[i]].place.cpu));
  return json_pack("{s:s, s:o, s:o, s:s}", "severity", finding->warning ? "warning" : "info", "cpus", cpus, "factor",
                   real(finding->factor), "text", finding->text);
}

json_t *topo_measured_json(const topo_measured *measured, const bny_topo *topo) {
  json_t *ranks = json_array(), *pairs = json_array(), *kinds = json_array(), *links = json_array(),
         *found = json_array();
  for (int32_t r = 0; r < measured->nranks; r++) json_array_append_new(ranks, rank_json(&measured->ranks[r]));
  for (int32_t p = 0; p < measured->npairs; p++)
    json_array_append_new(pairs, pair_json(&measured->pairs[p], measured->ranks));
  for (int near = 0; near < TOPO_NEARS; near++)
    if (measured->kinds[near].npairs > 0) json_array_append_new(kinds, kind_json(measured, (topo_near)near));
  for (int32_t l = 0; l < measured->nlinks; l++) json_array_append_new(links, link_json(&measured->links[l], topo));
  for (int32_t f = 0; f < measured->nfindings; f++)
    json_array_append_new(found, finding_json(&measured->findings[f], measured->ranks));
  return json_pack("{s:f, s:i, s:I, s:b, s:f, s:f, s:s, s:o, s:o, s:o, s:o, s:o}", "seconds", measured->seconds,
                   "sweeps", measured->nsweeps, "pairs_possible", (json_int_t)measured->npairs_possible,
                   "virtual_machine", measured->virtual_machine, "slow_latency_factor", topo_slow_latency,
                   "slow_bandwidth_factor", topo_slow_bandwidth, "gpus", "not measured: this build has no CUDA",
                   "ranks", ranks, "pairs", pairs, "kinds", kinds, "links", links, "findings", found);
}
