/* SPDX-License-Identifier: Apache-2.0
 * In the exact order, attention has the same bits for every number of ranks, ownership, batch, query chunk, page size,
 * number of threads and algorithm. */
#include "attention.h"
#include "f8.h"
#include "merge_math.h"
#include "op.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/sanitized.h"
#include "tests/support/world.h"

enum {
  BATCH_MAX = 3,
  TOKENS_MAX = 13,
  QUERIES_MAX = 4,
  HEADS_MAX = 8,
  BLOCK = 256,
  LENGTH_MAX = 5000,
  RANKS_MAX = 8,
  PARTS_MAX = 4,
  PERIOD = 4,
  SHARDINGS = 20
};

/* Sequences with all their keys. Query j of a sequence is at position length - count + j. */
typedef struct whole {
  int32_t batch, heads, kv_heads, dim, value_dim, window, lengths[BATCH_MAX], counts[BATCH_MAX];
  banyan_dtype q_dtype, kv_dtype;
  float soft_cap, sinks[HEADS_MAX], k_scale, v_scale;
  bool has_sinks, has_tree;
  uint64_t tree[BATCH_MAX * QUERIES_MAX];
  uint8_t mask[BATCH_MAX][LENGTH_MAX];
  bool has_mask, has_nan;                /* has_nan: some keys are NaN, and count as absent */
  char *q, *k[BATCH_MAX], *v[BATCH_MAX]; /* [tokens][heads][dim]; [kv_heads][length][dim] */
} whole;

/* The layout of one call: the owner of each block of keys, and the sequences and queries of the call. */
typedef struct sharding {
  int32_t nranks, kind, cuts[RANKS_MAX + 1], run; /* kind 0: ranges of blocks, 1: `run` blocks in turn, 2: a pattern */
  int32_t owners[PERIOD];                         /* kind 2: owners of the blocks of a period */
  int32_t first, batch, skip;                     /* sequences; number of queries skipped at the start of each */
  int32_t page_keys;
  int32_t parts, part_cuts[PARTS_MAX]; /* first keys of parts, in blocks and pages; 0: none */
  unsigned ahead;                      /* bit i: part i is read ahead, as for a mapped file */
  const char *algorithm;
  banyan_order order;
} sharding;

typedef struct rows {
  float values[TOKENS_MAX * HEADS_MAX * 512], lse[TOKENS_MAX * HEADS_MAX];
} rows;

typedef struct task {
  const whole *all;
  const sharding *how;
  rows *results[RANKS_MAX];
} task;

static size_t write_element(void *to, size_t index, float value, banyan_dtype dtype) {
  if (dtype == BANYAN_F32) ((float *)to)[index] = value;
  if (dtype == BANYAN_F16) ((uint16_t *)to)[index] = bny_f16_of_float(value);
  if (dtype == BANYAN_BF16) ((uint16_t *)to)[index] = bny_bf16_of_float(value);
  if (dtype == BANYAN_E4M3) ((uint8_t *)to)[index] = bny_e4m3_of_float(value);
  if (dtype == BANYAN_E5M2) ((uint8_t *)to)[index] = bny_e5m2_of_float(value);
  if (dtype == BANYAN_I8) ((int8_t *)to)[index] = (int8_t)(value * 20);
  return bny_dtype_bytes(dtype);
}

static char *random_array(world_random *random, size_t count, banyan_dtype dtype, double most) {
  char *to = malloc(count * 4 + 4);
  for (size_t i = 0; i < count; i++) write_element(to, i, (float)(most * (2 * random_unit(random) - 1)), dtype);
  return to;
}

static int32_t tokens_of(const whole *all, int32_t first, int32_t batch) {
  int32_t tokens = 0;
  for (int32_t b = first; b < first + batch; b++) tokens += all->counts[b];
  return tokens;
}

static void draw(whole *all, int i, world_random *random) {
  static const banyan_dtype dtypes[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3, BANYAN_E5M2, BANYAN_I8};
  static const int32_t dims[][2] = {{16, 16}, {64, 64}, {40, 24}, {128, 128}, {576, 512}};
  int shape = random_below(random, 12);
  shape = shape < 5 ? shape : shape % 3;
  *all = (whole){.batch = 1 + random_below(random, BATCH_MAX), .dim = dims[shape][0], .value_dim = dims[shape][1]};
  all->kv_heads = shape == 4 ? 1 : 1 + random_below(random, 2);
  all->heads = all->kv_heads * (1 + random_below(random, HEADS_MAX / all->kv_heads));
  all->q_dtype = dtypes[random_below(random, 3)];
  all->kv_dtype = dtypes[random_below(random, 6)];
  all->k_scale = 0.25f, all->v_scale = 0.5f;
  all->has_tree = random_one_in(random, 5);
  all->window = random_one_in(random, 3) ? 1 + random_below(random, 700) : 0;
  all->soft_cap = random_one_in(random, 4) ? 5 : 0;
  all->has_sinks = random_one_in(random, 3);
  all->has_mask = random_one_in(random, 4);
  for (int32_t h = 0; h < HEADS_MAX; h++) all->sinks[h] = (float)(6 * random_unit(random) - 3);
  for (int32_t b = 0; b < all->batch; b++) {
    int32_t most = i % 20 == 0 ? LENGTH_MAX : 1400;
    all->counts[b] = 1 + random_below(random, QUERIES_MAX);
    all->lengths[b] =
        random_one_in(random, 8) ? all->counts[b] : all->counts[b] + random_below(random, most - QUERIES_MAX);
    if (random_one_in(random, 16)) all->lengths[b] = 0;
    all->k[b] = random_array(random, (size_t)(all->kv_heads * all->lengths[b] * all->dim), all->kv_dtype, 2);
    all->v[b] = random_array(random, (size_t)(all->kv_heads * all->lengths[b] * all->value_dim), all->kv_dtype, 2);
    for (int32_t t = 0; t < all->lengths[b]; t++) all->mask[b][t] = !random_one_in(random, 3);
  }
  all->has_nan = all->kv_dtype != BANYAN_I8 && random_one_in(random, 3);
  for (int32_t b = 0; b < all->batch && all->has_nan; b++)
    for (int32_t t = 0; t < all->kv_heads * all->lengths[b]; t++)
      if (random_one_in(random, 40)) write_element(all->k[b], (size_t)(t * all->dim), NAN, all->kv_dtype);
  for (int32_t t = 0; t < BATCH_MAX * QUERIES_MAX; t++) all->tree[t] = (uint64_t)random_below(random, 16);
  all->q = random_array(random, (size_t)(tokens_of(all, 0, all->batch) * all->heads * all->dim), all->q_dtype, 3);
}

static void release(whole *all) {
  free(all->q);
  for (int32_t b = 0; b < all->batch; b++) free(all->k[b]), free(all->v[b]);
}

static int32_t owner_of(const sharding *how, int32_t block) {
  if (how->kind == 2) return how->owners[block % PERIOD];
  if (how->kind == 1) return block / how->run % how->nranks;
  int32_t rank = 0;
  while (rank + 1 < how->nranks && block >= how->cuts[rank + 1]) rank++;
  return rank;
}

/* The keys of one rank, gathered: [sequence][KV head][key], or in pages that lie in a scattered order. */
typedef struct shard {
  int32_t lens[BATCH_MAX], start[BATCH_MAX], query_start[BATCH_MAX], loc[BATCH_MAX + 1], *table, pages;
  uint8_t *mask;
  uint64_t tree[TOKENS_MAX];
  char *q, *k, *v;
  int32_t room; /* the largest number of keys of a sequence */
} shard;

static void put(char *to, const char *from, int64_t at, int64_t from_row, size_t row) {
  memcpy(to + (size_t)at * row, from + (size_t)from_row * row, row);
}

static shard gather(const whole *all, const sharding *how, int32_t rank) {
  shard s = {.room = LENGTH_MAX + 256};
  size_t element = bny_dtype_bytes(all->kv_dtype),
         q_row = (size_t)(all->heads * all->dim) * bny_dtype_bytes(all->q_dtype);
  size_t k_row = (size_t)all->dim * element, v_row = (size_t)all->value_dim * element;
  int32_t of_sequence = how->page_keys ? s.room / how->page_keys : 0, token = 0, source = 0;
  s.pages = of_sequence * how->batch;
  s.table = malloc((size_t)(s.pages + 1) * sizeof *s.table);
  for (int32_t p = 0; p < s.pages; p++) s.table[p] = (int32_t)(((int64_t)p * 7919 + 3) % s.pages);
  if (s.pages % 7919 == 0 && s.pages) abort();
  size_t keys = (size_t)(s.room * how->batch * all->kv_heads);
  s.k = malloc(keys * k_row), s.v = malloc(keys * v_row);
  s.mask = malloc((size_t)(s.room * how->batch));
  s.q = malloc(TOKENS_MAX * q_row);
  for (int32_t b = 0; b < how->first; b++) source += all->counts[b];
  for (int32_t b = 0; b < how->batch; b++) {
    int32_t of = how->first + b, count = all->counts[of] - how->skip > 1 ? all->counts[of] - how->skip : 1, kept = 0;
    int32_t skipped = all->counts[of] - count;
    s.loc[b] = token, s.loc[b + 1] = token + count;
    s.query_start[b] = all->lengths[of] > count ? all->lengths[of] - count : 0;
    for (int32_t j = 0; j < count; j++, token++) {
      put(s.q, all->q, token, source + skipped + j, q_row);
      /* Skipped drafts count as keys before the tree. */
      s.tree[token] = all->tree[source + skipped + j] | (uint64_t)1 << j;
    }
    source += all->counts[of];
    for (int32_t t = 0; t < all->lengths[of]; t++) {
      if (owner_of(how, t / BLOCK) != rank) continue;
      if (kept == 0) s.start[b] = t;
      for (int32_t h = 0; h < all->kv_heads; h++) {
        int64_t at = ((int64_t)b * all->kv_heads + h) * s.room + kept;
        if (how->page_keys)
          at = ((int64_t)s.table[b * of_sequence + kept / how->page_keys] * all->kv_heads + h) * how->page_keys +
               kept % how->page_keys;
        put(s.k, all->k[of], at, (int64_t)h * all->lengths[of] + t, k_row);
        put(s.v, all->v[of], at, (int64_t)h * all->lengths[of] + t, v_row);
      }
      s.mask[b * s.room + kept++] = all->mask[of][t];
    }
    s.lens[b] = kept;
    if (how->kind > 0) s.start[b] = how->kind == 1 ? rank * how->run * BLOCK : 0;
  }
  return s;
}

typedef struct part_list {
  banyan_kv_part parts[PARTS_MAX];
  int32_t first[PARTS_MAX][BATCH_MAX], lens[PARTS_MAX][BATCH_MAX];
} part_list;

/* Cuts the keys of the description into parts. */
static void cut(const sharding *how, const shard *s, banyan_attention_desc *desc, part_list *list) {
  int32_t unit = how->page_keys == 48 ? 768 : BLOCK, most = s->room / unit;
  int64_t element = (int64_t)bny_dtype_bytes(desc->kv.dtype);
  for (int32_t p = 0; p < how->parts; p++) {
    banyan_kv_part *part = &list->parts[p];
    int32_t begin = (how->part_cuts[p] < most ? how->part_cuts[p] : most) * unit, end = INT32_MAX;
    if (p + 1 < how->parts && how->part_cuts[p + 1] < most) end = how->part_cuts[p + 1] * unit;
    for (int32_t b = 0; b < how->batch; b++) {
      list->first[p][b] = s->lens[b] < begin ? s->lens[b] : begin;
      list->lens[p][b] = (s->lens[b] < end ? s->lens[b] : end) - list->first[p][b];
    }
    *part = desc->kv;
    part->seq_lens = list->lens[p], part->key_first = p % 2 ? list->first[p] : NULL;
    if (how->ahead >> p & 1) part->read_ahead_bytes = 1 + 100000 * p;
    if (how->page_keys) {
      part->pages.table += begin / how->page_keys;
      continue;
    }
    part->k = (const char *)desc->kv.k + begin * desc->kv.k_token_stride * element;
    part->v = (const char *)desc->kv.v + begin * desc->kv.v_token_stride * element;
  }
  desc->parts = list->parts, desc->part_count = how->parts;
  attention_clear_keys(desc);
}

static void attend(world_rank *self) {
  const task *t = self->argument;
  const whole *all = t->all;
  const sharding *how = t->how;
  shard s = gather(all, how, self->rank);
  rows *out = t->results[self->rank];
  const int32_t width = how->page_keys ? how->page_keys : s.room;
  banyan_queries queries = BANYAN_QUERIES_INIT;
  queries.tokens = s.loc[how->batch] + 1, queries.query_start_loc = s.loc, queries.query_start = s.query_start;
  queries.key_start = s.start, queries.window = all->window;
  if (all->has_tree) queries.tree_mask = s.tree;
  if (all->has_mask) queries.key_mask = s.mask, queries.key_mask_stride = s.room;
  if (how->kind == 1) queries.key_block = how->run * BLOCK, queries.key_stride = how->run * BLOCK * how->nranks;
  int32_t pattern[PERIOD];
  for (int32_t p = 0; p < PERIOD && how->kind == 2; p++)
    if (how->owners[p] == self->rank) pattern[queries.key_pattern_len++] = p;
  if (queries.key_pattern_len > 0)
    queries.key_pattern = pattern, queries.key_block = BLOCK, queries.key_stride = PERIOD * BLOCK;
  banyan_attention_desc desc = attention_desc_of(how->batch, all->heads, all->kv_heads, width, all->dim, all->value_dim,
                                                 all->q_dtype, all->kv_dtype, s.q, s.k, s.v, s.lens);
  desc.queries = &queries, desc.soft_cap = all->soft_cap, desc.empty = all->has_nan ? BANYAN_EMPTY_NAN : 0;
  if (all->has_sinks) desc.sinks = all->sinks;
  if (!bny_dtype_is_float(all->kv_dtype)) desc.kv.scales.k = &all->k_scale, desc.kv.scales.v = &all->v_scale;
  if (how->page_keys) {
    desc.kv.pages.table = s.table, desc.kv.pages.keys = how->page_keys, desc.kv.pages.count = s.pages;
    desc.kv.pages.table_stride = s.pages / how->batch;
  }
  part_list list;
  if (how->parts > 0) cut(how, &s, &desc, &list);
  banyan_combine_desc combine = BANYAN_COMBINE_DESC_INIT;
  combine.tokens = queries.tokens, combine.heads = all->heads, combine.value_dim = all->value_dim;
  combine.order = how->order, combine.algorithm = how->algorithm;
  banyan_partial result;
  banyan_partial_init(&result, out->values, BANYAN_F32, out->lse, BANYAN_F32, all->heads, all->value_dim);
  world_ok(self, banyan_attention_combine(self->comm, &desc, &combine, &result), "attention");
  /* The last token belongs to no sequence. */
  for (int32_t h = 0; h < all->heads; h++)
    world_check(self, out->lse[s.loc[how->batch] * all->heads + h] == -INFINITY, "padding has keys");
  free(s.table), free(s.k), free(s.v), free(s.mask), free(s.q);
}

static void run(const whole *all, const sharding *how, rows *results) {
  task t = {all, how, {0}};
  for (int32_t r = 0; r < how->nranks; r++) t.results[r] = &results[r];
  WORLD_RUN(attend, .nranks = how->nranks, .argument = &t, .timeout_ns = WORLD_GUARD_NS);
}

static sharding random_sharding(const whole *all, world_random *random) {
  static const char *const algorithms[] = {NULL, "oneshot", "ring", "tree", "recursive", "twoshot"};
  static const int32_t pages[] = {0, 0, 16, 48, 64, 256};
  sharding how = {.nranks = 1 + random_below(random, RANKS_MAX),
                  .kind = random_below(random, 3),
                  .run = 1 + random_below(random, 2),
                  .batch = all->batch,
                  .page_keys = pages[random_below(random, 6)],
                  .algorithm = algorithms[random_below(random, 6)],
                  .order = BANYAN_ORDER_EXACT};
  for (int32_t r = 1; r < how.nranks; r++) {
    int32_t cut = how.cuts[r - 1] + random_below(random, 2 + 5 / how.nranks);
    how.cuts[r] = cut;
  }
  for (int32_t p = 0; p < PERIOD; p++) how.owners[p] = random_below(random, how.nranks);
  how.parts = random_one_in(random, 2) ? 0 : 1 + random_below(random, PARTS_MAX);
  how.ahead = (unsigned)random_below(random, 1 << PARTS_MAX) & (unsigned)random_below(random, 1 << PARTS_MAX);
  for (int32_t p = 1; p < how.parts; p++) how.part_cuts[p] = how.part_cuts[p - 1] + random_below(random, 4);
  if (random_one_in(random, 3)) how.first = random_below(random, all->batch), how.batch = 1;
  if (!all->has_tree && random_one_in(random, 3)) how.skip = random_below(random, QUERIES_MAX);
  return how;
}

/* Compares the rows of a call with those of the whole: bit for bit if `exact`, else within the error of f32. */
static void compare(const whole *all, const sharding *how, const rows *want, const rows *got, bool exact) {
  int32_t width = all->heads * all->value_dim, token = 0, source = tokens_of(all, 0, how->first);
  for (int32_t b = how->first; b < how->first + how->batch; b++) {
    int32_t count = all->counts[b] - how->skip > 1 ? all->counts[b] - how->skip : 1;
    for (int32_t j = 0; j < count; j++, token++) {
      int32_t from = source + all->counts[b] - count + j;
      const float *a = want->values + from * width, *c = got->values + token * width;
      const float *a_lse = want->lse + from * all->heads, *c_lse = got->lse + token * all->heads;
      bool same = memcmp(a, c, (size_t)width * 4) == 0 && memcmp(a_lse, c_lse, (size_t)all->heads * 4) == 0;
      for (int32_t i = 0; i < width && !exact; i++) same = fabsf(a[i] - c[i]) < 2e-4f || i > width;
      for (int32_t i = 0; i < all->heads && !exact; i++)
        same = same && (a_lse[i] == c_lse[i] || fabsf(a_lse[i] - c_lse[i]) < 2e-4f);
      ck_assert_msg(
          same, "sequence %d, query %d of %d (length %d): %d ranks, kind %d, pages of %d, %d parts (%#x), %s: other %s",
          b, j, count, all->lengths[b], how->nranks, how->kind, how->page_keys, how->parts, how->ahead,
          how->algorithm ? how->algorithm : "any algorithm", exact ? "bits" : "numbers");
    }
    source += all->counts[b];
  }
}

TEST_RANDOM(bits_depend_on_keys_and_queries_alone, 100) {
  static rows results[RANKS_MAX], want, plain;
  static whole all;
  world_random random = random_seed() + 31 * (uint64_t)_i;
  const char *tables[8];
  int count = 0;
  for (int t = 0; bny_kernels_table[t]; t++)
    if (bny_kernels_table[t]->supported()) tables[count++] = bny_kernels_table[t]->name;
  setenv("BANYAN_KERNELS", tables[_i % count], 1);
  setenv("BANYAN_THREADS", "1", 1);
  draw(&all, _i, &random);
  sharding one = {.nranks = 1, .batch = all.batch, .order = BANYAN_ORDER_EXACT};
  run(&all, &one, results);
  want = results[0];
  one.order = BANYAN_ORDER_PLAN;
  run(&all, &one, results);
  compare(&all, &one, &want, &results[0], false);
  plain = results[0];
  one.parts = 1;
  run(&all, &one, results);
  compare(&all, &one, &plain, &results[0], true);
  for (int i = 0; i < SHARDINGS; i++) {
    static const char *const threads[] = {"1", "2", "3", "5"};
    sharding how = random_sharding(&all, &random);
    setenv("BANYAN_THREADS", threads[random_below(&random, 4)], 1);
    run(&all, &how, results);
    for (int32_t r = 0; r < how.nranks; r++) compare(&all, &how, &want, &results[r], true);
    if (how.parts == 0) continue;
    how.order = BANYAN_ORDER_PLAN;
    run(&all, &how, results);
    compare(&all, &how, &want, &results[0], false);
  }
  release(&all);
}

/* All ranks report the row of a NaN logit, and what to do. */
static void attend_to_nan(world_rank *self) {
  float q[3] = {1, 1, 1}, k[1] = {self->rank == 1 ? NAN : 1}, out[3], lse[3];
  const int32_t keys = 1;
  banyan_attention_desc desc = attention_desc_of(1, 3, 1, 1, 1, 1, BANYAN_F32, BANYAN_F32, q, k, k, &keys);
  banyan_combine_desc combine = BANYAN_COMBINE_DESC_INIT;
  combine.tokens = 1, combine.heads = 3, combine.value_dim = 1, combine.order = *(const banyan_order *)self->argument;
  banyan_partial result;
  banyan_partial_init(&result, out, BANYAN_F32, lse, BANYAN_F32, 3, 1);
  banyan_status status = banyan_attention_combine(self->comm, &desc, &combine, &result);
  world_check(self, status == BANYAN_ERR_DATA, "status %d", (int)status);
  const char *text = "rank 1: statistics of token 0, head 0 are invalid: NaN or +inf that `empty` does not declare";
  world_check(self, strstr(banyan_last_error(), text) != NULL, "%s", banyan_last_error());
}

TEST(nan_logits_are_named_on_all_ranks) {
  static const banyan_order orders[] = {BANYAN_ORDER_PLAN, BANYAN_ORDER_EXACT};
  for (int i = 0; i < 2; i++) WORLD_RUN(attend_to_nan, .nranks = 3, .argument = (void *)(uintptr_t)&orders[i]);
}

/* A shard that begins inside a block is rejected, and the text names the position. */
static void rejected(world_rank *self) {
  float k[512 * 4] = {0}, out[8], lse[2];
  int32_t lens[1] = {300}, start[1] = {self->rank * 300}, query_start[1] = {600};
  banyan_queries queries = BANYAN_QUERIES_INIT;
  queries.tokens = 1, queries.query_start = query_start, queries.key_start = start;
  banyan_attention_desc desc = attention_desc_of(1, 1, 1, 512, 4, 4, BANYAN_F32, BANYAN_F32, k, k, k, lens);
  desc.queries = &queries;
  banyan_combine_desc combine = BANYAN_COMBINE_DESC_INIT;
  combine.tokens = combine.heads = 1, combine.value_dim = 4, combine.order = BANYAN_ORDER_EXACT;
  banyan_partial result;
  banyan_partial_init(&result, out, BANYAN_F32, lse, BANYAN_F32, 1, 4);
  banyan_status status = banyan_attention_combine(self->comm, &desc, &combine, &result);
  world_check(self, status == (self->rank ? BANYAN_ERR_ARGUMENT : BANYAN_ERR_PEER), "status %d", (int)status);
  world_check(self, strstr(banyan_last_error(), "key_start[0] is 300") != NULL, "%s", banyan_last_error());
  start[0] = self->rank * 512, lens[0] = self->rank ? 88 : 512;
  world_ok(self, banyan_attention_combine(self->comm, &desc, &combine, &result), "whole blocks");
  static const char *const says[] = {"key_block is 128", "key_stride is 600", "key_start[0] is 268435456 and it has 88",
                                     "parts[1] begins at key 40 of sequence 0", "wire"};
  banyan_kv_part parts[2] = {desc.kv, desc.kv};
  int32_t part_lens[] = {40, lens[0] - 40};
  for (int i = 0; i < 5; i++) {
    queries.key_block = i < 2 ? 128 << i : 0, queries.key_stride = i < 2 ? 512 + 88 * i : 0;
    start[0] = i == 2 ? 1 << 28 : 512 * self->rank, lens[0] = i == 2 ? 88 : part_lens[0] + part_lens[1];
    parts[0].seq_lens = part_lens, parts[1].seq_lens = part_lens + 1;
    banyan_attention_desc given = desc;
    if (i == 3) attention_clear_keys(&given), given.parts = parts, given.part_count = 2;
    combine.wire = i == 4 ? BANYAN_F16 : 0;
    status = banyan_attention_combine(self->comm, &given, &combine, &result);
    world_check(self, status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), says[i]), "%s: status %d: %s",
                says[i], (int)status, banyan_last_error());
  }
}

TEST(shards_hold_whole_blocks) { WORLD_RUN(rejected, .nranks = 2); }

int main(void) { return suite_main(suite_of("exact attention", 2 * WORLD_GUARD_S)); }
