/* SPDX-License-Identifier: Apache-2.0
 * The oneshot kernels. In one launch each rank pushes its rows to the ranks that own them, and merges the rows that it
 * owns. If an earlier kernel of the run has pushed them (bny_oneshot.pushed), a oneshot only merges. */
#pragma once

#include "cuda/exact_sum.h"
#include "cuda/valid.h"
#include "cuda/merge.h"
#include "cuda/push.h"

struct bny_oneshot_owned {
  int32_t token0, tokens, head0, heads;
};

BNY_DEVICE bny_oneshot_owned bny_oneshot_owned_by(const bny_oneshot &what, int32_t rank) {
  bny_oneshot_owned owned = {what.shape.token0, what.shape.tokens, what.shape.head0, what.shape.heads};
  if (what.scatter == BANYAN_SCATTER_ROOT && rank != what.root) owned.tokens = 0;
  if (what.scatter == BANYAN_SCATTER_HEADS) {
    owned.head0 = what.first[rank];
    owned.heads = what.first[rank + 1] - owned.head0;
  }
  if (what.scatter == BANYAN_SCATTER_TOKENS) {
    owned.token0 = what.first[rank];
    owned.tokens = what.first[rank + 1] - owned.token0;
  }
  return owned;
}

/* Returns the rank that owns a token or head of the box, whichever is scattered. This is the last rank whose part
 * begins at or before it. A rank with an empty part begins where the next rank does. */
BNY_DEVICE int32_t bny_oneshot_owner(const bny_oneshot &what, int32_t nranks, int32_t token, int32_t head) {
  if (what.scatter == BANYAN_SCATTER_ROOT) return what.root;
  int32_t at = what.scatter == BANYAN_SCATTER_TOKENS ? token : head, owner = 0;
  BNY_ROLLED for (int32_t end = nranks; end - owner > 1;) {
    int32_t middle = (owner + end) / 2;
    if (what.first[middle] <= at)
      owner = middle;
    else
      end = middle;
  }
  return owner;
}

/* Returns the index of a unit of rank `from` in the inbox of rank `to`, or -1 if `to` does not own the row. */
BNY_DEVICE int64_t bny_oneshot_unit(const bny_oneshot &what, int32_t from, int32_t to, int32_t token, int32_t head,
                                    int32_t chunk) {
  bny_oneshot_owned owned = bny_oneshot_owned_by(what, to);
  uint32_t t = (uint32_t)(token - owned.token0), h = (uint32_t)(head - owned.head0);
  if (t >= (uint32_t)owned.tokens || h >= (uint32_t)owned.heads) return -1;
  return (int64_t)from * what.units_max + ((int64_t)t * owned.heads + h) * what.shape.chunks + chunk;
}

struct bny_oneshot_places {
  const bny_worker *self;
  const bny_oneshot *what;
  int protocol;
  int32_t chunk;
};

/* The destinations of a row. Each rank begins with a different destination. If each row has one owner, the number of a
 * unit also encodes that owner. */
struct bny_oneshot_destinations {
  enum : int { RANK_SHIFT = 40 };
  bny_oneshot_places at;
  bool own; /* pushes to this rank's inbox, too */

  BNY_DEVICE_METHOD bool alike() const { return at.what->scatter == BANYAN_SCATTER_NONE; }
  BNY_DEVICE_METHOD int count() const { return alike() ? at.self->group->nranks - (own ? 0 : 1) : 1; }
  BNY_DEVICE_METHOD int32_t peer(int d, int64_t number) const {
    if (!alike()) return (int32_t)(number >> RANK_SHIFT);
    int32_t rank = at.self->group->rank + 1 + d, nranks = at.self->group->nranks;
    return rank < nranks ? rank : rank - nranks;
  }
  BNY_DEVICE_METHOD int64_t unit_of(int64_t number) const { return number & (((int64_t)1 << RANK_SHIFT) - 1); }
  BNY_DEVICE_METHOD int64_t number(int, int32_t token, int32_t head) const {
    int32_t rank = at.self->group->rank, nranks = at.self->group->nranks;
    if (alike()) return bny_oneshot_unit(*at.what, rank, rank, token, head, at.chunk);
    int32_t owner = bny_oneshot_owner(*at.what, nranks, token, head);
    if (owner == rank && !own) return -1;
    return bny_oneshot_unit(*at.what, rank, owner, token, head, at.chunk) | (int64_t)owner << RANK_SHIFT;
  }
  BNY_DEVICE_METHOD unsigned char *unit(int d, int64_t number) const {
    return bny_worker_inbox(*at.self, peer(d, number), at.protocol) +
           unit_of(number) * (int64_t)at.what->shape.unit_bytes;
  }
  BNY_DEVICE_METHOD uint64_t *signal(int d, int64_t number) const {
    return bny_worker_signals(*at.self, peer(d, number)) + unit_of(number);
  }
};

struct bny_oneshot_sources {
  bny_oneshot_places at;
  int64_t number; /* index of rank 0's unit */

  BNY_DEVICE_METHOD const unsigned char *unit(int s) const {
    return bny_worker_inbox(*at.self, at.self->group->rank, at.protocol) +
           (number + (int64_t)s * at.what->units_max) * (int64_t)at.what->shape.unit_bytes;
  }
  BNY_DEVICE_METHOD const uint64_t *signal(int s) const {
    return bny_worker_signals(*at.self, at.self->group->rank) + number + (int64_t)s * at.what->units_max;
  }
  BNY_DEVICE_METHOD int32_t peer(int s) const { return s; }
  BNY_DEVICE_METHOD int32_t slot(int) const { return 0; }
};

/* Returns how many sources the wide kernels merge at a time. A lane has sixteen values of e4m3, so fewer sources
 * fit. */
template <int bits> BNY_DEVICE constexpr int bny_oneshot_width() { return bits == 8 ? 4 : BNY_MERGE_WIDTH; }

/* The state of a warp's run. `width` is 0 for up to BNY_ONESHOT_NARROW_RANKS ranks, -1 for the exact order, and else
 * the number of sources merged at a time. */
template <int protocol, int bits, int width> struct bny_oneshot_run {
  bny_worker self;
  bny_unit_work work;
  bny_valid_run valid;
  bool sums;      /* units are columns of tensors */
  bool lone;      /* the warp has at most one row and one round of packets, so its own part stays in registers */
  bny_packet own; /* valid if lone */
};

/* Converts the statistics of a row. If `many`, lane i converts those of this warp's i-th row from `row` on: a
 * conversion takes as long as the rest of a push, and the lanes make 32 in the same time. */
template <int bits>
BNY_DEVICE bny_import bny_oneshot_import(const bny_unit_shape &shape, const bny_unit_work &work,
                                         const banyan_partial &in, uint32_t row, int32_t token, int32_t head,
                                         bool many) {
  if (many && bny_lane() > 0) {
    uint32_t heads = (uint32_t)shape.heads;
    uint64_t at = work.group + (uint64_t)(row + (uint32_t)bny_lane()) * work.groups;
    if (at >= (uint64_t)shape.tokens * heads) return {-BNY_INFINITY_F, 0.0f, 0.0f, false};
    token = shape.token0 + (int32_t)((uint32_t)at / heads);
    head = shape.head0 + (int32_t)((uint32_t)at % heads);
  }
  return bny_import_row(in, token, head, bits != 32);
}

BNY_DEVICE bny_import bny_oneshot_import_of(const bny_import &lanes, int lane) {
  return {bny_shuffle(lanes.m, lane), bny_shuffle(lanes.d, lane), bny_shuffle(lanes.factor, lane),
          bny_shuffle((uint32_t)lanes.bad, lane) != 0};
}

/* Returns whether the warp has joined the run, which it does when it has loaded its first row. */
template <int protocol, int bits, int width>
BNY_DEVICE bool bny_oneshot_push(bny_oneshot_run<protocol, bits, width> *run, const bny_oneshot &what,
                                 const bny_device_call &call) {
  bny_worker *self = &run->self;
  const bny_unit_shape &shape = what.shape;
  bny_oneshot_destinations to = {{self, &what, protocol, run->work.chunk}, !run->lone};
  bny_push_pending pending = {0, 0, 0};
  bny_unit_rows rows;
  bool more = bny_unit_rows_first(&rows, shape, run->work, shape.token0, shape.tokens, shape.head0, shape.heads);
  bool joined = false;
  /* Which rows of a run with a valid part may be read takes all lanes to find. */
  const bool many = !call.valid.most && (uint64_t)shape.tokens * (uint64_t)shape.heads > run->work.groups;
  bny_import imports = {-BNY_INFINITY_F, 0.0f, 0.0f, false};
  BNY_ROLLED for (uint32_t row = 0; more; more = bny_unit_rows_next(&rows), row++) {
    int32_t token = rows.token;
    if (run->sums) bny_unit_work_move<protocol, bits>(&run->work, shape, rows.head, shape.column0, shape.columns);
    bool reads = true;
    if (call.valid.most) {
      token = bny_valid_token(call.valid, run->valid, rows.token);
      if (token < 0) continue;
      reads = bny_valid_reads(call.valid, token);
    }
    bny_import import = {-BNY_INFINITY_F, 0.0f, 0.0f, false};
    BNY_ROLLED for (int first = 0; first < run->work.packets; first += BNY_WARP_LANES) {
      int packet = first + (int)bny_lane();
      bool active = packet < run->work.packets;
      bny_lane_values<protocol, bits> values;
      bny_unit_read<protocol, bits>(call.in, run->work, token, rows.head, packet, active && reads, &values);
      if (first == 0 && reads) {
        int lane = (int)(row % BNY_WARP_LANES);
        if (!many || lane == 0)
          imports = bny_oneshot_import<bits>(shape, run->work, call.in, row, token, rows.head, many);
        import = many ? bny_oneshot_import_of(imports, lane) : imports;
      }
      if (!joined) bny_worker_join(self);
      joined = true;
      if (first == 0 && !self->failed)
        bny_valid_report_data(self, call.valid, run->valid, import.bad, token, rows.head);
      bny_packet made = bny_unit_import(values, run->work, import, packet, shape.wire);
      if (run->lone) run->own = made;
      if (!self->failed) bny_push_packet<protocol>(*self, to, rows.token, rows.head, packet, active, made);
    }
    if (!self->failed) bny_push_row<protocol>(*self, to, rows.token, rows.head, &pending);
  }
  if (joined && !self->failed) bny_push_end<protocol>(*self, to, &pending);
  if (bits != 32 && call.saturated) bny_unit_count_saturated(call.saturated, run->work.saturated);
  return joined;
}

/* Merges a row that this rank owns into the caller's result. */
template <int protocol, int bits, int width>
BNY_DEVICE void bny_oneshot_merge(bny_oneshot_run<protocol, bits, width> *run, const bny_oneshot_sources &sources,
                                  int32_t token, int32_t head, const bny_oneshot &what, const bny_device_call &call) {
  bny_worker *self = &run->self;
  int32_t rank = self->group->rank, nranks = self->group->nranks;
  uint32_t have = run->lone ? 1u << rank : 0;
  int32_t out_token = token - call.out_token0, out_head = head - call.out_head0;
  bny_merge_tree tree;
  float factor = 0.0f;
  if (protocol == BNY_PROTOCOL_SIMPLE) bny_merge_await(self, sources, 0, nranks, have);
  BNY_ROLLED for (int first = 0; first < run->work.packets; first += BNY_WARP_LANES) {
    int packet = first + (int)bny_lane();
    bool active = packet < run->work.packets;
    bny_packet packets[BNY_MERGE_WIDTH];
    bny_merge_receive<protocol>(self, sources, 0, nranks, have, packet, active, packets);
    if (self->failed) return;
    BNY_UNROLL for (int s = 0; s < BNY_MERGE_WIDTH; s++) {
      if (run->lone && s == rank) packets[s] = run->own;
    }
    if (first == 0) {
      bny_merge_tree_of<protocol>(packets, nranks, false, &tree);
      if (call.valid.keeps_empty_rows && tree.d == 0.0f) return;
      factor = bny_export_row(self->group, call.out, out_token, out_head, tree.m, tree.d, run->work.chunk == 0);
    }
    bny_lane_values<protocol, bits> values =
        bny_merge_tree_values<protocol, bits>(packets, nranks, tree, packet, what.shape.wire);
    bny_unit_write(call.out, run->work, out_token, out_head, packet, factor, active, values);
  }
}

/* Merges a row from more ranks than are merged at once, `width` at a time. */
template <int protocol, int bits, int width>
BNY_DEVICE void bny_oneshot_merge_wide(bny_oneshot_run<protocol, bits, width> *run, const bny_oneshot_sources &sources,
                                       int32_t token, int32_t head, const bny_oneshot &what,
                                       const bny_device_call &call) {
  bny_worker *self = &run->self;
  int32_t out_token = token - call.out_token0, out_head = head - call.out_head0;
  float factor = 0.0f;
  BNY_ROLLED for (int first = 0; first < run->work.packets; first += BNY_WARP_LANES) {
    int packet = first + (int)bny_lane();
    bny_merge_part<protocol, bits> merged;
    if (width == bny_oneshot_width<bits>())
      bny_merge_parts<protocol, bits, width ? width : 1>(self, sources, self->group->nranks, run->work, packet,
                                                         what.shape.wire, &merged);
    else
      bny_merge_parts_apart<protocol, bits, width ? width : 1>(self, sources, self->group->nranks, run->work, packet,
                                                               what.shape.wire, &merged);
    if (self->failed) return;
    if (first == 0) {
      if (call.valid.keeps_empty_rows && merged.d == 0.0f) return;
      factor = bny_export_row(self->group, call.out, out_token, out_head, merged.m, merged.d, run->work.chunk == 0);
    }
    bny_unit_write(call.out, run->work, out_token, out_head, packet, factor, packet < run->work.packets, merged.values);
  }
}

template <int protocol, int bits, int width>
BNY_DEVICE void bny_oneshot_merge_row(bny_oneshot_run<protocol, bits, width> *run, const bny_oneshot_sources &sources,
                                      int32_t token, int32_t head, const bny_oneshot &what,
                                      const bny_device_call &call) {
  if constexpr (width < 0)
    bny_exact_merge<protocol>(&run->self, sources, run->self.group->nranks, run->work, what.shape.wire, call, token,
                              head);
  else if constexpr (width > 0)
    bny_oneshot_merge_wide(run, sources, token, head, what, call);
  else
    bny_oneshot_merge(run, sources, token, head, what, call);
}

/* Merges the rows that this rank owns and this warp handles. */
template <int protocol, int bits, int width>
BNY_DEVICE void bny_oneshot_merge_rows(bny_oneshot_run<protocol, bits, width> *run, const bny_oneshot &what,
                                       const bny_device_call &call) {
  bny_worker *self = &run->self;
  bny_oneshot_owned owned = bny_oneshot_owned_by(what, self->group->rank);
  bny_oneshot_sources sources = {{self, &what, protocol, run->work.chunk}, 0};
  bny_unit_rows rows;
  bool more = bny_unit_rows_first(&rows, what.shape, run->work, owned.token0, owned.tokens, owned.head0, owned.heads);
  BNY_ROLLED for (; more && !self->failed; more = bny_unit_rows_next(&rows)) {
    if (call.valid.most && bny_valid_token(call.valid, run->valid, rows.token) < 0) continue;
    if (run->sums)
      bny_unit_work_move<protocol, bits>(&run->work, what.shape, rows.head, what.shape.column0, what.shape.columns);
    sources.number = bny_oneshot_unit(what, 0, self->group->rank, rows.token, rows.head, run->work.chunk);
    bny_oneshot_merge_row(run, sources, rows.token, rows.head, what, call);
  }
}

template <int protocol, int bits, int width>
BNY_DEVICE void bny_oneshot_combine(const bny_device_group &group, const bny_oneshot &what,
                                    const bny_device_call &call) {
  bny_oneshot_run<protocol, bits, width> run;
  const bny_unit_shape &shape = what.shape;
  bny_worker_begin(&run.self, group);
  run.work = bny_unit_work_make<protocol, bits>(shape);
  run.sums = shape.columns > 0;
  run.lone = width == 0 && !what.pushed && (uint64_t)shape.tokens * (uint64_t)shape.heads <= run.work.groups &&
             run.work.packets <= BNY_WARP_LANES;
  run.valid = bny_valid_begin(call.valid);
  if (what.pushed || !bny_oneshot_push(&run, what, call)) bny_worker_join(&run.self);
  if (bny_worker_announces()) { /* announcing after the merge takes longer: a kernel ends after its release */
    if (call.valid.most) bny_valid_announce(run.self.group, run.self.epoch, run.valid.count);
    bny_worker_announce(run.self);
    bny_valid_check(run.self.group, call.valid, run.valid);
  }
  if (call.shares_stats) bny_unit_row_sync(shape); /* all chunks must have read their statistics */
  bny_oneshot_merge_rows(&run, what, call);
}

#define BNY_ONESHOT_KERNEL(name, protocol, bits, how)                                \
  BNY_KERNEL BNY_LAUNCH_BOUNDS(BNY_BLOCK_THREADS_MAX, 1)                             \
      name(BNY_PARAMETER(bny_device_group, group), BNY_PARAMETER(bny_oneshot, what), \
           BNY_PARAMETER(bny_device_call, call)) {                                   \
    bny_oneshot_combine<protocol, bits,                                              \
                        (how) == BNY_ONESHOT_EXACT  ? -1                             \
                        : (how) == BNY_ONESHOT_WIDE ? bny_oneshot_width<bits>()      \
                                                    : 0>(group, what, call);         \
  }
