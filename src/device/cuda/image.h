/* SPDX-License-Identifier: Apache-2.0
 * The kernels of this build in the form that the driver takes: a fat binary for all architectures. */
#ifndef BNY_DEVICE_CUDA_IMAGE_H
#define BNY_DEVICE_CUDA_IMAGE_H

#include <stddef.h>

extern const unsigned char bny_cuda_image[];
extern const size_t bny_cuda_image_bytes; /* 0: built without nvcc */

#endif
