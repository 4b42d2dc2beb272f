/* SPDX-License-Identifier: Apache-2.0
 * Finds the owner of each key of a sequence, and the pages that move when a rank leaves. All calls are local, so no
 * ranks are needed.
 *   rank 0 has 16 of 26 keys, the first is token 0
 *   rank 1 has 6 of 26 keys, the first is token 8
 *   rank 2 has 4 of 26 keys, the first is token 12
 *   move 1 from rank 2 to 0
 *   move 1 from rank 2 to 1 */
#include <banyan.h>
#include <stdio.h>

enum { RANKS = 3, LENGTH = 26 };

static banyan_status by_rule(void) {
  static const int32_t weights[RANKS] = {2, 1, 1}; /* the first rank has twice the memory */
  banyan_ownership rule = BANYAN_OWNERSHIP_INIT;
  rule.kind = BANYAN_OWNERSHIP_BLOCKS, rule.nranks = RANKS, rule.block = 4, rule.weights = weights;
  banyan_status status = BANYAN_OK;
  for (int32_t rank = 0; rank < RANKS && status == BANYAN_OK; rank++) {
    int64_t keys = 0, token = 0;
    status = banyan_ownership_keys(&rule, rank, LENGTH, &keys); /* the rank's entry in seq_lens */
    if (status == BANYAN_OK) status = banyan_ownership_token(&rule, rank, 0, &token);
    printf("rank %d has %d of %d keys, the first is token %d\n", rank, (int)keys, LENGTH, (int)token);
  }
  return status;
}

static banyan_status move_pages(void) {
  /* Rank 2 leaves, so its pages move to the other ranks. Several sequences take one call each, and `moved` counts the
   * pages that earlier calls moved. */
  static const int32_t remaining[RANKS] = {1, 1, 0};
  static const int64_t pages[RANKS] = {3, 3, 2};
  int64_t moved[RANKS] = {0, 0, 0};
  banyan_page_move moves[RANKS];
  int32_t count = 0;
  banyan_status status = banyan_page_moves(RANKS, remaining, pages, moved, moves, &count);
  for (int32_t i = 0; i < count && status == BANYAN_OK; i++)
    printf("move %d from rank %d to %d\n", (int)moves[i].pages, moves[i].from, moves[i].to);
  return status;
}

int main(void) {
  banyan_status status = by_rule();
  if (status == BANYAN_OK) status = move_pages();
  if (status != BANYAN_OK) fprintf(stderr, "%s\n", banyan_last_error());
  return status != BANYAN_OK;
}
