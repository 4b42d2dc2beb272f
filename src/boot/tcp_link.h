/* SPDX-License-Identifier: Apache-2.0
 * How two processes prove to each other that they know the secret (fixed-size messages, integers little-endian):
 *
 *   listener -> connecting side   challenge   magic, its nonce
 *   connecting side -> listener   hello       version, rank, nranks, time left, its process, its job, its nonce; MAC
 *   listener -> connecting side   welcome     verdict, version, its rank, reason; MAC
 *
 * A MAC is HMAC-SHA512-256 over all earlier bytes of the exchange, with a key that is a hash of the secret. Except for
 * the magic, no content of a message is used before its MAC has been verified. These messages keep their layout in
 * every version, so that a peer of another version can be rejected with a reason. Afterwards both sides send frames
 * under a key that only this connection has. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "base/status.h"

/* ---- joining ----------------------------------------------------------------------------------------------------- */

enum {
  BNY_BOOT_VERSION = 4, /* version of the protocol */
  BNY_BOOT_KEY_BYTES = 32,
  BNY_BOOT_NONCE_BYTES = 32,
  BNY_BOOT_MAC_BYTES = 32,
  BNY_BOOT_HASH_BYTES = 32,
  BNY_BOOT_ADDRESS_BYTES = 96, /* text of an address */
  BNY_BOOT_PROCESS_BYTES = 52, /* text of a process */
  BNY_BOOT_JOB_BYTES = 32,
  BNY_BOOT_REASON_BYTES = 212
};

struct bny_boot_challenge {
  uint8_t magic[8];
  uint8_t nonce[BNY_BOOT_NONCE_BYTES];
};

struct bny_boot_hello {
  uint32_t version;
  uint32_t rank;
  uint32_t nranks;
  uint32_t left_ms;                     /* until this rank gives up */
  uint32_t attempt;                     /* how often the launcher has restarted this rank */
  char process[BNY_BOOT_PROCESS_BYTES]; /* for texts: "process 12 of node-a" */
  char job[BNY_BOOT_JOB_BYTES];         /* the same on all ranks of a job; "": no launcher names it */
  uint64_t began_s;                     /* when this rank began to connect, since 1970; for texts */
  uint8_t nonce[BNY_BOOT_NONCE_BYTES];
  uint8_t mac[BNY_BOOT_MAC_BYTES];
};

/* OTHER_JOB: rank 0 of the peer's own job may listen here later. */
enum bny_boot_verdict { BNY_BOOT_ACCEPTED = 1, BNY_BOOT_REJECTED = 2, BNY_BOOT_OTHER_JOB = 4 };

struct bny_boot_welcome {
  uint32_t verdict;
  uint32_t version;
  uint32_t rank; /* the sender */
  char reason[BNY_BOOT_REASON_BYTES];
  uint8_t mac[BNY_BOOT_MAC_BYTES];
};

/* Derives the key of a secret. Returns false if the crypto library cannot be initialised. */
bool bny_boot_key_derive(const void *secret, size_t bytes, uint8_t key[BNY_BOOT_KEY_BYTES]);
void bny_boot_key_erase(void *key, size_t bytes);

void bny_boot_challenge_make(struct bny_boot_challenge *challenge);
bool bny_boot_challenge_check(const struct bny_boot_challenge *challenge);

/* Sets nonce and mac. The caller has set the other fields, in wire order (htole32). */
void bny_boot_hello_sign(const uint8_t *key, const struct bny_boot_challenge *challenge, struct bny_boot_hello *hello);
bool bny_boot_hello_check(const uint8_t *key, const struct bny_boot_challenge *challenge,
                          const struct bny_boot_hello *hello);
void bny_boot_welcome_sign(const uint8_t *key, const struct bny_boot_challenge *challenge,
                           const struct bny_boot_hello *hello, struct bny_boot_welcome *welcome);
bool bny_boot_welcome_check(const uint8_t *key, const struct bny_boot_challenge *challenge,
                            const struct bny_boot_hello *hello, const struct bny_boot_welcome *welcome);
void bny_boot_session_derive(const uint8_t *key, const struct bny_boot_challenge *challenge,
                             const struct bny_boot_hello *hello, uint8_t session[BNY_BOOT_KEY_BYTES]);

/* ---- frames ------------------------------------------------------------------------------------------------------ */

enum bny_boot_kind {
  BNY_BOOT_READY = 1,   /* from rank 0: all ranks have joined */
  BNY_BOOT_DATA = 2,    /* to rank 0: a rank's block; from rank 0: all blocks */
  BNY_BOOT_FAILURE = 3, /* the text of an error */
  BNY_BOOT_AGAIN = 4    /* from rank 0: another rank 0 has come, which this rank must join */
};

/* Header of a frame; the payload follows. The mac covers the header and, through `hash`, the payload. `bytes` can thus
 * be trusted before the payload is read. `sequence` counts the frames of a direction. */
struct bny_boot_frame {
  uint32_t kind;
  uint32_t status; /* FAILURE: the banyan_status */
  uint64_t sequence;
  uint64_t bytes;   /* size of the payload */
  uint32_t left_ms; /* DATA to rank 0: until the sender gives up */
  uint32_t reserved;
  uint8_t hash[BNY_BOOT_HASH_BYTES];
  uint8_t mac[BNY_BOOT_MAC_BYTES];
};

enum bny_boot_progress {
  BNY_BOOT_DONE,
  BNY_BOOT_MORE,  /* would block */
  BNY_BOOT_LOST,  /* the connection ended: link->error, 0 if the peer closed it */
  BNY_BOOT_FORGED /* not from the authenticated peer */
};

/* At most two small frames wait at a time: READY, and FAILURE. */
enum { BNY_BOOT_QUEUE_BYTES = 2 * (sizeof(struct bny_boot_frame) + BNY_ERROR_TEXT_BYTES) };

struct bny_boot_link {
  int fd;         /* -1: none */
  uint64_t maker; /* the process (bny_process()); to the child of a fork the link is lost */
  int32_t rank;   /* the peer */
  bool at_rank_0;
  int error;
  char process[BNY_BOOT_PROCESS_BYTES]; /* at rank 0: the peer's, for texts */
  uint8_t session[BNY_BOOT_KEY_BYTES];
  uint64_t nsent, nreceived; /* frames */
  struct bny_boot_frame in;
  size_t in_done;                              /* bytes of header and payload */
  _Alignas(8) char note[BNY_ERROR_TEXT_BYTES]; /* payload of a small frame */
  char queue[BNY_BOOT_QUEUE_BYTES];            /* small frames to be sent */
  size_t queue_bytes, queue_done;
  struct bny_boot_frame out; /* a large frame after the queue, whose payload the caller owns */
  const void *out_payload;
  size_t out_bytes, out_done;
};

/* The fields of a frame besides its payload. */
struct bny_boot_says {
  enum bny_boot_kind kind;
  banyan_status status;
  uint32_t left_ms;
};

void bny_boot_payload_hash(const void *payload, size_t bytes, uint8_t hash[BNY_BOOT_HASH_BYTES]);

/* Queues a small frame; not between prepare and the end of its frame. Returns false if the queue is full. */
bool bny_boot_link_post(struct bny_boot_link *link, const struct bny_boot_says *says, const char *note);

/* Makes a large frame that follows the queue. The caller keeps the payload until it is sent. */
void bny_boot_link_prepare(struct bny_boot_link *link, const struct bny_boot_says *says, const void *payload,
                           size_t bytes, const uint8_t hash[BNY_BOOT_HASH_BYTES]);

bool bny_boot_link_is_sending(const struct bny_boot_link *link);

/* None of these blocks. After header is DONE, link->in is verified and in host byte order. A note is a small frame,
 * received completely and ended by a NUL. */
enum bny_boot_progress bny_boot_link_send(struct bny_boot_link *link);
enum bny_boot_progress bny_boot_link_receive_header(struct bny_boot_link *link);
enum bny_boot_progress bny_boot_link_receive_payload(struct bny_boot_link *link, void *payload);
enum bny_boot_progress bny_boot_link_receive_note(struct bny_boot_link *link);
void bny_boot_link_close(struct bny_boot_link *link);

/* Closes so that sent data still arrives: unread input would turn the close into a reset. The child of a fork closes
 * only its copy. process: the maker's. */
void bny_boot_socket_close(int fd, uint64_t process);
