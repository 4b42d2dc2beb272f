/* SPDX-License-Identifier: Apache-2.0
 *
 * The transport `net`: several hosts. What its files share.
 *
 * Ranks of one host have a window (shm or loop) among themselves. For a rank of another host there is a *mirror*: memory here
 * that is laid out like that rank's outbox and signals. A message travels as one active message, or several if it is long, and
 * the receiver puts it into the mirror and then sets the signal. Plans and exec/ see addresses and signals alike.
 *
 * Why active messages, not puts: over TCP UCX carries out a put as an active message that is answered, and a signal after it
 * must wait for the answer. See docs/design.md for figures.
 *
 * What is not payload (who waits for whom, which call a rank is in, faults, leaving) is told on the slow path alone, when a
 * waiting rank asks or something went wrong. Acknowledgements go to those who hear nothing else.
 *
 * One worker per communicator. Any thread may abort, so that a flag, free but for that case, guards the worker. Callbacks
 * run inside progress and hold it. */
#ifndef BNY_TRANSPORT_UCX_H
#define BNY_TRANSPORT_UCX_H

#include <sys/types.h>

#include "transport/transport.h"
#include "transport/ucx_library.h"

/* ---- messages, in the byte order of the hosts, which is one ---------------------------------------------------------- */

enum { BNY_NET_DATA = 1, BNY_NET_NOTE, BNY_NET_TELL, BNY_NET_MAIL, BNY_NET_OFFER };

/* Before a piece of a slot. */
typedef struct bny_net_data {
  uint64_t cookie; /* of the communicator */
  uint64_t tag;
  uint64_t done;   /* of the sender's line */
  uint64_t offset; /* of the message in the sender's half */
  uint64_t bytes;  /* of the message */
  uint64_t first;  /* of the piece within it */
  int32_t rank, slot;
} bny_net_data;

typedef enum bny_net_word {
  BNY_NET_ASK = 1,
  BNY_NET_ACKNOWLEDGE,
  BNY_NET_SLEEP, /* the sender waits for the receiver's `slot` of the run `tag`, and sleeps: a put does not wake it */
  BNY_NET_WAKE   /* it has been put */
} bny_net_word;

typedef struct bny_net_note {
  uint64_t cookie, done;
  uint64_t tag; /* SLEEP; else 0 */
  int32_t slot; /* likewise */
  int32_t rank;
  int32_t word;
  int32_t reserved;
} bny_net_note;

/* What a rank waits for, of another. */
typedef struct bny_net_wish {
  uint64_t tag; /* 0: nothing */
  int32_t rank, slot;
} bny_net_wish;

/* What is known of a rank. */
typedef struct bny_net_snapshot {
  int32_t rank; /* -1: nothing follows */
  int32_t reserved;
  uint64_t started, done, suspect, left;
  uint64_t call[BNY_CALL_WORDS];
} bny_net_snapshot;

enum { BNY_NET_SNAPSHOTS = 3 };

/* So many messages that are refused are told of one by one. */
enum { BNY_NET_REFUSALS_TOLD = 4 };

typedef enum bny_net_occasion {
  BNY_NET_NEWS,    /* asked for, or of a fault */
  BNY_NET_HELLO,   /* the first message to this peer */
  BNY_NET_GOODBYE, /* the last; answered, so that the sender knows that all it sent has come */
  BNY_NET_ANSWER   /* to that */
} bny_net_occasion;

typedef struct bny_net_tell {
  uint64_t cookie, fault;
  int32_t rank;
  int32_t occasion;
  bny_net_snapshot of[BNY_NET_SNAPSHOTS]; /* the sender; in a fault also the culprit and the reporter */
} bny_net_tell;

/* Before the text of a bny_mail. */
typedef struct bny_net_mail {
  uint64_t cookie, round;
  int32_t rank;
  uint32_t kind;
} bny_net_mail;

/* Before a packed rkey: where the receiver may put what it sends. */
typedef struct bny_net_offer {
  uint64_t cookie, address;
  int32_t rank;
  int32_t reserved;
} bny_net_offer;

/* ---- state ----------------------------------------------------------------------------------------------------------- */

typedef struct bny_net bny_net;

/* BANYAN_UCX_PUT; auto: over RDMA. emulated: wherever UCX has puts. */
typedef enum bny_net_put_wish { BNY_NET_PUT_AUTO, BNY_NET_PUT_OFF, BNY_NET_PUT_EMULATED } bny_net_put_wish;

/* A rank of another host. */
typedef struct bny_net_peer {
  bny_net *net;
  int32_t rank;
  ucp_ep_h endpoint;         /* NULL: none yet */
  bool said_hello, heard_hello;
  bool expected;             /* it connects to this rank, sooner or later */
  bool flushed;              /* the hello has gone out */
  bool flushing;             /* it has not yet: UCX is connecting */
  bool dead;
  bool broken;               /* it sent what is no message: nothing that it says counts any more */
  bool wants_answer;         /* of its own question or goodbye */
  bool parted;               /* it has answered this rank's goodbye */
  char *outbox;              /* mirror of both halves; NULL: none yet */
  bny_signal *signals;       /* [2][slots_max] */
  bny_landing *landings;     /* [2][slots_max]; its bytes are those that have come, until it is whole */
  ucp_mem_h memory;          /* puts: the mirror, registered */
  uint64_t remote;           /* puts: this rank's mirror there */
  void *offered;             /* puts: the key to `memory`, as it goes out; UCX's */
  void *rkey_bytes;          /* puts: the key to it as it came; owned. NULL: it has not */
  ucp_rkey_h rkey;           /* NULL: not unpacked yet */
  bool takes_puts;           /* its endpoint is of a kind that carries them out; else it gets messages */
  bny_net_wish sleeps_for;   /* puts: what it sleeps for, of this rank */
  int64_t asked_ns;          /* 0: no question is open */
  int64_t told_ns;           /* when it last told of itself; 0: never */
  uint64_t told_started;
  int32_t under_way;         /* messages to it that UCX has not finished with */
} bny_net_peer;

/* A message that is being sent; UCX reads the header until it is. */
typedef struct bny_net_packet {
  struct bny_net_packet *next;
  bny_net_peer *peer;
  bool counts; /* the sender's run is not over before this is sent */
  union {
    bny_net_data data;
    bny_net_note note;
    bny_net_tell tell;
    bny_net_mail mail;
    bny_net_offer offer;
    uint64_t tag; /* a signal that is put */
  } of;
} bny_net_packet;

/* When a rank of this host was last seen to look around. */
typedef struct bny_net_watch {
  uint64_t looks;
  int64_t seen_ns;
} bny_net_watch;

struct bny_net {
  bny_transport transport; /* first */
  bny_transport *local;    /* window of this host's ranks */
  int32_t *place;          /* by rank: its rank in the window, -1 on another host */
  int32_t *locals;         /* by rank in the window: its rank */
  bny_net_watch *watches;  /* likewise */
  bny_net_peer **peers;    /* by rank; NULL: not met yet */
  bny_net_peer **known;    /* those that are, in the order of meeting */
  int32_t nknown;
  bny_rank_line *lines;    /* by rank, of other hosts: as last told */
  bny_signal *calls;       /* likewise, [nranks][BNY_CALL_WORDS] */
  char *addresses;         /* by rank, each address_bytes long */
  size_t address_bytes;
  uint64_t cookie;
  pid_t process;
  bny_ucx ucx;
  ucp_context_h context;
  ucp_worker_h worker;
  int event_fd;
  bny_net_put_wish wish;   /* of this rank */
  bool puts;               /* agreed */
  ucp_mem_h outbox_memory; /* puts: this rank's outbox, registered; NULL: when it is first used */
  bny_net_wish told_sleep; /* puts: what this rank sleeps for, as a peer was told */
  size_t piece_bytes;      /* longer messages travel in pieces */
  atomic_flag busy;        /* somebody uses the worker */
  bny_net_packet *packets; /* free ones */
  int32_t under_way;       /* messages that count */
  bool unflushed;          /* something was sent since the last flush */
  void *flush;             /* the request of the one that is under way */
  int32_t nwaiting;        /* peers that want an answer */
  bool has_spread;
  uint64_t refused;        /* messages that were none of this communicator's */
  bny_mail *mails;         /* by rank, of other hosts, [nranks][2]; NULL: none yet */
};

static inline bny_net *bny_net_of(bny_transport *transport) { return (bny_net *)transport; }

/* ---- ucx_peer.c: with the worker taken ------------------------------------------------------------------------------- */

/* Takes the worker: at once, but for the time of one call if another thread aborts. */
void bny_net_take(bny_net *net);
bool bny_net_try(bny_net *net);
void bny_net_give(bny_net *net);

/* The peer of a rank of another host, made if it is new; NULL: no memory. */
bny_net_peer *bny_net_meet(bny_net *net, int32_t rank);
/* The same with an endpoint; NULL: none can be made, which is logged. */
bny_net_peer *bny_net_connect_peer(bny_net *net, int32_t rank);
/* Memory for what it sends. */
banyan_status bny_net_mirror(bny_net_peer *peer);
/* False: it is known to take no more messages. */
bool bny_net_can_send(const bny_net_peer *peer);
bool bny_net_has_left(const bny_net_peer *peer);
/* The connection is lost: the process has ended, or its host is unreachable. */
void bny_net_lose(bny_net_peer *peer, ucs_status_t status);
/* Goes on until nothing is under way to anybody, or until the deadline. */
void bny_net_drain(bny_net *net, int64_t deadline_ns);
/* The worker with its endpoints, and then what they called back for. */
void bny_net_free_worker(bny_net *net);
void bny_net_free_peers(bny_net *net);
/* In the kernel, until something comes in or for so long. Without the worker: after bny_net_arm(). */
bool bny_net_arm(bny_net *net); /* false: there is something to do already */
void bny_net_doze(bny_net *net, int64_t sleep_ns);

/* ---- ucx_message.c: with the worker taken ---------------------------------------------------------------------------- */

/* A packet to fill and send; NULL: no memory. */
bny_net_packet *bny_net_packet_take(bny_net_peer *peer);
void bny_net_send_data(bny_net_packet *packet, const void *payload, size_t bytes);
void bny_net_send_note(bny_net_peer *peer, bny_net_word word);
void bny_net_send_sleep(bny_net_peer *peer, const bny_net_wish *wish);
void bny_net_send_tell(bny_net_packet *packet);
void bny_net_send_mail(bny_net_packet *packet, const bny_mail *mail);
void bny_net_flush(bny_net_peer *peer); /* sets peer->flushed in time */
banyan_status bny_net_listen(bny_net *net); /* handlers of messages */
void bny_net_free_packets(bny_net *net);

void bny_net_send_offer(bny_net_peer *peer, uint64_t address, const void *rkey, size_t bytes);
/* The payload stays as it is until the run is over; the signal is the packet's tag. */
void bny_net_send_put(bny_net_packet *packet, const void *payload, size_t bytes, uint64_t to);
void bny_net_send_signal(bny_net_packet *packet, uint64_t to);

/* ---- ucx_put.c: with the worker taken -------------------------------------------------------------------------------- */

banyan_status bny_net_put_read(const char *text, bny_net_put_wish *wish);
/* bny_net_mirror(), in registered memory; and its end, before that of the worker, and after. */
banyan_status bny_net_put_mirror(bny_net_peer *peer);
void bny_net_put_unregister(bny_net *net);
void bny_net_put_free(bny_net_peer *peer);
/* Registers what this rank puts from, so that no run has to. */
void bny_net_put_register_outbox(bny_net *net);
/* Tells the peer where it may put what it sends; and takes what it tells. */
void bny_net_put_offer(bny_net_peer *peer);
void bny_net_put_take_offer(bny_net_peer *peer, uint64_t address, const void *rkey, size_t bytes);
bool bny_net_put_is_ready(bny_net_peer *peer);
/* To those of the peers that take puts. */
void bny_net_put(bny_net *net, const bny_net_data *what, const char *payload, const int32_t *peers, int32_t npeers);
/* Before this rank sleeps: the peer that it waits for is told, once. */
void bny_net_put_tell_sleep(bny_net *net);
/* A peer sleeps for a message of this rank. */
void bny_net_put_hear_sleep(bny_net_peer *peer, uint64_t tag, int32_t slot);

/* ---- ucx_tell.c: with the worker taken, but for the functions of bny_transport_ops ----------------------------------- */

void bny_net_say_hello(bny_net_peer *peer);
/* Tells all peers that this rank leaves, and waits for some time until they have got what it sent. */
void bny_net_say_goodbye(bny_net *net);
/* What a message says that has come. */
void bny_net_hear(bny_net *net, const bny_net_tell *tell);
/* It is told of this rank after this round of progress. */
static inline void bny_net_want_answer(bny_net_peer *peer) {
  if (!peer->wants_answer) peer->net->nwaiting++;
  peer->wants_answer = true;
}
void bny_net_answer(bny_net *net);
bool bny_net_ask(bny_transport *transport, int32_t rank);
/* The peer that has been silent the longest; all are asked. */
int32_t bny_net_most_silent(bny_net *net);
void bny_net_spread(bny_transport *transport, int64_t patience_ns);

/* ---- ucx_mail.c ------------------------------------------------------------------------------------------------------ */

bny_mail *bny_net_mail_of(bny_transport *transport, int32_t rank, int half);
void bny_net_post(bny_transport *transport, int32_t rank, int half);
/* What has come. Of a round that is over already, nothing becomes. */
void bny_net_take_mail(bny_net *net, const bny_net_mail *head, const void *text, size_t bytes);

/* ---- ucx_local.c ----------------------------------------------------------------------------------------------------- */

/* The window of this host's ranks. As many exchanges on every rank, whatever fails. */
banyan_status bny_net_connect_local(bny_net *net, const bny_exchange *exchange, const bny_net_config *config);

#endif
