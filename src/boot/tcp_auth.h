/* SPDX-License-Identifier: Apache-2.0
 * How two processes prove to each other that they know the secret (fixed-size messages, integers little-endian):
 *
 *   listener -> connecting side   challenge   magic, its nonce
 *   connecting side -> listener   hello       version, rank, nranks, time left, its listen address, its job, its nonce;
 *                                             MAC
 *   listener -> connecting side   welcome     verdict, version, its rank, reason; MAC
 *
 * A MAC is HMAC-SHA512-256 over all earlier bytes of the exchange, with a key that is a hash of the secret. Except for
 * the magic, no content of a message is used before its MAC has been verified. These messages keep their layout in
 * every version, so that a peer of another version can be rejected with a reason. Afterwards both sides send frames
 * (tcp_link.h), under a key that only this connection has. */
#ifndef BNY_BOOT_TCP_AUTH_H
#define BNY_BOOT_TCP_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  BNY_BOOT_VERSION = 3, /* version of the protocol */
  BNY_BOOT_KEY_BYTES = 32,
  BNY_BOOT_NONCE_BYTES = 32,
  BNY_BOOT_MAC_BYTES = 32,
  BNY_BOOT_HASH_BYTES = 32,
  BNY_BOOT_ADDRESS_BYTES = 96, /* text of an address */
  BNY_BOOT_LISTEN_BYTES = 56,  /* a listener's name, which is short */
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
  uint32_t left_ms;                    /* until this rank gives up */
  char address[BNY_BOOT_LISTEN_BYTES]; /* listen address for redirected ranks, once it has joined; "": none */
  char job[BNY_BOOT_JOB_BYTES];        /* the same on all ranks of a job; "": no launcher names it */
  uint64_t began_s;                    /* when this rank began to connect, since 1970; for texts */
  uint8_t nonce[BNY_BOOT_NONCE_BYTES];
  uint8_t mac[BNY_BOOT_MAC_BYTES];
};

/* REDIRECTED: `reason` is the address to connect to. OTHER_JOB: rank 0 of the peer's own job may listen here later. */
enum bny_boot_verdict { BNY_BOOT_ACCEPTED = 1, BNY_BOOT_REJECTED = 2, BNY_BOOT_REDIRECTED = 3, BNY_BOOT_OTHER_JOB = 4 };

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

/* Derives a name in hexadecimal digits from `text`, which only a holder of the key can compute. */
enum { BNY_BOOT_NAME_BYTES = 33 };
void bny_boot_name_derive(const uint8_t *key, const char *text, char name[BNY_BOOT_NAME_BYTES]);

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

#endif
