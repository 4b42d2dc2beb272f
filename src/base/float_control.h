/* SPDX-License-Identifier: Apache-2.0
 * The floating-point mode of a thread: rounding, whether denormal numbers count as zero, and which exceptions trap. All
 * ranks compute in the usual mode, whatever mode a rank's caller or a library that it loads has set. Otherwise bits,
 * and with them the choice of a plan, would differ between ranks. Only the control word is handled. fegetenv() and
 * fesetenv() take ten times as long on x86, because they also handle the x87 unit, which the library does not use. */
#pragma once

#include <fenv.h>
#include <stdbool.h>
#include <stdint.h>

/* The usual mode rounds to nearest, keeps denormal numbers and traps nothing. Among the bits of a mode are not the
 * flags of exceptions since the last look. */
#define BNY_FLOAT_BITS ~UINT64_C(0)
#if defined(__x86_64__)
#undef BNY_FLOAT_BITS
#define BNY_FLOAT_BITS UINT64_C(0xffc0)
#define BNY_FLOAT_USUAL UINT64_C(0x1f80)
#elif defined(__aarch64__)
#define BNY_FLOAT_USUAL UINT64_C(0)
#else
#define BNY_FLOAT_USUAL ((uint64_t)FE_TONEAREST)
#endif

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

typedef struct bny_float_mode {
  bool is_other, is_nested; /* not the usual one; within another call that has replaced one */
  uint64_t control, outer;
} bny_float_mode;

bny_float_mode bny_float_enter_other(uint64_t control);
void bny_float_leave_other(const bny_float_mode *mode);

static inline bny_float_mode bny_float_enter(void) {
  uint64_t control = bny_float_control();
  if (__builtin_expect((control & BNY_FLOAT_BITS) == BNY_FLOAT_USUAL, true))
    return (bny_float_mode){false, false, 0, 0};
  return bny_float_enter_other(control);
}

static inline void bny_float_leave(const bny_float_mode *mode) {
  if (__builtin_expect(mode->is_other, false)) bny_float_leave_other(mode);
}

/* Stands at the beginning of each public call that computes: its block runs in the usual mode. Hot. */
#define BNY_FLOAT_MODE __attribute__((cleanup(bny_float_leave), unused)) bny_float_mode float_mode = bny_float_enter()

/* Enclose the caller's callbacks, which run in the caller's mode. */
void bny_float_lend(void);
void bny_float_take_back(void);
