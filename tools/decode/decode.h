/* SPDX-License-Identifier: Apache-2.0
 * Shared by the files of banyan-decode. */
#ifndef BNY_TOOLS_DECODE_DECODE_H
#define BNY_TOOLS_DECODE_DECODE_H

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

/* The problem to decode: per layer one query token per sequence against a KV cache, from a file or from a seed. */

/* Keys of MLA have this many elements, and the first of them are the values. */
enum { DECODE_LATENT_DIM = 576, DECODE_LATENT_VALUE_DIM = 512 };

enum { EXACT_KEYS = 256 }; /* keys of a block in the exact order */

typedef struct decode_problem {
  int32_t layers;
  int32_t batch;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t value_dim;      /* less than head_dim: values are the first elements of keys (MLA) */
  int32_t tokens;         /* keys of the longest sequence */
  int32_t *lengths;       /* [batch]: keys of each sequence */
  int32_t split_keys;     /* ranks own whole multiples of so many keys; 0: any number */
  banyan_dtype dtype;     /* type of k and v in the cache */
  banyan_dtype q_dtype;   /* type of q: bf16 beside keys of eight bits, else the same */
  float scale;            /* scale of the logits */
  int32_t *layer_numbers; /* [layers]: as the file names them */
  safetensors *file;      /* NULL: made from the seed */
  uint64_t seed;
} decode_problem;

/* A rank's part of one layer's cache: a range of tokens of each sequence, by banyan_split() in units of split_keys. k
 * and v are [batch][kv_heads][capacity][head_dim] in one block, of equal size on all ranks. MLA has k alone. */
typedef struct decode_shard {
  void *block;
  size_t bytes; /* size of k and v together */
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

void decode_problem_make(const decode_shape *shape, banyan_dtype dtype, uint64_t seed, decode_problem *problem);

void decode_problem_close(decode_problem *problem);

/* Reads elements [first, first + count) along the tokens of one sequence and KV head as f32, from their stored type.
 * For Q, heads take the place of tokens, and kv_head is 0. MLA has no V. */
bool decode_problem_read(const decode_problem *problem, int32_t layer, decode_tensor tensor, int32_t sequence,
                         int32_t kv_head, int32_t first, int32_t count, float *values, tool_error *error);

/* [batch][heads][head_dim] in problem->q_dtype. */
bool decode_problem_query(const decode_problem *problem, int32_t layer, void **q, tool_error *error);

/* The number of keys of each sequence on `rank`. */
void decode_problem_shard_lengths(const decode_problem *problem, int32_t rank, int32_t nranks, int32_t *lengths);

/* Returns 2: there are k and v; or 1 with MLA. */
int decode_problem_tensors(const decode_problem *problem);

/* Sets all of a shard except its memory. */
bool decode_shard_size(const decode_problem *problem, int32_t rank, int32_t nranks, decode_shard *shard,
                       tool_error *error);
bool decode_shard_make(const decode_problem *problem, int32_t rank, int32_t nranks, decode_shard *shard,
                       tool_error *error);
bool decode_shard_fill(const decode_problem *problem, int32_t layer, int32_t rank, int32_t nranks, decode_shard *shard,
                       tool_error *error);

/* Local attention of the query over a shard (or one like it, elsewhere) with these lengths. */
banyan_attention_desc decode_shard_attention(const decode_problem *problem, const void *q, const decode_shard *shard,
                                             const int32_t *lengths);

/* A shard of one rank in a mapped file, with its last keys also in memory. Attention reads those in memory, and the
 * others in the file. */
typedef struct decode_parts {
  int file;
  decode_shard shard; /* block is the file */
  void *recent;       /* like a shard of `capacity` keys */
  int32_t capacity;   /* keys of a sequence in memory */
  void *buffer;       /* for reading the file */
  int32_t *lengths[2];
  banyan_attention_desc descs[2];
} decode_parts;

/* If it fails, call decode_parts_free() nevertheless. */
bool decode_parts_make(const decode_problem *problem, int32_t recent, decode_parts *parts, tool_error *error);
void decode_parts_free(decode_parts *parts);

/* Changes the description of attention to the shard. */
void decode_parts_describe(const decode_problem *problem, decode_parts *parts, banyan_attention_desc *desc);

bool decode_parts_drop(const decode_parts *parts, tool_error *error);
bool decode_parts_read_us(const decode_parts *parts, double *us, tool_error *error);

/* Attention in double precision over the keys and values as they are stored, in the plainest form. Methods are compared
 * with it. Ranks divide the rows, and each reads all keys of its rows from the source, not from shards, so that an
 * error in sharding shows. */

/* *rows is [batch][heads][value_dim] on every rank. Long work says how far it is on stderr. */
bool decode_reference_make(const tool_world *world, const decode_problem *problem, int32_t layer, double **rows,
                           tool_error *error);

/* Raises the largest errors to those of a row: |out - want| of an element, and |out - want|_2 / |want|_2. */
void decode_row_error(const float *out, const double *want, int32_t count, double *max_abs, double *max_rel);

/* The ways to decode with a sharded cache that are compared, all on the same library:
 *   tree        local attention, then one combine of the partials
 *   ring        Ring Attention: the keys and values travel from rank to rank, each rank attends to all of them
 *   allreduce3  local attention, then three reductions: of the maximum, of the denominators, of the numerators
 *   fused       attention and the combine as one operation
 *   overlap     the same, which between nodes runs in slices where that pays */

typedef struct decode_settings {
  banyan_dtype wire;
  banyan_scatter scatter;
  banyan_order order;
  const char *algorithm; /* NULL: by predicted cost */
  float epsilon;         /* above 0: fused and overlap leave out pages */
} decode_settings;

/* A method works on this. `out` is [tokens][heads][head_dim] of the part that this rank keeps (see
 * tool_part_of_rank). */
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
  uint64_t bytes_sent;  /* by this rank in one run */
  uint64_t roundings;   /* most roundings of a value to the wire's type */
  uint64_t extra_bytes; /* what this rank holds beyond inputs and output */
  uint64_t arena_bytes; /* the part of these that is in the arena */
  int32_t slices;       /* slices of the batch */
  double pages_read;    /* with epsilon: the share that this rank read */
  const float *errors;  /* with epsilon: certified, of each row of the result; NULL without */
  double certified;     /* with epsilon: the largest of these */
} decode_facts;

void *decode_take(uint64_t *held, size_t bytes); /* tool_take(), counted in *held */

typedef struct decode_method {
  const char *name;
  bool scatters;  /* delivers as --scatter says; otherwise all rows on every rank */
  bool uses_wire; /* values are rounded to the wire format */
  bool same_bits; /* promises the same bits on every rank */
  bool is_one;    /* one operation: how long attention itself took is not known */
  banyan_status (*create)(const decode_task *task, void **state);
  banyan_status (*run)(void *state, int64_t *local_ns); /* local_ns: how long attention itself took */
  void (*query)(void *state, decode_facts *facts);      /* after at least one run */
  void (*destroy)(void *state);                         /* NULL is allowed */
} decode_method;

extern const decode_method decode_method_tree, decode_method_ring, decode_method_allreduce3, decode_method_fused,
    decode_method_overlap;

/* Returns the combine of all rows of the task. */
banyan_combine_desc decode_combine_desc(const decode_task *task);

/* Adds the operation's own description to facts that were zero at first. */
void decode_facts_add(decode_facts *facts, const banyan_op *op, int32_t runs);

banyan_status decode_run_op(banyan_op *op);

/* Runs each method on each layer: checks what it gives, then takes its time. */

/* Over all ranks and layers: errors, bytes and memory are the largest of any rank, times the slowest rank's. */
typedef struct decode_result {
  const decode_method *method;
  banyan_scatter scatter; /* as delivered */
  decode_facts facts;
  double max_abs_error;
  double max_rel_error; /* worst row of |out - reference|_2 / |reference|_2 */
  double rel_error_bound;
  double pages_read, certified; /* with epsilon: the largest of any rank and layer */
  double beyond;                /* the worst relative error beyond what is certified of its row */
  double latency_p50_us, latency_p99_us;
  double local_p50_us;   /* attention of the slowest rank */
  double combine_p50_us; /* the rest of an iteration: its latency less the slowest attention */
  bool ranks_comparable; /* all ranks hold all rows */
  bool ranks_equal;      /* in every bit */
  bool runs_equal;       /* every run gave the bits of the first */
  bool verified;
} decode_result;

/* methods[count] and results[count]; the same on all ranks. */
bool decode_measure(const tool_world *world, const decode_problem *problem, const decode_settings *settings,
                    const decode_method *const *methods, int count, int32_t repeat, decode_result *results,
                    tool_error *error);

/* The report of banyan-decode, as text for people and as JSON for programs. */

typedef struct decode_report {
  const tool_world *world;
  const decode_problem *problem;
  const decode_settings *settings;
  const char *input; /* file, or NULL */
  int32_t repeat;
  const decode_result *results;
  int count;
} decode_report;

/* Prints what was found and chosen, before the work. */
void report_begin(const decode_report *report, FILE *stream);

/* The table and the verdict. */
void report_results(const decode_report *report, FILE *stream);

/* One object. */
bool report_json(const decode_report *report, FILE *stream, tool_error *error);

/* All methods. */
bool report_verified(const decode_report *report);

/* Decode on a GPU: attention over a cache in device memory, alone and with a combine. Ranks are threads of this
 * process, all on one device, each with a range of the keys. The time is that of a graph in which every rank runs
 * repeatedly, on its own branch. Runs cycle through as many caches as make four times the device's second-level
 * cache. */

typedef struct decode_device_settings {
  const char *device; /* "cuda" or "cuda:N" */
  int32_t nranks;
  int64_t timeout_ns; /* 0: 30 s */
  decode_shape shape; /* head_dim 576: MLA, whose values are the first 512 columns of the keys */
  banyan_dtype dtype, wire;
  int32_t repeat;
  uint64_t seed;
} decode_device_settings;

/* Times are of one run of all ranks, in microseconds; 0: not measured, for there is one rank. */
typedef struct decode_device_result {
  int64_t kv_bytes;     /* keys and values of all ranks, read by one run */
  int32_t caches, runs; /* runs in a graph */
  double attention_p50_us, attention_p99_us;
  double apart_p50_us;          /* attention, then a combine */
  double fused_p50_us;          /* banyan_attention_combine_init() */
  double copy_gbps;             /* speed of a copy on the device, bytes read and bytes written */
  double copy_share;            /* bytes of the cache a second, of copy_gbps */
  char kernel[256], fused[256]; /* what banyan_op_query() says of each */
  double worst_error;           /* over all values that were looked at: |o' - o| / (sum p |v| / d) */
  bool verified;
} decode_device_result;

/* False in builds without CUDA. */
bool decode_device_built(void);

/* Prints the result to stdout, as text or as JSON. */
bool decode_device_work(const decode_device_settings *settings, bool json, bool *verified, tool_error *error);

/* Keys and values of a decode on a GPU. Gigabytes of random numbers take longer to make than to read, so all of them
 * repeat a stretch of some millions of numbers. Each rank and each cache begins at another offset. */

typedef struct decode_stretch {
  banyan_dtype dtype;
  int64_t count;  /* numbers */
  uint16_t *host; /* [count] */
  void *on_device;
} decode_stretch;

/* One tensor of `count` numbers, which begins at number `first` of the stretch. */
typedef struct decode_piece {
  void *memory;
  int64_t first, count;
} decode_piece;

bool decode_stretch_make(gpu *device, banyan_dtype dtype, int64_t wanted, uint64_t seed, decode_stretch *made,
                         tool_error *error);
void decode_stretch_free(gpu *device, decode_stretch *stretch);

bool decode_piece_make(gpu *device, const decode_stretch *stretch, int64_t first, int64_t count, void *stream,
                       decode_piece *made, tool_error *error);
double decode_piece_value(const decode_stretch *stretch, const decode_piece *piece, int64_t index);

/* Attention of one row in double precision, over the shards of all ranks. */
typedef struct decode_row {
  int32_t head_dim, value_dim, v_stride, nranks;
  double scale;
  const double *q; /* [head_dim] */
  const decode_piece *keys[DEVICE_RANKS_MAX], *values[DEVICE_RANKS_MAX];
  int64_t key_first[DEVICE_RANKS_MAX], value_first[DEVICE_RANKS_MAX]; /* the row's first number in each */
  int32_t lengths[DEVICE_RANKS_MAX];
} decode_row;

/* out[value_dim], and for each value sum p |v| / d: what errors are in proportion to. */
void decode_row_attend(const decode_stretch *stretch, const decode_row *row, double *out, double *weight);

/* The report of a decode on a GPU, on stdout. */

bool decode_device_report(const gpu_facts *facts, const decode_device_settings *settings,
                          const decode_device_result *result, bool json, tool_error *error);

/* A read loop of several threads, with which the speed of attention over the same memory is compared. */

typedef struct decode_readers decode_readers;

/* Starts `count` - 1 threads, because the caller of decode_readers_run_us() is one too. Each has a part of the memory,
 * in whole lines of 64 bytes. NULL with the error set. */
decode_readers *decode_readers_start(int32_t count, const void *memory, size_t bytes, tool_error *error);

/* All threads read their parts once. Returns the time from where the first of them begins to where the last ends. */
double decode_readers_run_us(decode_readers *readers);

/* Ends the threads, at any time between runs. NULL is allowed. */
void decode_readers_end(decode_readers *readers);

/* Local attention alone, on the host: how fast the threads of one rank read the keys and values that they attend to,
 * beside a loop of as many threads that only reads the same memory. */

typedef struct decode_kernel_settings {
  int32_t threads; /* 0: one for each core of this process */
  int32_t repeat;
  int64_t timeout_ns;
  int32_t recent; /* keys in memory, where the others are in a mapped file; 0: all */
} decode_kernel_settings;

/* Prints the result to stdout, as text or as JSON. *verified says whether it is near enough to the reference. */
bool decode_kernel_work(const decode_kernel_settings *settings, const decode_problem *problem, bool json,
                        bool *verified, tool_error *error);

#endif
