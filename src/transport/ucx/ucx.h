/* SPDX-License-Identifier: Apache-2.0
 * The transport `net` for several nodes: declarations for its files. docs/design.md#networks has the design: mirrors,
 * active messages and puts, waits and leaving.
 *
 * There is one worker per communicator. Any thread may abort, so a flag guards the worker; it is free except in that
 * case. Callbacks run inside progress and hold it. */
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include "transport/rejection.h"
#include "transport/transport.h"
#include "transport/ucx/devices.h"
#include "transport/ucx/library.h"

/* ---- messages, in the byte order of the nodes, which all share --------------------------------------------------- */

enum { BNY_NET_DATA = 1, BNY_NET_NOTE, BNY_NET_REPORT, BNY_NET_RENDEZVOUS, BNY_NET_OFFER, BNY_NET_REJECTION };
enum { BNY_NET_KINDS = BNY_NET_REJECTION + 1 };

/* Begins the header of every message. */
typedef struct bny_net_head {
  uint64_t cookie; /* identifies the communicator */
  uint64_t done;   /* the sender's line.done */
  int32_t rank;    /* the sender */
  int32_t kind;
} bny_net_head;

/* Header of a piece of a slot. */
typedef struct bny_net_data {
  bny_net_head head;
  uint64_t tag;
  uint64_t offset; /* where the message begins in the sender's half */
  uint64_t bytes;  /* length of the message */
  uint64_t first;  /* offset of the piece within it */
  int32_t slot;
  int32_t reserved;
} bny_net_data;

typedef enum bny_net_word {
  BNY_NET_ASK = 1,
  BNY_NET_ACKNOWLEDGE,
  BNY_NET_SLEEP, /* the sender waits for the receiver's `slot` of the run `tag` and sleeps: a put does not wake it */
  BNY_NET_WAKE   /* the slot has been put */
} bny_net_word;

typedef struct bny_net_note {
  bny_net_head head;
  uint64_t tag; /* SLEEP only; else 0 */
  int32_t slot; /* SLEEP only */
  int32_t word;
} bny_net_note;

/* The message that a rank waits for. */
typedef struct bny_net_wish {
  uint64_t tag; /* 0: nothing */
  int32_t rank, slot;
} bny_net_wish;

/* A rank's state as known to the sender. */
typedef struct bny_net_snapshot {
  int32_t rank; /* -1: the other fields are unset */
  int32_t reserved;
  uint64_t started, done, suspect, left;
  uint64_t call[BNY_CALL_WORDS];
} bny_net_snapshot;

enum { BNY_NET_SNAPSHOTS = 3 };

/* The number of rejected messages that are logged one by one. */
enum { BNY_NET_REJECTIONS_REPORTED = 4 };

typedef enum bny_net_occasion {
  BNY_NET_NEWS,    /* requested, or about a fault */
  BNY_NET_HELLO,   /* the first message to this peer */
  BNY_NET_GOODBYE, /* the last one; answered, so that the sender knows that all its data has arrived */
  BNY_NET_ANSWER   /* to a GOODBYE */
} bny_net_occasion;

typedef struct bny_net_report {
  bny_net_head head;
  uint64_t fault;
  int32_t occasion;
  int32_t reserved;
  bny_net_snapshot of[BNY_NET_SNAPSHOTS]; /* the sender; for a fault also the culprit and the reporter */
} bny_net_report;

/* Header of the text of a bny_rendezvous. */
typedef struct bny_net_rendezvous {
  bny_net_head head;
  uint64_t round;
  uint32_t kind;
  uint32_t reserved;
} bny_net_rendezvous;

/* A call that a rank rejected, as the sender knows. */
typedef struct bny_net_rejection {
  bny_net_head head;
  bny_rejection rejection;
} bny_net_rejection;

/* Header of a packed rkey, for the receiver's puts. */
typedef struct bny_net_offer {
  bny_net_head head;
  uint64_t address;
} bny_net_offer;

typedef union bny_net_message {
  bny_net_head head;
  bny_net_data data;
  bny_net_note note;
  bny_net_report report;
  bny_net_rendezvous rendezvous;
  bny_net_offer offer;
  bny_net_rejection rejection;
  uint64_t tag; /* the signal of a put */
} bny_net_message;

extern const size_t bny_net_header_bytes[BNY_NET_KINDS]; /* message.c, by kind */

/* ---- state ------------------------------------------------------------------------------------------------------- */

typedef struct bny_net bny_net;
enum { BNY_NET_INTERFACES_BYTES = 128 };

/* BANYAN_UCX_PUT; auto: over RDMA; emulated: wherever UCX has puts. */
typedef enum bny_net_put_wish { BNY_NET_PUT_AUTO, BNY_NET_PUT_OFF, BNY_NET_PUT_EMULATED } bny_net_put_wish;

/* A rank of another node. */
typedef struct bny_net_peer {
  bny_net *net;
  int32_t rank;
  ucp_ep_h endpoint; /* NULL: none yet */
  bool hello_sent, hello_received;
  bool expected; /* it will connect to this rank at some time */
  bool flushed;  /* the hello has gone out; over TCP the connection was established before */
  bool flushing; /* UCX is connecting, or sends the hello */
  bool dead;
  bool ended;              /* a reachable node has closed the connection, because the process ended */
  bool unreachable;        /* no endpoint could be made, and this rank is not the cause */
  bool lacks_memory;       /* this rank had no memory for a message to it */
  char trouble[384];       /* why it could not be connected; "": it was connected, or it is alive */
  bool broken;             /* it sent an invalid message: all further ones are ignored */
  bool wants_answer;       /* to its question or goodbye */
  bool parted;             /* it has answered this rank's goodbye */
  char *outbox;            /* mirror of both halves; NULL: none yet */
  bny_signal *signals;     /* [2][slots_max] */
  bny_landing *landings;   /* [2][slots_max]; `bytes` counts the received bytes until the message is complete */
  ucp_mem_h memory;        /* puts: the registered mirror */
  uint64_t remote;         /* puts: this rank's mirror there */
  void *offered;           /* puts: the key to `memory` as sent; UCX's memory */
  void *rkey_bytes;        /* puts: the received key to `remote`; owned. NULL: not received */
  ucp_rkey_h rkey;         /* NULL: not unpacked yet */
  bool takes_puts;         /* its endpoint supports puts; else it gets messages */
  bny_net_wish sleeps_for; /* puts: the slot of this rank for which it sleeps */
  int64_t asked_ns;        /* 0: no question is open */
  int64_t reported_ns;     /* time of its last report; 0: never */
  uint64_t reported_started;
  int32_t under_way; /* messages to it that UCX has not completed */
  int told;          /* 1 + the half of the rendezvous message that follows each answer; 0: none does */
} bny_net_peer;

/* A message being sent. UCX reads the header until it is sent. */
typedef struct bny_net_packet {
  struct bny_net_packet *next;
  bny_net_peer *peer;
  bool counts; /* the sender's run ends only after this is sent */
  void *text;  /* freed with the packet; NULL: none */
  bny_net_message of;
} bny_net_packet;

/* The time at which a rank of this node was last seen polling. */
typedef struct bny_net_watch {
  uint64_t looks;
  int64_t seen_ns;
} bny_net_watch;

struct bny_net {
  bny_transport transport; /* first */
  bny_transport *local;    /* window of this node's ranks */
  int32_t *locals;         /* by rank in the window: its rank */
  bny_net_watch *watches;  /* likewise */
  bny_net_peer **peers;    /* by rank; NULL: none yet */
  bny_net_peer **known;    /* the peers that exist, in the order of creation */
  int32_t nknown;
  bny_rank_line *lines;                         /* by rank, for other nodes: as last reported */
  bny_signal *calls;                            /* likewise, [nranks][BNY_CALL_WORDS] */
  char *addresses;                              /* by rank, each address_bytes long */
  char (*interfaces)[BNY_NET_INTERFACES_BYTES]; /* by rank: those of its node, such as "lo 127.0.0.1, eth0 10.0.0.1" */
  size_t address_bytes;
  uint64_t cookie;
  uint64_t process;
  bny_ucx ucx;
  ucp_context_h context;
  ucp_worker_h worker;
  int event_fd;
  bny_net_device_choice devices; /* the devices that this rank may use */
  bny_net_put_wish wish;         /* the puts that this rank asks for */
  bool puts;                     /* agreed by all */
  bool closes;                   /* no other call may follow */
  ucp_mem_h outbox_memory;       /* puts: this rank's registered outbox; NULL: registered at first use */
  bny_net_wish reported_sleep;   /* puts: the last sleep that was reported to a peer */
  size_t piece_bytes;            /* longer messages are sent in pieces */
  atomic_flag busy;              /* a thread uses the worker */
  bny_net_packet *packets;       /* free ones */
  int32_t under_way;             /* messages with `counts` set */
  bool unflushed;                /* data was sent since the last flush */
  void *flush;                   /* the request of the current flush */
  int32_t nwaiting;              /* peers that want an answer, and received rejections */
  int32_t nrejections;           /* received, and not yet taken */
  bny_rejection rejections[BNY_REJECTIONS];
  uint64_t spread;            /* the fault that peers have been sent; 0: none */
  uint64_t rejected;          /* messages that do not belong to this communicator */
  bny_rendezvous *rendezvous; /* by rank, for other nodes, [nranks][2]; NULL: none yet */
  pthread_t teller;           /* answers peers that a shrink has left out */
  bool tells;                 /* it runs */
  atomic_bool tells_no_more;
};

static inline bny_net *bny_net_of(bny_transport *transport) { return (bny_net *)transport; }

/* ---- start.c ----------------------------------------------------------------------------------------------------- */

/* Makes the context, the worker and its address. Local. They are freed with the net. */
banyan_status bny_net_start(bny_net *net, const bny_net_config *config, ucp_address_t **address, size_t *address_bytes);
bny_network bny_net_find_network(const bny_net *net);

/* ---- peer.c: the caller holds the worker ------------------------------------------------------------------------- */

/* Takes the worker. It succeeds at once, except during another thread's call in an abort. In the child of a fork,
 * bny_net_try() fails, and nothing is sent. */
void bny_net_take(bny_net *net);
bool bny_net_try(bny_net *net);
void bny_net_give(bny_net *net);

/* Returns the peer of a rank of another node and makes it if needed; NULL: no memory. */
bny_net_peer *bny_net_meet(bny_net *net, int32_t rank);
/* Does the same with an endpoint; NULL: no memory. A failure to connect is logged. */
bny_net_peer *bny_net_connect_peer(bny_net *net, int32_t rank);
banyan_status bny_net_mirror(bny_net_peer *peer);
banyan_status bny_net_fail_registration(const bny_net_peer *peer, const char *why);
/* Registers the memory that this rank puts from, so that no run has to. */
void bny_net_put_register_outbox(bny_net *net);
/* Returns false if it is known to take no more messages. */
bool bny_net_can_send(const bny_net_peer *peer);
bool bny_net_has_left(const bny_net_peer *peer);
/* Marks the connection as lost: the process has ended, or its node is unreachable. If it was never established, the
 * reason is kept. */
void bny_net_lose(bny_net_peer *peer, ucs_status_t status);
/* Keeps the reason why there is no connection, with the text that UCX has logged. */
void bny_net_explain(bny_net_peer *peer, const char *why, const char *logged);
void bny_net_lack_memory(bny_net_peer *peer);
/* Makes progress until no message to any peer is pending, or until the deadline. */
void bny_net_drain(bny_net *net, int64_t deadline_ns);
/* Frees the worker with its endpoints, and then the peers that callbacks use. */
void bny_net_free_worker(bny_net *net);
void bny_net_free_peers(bny_net *net);
/* Sleeps in the kernel until data arrives or for sleep_ns, without the worker, after bny_net_arm(). */
bool bny_net_arm(bny_net *net); /* false: events are pending already */
void bny_net_doze(bny_net *net, int64_t sleep_ns);

/* ---- message.c: the caller holds the worker ---------------------------------------------------------------------- */

/* Returns a packet to fill and send; NULL: no memory. */
bny_net_packet *bny_net_packet_take(bny_net_peer *peer);
/* Returns a packet whose head is set, if the peer takes messages; else NULL. */
bny_net_packet *bny_net_message_to(bny_net_peer *peer);
bny_net_head bny_net_head_of(bny_net *net);
void bny_net_send(bny_net_packet *packet, int32_t kind, const void *payload, size_t bytes);
void bny_net_send_note(bny_net_peer *peer, bny_net_word word);
void bny_net_send_sleep(bny_net_peer *peer, const bny_net_wish *wish);
bny_rendezvous *bny_net_rendezvous_of(bny_transport *transport, int32_t rank, int half);
void bny_net_send_rendezvous(bny_net_peer *peer, int half);
void bny_net_post(bny_transport *transport, int32_t rank, int half);
void bny_net_flush(bny_net_peer *peer); /* sets peer->flushed later */
void bny_net_free_packets(bny_net *net);

void bny_net_send_offer(bny_net_peer *peer, uint64_t address, const void *rkey, size_t bytes);
/* The payload must not change until the run is over; the signal is the packet's tag. */
void bny_net_send_put(bny_net_packet *packet, const void *payload, size_t bytes, uint64_t to);
void bny_net_send_signal(bny_net_packet *packet, uint64_t to);

/* ---- put.c: the caller holds the worker -------------------------------------------------------------------------- */

banyan_status bny_net_put_read(const char *text, bny_net_put_wish *wish);
/* Send the peer the address for its puts, and handle such an offer. */
void bny_net_put_offer(bny_net_peer *peer);
void bny_net_put_take_offer(bny_net_peer *peer, uint64_t address, const void *rkey, size_t bytes);
bool bny_net_put_is_ready(bny_net_peer *peer);
/* Puts to those peers that take puts. */
void bny_net_put(bny_net *net, const bny_net_data *what, const char *payload, const int32_t *peers, int32_t npeers);
/* Notifies the peer that this rank waits for, once, before this rank sleeps. */
void bny_net_put_report_sleep(bny_net *net);
/* Records that a peer sleeps until a message of this rank arrives. */
void bny_net_put_note_sleep(bny_net_peer *peer, uint64_t tag, int32_t slot);

/* ---- report.c: the caller holds the worker, except for the functions of bny_transport_ops ------------------------ */

void bny_net_send_hello(bny_net_peer *peer);
/* Reports to all peers that this rank leaves, and waits a limited time until they have received its data. */
void bny_net_send_goodbye(bny_net *net);
/* Handles a received report. */
void bny_net_receive_report(bny_net *net, const bny_net_report *report);
/* Marks the peer to be answered after this round of progress. */
static inline void bny_net_want_answer(bny_net_peer *peer) {
  if (!peer->wants_answer) peer->net->nwaiting++;
  peer->wants_answer = true;
}
void bny_net_answer(bny_net *net);
bool bny_net_probe(bny_transport *transport, int32_t rank);
uint64_t bny_net_heartbeat(bny_transport *transport, int32_t rank);
void bny_net_forward_rejection(bny_transport *transport, const bny_rejection *rejection);
/* Stores a received rejection; it is forwarded after this round of progress. */
void bny_net_receive_rejection(bny_net *net, const bny_rejection *rejection);
/* Asks all peers, and returns the one that has been silent the longest. */
int32_t bny_net_most_silent(bny_net *net);
void bny_net_broadcast_fault(bny_transport *transport, int64_t patience_ns);

/* ---- tell.c: the caller does not hold the worker ----------------------------------------------------------------- */

void bny_net_tell(bny_transport *transport, int32_t rank, int half);
void bny_net_tell_no_more(bny_net *net);

/* ---- receive.c --------------------------------------------------------------------------------------------------- */

banyan_status bny_net_listen(bny_net *net); /* sets the handler of messages */
