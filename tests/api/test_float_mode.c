/* SPDX-License-Identifier: Apache-2.0
 * The floating-point mode of one rank's caller changes no bit of any rank, and is the same after each call. */
#include <fenv.h>

#include "base/float_control.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/flush.h"
#include "tests/support/world.h"

enum { RANKS = 3, TOKENS = 3, HEADS = 4, DIM = 32, KEYS = 700, ROUNDINGS = 4, MODES = ROUNDINGS * 4 * 2 };

typedef enum kind { COMBINE, COMBINE_WAIT, ATTENTION_COMBINE, ATTENTION, CALLS } kind;

typedef struct rows {
  float values[TOKENS * HEADS * DIM], lse[TOKENS * HEADS];
} rows;

typedef struct task {
  banyan_order order;
  rows *usual[RANKS]; /* [CALLS] results in the usual mode */
  uint64_t mode;      /* the caller of rank 1 has it */
} task;

/* Mode `index` of MODES: rounding, flushing of results and of inputs, and whether exceptions trap. */
static uint64_t mode_of(int index) {
  uint64_t usual = bny_float_control();
  static const int roundings[ROUNDINGS] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  fesetround(roundings[index % ROUNDINGS]);
  uint64_t mode = bny_float_control(), flush = (uint64_t)FLOAT_FLUSH;
  bny_float_control_set(usual);
  uint64_t first = flush & -flush; /* the two bits of x86 are separate */
  if (index / ROUNDINGS & 1) mode |= first;
  if (index / ROUNDINGS & 2) mode |= flush & ~first ? flush & ~first : first;
#if defined(__x86_64__)
  if (index / ROUNDINGS & 4) mode &= ~(uint64_t)0x1fbf; /* exceptions trap; none is pending */
#endif
  return mode;
}

static bool is_mode(uint64_t mode) { return ((bny_float_control() ^ mode) & ~(uint64_t)0x3f) == 0; }

/* The inputs of one rank, with denormal numbers and a row whose m is far below all others. */
typedef struct inputs {
  float values[TOKENS * HEADS * DIM], m[TOKENS * HEADS], d[TOKENS * HEADS], q[TOKENS * HEADS * DIM];
  float k[TOKENS * KEYS * DIM], v[TOKENS * KEYS * DIM];
} inputs;

static float draw(uint64_t *state) { return (float)((double)(random_next(state) >> 11) * 0x1p-52 - 1); }

static void fill(inputs *in, int32_t rank) {
  static const float scales[] = {1, 1e-3f, 1e-38f, 1e-41f};
  uint64_t state = 17 + (uint64_t)rank;
  for (int i = 0; i < TOKENS * HEADS * DIM; i++) in->values[i] = draw(&state) * scales[i / DIM % 4];
  for (int i = 0; i < TOKENS * KEYS * DIM; i++) in->v[i] = draw(&state) * scales[i / DIM % 4];
  for (int i = 0; i < TOKENS * HEADS; i++) in->m[i] = i == 1 ? -1e30f : 3 * draw(&state);
  for (int i = 0; i < TOKENS * HEADS; i++) in->d[i] = 1.5f + draw(&state);
  for (int i = 0; i < TOKENS * HEADS * DIM; i++) in->q[i] = 3 * draw(&state);
  for (int i = 0; i < TOKENS * KEYS * DIM; i++) in->k[i] = 3 * draw(&state);
}

static int look_at_mode(void *context) {
  world_rank *self = context;
  const task *task = self->argument;
  world_check(self, is_mode(task->mode), "the check runs in mode %#llx", (unsigned long long)bny_float_control());
  return 0;
}

static banyan_status make_call(world_rank *self, const inputs *from, kind call, rows *out) {
  const task *task = self->argument;
  int32_t lengths[TOKENS] = {KEYS, 5, KEYS / 2};
  banyan_combine_desc desc = BANYAN_COMBINE_DESC_INIT;
  banyan_attention_desc local =
      attention_desc_of(TOKENS, HEADS, 1, KEYS, DIM, DIM, BANYAN_F32, BANYAN_F32, from->q, from->k, from->v, lengths);
  banyan_partial in, merged;
  banyan_op *op = NULL;
  desc.tokens = TOKENS, desc.heads = HEADS, desc.value_dim = DIM, desc.order = task->order;
  banyan_partial_init(&in, (void *)(uintptr_t)from->values, BANYAN_F32, (void *)(uintptr_t)from->m, BANYAN_F32, HEADS,
                      DIM);
  in.stats_kind = BANYAN_STATS_MAX_SUM;
  in.sum = (void *)(uintptr_t)from->d;
  banyan_partial_init(&merged, out->values, BANYAN_F32, out->lse, BANYAN_F32, HEADS, DIM);
  local.scale = 0.17f;
  bool odd = self->rank == 1 && task->mode;
  if (odd) bny_float_control_set(task->mode);
  banyan_status status = BANYAN_OK;
  switch (call) {
  case COMBINE: status = banyan_combine(self->comm, &desc, &in, &merged); break;
  case COMBINE_WAIT:
    status = banyan_combine_init(self->comm, &desc, &in, &merged, &op);
    if (status == BANYAN_OK) status = banyan_start(op);
    if (status == BANYAN_OK) status = banyan_wait(op);
    banyan_op_free(op);
    break;
  case ATTENTION_COMBINE: status = banyan_attention_combine(self->comm, &local, &desc, &merged); break;
  default: status = banyan_attention(&local, &merged); break;
  }
  bool kept = !odd || is_mode(task->mode);
  bny_float_control_set(BNY_FLOAT_USUAL);
  world_check(self, kept, "call %d leaves another mode than it found", (int)call);
  return status;
}

static void run_calls(world_rank *self) {
  const task *task = self->argument;
  uint64_t mode = task->mode;
  banyan_comm_config config = BANYAN_COMM_CONFIG_INIT;
  config.threads = 2;
  if (self->rank == 1 && mode) bny_float_control_set(mode), banyan_on_wait(look_at_mode, self);
  banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
  bny_float_control_set(BNY_FLOAT_USUAL);
  if (!world_ok(self, status, "create")) return;
  inputs *from = malloc(sizeof *from);
  fill(from, self->rank);
  for (int call = 0; call < CALLS; call++) {
    rows *found = calloc(1, sizeof *found), *usual = &task->usual[self->rank][call];
    if (world_ok(self, make_call(self, from, (kind)call, mode ? found : usual), "call") && mode)
      world_check(self, memcmp(found, usual, sizeof *found) == 0, "mode %#llx changes bits of call %d",
                  (unsigned long long)mode, call);
    free(found);
  }
  free(from);
  banyan_on_wait(NULL, NULL);
}

TEST_LOOP(mode_of_one_rank_changes_nothing, 3) {
  task task = {.order = (banyan_order)_i};
  for (int32_t r = 0; r < RANKS; r++) task.usual[r] = world_take(CALLS * sizeof(rows));
  WORLD_RUN(run_calls, .nranks = RANKS, .bare = true, .argument = &task);
  for (int32_t r = 1; r < RANKS; r++) ck_assert_mem_eq(task.usual[r], task.usual[0], ATTENTION * sizeof(rows));
  for (int i = 1; i < MODES; i++) {
    task.mode = mode_of(i);
    WORLD_RUN(run_calls, .nranks = RANKS, .bare = true, .argument = &task);
  }
}

int main(void) { return world_main(suite_of("float_mode", 120)); }
