/* SPDX-License-Identifier: Apache-2.0
 * Kernels as nvcc compiled them, for tests that launch kernels on the emulator. EMULATE_PTX in the environment names
 * PTX files, with colons between, that kernels then come from. Each launch appends the kernel's name to the file that
 * EMULATE_PTX_NOTES names, if it is set. */
#ifndef BNY_TESTS_PTX_COMPILED_HH
#define BNY_TESTS_PTX_COMPILED_HH

#include <cstdint>
#include <functional>

#ifdef BNY_TESTS_PTX
bool compiled_is_on(void);
bool compiled_has(const char *name);
/* Returns what each thread of a launch runs, with a copy of the arguments. Ends the process if no such kernel
 * exists. */
std::function<void()> compiled_kernel(const char *name, uint32_t dynamic_bytes, void **arguments);
#else
inline bool compiled_is_on(void) { return false; }
inline bool compiled_has(const char *) { return false; }
inline std::function<void()> compiled_kernel(const char *, uint32_t, void **) { return nullptr; }
#endif

#endif
