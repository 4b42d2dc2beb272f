/* SPDX-License-Identifier: Apache-2.0
 * The functions of a warp, a block and a cluster in PTX. Layouts of matrices follow the formulas of the PTX ISA,
 * sections "Matrix Fragments for mma.m16n8k16 with floating point type" and "ldmatrix". */
#include <cmath>

#include "cuda/device.h"
#include "tests/ptx/ptx.hh"

namespace ptx {

namespace {

using deposits = const unsigned char (*)[BNY_EMULATED_EXCHANGE_BYTES];

void check_members(thread &self, const instruction *i, int k) {
  if (get<uint32_t>(self, i, k) != UINT32_MAX) fail(self, i, "a member mask that leaves out lanes");
}

/* Runs d|p = value, b, c, members. The result is the value of lane j of the segment that c defines, unless j is beyond
 * it. */
template <bool is_index> const instruction *shuffle(thread &self, const instruction *i) {
  uint32_t value = get<uint32_t>(self, i, 2), b = get<uint32_t>(self, i, 3) & 31, c = get<uint32_t>(self, i, 4);
  check_members(self, i, 5);
  uint32_t segment = c >> 8 & 31, lane = bny_lane(), first = lane & segment, last = first | (c & 31 & ~segment);
  uint32_t from = is_index ? first | (b & ~segment) : lane ^ b;
  deposits all = bny_emulated_exchange(BNY_EMULATED_SHUFFLE, &value, sizeof value);
  bool is_there = from <= last;
  memcpy(&value, all[is_there ? from : lane], sizeof value);
  put(self, i, 0, value);
  put(self, i, 1, is_there);
  return i + 1;
}

uint32_t ballot(thread &self, const instruction *i) {
  check_members(self, i, 2);
  return bny_warp_ballot(get<bool>(self, i, 1));
}

const instruction *largest(thread &self, const instruction *i) {
  check_members(self, i, 2);
  put(self, i, 0, bny_warp_max_32(get<uint32_t>(self, i, 1)));
  return i + 1;
}

template <bool is_bf16> float half(const uint32_t *registers, int e) {
  uint16_t bits = static_cast<uint16_t>(registers[e / 2] >> 16 * (e & 1));
  return is_bf16 ? bny_float_of_bf16(bits) : bny_float_of_f16(bits);
}

/* Computes d[4] = a[4] b[2] + c[4]. A thread computes the elements of rows g and g + 8, columns 2t and 2t + 1. */
template <bool is_bf16> const instruction *multiply(thread &self, const instruction *i) {
  uint32_t mine[6];
  for (int k = 0; k < 6; k++) mine[k] = get<uint32_t>(self, i, 4 + k);
  deposits all = bny_emulated_exchange(aligned(BNY_EMULATED_MMA, i), mine, sizeof mine);
  uint32_t group = bny_lane() >> 2, in_group = bny_lane() % 4;
  float rows[2][16], columns[2][16];
  for (uint32_t lane = 0; lane < 32; lane++) {
    uint32_t theirs[6], its_group = lane >> 2, its_place = lane % 4;
    if (its_group != group && its_group != 2 * in_group && its_group != 2 * in_group + 1) continue;
    memcpy(theirs, all[lane], sizeof theirs);
    for (int e = 0; its_group == group && e < 8; e++) {
      uint32_t row = (0 <= e && e < 2) || (4 <= e && e < 6) ? its_group : its_group + 8;
      uint32_t column = its_place * 2 + (e & 1) + (e < 4 ? 0 : 8);
      rows[row - group ? 1 : 0][column] = half<is_bf16>(theirs, e);
    }
    for (int e = 0; its_group / 2 == in_group && e < 4; e++) {
      uint32_t row = its_place * 2 + (e & 1) + (e < 2 ? 0 : 8), column = its_group;
      columns[column & 1][row] = half<is_bf16>(theirs + 4, e);
    }
  }
  for (int e = 0; e < 4; e++) {
    if (bny_emulated_truncates()) {
      put(self, i, e, bny_sum_truncated(get<float>(self, i, 10 + e), rows[e / 2], columns[e & 1]));
      continue;
    }
    double sum = get<float>(self, i, 10 + e);
    for (int k = 0; k < 16; k++) sum += static_cast<double>(rows[e / 2][k]) * static_cast<double>(columns[e & 1][k]);
    put(self, i, e, static_cast<float>(sum));
  }
  return i + 1;
}

/* Loads four matrices. Lanes 8n .. 8n + 7 hold the addresses of the rows of matrix n. */
template <bool is_transposed> const instruction *load_matrices(thread &self, const instruction *i) {
  uint32_t place;
  memcpy(&place, self.frame + (i->at[4] & ~SHORT_ADDRESS), sizeof place);
  const unsigned char *row = self.shared + place + i->offset[0];
  if (place % 16) fail(self, i, "an access is not aligned");
  if (!is_shared(self, row, 16)) fail(self, i, "an address beyond the block's shared memory");
  deposits all = bny_emulated_exchange(aligned(BNY_EMULATED_MATRIX, i), &row, sizeof row);
  uint32_t lane = bny_lane();
  for (uint32_t n = 0; n < 4; n++) {
    uint16_t matrix[8][8];
    for (uint32_t r = 0; r < 8; r++) {
      const unsigned char *from;
      memcpy(&from, all[8 * n + r], sizeof from);
      memcpy(matrix[r], from, 16);
    }
    uint32_t r = lane / 4, c = lane % 4 * 2;
    uint32_t low = is_transposed ? matrix[c][r] : matrix[r][c],
             high = is_transposed ? matrix[c + 1][r] : matrix[r][c + 1];
    put(self, i, static_cast<int>(n), low | high << 16);
  }
  return i + 1;
}

/* bar.sync is barrier.sync.aligned, so the lanes of a warp meet. */
const instruction *block_barrier(thread &self, const instruction *i) {
  if (get<uint32_t>(self, i, 0) != 0) fail(self, i, "a barrier that is not 0");
  bny_emulated_sync();
  bny_emulated_exchange(aligned(BNY_EMULATED_SYNC, i), nullptr, 0);
  bny_block_sync();
  return i + 1;
}

} // namespace

const row warp_rows[] = {
    {"shfl.sync.idx.b32", "4p4444", shuffle<true>, true},
    {"shfl.sync.bfly.b32", "4p4444", shuffle<false>, true},
    {"redux.sync.max.u32", "444", largest, true},
    ROW("vote.sync.any.pred", "pp4", put(self, i, 0, ballot(self, i) != 0))
        ROW("vote.sync.all.pred", "pp4", put(self, i, 0, ballot(self, i) == UINT32_MAX))
            ROW("vote.sync.ballot.b32", "4p4", put(self, i, 0, ballot(self, i))) ROW(
                "bar.warp.sync", "4", check_members(self, i, 0); bny_warp_sync()){"bar.sync", "4", block_barrier, true},
    ROW("barrier.sync", "44", bny_named_sync(get<int>(self, i, 0), get<int>(self, i, 1)))
        ROW("barrier.arrive", "44", bny_named_arrive(get<int>(self, i, 0), get<int>(self, i, 1))) ROW(
            "barrier.cluster.arrive.release.aligned", "", if (self.in_cluster_barrier) fail(self, i, "arrives twice");
            self.in_cluster_barrier = true; bny_emulated_settle())
            ROW("barrier.cluster.wait.acquire.aligned", "",
                if (!self.in_cluster_barrier) fail(self, i, "waits without arriving");
                self.in_cluster_barrier = false; bny_cluster_sync()){
                "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "44444444444444", multiply<true>, true},
    {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "44444444444444", multiply<false>, true},
    {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", "4444a", load_matrices<false>, true},
    {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "4444a", load_matrices<true>, true},
    {nullptr, nullptr, nullptr, false}};

} // namespace ptx
