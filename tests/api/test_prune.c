/* SPDX-License-Identifier: Apache-2.0
 * Pruning with a certificate on one rank: random and adversarial keys against all keys in double precision, for all
 * types, with windows, trees, masks, sinks, caps, scales and pages. test_attend.c tests several ranks. */
#include "base/pool.h"
#include "tests/api/attention_local.h"
#include "tests/support/sanitized.h"

enum { CASES = 1000, KEYS = 96, DIM = 40, HEADS = 6, KV = 2, TOKENS = 3, BATCH = 2 };
enum { FLOATS = 2 + 2 + 2 * ((DIM + 7) / 8) };

typedef struct world {
  banyan_attention_desc desc;
  banyan_queries queries;
  int32_t lens[BATCH], start[BATCH], loc[BATCH + 1], key_start[BATCH], first[BATCH], table[BATCH * KEYS], page_keys;
  uint64_t tree[BATCH * TOKENS];
  uint8_t mask[BATCH * KEYS];
  float q[BATCH * TOKENS * HEADS * DIM], rope[BATCH * TOKENS * HEADS * 8], sinks[HEADS], scales[2 * BATCH * KEYS * KV];
  float k[BATCH * KEYS * KV * DIM], v[BATCH * KEYS * KV * DIM];                /* fits any type */
  float bounds[BATCH * KEYS * KV * FLOATS], again[BATCH * KEYS * KV * FLOATS]; /* for pages of one key */
  float error[BATCH * TOKENS * HEADS], read[BATCH * TOKENS * HEADS];
  uint64_t page_reads[BATCH * KEYS];
  float out[BATCH * TOKENS * HEADS * DIM], lse[BATCH * TOKENS * HEADS];
} world;

static int32_t tokens_of(const world *w) { return w->desc.queries ? w->queries.tokens : w->desc.batch; }

/* Returns the row of key t of a sequence, which is also the row of its scale. */
static int64_t row_of(const world *w, int32_t b, int32_t h, int32_t t) {
  if (w->desc.kv.pages.table)
    return ((int64_t)w->table[b * w->desc.kv.pages.table_stride + t / w->page_keys] * w->desc.kv_heads + h) *
               w->page_keys +
           t % w->page_keys;
  return ((int64_t)b * w->desc.kv_heads + h) * KEYS + t;
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

/* Keys come in groups of about the page size: near a query, far from it, of unit size, or all equal. Values of far keys
 * may be much larger than others. */
static void draw_keys(world *w, double spread, double height) {
  banyan_attention_desc *d = &w->desc;
  int32_t group = random_range(1, 12);
  double side = 1, size = spread;
  for (int32_t b = 0; b < d->batch; b++)
    for (int32_t h = 0; h < d->kv_heads; h++)
      for (int32_t t = 0; t < w->lens[b]; t++) {
        if (t % group == 0)
          side = random_range(0, 3) ? -height * random_normal() : height, size = random_range(0, 2) ? spread : 0;
        for (int32_t i = 0; i < d->head_dim; i++)
          store((void *)(uintptr_t)d->kv.k, row_of(w, b, h, t) * d->head_dim + i, d->kv.dtype,
                side * (double)w->q[(h * (d->heads / d->kv_heads)) * DIM + i] + size * random_normal());
        double value = side < 0 && random_range(0, 1) ? 30 : 1;
        for (int32_t i = 0; i < d->value_dim; i++)
          store((void *)(uintptr_t)d->kv.v, row_of(w, b, h, t) * d->value_dim + i, d->kv.dtype,
                value * (i % 2 ? random_normal() : 1));
      }
}

static void draw_queries(world *w) {
  banyan_attention_desc *d = &w->desc;
  w->queries = (banyan_queries)BANYAN_QUERIES_INIT;
  w->loc[0] = 0;
  for (int32_t b = 0; b < d->batch; b++) {
    w->loc[b + 1] = w->loc[b] + random_range(1, TOKENS);
    w->key_start[b] = random_range(0, 20);
    w->start[b] = w->key_start[b] + random_range(0, w->lens[b]);
  }
  for (int32_t t = 0; t < BATCH * TOKENS; t++) w->tree[t] = random_bits() >> random_range(58, 63);
  for (int32_t t = 0; t < BATCH * KEYS; t++) w->mask[t] = random_range(0, 3) != 0;
  w->queries.tokens = w->loc[d->batch] + random_range(0, TOKENS * BATCH - w->loc[d->batch]);
  w->queries.query_start_loc = w->loc, w->queries.query_start = w->start, w->queries.key_start = w->key_start;
  if (random_range(0, 2) == 0) w->queries.tree_mask = w->tree;
  if (random_range(0, 2) == 0) w->queries.window = random_range(1, 40);
  if (random_range(0, 3) == 0) w->queries.key_mask = w->mask, w->queries.key_mask_stride = KEYS;
  if (random_range(0, 1)) d->queries = &w->queries;
}

static void draw(world *w) {
  static const banyan_dtype dtypes[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3, BANYAN_E5M2, BANYAN_I8};
  banyan_attention_desc *d = &w->desc;
  *d = (banyan_attention_desc)BANYAN_ATTENTION_DESC_INIT;
  d->batch = random_range(1, BATCH), d->kv_heads = random_range(1, KV);
  d->heads = d->kv_heads * random_range(1, HEADS / d->kv_heads);
  d->head_dim = random_range(9, DIM), d->value_dim = random_range(1, DIM);
  d->q_dtype = BANYAN_F32, d->kv.dtype = dtypes[random_range(0, 5)];
  d->scale = random_range(0, 5) ? 0 : (float)random_normal() * (random_range(0, 3) ? 1 : 300);
  d->soft_cap = random_range(0, 4) ? 0 : 20;
  d->q = w->q, d->q_batch_stride = HEADS * DIM, d->q_head_stride = DIM;
  for (int32_t i = 0; i < BATCH * TOKENS * HEADS * DIM; i++) w->q[i] = (float)random_normal();
  if (random_range(0, 3) == 0) {
    d->rope = (banyan_q_rope){w->rope, HEADS * 8, 8, 8};
    for (int32_t row = 0; row < BATCH * TOKENS * HEADS; row++)
      memcpy(w->rope + row * 8, w->q + row * DIM + d->head_dim - 8, 8 * sizeof(float));
  }
  for (int32_t h = 0; h < HEADS; h++) w->sinks[h] = (float)(10 * random_normal());
  if (random_range(0, 4) == 0) d->sinks = w->sinks;
  w->page_keys = random_range(1, 12);
  int32_t pages = KEYS / w->page_keys;
  for (int32_t b = 0; b < d->batch; b++) w->lens[b] = random_range(0, 9) ? random_range(1, pages * w->page_keys) : 0;
  d->kv.k = w->k, d->kv.v = w->v, d->kv.seq_lens = w->lens;
  bool paged = random_range(0, 1);
  int64_t keys = paged ? w->page_keys : KEYS;
  d->kv.k_token_stride = d->head_dim, d->kv.k_head_stride = keys * d->head_dim,
  d->kv.k_batch_stride = d->kv.k_head_stride * d->kv_heads;
  d->kv.v_token_stride = d->value_dim, d->kv.v_head_stride = keys * d->value_dim,
  d->kv.v_batch_stride = d->kv.v_head_stride * d->kv_heads;
  for (int32_t i = 0; i < BATCH * pages; i++) w->table[i] = (i * 5 + 2) % (BATCH * pages);
  if ((BATCH * pages) % 5 == 0)
    for (int32_t i = 0; i < BATCH * pages; i++) w->table[i] = BATCH * pages - 1 - i;
  d->prune = (banyan_prune){.bounds = w->bounds, .error = w->error, .read = w->read, .page_reads = w->page_reads};
  memset(w->page_reads, 0, sizeof w->page_reads);
  if (paged)
    d->kv.pages = (banyan_pages){.table = w->table, .table_stride = pages, .keys = w->page_keys};
  else
    d->prune.keys = w->page_keys, d->prune.batch_pages = pages;
  if (element_bytes(d->kv.dtype) == 1) {
    for (int32_t i = 0; i < 2 * BATCH * KEYS * KV; i++)
      w->scales[i] = (float)exp2(0.5 * random_normal() - (d->kv.dtype == BANYAN_I8 ? 4 : 0));
    d->kv.scales = (banyan_kv_scales){.k = w->scales, .v = w->scales + BATCH * KEYS * KV, .head_stride = 1};
    if (random_range(0, 1))
      d->kv.scales.token_stride = 1, d->kv.scales.head_stride = keys, d->kv.scales.batch_stride = keys * d->kv_heads;
  }
  draw_queries(w);
  draw_keys(w, exp2(3 * random_normal() - 2), exp2(random_normal() - 1));
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Checks a row against all keys. With epsilon 0 no key may be skipped. */
static void check_row(const world *w, int32_t token, int32_t head, const char *text) {
  const banyan_attention_desc *d = &w->desc;
  static attention_row exact;
  const int32_t row = token * d->heads + head;
  const float got = w->lse[row], error = w->error[row];
  attention_oracle(d, token, head, &exact);
  if (exact.sum == 0) {
    ck_assert_msg(got == -INFINITY && error == 0, "%s: an empty row has lse %g, error %g", text, (double)got,
                  (double)error);
    return;
  }
  double off = 0, lse = exact.max + log(exact.sum), missing = log1p((double)d->prune.epsilon);
  double own = 0x1p-24 * (640 + (d->head_dim + 8) * exact.products + 8 * (double)d->soft_cap);
  for (int32_t i = 0; i < d->value_dim; i++)
    off += pow((double)w->out[row * d->value_dim + i] - exact.values[i] / exact.sum, 2);
  ck_assert_msg(sqrt(off) <= (double)error + 2.1 * own * exact.length / exact.sum + 1e-12,
                "%s: row %d is off by %g, certified %g", text, row, sqrt(off), (double)error);
  own += 0x1p-22 * fabs(lse);
  if (d->prune.top_pages) missing = INFINITY;
  ck_assert_msg((double)got <= lse + own && (double)got >= lse - missing - own, "%s: lse %g of %g", text, (double)got,
                lse);
  ck_assert_msg(w->read[row] >= 0 && w->read[row] <= 1, "%s: share %g", text, (double)w->read[row]);
}

static void attend(world *w, const bny_attention_kernels *kernels, bny_pool *pool) {
  banyan_partial out;
  banyan_partial_init(&out, w->out, BANYAN_F32, w->lse, BANYAN_F32, w->desc.heads, w->desc.value_dim);
  ck_assert_msg(bny_attention_run(kernels, bny_kernels_find(NULL), &w->desc, &out, NULL, pool) == BANYAN_OK, "%s",
                banyan_last_error());
}

/* Each KV head reads the share of its pages that its rows report, and each page read is counted. */
static void check_page_reads(const world *w, const char *text) {
  const banyan_attention_desc *d = &w->desc;
  int32_t group = d->heads / d->kv_heads;
  double wanted = 0, counted = 0;
  for (int32_t b = 0; b < d->batch; b++) {
    int32_t token = d->queries ? w->loc[b] : b, rows = group * (d->queries ? w->loc[b + 1] - w->loc[b] : 1);
    int32_t pages = (w->lens[b] + w->page_keys - 1) / w->page_keys;
    for (int32_t h = 0; h < d->kv_heads; h++) {
      float share = w->read[token * d->heads + h * group];
      wanted += pages * (double)share;
      for (int32_t row = 0; row < rows; row++)
        ck_assert_msg(w->read[(token + row / group) * d->heads + h * group + row % group] == share,
                      "%s: rows of a KV head read other shares", text);
    }
  }
  for (int32_t i = 0; i < BATCH * KEYS; i++) counted += (double)w->page_reads[i];
  ck_assert_msg(fabs(wanted - counted) < 0.01, "%s: %g pages read, %g counted", text, wanted, counted);
}

/* Bounds after appends of any sizes equal the bounds of all keys. */
static void check_bounds(world *w) {
  banyan_attention_desc d = w->desc;
  int32_t lens[BATCH] = {0};
  size_t bytes = sizeof w->bounds;
  memset(w->bounds, 0x7b, bytes), memset(w->again, 0x7b, bytes);
  ck_assert_msg(banyan_page_bounds_update(&w->desc, NULL) == BANYAN_OK, "%s", banyan_last_error());
  d.prune.bounds = w->again, d.kv.seq_lens = lens;
  banyan_attention_desc empty = d;
  empty.kv.k = empty.kv.v = NULL;
  ck_assert_msg(banyan_page_bounds_update(&empty, NULL) == BANYAN_OK, "%s", banyan_last_error());
  for (bool more = true; more;) {
    more = false;
    for (int32_t b = 0; b < d.batch; b++) {
      w->first[b] = lens[b];
      lens[b] += random_range(0, w->lens[b] - lens[b]);
      more = more || lens[b] < w->lens[b];
    }
    ck_assert_int_eq(banyan_page_bounds_update(&d, w->first), BANYAN_OK);
  }
  ck_assert_int_eq(memcmp(w->bounds, w->again, bytes), 0);
}

TEST_RANDOM(certificates_hold, 100) {
  static const float epsilons[] = {0, 1e-4f, 1e-3f, 1e-2f, 0.1f, 0.5f, 1};
  static world w;
  static float other[BATCH * TOKENS * HEADS * DIM], other_lse[BATCH * TOKENS * HEADS];
  const bny_attention_kernels *tables[16];
  int count = 0, skipped = 0, skipped_zero = 0;
  bny_pool *pool = NULL;
  ck_assert_int_eq(bny_pool_make(2, NULL, &pool), BANYAN_OK);
  for (int t = 0; bny_attention_table[t]; t++)
    if (bny_attention_table[t]->supported()) tables[count++] = bny_attention_table[t];
  for (int c = 0; c < CASES; c++) {
    random_state = (uint64_t)_i * CASES + (uint64_t)c + 77;
    const bny_attention_kernels *table = tables[random_range(0, count - 1)];
    draw(&w);
    check_bounds(&w);
    w.desc.prune.epsilon = epsilons[random_range(0, 6)];
    if (random_range(0, 5) == 0) w.desc.prune.epsilon = 0, w.desc.prune.top_pages = random_range(1, 5);
    attend(&w, table, c % 4 ? NULL : pool);
    char text[200];
    snprintf(text, sizeof text, "case %d of %d (%s, dtype %d, epsilon %g, top %d)", c, _i, table->name, w.desc.kv.dtype,
             (double)w.desc.prune.epsilon, w.desc.prune.top_pages);
    check_page_reads(&w, text);
    for (int32_t b = 0; b < w.desc.batch; b++)
      for (int32_t token = w.desc.queries ? w.loc[b] : b; token < (w.desc.queries ? w.loc[b + 1] : b + 1); token++)
        for (int32_t head = 0; head < w.desc.heads; head++) {
          check_row(&w, token, head, text);
          bool has_skipped = w.read[token * w.desc.heads + head] < 1;
          skipped += has_skipped;
          skipped_zero += has_skipped && w.desc.prune.epsilon == 0 && !w.desc.prune.top_pages && !w.desc.queries;
        }
    if (w.desc.prune.epsilon > 0 || w.desc.prune.top_pages) continue;
    size_t rows = (size_t)(tokens_of(&w) * w.desc.heads);
    memcpy(other, w.out, rows * (size_t)w.desc.value_dim * sizeof(float)),
        memcpy(other_lse, w.lse, rows * sizeof(float));
    w.desc.prune = (banyan_prune){0};
    attend(&w, table, NULL);
    ck_assert_msg(!memcmp(other, w.out, rows * (size_t)w.desc.value_dim * sizeof(float)) &&
                      !memcmp(other_lse, w.lse, rows * sizeof(float)),
                  "%s: other bits", text);
  }
  bny_pool_free(pool);
  ck_assert_msg(skipped > 100, "only %d rows left out a page", skipped);
  ck_assert_msg(skipped_zero > 0, "with epsilon 0 no row that sees all keys left out a page");
}

/* All heads of a KV head read the same pages: those with the largest bounds and, of equal ones, the first. */
TEST(top_pages_of_many_heads) {
  enum { ROWS = 128, PAGES = 20, EACH = 4, LENGTH = 8, TOP = 4 };
  static float q[ROWS * LENGTH], k[PAGES * EACH * LENGTH], out[ROWS * LENGTH], lse[ROWS], read[ROWS], *bounds;
  uint64_t reads[PAGES] = {0};
  int32_t keys = PAGES * EACH;
  random_state = 3;
  for (int i = 0; i < ROWS * LENGTH; i++) q[i] = (float)random_normal();
  for (int i = 0; i < PAGES * EACH * LENGTH; i++) k[i] = i / (EACH * LENGTH) < 8 ? 1 : 2;
  banyan_attention_desc desc =
      attention_desc_of(1, ROWS, 1, keys, LENGTH, LENGTH, BANYAN_F32, BANYAN_F32, q, k, k, &keys);
  desc.prune = (banyan_prune){.keys = EACH, .batch_pages = PAGES};
  bounds = malloc(PAGES * (size_t)bny_prune_floats(&desc) * sizeof(float));
  desc.prune.bounds = bounds, desc.prune.read = read, desc.prune.page_reads = reads;
  ck_assert_int_eq(banyan_page_bounds_update(&desc, NULL), BANYAN_OK);
  desc.prune.top_pages = TOP;
  banyan_partial partial;
  banyan_partial_init(&partial, out, BANYAN_F32, lse, BANYAN_F32, ROWS, LENGTH);
  ck_assert_msg(banyan_attention(&desc, &partial) == BANYAN_OK, "%s", banyan_last_error());
  for (int h = 0; h < ROWS; h++) ck_assert_msg(read[h] == (float)TOP / PAGES, "row %d read %g", h, (double)read[h]);
  for (int i = 0; i < PAGES; i++) ck_assert_uint_le(reads[i], 1);
  uint64_t all = 0;
  for (int i = 0; i < PAGES; i++) all += reads[i];
  ck_assert_uint_eq(all, TOP);
  for (int i = 0; i < LENGTH * EACH * PAGES; i++) k[i] = 1; /* all pages are equal */
  memset(reads, 0, sizeof reads);
  ck_assert_int_eq(banyan_page_bounds_update(&desc, NULL), BANYAN_OK);
  ck_assert_int_eq(banyan_attention(&desc, &partial), BANYAN_OK);
  for (int i = 0; i < PAGES; i++) ck_assert_uint_eq(reads[i], i < TOP);
  desc.prune = (banyan_prune){.error = read};
  ck_assert_int_eq(banyan_attention(&desc, &partial), BANYAN_ERR_ARGUMENT);
  ck_assert_msg(strstr(banyan_last_error(), "prune.bounds is NULL"), "%s", banyan_last_error());
  free(bounds);
}

int main(void) { return suite_main(suite_of("prune", 120)); }
