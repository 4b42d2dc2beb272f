/* SPDX-License-Identifier: Apache-2.0
 * Bootstrap over TCP: what its parts share. Rank 0 listens, every other rank connects to it: a star.
 *
 * How a rank joins (fixed-size messages, integers little-endian):
 *
 *   rank 0 -> rank   challenge   magic, server nonce
 *   rank -> rank 0   hello       version, rank, nranks, time left, client nonce; HMAC(key, everything so far)
 *   rank 0 -> rank   welcome     verdict, version, reason; HMAC(key, everything so far)
 *   rank 0 -> rank   READY       a frame, when all ranks have joined; or FAILURE with the text of the error
 *
 * Nothing of a message is looked at before its HMAC has been verified, except the magic. The key is a hash of the
 * secret. These three messages keep their layout in every version, so that another version can be refused with a
 * reason. Afterwards both sides speak in frames (below), under a key that only this connection has. */
#ifndef BNY_BOOT_TCP_H
#define BNY_BOOT_TCP_H

#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "status.h"

enum {
  BNY_BOOT_VERSION = 1, /* of the protocol */
  BNY_BOOT_KEY_BYTES = 32,
  BNY_BOOT_NONCE_BYTES = 32,
  BNY_BOOT_MAC_BYTES = 32,
  BNY_BOOT_HASH_BYTES = 32,
  BNY_BOOT_ADDRESS_BYTES = 96, /* text of an address and port */
  BNY_BOOT_REASON_BYTES = 216
};

/* How long a connection may take to authenticate itself, and a silent server to be tried again. */
#define BNY_BOOT_STRANGER_NS ((int64_t)5 * 1000 * 1000 * 1000)

/* ---- what the environment says: boot_tcp_settings.c -------------------------------------------------------------- */

struct bny_boot_settings {
  int32_t rank;
  int32_t nranks;
  char host[256]; /* MASTER_ADDR */
  int port;
  int listen_fd; /* BANYAN_LISTEN_FD, rank 0 only; -1: none */
  bool has_secret;
  uint8_t key[BNY_BOOT_KEY_BYTES]; /* of the secret, or of the empty one */
};

banyan_status bny_boot_settings_read(struct bny_boot_settings *settings);

/* ---- addresses: boot_tcp_address.c ------------------------------------------------------------------------------- */

/* Resolves the settings' host. Refuses wildcard addresses, and without a secret all that are not loopback. */
banyan_status bny_boot_address_resolve(const struct bny_boot_settings *settings, struct addrinfo **list);

/* Rank 0's listening socket: the inherited one, or a new one on the first address of the host that can be bound.
 * *owned: to be closed by the caller. `address` becomes its text. */
banyan_status bny_boot_address_listen(const struct bny_boot_settings *settings, int64_t deadline_ns, int *listen_fd,
                                      bool *owned, char address[BNY_BOOT_ADDRESS_BYTES]);

/* A connected socket by limit_ns, or -1 and errno. */
int bny_boot_address_connect(const struct addrinfo *address, int64_t limit_ns);

/* Non-blocking, close-on-exec, no delay; -1 and errno. */
int bny_boot_socket_configure(int fd);

void bny_boot_address_text(const struct sockaddr *address, socklen_t bytes, char text[BNY_BOOT_ADDRESS_BYTES]);

/* Waits for `events` on fd. Returns whether any came by limit_ns. */
bool bny_boot_socket_wait(int fd, short events, int64_t limit_ns);

/* Closes so that what was sent still arrives: unread input would turn the close into a reset. */
void bny_boot_socket_close(int fd);

/* ---- joining: boot_tcp_auth.c ------------------------------------------------------------------------------------ */

struct bny_boot_challenge {
  uint8_t magic[8];
  uint8_t nonce[BNY_BOOT_NONCE_BYTES];
};

struct bny_boot_hello {
  uint32_t version;
  uint32_t rank;
  uint32_t nranks;
  uint32_t left_ms; /* until this rank gives up */
  uint8_t nonce[BNY_BOOT_NONCE_BYTES];
  uint8_t mac[BNY_BOOT_MAC_BYTES];
};

enum bny_boot_verdict { BNY_BOOT_ACCEPTED = 1, BNY_BOOT_REFUSED = 2 };

struct bny_boot_welcome {
  uint32_t verdict;
  uint32_t version;
  char reason[BNY_BOOT_REASON_BYTES];
  uint8_t mac[BNY_BOOT_MAC_BYTES];
};

/* The key of a secret. Returns false if the crypto library cannot be initialised. */
bool bny_boot_key_derive(const void *secret, size_t bytes, uint8_t key[BNY_BOOT_KEY_BYTES]);
void bny_boot_key_erase(void *key, size_t bytes);

void bny_boot_challenge_make(struct bny_boot_challenge *challenge);
bool bny_boot_challenge_check(const struct bny_boot_challenge *challenge);

/* Fills in nonce and mac; the caller has set the other fields, in wire order (htole32). */
void bny_boot_hello_sign(const uint8_t *key, const struct bny_boot_challenge *challenge, struct bny_boot_hello *hello);
bool bny_boot_hello_check(const uint8_t *key, const struct bny_boot_challenge *challenge,
                          const struct bny_boot_hello *hello);
void bny_boot_welcome_sign(const uint8_t *key, const struct bny_boot_challenge *challenge,
                           const struct bny_boot_hello *hello, struct bny_boot_welcome *welcome);
bool bny_boot_welcome_check(const uint8_t *key, const struct bny_boot_challenge *challenge,
                            const struct bny_boot_hello *hello, const struct bny_boot_welcome *welcome);
void bny_boot_session_derive(const uint8_t *key, const struct bny_boot_challenge *challenge,
                             const struct bny_boot_hello *hello, uint8_t session[BNY_BOOT_KEY_BYTES]);

/* ---- frames over an authenticated connection: boot_tcp_link.c ---------------------------------------------------- */

enum bny_boot_kind { BNY_BOOT_READY = 1, BNY_BOOT_DATA = 2, BNY_BOOT_FAILURE = 3 };

/* Header of a frame; the payload follows. The mac covers the header and through `hash` the payload, so that `bytes` can
 * be believed before the payload is read. `sequence` counts the frames of a direction. */
struct bny_boot_frame {
  uint32_t kind;
  uint32_t status; /* FAILURE: the banyan_status */
  uint64_t sequence;
  uint64_t bytes;    /* of the payload */
  uint32_t left_ms;  /* DATA to rank 0: until the sender gives up */
  uint32_t reserved; /* 0 */
  uint8_t hash[BNY_BOOT_HASH_BYTES];
  uint8_t mac[BNY_BOOT_MAC_BYTES];
};

enum bny_boot_progress {
  BNY_BOOT_DONE,
  BNY_BOOT_MORE,  /* would block */
  BNY_BOOT_LOST,  /* the connection ended: link->error, 0 if the peer closed it */
  BNY_BOOT_FORGED /* not from the peer that had authenticated itself */
};

struct bny_boot_link {
  int fd;         /* -1: none */
  bool at_server; /* this side is rank 0 */
  int error;
  uint8_t session[BNY_BOOT_KEY_BYTES];
  uint64_t nsent, nreceived; /* frames */
  struct bny_boot_frame in;
  size_t in_done; /* bytes of header and payload */
  struct bny_boot_frame out;
  const void *out_payload;
  size_t out_bytes, out_done;
};

void bny_boot_payload_hash(const void *payload, size_t bytes, uint8_t hash[BNY_BOOT_HASH_BYTES]);

/* Makes the frame that bny_boot_link_send() sends; the payload stays the caller's until it is sent. */
void bny_boot_link_prepare(struct bny_boot_link *link, enum bny_boot_kind kind, banyan_status status, uint32_t left_ms,
                           const void *payload, size_t bytes, const uint8_t hash[BNY_BOOT_HASH_BYTES]);

/* None of these waits. After header is DONE, link->in is verified and in host byte order. */
enum bny_boot_progress bny_boot_link_send(struct bny_boot_link *link);
enum bny_boot_progress bny_boot_link_receive_header(struct bny_boot_link *link);
enum bny_boot_progress bny_boot_link_receive_payload(struct bny_boot_link *link, void *payload);
void bny_boot_link_close(struct bny_boot_link *link);

/* ---- the whole --------------------------------------------------------------------------------------------------- */

struct banyan_env {
  struct bny_boot_settings settings;
  char address[BNY_BOOT_ADDRESS_BYTES]; /* of rank 0 */
  banyan_status failure;                /* not BANYAN_OK: final */
  char failure_text[BNY_ERROR_TEXT_BYTES];
  int32_t nlinks; /* rank 0: nranks, its own unused; others: 1 */
  struct bny_boot_link *links;
  struct pollfd *polls; /* [nlinks], for waiting */
};

/* boot_tcp_accept.c, rank 0: returns when all ranks have joined. */
banyan_status bny_boot_server_join(struct banyan_env *env, int64_t timeout_ns);

/* boot_tcp_connect.c, the others: likewise. */
banyan_status bny_boot_client_join(struct banyan_env *env, int64_t timeout_ns);

/* boot_tcp_gather.c */
banyan_status bny_boot_server_gather(struct banyan_env *env, const void *mine, void *all, size_t bytes,
                                     int64_t timeout_ns);
banyan_status bny_boot_client_gather(struct banyan_env *env, const void *mine, void *all, size_t bytes,
                                     int64_t timeout_ns);

/* Rank 0: tells every rank that is still connected the thread's last error, and hangs up. Returns `status`. */
banyan_status bny_boot_server_fail(struct banyan_env *env, banyan_status status);

/* Rank 0: sends what is prepared on every link. Those that are lost by the deadline are closed; *lost names the first
 * of them, or is -1. */
void bny_boot_server_flush(struct banyan_env *env, int64_t deadline_ns, int32_t *lost);

/* Others: waits for the header of a frame of this kind; a FAILURE frame becomes this thread's error. `doing` words what
 * is waited for. */
banyan_status bny_boot_client_receive(struct banyan_env *env, enum bny_boot_kind kind, int64_t deadline_ns,
                                      const char *doing);

/* How much earlier than a waiting rank's own deadline rank 0 gives up, so that its reason arrives in time. */
int64_t bny_boot_deadline_of_peer(uint32_t left_ms);

#endif
