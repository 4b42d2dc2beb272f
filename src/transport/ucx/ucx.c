/* SPDX-License-Identifier: Apache-2.0
 * Implements the functions of the transport `net`, and connects it. */
#include "transport/transport.h"
#ifdef HAVE_UCX
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/interface.h"
#include "base/log.h"
#include "base/process.h"
#include "base/status.h"
#include "transport/ucx/ucx.h"

/* ---- memory and signals ------------------------------------------------------------------------------------------ */

static const char *net_peer_outbox(bny_transport *transport, int32_t peer, int half) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[peer] >= 0) return net->local->ops->peer_outbox(net->local, transport->place[peer], half);
  return net->peers[peer]->outbox + (size_t)half * transport->half_bytes;
}

static const bny_signal *net_signal(bny_transport *transport, int32_t peer, int32_t slot, int half) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[peer] >= 0) return net->local->ops->signal(net->local, transport->place[peer], slot, half);
  return &net->peers[peer]->signals[(size_t)half * (size_t)transport->slots_max + (size_t)slot];
}

static const bny_landing *net_landing(bny_transport *transport, int32_t peer, int32_t slot, int half) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[peer] >= 0 || net->puts) return NULL; /* a put has no description besides its signal */
  return &net->peers[peer]->landings[(size_t)half * (size_t)transport->slots_max + (size_t)slot];
}

static bny_rank_line *net_line(bny_transport *transport, int32_t rank) {
  bny_net *net = bny_net_of(transport);
  return transport->place[rank] >= 0 ? net->local->ops->line(net->local, transport->place[rank]) : &net->lines[rank];
}

static bny_signal *net_call(bny_transport *transport, int32_t rank) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[rank] >= 0) return net->local->ops->call(net->local, transport->place[rank]);
  return net->calls + (size_t)rank * BNY_CALL_WORDS;
}

static bny_rejections *net_rejections(bny_transport *transport, int32_t rank) {
  bny_net *net = bny_net_of(transport);
  return transport->place[rank] >= 0 ? net->local->ops->rejections(net->local, transport->place[rank]) : NULL;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void send_pieces(bny_net_peer *peer, const bny_net_data *what, const char *payload) {
  uint64_t first = 0;
  do {
    bny_net_packet *packet = bny_net_packet_take(peer);
    if (!packet) return;
    uint64_t bytes = what->bytes - first;
    if (bytes > peer->net->piece_bytes) bytes = peer->net->piece_bytes;
    packet->of.data = *what;
    packet->of.data.first = first;
    peer->net->transport.bytes_between_nodes += bytes;
    bny_net_send(packet, BNY_NET_DATA, payload + first, bytes);
    first += bytes;
  } while (first < what->bytes);
}

static void net_send(bny_transport *transport, uint64_t tag, int32_t slot, size_t offset, size_t bytes,
                     const int32_t *peers, int32_t npeers) {
  bny_net *net = bny_net_of(transport);
  net->local->ops->send(net->local, tag, slot, offset, bytes, NULL, 0); /* one signal serves all readers of this node */
  bny_net_data data = {.head = bny_net_head_of(net), .tag = tag, .offset = offset, .bytes = bytes, .slot = slot};
  int half = (int)(tag >> 32 & 1);
  const char *outbox = transport->halves[half];
  const char *payload = outbox + offset;
  bny_net_take(net);
  if (net->puts) bny_net_put(net, &data, payload, peers, npeers);
  for (int32_t i = 0; i < npeers; i++) {
    if (transport->place[peers[i]] >= 0) continue;
    bny_net_peer *peer = net->peers[peers[i]];
    if (peer && !peer->takes_puts && bny_net_can_send(peer)) send_pieces(peer, &data, payload);
    if (transport->network == BNY_NETWORK_TCP || (net->puts && peer && !peer->takes_puts)) net->unflushed = true;
  }
  bny_net_give(net);
}

static void net_progress(bny_transport *transport) {
  bny_net *net = bny_net_of(transport);
  if (!bny_net_try(net)) return; /* another thread makes progress */
  net->ucx.ucp_worker_progress(net->worker);
  if (net->nwaiting) bny_net_answer(net);
  bny_net_give(net);
}

static banyan_status net_prepare_receive(bny_transport *transport, int32_t rank) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[rank] >= 0) return BANYAN_OK;
  bny_net_take(net);
  bny_net_peer *peer = bny_net_meet(net, rank);
  banyan_status status =
      peer ? bny_net_mirror(peer)
           : bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory to meet rank %d", transport->rank, rank);
  bny_net_give(net);
  return status;
}

/* UCX before 1.14 may end the process if a peer dies while two ranks connect. Over TCP it does not if both make their
 * endpoints before they read from the network; over RDMA if the lower rank connects first, and the other answers. */
static bool net_connect(bny_transport *transport, int32_t rank) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[rank] >= 0) return true;
  bny_net_take(net);
  bool connects = transport->rank < rank || transport->network == BNY_NETWORK_TCP;
  bny_net_peer *peer = connects ? bny_net_connect_peer(net, rank) : bny_net_meet(net, rank);
  if (peer && !peer->endpoint) peer->expected = true;
  if (peer && peer->endpoint && !peer->hello_sent) bny_net_send_hello(peer);
  bool reached = peer && peer->hello_received && peer->flushed && (!net->puts || bny_net_put_is_ready(peer));
  bny_net_give(net);
  return reached;
}

/* Over TCP a message counts as sent when UCX has copied it. If the socket is full, a later progress sends it, and after
 * a run a rank may make no progress for long. */
static bool is_flushed(bny_net *net) {
  if (!net->unflushed) return true;
  if (!net->flush) {
    ucp_request_param_t param = {.op_attr_mask = 0};
    net->flush = net->ucx.ucp_worker_flush_nbx(net->worker, &param); /* completes at once if nothing is left */
  }
  if (net->flush && !UCS_PTR_IS_ERR(net->flush)) {
    if (net->ucx.ucp_request_check_status(net->flush) == UCS_INPROGRESS) return false;
    net->ucx.ucp_request_free(net->flush);
  }
  net->flush = NULL;
  net->unflushed = false;
  return true;
}

static bool net_flushed(bny_transport *transport, int32_t *peer) {
  bny_net *net = bny_net_of(transport);
  bny_net_take(net);
  bool settled = !net->under_way && is_flushed(net);
  if (!settled && peer) *peer = bny_net_most_silent(net);
  bny_net_give(net);
  return settled;
}

static void net_acknowledge(bny_transport *transport, const int32_t *peers, int32_t npeers) {
  bny_net *net = bny_net_of(transport);
  bny_net_take(net);
  for (int32_t i = 0; i < npeers; i++) {
    bny_net_peer *peer = net->peers[peers[i]];
    if (peer) bny_net_send_note(peer, BNY_NET_ACKNOWLEDGE);
  }
  bny_net_give(net);
}

/* ---- sleep and death --------------------------------------------------------------------------------------------- */

static bool net_is_dead(bny_transport *transport, int32_t rank) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[rank] >= 0) return net->local->ops->is_dead(net->local, transport->place[rank]);
  bny_net_take(net); /* a thread that aborts may change dead flags and the list of peers */
  bool dead = net->peers[rank] && net->peers[rank]->dead;
  bny_net_give(net);
  return dead;
}

static bool net_has_ended(bny_transport *transport, int32_t rank) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[rank] >= 0) return net->local->ops->has_ended(net->local, transport->place[rank]);
  bny_net_take(net);
  bool ended = net->peers[rank] && net->peers[rank]->ended;
  bny_net_give(net);
  return ended;
}

static bool net_is_connected(bny_transport *transport, int32_t rank) {
  bny_net *net = bny_net_of(transport);
  if (transport->place[rank] >= 0) return true;
  bny_net_take(net);
  const bny_net_peer *peer = net->peers[rank];
  bool connected = peer && peer->hello_received && bny_net_can_send(peer);
  bny_net_give(net);
  return connected;
}

static int32_t net_sleep(bny_transport *transport, int64_t sleep_ns) {
  bny_net *net = bny_net_of(transport);
  if (sleep_ns > 0 && bny_net_try(net)) {
    if (net->puts) bny_net_put_report_sleep(net);
    bool armed = bny_net_arm(net);
    bny_net_give(net);
    if (armed) bny_net_doze(net, sleep_ns);
  }
  int32_t found = net->local->ops->sleep(net->local, 0);
  int32_t dead = found >= 0 ? net->locals[found] : -1;
  bny_net_take(net);
  for (int32_t i = 0; i < net->nknown; i++)
    if (net->known[i]->dead && (dead < 0 || net->known[i]->rank < dead)) dead = net->known[i]->rank;
  bny_net_give(net);
  return dead;
}

static void free_net(bny_net *net) {
  /* The child of a fork does not use its parent's connections, but shares their kernel objects. */
  if (net->process == bny_process()) bny_net_free_worker(net);
  bny_net_free_peers(net);
  bny_net_free_packets(net);
  if (net->local) net->local->ops->close(net->local);
  free(net->transport.place), free(net->locals), free(net->watches), free(net->peers), free(net->known);
  free(net->lines), free(net->calls), free(net->addresses), free(net->interfaces), free(net->rendezvous),
      free(net->devices.list);
  free(net);
}

static void net_close(bny_transport *transport) {
  bny_net *net = bny_net_of(transport);
  if (net->process == bny_process()) {
    bny_net_tell_no_more(net);
    bny_net_take(net);
    net->closes = true;
    bny_net_send_goodbye(net);
    if (net->rejected > BNY_NET_REJECTIONS_REPORTED)
      bny_log(BNY_LOG_WARN,
              "rank %d: %" PRIu64 " messages that do not belong to this communicator were ignored in total",
              net->transport.rank, net->rejected);
  }
  free_net(net);
}

static const char *net_connect_error(bny_transport *transport, int32_t rank, bool *is_ours) {
  bny_net_peer *peer = bny_net_of(transport)->peers[rank];
  if (peer && peer->flushing && !peer->hello_sent && !peer->dead)
    bny_net_explain(peer, "it has not connected; a firewall may drop packets", "");
  *is_ours = peer && (peer->endpoint ? peer->lacks_memory : !peer->unreachable);
  return peer && peer->trouble[0] ? peer->trouble : NULL;
}

static const bny_transport_ops net_ops = {
    .name = "net",
    .peer_outbox = net_peer_outbox,
    .signal = net_signal,
    .send = net_send,
    .line = net_line,
    .call = net_call,
    .sleep = net_sleep,
    .is_dead = net_is_dead,
    .has_ended = net_has_ended,
    .rendezvous = bny_net_rendezvous_of,
    .heartbeat = bny_net_heartbeat,
    .rejections = net_rejections,
    .close = net_close,
    .progress = net_progress,
    .landing = net_landing,
    .prepare_receive = net_prepare_receive,
    .connect = net_connect,
    .is_connected = net_is_connected,
    .connect_error = net_connect_error,
    .flushed = net_flushed,
    .post = bny_net_post,
    .tell = bny_net_tell,
    .acknowledge = net_acknowledge,
    .forward_rejection = bny_net_forward_rejection,
    .probe = bny_net_probe,
    .broadcast_fault = bny_net_broadcast_fault,
};

/* ---- connecting -------------------------------------------------------------------------------------------------- */

/* The facts that each rank sends before addresses are exchanged. */
typedef struct announcement {
  int32_t status;
  int32_t network;
  int32_t put;
  uint64_t cookie; /* rank 0's is used */
  uint64_t address_bytes;
  char why[256]; /* reason for the status */
  char interfaces[BNY_NET_INTERFACES_BYTES];
} announcement;

static banyan_status exchange_cards(bny_net *net, const bny_exchange *exchange, banyan_status mine,
                                    size_t address_bytes) {
  int32_t nranks = net->transport.nranks;
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  announcement *all = calloc((size_t)nranks, sizeof *all);
  if (!all)
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory to connect %d ranks", net->transport.rank, nranks);
  announcement own = {.status = (int32_t)mine, .put = (int32_t)net->wish, .address_bytes = address_bytes};
  if (getrandom(&own.cookie, sizeof own.cookie, 0) != sizeof own.cookie) own.cookie = (uint64_t)bny_clock_ns();
  if (mine == BANYAN_OK) own.network = (int32_t)bny_net_find_network(net);
  if (mine != BANYAN_OK) snprintf(own.why, sizeof own.why, "%.*s", (int)sizeof own.why - 1, why);
  bny_interface_list(own.interfaces, sizeof own.interfaces);
  banyan_status status = bny_exchange_all(exchange, &own, all, sizeof own);
  net->cookie = all[0].cookie;
  net->transport.network = BNY_NETWORK_RDMA;
  bool is_off = false, asks_for_rdma = false;
  for (int32_t i = 0; i < nranks && status == BANYAN_OK; i++) {
    memcpy(net->interfaces[i], all[i].interfaces, sizeof net->interfaces[i]);
    if (all[i].status != BANYAN_OK)
      status = bny_fail((banyan_status)all[i].status, "rank %d could not be connected: %.*s", i,
                        (int)sizeof all[i].why - 1, all[i].why);
    if (all[i].network < (int32_t)net->transport.network) net->transport.network = (bny_network)all[i].network;
    if (all[i].address_bytes > net->address_bytes) net->address_bytes = all[i].address_bytes;
    is_off = is_off || all[i].put == BNY_NET_PUT_OFF;
    asks_for_rdma = asks_for_rdma || all[i].put == BNY_NET_PUT_AUTO;
  }
  net->puts = net->transport.puts = !is_off && (!asks_for_rdma || net->transport.network == BNY_NETWORK_RDMA);
  free(all);
  return mine == BANYAN_OK ? status : bny_fail(mine, "%s", why);
}

static banyan_status exchange_addresses(bny_net *net, const bny_exchange *exchange, const void *address, size_t bytes) {
  char *mine = calloc(1, net->address_bytes);
  net->addresses = malloc((size_t)net->transport.nranks * net->address_bytes);
  banyan_status status = BANYAN_OK;
  if (!mine || !net->addresses)
    status = bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for the addresses of %d ranks", net->transport.rank,
                      net->transport.nranks);
  if (status == BANYAN_OK) {
    memcpy(mine, address, bytes);
    status = bny_exchange_all(exchange, mine, net->addresses, net->address_bytes);
  }
  free(mine);
  return status;
}

/* A piece is one packet of the network, so that UCX need not reassemble messages. */
enum { TCP_PIECE_BYTES = 60 << 10, RDMA_PIECE_BYTES = 8000 };

static banyan_status connect_nodes(bny_net *net, const bny_exchange *exchange, const bny_net_config *config,
                                   banyan_status status) {
  ucp_address_t *address = NULL;
  size_t address_bytes = 0;
  if (status == BANYAN_OK) status = bny_net_start(net, config, &address, &address_bytes);
  status = exchange_cards(net, exchange, status, address_bytes);
  if (status == BANYAN_OK) status = exchange_addresses(net, exchange, address, address_bytes);
  if (address) net->ucx.ucp_worker_release_address(net->worker, address);
  net->piece_bytes = net->transport.network == BNY_NETWORK_TCP ? TCP_PIECE_BYTES : RDMA_PIECE_BYTES;
  return status;
}

static bny_net *make_net(const banyan_bootstrap *bootstrap, const bny_arena_config *arena) {
  size_t nranks = (size_t)bootstrap->nranks;
  bny_net *net = calloc(1, sizeof *net);
  if (!net) return NULL;
  *net = (bny_net){
      .transport = {.ops = &net_ops,
                    .rank = bootstrap->rank,
                    .nranks = bootstrap->nranks,
                    .place = calloc(nranks, sizeof *net->transport.place),
                    .slots_max = arena->slots_max},
      .locals = calloc(nranks, sizeof *net->locals),
      .watches = calloc(nranks, sizeof *net->watches),
      .peers = calloc(nranks, sizeof *net->peers),
      .known = calloc(nranks, sizeof *net->known),
      .lines = aligned_alloc(BNY_LINE_BYTES, nranks * sizeof *net->lines),
      .calls = calloc(nranks * BNY_CALL_WORDS, sizeof *net->calls),
      .rendezvous = calloc(2 * nranks, sizeof *net->rendezvous),
      .interfaces = calloc(nranks, sizeof *net->interfaces),
      .process = bny_process(),
      .event_fd = -1,
      .busy = ATOMIC_FLAG_INIT,
  };
  if (net->transport.place && net->locals && net->watches && net->peers && net->known && net->lines && net->calls &&
      net->rendezvous && net->interfaces) {
    memset((void *)net->lines, 0, nranks * sizeof *net->lines);
    return net;
  }
  free_net(net);
  return NULL;
}

/* Connects the window of the ranks of this node, the same that they would have without other nodes. All ranks run the
 * same number of exchanges, even after failures. */
static banyan_status connect_local(bny_net *net, const bny_exchange *exchange, const bny_net_config *config) {
  bny_group_exchange group;
  int32_t nlocals = 0;
  for (int32_t i = 0; i < net->transport.nranks; i++) {
    net->transport.place[i] = -1;
    if (config->node_of[i] != config->node_of[net->transport.rank]) continue;
    net->transport.place[i] = nlocals;
    net->locals[nlocals++] = i;
  }
  banyan_status status = bny_group_exchange_begin(exchange, config->node_of, &group);
  if (status != BANYAN_OK) return status;
  status = config->one_process ? bny_loop_connect(&group.exchange, &config->arena, &net->local)
                               : bny_shm_connect(&group.exchange, &config->arena, &net->local);
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  bny_group_exchange_end(&group);
  if (status != BANYAN_OK)
    return bny_fail(status, "among the %d ranks of this node, of which rank 0 is rank %d: %s", nlocals, net->locals[0],
                    why);
  memcpy(net->transport.halves, net->local->halves, sizeof net->transport.halves);
  net->transport.half_bytes = net->local->half_bytes;
  net->transport.fault = net->local->fault;
  net->transport.rejected = net->local->rejected;
  return BANYAN_OK;
}

banyan_status bny_net_connect(const bny_exchange *exchange, const bny_net_config *config, bny_transport **transport) {
  bny_net *net = make_net(exchange->bootstrap, &config->arena);
  if (!net)
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for the transport of %d ranks", exchange->bootstrap->rank,
                    exchange->bootstrap->nranks);
  banyan_status wished = bny_net_put_read(config->put, &net->wish);
  banyan_status status = connect_local(net, exchange, config);
  /* again, for its text */
  if (status == BANYAN_OK && wished != BANYAN_OK) status = bny_net_put_read(config->put, &net->wish);
  status = connect_nodes(net, exchange, config, status);
  if (status != BANYAN_OK) {
    free_net(net);
    return status;
  }
  if (net->puts) bny_net_put_register_outbox(net);
  *transport = &net->transport;
  return BANYAN_OK;
}
#else
#include "base/status.h"

banyan_status bny_net_describe(char *text, size_t bytes) {
  (void)text, (void)bytes;
  return bny_fail(BANYAN_ERR_UNSUPPORTED, "built without UCX");
}

banyan_status bny_net_connect(const bny_exchange *exchange, const bny_net_config *config, bny_transport **transport) {
  (void)exchange, (void)config, (void)transport;
  return bny_fail(BANYAN_ERR_UNSUPPORTED,
                  "ranks are on several nodes, which are connected by UCX; this libbanyan was built without it "
                  "(configure --with-ucx; Debian and Ubuntu: apt-get install libucx-dev)");
}
#endif
