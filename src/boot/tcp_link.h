/* SPDX-License-Identifier: Apache-2.0
 * Frames over an authenticated, non-blocking connection. */
#ifndef BNY_BOOT_TCP_LINK_H
#define BNY_BOOT_TCP_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "boot/tcp_auth.h"
#include "base/status.h"

enum bny_boot_kind {
  BNY_BOOT_READY = 1,   /* down: all ranks have joined */
  BNY_BOOT_DATA = 2,    /* up: a rank's block; down: all blocks */
  BNY_BOOT_FAILURE = 3, /* up and down: the text of an error */
  BNY_BOOT_JOIN = 4,    /* up: struct bny_boot_join */
  BNY_BOOT_VERDICT = 5  /* down: struct bny_boot_answer */
};

/* Header of a frame; the payload follows. The mac covers the header and, through `hash`, the payload. `bytes` can thus
 * be trusted before the payload is read. `sequence` counts the frames of a direction. */
struct bny_boot_frame {
  uint32_t kind;
  uint32_t status; /* FAILURE: the banyan_status */
  uint64_t sequence;
  uint64_t bytes;   /* size of the payload */
  uint32_t left_ms; /* DATA upwards: until the sender gives up */
  uint32_t rank;    /* DATA upwards: owner of the block */
  uint8_t hash[BNY_BOOT_HASH_BYTES];
  uint8_t mac[BNY_BOOT_MAC_BYTES];
};

/* A request to join below `parent`. The ticket distinguishes requests, because two may claim to be the same rank. */
struct bny_boot_join {
  uint64_t ticket;
  uint32_t rank, parent;
  uint32_t left_ms;
  uint32_t reserved; /* 0 */
};

struct bny_boot_answer {
  uint64_t ticket;
  char reason[BNY_BOOT_REASON_BYTES + 4]; /* "": it may join */
};

enum bny_boot_progress {
  BNY_BOOT_DONE,
  BNY_BOOT_MORE,  /* would block */
  BNY_BOOT_LOST,  /* the connection ended: link->error, 0 if the peer closed it */
  BNY_BOOT_FORGED /* not from the authenticated peer */
};

struct bny_boot_link {
  int fd;         /* -1: none */
  int32_t rank;   /* the peer */
  int32_t nbelow; /* a child's link: ranks reached through it */
  bool at_server; /* the peer connected to this side */
  bool local;     /* the peer is on this node */
  int error;
  char address[BNY_BOOT_ADDRESS_BYTES]; /* the child's listen address for redirected ranks; "": none */
  uint8_t session[BNY_BOOT_KEY_BYTES];
  uint64_t nsent, nreceived; /* frames */
  struct bny_boot_frame in;
  size_t in_done;                              /* bytes of header and payload */
  _Alignas(8) char note[BNY_ERROR_TEXT_BYTES]; /* payload of a small frame */
  char *queue;                                 /* frames to be sent */
  size_t queue_bytes, queue_done, queue_capacity;
  struct bny_boot_frame out; /* a large frame after those, whose payload the caller owns */
  const void *out_payload;
  size_t out_bytes, out_done;
};

/* The fields of a frame besides its payload. */
struct bny_boot_says {
  enum bny_boot_kind kind;
  banyan_status status;
  uint32_t left_ms;
  int32_t rank;
};

void bny_boot_payload_hash(const void *payload, size_t bytes, uint8_t hash[BNY_BOOT_HASH_BYTES]);

/* Appends a frame to the queue and copies the payload; not between prepare and the end of its frame. Returns false
 * without memory. */
bool bny_boot_link_post(struct bny_boot_link *link, const struct bny_boot_says *says, const void *payload,
                        size_t bytes);

/* Makes a large frame that follows the queue. The caller keeps the payload until it is sent. */
void bny_boot_link_prepare(struct bny_boot_link *link, const struct bny_boot_says *says, const void *payload,
                           size_t bytes, const uint8_t hash[BNY_BOOT_HASH_BYTES]);

/* Returns the bytes still to be sent. */
size_t bny_boot_link_waiting(const struct bny_boot_link *link);

/* None of these blocks. After header is DONE, link->in is verified and in host byte order. A note is a small frame,
 * received completely and ended by a NUL. */
enum bny_boot_progress bny_boot_link_send(struct bny_boot_link *link);
enum bny_boot_progress bny_boot_link_receive_header(struct bny_boot_link *link);
enum bny_boot_progress bny_boot_link_receive_payload(struct bny_boot_link *link, void *payload);
enum bny_boot_progress bny_boot_link_receive_note(struct bny_boot_link *link);
void bny_boot_link_close(struct bny_boot_link *link);

#endif
