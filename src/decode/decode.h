/* SPDX-License-Identifier: Apache-2.0
 *
 * The decode layer's inside: banyan_attention() with the kernels to run as arguments. */
#ifndef BNY_DECODE_DECODE_H
#define BNY_DECODE_DECODE_H

#include "attention.h"
#include "banyan.h"
#include "op.h"

/* banyan_attention() by the kernels given: `attention` computes, `kernels` writes in the caller's convention. */
banyan_status bny_decode_attention_run(const bny_attention_kernels *attention, const bny_kernels *kernels,
                                       const banyan_attention_desc *desc, const banyan_partial *out);

/* Descriptions as callers give them become ours, in `room` where they are of another size; first of all. */
banyan_status bny_decode_attention_read(const banyan_attention_desc **desc, banyan_attention_desc *room);
banyan_status bny_decode_attention_read_out(const banyan_partial **out, banyan_partial *room);

/* What of a description refuses it. on_host: lengths may be read. And of where its rows go. */
banyan_status bny_decode_attention_check(const banyan_attention_desc *desc, bool on_host);
banyan_status bny_decode_attention_check_out(const banyan_attention_desc *desc, const banyan_partial *out);

#endif
