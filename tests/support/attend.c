/* SPDX-License-Identifier: Apache-2.0
 * Random attention problems over ranks: makes them, runs them on any backend, and compares results with the oracle. */
#include "tests/support/attend.h"

#include "tests/support/sheet.h"

/* ---- making ------------------------------------------------------------------------------------------------------ */

static size_t rows_of(const attend *of) { return (size_t)(of->rows * of->shape.heads); }

static problem_shape shape_random(world_random *random) {
  static const int32_t dims[] = {64, 96, 128, 192, 256, 576};
  problem_shape made = {.batch = 1 + random_below(random, 3), .kv_heads = 1 + random_below(random, 2)};
  made.heads = made.kv_heads * (1 + random_below(random, random_one_in(random, 8) ? 20 : 6));
  made.head_dim = made.value_dim = dims[random_below(random, 6)];
  made.latent = made.head_dim == 576;
  if (made.latent) made.value_dim = 512;
  if (made.latent && random_one_in(random, 3)) made.heads = 33 + random_below(random, 40), made.kv_heads = 1;
  made.dtype = random_one_in(random, 2) ? BANYAN_BF16 : BANYAN_F16;
  made.keys_max = 1 + random_below(random, 100);
  made.page_keys = random_one_in(random, 2) ? 1 << random_below(random, 7) : 0;
  return made;
}

attend *attend_make(int32_t nranks, uint64_t seed) {
  static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F32, BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3};
  static const char *const algorithms[] = {NULL, "oneshot", "ring", "twoshot", "tree"};
  world_random random = random_seed() * 700 + seed;
  attend *made = world_take(sizeof *made);
  *made = (attend){
      .nranks = nranks, .shape = shape_random(&random), .seed = random_next(&random) >> 20, .out_dtype = BANYAN_F32};
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

/* Draws the queries, which all ranks have. */
static void fill_queries(attend *made) {
  const problem_shape *shape = &made->shape;
  drawn *all = &made->all;
  banyan_attention_desc *desc = &all->desc;
  *all =
      (drawn){.features = DRAWN_TIGHT | (shape->page_keys ? DRAWN_PAGED : 0) | (shape->latent ? DRAWN_JOINT : 0) |
                          (made->form == ATTEND_FLASHMLA ? DRAWN_LATENT : 0) | (shape->one_sign ? DRAWN_POSITIVE : 0),
              .page_keys = shape->page_keys,
              .longest = shape->keys_max,
              .scale_stride = 1,
              .q_size = made->epsilon > 0 ? 8 : 1, /* few keys matter */
              .take = world_take};
  *desc = (banyan_attention_desc)BANYAN_ATTENTION_DESC_INIT;
  desc->batch = shape->batch, desc->heads = shape->heads, desc->kv_heads = shape->kv_heads;
  desc->head_dim = shape->head_dim, desc->value_dim = shape->value_dim, desc->keys_max = shape->keys_max;
  desc->rope.dim = made->rope_dim;
  desc->q_dtype = made->form == ATTEND_F32_QUERIES ? BANYAN_F32 : shape->dtype;
  all->queries.tokens = made->rows;
  drawn_rows(all);
}

/* Masks some keys, and makes them NaN, because no query sees them. */
static void mask_keys(const attend *of, drawn *shard) {
  shard->mask = world_take((size_t)(of->shape.batch * of->shape.keys_max));
  for (int32_t i = 0; i < of->shape.batch * of->shape.keys_max; i++) {
    const int32_t b = i / of->shape.keys_max, t = i % of->shape.keys_max;
    shard->mask[i] = random_range(0, 3) > 0;
    for (int32_t h = 0; h < of->shape.kv_heads && t < shard->lens[b] && !shard->mask[i]; h++)
      for (int which = 0; which < 2; which++)
        memset(drawn_row(&shard->parts[0], which, b, h, t), 0xff, drawn_row_bytes(shard, which));
  }
}

/* Draws the keys of a rank. */
static void fill_shard(const attend *of, drawn *shard, int32_t rank) {
  static const banyan_dtype dtypes[] = {
      [ATTEND_E4M3] = BANYAN_E4M3, [ATTEND_FLASHMLA] = BANYAN_E4M3, [ATTEND_E5M2] = BANYAN_E5M2,
      [ATTEND_I8] = BANYAN_I8,     [ATTEND_F32] = BANYAN_F32,       [ATTEND_F32_QUERIES] = 0};
  const banyan_dtype dtype = dtypes[of->form] ? dtypes[of->form] : of->shape.dtype;
  *shard = of->all;
  drawn_begin(shard);
  for (int32_t b = 0; b < of->shape.batch; b++)
    shard->lens[b] = of->shape.lengths    ? of->shape.lengths[b]
                     : random_range(0, 4) ? random_range(1, of->shape.keys_max)
                                          : 0;
  drawn_keys(shard, &dtype, (uint64_t)rank, random_bits());
  if (of->masks_keys) mask_keys(of, shard);
}

static void fill_rank(attend *made, int32_t r) {
  attend_rank *rank = &made->ranks[r];
  const problem_shape *shape = &made->shape;
  fill_shard(made, &rank->shard, r);
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

void attend_fill(attend *made) {
  if ((made->form == ATTEND_E4M3 || made->form == ATTEND_FLASHMLA) &&
      made->shape.latent) { /* within what devices support */
    made->shape.kv_heads = 1;
    made->shape.heads = made->shape.heads > 16 ? 16 : made->shape.heads;
    if (made->form == ATTEND_FLASHMLA) made->shape.dtype = BANYAN_BF16;
  }
  if (made->form == ATTEND_E4M3 &&
      (made->shape.head_dim == 96 || made->shape.head_dim == 192)) /* devices lack these sizes */
    made->shape.head_dim = made->shape.value_dim = 128;
  if (!made->causal) made->tree = false, made->block = made->window = 0;
  if (made->alone || made->gathers) made->has_tokens = made->has_mask = false;
  if (made->gathers) made->rope_dim = 0, made->several = false;
  if (!made->queries_most) made->queries_most = 4;
  made->rows = made->shape.batch * (made->several && made->shape.batch < 8 ? made->queries_most : 1);
  random_state = made->seed;
  fill_queries(made);
  made->loc = take_numbers(made->shape.batch + 1);
  made->start = take_numbers(made->shape.batch);
  made->masks = world_take((size_t)made->rows * sizeof *made->masks);
  for (int32_t r = 0; r < made->nranks; r++) fill_rank(made, r);
  int32_t first = 0;
  for (int32_t r = 0; r < made->nranks && made->gathers; r++) {
    attend_rank *rank = &made->ranks[r];
    world_random same = made->seed + 5;
    deal_heads(&same, made, rank->counts);
    const int32_t number = rank->counts[r], dim = made->shape.head_dim;
    for (int32_t t = 0; t < made->rows; t++)
      memcpy(rank->mine + t * number * dim, (uint16_t *)made->all.q.data + (t * made->shape.heads + first) * dim,
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

static void draw_shared(attend *made, int round) {
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
      rank->list[rank->indptr[b] + i] = rank->shard.tables[0][b * desc->kv.pages.table_stride + i];
    rank->indptr[b + 1] = rank->indptr[b] + pages;
    rank->last[b] = pages ? rank->lengths[b] - (pages - 1) * desc->kv.pages.keys : 0;
  }
}

static void draw(attend *made, int32_t r, int round) {
  world_random random = random_of(made, round, r);
  attend_rank *rank = &made->ranks[r];
  const int32_t tokens = *rank->tokens = tokens_of(made, round);
  for (int32_t t = 0; t < made->rows; t++) rank->mask[t] = !random_one_in(&random, 3);
  for (int32_t b = 0; b < made->shape.batch; b++) {
    const int32_t most = rank->shard.lens[b];
    int32_t before = 0; /* shards are contiguous, or blocks in turn */
    for (int32_t other = 0; other < r; other++) before += made->ranks[other].shard.lens[b];
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
    int32_t *page = &rank->shard.tables[0][b * rank->shard.desc.kv.pages.table_stride];
    if ((*page < 0) != (token == end)) *page = -1 - *page;
  }
}

bool attend_draw_all(world_rank *self, attend *made, int round) {
  if (!world_meet(self)) return false;
  if (self->rank == 0) draw_shared(made, round);
  if (!world_meet(self)) return false;
  draw(made, self->rank, round);
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
  desc->kv.pages.table = desc->kv.pages.table ? world_at(self, from->lists ? rank->list : rank->shard.tables[0]) : NULL;
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
  *desc = rank->shard.desc;
  desc->q = world_at(self, desc->q), desc->rope.q = world_at(self, desc->rope.q);
  desc->kv.k = world_at(self, desc->kv.k), desc->kv.v = world_at(self, desc->kv.v);
  desc->kv.scales.k = world_at(self, desc->kv.scales.k), desc->kv.scales.v = world_at(self, desc->kv.scales.v);
  if (from->keys_bound && !desc->kv.pages.table) desc->keys_max = from->keys_bound;
  desc->kv.seq_lens = world_at(self, rank->lengths);
  desc->soft_cap = from->cap;
  desc->sinks = world_at(self, from->sinks);
  desc->stream = self->stream;
  set_pages(from, rank, self, desc);
  *queries = (banyan_queries){.size = sizeof *queries,
                              .tokens = from->rows,
                              .query_start_loc = from->several ? world_at(self, from->loc) : NULL,
                              .query_start = from->causal ? world_at(self, from->start) : NULL,
                              .key_start = from->causal ? world_at(self, rank->key_start) : NULL,
                              .tree_mask = from->tree ? world_at(self, from->masks) : NULL,
                              .key_block = from->block,
                              .key_stride = from->block * from->nranks,
                              .window = from->window,
                              .key_mask = rank->shard.mask,
                              .key_mask_stride = from->masks_keys ? from->shape.keys_max : 0};
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

bool attend_ready(world_rank *self, attend *of, int round, attend_call *made) {
  if (!attend_draw_all(self, of, round)) return false;
  attend_call_of(of, self, made);
  return true;
}

banyan_status attend_init(world_rank *self, const attend *of, const attend_call *call, banyan_op **op) {
  if (of->alone) return banyan_attention_init(self->comm, &call->desc, &call->out, op);
  return banyan_attention_combine_init(self->comm, &call->desc, &call->combine, call->has_result ? &call->out : NULL,
                                       op);
}

bool attend_once(world_rank *self, const attend *of, const attend_call *call) {
  const banyan_partial *out = call->has_result ? &call->out : NULL;
  return world_ok(self, banyan_attention_combine(self->comm, &call->desc, &call->combine, out), attend_text(of));
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
  /* Values below 2^-14 have only an absolute precision on an f16 wire. */
  const double least = !of->alone && of->combine.wire == BANYAN_F16 ? 0x1p-24 * sqrt(of->shape.value_dim) : 1e-9;
  if (row->sum > 0 && top_pages_of(of) && error == INFINITY) return true; /* the row may have no key that was read */
  return attention_row_certified(row, of->shape.value_dim, values, lse, error, 2 * (bound_of(self, of) + 1e-3), least,
                                 top_pages_of(of) ? (double)INFINITY : log1p((double)of->epsilon));
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
