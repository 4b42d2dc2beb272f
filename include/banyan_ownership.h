/* SPDX-License-Identifier: Apache-2.0
 *
 * The owner of each key: how the tokens of sequences are dealt to ranks, as data. All calls are local, pure and fit for
 * any thread; none needs a communicator. banyan.h includes this part, and its conventions hold here.
 *
 * There are two ways. A rule (banyan_ownership) says the owner of every token beforehand. Or pages are given to ranks
 * one by one as sequences grow (banyan_next_page), and a table remembers them. */
#ifndef BANYAN_OWNERSHIP_H
#define BANYAN_OWNERSHIP_H

#include "banyan.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* RANGES: each rank has one range of the tokens, in the order of ranks. BLOCKS: blocks of tokens go round the ranks, so
 * that after any number of blocks each rank is within one block of its share. Equal weights deal in the order of
 * ranks. Where weights differ, a call on three ranks or more may take as many steps as the weights add up to after
 * division by their common divisor, for any length, and memory for each rank: BANYAN_ERR_MEMORY. */
typedef enum banyan_ownership_kind { BANYAN_OWNERSHIP_RANGES = 1, BANYAN_OWNERSHIP_BLOCKS } banyan_ownership_kind;

/* A rule that says which rank owns which token of a sequence. */
typedef struct banyan_ownership {
  size_t size;
  banyan_ownership_kind kind;
  int32_t nranks;
  int32_t block;  /* tokens that stay together, such as those of a page: ranges begin at multiples of it. 0: 1 */
  int64_t tokens; /* RANGES: of the longest sequence, at most 2^40, which is dealt as a whole. Shorter ones fill
                           * the first ranks. BLOCKS: any length; 0 */
  const int32_t *weights; /* [nranks]: the share of each rank, such as its memory or bandwidth. 0: it owns nothing. They
                           * add up to 1 .. 2^20. NULL: all alike */
} banyan_ownership;

/* clang-format off */
#define BANYAN_OWNERSHIP_INIT {sizeof(banyan_ownership), (banyan_ownership_kind)0, 0, 0, 0, NULL}
/* clang-format on */

/* Writes the rank that owns token `token` (from 0) and its place among the rank's keys (from 0). */
banyan_status banyan_ownership_of_token(const banyan_ownership *ownership, int64_t token, int32_t *rank,
                                        int64_t *place);

/* Writes the token at `place` among the keys of `rank`: the inverse of banyan_ownership_of_token(). */
banyan_status banyan_ownership_token(const banyan_ownership *ownership, int32_t rank, int64_t place, int64_t *token);

/* Writes how many keys `rank` has of a sequence of `length` tokens: an entry of its seq_lens. */
banyan_status banyan_ownership_keys(const banyan_ownership *ownership, int32_t rank, int64_t length, int64_t *keys);

struct banyan_queries; /* in banyan_attention.h */

/* Sets key_block and key_stride of `queries`, and writes what each entry of its key_start is, for the shard of `rank`.
 * Blocks of a rank that follow one another count as one.
 *
 * Weights under BLOCKS may let the rank's blocks come round at uneven distances, which take a pattern. For that set
 * key_pattern to memory of yours, and key_pattern_len to the numbers that fit; weights[rank] are enough. The call
 * writes the pattern there and its length, or 0, to key_pattern_len. Keep the memory while attention uses it, and set
 * the length again before another call. Without this memory such a rank is BANYAN_ERR_UNSUPPORTED, and with too little
 * BANYAN_ERR_ARGUMENT. RANGES, equal weights, and a rank whose weight is 0, or 1 after division, need none. */
banyan_status banyan_ownership_queries(const banyan_ownership *ownership, int32_t rank, struct banyan_queries *queries,
                                       int32_t *key_start);

/* Writes the rank that takes the next page of a sequence. Among the ranks on which the sequence stays even it is that
 * with the least pages over all sequences, by weight, and the first of equals.
 *
 * - `weights` is [nranks] as in banyan_ownership; NULL: all alike. A rank of weight 0 takes none.
 * - `of_sequence` and `of_all` are [nranks]: pages that each rank has, of the sequence and of all. of_sequence NULL:
 *   all sequences count as one. of_all NULL: they are not looked at.
 * - A sequence whose pages were given by this call alone is within one page of its shares on every rank, whichever
 *   others end or are preempted. Without of_sequence this holds of all pages, while none is freed.
 * - So over all sequences a rank is off its share by less than one page for each of them. If the sequences that end all
 *   had their pages on one rank, it may be off by nearly half a page for each. Traces of 24 sequences that grow, end
 *   and are preempted at random, with ranks that join and leave, stay within 6 pages in all;
 *   tests/decode/test_ownership.c says so of each that it makes.
 * - It takes nranks^2 steps, and up to nranks^3 for uneven weights. */
banyan_status banyan_next_page(int32_t nranks, const int32_t *weights, const int64_t *of_sequence,
                               const int64_t *of_all, int32_t *rank);

/* Pages that go from a rank to another. */
typedef struct banyan_page_move {
  int32_t from, to;
  int64_t pages;
} banyan_page_move;

/* Writes the moves after which a sequence has its share by weight on each rank, within one page: when a rank leaves
 * (its weight becomes 0) or joins (its pages are 0). When sequences have ended, all others may count as one sequence.
 *
 * - `pages` is [nranks], what each rank has; they add up to less than 2^40.
 * - `of_moved` is [nranks]: pages that each rank has of the sequences that were moved before. Begin with zeros, and add
 *   the pages of each sequence after its moves. All sequences together then come near their shares too. Else short
 *   sequences of a rank that leaves may all go to the same one, and a rank that joins may get no page of any. NULL: no
 *   other moves to such shares move fewer pages. With of_moved a page more moves for each rank that
 *   lacks a page or more of these, where another one has too many.
 * - `moves` has room for nranks of them, and *count says how many there are.
 * - It takes nranks^2 steps.
 *
 * A sequence that was moved may then be more than one page off its shares as it grows by banyan_next_page();
 * tests/decode/test_ownership.c finds two at most. */
banyan_status banyan_page_moves(int32_t nranks, const int32_t *weights, const int64_t *pages, const int64_t *of_moved,
                                banyan_page_move *moves, int32_t *count);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
