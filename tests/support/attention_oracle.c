/* SPDX-License-Identifier: Apache-2.0
 * Attention in double precision, one row and one key at a time. */
#include "tests/support/attention_oracle.h"

#include <math.h>
#include <string.h>

/* FlashMLA's rows: codes, a scale for each group of codes, and columns of bf16. */
enum { MLA_CODES = 512, MLA_GROUP = 128, MLA_ROPE_AT = 528, MLA_ROPE = 64 };

static void load_row(const void *base, banyan_dtype dtype, int64_t at, int32_t dim, double *to) {
  for (int32_t i = 0; i < dim; i++)
    to[i] = dtype == BANYAN_I8 ? ((const int8_t *)base)[at + i] : oracle_load(base, dtype, at + i);
}

static void load_flashmla(const char *row, double *to) {
  load_row(row, BANYAN_E4M3, 0, MLA_CODES, to);
  for (int i = 0; i < MLA_CODES; i++) to[i] *= oracle_load(row + MLA_CODES, BANYAN_F32, i / MLA_GROUP);
  load_row(row + MLA_ROPE_AT, BANYAN_BF16, 0, MLA_ROPE, to + MLA_CODES);
}

static void load_query(const banyan_attention_desc *desc, int32_t token, int32_t head, double *q) {
  const banyan_q_rope *rope = &desc->rope;
  const int32_t plain = desc->head_dim - rope->dim;
  load_row(desc->q, desc->q_dtype, token * desc->q_batch_stride + head * desc->q_head_stride, plain, q);
  if (rope->dim)
    load_row(rope->q, desc->q_dtype, token * rope->batch_stride + head * rope->head_stride, rope->dim, q + plain);
}

/* Returns the sequence of a token, or -1. */
static int32_t sequence_of(const banyan_attention_desc *desc, int32_t token) {
  const int32_t *starts = desc->queries ? desc->queries->query_start_loc : NULL;
  if (!starts) return token < desc->batch ? token : -1;
  for (int32_t b = 0; b < desc->batch; b++)
    if (token >= starts[b] && token < starts[b + 1]) return b;
  return -1;
}

static int32_t length_of(const banyan_kv_part *kv, int32_t b) {
  const banyan_pages *pages = &kv->pages;
  if (kv->seq_lens) return kv->seq_lens[b];
  const int32_t count = pages->indptr[b + 1] - pages->indptr[b];
  return count ? (count - 1) * pages->keys + pages->last_len[b] : 0;
}

static uint64_t below(int64_t bit) { return (UINT64_C(1) << bit) - 1; }

/* In a tree the window counts depths: the depth of a draft is the number of earlier drafts that its query sees. */
bool attention_oracle_sees(const banyan_attention_desc *desc, int32_t b, int32_t token, int32_t t) {
  const banyan_queries *of = desc->queries;
  if (!of) return true;
  if (of->key_mask && !of->key_mask[b * of->key_mask_stride + t]) return false;
  if (!of->query_start) return true;
  const int64_t blocks = of->key_pattern_len ? of->key_pattern_len : 1, block = of->key_block ? t / of->key_block : 0;
  int64_t position = (of->key_start ? of->key_start[b] : 0) + block / blocks * of->key_stride + t;
  if (of->key_block) position += (of->key_pattern_len ? of->key_pattern[block % blocks] : 0) * of->key_block;
  if (of->key_block) position -= block * of->key_block;
  int64_t own = of->query_start_loc ? token - of->query_start_loc[b] : 0, draft = position - of->query_start[b];
  int64_t at = draft;
  const uint64_t mask = of->tree_mask ? of->tree_mask[token] : 0;
  if (of->tree_mask) own = __builtin_popcountll(mask & below(own));
  if (of->tree_mask && draft > 0 && draft < 64) at = __builtin_popcountll(mask & below(draft));
  if (of->window && at <= own - of->window) return false;
  if (!of->tree_mask) return draft <= own;
  return draft < 0 || (draft < 64 && (mask >> draft & 1));
}

/* Adds a key, or a sink, which has no value. */
static void add(attention_row *row, double logit, const double *v, int32_t value_dim) {
  if (logit == -(double)INFINITY) return;
  if (logit > row->max) {
    const double factor = row->sum == 0 ? 0 : exp(row->max - logit);
    row->max = logit;
    row->sum *= factor, row->length *= factor;
    for (int32_t i = 0; i < value_dim; i++) row->values[i] *= factor, row->weight[i] *= factor;
  }
  const double p = exp(logit - row->max);
  double squares = 0;
  row->sum += p;
  for (int32_t i = 0; v && i < value_dim; i++) {
    row->values[i] += p * v[i];
    row->weight[i] += p * fabs(v[i]);
    squares += v[i] * v[i];
  }
  row->length += p * sqrt(squares);
}

void attention_oracle_clear(attention_row *row) {
  memset(row, 0, sizeof *row);
  row->max = -(double)INFINITY;
}

/* Adds key t, which is row `in_page` of a page or sequence. */
static void add_key(const banyan_attention_desc *desc, const banyan_kv_part *kv, int64_t page, int32_t kv_head,
                    int64_t in_page, const double *q, attention_row *row) {
  const int32_t value_dim = desc->value_dim ? desc->value_dim : desc->head_dim;
  const int64_t at = page * kv->k_batch_stride + kv_head * kv->k_head_stride + in_page * kv->k_token_stride;
  const int64_t v_at = page * kv->v_batch_stride + kv_head * kv->v_head_stride + in_page * kv->v_token_stride;
  const banyan_kv_scales *scales = &kv->scales;
  int64_t scale_at = kv_head * scales->head_stride;
  if (scales->token_stride) scale_at += page * scales->batch_stride + in_page * scales->token_stride;
  double k[ATTENTION_DIM_MAX], v[ATTENTION_DIM_MAX], dot = 0, size = 0;
  double scale = desc->scale != 0 ? (double)desc->scale : 1 / sqrt((double)desc->head_dim);
  if (kv->rows == BANYAN_KV_ROWS_FLASHMLA_FP8) {
    load_flashmla((const char *)kv->k + at, k);
    memcpy(v, k, sizeof v);
  } else {
    load_row(kv->k, kv->dtype, at, desc->head_dim, k);
    load_row(kv->v, kv->dtype, v_at, value_dim, v);
  }
  for (int32_t i = 0; i < desc->head_dim; i++) dot += q[i] * k[i], size += fabs(q[i] * k[i]);
  if (scales->k) scale *= (double)scales->k[scale_at];
  for (int32_t i = 0; i < value_dim && scales->v; i++) v[i] *= (double)scales->v[scale_at];
  row->products = fmax(row->products, fabs(scale) * size);
  dot *= scale;
  if (desc->empty == BANYAN_EMPTY_NAN && isnan(dot)) return;
  add(row, desc->soft_cap > 0 ? (double)desc->soft_cap * tanh(dot / (double)desc->soft_cap) : dot, v, value_dim);
}

/* Adds the keys of a part, of which the first is key `first` of the sequence. Returns their number. */
static int32_t add_part(const banyan_attention_desc *desc, const banyan_kv_part *kv, int32_t first, int32_t b,
                        int32_t token, int32_t head, attention_row *row) {
  const banyan_pages *pages = &kv->pages;
  const int64_t list = pages->table ? (pages->indptr ? pages->indptr[b] : b * pages->table_stride) : 0;
  const int32_t keys = length_of(kv, b), kv_head = head / (desc->heads / desc->kv_heads);
  double q[ATTENTION_DIM_MAX];
  load_query(desc, token, head, q);
  for (int32_t t = 0; t < keys; t++) {
    if (!attention_oracle_sees(desc, b, token, first + t)) continue;
    const int64_t page = pages->table ? pages->table[list + t / pages->keys] : b;
    add_key(desc, kv, page, kv_head, pages->table ? t % pages->keys : t, q, row);
  }
  return keys;
}

void attention_oracle_add(const banyan_attention_desc *desc, int32_t token, int32_t head, attention_row *row) {
  const int32_t b = sequence_of(desc, token), value_dim = desc->value_dim ? desc->value_dim : desc->head_dim;
  if (b < 0) return;
  if (desc->sinks) add(row, (double)desc->sinks[head], NULL, value_dim);
  int32_t first = desc->parts ? 0 : add_part(desc, &desc->kv, 0, b, token, head, row);
  for (int64_t i = 0; desc->parts && i < desc->part_count; i++)
    first += add_part(desc, &desc->parts[i], first, b, token, head, row);
}

void attention_oracle(const banyan_attention_desc *desc, int32_t token, int32_t head, attention_row *row) {
  attention_oracle_clear(row);
  attention_oracle_add(desc, token, head, row);
}

double attention_row_error(const attention_row *row, int32_t value_dim, const float *values, float lse, double bound) {
  double worst = 0;
  if (row->sum == 0) {
    for (int32_t i = 0; i < value_dim; i++) worst = values[i] == 0 ? worst : (double)INFINITY;
    return lse == -INFINITY ? worst : (double)INFINITY;
  }
  for (int32_t i = 0; i < value_dim; i++) {
    double off = fabs((double)values[i] - row->values[i] / row->sum) / (row->weight[i] / row->sum + 1e-9) / bound;
    worst = off <= worst ? worst : off; /* NaN is worse */
  }
  double off = fabs((double)lse - (row->max + log(row->sum))) / bound;
  return off <= worst ? worst : off;
}

bool attention_row_certified(const attention_row *row, int32_t value_dim, const float *values, float lse, float error,
                             double bound, double least, double missing) {
  const double exact = row->max + log(row->sum), own = bound / 2 + 0x1p-22 * fabs(exact);
  double off = 0, weight = 0;
  if (row->sum == 0) return lse == -INFINITY && error == 0;
  for (int32_t i = 0; i < value_dim; i++) {
    const double error_of = (double)values[i] - row->values[i] / row->sum, mean = row->weight[i] / row->sum;
    off += error_of * error_of, weight += mean * mean;
  }
  return sqrt(off) <= (double)error + bound * sqrt(weight) + least && (double)lse <= exact + own &&
         (double)lse >= exact - missing - own;
}

oracle_row attention_oracle_row(const attention_row *row, int32_t value_dim) {
  oracle_row made = {.is_empty = row->sum == 0, .m = row->max / log(2), .d = row->sum, .coarse = 1};
  for (int32_t i = 0; i < value_dim && !made.is_empty; i++) {
    made.o[i] = row->values[i] / row->sum;
    made.mean[i] = row->weight[i] / row->sum;
  }
  return made;
}

banyan_attention_desc attention_desc_of(int32_t batch, int32_t heads, int32_t kv_heads, int32_t keys, int32_t head_dim,
                                        int32_t value_dim, banyan_dtype q_dtype, banyan_dtype kv_dtype, const void *q,
                                        const void *k, const void *v, const int32_t *seq_lens) {
  banyan_attention_desc made = BANYAN_ATTENTION_DESC_INIT;
  made.batch = batch, made.heads = heads, made.kv_heads = kv_heads;
  made.head_dim = head_dim, made.value_dim = value_dim;
  made.q_dtype = q_dtype, made.kv.dtype = kv_dtype;
  made.q = q, made.q_head_stride = head_dim, made.q_batch_stride = heads * made.q_head_stride;
  made.kv.k = k, made.kv.k_token_stride = head_dim, made.kv.k_head_stride = keys * made.kv.k_token_stride;
  made.kv.v = v, made.kv.v_token_stride = value_dim, made.kv.v_head_stride = keys * made.kv.v_token_stride;
  made.kv.k_batch_stride = kv_heads * made.kv.k_head_stride, made.kv.v_batch_stride = kv_heads * made.kv.v_head_stride;
  made.kv.seq_lens = seq_lens;
  return made;
}

void attention_clear_keys(banyan_attention_desc *desc) { desc->kv = (banyan_kv_part){.seq_lens = desc->kv.seq_lens}; }
