/* SPDX-License-Identifier: Apache-2.0
 * Defines encode(), merge() and merge_finish(), written once over a vector type. The including file defines first the
 * operations of merge_vector.h. */
#pragma once

#include "merge_vector.h"

/* ---- merged rows ------------------------------------------------------------------------------------------------- */

/* Merges rows [first_row, first_row + rows) of a block, which are consecutive in each source:
 * out[r][i] = factor[first_row + r] * (tree of the sources' element i of row first_row + r), in the wire's type or
 * f32. */
typedef struct merge_job {
  const void *const *sources; /* at first_row */
  int count;
  const node_scales *scales;
  const float *factor;
  int first_row;
  int rows;
  int elements; /* columns to merge */
  size_t pitch; /* bytes between rows in the sources */
  void *const *out;
  int first_column, value_dim; /* for rows of blocks, whose sources are at column 0 */
} merge_job;

typedef void merge_function(const merge_job *job);

/* The tree of block_merge() over vectors; `scales` are those of the row, left and right in turn. With a constant count
 * all values stay in registers, as far as these suffice. */
INLINE vec merge_tree(vec *v, int count, const vec *scales, banyan_dtype wire, bool round) {
#pragma GCC unroll 4
  for (int width = count; width > 1; width = (width + 1) / 2) {
#pragma GCC unroll 4
    for (int i = 0; i < width / 2; i++, scales += 2) {
      v[i] = vec_add(vec_mul(v[2 * i], scales[0]), vec_mul(v[2 * i + 1], scales[1]));
      if (round) v[i] = round_to(v[i], wire);
    }
    if (width % 2 != 0) v[width / 2] = v[width - 1];
  }
  return v[0];
}

INLINE void merge_rows(const merge_job *job, int count, banyan_dtype wire, bool round, banyan_dtype to) {
  const size_t bytes = element_bytes(wire), to_bytes = element_bytes(to);
  const size_t pitch_bytes = job->pitch;
  const int elements = job->elements;
  const char *sources[BNY_MERGE_SOURCES_MAX];
  vec v[BNY_MERGE_SOURCES_MAX], scales[2 * BLOCK_NODES_MAX];
  for (int s = 0; s < count; s++) sources[s] = job->sources[s];
  for (int r = 0; r < job->rows; r++) {
    const int row = job->first_row + r;
    char *out = job->out[r];
    const vec factor = vec_set1(job->factor[row]);
#pragma GCC unroll 8
    for (int node = 0; node < count - 1; node++) {
      scales[2 * node] = vec_set1(job->scales[node][0][row]);
      scales[2 * node + 1] = vec_set1(job->scales[node][1][row]);
    }
    int i = 0;
    for (; i + VEC_LANES <= elements; i += VEC_LANES) {
#pragma GCC unroll 8
      for (int s = 0; s < count; s++) v[s] = load(sources[s] + (size_t)i * bytes, wire);
      vec merged = vec_mul(merge_tree(v, count, scales, wire, round), factor);
      store(out + (size_t)i * to_bytes, to, saturate_to(merged, to));
    }
    if (i < elements) {
#pragma GCC unroll 8
      for (int s = 0; s < count; s++) v[s] = load_part(sources[s] + (size_t)i * bytes, wire, elements - i);
      vec merged = vec_mul(merge_tree(v, count, scales, wire, round), factor);
      store_part(out + (size_t)i * to_bytes, to, saturate_to(merged, to), elements - i);
    }
#pragma GCC unroll 8
    for (int s = 0; s < count; s++) sources[s] += pitch_bytes;
  }
}

/* One function per number of sources up to 8, and one for more. */
#define MERGE_OF(name, number, count, wire, round, to) \
  static void merge_##name##_##number(const merge_job *job) { merge_rows(job, count, wire, round, to); }
#define MERGE_FAMILY(name, wire, round, to)                                                               \
  MERGE_OF(name, 1, 1, wire, round, to)                                                                   \
  MERGE_OF(name, 2, 2, wire, round, to)                                                                   \
  MERGE_OF(name, 3, 3, wire, round, to)                                                                   \
  MERGE_OF(name, 4, 4, wire, round, to)                                                                   \
  MERGE_OF(name, 5, 5, wire, round, to)                                                                   \
  MERGE_OF(name, 6, 6, wire, round, to)                                                                   \
  MERGE_OF(name, 7, 7, wire, round, to)                                                                   \
  MERGE_OF(name, 8, 8, wire, round, to)                                                                   \
  MERGE_OF(name, any, job->count, wire, round, to)                                                        \
  static merge_function *const family_##name[] = {merge_##name##_any, merge_##name##_1, merge_##name##_2, \
                                                  merge_##name##_3,   merge_##name##_4, merge_##name##_5, \
                                                  merge_##name##_6,   merge_##name##_7, merge_##name##_8};

MERGE_FAMILY(f32, BANYAN_F32, false, BANYAN_F32)
MERGE_FAMILY(f16, BANYAN_F16, false, BANYAN_F32)
MERGE_FAMILY(f16_wire, BANYAN_F16, false, BANYAN_F16)
MERGE_FAMILY(f16_round, BANYAN_F16, true, BANYAN_F32)
MERGE_FAMILY(f16_round_wire, BANYAN_F16, true, BANYAN_F16)
MERGE_FAMILY(bf16, BANYAN_BF16, false, BANYAN_F32)
MERGE_FAMILY(bf16_wire, BANYAN_BF16, false, BANYAN_BF16)
MERGE_FAMILY(bf16_round, BANYAN_BF16, true, BANYAN_F32)
MERGE_FAMILY(bf16_round_wire, BANYAN_BF16, true, BANYAN_BF16)

/* Rows of blocks: the wire of e4m3. */
INLINE void merge_blocks(const merge_job *job, bool round, bool to_wire) {
  scale_block v[BNY_MERGE_SOURCES_MAX];
  for (int r = 0; r < job->rows; r++) {
    const int row = job->first_row + r;
    const float factor = job->factor[row];
    for (int i = 0; i < job->elements; i += BNY_SCALE_BLOCK) {
      const int left = job->elements - i;
      for (int s = 0; s < job->count; s++)
        scale_block_read((const uint8_t *)job->sources[s] + (size_t)r * job->pitch, job->value_dim,
                         job->first_column + i, &v[s]);
      scale_blocks_tree(v, job->count, job->scales, row, round);
      ROLLED for (int k = 0; k < BNY_SCALE_BLOCK; k++) { v[0].value[k] *= factor; }
      if (to_wire)
        scale_block_write(job->out[r], job->value_dim, i, &v[0]);
      else
        memcpy((float *)job->out[r] + i, v[0].value,
               (size_t)(left < BNY_SCALE_BLOCK ? left : BNY_SCALE_BLOCK) * sizeof(float));
    }
    if (to_wire) scale_row_pad(job->out[r], job->value_dim, job->pitch);
  }
}

static void merge_blocks_f32(const merge_job *job) { merge_blocks(job, false, false); }
static void merge_blocks_wire(const merge_job *job) { merge_blocks(job, false, true); }
static void merge_blocks_round(const merge_job *job) { merge_blocks(job, true, false); }
static void merge_blocks_round_wire(const merge_job *job) { merge_blocks(job, true, true); }

static merge_function *merge_function_for(banyan_dtype wire, bool round, int count, bool to_wire) {
  static merge_function *const blocks[2][2] = {{merge_blocks_f32, merge_blocks_wire},
                                               {merge_blocks_round, merge_blocks_round_wire}};
  if (wire == BANYAN_E4M3) return blocks[round][to_wire];
  static merge_function *const *const lossy[2][2][2] = {
      {{family_f16, family_f16_wire}, {family_f16_round, family_f16_round_wire}},
      {{family_bf16, family_bf16_wire}, {family_bf16_round, family_bf16_round_wire}}};
  merge_function *const *family = wire == BANYAN_F32 ? family_f32 : lossy[wire == BANYAN_BF16][round][to_wire];
  return family[count <= 8 ? count : 0];
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* The part of a merge that is the same for all blocks. */
typedef struct merge_setting {
  const bny_box *box;
  banyan_dtype wire;
  size_t row_bytes; /* size of a row on the wire */
  int count;
  const bny_wire_view *views;
  merge_function *merge;
  banyan_dtype merge_dtype; /* type that `merge` writes */
  banyan_dtype to;          /* type of the destination */
} merge_setting;

/* Runs a job whose sources are at column 0. If the destination has another type than `merge` writes, the job is one
 * row, whose tiles of columns pass through f32. Columns of the sources have `bytes` bytes, or 0 if `merge` finds its
 * first column itself. */
static void merge_through(merge_function *merge, const merge_job *whole, size_t bytes, banyan_dtype merge_dtype,
                          banyan_dtype to) {
  float tile[TILE_COLUMNS];
  const void *pointers[BNY_MERGE_SOURCES_MAX];
  void *const out[1] = {tile};
  merge_job job = *whole;
  if (merge_dtype == to) {
    merge(whole);
    return;
  }
  job.sources = pointers;
  job.out = out;
  for (int first = 0; first < whole->elements; first += TILE_COLUMNS) {
    job.elements = whole->elements - first < TILE_COLUMNS ? whole->elements - first : TILE_COLUMNS;
    job.first_column = first;
    for (int s = 0; s < whole->count; s++) pointers[s] = (const char *)whole->sources[s] + (size_t)first * bytes;
    merge(&job);
    convert_to_caller(tile, job.elements, (char *)whole->out[0] + (size_t)first * element_bytes(to), to);
  }
}

/* Merges the rows of a block together if they are consecutive in each source and need no conversion. */
static void merge_block(const merge_setting *setting, const row_block *block, const node_scales *scales,
                        const float *factor, void *const *targets) {
  const int value_dim = setting->box->value_dim;
  if (value_dim == 0) return;
  bool together = setting->merge_dtype == setting->to;
  for (int s = 0; s < setting->count && together; s++)
    together = block_contiguous(setting->box, block, &setting->views[s]);
  const int rows = together ? block->rows : 1;
  for (int r = 0; r < block->rows; r += rows) {
    const void *pointers[BNY_MERGE_SOURCES_MAX];
    for (int s = 0; s < setting->count; s++) {
      size_t at = (size_t)block_wire_row(block, &setting->views[s], r) * setting->row_bytes;
      pointers[s] = (const char *)setting->views[s].n + at;
    }
    merge_job job = {.sources = pointers,
                     .count = setting->count,
                     .scales = scales,
                     .factor = factor,
                     .first_row = r,
                     .rows = rows,
                     .elements = value_dim,
                     .pitch = setting->row_bytes,
                     .out = targets + r,
                     .value_dim = value_dim};
    merge_through(setting->merge, &job, setting->wire == BANYAN_E4M3 ? 0 : element_bytes(setting->wire),
                  setting->merge_dtype, setting->to);
  }
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* True if memory at `to` and every `bytes` after it consists of full lines. */
static bool whole_lines(const void *to, size_t bytes) { return ((uintptr_t)to | bytes) % 64 == 0; }

/* Writes the statistics of a block; full lines bypass the caches. */
static void encode_stats(const bny_box *box, const row_block *block, const bny_wire_view *dst,
                         const block_stats *stats) {
  float *m = dst->m + block_wire_row(block, dst, 0), *d = dst->d + block_wire_row(block, dst, 0);
  if (!dst->stream || block->rows != BLOCK_ROWS || !block_contiguous(box, block, dst) ||
      !whole_lines(m, sizeof stats->m) || !whole_lines(d, sizeof stats->d)) {
    block_store_wire(box, block, dst, stats);
    return;
  }
  for (int r = 0; r < BLOCK_ROWS; r += VEC_LANES) {
    vec_stream_f32(m + r, vec_load(stats->m + r));
    vec_stream_f32(d + r, vec_load(stats->d + r));
  }
}

static int64_t encode(const bny_box *box, const banyan_partial *in, int32_t token0, int32_t head0, bny_wire wire,
                      const bny_wire_view *dst) {
  const import_rules rules = import_rules_make(in, wire);
  const banyan_dtype dtype = bny_wire_formats[wire].dtype;
  const int64_t from_bytes = (int64_t)element_bytes(in->values_dtype);
  const int value_dim = box->value_dim;
  const size_t row_bytes = bny_wire_row_bytes(wire, value_dim);
  const bool stream = dst->stream && wire == BNY_WIRE_F32 && whole_lines(dst->n, row_bytes);
  int64_t bad_row = -1;
  uint64_t saturated = 0;
  row_block block = {.rows = 0};
  while (bad_row < 0 && block_next(box, &block)) {
    block_stats stats;
    float factor[BLOCK_ROWS];
    block_load_caller(&block, in, token0, head0, &stats);
    int bad = block_import(&rules, &stats, factor);
    if (bad >= 0) {
      bad_row = (int64_t)block.token[bad] * box->heads + block.head[bad];
      break;
    }
    if (in->values_scale != NULL) block_scale_input(&block, in, head0, factor);
    encode_stats(box, &block, dst, &stats);
    for (int r = 0; r < block.rows && value_dim > 0; r++) {
      char *to = (char *)dst->n + (size_t)block_wire_row(&block, dst, r) * row_bytes;
      const char *from = (const char *)in->values + block_values_offset(&block, in, token0, head0, r) * from_bytes;
      if (stats.d[r] == 0.0f) {
        memset(to, 0, row_bytes); /* values of an empty row are not read */
      } else if (stream) {
        stream_to_wire(from, in->values_dtype, factor[r], value_dim, (float *)(void *)to);
      } else if (wire == BNY_WIRE_E4M3) {
        saturated += convert_to_blocks(from, in->values_dtype, factor[r], value_dim, to, row_bytes);
      } else {
        saturated += convert_to_wire(from, in->values_dtype, factor[r], value_dim, to, dtype);
      }
    }
  }
  if (dst->stream) vec_stream_end();
  if (dst->saturated != NULL) *dst->saturated += saturated;
  return bad_row;
}

/* Copies one source to wire form, bit by bit. */
static void copy_rows(const bny_box *box, bny_wire wire, const bny_wire_view *source, const bny_wire_view *dst) {
  const size_t row_bytes = bny_wire_row_bytes(wire, box->value_dim);
  for (int32_t t = 0; t < box->tokens; t++) {
    int64_t from = t * source->token_stride, to = t * dst->token_stride;
    size_t rows = (size_t)box->heads;
    memcpy(dst->m + to, source->m + from, rows * sizeof(float));
    memcpy(dst->d + to, source->d + from, rows * sizeof(float));
    if (row_bytes > 0) {
      memcpy((char *)dst->n + (size_t)to * row_bytes, (const char *)source->n + (size_t)from * row_bytes,
             rows * row_bytes);
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
  const size_t row_bytes = bny_wire_row_bytes(wire, box->value_dim);
  const merge_setting setting = {.box = box,
                                 .wire = dtype,
                                 .row_bytes = row_bytes,
                                 .count = count,
                                 .views = sources,
                                 .merge = merge_function_for(dtype, round, count, true),
                                 .merge_dtype = dtype,
                                 .to = dtype};
  float factor[BLOCK_ROWS];
  for (int r = 0; r < BLOCK_ROWS; r++) factor[r] = 1.0f;
  row_block block = {.rows = 0};
  while (block_next(box, &block)) {
    block_stats nodes[BNY_MERGE_SOURCES_MAX];
    node_scales scales[BLOCK_NODES_MAX];
    for (int s = 0; s < count; s++) block_load_wire(box, &block, &sources[s], &nodes[s]);
    block_merge(nodes, count, round, lossy, scales);
    block_store_wire(box, &block, dst, &nodes[0]);
    void *targets[BLOCK_ROWS];
    for (int r = 0; r < block.rows; r++)
      targets[r] = (char *)dst->n + (size_t)block_wire_row(&block, dst, r) * row_bytes;
    merge_block(&setting, &block, (const node_scales *)scales, factor, targets);
  }
}

static int64_t merge_finish(const bny_box *box, bny_wire wire, int count, const bny_wire_view *sources,
                            bool round_nodes, const banyan_partial *out, int32_t token0, int32_t head0) {
  int64_t unfit = -1;
  const bool round = wire != BNY_WIRE_F32 && round_nodes;
  const banyan_dtype dtype = bny_wire_formats[wire].dtype;
  const int64_t out_bytes = (int64_t)element_bytes(out->values_dtype);
  const merge_setting setting = {.box = box,
                                 .wire = dtype,
                                 .row_bytes = bny_wire_row_bytes(wire, box->value_dim),
                                 .count = count,
                                 .views = sources,
                                 .merge = merge_function_for(dtype, round, count, false),
                                 .merge_dtype = BANYAN_F32,
                                 .to = out->values_dtype};
  row_block block = {.rows = 0};
  while (block_next(box, &block)) {
    block_stats nodes[BNY_MERGE_SOURCES_MAX];
    node_scales scales[BLOCK_NODES_MAX];
    float factor[BLOCK_ROWS];
    for (int s = 0; s < count; s++) block_load_wire(box, &block, &sources[s], &nodes[s]);
    block_merge(nodes, count, round, false, scales);
    int odd = block_export(&block, &nodes[0], out, token0, head0, factor);
    if (odd >= 0 && unfit < 0) unfit = (int64_t)block.token[odd] * box->heads + block.head[odd];
    if (out->values_scale != NULL) block_scale_output(&block, out, head0, factor);
    void *targets[BLOCK_ROWS];
    for (int r = 0; r < block.rows && box->value_dim > 0; r++)
      targets[r] = (char *)out->values + block_values_offset(&block, out, token0, head0, r) * out_bytes;
    merge_block(&setting, &block, (const node_scales *)scales, factor, targets);
  }
  return unfit;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static uint64_t sum_blocks_encode(const void *from, banyan_dtype dtype, int elements, uint8_t *to) {
  uint64_t over = 0;
  for (int i = 0; i < elements; i += BNY_SCALE_BLOCK, to += BNY_SUM_BLOCK_BYTES) {
    scale_block block = {{0}};
    const int count = elements - i < BNY_SCALE_BLOCK ? elements - i : BNY_SCALE_BLOCK;
    convert_to_wire((const char *)from + (size_t)i * element_bytes(dtype), dtype, 1.0f, count, block.value, BANYAN_F32);
    ROLLED for (int k = 0; k < BNY_SCALE_BLOCK; k++) {
      const uint32_t magnitude = bny_scale_magnitude(block.value[k]);
      over += magnitude > bny_bits_of_float(BNY_BLOCK_MAX);
    }
    sum_block_write(to, &block);
  }
  return over;
}

static void sum_blocks(int count, const void *const *sources, int elements, bool round, bool is_wire, void *to,
                       banyan_dtype dtype) {
  scale_block v[BNY_MERGE_SOURCES_MAX];
  size_t at = 0;
  for (int i = 0; i < elements; i += BNY_SCALE_BLOCK, at += BNY_SUM_BLOCK_BYTES) {
    const int number = elements - i < BNY_SCALE_BLOCK ? elements - i : BNY_SCALE_BLOCK;
    for (int s = 0; s < count; s++) sum_block_read((const uint8_t *)sources[s] + at, &v[s]);
    sum_blocks_tree(v, count, round);
    if (is_wire)
      sum_block_write((uint8_t *)to + at, &v[0]);
    else
      convert_to_caller(v[0].value, number, (char *)to + (size_t)i * element_bytes(dtype), dtype);
  }
}

static uint64_t sum_encode(const void *from, banyan_dtype dtype, int elements, bny_wire wire, void *to) {
  if (wire == BNY_WIRE_E4M3) return sum_blocks_encode(from, dtype, elements, to);
  return convert_to_wire(from, dtype, 1.0f, elements, to, bny_wire_formats[wire].dtype);
}

/* A sum is a merge whose factors are all 1. */
static void sum(int count, const void *const *sources, int elements, bny_wire wire, bool round_nodes, bool is_wire,
                void *to, banyan_dtype dtype) {
  if (wire == BNY_WIRE_E4M3) {
    sum_blocks(count, sources, elements, round_nodes, is_wire, to, dtype);
    return;
  }
  static const node_scales ones[BLOCK_NODES_MAX] = {[0 ... BLOCK_NODES_MAX - 1] = {{1.0f}, {1.0f}}};
  static const float one[1] = {1.0f};
  const banyan_dtype wire_dtype = bny_wire_formats[wire].dtype;
  merge_job job = {
      .sources = sources, .count = count, .scales = ones, .factor = one, .rows = 1, .elements = elements, .out = &to};
  merge_through(merge_function_for(wire_dtype, wire != BNY_WIRE_F32 && round_nodes, count, is_wire), &job,
                element_bytes(wire_dtype), is_wire ? wire_dtype : BANYAN_F32, is_wire ? wire_dtype : dtype);
}
