/* SPDX-License-Identifier: Apache-2.0
 * A row block whose pages are weighed, chosen and read, shared by its threads; and the bounds of pages. */
#pragma once

#include <stdatomic.h>

#include "op.h"
#include "prune/prune.h"

/* The next stage. CHOOSE: all row blocks of a KV head choose together. SEGMENTS: all keys are summed except
 * pruned.segments. */
typedef enum bny_prune_stage {
  BNY_PRUNE_WEIGH,
  BNY_PRUNE_CHOOSE,
  BNY_PRUNE_READ,
  BNY_PRUNE_SEGMENTS,
  BNY_PRUNE_DONE
} bny_prune_stage;

/* Pages are weighed in chunks of this size, so that masses do not depend on threads. */
enum { BNY_PRUNE_CHUNK = 64 };

typedef struct bny_prune_block {
  const bny_attention_task *task; /* the rows, and all keys of their sequence */
  int32_t sequence, kv_head;
  const bny_bounds *bounds;
  const bny_attention_kernels *kernels;
  bny_pruned pruned;
  double sinks[BNY_ATTENTION_HEADS_MAX]; /* log2 */
  int32_t pages, page_keys;
  int32_t drafts, drafts_end; /* keys that keep their places only next to each other, so all their pages are read */
  _Atomic uint32_t errors[BNY_ATTENTION_HEADS_MAX]; /* bits of floats: the largest error of attention's logits */

  /* By page, [pages][rows] or [pages]. Masses are relative to 2^tops, later to the row's `top`. INFINITY: the page must
   * be read. */
  float *masses, *tops, *values;
  int32_t *order;  /* pages by falling score */
  int32_t *list;   /* pages that are read next */
  uint8_t *chosen; /* by page: it is read next; at the end, it was read */
  uint8_t *mask;
  double top[BNY_ATTENTION_HEADS_MAX], rest[BNY_ATTENTION_HEADS_MAX];
  int32_t forced, done, count, end; /* pages in `order`: must be read, were read, are read next, may be read */

  bny_attention_task some; /* the list as a sequence of its own */
  bny_attention_sight sights[BNY_ATTENTION_HEADS_MAX];
  bny_attention_sums *sums; /* these are the sums of all pages that were read */

  bny_prune_stage stage;
  int32_t segment_keys, segments, part_segments; /* for the list, or for all keys */
  int32_t first_part, parts;                     /* the number of its first part in job->sums, and its parts */
  _Atomic int32_t next, left;
} bny_prune_block;

/* Bounds the masses of pages [first, end); `first` is a multiple of BNY_PRUNE_CHUNK. */
void bny_prune_weigh(bny_prune_block *block, int32_t first, int32_t end);

/* Chooses the first pages to be read, after all pages are weighed. With top_pages it only finds the rows' tops. */
void bny_prune_choose(bny_prune_block *block);

/* With top_pages, the `count` row blocks of a KV head then choose together. A page's score is its largest weight for
 * any row, relative to the row's top. Writes the best scores and their pages, and returns their number: at most
 * top_pages, of pages that a row sees. */
int32_t bny_prune_offer(bny_prune_block *blocks, int32_t count, const bny_kernels *kernels, float *scores,
                        int32_t *pages);

/* Makes the row blocks read `number` pages, and those that must be read. `pages` may be blocks->order. */
void bny_prune_choose_top(bny_prune_block *blocks, int32_t count, const int32_t *pages, int32_t number);

/* Chooses the next stage, after the list was read. `segment_keys` is the length of a segment of all keys. */
void bny_prune_go_on(bny_prune_block *block, int32_t segment_keys);

/* A place in the list: how many of the pages before `page` are in it. */
typedef struct bny_listed {
  int32_t page, count;
} bny_listed;

/* Returns how many listed keys are before `key` of the sequence. `at` only moves on. */
int32_t bny_prune_listed(const bny_prune_block *block, int32_t key, bny_listed *at);

/* ---- bounds of pages --------------------------------------------------------------------------------------------- */

/* The bounds of a page and KV head: BNY_BOUNDS_REACH, the largest length that a product with a query meets;
 * BNY_BOUNDS_VALUE, the length of the longest value; then codes: the scale of each key, the length of what codes lose
 * of each key, and the codes as in bny_code_keys, with room for a multiple of 8 elements. */
enum { BNY_BOUNDS_REACH, BNY_BOUNDS_VALUE, BNY_BOUNDS_HEAD };

static inline int32_t bny_bounds_codes(int32_t head_dim) { return (head_dim + 7) / 8 * 8; }

/* Returns the bounds of page `page` of a sequence, which has these pages; NULL: keys are not paged. */
static inline float *bny_bounds_at(const bny_bounds *of, const int32_t *pages, int32_t sequence, int32_t page,
                                   int32_t kv_head) {
  int64_t number = pages ? pages[page] : (int64_t)sequence * of->prune->batch_pages + page;
  return of->prune->bounds + (number * of->kv_heads + kv_head) * bny_bounds_floats(of);
}

/* Converts elements to f32, times a scale, as kernels do. */
void bny_bounds_read(const void *from, banyan_dtype dtype, int32_t count, float scale, float *to);
