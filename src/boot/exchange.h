/* SPDX-License-Identifier: Apache-2.0
 * The caller's bootstrap with a deadline. Every layer that connects ranks exchanges its facts through this. Below are
 * functions that all bootstraps of this library use: deadlines, and names of ranks in error texts. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "base/status.h"

typedef struct bny_exchange {
  const banyan_bootstrap *bootstrap;
  int64_t deadline_ns; /* by bny_deadline_now() of the calling thread */
  uint64_t process;    /* its owner: the child of a fork takes no further part */
} bny_exchange;

/* All-gathers `bytes` bytes of each rank into `all`, in rank order. On failure base/status.h has the text. */
banyan_status bny_exchange_all(const bny_exchange *exchange, const void *mine, void *all, size_t bytes);

/* Writes the name of the interface over which the TCP bootstrap reached rank 0, or, on rank 0, was reached. It is ""
 * for a loopback interface, for another bootstrap, and if this rank reaches rank 0 through a rank of this node. */
enum { BNY_INTERFACE_BYTES = 16 };
void bny_exchange_interface(const banyan_bootstrap *bootstrap, char name[BNY_INTERFACE_BYTES]);

/* Every rank reports its own status and, if that is a failure, the thread's error text. Returns this rank's own
 * failure, or the first failure of the other ranks as "rank 2 <what>: <its text>". A rank that has failed waits for the
 * others for only a quarter of the remaining time. */
enum { BNY_REPORT_BYTES = 256 };
banyan_status bny_exchange_settle(const bny_exchange *exchange, banyan_status own, const char *what);
/* Does the same. *waits: whether this rank needs another round, and afterwards whether any rank does. */
banyan_status bny_exchange_settle_round(const bny_exchange *exchange, banyan_status own, const char *what, bool *waits);

/* An exchange among the ranks of each group, which uses all ranks. Groups may do different numbers of rounds.
 * All end together, in bny_group_exchange_end(). Blocks of all ranks have one size, so that a round needs no memory. */
enum { BNY_GROUP_BLOCK_BYTES = 1024 };
typedef struct bny_group_exchange {
  bny_exchange exchange; /* for the code that connects this group's ranks */
  banyan_bootstrap bootstrap;
  const bny_exchange *all;
  int32_t *ranks;       /* the ranks of this group, in order */
  uint64_t *sizes;      /* [nranks of all]: bytes of each rank in a round */
  char *blocks;         /* [nranks of all + 1] blocks; the last one is this rank's own */
  bool ended;           /* there are no groups yet, all ranks have ended, or one has failed */
  banyan_status status; /* the first failure of the exchange, on any rank */
} bny_group_exchange;

/* Takes memory. Local. The struct must not move until the exchange has ended. */
banyan_status bny_group_exchange_reserve(const bny_exchange *all, bny_group_exchange *group);
/* Local. group_of: the group of each rank. */
void bny_group_exchange_divide(bny_group_exchange *group, const int32_t *group_of);
/* Does both. */
banyan_status bny_group_exchange_begin(const bny_exchange *all, const int32_t *group_of, bny_group_exchange *group);
/* Call it after a failure too. Returns the failure of the exchange of all ranks. */
banyan_status bny_group_exchange_end(bny_group_exchange *group);

/* ---- for the bootstraps of this library -------------------------------------------------------------------------- */

/* The meaning of a timeout of 0. */
#define BNY_BOOT_DEFAULT_TIMEOUT_NS ((int64_t)30 * 1000 * 1000 * 1000)

/* Sets the text of a wrong setting or argument, and returns BANYAN_ERR_ARGUMENT. The format is a literal. */
#define bny_boot_reject(...) bny_fail(BANYAN_ERR_ARGUMENT, "banyan_env_create: " __VA_ARGS__)

/* Returns the moment timeout_ns from now; 0 or less means the default. It never overflows. */
int64_t bny_boot_deadline_ns(int64_t timeout_ns);

/* Rejects the child of a fork, whose object was made by its parent `process` (a number of bny_process()). */
banyan_status bny_boot_check_process(uint64_t process);

/* Appends "rank 3" or "ranks 2, 3 and 5" for the ranks whose flag equals `wanted`. Long lists end in "and 9 more". */
void bny_boot_append_ranks(char *text, size_t bytes, size_t *length, const bool *flags, int32_t nranks, bool wanted);
