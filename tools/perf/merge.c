/* SPDX-License-Identifier: Apache-2.0
 * The merge that is timed with MPI: one loop over rows, without the library. */
#include "tools/perf/perf.h"

#include <math.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* clang vectorises at O2 */
#endif

#define INLINE static inline __attribute__((always_inline))

/* target = sum of factors[r] sources[r] over up to four sources, added to target if `add`. */
INLINE void weigh(float *restrict target, const float *const *source, const float *f, int32_t count, int add,
                  int32_t dim) {
  const float *restrict a = source[0], *restrict b = source[count > 1 ? 1 : 0];
  const float *restrict c = source[count > 2 ? 2 : 0], *restrict d = source[count > 3 ? 3 : 0];
  float fa = f[0], fb = count > 1 ? f[1] : 0, fc = count > 2 ? f[2] : 0, fd = count > 3 ? f[3] : 0;
  if (!add && count == 2)
    for (int32_t i = 0; i < dim; i++) target[i] = fa * a[i] + fb * b[i];
  else if (!add)
    for (int32_t i = 0; i < dim; i++) target[i] = (fa * a[i] + fb * b[i]) + (fc * c[i] + fd * d[i]);
  else
    for (int32_t i = 0; i < dim; i++) target[i] += (fa * a[i] + fb * b[i]) + (fc * c[i] + fd * d[i]);
}

INLINE void merge_gathered(const float *all, int32_t nranks, int64_t rows, int32_t dim, float *factors, float *out) {
  int64_t block = rows * (dim + 2);
  for (int64_t r = 0; r < rows; r++) {
    float max = all[r], sum = 0;
    for (int32_t k = 1; k < nranks; k++) max = all[k * block + r] > max ? all[k * block + r] : max;
    for (int32_t k = 0; k < nranks; k++) {
      factors[k] = exp2f(all[k * block + r] - max);
      sum += factors[k] * all[k * block + rows + r];
    }
    for (int32_t k = 0; k < nranks; k++) factors[k] /= sum;
    for (int32_t k = 0; k < nranks; k += 4) {
      const float *sources[4];
      int32_t count = nranks - k < 4 ? nranks - k : 4;
      for (int32_t j = 0; j < count; j++) sources[j] = all + (k + j) * block + 2 * rows + r * dim;
      weigh(out + r * dim, sources, factors + k, count, k > 0, dim);
    }
  }
}

INLINE void merge_pair(const float *restrict in, float *restrict inout, int64_t rows, int32_t dim) {
  for (int64_t r = 0; r < rows; r++) {
    const float *restrict a = in + r * (dim + 2);
    float *restrict b = inout + r * (dim + 2);
    float smaller = exp2f(-fabsf(a[0] - b[0])); /* the other factor is 1 */
    float fa = a[0] < b[0] ? smaller : 1, fb = a[0] < b[0] ? 1 : smaller;
    b[0] = a[0] < b[0] ? b[0] : a[0];
    for (int32_t i = 1; i < dim + 2; i++) b[i] = fa * a[i] + fb * b[i];
  }
}

INLINE void merge_rescale(const float *max, const float *all_max, int64_t rows, int32_t dim, float *sum,
                          float *values) {
  for (int64_t r = 0; r < rows; r++) {
    float factor = exp2f(max[r] - all_max[r]);
    sum[r] *= factor;
    for (int32_t i = 0; i < dim; i++) values[r * dim + i] *= factor;
  }
}

INLINE void merge_finish(const float *restrict values, int64_t stride, const float *restrict sum, int64_t sum_stride,
                         int64_t rows, int32_t dim, float *restrict out) {
  for (int64_t r = 0; r < rows; r++) {
    float factor = 1 / sum[r * sum_stride];
    for (int32_t i = 0; i < dim; i++) out[r * dim + i] = values[r * stride + i] * factor;
  }
}

/* Each function for the vectors of the compiler's choice and, on x86, for longer ones where the processor has them. */
#if defined(__x86_64__)
#define VARIANTS(name, parameters, arguments)                                                          \
  __attribute__((target("avx512f,avx512vl"))) static void name##_avx512 parameters { name arguments; } \
  __attribute__((target("avx2"))) static void name##_avx2 parameters { name arguments; }               \
  void perf_##name parameters {                                                                        \
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) {                     \
      name##_avx512 arguments;                                                                         \
    } else if (__builtin_cpu_supports("avx2")) {                                                       \
      name##_avx2 arguments;                                                                           \
    } else {                                                                                           \
      name arguments;                                                                                  \
    }                                                                                                  \
  }
#else
#define VARIANTS(name, parameters, arguments) \
  void perf_##name parameters { name arguments; }
#endif

VARIANTS(merge_gathered, (const float *all, int32_t nranks, int64_t rows, int32_t dim, float *factors, float *out),
         (all, nranks, rows, dim, factors, out))

VARIANTS(merge_pair, (const float *in, float *inout, int64_t rows, int32_t dim), (in, inout, rows, dim))

VARIANTS(merge_rescale, (const float *max, const float *all_max, int64_t rows, int32_t dim, float *sum, float *values),
         (max, all_max, rows, dim, sum, values))

VARIANTS(merge_finish,
         (const float *values, int64_t stride, const float *sum, int64_t sum_stride, int64_t rows, int32_t dim,
          float *out),
         (values, stride, sum, sum_stride, rows, dim, out))
