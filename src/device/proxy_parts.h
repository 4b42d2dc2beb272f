/* SPDX-License-Identifier: Apache-2.0
 * Shared by the files of the proxy. */
#ifndef BNY_DEVICE_PROXY_PARTS_H
#define BNY_DEVICE_PROXY_PARTS_H

#include <pthread.h>

#include "device/proxy.h"

/* A half of what a rank sends to other nodes, or of what a rank of another node sends here. */
typedef struct bny_proxy_half {
  void *host;  /* registered with the device; NULL: not registered */
  void *local; /* device memory instead */
} bny_proxy_half;

/* Its address is the label of its program. */
struct bny_proxy_segment {
  bny_proxy *proxy;
  uint64_t key;
  bny_plan *plan; /* the plan of the whole call, with only the steps between nodes */
  bny_run *run;
  bny_binding binding;
  bny_device_units *units; /* by slot of the plan */
  bny_device_nodes nodes;
  uint64_t bytes;
  int32_t slot;  /* the slot that kernels are making */
  uint32_t made; /* its units that are made */
  bny_proxy_segment *next;
};

struct bny_proxy {
  bny_engine *engine;
  bny_exec *exec;
  bny_transport *transport;
  int32_t *node_of;       /* [nranks] */
  int32_t *ranks;         /* of this node, by their numbers in the engine's group */
  bny_device_words words; /* a bny_proxy_words, and what follows it */
  uint64_t room;          /* words of a half, each for units and for messages */
  bool direct;
  bny_proxy_half (*halves)[2];           /* [nranks]; none for other ranks of this node */
  uint64_t (*messages)[2];               /* [nranks]: their addresses */
  _Atomic(bny_proxy_segment *) segments; /* the latest first */
  pthread_t thread;
  bool has_thread;
  _Atomic bool quits;  /* the proxy is to end */
  _Atomic bool failed; /* the executor's failure is ready to be read */
};

/* Words that follow the bny_proxy_words, by what they are for. */
typedef enum bny_proxy_use { BNY_PROXY_UNITS, BNY_PROXY_ARRIVALS } bny_proxy_use;

static inline size_t bny_proxy_offset(const bny_proxy *proxy, bny_proxy_use use, int half) {
  return sizeof(bny_proxy_words) / sizeof(uint64_t) + ((size_t)use * 2 + (size_t)half) * proxy->room;
}

/* Returns a word of the bny_proxy_words. */
static inline _Atomic uint64_t *bny_proxy_word(const bny_proxy *proxy, size_t offset) {
  return &proxy->words.host[offset / sizeof(uint64_t)];
}

/* Ends kernels that run, and those to come. Any thread. */
void bny_proxy_end_kernels(bny_proxy *proxy, banyan_status status, int32_t culprit);

/* Returns what went wrong, here or elsewhere. For the proxy. */
banyan_status bny_proxy_look(bny_proxy *proxy);

void bny_proxy_segment_free(bny_proxy_segment *segment);

/* The body of the thread. */
void *bny_proxy_thread(void *proxy);

#endif
