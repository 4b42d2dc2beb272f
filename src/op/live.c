/* SPDX-License-Identifier: Apache-2.0
 * Checks and reads the caller's selection of valid rows: as sequence lengths or as a mask of tokens. */
#include "op/live.h"

#include <string.h>

#include "base/sized.h"
#include "base/status.h"

static bool has_sequences(const banyan_live *live) { return live->seq_lens || live->query_start_loc; }

bool bny_live_selects(const banyan_live *live) { return live && (has_sequences(live) || live->token_mask); }

banyan_status bny_live_check(const banyan_live **live, banyan_live *room, int32_t tokens) {
  if (!*live) return BANYAN_OK;
  const banyan_live *known = bny_sized_read(&bny_sized_live, "live", *live, room);
  if (!known) return BANYAN_ERR_ARGUMENT;
  if (known->batch < 0) return bny_fail(BANYAN_ERR_ARGUMENT, "live.batch is %d, must not be negative", known->batch);
  if (known->batch > 0 && !has_sequences(known))
    return bny_fail(BANYAN_ERR_ARGUMENT, "live.batch is %d, but seq_lens and query_start_loc are both NULL",
                    known->batch);
  if (known->batch == 0 && has_sequences(known) && tokens > 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, "live.batch is 0, but live.%s is given: set it to the number of sequences",
                    known->seq_lens ? "seq_lens" : "query_start_loc");
  if ((unsigned)known->empty_rows > BANYAN_EMPTY_ROWS_KEPT)
    return bny_fail(BANYAN_ERR_ARGUMENT, "live.empty_rows is %d, which is no banyan_empty_rows", known->empty_rows);
  *live = known;
  return BANYAN_OK;
}

banyan_status bny_live_count(const banyan_live *live, int32_t most, int32_t *tokens) {
  *tokens = live && live->tokens ? *live->tokens : most;
  if (*tokens >= 0 && *tokens <= most) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "live.tokens leads to %d; desc.tokens allows 0 to %d", *tokens, most);
}

/* Reads where a sequence ends. */
static banyan_status read_end(const banyan_live *live, int32_t sequence, int32_t begin, int32_t tokens, int32_t *end) {
  *end = begin < tokens ? begin + 1 : begin;
  if (!live->query_start_loc) return BANYAN_OK;
  *end = live->query_start_loc[sequence + 1];
  if (*end < begin)
    return bny_fail(BANYAN_ERR_ARGUMENT, "live.query_start_loc[%d] is %d, less than the %d before it", sequence + 1,
                    *end, begin);
  if (*end > tokens)
    return bny_fail(BANYAN_ERR_ARGUMENT, "live.query_start_loc[%d] is %d; this run has %d tokens", sequence + 1, *end,
                    tokens);
  return BANYAN_OK;
}

banyan_status bny_live_read(const banyan_live *live, int32_t tokens, uint8_t *mask) {
  if (!has_sequences(live)) {
    if (mask) memcpy(mask, live->token_mask, (size_t)tokens);
    return BANYAN_OK;
  }
  if (mask && tokens) memset(mask, 0, (size_t)tokens);
  int32_t begin = live->query_start_loc ? live->query_start_loc[0] : 0, end = begin;
  if (begin < 0 || begin > tokens)
    return bny_fail(BANYAN_ERR_ARGUMENT, "live.query_start_loc[0] is %d; this run has %d tokens", begin, tokens);
  for (int32_t i = 0; i < live->batch && (live->query_start_loc || i < tokens); i++, begin = end) {
    banyan_status status = read_end(live, i, begin, tokens, &end);
    if (status != BANYAN_OK) return status;
    int32_t keys = live->seq_lens ? live->seq_lens[i] : 1;
    if (keys < 0) return bny_fail(BANYAN_ERR_ARGUMENT, "live.seq_lens[%d] is %d, must not be negative", i, keys);
    if (!mask || keys == 0 || begin == end) continue;
    if (live->token_mask)
      memcpy(mask + begin, live->token_mask + begin, (size_t)(end - begin));
    else
      memset(mask + begin, 1, (size_t)(end - begin));
  }
  return BANYAN_OK;
}

int32_t bny_live_class(int32_t tokens, int32_t heads) {
  int64_t made = 1, most = heads > 0 ? INT32_MAX / heads : INT32_MAX;
  while (made < tokens) made *= 2;
  return (int32_t)(made < most ? made : most);
}
