/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the decode kernels' own source, compiled for the host and run by the emulator, against double precision: how
 * their work is divided, what they read, their sums, and pages that are wrong. */
#include "cuda/device.h"

#include <vector>

/* ---- counts of copies -------------------------------------------------------------------------------------------- */

/* Counts the copies from each 16 bytes of a cache. */
struct read_count {
  const unsigned char *base = nullptr;
  std::vector<uint16_t> times;
  void watch(const void *memory, size_t bytes) {
    base = (const unsigned char *)memory;
    times.assign(bytes / 16, 0);
  }
  void count(const void *from, size_t bytes) {
    const unsigned char *at = (const unsigned char *)from;
    if (times.empty() || at < base || at >= base + 16 * times.size()) return;
    for (size_t i = 0; i < bytes / 16; i++) times[(size_t)(at - base) / 16 + i]++;
  }
};
static read_count k_reads, v_reads;

static void counted_copy_async_16(void *to, const void *from, bool valid) {
  if (valid) k_reads.count(from, 16);
  if (valid) v_reads.count(from, 16);
  bny_copy_async_16(to, from, valid);
}
static void counted_bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
  k_reads.count(from, bytes);
  v_reads.count(from, bytes);
  bny_bulk_load(to, from, bytes, barrier);
}
#define bny_copy_async_16 counted_copy_async_16
#define bny_bulk_load counted_bulk_load
#include "cuda/decode.cuh"
#undef bny_copy_async_16
#undef bny_bulk_load

#include "tests/emulate/cuda_decode_util.hh"
#include "device/decode_plan.h"
#include "tests/support/sanitized.h"
#include "tests/support/suite.h"

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

#define BNY_DECODE_WARPS_KERNEL(element, dim, copy, is_bulk, shared) \
  {#element "_" #dim "_" #copy, bny_decode_##element##_##dim##_##copy, #element[0] == 'b', dim, dim, 16, 128, shared},
#define BNY_DECODE_LATENT_KERNEL(element, rows, copy, is_bulk, shared) \
  {#element "_latent" #rows "_" #copy,                                 \
   bny_decode_##element##_latent##rows##_##copy,                       \
   #element[0] == 'b',                                                 \
   576,                                                                \
   512,                                                                \
   rows,                                                               \
   8 * rows,                                                           \
   shared},
#define BNY_DECODE_WIDE_KERNEL(element, rows, shared) \
  {#element "_latent" #rows "_wgmma",                 \
   bny_decode_##element##_latent##rows##_wgmma,       \
   #element[0] == 'b',                                \
   576,                                               \
   512,                                               \
   rows,                                              \
   256,                                               \
   shared},
#define BNY_DECODE_GENERAL_WARPS_KERNEL(element, dim, kv, shared)
#define BNY_DECODE_GENERAL_LATENT_KERNEL(element, rows, kv, shared)
static const struct {
  const char *name;
  decode_kernel kernel;
  bool bf16;
  int head_dim, value_dim, rows;
  uint32_t threads, shared_bytes;
} kernels[] = {
#include "cuda/decode_kernels.def"
};
enum : int { KERNELS = sizeof kernels / sizeof kernels[0] };

static decode_case case_of(int kernel) {
  decode_case made;
  made.name = kernels[kernel].name;
  made.kernel = kernels[kernel].kernel;
  made.bf16 = kernels[kernel].bf16;
  made.head_dim = kernels[kernel].head_dim;
  made.value_dim = kernels[kernel].value_dim;
  made.shared_cache = made.head_dim != made.value_dim;
  made.tile_rows = kernels[kernel].rows;
  made.threads = kernels[kernel].threads;
  made.shared_bytes = kernels[kernel].shared_bytes;
  return made;
}

static decode_case case_named(const char *name) {
  for (int i = 0; i < KERNELS; i++)
    if (!strcmp(kernels[i].name, name)) return case_of(i);
  ck_abort_msg("no kernel %s", name);
}

/* Returns a length that is likely to be a boundary case. */
static int32_t random_length(int longest, int page_keys) {
  switch (random_int(0, 7)) {
  case 0: return 0;
  case 1: return 1;
  case 2: return random_int(15, 17);
  case 3: return page_keys ? page_keys * random_int(1, 3) + random_int(-1, 1) : 64 + random_int(-1, 1);
  default: return random_int(1, longest);
  }
}

/* `variant`: iteration of a loop test. */
static void randomise(decode_case *what, int batch_max, int longest, int variant = 0) {
  static const int pages[] = {0, 0, 1, 8, 16, 32, 64, 128};
  static const banyan_dtype dtypes[] = {BANYAN_F32, BANYAN_F32, BANYAN_BF16, BANYAN_F16};
  state += (uint64_t)variant;
  what->page_keys = pages[random_int(0, 7)];
  what->kv_heads = random_int(1, 3);
  what->lengths.resize((size_t)random_int(1, batch_max));
  for (int32_t &length : what->lengths) length = random_length(longest, what->page_keys);
  what->cluster = 1u << random_int(0, 3);
  what->teams = (uint32_t)random_int(1, what->cluster > 2 ? 4 : 12);
  what->fan_in = (uint32_t)random_int(2, 6);
  what->units_min = (uint32_t)random_int(1, 6);
  what->item_cost = (uint32_t)random_int(1, 4);
  what->sharpness = random_int(0, 3) ? 1.0f : 30.0f;
  what->out_dtype = dtypes[random_int(0, 3)];
  what->resident_blocks = random_int(0, 2) ? 0 : what->cluster;
  what->seed = random_bits();
}

static void show(const char *name, const decode_error &worst) {
  printf("%s: error %.2g of sum(p |v|) / d, %.2g of a row, %.3f ulp, lse %.2g\n", name, worst.absolute, worst.row,
         worst.ulps, worst.lse);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

/* Values of one sign, and tensor cores that truncate sums: the errors of all keys add up. */
START_TEST(truncated_sums) {
  if (IS_SANITIZED) return; /* an error of many keys: the code is that of few */
  static const struct {
    const char *name;
    int32_t keys;
  } cases[] = {
      {"bf16_64_bulk", 131072}, {"f16_64_async", 16384}, {"bf16_latent16_bulk", 2048}, {"bf16_latent64_wgmma", 512}};
  decode_case what = case_named(cases[_i].name);
  what.lengths = {cases[_i].keys};
  what.one_sign = true;
  what.teams = 1;
  bny_emulator_truncate(true);
  const decode_error error = decode_run(what);
  show((std::string(what.name) + ", cut off").c_str(), error);
  /* With rounding to nearest, sums of 128 K keys are right to 1e-5. Truncated sums are not. */
  if (_i == 0) ck_assert(error.absolute > 1e-5);
  bny_emulator_truncate(false);
}
END_TEST

/* An option of the warpgroup kernel: it takes effect, and its error is within the bound. */
START_TEST(one_term) {
  decode_case what = case_named(_i ? "f16_latent64_wgmma" : "bf16_latent64_wgmma");
  what.lengths = {200};
  what.one_sign = true;
  const decode_error two = decode_run(what);
  what.one_term = true;
  const decode_error one = decode_run(what);
  show((std::string(what.name) + ", one term").c_str(), one);
  ck_assert(one.absolute > 10 * two.absolute);
}
END_TEST

START_TEST(each_kernel) {
  decode_error worst;
  if (compiled_is_on() && !compiled_has((std::string("bny_decode_") + kernels[_i].name).c_str())) return;
  for (int i = 0; i < (IS_SANITIZED ? 1 : 3); i++) {
    decode_case what = case_of(_i);
    randomise(&what, 4, 200, _i);
    what.group = random_int(1, what.tile_rows + 4);
    worst.widen(decode_run(what));
  }
  show(kernels[_i].name, worst);
}
END_TEST

/* One row of many splits, merged in one round and in two. */
START_TEST(many_pieces) {
  decode_case what = case_named("bf16_64_async");
  what.lengths = {1000};
  what.teams = 64;
  what.group = 3;
  for (uint32_t fan_in : {2u, 7u, 8u, 63u, 64u}) {
    what.fan_in = fan_in;
    what.seed = random_bits();
    decode_run(what);
  }
}
END_TEST

START_TEST(same_bits) {
  for (int copy = 0; copy < 2; copy++) {
    decode_case what = case_named(copy ? "bf16_128_async" : "bf16_128_bulk");
    randomise(&what, 3, 400);
    what.out_dtype = BANYAN_F32;
    what.kv_heads = 1;
    what.group = 5;
    what.fan_in = 3;
    std::vector<unsigned char> first;
    decode_memory memory;
    decode_memory_make(what, &memory);
    for (int i = 0; i < 4; i++) {
      what.seed = random_bits();
      what.resident_blocks = i ? what.cluster * (uint32_t)i : 0;
      std::string why = decode_launch(what, &memory);
      EXPECT_MSG(why.empty(), "%s", why.c_str());
      if (i == 0) first = memory.values.all;
      EXPECT_MSG(first == memory.values.all, "other bits in run %d", i);
    }
  }
}
END_TEST

START_TEST(conventions) {
  static const banyan_values values[] = {BANYAN_VALUES_NORMALISED, BANYAN_VALUES_NUMERATOR};
  static const banyan_stats stats[] = {BANYAN_STATS_LSE, BANYAN_STATS_MAX_SUM};
  static const banyan_base bases[] = {BANYAN_BASE_E, BANYAN_BASE_2};
  for (int i = 0; i < 8; i++) {
    decode_case what = case_named("bf16_64_async");
    what.lengths = {70, 0, 200};
    what.group = 2;
    what.out_stats = stats[i & 1];
    what.out_base = bases[i >> 1 & 1];
    what.out_values = i & 1 ? values[i >> 2] : BANYAN_VALUES_NORMALISED;
    what.empty = i & 2 ? BANYAN_EMPTY_POS_INF : BANYAN_EMPTY_NEG_INF;
    decode_run(what);
  }
}
END_TEST

/* Each existing key must be read once for each tile of heads, and nothing else. */
static void expect_read(const decode_case &what, const decode_memory &memory, const bny_decode_cache &cache, int dim,
                        const read_count &reads) {
  std::vector<uint16_t> wanted(reads.times.size(), 0);
  const bny_decode_call &call = memory.call;
  for (int b = 0; b < what.batch(); b++) {
    for (int h = 0; h < what.kv_heads; h++) {
      for (int t = 0; t < what.lengths[(size_t)b]; t++) {
        if (what.is_lost(b, t)) continue;
        int page = call.page_table ? call.page_table[b * call.page_table_stride + (t >> call.page_shift)] : b;
        int within = call.page_table ? t & ((1 << call.page_shift) - 1) : t;
        int64_t at = page * cache.page_stride + within * cache.token_stride + h * cache.head_stride;
        for (int i = 0; i < dim / 8; i++) wanted[(size_t)at / 16 + (size_t)i] = (uint16_t)call.row_tiles;
      }
    }
  }
  EXPECT(wanted == reads.times);
}

START_TEST(reads_once) {
  if (sanitizer_leaves_out(_i)) return;
  decode_case what = case_of(_i);
  randomise(&what, 4, 150, _i);
  what.group = random_int(1, 20);
  decode_memory memory;
  decode_memory_make(what, &memory);
  k_reads.watch(memory.k.data(), 2 * memory.k.size());
  v_reads.watch(memory.v.data(), 2 * memory.v.size());
  std::string why = decode_launch(what, &memory);
  EXPECT_MSG(why.empty(), "%s", why.c_str());
  expect_read(what, memory, memory.call.k, what.head_dim, k_reads);
  if (!what.shared_cache) expect_read(what, memory, memory.call.v, what.value_dim, v_reads);
}
END_TEST

/* One wrong id in the page table is reported and not read. Rows of other sequences are right. If tiles lie within
 * pages, its own rows are right without the page's keys. */
START_TEST(wrong_pages) {
  if (sanitizer_leaves_out(_i)) return;
  static const int pages[] = {1, 8, 16, 64};
  for (int way = 0; way < DECODE_WRONG_WAYS; way++) {
    decode_case what = case_of(_i);
    randomise(&what, 3, 150, _i);
    what.group = random_int(1, 3);
    what.page_keys = pages[(_i + way) % 4];
    what.wrong_way = way;
    what.wrong_sequence = random_int(0, what.batch() - 1);
    int32_t &length = what.lengths[(size_t)what.wrong_sequence];
    length = random_int(1, 150);
    const int last = (length - 1) / what.page_keys;
    what.wrong_place = random_int(0, 1) ? last : random_int(0, last);
    decode_run(what);
  }
}
END_TEST

START_TEST(page_divisions) {
  for (uint32_t keys = 1; keys < 3000; keys++) {
    bny_decode_general general;
    bny_decode_divide_pages(&general, keys);
    for (int i = 0; i < 50; i++) {
      const uint32_t pages = (uint32_t)random_int(0, (int)(INT32_MAX / keys) - 1);
      for (uint32_t key : {pages * keys, pages * keys + keys - 1})
        ck_assert_uint_eq(bny_general_page_of(general, key), pages);
    }
    ck_assert_uint_eq(bny_general_page_of(general, INT32_MAX), INT32_MAX / keys);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cuda_decode");
  TCase *kinds = tcase_create("kernels"), *tests = tcase_create("all");
  TCase *sums = tcase_create("sums");
  tcase_set_timeout(sums, 240);
  tcase_add_loop_test(sums, truncated_sums, 0, 4);
  tcase_add_loop_test(sums, one_term, 0, 2);
  suite_add_tcase(suite, sums);
  tcase_set_timeout(kinds, 60);
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(kinds, each_kernel, 0, KERNELS);
  suite_add_tcase(suite, kinds);
  tcase_add_test(tests, many_pieces);
  tcase_add_test(tests, same_bits);
  tcase_add_test(tests, conventions);
  tcase_add_loop_test(tests, reads_once, 0, KERNELS);
  tcase_add_loop_test(tests, wrong_pages, 0, KERNELS);
  tcase_add_test(tests, page_divisions);
  suite_add_tcase(suite, tests);
  return suite_main(suite);
}
