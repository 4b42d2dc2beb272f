/* SPDX-License-Identifier: Apache-2.0
 * Describes partials in the conventions of known kernels and engines. */
#include <stdbool.h>
#include <stddef.h>

#include "banyan.h"
#include "base/status.h"

/* How a convention differs from banyan_partial_init(). */
typedef struct convention {
  bool by_head; /* statistics are [heads][tokens] */
  bool pairs;   /* max and sum are stored as pairs */
  bool rows;    /* max, sum and numerators, one after another */
  banyan_base base;
  uint32_t empty;
} convention;

static const convention conventions[] = {
    [BANYAN_PRESET_FLASH_ATTENTION_2] = {.by_head = true, .base = BANYAN_BASE_E, .empty = BANYAN_EMPTY_POS_INF},
    [BANYAN_PRESET_FLASH_ATTENTION_3] = {.by_head = true, .base = BANYAN_BASE_E, .empty = BANYAN_EMPTY_NEG_INF},
    [BANYAN_PRESET_FLASHINFER] = {.base = BANYAN_BASE_2, .empty = BANYAN_EMPTY_NEG_INF},
    [BANYAN_PRESET_FLASHMLA] = {.base = BANYAN_BASE_E, .empty = BANYAN_EMPTY_POS_INF},
    [BANYAN_PRESET_TENSORRT_LLM_HELIX] = {.pairs = true, .base = BANYAN_BASE_E, .empty = BANYAN_EMPTY_NEG_INF},
    [BANYAN_PRESET_GGML] = {.rows = true, .base = BANYAN_BASE_E, .empty = BANYAN_EMPTY_NEG_INF},
    [BANYAN_PRESET_TORCH] = {.base = BANYAN_BASE_E, .empty = BANYAN_EMPTY_NEG_INF},
};

static void set_pairs(banyan_partial *made, float *stats, int64_t stride, int32_t heads) {
  made->stats_kind = BANYAN_STATS_MAX_SUM;
  made->lse = stats;
  made->sum = stats ? stats + 1 : NULL;
  made->stats_head_stride = stride;
  made->stats_token_stride = heads * stride;
}

banyan_status banyan_partial_preset(banyan_partial *partial, banyan_preset preset, void *values,
                                    banyan_dtype values_dtype, void *stats, int32_t tokens, int32_t heads,
                                    int32_t value_dim) {
  if (!partial) return bny_fail(BANYAN_ERR_ARGUMENT, "partial is NULL");
  if (preset < BANYAN_PRESET_FLASH_ATTENTION_2 || preset > BANYAN_PRESET_TORCH)
    return bny_fail(BANYAN_ERR_ARGUMENT, "preset is %d, which is not a banyan_preset", preset);
  const convention *like = &conventions[preset];
  if (like->rows && (values || values_dtype != BANYAN_F32))
    return bny_fail(
        BANYAN_ERR_ARGUMENT,
        "values must be NULL and values_dtype BANYAN_F32: rows of ggml keep values behind their statistics");
  banyan_partial made;
  banyan_partial_init(&made, values, values_dtype, stats, BANYAN_F32, heads, value_dim);
  made.base = like->base;
  made.empty = like->empty;
  if (like->by_head) {
    made.stats_token_stride = 1;
    made.stats_head_stride = tokens;
  }
  if (like->pairs) set_pairs(&made, stats, 2, heads);
  if (like->rows) {
    set_pairs(&made, stats, 2 + (int64_t)value_dim, heads);
    made.values = stats ? (float *)stats + 2 : NULL;
    made.values_kind = BANYAN_VALUES_NUMERATOR;
    made.values_head_stride = made.stats_head_stride;
    made.values_token_stride = made.stats_token_stride;
  }
  *partial = made;
  return BANYAN_OK;
}
