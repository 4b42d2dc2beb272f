/* SPDX-License-Identifier: Apache-2.0
 * Reads and writes units of messages to and from other nodes. The messages lie in host memory in the layout that nodes
 * send: m of all rows, d of all rows, then numerators row by row (bny_wire_layout of kernels/op.h). A unit is accessed
 * packet by packet, like a unit in an inbox of protocol SIMPLE. Only the addresses of its words differ. The first chunk
 * of a row holds the row's statistics. Sums have none: their messages are columns, token by token. The scales of e4m3
 * follow a row's codes; each round of packets has its own scales. A message of sums has blocks of BNY_SUM_BLOCK_BYTES
 * each, as f8.h has them. */
#pragma once

#include "cuda/blocks.h"
#include "cuda/packets.h"
#include "cuda/partial.h"

BNY_DEVICE bool bny_is_remote(const bny_program_endpoint &endpoint) { return endpoint.message[0] != 0; }

template <int bits> struct bny_remote_unit {
  uint32_t *m, *d;
  unsigned char *values;
  unsigned char *scales; /* e4m3: the chunk's scales */
  int32_t low, bytes;    /* the values in the message are bytes [low, bytes) of the chunk */
  bool has_stats, has_blocks;
};

/* A unit of sums. The message may begin or end within it. */
template <int bits>
BNY_DEVICE bny_remote_unit<bits> bny_remote_unit_sums(const bny_program_endpoint &endpoint, const bny_unit_shape &shape,
                                                      unsigned char *message, int64_t row) {
  constexpr int element = bits / 8;
  int32_t head = endpoint.head0 + (int32_t)(row % endpoint.heads), columns = (int32_t)endpoint.columns;
  int32_t first = head * shape.value_dim - (int32_t)endpoint.column0, left = columns - first;
  int64_t at = row / endpoint.heads * columns + first;
  return {nullptr,
          nullptr,
          message + (bits == 8 ? at / BNY_SCALE_BLOCK * BNY_SUM_BLOCK_BYTES : at * element),
          nullptr,
          first < 0 ? -first * element : 0,
          (left < shape.value_dim ? left : shape.value_dim) * element,
          false,
          bits == 8};
}

template <int bits>
BNY_DEVICE bny_remote_unit<bits> bny_remote_unit_make(const bny_program_endpoint &endpoint, const bny_unit_shape &shape,
                                                      uint64_t epoch, int64_t row, int32_t chunk) {
  unsigned char *message = (unsigned char *)endpoint.message[epoch & 1];
  if (shape.columns) return bny_remote_unit_sums<bits>(endpoint, shape, message, row);
  int32_t column0 = chunk * shape.chunk_columns, left = shape.value_dim - column0;
  int32_t columns = left < 0 ? 0 : left < shape.chunk_columns ? left : shape.chunk_columns;
  constexpr int element = bits / 8;
  int64_t row_bytes = bits == 8 ? bny_wire_blocks_bytes(shape.value_dim) : (int64_t)shape.value_dim * element;
  unsigned char *values = message + endpoint.n + row * row_bytes;
  return {(uint32_t *)message + row,
          (uint32_t *)(message + endpoint.d) + row,
          values + column0 * element,
          values + shape.value_dim + column0 / BNY_SCALE_BLOCK,
          0,
          columns * element,
          chunk == 0,
          false};
}

/* Returns whether the packet holds m and d. */
template <int bits> BNY_DEVICE bool bny_remote_is_head(int packet) {
  return bits == 8 ? packet % BNY_WARP_LANES == 0 : packet == 0;
}

/* Bytes [low, end) of the packet lie in the message. Returns the end, 0 to 16, and sets *low, and *at to the place of
 * byte 0. */
template <int bits>
BNY_DEVICE int32_t bny_remote_bytes(const bny_remote_unit<bits> &unit, int packet, unsigned char **at, int32_t *low) {
  int32_t first = 16 * (packet - 1), left = unit.bytes - first;
  *at = unit.values + first;
  *low = unit.low - first;
  if (bits == 8) {
    int round = packet / BNY_WARP_LANES, endpoint = packet % BNY_WARP_LANES;
    const int columns = bny_protocol_round_columns(BNY_PROTOCOL_SIMPLE);
    first = round * columns + 16 * (endpoint - 2);
    left = first < unit.low ? 0 : unit.bytes - first;
    *at = unit.values + first;
    if (unit.has_blocks) *at += first / BNY_SCALE_BLOCK * (BNY_SUM_BLOCK_BYTES - BNY_SCALE_BLOCK);
    if (endpoint == BNY_BLOCK_LANE) {
      constexpr int blocks = bny_block_count<BNY_PROTOCOL_SIMPLE>();
      left = (unit.bytes - round * columns + BNY_SCALE_BLOCK - 1) / BNY_SCALE_BLOCK;
      if (left > blocks) left = blocks;
      *at = unit.scales + round * blocks;
    }
  }
  return left < 0 ? 0 : left < 16 ? left : 16;
}

/* Returns where the message has a block's scale, or NULL. The byte after it marks infinities. */
BNY_DEVICE unsigned char *bny_remote_block(const bny_remote_unit<8> &unit, int packet, int block) {
  block += packet / BNY_WARP_LANES * bny_block_count<BNY_PROTOCOL_SIMPLE>();
  bool is_there = block * BNY_SCALE_BLOCK >= unit.low && block * BNY_SCALE_BLOCK < unit.bytes;
  return is_there ? unit.values + block * BNY_SUM_BLOCK_BYTES + BNY_SCALE_BLOCK : nullptr;
}

/* Returns whether the packet holds what blocks of a sum have beside codes. */
template <int bits> BNY_DEVICE bool bny_remote_is_of_blocks(const bny_remote_unit<bits> &unit, int packet) {
  return bits == 8 && unit.has_blocks && packet % BNY_WARP_LANES <= BNY_BLOCK_LANE;
}

BNY_DEVICE void bny_remote_store_blocks(const bny_remote_unit<8> &unit, int packet, const bny_packet &value) {
  BNY_ROLLED for (int b = 0; b < bny_block_count<BNY_PROTOCOL_SIMPLE>(); b++) {
    unsigned char *at = bny_remote_block(unit, packet, b);
    if (!at) continue;
    if (packet % BNY_WARP_LANES == 0)
      bny_store_plain(at + 1, (unsigned char)(value.word[BNY_BLOCK_INFINITE] >> b & 1));
    else
      bny_store_plain(at, (unsigned char)(value.word[b / 4] >> 8 * (b % 4)));
  }
}

BNY_DEVICE bny_quad bny_remote_load_blocks(const bny_remote_unit<8> &unit, int packet) {
  const bool is_head = packet % BNY_WARP_LANES == 0;
  bny_quad quad = {{0, is_head ? bny_bits_of_float(BNY_SUM_D) : 0, 0, 0}};
  BNY_UNROLL for (int b = 0; b < bny_block_count<BNY_PROTOCOL_SIMPLE>(); b++) {
    const unsigned char *at = bny_remote_block(unit, packet, b);
    if (!at) continue;
    uint32_t byte = bny_load_plain(at + is_head);
    quad.word[is_head ? BNY_BLOCK_INFINITE : b / 4] |= byte << (is_head ? b : 8 * (b % 4));
  }
  return quad;
}

BNY_DEVICE void bny_remote_store_blocks(const bny_remote_unit<16> &, int, const bny_packet &) {}
BNY_DEVICE void bny_remote_store_blocks(const bny_remote_unit<32> &, int, const bny_packet &) {}
BNY_DEVICE bny_quad bny_remote_load_blocks(const bny_remote_unit<16> &, int) { return {{0, 0, 0, 0}}; }
BNY_DEVICE bny_quad bny_remote_load_blocks(const bny_remote_unit<32> &, int) { return {{0, 0, 0, 0}}; }

template <int bits>
BNY_DEVICE void bny_remote_store(const bny_remote_unit<bits> &unit, int packet, const bny_packet &value) {
  unsigned char *at;
  if (bny_remote_is_of_blocks(unit, packet)) {
    bny_remote_store_blocks(unit, packet, value);
    return;
  }
  if (bny_remote_is_head<bits>(packet)) {
    if (!unit.has_stats || packet != 0) return;
    bny_store_plain(unit.m, value.word[0]);
    bny_store_plain(unit.d, value.word[1]);
    return;
  }
  int32_t low, bytes = bny_remote_bytes(unit, packet, &at, &low);
  if (bytes == 16 && low <= 0 && ((uintptr_t)at & 15) == 0) {
    bny_store_quad(at, {{value.word[0], value.word[1], value.word[2], value.word[3]}});
  } else if (bits == 8) {
    BNY_UNROLL for (int i = 0; i < 16; i++) {
      if (i < bytes) bny_store_plain(at + i, (unsigned char)(value.word[i / 4] >> 8 * (i % 4)));
    }
  } else if (bits == 32) {
    BNY_UNROLL for (int i = 0; i < 4; i++) {
      if (4 * i >= low && 4 * i < bytes) bny_store_plain((uint32_t *)at + i, value.word[i]);
    }
  } else {
    BNY_UNROLL for (int i = 0; i < 8; i++) {
      if (2 * i >= low && 2 * i < bytes)
        bny_store_plain((uint16_t *)at + i, (uint16_t)(value.word[i / 2] >> 16 * (i % 2)));
    }
  }
}

/* Loads a packet. Words beyond the unit's end are 0. */
template <int bits> BNY_DEVICE bny_quad bny_remote_load(const bny_remote_unit<bits> &unit, int packet) {
  unsigned char *at;
  if (bny_remote_is_of_blocks(unit, packet)) return bny_remote_load_blocks(unit, packet);
  if (bny_remote_is_head<bits>(packet) && !unit.m) return {{0, bny_bits_of_float(BNY_SUM_D), 0, 0}};
  if (bny_remote_is_head<bits>(packet)) return {{bny_load_plain(unit.m), bny_load_plain(unit.d), 0, 0}};
  int32_t low, bytes = bny_remote_bytes(unit, packet, &at, &low);
  if (bytes == 16 && low <= 0 && ((uintptr_t)at & 15) == 0) return bny_load_quad(at);
  bny_quad quad = {{0, 0, 0, 0}};
  if (bits == 8) {
    BNY_UNROLL for (int i = 0; i < 16; i++) {
      if (i < bytes) quad.word[i / 4] |= (uint32_t)bny_load_plain((const unsigned char *)at + i) << 8 * (i % 4);
    }
  } else if (bits == 32) {
    BNY_UNROLL for (int i = 0; i < 4; i++) {
      if (4 * i >= low && 4 * i < bytes) quad.word[i] = bny_load_plain((const uint32_t *)at + i);
    }
  } else {
    BNY_UNROLL for (int i = 0; i < 8; i++) {
      if (2 * i >= low && 2 * i < bytes)
        quad.word[i / 2] |= (uint32_t)bny_load_plain((const uint16_t *)at + i) << 16 * (i % 2);
    }
  }
  return quad;
}
