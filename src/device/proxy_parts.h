/* SPDX-License-Identifier: Apache-2.0
 * What the files of the bridge share. */
#ifndef BNY_EXEC_BRIDGE_PARTS_H
#define BNY_EXEC_BRIDGE_PARTS_H

#include <pthread.h>

#include "device/proxy.h"

/* A half of what a rank sends to other hosts, or of what one of another host sends here. */
typedef struct bny_bridge_half {
  void *host;  /* registered with the device; NULL: not */
  void *local; /* memory of the device in its place */
} bny_bridge_half;

/* Its address is the label of its program. */
struct bny_bridge_route {
  bny_bridge *bridge;
  uint64_t key;
  bny_plan *plan; /* of the whole, but its steps are those between hosts alone */
  bny_run *run;
  bny_binding binding;
  bny_device_units *units; /* by slot of the plan */
  bny_device_hosts hosts;
  uint64_t bytes;
  int32_t slot;  /* that kernels are being waited for */
  uint32_t made; /* units of it */
  bny_bridge_route *next;
};

struct bny_bridge {
  bny_engine *engine;
  bny_exec *exec;
  bny_transport *transport;
  int32_t *host_of;       /* [nranks] */
  int32_t *ranks;         /* of this host, by their numbers in the engine's group */
  bny_device_words words; /* a bny_relay, and what follows it */
  uint64_t room;          /* words of a half, for units and for messages each */
  bool direct;
  bny_bridge_half (*halves)[2]; /* [nranks]; none of other ranks of this host */
  uint64_t (*messages)[2];      /* [nranks]: their addresses */
  _Atomic(bny_bridge_route *) routes; /* the latest first */
  pthread_t proxy;
  bool has_proxy;
  _Atomic bool quits;  /* the proxy is to end */
  _Atomic bool failed; /* the executor's failure is there to be read */
};

/* Words that follow the bny_relay, by what they are for. */
typedef enum bny_bridge_use { BNY_BRIDGE_UNITS, BNY_BRIDGE_ARRIVALS } bny_bridge_use;

static inline size_t bny_bridge_offset(const bny_bridge *bridge, bny_bridge_use use, int half) {
  return sizeof(bny_relay) / sizeof(uint64_t) + ((size_t)use * 2 + (size_t)half) * bridge->room;
}

/* A word of the bny_relay. */
static inline _Atomic uint64_t *bny_bridge_word(const bny_bridge *bridge, size_t offset) {
  return &bridge->words.host[offset / sizeof(uint64_t)];
}

/* Kernels that run, and those that come, end. Any thread. */
void bny_bridge_end_kernels(bny_bridge *bridge, banyan_status status, int32_t culprit);

/* What went wrong, here or there. The proxy. */
banyan_status bny_bridge_look(bny_bridge *bridge);

void bny_bridge_free_route(bny_bridge_route *route);

/* The thread. */
void *bny_bridge_proxy_live(void *bridge);

#endif
