/* SPDX-License-Identifier: Apache-2.0
 * Random problems of attention over shards, with the combine of its rows, on every backend. They vary pages in tables
 * or lists, query tokens per sequence, windows, trees, interleaved shards, caps and sinks. They also vary parts of q,
 * gathered q, and the tokens and masks of each run. The expected result is in double precision. */
#pragma once

#include "tests/support/drawn.h"
#include "tests/support/world.h"

enum { ATTEND_RANKS_MAX = 9, ATTEND_POISON = 0x5a };

/* The sizes that all shards of a problem share. */
typedef struct problem_shape {
  int32_t batch, heads, kv_heads, head_dim, value_dim;
  bool latent; /* values are the first columns of keys */
  banyan_dtype dtype;
  bool one_sign;               /* values are not negative, so errors of truncated sums add up */
  int32_t page_keys, keys_max; /* page_keys 0: contiguous */
  const int32_t *lengths;      /* NULL: random ones */
} problem_shape;

/* The storage of keys and values: in the type of q, as E4M3 with scales, or as rows of FlashMLA, which contain the
 * values. The others are for the host: E5M2 and I8 with scales, F32, and F32 for q alone. */
typedef enum attend_form {
  ATTEND_PLAIN,
  ATTEND_E4M3,
  ATTEND_FLASHMLA,
  ATTEND_E5M2,
  ATTEND_I8,
  ATTEND_F32,
  ATTEND_F32_QUERIES
} attend_form;

/* The part of one rank. Memory is from world_take(). */
typedef struct attend_rank {
  drawn shard; /* all keys; a run has the first of each sequence. Keys that shard.mask leaves out are NaN. */
  int32_t *list, *indptr, *last;
  int32_t *lengths, *key_start, *counts, *tokens;
  uint8_t *mask;
  uint16_t *mine, *gathered;                      /* its heads of q, and memory for all heads */
  float *values, *lse, *other_values, *other_lse; /* results of the call and of its twin */
  float *rows;                                    /* values, m and d between attention and a combine apart */
  size_t values_bytes, lse_bytes;                 /* lse_bytes includes the sums after lse */
  float *out_scales;                              /* scales of 8-bit results */
  float *bounds, *error, *read;                   /* for pruning, or NULL */
} attend_rank;

typedef struct attend {
  int32_t nranks, rows; /* rows of q: maximum tokens */
  problem_shape shape;
  banyan_combine_desc combine; /* without pointers */
  bool several, causal, tree, lists, by_last, has_tokens, has_mask, keeps, gathers, alone, blocking, masks_keys;
  int32_t block, window, rope_dim, queries_most; /* queries_most: of a sequence, if there are several */
  float cap, epsilon;                            /* epsilon above 0: pages are skipped */
  attend_form form;
  int32_t keys_bound;     /* keys_max of contiguous keys, for more blocks than the keys need; 0: what they need */
  banyan_dtype out_dtype; /* BANYAN_F32, or another in a convention by the seed, with gaps between rows */
  drawn all;              /* the queries, and what shards share */
  float *sinks;           /* NULL: none */
  int32_t *loc, *start;
  uint64_t *masks; /* drafts of a tree that each query sees */
  uint64_t seed;
  attend_rank ranks[ATTEND_RANKS_MAX];
} attend;

/* The arguments of a call, with addresses of the rank's backend. */
typedef struct attend_call {
  banyan_attention_desc desc;
  banyan_combine_desc combine;
  banyan_queries queries;
  banyan_heads_desc gather;
  banyan_valid_rows valid;
  banyan_partial out;
  bool has_result;
} attend_call;

/* Makes the random properties that all ranks share. Fields may be changed before attend_fill(). */
attend *attend_make(int32_t nranks, uint64_t seed);
/* Makes a simple problem: one query token per sequence that sees all keys, combined on all ranks. If shape is NULL, it
 * is random. */
attend *attend_make_plain(int32_t nranks, uint64_t seed, const problem_shape *shape);
void attend_fill(attend *made);

/* Draws lengths, masks and tokens of a run from round and rank, and overwrites results with poison. All ranks call it,
 * and meet before and after. On devices, pages of sequences whose keys are not read are invalid. */
bool attend_draw_all(world_rank *self, attend *made, int round);

/* Fills the call, which points to itself. attend_ready() first draws the run. attend_twin_of() describes the same call
 * in another way, with the same bits: with exactly the tokens of the run, and a complete q. */
bool attend_ready(world_rank *self, attend *of, int round, attend_call *made);
void attend_call_of(const attend *from, const world_rank *self, attend_call *made);
bool attend_has_twin(const attend *of);
void attend_twin_of(const attend *from, const world_rank *self, attend_call *made);
/* Directs the result of the call to the twin's memory. */
void attend_be_twin(const attend *from, const world_rank *self, attend_call *call);

/* Make the operation of a call, and do it once. Without a combine, only attend_init() is possible. */
banyan_status attend_init(world_rank *self, const attend *of, const attend_call *call, banyan_op **op);
bool attend_once(world_rank *self, const attend *of, const attend_call *call);

/* Computes the row in double precision. Without a combine, only the shard of rank `self` is used. Sinks count on rank
 * 0. */
void attend_reference(const attend *of, int32_t self, int32_t token, int32_t head, attention_row *row);

/* Return true if the result of this rank, or of its twin, is correct. Otherwise they note a failure. */
bool attend_holds(world_rank *self, const attend *of, int round);
bool attend_twin_agrees(world_rank *self, const attend *of, int round);

const char *attend_text(const attend *of); /* valid until the thread's next call */
