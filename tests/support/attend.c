/* SPDX-License-Identifier: Apache-2.0
 * Random attention problems over ranks: makes them, runs them on any backend, and compares results with the oracle. */
#include "tests/support/attend.h"

#include "f8.h"
#include "flashmla.h"
#include "tests/support/oracle.h"
#include "tests/support/sheet.h"

/* ---- making ------------------------------------------------------------------------------------------------------ */

static size_t rows_of(const attend *of) { return (size_t)(of->rows * of->shape.heads); }

attend *attend_make(int32_t nranks, uint64_t seed) {
  static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F32, BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3};
  static const char *const algorithms[] = {NULL, "oneshot", "ring", "twoshot", "tree"};
  world_random random = random_seed() * 700 + seed;
  attend *made = world_take(sizeof *made);
  *made = (attend){.nranks = nranks,
                   .shape = problem_shape_random(&random),
                   .seed = random_next(&random) >> 20,
                   .out_dtype = BANYAN_F32};
  problem_shape *shape = &made->shape;
  if (random_one_in(&random, 4)) { /* many sequences */
    shape->batch = 20 + random_below(&random, 18);
    shape->heads = 2, shape->kv_heads = 1;
    shape->head_dim = shape->value_dim = 64;
    shape->latent = false;
    shape->keys_max = 1 + random_below(&random, 24);
  }
  shape->one_sign = random_one_in(&random, 3);
  if (shape->page_keys && random_one_in(&random, 4)) shape->page_keys = 1 + random_below(&random, 70);
  made->several = random_one_in(&random, 3);
  made->causal = random_one_in(&random, 2);
  made->tree = made->causal && random_one_in(&random, 3);
  made->block = made->causal && random_one_in(&random, 2) ? 1 + random_below(&random, 9) : 0;
  made->window = made->causal && random_one_in(&random, 2) ? 1 + random_below(&random, 80) : 0;
  made->lists = shape->page_keys && random_one_in(&random, 2);
  made->by_last = made->lists && random_one_in(&random, 2);
  made->has_tokens = random_one_in(&random, 2);
  made->has_mask = random_one_in(&random, 3);
  made->keeps = random_one_in(&random, 3);
  made->blocking = random_one_in(&random, 3);
  made->rope_dim = random_one_in(&random, 4) ? 8 << random_below(&random, 3) : 0;
  made->cap = random_one_in(&random, 4) ? 2 + 10 * (float)fabs(random_unit(&random)) : 0;
  made->sinks = random_one_in(&random, 4) ? world_take((size_t)shape->heads * sizeof(float)) : NULL;
  for (int32_t h = 0; made->sinks && h < shape->heads; h++)
    made->sinks[h] = h % 4 == 3 ? -INFINITY : 0.3f * (float)(h % 7);
  if (random_one_in(&random, 4))
    made->form = shape->latent && random_one_in(&random, 2) ? ATTEND_FLASHMLA : ATTEND_E4M3;
  made->combine = (banyan_combine_desc){.size = sizeof made->combine,
                                        .wire = wires[random_below(&random, 6)],
                                        .scatter = (banyan_scatter)random_below(&random, 4),
                                        .root = random_below(&random, nranks),
                                        .order = (banyan_order)random_below(&random, 2),
                                        .algorithm = algorithms[random_below(&random, 5)]};
  return made;
}

attend *attend_make_plain(int32_t nranks, uint64_t seed, const problem_shape *shape) {
  attend *made = attend_make(nranks, seed);
  if (shape) made->shape = *shape;
  made->several = made->causal = made->lists = made->by_last = made->has_tokens = made->has_mask = made->keeps = false;
  made->rope_dim = 0;
  made->cap = 0;
  made->sinks = NULL;
  made->form = ATTEND_PLAIN;
  made->combine = (banyan_combine_desc){.size = sizeof made->combine};
  return made;
}

static int32_t *take_numbers(int32_t count) { return world_take((size_t)(count + 1) * sizeof(int32_t)); }

static void deal_heads(world_random *random, const attend *of, int32_t *counts) {
  int32_t left = of->shape.heads;
  for (int32_t r = 0; r < of->nranks; r++) {
    counts[r] = r == of->nranks - 1 ? left : random_below(random, left + 1);
    left -= counts[r];
  }
}

/* Converts each element to another type, at the same index. I8 codes count sixteenths. */
static void *converted(const attend *of, const uint16_t *from, size_t count, banyan_dtype to) {
  void *made = world_take(count * oracle_bytes(to));
  for (size_t i = 0; i < count; i++) {
    const double value = problem_value(of->shape.dtype, from[i]);
    if (to == BANYAN_I8)
      ((int8_t *)made)[i] = isnan(value) ? 127 : (int8_t)rint(16 * value);
    else
      oracle_store(made, to, (int64_t)i, value);
  }
  return made;
}

static uint8_t *flashmla_of(const uint16_t *from, banyan_dtype dtype, size_t rows) {
  uint8_t *made = world_take(rows * BNY_FLASHMLA_BYTES);
  for (size_t row = 0; row < rows; row++, from += BNY_FLASHMLA_DIM) {
    uint8_t *to = made + row * BNY_FLASHMLA_BYTES;
    for (int i = 0; i < BNY_FLASHMLA_CODES; i++) to[i] = bny_e4m3_of_float((float)problem_value(dtype, from[i]));
    for (int i = 0; i < BNY_FLASHMLA_CODES / BNY_FLASHMLA_GROUP; i++)
      memcpy(to + BNY_FLASHMLA_CODES + 4 * i, &(float){0.5f + 0.125f * (float)(((int)row + i) % 8)}, sizeof(float));
    for (int i = 0; i < BNY_FLASHMLA_ROPE; i++)
      memcpy(to + BNY_FLASHMLA_ROPE_AT + 2 * i,
             &(uint16_t){problem_bits(BANYAN_BF16, problem_value(dtype, from[BNY_FLASHMLA_CODES + i]))}, 2);
  }
  return made;
}

static void set_form(const attend *of, attend_rank *rank) {
  const problem_shape *shape = &of->shape;
  banyan_attention_desc *desc = &rank->shard.desc;
  const size_t pages = shape->page_keys ? (size_t)desc->kv.pages.count : (size_t)shape->batch;
  const size_t rows = pages * (size_t)(shape->kv_heads * (shape->page_keys ? shape->page_keys : shape->keys_max));
  static const banyan_dtype dtypes[] = {
      [ATTEND_E4M3] = BANYAN_E4M3, [ATTEND_E5M2] = BANYAN_E5M2, [ATTEND_I8] = BANYAN_I8, [ATTEND_F32] = BANYAN_F32};
  rank->k = rank->shard.k, rank->v = shape->latent ? rank->k : rank->shard.v;
  if (of->form == ATTEND_F32_QUERIES) desc->q_dtype = BANYAN_F32;
  if (of->form == ATTEND_PLAIN || of->form == ATTEND_F32_QUERIES) return;
  if (of->form != ATTEND_FLASHMLA) {
    desc->kv.dtype = dtypes[of->form];
    rank->k = converted(of, rank->shard.k, rows * (size_t)shape->head_dim, desc->kv.dtype);
    rank->v = rank->k;
    if (!shape->latent) rank->v = converted(of, rank->shard.v, rows * (size_t)shape->value_dim, desc->kv.dtype);
    return;
  }
  desc->kv.dtype = BANYAN_E4M3;
  rank->k = rank->v = flashmla_of(rank->shard.k, shape->dtype, rows);
  desc->kv.rows = BANYAN_KV_ROWS_FLASHMLA_FP8;
  desc->kv.k_token_stride = desc->kv.v_token_stride = BNY_FLASHMLA_BYTES;
  desc->kv.k_head_stride = desc->kv.v_head_stride = desc->kv.k_head_stride / BNY_FLASHMLA_DIM * BNY_FLASHMLA_BYTES;
  desc->kv.k_batch_stride = desc->kv.v_batch_stride = desc->kv.k_batch_stride / BNY_FLASHMLA_DIM * BNY_FLASHMLA_BYTES;
}

/* Masks some keys, and makes them NaN, because no query sees them. */
static void mask_keys(const attend *of, world_random *random, attend_rank *rank) {
  const banyan_attention_desc *desc = &rank->shard.desc;
  const banyan_pages *pages = &desc->kv.pages;
  rank->key_mask = world_take((size_t)(of->shape.batch * of->shape.keys_max));
  for (int32_t i = 0; i < of->shape.batch * of->shape.keys_max; i++) {
    const int32_t b = i / of->shape.keys_max, t = i % of->shape.keys_max;
    rank->key_mask[i] = !random_one_in(random, 4);
    for (int32_t h = 0; h < of->shape.kv_heads && t < rank->shard.lengths[b] && !rank->key_mask[i]; h++) {
      const int64_t page = pages->table ? rank->shard.pages[b * pages->table_stride + t / pages->keys] : b;
      const int64_t row = pages->table ? t % pages->keys : t;
      memset(rank->shard.k + page * desc->kv.k_batch_stride + h * desc->kv.k_head_stride +
                 row * desc->kv.k_token_stride,
             0xff, 2 * (size_t)of->shape.head_dim);
      if (rank->shard.v)
        memset(rank->shard.v + page * desc->kv.v_batch_stride + h * desc->kv.v_head_stride +
                   row * desc->kv.v_token_stride,
               0xff, 2 * (size_t)of->shape.value_dim);
    }
  }
}

static void fill_rank(attend *made, world_random *random, int32_t r) {
  attend_rank *rank = &made->ranks[r];
  const problem_shape *shape = &made->shape;
  problem_shard_make(random, shape, made->q, &rank->shard);
  if (made->masks_keys) mask_keys(made, random, rank);
  set_form(made, rank);
  int32_t pages = shape->page_keys ? (int32_t)rank->shard.desc.kv.pages.count : 0;
  rank->list = take_numbers(pages);
  rank->indptr = take_numbers(shape->batch);
  rank->last = take_numbers(shape->batch);
  rank->lengths = take_numbers(shape->batch);
  rank->key_start = take_numbers(shape->batch);
  rank->counts = take_numbers(made->nranks);
  rank->tokens = take_numbers(1);
  rank->mask = world_take((size_t)made->rows);
  rank->values_bytes = rows_of(made) * (size_t)shape->value_dim * sizeof(float);
  rank->lse_bytes = 2 * rows_of(made) * sizeof(float);
  rank->values = world_take(rank->values_bytes);
  rank->lse = world_take(rank->lse_bytes);
  rank->other_values = world_take(rank->values_bytes);
  rank->other_lse = world_take(rank->lse_bytes);
  rank->rows = world_take(rank->values_bytes + rank->lse_bytes);
  rank->out_scales = world_take(2 * (size_t)shape->heads * sizeof(float));
  world_random own = made->seed + (uint64_t)r;
  for (int32_t h = 0; h < 2 * shape->heads; h++) rank->out_scales[h] = (float)exp2(2 * random_unit(&own) - 3);
  if (made->epsilon > 0) {
    size_t all = shape->page_keys ? (size_t)pages : (size_t)(shape->batch * shape->keys_max);
    size_t codes = (size_t)((shape->page_keys ? shape->page_keys : 3) * (2 + (shape->head_dim + 7) / 8 * 2));
    rank->bounds = world_take(all * (size_t)shape->kv_heads * (2 + codes) * sizeof(float));
    rank->error = world_take(rank->lse_bytes);
    rank->read = world_take(rank->lse_bytes);
  }
  rank->gathered = made->gathers ? world_take(2 * rows_of(made) * (size_t)(shape->head_dim + 8)) : NULL;
  if (made->gathers) rank->mine = world_take(2 * rows_of(made) * (size_t)shape->head_dim);
}

/* Moves the last columns of q to separate memory, and leaves NaN in their place. */
static void split_queries(attend *made) {
  const size_t rows = rows_of(made), dim = (size_t)made->rope_dim, whole = (size_t)made->shape.head_dim;
  made->rope = world_take(2 * rows * dim);
  for (size_t row = 0; row < rows; row++) memcpy(made->rope + row * dim, made->q + row * whole + whole - dim, 2 * dim);
}

void attend_fill(attend *made) {
  world_random random = made->seed;
  if ((made->form == ATTEND_E4M3 || made->form == ATTEND_FLASHMLA) &&
      made->shape.latent) { /* within what devices support */
    made->shape.kv_heads = 1;
    made->shape.heads = made->shape.heads > 16 ? 16 : made->shape.heads;
    if (made->form == ATTEND_FLASHMLA) made->shape.dtype = BANYAN_BF16;
  }
  if (made->form == ATTEND_E4M3 &&
      (made->shape.head_dim == 96 || made->shape.head_dim == 192)) /* devices lack these sizes */
    made->shape.head_dim = made->shape.value_dim = 128;
  made->scales = world_take(2 * (size_t)made->shape.kv_heads * sizeof(float));
  for (int32_t i = 0; i < 2 * made->shape.kv_heads; i++)
    made->scales[i] = (float)(1 + 0.5 * random_unit(&random)) / (made->form == ATTEND_I8 ? 16 : 1);
  if (!made->causal) made->tree = false, made->block = made->window = 0;
  if (made->alone || made->gathers) made->has_tokens = made->has_mask = false;
  if (made->gathers) made->rope_dim = 0, made->several = false;
  if (!made->queries_most) made->queries_most = 4;
  made->rows = made->shape.batch * (made->several && made->shape.batch < 8 ? made->queries_most : 1);
  problem_shape wide = made->shape;
  wide.batch = made->rows;
  made->q = problem_queries(&random, &wide);
  for (size_t i = 0; made->epsilon > 0 && i < rows_of(made) * (size_t)made->shape.head_dim; i++) /* few keys matter */
    made->q[i] = problem_bits(made->shape.dtype, 12 * problem_value(made->shape.dtype, made->q[i]));
  made->loc = take_numbers(made->shape.batch + 1);
  made->start = take_numbers(made->shape.batch);
  made->masks = world_take((size_t)made->rows * sizeof *made->masks);
  for (int32_t r = 0; r < made->nranks; r++) fill_rank(made, &random, r);
  if (made->rope_dim) split_queries(made);
  if (made->form == ATTEND_F32_QUERIES)
    made->wide_q = converted(made, made->q, rows_of(made) * (size_t)made->shape.head_dim, BANYAN_F32);
  int32_t first = 0;
  for (int32_t r = 0; r < made->nranks && made->gathers; r++) {
    attend_rank *rank = &made->ranks[r];
    world_random same = made->seed + 5;
    deal_heads(&same, made, rank->counts);
    const int32_t number = rank->counts[r], dim = made->shape.head_dim;
    for (int32_t t = 0; t < made->rows; t++)
      memcpy(rank->mine + t * number * dim, made->q + (t * made->shape.heads + first) * dim,
             2 * (size_t)(number * dim));
    first += number;
  }
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static world_random random_of(const attend *of, int round, int32_t rank) {
  return (world_random){of->seed * 1000 + (uint64_t)(round * (ATTEND_RANKS_MAX + 1) + rank + 1)};
}

static int32_t tokens_of(const attend *of, int round) {
  world_random random = random_of(of, round, -1);
  int32_t tokens = random_below(&random, of->rows + 1);
  return !of->has_tokens || round == 0 ? of->rows : round == 1 ? 0 : tokens;
}

void attend_draw_shared(attend *made, int round) {
  world_random random = random_of(made, round, -1);
  int32_t tokens = tokens_of(made, round), at = random_one_in(&random, 3) ? random_below(&random, tokens + 1) : 0;
  for (int32_t b = 0; b < made->shape.batch; b++) {
    int32_t next = at + random_below(&random, made->queries_most + 1);
    if (!made->several) at = b, next = b + 1;
    made->loc[b] = at;
    made->loc[b + 1] = at = next < tokens || !made->several ? next : tokens;
    made->start[b] = random_below(&random, made->shape.keys_max * made->nranks + 1);
  }
  for (int32_t t = 0; t < made->rows; t++) made->masks[t] = random_next(&random) << 30 ^ random_next(&random);
}

static void list_pages(attend *made, attend_rank *rank) {
  const banyan_attention_desc *desc = &rank->shard.desc;
  for (int32_t b = 0; b < made->shape.batch; b++) {
    const int32_t pages = (rank->lengths[b] + desc->kv.pages.keys - 1) / desc->kv.pages.keys;
    for (int32_t i = 0; i < pages; i++)
      rank->list[rank->indptr[b] + i] = rank->shard.pages[b * desc->kv.pages.table_stride + i];
    rank->indptr[b + 1] = rank->indptr[b] + pages;
    rank->last[b] = pages ? rank->lengths[b] - (pages - 1) * desc->kv.pages.keys : 0;
  }
}

void attend_draw(attend *made, int32_t r, int round) {
  world_random random = random_of(made, round, r);
  attend_rank *rank = &made->ranks[r];
  const int32_t tokens = *rank->tokens = tokens_of(made, round);
  for (int32_t t = 0; t < made->rows; t++) rank->mask[t] = !random_one_in(&random, 3);
  for (int32_t b = 0; b < made->shape.batch; b++) {
    const int32_t most = rank->shard.lengths[b];
    int32_t before = 0; /* shards are contiguous, or blocks in turn */
    for (int32_t other = 0; other < r; other++) before += made->ranks[other].shard.lengths[b];
    rank->lengths[b] = most && round ? random_below(&random, most + 1) : most;
    rank->key_start[b] = made->block ? r * made->block : before;
    /* Lengths past the tokens would be rejected. */
    if (made->has_tokens && !made->several && !made->lists && b >= tokens) rank->lengths[b] = b % 2 ? -3 : INT32_MAX;
  }
  if (made->lists) list_pages(made, rank);
  memset(rank->values, ATTEND_POISON, rank->values_bytes);
  memset(rank->lse, ATTEND_POISON, rank->lse_bytes);
  memset(rank->other_values, ATTEND_POISON, rank->values_bytes);
  memset(rank->other_lse, ATTEND_POISON, rank->lse_bytes);
  if (rank->error) memset(rank->error, ATTEND_POISON, rank->lse_bytes);
}

/* Sets invalid pages for sequences whose keys are not read, because they are masked or have no tokens. */
static void spoil_pages(attend *made, int32_t r) {
  attend_rank *rank = &made->ranks[r];
  for (int32_t b = 0; b < made->shape.batch; b++) {
    int32_t token = made->loc[b], end = made->loc[b + 1];
    while (made->has_mask && token < end && !rank->mask[token]) token++;
    int32_t *page = &rank->shard.pages[b * rank->shard.desc.kv.pages.table_stride];
    if ((*page < 0) != (token == end)) *page = -1 - *page;
  }
}

bool attend_draw_all(world_rank *self, attend *made, int round) {
  if (!world_meet(self)) return false;
  if (self->rank == 0) attend_draw_shared(made, round);
  if (!world_meet(self)) return false;
  attend_draw(made, self->rank, round);
  if (self->on->is_device && made->shape.page_keys && !made->lists && (made->has_tokens || made->has_mask))
    spoil_pages(made, self->rank);
  return world_meet(self);
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

static sheet_part part_of(const attend *of, int32_t rank, int32_t tokens) {
  if (of->alone) return (sheet_part){0, tokens, 0, of->shape.heads};
  banyan_combine_desc desc = of->combine;
  desc.tokens = tokens;
  desc.heads = of->shape.heads;
  return sheet_part_of(&desc, of->nranks, rank);
}

static void set_pages(const attend *from, const attend_rank *rank, const world_rank *self,
                      banyan_attention_desc *desc) {
  desc->kv.pages.table = desc->kv.pages.table ? world_at(self, from->lists ? rank->list : rank->shard.pages) : NULL;
  if (!from->lists) return;
  desc->kv.pages.table_stride = 0;
  desc->kv.pages.indptr = world_at(self, rank->indptr);
  if (!from->by_last) return;
  desc->kv.pages.last_len = world_at(self, rank->last);
  desc->kv.seq_lens = NULL;
}

/* Returns the result in the rank's own addresses. */
static banyan_partial out_of(const attend *of, int32_t rank, int32_t heads) {
  const attend_rank *own = &of->ranks[rank];
  banyan_partial made;
  banyan_partial_init(&made, own->values, of->out_dtype, own->lse, BANYAN_F32, heads, of->shape.value_dim);
  if (of->out_dtype == BANYAN_F32) return made;
  world_random random = of->seed * 40 + (uint64_t)rank;
  made.values_head_stride += random_below(&random, 4);
  made.values_token_stride = heads * made.values_head_stride;
  made.values_scale = oracle_bytes(of->out_dtype) > 1 || random_one_in(&random, 3) ? NULL : own->out_scales;
  made.values_scale_stride = random_below(&random, 3);
  made.base = random_one_in(&random, 2) ? BANYAN_BASE_2 : BANYAN_BASE_E;
  made.empty = random_one_in(&random, 2) ? BANYAN_EMPTY_POS_INF : BANYAN_EMPTY_NEG_INF;
  if (random_one_in(&random, 2)) return made;
  made.stats_kind = BANYAN_STATS_MAX_SUM;
  made.sum = own->lse + rows_of(of);
  if (random_one_in(&random, 2)) made.values_kind = BANYAN_VALUES_NUMERATOR;
  return made;
}

/* Describes the attention of one rank, with q complete. */
static void describe(const attend *from, const world_rank *self, banyan_attention_desc *desc, banyan_queries *queries) {
  const attend_rank *rank = &from->ranks[self->rank];
  const problem_shape *shape = &from->shape;
  *desc = rank->shard.desc;
  desc->q = world_at(self, from->wide_q ? (void *)from->wide_q : from->q);
  desc->kv.k = world_at(self, rank->k);
  desc->kv.v = world_at(self, rank->v);
  if (from->keys_bound && !desc->kv.pages.table) desc->keys_max = from->keys_bound;
  if (from->form == ATTEND_E4M3 || from->form == ATTEND_E5M2 || from->form == ATTEND_I8)
    desc->kv.scales = (banyan_kv_scales){
        .k = world_at(self, from->scales), .v = world_at(self, from->scales + shape->kv_heads), .head_stride = 1};
  desc->kv.seq_lens = world_at(self, rank->lengths);
  desc->soft_cap = from->cap;
  desc->sinks = world_at(self, from->sinks);
  desc->stream = self->stream;
  set_pages(from, rank, self, desc);
  if (from->rope_dim)
    desc->rope = (banyan_q_rope){.q = world_at(self, from->rope),
                                 .batch_stride = shape->heads * from->rope_dim,
                                 .head_stride = from->rope_dim,
                                 .dim = from->rope_dim};
  *queries = (banyan_queries){.size = sizeof *queries,
                              .tokens = from->rows,
                              .query_start_loc = from->several ? world_at(self, from->loc) : NULL,
                              .query_start = from->causal ? world_at(self, from->start) : NULL,
                              .key_start = from->causal ? world_at(self, rank->key_start) : NULL,
                              .tree_mask = from->tree ? world_at(self, from->masks) : NULL,
                              .key_block = from->block,
                              .key_stride = from->block * from->nranks,
                              .window = from->window,
                              .key_mask = rank->key_mask,
                              .key_mask_stride = rank->key_mask ? shape->keys_max : 0};
  if (from->several || from->causal || from->masks_keys) desc->queries = queries;
}

/* Some problems that prune read a number of pages. */
static int32_t top_pages_of(const attend *of) {
  return of->epsilon > 0 && of->seed / 2 % 4 == 2 ? 1 + (int32_t)(of->seed % 5) : 0;
}

void attend_call_of(const attend *from, const world_rank *self, attend_call *to) {
  const attend_rank *rank = &from->ranks[self->rank];
  const problem_shape *shape = &from->shape;
  attend_call made = {.combine = from->combine};
  banyan_attention_desc *desc = &made.desc;
  const bool has_valid = from->has_tokens || from->has_mask;
  describe(from, self, desc, &to->queries);
  made.queries = to->queries;
  made.gather = (banyan_heads_desc){.size = sizeof made.gather,
                                    .tokens = from->rows,
                                    .heads = shape->heads,
                                    .dim = shape->head_dim,
                                    .dtype = shape->dtype,
                                    .counts = rank->counts};
  made.valid = world_valid(
      self, (banyan_valid_rows){.size = sizeof made.valid,
                                .tokens = from->has_tokens ? rank->tokens : NULL,
                                .token_mask = from->has_mask ? rank->mask : NULL,
                                .empty_rows = from->keeps ? BANYAN_EMPTY_ROWS_KEPT : BANYAN_EMPTY_ROWS_WRITTEN});
  made.combine.tokens = from->rows;
  made.combine.heads = shape->heads;
  made.combine.value_dim = shape->value_dim;
  made.combine.stream = self->stream;
  const sheet_part part = part_of(from, self->rank, from->rows);
  made.has_result = part.tokens && part.heads;
  made.out = world_partial(self, out_of(from, self->rank, part.heads));
  if (from->epsilon > 0) {
    desc->prune = (banyan_prune){.bounds = rank->bounds,
                                 .epsilon = from->seed / 2 % 4 == 1 || top_pages_of(from) ? 0 : from->epsilon,
                                 .top_pages = top_pages_of(from),
                                 .error = rank->error,
                                 .read = rank->read};
    if (!desc->kv.pages.table)
      desc->prune.keys = 1 + (int32_t)(from->seed % 3), desc->prune.batch_pages = shape->keys_max;
    banyan_page_bounds_update(desc, NULL);
  }
  if (has_valid) made.combine.valid = &to->valid;
  if (from->gathers) {
    desc->gather = &to->gather;
    desc->q = world_at(self, rank->gathered);
    desc->q_mine = world_at(self, rank->mine);
    if (self->rank % 2) desc->q_head_stride += 8, desc->q_batch_stride += 8 * shape->heads;
  }
  *to = made;
}

bool attend_has_twin(const attend *of) {
  return of->gathers ||
         (of->has_tokens && !of->has_mask && !of->lists && !of->keeps && of->combine.order == BANYAN_ORDER_CANONICAL);
}

void attend_be_twin(const attend *from, const world_rank *self, attend_call *call) {
  const attend_rank *rank = &from->ranks[self->rank];
  call->out.values = world_at(self, rank->other_values);
  call->out.lse = world_at(self, rank->other_lse);
  if (call->out.sum) call->out.sum = world_at(self, rank->other_lse + rows_of(from));
}

void attend_twin_of(const attend *from, const world_rank *self, attend_call *made) {
  const attend_rank *rank = &from->ranks[self->rank];
  attend whole = *from;
  whole.gathers = whole.has_tokens = false;
  attend_call_of(&whole, self, made);
  const sheet_part part = part_of(from, self->rank, *rank->tokens);
  attend_be_twin(from, self, made);
  if (from->gathers) return;
  made->queries.tokens = made->combine.tokens = *rank->tokens;
  if (!from->several) made->desc.batch = *rank->tokens;
  made->has_result = part.tokens && part.heads;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

const char *attend_text(const attend *of) {
  static _Thread_local char text[400];
  const problem_shape *shape = &of->shape;
  snprintf(
      text, sizeof text,
      "%d ranks, %d sequences, %d rows x %d/%d x %d/%d, dtype %d, pages of %d, %d keys, scatter %d, wire %d, order %d, "
      "form %d, results of type %d, epsilon %g, by %s%s%s%s%s%s%s%s%s%s%s, window %d, block %d, rope %d, cap %g",
      of->nranks, shape->batch, of->rows, shape->heads, shape->kv_heads, shape->head_dim, shape->value_dim,
      shape->dtype, shape->page_keys, shape->keys_max, of->combine.scatter, of->combine.wire, of->combine.order,
      of->form, (int)of->out_dtype, (double)of->epsilon, of->combine.algorithm ? of->combine.algorithm : "any",
      of->several ? ", several" : "", of->causal ? ", causal" : "", of->tree ? ", tree" : "",
      of->lists ? ", lists" : "", of->by_last ? ", by last pages" : "", of->has_tokens ? ", tokens" : "",
      of->has_mask ? ", mask" : "", of->keeps ? ", keeps" : "", of->sinks ? ", sinks" : "",
      of->blocking ? ", blocking" : "", of->window, of->block, of->rope_dim, (double)of->cap);
  return text;
}

void attend_reference(const attend *of, int32_t self, int32_t token, int32_t head, attention_row *row) {
  attention_oracle_clear(row);
  for (int32_t r = 0; r < of->nranks; r++) {
    if ((of->alone && r != self) || (of->has_mask && !of->ranks[r].mask[token])) continue;
    const world_rank host = {.rank = r, .on = &world_threads};
    banyan_attention_desc desc;
    banyan_queries queries;
    describe(of, &host, &desc, &queries);
    if (!of->alone && r > 0) desc.sinks = NULL; /* a combine counts the sinks of rank 0 only */
    attention_oracle_add(&desc, token, head, row);
  }
}

static bool is_poison(const void *from, size_t bytes) {
  const unsigned char *at = from;
  for (size_t i = 0; i < bytes; i++)
    if (at[i] != ATTEND_POISON) return false;
  return true;
}

/* The relative error of f32 sums and two-term weights, plus that of tensor cores, which truncate. Each operation over
 * 16 keys and one term loses at most 19 units of 2^-24 of a growing sum. On a lossy wire the rounding of values is
 * added. On devices the weights of MLA have one term if it has more than 64 heads. */
static double bound_of(const world_rank *self, const attend *of) {
  const banyan_dtype wire = of->alone ? BANYAN_F32 : of->combine.wire;
  const double lost = wire == BANYAN_F32 ? 0 : wire == BANYAN_F16 ? 5e-3 : wire == BANYAN_BF16 ? 4e-2 : 0.5;
  const bool one_term = self->on->is_device && of->shape.latent && of->shape.heads > 64;
  return 3e-5 + 0x1p-24 * 19 * (of->shape.keys_max / 16 + 1) + lost + (one_term ? oracle_unit(of->shape.dtype) : 0) +
         (of->form == ATTEND_E4M3 || of->form == ATTEND_FLASHMLA ? 2e-3 : 0);
}

/* Checks that bytes next to the rows of `count` tokens are unchanged. */
static bool rest_is_poison(const attend *of, const attend_rank *rank, const banyan_partial *out, sheet_part part) {
  const size_t element = oracle_bytes(of->out_dtype), rows = (size_t)(part.tokens * part.heads);
  unsigned char *left = malloc(rank->values_bytes + 1);
  memcpy(left, rank->values, rank->values_bytes);
  for (int32_t t = 0; t < part.tokens; t++)
    for (int32_t h = 0; h < part.heads; h++)
      memset(left + (size_t)(t * out->values_token_stride + h * out->values_head_stride) * element, ATTEND_POISON,
             (size_t)of->shape.value_dim * element);
  const size_t sums = out->sum ? rows : 0, half = rank->lse_bytes / 2;
  bool good = is_poison(left, rank->values_bytes) && is_poison(rank->lse + rows, half - rows * 4) &&
              is_poison(rank->lse + half / 4 + sums, half - sums * 4) &&
              (!rank->error || is_poison(rank->error + rows, rank->lse_bytes - rows * 4));
  free(left);
  return good;
}

/* Checks the certificate, and that at most epsilon of the mass is missing. The bound of attention itself is added, for
 * logits of up to about 100. */
static bool is_certified(const world_rank *self, const attend *of, const attention_row *row, const float *values,
                         float lse, float error) {
  const double own = bound_of(self, of) + 1e-3, exact = row->max + log(row->sum);
  /* Values below 2^-14 have only an absolute precision on an f16 wire. */
  const double least = !of->alone && of->combine.wire == BANYAN_F16 ? 0x1p-24 * sqrt(of->shape.value_dim) : 1e-9;
  double off = 0, weight = 0;
  if (row->sum == 0) return lse == -INFINITY && error == 0;
  if (top_pages_of(of) && error == INFINITY) return true; /* the row may have no key that was read */
  for (int32_t i = 0; i < of->shape.value_dim; i++) {
    off += pow((double)values[i] - row->values[i] / row->sum, 2);
    weight += pow(row->weight[i] / row->sum, 2);
  }
  return sqrt(off) <= (double)error + 2 * own * sqrt(weight) + least && (double)lse <= exact + own &&
         (top_pages_of(of) || (double)lse >= exact - log1p((double)of->epsilon) - own);
}

/* Returns the error of a row of the result, in units of its bound. */
static double error_of(const world_rank *self, const attend *of, const banyan_partial *out, int32_t token, int32_t head,
                       const attention_row *reference) {
  const int32_t dim = of->shape.value_dim;
  const oracle_row row = oracle_read(out, token, head, dim), empty = {.is_empty = true};
  float values[ATTENTION_DIM_MAX];
  if (reference->sum == 0) return oracle_compare(out, token, head, dim, BANYAN_F32, 0, &empty) ? (double)INFINITY : 0;
  if (row.is_empty) return (double)INFINITY;
  for (int32_t i = 0; i < dim; i++) values[i] = (float)row.o[i];
  return attention_row_error(reference, dim, values, (float)((row.m + log2(row.d)) * log(2)),
                             bound_of(self, of) + 2 * oracle_unit(of->out_dtype));
}

bool attend_holds(world_rank *self, const attend *of, int round) {
  const attend_rank *rank = &of->ranks[self->rank];
  const sheet_part part = part_of(of, self->rank, *rank->tokens);
  const size_t dim = (size_t)of->shape.value_dim, count = (size_t)(part.tokens * part.heads);
  const banyan_partial out = out_of(of, self->rank, part.heads);
  for (size_t i = 0; i < count; i++) {
    const int32_t token = part.token0 + (int32_t)i / part.heads, head = part.head0 + (int32_t)i % part.heads;
    attention_row reference;
    attend_reference(of, self->rank, token, head, &reference);
    if (reference.sum == 0 && of->keeps && !of->alone && (of->has_tokens || of->has_mask)) {
      const size_t element = oracle_bytes(of->out_dtype);
      const int64_t at = (token - part.token0) * out.values_token_stride + (head - part.head0) * out.values_head_stride;
      if (!world_check(
              self, is_poison((char *)out.values + at * (int64_t)element, dim * element) && is_poison(rank->lse + i, 4),
              "round %d: the empty row of token %d was not kept: %s", round, token, attend_text(of)))
        return false;
      continue;
    }
    if (oracle_bytes(of->out_dtype) == 1) {
      const oracle_row row = attention_oracle_row(&reference, of->shape.value_dim);
      const char *wrong =
          oracle_compare(&out, token - part.token0, head - part.head0, of->shape.value_dim, BANYAN_F32, 0, &row);
      if (!world_check(self, !wrong, "round %d, token %d, head %d: %s: %s", round, token, head, wrong ? wrong : "",
                       attend_text(of)))
        return false;
      continue;
    }
    if (of->epsilon > 0) {
      if (!world_check(self, is_certified(self, of, &reference, rank->values + i * dim, rank->lse[i], rank->error[i]),
                       "round %d of %d tokens, token %d, head %d: error %g is not certified: %s", round, *rank->tokens,
                       token, head, (double)rank->error[i], attend_text(of)))
        return false;
      continue;
    }
    const double error = error_of(self, of, &out, token - part.token0, head - part.head0, &reference);
    if (!world_check(self, error <= 1, "round %d of %d tokens, token %d, head %d: error %g of the bound: %s", round,
                     *rank->tokens, token, head, error, attend_text(of)))
      return false;
  }
  return world_check(self, rest_is_poison(of, rank, &out, part),
                     "round %d of %d tokens: bytes beside its rows were written: %s", round, *rank->tokens,
                     attend_text(of));
}

bool attend_twin_agrees(world_rank *self, const attend *of, int round) {
  const attend_rank *rank = &of->ranks[self->rank];
  return world_check(self,
                     memcmp(rank->values, rank->other_values, rank->values_bytes) == 0 &&
                         memcmp(rank->lse, rank->other_lse, rank->lse_bytes) == 0,
                     "round %d: other bits in another way: %s", round, attend_text(of));
}
