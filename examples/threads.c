/* SPDX-License-Identifier: Apache-2.0
 * Ranks that are threads of this process merge the partials of each decode step. The operation is planned once, and
 * start and wait allocate nothing. */
#include <banyan.h>
#include <pthread.h>
#include <stdio.h>

enum { RANKS = 4, TOKENS = 2, HEADS = 8, HEAD_DIM = 64, ROWS = TOKENS * HEADS, STEPS = 100 };

typedef struct rank_work {
  banyan_threads *group;
  int rank;
  float o[ROWS * HEAD_DIM], lse[ROWS], merged[ROWS * HEAD_DIM], merged_lse[ROWS];
  char error[256]; /* "": no error */
} rank_work;

static banyan_status decode(rank_work *self, banyan_comm *comm) {
  banyan_partial in, out;
  banyan_partial_init(&in, self->o, BANYAN_F32, self->lse, BANYAN_F32, HEADS, HEAD_DIM);
  banyan_partial_init(&out, self->merged, BANYAN_F32, self->merged_lse, BANYAN_F32, HEADS, HEAD_DIM);
  banyan_combine_desc desc = BANYAN_COMBINE_DESC_INIT;
  desc.tokens = TOKENS, desc.heads = HEADS, desc.value_dim = HEAD_DIM;
  banyan_op *op = NULL;
  banyan_status status = banyan_combine_init(comm, &desc, &in, &out, &op);
  for (int step = 0; step < STEPS && status == BANYAN_OK; step++) {
    /* Stands for attention over this rank's keys: at each step, one key of logit 0 and value rank + step. */
    for (int i = 0; i < ROWS * HEAD_DIM; i++) self->o[i] = (float)(self->rank + step);
    for (int i = 0; i < ROWS; i++) self->lse[i] = 0;
    status = banyan_start(op); /* work that does not need the result can run now */
    if (status == BANYAN_OK) status = banyan_wait(op);
  }
  banyan_op_free(op);
  return status;
}

static void *live(void *argument) {
  rank_work *self = (rank_work *)argument;
  banyan_bootstrap bootstrap;
  banyan_comm *comm = NULL;
  banyan_status status = banyan_threads_bootstrap(self->group, self->rank, &bootstrap);
  if (status == BANYAN_OK) status = banyan_comm_create(&bootstrap, NULL, &comm);
  if (status == BANYAN_OK) status = decode(self, comm);
  if (status != BANYAN_OK) snprintf(self->error, sizeof self->error, "%s", banyan_last_error());
  banyan_comm_destroy(comm);
  return NULL;
}

int main(void) {
  static rank_work work[RANKS];
  pthread_t threads[RANKS];
  banyan_threads *group = NULL;
  int failures = 0;
  if (banyan_threads_create(RANKS, &group) != BANYAN_OK) return fprintf(stderr, "%s\n", banyan_last_error()), 1;
  for (int rank = 0; rank < RANKS; rank++) {
    work[rank].group = group;
    work[rank].rank = rank;
    if (pthread_create(&threads[rank], NULL, live, &work[rank]) != 0) return perror("pthread_create"), 1;
  }
  for (int rank = 0; rank < RANKS; rank++) {
    pthread_join(threads[rank], NULL);
    if (!work[rank].error[0]) continue;
    fprintf(stderr, "rank %d: %s\n", rank, work[rank].error);
    failures++;
  }
  banyan_threads_destroy(group);
  if (!failures) printf("%d steps: attention is %g, lse %g\n", STEPS, work[0].merged[0], work[0].merged_lse[0]);
  return failures ? 1 : 0;
}
