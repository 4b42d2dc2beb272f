/* SPDX-License-Identifier: Apache-2.0
 * The warpgroup functions of device.h on a CPU. A warp multiplies its rows at the call and not at the wait. */
#pragma once

struct bny_group_operand {
  const unsigned char *at;
  uint32_t apart;
};
BNY_DEVICE bny_group_operand bny_group_operand_of(const void *at, uint32_t apart) {
  return {(const unsigned char *)at, apart};
}
BNY_DEVICE bny_group_operand bny_group_operand_add(bny_group_operand operand, uint32_t bytes) {
  return {operand.at + bytes, operand.apart};
}

/* Returns an element of a panel. `from` is an address in row 0. */
template <typename Value>
BNY_DEVICE float bny_emulated_panel(const void *from, uint32_t row, uint32_t column, Value value) {
  const uintptr_t at = (uintptr_t)from, byte = at % 128 + 2 * column;
  uint16_t bits;
  if (at % 1024 >= 128) bny_emulated_fail("an operand is not in the first row of eight of a panel");
  memcpy(&bits, (const unsigned char *)(at - at % 128 + 128 * row + ((byte / 16) ^ (row & 7)) * 16 + byte % 16),
         sizeof bits);
  return value(bits);
}

BNY_DEVICE void bny_emulated_group(void) {
  if (bny_block_threads() % (4 * BNY_WARP_LANES) != 0) bny_emulated_fail("a block is not made of whole warpgroups");
}

template <typename Value>
BNY_DEVICE void bny_emulated_group_logits(float *d, bny_group_operand a, bny_group_operand b, bool add, Value value) {
  bny_emulated_group();
  bny_emulated_exchange(BNY_EMULATED_GROUP, nullptr, 0);
  const uint32_t row = bny_warp() % 4 * 16 + bny_lane() / 4;
  float left[2][16];
  for (uint32_t i = 0; i < 32; i++) left[i / 16][i % 16] = bny_emulated_panel(a.at, row + i / 16 * 8, i % 16, value);
  for (uint32_t i = 0; i < 32; i++) {
    const uint32_t column = i / 4 * 8 + bny_lane() % 4 * 2 + i % 2;
    float right[16];
    for (uint32_t k = 0; k < 16; k++) right[k] = bny_emulated_panel(b.at, column, k, value);
    d[i] = bny_emulated_sum(add ? d[i] : 0, left[i / 2 % 2], right);
  }
}

template <typename Value>
BNY_DEVICE void bny_emulated_group_values(float *d, const uint32_t *a, bny_group_operand b, Value value) {
  bny_emulated_group();
  const unsigned char(*all)[BNY_EMULATED_EXCHANGE_BYTES] = bny_emulated_exchange(BNY_EMULATED_GROUP, a, 16);
  float left[2][16];
  for (uint32_t i = 0; i < 32; i++) {
    const uint32_t k = i % 16;
    uint16_t bits;
    memcpy(&bits, all[bny_lane() / 4 * 4 + k % 8 / 2] + (i / 16 + k / 8 * 2) * 4 + k % 2 * 2, sizeof bits);
    left[i / 16][k] = value(bits);
  }
  for (uint32_t i = 0; i < 128; i++) {
    const uint32_t column = i / 4 * 8 + bny_lane() % 4 * 2 + i % 2;
    const unsigned char *panel = b.at + column / 64 * b.apart;
    float right[16];
    for (uint32_t k = 0; k < 16; k++) right[k] = bny_emulated_panel(panel, k, column % 64, value);
    d[i] = bny_emulated_sum(d[i], left[i / 2 % 2], right);
  }
}

BNY_DEVICE void bny_group_logits_bf16(float *d, bny_group_operand a, bny_group_operand b, bool add) {
  bny_emulated_group_logits(d, a, b, add, bny_float_of_bf16);
}
BNY_DEVICE void bny_group_logits_f16(float *d, bny_group_operand a, bny_group_operand b, bool add) {
  bny_emulated_group_logits(d, a, b, add, bny_float_of_f16);
}
BNY_DEVICE void bny_group_values_bf16(float *d, const uint32_t *a, bny_group_operand b) {
  bny_emulated_group_values(d, a, b, bny_float_of_bf16);
}
BNY_DEVICE void bny_group_values_f16(float *d, const uint32_t *a, bny_group_operand b) {
  bny_emulated_group_values(d, a, b, bny_float_of_f16);
}
BNY_DEVICE void bny_group_begin(void) {}
BNY_DEVICE void bny_group_commit(void) {}
template <int groups> BNY_DEVICE void bny_group_wait(void) { bny_emulated_yield(); }
