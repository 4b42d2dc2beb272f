/* SPDX-License-Identifier: Apache-2.0
 * Attention over ranks that moves keys and values instead of queries' partials (pass-KV). The shards of all ranks are
 * gathered. Each rank then attends to each shard for its share of the rows, and merges the shards' rows in the order of
 * ranks, through the wire's format, as oneshot does with rows that come from peers. Without a scatter, the shares of
 * heads are gathered at last.
 *
 * A run takes partials instead if some rank cannot pack its shard, or calls differ in what queries see: all ranks read
 * that in the messages. */
#pragma once

#include "attention/shard.h"
#include "op/operation.h"

struct bny_pass {
  void *memory; /* owned: all below */
  size_t bytes;
  char *messages; /* rank r's has counts[r] bytes and is before that of rank r + 1 */
  size_t *counts; /* [nranks] */
  size_t *heads;  /* [nranks]: without a scatter, the heads of each rank */
  char *slots;    /* rows of each shard in wire form */
  size_t slot_bytes;
  float *results; /* without a scatter, [tokens][heads] rows of values, m and d */
  bny_shard_room room;
  int32_t batch_most, kv_heads; /* calls with others are not packed */
  int64_t pages_most;           /* room.pages has so many */
  bool is_taken;                /* in the run under way */
  bool is_outdated;             /* a run has taken partials */
  char text[256];
};

/* Returns the rows of a run that a rank attends to. */
bny_slice bny_pass_share(const banyan_op *op, int32_t rank, int32_t tokens);

/* Packs this rank's shard for a run. */
void bny_pass_pack(banyan_op *op);

/* Attends after shards are gathered: to them, or to this rank's if this run takes partials. */
banyan_status bny_pass_attend(banyan_op *op);

/* Delivers the rows of all ranks, after these are gathered. */
void bny_pass_deliver(banyan_op *op);

void bny_pass_free(bny_pass *pass); /* NULL is allowed */

/* Chooses by price between keys and partials, or as BANYAN_PASS says. Collective, for an operation that has its
 * attention. has_lengths: seq_lens may be read. */
banyan_status bny_pass_choose(banyan_op *op, bool has_lengths);
