/* SPDX-License-Identifier: Apache-2.0
 * Runs of plans on devices, as exec/run.c has them for the host. A plan takes one launch: of a oneshot kernel if one
 * serves it, else of the interpreter with the plan's program. */
#pragma once

#include "device/engine.h"
#include "device/proxy.h"
#include "device/program.h"
#include "exec/exec.h"

/* How a communicator runs plans on devices. All fields but the engine and the proxy are identical on all ranks. */
typedef struct bny_device_exec {
  bny_engine *engine;
  bny_proxy *proxy; /* NULL: all ranks are on this node; else only programs of combines and sums run */
  bny_device_settings settings;
  bny_arena_sizes sizes;
  bny_link_cost cost;
  size_t outbox_bytes; /* for requests; only a finished program shows whether it fits */
} bny_device_exec;

/* Divides the arenas of a connected engine, which the caller still owns. `nodes`: the exec will have a proxy. */
banyan_status bny_device_exec_make(bny_engine *engine, bool nodes, bny_device_exec *exec);

typedef struct bny_device_run bny_device_run;

/* Makes a run. Returns BANYAN_ERR_MEMORY on all ranks if arenas are too small for it. The exec must outlive the run.
 * Only the offsets of pieces of bytes are read from the binding. Ranks of other nodes can read `call`. */
banyan_status bny_device_run_make(bny_device_exec *exec, const bny_request *request, const bny_plan *plan,
                                  const bny_notice *call, const bny_binding *binding, bny_device_run **run);
/* Returns the segment that the proxy runs, or NULL. */
const bny_proxy_segment *bny_device_run_segment(const bny_device_run *run);
void bny_device_run_free(bny_device_run *run); /* NULL is allowed; graphs that captured the run remain valid */

/* Describes the run in a text, like snprintf(). */
size_t bny_device_run_print(const bny_device_run *run, const bny_plan *plan, char *text, size_t bytes);

/* Makes a run that merges the rows which another kernel has pushed, by the parameter of bny_device_run_within(). */
banyan_status bny_device_run_make_merge(bny_device_exec *exec, const bny_request *request, bny_device_run **run);

/* Makes the part of a combine within another kernel that all its launches share. */
banyan_status bny_device_run_within(const bny_device_exec *exec, const bny_request *request,
                                    bny_device_combine *combine);

/* Returns the valid rows of a run in the form that kernels take. */
bny_device_valid bny_device_valid_of(const bny_binding *binding);

/* Starts a run. Hot: it allocates nothing, waits for nothing, and may be captured. */
banyan_status bny_device_run_start(bny_device_run *run, const bny_binding *binding, void *stream);
