/* SPDX-License-Identifier: Apache-2.0
 * gpu_calibrate: measures the clock, approximate functions, and the sums of tensor cores. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/gpu/calibration.h"
#include "merge_math.h"

bool calibrate_timer(calibration *self) {
  uint64_t *out = NULL, got[4] = {0};
  uint32_t count = self->quick ? 200 : 2000000;
  void *arguments[] = {&out, &count};
  calibration_launch launch = {"calibrate_clock", 1, 32, 0, arguments};
  bool ok = calibration_take(self, sizeof got, &out) && calibration_launch_on(self, &launch) &&
            calibration_finish(self) && gpu_read(self->gpu, got, out, sizeof got, &self->error);
  gpu_give(self->gpu, out);
  if (!ok) return false;
  calibration_say("globaltimer_step_ns", got[2] ? (double)got[0] : NAN, "ns", 1e6, "the smallest step of %globaltimer");
  calibration_say("globaltimer_step_most_ns", got[2] ? (double)got[1] : NAN, "ns", 1e6, "the largest");
  return true;
}

/* Compares ex2 over -126 .. 0 and lg2 over 2 .. 128 with the host's functions in double precision. */
bool calibrate_functions(calibration *self) {
  enum { COUNT_MAX = 1 << 14 };
  static float in[COUNT_MAX], powers[COUNT_MAX], logarithms[COUNT_MAX];
  float *memory[3] = {NULL, NULL, NULL};
  uint32_t count = self->quick ? 64 : COUNT_MAX;
  size_t bytes = count * sizeof(float);
  void *arguments[] = {&memory[0], &memory[1], &memory[2], &count};
  calibration_launch launch = {"calibrate_numbers", 2, 32, 0, arguments};
  double power = 0, logarithm = 0;
  for (uint32_t i = 0; i < count; i++) in[i] = (float)(-126.0 * (double)i / count);
  bool ok = true;
  for (int i = 0; ok && i < 3; i++) ok = calibration_take(self, bytes, &memory[i]);
  ok = ok && gpu_write(self->gpu, memory[0], in, bytes, &self->error) && calibration_launch_on(self, &launch) &&
       calibration_finish(self) && gpu_read(self->gpu, powers, memory[1], bytes, &self->error) &&
       gpu_read(self->gpu, logarithms, memory[2], bytes, &self->error);
  for (int i = 0; i < 3; i++) gpu_give(self->gpu, memory[i]);
  if (!ok) return false;
  for (uint32_t i = 0; i < count; i++) {
    power = fmax(power, fabs((double)powers[i] / exp2((double)in[i]) - 1));
    logarithm = fmax(logarithm, fabs((double)logarithms[i] - log2((double)(in[i] + 128.0f))));
  }
  calibration_say("ex2_error", power, "relative", 0x1p-22, "ex2.approx.ftz.f32");
  calibration_say("lg2_error", logarithm, "absolute", 0x1p-21, "lg2.approx.ftz.f32");
  return true;
}

/* ---- tensor cores ------------------------------------------------------------------------------------------------ */

/* Computes d[0][0] after `steps` times d += a b. All elements of d begin as `start`, a has `x` in its first `columns`
 * columns, and all elements of b are `y`. Lane 4 g + t holds columns 2 t, 2 t + 1 of A in words 0 and 1, and columns 2
 * t + 8, 2 t + 9 in words 2 and 3. */
static bool multiply(calibration *self, float start, uint32_t columns, float x, float y, uint32_t steps, float *got) {
  uint32_t a[32][4], b[32][2];
  float d[32][4];
  void *memory[3] = {NULL, NULL, NULL}, *host[3] = {a, b, d};
  const size_t bytes[3] = {sizeof a, sizeof b, sizeof d};
  void *arguments[] = {&memory[0], &memory[1], &memory[2], &steps};
  calibration_launch launch = {"calibrate_mma", 1, 32, 0, arguments};
  for (uint32_t lane = 0; lane < 32; lane++) {
    for (uint32_t i = 0; i < 4; i++) {
      const uint32_t column = lane % 4 * 2 + i / 2 * 8;
      a[lane][i] = (column < columns ? bny_bf16_of_float(x) : 0u) |
                   (column + 1 < columns ? (uint32_t)bny_bf16_of_float(x) << 16 : 0u);
      d[lane][i] = start;
    }
    b[lane][0] = b[lane][1] = bny_bf16_of_float(y) | (uint32_t)bny_bf16_of_float(y) << 16;
  }
  bool ok = true;
  for (int i = 0; ok && i < 3; i++)
    ok = calibration_take(self, bytes[i], &memory[i]) &&
         gpu_write(self->gpu, memory[i], host[i], bytes[i], &self->error);
  ok = ok && calibration_launch_on(self, &launch) && calibration_finish(self) &&
       gpu_read(self->gpu, d, memory[2], sizeof d, &self->error);
  for (int i = 0; i < 3; i++) gpu_give(self->gpu, memory[i]);
  *got = d[0][0];
  return ok;
}

/* Counts the bits below f32 that sums keep. 2^j products of 2^-(23 + j) add one unit in the last place to 1 only if j
 * bits below it are kept. */
static bool count_bits(calibration *self, int *bits) {
  for (*bits = 0; *bits < 4; ++*bits) {
    const int next = *bits + 1;
    float got;
    if (!multiply(self, 1, 1u << next, ldexpf(1, -23 - next), 1, 1, &got)) return false;
    if (got != 1 + 0x1p-23f) break;
  }
  return true;
}

bool calibrate_matrix(calibration *self) {
  static const uint32_t steps[] = {64, 512, 4096};
  float got;
  int bits;
  if (!multiply(self, 1, 1, 1.5f * 0x1p-23f, 1, 1, &got) || !count_bits(self, &bits)) return false;
  calibration_say("mma_truncates", got == 1 + 0x1p-23f ? 1 : 0, "", 1, "1: sums are cut off, 0: rounded to nearest");
  calibration_say("mma_extra_bits", bits, "bits", NAN, "kept below the largest of what is summed; 4: that or more");
  for (size_t i = 0; i < (self->quick ? 2 : sizeof steps / sizeof steps[0]); i++) {
    const float x = 1.3359375f, y = 0.71484375f; /* many mantissa bits, so that sums soon exceed an accumulator's
                                                  * precision */
    char name[40];
    if (!multiply(self, 0, 16, x, y, steps[i], &got)) return false;
    snprintf(name, sizeof name, "mma_bias_%u", (unsigned)steps[i]);
    calibration_say(name, (double)got / (16.0 * (double)x * (double)y * steps[i]) - 1, "relative", NAN,
                    "so many matrix operations into one accumulator, all of one sign");
  }
  return true;
}
