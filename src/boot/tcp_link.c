/* SPDX-License-Identifier: Apache-2.0
 * Makes and checks the three messages by which a rank joins, and sends and receives frames. Each MAC of a joining
 * message covers both nonces and begins with its own label, so no message can be replayed as another, or reflected. */
#include "boot/tcp_link.h"

#include <endian.h>
#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/process.h"

enum { LABEL_BYTES = 16 };
static const char label_hello[LABEL_BYTES] = "banyan hello";
static const char label_welcome[LABEL_BYTES] = "banyan welcome";
static const char label_session[LABEL_BYTES] = "banyan session";
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

/* Computes HMAC(key, label, parts); a part of no bytes may be NULL. */
static void authenticate(const uint8_t *key, const char label[LABEL_BYTES], const struct iovec parts[3],
                         uint8_t mac[BNY_BOOT_MAC_BYTES]) {
  crypto_auth_hmacsha512256_state state;
  crypto_auth_hmacsha512256_init(&state, key, BNY_BOOT_KEY_BYTES);
  crypto_auth_hmacsha512256_update(&state, (const uint8_t *)label, LABEL_BYTES);
  for (int i = 0; i < 3; i++)
    if (parts[i].iov_len) crypto_auth_hmacsha512256_update(&state, parts[i].iov_base, parts[i].iov_len);
  crypto_auth_hmacsha512256_final(&state, mac);
  sodium_memzero(&state, sizeof state);
}

void bny_boot_challenge_make(struct bny_boot_challenge *challenge) {
  memcpy(challenge->magic, magic, sizeof magic);
  randombytes_buf(challenge->nonce, sizeof challenge->nonce);
}

bool bny_boot_challenge_check(const struct bny_boot_challenge *challenge) {
  return memcmp(challenge->magic, magic, sizeof magic) == 0;
}

/* Authenticates the challenge, the hello without its mac, and the welcome without its mac, which may be absent. */
static void authenticate_joining(const uint8_t *key, const char *label, const struct bny_boot_challenge *challenge,
                                 const struct bny_boot_hello *hello, const struct bny_boot_welcome *welcome,
                                 uint8_t mac[BNY_BOOT_MAC_BYTES]) {
  const struct iovec parts[3] = {{(void *)(uintptr_t)challenge, sizeof *challenge},
                                 {(void *)(uintptr_t)hello, offsetof(struct bny_boot_hello, mac)},
                                 {(void *)(uintptr_t)welcome, welcome ? offsetof(struct bny_boot_welcome, mac) : 0}};
  authenticate(key, label, parts, mac);
}

void bny_boot_hello_sign(const uint8_t *key, const struct bny_boot_challenge *challenge, struct bny_boot_hello *hello) {
  randombytes_buf(hello->nonce, sizeof hello->nonce);
  authenticate_joining(key, label_hello, challenge, hello, NULL, hello->mac);
}

bool bny_boot_hello_check(const uint8_t *key, const struct bny_boot_challenge *challenge,
                          const struct bny_boot_hello *hello) {
  uint8_t mac[BNY_BOOT_MAC_BYTES];
  authenticate_joining(key, label_hello, challenge, hello, NULL, mac);
  return sodium_memcmp(mac, hello->mac, sizeof mac) == 0;
}

void bny_boot_welcome_sign(const uint8_t *key, const struct bny_boot_challenge *challenge,
                           const struct bny_boot_hello *hello, struct bny_boot_welcome *welcome) {
  authenticate_joining(key, label_welcome, challenge, hello, welcome, welcome->mac);
}

bool bny_boot_welcome_check(const uint8_t *key, const struct bny_boot_challenge *challenge,
                            const struct bny_boot_hello *hello, const struct bny_boot_welcome *welcome) {
  uint8_t mac[BNY_BOOT_MAC_BYTES];
  authenticate_joining(key, label_welcome, challenge, hello, welcome, mac);
  return sodium_memcmp(mac, welcome->mac, sizeof mac) == 0;
}

void bny_boot_session_derive(const uint8_t *key, const struct bny_boot_challenge *challenge,
                             const struct bny_boot_hello *hello, uint8_t session[BNY_BOOT_KEY_BYTES]) {
  authenticate_joining(key, label_session, challenge, hello, NULL, session);
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */

static const char label_to_rank_0[LABEL_BYTES] = "banyan to rank 0";
static const char label_from_rank_0[LABEL_BYTES] = "banyan from 0";

_Static_assert(sizeof(struct bny_boot_frame) == 96, "no padding on the wire");

void bny_boot_payload_hash(const void *payload, size_t bytes, uint8_t hash[BNY_BOOT_HASH_BYTES]) {
  crypto_generichash(hash, BNY_BOOT_HASH_BYTES, payload, bytes, NULL, 0);
}

static void authenticate_frame(const struct bny_boot_link *link, bool to_rank_0, const struct bny_boot_frame *frame,
                               uint8_t mac[BNY_BOOT_MAC_BYTES]) {
  const struct iovec parts[3] = {{(void *)(uintptr_t)frame, offsetof(struct bny_boot_frame, mac)}};
  authenticate(link->session, to_rank_0 ? label_to_rank_0 : label_from_rank_0, parts, mac);
}

static void make_frame(struct bny_boot_link *link, const struct bny_boot_says *says, size_t bytes,
                       const uint8_t hash[BNY_BOOT_HASH_BYTES], struct bny_boot_frame *frame) {
  *frame = (struct bny_boot_frame){.kind = htole32((uint32_t)says->kind),
                                   .status = htole32((uint32_t)says->status),
                                   .sequence = htole64(link->nsent++),
                                   .bytes = htole64(bytes),
                                   .left_ms = htole32(says->left_ms)};
  memcpy(frame->hash, hash, BNY_BOOT_HASH_BYTES);
  authenticate_frame(link, !link->at_rank_0, frame, frame->mac);
}

bool bny_boot_link_post(struct bny_boot_link *link, const struct bny_boot_says *says, const char *note) {
  struct bny_boot_frame frame;
  uint8_t hash[BNY_BOOT_HASH_BYTES];
  size_t bytes = strlen(note);
  if (sizeof frame + bytes > sizeof link->queue - link->queue_bytes) return false;
  bny_boot_payload_hash(note, bytes, hash);
  make_frame(link, says, bytes, hash, &frame);
  memcpy(link->queue + link->queue_bytes, &frame, sizeof frame);
  memcpy(link->queue + link->queue_bytes + sizeof frame, note, bytes);
  link->queue_bytes += sizeof frame + bytes;
  return true;
}

void bny_boot_link_prepare(struct bny_boot_link *link, const struct bny_boot_says *says, const void *payload,
                           size_t bytes, const uint8_t hash[BNY_BOOT_HASH_BYTES]) {
  make_frame(link, says, bytes, hash, &link->out);
  link->out_payload = payload;
  link->out_bytes = sizeof link->out + bytes;
  link->out_done = 0;
}

bool bny_boot_link_is_sending(const struct bny_boot_link *link) {
  return link->queue_bytes > link->queue_done || link->out_bytes > link->out_done;
}

/* Makes one recv() of up to `bytes` and advances *done. */
static enum bny_boot_progress receive_some(struct bny_boot_link *link, void *place, size_t bytes, size_t *done) {
  ssize_t got;
  link->error = 0;
  if (link->maker != bny_process()) return BNY_BOOT_LOST;
  do got = recv(link->fd, place, bytes, MSG_DONTWAIT);
  while (got < 0 && errno == EINTR);
  if (got > 0) {
    *done += (size_t)got;
    return BNY_BOOT_DONE;
  }
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return BNY_BOOT_MORE;
  if (got < 0) link->error = errno;
  return BNY_BOOT_LOST;
}

/* Sends from `from` up to byte `end`; *done bytes are already sent. */
static enum bny_boot_progress send_some(struct bny_boot_link *link, const void *from, size_t end, size_t *done) {
  link->error = 0;
  while (*done < end) {
    if (link->maker != bny_process()) return BNY_BOOT_LOST;
    ssize_t put = send(link->fd, (const char *)from + *done, end - *done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put >= 0) {
      *done += (size_t)put;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return BNY_BOOT_MORE;
    link->error = errno;
    return BNY_BOOT_LOST;
  }
  return BNY_BOOT_DONE;
}

enum bny_boot_progress bny_boot_link_send(struct bny_boot_link *link) {
  enum bny_boot_progress progress = send_some(link, link->queue, link->queue_bytes, &link->queue_done);
  if (progress != BNY_BOOT_DONE) return progress;
  link->queue_bytes = link->queue_done = 0;
  if (link->out_bytes == 0) return BNY_BOOT_DONE;
  size_t header = sizeof link->out;
  if (link->out_done < header) progress = send_some(link, &link->out, header, &link->out_done);
  if (progress != BNY_BOOT_DONE) return progress;
  size_t payload_done = link->out_done - header;
  progress = send_some(link, link->out_payload, link->out_bytes - header, &payload_done);
  link->out_done = header + payload_done;
  if (progress == BNY_BOOT_DONE) link->out_bytes = link->out_done = 0;
  return progress;
}

enum bny_boot_progress bny_boot_link_receive_header(struct bny_boot_link *link) {
  if (link->in_done >= sizeof link->in) return BNY_BOOT_DONE;
  while (link->in_done < sizeof link->in) {
    enum bny_boot_progress progress =
        receive_some(link, (char *)&link->in + link->in_done, sizeof link->in - link->in_done, &link->in_done);
    if (progress != BNY_BOOT_DONE) return progress;
  }
  uint8_t mac[BNY_BOOT_MAC_BYTES];
  authenticate_frame(link, link->at_rank_0, &link->in, mac);
  if (sodium_memcmp(mac, link->in.mac, sizeof mac) != 0) return BNY_BOOT_FORGED;
  link->in.kind = le32toh(link->in.kind);
  link->in.status = le32toh(link->in.status);
  link->in.sequence = le64toh(link->in.sequence);
  link->in.bytes = le64toh(link->in.bytes);
  link->in.left_ms = le32toh(link->in.left_ms);
  return link->in.sequence == link->nreceived ? BNY_BOOT_DONE : BNY_BOOT_FORGED;
}

enum bny_boot_progress bny_boot_link_receive_payload(struct bny_boot_link *link, void *payload) {
  size_t total = sizeof link->in + link->in.bytes;
  while (link->in_done < total) {
    char *place = (char *)payload + (link->in_done - sizeof link->in);
    enum bny_boot_progress progress = receive_some(link, place, total - link->in_done, &link->in_done);
    if (progress != BNY_BOOT_DONE) return progress;
  }
  uint8_t hash[BNY_BOOT_HASH_BYTES];
  bny_boot_payload_hash(payload, link->in.bytes, hash);
  if (sodium_memcmp(hash, link->in.hash, sizeof hash) != 0) return BNY_BOOT_FORGED;
  link->in_done = 0;
  link->nreceived++;
  return BNY_BOOT_DONE;
}

enum bny_boot_progress bny_boot_link_receive_note(struct bny_boot_link *link) {
  enum bny_boot_progress progress = bny_boot_link_receive_header(link);
  if (progress != BNY_BOOT_DONE) return progress;
  if (link->in.bytes >= sizeof link->note) return BNY_BOOT_FORGED;
  link->note[link->in.bytes] = '\0';
  return bny_boot_link_receive_payload(link, link->note);
}

void bny_boot_socket_close(int fd, uint64_t process) {
  char rest[4096];
  bool is_own = process == bny_process();
  if (is_own) shutdown(fd, SHUT_WR);
  for (int i = 0; is_own && i < 256 && recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0; i++) continue;
  close(fd);
}

void bny_boot_link_close(struct bny_boot_link *link) {
  if (link->fd >= 0) bny_boot_socket_close(link->fd, link->maker);
  link->fd = -1;
  link->queue_bytes = link->queue_done = 0;
  link->out_bytes = link->out_done = 0;
  sodium_memzero(link->session, sizeof link->session);
}
