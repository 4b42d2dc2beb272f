/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the general decode kernels' own source on the emulator, against double precision: several query tokens, which
 * keys they see, lists of pages, scales, caps, sinks, and rows of 8-bit elements. */
#include "cuda/decode.cuh"

#include "tests/emulate/cuda_general_util.hh"
#include "tests/support/sanitized.h"
#include "tests/support/suite.h"

#define BNY_DECODE_WARPS_KERNEL(element, dim, copy, is_bulk, shared)
#define BNY_DECODE_LATENT_KERNEL(element, rows, copy, is_bulk, shared)
#define BNY_DECODE_WIDE_KERNEL(element, rows, shared)
#define BNY_DECODE_GENERAL_WARPS_KERNEL(element, dim, kv, shared) \
  {#element "_" #dim "_" #kv,                                     \
   bny_decode_##element##_##dim##_##kv,                           \
   #element[0] == 'b',                                            \
   dim,                                                           \
   dim,                                                           \
   16,                                                            \
   128,                                                           \
   shared,                                                        \
   BNY_ROWS_##kv},
#define BNY_DECODE_GENERAL_LATENT_KERNEL(element, rows, kv, shared) \
  {#element "_latent" #rows "_" #kv,                                \
   bny_decode_##element##_latent##rows##_##kv,                      \
   #element[0] == 'b',                                              \
   576,                                                             \
   512,                                                             \
   rows,                                                            \
   8 * rows,                                                        \
   shared,                                                          \
   BNY_ROWS_##kv},
static const struct {
  const char *name;
  decode_kernel kernel;
  bool bf16;
  int head_dim, value_dim, rows;
  uint32_t threads, shared_bytes;
  bny_decode_rows kv;
} kernels[] = {
#include "cuda/decode_kernels.def"
};
enum : int { KERNELS = sizeof kernels / sizeof kernels[0] };

static general_case case_of(int kernel) {
  general_case made;
  made.name = kernels[kernel].name;
  made.kernel = kernels[kernel].kernel;
  made.bf16 = kernels[kernel].bf16;
  made.head_dim = kernels[kernel].head_dim;
  made.value_dim = kernels[kernel].value_dim;
  made.shared_cache = made.head_dim != made.value_dim;
  made.tile_rows = kernels[kernel].rows;
  made.threads = kernels[kernel].threads;
  made.shared_bytes = kernels[kernel].shared_bytes;
  made.kv = kernels[kernel].kv;
  return made;
}

static general_case case_named(const char *name) {
  for (int i = 0; i < KERNELS; i++)
    if (!strcmp(kernels[i].name, name)) return case_of(i);
  ck_abort_msg("no kernel %s", name);
}

static void divide(general_case *what, int batch_max, int longest) {
  what->lengths.resize((size_t)random_int(1, batch_max));
  for (int32_t &length : what->lengths) length = random_int(0, 5) ? random_int(1, longest) : 0;
  what->cluster = 1u << random_int(0, 2);
  what->teams = (uint32_t)random_int(1, what->cluster > 2 ? 4 : 8);
  what->fan_in = (uint32_t)random_int(2, 6);
  what->units_min = (uint32_t)random_int(1, 6);
  what->item_cost = (uint32_t)random_int(1, 4);
  what->seed = random_bits();
}

static void list_pages(general_case *what) {
  static const int sizes[] = {1, 3, 5, 16, 17, 48, 64};
  what->pages = (general_pages)random_int(0, 3);
  what->page_keys = what->pages == PAGES_NONE ? 0 : sizes[random_int(0, 6)];
}

static void ask(general_case *what, int most) {
  what->tokens.resize(what->lengths.size());
  for (int32_t &count : what->tokens) count = random_int(0, most);
  what->padding = random_int(0, 2) ? 0 : random_int(1, 5);
  what->positions = random_int(0, 7) != 0;
  if (random_int(0, 1)) {
    what->key_block = random_int(1, 20);
    what->key_stride = what->key_block * random_int(1, 4);
  }
  if (!what->positions) return;
  what->window = random_int(0, 1) ? random_int(1, 100) : 0;
  what->tree = random_int(0, 2) == 0;
}

static void add_rest(general_case *what) {
  what->soft_cap = random_int(0, 1) ? (float)random_real(2, 30) : 0;
  what->sinks = random_int(0, 1);
  what->scales = what->kv == BNY_ROWS_e4m3;
  what->scale_per_head = random_int(0, 1);
  what->rope_dim = random_int(0, 1) ? 8 * random_int(1, 4) : 0;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

START_TEST(each_kernel) {
  decode_error worst;
  if (compiled_is_on() && !compiled_has((std::string("bny_decode_") + kernels[_i].name).c_str())) return;
  state += (uint64_t)_i;
  for (int i = 0; i < (IS_SANITIZED ? 1 : 3); i++) {
    general_case what = case_of(_i);
    divide(&what, 3, 150);
    what.kv_heads = random_int(1, 2);
    what.group = random_int(1, 9);
    list_pages(&what);
    ask(&what, 6);
    add_rest(&what);
    worst.widen(general_run(what));
  }
  printf("%s: error %.2g of sum(p |v|) / d, lse %.2g\n", kernels[_i].name, worst.absolute, worst.lse);
}
END_TEST

/* Pages of any size, also one key, in tables and lists. */
START_TEST(pages) {
  static const int sizes[] = {1, 2, 3, 7, 16, 24, 33, 100, 128};
  state += (uint64_t)_i;
  general_case what = case_named(_i % 2 ? "bf16_64_general" : "bf16_latent16_general");
  divide(&what, 4, 200);
  what.group = random_int(1, 16);
  what.page_keys = sizes[_i / 3];
  what.pages = (general_pages)(1 + _i % 3);
  general_run(what);
}
END_TEST

/* As many tokens as a draft has, and tiles that cut through tokens and heads. */
START_TEST(tokens) {
  state += (uint64_t)_i;
  general_case what = case_named(_i % 3 ? "f16_64_general" : "bf16_latent32_general");
  divide(&what, 3, 120);
  what.group = _i % 3 ? random_int(1, 20) : random_int(1, 40);
  list_pages(&what);
  ask(&what, 16);
  what.positions = true;
  general_run(what);
}
END_TEST

/* Each of the ways by which tokens see keys, alone. */
START_TEST(each_mask) {
  for (int i = 0; i < 4; i++) {
    state += (uint64_t)(8 * _i + i);
    general_case what = case_named("bf16_64_general");
    divide(&what, 3, 200);
    what.tokens.assign(what.lengths.size(), 5);
    what.positions = true;
    what.group = 2;
    if (_i & 1) what.window = random_int(1, 60);
    if (_i & 2) what.tree = true;
    if (_i & 4) what.key_block = random_int(1, 9);
    if (_i & 4) what.key_stride = what.key_block * 3;
    general_run(what);
  }
}
END_TEST

/* More sequences than a warp has lanes, some without tokens. */
START_TEST(many_sequences) {
  general_case what = case_named("f16_64_general");
  divide(&what, 1, 1);
  what.lengths.resize(70);
  for (int32_t &length : what.lengths) length = random_int(0, 3) ? random_int(0, 40) : 0;
  what.teams = 13;
  what.cluster = 1;
  ask(&what, 3);
  what.padding = 30;
  general_run(what);
}
END_TEST

START_TEST(nothing_to_do) {
  general_case what = case_named("bf16_128_general");
  what.lengths = {};
  what.padding = 3;
  what.tokens = {};
  what.padding = 0;
  general_run(what);
  what.lengths = {0, 0};
  what.tokens = {0, 0};
  general_run(what);
}
END_TEST

/* A sink alone makes a row of zeros whose denominator is 1. */
START_TEST(sinks) {
  general_case what = case_named(_i ? "bf16_64_general" : "bf16_latent16_e4m3");
  what.lengths = {0, 30};
  what.sinks = true;
  what.group = 4;
  general_memory memory;
  general_memory_make(what, &memory);
  std::string why = decode_launch(what, &memory);
  EXPECT_MSG(why.empty(), "%s", why.c_str());
  for (int head = 0; head < 4; head++) {
    EXPECT(std::fabs(stat_at(memory.lse, (size_t)head) - memory.sinks[(size_t)head]) < 1e-5f);
    EXPECT(output_value(what, memory, (size_t)head * (size_t)what.value_dim) == 0);
  }
  general_run(what);
}
END_TEST

/* Logits far beyond the cap. */
START_TEST(caps) {
  general_case what = case_named("f16_128_general");
  what.lengths = {200};
  what.group = 5;
  what.soft_cap = 5;
  what.sharpness = 40;
  general_run(what);
}
END_TEST

/* A page that does not exist is reported, and not read. */
START_TEST(wrong_pages) {
  general_case what = case_named(_i % 2 ? "bf16_64_general" : "bf16_latent16_flashmla");
  what.lengths = {20, 90};
  what.pages = _i < 2 ? PAGES_TABLE : PAGES_LIST;
  what.page_keys = 6;
  what.wrong_sequence = 1;
  what.wrong_place = 4;
  general_memory memory;
  general_memory_make(what, &memory);
  const int list = _i < 2 ? (int)memory.call.page_table_stride : memory.page_indptr[1];
  memory.page_table[(size_t)(list + 4)] = decode_wrong_page(0, (int)memory.call.pages);
  std::string why = decode_launch(what, &memory);
  EXPECT_MSG(why.empty(), "%s", why.c_str());
  EXPECT(!std::isnan(stat_at(memory.lse, 1)));
}
END_TEST

/* A NaN of E4M3 makes its rows NaN. */
START_TEST(not_a_number) {
  general_case what = case_named(_i ? "bf16_64_e4m3" : "f16_64_e4m3");
  what.lengths = {50};
  what.scales = true;
  general_memory memory;
  general_memory_make(what, &memory);
  ((unsigned char *)memory.k.data())[7 * 64 + 3] = 0xff;
  std::string why = decode_launch(what, &memory);
  EXPECT_MSG(why.empty(), "%s", why.c_str());
  EXPECT(std::isnan(stat_at(memory.lse, 0)));
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
  Suite *suite = suite_create("cuda_general");
  TCase *kinds = tcase_create("kernels"), *tests = tcase_create("all");
  tcase_set_timeout(kinds, 60);
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(kinds, each_kernel, 0, KERNELS);
  suite_add_tcase(suite, kinds);
  tcase_add_loop_test(tests, pages, 0, 27);
  tcase_add_loop_test(tests, tokens, 0, 9);
  tcase_add_loop_test(tests, each_mask, 0, 8);
  tcase_add_test(tests, many_sequences);
  tcase_add_test(tests, nothing_to_do);
  tcase_add_loop_test(tests, sinks, 0, 2);
  tcase_add_test(tests, caps);
  tcase_add_loop_test(tests, wrong_pages, 0, 4);
  tcase_add_loop_test(tests, not_a_number, 0, 2);
  tcase_add_test(tests, page_divisions);
  suite_add_tcase(suite, tests);
  return suite_main(suite);
}
