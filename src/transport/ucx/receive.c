/* SPDX-License-Identifier: Apache-2.0
 * Receives active messages: checks them, then copies them into mirrors or passes them to their handlers. */
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "transport/ucx/ucx.h"

/* Returns the sender of a message: a rank of another node in this communicator that is not known to be broken; else
 * NULL. */
static bny_net_peer *sender_of(bny_net *net, const bny_net_head *head) {
  if (head->cookie != net->cookie || head->rank < 0 || head->rank >= net->transport.nranks ||
      net->transport.place[head->rank] >= 0)
    return NULL;
  bny_net_peer *peer = bny_net_meet(net, head->rank);
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

static void raise_done(bny_net *net, const bny_net_head *head) {
  bny_rank_line *line = &net->lines[head->rank];
  const uint64_t done = head->done;
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

/* The functions below handle messages of their kinds. Each returns NULL, or what the message is not. */

static const char *take_data(bny_net_peer *peer, const bny_net_message *message, const void *payload, size_t bytes) {
  bny_net *net = peer->net;
  const bny_net_data *data = &message->data;
  if (!is_sound(net, data, bytes)) {
    bny_net_lose(peer, UCS_ERR_INVALID_PARAM); /* the peer belongs to this communicator, and is broken */
    peer->broken = true;
    return "data";
  }
  if (bny_net_mirror(peer) != BANYAN_OK) return "data that there is memory for";
  bny_rank_line *line = &net->lines[peer->rank];
  if ((int32_t)((uint32_t)(data->tag >> 32) -
                (uint32_t)(atomic_load_explicit(&line->started, memory_order_relaxed) >> 32)) >= 0)
    atomic_store_explicit(&line->started, data->tag, memory_order_release);
  raise_done(net, &data->head);
  put(peer, data, payload, bytes);
  return NULL;
}

static const char *take_note(bny_net_peer *peer, const bny_net_message *message, const void *payload, size_t bytes) {
  const bny_net_note *note = &message->note;
  (void)payload, (void)bytes;
  if (note->word < BNY_NET_ASK || note->word > BNY_NET_WAKE || note->slot < 0 ||
      note->slot >= peer->net->transport.slots_max)
    return "note";
  raise_done(peer->net, &note->head);
  if (note->word == BNY_NET_ASK) bny_net_want_answer(peer);
  if (note->word == BNY_NET_SLEEP) bny_net_put_note_sleep(peer, note->tag, note->slot);
  return NULL;
}

static const char *take_report(bny_net_peer *peer, const bny_net_message *message, const void *payload, size_t bytes) {
  (void)payload, (void)bytes;
  if (message->report.of[0].rank != peer->rank) return "news";
  bny_net_receive_report(peer->net, &message->report);
  return NULL;
}

static const char *take_rejection(bny_net_peer *peer, const bny_net_message *message, const void *payload,
                                  size_t bytes) {
  bny_rejection rejection = message->rejection.rejection;
  (void)payload, (void)bytes;
  if (rejection.rank < 0 || rejection.rank >= peer->net->transport.nranks || rejection.first > rejection.last ||
      rejection.first == 0)
    return "rejection";
  raise_done(peer->net, &message->head);
  rejection.text[sizeof rejection.text - 1] = 0;
  bny_net_receive_rejection(peer->net, &rejection);
  return NULL;
}

/* Stores a rendezvous message; one of a past round is ignored. */
static const char *take_rendezvous(bny_net_peer *peer, const bny_net_message *message, const void *text, size_t bytes) {
  const bny_net_rendezvous *from = &message->rendezvous;
  bny_rendezvous *rendezvous = &peer->net->rendezvous[2 * (size_t)peer->rank + (size_t)(from->round & 1)];
  if (from->round <= atomic_load_explicit(&rendezvous->round, memory_order_relaxed)) return NULL;
  rendezvous->kind = from->kind;
  rendezvous->bytes = (uint32_t)bytes;
  if (bytes) memcpy(rendezvous->text, text, bytes);
  atomic_store_explicit(&rendezvous->round, from->round, memory_order_release);
  if (peer->told) bny_net_want_answer(peer);
  return NULL;
}

static const char *take_offer(bny_net_peer *peer, const bny_net_message *message, const void *payload, size_t bytes) {
  if (!peer->net->puts) return "offer";
  bny_net_put_take_offer(peer, message->offer.address, payload, bytes);
  return NULL;
}

enum { KEY_BYTES_MAX = 4096 };

static const struct {
  const char *name;
  size_t bytes_max; /* the longest payload */
  const char *(*take)(bny_net_peer *peer, const bny_net_message *message, const void *payload, size_t bytes);
} kinds[BNY_NET_KINDS] = {[BNY_NET_DATA] = {"data", SIZE_MAX, take_data},
                          [BNY_NET_NOTE] = {"note", 0, take_note},
                          [BNY_NET_REPORT] = {"news", 0, take_report},
                          [BNY_NET_RENDEZVOUS] = {"rendezvous", BNY_RENDEZVOUS_BYTES, take_rendezvous},
                          [BNY_NET_OFFER] = {"offer", KEY_BYTES_MAX, take_offer},
                          [BNY_NET_REJECTION] = {"rejection", 0, take_rejection}};

static ucs_status_t receive(void *argument, const void *header, size_t header_bytes, void *payload, size_t bytes,
                            const ucp_am_recv_param_t *param) {
  bny_net *net = argument;
  bny_net_message message;
  if (header_bytes >= sizeof message.head) memcpy(&message.head, header, sizeof message.head);
  const int32_t kind = header_bytes >= sizeof message.head ? message.head.kind : 0;
  if (kind < BNY_NET_DATA || kind >= BNY_NET_KINDS) return reject(net, "message", bytes);
  const bool fits = header_bytes == bny_net_header_bytes[kind] && bytes <= kinds[kind].bytes_max &&
                    !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV);
  if (fits) memcpy(&message, header, header_bytes);
  bny_net_peer *peer = fits ? sender_of(net, &message.head) : NULL;
  const char *wrong = peer ? kinds[kind].take(peer, &message, payload, bytes) : kinds[kind].name;
  return wrong ? reject(net, wrong, bytes) : UCS_OK;
}

banyan_status bny_net_listen(bny_net *net) {
  ucp_am_handler_param_t param = {
      .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                    UCP_AM_HANDLER_PARAM_FIELD_ARG,
      .flags = UCP_AM_FLAG_WHOLE_MSG,
      .cb = receive,
      .arg = net,
  };
  ucs_status_t status = net->ucx.ucp_worker_set_am_recv_handler(net->worker, &param);
  if (status == UCS_OK) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_SYSTEM, "UCX takes no handler of messages: %s", net->ucx.ucs_status_string(status));
}
