/* SPDX-License-Identifier: Apache-2.0
 * Checks and reads the caller's selection of valid rows: as sequence lengths or as a mask of tokens. */
#include "op/valid.h"

#include <string.h>

#include "base/sized.h"
#include "base/status.h"

static bool has_sequences(const banyan_valid_rows *valid) { return valid->seq_lens || valid->query_start_loc; }

bool bny_valid_selects(const banyan_valid_rows *valid) { return valid && (has_sequences(valid) || valid->token_mask); }

banyan_status bny_valid_check(const banyan_valid_rows **valid, banyan_valid_rows *room, int32_t tokens) {
  if (!*valid) return BANYAN_OK;
  const banyan_valid_rows *known = bny_sized_read(&bny_sized_valid, "valid", *valid, room);
  if (!known) return BANYAN_ERR_ARGUMENT;
  if (known->batch < 0) return bny_fail(BANYAN_ERR_ARGUMENT, "valid.batch is %d, must not be negative", known->batch);
  if (known->batch > 0 && !has_sequences(known))
    return bny_fail(BANYAN_ERR_ARGUMENT, "valid.batch is %d, but seq_lens and query_start_loc are both NULL",
                    known->batch);
  if (known->batch == 0 && has_sequences(known) && tokens > 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, "valid.batch is 0, but valid.%s is given: set it to the number of sequences",
                    known->seq_lens ? "seq_lens" : "query_start_loc");
  if ((unsigned)known->empty_rows > BANYAN_EMPTY_ROWS_KEPT)
    return bny_fail(BANYAN_ERR_ARGUMENT, "valid.empty_rows is %d, which is not a banyan_empty_rows", known->empty_rows);
  *valid = known;
  return BANYAN_OK;
}

banyan_status bny_valid_count(const banyan_valid_rows *valid, int32_t most, int32_t *tokens) {
  *tokens = valid && valid->tokens ? *valid->tokens : most;
  if (*tokens >= 0 && *tokens <= most) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "valid.tokens leads to %d; desc.tokens allows 0 to %d", *tokens, most);
}

/* Reads where a sequence ends. */
static banyan_status read_end(const banyan_valid_rows *valid, int32_t sequence, int32_t begin, int32_t tokens,
                              int32_t *end) {
  *end = begin < tokens ? begin + 1 : begin;
  if (!valid->query_start_loc) return BANYAN_OK;
  *end = valid->query_start_loc[sequence + 1];
  if (*end < begin)
    return bny_fail(BANYAN_ERR_ARGUMENT, "valid.query_start_loc[%d] is %d, less than the %d before it", sequence + 1,
                    *end, begin);
  if (*end > tokens)
    return bny_fail(BANYAN_ERR_ARGUMENT, "valid.query_start_loc[%d] is %d; this run has %d tokens", sequence + 1, *end,
                    tokens);
  return BANYAN_OK;
}

banyan_status bny_valid_read(const banyan_valid_rows *valid, int32_t tokens, uint8_t *mask) {
  if (!has_sequences(valid)) {
    if (mask) memcpy(mask, valid->token_mask, (size_t)tokens);
    return BANYAN_OK;
  }
  if (mask && tokens) memset(mask, 0, (size_t)tokens);
  int32_t begin = valid->query_start_loc ? valid->query_start_loc[0] : 0, end = begin;
  if (begin < 0 || begin > tokens)
    return bny_fail(BANYAN_ERR_ARGUMENT, "valid.query_start_loc[0] is %d; this run has %d tokens", begin, tokens);
  for (int32_t i = 0; i < valid->batch && (valid->query_start_loc || i < tokens); i++, begin = end) {
    banyan_status status = read_end(valid, i, begin, tokens, &end);
    if (status != BANYAN_OK) return status;
    int32_t keys = valid->seq_lens ? valid->seq_lens[i] : 1;
    if (keys < 0) return bny_fail(BANYAN_ERR_ARGUMENT, "valid.seq_lens[%d] is %d, must not be negative", i, keys);
    if (!mask || keys == 0 || begin == end) continue;
    if (valid->token_mask)
      memcpy(mask + begin, valid->token_mask + begin, (size_t)(end - begin));
    else
      memset(mask + begin, 1, (size_t)(end - begin));
  }
  return BANYAN_OK;
}

int32_t bny_valid_class(int32_t tokens, int32_t heads) {
  int64_t made = 1, most = heads > 0 ? INT32_MAX / heads : INT32_MAX;
  while (made < tokens) made *= 2;
  return (int32_t)(made < most ? made : most);
}
