/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of decode kernels: a call with its memory, a reference in double precision, the comparison. */
#ifndef BNY_TESTS_CUDA_DECODE_UTIL_HH
#define BNY_TESTS_CUDA_DECODE_UTIL_HH

#include <check.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/decode_shape.h"
#include "cuda/device.h"
#include "cuda/program.h"
#include "merge_math.h"
#include "tests/ptx/compiled.hh"
#include "tests/support/random.h"

/* ---- cases ------------------------------------------------------------------------------------------------------- */

typedef void (*decode_kernel)(const bny_decode_call call, const bny_device_combine combine);

struct decode_case {
  const char *name = "";
  decode_kernel kernel = nullptr;
  bool bf16 = true;
  int head_dim = 128, value_dim = 128;
  bool shared_cache = false; /* values are the first columns of keys */
  int tile_rows = 16;
  uint32_t threads = 128, shared_bytes = 0;

  int kv_heads = 1, group = 1;
  std::vector<int32_t> lengths;
  int page_keys = 0;   /* 0: contiguous */
  float sharpness = 1; /* approximate size of logits */
  /* A wrong entry of the page table, in one of several ways; sequence -1: none. */
  int wrong_sequence = -1, wrong_place = 0, wrong_way = 0;

  uint32_t teams = 4, cluster = 1, fan_in = 16, units_min = 1, item_cost = 2;
  banyan_dtype out_dtype = BANYAN_F32;
  banyan_values out_values = BANYAN_VALUES_NORMALISED;
  banyan_stats out_stats = BANYAN_STATS_LSE;
  banyan_base out_base = BANYAN_BASE_E;
  uint32_t empty = BANYAN_EMPTY_NEG_INF;

  uint64_t seed = 1;
  uint32_t resident_blocks = 0;
  bool one_sign = false; /* values have one sign: errors of sums add up */
  bool one_term = false; /* weights are one term */
  int launches = 1;      /* on one stream, with the same counters */

  int heads() const { return kv_heads * group; }
  int batch() const { return (int)lengths.size(); }
  /* True if the key is in the wrong page. */
  bool is_lost(int b, int key) const { return b == wrong_sequence && key / page_keys == wrong_place; }
  bool loses() const { return wrong_sequence >= 0 && wrong_place * page_keys < lengths[(size_t)wrong_sequence]; }
};

enum : int { DECODE_WRONG_WAYS = 4 };
inline int32_t decode_wrong_page(int way, int pages) {
  const int32_t ids[DECODE_WRONG_WAYS] = {-1, pages, INT32_MAX, INT32_MIN};
  return ids[way];
}

struct decode_error {
  double absolute = 0; /* error of a value, relative to sum(p |v|) / d of its row and column */
  double row = 0;      /* |o' - o|_2 / |o|_2 */
  double ulps = 0;     /* error in ulps of the output's type; f32: not counted */
  double lse = 0;      /* absolute, base e */
  void widen(const decode_error &other) {
    absolute = std::fmax(absolute, other.absolute);
    row = std::fmax(row, other.row);
    ulps = std::fmax(ulps, other.ulps);
    lse = std::fmax(lse, other.lse);
  }
};

/* ---- memory of a call -------------------------------------------------------------------------------------------- */

enum : int { GUARD = 64 };
enum : unsigned char { GUARD_BYTE = 0x5a };

/* Bytes between two guards, which show a store outside even without a sanitizer. */
struct guarded {
  std::vector<unsigned char> all;
  void resize(size_t bytes) {
    all.assign(bytes + 2 * GUARD, GUARD_BYTE);
    memset(data(), 0xff, bytes);
  }
  unsigned char *data() { return all.data() + GUARD; }
  bool intact() const {
    for (int i = 0; i < GUARD; i++)
      if (all[(size_t)i] != GUARD_BYTE || all[all.size() - 1 - (size_t)i] != GUARD_BYTE) return false;
    return true;
  }
};

struct decode_memory {
  std::vector<uint16_t> q;
  /* caches in which only the existing keys have data: see decode_memory_fill() */
  std::vector<uint16_t> k, v;
  std::vector<int32_t> page_table, lengths;
  guarded values, lse, sum, scratch;
  std::vector<uint32_t> counters;
  bny_decode_call call;
  bny_arena_head head; /* for a group of one rank, which receives faults */
  uint64_t words[BNY_DEVICE_WORDS];
};

inline float element_of(const decode_case &what, uint16_t bits) {
  return what.bf16 ? bny_float_of_bf16(bits) : bny_float_of_f16(bits);
}
inline uint16_t element_to(const decode_case &what, double value) {
  return what.bf16 ? bny_bf16_of_float((float)value) : bny_f16_of_float((float)value);
}
inline size_t out_bytes(banyan_dtype dtype) { return dtype == BANYAN_F32 ? 4 : 2; }

inline double random_normal(void) {
  double sum = 0;
  for (int i = 0; i < 4; i++) sum += random_real(-1, 1);
  return sum * 0.866;
}

/* Layout of caches: [page][kv_head][token][dim]; pages are dealt to sequences in random order. A page is 16-byte
 * aligned but not more. Tokens beyond a sequence's end are NaN, which shows any use of them. */
inline void decode_memory_fill(const decode_case &what, std::vector<uint16_t> *cache, int dim, int64_t page_elements,
                               const std::vector<int32_t> &page_table, int table_stride, int page_keys, bool one_sign) {
  for (int b = 0; b < what.batch(); b++) {
    for (int h = 0; h < what.kv_heads; h++) {
      for (int t = 0; t < what.lengths[(size_t)b]; t++) {
        int64_t page = page_table[(size_t)(b * table_stride + t / page_keys)];
        uint16_t *row = cache->data() + page * page_elements + ((int64_t)h * page_keys + t % page_keys) * dim;
        for (int i = 0; i < dim; i++)
          row[i] = element_to(what, one_sign ? std::fabs(random_normal()) : random_normal());
      }
    }
  }
}

inline bny_decode_cache decode_cache_of(const std::vector<uint16_t> &cache, int dim, int64_t page_elements,
                                        int page_keys) {
  bny_decode_cache made;
  made.base = cache.data();
  made.page_stride = 2 * page_elements;
  made.token_stride = 2 * dim;
  made.head_stride = 2 * (int64_t)page_keys * dim;
  return made;
}

inline void decode_memory_make(const decode_case &what, decode_memory *memory) {
  int longest = 1;
  for (int32_t length : what.lengths) longest = length > longest ? length : longest;
  int page_keys = what.page_keys ? what.page_keys : longest;
  int table_stride = (longest + page_keys - 1) / page_keys;
  int pages = what.batch() * table_stride;
  memory->lengths = what.lengths;
  memory->page_table.resize((size_t)pages);
  for (int i = 0; i < pages; i++) memory->page_table[(size_t)i] = i;
  for (int i = pages - 1; what.page_keys && i > 0; i--)
    std::swap(memory->page_table[(size_t)i], memory->page_table[(size_t)random_int(0, i)]);
  int64_t k_elements = (int64_t)what.kv_heads * page_keys * what.head_dim;
  int64_t v_elements = (int64_t)what.kv_heads * page_keys * what.value_dim;
  memory->k.assign((size_t)(pages * k_elements), 0x7fff); /* NaN in both types */
  decode_memory_fill(what, &memory->k, what.head_dim, k_elements, memory->page_table, table_stride, page_keys,
                     what.one_sign && what.shared_cache);
  if (!what.shared_cache) {
    memory->v.assign((size_t)(pages * v_elements), 0x7fff);
    decode_memory_fill(what, &memory->v, what.value_dim, v_elements, memory->page_table, table_stride, page_keys,
                       what.one_sign);
  }
  if (what.wrong_sequence >= 0)
    memory->page_table[(size_t)(what.wrong_sequence * table_stride + what.wrong_place)] =
        decode_wrong_page(what.wrong_way, pages);
  size_t rows = (size_t)what.batch() * (size_t)what.heads();
  memory->q.resize(rows * (size_t)what.head_dim);
  for (uint16_t &one : memory->q) one = element_to(what, random_normal() * what.sharpness);
  memory->values.resize(rows * (size_t)what.value_dim * out_bytes(what.out_dtype));
  memory->lse.resize(rows * 4);
  memory->sum.resize(rows * 4);

  bny_decode_call &call = memory->call;
  memset(&call, 0, sizeof call);
  call.batch = what.batch();
  call.kv_heads = what.kv_heads;
  call.group = what.group;
  call.row_tiles = (what.group + what.tile_rows - 1) / what.tile_rows;
  call.keys_max = longest;
  call.one_term = what.one_term;
  call.scale_log2 = (float)(BNY_LOG2_E / std::sqrt((double)what.head_dim));
  call.q = memory->q.data();
  call.q_head_stride = 2 * what.head_dim;
  call.q_batch_stride = call.q_head_stride * what.heads();
  call.k = decode_cache_of(memory->k, what.head_dim, k_elements, page_keys);
  call.v = what.shared_cache ? call.k : decode_cache_of(memory->v, what.value_dim, v_elements, page_keys);
  call.page_shift = BNY_DECODE_WHOLE;
  call.pages = (uint32_t)pages;
  if (what.page_keys) {
    call.page_table = memory->page_table.data();
    call.page_table_stride = table_stride;
    for (call.page_shift = 0; 1 << call.page_shift < page_keys;) call.page_shift++;
  }
  call.seq_lens = memory->lengths.data();
  call.division.teams = what.teams;
  call.division.team_units_min = what.units_min;
  call.division.item_cost = what.item_cost;
  call.division.fan_in = what.fan_in;
  memory->scratch.resize(4 *
                         bny_decode_scratch_floats(&call.division, (uint32_t)what.tile_rows, (uint32_t)what.value_dim));
  memory->counters.assign(bny_decode_counters(&call.division, what.cluster), 0);
  call.scratch = (float *)memory->scratch.data();
  call.counters = memory->counters.data();
  banyan_partial_init(&call.out, memory->values.data(), what.out_dtype, memory->lse.data(), BANYAN_F32, what.heads(),
                      what.value_dim);
  call.out.values_kind = what.out_values;
  call.out.stats_kind = what.out_stats;
  if (what.out_stats == BANYAN_STATS_MAX_SUM) call.out.sum = memory->sum.data();
  call.out.base = what.out_base;
  call.out.empty = what.empty;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Checks after a launch that the host has received exactly the expected fault. */
inline std::string decode_fault_check(const decode_case &what, const decode_memory &memory) {
  const bny_device_fault fault = bny_device_fault_unpack(memory.words[BNY_DEVICE_WORD_FAULT]);
  if (!what.loses()) return fault.status == BANYAN_OK ? "" : "a fault";
  const uint32_t detail = (uint32_t)(what.wrong_sequence + 1) | BNY_DEVICE_DETAIL_PAGE;
  const int32_t id = decode_wrong_page(what.wrong_way, (int)memory.call.pages);
  if (fault.status != BANYAN_ERR_ARGUMENT || fault.detail != detail) return "the page is not reported";
  const bool same = memory.words[BNY_DEVICE_WORD_POSITION] == bny_device_position_pack((uint32_t)what.wrong_place, id);
  return same ? "" : "another place is reported";
}

/* Returns "" or an error. */
inline std::string decode_launch(const decode_case &what, decode_memory *memory) {
  bny_emulator_config config = {};
  config.seed = what.seed;
  config.weak = true;
  config.resident_blocks = what.resident_blocks;
  bny_emulator *emulator = bny_emulator_make(config);
  const bny_decode_call *call = &memory->call;
  decode_kernel kernel = what.kernel;
  bny_device_combine alone = {}; /* no mergers */
  memset(&memory->head, 0, sizeof memory->head);
  memset(memory->words, 0, sizeof memory->words);
  memory->head.words = memory->words;
  alone.group.nranks = 1;
  alone.group.arenas[0] = (unsigned char *)&memory->head;
  for (int i = 0; i < what.launches; i++) {
    bny_emulator_launch launch = {};
    launch.blocks = what.teams * what.cluster;
    launch.threads = what.threads;
    launch.cluster = what.cluster;
    launch.shared_bytes = what.shared_bytes;
    launch.overlap = i > 0;
    void *arguments[] = {&memory->call, &alone};
    if (compiled_is_on())
      launch.kernel = compiled_kernel((std::string("bny_decode_") + what.name).c_str(), what.shared_bytes, arguments);
    else
      launch.kernel = [kernel, call, &alone] { kernel(*call, alone); };
    bny_emulator_add(emulator, launch);
  }
  char why[256] = "";
  bool done = bny_emulator_run(emulator, why, sizeof why);
  bny_emulator_free(emulator);
  if (!done) return why;
  for (uint32_t counter : memory->counters)
    if (counter != 0) return "a counter was not set back";
  if (!memory->values.intact() || !memory->lse.intact() || !memory->sum.intact() || !memory->scratch.intact())
    return "a store outside of the output";
  return decode_fault_check(what, *memory);
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

struct decode_reference {
  double max, sum; /* base 2; the true maximum */
  double reach;    /* scale sum(|q| |k|) of the key where it is largest: errors of f32 logits are in proportion to it */
  std::vector<double> values, weight; /* sum p v and sum p |v|, relative to max */
};

inline decode_reference decode_reference_of(const decode_case &what, const decode_memory &memory, int b, int head) {
  const bny_decode_call &call = memory.call;
  const int length = what.lengths[(size_t)b], kv_head = head / what.group;
  decode_reference made = {-INFINITY, 0, 0, std::vector<double>((size_t)what.value_dim),
                           std::vector<double>((size_t)what.value_dim)};
  std::vector<double> logits((size_t)length);
  auto row_of = [&](const bny_decode_cache &cache, int t) {
    int page = call.page_table ? call.page_table[b * call.page_table_stride + (t >> call.page_shift)] : b;
    int within = call.page_table ? t & ((1 << call.page_shift) - 1) : t;
    return (const uint16_t *)((const char *)cache.base + page * cache.page_stride + within * cache.token_stride +
                              kv_head * cache.head_stride);
  };
  const uint16_t *q = memory.q.data() + ((size_t)b * (size_t)what.heads() + (size_t)head) * (size_t)what.head_dim;
  for (int t = 0; t < length; t++) {
    logits[(size_t)t] = -INFINITY;
    if (what.is_lost(b, t)) continue;
    const uint16_t *k = row_of(call.k, t);
    double dot = 0, size = 0;
    for (int i = 0; i < what.head_dim; i++) {
      double product = (double)element_of(what, q[i]) * (double)element_of(what, k[i]);
      dot += product;
      size += std::fabs(product);
    }
    made.reach = std::fmax(made.reach, size * (double)call.scale_log2);
    logits[(size_t)t] = dot * (double)call.scale_log2;
    made.max = std::fmax(made.max, logits[(size_t)t]);
  }
  for (int t = 0; t < length; t++) {
    if (what.is_lost(b, t)) continue;
    const uint16_t *v = row_of(call.v, t);
    double p = std::exp2(logits[(size_t)t] - made.max);
    made.sum += p;
    for (int i = 0; i < what.value_dim; i++) {
      made.values[(size_t)i] += p * (double)element_of(what, v[i]);
      made.weight[(size_t)i] += p * std::fabs((double)element_of(what, v[i]));
    }
  }
  return made;
}

inline double output_value(const decode_case &what, const decode_memory &memory, size_t index) {
  const unsigned char *at = memory.values.all.data() + GUARD + index * out_bytes(what.out_dtype);
  float value;
  uint16_t half;
  memcpy(&value, at, what.out_dtype == BANYAN_F32 ? 4 : 0);
  memcpy(&half, at, 2);
  return what.out_dtype == BANYAN_F32   ? (double)value
         : what.out_dtype == BANYAN_F16 ? (double)bny_float_of_f16(half)
                                        : (double)bny_float_of_bf16(half);
}

/* Returns the distance of neighbours of the output's type at a value. */
inline double output_ulp(banyan_dtype dtype, double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  if (dtype == BANYAN_F16) return std::ldexp(1, (exponent < -13 ? -13 : exponent) - 11);
  return std::ldexp(1, exponent - 8);
}

inline float stat_at(const guarded &stats, size_t row) {
  float value;
  memcpy(&value, stats.all.data() + GUARD + 4 * row, 4);
  return value;
}

/* Checks an empty row's statistics, and zeros. */
inline bool decode_empty_is_right(const decode_case &what, const decode_memory &memory, size_t row) {
  float lse = stat_at(memory.lse, row);
  bool right = what.empty == BANYAN_EMPTY_POS_INF ? lse == INFINITY : lse == -INFINITY;
  if (what.out_stats == BANYAN_STATS_MAX_SUM) right = right && stat_at(memory.sum, row) == 0;
  for (int i = 0; i < what.value_dim; i++)
    right = right && output_value(what, memory, row * (size_t)what.value_dim + (size_t)i) == 0;
  return right;
}

/* Bound for lse: a logit with an error e changes a weight by e ln 2 of itself. */
inline double decode_lse_bound(const decode_reference &reference) { return 1e-5 + 0x1p-22 * reference.reach; }

/* Bound for values, relative to sum(p |v|) / d, with the errors of f32 sums and of weights in terms. An operation of
 * 16 keys and one term has 17 addends. Tensor cores that truncate the addends and then the sum lose at most 19 units of
 * 2^-24 in it, while the sum grows. Warps that take key tiles in turn see a quarter of the keys each. */
inline double decode_bound(const decode_case &what, const decode_reference &reference, int keys) {
  const int own = what.shared_cache ? keys : keys / 4, operations = (own / 16 + 1) * (what.one_term ? 1 : 2);
  const double cut = bny_emulated_truncates() ? 0x1p-24 * 19 / 2 * operations : 0;
  const double term = !what.one_term ? 0 : what.bf16 ? 0x1p-9 : 0x1p-12;
  return decode_lse_bound(reference) + cut + term;
}

inline decode_error decode_row_error(const decode_case &what, const decode_memory &memory, size_t row,
                                     const decode_reference &reference, double bound) {
  decode_error error;
  const double ln2 = BNY_LN_2, base = what.out_base == BANYAN_BASE_E ? ln2 : 1;
  double lse = (reference.max + std::log2(reference.sum)) * ln2, difference = 0, norm = 0,
         given = stat_at(memory.lse, row);
  double factor = 1 / reference.sum;
  if (what.out_stats == BANYAN_STATS_MAX_SUM) {
    if (what.out_values == BANYAN_VALUES_NUMERATOR) factor = std::exp2(reference.max - given / base);
    given += std::log2((double)stat_at(memory.sum, row)) * base;
  }
  error.lse = std::fabs(given / base * ln2 - lse);
  for (int i = 0; i < what.value_dim; i++) {
    double value = output_value(what, memory, row * (size_t)what.value_dim + (size_t)i);
    double wanted = reference.values[(size_t)i] * factor, weight = reference.weight[(size_t)i] * factor;
    double off = std::fabs(value - wanted);
    if (!(off < 1e300)) off = 1e300; /* NaN */
    difference += off * off;
    norm += wanted * wanted;
    error.absolute = std::fmax(error.absolute, off / weight);
    /* A value that cancels keeps the rounding error of its f32 sums, which the output's type did not cause. */
    double beyond = std::fmax(0, off - bound * weight);
    if (what.out_dtype != BANYAN_F32) error.ulps = std::fmax(error.ulps, beyond / output_ulp(what.out_dtype, wanted));
  }
  error.row = std::sqrt(difference / norm);
  return error;
}

/* Runs the case and compares all rows. Aborts the test on anything but rounding errors, which it returns. */
inline decode_error decode_run(const decode_case &what) {
  decode_memory memory;
  decode_error worst;
  decode_memory_make(what, &memory);
  std::string why = decode_launch(what, &memory);
  char text[256];
  snprintf(text, sizeof text,
           "%s kv_heads %d group %d batch %d first length %d page %d teams %u cluster %u fan_in %u seed %llu",
           what.name, what.kv_heads, what.group, what.batch(), what.batch() ? what.lengths[0] : 0, what.page_keys,
           what.teams, what.cluster, what.fan_in, (unsigned long long)what.seed);
  EXPECT_MSG(why.empty(), "%s: %s", text, why.c_str());
  for (int b = 0; b < what.batch(); b++) {
    for (int head = 0; head < what.heads(); head++) {
      size_t row = (size_t)b * (size_t)what.heads() + (size_t)head;
      /* Keys next to those of a lost page may be lost with it. */
      if (what.loses() && b == what.wrong_sequence && (what.shared_cache || what.page_keys < BNY_DECODE_TILE_KEYS)) {
        EXPECT_MSG(!std::isnan(stat_at(memory.lse, row)), "%s: row %zu is NaN", text, row);
        continue;
      }
      decode_reference reference = decode_reference_of(what, memory, b, head);
      if (reference.sum == 0) {
        EXPECT_MSG(decode_empty_is_right(what, memory, row), "%s: empty row %zu", text, row);
        continue;
      }
      const double bound = decode_bound(what, reference, what.lengths[(size_t)b]);
      decode_error error = decode_row_error(what, memory, row, reference, bound);
      bool good = what.out_dtype == BANYAN_F32 ? error.absolute <= bound : error.ulps <= 1;
      EXPECT_MSG(good && error.lse <= decode_lse_bound(reference),
                 "%s: row %zu: error %g of the weight, %g of the row, %g ulp, lse %g", text, row, error.absolute,
                 error.row, error.ulps, error.lse);
      worst.widen(error);
    }
  }
  return worst;
}

#endif
