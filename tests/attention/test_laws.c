/* SPDX-License-Identifier: Apache-2.0
 * Laws of local attention, for random problems and every kernel table: results are right, and the same bits alone, by
 * any threads, and wherever keys lie. Keys that no query sees are never read, and certificates hold. */
#include "tests/api/attention_local.h"

#ifndef LAWS_FEWER /* a program that repeats this one for other kernels has fewer cases */
#define LAWS_FEWER 1
#endif
#define OF(cases) ((cases) / LAWS_FEWER > 3 ? (cases) / LAWS_FEWER : 3)

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The rows of a run, as bytes: in f32, or in the exact order. */
typedef struct rows {
  char *bytes;
  size_t count;
} rows;

static rows run_rows(const bny_attention_kernels *table, const banyan_attention_desc *desc, bool is_exact,
                     bny_pool *pool) {
  const size_t row_bytes = bny_wire_row_bytes(is_exact ? BNY_WIRE_EXACT : BNY_WIRE_F32, read_desc(desc).value_dim);
  const size_t all = (size_t)tokens_of(desc) * (size_t)desc->heads;
  rows made = {.count = all * (row_bytes + 2 * sizeof(float))};
  made.bytes = calloc(made.count + 1, 1);
  float *m = (float *)(void *)(made.bytes + all * row_bytes);
  banyan_partial out;
  banyan_partial_init(&out, made.bytes, BANYAN_F32, m, BANYAN_F32, desc->heads, read_desc(desc).value_dim);
  out.stats_kind = BANYAN_STATS_MAX_SUM, out.sum = m + all;
  if (is_exact) out.values_dtype = BNY_EXACT_ROWS;
  ck_assert_msg(attend_by(table, desc, &out, pool) == BANYAN_OK, "%s: %s", table->name, banyan_last_error());
  return made;
}

/* Frees `got`. */
static void check_same(const rows *want, rows got, const char *what, const drawn *p) {
  ck_assert_msg(want->count == got.count && memcmp(want->bytes, got.bytes, got.count) == 0,
                "%s: other bits (features %#x, dtype %d)", what, (unsigned)p->features, (int)p->parts[0].dtype);
  free(got.bytes);
}

static void make(drawn *p, int seed, int layout, int32_t must, int32_t may) {
  drawn_make(p, random_seed() * 1000 + (uint64_t)seed, (uint64_t)layout, must, may);
  const bny_attention_desc own = read_desc(&p->desc);
  ck_assert_msg(bny_attention_check_fields(&own, true) == BANYAN_OK, "problem %d (features %#x): %s", seed,
                (unsigned)p->features, banyan_last_error());
}

/* Features that hide keys from queries. */
static const int32_t hiding[] = {DRAWN_SEVERAL, DRAWN_WINDOW, DRAWN_SEVERAL | DRAWN_TREE, DRAWN_MASK,
                                 DRAWN_SEVERAL | DRAWN_TREE | DRAWN_WINDOW};

/* ---- right ------------------------------------------------------------------------------------------------------- */

TEST_RANDOM(results_are_right, OF(240)) {
  drawn p;
  make(&p, _i, _i, (_i % 25 == 0 ? DRAWN_LATENT : 0) | (_i % 2 ? hiding[_i / 2 % 5] : 0),
       DRAWN_SHAPES | DRAWN_NANS | DRAWN_PAGES | DRAWN_PARTS | DRAWN_MIXED);
  compare_all(&p.desc, 0.1, 1e-6);
  drawn_free(&p);
}

/* Sums of products and of values leave the range of floats, and so does the scale in base 2. */
TEST_RANDOM(results_of_far_numbers_are_right, OF(120)) {
  drawn p;
  make(&p, _i, _i, DRAWN_FAR | DRAWN_FEW,
       DRAWN_QUERIES | DRAWN_CODES | DRAWN_ROPE | DRAWN_SINKS | DRAWN_CAP | DRAWN_PAGES);
  compare_all(&p.desc, 0.1, 1e-6);
  drawn_free(&p);
}

TEST_RANDOM(prompts_are_right, 12) {
  drawn p;
  make(&p, _i, _i,
       DRAWN_PROMPT | DRAWN_SEVERAL |
           (_i % 3   ? 0
            : _i % 2 ? DRAWN_WINDOW
                     : DRAWN_MASK),
       (DRAWN_SHAPES & ~DRAWN_TREE) | DRAWN_NANS | DRAWN_PAGES | DRAWN_PARTS | DRAWN_MIXED);
  compare_all(&p.desc, 0.1, 1e-6);
  drawn_free(&p);
}

/* A NaN or an infinity in a query, a key or a value has the effect that it has in plain C. Rows of other queries keep
 * their bits. */
TEST_RANDOM(special_numbers_are_as_in_plain_c, OF(120)) {
  static const double specials[] = {NAN, INFINITY, -INFINITY};
  drawn p;
  make(&p, _i, _i, DRAWN_FEW, DRAWN_WINDOW | DRAWN_MASK | DRAWN_SINKS | DRAWN_CAP | DRAWN_PAGES);
  const banyan_attention_desc *d = &p.desc;
  const int which = _i % 3; /* 0: in a query, 1: in a key, 2: in a value */
  const int32_t b = random_range(0, d->batch - 1), h = random_range(0, d->heads - 1);
  const banyan_dtype dtype = which ? d->kv.dtype : d->q_dtype;
  void *at = (char *)p.q.data + (size_t)(b * d->q_batch_stride + h * d->q_head_stride) * oracle_bytes(dtype);
  if (which && p.lens[b]) at = drawn_row(&d->kv, which - 1, b, h % d->kv_heads, random_range(0, p.lens[b] - 1));
  const int32_t column = random_range(0, (which == 2 ? d->value_dim : d->head_dim) - 1);
  const double special = specials[random_range(0, 2)];
  result before[16], plain;
  int count = 0;
  EACH_TABLE(table) before[count++] = run(table, d);
  if (oracle_bytes(dtype) > 1 && (!which || p.lens[b])) store(at, column, dtype, special); /* eight bits saturate */
  plain = run(&bny_attention_portable, d);
  count = 0;
  EACH_TABLE(table) {
    result r = run(table, d);
    for (int32_t i = 0; i < tokens_of(d) * d->heads * d->value_dim; i++) {
      const int32_t row = i / d->value_dim;
      const bool is_other = !which && row != b * d->heads + h;
      ck_assert_msg(is_alike((double)plain.lse[row], (double)r.lse[row]) &&
                        is_alike((double)plain.values[i], (double)r.values[i]) &&
                        (!is_other || memcmp(&before[count].values[i], &r.values[i], sizeof(float)) == 0),
                    "%s: %g in %d: row %d, column %d: %g, lse %g, and in plain C %g, %g (features %#x)", table->name,
                    special, which, row, i % d->value_dim, (double)r.values[i], (double)r.lse[row],
                    (double)plain.values[i], (double)plain.lse[row], (unsigned)p.features);
    }
    result_free(&r), result_free(&before[count++]);
  }
  result_free(&plain);
  drawn_free(&p);
}

/* ---- alone ------------------------------------------------------------------------------------------------------- */

static const char *moved(const void *base, int64_t elements, banyan_dtype dtype) {
  return (const char *)base + elements * (int64_t)oracle_bytes(dtype);
}

/* The keys of one sequence and KV head. */
static banyan_kv_part part_of(const banyan_kv_part *of, int32_t b, int32_t h) {
  banyan_kv_part kv = *of;
  const int64_t batch = of->pages.table ? 0 : b;
  kv.k = moved(kv.k, batch * kv.k_batch_stride + h * kv.k_head_stride, kv.dtype);
  kv.v =
      kv.rows == BANYAN_KV_ROWS_PLAIN ? moved(kv.v, batch * kv.v_batch_stride + h * kv.v_head_stride, kv.dtype) : kv.k;
  if (kv.scales.k) kv.scales.k += batch * kv.scales.batch_stride + h * kv.scales.head_stride;
  if (kv.scales.v) kv.scales.v += batch * kv.scales.batch_stride + h * kv.scales.head_stride;
  if (kv.pages.table) kv.pages.table += b * kv.pages.table_stride;
  kv.seq_lens += b;
  if (kv.key_first) kv.key_first += b;
  return kv;
}

/* Some query tokens and heads of one KV head and sequence give the same bits as in the whole call. */
static void check_alone(const drawn *p, const bny_attention_kernels *table, const result *all, int32_t b, int32_t token,
                        int32_t count, int32_t h, int32_t heads) {
  const banyan_attention_desc *d = &p->desc;
  const int32_t kv_head = h / (d->heads / d->kv_heads), start = p->start[b] + token - p->loc[b];
  const int32_t loc[] = {0, count};
  banyan_attention_desc one = *d;
  banyan_queries queries = p->queries;
  banyan_kv_part parts[DRAWN_PARTS_MAX];
  for (int i = 0; i < p->count; i++) parts[i] = part_of(&p->parts[i], b, kv_head);
  one.batch = one.kv_heads = 1, one.heads = heads;
  one.q = moved(d->q, token * d->q_batch_stride + h * d->q_head_stride, d->q_dtype);
  if (d->rope.dim) one.rope.q = moved(d->rope.q, token * d->rope.batch_stride + h * d->rope.head_stride, d->q_dtype);
  if (d->sinks) one.sinks += h;
  queries.tokens = count, queries.query_start_loc = loc, queries.query_start = &start;
  if (queries.key_start) queries.key_start += b;
  if (queries.key_mask) queries.key_mask += b * queries.key_mask_stride;
  if (d->queries) one.queries = &queries;
  if (d->parts) one.parts = parts, one.kv.seq_lens += b;
  if (!d->parts) one.kv = parts[0];
  result r = run(table, &one);
  const size_t bytes = r.values_bytes / (size_t)(count * heads);
  for (int32_t i = 0; i < count * heads; i++) {
    const int64_t row = (int64_t)(token + i / heads) * d->heads + h + i % heads;
    ck_assert_msg(memcmp((char *)r.values + (size_t)i * bytes, (char *)all->values + (size_t)row * bytes, bytes) == 0 &&
                      memcmp(&r.lse[i], &all->lse[row], sizeof(float)) == 0,
                  "%s: token %d, head %d has other bits alone (features %#x)", table->name, token + i / heads,
                  h + i % heads, (unsigned)p->features);
  }
  result_free(&r);
}

/* Sequences of many rows have kernels of their own. All rows of a KV head and sequence are then taken together. AMX is
 * for groups of several heads, so a head alone would have other kernels. */
TEST_RANDOM(rows_do_not_change_each_other, OF(60)) {
  drawn p;
  make(&p, _i, _i, _i % 2 ? DRAWN_SEVERAL : 0,
       (DRAWN_SHAPES & ~DRAWN_TREE) | DRAWN_NANS | DRAWN_HUGE | DRAWN_PAGES | DRAWN_PARTS | DRAWN_MIXED);
  EACH_TABLE(table) {
    result all = run(table, &p.desc);
    for (int32_t b = 0; b < p.desc.batch; b++) {
      const int32_t tokens = p.loc[b + 1] - p.loc[b], group = p.desc.heads / p.desc.kv_heads;
      const bool is_many = bny_attention_is_many(tokens, group);
      const bool is_for_groups = strcmp(table->name, "amx") == 0;
      const int32_t count = is_many ? tokens : 1, heads = is_many || is_for_groups ? group : 1;
      for (int32_t token = p.loc[b]; token < p.loc[b + 1]; token += count)
        for (int32_t h = 0; h < p.desc.heads; h += heads) check_alone(&p, table, &all, b, token, count, h, heads);
    }
    result_free(&all);
  }
  drawn_free(&p);
}

/* ---- threads and places ------------------------------------------------------------------------------------------ */

TEST_RANDOM(threads_do_not_change_bits, OF(30)) {
  static const int32_t counts[] = {2, 3, 5, 8};
  drawn p;
  make(&p, _i, _i, _i % 2 ? DRAWN_EDGES : DRAWN_EDGES | DRAWN_PAGES,
       DRAWN_CODES | DRAWN_PARTS | DRAWN_CAP | DRAWN_SINKS | DRAWN_NANS);
  const bny_attention_kernels *table = bny_attention_kernels_find(getenv("BANYAN_KERNELS"));
  const rows want = run_rows(table, &p.desc, false, NULL);
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    bny_pool *pool = NULL;
    ck_assert_int_eq(bny_pool_make(counts[i], NULL, &pool), BANYAN_OK);
    for (int again = 0; again < 3; again++) check_same(&want, run_rows(table, &p.desc, false, pool), "threads", &p);
    bny_pool_free(pool);
  }
  free(want.bytes);
  drawn_free(&p);
}

/* Far pages take up to 42 GiB of addresses, which a limit or the system's accounting may refuse. */
static bool maps_far_pages(void) {
  const size_t bytes = (size_t)42 << 30;
  void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return map != MAP_FAILED && munmap(map, bytes) == 0;
}

/* In the exact order, parts that begin at blocks change no bit either. In the other order one part is like none. Pages
 * may be more than 2^31 elements and 2^32 bytes away. */
TEST_RANDOM(places_of_keys_do_not_change_bits, OF(60)) {
  const bool is_exact = _i % 2;
  const int32_t must = (_i % 10 == 4 ? DRAWN_LATENT : 0) | (_i % 6 == 3 ? DRAWN_LONG : 0);
  const int32_t places = DRAWN_PAGES | (is_exact ? DRAWN_PARTS : 0);
  rows want[16];
  for (int layout = 0; layout < 3; layout++) {
    const int32_t far = layout == 2 && _i % 4 == 3 && maps_far_pages() ? DRAWN_PAGED | DRAWN_FAR_PAGES : 0;
    drawn p;
    make(&p, _i, layout, must | far | DRAWN_BLOCKS | DRAWN_FEW, DRAWN_SHAPES | DRAWN_NANS | (layout ? places : 0));
    banyan_attention_desc one = p.desc;
    one.parts = &p.desc.kv, one.part_count = 1, one.kv = (banyan_kv_part){.seq_lens = p.lens};
    int count = 0;
    EACH_TABLE(table) {
      const rows got = run_rows(table, &p.desc, is_exact, NULL);
      if (layout == 0)
        want[count] = got;
      else
        check_same(&want[count], got, table->name, &p);
      if (!p.desc.parts) check_same(&want[count], run_rows(table, &one, is_exact, NULL), "a part", &p);
      if (layout == 2) free(want[count].bytes);
      count++;
    }
    drawn_free(&p);
  }
}

/* ---- hidden keys ------------------------------------------------------------------------------------------------- */

/* Makes the rows of keys inaccessible that no query sees. */
static void hide(const drawn *p) {
  for (int32_t b = 0; b < p->desc.batch; b++)
    for (int i = 0, key = 0; i < p->count; i++)
      for (int32_t t = 0; t < p->lengths[i][b]; t++, key++) {
        const banyan_kv_part *kv = &p->parts[i];
        bool seen = false;
        for (int32_t token = p->loc[b]; token < p->loc[b + 1]; token++)
          seen = seen || attention_oracle_sees(&p->desc, b, token, key);
        for (int32_t h = 0; h < p->desc.kv_heads && !seen; h++)
          for (int r = 0; r < (kv->scales.token_stride ? 4 : kv->rows == BANYAN_KV_ROWS_PLAIN ? 2 : 1); r++)
            ck_assert_int_eq(mprotect(drawn_row(kv, r, b, h, t), DRAWN_LINE, PROT_NONE), 0);
      }
}

TEST_RANDOM(hidden_keys_are_never_read, OF(240)) {
  const bool is_exact = _i % 3 == 0, prunes = _i % 6 == 1;
  const int32_t places = DRAWN_PAGES | (prunes ? 0 : DRAWN_PARTS | DRAWN_MIXED);
  drawn p;
  const int32_t must =
      hiding[_i % 5] | (is_exact ? DRAWN_BLOCKS : 0) | (_i % 8 ? 0 : DRAWN_LONG) | (_i % 8 == 7 ? DRAWN_LATENT : 0);
  make(&p, _i, _i, DRAWN_APART | must, DRAWN_QUERIES | DRAWN_CODES | places);
  if (prunes) prune_pages(&p, &p.desc, random_range(1, 40));
  if (prunes) ck_assert_msg(banyan_page_bounds_update(&p.desc, NULL) == BANYAN_OK, "%s", banyan_last_error());
  if (prunes && random_range(0, 2)) p.desc.prune.epsilon = 0.01F;
  if (prunes && p.desc.prune.epsilon == 0 && random_range(0, 1)) p.desc.prune.top_pages = random_range(1, 6);
  rows want[16];
  int count = 0;
  EACH_TABLE(table) want[count++] = run_rows(table, &p.desc, is_exact, NULL);
  hide(&p);
  count = 0;
  EACH_TABLE(table) {
    check_same(&want[count], run_rows(table, &p.desc, is_exact, NULL), table->name, &p);
    free(want[count++].bytes);
  }
  free(p.desc.prune.bounds);
  drawn_free(&p);
}

int main(void) {
  printf("kernels:");
  EACH_TABLE(table) printf(" %s", table->name);
  printf("\n");
  fflush(stdout); /* before tests fork */
  return suite_main(suite_of("laws", 120));
}
