/* SPDX-License-Identifier: Apache-2.0
 *
 * Combines of devices on several nodes (docs/design.md#devices-of-several-nodes): kernels run the plan, and a thread of
 * each rank, the *proxy*, exchanges messages between nodes over the host's transport. Kernels and proxy signal each
 * other by words in host memory (bny_proxy_words, kernels/cuda/program.h). Both count the runs alike, and the kernel
 * names the plan that it runs, so a launch can be captured and replayed. The proxy has a transport and an executor of
 * its own: its runs come in the order of the stream, those of the communicator in the order of calls. */
#ifndef BNY_DEVICE_PROXY_H
#define BNY_DEVICE_PROXY_H

#include <pthread.h>

#include "device/engine.h"
#include "device/program.h"
#include "exec/exec.h"

typedef struct bny_proxy bny_proxy;

/* The segment of a plan that the proxy runs. It lives as long as the proxy, since graphs may have captured the
 * launch. */
typedef struct bny_proxy_segment bny_proxy_segment;

/* A half of what a rank sends to other nodes, or of what a rank of another node sends here. */
typedef struct bny_proxy_half {
  void *host;  /* registered with the device; NULL: not registered */
  void *local; /* device memory instead */
} bny_proxy_half;

/* All but tests use it by the functions below. */
struct bny_proxy {
  bny_engine *engine;
  bny_exec *exec;
  bny_transport *transport;
  int32_t *node_of;       /* [nranks] */
  int32_t *ranks;         /* the ranks of this node, by their numbers in the engine's group */
  bny_device_words words; /* a bny_proxy_words, and what follows it */
  uint64_t room;          /* words of a half, each for units and for messages */
  bool direct;
  bny_proxy_half (*halves)[2];           /* [nranks]; none for other ranks of this node */
  uint64_t (*messages)[2];               /* [nranks]: their addresses */
  _Atomic(bny_proxy_segment *) segments; /* the latest first */
  pthread_t thread;
  bool has_thread;
  _Atomic bool quits;  /* the proxy is to end */
  _Atomic bool failed; /* the executor's failure is ready to be read */
};

typedef struct bny_proxy_config {
  bny_engine *engine;     /* connected with the ranks of this node; remains the caller's, and outlives the proxy */
  bny_exec *exec;         /* owned, with its transport, also on failure */
  const int32_t *node_of; /* [nranks]; copied */
  uint64_t words;         /* room for signals of a run, identical on all ranks */
  bool direct;            /* what goes to other nodes lies in device memory, from which the network library takes it */
} bny_proxy_config;

/* Local. Makes the memory that kernels and the proxy share, and the thread. */
banyan_status bny_proxy_make(const bny_proxy_config *config, bny_proxy **proxy);

/* Local; NULL is allowed. All runs of this rank have ended, or end now. Its engine launches nothing any more. */
void bny_proxy_free(bny_proxy *proxy);

bool bny_proxy_is_direct(const bny_proxy *proxy);

/* ---- combines ---------------------------------------------------------------------------------------------------- */

/* Local. Returns the same segment for a request that was given before. What the request points to lives as long as the
 * proxy; it names its algorithm. `settings` are those of the device's programs, without nodes. One thread at a time. */
banyan_status bny_proxy_segment_get(bny_proxy *proxy, const bny_request *request, const bny_notice *call,
                                    const bny_device_settings *settings, bny_proxy_segment **segment);

/* For the program that belongs to the segment. */
const bny_device_nodes *bny_proxy_segment_nodes(const bny_proxy_segment *segment);

/* For bny_run_reach(). */
const bny_run *bny_proxy_segment_run(const bny_proxy_segment *segment);

/* Returns the payload that a run of it sends to ranks of other nodes. */
uint64_t bny_proxy_segment_bytes(const bny_proxy_segment *segment);

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Returns the rank that kernels know by this number; -1: none. */
int32_t bny_proxy_rank(const bny_proxy *proxy, int32_t number);

/* Returns the failure that ended the proxy, or NULL. Any thread. */
const bny_failure *bny_proxy_failure(const bny_proxy *proxy);

/* Ends the current and all later runs, here and in the proxies of all ranks. Any thread, does not wait. */
void bny_proxy_stop(bny_proxy *proxy, banyan_status status, int32_t culprit);

/* Does the same for banyan_comm_abort(). */
void bny_proxy_abort(bny_proxy *proxy, const char *reason);

#endif
