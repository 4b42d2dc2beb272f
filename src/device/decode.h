/* SPDX-License-Identifier: Apache-2.0
 * Local attention on a device: the kernel for a description, its memory, and its launch. The same launch can push its
 * rows to other ranks. */
#pragma once

#include "attention/call.h"
#include "device/decode_plan.h"
#include "device/engine.h"

typedef struct bny_decode {
  bny_engine *engine;
  bny_decode_request request;
  bny_decode_plan plan;
  bny_device_kernel kernel;
  bny_decode_call call;
  bny_device_combine apart; /* parameter of launches without a combine: names the group that receives reports of
                             * faults */
} bny_decode;

/* Loads the kernel and takes scratch memory from the engine, so it is not hot. `out` is NULL if the kernel pushes rows.
 * The caller frees nothing. Returns BANYAN_ERR_UNSUPPORTED if no kernel serves the description. */
banyan_status bny_decode_make(bny_engine *engine, const bny_attention_desc *desc, const banyan_partial *out,
                              bny_decode *decode);

/* Binds other memory for the same request. Returns false if the request differs or a kernel cannot use the memory. */
bool bny_decode_rebind(bny_decode *decode, const bny_attention_desc *desc);

/* Launches the kernel. Hot, may be captured. It pushes the rows of `combine`, which a run that merges must follow. If
 * that is NULL, rows are written to `out`. */
banyan_status bny_decode_start(bny_decode *decode, const bny_device_combine *combine, void *stream);
