/* SPDX-License-Identifier: Apache-2.0
 * Merges partials of blocks into rows: first the blocks of a cluster, then the splits of an item. The order does not
 * depend on which block comes last, so every run gives the same bits.
 *
 * A row is never divided: block r % blocks of a CTA group folds row r of an item, and a warp holds a complete row.
 *   m = max of all;  d = sum d_i 2^(m_i - m);  n likewise
 *
 * No block waits for another CTA group. Each block writes the rows of its split to scratch memory and counts itself
 * (acq_rel). The last block at a counter continues alone, and resets it for the next launch. */
#pragma once

#include <float.h>

#include "cuda/decode_shape.h"
#include "cuda/device.h"
#include "merge_math.h"

/* A row in a warp. Lane l holds columns 4 l .. 4 l + 3 of each 128 columns. */
template <int dim> struct bny_decode_row {
  enum : int {
    QUADS = (dim + 4 * BNY_WARP_LANES - 1) / (4 * BNY_WARP_LANES),
    BATCH = 12 / QUADS /* rows loaded at once */
  };
  float m, d;
  float n[QUADS][4];
};

/* Returns the first column of a lane's quad. The quad does not exist if the column is dim or more. */
BNY_DEVICE int bny_decode_column(int quad) { return 4 * ((int)bny_lane() + quad * BNY_WARP_LANES); }

struct bny_decode_source {
  float *m, *d, *n;
};

struct bny_block_partial {
  float *m, *d; /* [rows] */
  float *n;     /* [rows][pitch] */
  int pitch;
};

/* An item, and this CTA group's split of it. */
struct bny_decode_item {
  uint32_t sequence, kv_head, tile;
  uint32_t rows; /* rows in the tile */
  uint32_t keys;
  bny_decode_piece piece;
};

/* ---- fold -------------------------------------------------------------------------------------------------------- */

BNY_DEVICE void bny_load_floats(float *to, const float *from) {
  bny_quad quad = bny_load_quad(from);
  BNY_UNROLL for (int i = 0; i < 4; i++) to[i] = bny_float_of_bits(quad.word[i]);
}

BNY_DEVICE void bny_store_floats(float *to, const float *from) {
  bny_quad quad;
  BNY_UNROLL for (int i = 0; i < 4; i++) quad.word[i] = bny_bits_of_float(from[i]);
  bny_store_quad(to, quad);
}

/* ---- locations of sources ---------------------------------------------------------------------------------------- */

/* The sources of a row: the row in all blocks of the cluster, or rows row, row + 1 ... of this block, or the row in the
 * splits of CTA groups team, team + step, team + 2 step ... */
enum bny_decode_origin { BNY_DECODE_CLUSTER, BNY_DECODE_BLOCK, BNY_DECODE_PIECES };

template <int dim, int rows> struct bny_decode_sources {
  bny_decode_origin origin;
  bny_block_partial block;
  float *scratch;
  uint32_t first_team, team, step;
  uint32_t row;

  BNY_DEVICE bny_decode_source at(const bny_decode_sources &self, uint32_t index) {
    if (self.origin == BNY_DECODE_PIECES) {
      uint32_t slot = bny_decode_slot(self.team + index * self.step, self.first_team);
      float *base = self.scratch + slot * bny_decode_slot_floats(rows, dim);
      return {base + self.row, base + rows + self.row, base + 2 * rows + self.row * dim};
    }
    const bny_block_partial &block = self.block;
    uint32_t row = self.origin == BNY_DECODE_BLOCK ? self.row + index : self.row;
    bny_decode_source own = {block.m + row, block.d + row, block.n + row * block.pitch};
    if (self.origin == BNY_DECODE_BLOCK) return own;
    return {bny_cluster_address(own.m, index), bny_cluster_address(own.d, index), bny_cluster_address(own.n, index)};
  }
  /* stride() returns the floats between the values of consecutive sources, except in a cluster. gap() returns the
   * floats between source `index` and the next. They differ because an item's first split is in the second slot of its
   * CTA group, but other splits are in the first. */
  BNY_DEVICE uint32_t stride(const bny_decode_sources &self) {
    if (self.origin == BNY_DECODE_BLOCK) return (uint32_t)self.block.pitch;
    return 2 * self.step * (uint32_t)bny_decode_slot_floats(rows, dim);
  }
  BNY_DEVICE uint32_t gap(const bny_decode_sources &self, uint32_t index) {
    const bool begins = self.origin == BNY_DECODE_PIECES && self.team + index * self.step == self.first_team;
    return stride(self) - (begins ? (uint32_t)bny_decode_slot_floats(rows, dim) : 0);
  }
};

template <int dim> BNY_DEVICE void bny_decode_row_put(const bny_decode_source &to, const bny_decode_row<dim> &row) {
  bny_warp_sync(); /* all lanes have now read the old contents */
  if (bny_lane() == 0) {
    *to.m = row.m;
    *to.d = row.d;
  }
  BNY_UNROLL for (int quad = 0; quad < bny_decode_row<dim>::QUADS; quad++) {
    if (bny_decode_column(quad) < dim) bny_store_floats(to.n + bny_decode_column(quad), row.n[quad]);
  }
}

template <int dim> struct bny_decode_batch { float n[bny_decode_row<dim>::BATCH][bny_decode_row<dim>::QUADS][4]; };

/* Loads a row, or zeros if `there` is false. */
template <int dim>
BNY_DEVICE void bny_decode_row_load(float n[bny_decode_row<dim>::QUADS][4], const float *from, bool there) {
  BNY_UNROLL for (int quad = 0; quad < bny_decode_row<dim>::QUADS; quad++) {
    BNY_UNROLL for (int j = 0; j < 4; j++) n[quad][j] = 0;
    if (there && bny_decode_column(quad) < dim) bny_load_floats(n[quad], from + bny_decode_column(quad));
  }
}

/* Loads sources `first` .. first + BATCH - 1. Sources from `count` on do not exist. Nothing hides the latency of this
 * warp's instructions, so each address is computed from the previous one. */
template <int dim, class Sources>
BNY_DEVICE void bny_decode_batch_load(bny_decode_batch<dim> *batch, const Sources &sources, uint32_t first,
                                      uint32_t count) {
  using shape = bny_decode_row<dim>;
  float *one = Sources::at(sources, first).n;
  if (sources.origin == BNY_DECODE_CLUSTER) {
    float *own = sources.block.n + sources.row * sources.block.pitch;
    BNY_UNROLL for (uint32_t i = 0; i < shape::BATCH; i++) {
      bny_decode_row_load<dim>(batch->n[i], bny_cluster_address(own, first + i < count ? first + i : first),
                               first + i < count);
    }
  } else {
    const float *next = one + Sources::gap(sources, first);
    const uint32_t stride = Sources::stride(sources);
    BNY_UNROLL for (uint32_t i = 0; i < shape::BATCH; i++) {
      bny_decode_row_load<dim>(batch->n[i], i == 0 ? one : next + (i - 1) * stride, first + i < count);
    }
  }
}

/* Adds the batch times the factors in lanes `lane` .. lane + BATCH - 1. Lanes from `count` on have no source. */
template <int dim>
BNY_DEVICE void bny_decode_batch_add(bny_decode_row<dim> *row, const bny_decode_batch<dim> &batch, uint32_t lane,
                                     uint32_t count, float factor) {
  using shape = bny_decode_row<dim>;
  BNY_UNROLL for (uint32_t i = 0; i < shape::BATCH; i++) {
    float scale = bny_shuffle(factor, (int)(lane + i) & 31);
    if (lane + i >= count) continue;
    BNY_UNROLL for (int j = 0; j < 4 * shape::QUADS; j++) {
      row->n[j / 4][j % 4] = bny_add(row->n[j / 4][j % 4], bny_mul(batch.n[i][j / 4][j % 4], scale));
    }
  }
}

/* Called by a warp. Folds sources 0 .. total - 1 into a row, 32 at a time, with the statistics of one source per lane.
 * Load latency dominates a merge, so loads of statistics and of the first batch are in flight together. */
template <int dim, class Sources>
BNY_DEVICE void bny_decode_fold(bny_decode_row<dim> *row, const Sources &sources, uint32_t total) {
  using shape = bny_decode_row<dim>;
  row->m = -BNY_INFINITY_F;
  row->d = 0;
  BNY_UNROLL for (int i = 0; i < 4 * shape::QUADS; i++) row->n[i / 4][i % 4] = 0;
  BNY_ROLLED for (uint32_t chunk = 0; chunk < total; chunk += BNY_WARP_LANES) {
    uint32_t count = total - chunk;
    if (count > BNY_WARP_LANES) count = BNY_WARP_LANES;
    float m = -BNY_INFINITY_F, d = 0;
    if (bny_lane() < count) {
      bny_decode_source mine = Sources::at(sources, chunk + bny_lane());
      m = *mine.m;
      d = *mine.d;
    }
    float factor = 0;
    BNY_ROLLED for (uint32_t first = 0; first < count; first += shape::BATCH) {
      bny_decode_batch<dim> batch;
      bny_decode_batch_load<dim>(&batch, sources, chunk + first, chunk + count);
      if (first == 0) {
        float top = fmaxf(row->m, bny_warp_max(m)), before = bny_exp2_whole(row->m - top);
        factor = bny_exp2_whole(m - top);
        row->m = top;
        row->d = bny_add(bny_mul(row->d, before), bny_warp_sum(bny_mul(d, factor)));
        BNY_UNROLL for (int i = 0; i < 4 * shape::QUADS; i++) {
          row->n[i / 4][i % 4] = bny_mul(row->n[i / 4][i % 4], before);
        }
      }
      bny_decode_batch_add<dim>(row, batch, first, count, factor);
    }
  }
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

/* Called by `count` blocks. Returns true in the last of them, which then sees the earlier writes of the others. */
BNY_DEVICE bool bny_decode_meet(uint32_t *counter, uint32_t count) {
  BNY_SHARED(uint32_t, last);
  bny_block_sync();
  if (bny_thread() == 0) {
    last = bny_add_gpu_32(counter, 1) == count - 1;
    if (last) bny_store_relaxed_gpu_32(counter, 0);
  }
  bny_block_sync();
  return last;
}

/* The sources of a round. Round 0 folds the blocks of the cluster, and writes the CTA group's split. Round 1 folds up
 * to fan_in neighbouring splits, and overwrites the first of them with the result. Round 2 folds these results. */
template <int dim, int rows> struct bny_decode_round {
  bny_decode_sources<dim, rows> sources;
  uint32_t count;
  bool finishes; /* finishes the item's rows */
};

/* Sets the next round. Returns true in the block that continues. */
template <int dim, int rows>
BNY_DEVICE bool bny_decode_next_round(const bny_decode_call &call, const bny_decode_piece &piece, uint32_t team,
                                      bool first, bny_decode_round<dim, rows> *round) {
  const uint32_t fan_in = call.division.fan_in, pieces = piece.last_team - piece.first_team + 1;
  const uint32_t leaders = (pieces + fan_in - 1) / fan_in, leader = (team - piece.first_team) / fan_in * fan_in;
  uint32_t *counters = call.counters + bny_cluster_rank() * 3 * call.division.teams;
  bny_decode_sources<dim, rows> &sources = round->sources;
  sources.origin = BNY_DECODE_PIECES;
  if (first) {
    round->count = pieces - leader < fan_in ? pieces - leader : fan_in;
    round->finishes = leaders == 1;
    sources.team = piece.first_team + leader;
    sources.step = 1;
    return bny_decode_meet(counters + bny_decode_slot(sources.team, piece.first_team), round->count);
  }
  round->count = leaders;
  round->finishes = true;
  sources.team = piece.first_team;
  sources.step = fan_in;
  return bny_decode_meet(counters + 2 * call.division.teams + piece.first_team, leaders);
}

/* Handles a row with a NaN logit: its statistics become NaN, or the row becomes empty. */
template <int dim> BNY_DEVICE void bny_decode_row_settle(const bny_decode_call &call, bny_decode_row<dim> *row) {
  if (row->d == row->d) return;
  row->m = call.nan_is_empty ? -BNY_INFINITY_F : row->d;
  row->d = call.nan_is_empty ? 0.0f : 1.0f;
  BNY_UNROLL for (int i = 0; i < 4 * bny_decode_row<dim>::QUADS; i++) {
    if (call.nan_is_empty) row->n[i / 4][i % 4] = 0.0f;
  }
}

template <int dim, class Epilogue>
BNY_DEVICE void bny_decode_emit(const bny_decode_call &call, const bny_decode_item &item, uint32_t head_in_item,
                                int item_heads, bny_decode_row<dim> *row, Epilogue &epilogue) {
  uint32_t head = item.kv_head * (uint32_t)call.group + item.tile * (uint32_t)item_heads + head_in_item;
  bny_decode_row_settle(call, row);
  epilogue.row(item.sequence, head, *row);
}

/* Folds this block's rows: rank, rank + blocks and so on. If the block has more warps than rows, `parts` warps share a
 * row. Each folds a part of the row's sources into the block's partial, and one warp then folds the parts. */
template <int dim, int rows, class Item, class Epilogue>
BNY_DEVICE void bny_decode_fold_rows(const bny_decode_call &call, const Item &item, uint32_t team,
                                     const bny_decode_round<dim, rows> &round, uint32_t parts, Epilogue &epilogue) {
  using sources_type = bny_decode_sources<dim, rows>;
  const uint32_t rank = bny_cluster_rank(), blocks = bny_cluster_blocks(), warps = bny_block_threads() / BNY_WARP_LANES;
  BNY_ROLLED for (int pass = parts > 1 ? 0 : 1; pass < 2; pass++) {
    const uint32_t split = pass == 0 ? parts : 1, part = bny_warp() % split;
    BNY_ROLLED for (uint32_t slot = bny_warp() / split; rank + slot * blocks < item.rows; slot += warps / split) {
      bny_decode_row<dim> row;
      sources_type sources = round.sources;
      uint32_t count = part < round.count ? (round.count - part - 1) / split + 1 : 0;
      sources.row = rank + slot * blocks;
      sources.team += part * sources.step;
      sources.step *= split;
      sources_type to = round.sources;
      to.row = sources.row;
      if (round.sources.origin == BNY_DECODE_CLUSTER) { /* the split of this CTA group */
        to.origin = BNY_DECODE_PIECES;
        to.team = team;
      }
      if (pass == 1 && parts > 1) {
        sources.origin = BNY_DECODE_BLOCK;
        sources.row = slot * parts;
        count = parts;
      }
      if (pass == 0) {
        to.origin = BNY_DECODE_BLOCK;
        to.row = slot * parts + part;
      }
      bny_decode_fold(&row, sources, count);
      if (pass == 1 && round.finishes)
        bny_decode_emit(call, item, rank + slot * blocks, rows, &row, epilogue);
      else
        bny_decode_row_put(sources_type::at(to, 0), row);
    }
    if (pass == 0) bny_block_sync();
  }
}

/* Called by all blocks of a CTA group, with the partial of each block in its shared memory. The partials may be
 * overwritten afterwards. */
template <int dim, int rows, class Item, class Epilogue>
BNY_DEVICE void bny_decode_finish(const bny_decode_call &call, const Item &item, uint32_t team,
                                  const bny_block_partial &partial, Epilogue &epilogue) {
  const uint32_t rank = bny_cluster_rank(), blocks = bny_cluster_blocks();
  const uint32_t mine = rank < item.rows ? (item.rows - rank - 1) / blocks + 1 : 0;
  const uint32_t warps = bny_block_threads() / BNY_WARP_LANES;
  bny_decode_round<dim, rows> round = {{BNY_DECODE_CLUSTER, partial, call.scratch, item.piece.first_team, team, 1, 0},
                                       blocks,
                                       item.piece.first_team == item.piece.last_team};
  uint32_t parts = 1; /* the sources in the cluster must not be overwritten */
  if (blocks > 1)
    bny_cluster_sync();
  else
    bny_block_sync();
  BNY_ROLLED for (bool first = true;; first = false) {
    bny_decode_fold_rows(call, item, team, round, parts, epilogue);
    if (first && blocks > 1) bny_cluster_sync();
    if (round.finishes || mine == 0 || !bny_decode_next_round(call, item.piece, team, first, &round)) break;
    parts = mine < warps ? warps / mine : 1;
  }
  bny_block_sync();
}
