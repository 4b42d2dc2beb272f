/* SPDX-License-Identifier: Apache-2.0
 * Data that the host shares with kernels: arenas and programs. All of it is plain data for C and C++.
 *
 * An arena is memory of one rank that all ranks of a communicator can write. It consists of a head, an *inbox* of two
 * halves for each protocol, and signals. Peers push messages into the inbox, and the rank itself stores intermediate
 * results there. The arenas of all ranks have the same shape. They are all zero when the communicator begins.
 *
 * All ranks number their runs alike, by an epoch. The kernel counts the epoch in the arena, so that a launch can be
 * replayed. Run e uses half e & 1 of each inbox.
 *
 * A *unit* is a chunk of a row's columns, or a range of bytes. A warp handles one unit at a time. Neighbouring warps of
 * a block form a group, which handles the chunks of a row. Group i of the grid's G groups handles rows i, i + G, i + 2G
 * and so on. Because this rule is fixed, no warp waits for a block of its own rank. A unit consists of 32-bit words: m,
 * d, and values in wire form, with two 16-bit values per word. A protocol defines its layout in an inbox:
 *
 *   LL16    16-byte cells: 3 words, flag                               PTX: .b128 accesses are single
 *   LL128   128-byte lines: 30 words, 64-bit flag                      needs links that keep lines intact: beyond PTX
 *   SIMPLE  plain words; separate signals, by release and acquire      PTX
 *
 * The flag is derived from the epoch, so nothing is cleared between runs. Flags have the same offsets in all units of a
 * protocol, and protocols do not share inboxes. Data is therefore never mistaken for a flag. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The most ranks of a communicator, threads of a block, and chunks of a row. */
enum { BNY_DEVICE_RANKS_MAX = 72, BNY_BLOCK_THREADS_MAX = 256, BNY_CHUNKS_MAX = 8 };

/* The most ranks of a oneshot, and the most ranks whose rows it merges at once. `wide` kernels serve more ranks. */
enum { BNY_ONESHOT_RANKS_MAX = BNY_DEVICE_RANKS_MAX, BNY_ONESHOT_NARROW_RANKS = 8 };

/* How a oneshot merges the rows of all ranks: at once, several at a time, or as sums of BANYAN_ORDER_EXACT. */
enum { BNY_ONESHOT_NARROW, BNY_ONESHOT_WIDE, BNY_ONESHOT_EXACT };

typedef enum bny_protocol {
  BNY_PROTOCOL_LL16,
  BNY_PROTOCOL_LL128,
  BNY_PROTOCOL_SIMPLE,
  BNY_PROTOCOL_COUNT
} bny_protocol;

/* ---- arena ------------------------------------------------------------------------------------------------------- */

/* The first failure of a rank, packed in one word; 0: none. `detail` and the position (BNY_DEVICE_WORD_POSITION) are:
 *   a wait that failed              the slot that was waited for
 *   other numbers of tokens         this rank's number; position: the culprit's number and this rank's
 *   bad data in a row               0; position: the row's token and head in the caller's partial
 *   a wrong length                  1 + the sequence
 *   a wrong page                    1 + the sequence, with bit PAGE; position: index in the page table, and the entry
 *   a wrong start                   the sequence, with bit START; position: the bound that the start passes, the start
 *   a row that the caller's type    bit RESULT; position: the row's token and head
 *   cannot hold
 *   an index that is offered twice  bit DOUBLED, and the rank that comes before the culprit; position: the row's token
 *                                   and head; WORD_INDEX: the index */
typedef struct bny_device_fault {
  int32_t status, culprit, reporter; /* ranks; -1: unknown */
  uint32_t detail;                   /* 24 bits */
} bny_device_fault;

enum {
  BNY_DEVICE_DETAIL_PAGE = 1 << 23,
  BNY_DEVICE_DETAIL_START = 1 << 22,
  BNY_DEVICE_DETAIL_RESULT = 1 << 23,
  BNY_DEVICE_DETAIL_DOUBLED = 1 << 22
};

/* Words that the host shares with the device: see bny_arena_head. POSITION is the position of this rank's fault, or 0
 * if it is unknown. */
enum {
  BNY_DEVICE_WORD_ABORT,
  BNY_DEVICE_WORD_FAULT,
  BNY_DEVICE_WORD_POSITION,
  BNY_DEVICE_WORD_INDEX,
  BNY_DEVICE_WORDS
};

/* A run takes 2^BNY_TICKET_BITS tickets, so that any block's ticket identifies the run. */
enum { BNY_TICKET_BITS = 20 };

/* Fields of different writers lie in different lines of 128 bytes. */
typedef struct bny_arena_head {
  /* written by its own kernels, and by the host between runs */
  uint64_t tickets;    /* runs begun << BNY_TICKET_BITS, between runs */
  uint64_t timeout_ns; /* limit, counted from a warp's first wait in a run; 0: none */
  uint64_t fault;      /* the first fault that this rank has seen */
  uint64_t *words;     /* [BNY_DEVICE_WORDS] in host memory: the host sets ABORT, kernels set the others; NULL: none */
  uint32_t arrived;    /* blocks of a fused run that have pushed everything */
  uint32_t ended;      /* warps that have ended the current run; counted only with a proxy */
  uint32_t pad0[22];
  /* written by its own kernels, read by peers */
  uint64_t waiting[2]; /* bit r: this rank has waited for rank r for 1/8 of the timeout */
  uint64_t pad1[14];
  /* written by any rank: a fault, which ends all waits of this rank in this run and in later ones */
  uint64_t abort;
  uint64_t pad2[15];
  /* written by peers: begun[r] is the last run that rank r has begun. Rank r has finished all earlier runs, so the data
   * that they read may be overwritten. */
  uint64_t begun[BNY_DEVICE_RANKS_MAX];
  /* written by peers and by the rank itself, before `begun`: the number of tokens of a run, indexed by the run's
   * parity. The upper half holds the run, the lower half 1 + tokens. Only runs with a variable number of tokens set
   * it. */
  uint64_t tokens[2][BNY_DEVICE_RANKS_MAX];
} bny_arena_head;

/* Sizes of an arena, the same on all ranks. */
typedef struct bny_arena_sizes {
  uint64_t inbox_bytes[BNY_PROTOCOL_COUNT]; /* size of a half */
  uint64_t signals;                         /* signals in a half */
  uint64_t proxy_words;                     /* words in a half; they follow a bny_proxy_words, outside the arenas */
} bny_arena_sizes;

/* Offsets within an arena, all multiples of 256. */
typedef struct bny_arena_shape {
  uint64_t inbox[BNY_PROTOCOL_COUNT][2];
  uint64_t signals[2];
  uint64_t bytes;
} bny_arena_shape;

/* Host memory that the kernels of a rank share with its *proxy*, the thread that exchanges data with other nodes.
 * Fields of different writers lie in different lines of 128 bytes. Two arrays follow for each half: a signal for each
 * unit that kernels have written, and a word for each message that has arrived. Endpoints of programs hold their
 * addresses. */
typedef struct bny_proxy_words {
  /* written by kernels */
  uint64_t begun;      /* the last run */
  uint64_t label;      /* label of the run's program, stored before `begun` */
  uint64_t ended;      /* the last run that all warps have ended */
  uint64_t waiting[2]; /* as in bny_arena_head */
  uint64_t pad0[11];
  /* written by the proxy */
  uint64_t taken; /* the last run that the proxy has begun: it has finished all earlier runs and read the label */
  uint64_t pad1[15];
} bny_proxy_words;

/* The ranks of a communicator on one node, from the view of one rank. It is a kernel parameter. */
typedef struct bny_device_group {
  int32_t rank, nranks;
  int32_t shares_device;  /* some rank shares its device with others */
  int32_t has_aliases;    /* some rank's device sees an arena at several addresses */
  bny_proxy_words *proxy; /* NULL: the communicator has no ranks on other nodes */
  bny_arena_shape shape;
  unsigned char *arenas[BNY_DEVICE_RANKS_MAX]; /* addresses on this rank's device, its own arena included */
} bny_device_group;

/* ---- units ------------------------------------------------------------------------------------------------------- */

/* Values of bny_unit_shape.wire for units that are moved unchanged, and for lists of value_dim pairs. */
enum { BNY_UNIT_BYTES = -1, BNY_UNIT_HEADS = -2, BNY_UNIT_LISTS = -3 };

/* The d of all ranks together is at most 1, so merges for lossy wires leave m at 0. Messages to other nodes have no m
 * and d, and no result depends on d. */
#define BNY_SUM_D 0x1p-20f

/* How rows are cut into units, the same on all ranks. Byte programs have one token, and their "heads" are consecutive
 * units. In an all-gather of heads, a unit is a row of value_dim bytes. Sums have "heads" of value_dim columns: unit h
 * of a token has columns [h value_dim, (h + 1) value_dim), as far as the box has them. They travel as the numerators of
 * rows whose m is 0 and whose d is BNY_SUM_D, so they need no kernels of their own. On the wire of e4m3 these columns
 * are counted in whole blocks: each of `groups` parts of a tensor has group_columns of them, and may lack the last. */
typedef struct bny_unit_shape {
  int32_t token0, tokens, head0, heads; /* box of rows */
  int32_t column0, columns;             /* sums: the columns of the box. columns 0: there are no sums */
  int32_t row_columns;                  /* sums: columns of a row of the plan, 1 or 32 */
  int32_t dim, groups, group_columns;   /* sums of e4m3: the columns of a token, and their parts */
  int32_t value_dim;
  int32_t wire;          /* bny_wire, BNY_UNIT_BYTES, BNY_UNIT_HEADS or BNY_UNIT_LISTS */
  int32_t chunk_columns; /* a multiple of 8, or of 32 for e4m3; the last chunk may be shorter. Bytes: size of a unit, a
                          * multiple of 4 */
  int32_t chunks;        /* chunks in a row: 1, 2, 4 or 8 */
  uint32_t unit_bytes;   /* stride of units in an inbox, a multiple of 128 */
} bny_unit_shape;

/* ---- programs ---------------------------------------------------------------------------------------------------- */

/* The location of a slot's units in an inbox. Unit (token, head, chunk) has index ((token - token0) * heads + head -
 * head0) * chunks + chunk.
 *
 * Data for or from other nodes lies in host memory, in the layout of messages between nodes: m of all rows, d of all
 * rows, then numerators; or the columns of sums, token by token. */
typedef struct bny_program_endpoint {
  uint64_t offset; /* bytes from the start of the inbox half */
  uint32_t signal; /* SIMPLE: the signal of the first unit */
  int32_t peer;    /* source: the sender; destination: the owner of the inbox; other nodes: this rank */
  int32_t slot;    /* slot number in the sender's plan, for fault reports */
  int32_t token0, head0, heads;
  uint64_t message[2]; /* address of the message for each half; 0: the units lie in an inbox */
  uint64_t signals[2]; /* for each half: signals of its units, or the word that signals the message's arrival */
  union {
    struct {
      uint32_t d, n; /* byte offsets in the message */
    };
    struct {
      uint32_t column0, columns; /* sums: columns of the message, which has nothing else */
    };
  };
} bny_program_endpoint;

typedef enum bny_program_kind {
  BNY_PROGRAM_COPY,   /* the caller's input -> destinations */
  BNY_PROGRAM_MERGE,  /* sources, merged -> destinations */
  BNY_PROGRAM_DELIVER /* sources, merged -> the caller's result */
} bny_program_kind;

/* A step waits for the units of its sources one by one, and sends each unit as soon as it is ready. */
typedef struct bny_program_step {
  int32_t kind;
  int32_t sources, nsources;            /* endpoints, in merge order: the first one, and how many */
  int32_t destinations, ndestinations;  /* endpoints: the first one, and how many */
  int32_t token0, tokens, head0, heads; /* units; for bytes as in bny_unit_shape */
  int32_t nremote;                      /* how many of the last destinations are messages to other nodes */
  uint64_t byte0, bytes;                /* byte programs: the step moves only this range; sums: these columns */
  int64_t shift;                        /* byte programs: offset added on delivery, in bytes */
} bny_program_step;

/* A program of `bytes` in all: this head, then its steps, then its endpoints. */
typedef struct bny_program {
  uint64_t bytes;
  uint64_t label;       /* identifies the program to the proxy, which does not see launches */
  uint64_t inbox_bytes; /* needed size of an inbox half, the maximum over ranks */
  uint64_t signals;     /* needed signals of a half, the maximum over ranks */
  uint64_t proxy_words; /* needed bny_arena_sizes.proxy_words, the maximum over ranks */
  int32_t protocol;     /* bny_protocol */
  int32_t round_nodes;
  int32_t nsteps, nendpoints;
  bny_unit_shape shape;
  int32_t exact; /* rows are delivered in BANYAN_ORDER_EXACT, without merges on the way */
} bny_program;

/* The valid rows of a run. The pointers are those of banyan_valid_rows, and kernels read their arrays. */
typedef struct bny_device_valid {
  const int32_t *tokens; /* NULL: `count` */
  const int32_t *seq_lens, *query_start_loc;
  const uint8_t *token_mask;
  int32_t batch;
  int32_t most; /* upper bound of tokens in any run; 0: all rows are valid, and no other field is read */
  int32_t count;
  int32_t owners; /* owners of tokens: the number of ranks if tokens are scattered, else 1 */
  int32_t keeps_empty_rows;
  int32_t pad;
} bny_device_valid;

/* The caller's memory. It is a kernel parameter. */
typedef struct bny_device_call {
  banyan_partial in, out;        /* combine: out.values and out.lse are NULL if nothing is delivered. Heads: only values
                                  * and their strides, in bytes, are used. Sums: numerators without statistics */
  int32_t out_token0, out_head0; /* the first row of out */
  int32_t shares_stats;          /* the statistics of in and out overlap in memory */
  int32_t in_head0;              /* heads: the first head of in */
  const unsigned char *in_bytes; /* byte programs: address of byte in_byte0 */
  unsigned char *out_bytes;      /* address of byte out_byte0 */
  uint64_t in_byte0, out_byte0;
  uint64_t *saturated; /* word in host memory to which finite values that the wire cannot hold are added; NULL: none */
  bny_device_valid valid;
} bny_device_call;

/* A combine in one step, without a program: every row goes to all ranks, or to its owner. It does not serve merges that
 * round values to the wire at each node. It is a kernel parameter. In an inbox, the units of rank r begin at index r *
 * units_max. They cover the rows that the inbox's rank owns, in the order of bny_program_endpoint. */
typedef struct bny_oneshot {
  int32_t scatter; /* banyan_scatter */
  int32_t root;
  int32_t units_max;                        /* the most units that any rank owns */
  int32_t pushed;                           /* the kernel before this one has pushed all rows, in complete rows by LL16;
                                             * this one merges them */
  int32_t first[BNY_ONESHOT_RANKS_MAX + 1]; /* HEADS, TOKENS: rank r owns [first[r], first[r + 1]) of the box */
  bny_unit_shape shape;
} bny_oneshot;

/* A combine within another kernel, by LL16 and in complete rows: see fused.h. It is a parameter of that kernel. */
typedef struct bny_device_combine {
  bny_device_group group;
  bny_oneshot what;
  bny_device_call call; /* `in` describes only the convention of a row */
  uint32_t mergers;     /* blocks that merge: at most as many as can run at once. Decode kernels: 0 is no combine */
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

/* Packs a position: a number and a value at it, such as an index into a page table and the wrong entry. Never 0. */
BNY_PROGRAM_INLINE uint64_t bny_device_position_pack(uint32_t place, int32_t id) {
  return ((uint64_t)place + 1) << 32 | (uint32_t)id;
}

/* Returns the first item of part `index`, where banyan_split() divides `count` items among `parts` owners. */
BNY_PROGRAM_INLINE int32_t bny_split_first(int32_t count, int32_t parts, int32_t index) {
  int32_t larger = count % parts;
  return index * (count / parts) + (index < larger ? index : larger);
}

/* Returns the words before a unit's values: m and d. SIMPLE has two more, so that values are 16-byte aligned. */
BNY_PROGRAM_INLINE int32_t bny_protocol_header_words(int32_t protocol) {
  return protocol == BNY_PROTOCOL_SIMPLE ? 4 : 2;
}

/* Returns the packets for `words` words. A lane sends one packet at a time. A packet of LL128 is an eighth of a
 * line. */
BNY_PROGRAM_INLINE int32_t bny_protocol_packets(int32_t protocol, int32_t words) {
  switch (protocol) {
  case BNY_PROTOCOL_LL16: return (words + 2) / 3;
  case BNY_PROTOCOL_LL128: return (words + 29) / 30 * 8;
  default: return (words + 3) / 4;
  }
}

/* Returns the words of 32 packets. */
#ifdef __cplusplus
constexpr
#endif
    BNY_PROGRAM_INLINE int32_t
    bny_protocol_round_words(int32_t protocol) {
  return protocol == BNY_PROTOCOL_LL16 ? 96 : protocol == BNY_PROTOCOL_LL128 ? 120 : 128;
}

/* Eight-bit values have a scale for each block of 32 values. Their units are cut into rounds of 32 packets. Each round
 * has its own header, so no block is divided. */
enum { BNY_ROUND_HEADER_WORDS = 8, BNY_ROUND_BLOCK_WORDS = 8 };

/* Returns the columns of such a round. */
BNY_PROGRAM_INLINE int32_t bny_protocol_round_columns(int32_t protocol) {
  return 4 * (bny_protocol_round_words(protocol) - BNY_ROUND_HEADER_WORDS);
}

/* Returns the packets for a chunk of `columns` values of `bits` bits. */
BNY_PROGRAM_INLINE int32_t bny_protocol_packets_of(int32_t protocol, int32_t bits, int32_t columns) {
  if (bits != 8) {
    int32_t words = bits == 16 ? (columns + 1) / 2 : columns;
    return bny_protocol_packets(protocol, bny_protocol_header_words(protocol) + words);
  }
  int32_t round = bny_protocol_round_columns(protocol), left = columns % round;
  if (left == 0 && columns > 0) return columns / round * 32;
  return columns / round * 32 + bny_protocol_packets(protocol, BNY_ROUND_HEADER_WORDS + (left + 3) / 4);
}

enum { BNY_PACKET_BYTES = 16 };

#ifdef __cplusplus
}
#endif
