/* SPDX-License-Identifier: Apache-2.0
 * The three messages by which a rank joins: challenge and response in both directions, by HMAC-SHA512-256. Each MAC
 * covers both nonces and begins with its own label, so no message can be replayed as another, or reflected. */
#include "boot/tcp_auth.h"

#ifdef HAVE_SODIUM
#include <sodium.h>
#include <string.h>

enum { LABEL_BYTES = 16 };
static const char label_hello[LABEL_BYTES] = "banyan hello";
static const char label_welcome[LABEL_BYTES] = "banyan welcome";
static const char label_session[LABEL_BYTES] = "banyan session";
static const char label_name[LABEL_BYTES] = "banyan name";
static const char label_secret[LABEL_BYTES] = "banyan secret"; /* at least crypto_generichash_KEYBYTES_MIN */

static const uint8_t magic[8] = {'b', 'a', 'n', 'y', 'a', 'n', '\r', '\n'};

_Static_assert(BNY_BOOT_KEY_BYTES == crypto_auth_KEYBYTES, "key");
_Static_assert(BNY_BOOT_MAC_BYTES == crypto_auth_BYTES, "mac");
_Static_assert(LABEL_BYTES >= crypto_generichash_KEYBYTES_MIN, "label");
_Static_assert(sizeof(struct bny_boot_challenge) == 40, "no padding on the wire");
_Static_assert(sizeof(struct bny_boot_hello) == 176, "no padding on the wire");
_Static_assert(sizeof(struct bny_boot_welcome) == 256, "no padding on the wire");

bool bny_boot_key_derive(const void *secret, size_t bytes, uint8_t key[BNY_BOOT_KEY_BYTES]) {
  if (sodium_init() < 0) return false;
  return crypto_generichash(key, BNY_BOOT_KEY_BYTES, secret, bytes, (const uint8_t *)label_secret, LABEL_BYTES) == 0;
}

void bny_boot_key_erase(void *key, size_t bytes) { sodium_memzero(key, bytes); }

void bny_boot_name_derive(const uint8_t *key, const char *text, char name[BNY_BOOT_NAME_BYTES]) {
  crypto_auth_hmacsha512256_state state;
  uint8_t mac[BNY_BOOT_MAC_BYTES];
  crypto_auth_hmacsha512256_init(&state, key, BNY_BOOT_KEY_BYTES);
  crypto_auth_hmacsha512256_update(&state, (const uint8_t *)label_name, LABEL_BYTES);
  crypto_auth_hmacsha512256_update(&state, (const uint8_t *)text, strlen(text));
  crypto_auth_hmacsha512256_final(&state, mac);
  sodium_bin2hex(name, BNY_BOOT_NAME_BYTES, mac, (BNY_BOOT_NAME_BYTES - 1) / 2);
  sodium_memzero(&state, sizeof state);
}

void bny_boot_challenge_make(struct bny_boot_challenge *challenge) {
  memcpy(challenge->magic, magic, sizeof magic);
  randombytes_buf(challenge->nonce, sizeof challenge->nonce);
}

bool bny_boot_challenge_check(const struct bny_boot_challenge *challenge) {
  return memcmp(challenge->magic, magic, sizeof magic) == 0;
}

/* Computes HMAC(key, label, challenge, hello without mac, welcome without mac); the welcome may be absent. */
static void authenticate(const uint8_t *key, const char *label, const struct bny_boot_challenge *challenge,
                         const struct bny_boot_hello *hello, const struct bny_boot_welcome *welcome,
                         uint8_t mac[BNY_BOOT_MAC_BYTES]) {
  crypto_auth_hmacsha512256_state state;
  crypto_auth_hmacsha512256_init(&state, key, BNY_BOOT_KEY_BYTES);
  crypto_auth_hmacsha512256_update(&state, (const uint8_t *)label, LABEL_BYTES);
  crypto_auth_hmacsha512256_update(&state, (const uint8_t *)challenge, sizeof *challenge);
  crypto_auth_hmacsha512256_update(&state, (const uint8_t *)hello, offsetof(struct bny_boot_hello, mac));
  if (welcome)
    crypto_auth_hmacsha512256_update(&state, (const uint8_t *)welcome, offsetof(struct bny_boot_welcome, mac));
  crypto_auth_hmacsha512256_final(&state, mac);
  sodium_memzero(&state, sizeof state);
}

void bny_boot_hello_sign(const uint8_t *key, const struct bny_boot_challenge *challenge, struct bny_boot_hello *hello) {
  randombytes_buf(hello->nonce, sizeof hello->nonce);
  authenticate(key, label_hello, challenge, hello, NULL, hello->mac);
}

bool bny_boot_hello_check(const uint8_t *key, const struct bny_boot_challenge *challenge,
                          const struct bny_boot_hello *hello) {
  uint8_t mac[BNY_BOOT_MAC_BYTES];
  authenticate(key, label_hello, challenge, hello, NULL, mac);
  return sodium_memcmp(mac, hello->mac, sizeof mac) == 0;
}

void bny_boot_welcome_sign(const uint8_t *key, const struct bny_boot_challenge *challenge,
                           const struct bny_boot_hello *hello, struct bny_boot_welcome *welcome) {
  authenticate(key, label_welcome, challenge, hello, welcome, welcome->mac);
}

bool bny_boot_welcome_check(const uint8_t *key, const struct bny_boot_challenge *challenge,
                            const struct bny_boot_hello *hello, const struct bny_boot_welcome *welcome) {
  uint8_t mac[BNY_BOOT_MAC_BYTES];
  authenticate(key, label_welcome, challenge, hello, welcome, mac);
  return sodium_memcmp(mac, welcome->mac, sizeof mac) == 0;
}

void bny_boot_session_derive(const uint8_t *key, const struct bny_boot_challenge *challenge,
                             const struct bny_boot_hello *hello, uint8_t session[BNY_BOOT_KEY_BYTES]) {
  authenticate(key, label_session, challenge, hello, NULL, session);
}
#endif
