/* SPDX-License-Identifier: Apache-2.0
 *
 * A combine inside your attention kernel. The kernel's epilogue pushes the partial of each row to the other ranks as
 * soon as it is finished. Its last blocks merge what all ranks have pushed and write the result. There is no second
 * launch, and the exchange overlaps with the attention that is still running.
 *
 *   __global__ void attention(..., const __grid_constant__ banyan_device_combine combine) {
 *     banyan_device_run run;
 *     banyan_device_begin(&run, combine);                     each warp, early
 *     for each row that this warp finishes {
 *       ... m, d, and the numerators in `row`, shared memory
 *       banyan_device_push(&run, token, head, m, d, row);     each row once, by one warp of the grid
 *     }
 *     banyan_device_end(&run);                                all threads of each block, once
 *   }
 *
 * The rules
 * - Grids and blocks have one dimension, and blocks consist of whole warps. Where a warp calls a function, all of its
 *   32 lanes call it with the same arguments. All warps begin; any of them may push.
 * - Each of the call's tokens x heads rows is pushed exactly once on every rank, also those of empty shards, in any
 *   order. Coordinates are those of the whole call. banyan_op_device() says what a row means (normalised or not, lse or
 *   m and d, base, empty rows); values are f32 here.
 * - With desc.valid a kernel serves any number of tokens up to the call's, and any selection of rows, also when a graph
 *   is replayed. Its arrays are in device memory, are read from banyan_device_begin() on, and must not change before
 *   the kernel has ended. Rows past the tokens of the run are not part of it: pushes of them do nothing, and nothing of
 *   the result is written for them. A masked row is pushed like any other. Its statistics and values are then not read,
 *   and peers get it as a row without keys.
 * - A block pushes all its rows before banyan_device_end(), where it may wait for other ranks. It must not hold
 *   anything there that another block of the grid waits for.
 * - The result goes to the output of banyan_op_device(). Nothing of it may be read before the kernel has ended.
 * - The kernel can be captured in a graph and replayed. Kernels of a communicator run one after another, on every rank
 *   in the same order. A kernel that is launched early (programmatic dependent launch) may call banyan_device_begin()
 *   at once: it waits for the kernels before.
 * - Faults (a rank that is missing for longer than the communicator's deadline, an abort, bad data, another number of
 *   tokens on another rank, starts of sequences that are wrong) end all waiting. The result is then not written, and
 *   banyan_comm_status() reports the fault.
 *
 * Needs sm_80 or later and C++17. Uses 4 bytes of static shared memory. */
#ifndef BANYAN_DEVICE_CUH
#define BANYAN_DEVICE_CUH

#include "banyan.h"
#include "cuda/fused.h"

/* A parameter of your kernel, filled in by the host: plain data, valid as long as the communicator. */
typedef bny_device_combine banyan_device_combine;

/* The state of a run, one for each thread. */
typedef bny_fused_run banyan_device_run;

/* Begins a run; each warp calls it. `combine` must be the kernel's parameter itself, or remain valid during the run. */
BNY_DEVICE void banyan_device_begin(banyan_device_run *run, const banyan_device_combine &combine) {
  bny_fused_begin(run, combine);
}

/* Sends row (token, head) with statistics m and d, or lse and 1, to the other ranks; all lanes of a warp call it.
 * `values` is a pointer to value_dim floats in shared or global memory, written by lanes of this warp or before a
 * barrier; or a function object that all lanes call together, each with a column in [0, value_dim) of its own, so that
 * it may shuffle. Waits only for ranks that are a whole run behind. */
template <class Values>
BNY_DEVICE void banyan_device_push(banyan_device_run *run, int32_t token, int32_t head, float m, float d,
                                   const Values &values) {
  bny_fused_push(run, token, head, m, d, values);
}

/* Returns the number of tokens of the run: that of the call, or *desc.valid->tokens. After banyan_device_begin(). */
BNY_DEVICE int32_t banyan_device_tokens(const banyan_device_run *run) { return bny_fused_tokens(*run); }

/* Returns whether the run has the token and its rows are valid on this rank; all lanes of a warp call it. A kernel need
 * not compute other rows. */
BNY_DEVICE bool banyan_device_is_valid(const banyan_device_run *run, int32_t token) {
  return bny_fused_is_valid(*run, token);
}

/* Ends a run: merges what all ranks have pushed and writes the result. All threads of each block call it. */
BNY_DEVICE void banyan_device_end(banyan_device_run *run) { bny_fused_end(run); }

/* Waits until all ranks have pushed row (token, head), which this rank delivers, and merges it into the result; all
 * lanes of a warp call it. It is for kernels whose blocks all run at once, and which then need not leave merging to
 * banyan_device_end(). Merge all rows this way, and end with banyan_device_end_merged(). */
BNY_DEVICE void banyan_device_merge(banyan_device_run *run, int32_t token, int32_t head) {
  bny_fused_merge(run, token, head);
}
BNY_DEVICE void banyan_device_end_merged(banyan_device_run *run) { (void)bny_fused_arrive(run); }

#endif
