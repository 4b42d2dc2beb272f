/* SPDX-License-Identifier: Apache-2.0
 * Tests attention calls that fail, on emulated devices and on the host: wrong lengths, wrong pages, and rejected
 * calls. */
#include "tests/support/attend.h"

enum { WRONG_PAGE_KEYS = 16, WRONG_PAGE_KEYS_MAX = 100 };

typedef struct wrong {
  attend *of;
  int32_t length, page; /* the wrong length or page of rank 1's last sequence; INT32_MAX: correct */
  char named[96];       /* text in the error */
} wrong;

/* Checks that the error of rank 1 names its mistake, and that the errors of others name rank 1. */
static void check_wrong(world_rank *self) {
  const wrong *what = self->argument;
  banyan_status status = banyan_comm_status(self->comm);
  const char *text = banyan_comm_error(self->comm);
  world_check(self, status == BANYAN_ERR_ARGUMENT && banyan_comm_failed_rank(self->comm) == 1, "status %d: %s", status,
              text);
  if (self->rank == 1)
    world_check(self, strstr(text, "rank 1 gave attention") && strstr(text, what->named), "%s is not in: %s",
                what->named, text);
}

/* Describes the call, and on rank 1 a wrong one. */
static bool prepare(world_rank *self, const wrong *what, attend_call *call) {
  attend *of = what->of;
  if (!attend_ready(self, of, 0, call)) return false;
  attend_rank *rank = &of->ranks[self->rank];
  int32_t b = of->shape.batch - 1;
  if (self->rank != 1) return true;
  if (what->length != INT32_MAX) rank->lengths[b] = what->length;
  if (what->page == INT32_MAX) return true;
  if (rank->lengths[b] == 0) rank->lengths[b] = 1;
  int32_t row_pages = (int32_t)rank->shard.desc.kv.pages.table_stride, place = (rank->lengths[b] - 1) / WRONG_PAGE_KEYS;
  rank->shard.tables[0][b * row_pages + place] = what->page;
  snprintf(((wrong *)self->argument)->named, sizeof what->named, "page_table[%d][%d] is %d", b, place, what->page);
  if (place + 1 < row_pages) rank->shard.tables[0][b * row_pages + place + 1] = INT32_MAX; /* no key is on this page */
  return true;
}

/* The fault is on rank 1. Rank 0 learns of it if it waits for rows of rank 1. The sanitizer checks that no invalid
 * memory is read. */
static void attend_wrongly(world_rank *self) {
  const wrong *what = self->argument;
  banyan_op *op = NULL;
  attend_call call;
  if (!prepare(self, what, &call)) return;
  if (world_ok(self, attend_init(self, what->of, &call, &op), "init")) world_ok(self, banyan_start(op), "start");
  if (world_finish(self)) {
    if (self->rank == 1) check_wrong(self);
    if (world_meet(self) && self->rank == 0 && !what->of->alone) check_wrong(self);
  }
  banyan_op_free(op);
}

static wrong make(uint64_t seed, const char *algorithm, bool paged) {
  wrong made = {.of = attend_make_plain(2, seed, NULL), .length = INT32_MAX, .page = INT32_MAX};
  made.of->alone = !algorithm, made.of->combine.algorithm = algorithm;
  if (paged) made.of->shape.page_keys = WRONG_PAGE_KEYS, made.of->shape.keys_max = WRONG_PAGE_KEYS_MAX;
  return made;
}

static void run(wrong what) {
  attend_fill(what.of);
  if (what.length != INT32_MAX) snprintf(what.named, sizeof what.named, "seq_lens[%d]", what.of->shape.batch - 1);
  WORLD_RUN(attend_wrongly, .nranks = 2, .on = &world_emulated, .argument = &what);
}

TEST_LOOP(wrong_lengths, 3) {
  if (!world_is_here(&world_emulated)) return;
  wrong what = make(120 + (uint64_t)_i, _i == 2 ? NULL : "oneshot", false);
  what.length = _i == 1 ? -3 : what.of->shape.keys_max + 1;
  if (_i == 0) what.of->shape.batch = 40;
  run(what);
}

/* Attention's kernel sends the rows, or a combine of its own does, or there is none; attention also runs by general
 * kernels. Kernels of MLA for few heads and for many find the page elsewhere. Only page tables are tested. */
TEST_LOOP(wrong_pages, 8) {
  static const char *const algorithms[] = {"oneshot", "ring", NULL, "oneshot"};
  if (!world_is_here(&world_emulated)) return;
  wrong what = make(140 + (uint64_t)_i, algorithms[_i % 4], true);
  problem_shape *shape = &what.of->shape;
  if (_i >= 4) shape->latent = true, shape->head_dim = 576, shape->value_dim = 512, shape->kv_heads = 1;
  if (_i >= 4) shape->heads = _i % 2 ? 5 : 40;
  what.page = _i ? -1 : shape->batch * ((WRONG_PAGE_KEYS_MAX + WRONG_PAGE_KEYS - 1) / WRONG_PAGE_KEYS);
  what.of->cap = _i == 3 ? 5 : 0;
  run(what);
}

/* The host finds the fault before it reads anything, in every call. The communicator remains usable. */
static void attend_beyond_on_host(world_rank *self) {
  const wrong *what = self->argument;
  attend_rank *rank = &what->of->ranks[self->rank];
  banyan_op *op = NULL;
  attend_call call;
  if (!prepare(self, what, &call) || !world_meet(self) ||
      !world_ok(self, attend_init(self, what->of, &call, &op), "init"))
    return;
  if (self->rank == 1) {
    int32_t b = what->of->shape.batch - 1, place = (rank->lengths[b] - 1) / WRONG_PAGE_KEYS;
    char named[96];
    snprintf(named, sizeof named, "page_table[%d][%d] is -1, must be 0 to %d", b, place,
             (int32_t)rank->shard.desc.kv.pages.count - 1);
    world_gets(self, banyan_start(op), BANYAN_ERR_ARGUMENT, named);
    rank->shard.tables[0][b * rank->shard.desc.kv.pages.table_stride + place] = 0;
  }
  if (world_ok(self, banyan_start(op), "start")) world_ok(self, banyan_wait(op), "wait");
  world_ok(self, banyan_barrier(self->comm), "barrier");
  banyan_op_free(op);
}

TEST(wrong_pages_on_host) {
  wrong what = make(150, NULL, true);
  what.page = -1;
  attend_fill(what.of);
  WORLD_RUN(attend_beyond_on_host, .nranks = 2, .argument = &what);
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

/* Devices reject these, with a text that names the cause. */
#define CASES                                                                                            \
  CASE(UNSUPPORTED, "kv_dtype", desc.kv.dtype = BANYAN_F32)                                              \
  CASE(UNSUPPORTED, "BANYAN_BF16", desc.q_dtype = desc.kv.dtype = BANYAN_F32)                            \
  CASE(ARGUMENT, "keys_max is 0", desc.keys_max = 0)                                                     \
  CASE(UNSUPPORTED, "no kernel for head_dim 32", desc.head_dim = desc.value_dim = 32)                    \
  CASE(UNSUPPORTED, "value_dim 32", desc.value_dim = 32)                                                 \
  CASE(UNSUPPORTED, "rows of k are not 16-byte aligned", desc.kv.k = (const char *)desc.kv.k + 2)        \
  CASE(UNSUPPORTED, "rows of v are not 16-byte aligned", desc.kv.v_head_stride += 4)                     \
  CASE(ARGUMENT, "page_keys is 0", pages->table = desc.kv.seq_lens, pages->keys = 0)                     \
  CASE(ARGUMENT, "page_table is NULL", pages->keys = 16)                                                 \
  CASE(ARGUMENT, "keys_max is 33, and page_table_stride of 2 has room", pages->table = desc.kv.seq_lens, \
       pages->table_stride = 2, pages->keys = 16, desc.batch = 2, desc.keys_max = 33)                    \
  CASE(ARGUMENT, "pages is 7 and page_table is NULL", pages->count = 7)                                  \
  CASE(UNSUPPORTED, "seq_lens", desc.kv.seq_lens = NULL)

/* A combine with attention on devices rejects these. */
#define COMBINE_CASES                                    \
  CASE(ARGUMENT, "but attention gives", combine.heads++) \
  CASE(ARGUMENT, "stream", combine.stream = self)        \
  CASE(UNSUPPORTED, "attention on devices has no", combine.order = BANYAN_ORDER_EXACT)

static void reject(world_rank *self) {
  attend *of = self->argument;
  attend_call call;
  banyan_op *op = NULL;
  attend_call_of(of, self, &call);
#define CASE(status, says, ...)                                                                            \
  {                                                                                                        \
    banyan_attention_desc desc = call.desc;                                                                \
    banyan_pages *pages CK_ATTRIBUTE_UNUSED = &desc.kv.pages;                                              \
    __VA_ARGS__;                                                                                           \
    world_gets(self, banyan_attention_init(self->comm, &desc, &call.out, &op), BANYAN_ERR_##status, says); \
  }
  CASES
#undef CASE
#define CASE(status, says, ...)                                                                       \
  {                                                                                                   \
    banyan_combine_desc combine = call.combine;                                                       \
    __VA_ARGS__;                                                                                      \
    world_gets(self, banyan_attention_combine_init(self->comm, &call.desc, &combine, &call.out, &op), \
               BANYAN_ERR_##status, says);                                                            \
  }
  COMBINE_CASES
#undef CASE
}

TEST(rejections) {
  const problem_shape shape = {
      .batch = 2, .heads = 2, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .dtype = BANYAN_BF16, .keys_max = 40};
  if (!world_is_here(&world_emulated)) return;
  attend *of = attend_make_plain(2, 200, &shape);
  attend_fill(of);
  WORLD_RUN(reject, .nranks = 2, .on = &world_emulated, .argument = of);
}

int main(void) { return world_main(suite_of("device_attention_fail", 60)); }
