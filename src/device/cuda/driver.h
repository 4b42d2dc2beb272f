/* SPDX-License-Identifier: Apache-2.0
 * The CUDA driver. It is loaded when a device is opened, so that one build runs on machines with and without a GPU. All
 * functions come from libcuda.so.1. */
#pragma once

#include "banyan.h"
#include "base/cuda_driver.h"

/* Checks that the driver can load the toolkit's images. It must have the same major version of CUDA or a newer one. */
banyan_status bny_cuda_driver_check_version(int driver, int toolkit);

/* Loads and initialises the driver. `library` NULL means libcuda.so.1. A failure leaves nothing to free. */
banyan_status bny_cuda_driver_load(const char *library, bny_cuda_driver *driver);
void bny_cuda_driver_unload(bny_cuda_driver *driver);

/* Returns BANYAN_OK for CUDA_SUCCESS. For other results it returns the matching status, and sets the error text to the
 * attempted action, ": " and the driver's text. */
banyan_status bny_cuda_check(const bny_cuda_driver *driver, CUresult result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
