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

#endif
