/* SPDX-License-Identifier: Apache-2.0
 * A user's kernel: the last step of an attention, with a combine in it. It computes only valid rows. */
#pragma once

#include <math.h>

#include "banyan_device.cuh"
#include "tests/emulate/user_kernel.h"

BNY_KERNEL user_kernel(BNY_PARAMETER(user_kernel_rows, rows), BNY_PARAMETER(banyan_device_combine, combine)) {
  BNY_SHARED_ARRAY(float, memory, USER_KERNEL_DIM_MAX *USER_KERNEL_WARPS);
  float *values = memory + USER_KERNEL_DIM_MAX * bny_warp();
  uint32_t count = rows.tokens * rows.heads, warps = bny_grid_blocks() * (bny_block_threads() / BNY_WARP_LANES);
  banyan_device_run run;
  banyan_device_begin(&run, combine);
  for (uint32_t i = bny_block() * (bny_block_threads() / BNY_WARP_LANES) + bny_warp(); i < count; i += warps) {
    uint32_t row = (i + rows.turn) % count;
    int32_t token = (int32_t)(row / rows.heads);
    if ((rows.how & USER_KERNEL_ASKS) && token >= banyan_device_tokens(&run)) continue;
    const bool lives = banyan_device_is_valid(&run, token);
    bny_warp_sync();
    for (uint32_t c = bny_lane(); c < rows.value_dim; c += BNY_WARP_LANES)
      values[c] = lives ? rows.values[row * rows.value_dim + c] : NAN;
    const int32_t head = (int32_t)(row % rows.heads);
    const float m = lives ? rows.lse[row] : NAN, d = lives && rows.sum ? rows.sum[row] : 1.0f;
    if (!(rows.how & USER_KERNEL_REGISTERS)) {
      banyan_device_push(&run, token, head, m, d, values);
      continue;
    }
    float n[2][4];
    bny_warp_sync();
    for (uint32_t c = 0; c < 8; c++) {
      const uint32_t column = c / 4 * 128 + 4 * bny_lane() + c % 4;
      n[c / 4][c % 4] = column < rows.value_dim ? values[column] : 0.0f;
    }
    banyan_device_push(&run, token, head, m, d, bny_fused_quads<2>{n});
  }
  if (!(rows.how & USER_KERNEL_MERGES)) {
    banyan_device_end(&run);
    return;
  }
  for (uint32_t i = bny_block() * (bny_block_threads() / BNY_WARP_LANES) + bny_warp(); i < count; i += warps)
    banyan_device_merge(&run, (int32_t)(i / rows.heads), (int32_t)(i % rows.heads));
  banyan_device_end_merged(&run);
}
