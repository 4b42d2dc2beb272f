/* SPDX-License-Identifier: Apache-2.0
 * The facts that each rank reports to all others before anything is decided. All ranks derive the same conclusions from
 * them. */
#pragma once

#include <sched.h>
#include <stdbool.h>

#include "banyan.h"
#include "base/options.h"
#include "base/pool.h"
#include "base/quota.h"
#include "plan/call.h"
#include "plan/levels.h"
#include "transport/transport.h"

enum {
  BNY_CPU_BYTES = 1024, /* size of an affinity mask: 8192 cores */
  BNY_LEVELS_TEXT_BYTES = 32,
  BNY_NODE_NAME_BYTES = 40,
  BNY_DEVICE_KIND_BYTES = 16,
  BNY_FACTS_ERROR_BYTES = 228,
  BNY_FACTS_ADDRESSES = 16,
  BNY_FACTS_BYTES = 2048
};

/* This struct has the same size in all versions of the library and begins with the version. Otherwise ranks of two
 * versions could not even report their versions to each other. */
typedef struct bny_facts {
  char version[16];
  int32_t status; /* not BANYAN_OK if this rank's own settings are wrong */
  char error[BNY_FACTS_ERROR_BYTES];
  char boot_id[40];
  char node[BNY_NODE_NAME_BYTES]; /* BANYAN_NODE */
  uint64_t network_namespace, pid_namespace, user_namespace;
  int64_t pid;
  uint64_t process; /* a number drawn for each process when it is executed */
  int32_t rank, nranks;
  uint64_t arena_bytes, part_bytes, cache_bytes;
  char algorithm[BNY_ALGORITHM_NAME_BYTES];
  char levels[BNY_LEVELS_TEXT_BYTES];
  char device[BNY_DEVICE_KIND_BYTES]; /* "": none */
  uint32_t user;                      /* as numbered in its user namespace */
  _Alignas(cpu_set_t) unsigned char cpus[BNY_CPU_BYTES];
  uint64_t device_arena_bytes;
  uint32_t plan_id; /* see plan.h */
  int32_t slices;   /* BANYAN_SLICES */
  bny_quota quotas[BNY_QUOTAS];
  uint64_t addresses[BNY_FACTS_ADDRESSES]; /* addresses of its node's interfaces, see base/interface.h; then 0 */
  char reached[BNY_INTERFACE_BYTES];       /* the interface by which it reached rank 0; "": unknown */
  int32_t check;                           /* BANYAN_CHECK */
  int32_t pass;                            /* BANYAN_PASS */
  char unused[272];                        /* unused in this version; 0 */
} bny_facts;

_Static_assert(sizeof(bny_facts) == BNY_FACTS_BYTES, "take what is added from what is unused");

/* The result of the caller's configuration and the environment. */
typedef struct bny_settings {
  bny_options options;
  int64_t timeout_ns, first_timeout_ns; /* for each call, and for the first of a shape */
  size_t arena_bytes, device_arena_bytes;
  int32_t threads;                /* for this rank; 0: one for each of its cores */
  bool arena_is_explicit;         /* neither arena size is the default */
  const char *algorithm, *device; /* NULL: none */
  int32_t origin;                 /* the rank's number among those that the environment describes */
  const banyan_comm *parent;      /* see bny_comm_make() */
} bny_settings;

/* Gathers the facts of this rank. Invalid settings are a fact too, so that no other rank waits for this one.
 * `own_status` is the status of these settings, with its text as the thread's last error. */
void bny_facts_gather(const banyan_bootstrap *bootstrap, const bny_settings *settings, banyan_status own_status,
                      bny_facts *facts);

/* Compares everything that must agree, field by field, so that the text can name the field. `all` is indexed by
 * rank. */
banyan_status bny_facts_compare(const bny_facts *all, const banyan_bootstrap *bootstrap);

/* Returns whether two ranks run on one kernel, in any containers. */
static inline bool bny_facts_same_machine(const bny_facts *a, const bny_facts *b) {
  return memcmp(a->boot_id, b->boot_id, sizeof a->boot_id) == 0;
}

/* States which ranks share a node, and how many share its cores. */
typedef struct bny_node_map {
  int32_t *node_of;    /* by rank: numbers of nodes, in the order of their first ranks */
  int32_t *process_of; /* by rank: the first rank that is in the same process */
  int32_t nnodes;
  bool one_process;       /* the ranks of each node are threads of one process */
  int32_t cores;          /* cores of this rank's machine that its ranks may use together */
  double ranks_per_core;  /* on the machine with the most ranks per core */
  bny_pool_cpus own_cpus; /* this rank's share of the cores that its binding allows */
  double quota_cpus;      /* this rank's share of a CPU quota that allows fewer than own_cpus; 0: none */
  int32_t threads;        /* as many as the cores and the quota allow, at least 1 */
  uint64_t arena_bytes, device_arena_bytes; /* the smallest of all ranks */
  uint64_t cache_bytes;                     /* the largest of all ranks */
  char reached[BNY_INTERFACE_BYTES];        /* the interface by which a rank of this node reached rank 0; "": unknown */
  char shared[256]; /* interfaces of this node whose addresses another node has as well: "docker0,virbr0" */
} bny_node_map;

banyan_status bny_node_map_find(const bny_facts *all, int32_t rank, int32_t nranks, bny_node_map *map);
void bny_node_map_free(bny_node_map *map);

/* Divides the cores of this rank's machine among its ranks. Each gets cores of its own binding. No core is in two
 * shares, every core that a rank may use is in one, and no other division gives more cores to the rank with the fewest.
 * A rank for which no core is left shares one. */
banyan_status bny_cores_divide(const bny_facts *all, int32_t nranks, int32_t rank, bny_pool_cpus *own);
