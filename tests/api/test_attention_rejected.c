/* SPDX-License-Identifier: Apache-2.0
 * Local attention rejects invalid descriptions, lengths, pages and scales. The text names the cause. */
#include "tests/api/attention_local.h"

/* Attention fails with a text that has this word; NULL: it does not fail. Only pruning of parts is not supported. */
static void reject(const banyan_attention_desc *desc, const banyan_partial *out, const char *word) {
  const bool is_unsupported = desc && desc->parts && desc->prune.epsilon > 0;
  const banyan_status status = banyan_attention(desc, out);
  if (word)
    ASSERT_FAILS(status, is_unsupported ? BANYAN_ERR_UNSUPPORTED : BANYAN_ERR_ARGUMENT, word);
  else
    ck_assert_msg(status == BANYAN_OK, "%s", banyan_last_error());
}

#define REJECT(field, value, word)      \
  do {                                  \
    banyan_attention_desc bad = p.desc; \
    bad.field = value;                  \
    reject(&bad, &out, word);           \
  } while (0)

TEST(rejections) {
  drawn p;
  drawn_plain(&p, 1, 2, 4, 2, 16, 0, BANYAN_F32, BANYAN_F32, (int32_t[]){5, 7}, 1);
  banyan_partial out;
  result r = result_make(&p.desc, &out);
  reject(&p.desc, &out, NULL);
  reject(NULL, &out, "desc");
  reject(&p.desc, NULL, "out");
  REJECT(size, 0, "size");
  REJECT(size, offsetof(banyan_attention_desc, select) - 8, "size"); /* no version was smaller */
  REJECT(batch, -1, "batch");
  REJECT(heads, 0, "heads");
  REJECT(heads, 5, "heads is 5, must be a multiple of kv_heads");
  REJECT(heads, 1 << 30, "batch 2 x heads 1073741824");
  REJECT(kv_heads, 0, "kv_heads");
  REJECT(kv_heads, -2, "kv_heads");
  REJECT(head_dim, 0, "head_dim");
  REJECT(head_dim, 577, "head_dim");
  REJECT(head_dim, 576, "value_dim is 576 (head_dim, as it is unset)");
  REJECT(value_dim, -1, "value_dim");
  REJECT(value_dim, 513, "value_dim");
  REJECT(scale, NAN, "scale");
  REJECT(scale, INFINITY, "scale");
  REJECT(q_dtype, (banyan_dtype)0, "q_dtype");
  REJECT(kv.dtype, (banyan_dtype)9, "kv_dtype");
  REJECT(q, NULL, "q is NULL");
  REJECT(kv.k, NULL, "k is NULL");
  REJECT(kv.v, NULL, "v is NULL");
  REJECT(kv.seq_lens, NULL, "seq_lens");
  REJECT(kv.seq_lens, ((int32_t[]){3, -4}), "seq_lens[1] is -4");
  REJECT(kv.pages.count, -1, "pages is -1, negative");
  REJECT(keys_max, -1, "keys_max is -1, negative");
  REJECT(kv.pages.count, 4, "pages is 4 and page_table is NULL");
  REJECT(soft_cap, -1, "soft_cap is -1");
  REJECT(soft_cap, NAN, "soft_cap is nan");
  REJECT(sinks, ((float[]){0, -INFINITY, INFINITY, 0}), "sinks[2] is inf");
  REJECT(rope.dim, 16, "rope_dim is 16, must be 0 to head_dim - 1, which is 15");
  REJECT(rope.dim, -1, "rope_dim is -1");
  REJECT(rope.dim, 4, "rope_dim is 4 and q_rope is NULL");
  REJECT(rope.q, p.desc.q, "rope_dim is 0 and q_rope is given");
  REJECT(kv.pages.indptr, ((int32_t[]){0, 1, 2}), "page_indptr is set, but page_table is NULL");
  REJECT(kv.pages.last_len, ((int32_t[]){1, 1}), "last_page_len is set, but page_indptr is NULL");
  REJECT(part_count, 2, "part_count is set and parts is NULL");
  REJECT(kv.key_first, ((int32_t[]){0, 0}), "key_first is set and parts is NULL");
  for (int i = 0; i < 2; i++) {
    int64_t far = i ? INT64_MIN : INT64_MAX / 2;
    REJECT(q_batch_stride, far, i ? "q_batch_stride is -9223372036854775808, out of range" : "q_batch_stride is 4611");
    REJECT(q_head_stride, far, "q_head_stride");
    REJECT(kv.k_batch_stride, far, "k_batch_stride");
    REJECT(kv.k_head_stride, far, "k_head_stride");
    REJECT(kv.k_token_stride, far, "k_token_stride");
    REJECT(kv.v_batch_stride, far, "v_batch_stride");
    REJECT(kv.v_head_stride, far, "v_head_stride");
    REJECT(kv.v_token_stride, far, "v_token_stride");
  }
  REJECT(q_head_stride, 15, "q_head_stride");
  REJECT(kv.k_token_stride, 0, "k_token_stride");
  REJECT(kv.v_token_stride, -1, "v_token_stride");
  REJECT(kv.k_head_stride, 15, "k_head_stride");
  REJECT(kv.v_head_stride, -1, "v_head_stride");
  banyan_partial bad = out;
  bad.base = (banyan_base)0;
  reject(&p.desc, &bad, "base");
  bad = out;
  bad.values = NULL;
  reject(&p.desc, &bad, "values");
  result_free(&r);
  drawn_free(&p);
}

#define REJECT_QUERIES(field, value, word) \
  do {                                     \
    banyan_queries wrong = queries;        \
    wrong.field = value;                   \
    banyan_attention_desc bad = p.desc;    \
    bad.queries = &wrong;                  \
    reject(&bad, &out, word);              \
  } while (0)

TEST(wrong_queries) {
  drawn p;
  drawn_plain(&p, 2, 2, 4, 2, 16, 0, BANYAN_F32, BANYAN_F32, (int32_t[]){5, 7}, 1);
  int32_t starts[] = {0, 1, 2}, at[] = {4, 6}, many[] = {0, 0, 65};
  uint64_t masks[80] = {0};
  banyan_queries queries = {.size = sizeof queries, .tokens = 2, .query_start_loc = starts, .query_start = at};
  p.desc.queries = &queries;
  banyan_partial out;
  result r = result_make(&p.desc, &out);
  reject(&p.desc, &out, NULL);
  REJECT_QUERIES(size, 8, "queries.size is 8");
  REJECT_QUERIES(tokens, -1, "queries.tokens is -1");
  REJECT_QUERIES(tokens, 1, "queries.query_start_loc[2] is 2: starts must not be negative or decrease, or pass the 1 ");
  REJECT_QUERIES(query_start_loc, ((int32_t[]){0, 2, 1}), "queries.query_start_loc[2] is 1");
  REJECT_QUERIES(query_start_loc, ((int32_t[]){-1, 0, 1}), "queries.query_start_loc[0] is -1");
  REJECT_QUERIES(query_start, ((int32_t[]){0, -3}), "queries.query_start[1] is -3");
  REJECT_QUERIES(key_start, ((int32_t[]){-9, 0}), "queries.key_start[0] is -9");
  REJECT_QUERIES(window, -2, "queries.window is -2");
  REJECT_QUERIES(key_block, -2, "queries.key_block is -2");
  REJECT_QUERIES(key_block, 4, "queries.key_stride is 0, and key_block is 4");
  REJECT_QUERIES(key_stride, 4, "queries.key_stride is 4, and key_block is 0");
  REJECT_QUERIES(key_pattern_len, -1, "queries.key_pattern_len is -1");
  REJECT_QUERIES(key_pattern_len, 2, "queries.key_pattern_len is 2, and key_pattern is NULL");
  REJECT_QUERIES(key_mask_stride, -7, "queries.key_mask_stride is -7");
  queries.key_pattern = (int32_t[]){0, 2}, queries.key_pattern_len = 2;
  REJECT_QUERIES(key_pattern, queries.key_pattern, "queries.key_pattern_len is 2, and key_block is 0");
  queries.key_block = 4, queries.key_stride = 15;
  REJECT_QUERIES(key_pattern, ((int32_t[]){-1, 2}), "queries.key_pattern[0] is -1");
  REJECT_QUERIES(key_pattern, ((int32_t[]){2, 2}), "queries.key_pattern[1] is 2: numbers of blocks must grow");
  REJECT_QUERIES(key_pattern, ((int32_t[]){1, 3}),
                 "queries.key_pattern[1] is 3: numbers of blocks must grow, and be "
                 "below the 3 that key_stride has room for");
  reject(&p.desc, &out, NULL);
  queries.key_pattern_len = 0, queries.key_block = queries.key_stride = 0;
  queries.query_start = NULL;
  REJECT_QUERIES(window, 2, "queries.window is given, and query_start is NULL");
  REJECT_QUERIES(tree_mask, masks, "queries.tree_mask is given, and query_start is NULL");
  REJECT_QUERIES(key_start, at, "queries.key_start is given, and query_start is NULL");
  queries.query_start_loc = NULL;
  REJECT_QUERIES(tokens, 3, "queries.tokens is 3 and batch 2");
  queries = (banyan_queries){
      .size = sizeof queries, .tokens = 80, .query_start_loc = many, .query_start = at, .tree_mask = masks};
  reject(&p.desc, &out, "sequence 1 has 65 query tokens, and queries.tree_mask has 64 bits");
  result_free(&r);
  drawn_free(&p);
}

TEST(wrong_lists_of_pages) {
  enum { DIM = 16 };
  float q[2 * DIM] = {0}, k[4 * 3 * DIM] = {0};
  int32_t table[] = {0, 1, 2, 3}, indptr[] = {0, 1, 4}, last[] = {3, 2}, lens[] = {3, 9};
  drawn p = {.desc = attention_desc_of(2, 1, 1, 3, DIM, DIM, BANYAN_F32, BANYAN_F32, q, k, k, NULL)};
  p.desc.kv.pages = (banyan_pages){.table = table, .indptr = indptr, .last_len = last, .keys = 3, .count = 4};
  banyan_partial out;
  result r = result_make(&p.desc, &out);
  reject(&p.desc, &out, NULL);
  REJECT(kv.pages.keys, 0, "page_keys is 0, must be at least 1");
  REJECT(kv.pages.indptr, ((int32_t[]){0, 3, 1}), "page_indptr[1] is 3 and the next 1");
  REJECT(kv.pages.indptr, ((int32_t[]){-1, 1, 4}), "page_indptr[0] is -1");
  REJECT(kv.pages.last_len, ((int32_t[]){3, 4}), "last_page_len[1] is 4, must be 1 to page_keys, which is 3");
  REJECT(kv.pages.last_len, ((int32_t[]){0, 1}), "last_page_len[0] is 0");
  table[3] = 4;
  reject(&p.desc, &out, "page_table[1][2] is 4, must be 0 to 3");
  table[3] = 3;
  p.desc.kv.pages.last_len = NULL;
  p.desc.kv.seq_lens = lens;
  reject(&p.desc, &out, NULL);
  lens[0] = 4;
  reject(&p.desc, &out, "seq_lens[0] is 4, and page_indptr gives it 1 pages of 3 keys");
  result_free(&r);
}

/* Ids within a sequence's length are checked before anything is read. Reading through an unchecked id would hit an
 * unmapped page. */
TEST(wrong_pages) {
  enum { PAGE_KEYS = 4, PAGES = 5, ROW_PAGES = 3, DIM = 16 };
  random_state = 31;
  guarded k = guarded_make(sizeof(float) * PAGES * PAGE_KEYS * DIM);
  fill(k.data, PAGES * PAGE_KEYS * DIM, BANYAN_F32, 1);
  float q[2 * DIM] = {0};
  int32_t lengths[2] = {2 * PAGE_KEYS, ROW_PAGES * PAGE_KEYS - 3};
  banyan_attention_desc desc =
      attention_desc_of(2, 1, 1, PAGE_KEYS, DIM, DIM, BANYAN_F32, BANYAN_F32, q, k.data, k.data, lengths);
  desc.kv.pages = (banyan_pages){.table_stride = ROW_PAGES, .keys = PAGE_KEYS, .count = PAGES};
  static const struct {
    int32_t sequence, place, id, pages;
    const char *says; /* NULL: valid */
  } cases[] = {
      {0, 0, -1, PAGES, "page_table[0][0] is -1, must be 0 to 4"},
      {0, 1, PAGES, PAGES, "page_table[0][1] is 5, must be 0 to 4"},
      {1, 2, INT32_MAX, PAGES, "page_table[1][2] is 2147483647, must be 0 to 4"},
      {1, 0, INT32_MIN, PAGES, "page_table[1][0] is -2147483648"},
      {1, 1, -7, 0, "page_table[1][1] is -7"},
      {1, 1, 4, 4, "page_table[1][1] is 4, must be 0 to 3"},
      {1, 1, 4, PAGES, NULL},
      {0, 2, -1, PAGES, NULL}, /* beyond the sequence length */
      {0, 2, INT32_MAX, PAGES, NULL},
  };
  banyan_partial out;
  result r = result_make(&desc, &out);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int32_t table[2 * ROW_PAGES] = {0, 1, 2, 3, 0, 1};
    table[cases[i].sequence * ROW_PAGES + cases[i].place] = cases[i].id;
    desc.kv.pages.table = table;
    desc.kv.pages.count = cases[i].pages;
    reject(&desc, &out, cases[i].says);
  }
  int32_t table[2 * ROW_PAGES] = {0, 1, 2, 3, 0, 1};
  desc.kv.pages.table = table;
  lengths[0] = ROW_PAGES * PAGE_KEYS + 1;
  reject(&desc, &out, "seq_lens[0] is 13, and page_table_stride of 3");
  lengths[0] = 1;
  desc.keys_max = ROW_PAGES * PAGE_KEYS + 1;
  reject(&desc, &out, "keys_max is 13, and page_table_stride of 3");
  desc.batch = 1;
  desc.keys_max = 0;
  lengths[0] = ROW_PAGES * PAGE_KEYS + 1;
  reject(&desc, &out, "seq_lens[0] is 13, and page_table_stride of 3");
  lengths[0] = 1;
  desc.batch = 2;
  desc.kv.pages.table_stride = 0; /* all sequences share one table */
  reject(&desc, &out, NULL);
  result_free(&r);
  munmap(k.map, k.map_bytes);
}

/* A batch of 0 has no rows, so only the shape is checked. */
TEST(no_sequences) {
  banyan_attention_desc desc = attention_desc_of(0, 4, 2, 0, 16, 16, BANYAN_F32, BANYAN_F32, NULL, NULL, NULL, NULL);
  desc.keys_max = 100;
  banyan_partial out;
  banyan_partial_init(&out, NULL, BANYAN_F32, NULL, BANYAN_F32, 4, 16);
  reject(&desc, &out, NULL);
  banyan_attention_desc bad = desc;
  bad.heads = 5;
  reject(&bad, &out, "heads is 5");
  /* Sequences without query tokens have no rows either, and no other field of their queries is read. */
  const int32_t *unreadable = (const int32_t *)(uintptr_t)8;
  banyan_queries queries[] = {BANYAN_QUERIES_INIT, BANYAN_QUERIES_INIT};
  queries[1].query_start_loc = queries[1].query_start = queries[1].key_start = unreadable;
  queries[1].window = queries[1].key_stride = -1;
  bad = desc;
  bad.batch = 2;
  for (int i = 0; i < 2; i++) {
    bad.queries = &queries[i];
    reject(&bad, &out, NULL);
  }
}

TEST(head_strides_of_0) {
  enum { DIM = 16, KEYS = 7, HEADS = 4 };
  random_state = 5;
  float q[DIM], k[KEYS * DIM], v[KEYS * DIM], out[2][HEADS * DIM], lse[2][HEADS];
  float all_q[HEADS * DIM], all_k[HEADS * KEYS * DIM], all_v[HEADS * KEYS * DIM];
  const int32_t length = KEYS;
  fill(q, DIM, BANYAN_F32, 1), fill(k, KEYS * DIM, BANYAN_F32, 1), fill(v, KEYS * DIM, BANYAN_F32, 1);
  for (int h = 0; h < HEADS; h++) {
    memcpy(all_q + h * DIM, q, sizeof q);
    memcpy(all_k + h * KEYS * DIM, k, sizeof k);
    memcpy(all_v + h * KEYS * DIM, v, sizeof v);
  }
  banyan_attention_desc desc =
      attention_desc_of(1, HEADS, HEADS, KEYS, DIM, DIM, BANYAN_F32, BANYAN_F32, q, k, v, &length);
  for (int copied = 0; copied < 2; copied++) {
    banyan_partial to;
    banyan_partial_init(&to, out[copied], BANYAN_F32, lse[copied], BANYAN_F32, HEADS, DIM);
    desc.q = copied ? all_q : q, desc.kv.k = copied ? all_k : k, desc.kv.v = copied ? all_v : v;
    desc.q_head_stride = copied ? DIM : 0;
    desc.kv.k_head_stride = desc.kv.v_head_stride = copied ? KEYS * DIM : 0;
    reject(&desc, &to, NULL);
  }
  ck_assert(memcmp(out[0], out[1], sizeof out[0]) == 0 && memcmp(lse[0], lse[1], sizeof lse[0]) == 0);
}

TEST(wrong_scales) {
  drawn p;
  drawn_plain(&p, 1, 1, 4, 2, 16, 0, BANYAN_F32, BANYAN_E4M3, (int32_t[]){5}, 1);
  banyan_partial out;
  result r = result_make(&p.desc, &out);
  const float wrong[] = {0, -1, NAN, INFINITY, -INFINITY, -0.0F};
  p.desc.kv.scales.head_stride = 1;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    REJECT(kv.scales.k, ((float[]){1, wrong[i]}), "k_scale[1] of KV head 1 is ");
    REJECT(kv.scales.v, ((float[]){wrong[i], 1}), "v_scale[0] of KV head 0 is ");
  }
  result_free(&r);
  drawn_free(&p);
}

TEST(wrong_rows) {
  drawn p;
  drawn_plain(&p, 1, 2, 4, 2, 576, 512, BANYAN_F32, BANYAN_E4M3, (int32_t[]){5, 7}, 1);
  banyan_partial out;
  result r = result_make(&p.desc, &out);
  REJECT(kv.rows, (banyan_kv_rows)2, "kv_rows is 2");
  REJECT(kv.dtype, BANYAN_F16, "k_scale is set, but kv_dtype is 2");
  p.desc.kv.rows = BANYAN_KV_ROWS_FLASHMLA_FP8;
  reject(&p.desc, &out, "have separate scales");
  p.desc.kv.rows = BANYAN_KV_ROWS_PLAIN, p.desc.kv.scales.k = NULL;
  REJECT(kv.dtype, BANYAN_F16, "v_scale is set");
  p.desc.kv.rows = BANYAN_KV_ROWS_FLASHMLA_FP8, p.desc.kv.scales.v = NULL;
  reject(&p.desc, &out, "v is not k");
  p.desc.kv.v = NULL, p.desc.kv.k_token_stride = 576;
  reject(&p.desc, &out, "k_token_stride is 576: rows of 656 elements would overlap");
  REJECT(value_dim, 576, "must be 1 to 512");
  REJECT(value_dim, 256, "must be BANYAN_E4M3, 576 and 512");
  result_free(&r);
  drawn_free(&p);
}

/* The statements spoil a list of 10 and of 7 keys, and attention fails with this text. */
#define REJECT_PARTS(word, ...)                                      \
  do {                                                               \
    banyan_kv_part parts[] = {halves[0].desc.kv, halves[1].desc.kv}; \
    int32_t first[] = {0, 10}, sum[] = {17};                         \
    banyan_attention_desc desc = halves[0].desc;                     \
    attention_clear_keys(&desc);                                     \
    desc.parts = parts, desc.part_count = 2, desc.kv.seq_lens = sum; \
    parts[0].key_first = &first[0], parts[1].key_first = &first[1];  \
    __VA_ARGS__;                                                     \
    reject(&desc, &out, word);                                       \
  } while (0)

TEST(wrong_lists_of_parts) {
  drawn halves[2];
  banyan_partial out;
  drawn_plain(&halves[0], 5, 1, 2, 1, 16, 0, BANYAN_F32, BANYAN_F32, (int32_t[]){10}, 1);
  drawn_plain(&halves[1], 6, 1, 2, 1, 16, 0, BANYAN_F32, BANYAN_F16, (int32_t[]){7}, 1);
  result r = result_make(&halves[0].desc, &out);
  REJECT_PARTS(NULL, (void)0);
  REJECT_PARTS("parts[1]: kv_dtype is 0", parts[1].dtype = (banyan_dtype)0);
  REJECT_PARTS("parts[1].key_first[0] is 9, which overlaps: the parts before end at key 10", first[1] = 9);
  REJECT_PARTS("parts[1].key_first[0] is 11, which leaves a gap", first[1] = 11);
  REJECT_PARTS("parts[0].key_first[0] is 7, which leaves a gap", first[0] = 7, first[1] = 0);
  REJECT_PARTS("seq_lens[0] is 16, and the parts have 17 keys", sum[0] = 16);
  REJECT_PARTS("part_count is 0, must be 1 to 8", desc.part_count = 0);
  REJECT_PARTS("part_count is 9, must be 1 to 8", desc.part_count = 9);
  REJECT_PARTS("parts[1]: k is NULL", parts[1].k = NULL);
  REJECT_PARTS("k is set next to parts", desc.kv.k = parts[0].k);
  REJECT_PARTS("v_token_stride is set next to parts", desc.kv.v_token_stride = 16);
  REJECT_PARTS("kv_dtype is set next to parts", desc.kv.dtype = BANYAN_F16);
  REJECT_PARTS("parts[0]: seq_lens is NULL", parts[0].seq_lens = NULL);
  REJECT_PARTS("prune is set next to parts", desc.prune.epsilon = 0.5f);
  REJECT_PARTS("parts[1]: k_token_stride is 1", parts[1].k_token_stride = 1);
  result_free(&r);
  drawn_free(&halves[0]), drawn_free(&halves[1]);
}

int main(void) { return suite_main(suite_of("attention_rejected", 0)); }
