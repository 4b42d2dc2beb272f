/* SPDX-License-Identifier: Apache-2.0
 *
 * The decode layer of banyan: attention over this rank's keys, with or without the combine of its rows. banyan.h
 * includes this header, and its conventions hold here.
 *
 * The common call sets the fields of banyan_attention_desc above its dividing line, and no other struct:
 *
 *   banyan_attention_desc desc = BANYAN_ATTENTION_DESC_INIT;         shapes, dtypes, q, k, v, strides, seq_lens
 *   banyan_attention_combine(comm, &desc, &combine, &out);           attention over the keys of all ranks */
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
 * sequence, over all ranks, and not negative. Each run reads the arrays; on a device its kernels do.
 *
 * - Tokens. Sequence b has the query tokens query_start_loc[b] to query_start_loc[b + 1] - 1. Tokens before the first
 *   sequence and after the last are padding: rows without keys.
 * - Queries. The first query token of sequence b has position query_start[b], and the next ones follow it.
 * - Keys. Key t of sequence b in this shard has position key_start[b] + t. With key_block, blocks interleave over
 *   ranks, and the position is key_start[b] + t / key_block * key_stride + t % key_block.
 * - Patterns. With key_pattern_len > 0, a period of key_stride positions has key_pattern_len blocks of this shard.
 *   key_pattern[i] is the offset of block i in the period, in blocks. Offsets are not negative and increase, and the
 *   last block ends within key_stride. Key t is in block n = t / key_block. Its position is key_start[b] + n /
 *   key_pattern_len * key_stride + key_pattern[n % key_pattern_len] * key_block + t % key_block. Attention never writes
 *   key_pattern.
 * - Causality. A query at position p sees keys at positions up to p. With a window it sees only those above p - window.
 * - Padding. With key_mask, no query sees key t of sequence b of this shard if key_mask[b * key_mask_stride + t] is 0.
 *   Neither the key nor its value is read, so batches padded on any side need no copy. Host only.
 * - Draft trees. With tree_mask, a query sees all keys before query_start. From there on it sees only keys whose bit is
 *   set: bit j is for position query_start + j. A sequence then has at most 64 query tokens. For a window, the position
 *   of a draft is query_start + the number of set bits below its own. That is its depth in the tree, so siblings see
 *   the same keys. */
typedef struct banyan_queries {
  size_t size;
  int32_t tokens;                 /* rows of q and of the output; an upper bound for all runs. 0: no field is read */
  const int32_t *query_start_loc; /* [batch + 1]; NULL: one token per sequence */
  const int32_t *query_start;     /* [batch]; NULL: every query sees all keys */
  const uint64_t *tree_mask;      /* [tokens]; NULL: none */
  const int32_t *key_start;       /* [batch]; NULL: 0 */
  int32_t key_block;              /* 0: the keys of a shard are consecutive */
  int32_t key_stride;             /* at least key_block */
  int32_t window;                 /* 0: none */
  int32_t *key_pattern;           /* [key_pattern_len]: the caller's memory */
  int64_t key_pattern_len;        /* 0: one block per key_stride, and key_pattern is not read */
  const uint8_t *key_mask;        /* [batch][keys of this shard]; NULL: no key is masked */
  int64_t key_mask_stride;        /* from one sequence to the next; 0: all sequences share one mask */
} banyan_queries;

/* clang-format off */
#define BANYAN_QUERIES_INIT {sizeof(banyan_queries), 0, NULL, NULL, NULL, NULL, 0, 0, 0, NULL, 0, NULL, 0}
/* clang-format on */

/* The layout of a row of keys and values. FLASHMLA_FP8: a row of 656 bytes holds a key of 576 elements, whose first 512
 * are the values. It has 512 elements of E4M3, four f32 scales for 128 of them each, and 64 elements of BF16. dtype
 * is then BANYAN_E4M3, v is k or NULL, and strides of keys are in bytes. */
typedef enum banyan_kv_rows { BANYAN_KV_ROWS_PLAIN = 0, BANYAN_KV_ROWS_FLASHMLA_FP8 } banyan_kv_rows;

/* Describes keys in pages. Key t of a sequence is key t % keys of its page number t / keys. If keys are not in pages,
 * table is NULL and all other fields are 0. Error texts name the fields page_table, page_keys, page_indptr,
 * last_page_len and pages. */
typedef struct banyan_pages {
  const int32_t *table;    /* page ids: [batch][...], or one list with indptr */
  int64_t table_stride;    /* from one sequence to the next. If positive, a sequence that needs more pages is
                          * BANYAN_ERR_ARGUMENT, even with a batch of 1 */
  const int32_t *indptr;   /* [batch + 1]: entries indptr[b] to indptr[b + 1] - 1 of table are the pages of sequence b
                          * (CSR). NULL: table_stride is used */
  const int32_t *last_len; /* [batch]: keys on the last page of a sequence, 1 to `keys`. Replaces seq_lens, and needs
                            * indptr. NULL: seq_lens is used */
  int64_t count;           /* pages that k and v have. A page id within a sequence's length must be 0 to count - 1. A
                            * page with another id is never read: it is BANYAN_ERR_ARGUMENT, whose text names sequence,
                            * index and id. Devices report it in banyan_comm_status(), and leave out the keys of that
                            * page with up to 63 keys next to them. 0: unknown; only negative ids are rejected */
  int32_t keys;            /* keys per page, at least 1 */
} banyan_pages;

/* Scales of keys and values of E4M3, E5M2 and I8: an element is the stored number times its scale. On the host, a scale
 * that is not finite and positive is BANYAN_ERR_ARGUMENT and names its KV head. Device kernels do not check scales.
 * Scales for each key are read at each run and never checked. Error texts name the fields k_scale and v_scale. */
typedef struct banyan_kv_scales {
  const float *k, *v;   /* NULL: 1 */
  int64_t head_stride;  /* from the scale of one KV head to the next; 0: one scale for all */
  int64_t token_stride; /* from the scale of one key to the next: each key and head then has its own, at any address,
                         * such as behind its row. Not available on devices. 0: one scale for all keys of a head */
  int64_t batch_stride; /* with token_stride: from one sequence to the next, or from one page to the next */
} banyan_kv_scales;

/* The last elements of each query, if they are in separate memory, as in MLA. dim is 0 if q has all elements. Error
 * texts name the fields q_rope and rope_dim. */
typedef struct banyan_q_rope {
  const void *q; /* [batch][heads][dim] of q_dtype; desc.q has the other head_dim - dim elements */
  int64_t batch_stride, head_stride;
  int32_t dim;
} banyan_q_rope;

/* Keys and values in one memory. Without banyan_attention_desc.parts, desc.kv has all keys of the shard. Error texts
 * name the fields kv_dtype and kv_rows. */
typedef struct banyan_kv_part {
  banyan_dtype dtype;
  banyan_kv_rows rows; /* PLAIN, or another layout of rows */
  const void *k;       /* [batch][kv_heads][keys][head_dim]; paged: [pages][kv_heads][keys][head_dim] */
  int64_t k_batch_stride, k_head_stride, k_token_stride; /* paged: the first is from one page to the next */
  const void *v;                                         /* [batch][kv_heads][keys][value_dim]; paged likewise */
  int64_t v_batch_stride, v_head_stride, v_token_stride;
  const int32_t *seq_lens; /* [batch]: keys of each sequence; 0: none */

  /* ---- all fields below may stay 0 ---- */

  banyan_pages pages;
  banyan_kv_scales scales;
  const int32_t *key_first; /* [batch]: position of a part in the shard, which is checked. NULL: no check */
} banyan_kv_part;

/* clang-format off */
#define BANYAN_KV_PART_INIT \
  {(banyan_dtype)0, (banyan_kv_rows)0, NULL, 0, 0, 0, NULL, 0, 0, 0, NULL, {NULL, 0, NULL, NULL, 0, 0}, \
   {NULL, NULL, 0, 0, 0}, NULL}
/* clang-format on */

/* Pruning with a certificate. The pages that are not read hold together at most epsilon of a row's softmax mass, over
 * all ranks. All ranks prune, or none. Pruning with a device or parts is BANYAN_ERR_UNSUPPORTED, and so is the exact
 * order without top_pages. docs/certain.md explains it.
 *
 * bounds is the caller's memory, kept like the pages. banyan_page_bounds_update() writes it; with wrong bounds, results
 * are wrong. For keys in pages it is [pages][kv_heads][F] floats. Otherwise it is [batch][batch_pages][kv_heads][F],
 * and a page is `keys` consecutive keys. They are eight-bit codes of each key: F is 2 + K (2 + 2 ceil(head_dim / 8))
 * for pages of K keys. */
typedef struct banyan_prune {
  float *bounds;       /* NULL: no pruning, and all other fields are 0 */
  int32_t keys;        /* keys of a page if pages.table is NULL; otherwise 0 */
  int32_t batch_pages; /* pages of each sequence in bounds if pages.table is NULL */
  float epsilon;       /* 0 to 1. 0: a page is left out only if that cannot change a bit of the result */
  int32_t top_pages;   /* 1 to 8192: each KV head reads this many pages, of all ranks' pages, for all queries of a
                        * sequence together. These are the pages with the largest bounds, relative to the largest bound
                        * of a row. Of equal bounds the lower position is read, or without positions the first rank and
                        * then the first in the table. Pages whose bounds are infinite are all read. The pages are the
                        * same for any number of ranks that own whole pages, as are the bits in the exact order. It is
                        * equal on all ranks, and so is batch; banyan_attention() chooses from this rank's pages.
                        * epsilon is then 0, and nothing limits `error`. 0: epsilon decides */
  float *error; /* one per row of the result, in its order: the largest distance of the row's values, as a vector, from
                 * those over all keys. The errors of attention itself, and of a wire narrower than f32, come on top.
                 * Written when the call is complete. NULL: not written */
  float *read;  /* [tokens][heads]: share of the sequence's pages of this rank that the row's KV head read, for all of
                 * its heads and queries. NULL: not written */
  uint64_t *page_reads; /* one per page, [pages] or [batch][batch_pages]: each run adds the number of KV heads and
                         * sequences that read the page. NULL: not written */
} banyan_prune;

/* Describes attention of queries against this rank's keys and values: softmax over scale * q.k, with grouped heads.
 * Query head h uses KV head h / (heads / kv_heads). Strides are in elements, and the innermost dimension is contiguous.
 * A head stride of 0 gives all heads the same rows, and a batch stride of 0 gives all sequences the same rows.
 *
 * Error on the host: an lse is off by at most e + 2^-23 |lse|. A row's values, as a vector, are off by at most 2 e A,
 * where A is the weighted mean of |v|. e is 2^-24 (640 + (head_dim + 8) s + 8 soft_cap), and s is the largest scale *
 * sum |q_i k_i| over the keys that the row sees. A weight below 2^-125 of the row's largest counts as 0. A logit above
 * 3.4e38 in base 2 overflows, and values overflow where the result does; over ranks, as in banyan_combine().
 * docs/numbers.md has more, and the differences on devices. */
typedef struct banyan_attention_desc {
  size_t size;
  int32_t batch;     /* batch x heads is at most 2^31 - 1; 0 is allowed */
  int32_t heads;     /* a multiple of kv_heads */
  int32_t kv_heads;  /* at least 1 */
  int32_t head_dim;  /* for q and k: 1 to 576 */
  int32_t value_dim; /* for v: 1 to 512; 0: head_dim */
  banyan_dtype q_dtype;
  float scale;                           /* 0: 1 / sqrt(head_dim) */
  const void *q;                         /* [batch][heads][head_dim]; with `queries`: [tokens][heads][head_dim] */
  int64_t q_batch_stride, q_head_stride; /* with `queries`, the first is from one token to the next */
  banyan_kv_part kv;                     /* the keys and values of this shard */

  /* ---- all fields below may stay 0 ---- */

  void *stream; /* devices: as in banyan_combine_desc */
  banyan_q_rope rope;
  const banyan_queries *queries; /* NULL: one query token per sequence, which sees all keys of the shard */

  /* Devices: the largest number of keys of a sequence in any run. A longer sequence is cut, and banyan_comm_status() is
   * then BANYAN_ERR_ARGUMENT, whose text names the sequence. */
  int32_t keys_max;

  float soft_cap; /* logits become soft_cap tanh(logit / soft_cap). 0: no cap */

  /* [heads]: a logit without a value, which counts once per row. Only the sinks of rank 0 count:
   * banyan_attention_combine() ignores them on other ranks. A row of a sequence without keys still has its sink, so it
   * is not empty: its values are 0, its lse is the sink, and BANYAN_EMPTY_ROWS_KEPT writes it. Padding has no sink, and
   * neither has a row that token_mask masks on rank 0. NULL: none. */
  const float *sinks;

  /* The meaning of a NaN logit, or of one that is too large for f32. BANYAN_EMPTY_NAN: its key counts as absent
   * for that row. So a row of a NaN query has no keys, but it keeps its sink, and results mean the same for any number
   * of ranks. On devices all keys of the rank are absent then, and so is the sink of rank 0. 0: the values and
   * statistics of the row are NaN. banyan_attention() writes it, and a combine rejects it with BANYAN_ERR_DATA, also
   * within banyan_attention_combine(). A NaN in v alone makes values NaN in both cases. banyan_partial.empty selects
   * how a row without keys is written. */
  uint64_t empty;

  /* Only for banyan_attention_combine(): gathers q from the shares of all ranks first. q_mine is this rank's share, and
   * q is memory for the result. `gather` has the tokens, heads, dim and dtype of q. Its strides of the result are 0 or
   * those of q, and its stream is NULL or that of attention. NULL: q is complete. */
  const banyan_heads_desc *gather;
  const void *q_mine;

  banyan_prune prune;

  /* Keys in several memories, such as recent keys in f16, older ones in e4m3, and the oldest in a mapped file.
   * Attention reads each part in place. A sequence has the keys of the first part, then those of the next. kv.seq_lens
   * is then their sum, and all other fields of kv are 0. Bits depend on where keys are cut. In the exact order they do
   * not, and parts must begin at multiples of 256 keys. Host only. */
  const banyan_kv_part *parts; /* [part_count]; NULL: none */
  int64_t part_count;          /* 1 to 8 */

  /* Only for banyan_attention_combine(): first selects the keys that attention reads, as banyan_select() does.
   * select->tokens is batch, heads is 0 or 1, valid is NULL, and own and own_counts are memory for results. Either
   * kv.pages.table is `own`, with pages of one key, and seq_lens is own_counts. Or kv has all keys of this shard, and
   * `rows` are the numbers of keys in their sequence. queries.key_mask is then memory in which the operation marks the
   * chosen keys. The exact order needs the mask, and then has the same bits for any number of ranks. All ranks select,
   * or none. own and own_counts may be written even if this rank rejects the call. Devices have the list alone, and
   * must share memory; sequences past the tokens of a run still select if query_start_loc is given. Next to `prune` it
   * is BANYAN_ERR_UNSUPPORTED. NULL: no selection. */
  const banyan_select_desc *select;
} banyan_attention_desc;

/* clang-format off */
#define BANYAN_ATTENTION_DESC_INIT \
  {sizeof(banyan_attention_desc), 0, 0, 0, 0, 0, (banyan_dtype)0, 0, NULL, 0, 0, BANYAN_KV_PART_INIT, NULL, \
   {NULL, 0, 0, 0}, NULL, 0, 0, NULL, 0, NULL, NULL, {NULL, 0, 0, 0, 0, NULL, NULL, NULL}, NULL, 0, NULL}
/* clang-format on */

/* Updates desc->prune.bounds for keys first[b] and later of each sequence; NULL: for all keys. Call it after each
 * append. A page that also holds an earlier key is widened. Local; reads no field of q. */
banyan_status banyan_page_bounds_update(const banyan_attention_desc *desc, const int32_t *first);

/* Computes attention over this rank's shard in host memory. `out` receives partials of [batch] tokens x [heads] rows,
 * in any convention, as input for banyan_combine(). Local; any thread may call it. It uses only the calling thread, and
 * up to 768 KiB of its stack; operations use the threads of their communicator. It allocates memory only with
 * pruning. */
banyan_status banyan_attention(const banyan_attention_desc *desc, const banyan_partial *out);

/* Makes an operation of banyan_attention(), which runs where the communicator's combines run: on the host or on the
 * device. Local; ranks do not compare it. On the host, banyan_start() does all of the work. On a device it puts one
 * kernel on desc->stream, as for a combine; it allocates nothing, and may be captured. Operations of a communicator
 * share scratch memory, so their runs must follow one another, in graphs too.
 *
 * On a device, each run reads all arrays, also those of `queries`, from memory that the device can read, and writes
 * `out`. Devices support the following, and return BANYAN_ERR_UNSUPPORTED for all else:
 * - q is f16 or bf16. k and v have the type of q or E4M3. Rows of k and v begin at multiples of 16 bytes.
 * - head_dim is 64, 96, 128, 192 or 256 with values of the same length, or 576 with v = k, whose first 512 are the
 *   values (MLA). With E4M3, head_dim is not 96 or 192. BANYAN_KV_ROWS_FLASHMLA_FP8 needs q of bf16.
 * - kv.scales.token_stride and queries.key_pattern_len are 0, and queries.key_mask is NULL. queries.key_stride is at
 *   least key_block, rope.dim is a multiple of 8, and batch is below 2^22. */
banyan_status banyan_attention_init(banyan_comm *comm, const banyan_attention_desc *desc, const banyan_partial *out,
                                    banyan_op **op);

/* Makes an operation for attention over the shards of all ranks: attention as above, then a combine of its rows.
 * Collective, as banyan_combine_init() is. `combine` has as many tokens as q, and its stream is NULL or that of `desc`.
 * If the device of one rank does not support the shape or the memory, all ranks get that error, and the text names the
 * rank. On a device attention's kernel sends its rows, and a second kernel merges them, if banyan_device_combine_init()
 * would accept the combine and the arenas have room for all rows at once. Otherwise attention writes its rows, and a
 * combine of its own follows. banyan_op_query() reports which.
 *
 * - combine->valid->tokens sets the number of query tokens of a run. Lengths and queries past it are not read, and
 *   their rows are not written. `token_mask` masks rows of this rank. On a device, kernels read tokens and mask at each
 *   run and each replay of a graph, so one graph serves every number up to that of `combine`. combine->valid->seq_lens
 *   and query_start_loc are BANYAN_ERR_ARGUMENT, because attention has its own.
 * - combine->order may be BANYAN_ORDER_EXACT on the host. Keys are then cut into blocks of 256 at absolute positions.
 *   Each block is one partial, which depends on its keys and the query alone. So the bits are the same for any number
 *   of ranks, ownership of whole blocks, batch, split, threads and page size. They may differ between instruction sets.
 *   queries.key_start, key_block and key_stride must be multiples of 256; BANYAN_ERR_ARGUMENT names the one that is
 *   not. Positions are below 2^28. Without `queries`, a shard begins at such a multiple.
 * - On a device, starts in queries.query_start_loc that are negative, decrease, or pass the tokens of the run end the
 *   run on all ranks. banyan_comm_status() is then BANYAN_ERR_ARGUMENT, and the text names rank and sequence.
 *   Impossible lengths and pages are reported in the same way.
 * - On the host, between nodes, the batch may run in slices: one slice is combined while the next is attended to. This
 *   is chosen once per shape from the longest attention of any rank. banyan_attention_combine_init() takes that from
 *   keys_max.
 * - On the host, between nodes, ranks may gather the keys and values of all shards instead of combining partials, if
 *   messages then cost 10 % less. This is chosen once per shape, from the shards of the first call, or from keys_max
 *   that all ranks give banyan_attention_combine_init(). Results are those of the algorithm oneshot, and the bits of
 *   canonical and exact order do not change. banyan_op_info.algorithm is then "pass_kv". q and the arrays of `queries`
 *   are read until the operation is complete. If a shard is larger than that, or is not alike, the run combines
 *   partials. BANYAN_PASS forces either way.
 * - With desc->gather, the operation first gathers q; with desc->select it selects. On a device each is one more launch
 *   on the same stream; between nodes they are BANYAN_ERR_UNSUPPORTED. On the host banyan_start() begins them.
 * - With desc->gather or desc->select, or with desc->prune.top_pages over ranks, all arrays of the call are read until
 *   the operation is complete: q, k, v, page table, scales, lengths, bounds, and those of `queries`.
 * - With desc->select, an index that is chosen twice is an error, as in banyan_select(). k and batch are equal
 *   on all ranks; otherwise all get BANYAN_ERR_MISMATCH.
 * - With desc->prune.top_pages, batch is equal on all ranks; otherwise all get BANYAN_ERR_MISMATCH. A page that two
 *   ranks read, because both claim its position, is BANYAN_ERR_DATA, as in banyan_select(). Ranks exchange lists of
 *   top_pages pairs for each sequence and KV head, however few pages there are: a value far above their number costs
 *   messages. */
banyan_status banyan_attention_combine_init(banyan_comm *comm, const banyan_attention_desc *desc,
                                            const banyan_combine_desc *combine, const banyan_partial *out,
                                            banyan_op **op);

/* Does the same in one call, as banyan_combine() does. Memory may differ from call to call. The first call of a shape
 * (everything but pointers and strides) plans and allocates. On a device, so does a call with another keys_max: set
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
