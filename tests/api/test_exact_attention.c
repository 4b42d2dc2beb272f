/* SPDX-License-Identifier: Apache-2.0
 * In the exact order, attention has the same bits for every number of ranks, ownership, batch, query chunk, page size,
 * number of threads and algorithm. So it has if it reads the best pages of all ranks. */
#include "tests/attention/drawn.h"
#include "prune/prune.h"
#include "tests/support/world.h"

enum {
  BATCH_MAX = 3,
  TOKENS_MAX = 16,
  HEADS_MAX = 8,
  BLOCK = 256,
  RANKS_MAX = 8,
  PARTS_MAX = 4,
  PERIOD = 4,
  SHARDINGS = 20
};

/* The layout of one call: the owner of each block of keys, and the sequences and queries of the call. */
typedef struct sharding {
  int32_t nranks, kind, cuts[RANKS_MAX + 1], run; /* kind 0: ranges of blocks, 1: `run` blocks in turn, 2: a pattern */
  int32_t owners[PERIOD];                         /* kind 2: owners of the blocks of a period */
  int32_t first, batch, skip;                     /* sequences; number of queries skipped at the start of each */
  int32_t page_keys;
  int32_t parts, part_cuts[PARTS_MAX]; /* first keys of parts, in blocks and pages; 0: none */
  unsigned ahead;                      /* bit i: part i is read ahead, as for a mapped file */
  int32_t top_pages, unit;             /* pages of `unit` keys that are read; 0: all */
  const char *algorithm;
  banyan_order order;
} sharding;

typedef struct rows {
  float values[TOKENS_MAX * HEADS_MAX * 512], lse[TOKENS_MAX * HEADS_MAX];
} rows;

typedef struct task {
  const drawn *all;
  const sharding *how;
  rows *results[RANKS_MAX];
} task;

static int32_t count_of(const drawn *all, int32_t b) { return all->loc[b + 1] - all->loc[b]; }

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
  char *q, *rope, *rows[4]; /* keys, values, and their scales */
  int64_t row_bytes[4];
  int32_t room; /* the largest number of keys of a sequence */
} shard;

static void put(char *to, const void *from, int64_t at, int64_t from_row, int64_t row) {
  if (row > 0) memcpy(to + at * row, (const char *)from + from_row * row, (size_t)row);
}

static shard gather(const drawn *all, const sharding *how, int32_t rank) {
  const banyan_attention_desc *d = &all->desc;
  const bool is_plain = d->kv.rows == BANYAN_KV_ROWS_PLAIN;
  const int64_t element = (int64_t)element_bytes(d->kv.dtype), q_element = (int64_t)element_bytes(d->q_dtype);
  const int64_t q_row = d->q_batch_stride * q_element, rope_row = d->rope.batch_stride * q_element;
  const int64_t scale = d->kv.scales.token_stride ? (int64_t)sizeof(float) : 0;
  shard s = {
      .room = all->longest + 3 * BLOCK + 32, /* parts begin at multiples of up to three blocks */
      .row_bytes = {is_plain ? d->head_dim * element : 656, is_plain ? d->value_dim * element : 0, scale, scale}};
  int32_t of_sequence = how->page_keys ? s.room / how->page_keys : 0, token = 0;
  s.pages = of_sequence * how->batch;
  s.table = malloc((size_t)(s.pages + 1) * sizeof *s.table);
  for (int32_t p = 0; p < s.pages; p++) s.table[p] = (int32_t)(((int64_t)p * 7919 + 3) % s.pages);
  if (s.pages % 7919 == 0 && s.pages) abort();
  for (int r = 0; r < 4; r++) s.rows[r] = malloc((size_t)(s.room * how->batch * d->kv_heads * s.row_bytes[r]) + 1);
  s.mask = malloc((size_t)(s.room * how->batch));
  s.q = malloc((size_t)(TOKENS_MAX * q_row)), s.rope = malloc((size_t)(TOKENS_MAX * rope_row) + 1);
  for (int32_t b = 0; b < how->batch; b++) {
    int32_t of = how->first + b, kept = 0, skipped = count_of(all, of) > how->skip ? how->skip : count_of(all, of) - 1;
    s.loc[b] = token, s.loc[b + 1] = token + count_of(all, of) - skipped;
    s.query_start[b] = all->start[of] + skipped;
    for (int32_t source = all->loc[of] + skipped; token < s.loc[b + 1]; token++, source++) {
      put(s.q, d->q, token, source, q_row), put(s.rope, d->rope.q, token, source, rope_row);
      s.tree[token] = all->tree[source];
    }
    for (int32_t t = 0; t < all->lens[of]; t++) {
      if (owner_of(how, t / BLOCK) != rank) continue;
      if (kept == 0) s.start[b] = t;
      for (int32_t h = 0; h < d->kv_heads; h++) {
        int64_t at = ((int64_t)b * d->kv_heads + h) * s.room + kept;
        if (how->page_keys)
          at = ((int64_t)s.table[b * of_sequence + kept / how->page_keys] * d->kv_heads + h) * how->page_keys +
               kept % how->page_keys;
        for (int r = 0; r < 4; r++) put(s.rows[r], drawn_row(&d->kv, r, of, h, t), at, 0, s.row_bytes[r]);
      }
      s.mask[b * s.room + kept++] = all->mask[of * all->longest + t];
    }
    s.lens[b] = kept;
    if (how->kind > 0) s.start[b] = how->kind == 1 ? rank * how->run * BLOCK : 0;
  }
  return s;
}

/* Describes the shard, in pages or not. */
static void describe(const drawn *all, const sharding *how, const shard *s, banyan_attention_desc *desc) {
  const int64_t width = how->page_keys ? how->page_keys : s->room;
  const int64_t element = (int64_t)element_bytes(all->desc.kv.dtype), heads = all->desc.kv_heads;
  const int64_t v_bytes = s->row_bytes[s->row_bytes[1] ? 1 : 0];
  banyan_kv_part *kv = &desc->kv;
  *desc = all->desc;
  desc->batch = how->batch, desc->q = s->q, desc->rope.q = desc->rope.dim ? s->rope : NULL;
  kv->seq_lens = s->lens, kv->k = s->rows[0], kv->v = s->row_bytes[1] ? s->rows[1] : kv->k;
  kv->k_token_stride = s->row_bytes[0] / element, kv->k_head_stride = width * kv->k_token_stride;
  kv->v_token_stride = v_bytes / element, kv->v_head_stride = width * kv->v_token_stride;
  kv->k_batch_stride = heads * kv->k_head_stride, kv->v_batch_stride = heads * kv->v_head_stride;
  if (s->row_bytes[2])
    kv->scales = (banyan_kv_scales){(float *)(void *)s->rows[2], (float *)(void *)s->rows[3], width, 1, heads * width};
  if (how->page_keys)
    kv->pages = (banyan_pages){
        .table = s->table, .table_stride = s->pages / how->batch, .count = s->pages, .keys = how->page_keys};
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
    if (part->scales.token_stride) part->scales.k += begin, part->scales.v += begin;
    part->k = (const char *)desc->kv.k + begin * desc->kv.k_token_stride * element;
    part->v = (const char *)desc->kv.v + begin * desc->kv.v_token_stride * element;
  }
  desc->parts = list->parts, desc->part_count = how->parts;
  attention_clear_keys(desc);
}

/* Returns the bounds of the shard's pages, which the caller frees. */
static float *prune(world_rank *self, const sharding *how, const shard *s, banyan_attention_desc *desc) {
  if (how->top_pages == 0) return NULL;
  banyan_prune *prune = &desc->prune;
  if (!how->page_keys) prune->keys = how->unit, prune->batch_pages = s->room / how->unit + 1;
  const int64_t pages = how->page_keys ? s->pages : prune->batch_pages * how->batch;
  prune->bounds = calloc((size_t)(pages * desc->kv_heads * bny_prune_floats(desc)), sizeof(float));
  world_ok(self, banyan_page_bounds_update(desc, NULL), "bounds");
  prune->top_pages = how->top_pages;
  return prune->bounds;
}

static void attend(world_rank *self) {
  const task *t = self->argument;
  const drawn *all = t->all;
  const sharding *how = t->how;
  const int32_t heads = all->desc.heads, dim = all->desc.value_dim;
  shard s = gather(all, how, self->rank);
  rows *out = t->results[self->rank];
  banyan_queries queries = all->queries;
  queries.tokens = s.loc[how->batch] + 1, queries.query_start_loc = s.loc, queries.query_start = s.query_start;
  queries.key_start = s.start;
  if (queries.tree_mask) queries.tree_mask = s.tree;
  if (queries.key_mask) queries.key_mask = s.mask, queries.key_mask_stride = s.room;
  if (how->kind == 1) queries.key_block = how->run * BLOCK, queries.key_stride = how->run * BLOCK * how->nranks;
  int32_t pattern[PERIOD];
  for (int32_t p = 0; p < PERIOD && how->kind == 2; p++)
    if (how->owners[p] == self->rank) pattern[queries.key_pattern_len++] = p;
  if (queries.key_pattern_len > 0)
    queries.key_pattern = pattern, queries.key_block = BLOCK, queries.key_stride = PERIOD * BLOCK;
  banyan_attention_desc desc;
  describe(all, how, &s, &desc);
  desc.queries = &queries;
  part_list list;
  if (how->parts > 0) cut(how, &s, &desc, &list);
  float *bounds = prune(self, how, &s, &desc);
  banyan_combine_desc combine = BANYAN_COMBINE_DESC_INIT;
  combine.tokens = queries.tokens, combine.heads = heads, combine.value_dim = dim;
  combine.order = how->order, combine.algorithm = how->algorithm;
  banyan_partial result;
  banyan_partial_init(&result, out->values, BANYAN_F32, out->lse, BANYAN_F32, heads, dim);
  world_ok(self, banyan_attention_combine(self->comm, &desc, &combine, &result), "attention");
  /* The last token belongs to no sequence. */
  for (int32_t h = 0; h < heads; h++)
    world_check(self, out->lse[s.loc[how->batch] * heads + h] == -INFINITY, "padding has keys");
  for (int r = 0; r < 4; r++) free(s.rows[r]);
  free(bounds), free(s.table), free(s.mask), free(s.q), free(s.rope);
}

static void run_all(const drawn *all, const sharding *how, rows *results) {
  task t = {all, how, {0}};
  for (int32_t r = 0; r < how->nranks; r++) t.results[r] = &results[r];
  WORLD_RUN(attend, .nranks = how->nranks, .argument = &t, .timeout_ns = WORLD_GUARD_NS);
}

static sharding random_sharding(const drawn *all, world_random *random) {
  static const char *const algorithms[] = {NULL, "oneshot", "ring", "tree", "recursive", "twoshot"};
  static const int32_t pages[] = {0, 0, 16, 48, 64, 256};
  sharding how = {.nranks = 1 + random_below(random, RANKS_MAX),
                  .kind = random_below(random, 3),
                  .run = 1 + random_below(random, 2),
                  .batch = all->desc.batch,
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
  if (random_one_in(random, 3)) how.first = random_below(random, all->desc.batch), how.batch = 1;
  if (!all->queries.tree_mask && random_one_in(random, 3)) how.skip = random_below(random, 4);
  return how;
}

/* Compares the rows of a call with those of the whole: bit for bit if `exact`, else within the error of f32. */
static void compare_rows(const drawn *all, const sharding *how, const rows *want, const rows *got, bool exact) {
  const int32_t heads = all->desc.heads, width = heads * all->desc.value_dim;
  int32_t token = 0;
  for (int32_t b = how->first; b < how->first + how->batch; b++) {
    const int32_t skipped = count_of(all, b) > how->skip ? how->skip : count_of(all, b) - 1;
    for (int32_t from = all->loc[b] + skipped; from < all->loc[b + 1]; from++, token++) {
      const float *a = want->values + from * width, *c = got->values + token * width;
      const float *a_lse = want->lse + from * heads, *c_lse = got->lse + token * heads;
      bool same = memcmp(a, c, (size_t)width * 4) == 0 && memcmp(a_lse, c_lse, (size_t)heads * 4) == 0;
      if (!exact) same = true;
      for (int32_t i = 0; i < width && !exact; i++) same = same && fabsf(a[i] - c[i]) < 2e-4f * (1 + fabsf(a[i]));
      for (int32_t i = 0; i < heads && !exact; i++)
        same = same && (a_lse[i] == c_lse[i] || fabsf(a_lse[i] - c_lse[i]) < 2e-4f);
      ck_assert_msg(same,
                    "sequence %d, token %d (length %d, features %#x): %d ranks, kind %d, pages of %d, %d parts (%#x), "
                    "%d pages of %d read, %s: other %s",
                    b, from, all->lens[b], (unsigned)all->features, how->nranks, how->kind, how->page_keys, how->parts,
                    how->ahead, how->top_pages, how->unit, how->algorithm ? how->algorithm : "any algorithm",
                    exact ? "bits" : "numbers");
    }
  }
}

TEST_RANDOM(bits_depend_on_keys_and_queries_alone, 100) {
  static rows results[RANKS_MAX], want, plain;
  const int32_t must = (_i % 12 == 5 ? DRAWN_LATENT : 0) | (_i % 20 == 0 ? DRAWN_LONG : 0);
  drawn all;
  world_random random = random_seed() + 31 * (uint64_t)_i;
  const char *tables[8];
  int count = 0;
  for (int t = 0; bny_kernels_table[t]; t++)
    if (bny_kernels_table[t]->supported()) tables[count++] = bny_kernels_table[t]->name;
  setenv("BANYAN_KERNELS", tables[_i % count], 1);
  setenv("BANYAN_THREADS", "1", 1);
  drawn_make(&all, random_next(&random), 0, must | DRAWN_FEW | DRAWN_BLOCKS | DRAWN_SEVERAL,
             (DRAWN_SHAPES & ~DRAWN_STARTS) | DRAWN_NANS);
  static const int32_t units[] = {16, 64, 256};
  sharding one = {.nranks = 1, .batch = all.desc.batch, .order = BANYAN_ORDER_EXACT, .unit = units[_i % 3]};
  if (_i % 4 == 1) one.top_pages = 1 + random_below(&random, 1024 / one.unit);
  run_all(&all, &one, results);
  want = results[0];
  one.order = BANYAN_ORDER_PLAN;
  run_all(&all, &one, results);
  compare_rows(&all, &one, &want, &results[0], false);
  plain = results[0];
  one.parts = one.top_pages == 0;
  run_all(&all, &one, results);
  compare_rows(&all, &one, &plain, &results[0], true);
  for (int i = 0; i < SHARDINGS; i++) {
    static const char *const threads[] = {"1", "2", "3", "5"};
    sharding how = random_sharding(&all, &random);
    if (one.top_pages > 0) { /* all queries of a sequence choose together, and pages are whole on a rank */
      how.top_pages = one.top_pages, how.unit = one.unit, how.parts = how.skip = 0;
      how.page_keys = how.page_keys ? how.unit : 0;
    }
    setenv("BANYAN_THREADS", threads[random_below(&random, 4)], 1);
    run_all(&all, &how, results);
    for (int32_t r = 0; r < how.nranks; r++) compare_rows(&all, &how, &want, &results[r], true);
    if (how.parts == 0) continue;
    how.order = BANYAN_ORDER_PLAN;
    run_all(&all, &how, results);
    compare_rows(&all, &how, &want, &results[0], false);
  }
  drawn_free(&all);
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
