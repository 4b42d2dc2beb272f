/* SPDX-License-Identifier: Apache-2.0
 *
 * A persistent operation: one call planned, agreed by all ranks and bound to memory; in parts if it is larger than the
 * arena takes at once. The blocking calls keep such operations by their shape and give them new memory each time. */
#ifndef BNY_OPERATION_H
#define BNY_OPERATION_H

#include "api/attention_run.h"
#include "comm/comm.h"

/* What makes two calls the same operation; identical on all ranks. The fields are rows of plan/call.def. */
typedef struct bny_op_key {
#define BNY_CALL_NUMBER(type, field, label, names) type field;
#define BNY_CALL_LOCAL(type, field) type field;
#include "plan/call.def"
  char algorithm[BNY_ALGORITHM_NAME_BYTES]; /* "": by predicted cost */
  const size_t *counts; /* gather: [nranks] */
} bny_op_key;

bool bny_op_key_equal(const bny_op_key *a, const bny_op_key *b, int32_t nranks);

/* The caller's memory. */
typedef struct bny_op_memory {
  const banyan_partial *in, *out; /* combine; copied */
  const void *in_bytes;           /* the others */
  void *out_bytes;
  void *stream;                   /* on a device */
  bny_attention *attention;       /* that goes before a combine; becomes the operation's */
} bny_op_memory;

/* Collective. Not checked here: the descriptors of the memory. */
banyan_status bny_op_make(banyan_comm *comm, const bny_op_key *key, banyan_op **op);
void bny_op_bind(banyan_op *op, const bny_op_memory *memory);

/* Local: attention alone, which becomes the operation's. */
banyan_status bny_op_make_attention(banyan_comm *comm, bny_attention *attention, banyan_op **op);

/* Collective: whether all ranks are ready for what only each can judge for itself. `own`: this rank's status, with its text the
 * thread's last error. All get that of the first rank that is not, with its name and text; the communicator remains usable. */
banyan_status bny_op_all_ready(banyan_comm *comm, banyan_status own);

/* A call that this rank cannot make, after what was started before: peers are told at once. `plans`: ranks would have compared it, if
 * they have a device. Returns the status, with the text that it has. */
banyan_status bny_op_refuse(banyan_comm *comm, banyan_status status, bool plans);

/* Whether a combine can be run within a kernel: the same on all ranks. If not, the thread's error says why. */
banyan_status bny_op_check_within(banyan_comm *comm, const bny_op_key *key);

/* What a kernel of somebody else takes, of an operation within one. `blocks` of it fit on the device. */
void bny_op_tell(const banyan_op *op, const banyan_partial *rows, const banyan_partial *out, int32_t blocks,
                 bny_device_combine *combine);

/* NULL if it is not to be run by a kernel of somebody else. */
const bny_op_key *bny_op_key_within(const banyan_op *op, banyan_comm **comm);

/* The operation behind a blocking call: found by its key, or made. */
banyan_status bny_op_find(banyan_comm *comm, const bny_op_key *key, banyan_op **op);

/* NULL: none, or none yet. The operation's. */
bny_attention *bny_op_attention(const banyan_op *op);

#endif
