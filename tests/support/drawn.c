/* SPDX-License-Identifier: Apache-2.0
 * Draws random problems of attention. */
#include "tests/support/drawn.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "attention.h"
#include "tests/support/suite.h"

uint64_t random_state;

double random_normal(void) {
  double sum = 0;
  for (int i = 0; i < 12; i++) sum += (double)(random_bits() >> 11) * 0x1p-53;
  return sum - 6;
}

guarded guarded_make(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  guarded memory = {.map_bytes = (bytes + page - 1) / page * page + page};
  memory.map = mmap(NULL, memory.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ck_assert_ptr_ne(memory.map, MAP_FAILED);
  ck_assert_int_eq(mprotect(memory.map + memory.map_bytes - page, page, PROT_NONE), 0);
  memory.data = memory.map + memory.map_bytes - page - bytes;
  return memory;
}

void store(void *base, int64_t index, banyan_dtype dtype, double value) {
  if (dtype == BANYAN_I8)
    ((int8_t *)base)[index] = (int8_t)fmin(fmax(rint(16 * value), -128), 127);
  else
    oracle_store(base, dtype, index, value);
}

double load(const void *base, int64_t index, banyan_dtype dtype) {
  return dtype == BANYAN_I8 ? (double)((const int8_t *)base)[index] : oracle_load(base, dtype, index);
}

void fill(void *base, int64_t elements, banyan_dtype dtype, double size) {
  for (int64_t i = 0; i < elements; i++) store(base, i, dtype, size * random_normal());
}

/* ---- where keys lie ---------------------------------------------------------------------------------------------- */

char *drawn_row(const banyan_kv_part *kv, int which, int32_t b, int32_t h, int32_t t) {
  const banyan_pages *pages = &kv->pages;
  const int64_t outer = pages->table ? pages->table[b * pages->table_stride + t / pages->keys] : b;
  const int64_t at = pages->table ? t % pages->keys : t;
  const void *const from[] = {kv->k, kv->v, kv->scales.k, kv->scales.v};
  const int64_t strides[3][3] = {{kv->k_batch_stride, kv->k_head_stride, kv->k_token_stride},
                                 {kv->v_batch_stride, kv->v_head_stride, kv->v_token_stride},
                                 {kv->scales.batch_stride, kv->scales.head_stride, kv->scales.token_stride}};
  const int64_t *stride = strides[which < 2 ? which : 2];
  const int64_t element = which < 2 ? (int64_t)oracle_bytes(kv->dtype) : (int64_t)sizeof(float);
  return (char *)(uintptr_t)from[which] + (outer * stride[0] + h * stride[1] + at * stride[2]) * element;
}

size_t drawn_row_bytes(const drawn *p, int which) {
  const banyan_kv_part *kv = &p->parts[0];
  if (which > 1) return kv->scales.token_stride ? sizeof(float) : 0;
  if (kv->rows != BANYAN_KV_ROWS_PLAIN) return which ? 0 : 656;
  if (which && drawn_has(p, DRAWN_JOINT)) return 0;
  return (size_t)(which ? p->desc.value_dim : p->desc.head_dim) * oracle_bytes(kv->dtype);
}

static void *take(const drawn *p, size_t bytes) { return p->take ? p->take(bytes) : calloc(bytes + 1, 1); }

static guarded take_rows(const drawn *p, size_t bytes) {
  return p->take ? (guarded){.data = p->take(bytes)} : guarded_make(bytes);
}

static void drawn_lay_out(drawn *p, banyan_kv_part *kv, int part, bool token_major) {
  const int32_t heads = p->desc.kv_heads, keys = kv->pages.table ? kv->pages.keys : p->longest;
  const int64_t outer = kv->pages.table ? kv->pages.count : p->desc.batch;
  const bool is_plain = kv->rows == BANYAN_KV_ROWS_PLAIN, has_codes = is_plain && oracle_bytes(kv->dtype) == 1;
  const bool is_joint = !is_plain || drawn_has(p, DRAWN_JOINT);
  int64_t *strides[3][3] = {{&kv->k_batch_stride, &kv->k_head_stride, &kv->k_token_stride},
                            {&kv->v_batch_stride, &kv->v_head_stride, &kv->v_token_stride},
                            {&kv->scales.batch_stride, &kv->scales.head_stride, &kv->scales.token_stride}};
  for (int i = 0; i < (has_codes ? 4 : 2); i++) {
    if (i == 1 && is_joint) continue;
    const int64_t element = i < 2 ? (int64_t)oracle_bytes(kv->dtype) : (int64_t)sizeof(float);
    const int64_t dim = i > 1 ? 1 : !is_plain ? 656 : i ? p->desc.value_dim : p->desc.head_dim;
    const bool has_gaps = i < 2 && is_plain && !drawn_has(p, DRAWN_TIGHT);
    const int64_t row = drawn_has(p, DRAWN_APART) ? DRAWN_LINE / element : dim + (has_gaps ? random_range(0, 3) : 0);
    int64_t **to = strides[i < 2 ? i : 2];
    if (i < 3) {
      *to[1] = token_major ? row : row * keys;
      *to[2] = token_major ? row * heads : row;
      *to[0] = drawn_has(p, DRAWN_FAR_PAGES) && kv->pages.table ? (INT64_C(1) << 30) / 4 * 3 : row * heads * keys;
    }
    const bool is_shared = i > 1 && !p->scales_by_key; /* one scale for each head, or for all */
    if (i == 2 && is_shared) kv->scales = (banyan_kv_scales){.head_stride = p->scale_stride};
    const int64_t apart = *to[0] * element, page = row * heads * keys * element;
    p->memory[part][i] = take_rows(p, is_shared ? (size_t)heads * sizeof(float) : (size_t)((outer - 1) * apart + page));
    for (int64_t o = 0; o < outer && !is_shared && !drawn_has(p, DRAWN_APART); o++)
      memset((char *)p->memory[part][i].data + o * apart, 0xff, (size_t)page);
  }
  kv->k = p->memory[part][0].data, kv->v = is_joint ? kv->k : p->memory[part][1].data;
  if (is_joint) kv->v_batch_stride = kv->k_batch_stride, kv->v_head_stride = kv->k_head_stride;
  if (is_joint) kv->v_token_stride = kv->k_token_stride;
  if (has_codes) kv->scales.k = p->memory[part][2].data, kv->scales.v = p->memory[part][3].data;
}

static void drawn_page(drawn *p, banyan_kv_part *kv, int part) {
  static const int32_t usual[] = {1, 15, 16, 64};
  const int32_t drawn_keys = random_range(0, 1) ? usual[random_range(0, 3)] : random_range(1, 40);
  const int32_t keys = drawn_has(p, DRAWN_FAR_PAGES) ? p->longest / 2 + 1 : p->page_keys ? p->page_keys : drawn_keys;
  const int32_t each = p->longest / keys + 1, all = each * p->desc.batch;
  int32_t *table = p->tables[part] = take(p, (size_t)all * sizeof *table);
  for (int32_t i = 0; i < all; i++) table[i] = i;
  for (int32_t i = all - 1; i > 0; i--) {
    const int32_t other = random_range(0, i), held = table[i];
    table[i] = table[other], table[other] = held;
  }
  kv->pages = (banyan_pages){.table = table, .table_stride = each, .keys = keys, .count = all};
}

/* Cuts the keys into parts. */
static void drawn_cut(drawn *p, const banyan_dtype *dtypes) {
  const int32_t unit = drawn_has(p, DRAWN_BLOCKS) ? 256 : 1, most = p->longest / unit + 1;
  int32_t cut = 0;
  p->count = drawn_has(p, DRAWN_PARTS) ? random_range(1, DRAWN_PARTS_MAX) : 1;
  const bool is_list = drawn_has(p, DRAWN_PARTS);
  for (int i = 0; i < p->count; i++) {
    banyan_kv_part *kv = &p->parts[i];
    *kv = (banyan_kv_part)BANYAN_KV_PART_INIT;
    const int32_t end = i + 1 < p->count ? cut + random_range(0, most) / 2 * unit : INT32_MAX;
    for (int32_t b = 0; b < p->desc.batch; b++) {
      p->firsts[i][b] = p->lens[b] < cut ? p->lens[b] : cut;
      p->lengths[i][b] = (p->lens[b] < end ? p->lens[b] : end) - p->firsts[i][b];
    }
    cut = end;
    kv->dtype = dtypes[drawn_has(p, DRAWN_MIXED) ? i : 0];
    kv->rows = drawn_has(p, DRAWN_LATENT) ? BANYAN_KV_ROWS_FLASHMLA_FP8 : BANYAN_KV_ROWS_PLAIN;
    kv->seq_lens = p->lengths[i], kv->key_first = is_list && random_range(0, 1) ? p->firsts[i] : NULL;
    if (drawn_has(p, DRAWN_PAGED) || (drawn_has(p, DRAWN_PAGES) && random_range(0, 3))) drawn_page(p, kv, i);
    drawn_lay_out(p, kv, i, !drawn_has(p, DRAWN_TIGHT) && random_range(0, 1));
  }
  if (is_list)
    p->desc.parts = p->parts, p->desc.part_count = p->count, p->desc.kv.seq_lens = p->lens;
  else
    p->desc.kv = p->parts[0];
}

char *drawn_row_of(const drawn *p, int which, int32_t b, int32_t h, int32_t t) {
  int part = 0;
  while (t - p->firsts[part][b] >= p->lengths[part][b]) part++;
  return drawn_row(&p->parts[part], which, b, h, t - p->firsts[part][b]);
}

/* ---- what they are ----------------------------------------------------------------------------------------------- */

static int32_t drawn_dim(const drawn *p, int32_t most) {
  static const int32_t usual[] = {64, 128, 80, 96, 32, 192, 256, 576, 512};
  int32_t dim = random_range(0, 2) ? random_range(1, 100) : usual[random_range(0, 8)];
  if (p->features & (DRAWN_EDGES | DRAWN_PEAKED)) dim = random_range(0, 2) ? random_range(1, 40) : 64;
  return dim > most ? most : dim;
}

static int32_t drawn_length(const drawn *p, int32_t b) {
  static const int32_t edges[] = {0, 1, 511, 512, 513, 1024, 1025, 4096, 32768, 32769, 40000};
  const int32_t kind = random_range(0, 7);
  if (drawn_has(p, DRAWN_PEAKED)) return kind ? random_range(1, 96) : 0;
  if (drawn_has(p, DRAWN_EDGES)) return kind > 1 ? edges[random_range(0, 10)] : random_range(0, 3000);
  if (drawn_has(p, DRAWN_LONG) && b == 0) return random_range(2049, 2600);
  if (drawn_has(p, DRAWN_BLOCKS) && kind > 2) return random_range(1, 1400);
  return kind == 0 ? 0 : kind == 1 ? random_range(500, 1100) : random_range(1, 150);
}

static void drawn_queries(drawn *p) {
  banyan_queries *queries = &p->queries;
  const bool many = !drawn_has(p, DRAWN_FEW) && random_range(0, 3) == 0;
  *queries = (banyan_queries)BANYAN_QUERIES_INIT;
  for (int32_t b = 0; b < p->desc.batch; b++) {
    int32_t count = drawn_has(p, DRAWN_SEVERAL) ? random_range(1, many ? 30 : 4) : 1;
    if (drawn_has(p, DRAWN_PROMPT)) count += 7 + 64 / (p->desc.heads / p->desc.kv_heads);
    p->loc[b + 1] = p->loc[b] + count;
    p->key_start[b] = drawn_has(p, DRAWN_STARTS) ? random_range(0, 20) : 0;
    p->start[b] = p->key_start[b] + (p->lens[b] > count ? p->lens[b] - count : 0);
    if (random_range(0, 4) == 0) p->start[b] = p->key_start[b] + random_range(0, p->lens[b]);
  }
  queries->tokens = p->loc[p->desc.batch];
  if (!(p->features & DRAWN_QUERIES)) return;
  p->desc.queries = queries, queries->query_start = p->start;
  if (drawn_has(p, DRAWN_SEVERAL)) queries->query_start_loc = p->loc, queries->tokens += random_range(0, 2);
  p->tree = take(p, (size_t)queries->tokens * sizeof *p->tree);
  p->mask = take(p, (size_t)(p->desc.batch * p->longest));
  const int32_t thin = random_range(1, 4);
  for (int32_t t = 0; t < queries->tokens; t++) p->tree[t] = random_bits() >> random_range(34, 63);
  for (int32_t t = 0; t < p->desc.batch * p->longest; t++) p->mask[t] = random_range(0, thin) == 0;
  if (random_range(0, 2) == 0) memset(p->mask, 0, (size_t)(p->longest / 2));
  if (drawn_has(p, DRAWN_WINDOW)) queries->window = random_range(1, 1 + p->lens[0] / random_range(1, 20));
  if (drawn_has(p, DRAWN_TREE)) queries->tree_mask = p->tree;
  if (drawn_has(p, DRAWN_MASK)) queries->key_mask = p->mask, queries->key_mask_stride = p->longest;
  if (!drawn_has(p, DRAWN_STARTS)) return;
  queries->key_start = p->key_start;
  if (random_range(0, 1)) queries->key_block = random_range(1, 90);
  if (queries->key_block) queries->key_stride = queries->key_block * random_range(1, 3);
}

/* Codes of I8 count sixteenths. */
static float drawn_scale_unit(const banyan_kv_part *kv) { return kv->dtype == BANYAN_I8 ? 1.0F / 16 : 1; }

/* Draws a key and its value. */
static void drawn_key(drawn *p, const banyan_kv_part *kv, int32_t b, int32_t h, int32_t t, double side, double spread) {
  const banyan_attention_desc *d = &p->desc;
  char *k = drawn_row(kv, 0, b, h, t), *v = drawn_row(kv, 1, b, h, t);
  const bool is_peaked = drawn_has(p, DRAWN_PEAKED), is_nan = drawn_has(p, DRAWN_NANS) && random_range(0, 40) == 0;
  const double large = is_peaked && side < 0 && random_range(0, 1) ? 30 : 1;
  if (kv->rows != BANYAN_KV_ROWS_PLAIN) {
    for (int i = 0; i < 656; i++) { /* codes and columns of either sign */
      const uint64_t bits = random_bits();
      k[i] = (char)(bits % 48 + 16 + (drawn_has(p, DRAWN_POSITIVE) ? 0 : (bits >> 40) % 2 * 128));
    }
    for (int i = 0; i < 4; i++) ((float *)(void *)(k + 512))[i] = (float)exp2(random_normal() - 1);
    return;
  }
  const int64_t at = h * (d->heads / d->kv_heads) * d->q_head_stride;
  const bool is_joint = drawn_has(p, DRAWN_JOINT), is_positive = drawn_has(p, DRAWN_POSITIVE);
  for (int32_t i = 0; i < d->head_dim; i++) {
    const double near = is_peaked && i < d->head_dim - d->rope.dim ? side * load(d->q, at + i, d->q_dtype) : 0;
    const double value = near + spread * p->k_size * random_normal();
    store(k, i, kv->dtype, is_joint && is_positive ? fabs(value) : value);
  }
  for (int32_t i = 0; i < d->value_dim && !is_joint; i++) {
    const double value =
        drawn_has(p, DRAWN_HUGE) ? 2.9e38 : large * p->v_size * (is_peaked && i % 2 ? 1 : random_normal());
    store(v, i, kv->dtype, is_positive ? fabs(value) : value);
  }
  if (is_nan && kv->dtype != BANYAN_I8) store(k, 0, kv->dtype, NAN);
  for (int i = 2; i < 4; i++) {
    const float scale = (float)exp2(0.5 * random_normal()) * drawn_scale_unit(kv);
    if (kv->scales.token_stride) *(float *)(void *)drawn_row(kv, i, b, h, t) = scale;
  }
}

void drawn_rows(drawn *p) {
  banyan_attention_desc *d = &p->desc;
  const int64_t tokens = p->queries.tokens;
  d->q_head_stride = drawn_has(p, DRAWN_TIGHT) ? d->head_dim : d->head_dim - d->rope.dim + random_range(0, 3);
  d->q_batch_stride = d->heads * d->q_head_stride;
  d->rope.head_stride = d->rope.dim, d->rope.batch_stride = d->heads * d->rope.dim;
  p->q = take_rows(p, (size_t)(tokens * d->q_batch_stride) * oracle_bytes(d->q_dtype));
  if (d->rope.dim) p->rope = take_rows(p, (size_t)(tokens * d->rope.batch_stride) * oracle_bytes(d->q_dtype));
  d->q = p->q.data, d->rope.q = p->rope.data;
  fill(p->q.data, tokens * d->q_batch_stride, d->q_dtype, p->q_size);
  fill(p->rope.data, tokens * d->rope.batch_stride, d->q_dtype, p->q_size);
}

void drawn_keys(drawn *p, const banyan_dtype *dtypes, uint64_t layout, uint64_t data) {
  const banyan_attention_desc *d = &p->desc;
  random_state = bny_hash_of(layout + 77);
  drawn_cut(p, dtypes);
  random_state = data;
  for (int i = 0; i < p->count; i++) /* one scale for each head, also of parts without keys */
    for (int j = 2; p->parts[i].scales.k && !p->parts[i].scales.token_stride && j < 4; j++)
      for (int32_t h = 0; h < d->kv_heads; h++)
        ((float *)p->memory[i][j].data)[h] = 0.25F * (float)(1 + (h + j) % 4) * drawn_scale_unit(&p->parts[i]);
  const bool is_peaked = drawn_has(p, DRAWN_PEAKED);
  const int32_t group = random_range(1, 12);
  const double spread = is_peaked ? exp2(3 * random_normal() - 2) : 1, height = exp2(random_normal());
  for (int32_t b = 0; b < d->batch; b++)
    for (int32_t h = 0; h < d->kv_heads; h++) {
      double side = 1, size = spread;
      for (int32_t t = 0, part = 0; t < p->lens[b]; t++) {
        while (t - p->firsts[part][b] >= p->lengths[part][b]) part++;
        if (is_peaked && t % group == 0)
          side = random_range(0, 3) ? -height * random_normal() : height, size = random_range(0, 2) ? spread : 0;
        drawn_key(p, &p->parts[part], b, h, t - p->firsts[part][b], side, size);
      }
    }
}

/* Draws sizes that the types can hold. Products of bf16 may count numbers below 2^-126 as 0, with the scale. */
static void drawn_sizes(drawn *p, banyan_dtype kv_dtype) {
  banyan_attention_desc *d = &p->desc;
  const bool is_wide = kv_dtype == BANYAN_F32 || kv_dtype == BANYAN_BF16;
  const int most = d->q_dtype == BANYAN_BF16 && kv_dtype == BANYAN_BF16 ? 100 : 125;
  const bool is_least = is_wide && d->q_dtype == BANYAN_F32 && random_range(0, 3) == 0; /* for the largest scale */
  const int q = is_least ? -65 : d->q_dtype == BANYAN_F16 ? 0 : random_range(-60, most);
  const int k = is_least ? -65 : is_wide ? random_range(-60, most) : 0;
  const int room = q + k > 140 ? q + k - 140 : 0; /* the scale is a float */
  p->q_size = exp2(q), p->k_size = exp2(k - room), p->v_size = is_wide ? exp2(random_range(-60, most)) : 1;
  d->scale = (float)exp2(-3 - q - k + room);
}

/* ---- a problem --------------------------------------------------------------------------------------------------- */

void drawn_begin(drawn *p) {
  const size_t bytes = (size_t)(p->desc.batch + 1) * sizeof(int32_t);
  int32_t **all[] = {&p->lens, &p->loc, &p->start, &p->key_start};
  for (int i = 0; i < 4; i++) *all[i] = take(p, bytes);
  for (int i = 0; i < DRAWN_PARTS_MAX; i++) p->firsts[i] = take(p, bytes), p->lengths[i] = take(p, bytes);
  p->longest = p->longest ? p->longest : 1;
  p->q_size = p->q_size > 0 ? p->q_size : 1, p->k_size = p->v_size = 1;
}

void drawn_plain(drawn *p, uint64_t seed, int32_t batch, int32_t heads, int32_t kv_heads, int32_t head_dim,
                 int32_t value_dim, banyan_dtype q_dtype, banyan_dtype kv_dtype, const int32_t *lens, double q_size) {
  banyan_attention_desc *d = &p->desc;
  *p = (drawn){.q_size = q_size};
  random_state = seed;
  *d = (banyan_attention_desc)BANYAN_ATTENTION_DESC_INIT;
  d->batch = batch, d->heads = heads, d->kv_heads = kv_heads, d->q_dtype = q_dtype;
  d->head_dim = head_dim, d->value_dim = value_dim ? value_dim : head_dim;
  drawn_begin(p);
  p->scale_stride = random_range(0, 1);
  for (int32_t b = 0; b < batch; b++) {
    p->lens[b] = lens[b];
    p->longest = lens[b] > p->longest ? lens[b] : p->longest;
  }
  drawn_queries(p);
  drawn_rows(p);
  drawn_keys(p, &kv_dtype, seed, random_bits());
  d->value_dim = value_dim;
}

void drawn_make(drawn *p, uint64_t seed, uint64_t layout, int32_t must, int32_t may) {
  static const int32_t groups[] = {1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 40};
  static const banyan_dtype large[] = {BANYAN_F32, BANYAN_BF16};
  *p = (drawn){0};
  banyan_attention_desc *d = &p->desc;
  random_state = seed * 0x9e3779b97f4a7c15 + 1;
  const int32_t offered = (int32_t)(random_bits() & random_bits()), placed = (int32_t)bny_hash_of(layout);
  p->features = must | (may & ((offered & (DRAWN_PAGES - 1)) | (placed & ~(DRAWN_PAGES - 1))));
  if (drawn_has(p, DRAWN_LATENT)) p->features &= ~(DRAWN_CODES | DRAWN_MIXED | DRAWN_NANS);
  const bool is_latent = drawn_has(p, DRAWN_LATENT);
  *d = (banyan_attention_desc)BANYAN_ATTENTION_DESC_INIT;
  d->batch = random_range(1, DRAWN_BATCH), d->kv_heads = is_latent ? 1 : random_range(1, 3);
  int32_t group = groups[random_range(0, drawn_has(p, DRAWN_SEVERAL) ? 9 : 11)];
  if (p->features & (DRAWN_LONG | DRAWN_APART | DRAWN_FEW))
    d->batch = random_range(1, drawn_has(p, DRAWN_FEW) ? 3 : 2), d->kv_heads = is_latent ? 1 : random_range(1, 2);
  if (p->features & (DRAWN_LONG | DRAWN_APART)) group = random_range(1, 20 / d->kv_heads);
  if (drawn_has(p, DRAWN_FEW)) group = random_range(1, 8 / d->kv_heads);
  d->heads = d->kv_heads * group;
  drawn_begin(p);
  const bool grouped =
      seed % 3 == 0 && !(p->features & (DRAWN_EDGES | DRAWN_PEAKED)); /* columns in groups of 64 have their own code */
  d->head_dim = is_latent ? 576 : grouped ? 64 * random_range(1, 9) : drawn_dim(p, BNY_ATTENTION_HEAD_DIM_MAX);
  d->value_dim = is_latent ? 512 : grouped ? 64 * random_range(1, 8) : drawn_dim(p, BNY_ATTENTION_VALUE_DIM_MAX);
  if (drawn_has(p, DRAWN_ROPE) && d->head_dim > 1)
    d->rope.dim = random_range(1, d->head_dim < 65 ? d->head_dim - 1 : 64);
  d->q_dtype = (banyan_dtype)random_range(BANYAN_F32, BANYAN_BF16);
  banyan_dtype dtypes[DRAWN_PARTS_MAX];
  for (int i = 0; i < DRAWN_PARTS_MAX; i++)
    dtypes[i] = is_latent                   ? BANYAN_E4M3
                : drawn_has(p, DRAWN_HUGE)  ? large[random_range(0, 1)]
                : drawn_has(p, DRAWN_CODES) ? (banyan_dtype)random_range(BANYAN_E4M3, BANYAN_I8)
                                            : (banyan_dtype)random_range(BANYAN_F32, BANYAN_I8);
  const bool is_bf16 = drawn_has(p, DRAWN_PROMPT) && random_range(0, 1);
  if (is_bf16) d->q_dtype = BANYAN_BF16;
  for (int i = 0; i < DRAWN_PARTS_MAX && is_bf16 && !(p->features & (DRAWN_CODES | DRAWN_LATENT)); i++)
    dtypes[i] = BANYAN_BF16;
  if (random_range(0, 3) == 0) d->scale = (float)(random_normal() / sqrt((double)d->head_dim)); /* may be negative */
  if (drawn_has(p, DRAWN_FAR)) drawn_sizes(p, dtypes[0]);
  if (drawn_has(p, DRAWN_CAP)) d->soft_cap = (float)random_range(2, 20);
  if (drawn_has(p, DRAWN_NANS)) d->empty = BANYAN_EMPTY_NAN;
  for (int32_t b = 0; b < d->batch; b++) {
    p->lens[b] = drawn_length(p, b);
    p->longest = p->lens[b] > p->longest ? p->lens[b] : p->longest;
  }
  p->sinks = take(p, (size_t)d->heads * sizeof *p->sinks);
  for (int32_t h = 0; h < d->heads; h++) p->sinks[h] = random_range(0, 4) ? (float)(3 * random_normal()) : -INFINITY;
  if (drawn_has(p, DRAWN_SINKS)) d->sinks = p->sinks;
  drawn_queries(p);
  p->scales_by_key = random_range(0, 1), p->scale_stride = random_range(0, 3) > 0;
  drawn_rows(p);
  drawn_keys(p, dtypes, layout, random_bits());
}

void drawn_deal(const drawn *from, drawn *to, uint64_t layout, int32_t first, int32_t skip,
                bool (*owns)(const void *context, int32_t t), const void *context) {
  const banyan_attention_desc *d = &from->desc;
  const size_t q = (size_t)d->q_batch_stride * oracle_bytes(d->q_dtype);
  const size_t rope = (size_t)d->rope.batch_stride * oracle_bytes(d->q_dtype);
  const int32_t batch = to->desc.batch;
  to->desc = *d, to->desc.batch = batch, to->queries = from->queries;
  to->features |= from->features & (DRAWN_LATENT | DRAWN_JOINT);
  to->scales_by_key = from->scales_by_key, to->scale_stride = from->scale_stride;
  drawn_begin(to);
  attention_clear_keys(&to->desc);
  to->q = take_rows(to, (size_t)from->queries.tokens * q), to->desc.q = to->q.data;
  if (rope) to->rope = take_rows(to, (size_t)from->queries.tokens * rope), to->desc.rope.q = to->rope.data;
  to->tree = take(to, (size_t)from->queries.tokens * sizeof *to->tree);
  to->mask = take(to, (size_t)(batch * from->longest));
  for (int32_t b = 0, token = 0; b < batch; b++) {
    const int32_t of = first + b, all = from->loc[of + 1] - from->loc[of], skipped = all > skip ? skip : all - 1;
    to->start[b] = from->start[of] + skipped;
    for (int32_t t = from->loc[of] + skipped; t < from->loc[of + 1]; t++, token++) {
      memcpy((char *)to->q.data + (size_t)token * q, (const char *)from->q.data + (size_t)t * q, q);
      if (rope)
        memcpy((char *)to->rope.data + (size_t)token * rope, (const char *)from->rope.data + (size_t)t * rope, rope);
      to->tree[token] = from->tree[t];
    }
    to->loc[b + 1] = token;
    for (int32_t t = 0; t < from->lens[of]; t++) {
      if (!owns(context, t)) continue;
      if (to->lens[b] == 0) to->key_start[b] = t;
      to->mask[b * from->longest + to->lens[b]++] = from->mask[of * from->longest + t];
    }
    to->longest = to->lens[b] > to->longest ? to->lens[b] : to->longest;
  }
  random_state = bny_hash_of(layout + 77);
  drawn_cut(to, &d->kv.dtype);
  for (int i = 0; i < to->count; i++) /* one scale for each head */
    for (int j = 2; d->kv.scales.k && !from->scales_by_key && j < 4; j++)
      memcpy(to->memory[i][j].data, from->memory[0][j].data, (size_t)d->kv_heads * sizeof(float));
  for (int32_t b = 0; b < batch; b++)
    for (int32_t t = 0, kept = 0; t < from->lens[first + b]; t++) {
      if (!owns(context, t)) continue;
      for (int32_t h = 0; h < d->kv_heads; h++)
        for (int r = 0; r < 4; r++)
          if (drawn_row_bytes(from, r))
            memcpy(drawn_row_of(to, r, b, h, kept), drawn_row_of(from, r, first + b, h, t), drawn_row_bytes(from, r));
      kept++;
    }
}

void drawn_free(drawn *p) {
  void *const all[] = {p->lens, p->loc, p->start, p->key_start, p->tree, p->mask, p->sinks};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
  for (int i = 0; i < DRAWN_PARTS_MAX; i++) {
    for (int j = 0; j < 4; j++)
      if (p->memory[i][j].map) munmap(p->memory[i][j].map, p->memory[i][j].map_bytes);
    free(p->tables[i]), free(p->firsts[i]), free(p->lengths[i]);
  }
  if (p->q.map) munmap(p->q.map, p->q.map_bytes);
  if (p->rope.map) munmap(p->rope.map, p->rope.map_bytes);
}
