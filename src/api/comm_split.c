/* SPDX-License-Identifier: Apache-2.0
 * Splits a communicator. Its own collectives are the bootstrap of the new ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float_control.h"
#include "base/log.h"
#include "base/status.h"
#include "op/operation.h"

/* The arguments of one rank, as all ranks receive them. */
typedef struct wish {
  int32_t color, key, rank;
} wish;

/* All that the exchange of a split needs. Memory for it is taken before any rank knows the colors, so that a rank that
 * lacks it later fails its own color alone. */
typedef struct meeting {
  banyan_comm *comm;
  banyan_op *op; /* an allgather of one block of each rank */
  banyan_bootstrap bootstrap;
  bny_exchange all;
  bny_group_exchange group;
  wish *wishes;      /* [nranks] */
  int32_t *color_of; /* [nranks] */
} meeting;

static int gather_by_comm(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  meeting *self = context;
  (void)bytes, (void)timeout_ns; /* these are of one size, and a call has a deadline of its own */
  bny_op_bind(self->op, &(bny_op_memory){.in_bytes = mine, .out_bytes = all});
  return (int)bny_op_run(self->op);
}

static int compare_wishes(const void *first, const void *second) {
  const wish *a = first, *b = second;
  if (a->key != b->key) return a->key < b->key ? -1 : 1;
  return a->rank < b->rank ? -1 : 1;
}

/* Puts this rank's group in the order of keys. */
static void order_group(meeting *self, int32_t color) {
  int32_t place = 0;
  qsort(self->wishes, (size_t)self->comm->nranks, sizeof *self->wishes, compare_wishes);
  for (int32_t i = 0; i < self->comm->nranks; i++) {
    if (self->wishes[i].color != color) continue;
    if (self->wishes[i].rank == self->comm->rank) self->group.bootstrap.rank = place;
    self->group.ranks[place++] = self->wishes[i].rank;
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

static banyan_status take_memory(meeting *self) {
  banyan_comm *comm = self->comm;
  size_t nranks = (size_t)comm->nranks, *counts = malloc(nranks * sizeof *counts);
  self->wishes = calloc(nranks, sizeof *self->wishes);
  self->color_of = calloc(nranks, sizeof *self->color_of);
  banyan_status status = bny_group_exchange_reserve(&self->all, &self->group);
  if (status != BANYAN_OK || !counts || !self->wishes || !self->color_of) {
    status = bny_op_reject(
        comm, bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory to split %d ranks", comm->rank, comm->nranks), true);
  } else {
    for (size_t i = 0; i < nranks; i++) counts[i] = BNY_GROUP_BLOCK_BYTES;
    status = bny_op_make(comm, &(bny_call){.collective = BNY_ALLGATHER, .counts = counts, .on_host = true}, &self->op);
  }
  free(counts);
  return status;
}

static banyan_status gather_wishes(meeting *self, wish mine) {
  int32_t nranks = self->comm->nranks;
  char *own = self->group.blocks + (size_t)nranks * BNY_GROUP_BLOCK_BYTES;
  memset(own, 0, BNY_GROUP_BLOCK_BYTES);
  memcpy(own, &mine, sizeof mine);
  banyan_status status = (banyan_status)gather_by_comm(self, own, self->group.blocks, BNY_GROUP_BLOCK_BYTES, 0);
  for (int32_t i = 0; i < nranks && status == BANYAN_OK; i++) {
    memcpy(&self->wishes[i], self->group.blocks + (size_t)i * BNY_GROUP_BLOCK_BYTES, sizeof *self->wishes);
    self->color_of[i] = self->wishes[i].color;
  }
  return status;
}

static banyan_status make_sub(meeting *self, int32_t color, banyan_comm **sub) {
  banyan_comm *comm = self->comm, *made = NULL;
  banyan_status status = BANYAN_OK;
  char why[BNY_ERROR_TEXT_BYTES] = "";
  bny_group_exchange_divide(&self->group, self->color_of);
  order_group(self, color);
  if (color >= 0) status = bny_comm_make_part(comm, &self->group.bootstrap, color, &made);
  if (status != BANYAN_OK) snprintf(why, sizeof why, "%s", banyan_last_error());
  bny_log_rank(comm->rank);
  banyan_status ended = bny_group_exchange_end(&self->group);
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
  if (color < 0) color = BANYAN_COLOR_NONE;
  meeting self = {.comm = comm};
  self.bootstrap = (banyan_bootstrap){.size = sizeof self.bootstrap,
                                      .rank = comm->rank,
                                      .nranks = comm->nranks,
                                      .context = &self,
                                      .allgather = gather_by_comm};
  self.all = (bny_exchange){&self.bootstrap, INT64_MAX, comm->process};
  banyan_status status = take_memory(&self);
  if (status == BANYAN_OK) status = gather_wishes(&self, (wish){color, key, comm->rank});
  if (status == BANYAN_OK) {
    comm->splits++;
    status = make_sub(&self, color, sub);
  } else {
    bny_group_exchange_end(&self.group);
  }
  bny_op_free(self.op);
  free(self.wishes), free(self.color_of);
  return status;
}
