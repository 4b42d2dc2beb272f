/* SPDX-License-Identifier: Apache-2.0
 * What the files of the bridge share. */
#ifndef BNY_EXEC_BRIDGE_PARTS_H
#define BNY_EXEC_BRIDGE_PARTS_H

#include <pthread.h>

#include "exec/bridge.h"

/* Ranks of the group of two. */
enum { BNY_BRIDGE_DEVICE, BNY_BRIDGE_PROXY, BNY_BRIDGE_RANKS };

/* Units of a box of rows in an arena, one after another; of a half. */
typedef struct bny_bridge_units {
  bny_slice box;
  uint64_t first;            /* number of the first unit in the inbox */
  uint64_t count;
  banyan_partial partial[2]; /* the same memory, by half */
} bny_bridge_units;

typedef struct bny_bridge_slice {
  bny_plan *plan;
  bny_run *run;
  bny_binding binding;
  bny_bridge_units in, out; /* in the proxy's arena, in the device's */
} bny_bridge_slice;

/* Slices of a work that fit the inboxes together. Its address is the label of its program. */
typedef struct bny_bridge_launch {
  bny_bridge_work *work;
  int32_t first, count;
  bny_unit_shape shape;
  bny_engine_kernel kernel;
  int32_t blocks, threads;
  void *program; /* in the device's memory; the engine's */
} bny_bridge_launch;

struct bny_bridge_work {
  bny_bridge *bridge;
  uint64_t key;
  bny_bridge_slice *slices;
  bny_bridge_launch *launches;
  int32_t nslices, nlaunches;
  bny_bridge_work *next;
};

struct bny_bridge {
  bny_engine *engine;
  bny_exec *exec;
  bny_transport *transport;
  bny_arena_sizes sizes;
  bny_arena_shape shape;
  bny_device_words arenas[BNY_BRIDGE_RANKS];
  _Atomic(bny_bridge_work *) works; /* the latest first */
  pthread_t proxy;
  bool has_proxy;
  _Atomic bool quits;  /* the proxy is to end */
  _Atomic bool failed; /* the executor's failure is there to be read */
};

/* A word of an arena: everything in arenas that the other side reads or writes at the same time. */
static inline _Atomic uint64_t *bny_bridge_word(const bny_bridge *bridge, int32_t rank, size_t offset) {
  return &bridge->arenas[rank].host[offset / sizeof(uint64_t)];
}

static inline char *bny_bridge_address(const bny_bridge *bridge, int32_t rank, size_t offset) {
  return (char *)(uintptr_t)bridge->arenas[rank].host + offset;
}

/* Kernels that run, and those that come, end. Any thread. */
void bny_bridge_end_kernels(bny_bridge *bridge, banyan_status status, int32_t culprit);

void bny_bridge_free_work(bny_bridge_work *work);

/* The thread. */
void *bny_bridge_proxy_live(void *bridge);

#endif
