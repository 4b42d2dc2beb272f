/* SPDX-License-Identifier: Apache-2.0
 * Attention and combine in slices between nodes: bits are those of one slice, the operation says what it does, and
 * random calls give what double precision gives. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/directory.h"
#include "tests/support/suite.h"
#include "tests/support/world.h"

enum { BATCH = 16, HEADS = 32, DIM = 128, KEYS = 5, ROWS = BATCH * HEADS, LONG = 2000, RUNS = 5 };

typedef struct shard {
  banyan_attention_desc desc;
  float q[ROWS * DIM], k[BATCH * KEYS * DIM], v[BATCH * KEYS * DIM];
  int32_t lengths[BATCH];
} shard;

static void fill(world_random *random, float *to, size_t count) {
  for (size_t i = 0; i < count; i++) to[i] = (float)random_unit(random);
}

static void draw(shard *s, int32_t rank, int32_t run) {
  world_random queries = {world_seed() + (uint64_t)run},
               keys = {world_seed() + 1000 * (uint64_t)(rank + 1) + (uint64_t)run};
  fill(&queries, s->q, ROWS * DIM);
  fill(&keys, s->k, BATCH * KEYS * DIM);
  fill(&keys, s->v, BATCH * KEYS * DIM);
  for (int32_t b = 0; b < BATCH; b++) s->lengths[b] = random_below(&keys, KEYS + 1);
}

static void set_up(shard *s) {
  s->desc = (banyan_attention_desc){.size = sizeof s->desc,
                                    .batch = BATCH,
                                    .heads = HEADS,
                                    .kv_heads = 1,
                                    .head_dim = DIM,
                                    .q_dtype = BANYAN_F32,
                                    .kv_dtype = BANYAN_F32,
                                    .q = s->q,
                                    .q_batch_stride = HEADS * DIM,
                                    .q_head_stride = DIM,
                                    .k = s->k,
                                    .k_batch_stride = KEYS * DIM,
                                    .k_head_stride = KEYS * DIM,
                                    .k_token_stride = DIM,
                                    .v = s->v,
                                    .v_batch_stride = KEYS * DIM,
                                    .v_head_stride = KEYS * DIM,
                                    .v_token_stride = DIM,
                                    .seq_lens = s->lengths};
}

typedef struct result {
  float values[ROWS * DIM], lse[ROWS];
} result;

typedef struct shape {
  const char *nodes;
  int32_t nranks;
  banyan_scatter scatter;
  const char *slices, *part_kib; /* environment variables; NULL: not set */
} shape;

static const shape shapes[] = {
    {"a,b", 2, BANYAN_SCATTER_NONE, "2", NULL},      {"a,b", 2, BANYAN_SCATTER_NONE, "5", "16"},
    {"a,a,b,b", 4, BANYAN_SCATTER_HEADS, "4", NULL}, {"a,a,b,b", 4, BANYAN_SCATTER_TOKENS, "16", NULL},
    {"a,a,b", 3, BANYAN_SCATTER_ROOT, "64", NULL},   {"a,b,c", 3, BANYAN_SCATTER_NONE, "3", "64"},
};

static banyan_op *make(world_rank *self, shard *s, int32_t keys_max, result *out) {
  const shape *how = self->argument;
  banyan_combine_desc combine = BANYAN_COMBINE_DESC_INIT;
  combine.tokens = BATCH;
  combine.heads = HEADS;
  combine.value_dim = DIM;
  combine.scatter = how->scatter;
  combine.order = BANYAN_ORDER_CANONICAL;
  int32_t first, heads = HEADS;
  if (how->scatter == BANYAN_SCATTER_HEADS) banyan_split(HEADS, self->nranks, self->rank, &first, &heads);
  banyan_partial to;
  banyan_partial_init(&to, out->values, BANYAN_F32, out->lse, BANYAN_F32, heads, DIM);
  banyan_op *op = NULL;
  s->desc.keys_max = keys_max;
  bool has_result = how->scatter != BANYAN_SCATTER_ROOT || self->rank == 0;
  world_ok(self, banyan_attention_combine_init(self->comm, &s->desc, &combine, has_result ? &to : NULL, &op), "init");
  return op;
}

static bool is_sliced(const banyan_op *op) {
  char text[8192];
  banyan_op_describe(op, text, sizeof text);
  return strstr(text, "slices: one is combined while the next is attended to") != NULL;
}

static bool run(world_rank *self, banyan_op *op) {
  if (!world_ok(self, banyan_start(op), "start")) return false;
  return world_ok(self, banyan_wait(op), "wait");
}

/* Only one rank says that it will have keys, and for the first operation none does. */
static void bits_agree(world_rank *self) {
  shard *s = calloc(1, sizeof *s);
  result *whole = calloc(1, sizeof *whole), *sliced = calloc(1, sizeof *sliced);
  set_up(s);
  banyan_op *one = make(self, s, 0, whole);
  banyan_op *several = one ? make(self, s, self->rank == self->nranks - 1 ? KEYS : 0, sliced) : NULL;
  if (several) {
    world_check(self, !is_sliced(one), "attention of no known length is in slices");
    world_check(self, is_sliced(several), "attention is in one piece");
  }
  for (int32_t i = 0; several && i < RUNS; i++) {
    draw(s, self->rank, i);
    if (!run(self, one) || !run(self, several)) break;
    world_check(self, memcmp(whole, sliced, sizeof *whole) == 0, "run %d: slices have other bits", i);
    /* Behind an operation that is under way. */
    memset(whole, 0, sizeof *whole);
    memset(sliced, 0, sizeof *sliced);
    if (!world_ok(self, banyan_start(one), "start") || !world_ok(self, banyan_start(several), "start behind another") ||
        !world_ok(self, banyan_wait(several), "wait") || !world_ok(self, banyan_wait(one), "wait"))
      break;
    world_check(self, memcmp(whole, sliced, sizeof *whole) == 0, "run %d: slices have other bits in a row", i);
  }
  banyan_op_free(one);
  banyan_op_free(several);
  free(s);
  free(whole);
  free(sliced);
}

static void set_environment(const shape *how) {
  if (how->slices) setenv("BANYAN_SLICES", how->slices, 1);
  if (how->part_kib) setenv("BANYAN_PART_KIB", how->part_kib, 1);
}

TEST_LOOP(slices_have_the_bits_of_one_piece, (int)(sizeof shapes / sizeof shapes[0])) {
  if (!world_has_network()) return;
  set_environment(&shapes[_i]);
  world_be_nodes(shapes[_i].nodes);
  shape argument = shapes[_i];
  WORLD_RUN(bits_agree, .nranks = argument.nranks, .argument = &argument);
}

/* One rank refuses its run before anything is sent: its peers, which are attending to their slices, get its name. */
static void one_refuses(world_rank *self) {
  shard *s = calloc(1, sizeof *s);
  result *out = calloc(1, sizeof *out);
  set_up(s);
  draw(s, self->rank, 0);
  banyan_op *op = make(self, s, LONG, out);
  if (op) {
    if (self->rank == 1) s->lengths[BATCH - 1] = -4;
    banyan_status status = banyan_start(op);
    if (status == BANYAN_OK) status = banyan_wait(op);
    banyan_status expected = self->rank == 1 ? BANYAN_ERR_ARGUMENT : BANYAN_ERR_PEER;
    world_check(self, status == expected && strstr(banyan_last_error(), "seq_lens[15] is -4"), "%s: %s",
                banyan_status_string(status), banyan_last_error());
    if (self->rank == 0) world_check(self, strstr(banyan_last_error(), "rank 1") != NULL, "%s", banyan_last_error());
  }
  banyan_op_free(op);
  free(s);
  free(out);
}

TEST(a_refused_run_is_known_to_peers) {
  if (!world_has_network()) return;
  world_be_nodes("a,b");
  shape argument = shapes[0];
  set_environment(&argument);
  WORLD_RUN(one_refuses, .nranks = 2, .argument = &argument);
}

/* ---- the trace --------------------------------------------------------------------------------------------------- */

static void run_once(world_rank *self) {
  shard *s = calloc(1, sizeof *s);
  result *out = calloc(1, sizeof *out);
  set_up(s);
  draw(s, self->rank, 0);
  banyan_op *op = make(self, s, KEYS, out);
  if (op) run(self, op);
  banyan_op_free(op);
  free(s);
  free(out);
}

/* Finds the begin and end of the next event of that name, in us. */
static const char *next_event(const char *text, const char *name, double *begin, double *end) {
  char start[64];
  snprintf(start, sizeof start, "{\"name\":\"%s\"", name);
  const char *at = text ? strstr(text, start) : NULL, *ts = at ? strstr(at, "\"ts\":") : NULL;
  const char *duration = ts ? strstr(ts, "\"dur\":") : NULL;
  if (!duration) return NULL;
  *begin = strtod(ts + strlen("\"ts\":"), NULL);
  *end = *begin + strtod(duration + strlen("\"dur\":"), NULL);
  return duration;
}

/* Each slice has a combine. The first combine begins before the last slice is attended to. Combines before that compare
 * calls. */
static void check_trace(const char *trace, int slices) {
  double begin, end, first_combine = 0, first_attended = 0, last_attention = 0;
  int combines = 0, attentions = 0;
  for (const char *at = trace; (at = next_event(at, "attention", &begin, &end)); attentions++) {
    if (attentions == 0 || end < first_attended) first_attended = end;
    if (begin > last_attention) last_attention = begin;
  }
  for (const char *at = trace; (at = next_event(at, "combine", &begin, &end));) {
    if (begin < first_attended - 0.01) continue;
    if (combines++ == 0 || begin < first_combine) first_combine = begin;
  }
  ck_assert_int_eq(combines, slices);
  ck_assert_int_ge(attentions, slices);
  ck_assert_msg(first_combine < last_attention, "attention begins at %f last, and the first combine at %f",
                last_attention, first_combine);
}

TEST(a_trace_shows_slices) {
  if (!world_has_network()) return;
  setenv("BANYAN_SLICES", "4", 1);
  directory_set("BANYAN_TRACE", "trace.%r");
  world_be_nodes("a,b");
  shape argument = shapes[0];
  WORLD_RUN(run_once, .nranks = 2, .argument = &argument);
  check_trace(directory_read("trace.0"), 4);
  check_trace(directory_read("trace.1"), 4);
}

/* Within a node ranks copy by themselves, so slices would hide nothing. */
static void stays_whole(world_rank *self) {
  shard *s = calloc(1, sizeof *s);
  result *out = calloc(1, sizeof *out);
  set_up(s);
  draw(s, self->rank, 0);
  banyan_op *op = make(self, s, LONG, out);
  if (op) world_check(self, !is_sliced(op), "attention within a node is in slices");
  banyan_op_free(op);
  free(s);
  free(out);
}

TEST(a_node_has_no_slices) {
  shape argument = {NULL, 3, BANYAN_SCATTER_NONE, "4", NULL};
  set_environment(&argument);
  WORLD_RUN(stays_whole, .nranks = 3, .argument = &argument);
}

/* ---- the price --------------------------------------------------------------------------------------------------- */

typedef struct network {
  shape shape;
  const char *topo; /* what is said of the network */
  int32_t keys;
  bool pays;
} network;

/* A core is no faster through TCP than 10 Gbit/s, so a faster network leaves no time to hide. */
static const network networks[] = {
    {{"a,b", 2, BANYAN_SCATTER_NONE, NULL, NULL}, "host:2 nic@1g", LONG, true},
    {{"a,b", 2, BANYAN_SCATTER_NONE, NULL, "64"}, "host:2 nic@1g", LONG, true},
    {{"a,b", 2, BANYAN_SCATTER_NONE, NULL, NULL}, "host:2 nic@1g", 1, false},
    {{"a,b", 2, BANYAN_SCATTER_NONE, "1", NULL}, "host:2 nic@1g", LONG, false},
    {{"a,b", 2, BANYAN_SCATTER_NONE, NULL, NULL}, "host:2 nic@100g", LONG, false},
    {{"a,b", 2, BANYAN_SCATTER_NONE, NULL, "64"}, "host:2 nic@100g", LONG, false},
};

static void is_priced(world_rank *self) {
  const network *of = (const network *)self->argument;
  shard *s = calloc(1, sizeof *s);
  result *out = calloc(1, sizeof *out);
  set_up(s);
  banyan_op *op = make(self, s, self->rank == 0 ? of->keys : 1, out);
  if (op)
    world_check(self, is_sliced(op) == of->pays, "%s, %d keys: attention is in %s", of->topo, of->keys,
                is_sliced(op) ? "slices" : "one piece");
  banyan_op_free(op);
  free(s);
  free(out);
}

TEST_LOOP(slices_are_chosen_where_the_network_is_slow, (int)(sizeof networks / sizeof networks[0])) {
  if (!world_has_network()) return;
  network argument = networks[_i];
  set_environment(&argument.shape);
  setenv("BANYAN_TOPO", argument.topo, 1);
  setenv("BANYAN_TOPO_RANK", "0,1", 1);
  world_be_nodes(argument.shape.nodes);
  WORLD_RUN(is_priced, .nranks = 2, .argument = &argument);
}

/* ---- random calls ------------------------------------------------------------------------------------------------ */

enum { NODES_MAX = 4, FEW = 12, SMALL_HEADS = 4, SMALL = 8, SOME_KEYS = 5, CASES = 25, REPEATS = 3, KEPT = 0x5a5a5a5a };

/* The memory of a rank, which others read once all have run. */
typedef struct rank_memory {
  float k[FEW * SOME_KEYS * SMALL], v[FEW * SOME_KEYS * SMALL];
  float values[FEW * SMALL_HEADS * SMALL], lse[FEW * SMALL_HEADS];
  int32_t lens[FEW], start[FEW], key_start[FEW], tokens;
  uint8_t mask[FEW];
} rank_memory;

typedef struct exam {
  shape shape;
  rank_memory ranks[NODES_MAX];
} exam;

/* A random call. All ranks have the same; contents are drawn anew for each run. */
typedef struct call {
  banyan_combine_desc combine;
  banyan_attention_desc desc;
  banyan_queries queries;
  banyan_live live;
  bool persistent, causal, has_sinks;
  float q[FEW * SMALL_HEADS * SMALL], sinks[SMALL_HEADS];
  int32_t tokens; /* tokens of this run */
} call;

static void call_make(call *made, world_random *random, int32_t nranks, rank_memory *own) {
  *made = (call){.persistent = random_one_in(random, 2),
                 .causal = random_one_in(random, 3),
                 .has_sinks = random_one_in(random, 3)};
  bool counts = random_one_in(random, 2), masks = !random_one_in(random, 4), keeps = random_one_in(random, 2);
  int32_t batch = 2 + random_below(random, FEW - 1), heads = 1 + random_below(random, SMALL_HEADS);
  int32_t window = random_one_in(random, 2) ? 1 + random_below(random, 8) : 0;
  made->live = (banyan_live){.size = sizeof made->live,
                             .tokens = counts ? &own->tokens : NULL,
                             .token_mask = masks ? own->mask : NULL,
                             .empty_rows = keeps ? BANYAN_EMPTY_ROWS_KEPT : BANYAN_EMPTY_ROWS_WRITTEN};
  made->combine = (banyan_combine_desc){.size = sizeof made->combine,
                                        .tokens = batch,
                                        .heads = heads,
                                        .value_dim = SMALL,
                                        .scatter = (banyan_scatter)random_below(random, 4),
                                        .root = random_below(random, nranks),
                                        .order = (banyan_order)random_below(random, 2)};
  made->queries = (banyan_queries){.size = sizeof made->queries,
                                   .tokens = batch,
                                   .query_start = own->start,
                                   .key_start = own->key_start,
                                   .window = window};
  made->desc = (banyan_attention_desc){.size = sizeof made->desc,
                                       .batch = batch,
                                       .heads = heads,
                                       .kv_heads = 1,
                                       .head_dim = SMALL,
                                       .q_dtype = BANYAN_F32,
                                       .kv_dtype = BANYAN_F32,
                                       .q_batch_stride = heads * SMALL,
                                       .q_head_stride = SMALL,
                                       .k = own->k,
                                       .k_batch_stride = SOME_KEYS * SMALL,
                                       .k_head_stride = SOME_KEYS * SMALL,
                                       .k_token_stride = SMALL,
                                       .v = own->v,
                                       .v_batch_stride = SOME_KEYS * SMALL,
                                       .v_head_stride = SOME_KEYS * SMALL,
                                       .v_token_stride = SMALL,
                                       .seq_lens = own->lens,
                                       .keys_max = SOME_KEYS};
  for (int32_t h = 0; h < SMALL_HEADS; h++) made->sinks[h] = (float)random_unit(random);
  made->combine.live = &made->live;
  made->desc.q = made->q;
  made->desc.sinks = made->has_sinks ? made->sinks : NULL;
  made->desc.queries = made->causal ? &made->queries : NULL;
}

static void draw_run(call *call, world_random *all, world_random *random, int32_t rank, rank_memory *own) {
  fill(all, call->q, sizeof call->q / sizeof call->q[0]);
  fill(random, own->k, sizeof own->k / sizeof own->k[0]);
  fill(random, own->v, sizeof own->v / sizeof own->v[0]);
  own->tokens = call->tokens = call->live.tokens ? random_below(all, call->desc.batch + 1) : call->desc.batch;
  for (int32_t t = 0; t < FEW; t++) {
    own->lens[t] = random_one_in(random, 3) ? 0 : random_below(random, SOME_KEYS + 1);
    own->mask[t] = !random_one_in(random, 2);
    own->start[t] = random_below(all, NODES_MAX * SOME_KEYS);
    own->key_start[t] = rank * SOME_KEYS;
  }
  for (size_t i = 0; i < sizeof own->values / sizeof(float); i++) memcpy(&own->values[i], &(int32_t){KEPT}, 4);
  for (size_t i = 0; i < sizeof own->lse / sizeof(float); i++) memcpy(&own->lse[i], &(int32_t){KEPT}, 4);
}

/* Writes the row as banyan.h defines it; returns its weight, and 0 for a row without keys. */
static double expected_row(const exam *exam, const call *call, int32_t nranks, int32_t t, int32_t h, double *values) {
  const float *q = call->q + (t * call->desc.heads + h) * SMALL;
  double sum = 0;
  memset(values, 0, SMALL * sizeof *values);
  for (int32_t r = 0; r < nranks; r++) {
    const rank_memory *rank = &exam->ranks[r];
    if (call->live.token_mask && !rank->mask[t]) continue;
    if (r == 0 && call->has_sinks) sum += exp((double)call->sinks[h]);
    for (int32_t j = 0; j < rank->lens[t]; j++) {
      int32_t ahead = rank->start[t] - (rank->key_start[t] + j), window = call->queries.window;
      if (call->causal && (ahead < 0 || (window && ahead >= window))) continue;
      double dot = 0;
      for (int32_t i = 0; i < SMALL; i++) dot += (double)q[i] * (double)rank->k[(t * SOME_KEYS + j) * SMALL + i];
      double weight = exp(dot / sqrt(SMALL));
      sum += weight;
      for (int32_t i = 0; i < SMALL; i++) values[i] += weight * (double)rank->v[(t * SOME_KEYS + j) * SMALL + i];
    }
  }
  for (int32_t i = 0; i < SMALL; i++) values[i] = sum > 0 ? values[i] / sum : 0;
  return sum;
}

static bool is_kept(const float *value) { return memcmp(value, &(int32_t){KEPT}, sizeof *value) == 0; }

/* Compares row `at` of this rank's result, which is row (t, h) of the call, or none of it if t is negative. */
static bool row_is_right(const exam *exam, const call *call, const world_rank *self, int32_t at, int32_t t, int32_t h) {
  const float *values = exam->ranks[self->rank].values + (ptrdiff_t)at * SMALL;
  const float *lse = exam->ranks[self->rank].lse + at;
  double expected[SMALL], sum = t < 0 ? 0 : expected_row(exam, call, self->nranks, t, h, expected);
  bool kept = t < 0 || (sum == 0 && call->live.empty_rows == BANYAN_EMPTY_ROWS_KEPT), right = true;
  if (kept)
    right = is_kept(lse);
  else
    right = sum == 0 ? *lse == -INFINITY : fabs((double)*lse - log(sum)) < 1e-5;
  for (int32_t i = 0; i < SMALL && right; i++)
    right = kept ? is_kept(&values[i]) : fabs((double)values[i] - expected[i]) < 1e-5;
  return right;
}

static bool result_is_right(world_rank *self, const exam *exam, const call *call, int32_t number, int32_t repeat) {
  int32_t token0 = 0, tokens = call->tokens, head0 = 0, heads = call->desc.heads, rank = self->rank;
  banyan_scatter scatter = call->combine.scatter;
  if (scatter == BANYAN_SCATTER_TOKENS) banyan_split(call->tokens, self->nranks, rank, &token0, &tokens);
  if (scatter == BANYAN_SCATTER_HEADS) banyan_split(call->desc.heads, self->nranks, rank, &head0, &heads);
  if (scatter == BANYAN_SCATTER_ROOT && rank != call->combine.root) tokens = 0;
  for (int32_t at = 0; at < FEW * heads; at++) {
    int32_t t = at / heads < tokens ? token0 + at / heads : -1, h = head0 + at % heads;
    if (!world_check(self, row_is_right(exam, call, self, at, t, h),
                     "case %d, run %d%s: row (%d, %d) of %d tokens is wrong; scatter %d, mask %d, kept %d, sinks %d, "
                     "window %d",
                     number, repeat, call->persistent ? " of an operation" : "", t, h, call->tokens, (int)scatter,
                     call->live.token_mask != NULL, (int)call->live.empty_rows, call->has_sinks,
                     call->causal ? call->queries.window : -1))
      return false;
  }
  return true;
}

static bool examine(world_rank *self, exam *exam, int32_t number) {
  world_random all = {world_seed() + (uint64_t)number},
               random = {world_seed() + 1000 * (uint64_t)(self->rank + 1) + (uint64_t)number};
  rank_memory *own = &exam->ranks[self->rank];
  call call;
  call_make(&call, &all, self->nranks, own);
  int32_t first, heads = call.desc.heads;
  if (call.combine.scatter == BANYAN_SCATTER_HEADS) banyan_split(heads, self->nranks, self->rank, &first, &heads);
  banyan_partial out;
  banyan_partial_init(&out, own->values, BANYAN_F32, own->lse, BANYAN_F32, heads, SMALL);
  banyan_op *op = NULL;
  bool good = true;
  for (int32_t repeat = 0; good && repeat < REPEATS; repeat++) {
    draw_run(&call, &all, &random, self->rank, own);
    if (call.persistent && !op)
      good = world_ok(self, banyan_attention_combine_init(self->comm, &call.desc, &call.combine, &out, &op), "init");
    good = good && (op ? run(self, op)
                       : world_ok(self, banyan_attention_combine(self->comm, &call.desc, &call.combine, &out),
                                  "attention_combine"));
    good = good && world_meet(self) && result_is_right(self, exam, &call, number, repeat) && world_meet(self);
  }
  banyan_op_free(op);
  return good;
}

static void examine_all(world_rank *self) {
  for (int32_t i = 0; i < CASES && examine(self, self->argument, i); i++) {
  }
}

TEST_LOOP(random_calls_are_right, (int)(sizeof shapes / sizeof shapes[0])) {
  if (!world_has_network()) return;
  exam *exam = calloc(1, sizeof *exam);
  exam->shape = shapes[_i];
  set_environment(&exam->shape);
  world_be_nodes(exam->shape.nodes);
  WORLD_RUN(examine_all, .nranks = exam->shape.nranks, .argument = exam);
  free(exam);
}

int main(void) { return world_main(suite_with("overlap", WORLD_GUARD_S, directory_make, directory_remove)); }
