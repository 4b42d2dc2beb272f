/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA's driver, loaded when a device is opened: one build runs on machines with and without a GPU. Functions come from
 * libcuda.so.1 alone. */
#ifndef BNY_DEVICE_CUDA_DRIVER_H
#define BNY_DEVICE_CUDA_DRIVER_H

#include "banyan.h"
#include "base/cuda_driver.h"

/* Images of a toolkit load on drivers of the same major version of CUDA and on all newer ones. */
banyan_status bny_cuda_driver_check_version(int driver, int toolkit);

/* Loads and initialises the driver; `library` NULL: libcuda.so.1. Nothing is to be freed on failure. */
banyan_status bny_cuda_driver_load(const char *library, bny_cuda_driver *driver);
void bny_cuda_driver_unload(bny_cuda_driver *driver);

/* Returns BANYAN_OK for CUDA_SUCCESS. Otherwise sets the text of a driver failure, which is what was tried, ": ", and
 * the driver's text, and returns the status that fits the result. */
banyan_status bny_cuda_check(const bny_cuda_driver *driver, CUresult result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
