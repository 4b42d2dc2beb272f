/* SPDX-License-Identifier: Apache-2.0
 * Types and functions that the files of banyan-decode share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "banyan.h"
#include "tools/common/device_ranks.h"
#include "tools/common/gpu.h"
#include "tools/common/safetensors.h"
#include "tools/common/util.h"
#include "tools/common/world.h"

/* The decode problem: in each layer, one query token per sequence attends to a KV cache. Its data comes from a file or
 * from a seed. */

/* MLA: the number of elements of a key, and how many of the first of them are the value. */
enum { DECODE_LATENT_DIM = 576, DECODE_LATENT_VALUE_DIM = 512 };

enum { EXACT_KEYS = 256 }; /* keys per block with BANYAN_ORDER_EXACT */

typedef struct decode_problem {
  int32_t layers;
  int32_t batch;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t value_dim;      /* below head_dim: values are the first elements of keys (MLA) */
  int32_t tokens;         /* keys of the longest sequence */
  int32_t queries, query; /* query tokens of each sequence, its last ones; and which of them is read */
  int32_t *lengths;       /* [batch]: keys of each sequence */
  int32_t split_keys;     /* shards are multiples of this many keys; 0: any number */
  banyan_dtype dtype;     /* type of k and v in the cache */
  banyan_dtype q_dtype;   /* type of q: bf16 with 8-bit keys, otherwise dtype */
  float scale;            /* scale of the logits */
  int32_t *layer_numbers; /* [layers]: numbers in the file */
  safetensors *file;      /* NULL: data from the seed */
  uint64_t seed;
} decode_problem;

/* A rank's part of one layer's cache. It has a range of tokens of each sequence, by banyan_split() in units of
 * split_keys. k and v are [batch][kv_heads][capacity][head_dim] in one block, which has the same size on all ranks. MLA
 * has only k. */
typedef struct decode_shard {
  void *block;
  size_t bytes; /* total size of k and v */
  int32_t capacity;
} decode_shard;

typedef enum decode_tensor { DECODE_Q, DECODE_K, DECODE_V } decode_tensor;

/* Opens a file with tensors layers.L.q [batch, heads, head_dim], layers.L.k and layers.L.v [batch, kv_heads, tokens,
 * head_dim] for each layer L. The scale is "scale" of the metadata, or 1 / sqrt(head_dim). dtype 0 selects f32, which
 * represents all stored types exactly. */
bool decode_problem_open(const char *path, banyan_dtype dtype, decode_problem *problem, tool_error *error);

/* The shape of one layer of random values. With `ragged`, only the first sequence has all tokens, and the others have
 * fewer. */
typedef struct decode_shape {
  int32_t batch, tokens, heads, kv_heads, head_dim, queries; /* queries 0: 1 */
  bool ragged;
} decode_shape;

void decode_problem_make(const decode_shape *shape, banyan_dtype dtype, uint64_t seed, decode_problem *problem);

void decode_problem_close(decode_problem *problem);

/* Reads elements [first, first + count) along the tokens of one sequence and KV head as f32, from their stored type.
 * For Q, the range is along heads, and kv_head is 0. MLA has no V. */
bool decode_problem_read(const decode_problem *problem, int32_t layer, decode_tensor tensor, int32_t sequence,
                         int32_t kv_head, int32_t first, int32_t count, float *values, tool_error *error);

/* Returns the queries [batch][queries][heads][head_dim] in problem->q_dtype. */
bool decode_problem_query(const decode_problem *problem, int32_t layer, void **q, tool_error *error);

/* Writes the number of keys of each sequence on `rank`. */
void decode_problem_shard_lengths(const decode_problem *problem, int32_t rank, int32_t nranks, int32_t *lengths);

/* Returns the number of tensors: 2 for k and v, or 1 for MLA. */
int decode_problem_tensors(const decode_problem *problem);

/* Sets all members of a shard except its memory. */
bool decode_shard_size(const decode_problem *problem, int32_t rank, int32_t nranks, decode_shard *shard,
                       tool_error *error);
bool decode_shard_make(const decode_problem *problem, int32_t rank, int32_t nranks, decode_shard *shard,
                       tool_error *error);
bool decode_shard_fill(const decode_problem *problem, int32_t layer, int32_t rank, int32_t nranks, decode_shard *shard,
                       tool_error *error);

/* Describes local attention of the query over a shard, or over memory of the same layout, with these lengths. */
banyan_attention_desc decode_shard_attention(const decode_problem *problem, const void *q, const decode_shard *shard,
                                             const int32_t *lengths);

/* The reference: attention in double precision over the stored keys and values, without optimisation. The ranks divide
 * the rows. Each rank reads all keys of its rows from the source and not from shards, so that errors in sharding are
 * detected. */

/* Sets *rows to [batch][heads][value_dim] on every rank. Reports progress of long work on stderr. */
bool decode_reference_make(const tool_world *world, const decode_problem *problem, int32_t layer, double **rows,
                           tool_error *error);

/* Raises *max_abs to the largest |out - want| of an element of this row, and *max_rel to |out - want|_2 / |want|_2. */
void decode_row_error(const float *out, const double *want, int32_t count, double *max_abs, double *max_rel);

/* The compared methods to decode with a sharded cache. All use the same library:
 *   tree        local attention, then one combine of the partials
 *   ring        Ring Attention: keys and values travel from rank to rank, and each rank attends to all of them
 *   allreduce3  local attention, then three all-reduces: of the maximum, the denominators and the numerators
 *   fused       attention and the combine as one operation
 *   overlap     like fused, but between nodes it runs in slices if that is faster */

typedef struct decode_settings {
  banyan_combine_desc combine; /* the combine of all rows of a layer */
  float epsilon;               /* above 0: fused and overlap skip pages */
} decode_settings;

/* The input of a method. `out` is [tokens][heads][head_dim] of the part that this rank holds (see
 * tool_part_of_rank()). */
typedef struct decode_task {
  const tool_world *world;
  const decode_problem *problem;
  const decode_settings *settings;
  const void *q;
  const decode_shard *shard;
  const int32_t *lengths; /* lengths of the sequences in the shard */
  float *out;
} decode_task;

typedef struct decode_facts {
  char algorithm[64];
  char reason[1024];
  uint64_t bytes_sent;  /* sent by this rank in one run */
  uint64_t roundings;   /* largest number of roundings of a value to the wire type */
  uint64_t extra_bytes; /* memory of this rank besides inputs and output */
  uint64_t arena_bytes; /* the part of extra_bytes in the arena */
  int32_t slices;       /* slices of the batch */
  double pages_read;    /* with epsilon: fraction of pages that this rank read */
  const float *errors;  /* with epsilon: certified error of each row of the result; else NULL */
  double certified;     /* with epsilon: largest certified error */
} decode_facts;

void *decode_take(uint64_t *held, size_t bytes); /* calls tool_take() and adds to *held */

typedef struct decode_method {
  const char *name;
  bool scatters;  /* delivers as --scatter requests; otherwise all rows on every rank */
  bool uses_wire; /* values are rounded to the wire format */
  bool same_bits; /* guarantees the same bits on every rank */
  bool is_one;    /* one operation, so the time of attention alone is unknown */
  banyan_status (*create)(const decode_task *task, void **state);
  banyan_status (*run)(void *state, int64_t *local_ns); /* local_ns: time of attention alone */
  void (*query)(void *state, decode_facts *facts);      /* after at least one run */
  void (*destroy)(void *state);                         /* NULL is allowed */
} decode_method;

extern const decode_method decode_method_tree, decode_method_ring, decode_method_allreduce3, decode_method_fused,
    decode_method_overlap;

/* Adds what the operation reports to facts, which begin as zeros. */
void decode_facts_add(decode_facts *facts, const banyan_op *op, int32_t runs);

/* Runs each method on each layer: checks its result, and then measures its time. */

/* Results over all ranks and layers. Errors, bytes and memory are the maximum over the ranks; times are those of the
 * slowest rank. */
typedef struct decode_result {
  const decode_method *method;
  banyan_scatter scatter; /* as delivered */
  decode_facts facts;
  double max_abs_error;
  double max_rel_error; /* worst row of |out - reference|_2 / |reference|_2 */
  double rel_error_bound;
  double pages_read, certified; /* with epsilon: maximum over ranks and layers */
  double beyond;                /* largest excess of a row's relative error over its certified error */
  double latency_p50_us, latency_p99_us;
  double local_p50_us;   /* attention of the slowest rank */
  double combine_p50_us; /* latency of an iteration minus the slowest attention */
  bool ranks_comparable; /* all ranks hold all rows */
  bool ranks_equal;      /* bit for bit */
  bool runs_equal;       /* every run gave the same bits as the first */
  bool verified;
} decode_result;

/* Measures methods[count] into results[count], which are the same on all ranks. */
bool decode_measure(const tool_world *world, const decode_problem *problem, const decode_settings *settings,
                    const decode_method *const *methods, int count, int32_t repeat, decode_result *results,
                    tool_error *error);

/* The report of banyan-decode, as text or as JSON. */

typedef struct decode_report {
  const tool_world *world;
  const decode_problem *problem;
  const decode_settings *settings;
  const char *input; /* file, or NULL */
  int32_t repeat;
  const decode_result *results;
  int count;
} decode_report;

/* Prints the problem and the settings, before the work begins. */
void report_begin(const decode_report *report, FILE *stream);

/* Prints the table and the verdict. */
void report_results(const decode_report *report, FILE *stream);

/* Prints one JSON object. */
bool report_json(const decode_report *report, FILE *stream, tool_error *error);

/* Returns whether all methods are verified. */
bool report_verified(const decode_report *report);

/* Decode on a GPU: attention over a cache in device memory, alone and with a combine. Ranks are threads of this process
 * on one device, and each has a range of the keys. Each rank runs repeatedly in its own graph, and the time is that of
 * these graphs. Runs cycle through KV caches with a total size of four times the device's second-level cache. */

typedef struct decode_device_settings {
  const char *device; /* "cuda" or "cuda:N" */
  int32_t nranks;
  int64_t timeout_ns; /* 0: 30 s */
  decode_shape shape; /* head_dim 576 selects MLA: values are the first 512 columns of keys */
  banyan_dtype dtype, wire;
  int32_t repeat;
  uint64_t seed;
} decode_device_settings;

/* Times are for one run of all ranks, in microseconds. 0: not measured, because there is only one rank. */
typedef struct decode_device_result {
  int64_t kv_bytes;     /* keys and values that all ranks read in one run */
  int32_t caches, runs; /* runs: per graph */
  double attention_p50_us, attention_p99_us;
  double apart_p50_us;          /* attention, then a combine */
  double fused_p50_us;          /* banyan_attention_combine_init() */
  double rated_gbps;            /* the memory's bandwidth in GB/s, by its clock and width; 0: unknown */
  double rated_share;           /* KV bytes per second as a fraction of rated_gbps */
  char kernel[256], fused[256]; /* descriptions by banyan_op_query() */
  double worst_error;           /* maximum over the checked values of |o' - o| / (sum p |v| / d) */
  bool verified;
} decode_device_result;

/* Prints the result to stdout, as text or as JSON. Without CUDA it sets a usage error. */
bool decode_device_work(const decode_device_settings *settings, bool json, bool *verified, tool_error *error);

/* Keys and values of a decode on a GPU. They repeat a pattern of some millions of random numbers, because generating
 * gigabytes takes too long. Each rank and each cache begins at a different offset of the pattern. */

typedef struct decode_pattern {
  banyan_dtype dtype;
  int64_t count;  /* numbers */
  uint16_t *host; /* [count] */
  void *on_device;
} decode_pattern;

/* One tensor of `count` elements, which begins at element `first` of the pattern. */
typedef struct decode_device_tensor {
  void *memory;
  int64_t first, count;
} decode_device_tensor;

bool decode_pattern_make(gpu *device, banyan_dtype dtype, int64_t wanted, uint64_t seed, decode_pattern *made,
                         tool_error *error);
void decode_pattern_free(gpu *device, decode_pattern *pattern);

bool decode_device_tensor_make(gpu *device, const decode_pattern *pattern, int64_t first, int64_t count, void *stream,
                               decode_device_tensor *made, tool_error *error);
double decode_device_tensor_value(const decode_pattern *pattern, const decode_device_tensor *tensor, int64_t index);

/* The input of reference attention of one row over the shards of all ranks, in double precision. */
typedef struct decode_row {
  int32_t head_dim, value_dim, v_stride, nranks;
  double scale;
  const double *q; /* [head_dim] */
  const decode_device_tensor *keys[DEVICE_RANKS_MAX], *values[DEVICE_RANKS_MAX];
  int64_t key_first[DEVICE_RANKS_MAX], value_first[DEVICE_RANKS_MAX]; /* the row's first element in each */
  int32_t lengths[DEVICE_RANKS_MAX];
} decode_row;

/* Writes out[value_dim], and weight[value_dim] with sum p |v| / d of each value, to which rounding errors are
 * proportional. */
void decode_row_attend(const decode_pattern *pattern, const decode_row *row, double *out, double *weight);

/* Local attention on the CPU, without a combine. Measures how fast the threads of one rank read the keys and values,
 * and compares this with a loop of as many threads that only reads the same memory. */

typedef struct decode_kernel_settings {
  int32_t threads; /* 0: one for each core of this process */
  int32_t repeat;
  int64_t timeout_ns;
  int32_t room; /* keys are pages of one key, at random places of a cache for so many; 0: in order */
} decode_kernel_settings;

/* Prints the result to stdout, as text or as JSON. *verified is set if the error against the reference is within the
 * bound. */
bool decode_kernel_work(const decode_kernel_settings *settings, const decode_problem *problem, bool json,
                        bool *verified, tool_error *error);
