/* SPDX-License-Identifier: Apache-2.0
 * Saves and restores the floating-point mode of this thread: rounding, and whether denormal numbers count as zero. Only
 * the control word is handled. fegetenv() and fesetenv() take ten times as long on x86, because they also handle the
 * x87 unit, which the kernels do not use. */
#pragma once

#include <fenv.h>
#include <stdint.h>

static inline uint64_t bny_float_control(void) {
#if defined(__x86_64__)
  return __builtin_ia32_stmxcsr();
#elif defined(__aarch64__)
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  return control;
#else
  return (uint64_t)fegetround();
#endif
}

static inline void bny_float_control_set(uint64_t control) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr((unsigned)control);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(control) : "memory");
#else
  fesetround((int)control);
#endif
}
