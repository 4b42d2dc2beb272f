/* SPDX-License-Identifier: Apache-2.0
 * Packs and unpacks units of the e4m3 wire, where each block of 32 columns shares a scale (f8.h). A unit is cut into
 * rounds of 32 packets. A round begins with a header of eight words: m, d, and one byte of scale per block of the
 * round. Codes follow, four to a word. Each block therefore takes eight words of one round, and a lane holds words of
 * at most two blocks. One lane holds all words of scales and shares them with the others. The word after m and d has a
 * bit for each block of a sum that has an infinity. */
#pragma once

#include "cuda/packets.h"
#include "f8.h"

/* The scales of a round, the same in all lanes: byte b is that of block b, which has infinities if bit b is set. */
template <int protocol> struct bny_block_bytes {
  static constexpr int words = bny_packet_words_max<protocol>();
  uint32_t word[words];
  uint32_t infinite;
};

/* The scales of a lane's words. Words before word `turn` use the lower byte of `pair` and the lower bit of `infinite`,
 * the others the upper ones. */
struct bny_block_scales {
  uint32_t pair, infinite;
  int turn;
};

/* Returns the bytes of a row in a message between nodes: codes, scales, and zeros up to a multiple of four. */
BNY_DEVICE int64_t bny_wire_blocks_bytes(int32_t value_dim) {
  return ((int64_t)value_dim + (value_dim + BNY_SCALE_BLOCK - 1) / BNY_SCALE_BLOCK + 3) / 4 * 4;
}

/* The lane that holds the scales, and the word of lane 0 that has the bits of infinities. */
enum : int { BNY_BLOCK_LANE = 1, BNY_BLOCK_INFINITE = 2 };

template <int protocol> BNY_DEVICE constexpr int bny_block_count() {
  return (bny_protocol_round_words(protocol) - BNY_ROUND_HEADER_WORDS) / BNY_ROUND_BLOCK_WORDS;
}

/* Returns the index of the packet's first word in its round. */
template <int protocol> BNY_DEVICE int bny_block_word(int packet) {
  return bny_packet_first<protocol>(packet % BNY_WARP_LANES);
}

/* Returns the block of the packet's first word; -1: the header. */
template <int protocol> BNY_DEVICE int bny_block_first(int packet) {
  return (bny_block_word<protocol>(packet) - BNY_ROUND_HEADER_WORDS) >> 3;
}

template <int protocol> BNY_DEVICE uint8_t bny_block_byte(const bny_block_bytes<protocol> &bytes, int block) {
  uint32_t word = 0; /* an OR of masked words stays in registers; an indexed array does not */
  BNY_UNROLL for (int i = 0; i < bytes.words; i++) word |= bytes.word[i] & (block >> 2 == i ? ~0u : 0u);
  return (uint8_t)(word >> 8 * (block & 3));
}

template <int protocol>
BNY_DEVICE bny_block_scales bny_block_scales_make(const bny_block_bytes<protocol> &bytes, int packet) {
  int block = bny_block_first<protocol>(packet);
  return {bny_block_byte(bytes, block) | (uint32_t)bny_block_byte(bytes, block + 1) << 8,
          bytes.infinite << 1 >> (block + 1),
          BNY_ROUND_BLOCK_WORDS - bny_block_word<protocol>(packet) % BNY_ROUND_BLOCK_WORDS};
}

/* Called by all lanes with their packets of a round. */
template <int protocol> BNY_DEVICE bny_block_scales bny_block_scales_of(const bny_packet &value, int packet) {
  bny_block_bytes<protocol> bytes;
  BNY_UNROLL for (int i = 0; i < bytes.words; i++) { bytes.word[i] = bny_shuffle(value.word[i], BNY_BLOCK_LANE); }
  bytes.infinite = bny_shuffle(value.word[BNY_BLOCK_INFINITE], 0);
  return bny_block_scales_make(bytes, packet);
}

/* Called by all lanes. Bit b of a lane says that it has an infinity in block b. Returns the bits of all lanes. */
template <int protocol> BNY_DEVICE_COLD uint32_t bny_block_infinite(uint32_t mine) {
  uint32_t all = 0;
  BNY_UNROLL for (int b = 0; b < bny_block_count<protocol>(); b++) {
    all |= bny_warp_any(mine >> b & 1) ? 1u << b : 0u;
  }
  return all;
}

/* Called by all lanes with the values of a round. Saturates the values and returns the scales of their blocks. Only
 * values [low, high) of a lane are valid, and `low` is a multiple of 4. Those of sums keep infinities. */
template <int protocol>
BNY_DEVICE bny_block_bytes<protocol> bny_block_limit(float *values, int packet, int low, int high, bool sums) {
  bny_block_bytes<protocol> bytes;
  int block = bny_block_first<protocol>(packet);
  int turn = BNY_ROUND_BLOCK_WORDS - bny_block_word<protocol>(packet) % BNY_ROUND_BLOCK_WORDS;
  uint32_t first = 0, second = 0, infinite = 0;
  BNY_UNROLL for (int i = 0; i < 4 * bytes.words; i++) {
    values[i] = bny_saturate(values[i], BNY_BLOCK_MAX);
    uint32_t magnitude = i >= low && i < high ? bny_scale_magnitude(values[i]) : 0;
    if (i >= low && i < high && (values[i] == BNY_INFINITY_F || values[i] == -BNY_INFINITY_F))
      infinite |= i / 4 < turn ? 1 : 2;
    if (i / 4 < turn)
      first = first > magnitude ? first : magnitude;
    else
      second = second > magnitude ? second : magnitude;
  }
  BNY_UNROLL for (int i = 0; i < bytes.words; i++) bytes.word[i] = 0;
  BNY_UNROLL for (int b = 0; b < bny_block_count<protocol>(); b++) {
    uint32_t most = bny_warp_max_32(b == block ? first : b == block + 1 ? second : 0);
    bytes.word[b / 4 % bytes.words] |= (uint32_t)bny_scale_byte(most) << 8 * (b % 4);
  }
  bytes.infinite = 0;
  if (sums && bny_warp_any(infinite != 0)) bytes.infinite = bny_block_infinite<protocol>(infinite << (block + 1) >> 1);
  return bytes;
}

BNY_DEVICE uint8_t bny_block_scale_at(const bny_block_scales &scales, int index) {
  return (uint8_t)(scales.pair >> (index / 4 < scales.turn ? 0 : 8));
}

BNY_DEVICE bool bny_block_has_infinity(const bny_block_scales &scales, int index) {
  return scales.infinite >> (index / 4 < scales.turn ? 0 : 1) & 1;
}

BNY_DEVICE uint8_t bny_block_code_at(const bny_block_scales &scales, int index, float value) {
  uint8_t code = bny_block_code(value, bny_scale_inverse(bny_block_scale_at(scales, index)));
  return bny_block_has_infinity(scales, index) ? bny_sum_code(value, code) : code;
}

/* Does what bny_block_limit() does, and makes a packet of the values, m and d. */
template <int protocol>
BNY_DEVICE bny_packet bny_block_pack(float *values, int packet, int low, int high, float m, float d, bool sums) {
  bny_packet made = {{0, 0, 0, 0}};
  bny_block_bytes<protocol> bytes = bny_block_limit<protocol>(values, packet, low, high, sums);
  bny_block_scales scales = bny_block_scales_make(bytes, packet);
  int word = bny_block_word<protocol>(packet);
  bool has_scales = packet % BNY_WARP_LANES == BNY_BLOCK_LANE;
  BNY_UNROLL for (int i = 0; i < bytes.words; i++) {
    BNY_UNROLL for (int j = 4 * i; j < 4 * i + 4; j++) {
      uint32_t code = bny_block_code_at(scales, j, values[j]);
      if (j >= low && j < high) made.word[i] |= code << 8 * (j % 4);
    }
    if (word + i == 0) made.word[i] = bny_bits_of_float(m);
    if (word + i == 1) made.word[i] = bny_bits_of_float(d);
    if (word + i == BNY_BLOCK_INFINITE) made.word[i] = bytes.infinite;
    if (has_scales) made.word[i] = bytes.word[i];
  }
  return made;
}

/* Does what bny_block_limit() does, and rounds the values to the precision of packets. */
template <int protocol> BNY_DEVICE void bny_block_round(float *values, int packet, int low, int high, bool sums) {
  bny_block_bytes<protocol> bytes = bny_block_limit<protocol>(values, packet, low, high, sums);
  bny_block_scales scales = bny_block_scales_make(bytes, packet);
  BNY_UNROLL for (int i = 0; i < 4 * bytes.words; i++) {
    uint8_t code = bny_block_code_at(scales, i, values[i]);
    float value = bny_mul(bny_float_of_e4m3(code), bny_scale_of_byte(bny_block_scale_at(scales, i)));
    values[i] = bny_block_has_infinity(scales, i) ? bny_sum_value(code, value) : value;
  }
}

BNY_DEVICE float bny_block_value(const bny_packet &value, int index, const bny_block_scales &scales) {
  uint32_t bits = value.word[index / 4 % BNY_PACKET_WORDS];
#ifdef BNY_CONVERTS_E4M3
  uint32_t pair = bny_e4m3_f16(bits >> 16 * (index / 2 % 2));
  float code = index % 2 ? bny_f16_high(pair) : bny_f16_low(pair);
#else
  float code = bny_float_of_e4m3((uint8_t)(bits >> 8 * (index % 4)));
#endif
  float scaled = bny_mul(code, bny_scale_of_byte(bny_block_scale_at(scales, index)));
  return bny_block_has_infinity(scales, index) ? bny_sum_value((uint8_t)(bits >> 8 * (index % 4)), scaled) : scaled;
}
