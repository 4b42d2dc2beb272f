/* SPDX-License-Identifier: Apache-2.0
 * Chunked prefill of one sequence whose keys are assigned to ranks in blocks. Each chunk of the prompt first writes its
 * keys to the shards of their owners. Then it attends to all keys up to each query. torchrun's variables set the
 * ranks. */
#include <banyan.h>
#include <stdio.h>

enum { PROMPT = 100, CHUNK = 32, BLOCK = 4, HEADS = 4, KV_HEADS = 2, DIM = 16 };

static float q[CHUNK * HEADS * DIM], k[PROMPT * KV_HEADS * DIM], v[PROMPT * KV_HEADS * DIM], o[CHUNK * HEADS * DIM];

static banyan_status prefill(banyan_comm *comm) {
  int32_t rank = banyan_comm_rank(comm), first, keys = 0, loc[2] = {0, 0}, start, tokens;
  banyan_ownership rule = BANYAN_OWNERSHIP_INIT;
  rule.kind = BANYAN_OWNERSHIP_BLOCKS, rule.nranks = banyan_comm_nranks(comm), rule.block = BLOCK;
  banyan_queries queries = BANYAN_QUERIES_INIT;
  queries.tokens = CHUNK, queries.query_start_loc = loc, queries.query_start = &start, queries.key_start = &first;
  banyan_status status = banyan_ownership_queries(&rule, rank, &queries, &first);
  banyan_attention_desc attention = BANYAN_ATTENTION_DESC_INIT;
  attention.batch = 1, attention.heads = HEADS, attention.kv_heads = KV_HEADS, attention.head_dim = DIM;
  attention.q_dtype = attention.kv.dtype = BANYAN_F32, attention.kv.seq_lens = &keys, attention.queries = &queries;
  attention.q = q, attention.q_batch_stride = HEADS * DIM, attention.q_head_stride = DIM;
  attention.kv.k = k, attention.kv.k_token_stride = KV_HEADS * DIM, attention.kv.k_head_stride = DIM;
  attention.kv.v = v, attention.kv.v_token_stride = KV_HEADS * DIM, attention.kv.v_head_stride = DIM;
  banyan_valid_rows valid = BANYAN_VALID_ROWS_INIT;
  valid.tokens = &tokens;
  banyan_combine_desc combine = BANYAN_COMBINE_DESC_INIT;
  combine.tokens = CHUNK, combine.heads = HEADS, combine.value_dim = DIM, combine.valid = &valid;
  banyan_partial out;
  banyan_partial_init(&out, o, BANYAN_F32, NULL, BANYAN_F32, HEADS, DIM);
  for (start = 0; start < PROMPT && status == BANYAN_OK; start += tokens) {
    tokens = loc[1] = PROMPT - start < CHUNK ? PROMPT - start : CHUNK;
    /* A model projects the chunk's keys and values here. Here all keys and so all logits are 0, and the value of a
     * token is its position. A query's result is the mean of the positions up to its own. */
    for (int32_t t = start; t < start + tokens && status == BANYAN_OK; t++) {
      int64_t place;
      int32_t owner;
      status = banyan_ownership_of_token(&rule, t, &owner, &place);
      if (owner != rank) continue;
      for (int i = 0; i < KV_HEADS * DIM; i++) v[place * KV_HEADS * DIM + i] = (float)t;
      keys = (int32_t)place + 1;
    }
    if (status == BANYAN_OK) status = banyan_attention_combine(comm, &attention, &combine, &out);
    for (int i = 0; i < tokens * HEADS * DIM && status == BANYAN_OK; i++) {
      float mean = (float)(start + i / HEADS / DIM) / 2;
      if (o[i] > mean * 1.0001f || o[i] < mean * 0.9999f)
        return fprintf(stderr, "value %d is %g\n", i, (double)o[i]), BANYAN_ERR_DATA;
    }
  }
  return status;
}

int main(void) {
  banyan_bootstrap bootstrap;
  banyan_env *env = NULL;
  banyan_comm *comm = NULL;
  banyan_status status = banyan_env_create(0, &env, &bootstrap);
  if (status == BANYAN_OK) status = banyan_comm_create(&bootstrap, NULL, &comm);
  banyan_env_destroy(env);
  if (status == BANYAN_OK) status = prefill(comm);
  if (status != BANYAN_OK) fprintf(stderr, "%s\n", banyan_last_error());
  if (status == BANYAN_OK && banyan_comm_rank(comm) == 0) printf("all queries saw the keys up to their own\n");
  banyan_comm_destroy(comm);
  return status != BANYAN_OK;
}
