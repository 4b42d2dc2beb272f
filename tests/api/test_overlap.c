/* SPDX-License-Identifier: Apache-2.0
 * Attention and combine in slices between nodes: the bits are those of a single slice, and the operation reports its
 * slices. */
#include "tests/support/attention_oracle.h"
#include "tests/support/directory.h"
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
  world_random queries = random_seed() + (uint64_t)run,
               keys = random_seed() + 1000 * (uint64_t)(rank + 1) + (uint64_t)run;
  fill(&queries, s->q, ROWS * DIM);
  fill(&keys, s->k, BATCH * KEYS * DIM);
  fill(&keys, s->v, BATCH * KEYS * DIM);
  for (int32_t b = 0; b < BATCH; b++) s->lengths[b] = random_below(&keys, KEYS + 1);
}

/* Makes the shard of a rank for its first run. */
static shard *shard_new(int32_t rank) {
  shard *s = world_take(sizeof *s);
  draw(s, rank, 0);
  s->desc = attention_desc_of(BATCH, HEADS, 1, KEYS, DIM, DIM, BANYAN_F32, BANYAN_F32, s->q, s->k, s->v, s->lengths);
  return s;
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

enum { SHAPES = 6 };
static const shape shapes[SHAPES] = {
    {"a,b", 2, BANYAN_SCATTER_NONE, "2", NULL},      {"a,b", 2, BANYAN_SCATTER_NONE, "5", "16"},
    {"a,a,b,b", 4, BANYAN_SCATTER_HEADS, "4", NULL}, {"a,a,b,b", 4, BANYAN_SCATTER_TOKENS, "16", NULL},
    {"a,a,b", 3, BANYAN_SCATTER_ROOT, "64", NULL},   {"a,b,c", 3, BANYAN_SCATTER_NONE, "3", "64"},
};

static banyan_order order = BANYAN_ORDER_CANONICAL;

static banyan_op *make(world_rank *self, shard *s, int32_t keys_max, result *out) {
  const shape *how = self->argument;
  banyan_combine_desc combine = BANYAN_COMBINE_DESC_INIT;
  combine.tokens = BATCH;
  combine.heads = HEADS;
  combine.value_dim = DIM;
  combine.scatter = how->scatter;
  combine.order = order;
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

/* Only one rank announces keys, and the first operation has none. */
static void bits_agree(world_rank *self) {
  shard *s = shard_new(self->rank);
  result *whole = world_take(sizeof *whole), *sliced = world_take(sizeof *sliced);
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
    /* Queued behind a running operation. */
    memset(whole, 0, sizeof *whole);
    memset(sliced, 0, sizeof *sliced);
    if (!world_ok(self, banyan_start(one), "start") || !world_ok(self, banyan_start(several), "start behind another") ||
        !world_ok(self, banyan_wait(several), "wait") || !world_ok(self, banyan_wait(one), "wait"))
      break;
    world_check(self, memcmp(whole, sliced, sizeof *whole) == 0, "run %d: slices have other bits in a row", i);
  }
  banyan_op_free(one);
  banyan_op_free(several);
}

static void set_environment(const shape *how) {
  if (how->slices) setenv("BANYAN_SLICES", how->slices, 1);
  if (how->part_kib) setenv("BANYAN_PART_KIB", how->part_kib, 1);
}

/* The last two again, in the exact order. */
TEST_LOOP(slices_have_the_bits_of_one_piece, SHAPES + 2) {
  if (!world_has_network()) return;
  shape argument = shapes[_i < SHAPES ? _i : _i - 2];
  if (_i >= SHAPES) order = BANYAN_ORDER_EXACT;
  set_environment(&argument);
  world_be_nodes(argument.nodes);
  WORLD_RUN(bits_agree, .nranks = argument.nranks, .argument = &argument);
}

/* One rank rejects its run before anything is sent. Its peers, busy with attention to their slices, get an error that
 * names it. */
static void one_rejects(world_rank *self) {
  shard *s = shard_new(self->rank);
  result *out = world_take(sizeof *out);
  banyan_op *op = make(self, s, LONG, out);
  if (op) {
    if (self->rank == 1) s->lengths[BATCH - 1] = -4;
    banyan_status status = start_and_wait(op);
    banyan_status expected = self->rank == 1 ? BANYAN_ERR_ARGUMENT : BANYAN_ERR_PEER;
    world_gets(self, status, expected, "seq_lens[15] is -4");
    if (self->rank == 0) world_check(self, strstr(banyan_last_error(), "rank 1") != NULL, "%s", banyan_last_error());
  }
  banyan_op_free(op);
}

TEST(a_rejected_run_is_known_to_peers) {
  if (!world_be_nodes("a,b")) return;
  shape argument = shapes[0];
  set_environment(&argument);
  WORLD_RUN(one_rejects, .nranks = 2, .argument = &argument);
}

/* ---- the trace --------------------------------------------------------------------------------------------------- */

static void run_once(world_rank *self) {
  shard *s = shard_new(self->rank);
  result *out = world_take(sizeof *out);
  banyan_op *op = make(self, s, KEYS, out);
  if (op) run(self, op);
  banyan_op_free(op);
}

/* Finds begin and end of the next event with that name, in us. */
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

/* Each slice has a combine, and the first begins before attention to the last slice does. Earlier combines compare
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

/* Within a node ranks copy data themselves, so slices would hide nothing. */
static void stays_whole(world_rank *self) {
  shard *s = shard_new(self->rank);
  result *out = world_take(sizeof *out);
  banyan_op *op = make(self, s, LONG, out);
  if (op) world_check(self, !is_sliced(op), "attention within a node is in slices");
  banyan_op_free(op);
}

TEST(a_node_has_no_slices) {
  shape argument = {NULL, 3, BANYAN_SCATTER_NONE, "4", NULL};
  set_environment(&argument);
  WORLD_RUN(stays_whole, .nranks = 3, .argument = &argument);
}

/* ---- predicted cost ---------------------------------------------------------------------------------------------- */

typedef struct network {
  shape shape;
  const char *gbytes_per_s; /* speed of the network */
  int32_t keys;
  bool pays;
} network;

/* One core reaches at most 10 Gbit/s over TCP, so a faster network leaves no time to hide. */
static const network networks[] = {
    {{"a,b", 2, BANYAN_SCATTER_NONE, NULL, NULL}, "0.125", LONG, true},
    {{"a,b", 2, BANYAN_SCATTER_NONE, NULL, "64"}, "0.125", LONG, true},
    {{"a,b", 2, BANYAN_SCATTER_NONE, NULL, NULL}, "0.125", 1, false},
    {{"a,b", 2, BANYAN_SCATTER_NONE, "1", NULL}, "0.125", LONG, false},
    {{"a,b", 2, BANYAN_SCATTER_NONE, NULL, NULL}, "12.5", LONG, false},
    {{"a,b", 2, BANYAN_SCATTER_NONE, NULL, "64"}, "12.5", LONG, false},
};

static void is_priced(world_rank *self) {
  const network *of = (const network *)self->argument;
  shard *s = shard_new(self->rank);
  result *out = world_take(sizeof *out);
  banyan_op *op = make(self, s, self->rank == 0 ? of->keys : 1, out);
  if (op)
    world_check(self, is_sliced(op) == of->pays, "%s GB/s, %d keys: attention is in %s", of->gbytes_per_s, of->keys,
                is_sliced(op) ? "slices" : "one piece");
  banyan_op_free(op);
}

/* Writes the topology of two hosts with a NIC each. */
static void describe(const char *path, const char *gbytes_per_s) {
  FILE *file = fopen(path, "w");
  ck_assert_ptr_nonnull(file);
  fputs("{\"nodes\": [", file);
  for (int h = 0; h < 2; h++)
    fprintf(file, "%s{\"id\": \"h%d\", \"kind\": \"host\"}, {\"id\": \"n%d\", \"kind\": \"nic\", \"parent\": \"h%d\"}",
            h == 0 ? "" : ", ", h, h, h);
  fputs("], \"links\": [", file);
  for (int h = 0; h < 2; h++)
    fprintf(file, "%s{\"from\": \"n%d\", \"to\": \"h%d\", \"kind\": \"net\", \"gbytes_per_s\": %s}", h == 0 ? "" : ", ",
            h, h, gbytes_per_s);
  fputs("]}\n", file);
  ck_assert_int_eq(fclose(file), 0);
}

TEST_LOOP(slices_are_chosen_where_the_network_is_slow, (int)(sizeof networks / sizeof networks[0])) {
  if (!world_has_network()) return;
  network argument = networks[_i];
  set_environment(&argument.shape);
  setenv("BANYAN_THREADS", "1", 1); /* with many, attention takes less time than the network can hide */
  char path[4096];
  snprintf(path, sizeof path, "%s/machine.json", directory);
  describe(path, argument.gbytes_per_s);
  setenv("BANYAN_TOPO", path, 1);
  setenv("BANYAN_TOPO_RANK", "0,1", 1);
  world_be_nodes(argument.shape.nodes);
  WORLD_RUN(is_priced, .nranks = 2, .argument = &argument);
}

int main(void) { return world_main(suite_with("overlap", WORLD_GUARD_S, directory_make, directory_remove)); }
