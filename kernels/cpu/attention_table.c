/* SPDX-License-Identifier: Apache-2.0
 * The table lists the attention kernels of this build, best first. All of them share the functions after it. */
#include "attention.h"

#include <float.h>
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

void bny_attention_merge_row(const bny_attention_task *task, int32_t row, bny_attention_sums *a,
                             const bny_attention_sums *b) {
  int32_t stride = bny_attention_padded(task->value_dim);
  double m = a->m[row] > b->m[row] ? a->m[row] : b->m[row];
  double scale_a = bny_attention_rescale(a->m[row], m), scale_b = bny_attention_rescale(b->m[row], m);
  double *to = a->n + row * stride;
  const double *from = b->n + row * stride;
  for (int32_t j = 0; j < stride; j++) to[j] = to[j] * scale_a + from[j] * scale_b;
  a->d[row] = a->d[row] * scale_a + b->d[row] * scale_b;
  a->m[row] = m;
}

void bny_attention_merge(const bny_attention_task *task, bny_attention_sums *a, const bny_attention_sums *b) {
  for (int32_t h = 0; h < task->heads; h++) bny_attention_merge_row(task, h, a, b);
}

/* These vectors have any alignment, because compilers do not vectorise such loops at -O2. */
typedef double four_doubles __attribute__((vector_size(32), aligned(8), may_alias));
typedef float four_floats __attribute__((vector_size(16), aligned(4), may_alias));

/* Writes a row times `factor` in f32. Returns false if a number of it, or of its padding, is not finite there. */
static bool write_row(const double *from, int32_t count, double factor, float *to) {
  four_floats off = {0}; /* x - x is NaN for what is not finite */
  for (int32_t j = 0; j < count; j += 4) {
    const four_floats x = __builtin_convertvector(*(const four_doubles *)(from + j) * factor, four_floats);
    off += x - x;
    if (count - j < 4)
      memcpy(to + j, &x, (size_t)(count - j) * sizeof *to);
    else
      *(four_floats *)(to + j) = x;
  }
  return !isnan((off[0] + off[1]) + (off[2] + off[3]));
}

/* If a sum of the row exceeds the range of f32, returns the exponent of two by which d and n are divided, so that d is
 * in [1/2, 1). Returns 0 if the sums fit, or if f32 cannot hold m plus that exponent. */
static int too_large_by(const double *n, int32_t count, double m, double d) {
  double most = 0;
  int by;
  for (int32_t j = 0; j < count; j++)
    if (fabs(n[j]) > most && fabs(n[j]) <= DBL_MAX) most = fabs(n[j]);
  if (most <= (double)FLT_MAX) return 0;
  frexp(d, &by);
  return (double)(float)(m + by) == m + by ? by : 0;
}

void bny_attention_finish(const bny_attention_task *task, const bny_attention_sums *sums, float *m, float *d,
                          float *n) {
  int32_t stride = bny_attention_padded(task->value_dim);
  for (int32_t h = 0; h < task->heads; h++) {
    const double *from = sums->n + h * stride;
    float *to = n + (int64_t)h * task->value_dim;
    /* A NaN in d, or an infinite m, would look like another row. */
    bool is_nan = isnan(sums->d[h]) || sums->m[h] == INFINITY;
    bool is_empty = sums->d[h] == 0; /* keys of weight 0 may have values that are no numbers */
    bool fits = write_row(from, task->value_dim, 1, to);
    int by = is_nan || is_empty || fits ? 0 : too_large_by(from, task->value_dim, sums->m[h], sums->d[h]);
    if (by != 0) write_row(from, task->value_dim, ldexp(1, -by), to);
    if (is_empty) memset(to, 0, (size_t)task->value_dim * sizeof *to);
    m[h] = is_nan ? NAN : (float)(sums->m[h] + by) + 0.0f; /* avoids -0, which ceil() can return */
    d[h] = is_nan ? 1 : (float)ldexp(sums->d[h], -by);
  }
}
