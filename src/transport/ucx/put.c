/* SPDX-License-Identifier: Apache-2.0
 * Sends by one-sided puts, the second way to send, into mirrors in memory that is registered with UCX. The sender puts
 * the payload, a fence and the signal; the receiver polls its own memory. All other data travels as active messages.
 *
 * Puts are for RDMA. Over TCP the receiver's UCX carries them out. A receiver that has left its call then keeps the
 * sender waiting, and UCX 1.13 ends the process if the connection breaks meanwhile. The fence orders the puts; the
 * connection does not, because an adapter may write with relaxed ordering.
 *
 * A put wakes no rank. A rank that is about to sleep informs the rank that it waits for. That rank sends a note after
 * its put, or at once if it has put already. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "transport/ucx/ucx.h"

/* ---- the choice -------------------------------------------------------------------------------------------------- */

banyan_status bny_net_put_read(const char *text, bny_net_put_wish *wish) {
  static const char *const names[] = {
      [BNY_NET_PUT_AUTO] = "auto", [BNY_NET_PUT_OFF] = "off", [BNY_NET_PUT_EMULATED] = "emulated"};
  *wish = BNY_NET_PUT_AUTO;
  if (!text) return BANYAN_OK;
  for (int i = BNY_NET_PUT_AUTO; i <= BNY_NET_PUT_EMULATED; i++) {
    if (strcmp(text, names[i]) != 0) continue;
    *wish = (bny_net_put_wish)i;
    return BANYAN_OK;
  }
  return bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_UCX_PUT is \"%.40s\"; it takes auto, off or emulated", text);
}

/* ---- offers ------------------------------------------------------------------------------------------------------ */

void bny_net_put_offer(bny_net_peer *peer) {
  bny_net *net = peer->net;
  size_t bytes = 0;
  banyan_status status = bny_net_mirror(peer);
  if (status == BANYAN_OK && !peer->offered) {
    ucs_status_t packed = net->ucx.ucp_rkey_pack(net->context, peer->memory, &peer->offered, &bytes);
    if (packed != UCS_OK)
      status = bny_net_fail_registration(peer, net->ucx.ucs_status_string(packed));
    else
      bny_net_send_offer(peer, (uint64_t)(uintptr_t)peer->outbox, peer->offered, bytes);
  }
  if (status == BANYAN_OK) return;
  bny_log(BNY_LOG_ERROR, "rank %d: %s", net->transport.rank, banyan_last_error());
  bny_net_lose(peer, UCS_ERR_NO_MEMORY);
}

void bny_net_put_take_offer(bny_net_peer *peer, uint64_t address, const void *rkey, size_t bytes) {
  if (peer->rkey_bytes) return; /* one offer is enough */
  peer->rkey_bytes = malloc(bytes ? bytes : 1);
  if (!peer->rkey_bytes) return; /* the peer stays unreached, and the deadline reports it */
  if (bytes) memcpy(peer->rkey_bytes, rkey, bytes);
  peer->remote = address;
}

/* A node may have RDMA adapters and reach another node by TCP. UCX prints its lanes as text. The names below are those
 * of transports whose puts are carried out by hardware. */
static bool is_over_rdma(const bny_net_peer *peer) {
  static const char *const names[] = {":rc_", ":dc_"};
  char *text = NULL;
  size_t bytes;
  bool found = false;
  FILE *stream = open_memstream(&text, &bytes);
  if (!stream) return false;
  peer->net->ucx.ucp_ep_print_info(peer->endpoint, stream);
  if (fclose(stream) == 0)
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) found = found || strstr(text, names[i]);
  free(text);
  return found;
}

/* The offer may precede the endpoint on which to unpack it. */
bool bny_net_put_is_ready(bny_net_peer *peer) {
  bny_net *net = peer->net;
  if (peer->rkey) return true;
  if (!peer->rkey_bytes || !bny_net_can_send(peer)) return false;
  ucs_status_t status = net->ucx.ucp_ep_rkey_unpack(peer->endpoint, peer->rkey_bytes, &peer->rkey);
  if (status == UCS_OK) {
    peer->takes_puts = net->wish == BNY_NET_PUT_EMULATED || is_over_rdma(peer);
    return true;
  }
  peer->rkey = NULL;
  bny_net_lose(peer, status);
  return false;
}

static bool takes_puts(const bny_net *net, int32_t rank) {
  const bny_net_peer *peer = net->transport.place[rank] < 0 ? net->peers[rank] : NULL;
  return peer && peer->takes_puts && bny_net_can_send(peer);
}

/* A message of any kind wakes the peer. */
static void wake(bny_net_peer *peer) {
  peer->sleeps_for.tag = 0;
  bny_net_send_note(peer, BNY_NET_WAKE);
}

void bny_net_put(bny_net *net, const bny_net_data *what, const char *payload, const int32_t *peers, int32_t npeers) {
  const bny_transport *transport = &net->transport;
  uint64_t half = what->tag >> 32 & 1;
  uint64_t at = half * transport->half_bytes + what->offset;
  uint64_t signal = 2 * net->transport.half_bytes +
                    (half * (uint64_t)transport->slots_max + (uint64_t)what->slot) * sizeof(bny_signal);
  int32_t count = 0;
  for (int32_t i = 0; i < npeers; i++) {
    if (!takes_puts(net, peers[i])) continue;
    bny_net_peer *peer = net->peers[peers[i]];
    bny_net_packet *packet = what->bytes ? bny_net_packet_take(peer) : NULL;
    if (packet) bny_net_send_put(packet, payload, what->bytes, peer->remote + at);
    net->transport.bytes_between_nodes += what->bytes;
    count++;
  }
  if (count == 0) return;
  /* Operations after the fence take effect after those before it. */
  ucs_status_t fenced = net->ucx.ucp_worker_fence(net->worker);
  for (int32_t i = 0; i < npeers; i++) {
    if (!takes_puts(net, peers[i])) continue;
    bny_net_peer *peer = net->peers[peers[i]];
    if (fenced != UCS_OK) bny_net_lose(peer, fenced);
    /* A signal must not arrive without its payload. */
    bny_net_packet *packet = bny_net_can_send(peer) ? bny_net_packet_take(peer) : NULL;
    if (!packet) continue;
    packet->of.tag = what->tag;
    bny_net_send_signal(packet, peer->remote + signal);
    if (peer->sleeps_for.tag == what->tag && peer->sleeps_for.slot == what->slot) wake(peer);
  }
  /* A peer that began to sleep while this rank did its own work has sent a note, which this receives. */
  net->ucx.ucp_worker_progress(net->worker);
}

void bny_net_put_report_sleep(bny_net *net) {
  bny_transport *transport = &net->transport;
  bny_rank_line *line = transport->ops->line(transport, transport->rank);
  uint64_t waiting = atomic_load_explicit(&line->waiting, memory_order_relaxed);
  bny_net_wish wish = {
      .tag = atomic_load_explicit(&line->started, memory_order_relaxed),
      .rank = (int32_t)(waiting >> 32) - 1,
      .slot = (int32_t)(uint32_t)waiting,
  };
  const bny_net_wish *known = &net->reported_sleep;
  if (wish.rank < 0 || wish.slot < 0 || net->transport.place[wish.rank] >= 0 || !net->peers[wish.rank]) return;
  if (known->tag == wish.tag && known->rank == wish.rank && known->slot == wish.slot) return;
  net->reported_sleep = wish;
  bny_net_send_sleep(net->peers[wish.rank], &wish);
}

/* The slot may have been put while the note was on its way. In that case this rank's own signal is set. */
void bny_net_put_note_sleep(bny_net_peer *peer, uint64_t tag, int32_t slot) {
  bny_transport *transport = &peer->net->transport;
  const bny_signal *own = transport->ops->signal(transport, transport->rank, slot, (int)(tag >> 32 & 1));
  peer->sleeps_for = (bny_net_wish){.tag = tag, .slot = slot};
  if (atomic_load_explicit(own, memory_order_relaxed) == tag) wake(peer);
}
