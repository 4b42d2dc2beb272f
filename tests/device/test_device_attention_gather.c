/* SPDX-License-Identifier: Apache-2.0
 * Attention on devices of the fake driver that gathers q first: the bits of attention to a q that is whole, by
 * operations and by blocking calls, within one kernel and apart. */
#include <check.h>

#include "tests/support/suite.h"
#include "tests/device/device_attention.h"

#if !defined HAVE_CUDA || !defined HAVE_CXX17
int main(void) {
  puts("built without CUDA, or without a compiler of C++17");
  return 77;
}
#else

typedef struct share {
  uint16_t *mine, *q;
  int32_t counts[RANKS_MAX];
  banyan_heads_desc gather;
  banyan_attention_desc desc;
} share;

/* Rank 0 has one head more than it would be dealt, if there are enough. */
static void make(const attention_set *set, int32_t rank, int32_t nranks, void *stream, share *made) {
  const problem_shape *shape = &set->shape;
  size_t elements = (size_t)(shape->batch * shape->heads * shape->head_dim);
  int32_t first = 0, dim = shape->head_dim;
  for (int32_t r = 0, begin; r < nranks; r++) banyan_split(shape->heads, nranks, r, &begin, &made->counts[r]);
  if (nranks > 1 && made->counts[1] > 0) made->counts[0]++, made->counts[1]--;
  for (int32_t r = 0; r < rank; r++) first += made->counts[r];
  made->mine = calloc(elements + 64, sizeof *made->mine);
  made->q = aligned_alloc(64, (2 * elements + 63) / 64 * 64);
  if (!made->mine || !made->q) abort();
  memset(made->q, 0xff, 2 * elements);
  for (int32_t b = 0; b < shape->batch; b++)
    memcpy(made->mine + b * made->counts[rank] * dim, set->q + (b * shape->heads + first) * dim,
           (size_t)(made->counts[rank] * dim) * sizeof *made->mine);
  made->gather = (banyan_heads_desc){.size = sizeof made->gather,
                                     .tokens = shape->batch,
                                     .heads = shape->heads,
                                     .dim = dim,
                                     .dtype = shape->dtype,
                                     .counts = made->counts};
  made->desc = set->shards[rank].desc;
  made->desc.stream = stream;
  made->desc.q = made->q;
  made->desc.q_mine = made->mine;
  made->desc.gather = &made->gather;
}

static bool start(world_rank *self, attention_set *set, share *of, bool blocks, banyan_op **op) {
  banyan_partial out = attention_result(set, set->values[self->rank], set->lse[self->rank]);
  banyan_combine_desc combine = attention_combine(set, of->desc.stream);
  if (blocks) return world_ok(self, banyan_attention_combine(self->comm, &of->desc, &combine, &out), "call");
  return world_ok(self, banyan_attention_combine_init(self->comm, &of->desc, &combine, &out, op), "init") &&
         world_ok(self, banyan_start(*op), "start") && world_ok(self, banyan_wait(*op), "wait");
}

static void attend(world_rank *self) {
  enum { CASES = 4 };
  attention_task *task = self->argument;
  device_world_own own;
  share shares[CASES] = {{NULL}};
  banyan_op *ops[CASES][2] = {{NULL}};
  bool good = device_world_join(self, self->rank) && device_world_make_own(self, self->rank, &own);
  for (int i = 0; i < CASES && good; i++) {
    attention_set *set = &task->sets[i];
    banyan_attention_desc *whole = &set->shards[self->rank].desc;
    banyan_partial out = attention_result(set, set->other_values[self->rank], set->other_lse[self->rank]);
    banyan_combine_desc combine = attention_combine(set, own.stream);
    whole->stream = own.stream;
    make(set, self->rank, self->nranks, own.stream, &shares[i]);
    good = start(self, set, &shares[i], i % 2 == 1, &ops[i][0]) &&
           world_ok(self, banyan_attention_combine_init(self->comm, whole, &combine, &out, &ops[i][1]), "init") &&
           world_ok(self, banyan_start(ops[i][1]), "start");
  }
  if (good && device_world_run(self)) world_ok(self, banyan_comm_status(self->comm), "status");
  for (int i = 0; i < CASES; i++) {
    banyan_op_free(ops[i][0]);
    banyan_op_free(ops[i][1]);
    free(shares[i].mine);
    free(shares[i].q);
  }
  device_world_free_own(&own);
}

TEST_RANGE(devices_gather_and_attend, 1, RANKS_MAX) {
  attention_task *task = attention_task_make(_i, 300 + (uint64_t)_i);
  for (int i = 0; i < SETS; i++) {
    task->sets[i].scatter = BANYAN_SCATTER_NONE;
    task->sets[i].wire = BANYAN_F32;
    task->sets[i].algorithm = i >= 2 ? "ring" : "oneshot";
  }
  device_world_begin(RANKS_MAX, "");
  attention_run(task, attend);
  for (int i = 0; i < 4; i++) {
    const attention_set *set = &task->sets[i];
    size_t rows = attention_rows(&set->shape), values = rows * (size_t)set->shape.value_dim;
    for (int32_t r = 0; r < _i; r++)
      ck_assert_msg(memcmp(set->values[r], set->other_values[r], values * sizeof(float)) == 0 &&
                        memcmp(set->lse[r], set->other_lse[r], rows * sizeof(float)) == 0,
                    "set %d, rank %d of %d: other bits than with a whole q", i, r, _i);
  }
  device_world_end();
  attention_task_free(task);
}

int main(void) { return world_main(suite_of("device attention gather", 240)); }
#endif
