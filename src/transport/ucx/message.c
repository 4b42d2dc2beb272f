/* SPDX-License-Identifier: Apache-2.0
 * Active messages: sent from packets, then checked and copied into mirrors on arrival. */
#ifdef HAVE_UCX
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "transport/ucx/ucx.h"

/* ---- sending ----------------------------------------------------------------------------------------------------- */

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
  return packet;
}

static void release(bny_net_packet *packet) {
  bny_net *net = packet->peer->net;
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

static void post(bny_net_packet *packet, unsigned id, size_t header_bytes, const void *payload, size_t bytes,
                 ucs_memory_type_t memory) {
  bny_net_peer *peer = packet->peer;
  bny_net *net = peer->net;
  ucp_request_param_t param = {
      .op_attr_mask = PARAMETERS | UCP_OP_ATTR_FIELD_FLAGS,
      .flags = UCP_AM_SEND_FLAG_EAGER, /* the receiver need not fetch it */
      .cb.send = sent,
      .user_data = packet,
      .memory_type = memory,
  };
  note_request(packet, net->ucx.ucp_am_send_nbx(peer->endpoint, id, &packet->of, header_bytes, payload, bytes, &param));
}

static ucs_memory_type_t memory_of_slots(const bny_net *net) {
  return net->transport.sends_cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

static void put_from(bny_net_packet *packet, const void *from, size_t bytes, uint64_t to, ucs_memory_type_t memory) {
  bny_net_peer *peer = packet->peer;
  ucp_request_param_t param = {.op_attr_mask = PARAMETERS, .cb.send = sent, .user_data = packet, .memory_type = memory};
  packet->counts = true;
  note_request(packet, peer->net->ucx.ucp_put_nbx(peer->endpoint, from, bytes, to, peer->rkey, &param));
}

void bny_net_send_put(bny_net_packet *packet, const void *payload, size_t bytes, uint64_t to) {
  put_from(packet, payload, bytes, to, memory_of_slots(packet->peer->net));
}

void bny_net_send_signal(bny_net_packet *packet, uint64_t to) {
  put_from(packet, &packet->of.tag, sizeof packet->of.tag, to, UCS_MEMORY_TYPE_HOST);
}

void bny_net_send_data(bny_net_packet *packet, const void *payload, size_t bytes) {
  packet->counts = true;
  post(packet, BNY_NET_DATA, sizeof packet->of.data, payload, bytes, memory_of_slots(packet->peer->net));
}

static void send_note(bny_net_peer *peer, bny_net_word word, uint64_t tag, int32_t slot) {
  bny_net *net = peer->net;
  bny_net_packet *packet = bny_net_can_send(peer) ? bny_net_packet_take(peer) : NULL;
  if (!packet) return;
  bny_rank_line *line = net->transport.ops->line(&net->transport, net->transport.rank);
  packet->of.note = (bny_net_note){
      .cookie = net->cookie,
      .done = atomic_load_explicit(&line->done, memory_order_relaxed),
      .tag = tag,
      .slot = slot,
      .rank = net->transport.rank,
      .word = word,
  };
  packet->counts = word == BNY_NET_ACKNOWLEDGE;
  post(packet, BNY_NET_NOTE, sizeof packet->of.note, NULL, 0, UCS_MEMORY_TYPE_HOST);
}

void bny_net_send_note(bny_net_peer *peer, bny_net_word word) { send_note(peer, word, 0, 0); }

void bny_net_send_sleep(bny_net_peer *peer, const bny_net_wish *wish) {
  send_note(peer, BNY_NET_SLEEP, wish->tag, wish->slot);
}

void bny_net_send_report(bny_net_packet *packet) {
  post(packet, BNY_NET_REPORT, sizeof packet->of.report, NULL, 0, UCS_MEMORY_TYPE_HOST);
}

void bny_net_send_rejection(bny_net_packet *packet) {
  packet->counts = true;
  post(packet, BNY_NET_REJECTION, sizeof packet->of.rejection, NULL, 0, UCS_MEMORY_TYPE_HOST);
}

void bny_net_send_rendezvous(bny_net_packet *packet, const bny_rendezvous *rendezvous) {
  packet->counts = true;
  post(packet, BNY_NET_RENDEZVOUS, sizeof packet->of.rendezvous, rendezvous->text, rendezvous->bytes,
       UCS_MEMORY_TYPE_HOST);
}

void bny_net_send_offer(bny_net_peer *peer, uint64_t address, const void *rkey, size_t bytes) {
  bny_net *net = peer->net;
  bny_net_packet *packet = bny_net_can_send(peer) ? bny_net_packet_take(peer) : NULL;
  if (!packet) return;
  packet->of.offer = (bny_net_offer){.cookie = net->cookie, .address = address, .rank = net->transport.rank};
  post(packet, BNY_NET_OFFER, sizeof packet->of.offer, rkey, bytes, UCS_MEMORY_TYPE_HOST);
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

/* ---- receiving --------------------------------------------------------------------------------------------------- */

/* Returns the sender of a message: a rank of another node in this communicator that is not known to be broken; else
 * NULL. */
static bny_net_peer *sender_of(bny_net *net, uint64_t cookie, int32_t rank) {
  if (cookie != net->cookie || rank < 0 || rank >= net->transport.nranks || net->place[rank] >= 0) return NULL;
  bny_net_peer *peer = bny_net_meet(net, rank);
  return peer && !peer->broken ? peer : NULL;
}

/* A peer that sends one such message can send millions: a few are logged, the others counted. */
static ucs_status_t reject(bny_net *net, const char *what, size_t bytes) {
  if (net->rejected++ < BNY_NET_REJECTIONS_REPORTED)
    bny_log(BNY_LOG_WARN, "rank %d: a message that is no %s of this communicator (%zu bytes) is ignored%s",
            net->transport.rank, what, bytes,
            net->rejected == BNY_NET_REJECTIONS_REPORTED
                ? "; of more of them only their number will be received, at the end"
                : "");
  return UCS_OK;
}

static void raise_done(bny_rank_line *line, uint64_t done) {
  if (done > atomic_load_explicit(&line->done, memory_order_relaxed))
    atomic_store_explicit(&line->done, done, memory_order_release);
}

static bool is_sound(const bny_net *net, const bny_net_data *data, size_t bytes) {
  size_t half_bytes = net->transport.half_bytes;
  return data->slot >= 0 && data->slot < net->transport.slots_max && data->offset <= half_bytes &&
         data->bytes <= half_bytes - data->offset && data->first <= data->bytes && bytes <= data->bytes - data->first &&
         (bytes > 0 || data->bytes == 0);
}

/* Copies a piece into the mirror; the last piece of a message makes the signal visible. */
static void put(bny_net_peer *peer, const bny_net_data *data, const void *payload, size_t bytes) {
  const bny_transport *transport = &peer->net->transport;
  int half = (int)(data->tag >> 32 & 1);
  size_t index = (size_t)half * (size_t)transport->slots_max + (size_t)data->slot;
  if (bytes) memcpy(peer->outbox + (size_t)half * transport->half_bytes + data->offset + data->first, payload, bytes);
  bny_landing *landing = &peer->landings[index];
  if (landing->tag != data->tag) *landing = (bny_landing){data->tag, data->offset, 0};
  landing->bytes += bytes;
  if (landing->bytes < data->bytes) return;
  atomic_store_explicit(&peer->signals[index], data->tag, memory_order_release);
}

static ucs_status_t receive_data(void *argument, const void *header, size_t header_bytes, void *payload, size_t bytes,
                                 const ucp_am_recv_param_t *param) {
  bny_net *net = argument;
  bny_net_data data;
  if (header_bytes != sizeof data || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) return reject(net, "data", bytes);
  memcpy(&data, header, sizeof data);
  bny_net_peer *peer = sender_of(net, data.cookie, data.rank);
  if (!peer) return reject(net, "data", bytes);
  if (!is_sound(net, &data, bytes)) {
    bny_net_lose(peer, UCS_ERR_INVALID_PARAM); /* it belongs to this communicator, and is broken */
    peer->broken = true;
    return reject(net, "data", bytes);
  }
  if (bny_net_mirror(peer) != BANYAN_OK) return reject(net, "data that there is memory for", bytes);
  bny_rank_line *line = &net->lines[data.rank];
  if ((int32_t)((uint32_t)(data.tag >> 32) -
                (uint32_t)(atomic_load_explicit(&line->started, memory_order_relaxed) >> 32)) >= 0)
    atomic_store_explicit(&line->started, data.tag, memory_order_release);
  raise_done(line, data.done);
  put(peer, &data, payload, bytes);
  return UCS_OK;
}

static ucs_status_t receive_note(void *argument, const void *header, size_t header_bytes, void *payload, size_t bytes,
                                 const ucp_am_recv_param_t *param) {
  bny_net *net = argument;
  bny_net_note note;
  (void)payload, (void)param;
  if (header_bytes != sizeof note || bytes) return reject(net, "note", bytes);
  memcpy(&note, header, sizeof note);
  bny_net_peer *peer = sender_of(net, note.cookie, note.rank);
  if (!peer || note.word < BNY_NET_ASK || note.word > BNY_NET_WAKE || note.slot < 0 ||
      note.slot >= net->transport.slots_max)
    return reject(net, "note", header_bytes);
  raise_done(&net->lines[note.rank], note.done);
  if (note.word == BNY_NET_ASK) bny_net_want_answer(peer);
  if (note.word == BNY_NET_SLEEP) bny_net_put_note_sleep(peer, note.tag, note.slot);
  return UCS_OK;
}

static ucs_status_t receive_report(void *argument, const void *header, size_t header_bytes, void *payload, size_t bytes,
                                   const ucp_am_recv_param_t *param) {
  bny_net *net = argument;
  bny_net_report report;
  (void)payload, (void)param;
  if (header_bytes != sizeof report || bytes) return reject(net, "news", bytes);
  memcpy(&report, header, sizeof report);
  if (!sender_of(net, report.cookie, report.rank) || report.of[0].rank != report.rank)
    return reject(net, "news", header_bytes);
  bny_net_receive_report(net, &report);
  return UCS_OK;
}

static ucs_status_t receive_rejection(void *argument, const void *header, size_t header_bytes, void *payload,
                                      size_t bytes, const ucp_am_recv_param_t *param) {
  bny_net *net = argument;
  bny_net_rejection received;
  (void)payload, (void)param;
  if (header_bytes != sizeof received || bytes) return reject(net, "rejection", bytes);
  memcpy(&received, header, sizeof received);
  if (!sender_of(net, received.cookie, received.rank) || received.rejection.rank < 0 ||
      received.rejection.rank >= net->transport.nranks || received.rejection.first > received.rejection.last ||
      received.rejection.first == 0)
    return reject(net, "rejection", header_bytes);
  raise_done(&net->lines[received.rank], received.done);
  received.rejection.text[sizeof received.rejection.text - 1] = 0;
  bny_net_receive_rejection(net, &received.rejection);
  return UCS_OK;
}

static ucs_status_t receive_rendezvous(void *argument, const void *header, size_t header_bytes, void *payload,
                                       size_t bytes, const ucp_am_recv_param_t *param) {
  bny_net *net = argument;
  bny_net_rendezvous rendezvous;
  if (header_bytes != sizeof rendezvous || bytes > BNY_RENDEZVOUS_BYTES ||
      (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV))
    return reject(net, "rendezvous", bytes);
  memcpy(&rendezvous, header, sizeof rendezvous);
  if (!sender_of(net, rendezvous.cookie, rendezvous.rank)) return reject(net, "rendezvous", bytes);
  bny_net_take_rendezvous(net, &rendezvous, payload, bytes);
  return UCS_OK;
}

static ucs_status_t receive_offer(void *argument, const void *header, size_t header_bytes, void *payload, size_t bytes,
                                  const ucp_am_recv_param_t *param) {
  enum { KEY_BYTES_MAX = 4096 };
  bny_net *net = argument;
  bny_net_offer offer;
  if (header_bytes != sizeof offer || bytes > KEY_BYTES_MAX || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV))
    return reject(net, "offer", bytes);
  memcpy(&offer, header, sizeof offer);
  bny_net_peer *peer = sender_of(net, offer.cookie, offer.rank);
  if (!peer || !net->puts) return reject(net, "offer", bytes);
  bny_net_put_take_offer(peer, offer.address, payload, bytes);
  return UCS_OK;
}

banyan_status bny_net_listen(bny_net *net) {
  static const struct {
    unsigned id;
    ucp_am_recv_callback_t receive;
  } handlers[] = {{BNY_NET_DATA, receive_data},     {BNY_NET_NOTE, receive_note},
                  {BNY_NET_REPORT, receive_report}, {BNY_NET_RENDEZVOUS, receive_rendezvous},
                  {BNY_NET_OFFER, receive_offer},   {BNY_NET_REJECTION, receive_rejection}};
  for (size_t i = 0; i < sizeof handlers / sizeof handlers[0]; i++) {
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = handlers[i].id,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = handlers[i].receive,
        .arg = net,
    };
    ucs_status_t status = net->ucx.ucp_worker_set_am_recv_handler(net->worker, &param);
    if (status != UCS_OK)
      return bny_fail(BANYAN_ERR_SYSTEM, "UCX takes no handler of messages: %s", net->ucx.ucs_status_string(status));
  }
  return BANYAN_OK;
}

void bny_net_free_packets(bny_net *net) {
  while (net->packets) {
    bny_net_packet *next = net->packets->next;
    free(net->packets);
    net->packets = next;
  }
}
#else
typedef int bny_net_message_is_absent; /* a file must not be empty */
#endif
