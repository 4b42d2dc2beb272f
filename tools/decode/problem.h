/* SPDX-License-Identifier: Apache-2.0
 * The problem to decode: per layer one query token per sequence against a KV cache, from a file or from a seed. */
#ifndef BNY_TOOLS_DECODE_PROBLEM_H
#define BNY_TOOLS_DECODE_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

#include "banyan.h"
#include "tools/common/safetensors.h"
#include "tools/common/util.h"

/* Keys of MLA have this many elements, and the first of them are the values. */
enum { DECODE_LATENT_DIM = 576, DECODE_LATENT_VALUE_DIM = 512 };

typedef struct decode_problem {
  int32_t layers;
  int32_t batch;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t value_dim;      /* less than head_dim: values are the first elements of keys (MLA) */
  int32_t tokens;         /* keys of the longest sequence */
  int32_t *lengths;       /* [batch]: keys of each sequence */
  banyan_dtype dtype;     /* of k and v as they are kept */
  banyan_dtype q_dtype;   /* of q: bf16 beside keys of eight bits, else the same */
  float scale;            /* of the logits */
  int32_t *layer_numbers; /* [layers]: as the file names them */
  safetensors *file;      /* NULL: made from the seed */
  uint64_t seed;
} decode_problem;

/* A rank's part of one layer's cache: of each sequence the range of tokens that banyan_split() gives it. k and v are
 * [batch][kv_heads][capacity][head_dim] in one block of memory, of the same size on every rank. With MLA there is k
 * alone. */
typedef struct decode_shard {
  void *block;
  size_t bytes; /* of k and v together */
  int32_t capacity;
} decode_shard;

typedef enum decode_tensor { DECODE_Q, DECODE_K, DECODE_V } decode_tensor;

/* Tensors layers.L.q [batch, heads, head_dim], layers.L.k and layers.L.v [batch, kv_heads, tokens, head_dim] for
 * every L in the file; "scale" of the metadata, or 1 / sqrt(head_dim). dtype 0: f32, which holds all of them
 * exactly. */
bool decode_problem_open(const char *path, banyan_dtype dtype, decode_problem *problem, tool_error *error);

/* One layer of random values. With `ragged` the lengths differ: the first sequence has all tokens, the others fewer. */
typedef struct decode_shape {
  int32_t batch, tokens, heads, kv_heads, head_dim;
  bool ragged;
} decode_shape;

bool decode_problem_make(const decode_shape *shape, banyan_dtype dtype, uint64_t seed, decode_problem *problem,
                         tool_error *error);

void decode_problem_close(decode_problem *problem);

/* Elements [first, first + count) along the tokens of one sequence and KV head, as they are kept but given as
 * f32. Of Q: heads in place of tokens, kv_head 0. MLA has no V. */
bool decode_problem_read(const decode_problem *problem, int32_t layer, decode_tensor tensor, int32_t sequence,
                         int32_t kv_head, int32_t first, int32_t count, float *values, tool_error *error);

/* [batch][heads][head_dim] in problem->q_dtype; free() releases it. */
bool decode_problem_query(const decode_problem *problem, int32_t layer, void **q, tool_error *error);

/* The number of keys of each sequence on `rank`. */
void decode_problem_shard_lengths(const decode_problem *problem, int32_t rank, int32_t nranks, int32_t *lengths);

bool decode_shard_make(const decode_problem *problem, int32_t rank, int32_t nranks, decode_shard *shard,
                       tool_error *error);
bool decode_shard_fill(const decode_problem *problem, int32_t layer, int32_t rank, int32_t nranks, decode_shard *shard,
                       tool_error *error);
void decode_shard_free(decode_shard *shard);

/* Local attention of the query over a shard (or one like it, elsewhere) with these lengths. */
banyan_attention_desc decode_shard_attention(const decode_problem *problem, const void *q, const decode_shard *shard,
                                             const int32_t *lengths);

#endif
