/* SPDX-License-Identifier: Apache-2.0
 * A transport moves messages between the ranks of one communicator and reports the state of ranks. It is one-sided: the
 * owner of a slot makes it visible to peers with a signal, and a peer polls the signal and then reads. No function
 * waits, allocates, locks or enters the kernel, except connect, close and functions whose comment says so.
 *
 * Ranks that share memory read each other's data there. Between nodes a message is copied into memory of each receiver,
 * a mirror of the sender's outbox, and the functions below return addresses in it. Such a transport also has the
 * functions at the end of bny_transport_ops, which are NULL in others.
 *
 * A run is one execution of a plan, numbered by an epoch that all ranks count alike. Its tag is the epoch in the upper
 * half and a hash of the call in the lower. The signal that makes a message visible carries the tag, so that a peer
 * notices at once if the sender is in another call. Epoch e uses half e & 1 of the arena. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "boot/exchange.h"

enum { BNY_LINE_BYTES = 64, BNY_CALL_WORDS = 40 };

typedef _Atomic uint64_t bny_signal;

/* The state that a rank reports; only its owner writes it. One cache line. */
typedef struct bny_rank_line {
  _Alignas(BNY_LINE_BYTES) bny_signal started; /* tag of its current or last run */
  bny_signal done;                             /* epoch of the last run that it finished; it no longer reads older
                                                * data */
  bny_signal waiting;                          /* 0, or (peer + 1) << 32 | slot of a long wait */
  bny_signal left;                             /* 1 after it has destroyed its communicator */
  bny_signal suspect;                          /* between nodes: 0, or 1 + the rank at the end of its chain of waits */
  bny_signal looks;                            /* count of polls while it waits, which shows that it is not stopped */
} bny_rank_line;

/* The first failure of a communicator, as one word that any rank can set once for all ranks; 0: none. From the top: a
 * bit for a rejected call, the status, the culprit, the reporter, and the run in which it failed, modulo 2^21, with a
 * bit that marks a run. */
enum { BNY_FAULT_RANK_BITS = 17, BNY_FAULT_EPOCH_BITS = 21 };

static inline uint64_t bny_fault_pack(banyan_status status, int32_t culprit, int32_t reporter) {
  return (uint64_t)status << 56 | (uint64_t)(uint32_t)(culprit + 1) << 39 | (uint64_t)(uint32_t)(reporter + 1) << 22;
}
static inline banyan_status bny_fault_status(uint64_t fault) { return (banyan_status)(fault >> 56 & 0x7f); }

/* Returns the same fault for a culprit that only rejected a call: it is alive, and a later communicator may include
 * it. */
static inline uint64_t bny_fault_of_rejection(uint64_t fault) { return fault | (uint64_t)1 << 63; }
static inline bool bny_fault_is_of_rejection(uint64_t fault) { return fault >> 63; }

static inline int32_t bny_fault_culprit(uint64_t fault) {
  return (int32_t)(fault >> 39 & ((1 << BNY_FAULT_RANK_BITS) - 1)) - 1;
}
static inline int32_t bny_fault_reporter(uint64_t fault) {
  return (int32_t)(fault >> 22 & ((1 << BNY_FAULT_RANK_BITS) - 1)) - 1;
}

/* Returns the same fault, with `epoch` as its run. */
static inline uint64_t bny_fault_in_run(uint64_t fault, uint64_t epoch) {
  uint64_t low = ((uint64_t)1 << (BNY_FAULT_EPOCH_BITS + 1)) - 1;
  return (fault & ~low) | (epoch << 1 & low) | 1;
}

/* Returns the same fault of bad data, for data in the culprit's result instead of its input. It has no run. */
static inline uint64_t bny_fault_of_result(uint64_t fault) { return fault | 2; }
static inline bool bny_fault_is_of_result(uint64_t fault) { return (fault & 3) == 2; }

/* True if the fault happened in a run after `epoch`. The rank that noticed it had then completed run `epoch`. */
static inline bool bny_fault_is_after(uint64_t fault, uint64_t epoch) {
  uint32_t ahead = (uint32_t)((fault >> 1) - epoch) << (32 - BNY_FAULT_EPOCH_BITS);
  return (fault & 1) && (int32_t)ahead > 0;
}

/* True if both are the same failure, and `fault` happened in an earlier run. */
static inline bool bny_fault_is_earlier(uint64_t fault, uint64_t than) {
  return fault >> 22 == than >> 22 && (fault & 1) && bny_fault_is_after(than, fault >> 1);
}

/* A message from another node as its sender describes it: offset in the sender's half, and length. */
typedef struct bny_landing {
  uint64_t tag, offset, bytes;
} bny_landing;

/* Rendezvous messages: a few bytes from each rank for all others, in rounds that all ranks count alike, even after the
 * communicator has failed. A rank has one message for even and one for odd rounds: a rank that posts in a round has
 * read the messages that it needs from the previous round. */
enum { BNY_RENDEZVOUS_BYTES = 16384 - 16 };

/* The most ranks of a communicator: two bits for each, and 16 bytes more, fit one rendezvous message. */
enum { BNY_RANKS_MAX = 4 * (BNY_RENDEZVOUS_BYTES - 16) };
_Static_assert(BNY_RANKS_MAX < 1 << BNY_FAULT_RANK_BITS, "a fault names a rank");

typedef struct bny_rendezvous {
  bny_signal round;      /* stored last */
  _Atomic uint32_t kind; /* a rank that was left out may read it while it changes */
  uint32_t bytes;
  char text[BNY_RENDEZVOUS_BYTES];
} bny_rendezvous;

/* Rejected calls that a rank knows, its own and others'; see rejection.h. */
enum { BNY_REJECTIONS = 8, BNY_REJECTION_WORDS = 32 };

typedef struct bny_rejections {
  bny_signal entries[BNY_REJECTIONS][BNY_REJECTION_WORDS];
} bny_rejections;

struct bny_rejection;

typedef struct bny_transport bny_transport;

typedef struct bny_transport_ops {
  const char *name;
  /* Addresses in a half: of a peer's outbox as this rank reads it, and of a peer's signal of a slot. */
  const char *(*peer_outbox)(bny_transport *transport, int32_t peer, int half);
  const bny_signal *(*signal)(bny_transport *transport, int32_t peer, int32_t slot, int half);
  /* Makes a slot of this rank's outbox, `bytes` at `offset` of the tag's half, visible to peers. */
  void (*send)(bny_transport *transport, uint64_t tag, int32_t slot, size_t offset, size_t bytes, const int32_t *peers,
               int32_t npeers);
  bny_rank_line *(*line)(bny_transport *transport, int32_t rank);
  /* BNY_CALL_WORDS words that describe a rank's current call; only the owner writes its own. */
  bny_signal *(*call)(bny_transport *transport, int32_t rank);
  /* Waits up to sleep_ns (in the kernel) for any rank to die. Returns the lowest rank known to have died without having
   * left, or -1. */
  int32_t (*sleep)(bny_transport *transport, int64_t sleep_ns);
  bool (*is_dead)(bny_transport *transport, int32_t rank);
  /* Returns true if the process of a rank has certainly ended. A dead rank of another node may only be unreachable. */
  bool (*has_ended)(bny_transport *transport, int32_t rank);
  /* The place for rounds of this parity: the owner writes its own, the others read it. */
  bny_rendezvous *(*rendezvous)(bny_transport *transport, int32_t rank, int half);
  /* Returns a number that changes as long as the rank polls while it waits. */
  uint64_t (*heartbeat)(bny_transport *transport, int32_t rank);
  /* Returns the rejected calls that a rank of this node knows; NULL for other ranks. */
  bny_rejections *(*rejections)(bny_transport *transport, int32_t rank);
  void (*close)(bny_transport *transport);

  /* ---- for transports whose peers do not share memory; NULL in others --- */

  /* Advances pending communication, wherever a rank polls. Enters the kernel. */
  void (*progress)(bny_transport *transport);
  /* Returns the message whose signal was seen, which the receiver compares with its plan; NULL for a rank of this
   * node. */
  const bny_landing *(*landing)(bny_transport *transport, int32_t peer, int32_t slot, int half);
  /* Makes memory for a peer's messages. It must precede any request for their addresses. */
  banyan_status (*prepare_receive)(bny_transport *transport, int32_t peer);
  /* Returns true once messages can travel to this peer and back without help of either rank. Otherwise advances the
   * connection. */
  bool (*connect)(bny_transport *transport, int32_t peer);
  /* Returns true if this rank and a rank of another node have exchanged messages, and still can. */
  bool (*is_connected)(bny_transport *transport, int32_t rank);
  /* Returns why a rank has never been connected to this one; NULL: it was. *is_ours: the fault is on this side, and
   * the other side is unknown. */
  const char *(*connect_error)(bny_transport *transport, int32_t rank, bool *is_ours);
  /* Returns true once all sent data has gone out and is no longer read from this rank's memory. Otherwise *peer (unless
   * NULL) is the rank that accepts no data. To find it, this rank asks its peers. */
  bool (*flushed)(bny_transport *transport, int32_t *peer);
  /* Sends this rank's rendezvous message of that parity to a rank, also on this node. */
  void (*post)(bny_transport *transport, int32_t rank, int half);
  /* From now on until close(), sends the message of that parity to a rank of another node whenever this rank hears from
   * it. A thread does that, which sleeps meanwhile. The caller runs nothing else on this transport. */
  void (*tell)(bny_transport *transport, int32_t rank, int half);
  /* Reports the last finished run to peers that sent to this rank and got nothing back. */
  void (*acknowledge)(bny_transport *transport, const int32_t *peers, int32_t npeers);
  /* Reports a rejected call to all connected peers. */
  void (*forward_rejection)(bny_transport *transport, const struct bny_rejection *rejection);
  /* Returns true if line() and call() of a rank are recent. Otherwise asks that rank, if it is connected and not asked
   * yet. A rank that stays silent is stopped or does something else. */
  bool (*probe)(bny_transport *transport, int32_t rank);
  /* Reports the fault to all peers, from any thread. It waits at most patience_ns until the report is sent. With 0 it
   * does not wait: a later progress sends data that a socket does not accept at once. */
  void (*broadcast_fault)(bny_transport *transport, int64_t patience_ns);
} bny_transport_ops;

/* The slowest network that connects ranks of several nodes; for prediction. */
typedef enum bny_network { BNY_NETWORK_NONE, BNY_NETWORK_TCP, BNY_NETWORK_RDMA } bny_network;

struct bny_transport {
  const bny_transport_ops *ops;
  int32_t rank, nranks;
  int32_t *place;       /* [nranks]: number among the ranks of this node; -1: on another node. NULL: all are here */
  char *halves[2];      /* this rank's outbox */
  size_t half_bytes;    /* bytes of a half */
  int32_t slots_max;    /* per rank */
  bny_signal *fault;    /* the fault word that all ranks share */
  bny_signal *rejected; /* number of entries that this rank has made in its rejected calls */
  bny_network network;
  bool puts;                    /* between nodes: messages are put into the receiver's memory, without its help */
  uint64_t bytes_between_nodes; /* payload that this rank has sent over the network so far */
  char devices[256];            /* between nodes: this rank's network devices, and the setting or fact that chose
                                 * them */
  bny_transport *next;          /* the owner's list of kept transports */
  int64_t recent_ns; /* a rank that answered within this time counts as alive; it grows with the time waited */
};

/* True for ranks of this node, whose actions are visible without progress. */
static inline bool bny_transport_is_same_node(const bny_transport *transport, int32_t rank) {
  return !transport->place || transport->place[rank] >= 0;
}

/* Sizes that follow from the facts of all ranks. */
typedef struct bny_arena_config {
  size_t half_bytes;
  int32_t slots_max;
} bny_arena_config;

/* Ranks of one process: plain memory. */
banyan_status bny_loop_connect(const bny_exchange *exchange, const bny_arena_config *config, bny_transport **transport);

/* Connects processes of one node: rank 0 passes an unnamed memory file to the others over a Unix socket. */
banyan_status bny_shm_connect(const bny_exchange *exchange, const bny_arena_config *config, bny_transport **transport);

/* Several nodes: ranks of one node use its memory, and UCX connects nodes. node_of holds the node of each rank.
 * one_process: the ranks of every node are threads of one process. */
typedef struct bny_net_config {
  bny_arena_config arena;
  const int32_t *node_of;
  bool one_process;
  const char *put;       /* BANYAN_UCX_PUT of this rank; NULL: the default */
  const char *interface; /* BANYAN_INTERFACE, likewise */
  const char *devices;   /* BANYAN_NET_DEVICES, likewise */
  const char *reached;   /* the interface by which the bootstrap reached rank 0; NULL or "": unknown */
  const char *shared;    /* interfaces whose address another node has as well, such as "docker0,virbr0"; NULL: none */
  const char *nearest;   /* NICs nearest to this rank, such as "mlx5_0,mlx5_1"; NULL: unknown */
} bny_net_config;

banyan_status bny_net_connect(const bny_exchange *exchange, const bny_net_config *config, bny_transport **transport);

/* Loads the library that would connect ranks of several nodes, and prints it like snprintf(). Local. If the library is
 * missing, the thread's error says why. */
banyan_status bny_net_describe(char *text, size_t bytes);
