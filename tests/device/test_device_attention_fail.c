/* SPDX-License-Identifier: Apache-2.0
 * Attention that goes wrong, on devices of the fake driver and on the host: lengths and pages that are not there, and
 * what is refused. */
#include <check.h>

#include "tests/device/device_attention.h"
#include "tests/support/suite.h"

/* Rank 1 has done something wrong: its error says what, that of the others says who. */
static void check_wrong(world_rank *self) {
  const attention_task *task = self->argument;
  banyan_status status = banyan_comm_status(self->comm);
  const char *text = banyan_comm_error(self->comm);
  world_check(self, status == BANYAN_ERR_ARGUMENT && banyan_comm_failed_rank(self->comm) == 1, "status %d: %s", status,
              text);
  if (self->rank == 1)
    world_check(self, strstr(text, "rank 1 gave attention") && strstr(text, task->wrong), "%s is not in: %s",
                task->wrong, text);
}

/* The fault is on rank 1; rank 0 learns of it if it waits for rows of rank 1. No invalid memory is read: the sanitizer
 * checks that. */
static void attend_wrongly(world_rank *self) {
  attention_task *task = self->argument;
  attention_set *set = &task->sets[0];
  const bool alone = set->algorithm == NULL;
  banyan_op *op = NULL;
  banyan_partial out = attention_result(set, set->values[self->rank], set->lse[self->rank]);
  banyan_attention_desc *desc = &set->shards[self->rank].desc;
  banyan_combine_desc combine = attention_combine(set, NULL);
  if (!device_world_join(self, self->rank)) return;
  bool good = alone ? world_ok(self, banyan_attention_init(self->comm, desc, &out, &op), "init")
                    : world_ok(self, banyan_attention_combine_init(self->comm, desc, &combine, &out, &op), "init");
  if (good) world_ok(self, banyan_start(op), "start");
  if (device_world_run(self)) {
    if (self->rank == 1) check_wrong(self);
    if (world_meet(self) && self->rank == 0 && !alone) check_wrong(self);
  }
  banyan_op_free(op);
}

/* ---- lengths that are wrong -------------------------------------------------------------------------------------- */

enum { TOO_LONG, NEGATIVE, ALONE_TOO_LONG, WRONG_LENGTHS };

TEST_LOOP(wrong_lengths, DEVICE_TESTS(WRONG_LENGTHS)) {
  device_world_begin(2, "");
  attention_task *task = attention_task_make(2, 120 + (uint64_t)_i);
  attention_set *set = &task->sets[0];
  set->scatter = BANYAN_SCATTER_NONE;
  set->algorithm = _i == ALONE_TOO_LONG ? NULL : "oneshot";
  set->shards[1].lengths[set->shape.batch - 1] = _i == NEGATIVE ? -3 : set->shape.keys_max + 1;
  snprintf(task->wrong, sizeof task->wrong, "seq_lens[%d]", set->shape.batch - 1);
  attention_run(task, attend_wrongly);
  device_world_end();
  attention_task_free(task);
}

/* ---- pages that are not there ------------------------------------------------------------------------------------ */

enum { PAGES_WITHIN, PAGES_APART, PAGES_ALONE, WRONG_PAGES };
enum { WRONG_PAGE_KEYS = 16, WRONG_PAGE_KEYS_MAX = 100 };

/* All ranks have another set of paged shards; the last page of rank 1's last sequence is no page. */
static void spoil_page(attention_task *task, int32_t id) {
  attention_set *set = &task->sets[0];
  world_random random = {world_seed()};
  set->shape.page_keys = WRONG_PAGE_KEYS;
  set->shape.keys_max = WRONG_PAGE_KEYS_MAX;
  for (int32_t r = 0; r < task->nranks; r++) {
    problem_shard_free(&set->shards[r]);
    problem_shard_make(&random, &set->shape, set->q, &set->shards[r]);
  }
  problem_shard *shard = &set->shards[1];
  int32_t b = set->shape.batch - 1, row_pages = (int32_t)shard->desc.pages.table_stride;
  int32_t length = shard->lengths[b] = shard->lengths[b] > 0 ? shard->lengths[b] : 1,
          place = (length - 1) / WRONG_PAGE_KEYS;
  int32_t wrong = shard->pages[b * row_pages + place] = id < 0 ? id : (int32_t)shard->desc.pages.count;
  snprintf(task->wrong, sizeof task->wrong, "page_table[%d][%d] is %d", b, place, wrong);
  if (place + 1 < row_pages) shard->pages[b * row_pages + place + 1] = INT32_MAX; /* a page without keys */
}

TEST_LOOP(wrong_pages, DEVICE_TESTS(WRONG_PAGES)) {
  device_world_begin(2, "");
  attention_task *task = attention_task_make(2, 140 + (uint64_t)_i);
  attention_set *set = &task->sets[0];
  set->scatter = BANYAN_SCATTER_NONE;
  set->algorithm = _i == PAGES_ALONE ? NULL : _i == PAGES_APART ? "ring" : "oneshot";
  spoil_page(task, _i == PAGES_WITHIN ? 0 : -1);
  attention_run(task, attend_wrongly);
  device_world_end();
  attention_task_free(task);
}

/* On the host it is found before anything is read, each time; the communicator remains usable. */
static void attend_beyond_on_host(world_rank *self) {
  attention_task *task = self->argument;
  attention_set *set = &task->sets[0];
  problem_shard *shard = &set->shards[self->rank];
  banyan_op *op = NULL;
  banyan_partial out = attention_result(set, set->values[self->rank], set->lse[self->rank]);
  if (!device_world_join(self, -1) ||
      !world_ok(self, banyan_attention_init(self->comm, &shard->desc, &out, &op), "init"))
    return;
  if (self->rank == 1) {
    int32_t b = set->shape.batch - 1, place = (shard->lengths[b] - 1) / WRONG_PAGE_KEYS;
    char named[96];
    snprintf(named, sizeof named, "page_table[%d][%d] is -1, must be 0 to %d", b, place,
             (int32_t)shard->desc.pages.count - 1);
    banyan_status status = banyan_start(op);
    world_check(self, status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), named),
                "status %d, %s is not in: %s", status, named, banyan_last_error());
    shard->pages[b * shard->desc.pages.table_stride + place] = 0;
  }
  if (world_ok(self, banyan_start(op), "start")) world_ok(self, banyan_wait(op), "wait");
  world_ok(self, banyan_barrier(self->comm), "barrier");
  banyan_op_free(op);
}

TEST(wrong_pages_on_host) {
  attention_task *task = attention_task_make(2, 150);
  task->host = true;
  spoil_page(task, -1);
  attention_run(task, attend_beyond_on_host);
  attention_task_free(task);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

typedef struct refusal {
  const char *says;
  banyan_status status;
  void (*spoil)(banyan_attention_desc *desc);
} refusal;

static void spoil_dtype(banyan_attention_desc *desc) { desc->kv_dtype = BANYAN_F32; }
static void spoil_both_dtypes(banyan_attention_desc *desc) { desc->q_dtype = desc->kv_dtype = BANYAN_F32; }
static void spoil_keys_max(banyan_attention_desc *desc) { desc->keys_max = 0; }
static void spoil_head_dim(banyan_attention_desc *desc) { desc->head_dim = desc->value_dim = 32; }
static void spoil_value_dim(banyan_attention_desc *desc) { desc->value_dim = 32; }
static void spoil_alignment(banyan_attention_desc *desc) { desc->k = (const char *)desc->k + 2; }
static void spoil_stride(banyan_attention_desc *desc) { desc->v_head_stride += 4; }
static void spoil_pages(banyan_attention_desc *desc) { desc->pages.table = desc->seq_lens, desc->pages.keys = 0; }
static void spoil_page_keys(banyan_attention_desc *desc) { desc->pages.keys = 16; }
static void spoil_table(banyan_attention_desc *desc) {
  desc->pages.table = desc->seq_lens, desc->pages.table_stride = 2, desc->pages.keys = 16, desc->batch = 2,
  desc->keys_max = 33;
}
static void spoil_page_count(banyan_attention_desc *desc) { desc->pages.count = 7; }
static void spoil_lengths(banyan_attention_desc *desc) { desc->seq_lens = NULL; }

static const refusal refusals_of_devices[] = {
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

static void refuse(world_rank *self) {
  attention_task *task = self->argument;
  attention_set *set = &task->sets[0];
  banyan_partial out = attention_result(set, set->values[self->rank], set->lse[self->rank]);
  if (!device_world_join(self, self->rank)) return;
  for (size_t i = 0; i < sizeof refusals_of_devices / sizeof refusals_of_devices[0]; i++) {
    const refusal *refusal = &refusals_of_devices[i];
    banyan_attention_desc desc = set->shards[self->rank].desc;
    banyan_op *op = NULL;
    refusal->spoil(&desc);
    banyan_status status = banyan_attention_init(self->comm, &desc, &out, &op);
    world_check(self, status == refusal->status && strstr(banyan_last_error(), refusal->says),
                "case %zu: status %d: %s", i, status, banyan_last_error());
  }
  banyan_attention_desc *desc = &set->shards[self->rank].desc;
  banyan_combine_desc combine = attention_combine(set, NULL);
  banyan_op *op = NULL;
  combine.heads++;
  banyan_status status = banyan_attention_combine_init(self->comm, desc, &combine, &out, &op);
  world_check(self, status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), "but attention gives"), "%s",
              banyan_last_error());
  combine.heads--;
  combine.stream = self;
  status = banyan_attention_combine_init(self->comm, desc, &combine, &out, &op);
  world_check(self, status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), "stream"), "%s", banyan_last_error());
}

TEST_LOOP(refusals, DEVICE_TESTS(1)) {
  device_world_begin(2, "");
  attention_task *task = attention_task_make(2, 200);
  attention_set *set = &task->sets[0];
  world_random random = {world_seed()};
  for (int32_t r = 0; r < 2; r++) {
    problem_shard_free(&set->shards[r]);
    set->shape.page_keys = 0;
    set->shape.latent = false;
    set->shape.head_dim = set->shape.value_dim = 64;
    set->shape.kv_heads = 2;
    set->shape.heads = 2;
    problem_shard_make(&random, &set->shape, set->q, &set->shards[r]);
  }
  attention_run(task, refuse);
  device_world_end();
  attention_task_free(task);
}

int main(void) { return world_main(suite_of("device_attention_fail", 60)); }
