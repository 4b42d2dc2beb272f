/* SPDX-License-Identifier: Apache-2.0
 * Attention that first selects its keys over ranks, as one operation, on every backend. It has the bits of a selection,
 * attention and a combine by hand; and in the exact order those of one rank that reads the keys of a sort. */
#include "merge_math.h"
#include "tests/support/lone.h"
#include "tests/support/scores.h"
#include "tests/support/world.h"

enum { PROBLEMS = 4, RUNS = 3, BATCH = 4, BLOCK = 256, BLOCKS = 5, ROOM = BLOCK * BLOCKS, HEADS = 4 };
enum { DIM = 16, DIM_OF_DEVICES = 64 };

typedef struct problem {
  uint64_t seed;
  score_content content;
  int32_t batch, heads, kv_heads, dim, k, blocks, lens[BATCH], first, keys[BATCH]; /* keys: of this rank */
  banyan_order order;
  banyan_scatter scatter;
  bool on_device, lists, keeps, counts, starts; /* devices read f16 through lists, and starts of queries */
} problem;

/* Arrays of a rank: all keys of the sequences, of which the shard is a part, and what a run has. */
typedef struct memory {
  float q[BATCH * HEADS * DIM_OF_DEVICES], k[BATCH * ROOM * DIM_OF_DEVICES], v[BATCH * ROOM * DIM_OF_DEVICES];
  float scores[BATCH * ROOM], values[3][BATCH * HEADS * DIM_OF_DEVICES], lse[3][BATCH * HEADS];
  int64_t indices[BATCH * ROOM];
  int32_t rows[BATCH * ROOM], own[BATCH * ROOM], own_counts[BATCH], key_start[BATCH], query_start[BATCH];
  int32_t starts[BATCH + 1];
  int32_t tokens;
  uint8_t mask[BATCH * ROOM];
  score_pair sorted[ROOM];
} memory;

static problem make(world_random random, const world_rank *self) {
  problem made = {.seed = random_next(&random),
                  .content = (score_content)random_below(&random, SCORE_CONTENTS),
                  .batch = 1 + random_below(&random, BATCH),
                  .kv_heads = 1 + random_below(&random, 2),
                  .dim = DIM,
                  .k = 1 + random_below(&random, random_one_in(&random, 3) ? ROOM : 40),
                  .blocks = 1 + random_below(&random, BLOCKS),
                  .order = (banyan_order)random_below(&random, 3),
                  .scatter = random_one_in(&random, 3) ? BANYAN_SCATTER_TOKENS : BANYAN_SCATTER_NONE,
                  .keeps = random_one_in(&random, 2),
                  .counts = random_one_in(&random, 2)};
  made.heads = made.kv_heads * (1 + random_below(&random, 2));
  made.lists = made.order != BANYAN_ORDER_EXACT && random_one_in(&random, 2);
  if ((made.on_device = self->on->is_device)) made.lists = true, made.dim = DIM_OF_DEVICES, made.order %= 2;
  made.starts = made.on_device && random_one_in(&random, 2);
  int32_t count;
  banyan_split(made.blocks, self->nranks, self->rank, &made.first, &count);
  for (int32_t b = 0; b < made.batch; b++) {
    made.lens[b] = random_below(&random, made.blocks * BLOCK + 1);
    int32_t mine = made.lens[b] - BLOCK * made.first;
    made.keys[b] = mine < 0 ? 0 : mine < BLOCK * count ? mine : BLOCK * count;
  }
  return made;
}

static void fill_keys(const problem *of, memory *at) {
  world_random random = of->seed;
  float *const arrays[] = {at->q, at->k, at->v};
  const size_t counts[] = {sizeof at->q / sizeof *at->q, sizeof at->k / sizeof *at->k, sizeof at->v / sizeof *at->v};
  for (int a = 0; a < 3; a++)
    for (size_t i = 0; i < counts[a]; i++) {
      float value = (a == 1 ? 3 : 1) * (float)random_unit(&random);
      if (of->on_device)
        ((uint16_t *)arrays[a])[i] = bny_f16_of_float(value);
      else
        arrays[a][i] = value;
    }
}

/* Each sequence has one query, but those past the tokens of a run have none. They select all the same. */
static void fill_starts(memory *at, int32_t tokens) {
  for (int32_t b = 0; b <= BATCH; b++) at->starts[b] = b < tokens ? b : tokens;
}

/* Offers this rank's best keys of each sequence, and marks the best of all ranks in the mask. */
static void fill_offers(const problem *of, memory *at, int run, banyan_select_desc *desc) {
  for (int32_t b = 0; b < of->batch; b++) {
    world_random random = of->seed + (uint64_t)(97 * run + b);
    for (int32_t t = 0; t < of->lens[b]; t++) at->sorted[t] = (score_pair){score_draw(&random, of->content, t), t};
    qsort(at->sorted, (size_t)of->lens[b], sizeof *at->sorted, score_pairs_compare);
    memset(at->mask + b * ROOM, 0, ROOM);
    for (int32_t i = 0, offers = 0; offers < desc->offers; i++) {
      const bool is_there = i < of->lens[b];
      const int32_t place = b * desc->offers + offers, t = is_there ? (int32_t)at->sorted[i].index : 0;
      const int32_t own = t - BLOCK * of->first;
      if (is_there && (own < 0 || own >= of->keys[b])) continue;
      at->scores[place] = is_there ? at->sorted[i].score : 1;
      at->indices[place] = is_there ? t * INT64_C(3000000019) : -1;
      at->rows[place] = !is_there ? -7 : of->lists ? b * ROOM + own : own;
      offers++;
    }
    for (int32_t i = 0; i < of->k && i < of->lens[b]; i++) at->mask[b * ROOM + at->sorted[i].index] = 1;
  }
}

typedef struct call {
  banyan_attention_desc desc;
  banyan_queries queries;
  banyan_combine_desc combine;
  banyan_select_desc select;
  banyan_valid_rows valid;
  banyan_partial out;
} call;

/* Describes attention over the keys from `first` on: all of them through the mask, or the chosen ones by a list. The
 * memory is that of `on`; NULL: of the host. */
static void describe(const problem *of, const world_rank *on, memory *host, int32_t first, const int32_t *keys,
                     bool lists, int result, call *made) {
  memory *at = on ? world_at(on, host) : host;
  *made = (call){BANYAN_ATTENTION_DESC_INIT, BANYAN_QUERIES_INIT,    BANYAN_COMBINE_DESC_INIT,
                 BANYAN_SELECT_DESC_INIT,    BANYAN_VALID_ROWS_INIT, BANYAN_PARTIAL_INIT};
  banyan_attention_desc *desc = &made->desc;
  const int32_t dim = of->dim, key = of->kv_heads * dim;
  const size_t offset = (size_t)(first * key) * (of->on_device ? sizeof(uint16_t) : sizeof(float));
  desc->batch = of->batch, desc->heads = of->heads, desc->kv_heads = of->kv_heads, desc->head_dim = dim;
  desc->q_dtype = desc->kv.dtype = of->on_device ? BANYAN_F16 : BANYAN_F32, desc->q = at->q;
  desc->q_batch_stride = of->heads * dim, desc->q_head_stride = dim;
  desc->kv.k = (char *)at->k + offset, desc->kv.v = (char *)at->v + offset;
  desc->kv.k_head_stride = desc->kv.v_head_stride = dim;
  desc->kv.k_token_stride = desc->kv.v_token_stride = key;
  desc->kv.k_batch_stride = desc->kv.v_batch_stride = lists ? key : ROOM * key;
  desc->kv.seq_lens = lists ? at->own_counts : keys;
  desc->keys_max = of->on_device ? of->k : 0;
  for (int32_t b = 0; b < of->batch; b++) host->key_start[b] = first, host->query_start[b] = ROOM;
  made->queries.tokens = of->batch, made->queries.key_mask = at->mask, made->queries.key_mask_stride = ROOM;
  made->queries.key_start = at->key_start, made->queries.query_start = at->query_start;
  if (lists && of->starts) desc->queries = &made->queries, made->queries = (banyan_queries)BANYAN_QUERIES_INIT;
  if (lists && of->starts) made->queries.tokens = of->batch, made->queries.query_start_loc = at->starts;
  if (lists)
    desc->kv.pages = (banyan_pages){.table = at->own, .table_stride = of->k, .count = BATCH * ROOM, .keys = 1};
  else
    desc->queries = &made->queries;
  made->combine.tokens = of->batch, made->combine.heads = of->heads, made->combine.value_dim = dim;
  made->combine.order = of->order, made->combine.scatter = of->scatter;
  made->valid.tokens = &at->tokens;
  if (of->counts) made->combine.valid = &made->valid;
  banyan_partial_init(&made->out, at->values[result], BANYAN_F32, at->lse[result], BANYAN_F32, of->heads, dim);
  made->select.tokens = of->batch, made->select.k = of->k;
  made->select.offers = of->k < BLOCK * BLOCKS ? of->k : BLOCK * BLOCKS;
  made->select.scores = at->scores, made->select.indices = at->indices, made->select.rows = at->rows;
  made->select.own = at->own, made->select.own_counts = at->own_counts;
  desc->stream = made->combine.stream = on ? on->stream : NULL;
}

/* The same by three calls. */
static bool by_hand(world_rank *self, const problem *of, memory *at) {
  call apart;
  describe(of, self, at, BLOCK * of->first, of->keys, of->lists, 1, &apart);
  apart.select.valid = apart.combine.valid;
  if (!world_put(self) || !world_ok(self, banyan_select(self->comm, &apart.select), "selection")) return false;
  if (!of->lists) memset(at->mask, 0, sizeof at->mask);
  for (int32_t b = 0; b < at->tokens && !of->lists; b++)
    for (int32_t i = 0; i < at->own_counts[b]; i++) at->mask[b * ROOM + at->own[b * of->k + i]] = 1;
  return world_ok(self, banyan_attention_combine(self->comm, &apart.desc, &apart.combine, &apart.out), "by hand") &&
         world_finish(self);
}

/* One rank reads the keys that a sort finds. */
static bool alone(world_rank *self, const problem *of, memory *at, banyan_comm *lone) {
  call all;
  describe(of, NULL, at, 0, of->lens, false, 2, &all);
  all.combine.order = BANYAN_ORDER_EXACT, all.combine.scatter = BANYAN_SCATTER_NONE;
  bool good = world_ok(self, banyan_attention_combine(lone, &all.desc, &all.combine, &all.out), "one rank");
  for (int32_t b = 0; b < of->batch; b++) at->key_start[b] = BLOCK * of->first;
  return good;
}

static bool compare(world_rank *self, const problem *of, const memory *at, int run) {
  int32_t first = 0, count = at->tokens;
  if (of->scatter == BANYAN_SCATTER_TOKENS) banyan_split(at->tokens, self->nranks, self->rank, &first, &count);
  const int32_t rows = count * of->heads, whole = first * of->heads, dim = of->dim;
  const float bound = of->on_device ? 2e-3f : 1e-4f;
  bool same = memcmp(at->values[0], at->values[1], (size_t)(rows * dim) * sizeof(float)) == 0 &&
              memcmp(at->lse[0], at->lse[1], (size_t)rows * sizeof(float)) == 0;
  if (!world_check(self, same, "run %d: other bits than by hand (list %d, order %d)", run, of->lists, of->order))
    return false;
  for (int32_t i = 0; i < rows * dim; i++) {
    float got = at->values[0][i], want = at->values[2][whole * dim + i];
    bool good = of->order == BANYAN_ORDER_EXACT ? memcmp(&got, &want, sizeof got) == 0 : fabsf(got - want) < bound;
    if (!world_check(self, good, "run %d: value %d is %g, and %g with one rank (list %d, order %d, k %d)", run, i,
                     (double)got, (double)want, of->lists, of->order, of->k))
      return false;
  }
  return true;
}

static bool run_one(world_rank *self, problem *of, world_random random, memory *at, banyan_comm *lone) {
  call joined;
  banyan_op *op = NULL;
  bool good = true;
  fill_keys(of, at);
  describe(of, self, at, BLOCK * of->first, of->keys, of->lists, 0, &joined);
  joined.desc.select = &joined.select;
  const banyan_attention_desc *desc = &joined.desc;
  for (int run = 0; run < RUNS && good; run++) {
    at->tokens = of->counts ? random_below(&random, of->batch + 1) : of->batch;
    fill_starts(at, at->tokens);
    fill_offers(of, at, run, &joined.select);
    good = alone(self, of, at, lone);
    memset(at->own, 0x5a, sizeof at->own), memset(at->mask, 0x5a, sizeof at->mask);
    if (good && !of->keeps)
      good = world_put(self) &&
             world_ok(self, banyan_attention_combine(self->comm, desc, &joined.combine, &joined.out), "call") &&
             world_finish(self);
    if (good && of->keeps && !op) {
      good =
          world_ok(self, banyan_attention_combine_init(self->comm, desc, &joined.combine, &joined.out, &op), "init") &&
          world_record(self, &op, 1);
      memset(&joined.select, 0x55, sizeof joined.select); /* init has copied it */
      joined.select.offers = of->k;
    }
    if (good && of->keeps) good = world_replay(self);
    good = good && by_hand(self, of, at) && world_ok(self, banyan_comm_status(self->comm), "status");
    good = good && compare(self, of, at, run);
  }
  banyan_op_free(op);
  return good;
}

static void run_all(world_rank *self) {
  world_random random = random_seed() * 5003 + *(const uint64_t *)self->argument;
  memory *at = world_take(sizeof *at);
  banyan_comm *lone = lone_comm(NULL);
  if (self->on->is_device) world_ok(self, banyan_comm_set_stream(self->comm, self->stream), "set stream");
  for (int i = 0; i < PROBLEMS; i++) {
    world_random own = random_next(&random);
    problem of = make(own, self);
    if (!run_one(self, &of, own + 1, at, lone)) break;
  }
  banyan_comm_destroy(lone);
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

/* Describes a call in which each rank offers keys of its own for two sequences. */
static problem small_problem(const world_rank *self) {
  problem of = {.seed = 3, .batch = 2, .heads = 2, .kv_heads = 1, .dim = DIM, .k = 6, .blocks = 4, .lens = {1000, 900}};
  int32_t count;
  banyan_split(of.blocks, self->nranks, self->rank, &of.first, &count);
  of.lists = true, of.keys[0] = of.keys[1] = 100;
  return of;
}

static banyan_status attend(world_rank *self, const call *call) {
  return banyan_attention_combine(self->comm, &call->desc, &call->combine, &call->out);
}

/* Rank 1 has another k, another batch, offers a key of rank 0, does not select, or leaves. */
static void differ(world_rank *self) {
  static const char *const says[] = {"k of a selection, or top_pages", "batch with top_pages or select",
                                     "is offered twice, by rank 0 and rank 1", "top_pages", "rank 1"};
  static const banyan_status statuses[] = {BANYAN_ERR_MISMATCH, BANYAN_ERR_MISMATCH, BANYAN_ERR_DATA,
                                           BANYAN_ERR_MISMATCH, BANYAN_ERR_PEER};
  static const int32_t of_one[] = {0, 2}, of_two[] = {0, 1, 2};
  const int which = *(const int *)self->argument;
  memory *at = calloc(1, sizeof *at);
  problem of = small_problem(self);
  call call;
  fill_keys(&of, at);
  if (which == 0 && self->rank == 1) of.k = 5;
  describe(&of, NULL, at, 0, of.keys, true, 0, &call);
  fill_offers(&of, at, 0, &call.select);
  call.desc.select = &call.select;
  if (which == 1 && self->rank == 1) call.desc.batch = call.select.tokens = call.combine.tokens = 1;
  if (which == 2 && self->rank < 2)
    for (int32_t i = 0; i < 6; i++) at->scores[i] = 5, at->indices[i] = (which + i) + 10 * (self->rank && i);
  if (which == 3 && self->rank == 1) call.desc.select = NULL, at->own_counts[0] = at->own_counts[1] = 0;
  if (which == 1) { /* as many rows in fewer sequences */
    call.desc.queries = &call.queries;
    call.queries.tokens = call.combine.tokens = 2, call.queries.key_mask = NULL;
    call.queries.query_start_loc = self->rank == 1 ? of_one : of_two;
    call.queries.key_start = NULL;
  }
  if (which < 4 || self->rank != 1) {
    banyan_status status = attend(self, &call);
    world_gets(self, status, statuses[which], says[which]);
  }
  if (which == 2) {
    fill_offers(&of, at, 0, &call.select);
    world_ok(self, attend(self, &call), "a call after the error");
  }
  free(at);
}

TEST_LOOP(differences_and_faults_are_named, 5) {
  int which = _i;
  WORLD_RUN(differ, .nranks = 3, .argument = &which);
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

/* The statements spoil a call, which is then rejected with this text. */
#define REJECT(says, ...)                                             \
  do {                                                                \
    __VA_ARGS__;                                                      \
    world_gets(self, attend(self, &call), BANYAN_ERR_ARGUMENT, says); \
    fill_offers(&of, at, 0, &good.select);                            \
    call = good;                                                      \
  } while (0)

TEST_RANKS(wrong_selections_are_named, 1, .nranks = 1) {
  memory *at = calloc(1, sizeof *at);
  problem of = small_problem(self);
  call call, good;
  banyan_op *op;
  fill_keys(&of, at);
  describe(&of, NULL, at, 0, of.keys, true, 0, &call);
  fill_offers(&of, at, 0, &call.select);
  call.desc.select = &call.select;
  good = call;
  REJECT("desc.select: it has tokens 1 and heads 0, must be batch, which is 2", call.select.tokens = 1);
  REJECT("desc.select: it has tokens 2 and heads 2", call.select.heads = 2);
  REJECT("desc.select: valid must be NULL", call.select.valid = &call.valid);
  REJECT("desc.select: k is 0", call.select.k = 0);
  REJECT("desc.select: desc.offers is 7", call.select.offers = 7);
  REJECT("desc.select: desc.scores is NULL", call.select.scores = NULL);
  REJECT("desc.select: own and own_counts must not", call.select.own_counts = NULL);
  REJECT("page_table is not own, and key_mask is NULL", call.desc.kv.pages.table = at->rows);
  REJECT("in the exact order bits would", call.combine.order = BANYAN_ORDER_EXACT);
  REJECT("desc.select: page_keys is 2", call.desc.kv.pages.keys = 2);
  REJECT("seq_lens must be own_counts", call.desc.kv.seq_lens = of.lens);
  REJECT("page_table_stride is 9, and own has a stride of 6", call.desc.kv.pages.table_stride = 9);
  REJECT("offer 0 of sequence 0 has row 5120, and the pages of one key are 5120", at->rows[0] = BATCH * ROOM);
  REJECT("offer 1 of sequence 1 has row -7", at->rows[7] = -7);
  REJECT("select.size is 3", call.select.size = 3);
  REJECT("k is NULL", call.desc.kv.k = NULL);
  call.desc.prune.epsilon = 0.5f;
  world_gets(self, attend(self, &call), BANYAN_ERR_UNSUPPORTED, "");
  world_gets(self, banyan_attention_init(self->comm, &good.desc, &good.out, &op), BANYAN_ERR_ARGUMENT,
             "desc.select must be NULL");
  describe(&of, NULL, at, 0, of.keys, false, 0, &call);
  of.lists = false;
  fill_offers(&of, at, 0, &call.select);
  call.desc.select = &call.select;
  call.queries.key_mask_stride = 0;
  world_gets(self, attend(self, &call), BANYAN_ERR_ARGUMENT, "key_mask_stride is 0");
  call.queries.key_mask_stride = 99;
  world_gets(self, attend(self, &call), BANYAN_ERR_ARGUMENT, "a mask for each");
  call.queries.key_mask_stride = ROOM, at->rows[3] = 100;
  world_gets(self, attend(self, &call), BANYAN_ERR_ARGUMENT, "in this shard are 100");
  at->rows[3] = 99;
  world_ok(self, attend(self, &call), "a mask");
  world_ok(self, attend(self, &good), "a list");
  free(at);
}

/* Devices have no kernel for masks, and those of several nodes do not select within attention. */
static void refuse(world_rank *self) {
  const bool is_staged = self->on == &world_staged;
  call call;
  memory *at = world_take(sizeof *at);
  problem of = small_problem(self);
  of.on_device = true, of.lists = is_staged, of.dim = DIM_OF_DEVICES;
  describe(&of, self, at, 0, of.keys, of.lists, 0, &call);
  call.desc.select = &call.select;
  world_gets(self, attend(self, &call), BANYAN_ERR_UNSUPPORTED,
             is_staged ? "needs memory that all ranks share" : "No kernel marks keys in queries.key_mask");
  if (is_staged) return;
  of.starts = self->rank == 1; /* decides on a device which sequences select */
  fill_starts(at, of.batch);
  describe(&of, self, at, 0, of.keys, true, 0, &call);
  call.desc.select = &call.select;
  world_gets(self, attend(self, &call), BANYAN_ERR_MISMATCH, "query_start_loc");
}

TEST_EVERYWHERE(selected_keys_are_attended_to, 36) {
  static const char *const algorithms[] = {NULL, "oneshot", "twoshot", "tree"};
  uint64_t number = (uint64_t)_i;
  if (on->is_device) WORLD_RUN(refuse, .nranks = world_ranks(on, 2), .on = on);
  if (on != &world_staged)
    WORLD_RUN(run_all, .nranks = world_ranks(on, 1 + _i % 7), .on = on, .argument = &number,
              .arena_bytes = _i % 3 == 2 && !on->is_device ? 256 << 10 : 0,
              .algorithm = algorithms[_i % (on->is_device ? 2 : 4)]);
}

int main(void) { return world_main(suite_of("attend_select", 120)); }
