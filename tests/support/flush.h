/* SPDX-License-Identifier: Apache-2.0
 * Bits of the floating-point control word that make denormal inputs and results count as zero. */
#pragma once

#if defined(__x86_64__)
enum { FLOAT_FLUSH = 0x8040 };
#elif defined(__aarch64__)
enum { FLOAT_FLUSH = 1 << 24 };
#else
enum { FLOAT_FLUSH = 0 };
#endif
