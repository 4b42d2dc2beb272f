/* SPDX-License-Identifier: Apache-2.0
 * Sends units. A template argument `Destinations` is a struct with these methods, where d is a destination of a row:
 *   int count()
 *   int64_t number(int d, int32_t token, int32_t head)   index of the unit at d; -1: the row does not go to d
 *   unsigned char *unit(int d, int64_t number)           address of that unit
 *   uint64_t *signal(int d, int64_t number)              that unit's signal: SIMPLE
 *   bool alike()                                         number() is the same for all d */
#pragma once

#include "cuda/packets.h"
#include "cuda/worker.h"

/* Rows whose signals are sent together, because each release takes a round trip to the peers. */
enum { BNY_PUSH_ROWS = 16 };

/* SIMPLE: rows whose units are sent but whose signals are pending. Lane i holds row i. */
struct bny_push_pending {
  int32_t token, head;
  int count;
};

template <int protocol, class Destinations>
BNY_DEVICE void bny_push_packet(const bny_worker &self, const Destinations &to, int32_t token, int32_t head, int packet,
                                bool active, const bny_packet &value) {
  int64_t number = to.alike() ? to.number(0, token, head) : -1;
  BNY_ROLLED for (int d = 0; d < to.count(); d++) {
    if (!to.alike()) number = to.number(d, token, head);
    if (number >= 0) bny_packet_store<protocol>(to.unit(d, number), packet, value, self.epoch, active);
  }
}

/* Sends the pending signals. A peer that sees a signal sees the unit: the stores of all lanes come first, then a warp
 * sync, a fence, and the signals. */
template <class Destinations>
BNY_DEVICE void bny_push_signals(const bny_worker &self, const Destinations &to, bny_push_pending *pending) {
  bny_warp_sync();
  if ((int)bny_lane() < pending->count) {
    bny_worker_fence_alias(*self.group);
    bny_fence_sys();
    BNY_ROLLED for (int d = 0; d < to.count(); d++) {
      int64_t number = to.number(d, pending->token, pending->head);
      if (number >= 0) bny_store_relaxed_sys_64(to.signal(d, number), self.epoch);
    }
    bny_worker_fence_alias(*self.group);
  }
  pending->count = 0;
}

/* Called after a row's unit has been pushed. */
template <int protocol, class Destinations>
BNY_DEVICE void bny_push_row(const bny_worker &self, const Destinations &to, int32_t token, int32_t head,
                             bny_push_pending *pending) {
  if (protocol != BNY_PROTOCOL_SIMPLE) {
    bny_worker_fence_alias(*self.group);
    return;
  }
  if ((int)bny_lane() == pending->count) {
    pending->token = token;
    pending->head = head;
  }
  if (++pending->count == BNY_PUSH_ROWS) bny_push_signals(self, to, pending);
}

/* Called after the last row. */
template <int protocol, class Destinations>
BNY_DEVICE void bny_push_end(const bny_worker &self, const Destinations &to, bny_push_pending *pending) {
  if (protocol == BNY_PROTOCOL_SIMPLE && pending->count > 0) bny_push_signals(self, to, pending);
}
