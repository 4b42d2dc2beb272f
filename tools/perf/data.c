/* SPDX-License-Identifier: Apache-2.0
 * Inputs that each rank can compute for every other, so results are checked without messages. */
#include "tools/perf/perf.h"

#include <math.h>
#include <string.h>

enum { SUMS_CHECKED = 4096, ROWS_CHECKED = 512 };

/* 32 bits that depend on all bits of `x`; a loop over it vectorises. */
static inline uint32_t mix32(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

static uint32_t key_of_rank(uint32_t key, int32_t rank) {
  return mix32(mix32(key) + 0x9e3779b9U * (uint32_t)(rank + 1));
}

static uint32_t key_of_row(uint32_t rank_key, int64_t row) {
  return mix32(rank_key ^ (0x85ebca6bU * (uint32_t)(row + 1)));
}

static float max_of_row(uint32_t row_key) { return (float)(row_key & 15) - 8; }

static float sum_of_row(uint32_t row_key) { return 1 + (float)(row_key >> 8 & 0xffff) * 0x1p-16f; }

static inline float value_of(uint32_t row_key, uint32_t i) {
  return 0.5f + (float)(int32_t)(mix32(row_key + i * 0x9e3779b9U) >> 8) * 0x1p-24f;
}

void perf_rows_fill(const perf_rows *rows, uint32_t key, int32_t rank) {
  uint32_t rank_key = key_of_rank(key, rank);
  for (int64_t r = 0; r < rows->rows; r++) {
    uint32_t row_key = key_of_row(rank_key, r);
    float *values = rows->values + r * rows->row_stride;
    rows->max[r * rows->stat_stride] = max_of_row(row_key);
    rows->sum[r * rows->stat_stride] = sum_of_row(row_key);
    for (int32_t i = 0; i < rows->dim; i++) values[i] = value_of(row_key, (uint32_t)i);
  }
}

/* Computes one row from all ranks: d = sum of d 2^(m - max), o = sum of n 2^(m - max) / d. */
static double check_row(int64_t row, int32_t dim, const float *out, uint32_t key, int32_t nranks, double *want) {
  double max = -INFINITY, sum = 0, difference = 0, length = 0;
  for (int32_t rank = 0; rank < nranks; rank++)
    max = fmax(max, (double)max_of_row(key_of_row(key_of_rank(key, rank), row)));
  memset(want, 0, (size_t)dim * sizeof *want);
  for (int32_t rank = 0; rank < nranks; rank++) {
    uint32_t row_key = key_of_row(key_of_rank(key, rank), row);
    double factor = exp2((double)max_of_row(row_key) - max);
    sum += factor * (double)sum_of_row(row_key);
    for (int32_t i = 0; i < dim; i++) want[i] += factor * (double)value_of(row_key, (uint32_t)i);
  }
  for (int32_t i = 0; i < dim; i++) {
    double delta = (double)out[i] - want[i] / sum;
    difference += delta * delta;
    length += want[i] / sum * (want[i] / sum);
  }
  double relative = length > 0 ? sqrt(difference / length) : 0;
  return isnan(relative) ? INFINITY : relative;
}

void perf_rows_check(const perf_case *perf, const tool_part *part, const float *out, uint32_t key, int32_t nranks,
                     double bound, perf_errors *errors) {
  int32_t dim = perf->combine.value_dim;
  int64_t rows = (int64_t)part->tokens * part->heads;
  int64_t step = rows > ROWS_CHECKED ? rows / ROWS_CHECKED : 1;
  size_t mark = tool_mark();
  double *want = tool_new((size_t)dim, sizeof *want);
  for (int64_t r = step > 1 ? key % step : 0; r < rows; r += step) {
    int64_t token = part->token0 + r / part->heads, head = part->head0 + r % part->heads;
    double relative = check_row(token * perf->combine.heads + head, dim, out + r * dim, key, nranks, want);
    errors->worst = fmax(errors->worst, relative);
    errors->wrong += !(relative <= bound);
  }
  tool_release(mark);
}

/* Whole numbers, whose sums are exact. */
static inline float whole_of(uint32_t rank_key, size_t i) { return (float)(mix32(rank_key + (uint32_t)i) & 15) - 8; }

static void sums_fill(float *values, size_t count, uint32_t key, int32_t rank) {
  uint32_t rank_key = key_of_rank(key, rank);
  for (size_t i = 0; i < count; i++) values[i] = whole_of(rank_key, i);
}

static size_t sums_check(const float *sums, size_t count, uint32_t key, int32_t nranks) {
  size_t wrong = 0, step = 1 + count / SUMS_CHECKED;
  for (size_t i = 0; i < count; i += step) {
    float sum = 0;
    for (int32_t rank = 0; rank < nranks; rank++) sum += whole_of(key_of_rank(key, rank), i);
    wrong += sums[i] != sum;
  }
  return wrong;
}

/* Scores fall along a list, and those of ranks cross and tie. */
static inline float score_of(uint32_t rank_key, size_t place) {
  return -3 * (float)place - (float)(mix32(rank_key + (uint32_t)place) & 3);
}

perf_list perf_list_at(void *memory, size_t bytes) {
  size_t count = bytes / PERF_PAIR_BYTES;
  return (perf_list){memory, (float *)(void *)((char *)memory + count * sizeof(int64_t)), count};
}

static void list_fill(const perf_list *list, uint32_t key, int32_t rank, int32_t nranks) {
  for (size_t i = 0; i < list->count; i++) {
    list->scores[i] = score_of(key_of_rank(key, rank), i);
    list->indices[i] = (int64_t)i * nranks + rank;
  }
}

static bool comes_before(float score, int64_t index, float other, int64_t other_index) {
  return score > other || (score >= other && index < other_index);
}

void perf_list_merge(const perf_list *from, int32_t nranks, const perf_list *to) {
  size_t mark = tool_mark(), *next = tool_new((size_t)nranks, sizeof *next);
  for (size_t i = 0; i < to->count; i++) {
    int32_t best = 0;
    for (int32_t r = 1; r < nranks; r++)
      if (comes_before(from[r].scores[next[r]], from[r].indices[next[r]], from[best].scores[next[best]],
                       from[best].indices[next[best]]))
        best = r;
    to->scores[i] = from[best].scores[next[best]];
    to->indices[i] = from[best].indices[next[best]++];
  }
  tool_release(mark);
}

/* The result is a beginning of each rank's list, in order, and what follows it in a list is not better. */
static size_t list_check(const perf_list *list, uint32_t key, int32_t nranks) {
  size_t mark = tool_mark(), wrong = 0, last = list->count - 1, *next = tool_new((size_t)nranks, sizeof *next);
  for (size_t i = 0; i < list->count; i++) {
    int32_t rank = (int32_t)((uint64_t)list->indices[i] % (uint64_t)nranks);
    size_t place = next[rank]++;
    wrong += list->indices[i] != (int64_t)place * nranks + rank ||
             list->scores[i] != score_of(key_of_rank(key, rank), place) ||
             (i > 0 && !comes_before(list->scores[i - 1], list->indices[i - 1], list->scores[i], list->indices[i]));
  }
  for (int32_t r = 0; r < nranks; r++)
    wrong += next[r] <= last && comes_before(score_of(key_of_rank(key, r), next[r]), (int64_t)next[r] * nranks + r,
                                             list->scores[last], list->indices[last]);
  tool_release(mark);
  return wrong;
}

static void bytes_fill(void *data, size_t bytes, uint32_t key, int32_t rank) {
  uint32_t rank_key = key_of_rank(key, rank);
  char *p = data;
  for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
    uint32_t word = mix32(rank_key + (uint32_t)(i / sizeof word));
    memcpy(p + i, &word, bytes - i < sizeof word ? bytes - i : sizeof word);
  }
}

static size_t bytes_check(const void *data, size_t bytes, uint32_t key, int32_t rank) {
  uint32_t rank_key = key_of_rank(key, rank);
  const char *p = data;
  size_t wrong = 0;
  for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
    uint32_t word = mix32(rank_key + (uint32_t)(i / sizeof word));
    size_t step = bytes - i < sizeof word ? bytes - i : sizeof word;
    wrong += memcmp(p + i, &word, step) != 0 ? step : 0;
  }
  return wrong;
}

/* Heads of a rank are interleaved by token. */
static size_t heads_check(const void *all, size_t bytes, size_t tokens, int32_t nranks, uint32_t key) {
  size_t line = bytes / tokens, wrong = 0, mark = tool_mark();
  char *share = tool_take(bytes);
  for (int32_t r = 0; r < nranks; r++) {
    for (size_t t = 0; t < tokens; t++)
      memcpy(share + t * line, (const char *)all + (t * (size_t)nranks + (size_t)r) * line, line);
    wrong += bytes_check(share, bytes, key, r);
  }
  tool_release(mark);
  return wrong;
}

/* ---- by collective ----------------------------------------------------------------------------------------------- */

void perf_input_fill(const perf_method *method, uint32_t key) {
  const perf_case *perf = method->perf;
  int32_t rank = perf->world->rank;
  perf_list list;
  switch (perf->collective) {
  case BNY_COMBINE: perf_rows_fill(&method->rows, key, rank); break;
  case BNY_ALLREDUCE: sums_fill(method->input, perf->bytes / sizeof(float), key, rank); break;
  case BNY_SELECT:
    list = perf_list_at(method->input, perf->bytes);
    list_fill(&list, key, rank, perf->world->nranks);
    break;
  case BNY_BROADCAST:
    if (rank == 0) bytes_fill(method->input, perf->bytes, key, rank);
    break;
  default: bytes_fill(method->input, perf->bytes, key, rank); break;
  }
}

void perf_output_check(const perf_method *method, uint32_t key, perf_errors *errors) {
  const perf_case *perf = method->perf;
  int32_t rank = perf->world->rank, nranks = perf->world->nranks;
  size_t wrong = 0;
  perf_list list;
  switch (perf->collective) {
  case BNY_COMBINE:
    perf_rows_check(perf, &method->part, method->output, key, nranks,
                    method->op != NULL ? tool_error_bound_of(perf->combine.wire, method->op)
                                       : tool_error_bound(BANYAN_F32, 0),
                    errors);
    break;
  case BNY_ALLREDUCE: wrong = sums_check(method->output, perf->bytes / sizeof(float), key, nranks); break;
  case BNY_SELECT:
    list = perf_list_at(method->output, perf->bytes);
    wrong = list_check(&list, key, nranks);
    break;
  case BNY_ALLGATHER_HEADS:
    wrong = heads_check(method->output, perf->bytes, (size_t)perf->combine.tokens, nranks, key);
    break;
  case BNY_ALLGATHER:
    for (int32_t r = 0; r < nranks; r++)
      wrong += bytes_check((char *)method->output + (size_t)r * perf->bytes, perf->bytes, key, r);
    break;
  case BNY_SHIFT: wrong = bytes_check(method->output, perf->bytes, key, (rank + nranks - 1) % nranks); break;
  case BNY_BROADCAST: wrong = bytes_check(method->output, perf->bytes, key, 0); break;
  default: break;
  }
  errors->wrong += (int64_t)wrong;
}
