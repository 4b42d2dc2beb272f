/* SPDX-License-Identifier: Apache-2.0
 * A batch that changes at each step. One operation serves every number of tokens up to TOKENS, and lengths select the
 * rows that are valid on this rank. torchrun's variables set the ranks. */
#include <banyan.h>
#include <stdio.h>

enum { TOKENS = 64, HEADS = 8, HEAD_DIM = 64, STEPS = 10 };

static banyan_status decode(banyan_comm *comm) {
  static float o[TOKENS * HEADS * HEAD_DIM], lse[TOKENS * HEADS], merged[TOKENS * HEADS * HEAD_DIM];
  static int32_t tokens, seq_lens[TOKENS]; /* their contents are read at each start */
  int32_t rank = banyan_comm_rank(comm), nranks = banyan_comm_nranks(comm);
  banyan_partial in, out;
  banyan_partial_init(&in, o, BANYAN_F32, lse, BANYAN_F32, HEADS, HEAD_DIM);
  banyan_partial_init(&out, merged, BANYAN_F32, NULL, BANYAN_F32, HEADS, HEAD_DIM);
  banyan_valid_rows valid = BANYAN_VALID_ROWS_INIT;
  valid.tokens = &tokens, valid.batch = TOKENS, valid.seq_lens = seq_lens; /* one token per sequence */
  banyan_combine_desc desc = BANYAN_COMBINE_DESC_INIT;
  desc.tokens = TOKENS, desc.heads = HEADS, desc.value_dim = HEAD_DIM, desc.valid = &valid;
  banyan_op *op = NULL;
  banyan_status status = banyan_combine_init(comm, &desc, &in, &out, &op);
  for (int step = 0; step < STEPS && status == BANYAN_OK; step++) {
    tokens = 1 + step * 7 % TOKENS;
    /* Sequence t has t + 1 keys, split over ranks in turn, so the last ranks have no keys of short sequences. Attention
     * writes o and lse of the other sequences; here each has one key of logit 0 and value 3. */
    for (int32_t t = 0; t < tokens; t++) seq_lens[t] = (t + nranks - rank) / nranks;
    for (int i = 0; i < tokens * HEADS * HEAD_DIM; i++) o[i] = seq_lens[i / HEADS / HEAD_DIM] ? 3 : 1e30f;
    status = banyan_start(op);
    if (status == BANYAN_OK) status = banyan_wait(op);
    for (int i = 0; i < tokens * HEADS * HEAD_DIM && status == BANYAN_OK; i++)
      if (merged[i] != 3) return fprintf(stderr, "value %d is %g\n", i, (double)merged[i]), BANYAN_ERR_DATA;
  }
  banyan_op_free(op);
  return status;
}

int main(void) {
  banyan_bootstrap bootstrap;
  banyan_env *env = NULL;
  banyan_comm *comm = NULL;
  banyan_status status = banyan_env_create(0, &env, &bootstrap);
  if (status == BANYAN_OK) status = banyan_comm_create(&bootstrap, NULL, &comm);
  banyan_env_destroy(env);
  if (status == BANYAN_OK) status = decode(comm);
  if (status != BANYAN_OK) fprintf(stderr, "%s\n", banyan_last_error());
  if (status == BANYAN_OK && banyan_comm_rank(comm) == 0) printf("all rows are right\n");
  banyan_comm_destroy(comm);
  return status != BANYAN_OK;
}
