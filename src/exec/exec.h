/* SPDX-License-Identifier: Apache-2.0
 * The executor: runs plans step by step on the host. It knows steps and slots, but no algorithm.
 *
 * Reuse of memory. Run e writes its slots into half e & 1 of the arena, where run e - 2 wrote. So before run e writes,
 * all peers that received slots in run e - 2 must have finished it. A message of run e - 1 from a peer proves that. If
 * there is no such message, the peer's `done` is read. A root, for example, sends nothing back.
 *
 * Within its half a run begins where the previous run in that half ended, and wraps around, because a line that peers
 * have read recently is expensive to write again. On a Zen 4, 16.6 KB to one peer take 1.7 us at a fixed place and 1.0
 * us with rotation. */
#pragma once

#include "exec/notice.h"
#include "exec/record.h"
#include "plan/slice.h"
#include "select.h"

/* Row (token, head) begins at `at` + token * token_stride + head * head_stride. Strides are in bytes. */
typedef struct bny_strided {
  char *at;
  int64_t token_stride, head_stride;
} bny_strided;

/* The box at (token, head). */
static inline bny_strided bny_strided_at(const bny_strided *rows, int64_t token, int64_t head) {
  return (bny_strided){rows->at + token * rows->token_stride + head * rows->head_stride, rows->token_stride,
                       rows->head_stride};
}

/* The text that peers report about a rank whose statistics are BANYAN_ERR_DATA. */
#define BNY_EXEC_NO_ROW "passed invalid statistics: NaN or infinite without being declared empty, or a negative d"

/* The text of an index, a token, a head and two ranks of a selection. */
#define BNY_EXEC_TWICE                                                                                        \
  "index %" PRId64 " of token %d, head %d is offered twice, by rank %d and rank %d: each key belongs to one " \
  "rank, and is offered once"

typedef struct bny_failure {
  banyan_status status; /* BANYAN_OK while all is well */
  int32_t culprit;      /* -1: none known */
  char text[512];
} bny_failure;

/* The choice of stores for messages that peers read (payload.c). */
typedef struct bny_store {
  float ticks_per_line[2]; /* moving means: plain, streaming */
  uint32_t count;
  bool stream;
} bny_store;

/* The ranks that received slots in the last run of a half. */
typedef struct bny_readers {
  uint64_t epoch;
  int32_t count;
  int32_t *ranks;
} bny_readers;

typedef struct bny_exec {
  uint64_t process; /* the process that made it; the child of a fork writes nothing that peers read */
  bny_transport *transport;
  const bny_kernels *kernels;
  bny_signal *fault;
  bny_rank_line *line;                        /* this rank's line; `call` is this rank's too */
  bny_signal *call;                           /* BNY_CALL_WORDS words */
  void (*progress)(bny_transport *transport); /* NULL: the transport needs none */
  uint64_t epoch;                             /* the last run begun */
  uint32_t history;     /* hash of the calls of all runs so far: the lower half of the last run's tag */
  uint64_t *known_done; /* [nranks]: epochs that peers are known to have finished */
  uint64_t *agreed;     /* [nranks]: the last epoch of a message from the peer, which had the same history until then */
  bny_readers readers[2];
  bny_readers owed;  /* the peers from which the last run received; the next run acknowledges it to them */
  uint64_t *sent_to; /* [nranks]: the last epoch that sends to the peer, which acknowledges earlier runs */
  uint32_t spins;    /* polls before the first yield */
  int64_t yield_ns;  /* yields before the first sleep */
  int64_t sleep_ns;  /* the longest sleep before the next look */
  int64_t timeout_ns;
  size_t round_bytes; /* the range over both halves through which small runs rotate; 0 where messages are copied, which
                       * is fastest in warm memory */
  bny_store store;
  bny_record record;
  const struct bny_run *run; /* under way, or NULL */
  int64_t ended_ns;          /* with `progress`: when this rank's last run ended; 0: none has */
  bny_signal *rejected;      /* the transport's count of rejected calls */
  uint32_t history_before;   /* `history` before the run in which ranks compare calls */
  bny_failure failure;
  _Atomic int reason_state; /* 0: no reason of an abort, 1: being written, 2: complete */
  char reason[160];
} bny_exec;

typedef struct bny_exec_config {
  const bny_kernels *kernels;
  bool oversubscribed; /* more ranks than cores: polls are short, because the rank that is waited for may need this
                        * core */
  bool on_quota;       /* polls and yields are short, because they use up the CPU time of a quota */
  int64_t timeout_ns;
  size_t cache_bytes; /* the largest second-level cache among the ranks: identical on all */
  bny_record_config record;
} bny_exec_config;

banyan_status bny_exec_make(bny_transport *transport, const bny_exec_config *config, bny_exec **exec);
void bny_exec_free(bny_exec *exec); /* NULL is allowed; not the transport */

/* The failure of each call on an executor in the child of a fork. Its check: BANYAN_OK in the process that made it. */
extern const bny_failure bny_exec_failure_of_child;
banyan_status bny_exec_check_process(const bny_exec *exec);

/* Fails the communicator on all ranks with this rank's text, unless it has already failed. Returns the status. */
banyan_status bny_exec_fail(bny_exec *exec, banyan_status status, int32_t culprit, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Fails the communicator because the type of the culprit's result cannot hold `row`. Only the culprit knows the row. */
banyan_status bny_exec_fail_result(bny_exec *exec, int32_t culprit, const char *row);

/* Fails the communicator with BANYAN_ERR_ABORTED. Any thread; it does not block. */
void bny_exec_abort(bny_exec *exec, const char *reason);

/* Does the same with another status and culprit. */
void bny_exec_stop(bny_exec *exec, banyan_status status, int32_t culprit);

/* Adopts a failure from this rank's other executor and reports it to peers. No effect if this executor has already
 * failed. */
banyan_status bny_exec_adopt(bny_exec *exec, const bny_failure *failure);

/* Returns the failure that this rank knows, after a look at the shared fault word, and sets the thread's error text. A
 * failure that spares the current run is returned once that run is complete. */
banyan_status bny_exec_check(bny_exec *exec, const bny_notice *notice);

/* Rejects the next collective call on behalf of this rank, with the text of its error. Nothing is sent. Peers that
 * compare calls drop the call and continue with the next. Peers in a run of it end the communicator. */
void bny_exec_reject(bny_exec *exec, banyan_status status, const char *why);

/* Returns BANYAN_OK unless a peer has rejected the current run. Reads memory of this node. */
banyan_status bny_exec_look_for_rejections(bny_exec *exec, const bny_notice *notice);

/* Called if this rank and the peer have other histories. Fails the communicator if that is because one of them has
 * rejected a run that the other completed without its data; otherwise returns BANYAN_OK. */
banyan_status bny_exec_blame_rejection(bny_exec *exec, int32_t peer);

/* Functions for a run that only exchanges data between nodes for the kernels of a device. Its thread calls them. */
typedef struct bny_proxy_ops {
  /* Returns true if kernels have made the slot or, with -1, have ended the run. Hot. */
  bool (*is_made)(void *context, int32_t slot);
  /* Informs kernels that a message has arrived. Hot. */
  void (*notify)(void *context, int32_t message);
  /* Returns the status of the kernels. Called while the run waits. */
  banyan_status (*look)(void *context);
  /* Returns the rank that delays the kernels, or this rank if no other is known. */
  int32_t (*suspect)(void *context);
} bny_proxy_ops;

/* The caller's memory for one run. Plans have coordinates of the whole call. These fields state where in them the
 * memory begins. */
typedef struct bny_binding {
  const banyan_partial *in, *out; /* combine */
  bny_strided mine, all;          /* all-gather of heads; input and result of sums */
  banyan_dtype dtype;             /* type of sums */
  int32_t in_heads;               /* heads of `mine` */
  bny_lists lists;                /* selections */
  int32_t heads;                  /* heads of the call, for rows of lists */
  const bny_call *call;           /* sums: which columns a row has */
  bool in_place;                  /* `mine` is this rank's range of `all` */
  int32_t in_token0, in_head0;    /* the row at which `in` or `mine` begins */
  int32_t out_token0, out_head0;  /* the row at which `out` begins */
  int32_t tokens_most;            /* an upper bound for every run of the call */
  int32_t token_owners;           /* see bny_valid_tokens */
  int32_t token0, tokens_planned; /* the box's tokens in the plan's request */
  const uint8_t *valid_tokens;    /* [tokens of the call]; 0: rows of the token are empty and not read. NULL: none */
  const banyan_valid_rows *valid; /* the valid rows of a run on a device; NULL: as all zeros */
  int32_t tokens;                 /* for a run on a device, unless `valid` leads to their number */
  bool keeps_empty_rows;          /* empty rows of the result are not written */
  uint64_t *saturated;            /* a run on a device adds the values that saturate; an address there, or NULL */
  const char *in_bytes;           /* other collectives: address of byte in_byte0 */
  char *out_bytes;                /* address of byte out_byte0 */
  size_t in_byte0, out_byte0;
  /* all-gather in parts: piece r of the result, of piece_counts[r] bytes, lies at out_bytes + piece_offsets[r] */
  const size_t *piece_counts, *piece_offsets;
  const bny_proxy_ops *proxy; /* NULL: the run moves memory itself. Otherwise its plan has only SEND and WAIT steps */
  void *proxy_context;
} bny_binding;

typedef struct bny_run bny_run;

/* Binds a plan to memory: all addresses for both halves of the arena. Peers can read `notice`. Plan and binding must
 * outlive the run. Between runs the caller's addresses and strides in the binding may change, its other fields may
 * not. */
banyan_status bny_run_make(bny_exec *exec, const bny_plan *plan, const bny_notice *notice, const bny_binding *binding,
                           bny_run **run);
void bny_run_free(bny_run *run); /* NULL is allowed */

/* Replaces the notice of the plan, for the barrier that compares calls. */
void bny_run_relabel(bny_run *run, const bny_notice *notice);

/* Waits until the peers of `of` can be reached, with the deadline of `run`, which has begun and is a run of all ranks.
 * `of` may belong to another executor with the same ranks. Returns at once if ranks share memory. */
banyan_status bny_run_reach(bny_run *run, const bny_run *of);

/* Sets which part of a call the next runs are, if slices are boxes of rows. `tokens` is that of the whole call. The
 * shifts are the distance from the part that the plan was made for; no owner's first row may lie between the two parts.
 * The initial part is that of the plan, with all tokens. Allocates nothing, and costs nothing if both parts have all
 * their tokens. */
void bny_run_set_part(bny_run *run, int32_t tokens, int32_t token_shift, int32_t head_shift);

/* Begins the next epoch. No other run of this communicator may be active. */
void bny_run_begin(bny_run *run);

/* The traffic of a run, and the first row of its result that is lost: the caller's type cannot hold its statistics, or
 * its list has an index twice. All other rows are right, and no other rank needs to know. */
typedef struct bny_run_report {
  uint64_t bytes_sent, messages_sent; /* payload */
  uint64_t saturated;                 /* finite input values that a lossy wire cannot hold */
  uint64_t bytes_between_nodes;       /* the part of bytes_sent that a network took */
  bool lost;
  int32_t lost_token, lost_head; /* in the whole call */
  bny_doubled doubled;
} bny_run_report;

/* Continues until the end, or until a message is missing; with `block` it waits for that. On BANYAN_OK *report is NULL
 * unless the run is complete. */
banyan_status bny_run_progress(bny_run *run, bool block, const bny_run_report **report);

/* Called when the rank leaves a run for other work, and when it returns. That time does not count for the deadline. */
void bny_run_rest(bny_run *run);

/* Returns where the plan begins within a half, for runs between nodes. */
size_t bny_run_shift(const bny_run *run);

/* Returns the size of the part of this rank's arena that its runs use, in the order of use. */
uint64_t bny_run_arena_bytes(const bny_run *run);
