/* SPDX-License-Identifier: Apache-2.0
 * What the files of a share's making have in common. */
#ifndef BNY_DEVICE_SHARE_STEPS_H
#define BNY_DEVICE_SHARE_STEPS_H

#include "device/arena.h"

enum { BNY_SHARE_WHY_BYTES = 252 };

/* What each rank says after each step. */
typedef struct bny_share_report {
  int32_t status;
  char why[BNY_SHARE_WHY_BYTES];
} bny_share_report;

typedef struct bny_share_work {
  bny_share *share;
  const bny_exchange *exchange;
  const bny_share_config *config;
  bny_share_report *reports; /* [nranks] */
  int64_t copies_deadline_ns; /* earlier than the exchange's, so that the others can still be told */
  void *stream;
  bny_device_words words;    /* two cells out and two cells in per rank */
  uint64_t epoch;            /* of the patterns: another one in each attempt and each group */
  bool joint;                /* the last failure is known to all ranks, which may go on together */
} bny_share_work;

/* All tell how they fared; the first failure among them becomes that of all. */
banyan_status bny_share_settle(bny_share_work *work, banyan_status own);

/* Waits for what is on the work's stream, until the deadline of copies; marks the share stuck if it is late. */
banyan_status bny_share_wait(bny_share_work *work);

/* One try with one kind: arenas made, exchanged, mapped and verified, or nothing. */
banyan_status bny_share_attempt(bny_share_work *work, bny_memory_kind kind);

/* Frees what an attempt has made. */
void bny_share_release(bny_share *share);

/* Steps of the verification; all ranks have done one before any begins the next. */
banyan_status bny_share_verify_write(bny_share_work *work);
banyan_status bny_share_verify_read(bny_share_work *work);
banyan_status bny_share_verify_clear(bny_share_work *work);

#endif
