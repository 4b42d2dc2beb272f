/* SPDX-License-Identifier: Apache-2.0
 *
 * Data that kernels and the host share: arenas, and programs. Plain data, C and C++.
 *
 * An arena is memory of one rank that all ranks of a communicator can write. It begins with a head. For each protocol
 * an *inbox* of two halves follows, and then signals. Peers push messages into the inbox, and the rank itself stores
 * there what it will read again. All ranks have arenas of one shape. An arena is all zero when the communicator begins.
 *
 * Runs are numbered by an epoch, the same on all ranks. The kernel counts it in the arena, so that a launch can be
 * replayed. Run e uses half e & 1 of each inbox.
 *
 * A *unit* is a row's chunk of columns (or a range of bytes), which a warp handles at a time. Neighbouring warps of one
 * block handle the chunks of a row. Group i of G such groups of the grid handles rows i, i + G, i + 2G and so on. The
 * rule is fixed, so that no warp waits for a block of its own rank. As words of 32 bits a unit is m, d, then values in
 * wire form (in pairs, if of 16 bits). It lies in an inbox by one of these protocols:
 *
 *   LL8     8-byte cells: 1 word, flag                                 PTX: .b64 accesses are single
 *   LL16    16-byte cells: 3 words, flag                               PTX: .b128 accesses are single
 *   LL128   128-byte lines: 30 words, 64-bit flag                      needs links that keep lines intact: beyond PTX
 *   SIMPLE  plain words; separate signals, by release and acquire      PTX
 *
 * The flag is derived from the epoch, so nothing is cleared between runs. Flags have the same places in all units of a
 * protocol, and protocols do not share inboxes, so no data is ever taken for a flag. */
#ifndef BNY_CUDA_PROGRAM_H
#define BNY_CUDA_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Limits of a communicator, of a block, of a row; sources in one round of a merge. */
enum { BNY_DEVICE_RANKS_MAX = 72, BNY_BLOCK_THREADS_MAX = 256, BNY_CHUNKS_MAX = 8 };

/* Ranks of a oneshot, and those whose rows are merged at once. Kernels of more ranks are `wide`. */
enum { BNY_ONESHOT_RANKS_MAX = BNY_DEVICE_RANKS_MAX, BNY_ONESHOT_NARROW_RANKS = 8 };

/* How a oneshot merges: all rows at once, several at a time, or as sums of BANYAN_ORDER_EXACT. */
enum { BNY_ONESHOT_NARROW, BNY_ONESHOT_WIDE, BNY_ONESHOT_EXACT };

typedef enum bny_protocol {
  BNY_PROTOCOL_LL8,
  BNY_PROTOCOL_LL16,
  BNY_PROTOCOL_LL128,
  BNY_PROTOCOL_SIMPLE,
  BNY_PROTOCOL_COUNT
} bny_protocol;

/* ---- arena ------------------------------------------------------------------------------------------------------- */

/* The first failure, in one word: 0 if there is none. detail: the slot that was waited for. For bad data it is 0, and
 * the position is the row's token and head in the caller's partial. For a wrong length it is 1 + the sequence; for a
 * wrong page it is that value and BNY_DEVICE_DETAIL_PAGE. For a wrong start it is the sequence and
 * BNY_DEVICE_DETAIL_START; the position is the bound that the start passes, and the start. For a row that the caller's
 * type cannot hold it is BNY_DEVICE_DETAIL_RESULT; the position is its token and head. */
typedef struct bny_device_fault {
  int32_t status, culprit, reporter; /* ranks; -1: unknown */
  uint32_t detail;                   /* 24 bits */
} bny_device_fault;

enum { BNY_DEVICE_DETAIL_PAGE = 1 << 23, BNY_DEVICE_DETAIL_START = 1 << 22, BNY_DEVICE_DETAIL_RESULT = 1 << 23 };

/* Words that the host shares with the device, see bny_arena_head. POSITION: where this rank's fault lies, if that is
 * known. */
enum { BNY_DEVICE_WORD_ABORT, BNY_DEVICE_WORD_FAULT, BNY_DEVICE_WORD_POSITION, BNY_DEVICE_WORDS };

/* Tickets of a run as a power of two, so that any warp's ticket identifies the run. */
enum { BNY_TICKET_BITS = 20 };

/* Lines of 128 bytes, grouped by writer. */
typedef struct bny_arena_head {
  /* written by its own kernels, and by the host between runs */
  uint64_t tickets;    /* runs begun << BNY_TICKET_BITS, between runs */
  uint64_t timeout_ns; /* from the first wait of a warp in a run; 0: no limit */
  uint64_t fault;      /* the first one seen here */
  uint64_t *words;     /* [BNY_DEVICE_WORDS] in host memory: the host sets ABORT, kernels the others. NULL: none */
  uint32_t arrived;    /* blocks of a fused run that have pushed everything */
  uint32_t ended;      /* warps that have ended a run which is reported to a proxy */
  uint32_t pad0[22];
  /* written by its own kernels, read by peers */
  uint64_t waiting[2]; /* bit r: this rank has waited for rank r for some time */
  uint64_t pad1[14];
  /* written by any rank: a fault, which ends all waits of this rank, now and in later runs */
  uint64_t abort;
  uint64_t pad2[15];
  /* written by peers: begun[r] is the last run that rank r has begun. It has finished the runs before, so what they
   * read may be overwritten. */
  uint64_t begun[BNY_DEVICE_RANKS_MAX];
  /* written by peers, and by the rank itself, before `begun`: the tokens of runs whose number may change, by parity of
   * the run. The run is in the upper half, and 1 + tokens in the lower. */
  uint64_t tokens[2][BNY_DEVICE_RANKS_MAX];
} bny_arena_head;

/* Sizes that all ranks agree on. */
typedef struct bny_arena_sizes {
  uint64_t inbox_bytes[BNY_PROTOCOL_COUNT]; /* size of a half */
  uint64_t signals;                         /* signals in a half */
  uint64_t proxy_words;                     /* words in a half, behind a bny_proxy_words; not in arenas */
} bny_arena_sizes;

/* Offsets within an arena, all multiples of 256. */
typedef struct bny_arena_shape {
  uint64_t inbox[BNY_PROTOCOL_COUNT][2];
  uint64_t signals[2];
  uint64_t bytes;
} bny_arena_shape;

/* Host memory that kernels of a rank share with its *proxy*, a thread of its process that exchanges data with other
 * nodes. Lines of 128 bytes, grouped by writer. For each half, signals of the units that kernels have written follow,
 * and then one word for each message that has arrived. The places of programs hold the addresses. */
typedef struct bny_proxy_words {
  /* written by kernels */
  uint64_t begun;      /* the last run */
  uint64_t label;      /* identifies the run's program: stored before `begun` */
  uint64_t ended;      /* the last run that all of its warps have ended */
  uint64_t waiting[2]; /* as in the arena's head */
  uint64_t pad0[11];
  /* written by the proxy */
  uint64_t taken; /* the last run it has begun: it has finished all earlier ones and has read the label */
  uint64_t pad1[15];
} bny_proxy_words;

/* The ranks of a communicator on one node, as one of them sees them. A parameter of kernels. */
typedef struct bny_device_group {
  int32_t rank, nranks;
  int32_t shares_device;  /* some rank shares its device with others */
  int32_t has_aliases;    /* some rank's device sees an arena at several addresses */
  bny_proxy_words *proxy; /* NULL: the communicator has no ranks on other nodes */
  bny_arena_shape shape;
  unsigned char *arenas[BNY_DEVICE_RANKS_MAX]; /* including its own */
} bny_device_group;

/* ---- units ------------------------------------------------------------------------------------------------------- */

/* Instead of a bny_wire. */
enum { BNY_UNIT_BYTES = -1, BNY_UNIT_HEADS = -2 };

/* How rows are cut into units, the same on all ranks. For bytes there is one token, and "heads" are consecutive
 * units. Of heads that are gathered, a unit is a row of value_dim bytes. */
typedef struct bny_unit_shape {
  int32_t token0, tokens, head0, heads; /* box of rows */
  int32_t value_dim;
  int32_t wire;          /* bny_wire, or what is moved as it is: BNY_UNIT_BYTES or BNY_UNIT_HEADS */
  int32_t chunk_columns; /* a multiple of 8, or 32 for e4m3; the last chunk may have fewer. Bytes: columns of a unit, a
                          * multiple of 4 */
  int32_t chunks;        /* chunks in a row: 1, 2, 4 or 8 */
  uint32_t unit_bytes;   /* distance of units in an inbox, a multiple of 128 */
} bny_unit_shape;

/* ---- programs ---------------------------------------------------------------------------------------------------- */

/* Where the units of a slot lie in an inbox. Unit (token, head, chunk) has the number
 * ((token - token0) * heads + head - head0) * chunks + chunk in it.
 *
 * Data for or from other nodes lies in host memory, as the message that nodes send to each other: m of all rows, d of
 * all rows, numerators. */
typedef struct bny_program_endpoint {
  uint64_t offset; /* in the half of the inbox */
  uint32_t signal; /* SIMPLE: the signal of the first unit */
  int32_t peer;    /* source: the sender. Destination: the owner of the inbox. Other nodes: this rank */
  int32_t slot;    /* number in its sender's plan, for fault reports */
  int32_t token0, head0, heads;
  uint64_t message[2]; /* address for each half; 0: the place is in an inbox */
  uint64_t signals[2]; /* signals of its units, or the one word that signals the message's arrival */
  uint32_t d, n;       /* byte offsets in the message */
} bny_program_endpoint;

typedef enum bny_program_kind {
  BNY_PROGRAM_COPY,   /* the caller's input -> destinations */
  BNY_PROGRAM_MERGE,  /* sources, merged -> destinations */
  BNY_PROGRAM_DELIVER /* sources, merged -> the caller's result */
} bny_program_kind;

/* A step sends each unit as soon as it is ready, and waits for the units of its sources one by one. */
typedef struct bny_program_step {
  int32_t kind;
  int32_t sources, nsources;            /* places, in merge order */
  int32_t destinations, ndestinations;  /* places */
  int32_t token0, tokens, head0, heads; /* units; for bytes as in bny_unit_shape */
  int32_t nremote;                      /* the last destinations: messages to other nodes */
  uint64_t byte0, bytes;                /* bytes: only this range */
  int64_t shift;                        /* bytes: offset added on delivery */
} bny_program_step;

/* A program. Its steps and then its places follow it, `bytes` in all. */
typedef struct bny_program {
  uint64_t bytes;
  uint64_t label;       /* identifies the program to the proxy, which does not launch it */
  uint64_t inbox_bytes; /* size of a half, the largest need of any rank */
  uint64_t signals;     /* likewise */
  uint64_t proxy_words; /* the same for signals of units and words of messages */
  int32_t protocol;     /* bny_protocol */
  int32_t round_nodes;
  int32_t nsteps, nendpoints;
  bny_unit_shape shape;
  int32_t pad;
} bny_program;

/* The valid rows of a run: the pointers of banyan_valid_rows, whose arrays kernels read. */
typedef struct bny_device_valid {
  const int32_t *tokens; /* NULL: `count` */
  const int32_t *seq_lens, *query_start_loc;
  const uint8_t *token_mask;
  int32_t batch;
  int32_t most; /* upper bound of tokens in any run. 0: all rows are valid, and no other field is read */
  int32_t count;
  int32_t owners; /* owners of tokens: the ranks, if tokens are scattered; else 1 */
  int32_t keeps_empty_rows;
  int32_t pad;
} bny_device_valid;

/* The caller's memory. A parameter of kernels. */
typedef struct bny_device_call {
  banyan_partial in, out;        /* combine; out.values and out.lse are NULL where nothing is delivered. Heads: only
                                  * values and their strides, in bytes, are used */
  int32_t out_token0, out_head0; /* the first row of out */
  int32_t shares_stats;          /* the statistics of in and out overlap in memory */
  int32_t in_head0;              /* heads: the first of in */
  const unsigned char *in_bytes; /* byte programs: address of byte in_byte0 */
  unsigned char *out_bytes;      /* address of byte out_byte0 */
  uint64_t in_byte0, out_byte0;
  bny_device_valid valid;
} bny_device_call;

/* All rows go to all ranks, or to their owners, in one step; not if merged values are rounded to the wire. A parameter
 * of its kernel, without a program. In an inbox, the units of rank r begin at number r * units_max, in the order of a
 * place that has the rows which the inbox's rank owns. */
typedef struct bny_oneshot {
  int32_t scatter; /* banyan_scatter */
  int32_t root;
  int32_t units_max;                        /* most units of the part of the box that a rank owns */
  int32_t first[BNY_ONESHOT_RANKS_MAX + 1]; /* HEADS, TOKENS: rank r owns [first[r], first[r + 1]) of the box */
  bny_unit_shape shape;
} bny_oneshot;

/* A combine within another kernel, by LL16 and in complete rows: see fused.h. A parameter of that kernel. */
typedef struct bny_device_combine {
  bny_device_group group;
  bny_oneshot what;
  bny_device_call call; /* `in` only describes the convention of a row */
  uint32_t mergers;     /* blocks, at most as many as can run at once */
  uint32_t pad;
} bny_device_combine;

/* ---- arithmetic for host and kernels ----------------------------------------------------------------------------- */

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

/* Packs a wrong entry of a page table and its index; never 0. */
BNY_PROGRAM_INLINE uint64_t bny_device_position_pack(uint32_t place, int32_t id) {
  return ((uint64_t)place + 1) << 32 | (uint32_t)id;
}

/* Words before a unit's values: m and d. SIMPLE has two more, so that values are 16-byte aligned. */
BNY_PROGRAM_INLINE int32_t bny_protocol_header_words(int32_t protocol) {
  return protocol == BNY_PROTOCOL_SIMPLE ? 4 : 2;
}

/* Packets for `words` words; a lane sends one at a time. LL128: a packet is an eighth of a line. */
BNY_PROGRAM_INLINE int32_t bny_protocol_packets(int32_t protocol, int32_t words) {
  switch (protocol) {
  case BNY_PROTOCOL_LL8: return words;
  case BNY_PROTOCOL_LL16: return (words + 2) / 3;
  case BNY_PROTOCOL_LL128: return (words + 29) / 30 * 8;
  default: return (words + 3) / 4;
  }
}

/* Words of 32 packets. */
#ifdef __cplusplus
constexpr
#endif
    BNY_PROGRAM_INLINE int32_t
    bny_protocol_round_words(int32_t protocol) {
  return protocol == BNY_PROTOCOL_LL8     ? 32
         : protocol == BNY_PROTOCOL_LL16  ? 96
         : protocol == BNY_PROTOCOL_LL128 ? 120
                                          : 128;
}

/* Values of eight bits have scales for blocks of 32. Their units are cut into rounds of 32 packets, each with a header,
 * so that no block is divided. */
enum { BNY_ROUND_HEADER_WORDS = 8, BNY_ROUND_BLOCK_WORDS = 8 };

/* Columns of such a round. */
BNY_PROGRAM_INLINE int32_t bny_protocol_round_columns(int32_t protocol) {
  return 4 * (bny_protocol_round_words(protocol) - BNY_ROUND_HEADER_WORDS);
}

/* Packets for a row's chunk of values of `bits` bits. */
BNY_PROGRAM_INLINE int32_t bny_protocol_packets_of(int32_t protocol, int32_t bits, int32_t columns) {
  if (bits != 8) {
    int32_t words = bits == 16 ? (columns + 1) / 2 : columns;
    return bny_protocol_packets(protocol, bny_protocol_header_words(protocol) + words);
  }
  int32_t round = bny_protocol_round_columns(protocol), left = columns % round;
  if (left == 0 && columns > 0) return columns / round * 32;
  return columns / round * 32 + bny_protocol_packets(protocol, BNY_ROUND_HEADER_WORDS + (left + 3) / 4);
}

BNY_PROGRAM_INLINE int32_t bny_protocol_packet_bytes(int32_t protocol) { return protocol == BNY_PROTOCOL_LL8 ? 8 : 16; }

#ifdef __cplusplus
}
#endif

#endif
