/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules that say which rank owns which key. All calls are local and pure, may be made by any thread, and need no
 * communicator. banyan.h includes this header, and its conventions hold here.
 *
 * There are two ways to divide keys. A rule (banyan_ownership) fixes the owner of every token in advance. Or
 * banyan_next_page() assigns pages to ranks one by one as sequences grow, and the caller keeps a table of them. */
#ifndef BANYAN_OWNERSHIP_H
#define BANYAN_OWNERSHIP_H

#include "banyan.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* The kind of a rule. RANGES: each rank has one range of tokens, in the order of ranks. BLOCKS: blocks of tokens are
 * assigned in turn; after any number of blocks, each rank is within one block of its share. With equal weights the turn
 * is the order of ranks. With different weights on three ranks or more, a call allocates memory for each rank and can
 * return BANYAN_ERR_MEMORY. It then takes at most as many steps as the weights add up to, after division by their
 * common divisor, for any length. */
typedef enum banyan_ownership_kind { BANYAN_OWNERSHIP_RANGES = 1, BANYAN_OWNERSHIP_BLOCKS } banyan_ownership_kind;

/* A rule that says which rank owns which token of a sequence. */
typedef struct banyan_ownership {
  size_t size;
  banyan_ownership_kind kind;
  int32_t nranks;
  int32_t block;  /* tokens that stay together, such as a page; ranges begin at multiples of it. 0: 1 */
  int64_t tokens; /* RANGES: the length that is divided: that of the longest sequence, at most 2^40. Shorter sequences
                   * fill the first ranks. BLOCKS: 0, for any length */
  const int32_t *weights; /* [nranks]: the share of each rank, such as its memory or bandwidth. A rank of weight 0 owns
                           * nothing. The sum is 1 to 2^20. NULL: equal shares */
} banyan_ownership;

/* clang-format off */
#define BANYAN_OWNERSHIP_INIT {sizeof(banyan_ownership), (banyan_ownership_kind)0, 0, 0, 0, NULL}
/* clang-format on */

/* Writes the rank that owns token number `token`, and the token's position among that rank's keys. Both count from
 * 0. */
banyan_status banyan_ownership_of_token(const banyan_ownership *ownership, int64_t token, int32_t *rank,
                                        int64_t *position);

/* Does the same for `count` tokens: ranks[i] and positions[i] receive owner and position of tokens[i]. Neighbours in a
 * block cost one look-up. The text of an error names the first wrong token; the tokens before it are written. */
banyan_status banyan_ownership_of_tokens(const banyan_ownership *ownership, int64_t count, const int64_t *tokens,
                                         int32_t *ranks, int64_t *positions);

/* Writes the token at `position` among the keys of `rank`. This is the inverse of banyan_ownership_of_token(). */
banyan_status banyan_ownership_token(const banyan_ownership *ownership, int32_t rank, int64_t position, int64_t *token);

/* Writes the number of keys that `rank` has of a sequence of `length` tokens: its entry of seq_lens. */
banyan_status banyan_ownership_keys(const banyan_ownership *ownership, int32_t rank, int64_t length, int64_t *keys);

struct banyan_queries; /* in banyan_attention.h */

/* Sets key_block and key_stride of `queries` for the shard of `rank`. Writes to `key_start` the value for each entry of
 * queries->key_start. Consecutive blocks of a rank count as one.
 *
 * With BLOCKS and different weights, the blocks of a rank may be unevenly spaced, and then need a pattern. Before the
 * call, set key_pattern to your memory and key_pattern_len to its capacity; weights[rank] entries are enough. The call
 * writes the pattern there, and its length, or 0, to key_pattern_len. Keep the memory while attention uses it, and set
 * the capacity again before another call. Without this memory the call returns BANYAN_ERR_UNSUPPORTED for such a rank,
 * and with too little memory BANYAN_ERR_ARGUMENT. No memory is needed for RANGES, for equal weights, or for a rank
 * whose weight is 0, or 1 after division. */
banyan_status banyan_ownership_queries(const banyan_ownership *ownership, int32_t rank, struct banyan_queries *queries,
                                       int32_t *key_start);

/* Writes the name of a rule to name[bytes], and its hash. Names are "blocks:16/8ranks", "blocks:16/3ranks:2,1,1" with
 * weights, "ranges:4096/8ranks", or "ranges:96,4096/2ranks" with the end of each range if they are uneven. Rules that
 * give each token the same owner have the same name and hash. If the name does not fit, BANYAN_ERR_ARGUMENT says how
 * many bytes it needs. name or hash may be NULL. */
banyan_status banyan_ownership_name(const banyan_ownership *ownership, char *name, size_t bytes, uint64_t *hash);

/* Tokens [first, end) that move from one rank to another. */
typedef struct banyan_token_move {
  int64_t first, end;
  int32_t from, to;
} banyan_token_move;

/* Writes the moves that turn layout `from` into layout `to`, for tokens *next to length - 1 in their order. Each token
 * whose owner changes moves once, so the number of bytes is minimal. Set *count to the capacity of `moves`; the call
 * sets it to their number. It also sets *next to the first token that is left for another call, or to `length`. */
banyan_status banyan_ownership_moves(const banyan_ownership *from, const banyan_ownership *to, int64_t length,
                                     int64_t *next, banyan_token_move *moves, int32_t *count);

/* Selects the page to move to the next memory when one is full. The last `keep` of the `pages` pages stay; pages are in
 * the order of their tokens. Among the others the least read page moves; among equals, the oldest. reads[i] is the
 * number of reads of page i. Halve these numbers from time to time, so that old reads lose weight. NULL: the oldest
 * page moves. *page is -1 if all pages stay. */
banyan_status banyan_tier_next(int64_t pages, const uint64_t *reads, int64_t keep, int64_t *page);

/* Selects the rank that takes the next page of a sequence. Among the ranks that keep the sequence even, it takes the
 * one with the fewest pages over all sequences, relative to its weight; among equals, the first.
 *
 * - `weights` is [nranks] as in banyan_ownership; NULL: equal shares. A rank of weight 0 takes no page.
 * - `of_sequence` and `of_all` are [nranks]: the pages of this sequence, and of all sequences, on each rank. If
 *   of_sequence is NULL, all sequences count as one. If of_all is NULL, other sequences are ignored.
 * - If only this call assigns its pages, a sequence is within one page of its share on every rank, even if others end
 *   or are preempted. Without of_sequence this holds for all pages, as long as none is freed.
 * - Over all sequences, a rank is therefore off its share by less than one page per sequence. It may be off by nearly
 *   half a page per sequence if all sequences that end had their pages on one rank. A random test of 24 sequences that
 *   grow, end and are preempted, with ranks that join and leave, stays within 6 pages (tests/ownership/test_ownership.c).
 * - The call takes nranks^2 steps, and up to nranks^3 for uneven weights. */
banyan_status banyan_next_page(int32_t nranks, const int32_t *weights, const int64_t *of_sequence,
                               const int64_t *of_all, int32_t *rank);

/* Pages that move from one rank to another. */
typedef struct banyan_page_move {
  int32_t from, to;
  int64_t pages;
} banyan_page_move;

/* Writes the moves that give each rank its share of a sequence by weight, within one page. Use it when a rank leaves
 * (its weight becomes 0) or joins (it has 0 pages). When sequences have ended, all others may count as one sequence.
 *
 * - `pages` is [nranks]: the pages of each rank, which add up to less than 2^40.
 * - `of_moved` is [nranks]: the pages on each rank of the sequences that were moved before. Begin with zeros, and add
 *   the pages of each sequence after its moves. All sequences together then approach their shares too. Without it,
 *   short sequences of a leaving rank may all go to one rank, and a joining rank may get no page. NULL: the number of
 *   moved pages is minimal. With of_moved, one page more moves for each rank that lacks at least a page of these
 *   sequences, if another rank has too many.
 * - `moves` has room for nranks moves. *count is set to their number.
 * - The call takes nranks^2 steps.
 *
 * If a moved sequence grows by banyan_next_page(), it may be more than one page off its shares;
 * tests/ownership/test_ownership.c finds at most two. */
banyan_status banyan_page_moves(int32_t nranks, const int32_t *weights, const int64_t *pages, const int64_t *of_moved,
                                banyan_page_move *moves, int32_t *count);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
