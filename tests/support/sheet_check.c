/* SPDX-License-Identifier: Apache-2.0
 * The merge of sheets in double precision, and comparisons with the result.
 *   L = natural log of a row's weight;  o = its normalised values;  W = sum_r exp(L_r - max L)
 *   merged: o = sum_r exp(L_r - max L) o_r / W;  lse = max L + ln W */
#include "tests/support/sheet.h"
#include "tests/support/sheet_element.h"

void sheet_split(int32_t count, int32_t parts, int32_t index, int32_t *first, int32_t *number) {
  *first = 0;
  for (int32_t i = 0;; i++) {
    *number = count / parts + (i < count % parts ? 1 : 0);
    if (i == index) return;
    *first += *number;
  }
}

sheet_part sheet_part_of(const banyan_combine_desc *desc, int32_t nranks, int32_t rank) {
  sheet_part part = {0, desc->tokens, 0, desc->heads};
  if (desc->scatter == BANYAN_SCATTER_ROOT && rank != desc->root) part.tokens = 0;
  if (desc->scatter == BANYAN_SCATTER_HEADS) sheet_split(desc->heads, nranks, rank, &part.head0, &part.heads);
  if (desc->scatter == BANYAN_SCATTER_TOKENS) sheet_split(desc->tokens, nranks, rank, &part.token0, &part.tokens);
  return part;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool means_empty(const banyan_partial *partial, double statistic) {
  if (isnan(statistic)) return partial->empty & BANYAN_EMPTY_NAN;
  if (isinf(statistic)) return statistic < 0 || (partial->empty & BANYAN_EMPTY_POS_INF);
  return (partial->empty & BANYAN_EMPTY_BELOW) && statistic <= partial->empty_below;
}

/* Returns false for an empty row. */
static bool read_weight(const sheet *sheet, int32_t token, int32_t head, double *log_weight, double *sum) {
  const banyan_partial *partial = &sheet->partial;
  double statistic = load_lse(sheet, token, head);
  *sum = partial->sum ? load_sum(sheet, token, head) : 1.0;
  if (means_empty(partial, statistic) || *sum == 0) return false;
  *log_weight = statistic * (partial->base == BANYAN_BASE_2 ? log(2.0) : 1.0) + log(*sum);
  return true;
}

static void read_values(const sheet *sheet, int32_t token, int32_t head, double sum, double *values) {
  double divisor = sheet->partial.values_kind == BANYAN_VALUES_NUMERATOR ? sum : 1.0;
  for (int32_t i = 0; i < sheet->value_dim; i++) values[i] = load_value(sheet, token, head, i) / divisor;
}

static double norm(const double *values, int32_t count) {
  double sum = 0;
  for (int32_t i = 0; i < count; i++) sum += values[i] * values[i];
  return sqrt(sum);
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

size_t sheet_row_bytes(int32_t value_dim) { return sizeof(sheet_row) + (size_t)value_dim * sizeof(double); }

static void merge_row(const sheet *sheets, int32_t nranks, int32_t token, int32_t head, double *scratch,
                      sheet_row *row) {
  int32_t value_dim = sheets[0].value_dim;
  double top = -INFINITY, total = 0, log_weight, sum;
  for (int32_t r = 0; r < nranks; r++)
    if (read_weight(&sheets[r], token, head, &log_weight, &sum)) top = fmax(top, log_weight);
  row->empty = top == -INFINITY;
  row->lse = top;
  if (row->empty) return;
  for (int32_t r = 0; r < nranks; r++) {
    if (!read_weight(&sheets[r], token, head, &log_weight, &sum)) continue;
    double weight = exp(log_weight - top);
    total += weight;
    read_values(&sheets[r], token, head, sum, scratch);
    for (int32_t i = 0; i < value_dim; i++) row->values[i] += weight * scratch[i];
    row->scale += weight * norm(scratch, value_dim);
    row->peak = fmax(row->peak, norm(scratch, value_dim));
    bool is_numerator = sheets[r].partial.values_kind == BANYAN_VALUES_NUMERATOR;
    row->coarse += weight * (is_numerator ? fmax(1, 0x1p-127 / sum) : 1);
  }
  for (int32_t i = 0; i < value_dim; i++) row->values[i] /= total;
  row->scale /= total;
  row->coarse /= total;
  row->lse = top + log(total);
}

void *sheet_merge(const sheet *sheets, int32_t nranks) {
  int32_t tokens = sheets[0].tokens, heads = sheets[0].heads, value_dim = sheets[0].value_dim;
  size_t row_bytes = sheet_row_bytes(value_dim);
  char *rows = world_take((size_t)tokens * (size_t)heads * row_bytes);
  double *scratch = calloc((size_t)value_dim + 1, sizeof *scratch);
  if (!scratch) abort();
  for (int32_t t = 0; t < tokens; t++)
    for (int32_t h = 0; h < heads; h++)
      merge_row(sheets, nranks, t, h, scratch,
                (sheet_row *)(void *)(rows + ((size_t)t * (size_t)heads + (size_t)h) * row_bytes));
  free(scratch);
  return rows;
}

/* ---- bounds ------------------------------------------------------------------------------------------------------ */

/* Half the distance of the numbers next to zero, with room for the scaling by a sum and by a sheet's scales. */
static double underflow(banyan_dtype dtype) {
  if (element_bytes(dtype) == 1) return dtype == BANYAN_E4M3 ? 0x1p-8 : 0x1p-15;
  return dtype == BANYAN_F16 ? 0x1p-24 : dtype == BANYAN_BF16 ? 0x1p-132 : 0x1p-148;
}

/* Every merge rounds in f32 two or three times. */
static double merging(const sheet_bounds *bounds) { return (bounds->nranks + 4) * 0x1p-23; }

static double value_bound(const sheet *out, const sheet_row *row, double sum, const sheet_bounds *bounds) {
  const banyan_partial *partial = &out->partial;
  double relative = merging(bounds) + oracle_unit(partial->values_dtype);
  double absolute = underflow(partial->values_dtype) + 0x1p-140 * bounds->nranks;
  if (bounds->wire != BANYAN_F32) {
    relative += bounds->rounds * oracle_unit(bounds->wire) * 1.01;
    absolute += bounds->rounds * underflow(bounds->wire) * 2 * row->coarse;
  }
  if (partial->values_kind == BANYAN_VALUES_NUMERATOR) {
    relative += oracle_unit(partial->stats_dtype);
    absolute += underflow(partial->values_dtype) / sum;
  }
  /* A merge may leave out ranks whose weight is such a small part. */
  return relative * 1.01 * row->scale + absolute * sqrt((double)out->value_dim) + 0x1p-46 * row->peak;
}

static double lse_bound(const sheet *out, const sheet_row *row, const sheet_bounds *bounds) {
  const banyan_partial *partial = &out->partial;
  double stored = partial->stats_kind == BANYAN_STATS_LSE ? fabs(row->lse) : 1.0; /* the rounded number: lse, or d */
  return merging(bounds) + fabs(row->lse) * 0x1p-23 + 1.01 * oracle_unit(partial->stats_dtype) * stored +
         underflow(partial->stats_dtype);
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static bool empty_matches(const sheet *out, int32_t token, int32_t head, char *why, size_t bytes) {
  const banyan_partial *partial = &out->partial;
  double form = partial->empty == BANYAN_EMPTY_NEG_INF   ? -(double)INFINITY
                : partial->empty == BANYAN_EMPTY_POS_INF ? (double)INFINITY
                                                         : partial->empty_below;
  for (int32_t i = 0; i < out->value_dim; i++)
    if (load_value(out, token, head, i) != 0)
      return snprintf(why, bytes, "value %d of an empty row is %g", i, load_value(out, token, head, i)), false;
  if (partial->lse && load_lse(out, token, head) != form)
    return snprintf(why, bytes, "the statistic of an empty row is %g, not %g", load_lse(out, token, head), form), false;
  if (partial->sum && load_sum(out, token, head) != 0)
    return snprintf(why, bytes, "the sum of an empty row is %g", load_sum(out, token, head)), false;
  return true;
}

static bool row_matches(const sheet *out, int32_t token, int32_t head, const sheet_row *row, const sheet_bounds *bounds,
                        double *values, char *why, size_t bytes) {
  if (row->empty) return empty_matches(out, token, head, why, bytes);
  double log_weight = row->lse, sum = 1;
  if (out->partial.lse) {
    if (!read_weight(out, token, head, &log_weight, &sum)) return snprintf(why, bytes, "is written as empty"), false;
    double error = fabs(log_weight - row->lse);
    if (!(error <= lse_bound(out, row, bounds)))
      return snprintf(why, bytes, "lse is %.9g, not %.9g: off by %g, at most %g", log_weight, row->lse, error,
                      lse_bound(out, row, bounds)),
             false;
  }
  read_values(out, token, head, sum, values);
  for (int32_t i = 0; i < out->value_dim; i++) values[i] -= row->values[i];
  double error = norm(values, out->value_dim), bound = value_bound(out, row, sum, bounds);
  if (error <= bound) return true;
  return snprintf(why, bytes, "values are off by %g, at most %g (scale %g)", error, bound, row->scale), false;
}

bool sheet_matches(const sheet *out, const void *reference, int32_t heads, int32_t token0, int32_t head0,
                   const sheet_bounds *bounds, char *why, size_t bytes) {
  double *values = calloc((size_t)out->value_dim + 1, sizeof *values);
  if (!values) abort();
  bool matches = true;
  char reason[160] = "";
  for (int32_t t = 0; t < out->tokens && matches; t++) {
    for (int32_t h = 0; h < out->heads && matches; h++) {
      size_t index = (size_t)(token0 + t) * (size_t)heads + (size_t)(head0 + h);
      const sheet_row *row = (const void *)((const char *)reference + index * sheet_row_bytes(out->value_dim));
      matches = row_matches(out, t, h, row, bounds, values, reason, sizeof reason);
      if (!matches) snprintf(why, bytes, "token %d, head %d: %s", token0 + t, head0 + h, reason);
    }
  }
  free(values);
  return matches;
}

bool sheet_same_bits(const sheet *a, int32_t at, int32_t ah, const sheet *b, int32_t bt, int32_t bh) {
  size_t stats = element_bytes(a->partial.stats_dtype);
  if (memcmp(value_address(a, at, ah), value_address(b, bt, bh),
             (size_t)a->value_dim * element_bytes(a->partial.values_dtype)) != 0)
    return false;
  if (a->partial.lse && memcmp(lse_address(a, at, ah), lse_address(b, bt, bh), stats) != 0) return false;
  return !a->partial.sum || memcmp(sum_address(a, at, ah), sum_address(b, bt, bh), stats) == 0;
}
