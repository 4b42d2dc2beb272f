/* SPDX-License-Identifier: Apache-2.0
 * Makes a device's programs from plans, in units of its protocols. */
#pragma once

#include "cuda/program.h"
#include "plan/plan.h"

/* Translates plans into programs, which kernels run (kernels/cuda/program.h). Peers write into each other's inboxes, so
 * a sender must know where its receivers expect its messages. Every rank therefore makes the plans of all ranks, and
 * divides their inboxes by one rule. Programs are a pure function of the request and of settings that are identical on
 * every rank. */

/* The layout of a communicator on several nodes. Ranks of one node push into each other's inboxes. Between nodes,
 * messages go through host memory. Addresses are those of this rank's device. */
typedef struct bny_device_nodes {
  const int32_t *node_of; /* [nranks] */
  const uint64_t (
      *messages)[2];    /* [nranks], by half: address of the messages from a rank of another node, and of this rank's
                         * own messages */
  size_t shift;         /* bytes from that address to where plans begin */
  uint64_t signals[2];  /* by half: signals of units that go to other nodes */
  uint64_t arrivals[2]; /* by half: words of messages, in the order of the plan */
  uint64_t label;       /* identifies the program */
} bny_device_nodes;

/* The most bytes of a payload that goes by packets of LL16 and of LL128, and in units of one round. */
typedef struct bny_unit_limits {
  uint64_t ll16_bytes, ll128_bytes, round_bytes;
} bny_unit_limits;

/* Settings that are identical on all ranks, except for addresses. */
typedef struct bny_device_settings {
  int32_t protocol;              /* bny_protocol; BNY_PROTOCOL_COUNT: chosen by size */
  bool lines_whole;              /* links keep 128-byte lines intact, so LL128 may be chosen */
  bool whole_rows;               /* rows are not divided into chunks */
  const bny_unit_limits *limits; /* NULL: the usual ones */
  const size_t *piece_offsets;   /* all-gather: offset of each rank's bytes in the caller's result; NULL: contiguous */
  const bny_device_nodes *nodes; /* NULL: there is one node; else only combines and sums run, by SIMPLE */
} bny_device_settings;

/* The signals of a slot that goes to other nodes: signals [first, first + count) of the half. */
typedef struct bny_device_units {
  uint32_t first, count;
} bny_device_units;

/* Makes the program of `rank` in one block of memory, which can be copied to a device. The caller releases it by
 * free(). */
banyan_status bny_device_program_make(const bny_request *request, int32_t rank, const bny_device_settings *settings,
                                      bny_program **program);

/* Fills units[], indexed by slots of `plan`: the plan of the program's request and rank. A slot that stays within its
 * node has no units. */
banyan_status bny_device_program_units(const bny_request *request, const bny_plan *plan,
                                       const bny_device_settings *settings, bny_device_units *units);

/* Makes a combine for the oneshot kernels, and sets the arena sizes that it needs. request->algorithm is ignored. */
banyan_status bny_device_oneshot_make(const bny_request *request, const bny_device_settings *settings,
                                      bny_oneshot *what, bny_protocol *protocol, bny_arena_sizes *needs);

/* The settings of combines within other kernels. */
extern const bny_device_settings bny_device_within_settings;

/* Makes a combine within another kernel, for include/banyan_device.cuh. `in` defines the convention of rows; its
 * pointers and strides are ignored. `out` is this rank's result, or NULL if it gets none. `mergers` is how many blocks
 * of that kernel can run at once on this rank's device. The caller sets the group. */
banyan_status bny_device_combine_make(const bny_request *request, int32_t rank, const banyan_partial *in,
                                      const banyan_partial *out, int32_t mergers, bny_device_combine *combine,
                                      bny_arena_sizes *needs);

bny_arena_sizes bny_device_program_needs(const bny_program *program);

bny_arena_shape bny_arena_shape_make(const bny_arena_sizes *sizes);

/* Returns NULL if an arena of these sizes is large enough, else a static text that names what is too small. */
const char *bny_arena_lacks(const bny_arena_sizes *sizes, const bny_arena_sizes *needs);

/* Returns how many blocks of `threads` a run has work for, at most `blocks_max`. Ranks may differ. */
int32_t bny_device_blocks(const bny_unit_shape *shape, int32_t threads, int32_t blocks_max);

/* Return kernel names of kernels.def, such as "bny_oneshot_ll16_32". */
const char *bny_device_oneshot_kernel(bny_protocol protocol, int32_t wire, banyan_order order, int32_t nranks);
const char *bny_device_program_kernel(const bny_program *program);

/* For program.c: divides rows and bytes into units, and chooses the protocol that carries them. */

/* A slice in units. Units of bytes are `heads` of one token. */
typedef struct bny_unit_box {
  int32_t token0, tokens, head0, heads;
} bny_unit_box;

bool bny_unit_protocol_serves(int32_t protocol, const bny_device_settings *settings);

int32_t bny_unit_protocol(const bny_request *request, const bny_device_settings *settings);
banyan_status bny_unit_shape_make(const bny_request *request, int32_t protocol, const bny_device_settings *settings,
                                  bny_unit_shape *shape);
bny_unit_box bny_unit_box_of(const bny_unit_shape *shape, const bny_slice *slice);
uint64_t bny_unit_box_units(const bny_unit_shape *shape, const bny_unit_box *box);
