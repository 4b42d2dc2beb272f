/* SPDX-License-Identifier: Apache-2.0
 * Waits for the units of several sources and merges them in the order of kernels/op.h: a balanced tree of neighbours.
 * Up to 8 sources are merged in registers. Kernels that do not round nodes merge more sources several at a time. Other
 * kernels merge them one after another on a stack.
 *
 * A template argument `Sources` is a struct with, for source s of a merge:
 *   const unsigned char *unit(int s)     where its unit lies, in this rank's inbox
 *   const uint64_t *signal(int s)        the unit's signal: SIMPLE
 *   int32_t peer(int s), slot(int s)     the rank and slot to blame if the unit does not arrive */
#pragma once

#include "cuda/unit.h"
#include "cuda/worker.h"

enum {
  BNY_MERGE_WIDTH = 8,
  BNY_MERGE_NODES = BNY_MERGE_WIDTH - 1,
  BNY_MERGE_STACK = 8,
  BNY_MERGE_PARTS_STACK = 5 /* for the 18 parts of 72 ranks: at most 4 on the stack, and a new one */
};

struct bny_rounding {
  int wire;
  bool nodes; /* round every merged value */
  bool last;  /* the merged row goes to a lossy wire */
};

/* ---- waiting for units ------------------------------------------------------------------------------------------- */

/* SIMPLE: waits for the units of sources [base, base + count), at most 8. Bit i of `have` excludes source base + i. */
template <class Sources>
BNY_DEVICE void bny_merge_await(bny_worker *self, const Sources &sources, int base, int count, uint32_t have) {
  int source = base + (int)bny_lane();
  bool lacks = (int)bny_lane() < count && !(have >> bny_lane() & 1);
  while (!self->failed) {
    if (lacks) lacks = bny_load_acquire_sys_64(sources.signal(source)) != self->epoch;
    if (!bny_warp_any(lacks)) break;
    if (bny_worker_poll(self))
      bny_worker_look(self, lacks ? sources.peer(source) : -1, lacks ? sources.slot(source) : 0);
  }
  bny_worker_arrived(self);
  bny_warp_sync(); /* an acquire by one lane then holds for all lanes */
}

/* Polls a packet of source s in its `unit`. Sources with another layout overload this function. */
template <int protocol, class Sources>
BNY_DEVICE void bny_merge_poll(const Sources &, int, const unsigned char *unit, int packet, bool wanted,
                               bny_quad *raw) {
  bny_packet_poll<protocol>(unit, packet, wanted, raw);
}

/* Receives one packet of each source in [base, base + count), at most `width`. Bit i of `have` excludes source base +
 * i. */
template <int protocol, class Sources, int width>
BNY_DEVICE void bny_merge_receive(bny_worker *self, const Sources &sources, int base, int count, uint32_t have,
                                  int packet, bool active, bny_packet (&packets)[width]) {
  const unsigned char *units[width];
  bny_quad raw[width];
  BNY_UNROLL for (int s = 0; s < width; s++) {
    units[s] = sources.unit(base + (s < count ? s : 0));
    raw[s] = {{0, 0, 0, 0}};
  }
  const uint32_t wanted = active ? ((1u << count) - 1) & ~have : 0;
  uint32_t need = wanted;
  while (!self->failed) {
    BNY_UNROLL for (int s = 0; s < width; s++) {
      bny_merge_poll<protocol>(sources, base + s, units[s], packet, need >> s & 1, &raw[s]);
    }
    BNY_UNROLL for (int s = 0; s < width; s++) {
      if (bny_packet_arrived<protocol>(raw[s], packet, self->epoch, need >> s & 1)) need &= ~(1u << s);
    }
    if (!bny_warp_any(need != 0)) break;
    if (!bny_worker_poll(self)) continue;
    int lacking = base + bny_lowest_bit(need);
    bny_worker_look(self, need ? sources.peer(lacking) : -1, need ? sources.slot(lacking) : 0);
  }
  BNY_UNROLL for (int s = 0; s < width; s++) {
    if (protocol == BNY_PROTOCOL_LL128) bny_packet_poll<protocol>(units[s], packet, wanted >> s & 1, &raw[s]);
  }
  BNY_UNROLL for (int s = 0; s < width; s++) {
    if (wanted >> s & 1) packets[s] = bny_packet_of(raw[s]);
  }
  bny_worker_arrived(self);
}

/* ---- the tree ---------------------------------------------------------------------------------------------------- */

/* The factors of both inputs of each node, level by level, and the merged statistics. */
struct bny_merge_tree {
  float left[BNY_MERGE_NODES], right[BNY_MERGE_NODES];
  float m, d;
};

/* Makes the tree of `count` sources, and destroys m and d. If `last` is set, the last node follows the rule for lossy
 * wires. */
template <int width>
BNY_DEVICE void bny_merge_tree_make(float (&m)[width], float (&d)[width], int count, bool last, bny_merge_tree *tree) {
  int left = count;
  BNY_UNROLL for (int pairs = width / 2, node = 0; pairs > 0; pairs /= 2) {
    BNY_UNROLL for (int i = 0; i < pairs; i++, node++) {
      if (2 * i + 1 < left) {
        float a_m = m[2 * i], a_d = d[2 * i], b_m = m[2 * i + 1], b_d = d[2 * i + 1];
        bny_stats_merge(a_m, a_d, b_m, b_d, last && left == 2, &m[i], &d[i], &tree->left[node], &tree->right[node]);
      } else if (2 * i < left) {
        m[i] = m[2 * i];
        d[i] = d[2 * i];
      }
    }
    left = (left + 1) / 2;
  }
  tree->m = m[0];
  tree->d = d[0];
}

/* Merges one value of each source, and destroys the array. */
template <int width> BNY_DEVICE float bny_merge_tree_value(float (&v)[width], int count, const bny_merge_tree &tree) {
  int left = count;
  BNY_UNROLL for (int pairs = width / 2, node = 0; pairs > 0; pairs /= 2) {
    BNY_UNROLL for (int i = 0; i < pairs; i++, node++) {
      if (2 * i + 1 < left)
        v[i] = bny_add(bny_mul(v[2 * i], tree.left[node]), bny_mul(v[2 * i + 1], tree.right[node]));
      else if (2 * i < left)
        v[i] = v[2 * i];
    }
    left = (left + 1) / 2;
  }
  return v[0];
}

template <int protocol, int bits, int width>
BNY_DEVICE bny_lane_values<protocol, bits> bny_merge_tree_values(const bny_packet (&packets)[width], int count,
                                                                 const bny_merge_tree &tree, int packet, int wire) {
  bny_lane_values<protocol, bits> merged;
  bny_unit_scales<bits> scales[width];
  BNY_UNROLL for (int s = 0; s < width; s++) bny_unit_scales_make<protocol>(packets[s], packet, &scales[s]);
  BNY_UNROLL for (int i = 0; i < merged.count; i++) {
    float v[width];
    BNY_UNROLL for (int s = 0; s < width; s++) {
      v[s] = s < count ? bny_unit_value(packets[s], i, wire, scales[s]) : 0.0f;
    }
    merged.value[i] = bny_merge_tree_value(v, count, tree);
  }
  return merged;
}

/* Return the statistics of a unit. The warp must hold the unit's first packets. */
BNY_DEVICE float bny_merge_m(const bny_packet &packet) { return bny_float_of_bits(bny_shuffle(packet.word[0], 0)); }
BNY_DEVICE float bny_merge_d(const bny_packet &packet) { return bny_float_of_bits(bny_shuffle(packet.word[1], 0)); }

/* Makes the tree from the first packets of all units. The warp must hold these packets. */
template <int protocol, int width>
BNY_DEVICE void bny_merge_tree_of(const bny_packet (&packets)[width], int count, bool last, bny_merge_tree *tree) {
  float m[width], d[width];
  BNY_UNROLL for (int s = 0; s < width; s++) {
    m[s] = s < count ? bny_merge_m(packets[s]) : 0.0f;
    d[s] = s < count ? bny_merge_d(packets[s]) : 0.0f;
  }
  bny_merge_tree_make(m, d, count, last, tree);
}

/* ---- one after another ------------------------------------------------------------------------------------------- */

template <int protocol, int bits> struct bny_merge_part {
  float m, d;
  bny_lane_values<protocol, bits> values;
};

template <int protocol, int bits>
BNY_DEVICE void bny_merge_two(bny_merge_part<protocol, bits> *a, const bny_merge_part<protocol, bits> &b,
                              const bny_unit_work &work, int packet, bool last, bny_rounding rounding) {
  float scale_a, scale_b;
  bool nodes = bits != 32 && rounding.nodes;
  bny_stats_merge(a->m, a->d, b.m, b.d, nodes || last, &a->m, &a->d, &scale_a, &scale_b);
  BNY_UNROLL for (int i = 0; i < a->values.count; i++) {
    a->values.value[i] = bny_add(bny_mul(a->values.value[i], scale_a), bny_mul(b.values.value[i], scale_b));
  }
  if (nodes) bny_unit_round(&a->values, work, packet, rounding.wire);
}

/* Gets packets and statistics of sources [base, base + count), at most `width`. If a unit takes several rounds, every
 * lane reloads one of the first 8 packets in each round. No statistics are kept between rounds. */
template <int protocol, class Sources, int width>
BNY_DEVICE void bny_merge_gather(bny_worker *self, const Sources &sources, int base, int count,
                                 const bny_unit_work &work, int packet, bny_packet (&packets)[width], float *m,
                                 float *d) {
  if (protocol == BNY_PROTOCOL_SIMPLE) bny_merge_await(self, sources, base, count, 0);
  const bool once = work.packets <= BNY_WARP_LANES;
  BNY_ROLLED for (int phase = once ? 1 : 0; phase < 2; phase++) {
    int asked = phase == 0 ? (int)bny_lane() % 8 : packet;
    bny_merge_receive<protocol>(self, sources, base, count, 0, asked, asked < work.packets, packets);
    BNY_UNROLL for (int s = 0; s < width; s++) {
      if ((phase == 1 && !once) || s >= count) continue;
      m[s] = bny_merge_m(packets[s]);
      d[s] = bny_merge_d(packets[s]);
    }
  }
}

/* Merges one round of packets of any number of sources, with a stack that works like a binary counter. After source k
 * it merges as many pairs as k has trailing ones. After the last source it merges all remaining entries from the
 * right. */
template <int protocol, int bits, class Sources>
BNY_DEVICE void bny_merge_many(bny_worker *self, const Sources &sources, int count, const bny_unit_work &work,
                               int packet, bny_rounding rounding, bny_merge_part<protocol, bits> *merged) {
  bny_merge_part<protocol, bits> stack[BNY_MERGE_STACK];
  bny_packet packets[BNY_MERGE_WIDTH];
  float m[BNY_MERGE_WIDTH], d[BNY_MERGE_WIDTH];
  int height = 0;
  BNY_ROLLED for (int k = 0; k < count && !self->failed; k++) {
    int i = k % BNY_MERGE_WIDTH, left = count - k;
    if (i == 0)
      bny_merge_gather<protocol>(self, sources, k, left < BNY_MERGE_WIDTH ? left : BNY_MERGE_WIDTH, work, packet,
                                 packets, m, d);
    bny_merge_part<protocol, bits> *part = &stack[height++];
    part->m = m[i];
    part->d = d[i];
    bny_unit_scales<bits> scales;
    bny_unit_scales_make<protocol>(packets[i], packet, &scales);
    BNY_UNROLL for (int j = 0; j < part->values.count; j++) {
      part->values.value[j] = bny_unit_value(packets[i], j, rounding.wire, scales);
    }
    bool is_last = k + 1 == count;
    BNY_ROLLED for (int digits = k; height > 1 && (digits & 1 || is_last); digits >>= 1, height--) {
      bny_merge_two(&stack[height - 2], stack[height - 1], work, packet, rounding.last && is_last && height == 2,
                    rounding);
    }
  }
  *merged = stack[0];
}

/* ---- several at a time ------------------------------------------------------------------------------------------- */

/* Merges one round of packets of any number of sources whose nodes are not rounded. Each part of `width` sources is
 * merged as a tree in registers, and the parts as in bny_merge_many(). The width is a power of two, so the result is
 * the tree of neighbours. The stack is accessed once per part. */
template <int protocol, int bits, int width, class Sources>
BNY_DEVICE void bny_merge_parts(bny_worker *self, const Sources &sources, int count, const bny_unit_work &work,
                                int packet, int wire, bny_merge_part<protocol, bits> *merged) {
  const bny_rounding rounding = {wire, false, false};
  bny_merge_part<protocol, bits> stack[BNY_MERGE_PARTS_STACK];
  int parts = (count + width - 1) / width, height = 0;
  BNY_ROLLED for (int k = 0; k < parts && !self->failed; k++) {
    int left = count - k * width, some = left < width ? left : width;
    bny_packet packets[width];
    float m[width], d[width];
    bny_merge_gather<protocol>(self, sources, k * width, some, work, packet, packets, m, d);
    bny_merge_tree tree;
    bny_merge_tree_make(m, d, some, false, &tree);
    stack[height++] = {tree.m, tree.d, bny_merge_tree_values<protocol, bits>(packets, some, tree, packet, wire)};
    bool is_last = k + 1 == parts;
    BNY_ROLLED for (int digits = k; height > 1 && (digits & 1 || is_last); digits >>= 1, height--) {
      bny_merge_two(&stack[height - 2], stack[height - 1], work, packet, false, rounding);
    }
  }
  *merged = stack[0];
}

/* A copy of bny_merge_parts() that is not inlined, for kernels that have few free registers. */
template <int protocol, int bits, int width, class Sources>
BNY_DEVICE_COLD void bny_merge_parts_apart(bny_worker *self, const Sources &sources, int count,
                                           const bny_unit_work &work, int packet, int wire,
                                           bny_merge_part<protocol, bits> *merged) {
  bny_merge_parts<protocol, bits, width>(self, sources, count, work, packet, wire, merged);
}
