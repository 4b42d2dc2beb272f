/* SPDX-License-Identifier: Apache-2.0
 * Rendezvous messages between nodes: each node that a rank posts to keeps a copy. */
#ifdef HAVE_UCX
#include <string.h>

#include "transport/ucx/ucx.h"

bny_mail *bny_net_mail_of(bny_transport *transport, int32_t rank, int half) {
  bny_net *net = bny_net_of(transport);
  if (net->place[rank] >= 0) return net->local->ops->mail(net->local, net->place[rank], half);
  return &net->mails[2 * (size_t)rank + (size_t)half];
}

void bny_net_post(bny_transport *transport, int32_t rank, int half) {
  bny_net *net = bny_net_of(transport);
  if (net->place[rank] >= 0) return; /* that rank reads it in place */
  bny_net_take(net);
  bny_net_peer *peer = bny_net_connect_peer(net, rank);
  bny_net_packet *packet = peer && bny_net_can_send(peer) ? bny_net_packet_take(peer) : NULL;
  if (packet) {
    const bny_mail *own = bny_net_mail_of(transport, transport->rank, half);
    packet->of.mail = (bny_net_mail){.cookie = net->cookie, .rank = transport->rank, .kind = own->kind,
                                     .round = atomic_load_explicit(&own->round, memory_order_relaxed)};
    bny_net_send_mail(packet, own);
  }
  bny_net_give(net);
}

void bny_net_take_mail(bny_net *net, const bny_net_mail *head, const void *text, size_t bytes) {
  bny_mail *mail = &net->mails[2 * (size_t)head->rank + (size_t)(head->round & 1)];
  if (head->round <= atomic_load_explicit(&mail->round, memory_order_relaxed)) return;
  mail->kind = head->kind;
  mail->bytes = (uint32_t)bytes;
  if (bytes) memcpy(mail->text, text, bytes);
  atomic_store_explicit(&mail->round, head->round, memory_order_release);
}
#else
typedef int bny_net_mail_is_absent; /* a file must not be empty */
#endif
