/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs on devices, as exec/run.c is for the host. A plan becomes one launch: of the oneshot kernels if they serve it,
 * otherwise of the interpreter with the plan's program. */
#ifndef BNY_DEVICE_RUN_H
#define BNY_DEVICE_RUN_H

#include "device/engine.h"
#include "device/proxy.h"
#include "device/program.h"
#include "exec/exec.h"

/* Identical on all ranks, except for the engine and the proxy. */
typedef struct bny_device_exec {
  bny_engine *engine;
  bny_proxy *proxy; /* NULL: no rank is on another node. Otherwise only programs of combines run, and use it */
  bny_device_settings settings;
  bny_arena_sizes sizes;
  bny_link_cost cost;
  size_t outbox_bytes; /* for requests: what fits is known only once a program is made */
} bny_device_exec;

/* Divides the arenas of a connected engine, which remains the caller's. `nodes`: a proxy will be there. */
banyan_status bny_device_exec_make(bny_engine *engine, bool nodes, bny_device_exec *exec);

typedef struct bny_device_run bny_device_run;

/* Makes a run. BANYAN_ERR_MEMORY, on all ranks alike: arenas are too small for it. The exec must outlive the run. Only
 * the places of pieces of bytes are read from the binding. Ranks of other nodes can read `call`. */
banyan_status bny_device_run_make(bny_device_exec *exec, const bny_request *request, const bny_plan *plan,
                                  const bny_notice *call, const bny_binding *binding, bny_device_run **run);
/* Returns the segment that the proxy runs; NULL: none. */
const bny_proxy_segment *bny_device_run_segment(const bny_device_run *run);
void bny_device_run_free(bny_device_run *run); /* NULL is allowed. Graphs that have captured it remain valid */

/* Writes what runs, as snprintf() does. */
size_t bny_device_run_print(const bny_device_run *run, const bny_plan *plan, char *text, size_t bytes);

/* Makes a combine that runs within another kernel: the part that all its launches have in common. */
banyan_status bny_device_run_within(const bny_device_exec *exec, const bny_request *request,
                                    bny_device_combine *combine);

/* Returns the valid rows of a run in the form that kernels take. */
bny_device_valid bny_device_valid_of(const bny_binding *binding);

/* Starts a run. Hot: allocates nothing, waits for nothing, may be captured. */
banyan_status bny_device_run_start(bny_device_run *run, const bny_binding *binding, void *stream);

#endif
