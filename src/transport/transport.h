/* SPDX-License-Identifier: Apache-2.0
 *
 * A transport moves messages between the ranks of one communicator and tells how they fare. It is one-sided: the owner of
 * a slot makes it visible to peers with a signal, a peer polls the signal and then reads. Nothing here waits, allocates,
 * locks or enters the kernel, but for connect, close and the functions that say so.
 *
 * A run is one execution of a plan, numbered by an epoch that all ranks count alike. Its tag is the epoch in the upper
 * half and a hash of the call in the lower: the signal that makes a message visible carries it, so that a peer sees at
 * once if the sender is in another call. Epoch e uses half e & 1 of the arena.
 */
#ifndef BNY_TRANSPORT_H
#define BNY_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

enum { BNY_LINE_BYTES = 64, BNY_CALL_WORDS = 24 };

typedef _Atomic uint64_t bny_signal;

/* What a rank tells about itself; written by its owner alone, one cache line. */
typedef struct bny_rank_line {
  _Alignas(BNY_LINE_BYTES) bny_signal started; /* tag of the run it is in, or was in last */
  bny_signal done;                             /* epoch of the last run that it finished: it reads nothing older */
  bny_signal waiting;                          /* 0, or (peer + 1) << 32 | slot that it has waited for some time */
  bny_signal left;                             /* 1 once it destroyed its communicator */
} bny_rank_line;

/* The first failure of a communicator, as one word that any rank can set once for all: 0 while all is well. */
static inline uint64_t bny_fault_pack(banyan_status status, int32_t culprit, int32_t reporter) {
  return (uint64_t)status << 56 | (uint64_t)(uint32_t)(culprit + 1) << 28 | (uint64_t)(uint32_t)(reporter + 1);
}
static inline banyan_status bny_fault_status(uint64_t fault) { return (banyan_status)(fault >> 56); }
static inline int32_t bny_fault_culprit(uint64_t fault) { return (int32_t)(fault >> 28 & 0xfffffff) - 1; }
static inline int32_t bny_fault_reporter(uint64_t fault) { return (int32_t)(fault & 0xfffffff) - 1; }

typedef struct bny_transport bny_transport;

typedef struct bny_transport_ops {
  const char *name;
  /* Addresses of a half: of this rank's outbox, of a peer's as far as this rank reads it, of a peer's signal of a slot. */
  char *(*outbox)(bny_transport *transport, int half);
  const char *(*peer_outbox)(bny_transport *transport, int32_t peer, int half);
  const bny_signal *(*signal)(bny_transport *transport, int32_t peer, int32_t slot, int half);
  /* Makes a slot of this rank's outbox visible to peers. */
  void (*send)(bny_transport *transport, uint64_t tag, int32_t slot, const int32_t *peers, int32_t npeers);
  bny_rank_line *(*line)(bny_transport *transport, int32_t rank);
  /* BNY_CALL_WORDS words that describe the call a rank is in; the owner writes its own. */
  bny_signal *(*call)(bny_transport *transport, int32_t rank);
  /* The fault word shared by all ranks. */
  bny_signal *(*fault)(bny_transport *transport);
  /* Waits up to sleep_ns (in the kernel) for any of the ranks to die. Returns the lowest rank known to have died without
   * having left, -1 if none. */
  int32_t (*sleep)(bny_transport *transport, int64_t sleep_ns);
  bool (*is_dead)(bny_transport *transport, int32_t rank);
  void (*close)(bny_transport *transport);
} bny_transport_ops;

struct bny_transport {
  const bny_transport_ops *ops;
  int32_t rank, nranks;
  size_t half_bytes;  /* of an outbox */
  int32_t slots_max;  /* per rank */
};

/* The exchange that connects use: the caller's bootstrap with a deadline. status.h has the text on failure. */
typedef struct bny_exchange {
  const banyan_bootstrap *bootstrap;
  int64_t deadline_ns; /* on the monotonic clock */
} bny_exchange;

banyan_status bny_exchange_all(const bny_exchange *exchange, const void *mine, void *all, size_t bytes);

/* Facts gathered from all ranks, and what was agreed from them. */
typedef struct bny_arena_config {
  size_t half_bytes;
  int32_t slots_max;
} bny_arena_config;

/* Ranks of one process: plain memory. */
banyan_status bny_loop_connect(const bny_exchange *exchange, const bny_arena_config *config, bny_transport **transport);

/* Processes of one host: an unnamed memory file handed from rank 0 to the others over a Unix socket. */
banyan_status bny_shm_connect(const bny_exchange *exchange, const bny_arena_config *config, bny_transport **transport);

#endif
