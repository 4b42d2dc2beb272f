/* SPDX-License-Identifier: Apache-2.0
 * The layout of a row of BANYAN_KV_ROWS_FLASHMLA_FP8, in bytes and elements, for the host and for devices. */
#pragma once

enum {
  BNY_FLASHMLA_CODES = 512, /* E4M3 codes: the values, which are also the first elements of the key */
  BNY_FLASHMLA_GROUP = 128, /* codes of one f32 scale */
  BNY_FLASHMLA_ROPE = 64,   /* BF16 elements: the last elements of the key */
  BNY_FLASHMLA_DIM = BNY_FLASHMLA_CODES + BNY_FLASHMLA_ROPE,
  BNY_FLASHMLA_ROPE_AT = BNY_FLASHMLA_CODES + 4 * BNY_FLASHMLA_CODES / BNY_FLASHMLA_GROUP,
  BNY_FLASHMLA_BYTES = BNY_FLASHMLA_ROPE_AT + 2 * BNY_FLASHMLA_ROPE
};
