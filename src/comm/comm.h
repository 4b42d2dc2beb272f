/* SPDX-License-Identifier: Apache-2.0
 * The life of a communicator. It gathers facts from all ranks, all ranks choose the same transport from them, and
 * arenas are made. Then operations run in order. */
#pragma once

#include "base/process.h"
#include "device/proxy.h"
#include "device/run.h"
#include "exec/exec.h"
#include "comm/facts.h"
#include "locality/locality.h"
#include "plan/plan.h"
#include "transport/transport.h"

struct banyan_comm {
  int32_t rank, nranks;
  int32_t origin;          /* after a shrink: this rank in the first communicator of the chain */
  bool has_shrunk;         /* banyan_comm_shrink() was called on it */
  _Atomic uint32_t aborts; /* calls of banyan_comm_abort() */
  banyan_comm *ancestor;   /* the communicator that became this one, while its connections must stay; or NULL */
  banyan_comm *heir;       /* keeps the connections of this one; NULL: they close with it */
  bny_transport *kept;     /* a list of transports that remain open until this communicator ends */
  uint64_t process;        /* the process that made the communicator */
  bny_transport *transport;
  bny_exec *exec;
  bny_device_exec device; /* without an engine, combines run on the host */
  void *stream;           /* the device's stream for calls that name none */
  int64_t tag;            /* the caller's, for operations that start from now on */
  bny_link_cost cost;
  bny_levels *levels;        /* NULL: all links cost the same */
  bny_locality locality;     /* locality of this rank */
  int64_t locality_ns;       /* the time to find it */
  bny_locality_notes *notes; /* a note for each kind of level; NULL: BANYAN_LEVELS sets the levels */
  int32_t splits;            /* how often it was split */
  char *algorithm;           /* algorithm of combines that name none; owned; NULL: by predicted cost */
  size_t part_bytes;         /* larger messages are sent in parts */
  int32_t slices;            /* BANYAN_SLICES: slices of attention */
  bny_pass_form pass;        /* BANYAN_PASS */
  bool checks;               /* BANYAN_CHECK, without a device: ranks compare their claims */
  int32_t nnodes;
  int32_t threads;          /* threads that attention on the host may use */
  int32_t explicit_threads; /* number set by the program or the environment; 0: not explicit */
  bny_pool_cpus own_cpus;   /* the cores that these threads may use */
  bny_pool *pool;           /* made with the first attention; NULL: none, or one thread */
  double quota_cpus;        /* CPUs that a quota allows this rank, if fewer than its cores; 0: no quota applies */
  int32_t cores;            /* cores of this machine that its ranks may use together */
  double ranks_per_core;    /* on the node with the most; above 1, ranks take turns */
  size_t arena_bytes;       /* per rank */
  bool arena_is_explicit;   /* set by the program or the environment */
  bny_plan *barrier;        /* the barrier in which ranks compare their calls */
  int64_t first_timeout_ns; /* deadline of the first call of a shape */
  bny_binding nothing;
  bny_run *agree;
  size_t *head_counts; /* [nranks]: scratch of an all-gather of heads; NULL until the first */
  uint64_t plans;      /* operations made: planned, and compared by all ranks */
  struct bny_ops *ops; /* owned by op/, which frees them before the communicator; NULL until the first operation */
};

/* Makes a communicator for the rank that was `origin` in the first communicator. own_status: BANYAN_OK, or the result
 * of the checks of this rank's arguments, which all ranks then get; config is NULL in that case.
 * parent: a communicator whose ranks continue to use this machine, so the new one keeps its share of the cores. NULL:
 * none. */
banyan_status bny_comm_make(const banyan_bootstrap *bootstrap, const banyan_comm_config *config,
                            banyan_status own_status, int32_t origin, const banyan_comm *parent, banyan_comm **comm);

/* Makes a communicator from some ranks of another, with its settings. color: the color of a split, after which the
 * other communicator continues; BANYAN_COLOR_NONE: a shrink. */
banyan_status bny_comm_make_part(const banyan_comm *comm, const banyan_bootstrap *bootstrap, int32_t color,
                                 banyan_comm **part);
void bny_comm_free(banyan_comm *comm);

/* `heir` keeps the connections of a communicator, with the messages for ranks that it left out, until it ends itself.
 * Such a rank would otherwise take closed connections for deaths. */
void bny_comm_keep(banyan_comm *comm, banyan_comm *heir);

/* Every rank learns whether all ranks are ready, so that none continues with a group that will never be complete.
 * Returns this rank's own failure, with its text, or that of the first rank that has one. */
banyan_status bny_comm_confirm(const bny_exchange *exchange, banyan_status own);

/* Does the same for connected ranks. Meanwhile a rank's messages are sent, and peers of other nodes that still wait for
 * it learn of its failure. */
banyan_status bny_comm_confirm_connected(banyan_comm *comm, const bny_exchange *exchange, banyan_status own);

/* Slots of an outbox. The ring in canonical order needs the most. */
static inline int32_t bny_comm_slots(int32_t nranks) { return 64 + 16 * nranks; }

/* Connects all ranks by a new transport (collective), and returns the configuration of its executor. The caller sets
 * `kernels`. */
banyan_status bny_comm_connect(const banyan_comm *comm, const bny_settings *settings, const bny_exchange *exchange,
                               const bny_node_map *map, bny_transport **transport);
bny_exec_config bny_comm_exec_config(const banyan_comm *comm, const bny_settings *settings, const bny_node_map *map);

/* comm_device.c. Joining is collective. */
banyan_status bny_comm_join_device(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                                   const bny_node_map *map);
void bny_comm_leave_device(banyan_comm *comm);
void bny_comm_abort_device(banyan_comm *comm, const char *reason); /* any thread */

/* Returns true in the child of a fork, which has a copy of its parent's communicator. Hot. */
static inline bool bny_comm_is_inherited(const banyan_comm *comm) { return comm->process != bny_process(); }
/* Returns BANYAN_ERR_STATE, the status of calls on such a copy. */
static inline banyan_status bny_comm_reject_child(const banyan_comm *comm) {
  return bny_exec_check_process(comm->exec);
}

/* Returns the failure that this rank knows, on host and device. A failure also ends kernels that run on the device. */
banyan_status bny_comm_check(banyan_comm *comm);

/* Compares calls: BANYAN_ERR_MISMATCH on all ranks if one of them is in another call. */
void bny_comm_agree_begin(banyan_comm *comm, const bny_notice *notice);
banyan_status bny_comm_agree_end(banyan_comm *comm);
