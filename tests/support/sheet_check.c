/* SPDX-License-Identifier: Apache-2.0
 * The merge of sheets by the oracle, and comparisons with results. */
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

oracle_row *sheet_merge(const sheet *sheets, int32_t nranks) {
  const int32_t heads = sheets[0].heads, count = sheets[0].tokens * heads, value_dim = sheets[0].value_dim;
  oracle_row *rows = world_take((size_t)count * sizeof *rows), *parts = calloc((size_t)nranks, sizeof *parts);
  if (!parts) abort();
  for (int32_t i = 0; i < count; i++) {
    for (int32_t r = 0; r < nranks; r++) parts[r] = oracle_read(&sheets[r].partial, i / heads, i % heads, value_dim);
    rows[i] = oracle_merge(parts, nranks, value_dim);
  }
  free(parts);
  return rows;
}

bool sheet_matches(const sheet *out, const oracle_row *reference, int32_t heads, int32_t token0, int32_t head0,
                   banyan_dtype wire, int32_t rounds, char *why, size_t bytes) {
  for (int32_t t = 0; t < out->tokens; t++)
    for (int32_t h = 0; h < out->heads; h++) {
      const oracle_row *expected = &reference[(token0 + t) * heads + head0 + h];
      const char *wrong = oracle_compare(&out->partial, t, h, out->value_dim, wire, (uint64_t)rounds, expected);
      if (wrong) return snprintf(why, bytes, "token %d, head %d: %s", token0 + t, head0 + h, wrong), false;
    }
  return true;
}

bool sheet_same_bits(const sheet *a, int32_t at, int32_t ah, const sheet *b, int32_t bt, int32_t bh) {
  size_t stats = element_bytes(a->partial.stats_dtype);
  if (memcmp(value_address(a, at, ah), value_address(b, bt, bh),
             (size_t)a->value_dim * element_bytes(a->partial.values_dtype)) != 0)
    return false;
  if (a->partial.lse && memcmp(lse_address(a, at, ah), lse_address(b, bt, bh), stats) != 0) return false;
  return !a->partial.sum || memcmp(sum_address(a, at, ah), sum_address(b, bt, bh), stats) == 0;
}
