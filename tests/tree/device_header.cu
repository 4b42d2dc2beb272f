/* SPDX-License-Identifier: Apache-2.0
 * A user's kernel with banyan_device.cuh, which check-device-header compiles. It is the last step of an attention
 * kernel. Each warp has a row with its values in shared memory. */
#include "banyan_device.cuh"

__global__ void attention(const float *m, const float *d, const float *n, int heads, int rows, int value_dim,
                          const __grid_constant__ banyan_device_combine combine) {
  extern __shared__ float memory[];
  float *row = memory + (threadIdx.x / 32) * value_dim;
  int warps = gridDim.x * (blockDim.x / 32), first = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  banyan_device_run run;
  banyan_device_begin(&run, combine);
  for (int r = first; r < rows; r += warps) {
    if (r / heads >= banyan_device_tokens(&run)) break;
    if (banyan_device_is_valid(&run, r / heads))
      for (int i = threadIdx.x % 32; i < value_dim; i += 32) row[i] = n[(size_t)r * value_dim + i];
    banyan_device_push(&run, r / heads, r % heads, m[r], d[r], row);
  }
  banyan_device_end(&run);
}
