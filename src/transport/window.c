/* SPDX-License-Identifier: Apache-2.0
 * Lays out the memory that ranks of one node share, and accesses its slots, signals and lines. */
#include "transport/window.h"

/* Shared memory: one header, then per rank: line, call, signals of both halves, outbox of both halves, rendezvous
 * messages. Parts begin at pages, so that unused pages are never touched. */
enum { PAGE = 4096 };

typedef struct header {
  _Alignas(BNY_LINE_BYTES) bny_signal fault;
  _Alignas(BNY_LINE_BYTES) _Atomic uint32_t users;
  _Alignas(BNY_LINE_BYTES) bny_signal rejected;
} header;

_Static_assert(sizeof(bny_rendezvous) % PAGE == 0, "parts begin at pages");

typedef struct padded_signal {
  _Alignas(BNY_LINE_BYTES) bny_signal value;
} padded_signal;

typedef struct rank_part {
  bny_rank_line line;
  _Alignas(BNY_LINE_BYTES) bny_signal call[BNY_CALL_WORDS];
  _Alignas(BNY_LINE_BYTES) bny_rejections rejections;
  padded_signal signals[]; /* [2][slots_max] */
} rank_part;

static size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

static size_t outbox_offset(int32_t slots_max) {
  return round_up(sizeof(rank_part) + 2 * (size_t)slots_max * sizeof(padded_signal), PAGE);
}

static size_t rank_stride(const bny_arena_config *config) {
  return outbox_offset(config->slots_max) + 2 * round_up(config->half_bytes, PAGE) + 2 * sizeof(bny_rendezvous);
}

size_t bny_window_bytes(int32_t nranks, const bny_arena_config *config) {
  return PAGE + (size_t)nranks * rank_stride(config);
}

void bny_window_init(bny_window *window, const bny_transport_ops *ops, void *base, int32_t rank, int32_t nranks,
                     const bny_arena_config *config) {
  header *shared = base;
  window->transport = (bny_transport){
      .ops = ops,
      .rank = rank,
      .nranks = nranks,
      .half_bytes = round_up(config->half_bytes, PAGE),
      .slots_max = config->slots_max,
      .fault = &shared->fault,
      .rejected = &shared->rejected,
  };
  window->base = base;
  window->bytes = bny_window_bytes(nranks, config);
  window->stride = rank_stride(config);
  for (int half = 0; half < 2; half++)
    window->transport.halves[half] = (char *)(uintptr_t)bny_window_peer_outbox(&window->transport, rank, half);
}

static rank_part *part_of(bny_transport *transport, int32_t rank) {
  bny_window *window = (bny_window *)transport;
  return (rank_part *)(void *)(window->base + PAGE + (size_t)rank * window->stride);
}

_Atomic uint32_t *bny_window_users(bny_window *window) { return &((header *)(void *)window->base)->users; }

const char *bny_window_peer_outbox(bny_transport *transport, int32_t peer, int half) {
  return (const char *)part_of(transport, peer) + outbox_offset(transport->slots_max) +
         (size_t)half * transport->half_bytes;
}

const bny_signal *bny_window_signal(bny_transport *transport, int32_t peer, int32_t slot, int half) {
  return &part_of(transport, peer)->signals[half * transport->slots_max + slot].value;
}

void bny_window_send(bny_transport *transport, uint64_t tag, int32_t slot, size_t offset, size_t bytes,
                     const int32_t *peers, int32_t npeers) {
  /* the data is in place already, and one signal serves all readers */
  (void)offset, (void)bytes, (void)peers, (void)npeers;
  int half = (int)(tag >> 32 & 1);
  padded_signal *signal = &part_of(transport, transport->rank)->signals[half * transport->slots_max + slot];
  atomic_store_explicit(&signal->value, tag, memory_order_release);
}

bny_rendezvous *bny_window_rendezvous(bny_transport *transport, int32_t rank, int half) {
  size_t offset =
      outbox_offset(transport->slots_max) + 2 * transport->half_bytes + (size_t)half * sizeof(bny_rendezvous);
  return (bny_rendezvous *)(void *)((char *)part_of(transport, rank) + offset);
}

bny_rank_line *bny_window_line(bny_transport *transport, int32_t rank) { return &part_of(transport, rank)->line; }

uint64_t bny_window_heartbeat(bny_transport *transport, int32_t rank) {
  return atomic_load_explicit(&bny_window_line(transport, rank)->looks, memory_order_relaxed);
}

bny_signal *bny_window_call(bny_transport *transport, int32_t rank) { return part_of(transport, rank)->call; }

bny_rejections *bny_window_rejections(bny_transport *transport, int32_t rank) {
  return &part_of(transport, rank)->rejections;
}
