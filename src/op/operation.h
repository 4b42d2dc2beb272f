/* SPDX-License-Identifier: Apache-2.0
 *
 * A persistent operation is one call, planned, agreed by all ranks and bound to memory. It has parts if it is larger
 * than the arena takes at once. The blocking calls keep such operations by their shape and bind new memory each
 * time. */
#ifndef BNY_OP_OPERATION_H
#define BNY_OP_OPERATION_H

#include "op/attend.h"
#include "comm/comm.h"

/* The key of an operation: two calls with equal keys are the same operation. It is identical on all ranks. The fields
 * are rows of plan/call.def. */
typedef struct bny_op_key {
#define BNY_CALL_NUMBER(type, field, label, names) type field;
#define BNY_CALL_LOCAL(type, field) type field;
#include "plan/call.def"
  char algorithm[BNY_ALGORITHM_NAME_BYTES]; /* "": by predicted cost */
  const size_t *counts;                     /* all-gathers: [nranks] */
  int32_t tokens; /* where there are rows: of the first run, at most all_tokens; not compared */
} bny_op_key;

bool bny_op_key_equal(const bny_op_key *a, const bny_op_key *b, int32_t nranks);

/* Returns the rows that this rank's output has. */
bny_box bny_op_result_box(const banyan_comm *comm, const bny_op_key *key);

/* The caller's memory. */
typedef struct bny_op_memory {
  const banyan_partial *in, *out; /* combine; copied */
  bny_strided mine, all;          /* all-gather of heads */
  bool in_place;                  /* `mine` is its own place in `all` */
  const banyan_live *live;        /* of rows; copied. NULL: all rows live */
  int32_t tokens;                 /* of rows: of each run, unless `live` says so */
  const void *in_bytes;           /* the others */
  void *out_bytes;
  void *stream;             /* on a device */
  bny_attention *attention; /* runs before a combine; becomes the operation's */
  banyan_op *gather;        /* runs before attention; becomes the operation's */
} bny_op_memory;

/* Collective. The descriptors of the memory are not checked here. */
banyan_status bny_op_make(banyan_comm *comm, const bny_op_key *key, banyan_op **op);
void bny_op_bind(banyan_op *op, const bny_op_memory *memory);

/* Checks the scales of `heads` heads in memory of the host. */
banyan_status bny_op_check_scales(const char *name, const banyan_partial *partial, int32_t heads);

/* Makes room to note which rows of a run live, once for an operation. */
banyan_status bny_op_reserve_live(banyan_op *op, const banyan_live *live);

/* Local. Makes an operation of attention alone, which becomes the operation's. */
banyan_status bny_op_make_attention(banyan_comm *comm, bny_attention *attention, banyan_op **op);

/* Collective. Settles whether all ranks are ready, for what each rank alone can judge. `own` is this rank's status,
 * with its text the thread's last error. All ranks get the status of the first rank that is not ready, with its name
 * and text; the communicator remains usable. */
banyan_status bny_op_all_ready(banyan_comm *comm, banyan_status own);

/* Reports a call that this rank cannot make to its peers, after the operations started before. `plans`: ranks with a
 * device would have compared it. Returns the status, with its text. */
banyan_status bny_op_refuse(banyan_comm *comm, banyan_status status, bool plans);

/* Checks whether a kernel can run a combine within it, which is the same on all ranks. If not, the thread's error says
 * why. */
banyan_status bny_op_check_within(banyan_comm *comm, const bny_op_key *key);

/* Fills `combine`, which the caller's kernel takes, from an operation that runs within one. `blocks` of that kernel fit
 * on the device. */
void bny_op_tell(const banyan_op *op, const banyan_partial *rows, const banyan_partial *out, int32_t blocks,
                 bny_device_combine *combine);

/* Returns NULL if the operation is not one for a caller's kernel. */
const bny_op_key *bny_op_key_within(const banyan_op *op, banyan_comm **comm);

/* Returns true if a blocking call of this key was planned, on all ranks. */
bool bny_op_is_known(const banyan_comm *comm, const bny_op_key *key);

/* Finds the operation behind a blocking call by its key, or makes it. */
banyan_status bny_op_find(banyan_comm *comm, const bny_op_key *key, banyan_op **op);

/* Has attention and the combine of its rows overlap where that pays, on the host. Collective, once for an operation,
 * when it has its attention. has_lengths: seq_lens may be read. */
banyan_status bny_op_overlap(banyan_op *op, bool has_lengths);

/* Returns the attention, which remains the operation's. NULL: there is none, or none yet. */
bny_attention *bny_op_attention(const banyan_op *op);

#endif
