/* SPDX-License-Identifier: Apache-2.0
 * banyan-info levels: where ranks of this machine would find themselves, and the levels that follow, by the library's
 * code. Ranks are bound as launchers bind them, in order to the processors that this process may use. */
#include <sched.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/options.h"
#include "locality/locality.h"
#include "tools/common/options.h"
#include "tools/info/section.h"
#include "tools/plan/methods.h"

enum { SHOWN_MAX = 64 };

/* Processor number `nth` of a set. */
static int nth_cpu(const cpu_set_t *allowed, int nth) {
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, allowed) && nth-- == 0) return cpu;
  return -1;
}

static bool place_find(const cpu_set_t *allowed, int32_t rank, int32_t nranks, bny_locality *locality, double *took_ms,
                       tool_error *error) {
  bny_locality_query query = {
      .topo = bny_option_text("BANYAN_TOPO"), .topo_rank = bny_option_text("BANYAN_TOPO_RANK"), .rank = rank};
  int cpus = CPU_COUNT(allowed), cpu = nth_cpu(allowed, (int)((int64_t)rank * cpus / (nranks < cpus ? cpus : nranks)));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  int64_t begin = bny_clock_ns();
  bool bound = sched_setaffinity(0, sizeof one, &one) == 0;
  banyan_status status = bny_locality_find(&query, locality);
  *took_ms = (double)(bny_clock_ns() - begin) / 1e6;
  sched_setaffinity(0, sizeof *allowed, allowed);
  if (!bound) return tool_error_set(error, "rank %d cannot be bound to processor %d", rank, cpu);
  return status == BANYAN_OK || tool_error_banyan(error, status, "localities");
}

static json_t *levels_of(const bny_locality *localities, int32_t nranks, int cpus, tool_error *error) {
  plan_ranks ranks = {.nranks = nranks};
  bny_locality_world world = {.node_of = tool_new((size_t)nranks, sizeof(int32_t)),
                              .ranks_per_core = (double)nranks / cpus};
  banyan_status status = bny_locality_levels(localities, nranks, &world, &ranks.notes, &ranks.levels);
  if (status != BANYAN_OK) {
    tool_error_banyan(error, status, "levels");
    return NULL;
  }
  json_t *left_out = json_array();
  for (int32_t i = 0; i < ranks.notes.count; i++) {
    const bny_locality_note *note = &ranks.notes.notes[i];
    if (!note->kept) json_array_append_new(left_out, json_pack("{s:s, s:s}", "name", note->name, "why", note->text));
  }
  json_t *found =
      json_pack("{s:i, s:o, s:o}", "ranks", nranks, "levels", plan_levels_json(&ranks), "left_out", left_out);
  plan_ranks_release(&ranks);
  return found;
}

static json_t *gather(const info_request *request, tool_error *error) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
  int cpus = CPU_COUNT(&allowed);
  int32_t nranks = request->ranks > 0 ? request->ranks : cpus > 1 ? cpus : 2;
  if (cpus == 0) {
    tool_error_set(error, "the kernel does not say which processors this process may use");
    return NULL;
  }
  if (nranks > SHOWN_MAX) nranks = SHOWN_MAX;
  bny_locality *localities = tool_new((size_t)nranks, sizeof *localities);
  json_t *list = json_array(), *found = NULL;
  bool good = true;
  for (int32_t r = 0; r < nranks && good; r++) {
    double took_ms;
    good = place_find(&allowed, r, nranks, &localities[r], &took_ms, error);
    json_t *one =
        json_pack("{s:i, s:s, s:f}", "rank", r, "source", good ? localities[r].source : "", "found_ms", took_ms);
    json_array_append_new(list, one);
  }
  if (good) found = levels_of(localities, nranks, cpus, error);
  if (found) json_object_set(found, "localities", list);
  json_decref(list);
  return found;
}

static void print_row(FILE *stream, const char *what, const char *name, const char *text) {
  info_row(stream, tool_format("%s %-8s", what, name), text);
}

static void print(const json_t *facts, FILE *stream) {
  size_t i;
  json_t *one;
  json_array_foreach(json_object_get(facts, "localities"), i, one) {
    print_row(stream, "rank", tool_format("%d", (int)json_integer_value(json_object_get(one, "rank"))),
              tool_format("%s, found in %.1f ms", info_text(one, "source"),
                          json_real_value(json_object_get(one, "found_ms"))));
  }
  json_array_foreach(json_object_get(facts, "levels"), i, one) {
    int groups = (int)json_integer_value(json_object_get(one, "groups"));
    print_row(stream, "level", info_text(one, "name"),
              tool_format("%d group%s of up to %d, %s: %.4g us, %.4g GB/s (%s; %s)", groups, groups == 1 ? "" : "s",
                          (int)json_integer_value(json_object_get(one, "members_most")), info_text(one, "links"),
                          json_real_value(json_object_get(one, "alpha_us")),
                          json_real_value(json_object_get(one, "gbytes_per_s")), info_text(one, "speed_source"),
                          info_text(one, "default_source")));
  }
  json_array_foreach(json_object_get(facts, "left_out"), i, one)
      print_row(stream, "no level", info_text(one, "name"), info_text(one, "why"));
}

const info_section info_levels = {"levels", "Levels", gather, print};
