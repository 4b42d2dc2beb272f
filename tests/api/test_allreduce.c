/* SPDX-License-Identifier: Apache-2.0
 * Sums over random shapes, types, layouts and token counts, as blocking calls and operations on every backend. The
 * oracle knows the input of every rank. Whole numbers must be right to the bit in each type. Canonical sums must be
 * those of the tree, exact ones those of their definition, and others within their bound and the same on all ranks. */
#include "f8.h"
#include "merge_math.h"
#include "comm/comm.h"
#include "tests/support/lone.h"
#include "tests/support/world.h"

/* Emulated devices are slow. */
enum {
  SHAPES = 14,
  SHAPES_OF_DEVICES = 5,
  TOKENS = 30,
  TOKENS_OF_DEVICES = 8,
  RUNS = 4,
  RUNS_OF_DEVICES = 2,
  RANKS_MAX = 16,
  SIZES = 700,
  MARGIN = 24
};

typedef enum content { WHOLE, UNIT, HUGE_VALUES, SPECIAL, CONTENTS } content;

/* The values of a block of columns, as canonical order gives them, and a bound of what they were on the way. */
typedef struct block {
  int32_t run, token, first;
  float sums[BNY_SCALE_BLOCK];
  double most;
} block;

typedef struct problem {
  banyan_allreduce_desc desc;
  uint64_t seed;
  content content;
  int32_t nranks, rank;
  bool in_place;
  int64_t in_stride, out_stride; /* as the library understands them */
  size_t in_bytes, out_bytes, in_offset, out_offset;
  block *latest;      /* the block of the wire of e4m3 that was found last */
  const char *kernel; /* a device runs this kernel; NULL: any */
} problem;

static size_t bytes_of(banyan_dtype dtype) { return dtype == BANYAN_F32 ? 4 : 2; }

static float rounded(float value, banyan_dtype dtype) {
  return dtype == BANYAN_F16    ? bny_float_of_f16(bny_f16_of_float(value))
         : dtype == BANYAN_BF16 ? bny_float_of_bf16(bny_bf16_of_float(value))
                                : value;
}

static void put(void *at, banyan_dtype dtype, float value) {
  uint16_t half = dtype == BANYAN_F16 ? bny_f16_of_float(value) : bny_bf16_of_float(value);
  memcpy(at, dtype == BANYAN_F32 ? (void *)&value : (void *)&half, bytes_of(dtype));
}

static float get(const void *at, banyan_dtype dtype) {
  float value;
  uint16_t half;
  memcpy(dtype == BANYAN_F32 ? (void *)&value : (void *)&half, at, bytes_of(dtype));
  return dtype == BANYAN_F32 ? value : dtype == BANYAN_F16 ? bny_float_of_f16(half) : bny_float_of_bf16(half);
}

/* The input of a rank: a value that the type holds. */
static float input_of(const problem *of, int32_t rank, int run, int32_t token, int32_t column) {
  world_random random =
      of->seed ^ bny_hash_add(bny_hash_add((uint64_t)rank * 131 + (uint64_t)run, (uint64_t)token), (uint64_t)column);
  float unit = (float)random_unit(&random);
  switch (of->content) {
  case WHOLE: return (float)(random_below(&random, 9) - 4);
  case HUGE_VALUES: return rounded(unit * (of->desc.dtype == BANYAN_F16 ? 60000.0f : 1e38f), of->desc.dtype);
  case SPECIAL:
    if (random_one_in(&random, 40)) return NAN;
    if (random_one_in(&random, 40)) return unit < 0 ? -INFINITY : INFINITY;
    break;
  default: break;
  }
  return rounded(unit, of->desc.dtype);
}

/* ---- expected results -------------------------------------------------------------------------------------------- */

static float on_wire(float value, banyan_dtype wire) {
  if (wire == BANYAN_F32 || wire == 0) return value;
  return rounded(bny_saturate(value, wire == BANYAN_F16 ? BNY_F16_MAX : BNY_BF16_MAX), wire);
}

/* The wire of e4m3 rounds a block, and keeps infinities. */
static void round_block(float v[BNY_SCALE_BLOCK]) {
  uint32_t most = 0;
  bool infinite = false;
  for (int i = 0; i < BNY_SCALE_BLOCK; i++) {
    v[i] = bny_saturate(v[i], BNY_BLOCK_MAX);
    infinite |= isinf(v[i]);
    if (bny_scale_magnitude(v[i]) > most) most = bny_scale_magnitude(v[i]);
  }
  float scale = bny_scale_of_byte(bny_scale_byte(most)), inverse = bny_scale_inverse(bny_scale_byte(most));
  for (int i = 0; i < BNY_SCALE_BLOCK; i++)
    if (isfinite(v[i])) v[i] = bny_float_of_e4m3(bny_e4m3_of_float(v[i] * inverse)) * scale + (infinite ? 0.0f : -0.0f);
}

/* Finds the block of a column: 32 of the columns, or with HEADS of those of this rank. */
static const block *block_of(const problem *of, int run, int32_t token, int32_t column, int32_t *at) {
  int32_t first = 0, end = of->desc.dim;
  if (of->desc.scatter == BANYAN_SCATTER_HEADS) banyan_split(of->desc.dim, of->nranks, of->rank, &first, &end);
  if (of->desc.scatter == BANYAN_SCATTER_HEADS) end += first;
  *at = (column - first) % BNY_SCALE_BLOCK;
  block *made = of->latest;
  if (made->run == run && made->token == token && made->first == column - *at) return made;
  *made = (block){.run = run, .token = token, .first = column - *at};
  float v[RANKS_MAX][BNY_SCALE_BLOCK] = {{0}};
  for (int32_t r = 0; r < of->nranks; r++) {
    double most = 0;
    for (int32_t i = 0; i < BNY_SCALE_BLOCK && made->first + i < end; i++) {
      v[r][i] = input_of(of, r, run, token, made->first + i);
      if (isfinite(v[r][i])) most = fmax(most, fabs((double)v[r][i]));
    }
    made->most += most;
    round_block(v[r]);
  }
  for (int32_t width = of->nranks; width > 1; width = (width + 1) / 2) {
    for (int32_t i = 0; i < width / 2; i++) {
      for (int k = 0; k < BNY_SCALE_BLOCK; k++) v[i][k] = v[2 * i][k] + v[2 * i + 1][k];
      round_block(v[i]);
    }
    if (width % 2) memcpy(v[width / 2], v[width - 1], sizeof v[0]);
  }
  memcpy(made->sums, v[0], sizeof v[0]);
  return made;
}

/* The tree of neighbour pairs, in which a lossy wire rounds every sum. */
static float canonical_sum(const problem *of, int run, int32_t token, int32_t column) {
  float v[RANKS_MAX];
  int32_t at;
  if (of->desc.wire == BANYAN_E4M3) return block_of(of, run, token, column, &at)->sums[at];
  for (int32_t r = 0; r < of->nranks; r++) v[r] = on_wire(input_of(of, r, run, token, column), of->desc.wire);
  for (int32_t width = of->nranks; width > 1; width = (width + 1) / 2) {
    for (int32_t i = 0; i < width / 2; i++) v[i] = on_wire(v[2 * i] + v[2 * i + 1], of->desc.wire);
    if (width % 2) v[width / 2] = v[width - 1];
  }
  return v[0];
}

/* The definition of the exact order: each input has digits at two places, and those of the two highest places count. */
static float exact_sum(const problem *of, int run, int32_t token, int32_t column) {
  enum { LOWEST = -6, PLACES = 12 };
  double digits[PLACES] = {0}, special = 0;
  int top = LOWEST + 1;
  for (int32_t r = 0; r < of->nranks; r++) {
    double x = (double)input_of(of, r, run, token, column);
    special += isfinite(x) ? 0 : x;
    if (!isfinite(x) || x == 0) continue;
    int place = (int)floor(ilogb(x) / 42.0);
    double high = rint(ldexp(x, -42 * place)), low = rint(ldexp(ldexp(x, -42 * place) - high, 42));
    digits[place - LOWEST] += high, digits[place - 1 - LOWEST] += low;
    if (place > top) top = place;
  }
  if (isnan(special) || special != 0) return (float)special;
  return (float)ldexp(digits[top - LOWEST] * 0x1p42 + digits[top - 1 - LOWEST], 42 * (top - 1));
}

/* Each input is rounded to the wire, and so is a sum that travels, at most once for each rank. */
static bool is_near(const problem *of, int run, int32_t token, int32_t column, float got) {
  double sum = 0, size = 0, wire = of->desc.wire == BANYAN_F16 ? 0x1p-11 : of->desc.wire == BANYAN_BF16 ? 0x1p-8 : 0;
  double type = of->desc.dtype == BANYAN_F16 ? 0x1p-11 : of->desc.dtype == BANYAN_BF16 ? 0x1p-8 : 0x1p-24;
  bool is_special = false;
  for (int32_t r = 0; r < of->nranks; r++) {
    double value = (double)input_of(of, r, run, token, column);
    is_special |= !isfinite(value);
    sum += value;
    size += fabs(value);
  }
  if (is_special) return isnan(sum) ? isnan(got) : (double)got == sum;
  double most = of->desc.dtype == BANYAN_F16 ? 65504 : 3.38e38;
  double held = of->desc.wire == BANYAN_F16 ? 65504 : of->desc.wire == BANYAN_E4M3 ? 2e38 : 3.38e38, blocks = 0;
  if (size > held || size > most) return true; /* may overflow or saturate on the way */
  if (of->desc.wire == BANYAN_E4M3) {
    int32_t at;
    double grows = pow(18.0 / 17, of->nranks);
    blocks = (grows - 1) * size + grows * of->nranks * 0x1p-17 * block_of(of, run, token, column, &at)->most;
  }
  double bound = blocks + size * of->nranks * (wire + 0x1p-23) + 0x1p-24;
  return fabs((double)got - sum) <= bound + (fabs(sum) + blocks) * type;
}

static bool is_right(const problem *of, int run, int32_t token, int32_t column, float got) {
  if (of->desc.order != BANYAN_ORDER_PLAN) {
    bool is_exact = of->desc.order == BANYAN_ORDER_EXACT;
    float sum = is_exact ? exact_sum(of, run, token, column) : canonical_sum(of, run, token, column);
    float expected = rounded(sum, of->desc.dtype);
    return isnan(expected) ? isnan(got) : bny_bits_of_float(expected) == bny_bits_of_float(got);
  }
  if (of->content != WHOLE || of->desc.wire == BANYAN_E4M3) return is_near(of, run, token, column, got);
  float sum = 0;
  for (int32_t r = 0; r < of->nranks; r++) sum += input_of(of, r, run, token, column);
  return got == sum;
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

typedef struct result_box {
  int32_t token0, tokens, column0, columns;
} result_box;

static result_box result_of(const problem *of, int32_t tokens) {
  result_box box = {0, tokens, 0, of->desc.dim};
  if (of->desc.scatter == BANYAN_SCATTER_HEADS)
    banyan_split(of->desc.dim, of->nranks, of->rank, &box.column0, &box.columns);
  if (of->desc.scatter == BANYAN_SCATTER_TOKENS) banyan_split(tokens, of->nranks, of->rank, &box.token0, &box.tokens);
  if (of->desc.scatter == BANYAN_SCATTER_ROOT && of->desc.root != of->rank) box.tokens = 0;
  return box;
}

static int64_t choose_stride(world_random *random, int64_t columns, int64_t *said) {
  *said = random_one_in(random, 2) ? 0 : columns + random_below(random, 20);
  if (*said && random_one_in(random, 4)) *said = -*said;
  return *said ? *said : columns;
}

typedef struct memory {
  unsigned char *in, *out, *expected;
  int32_t *tokens;
  uint64_t *hashes; /* [nranks], of all ranks */
} memory;

/* The number of the test's case. */
static uint64_t case_of(const world_rank *self) { return ((const memory *)self->argument)->hashes[RANKS_MAX]; }

static void make(problem *made, world_random random, const world_rank *self) {
  static const banyan_dtype types[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3};
  int32_t dim = 1 + random_below(&random, random_one_in(&random, 3) ? 900 : 40);
  banyan_allreduce_desc desc = BANYAN_ALLREDUCE_DESC_INIT;
  desc.tokens = random_below(&random, self->on->is_device ? TOKENS_OF_DEVICES : TOKENS);
  desc.dim = random_one_in(&random, 12) ? 0 : dim;
  desc.dtype = types[random_below(&random, 3)];
  desc.wire = random_one_in(&random, 2) ? 0 : types[random_below(&random, 4)];
  desc.scatter = (banyan_scatter)random_below(&random, 4);
  desc.root = desc.scatter == BANYAN_SCATTER_ROOT ? random_below(&random, self->nranks) : 0;
  desc.order = (banyan_order)random_below(&random, 3);
  const char *algorithm = self->setup->algorithm;
  bool is_oneshot = !algorithm || strcmp(algorithm, "oneshot") == 0;
  if (self->on->is_device && desc.order == BANYAN_ORDER_EXACT && !is_oneshot)
    desc.order = BANYAN_ORDER_CANONICAL; /* devices have the exact order by one algorithm alone */
  static const char *const kernels[] = {"bny_oneshot_ll16_32", "bny_oneshot_ll128_32", "bny_oneshot_simple_32"};
  const bool has_size = case_of(self) >= SIZES;
  if (has_size) {
    static const int32_t sizes[][2] = {{1, 480}, {3, 1300}, {5, 5120}};
    const int32_t *size = sizes[case_of(self) % 3];
    desc.tokens = size[0], desc.dim = size[1], desc.dtype = BANYAN_F32, desc.order = BANYAN_ORDER_PLAN;
    desc.wire = 0, desc.scatter = BANYAN_SCATTER_NONE, desc.root = 0;
  }
  if (desc.order == BANYAN_ORDER_EXACT) desc.wire = 0;
  *made = (problem){.desc = desc, .nranks = self->nranks, .rank = self->rank, .seed = random_next(&random)};
  made->latest = world_take(sizeof *made->latest);
  made->latest->run = -1;
  made->kernel = has_size ? kernels[case_of(self) % 3] : NULL;
  made->content = (content)random_below(&random, CONTENTS);
  made->in_place = random_one_in(&random, 3);
  random += (uint64_t)self->rank; /* layouts differ between ranks */
  result_box own = result_of(made, desc.tokens);
  made->in_stride = choose_stride(&random, desc.dim, &made->desc.in_stride);
  made->out_stride = choose_stride(&random, own.columns, &made->desc.out_stride);
  if (made->in_place) made->out_stride = made->desc.out_stride = made->in_stride;
  int64_t in_length = llabs(made->in_stride) * desc.tokens, out_length = llabs(made->out_stride) * desc.tokens;
  size_t element = bytes_of(desc.dtype);
  made->in_offset = (size_t)(MARGIN + (made->in_stride < 0 ? in_length : 0)) * element;
  made->out_offset = (size_t)(MARGIN + (made->out_stride < 0 ? out_length : 0)) * element;
  made->in_bytes = (size_t)(in_length + desc.dim + 2 * MARGIN) * element;
  made->out_bytes = (size_t)(out_length + own.columns + 2 * MARGIN) * element;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static unsigned char *in_at(const problem *of, const memory *at) { return at->in + of->in_offset; }

/* A result in place begins at its own input, whose place depends on the tokens of the run if these are scattered. */
static unsigned char *out_at(const problem *of, const memory *at, int32_t tokens) {
  result_box own = result_of(of, tokens);
  int64_t first = own.token0 * of->in_stride + own.column0;
  return of->in_place ? in_at(of, at) + first * (int64_t)bytes_of(of->desc.dtype) : at->out + of->out_offset;
}

static void fill(const problem *of, const memory *at, int run, int32_t tokens) {
  size_t element = bytes_of(of->desc.dtype);
  memset(at->in, 0x5A, of->in_bytes);
  memset(at->out, 0x5A, of->out_bytes);
  for (int32_t t = 0; t < tokens; t++)
    for (int32_t c = 0; c < of->desc.dim; c++)
      put(in_at(of, at) + (t * of->in_stride + c) * (int64_t)element, of->desc.dtype,
          input_of(of, of->rank, run, t, c));
  memcpy(at->expected, of->in_place ? at->in : at->out, of->in_place ? of->in_bytes : of->out_bytes);
}

/* Checks the sums; then puts what was expected in their place, so that a write elsewhere shows. All ranks that got the
 * same sums compare their bits. */
static bool check(world_rank *self, const problem *of, const memory *at, int run, int32_t tokens) {
  result_box own = result_of(of, tokens);
  int64_t element = (int64_t)bytes_of(of->desc.dtype);
  uint64_t hash = BNY_HASH_START;
  unsigned char *out = out_at(of, at, tokens), *whole = of->in_place ? at->in : at->out;
  for (int32_t t = 0; t < own.tokens; t++)
    for (int32_t c = 0; c < own.columns; c++) {
      unsigned char *place = out + (t * of->out_stride + c) * element;
      float got = get(place, of->desc.dtype);
      if (!world_check(self, is_right(of, run, own.token0 + t, own.column0 + c, got),
                       "token %d, column %d of %d x %d is %a (type %d, wire %d, order %d, scatter %d, content %d)",
                       own.token0 + t, own.column0 + c, tokens, of->desc.dim, (double)got, of->desc.dtype,
                       of->desc.wire, of->desc.order, of->desc.scatter, of->content))
        return false;
      hash = bny_hash_add(hash, isnan(got) ? 1 : bny_bits_of_float(got));
      memcpy(place, at->expected + (place - whole), (size_t)element);
    }
  if (!world_check(self, memcmp(whole, at->expected, of->in_place ? of->in_bytes : of->out_bytes) == 0,
                   "memory beside the result changed"))
    return false;
  at->hashes[self->rank] = hash;
  if (!world_meet(self)) return false;
  bool same = of->desc.scatter != BANYAN_SCATTER_NONE || hash == at->hashes[0];
  return world_check(self, same, "its bits differ from those of rank 0") && world_meet(self);
}

/* Calls and operations, of all tokens or of a number that each run has. */
static bool sum_often(world_rank *self, problem *of, world_random random, const memory *at) {
  banyan_valid_rows valid = {.size = sizeof valid, .tokens = world_at(self, at->tokens)};
  bool counts = random_one_in(&random, 2) && !(of->in_place && of->desc.scatter == BANYAN_SCATTER_TOKENS);
  banyan_op *op = NULL;
  bool keeps = of->kernel || random_one_in(&random, 2), good = true;
  char text[4096];
  of->desc.valid = counts ? &valid : NULL;
  for (int run = 0; run < (self->on->is_device ? RUNS_OF_DEVICES : RUNS) && good; run++) {
    int32_t tokens = *at->tokens = counts ? random_below(&random, of->desc.tokens + 1) : of->desc.tokens;
    fill(of, at, run, tokens);
    const void *in = world_at(self, in_at(of, at));
    void *out = world_at(self, out_at(of, at, counts && (keeps || self->on->is_device) ? of->desc.tokens : tokens));
    if (!keeps) {
      good = world_put(self) && world_ok(self, banyan_allreduce(self->comm, &of->desc, in, out), "call") &&
             world_finish(self);
    } else {
      if (!op)
        good = world_ok(self, banyan_allreduce_init(self->comm, &of->desc, in, out, &op), "init") &&
               world_record(self, &op, 1);
      good = good && banyan_op_describe(op, text, sizeof text) &&
             world_check(self, !of->kernel || strstr(text, of->kernel), "not %s: %s", of->kernel, text);
      good = good && world_replay(self);
    }
    good = good && world_ok(self, banyan_comm_status(self->comm), "status") && check(self, of, at, run, tokens);
  }
  banyan_op_free(op);
  return good;
}

static void sum_all(world_rank *self) {
  const memory *shared = self->argument;
  static const bny_unit_limits limits = {.ll16_bytes = 2 << 10, .ll128_bytes = 16 << 10, .round_bytes = 8 << 10};
  const bool has_size = case_of(self) >= SIZES;
  world_random random = random_seed() * 6007 + case_of(self);
  if (has_size) self->comm->device.settings.limits = &limits;
  for (int shape = 0; shape < (has_size ? 1 : self->on->is_device ? SHAPES_OF_DEVICES : SHAPES); shape++) {
    problem of;
    world_random own = random_next(&random);
    make(&of, own, self);
    of.desc.stream = self->stream;
    if (!has_size) world_vary(self, (int32_t)case_of(self) + shape);
    memory at = *shared;
    size_t most = of.in_bytes > of.out_bytes ? of.in_bytes : of.out_bytes;
    at.in = world_take(of.in_bytes);
    at.out = world_take(of.out_bytes);
    at.expected = world_take(most);
    at.tokens = world_take(sizeof *at.tokens);
    if (!sum_often(self, &of, own + 1, &at)) return;
  }
}

/* Small arenas split calls into parts. Between them cases name each algorithm that a combine has. */
TEST_EVERYWHERE(ranks_sum, 40) {
  static const char *const algorithms[] = {NULL, "oneshot", "twoshot", "ring", "recursive", "tree"};
  memory shared = {.hashes = world_take((RANKS_MAX + 1) * sizeof *shared.hashes)};
  shared.hashes[RANKS_MAX] = (uint64_t)_i;
  WORLD_RUN(sum_all, .nranks = world_ranks(on, 1 + _i % 9), .on = on, .argument = &shared,
            .arena_bytes = _i % 3 == 2 ? 64 << 10 : 0, .algorithm = algorithms[_i % 6]);
}

/* Devices choose the protocol by size, here with limits below these sizes. */
TEST_LOOP(devices_choose_by_size, 3) {
  memory shared = {.hashes = world_take((RANKS_MAX + 1) * sizeof *shared.hashes)};
  shared.hashes[RANKS_MAX] = SIZES + (uint64_t)_i;
  if (world_is_here(&world_emulated)) WORLD_RUN(sum_all, .nranks = 2, .on = &world_emulated, .argument = &shared);
}

TEST_LOOP(levels_sum, 6) {
  static const char *const levels[] = {"2", "4", "2,4"};
  memory shared = {.hashes = world_take((RANKS_MAX + 1) * sizeof *shared.hashes)};
  shared.hashes[RANKS_MAX] = 300 + (uint64_t)_i;
  setenv("BANYAN_LEVELS", levels[_i % 3], 1);
  WORLD_RUN(sum_all, .nranks = 8, .argument = &shared, .arena_bytes = _i < 3 ? 0 : 64 << 10);
}

/* ---- single calls ------------------------------------------------------------------------------------------------ */

enum { FEW = 3, DIM = 8 };

TEST_RANKS(blocks_of_all_ranks_are_counted, 1, .nranks = 3) {
  banyan_allreduce_desc desc = {.size = sizeof desc, .tokens = INT32_MAX, .dim = 1, .dtype = BANYAN_F32};
  float in[1] = {0}, out[1];
  desc.wire = BANYAN_E4M3, desc.scatter = BANYAN_SCATTER_HEADS;
  banyan_status status = banyan_allreduce(self->comm, &desc, in, out);
  world_gets(self, status, BANYAN_ERR_ARGUMENT, "of 3 blocks of E4M3");
}

/* The columns of one buffer are of inputs or of results, and the last rank has a single token of the results. */
TEST_RANKS(a_single_token_has_columns_of_its_own, 1, .nranks = 2) {
  float buffer[FEW][2 * DIM];
  banyan_allreduce_desc desc = {.size = sizeof desc, .tokens = FEW, .dim = DIM, .dtype = BANYAN_F32};
  for (int32_t i = 0; i < FEW * DIM; i++) buffer[i / DIM][i % DIM] = (float)i;
  desc.in_stride = desc.out_stride = 2 * DIM, desc.scatter = BANYAN_SCATTER_TOKENS;
  if (!world_ok(self, banyan_allreduce(self->comm, &desc, buffer[0], &buffer[0][DIM]), "call")) return;
  int32_t first, number;
  banyan_split(FEW, self->nranks, self->rank, &first, &number);
  for (int32_t i = 0; i < number * DIM; i++)
    world_check(self, (int32_t)buffer[i / DIM][DIM + i % DIM] == self->nranks * (first * DIM + i), "sum %d", i);
}

int main(void) { return world_main(suite_of("allreduce", 120)); }
