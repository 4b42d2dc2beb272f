/* SPDX-License-Identifier: Apache-2.0
 *
 * The decode layer of banyan: attention over this rank's keys, alone or together with the combine of its rows. banyan.h
 * includes this header, and its conventions hold here. */
#ifndef BANYAN_ATTENTION_H
#define BANYAN_ATTENTION_H

#include "banyan.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* ---- decode layer: local attention ------------------------------------------------------------------------------- */

/* Describes several query tokens per sequence, and which keys each of them sees. Positions are those of the whole
 * sequence, over all ranks. Arrays are read at each run, on a device by its kernels.
 *
 * - Tokens. Sequence b has the query tokens query_start_loc[b] to query_start_loc[b + 1] - 1. Tokens behind the last
 *   sequence, and those before the first, are padding: rows without keys.
 * - Queries. The first query token of sequence b has position query_start[b], and the next ones follow it.
 * - Keys. Key t of sequence b in this shard has position key_start[b] + t. With key_block it is
 *   key_start[b] + t / key_block * key_stride + t % key_block: that is how blocks interleave over ranks.
 * - Patterns. With key_pattern_len > 0 a period of key_stride positions has that many blocks of the shard, and
 *   key_pattern[i] is where block i lies, in blocks. The numbers grow from 0 or more, and the last block ends within
 *   key_stride. Key t is in block n = t / key_block, and has position key_start[b] + n / key_pattern_len * key_stride +
 *   key_pattern[n % key_pattern_len] * key_block + t % key_block. Attention reads key_pattern, and never writes it.
 * - Causality. A query at position p sees keys at positions up to p. With a window it sees only those above p - window.
 * - Padding. With key_mask no query sees key t of sequence b of this shard if key_mask[b * key_mask_stride + t] is 0,
 *   and neither the key nor its value is read. Batches padded on any side thus need no copy. Host only.
 * - Trees of drafts. With tree_mask a query sees all keys before query_start, and from there on only keys whose bit is
 *   set: bit j is for position query_start + j. A sequence then has at most 64 query tokens. A window counts the depth
 *   of a draft in the tree, so siblings see the same keys: its position is query_start + the number of set bits below
 *   its own. */
typedef struct banyan_queries {
  size_t size;
  int32_t tokens;                 /* rows of q and of the output; an upper bound for all runs. 0: no field is read */
  const int32_t *query_start_loc; /* [batch + 1]; NULL: one token per sequence */
  const int32_t *query_start;     /* [batch]; NULL: every query sees all keys */
  const uint64_t *tree_mask;      /* [tokens]; NULL: none */
  const int32_t *key_start;       /* [batch]; NULL: 0 */
  int32_t key_block;              /* 0: the keys of a shard follow one another */
  int32_t key_stride;             /* at least key_block */
  int32_t window;                 /* 0: none */
  int32_t *key_pattern;           /* [key_pattern_len]: the caller's memory */
  int64_t key_pattern_len;        /* 0: one block in each key_stride, and key_pattern is not read */
  const uint8_t *key_mask;        /* [batch][keys of this shard]; NULL: all keys count */
  int64_t key_mask_stride;        /* from a sequence to the next; 0: all sequences have the same */
} banyan_queries;

/* clang-format off */
#define BANYAN_QUERIES_INIT {sizeof(banyan_queries), 0, NULL, NULL, NULL, NULL, 0, 0, 0, NULL, 0, NULL, 0}
/* clang-format on */

/* The layout of rows of keys and values. FLASHMLA_FP8: a row of 656 bytes holds a key of 576 elements, whose first 512
 * are the values: 512 elements of E4M3, four f32 scales for 128 of them each, and 64 elements of BF16. kv_dtype is then
 * BANYAN_E4M3, v is k or NULL, and strides of keys are in bytes. */
typedef enum banyan_kv_rows { BANYAN_KV_ROWS_PLAIN = 0, BANYAN_KV_ROWS_FLASHMLA_FP8 } banyan_kv_rows;

/* Pages of keys. If keys are not in pages, table is NULL and all other fields are 0. Key t of a sequence is key t %
 * keys of its page number t / keys. Error texts name the fields page_table, page_keys, page_indptr, last_page_len and
 * pages. */
typedef struct banyan_pages {
  const int32_t *table;  /* [batch][...], or a list: ids of pages */
  int64_t table_stride;  /* from a sequence to the next. If positive, it also bounds the pages of a sequence, even with
                          * a batch of 1: more are BANYAN_ERR_ARGUMENT */
  const int32_t *indptr; /* [batch + 1]: table is one list, and entries indptr[b] to indptr[b + 1] - 1 of it are the
                          * pages of sequence b (CSR). NULL: table_stride is used */
  const int32_t *last_len; /* [batch]: keys on the last page of a sequence, 1 to `keys`, in place of seq_lens. Needs
                            * indptr. NULL: seq_lens */
  int64_t count;           /* pages that k and v have. Ids of pages that a sequence's length reaches must be 0 to
                            * count - 1. A page with another id is never read; it is BANYAN_ERR_ARGUMENT, whose text
                            * names sequence, index and id. On devices banyan_comm_status() reports it, and the keys of
                            * that page are left out, with up to 63 keys next to them. 0: unknown; only negative ids
                            * are then rejected */
  int32_t keys;            /* keys of a page, at least 1 */
} banyan_pages;

/* Scales of keys and values of E4M3, E5M2 and I8: an element is what memory holds times its scale. On the host a scale
 * that is not finite or not above 0 is BANYAN_ERR_ARGUMENT and names its KV head. Kernels of a device do not check
 * scales. Scales for each key are read at each run and never checked. Error texts name the fields k_scale and
 * v_scale. */
typedef struct banyan_kv_scales {
  const float *k, *v;   /* NULL: 1 */
  int64_t head_stride;  /* from the scale of a KV head to the next; 0: one for all */
  int64_t token_stride; /* from the scale of a key to the next: each key and head has its own, which may be anywhere,
                         * such as behind its row. Not available on devices. 0: one for all keys of a head */
  int64_t batch_stride; /* with token_stride: from a sequence to the next, or from a page to the next */
} banyan_kv_scales;

/* The last elements of each query, if they are in separate memory, as in MLA. dim is 0 if all are in q. Error texts
 * name the fields q_rope and rope_dim. */
typedef struct banyan_q_rope {
  const void *q; /* [batch][heads][dim] of q_dtype; desc.q has the other head_dim - dim elements */
  int64_t batch_stride, head_stride;
  int32_t dim;
} banyan_q_rope;

/* Pruning with a certificate: pages which together cannot hold more than epsilon of a row's softmax mass, over all
 * ranks, are not read. With a device, the exact order, parts or read_ahead_bytes it is BANYAN_ERR_UNSUPPORTED.
 * docs/certain.md explains it.
 *
 * bounds is the caller's memory, kept like the pages and written by banyan_page_bounds_update(). With wrong bounds
 * results are wrong. A page and KV head have F floats: two lengths, then elementwise maxima and minima of the keys, so
 * F is 2 + 2 head_dim. With `codes` they are eight-bit codes of each key instead, and F is 2 + K (2 + 2
 * ceil(head_dim / 8)) for pages of K keys. Use codes: boxes of real keys are mostly too wide to leave out a page. For
 * keys in pages bounds is [pages][kv_heads][F]. Otherwise it is [batch][batch_pages][kv_heads][F], and a page is `keys`
 * consecutive keys. All ranks prune, or none. */
typedef struct banyan_prune {
  float *bounds;       /* NULL: no pruning, and all other fields are 0 */
  int32_t keys;        /* keys of a page if pages.table is NULL; otherwise 0 */
  int32_t codes;       /* 1: codes instead of boxes */
  int32_t batch_pages; /* pages of each sequence in bounds if pages.table is NULL */
  float epsilon;       /* 0 to 1. 0: only what cannot change a bit of the result is not read */
  int32_t top_pages;   /* the rows of a KV head read so many pages, those of the largest bounds. epsilon is then 0,
                        * and nothing limits `error`. 0: epsilon decides */
  float *error; /* one per row of the result, in its order: how far the row's values, as a vector, can be from those of
                 * all keys, beyond the error of attention itself. Written when the call is complete. NULL: unwanted */
  float *read;  /* [tokens][heads]: share of this rank's pages that the row's KV head read. NULL: unwanted */
  uint64_t *page_reads; /* one per page, [pages] or [batch][batch_pages]: each run adds how often it read the page, such
                         * as once per KV head and query. banyan_tier_next() takes them. NULL: unwanted */
} banyan_prune;

/* Queries of sequences against this rank's keys and values: softmax over scale * q.k with grouped heads. Query head h
 * uses KV head h / (heads / kv_heads). Strides are in elements, the innermost dimension is contiguous. A head stride of
 * 0 gives all heads the same rows, and a batch stride of 0 all sequences.
 *
 * Error on the host: an lse is off by at most e + 2^-23 |lse|, and a row's values by at most 2 e A, as lengths of
 * vectors, where A is the mean of |v| by weight. e is 2^-24 (640 + (head_dim + 8) s + 8 soft_cap), and s the largest
 * scale * sum |q_i k_i| of a key that the row sees. A weight below 2^-125 of the row's largest counts as 0. A logit
 * overflows above 3.4e38 in base 2, and a row's values where the result does. docs/numbers.md has more, and what
 * differs on devices. */
typedef struct banyan_attention_desc {
  size_t size;
  int32_t batch;     /* batch x heads is at most 2^31 - 1; 0 is allowed */
  int32_t heads;     /* a multiple of kv_heads */
  int32_t kv_heads;  /* at least 1 */
  int32_t head_dim;  /* for q and k: 1 to 576 */
  int32_t value_dim; /* for v: 1 to 512; 0: head_dim */
  banyan_dtype q_dtype;
  banyan_dtype kv_dtype;
  float scale;                           /* 0: 1 / sqrt(head_dim) */
  const void *q;                         /* [batch][heads][head_dim]; with `queries` [tokens][heads][head_dim] */
  int64_t q_batch_stride, q_head_stride; /* with `queries` the first is from a token to the next */
  const void *k; /* [batch][kv_heads][keys][head_dim]; paged: [pages][kv_heads][keys][head_dim] */
  int64_t k_batch_stride, k_head_stride, k_token_stride; /* paged: the first is from a page to the next */
  const void *v;                                         /* [batch][kv_heads][keys][value_dim]; paged likewise */
  int64_t v_batch_stride, v_head_stride, v_token_stride;
  const int32_t *seq_lens; /* [batch]: keys of each sequence in this shard; 0 is an empty shard */

  /* ---- all that follows may stay 0 ---- */

  void *stream;           /* devices: as in banyan_combine_desc */
  banyan_kv_rows kv_rows; /* PLAIN, or another layout of rows */
  banyan_pages pages;
  banyan_kv_scales scales;
  banyan_q_rope rope;
  const banyan_queries *queries; /* NULL: one query token per sequence, which sees all keys of the shard */

  /* Devices: the largest number of keys of a sequence in any run. A longer sequence is cut, and banyan_comm_status() is
   * BANYAN_ERR_ARGUMENT with a text that names it. */
  int32_t keys_max;

  float soft_cap; /* logits become soft_cap tanh(logit / soft_cap); 0: no cap */

  /* [heads]: a logit without a value, which counts once per row. Over ranks only that of rank 0 counts:
   * banyan_attention_combine() ignores it elsewhere. A row of a sequence without keys still has its sink: its values
   * are 0 and its lse is the sink, so it is not empty, and BANYAN_EMPTY_ROWS_KEPT writes it. Padding has no sink, nor
   * has a row that token_mask masks on rank 0. NULL: none. */
  const float *sinks;

  /* BANYAN_EMPTY_NAN: a row with a logit of NaN counts as a row without keys. 0: such a row is NaN, statistics
   * included. banyan_attention() writes it; a combine rejects it with BANYAN_ERR_DATA, also within
   * banyan_attention_combine(). NaN that is only in v makes values NaN in either case. banyan_partial.empty selects how
   * a row without keys is written. */
  uint64_t empty;

  /* Only for banyan_attention_combine(): q is first gathered from the shares of all ranks, on all of them. The tokens,
   * heads, dim and dtype of `gather` are those of q; its strides of the result are 0 or those of q; its stream is NULL
   * or that of attention. q_mine is this rank's share, and q is memory for the result. NULL: q is complete. */
  const banyan_heads_desc *gather;
  const void *q_mine;

  banyan_prune prune;

  /* Keys in several memories, such as recent ones in f16, older ones in e4m3, and the oldest in a mapped file. Each
   * part is attended to where it lies. A sequence has the keys of the first part, then those of the next one, and
   * seq_lens has their sum. A part has size, seq_lens, k, v, their strides, kv_dtype, kv_rows, pages, scales, key_first
   * and read_ahead_bytes; its other fields are not read. The description itself leaves these at 0, but for size and
   * seq_lens. Bits depend on where keys are cut. In the exact order they do not, and parts must begin at multiples
   * of 256 keys. Host only. */
  const struct banyan_attention_desc *parts; /* [part_count]; NULL: none */
  int64_t part_count;                        /* 1 to 8 */
  const int32_t *key_first; /* [batch]: where this part begins in the shard, to be checked. NULL: not checked */

  /* If k and v are a mapped file: how much of it to read ahead. Such keys are read once and in order, by all rows of
   * the call together, after all other parts. The call allocates memory for these rows. Keys that cannot be read, such
   * as those of a file that was cut off, are BANYAN_ERR_SYSTEM from Linux 5.14 on. 0: keys are in memory. */
  int64_t read_ahead_bytes;
} banyan_attention_desc;

/* clang-format off */
#define BANYAN_ATTENTION_DESC_INIT \
  {sizeof(banyan_attention_desc), 0, 0, 0, 0, 0, (banyan_dtype)0, (banyan_dtype)0, 0, NULL, 0, 0, NULL, 0, 0, 0, NULL, \
   0, 0, 0, NULL, NULL, (banyan_kv_rows)0, {NULL, 0, NULL, NULL, 0, 0}, {NULL, NULL, 0, 0, 0}, {NULL, 0, 0, 0}, NULL, \
   0, 0, NULL, 0, NULL, NULL, {NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL}, NULL, 0, NULL, 0}
/* clang-format on */

/* Brings desc->prune.bounds up to date for keys first[b] and later of each sequence; NULL: for all keys. A page that
 * holds an earlier key too is widened, so call it after each append. Local; reads no field of q. */
banyan_status banyan_page_bounds_update(const banyan_attention_desc *desc, const int32_t *first);

/* Computes attention over this rank's shard in host memory. Writes `out` as partials of [batch] tokens x [heads] rows,
 * in any convention, as input of banyan_combine(). Local, any thread. Without read_ahead_bytes and pruning it allocates
 * nothing. It uses only the calling thread, and up to 768 KiB of its stack; operations use the threads of their
 * communicator. */
banyan_status banyan_attention(const banyan_attention_desc *desc, const banyan_partial *out);

/* Makes an operation that computes the same where the communicator's combines run. Local; not compared with other
 * ranks. On the host banyan_start() does all of it. On a device it puts one kernel on desc->stream, as for a combine:
 * it allocates nothing, and may be captured. Operations of a communicator share scratch memory, so their runs must
 * follow one another, in graphs too.
 *
 * On a device all arrays, also those of `queries`, are memory that the device can read at each run, and `out` is memory
 * that it can write. The following is supported, all else is BANYAN_ERR_UNSUPPORTED:
 * - q is f16 or bf16, k and v have the type of q or E4M3, and their rows begin at multiples of 16 bytes;
 * - head_dim is 64, 96, 128, 192 or 256 with values as long, or 576 with v = k, whose first 512 are the values (MLA);
 *   with E4M3 it is not 96 or 192, and BANYAN_KV_ROWS_FLASHMLA_FP8 needs q of bf16;
 * - scales.token_stride and queries.key_pattern_len are 0, queries.key_mask is NULL, queries.key_stride is at least
 *   key_block, rope.dim a multiple of 8, and batch below 2^22. */
banyan_status banyan_attention_init(banyan_comm *comm, const banyan_attention_desc *desc, const banyan_partial *out,
                                    banyan_op **op);

/* Makes an operation for attention over the shards of all ranks: the above, and a combine of its rows. Collective, as
 * banyan_combine_init(). `combine` has as many tokens as q, and its stream is NULL or that of `desc`. If one rank's
 * device does not support the shape or memory, all ranks get that error, which names the rank. On a device one kernel
 * does it all if banyan_device_combine_init() would accept the combine and the arenas have room for all rows at once.
 * Otherwise it takes two or more kernels; banyan_op_query() reports which.
 *
 * - combine->valid->tokens sets how many query tokens a run has, from the first on. Lengths and queries past them are
 *   not read, and their rows are not written. `token_mask` masks rows of this rank. combine->valid->seq_lens and
 *   query_start_loc are BANYAN_ERR_ARGUMENT, because attention has its own. On a device kernels read tokens and mask at
 *   each run and each replay of a graph, so one graph serves every number up to that of `combine`.
 * - combine->order may be BANYAN_ORDER_EXACT, on the host. Keys are then cut into blocks of 256 at absolute positions,
 *   and each block is a partial of its own, a function of its keys and the query alone. So the bits are the same for
 *   any number of ranks, ownership of whole blocks, batch, split, threads and page size; they may differ between
 *   instruction sets. queries.key_start, key_block and key_stride are multiples of 256, or BANYAN_ERR_ARGUMENT names
 *   the one that is not. Without `queries` a shard is taken to begin at such a multiple.
 * - On a device, starts in queries.query_start_loc that are negative, decrease, or pass the tokens of the run end the
 *   run on all ranks. banyan_comm_status() is then BANYAN_ERR_ARGUMENT, and the text names rank and sequence.
 *   Impossible lengths and pages are reported in the same way.
 * - On the host, between nodes, the batch may run in slices: one is combined while the next is attended to. This is
 *   chosen once for a shape, by the longest attention of any rank, which banyan_attention_combine_init() takes from
 *   keys_max.
 * - With desc->gather the gather runs first, as a part of the operation. On a device it is one more launch on the same
 *   stream; between nodes it is BANYAN_ERR_UNSUPPORTED. On the host banyan_start() begins it, and arrays are read until
 *   the operation is complete. */
banyan_status banyan_attention_combine_init(banyan_comm *comm, const banyan_attention_desc *desc,
                                            const banyan_combine_desc *combine, const banyan_partial *out,
                                            banyan_op **op);

/* Does the same in one call, as banyan_combine() does; memory may differ from call to call. The first call of a shape
 * (all but pointers and strides) plans and allocates, and so does one with another keys_max on a device. So set
 * keys_max to the largest length that a sequence will have, not to its current one. */
banyan_status banyan_attention_combine(banyan_comm *comm, const banyan_attention_desc *desc,
                                       const banyan_combine_desc *combine, const banyan_partial *out);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
