/* SPDX-License-Identifier: Apache-2.0
 * Maps a unit to the lanes of a warp: the position and meaning of its words in a row. Values have 32, 16 or 8
 * `bits`. */
#pragma once

#include "cuda/blocks.h"
#include "cuda/packets.h"
#include "cuda/partial.h"

template <int protocol, int bits> struct bny_lane_values {
  static constexpr int count = bny_packet_words_max<protocol>() * (32 / bits);
  float value[count];
};

/* The units of this warp: chunk `chunk` of each row that its group of warps handles. */
struct bny_unit_work {
  int32_t chunk;
  int32_t column0, columns; /* columns of the row */
  int32_t packets;
  uint32_t group, groups; /* this warp's group, and the number of groups in the grid */
  int32_t low;            /* sums: columns of the unit before the box */
  bool sums;
  uint32_t saturated; /* values of this lane that saturated */
};

template <int protocol, int bits> BNY_DEVICE bny_unit_work bny_unit_work_make(const bny_unit_shape &shape) {
  bny_unit_work work;
  uint32_t warps = bny_block_threads() / BNY_WARP_LANES;
  int shift = bny_lowest_bit((uint32_t)shape.chunks);
  work.chunk = (int32_t)bny_warp() & (shape.chunks - 1);
  work.group = bny_block() * (warps >> shift) + (bny_warp() >> shift);
  work.groups = bny_grid_blocks() * (warps >> shift);
  work.column0 = work.chunk * shape.chunk_columns;
  work.low = 0;
  work.sums = shape.columns > 0;
  work.saturated = 0;
  int32_t left = shape.value_dim - work.column0;
  work.columns = left < 0 ? 0 : left < shape.chunk_columns ? left : shape.chunk_columns;
  work.packets = bny_protocol_packets_of(protocol, bits, work.columns);
  return work;
}

/* Sums: moves to unit `head`, of which only columns [first, first + count) of the token exist. */
template <int protocol, int bits>
BNY_DEVICE void bny_unit_work_move(bny_unit_work *work, const bny_unit_shape &shape, int32_t head, int32_t first,
                                   int32_t count) {
  int32_t begin = head * shape.value_dim, left = first + count - begin;
  work->low = first > begin ? first - begin : 0;
  if (bits == 8) { /* the part of the tensor may lack columns of its last block */
    int32_t group = begin / shape.group_columns, place = begin - group * shape.group_columns;
    int32_t at = bny_split_first(shape.dim, shape.groups, group) + place;
    int32_t has = bny_split_first(shape.dim, shape.groups, group + 1) - at;
    work->column0 = at - begin;
    left = has < left ? has < 0 ? 0 : has : left;
  }
  work->columns = left < shape.value_dim ? left : shape.value_dim;
  work->packets = bny_protocol_packets_of(protocol, bits, work->columns);
}

BNY_DEVICE void bny_unit_row_sync(const bny_unit_shape &shape) {
  int row = (int)bny_warp() >> bny_lowest_bit((uint32_t)shape.chunks);
  if (shape.chunks > 1) bny_named_sync(1 + row, shape.chunks * BNY_WARP_LANES);
}

/* ---- rows of this warp ------------------------------------------------------------------------------------------- */

/* Iterates over the rows of a box that this warp's group handles, token by token. Group i % groups handles row i of the
 * shape's box. */
struct bny_unit_rows {
  int32_t token, head; /* the current row */
  int32_t token_end, head0, head_end;
  uint32_t phase, step, groups; /* phase: index of the token's first row, modulo groups */
  uint32_t group;
};

BNY_DEVICE void bny_unit_rows_token(bny_unit_rows *rows) {
  rows->head = rows->head0 + (int32_t)(rows->group + (rows->group < rows->phase ? rows->groups : 0) - rows->phase);
}

/* Finds the next row from `head` on. Returns false if there is none. */
BNY_DEVICE bool bny_unit_rows_find(bny_unit_rows *rows) {
  while (rows->head >= rows->head_end) {
    if (++rows->token >= rows->token_end) return false;
    rows->phase += rows->step;
    if (rows->phase >= rows->groups) rows->phase -= rows->groups;
    bny_unit_rows_token(rows);
  }
  return true;
}

/* Returns value % by. Most values are smaller than `by` and need no division. */
BNY_DEVICE uint32_t bny_unit_modulo(uint32_t value, uint32_t by) { return value < by ? value : value % by; }

BNY_DEVICE bool bny_unit_rows_first(bny_unit_rows *rows, const bny_unit_shape &shape, const bny_unit_work &work,
                                    int32_t token0, int32_t tokens, int32_t head0, int32_t heads) {
  if (tokens <= 0 || heads <= 0) return false;
  rows->groups = work.groups;
  rows->group = work.group;
  rows->token = token0;
  rows->token_end = token0 + tokens;
  rows->head0 = head0;
  rows->head_end = head0 + heads;
  rows->step = bny_unit_modulo((uint32_t)shape.heads, work.groups);
  uint32_t first = (uint32_t)(token0 - shape.token0) * (uint32_t)shape.heads + (uint32_t)(head0 - shape.head0);
  rows->phase = bny_unit_modulo(first, work.groups);
  bny_unit_rows_token(rows);
  return bny_unit_rows_find(rows);
}

BNY_DEVICE bool bny_unit_rows_next(bny_unit_rows *rows) {
  rows->head += (int32_t)rows->groups;
  return bny_unit_rows_find(rows);
}

/* ---- words and values -------------------------------------------------------------------------------------------- */

/* The columns of a packet's values. For i in [low, high), value i is column `column` + i of the chunk. */
struct bny_unit_columns {
  int32_t column;
  int low, high;
};

template <int protocol, int bits>
BNY_DEVICE bny_unit_columns bny_unit_columns_of(const bny_unit_work &work, int packet) {
  constexpr int each = 32 / bits;
  bny_unit_columns made;
  if (bits == 8) {
    int word = bny_block_word<protocol>(packet) - BNY_ROUND_HEADER_WORDS;
    made.column = packet / BNY_WARP_LANES * bny_protocol_round_columns(protocol) + word * each;
    made.low = word < 0 ? -word * each : 0;
  } else {
    made.column = (bny_packet_first<protocol>(packet) - bny_protocol_header_words(protocol)) * each;
    made.low = made.column < 0 ? -made.column : 0;
  }
  int room = bny_packet_words<protocol>(packet) * each, left = work.columns - made.column;
  made.high = left < room ? left : room;
  if (made.low < work.low - made.column) made.low = work.low - made.column;
  return made;
}

/* Returns whether a wire of this many bits saturates the value. */
template <int bits> BNY_DEVICE bool bny_wire_saturates(float value, int wire) {
  if (bits == 32) return false;
  float limit = bits == 8 ? BNY_BLOCK_MAX : wire == BNY_WIRE_F16 ? BNY_F16_MAX : BNY_BF16_MAX;
  return __builtin_fabsf(value) > limit && __builtin_fabsf(value) < BNY_INFINITY_F;
}

/* Called by all lanes after the warp's last row. */
BNY_DEVICE_COLD void bny_unit_count_saturated(uint64_t *word, uint32_t saturated) {
  if (!bny_warp_any(saturated != 0)) return;
  BNY_UNROLL for (int mask = 16; mask > 0; mask /= 2) saturated += bny_shuffle_xor(saturated, mask);
  if (bny_lane() == 0) bny_add_relaxed_gpu_64(word, saturated);
}

BNY_DEVICE uint32_t bny_wire_pack(float low, float high, int wire) {
  if (wire == BNY_WIRE_F16) return bny_pack_f16(bny_saturate(low, BNY_F16_MAX), bny_saturate(high, BNY_F16_MAX));
  return bny_pack_bf16(bny_saturate(low, BNY_BF16_MAX), bny_saturate(high, BNY_BF16_MAX));
}

/* Rounds a value to the wire format. */
BNY_DEVICE float bny_wire_round(float value, int wire) {
  uint32_t bits = bny_wire_pack(value, 0.0f, wire);
  return wire == BNY_WIRE_F16 ? bny_f16_low(bits) : bny_bf16_low(bits);
}

/* Makes a packet of values. The unit's first packets also hold m and d. */
template <int protocol, int bits>
BNY_DEVICE bny_packet bny_unit_pack(const bny_lane_values<protocol, bits> &values, const bny_unit_work &, int packet,
                                    float m, float d, int wire) {
  bny_packet made = {{0, 0, 0, 0}};
  constexpr int words = bny_packet_words_max<protocol>();
  int first = bny_packet_first<protocol>(packet);
  BNY_UNROLL for (int i = 0; i < words; i++) {
    made.word[i] =
        bits == 16 ? bny_wire_pack(values.value[2 * i % values.count], values.value[(2 * i + 1) % values.count], wire)
                   : bny_bits_of_float(values.value[i]);
    if (first + i == 0) made.word[i] = bny_bits_of_float(m);
    if (first + i == 1) made.word[i] = bny_bits_of_float(d);
  }
  return made;
}

template <int protocol>
BNY_DEVICE bny_packet bny_unit_pack(const bny_lane_values<protocol, 8> &values, const bny_unit_work &work, int packet,
                                    float m, float d, int) {
  bny_unit_columns at = bny_unit_columns_of<protocol, 8>(work, packet);
  bny_lane_values<protocol, 8> limited = values;
  return bny_block_pack<protocol>(limited.value, packet, at.low, at.high, m, d, work.sums);
}

/* Called by all lanes. Rounds values to the precision of packets. */
template <int protocol, int bits>
BNY_DEVICE void bny_unit_round(bny_lane_values<protocol, bits> *values, const bny_unit_work &, int, int wire) {
  BNY_UNROLL for (int i = 0; i < values->count; i++) values->value[i] = bny_wire_round(values->value[i], wire);
}

template <int protocol>
BNY_DEVICE void bny_unit_round(bny_lane_values<protocol, 8> *values, const bny_unit_work &work, int packet, int) {
  bny_unit_columns at = bny_unit_columns_of<protocol, 8>(work, packet);
  bny_block_round<protocol>(values->value, packet, at.low, at.high, work.sums);
}

/* The scales of a packet's values, if the format has scales. All lanes make them together, with the packets of a
 * round. */
template <int bits> struct bny_unit_scales {};
template <> struct bny_unit_scales<8> : bny_block_scales {};

template <int protocol, int bits>
BNY_DEVICE void bny_unit_scales_make(const bny_packet &, int, bny_unit_scales<bits> *) {}

template <int protocol>
BNY_DEVICE void bny_unit_scales_make(const bny_packet &value, int packet, bny_unit_scales<8> *scales) {
  *(bny_block_scales *)scales = bny_block_scales_of<protocol>(value, packet);
}

BNY_DEVICE float bny_unit_value(const bny_packet &packet, int index, int, const bny_unit_scales<8> &scales) {
  return bny_block_value(packet, index, scales);
}

template <int bits>
BNY_DEVICE float bny_unit_value(const bny_packet &packet, int index, int wire, const bny_unit_scales<bits> &) {
  if (bits == 32) return bny_float_of_bits(packet.word[index]);
  uint32_t pair = packet.word[index / 2];
  if (wire == BNY_WIRE_F16) return index % 2 ? bny_f16_high(pair) : bny_f16_low(pair);
  return index % 2 ? bny_bf16_high(pair) : bny_bf16_low(pair);
}

/* ---- the caller's rows ------------------------------------------------------------------------------------------- */

/* Reads a packet's values from the caller's row, without scaling them. */
template <int protocol, int bits>
BNY_DEVICE void bny_unit_read(const banyan_partial &in, const bny_unit_work &work, int32_t token, int32_t head,
                              int packet, bool wanted, bny_lane_values<protocol, bits> *values) {
  bny_unit_columns at = bny_unit_columns_of<protocol, bits>(work, packet);
  int64_t first = bny_partial_value_at(in, token, head) + work.column0 + at.column;
  bny_values_load<bny_lane_values<protocol, bits>::count>(in.values, in.values_dtype, first, wanted ? at.low : 0,
                                                          wanted ? at.high : 0, values->value);
}

/* Converts values to wire form, and counts those that saturate. The values of an empty row become 0. */
template <int protocol, int bits>
BNY_DEVICE bny_packet bny_unit_import(const bny_lane_values<protocol, bits> &values, bny_unit_work &work,
                                      const bny_import &import, int packet, int wire) {
  bny_lane_values<protocol, bits> scaled;
  BNY_UNROLL for (int i = 0; i < values.count; i++) {
    scaled.value[i] = import.d == 0.0f ? 0.0f : bny_mul(values.value[i], import.factor);
    work.saturated += bny_wire_saturates<bits>(scaled.value[i], wire);
  }
  return bny_unit_pack(scaled, work, packet, import.m, import.d, wire);
}

template <int protocol, int bits>
BNY_DEVICE void bny_unit_write(const banyan_partial &out, const bny_unit_work &work, int32_t token, int32_t head,
                               int packet, float factor, bool wanted, const bny_lane_values<protocol, bits> &values) {
  bny_unit_columns at = bny_unit_columns_of<protocol, bits>(work, packet);
  if (!wanted || at.low >= at.high) return;
  bny_lane_values<protocol, bits> scaled;
  BNY_UNROLL for (int i = 0; i < values.count; i++) scaled.value[i] = bny_mul(values.value[i], factor);
  int64_t first = bny_partial_value_at(out, token, head) + work.column0 + at.column;
  bny_values_store<bny_lane_values<protocol, bits>::count>(out.values, out.values_dtype, first, at.low, at.high,
                                                           scaled.value);
}
