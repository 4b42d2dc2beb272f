/* SPDX-License-Identifier: Apache-2.0
 * Kernels that measure the device properties that predictions assume. Each repeats one operation a given number of
 * times, and the host times the launch. Two launches with different counts give the cost of one operation. Every wait
 * is bounded. */
#pragma once

#include "tests/gpu/calibrate.h"
#include "cuda/device.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

BNY_KERNEL calibrate_empty(uint32_t *unused) { (void)unused; }

/* Follows a ring in which each element holds the index of the next. */
BNY_KERNEL calibrate_chase(const uint64_t *ring, uint32_t count, uint64_t *end) {
  uint64_t at = 0;
  if (bny_thread() != 0) return;
  for (uint32_t i = 0; i < count; i++) at = bny_load_relaxed_gpu_64(ring + at);
  *end = at;
}

/* Repeats a store and a fence, so that each store is visible before the next. */
BNY_KERNEL calibrate_fence(uint64_t *word, uint32_t count, uint32_t is_sys) {
  if (bny_thread() != 0) return;
  for (uint32_t i = 0; i < count; i++) {
    bny_store_relaxed_gpu_64(word, i);
    if (is_sys)
      bny_fence_sys();
    else
      bny_fence_gpu();
  }
}

/* Reads all memory once. The sum is never stored, because no contents satisfy the condition. */
BNY_KERNEL calibrate_read(const unsigned char *from, uint64_t quads, uint32_t *sum) {
  enum { AT_ONCE = 8 };
  uint64_t threads = (uint64_t)bny_grid_blocks() * bny_block_threads();
  uint32_t all = 0;
  for (uint64_t i = (uint64_t)bny_block() * bny_block_threads() + bny_thread(); i + (AT_ONCE - 1) * threads < quads;
       i += AT_ONCE * threads) {
    bny_quad got[AT_ONCE];
    BNY_UNROLL for (int j = 0; j < AT_ONCE; j++) got[j] = bny_load_quad_once(from + 16 * (i + (uint64_t)j * threads));
    BNY_UNROLL for (int j = 0; j < AT_ONCE; j++) all |=
        got[j].word[0] | got[j].word[1] | got[j].word[2] | got[j].word[3];
  }
  if (all != 0) *sum = all;
}

/* ---- words between two CTAs -------------------------------------------------------------------------------------- */

BNY_DEVICE void calibrate_send(const calibrate_pair &pair, uint32_t role, uint64_t value) {
  if (pair.is_sys)
    bny_store_release_sys_64(pair.to[role], value);
  else
    bny_store_release_gpu_64(pair.to[role], value);
}

/* Waits until the other CTA has sent this value or a larger one. Returns false, and counts a failed wait, if it does
 * not. */
BNY_DEVICE bool calibrate_wait(const calibrate_pair &pair, uint32_t role, uint64_t value) {
  for (uint32_t polls = 0; polls < CALIBRATE_POLLS_MAX; polls++) {
    uint64_t got = pair.is_sys ? bny_load_acquire_sys_64(pair.from[role]) : bny_load_acquire_gpu_64(pair.from[role]);
    if (got >= value) return true;
    bny_pause();
  }
  bny_add_gpu_32(pair.counts, 1);
  return false;
}

/* Sends a word to the other CTA and back, repeatedly. */
BNY_KERNEL calibrate_ping(BNY_PARAMETER(calibrate_pair, pair)) {
  const uint32_t role = pair.role + bny_block();
  if (bny_thread() != 0) return;
  for (uint64_t i = 1; i <= pair.rounds; i++) {
    if (role == 0) calibrate_send(pair, role, i);
    if (!calibrate_wait(pair, role, i)) return;
    if (role == 1) calibrate_send(pair, role, i);
  }
}

/* One warp of each role. The sender makes plain stores and a release; the receiver makes an acquire and plain loads,
 * and must see the complete message. */
BNY_KERNEL calibrate_message(BNY_PARAMETER(calibrate_pair, pair)) {
  const uint32_t role = pair.role + bny_block();
  unsigned char *mine = pair.payload[role] + 16 * bny_lane();
  for (uint32_t i = 1; i <= pair.rounds; i++) {
    if (role == 0) bny_store_quad(mine, {{i, i, i, i}});
    if (role == 0 && pair.fences) bny_fence_alias();
    bny_warp_sync();
    bool there = true;
    if (bny_lane() == 0) {
      if (role == 0) calibrate_send(pair, role, i);
      there = calibrate_wait(pair, role, i);
    }
    if (!bny_warp_all(there)) return;
    if (role == 1) {
      if (pair.fences) bny_fence_alias();
      bny_quad got = bny_load_quad(mine);
      bool same = got.word[0] == i && got.word[1] == i && got.word[2] == i && got.word[3] == i;
      if (!same) bny_add_gpu_32(pair.counts + 1, 1);
      bny_warp_sync();
      if (bny_lane() == 0) calibrate_send(pair, role, i);
    }
  }
}

BNY_DEVICE void calibrate_store(uint32_t form, unsigned char *to, uint32_t value) {
  const bny_quad quad = {{value, value, value, value}};
  if (form == CALIBRATE_LINE)
    bny_store_line(to, quad);
  else if (form == CALIBRATE_WORD_128)
    bny_store_relaxed_sys_128(to, quad);
  else
    bny_store_quad(to, quad);
}

/* Role 0 repeatedly stores 16 bytes per lane, with equal words. Role 1 looks for different words in 16 bytes, and in a
 * line of 8 lanes. It counts a change when it sees a new store. */
BNY_KERNEL calibrate_tear(BNY_PARAMETER(calibrate_pair, pair)) {
  const uint32_t role = pair.role + bny_block();
  unsigned char *mine = pair.payload[role] + 16 * bny_lane();
  if (role == 0) {
    for (uint32_t i = 1; i <= pair.rounds; i++) calibrate_store(pair.form, mine, i);
    return;
  }
  uint32_t torn = 0, changes = 0, last = 0;
  for (uint32_t polls = 0; polls < CALIBRATE_POLLS_MAX && !bny_warp_all(last == pair.rounds); polls++) {
    bny_quad got = {{0, 0, 0, 0}};
    if (pair.form == CALIBRATE_LINE)
      bny_poll_line(mine, true, &got);
    else
      bny_poll_128(mine, true, &got);
    const uint32_t first =
        pair.form == CALIBRATE_LINE ? bny_shuffle(got.word[0], (int)(bny_lane() / 8 * 8)) : got.word[0];
    torn += got.word[0] != first || got.word[1] != first || got.word[2] != first || got.word[3] != first;
    changes += got.word[0] != last;
    last = got.word[0];
    bny_pause();
  }
  if (last != pair.rounds) bny_add_gpu_32(pair.counts, 1);
  bny_add_gpu_32(pair.counts + 1, torn);
  bny_add_gpu_32(pair.counts + 2, changes);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* Measures steps of the clock: the smallest, the largest, their number, and the total time. */
BNY_KERNEL calibrate_clock(uint64_t *out, uint32_t count) {
  if (bny_thread() != 0) return;
  uint64_t first = bny_clock_ns(), last = first, least = UINT64_MAX, most = 0, steps = 0;
  for (uint32_t i = 0; i < count; i++) {
    uint64_t now = bny_clock_ns(), step = now - last;
    if (step == 0) continue;
    least = step < least ? step : least;
    most = step > most ? step : most;
    steps++;
    last = now;
  }
  out[0] = least;
  out[1] = most;
  out[2] = steps;
  out[3] = last - first;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

BNY_KERNEL calibrate_numbers(const float *in, float *powers, float *logarithms, uint32_t count) {
  for (uint32_t i = bny_block() * bny_block_threads() + bny_thread(); i < count;
       i += bny_grid_blocks() * bny_block_threads()) {
    powers[i] = bny_exp2_fast(in[i]);
    logarithms[i] = bny_log2_fast(in[i] + 128.0f);
  }
}

/* One warp computes d += a b, `steps` times with the same fragments: 4 words of a, 2 of b and 4 of d per lane. */
BNY_KERNEL calibrate_mma(const uint32_t *a, const uint32_t *b, float *d, uint32_t steps) {
  float sum[4];
  BNY_UNROLL for (int i = 0; i < 4; i++) sum[i] = d[4 * bny_lane() + i];
  BNY_ROLLED for (uint32_t step = 0; step < steps; step++) bny_mma_bf16(sum, a + 4 * bny_lane(), b + 2 * bny_lane());
  BNY_UNROLL for (int i = 0; i < 4; i++) d[4 * bny_lane() + i] = sum[i];
}
