/* SPDX-License-Identifier: Apache-2.0
 * Pruning with a certificate on one rank: random and adversarial keys against all keys in double precision, for all
 * types, with windows, trees, masks, sinks, caps, scales and pages. test_attend.c tests several ranks. */
#include "base/pool.h"
#include "tests/api/attention_local.h"
#include "tests/support/sanitized.h"

enum { CASES = 400 };

/* A problem, and what a run of it writes. */
typedef struct world {
  drawn p;
  int32_t page_keys;
  size_t rows, bounds_bytes;
  int64_t pages;
  float *error, *read, *lse, *out, *again;
  uint64_t *page_reads;
} world;

static void draw(world *w, uint64_t seed) {
  const bool sees_all = seed % 2;
  drawn_make(&w->p, seed, seed,
             DRAWN_PEAKED | DRAWN_FEW | (sees_all ? 0 : DRAWN_SEVERAL) | (seed % 50 ? 0 : DRAWN_LATENT),
             (sees_all ? DRAWN_SHAPES & ~DRAWN_QUERIES : DRAWN_SHAPES) | DRAWN_PAGES);
  banyan_attention_desc *d = &w->p.desc;
  banyan_prune *prune = &d->prune;
  if (random_range(0, 5) == 0) d->scale = (float)random_normal() * (random_range(0, 3) ? 1 : 300);
  if (d->sinks)
    for (int32_t h = 0; h < d->heads; h++) w->p.sinks[h] = (float)(10 * random_normal());
  w->page_keys = d->kv.pages.table ? d->kv.pages.keys : random_range(1, 12);
  w->pages = prune_pages(&w->p, d, w->page_keys);
  w->rows = (size_t)(tokens_of(d) * d->heads);
  w->bounds_bytes = (size_t)(w->pages * d->kv_heads) * bounds_floats(d) * sizeof(float);
  w->again = malloc(w->bounds_bytes);
  prune->error = w->error = malloc(w->rows * sizeof(float)), prune->read = w->read = malloc(w->rows * sizeof(float));
  prune->page_reads = w->page_reads = calloc((size_t)w->pages, sizeof *w->page_reads);
  w->lse = malloc(w->rows * sizeof(float)), w->out = malloc(w->rows * (size_t)d->value_dim * sizeof(float));
}

static void release(world *w) {
  free(w->again), free(w->error), free(w->read), free(w->page_reads), free(w->lse), free(w->out);
  drawn_free(&w->p);
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Checks a row against all keys. With epsilon 0 no key may be skipped. */
static void check_row(const world *w, int32_t token, int32_t head, const char *text) {
  const banyan_attention_desc *d = &w->p.desc;
  static attention_row exact;
  const int32_t row = token * d->heads + head;
  attention_oracle(d, token, head, &exact);
  const double own = 0x1p-24 * (640 + (d->head_dim + 8) * exact.products + 8 * (double)d->soft_cap);
  const double missing = d->prune.top_pages ? (double)INFINITY : log1p((double)d->prune.epsilon);
  ck_assert_msg(attention_row_certified(&exact, d->value_dim, w->out + row * d->value_dim, w->lse[row], w->error[row],
                                        2.1 * own, 1e-12, missing),
                "%s: row %d has lse %g of %g, certified %g", text, row, (double)w->lse[row], exact.max + log(exact.sum),
                (double)w->error[row]);
  if (exact.sum == 0) return;
  ck_assert_msg(w->read[row] >= 0 && w->read[row] <= 1, "%s: share %g", text, (double)w->read[row]);
}

static void attend(world *w, const bny_attention_kernels *kernels, bny_pool *pool) {
  banyan_partial out;
  banyan_partial_init(&out, w->out, BANYAN_F32, w->lse, BANYAN_F32, w->p.desc.heads, w->p.desc.value_dim);
  ck_assert_msg(attend_by(kernels, &w->p.desc, &out, pool) == BANYAN_OK, "%s", banyan_last_error());
}

/* Each KV head reads the share of its pages that its rows report, and each page read is counted. */
static void check_page_reads(const world *w, const char *text) {
  const banyan_attention_desc *d = &w->p.desc;
  int32_t group = d->heads / d->kv_heads;
  double wanted = 0, counted = 0;
  for (int32_t b = 0; b < d->batch; b++) {
    int32_t token = w->p.loc[b], rows = group * (w->p.loc[b + 1] - w->p.loc[b]);
    int32_t pages = (w->p.lens[b] + w->page_keys - 1) / w->page_keys;
    for (int32_t h = 0; h < d->kv_heads; h++) {
      float share = w->read[token * d->heads + h * group];
      wanted += pages * (double)share;
      for (int32_t row = 0; row < rows; row++)
        ck_assert_msg(w->read[(token + row / group) * d->heads + h * group + row % group] == share,
                      "%s: rows of a KV head read other shares", text);
    }
  }
  for (int64_t i = 0; i < w->pages; i++) counted += (double)w->page_reads[i];
  ck_assert_msg(fabs(wanted - counted) < 0.01, "%s: %g pages read, %g counted", text, wanted, counted);
}

/* Bounds after appends of any sizes equal the bounds of all keys. */
static void check_bounds(const world *w) {
  const int32_t *all = w->p.lens;
  banyan_attention_desc d = w->p.desc;
  int32_t lens[DRAWN_BATCH] = {0}, first[DRAWN_BATCH];
  memset(d.prune.bounds, 0x7b, w->bounds_bytes), memset(w->again, 0x7b, w->bounds_bytes);
  ck_assert_msg(banyan_page_bounds_update(&d, NULL) == BANYAN_OK, "%s", banyan_last_error());
  d.prune.bounds = w->again, d.kv.seq_lens = lens;
  banyan_attention_desc empty = d;
  empty.kv.k = empty.kv.v = NULL;
  ck_assert_msg(banyan_page_bounds_update(&empty, NULL) == BANYAN_OK, "%s", banyan_last_error());
  for (bool more = true; more;) {
    more = false;
    for (int32_t b = 0; b < d.batch; b++) {
      first[b] = lens[b];
      lens[b] += random_range(0, all[b] - lens[b]);
      more = more || lens[b] < all[b];
    }
    ck_assert_int_eq(banyan_page_bounds_update(&d, first), BANYAN_OK);
  }
  ck_assert_int_eq(memcmp(w->p.desc.prune.bounds, w->again, w->bounds_bytes), 0);
}

TEST_RANDOM(certificates_hold, 100) {
  static const float epsilons[] = {0, 1e-4f, 1e-3f, 1e-2f, 0.1f, 0.5f, 1};
  const bny_attention_kernels *tables[16];
  int count = 0, skipped = 0, skipped_zero = 0;
  bny_pool *pool = NULL;
  ck_assert_int_eq(bny_pool_make(2, NULL, &pool), BANYAN_OK);
  EACH_TABLE(table) tables[count++] = table;
  for (int c = 0; c < CASES; c++) {
    world w = {.rows = 0};
    draw(&w, (uint64_t)_i * CASES + (uint64_t)c + 77);
    const bny_attention_kernels *table = tables[random_range(0, count - 1)];
    banyan_attention_desc *d = &w.p.desc;
    banyan_prune *prune = &d->prune;
    check_bounds(&w);
    prune->epsilon = c % 8 ? epsilons[random_range(0, 6)] : 0;
    if (c % 8 && random_range(0, 5) == 0) prune->epsilon = 0, prune->top_pages = random_range(1, 5);
    attend(&w, table, c % 4 ? NULL : pool);
    char text[200];
    snprintf(text, sizeof text, "case %d of %d (%s, dtype %d, epsilon %g, top %d)", c, _i, table->name, d->kv.dtype,
             (double)prune->epsilon, prune->top_pages);
    check_page_reads(&w, text);
    const bool is_lossless = prune->epsilon == 0 && !prune->top_pages;
    for (int32_t row = 0; row < w.p.loc[d->batch] * d->heads; row++) {
      check_row(&w, row / d->heads, row % d->heads, text);
      skipped += w.read[row] < 1;
      skipped_zero += w.read[row] < 1 && is_lossless && !d->queries;
    }
    float *bounds = prune->bounds;
    if (is_lossless) {
      const size_t bytes = w.rows * (size_t)d->value_dim * sizeof(float);
      float *out = w.out, *lse = w.lse;
      w.out = malloc(bytes), w.lse = malloc(w.rows * sizeof(float));
      *prune = (banyan_prune){0};
      attend(&w, table, NULL);
      ck_assert_msg(!memcmp(out, w.out, bytes) && !memcmp(lse, w.lse, w.rows * sizeof(float)), "%s: other bits", text);
      free(out), free(lse);
    }
    free(bounds);
    release(&w);
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
  bounds = malloc(PAGES * bounds_floats(&desc) * sizeof(float));
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
  ASSERT_FAILS(banyan_attention(&desc, &partial), BANYAN_ERR_ARGUMENT, "prune.bounds is NULL");
  free(bounds);
}

int main(void) { return suite_main(suite_of("prune", 120)); }
