/* SPDX-License-Identifier: Apache-2.0
 *
 * UCX, loaded when ranks of several hosts meet and not before. A program that stays on one host never has it: it would take
 * over signals and memory calls of the process as soon as it is loaded. And libbanyan runs where there is none. */
#ifndef BNY_TRANSPORT_UCX_LIBRARY_H
#define BNY_TRANSPORT_UCX_LIBRARY_H

#include <ucp/api/ucp.h>

#include "banyan.h"

typedef struct bny_ucx {
#define BNY_UCX_FUNCTION(name) __typeof__(&name) name;
#include "transport/ucx_functions.def"
#undef BNY_UCX_FUNCTION
} bny_ucx;

/* It stays loaded. Signal handlers that it installs meanwhile are taken back, unless the user has set UCX_HANDLE_ERRORS or
 * UCX_DEBUG_SIGNO, which ask for them. */
banyan_status bny_ucx_load(bny_ucx *ucx);

#endif
