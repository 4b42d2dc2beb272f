/* SPDX-License-Identifier: Apache-2.0
 *
 * Units on their way: how a lane's words become packets in an inbox, and back. Packet p of a unit is handled by lane
 * p % 32. See program.h for the protocols. */
#ifndef BNY_CUDA_PACKETS_H
#define BNY_CUDA_PACKETS_H

#include "cuda/device.h"
#include "cuda/program.h"

/* Words of a packet at most. */
enum { BNY_PACKET_WORDS = 4 };

struct bny_packet {
  uint32_t word[BNY_PACKET_WORDS];
};

/* Never 0, which is what an arena holds at first; runs 2^32 k, which use halves of even epochs, have a flag that is odd. It
 * comes again after 2^32 runs: who waits for a cell that was not written in all that time would be deceived. */
BNY_DEVICE uint32_t bny_packet_flag(uint64_t epoch) { return (uint32_t)epoch ? (uint32_t)epoch : 1; }

/* Words that a packet has room for: a constant for all packets, of which LL128's every eighth has two. */
template <int protocol> BNY_DEVICE constexpr int bny_packet_words_max() {
  return protocol == BNY_PROTOCOL_LL8 ? 1 : protocol == BNY_PROTOCOL_LL16 ? 3 : 4;
}

template <int protocol> BNY_DEVICE int bny_packet_words(int packet) {
  if (protocol == BNY_PROTOCOL_LL128) return packet % 8 == 7 ? 2 : 4;
  return bny_packet_words_max<protocol>();
}

/* Index of a packet's first word. */
template <int protocol> BNY_DEVICE int bny_packet_first(int packet) {
  if (protocol == BNY_PROTOCOL_LL128) return packet / 8 * 30 + packet % 8 * 4;
  return packet * bny_packet_words_max<protocol>();
}

/* In all functions below all lanes of a warp take part, those that have a packet with `active`. */

template <int protocol>
BNY_DEVICE void bny_packet_store(unsigned char *unit, int packet, const bny_packet &value, uint64_t epoch, bool active) {
  uint32_t flag = bny_packet_flag(epoch);
  bny_quad quad = {{value.word[0], value.word[1], value.word[2], value.word[3]}};
  if (protocol == BNY_PROTOCOL_LL8) {
    if (active) bny_store_relaxed_sys_64((uint64_t *)(unit + 8 * (size_t)packet), value.word[0] | (uint64_t)flag << 32);
  } else if (protocol == BNY_PROTOCOL_LL16) {
    quad.word[3] = flag;
    if (active) bny_store_relaxed_sys_128(unit + 16 * (size_t)packet, quad);
  } else if (protocol == BNY_PROTOCOL_LL128) {
    if (packet % 8 == 7) quad.word[2] = (uint32_t)epoch, quad.word[3] = (uint32_t)(epoch >> 32);
    bny_store_line(active ? unit + 16 * (size_t)packet : nullptr, quad);
  } else {
    if (active) bny_store_quad(unit + 16 * (size_t)packet, quad);
  }
}

/* True if it has arrived; then it is in *value. */
template <int protocol>
BNY_DEVICE bool bny_packet_load(const unsigned char *unit, int packet, uint64_t epoch, bool active, bny_packet *value) {
  uint32_t flag = bny_packet_flag(epoch);
  if (protocol == BNY_PROTOCOL_LL8) {
    if (!active) return false;
    uint64_t cell = bny_load_relaxed_sys_64((const uint64_t *)(unit + 8 * (size_t)packet));
    value->word[0] = (uint32_t)cell;
    return (uint32_t)(cell >> 32) == flag;
  }
  if (protocol == BNY_PROTOCOL_LL128) {
    bny_quad quad = bny_load_line(active ? unit + 16 * (size_t)packet : nullptr);
    bool mine = quad.word[2] == (uint32_t)epoch && quad.word[3] == (uint32_t)(epoch >> 32);
    uint32_t arrived = bny_warp_ballot(active && packet % 8 == 7 && mine);
    if (active)
      for (int i = 0; i < BNY_PACKET_WORDS; i++) value->word[i] = quad.word[i];
    return arrived >> (bny_lane() | 7) & 1;
  }
  if (!active) return false;
  bny_quad quad = protocol == BNY_PROTOCOL_LL16 ? bny_load_relaxed_sys_128(unit + 16 * (size_t)packet)
                                                : bny_load_quad(unit + 16 * (size_t)packet);
  for (int i = 0; i < BNY_PACKET_WORDS; i++) value->word[i] = quad.word[i];
  return protocol == BNY_PROTOCOL_SIMPLE || quad.word[3] == flag;
}

#endif
