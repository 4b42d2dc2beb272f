/* SPDX-License-Identifier: Apache-2.0 */
#include <banyan.h>
#include <stdio.h>

enum { TOKENS = 1, HEADS = 2, HEAD_DIM = 4, ROWS = TOKENS * HEADS };

/* On every rank: this rank's partials of TOKENS x HEADS rows in, attention over the keys of all ranks out. */
static banyan_status merge(banyan_comm *comm, float *o, float *lse, float *merged) {
  banyan_partial in, out;
  banyan_partial_init(&in, o, BANYAN_F32, lse, BANYAN_F32, HEADS, HEAD_DIM);       /* normalised, lse in base e */
  banyan_partial_init(&out, merged, BANYAN_F32, lse, BANYAN_F32, HEADS, HEAD_DIM); /* the merged lse, in place */
  banyan_combine_desc desc = BANYAN_COMBINE_DESC_INIT;
  desc.tokens = TOKENS, desc.heads = HEADS, desc.value_dim = HEAD_DIM;
  return banyan_combine(comm, &desc, &in, &out);
}

/* Under torchrun, or anything else that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. */
int main(void) {
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  banyan_comm *comm = NULL;
  float o[ROWS * HEAD_DIM], lse[ROWS], merged[ROWS * HEAD_DIM];
  banyan_status status = banyan_env_create(0, &env, &bootstrap);
  if (status == BANYAN_OK) status = banyan_comm_create(&bootstrap, NULL, &comm);
  banyan_env_destroy(env);
  if (status == BANYAN_OK) {
    /* A model's attention over this rank's keys stands here. This is one key of logit 0, whose value is the rank. */
    for (int i = 0; i < ROWS * HEAD_DIM; i++) o[i] = (float)bootstrap.rank;
    for (int i = 0; i < ROWS; i++) lse[i] = 0;
    status = merge(comm, o, lse, merged);
  }
  if (status == BANYAN_OK)
    printf("rank %d: attention is %g, lse %g\n", (int)bootstrap.rank, merged[0], lse[0]);
  else
    fprintf(stderr, "%s\n", banyan_last_error()); /* what is wrong, on which rank, and what to do */
  banyan_comm_destroy(comm);
  return status == BANYAN_OK ? 0 : 1;
}
