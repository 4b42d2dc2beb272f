/* SPDX-License-Identifier: Apache-2.0
 * Selects the algorithm with the lowest predicted time, and explains why the others are not chosen. */
#include <math.h>
#include <string.h>

#include "plan/builder.h"
#include "plan/network.h"
#include "base/status.h"

#define BNY_ALGORITHM(constant) extern const bny_algorithm constant;
#include "plan/algorithms/algorithms.def"
#undef BNY_ALGORITHM

const bny_algorithm *const bny_algorithms[] = {
#define BNY_ALGORITHM(constant) &constant,
#include "plan/algorithms/algorithms.def"
#undef BNY_ALGORITHM
    NULL,
};
_Static_assert(sizeof bny_algorithms / sizeof bny_algorithms[0] <= BNY_CANDIDATES_MAX + 1,
               "each algorithm is a candidate");

enum { REASON_BYTES = 2048 };

void bny_algorithm_print(const bny_algorithm *algorithm, char *text, size_t bytes, size_t *length) {
  bny_append(text, bytes, length, "%s%s%s", algorithm->name, algorithm->variant ? "_" : "",
             algorithm->variant ? algorithm->variant : "");
}

/* Callers name an algorithm ("recursive") or one variant of it ("recursive_halving"). */
static bool is_named(const bny_algorithm *algorithm, const char *name) {
  char full[64];
  size_t length = 0;
  bny_algorithm_print(algorithm, full, sizeof full, &length);
  return strcmp(algorithm->name, name) == 0 || strcmp(full, name) == 0;
}

static bny_candidate candidate_of(const bny_request *request, int32_t index) {
  const bny_algorithm *algorithm = bny_algorithms[index];
  bny_candidate made = {.algorithm = algorithm, .named = true, .rejection = algorithm->reject(request)};
  if (request->algorithm) made.named = is_named(algorithm, request->algorithm);
  if (made.rejection) return made;
  algorithm->estimate(request, &made.estimate);
  if (made.estimate.ns == 0) bny_estimate_spread(request, &made.estimate);
  made.ns = bny_estimate_ns(request, &made.estimate);
  if (request->cost.stepwise > 0 && !(algorithm->direct && bny_request_may_be_direct(request)))
    made.ns *= request->cost.stepwise;
  made.fits = bny_estimate_fits(request, &made.estimate);
  return made;
}

/* The formula counts all ranks alike. With the fastest links, and nothing else on them, its time is rarely more than
 * that of the plan times these factors: where ranks are alike, where they are not, and where only one receives. */
static const double even_errs = 1.5, bound_errs = 2, root_errs = 4;

/* A new shape waits while plans are priced: at 64 ranks for a few ms, at 256 and more for up to 0.1 s, or for the time
 * of some calls. An algorithm whose plans have more messages keeps the formula's time. */
enum {
  PRICED_RANKS_MAX = 1024,
  PRICED_MESSAGES_LEAST = 6144,
  PRICED_MESSAGES_OF_RANK = 128,
  PRICED_MESSAGES_MAX = 32768,
  PRICED_MESSAGE_NS = 100
};

static bool serves(const bny_candidate *one) { return !one->rejection && one->named && one->fits; }

/* Sets by candidate the formula's time if each message had the fastest link of its kind for itself. */
static void candidates_bound(const bny_request *request, const bny_candidate *candidates, int32_t count, double *ns) {
  bny_levels levels = *request->levels, leaders;
  bny_request unshared = *request;
  unshared.levels = &levels;
  for (int32_t k = 0; k < levels.nlevels; k++) {
    levels.levels[k].link.beta_ns_per_byte = bny_links_least_ns_per_byte(request->levels, k);
    levels.levels[k].link.shared_ns_per_byte = 0;
  }
  if (levels.leaders) {
    leaders = *levels.leaders;
    levels.leaders = &leaders;
    for (int32_t k = 0; k < leaders.nlevels; k++) leaders.levels[k].link = levels.levels[k].link;
  }
  for (int32_t i = 0; i < count; i++) {
    bny_estimate estimate = {.ns = 0};
    ns[i] = candidates[i].ns;
    if (!serves(&candidates[i]) || request->levels->network->even) continue;
    candidates[i].algorithm->estimate(&unshared, &estimate);
    ns[i] = fmin(ns[i], bny_estimate_ns(&unshared, &estimate));
  }
}

/* Prices candidates by the messages of their plans, which show the links that several ranks share: first the one of the
 * least formula, then those that may be faster. The others keep the formula's time. */
static banyan_status candidates_price(const bny_request *request, bny_candidate *candidates, int32_t count) {
  const bny_links *network = request->levels ? request->levels->network : NULL;
  double bounds[BNY_CANDIDATES_MAX], least = INFINITY;
  int32_t next = -1, near = 0;
  for (int32_t i = 0; i < count; i++)
    if (serves(&candidates[i]) && (next < 0 || candidates[i].ns < candidates[next].ns)) next = i;
  /* The clock does not know which ranks wait for a core. */
  if (!network || network->nlinks == 0 || next < 0 || request->levels->levels[0].link.ranks_per_core > 1)
    return BANYAN_OK;
  double errs = network->even ? even_errs : request->call.scatter == BANYAN_SCATTER_ROOT ? root_errs : bound_errs;
  double allowed = fmax(PRICED_MESSAGES_LEAST, PRICED_MESSAGES_OF_RANK * request->nranks);
  int64_t messages = (int64_t)fmin(allowed + candidates[next].ns / PRICED_MESSAGE_NS, PRICED_MESSAGES_MAX);
  int64_t none = 0;
  bool done[BNY_CANDIDATES_MAX] = {false};
  candidates_bound(request, candidates, count, bounds);
  for (int32_t i = 0; i < count; i++) near += serves(&candidates[i]) && bounds[i] <= errs * candidates[next].ns;
  if (near < 2 && network->even) return BANYAN_OK;
  while (next >= 0) {
    bny_candidate *one = &candidates[next];
    bool may_win = request->nranks <= PRICED_RANKS_MAX && bounds[next] <= errs * least &&
                   one->estimate.messages * request->nranks <= (double)messages;
    done[next] = true;
    banyan_status status = bny_algorithm_price(request, one->algorithm, may_win ? &messages : &none, &one->ns);
    if (status != BANYAN_OK) return status;
    least = fmin(least, one->ns);
    next = -1;
    for (int32_t i = 0; i < count; i++)
      if (!done[i] && serves(&candidates[i]) && (next < 0 || bounds[i] < bounds[next])) next = i;
  }
  return BANYAN_OK;
}

int32_t bny_algorithm_candidates(const bny_request *request, bny_candidate candidates[BNY_CANDIDATES_MAX]) {
  int32_t count = 0, chosen = -1;
  for (; bny_algorithms[count]; count++) {
    bny_candidate *one = &candidates[count];
    *one = candidate_of(request, count);
  }
  if (candidates_price(request, candidates, count) != BANYAN_OK) return 0;
  for (int32_t i = 0; i < count; i++)
    if (serves(&candidates[i]) && (chosen < 0 || candidates[i].ns < candidates[chosen].ns)) chosen = i;
  if (chosen >= 0) candidates[chosen].chosen = true;
  return count;
}

static void list_names(const bny_request *request, char *text, size_t bytes) {
  size_t length = 0;
  const char *last = "";
  text[0] = 0;
  for (int i = 0; bny_algorithms[i]; i++) {
    const bny_algorithm *algorithm = bny_algorithms[i];
    if (algorithm->reject(request) || strcmp(algorithm->name, last) == 0) continue;
    bny_append(text, bytes, &length, "%s%s", length ? ", " : "", algorithm->name);
    last = algorithm->name;
  }
}

/* Excludes rows that serve a barrier only. */
static bool may_combine(const bny_algorithm *algorithm) {
  return algorithm->reject(&(bny_request){.call.collective = BNY_BARRIER, .nranks = 2}) != NULL;
}

banyan_status bny_algorithm_check_name(const char *where, const char *name) {
  char names[256];
  size_t length = 0;
  const char *last = "";
  for (int i = 0; bny_algorithms[i]; i++) {
    if (!may_combine(bny_algorithms[i])) continue;
    if (is_named(bny_algorithms[i], name)) return BANYAN_OK;
    if (strcmp(bny_algorithms[i]->name, last) == 0) continue;
    last = bny_algorithms[i]->name;
    bny_append(names, sizeof names, &length, "%s%s", length ? ", " : "", last);
  }
  return bny_fail(BANYAN_ERR_ARGUMENT, "%s is \"%.40s\"; it takes %s, or a form of one of these, such as tree_chain",
                  where, name, names);
}

static banyan_status fail_name(const bny_request *request) {
  char names[256];
  const char *collective = bny_collective_name(request->call.collective);
  const char *rejection = NULL;
  for (int i = 0; bny_algorithms[i] && !rejection; i++)
    if (is_named(bny_algorithms[i], request->algorithm)) rejection = bny_algorithms[i]->reject(request);
  list_names(request, names, sizeof names);
  if (rejection)
    return bny_fail(BANYAN_ERR_ARGUMENT, "algorithm \"%s\" cannot serve this %s: %s. These can: %s", request->algorithm,
                    collective, rejection, names);
  return bny_fail(BANYAN_ERR_ARGUMENT,
                  "unknown algorithm \"%s\": for %s there are %s (and forms of these, such as tree_chain)",
                  request->algorithm, collective, names);
}

size_t bny_algorithm_least_outbox(int32_t nranks, int32_t slots_max, const bny_link_cost *cost) {
  bny_request row = {.call.collective = BNY_COMBINE,
                     .nranks = nranks,
                     .call.all_tokens = 1,
                     .call.all_heads = 1,
                     .tokens = 1,
                     .heads = 1,
                     .call.value_dim = BNY_LEAST_ROW_VALUES,
                     .call.wire = BNY_WIRE_F32,
                     .cost = *cost,
                     .slots_max = slots_max,
                     .outbox_bytes = SIZE_MAX};
  size_t least = 0;
  for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++)
    for (int order = BANYAN_ORDER_PLAN; order <= BANYAN_ORDER_CANONICAL; order++) {
      row.call.scatter = (banyan_scatter)scatter;
      row.call.order = (banyan_order)order;
      bny_candidate candidates[BNY_CANDIDATES_MAX];
      int32_t count = bny_algorithm_candidates(&row, candidates);
      for (int32_t i = 0; i < count; i++)
        if (!candidates[i].rejection && candidates[i].fits && candidates[i].estimate.outbox_bytes > least)
          least = candidates[i].estimate.outbox_bytes;
    }
  return least;
}

/* Explains the failure. A larger arena holds more bytes, but not more slots, whose number grows only with the number of
 * ranks. A part of one row cannot be split. */
static banyan_status fail_memory(const bny_request *request, const bny_candidate *smallest) {
  const char *what = bny_collective_name(request->call.collective), *name = smallest->algorithm->name;
  const bny_estimate *need = &smallest->estimate;
  if (need->slots > request->slots_max)
    return bny_fail(BANYAN_ERR_MEMORY,
                    "%s by %s among %d ranks needs %lld slots of a rank's outbox, which has %d: name another algorithm",
                    what, name, request->nranks, (long long)need->slots, request->slots_max);
  bool splits = !bny_call_has_rows(&request->call) || (int64_t)request->tokens * request->heads > 1;
  return bny_fail(BANYAN_ERR_MEMORY,
                  "%s by %s among %d ranks needs %zu bytes of a rank's outbox, which has %zu: set arena_bytes to %zu "
                  "or more (BANYAN_ARENA_KIB=%zu)%s",
                  what, name, request->nranks, need->outbox_bytes, request->outbox_bytes, 2 * need->outbox_bytes,
                  (2 * need->outbox_bytes + 1023) >> 10, splits ? ", or split the call" : "");
}

void bny_estimate_print_form(const bny_estimate *estimate, char *text, size_t bytes, size_t *length) {
  for (int32_t level = 0; level < BNY_LEVELS_MAX && estimate->radix[level] > 0; level++)
    bny_append(text, bytes, length, level == 0 ? ", radix %d" : ".%d", estimate->radix[level]);
  if (estimate->pieces > 1) bny_append(text, bytes, length, ", %d pieces", estimate->pieces);
}

static void explain_one(const bny_request *request, const bny_candidate *one, char *text, size_t *length) {
  if (one->rejection) {
    bny_append(text, REASON_BYTES, length, " cannot (%s)", one->rejection);
    return;
  }
  if (isinf(one->ns))
    bny_append(text, REASON_BYTES, length, ": some messages have no way");
  else
    bny_append(text, REASON_BYTES, length, " %.2f us", one->ns / 1e3);
  bny_append(text, REASON_BYTES, length, " (%g round%s, %g message%s, %.0f bytes sent", one->estimate.rounds,
             one->estimate.rounds == 1 ? "" : "s", one->estimate.messages, one->estimate.messages == 1 ? "" : "s",
             one->estimate.bytes_sent);
  bny_estimate_print_form(&one->estimate, text, REASON_BYTES, length);
  bny_append(text, REASON_BYTES, length, ")");
  if (!one->fits)
    bny_append(text, REASON_BYTES, length, " but needs %zu bytes and %lld slots of %zu and %d",
               one->estimate.outbox_bytes, (long long)one->estimate.slots, request->outbox_bytes, request->slots_max);
}

/* "twoshot 8.21 us (2 rounds, ...): least predicted; oneshot 9.02 us (...); tree cannot (...)". */
static char *explain(const bny_request *request, const bny_candidate *candidates, int count, int chosen) {
  char text[REASON_BYTES] = "";
  size_t length = 0;
  bny_algorithm_print(candidates[chosen].algorithm, text, sizeof text, &length);
  explain_one(request, &candidates[chosen], text, &length);
  bny_append(text, sizeof text, &length, "%s", request->algorithm ? ": named by the caller" : ": least predicted");
  for (int i = 0; i < count; i++) {
    if (i == chosen || (request->algorithm && !candidates[i].named)) continue;
    bny_append(text, sizeof text, &length, "; ");
    bny_algorithm_print(candidates[i].algorithm, text, sizeof text, &length);
    explain_one(request, &candidates[i], text, &length);
  }
  return strdup(text);
}

banyan_status bny_algorithm_select(const bny_request *request, const bny_algorithm **algorithm, double *predicted_ns,
                                   char **reason) {
  bny_candidate candidates[BNY_CANDIDATES_MAX];
  int32_t count = bny_algorithm_candidates(request, candidates), chosen = -1, smallest = -1;
  for (int32_t i = 0; i < count; i++) {
    const bny_candidate *one = &candidates[i];
    if (one->chosen) chosen = i;
    if (one->rejection || !one->named) continue;
    if (smallest < 0 || one->estimate.outbox_bytes < candidates[smallest].estimate.outbox_bytes) smallest = i;
  }
  if (count == 0) return BANYAN_ERR_MEMORY;
  if (smallest < 0) return fail_name(request);
  if (chosen < 0) return fail_memory(request, &candidates[smallest]);
  char *text = explain(request, candidates, count, chosen);
  if (!text) return bny_fail(BANYAN_ERR_MEMORY, "plan: no memory");
  *algorithm = candidates[chosen].algorithm;
  *predicted_ns = candidates[chosen].ns;
  *reason = text;
  return BANYAN_OK;
}
