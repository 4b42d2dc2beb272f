/* SPDX-License-Identifier: Apache-2.0
 * Attention on devices, from banyan.h down, where rows see some keys alone, logits have a cap or a sink, pages are in
 * lists, and q has two parts: alone, and combined over ranks. */
#include <check.h>

#include "tests/device/device_attention.h"

static const double bound = 3e-5;

/* Memory that a rank's description points to beside its shard. */
typedef struct query_extra {
  banyan_queries queries;
  int32_t query_start[PROBLEM_BATCH_MAX], key_start[PROBLEM_BATCH_MAX], indptr[PROBLEM_BATCH_MAX + 1];
  int32_t list[PROBLEM_BATCH_MAX * 100], last[PROBLEM_BATCH_MAX];
  uint64_t tree[PROBLEM_BATCH_MAX];
  float sinks[200];
} query_extra;

typedef struct query_task {
  attention_task *task;
  query_extra extra[RANKS_MAX];
  uint16_t *rope;

} query_task;

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Shards lie one after another, or in blocks that take turns. */
static void ask(world_random *random, query_task *made, int32_t nranks) {
  attention_set *set = &made->task->sets[0];
  const int32_t block = random_one_in(random, 2) ? 1 + random_below(random, 9) : 0;
  const int32_t window = random_one_in(random, 2) ? 1 + random_below(random, 80) : 0;
  const bool tree = random_one_in(random, 3);
  for (int32_t b = 0; b < set->shape.batch; b++) {
    const int32_t start = random_below(random, set->shape.keys_max * nranks + 1);
    const uint64_t bits = (uint64_t)random_below(random, INT32_MAX) << 33 | (uint64_t)random_below(random, INT32_MAX);
    for (int32_t r = 0, first = 0; r < nranks; r++) {
      query_extra *extra = &made->extra[r];
      extra->query_start[b] = start;
      extra->tree[b] = bits;
      extra->key_start[b] = block ? r * block : first;
      first += set->shards[r].lengths[b];
    }
  }
  for (int32_t r = 0; r < nranks; r++) {
    query_extra *extra = &made->extra[r];
    extra->queries = (banyan_queries){.size = sizeof extra->queries,
                                      .tokens = set->shape.batch,
                                      .query_start = extra->query_start,
                                      .key_start = extra->key_start,
                                      .tree_mask = tree ? extra->tree : NULL,
                                      .key_block = block,
                                      .key_stride = block * nranks,
                                      .window = window};
    set->shards[r].desc.queries = &extra->queries;
  }
}

static void list_pages(query_extra *extra, banyan_attention_desc *desc) {
  for (int32_t b = 0; b < desc->batch; b++) {
    const int32_t pages = (desc->seq_lens[b] + desc->pages.keys - 1) / desc->pages.keys;
    for (int32_t i = 0; i < pages; i++)
      extra->list[extra->indptr[b] + i] = desc->pages.table[b * desc->pages.table_stride + i];
    extra->indptr[b + 1] = extra->indptr[b] + pages;
    extra->last[b] = pages ? desc->seq_lens[b] - (pages - 1) * desc->pages.keys : 0;
  }
  desc->pages.table = extra->list;
  desc->pages.table_stride = 0;
  desc->pages.indptr = extra->indptr;
  desc->pages.last_len = extra->last;
}

/* The last columns of q move to memory of their own, and what they leave is NaN. */
static uint16_t *split_queries(attention_set *set, int32_t nranks, int32_t dim) {
  const problem_shape *shape = &set->shape;
  const size_t rows = attention_rows(shape), nope = (size_t)(shape->head_dim - dim);
  uint16_t *rope = aligned_alloc(64, (2 * rows * (size_t)dim + 63) / 64 * 64);
  for (size_t row = 0; row < rows; row++) {
    uint16_t *from = set->q + row * (size_t)shape->head_dim + nope;
    memcpy(rope + row * (size_t)dim, from, 2 * (size_t)dim);
  }
  for (int32_t r = 0; r < nranks; r++) {
    banyan_attention_desc *desc = &set->shards[r].desc;
    desc->rope.dim = dim;
    desc->rope.q = rope;
    desc->rope.head_stride = dim;
    desc->rope.batch_stride = shape->heads * dim;
  }
  return rope;
}

static query_task *query_task_make(int32_t nranks, uint64_t seed) {
  query_task *made = calloc(1, sizeof *made);
  world_random random = {world_seed() * 1000 + seed};
  made->task = attention_task_make(nranks, 500 + seed);
  attention_set *set = &made->task->sets[0];
  set->scatter = BANYAN_SCATTER_NONE;
  ask(&random, made, nranks);
  const float cap = random_one_in(&random, 2) ? 2 + 10 * (float)fabs(random_unit(&random)) : 0;
  for (int32_t r = 0; r < nranks; r++) {
    banyan_attention_desc *desc = &set->shards[r].desc;
    desc->soft_cap = cap;
    desc->sinks = made->extra[0].sinks; /* they count on the first rank alone */
    if (desc->pages.table) list_pages(&made->extra[r], desc);
  }
  for (int32_t h = 0; h < set->shape.heads; h++)
    made->extra[0].sinks[h] = h % 4 == 3 ? -INFINITY : 0.3f * (float)(h % 7);
  if (random_one_in(&random, 2)) made->rope = split_queries(set, nranks, 8 << random_below(&random, 3));
  return made;
}

static void query_task_free(query_task *made) {
  attention_task_free(made->task);
  free(made->rope);
  free(made);
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

static bool sees(const banyan_attention_desc *desc, int32_t b, int32_t t) {
  const banyan_queries *queries = desc->queries;
  const int64_t own = queries->query_start[b], block = queries->key_block ? queries->key_block : INT32_MAX;
  const int64_t position = queries->key_start[b] + t / block * queries->key_stride + t % block;
  if (queries->window && position <= own - queries->window) return false;
  if (!queries->tree_mask || position < own) return position <= own;
  return position < own + 64 && (queries->tree_mask[b] >> (position - own) & 1);
}

static double logit_of(const query_task *made, int32_t r, int32_t b, int32_t head, int32_t t) {
  const problem_shard *shard = &made->task->sets[0].shards[r];
  banyan_attention_desc *desc = (banyan_attention_desc *)(uintptr_t)&shard->desc;
  if (!sees(desc, b, t)) return -INFINITY;
  const double logit = problem_logit(shard, b, head, t);
  return desc->soft_cap != 0 ? (double)desc->soft_cap * tanh(logit / (double)desc->soft_cap) : logit;
}

/* problem_key() reads tables alone. */
static void use_tables(query_task *made) {
  attention_set *set = &made->task->sets[0];
  for (int32_t r = 0; r < made->task->nranks; r++) {
    banyan_attention_desc *desc = &set->shards[r].desc;
    if (!desc->pages.table) continue;
    desc->pages.table = set->shards[r].pages;
    desc->pages.table_stride = (set->shape.keys_max + desc->pages.keys - 1) / desc->pages.keys;
  }
}

static void reference_of(const query_task *made, int32_t b, int32_t head, problem_row *row) {
  const attention_set *set = &made->task->sets[0];
  memset(row, 0, sizeof *row);
  const double sink = (double)set->shards[0].desc.sinks[head];
  row->max = sink;
  for (int32_t r = 0; r < made->task->nranks; r++)
    for (int32_t t = 0; t < set->shards[r].lengths[b]; t++) row->max = fmax(row->max, logit_of(made, r, b, head, t));
  if (isinf(row->max)) return;
  row->sum = exp(sink - row->max);
  for (int32_t r = 0; r < made->task->nranks; r++) {
    const banyan_attention_desc *desc = &set->shards[r].desc;
    for (int32_t t = 0; t < set->shards[r].lengths[b]; t++) {
      const double p = exp(logit_of(made, r, b, head, t) - row->max);
      const uint16_t *v = problem_key(&set->shards[r], desc->v, desc->v_batch_stride, desc->v_head_stride,
                                      desc->v_token_stride, b, head / (desc->heads / desc->kv_heads), t);
      row->sum += p;
      for (int32_t i = 0; i < desc->value_dim; i++) {
        row->values[i] += p * problem_value(desc->kv_dtype, v[i]);
        row->weight[i] += p * fabs(problem_value(desc->kv_dtype, v[i]));
      }
    }
  }
}

static void check(query_task *made) {
  const attention_set *set = &made->task->sets[0];
  use_tables(made);
  for (int32_t r = 0; r < made->task->nranks; r++)
    for (int32_t row = 0; row < set->shape.batch * set->shape.heads; row++) {
      problem_row reference;
      reference_of(made, row / set->shape.heads, row % set->shape.heads, &reference);
      const double error =
          problem_row_error(&reference, set->shape.value_dim,
                            set->values[r] + (size_t)row * (size_t)set->shape.value_dim, set->lse[r][row], bound);
      ck_assert_msg(error <= 1,
                    "rank %d of %d, row %d: error %g of the bound; %d x %d/%d x %d, pages of %d, cap %g, rope %d, "
                    "window %d, block %d, tree %d",
                    r, made->task->nranks, row, error, set->shape.batch, set->shape.heads, set->shape.kv_heads,
                    set->shape.head_dim, set->shape.page_keys, (double)set->shards[0].desc.soft_cap,
                    set->shards[0].desc.rope.dim, made->extra[0].queries.window, made->extra[0].queries.key_block,
                    made->extra[0].queries.tree_mask != NULL);
    }
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void attend(world_rank *self) {
  query_task *made = self->argument;
  attention_set *set = &made->task->sets[0];
  device_world_own own = {NULL, NULL, NULL};
  banyan_op *op = NULL;
  if (!device_world_join(self, self->rank) || !device_world_make_own(self, self->rank, &own)) return;
  banyan_attention_desc *desc = &set->shards[self->rank].desc;
  desc->stream = own.stream;
  banyan_partial out = attention_result(set, set->values[self->rank], set->lse[self->rank]);
  banyan_combine_desc combine = attention_combine(set, own.stream);
  bool good = made->task->nranks > 1
                  ? world_ok(self, banyan_attention_combine_init(self->comm, desc, &combine, &out, &op), "both")
                  : world_ok(self, banyan_attention_init(self->comm, desc, &out, &op), "alone");
  banyan_op_info info = {.size = sizeof info};
  good = good && world_ok(self, banyan_op_query(op, &info), "query") &&
         world_check(self, strstr(info.reason, "_general") != NULL, "%s", info.reason);
  for (int i = 0; i < 2 && good; i++)
    good = world_ok(self, banyan_start(op), "start") && world_ok(self, banyan_wait(op), "wait");
  if (good && device_world_run(self)) world_ok(self, banyan_comm_status(self->comm), "status");
  banyan_op_free(op);
  device_world_free_own(&own);
}

START_TEST(rows_see_what_they_may) {
  const int32_t nranks = 1 + _i % 3;
  device_world_begin(nranks, _i % 2 ? "compute=80" : "");
  query_task *made = query_task_make(nranks, (uint64_t)_i);
  world_setup setup = {.nranks = nranks, .bare = true, .argument = made};
  world_run(&setup, attend);
  check(made);
  device_world_end();
  query_task_free(made);
}
END_TEST

/* ---- against the host -------------------------------------------------------------------------------------------- */

enum { TOKENS_MAX = 60 };

/* Several tokens for a sequence, in pages of any size. */
typedef struct token_task {
  problem_shape shape;
  problem_shard shard;
  banyan_queries queries;
  int32_t loc[PROBLEM_BATCH_MAX + 1], start[PROBLEM_BATCH_MAX], pages[PROBLEM_BATCH_MAX * 100];
  uint64_t tree[TOKENS_MAX];
  uint16_t *q;
  float *values, *lse, *host_values, *host_lse;
} token_task;

static token_task *token_task_make(uint64_t seed) {
  token_task *made = calloc(1, sizeof *made);
  world_random random = {world_seed() * 1000 + seed};
  problem_shape *shape = &made->shape;
  *shape = problem_shape_random(&random);
  shape->page_keys = 0;
  const int32_t padding = random_below(&random, 4);
  for (int32_t b = 0; b < shape->batch; b++) made->loc[b + 1] = made->loc[b] + random_below(&random, 17);
  const int32_t tokens = made->loc[shape->batch] + padding;
  problem_shape wide = *shape; /* q has a row for each token */
  wide.batch = tokens > 0 ? tokens : 1;
  made->q = problem_queries(&random, &wide);
  problem_shard_make(&random, shape, made->q, &made->shard);
  for (int32_t b = 0; b < shape->batch; b++) made->start[b] = random_below(&random, made->shard.lengths[b] + 3);
  for (int32_t i = 0; i < tokens; i++) made->tree[i] = (uint64_t)random_below(&random, 1 << 16);
  made->queries = (banyan_queries){.size = sizeof made->queries,
                                   .tokens = tokens,
                                   .query_start_loc = made->loc,
                                   .query_start = made->start,
                                   .tree_mask = random_one_in(&random, 3) ? made->tree : NULL,
                                   .window = random_one_in(&random, 2) ? 1 + random_below(&random, 50) : 0};
  banyan_attention_desc *desc = &made->shard.desc;
  desc->queries = &made->queries;
  desc->soft_cap = random_one_in(&random, 2) ? 3 : 0;
  /* Contiguous keys become pages of a size that divides the room of a sequence. */
  for (int32_t keys = 1; keys <= shape->keys_max && desc->pages.keys == 0; keys++)
    if (shape->keys_max % keys == 0 && shape->kv_heads == 1 && random_one_in(&random, 3)) desc->pages.keys = keys;
  if (desc->pages.keys > 0) {
    const int32_t each = shape->keys_max / desc->pages.keys;
    for (int32_t i = 0; i < shape->batch * each; i++) made->pages[i] = i;
    desc->pages.table = made->pages;
    desc->pages.table_stride = each;
    desc->k_batch_stride = desc->pages.keys * desc->k_token_stride;
    desc->v_batch_stride = desc->pages.keys * desc->v_token_stride;
    desc->pages.count = shape->batch * each;
  }
  const size_t rows = (size_t)(wide.batch * shape->heads), values = rows * (size_t)shape->value_dim;
  made->values = calloc(values, sizeof(float));
  made->host_values = calloc(values, sizeof(float));
  made->lse = calloc(rows, sizeof(float));
  made->host_lse = calloc(rows, sizeof(float));
  return made;
}

static void token_task_free(token_task *made) {
  problem_shard_free(&made->shard);
  free(made->q);
  free(made->values);
  free(made->host_values);
  free(made->lse);
  free(made->host_lse);
  free(made);
}

static void attend_tokens(world_rank *self) {
  token_task *made = self->argument;
  device_world_own own = {NULL, NULL, NULL};
  banyan_op *op = NULL;
  if (!device_world_join(self, 0) || !device_world_make_own(self, 0, &own)) return;
  banyan_attention_desc desc = made->shard.desc;
  banyan_partial out, host;
  banyan_partial_init(&out, made->values, BANYAN_F32, made->lse, BANYAN_F32, desc.heads, desc.value_dim);
  banyan_partial_init(&host, made->host_values, BANYAN_F32, made->host_lse, BANYAN_F32, desc.heads, desc.value_dim);
  desc.stream = own.stream;
  if (world_ok(self, banyan_attention(&made->shard.desc, &host), "host") &&
      world_ok(self, banyan_attention_init(self->comm, &desc, &out, &op), "init") &&
      world_ok(self, banyan_start(op), "start") && world_ok(self, banyan_wait(op), "wait") && device_world_run(self))
    world_ok(self, banyan_comm_status(self->comm), "status");
  banyan_op_free(op);
  device_world_free_own(&own);
}

/* All values are in [-1, 1]. */
static void check_tokens(const token_task *made) {
  const problem_shape *shape = &made->shape;
  for (int32_t row = 0; row < made->queries.tokens * shape->heads; row++) {
    bool good =
        made->lse[row] == made->host_lse[row] || fabs((double)made->lse[row] - (double)made->host_lse[row]) <= bound;
    for (int32_t i = 0; i < shape->value_dim; i++) {
      const size_t at = (size_t)row * (size_t)shape->value_dim + (size_t)i;
      good = good && fabs((double)made->values[at] - (double)made->host_values[at]) <= bound;
    }
    ck_assert_msg(good, "row %d of %d: lse %g and on the host %g; %d x %d/%d x %d, pages of %d, window %d, tree %d",
                  row, made->queries.tokens * shape->heads, (double)made->lse[row], (double)made->host_lse[row],
                  shape->batch, shape->heads, shape->kv_heads, shape->head_dim, made->shard.desc.pages.keys,
                  made->queries.window, made->queries.tree_mask != NULL);
  }
}

START_TEST(tokens_are_those_of_the_host) {
  device_world_begin(1, _i % 2 ? "compute=80" : "");
  token_task *made = token_task_make((uint64_t)_i);
  world_setup setup = {.nranks = 1, .bare = true, .argument = made};
  world_run(&setup, attend_tokens);
  check_tokens(made);
  device_world_end();
  token_task_free(made);
}
END_TEST

/* Requests that devices do not serve are refused with a text that names the field. */
static void refuse(world_rank *self) {
  query_task *made = self->argument;
  attention_set *set = &made->task->sets[0];
  banyan_op *op = NULL;
  if (!device_world_join(self, self->rank)) return;
  banyan_partial out = attention_result(set, set->values[0], set->lse[0]);
  const banyan_attention_desc good = set->shards[0].desc;
  const banyan_queries queries = *good.queries;
  int32_t pattern[] = {1};
  for (int i = 0; i < 4; i++) {
    static const char *const names[] = {"rope_dim", "key_stride", "kv_dtype", "key_pattern_len"};
    banyan_attention_desc desc = good;
    banyan_queries asked = queries;
    desc.queries = &asked;
    if (i == 0) desc.rope.dim = 4, desc.rope.q = desc.q, desc.rope.batch_stride = desc.rope.head_stride = 64;
    if (i == 1) asked.key_block = 4, asked.key_stride = 3;
    if (i == 3) asked.key_block = 4, asked.key_stride = 8, asked.key_pattern = pattern, asked.key_pattern_len = 1;
    if (i == 2) desc.kv_dtype = desc.q_dtype == BANYAN_F16 ? BANYAN_BF16 : BANYAN_F16;
    const banyan_status status = banyan_attention_init(self->comm, &desc, &out, &op);
    world_check(self, status != BANYAN_OK && strstr(banyan_last_error(), names[i]), "%d: %d, %s", i, status,
                banyan_last_error());
  }
}

START_TEST(others_are_refused) {
  device_world_begin(1, "");
  query_task *made = query_task_make(1, 3);
  world_setup setup = {.nranks = 1, .bare = true, .argument = made};
  world_run(&setup, refuse);
  device_world_end();
  query_task_free(made);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("device_queries");
  TCase *devices = tcase_create("devices");
  tcase_set_timeout(devices, 60);
#if defined HAVE_CUDA && defined HAVE_CXX17
  tcase_add_loop_test(devices, rows_see_what_they_may, 0, 12);
  tcase_add_loop_test(devices, tokens_are_those_of_the_host, 0, 12);
  tcase_add_test(devices, others_are_refused);
#else
  (void)rows_see_what_they_may, (void)tokens_are_those_of_the_host, (void)others_are_refused;
#endif
  suite_add_tcase(suite, devices);
  return world_main(suite);
}
