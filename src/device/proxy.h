/* SPDX-License-Identifier: Apache-2.0
 *
 * Combines of devices on several hosts.
 *
 * Kernels run the plan of the whole communicator: they copy, merge and deliver, and push to ranks of their own host as ever.
 * What a plan sends to ranks of other hosts they write into memory of the host (or into such memory of the device) as the
 * message that hosts send to each other; and they read what comes from there where it lands. Between hosts it is carried by the
 * *proxy*, a thread of each rank, over the transport of the host. It merges nothing.
 *
 * Kernels and proxy tell each other by words in memory of the host (bny_relay, kernels/cuda/program.h). Both count the runs
 * alike, and the proxy hears from the kernel which plan it is in, so that a launch can be captured and replayed.
 *
 * The proxy has a transport and an executor of its own, which nobody else runs anything on: its runs come in the order of
 * the stream, those of the communicator in the order of calls, and neither may depend on the other. It is the one thread
 * that banyan makes. It polls, then yields, then sleeps for a millisecond at most. */
#ifndef BNY_EXEC_BRIDGE_H
#define BNY_EXEC_BRIDGE_H

#include "device/engine.h"
#include "device/program.h"
#include "exec/exec.h"

typedef struct bny_bridge bny_bridge;

typedef struct bny_bridge_config {
  bny_engine *engine;     /* connected with the ranks of this host; remains the caller's, and outlives the bridge */
  bny_exec *exec;         /* owned, with its transport, also on failure */
  const int32_t *host_of; /* [nranks]; copied */
  uint64_t words;         /* room for signals of a run, identical on all ranks */
  bool direct;            /* what goes to other hosts lies in memory of the device, which the network library takes it from */
} bny_bridge_config;

/* Local: memory that kernels and the proxy share, and the thread. */
banyan_status bny_bridge_make(const bny_bridge_config *config, bny_bridge **bridge);

/* Local; NULL is allowed. All runs of this rank have ended, or will now. Its engine launches nothing any more. */
void bny_bridge_free(bny_bridge *bridge);

bool bny_bridge_is_direct(const bny_bridge *bridge);

/* ---- combines -------------------------------------------------------------------------------------------------------- */

/* What the proxy does for a plan. It lives as long as the bridge, since graphs may have captured the launch. */
typedef struct bny_bridge_route bny_bridge_route;

/* Local. Of a request that was given before, the same route. What the request points to lives as long as the bridge; it names
 * its algorithm. `settings` are those of the device's programs, without hosts. One thread at a time. */
banyan_status bny_bridge_plan(bny_bridge *bridge, const bny_request *request, const bny_call *call,
                              const bny_device_settings *settings, bny_bridge_route **route);

/* For the program that belongs to it. */
const bny_device_hosts *bny_bridge_hosts(const bny_bridge_route *route);

/* For bny_run_reach(). */
const bny_run *bny_bridge_run(const bny_bridge_route *route);

/* Payload that a run of it sends to ranks of other hosts. */
uint64_t bny_bridge_bytes(const bny_bridge_route *route);

/* ---- failures -------------------------------------------------------------------------------------------------------- */

/* The rank that kernels know by this number; -1: none. */
int32_t bny_bridge_rank(const bny_bridge *bridge, int32_t number);

/* What made the proxy end, or NULL. Any thread. */
const bny_failure *bny_bridge_failure(const bny_bridge *bridge);

/* Ends what runs and will run here, and tells the proxies of all ranks. Any thread, does not wait. */
void bny_bridge_stop(bny_bridge *bridge, banyan_status status, int32_t culprit);

/* The same for banyan_comm_abort(). */
void bny_bridge_abort(bny_bridge *bridge, const char *reason);

#endif
