/* SPDX-License-Identifier: Apache-2.0
 * A call of local attention: its checks, and banyan_attention() with explicit kernels. */
#pragma once

#include "attention.h"
#include "banyan.h"
#include "base/pool.h"
#include "base/status.h"
#include "prune/prune.h"
#include "op.h"

enum { BNY_ATTENTION_PARTS_MAX = 8 };

/* A description in this library's form: structs of other sizes are converted, and defaults are filled in. Nothing else
 * reads the caller's description. */
typedef struct bny_attention_desc {
  int32_t batch, tokens, heads, kv_heads, head_dim, value_dim;
  int32_t group;    /* query heads of a KV head */
  int32_t memories; /* number of memories with keys: 1 without `parts` */
  double scale;
  float soft_cap;
  banyan_dtype q_dtype;
  uint64_t empty;
  const void *q, *q_mine;
  int64_t q_batch_stride, q_head_stride;
  banyan_q_rope rope;
  banyan_kv_part kv;           /* with `parts` its lengths alone */
  const banyan_kv_part *parts; /* the caller's; NULL: none */
  int64_t part_count;
  banyan_queries queries; /* zeros without queries; `tokens` above has their number */
  banyan_select_desc select;
  const banyan_heads_desc *gather;
  const float *sinks;
  banyan_prune prune;
  bool prunes, is_lossy; /* pages may be left out; those with mass */
  int32_t keys_max;
  bool has_value_dim, has_queries, selects; /* the caller gave them */
  void *stream;
} bny_attention_desc;

/* Runs banyan_attention() with explicit kernels, for a description and an output that were checked: `attention`
 * computes, `kernels` writes in the caller's convention. certificate: receives the rows of the certificate, for a
 * combine; NULL: errors go to desc->prune.error. The threads of `pool` take part; NULL: the calling thread alone. The
 * bits are the same in either case. */
banyan_status bny_attention_run(const bny_attention_kernels *attention, const bny_kernels *kernels,
                                const bny_attention_desc *desc, const banyan_partial *out,
                                const bny_certificate *certificate, bny_pool *pool);

/* A call that reads the best pages of all ranks, in three steps. Between them the caller selects over ranks: first the
 * largest top of each row, and then the pages of each sequence and KV head. */
typedef struct bny_top_pages bny_top_pages;

/* Pages of this rank by [batch][kv_heads][prune.top_pages]: what it offers, and `own` [batch][kv_heads][top_pages] and
 * `own_counts` [batch][kv_heads], which are chosen. */
typedef struct bny_page_lists {
  int32_t rank;
  float *scores;
  int64_t *indices; /* positions, or without them places in the order of ranks; -1: no page */
  int32_t *pages, *own, *own_counts;
} bny_page_lists;

/* Weighs all pages, and writes the top of each row: [tokens][heads]. Its memory grows to that of the largest call. */
banyan_status bny_top_pages_weigh(bny_top_pages *of, const bny_attention_kernels *attention, const bny_kernels *kernels,
                                  const bny_attention_desc *desc, const banyan_partial *out,
                                  const bny_certificate *certificate, bny_pool *pool, float *tops);

/* Offers this rank's best pages. `tops` are those of all ranks. */
void bny_top_pages_offer(bny_top_pages *of, const float *tops, const bny_page_lists *to);

/* Reads the pages that are chosen, and completes the call. */
banyan_status bny_top_pages_read(bny_top_pages *of, const bny_page_lists *chosen, bny_pool *pool);

void bny_top_pages_free(bny_top_pages *of); /* NULL is allowed */

/* Reserves memory of pruning in the pool, for every run of an operation and any lengths. */
banyan_status bny_attention_reserve(const bny_attention_desc *desc, bool is_exact, bny_pool *pool);

/* The most of a call over ranks. */
typedef struct bny_top_pages_most {
  int32_t tokens, sequences, threads;
  bool is_exact;
} bny_top_pages_most;

/* Reserves addresses for runs of up to `most`, whose lengths the descriptor limits. Other lengths allocate in the run.
 * Makes *made if it is NULL. Runs touch the memory that they need. */
banyan_status bny_top_pages_reserve(bny_top_pages **made, const bny_attention_desc *desc,
                                    const bny_top_pages_most *most);

uint64_t bny_attention_key_bytes(const bny_attention_desc *desc);

/* Returns the bytes of keys and values that attention reads, each counted once. seq_lens may be read. */
uint64_t bny_attention_bytes(const bny_attention_desc *desc);

/* Returns true if the row blocks of a sequence attend in groups, with kernels of their own. With fewer rows, packing
 * takes longer than it saves, as measured. One query of MLA has many rows, but its kernels are as fast. */
static inline bool bny_attention_is_many(int64_t queries, int64_t group) {
  return queries >= 8 && queries * group >= 64;
}

/* Reads the caller's description. No value in it is checked yet. */
banyan_status bny_attention_read(const banyan_attention_desc *given, bny_attention_desc *desc);

/* Reads and checks both structs of a call without a combine. on_host: lengths may be read. */
banyan_status bny_attention_check_call(const banyan_attention_desc *given, bny_attention_desc *desc,
                                       const banyan_partial **out, banyan_partial *out_room, bool on_host);

/* Keys of a block in the exact order, and keys of a sequence on all ranks. The check rejects blocks that are not whole
 * in this shard, and keys beyond that limit. */
enum { BNY_ATTENTION_EXACT_KEYS = 256, BNY_ATTENTION_EXACT_KEYS_MAX = BNY_ATTENTION_EXACT_KEYS << 20 };
banyan_status bny_attention_check_blocks(const bny_attention_desc *desc);

/* Sets the text of a wrong argument of attention, and returns BANYAN_ERR_ARGUMENT. The format is a literal. */
#define bny_attention_reject(...) bny_fail(BANYAN_ERR_ARGUMENT, "banyan_attention: " __VA_ARGS__)

/* Check a description, its queries, and the keys and values of one memory. on_host: arrays may be read. */
banyan_status bny_attention_check_fields(const bny_attention_desc *desc, bool on_host);
banyan_status bny_attention_check_part(const bny_attention_desc *desc, const banyan_kv_part *part, bool on_host);
banyan_status bny_attention_check_queries(const bny_attention_desc *desc, bool on_host);
banyan_status bny_attention_check_scale(const bny_attention_desc *desc, const banyan_partial *out);
