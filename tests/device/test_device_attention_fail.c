/* SPDX-License-Identifier: Apache-2.0
 * Tests attention calls that fail, on emulated devices and on the host: wrong lengths, wrong pages, and rejected
 * calls. */
#include "tests/support/attend.h"

enum { WRONG_PAGE_KEYS = 16, WRONG_PAGE_KEYS_MAX = 100 };

typedef struct wrong {
  attend *of;
  bool alone;
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

static void draw(world_rank *self, const wrong *what) {
  attend *of = what->of;
  if (self->rank == 0) attend_draw_shared(of, 0);
  attend_draw(of, self->rank, 0);
  attend_rank *rank = &of->ranks[self->rank];
  int32_t b = of->shape.batch - 1;
  if (self->rank != 1) return;
  if (what->length != INT32_MAX) rank->lengths[b] = what->length;
  if (what->page == INT32_MAX) return;
  if (rank->lengths[b] == 0) rank->lengths[b] = 1;
  int32_t row_pages = (int32_t)rank->shard.desc.kv.pages.table_stride, place = (rank->lengths[b] - 1) / WRONG_PAGE_KEYS;
  rank->shard.pages[b * row_pages + place] = what->page;
  snprintf(((wrong *)self->argument)->named, sizeof what->named, "page_table[%d][%d] is %d", b, place, what->page);
  if (place + 1 < row_pages) rank->shard.pages[b * row_pages + place + 1] = INT32_MAX; /* no key is on this page */
}

/* The fault is on rank 1. Rank 0 learns of it if it waits for rows of rank 1. The sanitizer checks that no invalid
 * memory is read. */
static void attend_wrongly(world_rank *self) {
  const wrong *what = self->argument;
  banyan_op *op = NULL;
  attend_call call;
  draw(self, what);
  attend_call_of(what->of, self, &call);
  banyan_status status = what->alone
                             ? banyan_attention_init(self->comm, &call.desc, &call.out, &op)
                             : banyan_attention_combine_init(self->comm, &call.desc, &call.combine, &call.out, &op);
  if (world_ok(self, status, "init")) world_ok(self, banyan_start(op), "start");
  if (world_finish(self)) {
    if (self->rank == 1) check_wrong(self);
    if (world_meet(self) && self->rank == 0 && !what->alone) check_wrong(self);
  }
  banyan_op_free(op);
}

static wrong make(uint64_t seed, const char *algorithm, bool paged) {
  wrong made = {.of = attend_make_plain(2, seed, NULL), .alone = !algorithm, .length = INT32_MAX, .page = INT32_MAX};
  made.of->combine.algorithm = algorithm;
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
  draw(self, what);
  attend_call_of(what->of, self, &call);
  if (!world_meet(self) || !world_ok(self, banyan_attention_init(self->comm, &call.desc, &call.out, &op), "init"))
    return;
  if (self->rank == 1) {
    int32_t b = what->of->shape.batch - 1, place = (rank->lengths[b] - 1) / WRONG_PAGE_KEYS;
    char named[96];
    snprintf(named, sizeof named, "page_table[%d][%d] is -1, must be 0 to %d", b, place,
             (int32_t)rank->shard.desc.kv.pages.count - 1);
    banyan_status status = banyan_start(op);
    world_check(self, status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), named),
                "status %d, %s is not in: %s", status, named, banyan_last_error());
    rank->shard.pages[b * rank->shard.desc.kv.pages.table_stride + place] = 0;
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

typedef struct rejection {
  const char *says;
  banyan_status status;
  void (*spoil)(banyan_attention_desc *desc);
} rejection;

static void spoil_dtype(banyan_attention_desc *desc) { desc->kv.dtype = BANYAN_F32; }
static void spoil_both_dtypes(banyan_attention_desc *desc) { desc->q_dtype = desc->kv.dtype = BANYAN_F32; }
static void spoil_keys_max(banyan_attention_desc *desc) { desc->keys_max = 0; }
static void spoil_head_dim(banyan_attention_desc *desc) { desc->head_dim = desc->value_dim = 32; }
static void spoil_value_dim(banyan_attention_desc *desc) { desc->value_dim = 32; }
static void spoil_alignment(banyan_attention_desc *desc) { desc->kv.k = (const char *)desc->kv.k + 2; }
static void spoil_stride(banyan_attention_desc *desc) { desc->kv.v_head_stride += 4; }
static void spoil_pages(banyan_attention_desc *desc) {
  desc->kv.pages.table = desc->kv.seq_lens, desc->kv.pages.keys = 0;
}
static void spoil_page_keys(banyan_attention_desc *desc) { desc->kv.pages.keys = 16; }
static void spoil_table(banyan_attention_desc *desc) {
  desc->kv.pages.table = desc->kv.seq_lens, desc->kv.pages.table_stride = 2, desc->kv.pages.keys = 16, desc->batch = 2,
  desc->keys_max = 33;
}
static void spoil_page_count(banyan_attention_desc *desc) { desc->kv.pages.count = 7; }
static void spoil_lengths(banyan_attention_desc *desc) { desc->kv.seq_lens = NULL; }

static const rejection rejections_of_devices[] = {
    {"kv_dtype", BANYAN_ERR_UNSUPPORTED, spoil_dtype},
    {"BANYAN_BF16", BANYAN_ERR_UNSUPPORTED, spoil_both_dtypes},
    {"keys_max is 0", BANYAN_ERR_ARGUMENT, spoil_keys_max},
    {"no kernel for head_dim 32", BANYAN_ERR_UNSUPPORTED, spoil_head_dim},
    {"value_dim 32", BANYAN_ERR_UNSUPPORTED, spoil_value_dim},
    {"rows of k are not 16-byte aligned", BANYAN_ERR_UNSUPPORTED, spoil_alignment},
    {"rows of v are not 16-byte aligned", BANYAN_ERR_UNSUPPORTED, spoil_stride},
    {"page_keys is 0", BANYAN_ERR_ARGUMENT, spoil_pages},
    {"page_table is NULL", BANYAN_ERR_ARGUMENT, spoil_page_keys},
    {"keys_max is 33, and page_table_stride of 2 has room", BANYAN_ERR_ARGUMENT, spoil_table},
    {"pages is 7 and page_table is NULL", BANYAN_ERR_ARGUMENT, spoil_page_count},
    {"seq_lens", BANYAN_ERR_UNSUPPORTED, spoil_lengths},
};

static void reject(world_rank *self) {
  attend *of = self->argument;
  attend_call call;
  attend_call_of(of, self, &call);
  for (size_t i = 0; i < sizeof rejections_of_devices / sizeof rejections_of_devices[0]; i++) {
    const rejection *rejection = &rejections_of_devices[i];
    banyan_attention_desc desc = call.desc;
    banyan_op *op = NULL;
    rejection->spoil(&desc);
    banyan_status status = banyan_attention_init(self->comm, &desc, &call.out, &op);
    world_check(self, status == rejection->status && strstr(banyan_last_error(), rejection->says),
                "case %zu: status %d: %s", i, status, banyan_last_error());
  }
  banyan_op *op = NULL;
  call.combine.heads++;
  banyan_status status = banyan_attention_combine_init(self->comm, &call.desc, &call.combine, &call.out, &op);
  world_check(self, status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), "but attention gives"), "%s",
              banyan_last_error());
  call.combine.heads--;
  call.combine.stream = self;
  status = banyan_attention_combine_init(self->comm, &call.desc, &call.combine, &call.out, &op);
  world_check(self, status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), "stream"), "%s", banyan_last_error());
  call.combine.stream = call.desc.stream, call.combine.order = BANYAN_ORDER_EXACT;
  status = banyan_attention_combine_init(self->comm, &call.desc, &call.combine, &call.out, &op);
  world_check(self, status == BANYAN_ERR_UNSUPPORTED && strstr(banyan_last_error(), "attention on devices has no"),
              "%s", banyan_last_error());
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
