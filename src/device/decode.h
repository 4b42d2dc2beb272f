/* SPDX-License-Identifier: Apache-2.0
 *
 * Local attention on a device: the kernel that serves a description, its memory, and its launch. On request the same
 * launch combines its rows. */
#ifndef BNY_DEVICE_DECODE_H
#define BNY_DEVICE_DECODE_H

#include "device/decode_plan.h"
#include "device/engine.h"

typedef struct bny_decode {
  bny_engine *engine;
  bny_decode_request request;
  bny_decode_plan plan;
  bny_device_kernel kernel;
  bny_decode_call call;
  bny_device_combine apart; /* for launches that combine nothing: where faults are reported */
  int32_t resident_blocks;  /* at once, on this rank's part of the SMs that launches may use */
} bny_decode;

/* Loads the kernel, and takes scratch memory of the engine's, so it is not hot. `out`: NULL if rows are combined within
 * the kernel. Nothing is to be freed. BANYAN_ERR_UNSUPPORTED where no kernel serves the description. */
banyan_status bny_decode_make(bny_engine *engine, const banyan_attention_desc *desc, const banyan_partial *out,
                              bny_decode *decode);

/* Binds other memory for the same request. False: the request differs, or the memory does not serve. */
bool bny_decode_rebind(bny_decode *decode, const banyan_attention_desc *desc);

/* Launches. Hot, may be captured. `combine`: that of the rows, in wire form; NULL: they are written to `out`. */
banyan_status bny_decode_start(bny_decode *decode, const bny_device_combine *combine, void *stream);

#endif
