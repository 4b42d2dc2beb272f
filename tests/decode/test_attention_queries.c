/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of several queries: positions, windows, trees, key masks, caps, sinks, lists of pages, and queries in two
 * parts, against double precision. Over shards, the combine of all ranks must equal attention over the whole sequence.
 * */
#include "tests/api/attention_local.h"
#include "tests/support/world.h"

enum { BATCH_MAX = 3, TOKENS_MAX = 200, LENGTH_MAX = 300, RANKS_MAX = 9, DIM_MAX = 128, WEIGHT_MOST = 5 };

/* Whole sequences. q, k and v are laid out as in memory, in the types of the case. */
typedef struct sequences {
  int32_t batch, heads, kv_heads, head_dim, value_dim, rope_dim, tokens;
  banyan_dtype q_dtype, kv_dtype;
  int32_t loc[BATCH_MAX + 1], start[BATCH_MAX], length[BATCH_MAX];
  bool causal, tree;
  bool masked; /* keys at positions set in `hidden` are masked */
  uint8_t hidden[BATCH_MAX][LENGTH_MAX];
  uint64_t masks[TOKENS_MAX];
  int32_t window;
  float soft_cap, scale;
  float *sinks;
  char *q, *k, *v; /* q [tokens][heads][head_dim]; k and v [batch][kv_heads][length][dim] at fixed strides */
  banyan_ownership rule;
  int32_t weights[RANKS_MAX], owners[LENGTH_MAX]; /* weights of ranks; owners of positions */
  int32_t nan_position;                           /* position of a NaN value; -1: none */
} sequences;

static char *draw(int64_t elements, banyan_dtype dtype) {
  char *made = malloc((size_t)(elements + 1) * 4);
  fill(made, elements, dtype, 1);
  return made;
}

static int64_t kv_row(const sequences *s, int32_t b, int32_t kv_head, int32_t position) {
  return ((int64_t)b * s->kv_heads + kv_head) * LENGTH_MAX + position;
}

/* The tokens of each sequence are its last ones, or lie inside it. Some tokens come before the first sequence. */
static void sequences_make(sequences *s) {
  static const int32_t groups[] = {1, 2, 3, 4, 8, 11};
  memset(s, 0, sizeof *s);
  s->batch = random_range(1, BATCH_MAX);
  s->kv_heads = random_range(1, 2);
  s->heads = s->kv_heads * groups[random_range(0, 5)];
  s->head_dim = random_range(2, 70);
  s->value_dim = random_range(1, 70);
  bool is_whole = random_range(0, 1); /* groups of columns, for which kernels have specialised code */
  if (is_whole) {
    s->head_dim = random_range(1, 2) * DIM_MAX / 2;
    s->value_dim = random_range(0, 3) ? random_range(1, 2) * DIM_MAX / 2 : random_range(1, 4) * DIM_MAX / 4;
    s->heads = s->kv_heads * groups[random_range(2, 5)];
  }
  s->rope_dim = random_range(0, 2) ? 0 : random_range(1, s->head_dim - 1);
  s->q_dtype = (banyan_dtype)random_range(BANYAN_F32, BANYAN_BF16);
  s->kv_dtype = (banyan_dtype)random_range(BANYAN_F32, BANYAN_BF16);
  if (is_whole && random_range(0, 3)) s->kv_dtype = (banyan_dtype)random_range(BANYAN_BF16, BANYAN_I8);
  s->causal = random_range(0, 4) > 0;
  s->tree = s->causal && random_range(0, 2) == 0;
  if (s->causal && random_range(0, 1)) s->window = random_range(1, 120);
  if (random_range(0, is_whole ? 7 : 2) == 0) s->soft_cap = (float)random_range(1, 30);
  s->scale = random_range(0, 3) ? random_range(0, 1) ? 0 : 0.7F : (float)random_range(10, 1000);
  if (s->kv_dtype == BANYAN_I8) s->scale = 0.02F; /* its keys count sixteenths */
  s->loc[0] = random_range(0, 2) ? 0 : random_range(1, 3);
  for (int32_t b = 0; b < s->batch; b++) {
    int32_t most = s->tree ? 64 : 40, count = random_range(0, 3) ? random_range(0, 6) : random_range(0, most);
    s->loc[b + 1] = s->loc[b] + count;
    s->start[b] = random_range(0, LENGTH_MAX - count);
    s->length[b] = random_range(0, 3) ? s->start[b] + count : random_range(0, LENGTH_MAX);
  }
  s->tokens = s->loc[s->batch] + random_range(0, 3);
  s->masked = random_range(0, 2) == 0;
  for (int32_t b = 0; b < s->batch; b++) { /* padding on the left, and some holes */
    int32_t pad = random_range(0, 1) * random_range(0, LENGTH_MAX), holes = random_range(0, 1) * random_range(1, 90);
    for (int32_t p = 0; p < LENGTH_MAX; p++) s->hidden[b][p] = p < pad || (holes > 0 && random_range(0, holes) == 0);
  }
  for (int32_t t = 0; t < s->tokens; t++) s->masks[t] = (uint64_t)random_bits() << 32 | random_bits();
  if (random_range(0, 2) == 0) {
    s->sinks = malloc((size_t)s->heads * sizeof *s->sinks);
    for (int32_t h = 0; h < s->heads; h++) s->sinks[h] = random_range(0, 4) ? (float)(2 * random_normal()) : -INFINITY;
  }
  int64_t rows = (int64_t)s->batch * s->kv_heads * LENGTH_MAX;
  s->q = draw((int64_t)s->tokens * s->heads * s->head_dim, s->q_dtype);
  s->k = draw(rows * s->head_dim, s->kv_dtype);
  s->v = draw(rows * s->value_dim, s->kv_dtype);
  bool has_nan = element_bytes(s->kv_dtype) > 1 && random_range(0, 3) == 0;
  s->nan_position = has_nan ? random_range(0, LENGTH_MAX - 1) : -1;
  for (int32_t b = 0; s->nan_position >= 0 && b < s->batch; b++)
    store(s->v, kv_row(s, b, 0, s->nan_position) * s->value_dim, BANYAN_F32 == s->kv_dtype ? BANYAN_F32 : BANYAN_BF16,
          NAN);
  s->rule = (banyan_ownership){.size = sizeof s->rule,
                               .kind = random_range(0, 1) ? BANYAN_OWNERSHIP_RANGES : BANYAN_OWNERSHIP_BLOCKS,
                               .nranks = random_range(1, RANKS_MAX),
                               .block = random_range(1, 20)};
  if (s->rule.kind == BANYAN_OWNERSHIP_RANGES) s->rule.tokens = LENGTH_MAX;
  for (int32_t r = 0; r < s->rule.nranks; r++) s->weights[r] = random_range(0, WEIGHT_MOST);
  s->weights[random_range(0, s->rule.nranks - 1)] = random_range(1, WEIGHT_MOST);
  if (random_range(0, 3)) s->rule.weights = s->weights;
  for (int32_t p = 0; p < LENGTH_MAX; p++) {
    int64_t place;
    ck_assert_int_eq(banyan_ownership_of_token(&s->rule, p, &s->owners[p], &place), BANYAN_OK);
  }
}

static void sequences_free(sequences *s) {
  free(s->sinks);
  free(s->q);
  free(s->k);
  free(s->v);
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

/* The call of a rank that holds all keys and sees only those that `rank` owns; -1: all. */
typedef struct whole {
  banyan_attention_desc desc;
  banyan_queries queries;
  uint8_t mask[BATCH_MAX][LENGTH_MAX];
} whole;

static void whole_make(const sequences *s, int32_t rank, whole *made) {
  banyan_attention_desc *desc = &made->desc;
  *desc = attention_desc_of(s->batch, s->heads, s->kv_heads, LENGTH_MAX, s->head_dim, s->value_dim, s->q_dtype,
                            s->kv_dtype, s->q, s->k, s->v, s->length);
  desc->scale = s->scale, desc->soft_cap = s->soft_cap, desc->sinks = s->sinks, desc->queries = &made->queries;
  made->queries = (banyan_queries){.size = sizeof made->queries,
                                   .tokens = s->tokens,
                                   .query_start_loc = s->loc,
                                   .query_start = s->causal ? s->start : NULL,
                                   .tree_mask = s->tree ? s->masks : NULL,
                                   .window = s->window,
                                   .key_mask = made->mask[0],
                                   .key_mask_stride = LENGTH_MAX};
  for (int32_t b = 0; b < s->batch; b++)
    for (int32_t p = 0; p < LENGTH_MAX; p++)
      made->mask[b][p] = (rank < 0 || s->owners[p] == rank) && !(s->masked && s->hidden[b][p]);
}

/* Returns the fault in the rows of a result, or NULL. */
static const char *check_rows(const sequences *s, int32_t rank, const float *values, const float *lse) {
  static __thread char text[160];
  static __thread attention_row row;
  static __thread whole all;
  whole_make(s, rank, &all);
  for (int32_t i = 0; i < s->tokens * s->heads; i++, values += s->value_dim) {
    attention_oracle(&all.desc, i / s->heads, i % s->heads, &row);
    double expected = row.sum == 0 ? -INFINITY : row.max + log(row.sum), error = 0;
    for (int32_t j = 0; j < s->value_dim; j++) {
      const double o = row.sum == 0 ? 0 : row.values[j] / row.sum;
      if (isnan(o) != isnan(values[j])) {
        snprintf(text, sizeof text, "value %d of row %d is %g, expected %g", j, i, (double)values[j], o);
        return text;
      }
      if (!isnan(o)) error += ((double)values[j] - o) * ((double)values[j] - o);
    }
    /* The bound of banyan_attention.h, and a tighter one for random rows. */
    double e = 0x1p-24 * (640 + (s->head_dim + 8) * row.products + 8 * (double)s->soft_cap);
    double lse_most = e + 0x1p-23 * fabs(expected), most = 2 * e, got = (double)lse[i];
    if (row.products < 100) lse_most = fmin(lse_most, 4e-6 * (1 + fabs(expected))), most = fmin(most, 4e-6);
    bool lse_good = isinf(expected) ? got == expected : fabs(got - expected) <= lse_most;
    const double length = row.sum == 0 ? 0 : row.length / row.sum;
    /* Weights below 2^-125 count as 0. The length is unknown next to a NaN. */
    if (lse_good && (isnan(length) || sqrt(error) <= most * length + 0x1p-100)) continue;
    snprintf(text, sizeof text, "row %d: lse %g, expected %g; error %g of %g", i, got, expected, sqrt(error), length);
    return text;
  }
  return NULL;
}

/* ---- a shard in memory ------------------------------------------------------------------------------------------- */

typedef struct shard {
  banyan_attention_desc desc;
  banyan_queries queries;
  int32_t lens[BATCH_MAX], key_start[BATCH_MAX], indptr[BATCH_MAX + 1], last[BATCH_MAX];
  int32_t pages[BATCH_MAX * LENGTH_MAX], pattern[WEIGHT_MOST];
  uint8_t mask[BATCH_MAX][LENGTH_MAX];
  guarded k, v;
  char *nope, *rope; /* q in two parts */
} shard;

static void copy_row(char *to, int64_t to_row, const char *from, int64_t from_row, int32_t dim, banyan_dtype dtype) {
  size_t bytes = (size_t)dim * element_bytes(dtype);
  memcpy(to + (size_t)to_row * bytes, from + (size_t)from_row * bytes, bytes);
}

/* Stores the keys of `rank` in pages of a shuffled pool, or contiguously. */
static void place_keys(const sequences *s, int32_t rank, shard *made) {
  banyan_attention_desc *desc = &made->desc;
  bool paged = random_range(0, 2) > 0, list = random_range(0, 1), by_last = list && random_range(0, 1);
  int32_t page_keys = paged ? (random_range(0, 3) ? random_range(1, 70) : 1) : LENGTH_MAX;
  int32_t most = (LENGTH_MAX + page_keys - 1) / page_keys, pool = most * s->batch, next = 0;
  int32_t *order = malloc((size_t)pool * sizeof *order);
  for (int32_t i = 0; i < pool; i++) order[i] = i;
  for (int32_t i = pool - 1; paged && i > 0; i--) {
    int32_t other = random_range(0, i), held = order[i];
    order[i] = order[other];
    order[other] = held;
  }
  made->k = guarded_make((size_t)(pool * s->kv_heads * page_keys * s->head_dim) * element_bytes(s->kv_dtype));
  made->v = guarded_make((size_t)(pool * s->kv_heads * page_keys * s->value_dim) * element_bytes(s->kv_dtype));
  for (int32_t b = 0; b < s->batch; b++) {
    int64_t keys;
    ck_assert_int_eq(banyan_ownership_keys(&s->rule, rank, s->length[b], &keys), BANYAN_OK);
    made->lens[b] = (int32_t)keys;
    int32_t used = (made->lens[b] + page_keys - 1) / page_keys;
    if (!list || !paged) next = b * most;
    for (int32_t i = 0; i < used; i++) made->pages[next + i] = order[next + i];
    for (int32_t t = 0; t < made->lens[b]; t++) {
      int64_t token, page = made->pages[next + t / page_keys];
      ck_assert_int_eq(banyan_ownership_token(&s->rule, rank, t, &token), BANYAN_OK);
      made->mask[b][t] = s->hidden[b][token] ? 0 : (uint8_t)random_range(1, 255);
      for (int32_t h = 0; h < s->kv_heads; h++) {
        int64_t row = (page * s->kv_heads + h) * page_keys + t % page_keys, from = kv_row(s, b, h, (int32_t)token);
        copy_row(made->k.data, row, s->k, from, s->head_dim, s->kv_dtype);
        copy_row(made->v.data, row, s->v, from, s->value_dim, s->kv_dtype);
      }
    }
    made->last[b] = used > 0 ? made->lens[b] - (used - 1) * page_keys : random_range(-3, 3);
    next += used;
    made->indptr[b + 1] = next;
  }
  free(order);
  *desc = attention_desc_of(s->batch, s->heads, s->kv_heads, page_keys, s->head_dim, s->value_dim, s->q_dtype,
                            s->kv_dtype, s->q, made->k.data, made->v.data, by_last && paged ? NULL : made->lens);
  if (!paged) return;
  desc->pages.table = made->pages;
  desc->pages.keys = page_keys;
  desc->pages.count = pool;
  if (list)
    desc->pages.indptr = made->indptr;
  else
    desc->pages.table_stride = most;
  if (by_last) desc->pages.last_len = made->last;
}

static void place_queries(const sequences *s, shard *made) {
  banyan_attention_desc *desc = &made->desc;
  int32_t plain = s->head_dim - s->rope_dim;
  int64_t rows = (int64_t)s->tokens * s->heads;
  size_t element = element_bytes(s->q_dtype);
  made->nope = malloc((size_t)(rows * plain + 1) * element);
  made->rope = malloc((size_t)(rows * s->rope_dim + 1) * element);
  for (int64_t r = 0; r < rows; r++) {
    const char *row = s->q + (size_t)(r * s->head_dim) * element;
    memcpy(made->nope + (size_t)(r * plain) * element, row, (size_t)plain * element);
    memcpy(made->rope + (size_t)(r * s->rope_dim) * element, row + (size_t)plain * element,
           (size_t)s->rope_dim * element);
  }
  desc->q = made->nope;
  desc->q_head_stride = plain;
  desc->q_batch_stride = (int64_t)s->heads * plain;
  if (s->rope_dim > 0)
    desc->rope = (banyan_q_rope){made->rope, (int64_t)s->heads * s->rope_dim, s->rope_dim, s->rope_dim};
}

static void shard_make(const sequences *s, int32_t rank, shard *made) {
  memset(made, 0, sizeof *made);
  made->queries = (banyan_queries){.size = sizeof made->queries, .tokens = s->tokens, .query_start_loc = s->loc};
  if (s->masked) made->queries.key_mask = made->mask[0], made->queries.key_mask_stride = LENGTH_MAX;
  if (s->causal) {
    int32_t start;
    made->queries.query_start = s->start;
    made->queries.window = s->window;
    made->queries.key_pattern = made->pattern, made->queries.key_pattern_len = WEIGHT_MOST;
    ck_assert_int_eq(banyan_ownership_queries(&s->rule, rank, &made->queries, &start), BANYAN_OK);
    for (int32_t b = 0; b < s->batch; b++) made->key_start[b] = start;
    if (start > 0 || random_range(0, 1)) made->queries.key_start = made->key_start;
    if (s->tree) made->queries.tree_mask = s->masks;
  }
  place_keys(s, rank, made);
  made->desc.scale = s->scale, made->desc.soft_cap = s->soft_cap, made->desc.sinks = s->sinks;
  made->desc.queries = &made->queries;
  place_queries(s, made);
}

static void shard_free(shard *s) {
  munmap(s->k.map, s->k.map_bytes);
  munmap(s->v.map, s->v.map_bytes);
  free(s->nope);
  free(s->rope);
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

typedef struct rows {
  float *values, *lse;
  size_t values_bytes;
  banyan_partial out;
} rows;

static rows rows_make(const sequences *s) {
  const size_t count = (size_t)s->tokens * (size_t)s->heads;
  rows made = {.values_bytes = count * (size_t)s->value_dim * sizeof(float)};
  made.values = calloc(1, made.values_bytes + 1), made.lse = calloc(count + 1, sizeof(float));
  banyan_partial_init(&made.out, made.values, BANYAN_F32, made.lse, BANYAN_F32, s->heads, s->value_dim);
  return made;
}

static void rows_free(rows *r) { free(r->values), free(r->lse); }

TEST_RANDOM(every_row_is_that_of_double_precision, 120) {
  random_state = (uint64_t)_i + 77;
  sequences s;
  sequences_make(&s);
  int32_t rank = random_range(0, s.rule.nranks - 1);
  shard made;
  shard_make(&s, rank, &made);
  EACH_TABLE(table) {
    rows r = rows_make(&s);
    banyan_status status = bny_decode_attention_run(table, bny_kernels_find(NULL), &made.desc, &r.out, NULL, NULL);
    ck_assert_msg(status == BANYAN_OK, "%s", banyan_last_error());
    const char *wrong = check_rows(&s, rank, r.values, r.lse);
    if (wrong) ck_abort_msg("case %d, %s: %s", _i, table->name, wrong);
    rows_free(&r);
  }
  shard_free(&made);
  sequences_free(&s);
}

/* A query alone has the same bits as together with others, whatever keys these see. */
TEST_RANDOM(queries_do_not_change_each_other, 40) {
  random_state = (uint64_t)_i + 9000;
  sequences s;
  sequences_make(&s);
  shard made;
  shard_make(&s, 0, &made);
  rows all = rows_make(&s), one = rows_make(&s);
  ck_assert_msg(banyan_attention(&made.desc, &all.out) == BANYAN_OK, "%s", banyan_last_error());
  int32_t loc[BATCH_MAX + 1], start[BATCH_MAX];
  const size_t width = (size_t)s.heads * (size_t)s.value_dim;
  for (int32_t b = 0; b < s.batch && !s.tree; b++)
    for (int32_t t = s.loc[b]; t < s.loc[b + 1]; t++) {
      banyan_attention_desc desc = made.desc;
      banyan_queries queries = made.queries;
      for (int32_t i = 0; i <= s.batch; i++) loc[i] = i > b;
      for (int32_t i = 0; i < s.batch; i++) start[i] = s.start[i] + (i == b ? t - s.loc[b] : 0);
      queries.tokens = 1;
      queries.query_start_loc = loc;
      if (s.causal) queries.query_start = start;
      desc.queries = &queries;
      desc.q = (const char *)desc.q + (size_t)(t * desc.q_batch_stride) * element_bytes(s.q_dtype);
      if (desc.rope.q)
        desc.rope.q = (const char *)desc.rope.q + (size_t)(t * desc.rope.batch_stride) * element_bytes(s.q_dtype);
      ck_assert_msg(banyan_attention(&desc, &one.out) == BANYAN_OK, "%s", banyan_last_error());
      ck_assert_msg(memcmp(one.values, all.values + (size_t)t * width, width * sizeof(float)) == 0 &&
                        memcmp(one.lse, all.lse + (int64_t)t * s.heads, (size_t)s.heads * sizeof(float)) == 0,
                    "case %d: token %d alone has other bits", _i, t);
    }
  rows_free(&one);
  rows_free(&all);
  shard_free(&made);
  sequences_free(&s);
}

/* ---- all ranks --------------------------------------------------------------------------------------------------- */

static void over_shards(world_rank *self) {
  const sequences *s = self->argument;
  shard made;
  random_state = 31 * (uint64_t)self->rank + s->batch;
  shard_make(s, self->rank, &made);
  rows once = rows_make(s), again = rows_make(s);
  banyan_combine_desc combine = {
      .size = sizeof combine, .tokens = s->tokens, .heads = s->heads, .value_dim = s->value_dim};
  banyan_op *op = NULL;
  if (world_ok(self, banyan_attention_combine(self->comm, &made.desc, &combine, &once.out), "attention_combine")) {
    const char *wrong = check_rows(s, -1, once.values, once.lse);
    world_check(self, !wrong, "%s", wrong ? wrong : "");
  }
  /* A persistent operation copies the struct of queries, so the caller may discard it. */
  banyan_queries queries = made.queries;
  made.desc.queries = &queries;
  if (world_ok(self, banyan_attention_combine_init(self->comm, &made.desc, &combine, &again.out, &op), "init")) {
    memset(&queries, 0x55, sizeof queries);
    if (world_ok(self, banyan_start(op), "start") && world_ok(self, banyan_wait(op), "wait"))
      world_check(self, memcmp(again.values, once.values, once.values_bytes) == 0, "other bits");
  }
  banyan_op_free(op);
  rows_free(&again);
  rows_free(&once);
  shard_free(&made);
}

TEST_RANDOM(shards_make_the_whole, 24) {
  random_state = (uint64_t)_i + 500;
  sequences s;
  sequences_make(&s);
  s.nan_position = -1;
  free(s.v);
  s.v = draw((int64_t)s.batch * s.kv_heads * LENGTH_MAX * s.value_dim, s.kv_dtype);
  WORLD_RUN(over_shards, .nranks = s.rule.nranks, .argument = &s);
  sequences_free(&s);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

TEST(keys_are_counted_once) {
  enum { BATCH = 2, KV_HEADS = 3 };
  static const float k[1], v[1];
  static const int32_t seq_lens[BATCH] = {100, 7};
  banyan_attention_desc desc = BANYAN_ATTENTION_DESC_INIT;
  desc.batch = BATCH;
  desc.heads = desc.kv_heads = KV_HEADS;
  desc.seq_lens = seq_lens;
  desc.head_dim = 576;
  desc.value_dim = 512;
  desc.kv_dtype = BANYAN_BF16;
  desc.k = k, desc.v = v;
  ck_assert_uint_eq(bny_decode_key_bytes(&desc), 2 * (576 + 512));
  desc.v = k; /* MLA: values are the first elements of keys */
  ck_assert_uint_eq(bny_decode_key_bytes(&desc), 2 * 576);
  desc.v_token_stride = 1024; /* differs from the rows of keys */
  ck_assert_uint_eq(bny_decode_key_bytes(&desc), 2 * (576 + 512));
  desc.kv_rows = BANYAN_KV_ROWS_FLASHMLA_FP8;
  desc.kv_dtype = BANYAN_E4M3;
  ck_assert_uint_eq(bny_decode_key_bytes(&desc), 656);
  ck_assert_uint_eq(bny_decode_attention_bytes(&desc), 107 * KV_HEADS * 656);
}

int main(void) { return world_main(suite_of("attention_queries", WORLD_GUARD_S)); }
