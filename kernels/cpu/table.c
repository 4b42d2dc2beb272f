/* SPDX-License-Identifier: Apache-2.0
 * Lists the merge kernels of this build, fastest first. */
#include <string.h>

#include "op.h"

extern const bny_kernels bny_kernels_avx512;
extern const bny_kernels bny_kernels_avx2;
extern const bny_kernels bny_kernels_portable;

const bny_kernels *const bny_kernels_table[] = {
#ifdef BNY_HAVE_AVX512
    &bny_kernels_avx512,
#endif
#ifdef BNY_HAVE_AVX2
    &bny_kernels_avx2,
#endif
    &bny_kernels_portable,
    NULL,
};

const bny_kernels *bny_kernels_find(const char *name) {
  for (int i = 0; bny_kernels_table[i] != NULL; i++) {
    const bny_kernels *kernels = bny_kernels_table[i];
    if ((name == NULL || strcmp(name, kernels->name) == 0) && kernels->supported()) return kernels;
  }
  return NULL;
}
