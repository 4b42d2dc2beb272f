/* SPDX-License-Identifier: Apache-2.0
 * A shard of keys and values as a message that describes itself, so that another rank can attend to it. Its keys are in
 * pages, one after another, whatever the sender's strides and pages are; attention has the same bits on both. */
#pragma once

#include "attention/call.h"

enum { BNY_SHARD_KEYS = 64 /* keys of a page */ };

/* Returns why shards of such calls are not packed, or NULL. Lengths are not read. */
const char *bny_shard_reject(const bny_attention_desc *desc);

/* Returns the pages of a shard, and the bytes of a message with so many. */
int64_t bny_shard_pages(const bny_attention_desc *desc);
size_t bny_shard_bytes(const bny_attention_desc *desc, int32_t batch, int64_t pages);

/* Hashes what all ranks have alike if one may attend to the shard of another: shapes, and for a run also which
 * positions each sequence's queries have, and what they see. Never 0. */
uint64_t bny_shard_alike(const bny_attention_desc *desc, bool of_run);

/* Packs the shard of a run with the sinks. With can = false, or if `room` bytes do not suffice, the message says that
 * there is no shard. */
void bny_shard_pack(const bny_attention_desc *desc, bool can, size_t room, void *message);

/* Returns the hash of the message's run; 0: it has no shard. */
uint64_t bny_shard_hash(const void *message);

/* Memory of a reader, for messages of a limited batch and number of pages. */
typedef struct bny_shard_room {
  int32_t *pages;       /* numbers from 0 on, as many as a message has pages */
  int32_t *indptr;      /* [batch + 1] */
  int32_t *loc, *start; /* likewise, for a share of the tokens */
} bny_shard_room;

/* Returns attention of this run to the shard of a message that is alike. */
bny_attention_desc bny_shard_open(const bny_attention_desc *run, const void *message, bny_shard_room *room);

/* Widens a share of the tokens, so that no sequence of many queries has few of them in it: few have other bits. */
void bny_shard_widen(const bny_attention_desc *run, int32_t *first, int32_t *tokens);

/* Narrow such attention to some tokens, or to some heads, which are whole groups. */
void bny_shard_take_tokens(bny_attention_desc *desc, bny_shard_room *room, int32_t first, int32_t tokens);
void bny_shard_take_heads(bny_attention_desc *desc, int32_t first, int32_t heads);
