/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of encode, merge and merge_finish, written once over a vector type. The including file defines, before it
 * includes this:
 *   vec, VEC_LANES                        f32 lanes, a power of two
 *   vec_set(x), vec_add, vec_mul          IEEE single operations
 *   vec_load_f32/_f16/_bf16(pointer)      no alignment required
 *   vec_store_f32/_f16/_bf16(pointer, v)  round to nearest even, NaN kept, f16 overflow to infinity
 *   vec_saturate(v, limit)                as bny_saturate()
 *   KERNELS_NAME, KERNELS_TABLE           "avx2", bny_kernels_avx2
 *   static bool supported(void)
 */
#include "block.h"

#define INLINE static inline __attribute__((always_inline))

/* Columns that go through a buffer of f32 at a time where the destination is not f32. */
enum { TILE_COLUMNS = 512 };

/* ---- vectors ------------------------------------------------------------------------------------------------------- */

INLINE size_t element_bytes(banyan_dtype dtype) {
  return dtype == BANYAN_F32 ? 4 : 2;
}

INLINE vec load(const void *values, banyan_dtype dtype) {
  return dtype == BANYAN_F32 ? vec_load_f32(values) : dtype == BANYAN_F16 ? vec_load_f16(values) : vec_load_bf16(values);
}

INLINE void store(void *values, banyan_dtype dtype, vec v) {
  if (dtype == BANYAN_F32) {
    vec_store_f32(values, v);
  } else if (dtype == BANYAN_F16) {
    vec_store_f16(values, v);
  } else {
    vec_store_bf16(values, v);
  }
}

/* The last, incomplete vector of a row goes through memory of a whole one. */
INLINE vec load_part(const void *values, banyan_dtype dtype, int elements) {
  float whole[VEC_LANES] = {0};
  memcpy(whole, values, (size_t)elements * element_bytes(dtype));
  return load(whole, dtype);
}

INLINE void store_part(void *values, banyan_dtype dtype, vec v, int elements) {
  float whole[VEC_LANES];
  store(whole, dtype, v);
  memcpy(values, whole, (size_t)elements * element_bytes(dtype));
}

INLINE vec saturate_to(vec v, banyan_dtype dtype) {
  return dtype == BANYAN_F32 ? v : vec_saturate(v, dtype == BANYAN_F16 ? BNY_F16_MAX : BNY_BF16_MAX);
}

/* As it reads after having been on the wire. */
INLINE vec round_to(vec v, banyan_dtype dtype) {
  float memory[VEC_LANES];
  store(memory, dtype, saturate_to(v, dtype));
  return load(memory, dtype);
}

/* ---- one row to another type ---------------------------------------------------------------------------------------- */

/* to[i] = from[i] * factor. `wire`: the destination is a wire, which saturates. */
INLINE void convert_row(const void *restrict from, banyan_dtype from_dtype, float factor, int elements, void *restrict to,
                        banyan_dtype to_dtype, bool wire) {
  const vec scale = vec_set(factor);
  const char *source = from;
  char *target = to;
  const size_t from_bytes = element_bytes(from_dtype), to_bytes = element_bytes(to_dtype);
  int i = 0;
  for (; i + VEC_LANES <= elements; i += VEC_LANES) {
    vec v = vec_mul(load(source + (size_t)i * from_bytes, from_dtype), scale);
    store(target + (size_t)i * to_bytes, to_dtype, wire ? saturate_to(v, to_dtype) : v);
  }
  if (i < elements) {
    vec v = vec_mul(load_part(source + (size_t)i * from_bytes, from_dtype, elements - i), scale);
    store_part(target + (size_t)i * to_bytes, to_dtype, wire ? saturate_to(v, to_dtype) : v, elements - i);
  }
}

INLINE void convert_row_from(const void *from, banyan_dtype from_dtype, float factor, int elements, void *to,
                             banyan_dtype to_dtype, bool wire) {
  if (to_dtype == BANYAN_F32) {
    convert_row(from, from_dtype, factor, elements, to, BANYAN_F32, wire);
  } else if (to_dtype == BANYAN_F16) {
    convert_row(from, from_dtype, factor, elements, to, BANYAN_F16, wire);
  } else {
    convert_row(from, from_dtype, factor, elements, to, BANYAN_BF16, wire);
  }
}

static void convert_to_wire(const void *from, banyan_dtype from_dtype, float factor, int elements, void *to,
                            banyan_dtype to_dtype) {
  if (from_dtype == BANYAN_F32) {
    convert_row_from(from, BANYAN_F32, factor, elements, to, to_dtype, true);
  } else if (from_dtype == BANYAN_F16) {
    convert_row_from(from, BANYAN_F16, factor, elements, to, to_dtype, true);
  } else {
    convert_row_from(from, BANYAN_BF16, factor, elements, to, to_dtype, true);
  }
}

static void convert_to_caller(const float *from, int elements, void *to, banyan_dtype to_dtype) {
  convert_row_from(from, BANYAN_F32, 1.0f, elements, to, to_dtype, false);
}

/* ---- merged rows ---------------------------------------------------------------------------------------------------- */

/* Merges rows [first_row, first_row + rows) of a block, which follow one another in each source, to f32:
 * out[r][i] = factor[first_row + r] * (tree of the sources' element i of row first_row + r). */
typedef struct merge_job {
  const void *const *sources; /* at first_row */
  int count;
  const node_scales *scales;
  const float *factor;
  int first_row;
  int rows;
  int elements;  /* columns to merge */
  int64_t pitch; /* elements from a row to the next in the sources */
  float *const *out;
} merge_job;

typedef void merge_function(const merge_job *job);

/* The tree of block_merge() over vectors. With a constant count it stays in registers. */
INLINE vec merge_tree(vec *v, int count, const node_scales *restrict scales, int row, banyan_dtype wire, bool round) {
  int node = 0;
#pragma GCC unroll 4
  for (int width = count; width > 1; width = (width + 1) / 2) {
#pragma GCC unroll 4
    for (int i = 0; i < width / 2; i++, node++) {
      vec a = vec_mul(v[2 * i], vec_set(scales[node][0][row]));
      vec b = vec_mul(v[2 * i + 1], vec_set(scales[node][1][row]));
      v[i] = vec_add(a, b);
      if (round) {
        v[i] = round_to(v[i], wire);
      }
    }
    if (width % 2 != 0) {
      v[width / 2] = v[width - 1];
    }
  }
  return v[0];
}

INLINE void merge_rows(const merge_job *job, int count, int places, banyan_dtype wire, bool round) {
  const node_scales *restrict scales = job->scales;
  const size_t bytes = element_bytes(wire);
  const int elements = job->elements;
  const char *sources[places];
  for (int s = 0; s < count; s++) {
    sources[s] = job->sources[s];
  }
  for (int r = 0; r < job->rows; r++) {
    float *restrict out = job->out[r];
    const int row = job->first_row + r;
    const vec factor = vec_set(job->factor[row]);
    const size_t first = (size_t)r * (size_t)job->pitch * bytes;
    vec v[places];
    int i = 0;
    for (; i + VEC_LANES <= elements; i += VEC_LANES) {
#pragma GCC unroll 8
      for (int s = 0; s < count; s++) {
        v[s] = load(sources[s] + first + (size_t)i * bytes, wire);
      }
      vec_store_f32(out + i, vec_mul(merge_tree(v, count, scales, row, wire, round), factor));
    }
    if (i < elements) {
      for (int s = 0; s < count; s++) {
        v[s] = load_part(sources[s] + first + (size_t)i * bytes, wire, elements - i);
      }
      vec merged = vec_mul(merge_tree(v, count, scales, row, wire, round), factor);
      store_part(out + i, BANYAN_F32, merged, elements - i);
    }
  }
}

#define MERGE_OF(name, number, dtype, round)             \
  static void merge_##name##_##number(const merge_job *job) { \
    merge_rows(job, number, number, dtype, round);       \
  }
#define MERGE_ANY(name, dtype, round)                                \
  static void merge_##name##_any(const merge_job *job) {             \
    merge_rows(job, job->count, BNY_MERGE_SOURCES_MAX, dtype, round); \
  }
#define MERGE_FAMILY(name, dtype, round) \
  MERGE_OF(name, 2, dtype, round)        \
  MERGE_OF(name, 4, dtype, round)        \
  MERGE_OF(name, 8, dtype, round)        \
  MERGE_ANY(name, dtype, round)

MERGE_FAMILY(f32, BANYAN_F32, false)
MERGE_OF(f32, 1, BANYAN_F32, false)
MERGE_OF(f32, 3, BANYAN_F32, false)
MERGE_OF(f32, 5, BANYAN_F32, false)
MERGE_OF(f32, 6, BANYAN_F32, false)
MERGE_OF(f32, 7, BANYAN_F32, false)
MERGE_FAMILY(f16, BANYAN_F16, false)
MERGE_FAMILY(f16_round, BANYAN_F16, true)
MERGE_FAMILY(bf16, BANYAN_BF16, false)
MERGE_FAMILY(bf16_round, BANYAN_BF16, true)

static merge_function *merge_function_for(banyan_dtype wire, bool round, int count) {
  enum { SMALL = 9 };
  static merge_function *const f32[SMALL] = {merge_f32_any, merge_f32_1, merge_f32_2, merge_f32_3, merge_f32_4,
                                             merge_f32_5,   merge_f32_6, merge_f32_7, merge_f32_8};
  static merge_function *const lossy[2][2][4] = {
      {{merge_f16_any, merge_f16_2, merge_f16_4, merge_f16_8},
       {merge_f16_round_any, merge_f16_round_2, merge_f16_round_4, merge_f16_round_8}},
      {{merge_bf16_any, merge_bf16_2, merge_bf16_4, merge_bf16_8},
       {merge_bf16_round_any, merge_bf16_round_2, merge_bf16_round_4, merge_bf16_round_8}}};
  if (wire == BANYAN_F32) {
    return count < SMALL ? f32[count] : merge_f32_any;
  }
  int index = count == 2 ? 1 : count == 4 ? 2 : count == 8 ? 3 : 0;
  return lossy[wire == BANYAN_BF16][round][index];
}

/* ---- a block ---------------------------------------------------------------------------------------------------------- */

/* Where the merged rows of a block go. */
typedef struct block_target {
  banyan_dtype dtype;
  bool wire;
  void *rows[BLOCK_ROWS];
} block_target;

typedef struct block_sources {
  const bny_box *box;
  banyan_dtype wire;
  int count;
  const bny_wire_view *views;
  merge_function *merge;
} block_sources;

/* One row, a tile of columns at a time through f32. */
static void merge_row_tiled(const block_sources *sources, const row_block *block, int row, const node_scales *scales,
                            const float *factor, const block_target *target) {
  float tile[TILE_COLUMNS];
  float *const out[1] = {tile};
  const void *pointers[BNY_MERGE_SOURCES_MAX];
  const size_t bytes = element_bytes(sources->wire), target_bytes = element_bytes(target->dtype);
  const int value_dim = sources->box->value_dim;
  for (int first = 0; first < value_dim; first += TILE_COLUMNS) {
    int elements = value_dim - first < TILE_COLUMNS ? value_dim - first : TILE_COLUMNS;
    for (int s = 0; s < sources->count; s++) {
      int64_t element = block_wire_row(block, &sources->views[s], row) * value_dim + first;
      pointers[s] = (const char *)sources->views[s].n + (size_t)element * bytes;
    }
    merge_job job = {.sources = pointers,
                     .count = sources->count,
                     .scales = scales,
                     .factor = factor,
                     .first_row = row,
                     .rows = 1,
                     .elements = elements,
                     .pitch = value_dim,
                     .out = out};
    sources->merge(&job);
    void *to = (char *)target->rows[row] + (size_t)first * target_bytes;
    if (target->wire) {
      convert_to_wire(tile, BANYAN_F32, 1.0f, elements, to, target->dtype);
    } else {
      convert_to_caller(tile, elements, to, target->dtype);
    }
  }
}

static void merge_block(const block_sources *sources, const row_block *block, const node_scales *scales,
                        const float *factor, const block_target *target) {
  const int value_dim = sources->box->value_dim;
  if (value_dim == 0) {
    return;
  }
  bool direct = target->dtype == BANYAN_F32;
  for (int s = 0; s < sources->count && direct; s++) {
    direct = block_contiguous(sources->box, block, &sources->views[s]);
  }
  if (!direct) {
    for (int r = 0; r < block->rows; r++) {
      merge_row_tiled(sources, block, r, scales, factor, target);
    }
    return;
  }
  const void *pointers[BNY_MERGE_SOURCES_MAX];
  float *out[BLOCK_ROWS];
  for (int s = 0; s < sources->count; s++) {
    int64_t element = block_wire_row(block, &sources->views[s], 0) * value_dim;
    pointers[s] = (const char *)sources->views[s].n + (size_t)element * element_bytes(sources->wire);
  }
  for (int r = 0; r < block->rows; r++) {
    out[r] = target->rows[r];
  }
  merge_job job = {.sources = pointers,
                   .count = sources->count,
                   .scales = scales,
                   .factor = factor,
                   .rows = block->rows,
                   .elements = value_dim,
                   .pitch = value_dim,
                   .out = out};
  sources->merge(&job);
}

/* ---- the table ---------------------------------------------------------------------------------------------------------- */

static int64_t encode(const bny_box *box, const banyan_partial *in, int32_t token0, int32_t head0, bny_wire wire,
                      const bny_wire_view *dst) {
  const import_rules rules = import_rules_make(in, wire);
  const banyan_dtype dtype = bny_wire_formats[wire].dtype;
  const size_t bytes = element_bytes(dtype), from_bytes = element_bytes(in->values_dtype);
  const int value_dim = box->value_dim;
  row_block block = {.rows = 0};
  while (block_next(box, &block)) {
    block_stats stats;
    float factor[BLOCK_ROWS];
    block_load_caller(&block, in, token0, head0, &stats);
    int bad = block_import(&rules, &stats, factor);
    if (bad >= 0) {
      return (int64_t)block.token[bad] * box->heads + block.head[bad];
    }
    block_store_wire(&block, dst, &stats);
    for (int r = 0; r < block.rows && value_dim > 0; r++) {
      char *to = (char *)dst->n + (size_t)(block_wire_row(&block, dst, r) * value_dim) * bytes;
      if (stats.d[r] > 0.0f) {
        const char *from = (const char *)in->values + block_values_offset(&block, in, token0, head0, r) * (int64_t)from_bytes;
        convert_to_wire(from, in->values_dtype, factor[r], value_dim, to, dtype);
      } else {
        memset(to, 0, (size_t)value_dim * bytes);
      }
    }
  }
  return -1;
}

/* One source to wire form: its bits. */
static void copy_rows(const bny_box *box, bny_wire wire, const bny_wire_view *source, const bny_wire_view *dst) {
  const size_t row_bytes = (size_t)box->value_dim * bny_wire_formats[wire].element_bytes;
  for (int32_t t = 0; t < box->tokens; t++) {
    int64_t from = t * source->token_stride, to = t * dst->token_stride;
    size_t rows = (size_t)box->heads;
    memcpy(dst->m + to, source->m + from, rows * sizeof(float));
    memcpy(dst->d + to, source->d + from, rows * sizeof(float));
    if (row_bytes > 0) {
      memcpy((char *)dst->n + (size_t)to * row_bytes, (const char *)source->n + (size_t)from * row_bytes, rows * row_bytes);
    }
  }
}

static void merge(const bny_box *box, bny_wire wire, int count, const bny_wire_view *sources, bool round_nodes,
                  const bny_wire_view *dst) {
  if (count == 1) {
    copy_rows(box, wire, sources, dst);
    return;
  }
  const bool lossy = wire != BNY_WIRE_F32, round = lossy && round_nodes;
  const banyan_dtype dtype = bny_wire_formats[wire].dtype;
  const size_t row_bytes = (size_t)box->value_dim * element_bytes(dtype);
  const block_sources from = {
      .box = box, .wire = dtype, .count = count, .views = sources, .merge = merge_function_for(dtype, round, count)};
  float factor[BLOCK_ROWS];
  for (int r = 0; r < BLOCK_ROWS; r++) {
    factor[r] = 1.0f;
  }
  row_block block = {.rows = 0};
  while (block_next(box, &block)) {
    block_stats nodes[BNY_MERGE_SOURCES_MAX];
    node_scales scales[BLOCK_NODES_MAX];
    for (int s = 0; s < count; s++) {
      block_load_wire(box, &block, &sources[s], &nodes[s]);
    }
    block_merge(nodes, count, round, lossy, scales);
    block_store_wire(&block, dst, &nodes[0]);
    block_target target = {.dtype = dtype, .wire = true};
    for (int r = 0; r < block.rows; r++) {
      target.rows[r] = (char *)dst->n + (size_t)block_wire_row(&block, dst, r) * row_bytes;
    }
    merge_block(&from, &block, (const node_scales *)scales, factor, &target);
  }
}

static void merge_finish(const bny_box *box, bny_wire wire, int count, const bny_wire_view *sources, bool round_nodes,
                         const banyan_partial *out, int32_t token0, int32_t head0) {
  const bool round = wire != BNY_WIRE_F32 && round_nodes;
  const banyan_dtype dtype = bny_wire_formats[wire].dtype;
  const int64_t out_bytes = (int64_t)element_bytes(out->values_dtype);
  const block_sources from = {
      .box = box, .wire = dtype, .count = count, .views = sources, .merge = merge_function_for(dtype, round, count)};
  row_block block = {.rows = 0};
  while (block_next(box, &block)) {
    block_stats nodes[BNY_MERGE_SOURCES_MAX];
    node_scales scales[BLOCK_NODES_MAX];
    float factor[BLOCK_ROWS];
    for (int s = 0; s < count; s++) {
      block_load_wire(box, &block, &sources[s], &nodes[s]);
    }
    block_merge(nodes, count, round, false, scales);
    block_export(&block, &nodes[0], out, token0, head0, factor);
    block_target target = {.dtype = out->values_dtype, .wire = false};
    for (int r = 0; r < block.rows && box->value_dim > 0; r++) {
      target.rows[r] = (char *)out->values + block_values_offset(&block, out, token0, head0, r) * out_bytes;
    }
    merge_block(&from, &block, (const node_scales *)scales, factor, &target);
  }
}

extern const bny_kernels KERNELS_TABLE;
const bny_kernels KERNELS_TABLE = {
    .name = KERNELS_NAME,
    .supported = supported,
    .encode = encode,
    .merge = merge,
    .merge_finish = merge_finish,
};
