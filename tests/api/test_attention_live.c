/* SPDX-License-Identifier: Apache-2.0
 * Attention and combine for a capacity: each run says how many tokens it has, and blocking calls plan by classes. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/world.h"

enum { CAPACITY = 40, HEADS = 6, DIM = 16, KEYS = 9, ROW = HEADS * DIM, RUNS = 60 };

typedef struct shard {
  banyan_attention_desc desc;
  banyan_queries queries;
  banyan_live live;
  float q[CAPACITY * ROW], k[CAPACITY * KEYS * DIM], v[CAPACITY * KEYS * DIM];
  float values[CAPACITY * ROW], lse[CAPACITY * HEADS], expected[CAPACITY * ROW], expected_lse[CAPACITY * HEADS];
  int32_t lens[CAPACITY], unmasked[CAPACITY], loc[CAPACITY + 1], start[CAPACITY], tokens;
  uint8_t mask[CAPACITY];
} shard;

static void draw(shard *s, int32_t rank, uint64_t run) {
  world_random queries = {world_seed() + 7 * run}, keys = {world_seed() + 1000 * (uint64_t)(rank + 1) + run};
  for (size_t i = 0; i < sizeof s->q / sizeof s->q[0]; i++) s->q[i] = (float)random_unit(&queries);
  for (size_t i = 0; i < sizeof s->k / sizeof s->k[0]; i++) s->k[i] = (float)random_unit(&keys);
  for (size_t i = 0; i < sizeof s->v / sizeof s->v[0]; i++) s->v[i] = (float)random_unit(&keys);
  for (int32_t b = 0; b < CAPACITY; b++) s->lens[b] = random_below(&keys, KEYS + 1);
  for (int32_t b = 0; b < CAPACITY; b++) s->mask[b] = !random_one_in(&keys, 3);
  s->tokens = random_below(&queries, CAPACITY + 1);
  /* Sequences of up to three tokens, then empty ones. */
  for (int32_t b = 0; b < CAPACITY; b++) {
    int32_t next = s->loc[b] + random_below(&queries, 4);
    s->loc[b + 1] = next < s->tokens ? next : s->tokens;
    s->start[b] = random_below(&queries, KEYS);
  }
  memset(s->values, 0x5a, sizeof s->values);
  memset(s->expected, 0x5a, sizeof s->expected);
}

static shard *set_up(world_rank *self, bool several) {
  shard *s = calloc(1, sizeof *s);
  s->desc = (banyan_attention_desc){.size = sizeof s->desc,
                                    .batch = CAPACITY,
                                    .heads = HEADS,
                                    .kv_heads = 1,
                                    .head_dim = DIM,
                                    .q_dtype = BANYAN_F32,
                                    .kv_dtype = BANYAN_F32,
                                    .q = s->q,
                                    .q_batch_stride = ROW,
                                    .q_head_stride = DIM,
                                    .k = s->k,
                                    .k_batch_stride = KEYS * DIM,
                                    .k_head_stride = KEYS * DIM,
                                    .k_token_stride = DIM,
                                    .v = s->v,
                                    .v_batch_stride = KEYS * DIM,
                                    .v_head_stride = KEYS * DIM,
                                    .v_token_stride = DIM,
                                    .seq_lens = s->lens};
  s->queries = (banyan_queries){
      .size = sizeof s->queries, .tokens = CAPACITY, .query_start_loc = s->loc, .query_start = s->start};
  if (several) s->desc.queries = &s->queries;
  s->live = (banyan_live)BANYAN_LIVE_INIT;
  s->live.tokens = &s->tokens;
  draw(s, self->rank, 0);
  return s;
}

static banyan_combine_desc combine_of(const banyan_live *live, int32_t tokens) {
  banyan_combine_desc combine = BANYAN_COMBINE_DESC_INIT;
  combine.tokens = tokens;
  combine.heads = HEADS;
  combine.value_dim = DIM;
  combine.order = BANYAN_ORDER_CANONICAL;
  combine.live = live;
  return combine;
}

/* The run as a call of exactly its tokens. A token that is left out is one without keys. */
static bool expect(world_rank *self, shard *s, bool several) {
  banyan_attention_desc desc = s->desc;
  for (int32_t b = 0; b < CAPACITY; b++) s->unmasked[b] = s->live.token_mask && !s->mask[b] ? 0 : s->lens[b];
  desc.seq_lens = s->unmasked;
  banyan_queries queries = s->queries;
  queries.tokens = s->tokens;
  if (several)
    desc.queries = &queries;
  else
    desc.batch = s->tokens;
  banyan_combine_desc combine = combine_of(NULL, s->tokens);
  banyan_partial out;
  banyan_partial_init(&out, s->expected, BANYAN_F32, s->expected_lse, BANYAN_F32, HEADS, DIM);
  return world_ok(self, banyan_attention_combine(self->comm, &desc, &combine, &out), "attention_combine");
}

static void runs_have_their_tokens(world_rank *self) {
  const int kind = *(int *)self->argument;
  const bool several = kind == 1;
  shard *s = set_up(self, several);
  if (kind == 2) s->live.token_mask = s->mask;
  banyan_combine_desc combine = combine_of(&s->live, CAPACITY);
  banyan_partial out;
  banyan_partial_init(&out, s->values, BANYAN_F32, s->lse, BANYAN_F32, HEADS, DIM);
  banyan_op *op = NULL;
  world_ok(self, banyan_attention_combine_init(self->comm, &s->desc, &combine, &out, &op), "init");
  for (uint64_t run = 0; op && run < RUNS; run++) {
    draw(s, self->rank, run);
    if (!world_ok(self, banyan_start(op), "start") || !world_ok(self, banyan_wait(op), "wait")) break;
    if (!expect(self, s, several)) break;
    if (!world_check(self,
                     memcmp(s->values, s->expected, sizeof s->values) == 0 &&
                         memcmp(s->lse, s->expected_lse, (size_t)(s->tokens * HEADS) * 4) == 0,
                     "run %d of %d tokens differs from a call of so many", (int)run, s->tokens))
      break;
  }
  char text[4096];
  banyan_comm_describe(self->comm, text, sizeof text);
  const char *plans = strstr(text, "plans made");
  /* The operation; and a class for each power of two up to 40. */
  int made = plans ? atoi(plans + strlen("plans made: ")) : 0;
  world_check(self, made >= 3 && made <= 8, "%d plans were made", made);
  banyan_op_free(op);
  free(s);
}

TEST_LOOP(a_capacity_serves_every_number, 12) {
  int kind = _i % 3;
  WORLD_RUN(runs_have_their_tokens, .nranks = 1 + _i / 3, .argument = &kind);
}

static void has_no_tokens(world_rank *self) {
  shard *s = set_up(self, false);
  banyan_partial out;
  banyan_partial_init(&out, s->values, BANYAN_F32, s->lse, BANYAN_F32, HEADS, DIM);
  s->desc.batch = s->tokens = 0;
  for (int has_live = 0; has_live < 2; has_live++) {
    banyan_combine_desc combine = combine_of(has_live ? &s->live : NULL, 0);
    banyan_op *op = NULL;
    world_ok(self, banyan_attention_combine(self->comm, &s->desc, &combine, &out), "attention_combine");
    if (!world_ok(self, banyan_attention_combine_init(self->comm, &s->desc, &combine, &out, &op), "init")) break;
    if (world_ok(self, banyan_start(op), "start")) world_ok(self, banyan_wait(op), "wait");
    banyan_op_free(op);
  }
  free(s);
}

TEST_LOOP(a_capacity_of_none, 3) { WORLD_RUN(has_no_tokens, .nranks = 1 + _i); }

static void refuses(world_rank *self) {
  shard *s = set_up(self, false);
  banyan_partial out;
  banyan_partial_init(&out, s->values, BANYAN_F32, s->lse, BANYAN_F32, HEADS, DIM);
  s->live.batch = CAPACITY;
  s->live.seq_lens = s->lens;
  banyan_combine_desc combine = combine_of(&s->live, CAPACITY);
  banyan_status status = banyan_attention_combine(self->comm, &s->desc, &combine, &out);
  world_check(self, status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), "combine.live.seq_lens must be NULL"),
              "%s", banyan_last_error());
  s->live.batch = 0;
  s->live.seq_lens = NULL;
  s->tokens = CAPACITY + 1;
  status = banyan_attention_combine(self->comm, &s->desc, &combine, &out);
  world_check(self, status == BANYAN_ERR_ARGUMENT && strstr(banyan_last_error(), "live.tokens leads to 41"), "%s",
              banyan_last_error());
  /* More query tokens than this run has. */
  s->desc.queries = &s->queries;
  s->queries.query_start = NULL;
  s->tokens = 5;
  for (int32_t b = 0; b <= CAPACITY; b++) s->loc[b] = b < 7 ? b : 7;
  status = banyan_attention_combine(self->comm, &s->desc, &combine, &out);
  world_check(self,
              status == BANYAN_ERR_ARGUMENT &&
                  strstr(banyan_last_error(), "queries.query_start_loc[6] is 6: starts must not be negative or"),
              "%s", banyan_last_error());
  free(s);
}

TEST(wrong_numbers_are_refused) { WORLD_RUN(refuses, .nranks = 1); }

int main(void) { return world_main(suite_of("attention_live", WORLD_GUARD_S)); }
