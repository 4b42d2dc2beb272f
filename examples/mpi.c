/* SPDX-License-Identifier: Apache-2.0
 * Ranks of an MPI_Comm. Each rank receives its range of heads, for a model whose next layer is split by heads. */
#include <banyan_mpi.h>
#include <stdio.h>

enum { TOKENS = 2, HEADS = 8, HEAD_DIM = 64, ROWS = TOKENS * HEADS, VALUES = ROWS * HEAD_DIM };

static banyan_status decode(banyan_comm *comm) {
  static float o[VALUES], lse[ROWS], mine[VALUES], mine_lse[ROWS];
  int32_t rank = banyan_comm_rank(comm), first, heads;
  banyan_split(HEADS, banyan_comm_nranks(comm), rank, &first, &heads);
  /* Stands for attention over this rank's keys: one key of logit 0 and value rank. */
  for (int i = 0; i < VALUES; i++) o[i] = (float)rank;

  banyan_partial in, out;
  banyan_partial_init(&in, o, BANYAN_F32, lse, BANYAN_F32, HEADS, HEAD_DIM);
  banyan_partial_init(&out, mine, BANYAN_F32, mine_lse, BANYAN_F32, heads, HEAD_DIM);
  banyan_combine_desc desc = BANYAN_COMBINE_DESC_INIT;
  desc.tokens = TOKENS, desc.heads = HEADS, desc.value_dim = HEAD_DIM;
  desc.scatter = BANYAN_SCATTER_HEADS;
  banyan_status status = banyan_combine(comm, &desc, &in, &out);
  if (status == BANYAN_OK && heads > 0) {
    int last = (int)(first + heads - 1);
    printf("rank %d: heads %d to %d: attention is %g, lse %g\n", (int)rank, (int)first, last, mine[0], mine_lse[0]);
  }
  return status;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  banyan_comm *comm = NULL;
  banyan_status status = banyan_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm);
  if (status == BANYAN_OK) status = decode(comm);
  if (status != BANYAN_OK) fprintf(stderr, "%s\n", banyan_last_error());
  banyan_comm_destroy(comm);
  MPI_Finalize();
  return status == BANYAN_OK ? 0 : 1;
}
