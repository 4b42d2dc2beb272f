/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels and the host tell each other: arenas, and programs. Plain data, C and C++.
 *
 * An arena is memory of one rank that all ranks of a communicator can write. It begins with a head; after it comes, for each
 * protocol, an *inbox* of two halves, and signals. Peers push messages into it, and the rank itself puts there what it will
 * read again. All ranks have arenas of one shape. It is all zero when the communicator begins.
 *
 * A run is numbered by an epoch, the same on all ranks, which the kernel itself counts in the arena, so that a launch can be
 * replayed. Run e uses half e & 1 of each inbox.
 *
 * A *unit* is a row's chunk of columns (or a range of bytes): what a warp handles at a time. The chunks of a row are
 * handled by neighbouring warps of one block, row i by group i, i + G, i + 2G ... of G such groups of the grid: a fixed
 * rule, so that no warp waits for a block of its own rank. As words of 32 bits a unit is m, d, then values in wire form
 * (in pairs, if of 16 bits). It lies in an inbox by one of these protocols:
 *
 *   LL8     8-byte cells: 1 word, flag                                 PTX: .b64 accesses are single
 *   LL16    16-byte cells: 3 words, flag                               PTX: .b128 accesses are single
 *   LL128   128-byte lines: 30 words, 64-bit flag                      where links keep lines whole: not of PTX
 *   SIMPLE  plain words; signals apart, by release and acquire         PTX
 *
 * The flag is made of the epoch, so nothing is cleared between runs. Flags have the same places in all units of a
 * protocol, and protocols do not share inboxes, so no data is ever taken for a flag. */
#ifndef BNY_CUDA_PROGRAM_H
#define BNY_CUDA_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a communicator; of a block; sources that one round of a merge takes. */
enum { BNY_DEVICE_RANKS_MAX = 72, BNY_BLOCK_THREADS_MAX = 256, BNY_CHUNKS_MAX = 8, BNY_ONESHOT_RANKS_MAX = 8 };

typedef enum bny_protocol {
  BNY_PROTOCOL_LL8,
  BNY_PROTOCOL_LL16,
  BNY_PROTOCOL_LL128,
  BNY_PROTOCOL_SIMPLE,
  BNY_PROTOCOL_COUNT
} bny_protocol;

/* ---- arena -------------------------------------------------------------------------------------------------------- */

/* The first failure, in one word: 0 while all is well. detail: the slot that was waited for, or the row of bad data; of a wrong
 * length 1 + the sequence, of a wrong page that and BNY_DEVICE_DETAIL_PAGE. */
typedef struct bny_device_fault {
  int32_t status, culprit, reporter; /* ranks; -1: unknown */
  uint32_t detail;                   /* 24 bits */
} bny_device_fault;

enum { BNY_DEVICE_DETAIL_PAGE = 1 << 23 };

/* Words that the host shares with the device, see bny_arena_head. PLACE: of a fault of this rank that has one. */
enum { BNY_DEVICE_WORD_ABORT, BNY_DEVICE_WORD_FAULT, BNY_DEVICE_WORD_PLACE, BNY_DEVICE_WORDS };

/* Of the counter of tickets: every run takes so many in all, so that the ticket of any warp tells the run. */
enum { BNY_TICKET_BITS = 20 };

/* Lines of 128 bytes by who writes them. */
typedef struct bny_arena_head {
  /* its own kernels, and the host between runs */
  uint64_t tickets;    /* runs begun << BNY_TICKET_BITS, between runs */
  uint64_t timeout_ns; /* from when a warp of a run first has to wait; 0: for ever */
  uint64_t fault;      /* the first one seen here */
  uint64_t *words;     /* [BNY_DEVICE_WORDS] of the host: it sets ABORT, kernels the others. NULL: none */
  uint32_t arrived;    /* blocks of a fused run that have pushed everything */
  uint32_t ended;      /* warps that have ended a run which a proxy is told of */
  uint32_t pad0[22];
  /* its own kernels, for peers to read */
  uint64_t waiting[2]; /* bit r: for rank r, for some time */
  uint64_t pad1[14];
  /* anybody: a fault; ends every wait of this rank, in this and later runs */
  uint64_t abort;
  uint64_t pad2[15];
  /* peers: begun[r] is the last run that rank r has begun; so it has finished all before, and what they read of its inbox
   * may be overwritten */
  uint64_t begun[BNY_DEVICE_RANKS_MAX];
} bny_arena_head;

/* What all ranks agree on. */
typedef struct bny_arena_sizes {
  uint64_t inbox_bytes[BNY_PROTOCOL_COUNT]; /* of a half */
  uint64_t signals;                         /* of a half */
  uint64_t relay_words;                     /* of a half: behind a bny_relay, not in arenas */
} bny_arena_sizes;

/* Offsets within an arena, all multiples of 256. */
typedef struct bny_arena_shape {
  uint64_t inbox[BNY_PROTOCOL_COUNT][2];
  uint64_t signals[2];
  uint64_t bytes;
} bny_arena_shape;

/* Memory of the host by which kernels of a rank and its *proxy*, a thread of its process, tell each other of what goes to
 * ranks of other hosts and comes from them. Lines of 128 bytes by who writes them. It is followed, for each half, by signals
 * of units that kernels have written, and by a word for each message that has come: places of programs have the addresses. */
typedef struct bny_relay {
  /* kernels */
  uint64_t begun;      /* the last run */
  uint64_t label;      /* of its program: stored before `begun` */
  uint64_t ended;      /* the last run that all of its warps have ended */
  uint64_t waiting[2]; /* as in the head of the arena */
  uint64_t pad0[11];
  /* the proxy */
  uint64_t taken; /* the last run that it has begun: so it has done with all before, and has read the label */
  uint64_t pad1[15];
} bny_relay;

/* The ranks of a communicator, of several hosts those of one, as one of them sees them. A parameter of kernels. */
typedef struct bny_device_group {
  int32_t rank, nranks;
  int32_t shares_device; /* of some rank others have the device too */
  int32_t pad;
  bny_relay *relay; /* NULL: the communicator has no ranks on other hosts */
  bny_arena_shape shape;
  unsigned char *arenas[BNY_DEVICE_RANKS_MAX]; /* its own too */
} bny_device_group;

/* ---- units -------------------------------------------------------------------------------------------------------- */

/* How rows are cut into units, the same on all ranks. Of bytes: "heads" are units, one after another; there is one token. */
typedef struct bny_unit_shape {
  int32_t token0, tokens, head0, heads; /* box of rows */
  int32_t value_dim;
  int32_t wire;          /* bny_wire; bytes: -1 */
  int32_t chunk_columns; /* of a row, a multiple of 8; the last chunk may have fewer. Bytes: of a unit, a multiple of 4 */
  int32_t chunks;        /* of a row: 1, 2, 4 or 8 */
  uint32_t unit_bytes;   /* from one to the next in an inbox, a multiple of 128 */
} bny_unit_shape;

/* ---- programs ----------------------------------------------------------------------------------------------------- */

/* Where the units of a slot lie in an inbox: unit (token, head, chunk) is number
 * ((token - token0) * heads + head - head0) * chunks + chunk of it.
 *
 * What goes to other hosts, or comes from them, lies in memory of the host as a message that hosts send to each other: m of
 * all rows, d of all rows, numerators. */
typedef struct bny_program_place {
  uint64_t offset; /* in the half of the inbox */
  uint32_t signal; /* of the first unit: SIMPLE */
  int32_t peer;    /* of a source: who sends it. Of a destination: in whose inbox it lies. Of other hosts: this rank */
  int32_t slot;    /* of its sender's plan, to tell of */
  int32_t token0, head0, heads;
  uint64_t message[2]; /* by half, its address; 0: it lies in an inbox */
  uint64_t signals[2]; /* of its units, or of the one word that tells that it has come */
  uint32_t d, n;       /* bytes from the message's begin */
} bny_program_place;

typedef enum bny_program_kind {
  BNY_PROGRAM_COPY,   /* the caller's input -> destinations */
  BNY_PROGRAM_MERGE,  /* sources, merged -> destinations */
  BNY_PROGRAM_DELIVER /* sources, merged -> the caller's result */
} bny_program_kind;

/* A step sends each unit as soon as it is made, and waits for the units of its sources one by one. */
typedef struct bny_program_step {
  int32_t kind;
  int32_t sources, nsources;            /* places, in merge order */
  int32_t destinations, ndestinations;  /* places */
  int32_t token0, tokens, head0, heads; /* units: of bytes as in bny_unit_shape */
  int32_t nfar;                         /* the last of the destinations: messages to other hosts */
  uint64_t byte0, bytes; /* of bytes: only these */
  int64_t shift;         /* of bytes: they are delivered so much further on */
} bny_program_step;

/* Followed by its steps and then its places; `bytes` in all. */
typedef struct bny_program {
  uint64_t bytes;
  uint64_t label;       /* for the proxy, which does not launch it */
  uint64_t inbox_bytes; /* of a half, by the rank that needs most */
  uint64_t signals;     /* likewise */
  uint64_t relay_words; /* likewise: signals of units, and words of messages */
  int32_t protocol;     /* bny_protocol */
  int32_t round_nodes;
  int32_t nsteps, nplaces;
  bny_unit_shape shape;
  int32_t pad;
} bny_program;

/* The caller's memory. A parameter of kernels. */
typedef struct bny_device_call {
  banyan_partial in, out;        /* combine; out.values and out.lse NULL where nothing is delivered */
  int32_t out_token0, out_head0; /* of the row that out begins with */
  int32_t shares_stats;          /* in and out have statistics in common memory */
  int32_t pad;
  const unsigned char *in_bytes; /* the others: address of byte in_byte0 */
  unsigned char *out_bytes;      /* and of byte out_byte0 */
  uint64_t in_byte0, out_byte0;
} bny_device_call;

/* Everything to everybody, or to the owner of a row, in one step; not where merged values are rounded to the wire. A parameter
 * of its kernel: no program. Rank r's units lie in a rank's inbox from number r * units_max on, in the order of a place that
 * has the rows which that rank owns. */
typedef struct bny_oneshot {
  int32_t scatter; /* banyan_scatter */
  int32_t root;
  int32_t units_max; /* of what a rank owns of the box, at most */
  int32_t first[BNY_ONESHOT_RANKS_MAX + 1]; /* HEADS, TOKENS: rank r owns [first[r], first[r + 1]) of the box */
  bny_unit_shape shape;
} bny_oneshot;

/* A combine inside of another kernel, by LL16 and in whole rows: see fused.h. A parameter of that kernel. */
typedef struct bny_device_combine {
  bny_device_group group;
  bny_oneshot what;
  bny_device_call call; /* of `in` only what a row means */
  uint32_t mergers;     /* blocks, at most as many as can run at once */
  uint32_t pad;
} bny_device_combine;

/* ---- arithmetic of the above, for both sides ------------------------------------------------------------------------ */

#ifdef __CUDACC__
#define BNY_PROGRAM_INLINE static inline __host__ __device__
#else
#define BNY_PROGRAM_INLINE static inline
#endif

BNY_PROGRAM_INLINE uint64_t bny_device_fault_pack(int32_t status, int32_t culprit, int32_t reporter, uint32_t detail) {
  return (uint64_t)(uint32_t)status << 56 | (uint64_t)((uint32_t)(culprit + 1) & 0xffffu) << 40 |
         (uint64_t)((uint32_t)(reporter + 1) & 0xffffu) << 24 | (detail & 0xffffffu);
}

BNY_PROGRAM_INLINE bny_device_fault bny_device_fault_unpack(uint64_t word) {
  bny_device_fault fault;
  fault.status = (int32_t)(word >> 56);
  fault.culprit = (int32_t)(word >> 40 & 0xffffu) - 1;
  fault.reporter = (int32_t)(word >> 24 & 0xffffu) - 1;
  fault.detail = (uint32_t)(word & 0xffffffu);
  return fault;
}

/* Where a page table is wrong, and what is there; never 0. */
BNY_PROGRAM_INLINE uint64_t bny_device_place_pack(uint32_t place, int32_t id) {
  return ((uint64_t)place + 1) << 32 | (uint32_t)id;
}

/* Words in front of a unit's values: m and d. SIMPLE has two more, so that values are 16-byte aligned. */
BNY_PROGRAM_INLINE int32_t bny_protocol_header_words(int32_t protocol) { return protocol == BNY_PROTOCOL_SIMPLE ? 4 : 2; }

/* Packets, which is what a lane sends at once, for so many words. LL128: eighths of lines. */
BNY_PROGRAM_INLINE int32_t bny_protocol_packets(int32_t protocol, int32_t words) {
  switch (protocol) {
  case BNY_PROTOCOL_LL8: return words;
  case BNY_PROTOCOL_LL16: return (words + 2) / 3;
  case BNY_PROTOCOL_LL128: return (words + 29) / 30 * 8;
  default: return (words + 3) / 4;
  }
}

BNY_PROGRAM_INLINE int32_t bny_protocol_packet_bytes(int32_t protocol) { return protocol == BNY_PROTOCOL_LL8 ? 8 : 16; }

#ifdef __cplusplus
}
#endif

#endif
