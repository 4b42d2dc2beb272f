/* SPDX-License-Identifier: Apache-2.0
 * In the exact order, attention has the same bits for every number of ranks, ownership, batch, query chunk, page size,
 * number of threads and algorithm. So it has if it reads the best pages of all ranks. */
#include "tests/api/attention_local.h"
#include "tests/support/world.h"

enum { TOKENS_MAX = 16, HEADS_MAX = 8, BLOCK = 256, RANKS_MAX = 8, PERIOD = 4, SHARDINGS = 20 };

/* The layout of one call: the owner of each block of keys, and the sequences and queries of the call. */
typedef struct sharding {
  int32_t nranks, kind, cuts[RANKS_MAX + 1], run; /* kind 0: ranges of blocks, 1: `run` blocks in turn, 2: a pattern */
  int32_t owners[PERIOD];                         /* kind 2: owners of the blocks of a period */
  int32_t first, batch, skip;                     /* sequences; number of queries skipped at the start of each */
  int32_t places;                                 /* features of where keys lie */
  uint64_t layout;
  int32_t top_pages, unit; /* pages of `unit` keys that are read; 0: all */
  const char *algorithm;
  banyan_order order;
} sharding;

typedef struct rows {
  float values[TOKENS_MAX * HEADS_MAX * 512], lse[TOKENS_MAX * HEADS_MAX];
} rows;

typedef struct task {
  const sharding *how;
  drawn shards[RANKS_MAX];
  rows *results;
} task;

typedef struct owner {
  const sharding *how;
  int32_t rank;
} owner;

static bool owns(const void *context, int32_t key) {
  const owner *of = context;
  const sharding *how = of->how;
  const int32_t block = key / BLOCK;
  if (how->kind == 2) return how->owners[block % PERIOD] == of->rank;
  if (how->kind == 1) return block / how->run % how->nranks == of->rank;
  int32_t rank = 0;
  while (rank + 1 < how->nranks && block >= how->cuts[rank + 1]) rank++;
  return rank == of->rank;
}

static void attend(world_rank *self) {
  const task *t = self->argument;
  const sharding *how = t->how;
  const drawn *s = &t->shards[self->rank];
  const int32_t heads = s->desc.heads, dim = s->desc.value_dim, tokens = s->loc[how->batch];
  rows *out = &t->results[self->rank];
  int32_t key_start[DRAWN_BATCH], pattern[PERIOD];
  for (int32_t b = 0; b < how->batch; b++)
    key_start[b] = how->kind == 0 ? s->key_start[b] : how->kind == 1 ? self->rank * how->run * BLOCK : 0;
  banyan_queries queries = s->queries;
  queries.tokens = tokens + 1, queries.query_start_loc = s->loc, queries.query_start = s->start;
  queries.key_start = key_start;
  if (queries.tree_mask) queries.tree_mask = s->tree;
  if (queries.key_mask) queries.key_mask = s->mask;
  if (how->kind == 1) queries.key_block = how->run * BLOCK, queries.key_stride = how->run * BLOCK * how->nranks;
  for (int32_t p = 0; p < PERIOD && how->kind == 2; p++)
    if (how->owners[p] == self->rank) pattern[queries.key_pattern_len++] = p;
  if (queries.key_pattern_len > 0)
    queries.key_pattern = pattern, queries.key_block = BLOCK, queries.key_stride = PERIOD * BLOCK;
  banyan_attention_desc desc = s->desc;
  desc.queries = &queries;
  if (how->top_pages) {
    prune_pages(s, &desc, how->unit);
    world_ok(self, banyan_page_bounds_update(&desc, NULL), "bounds");
    desc.prune.top_pages = how->top_pages;
  }
  banyan_combine_desc combine = BANYAN_COMBINE_DESC_INIT;
  combine.tokens = queries.tokens, combine.heads = heads, combine.value_dim = dim;
  combine.order = how->order, combine.algorithm = how->algorithm;
  banyan_partial result;
  banyan_partial_init(&result, out->values, BANYAN_F32, out->lse, BANYAN_F32, heads, dim);
  world_ok(self, banyan_attention_combine(self->comm, &desc, &combine, &result), "attention");
  /* The last token belongs to no sequence. */
  for (int32_t h = 0; h < heads; h++) world_check(self, out->lse[tokens * heads + h] == -INFINITY, "padding has keys");
  free(desc.prune.bounds);
}

static void run_all(const drawn *all, const sharding *how, rows *results) {
  task *t = calloc(1, sizeof *t);
  t->how = how, t->results = results;
  for (int32_t r = 0; r < how->nranks; r++) {
    drawn *s = &t->shards[r];
    s->desc.batch = how->batch, s->features = how->places, s->page_keys = how->top_pages ? how->unit : 0;
    drawn_deal(all, s, how->layout + (uint64_t)r, how->first, how->skip, owns, &(owner){how, r});
  }
  WORLD_RUN(attend, .nranks = how->nranks, .argument = t, .timeout_ns = WORLD_GUARD_NS);
  for (int32_t r = 0; r < how->nranks; r++) drawn_free(&t->shards[r]);
  free(t);
}

static sharding random_sharding(const drawn *all, world_random *random) {
  static const char *const algorithms[] = {NULL, "oneshot", "ring", "tree", "recursive", "twoshot"};
  static const int32_t places[] = {0, DRAWN_PAGES, DRAWN_PARTS, DRAWN_PARTS | DRAWN_PAGES};
  sharding how = {.nranks = 1 + random_below(random, RANKS_MAX),
                  .kind = random_below(random, 3),
                  .run = 1 + random_below(random, 2),
                  .batch = all->desc.batch,
                  .places = DRAWN_BLOCKS | places[random_below(random, 4)],
                  .layout = random_next(random),
                  .algorithm = algorithms[random_below(random, 6)],
                  .order = BANYAN_ORDER_EXACT};
  for (int32_t r = 1; r < how.nranks; r++) how.cuts[r] = how.cuts[r - 1] + random_below(random, 2 + 5 / how.nranks);
  for (int32_t p = 0; p < PERIOD; p++) how.owners[p] = random_below(random, how.nranks);
  if (random_one_in(random, 3)) how.first = random_below(random, all->desc.batch), how.batch = 1;
  if (!all->queries.tree_mask && random_one_in(random, 3)) how.skip = random_below(random, 4);
  return how;
}

/* Compares the rows of a call with those of the whole: bit for bit if `exact`, else within the error of f32. */
static void compare_rows(const drawn *all, const sharding *how, const rows *want, const rows *got, bool exact) {
  const int32_t heads = all->desc.heads, width = heads * all->desc.value_dim;
  int32_t token = 0;
  for (int32_t b = how->first; b < how->first + how->batch; b++) {
    const int32_t queries = all->loc[b + 1] - all->loc[b], skipped = queries > how->skip ? how->skip : queries - 1;
    for (int32_t from = all->loc[b] + skipped; from < all->loc[b + 1]; from++, token++) {
      const float *a = want->values + from * width, *c = got->values + token * width;
      const float *a_lse = want->lse + from * heads, *c_lse = got->lse + token * heads;
      bool same = memcmp(a, c, (size_t)width * 4) == 0 && memcmp(a_lse, c_lse, (size_t)heads * 4) == 0;
      if (!exact) same = true;
      for (int32_t i = 0; i < width && !exact; i++) same = same && fabsf(a[i] - c[i]) < 2e-4f * (1 + fabsf(a[i]));
      for (int32_t i = 0; i < heads && !exact; i++)
        same = same && (a_lse[i] == c_lse[i] || fabsf(a_lse[i] - c_lse[i]) < 2e-4f);
      ck_assert_msg(same,
                    "sequence %d, token %d (length %d, features %#x): %d ranks, kind %d, places %#x, %d pages of %d "
                    "read, %s: other %s",
                    b, from, all->lens[b], (unsigned)all->features, how->nranks, how->kind, (unsigned)how->places,
                    how->top_pages, how->unit, how->algorithm ? how->algorithm : "any algorithm",
                    exact ? "bits" : "numbers");
    }
  }
}

/* Makes the keys of all pages copies of those of the first `kinds` pages, so that many bounds are equal, also over
 * ranks. Values stay, so rows tell which pages were read. */
static void repeat_pages(const drawn *all, int32_t unit, int32_t kinds) {
  const banyan_kv_part *kv = &all->desc.kv;
  const size_t bytes = (size_t)all->desc.head_dim * oracle_bytes(kv->dtype);
  for (int32_t b = 0; b < all->desc.batch && kv->rows == BANYAN_KV_ROWS_PLAIN; b++)
    for (int32_t t = kinds * unit; t < all->lens[b]; t++)
      for (int32_t h = 0; h < all->desc.kv_heads; h++) {
        const int32_t from = t % (kinds * unit);
        memcpy(drawn_row_of(all, 0, b, h, t), drawn_row_of(all, 0, b, h, from), bytes);
        if (kv->scales.token_stride)
          memcpy(drawn_row_of(all, 2, b, h, t), drawn_row_of(all, 2, b, h, from), sizeof(float));
      }
}

TEST_RANDOM(bits_depend_on_keys_and_queries_alone, 100) {
  static rows results[RANKS_MAX], want;
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
  if (_i % 8 == 1) repeat_pages(&all, one.unit, 1 + _i / 8 % 3); /* lower positions win ties */
  run_all(&all, &one, results);
  want = results[0];
  one.order = BANYAN_ORDER_PLAN;
  run_all(&all, &one, results);
  compare_rows(&all, &one, &want, &results[0], false);
  for (int i = 0; i < SHARDINGS; i++) {
    static const char *const threads[] = {"1", "2", "3", "5"};
    sharding how = random_sharding(&all, &random);
    if (one.top_pages > 0) { /* all queries of a sequence choose together, and pages are whole on a rank */
      how.top_pages = one.top_pages, how.unit = one.unit, how.skip = 0;
      how.places &= ~DRAWN_PARTS;
    }
    setenv("BANYAN_THREADS", threads[random_below(&random, 4)], 1);
    run_all(&all, &how, results);
    for (int32_t r = 0; r < how.nranks; r++) compare_rows(&all, &how, &want, &results[r], true);
    if (!(how.places & DRAWN_PARTS)) continue;
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
  world_gets(self, status, BANYAN_ERR_DATA,
             "rank 1: statistics of token 0, head 0 are invalid: NaN or +inf that `empty` does not declare");
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
  world_gets(self, status, self->rank ? BANYAN_ERR_ARGUMENT : BANYAN_ERR_PEER, "key_start[0] is 300");
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
    world_gets(self, status, BANYAN_ERR_ARGUMENT, says[i]);
  }
}

TEST(shards_hold_whole_blocks) { WORLD_RUN(rejected, .nranks = 2); }

int main(void) { return suite_main(suite_of("exact attention", 2 * WORLD_GUARD_S)); }
