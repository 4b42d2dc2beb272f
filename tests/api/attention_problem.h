/* SPDX-License-Identifier: Apache-2.0
 * Random attention problems over shards, described once for the host and for devices. Memory comes from
 * world_take(). */
#pragma once

#include "banyan.h"
#include "merge_math.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/world.h"

enum { PROBLEM_BATCH_MAX = 1100 };

/* Data shared by all shards of one problem. */
typedef struct problem_shape {
  int32_t batch, heads, kv_heads, head_dim, value_dim;
  bool latent; /* values are the first columns of keys */
  banyan_dtype dtype;
  bool one_sign;               /* values are not negative, so errors of truncated sums add up */
  int32_t page_keys, keys_max; /* page_keys 0: contiguous */
  const int32_t *lengths;      /* NULL: random ones */
} problem_shape;

typedef struct problem_shard {
  banyan_attention_desc desc;
  uint16_t *k, *v;
  int32_t *pages;
  int32_t lengths[PROBLEM_BATCH_MAX];
} problem_shard;

static inline uint16_t problem_bits(banyan_dtype dtype, double value) {
  return dtype == BANYAN_BF16 ? bny_bf16_of_float((float)value) : bny_f16_of_float((float)value);
}
static inline double problem_value(banyan_dtype dtype, uint16_t bits) {
  return (double)(dtype == BANYAN_BF16 ? bny_float_of_bf16(bits) : bny_float_of_f16(bits));
}

static inline problem_shape problem_shape_random(world_random *random) {
  static const int32_t dims[] = {64, 96, 128, 192, 256, 576};
  problem_shape made = {.batch = 1 + random_below(random, 3), .kv_heads = 1 + random_below(random, 2)};
  made.heads = made.kv_heads * (1 + random_below(random, random_one_in(random, 8) ? 20 : 6));
  made.head_dim = made.value_dim = dims[random_below(random, 6)];
  made.latent = made.head_dim == 576;
  if (made.latent) made.value_dim = 512;
  if (made.latent && random_one_in(random, 3)) made.heads = 33 + random_below(random, 40), made.kv_heads = 1;
  made.dtype = random_one_in(random, 2) ? BANYAN_BF16 : BANYAN_F16;
  made.keys_max = 1 + random_below(random, 100);
  made.page_keys = random_one_in(random, 2) ? 1 << random_below(random, 7) : 0;
  return made;
}

static inline uint16_t *problem_queries(world_random *random, const problem_shape *shape) {
  size_t count = (size_t)(shape->batch * shape->heads * shape->head_dim);
  uint16_t *made = (uint16_t *)world_take(2 * count);
  for (size_t i = 0; i < count; i++) made[i] = problem_bits(shape->dtype, 2 * random_unit(random));
  return made;
}

/* [pages][kv_heads][page_keys][dim]; elements outside of all sequences are NaN. */
static inline uint16_t *problem_cache(world_random *random, const problem_shape *shape, const problem_shard *shard,
                                      int32_t dim, int32_t page_keys, int32_t row_pages, bool one_sign) {
  size_t count = (size_t)(shape->batch * row_pages * shape->kv_heads * page_keys) * (size_t)dim;
  uint16_t *made = (uint16_t *)world_take(2 * count);
  memset(made, 0xff, 2 * count);
  for (int32_t b = 0; b < shape->batch; b++)
    for (int32_t t = 0; t < shard->lengths[b]; t++)
      for (int32_t h = 0; h < shape->kv_heads; h++) {
        int64_t page = shard->pages[b * row_pages + t / page_keys];
        uint16_t *row = made + ((page * shape->kv_heads + h) * page_keys + t % page_keys) * dim;
        for (int32_t i = 0; i < dim; i++) {
          const double value = random_unit(random);
          row[i] = problem_bits(shape->dtype, one_sign ? fabs(value) : value);
        }
      }
  return made;
}

/* The shard of one rank, with its own lengths and keys. */
static inline void problem_shard_make(world_random *random, const problem_shape *shape, const uint16_t *q,
                                      problem_shard *shard) {
  int32_t page_keys = shape->page_keys ? shape->page_keys : shape->keys_max;
  int32_t row_pages = (shape->keys_max + page_keys - 1) / page_keys, pages = shape->batch * row_pages;
  for (int32_t b = 0; b < shape->batch; b++)
    shard->lengths[b] = shape->lengths             ? shape->lengths[b]
                        : random_one_in(random, 5) ? 0
                                                   : 1 + random_below(random, shape->keys_max);
  shard->pages = (int32_t *)world_take((size_t)pages * sizeof *shard->pages);
  for (int32_t i = 0; i < pages; i++) shard->pages[i] = i;
  for (int32_t i = pages - 1; shape->page_keys && i > 0; i--) {
    int32_t other = random_below(random, i + 1), held = shard->pages[i];
    shard->pages[i] = shard->pages[other];
    shard->pages[other] = held;
  }
  shard->k =
      problem_cache(random, shape, shard, shape->head_dim, page_keys, row_pages, shape->latent && shape->one_sign);
  shard->v = shape->latent
                 ? NULL
                 : problem_cache(random, shape, shard, shape->value_dim, page_keys, row_pages, shape->one_sign);
  int32_t v_dim = shape->latent ? shape->head_dim : shape->value_dim;
  shard->desc =
      attention_desc_of(shape->batch, shape->heads, shape->kv_heads, page_keys, shape->head_dim, v_dim, shape->dtype,
                        shape->dtype, q, shard->k, shape->latent ? shard->k : shard->v, shard->lengths);
  shard->desc.value_dim = shape->value_dim;
  shard->desc.keys_max = shape->keys_max;
  if (!shape->page_keys) return;
  shard->desc.kv.pages.table = shard->pages;
  shard->desc.kv.pages.table_stride = row_pages;
  shard->desc.kv.pages.keys = page_keys;
  shard->desc.kv.pages.count = pages;
}
