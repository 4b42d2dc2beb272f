/* SPDX-License-Identifier: Apache-2.0
 *
 * A transport moves messages between the ranks of one communicator and tells how they fare. It is one-sided: the owner of
 * a slot makes it visible to peers with a signal, a peer polls the signal and then reads. Nothing here waits, allocates,
 * locks or enters the kernel, but for connect, close and the functions that say so.
 *
 * Ranks that share memory read each other's there. Between hosts a message is copied into memory of each receiver, a mirror
 * of the sender's outbox, and the functions below return addresses in it; such a transport also has the functions at the
 * end of bny_transport_ops, which are NULL elsewhere.
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
  bny_signal suspect;                          /* between hosts: 0, or 1 + the rank that holds it up in the end */
  bny_signal looks;                            /* how often it has looked around while it waited: it is not stopped */
} bny_rank_line;

/* The first failure of a communicator, as one word that any rank can set once for all: 0 while all is well. */
static inline uint64_t bny_fault_pack(banyan_status status, int32_t culprit, int32_t reporter) {
  return (uint64_t)status << 56 | (uint64_t)(uint32_t)(culprit + 1) << 28 | (uint64_t)(uint32_t)(reporter + 1);
}
static inline banyan_status bny_fault_status(uint64_t fault) { return (banyan_status)(fault >> 56); }
static inline int32_t bny_fault_culprit(uint64_t fault) { return (int32_t)(fault >> 28 & 0xfffffff) - 1; }
static inline int32_t bny_fault_reporter(uint64_t fault) { return (int32_t)(fault & 0xfffffff) - 1; }

/* A message that came from another host, as its sender says: where in the sender's half, and how long. */
typedef struct bny_landing {
  uint64_t tag, offset, bytes;
} bny_landing;

/* Mail: a few bytes of each rank for all others, in rounds that all count alike; it goes on when the communicator has
 * failed. A rank has a place for even and one for odd rounds: who posts in a round has read what it wanted of the one
 * before. */
enum { BNY_MAIL_BYTES = 8192 - 16 };

/* Ranks of a communicator, at most: a set of them, a bit each, is one mail. */
enum { BNY_RANKS_MAX = 8 * BNY_MAIL_BYTES };

typedef struct bny_mail {
  bny_signal round; /* stored last */
  uint32_t kind, bytes;
  char text[BNY_MAIL_BYTES];
} bny_mail;

typedef struct bny_transport bny_transport;

typedef struct bny_transport_ops {
  const char *name;
  /* Addresses of a half: of this rank's outbox, of a peer's as far as this rank reads it, of a peer's signal of a slot. */
  char *(*outbox)(bny_transport *transport, int half);
  const char *(*peer_outbox)(bny_transport *transport, int32_t peer, int half);
  const bny_signal *(*signal)(bny_transport *transport, int32_t peer, int32_t slot, int half);
  /* Makes a slot of this rank's outbox, `bytes` at `offset` of the tag's half, visible to peers. */
  void (*send)(bny_transport *transport, uint64_t tag, int32_t slot, size_t offset, size_t bytes, const int32_t *peers,
               int32_t npeers);
  bny_rank_line *(*line)(bny_transport *transport, int32_t rank);
  /* BNY_CALL_WORDS words that describe the call a rank is in; the owner writes its own. */
  bny_signal *(*call)(bny_transport *transport, int32_t rank);
  /* The fault word shared by all ranks. */
  bny_signal *(*fault)(bny_transport *transport);
  /* Waits up to sleep_ns (in the kernel) for any of the ranks to die. Returns the lowest rank known to have died without
   * having left, -1 if none. */
  int32_t (*sleep)(bny_transport *transport, int64_t sleep_ns);
  bool (*is_dead)(bny_transport *transport, int32_t rank);
  /* Of rounds of this parity: the owner writes its own, the others read it. */
  bny_mail *(*mail)(bny_transport *transport, int32_t rank, int half);
  void (*close)(bny_transport *transport);

  /* ---- of transports whose peers do not share memory; NULL elsewhere ---- */

  /* Moves what is under way; called wherever a rank polls. Enters the kernel. */
  void (*progress)(bny_transport *transport);
  /* True for ranks of this host: what they do is seen without progress. */
  bool (*is_near)(bny_transport *transport, int32_t rank);
  /* Of the message whose signal is seen: the receiver compares it with its plan. NULL if the rank is near. */
  const bny_landing *(*landing)(bny_transport *transport, int32_t peer, int32_t slot, int half);
  /* Makes memory for what a peer will send, before its addresses are asked for. */
  banyan_status (*admit)(bny_transport *transport, int32_t peer);
  /* True once messages can go to this peer and come from it, without its or this rank's help; else works towards it. */
  bool (*reach)(bny_transport *transport, int32_t peer);
  /* True once all that was sent has gone out, and is no longer read from this rank's memory. Else *peer (unless NULL) is the
   * rank that takes nothing; to find it, peers are asked. */
  bool (*settled)(bny_transport *transport, int32_t *peer);
  /* Sends this rank's mail of that parity to a rank, which may be near. */
  void (*post)(bny_transport *transport, int32_t rank, int half);
  /* Tells peers which run this rank has finished: those that sent to it and got nothing back. */
  void (*acknowledge)(bny_transport *transport, const int32_t *peers, int32_t npeers);
  /* True if what line() and call() say of a rank is recent; else asks it, if it is connected and has not been asked. One
   * that stays silent is stopped, or elsewhere. */
  bool (*ask)(bny_transport *transport, int32_t rank);
  /* Tells all peers of the fault. Any thread. Waits so long at most until it has gone out; with 0 it waits for nobody: what a
   * socket does not take at once goes out in later progress. */
  void (*spread)(bny_transport *transport, int64_t patience_ns);
} bny_transport_ops;

/* What the ranks of several hosts are connected by, the least of it; for prediction. */
typedef enum bny_network { BNY_NETWORK_NONE, BNY_NETWORK_TCP, BNY_NETWORK_RDMA } bny_network;

struct bny_transport {
  const bny_transport_ops *ops;
  int32_t rank, nranks;
  size_t half_bytes;  /* of an outbox */
  int32_t slots_max;  /* per rank */
  bny_network network;
  bool takes_cuda; /* between hosts: the network library of every rank moves memory of CUDA devices */
  bool puts; /* between hosts: messages are put into memory of the receiver, which takes no part */
  /* Between hosts: what is sent lies in these instead, by half, in memory that is not the transport's. */
  const char *outboxes[2];
  bool sends_cuda; /* they are memory of a CUDA device */
  uint64_t bytes_between_hosts; /* payload that this rank has given to the network so far */
  int64_t recent_ns;  /* who told of itself within this time is not taken to be stopped; the more, the longer one waits */
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

/* Several hosts: memory of the host among its own ranks, UCX between hosts. host_of by rank: numbers of hosts. one_process:
 * the ranks of every host are threads of one process. */
typedef struct bny_net_config {
  bny_arena_config arena;
  const int32_t *host_of;
  bool one_process;
  const char *put; /* BANYAN_UCX_PUT, of this rank; NULL: the default */
} bny_net_config;

banyan_status bny_net_connect(const bny_exchange *exchange, const bny_net_config *config, bny_transport **transport);

/* Local: as snprintf, what ranks of several hosts would be connected by, which is loaded for it. If it is lacking, the thread's
 * error says why. */
banyan_status bny_net_describe(char *text, size_t bytes);

#endif
