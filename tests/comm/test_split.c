/* SPDX-License-Identifier: Apache-2.0
 * Communicators over a subset of ranks: members and their order, correct results, and independence from failures of the
 * others. */
#include <limits.h>
#include <signal.h>

#include "tests/support/rows.h"
#include "tests/support/world.h"

enum { HEADS = 4, VALUE_DIM = 16 };

/* The arguments of each rank of the world. */
typedef struct split_case {
  int32_t color[WORLD_RANKS_MAX], key[WORLD_RANKS_MAX];
  bool parent_first; /* the parent is destroyed before its parts are used */
} split_case;

/* Rank r of the world contributes r + 1 with equal weights, so the result is the mean over members. */
static bool check_mean(world_rank *self, banyan_comm *comm, const int32_t *members) {
  int32_t nranks = banyan_comm_nranks(comm);
  rows *rows = rows_take(1, HEADS, VALUE_DIM);
  double sum = 0;
  rows_set(rows, (float)(self->rank + 1));
  rows->in = world_partial(self, rows->in), rows->out = world_partial(self, rows->out);
  rows->desc.stream = self->stream;
  if (!world_put(self)) return false;
  if (comm && !world_ok(self, rows_combine(rows, comm), "combine of a part")) return false;
  if (!world_finish(self)) return false;
  for (int32_t i = 0; i < nranks; i++) sum += members[i] + 1;
  return !comm || rows_hold(self, rows, sum / nranks);
}

/* Splits `comm`, whose ranks are `among`, as the case requires. *members gets the expected ranks of the part, by the
 * rules of the header. */
static bool split(world_rank *self, banyan_comm *comm, const int32_t *among, int32_t count, const split_case *wanted,
                  int32_t *members, banyan_comm **part) {
  int32_t color = wanted->color[self->rank], nmembers = 0;
  *part = comm; /* any non-NULL value */
  if (!world_ok(self, banyan_comm_split(comm, color, wanted->key[self->rank], part), "split")) return false;
  for (int32_t i = 0; i < count; i++)
    for (int32_t at = color >= 0 && wanted->color[among[i]] == color ? nmembers++ : -1; at >= 0; at = -1) {
      /* `among` keeps the old order of ranks, so ties keep it too */
      while (at > 0 && wanted->key[members[at - 1]] > wanted->key[among[i]]) members[at] = members[at - 1], at--;
      members[at] = among[i];
    }
  if (color < 0) return world_check(self, !*part, "a rank without a color got a communicator");
  return world_check(self, *part && banyan_comm_nranks(*part) == nmembers, "%d of %d ranks", banyan_comm_nranks(*part),
                     nmembers) &&
         world_check(self, members[banyan_comm_rank(*part)] == self->rank, "rank %d is member %d", self->rank,
                     banyan_comm_rank(*part));
}

static void split_twice(world_rank *self) {
  const split_case *cases = self->argument;
  int32_t members[3][WORLD_RANKS_MAX];
  banyan_comm *parts[2] = {NULL, NULL};
  for (int32_t r = 0; r < self->nranks; r++) members[0][r] = r;
  if (!split(self, self->comm, members[0], self->nranks, &cases[0], members[1], &parts[0])) return;
  if (parts[0] && !split(self, parts[0], members[1], banyan_comm_nranks(parts[0]), &cases[1], members[2], &parts[1]))
    return;
  if (!check_mean(self, self->comm, members[0])) return;
  if (cases[0].parent_first) {
    if (!world_meet(self)) return;
    banyan_comm_destroy(self->comm);
    self->comm = NULL;
  }
  for (int round = 0; round < 3; round++)
    for (int i = 0; i < 2; i++)
      if (!check_mean(self, parts[i], members[i + 1])) return;
  if (self->on->is_device && !world_meet(self)) return;
  banyan_comm_destroy(parts[cases[1].parent_first]);
  banyan_comm_destroy(parts[!cases[1].parent_first]);
  if (self->comm) world_ok(self, banyan_barrier(self->comm), "barrier of all after their parts have gone");
}

TEST_EVERYWHERE(random_splits, 24) {
  world_random random = random_seed() + 1000 * (uint64_t)_i;
  static const int32_t keys[] = {INT32_MIN, -1, 0, 0, 1, 7, INT32_MAX};
  int32_t nranks = world_ranks(on, 1 + random_below(&random, 9)), colors = 1 + random_below(&random, 3);
  split_case *cases = world_share(2 * sizeof *cases);
  for (int i = 0; i < 2; i++) {
    cases[i].parent_first = random_one_in(&random, 2);
    for (int32_t r = 0; r < nranks; r++) {
      cases[i].color[r] = random_one_in(&random, 6)   ? (random_one_in(&random, 2) ? BANYAN_COLOR_NONE : INT32_MIN)
                          : random_one_in(&random, 9) ? INT32_MAX
                                                      : random_below(&random, colors);
      cases[i].key[r] = keys[random_below(&random, sizeof keys / sizeof keys[0])];
    }
  }
  world_run(&(world_setup){.nranks = nranks, .on = on, .comms = 3, .argument = cases}, split_twice);
  world_unshare(cases, 2 * sizeof *cases);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

typedef enum deed { DIE, STAY_AWAY, GATHER, GIVE_NOWHERE, DEEDS } deed;

/* Rank 1 of 3 does not take part in the split, and the others get an error that names it. */
static void split_without_one(world_rank *self) {
  deed deed = *(const enum deed *)self->argument;
  banyan_comm *part = NULL;
  enum { BLOCK = 1024 }; /* the size of the first exchange of a split */
  static char bytes[3 * BLOCK];
  static const banyan_status wanted[DEEDS] = {BANYAN_ERR_PEER, BANYAN_ERR_TIMEOUT, BANYAN_ERR_MISMATCH,
                                              BANYAN_ERR_PEER};
  if (!world_ok(self, banyan_barrier(self->comm), "barrier")) return;
  banyan_status status = BANYAN_OK;
  if (self->rank != 1)
    status = banyan_comm_split(self->comm, self->rank, 0, &part);
  else if (deed == DIE)
    raise(SIGKILL);
  else if (deed == STAY_AWAY)
    world_await(self->world, 0, 60);
  else if (deed == GATHER)
    status = banyan_allgather(self->comm, bytes + BLOCK, bytes, (size_t[]){BLOCK, BLOCK, BLOCK});
  else
    status = banyan_comm_split(self->comm, 0, 0, NULL);
  if (self->rank != 1)
    world_check(self, status == wanted[deed] && !part && (strstr(banyan_last_error(), "rank 1") || deed == GATHER),
                "got %s: %s", banyan_status_string(status), banyan_last_error());
  else
    world_check(self, deed == STAY_AWAY || status == (deed == GATHER ? BANYAN_ERR_MISMATCH : BANYAN_ERR_ARGUMENT),
                "rank 1 got %s: %s", banyan_status_string(status), banyan_last_error());
  if (self->rank == 0) world_signal(self->world, 0);
  if (deed == GIVE_NOWHERE && world_ok(self, banyan_comm_split(self->comm, 0, 0, &part), "split after a rejected one"))
    banyan_comm_destroy(part);
}

TEST_LOOP(one_does_not_come, DEEDS) {
  deed deed = (enum deed)_i;
  WORLD_RUN(split_without_one, .nranks = 3, .processes = true, .deaths = deed == DIE, .argument = &deed,
            .timeout_ns = deed == STAY_AWAY ? 500000000 : 0);
}

/* Rank 1 has an unknown kernel name. Its color fails, and the other color and the parent are unaffected. */
TEST_RANKS(one_color_fails, 1, .nranks = 4, .processes = true) {
  int32_t color = self->rank / 2, members[2] = {2 * color, 2 * color + 1};
  banyan_comm *part = NULL;
  if (self->rank == 1) setenv("BANYAN_KERNELS", "none such", 1);
  banyan_status status = banyan_comm_split(self->comm, color, 0, &part);
  if (color == 0)
    world_check(self, status == BANYAN_ERR_ARGUMENT && !part && strstr(banyan_last_error(), "BANYAN_KERNELS"),
                "got %s: %s", banyan_status_string(status), banyan_last_error());
  else if (world_ok(self, status, "split of the other color"))
    check_mean(self, part, members);
  world_ok(self, banyan_barrier(self->comm), "barrier of all");
  banyan_comm_destroy(part);
}

/* Rank 3 dies. Its part shrinks, and the other part continues. */
TEST_RANKS(one_part_dies, 1, .nranks = 4, .processes = true, .deaths = true) {
  int32_t color = self->rank / 2, members[2] = {2 * color, 2 * color + 1};
  banyan_comm *part = NULL, *left = NULL;
  if (!world_ok(self, banyan_comm_split(self->comm, color, 0, &part), "split")) return;
  if (!check_mean(self, part, members) || !world_meet(self)) return;
  if (self->rank == 3) raise(SIGKILL);
  if (self->rank == 2) {
    world_check(self, banyan_barrier(part) == BANYAN_ERR_PEER, "got %s", banyan_last_error());
    if (!world_ok(self, banyan_comm_shrink(part, members, &left), "shrink of a part")) return;
    world_check(self, members[0] == 0 && banyan_comm_nranks(left) == 1, "member %d", members[0]);
    members[0] = 2;
    check_mean(self, left, members);
    banyan_comm_destroy(left);
  } else {
    for (int i = 0; i < 20; i++)
      if (!check_mean(self, part, members)) return;
  }
  banyan_comm_destroy(part);
}

int main(void) { return world_main(suite_of("split", 120)); }
