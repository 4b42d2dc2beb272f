/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention for AMX: 16 keys at a time are multiplied with up to 16 rows of queries. Sapphire Rapids and later.
 *
 * AMX multiplies bf16 and adds up in f32. Keys and values are bf16, or E4M3 and int8, which become bf16 exactly. f16
 * are cut into two bf16 that add up to them, queries and weights into one to three. All parts are multiplied, so
 * products are those of f32. The least parts are added first: their sums are nearly exact. AMX counts inputs and sums
 * below 2^-126 as 0.
 *
 * Parts of a number that is not finite mean nothing. So rows that come out without a finite result are made again by
 * the vector kernels, and so are the shapes and types that AMX does not take.
 *
 * A tile has 32 keys. Logits: an A register has 32 columns of 16 keys as they lie in memory, a B register 32 columns of
 * all rows of queries, and the product is [key][row]. Values: A has the weights of 32 keys by row, and B has pairs of
 * keys by column, which is how AMX reads B. Key i is paired with key i + 16. Pairs come in an order in which weights
 * take few instructions to transpose. */
#include "attention_amx_values.h"
#include "detect.h"

/* ---- tiles of keys ----------------------------------------------------------------------------------------------- */

/* Writes pairs [from, to) of group `group` of the values of a tile. */
INLINE void fill_group(const bny_attention_task *task, banyan_dtype form, int32_t first, int32_t count, int32_t group,
                       int32_t from, int32_t to, matrix_work *work) {
  int64_t stride = task->v_token_stride * (int64_t)attention_element_bytes(form);
  const char *v = attention_row(task->v, task->v_token_stride, first, form) + group * ROW_BYTES;
  fill_values(form, v, stride, count, from, to, group > 0, work, work->v[group % 2]);
}

/* Rows of two lines or fewer leave a processor idle between the steps of a tile. So the logits of the next tile are
 * made while the values of this one are added. With longer rows that pushes other lines out of the first-level cache.
 */
INLINE bool looks_ahead(const bny_attention_task *task, banyan_dtype form) {
  return type_of(form) == BANYAN_BF16 && task->head_dim <= ROW_BYTES;
}

/* A register is filled slowly from what was written just now. So each thing is written one round before it is read: the
 * first values before the weights, the others before the ones ahead of them are multiplied.
 *
 * The lines of the next tile are spread evenly over the work on this one, for a processor waits when too many are under
 * way. Most come with the groups of values, and what is left of the keys comes with the weights. */
INLINE void weigh_tile(int32_t rows, const bny_attention_task *task, banyan_dtype form, int32_t first, int32_t count,
                       attention_work *work) {
  matrix_work *more = &work->more;
  int64_t stride = task->k_token_stride * (int64_t)attention_element_bytes(form);
  const char *row = attention_row(task->k, task->k_token_stride, first, form);
  int32_t vectors = 2 * rows, pairs = HALF * (task->head_dim - task->value_dim) / group_columns(form) + HALF;
  bool has_next = looks_ahead(task, form) && work->rows == task->heads && task->keys - first >= 2 * KEYS;
  more->keys_ahead =
      lines_after(task, form, task->k, task->k_token_stride, task->head_dim, first, looks_ahead(task, form) ? 2 : 1);
  more->values_ahead = lines_after(task, form, task->v, task->v_token_stride, task->value_dim, first, 1);
  if (count < KEYS || more->ready != row) multiply_keys(task, form, row, stride, count, rows, more);
  more->ready = NULL;
  more->next = has_next ? row + KEYS * stride : NULL;
  fill_group(task, form, first, count, 0, 0, HALF, more);
  weigh(rows, count, pairs > 0 ? (pairs + vectors - 1) / vectors : 0, work);
  cut_weights(rows, more);
}

INLINE void add_group(int32_t group, const bny_attention_task *task, banyan_dtype form, int32_t first, int32_t count,
                      attention_work *work) {
  matrix_work *more = &work->more;
  int32_t columns = group_columns(form), tiles = columns / HALF, pairs = HALF / tiles;
  bool is_all = work->rows == task->heads;
  int32_t tiles_each = is_cut(form) ? 2 : 1;
  UNROLL for (int i = 0; i < tiles; i++) {
    if (group * columns < task->value_dim)
      fill_group(task, form, first, count, group, i * pairs, (i + 1) * pairs, more);
    FENCE();
    multiply_values(form, more->v[(group - 1) % 2] + i * tiles_each, (group - 1) * columns + i * HALF, is_all, work);
    FENCE();
  }
}

INLINE void add_values(int32_t rows, const bny_attention_task *task, banyan_dtype form, int32_t first, int32_t count,
                       attention_work *work) {
  matrix_work *more = &work->more;
  int32_t groups = task->value_dim / group_columns(form);
  if (type_of(form) == BANYAN_BF16 && more->next) {
    int64_t stride = task->k_token_stride * (int64_t)attention_element_bytes(form);
    multiply_keys(task, form, more->next, stride, KEYS, rows, more);
    more->ready = more->next;
  }
  FENCE();
  load_weights(rows, more);
  for (int32_t group = 1; group <= groups; group++) add_group(group, task, form, first, count, work);
}

static __attribute__((noinline)) void weigh_some(const bny_attention_task *task, banyan_dtype form, int32_t first,
                                                 int32_t count, attention_work *work) {
  if (rows_of(task) == 4)
    weigh_tile(4, task, form, first, count, work);
  else if (rows_of(task) == 8)
    weigh_tile(8, task, form, first, count, work);
  else
    weigh_tile(16, task, form, first, count, work);
}

static __attribute__((noinline)) void attention_weigh(const bny_attention_task *task, banyan_dtype form, int32_t first,
                                                      int32_t count, attention_work *work) {
  if (count < KEYS)
    weigh_some(task, form, first, count, work);
  else if (rows_of(task) == 4)
    weigh_tile(4, task, form, first, KEYS, work);
  else if (rows_of(task) == 8)
    weigh_tile(8, task, form, first, KEYS, work);
  else
    weigh_tile(16, task, form, first, KEYS, work);
}

static __attribute__((noinline)) void accumulate_some(const bny_attention_task *task, banyan_dtype form, int32_t first,
                                                      int32_t count, attention_work *work) {
  add_values(rows_of(task), task, form, first, count, work);
}

static __attribute__((noinline)) void attention_accumulate(const bny_attention_task *task, banyan_dtype form,
                                                           int32_t first, int32_t count, attention_work *work) {
  if (count < KEYS)
    accumulate_some(task, form, first, count, work);
  else if (rows_of(task) == 4)
    add_values(4, task, form, first, KEYS, work);
  else if (rows_of(task) == 8)
    add_values(8, task, form, first, KEYS, work);
  else
    add_values(16, task, form, first, KEYS, work);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* LDTILECFG reads this. */
typedef struct tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} tile_config;

static void configure_tiles(int32_t rows, int32_t heads) {
  tile_config config = {.palette = 1};
  uint16_t bytes = (uint16_t)(rows * (int32_t)sizeof(float));
  for (int i = T_KEYS; i <= T_LOGITS_1; i++) {
    config.rows[i] = HALF;
    config.row_bytes[i] = i == T_KEYS ? ROW_BYTES : bytes;
  }
  for (int i = T_WEIGHTS_0; i <= T_SUMS; i++) {
    config.rows[i] = (uint8_t)heads;
    config.row_bytes[i] = ROW_BYTES;
  }
  FENCE();
  _tile_loadconfig(&config);
}

/* The least group for which this is faster than vectors, as measured. */
static int32_t least_group(banyan_dtype type) {
  if (type == BANYAN_BF16 || type == BANYAN_E4M3 || type == BANYAN_I8) return 4;
  return type == BANYAN_F16 ? 9 : INT32_MAX;
}

static bool is_taken(const bny_attention_task *task) {
  int32_t columns = group_columns(task->kv_dtype);
  return task->group >= least_group(task->kv_dtype) && task->kv_rows == BANYAN_KV_ROWS_PLAIN && task->soft_cap == 0 &&
         task->head_dim % columns == 0 && task->value_dim % columns == 0 &&
         task->head_dim / WORDS * parts_of(task->q_dtype) <= STEPS_MAX;
}

static bool is_finite(const bny_attention_task *task, const bny_attention_sums *sums, int32_t h) {
  enum { NAN_OR_INFINITE = 0x99 };
  const double *n = sums->n + h * bny_attention_padded(task->value_dim);
  __mmask8 found = 0;
  for (int32_t j = 0; j < task->value_dim; j += 8)
    found |= _mm512_fpclass_pd_mask(_mm512_loadu_pd(n + j), NAN_OR_INFINITE);
  return found == 0 && isfinite(sums->d[h]) && sums->m[h] < INFINITY;
}

/* Rows that are not finite, by vectors. */
static __attribute__((noinline)) void run_again(const bny_attention_task *task, int32_t first, int32_t last,
                                                bny_attention_sums *sums) {
  int32_t stride = bny_attention_padded(task->value_dim);
  bny_attention_sums again;
  bny_attention_avx512_bf16.run(task, first, last, &again);
  for (int32_t h = 0; h < task->heads; h++) {
    if (is_finite(task, sums, h)) continue;
    sums->m[h] = again.m[h];
    sums->d[h] = again.d[h];
    memcpy(sums->n + h * stride, again.n + h * stride, (size_t)stride * sizeof *sums->n);
  }
}

static void run(const bny_attention_task *task, int32_t first, int32_t last, bny_attention_sums *sums) {
  if (!is_taken(task)) {
    bny_attention_avx512_bf16.run(task, first, last, sums);
    return;
  }
  configure_tiles(rows_of(task), task->heads);
  attention_pass(task, first, last, -INFINITY, sums);
  _tile_release();
  for (int32_t h = 0; h < task->heads; h++) {
    if (is_finite(task, sums, h)) continue;
    run_again(task, first, last, sums);
    return;
  }
}

const bny_attention_kernels bny_attention_amx = {"amx", "avx512", bny_cpu_has_amx, run};
