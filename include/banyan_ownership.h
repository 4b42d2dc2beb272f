/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules that say which rank owns which key. All calls are local and pure, may be made by any thread, and need no
 * communicator. banyan.h includes this header, and its conventions hold here.
 *
 * A rule (banyan_ownership) fixes the owner of every token in advance. Moves change from one layout to another. */
#ifndef BANYAN_OWNERSHIP_H
#define BANYAN_OWNERSHIP_H

#include "banyan.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* The kind of a rule. RANGES: each rank has one range of tokens, in the order of ranks. BLOCKS: ranks take turns. In
 * each round, every rank has as many consecutive blocks as its weight, after division by the common divisor of all
 * weights. */
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
 * queries->key_start. Consecutive blocks of a rank count as one. */
banyan_status banyan_ownership_queries(const banyan_ownership *ownership, int32_t rank, struct banyan_queries *queries,
                                       int32_t *key_start);

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
 * - The call takes nranks^2 steps. */
banyan_status banyan_page_moves(int32_t nranks, const int32_t *weights, const int64_t *pages, const int64_t *of_moved,
                                banyan_page_move *moves, int32_t *count);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
