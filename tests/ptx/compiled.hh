/* SPDX-License-Identifier: Apache-2.0
 * Runs kernels as nvcc compiled them, for tests that launch kernels on the emulator. The environment variable
 * EMULATE_PTX names the PTX files of kernels, separated by colons. Each launch appends the kernel's name to the file
 * EMULATE_PTX_NOTES, if it is set. */
#pragma once

#include <cstdint>
#include <functional>

#ifdef BNY_TESTS_PTX
bool compiled_is_on(void);
bool compiled_has(const char *name);
/* Returns the function that each thread of a launch runs, with a copy of the arguments. Ends the process if the kernel
 * does not exist. */
std::function<void()> compiled_kernel(const char *name, uint32_t dynamic_bytes, void **arguments);
#else
inline bool compiled_is_on(void) { return false; }
inline bool compiled_has(const char *) { return false; }
inline std::function<void()> compiled_kernel(const char *, uint32_t, void **) { return nullptr; }
#endif
