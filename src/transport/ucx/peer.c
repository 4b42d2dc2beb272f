/* SPDX-License-Identifier: Apache-2.0
 * Makes and ends the endpoints and mirrors of ranks of other nodes. */
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"
#include "base/deadline.h"
#include "base/interface.h"
#include "base/log.h"
#include "base/process.h"
#include "base/status.h"
#include "transport/ucx/ucx.h"

/* The child of a fork shares its parent's sockets and event sets, and must not touch them. */
static bool is_inherited(const bny_net *net) { return net->process != bny_process(); }

static bool try_flag(bny_net *net) { return !atomic_flag_test_and_set_explicit(&net->busy, memory_order_acquire); }

void bny_net_take(bny_net *net) {
  enum { POLLS = 100 }; /* after this many polls the holder may need this core */
  for (int i = 0; !try_flag(net); i++)
    if (i >= POLLS) sched_yield();
}

bool bny_net_try(bny_net *net) { return !is_inherited(net) && try_flag(net); }

void bny_net_give(bny_net *net) { atomic_flag_clear_explicit(&net->busy, memory_order_release); }

bny_net_peer *bny_net_meet(bny_net *net, int32_t rank) {
  bny_net_peer *peer = net->peers[rank];
  if (peer) return peer;
  peer = calloc(1, sizeof *peer);
  if (!peer) return NULL;
  peer->net = net;
  peer->rank = rank;
  net->peers[rank] = peer;
  net->known[net->nknown++] = peer;
  return peer;
}

bool bny_net_has_left(const bny_net_peer *peer) {
  return atomic_load_explicit(&peer->net->lines[peer->rank].left, memory_order_relaxed);
}

void bny_net_explain(bny_net_peer *peer, const char *why, const char *logged) {
  const bny_net *net = peer->net;
  const char *its = net->interfaces[peer->rank], *own = net->interfaces[net->transport.rank];
  size_t length = 0;
  bny_append(peer->trouble, sizeof peer->trouble, &length, "UCX: %s%s%.120s%s; ", why, *logged ? " (" : "", logged,
             *logged ? ")" : "");
  if (!bny_interface_shares_network(its))
    bny_append(peer->trouble, sizeof peer->trouble, &length,
               "no network is common to its node, with %s, and this one, with %s", its, own);
  else
    bny_append(peer->trouble, sizeof peer->trouble, &length,
               "its node has %.80s, and this rank uses %.60s: unless these reach all nodes, add routes or set "
               "BANYAN_INTERFACE",
               its, net->transport.devices);
}

void bny_net_lose(bny_net_peer *peer, ucs_status_t status) {
  /* If a reachable node closes a connection, UCX reports a timeout. A real timeout of TCP takes minutes. */
  if (peer->net->transport.network == BNY_NETWORK_TCP && peer->hello_received)
    peer->ended = peer->ended || status == UCS_ERR_ENDPOINT_TIMEOUT || status == UCS_ERR_CONNECTION_RESET;
  if (peer->dead || bny_net_has_left(peer)) return; /* a rank that has left may end */
  peer->dead = true;
  const char *why = peer->net->ucx.ucs_status_string(status);
  if (!peer->hello_received) bny_net_explain(peer, why, bny_ucx_captured_log());
  bny_log(BNY_LOG_INFO, "rank %d: the connection to rank %d is lost: %s", peer->net->transport.rank, peer->rank, why);
}

/* Reports that a message to the peer is lost because this rank has no memory for it. */
void bny_net_lack_memory(bny_net_peer *peer) {
  if (peer->dead || bny_net_has_left(peer)) return;
  bny_net_lose(peer, UCS_ERR_NO_MEMORY);
  peer->lacks_memory = true;
  snprintf(peer->trouble, sizeof peer->trouble, "out of memory");
}

static void lose(void *argument, ucp_ep_h endpoint, ucs_status_t status) {
  (void)endpoint;
  bny_net_lose(argument, status);
}

bny_net_peer *bny_net_connect_peer(bny_net *net, int32_t rank) {
  bny_net_peer *peer = bny_net_meet(net, rank);
  if (!peer || peer->endpoint || peer->dead || is_inherited(net)) return peer;
  ucp_ep_params_t params = {
      .field_mask =
          UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
      .address = (const ucp_address_t *)(const void *)(net->addresses + (size_t)rank * net->address_bytes),
      .err_mode = UCP_ERR_HANDLING_MODE_PEER,
      .err_handler = {.cb = lose, .arg = peer},
  };
  bny_ucx_capture_log(&net->ucx, true);
  ucs_status_t status = net->ucx.ucp_ep_create(net->worker, &params, &peer->endpoint);
  if (status != UCS_OK) {
    peer->endpoint = NULL;
    peer->unreachable = status == UCS_ERR_UNREACHABLE; /* refused, as by one that has died, or on another network */
    bny_net_lose(peer, status);
  }
  bny_ucx_capture_log(&net->ucx, false);
  return peer;
}

bool bny_net_can_send(const bny_net_peer *peer) {
  return peer->endpoint && !peer->dead && !bny_net_has_left(peer) && !is_inherited(peer->net);
}

/* Registration states the kind of memory. */
enum {
  MAP_PARAMETERS =
      UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE
};

static size_t outbox_bytes(const bny_net *net) { return 2 * net->transport.half_bytes; }

static size_t region_bytes(const bny_net *net) {
  return outbox_bytes(net) + 2 * (size_t)net->transport.slots_max * sizeof(bny_signal);
}

banyan_status bny_net_fail_registration(const bny_net_peer *peer, const char *why) {
  return bny_fail(BANYAN_ERR_MEMORY,
                  "rank %d cannot register %zu bytes for messages of rank %d (%s): make arena_bytes smaller, raise the "
                  "limit of locked memory (ulimit -l), or set BANYAN_UCX_PUT=off",
                  peer->net->transport.rank, region_bytes(peer->net), peer->rank, why);
}

/* Does the same as bny_net_mirror(), in registered memory. */
static banyan_status mirror_for_puts(bny_net_peer *peer) {
  bny_net *net = peer->net;
  if (peer->outbox) return BANYAN_OK;
  /* for messages */
  if (!peer->landings) peer->landings = calloc(2 * (size_t)net->transport.slots_max, sizeof *peer->landings);
  if (!peer->landings) return bny_net_fail_registration(peer, "out of memory");
  size_t bytes = region_bytes(net);
  void *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (region == MAP_FAILED) return bny_net_fail_registration(peer, "out of memory");
  ucp_mem_map_params_t params = {
      .field_mask = MAP_PARAMETERS,
      .address = region,
      .length = bytes,
      .memory_type = UCS_MEMORY_TYPE_HOST,
  };
  ucs_status_t status = net->ucx.ucp_mem_map(net->context, &params, &peer->memory);
  if (status != UCS_OK) {
    peer->memory = NULL;
    munmap(region, bytes);
    return bny_net_fail_registration(peer, net->ucx.ucs_status_string(status));
  }
  peer->outbox = region;
  peer->signals = (bny_signal *)(void *)(peer->outbox + outbox_bytes(net));
  return BANYAN_OK;
}

/* UCX finds this registration when it puts from there. A failure is harmless, because unregistered memory is registered
 * at first use. */
void bny_net_put_register_outbox(bny_net *net) {
  ucp_mem_map_params_t params = {
      .field_mask = MAP_PARAMETERS,
      .address = net->local->halves[0],
      .length = 2 * net->local->half_bytes,
      .memory_type = UCS_MEMORY_TYPE_HOST,
  };
  ucs_status_t status = net->ucx.ucp_mem_map(net->context, &params, &net->outbox_memory);
  if (status == UCS_OK) return;
  net->outbox_memory = NULL;
  bny_log(BNY_LOG_INFO, "rank %d: its %zu bytes of messages are not registered in advance: %s", net->transport.rank,
          params.length, net->ucx.ucs_status_string(status));
}

static void unregister(bny_net *net) {
  if (net->outbox_memory) net->ucx.ucp_mem_unmap(net->context, net->outbox_memory);
  net->outbox_memory = NULL;
  for (int32_t i = 0; i < net->nknown; i++) {
    bny_net_peer *peer = net->known[i];
    if (peer->rkey) net->ucx.ucp_rkey_destroy(peer->rkey);
    if (peer->offered) net->ucx.ucp_rkey_buffer_release(peer->offered);
    if (peer->memory) net->ucx.ucp_mem_unmap(net->context, peer->memory);
    free(peer->rkey_bytes);
    peer->rkey = NULL;
    peer->offered = NULL;
    peer->memory = NULL;
    peer->rkey_bytes = NULL;
  }
}

banyan_status bny_net_mirror(bny_net_peer *peer) {
  const bny_transport *transport = &peer->net->transport;
  if (peer->outbox) return BANYAN_OK;
  if (peer->net->puts) return mirror_for_puts(peer);
  size_t slots = 2 * (size_t)transport->slots_max;
  peer->signals = calloc(slots, sizeof *peer->signals);
  peer->landings = calloc(slots, sizeof *peer->landings);
  void *outbox =
      mmap(NULL, 2 * transport->half_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (!peer->signals || !peer->landings || outbox == MAP_FAILED) {
    if (outbox != MAP_FAILED) munmap(outbox, 2 * transport->half_bytes);
    free(peer->signals), free(peer->landings);
    peer->signals = NULL;
    peer->landings = NULL;
    return bny_fail(BANYAN_ERR_MEMORY,
                    "rank %d has no memory for messages of rank %d (%zu bytes); make arena_bytes smaller",
                    transport->rank, peer->rank, 2 * transport->half_bytes);
  }
  peer->outbox = outbox;
  return BANYAN_OK;
}

/* ---- waiting for UCX --------------------------------------------------------------------------------------------- */

/* Makes progress until the condition holds, or until the deadline. Returns whether it holds. */
static bool progress_until(const bny_net *net, bool (*holds)(const bny_net *net, void *request), void *request,
                           int64_t deadline_ns) {
  while (!holds(net, request)) {
    if (bny_clock_ns() >= deadline_ns) return false;
    /* The check must not run while another thread may need the worker. It may fork. */
    if (net->closes && bny_interrupted() && net->process != bny_process()) return false;
    net->ucx.ucp_worker_progress(net->worker);
  }
  return true;
}

static bool is_complete(const bny_net *net, void *request) {
  return net->ucx.ucp_request_check_status(request) != UCS_INPROGRESS;
}

static bool is_idle(const bny_net *net, void *request) {
  (void)request;
  for (int32_t i = 0; i < net->nknown; i++)
    if (net->known[i]->under_way && bny_net_can_send(net->known[i])) return false;
  return true;
}

void bny_net_drain(bny_net *net, int64_t deadline_ns) { progress_until(net, is_idle, NULL, deadline_ns); }

bool bny_net_arm(bny_net *net) { return net->ucx.ucp_worker_arm(net->worker) == UCS_OK; }

void bny_net_doze(bny_net *net, int64_t sleep_ns) {
  struct timespec timeout = {sleep_ns / 1000000000, sleep_ns % 1000000000};
  struct pollfd event = {.fd = net->event_fd, .events = POLLIN};
  ppoll(&event, 1, &timeout, NULL);
}

/* Over RDMA UCX connects by datagrams, which may wait long to be sent. Over TCP it can give up at any time. */
static bool is_half_connected(const bny_net_peer *peer) {
  return peer->net->transport.network == BNY_NETWORK_RDMA && peer->flushing && !peer->dead;
}

/* Closes all at once. Data that the kernel has taken still goes out. */
static void close_endpoints(bny_net *net, bool half_connected, int64_t deadline_ns) {
  ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
  for (int32_t i = 0; i < net->nknown; i++) {
    if (!net->known[i]->endpoint || (!half_connected && is_half_connected(net->known[i]))) continue;
    ucs_status_ptr_t request = net->ucx.ucp_ep_close_nbx(net->known[i]->endpoint, &param);
    net->known[i]->endpoint = NULL;
    if (!request || UCS_PTR_IS_ERR(request)) continue;
    progress_until(net, is_complete, request, deadline_ns);
    net->ucx.ucp_request_free(request);
  }
}

enum { PATIENCE_NS = 100000000 };

static bool is_connected(const bny_net *net, void *request) {
  (void)request;
  for (int32_t i = 0; i < net->nknown; i++)
    if (is_half_connected(net->known[i]) ||
        (net->known[i]->expected && !net->known[i]->hello_received && !net->known[i]->dead))
      return false;
  return true;
}

/* Returns whether UCX has sent all its data, including answers to peers. */
static bool has_answered(bny_net *net, int64_t deadline_ns) {
  ucp_request_param_t param = {.op_attr_mask = 0};
  ucs_status_ptr_t flush = net->ucx.ucp_worker_flush_nbx(net->worker, &param);
  if (!flush || UCS_PTR_IS_ERR(flush)) return true;
  bool answered = progress_until(net, is_complete, flush, deadline_ns);
  net->ucx.ucp_request_free(flush);
  return answered;
}

/* UCX before 1.14 ends the process if a worker is destroyed while it answers a peer that connects to it, or over RDMA
 * an endpoint's first message waits to be sent. That lasts a moment, or as long as the peer is stopped. */
static bool may_destroy_worker(bny_net *net, int64_t deadline_ns) {
  unsigned major, minor, patch;
  net->ucx.ucp_get_version(&major, &minor, &patch);
  if (major > 1 || minor >= 14) return true;
  return progress_until(net, is_connected, NULL, deadline_ns) || has_answered(net, deadline_ns + PATIENCE_NS);
}

void bny_net_free_worker(bny_net *net) {
  bool may_destroy = !net->worker || may_destroy_worker(net, bny_clock_ns() + PATIENCE_NS);
  if (net->worker) close_endpoints(net, may_destroy, bny_clock_ns() + PATIENCE_NS);
  unregister(net); /* not earlier, because pending operations used the keys */
  if (net->flush) net->ucx.ucp_request_free(net->flush);
  if (!may_destroy) {
    bny_log(BNY_LOG_WARN, "UCX's worker is left behind: a connection to a peer was begun and never made");
    return;
  }
  if (net->worker) net->ucx.ucp_worker_destroy(net->worker);
  if (net->context) net->ucx.ucp_cleanup(net->context);
}

void bny_net_free_peers(bny_net *net) {
  for (int32_t i = 0; i < net->nknown; i++) {
    bny_net_peer *peer = net->known[i];
    if (peer->outbox) munmap(peer->outbox, net->puts ? region_bytes(net) : outbox_bytes(net));
    if (!net->puts) free(peer->signals);
    free(peer->landings);
    free(peer);
  }
  net->nknown = 0;
}
