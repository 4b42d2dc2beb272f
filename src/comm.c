/* SPDX-License-Identifier: Apache-2.0 */
#include "comm.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "op.h"
#include "operation.h"
#include "options.h"
#include "status.h"

enum { CPU_BYTES = 1024 }; /* of an affinity mask: 8192 cores */

/* 73 years: sums with the clock do not overflow. */
static const int64_t longest_timeout_ns = INT64_MAX / 4;

/* What each rank tells all others before anything is decided. */
typedef struct facts {
  char version[16];
  char boot_id[40];
  uint64_t network_namespace, pid_namespace;
  int64_t pid;
  uint64_t process; /* a number drawn for each process that is executed */
  int32_t rank, nranks;
  uint64_t arena_bytes, part_bytes, cache_bytes;
  char algorithm[BNY_ALGORITHM_NAME_BYTES];
  char levels[BNY_LEVELS_TEXT_BYTES];
  _Alignas(cpu_set_t) unsigned char cpus[CPU_BYTES];
} facts;

banyan_status bny_exchange_all(const bny_exchange *exchange, const void *mine, void *all, size_t bytes) {
  int64_t left_ns = exchange->deadline_ns - bny_clock_ns();
  if (left_ns <= 0) return bny_fail(BANYAN_ERR_TIMEOUT, "the deadline passed while ranks were getting to know each other");
  const banyan_bootstrap *bootstrap = exchange->bootstrap;
  bny_fail(BANYAN_OK, "%s", "");
  int result = bootstrap->allgather(bootstrap->context, mine, all, bytes, left_ns);
  if (result == 0) return BANYAN_OK;
  /* Our own bootstraps leave a text, and return a status. */
  const char *why = banyan_last_error();
  if (*why && result > BANYAN_OK && result <= BANYAN_ERR_ABORTED) return bny_fail((banyan_status)result, "%s", why);
  return bny_fail(BANYAN_ERR_BOOTSTRAP, "the bootstrap's allgather failed on rank %d: it returned %d", bootstrap->rank,
                  result);
}

/* ---- facts --------------------------------------------------------------------------------------------------------- */

static uint64_t namespace_of(const char *path) {
  struct stat file;
  return stat(path, &file) == 0 ? (uint64_t)file.st_ino : 0;
}

static void read_boot_id(char *text, size_t bytes) {
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
  if (!file) return;
  if (!fgets(text, (int)bytes, file)) text[0] = 0;
  fclose(file);
}

/* Of random bytes that the kernel gives each program it executes: tells processes apart where namespaces and numbers do
 * not, as without /proc, or in two machines that were started from one snapshot. Their secret use is not given away: half
 * of the bits are lost. */
static uint64_t process_number(void) {
  const void *random = (const void *)getauxval(AT_RANDOM);
  uint64_t words[2] = {0};
  if (random) memcpy(words, random, sizeof words);
  uint64_t hash = (words[0] ^ words[0] >> 31) * 0x9e3779b97f4a7c15u ^ words[1];
  hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9u;
  return hash ^ hash >> 32;
}

static uint64_t second_level_cache_bytes(void) {
  long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 && bytes < 1 << 26 ? (uint64_t)bytes : 1 << 20;
}

static facts gather_own_facts(const banyan_bootstrap *bootstrap, const bny_options *options, size_t arena_bytes,
                              const char *algorithm) {
  facts own = {
    .network_namespace = namespace_of("/proc/self/ns/net"),
    .pid_namespace = namespace_of("/proc/self/ns/pid"),
    .pid = getpid(),
    .process = process_number(),
    .rank = bootstrap->rank,
    .nranks = bootstrap->nranks,
    .arena_bytes = arena_bytes,
    .part_bytes = (uint64_t)options->part_kib << 10,
    .cache_bytes = second_level_cache_bytes(),
  };
  strncpy(own.version, banyan_version(), sizeof own.version - 1);
  if (algorithm) strncpy(own.algorithm, algorithm, sizeof own.algorithm - 1);
  if (options->levels) strncpy(own.levels, options->levels, sizeof own.levels - 1);
  read_boot_id(own.boot_id, sizeof own.boot_id);
  /* A mask of the kernel's own size may be larger than a cpu_set_t. */
  if (sched_getaffinity(0, sizeof own.cpus, (cpu_set_t *)(void *)own.cpus) != 0) memset(own.cpus, 0, sizeof own.cpus);
  return own;
}

/* Everything that must be alike is compared field by field, so that the text can name it. */
static banyan_status compare_facts(const facts *all, const banyan_bootstrap *bootstrap) {
  const facts *own = &all[bootstrap->rank];
  for (int32_t i = 0; i < bootstrap->nranks; i++) {
    const facts *other = &all[i];
    if (memcmp(other->version, own->version, sizeof own->version) != 0)
      return bny_fail(BANYAN_ERR_MISMATCH, "rank %d runs banyan %.15s, this rank %s", i, other->version, own->version);
    if (other->rank != i || other->nranks != own->nranks)
      return bny_fail(BANYAN_ERR_MISMATCH, "the rank in place %d says that it is rank %d of %d, not %d of %d: "
                      "the bootstrap's allgather is not in rank order or mixes groups", i, other->rank, other->nranks, i,
                      own->nranks);
    if (other->part_bytes != own->part_bytes)
      return bny_fail(BANYAN_ERR_MISMATCH, "BANYAN_PART_KIB is %" PRIu64 " on rank %d and %" PRIu64 " here",
                      other->part_bytes >> 10, i, own->part_bytes >> 10);
    if (memcmp(other->algorithm, own->algorithm, sizeof own->algorithm) != 0)
      return bny_fail(BANYAN_ERR_MISMATCH, "the default algorithm is \"%.31s\" on rank %d and \"%.31s\" here",
                      other->algorithm, i, own->algorithm);
    if (memcmp(other->levels, own->levels, sizeof own->levels) != 0)
      return bny_fail(BANYAN_ERR_MISMATCH, "BANYAN_LEVELS is \"%.31s\" on rank %d and \"%.31s\" here", other->levels, i,
                      own->levels);
  }
  return BANYAN_OK;
}

/* Which ranks are together, and how crowded they are: the same answer on every rank. */
typedef struct placement {
  bool one_host, one_process;
  int32_t cores;
  int32_t stranger; /* the first rank that is not on rank 0's host */
  uint64_t arena_bytes; /* the least */
  uint64_t cache_bytes; /* the most */
} placement;

static placement place_ranks(const facts *all, int32_t nranks) {
  placement found = {.one_host = true, .one_process = true, .arena_bytes = all[0].arena_bytes};
  unsigned char cpus[CPU_BYTES] = {0};
  for (int32_t i = 0; i < nranks; i++) {
    if (found.one_host && (memcmp(all[i].boot_id, all[0].boot_id, sizeof all[i].boot_id) != 0 ||
                           all[i].network_namespace != all[0].network_namespace)) {
      found.one_host = false;
      found.stranger = i;
    }
    if (all[i].pid != all[0].pid || all[i].pid_namespace != all[0].pid_namespace || all[i].process != all[0].process)
      found.one_process = false;
    if (all[i].arena_bytes < found.arena_bytes) found.arena_bytes = all[i].arena_bytes;
    if (all[i].cache_bytes > found.cache_bytes) found.cache_bytes = all[i].cache_bytes;
    for (int j = 0; j < CPU_BYTES; j++) cpus[j] |= all[i].cpus[j];
  }
  for (int j = 0; j < CPU_BYTES; j++) found.cores += __builtin_popcount(cpus[j]);
  if (found.cores < 1) found.cores = 1;
  return found;
}

static banyan_status connect_ranks(banyan_comm *comm, const bny_exchange *exchange, const placement *place) {
  bny_arena_config config = {
    .half_bytes = place->arena_bytes / 2,
    .slots_max = 64 + 16 * comm->nranks, /* the ring with canonical order is the one that needs most */
  };
  comm->arena_bytes = place->arena_bytes;
  comm->cores = place->cores;
  if (place->one_host && place->one_process) return bny_loop_connect(exchange, &config, &comm->transport);
  if (place->one_host) return bny_shm_connect(exchange, &config, &comm->transport);
  return bny_fail(BANYAN_ERR_UNSUPPORTED,
                  "rank %d is on another host (or in another network namespace) than rank 0; this version connects the "
                  "ranks of one host only",
                  place->stranger);
}

/* Orders of magnitude of current hosts, for prediction; banyan-perf shows what is true of this one. */
static bny_link_cost cost_of_memory(int32_t nranks, int32_t cores) {
  return (bny_link_cost){
    .alpha_ns = 250,
    .beta_ns_per_byte = 0.03,
    .gamma_ns_per_byte = 0.03,
    .ranks_per_core = (double)nranks / cores,
    .switch_ns = 1500,
  };
}

/* ---- life ---------------------------------------------------------------------------------------------------------- */

static banyan_status make_agreement(banyan_comm *comm) {
  bny_request request = {
    .collective = BNY_BARRIER,
    .nranks = comm->nranks,
    .cost = comm->cost,
    .outbox_bytes = comm->transport->half_bytes,
    .slots_max = comm->transport->slots_max,
  };
  banyan_status status = bny_plan_make(&request, comm->rank, &comm->barrier);
  if (status != BANYAN_OK) return status;
  bny_call call = bny_call_make(&request, comm->barrier, BNY_PHASE_AGREE);
  return bny_run_make(comm->exec, comm->barrier, &call, &comm->nothing, &comm->agree);
}

banyan_status bny_comm_agree(banyan_comm *comm, const bny_call *call) {
  bny_run_relabel(comm->agree, call);
  bny_run_begin(comm->agree);
  bool done;
  return bny_run_progress(comm->agree, true, &done);
}

static banyan_status build(banyan_comm *comm, const bny_exchange *exchange, const bny_options *options, const facts *all,
                           int64_t timeout_ns) {
  placement place = place_ranks(all, comm->nranks);
  banyan_status status = connect_ranks(comm, exchange, &place);
  if (status != BANYAN_OK) return status;
  comm->cost = cost_of_memory(comm->nranks, comm->cores);
  comm->part_bytes = (size_t)options->part_kib << 10;
  if (options->levels) {
    status = bny_levels_parse(comm->nranks, options->levels, &comm->cost, &comm->levels);
    if (status != BANYAN_OK) return status;
  }
  const bny_kernels *kernels = bny_kernels_find(options->kernels);
  if (!kernels)
    return bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_KERNELS is \"%s\", which this processor or this build does not have",
                    options->kernels);
  bny_exec_config config = {
    .kernels = kernels,
    .oversubscribed = comm->nranks > comm->cores,
    .timeout_ns = timeout_ns,
    .cache_bytes = place.cache_bytes,
  };
  status = bny_exec_make(comm->transport, &config, &comm->exec);
  return status == BANYAN_OK ? make_agreement(comm) : status;
}

static void free_comm(banyan_comm *comm) {
  /* Peers are told. Not by the child of a fork, whose parent may go on. */
  if (comm->transport && comm->process == getpid())
    atomic_store_explicit(&comm->transport->ops->line(comm->transport, comm->rank)->left, 1, memory_order_release);
  for (int i = 0; i < BNY_BLOCKING_OPS; i++) banyan_op_free(comm->blocking[i]);
  bny_run_free(comm->agree);
  bny_plan_free(comm->barrier);
  bny_exec_free(comm->exec);
  if (comm->transport) comm->transport->ops->close(comm->transport);
  bny_levels_free(comm->levels);
  free(comm->algorithm);
  free(comm);
}

/* Every rank learns whether every rank is ready, so that nobody goes on with a group that will never be complete. */
static banyan_status confirm_all(const bny_exchange *exchange, banyan_status own, facts *scratch) {
  int32_t said = (int32_t)own;
  int32_t *heard = (int32_t *)(void *)scratch;
  banyan_status status = bny_exchange_all(exchange, &said, heard, sizeof said);
  if (status != BANYAN_OK) return status;
  for (int32_t i = 0; i < exchange->bootstrap->nranks; i++)
    if (heard[i] != BANYAN_OK)
      return bny_fail((banyan_status)heard[i], "rank %d could not make its communicator (%s)", i,
                      banyan_status_string((banyan_status)heard[i]));
  return BANYAN_OK;
}

static const char *source_of(const char *option, bool by_program) {
  return by_program ? "the program" : bny_option_text(option) ? "the environment" : "default";
}

static void log_settings(const banyan_comm *comm, const banyan_comm_config *config) {
  if (!bny_log_wants(BNY_LOG_INFO)) return;
  char text[512];
  banyan_comm_describe(comm, text, sizeof text);
  bny_log(BNY_LOG_INFO, "%s", text);
  bny_log(BNY_LOG_INFO,
          "timeout %g ms (%s), arena %zu KiB (%s; the least of all ranks), part %zu KiB (%s), algorithm %s (%s)",
          (double)comm->exec->timeout_ns / 1e6, source_of("BANYAN_TIMEOUT_MS", config && config->timeout_ns),
          comm->arena_bytes >> 10, source_of("BANYAN_ARENA_KIB", config && config->arena_bytes), comm->part_bytes >> 10,
          source_of("BANYAN_PART_KIB", false), comm->algorithm ? comm->algorithm : "by predicted cost",
          source_of("BANYAN_ALGORITHM", !bny_option_text("BANYAN_ALGORITHM") && config && config->algorithm));
}

static banyan_status check_arguments(const banyan_bootstrap *bootstrap, const banyan_comm_config *config,
                                     banyan_comm **comm) {
  if (!bootstrap || !comm) return bny_fail(BANYAN_ERR_ARGUMENT, "bootstrap and comm must not be NULL");
  if (bootstrap->size != sizeof *bootstrap)
    return bny_fail(BANYAN_ERR_ARGUMENT, "bootstrap.size is %zu; set it to sizeof(banyan_bootstrap) = %zu", bootstrap->size,
                    sizeof *bootstrap);
  if (!bootstrap->allgather) return bny_fail(BANYAN_ERR_ARGUMENT, "bootstrap.allgather is NULL");
  if (bootstrap->nranks < 1 || bootstrap->nranks > 65536 || bootstrap->rank < 0 || bootstrap->rank >= bootstrap->nranks)
    return bny_fail(BANYAN_ERR_ARGUMENT, "bootstrap has rank %d of %d", bootstrap->rank, bootstrap->nranks);
  if (config && config->size != sizeof *config)
    return bny_fail(BANYAN_ERR_ARGUMENT, "config.size is %zu; set it to sizeof(banyan_comm_config) = %zu", config->size,
                    sizeof *config);
  if (config && config->timeout_ns < 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, "config.timeout_ns is %" PRId64 "; it must not be negative", config->timeout_ns);
  if (config && config->arena_bytes && (config->arena_bytes < 65536 || config->arena_bytes >> 34))
    return bny_fail(BANYAN_ERR_ARGUMENT, "config.arena_bytes is %zu; it must be between 64 KiB and 16 GiB",
                    config->arena_bytes);
  return BANYAN_OK;
}

banyan_status banyan_comm_create(const banyan_bootstrap *bootstrap, const banyan_comm_config *config, banyan_comm **comm) {
  bny_options options;
  banyan_status status = check_arguments(bootstrap, config, comm);
  if (status == BANYAN_OK) bny_log_rank(bootstrap->rank);
  if (status == BANYAN_OK) status = bny_options_read(&options);
  if (status != BANYAN_OK) return status;
  if (options.levels && strlen(options.levels) >= BNY_LEVELS_TEXT_BYTES)
    return bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_LEVELS \"%.40s...\" is too long: sizes of groups such as 4,8",
                    options.levels);
  int64_t timeout_ns = config && config->timeout_ns ? config->timeout_ns : options.timeout_ms * 1000000;
  if (timeout_ns > longest_timeout_ns) timeout_ns = longest_timeout_ns;
  size_t arena_bytes = config && config->arena_bytes ? config->arena_bytes : (size_t)options.arena_kib << 10;
  const char *algorithm = options.algorithm ? options.algorithm : config ? config->algorithm : NULL;
  if (algorithm && strlen(algorithm) >= BNY_ALGORITHM_NAME_BYTES)
    return bny_fail(BANYAN_ERR_ARGUMENT, "the default algorithm \"%.40s...\" is the name of none", algorithm);

  banyan_comm *made = calloc(1, sizeof *made);
  facts *all = calloc((size_t)bootstrap->nranks, sizeof *all);
  if (made && algorithm) made->algorithm = strdup(algorithm);
  if (!made || !all || (algorithm && !made->algorithm)) {
    if (made) free(made->algorithm);
    free(made), free(all);
    return bny_fail(BANYAN_ERR_MEMORY, "out of memory for a communicator of %d ranks", bootstrap->nranks);
  }
  made->rank = bootstrap->rank;
  made->nranks = bootstrap->nranks;
  made->process = getpid();
  bny_exchange exchange = {bootstrap, bny_clock_ns() + timeout_ns};
  facts own = gather_own_facts(bootstrap, &options, arena_bytes, algorithm);
  status = bny_exchange_all(&exchange, &own, all, sizeof own);
  if (status == BANYAN_OK) status = compare_facts(all, bootstrap);
  if (status == BANYAN_OK) {
    status = build(made, &exchange, &options, all, timeout_ns);
    char why[BNY_ERROR_TEXT_BYTES];
    snprintf(why, sizeof why, "%s", banyan_last_error());
    banyan_status joint = confirm_all(&exchange, status, all);
    status = status == BANYAN_OK ? joint : bny_fail(status, "%s", why);
  }
  free(all);
  if (status != BANYAN_OK) {
    free_comm(made);
    return status;
  }
  log_settings(made, config);
  *comm = made;
  return BANYAN_OK;
}

void banyan_comm_destroy(banyan_comm *comm) {
  if (comm) free_comm(comm);
}

/* ---- questions ----------------------------------------------------------------------------------------------------- */

const char *banyan_version(void) { return "0.1.0"; }

int32_t banyan_comm_rank(const banyan_comm *comm) { return comm->rank; }
int32_t banyan_comm_nranks(const banyan_comm *comm) { return comm->nranks; }

void banyan_comm_abort(banyan_comm *comm, const char *reason) {
  if (comm) bny_exec_abort(comm->exec, reason);
}

banyan_status banyan_comm_status(const banyan_comm *comm) {
  bny_exec_check(comm->exec, NULL);
  return comm->exec->failure.status;
}

const char *banyan_comm_error(const banyan_comm *comm) {
  bny_exec_check(comm->exec, NULL);
  return comm->exec->failure.text;
}

int32_t banyan_comm_failed_rank(const banyan_comm *comm) {
  bny_exec_check(comm->exec, NULL);
  return comm->exec->failure.culprit;
}

size_t banyan_comm_describe(const banyan_comm *comm, char *text, size_t bytes) {
  size_t length = 0;
  if (bytes) text[0] = 0;
  bny_append(text, bytes, &length, "banyan %s: rank %d of %d, ", banyan_version(), comm->rank, comm->nranks);
  bool threads = strcmp(comm->transport->ops->name, "loop") == 0;
  bny_append(text, bytes, &length, "%s of one host on %d cores%s; ", threads ? "threads of one process" : "processes",
             comm->cores, comm->nranks > comm->cores ? " (more ranks than cores: they take turns)" : "");
  bny_append(text, bytes, &length, "transport %s, arena %zu KiB per rank, messages in parts of %zu KiB, ",
             comm->transport->ops->name, comm->arena_bytes >> 10, comm->part_bytes >> 10);
  bny_append(text, bytes, &length, "CPU kernels %s, algorithm %s", comm->exec->kernels->name,
             comm->algorithm ? comm->algorithm : "by predicted cost");
  for (int32_t k = 0; comm->levels && k < comm->levels->nlevels; k++)
    bny_append(text, bytes, &length, "%s%d", k ? " x " : ", levels of ", comm->levels->levels[k].most);
  return length;
}
