/* SPDX-License-Identifier: Apache-2.0
 *
 * The story of a communicator: facts gathered from all ranks, a transport chosen from them by all alike, arenas made, and
 * from then on operations in order. */
#ifndef BNY_COMM_H
#define BNY_COMM_H

#include <sys/types.h>

#include "device/proxy.h"
#include "device/run.h"
#include "exec/exec.h"
#include "comm/facts.h"
#include "plan/plan.h"
#include "transport/transport.h"

enum { BNY_BLOCKING_OPS = 32 };

struct banyan_comm {
  int32_t rank, nranks;
  int32_t origin;       /* this rank in the communicator that this one came of by shrinking, if it did */
  bool has_shrunk;      /* another came of this one */
  pid_t process;        /* that made it */
  bny_transport *transport;
  bny_exec *exec;
  bny_device_exec device; /* its engine is NULL: combines run on the host */
  struct bny_measured *measured; /* owned; NULL: algorithms are chosen by predicted cost. Of combines on devices */
  void *stream;         /* on the device: of calls that name none */
  bny_link_cost cost;
  bny_levels *levels;   /* NULL: all links are alike */
  char *algorithm;      /* for combines that name none; owned; NULL: by predicted cost */
  size_t part_bytes;    /* larger messages are sent in parts */
  int32_t nnodes;
  int32_t cores;        /* that the ranks of this machine may use together */
  bool oversubscribed;         /* more ranks than cores, on some machine */
  size_t arena_bytes;   /* per rank */
  bool arena_said;      /* by the program or the environment */
  bny_plan *barrier;    /* by which ranks compare their calls */
  int64_t first_timeout_ns; /* deadline of agreements on what is new */
  bny_binding nothing;
  bny_run *agree;
  banyan_op *first, *last;                 /* started and not complete, in order */
  banyan_op *blocking[BNY_BLOCKING_OPS];   /* behind the blocking calls, the latest first */
  void (*op_free)(banyan_op *op);          /* frees those; set with the first of them */
};

/* banyan_comm_create() for the rank that was `origin` to begin with; what is given has been checked. */
banyan_status bny_comm_make(const banyan_bootstrap *bootstrap, const banyan_comm_config *config, int32_t origin,
                            banyan_comm **comm);

/* Every rank learns whether every rank is ready, so that nobody goes on with a group that will never be complete. Returns
 * this rank's own failure, with its text, or that of the first rank that has one. */
banyan_status bny_comm_confirm(const bny_exchange *exchange, banyan_status own);

/* Connects all ranks once more, collectively; and how such a transport is run. `kernels` are left to the caller. */
banyan_status bny_comm_connect(const bny_settings *settings, const bny_exchange *exchange, const bny_placement *place,
                               bny_transport **transport);
bny_exec_config bny_comm_exec_config(const banyan_comm *comm, const bny_settings *settings, const bny_placement *place);

/* comm_bridge.c: how devices of several nodes are combined. All is collective. */
typedef enum bny_way {
  BNY_WAY_ANY,    /* not said */
  BNY_WAY_FABRIC, /* the nodes are in one NVLink domain: their devices share memory */
  BNY_WAY_STAGED, /* those of each node do; between nodes through memory of the hosts, by a proxy */
  BNY_WAY_DIRECT, /* the same, but the network takes what is sent from memory of the devices */
  BNY_WAY_EMULATED /* the same, whether it says that it can or not: for devices that are none */
} bny_way;

banyan_status bny_comm_agree_way(const banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                                 bny_way *way);
banyan_status bny_comm_join_proxy(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                                   const bny_placement *place, bny_way way, bool strict);

/* comm_group.c: an exchange of the ranks of each node among themselves, by way of all ranks. Other nodes may do more rounds or
 * fewer: all end together, in bny_group_exchange_end(). */
typedef struct bny_group_exchange {
  bny_exchange exchange; /* for whoever connects this node's ranks */
  banyan_bootstrap bootstrap;
  const bny_exchange *all;
  int32_t *ranks; /* of this node, in order */
  uint64_t *said; /* [nranks of all]: bytes of a round */
  char *blocks;   /* [nranks of all], room for some */
  size_t room;
  bool ended;     /* all have, or one has failed */
} bny_group_exchange;

/* Local. It stays where it is until it has ended. */
banyan_status bny_group_exchange_begin(const bny_exchange *all, const int32_t *node_of, bny_group_exchange *group);
/* Also after a failure. */
void bny_group_exchange_end(bny_group_exchange *group);

/* comm_device.c. Joining is collective. */
banyan_status bny_comm_join_device(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                                   const bny_placement *place);
void bny_comm_leave_device(banyan_comm *comm);
void bny_comm_abort_device(banyan_comm *comm, const char *reason); /* any thread */

/* comm_tune.c. Collective, while nothing is under way. one_process: all ranks are threads of one. */
banyan_status bny_comm_tune(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings, bool one_process);

/* The failure that is known here, of host and device; what runs on the device is ended if there is one. */
banyan_status bny_comm_check(banyan_comm *comm);

/* The comparison of calls: BANYAN_ERR_MISMATCH, on all ranks, if one is in another. */
void bny_comm_agree_begin(banyan_comm *comm, const bny_call *call);
banyan_status bny_comm_agree_end(banyan_comm *comm);

#endif
