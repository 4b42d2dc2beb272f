/* SPDX-License-Identifier: Apache-2.0
 * Combines of devices on several nodes (docs/design.md#devices-of-several-nodes): kernels run the plan, and a thread of
 * each rank, the *proxy*, exchanges messages between nodes over the host's transport. Kernels and proxy signal each
 * other by words in host memory (bny_proxy_words, kernels/cuda/program.h). Both count the runs alike, and the kernel
 * names its plan, so a launch can be captured and replayed. The proxy has its own transport and executor. Its runs come
 * in the order of the stream, but those of the communicator come in the order of calls. */
#pragma once

#include <pthread.h>

#include "device/engine.h"
#include "device/program.h"
#include "exec/exec.h"

typedef struct bny_proxy bny_proxy;

/* The segment of a plan that the proxy runs. It lives as long as the proxy, because graphs may have captured the
 * launch. Its address is the label of its program. */
typedef struct bny_proxy_segment {
  bny_proxy *proxy;
  uint64_t key;
  bny_plan *plan; /* the call's plan, reduced to the steps between nodes */
  bny_run *run;
  bny_binding binding;
  bny_device_units *units; /* by slot of the plan */
  bny_device_nodes nodes;  /* for the segment's program */
  uint64_t bytes;          /* payload that a run sends to ranks of other nodes */
  int32_t slot;            /* the slot whose units the proxy awaits from kernels */
  uint32_t made;           /* units of the slot that are complete */
  struct bny_proxy_segment *next;
} bny_proxy_segment;

/* Fields are for proxy.c and its tests. */
struct bny_proxy {
  bny_engine *engine;
  bny_exec *exec;
  bny_transport *transport;
  int32_t *node_of;        /* [nranks] */
  int32_t *ranks;          /* the communicator's rank of each rank of the engine's group */
  bny_device_words words;  /* a bny_proxy_words and the arrays that follow it */
  uint64_t room;           /* words per half: so many for units, and as many for messages */
  void *(*halves)[2];      /* [nranks]: the registered memory for messages, to other nodes or from one of them */
  uint64_t (*messages)[2]; /* [nranks]: addresses of the halves */
  _Atomic(bny_proxy_segment *) segments; /* list, latest first */
  pthread_t thread;
  bool has_thread;
  _Atomic bool quits;  /* asks the proxy to end */
  _Atomic bool failed; /* the executor's failure may be read */
};

typedef struct bny_proxy_config {
  bny_engine *engine;     /* connected with the ranks of this node; owned by the caller, and outlives the proxy */
  bny_exec *exec;         /* owned, with its transport, also on failure */
  const int32_t *node_of; /* [nranks]; copied */
  uint64_t words;         /* most signals of a run, identical on all ranks */
} bny_proxy_config;

/* Local. Makes the memory that kernels and the proxy share, and the thread. */
banyan_status bny_proxy_make(const bny_proxy_config *config, bny_proxy **proxy);

/* Local; NULL is allowed. The runs of this rank must have ended or be about to end, and its engine must launch nothing
 * any more. */
void bny_proxy_free(bny_proxy *proxy);

/* ---- combines ---------------------------------------------------------------------------------------------------- */

/* Local. Returns the segment of a request, and the same segment for an equal request. The request names its algorithm,
 * and the data that it points to lives as long as the proxy. `settings` are those of the device's programs, without
 * nodes. One thread at a time may call it. */
banyan_status bny_proxy_segment_get(bny_proxy *proxy, const bny_request *request, const bny_notice *call,
                                    const bny_device_settings *settings, bny_proxy_segment **segment);

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Returns the communicator's rank for a number in the engine's group, or -1. */
int32_t bny_proxy_rank(const bny_proxy *proxy, int32_t number);

/* Returns the failure that ended the proxy, or NULL. Any thread may call it. */
const bny_failure *bny_proxy_failure(const bny_proxy *proxy);

/* Ends the current and all later runs, here and in the proxies of all ranks. Any thread may call it. It does not
 * wait. */
void bny_proxy_stop(bny_proxy *proxy, banyan_status status, int32_t culprit);

/* Does the same for banyan_comm_abort(). */
void bny_proxy_abort(bny_proxy *proxy, const char *reason);
