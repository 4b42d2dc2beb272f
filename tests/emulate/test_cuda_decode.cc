/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the source of the decode kernels, compiled for the host and run by the emulator, against double precision. The
 * tests cover the division of work, the keys that kernels read, their sums, and wrong pages. */
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

#include <cmath>
#include <functional>
#include <string>

#include "cuda/decode_shape.h"
#include "device/decode_plan.h"
#include "tests/ptx/compiled.hh"
#include "tests/support/random.h"

extern "C" {
#include "tests/api/attention_problem.h"
#include "tests/support/oracle.h"
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Fields that follow from the form; general variants are tested through the library. */
#define FORM_warp(dim) dim, dim, 16, 128
#define FORM_latent(rows) 576, 512, rows, 8 * rows
#define FORM_wide(rows) 576, 512, rows, 256
#define IF_async(...) __VA_ARGS__
#define IF_bulk IF_async
#define IF_wgmma IF_async
#define IF_general(...)
#define IF_e4m3 IF_general
#define IF_flashmla IF_general
#define BNY_DECODE_KERNEL(form, element, label, size, variant, shared)                                            \
  IF_##variant({#element "_" #label "_" #variant, bny_decode_##element##_##label##_##variant, #element[0] == 'b', \
                FORM_##form(size), shared}, )
static const struct kernel_row {
  const char *name;
  void (*kernel)(const bny_decode_call call, const bny_device_combine combine);
  bool bf16;
  int head_dim, value_dim, rows;
  uint32_t threads, shared_bytes;
} kernels[] = {
#include "cuda/decode_kernels.def"
};
enum : int { KERNELS = sizeof kernels / sizeof kernels[0] };

/* ---- cases ------------------------------------------------------------------------------------------------------- */

struct decode_case {
  const kernel_row *row = nullptr;
  int kv_heads = 1, group = 1;
  std::vector<int32_t> lengths;
  int page_keys = 0;   /* 0: contiguous */
  float sharpness = 1; /* approximate size of logits */
  /* A wrong entry of the page table, in one of several ways; sequence -1: none. */
  int wrong_sequence = -1, wrong_place = 0, wrong_way = 0;
  uint32_t teams = 4, cluster = 1, fan_in = 16, units_min = 1, item_cost = 2;
  banyan_partial out = {}; /* conventions of the result */
  uint64_t seed = 1;
  uint32_t resident_blocks = 0;
  bool one_sign = false; /* values have one sign: errors of sums add up */
  bool one_term = false; /* weights are one term */

  int heads() const { return kv_heads * group; }
  int batch() const { return (int)lengths.size(); }
  bool is_latent() const { return row->head_dim != row->value_dim; }
  /* Returns true if the key is in the wrong page. */
  bool is_lost(int b, int key) const { return b == wrong_sequence && key / page_keys == wrong_place; }
  bool loses() const { return wrong_sequence >= 0 && wrong_place * page_keys < lengths[(size_t)wrong_sequence]; }
};

static decode_case case_of(int kernel) {
  decode_case made;
  made.row = &kernels[kernel];
  banyan_partial_init(&made.out, nullptr, BANYAN_F32, nullptr, BANYAN_F32, 1, 1);
  return made;
}

static decode_case case_named(const char *name) {
  for (int i = 0; i < KERNELS; i++)
    if (!strcmp(kernels[i].name, name)) return case_of(i);
  ck_abort_msg("no kernel %s", name);
}

enum : int { WRONG_WAYS = 4 };
static int32_t wrong_page(int way, int pages) {
  const int32_t ids[WRONG_WAYS] = {-1, pages, INT32_MAX, INT32_MIN};
  return ids[way];
}

/* Bytes between two guards, which detect stores outside even without a sanitizer. */
struct guarded {
  enum : size_t { GUARD = 64 };
  std::vector<unsigned char> all;
  void *resize(size_t bytes) {
    all.assign(bytes + 2 * GUARD, 0x5a);
    memset(all.data() + GUARD, 0xff, bytes);
    return all.data() + GUARD;
  }
  bool intact() const {
    for (size_t i = 0; i < GUARD; i++)
      if (all[i] != 0x5a || all[all.size() - 1 - i] != 0x5a) return false;
    return true;
  }
};

/* A call with its memory. */
struct decode_memory {
  problem_shard shard = {};
  guarded values, lse, sum, scratch;
  std::vector<uint32_t> counters;
  bny_decode_call call = {};
  bny_arena_head head; /* for a group of one rank, which receives faults */
  uint64_t words[BNY_DEVICE_WORDS];
};

static bny_decode_cache cache_of(const void *base, int64_t page, int64_t head, int64_t token) {
  bny_decode_cache made;
  made.base = base;
  made.page_stride = 2 * page;
  made.head_stride = 2 * head;
  made.token_stride = 2 * token;
  return made;
}

static void make_memory(const decode_case &what, decode_memory *memory) {
  world_random random = {random_bits()};
  problem_shape shape = {};
  shape.batch = what.batch(), shape.heads = what.heads(), shape.kv_heads = what.kv_heads;
  shape.head_dim = what.row->head_dim, shape.value_dim = what.row->value_dim, shape.latent = what.is_latent();
  shape.dtype = what.row->bf16 ? BANYAN_BF16 : BANYAN_F16;
  shape.one_sign = what.one_sign, shape.page_keys = what.page_keys, shape.keys_max = 1;
  for (int32_t length : what.lengths) shape.keys_max = length > shape.keys_max ? length : shape.keys_max;
  shape.lengths = what.lengths.data();
  uint16_t *q = problem_queries(&random, &shape);
  const size_t rows = (size_t)(shape.batch * shape.heads);
  for (size_t i = 0; what.sharpness > 1 && i < rows * (size_t)shape.head_dim; i++)
    q[i] = problem_bits(shape.dtype, (double)what.sharpness * problem_value(shape.dtype, q[i]));
  problem_shard_make(&random, &shape, q, &memory->shard);
  const banyan_attention_desc &desc = memory->shard.desc;
  bny_decode_call &call = memory->call;
  call.batch = shape.batch;
  call.kv_heads = shape.kv_heads;
  call.group = what.group;
  call.row_tiles = (what.group + what.row->rows - 1) / what.row->rows;
  call.keys_max = shape.keys_max;
  call.one_term = what.one_term;
  call.scale_log2 = (float)(BNY_LOG2_E / std::sqrt((double)shape.head_dim));
  call.q = q;
  call.q_head_stride = 2 * desc.q_head_stride;
  call.q_batch_stride = 2 * desc.q_batch_stride;
  call.k = cache_of(desc.k, desc.k_batch_stride, desc.k_head_stride, desc.k_token_stride);
  call.v = cache_of(desc.v, desc.v_batch_stride, desc.v_head_stride, desc.v_token_stride);
  call.page_shift = BNY_DECODE_WHOLE;
  call.pages = (uint32_t)shape.batch;
  if (what.page_keys) {
    call.pages = (uint32_t)desc.pages.count;
    call.page_table = memory->shard.pages;
    call.page_table_stride = desc.pages.table_stride;
    for (call.page_shift = 0; 1 << call.page_shift < what.page_keys;) call.page_shift++;
  }
  if (what.wrong_sequence >= 0)
    memory->shard.pages[what.wrong_sequence * desc.pages.table_stride + what.wrong_place] =
        wrong_page(what.wrong_way, (int)call.pages);
  call.seq_lens = memory->shard.lengths;
  call.division.teams = what.teams;
  call.division.team_units_min = what.units_min;
  call.division.item_cost = what.item_cost;
  call.division.fan_in = what.fan_in;
  const uint32_t tile_rows = (uint32_t)what.row->rows, value_dim = (uint32_t)shape.value_dim;
  call.scratch = (float *)memory->scratch.resize(4 * bny_decode_scratch_floats(&call.division, tile_rows, value_dim));
  memory->counters.assign(bny_decode_counters(&call.division, what.cluster), 0);
  call.counters = memory->counters.data();
  void *values = memory->values.resize(rows * value_dim * oracle_bytes(what.out.values_dtype));
  banyan_partial_init(&call.out, values, what.out.values_dtype, memory->lse.resize(rows * 4), BANYAN_F32, shape.heads,
                      shape.value_dim);
  void *sum = memory->sum.resize(rows * 4);
  call.out.values_kind = what.out.values_kind;
  call.out.stats_kind = what.out.stats_kind;
  call.out.sum = what.out.stats_kind == BANYAN_STATS_MAX_SUM ? sum : nullptr;
  call.out.base = what.out.base;
  call.out.empty = what.out.empty;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* After a launch the host has received exactly the expected fault. */
static std::string check_fault(const decode_case &what, const decode_memory &memory) {
  const bny_device_fault fault = bny_device_fault_unpack(memory.words[BNY_DEVICE_WORD_FAULT]);
  if (!what.loses()) return fault.status == BANYAN_OK ? "" : "a fault";
  const uint32_t detail = (uint32_t)(what.wrong_sequence + 1) | BNY_DEVICE_DETAIL_PAGE;
  const int32_t id = wrong_page(what.wrong_way, (int)memory.call.pages);
  if (fault.status != BANYAN_ERR_ARGUMENT || fault.detail != detail) return "the page is not reported";
  const bool same = memory.words[BNY_DEVICE_WORD_POSITION] == bny_device_position_pack((uint32_t)what.wrong_place, id);
  return same ? "" : "another place is reported";
}

/* Returns "" or an error. */
static std::string launch(const decode_case &what, decode_memory *memory) {
  bny_emulator_config config = {};
  config.seed = what.seed;
  config.weak = true;
  config.resident_blocks = what.resident_blocks;
  bny_emulator *emulator = bny_emulator_make(config);
  const bny_decode_call *call = &memory->call;
  auto kernel = what.row->kernel;
  bny_device_combine alone = {}; /* no mergers */
  memset(&memory->head, 0, sizeof memory->head);
  memset(memory->words, 0, sizeof memory->words);
  memory->head.words = memory->words;
  alone.group.nranks = 1;
  alone.group.arenas[0] = (unsigned char *)&memory->head;
  bny_emulator_launch launch = {};
  launch.blocks = what.teams * what.cluster;
  launch.threads = what.row->threads;
  launch.cluster = what.cluster;
  launch.shared_bytes = what.row->shared_bytes;
  void *arguments[] = {&memory->call, &alone};
  if (compiled_is_on())
    launch.kernel =
        compiled_kernel((std::string("bny_decode_") + what.row->name).c_str(), launch.shared_bytes, arguments);
  else
    launch.kernel = [kernel, call, &alone] { kernel(*call, alone); };
  bny_emulator_add(emulator, launch);
  char why[256] = "";
  bool done = bny_emulator_run(emulator, why, sizeof why);
  bny_emulator_free(emulator);
  if (!done) return why;
  for (uint32_t counter : memory->counters)
    if (counter != 0) return "a counter was not set back";
  if (!memory->values.intact() || !memory->lse.intact() || !memory->sum.intact() || !memory->scratch.intact())
    return "a store outside of the output";
  return check_fault(what, *memory);
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

static const uint16_t *row_of(const bny_decode_call &call, const bny_decode_cache &cache, int b, int t, int kv_head) {
  int64_t page = call.page_table ? call.page_table[b * call.page_table_stride + (t >> call.page_shift)] : b;
  int64_t within = call.page_table ? t & ((1 << call.page_shift) - 1) : t;
  return (const uint16_t *)((const char *)cache.base + page * cache.page_stride + within * cache.token_stride +
                            kv_head * cache.head_stride);
}

/* Computes a row in double precision, in base e. Returns the largest scale sum(|q| |k|) of any key, in base 2. Errors
 * of f32 logits are proportional to it. */
static double make_reference(const decode_case &what, const decode_memory &memory, int b, int head,
                             attention_row *made) {
  const bny_decode_call &call = memory.call;
  const banyan_dtype dtype = what.row->bf16 ? BANYAN_BF16 : BANYAN_F16;
  const double scale = (double)call.scale_log2 * BNY_LN_2;
  const uint16_t *q = (const uint16_t *)call.q + (b * what.heads() + head) * what.row->head_dim;
  std::vector<double> logits((size_t)what.lengths[(size_t)b], -INFINITY);
  double reach = 0;
  memset(made, 0, sizeof *made);
  made->max = -INFINITY;
  for (int t = 0; t < (int)logits.size(); t++) {
    if (what.is_lost(b, t)) continue;
    const uint16_t *k = row_of(call, call.k, b, t, head / what.group);
    double dot = 0, size = 0;
    for (int i = 0; i < what.row->head_dim; i++) {
      double product = problem_value(dtype, q[i]) * problem_value(dtype, k[i]);
      dot += product, size += std::fabs(product);
    }
    reach = std::fmax(reach, size * (double)call.scale_log2);
    made->max = std::fmax(made->max, logits[(size_t)t] = dot * scale);
  }
  for (int t = 0; t < (int)logits.size(); t++) {
    if (what.is_lost(b, t)) continue;
    const uint16_t *v = row_of(call, call.v, b, t, head / what.group);
    double p = std::exp(logits[(size_t)t] - made->max);
    made->sum += p;
    for (int i = 0; i < what.row->value_dim; i++) {
      made->values[i] += p * problem_value(dtype, v[i]);
      made->weight[i] += p * std::fabs(problem_value(dtype, v[i]));
    }
  }
  return reach;
}

/* Returns the error bound of lse. A logit's error e changes its weight by a factor of 1 + e ln 2. */
static double lse_bound(double reach) { return 1e-5 + 0x1p-22 * reach; }

/* Returns the error bound of values, relative to sum(p |v|) / d: errors of f32 sums, and of weights as sums of terms.
 * An operation of 16 keys and one term has 17 addends. Tensor cores that truncate the addends and then the sum lose at
 * most 19 units of 2^-24 in it, while the sum grows. Warps that take key tiles in turn see a quarter of the keys
 * each. */
static double bound_of(const decode_case &what, double reach, int keys) {
  const int own = what.is_latent() ? keys : keys / 4, operations = (own / 16 + 1) * (what.one_term ? 1 : 2);
  const double cut = bny_emulated_truncates() ? 0x1p-24 * 19 / 2 * operations : 0;
  return lse_bound(reach) + cut + (!what.one_term ? 0 : what.row->bf16 ? 0x1p-9 : 0x1p-12);
}

/* Compares a row of the result. Returns the error of a value, relative to sum(p |v|) / d of its row and column. */
static double check_row(const decode_case &what, const decode_memory &memory, int b, int head, const char *text) {
  static attention_row reference;
  const banyan_partial &out = memory.call.out;
  const int64_t row = b * what.heads() + head, at = row * what.row->value_dim;
  const double reach = make_reference(what, memory, b, head, &reference);
  const double bound = bound_of(what, reach, what.lengths[(size_t)b]), lse = oracle_load(out.lse, BANYAN_F32, row);
  const double sum = out.sum ? oracle_load(out.sum, BANYAN_F32, row) : 1;
  const double scale = out.values_kind == BANYAN_VALUES_NUMERATOR ? sum : 1;
  const bool is_empty = reference.sum == 0;
  double worst = 0;
  for (int i = 0; i < what.row->value_dim; i++) {
    const double value = oracle_load(out.values, out.values_dtype, at + i) / (is_empty ? 1 : scale);
    const double wanted = is_empty ? 0 : reference.values[i] / reference.sum;
    const double weight = is_empty ? 0 : reference.weight[i] / reference.sum, off = std::fabs(value - wanted);
    const double rounding = out.values_dtype == BANYAN_F32
                                ? 0
                                : 2 * oracle_unit(out.values_dtype) * std::fabs(wanted) + oracle_step(out.values_dtype);
    EXPECT_MSG(off <= bound * weight + rounding, "%s: sequence %d, head %d, value %d is %g, should be %g within %g",
               text, b, head, i, value, wanted, bound * weight + rounding);
    if (weight > 0) worst = std::fmax(worst, off / weight);
  }
  if (is_empty) {
    EXPECT_MSG(lse == (what.out.empty == BANYAN_EMPTY_POS_INF ? INFINITY : -INFINITY) && (!out.sum || sum == 0),
               "%s: empty row of sequence %d, head %d", text, b, head);
    return 0;
  }
  const double given = lse * (out.base == BANYAN_BASE_2 ? BNY_LN_2 : 1) + std::log(sum);
  const double off = std::fabs(given - (reference.max + std::log(reference.sum)));
  EXPECT_MSG(off <= lse_bound(reach), "%s: sequence %d, head %d: lse is off by %g", text, b, head, off);
  return worst;
}

/* Runs the case, compares all rows, and returns the largest error. */
static double run(const decode_case &what) {
  decode_memory memory;
  double worst = 0;
  char text[256];
  make_memory(what, &memory);
  snprintf(text, sizeof text,
           "%s kv_heads %d group %d batch %d first length %d page %d teams %u cluster %u fan_in %u seed %llu",
           what.row->name, what.kv_heads, what.group, what.batch(), what.batch() ? what.lengths[0] : 0, what.page_keys,
           what.teams, what.cluster, what.fan_in, (unsigned long long)what.seed);
  std::string why = launch(what, &memory);
  EXPECT_MSG(why.empty(), "%s: %s", text, why.c_str());
  for (int b = 0; b < what.batch(); b++)
    for (int head = 0; head < what.heads(); head++) {
      /* Keys next to those of a lost page may be lost with it. */
      const bool near = what.is_latent() || what.page_keys < BNY_DECODE_TILE_KEYS;
      if (what.loses() && b == what.wrong_sequence && near)
        EXPECT_MSG(!std::isnan(oracle_load(memory.call.out.lse, BANYAN_F32, b * what.heads() + head)),
                   "%s: a row of sequence %d is NaN", text, b);
      else
        worst = std::fmax(worst, check_row(what, memory, b, head, text));
    }
  return worst;
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
  what->out.values_dtype = dtypes[random_int(0, 3)];
  what->resident_blocks = random_int(0, 2) ? 0 : what->cluster;
  what->seed = random_bits();
}

static void show(const decode_case &what, const char *how, double worst) {
  printf("%s%s: error %.2g of sum(p |v|) / d\n", what.row->name, how, worst);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

/* Values of one sign, and tensor cores that truncate sums: the errors of all keys add up. */
TEST_LOOP(truncated_sums, 4) {
  if (IS_SANITIZED) return; /* takes long, and the code is that of a few keys */
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
  const double error = run(what);
  show(what, ", cut off", error);
  /* With rounding to nearest, sums of 128 K keys have an error below 1e-5. Truncated sums exceed it. */
  if (_i == 0) ck_assert(error > 1e-5);
  bny_emulator_truncate(false);
}

/* Tests that an option of the warpgroup kernel takes effect, and that its error is within the bound. */
TEST_LOOP(one_term, 2) {
  decode_case what = case_named(_i ? "f16_latent64_wgmma" : "bf16_latent64_wgmma");
  what.lengths = {200};
  what.one_sign = true;
  const double two = run(what);
  what.one_term = true;
  const double one = run(what);
  show(what, ", one term", one);
  ck_assert(one > 10 * two);
}

TEST_IN("kernels", each_kernel, KERNELS) {
  double worst = 0;
  if (compiled_is_on() && !compiled_has((std::string("bny_decode_") + kernels[_i].name).c_str())) return;
  for (int i = 0; i < (IS_SANITIZED ? 1 : 3); i++) {
    decode_case what = case_of(_i);
    randomise(&what, 4, 200, _i);
    what.group = random_int(1, what.row->rows + 4);
    worst = std::fmax(worst, run(what));
  }
  show(case_of(_i), "", worst);
}

/* One row of many splits, merged in one round and in two. */
TEST(many_pieces) {
  decode_case what = case_named("bf16_64_async");
  what.lengths = {1000};
  what.teams = 64;
  what.group = 3;
  for (uint32_t fan_in : {2u, 7u, 8u, 63u, 64u}) {
    what.fan_in = fan_in;
    what.seed = random_bits();
    run(what);
  }
}

TEST(same_bits) {
  for (int copy = 0; copy < 2; copy++) {
    decode_case what = case_named(copy ? "bf16_128_async" : "bf16_128_bulk");
    randomise(&what, 3, 400);
    what.out.values_dtype = BANYAN_F32;
    what.kv_heads = 1;
    what.group = 5;
    what.fan_in = 3;
    std::vector<unsigned char> first;
    decode_memory memory;
    make_memory(what, &memory);
    for (int i = 0; i < 4; i++) {
      what.seed = random_bits();
      what.resident_blocks = i ? what.cluster * (uint32_t)i : 0;
      std::string why = launch(what, &memory);
      EXPECT_MSG(why.empty(), "%s", why.c_str());
      if (i == 0) first = memory.values.all;
      EXPECT_MSG(first == memory.values.all, "other bits in run %d", i);
    }
  }
}

TEST(conventions) {
  static const banyan_values values[] = {BANYAN_VALUES_NORMALISED, BANYAN_VALUES_NUMERATOR};
  static const banyan_stats stats[] = {BANYAN_STATS_LSE, BANYAN_STATS_MAX_SUM};
  static const banyan_base bases[] = {BANYAN_BASE_E, BANYAN_BASE_2};
  for (int i = 0; i < 8; i++) {
    decode_case what = case_named("bf16_64_async");
    what.lengths = {70, 0, 200};
    what.group = 2;
    what.out.stats_kind = stats[i & 1];
    what.out.base = bases[i >> 1 & 1];
    what.out.values_kind = i & 1 ? values[i >> 2] : BANYAN_VALUES_NORMALISED;
    what.out.empty = i & 2 ? BANYAN_EMPTY_POS_INF : BANYAN_EMPTY_NEG_INF;
    run(what);
  }
}

/* Each existing key must be read once for each tile of heads, and nothing else. */
static void expect_read(const decode_case &what, const decode_memory &memory, const bny_decode_cache &cache, int dim,
                        const read_count &reads) {
  std::vector<uint16_t> wanted(reads.times.size(), 0);
  for (int b = 0; b < what.batch(); b++)
    for (int h = 0; h < what.kv_heads; h++)
      for (int t = 0; t < what.lengths[(size_t)b]; t++) {
        const char *row = (const char *)row_of(memory.call, cache, b, t, h);
        for (int i = 0; i < dim / 8; i++)
          wanted[(size_t)(row - (const char *)cache.base) / 16 + (size_t)i] = (uint16_t)memory.call.row_tiles;
      }
  EXPECT(wanted == reads.times);
}

TEST_LOOP(reads_once, KERNELS) {
  if (sanitizer_leaves_out(_i)) return;
  decode_case what = case_of(_i);
  randomise(&what, 4, 150, _i);
  what.group = random_int(1, 20);
  decode_memory memory;
  make_memory(what, &memory);
  const bny_decode_call &call = memory.call;
  const size_t pages = call.pages;
  k_reads.watch(call.k.base, pages * (size_t)call.k.page_stride);
  if (!what.is_latent()) v_reads.watch(call.v.base, pages * (size_t)call.v.page_stride);
  std::string why = launch(what, &memory);
  EXPECT_MSG(why.empty(), "%s", why.c_str());
  expect_read(what, memory, call.k, what.row->head_dim, k_reads);
  if (!what.is_latent()) expect_read(what, memory, call.v, what.row->value_dim, v_reads);
}

/* One wrong id in the page table is reported and not read. Rows of other sequences are right. If tiles lie within
 * pages, its own rows are right without the page's keys. */
TEST_LOOP(wrong_pages, KERNELS) {
  if (sanitizer_leaves_out(_i)) return;
  static const int pages[] = {1, 8, 16, 64};
  for (int way = 0; way < WRONG_WAYS; way++) {
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
    run(what);
  }
}

TEST(page_divisions) {
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

int main(void) { return suite_main(suite_of("cuda_decode", 240)); }
