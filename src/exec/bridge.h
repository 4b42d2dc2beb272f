/* SPDX-License-Identifier: Apache-2.0
 *
 * Combines of devices on several hosts, staged in pinned memory of the host.
 *
 * A launch takes part in a group of two: the device, and the *proxy*, a thread of the same process that is a peer to the
 * kernel in all it does. The kernel reads the caller's partials and pushes them, as units of f32, into the proxy's arena;
 * the proxy runs the plan of the host on them, part by part as they come, and pushes what is merged into the device's
 * arena; the kernel, which waits for it, writes the caller's result. Both arenas are pinned memory of the host. Epochs,
 * halves, signals and faults are those of kernels among themselves (kernels/cuda/program.h), so that a launch can be
 * captured and replayed: what the proxy must know it hears from the kernel, not from whoever launches.
 *
 * The proxy has a transport and an executor of its own, which nobody else runs anything on: its runs come in the order of
 * the stream, those of the communicator in the order of calls, and neither may depend on the other. It is the one thread
 * that banyan makes. It polls, then yields, then sleeps for a millisecond at most. */
#ifndef BNY_EXEC_BRIDGE_H
#define BNY_EXEC_BRIDGE_H

#include "device/engine.h"
#include "exec/exec.h"

typedef struct bny_bridge bny_bridge;

typedef struct bny_bridge_config {
  bny_engine *engine; /* not connected; remains the caller's, and outlives the bridge */
  bny_exec *exec;     /* owned, with its transport, also on failure */
  size_t bytes;       /* of each arena, identical on all ranks */
  int32_t crowd;      /* ranks that share a device, at most */
} bny_bridge_config;

/* Local: arenas, and the thread. */
banyan_status bny_bridge_make(const bny_bridge_config *config, bny_bridge **bridge);

/* Local; NULL is allowed. All runs of this rank have ended. */
void bny_bridge_free(bny_bridge *bridge);

/* ---- combines -------------------------------------------------------------------------------------------------------- */

/* A call with its plans, bound: as long as the bridge, since graphs may have captured it. */
typedef struct bny_bridge_work bny_bridge_work;

/* A part of a call. What the request points to lives as long as the bridge; it names its algorithm. */
typedef struct bny_bridge_part {
  bny_request request;
  bny_call call;
} bny_bridge_part;

/* Local. Of parts that were given before, the same work. BANYAN_ERR_MEMORY, on all ranks alike, if a part is too large. One
 * thread at a time. */
banyan_status bny_bridge_plan(bny_bridge *bridge, const bny_bridge_part *parts, int32_t count, bny_bridge_work **work);

/* The run behind a part: for bny_run_reach(). */
const bny_run *bny_bridge_run_of(const bny_bridge_work *work, int32_t part);

/* Hot: launches; allocates nothing, waits for nothing, may be captured. */
banyan_status bny_bridge_start(bny_bridge_work *work, const bny_binding *binding, void *stream);

/* ---- failures -------------------------------------------------------------------------------------------------------- */

/* What made the proxy end, or NULL. Any thread. */
const bny_failure *bny_bridge_failure(const bny_bridge *bridge);

/* Ends what runs and will run here, and tells the proxies of all ranks. Any thread, does not wait. */
void bny_bridge_stop(bny_bridge *bridge, banyan_status status, int32_t culprit);

/* The same for banyan_comm_abort(). */
void bny_bridge_abort(bny_bridge *bridge, const char *reason);

#endif
