/* SPDX-License-Identifier: Apache-2.0
 * Opens a CUDA device. Every build has it; a build without CUDA reports what is missing. */
#pragma once

#include "device/device.h"

banyan_status bny_cuda_open(const bny_device_choice *choice, bny_device **device);
