/* SPDX-License-Identifier: Apache-2.0
 * These functions say whether this processor can run a table of kernels. They run before a table is chosen, so they are
 * compiled without the flags of any instruction set. tests/tree/check-kernels disassembles them. */
#pragma once

#include <stdbool.h>

bool bny_cpu_any(void); /* true */
bool bny_cpu_has_avx2(void);
bool bny_cpu_has_avx512(void);
bool bny_cpu_has_avx512_bf16(void);
bool bny_cpu_has_amx(void);
