/* SPDX-License-Identifier: Apache-2.0
 * Splits a communicator. Its own collectives are the bootstrap of the new ones. */
#include <stdio.h>
#include <stdlib.h>

#include "base/float_control.h"
#include "base/log.h"
#include "base/status.h"
#include "op/operation.h"

/* The arguments of one rank, as all ranks receive them. */
typedef struct wish {
  int32_t color, key, rank;
} wish;

static int gather_by_comm(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  (void)timeout_ns; /* its calls have deadlines of their own */
  return (int)bny_op_gather(context, mine, bytes, all);
}

static int compare_wishes(const void *first, const void *second) {
  const wish *a = first, *b = second;
  if (a->key != b->key) return a->key < b->key ? -1 : 1;
  return a->rank < b->rank ? -1 : 1;
}

/* Puts this rank's group in the order of keys. */
static void order_group(const wish *sorted, const banyan_comm *comm, int32_t color, bny_group_exchange *group) {
  int32_t place = 0;
  for (int32_t i = 0; i < comm->nranks; i++) {
    if (sorted[i].color != color) continue;
    if (sorted[i].rank == comm->rank) group->bootstrap.rank = place;
    group->ranks[place++] = sorted[i].rank;
  }
}

/* If a rank cannot continue the exchange of all ranks, it ends the communicator, because the others wait for it. */
static banyan_status end_exchange(banyan_comm *comm, banyan_status status) {
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  banyan_status known = bny_comm_check(comm);
  if (known != BANYAN_OK) return known;
  return bny_exec_fail(comm->exec, status, comm->rank, "rank %d cannot split its communicator: %s", comm->rank, why);
}

static banyan_status make_subs(banyan_comm *comm, const banyan_bootstrap *bootstrap, wish *wishes,
                               const int32_t *color_of, banyan_comm **sub) {
  bny_exchange all = {bootstrap, INT64_MAX, comm->process};
  bny_group_exchange group;
  banyan_status status = bny_group_exchange_begin(&all, color_of, &group);
  if (status != BANYAN_OK) return end_exchange(comm, status);
  int32_t color = color_of[comm->rank];
  qsort(wishes, (size_t)comm->nranks, sizeof *wishes, compare_wishes);
  order_group(wishes, comm, color, &group);
  banyan_comm *made = NULL;
  char why[BNY_ERROR_TEXT_BYTES] = "";
  if (color >= 0) status = bny_comm_make_part(comm, &group.bootstrap, color, &made);
  if (status != BANYAN_OK) snprintf(why, sizeof why, "%s", banyan_last_error());
  bny_log_rank(comm->rank);
  banyan_status ended = bny_group_exchange_end(&group);
  if (ended != BANYAN_OK) {
    status = end_exchange(comm, ended);
    if (made) banyan_comm_abort(made, "the communicator that was split has failed");
    banyan_comm_destroy(made);
    return status;
  }
  *sub = made;
  return status == BANYAN_OK ? BANYAN_OK : bny_fail(status, "color %d: %s", color, why);
}

banyan_status banyan_comm_split(banyan_comm *comm, int32_t color, int32_t key, banyan_comm **sub) {
  BNY_FLOAT_MODE;
  if (!comm || !sub) return bny_op_reject(comm, bny_fail(BANYAN_ERR_ARGUMENT, "comm and sub must not be NULL"), true);
  if (bny_comm_is_inherited(comm)) return bny_comm_reject_child(comm);
  *sub = NULL;
  size_t nranks = (size_t)comm->nranks;
  wish mine = {color < 0 ? BANYAN_COLOR_NONE : color, key, comm->rank}, *wishes = calloc(nranks, sizeof *wishes);
  int32_t *color_of = calloc(nranks, sizeof *color_of);
  banyan_status status;
  if (wishes && color_of)
    status = bny_op_gather(comm, &mine, sizeof mine, wishes);
  else
    status = bny_op_reject(
        comm, bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory to split %d ranks", comm->rank, comm->nranks), true);
  if (status == BANYAN_OK) {
    banyan_bootstrap bootstrap = {.size = sizeof bootstrap,
                                  .rank = comm->rank,
                                  .nranks = comm->nranks,
                                  .context = comm,
                                  .allgather = gather_by_comm};
    for (size_t i = 0; i < nranks; i++) color_of[i] = wishes[i].color;
    comm->splits++;
    status = make_subs(comm, &bootstrap, wishes, color_of, sub);
  }
  free(color_of);
  free(wishes);
  return status;
}
