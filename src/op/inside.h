/* SPDX-License-Identifier: Apache-2.0
 *
 * This is the inside of an operation: operation.c makes it, operation_split.c divides it into parts, and
 * operation_run.c runs it. */
#ifndef BNY_OP_INSIDE_H
#define BNY_OP_INSIDE_H

#include "op/operation.h"

/* How one dimension of a call is cut: its tokens, heads or bytes. Consecutive parts are alike unless a bound lies in
 * one of them or between them: an end of what a rank owns or gives, or of the call. */
typedef struct bny_op_cut {
  int64_t all, each, parts;
  int64_t *first; /* [spans]: the first of each run of parts that are alike. NULL: no two parts are */
  int64_t spans;
} bny_op_cut;

/* The plan, and the run of it, of all parts that are alike: it is made for the first of them. So memory does not grow
 * with the call, whose parts follow from formulas. */
typedef struct bny_op_kind {
  bny_request request;
  bny_plan *plan;
  bny_run *run;               /* on the host */
  bny_device_run *device_run; /* or on the device */
  bny_binding place;   /* of the first part in the caller's memory, whatever that is: what planning alone decides */
  bny_binding binding; /* of the run under way, see bny_op_binding() */
  int64_t count;       /* of parts */
  size_t *pieces;      /* all-gather: counts and offsets, [2][nranks] */
} bny_op_kind;

/* A part, computed from its number. */
typedef struct bny_op_part {
  bny_op_kind *kind;
  int32_t token0, tokens, head0;
  size_t byte0;
} bny_op_part;

/* Sums over the parts of the last run. */
typedef struct bny_op_sums {
  uint64_t bytes_sent, messages_sent, saturated, bytes_between_nodes;
} bny_op_sums;

struct banyan_op {
  banyan_comm *comm;
  bny_op_key key;
  size_t *counts;       /* owned copy of key.counts */
  bny_op_memory memory; /* of the runs to come; `in`, `out` and `live` are the copies below */
  banyan_partial in, out;
  banyan_live live;     /* of zeros: all rows live */
  uint8_t *live_tokens; /* [key.all_tokens] of the run under way, or NULL; owned */
  int32_t tokens;       /* of the run under way */
  void *stream;
  bny_attention *attention;   /* goes before the parts; owned */
  banyan_op *gather;          /* goes before attention, and is never in the queue itself; owned */
  bny_device_combine *within; /* parameter of a kernel that also combines; owned. NULL: combines are launched */
  bny_op_cut outer, inner; /* tokens and heads; of bytes the first alone. Parts are counted by it, then by the other */
  bny_op_kind *kinds;      /* [outer.spans][inner.spans] */
  int64_t nkinds, nparts;
  int64_t current;   /* part under way */
  bny_op_kind *kind; /* its kind, while `begun` */
  bny_op_sums sums;
  int32_t slices;    /* attention fills parts one after another, at least so many; 0: all at once */
  int32_t sequences; /* of a slice that are attended to at a time, while others are on the network */
  int64_t ready;     /* parts of this run whose rows are there */
  bool running, begun;
  bool complete; /* the run of the last start is: what fails later is not of it */
  bool gathered; /* gather and attention of this run are complete, if there is a gather */
  bool lost;     /* a row of the last run is lost: the first one, as in bny_run_lost() */
  int32_t lost_token, lost_head;
  banyan_op *next; /* started after this one */
};

/* A proxy serves combines alone: beside it the other collectives move host memory. */
static inline bool bny_op_runs_on_device(const banyan_op *op) {
  const bny_device_exec *device = &op->comm->device;
  return device->engine && !op->key.on_host && (!device->proxy || op->key.collective == BNY_COMBINE);
}

/* Returns the request of the whole call, of which those of the parts are made. */
bny_request bny_op_request(const banyan_op *op);

/* Returns the payload to begin with: most algorithms keep less than 2 + 2 log2(nranks) times the payload in an
 * outbox. */
size_t bny_op_payload_limit(const banyan_op *op);

/* Makes op->kinds, with requests and places, for parts of at most `limit` bytes each; the same on all ranks. */
banyan_status bny_op_cut_parts(banyan_op *op, size_t limit);

bny_op_part bny_op_part_of(const banyan_op *op, int64_t index);

/* Returns the next part behind one without rows that may have some; op->nparts: there is none. */
int64_t bny_op_part_after(const banyan_op *op, int64_t index);

/* Returns a part's place in the operation's memory. Each start of a part asks for it, so no part can run with what was
 * known when it was planned. Hot. */
bny_binding bny_op_binding(const banyan_op *op, const bny_op_part *part);

/* Plans anew, after a change of op->slices. Collective. */
banyan_status bny_op_plan_again(banyan_op *op);

/* Gives all ranks the bytes of each: `all` is [nranks] of `bytes`. Collective, for planning alone. */
banyan_status bny_op_gather(banyan_comm *comm, const void *mine, size_t bytes, void *all);

/* Runs the queue until `op` is complete; without `block`, as far as it goes. */
banyan_status bny_op_progress(banyan_op *op, bool block);

/* Does what can be done without waiting, before the caller's own work goes on. */
banyan_status bny_op_advance(banyan_op *op);

/* Runs attention slice by slice, and the combine of each as far as it goes meanwhile. */
banyan_status bny_op_attend_slices(banyan_op *op);

#endif
