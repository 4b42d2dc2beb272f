/* SPDX-License-Identifier: Apache-2.0
 * Stores a lane's words as packets in an inbox, and loads them. Lane p % 32 handles packet p of a unit. program.h
 * defines the protocols. */
#pragma once

#include "cuda/device.h"
#include "cuda/program.h"

/* The most words of a packet. */
enum { BNY_PACKET_WORDS = 4 };

struct bny_packet {
  uint32_t word[BNY_PACKET_WORDS];
};

/* Returns the flag of a run. It is never 0, because a new arena is zero. Runs 2^32 k have flag 1: they use the halves
 * of even epochs, where no other flag is odd. A flag repeats after 2^32 runs. A wait for a cell that nobody has written
 * in 2^32 runs would therefore end too early. */
BNY_DEVICE uint32_t bny_packet_flag(uint64_t epoch) { return (uint32_t)epoch ? (uint32_t)epoch : 1; }

/* Returns the most words of any packet. Every eighth packet of LL128 has only two. */
template <int protocol> BNY_DEVICE constexpr int bny_packet_words_max() {
  return protocol == BNY_PROTOCOL_LL16 ? 3 : 4;
}

template <int protocol> BNY_DEVICE int bny_packet_words(int packet) {
  if (protocol == BNY_PROTOCOL_LL128) return packet % 8 == 7 ? 2 : 4;
  return bny_packet_words_max<protocol>();
}

template <int protocol> BNY_DEVICE int bny_packet_first(int packet) {
  if (protocol == BNY_PROTOCOL_LL128) return packet / 8 * 30 + packet % 8 * 4;
  return packet * bny_packet_words_max<protocol>();
}

/* All lanes of a warp call the functions below. `active` is set in lanes that have a packet. */

template <int protocol>
BNY_DEVICE void bny_packet_store(unsigned char *unit, int packet, const bny_packet &value, uint64_t epoch,
                                 bool active) {
  uint32_t flag = bny_packet_flag(epoch);
  bny_quad quad = {{value.word[0], value.word[1], value.word[2], value.word[3]}};
  if (protocol == BNY_PROTOCOL_LL16) {
    quad.word[3] = flag;
    if (active) bny_store_relaxed_sys_128(unit + 16 * (size_t)packet, quad);
  } else if (protocol == BNY_PROTOCOL_LL128) {
    if (packet % 8 == 7) quad.word[2] = (uint32_t)epoch, quad.word[3] = (uint32_t)(epoch >> 32);
    bny_store_line(active ? unit + 16 * (size_t)packet : nullptr, quad);
  } else {
    if (active) bny_store_quad(unit + 16 * (size_t)packet, quad);
  }
}

/* Starts the load of a packet into *raw if `wanted`. Does not wait for the result. */
template <int protocol>
BNY_DEVICE void bny_packet_poll(const unsigned char *unit, int packet, bool wanted, bny_quad *raw) {
  if (protocol == BNY_PROTOCOL_LL16) {
    bny_poll_128(unit + 16 * (size_t)packet, wanted, raw);
  } else if (protocol == BNY_PROTOCOL_LL128) {
    bny_poll_line(unit + 16 * (size_t)packet, wanted, raw);
  } else if (wanted) {
    *raw = bny_load_quad(unit + 16 * (size_t)packet);
  }
}

/* Returns whether the loaded packet has arrived. LL128: true means that the line has arrived, but parts of the packet
 * may have been loaded earlier. The caller must then load it again. */
template <int protocol>
BNY_DEVICE bool bny_packet_arrived(const bny_quad &raw, int packet, uint64_t epoch, bool wanted) {
  uint32_t flag = bny_packet_flag(epoch);
  if (protocol == BNY_PROTOCOL_LL16) return wanted && raw.word[3] == flag;
  if (protocol == BNY_PROTOCOL_SIMPLE) return wanted;
  bool mine = raw.word[2] == (uint32_t)epoch && raw.word[3] == (uint32_t)(epoch >> 32);
  return bny_warp_ballot(wanted && packet % 8 == 7 && mine) >> (bny_lane() | 7) & 1;
}

BNY_DEVICE bny_packet bny_packet_of(const bny_quad &raw) {
  return {{raw.word[0], raw.word[1], raw.word[2], raw.word[3]}};
}
