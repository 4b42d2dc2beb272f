/* SPDX-License-Identifier: Apache-2.0
 * Defines the table of an instruction set. The including file defines first the operations of merge_vector.h,
 * at_least(), and:
 *   KERNELS_NAME, KERNELS_TABLE           "avx2", bny_kernels_avx2
 *   KERNELS_SUPPORTED                     a function of detect.h
 *   KERNELS_PAIRS(make), (read)           bny_pairs_plain_make and bny_pairs_plain_read, or faster ones
 */
#include "merge_exact.h"
#include "merge_template.h"

static int64_t encode_any(const bny_box *box, const banyan_partial *in, int32_t token0, int32_t head0, bny_wire wire,
                          const bny_wire_view *dst) {
  if (wire == BNY_WIRE_EXACT) return exact_encode(box, in, token0, head0, dst);
  return encode(box, in, token0, head0, wire, dst);
}

static void merge_any(const bny_box *box, bny_wire wire, int count, const bny_wire_view *sources, bool round_nodes,
                      const bny_wire_view *dst) {
  if (wire == BNY_WIRE_EXACT)
    exact_merge(box, count, sources, dst);
  else
    merge(box, wire, count, sources, round_nodes, dst);
}

static int64_t merge_finish_any(const bny_box *box, bny_wire wire, int count, const bny_wire_view *sources,
                                bool round_nodes, const banyan_partial *out, int32_t token0, int32_t head0) {
  if (wire == BNY_WIRE_EXACT) return exact_finish(box, count, sources, out, token0, head0);
  return merge_finish(box, wire, count, sources, round_nodes, out, token0, head0);
}

static uint64_t sum_encode_any(const void *from, banyan_dtype dtype, int elements, bny_wire wire, void *to) {
  if (wire != BNY_WIRE_EXACT) return sum_encode(from, dtype, elements, wire, to);
  exact_sum_encode(from, dtype, elements, to);
  return 0;
}

static void sum_any(int count, const void *const *sources, int elements, bny_wire wire, bool round_nodes, bool is_wire,
                    void *to, banyan_dtype dtype) {
  if (wire == BNY_WIRE_EXACT)
    exact_sum_all(count, sources, elements, is_wire, to, dtype);
  else
    sum(count, sources, elements, wire, round_nodes, is_wire, to, dtype);
}

extern const bny_kernels KERNELS_TABLE;
const bny_kernels KERNELS_TABLE = {
    .name = KERNELS_NAME,
    .supported = KERNELS_SUPPORTED,
    .encode = encode_any,
    .merge = merge_any,
    .merge_finish = merge_finish_any,
    .sum_encode = sum_encode_any,
    .sum = sum_any,
    .at_least = at_least,
    .pairs_make = KERNELS_PAIRS(make),
    .pairs_read = KERNELS_PAIRS(read),
    .exact_clear = clear_row,
    .exact_deposit = deposit_row,
    .exact_add = add_row,
};
