/* SPDX-License-Identifier: Apache-2.0
 *
 * Local attention as a part of operations: bound to memory once, done many times, on the host or on the communicator's
 * device. */
#ifndef BNY_ATTENTION_RUN_H
#define BNY_ATTENTION_RUN_H

#include "attention.h"
#include "comm/comm.h"
#include "device/decode.h"
#include "base/status.h"

typedef struct bny_attention {
  bny_engine *engine; /* NULL: on the host */
  banyan_attention_desc desc;
  banyan_partial out;
  const bny_attention_kernels *kernels; /* on the host: those that BANYAN_KERNELS names for the communicator */
  const bny_kernels *finish;
  bny_decode decode;  /* on a device */
  void *rows;         /* owned: memory of the host for rows that a combine reads */
  char text[2 * BNY_ERROR_TEXT_BYTES]; /* how it is done */
} bny_attention;

/* To write to `out`. */
banyan_status bny_attention_make(banyan_comm *comm, const banyan_attention_desc *desc, const banyan_partial *out,
                                 bny_attention **attention);

/* For a combine of its own. `why_apart` NULL: by the same kernel. Else to memory of banyan's, made->out, which the
 * combine reads; the text says why, "" if there is nothing to say. */
banyan_status bny_attention_make_input(banyan_comm *comm, const banyan_attention_desc *desc, const char *why_apart,
                                       bny_attention **attention);

/* Other memory for the same shape; false: it is another shape, or memory that does not serve, and nothing was done. */
bool bny_attention_rebind(const banyan_comm *comm, bny_attention *attention, const banyan_attention_desc *desc);

/* In wire form: a combine takes such rows as they are. */
banyan_partial bny_attention_rows(const banyan_attention_desc *desc);

/* combine: of one that was made `within`; else NULL. On a device hot, may be captured. */
banyan_status bny_attention_start(bny_attention *attention, const bny_device_combine *combine);

void bny_attention_free(bny_attention *attention); /* NULL is allowed */

#endif
