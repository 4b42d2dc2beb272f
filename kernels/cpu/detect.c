/* SPDX-License-Identifier: Apache-2.0
 * Asks the processor and the kernel which instruction sets this process may use. */
#include "detect.h"

bool bny_cpu_any(void) { return true; }

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Not all compilers know the name "f16c". */
static bool has_f16c(void) {
  unsigned a, b, c = 0, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool bny_cpu_has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

bool bny_cpu_has_avx512(void) {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && bny_cpu_has_avx2();
}

#ifdef BNY_HAVE_AVX512_BF16
bool bny_cpu_has_avx512_bf16(void) {
  return bny_cpu_has_avx512() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
}
#endif

#ifdef BNY_HAVE_AMX
static bool has_tiles(void) {
  enum { LEAF = 7, TILE = 1 << 24, BF16 = 1 << 22 };
  unsigned a, b, c, d = 0;
  return __get_cpuid_count(LEAF, 0, &a, &b, &c, &d) && (d & TILE) && (d & BF16);
}

/* A process that has asked once may use tiles in all of its threads. */
static bool ask_for_tiles(void) {
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* Each thread asks once, as the library has no variables that threads share. */
bool bny_cpu_has_amx(void) {
  enum { UNKNOWN, NO, YES };
  static _Thread_local int known = UNKNOWN;
  if (known == UNKNOWN) known = has_tiles() && bny_cpu_has_avx512_bf16() && ask_for_tiles() ? YES : NO;
  return known == YES;
}
#endif
#endif
