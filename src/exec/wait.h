/* SPDX-License-Identifier: Apache-2.0
 * How a rank waits: it polls, then yields, then sleeps. It notices faults, deaths, disagreement and the deadline. */
#pragma once

#include "exec/exec.h"

typedef struct bny_patience {
  int64_t first_ns; /* when the run first had to wait; 0: not yet */
  int64_t begun_ns; /* the same, moved on by the time that does not count: the deadline counts from here */
  int64_t since_ns; /* when the current wait began; 0: there is none */
  int64_t seen_ns;  /* when this rank last looked; it may have been stopped since, like all others */
  int64_t sleep_ns;
  int64_t looked_ns; /* when deaths were last checked */
} bny_patience;

/* A wait for something other than a slot. */
enum {
  BNY_WAIT_DONE = -1, /* for the peer to finish run `epoch` - 2 */
  BNY_WAIT_PEER = -2, /* for the peer to accept the data sent to it */
  BNY_WAIT_REACH = -3 /* for the peer to be reached, before a run that needs all ranks */
};

/* Returns how much of the time since this rank last looked does not count for a deadline: all but an eighth of it. The
 * rank did not run then (SIGSTOP to a whole job, a suspended machine), and its peers may not have run either. A rank
 * that rarely looks still reaches its deadline, because an eighth counts each time. */
int64_t bny_wait_gap(int64_t seen_ns, int64_t now_ns, int64_t timeout_ns);

/* Runs one round of waiting for `slot` of `peer` after polling has failed. Returns BANYAN_OK to go on polling. */
banyan_status bny_wait_round(bny_exec *exec, const bny_notice *notice, bny_patience *patience, int32_t peer,
                             int32_t slot);

/* Does the same without yielding or sleeping, for callers that only test. Half a deadline counts between two tests, so
 * the third finds a missing rank, however far apart they are. */
banyan_status bny_wait_look(bny_exec *exec, const bny_notice *notice, bny_patience *patience, int32_t peer,
                            int32_t slot);

/* Ends the current wait, if there is one. Returns an error in the child of a fork, which a handler made meanwhile. */
banyan_status bny_wait_end(bny_exec *exec, bny_patience *patience);
