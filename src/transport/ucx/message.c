/* SPDX-License-Identifier: Apache-2.0
 * Sends active messages, each from a packet. receive.c handles their arrival. */
#include <stdlib.h>
#include <string.h>

#include "transport/ucx/ucx.h"

bny_net_packet *bny_net_packet_take(bny_net_peer *peer) {
  bny_net *net = peer->net;
  bny_net_packet *packet = net->packets;
  if (packet)
    net->packets = packet->next;
  else
    packet = malloc(sizeof *packet);
  if (!packet) {
    bny_net_lack_memory(peer);
    return NULL;
  }
  packet->peer = peer;
  packet->counts = false;
  packet->text = NULL;
  return packet;
}

bny_net_head bny_net_head_of(bny_net *net) {
  const bny_rank_line *line = net->transport.ops->line(&net->transport, net->transport.rank);
  return (bny_net_head){.cookie = net->cookie,
                        .done = atomic_load_explicit(&line->done, memory_order_relaxed),
                        .rank = net->transport.rank};
}

bny_net_packet *bny_net_message_to(bny_net_peer *peer) {
  bny_net_packet *packet = bny_net_can_send(peer) ? bny_net_packet_take(peer) : NULL;
  if (!packet) return NULL;
  memset(&packet->of, 0, sizeof packet->of);
  packet->of.head = bny_net_head_of(peer->net);
  return packet;
}

static void release(bny_net_packet *packet) {
  bny_net *net = packet->peer->net;
  free(packet->text);
  packet->next = net->packets;
  net->packets = packet;
}

/* The packet was sent, or lost with its endpoint. */
static void sent(void *request, ucs_status_t status, void *argument) {
  bny_net_packet *packet = argument;
  bny_net *net = packet->peer->net;
  if (status != UCS_OK) bny_net_lose(packet->peer, status);
  packet->peer->under_way--;
  if (packet->counts) net->under_way--;
  release(packet);
  net->ucx.ucp_request_free(request);
}

/* Counts the request if UCX has not finished with it. */
static void note_request(bny_net_packet *packet, ucs_status_ptr_t request) {
  if (UCS_PTR_IS_ERR(request)) bny_net_lose(packet->peer, UCS_PTR_STATUS(request));
  if (!request || UCS_PTR_IS_ERR(request)) {
    release(packet);
    return;
  }
  packet->peer->under_way++;
  if (packet->counts) packet->peer->net->under_way++;
}

/* The request states the kind of memory. UCX with CUDA would otherwise ask the driver in the middle of a run, and write
 * jumps into its functions to avoid asking again. */
enum { PARAMETERS = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE };

const size_t bny_net_header_bytes[BNY_NET_KINDS] = {
    [BNY_NET_DATA] = sizeof(bny_net_data),     [BNY_NET_NOTE] = sizeof(bny_net_note),
    [BNY_NET_REPORT] = sizeof(bny_net_report), [BNY_NET_RENDEZVOUS] = sizeof(bny_net_rendezvous),
    [BNY_NET_OFFER] = sizeof(bny_net_offer),   [BNY_NET_REJECTION] = sizeof(bny_net_rejection)};

void bny_net_send(bny_net_packet *packet, int32_t kind, const void *payload, size_t bytes) {
  bny_net_peer *peer = packet->peer;
  ucp_request_param_t param = {
      .op_attr_mask = PARAMETERS | UCP_OP_ATTR_FIELD_FLAGS,
      .flags = UCP_AM_SEND_FLAG_EAGER, /* the receiver need not fetch it */
      .cb.send = sent,
      .user_data = packet,
      .memory_type = UCS_MEMORY_TYPE_HOST,
  };
  packet->of.head.kind = kind;
  packet->counts = kind == BNY_NET_DATA || kind == BNY_NET_RENDEZVOUS || kind == BNY_NET_REJECTION ||
                   (kind == BNY_NET_NOTE && packet->of.note.word == BNY_NET_ACKNOWLEDGE);
  note_request(packet, peer->net->ucx.ucp_am_send_nbx(peer->endpoint, 0, &packet->of, bny_net_header_bytes[kind],
                                                      payload, bytes, &param));
}

void bny_net_send_put(bny_net_packet *packet, const void *payload, size_t bytes, uint64_t to) {
  bny_net_peer *peer = packet->peer;
  ucp_request_param_t param = {
      .op_attr_mask = PARAMETERS, .cb.send = sent, .user_data = packet, .memory_type = UCS_MEMORY_TYPE_HOST};
  packet->counts = true;
  note_request(packet, peer->net->ucx.ucp_put_nbx(peer->endpoint, payload, bytes, to, peer->rkey, &param));
}

void bny_net_send_signal(bny_net_packet *packet, uint64_t to) {
  bny_net_send_put(packet, &packet->of.tag, sizeof packet->of.tag, to);
}

static void send_note(bny_net_peer *peer, bny_net_word word, uint64_t tag, int32_t slot) {
  bny_net_packet *packet = bny_net_message_to(peer);
  if (!packet) return;
  packet->of.note.tag = tag;
  packet->of.note.slot = slot;
  packet->of.note.word = word;
  bny_net_send(packet, BNY_NET_NOTE, NULL, 0);
}

void bny_net_send_note(bny_net_peer *peer, bny_net_word word) { send_note(peer, word, 0, 0); }

void bny_net_send_sleep(bny_net_peer *peer, const bny_net_wish *wish) {
  send_note(peer, BNY_NET_SLEEP, wish->tag, wish->slot);
}

void bny_net_send_offer(bny_net_peer *peer, uint64_t address, const void *rkey, size_t bytes) {
  bny_net_packet *packet = bny_net_message_to(peer);
  if (!packet) return;
  packet->of.offer.address = address;
  bny_net_send(packet, BNY_NET_OFFER, rkey, bytes);
}

bny_rendezvous *bny_net_rendezvous_of(bny_transport *transport, int32_t rank, int half) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[rank] >= 0) return net->local->ops->rendezvous(net->local, transport->place[rank], half);
  return &net->rendezvous[2 * (size_t)rank + (size_t)half];
}

void bny_net_send_rendezvous(bny_net_peer *peer, int half) {
  bny_net *net = peer->net;
  bny_net_packet *packet = bny_net_message_to(peer);
  const bny_rendezvous *own = bny_net_rendezvous_of(&net->transport, net->transport.rank, half);
  if (packet && own->bytes) {
    packet->text = malloc(own->bytes); /* a later round may overwrite it before a slow peer has taken it */
    if (!packet->text) {
      bny_net_lack_memory(peer);
      release(packet);
      packet = NULL;
    }
  }
  if (!packet) return;
  if (own->bytes) memcpy(packet->text, own->text, own->bytes);
  packet->of.rendezvous.kind = own->kind;
  packet->of.rendezvous.round = atomic_load_explicit(&own->round, memory_order_relaxed);
  if (net->transport.network == BNY_NETWORK_TCP) net->unflushed = true;
  bny_net_send(packet, BNY_NET_RENDEZVOUS, packet->text, own->bytes);
}

void bny_net_post(bny_transport *transport, int32_t rank, int half) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[rank] >= 0) return; /* the rank reads it in place */
  bny_net_take(net);
  bny_net_peer *peer = bny_net_connect_peer(net, rank);
  if (peer) bny_net_send_rendezvous(peer, half);
  bny_net_give(net);
}

static void flushed(void *request, ucs_status_t status, void *argument) {
  bny_net_peer *peer = argument;
  peer->flushing = false;
  if (status == UCS_OK)
    peer->flushed = true;
  else
    bny_net_lose(peer, status);
  peer->net->ucx.ucp_request_free(request);
}

void bny_net_flush(bny_net_peer *peer) {
  ucp_request_param_t param = {
      .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.send = flushed, .user_data = peer};
  ucs_status_ptr_t request = peer->net->ucx.ucp_ep_flush_nbx(peer->endpoint, &param);
  if (!request)
    peer->flushed = true;
  else if (UCS_PTR_IS_ERR(request))
    bny_net_lose(peer, UCS_PTR_STATUS(request));
  else
    peer->flushing = true;
}

void bny_net_free_packets(bny_net *net) {
  while (net->packets) {
    bny_net_packet *next = net->packets->next;
    free(net->packets);
    net->packets = next;
  }
}
