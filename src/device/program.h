/* SPDX-License-Identifier: Apache-2.0
 * Makes programs for a device from plans, in units of its protocols. */
#ifndef BNY_DEVICE_PROGRAM_H
#define BNY_DEVICE_PROGRAM_H

#include "cuda/program.h"
#include "plan/plan.h"

/* From plans to what kernels of a device run, see kernels/cuda/program.h. Peers write into each other's inboxes, so a
 * sender must know where its receivers expect its messages. Every rank makes the plans of all ranks, and divides their
 * inboxes by one rule. Everything is a pure function of the request and of settings that are identical on every
 * rank. */

/* A communicator whose ranks are on several nodes. Ranks of one node push into each other's inboxes; what goes between
 * nodes are messages in host memory. Addresses are those of this rank's device. */
typedef struct bny_device_nodes {
  const int32_t *node_of; /* [nranks] */
  const uint64_t (
      *messages)[2];    /* [nranks]: by half, where messages from a rank of another node lie, and where this rank's own
                      * lie */
  size_t shift;         /* bytes from there to where plans begin */
  uint64_t signals[2];  /* by half, of units that go to other nodes */
  uint64_t arrivals[2]; /* words of messages, in the order of the plan */
  uint64_t label;       /* identifies the program */
} bny_device_nodes;

/* Identical on all ranks, except for addresses. */
typedef struct bny_device_settings {
  int32_t protocol;              /* bny_protocol; BNY_PROTOCOL_COUNT: by size */
  bool lines_whole;              /* links keep 128-byte lines whole: LL128 may be chosen */
  bool narrow;                   /* some link is atomic for 8-byte accesses only: not LL16 */
  bool whole_rows;               /* rows are not divided into chunks */
  const size_t *piece_offsets;   /* all-gather: where each rank's bytes lie in the caller's result. NULL: one after
                                * another */
  const bny_device_nodes *nodes; /* NULL: there is one node. Otherwise only combines, by BNY_PROTOCOL_SIMPLE */
} bny_device_settings;

/* The signals of the units of a slot that goes to other nodes: numbers [first, first + count) of the half. */
typedef struct bny_device_units {
  uint32_t first, count;
} bny_device_units;

/* Makes the program of `rank`, one block of memory to be copied to a device as it is. Freed by free(). */
banyan_status bny_device_program_make(const bny_request *request, int32_t rank, const bny_device_settings *settings,
                                      bny_program **program);

/* Fills units[], by slot of the plan, which belongs to the rank and the program's request; no units for a slot that
 * stays within its node. */
banyan_status bny_device_program_units(const bny_request *request, const bny_plan *plan,
                                       const bny_device_settings *settings, bny_device_units *units);

/* Makes a combine that the oneshot kernels run, and what it needs. request->algorithm is ignored. */
banyan_status bny_device_oneshot_make(const bny_request *request, const bny_device_settings *settings,
                                      bny_oneshot *what, bny_protocol *protocol, bny_arena_sizes *needs);

/* Makes a combine that is part of another kernel, for include/banyan_device.cuh. `in` says what rows mean; its pointers
 * and strides are ignored. `out` is this rank's result, NULL if it gets none. `mergers`: how many blocks of that kernel
 * can run at once on this rank's device. The caller fills in the group. */
banyan_status bny_device_combine_make(const bny_request *request, int32_t rank, const banyan_partial *in,
                                      const banyan_partial *out, int32_t mergers, bny_device_combine *combine,
                                      bny_arena_sizes *needs);

bny_arena_sizes bny_device_program_needs(const bny_program *program);

bny_arena_shape bny_arena_shape_make(const bny_arena_sizes *sizes);

/* Returns NULL if an arena of these sizes is large enough, else what is too small, a static text. */
const char *bny_arena_lacks(const bny_arena_sizes *sizes, const bny_arena_sizes *needs);

/* Returns the number of blocks of `threads` that a run has work for, at most `blocks_max`. Each rank decides for
 * itself. */
int32_t bny_device_blocks(const bny_unit_shape *shape, int32_t threads, int32_t blocks_max);

/* Return names in kernels.def: "bny_oneshot_ll16_32". */
const char *bny_device_oneshot_kernel(bny_protocol protocol, int32_t wire, banyan_order order, int32_t nranks);
const char *bny_device_program_kernel(const bny_program *program);

/* How rows and bytes are divided into units for a device, and which protocol carries them: for program.c. */

/* A slice in units. Bytes are `heads` of one token. */
typedef struct bny_unit_box {
  int32_t token0, tokens, head0, heads;
} bny_unit_box;

/* Names such as "LL16". */
const char *bny_unit_protocol_name(int32_t protocol);
bool bny_unit_protocol_serves(int32_t protocol, const bny_device_settings *settings);

int32_t bny_unit_protocol(const bny_request *request, const bny_device_settings *settings);
banyan_status bny_unit_shape_make(const bny_request *request, int32_t protocol, bool whole_rows, bny_unit_shape *shape);
bny_unit_box bny_unit_box_of(const bny_unit_shape *shape, const bny_slice *slice);
uint64_t bny_unit_box_units(const bny_unit_shape *shape, const bny_unit_box *box);

#endif
