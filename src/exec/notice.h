/* SPDX-License-Identifier: Apache-2.0
 * The call that a rank is in, as words that peers can read. If ranks disagree, the error can therefore name the rank
 * and the field. */
#pragma once

#include "plan/plan.h"
#include "transport/transport.h"

/* Ranks first compare (AGREE), between nodes connect (CONNECT), then move data (RUN). */
typedef enum bny_phase { BNY_PHASE_AGREE, BNY_PHASE_RUN, BNY_PHASE_CONNECT } bny_phase;

typedef struct bny_notice {
  uint64_t words[BNY_CALL_WORDS];
  uint64_t hash; /* hash of all words except the number of tokens of a run */
  uint32_t tag;  /* hash of the words; with those of earlier calls it makes the lower half of the run's tag */
} bny_notice;

/* Makes the call for a run of all tokens. */
bny_notice bny_notice_make(const bny_request *request, const bny_plan *plan, bny_phase phase);

/* Changes the call to that of a run with `tokens` tokens. Hot. */
void bny_notice_set_tokens(bny_notice *notice, int32_t tokens);

bool bny_notice_is_comparison(const bny_notice *notice);

/* Returns the kind of the call, as the flight recorder notes it. */
uint8_t bny_notice_kind(const bny_notice *notice);

/* "combine", or "agree" while ranks compare; static. */
const char *bny_notice_name(const bny_notice *notice);

/* Publishes the call, and the tokens and the tag of this run, in this rank's words. If peers already have the call, it
 * stores two words. */
void bny_notice_publish(bny_signal *words, const bny_notice *notice, uint64_t epoch, int64_t tag);

/* Writes the first difference between the published call of `rank` and the call `other` of `other_rank`: "heads 32
 * there, 16 here" if that is this rank, else "heads 32 on rank 1, 16 on rank 2". Returns false if there is none. A rank
 * that waits for nobody in a run may already be in later calls, so tags and tokens of earlier runs are compared
 * first. */
bool bny_notice_difference(bny_transport *transport, int32_t rank, const bny_notice *other, int32_t other_rank,
                           char *text, size_t bytes);

/* True if both ranks remember a run in which their tags differed, or the tokens of one call. */
bool bny_notice_runs_differ(bny_transport *transport, int32_t rank, int32_t other_rank);

/* Returns what `rank` published last, to compare it with a third. */
bny_notice bny_notice_read(bny_transport *transport, int32_t rank);
