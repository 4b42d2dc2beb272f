/* SPDX-License-Identifier: Apache-2.0
 * The internals of a run. bind.c makes it from a plan, and run.c executes it. */
#pragma once

#include "exec/exec.h"
#include "exec/wait.h"

/* A piece of bytes to copy: from an offset within a source slot to one within the caller's memory. */
typedef struct bny_piece {
  size_t from, to, bytes;
} bny_piece;

/* A step with its addresses resolved, for one half. */
typedef struct bny_bound_step {
  bny_wire_view to;           /* COPY, MERGE: destination of rows; of heads, their bytes are at `n` */
  char *to_bytes;             /* destination of bytes */
  const char *from_bytes;     /* MERGE, DELIVER of bytes; WAIT: the message */
  const bny_signal *arrived;  /* WAIT */
  const bny_landing *landing; /* WAIT, from another node: the message as its sender describes it */
  bool is_same_node;          /* WAIT: the sender shares memory with this rank */
} bny_bound_step;

struct bny_run {
  bny_exec *exec;
  const bny_plan *plan;
  const struct bny_payload_ops *payload;
  bny_notice notice;
  const bny_binding *binding;
  bny_valid_tokens valid;        /* the addresses and sizes below are those of such a run */
  int32_t call_tokens;           /* tokens of the current run */
  int32_t token_move, head_move; /* distance from the rows of these to those of the current run */
  size_t *slot_bytes;            /* [nslots] */
  size_t *message_bytes;         /* [nmessages] */
  bool *seen;                    /* [nranks]: scratch */
  bny_box *boxes;                /* [nsteps] */
  int32_t *token0;               /* [nsteps] */
  bny_bound_step *steps[2];      /* [nsteps] of each half */
  bny_wire_view *views[2];       /* [nsources] of each half */
  bny_piece *pieces;             /* byte ranges to deliver, in the order of steps */
  int32_t *piece_first;          /* [nsteps + 1] */
  int32_t *readers;              /* [nranks]: every rank that is sent slots */
  int32_t nreaders;
  int32_t *senders; /* ranks of other nodes that send slots to this one */
  int32_t nsenders;
  size_t places, stride; /* within a half: their number, and bytes from one to the next */
  size_t first_place;    /* bytes from the start of the half */
  size_t shift;          /* bytes from the first place to that of this run */
  bny_wire_view *moved;  /* scratch: views of one merge, shifted */
  uint64_t tag;
  int32_t next; /* step */
  bool ready;   /* the half may be written */
  bny_patience patience;
  bny_run_report report; /* while it runs, bytes_between_nodes is the transport's count when it began */
  bny_run_record record;
};

/* Returns true for messages without rows, which are not sent. Messages of a barrier have no bytes, but are sent. */
static inline bool bny_run_is_empty(const bny_run *run, size_t bytes) {
  return bytes == 0 && run->plan->payload->has_rows;
}

/* ---- masked rows -------------------------------------------------------------------------------------------------
 * Kernels convert and merge boxes of valid rows. valid.c cuts a box into such boxes, so kernels need not know about
 * masks. */

/* Does what `encode` of the kernels does. `valid` has a byte for each token of the box. Rows of a token with 0 are not
 * read, and become empty rows. */
int64_t bny_valid_encode(const bny_kernels *kernels, const bny_box *box, const banyan_partial *in, int32_t token0,
                         int32_t head0, bny_wire wire, const uint8_t *valid, const bny_wire_view *to);

/* A merge whose result goes to the caller. */
typedef struct bny_valid_merge {
  const bny_kernels *kernels;
  bny_wire wire;
  int count;
  const bny_wire_view *sources;
  bool round_nodes;
  const banyan_partial *out;
} bny_valid_merge;

/* Does what `merge_finish` of the kernels does, but does not write rows that are empty in all sources. */
int64_t bny_valid_finish(const bny_valid_merge *merge, const bny_box *box, int32_t token0, int32_t head0);
