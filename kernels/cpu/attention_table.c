/* SPDX-License-Identifier: Apache-2.0 */
#include "attention.h"

#include <string.h>

const bny_attention_kernels *const bny_attention_table[] = {
#ifdef BNY_HAVE_AMX
    &bny_attention_amx,
#endif
#ifdef BNY_HAVE_AVX512_BF16
    &bny_attention_avx512_bf16,
#endif
#ifdef BNY_HAVE_AVX512
    &bny_attention_avx512,
#endif
#ifdef BNY_HAVE_AVX2
    &bny_attention_avx2,
#endif
#ifdef BNY_HAVE_NEON
    &bny_attention_neon,
#endif
    &bny_attention_portable,    NULL,
};

const bny_attention_kernels *bny_attention_kernels_find(const char *name) {
  for (const bny_attention_kernels *const *at = bny_attention_table; *at; at++) {
    if ((!name || strcmp((*at)->name, name) == 0) && (*at)->supported()) return *at;
  }
  return NULL;
}

const bny_attention_kernels *bny_attention_kernels_beside(const char *name) {
  for (const bny_attention_kernels *const *at = bny_attention_table; name && *at; at++) {
    if (strcmp((*at)->merges, name) == 0 && (*at)->supported()) return *at;
  }
  return bny_attention_kernels_find(NULL);
}

void bny_attention_merge(const bny_attention_task *task, bny_attention_sums *a, const bny_attention_sums *b) {
  int32_t stride = bny_attention_padded(task->value_dim);
  for (int32_t h = 0; h < task->heads; h++) {
    double m = a->m[h] > b->m[h] ? a->m[h] : b->m[h];
    double scale_a = bny_attention_rescale(a->m[h], m), scale_b = bny_attention_rescale(b->m[h], m);
    double *to = a->n + h * stride;
    const double *from = b->n + h * stride;
    for (int32_t j = 0; j < stride; j++) to[j] = to[j] * scale_a + from[j] * scale_b;
    a->d[h] = a->d[h] * scale_a + b->d[h] * scale_b;
    a->m[h] = m;
  }
}

void bny_attention_finish(const bny_attention_task *task, const bny_attention_sums *sums, float *m, float *d,
                          float *n) {
  int32_t stride = bny_attention_padded(task->value_dim);
  for (int32_t h = 0; h < task->heads; h++) {
    /* A NaN in d, or -inf still in m, would look like an empty row. */
    bool is_nan = isnan(sums->d[h]);
    m[h] = is_nan ? NAN : (float)sums->m[h] + 0.0f; /* avoids -0, which ceil() can return */
    d[h] = is_nan ? 1 : (float)sums->d[h];
    bool is_empty = sums->d[h] == 0; /* keys of weight 0 may have values that are no numbers */
    for (int32_t j = 0; j < task->value_dim; j++)
      n[(int64_t)h * task->value_dim + j] = is_empty ? 0 : (float)sums->n[h * stride + j];
  }
}
