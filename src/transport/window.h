/* SPDX-License-Identifier: Apache-2.0
 * The memory that the ranks of one node share, and the transport functions that are loads and stores in it. `loop` and
 * `shm` differ in how they get the memory and notice a death. */
#pragma once

#include "transport/transport.h"

typedef struct bny_window {
  bny_transport transport; /* first: a window is a transport */
  char *base;
  size_t bytes;
  size_t stride; /* distance between the parts of two ranks */
} bny_window;

/* Return the bytes that a window of nranks needs, and make a window over memory that is zero when the first rank sees
 * it. */
size_t bny_window_bytes(int32_t nranks, const bny_arena_config *config);
void bny_window_init(bny_window *window, const bny_transport_ops *ops, void *base, int32_t rank, int32_t nranks,
                     const bny_arena_config *config);

/* Returns a counter in the shared header for the owner's use. */
_Atomic uint32_t *bny_window_users(bny_window *window);

/* The functions below as entries of a bny_transport_ops. */
#define BNY_WINDOW_OPS                                                                         \
  .peer_outbox = bny_window_peer_outbox, .signal = bny_window_signal, .send = bny_window_send, \
  .line = bny_window_line, .call = bny_window_call, .rendezvous = bny_window_rendezvous,       \
  .heartbeat = bny_window_heartbeat, .rejections = bny_window_rejections

const char *bny_window_peer_outbox(bny_transport *transport, int32_t peer, int half);
const bny_signal *bny_window_signal(bny_transport *transport, int32_t peer, int32_t slot, int half);
void bny_window_send(bny_transport *transport, uint64_t tag, int32_t slot, size_t offset, size_t bytes,
                     const int32_t *peers, int32_t npeers);
bny_rank_line *bny_window_line(bny_transport *transport, int32_t rank);
bny_signal *bny_window_call(bny_transport *transport, int32_t rank);
bny_rendezvous *bny_window_rendezvous(bny_transport *transport, int32_t rank, int half);
uint64_t bny_window_heartbeat(bny_transport *transport, int32_t rank);
bny_rejections *bny_window_rejections(bny_transport *transport, int32_t rank);
