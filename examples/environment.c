/* SPDX-License-Identifier: Apache-2.0 */
#include <banyan.h>
#include <stdio.h>

int main(void) { /* under torchrun, or anything else that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT */
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  banyan_comm *comm = NULL;
  float o[2 * 4], lse[2] = {0, 0}, merged[2 * 4]; /* one token, two heads, four values for each */
  banyan_status status = banyan_env_create(0, &env, &bootstrap);
  if (status == BANYAN_OK) status = banyan_comm_create(&bootstrap, NULL, &comm);
  banyan_env_destroy(env);
  if (status == BANYAN_OK) {
    for (int i = 0; i < 2 * 4; i++) o[i] = (float)bootstrap.rank; /* in a model: attention over this rank's keys */
    banyan_partial in, out;
    banyan_partial_init(&in, o, BANYAN_F32, lse, BANYAN_F32, 2, 4);       /* normalised, lse in base e */
    banyan_partial_init(&out, merged, BANYAN_F32, lse, BANYAN_F32, 2, 4); /* the merged lse, in place */
    banyan_combine_desc desc = BANYAN_COMBINE_DESC_INIT;
    desc.tokens = 1, desc.heads = 2, desc.value_dim = 4;
    status = banyan_combine(comm, &desc, &in, &out);
  }
  if (status != BANYAN_OK) fprintf(stderr, "%s\n", banyan_last_error()); /* it says what is wrong and what to do */
  if (status == BANYAN_OK) printf("rank %d: attention is %g, lse %g\n", (int)bootstrap.rank, merged[0], lse[0]);
  banyan_comm_destroy(comm);
  return status == BANYAN_OK ? 0 : 1;
}
