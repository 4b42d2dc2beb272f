/* SPDX-License-Identifier: Apache-2.0 */
#include "attention.h"

#include <string.h>

const bny_attention_kernels *const bny_attention_table[] = {
#ifdef BNY_HAVE_AVX512
    &bny_attention_avx512,
#endif
#ifdef BNY_HAVE_AVX2
    &bny_attention_avx2,
#endif
    &bny_attention_portable,
    NULL,
};

const bny_attention_kernels *bny_attention_kernels_find(const char *name) {
  for (const bny_attention_kernels *const *at = bny_attention_table; *at; at++) {
    if ((!name || strcmp((*at)->name, name) == 0) && (*at)->supported()) return *at;
  }
  return NULL;
}
