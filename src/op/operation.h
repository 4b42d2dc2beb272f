/* SPDX-License-Identifier: Apache-2.0
 * A persistent operation is one call that is planned, agreed by all ranks, and bound to memory. A call that does not
 * fit the arena has parts. Blocking calls keep such operations by shape and bind new memory each time. */
#pragma once

#include "op/attend.h"
#include "comm/comm.h"

/* Returns the rows that this rank's output has. */
bny_box bny_op_result_box(const banyan_comm *comm, const bny_call *call);

/* A run of an operation takes its stages in order. Each is a planned call: the operation itself for the rows, and, with
 * attention, hidden operations, which are never queued, for the others. Attention runs when the run starts, or after
 * the stage that it needs. */
typedef enum bny_op_stage {
  BNY_STAGE_GATHER,      /* gathers q */
  BNY_STAGE_SELECT,      /* selects the keys to read, by the caller's scores */
  BNY_STAGE_KEYS,        /* gathers the shards of all ranks: see pass.h */
  BNY_STAGE_TOPS,        /* selects the largest top of each row, after its pages are weighed */
  BNY_STAGE_PAGES,       /* selects the pages to read */
  BNY_STAGE_ROWS,        /* the call itself, unless shards were gathered */
  BNY_STAGE_RESULTS,     /* gathers rows, if they were */
  BNY_STAGE_CERTIFICATE, /* combines the certificate of attention */
  BNY_STAGES
} bny_op_stage;

/* The caller's memory of one operation. */
typedef struct bny_op_memory {
  const banyan_partial *in, *out; /* combine; copied */
  bny_strided mine, all;          /* all-gather of heads, sums */
  bny_lists lists;                /* selections */
  bool in_place;                  /* `mine` is this rank's range of `all` */
  const banyan_valid_rows *valid; /* the valid rows; copied. NULL: all rows */
  int32_t tokens;                 /* tokens of each run, unless `valid` sets them */
  const void *in_bytes;           /* other collectives */
  void *out_bytes;
  void *stream;                  /* on a device */
  bny_attention *attention;      /* runs before a combine; becomes the operation's */
  banyan_op *stages[BNY_STAGES]; /* those beside the rows; they become the operation's. NULL: none */
} bny_op_memory;

/* How one dimension of a call is cut: tokens, heads or bytes. Consecutive parts are equal unless a bound lies in one of
 * them or between them. Bounds are the ends of the call and of each rank's input or result. */
typedef struct bny_op_cut {
  int64_t all, each, parts;
  int64_t *first; /* [spans]: the first part of each run of equal parts. NULL: no two parts are equal */
  int64_t spans;
} bny_op_cut;

/* The plan and the run of all equal parts, made for the first of them. Memory does not grow with the call, because
 * formulas give its parts. */
typedef struct bny_op_kind {
  bny_request request;
  bny_plan *plan;
  bny_run *run;               /* on the host */
  bny_device_run *device_run; /* or on the device */
  bny_binding place;          /* the fields that planning decides for the first part, for any memory of the caller */
  bny_binding binding;        /* the current run, see bny_op_binding() */
  int64_t count;              /* number of parts */
  size_t *pieces;             /* all-gather: counts and offsets, [2][nranks] */
} bny_op_kind;

typedef struct bny_pass bny_pass;

/* One part, computed from its number. */
typedef struct bny_op_part {
  bny_op_kind *kind;
  int32_t token0, tokens, head0;
  size_t byte0;
} bny_op_part;

/* The structs of a blocking combine as the caller passed them. */
typedef struct bny_op_given {
  banyan_combine_desc desc;
  banyan_partial in, out;
} bny_op_given;

typedef enum bny_op_state {
  BNY_OP_IDLE,     /* never started, or its run has failed */
  BNY_OP_RUNNING,  /* started: in the queue */
  BNY_OP_COMPLETE, /* and complete, which no wait or test has reported yet */
  BNY_OP_REPORTED  /* and reported; later failures do not belong to that run */
} bny_op_state;

struct banyan_op {
  banyan_comm *comm; /* NULL after it was destroyed */
  bool on_device;    /* kernels run it */
  bny_call call;
  size_t *counts;       /* owned copy of call.counts */
  bny_op_memory memory; /* the runs to come; `in`, `out` and `valid` are the copies below */
  banyan_partial in, out;
  banyan_valid_rows valid; /* all zeros: all rows are valid */
  uint8_t *valid_tokens;   /* [call.all_tokens] of the run under way, or NULL; owned */
  int32_t tokens;          /* tokens of the current run */
  void *stream;
  int64_t tag;                /* the caller's, for the run under way */
  bny_attention *attention;   /* runs before the parts; owned */
  bny_pass *pass;             /* how it attends to gathered shards; owned. NULL: it does not */
  bny_device_combine *within; /* parameter of a kernel that also combines, or pushes the rows of a combine; owned */
  bny_op_cut outer, inner;    /* tokens and heads; bytes use only `outer`. Parts are numbered along `inner` first */
  bny_op_kind *kinds;         /* [outer.spans][inner.spans] */
  int64_t nkinds, nparts;
  int64_t current;       /* part under way */
  bny_op_kind *kind;     /* its kind, if it is bound. An only part stays bound to its memory */
  bny_run *run;          /* its run, if that has begun */
  bny_op_given given;    /* the structs of the blocking combine that bound it last; size 0: none did */
  bny_run_report report; /* the last run: sums over its parts, and the first row that was lost */
  int32_t counter;       /* on a device, its word for values that saturate; 0: none */
  int32_t slices;        /* least number of parts, which attention fills one after another; 0: all at once */
  int32_t sequences;     /* sequences of a slice that are attended to at a time, while others are on the network */
  int64_t ready;         /* parts of this run whose rows are computed */
  bny_op_state state;
  banyan_op *stages[BNY_STAGES]; /* owned, except itself; NULL: the operation lacks this stage */
  int32_t first;                 /* the first of the stages that it has */
  int32_t stage;                 /* the one that the run under way has reached */
  banyan_op *next;               /* started after this one */
  banyan_op *newer, *older;      /* in the list of those that exist */
};

/* The operations of a communicator. */
enum { BNY_BLOCKING_OPS = 32 };

typedef struct bny_ops {
  banyan_op *first, *last;               /* started and not complete, in order */
  banyan_op *blocking[BNY_BLOCKING_OPS]; /* operations of blocking calls, the latest first */
  banyan_op *newest;                     /* the head of the list of those that exist */
} bny_ops;

/* Frees the operations of blocking calls. If the caller has not freed its own, logs a warning and leaves them without
 * a communicator, so that they can only be freed. */
void bny_ops_free(banyan_comm *comm);

/* Collective. The descriptors of the memory are not checked here. */
banyan_status bny_op_make(banyan_comm *comm, const bny_call *call, banyan_op **op);
void bny_op_bind(banyan_op *op, const bny_op_memory *memory);
void bny_op_free(banyan_op *op); /* NULL is allowed. A run under way is completed first */
void bny_op_free_parts(banyan_op *op);

/* Collective. Starts a run, and continues it as far as possible without waiting. */
banyan_status bny_op_start(banyan_op *op);

/* Continues the run; with `block`, to its end. Sets *done (may be NULL) if nothing fails before the end. */
banyan_status bny_op_finish(banyan_op *op, bool block, int *done);

/* Starts and finishes a run, for a blocking call whose scales and attention have been checked. */
banyan_status bny_op_run(banyan_op *op);

/* Prepares a stream for runs, before ranks agree on the call. NULL: the communicator's. */
void bny_op_use_stream(banyan_comm *comm, void *stream);

/* Finds the operation of a blocking call, or makes one to `keep`, and binds it. */
banyan_status bny_op_obtain(banyan_comm *comm, const bny_call *call, const bny_op_memory *memory, bool keep,
                            banyan_op **op);

/* Runs a blocking call; or with `keep` gives the caller a persistent operation, bound and not started. */
banyan_status bny_op_run_or_keep(banyan_comm *comm, const bny_call *call, const bny_op_memory *memory,
                                 banyan_op **keep);

/* Answer banyan_op_query() and banyan_op_describe(). */
banyan_op_info bny_op_query(const banyan_op *op);
size_t bny_op_describe(const banyan_op *op, char *text, size_t bytes);

/* Checks the scales of `heads` heads in memory of the host. */
banyan_status bny_op_check_scales(const char *name, const banyan_partial *partial, int32_t heads);

/* Allocates memory for the valid rows of a run, once per operation. A failure is reported to peers. */
banyan_status bny_op_reserve_valid(banyan_op *op, const banyan_valid_rows *valid);

/* Local. Makes an operation of attention alone, which then owns the attention. */
banyan_status bny_op_make_attention(banyan_comm *comm, bny_attention *attention, banyan_op **op);

/* Collective. Determines whether all ranks are ready, for conditions that each rank alone can check. `own` is this
 * rank's status, with its text as the thread's last error. All ranks get the status of the first rank that is not
 * ready, with its number and text. The communicator remains usable. */
banyan_status bny_op_all_ready(banyan_comm *comm, banyan_status own);

/* Reports to peers, after earlier operations, a call that this rank cannot make. `plans`: ranks with a device would
 * have compared it. Returns the status, with its text. */
banyan_status bny_op_reject(banyan_comm *comm, banyan_status status, bool plans);

/* Checks whether a kernel can run a combine within it, which is the same on all ranks. If not, the thread's error
 * explains why. */
banyan_status bny_op_check_within(banyan_comm *comm, const bny_call *call);

/* Fills `combine`, the parameter of the caller's kernel, from an operation that runs within it. `blocks` of that kernel
 * fit on the device. */
void bny_op_within(const banyan_op *op, const banyan_partial *rows, const banyan_partial *out, int32_t blocks,
                   bny_device_combine *combine);

/* Finds the operation of a blocking call, or makes it. */
banyan_status bny_op_find(banyan_comm *comm, const bny_call *call, banyan_op **op);

/* Remembers the structs of a blocking combine that the operation was bound to. A later call with the same bytes has
 * passed its checks and needs no binding. bny_op_repeated() finds its operation, or returns NULL. Hot. */
void bny_op_remember(banyan_op *op, const banyan_combine_desc *desc, const banyan_partial *in,
                     const banyan_partial *out);
banyan_op *bny_op_repeated(const banyan_comm *comm, const banyan_combine_desc *desc, const banyan_partial *in,
                           const banyan_partial *out);

/* Overlaps attention with the combine of its rows if that pays, on the host. Collective, once for an operation that has
 * its attention. has_lengths: seq_lens may be read. */
banyan_status bny_op_overlap(banyan_op *op, bool has_lengths);

/* ---- inside of the folder ---------------------------------------------------------------------------------------- */

/* Returns the request of the whole call. Those of its parts are made from it. */
bny_request bny_op_request(const banyan_op *op);

/* Returns the payload to try first: most algorithms keep less than 2 + 2 log2(nranks) times the payload in an
 * outbox. */
size_t bny_op_payload_limit(const banyan_op *op);

/* Makes op->kinds, with requests and places, for parts of at most `limit` bytes each; the same on all ranks. */
banyan_status bny_op_cut_parts(banyan_op *op, size_t limit);

bny_op_part bny_op_part_of(const banyan_op *op, int64_t index);

/* Returns the next part that may have rows, after one without rows; op->nparts if there is none. */
int64_t bny_op_part_after(const banyan_op *op, int64_t index);

/* Returns where a part lies in the operation's memory. Each start of a part calls it, so no part runs with values from
 * planning time. Hot. */
bny_binding bny_op_binding(const banyan_op *op, const bny_op_part *part);

/* For a combine within a kernel: makes its parameter for the request, and sets which rows are valid. */
banyan_status bny_op_make_within(const banyan_op *op, const bny_request *request, bny_device_combine *combine);
void bny_op_set_valid_within(const banyan_op *op, bny_device_combine *combine);

/* Plans again, after a change of op->slices. Collective. */
banyan_status bny_op_plan_again(banyan_op *op);

/* Gathers `bytes` bytes of each rank on all ranks: `all` is [nranks]. Collective, only for planning. */
banyan_status bny_op_gather(banyan_comm *comm, const void *mine, size_t bytes, void *all);

/* Runs the queue until `op` is complete; without `block`, as far as possible without waiting. */
banyan_status bny_op_progress(banyan_op *op, bool block);

/* Makes progress without waiting, before the caller's own work continues. */
banyan_status bny_op_advance(banyan_op *op);
