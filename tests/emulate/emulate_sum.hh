/* SPDX-License-Identifier: Apache-2.0
 * Computes the sums of emulated matrix operations: d = c + x[0] y[0] + ..., with exact products. By default each
 * addition rounds to nearest, which no hardware does. With truncation, sums follow measurements of tensor cores (M.
 * Fasi, N. J. Higham, M. Mikaitis, S. Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science
 * 7:e330, 2021). All terms are aligned to the largest one and truncated below it, then added without rounding, and the
 * sum is truncated to f32. The terms keep one bit more than f32, the fewest measured on any device since V100. */
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

enum : int { BNY_SUM_TERMS = 16, BNY_SUM_BITS_BELOW = 24 /* bits after the leading bit: 25 bits in all */ };

/* Switches truncation on or off for all emulated devices of the process. */
void bny_emulator_truncate(bool on);
bool bny_emulated_truncates(void);

inline float bny_sum_cut(double sum) {
  const float nearest = static_cast<float>(sum);
  return std::fabs(static_cast<double>(nearest)) > std::fabs(sum) ? std::nextafterf(nearest, 0.0f) : nearest;
}

inline float bny_sum_truncated(float c, const float *x, const float *y) {
  double products[BNY_SUM_TERMS], largest = std::fabs(static_cast<double>(c)), plain = static_cast<double>(c);
  for (int k = 0; k < BNY_SUM_TERMS; k++) {
    products[k] = static_cast<double>(x[k]) * static_cast<double>(y[k]);
    largest = std::max(largest, std::fabs(products[k]));
    plain += products[k];
  }
  if (!std::isfinite(plain) || largest == 0) return static_cast<float>(plain);
  const int unit = std::ilogb(largest) - BNY_SUM_BITS_BELOW;
  const double up = std::ldexp(1.0, -unit);
  int64_t sum = static_cast<int64_t>(static_cast<double>(c) * up);
  for (double product : products) sum += static_cast<int64_t>(product * up);
  return bny_sum_cut(std::ldexp(static_cast<double>(sum), unit));
}
