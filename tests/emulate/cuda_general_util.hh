/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of general decode kernels: calls with several query tokens, masks, lists of pages, scales, caps and sinks,
 * and a reference that asks for each token and key by its position. */
#ifndef BNY_TESTS_CUDA_GENERAL_UTIL_HH
#define BNY_TESTS_CUDA_GENERAL_UTIL_HH

#include "tests/emulate/cuda_decode_util.hh"

enum general_pages { PAGES_NONE, PAGES_TABLE, PAGES_LIST, PAGES_LIST_WITH_LAST };

struct general_case : decode_case {
  bny_decode_rows kv = BNY_ROWS_general;
  std::vector<int32_t> tokens; /* query tokens of each sequence; empty: one each, without query_start_loc */
  int padding = 0;
  bool positions = false;
  int key_block = 0, key_stride = 0, window = 0;
  bool tree = false;
  float soft_cap = 0;
  bool sinks = false, scales = false, scale_per_head = false;
  int rope_dim = 0;
  general_pages pages = PAGES_NONE;

  int tokens_of(int b) const { return tokens.empty() ? 1 : tokens[(size_t)b]; }
  int first_token(int b) const {
    int first = 0;
    for (int i = 0; i < b; i++) first += tokens_of(i);
    return first;
  }
  int all_tokens() const { return first_token(batch()) + padding; }
  size_t row_bytes(int dim) const {
    return kv == BNY_ROWS_flashmla ? 656 : (size_t)(kv == BNY_ROWS_e4m3 ? dim : 2 * dim);
  }
};

struct general_memory : decode_memory {
  std::vector<int32_t> query_start_loc, query_start, key_start, page_indptr, last_page_len;
  std::vector<uint64_t> tree_mask;
  std::vector<float> sinks, k_scale, v_scale;
  std::vector<uint16_t> q_rope;
};

/* ---- making ------------------------------------------------------------------------------------------------------ */

inline double general_e4m3(unsigned char byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  const double size = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
  return byte & 0x80 ? -size : size;
}

inline void general_row_fill(const general_case &what, unsigned char *row, int dim) {
  const int eights = what.kv == BNY_ROWS_flashmla ? 512 : what.kv == BNY_ROWS_e4m3 ? dim : 0;
  for (int i = 0; i < eights; i++) /* subnormal numbers too, but no NaN */
    row[i] = (unsigned char)(random_int(0, 1) << 7 | (random_int(0, 7) ? random_int(5, 8) : random_int(0, 8)) << 3 |
                             random_int(0, 7));
  if (what.kv == BNY_ROWS_e4m3) return;
  float scales[4];
  for (float &scale : scales) scale = (float)random_real(0.5, 1.5);
  if (eights) memcpy(row + 512, scales, sizeof scales);
  uint16_t *wide = (uint16_t *)(void *)(row + (eights ? 528 : 0));
  for (int i = 0; i < (eights ? 64 : dim); i++) wide[i] = element_to(what, random_normal());
}

/* Address of a key's row. */
inline const unsigned char *general_row(const general_case &what, const general_memory &memory,
                                        const bny_decode_cache &cache, int b, int kv_head, int t) {
  const bny_decode_call &call = memory.call;
  int64_t page = b, within = t;
  if (what.pages != PAGES_NONE) {
    const int32_t *list =
        call.page_table + (what.pages == PAGES_TABLE ? b * call.page_table_stride : memory.page_indptr[(size_t)b]);
    page = list[t / what.page_keys];
    within = t % what.page_keys;
  }
  return (const unsigned char *)cache.base + page * cache.page_stride + within * cache.token_stride +
         kv_head * cache.head_stride;
}

inline double general_element(const general_case &what, const unsigned char *row, int i) {
  uint16_t half;
  float scale;
  if (what.kv == BNY_ROWS_e4m3) return general_e4m3(row[i]);
  if (what.kv == BNY_ROWS_flashmla && i < 512) {
    memcpy(&scale, row + 512 + i / 128 * 4, 4);
    return general_e4m3(row[i]) * (double)scale;
  }
  memcpy(&half, row + (what.kv == BNY_ROWS_flashmla ? 528 + 2 * (i - 512) : 2 * i), 2);
  return (double)element_of(what, half);
}

inline int64_t general_position(const general_case &what, const general_memory &memory, int b, int t) {
  const int64_t start = memory.key_start.empty() ? 0 : memory.key_start[(size_t)b];
  return what.key_block ? start + (int64_t)(t / what.key_block) * what.key_stride + t % what.key_block : start + t;
}

/* As banyan_queries defines it. */
inline bool general_sees(const general_case &what, const general_memory &memory, int b, int token, int t) {
  if (!what.positions) return true;
  const int64_t draft = general_position(what, memory, b, t) - memory.query_start[(size_t)b];
  int64_t own = token, at = draft;
  const uint64_t mask = what.tree ? memory.tree_mask[(size_t)(what.first_token(b) + token)] : 0;
  if (what.tree) own = __builtin_popcountll(mask & ((UINT64_C(1) << token) - 1));
  if (what.tree && draft > 0 && draft < 64) at = __builtin_popcountll(mask & ((UINT64_C(1) << draft) - 1));
  if (what.window && at <= own - what.window) return false;
  if (!what.tree || draft < 0) return draft <= own;
  return draft < 64 && (mask >> draft & 1) != 0;
}

inline void general_make_pages(const general_case &what, general_memory *memory, int longest) {
  const int keys = what.pages == PAGES_NONE ? longest : what.page_keys, stride = (longest + keys - 1) / keys + 1;
  memory->page_indptr.assign(1, 0);
  memory->last_page_len.clear();
  std::vector<int32_t> ids;
  for (int b = 0; b < what.batch(); b++) {
    const int count = (what.lengths[(size_t)b] + keys - 1) / keys;
    memory->page_indptr.push_back(memory->page_indptr.back() + count);
    memory->last_page_len.push_back(count ? what.lengths[(size_t)b] - (count - 1) * keys : 0);
  }
  const int listed = memory->page_indptr.back(), room = what.pages == PAGES_TABLE ? what.batch() * stride : listed;
  for (int i = 0; i < room; i++) ids.push_back(i);
  for (int i = room - 1; i > 0; i--) std::swap(ids[(size_t)i], ids[(size_t)random_int(0, i)]);
  ids.push_back(-1);
  memory->page_table = ids;
}

inline void general_make_queries(const general_case &what, general_memory *memory) {
  for (int b = 0; b <= what.batch() && !what.tokens.empty(); b++)
    memory->query_start_loc.push_back(what.first_token(b));
  for (int i = 0; i < what.all_tokens(); i++)
    memory->tree_mask.push_back((uint64_t)random_bits() << 32 | random_bits());
  for (int b = 0; b < what.batch() && what.positions; b++) {
    memory->key_start.push_back(random_int(0, 40));
    const int length = what.lengths[(size_t)b];
    const int64_t end = length ? general_position(what, *memory, b, length - 1) + 1 : 20;
    /* often at the end of the shard, and elsewhere where other ranks have the last keys */
    memory->query_start.push_back(
        (int32_t)std::fmax(0, random_int(0, 2) ? end - random_int(0, 20) : random_int(0, (int)(end + 10))));
  }
  for (int i = 0; i < what.heads(); i++) memory->sinks.push_back(i % 5 == 4 ? -INFINITY : (float)random_real(-3, 3));
  for (int i = 0; i < what.kv_heads; i++) {
    memory->k_scale.push_back((float)random_real(0.1, 0.5));
    memory->v_scale.push_back((float)random_real(0.2, 3));
  }
}

/* Pages of keys that no token of a sequence sees are gone. */
inline void general_drop_pages(const general_case &what, general_memory *memory) {
  if (what.pages == PAGES_NONE || !what.window) return;
  for (int b = 0; b < what.batch(); b++) {
    int first = 0;
    while (first < what.lengths[(size_t)b] &&
           general_position(what, *memory, b, first) <= memory->query_start[(size_t)b] - what.window)
      first++;
    const size_t list = what.pages == PAGES_TABLE ? (size_t)(b * memory->call.page_table_stride)
                                                  : (size_t)memory->page_indptr[(size_t)b];
    for (int i = 0; (i + 1) * what.page_keys <= first; i++) memory->page_table[list + (size_t)i] = -1;
  }
}

inline bny_decode_cache general_cache(const general_case &what, std::vector<uint16_t> *memory, int dim, int pages,
                                      int page_keys) {
  bny_decode_cache made;
  made.token_stride = (int64_t)what.row_bytes(dim);
  made.head_stride = made.token_stride * page_keys;
  made.page_stride = made.head_stride * what.kv_heads;
  memory->assign((size_t)(pages * made.page_stride) / 2, 0x7fff);
  made.base = memory->data();
  return made;
}

inline void general_fill(const general_case &what, general_memory *memory, const bny_decode_cache &cache, int dim) {
  for (int b = 0; b < what.batch(); b++)
    for (int h = 0; h < what.kv_heads; h++)
      for (int t = 0; t < what.lengths[(size_t)b]; t++)
        general_row_fill(what, const_cast<unsigned char *>(general_row(what, *memory, cache, b, h, t)), dim);
}

inline void general_call(const general_case &what, general_memory *memory, int longest) {
  bny_decode_call &call = memory->call;
  const int nope = what.head_dim - what.rope_dim;
  call.batch = what.batch();
  call.kv_heads = what.kv_heads;
  call.group = what.group;
  call.keys_max = longest;
  call.scale_log2 = (float)(BNY_LOG2_E / std::sqrt((double)what.head_dim));
  call.q = memory->q.data();
  call.q_head_stride = 2 * nope;
  call.q_batch_stride = call.q_head_stride * what.heads();
  call.seq_lens = memory->lengths.data();
  call.division = {what.teams, what.units_min, what.item_cost, what.fan_in};
  bny_decode_general &general = call.general;
  general.tokens = what.all_tokens();
  general.window = what.window;
  if (!what.tokens.empty()) general.query_start_loc = memory->query_start_loc.data();
  if (what.positions) general.query_start = memory->query_start.data();
  if (what.positions) general.key_start = memory->key_start.data();
  if (what.tree) general.tree_mask = memory->tree_mask.data();
  general.key_block = what.key_block;
  general.key_stride = what.key_stride;
  general.soft_cap_log2 = what.soft_cap * (float)BNY_LOG2_E;
  general.nope_bytes = what.rope_dim ? 2 * nope : INT32_MAX;
  if (what.sinks) general.sinks = memory->sinks.data();
  if (what.scales) general.k_scale = memory->k_scale.data();
  if (what.scales) general.v_scale = memory->v_scale.data();
  general.kv_scale_stride = what.scale_per_head;
  general.q_rope = memory->q_rope.data();
  general.q_rope_head_stride = 2 * what.rope_dim;
  general.q_rope_batch_stride = general.q_rope_head_stride * what.heads();
  if (what.pages >= PAGES_LIST) general.page_indptr = memory->page_indptr.data();
  if (what.pages == PAGES_LIST_WITH_LAST) general.last_page_len = memory->last_page_len.data();
  if (what.pages == PAGES_LIST_WITH_LAST) call.seq_lens = nullptr;
  bny_decode_divide_pages(&general, (uint32_t)(what.pages == PAGES_NONE ? 1 : what.page_keys));
}

inline void general_memory_make(const general_case &what, general_memory *memory) {
  int longest = 1;
  for (int32_t length : what.lengths) longest = length > longest ? length : longest;
  const int page_keys = what.pages == PAGES_NONE ? longest : what.page_keys;
  bny_decode_call &call = memory->call;
  memset(&call, 0, sizeof call);
  memory->lengths = what.lengths;
  general_make_pages(what, memory, longest);
  general_make_queries(what, memory);
  const int pages = what.pages == PAGES_NONE ? what.batch() : (int)memory->page_table.size() - 1;
  call.pages = (uint32_t)pages;
  if (what.pages != PAGES_NONE) call.page_table = memory->page_table.data();
  call.page_table_stride = (longest + page_keys - 1) / page_keys + 1;
  call.k = general_cache(what, &memory->k, what.head_dim, pages, page_keys);
  general_fill(what, memory, call.k, what.head_dim);
  call.v = call.k;
  if (!what.shared_cache) {
    call.v = general_cache(what, &memory->v, what.value_dim, pages, page_keys);
    general_fill(what, memory, call.v, what.value_dim);
  }
  const size_t rows = (size_t)what.all_tokens() * (size_t)what.heads();
  memory->q.resize(rows * (size_t)(what.head_dim - what.rope_dim));
  memory->q_rope.resize(rows * (size_t)what.rope_dim);
  for (uint16_t &one : memory->q) one = element_to(what, random_normal() * (double)what.sharpness);
  for (uint16_t &one : memory->q_rope) one = element_to(what, random_normal() * (double)what.sharpness);
  memory->values.resize(rows * (size_t)what.value_dim * out_bytes(what.out_dtype));
  memory->lse.resize(rows * 4);
  memory->sum.resize(rows * 4);
  general_call(what, memory, longest);
  memory->scratch.resize(4 *
                         bny_decode_scratch_floats(&call.division, (uint32_t)what.tile_rows, (uint32_t)what.value_dim));
  memory->counters.assign(bny_decode_counters(&call.division, what.cluster), 0);
  call.scratch = (float *)(void *)memory->scratch.data();
  call.counters = memory->counters.data();
  banyan_partial_init(&call.out, memory->values.data(), what.out_dtype, memory->lse.data(), BANYAN_F32, what.heads(),
                      what.value_dim);
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

inline double general_query(const general_case &what, const general_memory &memory, size_t row, int i) {
  const int nope = what.head_dim - what.rope_dim;
  return i < nope ? (double)element_of(what, memory.q[row * (size_t)nope + (size_t)i])
                  : (double)element_of(what, memory.q_rope[row * (size_t)what.rope_dim + (size_t)(i - nope)]);
}

inline double general_logit(const general_case &what, const general_memory &memory, size_t row,
                            const unsigned char *key, double k_scale, double *size) {
  double dot = 0;
  *size = 0;
  for (int i = 0; i < what.head_dim; i++) {
    const double product = general_query(what, memory, row, i) * general_element(what, key, i);
    dot += product;
    *size += std::fabs(product);
  }
  const double scale = (double)memory.call.scale_log2 * k_scale, t = dot * scale;
  *size *= scale;
  if (what.soft_cap == 0) return t;
  const double cap = (double)what.soft_cap * BNY_LOG2_E;
  return cap * std::tanh(t / cap);
}

inline decode_reference general_reference(const general_case &what, const general_memory &memory, int b, int token,
                                          int head) {
  const int length = what.lengths[(size_t)b], kv_head = head / what.group;
  const size_t row = (size_t)(what.first_token(b) + token) * (size_t)what.heads() + (size_t)head;
  const size_t of_scale = what.scale_per_head ? (size_t)kv_head : 0;
  const double k_scale = what.scales ? (double)memory.k_scale[of_scale] : 1;
  const double v_scale = what.scales ? (double)memory.v_scale[of_scale] : 1;
  decode_reference made = {-INFINITY, 0, 0, std::vector<double>((size_t)what.value_dim),
                           std::vector<double>((size_t)what.value_dim)};
  std::vector<double> logits((size_t)length, -INFINITY);
  for (int t = 0; t < length; t++) {
    if (!general_sees(what, memory, b, token, t)) continue;
    double size;
    logits[(size_t)t] =
        general_logit(what, memory, row, general_row(what, memory, memory.call.k, b, kv_head, t), k_scale, &size);
    made.reach = std::fmax(made.reach, size);
    made.max = std::fmax(made.max, logits[(size_t)t]);
  }
  const double sink = what.sinks ? (double)memory.sinks[(size_t)head] * BNY_LOG2_E : -INFINITY;
  made.max = std::fmax(made.max, sink);
  if (sink > -INFINITY) made.sum += std::exp2(sink - made.max);
  for (int t = 0; t < length; t++) {
    if (logits[(size_t)t] == -INFINITY) continue;
    const unsigned char *v = general_row(what, memory, memory.call.v, b, kv_head, t);
    const double p = std::exp2(logits[(size_t)t] - made.max);
    made.sum += p;
    for (int i = 0; i < what.value_dim; i++) {
      const double value = general_element(what, v, i) * v_scale;
      made.values[(size_t)i] += p * value;
      made.weight[(size_t)i] += p * std::fabs(value);
    }
  }
  return made;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

inline std::string general_text(const general_case &what) {
  char text[400];
  snprintf(
      text, sizeof text,
      "%s kv_heads %d group %d batch %d tokens %d+%d first length %d pages %d of %d positions %d block %d/%d window "
      "%d tree %d cap %g sinks %d scales %d rope %d teams %u cluster %u",
      what.name, what.kv_heads, what.group, what.batch(), what.all_tokens() - what.padding, what.padding,
      what.batch() ? what.lengths[0] : 0, what.pages, what.page_keys, what.positions, what.key_block, what.key_stride,
      what.window, what.tree, (double)what.soft_cap, what.sinks, what.scales, what.rope_dim, what.teams, what.cluster);
  return text;
}

/* Checks one row. The fault of a wrong value ends the test. */
inline void general_check_row(const general_case &what, const general_memory &memory, int b, int token, int head,
                              decode_error *worst) {
  const size_t row = (size_t)(what.first_token(b) + token) * (size_t)what.heads() + (size_t)head;
  const decode_reference reference = general_reference(what, memory, b, token, head);
  if (reference.sum == 0) {
    EXPECT_MSG(decode_empty_is_right(what, memory, row), "%s: empty row %zu", general_text(what).c_str(), row);
    return;
  }
  const double bound = decode_bound(what, reference, what.lengths[(size_t)b]);
  bool has_values = false;
  for (double weight : reference.weight) has_values = has_values || weight > 0;
  if (!has_values) return; /* a sink alone */
  const decode_error error = decode_row_error(what, memory, row, reference, bound);
  EXPECT_MSG(error.absolute <= bound && error.lse <= decode_lse_bound(reference),
             "%s: sequence %d token %d head %d: error %g of the weight, lse %g", general_text(what).c_str(), b, token,
             head, error.absolute, error.lse);
  worst->widen(error);
}

inline decode_error general_run(const general_case &what) {
  general_memory memory;
  decode_error worst;
  general_memory_make(what, &memory);
  const std::vector<int32_t> kept = memory.page_table;
  general_drop_pages(what, &memory);
  std::string why = decode_launch(what, &memory);
  EXPECT_MSG(why.empty(), "%s: %s", general_text(what).c_str(), why.c_str());
  memory.page_table = kept;
  memory.call.page_table = memory.page_table.data();
  for (int b = 0; b < what.batch(); b++)
    for (int token = 0; token < what.tokens_of(b); token++)
      for (int head = 0; head < what.heads(); head++) general_check_row(what, memory, b, token, head, &worst);
  for (int row = (what.all_tokens() - what.padding) * what.heads(); row < what.all_tokens() * what.heads(); row++)
    EXPECT_MSG(decode_empty_is_right(what, memory, (size_t)row), "%s: padding, row %d", general_text(what).c_str(),
               row);
  return worst;
}

#endif
