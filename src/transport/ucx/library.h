/* SPDX-License-Identifier: Apache-2.0
 * UCX, loaded only when ranks of several nodes connect. A program that stays on one node never loads it, because UCX
 * takes over signals and memory calls of the process as soon as it is loaded. libbanyan also runs where UCX is not
 * installed. */
#pragma once

#include <stdbool.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#include "banyan.h"

typedef struct bny_ucx {
#define BNY_UCX_FUNCTION(name) __typeof__(&name) name;
#include "transport/ucx/functions.def"
#undef BNY_UCX_FUNCTION
} bny_ucx;

/* Loads UCX, which is never unloaded. Signal handlers that it installs meanwhile are removed, unless the user has set
 * UCX_HANDLE_ERRORS or UCX_DEBUG_SIGNO, which ask for them. */
banyan_status bny_ucx_load(bny_ucx *ucx);

/* UCX returns a status and logs the reason. Switches on or off whether this thread keeps UCX's errors and warnings,
 * which bny_ucx_captured_log() returns, or "". UCX still prints them. */
void bny_ucx_capture_log(const bny_ucx *ucx, bool on);
const char *bny_ucx_captured_log(void);
