/* SPDX-License-Identifier: Apache-2.0
 * Keys and values that no query sees are never read: each row has a page of memory of its own, and those of hidden keys
 * are inaccessible. Windows, causality, draft trees and masks hide keys, in one memory or in parts, in pages, in mapped
 * memory, with scales of each key, in the exact order and with pruning. */
#include "tests/api/attention_local.h"

enum { LINE = 4096, PARTS = 3, BATCH = 2, TOKENS = 8, HEADS = 20, KEYS_MAX = 2600 };

/* The memory of one part: rows of keys, values and their scales, each on a page of its own. */
typedef struct memory {
  char *rows[4];
  size_t bytes;
  int32_t lens[BATCH], room, page_keys, *table;
} memory;

typedef struct hidden {
  banyan_attention_desc desc;
  banyan_kv_part parts[PARTS];
  banyan_queries queries;
  memory memories[PARTS];
  int32_t count, lens[BATCH], loc[BATCH + 1], start[BATCH];
  uint64_t tree[BATCH * TOKENS];
  uint8_t mask[BATCH * KEYS_MAX];
  float q[BATCH * TOKENS * HEADS * 576], *bounds;
  bool is_exact;
} hidden;

/* Returns the number of the row of key `t` of a sequence and KV head. */
static int64_t row_of(const hidden *p, const memory *m, int32_t b, int32_t h, int32_t t) {
  if (!m->page_keys) return ((int64_t)b * p->desc.kv_heads + h) * m->room + t;
  int32_t page = m->table[b * (m->room / m->page_keys) + t / m->page_keys];
  return ((int64_t)page * p->desc.kv_heads + h) * m->page_keys + t % m->page_keys;
}

static void make_rows(hidden *p, memory *m, banyan_kv_part *part) {
  int64_t element = (int64_t)element_bytes(part->dtype), outer = m->page_keys ? m->page_keys : m->room;
  bool is_plain = part->rows == BANYAN_KV_ROWS_PLAIN;
  m->bytes = (size_t)BATCH * (size_t)p->desc.kv_heads * (size_t)m->room * LINE;
  for (int i = 0; i < 4; i++) {
    m->rows[i] = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(m->rows[i], MAP_FAILED);
  }
  part->k = m->rows[0], part->v = is_plain ? m->rows[1] : part->k;
  part->k_token_stride = part->v_token_stride = LINE / element;
  part->k_head_stride = part->v_head_stride = outer * part->k_token_stride;
  part->k_batch_stride = part->v_batch_stride = p->desc.kv_heads * part->k_head_stride;
  if (element == 1 && is_plain) {
    part->scales = (banyan_kv_scales){(float *)(void *)m->rows[2], (float *)(void *)m->rows[3], 0, 0, 0};
    if (random_range(0, 1)) {
      part->scales.token_stride = LINE / (int64_t)sizeof(float);
      part->scales.head_stride = outer * part->scales.token_stride;
      part->scales.batch_stride = p->desc.kv_heads * part->scales.head_stride;
    }
  }
  if (m->page_keys)
    part->pages = (banyan_pages){.table = m->table, .table_stride = m->room / m->page_keys, .keys = m->page_keys};
  *(float *)(void *)m->rows[2] = *(float *)(void *)m->rows[3] = 0.25f; /* one scale for all */
  for (int32_t b = 0; b < p->desc.batch; b++)
    for (int32_t h = 0; h < p->desc.kv_heads; h++)
      for (int32_t t = 0; t < m->lens[b]; t++) {
        size_t at = (size_t)row_of(p, m, b, h, t) * LINE;
        for (int i = 0; i < 576 && is_plain; i++)
          for (int r = 0; r < 2; r++) store(m->rows[r] + at, i, part->dtype, (double)(random_bits() % 64) / 32 - 1);
        for (int i = 0; i < 656 && !is_plain; i++) m->rows[0][at + (size_t)i] = (char)(random_bits() % 48 + 16);
        for (int i = 0; i < 4 && !is_plain; i++) ((float *)(void *)(m->rows[0] + at + 512))[i] = 0.5f;
        for (int r = 2; r < 4; r++) *(float *)(void *)(m->rows[r] + at) = 0.25f;
      }
}

static void draw_queries(hidden *p) {
  p->queries = (banyan_queries)BANYAN_QUERIES_INIT;
  for (int32_t b = 0; b < p->desc.batch; b++) {
    int32_t count = random_range(1, TOKENS);
    p->loc[b + 1] = p->loc[b] + count;
    p->start[b] = p->lens[b] > count ? p->lens[b] - count : 0;
    if (random_range(0, 4) == 0) p->start[b] = random_range(0, p->lens[b]);
  }
  for (int t = 0; t < BATCH * TOKENS; t++) p->tree[t] = random_bits() % 256;
  int thin = random_range(1, 4);
  for (int t = 0; t < BATCH * KEYS_MAX; t++) p->mask[t] = random_range(0, thin) == 0;
  if (random_range(0, 2) == 0) memset(p->mask + random_range(0, KEYS_MAX), 0, KEYS_MAX);
  p->queries.tokens = p->loc[p->desc.batch], p->queries.query_start_loc = p->loc, p->queries.query_start = p->start;
  if (random_range(0, 1)) p->queries.window = random_range(1, 1 + p->lens[0] / random_range(1, 20));
  if (random_range(0, 3) == 0) p->queries.tree_mask = p->tree;
  if (random_range(0, 1)) p->queries.key_mask = p->mask, p->queries.key_mask_stride = KEYS_MAX;
}

static void draw(hidden *p, int i) {
  static const banyan_dtype dtypes[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3, BANYAN_E5M2, BANYAN_I8};
  static const int32_t dims[] = {16, 64, 40, 128};
  memset(p, 0, offsetof(hidden, q));
  p->bounds = NULL;
  bool mla = random_range(0, 7) == 0, is_long = i % 8 == 0;
  int32_t kv_heads = mla ? 1 : random_range(1, 2), dim = mla ? 576 : dims[random_range(0, 3)];
  p->desc = (banyan_attention_desc)BANYAN_ATTENTION_DESC_INIT;
  p->desc.batch = random_range(1, BATCH), p->desc.kv_heads = kv_heads;
  p->desc.heads = kv_heads * random_range(1, HEADS / kv_heads), p->desc.head_dim = dim;
  p->desc.value_dim = mla ? 512 : dim, p->desc.q_dtype = random_range(0, 1) ? BANYAN_F32 : BANYAN_BF16;
  p->desc.q = p->q, p->desc.q_batch_stride = p->desc.heads * dim, p->desc.q_head_stride = dim;
  fill(p->q, BATCH * TOKENS * HEADS * dim, p->desc.q_dtype, 1);
  p->is_exact = random_range(0, 2) == 0, p->count = is_long ? random_range(1, 2) : random_range(1, PARTS);
  for (int32_t n = 0; n < p->count; n++) {
    memory *m = &p->memories[n];
    banyan_kv_part *part = &p->parts[n];
    *part = (banyan_kv_part)BANYAN_KV_PART_INIT;
    part->dtype = mla ? BANYAN_E4M3 : dtypes[random_range(0, 5)];
    part->rows = mla ? BANYAN_KV_ROWS_FLASHMLA_FP8 : BANYAN_KV_ROWS_PLAIN;
    for (int32_t b = 0; b < p->desc.batch; b++) {
      int32_t left = KEYS_MAX - p->lens[b], most = is_long && n == 0 ? KEYS_MAX - 200 : 150;
      m->lens[b] = random_range(is_long && n == 0 ? 2049 : 0, most < left ? most : left);
      if (p->is_exact && n + 1 < p->count) m->lens[b] = m->lens[b] / 256 * 256;
      p->lens[b] += m->lens[b];
    }
    m->page_keys = random_range(0, 1) ? random_range(1, 40) : 0;
    m->room = m->page_keys ? (KEYS_MAX / m->page_keys + 1) * m->page_keys : KEYS_MAX;
    int32_t pages = m->page_keys ? BATCH * (m->room / m->page_keys) : 0;
    m->table = malloc(((size_t)pages + 1) * sizeof *m->table);
    for (int32_t j = 0; j < pages; j++) m->table[j] = pages - 1 - j;
    part->seq_lens = m->lens;
    if (is_long || random_range(0, 1)) part->read_ahead_bytes = random_range(1, 1 << 20);
    make_rows(p, m, part);
  }
  draw_queries(p);
  banyan_attention_desc *desc = &p->desc;
  desc->queries = &p->queries, desc->kv.seq_lens = p->lens;
  if (p->count > 1 || random_range(0, 1)) {
    desc->parts = p->parts, desc->part_count = p->count;
    return;
  }
  desc->kv = p->parts[0];
  if (p->is_exact || random_range(0, 1)) return;
  const memory *m = &p->memories[0];
  desc->kv.read_ahead_bytes = 0;
  if (!m->page_keys) desc->prune.keys = random_range(1, 40), desc->prune.batch_pages = KEYS_MAX;
  desc->prune.epsilon = random_range(0, 2) ? 0.01f : 0;
  if (desc->prune.epsilon == 0 && random_range(0, 1)) desc->prune.top_pages = random_range(1, 6);
  p->bounds = malloc((size_t)(BATCH * kv_heads * (KEYS_MAX + 64)) * (4 + (size_t)bny_prune_floats(desc)));
  desc->prune.bounds = p->bounds;
  ck_assert_int_eq(banyan_page_bounds_update(desc, NULL), BANYAN_OK);
}

/* Makes the rows of keys inaccessible that no query sees. Returns their number. */
static int32_t hide(hidden *p) {
  int32_t count = 0;
  for (int32_t b = 0; b < p->desc.batch; b++)
    for (int32_t n = 0, key = 0; n < p->count; n++)
      for (int32_t t = 0; t < p->memories[n].lens[b]; t++, key++) {
        bool seen = false;
        for (int32_t token = p->loc[b]; token < p->loc[b + 1]; token++)
          seen = seen || attention_oracle_sees(&p->desc, b, token, key);
        if (seen) continue;
        count++;
        for (int32_t h = 0; h < p->desc.kv_heads; h++)
          for (int r = 0; r < (p->parts[n].scales.token_stride ? 4 : 2); r++)
            ck_assert_int_eq(
                mprotect(p->memories[n].rows[r] + row_of(p, &p->memories[n], b, h, t) * LINE, LINE, PROT_NONE), 0);
      }
  return count;
}

/* Returns the rows of a run, as bytes. */
static char *run_rows(const hidden *p, const bny_attention_kernels *table, size_t *bytes) {
  size_t rows = (size_t)(p->queries.tokens * p->desc.heads);
  size_t row_bytes = bny_wire_row_bytes(p->is_exact ? BNY_WIRE_EXACT : BNY_WIRE_F32, p->desc.value_dim);
  char *made = calloc(rows, row_bytes + 2 * sizeof(float));
  *bytes = rows * (row_bytes + 2 * sizeof(float));
  float *m = (float *)(void *)(made + rows * row_bytes);
  banyan_partial out;
  banyan_partial_init(&out, made, BANYAN_F32, m, BANYAN_F32, p->desc.heads, p->desc.value_dim);
  out.stats_kind = BANYAN_STATS_MAX_SUM, out.sum = m + rows;
  if (p->is_exact) out.values_dtype = BNY_EXACT_ROWS;
  banyan_status status = bny_attention_run(table, bny_kernels_find(NULL), &p->desc, &out, NULL, NULL);
  ck_assert_msg(status == BANYAN_OK, "%s: %s", table->name, banyan_last_error());
  return made;
}

TEST_RANDOM(hidden_keys_are_never_read, 240) {
  static hidden p;
  random_state = (uint64_t)_i + 1;
  draw(&p, _i);
  ck_assert_msg(bny_attention_check_fields(&p.desc, true) == BANYAN_OK, "case %d: %s", _i, banyan_last_error());
  char *want[16];
  size_t bytes;
  int count = 0;
  EACH_TABLE(table) want[count++] = run_rows(&p, table, &bytes);
  hide(&p);
  count = 0;
  EACH_TABLE(table) {
    char *got = run_rows(&p, table, &bytes);
    ck_assert_msg(memcmp(want[count], got, bytes) == 0, "case %d, %s: other bits", _i, table->name);
    free(got), free(want[count++]);
  }
  for (int32_t n = 0; n < p.count; n++) {
    for (int r = 0; r < 4; r++) munmap(p.memories[n].rows[r], p.memories[n].bytes);
    free(p.memories[n].table);
  }
  free(p.bounds);
}

int main(void) { return suite_main(suite_of("hidden keys", 120)); }
