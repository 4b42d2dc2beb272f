/* SPDX-License-Identifier: Apache-2.0
 * Shared by the files that make the arenas of a group. */
#ifndef BNY_DEVICE_ARENA_STEPS_H
#define BNY_DEVICE_ARENA_STEPS_H

#include "device/arena.h"

enum { BNY_ARENAS_WHY_BYTES = 252 };

/* The report of each rank after each step. */
typedef struct bny_arenas_report {
  int32_t status;
  char why[BNY_ARENAS_WHY_BYTES];
} bny_arenas_report;

typedef struct bny_arenas_work {
  bny_arenas *arenas;
  const bny_exchange *exchange;
  const bny_arenas_config *config;
  bny_arenas_report *reports; /* [nranks] */
  int64_t copies_deadline_ns; /* earlier than the exchange's, so that the others can still be told */
  void *stream;
  bny_device_words words; /* two cells out and two cells in per rank */
  uint64_t epoch;         /* of the patterns: another one in each attempt and each group */
  bool joint;             /* the last failure is known to all ranks, which may go on together */
} bny_arenas_work;

/* All ranks report how they fared. The first failure among them becomes that of all. */
banyan_status bny_arenas_settle(bny_arenas_work *work, banyan_status own);

/* Makes one attempt with one kind: arenas are made, exchanged, mapped and verified, or nothing is left. */
banyan_status bny_arenas_attempt(bny_arenas_work *work, bny_memory_kind kind);

/* Frees what an attempt has made. */
void bny_arenas_release(bny_arenas *arenas);

/* Steps of the verification. All ranks have done one before any begins the next. */
banyan_status bny_arenas_verify_write(bny_arenas_work *work);
banyan_status bny_arenas_verify_read(bny_arenas_work *work);
banyan_status bny_arenas_verify_clear(bny_arenas_work *work);

#endif
