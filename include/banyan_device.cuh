/* SPDX-License-Identifier: Apache-2.0
 *
 * A combine inside your attention kernel. The epilogue of the kernel pushes the partial of each row to the other ranks
 * as soon as the row is finished. The last blocks merge what all ranks have pushed and write the result. There is no
 * second launch, and the exchange overlaps with attention that is still running.
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
 * - Grids and blocks have one dimension, and blocks consist of whole warps. If a warp calls a function, all of its 32
 *   lanes call it with the same arguments. All warps begin; any of them may push.
 * - On every rank, each of the call's tokens x heads rows is pushed exactly once, in any order, also by ranks with
 *   empty shards. Coordinates are those of the whole call. banyan_op_device() sets the meaning of a row: normalised or
 *   not, lse or m and d, base, empty rows. Values are f32.
 * - With desc.valid, one kernel serves any number of tokens up to the call's and any selection of rows, also in a
 *   replayed graph. Its arrays are in device memory. They are read from banyan_device_begin() on, and must not change
 *   until the kernel has ended. Rows past the tokens of the run are not part of it: their pushes do nothing, and no
 *   result is written for them. A masked row is pushed like any other. Its statistics and values are not read, and
 *   peers receive it as a row without keys.
 * - A block pushes all its rows before banyan_device_end(), which may wait for other ranks. There it must not hold
 *   anything that another block of the grid waits for.
 * - The result goes to the output of banyan_op_device(). Do not read it before the kernel has ended.
 * - The kernel can be captured in a graph and replayed. Kernels of a communicator run one after another, in the same
 *   order on every rank. A kernel that is launched early (programmatic dependent launch) may call banyan_device_begin()
 *   at once, which waits for earlier kernels.
 * - A fault ends all waiting: a rank that is missing for longer than the communicator's deadline, an abort, bad data, a
 *   different number of tokens on another rank, or wrong starts of sequences. The result is then not written, and
 *   banyan_comm_status() reports the fault.
 *
 * Needs sm_80 or later and C++17. Uses 4 bytes of static shared memory. */
#ifndef BANYAN_DEVICE_CUH
#define BANYAN_DEVICE_CUH

#include "banyan.h"
#include "cuda/fused.h"

/* A parameter of your kernel that the host fills in. It is plain data, and valid as long as the communicator. */
typedef bny_device_combine banyan_device_combine;

/* The state of a run, one for each thread. */
typedef bny_fused_run banyan_device_run;

/* Begins a run. Each warp calls it. `combine` must be the kernel's parameter itself, or remain valid during the run. */
BNY_DEVICE void banyan_device_begin(banyan_device_run *run, const banyan_device_combine &combine) {
  bny_fused_begin(run, combine);
}

/* Sends row (token, head) to the other ranks, with statistics m and d, or lse and 1. All lanes of a warp call it. It
 * waits only for ranks that are a whole run behind. `values` has one of two forms:
 *
 * - a pointer to value_dim floats in shared or global memory, written by lanes of this warp or before a barrier;
 * - a function object that all lanes call together, each with its own column in [0, value_dim), so that it may
 *   shuffle. */
template <class Values>
BNY_DEVICE void banyan_device_push(banyan_device_run *run, int32_t token, int32_t head, float m, float d,
                                   const Values &values) {
  bny_fused_push(run, run->combine->call.in, token, head, m, d, values);
}

/* Returns the number of tokens of the run: that of the call, or *desc.valid->tokens. Call it after
 * banyan_device_begin(). */
BNY_DEVICE int32_t banyan_device_tokens(const banyan_device_run *run) { return bny_fused_tokens(*run); }

/* Returns whether the token is part of the run and its rows are valid on this rank. All lanes of a warp call it. A
 * kernel need not compute other rows. */
BNY_DEVICE bool banyan_device_is_valid(const banyan_device_run *run, int32_t token) {
  return bny_fused_is_valid(*run, token);
}

/* Ends a run: merges the rows that all ranks have pushed, and writes the result. All threads of each block call it. */
BNY_DEVICE void banyan_device_end(banyan_device_run *run) { bny_fused_end(run); }

/* Waits until all ranks have pushed row (token, head), which this rank delivers, and merges it into the result. All
 * lanes of a warp call it. Use it if all blocks of the kernel run at once, so that merging need not wait for
 * banyan_device_end(). Merge all rows this way, and call banyan_device_end_merged() at the end. */
BNY_DEVICE void banyan_device_merge(banyan_device_run *run, int32_t token, int32_t head) {
  bny_fused_merge(run, token, head);
}
BNY_DEVICE void banyan_device_end_merged(banyan_device_run *run) { (void)bny_fused_arrive(run); }

#endif
