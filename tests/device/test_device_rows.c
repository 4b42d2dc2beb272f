/* SPDX-License-Identifier: Apache-2.0
 * Keys and values of E4M3 with scales, and rows of FlashMLA, on devices from banyan.h down and combined over ranks,
 * beside attention on the host to the same memory. */
#include <check.h>

#include "f8.h"
#include "flashmla.h"
#include "tests/device/device_attention.h"

enum { BATCH = 3, KEYS = 70, HEADS = 16, VALUES_MAX = 512, ROWS = BATCH * HEADS };

static const double bound = 2e-3; /* q and weights are split into terms of 16 bits, values are below 4 */

typedef struct rows_task {
  bool flashmla;
  int32_t nranks, kv_heads, head_dim, value_dim;
  uint16_t *q;
  uint8_t *k[RANKS_MAX], *v[RANKS_MAX];
  float scales[8];
  int32_t lengths[RANKS_MAX][BATCH];
  float values[RANKS_MAX][ROWS * VALUES_MAX], lse[RANKS_MAX][ROWS];
  float expected[ROWS * VALUES_MAX], expected_lse[ROWS];
} rows_task;

static void fill_codes(world_random *random, uint8_t *to, size_t count) {
  for (size_t i = 0; i < count; i++) to[i] = bny_e4m3_of_float((float)random_unit(random));
}

/* Rows of 656 bytes, one after another. */
static void fill_flashmla(world_random *random, uint8_t *to, size_t rows) {
  for (size_t row = 0; row < rows; row++, to += BNY_FLASHMLA_BYTES) {
    fill_codes(random, to, BNY_FLASHMLA_CODES);
    for (int i = 0; i < BNY_FLASHMLA_CODES / BNY_FLASHMLA_GROUP; i++) {
      float scale = (float)(0.75 + 0.5 * random_unit(random));
      memcpy(to + BNY_FLASHMLA_CODES + 4 * i, &scale, sizeof scale);
    }
    for (int i = 0; i < BNY_FLASHMLA_ROPE; i++) {
      uint16_t element = problem_bits(BANYAN_BF16, random_unit(random));
      memcpy(to + BNY_FLASHMLA_ROPE_AT + 2 * i, &element, sizeof element);
    }
  }
}

static rows_task *rows_task_make(int32_t nranks, bool flashmla, uint64_t seed) {
  world_random random = {world_seed() * 1000 + seed};
  rows_task *made = calloc(1, sizeof *made);
  made->flashmla = flashmla;
  made->nranks = nranks;
  made->kv_heads = flashmla ? 1 : 1 + random_below(&random, 4) / 3;
  made->head_dim = flashmla ? BNY_FLASHMLA_DIM : 64 << random_below(&random, 3);
  made->value_dim = flashmla ? BNY_FLASHMLA_CODES : made->head_dim;
  size_t queries = (size_t)(ROWS * made->head_dim), rows = (size_t)(BATCH * made->kv_heads * KEYS);
  made->q = aligned_alloc(64, 2 * queries);
  for (size_t i = 0; i < queries; i++) made->q[i] = problem_bits(BANYAN_BF16, random_unit(&random));
  for (int i = 0; i < 8; i++) made->scales[i] = (float)(1 + 0.5 * random_unit(&random));
  for (int32_t r = 0; r < nranks; r++) {
    size_t bytes = rows * (size_t)(flashmla ? BNY_FLASHMLA_BYTES : made->head_dim);
    made->k[r] = aligned_alloc(64, (bytes + 63) / 64 * 64);
    made->v[r] = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (flashmla)
      fill_flashmla(&random, made->k[r], rows);
    else
      fill_codes(&random, made->k[r], bytes);
    fill_codes(&random, made->v[r], bytes);
    for (int32_t b = 0; b < BATCH; b++)
      made->lengths[r][b] = random_one_in(&random, 5) ? 0 : 1 + random_below(&random, KEYS);
  }
  return made;
}

static void rows_task_free(rows_task *made) {
  free(made->q);
  for (int32_t r = 0; r < made->nranks; r++) {
    free(made->k[r]);
    free(made->v[r]);
  }
  free(made);
}

static banyan_attention_desc describe(rows_task *made, int32_t rank) {
  int32_t row = made->flashmla ? BNY_FLASHMLA_BYTES : made->head_dim;
  banyan_attention_desc desc = {.size = sizeof desc,
                                .batch = BATCH,
                                .heads = HEADS,
                                .kv_heads = made->kv_heads,
                                .head_dim = made->head_dim,
                                .value_dim = made->value_dim,
                                .q_dtype = BANYAN_BF16,
                                .kv_dtype = BANYAN_E4M3,
                                .q = made->q,
                                .q_batch_stride = HEADS * made->head_dim,
                                .q_head_stride = made->head_dim,
                                .k = made->k[rank],
                                .k_batch_stride = (int64_t)made->kv_heads * KEYS * row,
                                .k_head_stride = KEYS * row,
                                .k_token_stride = row,
                                .v = made->flashmla ? made->k[rank] : made->v[rank],
                                .v_batch_stride = (int64_t)made->kv_heads * KEYS * row,
                                .v_head_stride = KEYS * row,
                                .v_token_stride = row,
                                .seq_lens = made->lengths[rank],
                                .keys_max = KEYS};
  if (made->flashmla) {
    desc.kv_rows = BANYAN_KV_ROWS_FLASHMLA_FP8;
    return desc;
  }
  desc.scales.k = made->scales;
  desc.scales.v = made->scales + 4;
  desc.scales.head_stride = made->kv_heads > 1;
  return desc;
}

static banyan_combine_desc combine_of(const rows_task *made) {
  banyan_combine_desc combine = BANYAN_COMBINE_DESC_INIT;
  combine.tokens = BATCH;
  combine.heads = HEADS;
  combine.value_dim = made->value_dim;
  return combine;
}

static void attend(world_rank *self) {
  rows_task *made = self->argument;
  device_world_own own = {NULL, NULL, NULL};
  banyan_op *op = NULL;
  if (!device_world_join(self, self->rank) || !device_world_make_own(self, self->rank, &own)) return;
  banyan_attention_desc desc = describe(made, self->rank);
  desc.stream = own.stream;
  banyan_combine_desc combine = combine_of(made);
  combine.stream = own.stream;
  banyan_partial out;
  banyan_partial_init(&out, made->values[self->rank], BANYAN_F32, made->lse[self->rank], BANYAN_F32, HEADS,
                      made->value_dim);
  if (world_ok(self, banyan_attention_combine_init(self->comm, &desc, &combine, &out, &op), "init") &&
      world_ok(self, banyan_start(op), "start") && world_ok(self, banyan_wait(op), "wait") && device_world_run(self))
    world_ok(self, banyan_comm_status(self->comm), "status");
  banyan_op_free(op);
  device_world_free_own(&own);
}

static void attend_on_host(world_rank *self) {
  rows_task *made = self->argument;
  banyan_attention_desc desc = describe(made, self->rank);
  banyan_combine_desc combine = combine_of(made);
  combine.scatter = BANYAN_SCATTER_ROOT;
  banyan_partial out;
  banyan_partial_init(&out, made->expected, BANYAN_F32, made->expected_lse, BANYAN_F32, HEADS, made->value_dim);
  world_ok(self, banyan_attention_combine(self->comm, &desc, &combine, self->rank == 0 ? &out : NULL), "on the host");
}

static void compare(const rows_task *made) {
  for (int32_t r = 0; r < made->nranks; r++)
    for (int32_t row = 0; row < ROWS; row++) {
      float lse = made->lse[r][row], expected = made->expected_lse[row];
      bool good = lse == expected || fabs((double)lse - (double)expected) <= bound;
      for (int32_t i = 0; i < made->value_dim; i++) {
        size_t at = (size_t)row * (size_t)made->value_dim + (size_t)i;
        good = good && fabs((double)made->values[r][at] - (double)made->expected[at]) <= bound;
      }
      ck_assert_msg(good, "rank %d, row %d: lse %g and on the host %g; %d x %d of %d", r, row, (double)lse,
                    (double)expected, made->kv_heads, made->head_dim, made->flashmla);
    }
}

START_TEST(rows_of_eight_bits_are_those_of_the_host) {
  int32_t nranks = 1 + _i % 3;
  rows_task *made = rows_task_make(nranks, _i % 2, (uint64_t)_i);
  world_setup setup = {.nranks = nranks, .argument = made};
  world_run(&setup, attend_on_host);
  device_world_begin(nranks, "");
  setup.bare = true;
  world_run(&setup, attend);
  device_world_end();
  compare(made);
  rows_task_free(made);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("device_rows");
  TCase *devices = tcase_create("devices");
  tcase_set_timeout(devices, 120);
#if defined HAVE_CUDA && defined HAVE_CXX17
  tcase_add_loop_test(devices, rows_of_eight_bits_are_those_of_the_host, 0, 8);
#else
  (void)rows_of_eight_bits_are_those_of_the_host;
#endif
  suite_add_tcase(suite, devices);
  return world_main(suite);
}
