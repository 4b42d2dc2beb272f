/* SPDX-License-Identifier: Apache-2.0
 * Gathers the facts of all ranks, and derives from them which ranks share a node or a process and which cores each
 * has. */
#include "comm/facts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/interface.h"
#include "base/log.h"
#include "base/status.h"
#include "base/sysfs.h"
#include "plan/plan.h"

/* ---- of one rank ------------------------------------------------------------------------------------------------- */

static uint64_t namespace_of(const char *path) {
  struct stat file;
  return stat(path, &file) == 0 ? (uint64_t)file.st_ino : 0;
}

/* Returns a hash of the random bytes that the kernel gives each program that it executes. It distinguishes processes
 * whose namespaces and numbers are equal: without /proc, or on two machines started from one snapshot. The hash has
 * half of the bits and does not reveal these bytes, which have a secret use. */
static uint64_t process_number(void) {
  const void *random = (const void *)getauxval(AT_RANDOM);
  uint64_t words[2] = {0};
  if (random) memcpy(words, random, sizeof words);
  return bny_hash_add(bny_hash_of(words[0]), words[1]);
}

/* Two nodes must never count as one. If the kernel does not identify the node, as without /proc, each process counts as
 * its own node. That is slower, but correct. */
static void find_machine(bny_facts *own) {
  enum { BOOT_ID_LENGTH = 36 };
  own->network_namespace = namespace_of("/proc/self/ns/net");
  own->pid_namespace = namespace_of("/proc/self/ns/pid");
  own->user_namespace = namespace_of("/proc/self/ns/user");
  own->user = (uint32_t)geteuid();
  if (bny_sysfs_line(own->boot_id, sizeof own->boot_id, "/proc/sys/kernel/random/boot_id") &&
      strlen(own->boot_id) == BOOT_ID_LENGTH && own->network_namespace)
    return;
  memset(own->boot_id, 0, sizeof own->boot_id);
  snprintf(own->boot_id, sizeof own->boot_id, "%016" PRIx64 " %" PRId64, own->process, own->pid);
  bny_log(BNY_LOG_WARN,
          "rank %d cannot read its boot id and network namespace in /proc, and takes itself for a node of its own",
          own->rank);
}

static uint64_t second_level_cache_bytes(void) {
  long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 && bytes < 1 << 26 ? (uint64_t)bytes : 1 << 20;
}

/* The option is a name for all ranks, or a list of names by rank, which tests of several nodes in one process need. */
static banyan_status find_node_name(const char *text, int32_t rank, char *name) {
  if (text && strchr(text, ',')) {
    for (; rank > 0 && text; rank--) {
      text = strchr(text, ',');
      if (text) text++;
    }
    if (!text) return bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_NODE is a list of fewer names than there are ranks");
  }
  size_t length = text ? strcspn(text, ",") : 0;
  if (length >= BNY_NODE_NAME_BYTES)
    return bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_NODE \"%.40s...\" is too long: at most %d characters", text,
                    BNY_NODE_NAME_BYTES - 1);
  if (length) memcpy(name, text, length);
  return BANYAN_OK;
}

void bny_facts_gather(const banyan_bootstrap *bootstrap, const bny_settings *settings, banyan_status own_status,
                      bny_facts *facts) {
  const bny_options *options = &settings->options;
  bny_facts own = {
      .pid = getpid(),
      .process = process_number(),
      .rank = bootstrap->rank,
      .plan_id = bny_plan_id,
      .nranks = bootstrap->nranks,
      .arena_bytes = settings->arena_bytes,
      .device_arena_bytes = settings->device_arena_bytes,
      .part_bytes = (uint64_t)options->part_kib << 10,
      .slices = (int32_t)options->slices,
      .check = (int32_t)options->check,
      .cache_bytes = second_level_cache_bytes(),
  };
  bny_pass_form pass = BNY_PASS_AUTO;
  if (options->pass) bny_pass_form_parse(options->pass, &pass);
  own.pass = (int32_t)pass;
  strncpy(own.version, banyan_version(), sizeof own.version - 1);
  if (settings->algorithm) strncpy(own.algorithm, settings->algorithm, sizeof own.algorithm - 1);
  if (settings->device) /* "cuda:2" is of the kind "cuda" */
    snprintf(own.device, sizeof own.device, "%.*s", (int)strcspn(settings->device, ":"), settings->device);
  if (options->levels) strncpy(own.levels, options->levels, sizeof own.levels - 1);
  find_machine(&own);
  if (own_status == BANYAN_OK) own_status = find_node_name(options->node, settings->origin, own.node);
  own.status = (int32_t)own_status;
  if (own_status != BANYAN_OK) snprintf(own.error, sizeof own.error, "%s", banyan_last_error());
  /* A mask of the kernel's own size may be larger than a cpu_set_t. */
  if (sched_getaffinity(0, sizeof own.cpus, (cpu_set_t *)(void *)own.cpus) != 0) memset(own.cpus, 0, sizeof own.cpus);
  bny_quotas_find("", own.quotas);
  bny_interface_addresses(own.addresses, BNY_FACTS_ADDRESSES);
  bny_exchange_interface(bootstrap, own.reached);
  *facts = own;
}

banyan_status bny_facts_compare(const bny_facts *all, const banyan_bootstrap *bootstrap) {
  const bny_facts *own = &all[bootstrap->rank];
  if (own->status != BANYAN_OK) return bny_fail((banyan_status)own->status, "%s", own->error);
  for (int32_t i = 0; i < bootstrap->nranks; i++) {
    const bny_facts *other = &all[i];
    if (memcmp(other->version, own->version, sizeof own->version) != 0 || other->plan_id != own->plan_id)
      return bny_fail(BANYAN_ERR_MISMATCH,
                      "rank %d runs banyan %.15s (plans %08" PRIx32 "), this rank %s (plans %08" PRIx32
                      "): builds that may plan differently do not work together",
                      i, other->version, other->plan_id, own->version, own->plan_id);
    if (other->rank != i || other->nranks != own->nranks)
      return bny_fail(
          BANYAN_ERR_MISMATCH,
          "entry %d of the allgather is from rank %d of %d, must be from rank %d of %d: the bootstrap's allgather is "
          "not in rank order or mixes groups",
          i, other->rank, other->nranks, i, own->nranks);
    if (other->status > BANYAN_OK && other->status <= BANYAN_ERR_ABORTED)
      return bny_fail((banyan_status)other->status, "rank %d: %.*s", i, BNY_FACTS_ERROR_BYTES - 1, other->error);
    if (other->part_bytes != own->part_bytes)
      return bny_fail(BANYAN_ERR_MISMATCH, "BANYAN_PART_KIB is %" PRIu64 " on rank %d and %" PRIu64 " here",
                      other->part_bytes >> 10, i, own->part_bytes >> 10);
    if (other->check != own->check)
      return bny_fail(BANYAN_ERR_MISMATCH, "BANYAN_CHECK is %d on rank %d and %d here", other->check, i, own->check);
    if (other->slices != own->slices)
      return bny_fail(BANYAN_ERR_MISMATCH, "BANYAN_SLICES is %d on rank %d and %d here", other->slices, i, own->slices);
    if (other->pass != own->pass)
      return bny_fail(BANYAN_ERR_MISMATCH, "BANYAN_PASS is %s on rank %d and %s here",
                      bny_pass_form_name((bny_pass_form)other->pass), i, bny_pass_form_name((bny_pass_form)own->pass));
    if (memcmp(other->algorithm, own->algorithm, sizeof own->algorithm) != 0)
      return bny_fail(BANYAN_ERR_MISMATCH, "the default algorithm is \"%.31s\" on rank %d and \"%.31s\" here",
                      other->algorithm, i, own->algorithm);
    if (memcmp(other->levels, own->levels, sizeof own->levels) != 0)
      return bny_fail(BANYAN_ERR_MISMATCH, "BANYAN_LEVELS is \"%.31s\" on rank %d and \"%.31s\" here", other->levels, i,
                      own->levels);
    if (memcmp(other->device, own->device, sizeof own->device) != 0)
      return bny_fail(BANYAN_ERR_MISMATCH, "config.device is \"%.15s\" on rank %d and \"%.15s\" here (\"\": the host)",
                      other->device, i, own->device);
  }
  return BANYAN_OK;
}

/* ---- of all ranks ------------------------------------------------------------------------------------------------ */

/* ---- equal ranks, without comparing each with each ---- */

typedef int comparison(const bny_facts *a, const bny_facts *b);

static int order(uint64_t a, uint64_t b) { return (a > b) - (a < b); }

/* Compares machines, then nodes. Shared memory needs one kernel, and passing its descriptor needs one network
 * namespace. Machine names do not identify a node, because containers repeat them. */
static int compare_nodes(const bny_facts *a, const bny_facts *b) {
  int found = memcmp(a->boot_id, b->boot_id, sizeof a->boot_id);
  if (found == 0) found = order(a->network_namespace, b->network_namespace);
  return found ? found : memcmp(a->node, b->node, sizeof a->node);
}

static int compare_processes(const bny_facts *a, const bny_facts *b) {
  int found = order((uint64_t)a->pid, (uint64_t)b->pid);
  if (found == 0) found = order(a->pid_namespace, b->pid_namespace);
  return found ? found : order(a->process, b->process);
}

/* For equal ranks, the order is that of their numbers. */
static int by_comparison(const void *first, const void *second, void *compare) {
  const bny_facts *a = *(const bny_facts *const *)first, *b = *(const bny_facts *const *)second;
  int found = (*(comparison **)compare)(a, b);
  return found ? found : (a > b) - (a < b);
}

/* Sorts all ranks. first_of[rank] becomes the first rank that equals it. */
static void firsts_find(const bny_facts *all, int32_t nranks, comparison *compare, const bny_facts **sorted,
                        int32_t *first_of) {
  for (int32_t i = 0; i < nranks; i++) sorted[i] = &all[i];
  qsort_r(sorted, (size_t)nranks, sizeof *sorted, by_comparison, &compare);
  for (int32_t i = 0; i < nranks; i++)
    first_of[sorted[i] - all] =
        i > 0 && compare(sorted[i - 1], sorted[i]) == 0 ? first_of[sorted[i - 1] - all] : (int32_t)(sorted[i] - all);
}

/* ---- cores and quotas of a machine ---- */

static int32_t cores_of(const bny_facts *const *mates, int32_t nmates) {
  unsigned char cpus[BNY_CPU_BYTES] = {0};
  int32_t cores = 0;
  for (int32_t i = 0; i < nmates; i++)
    for (int j = 0; j < BNY_CPU_BYTES; j++) cpus[j] |= mates[i]->cpus[j];
  for (int j = 0; j < BNY_CPU_BYTES; j++) cores += __builtin_popcount(cpus[j]);
  return cores < 1 ? 1 : cores;
}

static int by_number(const void *a, const void *b) { return order(*(const uint64_t *)a, *(const uint64_t *)b); }

/* The groups of all quotas of a machine's ranks, sorted: one entry for each rank in it. */
static size_t groups_of(const bny_facts *const *mates, int32_t nmates, uint64_t *groups) {
  size_t count = 0;
  for (int32_t i = 0; i < nmates; i++)
    for (int q = 0; q < BNY_QUOTAS && mates[i]->quotas[q].group; q++) groups[count++] = mates[i]->quotas[q].group;
  qsort(groups, count, sizeof *groups, by_number);
  return count;
}

/* The number of entries below `group`, or up to it. */
static size_t entries_until(const uint64_t *groups, size_t count, uint64_t group, bool inclusive) {
  size_t low = 0;
  while (low < count) {
    size_t middle = low + (count - low) / 2;
    if (groups[middle] < group || (inclusive && groups[middle] == group))
      low = middle + 1;
    else
      count = middle;
  }
  return low;
}

/* Returns the CPUs of a rank if the ranks of each group share its quota evenly; INFINITY without quotas. */
static double quota_share(const bny_facts *own, const uint64_t *groups, size_t count) {
  double least = INFINITY;
  for (int q = 0; q < BNY_QUOTAS && own->quotas[q].group; q++) {
    uint64_t group = own->quotas[q].group;
    size_t mates = entries_until(groups, count, group, true) - entries_until(groups, count, group, false);
    least = fmin(least, own->quotas[q].cpus / (double)mates);
  }
  return least;
}

/* Fractions of a CPU are dropped: a group that uses up its quota stops, and all ranks wait for it. Ranks with less than
 * one CPU each take turns. */
static void machine_add(const bny_facts *const *mates, int32_t nmates, const bny_facts *own, uint64_t *groups,
                        bny_node_map *found) {
  int32_t cores = cores_of(mates, nmates);
  size_t count = groups_of(mates, nmates, groups);
  found->ranks_per_core = fmax(found->ranks_per_core, (double)nmates / cores);
  for (int32_t i = 0; i < nmates && count > 0; i++)
    if (mates[i]->quotas[0].group)
      found->ranks_per_core = fmax(found->ranks_per_core, 1 / quota_share(mates[i], groups, count));
  if (!bny_facts_same_machine(mates[0], own)) return;
  double share = quota_share(own, groups, count);
  int32_t bound = found->own_cpus.count > 1 ? found->own_cpus.count : 1;
  found->cores = cores;
  found->quota_cpus = share < bound ? share : 0;
  found->threads = share >= bound ? bound : share > 1 ? (int32_t)share : 1;
}

static bool has_address(const bny_facts *facts, uint64_t address) {
  for (int i = 0; i < BNY_FACTS_ADDRESSES && facts->addresses[i]; i++)
    if (facts->addresses[i] == address) return true;
  return false;
}

/* Nodes of one network namespace, as in tests, have the same interfaces. */
static void find_shared(const bny_facts *all, int32_t nranks, const bny_facts *own, bny_node_map *found) {
  uint64_t shared[BNY_FACTS_ADDRESSES];
  int32_t count = 0;
  for (int i = 0; i < BNY_FACTS_ADDRESSES && own->addresses[i]; i++) {
    bool is_shared = false;
    for (int32_t r = 0; r < nranks && !is_shared; r++)
      is_shared = (!bny_facts_same_machine(&all[r], own) || all[r].network_namespace != own->network_namespace) &&
                  has_address(&all[r], own->addresses[i]);
    if (is_shared) shared[count++] = own->addresses[i];
  }
  bny_interface_names(shared, count, found->shared, sizeof found->shared);
}

/* Most ranks of a large job reach rank 0 by another rank of their node. */
static void find_reached(const bny_facts *all, int32_t nranks, const bny_facts *own, bny_node_map *found) {
  memcpy(found->reached, own->reached, sizeof found->reached);
  for (int32_t r = 0; r < nranks && !found->reached[0]; r++)
    if (bny_facts_same_machine(&all[r], own) && all[r].network_namespace == own->network_namespace)
      memcpy(found->reached, all[r].reached, sizeof found->reached);
  found->reached[sizeof found->reached - 1] = '\0';
}

/* Ranks of a node share memory, which the kernel allows to processes of one user. Ranks of different user namespaces
 * number users differently; their connection fails later if the users differ. */
static banyan_status compare_users(const bny_facts *all, int32_t nranks, const int32_t *first_of) {
  for (int32_t i = 0; i < nranks; i++) {
    const bny_facts *a = &all[first_of[i]], *b = &all[i];
    if (a->user_namespace == b->user_namespace && a->user != b->user)
      return bny_fail(BANYAN_ERR_MISMATCH,
                      "rank %d runs as user %u and rank %d, of the same node, as user %u: they cannot share memory; "
                      "start them as one user",
                      i, b->user, first_of[i], a->user);
  }
  return BANYAN_OK;
}

/* Memory for the search. */
typedef struct search {
  const bny_facts **sorted;
  int32_t *first_of; /* by rank: the first rank of its node */
  uint64_t *groups;
} search;

static banyan_status placement_fill(const bny_facts *all, int32_t rank, int32_t nranks, search *at,
                                    bny_node_map *found) {
  firsts_find(all, nranks, compare_processes, at->sorted, found->process_of);
  firsts_find(all, nranks, compare_nodes, at->sorted, at->first_of);
  for (int32_t i = 0; i < nranks; i++) { /* nodes are numbered in the order of their first ranks */
    int32_t first = at->first_of[i];
    found->node_of[i] = first == i ? found->nnodes++ : found->node_of[first];
    if (found->process_of[i] != found->process_of[first]) found->one_process = false;
  }
  banyan_status status = compare_users(all, nranks, at->first_of);
  if (status == BANYAN_OK) status = bny_cores_divide(all, nranks, rank, &found->own_cpus);
  if (status != BANYAN_OK) return status;
  for (int32_t from = 0, to; from < nranks; from = to) {
    for (to = from + 1; to < nranks && bny_facts_same_machine(at->sorted[from], at->sorted[to]); to++) continue;
    machine_add(at->sorted + from, to - from, &all[rank], at->groups, found);
  }
  find_shared(all, nranks, &all[rank], found);
  find_reached(all, nranks, &all[rank], found);
  for (int32_t i = 0; i < nranks; i++) {
    if (all[i].arena_bytes < found->arena_bytes) found->arena_bytes = all[i].arena_bytes;
    if (all[i].device_arena_bytes < found->device_arena_bytes) found->device_arena_bytes = all[i].device_arena_bytes;
    if (all[i].cache_bytes > found->cache_bytes) found->cache_bytes = all[i].cache_bytes;
  }
  return BANYAN_OK;
}

banyan_status bny_node_map_find(const bny_facts *all, int32_t rank, int32_t nranks, bny_node_map *map) {
  bny_node_map found = {
      .one_process = true, .arena_bytes = all[0].arena_bytes, .device_arena_bytes = all[0].device_arena_bytes};
  size_t count = (size_t)nranks;
  search at = {.sorted = calloc(count, sizeof *at.sorted),
               .first_of = calloc(count, sizeof *at.first_of),
               .groups = calloc(count, BNY_QUOTAS * sizeof *at.groups)};
  found.node_of = calloc(count, sizeof *found.node_of);
  found.process_of = calloc(count, sizeof *found.process_of);
  bool memory = at.sorted && at.first_of && at.groups && found.node_of && found.process_of;
  banyan_status status =
      memory ? placement_fill(all, rank, nranks, &at, &found)
             : bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for the localities of %d ranks", rank, nranks);
  free(at.sorted);
  free(at.first_of);
  free(at.groups);
  if (status != BANYAN_OK) {
    bny_node_map_free(&found);
    return status;
  }
  *map = found;
  return BANYAN_OK;
}

void bny_node_map_free(bny_node_map *map) {
  free(map->node_of);
  free(map->process_of);
}
