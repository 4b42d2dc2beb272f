/* SPDX-License-Identifier: Apache-2.0
 * Rows of keys and values as f32. FlashMLA's rows and those with a scale for each key are converted before they are
 * used. So are rows of E4M3 and E5M2 where that is faster: a tile is converted once for all rows of queries.
 * The including file defines what it uses: attention_loop.h. */
#pragma once

/* The rows of a tile as f32. */
typedef struct attention_rows {
  float k[ATTENTION_TILE_FLOATS], v[ATTENTION_TILE_FLOATS];
} __attribute__((aligned(64))) attention_rows;

/* Returns true if each key has a scale. */
static inline bool attention_is_scaled(const bny_attention_task *task) { return task->k_scales || task->v_scales; }

/* Returns true if the task's rows are just numbers of its type. */
static inline bool attention_is_plain(const bny_attention_task *task) {
  return task->kv_rows == BANYAN_KV_ROWS_PLAIN && !attention_is_scaled(task);
}

/* Returns true if values are the first columns of their keys. */
static inline bool attention_is_latent(const bny_attention_task *task) {
  return task->kv_rows != BANYAN_KV_ROWS_PLAIN ||
         (task->v == task->k && task->v_token_stride == task->k_token_stride &&
          task->v_page_stride == task->k_page_stride && task->value_dim <= task->head_dim);
}

#ifndef ATTENTION_MATRIX_ONLY
/* Converts a row of the task's keys or values to f32. `scale` is that of the key; NULL: 1. */
static inline void attention_row_as_f32(const bny_attention_task *task, const char *row, int32_t columns,
                                        const float *scale, float *to) {
  static const float one = 1;
  if (task->kv_rows == BANYAN_KV_ROWS_PLAIN) {
    attention_convert(row, columns, task->kv_dtype, attention_is_scaled(task) && !scale ? &one : scale, to);
    return;
  }
  for (int32_t j = 0; j < BNY_FLASHMLA_CODES; j += BNY_FLASHMLA_GROUP) {
    float of_group;
    memcpy(&of_group, row + BNY_FLASHMLA_CODES + j / BNY_FLASHMLA_GROUP * (int32_t)sizeof of_group, sizeof of_group);
    attention_convert(row + j, BNY_FLASHMLA_GROUP, BANYAN_E4M3, &of_group, to + j);
  }
  attention_convert(row + BNY_FLASHMLA_ROPE_AT, BNY_FLASHMLA_ROPE, BANYAN_BF16, NULL, to + BNY_FLASHMLA_CODES);
}

/* Converts rows that are seen, `stride` floats apart, and prefetches those of the next tile. The first row is that of
 * key `first`. */
static inline void attention_unpack_rows(const bny_attention_task *task, attention_next rows, const float *scales,
                                         int32_t first, int32_t columns, uint64_t seen, const attention_next *next,
                                         int32_t stride, float *to) {
  if (attention_is_plain(task) && seen == UINT64_MAX) {
    attention_convert_rows(&rows, columns, task->kv_dtype, next, stride, to);
    return;
  }
  for (int32_t i = 0; i < rows.rows; i++, to += stride) {
    attention_prefetch_row(next, i);
    if (seen >> i & 1)
      attention_row_as_f32(task, rows.row + i * rows.step, columns,
                           scales ? &scales[(first + i) * task->scale_token_stride] : NULL, to);
  }
}

/* Converts the rows of keys [first, first + count), of which those that are `seen` may be read, and returns a task over
 * them. */
static __attribute__((noinline)) bny_attention_task attention_unpack(const bny_attention_task *task, int32_t first,
                                                                     int32_t count, uint64_t seen, attention_work *work,
                                                                     attention_rows *to) {
  const int64_t element = (int64_t)attention_element_bytes(task->kv_dtype);
  const bool has_values = !attention_is_latent(task) || task->k_scales != task->v_scales;
  bny_attention_task one = *task;
  attention_next k = {.step = task->k_token_stride * element, .rows = count};
  attention_next v = {.step = task->v_token_stride * element, .rows = count};
  k.row = (const char *)task->k + first * k.step;
  v.row = (const char *)task->v + first * v.step;
  attention_unpack_rows(task, k, task->k_scales, first, task->head_dim, seen, &work->next_k, work->q_stride, to->k);
  one.k = one.v = to->k;
  one.k_token_stride = one.v_token_stride = work->q_stride;
  if (has_values) {
    attention_unpack_rows(task, v, task->v_scales, first, task->value_dim, seen, &work->next_v, work->n_stride, to->v);
    one.v = to->v;
    one.v_token_stride = work->n_stride;
  }
  one.keys = 0; /* there is nothing behind them to prefetch */
  work->next_k = work->next_v = (attention_next){0};
  return one;
}
#endif
