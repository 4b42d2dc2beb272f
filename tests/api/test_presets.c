/* SPDX-License-Identifier: Apache-2.0
 * Each preset against memory that the test lays out in the way of that kernel, and against attention over the keys of
 * all ranks in double precision. */
#include "tests/support/world.h"

enum { RANKS = 3, TOKENS = 3, HEADS = 4, DIM = 5, KEYS = 2, ROWS = TOKENS * HEADS };

/* Memory of a rank; ggml keeps values in `stats`. */
typedef struct memory {
  float values[ROWS * DIM], stats[ROWS * (2 + DIM)];
} memory;

static double logit(int32_t rank, int row, int key) { return sin(rank * 7 + row * 3 + key) * 4; }
static double value(int32_t rank, int row, int key, int i) { return cos(rank + row * 5 + key * 11 + i); }

/* Token 1 has no keys on any rank, and token 2 none on rank 1. */
static bool is_empty(int32_t rank, int row) { return row / HEADS == 1 || (row / HEADS == 2 && rank == 1); }

/* Addresses of a row's numbers, written out for each kernel. */
static float *value_at(memory *memory, banyan_preset preset, int row, int i) {
  return preset == BANYAN_PRESET_GGML ? &memory->stats[row * (2 + DIM) + 2 + i] : &memory->values[row * DIM + i];
}

static float *stat_at(memory *memory, banyan_preset preset, int row) {
  int token = row / HEADS, head = row % HEADS;
  switch (preset) {
  case BANYAN_PRESET_FLASH_ATTENTION_2:
  case BANYAN_PRESET_FLASH_ATTENTION_3: return &memory->stats[head * TOKENS + token];
  case BANYAN_PRESET_TENSORRT_LLM_HELIX: return &memory->stats[2 * row];
  case BANYAN_PRESET_GGML: return &memory->stats[row * (2 + DIM)];
  default: return &memory->stats[row];
  }
}

static bool has_sum(banyan_preset preset) {
  return preset == BANYAN_PRESET_TENSORRT_LLM_HELIX || preset == BANYAN_PRESET_GGML;
}

static double empty_of(banyan_preset preset) {
  bool positive = preset == BANYAN_PRESET_FLASH_ATTENTION_2 || preset == BANYAN_PRESET_FLASHMLA;
  return positive ? (double)INFINITY : -(double)INFINITY;
}

/* The output of each kernel: its maximum or lse, and values divided by the sum unless they are numerators. */
static void attend(memory *memory, banyan_preset preset, int32_t rank) {
  for (int row = 0; row < ROWS; row++) {
    bool empty = is_empty(rank, row);
    double top = fmax(logit(rank, row, 0), logit(rank, row, 1)), sum = 0;
    for (int key = 0; key < KEYS; key++) sum += exp(logit(rank, row, key) - top);
    for (int i = 0; i < DIM; i++) {
      double n = 0;
      for (int key = 0; key < KEYS; key++) n += exp(logit(rank, row, key) - top) * value(rank, row, key, i);
      *value_at(memory, preset, row, i) = empty ? NAN : (float)(preset == BANYAN_PRESET_GGML ? n : n / sum);
    }
    double lse = (top + log(sum)) * (preset == BANYAN_PRESET_FLASHINFER ? 1 / log(2.0) : 1);
    *stat_at(memory, preset, row) = (float)(empty ? empty_of(preset) : has_sum(preset) ? top : lse);
    if (has_sum(preset)) stat_at(memory, preset, row)[1] = empty ? 0 : (float)sum;
  }
}

static bool row_holds(world_rank *self, memory *memory, banyan_preset preset, int row) {
  double sum = 0, stat = (double)*stat_at(memory, preset, row),
         d = has_sum(preset) ? stat_at(memory, preset, row)[1] : 1;
  for (int32_t r = 0; r < RANKS; r++)
    for (int key = 0; key < KEYS && !is_empty(r, row); key++) sum += exp(logit(r, row, key));
  if (sum == 0) return world_check(self, stat == empty_of(preset), "an empty row has %g", stat);
  double lse = stat * (preset == BANYAN_PRESET_FLASHINFER ? log(2.0) : 1) + log(d);
  if (!world_check(self, fabs(lse - log(sum)) < 1e-5, "preset %d, row %d: lse is %g, not %g", preset, row, lse,
                   log(sum)))
    return false;
  for (int i = 0; i < DIM; i++) {
    double n = 0, found = (double)*value_at(memory, preset, row, i) / (preset == BANYAN_PRESET_GGML ? d : 1);
    for (int32_t r = 0; r < RANKS; r++)
      for (int key = 0; key < KEYS && !is_empty(r, row); key++) n += exp(logit(r, row, key)) * value(r, row, key, i);
    if (!world_check(self, fabs(found - n / sum) < 1e-5, "preset %d, row %d: value %d is %g, not %g", preset, row, i,
                     found, n / sum))
      return false;
  }
  return true;
}

static void combine(world_rank *self) {
  banyan_preset preset = (banyan_preset)(intptr_t)self->argument;
  memory *given = calloc(2, sizeof *given), *result = given + 1;
  banyan_partial in, out;
  bool rows = preset == BANYAN_PRESET_GGML;
  attend(given, preset, self->rank);
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = TOKENS, .heads = HEADS, .value_dim = DIM};
  if (world_ok(
          self,
          banyan_partial_preset(&in, preset, rows ? NULL : given->values, BANYAN_F32, given->stats, TOKENS, HEADS, DIM),
          "preset") &&
      world_ok(self,
               banyan_partial_preset(&out, preset, rows ? NULL : result->values, BANYAN_F32, result->stats, TOKENS,
                                     HEADS, DIM),
               "preset") &&
      world_ok(self, banyan_combine(self->comm, &desc, &in, &out), "combine"))
    for (int row = 0; row < ROWS && row_holds(self, result, preset, row); row++) continue;
  free(given);
}

TEST_RANGE(presets_are_what_kernels_leave, BANYAN_PRESET_FLASH_ATTENTION_2, BANYAN_PRESET_TORCH + 1) {
  world_run(&(world_setup){.nranks = RANKS, .argument = (void *)(intptr_t)_i}, combine);
}

int main(void) { return world_main(suite_of("presets", 0)); }
