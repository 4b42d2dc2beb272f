/* SPDX-License-Identifier: Apache-2.0
 * Frames over an authenticated, non-blocking connection. */
#include "boot_tcp.h"

#ifdef HAVE_SODIUM
#include <endian.h>
#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

enum { LABEL_BYTES = 16 };
static const char label_to_server[LABEL_BYTES] = "banyan to server";
static const char label_to_client[LABEL_BYTES] = "banyan to client";

_Static_assert(sizeof(struct bny_boot_frame) == 96, "no padding on the wire");

void bny_boot_payload_hash(const void *payload, size_t bytes, uint8_t hash[BNY_BOOT_HASH_BYTES]) {
  crypto_generichash(hash, BNY_BOOT_HASH_BYTES, payload, bytes, NULL, 0);
}

static void authenticate(const struct bny_boot_link *link, bool to_server, const struct bny_boot_frame *frame,
                         uint8_t mac[BNY_BOOT_MAC_BYTES]) {
  crypto_auth_hmacsha512256_state state;
  crypto_auth_hmacsha512256_init(&state, link->session, sizeof link->session);
  crypto_auth_hmacsha512256_update(&state, (const uint8_t *)(to_server ? label_to_server : label_to_client),
                                   LABEL_BYTES);
  crypto_auth_hmacsha512256_update(&state, (const uint8_t *)frame, offsetof(struct bny_boot_frame, mac));
  crypto_auth_hmacsha512256_final(&state, mac);
  sodium_memzero(&state, sizeof state);
}

void bny_boot_link_prepare(struct bny_boot_link *link, enum bny_boot_kind kind, banyan_status status, uint32_t left_ms,
                           const void *payload, size_t bytes, const uint8_t hash[BNY_BOOT_HASH_BYTES]) {
  link->out = (struct bny_boot_frame){.kind = htole32((uint32_t)kind),
                                      .status = htole32((uint32_t)status),
                                      .sequence = htole64(link->nsent++),
                                      .bytes = htole64(bytes),
                                      .left_ms = htole32(left_ms)};
  memcpy(link->out.hash, hash, BNY_BOOT_HASH_BYTES);
  authenticate(link, !link->at_server, &link->out, link->out.mac);
  link->out_payload = payload;
  link->out_bytes = bytes;
  link->out_done = 0;
}

/* One recv() of up to `bytes`; advances *done. */
static enum bny_boot_progress receive_some(struct bny_boot_link *link, void *place, size_t bytes, size_t *done) {
  ssize_t got;
  do got = recv(link->fd, place, bytes, MSG_DONTWAIT);
  while (got < 0 && errno == EINTR);
  if (got > 0) {
    *done += (size_t)got;
    return BNY_BOOT_DONE;
  }
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return BNY_BOOT_MORE;
  link->error = got < 0 ? errno : 0;
  return BNY_BOOT_LOST;
}

enum bny_boot_progress bny_boot_link_send(struct bny_boot_link *link) {
  size_t total = sizeof link->out + link->out_bytes;
  while (link->out_done < total) {
    bool header = link->out_done < sizeof link->out;
    const char *from = header ? (const char *)&link->out + link->out_done
                              : (const char *)link->out_payload + (link->out_done - sizeof link->out);
    size_t bytes = header ? sizeof link->out - link->out_done : total - link->out_done;
    ssize_t put = send(link->fd, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put >= 0) {
      link->out_done += (size_t)put;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return BNY_BOOT_MORE;
    link->error = errno;
    return BNY_BOOT_LOST;
  }
  return BNY_BOOT_DONE;
}

enum bny_boot_progress bny_boot_link_receive_header(struct bny_boot_link *link) {
  if (link->in_done >= sizeof link->in) return BNY_BOOT_DONE;
  while (link->in_done < sizeof link->in) {
    enum bny_boot_progress progress =
        receive_some(link, (char *)&link->in + link->in_done, sizeof link->in - link->in_done, &link->in_done);
    if (progress != BNY_BOOT_DONE) return progress;
  }
  uint8_t mac[BNY_BOOT_MAC_BYTES];
  authenticate(link, link->at_server, &link->in, mac);
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

void bny_boot_link_close(struct bny_boot_link *link) {
  if (link->fd >= 0) bny_boot_socket_close(link->fd);
  link->fd = -1;
  sodium_memzero(link->session, sizeof link->session);
}
#endif
