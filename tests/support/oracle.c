/* SPDX-License-Identifier: Apache-2.0
 * Partials in double precision, and the errors that dtypes allow. */
#include "tests/support/oracle.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const double log2_e = 1.4426950408889634;

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* Bits of the fraction, and the lowest exponent. */
static int places(banyan_dtype dtype) {
  return dtype == BANYAN_F16 ? 10 : dtype == BANYAN_BF16 ? 7 : dtype == BANYAN_E4M3 ? 3 : dtype == BANYAN_E5M2 ? 2 : 23;
}
static int lowest_exponent(banyan_dtype dtype) {
  return dtype == BANYAN_F16 || dtype == BANYAN_E5M2 ? -14 : dtype == BANYAN_E4M3 ? -6 : -126;
}
static bool has_eight_bits(banyan_dtype dtype) { return dtype == BANYAN_E4M3 || dtype == BANYAN_E5M2; }

size_t oracle_bytes(banyan_dtype dtype) {
  return dtype == BANYAN_F32 ? 4 : dtype == BANYAN_F16 || dtype == BANYAN_BF16 ? 2 : 1;
}

double oracle_unit(banyan_dtype dtype) { return ldexp(1, -places(dtype) - 1); }
double oracle_step(banyan_dtype dtype) { return ldexp(1, lowest_exponent(dtype) - places(dtype)); }
double oracle_largest(banyan_dtype dtype) {
  if (has_eight_bits(dtype)) return dtype == BANYAN_E4M3 ? 448 : 57344;
  return ldexp(2 - ldexp(1, -places(dtype)), dtype == BANYAN_F16 ? 15 : 127);
}

double oracle_wire_error(banyan_dtype wire, uint64_t roundings) {
  if (wire == BANYAN_E4M3) return pow(18.0 / 17, (double)roundings) - 1;
  return wire == BANYAN_F32 ? 0 : oracle_unit(wire) * (double)roundings;
}

/* Returns 2^exponent times 1 plus a random fraction of this many bits. */
static double normal_number(int exponent, int fraction, int digits) {
  uint64_t bits = (uint64_t)(exponent + 1023) << 52 | (uint64_t)fraction << (52 - digits);
  double made;
  memcpy(&made, &bits, sizeof made);
  return made;
}

/* The number of a code, for types of 8 and of 16 bits. E4M3 has no infinities. */
static double number_of(banyan_dtype dtype, int bits) {
  const int width = places(dtype), top = oracle_bytes(dtype) == 1 ? 0x7f : 0x7fff, fraction = bits & ((1 << width) - 1);
  const int exponent = (bits & top) >> width;
  double magnitude = exponent == 0 ? fraction * oracle_step(dtype)
                                   : normal_number(exponent + lowest_exponent(dtype) - 1, fraction, width);
  if (dtype == BANYAN_E4M3 && (bits & top) == top) magnitude = (double)NAN;
  if (dtype != BANYAN_E4M3 && exponent == top >> width) magnitude = fraction ? (double)NAN : (double)INFINITY;
  return bits > top ? -magnitude : magnitude;
}

/* The oracles load most of their numbers many times. */
static float numbers_of_f16[1 << 16], numbers_of_bf16[1 << 16], numbers_of_e4m3[1 << 8], numbers_of_e5m2[1 << 8];

__attribute__((constructor)) static void find_numbers(void) {
  for (int bits = 0; bits < 1 << 16; bits++) {
    numbers_of_f16[bits] = (float)number_of(BANYAN_F16, bits);
    numbers_of_bf16[bits] = (float)number_of(BANYAN_BF16, bits);
    if (bits < 1 << 8) numbers_of_e4m3[bits] = (float)number_of(BANYAN_E4M3, bits);
    if (bits < 1 << 8) numbers_of_e5m2[bits] = (float)number_of(BANYAN_E5M2, bits);
  }
}

double oracle_load(const void *elements, banyan_dtype dtype, int64_t index) {
  switch (dtype) {
  case BANYAN_F32: return (double)((const float *)elements)[index];
  case BANYAN_F16: return (double)numbers_of_f16[((const uint16_t *)elements)[index]];
  case BANYAN_BF16: return (double)numbers_of_bf16[((const uint16_t *)elements)[index]];
  case BANYAN_E4M3: return (double)numbers_of_e4m3[((const uint8_t *)elements)[index]];
  default: return (double)numbers_of_e5m2[((const uint8_t *)elements)[index]];
  }
}

/* The code of the nearest number of the type, the even one of a tie. Eight bits saturate. */
static int code_of(banyan_dtype dtype, double magnitude) {
  const int width = places(dtype), lowest = lowest_exponent(dtype);
  const int nan = has_eight_bits(dtype) ? 0x7f : ((3 - 2 * lowest) << width) + (1 << (width - 1));
  const int most = dtype == BANYAN_E4M3 ? 0x7e : dtype == BANYAN_E5M2 ? 0x7b : (3 - 2 * lowest) << width;
  uint64_t bits;
  memcpy(&bits, &magnitude, sizeof bits);
  if (isnan(magnitude)) return nan;
  if (isinf(magnitude)) return most;
  const int exponent = (int)(bits >> 52) - 1023 > lowest ? (int)(bits >> 52) - 1023 : lowest;
  const int code = ((exponent - lowest) << width) + (int)rint(magnitude * normal_number(width - exponent, 0, 0));
  return code < most ? code : most;
}

void oracle_store(void *elements, banyan_dtype dtype, int64_t index, double value) {
  const int code = dtype == BANYAN_F32 ? 0 : code_of(dtype, fabs(value)), sign = signbit(value) ? 1 : 0;
  if (dtype == BANYAN_F32)
    ((float *)elements)[index] = (float)value;
  else if (has_eight_bits(dtype))
    ((uint8_t *)elements)[index] = (uint8_t)(code | sign << 7);
  else
    ((uint16_t *)elements)[index] = (uint16_t)(code | sign << 15);
}

static double rounded(banyan_dtype dtype, double value) {
  float room;
  oracle_store(&room, dtype, 0, value);
  return oracle_load(&room, dtype, 0);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static int64_t stat_at(const banyan_partial *p, int32_t token, int32_t head) {
  return token * p->stats_token_stride + head * p->stats_head_stride;
}

static int64_t value_at(const banyan_partial *p, int32_t token, int32_t head) {
  return token * p->values_token_stride + head * p->values_head_stride;
}

static double scale_of(const banyan_partial *p, int32_t head) {
  return p->values_scale ? (double)p->values_scale[head * p->values_scale_stride] : 1;
}

static bool means_empty(const banyan_partial *p, double stat, double sum) {
  if (stat == -(double)INFINITY || sum == 0) return true;
  if (isnan(stat)) return (p->empty & BANYAN_EMPTY_NAN) != 0;
  if (isinf(stat)) return (p->empty & BANYAN_EMPTY_POS_INF) != 0;
  return (p->empty & BANYAN_EMPTY_BELOW) != 0 && stat <= rounded(p->stats_dtype, (double)(float)p->empty_below);
}

/* "Large logits": from 2^24 on in base 2, m is rounded to f32, up to the largest float. */
static double logit_that_counts(double t) {
  if (fabs(t) < 0x1p24) return t;
  return fabs(t) > (double)FLT_MAX ? copysign((double)FLT_MAX, t) : (double)(float)t;
}

oracle_row oracle_read(const banyan_partial *p, int32_t token, int32_t head, int32_t value_dim) {
  oracle_row row;
  double stat = oracle_load(p->lse, p->stats_dtype, stat_at(p, token, head)), sum = 1;
  if (p->stats_kind == BANYAN_STATS_MAX_SUM) sum = oracle_load(p->sum, p->stats_dtype, stat_at(p, token, head));
  row.is_empty = means_empty(p, stat, sum);
  if (row.is_empty) return row;
  row.m = logit_that_counts(p->base == BANYAN_BASE_E ? stat * log2_e : stat);
  row.d = sum;
  row.coarse = p->values_kind == BANYAN_VALUES_NUMERATOR ? fmax(1, 0x1p-127 / sum) : 1;
  double divisor = (p->values_kind == BANYAN_VALUES_NUMERATOR ? sum : 1) / scale_of(p, head);
  for (int32_t i = 0; i < value_dim; i++)
    row.o[i] = oracle_load(p->values, p->values_dtype, value_at(p, token, head) + i) / divisor;
  return row;
}

static double log2_of(const oracle_row *row) { return row->m + log2(row->d); }

oracle_row oracle_merge(const oracle_row *parts, int32_t count, int32_t value_dim) {
  oracle_row row;
  double top = -(double)INFINITY, heaviest = top, total = 0, dropped = 0;
  row.is_empty = true;
  row.coarse = 0;
  memset(row.o, 0, (size_t)value_dim * sizeof *row.o);
  memset(row.mean, 0, (size_t)value_dim * sizeof *row.mean);
  for (int32_t k = 0; k < count; k++)
    if (!parts[k].is_empty) top = fmax(top, parts[k].m), heaviest = fmax(heaviest, log2_of(&parts[k]));
  for (int32_t k = 0; k < count; k++) {
    if (parts[k].is_empty) continue;
    double weight = parts[k].d * exp2(parts[k].m - top), largest = 0;
    row.is_empty = false;
    total += weight;
    row.coarse += weight * parts[k].coarse;
    for (int32_t i = 0; i < value_dim; i++) {
      row.o[i] += weight * parts[k].o[i];
      row.mean[i] += weight * fabs(parts[k].o[i]);
      largest = fmax(largest, fabs(parts[k].o[i]));
    }
    if (log2_of(&parts[k]) < heaviest - 45) dropped += weight * largest;
  }
  for (int32_t i = 0; i < value_dim && !row.is_empty; i++) row.o[i] /= total, row.mean[i] /= total;
  row.m = top;
  row.d = total;
  row.coarse /= total > 0 ? total : 1;
  row.dropped = total > 0 ? dropped / total : 0;
  return row;
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

static _Thread_local char text[256];

static const char *compare_empty(const banyan_partial *p, int32_t token, int32_t head, int32_t value_dim) {
  double form = p->empty == BANYAN_EMPTY_POS_INF ? (double)INFINITY
                : p->empty == BANYAN_EMPTY_BELOW ? rounded(p->stats_dtype, (double)(float)p->empty_below)
                                                 : -(double)INFINITY;
  if (p->lse && oracle_load(p->lse, p->stats_dtype, stat_at(p, token, head)) != form) return "an empty row's lse or m";
  if (p->sum && oracle_load(p->sum, p->stats_dtype, stat_at(p, token, head)) != 0) return "an empty row's d";
  for (int32_t i = 0; i < value_dim; i++)
    if (oracle_load(p->values, p->values_dtype, value_at(p, token, head) + i) != 0) return "an empty row's values";
  return NULL;
}

/* The relative error of a weight, or of numerators divided by it, from rounding d to its type. */
static double sum_error(const banyan_partial *p, double sum) {
  return p->stats_kind == BANYAN_STATS_LSE
             ? 0
             : 1.5 * (oracle_unit(p->stats_dtype) + 0.5 * oracle_step(p->stats_dtype) / sum);
}

static const char *compare_weight(const banyan_partial *p, double stat, double sum, const oracle_row *expected) {
  double t = p->base == BANYAN_BASE_E ? stat * log2_e : stat, weight = log2_of(expected), size = fabs(weight);
  double slack = 2e-6 + 0x1p-45 * size + sum_error(p, sum) * log2_e;
  bool is_rounded = p->stats_kind == BANYAN_STATS_LSE || fabs(t) >= 0x1p24 || size >= 0x1p24;
  if (is_rounded) slack += 1.1 * (oracle_unit(p->stats_dtype) + 0x1p-24) * size + oracle_step(p->stats_dtype);
  double got = t + log2(sum);
  if (fabs(got - weight) <= slack) return NULL;
  if (fabs(got) >= (double)FLT_MAX && size >= 0.99 * (double)FLT_MAX) return NULL; /* base e has a larger range */
  snprintf(text, sizeof text, "log2 of the weight is %.9g (m or lse %.9g, d %.9g), should be %.9g within %.2g", got,
           stat, sum, weight, slack);
  return text;
}

const char *oracle_compare(const banyan_partial *p, int32_t token, int32_t head, int32_t value_dim, banyan_dtype wire,
                           uint64_t roundings, const oracle_row *expected) {
  if (expected->is_empty) return compare_empty(p, token, head, value_dim);
  double stat = 0, sum = 1;
  if (p->lse) {
    stat = oracle_load(p->lse, p->stats_dtype, stat_at(p, token, head));
    if (p->sum) sum = oracle_load(p->sum, p->stats_dtype, stat_at(p, token, head));
    if (!isfinite(stat) || !(sum > 0) || !isfinite(sum)) {
      snprintf(text, sizeof text, "it is no row: m or lse %g, d %g", stat, sum);
      return text;
    }
    const char *wrong = compare_weight(p, stat, sum, expected);
    if (wrong) return wrong;
  }
  bool numerators = p->values_kind == BANYAN_VALUES_NUMERATOR;
  double scale = (numerators ? sum : 1) / scale_of(p, head), lossy = oracle_wire_error(wire, roundings);
  double bound = 2e-6 + lossy + 0x1p-23 * (double)roundings + 1.01 * oracle_unit(p->values_dtype) * (1 + lossy) +
                 (numerators ? sum_error(p, sum) : 0);
  double error = 0, size = 0, tiny = 0x1p-125 + oracle_step(p->values_dtype) / scale;
  /* The smallest numbers of a lossy wire, which for d in (0.5, 1] matter only in f16. */
  if (lossy > 0) tiny += (double)roundings * oracle_step(wire) * (expected->coarse - (wire == BANYAN_F16 ? 0 : 1));
  for (int32_t i = 0; i < value_dim; i++) size += expected->mean[i] * expected->mean[i];
  for (int32_t i = 0; i < value_dim; i++) {
    double got = oracle_load(p->values, p->values_dtype, value_at(p, token, head) + i) / scale;
    double most = fabs(expected->o[i]) + (lossy > 0 ? lossy * sqrt(size) : 0);
    bool is_beyond = most * scale > 0.99 * oracle_largest(p->values_dtype);
    double delta = is_beyond ? 0 : got - expected->o[i];
    error += delta * delta;
  }
  double allowed = bound * sqrt(size) + sqrt(value_dim) * (tiny + 1.01 * expected->dropped);
  if (sqrt(error) <= allowed) return NULL;
  snprintf(text, sizeof text, "values are off by %.3g, %.3g of the mean of |v|; %.3g is allowed", sqrt(error),
           sqrt(error / size), allowed);
  return text;
}
