/* SPDX-License-Identifier: Apache-2.0
 * Receives active messages: checks them, then copies them into mirrors or passes them to their handlers. */
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "transport/ucx/ucx.h"

/* Returns the sender of a message: a rank of another node in this communicator that is not known to be broken; else
 * NULL. */
static bny_net_peer *sender_of(bny_net *net, uint64_t cookie, int32_t rank) {
  if (cookie != net->cookie || rank < 0 || rank >= net->transport.nranks || net->transport.place[rank] >= 0)
    return NULL;
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
    bny_net_lose(peer, UCS_ERR_INVALID_PARAM); /* the peer belongs to this communicator, and is broken */
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

/* Stores a rendezvous message; one of a past round is ignored. */
static void take_rendezvous(bny_net *net, const bny_net_rendezvous *head, const void *text, size_t bytes) {
  bny_rendezvous *rendezvous = &net->rendezvous[2 * (size_t)head->rank + (size_t)(head->round & 1)];
  if (head->round <= atomic_load_explicit(&rendezvous->round, memory_order_relaxed)) return;
  rendezvous->kind = head->kind;
  rendezvous->bytes = (uint32_t)bytes;
  if (bytes) memcpy(rendezvous->text, text, bytes);
  atomic_store_explicit(&rendezvous->round, head->round, memory_order_release);
  if (net->peers[head->rank]->told) bny_net_want_answer(net->peers[head->rank]);
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
  take_rendezvous(net, &rendezvous, payload, bytes);
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
