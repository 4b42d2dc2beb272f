/* SPDX-License-Identifier: Apache-2.0
 * Kernels of two CTAs that show what the library assumes of memory: a message is complete when its signal is seen, and
 * some stores are never seen torn. Every wait is bounded. */
#pragma once

#include "tests/gpu/words.h"
#include "cuda/device.h"

BNY_DEVICE void words_send(const words_pair &pair, uint32_t role, uint64_t value) {
  if (pair.is_sys)
    bny_store_release_sys_64(pair.to[role], value);
  else
    bny_store_release_gpu_64(pair.to[role], value);
}

/* Waits until the other CTA has sent this value or a larger one. Returns false, and counts a failed wait, if it does
 * not. */
BNY_DEVICE bool words_wait(const words_pair &pair, uint32_t role, uint64_t value) {
  for (uint32_t polls = 0; polls < WORDS_POLLS_MAX; polls++) {
    uint64_t got = pair.is_sys ? bny_load_acquire_sys_64(pair.from[role]) : bny_load_acquire_gpu_64(pair.from[role]);
    if (got >= value) return true;
    bny_pause();
  }
  bny_add_gpu_32(pair.counts, 1);
  return false;
}

/* One warp of each role. The sender makes plain stores and a release; the receiver makes an acquire and plain loads,
 * and must see the complete message. */
BNY_KERNEL words_message(BNY_PARAMETER(words_pair, pair)) {
  const uint32_t role = pair.role + bny_block();
  unsigned char *mine = pair.payload[role] + 16 * bny_lane();
  for (uint32_t i = 1; i <= pair.rounds; i++) {
    if (role == 0) bny_store_quad(mine, {{i, i, i, i}});
    if (role == 0 && pair.fences) bny_fence_alias();
    bny_warp_sync();
    bool there = true;
    if (bny_lane() == 0) {
      if (role == 0) words_send(pair, role, i);
      there = words_wait(pair, role, i);
    }
    if (!bny_warp_all(there)) return;
    if (role == 1) {
      if (pair.fences) bny_fence_alias();
      bny_quad got = bny_load_quad(mine);
      bool same = got.word[0] == i && got.word[1] == i && got.word[2] == i && got.word[3] == i;
      if (!same) bny_add_gpu_32(pair.counts + 1, 1);
      bny_warp_sync();
      if (bny_lane() == 0) words_send(pair, role, i);
    }
  }
}

BNY_DEVICE void words_store(const words_pair &pair, unsigned char *to, uint32_t value) {
  const bny_quad quad = {{value, value, value, value}};
  if (pair.lines)
    bny_store_line(to, quad);
  else
    bny_store_relaxed_sys_128(to, quad);
}

/* Role 0 repeatedly stores 16 bytes per lane, with equal words. Role 1 looks for different words in 16 bytes, and in a
 * line of 8 lanes. It counts a change when it sees a new store. */
BNY_KERNEL words_tear(BNY_PARAMETER(words_pair, pair)) {
  const uint32_t role = pair.role + bny_block();
  unsigned char *mine = pair.payload[role] + 16 * bny_lane();
  if (role == 0) {
    for (uint32_t i = 1; i <= pair.rounds; i++) words_store(pair, mine, i);
    return;
  }
  uint32_t torn = 0, changes = 0, last = 0;
  for (uint32_t polls = 0; polls < WORDS_POLLS_MAX && !bny_warp_all(last == pair.rounds); polls++) {
    bny_quad got = {{0, 0, 0, 0}};
    if (pair.lines)
      bny_poll_line(mine, true, &got);
    else
      bny_poll_128(mine, true, &got);
    const uint32_t first = pair.lines ? bny_shuffle(got.word[0], (int)(bny_lane() / 8 * 8)) : got.word[0];
    torn += got.word[0] != first || got.word[1] != first || got.word[2] != first || got.word[3] != first;
    changes += got.word[0] != last;
    last = got.word[0];
    bny_pause();
  }
  if (last != pair.rounds) bny_add_gpu_32(pair.counts, 1);
  bny_add_gpu_32(pair.counts + 1, torn);
  bny_add_gpu_32(pair.counts + 2, changes);
}
